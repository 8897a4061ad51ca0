"""The strides that `view` finds

`size` and `stride` describe a tensor, `shape` is what it is to be viewed in. Return the strides of
`x.view(shape)`, or `None` where `view` raises: where no strides can read the same storage in the new shape,
and where the number of elements is another one.

All three are tuples of integers of any length, the empty one included; there is no `-1` in `shape`. What
you return is a tuple or a list of integers, or `None`. Strides may be 0. No step is ever made along a
dimension of size 1, nor in a tensor without elements: at these places `stride` may hold any number, and so
may your result.

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
import operator

import torch

from course_utils import many_cases
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
    """The strides of `x.view(shape)`, or None where `view` raises

    `x` is a tensor of this size and stride.
    """
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
    many_cases.no_operator(
        view_strides,
        *(((3, 4), (1, 3), shape) for shape in ((12,), (3, 2, 2))),
        name="view_strides",
        views=("aten.view", "aten._unsafe_view", "aten._reshape_alias"),
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


def _follows(block, n, step):
    """Whether one step of the block is as long as a full run of the dimension to its right."""
    return block[1] == n * step


def _blocks(size, stride, follows=_follows, keep=1):
    """(length, step) of what can be read with one step, from the left. `keep` says which of the two steps
    stays when two are merged, the outer (0) or the inner."""
    blocks = []
    for n, step in zip(size, stride, strict=True):
        if n == 1:
            continue
        if blocks and follows(blocks[-1], n, step):
            blocks[-1] = (blocks[-1][0] * n, (blocks[-1][1], step)[keep])
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


def _cut_one_by_one(blocks, shape):
    """The same, with what is left of a block put back."""
    strides = []
    for n in reversed(shape):
        if n == 1:
            strides.append(1)
            continue
        length, step = blocks.pop()
        if length % n:
            return None
        strides.append(step)
        if length // n > 1:
            blocks.append((length // n, step * n))
    return tuple(reversed(strides))


def _cut_while_any_is_left(blocks, shape):
    try:
        return _cut_one_by_one(blocks, shape)
    except IndexError:
        return None


def _viewed(size, stride, shape, follows=_follows, cut=_cut):
    if math.prod(size) != math.prod(shape):
        return None
    return tuple(shape) if 0 in size else cut(_blocks(size, stride, follows), shape)


# How people see to tensors without elements: any shape without elements will do; none will; or, with no
# thought of them, whatever the cutting makes of it.
_GUARDS = ("any", "none", _cut, _cut_while_any_is_left)


def _with_other_guards(mistake, follows=_follows, cut=_cut, keep=1, ways=_GUARDS, but=("any",)):
    """Adds the same misunderstanding with other guards, each without and with a first line for a shape that
    stays. `but`: those that behave like another one."""
    for way, stays in itertools.product(ways, (False, True)):

        def form(size, stride, shape, follows=follows, cut=cut, keep=keep, way=way, stays=stays):
            if stays and size == shape:
                return stride
            if math.prod(size) != math.prod(shape):
                return None
            if 0 in size and way in ("any", "none"):
                return tuple(shape) if way == "any" else None
            return (cut if way in ("any", "none") else way)(_blocks(size, stride, follows, keep), shape)

        form.__name__ = f"{way if isinstance(way, str) else way.__name__}{' or the same' * stays}"
        if form.__name__ not in but:
            form.__name__ += f", {follows.__name__}, {keep}"
            mistake.form(form)


def _if_contiguous(size, stride, shape, *, ones=True, empty=True, stays=False, scaled=False):
    """The strides of a new tensor, where it is contiguous, and None elsewhere. `ones`: dimensions of size 1
    are left out of the question. `empty`: so are tensors without elements. `stays`: and shapes that are not
    new. `scaled`: the last stride need not be 1."""
    if math.prod(size) != math.prod(shape):
        return None
    if stays and size == shape:
        return stride
    if empty and 0 in size:
        return tuple(shape)
    dims = [(n, step) for n, step in zip(size, stride, strict=True) if n != 1 or not ones]
    run = first = dims[-1][1] if scaled and dims else 1
    for n, step in reversed(dims):
        if step != run:
            return None
        run *= n
    return tuple(first * step for step in _contiguous_strides(shape))


def _each_way(mistake, **how):
    """Adds the other ways to ask whether a tensor is contiguous."""
    for ones, empty in ((True, False), (False, True), (False, False)):

        def form(size, stride, shape, ones=ones, empty=empty, how=how):
            return _if_contiguous(size, stride, shape, ones=ones, empty=empty, **how)

        form.__name__ = f"{mistake.name}_{ones}_{empty}"
        mistake.form(form)


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


@only_contiguous.form
def asks_what_has_elements(size, stride, shape):
    found, run = _if_contiguous(size, stride, shape), 1
    for n, step in zip(reversed(size), reversed(stride), strict=True):
        if n > 1 and step != run:
            return None
        run *= n
    return found


@only_contiguous.form
def outer_ones_first(size, stride, shape):
    return _if_contiguous(size, stride, shape, empty=False)


@only_contiguous.form
def is_contiguous(size, stride, shape):
    x = torch.empty_strided(size, stride)
    if x.numel() != math.prod(shape) or not x.is_contiguous():
        return None
    return x.view(shape).stride()


@exercise.mistake
def contiguous_or_the_same_shape(size, stride, shape):
    """Unless the shape stays as it is, you answer `None` for every tensor that is not contiguous. `view` asks
    for less: only dimensions that the new shape merges have to follow each other in storage.
    `x[:, ::2].view(-1)` has a view, and so has every shape that merges nothing."""
    return _if_contiguous(size, stride, shape, stays=True, scaled=False)


_each_way(contiguous_or_the_same_shape, stays=True)


@exercise.mistake
def all_or_nothing(size, stride, shape):
    """Where one pair of dimensions does not follow each other, you answer `None` for every shape, also for
    one that leaves this pair apart. With size `(3, 4)` and strides `(1, 3)` the shape `(3, 2, 2)` merges
    nothing, and has a view."""
    return _if_contiguous(size, stride, shape, stays=False, scaled=True)


_each_way(all_or_nothing, scaled=True)


@exercise.mistake
def all_or_the_same_shape(size, stride, shape):
    """Where one pair of dimensions does not follow each other, you answer `None` for every new shape, also
    for one that leaves this pair apart. With size `(3, 4)` and strides `(1, 3)` the shape `(3, 2, 2)` merges
    nothing, and has a view."""
    return _if_contiguous(size, stride, shape, stays=True, scaled=True)


_each_way(all_or_the_same_shape, scaled=True, stays=True)


@exercise.mistake
def compares_nothing(size, stride, shape):
    """You take one step, the innermost, and multiply upwards from it. That is right where all dimensions of
    the tensor follow each other. Whether they do, and which of them, you never ask: compare each stride with
    the full run of the dimension to its right."""
    if math.prod(size) != math.prod(shape):
        return None
    step = stride[-1] if stride else 1
    return tuple(step * outer for outer in _contiguous_strides(shape))


@compares_nothing.form
def compares_nothing_but_ones(size, stride, shape):
    if math.prod(size) != math.prod(shape):
        return None
    step = next((step for n, step in zip(size[::-1], stride[::-1], strict=True) if n != 1), 1)
    return tuple(step * outer for outer in _contiguous_strides(shape))


@compares_nothing.form
def the_smallest_step(size, stride, shape):
    if math.prod(size) != math.prod(shape):
        return None
    step = min((step for n, step in zip(size, stride, strict=True) if n != 1), default=1)
    return tuple(step * outer for outer in _contiguous_strides(shape))


@compares_nothing.form
def compares_nothing_of_what_has_elements(size, stride, shape):
    return None if 0 in size else compares_nothing_but_ones(size, stride, shape)


@compares_nothing.form
def nothing_for_a_new_shape(size, stride, shape):
    return stride if size == shape else compares_nothing(size, stride, shape)


@compares_nothing.form
def nothing_but_ones_for_a_new_shape(size, stride, shape):
    return stride if size == shape else compares_nothing_but_ones(size, stride, shape)


@compares_nothing.form
def the_smallest_for_a_new_shape(size, stride, shape):
    return stride if size == shape else the_smallest_step(size, stride, shape)


@exercise.mistake
def compares_the_first_two(size, stride, shape):
    """You compare the first two dimensions and no others. Every pair of neighbours that the new shape merges
    has to follow each other, and a pair that it leaves apart need not."""
    if size == shape:
        return stride
    if len(size) > 1 and 1 not in size[:2] and stride[0] != size[1] * stride[1]:
        return None
    return compares_nothing(size, stride, shape)


@compares_the_first_two.form
def the_first_two_and_ones(size, stride, shape):
    if size == shape:
        return stride
    if len(size) > 1 and stride[0] != size[1] * stride[1]:
        return None
    return compares_nothing(size, stride, shape)


@compares_the_first_two.form
def the_first_two_always(size, stride, shape):
    if len(size) > 1 and stride[0] != size[1] * stride[1]:
        return None
    return compares_nothing(size, stride, shape)


@exercise.mistake
def two_dimensions_at_most(size, stride, shape):
    """You see to tensors of one and two dimensions. Where there are more, or where the two do not follow
    each other, you answer `None` unless the shape stays. Any number of dimensions can be gone through pair by
    pair, and those that do not follow each other can still be cut."""
    if math.prod(size) != math.prod(shape):
        return None
    if len(size) == 2 and stride[0] == size[1] * stride[1]:
        size, stride = (math.prod(size),), stride[1:]
    if len(size) == 1:
        return tuple(stride[0] * step for step in _contiguous_strides(shape))
    return stride if size == shape else None


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


@as_reshape.form
def reshapes(size, stride, shape):
    x = torch.empty_strided(size, stride)
    return x.reshape(shape).stride() if x.numel() == math.prod(shape) else None


@exercise.mistake
def never_has_a_remainder(size, stride, shape):
    """Where there is a view your strides are right, but where there is none you do not always see it: a new
    dimension has to divide what is left of a block exactly. If it does not, it would reach across a jump in
    storage, and there are no strides for that."""
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


@never_has_a_remainder.form
def rounds_down(size, stride, shape):
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    blocks, strides, left, step = _blocks(size, stride), [], 1, 1
    for n in reversed(shape):
        if left <= 1 and n > 1 and blocks:
            left, step = blocks.pop()
        strides.insert(0, step)
        left, step = left // n, step * n
    return tuple(strides)


@never_has_a_remainder.form
def only_asks_whether_it_is_enough(size, stride, shape):
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    blocks, strides = _blocks(size, stride), []
    for n in reversed(shape):
        length, step = blocks.pop() if n > 1 else (1, 1)
        if length < n:
            return None
        strides.insert(0, step)
        if length // n > 1:
            blocks.append((length // n, step * n))
    return tuple(strides)


@never_has_a_remainder.form
def goes_on_into_the_next(size, stride, shape):
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    blocks, strides = _blocks(size, stride), []
    for n in reversed(shape):
        length, step = blocks.pop() if n > 1 else (1, 1)
        strides.insert(0, step)
        if length > n and length % n:
            return None
        if length > n:
            blocks.append((length // n, step * n))
        needed = n // length
        while needed > 1 and blocks:
            length, step = blocks.pop()
            taken = min(length, needed)
            if length // taken > 1:
                blocks.append((length // taken, step * taken))
            needed //= taken
    return tuple(strides)


@never_has_a_remainder.form
def drops_what_is_left(size, stride, shape):
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    blocks, strides = _blocks(size, stride), []
    for n in reversed(shape):
        if n > 1 and not blocks:
            return None
        length, step = blocks.pop() if n > 1 else (1, 1)
        strides.insert(0, step)
        if length // n > 1:
            blocks.append((length // n, step * n))
    return tuple(strides)


@never_has_a_remainder.form
def looks_at_the_first_step(size, stride, shape):
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    places = [
        sum(i * step for i, step in zip(index, stride, strict=True))
        for index in itertools.product(*map(range, size))
    ]
    return tuple(([*places, 0])[min(step, len(places))] for step in _contiguous_strides(shape))


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
def size_one_joins_its_neighbours(size, stride, shape):
    """Across a dimension of size 1 you compare nothing: what stands to its left and to its right merges,
    whatever the strides. With the 1 left out the two stand side by side, and have to follow each other like
    any pair."""
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    blocks, before = [], None
    for n, step in zip(size, stride, strict=True):
        if before and (1 in (before[0], n) or before[1] == n * step):
            length, inner = blocks[-1]
            blocks[-1] = (length * n, step if n != 1 else inner)
        else:
            blocks.append((n, step))
        before = n, step
    return _cut([block for block in blocks if block[0] != 1], shape)


@size_one_joins_its_neighbours.form
def jumps_between_large_neighbours(size, stride, shape):
    if math.prod(size) != math.prod(shape):
        return None
    pairs = zip(itertools.accumulate(size, operator.mul), size, size[1:], stride, stride[1:], strict=False)
    jumps = {number for number, *sizes, far, step in pairs if 1 not in sizes and far != sizes[1] * step}
    if not jumps <= {1, *itertools.accumulate(shape, operator.mul)}:
        return None
    steps = _contiguous_strides(shape)
    return [_place(step % (math.prod(size) or 1), size, stride) for step in steps]


def _place(number, size, stride):
    """Where the element with this number lies."""
    found = 0
    for n, step in zip(reversed(size), reversed(stride), strict=True):
        number, i = divmod(number, n or 1)
        found += i * step
    return found


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
def a_one_in_front_is_refused(size, stride, shape):
    """You answer `None` where `shape` begins with a 1. All elements have been dealt out by then, and a new
    dimension of size 1 takes none: it may have any stride."""
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    blocks, strides = _blocks(size, stride), []
    for n in reversed(shape):
        if not blocks:
            return None
        length, step = blocks.pop()
        if length % n:
            return None
        strides.insert(0, step)
        if length > n:
            blocks.append((length // n, step * n))
    return tuple(strides)


@exercise.mistake
def drops_ones(size, stride, shape):
    """Your result has no entry for the new dimensions of size 1. Any number will do for them, but there has
    to be one: a stride for each dimension of `shape`."""
    found = _viewed(size, stride, shape)
    return found and tuple(step for n, step in zip(shape, found, strict=True) if n != 1)


@drops_ones.form
def drops_ones_of_what_has_elements(size, stride, shape):
    found = _viewed(size, stride, shape)
    return found if 0 in size else drops_ones(size, stride, shape)


@exercise.mistake
def expanded_merges_with_all(size, stride, shape):
    """You let an expanded dimension merge with a neighbour, as if a stride of 0 did not count. It does count:
    a step along it stays at the same place, a step along the other does not, and one stride cannot do both.
    Stride 0 merges with stride 0, by the rule for all."""
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


def _outer_is_expanded(block, n, step):
    return block[1] in (0, n * step)


def _inner_is_expanded(block, n, step):
    return step == 0 or block[1] == n * step


def _one_is_expanded(block, n, step):
    return 0 in (step, block[1]) or block[1] == n * step


_with_other_guards(expanded_merges_with_all, _outer_is_expanded)
_with_other_guards(expanded_merges_with_all, _inner_is_expanded, ways=("any", "none"), but=())
_with_other_guards(expanded_merges_with_all, _one_is_expanded, ways=("any", "none"), but=())


@exercise.mistake
def expanded_never_merge(size, stride, shape):
    """You merge no dimensions with a stride of 0. The rule holds for them as well: two expanded neighbours
    follow each other, since `0 == n * 0`, and can be read as one with stride 0."""
    return _viewed(size, stride, shape, _follows_and_moves)


def _follows_and_moves(block, n, step):
    return step != 0 and block[1] == n * step


_with_other_guards(expanded_never_merge, _follows_and_moves, but=("any", "any or the same"))


@exercise.mistake
def refuses_expanded(size, stride, shape):
    """You answer `None` for expanded tensors. A stride of 0 is a stride like others: what has it can stay as
    it is, can be cut, and merges where the rule says so, which is with another 0."""
    if any(step == 0 and n != 1 for n, step in zip(size, stride, strict=True)):
        return None
    return _viewed(size, stride, shape)


def _refuses(*tests):
    for refuses, stays, asks_first in itertools.product(tests, (False, True), (False, True)):

        def form(size, stride, shape, refuses=refuses, stays=stays, asks_first=asks_first):
            if stays and size == shape:
                return stride
            if (asks_first or 0 not in size) and any(map(refuses, size, stride)):
                return None
            return _viewed(size, stride, shape)

        form.__name__ = f"{refuses.__name__}, {stays}, {asks_first}"
        yield form


def _stride_of_zero(n, step):
    return step == 0


def _expanded_in_fact(n, step):
    return step == 0 and n > 1


for _form in _refuses(_stride_of_zero, _expanded_in_fact):
    refuses_expanded.form(_form)


@exercise.mistake
def skips_expanded(size, stride, shape):
    """You leave out dimensions with a stride of 0, as one may leave out those of size 1. They have elements,
    though always the same one, and the new shape takes its elements from them, too."""
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    moving = [(n, step) for n, step in zip(size, stride, strict=True) if step]
    blocks, strides = _blocks(*zip(*moving, strict=True)) if moving else [], []
    for n in reversed(shape):
        length, step = blocks.pop() if blocks and n > 1 else (n, 0)
        if length % n:
            return None
        strides.insert(0, step)
        if length > n:
            blocks.append((length // n, step * n))
    return tuple(strides)


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


_with_other_guards(never_merges, lambda block, n, step: False, but=("any", "any or the same"))


@exercise.mistake
def never_cuts(size, stride, shape):
    """You merge dimensions and never cut one. A dimension can always be cut in two: the inner piece keeps the
    stride, and the outer one steps over a full run of it."""
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    dims = [(n, step) for n, step in zip(size, stride, strict=True) if n != 1]
    strides = []
    for n in reversed(shape):
        length, step = dims.pop() if n > 1 and dims else (1, 1)
        while length < n:
            if not dims or dims[-1][1] != length * step:
                return None
            length *= dims.pop()[0]
        if length != n:
            return None
        strides.insert(0, step)
    return tuple(strides)


@exercise.mistake
def pieces_keep_the_stride(size, stride, shape):
    """When you cut a block, all pieces keep its stride. That is right for the innermost of them. One step of
    the next has to pass over a full run of it, so it is as many times longer."""
    return _viewed(size, stride, shape, cut=_cut_into_equal_steps)


def _cut_into_equal_steps(blocks, shape):
    strides = []
    for n in reversed(shape):
        length, step = blocks.pop() if n > 1 else (1, 1)
        if length % n:
            return None
        strides.insert(0, step)
        if length > n:
            blocks.append((length // n, step))
    return tuple(strides)


_with_other_guards(pieces_keep_the_stride, cut=_cut_into_equal_steps, ways=("any", "none"))


@exercise.mistake
def merged_keeps_the_outer_stride(size, stride, shape):
    """What you have merged keeps the stride of its outer dimension. One step along it goes to the next
    element, and that is a step of the inner one."""
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    lengths, steps, last = [], [], None
    for n, step in zip(size, stride, strict=True):
        if n == 1:
            continue
        if lengths and last == n * step:
            lengths[-1] *= n
        else:
            lengths.append(n)
            steps.append(step)
        last = step
    return _cut(list(zip(lengths, steps, strict=True)), shape)


@merged_keeps_the_outer_stride.form
def keeps_the_outer_stride_in_a_new_shape(size, stride, shape):
    return stride if size == shape else merged_keeps_the_outer_stride(size, stride, shape)


@exercise.mistake
def deals_from_the_left(size, stride, shape):
    """You deal the blocks out from the left and give the first new dimension the step of its block. The
    outer pieces of a block have the long steps: the step of the block itself belongs to the last of them."""
    return _viewed(size, stride, shape, cut=_cut_from_the_left)


def _cut_from_the_left(blocks, shape):
    strides = []
    for n in shape:
        length, step = blocks.pop(0) if n > 1 else (1, 1)
        if length % n:
            return None
        strides.append(step)
        if length > n:
            blocks.insert(0, (length // n, step * n))
    return tuple(strides)


_with_other_guards(deals_from_the_left, cut=_cut_from_the_left, ways=("any", "none"))


@exercise.mistake
def the_last_comes_first(size, stride, shape):
    """Your strides are right and stand the wrong way round: you have dealt out from the right, and the stride
    of the last dimension comes first in your result."""
    found = _viewed(size, stride, shape)
    return found and found[::-1]


@the_last_comes_first.form
def the_last_cut_comes_first(size, stride, shape):
    return _viewed(size, stride, shape, cut=_cut_to_the_left)


def _cut_to_the_left(blocks, shape):
    found = _cut_one_by_one(blocks, shape)
    return found and found[::-1]


@the_last_comes_first.form
def the_last_cut_comes_first_in_a_new_shape(size, stride, shape):
    return stride if size == shape else the_last_cut_comes_first(size, stride, shape)


@the_last_comes_first.form
def the_last_comes_first_in_a_new_shape(size, stride, shape):
    return stride if size == shape else the_last_comes_first(size, stride, shape)


@exercise.mistake
def sorts_by_stride(size, stride, shape):
    """You sort the dimensions by stride and ask whether the elements lie in storage without gaps. A view
    shows the elements in the order in which the tensor is read; a transpose has no gaps either, and reads
    them in another order."""
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    dims = sorted((step, n) for n, step in zip(size, stride, strict=True) if n != 1)
    if any(outer != n * inner for (inner, n), (outer, _) in itertools.pairwise(dims)):
        return None
    return tuple(dims[0][0] * step if dims else 1 for step in _contiguous_strides(shape))


@sorts_by_stride.form
def sorts_by_stride_in_a_new_shape(size, stride, shape):
    return stride if size == shape else sorts_by_stride(size, stride, shape)


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


def _steps_over_itself(block, n, step):
    return block[1] == block[0] * step


_with_other_guards(run_of_the_outer, _steps_over_itself, but=())


@run_of_the_outer.form
def run_of_the_outer_and_ones(size, stride, shape):
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return tuple(shape)
    blocks = []
    for n, step in zip(size, stride, strict=True):
        if blocks and blocks[-1][0] * step == blocks[-1][1]:
            blocks[-1] = (blocks[-1][0] * n, step)
        elif n != 1:
            blocks.append((n, step))
    return _cut_while_any_is_left(blocks, shape)


@exercise.mistake
def compares_the_wrong_way_round(size, stride, shape):
    """Your comparison is the wrong way round: you ask whether a step of the inner dimension is as long as a
    full run of the outer. Reading goes on in the inner one first, so it is the run of the inner that a step
    of the outer has to equal: `stride[0] == size[1] * stride[1]`."""
    return _viewed(size, stride, shape, _is_followed)


def _is_followed(block, n, step):
    return step == block[0] * block[1]


_with_other_guards(compares_the_wrong_way_round, _is_followed)
_with_other_guards(compares_the_wrong_way_round, _is_followed, keep=0, ways=("any", "none"), but=())


@exercise.mistake
def forgets_the_inner_stride(size, stride, shape):
    """You compare the outer stride with the size of the inner dimension. How far the inner one goes is its
    size times its stride: with every second element of a row, a row of four is eight long."""
    return _viewed(size, stride, shape, _is_as_long)


def _is_as_long(block, n, step):
    return block[1] == n


_with_other_guards(forgets_the_inner_stride, _is_as_long)


@exercise.mistake
def merges_across_gaps(size, stride, shape):
    """You merge two dimensions when a step of the outer is at least as long as a run of the inner. Where it
    is longer, a gap follows each run, and no single stride steps over it now and then: the two have to be
    equal."""
    return _viewed(size, stride, shape, _is_long_enough)


def _is_long_enough(block, n, step):
    return block[1] >= n * step


_with_other_guards(merges_across_gaps, _is_long_enough)


@exercise.mistake
def merges_multiples(size, stride, shape):
    """You merge two dimensions when the outer stride is a multiple of the inner. It has to be one certain
    multiple, the size of the inner dimension: then the outer step begins where the run of the inner ends."""
    return _viewed(size, stride, shape, _is_a_multiple)


def _is_a_multiple(block, n, step):
    return step and block[1] % step == 0


_with_other_guards(merges_multiples, _is_a_multiple)


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


@forgets_empty.form
def forgets_empty_in_a_new_shape(size, stride, shape):
    return stride if size == shape else forgets_empty(size, stride, shape)


@exercise.mistake
def divides_by_zero(size, stride, shape):
    """Your function divides by a size, and a size may be 0. A tensor without elements is a case of its own:
    it has a view in every shape without elements."""
    if math.prod(size) != math.prod(shape):
        return None
    return _cut([(0, 1)] if 0 in size else _blocks(size, stride), shape)


@divides_by_zero.form
def divides_by_zero_in_a_new_shape(size, stride, shape):
    return stride if size == shape else divides_by_zero(size, stride, shape)


_with_other_guards(divides_by_zero, ways=(_cut, _cut_one_by_one, _cut_while_any_is_left))


@exercise.mistake
def every_shape_for_no_elements(size, stride, shape):
    """For a tensor without elements you accept shapes that have some. It can be viewed in every shape without
    elements and in no other: compare the numbers of elements first."""
    return tuple(shape) if 0 in size else _viewed(size, stride, shape)


@exercise.mistake
def refuses_no_dimensions(size, stride, shape):
    """You answer `None` where `size` or `shape` is `()`. That is a tensor without dimensions, and it has one
    element: it can be viewed as `(1,)` or `(1, 1)`, and these as `()`."""
    return _viewed(size, stride, shape) if size and shape else None


@refuses_no_dimensions.form
def refuses_no_new_dimensions(size, stride, shape):
    return _viewed(size, stride, shape) if shape else None


@refuses_no_dimensions.form
def views_as_arguments(size, stride, shape):
    try:
        return torch.empty_strided(size, stride).view(*shape).stride()
    except (RuntimeError, TypeError):
        return None


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


@does_not_count.form
def counts_what_it_needs(size, stride, shape):
    return tuple(shape) if 0 in size else _cut_while_any_is_left(_blocks(size, stride), shape)


@exercise.mistake
def raises_itself(size, stride, shape):
    """Your function raises where there is no view. It is asked whether there is one, and `None` is its answer
    then: for another number of elements, and where the strides do not allow it."""
    found = _viewed(size, stride, shape)
    if found is None:
        raise ValueError(f"no view of {size} as {shape}")
    return found


@raises_itself.form
def raises_for_the_number(size, stride, shape):
    if math.prod(size) != math.prod(shape):
        raise ValueError("another number of elements")
    return _viewed(size, stride, shape)


@raises_itself.form
def raises_for_the_strides(size, stride, shape):
    return raises_itself(size, stride, shape) if math.prod(size) == math.prod(shape) else None


@raises_itself.form
def lets_torch_raise(size, stride, shape):
    return torch.empty_strided(size, stride).view(shape).stride()


@exercise.mistake
def asks_torch(size, stride, shape):
    """The strides are right, and torch has found them: your function makes a tensor of given strides and
    takes a view of it. Find them from the numbers; the rule is shorter than it looks."""
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


@exercise.mistake
def computes_with_tensors(size, stride, shape):
    """The strides are right, and operators of torch's ran for them. Three tuples of integers are all there is
    to compute with here, and Python is enough for that: `math.prod` multiplies the numbers in one."""
    if torch.tensor(size).prod() != torch.tensor(shape).prod():
        return None
    return _viewed(size, stride, shape)
