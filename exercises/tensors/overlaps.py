"""Do two tensors share an element?

Return `True` when a write to an element of `a` could show in `b`: when at least one byte of memory belongs
to an element of both. Return `False` otherwise.

`a` and `b` are on one device, of any dtype (`torch.bfloat16` too, which NumPy has not), and may require a
gradient. They are views of one storage, with any shape, strides and offset, or their storages lie in
different memory. Views of one storage may differ in dtype: `x.view(torch.int16)` reads the memory of a
`torch.int32` tensor two bytes at a time. What a view steps past does not belong to it. A tensor without
elements shares nothing.

Both stay as they are: nothing is written to them, not even for a moment, and their sizes are not changed in
place. They are small, and you may look at each of their elements.

With `x = torch.arange(6)`, `overlaps(x[:4], x[3:])` is `True` and `overlaps(x[::2], x[1::2])` is `False`
"""

import collections
import ctypes
import functools
import itertools
import math

import numpy as np
import torch
from torch import Tensor

from course_utils import evidence, expect, many_cases
from course_utils.exercise import Exercise
from course_utils.measure import modes
from course_utils.measure.storage import tensors_in

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


# --- that both stay as they are -----------------------------------------------------------------------------


class _Watch(modes.Watch):
    """Stops an operator that would write to the memory of one of the two, or give one of them another size.

    It comes before the write, so what the answer does next is no evidence. All that operators make is kept
    until the next call: memory that was given back could be given out again, and then the addresses in two
    copies would be the same or not, as it happens.
    """

    def __init__(self):
        super().__init__()
        self.stopped = None
        self.begin(())

    def begin(self, pair):
        self.kept, self.pair = collections.deque(maxlen=10_000), pair
        self.storages = {x.untyped_storage().data_ptr() for x in pair if x.numel()}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for x in _changed_by(func, args, kwargs or {}) if func._schema.is_mutable else ():
            if torch.Tag.inplace_view in func.tags:
                if any(x is one for one in self.pair):
                    self._stop("size", modes.packet(func), "change the size or the strides")
            elif x.numel() and x.untyped_storage().data_ptr() in self.storages:
                self._stop("elements", modes.packet(func), "write to the memory")
        out = func(*args, **(kwargs or {}))
        self.kept.append(out)
        return out

    def _stop(self, what, operator, does):
        name = operator.removeprefix("aten.")
        self.stopped = what, f"torch's operator `{name}` was about to {does} of one of the two"
        raise _refused(*self.stopped)


def _changed_by(func, args, kwargs):
    """The tensors that an operator changes."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[number] if number < len(args) else kwargs.get(argument.name)
            yield from tensors_in(given)


def _refused(what, line):
    evidence.record("written", what)
    return expect.Mismatch(line, "expected: both are only looked at")


def _state(x):
    """What an answer could change without an operator of torch's that writes."""
    return x.data_ptr(), x.dtype, x.shape, x.stride(), x.requires_grad


def _read(x):
    """What the storage holds. Beside torch's operators only what reaches main memory can change it."""
    storage = x.untyped_storage()
    return ctypes.string_at(storage.data_ptr(), storage.nbytes()) if x.device.type == "cpu" else b""


def _compare(overlaps, setup, *pairs, watched=True):
    """Compares for each pair of expressions among the names that `setup` makes, in both orders, each with
    tensors of its own."""
    cases = []
    for first, second in pairs:
        for a, b in ((first, second), (second, first)):
            t = expect.given(setup)
            x, y = t.call(a), t.call(b)
            cases.append(((a, b, x, y), not _bytes(x).isdisjoint(_bytes(y))))
    _judge(overlaps, setup, cases, watched=watched)


def _judge(overlaps, setup, cases, *, watched=True, contents=True):
    """Compares in all cases. A change to one of the two ends it: then what came is a matter of how it was
    written. `contents`: what they hold is compared before and after each call."""
    watch = _Watch()

    def called(a, b, x, y):
        # Where nothing is refused, the watch only keeps what operators make.
        watch.begin((x, y) if watched else ())
        before = _state(x), _state(y)
        held = (_read(x), _read(y)) if watched and contents else None
        came = None
        try:
            with evidence.silent():
                came = overlaps(x, y)
        except Exception:
            if watch.stopped is None:
                raise
        changed = watch.stopped
        if watched and changed is None and (_state(x), _state(y)) != before:
            changed = "size", "one of the two was changed in place: it reads its memory in another way now"
        if held is not None and changed is None and (_read(x), _read(y)) != held:
            changed = "elements", "one of the two was written to while your function ran"
        if changed is not None:
            many_cases.show_call(setup, f"overlaps({a}, {b})", None)
            raise _refused(*changed)
        return came

    def verdict(came, case):
        if not isinstance(came, (bool, np.bool_)):
            return "n"
        return many_cases.RIGHT if came == case[1] else str(bool(came))[0]

    def explain(came, error, case):
        (_, _, x, y), wanted = case
        if error is not None:
            said = str(error).partition(". ")[0]  # what follows is about other causes
            if not isinstance(error, RuntimeError) or "in-place" not in said:
                return []
            return [f"torch refuses to change one of the two: `{said}`", "expected: both are only looked at"]
        if not isinstance(came, (bool, np.bool_)):
            # Its value is left out: a set of addresses is another on every run.
            kind = "None (is a `return` missing?)" if came is None else f"of type {type(came).__name__}"
            return [f"the result is {kind}, expected a bool, here `{wanted}`"]
        return [f"the result is `{bool(came)}`, expected `{wanted}`", *_where(x, y)]

    def call(case):
        return f"overlaps({case[0][0]}, {case[0][1]})"

    with watch:
        many_cases.compare(called, cases, verdict, explain, call=call, setup=setup)


def _where(a, b):
    """What the two read, for a message: bytes, counted from the beginning of their storage."""
    begin = a.untyped_storage().data_ptr()
    apart = begin != b.untyped_storage().data_ptr()
    lines = ["each has a storage of its own"] if apart else []
    for which, x in (("first", a), ("second", b)):
        if not x.numel():
            lines.append(f"the {which} is empty")
        elif not apart:
            places = f"bytes {_runs(x, begin)} of the storage"
            lines.append(f"the {which} reads {places}, {x.element_size()} for each element")
    return lines


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
    """The storage, and ((code, code, tensor, tensor), whether they overlap) for every pair of some views of
    it. Each pair comes once, in the one or the other order."""
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
    views = [(code, view, _bytes(view)) for code, view in views]
    cases = []
    for number, ((a, v, p), (b, w, q)) in enumerate(itertools.combinations_with_replacement(views, 2)):
        both = (a, b, v, w) if number % 2 else (b, a, w, v)
        cases.append((both, not p.isdisjoint(q)))
    return x, sorted(cases, key=lambda case: case[0][2].numel() + case[0][3].numel())


# --- the checks ---------------------------------------------------------------------------------------------


@exercise.check
def itself_and_a_copy(overlaps):
    """A tensor shares its elements with itself, not with a copy"""
    pairs = [("x", "x"), ("x", "x.view(2, 3)"), ("x", "x.clone()"), ("x", "torch.arange(6)")]
    _compare(overlaps, "x = torch.arange(6)", *pairs, watched=False)


@exercise.check
def one_after_the_other(overlaps):
    """Parts that meet, and parts that only touch"""
    pairs = [("x[:4]", "x[3:]"), ("x[:4]", "x[4:]"), ("x", "x[7:8]"), ("m[:2]", "m[2:]"), ("m[:2]", "m[1]")]
    _compare(overlaps, "x = torch.arange(12)\nm = x.view(3, 4)", *pairs)


@exercise.check
def interleaved(overlaps):
    """Views that step past each other's elements"""
    pairs = [("x[::2]", "x[1::2]"), ("x[::2]", "x[1::3]"), ("x[::4]", "x[1::2]"), ("x[2::6]", "x[::4]")]
    pairs += [("m[:, 0]", "m[:, 1]"), ("m[:, :2]", "m[:, 2:]"), ("m[:, 1]", "m[2]"), ("m[0]", "m.t()[0]")]
    pairs += [("m[:2, :2]", "m[1:, 2:]"), ("m[:2, 1:3]", "m.t()[2:, 1:]")]
    _compare(overlaps, "x = torch.arange(12)\nm = x.view(3, 4)", *pairs)


@exercise.check
def expanded(overlaps):
    """Expanded and overlapping views, numbers without a dimension"""
    pairs = [("x[0].expand(3, 4)", "x[0]"), ("x[0].expand(3, 4)", "x[1]"), ("x[1, 2]", "x[1, :3]")]
    pairs += [("x[1, 2]", "x[1, 2]"), ("x[1, 2]", "x[1, 3]"), ("x[0].unfold(0, 2, 1)", "x[0, 3]")]
    _compare(overlaps, "x = torch.arange(12).reshape(3, 4)", *pairs)


@exercise.check
def other_widths(overlaps):
    """Elements of other sizes, and of different sizes"""
    pairs = [("z[:4]", "z[3:6]"), ("z[:4]", "z[4:8]"), ("z[::2]", "z[1::2]"), ("y[:4]", "y[4:]")]
    pairs += [("x[:2]", "y[3:]"), ("x[:2]", "y[4:]"), ("x[2:]", "y[2:4]"), ("x[2]", "y[5]"), ("x[1]", "z[6]")]
    pairs += [("x[::2]", "y[2:4]"), ("x[::2]", "z[7::8]"), ("y[1::2]", "z[::4]"), ("y[1::2]", "z[3::4]")]
    setup = "x = torch.arange(4, dtype=torch.int32)\ny, z = x.view(torch.int16), x.view(torch.uint8)"
    _compare(overlaps, setup, *pairs)


@exercise.check
def without_elements(overlaps):
    """A tensor without elements shares nothing"""
    pairs = [("x[3:3]", "x"), ("x[3:3]", "x[3:3]"), ("x[:0]", "x[:0]"), ("x[2:4].view(2, 1)[:, :0]", "x")]
    pairs += [
        ("torch.zeros(0)", "torch.zeros(0)"),
        ("torch.zeros(0, 2)", "x"),
        ("x[:1].expand(0, 1)", "x[:1]"),
    ]
    _compare(overlaps, "x = torch.arange(6)", *pairs)


@exercise.check
def other_memory(overlaps):
    """Nor do tensors in different memory, with whatever offset and strides"""
    pairs = [("x[2:]", "y[2:]"), ("x[::2]", "y[::2]"), ("x[4]", "y.view(2, 3)[:, 1]"), ("x[1::2]", "y[2]")]
    _compare(overlaps, "x, y = torch.arange(6), torch.full((6,), 9)", *pairs)


@exercise.check
def any_dtype(overlaps, device):
    """Every dtype, with a gradient and without, on every device"""
    where = f"device='{device.type}'"
    setup = [f"x = torch.zeros(6, dtype=torch.bfloat16, {where})"]
    setup += [f"y = torch.arange(6., requires_grad=True, {where})"]
    pairs = [("x[:4]", "x[3:]"), ("x[1::2]", "x[::2]"), ("y[:4]", "y[3:]"), ("y[1::2]", "y[::2]")]
    _compare(overlaps, "\n".join(setup), *pairs, ("y[:4]", "y.data[3:]"))


@exercise.check
def every_pair(overlaps):
    """Every pair of small views agrees with the addresses of their elements"""
    x, cases = _every_pair()
    before = x.clone()
    try:
        _judge(overlaps, _STORAGE, cases, contents=False)
        if not torch.equal(x, before):
            raise _refused("elements", "`x` was written to while your function ran")
    except BaseException:
        _every_pair.cache_clear()  # the tensors may not be what they were
        raise


# --- the mistakes -------------------------------------------------------------------------------------------


def _steps(found, x, step_bytes, dims=None):
    """All that is in `found` again for each step along the dimensions of `x`."""
    for dim in range(x.dim()) if dims is None else dims:
        found = {place + i * x.stride(dim) * step_bytes for place in found for i in range(x.size(dim))}
    return found


def _addresses(x, start, step_bytes, width):
    """The places `start + sum(i * stride) * step_bytes`, each `width` long."""
    return _steps(set(range(start, start + width)), x, step_bytes)


def _exact(a, b):
    """The right answer, for mistakes that go wrong before they come to it."""
    p, q = (_addresses(x, x.data_ptr(), x.element_size(), x.element_size()) for x in (a, b))
    return not p.isdisjoint(q)


def _same_storage(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _last(x):
    """How far the last element is from the first, in elements."""
    return sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))


def _some_empty(a, b):
    return a.numel() == 0 or b.numel() == 0


@exercise.mistake
def compares_data_ptr(a, b):
    """You compare where the two tensors begin. `x[:4]` and `x[3:]` begin at different addresses and both hold
    `x[3]`. All elements count, not only the first."""
    return a.data_ptr() == b.data_ptr()


@compares_data_ptr.variant
def one_address(a, b):
    return len({x.data_ptr() for x in (a, b)}) == 1


@compares_data_ptr.form
def one_address_unless_empty(a, b):
    return not _some_empty(a, b) and a.data_ptr() == b.data_ptr()


@compares_data_ptr.form
def one_offset(a, b):
    return _same_storage(a, b) and a.storage_offset() == b.storage_offset()


@exercise.mistake
def same_view(a, b):
    """Your answer is whether the two are the same view: one beginning, one size, one stride. Different views
    may hold one element, as `x[:4]` and `x[3:]` do."""
    return a.is_set_to(b)


@same_view.form
def same_address_and_strides(a, b):
    return (a.data_ptr(), a.shape, a.stride()) == (b.data_ptr(), b.shape, b.stride())


@exercise.mistake
def same_storage_is_enough(a, b):
    """Your answer is whether the two read the same storage. They may read different parts of it, as `x[:4]`
    and `x[4:]` do: their offsets, sizes and strides say which."""
    return _same_storage(a, b)


@same_storage_is_enough.variant
def storages_begin_together(a, b):
    starts = [x.untyped_storage().data_ptr() for x in (a, b)]
    return not starts[1] - starts[0]


@same_storage_is_enough.form
def one_storage_unless_empty(a, b):
    return not _some_empty(a, b) and _same_storage(a, b)


@same_storage_is_enough.variant
def begins_with_the_storage(a, b):
    p, q = (_addresses(x, x.untyped_storage().data_ptr(), x.element_size(), x.element_size()) for x in (a, b))
    return not p.isdisjoint(q)


@same_storage_is_enough.form
def one_storage_by_its_handle(a, b):
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


@exercise.mistake
def same_base(a, b):
    """You compare what the two are views of, their `_base`. Two views of one tensor may read different parts
    of it, as `x[:4]` and `x[4:]` do, and `x.data` reads the memory of `x` without having it as its base."""
    bases = [x if x._base is None else x._base for x in (a, b)]
    return bases[0] is bases[1]


@same_base.variant
def one_origin(a, b):
    def origin(x):
        return id(x._base) if x._is_view() else id(x)

    return origin(a) == origin(b)


@same_base.form
def one_base_unless_empty(a, b):
    return not _some_empty(a, b) and same_base.answer(a, b)


@same_base.form
def both_have_one_base(a, b):
    return a._base is not None and a._base is b._base


@same_base.form
def one_base_or_one_address(a, b):
    return a.data_ptr() == b.data_ptr() or both_have_one_base(a, b)


@exercise.mistake
def compares_ranges(a, b):
    """You compare two ranges of memory, from the first element to the last. A view with a stride steps past
    what lies in between: `x[::2]` and `x[1::2]` have ranges that cross and no element in common."""
    if _some_empty(a, b):
        return False
    ends = [(x.data_ptr(), x.data_ptr() + (_last(x) + 1) * x.element_size()) for x in (a, b)]
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


@compares_ranges.form
def ranges_in_elements(a, b):
    if _some_empty(a, b) or not _same_storage(a, b):
        return False
    start, other_start = a.storage_offset(), b.storage_offset()
    return start <= other_start + _last(b) and other_start <= start + _last(a)


@compares_ranges.form
def ranges_of_first_bytes(a, b):
    if _some_empty(a, b):
        return False
    ends = [(x.data_ptr(), x.data_ptr() + _last(x) * x.element_size()) for x in (a, b)]
    return ends[0][0] <= ends[1][1] and ends[1][0] <= ends[0][1]


@compares_ranges.form
def ranges_by_numpy(a, b):
    return bool(np.may_share_memory(*(x.detach().cpu().numpy() for x in (a, b))))


@exercise.mistake
def touching_is_enough(a, b):
    """You take one byte too many at the end, so two parts that only touch overlap for you. An element that
    begins at `start` has `element_size()` bytes: the one at `start + element_size()` is no longer its own."""
    p, q = (_addresses(x, x.data_ptr(), x.element_size(), x.element_size() + 1) for x in (a, b))
    return not p.isdisjoint(q)


@touching_is_enough.variant
def intervals_with_both_ends(a, b):
    def starts(x):
        return [
            x.data_ptr() + sum(map(math.prod, zip(index, x.stride(), strict=True))) * x.element_size()
            for index in itertools.product(*map(range, x.shape))
        ]

    pairs = itertools.product(starts(a), starts(b))
    return any(p <= q <= p + a.element_size() or q <= p <= q + b.element_size() for p, q in pairs)


@touching_is_enough.form
def ranges_that_touch(a, b):
    if _some_empty(a, b):
        return False
    ends = [(x.data_ptr(), x.data_ptr() + (_last(x) + 1) * x.element_size()) for x in (a, b)]
    return ends[0][0] <= ends[1][1] and ends[1][0] <= ends[0][1]


@exercise.mistake
def leaves_out_the_end(a, b):
    """You leave out the end: the last byte of each element, or the last element. The last byte of an element
    is at `start + element_size() - 1`, and a range from `start` has to reach one further to contain it."""
    p, q = (_addresses(x, x.data_ptr(), x.element_size(), x.element_size() - 1) for x in (a, b))
    return not p.isdisjoint(q)


@leaves_out_the_end.form
def ranges_without_the_last(a, b):
    if _some_empty(a, b):
        return False
    ends = [(x.data_ptr(), x.data_ptr() + _last(x) * x.element_size()) for x in (a, b)]
    return ends[0][0] < ends[1][1] and ends[1][0] < ends[0][1]


@exercise.mistake
def assumes_contiguous(a, b):
    """You count the elements and take it that they lie side by side. The elements of `x[::2]` reach twice as
    far, and leave out every second."""
    return a.data_ptr() < b.data_ptr() + b.nbytes and b.data_ptr() < a.data_ptr() + a.nbytes


@assumes_contiguous.variant
def side_by_side(a, b):
    p, q = (range(x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()) for x in (a, b))
    return any(byte in q for byte in p)


@assumes_contiguous.form
def side_by_side_in_elements(a, b):
    if _some_empty(a, b) or not _same_storage(a, b):
        return False
    start, other_start = a.storage_offset(), b.storage_offset()
    return start < other_start + b.numel() and other_start < start + a.numel()


@assumes_contiguous.form
def begins_within_so_many(a, b):
    return abs(a.data_ptr() - b.data_ptr()) < a.nbytes


@assumes_contiguous.form
def rows_side_by_side(a, b):
    def row(x):
        return set(range(x.data_ptr(), x.data_ptr() + (x.size(-1) if x.dim() else 1) * x.element_size()))

    p, q = (_steps(row(x), x, x.element_size(), range(x.dim() - 1)) if x.numel() else set() for x in (a, b))
    return not p.isdisjoint(q)


@assumes_contiguous.form
def so_many_side_by_side(a, b):
    p, q = ({x.data_ptr() for x in y.as_strided((y.numel(),), (1,))} for y in (a, b))
    return bool(p & q)


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


@forgets_item_size.form
def steps_of_bytes(a, b):
    p, q = (_addresses(x, x.data_ptr(), 1, x.element_size()) for x in (a, b))
    return not p.isdisjoint(q)


@exercise.mistake
def counts_in_elements(a, b):
    """You compare places in the storage counted in elements. That is right as long as both tensors have
    elements of one size: element 2 of a 16-bit view begins at byte 4, where the 32-bit one has element 1."""
    if not _same_storage(a, b):
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
def elements_of_any_storage(a, b):
    """You compare places counted in elements, from the beginning of a storage. Every storage has a place 0,
    so tensors that share nothing overlap for you; and in a view of another dtype the same count is another
    byte. An address in bytes, from `data_ptr()` on, is right in both cases."""
    p, q = (_addresses(x, x.storage_offset(), 1, 1) for x in (a, b))
    return not p.isdisjoint(q)


@elements_of_any_storage.variant
def lists_of_places(a, b):
    def places(x):
        found = [x.storage_offset()]
        for n, step in zip(x.size(), x.stride(), strict=True):
            found = [place + k * step for place in found for k in range(n)]
        return found

    return any(place in places(b) for place in places(a))


@exercise.mistake
def one_dimension_only(a, b):
    """You take steps along one dimension only. The elements of a matrix lie along two: for each row there is
    every column, and its place is the sum of both steps."""
    p, q = (
        _steps(
            set(range(x.data_ptr(), x.data_ptr() + x.element_size())), x, x.element_size(), range(x.dim())[:1]
        )
        for x in (a, b)
    )
    return not p.isdisjoint(q)


@one_dimension_only.form
def first_steps_in_elements(a, b):
    p, q = (_steps({x.storage_offset()}, x, 1, range(x.dim())[:1]) for x in (a, b))
    return _same_storage(a, b) and not p.isdisjoint(q)


@one_dimension_only.form
def first_steps_of_any_storage(a, b):
    p, q = ({x.storage_offset() + i * x.stride(0) for i in range(len(x))} for x in (a, b))
    return bool(p & q)


@one_dimension_only.form
def last_steps_in_elements(a, b):
    if not _same_storage(a, b):
        return False
    p, q = ({x.storage_offset() + i * x.stride(-1) for i in range(x.numel())} for x in (a, b))
    return bool(p & q)


@exercise.mistake
def one_size_for_both(a, b):
    """You reckon with one size of an element for both tensors. Each has its own, `a.element_size()` and
    `b.element_size()`; it decides how far a step goes, and how many bytes there are at each place."""
    p, q = (_addresses(x, x.data_ptr(), a.element_size(), a.element_size()) for x in (a, b))
    return not p.isdisjoint(q)


@one_size_for_both.form
def always_eight_bytes(a, b):
    p, q = (_addresses(x, x.data_ptr(), 8, 8) for x in (a, b))
    return not p.isdisjoint(q)


@one_size_for_both.form
def always_four_bytes(a, b):
    p, q = (_addresses(x, x.data_ptr(), 4, 4) for x in (a, b))
    return not p.isdisjoint(q)


@exercise.mistake
def rules_out_other_dtypes(a, b):
    """You rule out tensors of different dtypes. A view of another dtype reads the same memory, so they may
    share bytes; `to` is no way out, for what it makes is a copy somewhere else."""
    return a.dtype == b.dtype and _exact(a, b)


@rules_out_other_dtypes.variant
def converts_one_of_them(a, b):
    return _exact(a, b.to(a.dtype))


@rules_out_other_dtypes.form
def raises_for_other_dtypes(a, b):
    if a.dtype != b.dtype:
        raise TypeError("different dtypes")
    return _exact(a, b)


@exercise.mistake
def reads_in_another_dtype(a, b):
    """You read a tensor in another dtype with `view`. torch refuses where the last dimension has gaps, or is
    missing, or does not divide into such elements. An address in bytes is the same in every dtype."""
    return _exact(a, b.view(a.dtype))


@reads_in_another_dtype.variant
def reads_in_another_dtype_where_they_differ(a, b):
    if a.dtype != b.dtype:
        b = b.view(a.dtype)
    return _exact(a, b)


@reads_in_another_dtype.form
def reads_single_bytes(a, b):
    return _exact(a.view(torch.uint8), b.view(torch.uint8))


@exercise.mistake
def first_byte_only(a, b):
    """You miss an element that begins in the middle of another. An element goes on for `element_size()` bytes
    from where it begins, and a view of another dtype may begin inside."""
    p, q = (_addresses(x, x.data_ptr(), x.element_size(), 1) for x in (a, b))
    return not p.isdisjoint(q)


@first_byte_only.form
def begins_inside_the_first(a, b):
    p, q = (_addresses(x, x.data_ptr(), x.element_size(), n) for x, n in ((a, a.element_size()), (b, 1)))
    return not p.isdisjoint(q)


@first_byte_only.variant
def where_each_begins(a, b):
    begin = [
        {x[index].data_ptr() for index in itertools.product(*(range(n) for n in x.shape))} for x in (a, b)
    ]
    return len(begin[0] & begin[1]) > 0


@exercise.mistake
def forgets_the_storage(a, b):
    """You compare places counted from the beginning of a storage, and not which storage. Places with the same
    number in two storages are different memory."""
    p, q = (
        _addresses(x, x.storage_offset() * x.element_size(), x.element_size(), x.element_size())
        for x in (a, b)
    )
    return not p.isdisjoint(q)


@exercise.mistake
def counts_the_offset_twice(a, b):
    """You add the offset to `data_ptr()`. It is in there: `data_ptr()` is the address of the first element,
    `untyped_storage().data_ptr()` that of the storage."""
    p, q = (
        _addresses(
            x, x.data_ptr() + x.storage_offset() * x.element_size(), x.element_size(), x.element_size()
        )
        for x in (a, b)
    )
    return not p.isdisjoint(q)


@exercise.mistake
def empty_counts_as_one(a, b):
    """For you a tensor without elements can share something. It reads no place at all, wherever its offset
    points; `data_ptr()` is 0 for every such tensor, and a dimension of size 0 has no place to go through."""
    found = []
    for x in (a, b):
        width = x.element_size()
        start = x.untyped_storage().data_ptr() + x.storage_offset() * width
        places = set(range(start, start + width))
        for n, step in zip(x.shape, x.stride(), strict=True):
            places = {place + i * step * width for place in places for i in range(max(n, 1))}
        found.append(places)
    return not found[0].isdisjoint(found[1])


@empty_counts_as_one.form
def all_empty_ones_at_address_0(a, b):
    found = []
    for x in (a, b):
        width = x.element_size()
        places = set(range(x.data_ptr(), x.data_ptr() + width))
        for n, step in zip(x.shape, x.stride(), strict=True):
            places = {place + i * step * width for place in places for i in range(max(n, 1))}
        found.append(places)
    return not found[0].isdisjoint(found[1])


@empty_counts_as_one.form
def empty_shares_with_all(a, b):
    return _some_empty(a, b) or _exact(a, b)


@exercise.mistake
def decides_by_stride_0(a, b):
    """You decide by a stride of 0. Its dimension reads one place again and again: that place counts like any
    other, and a set holds it once."""
    return 0 not in a.stride() + b.stride() and _exact(a, b)


@decides_by_stride_0.variant
def expanded_has_no_memory(a, b):
    for x in (a, b):
        if not all(x.stride()):
            return False
    return _exact(a, b)


@decides_by_stride_0.form
def expanded_shares_with_all(a, b):
    return 0 in a.stride() + b.stride() or _exact(a, b)


@exercise.mistake
def no_dimension_no_place(a, b):
    """You go wrong where a tensor has no dimension. It has one element, at `data_ptr()` and
    `element_size()` bytes long, and the other tensor may hold it anywhere."""
    return a.dim() > 0 and b.dim() > 0 and _exact(a, b)


@no_dimension_no_place.form
def a_number_only_where_the_other_begins(a, b):
    return _exact(a, b) if a.dim() and b.dim() else a.data_ptr() == b.data_ptr()


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


@compares_values.form
def among_the_others(a, b):
    return bool(torch.isin(a, b).any())


@compares_values.form
def equal_as_a_whole(a, b):
    return torch.equal(a, b)


@compares_values.form
def equal_side_by_side(a, b):
    return a.shape == b.shape and bool((a == b).any())


@exercise.mistake
def compares_objects(a, b):
    """Your answer is `False` for two views that hold the same element. If you compare with `is` or `id`: each
    `x[i]` is a new object of Python's, and two objects can read one place. Compare where they read."""
    return any(p is q for p in a.flatten() for q in b.flatten())


@compares_objects.variant
def looks_for_the_object(a, b):
    known = {id(x): x for x in a.reshape(-1)}
    return any(id(x) in known for x in b.reshape(-1))


@compares_objects.form
def one_tensor(a, b):
    return a is b


@exercise.mistake
def addresses_in_a_copy(a, b):
    """Your answer is that of a copy: right where both tensors can be flattened as they are, and `False` where
    that takes a copy. `flatten`, `reshape` and `contiguous` copy what is laid out in another way, and the
    copy is at other addresses. Ask each element where it is, or use the strides."""
    return _exact(a.flatten(), b.flatten())


@addresses_in_a_copy.variant
def reshaped_first(a, b):
    p, q = ({x.data_ptr() + i for x in y.reshape(-1) for i in range(y.element_size())} for y in (a, b))
    return bool(p & q)


@addresses_in_a_copy.form
def first_bytes_in_a_copy(a, b):
    known = {x.data_ptr() for x in a.flatten()}
    return any(x.data_ptr() in known for x in b.flatten())


@addresses_in_a_copy.form
def contiguous_first(a, b):
    return _exact(a.contiguous(), b.contiguous())


@exercise.mistake
def asks_numpy(a, b):
    """You leave it to NumPy, which cannot take every tensor: it has no `torch.bfloat16`, and it cannot read
    the memory of a GPU. Addresses and strides can be asked of any of them."""
    return bool(np.shares_memory(*(x.detach().cpu().numpy() for x in (a, b))))


@asks_numpy.variant
def addresses_of_arrays(a, b):
    p, q = (np.asarray(x.detach().cpu()) for x in (a, b))
    return np.intersect1d(*(_of_array(array) for array in (p, q))).size > 0


def _of_array(array):
    found = np.array([array.__array_interface__["data"][0]])
    for n, step in zip(array.shape, array.strides, strict=True):
        found = np.add.outer(found, np.arange(n) * step)
    return np.add.outer(found, np.arange(array.itemsize)).ravel()


@asks_numpy.form
def asks_numpy_with_the_gradient(a, b):
    return bool(np.shares_memory(a.numpy(), b.numpy()))


@exercise.mistake
def writes_to_find_out(a, b):
    """Your function writes to the memory of one of the two, even where it puts everything back. Somebody may
    be reading there, and memory can be read-only, as a file that is mapped. Where the elements are says
    enough, and reading that changes nothing."""
    before = b.detach().clone()
    with torch.no_grad():
        a.add_(1)
        shows = not torch.equal(before, b)
        a.sub_(1)
    return shows


@writes_to_find_out.variant
def writes_and_restores(a, b):
    kept, seen = a.clone(), b.clone()
    a.data.add_(1)
    changed = bool((b != seen).any())
    a.data.copy_(kept)
    return changed


@writes_to_find_out.form
def fills_one_unless_empty(a, b):
    if a.numel() and b.numel():
        saved, other = a.detach().clone(), b.tolist()
        a.detach().fill_(99)
        found = b.tolist() != other
        a.detach().copy_(saved)
        return found
    return False


@writes_to_find_out.form
def writes_with_numpy(a, b):
    if _some_empty(a, b):
        return False
    p, q = (x.detach().numpy() for x in (a, b))
    p[...] = 0
    before = q.tobytes()
    p[...] = 255 if a.dtype == torch.uint8 else -1
    return before != q.tobytes()


@exercise.mistake
def changes_in_place(a, b):
    """You call an operator that is there to change a size or strides, on `a` or `b` itself: a trailing
    underscore, as in `unsqueeze_`, means that it is done to the tensor that you were handed. Without the
    underscore you get a view of your own."""
    a.unsqueeze_(-1)
    return _exact(a, b)


@changes_in_place.variant
def flattened_for_a_while(a, b):
    shapes = a.shape, b.shape
    a.unsqueeze_(0), b.unsqueeze_(0)
    result = _exact(a, b)
    a.squeeze_(0), b.squeeze_(0)
    assert (a.shape, b.shape) == shapes
    return result
