"""Do two tensors share an element?

Return `True` when a write to an element of `a` could show in `b`: when at least one byte of memory belongs
to an element of both. Return `False` otherwise.

`a` and `b` are any two tensors on one device. Mostly they are views of the same storage, with any shape,
strides and offset, and not always of the same dtype: `x.view(torch.int16)` reads the memory of a
`torch.int32` tensor two bytes at a time. What a view steps past does not belong to it. A tensor without
elements shares nothing.

Both stay as they are, so trying it out with a write is not allowed. They are small, and you may look at each
of their elements.

With `x = torch.arange(6)`, `overlaps(x[:4], x[3:])` is `True` and `overlaps(x[::2], x[1::2])` is `False`
"""

import functools
import itertools

import torch
from torch import Tensor

from course_utils import evidence, expect, many_cases
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=20,
    hints=[
        "Where is each element of `a` in memory, and where each of `b`? Once you have two collections of "
        "places, the question is whether they have one in common.",
        "`x.data_ptr()` is the address of the first element, in bytes. A stride counts elements: one step is "
        "`x.element_size()` times as many bytes.",
        "Start with the set of the bytes of the first element: there are `x.element_size()` of them. Then go "
        "through the dimensions, and replace the set by one that holds every byte again for each step along "
        "the dimension. No steps, no bytes: a dimension of size 0 leaves nothing, as it should.",
    ],
)


@exercise.starter
def overlaps(a: Tensor, b: Tensor) -> bool:
    """Whether at least one byte belongs to an element of both"""
    raise NotImplementedError


# --- the oracle: every element's address, as torch gives it -------------------------------------------------


def _bytes(x):
    """The addresses of all bytes of all elements: each element is picked out and asked where it is."""
    every = itertools.product(*(range(n) for n in x.shape))
    first = [x[index].data_ptr() for index in every]
    return {address + i for address in first for i in range(x.element_size())}


def _compare(overlaps, setup, *pairs, results_only=False):
    """Compares for each pair of expressions among the names that `setup` makes, in both orders."""
    t = expect.given(setup)
    cases = []
    for a, b in pairs:
        x, y = t.call(a), t.call(b)
        wanted = not _bytes(x).isdisjoint(_bytes(y))
        cases += [((a, b, x, y), wanted), ((b, a, y, x), wanted)]
    _judge(overlaps, setup, cases, results_only)
    return t.x


def _judge(overlaps, setup, cases, results_only=False):
    """Compares in all cases. A write to one of the two ends it: then what came is a matter of how it was
    written."""

    def watched(a, b, x, y):
        versions = x._version, y._version
        try:
            return overlaps(x, y)
        finally:
            if not results_only and (x._version, y._version) != versions:
                evidence.record("written", True)
                many_cases.show_call(setup, f"overlaps({a}, {b})", None)
                raise expect.Mismatch(
                    "one of the two was written to while your function ran",
                    "expected: both are only looked at",
                )

    def verdict(came, case):
        return many_cases.RIGHT if came is case[1] else str(came)[0] if isinstance(came, (bool, str)) else "n"

    def explain(came, error, case):
        (_, _, x, y), wanted = case
        if error is not None:
            return []
        lines = [f"the result is {expect.show(came)}, expected `{wanted}`"]
        if not isinstance(came, bool):
            lines.append(f"its type is {type(came).__name__}, expected a bool of Python's")
        return lines + _where(x, y)

    def call(case):
        return f"overlaps({case[0][0]}, {case[0][1]})"

    many_cases.compare(watched, cases, verdict, explain, call=call, setup=setup)


def _where(a, b):
    """What the two read, for a message: bytes, counted from the beginning of their storage."""
    begin = a.untyped_storage().data_ptr()
    if begin != b.untyped_storage().data_ptr():
        return ["each has a storage of its own"]
    return [
        f"the {which} reads bytes {_runs(x, begin)} of the storage" if x.numel() else f"the {which} is empty"
        for which, x in (("first", a), ("second", b))
    ]


def _runs(x, begin):
    """`0–3, 8–11` for the bytes that the elements of `x` take up."""
    found = sorted(address - begin for address in _bytes(x))
    starts = [byte for byte in found if byte - 1 not in found]
    ends = [byte for byte in found if byte + 1 not in found]
    runs = [f"{s}–{e}" if e > s else f"{s}" for s, e in zip(starts, ends, strict=True)]
    return ", ".join(runs if len(runs) <= 6 else [*runs[:5], "…"])


# The smallest storage in which views can meet in every way: of two dtypes, in one and two dimensions.
_STORAGE = "x = torch.arange(1, 13, dtype=torch.int32)"


@functools.cache
def _every_pair():
    """((code, code, tensor, tensor), whether they overlap) for every pair of some views of one storage."""
    codes = [
        f"x.as_strided(({n},), ({step},), {offset})"
        for n, step, offset in itertools.product((1, 2, 3), (1, 2, 3), (0, 1, 2, 5))
        if n > 1 or step == 1
    ]
    codes += [
        f"x.as_strided((2, {n}), {steps}, {offset})"
        for n, steps, offset in itertools.product((2, 3), ((4, 1), (1, 4), (3, 2), (0, 1), (1, 1)), (0, 2))
    ]
    codes += [
        f"x.view(torch.int16).as_strided(({n},), ({step},), {offset})"
        for n, step, offset in itertools.product((1, 3), (2, 5), (1, 4, 7))
    ]
    codes += ["x[4:4]", "x.view(torch.uint8)[5:23:6]", "x[0]", "x[3:].view(1, 9).expand(2, 9)"]
    x = expect.given(_STORAGE).x
    views = [(code, eval(code, {"x": x, "torch": torch})) for code in codes]
    places = [_bytes(view) for _, view in views]
    pairs = itertools.product(zip(views, places, strict=True), repeat=2)
    cases = [((a, b, v, w), not p.isdisjoint(q)) for ((a, v), p), ((b, w), q) in pairs]
    return sorted(cases, key=lambda case: case[0][2].numel() + case[0][3].numel())


# --- the checks ---------------------------------------------------------------------------------------------


@exercise.check
def itself_and_a_copy(overlaps):
    """A tensor shares its elements with itself, not with a copy"""
    pairs = [("x", "x"), ("x", "x.view(2, 3)"), ("x", "x.clone()"), ("x", "torch.arange(6)")]
    _compare(overlaps, "x = torch.arange(6)", *pairs, results_only=True)


@exercise.check
def one_after_the_other(overlaps):
    """Parts that meet, and parts that only touch"""
    setup = "x = torch.arange(10)"
    _compare(overlaps, setup, ("x[:4]", "x[3:]"), ("x[:4]", "x[4:]"), ("x", "x[7:8]"))
    _compare(overlaps, "x = torch.arange(12).reshape(3, 4)", ("x[:2]", "x[2:]"), ("x[:2]", "x[1]"))


@exercise.check
def interleaved(overlaps):
    """Views that step past each other's elements"""
    pairs = [("x[::2]", "x[1::2]"), ("x[::2]", "x[1::3]"), ("x[::4]", "x[1::2]"), ("x[2::6]", "x[::4]")]
    _compare(overlaps, "x = torch.arange(12)", *pairs)
    pairs = [("x[:, 0]", "x[:, 1]"), ("x[:, :2]", "x[:, 2:]"), ("x[:, 1]", "x[2]"), ("x[0]", "x.t()[0]")]
    _compare(overlaps, "x = torch.arange(12).reshape(3, 4)", *pairs, ("x[:2, :2]", "x[1:, 2:]"))


@exercise.check
def expanded(overlaps):
    """Expanded and overlapping views, numbers without a dimension"""
    pairs = [("x[0].expand(3, 4)", "x[0]"), ("x[0].expand(3, 4)", "x[1]"), ("x[1, 2]", "x[1, :3]")]
    pairs += [("x[1, 2]", "x[1, 2]"), ("x[1, 2]", "x[1, 3]"), ("x[0].unfold(0, 2, 1)", "x[0, 3]")]
    _compare(overlaps, "x = torch.arange(12).reshape(3, 4)", *pairs)


@exercise.check
def other_widths(overlaps):
    """Elements of other sizes, and of different sizes"""
    for dtype in (torch.uint8, torch.float64):
        pairs = [("x[:4]", "x[3:]"), ("x[:4]", "x[4:]"), ("x[::2]", "x[1::2]")]
        _compare(overlaps, f"x = torch.arange(8, dtype={dtype})", *pairs)
    pairs = [("x[:2]", "y[3:]"), ("x[:2]", "y[4:]"), ("x[2:]", "y[2:4]"), ("x[2]", "y[5]"), ("x[1]", "z[6]")]
    pairs += [("x[::2]", "y[2:4]"), ("x[::2]", "z[7::8]"), ("y[1::2]", "z[::4]"), ("y[1::2]", "z[3::4]")]
    setup = "x = torch.arange(4, dtype=torch.int32)\ny, z = x.view(torch.int16), x.view(torch.uint8)"
    _compare(overlaps, setup, *pairs)


@exercise.check
def nothing_in_common(overlaps):
    """Empty views, and storages of their own"""
    pairs = [("x[3:3]", "x"), ("x[3:3]", "x[3:3]"), ("x[:0]", "x[:0]"), ("x[2:4].view(2, 1)[:, :0]", "x")]
    pairs += [
        ("torch.zeros(0)", "torch.zeros(0)"),
        ("torch.zeros(0, 2)", "x"),
        ("x[:1].expand(0, 1)", "x[:1]"),
    ]
    pairs += [("x[2:]", "torch.arange(6)[2:]"), ("x[::2]", "x.clone()[::2]")]
    _compare(overlaps, "x = torch.arange(6)", *pairs)


@exercise.check
def left_alone(overlaps, device):
    """Both tensors stay as they are, on every device"""
    for options in ("dtype=torch.int16", "requires_grad=True"):
        setup = f"x = torch.tensor([1., 2., 3., 4., 5., 6.], device='{device.type}', {options})"
        x = _compare(overlaps, setup, ("x[:4]", "x[3:]"), ("x[1::2]", "x[::2]"))
        wanted = torch.arange(1, 7, dtype=x.dtype, device=device)
        with expect.situation(setup, "overlaps(x[1::2], x[::2])"):
            expect.unchanged(x.detach(), wanted, what="`x`")


@exercise.check
def every_pair(overlaps):
    """Every pair of small views agrees with the addresses of their elements"""
    _judge(overlaps, _STORAGE, _every_pair())


# --- the mistakes -------------------------------------------------------------------------------------------


def _addresses(x, start, step_bytes, width):
    """The places `start + sum(i * stride) * step_bytes`, each `width` long."""
    found = set(range(start, start + width))
    for n, step in zip(x.shape, x.stride(), strict=True):
        found = {place + i * step * step_bytes for place in found for i in range(n)}
    return found


@exercise.mistake
def compares_data_ptr(a, b):
    """You compare where the two tensors begin. `x[:4]` and `x[3:]` begin at different addresses and both hold
    `x[3]`. All elements count, not only the first."""
    return a.data_ptr() == b.data_ptr()


@compares_data_ptr.variant
def one_address(a, b):
    return len({x.data_ptr() for x in (a, b)}) == 1


@exercise.mistake
def same_storage_is_enough(a, b):
    """You answer whether the two read the same storage. They may read different parts of it, as `x[:4]` and
    `x[4:]` do."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@same_storage_is_enough.variant
def storages_begin_together(a, b):
    starts = [x.untyped_storage().data_ptr() for x in (a, b)]
    return not starts[1] - starts[0]


@exercise.mistake
def compares_ranges(a, b):
    """You compare two ranges of memory, from the first element to the last. A view with a stride steps past
    what lies in between: `x[::2]` and `x[1::2]` have ranges that cross and no element in common."""
    ends = []
    for x in (a, b):
        if x.numel() == 0:
            return False
        last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
        ends.append((x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()))
    (start, end), (other_start, other_end) = ends
    return start < other_end and other_start < end


@compares_ranges.variant
def ranges_in_the_storage(a, b):
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata or 0 in (a.numel(), b.numel()):
        return False

    def extent(x):
        width, first = x.element_size(), x.storage_offset()
        last = first
        for dim in range(x.dim()):
            last += (x.size(dim) - 1) * x.stride(dim)
        return range(first * width, (last + 1) * width)

    p, q = extent(a), extent(b)
    return max(p.start, q.start) < min(p.stop, q.stop)


@exercise.mistake
def assumes_contiguous(a, b):
    """You count the elements and take it that they lie side by side, from the first on. The elements of
    `x[::2]` reach twice as far, and leave out every second."""
    return a.data_ptr() < b.data_ptr() + b.nbytes and b.data_ptr() < a.data_ptr() + a.nbytes


@assumes_contiguous.variant
def side_by_side(a, b):
    p, q = (range(x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()) for x in (a, b))
    return any(byte in q for byte in p)


@exercise.mistake
def forgets_item_size(a, b):
    """You add strides to addresses as they are. `data_ptr()` counts bytes and a stride counts elements: one
    step is `x.element_size()` bytes for each element that it passes."""
    p, q = (_addresses(x, x.data_ptr(), 1, 1) for x in (a, b))
    return not p.isdisjoint(q)


@forgets_item_size.variant
def elements_added_to_bytes(a, b):
    def places(x):
        for index in itertools.product(*map(range, x.shape)):
            yield x.data_ptr() + sum(i * step for i, step in zip(index, x.stride(), strict=True))

    return bool(set(places(a)) & set(places(b)))


@exercise.mistake
def counts_in_elements(a, b):
    """You compare places in the storage counted in elements. That is right as long as both tensors have
    elements of one size: element 2 of a 16-bit view begins at byte 4, where the 32-bit one has element 1."""
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    p, q = (_addresses(x, x.storage_offset(), 1, 1) for x in (a, b))
    return not p.isdisjoint(q)


@counts_in_elements.variant
def numbers_the_elements(a, b):
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return False
    last = max(a.untyped_storage().nbytes(), 1)
    number = torch.arange(last)
    p, q = (number.as_strided(x.size(), x.stride(), x.storage_offset()).reshape(-1) for x in (a, b))
    return bool(torch.isin(p, q).any())


@exercise.mistake
def first_byte_only(a, b):
    """You compare the addresses where elements begin. An element goes on for `element_size()` bytes, and a
    view of another dtype may begin in the middle of it."""
    p, q = (_addresses(x, x.data_ptr(), x.element_size(), 1) for x in (a, b))
    return not p.isdisjoint(q)


@first_byte_only.variant
def where_each_begins(a, b):
    begin = [
        {x[index].data_ptr() for index in itertools.product(*(range(n) for n in x.shape))} for x in (a, b)
    ]
    return len(begin[0] & begin[1]) > 0


@exercise.mistake
def forgets_the_storage(a, b):
    """You compare places counted from the beginning of a storage, and not which storage. Two tensors with a
    storage each share nothing, whatever their offsets."""
    p, q = (
        _addresses(x, x.storage_offset() * x.element_size(), x.element_size(), x.element_size())
        for x in (a, b)
    )
    return not p.isdisjoint(q)


@exercise.mistake
def empty_counts_as_one(a, b):
    """A dimension of size 0 still has one step in your count. A tensor without elements reads no place at
    all, wherever its offset points."""
    found = []
    for x in (a, b):
        width = x.element_size()
        start = x.untyped_storage().data_ptr() + x.storage_offset() * width
        places = set(range(start, start + width))
        for n, step in zip(x.shape, x.stride(), strict=True):
            places = {place + i * step * width for place in places for i in range(max(n, 1))}
        found.append(places)
    return not found[0].isdisjoint(found[1])


@exercise.mistake
def one_step_too_far(a, b):
    """You go one step too far along each dimension: a dimension of size `n` has `n` places, and `n - 1`
    steps between them. Your `x[:4]` reaches into `x[4:]`."""
    found = []
    for x in (a, b):
        width = x.element_size()
        places = set(range(x.data_ptr(), x.data_ptr() + width)) if x.numel() else set()
        for n, step in zip(x.shape, x.stride(), strict=True):
            places = {place + i * step * width for place in places for i in range(n + 1)}
        found.append(places)
    return not found[0].isdisjoint(found[1])


@exercise.mistake
def compares_values(a, b):
    """You compare what the elements hold. Two places can hold the same number; the question is whether it is
    one place."""
    return (a.reshape(-1, 1) == b.reshape(-1)).any().item()


@compares_values.variant
def looks_for_equal_numbers(a, b):
    numbers = b.flatten().tolist()
    return any(number in numbers for number in a.flatten().tolist())


@exercise.mistake
def writes_to_find_out(a, b):
    """You write to `a` and look whether `b` changes. Then `a` has been written to, which its owner may notice
    (autograd does), and torch refuses where it can see that several elements are one place."""
    before = b.detach().clone()
    with torch.no_grad():
        a.add_(1)
        shows = not torch.equal(before, b)
        a.sub_(1)
    return shows


@writes_to_find_out.variant
def writes_and_restores(a, b):
    kept, seen = a.clone(), b.clone()
    a.add_(1)
    changed = bool((b != seen).any())
    a.copy_(kept)
    return changed


@writes_to_find_out.variant
def fills_one_of_them(a, b):
    if a.numel() and b.numel():
        saved, other = a.detach().clone(), b.tolist()
        a.detach().fill_(99)
        found = b.tolist() != other
        a.detach().copy_(saved)
        return found
    return False
