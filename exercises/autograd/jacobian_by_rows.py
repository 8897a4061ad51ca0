"""The Jacobian, row by row

Return the Jacobian of `function` at `x`: for each element of the result, its derivatives with respect to all
elements of `x`. Its shape is that of the result followed by that of `x`. One backward pass gives the
derivatives of one weighted sum of the results; use `torch.autograd.grad`, as often as it takes, and call
`function` once.

`function` takes a tensor of any shape and returns one of any other shape, whatever its strides and whether
it has elements or not. Results may not depend on `x`, all of them or some: their derivatives are zero, of the
dtype of `x`. `x` stays as it is, whether it requires a gradient or not;
nothing is left in the `.grad` of what the function is made of; and the Jacobian has no graph.
`torch.autograd.functional` and `torch.func` have this ready; here you build it.

`jacobian_by_rows(lambda x: x[:1] * x[1:], torch.tensor([2., 3.]))` → `[[3, 2]]`
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from course_utils import evidence, expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=20,
    hints=[
        "Which weighted sum of the results is a single one of them? What does backward give for it, and "
        "which part of the Jacobian is that?",
        "All rows go back through the same graph, and a graph is freed by the first backward that goes "
        "through it, unless it is told otherwise. A row of which torch says None is a row of zeros.",
        "`grad_outputs` has the shape of the result: one in one place, zeros elsewhere. Or pick the "
        "elements of the flattened result, one after the other. Stack the rows, and give them the shape "
        "asked for. What if the result does not require a gradient at all?",
    ],
)


@exercise.starter
def jacobian_by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """x: any shape -> (*shape of the result, *shape of x)"""
    raise NotImplementedError


class _Watched:
    """A function that notes how often it is called, and by what."""

    def __init__(self, function):
        self.function, self.calls, self.ready_made = function, 0, None

    def __call__(self, x):
        self.calls += 1
        frame = sys._getframe(1)
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if name.startswith(("torch.autograd.functional", "torch._functorch")):
                self.ready_made = "`torch.func`" if "functorch" in name else "`torch.autograd.functional`"
            frame = frame.f_back
        return self.function(x)


_CALL = "jacobian_by_rows(function, x)"


def _given(answer, setup, device):
    if device.type != "cpu":
        setup += f"\nx = x.to('{device.type}')"
    return expect.given(setup, jacobian_by_rows=answer)


def _oracle(function, x):
    size = function(x.detach()).shape
    if 0 in size:  # torch's own has nothing to stack
        return torch.zeros(size + x.shape, dtype=x.dtype, device=x.device)
    return torch.autograd.functional.jacobian(function, x.detach().contiguous())


def _compare(answer, setup, device):
    t = _given(answer, setup, device)
    wanted, found = _oracle(t.function, t.x), t.call(_CALL)
    expect.equal(found, wanted, rtol=1e-4, atol=1e-5)
    return found, wanted


@exercise.check
def right_values(jacobian_by_rows, device):
    """Every row, for vectors of several lengths"""
    for setup in (
        "function = lambda x: x[:1] * x[1:]\nx = torch.tensor([2., 3.])",
        "function = lambda x: torch.stack([x[0] * x[1], x[1].sin() + x[2], x[0] ** 2, x.prod()])\n"
        "x = torch.tensor([1., 2., 3.])",
        "function = lambda x: x.softmax(0)\nx = torch.tensor([1., 0., -1.])",
    ):
        _compare(jacobian_by_rows, setup, device)


@exercise.check
def linear(jacobian_by_rows, device):
    """A linear function, of which nothing is kept for backward"""
    _compare(jacobian_by_rows, "function = lambda x: x.cumsum(0)[1:]\nx = torch.zeros(4)", device)


@exercise.check
def other_shapes(jacobian_by_rows, device):
    """Results and inputs of any shape"""
    for setup in (
        "function = lambda x: (x @ x.t()).sin()\nx = torch.arange(6.).reshape(3, 2)[1:]",
        "function = lambda x: (x * x).sum()\nx = torch.tensor([1., 2., 3.])",
        "function = lambda x: x.exp() * torch.arange(1., 3.).to(x.device)\nx = torch.tensor(0.5)",
        "function = lambda x: x.t() ** 2\nx = torch.arange(6.).reshape(2, 3).t()",
    ):
        _compare(jacobian_by_rows, setup, device)


@exercise.check
def strided(jacobian_by_rows, device):
    """A result that is not contiguous"""
    setup = "function = lambda x: (x.reshape(2, 2) * x[:2]).t()\nx = torch.tensor([1., 2., 3., 4.])"
    _compare(jacobian_by_rows, setup, device)


@exercise.check
def no_dimensions(jacobian_by_rows, device):
    """A number in and a number out"""
    _compare(jacobian_by_rows, "function = lambda x: x * x\nx = torch.tensor(2.)", device)


@exercise.check
def no_elements(jacobian_by_rows, device):
    """A result without elements"""
    _compare(jacobian_by_rows, "function = lambda x: x[:0] * 2\nx = torch.tensor([1., 2.])", device)


@exercise.check
def double_precision(jacobian_by_rows):
    """Another dtype"""
    setup = "function = lambda x: x.sin() * x[0]\nx = torch.tensor([1., 2.], dtype=torch.float64)"
    _compare(jacobian_by_rows, setup, torch.device("cpu"))


@exercise.check
def independent(jacobian_by_rows, device):
    """Results that do not depend on `x`: zeros of its dtype, without a graph"""
    setups = [
        "function = lambda x: torch.cat([torch.ones_like(x), x * x])\nx = torch.tensor([1., 2.])",
        "function = lambda x: torch.ones(3).to(x.device)\nx = torch.tensor([1., 2.])",
        "weight = torch.ones(3, requires_grad=True)\nfunction = lambda x: 2 * weight.to(x.device)\n"
        "x = torch.tensor([1., 2.])",
    ]
    if device.type != "mps":
        setups += [
            f"function = lambda x: torch.ones(3{dtype}).to(x.device)\n"
            "x = torch.tensor([1., 2.], dtype=torch.float64)"
            for dtype in (", dtype=torch.float64", "")
        ]
    for setup in setups:
        found, wanted = _compare(jacobian_by_rows, setup, device)
        if not wanted.any():  # whether the others have a graph is asked elsewhere
            expect.equal(found.requires_grad, False, what="`requires_grad` of the result")


@exercise.check
def inputs_left_alone(jacobian_by_rows, device):
    """`x` stays as it is, and so does what the function is made of"""
    for more in ("", ".requires_grad_()", ".requires_grad_() * 2"):
        setup = f"""weight = torch.nn.Parameter(torch.tensor([2., 3.]))
function = lambda x: x * x * weight.to(x.device)
x = torch.tensor([1., 3.]){more}"""
        t = _given(jacobian_by_rows, setup, device)
        required = t.x.requires_grad
        with expect.left_alone(t.x, what="`x`"):
            found = t.call(_CALL)
        expect.equal(expect.a_tensor(found).requires_grad, False, what="`requires_grad` of the result")
        expect.equal(t.x.requires_grad, required, what="`x.requires_grad` after the call")
        for name in ("x", "weight") if t.x.is_leaf else ("weight",):
            grad = getattr(t, name).grad
            expect.true(grad is None, f"`{name}.grad` is {expect.show(grad)} after the call", "expected None")


@exercise.check
def called_once(jacobian_by_rows, device):
    """The function is called once, by your own code"""
    t = _given(jacobian_by_rows, "function = lambda x: x * x.sum()\nx = torch.tensor([1., 3.])", device)
    t._names["function"] = watched = _Watched(t.function)
    t.call(_CALL)
    evidence.record("who called", watched.ready_made)
    expect.true(
        watched.ready_made is None,
        f"the function was run by {watched.ready_made}",
        "expected: it is called by your own code, and differentiated with `torch.autograd.grad`",
    )
    evidence.record("calls", min(watched.calls, 2))
    expect.true(watched.calls == 1, f"the function was called {watched.calls} times", "expected: once")


# --- the mistakes -----------------------------------------------------------------------------------------


def _leaf(x):
    return x.detach().clone(memory_format=torch.contiguous_format).requires_grad_()


def _zeros(y, x):
    return torch.zeros(y.shape + x.shape, dtype=x.dtype, device=x.device)


def _rows(y, x, **options):
    """The rows in a list, zeros where there is nothing to differentiate."""
    found = []
    for element in y.reshape(-1):
        row = None
        if element.requires_grad:
            (row,) = torch.autograd.grad(
                element, x, **{"retain_graph": True, "allow_unused": True, **options}
            )
        found.append(torch.zeros_like(x) if row is None else row)
    return found


def _stack(rows, y, x):
    return torch.stack(rows).reshape(y.shape + x.shape) if rows else _zeros(y, x)


def _plain(y, x, **options):
    """The rows as one writes them at first: each depends on `x`."""
    return [torch.autograd.grad(element, x, **options)[0] for element in y.reshape(-1)]


@exercise.mistake
def graph_freed(function, x):
    """The first row frees the graph, and the second one needs it again: `retain_graph` keeps it. Where an
    operation has kept nothing for backward there is nothing to free, so a linear function works as it is."""
    x = _leaf(x)
    y = function(x)
    return _stack(_rows(y, x, retain_graph=False), y, x)


@graph_freed.variant
def one_hot_once(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    jacobian = _zeros(y, x).reshape(y.numel(), *x.shape)
    if y.requires_grad:
        for i, pick in enumerate(torch.eye(y.numel(), device=y.device)):
            row = torch.autograd.grad(y, x, pick.reshape(y.shape), allow_unused=True)[0]
            if row is not None:
                jacobian[i] = row
    return jacobian.reshape(y.shape + x.shape)


@graph_freed.form
def graph_freed_in_the_plain_case(function, x):
    x = _leaf(x)
    y = function(x)
    return torch.stack(_plain(y, x)).reshape(y.shape + x.shape)


@graph_freed.form
def graph_freed_along_a_vector(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    return torch.stack([torch.autograd.grad(y[i], x)[0] for i in range(len(y))])


@exercise.mistake
def transposed(function, x):
    """Your Jacobian lies on its side: the elements of `x` come first. Asked for is a row for each result, so
    the shape of the result comes first."""
    x = _leaf(x)
    y = function(x)
    rows = torch.stack(_rows(y, x)).reshape(y.numel(), x.numel())
    return rows.t().reshape(x.shape + y.shape)


@transposed.variant
def stacked_as_columns(function, x):
    x = x.clone().detach().requires_grad_()
    y = function(x)
    columns = [row.reshape(-1) for row in _rows(y, x)]
    return torch.stack(columns, dim=1).reshape(x.shape + y.shape)


@transposed.form
def a_matrix_is_turned(function, x):
    x = _leaf(x)
    y = function(x)
    return _stack(_rows(y, x), y, x).reshape(y.numel(), x.numel()).T.reshape(x.shape + y.shape)


@exercise.mistake
def flat(function, x):
    """The rows are right, but the result and `x` have lost their shapes in yours: as many rows as there are
    elements in the result, always. The shape is to be that of the result followed by that of `x`."""
    x = _leaf(x)
    y = function(x)
    return torch.stack(_rows(y, x)).reshape(y.numel(), x.numel())


@flat.form
def rows_of_the_first_dimension(function, x):
    x = _leaf(x)
    return torch.stack(_rows(function(x), x))


@flat.form
def a_matrix_that_may_be_empty(function, x):
    x = _leaf(x)
    y = function(x)
    return _stack(_rows(y, x), y, x).reshape(y.numel(), x.numel())


@flat.form
def rows_that_may_be_none(function, x):
    x = _leaf(x)
    y = function(x)
    jacobian = x.new_zeros(y.numel(), *x.shape)
    for i, row in enumerate(_rows(y, x)):
        jacobian[i] = row
    return jacobian.detach()


@flat.form
def a_row_for_each_element(function, x):
    x = _leaf(x)
    return torch.stack(_plain(function(x), x, retain_graph=True))


@exercise.mistake
def result_taken_for_a_vector(function, x):
    """You take the result for a vector: you go along its first dimension and not through its elements. With
    more dimensions what you meet there is a tensor again, not a number; and a number has no first dimension.
    `reshape(-1)` makes a vector of any result."""
    x = _leaf(x)
    y = function(x)
    return torch.stack([torch.autograd.grad(y[i], x, retain_graph=True)[0] for i in range(len(y))])


@result_taken_for_a_vector.variant
def one_index_to_the_end(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    rows = []
    for i in range(y.shape[0] if y.dim() else len(y)):
        (row,) = torch.autograd.grad(outputs=y[i], inputs=x, retain_graph=True)
        rows.append(row)
    return torch.stack(rows, dim=0)


@result_taken_for_a_vector.form
def size_of_the_first_dimension(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    rows = []
    for i in range(y.shape[0]):
        rows.append(torch.autograd.grad(y[i], x, retain_graph=True)[0])
    return torch.stack(rows)


@result_taken_for_a_vector.form
def entries_of_the_result(function, x):
    x = x.detach().requires_grad_()
    return torch.stack([torch.autograd.grad(entry, x, retain_graph=True)[0] for entry in function(x)])


@result_taken_for_a_vector.form
def entries_and_zeros(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    rows = []
    for entry in y:
        row = None
        if entry.requires_grad:
            (row,) = torch.autograd.grad(entry, x, retain_graph=True, allow_unused=True)
        rows.append(torch.zeros_like(x) if row is None else row)
    return torch.stack(rows) if rows else _zeros(y, x)


@result_taken_for_a_vector.form
def indices_and_zeros(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    jacobian = x.new_zeros(len(y), *x.shape)
    for i in range(len(y) if y.requires_grad else 0):
        (row,) = torch.autograd.grad(y[i], x, retain_graph=True, allow_unused=True)
        if row is not None:
            jacobian[i] = row
    return jacobian


@result_taken_for_a_vector.form
def sums_of_the_entries(function, x):
    x = x.detach().requires_grad_()
    rows = []
    for entry in function(x):
        (row,) = torch.autograd.grad(entry.sum(), x, retain_graph=True, allow_unused=True)
        rows.append(torch.zeros_like(x) if row is None else row)
    return torch.stack(rows)


@result_taken_for_a_vector.form
def a_one_for_each_entry(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    rows = []
    for i in range(len(y)):
        pick = torch.zeros_like(y)
        pick[i] = 1
        rows.append(torch.autograd.grad(y, x, pick, retain_graph=True)[0])
    return torch.stack(rows)


@result_taken_for_a_vector.form
def backward_of_each_entry(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    rows = []
    for i in range(len(y)):
        x.grad = None
        y[i].backward(retain_graph=True)
        rows.append(x.grad)
    return torch.stack(rows)


@exercise.mistake
def x_is_not_followed(function, x):
    """Autograd does not follow your `x`: from a tensor whose `requires_grad` is False no graph is made. The
    caller's may be such a tensor, and a detached one always is. Take one of your own and ask for its
    gradient, as in `x.detach().requires_grad_()`."""
    x = x.detach()
    y = function(x)
    rows = [torch.autograd.grad(element, x, retain_graph=True)[0] for element in y.reshape(-1)]
    return torch.stack(rows).reshape(y.shape + x.shape)


@x_is_not_followed.variant
def x_as_it_came(function, x):
    y = function(x)
    jacobian = x.new_zeros(y.numel(), *x.shape)
    for i, element in enumerate(y.flatten()):
        (jacobian[i],) = torch.autograd.grad(element, x, retain_graph=True)
    return torch.stack(list(jacobian)).reshape(y.shape + x.shape)


@x_is_not_followed.form
def x_as_it_came_and_no_rows(function, x):
    y = function(x)
    rows = [torch.autograd.grad(element, x, retain_graph=True)[0] for element in y.reshape(-1)]
    return _stack(rows, y, x)


@x_is_not_followed.form
def not_followed_so_zero(function, x):
    x = x.detach()
    y = function(x)
    return _stack(_rows(y, x), y, x)


@exercise.mistake
def the_plain_case_only(function, x):
    """Your Jacobian is right for results that all depend on `x`, but others are asked for too. Where a result
    does not depend on `x`, `grad` raises or returns None, and its derivatives are zero; and a result without
    elements has no rows, and neither `torch.stack` nor a batch of rows can do with none."""
    x = _leaf(x)
    y = function(x)
    rows = [torch.autograd.grad(element, x, retain_graph=True)[0] for element in y.reshape(-1)]
    return torch.stack(rows).reshape(y.shape + x.shape)


@the_plain_case_only.variant
def none_among_the_rows(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    rows = []
    for element in y.flatten():
        rows += torch.autograd.grad(element, x, retain_graph=True, allow_unused=True)
    return torch.stack(rows, dim=0).view(y.shape + x.shape)


@the_plain_case_only.variant
def a_one_for_each_row(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    picks = torch.eye(y.numel(), dtype=y.dtype, device=y.device)
    rows = [torch.autograd.grad(y, x, pick.view(y.shape), retain_graph=True)[0] for pick in picks]
    return torch.stack(rows).reshape(y.shape + x.shape)


@the_plain_case_only.form
def only_no_graph_and_not_empty(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    if not y.requires_grad:
        return _zeros(y, x)
    rows = [torch.autograd.grad(element, x, retain_graph=True)[0] for element in y.reshape(-1)]
    return torch.stack(rows).reshape(y.shape + x.shape)


@the_plain_case_only.form
def a_batch_in_the_plain_case(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    picks = torch.eye(y.numel(), dtype=y.dtype, device=y.device).reshape(-1, *y.shape)
    return torch.autograd.grad(y, x, picks, is_grads_batched=True)[0].reshape(y.shape + x.shape)


@exercise.mistake
def no_sizes_to_pass(function, x):
    """Where a number goes in and a number comes out, you pass no size at all: of two empty shapes a `*` makes
    no arguments, and `reshape` and `view` ask for some. Pass the shape as one tuple, which may be empty:
    `y.shape + x.shape`."""
    x = _leaf(x)
    y = function(x)
    return _stack(_rows(y, x), y, x).reshape(*y.shape, *x.shape)


@no_sizes_to_pass.variant
def sizes_in_a_list(function, x):
    leaf = x.detach().requires_grad_()
    y = function(leaf)
    jacobian = torch.zeros((y.numel(), *x.shape), dtype=x.dtype, device=x.device)
    for i, row in enumerate(_rows(y, leaf)):
        jacobian[i] = row
    sizes = [*y.size(), *x.size()]
    return torch.reshape(jacobian, sizes) if sizes else jacobian.reshape(*sizes)


@no_sizes_to_pass.form
def no_sizes_to_view(function, x):
    x = _leaf(x)
    y = function(x)
    return _stack(_rows(y, x), y, x).view(*y.shape, *x.shape)


@no_sizes_to_pass.form
def no_sizes_and_no_rows(function, x):
    x = _leaf(x)
    y = function(x)
    return torch.stack(_rows(y, x)).reshape(*y.shape, *x.shape)


@no_sizes_to_pass.form
def no_sizes_in_the_plain_case(function, x):
    x = _leaf(x)
    y = function(x)
    return torch.stack(_plain(y, x, retain_graph=True)).reshape(*y.shape, *x.shape)


@exercise.mistake
def none_is_forgotten(function, x):
    """Where the result does not depend on `x`, `grad` raises or returns None, and your function has nothing
    to stack. The derivatives are zero there."""
    x = _leaf(x)
    y = function(x)
    rows = [torch.autograd.grad(element, x, retain_graph=True)[0] for element in y.flatten()]
    return _stack(rows, y, x)


@none_is_forgotten.variant
def every_row_is_there(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    jacobian = _zeros(y, x).reshape(y.numel(), *x.shape)
    for i, pick in enumerate(torch.eye(y.numel(), device=y.device)):
        jacobian[i] = torch.autograd.grad(y, x, pick.reshape(y.shape), retain_graph=True)[0]
    return jacobian.reshape(y.shape + x.shape)


@none_is_forgotten.form
def no_graph_is_seen_to(function, x):
    x = _leaf(x)
    y = function(x)
    if not y.requires_grad:
        return _zeros(y, x)
    rows = [torch.autograd.grad(element, x, retain_graph=True)[0] for element in y.flatten()]
    return _stack(rows, y, x)


@none_is_forgotten.variant
def none_is_stacked(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    rows = [
        torch.autograd.grad(element, x, retain_graph=True, allow_unused=True)[0] for element in y.flatten()
    ]
    return _stack(rows, y, x)


@exercise.mistake
def rows_add_up(function, x):
    """Each of your rows is the sum of those before it and its own. `.grad` is added to, not replaced, until
    it is set to None; and a one that was put into `grad_outputs` stays there until it is set back."""
    x = _leaf(x)
    y = function(x)
    rows = []
    for element in y.reshape(-1):
        if element.requires_grad:
            element.backward(retain_graph=True, inputs=[x])
        rows.append(torch.zeros_like(x) if x.grad is None else x.grad.clone())
    return _stack(rows, y, x)


@rows_add_up.variant
def never_cleared(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    jacobian = _zeros(y, x).reshape(y.numel(), *x.shape)
    for i in range(y.numel() if y.requires_grad else 0):
        pick = torch.zeros(y.numel(), device=y.device)
        pick[i] = 1
        y.backward(pick.reshape(y.shape), retain_graph=True, inputs=[x])
        if x.grad is not None:
            jacobian[i].copy_(x.grad)
    return jacobian.reshape(y.shape + x.shape)


@rows_add_up.variant
def ones_stay(function, x):
    x = _leaf(x)
    y = function(x)
    weights, rows = torch.zeros_like(y).flatten(), []
    for i in range(y.numel()):
        weights[i] = 1
        row = None
        if y.requires_grad:
            (row,) = torch.autograd.grad(y, x, weights.view_as(y), retain_graph=True, allow_unused=True)
        rows.append(torch.zeros_like(x) if row is None else row)
    return _stack(rows, y, x)


@rows_add_up.form
def never_cleared_nor_empty(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    rows = []
    for element in y.flatten():
        if element.requires_grad:
            element.backward(retain_graph=True)
        rows.append(torch.zeros_like(x) if x.grad is None else x.grad.clone())
    return torch.stack(rows).reshape(y.shape + x.shape)


@exercise.mistake
def one_tensor_for_all_rows(function, x):
    """All of your rows are one and the same tensor, which holds what was written to it last. `zero_` and the
    `backward` after it write to the `.grad` that is there, so what you kept of an earlier row changes with
    it."""
    x = x.detach().requires_grad_()
    y = function(x)
    rows = []
    for element in y.flatten():
        if x.grad is not None:
            x.grad.zero_()
        if element.requires_grad:
            element.backward(retain_graph=True)
        rows.append(torch.zeros_like(x) if x.grad is None else x.grad)
    return torch.stack(rows).reshape(y.shape + x.shape)


@exercise.mistake
def written_into_a_copy(function, x):
    """Your one gets lost where the result is not contiguous. `zeros_like` takes over the strides of the
    result, so `flatten` and `reshape` give a copy of it. Fill a flat tensor, and give it the shape of the
    result afterwards."""
    x = x.detach().requires_grad_()
    y = function(x)
    rows = []
    for i in range(y.numel()):
        pick, row = torch.zeros_like(y), None
        pick.flatten()[i] = 1
        if y.requires_grad:
            (row,) = torch.autograd.grad(y, x, pick, retain_graph=True, allow_unused=True)
        rows.append(torch.zeros_like(x) if row is None else row)
    return _stack(rows, y, x)


@written_into_a_copy.form
def lost_in_the_plain_case(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    rows = []
    for i in range(y.numel()):
        pick = torch.zeros_like(y)
        pick.reshape(-1)[i] = 1
        rows.append(torch.autograd.grad(y, x, pick, retain_graph=True)[0])
    return torch.stack(rows).reshape(y.shape + x.shape)


@exercise.mistake
def viewed_flat(function, x):
    """Your `view` raises where the result is not contiguous: without a copy it cannot be seen as flat, nor
    can `zeros_like` of it, which takes over its strides. To read its elements `reshape` will do; fill a flat
    tensor, and give it the shape of the result afterwards."""
    x = x.detach().requires_grad_()
    y = function(x)
    rows = []
    for i in range(y.numel()):
        pick, row = torch.zeros_like(y), None
        if y.requires_grad:
            pick.view(-1)[i] = 1
            (row,) = torch.autograd.grad(y, x, pick, retain_graph=True, allow_unused=True)
        rows.append(torch.zeros_like(x) if row is None else row)
    return _stack(rows, y, x)


@viewed_flat.variant
def elements_of_a_view(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    jacobian = torch.zeros(y.numel(), *x.shape, dtype=x.dtype, device=x.device)
    for i, row in enumerate(_rows(y.view(-1), x)):
        jacobian[i] += row
    return jacobian.detach().reshape(y.shape + x.shape)


@viewed_flat.form
def elements_of_a_view_in_the_plain_case(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    rows = [torch.autograd.grad(element, x, retain_graph=True)[0] for element in y.view(-1)]
    return torch.stack(rows).reshape(y.shape + x.shape)


@exercise.mistake
def no_rows_forgotten(function, x):
    """Your Jacobian is right only where the result has elements. Where it has none there are no rows, and
    neither `torch.stack` nor a batch of rows can do with none."""
    x = _leaf(x)
    y = function(x)
    return torch.stack(_rows(y, x)).reshape(y.shape + x.shape)


@no_rows_forgotten.form
def all_in_one_batch(function, x):
    leaf = x.detach().requires_grad_()
    y = function(leaf)
    picks = torch.eye(y.numel(), dtype=y.dtype, device=y.device).reshape(y.numel(), *y.shape)
    rows = None
    if y.requires_grad:
        (rows,) = torch.autograd.grad(y, leaf, picks, is_grads_batched=True, allow_unused=True)
    return _zeros(y, x) if rows is None else rows.reshape(y.shape + x.shape)


@exercise.mistake
def zeros_of_the_default_dtype(function, x):
    """Your Jacobian, or the zeros in it, have the default dtype where that of `x` is asked for: `torch.zeros`
    knows nothing of `x`. `x.new_zeros` and `torch.zeros_like` take its dtype."""
    leaf = _leaf(x)
    y = function(leaf)
    if not y.requires_grad:
        return torch.zeros(y.shape + x.shape, device=x.device)
    return _stack(_rows(y, leaf), y, x)


@zeros_of_the_default_dtype.form
def filled_in_the_default_dtype(function, x):
    leaf = x.detach().requires_grad_()
    y = function(leaf)
    jacobian = torch.zeros(y.numel(), *x.shape, device=x.device)
    for i, row in enumerate(_rows(y, leaf)):
        jacobian[i] = row
    return jacobian.detach().reshape(y.shape + x.shape)


@exercise.mistake
def zeros_of_the_dtype_of_the_result(function, x):
    """Your Jacobian, or the zeros in it, have the dtype of the result where that of `x` is asked for. The two
    may differ; a derivative with respect to `x` has the dtype of `x`."""
    leaf = _leaf(x)
    y = function(leaf)
    if not y.requires_grad:
        return y.new_zeros(y.shape + x.shape)
    return _stack(_rows(y, leaf), y, x)


@zeros_of_the_dtype_of_the_result.variant
def filled_in_the_dtype_of_the_result(function, x):
    leaf = x.detach().requires_grad_()
    y = function(leaf)
    jacobian = torch.zeros(y.numel(), *x.shape, dtype=y.dtype, device=x.device)
    for i, row in enumerate(_rows(y, leaf)):
        jacobian[i] = row
    return jacobian.detach().reshape(y.shape + x.shape)


@exercise.mistake
def zeros_in_a_graph(function, x):
    """The zeros that you give where a result does not depend on `x` are in a graph: they were computed from
    a tensor that requires a gradient. `torch.zeros_like` makes zeros that depend on nothing."""
    x = _leaf(x)
    y = function(x)
    if not y.requires_grad:
        return torch.stack([x * 0] * y.numel()).reshape(y.shape + x.shape)
    return _stack(_rows(y, x), y, x)


@zeros_in_a_graph.variant
def filled_in_zeros_of_x(function, x):
    leaf = x.detach().requires_grad_()
    y = function(leaf)
    jacobian = torch.zeros(y.numel(), *x.shape, dtype=x.dtype, device=x.device) * leaf
    if y.requires_grad:
        jacobian = jacobian.detach()
    for i, row in enumerate(_rows(y, leaf) if y.requires_grad else []):
        jacobian[i] = row
    return jacobian.reshape(y.shape + x.shape)


@zeros_in_a_graph.form
def zeros_for_none_in_a_graph(function, x):
    x = _leaf(x)
    y = function(x)
    rows = []
    for element in y.reshape(-1) if y.requires_grad else []:
        (row,) = torch.autograd.grad(element, x, retain_graph=True, allow_unused=True)
        rows.append(0 * x if row is None else row)
    return _stack(rows, y, x)


@exercise.mistake
def left_in_grad(function, x):
    """The values are right, and `backward` has left gradients in the `.grad` of what the function is made of.
    `torch.autograd.grad` gives the gradients that are asked for, and leaves nothing behind."""
    x = _leaf(x)
    y = function(x)
    rows = []
    for element in y.reshape(-1):
        if element.requires_grad:
            element.backward(retain_graph=True)
        rows.append(torch.zeros_like(x) if x.grad is None else x.grad)
        x.grad = None
    return _stack(rows, y, x)


@left_in_grad.form
def left_in_grad_in_the_plain_case(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    rows = []
    for element in y.flatten():
        x.grad = None
        element.backward(retain_graph=True)
        rows.append(x.grad)
    return torch.stack(rows).reshape(y.shape + x.shape)


@exercise.mistake
def gradient_of_the_sum(function, x):
    """You differentiated the sum of the results. That is the sum of the rows; each of them was asked for."""
    x = _leaf(x)
    y = function(x)
    if not y.requires_grad:
        return _zeros(y, x)
    (found,) = torch.autograd.grad(y.sum(), x, allow_unused=True)
    return _zeros(y, x) if found is None else found


@gradient_of_the_sum.variant
def ones_for_weights(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    (found,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return found


@gradient_of_the_sum.form
def the_sum_in_every_row(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    (found,) = torch.autograd.grad(y.sum(), x)
    return found.expand(y.shape + x.shape)


@exercise.mistake
def forward_for_every_row(function, x):
    """Your Jacobian is right, and the function is called again for every row. One graph will do for all of
    them, if it is kept."""
    leaf = _leaf(x)
    y = function(leaf)
    rows = []
    for i in range(y.numel()):
        row = None
        if y.requires_grad:
            (row,) = torch.autograd.grad(function(leaf).reshape(-1)[i], leaf, allow_unused=True)
        rows.append(torch.zeros_like(leaf) if row is None else row)
    return _stack(rows, y, x)


@exercise.mistake
def finite_differences(function, x):
    """You moved each element of `x` a little and divided by how much. That rounds, and it is the function
    that you call for every column; autograd gives the derivatives themselves, from one call."""
    columns = []
    with torch.no_grad():
        y, h = function(x), 1e-2
        for i in range(x.numel()):
            step = torch.zeros(x.numel(), dtype=x.dtype, device=x.device)
            step[i] = h
            step = step.reshape(x.shape)
            columns.append((function(x + step) - function(x - step)) / (2 * h))
        return torch.stack(columns, dim=-1).reshape(y.shape + x.shape)


@exercise.mistake
def ready_made(function, x):
    """`torch.autograd.functional` has the Jacobian ready, made in the way that you are asked to build. Write
    it yourself, with `torch.autograd.grad`."""
    return torch.autograd.functional.jacobian(function, x.detach().contiguous())


@exercise.mistake
def functional_transform(function, x):
    """`torch.func` has the Jacobian ready, as a transform of the function. Here you are asked to build it,
    row by row."""
    return torch.func.jacrev(function)(x.detach()).detach()


@functional_transform.form
def functional_transform_as_it_is(function, x):
    return torch.func.jacrev(function)(x)


@functional_transform.form
def forward_mode(function, x):
    return torch.func.jacfwd(function)(x)


@functional_transform.form
def forward_mode_detached(function, x):
    return torch.func.jacfwd(function)(x.detach()).detach()


@exercise.mistake
def graph_left_on(function, x):
    """The values are right, and the Jacobian still hangs in a graph: `create_graph` is for those who want to
    differentiate it again."""
    x = _leaf(x)
    y = function(x)
    return _stack(_rows(y, x, create_graph=True), y, x)


@graph_left_on.form
def graph_left_on_in_the_plain_case(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    return torch.stack(_plain(y, x, create_graph=True)).reshape(y.shape + x.shape)


@exercise.mistake
def the_callers_flag(function, x):
    """You set `requires_grad` on the caller's `x`. Take a tensor of your own for that: one that reads the
    same memory is enough."""
    x.requires_grad_()
    y = function(x)
    return _stack(_rows(y, x), y, x)


@the_callers_flag.form
def the_callers_flag_off_again(function, x):
    x.requires_grad_()
    y = function(x)
    jacobian = _stack(_rows(y, x), y, x)
    x.requires_grad_(False)
    return jacobian


@the_callers_flag.form
def the_callers_flag_in_the_plain_case(function, x):
    x.requires_grad_()
    y = function(x)
    return torch.stack(_plain(y, x, retain_graph=True)).reshape(y.shape + x.shape)
