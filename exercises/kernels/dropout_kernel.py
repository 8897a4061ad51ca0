"""Dropout that keeps a seed

Write an `autograd.Function` whose two passes are kernels: `DropoutKernel.apply(x, p, seed)`, for a
contiguous `x` of float32 or float16, `0 <= p < 1`, and an integer `seed`. `x` has any shape, `()` and
`(0, 3)` too.

- Element `i`, counted over all of `x`, becomes 0 where `tl.rand(seed, i) < p`, whatever it was; elsewhere
  it is divided by `1 - p`.
- Backward drops the same elements. What arrives has any layout.
- No tensor is kept for backward. `x` and what arrives stay as they are.
- A program handles at most 1,024 elements, and touches no address outside the tensors.

Write kernels above the class, in the same cell.
"""

import torch
from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits.kernels import (
    agrees,
    because,
    inside,
    keeps,
    launched,
    most_in_a_program,
    tl,
    triton,
    untouched,
    unwritten_is_nan,
)

exercise = Exercise(
    minutes=15,
    hints=[
        "`tl.rand(seed, i)` is a function of two integers: it gives the same number whenever it's asked. "
        "What does backward need, to find the mask again?",
        "`i` is the place in the tensor, not in the block: the offsets that you load from. What backward "
        "does to what arrives is what forward does to `x`.",
        "One kernel will do for both passes: load, `tl.where(tl.rand(seed, offsets) < p, 0.0, x / (1 - p))`, "
        "store. `ctx.p, ctx.seed = p, seed` keeps what isn't a tensor, and backward returns `None` for both. "
        "`grad.contiguous()` helps with any layout.",
    ],
)


@exercise.starter
class DropoutKernel(torch.autograd.Function):
    """x, with a share `p` of its elements dropped"""

    @staticmethod
    def forward(ctx, x: Tensor, p: float, seed: int) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        raise NotImplementedError


_CALL = "DropoutKernel.apply(x, p, seed)"
_X = {
    "2,049 elements": "torch.randn(2049, device=device), 0.25, 7",
    "a seed beyond 32 bits": "torch.randn(500, device=device), 0.5, 2**40",
    "a tensor of 100 ones": "torch.ones(100, device=device), 0.9, 0",
    "a matrix": "torch.randn(17, 41, device=device), 0.5, 3",
    "float16": "torch.randn(5, 6, 20, device=device).half(), 0.1, 8",
    "`p` of 0": "torch.randn(300, device=device), 0.0, 3",
    "one element": "torch.full((1,), 3.0, device=device), 0.5, 1",
    "large and small": "torch.tensor([1e30, 1e-30, 60000, 0] * 9, device=device), 0.4, 5",
    "a number": "torch.tensor(3.0, device=device), 0.5, 1",
    "no element": "torch.randn(0, 3, device=device), 0.5, 1",
    "`p` is the number for element 5": "torch.ones(64, device=device), 0.6772258281707764, 7",
}
_CASES = {
    label: f"torch.manual_seed(0)\nx, p, seed = {x}\nx.requires_grad_()" for label, x in _X.items()
}
_ODD = {"inf and NaN": "x, p, seed = torch.tensor([torch.inf, torch.nan, 1] * 9, device=device), 0.4, 5"}
_RISING = "g = torch.linspace(1, 3, x.numel()).to(x)"
_ARRIVES = {label: f"{setup}\n{_RISING}.view_as(x)" for label, setup in _CASES.items()} | {
    "what `y.sum()` sends": f"{_CASES['a matrix']}\ng = torch.ones_like(x[0, 0]).expand(x.shape)",
    "a transposed `g`": f"{_CASES['a matrix']}\n{_RISING}.view(x.shape[::-1]).t()",
}


@triton.jit
def _draw(out, seed, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.rand(seed, i), mask=i < n)


def _draws(seed, like):
    """`tl.rand(seed, i)` for each element `i` of a tensor, in one row."""
    out = torch.empty(like.numel(), device=like.device)
    _draw[(triton.cdiv(len(out), 1024),)](out, seed, len(out), BLOCK=1024)
    return out


def _dropped(t, tensor, name):
    """What is to come of a tensor of this name; and what comes of it otherwise, by what is wrong."""
    n, like, drawn = tensor.numel(), {}, _draws(t.seed, tensor)
    scaled = tensor.detach().double() / (1 - t.p)
    mask = (drawn < t.p).view(tensor.shape)
    for size in (64, 128, 256, 512, 1024):
        if n > size:
            local = drawn[torch.arange(n, device=drawn.device) % size].view_as(mask)
            what = f"what comes if the mask begins again after {size:,} elements"
            like[what] = scaled.where(local >= t.p, 0)
    kept = tensor.detach().where(~mask, 0)
    like[f"`{name}` with the right elements dropped, and the others not divided by `1 - p`"] = kept
    like["what comes if those elements are dropped that are to be kept"] = scaled.where(mask, 0)
    return scaled.where(~mask, 0), {what: value.to(tensor) for what, value in like.items()}


_BECOMES_0 = (
    "inf times 0 is NaN, and so is NaN times 0: to multiply by a mask drops finite numbers alone. `tl.where` "
    "chooses, and so does a masked load with `other=0`."
)


@exercise.check(needs="triton", cases=_CASES | _ODD)
def values(t, device):
    """Element `i` is dropped by the number for `i`, and the others grow

    The number depends on the seed and the place, and drops where it is below `p`. The place in a block is the
    same for all blocks: with it alone the mask begins again in each program, and with a seed for each program
    it depends on the block's size. `1 / (1 - p)` makes up for the dropped ones: the expected value stays.
    """
    wanted, like = _dropped(t, t.x, "x")
    with unwritten_is_nan(), untouched():
        found = t.call(_CALL)
    with because("" if t.x.isfinite().all() else _BECOMES_0):
        agrees(found, wanted, t.x, least=0.0, like=like)


@exercise.check(needs="triton", cases=_ARRIVES)
def gradient(t, device):
    """Backward drops the same elements, and scales the others the same

    A dropped element has no part in the result, so its gradient is 0. The mask is drawn again from the same
    seed; with another it's another mask, of the same size. What arrives is found by its own strides: `sum`
    sends one number, with strides of 0.
    """
    wanted, like = _dropped(t, t.g, "g")
    with unwritten_is_nan(), untouched():
        t.run(f"y = {_CALL}")
        expect.in_graph(t.y, of="`x`")
        found = t.call("torch.autograd.grad(y, x, g)[0]")
    agrees(found, wanted, t.x, least=0.0, what="the gradient of `x`", like=like)


@exercise.check(
    needs="triton",
    given="x = torch.ones(300, device=device).requires_grad_()\np, seed, g = 0.25, 7, torch.ones_like(x)",
)
def two_calls(t, device):
    """Each call goes back by its own `p` and seed

    A network drops in several places before it goes back. `ctx` is made anew for each call; what is kept on
    the class, or in a global variable, is the last call's.
    """
    wanted, like = _dropped(t, t.g, "g")
    with untouched():
        t.run(f"y, z = {_CALL}, DropoutKernel.apply(x, 0.5, 8)")
    like["the gradient of `z`"] = t.call("torch.autograd.grad(z, x, g)[0]")
    found = t.call("torch.autograd.grad(y, x, g)[0]")
    agrees(found, wanted, t.x, least=0.0, what="the gradient of `y`", like=like)


@exercise.check(
    isolated=True,
    needs="triton",
    given="x, p, seed = torch.ones(40, 100).requires_grad_(), 0.25, 7",
)
def nothing_kept(t):
    """No tensor is kept for backward

    A mask is a byte for each element, kept from forward to backward. The seed is one integer, and the numbers
    come again from it. The gradient doesn't depend on `x`.
    """
    keeps(t, _CALL.replace("(x", "(x * 1"))


_SMALL = {
    label: f'device = "cpu"\n{_ARRIVES[label]}'
    for label in ("2,049 elements", "a tensor of 100 ones", "what `y.sum()` sends")
}


_BLOCKS = "Blocks in a loop are one program's. Programs are what runs side by side, so its share is small."


@exercise.check(isolated=True, needs="triton", cases=_SMALL)
def addresses(t):
    """Kernels compute both, in programs of at most 1,024 elements, and none goes beyond the end

    Where a load is multiplied by a mask of 0 it has been loaded all the same. The last block needs a mask for
    its elements, beside the one that drops some.
    """
    for name, call in (("y", _CALL), ("found", "torch.autograd.grad(y, x, g)[0]")):
        launches = launched(t, call, name)
        inside(launches)
        most = most_in_a_program(launches, getattr(t, name), "store")
        with because(_BLOCKS):
            expect.at_most(most, 1024, f"elements of `{name}` that one program stores")
