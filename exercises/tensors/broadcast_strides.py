"""The strides that broadcasting makes

`size` and `stride` describe a tensor `x`. Return the strides of `x.expand(shape)`, a tuple or list of
integers, or `None` if `expand` raises. In `a + b` this happens to both tensors before they are added.

The three tuples may have any length. Sizes are at least 1; there is no `-1`. For a dimension of size 1 your
result may hold any number.

Work it out from the numbers, in plain Python: nothing of torch or NumPy may run.

- `broadcast_strides((3, 1), (5, 2), (2, 3, 4))` is `(0, 5, 0)`
- `broadcast_strides((3,), (5,), (3, 4))` is `None`
"""

import functools
import itertools

import torch

from course_utils.exercise import Exercise, Table, Trait
from course_utils.exercise.kits import strides

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "A dimension that is repeated without a copy reads the same places at every step. How far apart in "
        "storage are they?",
        "Write `size` below `shape`, aligned at the right. Each pair of numbers is one of three cases: "
        "equal, a 1 that is repeated, or impossible. Dimensions that only `shape` has are repeated too.",
        "How many dimensions are new? They come first and have stride 0; if that number is negative, there "
        "is no result. Then go through `size`, `stride` and the rest of `shape` together. Keep the stride if "
        "the sizes are equal, take 0 if the tensor has a 1, and otherwise return None.",
    ],
)


@exercise.starter
def broadcast_strides(
    size: tuple[int, ...], stride: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The strides of `x.expand(shape)`, or None where `expand` raises

    `x` is a tensor of this size and stride.
    """
    raise NotImplementedError


# What a case may be about: of the traits that all wrong cases have, the rarest is told.
_TRAITS = [
    Trait(
        "`shape` has fewer dimensions than the tensor",
        lambda size, stride, shape, wanted: len(shape) < len(size),
        "`expand` doesn't remove a dimension, not even one of size 1: there is no result.",
    ),
    Trait(
        "new dimensions are added",
        lambda size, stride, shape, wanted: wanted is not None and len(shape) > len(size),
        "New dimensions come first. Each needs an entry, and a step along it reads the same tensor again.",
    ),
    Trait(
        "`size` is `()`",
        lambda size, stride, shape, wanted: not size,
        "This tensor has one element and no dimensions. All dimensions of `shape` are new.",
    ),
    Trait(
        "`size` and `shape` are `()`",
        lambda size, stride, shape, wanted: not size and not shape,
        "A tensor without dimensions has no strides: they are `()`. There is a result, so it isn't `None`.",
    ),
    Trait(
        "there is no result",
        lambda size, stride, shape, wanted: wanted is None,
        "Only a size of 1 can be repeated, and no size gets smaller.",
    ),
    Trait(
        "there is no result, and a dimension longer than 1 has stride 0",
        lambda size, stride, shape, wanted: wanted is None and any(map(lambda n, s: n > 1 > s, size, stride)),
        "`expand` asks for sizes, not for strides: with stride 0 a size of 2 is still no 1.",
    ),
    Trait(
        "there is a result",
        lambda size, stride, shape, wanted: wanted is not None,
        "`expand` can keep a size, repeat a size of 1, and add dimensions in front.",
    ),
    Trait(
        "a size of 1 is repeated",
        lambda size, stride, shape, wanted: wanted is not None and size != shape[len(shape) - len(size) :],
        "Each step along it reads the one element again: its stride is 0, whatever it was before.",
    ),
    Trait(
        "the tensor is not contiguous and there is a result",
        lambda size, stride, shape, wanted: wanted is not None and not strides.contiguous(size, stride),
        "Elements of a dimension that isn't repeated stay where `stride` says.",
    ),
]


def _cases(*wanted):
    return strides.cases(lambda x, shape: x.expand(shape).stride(), *wanted)


@functools.cache
def _every_small_case():
    """All sizes and shapes of up to 3 dimensions with up to 3 elements, and three kinds of strides."""
    sizes = [size for dims in range(4) for size in itertools.product((1, 2, 3), repeat=dims)]
    wanted = [(size, of[: len(size)], sizes) for size in sizes for of in ((7, 5, 4), (1, 0, 9))]
    wanted += [(size, torch.empty(size).stride(), sizes) for size in sizes]
    return Table("broadcast_strides", _cases(*wanted), _TRAITS)


def _compare(broadcast_strides, *wanted):
    Table("broadcast_strides", _cases(*wanted)).compare(broadcast_strides, strides.judge)


@exercise.check
def kept(broadcast_strides):
    """Strides stay if nothing is repeated

    The tensor may be a view itself, transposed or with gaps. `expand` moves no element, so they stay where
    `stride` says. A tensor without dimensions has no strides, and `()` isn't `None`.
    """
    same = [((3, 4), (4, 1)), ((3, 4), (1, 3)), ((2, 3, 4), (24, 8, 2)), ((2, 3), (0, 1)), ((), ())]
    _compare(broadcast_strides, *((size, stride, [size]) for size, stride in same))


@exercise.check
def repeated(broadcast_strides):
    """Dimensions of size 1 are repeated

    To read the same element again, a step along the dimension stays where it is: its stride is 0. A stride of
    1 goes on to the next element in storage.
    """
    _compare(
        broadcast_strides,
        ((3, 1), (1, 1), [(3, 4)]),
        ((1, 4), (9, 2), [(3, 4), (1, 4)]),
        ((1, 3, 1), (3, 1, 5), [(2, 3, 4), (2, 3, 1)]),
        ((1, 1), (6, 2), [(3, 2)]),
        ((2, 1, 3, 1, 2), (9, 8, 3, 5, 1), [(2, 4, 3, 2, 2)]),
    )


@exercise.check
def new_dimensions(broadcast_strides):
    """New dimensions come first

    Sizes are paired from the right. The dimensions that `shape` has beyond them, at its left end, are new.
    Every step along them reads the same tensor again: stride 0.
    """
    _compare(
        broadcast_strides,
        ((4,), (2,), [(3, 4), (2, 3, 4), (4, 4)]),
        ((3, 4), (8, 2), [(2, 3, 4)]),
        ((3, 1), (5, 2), [(2, 3, 4), (3, 3, 3)]),
        ((), (), [(3,), (2, 3)]),
        ((2, 1, 3, 1, 2), (9, 8, 3, 5, 1), [(3, 2, 1, 3, 2, 2)]),
    )


@exercise.check
def impossible(broadcast_strides):
    """`None` for shapes that the tensor cannot be expanded to

    `expand` keeps a size or repeats a size of 1. It changes no other size, not to a multiple and not to 1,
    whatever the stride, and it removes no dimension.
    """
    _compare(
        broadcast_strides,
        ((3,), (5,), [(2,), (6,), (3, 4), (1,)]),
        ((3, 2), (2, 1), [(3, 4), (6, 2), (1, 2), (2, 3)]),
        ((2, 3), (3, 1), [(3,), (2,), ()]),
        ((1, 3), (3, 1), [(3,)]),
        ((3, 2), (0, 1), [(6, 2), (1, 2)]),
    )


@exercise.check
def every_small_case(broadcast_strides):
    """Every small case agrees with `Tensor.expand`

    From the right, each pair of sizes is equal (keep the stride) or a 1 that is repeated (0); otherwise there
    is no result. Dimensions left over in `shape` are new (0). If `size` is longer, there is no result.
    """
    _every_small_case().compare(broadcast_strides, strides.judge, simplest=strides.simplest)


@exercise.check(cases=["(2, 3, 4)", "(3, 5)", "(2,)"])
def from_the_numbers(t, shape):
    """It is worked out in plain Python

    Compute with the three tuples of integers. If you make a tensor or an array of that size and ask it, you
    get the strides but don't find the rule.
    """
    strides.plain_python(lambda: t.call(f"broadcast_strides((3, 1), (5, 2), {shape})"))
