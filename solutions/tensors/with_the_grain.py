"""The last dimension of a contiguous tensor has stride 1. So `dim` is moved to the end, the view is laid out
anew in that order, and the dimension is moved back: the two moves exchange strides and touch no element, and
in between every element is copied once. What comes out has the shape of `x` and another layout.

A copy reads against the grain too, once. It pays when lines are read one at a time more than once. Whoever
calls an operator such as `cumsum(0)` on the whole tensor need not lay anything out: such a kernel can walk
all lines side by side and use every piece of memory that it fetches."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def with_the_grain(x: Tensor, dim: int, scans: list[Callable[[Tensor], Any]]) -> list[Any]:
    """What each scan returns, given the elements of `x` in a tensor with stride 1 along `dim`"""
    if x.stride(dim) != 1:
        x = x.movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


# Other right answers


def _stacks_the_lines(x, dim, scans):
    import torch

    along = dim % x.dim()
    if x.stride()[along] != 1:
        x = torch.stack(x.unbind(along), dim=-1).movedim(-1, along)
    return list(map(lambda scan: scan(x), scans))


def _writes_into_its_own_strides(x, dim, scans):
    """Strides for a dense tensor in which `dim` comes first, then a copy into it."""
    import torch

    lines = x
    if lines.stride(dim) != 1:
        strides, width = [0] * x.dim(), 1
        for i in sorted(range(x.dim()), key=lambda i: (i != dim % x.dim(), i)):
            strides[i], width = width, width * x.size(i)
        lines = torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)
        lines.copy_(x)
    results = []
    for scan in scans:
        results.append(scan(lines))
    return results


def _swaps_two_dimensions(x, dim, scans):
    import torch

    given = x
    if x.stride(dim) != 1:
        given = x.transpose(dim, -1).clone(memory_format=torch.contiguous_format).transpose(-1, dim)
    return [scan(given) for scan in scans]


def _picks_every_element(x, dim, scans):
    """An index makes a new tensor in the order of the shape."""
    import torch

    if x.stride(dim) != 1:
        everything = torch.arange(x.size(dim), device=x.device)
        x = x.movedim(dim, -1).index_select(-1, everything).movedim(-1, dim)
    return [scan(x) for scan in scans]


def _line_after_line(x, dim, scans):
    """As many copies as there are lines, each of one of them: together they are one of `x`."""
    import torch

    if x.stride(dim) != 1:
        turned = x.movedim(dim, -1)
        made = torch.empty(turned.shape, dtype=x.dtype, device=x.device)
        for i in range(x.size(dim)):
            made[..., i] = turned[..., i]
        x = made.movedim(-1, dim)
    return [scan(x) for scan in scans]


also_right = [
    _stacks_the_lines,
    _writes_into_its_own_strides,
    _swaps_two_dimensions,
    _picks_every_element,
    _line_after_line,
]
