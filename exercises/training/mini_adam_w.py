"""AdamW, by hand

Build `MiniAdamW`, which does what `torch.optim.AdamW` does, without torch's optimizers.

- `params` is an iterable of tensors, or of dicts, as in torch: `"params"`, a list, and the group's settings.
- `step` writes to the parameters in place. It skips those whose `.grad` is `None`, their step count too.
- `state_dict()` can be exchanged with torch's, both ways. A dict that was loaded isn't written to later.

With `t` steps so far, `m` and `v` the running means of `g` and `g * g`:
`p -= lr * weight_decay * p`, then `p -= lr * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + eps)`.

`MiniAdamW([{"params": [w], "lr": 0.1}, {"params": [b]}], lr=0.01)` has two `param_groups`.
"""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=18,
    hints=[
        'Print `state_dict()` of torch\'s optimizer after a step: which names are in `"state"`, and what '
        'stands for the parameters in `"param_groups"`?',
        "The state of a parameter begins at its own first gradient. For `state_dict`, number the parameters "
        "through all groups. Which tensors will the next `step` write to after loading?",
        "`self.state` is a dict from parameter to `step`, `exp_avg`, `exp_avg_sq`. Under `torch.no_grad()`: "
        "`m.lerp_(g, 1 - beta1)`, then the two lines of the task. Load clones, and keep your parameters.",
    ],
)


@exercise.starter
class MiniAdamW:
    def __init__(
        self, params: Iterable, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2
    ):
        self.param_groups: list[dict[str, Any]]
        self.state: dict[Tensor, dict[str, Any]]
        raise NotImplementedError

    def step(self) -> None: ...
    def zero_grad(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


_GROUPS = "[dict(params=ps[:1], lr=0.1, weight_decay=0.5, betas=(0.5, 0.6)), dict(params=ps[1:])]"
_SETUP = """
torch.manual_seed(0)
ps = [nn.Parameter(torch.randn(n, 2, device=device)) for n in (1, 2, 3)]

def train(optimizer, ps, seed, steps, without=lambda step, i: False):
    torch.manual_seed(seed)
    for step in range(steps):
        optimizer.zero_grad()
        for i, p in enumerate(ps):
            p.grad = None if without(step, i) else torch.randn_like(p) * 10.0 ** -i
        optimizer.step()

"""
_SKIPS = "lambda step, i: i == 0 or (i == 1 and step % 3 in (0, 2))"


def _both(MiniAdamW, device, code):
    twin = expect.given(_SETUP + code, MiniAdamW=torch.optim.AdamW, device=device)
    return expect.given(_SETUP + code, MiniAdamW=MiniAdamW, device=device), twin


def _given(MiniAdamW, device, arguments):
    return _both(MiniAdamW, device, f"optimizer = MiniAdamW({arguments})")


def _same(t, twin, lines):
    before = [p.detach() for p in t.ps]
    for each in (twin, t):
        each.run(lines)
    for i, (p, old, wanted) in enumerate(zip(t.ps, before, twin.ps, strict=True)):
        expect.same_storage(p.detach(), old, what=f"`ps[{i}]` after the steps", of=f"`ps[{i}]` before")
        # A step count in float32 makes the corrections as coarse as this.
        expect.equal(p.detach(), wanted.detach(), what=f"`ps[{i}]`", rtol=3e-5, atol=3e-5)


@exercise.check
def steps(MiniAdamW, device):
    """A hundred steps without decay are torch's, and in place

    The running means begin at 0. After `t` steps their weights add up to `1 - beta**t`; dividing by it makes
    them means. After that division `eps` is added to the root: it decides the step where gradients are small.
    Who shares memory with a parameter sees what is written in place, not what replaces it.
    """
    expect.true(not issubclass(MiniAdamW, torch.optim.Optimizer), "it is torch's own", "expected: your own")
    with Rows() as rows:
        for make in ("ps[:1], weight_decay=0", "iter(ps), 0.1, (0.8, 0.9), 0.01, 0.0"):
            for n in (1, 2, 100):
                with rows.of(f"`MiniAdamW({make})`, steps: {n}"):
                    _same(*_given(MiniAdamW, device, make), f"train(optimizer, ps, 1, {n})")


@exercise.check
def decay(MiniAdamW, device):
    """The decay pulls at the weight, and the running means don't see it

    By default Adam with `weight_decay` adds the decay to the gradient, so it goes through both running means.
    AdamW takes a share off the weight itself, before the step.
    """
    t, twin = _given(MiniAdamW, device, "ps, lr=0.1, weight_decay=0.2")
    _same(t, twin, "for p in ps:\n    p.grad = torch.zeros_like(p)\noptimizer.step()")
    t, twin = _given(MiniAdamW, device, "ps, lr=0.1, weight_decay=0.3")
    _same(t, twin, "train(optimizer, ps, 1, 20)")
    t.run("grads = [p.grad for p in ps]")
    with expect.left_alone(t.grads, what="`grads`"):
        t.run("optimizer.step()")


@exercise.check
def groups(MiniAdamW, device):
    """Each group has its own settings, and they may change while it trains

    A scheduler writes `group["lr"]` before each step, so `step` has to read it anew. What a group doesn't
    say it takes from the arguments.
    """
    change = 'train(optimizer, ps, 1, 3)\noptimizer.param_groups[1]["lr"] = 0.5\ntrain(optimizer, ps, 2, 3)'
    _same(*_given(MiniAdamW, device, f"{_GROUPS}, lr=0.01"), change)


@exercise.check
def own_counter(MiniAdamW, device):
    """A parameter without a gradient rests, and its step count with it

    The correction belongs to the running means of one parameter: it counts how often **they** were updated.
    What rests isn't decayed either. With a gradient of zeros the step count goes on.
    """
    t, twin = _given(MiniAdamW, device, "ps, lr=0.1")
    _same(t, twin, f"train(optimizer, ps, 1, 8, {_SKIPS})")
    t.run("optimizer.zero_grad()")
    expect.equal([p.grad for p in t.ps], [None] * 3, what="`[p.grad for p in ps]` after `zero_grad`")


@exercise.check
def exchanged(MiniAdamW, device):
    """Torch's state loads here, and yours there

    The state is found by the place of the parameter, counted through all groups. The saved settings replace
    those that the optimizer was made with. A parameter that had no gradient so far has no state. The means
    have the dtype of their parameter.
    """
    double = "ps = [nn.Parameter(p.detach().double()) for p in ps]\n"
    t, twin = _both(MiniAdamW, "cpu", f"{double}optimizer = MiniAdamW({_GROUPS})")  # MPS has no float64
    for each in (twin, t):
        each.run(f"train(optimizer, ps, 1, 4, {_SKIPS})\nstate = optimizer.state_dict()")
    numbers, names = [g["params"] for g in t.state["param_groups"]], ["step", "exp_avg", "exp_avg_sq"]
    expect.equal(numbers, [[0], [1, 2]], what="`[g['params'] for g in state['param_groups']]`")
    found = {i: [name for name in names if name in entry] for i, entry in t.state["state"].items()}
    expect.equal(found, {1: names, 2: names}, what="torch's names in `state['state']`")
    for i, group in enumerate(twin.state["param_groups"]):
        for name in ("lr", "betas", "eps", "weight_decay"):
            what = f"`state['param_groups'][{i}]['{name}']`"
            expect.equal(t.state["param_groups"][i].get(name), group[name], what=what)
    for i, entry in twin.state["state"].items():
        for name in names[1:]:
            came, what = t.state["state"][i][name], f"`state['state'][{i}]['{name}']`"
            expect.equal(came, entry[name], what=what, rtol=1e-6)
    lines = f"train(first, ps, 1, 4, {_SKIPS})\ntrain(second, ps, 2, 1)\n"
    lines += "second.load_state_dict(first.state_dict())\ntrain(second, ps, 3, 4)"
    mine, torchs = f"MiniAdamW({_GROUPS}", f"torch.optim.AdamW({_GROUPS}"
    with Rows() as rows:
        for first, second in ((torchs, mine), (mine, torchs), (mine, mine)):
            with rows.of(f"from `{first.partition('(')[0]}` to `{second.partition('(')[0]}`"):
                code = f"first, second = {first}, 0.01), {second}, 7.0, (0.1, 0.2), 0.5, 3.0)"
                _same(*_both(MiniAdamW, device, code), lines)


@exercise.check
def copied(MiniAdamW, device):
    """What was loaded isn't written to later

    `state_dict()` holds the living tensors, and `step` writes to them in place. Torch's own `load_state_dict`
    takes them as they are where dtype and device fit: two optimizers that load one dict may then share their
    running means.
    """
    t, _ = _given(MiniAdamW, device, f"{_GROUPS}, lr=0.01")
    t.run(f"train(optimizer, ps, 1, 2)\nother = MiniAdamW({_GROUPS})\nstate = optimizer.state_dict()")
    kept = copy.deepcopy(t.state)
    t.run("other.load_state_dict(state)\ntrain(other, ps, 2, 2)\nother.param_groups[0]['lr'] = 5.0")
    expect.equal(t.state, kept, what="`state`")
