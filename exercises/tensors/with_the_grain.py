"""Scans with the grain

`scans` is a list of functions. Each takes a tensor with the shape of `x` and reads it in lines along
dimension `dim`, which isn't negative. A line has at least two elements. Call each function once, and return
the list of their results.

A scan is often faster if a line's elements lie side by side. So give each scan the elements of `x` in a
tensor with **stride 1 along `dim`**.

You may make one copy, as large as `x`, however many scans there are. If `x` has stride 1 along `dim` already,
copy nothing. Don't change `x`, and keep nothing for a later call: `x` may hold something else by then.

With `x = torch.zeros(3, 4)`, `with_the_grain(x, 0, [lambda t: t.stride()])` is `[(1, 3)]`
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import strides

exercise = Exercise(
    minutes=15,
    hints=[
        "Which dimension of a new, contiguous tensor has stride 1? What does a transpose do to the strides, "
        "and what to the elements?",
        "Shape and layout are two things. Make a view in which `dim` comes last, copy that into a contiguous "
        "tensor, and move the dimension back. The shape is the old one, and the strides are new.",
        "`movedim` moves a dimension without a copy, and `contiguous` copies if it has to. Look at the "
        "stride along `dim` first. Make the copy before the loop over the scans, not inside it.",
    ],
)


@exercise.starter
def with_the_grain(
    x: Tensor, dim: int, scans: list[Callable[[Tensor], Any]]
) -> list[Any]:
    """What each scan returns for the elements of `x`, with stride 1 along `dim`"""
    raise NotImplementedError


# Tensors and a dimension of each that runs against the grain.
_AGAINST = {
    "columns": (strides.squares(4, 5), 0),
    "rows of a transpose": (f"{strides.squares(4, 5)}.t()", 1),
    "the first of three dimensions": (f"{strides.squares(2, 3, 4)}.double()", 0),
    "the second of three": (strides.squares(2, 3, 4), 1),
    "columns of a block": (f"{strides.squares(5, 6)}[1:4, 2:]", 0),
    "rows with gaps": (f"{strides.squares(3, 8)}.long()[:, ::2]", 1),
    "columns of an expanded row": (f"{strides.squares(4)}.expand(3, 4)", 0),
    "a vector with gaps": (f"{strides.squares(12)}[::2]", 0),
    "the second of five": (strides.squares(2, 3, 1, 2, 2), 1),
}
# And with it: dense, with gaps between the lines, beginning somewhere else than their storage.
_WITH = {
    "rows": (strides.squares(4, 5), 1),
    "columns of a transpose": (f"{strides.squares(4, 5)}.t()", 0),
    "rows of a block": (f"{strides.squares(4, 6)}[1:, 1:]", 1),
    "columns of a transposed block": (f"{strides.squares(4, 6)}[:, 2:].t()", 0),
    "the second of three permuted": (f"{strides.squares(2, 3, 4)}.permute(1, 2, 0)", 1),
    "the end of a vector": (f"{strides.squares(12)}[4:]", 0),
    "the third of five permuted": (f"{strides.squares(2, 3, 1, 2, 2)}.permute(0, 1, 4, 2, 3)", 2),
}


# Scans that keep what they are given.
_SETUP = "x = {}\ngiven = []\nscans = [given.append] * 3".format


def _call(t, dim):
    """What the scans were given, and the bytes that were copied or allocated, whichever is more."""
    before = len(t.given)
    with measure.operators() as ran:
        peak = measure.peak_bytes(lambda: t.call(f"with_the_grain(x, {dim}, scans)"))
    given = t.given[before:]
    expect.true(bool(given), "no scan was called", "expected: each, once")
    given = [expect.a_tensor(one, what=f"`given[{i}]`") for i, one in enumerate(given, before)]
    return given, max(ran.bytes_copied, peak.allocated)


@exercise.check(
    given="""x = torch.arange(6).reshape(2, 3)
called = []
lines = lambda t: [line.tolist() for line in t]
sums = lambda t: called.append('sums') or t.cumsum(1)
twice = lambda t: called.append('twice') or 'done'
scans = [sums, lines, twice, twice, lambda t: called.append('last')]""",
    cases=[1, 0],
)
def results(t, dim):
    """What each scan returns, in order, from one call for each entry

    The scans don't depend on each other. Call each once, with the elements of `x`: a second call runs it
    again. It may return anything: a tensor, a list, None. A function that stands in the list twice has two
    results.
    """
    found = t.call(f"with_the_grain(x, {dim}, scans)")
    for name, times in {"sums": 1, "twice": 2, "last": 1}.items():
        told = f"the number of calls of `{name}` is {t.called.count(name)}, expected {times}"
        expect.true(t.called.count(name) == times, f"{told}: one for each entry of `scans`")
    if dim == 1:  # where the elements are after a copy is asked elsewhere
        cumulated, listed = torch.tensor([[0, 1, 3], [3, 7, 12]]), [[0, 1, 2], [3, 4, 5]]
        expect.equal(found, [cumulated, listed, "done", "done", None])


@exercise.check
def elements(with_the_grain):
    """Every scan is given the elements of `x`, each in its place

    Shape and layout are two things. If you move a dimension before the copy, move it back after it, with
    `movedim` or `transpose`. `reshape` puts the elements into other places. Other strides over the same
    storage read other elements.
    """
    alive = []  # no `x` takes the place of one before it: what is kept for a later call is asked elsewhere
    with Rows() as rows:
        for label, (x, dim) in {**_AGAINST, **_WITH}.items():
            with rows.of(label):
                t = expect.given(_SETUP(x), with_the_grain=with_the_grain)
                alive.append((t, wanted := t.x.clone()))
                for i, tensor in enumerate(_call(t, dim)[0]):
                    expect.equal(tensor, wanted, what=f"`given[{i}]`")


@exercise.check(given=_SETUP, cases={**_AGAINST, **_WITH})
def stays(t, dim):
    """`x` stays as it is

    `x` belongs to the caller. A view or a copy is another tensor object. `x.data = ...`, `set_` and
    `transpose_` change the size, strides or storage of `x` itself; `cumsum_`, `out=` and `copy_` change its
    elements.
    """
    with expect.left_alone(t.x, what="`x`"):
        _call(t, dim)


@exercise.check(given=_SETUP, cases={**_AGAINST, **_WITH})
def stride_one(t, dim):
    """Every scan is given a tensor with stride 1 along `dim`

    The last dimension of a new contiguous tensor has stride 1. A transpose moves no element, and its `clone`
    may be laid out as it is. Make a contiguous copy of a view in which `dim` comes last.
    """
    for i, tensor in enumerate(_call(t, dim)[0]):
        step = tensor.stride(dim)
        told = f"`given[{i}]` has strides {tensor.stride()}: a step along dimension {dim} is {step} long"
        expect.true(step == 1, told, "expected: 1, to the next element in storage")


@exercise.check(given=_SETUP, cases=_WITH)
def already_there(t, dim):
    """Nothing is copied if the stride is 1 already

    Only `x.stride(dim)` counts. There may be gaps between lines, `x` need not be contiguous, and `dim` need
    not come last. `contiguous` asks for more, and copies although no scan needs it.
    """
    given, moved = _call(t, dim)
    for i, tensor in enumerate(given):
        expect.same_storage(tensor, t.x, what=f"`given[{i}]`", of="`x`")
    expect.at_most(moved, 0, "copied or allocated", unit="bytes")


@exercise.check(given=_SETUP, cases=_AGAINST)
def one_copy(t, dim):
    """One copy, however many scans there are, and no larger than `x`

    All scans need the same layout, so one copy, made before the first scan, serves them all. It can read any
    strides: `x` need not be contiguous first.
    """
    given, moved = _call(t, dim)
    storages = {tensor.untyped_storage().data_ptr() for tensor in given}
    expect.at_most(len(storages), 1, "storages that 3 scans were given")
    expect.at_most(moved, t.x.nbytes, "copied or allocated for 3 scans", unit="bytes")


@exercise.check
def kept_nothing(with_the_grain):
    """Nothing is kept for a later call

    A kept copy is wrong as soon as somebody writes to `x`. The version counter doesn't see every write: NumPy
    may write, and a new tensor may get the address that `x` had. A kept copy also takes memory. So each call
    makes its own copy and keeps nothing.
    """
    t = expect.given(_SETUP(strides.squares(4, 5)), with_the_grain=with_the_grain)
    first, _ = _call(t, 0)
    expect.own_storage(first[0], t.x, what="`given[0]`", of="`x`")
    second, _ = _call(t, 0)
    shared = second[0].untyped_storage().data_ptr() == first[0].untyped_storage().data_ptr()
    expect.true(
        not shared,
        "a second call gave its scans the storage that the first call's were given",
        "expected: a copy that the call itself has made",
    )
    setup = "x = torch.arange(20).reshape(4, 5)\nscans = [lambda t: None]"
    t = expect.given(setup, with_the_grain=with_the_grain)
    left = measure.live_bytes(lambda: t.call("with_the_grain(x, 0, scans)")).left
    expect.at_most(left, 0, "still held when the call has returned", unit="bytes")
