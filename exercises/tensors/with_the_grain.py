"""Scans with the grain

`scans` is a list of functions. Each of them takes a tensor with the shape of `x` and reads it in lines along
dimension `dim`, one element after the other. Call each of them once, and return the list of what they return,
in their order.

Memory is fetched in pieces of 64 bytes or more. A line whose elements lie side by side uses all of a piece;
one whose elements lie far apart fetches a piece for each. So see to it that each scan is given a tensor with
stride 1 along `dim`, and otherwise like `x`: the same shape, dtype and device, the same elements in their
places.

That may take a copy. There is to be one, for a single scan as for ten, with room for the elements of `x` and
no more; where `x` has stride 1 along `dim` already, nothing is to be copied. `x` and `scans` stay as they
are, and a gradient reaches `x`. What a scan raises goes through. No copy is kept for a later call: by then
`x` may hold something else. `dim` may be negative and then counts from the end. Any operator of torch's is
welcome.

There is at least one scan. `x` may be any view, and holds elements, more than one along `dim`: in an empty
tensor, or with size 1 along `dim`, no step is taken and any stride is right.

With `x = torch.zeros(3, 4)`, `with_the_grain(x, 0, [lambda t: t.stride()])` is `[(1, 3)]`, and with 1 in
place of 0 it is `[(4, 1)]`
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from course_utils import evidence, expect, many_cases, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=15,
    hints=[
        "Which dimension has stride 1 in a new, contiguous tensor? And what does a transpose do to the "
        "strides, and what to the elements?",
        "Shape and layout are two things. Turn the view so that `dim` comes last, have that laid out anew, "
        "and turn the result back: the shape is the old one, and the strides are not.",
        "`movedim` takes a dimension from one place to another without a copy, and `contiguous` copies where "
        "the strides ask for it. Look at the stride along `dim` first, and lay the elements out before the "
        "scans begin, not inside their loop.",
    ],
)


@exercise.starter
def with_the_grain(x: Tensor, dim: int, scans: list[Callable[[Tensor], Any]]) -> list[Any]:
    """What each scan returns, given the elements of `x` in a tensor with stride 1 along `dim`"""
    raise NotImplementedError


# Tensors and a dimension of each that runs against the grain, and with it.
_AGAINST = [
    ("x = torch.arange(12).reshape(3, 4)", 0),
    ("x = torch.arange(24).reshape(2, 3, 4)", 1),
    ("x = torch.arange(24).reshape(2, 3, 4)", 0),
    ("x = torch.arange(12).reshape(3, 4).t()", 1),
    ("x = torch.arange(48).reshape(2, 4, 2, 3).permute(0, 3, 1, 2)", 2),
    ("x = torch.arange(48).reshape(2, 4, 2, 3).permute(0, 3, 1, 2)", 3),
    ("x = torch.arange(30).reshape(5, 6)[1:4, 2:]", 0),
    ("x = torch.arange(24).reshape(3, 8)[:, ::2]", 1),
    ("x = torch.arange(4).expand(3, 4)", 0),
    ("x = torch.arange(12)[::2]", 0),
]
# Some are dense and some have gaps, some begin at the first element of their storage, one is no view.
_WITH = [
    ("x = torch.tensor([[0, 1, 2], [3, 4, 5]])", 1),
    ("x = torch.arange(12).reshape(3, 4).t()", 0),
    ("x = torch.arange(24).reshape(4, 6)[:, :4]", 1),
    ("x = torch.arange(24).reshape(4, 6)[1:, 1:]", 1),
    ("x = torch.arange(24).reshape(2, 3, 4).permute(1, 2, 0)", 1),
    ("x = torch.arange(24).reshape(2, 3, 4)[:, :, 1:3].transpose(1, 2)", 1),
    ("x = torch.arange(30).reshape(2, 3, 5)[:, :, :4].movedim(2, 0)", 0),
    ("x = torch.arange(12)[4:]", 0),
]
# Larger: beside these, a few numbers by which an answer finds its elements do not count.
_LARGE = [
    ("x = torch.arange(2000).reshape(40, 50)", 0),
    ("x = torch.arange(2000).reshape(40, 50).t()", 1),
    ("x = torch.arange(4800).reshape(60, 80)[:, 20:60]", 0),
    ("x = torch.arange(4800).reshape(60, 80)[:, ::2]", 1),
    ("x = torch.arange(50).expand(40, 50)", 0),
]


# Bytes that may be moved or allocated besides the copy, as a part of it.
_ROOM = 0.25


class _Problems:
    """Several examples: all of them are looked at, for what comes of each is evidence; then the first problem
    is told."""

    def __init__(self) -> None:
        self.first: Callable[[], None] | None = None

    @contextlib.contextmanager
    def of(self, setup: str, code: str) -> Iterator[None]:
        """Keeps what is raised inside, where `code` is called after `setup`."""
        problem: Exception | None = None
        try:
            yield
        except Exception as error:
            problem = error
        if problem is not None and not isinstance(problem, expect.Mismatch):
            evidence.record("raised here", True)
        if problem is not None and self.first is None:
            self.first = lambda: _tell(problem, setup, code)

    def tell(self) -> None:
        if self.first is not None:
            self.first()


def _tell(problem: Exception, setup: str, code: str) -> None:
    """Raises it, with this call as the example of the message."""
    if isinstance(problem, expect.Mismatch):
        raise problem
    many_cases.show_call(setup, code, None, problem)


class _Example:
    """A call with scans that keep what they are given, in a list called `given`."""

    def __init__(self, with_the_grain: Callable[..., Any], setup: str, dim: int, times: int = 2) -> None:
        self.setup = f"{setup}\ngiven = []\nscans = [given.append] * {times}"
        self.code, self.dim, self.times = f"with_the_grain(x, {dim}, scans)", dim, times
        self.t = expect.given(self.setup, with_the_grain=with_the_grain)
        # Both as they are before the call: an answer may change `x`.
        self.x, self.storage = self.t.x.clone(), self.t.x.untyped_storage().data_ptr()

    def call(self) -> list[Tensor]:
        """What the scans were given: at least one tensor."""
        self.t.given.clear()
        self.t.call(self.code)
        if not self.t.given:
            evidence.record("given", None)
            raise expect.Mismatch("no scan was called")
        return [expect.a_tensor(one, what=f"`given[{i}]`") for i, one in enumerate(self.t.given)]

    def shares(self, tensor: Tensor) -> bool:
        """Whether it reads the storage of `x`."""
        return tensor.untyped_storage().data_ptr() == self.storage

    def place(self, tensor: Tensor) -> Any:
        """Where a scan finds the elements of `x`, in words; the tensor, where there are no words for it."""
        x, dim = self.x, self.dim
        if tensor.layout is not torch.strided or tensor.device != x.device:
            return "elsewhere"
        dtype = "" if tensor.dtype == x.dtype else "another dtype, "
        values = tensor.detach().to(x.dtype)
        if torch.equal(values, x):
            return f"{dtype}in place"
        last = [x.movedim(dim, -1), x.transpose(dim, -1)]
        places = {
            "dim last": last,
            "dim first": [x.movedim(dim, 0), x.transpose(dim, 0)],
            "dim last, in the shape of x": [turned.reshape(x.shape) for turned in last],
        }
        for place, tensors in places.items():
            if any(torch.equal(values, one) for one in tensors):
                return dtype + place
        if tensor.shape == x.shape and self.shares(tensor):
            return "the memory of x, read in another way"
        return [dtype, tensor]

    def step(self, tensor: Tensor) -> int | bool:
        """The stride along `dim`. Where the shape is another, `dim` may be another dimension or none: then
        whether the last has stride 1."""
        return tensor.stride(self.dim) if tensor.shape == self.x.shape else tensor.stride()[-1:] == (1,)


@exercise.check
def results(with_the_grain):
    """What each scan returns, in order"""
    setup = """x = torch.arange(12).reshape(3, 4)
lines = lambda t: [line.tolist() for line in t.unbind(1)]
scans = [lambda t: t.cumsum(0), lines, lambda t: 'third', lambda t: None]"""
    t = expect.given(setup, with_the_grain=with_the_grain)
    found = t.call("with_the_grain(x, 0, scans)")
    sums = torch.tensor([[0, 1, 2, 3], [4, 6, 8, 10], [12, 15, 18, 21]])
    _expect_entries(found, [sums, [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]], "third", None])
    # What a scan returns is its own affair: not a copy of it, and in a list also where there is one scan.
    setup = """x = torch.arange(12).reshape(3, 4)
returned = []
scans = [lambda t: returned.append(t[1:]) or returned[-1]]"""
    t = expect.given(setup, with_the_grain=with_the_grain)
    found = t.call("with_the_grain(x, 0, scans)")
    _expect_entries(found, t.returned[:1])
    expect.true(
        any(found[0] is one for one in t.returned),
        "`result[0]` is another tensor than the one that `scans[0]` returned",
        "expected: that one",
    )


def _expect_entries(found: Any, expected: list[Any]) -> None:
    """Compares list with list, and calls each entry by a name that can be typed."""
    # A generator and what `map` returns are told alike.
    evidence.record("results", "an iterator" if hasattr(found, "__next__") else found)
    if not isinstance(found, (list, tuple)):
        kind = "None (is a `return` missing?)" if found is None else f"of type {type(found).__name__}"
        raise expect.Mismatch(f"the result is {kind}, expected a list")
    if len(found) != len(expected):
        raise expect.Mismatch(f"the length of the result is {len(found)}, expected {len(expected)}")
    with evidence.silent():
        for i, (one, wanted) in enumerate(zip(found, expected, strict=True)):
            expect.equal(one, wanted, what=f"`result[{i}]`")


@exercise.check
def called_once(with_the_grain):
    """Each scan is called once, and what it raises goes through"""
    problems = _Problems()
    one = _Example(with_the_grain, "x = torch.arange(12).reshape(3, 4)", 0, times=3)
    with problems.of(one.setup, one.code):
        one.t.call(one.code)
        calls = len(one.t.given)
        evidence.record("calls", calls)
        if calls != one.times:
            raise expect.Mismatch(f"the number of calls is {calls}, expected {one.times}: one for each entry")
    setup, code = "x = torch.zeros(3, 4)\nscans = [lambda t: 1 / 0]", "with_the_grain(x, 0, scans)"
    with problems.of(setup, code):
        t, came_through = expect.given(setup, with_the_grain=with_the_grain), False
        try:
            t.call(code)
        except ZeroDivisionError:
            came_through = True
        evidence.record("came through", came_through)
        if not came_through:
            raise expect.Mismatch("the ZeroDivisionError of the scan did not reach the caller")
    problems.tell()


@exercise.check
def elements(with_the_grain):
    """Every scan is given the elements of `x`, each in its place"""
    problems = _Problems()
    for setup, dim in [*_AGAINST, *_WITH]:
        one = _Example(with_the_grain, setup, dim)
        with problems.of(one.setup, one.code):
            given = one.call()
            evidence.record("elements", [[one.place(tensor), one.shares(tensor)] for tensor in given])
            with evidence.silent():
                for i, tensor in enumerate(given):
                    expect.equal(tensor, one.x, what=f"`given[{i}]`")
    problems.tell()


@exercise.check
def stride_one(with_the_grain):
    """Every scan is given a tensor with stride 1 along `dim`"""
    problems = _Problems()
    several, alone = [(*case, 2) for case in [*_AGAINST, *_WITH]], [(*case, 1) for case in _AGAINST[:3]]
    for setup, dim, times in [*several, *alone]:
        one = _Example(with_the_grain, setup, dim, times)
        with problems.of(one.setup, one.code):
            given = one.call()
            evidence.record("step along dim", [one.step(tensor) for tensor in given])
            for i, tensor in enumerate(given):
                if tensor.shape != one.x.shape:
                    shapes = f"{tuple(tensor.shape)}, expected {tuple(one.x.shape)}"
                    raise expect.Mismatch(f"the shape of `given[{i}]` is {shapes}")
                step, width = one.step(tensor), tensor.element_size()
                if step != 1:
                    raise expect.Mismatch(
                        f"`given[{i}]` has strides {tensor.stride()}",
                        f"a step along dimension {dim} goes {step * width} bytes, "
                        f"expected {width}: to the next element",
                    )
    problems.tell()


@exercise.check
def from_the_end(with_the_grain):
    """A negative `dim` counts from the end"""
    different: expect.Mismatch | None = None
    unable: tuple[Exception, str, str] | None = None
    compared = 0
    for setup, dim in [*_AGAINST, *_WITH]:
        front = _Example(with_the_grain, setup, dim)
        back = _Example(with_the_grain, setup, dim - front.x.dim())
        try:
            with evidence.silent():
                wanted = _looks(front)
        except Exception as error:  # what comes of the negative number cannot be compared with anything
            unable = unable or (error, front.setup, front.code)
            continue
        compared += 1
        try:
            with evidence.silent():
                found = _looks(back)
        except expect.Mismatch as mismatch:
            different = different or mismatch
            continue
        except Exception as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            different = different or expect.Mismatch(
                f"`{said[: expect.WIDEST]}` is raised", f"with {dim} in place of {back.dim} nothing is raised"
            )
            continue
        for what in wanted if different is None and found != wanted else ():
            if found.get(what) != wanted[what]:
                different = expect.Mismatch(
                    f"{what}: {found.get(what)}",
                    f"with {dim} in place of {back.dim} it is another: {wanted[what]}",
                )
                break
    if unable is not None and not compared:
        _tell(*unable)
    evidence.record("the same from the end", different is None)
    if different is not None:
        raise different


def _looks(one: _Example) -> dict[str, Any]:
    """What the scans were given, by what is told of it."""
    looks: dict[str, Any] = {}
    given = one.call()
    looks["the number of calls"] = len(given)
    for i, tensor in enumerate(given):
        looks[f"the shape of `given[{i}]`"] = tuple(tensor.shape)
        looks[f"the step of `given[{i}]` along the dimension"] = one.step(tensor)
        looks[f"whether `given[{i}]` shares the storage of `x`"] = one.shares(tensor)
        looks[f"the elements of `given[{i}]`"] = tensor.tolist()
    return looks


@exercise.check
def already_there(with_the_grain):
    """Nothing is copied where the stride is 1 already"""
    problems = _Problems()
    for setup, dim in _WITH:
        one = _Example(with_the_grain, setup, dim)
        with problems.of(one.setup, one.code):
            given, moved = _what_it_takes(one)
            copies = [i for i, tensor in enumerate(given) if not one.shares(tensor)]
            dropped = not copies and moved >= one.x.nbytes
            evidence.record("already there", [bool(copies), dropped])
            if copies:
                i = copies[0]
                size = given[i].untyped_storage().nbytes()
                raise expect.Mismatch(
                    f"`given[{i}]` has a storage of its own, of {size} bytes: its elements were copied",
                    "expected: it shares the storage of `x`",
                )
            if dropped:
                raise expect.Mismatch(
                    f"the scans were given `x`'s own storage, and {moved} bytes were copied all the same",
                    "expected: none",
                )
    problems.tell()


@exercise.check
def one_copy(with_the_grain):
    """One copy, however many scans there are, and no larger than `x`"""
    problems = _Problems()
    for setup, dim in _LARGE:
        one = _Example(with_the_grain, setup, dim, times=3)
        with problems.of(one.setup, one.code):
            given, moved = _what_it_takes(one)
            sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in given}
            most = max([size for place, size in sizes.items() if place != one.storage], default=0)
            more = len(sizes) == 1 and moved > one.x.nbytes * (1 + _ROOM)
            evidence.record("one copy", [len(sizes), most > one.x.nbytes, more])
            with evidence.silent():
                expect.at_most(len(sizes), 1, "storages that 3 scans were given")
                expect.at_most(most, one.x.nbytes, "the storage that the scans were given", unit="bytes")
                if more:
                    expect.at_most(moved, one.x.nbytes, "copied or allocated for 3 scans", unit="bytes")
    problems.tell()


def _what_it_takes(one: _Example) -> tuple[list[Tensor], int]:
    """What the scans were given, and the bytes that were copied or allocated, whichever is more."""
    given: list[Tensor] = []
    with evidence.silent():
        with measure.operators() as ran:
            peak = measure.peak_bytes(lambda: given.extend(one.call()))
        return given, max(ran.bytes_copied, peak.allocated)


@exercise.check
def left_alone(with_the_grain):
    """`x` and `scans` stay as they are"""
    for dim in (0, 1):
        one = _Example(with_the_grain, "x = torch.arange(6.).reshape(2, 3)", dim)
        x, scans = one.t.x, list(one.t.scans)
        with expect.left_alone(x, what="`x`"):
            one.t.call(one.code)
        expect.true(
            x._version == 0,
            "an operator that works in place was applied to `x` while your function ran",
            "expected: none",
        )
        expect.true(not x.requires_grad, "`x` requires a gradient now", "expected: as before, it does not")
        expect.true(
            one.t.scans == scans,
            f"`scans` was changed: it had {len(scans)} entries, and has {len(one.t.scans)} now",
            "expected: the same entries",
        )


@exercise.check
def same_device(with_the_grain, device):
    """What a scan is given is on the device of `x`"""
    problems = _Problems()
    for kind in (device.type, "meta"):
        one = _Example(with_the_grain, f"x = torch.zeros(2, 3, device='{kind}')", 0)
        with problems.of(one.setup, one.code):
            given = one.call()
            evidence.record("device", [tensor.device.type for tensor in given])
            for i, tensor in enumerate(given):
                if tensor.device.type != kind:
                    raise expect.Mismatch(f"`given[{i}]` is on {tensor.device.type}, expected on {kind}")
    problems.tell()


@exercise.check
def written_between(with_the_grain):
    """A later call gives the scans what `x` holds by then"""
    one = _Example(with_the_grain, "x = torch.arange(6).reshape(2, 3)", 0, times=1)
    first = one.call()[0].clone()
    one.t.x.add_(1)
    stale = torch.equal(one.call()[0], first)
    evidence.record("stale", stale)
    if stale:
        raise expect.Mismatch(
            "after `x.add_(1)` the same call gave the scan the elements from before",
            "expected: those that `x` holds by then",
        )


@exercise.check
def gradients(with_the_grain):
    """A gradient reaches `x` through every scan"""
    problems = _Problems()
    setup = """w = torch.arange(6.).requires_grad_()
x = (2 * w).reshape(2, 3)
given = []
scans = [lambda t: given.append(t) or t * t] * 2"""
    for dim in (0, 1):
        t, code = expect.given(setup, with_the_grain=with_the_grain), f"with_the_grain(x, {dim}, scans)"
        with problems.of(setup, code):
            found = t.call(code)
            if not t.given:
                evidence.record("given", None)
                raise expect.Mismatch("no scan was called")
            for i, tensor in enumerate(t.given):
                expect.in_graph(tensor, what=f"`given[{i}]`", of="`x`")
            # Whether the results are what they should be is not looked at here.
            results = found if isinstance(found, (list, tuple)) else []
            outside = [
                i for i, one in enumerate(results) if evidence.is_tensor(one) and not one.requires_grad
            ]
            evidence.record("results outside the graph", bool(outside))
            if outside:
                raise expect.Mismatch(
                    f"`given[{outside[0]}]` is part of the graph of `x`, and `result[{outside[0]}]` is not",
                    "expected: what the scan makes of it is too",
                )
            sum((tensor * tensor).sum() for tensor in t.given).backward()
            expect.true(t.w.grad is not None, "no gradient reaches `x`", "expected: one does")
            expect.equal(t.w.grad, len(t.given) * 8 * t.w.detach(), what="`w.grad`")
    problems.tell()


# --- the mistakes -----------------------------------------------------------------------------------------


def _laid_out(x, dim):
    return x if x.stride(dim) == 1 else x.movedim(dim, -1).contiguous().movedim(-1, dim)


@exercise.mistake
def never_copies(x, dim, scans):
    """The scans are given the memory of `x`, with the strides that `x` has. A view that is turned and turned
    back, or reshaped to the same shape, moves no element: where the stride along `dim` is not 1, it takes a
    copy to make it so, one before the first scan."""
    return [scan(x) for scan in scans]


@never_copies.variant
def maps_over_a_view(x, dim, scans):
    def run(scan):
        return scan(x.movedim(dim, -1).movedim(-1, dim))

    return list(map(run, scans))


@exercise.mistake
def copies_for_every_scan(x, dim, scans):
    """Each scan is given a copy of its own. The layout is the same for all of them: one copy, made before the
    first scan, serves the others too."""
    return [scan(_laid_out(x, dim)) for scan in scans]


@copies_for_every_scan.variant
def lays_out_in_the_loop(x, dim, scans):
    found = []
    for scan in scans:
        line_by_line = x
        if x.stride()[dim] != 1:
            line_by_line = x.transpose(dim, -1).clone(memory_format=torch.contiguous_format)
            line_by_line = line_by_line.transpose(-1, dim)
        found.append(scan(line_by_line))
    return found


@copies_for_every_scan.form
def without_a_condition(x, dim, scans):
    return [scan(x.movedim(dim, -1).contiguous().movedim(-1, dim)) for scan in scans]


@copies_for_every_scan.form
def clones_in_the_loop(x, dim, scans):
    def run(scan):
        turned = x.movedim(dim, -1).clone(memory_format=torch.contiguous_format)
        return scan(turned.movedim(-1, dim))

    return [run(scan) for scan in scans]


@copies_for_every_scan.variant
def clones_the_copy(x, dim, scans):
    x = _laid_out(x, dim)
    return [scan(x.clone()) for scan in scans]


@exercise.mistake
def contiguous_as_it_is(x, dim, scans):
    """`x` is made contiguous as it stands. That gives stride 1 to the last dimension, whatever `dim` is;
    where `x` is contiguous already nothing is copied, and the strides stay what they are."""
    x = x.contiguous()
    return [scan(x) for scan in scans]


@contiguous_as_it_is.variant
def row_by_row(x, dim, scans):
    laid_out = x if x.is_contiguous() else x.clone(memory_format=torch.contiguous_format)
    return [scan(laid_out.view(x.shape)) for scan in scans]


@contiguous_as_it_is.form
def contiguous_for_every_scan(x, dim, scans):
    return [scan(x.contiguous()) for scan in scans]


@contiguous_as_it_is.form
def contiguous_on_condition(x, dim, scans):
    if x.stride(dim) != 1:
        x = x.contiguous()
    return [scan(x) for scan in scans]


@exercise.mistake
def clones_in_the_old_order(x, dim, scans):
    """The scans are given a copy, and in memory its dimensions have the order that they have in `x`. `clone`,
    `empty_like` and arithmetic keep that order, of a turned view too: turned back it has the old strides.
    `contiguous` and `memory_format=torch.contiguous_format` lay elements out in the order of the shape."""
    if x.stride(dim) != 1:
        x = x.transpose(dim, -1).clone().transpose(dim, -1)
    return [scan(x) for scan in scans]


@clones_in_the_old_order.variant
def copies_into_one_like_it(x, dim, scans):
    if x.stride()[dim] == 1:
        return [scan(x) for scan in scans]
    turned = x.transpose(-1, dim)
    made = torch.empty_like(turned).copy_(turned)
    return [scan(made.transpose(-1, dim)) for scan in scans]


@clones_in_the_old_order.form
def clones_in_any_case(x, dim, scans):
    x = x.movedim(dim, -1).clone().movedim(-1, dim)
    return [scan(x) for scan in scans]


@clones_in_the_old_order.form
def clones_for_every_scan(x, dim, scans):
    return [scan(x.clone()) for scan in scans]


@clones_in_the_old_order.form
def clones_as_it_is(x, dim, scans):
    if x.stride(dim) != 1:
        x = x.clone()
    return [scan(x) for scan in scans]


@clones_in_the_old_order.form
def clones_as_it_is_in_any_case(x, dim, scans):
    x = x.clone()
    return [scan(x) for scan in scans]


@exercise.mistake
def undoes_the_copy(x, dim, scans):
    """You lay the elements out along `dim`, and then call `contiguous` on the view that was turned back. That
    copies once more, in the order of the shape, and the last dimension has stride 1 again."""
    if x.stride(dim) != 1:
        x = x.movedim(dim, -1).contiguous().movedim(-1, dim).contiguous()
    return [scan(x) for scan in scans]


@undoes_the_copy.form
def undoes_it_for_every_scan(x, dim, scans):
    x = _laid_out(x, dim)
    return [scan(x.contiguous()) for scan in scans]


@exercise.mistake
def copies_unless_contiguous(x, dim, scans):
    """You leave `x` as it is where it is contiguous, and then its last dimension has stride 1. The scans walk
    along `dim`, and what counts is the stride there."""
    if not x.is_contiguous():
        x = x.movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


@exercise.mistake
def only_strides_above_one(x, dim, scans):
    """You leave `x` as it is where its stride along `dim` is 0. There one element stands for all of a line,
    and the scans are promised a line that lies in memory: they rely on stride 1."""
    if x.stride(dim) > 1:
        x = x.movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


@exercise.mistake
def trusts_the_last_dimension(x, dim, scans):
    """You leave `x` as it is where `dim` is the last dimension. That one has stride 1 in a contiguous tensor,
    and another in `x.t()` or `x[:, ::2]`; and in `x.t()` it is the first that has stride 1. The stride along
    `dim` says whether a copy is due, not the place of `dim` in the shape."""
    if dim % x.dim() != x.dim() - 1:
        x = x.movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


@trusts_the_last_dimension.variant
def the_last_by_either_name(x, dim, scans):
    if dim in (-1, x.ndim - 1):
        return list(map(lambda scan: scan(x), scans))
    turned = x.transpose(dim, -1)
    lines = turned if turned.is_contiguous() else turned.clone(memory_format=torch.contiguous_format)
    return [scan(lines.transpose(dim, -1)) for scan in scans]


@trusts_the_last_dimension.form
def the_last_counted_from_the_front(x, dim, scans):
    if dim != x.dim() - 1:
        x = x.transpose(dim, -1).contiguous().transpose(dim, -1)
    return [scan(x) for scan in scans]


@exercise.mistake
def asks_the_last_stride(x, dim, scans):
    """You copy where the last dimension of `x` has another stride than 1. The scans walk along `dim`:
    `x.stride(dim)` says whether a copy is due, `x.stride(-1)` does not."""
    if x.stride(-1) != 1:
        x = x.movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


@exercise.mistake
def only_the_first_dimension(x, dim, scans):
    """You leave `x` as it is unless `dim` is 0. Others may have a stride that is not 1, in a slice, in
    `x.t()`, in three dimensions, and the first may have 1: it is `x.stride(dim)` that says what is due."""
    if dim == 0:
        x = x.movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


@exercise.mistake
def the_condition_turned_round(x, dim, scans):
    """You copy where the stride along `dim` is 1, and leave `x` as it is where it is not 1: the condition
    is the wrong way round."""
    if x.stride(dim) == 1:
        x = x.movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


@exercise.mistake
def the_wrong_way_round(x, dim, scans):
    """Your copy is made the wrong way round: with `dim` in front its stride is the largest of all. It is the
    last dimension of a contiguous tensor that has stride 1."""
    if x.stride(dim) != 1:
        x = x.movedim(dim, 0).contiguous().movedim(0, dim)
    return [scan(x) for scan in scans]


@the_wrong_way_round.variant
def line_after_line(x, dim, scans):
    if x.stride()[dim] == 1:
        return [scan(x) for scan in scans]
    place = dim % x.dim()
    rest = [i for i in range(x.dim()) if i != place]
    front = x.permute(place, *rest)
    front = front if front.is_contiguous() else front.clone(memory_format=torch.contiguous_format)
    back = front.permute(*(1 + rest.index(i) if i != place else 0 for i in range(x.dim())))
    return [scan(back) for scan in scans]


@exercise.mistake
def stays_turned(x, dim, scans):
    """The layout is right, and the scans are given it with `dim` as the last dimension. They expect the shape
    of `x`: turn the view back after the copy, which moves no element."""
    if x.stride(dim) != 1:
        x = x.movedim(dim, -1).contiguous()
    return [scan(x) for scan in scans]


@stays_turned.variant
def transposed_for_good(x, dim, scans):
    if x.stride(dim) == 1:
        return [scan(x) for scan in scans]
    turned = x.transpose(-1, dim)
    turned = turned.clone(memory_format=torch.contiguous_format)
    return [scan(turned) for scan in scans]


@stays_turned.form
def turned_in_any_case(x, dim, scans):
    x = x.movedim(dim, -1).contiguous()
    return [scan(x) for scan in scans]


@exercise.mistake
def only_turns(x, dim, scans):
    """You turn the view, and nothing is copied. No element moves: the scans get another shape, and the step
    along `dim` is as long as it was. A copy of the turned view lies in the order of its shape; turned back,
    it has the shape of `x`."""
    if x.stride(dim) != 1:
        x = x.transpose(dim, -1)
    return [scan(x) for scan in scans]


@only_turns.form
def only_swaps_the_first_two(x, dim, scans):
    if x.stride(dim) != 1:
        x = x.transpose(0, 1)
    return [scan(x) for scan in scans]


@exercise.mistake
def turns_after_the_copy(x, dim, scans):
    """You copy `x` as it stands and turn the copy. A view that is turned after the copy moves no element: the
    scans get another shape, and the step along `dim` is what it was. Turn first, copy then, and turn back."""
    if x.stride(dim) != 1:
        x = x.contiguous().transpose(dim, -1)
    return [scan(x) for scan in scans]


@turns_after_the_copy.form
def turns_it_in_any_case(x, dim, scans):
    x = x.contiguous().transpose(dim, -1)
    return [scan(x) for scan in scans]


@turns_after_the_copy.form
def turns_a_clone(x, dim, scans):
    if x.stride(dim) != 1:
        x = x.clone().transpose(dim, -1)
    return [scan(x) for scan in scans]


@exercise.mistake
def reshapes_back(x, dim, scans):
    """The way back is a `reshape` or `view`. It gives the shape of `x`, and puts the elements into it in the
    order of the turned tensor, so they stand in other places. A dimension is moved back by what moved it:
    `movedim` or `transpose`."""
    if x.stride(dim) != 1:
        x = x.movedim(dim, -1).contiguous().reshape(x.shape)
    return [scan(x) for scan in scans]


@reshapes_back.variant
def views_as_x(x, dim, scans):
    given = x
    if x.stride()[dim] != 1:
        given = x.transpose(dim, -1).clone(memory_format=torch.contiguous_format).view_as(x)
    return list(map(lambda scan: scan(given), scans))


@reshapes_back.form
def reshapes_back_in_any_case(x, dim, scans):
    x = x.movedim(dim, -1).contiguous().view(x.shape)
    return [scan(x) for scan in scans]


@exercise.mistake
def another_way_back(x, dim, scans):
    """With three dimensions your way back does not undo the way there: two of them change places. `transpose`
    exchanges two dimensions, and `movedim` shifts all that lie in between; what one has done, the same one
    undoes."""
    if x.stride(dim) != 1:
        x = x.movedim(dim, -1).contiguous().transpose(-1, dim)
    return [scan(x) for scan in scans]


@another_way_back.variant
def swaps_and_shifts(x, dim, scans):
    if x.stride()[dim] == 1:
        return [scan(x) for scan in scans]
    turned = x.transpose(dim, -1).clone(memory_format=torch.contiguous_format)
    return [scan(turned.movedim(-1, dim)) for scan in scans]


@another_way_back.form
def another_way_back_in_any_case(x, dim, scans):
    x = x.movedim(dim, -1).contiguous().transpose(-1, dim)
    return [scan(x) for scan in scans]


@exercise.mistake
def the_same_turn_again(x, dim, scans):
    """With three dimensions your way back does not undo the way there: it is the same turn once more. Two
    dimensions that change places come back like that, three that go round do not: what went from one place to
    another has to go from there to the one."""
    if x.stride(dim) != 1:
        x = x.movedim(dim, -1).contiguous().movedim(dim, -1)
    return [scan(x) for scan in scans]


@the_same_turn_again.variant
def permutes_twice(x, dim, scans):
    place = dim % x.dim()
    order = [i for i in range(x.dim()) if i != place] + [place]
    if x.stride(place) != 1:
        x = x.permute(order).clone(memory_format=torch.contiguous_format).permute(order)
    return [scan(x) for scan in scans]


@the_same_turn_again.form
def from_the_end_both_times(x, dim, scans):
    if x.stride(dim) != 1:
        x = x.movedim(-1, dim).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


@the_same_turn_again.form
def the_same_turn_in_any_case(x, dim, scans):
    x = x.movedim(dim, -1).contiguous().movedim(dim, -1)
    return [scan(x) for scan in scans]


@exercise.mistake
def reads_with_other_strides(x, dim, scans):
    """The scans are given the memory of `x`, read with other strides. No element has moved, so they stand in
    other places. `as_strided` says how memory is read; to change what lies where in it takes a copy."""
    if x.stride(dim) != 1:
        there = torch.empty(x.transpose(dim, -1).shape, device="meta")
        x = x.as_strided(x.shape, there.transpose(dim, -1).stride())
    return [scan(x) for scan in scans]


@reads_with_other_strides.form
def all_strides_one(x, dim, scans):
    if x.stride(dim) != 1:
        x = x.as_strided(x.shape, [1] * x.dim())
    return [scan(x) for scan in scans]


@exercise.mistake
def exchanges_two_strides(x, dim, scans):
    """You exchange the strides of two dimensions and leave their sizes: with the size of one and the stride
    of the other `as_strided` reads beyond the memory that there is, and that is the error. Nor would it move
    an element, which takes a copy."""
    if x.stride(dim) != 1:
        strides = list(x.stride())
        strides[dim], strides[-1] = 1, strides[dim]
        x = x.as_strided(x.shape, strides)
    return [scan(x) for scan in scans]


@exchanges_two_strides.form
def exchanges_those_of_a_copy(x, dim, scans):
    if x.stride(dim) != 1:
        x = x.contiguous()
        strides = list(x.stride())
        strides[dim], strides[-1] = strides[-1], strides[dim]
        x = x.as_strided(x.shape, strides)
    return [scan(x) for scan in scans]


@exercise.mistake
def brings_the_end_to_dim(x, dim, scans):
    """With three dimensions, `dim` need not be the last one of what you lay out: `movedim(-1, dim)` brings
    the last one to the place `dim`, and shifts `dim` by one. `movedim(dim, -1)` is the way there, and the
    other the way back."""
    if x.stride(dim) != 1:
        x = x.movedim(-1, dim).contiguous().movedim(dim, -1)
    return [scan(x) for scan in scans]


@exercise.mistake
def turns_a_matrix_for_good(x, dim, scans):
    """The scans are given a copy of `x.T` or `x.mT`, and it is not turned back: they expect the shape of `x`.
    Those two do not ask for `dim` either, and are right for the first dimension of a matrix; otherwise it is
    `dim` that has to come last for the copy."""
    if x.stride(dim) != 1:
        x = x.T.contiguous()
    return [scan(x) for scan in scans]


@turns_a_matrix_for_good.form
def turns_the_last_two_for_good(x, dim, scans):
    if x.stride(dim) != 1:
        x = x.mT.contiguous()
    return [scan(x) for scan in scans]


@exercise.mistake
def contiguous_whenever_it_is_not(x, dim, scans):
    """You copy wherever `x`, with `dim` last, is not contiguous, and that is more than stride 1 along `dim`
    asks for. In a slice such as `x[:, 1:]` there are gaps between the rows, and each row lies with the grain
    all the same: nothing needs to be copied."""
    x = x.movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


@contiguous_whenever_it_is_not.variant
def asks_whether_contiguous(x, dim, scans):
    place = dim % x.dim()
    turned = x.transpose(place, x.dim() - 1)
    if not turned.is_contiguous() or turned.stride(-1) != 1:
        turned = torch.empty_like(turned, memory_format=torch.contiguous_format).copy_(turned)
    turned = turned.transpose(x.dim() - 1, place)
    return [scan(turned) for scan in scans]


@exercise.mistake
def always_copies(x, dim, scans):
    """You copy in any case. Where `x` has stride 1 along `dim` the scans can have `x` itself."""
    x = x.movedim(dim, -1).clone(memory_format=torch.contiguous_format).movedim(-1, dim)
    return [scan(x) for scan in scans]


@always_copies.variant
def stacks_the_lines(x, dim, scans):
    lines = torch.stack(x.unbind(dim), dim=-1)
    return [scan(lines.movedim(-1, dim)) for scan in scans]


@exercise.mistake
def drops_the_copy(x, dim, scans):
    """You make the copy in any case, and give the scans `x` itself where it is not needed. It has been made
    all the same: look at the stride along `dim` first."""
    laid_out = x.movedim(dim, -1).clone(memory_format=torch.contiguous_format).movedim(-1, dim)
    return [scan(x if x.stride(dim) == 1 else laid_out) for scan in scans]


@drops_the_copy.form
def drops_what_contiguous_made(x, dim, scans):
    laid_out = x.movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x if x.stride(dim) == 1 else laid_out) for scan in scans]


@exercise.mistake
def spares_a_single_scan(x, dim, scans):
    """A single scan is given `x` as it is. It is promised stride 1 along `dim` as well: the copy is due
    for one scan too."""
    if len(scans) > 1:
        x = _laid_out(x, dim)
    return [scan(x) for scan in scans]


@exercise.mistake
def spares_vectors(x, dim, scans):
    """A tensor with one dimension is given to the scans as it is. Its only stride need not be 1: that of
    `x[::2]` is 2."""
    if x.dim() > 1:
        x = _laid_out(x, dim)
    return [scan(x) for scan in scans]


@exercise.mistake
def copies_twice(x, dim, scans):
    """More is copied than the scans are given, as by a `contiguous` or `clone` before the copy that lays `x`
    out along `dim`. That one reads any strides: `x` need not be put in order first."""
    if x.stride(dim) != 1:
        x = x.contiguous().movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


@copies_twice.form
def clones_before(x, dim, scans):
    if x.stride(dim) != 1:
        x = x.clone().movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


@copies_twice.form
def contiguous_in_any_case_before(x, dim, scans):
    x = x.contiguous()
    if x.stride(dim) != 1:
        x = x.movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


@exercise.mistake
def for_matrices_only(x, dim, scans):
    """What you turn is right for the first dimension of a matrix only. With three dimensions, or with another
    `dim`, it is `dim` that has to come last, and `x.t()`, `x.T`, `x.mT` or `transpose(0, 1)` do not ask for
    it: `movedim(dim, -1)` and `transpose(dim, -1)` do."""
    if x.stride(dim) != 1:
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    return [scan(x) for scan in scans]


@for_matrices_only.form
def t_of_matrices(x, dim, scans):
    if x.stride(dim) != 1:
        x = x.t().contiguous().t()
    return [scan(x) for scan in scans]


@for_matrices_only.form
def turns_all_dimensions(x, dim, scans):
    if x.stride(dim) != 1:
        x = x.T.contiguous().T
    return [scan(x) for scan in scans]


@for_matrices_only.form
def swaps_the_last_two(x, dim, scans):
    if x.stride(dim) != 1:
        x = x.transpose(-2, -1).contiguous().transpose(-2, -1)
    return [scan(x) for scan in scans]


@for_matrices_only.form
def the_last_two_as_a_matrix(x, dim, scans):
    if x.stride(dim) != 1:
        x = x.mT.contiguous().mT
    return [scan(x) for scan in scans]


@for_matrices_only.form
def leaves_the_others(x, dim, scans):
    if x.dim() == 2 and x.stride(dim) != 1:
        x = x.t().contiguous().t()
    return [scan(x) for scan in scans]


@for_matrices_only.form
def moves_the_first(x, dim, scans):
    if x.stride(dim) != 1:
        x = x.movedim(0, -1).contiguous().movedim(-1, 0)
    return [scan(x) for scan in scans]


@exercise.mistake
def counts_from_the_front(x, dim, scans):
    """Your answer is right for a `dim` from 0 on, and a negative one makes a difference to it: `-1` stands
    for `x.dim() - 1`. What is compared with `dim`, or reckoned from it, needs the number that counts from the
    front; torch's own functions take either."""
    if x.stride(dim) == 1:
        return [scan(x) for scan in scans]
    order = [i for i in range(x.dim()) if i != dim] + [dim]
    back = [order.index(i) for i in range(x.dim())]
    laid_out = x.permute(order).contiguous().permute(back)
    return [scan(laid_out) for scan in scans]


@counts_from_the_front.variant
def drops_the_sign(x, dim, scans):
    given = _laid_out(x, abs(dim) % x.dim())
    return [scan(given) for scan in scans]


@exercise.mistake
def chains_the_scans(x, dim, scans):
    """Each of your scans is given what the one before it returned. They know nothing of each other: every
    scan is to be given the elements of `x`."""
    found, current = [], _laid_out(x, dim)
    for scan in scans:
        current = scan(current)
        found.append(current)
    return found


@chains_the_scans.form
def returns_the_end_of_the_chain(x, dim, scans):
    x = _laid_out(x, dim)
    for scan in scans:
        x = scan(x)
    return [x]


@exercise.mistake
def calls_with_dim(x, dim, scans):
    """You call the scans with more than a tensor. Each of them takes one argument, and knows by itself along
    which dimension it reads."""
    x = _laid_out(x, dim)
    return [scan(x, dim) for scan in scans]


@exercise.mistake
def leaves_it_for_later(x, dim, scans):
    """What you return is an iterator: a generator in round brackets, or a `map`. No scan is called before
    somebody asks it for a value. Return a list."""
    x = _laid_out(x, dim)
    return (scan(x) for scan in scans)


@leaves_it_for_later.variant
def returns_a_map(x, dim, scans):
    return map(lambda scan: scan(_laid_out(x, dim)), scans)


@exercise.mistake
def stops_after_the_first(x, dim, scans):
    """Only the first scan is called. A `return` inside the loop ends it on the first round."""
    x = _laid_out(x, dim)
    for scan in scans:
        return [scan(x)]
    return []


@exercise.mistake
def relays_x_itself(x, dim, scans):
    """You replace the memory of `x`. Then its strides are others for everybody who holds it, and its views
    read the old memory: a write to one no longer shows in the other. Only the scans need the new layout."""
    x.data = _laid_out(x, dim).detach()
    return [scan(x) for scan in scans]


@relays_x_itself.variant
def sets_the_storage(x, dim, scans):
    with torch.no_grad():
        new = _laid_out(x, dim)
        if new is not x:
            x.data = new
    return list(scan(x) for scan in scans)


@exercise.mistake
def turns_x_itself(x, dim, scans):
    """You turn `x` itself: after the call it has another shape, for everybody who holds it. An operator whose
    name ends in `_`, such as `transpose_`, changes the tensor it is called on; `transpose` makes a view."""
    if x.stride(dim) != 1:
        x = x.transpose_(dim, -1).contiguous().transpose(dim, -1)
    return [scan(x) for scan in scans]


@exercise.mistake
def leaves_the_graph(x, dim, scans):
    """The scans are given the right numbers in a tensor that is not part of the graph of `x`: autograd
    does not know where they come from. That is what `.detach()`, `.data`, `no_grad` and `torch.tensor` do."""
    x = _laid_out(x.detach(), dim)
    return [scan(x) for scan in scans]


@leaves_the_graph.variant
def lays_out_without_grad(x, dim, scans):
    with torch.no_grad():
        lines = x.data if x.stride(dim) == 1 else torch.movedim(x, dim, -1).contiguous().movedim(-1, dim)
    return [scan(lines) for scan in scans]


@leaves_the_graph.form
def copies_without_grad(x, dim, scans):
    with torch.no_grad():
        x = _laid_out(x, dim)
    return [scan(x) for scan in scans]


@exercise.mistake
def loses_the_dtype(x, dim, scans):
    """What the scans are given has another dtype than `x`. What `torch.empty` or `torch.zeros` makes is of
    float32 and on the CPU unless you say `dtype=x.dtype` and `device=x.device`; `x.new_empty` is like `x`."""
    if x.stride(dim) != 1:
        turned = x.transpose(dim, -1)
        x = torch.empty(turned.shape, device=x.device).copy_(turned).transpose(dim, -1)
    return [scan(x) for scan in scans]


@loses_the_dtype.form
def loses_dtype_and_device(x, dim, scans):
    if x.stride(dim) != 1:
        turned = x.transpose(dim, -1)
        x = torch.empty(turned.shape).copy_(turned).transpose(dim, -1)
    return [scan(x) for scan in scans]


@exercise.mistake
def loses_the_device(x, dim, scans):
    """What you copy into is on the CPU, wherever `x` is. A new tensor of `torch.empty` or `torch.zeros` is
    there unless you say `device=x.device`; `x.new_empty` is where `x` is."""
    if x.stride(dim) != 1:
        turned = x.transpose(dim, -1)
        x = torch.empty(turned.shape, dtype=x.dtype).copy_(turned).transpose(dim, -1)
    return [scan(x) for scan in scans]
