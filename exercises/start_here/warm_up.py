"""Warm up: a tensor made to order

Return a new tensor of the given `shape` and `dtype`, on the given `device`, that holds 0, 1, 2, … in the
order in which it is read: along the last dimension first. `shape` is a tuple of any length, and its entries
may be 0.

Make it once, with this dtype and on this device from the start. A tensor that is made and then converted,
moved or copied has been made twice.

`warm_up((2, 3), torch.float32, "cpu")` → `[[0., 1., 2.], [3., 4., 5.]]`
"""

import itertools
import math

import torch
from torch import Tensor

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=5,
    hints=[
        "Which functions make a tensor that counts? Each takes more arguments than the end of the count.",
        "Count in one dimension first. How many elements has a tensor of this shape? And one of shape `()`?",
        "`torch.arange(n, dtype=..., device=...)` makes the elements at once as what they are to be; what is "
        "missing is `n`, the product of the sizes, and a last step that gives the row its shape.",
    ],
)


@exercise.starter
def warm_up(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """A tensor of this shape, dtype and device that holds 0, 1, 2, …"""
    raise NotImplementedError


def _counting(shape, dtype, device="cpu"):
    """What must come, written element by element."""
    wanted = torch.zeros(shape, dtype=dtype)
    for number, place in enumerate(torch.ones(shape).nonzero().tolist()):
        wanted[tuple(place)] = number
    return wanted.to(device)


@exercise.check
def right_values(warm_up):
    """It counts in the order of reading, in a new tensor each time"""
    t = expect.given("", warm_up=warm_up)
    made = t.call('warm_up((2, 3), torch.int64, "cpu")')
    expect.equal(made, _counting((2, 3), torch.int64))
    again = t.call('warm_up((2, 3), torch.int64, "cpu")')
    expect.own_storage(again, made, what="what a second call returns", of="what the first returned")
    expect.equal(again, _counting((2, 3), torch.int64), what="what a second call returns")


@exercise.check
def any_shape(warm_up):
    """Any number of dimensions, none and empty ones too"""
    for shape in [(4,), (2, 1, 3), (), (0, 3), (2, 1, 3, 2, 2)]:
        t = expect.given("", warm_up=warm_up)
        expect.equal(t.call(f'warm_up({shape}, torch.int64, "cpu")'), _counting(shape, torch.int64))


@exercise.check
def any_dtype(warm_up):
    """The dtype is the one that was asked for"""
    for dtype in [torch.float32, torch.uint8, torch.bfloat16, torch.float64]:
        t = expect.given("", warm_up=warm_up)
        made = t.call(f'warm_up((3, 2), {dtype}, "cpu")')
        expect.equal(made, _counting((3, 2), dtype))
        expect.true(
            not made.requires_grad,
            "the result requires a gradient",
            "expected: it does not, since nobody asked for one",
        )
        expect.equal(torch.get_default_dtype(), torch.float32, what="the default dtype, after the call,")


@exercise.check
def any_device(warm_up, device):
    """The device is the one that was asked for, `meta` too"""
    # Every machine has the meta device: its tensors have a shape and a dtype, and no memory. Integers,
    # because counting in floats there imports torch's compiler, which takes a second.
    # The first of its operators imports half a second's worth; not all answers call one, so it is done here,
    # and not while a mistake that does is being compared with one that does not.
    torch.arange(1, device="meta")
    for place in (device.type, "meta"):
        t = expect.given("", warm_up=warm_up)
        made = t.call(f'warm_up((2, 5), torch.int64, "{place}")')
        expect.equal(made, _counting((2, 5), torch.int64, place))


def _expect_made_once(warm_up, dtype, device):
    t = expect.given("", warm_up=warm_up)
    code = f'warm_up((4, 5), {dtype}, "{device}")'
    # How often is told, but is not evidence: `.to(device).to(dtype)` is `.to(device, dtype)`.
    made = []
    with evidence.silent(), measure.operators() as ran:
        peak = measure.peak_bytes(lambda: made.append(t.call(code)))
    expect.a_tensor(made[0])
    copies = sum(call.name.startswith(("aten._to_copy", "aten.clone")) for call in ran.calls)
    times = max(1 + copies, _tensors_of(20, peak))
    expect.true(
        times == 1,
        f"it was made {times} times: converted, moved, copied, or put together from others of its size",
        "expected: one tensor, with the dtype and on the device that were asked for",
    )


def _tensors_of(elements, peak):
    """How many tensors of at least this many elements were made, after one another or together."""
    alive = [0, *(sum(moment.live.values()) for moment in peak.timeline)]
    return sum(after - before >= elements for before, after in itertools.pairwise(alive))


@exercise.check
def made_with_its_dtype(warm_up):
    """It is made once: nothing is converted or copied"""
    for dtype in (torch.float32, torch.int16):
        _expect_made_once(warm_up, dtype, "cpu")


@exercise.check
def made_on_its_device(warm_up):
    """It is made once: nothing is moved or copied"""
    _expect_made_once(warm_up, torch.int64, "meta")


@exercise.check(needs="cuda")
def made_once_on_a_gpu(warm_up):
    """On a GPU it is made once too"""
    for dtype in (torch.int64, torch.float32):
        _expect_made_once(warm_up, dtype, "cuda")


@exercise.mistake
def ignores_dtype(shape, dtype, device):
    """The dtype that was asked for is not used. A function that counts with integers makes `int64` where it
    is given no `dtype=`."""
    return torch.arange(math.prod(shape), device=device).reshape(shape)


@ignores_dtype.variant
def adds_up_ones(shape, dtype, device):
    ones = torch.ones(shape, dtype=torch.int64, device=device)
    ones.view(-1).cumsum_(dim=0).sub_(1)
    return ones


@exercise.mistake
def ignores_device(shape, dtype, device):
    """Where `device` is `"meta"` your tensor is on another device. The functions that make a tensor take
    `device=`, and any device is right for it; without it they make the tensor on the CPU."""
    return torch.arange(math.prod(shape), dtype=dtype).reshape(shape)


@ignores_device.variant
def fills_on_the_cpu(shape, dtype, device):
    result = torch.empty(shape, dtype=dtype)
    for i in range(result.numel()):
        result.view(-1)[i] = i
    return result


@exercise.mistake
def converts_afterwards(shape, dtype, device):
    """The result is right, and where the dtype is not the one that you count in it was made twice: the first
    tensor is thrown away once the second, of the right dtype, has been filled from it. Every function that
    makes a tensor takes `dtype=`."""
    return torch.arange(math.prod(shape), device=device).reshape(shape).to(dtype)


@converts_afterwards.variant
def writes_integers_into_it(shape, dtype, device):
    numbers = torch.arange(math.prod(shape), device=device)
    if dtype == torch.int64:
        return numbers.reshape(shape)
    result = torch.empty(shape, dtype=dtype, device=device)
    result[...] = numbers.view(shape)
    return result


@exercise.mistake
def moves_afterwards(shape, dtype, device):
    """The result is right, and on any device but the CPU it was made twice: first on the CPU, then once more
    where it was to be. Every function that makes a tensor takes `device=`."""
    return torch.arange(math.prod(shape), dtype=dtype).reshape(shape).to(device)


@moves_afterwards.variant
def a_list_on_the_cpu(shape, dtype, device):
    result = torch.tensor([*range(math.prod(shape))], dtype=dtype).view(*shape, 1).squeeze(-1)
    return result if device == "cpu" else torch.empty_like(result, device=device).copy_(result)


@exercise.mistake
def makes_it_twice(shape, dtype, device):
    """The result is right, and another tensor of its size was made beside it, whatever the dtype and the
    device: one to convert, to move, to clone, to copy from, to add, or only to count its elements. Every
    function that makes a tensor takes `dtype=` and `device=`; `math.prod(shape)` counts without a tensor."""
    return torch.arange(math.prod(shape)).reshape(shape).to(device, dtype)


@makes_it_twice.variant
def two_conversions(shape, dtype, device):
    numbers = list(range(math.prod(shape)))
    result = torch.tensor(numbers, dtype=torch.int64).view(shape)
    return result.type(dtype).to(device=device)


@makes_it_twice.variant
def fills_it_from_another(shape, dtype, device):
    result = torch.empty(shape, dtype=dtype, device=device)
    result.copy_(torch.arange(result.numel()).reshape(shape))
    return result


@makes_it_twice.variant
def adds_two(shape, dtype, device):
    counting = torch.arange(math.prod(shape), dtype=dtype, device=device)
    return torch.zeros(shape, dtype=dtype, device=device) + counting.reshape(shape)


@exercise.mistake
def starts_at_one(shape, dtype, device):
    """Your count starts at 1. The first element is 0, as the first index is."""
    return torch.arange(1, math.prod(shape) + 1, dtype=dtype, device=device).reshape(shape)


@exercise.mistake
def holds_the_shape(shape, dtype, device):
    """`torch.tensor(shape)` is a tensor that holds the numbers of `shape`: one dimension, as many
    elements as `shape` has entries. What was asked for is a tensor that has this shape."""
    return torch.tensor(shape, dtype=dtype, device=device)


@exercise.mistake
def two_dimensions_only(shape, dtype, device):
    """You unpack `shape` into rows and columns. A shape may have any number of entries: three, one, or
    none."""
    rows, columns = shape
    return torch.arange(rows * columns, dtype=dtype, device=device).reshape(rows, columns)


@exercise.mistake
def multiplies_two_sizes(shape, dtype, device):
    """You multiply the first two entries of `shape`. It may have any number of entries: three, one, or none.
    The number of elements is the product of all of them."""
    return torch.arange(shape[0] * shape[1], dtype=dtype, device=device).reshape(shape)


@multiplies_two_sizes.variant
def rows_of_columns(shape, dtype, device):
    count = torch.Size((shape[0], shape[1])).numel()
    return torch.arange(0, count, 1, dtype=dtype, device=device).view(shape)
