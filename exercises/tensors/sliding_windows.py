"""Sliding windows without a copy

Return a matrix whose rows are windows of a 1-D tensor: each is a run of `size` neighbouring elements, and the
next one starts `step` elements later. Leave out windows that would reach beyond the end of `x`; `size` is at
most `len(x)`.

The matrix **shares storage** with `x`, which may be a view itself and stays as it is. Gradients of the
windows must reach `x`. (`unfold` does all this; the exercise is to find its strides.)

`sliding_windows(torch.arange(6), 3, 2)` → `[[0, 1, 2], [2, 3, 4]]`
"""

import torch
from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import strides

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "How far is it in storage from one element of a row to the next? And from one row to the next? Both "
        "numbers depend on `x.stride()`.",
        "Neighbours in `x` are `x.stride(0)` apart, whatever `x` is a view of. The last row starts at "
        "`len(x) - size` or a little before. How many starts are there, counting the one at 0?",
        "`Tensor.as_strided(size, stride)` begins where `x` begins unless you give an offset. So you need "
        "the number of rows and two strides.",
    ],
)


@exercise.starter
def sliding_windows(x: Tensor, size: int, step: int = 1) -> Tensor:
    """(n,) -> (windows, size)"""
    raise NotImplementedError


def _expect_windows(t, size, step):
    """The windows of `x`, element by element."""
    elements = t.x.tolist()
    rows = [elements[start : start + size] for start in range(0, len(elements) - size + 1, step)]
    arguments = f"x, {size}" if step == 1 else f"x, {size}, {step}"
    expect.equal(t.call(f"sliding_windows({arguments})"), torch.tensor(rows).to(t.x))


@exercise.check(
    given="x = torch.arange(1, 11, device=device) ** 2",
    cases={"`x, 3, 2`": (3, 2), "`x, 4`": (4, 1), "`x, 2, 5`": (2, 5)},
)
def right_values(t, device, size, step):
    """Every window holds the right elements

    Element `[i, j]` of the result is element `i * step + j` of `x`: one step down moves by `step`, one step
    to the right by 1. The last row starts at most at `len(x) - size`.
    """
    _expect_windows(t, size, step)


@exercise.check
def every_size(sliding_windows):
    """As many windows as fit, for every length, `size` and `step`

    The first window starts at 0, the last at most at `len(x) - size`. Count the whole steps between them and
    add one; if `size == len(x)` there is one window.
    """
    for n in range(1, 7):
        for size in range(1, n + 1):
            for step in (1, 2, 3):
                t = expect.given(f"x = {strides.squares(n)}", sliding_windows=sliding_windows)
                _expect_windows(t, size, step)


@exercise.check(
    given="x = {}".format,
    cases=[
        (f"{strides.squares(12)}[::2]", 3),
        (f"{strides.squares(7, 4)}[:, 1]", 3),
        ("torch.tensor([7]).expand(5)", 2),
        (f"{strides.squares(12)}[3:10]", 3),
        (f"{strides.squares(12)}[1::2]", 3),
    ],
)
def of_a_view(t, size):
    """The input may be a view itself

    In `x[::2]` two neighbours lie two places apart in storage: `x.stride(0)` is 2, and both strides of the
    result are multiples of it. A view may also begin anywhere: `as_strided` begins at `x.storage_offset()` if
    you give no offset.
    """
    _expect_windows(t, size, 2)


@exercise.check(cases=["x = torch.arange(8.)", "x = torch.arange(16.)[::2]", "x = torch.arange(16.)[6:]"])
def shares_storage(t):
    """The windows share storage with `x`, which stays as it is

    `stack`, `cat`, indexing with a tensor of indices, and `contiguous` of a tensor with gaps copy, and a
    write to `x` doesn't show in a copy. `as_strided`, `unfold` and slices make views. `as_strided_` changes
    `x` itself.
    """
    witness = t.x.detach()  # `x` itself could be made to read the storage of a copy
    with expect.left_alone(t.x, what="`x`"):
        windows = t.call("sliding_windows(x, 3, 2)")
    expect.same_storage(windows, witness, of="`x`")


@exercise.check(given="x = torch.arange(7., requires_grad=True)")
def gradients(t):
    """A gradient reaches `x`, once for each window that an element is in

    An element in two rows gets the sum of both gradients. `detach`, `.data` and NumPy share storage too, but
    they leave the graph, so no gradient comes back.
    """
    windows = t.call("sliding_windows(x, 3, 2)")
    expect.in_graph(windows, of="`x`")
    windows.backward(torch.ones_like(windows))
    expect.equal(t.x.grad, torch.tensor([1.0, 1, 2, 1, 2, 1, 1]), what="`x.grad` after backward from ones")
