"""A transpose that wastes no sector

Write a kernel, and the function that launches it: `transpose_kernel(x)` returns the transpose of a contiguous
float32 matrix of any size but 0, as a contiguous matrix. Torch moves no element of it.

- A GPU's memory is read and written in sectors of 32 bytes. If both sizes are multiples of 8, loads and
  stores touch no more sectors than their elements fill.
- A block has at most 1,024 elements.
- Each element is loaded once and stored once.
- No program touches an address outside the tensors.

Write the kernel above `transpose_kernel`, in the same cell.
"""

from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits.kernels import (
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
    hints=[
        "A row of `x` fills its sectors, and becomes a column of the result, where each element lies in "
        "another sector. Which block of `x` has at least 8 neighbours in both directions?",
        "A tile of 32 × 32, in a grid of two dimensions: rows from `tl.program_id(0) * 32` on, and columns "
        "from `tl.program_id(1) * 32` on. `rows[:, None]` and `columns[None, :]` give a tile of offsets.",
        "Element `[i, j]` lies at `i * width + j` in `x`, and at `j * height + i` in the result. The mask is "
        "`(i < height) & (j < width)`. `tl.trans(tile)` turns the tile around, and the mask if you need it.",
    ],
)


@exercise.starter
def transpose_kernel(x: Tensor) -> Tensor:
    """(height, width) -> (width, height), contiguous, by a kernel"""
    raise NotImplementedError


def _drawn(*sizes):
    return {one.replace(",", " ×"): f"torch.manual_seed(0)\nx = torch.randn({one})" for one in sizes}


_ALIGNED = _drawn("48, 24", "8, 104")
_RAGGED = _drawn("33, 65", "1, 40", "40, 1", "3, 5")
_EDGES = (
    "A tile at the edge has rows and columns that don't exist, and their offsets may be those of elements in "
    "other rows: a mask that compares the offset alone lets them through. A mask has a part for rows and one "
    "for columns, in the load and in the store. And the grid is rounded up in both directions."
)


@exercise.check(needs="triton", cases={k: f"{v}.to(device)" for k, v in (_ALIGNED | _RAGGED).items()})
def values(t, device):
    """The result is the transpose, and contiguous

    Element `[i, j]` goes to `[j, i]`. In a contiguous matrix a step to the next row is as long as a row: the
    width of `x` before, and its height afterwards.
    """
    wanted = t.x.t().clone()
    with untouched(), unwritten_is_nan():
        found = t.call("transpose_kernel(x)")
    with because(_EDGES if any(size % 8 for size in t.x.shape) else ""):
        expect.equal(found, wanted)
    expect.strides(found, (len(t.x), 1))


@exercise.check(isolated=True, needs="triton", cases=_ALIGNED | _RAGGED)
def addresses(t):
    """A kernel moves the elements, and no program goes beyond the end of a tensor

    A tile at the edge has rows or columns that don't exist. A store needs a mask too: turned around like the
    tile, if the tile was.
    """
    inside(launched(t, "transpose_kernel(x)", copies=False))


@exercise.check(isolated=True, needs="triton", cases=_ALIGNED | _RAGGED)
def traffic(t):
    """Each element is loaded once and stored once

    A column that doesn't exist has an offset all the same, which is that of an element in another row. A mask
    that compares the offset alone lets it through.
    """
    once(t, watched(t, "transpose_kernel(x)"), ["x"], ["found"])


@exercise.check(isolated=True, needs="triton", cases=_ALIGNED)
def sectors(t):
    """Loads and stores touch as few sectors as possible

    A sector of 32 bytes has 8 neighbours of a row. Whoever asks for one of them alone has the whole sector
    moved. By rows the stores do that, and by columns the loads. A tile has neighbours in both directions, and
    a side of less than 32 bytes, 8 elements here, fills no sector.
    """
    for launch in watched(t, "transpose_kernel(x)"):
        for site in launch.sites:
            expect.true(site.sectors == site.fewest, str(site), "expected: no more than at best")


@exercise.check(isolated=True, needs="triton", given="x = torch.zeros(40, 72)")
def blocks(t):
    """A block has at most 1,024 elements

    The sides of a tile have fixed sizes, whatever the matrix is. A larger matrix has more tiles, not larger
    ones.
    """
    small_blocks(watched(t, "transpose_kernel(x)"))
