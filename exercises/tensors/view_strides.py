"""The strides that `view` finds

`size` and `stride` describe a tensor `x`, and `shape` has as many elements: at least one. Return the strides
of `x.view(shape)`, a tuple of integers, or `None` where `view` raises because no strides can read the same
storage in the new shape.

Strides may be 0. Along a dimension of size 1 no step is made: there `stride` may hold any number, and so may
your result.

Work it out from the numbers, in plain Python: nothing of torch's or NumPy's may run.

- `view_strides((3, 4), (8, 2), (12,))` is `(2,)`: the rows follow each other 2 apart, like the elements in
  them.
- `view_strides((3, 4), (1, 3), (12,))` is `None`.
- `view_strides((3, 4), (1, 3), (3, 2, 2))` is `(1, 6, 3)`.
"""

import functools
import itertools
import math

from course_utils.exercise import Exercise, Table, Trait, expect
from course_utils.exercise.kits import strides

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "Take it in two halves. First forget `shape`: which dimensions of the tensor follow each other "
        "without a break, so that they can be read as one? Then cut what you have got into the new shape.",
        "Two neighbours merge when one step of the outer is as long as a full run of the inner. Going from "
        "left to right, `(size, stride)` becomes a list of blocks with a length and a step. What has size 1 "
        "can be left out before you begin.",
        "Then from the right: the last new dimension takes its elements from the last block, with the step "
        "of the block; the one before it steps over all that has been taken. When a block is used up, the "
        "next one begins; when a dimension does not divide what is left of a block, there is no view.",
    ],
)


@exercise.starter
def view_strides(
    size: tuple[int, ...], stride: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The strides of `x.view(shape)`, or None where `view` raises

    `x` is a tensor of this size and stride, with as many elements as `shape`.
    """
    raise NotImplementedError


# What a case may be about: of the traits that all wrong cases have, the rarest is told.
_TRAITS = [
    Trait(
        "`shape` has a dimension of size 1",
        lambda size, stride, shape, wanted: 1 in shape,
        "A new dimension of size 1 takes no elements. Any stride will do for it, but the result has one.",
    ),
    Trait(
        "the tensor has a dimension of size 1",
        lambda size, stride, shape, wanted: 1 in size,
        "The stride along a dimension of size 1 says nothing: the dimensions beside it are neighbours.",
    ),
    Trait(
        "the tensor is expanded: a stride is 0",
        lambda size, stride, shape, wanted: any(n != 1 and not s for n, s in zip(size, stride, strict=True)),
        "0 is a stride like others: it can stay, it can be cut, and it merges with another 0 alone.",
    ),
    Trait(
        "there is no view",
        lambda size, stride, shape, wanted: wanted is None,
        "A new dimension has to lie inside one block of dimensions that follow each other, and has to divide "
        "what is left of it.",
    ),
    Trait(
        "the tensor is not contiguous and there is a view",
        lambda size, stride, shape, wanted: bool(wanted) and not strides.contiguous(size, stride),
        "`view` asks for less than a contiguous tensor: only dimensions that the new shape merges have to "
        "follow each other.",
    ),
    Trait(
        "the new shape merges dimensions",
        lambda size, stride, shape, wanted: not strides.ends(size) <= strides.ends(shape),
        "Neighbours merge where a step of the outer is as long as a full run of the inner, `stride[i] == "
        "size[i + 1] * stride[i + 1]`. What is merged has the stride of the inner.",
    ),
    Trait(
        "the new shape cuts what can be read as one",
        lambda size, stride, shape, wanted: not strides.ends(shape) <= strides.ends(size, stride),
        "What is cut needs no copy: the inner piece keeps the stride, the outer steps over a full run of it.",
    ),
    Trait(
        "the tensor is not contiguous",
        lambda size, stride, shape, wanted: not strides.contiguous(size, stride),
        "The elements lie where `stride` says: it has a part in every number of the result.",
    ),
]


def _cases(*wanted):
    return strides.cases(lambda x, shape: x.view(shape).stride(), *wanted)


@functools.cache
def _every_small_case():
    """Small tensors in all shapes that they might have: up to 3 dimensions, all strides that can tell."""
    wanted = []
    for sizes, steps, beyond in (
        ([(n,) for n in range(1, 9)], range(4), 4),
        (itertools.product(range(1, 5), repeat=2), (0, 1, 2, 3, 4, 6), 3),
        ([(2, 3, 2), (3, 2, 2), (2, 2, 2)], (0, 1, 2, 6), 3),
        ([(3, 1, 2), (1, 2, 2)], (0, 1, 2, 6), 3),
        ([(2, 1, 2, 2)], (1, 2, 4), 3),
    ):
        for size in sizes:
            shapes = strides.shapes(math.prod(size), beyond)
            wanted += [(size, stride, shapes) for stride in itertools.product(steps, repeat=len(size))]
    return Table("view_strides", _cases(*wanted), _TRAITS)


def _compare(view_strides, *wanted):
    Table("view_strides", _cases(*wanted)).compare(view_strides, strides.judge)


@exercise.check
def cuts(view_strides):
    """A contiguous tensor, cut into a new shape

    All its dimensions follow each other, so it can be read as one block. Cut from the right, each new
    dimension steps over what those to its right have taken.
    """
    _compare(
        view_strides,
        ((12,), (1,), [(12,), (3, 4), (2, 3, 2)]),
        ((3, 4), (4, 1), [(3, 4), (12,), (4, 3), (2, 6), (2, 3, 2), (6, 2)]),
        ((2, 3, 4), (12, 4, 1), [(24,), (6, 4), (2, 12), (4, 2, 3), (2, 3, 2, 2)]),
    )


@exercise.check
def merges(view_strides):
    """Slices and transposes: some shapes have a view, some have none

    What the new shape merges has to follow each other in storage: a step of the outer dimension is as long
    as a full run of the inner. What it leaves apart, or cuts, need not.
    """
    _compare(
        view_strides,
        ((3, 4), (8, 2), [(12,), (4, 3), (3, 2, 2), (6, 2)]),
        ((3, 4), (1, 3), [(3, 2, 2), (12,), (4, 3), (6, 2), (2, 6)]),
        ((3, 4), (6, 1), [(3, 4), (3, 2, 2), (12,), (6, 2)]),
        ((2, 3, 4), (4, 8, 1), [(2, 12), (6, 4), (2, 3, 2, 2)]),
        ((2, 2, 3), (12, 6, 2), [(12,), (4, 3), (3, 4), (2, 6)]),
    )


@exercise.check
def size_one(view_strides):
    """Dimensions of size 1, before and after, whatever their stride

    No step is ever made along them. In the tensor they part nothing, whatever their stride is; in the new
    shape they take no elements.
    """
    _compare(
        view_strides,
        ((3, 1, 4), (4, 7, 1), [(12,), (3, 4), (3, 1, 4), (1, 12), (6, 1, 2)]),
        ((1, 4), (9, 2), [(4,), (2, 2), (4, 1), (1, 1, 4), (2, 1, 2)]),
        ((4, 1), (2, 5), [(4,), (2, 2), (1, 4)]),
        ((1, 1), (3, 5), [(1,), (1, 1, 1)]),
    )


@exercise.check
def expanded(view_strides):
    """Expanded dimensions, whose stride is 0

    0 is a stride like others: it can stay and can be cut. It merges with another 0 alone: a full run of
    steps of 0 ends where it began.
    """
    _compare(
        view_strides,
        ((3, 4), (0, 1), [(3, 4), (12,), (3, 2, 2), (4, 3), (6, 2)]),
        ((3, 4), (1, 0), [(3, 4), (12,), (3, 2, 2), (2, 6)]),
        ((2, 3), (0, 0), [(6,), (3, 2), (1, 6)]),
        ((2, 3, 2), (2, 0, 1), [(2, 6), (6, 2), (12,), (2, 3, 2)]),
    )


@exercise.check
def every_small_case(view_strides):
    """Every small case agrees with `Tensor.view`

    Neighbours that follow each other merge into blocks, and between two blocks the walk through the elements
    jumps. A new dimension lies inside one block and divides what is left of it, or there is no view.
    """
    _every_small_case().compare(view_strides, strides.judge, simplest=strides.simplest)


@exercise.check
def from_the_numbers(view_strides):
    """It is worked out in plain Python

    Three tuples of integers are all there is to compute with. Whoever makes a tensor or an array of that size
    and asks it has found the strides, and not the rule.
    """
    t = expect.given("", view_strides=view_strides)
    for shape in ((12,), (3, 2, 2)):
        strides.plain_python(lambda shape=shape: t.call(f"view_strides((3, 4), (1, 3), {shape})"))
