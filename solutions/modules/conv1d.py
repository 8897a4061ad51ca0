"""`unfold` gives each position its window, as a view: neighbouring windows overlap in storage, and nothing is
copied. Dilation is a slice with a step along the window, and a view again. The convolution is then one sum of
products, over the channels of a group and the window: a product of two matrices for each group.

Where do copies come from? `F.pad` makes a new tensor. And a matrix product wants a matrix: `einsum` brings
channels and window together in one dimension, which no strides can describe here, so it writes the windows
out: nearly `kernel` times the size of a long `x` where `stride` is 1. This is known as `im2col`, and
`F.unfold` is torch's name for it."""

import torch
from torch import Tensor
from torch.nn import functional as F


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Tensor:
    """(batch, channels, length) -> (batch, outputs, positions)"""
    reach = dilation * (weight.shape[2] - 1) + 1
    windows = F.pad(x, (padding, padding)).unfold(2, reach, stride)[..., ::dilation]
    by_group = windows.unflatten(1, (groups, -1)), weight.unflatten(0, (groups, -1))
    out = torch.einsum("ngctk,gock->ngot", *by_group).flatten(1, 2)
    return out if bias is None else out + bias[:, None]


# Other right answers

from course_utils.exercise import Edit, Wrong


def _one_product_for_each_place_in_the_window(
    x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1
):
    """Sums `kernel` products, each of the weights at one place with every `stride`-th element of `x`."""
    x = F.pad(x, (padding, padding))
    positions = (x.shape[2] - dilation * (weight.shape[2] - 1) - 1) // stride + 1
    parts = []
    for of_x, of_weight in zip(x.chunk(groups, 1), weight.chunk(groups), strict=True):
        starts = [of_x[:, :, k * dilation :: stride][:, :, :positions] for k in range(weight.shape[2])]
        parts.append(sum(of_weight[:, :, k] @ part for k, part in enumerate(starts)))
    out = torch.cat(parts, dim=1)
    return out + bias.view(1, -1, 1) if bias is not None else out


def _strides(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    n, channels, length = x.shape
    outputs, _, kernel = weight.shape
    padded = x.new_zeros(n, channels, length + 2 * padding)
    padded[:, :, padding : padding + length] = x
    positions = (padded.shape[2] - dilation * (kernel - 1) - 1) // stride + 1
    a, b, c = padded.stride()
    size = n, groups, channels // groups, kernel, positions
    windows = padded.as_strided(size, (a, b * (channels // groups), b, c * dilation, c * stride))
    rows = weight.reshape(groups, outputs // groups, -1)
    out = (rows @ windows.reshape(n, groups, -1, positions)).reshape(n, outputs, positions)
    return out if bias is None else out.add(bias.unsqueeze(-1))


also_right = [_one_product_for_each_place_in_the_window, _strides]


# Mistakes


def _loop(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    x, kernel = F.pad(x, (padding, padding)), weight.shape[2]
    reach = dilation * (kernel - 1) + 1
    rows = weight.reshape(groups, weight.shape[0] // groups, -1)
    columns = []
    for start in range(0, x.shape[2] - reach + 1, stride):
        window = x[:, :, start : start + reach : dilation].reshape(len(x), groups, -1)
        columns.append(torch.einsum("goc,ngc->ngo", rows, window).flatten(1))
    out = torch.stack(columns, dim=2)
    return out if bias is None else out + bias[:, None]


mistakes = [
    Edit("turns the kernel", "weight.unflatten", "weight.flip(2).unflatten", told_by="sums_over_windows"),
    Edit("one bias for all", "bias[:, None]", "bias[0]", told_by="sums_over_windows"),
    Edit("zeros at one end", "(padding, padding)", "(padding, 0)", told_by="stride_and_padding"),
    Edit("stride for dilation", "::dilation]", "::stride]", told_by="stride_and_padding"),
    Edit(
        "reach without dilation", "dilation * (weight.shape[2] - 1) + 1", "weight.shape[2]", told_by="dilated"
    ),
    Edit(
        "groups interleaved",
        "windows.unflatten(1, (groups, -1))",
        "windows.unflatten(1, (-1, groups)).transpose(1, 2)",
        told_by="grouped",
    ),
    Wrong(_loop, told_by="no_loop_over_positions"),
]

equivalent = {"the result of `conv1d` made contiguous": "any layout will do"}

not_tried = {"hard numbers": "a sum of products, by torch's own operators", "seeds": "no draw decides"}
