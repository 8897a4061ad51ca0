"""Gradient reversal

`GradientReversal.apply(x, strength)` is the identity forward. Backward reverses the gradient: it returns
minus `strength` times what arrives. Between a trunk and a head, this trains the head to succeed and the trunk
to make it fail. `strength` is a number without a gradient, and may differ from call to call.

- Don't copy in forward: the result is a view of `x`, and autograd knows it. So torch refuses a write to the
  result, and counts one under `torch.no_grad()` as a change of `x`.
- Keep no tensor of the size of `x` for backward.
- Don't write to what arrives.

`GradientReversal.apply(torch.tensor([1., 2.]), 0.5)` → `[1., 2.]`; if `[3., 4.]` arrives, backward returns
`[-1.5, -2.]`.
"""

import torch
from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import derivatives
from course_utils.measure.storage import version

exercise = Exercise(
    minutes=8,
    hints=[
        "Forward has nothing to compute. Which methods of a tensor return another tensor with the same "
        "storage? One of them hides from autograd that the two are related; don't take that one.",
        "Backward needs the number and no tensor. Keep it as an attribute of `ctx`, which belongs to this "
        "one call; an attribute of the class belongs to all calls.",
        "`view_as` makes a view of a whole tensor. In backward, make a new tensor: other parts of the graph "
        "may use the one that arrives too. Return one value for each argument after `ctx`.",
    ],
)


@exercise.starter
class GradientReversal(torch.autograd.Function):
    """x -> x; backward: minus `strength` times the gradient"""

    @staticmethod
    def forward(ctx, x: Tensor, strength: float) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        raise NotImplementedError


_LAYOUTS = {
    "a matrix": "torch.arange(6., device=device).view(2, 3)",
    "a transposed one": "torch.arange(6., device=device).view(2, 3).t()",
    "every other element": "torch.arange(8., device=device)[1::2]",
    "a single number": "torch.tensor(2., device=device)",
}


@exercise.check(given="x = {}.requires_grad_()".format, cases=_LAYOUTS)
def shares_storage(t, device):
    """The result has the values and the storage of `x`

    A product with 1 and `clone` allocate, and so does `contiguous` for a tensor that isn't contiguous. A view
    has its own size and strides, and the storage of another tensor.
    """
    witness = t.x.detach()
    wanted = witness.clone()
    result = t.call("GradientReversal.apply(x, 0.5)")
    expect.equal(result, wanted)
    expect.in_graph(result, of="`x`")
    expect.same_storage(result, witness, of="`x`")
    expect.strides(result, witness.stride())


@exercise.check(
    given="""
        x = torch.tensor([1., 2.], device=device, requires_grad=True)
        a = x * 1
        y = GradientReversal.apply(a, 0.5)
    """
)
def known_as_a_view(t, device):
    """Torch refuses a write to the result, and counts one under `no_grad`

    Autograd knows the views that torch's operators make of `x`, and refuses a write to one that a Function
    has made. `detach` and `.data` hide where a tensor comes from: a write changes `x`, and the graph of `x`
    describes the old values. A write to a tensor from `.data` or NumPy isn't even counted as a change of `x`.
    """
    try:
        t.call("y.mul_(3)")
    except RuntimeError:
        expect.looked()
    else:
        changed = f"`y.mul_(3)` went through, and `a` is {expect.show(t.a)} now"
        expect.true(False, changed, "expected: torch refuses it, since `y` is a view of `a`")
    before = version(t.a)
    t.run("with torch.no_grad():\n    y.mul_(3)")
    expect.true(
        t.call("a._version") > before,
        "`a` was changed through `y`, and its version is what it was",
        "expected: the two count their changes together",
    )


@exercise.check(
    given="""
        x = torch.ones(3, dtype=torch.{0}, device={1}, requires_grad=True)
        g = torch.tensor([3., -4., 10.], dtype=torch.{0}, device={1})
    """.format,
    cases={
        f"{strength} in `{dtype}`": (dtype, where, strength)
        for dtype, where in (("float32", "device"), ("float64", "'cpu'"))
        for strength in (1.0, 0.1, 3.0, 0.0, -0.5)
    },
)
def turned_around(t, device, strength):
    """Backward returns minus `strength` times what arrives

    `strength` is used in backward alone. A Python number is as exact as the dtype of the tensor that it
    multiplies; `torch.tensor(0.1)` is a float32 number, and has seven digits.
    """
    wanted, near = -strength * t.g, 4 * torch.finfo(t.g.dtype).eps
    found = t.call(f"torch.autograd.grad(GradientReversal.apply(x, {strength}), x, g)[0]")
    expect.equal(found, wanted, rtol=near, atol=0.0, what="the gradient")


@exercise.check(
    given="""
        x = torch.arange(6., device=device).{}.requires_grad_()
        g = torch.arange(1., 7., device=device).{}
    """.format,
    cases={
        "a matrix": ("view(2, 3)", "view(2, 3)"),
        "a matrix and a transposed gradient": ("view(2, 3)", "view(3, 2).t()"),
        "a transposed matrix": ("view(2, 3).t()", "view(3, 2)"),
        "a transposed matrix and such a gradient": ("view(2, 3).t()", "view(2, 3).t()"),
    },
)
def left_alone(t, device):
    """What arrives isn't written to

    Other nodes may get the same tensor, or it belongs to the caller: `neg_` and `mul_` change it for all of
    them.
    """
    with derivatives.untouched():
        found = t.call("torch.autograd.grad(GradientReversal.apply(x * 1, 0.5), x, g)[0]")
    expect.a_tensor(found, what="the gradient")


@exercise.check(
    given="""
        x = torch.ones(2, device=device, requires_grad=True)
        y = GradientReversal.apply(x, 0.5)
        z = GradientReversal.apply(x, 4.)
    """
)
def a_strength_for_each_call(t, device):
    """Each call has a strength of its own

    Each call of `apply` with an `x` that requires a gradient makes a node, and `ctx` is that node. All calls
    share an attribute of the class or a global, so the last call decides.
    """
    for name, wanted in (("y", -0.5), ("z", -4.0)):
        found = t.call(f"torch.autograd.grad({name}, x, torch.ones_like(x))[0]")
        expect.equal(found, torch.full_like(t.x, wanted), what=f"the gradient through `{name}`")


@exercise.check(
    given="x = torch.ones(100, 200, device=device){}.requires_grad_()".format,
    cases={"a matrix": "", "a transposed one": ".t()"},
)
def nothing_kept(t, device):
    """Nothing of the size of `x` is kept for backward

    A tensor that is saved, or an attribute of `ctx`, stays in memory while the graph waits for backward. This
    backward needs one number, and neither `x` nor the result.
    """
    derivatives.keeps(t, "GradientReversal.apply(x * 1, 0.5)", limit=8)
