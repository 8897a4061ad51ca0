"""A Jacobian times a vector, from two vectors times a Jacobian

Backward gives `u @ J`: how the results, weighted by `u`, depend on each element of `x`. Return the other
product, `J @ v`: how each element of the result changes when `x` moves in the direction `v`. If the result
doesn't depend on `x`, it is zero.

- Call `function` once and go back twice, for any number of elements.
- Use `torch.autograd.grad` or `backward`, not forward mode, `torch.func` or `torch.autograd.functional`.
- Leave `x` and `v` as they are, and touch no `.grad` of the caller.
- The product has no graph.

`vector_jacobian_products(lambda x: x * x, torch.tensor([1., 3.]), torch.tensor([1., 10.]))` → `[2, 60]`
"""

from collections.abc import Callable

import torch
from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import graphs

exercise = Exercise(
    minutes=20,
    hints=[
        "Hold `x` fixed. As a function of `u`, the product `u @ J` is linear. What is the Jacobian of that "
        "function?",
        "`u` may be any tensor of the shape of the result, as long as autograd follows it: its value does "
        "not matter, since a linear function has the same derivative everywhere. The first product has to "
        "have a graph of its own, in which `u` is a leaf.",
        "The first call of `grad` gets `u` in `grad_outputs` and is told to build a graph. The second one "
        "differentiates the first one's result with respect to `u`, with `v` in `grad_outputs`. Then "
        "think of results that have no graph, or one that does not lead to `x`.",
    ],
)


@exercise.starter
def vector_jacobian_products(
    function: Callable[[Tensor], Tensor], x: Tensor, v: Tensor
) -> Tensor:
    """x, v: any shape -> J @ v, in the shape of `function(x)`"""
    raise NotImplementedError


_CALL = "vector_jacobian_products(function, x, v)"


def _expect_product(t):
    jacobian = torch.autograd.functional.jacobian(t.function, t.x.detach())
    wanted = torch.tensordot(jacobian, t.v, dims=t.v.dim())
    like = {"`v @ J`": t.v @ jacobian} if t.v.shape == wanted.shape == (len(jacobian),) else {}
    expect.equal(t.call(_CALL), wanted, rtol=1e-4, atol=1e-5, like=like)


@exercise.check(
    given="function = lambda x: {}\nx, v = torch.tensor([{}, {}], device=device)".format,
    cases=[
        ("x * x", "[1., 3.]", "[1., 10.]"),
        ("torch.stack([x[0] * x[1], x[1].sin() + x[2], x[0]])", "[1., 2., 3.]", "[1., 0.5, -1.]"),
        ("x.cumsum(0)", "[0., 0., 0., 0.]", "[1., 2., 4., 8.]"),
    ],
)
def right_values(t, device):
    """The product is right, with as many elements out as in

    The first product, `u @ J`, is linear in `u`, and its Jacobian is the transpose of `J`. To differentiate
    it with respect to `u`, let `u` require grad and let the product have a graph: `create_graph` makes one,
    `retain_graph` doesn't. If `x` doesn't require grad, no graph leads to it.
    """
    _expect_product(t)


@exercise.check(
    given="function = lambda x: {}\nx = {}\nv = {}".format,
    cases={
        "a vector to a number": ("x.prod()", "torch.arange(1., 4.)", "torch.tensor([1., 0., -1.])"),
        "a number to a vector": ("x.exp() * torch.arange(1., 6.)", "torch.tensor(0.5)", "torch.tensor(2.)"),
        "a matrix to a vector": ("(x @ x.t())[0]", "torch.arange(6.).reshape(2, 3)", "torch.ones(2, 3)"),
        "five dimensions to three": (
            "(x * x).cumsum(4)[0, 0]",
            "torch.arange(12.).reshape(1, 2, 1, 2, 3)",
            "torch.arange(12.).reshape(1, 2, 1, 2, 3)",
        ),
        "an `x` that is transposed": (
            "torch.stack([x[:, 0], x[:, 1] * x[:, 0]]).sin()",
            "torch.arange(6.).reshape(3, 2).t()",
            "torch.arange(12.).reshape(2, 6)[:, ::2]",
        ),
        "float64": ("x.sin() * x[0]", "torch.ones(2).double()", "torch.arange(1., 3.).double()"),
    },
)
def any_shape(t):
    """More elements in than out, and fewer, of any shape and dtype

    In `torch.autograd.grad(y, x, u)` the weights `u` belong to `y`: they have its shape and dtype, as
    `torch.zeros_like(y)` has. `v` has the shape of `x`, and the product has the shape of the result.
    """
    _expect_product(t)


@exercise.check(given="v = torch.tensor([1., 10.], dtype=torch.float64)", cases=graphs.WITHOUT_X)
def independent(t):
    """Where the result does not depend on `x`, the product is zero

    If a tensor isn't in the graph, `grad` raises, or gives None with `allow_unused=True`. A result without
    any graph can't be differentiated; its `requires_grad` is False.
    """
    _expect_product(t)


@exercise.check
def left_alone(vector_jacobian_products):
    """`x` and `v` stay as they are, no `.grad` is touched, and the product has no graph

    `backward()` adds to the `.grad` of leaves; `torch.autograd.grad` returns the gradients you ask for. A
    flag that you set on `x` is set for the caller too; `x.detach()` is another tensor on the same storage,
    with its own flag. `0 * x` is in the graph of `x`.
    """
    graphs.left_alone(_CALL, "v = torch.tensor([1., 10.])", vector_jacobian_products=vector_jacobian_products)


@exercise.check(
    given="w = torch.ones(50, 60)\nfunction = lambda x: (w @ x.reshape(-1)).sin()",
    cases=["x = torch.ones(60)\nv = torch.ones_like(x)", "x = torch.ones(3, 20).t()\nv = torch.ones_like(x)"],
)
def work(t):
    """One call of `function`, two ways back, and no Jacobian

    Forward, `w @ x` is one product of a matrix and a vector. Each way back is another: the first with the
    transpose of `w`, the second with `w` again. The Jacobian would have as many elements as `w`.
    """
    peak = measure.peak_bytes(t.call, _CALL).total
    ran = graphs.operators_of_own_call(t, _CALL)
    expect.at_most(
        ran.count("aten.mv"), 3, "products with `w`, one forward and one for each of two ways back"
    )
    what = f"memory at the peak, where the Jacobian has {t.w.nbytes:,} bytes"
    expect.at_most(peak, t.w.nbytes // 2, what, unit="bytes")
