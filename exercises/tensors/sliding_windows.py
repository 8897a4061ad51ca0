"""Sliding windows without a copy

Return every run of `size` neighbouring elements of a 1-D tensor, `step` apart, as the rows of a matrix. A
window that would reach beyond the end of `x` is left out.

The matrix **shares storage** with `x`, which may be a view of something else.

`sliding_windows(torch.arange(6), 3, 2)` → `[[0, 1, 2], [2, 3, 4]]`
"""

import torch
from torch import Tensor

from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "From one element of a row to the next: how far is that in storage? And from one row to the next? "
        "Two numbers, one for each dimension of the result, and `x.stride()` has a part in both.",
        "Neighbours in `x` are `x.stride(0)` apart, whatever `x` is a view of. The last row starts at "
        "`len(x) - size` or a little before: how many starts are there, the first one at 0 included?",
        "`Tensor.as_strided(size, stride)` builds any view that strides can describe, and begins where `x` "
        "begins unless told otherwise. What is missing is the number of rows and two strides.",
    ],
)


@exercise.starter
def sliding_windows(x: Tensor, size: int, step: int = 1) -> Tensor:
    """(n,) -> (windows, size)"""
    raise NotImplementedError


def _expect_windows(sliding_windows, setup, size, *step, **names):
    """The windows of the `x` that `setup` makes, element by element."""
    t = expect.given(setup, sliding_windows=sliding_windows, **names)
    elements = t.x.tolist()
    rows = [elements[start : start + size] for start in range(0, len(elements) - size + 1, *step)]
    arguments = ", ".join(map(str, ("x", size, *step)))
    expect.equal(t.call(f"sliding_windows({arguments})"), torch.tensor(rows).to(t.x))


@exercise.check
def right_values(sliding_windows, device):
    """Every window holds the right elements

    Element `[i, j]` of the result is element `i * step + j` of `x`: one step down moves by `step`, one step
    to the right by 1.
    """
    _expect_windows(sliding_windows, "x = torch.arange(6, device=device)", 3, 2, device=device)
    _expect_windows(sliding_windows, "x = torch.arange(10, device=device)", 4, device=device)
    _expect_windows(sliding_windows, "x = torch.arange(10, device=device)", 2, 5, device=device)


@exercise.check
def every_size(sliding_windows):
    """As many windows as fit, for every length, `size` and `step`

    The first start is 0 and the last is at most `len(x) - size`. That makes one window more than whole steps
    fit between them; with `size == len(x)` there is one.
    """
    for n in range(1, 7):
        for size in range(1, n + 1):
            for step in (1, 2, 3):
                _expect_windows(sliding_windows, f"x = torch.arange({n})", size, step)


@exercise.check
def of_a_view(sliding_windows):
    """The input may be a view itself

    In `x[::2]` two neighbours lie two places apart in storage: `x.stride(0)` is 2, and rows and columns both
    move in steps of it. A view may also begin anywhere: `x.storage_offset()` says where, and `as_strided`
    begins there if no offset is given.
    """
    with Rows() as rows:
        for view, size in [
            ("torch.arange(12)[::2]", 3),
            ("torch.arange(28).reshape(7, 4)[:, 1]", 3),
            ("torch.tensor([7]).expand(5)", 2),
            ("torch.arange(12)[3:10]", 3),
            ("torch.arange(12)[1::2]", 3),
        ]:
            with rows.of(f"`{view}`"):
                _expect_windows(sliding_windows, f"x = {view}", size, 2)


@exercise.check
def shares_storage(sliding_windows):
    """The windows share storage with `x`

    `stack`, `cat` and indexing with a tensor allocate: what they return is a copy, and a write to `x` no
    longer shows in it. `as_strided`, `unfold` and slices only describe.
    """
    for view in ("torch.arange(8.)", "torch.arange(16.)[::2]", "torch.arange(16.)[6:]"):
        t = expect.given(f"x = {view}", sliding_windows=sliding_windows)
        witness = t.x.detach()  # `x` itself could be made to read the storage of a copy
        expect.same_storage(t.call("sliding_windows(x, 3, 2)"), witness, of="`x`")


@exercise.check
def gradients(sliding_windows):
    """A gradient reaches `x`, once for each window that an element is in

    An element that stands in two rows gets the sum of both gradients. What leaves the graph, through
    `detach`, `.data` or NumPy, shares storage and hands nothing back.
    """
    t = expect.given("x = torch.arange(7., requires_grad=True)", sliding_windows=sliding_windows)
    windows = t.call("sliding_windows(x, 3, 2)")
    expect.in_graph(windows, of="`x`")
    windows.backward(torch.ones_like(windows))
    expect.equal(t.x.grad, torch.tensor([1.0, 1, 2, 1, 2, 1, 1]), what="`x.grad` after backward from ones")
