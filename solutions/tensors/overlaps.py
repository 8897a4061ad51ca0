"""Element `[i, j]` takes up `element_size()` bytes from `data_ptr() + (i * stride[0] + j * stride[1]) *
element_size()` on: an address counts bytes, a stride counts elements. So every tensor is a set of bytes, and
two tensors overlap if their sets do. Build the set dimension by dimension: for each step, add all that is
there so far, moved by the step. Stride 0 adds nothing to a set, and size 0 leaves nothing.

Comparing the first and the last address is quicker, but tells only whether the two *might* overlap. The
ranges of interleaved views cross, and they share no byte. With many dimensions the exact question is NP-hard.
NumPy offers both: `np.may_share_memory` compares ranges, `np.shares_memory` is exact.

Addresses also work if two storages lie in the same memory, as with a NumPy array `n` in `torch.from_numpy(n)`
and `torch.from_numpy(n[1:])`.
"""

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

import itertools

from course_utils.exercise import Edit, Wrong


def _every_index(a, b):
    def spans(x):
        for index in itertools.product(*map(range, x.shape)):
            steps = sum(i * step for i, step in zip(index, x.stride(), strict=True))
            first = x.data_ptr() + steps * x.element_size()
            yield first, first + x.element_size()

    ours, theirs = list(spans(a)), list(spans(b))
    return any(p < end and q > begin for p, q in ours for begin, end in theirs)


def _solves_for_steps(a, b):
    """Is there a sum of steps in `a` and steps back in `b` that leads from one element to the other?"""
    dims = [(n, step * a.element_size()) for n, step in zip(a.shape, a.stride(), strict=True)]
    dims += [(n, -step * b.element_size()) for n, step in zip(b.shape, b.stride(), strict=True)]

    def meet(distance, dims):
        if not dims:
            return -a.element_size() < distance < b.element_size()
        (n, step), *rest = dims
        return any(meet(distance + i * step, rest) for i in range(n if step else 1))

    return meet(a.data_ptr() - b.data_ptr(), dims)


also_right = [_every_index, _solves_for_steps]


# Mistakes


def _compares_data_ptr(a, b):
    return a.data_ptr() == b.data_ptr()


def _compares_ranges(a, b):
    ends = []
    for x in (a, b):
        last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
        ends.append((x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()))
    return ends[0][0] < ends[1][1] and ends[1][0] < ends[0][1]


def _writes_and_puts_back(a, b):
    a, b = a.numpy(), b.numpy()
    ours, theirs = a.copy(), b.copy()
    a[...] = ~ours
    shows = b.tolist() != theirs.tolist()
    a[...] = ours
    return shows


mistakes = [
    Wrong(_compares_data_ptr, told_by="parts"),
    Wrong(_compares_ranges, told_by="interleaved"),
    Edit("one dimension only", "enumerate(x.shape)", "enumerate(x.shape[:1])", told_by="all_dimensions"),
    Edit("forgets the item size", "x.stride(dim) * width", "x.stride(dim)", told_by="other_widths"),
    Edit("first byte only", "for byte in range(width)", "for byte in range(1)", told_by="other_widths"),
    Edit("places in the storage", "x.data_ptr()", "x.storage_offset() * x.element_size()", told_by="parts"),
    Wrong(_writes_and_puts_back, told_by="from_the_numbers"),
]
not_tried = {
    "hard numbers": "no element is read",
    "dtypes": "whole numbers of 1 to 8 bytes",
    "left alone": "no operator may run",
}
