"""Pixel `[c, v, u]` of the image is `storage[offset + c * sc + v * sh + u * sw]`. In patch `[r, k]` the
pixel at `[c, i, j]` is the one with `v = r * p + i` and `u = k * p + j`, so it is

    storage[offset + r * (p * sh) + k * (p * sw) + c * sc + i * sh + j * sw]

That makes five coordinates and five strides, and no element moves. Splitting a dimension needs no copy, since
both parts get a stride: `p * s` from piece to piece, `s` inside. Reordering dimensions needs none either.
Merging them may.

`x.unfold(1, p, p).unfold(2, p, p)` splits both dimensions and drops what is left over; then you only have to
put the dimensions in order.
"""

import torch
from torch import Tensor


def image_patches(x: Tensor, p: int) -> Tensor:
    """(C, H, W) -> (rows, columns, C, p, p)"""
    channels, height, width = x.shape
    sc, sh, sw = x.stride()
    size = (height // p, width // p, channels, p, p)
    return x.as_strided(size, (p * sh, p * sw, sc, sh, sw))


# Other right answers

from course_utils.exercise import Edit, Wrong


def _built_in(x, p):
    return x.unfold(1, p, p).unfold(2, p, p).permute(1, 2, 0, 3, 4)


def _split_and_reorder(x, p):
    channels, rows, columns = x.size(0), x.size(1) // p, x.size(2) // p
    cropped = x[:, : rows * p, : columns * p]
    return cropped.view(channels, rows, p, columns, p).permute(1, 3, 0, 2, 4)


def _one_dimension_at_a_time(x, p):
    for dim in (1, 2):
        pieces = x.size(dim) // p
        x = x.narrow(dim, 0, pieces * p).unflatten(dim, (pieces, p)).movedim(dim + 1, -1)
    return torch.movedim(x, 0, 2)


also_right = [_built_in, _split_and_reorder, _one_dimension_at_a_time]


# Mistakes


def _only_reshapes(x, p):
    rows, columns = x.size(1) // p, x.size(2) // p
    return x[:, : rows * p, : columns * p].reshape(rows, columns, x.size(0), p, p)


def _does_not_crop(x, p):
    c, h, w = x.shape
    return x.view(c, h // p, p, w // p, p).permute(1, 3, 0, 2, 4)


def _crops_by_minus_nothing(x, p):
    x = x[:, : -(x.size(1) % p), : -(x.size(2) % p)]
    return x.unfold(1, p, p).unfold(2, p, p).permute(1, 2, 0, 3, 4)


_STRIDED = "x.as_strided(size, (p * sh, p * sw, sc, sh, sw))"

mistakes = [
    Wrong(_only_reshapes, told_by="right_pixels"),
    Wrong(_crops_by_minus_nothing, told_by="right_pixels"),
    Edit("turns every patch", "sc, sh, sw))", "sc, sw, sh))", told_by="right_pixels"),
    Wrong(_does_not_crop, told_by="pixels_left_over"),
    Edit("assumes contiguous", "x.stride()", "height * width, width, 1", told_by="any_strides"),
    Edit("begins at 0", "sc, sh, sw))", "sc, sh, sw), 0)", told_by="any_strides"),
    Edit(
        "copies what is not contiguous",
        "    sc, sh",
        "    x = x.contiguous()\n    sc, sh",
        told_by="shares_storage",
    ),
    Edit("leaves the graph", _STRIDED, _STRIDED.replace("x.", "x.detach()."), told_by="gradients"),
]
not_tried = {"hard numbers": "nothing is computed", "dtypes": "a view has the dtype of its base"}
