"""The Hessian times a vector, without the Hessian

`loss_of()` computes a loss from `parameters`, from one of them at least. Its Hessian has a row and a column
for each element of all of them: a million parameters, and it has 10¹² entries. Its product with a vector can
be had without. The vector comes in parts, `vectors`, each in the shape of its parameter, and so does the
product.

Return the parts in a list (a tuple will do). Call `loss_of` once, and make nothing that is much larger than
the parameters, however many they are. A parameter on which the gradient does not depend gets zeros, whether
the loss is linear in it or does not use it at all. Parameters and vectors stay as they are, no `.grad` is
touched, and the result has no graph. `torch.autograd.grad` is all that you need.

With `a = torch.tensor([1., 2.], requires_grad=True)` the call `hessian_vector_product(lambda: a.prod() ** 2,
[a], [torch.tensor([1., 0.])])` gives `[tensor([8., 8.])]`"""

from collections.abc import Callable

import torch
from torch import Tensor

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=15,
    hints=[
        "Row `i` of the Hessian is the gradient of element `i` of the gradient. So what is the gradient of "
        "a weighted sum of these elements?",
        "Take the gradients in such a way that they have a graph themselves. Their scalar product with the "
        "vector, over all parameters together, is one number, and one backward differentiates it.",
        "`create_graph` builds the graph of a gradient; `retain_graph` only keeps the one that is there. "
        "Where a parameter has no part, torch says None, if it was told that this may be (`allow_unused`), "
        "and where no gradient depends on anything, the scalar product has no graph at all.",
    ],
)


@exercise.starter
def hessian_vector_product(
    loss_of: Callable[[], Tensor], parameters: list[Tensor], vectors: list[Tensor]
) -> list[Tensor]:
    """One tensor for each parameter, in its shape"""
    raise NotImplementedError


_CALL = "hessian_vector_product(loss_of, parameters, vectors)"
_TWO = """a = torch.tensor([1., -2., 0.5], device=device, requires_grad=True)
b = torch.tensor([[1., 0.], [2., 1.], [-1., 3.]], device=device, requires_grad=True)
parameters = [a, b]
vectors = [torch.tensor([1., 0., -1.], device=device), torch.ones(3, 2, device=device)]"""
_DOUBLE = _TWO.replace("device=device", "device=device, dtype=torch.float64")


def _given(answer, setup, device):
    place = "" if device.type == "cpu" else f", device='{device.type}'"
    setup = f"{setup}\nloss_of = lambda: f(*parameters)".replace(", device=device", place)
    return expect.given(setup, hessian_vector_product=answer)


def _oracle(t):
    """By torch's own, which is given the loss as a function of the parameters."""
    inputs = tuple(p.detach() for p in t.parameters)
    found = torch.autograd.functional.hvp(t.f, inputs, tuple(t.vectors))[1]
    return [part.detach() for part in found]


def _expect_product(t):
    wanted = _oracle(t)
    found = t.call(_CALL)
    expect.equal(found, wanted, rtol=1e-4, atol=1e-5)
    return list(zip(found, wanted, strict=True))


@exercise.check
def right_values(hessian_vector_product, device):
    """The product, for one parameter"""
    for setup in (
        "a = torch.tensor([1., 2.], device=device, requires_grad=True)\n"
        "parameters, vectors = [a], [torch.tensor([1., 0.], device=device)]\nf = lambda a: a.prod() ** 2",
        "a = torch.tensor([[1., 2.], [0., -1.], [3., 1.]], device=device, requires_grad=True)\n"
        "parameters, vectors = [a], [torch.arange(6., device=device).reshape(2, 3).t()]\n"
        "f = lambda a: (a.t() @ a).sin().sum()",
        "a = torch.tensor(0.5, device=device, requires_grad=True)\n"
        "parameters, vectors = [a], [torch.tensor(2., device=device)]\nf = lambda a: a.exp()",
    ):
        _expect_product(_given(hessian_vector_product, setup, device))


@exercise.check
def parameters_together(hessian_vector_product, device):
    """Parameters that have to do with each other"""
    setup = f"{_TWO}\nf = lambda a, b: (a @ b).tanh().square().sum() + a.prod()"
    _expect_product(_given(hessian_vector_product, setup, device))


@exercise.check
def no_part(hessian_vector_product, device):
    """A parameter that has no part in the gradient, or in the loss"""
    cases = [
        (_TWO, "a.square().sum() + b.sum()"),
        (_TWO, "b.exp().sum()"),
        (_TWO, "a.sum() * 2 + b.sum()"),
        (_TWO, "a.sum()"),
    ]
    if device.type != "mps":
        cases += [(_DOUBLE, "b.exp().sum()"), (_DOUBLE, "a.sum() * 2 + b.sum()")]
    for two, f in cases:
        parts = _expect_product(_given(hessian_vector_product, f"{two}\nf = lambda a, b: {f}", device))
        for i, (part, wanted) in enumerate(parts):
            if not wanted.any():  # whether the others have a graph is asked elsewhere
                expect.equal(part.requires_grad, False, what=f"`requires_grad` of the result[{i}]")


@exercise.check
def double_precision(hessian_vector_product):
    """Parameters of another dtype"""
    setup = f"{_DOUBLE}\nf = lambda a, b: a.sin().sum() + b.exp().sum()"
    _expect_product(_given(hessian_vector_product, setup, torch.device("cpu")))


@exercise.check
def called_once(hessian_vector_product, device):
    """The loss is computed once"""
    t = _given(hessian_vector_product, f"{_TWO}\nf = lambda a, b: (a @ b).square().sum()", device)
    calls, loss_of = [], t.loss_of

    def counted():
        calls.append(None)
        return loss_of()

    t._names["loss_of"] = counted
    t.call(_CALL)
    evidence.record("calls", min(len(calls), 2))
    expect.true(len(calls) == 1, f"`loss_of` was called {len(calls)} times", "expected: once")


@exercise.check
def left_alone(hessian_vector_product, device):
    """No `.grad` is touched, nothing is written to, and the result has no graph"""
    setup = f"""{_TWO}
c = torch.tensor([3., 1.], device=device, requires_grad=True)
f = lambda a, b: (a @ b * c).square().sum()
b.grad = torch.full_like(b, 7)"""
    t = _given(hessian_vector_product, setup, device)
    grad, versions = t.b.grad, [measure.version(p) for p in t.parameters]
    with (
        expect.left_alone(t.a, what="`a`"),
        expect.left_alone(t.b, what="`b`"),
        expect.left_alone(t.vectors[0], what="`vectors[0]`"),
    ):
        found = t.call(_CALL)
    expect.equal([measure.version(p) for p in t.parameters], versions, what="the versions of the parameters")
    for name in ("a", "c"):
        left = getattr(t, name).grad
        expect.true(left is None, f"`{name}.grad` is {expect.show(left)} after the call", "expected None")
    kept = t.b.grad is grad and bool((grad == 7).all())
    evidence.record("b.grad is kept", kept)
    expect.true(kept, "`b.grad` held a gradient before the call, and holds another one now")
    expect.equal([part.requires_grad for part in found], [False, False], what="`requires_grad` of the parts")
    flags = [v.requires_grad for v in t.vectors]
    expect.equal(flags, [False, False], what="`requires_grad` of the vectors after the call")


_LONG = """a = torch.linspace(-1, 1, {n}, device=device).requires_grad_()
parameters, vectors = [a], [torch.ones({n}, device=device)]
f = lambda a: a.sin().cumsum(0).square().sum()"""


@exercise.check
def no_hessian(hessian_vector_product, device):
    """Nothing is made that is much larger than the parameters"""
    n = 100
    t = _given(hessian_vector_product, _LONG.format(n=n), device)
    with evidence.silent():  # how much too much it is depends on how the rest is written
        peak = measure.peak_bytes(t.call, _CALL)
    largest = max((block.bytes for block in peak.blocks), default=0)
    limit = 30 * t.a.nbytes
    expect.true(
        peak.total <= limit,
        f"memory at the peak: {peak.total:,} bytes, expected at most {limit:,} bytes; the largest tensor has "
        f"{largest:,} bytes, the parameters have {t.a.nbytes:,}",
    )


@exercise.check
def few_operators(hessian_vector_product, device):
    """The work does not grow with the number of elements"""
    counts = []
    for n in (3, 12):
        t = _given(hessian_vector_product, _LONG.format(n=n), device)
        with measure.operators() as ran:
            t.call(_CALL)
        counts.append(len(ran.calls))
    evidence.record("grows", counts[1] > counts[0])
    expect.true(
        counts[1] <= counts[0],
        f"{counts[0]} operators run for 3 elements, and {counts[1]} for 12",
        "expected: as many, whatever the number of elements",
    )


# --- the mistakes -----------------------------------------------------------------------------------------


def _gradients(loss_of, parameters, **options):
    """The gradients with a graph, zeros where there are none."""
    found = torch.autograd.grad(loss_of(), parameters, create_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def _second(total, parameters, **options):
    """The gradients of a number, zeros where there are none."""
    if not total.requires_grad:
        return [torch.zeros_like(p) for p in parameters]
    found = torch.autograd.grad(total, parameters, allow_unused=True, **options)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def _dot(ones, others):
    return sum((a * b).sum() for a, b in zip(ones, others, strict=True))


@exercise.mistake
def no_graph_of_the_gradient(loss_of, parameters, vectors):
    """Nothing leads from your gradients back to the tensors with respect to which you differentiate them
    again. A gradient has a graph only if `create_graph` asks for it; `retain_graph` keeps the graph of the
    loss, and builds none of the gradient. `detach` and copies cut it off."""
    gradients = torch.autograd.grad(loss_of(), parameters, retain_graph=True, materialize_grads=True)
    return list(torch.autograd.grad(_dot(gradients, vectors), parameters, materialize_grads=True))


@no_graph_of_the_gradient.variant
def grad_of_grad(loss_of, parameters, vectors):
    loss = loss_of()
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    total = 0
    for gradient, vector in zip(gradients, vectors, strict=True):
        if gradient is not None:
            total = total + torch.sum(gradient * vector)
    return torch.autograd.grad(total, parameters)


@no_graph_of_the_gradient.form
def zeros_without_a_graph(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, retain_graph=True, materialize_grads=True)
    return _second(_dot(gradients, vectors), parameters)


@exercise.mistake
def the_whole_hessian(loss_of, parameters, vectors):
    """Your product is right, and you made the whole Hessian for it, row by row: one backward for each element
    of the parameters, and a matrix that grows with their square. The gradient of one number is enough."""
    gradients = _gradients(loss_of, parameters)
    flat = torch.cat([g.reshape(-1) for g in gradients])
    vector = torch.cat([v.reshape(-1) for v in vectors])
    rows = []
    for element in flat:
        row = _second(element, parameters, retain_graph=True)
        rows.append(torch.cat([part.reshape(-1) for part in row]))
    product = torch.stack(rows).detach() @ vector
    sizes = [p.numel() for p in parameters]
    return [part.reshape(p.shape) for part, p in zip(product.split(sizes), parameters, strict=True)]


@the_whole_hessian.variant
def filled_row_by_row(loss_of, parameters, vectors):
    number = sum(p.numel() for p in parameters)
    hessian = torch.zeros(number, number, dtype=parameters[0].dtype, device=parameters[0].device)
    elements = [element for g in _gradients(loss_of, parameters) for element in g.flatten()]
    for i, element in enumerate(elements):
        place = 0
        for part in _second(element, parameters, retain_graph=True):
            hessian[i, place : place + part.numel()] = part.flatten()
            place += part.numel()
    product = hessian.mv(torch.cat([v.flatten() for v in vectors]))
    found = []
    for p in parameters:
        found.append(product[: p.numel()].view(p.shape))
        product = product[p.numel() :]
    return found


@the_whole_hessian.form
def all_rows_without_a_guard(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True)
    rows = []
    for element in torch.cat([g.reshape(-1) for g in gradients]):
        row = torch.autograd.grad(element, parameters, retain_graph=True)
        rows.append(torch.cat([part.reshape(-1) for part in row]))
    product = torch.stack(rows) @ torch.cat([v.reshape(-1) for v in vectors])
    parts = product.split([p.numel() for p in parameters])
    return [part.reshape(p.shape) for part, p in zip(parts, parameters, strict=True)]


@exercise.mistake
def row_by_row(loss_of, parameters, vectors):
    """Your product is right, and takes one backward for each element of the parameters: you go through the
    Hessian row by row, if without keeping it. The gradient of one number, the scalar product of gradient and
    vector, is enough."""
    found = []
    for gradient in _gradients(loss_of, parameters):
        products = [
            _dot(_second(element, parameters, retain_graph=True), vectors).detach()
            for element in gradient.flatten()
        ]
        found.append(torch.stack(products).reshape(gradient.shape))
    return found


@exercise.mistake
def each_parameter_alone(loss_of, parameters, vectors):
    """You differentiate each part with respect to its own parameter alone. The gradient of one parameter
    depends on the others too: what stands in the Hessian beside the blocks on its diagonal is missing from
    your product."""
    gradients = _gradients(loss_of, parameters)
    found = []
    for gradient, parameter, vector in zip(gradients, parameters, vectors, strict=True):
        found += _second((gradient * vector).sum(), [parameter], retain_graph=True)
    return found


@each_parameter_alone.variant
def by_blocks(loss_of, parameters, vectors):
    loss = loss_of()
    found = []
    for i, p in enumerate(parameters):
        first = torch.autograd.grad(loss, p, create_graph=True, materialize_grads=True)[0]
        part = torch.zeros_like(p)
        if first.requires_grad:
            part = torch.autograd.grad(first, p, vectors[i], retain_graph=True, materialize_grads=True)[0]
        found.append(part.detach())
    return found


@each_parameter_alone.form
def by_blocks_without_a_guard(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True)
    found = []
    for gradient, parameter, vector in zip(gradients, parameters, vectors, strict=True):
        (part,) = torch.autograd.grad((gradient * vector).sum(), parameter, retain_graph=True)
        found.append(part)
    return found


@exercise.mistake
def row_sums_times_the_vector(loss_of, parameters, vectors):
    """You differentiated the sum of the gradients and multiplied by the vector afterwards, element by
    element. That multiplies the sum of each row of the Hessian by one element of the vector. The vector has
    to come in before the second derivative is taken."""
    gradients = _gradients(loss_of, parameters)
    seconds = _second(sum(g.sum() for g in gradients), parameters)
    return [a * v for a, v in zip(seconds, vectors, strict=True)]


@row_sums_times_the_vector.variant
def ones_first(loss_of, parameters, vectors):
    gradients = [g for g in _gradients(loss_of, parameters) if g.requires_grad]
    if not gradients:
        return [torch.zeros_like(v) for v in vectors]
    ones = [torch.ones_like(g) for g in gradients]
    seconds = torch.autograd.grad(gradients, parameters, ones, materialize_grads=True)
    return list(torch._foreach_mul(seconds, vectors))


@row_sums_times_the_vector.form
def times_the_vector_without_a_guard(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True)
    seconds = torch.autograd.grad(sum(g.sum() for g in gradients), parameters)
    return [a * v for a, v in zip(seconds, vectors, strict=True)]


@exercise.mistake
def vectors_left_out(loss_of, parameters, vectors):
    """Your vectors have no part in what you return: the sum of the gradients, differentiated, gives the sum
    of each row of the Hessian, which is its product with a vector of ones. Multiply the gradients by the
    vectors before you differentiate again."""
    gradients = _gradients(loss_of, parameters)
    return _second(sum(g.sum() for g in gradients), parameters)


@vectors_left_out.variant
def ones_for_vectors(loss_of, parameters, vectors):
    gradients = [g for g in _gradients(loss_of, parameters) if g.requires_grad]
    if not gradients:
        return [torch.zeros_like(v) for v in vectors]
    ones = [torch.ones_like(g) for g in gradients]
    return list(torch.autograd.grad(gradients, parameters, ones, materialize_grads=True))


@vectors_left_out.form
def sums_without_a_guard(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True)
    return list(torch.autograd.grad(sum(g.sum() for g in gradients), parameters))


@exercise.mistake
def row_sums_of_the_blocks(loss_of, parameters, vectors):
    """You differentiated the sum of each parameter's gradient with respect to that parameter, and multiplied
    by the vector afterwards. The vector has to come in before the second derivative is taken, and the
    gradient of one parameter depends on the others too."""
    found = []
    for gradient, parameter, vector in zip(_gradients(loss_of, parameters), parameters, vectors, strict=True):
        (second,) = _second(gradient.sum(), [parameter], retain_graph=True)
        found.append(second * vector)
    return found


@row_sums_of_the_blocks.form
def row_sums_without_a_guard(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True)
    found = []
    for gradient, parameter, vector in zip(gradients, parameters, vectors, strict=True):
        (second,) = torch.autograd.grad(gradient.sum(), parameter, retain_graph=True)
        found.append(second * vector)
    return found


@exercise.mistake
def gradient_times_gradient(loss_of, parameters, vectors):
    """You multiplied the gradient by its scalar product with the vector. That is the product with the outer
    product of the gradient with itself, in which there is no second derivative at all."""
    gradients = [g.detach() for g in _gradients(loss_of, parameters)]
    along = _dot(gradients, vectors)
    return [g * along for g in gradients]


@exercise.mistake
def gradient_times_vector(loss_of, parameters, vectors):
    """You multiplied the gradient by the vector, element by element. The Hessian holds second derivatives:
    the scalar product of gradient and vector is to be differentiated once more."""
    gradients = torch.autograd.grad(loss_of(), parameters, materialize_grads=True)
    return [g * v for g, v in zip(gradients, vectors, strict=True)]


@gradient_times_vector.variant
def gradient_times_vector_without_a_guard(loss_of, parameters, vectors):
    return list(map(torch.mul, torch.autograd.grad(loss_of(), parameters), vectors))


@exercise.mistake
def left_in_grad(loss_of, parameters, vectors):
    """`backward` adds what it finds to the `.grad` of the parameters, and of everything else that the loss
    was made of. `torch.autograd.grad` returns what it was asked for, and leaves nothing behind."""
    loss_of().backward(create_graph=True)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    return _second(_dot(gradients, vectors), parameters)


@left_in_grad.form
def second_by_backward(loss_of, parameters, vectors):
    total = _dot(_gradients(loss_of, parameters), vectors)
    for p in parameters:
        p.grad = None
    if total.requires_grad:
        total.backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]


@left_in_grad.form
def first_read_from_grad(loss_of, parameters, vectors):
    loss_of().backward(create_graph=True)
    total = _dot([p.grad for p in parameters], vectors)
    return list(torch.autograd.grad(total, parameters))


@left_in_grad.form
def grad_cleared_afterwards(loss_of, parameters, vectors):
    loss_of().backward(create_graph=True)
    pairs = zip(parameters, vectors, strict=True)
    total = sum((p.grad * v).sum() for p, v in pairs if p.grad is not None)
    for p in parameters:
        p.grad = None
    return list(torch.autograd.grad(total, parameters, materialize_grads=True))


@left_in_grad.form
def read_and_reset_twice(loss_of, parameters, vectors):
    loss_of().backward(create_graph=True)
    gradients = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    _dot(gradients, vectors).backward()
    found = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    return found


@left_in_grad.form
def read_and_reset_once(loss_of, parameters, vectors):
    loss_of().backward(create_graph=True)
    gradients = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    return list(torch.autograd.grad(_dot(gradients, vectors), parameters))


@left_in_grad.form
def second_by_backward_without_a_guard(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True)
    _dot(gradients, vectors).backward()
    return [p.grad for p in parameters]


@left_in_grad.variant
def second_by_backward_in_place(loss_of, parameters, vectors):
    total = _dot(_gradients(loss_of, parameters), vectors)
    if total.requires_grad:
        total.backward(inputs=parameters)
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]


@exercise.mistake
def flag_of_the_vectors(loss_of, parameters, vectors):
    """The product is right, and the caller's vectors require a gradient now, which they did not before. They
    are constants: only the parameters are differentiated with respect to."""
    for vector in vectors:
        vector.requires_grad_()
    return _second(_dot(_gradients(loss_of, parameters), vectors), parameters)


@exercise.mistake
def zeros_of_the_default_dtype(loss_of, parameters, vectors):
    """Your product, or the zeros in it, have the default dtype where that of the parameter is asked for:
    `torch.zeros` knows nothing of it. `torch.zeros_like` does."""
    gradients = _gradients(loss_of, parameters)
    total = _dot(gradients, vectors)
    if not total.requires_grad:
        return [torch.zeros_like(p) for p in parameters]
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    return [
        torch.zeros(p.shape, device=p.device) if part is None else part
        for part, p in zip(found, parameters, strict=True)
    ]


@zeros_of_the_default_dtype.variant
def zeros_where_all_is_linear(loss_of, parameters, vectors):
    total = _dot(_gradients(loss_of, parameters), vectors)
    if not total.requires_grad:
        return [torch.zeros(p.shape, device=p.device) for p in parameters]
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    return [
        torch.zeros(p.shape, device=p.device) if part is None else part
        for part, p in zip(found, parameters, strict=True)
    ]


@zeros_of_the_default_dtype.form
def added_to_zeros(loss_of, parameters, vectors):
    found = [torch.zeros(p.shape, device=p.device) for p in parameters]
    for gradient, vector in zip(_gradients(loss_of, parameters), vectors, strict=True):
        if gradient.requires_grad:
            parts = _second((gradient * vector).sum(), parameters, retain_graph=True)
            for whole, part in zip(found, parts, strict=True):
                whole += part.detach()
    return found


@exercise.mistake
def zeros_in_a_graph(loss_of, parameters, vectors):
    """The zeros for a parameter without a part are in a graph: they were computed from a tensor that requires
    a gradient. `torch.zeros_like` makes zeros that depend on nothing."""
    total = _dot(_gradients(loss_of, parameters), vectors)
    found = [None for _ in parameters]
    if total.requires_grad:
        found = torch.autograd.grad(total, parameters, allow_unused=True)
    return [0 * p if part is None else part for part, p in zip(found, parameters, strict=True)]


@zeros_in_a_graph.form
def zeros_in_a_graph_where_all_is_linear(loss_of, parameters, vectors):
    total = _dot(_gradients(loss_of, parameters), vectors)
    return _second(total, parameters) if total.requires_grad else [p * 0 for p in parameters]


@exercise.mistake
def viewed_flat(loss_of, parameters, vectors):
    """Your `view` raises where a vector or a gradient is not contiguous: without a copy it cannot be seen as
    flat. `reshape` and `flatten` copy where they have to."""
    gradients = torch.cat([g.view(-1) for g in _gradients(loss_of, parameters)])
    return _second(gradients @ torch.cat([v.view(-1) for v in vectors]), parameters)


@viewed_flat.variant
def viewed_one_by_one(loss_of, parameters, vectors):
    gradients = _gradients(loss_of, parameters)
    total = sum(g.view(-1).dot(v.view(-1)) for g, v in zip(gradients, vectors, strict=True))
    if total.grad_fn is None:
        return [torch.zeros_like(v) for v in vectors]
    return list(torch.autograd.grad(total, parameters, materialize_grads=True))


@viewed_flat.form
def viewed_without_a_guard(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True)
    flat = torch.cat([g.view(-1) for g in gradients])
    return list(torch.autograd.grad(flat @ torch.cat([v.view(-1) for v in vectors]), parameters))


@exercise.mistake
def finite_differences(loss_of, parameters, vectors):
    """You moved the parameters along the vector and took the difference of two gradients. That rounds,
    computes the loss twice, and writes into the caller's parameters."""
    h, found = 1e-2, []
    for sign in (1, -1):
        with torch.no_grad():
            for p, v in zip(parameters, vectors, strict=True):
                p += sign * h * v
        found.append(torch.autograd.grad(loss_of(), parameters, allow_unused=True))
        with torch.no_grad():
            for p, v in zip(parameters, vectors, strict=True):
                p -= sign * h * v
    return [
        torch.zeros_like(p) if a is None else (a - b) / (2 * h)
        for p, a, b in zip(parameters, *found, strict=True)
    ]


@exercise.mistake
def part_taken_for_granted(loss_of, parameters, vectors):
    """Your product is right only where every gradient depends on every parameter. A parameter without a part
    makes `grad` raise or return None; its part of the product is zero."""
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True)
    return list(torch.autograd.grad(_dot(gradients, vectors), parameters))


@part_taken_for_granted.variant
def never_none(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True)
    flat = torch.cat([g.flatten() for g in gradients])
    total = flat @ torch.cat([v.flatten() for v in vectors])
    return [*torch.autograd.grad(total, parameters)]


@part_taken_for_granted.form
def nones_are_returned(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True, allow_unused=True)
    pairs = zip(gradients, vectors, strict=True)
    total = sum((g * v).sum() for g, v in pairs if g is not None)
    return list(torch.autograd.grad(total, parameters, allow_unused=True))


@part_taken_for_granted.variant
def gradients_as_they_are(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True)
    return list(torch.autograd.grad(gradients, parameters, vectors))


@part_taken_for_granted.form
def unused_in_the_loss(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True)
    return _second(_dot(gradients, vectors), parameters)


@part_taken_for_granted.form
def linear_is_forgotten(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True, materialize_grads=True)
    return list(torch.autograd.grad(_dot(gradients, vectors), parameters, materialize_grads=True))


@part_taken_for_granted.form
def vectors_in_grad_outputs(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True, materialize_grads=True)
    return list(torch.autograd.grad(gradients, parameters, vectors, materialize_grads=True))


@exercise.mistake
def graph_left_on(loss_of, parameters, vectors):
    """The values are right, and the product still hangs in a graph: for the second derivative none is asked
    for."""
    return _second(_dot(_gradients(loss_of, parameters), vectors), parameters, create_graph=True)


@graph_left_on.form
def graph_left_on_without_a_guard(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True)
    return list(torch.autograd.grad(_dot(gradients, vectors), parameters, create_graph=True))
