"""Warm up: a tensor made to order

Return a new tensor of the given `shape` and `dtype`, on the given `device`, that holds 0, 1, 2, … in
row-major order: the last index changes fastest. `shape` is a tuple of any length, and its sizes may be 0.
`dtype` is `uint8`, a signed integer type, or a floating point type of 16 bits or more.

Make it once, with this dtype and on this device from the start. A tensor that is made and then converted,
moved or copied has been made twice.

`warm_up((2, 3), torch.float32, "cpu")` → `[[0., 1., 2.], [3., 4., 5.]]`
"""

import torch
from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=5,
    core=True,
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


def _expect_counting(t, shape, dtype=torch.int64, device="cpu"):
    """The tensor that comes, against one that is written element by element."""
    wanted = torch.zeros(shape, dtype=dtype)
    for number, place in enumerate(torch.ones(shape).nonzero().tolist()):
        wanted[tuple(place)] = number
    came = t.call(f'warm_up({shape}, {dtype}, "{device}")')
    expect.equal(came, wanted.to(device), rtol=0, atol=0)


@exercise.check
def right_values(t):
    """It counts from 0 in the order of reading

    A tensor is read along its last dimension first: of shape `(2, 3)` the first row is `[0, 1, 2]`, the
    second `[3, 4, 5]`. `shape` says how large it is, not what it holds. Each call makes a tensor of its own,
    since somebody may write to it.
    """
    _expect_counting(t, (2, 3))
    t.run('first, second = [warm_up((2, 3), torch.int64, "cpu") for _ in range(2)]')
    expect.own_storage(t.second, t.first, what="`second`", of="`first`")


@exercise.check(cases=[(shape,) for shape in [(4,), (2, 1, 3), (), (2, 1, 3, 2), (0, 3), (3, 0)]])
def any_shape(t, shape):
    """Any number of dimensions, none too, and any sizes

    A tensor has as many elements as all its sizes multiplied. The product of no sizes is 1: a tensor of shape
    `()` has no dimension and one element. With a size of 0 there is none, and `-1` can't stand for a size.
    """
    _expect_counting(t, shape)


@exercise.check(cases=[((3, 2), torch.float32), ((3, 2), torch.uint8), ((300,), torch.bfloat16)])
def any_dtype(t, shape, dtype):
    """The dtype is the one that was asked for

    Without `dtype=` torch chooses: `torch.tensor` makes `int64` of Python's integers and `float32` of its
    floats, and `torch.zeros` makes `float32`. `linspace` rounds its steps in `bfloat16`, and misses some of
    these 300 numbers.
    """
    _expect_counting(t, shape, dtype)


@exercise.check
def any_device(t, device):
    """The device is the one that was asked for, `meta` too

    Without `device=`, `torch.arange` makes its tensor on the default device, here the CPU. `device=` names
    any device of this machine, or `meta`, where a tensor has a shape and a dtype and holds no numbers.
    """
    for place in (device.type, "meta"):
        _expect_counting(t, (2, 5), torch.int64, place)


def _expect_made_once(t, dtype, device):
    """No other tensor of its size is there beside it, and none is copied into it."""
    made = []
    with measure.operators() as ran:
        peak = measure.peak_bytes(lambda: made.append(t.call(f'warm_up((4, 5), {dtype}, "{device}")')))
    size = expect.a_tensor(made[0]).nbytes
    for call in ran.calls:
        name = call.name.split(".")[1]
        expect.true(
            name not in ("_to_copy", "clone", "copy_") or call.written < size,
            f"all its elements were copied, by torch's `{name}`",
            "expected: they are made where they are to be, as what they are to be",
        )
    expect.true(
        peak.total < size + 20,  # another tensor would take a byte or more for each element
        f"{peak.total} bytes were in use at one moment, for a tensor of {size} bytes",
        f"expected: {size} bytes",
    )


@exercise.check(cases=[torch.float32, torch.int16])
def made_with_its_dtype(t, dtype):
    """It has its dtype from the start: nothing is converted

    `.to` another dtype and `copy_` fill a second tensor from a first one. `torch.zeros`,
    `torch.tensor` and their like take `dtype=`.
    """
    _expect_made_once(t, dtype, "cpu")


@exercise.check
def made_on_its_device(t):
    """It is on its device from the start: nothing is moved there

    To move a tensor, `.to(device)` and `.cuda()` fill a second one over there. `torch.zeros`,
    `torch.tensor` and their like take `device=`.
    """
    _expect_made_once(t, torch.int64, "meta")
