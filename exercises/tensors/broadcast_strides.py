"""The strides that broadcasting makes

`size` and `stride` describe a tensor, `shape` is what it is to be expanded to. Return the strides of
`x.expand(shape)`, or `None` where `expand` raises. This is what happens to each operand of `a + b` before
anything is added, and nothing is written in memory for it.

All three are tuples of integers of any length, the empty one included; there is no `-1` in `shape`. What
you return is a tuple or a list of integers, or `None`. Sizes may be 0. No step is ever made along a dimension
of size 1, nor in a tensor without elements: at these places of the result any number will do.

Work it out from the numbers: no operator of torch's may run. The last check compares every small case with
what `expand` does.

- `broadcast_strides((3, 1), (5, 2), (2, 3, 4))` is `(0, 5, 0)`
- `broadcast_strides((3,), (5,), (3, 4))` is `None`
"""

import functools
import itertools
import math

import torch

from course_utils import many_cases
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
    """The strides of `x.expand(shape)`, or None where `expand` raises

    `x` is a tensor of this size and stride.
    """
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
    many_cases.no_operator(
        broadcast_strides,
        *(((3, 1), (5, 2), shape) for shape in ((2, 3, 4), (3, 5))),
        name="broadcast_strides",
        views=("aten.expand",),
    )


@exercise.check
def every_small_case(broadcast_strides):
    """Every small case agrees with `Tensor.expand`"""
    named = {"name": "broadcast_strides", "operation": "expand", "simplest": _complexity}
    many_cases.compare_strides(broadcast_strides, _every_case(), **named)


# --- the mistakes -----------------------------------------------------------------------------------------


def _expanded(size, stride, shape):
    new = len(shape) - len(size)
    if new < 0 or any(n not in (1, m) for n, m in zip(size, shape[new:], strict=True)):
        return None
    kept = [step if n == m else 0 for n, step, m in zip(size, stride, shape[new:], strict=True)]
    return (0,) * new + tuple(kept)


def _contiguous_strides(shape):
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


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
    """Your new dimensions have a stride other than 0. There is one copy of the tensor, and every step along a
    new dimension reads it again, so it has to stay where it is: stride 0."""
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


@new_dimensions_have_a_stride.form
def new_dimensions_have_the_first_stride(size, stride, shape):
    found = _expanded(size, stride, shape)
    new = len(shape) - len(size)
    return found and (*(stride[:1] or (0,)) * new, *found[new:])


@exercise.mistake
def forgets_new_dimensions(size, stride, shape):
    """Your result has no entry for the new dimensions. It needs a stride for each dimension of `shape`: the
    new ones come first, and have stride 0."""
    found = _expanded(size, stride, shape)
    return found and found[len(shape) - len(size) :]


@forgets_new_dimensions.form
def zeroes_the_ones(size, stride, shape):
    return tuple(0 if n == 1 else step for n, step in zip(size, stride, strict=True))


@forgets_new_dimensions.form
def zeroes_what_differs(size, stride, shape):
    return tuple(step if n == m else 0 for n, step, m in zip(size, stride, shape, strict=False))


@exercise.mistake
def new_dimensions_come_last(size, stride, shape):
    """The strides of the new dimensions stand at the end of your result. New dimensions come in front, and so
    do their zeros."""
    found = _expanded(size, stride, shape)
    new = len(shape) - len(size)
    return found and found[new:] + found[:new]


@new_dimensions_come_last.form
def zeros_at_the_end(size, stride, shape):
    if len(size) > len(shape):
        return None
    result = []
    for n, step, m in zip(size, stride, shape[len(shape) - len(size) :], strict=True):
        if n != m and n != 1:
            return None
        result += [0 if n == 1 else step]
    return result + [0] * (len(shape) - len(size))


@exercise.mistake
def the_last_comes_first(size, stride, shape):
    """Your strides are right and stand the wrong way round: you have gone from the right, and the stride of
    the last dimension comes first in your result."""
    found = _expanded(size, stride, shape)
    return found and found[::-1]


@exercise.mistake
def repeated_has_stride_one(size, stride, shape):
    """A dimension that you repeat has a stride of 1 in your result. A step of 1 goes on to the next place in
    storage; to read the same one again, a step has to be 0 long."""
    found = _expanded(size, stride, shape)
    new = len(shape) - len(size)
    return found and (0,) * new + tuple(
        step if n == m else 1 for n, step, m in zip(size, found[new:], shape[new:], strict=True)
    )


@exercise.mistake
def zeroes_stride_one(size, stride, shape):
    """You put a 0 where the stride is 1. What is repeated is a dimension of *size* 1; a stride of 1 says that
    its elements lie side by side, and stays as it is."""
    found = _expanded(size, stride, shape)
    new = len(shape) - len(size)
    return found and (0,) * new + tuple(0 if step == 1 else step for step in stride)


@zeroes_stride_one.form
def zeroes_stride_one_and_size_one(size, stride, shape):
    found = _expanded(size, stride, shape)
    return found and tuple(0 if step == 1 else step for step in found)


@exercise.mistake
def ignores_the_stride(size, stride, shape):
    """Where nothing is repeated you have put the strides of a new tensor of this size. The tensor may be a
    view itself, and its own strides stay: they are what `stride` is for."""
    new = len(shape) - len(size)
    return _expanded(size, _contiguous_strides(size), shape) if new >= 0 else None


@ignores_the_stride.form
def ignores_the_stride_of_a_new_shape(size, stride, shape):
    return stride if size == shape else ignores_the_stride(size, stride, shape)


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


@strides_of_a_copy.form
def strides_of_a_copy_in_a_new_shape(size, stride, shape):
    return stride if size == shape else strides_of_a_copy(size, stride, shape)


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


@aligns_on_the_left.form
def compares_from_the_left(size, stride, shape):
    if len(size) > len(shape):
        return None
    result = [0] * (len(shape) - len(size))
    for n, step, m in zip(size, stride, shape, strict=False):
        if n not in (1, m):
            return None
        result.append(step if n == m else 0)
    return result


@aligns_on_the_left.form
def pairs_from_the_left(size, stride, shape):
    result = []
    for n, step, m in zip(size, stride, shape, strict=False):
        if n not in (1, m):
            return None
        result.append(step if n == m else 0)
    return result


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


@repeats_anything.form
def repeats_anything_in_any_number(size, stride, shape):
    new = max(0, len(shape) - len(size))
    size, stride = (1,) * new + tuple(size), (0,) * new + tuple(stride)
    return tuple(step if n == m else 0 for n, step, m in zip(size, stride, shape, strict=False))


@repeats_anything.form
def repeats_what_is_smaller(size, stride, shape):
    new = len(shape) - len(size)
    if new < 0 or any(n > m for n, m in zip(size, shape[new:], strict=True)):
        return None
    return repeats_anything(size, stride, shape)


@repeats_anything.form
def repeats_what_is_smaller_and_new(size, stride, shape):
    new = len(shape) - len(size)
    if new < 0 or any(n > m for n, m in zip((1,) * new + tuple(size), shape, strict=True)):
        return None
    return repeats_anything(size, stride, shape)


@exercise.mistake
def repeats_zero(size, stride, shape):
    """You repeat a size of 0 as if it were a 1. There is nothing in it that could be read again: a 0 stays
    a 0, and `expand` raises for every other size."""
    new = len(shape) - len(size)
    if new < 0 or any(n != m and n > 1 for n, m in zip(size, shape[new:], strict=True)):
        return None
    return repeats_anything(size, stride, shape)


@exercise.mistake
def repeats_expanded(size, stride, shape):
    """You let a dimension with a stride of 0 grow once more. `expand` asks for its size and not for its
    stride: what has been expanded to 3 has a size of 3, and only a 1 can be repeated."""
    new = len(shape) - len(size)
    if new < 0 or any(n not in (1, m) and step for n, step, m in zip(size, stride, shape[new:], strict=True)):
        return None
    return repeats_anything(size, stride, shape)


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


@tiles.form
def tiles_by_division(size, stride, shape):
    new = len(shape) - len(size)
    if new < 0:
        return None
    result = [0] * new
    for n, step, m in zip(size, stride, shape[new:], strict=True):
        if m % n:
            return None
        result.append(step if n == m else 0)
    return tuple(result)


@tiles.form
def tiles_what_has_elements(size, stride, shape):
    new = len(shape) - len(size)
    if new < 0 or any(n != m and (not n or not m or m % n) for n, m in zip(size, shape[new:], strict=True)):
        return None
    return repeats_anything(size, stride, shape)


@tiles.form
def tiles_at_the_stride(size, stride, shape):
    return tiles(size, stride, shape) and (0,) * (len(shape) - len(size)) + tuple(stride)


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


@broadcasts_both_ways.form
def fills_up_both(size, stride, shape):
    dims = max(len(size), len(shape))
    size, shape = (1,) * (dims - len(size)) + tuple(size), (1,) * (dims - len(shape)) + tuple(shape)
    stride = (0,) * (dims - len(stride)) + tuple(stride)
    if any(n != m and 1 not in (n, m) for n, m in zip(size, shape, strict=True)):
        return None
    return tuple(0 if n == 1 else step for n, step in zip(size, stride, strict=True))


@broadcasts_both_ways.form
def asks_whether_they_broadcast(size, stride, shape):
    try:
        torch.broadcast_shapes(size, shape)
    except RuntimeError:
        return None
    new = len(shape) - len(size)
    kept = zip(size, stride, shape[new:], strict=False)
    return (0,) * new + tuple(step if n == m else 0 for n, step, m in kept)


@broadcasts_both_ways.form
def broadcasts_two_tensors(size, stride, shape):
    try:
        x = torch.empty(1000).as_strided(size, stride)
        return torch.broadcast_tensors(x, torch.empty(shape))[0].stride()
    except RuntimeError:
        return None


@exercise.mistake
def drops_dimensions(size, stride, shape):
    """Where `shape` has fewer dimensions than the tensor, your function does not answer `None` each time.
    Expanding adds dimensions and never takes one away, not even one of size 1: `expand` raises."""
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


@drops_dimensions.form
def counts_from_the_end(size, stride, shape):
    new = len(shape) - len(size)
    result = [0] * new
    for n, step, m in zip(size, stride, shape[new:], strict=False):
        if n not in (1, m):
            return None
        result.append(step if n == m else 0)
    return result


@drops_dimensions.form
def fills_up_where_it_can(size, stride, shape):
    new = len(shape) - len(size)
    size, stride = (1,) * new + tuple(size), (0,) * new + tuple(stride)
    result = []
    for n, step, m in zip(size, stride, shape, strict=False):
        if n not in (1, m):
            return None
        result.append(step if n == m else 0)
    return result


@drops_dimensions.form
def runs_out_of_shape(size, stride, shape):
    new = len(shape) - len(size)
    size, stride = (1,) * new + tuple(size), (0,) * new + tuple(stride)
    for i, n in enumerate(size):
        if n not in (1, shape[i]):
            return None
    return tuple(step if n == m else 0 for n, step, m in zip(size, stride, shape, strict=True))


@drops_dimensions.form
def fills_up_the_shorter_with_ones(size, stride, shape):
    result = []
    pairs = itertools.zip_longest(size[::-1], stride[::-1], shape[::-1], fillvalue=1)
    for n, step, m in pairs:
        if n not in (1, m):
            return None
        result.insert(0, step if n == m else 0)
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
    """Your function raises where the shape is impossible. It is asked whether there are strides for it, and
    `None` is its answer then: for sizes that do not fit, and for too few dimensions."""
    found = _expanded(size, stride, shape)
    if found is None:
        raise ValueError(f"a tensor of size {size} cannot be expanded to {shape}")
    return found


@raises_itself.form
def raises_for_the_sizes(size, stride, shape):
    return raises_itself(size, stride, shape) if len(size) <= len(shape) else None


@raises_itself.form
def raises_for_the_number(size, stride, shape):
    if len(size) > len(shape):
        raise ValueError("too few dimensions")
    return _expanded(size, stride, shape)


@raises_itself.form
def lets_torch_raise(size, stride, shape):
    return torch.empty_strided(size, stride).expand(shape).stride()


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
def refuses_no_dimensions(size, stride, shape):
    """You answer `None` where `size` is `()`. That is a tensor with one element and without dimensions. It
    expands to every shape, and all dimensions are new then."""
    return _expanded(size, stride, shape) if size else None


@refuses_no_dimensions.form
def refuses_no_dimensions_in_a_new_shape(size, stride, shape):
    return stride if size == shape else refuses_no_dimensions(size, stride, shape)


@exercise.mistake
def refuses_empty(size, stride, shape):
    """You answer `None` for possible shapes that have a 0 in them. A 0 is a size like others: a tensor may
    have it and keep it, a new dimension may have it, and a size of 1 expands to it."""
    return None if 0 in size or 0 in shape else _expanded(size, stride, shape)


@refuses_empty.form
def refuses_new_empty(size, stride, shape):
    new = max(0, len(shape) - len(size))
    return None if 0 in shape[:new] else _expanded(size, stride, shape)


@refuses_empty.form
def refuses_to_make_empty(size, stride, shape):
    return None if 0 in shape and size != shape else _expanded(size, stride, shape)


@exercise.mistake
def every_empty_shape(size, stride, shape):
    """You accept every shape that has a 0 in it. Nothing is read there, but `expand` holds to its rule: only
    a size of 1 changes, and no dimension is taken away."""
    return (0,) * len(shape) if 0 in shape else _expanded(size, stride, shape)


@exercise.mistake
def never_shrinks(size, stride, shape):
    """You refuse to expand a size of 1 to 0. A size of 1 becomes any size there is, and 0 is one: no step is
    made, nothing is read."""
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
    """The strides are right, and torch has found them: your function makes a tensor of given strides and
    expands it. Find them from the numbers."""
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


@exercise.mistake
def computes_with_tensors(size, stride, shape):
    """The strides are right, and operators of torch's ran for them. Three tuples of integers are all there is
    to compare here, and Python is enough for that."""
    sizes = torch.tensor((1,) * (len(shape) - len(size)) + tuple(size))
    if len(sizes) > len(shape) or not all((sizes == 1) | (sizes == torch.tensor(shape))):
        return None
    return _expanded(size, stride, shape)
