"""The strides that broadcasting makes

`size` and `stride` describe a tensor, `shape` is what it is to be expanded to. Return the strides of
`x.expand(shape)`, or `None` where `expand` raises. This is what happens to each operand of `a + b` before
anything is added, and nothing is written in memory for it.

All three are tuples of integers of any length, the empty one included, and so is what you return; there is
no `-1` in `shape`. Sizes may be 0. No step is ever made along a dimension of size 1, nor in a tensor without
elements: at these places of the result any number will do.

Work it out from the numbers: no operator of torch's may run. The last check compares every small case with
what `expand` does.

- `broadcast_strides((3, 1), (5, 2), (2, 3, 4))` is `(0, 5, 0)`
- `broadcast_strides((3,), (5,), (3, 4))` is `None`
"""

import functools
import itertools
import math

import torch

from course_utils import expect, many_cases, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=10,
    hints=[
        "A dimension that is repeated without a copy has to read the same places at every step. How far "
        "apart in storage is that?",
        "Write `size` below `shape`, flush at the right end. Each pair of numbers is one of three cases: "
        "equal, a 1 that is repeated, or impossible. What `shape` has alone, on the left, is repeated too.",
        "How many dimensions are new? They come first and have stride 0; if that number is negative there is "
        "no result. Then go through `size`, `stride` and the rest of `shape` together: keep the stride where "
        "the sizes are equal, take 0 where the tensor has a 1, and give up elsewhere.",
    ],
)


@exercise.starter
def broadcast_strides(
    size: tuple[int, ...], stride: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The strides of `x.expand(shape)` for an `x` of this size and stride; None where `expand` raises"""
    raise NotImplementedError


# --- the oracle: torch's own `expand`, on real tensors ----------------------------------------------------


def _of_torch(x, shape):
    return x.expand(shape).stride()


def _compare(broadcast_strides, *wanted):
    """`wanted`: size, stride, and the shapes to try with them."""
    cases = many_cases.strides_cases(_of_torch, *wanted)
    many_cases.compare_strides(broadcast_strides, cases, name="broadcast_strides", operation="expand")


@functools.cache
def _every_case():
    """Sizes of up to 3 dimensions with up to 3 elements, with two kinds of strides, expanded to all such
    shapes and some of 4 dimensions."""
    sizes = [size for dims in range(3) for size in itertools.product(range(4), repeat=dims)]
    sizes += [*itertools.product((1, 3), (1, 2), (1, 2, 3)), (0, 1, 1), (1, 0, 2), (2, 3, 0), (0, 0, 1)]
    shapes = [*sizes, (2, 1, 3, 2), (3, 2, 2, 1), (1, 1, 1, 3), (2, 0, 1, 3)]
    strides = ((7, 5, 4), (1, 0, 9))
    wanted = [(size, stride[: len(size)], shapes) for size in sizes if size for stride in strides]
    return many_cases.strides_cases(_of_torch, ((), (), shapes), *wanted)


def _complexity(case):
    (size, _, shape), _ = case
    return len(size) + len(shape), math.prod(shape)


# --- the checks -------------------------------------------------------------------------------------------


@exercise.check
def same_shape(broadcast_strides):
    """Nothing to repeat: the strides stay, whatever they are"""
    _compare(
        broadcast_strides,
        ((3, 4), (4, 1), [(3, 4)]),
        ((3, 4), (1, 3), [(3, 4)]),
        ((2, 3, 4), (24, 8, 2), [(2, 3, 4)]),
        ((2, 3), (0, 1), [(2, 3)]),
        ((), (), [()]),
    )


@exercise.check
def ones_are_repeated(broadcast_strides):
    """Dimensions of size 1 are repeated"""
    _compare(
        broadcast_strides,
        ((3, 1), (1, 1), [(3, 4)]),
        ((1, 4), (9, 2), [(3, 4), (1, 4)]),
        ((1, 3, 1), (3, 1, 5), [(2, 3, 4), (2, 3, 1)]),
        ((1, 1), (6, 2), [(3, 2)]),
    )


@exercise.check
def new_dimensions(broadcast_strides):
    """New dimensions come in front"""
    _compare(
        broadcast_strides,
        ((4,), (2,), [(3, 4), (2, 3, 4), (4, 4)]),
        ((3, 4), (8, 2), [(2, 3, 4)]),
        ((3, 1), (5, 2), [(2, 3, 4), (3, 3, 3)]),
        ((), (), [(3,), (2, 3)]),
    )


@exercise.check
def impossible(broadcast_strides):
    """Shapes that the tensor cannot be expanded to"""
    _compare(
        broadcast_strides,
        ((3,), (5,), [(2,), (6,), (3, 4), (1,)]),
        ((3, 2), (2, 1), [(3, 4), (6, 2), (1, 2), (2, 3)]),
        ((2, 3), (3, 1), [(3,), (2,), ()]),
        ((1, 3), (3, 1), [(3,)]),
        ((2, 2, 2), (4, 2, 1), [(2, 2)]),
    )


@exercise.check
def empty(broadcast_strides):
    """Sizes of 0"""
    _compare(
        broadcast_strides,
        ((1,), (1,), [(0,), (2, 0)]),
        ((0,), (1,), [(0,), (3, 0), (1,), (2,)]),
        ((3,), (1,), [(0,), (0, 3)]),
        ((0, 1), (1, 1), [(0, 4), (0, 0)]),
    )


@exercise.check
def no_operator(broadcast_strides):
    """No operator of torch's runs"""
    t = expect.given("", broadcast_strides=broadcast_strides)
    for shape in ("(2, 3, 4)", "(3, 5)"):
        with measure.operators() as ran:
            t.call(f"broadcast_strides((3, 1), (5, 2), {shape})")
        expect.true(
            not ran.calls,
            "torch's operators ran while your function worked",
            "expected: none. The strides follow from the three tuples",
        )


@exercise.check
def every_small_case(broadcast_strides):
    """Every small case agrees with `Tensor.expand`"""
    named = {"name": "broadcast_strides", "operation": "expand", "simplest": _complexity}
    many_cases.compare_strides(broadcast_strides, _every_case(), **named)


# --- the mistakes -----------------------------------------------------------------------------------------


@exercise.mistake
def keeps_the_stride(size, stride, shape):
    """A dimension of size 1 keeps its stride in your result when it is repeated. Each step along it would
    then go on in storage, to whatever lies there. To read the same elements again, a step has to stay where
    it is: its stride is 0."""
    new = len(shape) - len(size)
    if new < 0 or any(n not in (1, m) for n, m in zip(size, shape[new:], strict=True)):
        return None
    return (0,) * new + tuple(stride)


@keeps_the_stride.variant
def own_strides_at_the_end(size, stride, shape):
    if len(size) > len(shape):
        return None
    result, sizes, steps = [], list(size), list(stride)
    for m in reversed(shape):
        n, step = (sizes.pop(), steps.pop()) if sizes else (1, 0)
        if n != m and n != 1:
            return None
        result.insert(0, step)
    return result


@exercise.mistake
def new_dimensions_have_a_stride(size, stride, shape):
    """Your new dimensions have a stride, as if there were something to go on to. There is one copy of the
    tensor, and every step along a new dimension reads it again: stride 0."""
    new = len(shape) - len(size)
    if new < 0:
        return None
    result = []
    for n, step, m in zip(size, stride, shape[new:], strict=True):
        if n != m and n != 1:
            return None
        result.append(step if n == m else 0)
    for m in reversed(shape[:new]):
        inner = size[0] * stride[0] if size else 1
        result.insert(0, inner)
        size, stride = (m, *size), (inner, *stride)
    return tuple(result)


@exercise.mistake
def strides_of_a_copy(size, stride, shape):
    """These are the strides of a new tensor of that shape, as `repeat` makes one. `expand` writes nothing: it
    reads the elements where they are, at the strides that they have."""
    new = len(shape) - len(size)
    if new < 0 or any(n not in (1, m) for n, m in zip(size, shape[new:], strict=True)):
        return None
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


@strides_of_a_copy.variant
def as_repeat_lays_it_out(size, stride, shape):
    if len(shape) < len(size):
        return None
    result, width = [], 1
    for i in range(1, len(shape) + 1):
        if i <= len(size) and size[-i] not in (1, shape[-i]):
            return None
        result.append(width)
        width *= shape[-i]
    return result[::-1]


@exercise.mistake
def aligns_on_the_left(size, stride, shape):
    """You line the two up at their left ends. Broadcasting begins with the last dimension: `(3,)` expands to
    `(4, 3)` and not to `(3, 4)`, and new dimensions come in front."""
    if len(size) > len(shape):
        return None
    result = []
    for n, step, m in zip(size, stride, shape, strict=False):
        if n == m:
            result.append(step)
        elif n == 1:
            result.append(0)
        else:
            return None
    return tuple(result) + (0,) * (len(shape) - len(size))


@aligns_on_the_left.variant
def fills_up_with_ones(size, stride, shape):
    missing = len(shape) - len(size)
    if missing < 0:
        return None
    size, stride = [*size, *[1] * missing], [*stride, *[0] * missing]
    if any(n != 1 and n != m for n, m in zip(size, shape, strict=True)):
        return None
    return tuple(step if n == m else 0 for n, step, m in zip(size, stride, shape, strict=True))


@exercise.mistake
def repeats_anything(size, stride, shape):
    """You repeat dimensions of every size. Only a dimension of size 1 can be repeated by standing still; with
    two different elements in it, there is no such stride, and `expand` raises."""
    new = len(shape) - len(size)
    if new < 0:
        return None
    kept = [step if n == m else 0 for n, step, m in zip(size, stride, shape[new:], strict=True)]
    return (0,) * new + tuple(kept)


@repeats_anything.variant
def zero_where_it_differs(size, stride, shape):
    if len(size) > len(shape):
        return None
    result = [0] * len(shape)
    for i in range(-1, -1 - len(size), -1):
        if size[i] == shape[i]:
            result[i] = stride[i]
    return result


@exercise.mistake
def tiles(size, stride, shape):
    """You allow every multiple of a size, as `repeat` does. Two elements over and over are no stride: after
    the second one would have to go back. `expand` repeats a size of 1 and nothing else."""
    new = len(shape) - len(size)
    if new < 0:
        return None
    result = [0] * new
    for n, step, m in zip(size, stride, shape[new:], strict=True):
        if n == m:
            result.append(step)
        elif n and m % n == 0:
            result.append(0)
        else:
            return None
    return tuple(result)


@exercise.mistake
def broadcasts_both_ways(size, stride, shape):
    """You accept a 1 on either side, as for the two operands of `a + b`. Here `shape` is what has to come
    out: three elements cannot be expanded to one."""
    new = len(shape) - len(size)
    if new < 0:
        return None
    result = [0] * new
    for n, step, m in zip(size, stride, shape[new:], strict=True):
        if 1 not in (n, m) and n != m:
            return None
        result.append(step if n == m else 0)
    return tuple(result)


@broadcasts_both_ways.variant
def a_one_fits_everywhere(size, stride, shape):
    result = []
    for i in range(1, len(shape) + 1):
        n, step = (size[-i], stride[-i]) if i <= len(size) else (1, 0)
        if n == shape[-i]:
            result.insert(0, step)
        elif n == 1 or shape[-i] == 1:
            result.insert(0, 0)
        else:
            return None
    return result if len(size) <= len(shape) else None


@exercise.mistake
def drops_dimensions(size, stride, shape):
    """Your result has fewer dimensions than the tensor where `shape` has fewer. Expanding adds dimensions and
    never takes one away, not even one of size 1: `expand` raises."""
    common = min(len(size), len(shape))
    size, stride = size[len(size) - common :], stride[len(stride) - common :]
    result = [0] * (len(shape) - common)
    for n, step, m in zip(size, stride, shape[len(shape) - common :], strict=True):
        if n != m and n != 1:
            return None
        result.append(step if n == m else 0)
    return tuple(result)


@drops_dimensions.variant
def pairs_from_the_right(size, stride, shape):
    result = [0] * len(shape)
    triples = zip(reversed(size), reversed(stride), reversed(shape), strict=False)
    for place, (n, step, m) in enumerate(triples, 1):
        if n == m:
            result[-place] = step
        elif n != 1:
            return None
    return result


@exercise.mistake
def drops_leading_ones(size, stride, shape):
    """You leave out leading dimensions of size 1 where `shape` has fewer dimensions than the tensor.
    Expanding adds dimensions and never takes one away, not even one of size 1: `expand` raises."""
    while len(size) > len(shape) and size[0] == 1:
        size, stride = size[1:], stride[1:]
    new = len(shape) - len(size)
    if new < 0 or any(n not in (1, m) for n, m in zip(size, shape[new:], strict=True)):
        return None
    kept = [step if n == m else 0 for n, step, m in zip(size, stride, shape[new:], strict=True)]
    return (0,) * new + tuple(kept)


@exercise.mistake
def raises_itself(size, stride, shape):
    """Your function raises where `expand` does. Here the answer to an impossible shape is `None`, so that it
    can be asked for without a `try`."""
    new = len(shape) - len(size)
    if new < 0 or any(n not in (1, m) for n, m in zip(size, shape[new:], strict=True)):
        raise ValueError(f"a tensor of size {size} cannot be expanded to {shape}")
    kept = [step if n == m else 0 for n, step, m in zip(size, stride, shape[new:], strict=True)]
    return (0,) * new + tuple(kept)


@exercise.mistake
def needs_all_dimensions(size, stride, shape):
    """You answer `None` where `shape` has more dimensions than the tensor. New ones may come in front: they
    are repeated like dimensions of size 1."""
    if len(size) != len(shape):
        return None
    if any(n not in (1, m) for n, m in zip(size, shape, strict=True)):
        return None
    return tuple(step if n == m else 0 for n, step, m in zip(size, stride, shape, strict=True))


@needs_all_dimensions.variant
def one_for_one(size, stride, shape):
    result = []
    for i, n in enumerate(size):
        if len(shape) != len(size) or n not in (1, shape[i]):
            return None
        result.append(0 if n != shape[i] else stride[i])
    return result if len(shape) == len(size) else None


@exercise.mistake
def never_shrinks(size, stride, shape):
    """You refuse to expand a size of 1 to 0, because 0 is less. A size of 1 becomes any size there is, and 0
    is one: no step is made, nothing is read."""
    new = len(shape) - len(size)
    if new < 0:
        return None
    result = [0] * new
    for n, step, m in zip(size, stride, shape[new:], strict=True):
        if n > m or n not in (1, m):
            return None
        result.append(step if n == m else 0)
    return tuple(result)


@exercise.mistake
def asks_torch(size, stride, shape):
    """The strides are right, and torch has found them: you made a tensor and called `expand` or a relative of
    it. Find them from the numbers."""
    try:
        return torch.empty_strided(size, stride).expand(shape).stride()
    except RuntimeError:
        return None


@asks_torch.variant
def broadcasts_a_tensor(size, stride, shape):
    x = torch.empty_strided(size, stride, device="meta")
    with torch.no_grad():
        try:
            return list(torch.broadcast_to(x, shape).stride())
        except RuntimeError:
            return None
