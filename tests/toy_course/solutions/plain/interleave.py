"""A matrix with `a` and `b` as its columns, read row by row, has their elements in turn. `stack` finds the
dtype that both fit into, and is differentiable.
"""

import torch
from torch import Tensor


def interleave(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack((a, b), dim=1).reshape(-1)


# Other right answers

from course_utils.exercise import Edit, Wrong


def written_in_place(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty(2 * len(a), dtype=torch.promote_types(a.dtype, b.dtype), device=a.device)
    out[0::2] = a
    out[1::2] = b
    return out


def one_by_one(a: Tensor, b: Tensor) -> Tensor:
    pairs = [x for pair in zip(a, b, strict=True) for x in pair]
    if not pairs:
        return torch.cat((a, b))
    dtype = torch.promote_types(a.dtype, b.dtype)
    return torch.stack([x.to(dtype) for x in pairs])


also_right = [written_in_place, one_by_one]


def puts_b_after_a(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat((a, b))


mistakes = [
    Wrong(puts_b_after_a, told_by="right_order"),
    Edit("rows", "dim=1", "dim=0", told_by="right_order"),
    Edit("b first", "(a, b)", "(b, a)", told_by="right_order"),
    Edit("of the dtype of a", "reshape(-1)", "reshape(-1).to(a.dtype)", told_by="two_dtypes"),
    Edit("leaves the graph", "(a, b)", "(a.detach(), b.detach())", told_by="gradients"),
]
