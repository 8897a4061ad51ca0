"""A softmax that loads each element once

Write a kernel, and the function that launches it: `softmax_kernel(x)` returns the softmax of each row of `x`,
a contiguous float32 matrix of any size but 0. Elements are finite or −inf, and each row has a finite one.

- A program handles one row. No block has more than 1,024 elements.
- In rows of up to 1,024 columns each element is loaded once. Longer rows are walked in blocks, and each of
  their elements is loaded at most twice.
- Each element of the result is stored once.
- No program touches an address outside the tensors.

Write your kernels above `softmax_kernel`, in the same cell.
"""

from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import numbers
from course_utils.exercise.kits.kernels import (
    a_program_for_each,
    inside,
    launched,
    once,
    small_blocks,
    times,
    untouched,
    unwritten_is_nan,
    watched,
)

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "A masked place takes part in the maximum and in the sum. Which value changes neither?",
        "Up to 1,024 columns: load the row as one block, with `other=-float('inf')`, and compute all of the "
        "softmax from that block. A longer row needs two loops over its blocks: one for the maximum and the "
        "sum together, one that stores.",
        "In the first loop keep the largest so far, and the sum so far of `exp(x - largest)`. When the "
        "largest grows from `old` to `new`, multiply the sum by `exp(old - new)`. Begin with the smallest "
        "float32, -3.4e38: with −inf, a first block of −inf gives −inf − −inf, which is nan.",
    ],
)


@exercise.starter
def softmax_kernel(x: Tensor) -> Tensor:
    """x.softmax(1), by a kernel"""
    raise NotImplementedError


_NARROW = ("3, 100", "2, 1024", "5, 1", "1, 5")
_WIDE = ("2, 1025", "1, 2500")


def _drawn(*sizes):
    return {one.replace(",", " ×"): f"torch.manual_seed(0)\nx = torch.randn({one})" for one in sizes}


_PLAIN = _drawn(*_NARROW, *_WIDE) | {"rising numbers": "x = torch.linspace(0, 25, 2500).view(1, 2500)"}
_HARD = numbers.hard("3, 100", "large numbers", "a large mean") | {
    "a long row of large numbers": "torch.randn(2, 1500) * 1e4",
    "all far below 0": "torch.randn(2, 100) - 500",
    "a long row far below 0": "torch.randn(1, 1500) - 500",
    "some are −inf": "torch.randn(2, 100).masked_fill(torch.arange(100) % 3 == 0, -float('inf'))",
    "the first 1,200 are −inf": "torch.randn(1, 2500).masked_fill(torch.arange(2500) < 1200, -torch.inf)",
    "the last 1,300 are −inf": "torch.randn(1, 2500).masked_fill(torch.arange(2500) >= 1200, -torch.inf)",
}
_CASES = {label: f"torch.manual_seed(0)\nx = ({code}).to(device)" for label, code in _HARD.items()}


def _compare(t):
    wanted = t.x.double().softmax(1)
    with untouched(), unwritten_is_nan():
        found = t.call("softmax_kernel(x)")
    expect.close(found, wanted)


@exercise.check(needs="triton", cases={k: f"{v}.to(device)" for k, v in _PLAIN.items()})
def values(t, device):
    """Each row is its softmax

    A masked place is still in the block: with `other=0` it adds `exp(0 - largest)` to the sum. In a long row
    the sum so far belongs to the largest so far: when that grows, all terms shrink by one factor.
    """
    _compare(t)


@exercise.check(needs="triton", cases=_CASES)
def hard_numbers(t, device):
    """Numbers that are large, far below 0, or −inf

    In float32 `exp` is inf from 89 on and 0 below −104, so the largest number of the row is subtracted first.
    A masked place that holds 0 is larger than all numbers of a row that is below 0. And −inf − −inf is nan.
    """
    _compare(t)


@exercise.check(isolated=True, needs="triton", cases=_drawn(*_NARROW, "1, 2500"))
def addresses(t):
    """A kernel computes the result, and no program goes beyond the end of a tensor

    What a load gives without a mask can be thrown away later, and the result is right. The load was carried
    out all the same, behind the end of the tensor.
    """
    inside(launched(t, "softmax_kernel(x)"))


@exercise.check(isolated=True, needs="triton", cases=_drawn(*_NARROW))
def traffic(t):
    """In a short row each element is loaded once and stored once

    A program keeps what it has loaded: the maximum, the sum and the quotient need no second load.
    """
    once(t, watched(t, "softmax_kernel(x)"), ["x"], ["found"])


@exercise.check(isolated=True, needs="triton", cases=_drawn(*_WIDE))
def long_rows(t):
    """In a long row each element is loaded at most twice

    One pass over the blocks finds the maximum and the sum together, if the sum is rescaled whenever the
    maximum grows. This is the online softmax. The second pass stores.
    """
    launches = watched(t, "softmax_kernel(x)")
    once(t, launches, [], ["found"])
    loads = times(launches, t.x, "load")
    expect.true(bool(loads.all()), "a part of `x` was not loaded", "expected: your kernel loads it")
    expect.at_most(int(loads.max()), 2, "loads of one element of `x`")


@exercise.check(isolated=True, needs="triton", cases=_drawn("3, 100", "2, 1025"))
def blocks(t):
    """A program handles one row, in blocks of at most 1,024 elements

    A block as long as the row grows with it; a loop over blocks of one size does for a row of any length.
    Rows need nothing from each other, so each can have a program, and programs are what runs side by side.
    """
    launches = watched(t, "softmax_kernel(x)")
    small_blocks(launches)
    a_program_for_each(launches, len(t.x), "rows")
