"""A Jacobian times a vector, from two vectors times a Jacobian

Backward mode gives `u @ J`, the product of a vector with the Jacobian of a function: for each element of `x`
how the elements of the result, weighted by `u`, depend on it. Give the other product, `J @ v`: for each
element of the result how it changes when `x` moves in the direction `v`. Use backward mode only, that is
`torch.autograd.grad`, called twice, however many elements there are; and call `function` once.

`function` takes a tensor of any shape, that of `x` and `v`, and returns one of any other shape. It need not
depend on `x`, or it may do so through `round` alone, whose derivative is zero. It may hold operations for
which torch knows no forward mode; all of them can be differentiated twice. `x` and `v` stay as they are,
whether `x` requires a gradient or not, and the result has no graph. `torch.autograd.functional` and
`torch.func` have this ready; here you build it.

`vector_jacobian_products(lambda x: x * x, torch.tensor([1., 3.]), torch.tensor([1., 10.]))` → `[2, 60]`
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=20,
    hints=[
        "Hold `x` fixed. As a function of `u`, the product `u @ J` is linear. What is the Jacobian of that "
        "function?",
        "`u` may be any tensor of the shape of the result, as long as autograd follows it: its value does "
        "not matter, since a linear function has the same derivative everywhere. The first product has to "
        "have a graph of its own, in which `u` is a leaf.",
        "The first call of `grad` gets `u` in `grad_outputs` and is told to build a graph. The second one "
        "differentiates the first one's result with respect to `u`, with `v` in `grad_outputs`. What is "
        "left are the cases in which there is no graph to go back through: `requires_grad` tells.",
    ],
)


@exercise.starter
def vector_jacobian_products(function: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> Tensor:
    """x, v: any shape -> J @ v, in the shape of `function(x)`"""
    raise NotImplementedError


class _Cube(torch.autograd.Function):
    """An operation that torch can take only backwards."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x


class _Watched:
    """A function that notes how often it is called, and by what."""

    def __init__(self, function):
        self.function, self.calls, self.ready_made = function, 0, None

    def __call__(self, x):
        self.calls += 1
        if torch.autograd.forward_ad._current_level >= 0:
            self.ready_made = "forward mode"
        frame = sys._getframe(1)
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if name.startswith(("torch.autograd.functional", "torch._functorch")):
                self.ready_made = "torch.func" if "functorch" in name else name
            frame = frame.f_back
        return self.function(x)


_NAMES = {"cube": _Cube.apply}


def _given(answer, setup, device):
    if device.type != "cpu":
        setup += f"\nx, v = x.to('{device.type}'), v.to('{device.type}')"
    return expect.given(setup, vector_jacobian_products=answer, **_NAMES)


def _oracle(function, x, v):
    """Column by column, each from the whole Jacobian."""
    jacobian = torch.autograd.functional.jacobian(function, x.detach())
    if x.dim() == 0:
        return jacobian * v
    return (jacobian * v).sum(dim=tuple(range(-x.dim(), 0)))


_CALL = "vector_jacobian_products(function, x, v)"


def _compare(answer, setup, device):
    t = _given(answer, setup, device)
    found, wanted = t.call(_CALL), _oracle(t.function, t.x, t.v)
    expect.equal(found, wanted, rtol=1e-4, atol=1e-5)
    return found, wanted


@exercise.check
def right_values(vector_jacobian_products, device):
    """The product, for as many elements in as out"""
    for setup in (
        "function = lambda x: x * x\nx, v = torch.tensor([1., 3.]), torch.tensor([1., 10.])",
        "function = lambda x: torch.stack([x[0] * x[1], x[1].sin() + x[2], x[0]])\n"
        "x, v = torch.tensor([1., 2., 3.]), torch.tensor([1., 0.5, -1.])",
        "function = lambda x: x.exp()\nx, v = torch.tensor([0.5, 1.]), torch.tensor([1., -2.])",
        "function = lambda x: x.cumsum(0)\nx, v = torch.zeros(4), torch.tensor([1., 2., 4., 8.])",
    ):
        _compare(vector_jacobian_products, setup, device)


@exercise.check
def other_shapes(vector_jacobian_products, device):
    """More elements in than out, and fewer; any shapes"""
    for setup in (
        "function = lambda x: x.prod()\nx, v = torch.tensor([1., 2., 3.]), torch.tensor([1., 0., -1.])",
        "function = lambda x: (x @ x.t())[0]\nx, v = torch.arange(6.).reshape(2, 3), torch.ones(2, 3)",
        "function = lambda x: x.exp() * torch.arange(1., 6.).to(x.device)\n"
        "x, v = torch.tensor(0.5), torch.tensor(2.)",
        "function = lambda x: torch.stack([x[:, 0], x[:, 1] * x[:, 0]]).sin()\n"
        "x, v = torch.arange(6.).reshape(3, 2).t(), torch.arange(12.).reshape(2, 6)[:, ::2]",
    ):
        _compare(vector_jacobian_products, setup, device)


@exercise.check
def backward_only(vector_jacobian_products, device):
    """A function with an operation that has no forward mode"""
    setup = """function = lambda x: cube(x).flip(0) * x[0]
x, v = torch.tensor([1., 2., -1.]), torch.tensor([1., -1., 2.])"""
    _compare(vector_jacobian_products, setup, device)


@exercise.check
def independent(vector_jacobian_products, device):
    """Results that do not depend on `x`, or only in part, or through `round`"""
    vectors = "x, v = torch.tensor([1., 2.]), torch.tensor([1., 10.])"
    setups = [
        f"function = lambda x: torch.cat([x[:1] * x[1:], torch.ones_like(x)])\n{vectors}",
        f"function = lambda x: torch.ones(3).to(x.device)\n{vectors}",
        f"w = torch.ones(3, requires_grad=True)\nfunction = lambda x: 2 * w.to(x.device)\n{vectors}",
        f"function = lambda x: x[:1].round()\n{vectors}",
    ]
    if device.type != "mps":
        double = vectors.replace("]", "], dtype=torch.float64")
        setups.append(f"function = lambda x: torch.ones(3).to(x)\n{double}")
    for setup in setups:
        found, wanted = _compare(vector_jacobian_products, setup, device)
        if not wanted.any():  # whether the others have a graph is asked elsewhere
            expect.equal(found.requires_grad, False, what="`requires_grad` of the result")


@exercise.check
def double_precision(vector_jacobian_products):
    """Another dtype"""
    setup = """function = lambda x: x.sin() * x[0]
x, v = torch.tensor([1., 2.], dtype=torch.float64), torch.tensor([1., -1.], dtype=torch.float64)"""
    _compare(vector_jacobian_products, setup, torch.device("cpu"))


@exercise.check
def inputs_left_alone(vector_jacobian_products, device):
    """`x` and `v` stay as they are, and so does what the function is made of"""
    for more in ("", "\nx = x.requires_grad_()", "\nx = x.requires_grad_() * 2"):
        setup = f"""weight = torch.nn.Parameter(torch.tensor([2., 3.]))
function = lambda x: x * x * weight.to(x.device)
x, v = torch.tensor([1., 3.]), torch.tensor([1., 10.]){more}"""
        t = _given(vector_jacobian_products, setup, device)
        required = t.x.requires_grad
        with expect.left_alone(t.x, what="`x`"), expect.left_alone(t.v, what="`v`"):
            found = t.call(_CALL)
        expect.equal(expect.a_tensor(found).requires_grad, False, what="`requires_grad` of the result")
        expect.equal(t.x.requires_grad, required, what="`x.requires_grad` after the call")
        expect.equal(t.v.requires_grad, False, what="`v.requires_grad` after the call")
        for name in ("x", "v", "weight") if t.x.is_leaf else ("v", "weight"):
            grad = getattr(t, name).grad
            expect.true(grad is None, f"`{name}.grad` is {expect.show(grad)} after the call", "expected None")


@exercise.check
def called_once(vector_jacobian_products, device):
    """The function is called once, by your own code, and forward mode is not used"""
    setup = "function = lambda x: x * x.sum()\nx, v = torch.tensor([1., 3.]), torch.tensor([1., 10.])"
    t = _given(vector_jacobian_products, setup, device)
    t._names["function"] = watched = _Watched(t.function)
    t.call(_CALL)
    evidence.record("who called", watched.ready_made)
    expect.true(
        watched.ready_made is None,
        f"the function was run by {watched.ready_made}",
        "expected: it is called once, and its result differentiated with `torch.autograd.grad`",
    )
    evidence.record("calls", min(watched.calls, 3))
    expect.true(watched.calls == 1, f"the function was called {watched.calls} times", "expected: once")


@exercise.check
def two_passes(vector_jacobian_products, device):
    """The work does not grow with the number of elements"""
    counts = []
    for n in (3, 9):
        setup = f"function = lambda x: x * x.sum()\nx, v = torch.arange({n}.), torch.ones({n})"
        t = _given(vector_jacobian_products, setup, device)
        with measure.operators() as ran:
            t.call(_CALL)
        counts.append(len(ran.calls))
    evidence.record("grows", counts[1] > counts[0])
    expect.true(
        counts[1] <= counts[0],
        f"{counts[0]} operators run for 3 elements, and {counts[1]} for 9",
        "expected: as many; two products are two passes, whatever the size",
    )


# --- the mistakes -----------------------------------------------------------------------------------------


def _leaf(x):
    return x.detach().clone().requires_grad_()


def _plain(y, x, u, v, **options):
    """The product as one writes it at first: the result depends on `x`."""
    (product,) = torch.autograd.grad(y, x, u, create_graph=True)
    return torch.autograd.grad(product, u, v, **options)[0]


def _first(function, x):
    """The result, and a `u` with the product that belongs to it; None where there is nothing to
    differentiate."""
    x = _leaf(x)
    y = function(x)
    return y, *_first_of(y, x)


def _first_of(y, x):
    u = torch.zeros_like(y, requires_grad=True)
    if not y.requires_grad:
        return u, None
    (product,) = torch.autograd.grad(y, x, u, create_graph=True, allow_unused=True)
    return u, product if product is not None and product.requires_grad else None


@exercise.mistake
def the_other_product(function, x, v):
    """You return `v @ J`: how the results, weighted by `v`, depend on each element of `x`. That is what one
    backward gives. Asked for is the product with the transpose of that; only where there are as many elements
    out as in does the shape agree."""
    x = _leaf(x)
    y = function(x)
    if not y.requires_grad:
        return torch.zeros_like(y)
    (found,) = torch.autograd.grad(y, x, v, allow_unused=True)
    return torch.zeros_like(y) if found is None else found


@the_other_product.variant
def backward_with_v(function, x, v):
    leaf = x.clone().detach().requires_grad_(True)
    result = function(leaf)
    if result.requires_grad:
        result.backward(v, inputs=[leaf])
    return torch.zeros_like(result).detach() if leaf.grad is None else leaf.grad


@the_other_product.form
def read_from_grad(function, x, v):
    x = x.detach().requires_grad_()
    function(x).backward(v)
    return x.grad


@exercise.mistake
def no_graph_of_the_first(function, x, v):
    """The first product has no graph, so it cannot be differentiated with respect to `u`: `create_graph` was
    not set. `retain_graph` keeps the old graph alive and builds no new one."""
    x = _leaf(x)
    y = function(x)
    u = torch.ones_like(y, requires_grad=True)
    (product,) = torch.autograd.grad(y, x, u, retain_graph=True, allow_unused=True)
    return torch.autograd.grad(product, u, v)[0]


@no_graph_of_the_first.variant
def asks_for_nothing(function, x, v):
    x = x.detach().requires_grad_()
    y = function(x)
    weights = torch.zeros_like(y).requires_grad_()
    product = torch.autograd.grad(y, x, weights, allow_unused=True)[0]
    return torch.autograd.grad(product, weights, v)[0]


@no_graph_of_the_first.variant
def without_a_graph_and_guarded(function, x, v):
    x = _leaf(x)
    y = function(x)
    u = torch.ones_like(y, requires_grad=True)
    if not y.requires_grad:
        return torch.zeros_like(y)
    (product,) = torch.autograd.grad(y, x, u, allow_unused=True)
    return torch.zeros_like(y) if product is None else torch.autograd.grad(product, u, v)[0]


@no_graph_of_the_first.form
def zeros_without_a_graph(function, x, v):
    x = x.detach().requires_grad_()
    y = function(x)
    if not y.requires_grad:
        return torch.zeros_like(y)
    u = torch.zeros_like(y, requires_grad=True)
    (product,) = torch.autograd.grad(y, x, u, allow_unused=True)
    if product is None or not product.requires_grad:
        return torch.zeros_like(y)
    return torch.autograd.grad(product, u, v)[0]


@exercise.mistake
def u_is_no_leaf(function, x, v):
    """Your `u` requires no gradient, so autograd cannot say how the first product depends on it."""
    x = _leaf(x)
    y = function(x)
    u = torch.ones_like(y).detach()
    (product,) = torch.autograd.grad(y, x, u, create_graph=True, allow_unused=True)
    return torch.autograd.grad(product, u, v)[0]


@exercise.mistake
def x_is_not_followed(function, x, v):
    """Autograd does not follow your `x`: from a tensor whose `requires_grad` is False no graph is made. The
    caller's may be such a tensor, and a detached one always is. Take one of your own and ask for its
    gradient, as in `x.detach().requires_grad_()`."""
    y = function(x)
    return _plain(y, x, torch.ones_like(y, requires_grad=True), v)


@x_is_not_followed.variant
def x_is_detached_only(function, x, v):
    leaf = x.detach()
    result = function(leaf)
    weights = torch.zeros_like(result).requires_grad_()
    first = torch.autograd.grad(outputs=result, inputs=leaf, grad_outputs=weights, create_graph=True)
    return torch.autograd.grad(outputs=first, inputs=weights, grad_outputs=v)[0]


@exercise.mistake
def with_respect_to_x(function, x, v):
    """Your second call differentiates with respect to `x` again: that gives second derivatives. The first
    product is linear in `u`, and its derivative with respect to `u` is what you want."""
    x = _leaf(x)
    y = function(x)
    u = torch.ones_like(y)
    (product,) = torch.autograd.grad(y, x, u, create_graph=True, allow_unused=True)
    return torch.autograd.grad(product, x, v)[0]


@with_respect_to_x.form
def v_in_both_calls(function, x, v):
    x = x.detach().requires_grad_()
    (product,) = torch.autograd.grad(function(x), x, v, create_graph=True)
    return torch.autograd.grad(product, x, v)[0]


@exercise.mistake
def gradient_times_v(function, x, v):
    """You multiplied the gradient of the sum by `v`, element by element. That is `J @ v` only where each
    result depends on one element of `x` alone, so that nothing stands beside the diagonal of the Jacobian."""
    x = _leaf(x)
    y = function(x)
    if not y.requires_grad:
        return torch.zeros_like(y)
    (found,) = torch.autograd.grad(y.sum(), x, allow_unused=True)
    return torch.zeros_like(y) if found is None else found * v


@gradient_times_v.variant
def backward_of_the_sum(function, x, v):
    x = x.clone().detach().requires_grad_()
    result = function(x)
    if result.requires_grad:
        result.sum().backward(inputs=[x])
    return v * x.grad if x.grad is not None else 0 * result.detach()


@exercise.mistake
def forward_mode(function, x, v):
    """You used forward mode, which gives the product in one pass. It needs a forward rule for each operation,
    and not all have one; the task is to come by the product without."""
    return torch.func.jvp(function, (x.detach(),), (v,))[1]


@forward_mode.form
def without_the_graph_of_others(function, x, v):
    return torch.func.jvp(function, (x.detach(),), (v,))[1].detach()


@forward_mode.form
def dual_numbers_in_a_graph(function, x, v):
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        y, tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x.detach(), v)))
    return torch.zeros_like(y) if tangent is None else tangent


@forward_mode.form
def dual_numbers(function, x, v):
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        y, tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x.detach(), v)))
        return torch.zeros_like(y) if tangent is None else tangent.detach()


@exercise.mistake
def ready_made(function, x, v):
    """`torch.autograd.functional.jvp` does what is asked for, in the way that you are asked to find. Build it
    from two calls of `torch.autograd.grad`."""
    return torch.autograd.functional.jvp(function, x.detach(), v)[1]


@exercise.mistake
def the_whole_jacobian(function, x, v):
    """Your product is right, and you made the whole Jacobian for it: one backward for each element of the
    result. Two are enough."""
    x = _leaf(x)
    y = function(x)
    found = []
    for element in y.reshape(-1):
        row = None
        if element.requires_grad:
            (row,) = torch.autograd.grad(element, x, retain_graph=True, allow_unused=True)
        found.append(torch.zeros_like(element) if row is None else (row * v).sum())
    return torch.stack(found).reshape(y.shape).detach()


@the_whole_jacobian.variant
def one_hot_products(function, x, v):
    x = x.detach().requires_grad_()
    y = function(x)
    product = torch.zeros_like(y, requires_grad=False).detach().contiguous()
    for i in range(y.numel() if y.requires_grad else 0):
        pick = torch.zeros(y.numel(), dtype=y.dtype, device=y.device)
        pick[i] = 1
        row = torch.autograd.grad(y, x, pick.view(y.shape), retain_graph=True, allow_unused=True)[0]
        if row is not None:
            product.view(-1)[i] = torch.sum(row * v)
    return product


@the_whole_jacobian.form
def all_rows_in_the_plain_case(function, x, v):
    x = x.detach().requires_grad_()
    y = function(x)
    rows = [torch.autograd.grad(element, x, retain_graph=True)[0] for element in y.flatten()]
    return torch.stack([(row * v).sum() for row in rows]).reshape(y.shape)


@exercise.mistake
def finite_differences(function, x, v):
    """You moved `x` a little along `v` and divided by how much. That rounds, and calls the function more than
    once; autograd gives the derivative itself."""
    with torch.no_grad():
        h = 1e-3
        return (function(x + h * v) - function(x - h * v)) / (2 * h)


@finite_differences.form
def one_sided(function, x, v):
    with torch.no_grad():
        return (function(x + 1e-3 * v) - function(x)) / 1e-3


@exercise.mistake
def dependence_taken_for_granted(function, x, v):
    """Your product is right only where the result depends on `x`. Where it does not, `grad` returns None or
    raises; the product is zero then."""
    x = _leaf(x)
    y = function(x)
    u = torch.zeros_like(y, requires_grad=True)
    (product,) = torch.autograd.grad(y, x, u, create_graph=True)
    return torch.autograd.grad(product, u, v)[0]


@dependence_taken_for_granted.variant
def never_none(function, x, v):
    leaf = x.detach().requires_grad_()
    result = function(leaf)
    weights = torch.ones_like(result).requires_grad_()
    first = torch.autograd.grad(outputs=result, inputs=leaf, grad_outputs=weights, create_graph=True)[0]
    second = torch.autograd.grad(outputs=first, inputs=weights, grad_outputs=v)
    return second[0]


@dependence_taken_for_granted.form
def none_is_forgotten(function, x, v):
    y, u, product = _first(function, x)
    if not y.requires_grad:
        return torch.zeros_like(y)
    return torch.autograd.grad(product, u, v)[0]


@dependence_taken_for_granted.form
def only_no_graph_is_seen_to(function, x, v):
    x = _leaf(x)
    y = function(x)
    if not y.requires_grad:
        return torch.zeros_like(y)
    u = torch.zeros_like(y, requires_grad=True)
    (product,) = torch.autograd.grad(y, x, u, create_graph=True)
    return torch.autograd.grad(product, u, v)[0]


@exercise.mistake
def zero_has_no_graph(function, x, v):
    """Your product is right, but where the derivative is zero everywhere `grad` raises. Backward of `round`
    gives zeros that depend on nothing, not on `u` either: the first product has no graph there, and the
    second one is zero."""
    x = _leaf(x)
    y = function(x)
    u = torch.zeros_like(y, requires_grad=True)
    if not y.requires_grad:
        return torch.zeros_like(y)
    (product,) = torch.autograd.grad(y, x, u, create_graph=True, allow_unused=True)
    return torch.zeros_like(y).detach() if product is None else torch.autograd.grad(product, u, v)[0]


@zero_has_no_graph.variant
def none_is_made_zero(function, x, v):
    leaf = x.detach().requires_grad_()
    result = function(leaf)
    if result.grad_fn is None:
        return torch.zeros(result.shape, dtype=result.dtype, device=result.device)
    weights = torch.ones_like(result).detach().requires_grad_()
    options = {"materialize_grads": True}
    first = torch.autograd.grad((weights * result).sum(), leaf, create_graph=True, **options)[0]
    return torch.autograd.grad((first * v).sum(), weights, **options)[0].detach()


@exercise.mistake
def zeros_in_the_shape_of_x(function, x, v):
    """Where the result does not depend on `x` you give zeros in the shape of `x`. The product has an element
    for each element of the result."""
    _, u, product = _first(function, x)
    return torch.zeros_like(x) if product is None else torch.autograd.grad(product, u, v)[0]


@exercise.mistake
def the_callers_flag(function, x, v):
    """You set `requires_grad` on the caller's `x`. Take a tensor of your own for that: one that reads the
    same memory is enough."""
    x.requires_grad_()
    y = function(x)
    u, product = _first_of(y, x)
    return torch.zeros_like(y).detach() if product is None else torch.autograd.grad(product, u, v)[0]


@the_callers_flag.form
def the_callers_flag_in_the_plain_case(function, x, v):
    y = function(x.requires_grad_())
    return _plain(y, x, torch.ones_like(y, requires_grad=True), v)


@exercise.mistake
def flag_of_v(function, x, v):
    """The product is right, and the caller's `v` requires a gradient now, which it did not before. It is a
    constant: what the second call differentiates with respect to is `u`."""
    v.requires_grad_()
    y, u, product = _first(function, x)
    return torch.zeros_like(y).detach() if product is None else torch.autograd.grad(product, u, v)[0]


@exercise.mistake
def u_of_the_default_dtype(function, x, v):
    """Your `u` has the default dtype, whatever that of the result is: `torch.zeros` and `torch.ones` know
    nothing of it. `torch.zeros_like` does."""
    x = _leaf(x)
    y = function(x)
    u = torch.zeros(y.shape, device=y.device, requires_grad=True)
    if not y.requires_grad:
        return torch.zeros_like(y)
    (product,) = torch.autograd.grad(y, x, u, create_graph=True, allow_unused=True)
    if product is None or not product.requires_grad:
        return torch.zeros_like(y)
    return torch.autograd.grad(product, u, v)[0]


@u_of_the_default_dtype.form
def the_default_dtype_in_the_plain_case(function, x, v):
    x = x.detach().requires_grad_()
    y = function(x)
    return _plain(y, x, torch.ones(y.shape, device=y.device, requires_grad=True), v)


@exercise.mistake
def zeros_of_the_default_dtype(function, x, v):
    """Your zeros have the default dtype, whatever that of the result is: `torch.zeros` knows nothing of it.
    `torch.zeros_like` does."""
    y, u, product = _first(function, x)
    return torch.zeros(y.shape, device=y.device) if product is None else torch.autograd.grad(product, u, v)[0]


@exercise.mistake
def zeros_in_a_graph(function, x, v):
    """The zeros that you give where the result does not depend on `x` are in a graph: they were computed from
    a tensor that requires a gradient. `torch.zeros_like` makes zeros that depend on nothing."""
    y, u, product = _first(function, x)
    return 0 * y if product is None else torch.autograd.grad(product, u, v)[0]


@exercise.mistake
def u_in_the_shape_of_x(function, x, v):
    """Your `u` has the shape of `x`. It weights the results, so it has the shape of the result: in
    `torch.autograd.grad(y, x, u)` it belongs to `y`."""
    x = _leaf(x)
    y = function(x)
    u = torch.ones_like(x).detach().requires_grad_()
    (product,) = torch.autograd.grad(y, x, u, create_graph=True)
    return torch.autograd.grad(product, u, v)[0]


@u_in_the_shape_of_x.variant
def u_in_the_shape_of_v(function, x, v):
    leaf = x.detach().requires_grad_()
    result, weights = function(leaf), torch.zeros(v.shape, dtype=v.dtype, device=v.device)
    if not result.requires_grad:
        return torch.zeros_like(result)
    weights.requires_grad = True
    first = torch.autograd.grad(result, leaf, weights, create_graph=True, allow_unused=True)[0]
    return torch.autograd.grad(first, weights, v)[0] if first.requires_grad else weights.detach()


@exercise.mistake
def graph_left_on(function, x, v):
    """The values are right, and the result still hangs in a graph: of the second call none is asked for."""
    y, u, product = _first(function, x)
    if product is None:
        return torch.zeros_like(y).detach()
    return torch.autograd.grad(product, u, v, create_graph=True)[0]


@graph_left_on.form
def graph_left_on_in_the_plain_case(function, x, v):
    x = x.detach().requires_grad_()
    y = function(x)
    return _plain(y, x, torch.ones_like(y, requires_grad=True), v, create_graph=True)


@exercise.mistake
def left_in_grad(function, x, v):
    """The values are right, and `backward` has left gradients in the `.grad` of what the function is made of:
    `torch.autograd.grad` gives the gradients that are asked for, and leaves nothing behind."""
    x = _leaf(x)
    y = function(x)
    u = torch.zeros_like(y, requires_grad=True)
    if y.requires_grad:
        y.backward(u, create_graph=True)
    if x.grad is None or not x.grad.requires_grad:
        return torch.zeros_like(y).detach()
    return torch.autograd.grad(x.grad, u, v)[0]
