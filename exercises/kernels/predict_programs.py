"""Predict: what each program of a grid loads

The kernels in the docstring below run on `x = torch.ones(10)`, in blocks of 4, and on `m = torch.ones(3, 5)`,
in tiles of 2 × 4. `double[(3,)]` is a launch with three programs.

Write down the elements that a program loads as the kernel counts them, in ascending order: `m[1, 2]` is 7. A
program that loads this one alone gets `(7,)`, and one that loads nothing gets `()`. Where a line asks for a
number, write a number. The first line is answered. Replace every `...` before you run any of it.
"""

import linecache

import torch

from course_utils import measure
from course_utils.exercise import Exercise, predict
from course_utils.exercise.kits.kernels import tl, triton

exercise = Exercise(
    minutes=5,
    core=True,
    hints=[
        "Write `where` of one program down as four numbers. Which of them does the mask let through?",
        "`where` of program 2 is 8, 9, 10, 11. A masked element isn't loaded: it moves no bytes, and its "
        "place in the block gets what `other` says. This place takes part in a sum.",
        "In a tile `i` is a column of two numbers and `j` a row of four, so `i * width + j` is 2 × 4. "
        "`where < height * width` asks whether an element is in the matrix, not whether it is in this row.",
    ],
)


@exercise.starter
def predict_programs() -> dict:
    """Elements that a program loads, and a few numbers

    @triton.jit
    def double(x, n, BLOCK: tl.constexpr):
        where = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = where < n
        tl.store(x + where, 2 * tl.load(x + where, mask=mask), mask=mask)

    @triton.jit
    def unmasked(x, BLOCK: tl.constexpr):
        where = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + where, 2 * tl.load(x + where))

    @triton.jit
    def total(x, out, n, BLOCK: tl.constexpr):
        where = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        block = tl.load(x + where, mask=where < n, other=5)
        tl.store(out + tl.program_id(0), tl.sum(block, 0))

    @triton.jit
    def tiles(m, height, width):
        i = tl.program_id(0) * 2 + tl.arange(0, 2)[:, None]
        j = tl.program_id(1) * 4 + tl.arange(0, 4)[None, :]
        where, mask = i * width + j, (i < height) & (j < width)
        tl.store(m + where, 2 * tl.load(m + where, mask=mask), mask=mask)

    @triton.jit
    def flat_mask(m, height, width):
        i = tl.program_id(0) * 2 + tl.arange(0, 2)[:, None]
        j = tl.program_id(1) * 4 + tl.arange(0, 4)[None, :]
        where, mask = i * width + j, i * width + j < height * width
        tl.store(m + where, 2 * tl.load(m + where, mask=mask), mask=mask)
    """
    return {
        "double[(3,)]: program 1 loads": (4, 5, 6, 7),  # this one is answered
        # the mask
        "double[(3,)]: program 2 loads": ...,
        "double[(3,)]: bytes of x that all programs load": ...,
        "unmasked[(3,)]: program 2 asks for, outside x": ...,
        "total[(3,)]: program 2 stores the number": ...,
        # the grid
        "double[(4,)]: program 3 loads": ...,
        "double: programs for 1,000 elements in blocks of 256": ...,
        # two dimensions
        "tiles[(2, 2)]: program (1, 0) loads": ...,
        "flat_mask[(2, 2)]: program (0, 1) loads": ...,
    }


# The kernels, as they stand in the docstring.
_CODE = exercise.starter_object.__doc__.partition("\n\n")[2].replace("\n    ", "\n").lstrip()

_WHYS = {
    "double[(3,)]: program 1 loads": "A program begins at its number times the size of a block.",
    "double[(3,)]: program 2 loads": "The block goes on to 11, and the mask asks `where < n`.",
    "double[(3,)]: bytes of x that all programs load": "A masked element moves no bytes; a float32 has 4.",
    "unmasked[(3,)]: program 2 asks for, outside x": "A block has its full size, whatever the "
    "tensor's is. Those of its elements that lie in `x` don't count here.",
    "total[(3,)]: program 2 stores the number": "Masked places of the block hold `other`, and are summed.",
    "double[(4,)]: program 3 loads": "A block that begins behind the end has no element of the tensor.",
    "double: programs for 1,000 elements in blocks of 256": "The last block need not be full.",
    "tiles[(2, 2)]: program (1, 0) loads": "`program_id(0)` counts rows of tiles here, and `program_id(1)` "
    "counts columns of tiles. The mask leaves out the row that isn't there.",
    "flat_mask[(2, 2)]: program (0, 1) loads": "The next row begins behind the end of a row. Its elements "
    "are in the matrix, so this mask lets them through.",
}


def _launch(name, grid, *args, **blocks):
    file = "<predict_programs>"
    linecache.cache[file] = (len(_CODE), None, _CODE.splitlines(keepends=True), file)
    names = {"triton": triton, "tl": tl, "__name__": "predict_programs"}
    exec(compile(_CODE, file, "exec"), names)
    return measure.kernel(names[name], grid, *args, **blocks)


def _double(programs, size=10, block=4):
    return _launch("double", (programs,), torch.ones(size), size, BLOCK=block)


def _loads(found, *program):
    """The elements that one program loaded, counted from the first of the tensor."""
    program += (0,) * (3 - len(program))
    (first,) = found.launch.memories
    mine = [a for a in found.launch.accesses if a.program == program and a.place.kind == "load"]
    return tuple(sorted({(int(at) - first.start) // 4 for a in mine for at in a.addresses}))


def _fewest(size, block):
    """The smallest grid that stores to every element."""
    return next(k for k in range(1, size) if not _double(k, size, block).tensors["x"].never_stored)


def _number():
    out = torch.zeros(3)
    _launch("total", (3,), torch.ones(10), out, 10, BLOCK=4)
    return int(out[2])


def _strays():
    found = _launch("unmasked", (3,), torch.ones(10), BLOCK=4)
    return tuple(sorted({one.element for one in found.outside if one.program == (2,)}))


_TILED = (2, 2), torch.ones(3, 5), 3, 5
_TRUTHS = {
    "double[(3,)]: program 1 loads": lambda: _loads(_double(3), 1),
    "double[(3,)]: program 2 loads": lambda: _loads(_double(3), 2),
    "double[(3,)]: bytes of x that all programs load": lambda: _double(3).tensors["x"].bytes_loaded,
    "unmasked[(3,)]: program 2 asks for, outside x": _strays,
    "total[(3,)]: program 2 stores the number": _number,
    "double[(4,)]: program 3 loads": lambda: _loads(_double(4), 3),
    "double: programs for 1,000 elements in blocks of 256": lambda: _fewest(1000, 256),
    "tiles[(2, 2)]: program (1, 0) loads": lambda: _loads(_launch("tiles", *_TILED), 1, 0),
    "flat_mask[(2, 2)]: program (0, 1) loads": lambda: _loads(_launch("flat_mask", *_TILED), 0, 1),
}


def _compare(predict_programs, *lines):
    answers = predict.written_down(predict_programs)
    predict.compare(answers, {line: _TRUTHS[line]() for line in lines}, _WHYS, all_lines=_WHYS)


predict.add_check(exercise)


@exercise.check(isolated=True, needs="triton")
def masks(predict_programs):
    """What a mask leaves out

    A block has a fixed size, and the mask says for which of its places an element is loaded. The others hold
    `other`.
    """
    _compare(predict_programs, *list(_WHYS)[:5])


@exercise.check(isolated=True, needs="triton")
def grids(predict_programs):
    """How many programs a size needs

    One for each block that has at least one element. With a program too few, elements are left out. With a
    mask, a program too many does nothing.
    """
    _compare(predict_programs, *list(_WHYS)[5:7])


@exercise.check(isolated=True, needs="triton")
def two_dimensions(predict_programs):
    """A grid in two dimensions

    A row of offsets and a column of offsets give a tile, by broadcasting. An offset is one number, and an
    element of the next row has a valid one too.
    """
    _compare(predict_programs, *list(_WHYS)[7:])
