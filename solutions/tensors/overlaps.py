"""Element `[i, j]` takes up `element_size()` bytes from `data_ptr() + (i * stride[0] + j * stride[1]) *
element_size()` on: an address counts bytes, a stride counts elements. So every tensor is a set of bytes, and
two tensors overlap when their sets do. The set grows dimension by dimension: all that is there so far, once
for each step. Stride 0 adds nothing to a set, and size 0 leaves nothing.

Comparing the first and the last address is quicker and answers another question: whether the two *might*
overlap. Between interleaved views the ranges cross and no byte is shared. With many dimensions the exact
question is NP-hard, so no quick way is right in all cases. NumPy offers both, for what it can read:
`np.may_share_memory` compares ranges, `np.shares_memory` is exact.

Addresses need no look at the storages, and are right where two storages lie in one memory, as with the NumPy
array `n` in `torch.from_numpy(n)` and `torch.from_numpy(n[1:])`."""

from torch import Tensor


def overlaps(a: Tensor, b: Tensor) -> bool:
    """Whether at least one byte belongs to an element of both"""
    return not places(a).isdisjoint(places(b))


def places(x: Tensor) -> set[int]:
    """The addresses of all bytes that the elements of `x` take up"""
    start, width = x.data_ptr(), x.element_size()
    found = {start + byte for byte in range(width)}
    for dim, n in enumerate(x.shape):
        step = x.stride(dim) * width
        found = {place + i * step for place in found for i in range(n)}
    return found


# Other right answers


def _numbers_the_bytes(a, b):
    """A tensor that holds the number of each byte, read with the strides of both."""
    import torch

    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    number = torch.arange(a.untyped_storage().nbytes())
    seen = []
    for x in (a, b):
        width = x.element_size()
        stride = [step * width for step in x.stride()]
        seen.append(number.as_strided([*x.shape, width], [*stride, 1], x.storage_offset() * width).flatten())
    return torch.isin(*seen).any().item()


def _asks_every_element(a, b):
    def spans(x):
        if x.dim() == 0:
            return [(x.data_ptr(), x.data_ptr() + x.element_size())]
        return [span for part in x.unbind() for span in spans(part)]

    ours, theirs = spans(a.detach()), spans(b.detach())
    return any(p < end and q > begin for p, q in ours for begin, end in theirs)


def _solves_for_steps(a, b):
    """Is there a sum of steps in `a` and steps back in `b` that leads from one element to the other?"""
    if a.numel() == 0 or b.numel() == 0:
        return False
    dims = [(n, step * a.element_size()) for n, step in zip(a.shape, a.stride(), strict=True)]
    dims += [(n, -step * b.element_size()) for n, step in zip(b.shape, b.stride(), strict=True)]

    def meet(distance, dims):
        if not dims:
            return -a.element_size() < distance < b.element_size()
        (n, step), *rest = dims
        return any(meet(distance + i * step, rest) for i in range(n if step else 1))

    return meet(a.data_ptr() - b.data_ptr(), dims)


def _asks_numpy_about_addresses(a, b):
    """NumPy's own bool, from arrays of addresses."""
    import numpy as np

    def places(x):
        found = x.data_ptr() + np.arange(x.element_size())
        for n, step in zip(x.shape, x.stride(), strict=True):
            found = np.add.outer(found, np.arange(n) * step * x.element_size())
        return found

    return np.isin(places(a), places(b)).any()


also_right = [_numbers_the_bytes, _asks_every_element, _solves_for_steps, _asks_numpy_about_addresses]
