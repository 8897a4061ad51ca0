"""RMSNorm with its own backward

RMSNorm divides each row of `x` by the root of its mean square, and multiplies by a learned `weight`:
`x / sqrt(mean(x²) + 1e-6) * weight`. A row is the last dimension; `x` has any layout and any number of
leading dimensions, or none. Write it as an `autograd.Function` with gradients for `x` and `weight`.

- For backward keep `x`, `weight` and at most one number for each row.
- It can be differentiated twice. Backward raises if an input was changed in between.
- Don't write to the inputs or to what arrives.

`RmsNorm.apply(torch.tensor([3., 4.]), torch.ones(2))` → `[0.8485, 1.1314]`; where `[1., 0.]` arrives, the
gradient of `x` is `[0.1810, -0.1358]`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import derivatives, numbers

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "Call `1 / sqrt(mean(x²) + 1e-6)` `r`: one number for each row. Each result in a row is `x * r * "
        "weight`. How many results does one element of `x` change?",
        "By the product rule there are two terms: `x` changes while `r` stays, and `r` changes while `x` "
        "stays. `r` belongs to the whole row, so its term sums over the row.",
        "With `n = x * r` and `h = grad * weight`, the gradient of `x` is `r * (h - n * mean(h * n))`, with "
        "the mean over the row (`keepdim=True`). That of `weight` is the sum of `grad * n` over all rows. "
        "Compute `r` again in `backward`, from the saved `x`.",
    ],
)


@exercise.starter
class RmsNorm(torch.autograd.Function):
    """(..., n), (n,) -> (..., n)"""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


_CALL = "RmsNorm.apply(x, weight)"
_MATRIX = "torch.tensor([[3., -1., 2.], [0.5, 4., -2.], [1., 1., 5.]], device=device)"
_SHAPES = {
    "a square matrix": _MATRIX,
    "a vector": "torch.tensor([3., -1., 2.], device=device)",
    "four dimensions": "(2 * torch.arange(60., device=device).cos()).view(5, 1, 4, 3)",
    "five dimensions": "(2 * torch.arange(60., device=device).cos()).view(5, 1, 2, 2, 3)",
    "a transposed `x`": "(2 * torch.arange(60., device=device).cos()).view(3, 4, 5).permute(2, 1, 0)",
    "a row of zeros and a small one": "torch.tensor([[0., 0., 0.], [1e-3, -2e-3, 1e-3]], device=device)",
    **numbers.hard("4, 3"),
    "float64": "torch.tensor([[30., -10., 25.]], dtype=torch.float64)",
}


def _setup(x, weight="torch.tensor([2., -1., 0.5])"):
    seed = "torch.manual_seed(0)\n" * ("rand" in x)
    return f"{seed}x = ({x}).requires_grad_()\nweight = {weight}.to(x)"


_SETUPS = {label: _setup(x) for label, x in _SHAPES.items()}
# With what arrives, made of ascending numbers.
_ARRIVES = {
    "a weight of ones": (_setup(_MATRIX, "torch.ones(3)"), "view_as(x)"),
    **{label: (setup, "view_as(x)") for label, setup in _SETUPS.items()},
    "a `g` of zeros": (_SETUPS["a square matrix"], "view_as(x) * 0"),
    "a transposed `g`": (_SETUPS["four dimensions"], "view(x.shape[::-1]).permute(3, 2, 1, 0)"),
}


def _exact(t):
    """The inputs in double precision, and the value there."""
    x, weight = (one.detach().cpu().double().requires_grad_() for one in (t.x, t.weight))
    return x, weight, F.rms_norm(x, (3,), weight, 1e-6)


def _expect_gradient(t, name, g):
    t.run(f"g = torch.linspace(-2, 3, x.numel()).to(x).{g}")
    # Autograd refuses a wrong shape of any gradient that is needed: each is told of where it is asked for.
    t.run(f"{name}.requires_grad_()")
    x, weight, value = _exact(t)
    g, root, like = t.g.cpu().double(), (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(), {}
    if name == "x":
        like["the gradient for a root that does not depend on `x`"] = g * weight / root
    (wanted,) = torch.autograd.grad(value, {"x": x, "weight": weight}[name], g)
    expect.in_graph(t.call(_CALL), of="the inputs")
    with derivatives.untouched():
        found = t.call(f"torch.autograd.grad({_CALL}, {name}, g)[0]")
    derivatives.agrees(found, wanted, t.x, least=0.0, what=f"the gradient of `{name}`", like=like)


@exercise.check(cases=_SETUPS)
def values(t, device):
    """The values, for every number of dimensions, for small rows and large ones

    With `mean(-1, keepdim=True)` the last dimension stays, with size 1, and broadcasts against `x`; without
    `keepdim` a square matrix would be divided along the wrong dimension. `1e-6` is added below the root: a
    row of zeros is divided by 0.001.
    """
    *_, value = _exact(t)
    with derivatives.untouched():
        found = t.call(_CALL)
    derivatives.agrees(found, value.detach(), t.x, least=0.0)


@exercise.check(cases=_ARRIVES)
def gradient_of_x(t, device, g):
    """The gradient of `x` counts both ways from an element to the result

    An element of `x` changes its own result, and through the root it changes the others in its row. Each
    result is multiplied by its own `weight`, so what arrives is multiplied by it on both ways, before it is
    summed. The backward of a mean broadcasts, and the backward of a broadcast is a sum over the row.
    """
    _expect_gradient(t, "x", g)


@exercise.check(cases=_ARRIVES)
def gradient_of_weight(t, device, g):
    """The gradient of `weight` is a sum over all rows

    Every row is multiplied by the same `weight`, so what arrives at each row counts. Without leading
    dimensions there is one row and nothing to sum: `sum(())`, over no dimension, sums over all. `view` often
    can't merge dimensions of a transposed tensor; `reshape` and `sum` over several dimensions take any
    layout.
    """
    _expect_gradient(t, "weight", g)


@exercise.check(
    given="x = {}.requires_grad_()\nweight = torch.ones(3, device=device).requires_grad_()".format,
    cases=["torch.ones(2000, 3, device=device)", "torch.ones(3, 2000, device=device).t()"],
)
def one_number_a_row(t, device):
    """For backward at most one number for each row is made and kept

    `x` and `weight` are there already; saving them costs no copy. The normalised rows are as large as `x`
    or larger, and they can be had again from `x` and one number for each row.
    """
    derivatives.keeps(t, _CALL, limit=4 * 2000)


@exercise.check(given=f"{_SETUPS['a square matrix']}.requires_grad_()")
def twice(t, device):
    """It can be differentiated twice

    With `create_graph=True` autograd records what `backward` does with the saved tensors. A root that was
    made in `forward` has no history: to the second derivative it is a constant. `once_differentiable` raises
    in some cases, and in others gives a gradient without a graph.
    """
    *inputs, y = _exact(t)
    first = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
    wanted = torch.autograd.grad(y.sum() + sum(one.square().sum() for one in first), inputs)
    t.run("y = RmsNorm.apply(x, weight)")
    t.run("first = torch.autograd.grad(y.square().sum(), (x, weight), create_graph=True)")
    t.run("total = y.sum() + sum((one * one).sum() for one in first)")
    found = t.call("torch.autograd.grad(total, (x, weight))")
    for name, one, true in zip(("x", "weight"), found, wanted, strict=True):
        derivatives.agrees(one, true, t.x, what=f"the gradient of `total` for `{name}`")


@exercise.check(given=f"{_SETUPS['a square matrix']}.requires_grad_()", cases=["x", "weight"])
def changed_in_between(t, device, written):
    """Backward raises if `x` or `weight` was changed in between

    `ctx.save_for_backward` stores the version of a tensor, and autograd compares it when backward asks for
    the tensor. It doesn't compare that of an attribute of `ctx`, and `x.data` has a version of its own.
    """
    derivatives.never_stale(t, _CALL, written, ["x", "weight"])
