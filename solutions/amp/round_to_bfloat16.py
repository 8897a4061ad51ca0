"""A bfloat16 is the upper half of a float32, so cutting off the lower half rounds towards zero. The next
bfloat16 further out has 1 more in the upper half. That holds across powers of two as well, since a mantissa
full of ones carries into the exponent, and at the end it leads to infinity.

So rounding is one addition before the cut. Adding 0x8000 would carry from halfway on. 0x7FFF carries above
halfway only; 1 more where bit 16 is set makes an odd number go up from exactly halfway, and an even one not.

NaN is the exception: its lower half may hold all its ones, or the carry may run into the sign. It gets a bit
pattern of its own. Comparing the bits without the sign with those of infinity finds it.
"""

import torch
from torch import Tensor


def round_to_bfloat16(x: Tensor) -> Tensor:
    """float32 -> bfloat16"""
    bits = x.view(torch.int32)
    odd = (bits >> 16) & 1
    rounded = (bits + 0x7FFF + odd) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return torch.where(nan, 0x7FC0, rounded).to(torch.int16).view(torch.bfloat16)


# Other right answers

import numpy as np

from course_utils.exercise import Edit, Wrong


def _compares_the_halves(x):
    bits = x.view(torch.int32).clone()
    high, low = bits >> 16, bits & 0xFFFF
    up = (low > 0x8000) | ((low == 0x8000) & (high % 2 == 1))
    result = (high + up).to(torch.int16).view(torch.bfloat16)
    result[x.isnan()] = float("nan")
    return result


def _in_numpy(x):
    bits = x.cpu().numpy().copy().view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    rounded = np.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, rounded).astype(np.uint16).view(np.int16)
    return torch.from_numpy(np.array(rounded)).view(torch.bfloat16).to(x.device)


also_right = [_compares_the_halves, _in_numpy]

# Mistakes


def _in_place(x):
    bits = x.view(torch.int32)
    nan = x.isnan()
    bits += 0x7FFF + (bits >> 16 & 1)
    return torch.where(nan, 0x7FC0, bits >> 16).to(torch.int16).view(torch.bfloat16)


def _converts(x):
    return x.to(torch.bfloat16)


def _saturates(x):
    largest = torch.tensor(0x7F7F0000, dtype=torch.int32).view(torch.float32).item()
    return round_to_bfloat16(torch.where(x.isinf(), x, x.clamp(-largest, largest)))


mistakes = [
    Edit("cuts off", "bits + 0x7FFF + odd", "bits", told_by="nearest"),
    Edit("halfway goes up", "0x7FFF + odd", "0x8000", told_by="ties"),
    Edit("halfway goes to the odd one", "0x7FFF + odd", "0x8000 - odd", told_by="ties"),
    Wrong(_saturates, told_by="ends_of_the_range"),
    Edit("forgets NaN", "torch.where(nan, 0x7FC0, rounded)", "rounded", told_by="not_a_number"),
    Edit("flat", "bits = x", "bits = x.flatten()", told_by="any_shape"),
    Wrong(_in_place, told_by="by_the_bits"),
    Wrong(_converts, told_by="by_the_bits"),
]

not_tried = {"hard numbers": "the ends of the range are, bit by bit", "seeds": "100,000 bits at once"}
equivalent = {
    "the result of `round_to_bfloat16` made contiguous": "its strides are left open",
    "line 11: `32704` -> `32705`": "another NaN",
    "line 11: `32704` -> `32703`": "another NaN",
}
