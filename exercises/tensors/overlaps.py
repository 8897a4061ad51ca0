"""Do two tensors share an element?

Return `True` when a write to an element of `a` could show in `b`: when at least one byte of memory belongs to
an element of both. Return `False` otherwise.

They are small, have elements, and are views of one storage or of two. Views of one storage may differ in
dtype: `x.view(torch.int16)` reads an `int32` tensor two bytes at a time. What a view steps past does not
belong to it.

Work it out from the numbers, in plain Python: ask `a` and `b` only for `data_ptr()`, `element_size()`,
`shape` and `stride()`. No operator of torch's and nothing of NumPy's may run, so nothing is read or written.

With `x = torch.arange(6)`, `overlaps(x[:4], x[3:])` is `True`, `overlaps(x[::2], x[1::2])` is `False`
"""

import functools
import itertools

import torch
from torch import Tensor

from course_utils.exercise import Exercise, Rows, Table, Trait, expect
from course_utils.exercise.kits import strides

exercise = Exercise(
    minutes=20,
    hints=[
        "Where is each element of `a` in memory, and where each of `b`? Once you have two collections of "
        "places, the question is whether they have one in common.",
        "`x.data_ptr()` is the address of the first element, in bytes. A stride counts elements: one step is "
        "`x.element_size()` times as many bytes.",
        "Start with the set of the bytes of the first element: there are `x.element_size()` of them. Then go "
        "through the dimensions, and replace the set by one that holds every byte again for each step along "
        "the dimension.",
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


class _View(str):
    """The code of a view of the `x` of `_STORAGE`, shown as it is, with what is known of the view."""

    def __init__(self, code):
        self.code = compile(code, "<view>", "eval")
        x = self.make()
        self.bytes, self.first, self.width = _bytes(x), x.data_ptr(), x.element_size()
        self.dim, self.expanded, self.dense = x.dim(), 0 in x.stride(), x.is_contiguous()

    def make(self):
        return eval(self.code, {"x": _storage(), "torch": torch})

    def __repr__(self):
        return str(self)


_STORAGE = "x = torch.arange(12, dtype=torch.int32)"


@functools.cache
def _storage():
    return expect.given(_STORAGE).x


def _cross(a, b):
    return min(a.bytes) <= max(b.bytes) and min(b.bytes) <= max(a.bytes)


# What a pair may be about: of the traits that all wrong pairs have, the rarest is told.
_TRAITS = [
    Trait(
        "they lie between each other and share nothing",
        lambda a, b, shared: _cross(a, b) and not shared,
        "A view steps past what lies between its elements. The ranges from the first to the last may cross "
        "without a byte in common.",
    ),
    Trait(
        "they share a byte",
        lambda a, b, shared: shared,
        "It takes one byte that belongs to an element of both, wherever it lies in either of them.",
    ),
    Trait(
        "they share nothing",
        lambda a, b, shared: not shared,
        "Views of one storage share what they both read, and nothing else.",
    ),
    Trait(
        "they begin at different addresses",
        lambda a, b, shared: a.first != b.first,
        "All elements count, not only the first.",
    ),
    Trait(
        "their elements have different sizes",
        lambda a, b, shared: a.width != b.width,
        "A stride counts elements, and how many bytes that are is for each tensor to say. An element of one "
        "may begin in the middle of an element of the other.",
    ),
    Trait(
        "one of them is a matrix",
        lambda a, b, shared: max(a.dim, b.dim) == 2,
        "For each row there is every column: the place of an element is the sum of the steps along both.",
    ),
    Trait(
        "one of them is not contiguous",
        lambda a, b, shared: not (a.dense and b.dense),
        "The next element lies a stride away, and what is passed on the way does not belong to the view.",
    ),
    Trait(
        "one of them is expanded: a stride is 0",
        lambda a, b, shared: a.expanded or b.expanded,
        "A step along it stays in place: the place counts like any other, and a set holds it once.",
    ),
    Trait(
        "one of them has no dimension",
        lambda a, b, shared: 0 in (a.dim, b.dim),
        "It has one element, at `data_ptr()`, that goes on for `element_size()` bytes.",
    ),
]


@functools.cache
def _every_pair():
    """Pairs of small views of 12 elements, in one and two dimensions and three dtypes."""
    ones = itertools.product((1, 2, 3), (1, 2, 3), (0, 1, 2, 5))
    twos = itertools.product((2, 3), ((4, 1), (1, 4), (3, 2), (0, 1), (1, 1)), (0, 2))
    codes = [f"x.as_strided(({n},), ({step},), {first})" for n, step, first in ones if n > 1 or step == 1]
    codes += [f"x.as_strided((2, {n}), {steps}, {first})" for n, steps, first in twos]
    codes += [f"x.view(torch.int16)[{first}:{first + 5}:2]" for first in (1, 4, 8)]
    codes += ["x.view(torch.uint8)[5:23:6]", "x[0]", "x[4]", "x[3:].expand(2, 9)"]
    views = [_View(code) for code in codes]
    pairs = [
        (a, b) if number % 2 else (b, a)
        for number, (a, b) in enumerate(itertools.combinations_with_replacement(views, 2))
    ]
    cases = [((a, b), not a.bytes.isdisjoint(b.bytes)) for a, b in pairs]
    return Table(f"{_STORAGE}\noverlaps", cases, _TRAITS)  # what is shown before the brackets of a call


def _judge(came, wanted):
    if type(came) is not bool:
        return "you return something else than `True` or `False`"
    return "" if came == wanted else f"you answer `{came}`"


@exercise.check
def parts(overlaps):
    """Parts that meet, parts that only touch, and copies

    All elements count, not only the first. A part ends where its last element does, and what lies in other
    memory shares nothing, whatever it holds.
    """
    pairs = [("x[:4]", "x[3:]"), ("x[:4]", "x[4:]"), ("x", "x.view(3, 4)"), ("x", "x.clone()")]
    pairs += [("x", "x[7:8]"), ("x[2:]", "torch.arange(12)[2:]"), ("x.view(3, 4)[:2]", "x.view(3, 4)[2:]")]
    _compare(overlaps, "x = torch.arange(12)", *pairs)


@exercise.check
def interleaved(overlaps):
    """Views that step past each other's elements

    What a view steps past does not belong to it. From its first element to its last it may enclose all of
    another view and share nothing with it.
    """
    pairs = [("x[::2]", "x[1::2]"), ("x[::2]", "x[1::3]"), ("x[::4]", "x[1::2]"), ("x[2::6]", "x[::4]")]
    _compare(overlaps, "x = torch.arange(12)", *pairs)


@exercise.check
def two_dimensions(overlaps):
    """Blocks, rows and columns of a matrix, and what is expanded

    The place of an element is the sum of its steps along all dimensions. Along an expanded dimension, with
    stride 0, a step leads nowhere.
    """
    pairs = [("x[:, 0]", "x[:, 1]"), ("x[:, :2]", "x[:, 2:]"), ("x[:, 1]", "x[2]"), ("x[0]", "x.t()[0]")]
    pairs += [("x[:2, :2]", "x[1:, 2:]"), ("x[:2, 1:3]", "x.t()[2:, 1:]"), ("x[1, 2]", "x[1, :3]")]
    pairs += [("x[0].expand(3, 4)", "x[0]"), ("x[0].expand(3, 4)", "x[1]")]
    _compare(overlaps, "x = torch.arange(12).reshape(3, 4)", *pairs)


@exercise.check
def other_widths(overlaps):
    """Elements of other sizes, and of different sizes

    An address counts bytes and a stride counts elements: a step is `element_size()` times as many bytes, for
    each tensor its own. An element goes on for so many bytes, and one of another dtype may begin inside it.
    """
    setup = "x = torch.arange(4, dtype=torch.int32)\ny, z = x.view(torch.int16), x.view(torch.uint8)"
    pairs = [("z[:4]", "z[3:6]"), ("z[:4]", "z[4:8]"), ("y[:4]", "y[4:]"), ("x[:2]", "y[3:]")]
    pairs += [("x[:2]", "y[4:]"), ("y[2:4]", "x[2:]"), ("y[5]", "x[2]"), ("x[1]", "z[6]")]
    pairs += [("x[::2]", "y[2:4]"), ("z[7::8]", "x[::2]"), ("y[1::2]", "z[::4]"), ("y[1::2]", "z[3::4]")]
    _compare(overlaps, setup, *pairs)


@exercise.check
def every_pair(overlaps):
    """Every pair of small views agrees with the addresses of their elements

    A tensor is a set of bytes: those of its first element, again for each step along each dimension. Two
    tensors overlap where their sets do, and nothing less decides.
    """
    _every_pair().compare(
        lambda a, b: overlaps(a.make(), b.make()),
        _judge,
        simplest=lambda pair: len(pair[0].bytes | pair[1].bytes),
    )


@exercise.check
def from_the_numbers(overlaps):
    """It is worked out in plain Python, from what the two say of themselves

    Where the elements are says enough, and asking for it changes nothing. Writing to one to see whether the
    other changes is seen by whoever reads there meanwhile; and comparing values compares numbers, not places.
    """
    asked = ("data_ptr", "element_size", "stride", "size", "dim", "numel", "storage_offset")
    for views in ("x[:4], x[3:]", "x[::2], x[1::2]", "x.view(3, 4).t(), x[5]"):
        t = expect.given(f"x = torch.arange(12)\na, b = {views}", overlaps=overlaps)
        strides.plain_python(lambda t=t: t.call("overlaps(a, b)"), ask=asked)
