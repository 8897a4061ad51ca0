"""Do two tensors share an element?

Return `True` if a write to `a` could show in `b`: at least one byte of memory belongs to an element of both.
Return `False` otherwise.

Both are small, with at least one element and any number of dimensions. They are views of one storage or of
two, and may differ in dtype: `x.view(torch.int16)` reads an `int32` tensor two bytes at a time. Elements that
a view steps over don't belong to it.

Use plain Python, and ask `a` and `b` only for `data_ptr()`, `element_size()`, `stride()` and their sizes
(`shape`, `size()`, `dim()`, `numel()`). No operator of torch and nothing of NumPy may run.

With `x = torch.arange(6)`, `overlaps(x[:4], x[3:])` is `True`, `overlaps(x[::2], x[1::2])` is `False`
"""

import itertools

from torch import Tensor

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import strides

exercise = Exercise(
    minutes=20,
    hints=[
        "Where in memory is each element of `a`, and each of `b`? With two sets of places, you only have to "
        "ask whether they have one in common.",
        "`x.data_ptr()` is the address of the first element, in bytes. A stride counts elements: one step is "
        "`x.element_size()` times as many bytes.",
        "Start with the set of the bytes of the first element: there are `x.element_size()` of them. Then go "
        "through the dimensions. For each step along a dimension, add every byte of the set again, moved by "
        "that step.",
    ],
)


@exercise.starter
def overlaps(a: Tensor, b: Tensor) -> bool:
    """Whether at least one byte belongs to an element of both"""
    raise NotImplementedError


def _bytes(x):
    """The addresses of all bytes of all elements: each element is picked out and asked where it is."""
    first = [x[index].data_ptr() for index in itertools.product(*map(range, x.shape))]
    return {address + i for address in first for i in range(x.element_size())}


def _compare(overlaps, setup, *pairs):
    """Compares for each pair of expressions among the names that `setup` makes."""
    with Rows() as rows:
        for a, b in pairs:
            with rows.of(f"`{a}` with `{b}`"):
                t = expect.given(f"{setup}\na, b = {a}, {b}", overlaps=overlaps)
                wanted = not _bytes(t.a).isdisjoint(_bytes(t.b))
                expect.equal(t.call("overlaps(a, b)"), wanted)


@exercise.check
def parts(overlaps):
    """Parts that meet, parts that only touch, and copies

    All elements count, not only the first. A part ends with its last element. A copy lies in other memory,
    whatever its values.
    """
    pairs = [("x[:4]", "x[3:]"), ("x[:4]", "x[4:]"), ("x", "x.view(3, 4)"), ("x", "x.clone()")]
    pairs += [("x", "x[7:8]"), ("x[2:]", "x.clone()[2:]"), ("x.view(3, 4)[:2]", "x.view(3, 4)[2:]")]
    _compare(overlaps, "x = torch.arange(12, dtype=torch.uint8)", *pairs)


@exercise.check
def interleaved(overlaps):
    """Views that step over each other's elements

    Elements that a view steps over don't belong to it. Another view may lie between its first and its last
    element and share nothing with it.
    """
    pairs = [("x[::2]", "x[1::2]"), ("x[::2]", "x[1::3]"), ("x[::4]", "x[1::2]"), ("x[2::6]", "x[::4]")]
    pairs += [("x[:3:2]", "x[1:5:3]"), ("x[1::5]", "x[::4]")]
    _compare(overlaps, "x = torch.arange(12, dtype=torch.uint8)", *pairs)


@exercise.check
def from_the_numbers(overlaps):
    """It is worked out in plain Python, from addresses and strides

    The places of the elements are enough. A write to see whether the other tensor changes could disturb
    somebody who reads it at that moment. Comparing values compares numbers, not places.
    """
    asked = ("data_ptr", "element_size", "stride", "size", "dim", "numel")
    for views in ("x[:4], x[3:]", "x[::2], x[1::2]", "x.view(3, 4).t(), x[5]"):
        t = expect.given(f"x = torch.arange(12)\na, b = {views}", overlaps=overlaps)
        strides.plain_python(lambda t=t: t.call("overlaps(a, b)"), ask=asked)


@exercise.check
def all_dimensions(overlaps):
    """Blocks, rows, columns and expanded tensors

    The place of an element is the sum of its steps along all dimensions, however many there are: `x[1, 2]`
    has none, and one element. A step along an expanded dimension stays where it is: its stride is 0.
    """
    pairs = [("x[:, 0]", "x[:, 1]"), ("x[:, :2]", "x[:, 2:]"), ("x[:, 1]", "x[2]"), ("x[0]", "x.t()[0]")]
    pairs += [("x[:2, :2]", "x[1:, 2:]"), ("x[:2, 1:3]", "x.t()[2:, 1:]"), ("x[1, 2]", "x[1, :3]")]
    pairs += [("x[0].expand(3, 4)", "x[0]"), ("x[0].expand(3, 4)", "x[1]")]
    pairs += [("x.view(3, 2, 2)[:, 1:]", "x[:, 3]"), ("x.view(3, 2, 2)[:, 1:]", "x[:, 1]")]
    # Here no dimension can be left out, neither in front nor at the end, of `a` nor of `b`.
    pairs += [("y[0]", "y[:1, 1]"), ("y[:1]", "y[1:]"), ("y[:, 0, 0]", "y[:1]"), ("y[0]", "z[0, :1, 1]")]
    pairs += [("z", "z[1:, 1:]"), ("z", "z[:, :, 1:, :, 1:]")]
    pairs += [("z[0]", "z[:, :, 1, 1]"), ("z[:, 1:]", "z[:, :1, 1:]")]
    setup = "x = torch.arange(12, dtype=torch.uint8).reshape(3, 4)\n"
    setup += "z = torch.arange(32, dtype=torch.uint8).reshape(2, 2, 2, 2, 2)\ny = z[0, 1]"
    _compare(overlaps, setup, *pairs)


@exercise.check
def other_widths(overlaps):
    """Elements of other sizes, and of different sizes

    An address counts bytes and a stride counts elements: a step is `element_size()` times as many bytes, and
    each tensor has its own. An element takes that many bytes, and one of another dtype may begin inside it.
    """
    setup = """x = torch.arange(4, dtype=torch.int32)
w, y, z = x.view(torch.int64), x.view(torch.int16), x.view(torch.uint8)"""
    pairs = [("z[:4]", "z[3:6]"), ("z[:4]", "z[4:8]"), ("y[:4]", "y[4:]"), ("x[:2]", "y[3:]")]
    pairs += [("x[:2]", "y[4:]"), ("y[2:4]", "x[2:]"), ("y[5]", "x[2]"), ("x[1]", "z[6]")]
    pairs += [("x[::2]", "y[2:4]"), ("z[7::8]", "x[::2]"), ("y[1::2]", "z[::4]"), ("y[1::2]", "z[3::4]")]
    pairs += [("w[1]", "x[3]"), ("w[1]", "y[3]"), ("w", "z[-1]"), ("w[0]", "z[8]")]
    _compare(overlaps, setup, *pairs)
