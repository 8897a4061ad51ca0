"""A sum, one block a program

Write a kernel in Triton, and the function that launches it: `add_kernel(x, y)` returns `x + y` for two
contiguous tensors of one shape and dtype, of any size but 0.

- A program handles one block of at most 1,024 elements.
- Each element of `x` and `y` is loaded once, and each of the result is stored once.
- No program touches an address outside the tensors.

Write the kernel above `add_kernel`, in the same cell.
"""

from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits.kernels import (
    a_program_for_each,
    because,
    inside,
    launched,
    once,
    small_blocks,
    untouched,
    unwritten_is_nan,
    watched,
)

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "How many blocks of 1,024 are there in 2,500 elements? What does the last one have to leave out?",
        "Program 3 handles the elements from `3 * BLOCK` on. `tl.program_id(0)` says which program this is, "
        "and `tl.arange(0, BLOCK)` counts within its block. Which of these elements exist?",
        "Compare the offsets with `n`, and pass the result as `mask=` to both loads and to the store. "
        "`triton.cdiv(n, BLOCK)` rounds up; put that into the brackets: `kernel[(programs,)](…)`.",
    ],
)


@exercise.starter
def add_kernel(x: Tensor, y: Tensor) -> Tensor:
    """x + y, by a kernel"""
    raise NotImplementedError


_SIZES = {
    "one block": 1024,
    "a block that is not full": 100,
    "2,500 elements": 2500,
    "one element": 1,
    "1,025 elements": 1025,
}
# Two storages: what runs on behind `x` is not in `y`.
_CASES = {
    label: f"torch.manual_seed(0)\nx, y = torch.randn({n}), torch.randn({n})" for label, n in _SIZES.items()
}
_MOVED = {label: f"{code}\nx, y = x.to(device), y.to(device)" for label, code in _CASES.items()}
_KINDS = {
    "a matrix": "torch.manual_seed(0)\nx, y = torch.randn(2, 37, 41, device=device)",
    "float16": "torch.manual_seed(0)\nx, y = torch.randn(2, 1500, device=device).half()",
    "int64": "x, y = torch.arange(3000, device=device).view(2, 1500) * 2**33 + 1",
    "float64": "x, y = torch.arange(3000, device=device).double().view(2, 1500) / 3",
}
_DIGITS = (
    "What is loaded has the dtype of its tensor, and so has a sum of two such blocks. float32 has 24 bits, "
    "and on a way through it numbers of int64 and float64 lose what they have more."
)


@exercise.check(needs="triton", cases=_MOVED | _KINDS)
def values(t, device):
    """The result is `x + y`

    An element that no program stores is as it came out of `torch.empty`: anything may stand there (here it is
    NaN). A grid that is rounded down leaves out the last block; `len(x)` counts the rows of a matrix, and
    `x.numel()` its elements.
    """
    wanted = t.x + t.y
    with untouched(), unwritten_is_nan():
        found = t.call("add_kernel(x, y)")
    with because(_DIGITS if wanted.element_size() == 8 else ""):
        expect.equal(found, wanted, rtol=0, atol=0)  # a sum of two numbers is rounded once


@exercise.check(isolated=True, needs="triton", cases=_CASES)
def addresses(t):
    """A kernel computes the result, and no program goes beyond the end of a tensor

    A block has a fixed size, and a tensor has any. Without a mask the last program loads and stores what lies
    behind the tensor. A load there gives numbers that aren't the tensor's; a store overwrites them.
    """
    inside(launched(t, "add_kernel(x, y)"))


@exercise.check(isolated=True, needs="triton", cases=_CASES)
def traffic(t):
    """Each element is loaded once and stored once

    Two loads and a store for each element are what a sum needs. Blocks that overlap move some of them twice.
    """
    once(t, watched(t, "add_kernel(x, y)"), ["x", "y"], ["found"])


@exercise.check(isolated=True, needs="triton", given="x, y = torch.ones(2, 5000)")
def blocks(t):
    """A program handles one block of at most 1,024 elements

    Programs are what runs side by side, and one program with a block as large as the tensor runs alone. And
    Triton refuses blocks of more than 1,048,576 elements.
    """
    launches = watched(t, "add_kernel(x, y)")
    small_blocks(launches)
    a_program_for_each(launches, 5, "blocks of 1,024 elements")
