"""The Jacobian, row by row

Return the Jacobian of `function` at `x`: for each element of the result its derivatives with respect to all
elements of `x`. Its shape is the shape of the result followed by the shape of `x`; both have at least one
element, in any number of dimensions. If a result doesn't depend on `x`, its derivatives are zero.

- Call `function` once, and go back at most once for each element of the result.
- Use `torch.autograd.grad` or `backward`, not `torch.func` or `torch.autograd.functional`.
- Leave `x` as it is, with or without `requires_grad`, and touch no `.grad` of the caller.
- The Jacobian has no graph.

`jacobian_by_rows(lambda x: x[:1] * x[1:], torch.tensor([2., 3.]))` → `[[3, 2]]`
"""

from collections.abc import Callable

import torch
from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import graphs

exercise = Exercise(
    minutes=20,
    hints=[
        "Which weights pick a single result out of a weighted sum? What does backward give for it, and "
        "which part of the Jacobian is that?",
        "All rows go back through the same graph, and the first backward frees it, unless you say "
        "otherwise. If torch returns None for a row, it is a row of zeros.",
        "`grad_outputs` has the shape of the result: one in one place, zeros elsewhere. Or pick the elements "
        "of the flattened result, one after the other. Stack the rows and reshape them. "
        "What if the result does not require a gradient at all?",
    ],
)


@exercise.starter
def jacobian_by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """x: any shape -> (*shape of the result, *shape of x)"""
    raise NotImplementedError


_SETUP = "function = lambda x: {}\nx = {}".format
_CALL = "jacobian_by_rows(function, x)"


def _expect_jacobian(t):
    wanted = torch.autograd.functional.jacobian(t.function, t.x.detach())
    expect.equal(t.call(_CALL), wanted, rtol=1e-4, atol=1e-5)


@exercise.check(
    given="function = lambda x: {}\nx = torch.tensor({}, device=device)".format,
    cases=[
        ("x.cumsum(0)[1:]", "[0., 1., 2., 3.]"),
        ("x[:1] * x[1:]", "[2., 3.]"),
        ("torch.stack([x[0] * x[1], x[1].sin() + x[2], x[0] ** 2, x.prod()])", "[1., 2., 3.]"),
        ("x.softmax(0)", "[1., 0., -1.]"),
    ],
)
def right_values(t, device):
    """Every row is right

    Backward gives `v @ J`, and a `v` with a single 1 picks a row, as long as the derivatives are finite. All
    rows go back through one graph, whose inputs require grad. The first backward frees what its nodes have
    kept, unless told otherwise (nodes such as that of `cumsum` keep no tensor). `backward` adds to `.grad`:
    what is there stays in the sum, so the next row has that of the rows before it in it, until it is cleared.
    """
    _expect_jacobian(t)


@exercise.check(
    given=_SETUP,
    cases={
        "a matrix to a matrix": ("(x @ x[1:].t()).sin()", "torch.arange(6.).reshape(3, 2)"),
        "three dimensions to two": ("(x * x).cumsum(0).sum(1)", "torch.arange(8.).reshape(2, 2, 2)"),
        "two to five": ("(x * x)[:, None, None, None] * x", "torch.arange(4.).reshape(2, 2)"),
        "a vector to a number": ("(x * x).sum()", "torch.arange(3.)"),
        "a number to a vector": ("x.exp() * torch.arange(1., 3.)", "torch.tensor(0.5)"),
        "a number to a number": ("x * x", "torch.tensor(2.)"),
        "a result that is transposed": ("(x.reshape(2, 2) * x[:2]).t()", "torch.arange(1., 5.)"),
        "an `x` that is transposed": ("(x * x)[1:]", "torch.arange(6.).reshape(2, 3).t()"),
    },
)
def any_shape(t):
    """Results and inputs have any shape and any strides

    `y[i]` is one element if `y` is a vector. `y.reshape(-1)` makes a vector of any result, and may copy one
    that isn't contiguous. A number has the shape `()`: `reshape(*())` gets no size at all, `reshape(())` gets
    an empty one.
    """
    _expect_jacobian(t)


@exercise.check(cases=graphs.WITHOUT_X)
def independent(t):
    """A result that does not depend on `x` has zeros, of the dtype of `x`

    If a tensor isn't in the graph, `grad` raises, or gives None with `allow_unused=True`. A result without
    any graph can't be differentiated; its `requires_grad` is False.
    """
    _expect_jacobian(t)


@exercise.check
def left_alone(jacobian_by_rows):
    """`x` stays as it is, no `.grad` is touched, and the Jacobian has no graph

    `backward()` adds to the `.grad` of leaves; `torch.autograd.grad` returns the gradients you ask for. A
    flag that you set on `x` is set for the caller too; `x.detach()` is another tensor on the same storage,
    with its own flag. `create_graph` can give what comes back a graph. `0 * x` is in the graph of `x`.
    """
    graphs.left_alone(_CALL, jacobian_by_rows=jacobian_by_rows)


@exercise.check(
    given="w = torch.ones(4, 10)\nfunction = lambda x: (w @ x.reshape(-1)).sin()",
    cases=["x = torch.ones(10)", "x = torch.ones(2, 5).t()"],
)
def work(t):
    """One call of `function`, and one way back for each element of the result

    Forward, `w @ x` is one product of a matrix and a vector. Each way back through it is another, and gives a
    row of the Jacobian, however many elements `x` has.
    """
    ran = graphs.operators_of_own_call(t, _CALL)
    expect.at_most(ran.count("aten.mv"), 5, "products with `w`, one forward and one for each of 4 results")
