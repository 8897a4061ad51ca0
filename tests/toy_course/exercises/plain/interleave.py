"""Two tensors, element by element

Return the elements of `a` and `b` in turn: `a[0]`, `b[0]`, `a[1]`, `b[1]` and so on. Both have one
dimension and the same length. A gradient that reaches the result reaches `a` and `b`.

`interleave(torch.tensor([1, 2]), torch.tensor([7, 8]))` → `[1, 7, 2, 8]`
"""

import torch
from torch import Tensor

from course_utils import expect
from course_utils.exercise import Exercise

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
    """The elements come in turn, `a` first"""
    t = expect.given("a = torch.tensor([1, 2, 3])\nb = torch.tensor([10, 20, 30])", interleave=interleave)
    expect.equal(t.call("interleave(a, b)"), torch.tensor([1, 10, 2, 20, 3, 30]))
    expect.unchanged(t.a, torch.tensor([1, 2, 3]), what="`a`")
    expect.unchanged(t.b, torch.tensor([10, 20, 30]), what="`b`")


@exercise.check
def two_dtypes(interleave):
    """Integers and floats together become floats"""
    t = expect.given("a = torch.arange(3)\nb = torch.tensor([0.5, 1.5, 2.5])", interleave=interleave)
    expect.equal(t.call("interleave(a, b)"), torch.tensor([0, 0.5, 1, 1.5, 2, 2.5]))


@exercise.check
def strided_inputs(interleave, device):
    """Inputs that are views of something else work too"""
    x = torch.arange(8, device=device)
    t = expect.given("a = x[::2]\nb = x.flip(0)[1::2]", x=x, interleave=interleave)
    expect.equal(t.call("interleave(a, b)"), torch.tensor([0, 6, 2, 4, 4, 2, 6, 0], device=device))


@exercise.check
def nothing(interleave):
    """Two empty tensors give an empty one"""
    t = expect.given("a = torch.zeros(0)\nb = torch.zeros(0)", interleave=interleave)
    expect.equal(t.call("interleave(a, b)"), torch.zeros(0))


@exercise.check
def gradients(interleave):
    """Each input gets the gradient of its own elements"""
    t = expect.given(
        "a = torch.zeros(2, requires_grad=True)\nb = torch.zeros(2, requires_grad=True)",
        interleave=interleave,
    )
    out = t.call("interleave(a, b)")
    expect.true(out.requires_grad, "the result does not require a gradient", "expected: it does")
    out.backward(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    expect.equal(t.a.grad, torch.tensor([1.0, 3.0]), what="`a.grad`")
    expect.equal(t.b.grad, torch.tensor([2.0, 4.0]), what="`b.grad`")


@exercise.mistake
def puts_b_after_a(a, b):
    """All of `a` comes before all of `b`: read row by row, a matrix whose *rows* are `a` and `b` has that
    order. Make them its columns."""
    return torch.cat((a, b))


@puts_b_after_a.variant
def stacks_rows(a, b):
    return torch.stack((a, b)).reshape(-1)


@exercise.mistake
def starts_with_b(a, b):
    """The two are swapped: `b[0]` comes first."""
    return torch.stack((b, a), dim=1).reshape(-1)


@exercise.mistake
def keeps_dtype_of_a(a, b):
    """Your result has the dtype of `a`, whatever `b` is: an assignment into a tensor casts what it writes."""
    out = a.new_zeros(2 * len(a))
    out[0::2] = a
    out[1::2] = b
    return out


@keeps_dtype_of_a.variant
def casts_b(a, b):
    return torch.stack((a, b.to(a.dtype)), dim=1).flatten()


@exercise.mistake
def leaves_the_graph(a, b):
    """No gradient can pass: `detach` (or `no_grad`, or `.data`) cuts the result from `a` and `b`."""
    return torch.stack((a.detach(), b.detach()), dim=1).reshape(-1)


@leaves_the_graph.variant
def without_grad(a, b):
    with torch.no_grad():
        return torch.stack((a, b)).t().flatten()


@exercise.mistake
def reads_neighbours(a, b):
    """You read neighbours in storage. The elements of a view such as `x[::2]` are not neighbours there."""
    n = len(a)
    return torch.stack((a.as_strided((n,), (1,)), b.as_strided((n,), (1,))), dim=1).reshape(-1)
