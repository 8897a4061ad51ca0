"""The Hessian times a vector, without the Hessian

`loss_of()` computes a loss from `parameters`, which require grad. Its Hessian has a row and a column for each
element of all of them. Return the product of this Hessian with a vector. The vector comes in parts: `vectors`
has one tensor for each parameter, in its shape. So does the list that you return. If no gradient depends on a
parameter, its part is zero.

- Call `loss_of` once and go back twice, for any number of elements.
- Don't modify parameters and vectors, and don't touch `.grad`.
- The vectors may have a graph, the product has none.

`torch.autograd.grad` is enough. With `a = torch.tensor([1., 2.], requires_grad=True)`,
`hessian_vector_product(lambda: a.prod() ** 2, [a], [torch.tensor([1., 0.])])` → `[tensor([8., 8.])]`
"""

from collections.abc import Callable

import torch
from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import graphs

exercise = Exercise(
    minutes=15,
    hints=[
        "Row `i` of the Hessian is the gradient of element `i` of the gradient. So what is the gradient of "
        "a weighted sum of these elements?",
        "Take gradients that have a graph themselves. Their scalar product with the vector, over all "
        "parameters together, is one number, and one backward differentiates it.",
        "`create_graph` builds the graph of a gradient; `retain_graph` only keeps the one that is there. "
        "For a parameter without a part torch returns None, if you pass `allow_unused=True`. If no gradient "
        "depends on anything, the scalar product has no graph at all.",
    ],
)


@exercise.starter
def hessian_vector_product(
    loss_of: Callable[[], Tensor], parameters: list[Tensor], vectors: list[Tensor]
) -> list[Tensor]:
    """One tensor for each parameter, in its shape"""
    raise NotImplementedError


_CALL = "hessian_vector_product(loss_of, parameters, vectors)"
_TWO = """a = torch.tensor([1., -2., 0.5], dtype=torch.float64, requires_grad=True)
b = torch.tensor([[1., 0.], [2., 1.], [-1., 3.]], dtype=torch.float64, requires_grad=True)
parameters = [a, b]
vectors = [torch.tensor([1., 0., -1.]).double(), torch.arange(6.).double().reshape(2, 3).t()]
f = lambda a, b: {}
loss_of = lambda: f(*parameters)"""


def _expect_product(t):
    values = tuple(p.detach() for p in t.parameters)
    _, wanted = torch.autograd.functional.hvp(t.f, values, tuple(t.vectors))
    expect.equal(t.call(_CALL), wanted, rtol=1e-4, atol=1e-5)


@exercise.check(
    given="""a = torch.tensor({1}, device=device, requires_grad=True)
parameters, vectors = [a], [{2}]
f = lambda a: {0}
loss_of = lambda: f(a)""".format,
    cases=[
        ("a.prod() ** 2", "[1., 2.]", "torch.tensor([1., 0.], device=device)"),
        (
            "(a.t() @ a).sin().sum()",
            "[[1., 2.], [0., -1.], [3., 1.]]",
            "torch.arange(6., device=device).reshape(2, 3).t()",
        ),
        ("a.exp()", "0.5", "torch.tensor(2., device=device)"),
        ("a.sin()", "0.5", "4 * a"),
        ("a.cumsum(2).prod(1).sin().sum()", "[[[1., 2.], [0.5, -1.]]]", "torch.ones(1, 2, 2).to(device)"),
    ],
)
def right_values(t, device):
    """The product is right, for one parameter

    The Hessian is the Jacobian of the gradient. If the loss is smooth, its product with a vector is the
    gradient of a number: the scalar product of gradient and vector. The gradient needs a graph for this,
    which `create_graph` makes; `retain_graph` keeps the graph of the loss. The vector is a constant: if it
    was computed from a parameter, its own graph would add to the derivative, so `detach` it.
    """
    _expect_product(t)


@exercise.check(given=_TWO.format("(a @ b).tanh().square().sum() + a.prod()"))
def together(t):
    """Several parameters are one vector

    The gradient of one parameter depends on the others too. In the Hessian these are the blocks off the
    diagonal, so take the scalar product over all parameters together.
    """
    _expect_product(t)


@exercise.check(
    given=_TWO.format,
    cases=["a.square().sum() + b.sum()", "b.exp().sum()", "a.sum() * 2 + b.sum()", "a.sum()"],
)
def no_part(t):
    """A parameter without a part in the gradient has zeros, of its dtype

    If a parameter isn't in the graph of the loss, `grad` raises, or gives None with `allow_unused=True` and
    zeros with `materialize_grads=True`. The gradient of `a.sum()` is constant: it has no graph to
    differentiate.
    """
    _expect_product(t)


_C = "\nc = torch.ones(2, dtype=torch.float64, requires_grad=True)\nb.grad = torch.full_like(b, 7)"


@exercise.check(
    given=f"{_TWO}{_C}".format,
    cases=["(a @ b * c).square().sum()", "(b * c).sum() + a.exp().sum()", "b.sum() + a.sum()"],
)
def left_alone(t):
    """No `.grad` is touched, nothing is written to, and the product has no graph

    `backward()` adds to the `.grad` of leaves; `torch.autograd.grad` returns the gradients you ask for.
    Only the first gradient needs a graph. `0 * a` is in the graph of `a`.
    """
    vectors = {f"vectors[{i}]": v for i, v in enumerate(t.vectors)}
    with graphs.untouched({"a": t.a, "b": t.b, "c": t.c, **vectors}):
        found = t.call(_CALL)
    a_list = isinstance(found, (list, tuple)) and len(found) == 2
    told = f"the result is {expect.show(found)}"
    expect.true(a_list, told, "expected: a list with a tensor for each parameter")
    parts = [expect.a_tensor(part, what=f"`[{i}]` of the result") for i, part in enumerate(found)]
    flags = [part.requires_grad for part in parts]
    expect.equal(flags, [False, False], what="`requires_grad` of the parts")


@exercise.check(
    given="""w = torch.ones(20, 80)
a = {}.requires_grad_()
parameters, vectors = [a], [torch.ones_like(a)]
calls = []
def loss_of():
    calls.append(1)
    return (w @ a.reshape(-1)).sin().sum()""".format,
    cases=["torch.ones(80)", "torch.ones(2, 40).t()"],
)
def work(t):
    """One call of `loss_of`, two ways back, and no Hessian

    `w @ a` is one product of a matrix and a vector, and going back through it is another. The second way back
    goes through both: two more. It takes all elements at once, as a weighted sum. The Hessian by rows would
    take a way back for each element of `a`.
    """
    with measure.operators() as ran:
        t.call(_CALL)
    expect.equal(len(t.calls), 1, what="the number of calls of `loss_of`")
    expect.at_most(ran.count("aten.mv"), 4, "products of a matrix and a vector")
    peak, size = measure.peak_bytes(t.call, _CALL).total, 4 * 80**2
    what = f"memory at the peak, where the Hessian has {size:,} bytes"
    expect.at_most(peak, size // 2, what, unit="bytes")
