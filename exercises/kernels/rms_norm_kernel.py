"""RMSNorm, forward and backward by kernels

`x` is `(rows, n)`, `n` at most 1,024, and `weight` is `(n,)`; both are contiguous, not empty, and of one
dtype, float32 or float16. Write an `autograd.Function` that returns `x / sqrt(mean(x²) + 1e-6) * weight`,
with the mean over a row, and has gradients for both.

- Kernels above the class, in the same cell, compute in float32, and round the results once.
- Each pass loads each element of `x` once, and backward that of what arrives, which has any layout.
- A program loads at most 16 rows of `x`. Programs don't race, touch no address outside the tensors, and
  write to nothing that is given.
- For backward keep `x`, `weight` and at most one number for each row.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import kernels, numbers

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "A row fits into one block, so a program can load it once and do everything with it. Which of the "
        "gradients needs what several programs have?",
        "With `r = 1 / sqrt(…)`, `n = x * r` and `h = grad * weight`, the gradient of `x` is `r * (h - n * "
        "mean(h * n))`, with the mean over the row. That of `weight` is the sum of `grad * n` over all rows.",
        "`tl.atomic_add(grad_weight + columns, …, mask=…)` adds to memory that began as zeros of float32. "
        "Cast what you load: `.to(tl.float32)`. Masked elements count as 0 (`other=0`), and the mean divides "
        "by `n`, not by the block's size. `grad.contiguous()` helps with any layout.",
    ],
)


@exercise.starter
class RmsNormKernel(torch.autograd.Function):
    """(rows, n), (n,) -> (rows, n)"""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


_CALL = "RmsNormKernel.apply(x, weight)"
_X = {
    "3 rows of 100": "torch.randn(3, 100)",
    "a block that is full": "torch.randn(2, 1024)",
    "one element": "torch.randn(1, 1)",
    "20 rows of 5": "torch.randn(20, 5)",
    "a row of zeros and a small one": "torch.tensor([[0., 0., 0.], [1e-3, -2e-3, 1e-3]])",
    "float16, with squares above 65,504": "(torch.randn(4, 100) * 300).half()",
    "float16, with squares that are 0": "(torch.randn(4, 100) * 1e-4).half()",
    "float16, large numbers beside small ones": "torch.tensor([[3e4, 0.03, 1], [-300, 5e4, 0.1]]).half()",
    **numbers.hard("2, 20", "large numbers", "one giant", "a tiny scale"),
}
_SETUPS = {
    label: f"torch.manual_seed(0)\nx = ({x}).to(device).requires_grad_()\n"
    "weight = torch.linspace(-1, 2, x.size(1)).to(x).requires_grad_()"
    for label, x in _X.items()
}
_RISING = "g = torch.linspace(-2, 3, x.numel()).to(x)"
# With what arrives.
_ARRIVES = {label: f"{setup}\n{_RISING}.view_as(x)" for label, setup in _SETUPS.items()} | {
    "what `y.sum()` sends": f"{_SETUPS['3 rows of 100']}\ng = torch.ones_like(x[0, 0]).expand(x.shape)",
    "a transposed `g`": f"{_SETUPS['3 rows of 100']}\n{_RISING}.view(x.shape[::-1]).t()",
    "float16, with products above 65,504": (
        f"{_SETUPS['float16, with squares above 65,504']}\n"
        f"weight = (weight.detach() * 300).requires_grad_()\n{_RISING}.view_as(x) * 300"
    ),
    "float16, small numbers after a large one": (
        "x = torch.ones(25, 5, device=device).half().requires_grad_()\n"
        "weight = torch.ones_like(x[0]).requires_grad_()\ng = torch.ones_like(x)\ng[0] = 2048"
    ),
}


_FEW = ("3 rows of 100", "20 rows of 5", "what `y.sum()` sends")
_FLOATS = ("one element", "a row of zeros and a small one", "float16, with products above 65,504")


def _some(*labels):
    return {label: _ARRIVES[label] for label in labels}


def _exact(t):
    """The inputs in double precision, and the value there."""
    x, weight = (one.detach().cpu().double().requires_grad_() for one in (t.x, t.weight))
    return x, weight, F.rms_norm(x, weight.shape, weight, 1e-6)


_TWICE = (
    "Half a unit in the last place is what one rounding to float16 may take away. Here more is missing: "
    "something in between was rounded, such as {}. In float32 it keeps its digits, and the last store rounds."
)
_ROOT = "the root that is kept, or the normalised row before it is multiplied"
_SUM = (
    "the sum, after each row that is added (in float16, 2,048 + 1 is 2,048), the parts that are summed, or "
    "the root that is kept"
)


def _agrees(found, wanted, t, least=0.0, between=_ROOT, **more):
    """In the dtype of `x`; in float16 up to the one rounding there. `between`: what may be rounded before."""
    kernels.agrees(found, wanted, t.x, least=least, **more)
    if t.x.dtype == torch.float16:
        more.pop("like", None)
        near = max(1e-5 * wanted.abs().max().item(), 2**-25)  # below 2**-14 a unit is 2**-24
        with kernels.because(_TWICE.format(between)):
            expect.equal(found.detach().cpu().double(), wanted, rtol=1.05 * 2**-11, atol=near, **more)


def _expect_gradient(t, name):
    x, weight, value = _exact(t)
    g, least, like, between = t.g.cpu().double(), 0.0, {}, _SUM
    if name == "x":  # where its two terms cancel, the digits of each count
        between, one = _ROOT, g * weight / (x.square().mean(1, keepdim=True) + 1e-6).sqrt()
        least, like = one.abs().max().item(), {"the gradient for a root that does not depend on `x`": one}
    (wanted,) = torch.autograd.grad(value, {"x": x, "weight": weight}[name], g)
    with kernels.unwritten_is_nan(), kernels.untouched():
        t.run(f"y = {_CALL}")
        expect.in_graph(t.y, of="the inputs")
        found = t.call(f"torch.autograd.grad(y, {name}, g)[0]")
    _agrees(found, wanted, t, least, between, what=f"the gradient of `{name}`", like=like)


@exercise.check(needs="triton", cases=_SETUPS)
def values(t, device):
    """The values, from float16 too, for small numbers and large ones

    The square of 300 is more than float16 can hold, and that of 0.0001 is 0 there: cast when you load. A
    block is a power of two; what a mask leaves out is 0 with `other=0`, and doesn't count in a mean.
    """
    *_, value = _exact(t)
    with kernels.unwritten_is_nan(), kernels.untouched():
        found = t.call(_CALL)
    _agrees(found, value.detach(), t)


@exercise.check(needs="triton", cases=_some(*_FEW, *_FLOATS, "a transposed `g`", "one giant"))
def gradient_of_x(t, device):
    """The gradient of `x` counts both ways from an element to the result

    An element changes its own result, and through the root all others in its row. A kernel finds elements by
    their strides, and those of a gradient are anything: what `sum` sends is one number, with strides of 0.
    """
    _expect_gradient(t, "x")


@exercise.check(needs="triton", cases=_some(*_FEW, *_FLOATS, "float16, small numbers after a large one"))
def gradient_of_weight(t, device):
    """The gradient of `weight` is a sum over the rows of all programs

    If each program stores its own part, one of them is left. Parts are added by atomics, or each program has
    a place for its own and a second launch adds them. Memory that is added to begins as zeros; and in
    float16, 2,048 + 1 is 2,048.
    """
    _expect_gradient(t, "weight")


_SMALL = {label: f'device = "cpu"\n{setup}' for label, setup in _some(*_FEW).items()}
_ONES = "x = torch.ones(24, 256).requires_grad_()\nweight = torch.ones(256).requires_grad_()"


def _launches(t, shuffle=None, watched=kernels.watched):
    """Those of both passes."""
    forward = watched(t, _CALL, "y", shuffle)
    expect.in_graph(t.y, of="the inputs")
    backward = "torch.autograd.grad(y, (x, weight), g)"
    return forward, watched(t, backward, "grad_x, grad_weight", shuffle)


@exercise.check(isolated=True, needs="triton", cases=_SMALL)
def addresses(t):
    """Kernels compute both passes, and no program goes beyond the end of a tensor

    A row of 100 stands in a block of 128, and the 28 lanes behind it point at the next row, or beyond the
    last one. A load that nothing uses is a load all the same.
    """
    forward, backward = _launches(t, watched=kernels.launched)
    kernels.inside(forward + backward)


@exercise.check(isolated=True, needs="triton", given=_SMALL["3 rows of 100"])
def traffic(t):
    """Each pass loads each element of `x` once

    The sum of a row and what is made of it need the same elements, and a program keeps them in its block. A
    second load, or a launch of its own for the gradient of `weight`, brings them from memory again.
    """
    forward, backward = _launches(t)
    kernels.once(t, forward, ["x"], ["y"], during="forward")
    kernels.once(t, backward, ["x", "g"], ["grad_x"], during="backward")


@exercise.check(isolated=True, needs="triton", given=_SMALL["20 rows of 5"])
def programs(t):
    """At most 16 rows a program, and no two programs race

    On a GPU programs run at the same time: one that loads a sum, adds to it and stores it loses what another
    stored in between. The interpreter runs one after the other, and the numbers are right there.
    """
    forward, backward = _launches(t, shuffle=1)
    rows = kernels.most_in_a_program(forward + backward, t.x, "load") / t.x.size(1)
    expect.at_most(rows, 16, "rows in one program")
    kernels.no_race(forward + backward)


@exercise.check(isolated=True, needs="triton", given=_ONES)
def kept(t):
    """For backward at most one number for each row is made and kept

    `x` and `weight` are there already. The normalised rows are as large as `x`; a kernel that has loaded the
    row makes them again from it, and moves no more memory.
    """
    kernels.keeps(t, _CALL, limit=4 * 24)
