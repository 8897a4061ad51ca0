"""Two tensors, element by element

Return the elements of `a` and `b` in turn: `a[0]`, `b[0]`, `a[1]`, `b[1]` and so on. Both have one
dimension and the same length. A gradient that reaches the result reaches `a` and `b`.

`interleave(torch.tensor([1, 2]), torch.tensor([7, 8]))` → `[1, 7, 2, 8]`
"""

import torch
from torch import Tensor

from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=5,
    hints=[
        "Which matrix, read row by row, has the elements in this order?",
        "Two tensors become the columns of a matrix when they are stacked along the last dimension.",
        "`reshape(-1)` reads a matrix row by row.",
    ],
)


@exercise.starter
def interleave(a: Tensor, b: Tensor) -> Tensor:
    """(n,), (n,) -> (2 n,)"""
    raise NotImplementedError


@exercise.check
def right_order(interleave):
    """The elements come in turn, `a` first

    A matrix is read row by row. With `a` and `b` as its columns the elements come in turn.
    """
    t = expect.given("a = torch.tensor([1, 2, 3])\nb = torch.tensor([10, 20, 30])", interleave=interleave)
    expect.equal(t.call("interleave(a, b)"), torch.tensor([1, 10, 2, 20, 3, 30]))
    expect.unchanged(t.a, torch.tensor([1, 2, 3]), what="`a`")
    expect.unchanged(t.b, torch.tensor([10, 20, 30]), what="`b`")


@exercise.check
def two_dtypes(interleave):
    """Integers and floats together become floats

    Torch promotes: the result has a dtype that both fit into.
    """
    t = expect.given("a = torch.arange(3)\nb = torch.tensor([0.5, 1.5, 2.5])", interleave=interleave)
    expect.equal(t.call("interleave(a, b)"), torch.tensor([0, 0.5, 1, 1.5, 2, 2.5]))


@exercise.check
def strided_inputs(interleave, device):
    """Inputs that are views of something else work too

    A view is read by its strides; what lies between its elements is not its own.
    """
    setup = "x = torch.arange(8, device=device)\na = x[::2]\nb = x.flip(0)[1::2]"
    t = expect.given(setup, interleave=interleave, device=device)
    expect.equal(t.call("interleave(a, b)"), torch.tensor([0, 6, 2, 4, 4, 2, 6, 0], device=device))


@exercise.check
def nothing(interleave):
    """Two empty tensors give an empty one

    No elements are a length like others: 0.
    """
    t = expect.given("a = torch.zeros(0)\nb = torch.zeros(0)", interleave=interleave)
    expect.equal(t.call("interleave(a, b)"), torch.zeros(0))


@exercise.check
def gradients(interleave):
    """Each input gets the gradient of its own elements

    What leaves the graph, through `detach`, `.data` or NumPy, hands no gradient back.
    """
    t = expect.given(
        "a = torch.zeros(2, requires_grad=True)\nb = torch.zeros(2, requires_grad=True)",
        interleave=interleave,
    )
    out = t.call("interleave(a, b)")
    expect.true(out.requires_grad, "the result does not require a gradient", "expected: it does")
    out.backward(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    expect.equal(t.a.grad, torch.tensor([1.0, 3.0]), what="`a.grad`")
    expect.equal(t.b.grad, torch.tensor([2.0, 4.0]), what="`b.grad`")
