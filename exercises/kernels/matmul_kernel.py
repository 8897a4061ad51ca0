"""A matrix product, tile by tile

Write a kernel, and the function that launches it: `matmul_kernel(a, b, tile)` returns `a @ b` for contiguous
matrices, both float32 or both float16. No size is 0; `tile` is a power of two, at least 16.

- A program computes one `tile` × `tile` tile of the result, from tiles that are no larger.
- Each element of `a` is loaded once for each tile column of the result, and each element of `b` once for each
  tile row. Each element of the result is stored once.
- Products and sums are in float32, also on a GPU; the result has the dtype of `a`.
- No program touches an address outside the tensors.

Write the kernel above `matmul_kernel`, in the same cell.
"""

import math
import re

from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits.kernels import (
    a_program_for_each,
    as_often,
    exact_products,
    inside,
    launched,
    loose_loads_told,
    once,
    small_blocks,
    untouched,
    unwritten_is_nan,
    watched,
)

exercise = Exercise(
    minutes=20,
    hints=[
        "The tile in tile row 1 and tile column 2 of the result needs which rows of `a`, and which columns "
        "of `b`? All of K is needed, so it is walked in steps of `tile`.",
        "A grid of two dimensions gives each program its rows and its columns. Element `[i, k]` of `a` lies "
        "at `i * K + k`, element `[k, j]` of `b` at `k * N + j`: `[:, None]` and `[None, :]` make a tile of "
        "such offsets from two ranges. What must the last step leave out?",
        "In each step load both tiles, with `other=0` where a row, a column or a k does not exist, and add "
        'their product to a tile of zeros in float32: `tl.dot(…, input_precision="ieee")`. The store comes '
        "behind the loop; its mask has no part for k.",
    ],
)


@exercise.starter
def matmul_kernel(a: Tensor, b: Tensor, tile: int) -> Tensor:
    """(M, K), (K, N) -> (M, N), by a kernel"""
    raise NotImplementedError


_SIZES = {
    "sizes that don't divide": (40, 23, 50, 16),
    "tiles of 32": (40, 23, 50, 32),
    "less than a tile": (5, 3, 7, 16),
    "one row": (1, 37, 20, 16),
    "one column": (37, 1, 20, 16),
    "K is 1": (20, 18, 1, 16),
}
_CASES = {
    label: f"torch.manual_seed(0)\na, b, tile = torch.randn({m}, {k}), torch.randn({k}, {n}), {tile}"
    for label, (m, n, k, tile) in _SIZES.items()
}
_COUNTED = {label: _CASES[label] for label in ("sizes that don't divide", "tiles of 32", "less than a tile")}
_HALF = """torch.manual_seed(0)
a, b = (torch.randint(-3, 4, size, device=device).half() for size in ((20, 50), (50, 18)))
tile = 16
"""


_CALL = "matmul_kernel(a, b, tile)"


def _compare(t, factor):
    wanted = t.a.double() @ t.b.double()
    with unwritten_is_nan(), untouched():
        result = expect.a_tensor(t.call(_CALL))
    expect.equal(result.dtype, t.a.dtype, what="the dtype of the result")
    with loose_loads_told(t, _CALL):
        expect.close(result, wanted, factor=factor)


@exercise.check(
    needs="triton", cases={k: re.sub(r"(randn\(.*?)\)", r"\1, device=device)", v) for k, v in _CASES.items()}
)
def values(t, device):
    """The result is `a @ b`, whatever the sizes are

    A grid that is rounded down leaves rows or columns of the result as `torch.empty` made them. One step in K
    is 1 element in `a`, and N elements in `b`.
    """
    _compare(t, 16)


@exercise.check(
    needs="triton",
    given=_HALF,
    cases={
        "small numbers": "",
        "4,096 comes and goes": "a[:, 0], a[:, -1], b[0], b[-1] = 64, -64, 64, 64",
        "products of 90,000": "a[:, :16], a[:, 16:32], b[:32] = 300, -300, 300",
    },
)
def half(t, device):
    """Matrices of float16 are multiplied and summed in float32

    float16 has 11 bits: beside 4,096 it rounds to multiples of 4, and from 65,520 on it is inf. Products and
    sums in between go there where the result doesn't. What is stored is rounded once.
    """
    _compare(t, 2)


@exercise.check(isolated=True, needs="triton", cases=_COUNTED)
def addresses(t):
    """A kernel computes the result, and no program goes beyond the end of a tensor

    A tile reaches beyond the matrix in two directions, so its mask has two parts. What lies beyond K in one
    tile may be multiplied by a 0 of the other, and the result is right; the load was carried out all the
    same. (And 0 times inf is nan.)
    """
    inside(launched(t, _CALL))


@exercise.check(isolated=True, needs="triton", cases={"tiles of 32": _CASES["tiles of 32"]})
def exact(t):
    """No product of float32 is rounded on a GPU

    There `tl.dot` rounds float32 to TF32, with 10 bits behind the point, unless it is told
    `input_precision="ieee"`. The interpreter doesn't round, so the values are right here.
    """
    exact_products(watched(t, _CALL))


@exercise.check(isolated=True, needs="triton", cases=_COUNTED)
def traffic(t):
    """What is loaded is what the formula says

    With one program an element all of `a` is loaded N times. A tile of `a` that was loaded once serves `tile`
    columns of the result, so `a` is loaded N / `tile` times, rounded up, and `b` M / `tile` times. A tile
    twice as large halves both.
    """
    launches = watched(t, _CALL)
    for name, other in (("a", t.b.shape[1]), ("b", t.a.shape[0])):
        often = math.ceil(other / t.tile)
        tiles = "tile column" if name == "a" else "tile row"
        as_often(t, launches, name, often, f"once for each {tiles} of the result")


@exercise.check(isolated=True, needs="triton", cases=_COUNTED)
def stored(t):
    """Each element of the result is stored once

    The sum stays with the program until all of K has been added, and goes to memory as a whole. A sum that
    lies in memory is loaded and stored again in each step.
    """
    once(t, watched(t, _CALL), [], ["found"])


@exercise.check(isolated=True, needs="triton", cases=_COUNTED)
def tiles(t):
    """A program computes one tile, from tiles that are no larger

    What a program holds has to stay the same when K grows, and a strip as long as K doesn't. Programs are
    what runs side by side: one for each tile.
    """
    launches = watched(t, _CALL)
    small_blocks(launches, t.tile**2)
    count = math.ceil(len(t.a) / t.tile) * math.ceil(t.b.shape[1] / t.tile)
    a_program_for_each(launches, count, "tiles of the result")
