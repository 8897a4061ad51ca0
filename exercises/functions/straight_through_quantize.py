"""Quantise, and train through it

`x` holds numbers from 0 to 1, in float32 or float64. `StraightThroughQuantize.apply(x, levels)` rounds each
of them to the nearest of `levels` numbers, two or more, spread evenly from 0 to 1: for 5 levels 0, 0.25, 0.5,
0.75 and 1. Half-way between two, either is right. The result has the dtype of `x`, and all its digits.

The slope of this staircase is 0, so nothing would learn. Backward acts as if nothing had been rounded:

- It returns what arrives **as it is**, for every element of `x`, without a copy. `levels` has no gradient.
- Nothing is kept for backward.

`StraightThroughQuantize.apply(torch.tensor([0.1, 0.3, 0.9]), 3)` → `[0., 0.5, 1.]`; if `[5., -3., 0.2]`
arrives, backward returns `[5., -3., 0.2]`.
"""

import torch
from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import derivatives

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "`torch.round` rounds to the nearest whole number. By which number must you multiply the levels to "
        "get whole numbers? For 5 levels it's 4.",
        "If forward returned `x` as it is, what would its backward return? Does that depend on `x`, or on "
        "what forward computed?",
        "`backward` gets what arrives, and returns one value for each argument of `forward` after `ctx`. "
        '`None` means "no gradient". You don\'t need `ctx` at all.',
    ],
)


@exercise.starter
class StraightThroughQuantize(torch.autograd.Function):
    """x -> the nearest of `levels` numbers, evenly spread from 0 to 1"""

    @staticmethod
    def forward(ctx, x: Tensor, levels: int) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        raise NotImplementedError


_SETUP = "x = torch.tensor([0., 0.3, 0.55, 0.9, 1.], device=device, requires_grad=True)"
_CALL = "StraightThroughQuantize.apply(x, 5)"


def _nearest(x, levels):
    """By the distance to every level."""
    all_levels = torch.arange(levels, dtype=torch.float64) / (levels - 1)
    distances = (x.detach().cpu().double().unsqueeze(-1) - all_levels).abs()
    return all_levels[distances.argmin(-1)].to(x)


@exercise.check(
    given="x = torch.tensor([0., 0.08, 0.2, 0.3, 0.45, 0.55, 0.72, 0.8, 0.95, 1.], device=device)",
    cases={f"{levels} levels": levels for levels in (5, 2, 3, 8, 300)},
)
def values(t, device, levels):
    """Every element goes to the nearest level

    There are `levels - 1` steps from 0 to 1. `torch.round` rounds to the nearest whole number; `floor` and
    `.long()` cut off the fraction, and `uint8` ends at 255. `x` is the caller's: `mul_` would change it.
    """
    with derivatives.untouched():
        result = t.call(f"StraightThroughQuantize.apply(x, {levels})")
    expect.equal(result, _nearest(t.x, levels))


@exercise.check(
    given="x = torch.tensor([0.1, 0.4, 0.9], dtype=torch.float64, requires_grad=True)",
    cases=[5, 8],  # an eighth is a number in any dtype, a seventh in none
)
def keeps_the_dtype(t, levels):
    """The result has the dtype of `x`, and the digits of that dtype

    By default `torch.linspace` and `torch.tensor` of Python floats make float32, and so does `.float()`. Nor
    has a float32 number more digits after `.double()`. A tensor of integers can't require a gradient: torch
    leaves it out of the graph.
    """
    result = t.call(f"StraightThroughQuantize.apply(x, {levels})")
    derivatives.agrees(result, _nearest(t.x, levels), t.x)
    expect.in_graph(result, of="`x`")


@exercise.check(given=_SETUP)
def passes(t, device):
    """If 1 arrives, backward returns 1

    The backward of `torch.round` returns 0, the slope of a staircase. Straight through means: return what
    arrives, as if forward had returned `x`. That depends neither on the levels nor on the numbers in `x`.
    """
    expect.in_graph(t.call(_CALL), of="`x`")
    found = t.call(f"torch.autograd.grad({_CALL}.sum(), x)[0]")
    expect.equal(found, torch.ones_like(t.x), what="the gradient")


@exercise.check(given=f"{_SETUP}\ng = torch.tensor([5., -7., 0.25, 0., -0.5], device=device)")
def whatever_arrives(t, device):
    """Backward returns what arrives, large or small, positive or negative

    A slope of 1 changes neither the size nor the sign of what arrives. Clamped to [-1, 1], a 5 and a 7 become
    the same.
    """
    with expect.left_alone(t.g, what="what arrived (`g`)"):
        found = t.call(f"torch.autograd.grad({_CALL}, x, g)[0]")
    expect.equal(found, t.g, what="the gradient")


@exercise.check(
    given="""
        w = torch.tensor([2., -2., 0.3], device=device, requires_grad=True)
        target = torch.tensor([0.25, 1., 0.], device=device)
        optimizer = torch.optim.SGD([w], lr=1.)
        for step in range(50):
            optimizer.zero_grad()
            error = StraightThroughQuantize.apply(torch.sigmoid(w), 5) - target
            error.square().sum().backward()
            optimizer.step()
    """
)
def trains(t, device):
    """Weights learn through it, until the quantised ones are the right ones

    The sigmoid before it returns numbers from 0 to 1. Each step moves a weight a little, though the rounded
    number stays the same; many small steps move it to the next level.
    """
    found = t.call("StraightThroughQuantize.apply(torch.sigmoid(w), 5)")
    expect.equal(found.detach(), t.target, what="what the weights are quantised to")


@exercise.check(given="x = torch.ones(100, 100, device=device, requires_grad=True)")
def nothing_kept(t, device):
    """Nothing is kept for backward

    `ctx.save_for_backward` and attributes of `ctx` keep a tensor in memory while the graph waits for
    backward. For a slope of 1 backward needs no tensor.
    """
    derivatives.keeps(t, "StraightThroughQuantize.apply(x * 1, 5)")


@exercise.check(
    given="y = StraightThroughQuantize.apply(torch.ones(3, 4, requires_grad=True), 5)",
    cases=["g = torch.ones(3, 4)", "g = torch.ones(4, 3).t()", "g = torch.tensor(1.).expand(3, 4)"],
)
def not_copied(t):
    """Backward returns what arrived, not a copy of it

    Return the tensor that arrives: while somebody else holds it, autograd copies it before it adds to it. A
    `clone` in backward is one more tensor of the size of `x`.
    """
    expect.in_graph(t.y)
    handed = expect.a_tensor(t.call("y.grad_fn.apply(g)[0]"), what="what backward returns")
    expect.true(
        measure.same_storage(handed, t.g),
        "backward returns a new tensor, with a storage of its own",
        "expected: `g` itself",
    )
