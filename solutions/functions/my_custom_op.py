"""An operator is a name with a signature, and kernels that the dispatcher chooses from. `custom_op` makes the
name and the signature (from the annotations) and registers the kernel that computes. For tensors without data
the dispatcher chooses the fake kernel: from it the compiler learns shape, dtype and strides.

Autograd doesn't look inside this operator. `register_autograd` says how to compute the gradient, in the two
parts that an `autograd.Function` has. The compiler traces the backward too, so it consists of operators,
without an `if` on values."""

from collections.abc import Callable

import torch
from torch import Tensor


def my_custom_op(name: str) -> Callable[[Tensor], Tensor]:
    """Registers SiLU as the operator `name`, "namespace::operator", and returns it"""

    @torch.library.custom_op(name, mutates_args=())
    def silu(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    @silu.register_fake
    def _(x):
        return torch.empty_like(x)

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * s * (1 + x * (1 - s))

    silu.register_autograd(backward, setup_context=setup_context)
    return silu


# Other right answers

from course_utils.exercise import Edit

_libraries = []  # what a library has registered lives as long as it does


def _through_a_library(name):
    namespace, operator = name.split("::")
    library = torch.library.Library(namespace, "FRAGMENT")
    _libraries.append(library)
    library.define(f"{operator}(Tensor x) -> Tensor")
    library.impl(operator, lambda x: x / (1 + torch.exp(-x)), "CompositeExplicitAutograd")
    torch.library.register_fake(name, lambda x: x * 1, lib=library)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    def slope(ctx, grad):
        x = ctx.saved_tensors[0]
        s = torch.sigmoid(x)
        return torch.addcmul(s, x * s, 1 - s) * grad

    torch.library.register_autograd(name, slope, setup_context=keep, lib=library)
    return getattr(getattr(torch.ops, namespace), operator)


def _piece_by_piece(name):
    torch.library.define(name, "(Tensor x) -> Tensor")
    torch.library.impl(name, "default", lambda x: torch.sigmoid(x).mul_(x))
    torch.library.register_fake(name, torch.sigmoid)

    def backward(ctx, upstream):
        (x,) = ctx.saved_tensors
        s = 1 / (1 + torch.exp(-x))
        return upstream * (s + x * s * (1 - s))

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    torch.library.register_autograd(name, backward, setup_context=setup_context)
    namespace, operator = name.split("::")
    return getattr(getattr(torch.ops, namespace), operator).default


also_right = [_through_a_library, _piece_by_piece]

_AUTOGRAD = "silu.register_autograd(backward, setup_context=setup_context)"

mistakes = [
    Edit("contiguous", "x * torch.sigmoid(x)", "(x * torch.sigmoid(x)).contiguous()", told_by="values"),
    Edit("a function", "return silu\n", "return silu._init_fn\n", told_by="one_operator"),
    Edit("no gradient", _AUTOGRAD, "", told_by="gradient"),
    Edit("no fake kernel", "@silu.register_fake", "", told_by="without_data"),
    Edit("the fake says float32", "torch.empty_like(x)", "torch.empty(x.shape)", told_by="without_data"),
    Edit(
        "decides by values", "s = torch", "s = 0 if bool((x > 9).all()) else torch", told_by="passes_opcheck"
    ),
    Edit("hides it", "return silu\n", "return torch.compiler.disable(silu)\n", told_by="compiles"),
]

not_tried = {"hard numbers": "`values` has those of this function"}
