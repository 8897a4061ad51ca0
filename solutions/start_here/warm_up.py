"""A tensor is a row of elements in memory and a way of reading it. `torch.arange` makes the row, with its
final dtype and on its final device; `reshape` changes only how it is read. The row has `math.prod(shape)`
elements; the product of nothing is 1, so shape `()` is one element too.

To convert or move it afterwards, with `.to` or `result.copy_(...)`, takes a second row.

Filling an empty tensor element by element makes it once too, and takes a step in Python for each element.
"""

import math

import torch
from torch import Tensor


def warm_up(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """A tensor of this shape, dtype and device that holds 0, 1, 2, …"""
    return torch.arange(math.prod(shape), dtype=dtype, device=device).reshape(shape)


# Other right answers

from course_utils.exercise import Edit, Wrong


def _element_by_element(shape, dtype, device):
    result = torch.empty(shape, dtype=dtype, device=device)
    row = result.view(-1)
    for i in range(len(row)):
        row[i] = i
    return result


def _from_a_list(shape, dtype, device):
    count = 1
    for n in shape:
        count *= n
    return torch.tensor([*range(count)], dtype=dtype, device=device).view(shape)


def _counts_into_it(shape, dtype, device):
    result = torch.empty(shape, dtype=dtype, device=device)
    torch.arange(result.numel(), out=result.view(-1))
    return result


also_right = [_element_by_element, _from_a_list, _counts_into_it]


# Mistakes


def _rows_and_columns(shape, dtype, device):
    rows, columns = shape
    return torch.arange(rows * columns, dtype=dtype, device=device).reshape(rows, columns)


def _holds_the_shape(shape, dtype, device):
    return torch.tensor(shape, dtype=dtype, device=device)


def _infers_a_size(shape, dtype, device):
    first, *rest = shape or (1,)
    return torch.arange(math.prod(shape), dtype=dtype, device=device).reshape(-1, *rest)[:first].view(shape)


def _in_equal_steps(shape, dtype, device):
    count = math.prod(shape)
    return torch.linspace(0, count - 1, count, dtype=dtype, device=device).reshape(shape)


_MADE = "torch.arange(math.prod(shape), dtype=dtype, device=device).reshape(shape)"

mistakes = [
    Wrong(_holds_the_shape, told_by="right_values"),
    Wrong(_rows_and_columns, told_by="any_shape"),
    Wrong(_infers_a_size, told_by="any_shape"),
    Edit("ignores the dtype", "dtype=dtype, ", "", told_by="any_dtype"),
    Wrong(_in_equal_steps, told_by="any_dtype"),
    Edit("ignores the device", ", device=device", "", told_by="any_device"),
    Edit(
        "converts afterwards",
        _MADE,
        "torch.arange(math.prod(shape), device=device).reshape(shape).to(dtype)",
        told_by="made_with_its_dtype",
    ),
    Edit(
        "moves afterwards",
        _MADE,
        "torch.arange(math.prod(shape), dtype=dtype).reshape(shape).to(device)",
        told_by="made_on_its_device",
    ),
]
not_tried = {"hard numbers": "nothing is computed", "left alone": "no tensor is given"}
