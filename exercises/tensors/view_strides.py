"""The strides that `view` finds

`size` and `stride` describe a tensor, `shape` is what it is to be viewed in. Return the strides of
`x.view(shape)`, or `None` where `view` raises: where no strides can read the same storage in the new shape,
and where the number of elements is another one.

All three are tuples of integers of any length, the empty one included, and so is what you return; there is
no `-1` in `shape`. Strides may be 0. No step is ever made along a dimension of size 1, nor in a tensor
without elements: at these places `stride` may hold any number, and so may your result.

Work it out from the numbers: no operator of torch's may run. The last check compares every small case with
what `view` does.

- `view_strides((3, 4), (8, 2), (12,))` is `(2,)`: the rows follow each other 2 apart, like the elements in
  them.
- `view_strides((3, 4), (1, 3), (12,))` is `None`.
- `view_strides((3, 4), (1, 3), (3, 2, 2))` is `(1, 6, 3)`.
"""

import functools
import itertools
import math

import torch

from course_utils import expect, many_cases, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=30,
    hints=[
        "Take it in two halves. First forget `shape`: which dimensions of the tensor follow each other "
        "without a break, so that they can be read as one? Then cut what you have got into the new shape.",
        "Two neighbours merge when one step of the outer is as long as a full run of the inner. Going from "
        "left to right, `(size, stride)` becomes a list of blocks with a length and a step. What has size 1 "
        "can be left out before you begin, and a tensor without elements can be viewed in any shape that has "
        "none.",
        "Then from the right: the last new dimension takes its elements from the last block, with the step "
        "of the block; the one before it steps over all that has been taken. When a block is used up, the "
        "next one begins; when a dimension does not divide what is left of a block, there is no view.",
    ],
)


@exercise.starter
def view_strides(
    size: tuple[int, ...], stride: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The strides of `x.view(shape)` for an `x` of this size and stride; None where `view` raises"""
    raise NotImplementedError


# --- the oracle: torch's own `view`, on real tensors -----------------------------------------------------


def _of_torch(x, shape):
    """The strides of `x.view(shape)`. `reshape` returns this view where there is one, and a copy where `view`
    raises: it is asked because a copy of a few bytes takes a sixth of the time of an exception."""
    y = x.reshape(shape)
    return y.stride() if y.data_ptr() == x.data_ptr() else None


def _compare(view_strides, *wanted):
    """`wanted`: size, stride, and the shapes to try with them."""
    cases = many_cases.strides_cases(_of_torch, *wanted)
    many_cases.compare_strides(view_strides, cases, name="view_strides", operation="view")


@functools.cache
def _every_case():
    """Small tensors in all shapes that they might have: up to 3 dimensions, with all strides that can tell,
    and shapes of up to 4."""
    wanted = [((), (), [*_shapes(1, 3), (2,), (0,)])]
    for sizes, steps, beyond in (
        ([(n,) for n in range(1, 9)], range(4), 4),
        (itertools.product(range(1, 5), repeat=2), (0, 1, 2, 3, 4, 6), 3),
        ([(2, 3, 2), (3, 2, 2), (2, 2, 2)], (0, 1, 2, 3, 6), 3),
        ([(3, 1, 2), (1, 2, 2)], (0, 1, 2, 3, 6), 3),
        ([(2, 1, 2, 2)], (1, 2, 4, 8), 3),
    ):
        for size in sizes:
            shapes = _shapes(math.prod(size), beyond)
            wanted += [(size, stride, shapes) for stride in itertools.product(steps, repeat=len(size))]
    empty = [(0,), (0, 3), (2, 0), (0, 0), (1, 0, 2)]
    wanted += [(size, (step,) * len(size), empty + [(), (1,), (6,)]) for size in empty for step in (0, 1, 2)]
    others = [(), (2,), (5,), (2, 2), (4, 2), (2, 3, 2), (0,), (0, 2)]
    wanted += [((3, 2), stride, others) for stride in ((2, 1), (1, 3), (0, 1), (1, 0), (0, 0))]
    return many_cases.strides_cases(_of_torch, *wanted)


@functools.cache
def _shapes(number, dims):
    """All shapes of up to so many dimensions that hold so many elements."""
    if dims == 0:
        return [()] if number == 1 else []
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    longest = [(n, *rest) for n in divisors for rest in _shapes(number // n, dims - 1)]
    return list(dict.fromkeys(_shapes(number, dims - 1) + longest))


def _complexity(case):
    (size, stride, shape), _ = case
    return len(size) + len(shape), math.prod(size), max(stride, default=0)


# --- the checks -------------------------------------------------------------------------------------------


@exercise.check
def contiguous(view_strides):
    """A contiguous tensor, in shapes that have as many elements"""
    _compare(
        view_strides,
        ((12,), (1,), [(12,), (3, 4), (2, 3, 2)]),
        ((3, 4), (4, 1), [(3, 4), (12,), (4, 3), (2, 6), (2, 3, 2), (6, 2)]),
        ((2, 3, 4), (12, 4, 1), [(24,), (6, 4), (2, 12), (4, 2, 3), (2, 3, 2, 2)]),
    )


@exercise.check
def another_number(view_strides):
    """Another number of elements: no view"""
    _compare(
        view_strides,
        ((2, 3), (3, 1), [(2, 2), (5,), (7,), (2, 3, 2), (3,), ()]),
        ((), (), [(2,)]),
        ((6,), (1,), [(0,)]),
        ((0, 3), (3, 1), [(3,)]),
        ((4,), (0,), [(2,)]),
    )


@exercise.check
def not_contiguous(view_strides):
    """Slices and transposes: some shapes have a view, some have none"""
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
    """Dimensions of size 1, before and after, whatever their stride"""
    _compare(
        view_strides,
        ((3, 1, 4), (4, 7, 1), [(12,), (3, 4), (3, 1, 4), (1, 12), (6, 1, 2)]),
        ((1, 4), (9, 2), [(4,), (2, 2), (4, 1), (1, 1, 4), (2, 1, 2)]),
        ((4, 1), (2, 5), [(4,), (2, 2), (1, 4)]),
        ((3, 1, 4), (1, 0, 3), [(12,), (3, 1, 4), (3, 4, 1), (3, 2, 1, 2)]),
        ((1, 1), (3, 5), [(1,), (1, 1, 1), ()]),
    )


@exercise.check
def expanded(view_strides):
    """Expanded dimensions, whose stride is 0"""
    _compare(
        view_strides,
        ((3, 4), (0, 1), [(3, 4), (12,), (3, 2, 2), (4, 3), (6, 2)]),
        ((3, 4), (1, 0), [(3, 4), (12,), (3, 2, 2), (2, 6)]),
        ((2, 3), (0, 0), [(6,), (3, 2), (1, 6)]),
        ((2, 3, 2), (2, 0, 1), [(2, 6), (6, 2), (12,), (2, 3, 2)]),
    )


@exercise.check
def empty(view_strides):
    """Tensors without elements, and tensors without dimensions"""
    _compare(
        view_strides,
        ((0, 3), (3, 1), [(0, 3), (3, 0), (0,), (2, 0, 5)]),
        ((2, 0), (1, 7), [(0,), (0, 2), (4, 0)]),
        ((3, 0, 2), (5, 0, 1), [(0, 2), (6, 0)]),
        ((), (), [(), (1,), (1, 1), (0,)]),
        ((1,), (4,), [()]),
        ((0,), (1,), [()]),
    )


@exercise.check
def no_operator(view_strides):
    """No operator of torch's runs"""
    t = expect.given("", view_strides=view_strides)
    for shape in ((12,), (3, 2, 2)):
        with measure.operators() as ran:
            t.call(f"view_strides((3, 4), (1, 3), {shape})")
        expect.true(
            not ran.calls,
            "torch's operators ran while your function worked",
            "expected: none. The strides follow from the three tuples",
        )


@exercise.check
def every_small_case(view_strides):
    """Every small case agrees with `Tensor.view`"""
    named = {"name": "view_strides", "operation": "view", "simplest": _complexity}
    many_cases.compare_strides(view_strides, _every_case(), **named)


# --- the mistakes -----------------------------------------------------------------------------------------


def _contiguous_strides(shape):
    strides, step = [], 1
    for n in reversed(shape):
        strides.insert(0, step)
        step *= n
    return tuple(strides)


def _blocks(size, stride):
    """(length, step) of what can be read with one step, from the left."""
    blocks = []
    for n, step in zip(size, stride, strict=True):
        if n == 1:
            continue
        if blocks and blocks[-1][1] == n * step:
            blocks[-1] = (blocks[-1][0] * n, step)
        else:
            blocks.append((n, step))
    return blocks


def _cut(blocks, shape):
    """The blocks in the new shape, from the right; None where a dimension goes across two of them."""
    blocks, strides, left, step = list(blocks), [], 1, 1
    for n in reversed(shape):
        if left == 1 and n != 1:
            left, step = blocks.pop()
        if left % n:
            return None
        strides.append(step)
        left, step = left // n, step * n
    return tuple(reversed(strides))


@exercise.mistake
def only_contiguous(size, stride, shape):
    """You answer `None` for every tensor that is not contiguous. `view` asks for less: only dimensions that
    the new shape merges have to follow each other in storage. `x[:, ::2].view(-1)` has a view, and so has
    every shape that merges nothing."""
    if math.prod(size) != math.prod(shape):
        return None
    used = [i for i, n in enumerate(size) if n != 1]
    wanted = _contiguous_strides(size)
    if 0 not in size and any(stride[i] != wanted[i] for i in used):
        return None
    return _contiguous_strides(shape)


@only_contiguous.variant
def walks_in_steps_of_one(size, stride, shape):
    count = functools.reduce(lambda a, b: a * b, size, 1)
    if count != functools.reduce(lambda a, b: a * b, shape, 1):
        return None
    run = 1
    for n, step in list(zip(size, stride, strict=True))[::-1]:
        if count and n > 1 and step != run:
            return None
        run *= n
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


@exercise.mistake
def only_contiguous_to_the_letter(size, stride, shape):
    """You answer `None` for every tensor whose strides are not those of a new one. `view` asks for less: only
    dimensions that the new shape merges have to follow each other in storage. A dimension of size 1 may have
    any stride at all."""
    if math.prod(size) != math.prod(shape):
        return None
    return _contiguous_strides(shape) if 0 in size or tuple(stride) == _contiguous_strides(size) else None


@exercise.mistake
def only_contiguous_with_elements(size, stride, shape):
    """You answer `None` for every tensor whose strides are not those of a new one. `view` asks for less: only
    dimensions that the new shape merges have to follow each other in storage. A dimension of size 1 may have
    any stride at all, and in a tensor without elements every dimension may."""
    if math.prod(size) != math.prod(shape):
        return None
    return _contiguous_strides(shape) if tuple(stride) == _contiguous_strides(size) else None


@exercise.mistake
def only_contiguous_of_any_number(size, stride, shape):
    """You ask whether the strides are those of a new tensor. `view` asks two other questions: whether the new
    shape has as many elements, and whether the dimensions that it merges follow each other in storage. Many
    tensors that are not contiguous can be viewed."""
    return _contiguous_strides(shape) if tuple(stride) == _contiguous_strides(size) else None


@exercise.mistake
def strides_of_a_new_tensor(size, stride, shape):
    """Your strides follow from the new shape alone, as if the elements lay side by side. They lie where
    `stride` says: it has a part in every number of the result, and may rule the view out."""
    return _contiguous_strides(shape) if math.prod(size) == math.prod(shape) else None


@strides_of_a_new_tensor.variant
def products_to_the_right(size, stride, shape):
    if functools.reduce(lambda a, b: a * b, size, 1) != functools.reduce(lambda a, b: a * b, shape, 1):
        return None
    return [math.prod(shape[i:]) for i in range(1, len(shape) + 1)]


@exercise.mistake
def as_reshape(size, stride, shape):
    """Where there is no view you return the strides of a copy. That is what `reshape` does; `view` raises,
    and the answer is `None`."""
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    return _cut(_blocks(size, stride), shape) or _contiguous_strides(shape)


@exercise.mistake
def never_has_a_remainder(size, stride, shape):
    """You divide what is left of a block by the new dimension and do not look whether it goes. Where it does
    not, the dimension would reach across a jump, and there is no view."""
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    blocks, strides, left, step = _blocks(size, stride), [], 1, 1
    for n in reversed(shape):
        if left == 1 and n != 1:
            left, step = blocks.pop()
        strides.insert(0, step)
        left, step = left // n, step * n
    return tuple(strides)


@exercise.mistake
def size_one_breaks_the_run(size, stride, shape):
    """The stride of a dimension of size 1 counts in your comparison, and it must not: no step is made along
    it, so it may hold any number. The dimensions to its left and right are neighbours."""
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    blocks = []
    for n, step in zip(size, stride, strict=True):
        if blocks and blocks[-1][1] == n * step:
            blocks[-1] = (blocks[-1][0] * n, step)
        else:
            blocks.append((n, step))
    return _cut([block for block in blocks if block[0] != 1], shape)


@size_one_breaks_the_run.variant
def compares_all_neighbours(size, stride, shape):
    count = math.prod(size)
    if count != math.prod(shape):
        return None
    if count == 0:
        return [1] * len(shape)
    strides, new = [1] * len(shape), len(shape) - 1
    run, taken = 1, 1
    for i in reversed(range(len(size))):
        if run == 1:
            base = stride[i]
        run *= size[i]
        if i > 0 and stride[i - 1] == size[i] * stride[i]:
            continue
        while new >= 0 and (taken < run or shape[new] == 1):
            strides[new] = taken * base
            taken *= shape[new]
            new -= 1
        if taken != run:
            return None
        run = taken = 1
    return strides


@exercise.mistake
def size_one_takes_a_block(size, stride, shape):
    """Your function raises where `shape` begins with a 1: when all elements have been dealt out, it looks
    for more. A new dimension of size 1 takes none, and may have any stride."""
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    blocks, strides, left = _blocks(size, stride), [], 1
    for n in reversed(shape):
        if left == 1:
            left, step = blocks.pop()
        if left % n:
            return None
        strides.insert(0, step)
        left, step = left // n, step * n
    return tuple(strides)


@exercise.mistake
def expanded_merges_with_all(size, stride, shape):
    """You let an expanded dimension merge with the one to its right, as if a stride of 0 did not count. It
    does count: after a run of the inner dimension the next step starts at the same place again, and one
    stride cannot go back. Stride 0 merges with stride 0, by the rule for all."""
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    blocks = []
    for n, step in zip(size, stride, strict=True):
        if n == 1:
            continue
        if blocks and blocks[-1][1] in (0, n * step):
            blocks[-1] = (blocks[-1][0] * n, step)
        else:
            blocks.append((n, step))
    return _cut(blocks, shape)


@expanded_merges_with_all.variant
def zero_is_no_obstacle(size, stride, shape):
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in shape:
        return [0] * len(shape)
    dims = [(n, step) for n, step in zip(size, stride, strict=True) if n != 1]
    merged = []
    while dims:
        length, step = dims.pop()
        inner, distance = length, step
        while dims and (not dims[-1][1] or dims[-1][1] == inner * distance):
            inner, distance = dims.pop()
            length *= inner
        merged.append((length, step))
    return _cut(merged[::-1], shape)


@exercise.mistake
def never_merges(size, stride, shape):
    """You cut dimensions and never merge two. Where one step of the outer is as long as a full run of the
    inner, both can be read as one dimension with the stride of the inner."""
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    return _cut([(n, step) for n, step in zip(size, stride, strict=True) if n != 1], shape)


@never_merges.variant
def splits_one_by_one(size, stride, shape):
    if math.prod(size) != math.prod(shape):
        return None
    if not math.prod(size):
        return (1,) * len(shape)
    rest, result = [n for n in shape], []
    for n, step in zip(reversed(size), reversed(stride), strict=True):
        taken = 1
        while taken < n:
            part = rest.pop()
            result.insert(0, taken * step)
            taken *= part
        if taken != n:
            return None
    # What is left are dimensions of size 1.
    return tuple([1] * len(rest) + result)


@exercise.mistake
def run_of_the_outer(size, stride, shape):
    """You measure the run with the size of the outer dimension. How far the inner one goes is its own size
    times its own stride: with size `(3, 4)` rows follow each other when `stride[0]` is `4 * stride[1]`."""
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    blocks, outer = [], None
    for n, step in zip(size, stride, strict=True):
        if n == 1:
            continue
        if blocks and blocks[-1][1] == outer * step:
            blocks[-1] = (blocks[-1][0] * n, step)
        else:
            blocks.append((n, step))
        outer = n
    return _cut(blocks, shape)


@run_of_the_outer.variant
def other_size(size, stride, shape):
    dims = [(n, step) for n, step in zip(size, stride, strict=True) if n != 1]
    if math.prod(shape) != math.prod(size):
        return None
    if math.prod(size) == 0:
        return [0] * len(shape)
    lengths, steps = [], []
    for i, (n, step) in enumerate(dims):
        if i and steps[-1] == dims[i - 1][0] * step:
            lengths[-1] *= n
            steps[-1] = step
        else:
            lengths.append(n)
            steps.append(step)
    return _cut(list(zip(lengths, steps, strict=True)), shape)


@exercise.mistake
def forgets_empty(size, stride, shape):
    """In your answer a tensor without elements has no view. There is nothing to read in it, so nothing can
    stand in the way: every shape without elements will do."""
    if math.prod(size) != math.prod(shape) or 0 in size:
        return None
    return _cut(_blocks(size, stride), shape)


@forgets_empty.variant
def needs_an_element(size, stride, shape):
    count = 1
    for n in size:
        count *= n
    for n in shape:
        count = count / n if n else 0
    return _cut(_blocks(size, stride), shape) if count == 1 else None


@exercise.mistake
def divides_by_zero(size, stride, shape):
    """Your function divides by a size, and a size may be 0. A tensor without elements is a case of its own:
    it has a view in every shape without elements."""
    if math.prod(size) != math.prod(shape):
        return None
    return _cut([(0, 1)] if 0 in size else _blocks(size, stride), shape)


@exercise.mistake
def needs_a_dimension(size, stride, shape):
    """Your function needs at least one dimension. A tensor may have none: its size is `()`, and it has one
    element, so it can be viewed as `(1,)` or `(1, 1)`."""
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    blocks = [(size[0], stride[0])]
    for n, step in zip(size[1:], stride[1:], strict=True):
        length, before = blocks[-1]
        if 1 in (length, n) or before == n * step:
            blocks[-1] = (length * n, before if n == 1 else step)
        else:
            blocks.append((n, step))
    return _cut([block for block in blocks if block[0] != 1], shape)


@exercise.mistake
def does_not_count(size, stride, shape):
    """You do not compare the numbers of elements. A view shows every element of the tensor and no other:
    with more or fewer of them `view` raises."""
    if 0 in size:
        return tuple(shape)
    blocks, strides, left, step = _blocks(size, stride), [], 1, 1
    for n in reversed(shape):
        if left == 1 and n != 1 and blocks:
            left, step = blocks.pop()
        if n and left % n:
            return None
        strides.insert(0, step)
        left, step = left // (n or 1), step * n
    return tuple(strides)


@exercise.mistake
def asks_torch(size, stride, shape):
    """The strides are right, and torch has found them: you made a tensor and called `view`. Find them from
    the numbers; the rule is shorter than it looks."""
    try:
        return torch.empty_strided(size, stride).view(shape).stride()
    except RuntimeError:
        return None


@asks_torch.variant
def looks_whether_reshape_copies(size, stride, shape):
    if math.prod(size) != math.prod(shape):
        return None
    x = torch.empty_strided(size, stride, device="meta")
    y = x.reshape(shape)
    return list(y.stride()) if y._is_view() else None
