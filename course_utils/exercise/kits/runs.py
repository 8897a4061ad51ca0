"""What repairs of training runs share: data made on the spot, a recorded run of the answer, the band in which
healthy runs end, and what a repair leaves as it is."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.exercise import Exercise, expect
from course_utils.measure.training import Forward, Run, Step, record_run

SEEDS = (0, 1, 2)
# A healthy run of a reader's own may end this many times as high as the worst of ours.
ROOM = 1.5
NORMS = (nn.modules.batchnorm._BatchNorm,)
DROPOUTS = (nn.modules.dropout._DropoutNd,)


# --- data ----------------------------------------------------------------------------------------------


def two_moons(n: int = 192, seed: int = 0, noise: float = 0.15) -> tuple[Tensor, Tensor]:
    """Points (n, 2) on two half circles that reach into each other, and which of the two: (n,), 0 or 1."""
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    angle = math.pi * torch.rand(n, generator=random)
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    x = torch.where(y[:, None] == 0, upper, torch.tensor([1.0, 0.5]) - upper)
    return x + noise * torch.randn(n, 2, generator=random), y


def line(n: int = 128, seed: int = 0, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """Points (n, 1) between -1 and 1, and (n,): `2 * x - 1` with some noise."""
    random = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 1, generator=random) - 1
    return x, 2 * x[:, 0] - 1 + noise * torch.randn(n, generator=random)


def shapes(n: int = 192, seed: int = 0, size: int = 8, noise: float = 0.3) -> tuple[Tensor, Tensor]:
    """Images (n, 1, size, size), each with a shape somewhere, and which: (n,), 0 a frame, 1 a cross, 2 a
    filled square."""
    random = torch.Generator().manual_seed(seed)
    frame, cross, filled = torch.ones(3, 5, 5)
    frame[1:4, 1:4] = 0
    cross[torch.arange(5) != 2] = 0
    cross[:, 2] = 1
    x, y = noise * torch.randn(n, 1, size, size, generator=random), torch.arange(n) % 3
    corners = torch.randint(size - 4, (n, 2), generator=random).tolist()
    for image, kind, (top, left) in zip(x, y.tolist(), corners, strict=True):
        image[0, top : top + 5, left : left + 5] += (frame, cross, filled)[kind]
    return x, y


def wave(n: int = 512, seed: int = 0, noise: float = 0.1) -> Tensor:
    """A series (n,): the sum of two sines, with some noise."""
    random = torch.Generator().manual_seed(seed)
    t = torch.arange(n) * 0.3 + 6 * torch.rand(1, generator=random)
    return t.sin() + 0.5 * (2.3 * t).sin() + noise * torch.randn(n, generator=random)


def sentences(n: int = 96, seed: int = 0, longest: int = 12, words: int = 8) -> tuple[Tensor, Tensor]:
    """Rows of words (n, longest), numbers from 1 to `words`, and their lengths (n,); 0 is padding. Most words
    follow from the one before (3 times it and 1, in a circle); one in ten is any."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, longest + 1, (n,), generator=random)
    rows = torch.randint(words, (n, longest), generator=random)
    keep = torch.rand(n, longest, generator=random) < 0.9
    for i in range(1, longest):
        rows[:, i] = torch.where(keep[:, i], (3 * rows[:, i - 1] + 1) % words, rows[:, i])
    return (rows + 1) * (torch.arange(longest) < lengths[:, None]), lengths


# --- a healthy run ---------------------------------------------------------------------------------------


def trained(
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    kind: type[torch.optim.Optimizer] = torch.optim.SGD,
    *,
    epochs: int,
    size: int,
    **settings: Any,
) -> nn.Module:
    """The model after `epochs` over shuffled batches of `size`, by this optimizer with these settings."""
    optimizer = kind(model.parameters(), **settings)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(size):
            optimizer.zero_grad()
            loss_fn(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return model


# --- one run of an answer -------------------------------------------------------------------------------


@dataclass(eq=False)
class Treated:
    """An example in which the answer has trained: its names, what was recorded, and the returned model."""

    given: expect.Given
    run: Run
    model: nn.Module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.given, name)


@dataclass(eq=False)
class Case:
    """One sick run, and how its repair is judged.

    `setup` makes the data, `call` trains; both may use `seed`. `train` is the healthy run in plain torch: it
    takes the example (its data as attributes) and the seed, and returns a model. `held` is the loss of a
    model on held data; it gets the model in evaluation mode, with gradients off. `room`: so many times as
    high as the worst healthy run a repaired one may end.
    """

    exercise: Exercise
    setup: str
    call: str
    train: Callable[[expect.Given, int], nn.Module]
    held: Callable[[nn.Module], Tensor]
    room: float = ROOM
    _ready: dict[Any, Any] = field(default_factory=dict, repr=False)

    def given(self, answer: Any, seed: int = 0, setup: str = "") -> expect.Given:
        setup = f"from course_utils.exercise.kits import runs\n{setup or self.setup}"
        return expect.given(setup, seed=seed, **{self.exercise.answer_name: answer})

    def treated(self, answer: Any, seed: int = 0, setup: str = "", drawn: int = 0) -> Treated:
        """The answer's run with this seed, recorded; with other data where `setup` makes them. `drawn`: so
        many random numbers have been drawn before."""
        t = self.given(answer, seed, setup)
        torch.rand(drawn)
        with contextlib.ExitStack() as stack:
            for name, value in list(t._names.items()):
                if isinstance(value, Tensor):
                    stack.enter_context(expect.left_alone(value, what=f"`{name}`"))
            run = record_run(t.run, self.call)
        expect.true(
            isinstance(t.model, nn.Module),
            f"`model` is {expect.show(t.model)}",
            "expected: the trained model, then the rest",
        )
        expect.true(bool(run.steps), "no optimizer took a step while it ran", "expected: it trains")
        return Treated(t, run, t.model)

    def sick(self) -> Run:
        """The starter's own run: what a repair leaves as it is, it has as the starter has it."""
        if "sick" not in self._ready:
            with torch.random.fork_rng([]), expect.situation():
                t = self.given(self.exercise.starter_object)
                self._ready["sick"] = record_run(t.run, self.call)
        return self._ready["sick"]

    def healthy(self, seed: int = 0) -> Run:
        """The healthy run in plain torch, recorded; `result` is its model."""
        if seed not in self._ready:
            with torch.random.fork_rng([]), expect.situation():
                self._ready[seed] = record_run(self.train, self.given(None, seed), seed)
        return self._ready[seed]

    def in_band(self, answer: Any, seeds: Sequence[int] = SEEDS) -> None:
        """After training, the loss of the returned model on held data is where healthy runs end."""
        ends = sorted(self.loss(self.healthy(seed).result) for seed in SEEDS)
        top = self.room * ends[-1]
        found = {}
        for seed in seeds:
            t = self.treated(answer, seed)
            with _told_of_the_model():
                found[seed] = self.loss(t.model)
            expect.true(
                found[seed] <= top,  # not so for NaN
                f"on held data the returned model has a loss of {found[seed]:.4g}",
                f"expected: at most {top:.2g}. Healthy runs end between {ends[0]:.2g} and {ends[-1]:.2g}",
            )

    def loss(self, model: nn.Module) -> float:
        model.eval()
        with torch.no_grad():
            return float(self.held(model))

    def stays(
        self, answer: Any, *, but: Iterable[str] = (), free: Iterable[str] = (), losses: bool = True
    ) -> None:
        """What the repair is not about is as in the starter: the layers that train, the batches, the number
        of steps, the optimizer and its settings; the seed decides all; `losses` are those of the steps.

        `but`: classes of layers that a repair may add or drop. `free`: settings of the optimizer that it may
        change (`"lr"`). `losses`: whether there are numbers of that name, one for each backward.
        """
        t, sick = self.treated(answer), self.sick()
        same_layers(t.run, t.model, sick, but)
        batches = [[f.input is not None and tuple(f.input.shape) for f in r.trained] for r in (t.run, sick)]
        expect.equal(len(t.run.steps), len(sick.steps), what="the number of optimizer steps")
        for number, (came, wanted) in enumerate(zip(*batches, strict=False)):
            expect.equal(came, wanted, what=f"the shape of training batch {number}")
        for number, (came, wanted) in enumerate(zip(t.run.steps, sick.steps, strict=True)):
            same_settings(came, wanted, number, free)
        if losses:
            expect.true(
                isinstance(t.losses, list) and all(type(loss) is float for loss in t.losses),
                f"`losses` is {expect.show(t.losses)}",
                "expected: a list of Python numbers, the loss of each step",
            )
            expect.equal(t.losses, t.run.losses, what="`losses`", rtol=1e-4, atol=1e-6)
        again = self.treated(answer, drawn=3).run.losses
        expect.equal(again, t.run.losses, what="the losses of a second run with the same seed", rtol=1e-4)


@contextlib.contextmanager
def _told_of_the_model() -> Iterator[None]:
    try:
        yield
    except expect.Mismatch:
        raise
    except Exception as error:
        told = f"the returned model, called on held data, raised `{type(error).__name__}: {error}`"
        raise expect.Mismatch(told, "expected: it takes batches as in training") from error


# --- what a repair leaves as it is -------------------------------------------------------------------------


def same_layers(run: Run, model: nn.Module, sick: Run, but: Iterable[str] = ()) -> None:
    """The layers of the first training forward are those of the starter's, in the same order."""
    expect.true(bool(run.trained), "no gradient came back to a module that was called", "expected: it trains")
    came, wanted = (_layers(r.trained[0], set(but)) for r in (run, sick))
    lost, added = Counter(wanted) - Counter(came), Counter(came) - Counter(wanted)
    gone, new = next(iter(lost), ""), next(iter(added), "")
    short = said if said(gone) != said(new) else "`{}`".format
    told = [f"{short(gone)} does not run in training any more"] if lost else []
    told += [f"{short(new)} runs in training, and did not before"] if added else []
    if told and not any(f.module is model for f in run.trained):
        told = ["the returned model itself was not called in training, at most parts of it, or its `forward`"]
    expect.true(
        not told, "; ".join(told), "expected: `model(x)` runs the same layers, with the same settings"
    )
    expect.equal(came, wanted, what="the layers, in the order in which they run")
    shapes = [_shapes(r.trained[0], set(but)) for r in (run, sick)]
    for layer, has, asked in zip(came, *shapes, strict=True):
        expect.equal(has, asked, what=f"the shapes of the parameters of {said(layer)}")


_RARE = re.compile(r", (eps|momentum|affine|bias|track_running_stats|inplace)=[^,()]+")


def said(layer: nn.Module | str) -> str:
    """A layer in a message: without settings that few people set."""
    return f"`{_RARE.sub('', str(layer))}`"


def _layers(forward: Forward, but: set[str]) -> list[str]:
    return [repr(x.module) for x in forward.layers if type(x.module).__name__ not in but]


def _shapes(forward: Forward, but: set[str]) -> list[list[tuple[int, ...]]]:
    layers = [x.module for x in forward.layers if type(x.module).__name__ not in but]
    return [[tuple(p.shape) for p in layer.parameters()] for layer in layers]


def same_settings(came: Step, wanted: Step, number: int, free: Iterable[str] = ()) -> None:
    """The optimizer and its settings in each group, at one step; but not those of `free`."""
    expect.equal(type(came.optimizer).__name__, type(wanted.optimizer).__name__, what="the optimizer")
    alike = len(came.groups) == len(wanted.groups)
    for i, group in enumerate(came.groups):
        for name, value in wanted.groups[i if alike else 0].items():
            if name not in {"initial_lr", *free}:
                what = f"`{name}` of the optimizer at step {number}"
                expect.equal(group.get(name), value, what=what, rtol=1e-6, atol=0.0)


# --- what runs show ---------------------------------------------------------------------------------------


def rows_of(forward: Forward, data: Tensor, name: str = "x") -> Tensor:
    """For each row of the input of a forward, its place in `data`."""
    places = _places(forward, data)
    if places is None:
        told = f"at step {forward.step} the model gets a batch whose rows are not rows of `{name}`"
        raise expect.Mismatch(told, f"expected: batches of `{name}`, as they are")
    return places


def _places(forward: Forward, data: Tensor) -> Tensor | None:
    batch = forward.input
    if batch is None or batch.shape[1:] != data.shape[1:]:
        return None
    same = (batch.flatten(1)[:, None] == data.flatten(1)[None]).all(-1)
    return same.int().argmax(1) if bool(same.any(1).all()) else None


def scores(forward: Forward) -> Tensor:
    """What the last linear or convolutional layer of a forward returned: before any softmax."""
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    return next(x.output for x in reversed(forward.layers) if isinstance(x.module, kinds))


def scores_of(model: nn.Module, x: Tensor) -> Tensor:
    """The same for a model and a batch."""
    return scores(record_run(model, x).forwards[-1])


def modes(forward: Forward, kinds: tuple[type, ...] = NORMS + DROPOUTS) -> dict[str, bool]:
    """`training` of the layers whose mode matters, as they ran: `{"`Dropout(p=0.5)`": True}`."""
    return {said(x.module): x.training for x in forward.layers if isinstance(x.module, kinds)}


def names_of(model: nn.Module) -> dict[int, str]:
    """The names of a model's parameters, by `id`."""
    return {id(p): name for name, p in model.named_parameters()}
