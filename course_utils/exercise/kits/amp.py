"""Mixed precision: a scaler beside torch's, a model that writes down what happens in a step, errors of float8
products, and how a number of saved bytes may be off."""

import copy
import functools
import math
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import expect
from course_utils.exercise.symptoms import BYTES

_WEIGHTS = """from math import inf, nan
p, q = nn.Parameter(torch.ones(2, device=device)), nn.Parameter(torch.ones(2, device=device))"""
ONE_OPTIMIZER = f"""{_WEIGHTS}
both = torch.optim.SGD([{{"params": [p]}}, {{"params": [q]}}], lr=0.25, momentum=0.5)
scaler = GradScaler(init_scale=16.0)
loss = 3 * p.sum()"""
# `train([1., 2.], None)`: one iteration, in which `p` gets this gradient and the second optimizer rests.
TWO_OPTIMIZERS = f"""{_WEIGHTS}
optimizers = [torch.optim.SGD([w], lr=0.25, momentum=0.5) for w in (p, q)]
scaler = GradScaler(init_scale=64.0, growth_factor=4.0, backoff_factor=0.5, growth_interval=3)
def train(*gradients):
    used = [three for three in zip((p, q), optimizers, gradients) if three[2]]
    for w, optimizer, gradient in used:
        optimizer.zero_grad()
        scaler.scale((w * torch.tensor(gradient, device=device)).sum()).backward()
    for w, optimizer, gradient in used:
        scaler.step(optimizer)
    scaler.update()"""


def script(*iterations: str) -> list[str]:
    """200 of these lines, with numbers put in, and now and then an inf or nan; the same on every run."""
    choose, numbers = random.Random(0), ["1.", "2.", "-3."] * 8 + ["inf", "nan"]
    return [choose.choice(iterations).format(*choose.choices(numbers, k=4)) for _ in range(200)]


def _answers(GradScaler: Any, setup: str, lines: Any, questions: Any, device: Any) -> Iterator[list[Any]]:
    names = {"torch": torch, "nn": nn, "GradScaler": GradScaler, "device": device}
    exec(setup, names)
    for line in lines:
        exec(line, names)
        yield [eval(question, names) for question in questions]


@functools.cache
def _of_torch(*script: Any) -> list[list[Any]]:
    # A scaler that is made for the CPU works on the device of the loss.
    return [copy.deepcopy(one) for one in _answers(functools.partial(torch.amp.GradScaler, "cpu"), *script)]


def _difference(GradScaler: type, *script: Any) -> int | None:
    """The number of the first line after which an answer is another than torch's; None: there is none."""
    done = 0
    try:
        for came, wanted in zip(_answers(GradScaler, *script), _of_torch(*script), strict=True):
            _equal(came, wanted)
            done += 1
    except Exception:
        return done
    return None


def _equal(came: Sequence[Any], wanted: Sequence[Any]) -> None:
    for one, other in zip(came, wanted, strict=True):
        expect.equal(one, other, rtol=0.0, atol=0.0)


def follow(
    GradScaler: type, lines: Sequence[str], questions: Sequence[str], device: Any, setup: str = TWO_OPTIMIZERS
) -> None:
    """After each line all questions are answered as with torch's scaler. A message shows no more lines
    `train(...)` than it takes to differ."""
    lines, questions = tuple(lines), tuple(questions)
    if (last := _difference(GradScaler, setup, lines, questions, device)) is None:
        return
    alone = last if all(line.startswith("train(") for line in lines) else 0
    for start in (*range(alone, max(0, alone - 12), -1), 0):
        part = lines[start : last + 1]
        if _difference(GradScaler, setup, part, questions, device) == last - start:
            break
    t = expect.given("\n".join([setup, *part]), GradScaler=GradScaler, device=device)
    for question, wanted in zip(questions, _of_torch(setup, part, questions, device)[-1], strict=True):
        _equal([t.call(question)], [wanted])
    expect.true(False, "this differs from torch's scaler once, and not when it runs again")


MODEL = """from course_utils.exercise.kits import amp

torch.manual_seed(0)
model = amp.Watched(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).to(device)
model.layers[0].bias.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
optimizer.register_step_pre_hook(lambda *_: model.note("step"))
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
x, y = torch.randn(8, 3, device=device), torch.arange(8, device=device) % 3"""
# What an earlier step has left, also in a parameter that takes no part in this one.
OLD_GRADIENTS = """model.spare = nn.Parameter(torch.ones(2, device=device))
optimizer.add_param_group({"params": [model.spare]})
for w in model.parameters():
    w.grad = torch.full_like(w, 50.0)"""


def region(dtype: torch.dtype | None) -> str:
    """The region around something that ran, in words."""
    return f"under autocast in {dtype}" if dtype else "outside of autocast"


class Watched(nn.Module):
    """A model that writes down what happens to it. `seen`: pairs of what ran (forward, loss, backward, step)
    and the dtype of the autocast region around it, or None. `steps`: the gradients, by name, of each step."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.seen, self.steps = [], []

    def note(self, what: str) -> None:
        device = next(self.parameters()).device.type
        on = torch.is_autocast_enabled(device)
        self.seen.append((what, torch.get_autocast_dtype(device) if on else None))
        if what == "step":
            named = self.named_parameters()
            self.steps.append({name: w.grad.clone() for name, w in named if w.grad is not None})

    def forward(self, x: Tensor) -> Tensor:
        self.note("forward")
        out = self.layers(x)
        out.register_hook(lambda gradient: self.note("backward"))
        return out

    def loss_fn(self, out: Tensor, y: Tensor) -> Tensor:
        self.note("loss")
        return F.cross_entropy(out, y)

    def truth(self, x: Tensor, y: Tensor, max_norm: float = math.inf) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss in float32, and its gradients by name, clipped."""
        trained = {name: w for name, w in self.layers.named_parameters("layers") if w.requires_grad}
        loss = F.cross_entropy(self.layers(x), y)
        grads = torch.autograd.grad(loss, list(trained.values()))
        factor = min(1.0, max_norm / torch.stack([grad.norm() for grad in grads]).norm().item())
        return loss.detach(), {name: factor * grad for name, grad in zip(trained, grads, strict=True)}

    def expect_step(self, wanted: dict[str, Tensor], factors: dict[str, float] | None = None) -> None:
        """The optimizer has stepped once, with these gradients, as exact as float16 is."""
        expect.equal(len(self.steps), 1, what="the number of steps of the optimizer")
        for name, true in wanted.items():
            slack, what = 0.01 * true.abs().max().item(), f"the gradient of `{name}` in the step"
            expect.equal(self.steps[0].get(name), true, what=what, rtol=0.01, atol=slack, factors=factors)

    def expect_no_more(self, wanted: dict[str, Tensor]) -> None:
        """No other parameter has a gradient in the step."""
        for name, came in self.steps[0].items():
            why = "is not used" if self.get_parameter(name).requires_grad else "is frozen"
            told = f"the gradient of `{name}`, which {why}, is {expect.show(came)} in the step"
            expect.true(name in wanted, told, "expected: None")


def expect_error(came: Tensor, wanted: Tensor, least: float, most: float, what: str) -> None:
    """The norm of the error lies between these shares of the norm of what is wanted; where that is 0, all of
    what came is 0."""
    came, wanted = expect.a_tensor(came, what=what).detach().double(), wanted.detach()
    expect.equal(tuple(came.shape), tuple(wanted.shape), what=f"the shape of {what}")
    expect.true(bool(came.isfinite().all()), f"{what} has inf or nan", "expected: finite numbers")
    size, error = wanted.norm().item(), (came - wanted).norm().item()
    if not size:
        expect.true(not error, f"{what} has a norm of {error:.3g}", "expected: zeros")
        return
    share = error / size
    expect.true(share <= most, f"{what} is off by {share:.1%} of its norm", f"expected: at most {most:.1%}")
    told = f"{what} is off by {share:.1%} of its norm", f"float8 numbers give at least {least:.1%}"
    expect.true(share >= least, *told)


def _elements(widths: Sequence[int], batch: int) -> dict[str, int]:
    """Of what somebody may forget, or count once more, of the bytes that linear layers of these widths keep,
    with an activation between any two."""
    weights = [a * b for a, b in pairwise(widths)]
    return {
        "all biases": sum(widths[1:]),
        "all biases but the first": sum(widths[2:]),
        "all weights": sum(weights),
        "all weights but the first": sum(weights[1:]),
        "the first weight": weights[0],
        "all parameters": sum(weights) + sum(widths[1:]),
        "`x`": batch * widths[0],
        "the result of the last layer": batch * widths[-1],
        "the results of the activations": batch * sum(widths[1:-1]),
    }


# By how much a number of bytes may be off, for a `Table` of (widths, batch, ...): see its `like`.
OFF_BY = {
    f", by {size} bytes for each element of {name}": lambda came, widths, batch, *case, part=(name, size): (
        abs(came - case[-1]) == part[1] * _elements(widths, batch)[part[0]]
    )
    for name in _elements((1, 1), 1)
    for size in (4, 2)
} | {
    f": times {n:,} it is right, which is {name}": lambda came, *case, n=n: came * n == case[-1]
    for name, n in BYTES.items()
}
