"""Formats of floating-point numbers: rounding judged bit by bit, which operators convert, and a Function that
sees autocast."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_utils import torch_private
from course_utils.exercise import expect
from course_utils.measure.modes import Watch

# Operators on each element whose result is an element that was there, or one with another sign.
_PICKS = ("where", "clone", "masked_fill", "nan_to_num", "relu", "clamp", "clamp_min", "clamp_max")
_PICKS += ("maximum", "minimum", "abs", "neg", "sign", "copysign")


class Floats(Watch):
    """`found`: the operators that convert floating-point numbers to another dtype, or calculate with them.
    Reading bits as another dtype, with `view`, is neither."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        out = run()
        dtypes, made_of = _floats((args, out)), _floats(out)
        name = func.overloadpacket.__name__
        made = name == "view" or name.startswith("new_") or name.endswith("_like")
        converts = len(dtypes) > 1 and not made or name == "lift_fresh" and out.numel() > 1
        calculates = made_of and torch.Tag.pointwise in func.tags and name.rstrip("_") not in _PICKS
        if dtypes and (converts or calculates):
            self.found.append("`torch.tensor`" if name == "lift_fresh" else f"`{name}`")
        return out


def _floats(tree: Any) -> set[torch.dtype]:
    """The dtypes of the floating-point tensors in it."""
    tensors = [t for t in torch_private.tree_leaves(tree) if isinstance(t, Tensor)]
    return {t.dtype for t in tensors if t.is_floating_point()}


def rounded(round_to_bfloat16: Callable[[Tensor], Tensor], bits: Tensor, device: Any) -> None:
    """The float32 numbers with these bits are rounded as by torch, bit by bit; of a NaN any will do.

    A message shows the one of the wrong numbers that is nearest to 1.
    """
    x = bits.to(device, torch.int32).view(torch.float32)
    wanted, came = x.bfloat16(), expect.a_tensor(round_to_bfloat16(x.clone()))
    expect.equal(came.dtype, torch.bfloat16, what="the dtype of the result")
    expect.equal(tuple(came.shape), tuple(x.shape), what="the shape of the result")
    wrong = came.view(torch.int16) != wanted.view(torch.int16)
    wrong &= ~(came.isnan() & wanted.isnan())
    if not wrong.any():
        return
    number = min(x[wrong].tolist(), key=lambda number: abs(number - 1.1) if number - number == 0 else 1e40)
    made = f"torch.tensor([{number!r}])"
    if number - number != 0:
        made = f"torch.tensor([{bits[wrong.cpu()][0].item()}], dtype=torch.int32).view(torch.float32)"
    t = expect.given(f"x = {made}", round_to_bfloat16=round_to_bfloat16)
    alone, true = t.call("round_to_bfloat16(x)").item(), t.x.bfloat16().item()
    told = f"{int(wrong.sum()):,} of {len(bits):,} such numbers are not rounded as torch rounds them"
    expect.true(repr(alone) == repr(true), f"the result is {alone!r}, expected {true!r}", told)
    expect.true(False, told, "this one is wrong among the others, and right alone")


def product() -> tuple[type[torch.autograd.Function], dict[str, Any]]:
    """A Function for `a @ b * scale`, written without autocast in mind, and a dict with what it saw last: the
    state of autocast, such as "off" or "bfloat16", and the dtypes that it was given."""
    seen: dict[str, Any] = {}

    def note(where: str, *tensors: Tensor) -> None:
        on, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        seen[f"autocast in {where}"] = str(dtype).removeprefix("torch.") if on else "off"
        seen[f"dtypes in {where}"] = [t.dtype for t in tensors]

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor, scale: float = 1) -> Tensor:
            note("forward", a, b)
            ctx.save_for_backward(a, b)
            ctx.scale = scale
            return a @ b * scale

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            a, b = ctx.saved_tensors
            note("backward", grad, a, b)
            grad = grad * ctx.scale
            return grad @ b.t(), a.t() @ grad, None

    return Product, seen
