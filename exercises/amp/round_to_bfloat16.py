"""float32 to bfloat16, by the bits

Round a float32 tensor of any shape to bfloat16, as `x.bfloat16()` does: to the nearest number, and halfway to
the one whose last bit is 0.

- Compute with integers. `view` may read the bits of a float32 tensor as int32, and those of an int16 tensor
  as bfloat16. Floating-point numbers may be compared, but not calculated with or converted.
- NaN stays NaN; which of its many bit patterns is up to you.
- `x` stays as it is.

`round_to_bfloat16(torch.tensor([1.005, 257.]))` → `[1.0078125, 256]`
"""

import torch
from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import formats, numbers

exercise = Exercise(
    minutes=15,
    hints=[
        "The upper half of the 32 bits is a bfloat16, the one next to `x` towards zero. When is the one "
        "further from zero nearer? Look at the lower half, as a number from 0 to 65535.",
        "Adding 1 to the upper half leads to the next bfloat16, across powers of two and to infinity as "
        "well. So add something to all 32 bits that carries into the upper half where you round up.",
        "Add 0x7FFF, and 1 more where bit 16 is set; then shift right by 16. A NaN has an exponent of ones "
        "and any mantissa but zero. The sum or the cut may spoil it, so use `torch.where` for it.",
    ],
)


@exercise.starter
def round_to_bfloat16(x: Tensor) -> Tensor:
    raise NotImplementedError


@exercise.check
def nearest(round_to_bfloat16, device):
    """Every number goes to the nearer neighbour

    The lower 16 bits say how far it is to the next bfloat16: below 0x8000 the upper half stays as it is, and
    above it grows by 1. Cutting off rounds towards zero. A carry into the exponent is right.
    """
    generator = torch.Generator().manual_seed(0)
    sample = torch.randint(-(2**31), 2**31, (100_000,), generator=generator).to(torch.int32)
    of_float16 = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16).float()
    for bits in (sample, of_float16.view(torch.int32)):
        normal = bits.view(torch.float32).abs() < 3e38
        formats.rounded(round_to_bfloat16, bits[normal & (bits & 0xFFFF != 0x8000)], device)


@exercise.check(cases={"an even upper half": 0, "an odd upper half": 1})
def ties(round_to_bfloat16, device, first):
    """Halfway, it goes to the neighbour whose last bit is 0

    A lower half of exactly 0x8000 lies in the middle. What is even or odd is the upper half: its last bit is
    bit 16 of the 32. If all such numbers went up, a sum of many could drift.
    """
    every = torch.arange(first - 2**15, 2**15, 2, dtype=torch.int32) * 65536 + 0x8000
    formats.rounded(round_to_bfloat16, every[every.view(torch.float32).abs() < 1e38], device)


@exercise.check(
    cases={
        "infinity": [0x7F800000],
        "zero": [0],
        "the border to infinity": [0x7F7F7FFF, 0x7F7F8000, 0x7F7F8001, 0x7F7FFFFF],
        "subnormals": [1, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7F8000, 0x7FFFFF],
    },
)
def ends_of_the_range(round_to_bfloat16, device, positive):
    """Infinity, zero with its sign, subnormals, and what overflows

    The bits of infinity follow on those of the largest number. So what lies half a step or more beyond the
    largest bfloat16 becomes infinite. Subnormals are rounded by the same rule. A zero may have a sign.
    """
    signs = [bits - sign for bits in positive for sign in (0, 2**31)]
    formats.rounded(round_to_bfloat16, torch.tensor(signs), device)


@exercise.check(
    cases={
        "`torch.nan`": 0x7FC00000,
        "a one in the lower half": 0x7F800001,
        "ones everywhere": 0x7FFFFFFF,
        "ones in the upper half": 0x7FFF0000,
    },
)
def not_a_number(round_to_bfloat16, device, bits):
    """NaN stays NaN

    A float32 NaN has an exponent of ones and a mantissa that is not zero. If all its ones are in the lower
    half, cutting leaves infinity. And if there are many of them, a carry may run through the exponent into
    the sign.
    """
    formats.rounded(round_to_bfloat16, torch.tensor([bits, bits - 2**31]), device)


@exercise.check(
    given="x = {}".format,
    cases={
        "a matrix": "torch.arange(12.0, device=device).view(3, 4)",
        "a transposed one": "torch.arange(12.0, device=device).view(3, 4).t()",
        "every second number": "torch.arange(9.0, device=device)[::2]",
        "no dimension": "torch.tensor(2.5, device=device)",
        "no elements": "torch.ones(0, 3, device=device)",
    },
)
def any_shape(t, device):
    """The result has the shape of `x`

    A part of a tensor, or a transposed one, may not be contiguous. `view` may read it as a dtype of the same
    size all the same. A tensor may have no dimension, or no elements.
    """
    wanted = t.x.bfloat16()
    expect.equal(t.call("round_to_bfloat16(x)"), wanted, rtol=0.0, atol=0.0)


@exercise.check(given=f"x = {numbers.ODD}")
def by_the_bits(t):
    """By the bits: nothing is converted, and no floating-point number is calculated with

    `x.bfloat16()` is one operator, `_to_copy`, that does it all. `view` with a dtype converts nothing. It
    reads the same storage, so an in-place operator on the bits writes into `x`.
    """
    with formats.Floats() as floats, expect.left_alone(t.x, what="`x`"):
        t.call("round_to_bfloat16(x)")
    found = ", ".join(dict.fromkeys(floats.found))
    told = f"these operators convert or calculate with floating-point numbers: {found}"
    expect.true(not floats.found, told, "expected: operators on integers, and `view`")
