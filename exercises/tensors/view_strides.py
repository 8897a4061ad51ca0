"""The strides that `view` finds

`size` and `stride` describe a tensor `x` with at least one element, and `shape` has as many elements. Return
the strides of `x.view(shape)`, a tuple or list of integers, or `None` if `view` raises.

Strides may be 0. For a dimension of size 1 `stride` may hold any number, and so may your result.

Work it out from the numbers, in plain Python: nothing of torch or NumPy may run.

- `view_strides((3, 4), (8, 2), (12,))` is `(2,)`: one stride reads all rows.
- `view_strides((3, 4), (1, 3), (12,))` is `None`.
- `view_strides((3, 4), (1, 3), (3, 2, 2))` is `(1, 6, 3)`.
"""

import functools
import itertools
import math

from course_utils.exercise import Exercise, Table, Trait
from course_utils.exercise.kits import strides

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "Do it in two halves. First forget `shape`: which dimensions of the tensor follow each other "
        "without a break, so that they can be read as one? Then cut the result into the new shape.",
        "Two neighbours merge when one step of the outer is as long as a full run of the inner. Go from left "
        "to right and turn `(size, stride)` into a list of blocks, each with a length and a step. Leave out "
        "dimensions of size 1 before you begin.",
        "Then go from the right. The last new dimension takes its elements from the last block, with the "
        "block's step. The dimension before it steps over all that has been taken. When a block is used up, "
        "the next one begins. If a dimension doesn't divide what is left of a block, there is no view.",
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
        "A new dimension of size 1 takes no elements. The result needs a stride for it, and any will do.",
    ),
    Trait(
        "the tensor has a dimension of size 1",
        lambda size, stride, shape, wanted: 1 in size,
        "Ignore the stride of a dimension of size 1: the dimensions beside it are neighbours.",
    ),
    Trait(
        "the tensor is expanded: a stride is 0",
        lambda size, stride, shape, wanted: any(n != 1 and not s for n, s in zip(size, stride, strict=True)),
        "Treat 0 like any other stride: it can stay and can be cut. It merges only with another 0.",
    ),
    Trait(
        "there is no view",
        lambda size, stride, shape, wanted: wanted is None,
        "A new dimension must lie inside one block of dimensions that follow each other, and must divide "
        "what is left of the block.",
    ),
    Trait(
        "the tensor is not contiguous and there is a view",
        lambda size, stride, shape, wanted: bool(wanted) and not strides.contiguous(size, stride),
        "`view` doesn't need a contiguous tensor: only dimensions that the new shape merges must follow each "
        "other.",
    ),
    Trait(
        "the new shape merges dimensions",
        lambda size, stride, shape, wanted: not strides.ends(size) <= strides.ends(shape),
        "Neighbours merge where a step of the outer is as long as a full run of the inner, `stride[i] == "
        "size[i + 1] * stride[i + 1]`. The merged dimension has the stride of the inner.",
    ),
    Trait(
        "the new shape cuts what can be read as one",
        lambda size, stride, shape, wanted: not strides.ends(shape) <= strides.ends(size, stride),
        "Cutting needs no copy: the inner piece keeps the stride, and the outer steps over a full run of it.",
    ),
    Trait(
        "the tensor is not contiguous",
        lambda size, stride, shape, wanted: not strides.contiguous(size, stride),
        "The elements lie where `stride` says, so every number of the result depends on it.",
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

    All its dimensions follow each other, so it's one block. Cut it from the right: each new dimension steps
    over what the dimensions to its right have taken.
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

    Dimensions that the new shape merges must follow each other in storage: a step of the outer is as long as
    a full run of the inner. Dimensions that stay apart, or are cut, need not.
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

    No step is made along them. In the tensor they don't separate their neighbours, whatever their stride. In
    the new shape they take no elements. A tensor of size `()` has one element, and no dimensions.
    """
    _compare(
        view_strides,
        ((3, 1, 4), (4, 7, 1), [(12,), (3, 4), (3, 1, 4), (1, 12), (6, 1, 2)]),
        ((1, 4), (9, 2), [(4,), (2, 2), (4, 1), (1, 1, 4), (2, 1, 2)]),
        ((4, 1), (2, 5), [(4,), (2, 2), (1, 4)]),
        ((1, 1), (3, 5), [(1,), (1, 1, 1), ()]),
        ((), (), [(), (1,), (1, 1)]),
        ((2, 1, 3, 2, 2), (48, 5, 8, 2, 1), [(2, 3, 1, 4), (2, 3, 2, 1, 2, 1), (6, 4)]),
    )


@exercise.check
def expanded(view_strides):
    """Expanded dimensions, whose stride is 0

    Treat 0 like any other stride: it can stay and can be cut. Between sizes above 1 it merges only with
    another 0, because a full run of steps of 0 ends where it began.
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

    Neighbours that follow each other merge into blocks. A new dimension must lie inside one block and divide
    what is left of it; otherwise there is no view.
    """
    _every_small_case().compare(view_strides, strides.judge, simplest=strides.simplest)


@exercise.check(cases=["(12,)", "(3, 2, 2)"])
def from_the_numbers(t, shape):
    """It is worked out in plain Python

    Compute with the three tuples of integers. If you make a tensor or an array of that size and ask it, you
    get the strides but don't find the rule.
    """
    strides.plain_python(lambda: t.call(f"view_strides((3, 4), (1, 3), {shape})"))
