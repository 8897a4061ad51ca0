"""To autograd and to the compiler a `custom_op` is one node, and neither looks into it. So it may launch a
kernel, and the fake kernel says what comes out. The compiler traces backward too, so the kernel of the
gradient is launched inside an operator of its own.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _forward(x, out, n, BLOCK: tl.constexpr):
    where = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = tl.maximum(tl.load(x + where, mask=where < n), 0)
    tl.store(out + where, r * r, mask=where < n)


@triton.jit
def _backward(g, x, out, n, BLOCK: tl.constexpr):
    where = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = tl.maximum(tl.load(x + where, mask=where < n), 0)
    tl.store(out + where, 2 * r * tl.load(g + where, mask=where < n), mask=where < n)


def _launch(kernel, *inputs):
    inputs = [tensor.contiguous() for tensor in inputs]
    out = torch.empty_like(inputs[0])
    kernel[(triton.cdiv(out.numel(), 512),)](*inputs, out, out.numel(), BLOCK=512)
    return out


def my_triton_op(name):
    @torch.library.custom_op(name, mutates_args=())
    def op(x: Tensor) -> Tensor:
        return _launch(_forward, x)

    @torch.library.custom_op(f"{name}_backward", mutates_args=())
    def slope(g: Tensor, x: Tensor) -> Tensor:
        return _launch(_backward, g, x)

    @op.register_fake
    def _(x):
        return x.new_empty(x.shape)

    @slope.register_fake
    def _(g, x):
        return x.new_empty(x.shape)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, g):
        return slope(g, *ctx.saved_tensors)

    op.register_autograd(backward, setup_context=keep)
    return op


# Other right answers

from course_utils.exercise import Edit


def _piece_by_piece(name):
    slope = f"{name.replace('::', '::d_')}"
    torch.library.define(name, "(Tensor x) -> Tensor")
    torch.library.define(slope, "(Tensor x, Tensor g) -> Tensor")
    torch.library.impl(name, "default", lambda x: _launch(_forward, x))
    torch.library.impl(slope, "default", lambda x, g: _launch(_backward, g, x))
    torch.library.register_fake(name, _dense)
    torch.library.register_fake(slope, lambda x, g: _dense(x))
    namespace, forward = name.split("::")
    ours = getattr(torch.ops, namespace)

    def backward(ctx, g):
        return getattr(ours, f"d_{forward}")(ctx.saved_tensors[0], g)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    torch.library.register_autograd(name, backward, setup_context=keep)
    return getattr(ours, forward)


def _dense(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@triton.jit
def _both(x, g, out, n):
    where = tl.program_id(0) * 256 + tl.arange(0, 256)
    here = tl.load(x + where, mask=where < n, other=0)
    if g is None:
        made = tl.where(here > 0, here * here, 0)
    else:
        made = tl.where(here > 0, (here + here) * tl.load(g + where, mask=where < n, other=0), 0)
    tl.store(out + where, made, mask=where < n)


def _run(x, g=None):
    out = x.new_empty(x.shape)
    _both[(-(-x.numel() // 256),)](x.contiguous(), g, out, x.numel())
    return out


def _one_operator(name):
    """With what arrives as an argument that may be missing"""

    def make(x: Tensor, g: Tensor | None = None) -> Tensor:
        return _run(x, None if g is None else g.contiguous())

    op = torch.library.custom_op(name, make, mutates_args=())
    op.register_fake(lambda x, g=None: _dense(x))

    def backward(ctx, g):
        return op(ctx.saved_tensors[0], g), None

    op.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]))
    return op


also_right = [_piece_by_piece, _one_operator]


# Mistakes

_FORWARD = "return _launch(_forward, x)"
_EMPTY = "x.new_empty(x.shape)"
_NEW = f"return {_EMPTY}\n\n    @slope"
_KEPT = "ctx.save_for_backward(*inputs)"
_SLOPE = "return slope(g, *ctx.saved_tensors)"
_HIDDEN = "return torch.compiler.disable(op)\n"
_LAUNCHED = "return _launch(_backward, g, *ctx.saved_tensors)"

mistakes = [
    Edit("reads on", "[tensor.contiguous() for tensor in inputs]", "list(inputs)", told_by="values"),
    Edit("of torch", _FORWARD, "return x.relu().square().contiguous()", told_by="launches"),
    Edit("keeps more", _KEPT, f"{_KEPT}; ctx.out = output", told_by="kept"),
    Edit("the fake says float32", _NEW, _NEW.replace("x.new", "torch."), told_by="passes_opcheck"),
    Edit("the fake is transposed", _NEW, _NEW.replace(_EMPTY, "torch.empty_like(x)"), told_by="without_data"),
    Edit("in place", "torch.empty_like(inputs[0])", "inputs[-1]", told_by="values"),
    Edit("launched in backward", _SLOPE, _LAUNCHED, told_by="passes_opcheck"),
    Edit("hidden from the compiler", "return op\n", _HIDDEN, told_by="compiles"),
]

equivalent = {
    "line 23: `0` -> `-1`": "what arrives has the shape and the dtype of `x`",
    "line 24: `512` -> `511`": "one program more now and then, all of it masked",
}
not_tried = {"hard numbers": "a square of a large number overflows in torch too", "seeds": "nothing is drawn"}
