"""SiLU that keeps one tensor

SiLU is `x * s`, where `s` is the sigmoid of `x`. Written as `x * torch.sigmoid(x)`, the graph keeps `x` and
`s` until backward. Write it as an `autograd.Function` that makes `s` again when the gradient arrives: a few
operators more, half of the memory.

- For backward `x` itself is kept, in any layout: no copy, and nothing else in any other place. Once the
  result is gone, nothing is left.
- Backward raises when `x` was changed in between, as torch's own do.
- The gradient can be differentiated again, and neither `x` nor what arrives is written to.

Build it from `torch.sigmoid` and arithmetic, without torch's own SiLU and GLU.

`RecomputingSilu.apply(torch.tensor([0., 2.]))` → `[0., 1.7616]`; the gradient of its sum is `[0.5, 1.0908]`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import derivatives

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "Which tensor has to be there in backward, and which can be had again from it?",
        "`ctx.save_for_backward` keeps a tensor together with its version, and autograd lets go of it in "
        "time. What is put on `ctx` as an attribute has neither.",
        "The derivative of `x * s` by the product rule is `s + x * ds`, and `ds` is `s * (1 - s)`. Compute "
        "`s` in `backward` from the saved `x`, with operators that autograd can follow, and multiply by what "
        "arrives.",
    ],
)


@exercise.starter
class RecomputingSilu(torch.autograd.Function):
    """x -> x * sigmoid(x), element by element"""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        raise NotImplementedError


_CALL = "RecomputingSilu.apply(x)"
_NUMBERS = {
    "numbers near 0": "torch.tensor([[-3., -0.5, 0.], [0.1, 0.5, 3.]], device=device)",
    "numbers far from 0": "torch.tensor([-100., -30., 30., 100.], device=device)",
    "a transposed matrix": "torch.tensor([[-3., -0.5, 0.], [0.1, 0.5, 3.]], device=device).t()",
    "float64": "torch.tensor([-3., -0.7, 0.1, 2.], dtype=torch.float64, device=device)",
}
_LAYOUTS = {
    "a matrix": "torch.rand(100, 200, device=device)",
    "a transposed one": "torch.rand(100, 200, device=device).t()",
    "every other column": "torch.rand(100, 400, device=device)[:, ::2]",
}


def _numbers(device):
    """(label, the line that makes `x`)"""
    there = [label for label in _NUMBERS if device.type != "mps" or "float64" not in label]
    return [(label, f"x = {_NUMBERS[label]}.requires_grad_()") for label in there]


@exercise.check
def values(RecomputingSilu, device):
    """The values are `x * sigmoid(x)`

    The result has the dtype and the shape of `x`, and the precision that this dtype has.
    """
    with Rows() as rows:
        for label, setup in _numbers(device):
            with rows.of(label):
                t = expect.given(setup, RecomputingSilu=RecomputingSilu, device=device)
                wanted = derivatives.exact(F.silu, t.x)[0]
                derivatives.agrees(t.call(_CALL), wanted, t.x)


@exercise.check
def gradient(RecomputingSilu, device):
    """The gradient is that of the product rule, for whatever arrives

    Both factors of `x * s` depend on `x`, so the slope has two terms, and what arrives multiplies both. It
    belongs to others as well: it may be the caller's tensor, or on its way to other nodes. What is kept
    belongs to one call: an attribute of the class is overwritten by the next one.
    """
    with Rows() as rows:
        for label, setup in _numbers(device):
            with rows.of(label):
                setup += "\ng = torch.arange(1., x.numel() + 1).to(x).view_as(x)"
                t = expect.given(setup, RecomputingSilu=RecomputingSilu, device=device)
                wanted = derivatives.exact(F.silu, t.x)[1] * t.g.cpu().double()
                with derivatives.untouched():
                    t.run(f"y = {_CALL}\nRecomputingSilu.apply(1 - x)  # another call in between")
                    expect.in_graph(t.y, of="`x`")
                    found = t.call("torch.autograd.grad(y, x, g)[0]")
                derivatives.agrees(found, wanted, t.x, what="the gradient")


@exercise.check
def keeps_x_alone(RecomputingSilu, device):
    """For backward no more is kept than `x` has bytes, and nothing when the result is gone

    What backward needs is kept until it has run: by `ctx.save_for_backward`, and as an attribute of `ctx` as
    well. A result that is an attribute of its own `ctx` makes a circle, and stays when nobody else wants it.
    """
    with Rows() as rows:
        for label, code in _LAYOUTS.items():
            with rows.of(label):
                setup, size = f"x = {code}.requires_grad_()", 4 * 100 * 200
                call = "RecomputingSilu.apply(x * 1)"
                derivatives.keeps(RecomputingSilu, call, setup, device, limit=size)


@exercise.check
def no_copy(RecomputingSilu, device):
    """What is kept is `x` itself, not a copy

    `ctx.save_for_backward(x)` keeps a reference. `contiguous`, `reshape` and `flatten` give a tensor over the
    same memory where the layout allows it, and a new one elsewhere.
    """
    with Rows() as rows:
        for label, code in _LAYOUTS.items():
            with rows.of(label):
                derivatives.keeps(RecomputingSilu, _CALL, f"x = {code}.requires_grad_()", device)


@exercise.check
def changed_in_between(RecomputingSilu, device):
    """A change of `x` in between is not passed over

    Every operator that works in place counts up the version of its tensor. What `ctx.save_for_backward`
    keeps, it keeps with the version of that moment; autograd compares, and raises. An attribute of `ctx` has
    no version that anybody looks at, and a NumPy array has none at all.
    """
    with Rows() as rows:
        for label, code in {"a matrix": "x + 1", "a transposed one": "(x + 1).t()"}.items():
            with rows.of(label):
                setup = f"""
                    x = torch.ones(3, 4, device=device, requires_grad=True)
                    a = {code}
                    y = RecomputingSilu.apply(a).sum()
                    y.backward(retain_graph=True)
                    a.mul_(5)
                """
                t = expect.given(setup, RecomputingSilu=RecomputingSilu, device=device)
                try:
                    t.call("y.backward()")
                except Exception:
                    expect.looked()
                    continue
                expect.true(False, "backward has run, though `a` was changed", "expected: it raises")


@exercise.check
def twice(RecomputingSilu, device):
    """The gradient can be differentiated again

    With `create_graph=True` autograd records what backward does, from what `ctx.saved_tensors` returns on. A
    tensor that was made in forward has no history, and is a constant there. In backward `detach`, `no_grad`,
    `once_differentiable`, and `autograd.grad` without `create_graph` cut the graph off.
    """
    with Rows() as rows:
        for label, setup in _numbers(device):
            with rows.of(label):
                x, bend = derivatives.second(RecomputingSilu, _CALL, setup, device)
                wanted = derivatives.exact(F.silu, x)[2]
                derivatives.agrees(bend, wanted, x, what="the second derivative")


@exercise.check
def its_own(RecomputingSilu, device):
    """It is a Function of your own, and torch's SiLU does not run

    The result is made by the node of your Function, which `apply` makes: it has your backward, and keeps what
    you keep. `F.silu` has a node of its own.
    """
    setup = "x = torch.tensor([-2., 0., 3.], device=device, requires_grad=True)"
    derivatives.is_its_own(RecomputingSilu, _CALL, setup, device, ["aten.silu", "aten.glu"])
