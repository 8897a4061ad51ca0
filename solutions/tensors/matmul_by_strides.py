"""Every product is a sum over an index: `sum_j a[i, j] * b[j, k]`. If both factors are tensors with all three
indices, `*` makes every term at once, and `sum` adds those of each `j`. A factor without an index gets it as
a dimension of stride 0: `a[i, j]` is the same for every `k`. So `a` has strides `(s0, s1, 0)` and `b` has
`(0, t0, t1)`, and their own strides may be any. The vector is the same without `k`.

The trace reads one element for each `i`, at `offset + i * s0 + i * s1`: a view with one dimension, whose
stride is the sum of both.

`@` doesn't write all terms down. Here they take `m * n * k` elements of memory for a moment; the views take
none.
"""

import torch
from torch import Tensor


def matmul_by_strides(a: Tensor, b: Tensor | None = None) -> Tensor:
    """(m, n) -> (); (m, n), (n,) -> (m,); (m, n), (n, k) -> (m, k)"""
    m, n = a.shape
    s0, s1 = a.stride()
    if b is None:
        return a.as_strided((min(m, n),), (s0 + s1,)).sum()
    if b.dim() == 1:
        (t,) = b.stride()
        return (a * b.as_strided((m, n), (0, t))).sum(1)
    t0, t1 = b.stride()
    size = (m, n, b.size(1))
    return (a.as_strided(size, (s0, s1, 0)) * b.as_strided(size, (0, t0, t1))).sum(1)


# Other right answers

from course_utils.exercise import Edit, Wrong


def _broadcasts_the_rest(a, b=None):
    """Dimensions of size 1 in place of strides of 0: `*` repeats them."""
    m, n = a.shape
    rows, columns = a.stride()
    if b is None:
        return torch.as_strided(a, [n if n < m else m], [rows + columns], a.storage_offset()).sum(0)
    if b.dim() == 1:
        return torch.sum(b * a, dim=-1)
    left = torch.as_strided(a, [m, 1, n], [rows, 1, columns])
    right = torch.as_strided(b, [1, b.shape[1], n], [1, b.stride(1), b.stride(0)])
    return torch.sum(left * right, dim=2)


def _one_rule_for_both(a, b=None):
    """The free indices of `b` come first; a vector has none."""
    if b is None:
        length, step = min(a.size(0), a.size(1)), a.stride(0) + a.stride(1)
        return torch.sum(torch.as_strided(a, (length,), (step,)))
    free = b.shape[1:]
    size = (*free, *a.shape)
    left = a.as_strided(size, (*(0 for _ in free), *a.stride()))
    right = b.as_strided(size, (*b.stride()[1:], 0, b.stride(0)))
    found = torch.mul(left, right).sum(-1)
    return found if not free else found.as_strided((a.size(0), *free), (found.stride(1), found.stride(0)))


also_right = [_broadcasts_the_rest, _one_rule_for_both]


# Mistakes


def _asks_torch(a, b=None):
    return a.trace() if b is None else a @ b


def _row_by_row(a, b=None):
    if b is None or b.dim() == 1:
        return matmul_by_strides(a, b)
    return torch.stack([(row * b.t()).sum(1) for row in a])


mistakes = [
    Edit("a trace of squares", "min(m, n)", "m", told_by="trace"),
    Edit("goes down only", "s0 + s1", "s0", told_by="trace"),
    Edit("the vector down", "(0, t)", "(t, 0)", told_by="matrix_and_vector"),
    Edit("sums the rows up", "(0, t0, t1))).sum(1)", "(0, t0, t1))).sum(2)", told_by="two_matrices"),
    Edit("contiguous strides", "s0, s1 = a.stride()", "s0, s1 = n, 1", told_by="of_views"),
    Edit("begins at 0", "(s0, s1, 0))", "(s0, s1, 0), 0)", told_by="of_views"),
    Wrong(_asks_torch, told_by="only_three_operators"),
    Wrong(_row_by_row, told_by="only_three_operators"),
]
not_tried = {"hard numbers": "products and sums alone"}

equivalent = {
    "line 13: `b.as_strided((m, n), (0, t))` -> `b`": "`*` broadcasts, and that is the same view",
    "line 16: `b.as_strided(size, (0, t0, t1))` -> `b`": "the same, with one dimension more",
}
