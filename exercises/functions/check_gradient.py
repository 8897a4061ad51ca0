"""Checking a backward by differences

Somebody has written a backward, and you are to find out whether it is right. Return `True` where the
gradients that autograd gets from `function(*inputs)` are those of its values, and `False` where one of them
is not.

`function` takes tensors of floating point and returns one, of any shape. The result may be a view of an
input; the inputs and the result may have no elements. Nothing else is known of the function: change the
elements of the inputs a little, look at what becomes of the result, and compare.

- A right backward differs from the truth by rounding. A wrong one is off by at least a thousandth of the
  largest element of that gradient, perhaps in one element alone and for one input alone, or it holds a `nan`.
- It has to be right whatever arrives: a gradient of one sign or the other, smaller or larger than 1, another
  one for each element of the result. A result of one element takes several, one after the other, to tell.
- The inputs may be of single precision, which is too coarse for differences: work in `torch.float64`. They
  stay as they are, and get no `.grad`.
- A `None` for an input stands for zero: that is right where the result does not depend on it. So does a
  result without a graph, for all inputs.

`torch.autograd.grad` is welcome. `torch.autograd.gradcheck` is what you are writing.

- `check_gradient(torch.sin, torch.ones(3))` is `True`
"""

import functools
import sys

import torch
from torch import Tensor

from course_utils import expect, many_cases
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=35,
    hints=[
        "Make one number of the result: multiply it by weights and sum. For that number, what does autograd "
        "say, and what do you get from the values at two neighbouring points?",
        "`(f(x + h) - f(x - h)) / (2 * h)` for one element at a time, with h about `1e-6` in double "
        "precision. On one side only, the error goes with h and the curvature; on both it goes with h².",
        "Weights that are all 1 cannot tell a backward that drops what arrives. Take some of both signs, "
        "small and large, and several in turn for a result of one element. Then compare element by element: "
        "a difference of a hundred thousandth of the largest element is more than rounding, and less than "
        "any wrong one shows.",
    ],
)


@exercise.starter
def check_gradient(function, *inputs: Tensor) -> bool:
    """Whether the gradients of `function(*inputs)` are those of its values"""
    raise NotImplementedError


# --- functions with a backward that is given ------------------------------------------------------------


def _function(forward, *backward, view=False):
    """A function of `x` and `y` that computes the expression `forward`, and hands back the gradients that the
    expressions `backward` compute from `x`, `y` and `grad`; without these, the result has no graph. `view`:
    the result stays a view of the input."""
    codes = [compile(code, "<backward>", "eval") for code in backward]
    code = compile(forward, "<forward>", "eval")

    def compute(*inputs):
        return eval(code, {"torch": torch}, dict(zip("xy", inputs, strict=False)))

    if not backward:
        return lambda *inputs: compute(*inputs).detach()

    class Given(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            ctx.save_for_backward(*inputs)
            return compute(*inputs) if view else compute(*inputs).clone()

        @staticmethod
        def backward(ctx, grad):
            names = dict(zip("xy", ctx.saved_tensors, strict=False), grad=grad)
            return tuple(eval(code, {"torch": torch}, names) for code in codes)

    return Given.apply


def _is_right(forward, backward, inputs):
    """Whether these gradients are those of the expression: asked of autograd, for some that arrive."""
    inputs = [x.detach().double().requires_grad_() for x in inputs]
    value = eval(forward, {"torch": torch}, dict(zip("xy", inputs, strict=False)))
    given = _function(forward, *backward)(*inputs)
    for scale in (0.3, -20.0):
        grad = scale * torch.cos(torch.arange(value.numel(), dtype=value.dtype)).reshape(value.shape)
        true, ours = (
            torch.autograd.grad(one, inputs, grad, allow_unused=True, retain_graph=True)
            if one.requires_grad
            else [None] * len(inputs)
            for one in (value, given)
        )
        for x, a, b in zip(inputs, true, ours, strict=True):
            a, b = (torch.zeros_like(x) if one is None else one for one in (a, b))
            if a.numel() and not (a - b).abs().max() <= 1e-9 * a.abs().max():
                return False
    return True


def _try(check_gradient, setup, *functions, view=False):
    """Tries functions, each given by its expressions, at the inputs that `setup` makes; all of them are
    judged, one that was misjudged is shown."""
    t = expect.given(setup, check_gradient=check_gradient)
    inputs = [getattr(t, name) for name in "xy" if f"{name} =" in setup]
    cases = [
        (
            (_function(forward, *backward, view=view), *inputs),
            (_is_right(forward, backward, inputs), forward, backward),
        )
        for forward, *backward in functions
    ]

    def verdict(came, case):
        if came is case[1][0]:
            return many_cases.RIGHT
        return {True: "t", False: "f"}[came] if type(came) is bool else "n"

    def explain(came, error, case):
        if error is not None:
            return []
        right = case[1][0]
        kind = "" if type(came) is bool else f", of type {type(came).__name__}"
        truth = "the gradient is right" if right else "the gradient is wrong"
        return [truth, f"the result is {expect.show(came)}{kind}, expected `{right}`"]

    def call(case):
        # What `function` is stands in the line that is shown also where the answer raises.
        _, forward, backward = case[1]
        handed = f"backward: {', '.join(backward)}" if backward else "no graph"
        return f"check_gradient(function, {', '.join('xy'[: len(inputs)])})  # forward: {forward}; {handed}"

    with expect.situation():
        setup += "\nfunction = ...  # the apply of an autograd.Function"
        many_cases.compare(check_gradient, cases, verdict, explain, call=call, setup=setup)


# --- the checks -----------------------------------------------------------------------------------------


@exercise.check
def plain(check_gradient):
    """Right ones pass, and a wrong sign, a wrong factor and a missing term are found"""
    _try(
        check_gradient,
        "x = torch.tensor([0.6, -1.0, 2.0], dtype=torch.float64)",
        ("x ** 2", "2 * x * grad"),
        ("x ** 2", "-2 * x * grad"),
        ("x ** 2", "x * grad"),
        ("x ** 2", "4 * x * grad"),
        ("x * torch.sigmoid(x)", "torch.sigmoid(x) * (1 + x * (1 - torch.sigmoid(x))) * grad"),
        ("x * torch.sigmoid(x)", "torch.sigmoid(x) * grad"),
        ("(x ** 3).sum()", "3 * x ** 2 * grad"),
        ("(x ** 3).sum()", "3 * x * grad"),
        ("x * x.sum()", "grad * x.sum() + (grad * x).sum()"),
        ("x * x.sum()", "grad * x.sum()"),
    )


@exercise.check
def small_errors(check_gradient):
    """An error of a few thousandths is found"""
    _try(
        check_gradient,
        "x = torch.tensor([0.6, -1.0, 2.0], dtype=torch.float64)",
        ("x ** 2", "2.003 * x * grad"),
        ("torch.exp(x)", "torch.exp(x) * grad * 1.002"),
        ("0.001 * x ** 2", "0.00201 * x * grad"),
        ("1000 * x ** 2", "1996 * x * grad"),
        ("1000 * x ** 2", "2000 * x * grad"),
    )


@exercise.check
def one_element(check_gradient):
    """An error in one element alone is found, and two that cancel in the sum"""
    _try(
        check_gradient,
        "x = torch.tensor([[0.6, -1.0, 2.0], [1.5, 0.7, -0.8]], dtype=torch.float64).t()",
        ("x ** 2", "2 * x * grad"),
        ("x ** 2", "2 * x * grad + 0.1 * (x == -0.8) * grad"),
        ("x ** 2", "2 * x * grad + 0.1 * (x == 0.6) * grad"),
        ("3 * x", "3 * grad + 0.1 * (x == 2.0) - 0.1 * (x == -1.0)"),
        ("torch.relu(x)", "(x > 0) * grad"),
        ("torch.relu(x)", "(x > -0.9) * grad"),
        ("x.sum(0)", "grad.expand(3, 2)"),
        ("x.sum(0)", "grad.flip(0).expand(3, 2)"),
    )


@exercise.check
def one_of_many(check_gradient):
    """An error of two thousandths in one element of forty is found"""
    _try(
        check_gradient,
        "x = torch.linspace(0.5, 1, 40, dtype=torch.float64)",
        ("x.sum()", "grad.expand(40)"),
        ("x.sum()", "grad * (1 + 0.002 * (x == 1.0))"),
    )


@exercise.check
def not_a_number(check_gradient):
    """A gradient that is `nan` is wrong"""
    _try(
        check_gradient,
        "x = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)",
        ("x ** 2", "2 * x * grad"),
        ("x ** 2", "2 * x ** 2 / x * grad"),
    )


@exercise.check
def views(check_gradient):
    """The result may be a view of the input"""
    _try(
        check_gradient,
        "x = torch.tensor([[0.6, -1.0, 2.0], [1.5, 0.7, -0.8]], dtype=torch.float64)",
        ("x.t()", "grad.t()"),
        ("x.t()", "1.02 * grad.t()"),
        ("x[0]", "torch.stack((grad, 0 * grad))"),
        ("x[0]", "torch.stack((grad, grad))"),
        view=True,
    )


@exercise.check
def what_arrives(check_gradient):
    """It has to be right whatever arrives"""
    _try(
        check_gradient,
        "x = torch.tensor([0.6, -1.0, 2.0, 0.7], dtype=torch.float64)",
        ("x ** 2", "2 * x"),
        ("x ** 2", "2 * x * grad.abs()"),
        ("x ** 2", "-2 * x * grad.abs()"),
        ("x ** 2", "2 * x * grad.clamp(-1, 1)"),
        ("3 * x", "3 * torch.where(grad.abs() < 1, grad.sign(), grad)"),
        ("x ** 2", "2 * x * grad.sum() / 4"),
        ("x ** 2", "2 * x * grad"),
        ("x.sum()", "grad.expand(4)"),
        ("x.sum()", "torch.ones(4, dtype=x.dtype)"),
        ("x.cumsum(0)", "grad.flip(0).cumsum(0).flip(0)"),
        ("x.cumsum(0)", "grad.cumsum(0)"),
    )


@exercise.check
def one_number(check_gradient):
    """It has to be right whatever arrives, also where the result is one number"""
    _try(
        check_gradient,
        "x = torch.tensor([0.6, -1.0, 2.0], dtype=torch.float64)",
        ("(x ** 2).sum()", "2 * x * grad"),
        ("(x ** 2).sum()", "2 * x * grad.abs()"),
        ("(x ** 2).sum()", "-2 * x * grad.abs()"),
        ("(x ** 2).sum()", "2 * x * grad.clamp(-1, 1)"),
        ("(x ** 2).sum()", "2 * x * torch.where(grad.abs() < 1, grad.sign(), grad)"),
    )


@exercise.check
def no_graph(check_gradient):
    """A result without a graph stands for gradients of zero"""
    _try(
        check_gradient,
        "x = torch.tensor([0.6, -1.0, 2.0], dtype=torch.float64)",
        ("torch.ones(3, dtype=torch.float64)",),
        ("x ** 2",),
        ("x ** 2", "2 * x * grad"),
    )


@exercise.check
def several_inputs(check_gradient):
    """Every input counts"""
    _try(
        check_gradient,
        "x = torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=torch.float64)\n"
        "y = torch.tensor([[0.3, -0.2], [2.0, 1.0]], dtype=torch.float64)",
        ("x @ y", "grad @ y.t()", "x.t() @ grad"),
        ("x @ y", "grad @ y", "x.t() @ grad"),
        ("x @ y", "grad @ y.t()", "x @ grad"),
        ("x * y", "grad * y", "grad * x"),
        ("x * y", "grad * y", "None"),
        ("x ** 2", "2 * x * grad", "None"),
        ("x ** 2", "2 * x * grad", "0.01 * grad"),
        ("1000 * x + y", "1000 * grad", "grad"),
        ("1000 * x + y", "1000 * grad", "1.02 * grad"),
    )


@exercise.check
def steep(check_gradient):
    """Right ones pass where the function bends sharply or grows fast"""
    _try(
        check_gradient,
        "x = torch.tensor([0.37, -0.82], dtype=torch.float64)",
        ("torch.sin(300 * x)", "300 * torch.cos(300 * x) * grad"),
        ("torch.sin(300 * x.sum())", "300 * torch.cos(300 * x.sum()) * grad.expand(2)"),
        ("torch.exp(12 * x)", "12 * torch.exp(12 * x) * grad"),
    )


@exercise.check
def curved(check_gradient):
    """Right ones pass close to the lowest point of a parabola"""
    _try(
        check_gradient,
        "x = torch.tensor([1e-6, -2e-6], dtype=torch.float64)",
        ("1e6 * x ** 2", "2e6 * x * grad"),
        ("1e6 * x.sum() ** 2", "2e6 * x.sum() * grad.expand(2)"),
    )


@exercise.check
def around_zero(check_gradient):
    """Right ones pass at zero"""
    # Rounding has no say here, whatever the step is.
    _try(check_gradient, "x = torch.tensor([0.0, 0.0], dtype=torch.float64)", ("torch.sin(x)", "grad"))


@exercise.check
def large(check_gradient):
    """Right ones pass where the values are large"""
    _try(
        check_gradient,
        "x = torch.tensor([0.67, -0.82], dtype=torch.float64)",
        ("1000 + x", "grad"),
        ("1000 + x", "1.02 * grad"),
        ("1e6 * x ** 2", "2e6 * x * grad"),
    )


@exercise.check
def close_to_zero(check_gradient):
    """Right ones pass where one element of the gradient is close to zero, and another large"""
    _try(
        check_gradient,
        "x = torch.tensor([1.5707963, 1.570796, 1.57079, 0.3], dtype=torch.float64)",
        ("(1e4 * torch.sin(x)).sum()", "1e4 * torch.cos(x) * grad"),
    )


@exercise.check
def small(check_gradient):
    """Right and wrong ones are told apart where the values are small"""
    _try(
        check_gradient,
        "x = torch.tensor([0.37, -0.82], dtype=torch.float64)",
        ("1e-6 * torch.tanh(x)", "1e-6 * (1 - torch.tanh(x) ** 2) * grad"),
        ("1e-6 * torch.tanh(x)", "1e-6 * (1 - torch.tanh(x)) * grad"),
        ("0 * x", "0 * grad"),
    )


@exercise.check
def single_precision(check_gradient):
    """Inputs of single precision, of no dimension, and without elements"""
    right = "torch.exp(x) + 500", "torch.exp(x) * grad"
    functions = right, ("torch.exp(x)", "1.003 * torch.exp(x) * grad")
    _try(check_gradient, "x = torch.tensor([0.37, -0.82, 1.3])", *functions)
    _try(check_gradient, "x = torch.tensor(0.4)", *functions)
    _try(check_gradient, "x = torch.empty(0, 2)", ("x.sum(1)", "grad[:, None].expand(0, 2)"))
    _try(check_gradient, "x = torch.tensor([0.3, 0.7])[::2]", *functions)


@exercise.check
def inputs_left_alone(check_gradient):
    """The inputs stay as they are and get no `.grad`; torch's own check does not run"""
    for more in ("", ", requires_grad=True"):
        t = expect.given(f"x = torch.tensor([0.5, -1.0], dtype=torch.float64{more})")
        square, asked, values = _function("x ** 2", "2 * x * grad"), set(), []

        def function(x, square=square, asked=asked, values=values, given=t.x):
            values.append(given.tolist())
            frame = sys._getframe(1)
            while frame is not None:
                asked.add(frame.f_globals.get("__name__"))
                frame = frame.f_back
            return square(x)

        with expect.left_alone(t.x, what="`x`"), expect.situation(f"x = torch.tensor([0.5, -1.0]{more})"):
            check_gradient(function, t.x)
        untouched = all(value == [0.5, -1.0] for value in values)
        expect.true(untouched, "`x` was changed while `function` was called", "expected: copies are changed")
        expect.true(t.x.grad is None, "`x.grad` was set", "expected: it stays `None`")
        same = t.x.requires_grad == bool(more)
        expect.true(same, "`x.requires_grad` was changed", "expected: it stays as it is")
        ours = not any(name and name.startswith("torch.autograd.gradcheck") for name in asked)
        expect.true(ours, "`torch.autograd.gradcheck` ran", "expected: differences of your own")


# --- the mistakes ---------------------------------------------------------------------------------------

_WEIGHTS = 2.5, -0.4, 1.3, -3.1, 0.2


def _weights(result):
    weights = [_WEIGHTS[i % 5] for i in range(result.numel())]
    return torch.tensor(weights, dtype=torch.float64).reshape(result.shape)


def _gradients(function, inputs, weights=None, dtype=torch.float64):
    """What autograd gets for the weighted sum of the result, and the function that computes this sum."""
    inputs = [x.detach().to(dtype).clone().requires_grad_() for x in inputs]
    result = function(*inputs)
    if weights is None:
        weights = _weights(result)
    weights = weights.to(dtype).reshape(result.shape)
    grads = [None] * len(inputs)
    if result.requires_grad:
        grads = torch.autograd.grad(result, inputs, weights, allow_unused=True)
    grads = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, grads, strict=True)]

    def total(changed):
        with torch.no_grad():
            return (function(*changed) * weights).sum().item()

    return [x.detach().clone(memory_format=torch.contiguous_format) for x in inputs], grads, total


def _differences(total, inputs, number, h, forward=False):
    """The gradient of the sum by differences, element by element."""
    x = inputs[number]
    found = torch.zeros_like(x)
    for i in range(x.numel()):
        kept = x.view(-1)[i].item()
        x.view(-1)[i] = kept + h
        above = total(inputs)
        x.view(-1)[i] = kept if forward else kept - h
        below = total(inputs)
        x.view(-1)[i] = kept
        found.view(-1)[i] = (above - below) / (h if forward else 2 * h)
    return found


def _agree(a, b, tolerance=1e-5):
    if not a.numel():
        return True
    return (a - b).abs().max().item() <= tolerance * max(a.abs().max().item(), b.abs().max().item())


def _within(tolerance):
    return lambda a, b: _agree(a, b, tolerance)


def _check(function, inputs, h=1e-6, forward=False, agree=_agree, weights=None, dtype=torch.float64):
    for one in (function, _scaled(function)) if weights is None else (function,):
        xs, grads, total = _gradients(one, inputs, weights, dtype)
        if not all(agree(_differences(total, xs, n, h, forward), grads[n]) for n in range(len(xs))):
            return False
    return True


def _scaled(function):
    """To ask of this is to ask of the function where other gradients arrive, small for large ones."""
    return lambda *inputs: -0.3 * function(*inputs)


def _asked_twice(answer):
    """The answer, asked of the function where some gradients arrive and where others do."""

    @functools.wraps(answer)
    def twice(function, *inputs):
        return answer(function, *inputs) and answer(_scaled(function), *inputs)

    return twice


def _ones(function, inputs):
    return torch.ones(function(*[x.detach().double() for x in inputs]).numel())


@exercise.mistake
def one_sided(function, *inputs):
    """You compare with differences to one side. Their error grows with the curvature of the function: a right
    backward of a function that bends sharply looks wrong. With a point on each side the curvature drops
    out."""
    return _check(function, inputs, forward=True)


@one_sided.variant
@_asked_twice
def from_the_point_itself(function, *inputs):
    inputs, grads, total = _gradients(function, inputs)
    here = total(inputs)
    for x, grad in zip(inputs, grads, strict=True):
        flat = x.view(-1)
        for i, slope in enumerate(grad.reshape(-1).tolist()):
            kept = flat[i].item()
            flat[i] = kept + 1e-6
            ahead = (total(inputs) - here) / 1e-6
            flat[i] = kept
            if not abs(ahead - slope) <= 1e-5 * grad.abs().max().item():
                return False
    return True


@one_sided.form
def one_sided_with_some_room(function, *inputs):
    return _check(function, inputs, forward=True, agree=_within(1e-4))


@one_sided.form
def one_sided_and_far(function, *inputs):
    return _check(function, inputs, h=1e-4, forward=True, agree=_within(1e-4))


@one_sided.form
def one_sided_and_farther(function, *inputs):
    return _check(function, inputs, h=1e-4, forward=True)


@one_sided.form
def one_sided_and_near(function, *inputs):
    return _check(function, inputs, h=1e-7, forward=True, agree=_within(1e-4))


@exercise.mistake
def divides_by_one_step(function, *inputs):
    """Your difference is off by a factor of two: `f(x + h)` and `f(x - h)` lie `2 * h` apart."""
    return _check(function, inputs, agree=lambda a, b: _agree(2 * a, b))


@exercise.mistake
def compares_exactly(function, *inputs):
    """You ask for gradients that equal the differences exactly. A difference is good to some eight digits,
    so right backwards look wrong: leave room for rounding."""
    return _check(function, inputs, agree=torch.equal)


@exercise.mistake
def lets_nan_through(function, *inputs):
    """A gradient that is `nan` gets through. `nan` compares as False with everything, so `error > tolerance`
    does not find it: ask for `error <= tolerance` instead."""

    def agree(a, b):
        return not a.numel() or not bool(((a - b).abs() > 1e-5 * b.abs().max()).any())

    return _check(function, inputs, agree=agree)


@lets_nan_through.variant
@_asked_twice
def one_comparison_at_a_time(function, *inputs):
    inputs, grads, total = _gradients(function, inputs)
    for number, grad in enumerate(grads):
        room = 1e-5 * max(map(abs, grad.reshape(-1).tolist()), default=0)
        seen = _differences(total, inputs, number, 1e-6).reshape(-1)
        if any(error > room for error in (seen - grad.reshape(-1)).abs().tolist()):
            return False
    return True


@exercise.mistake
@_asked_twice
def changes_one_copy(function, *inputs):
    """Your two results are the same tensor. The function may return a view of what you give it: when the copy
    is changed for the second point, the first result changes with it. Use a copy for each point, or reduce
    the result to a number before the next change."""
    inputs, grads, total = _gradients(function, inputs)
    weights = _weights(function(*inputs))
    for x, grad in zip(inputs, grads, strict=True):
        found = torch.zeros_like(x)
        for i in range(x.numel()):
            kept = x.view(-1)[i].item()
            with torch.no_grad():
                x.view(-1)[i] += 1e-6
                above = function(*inputs)
                x.view(-1)[i] -= 2e-6
                below = function(*inputs)
            found.view(-1)[i] = ((above - below) * weights).sum().item() / 2e-6
            x.view(-1)[i] = kept
        if not _agree(found, grad):
            return False
    return True


@exercise.mistake
def flat_view_of_a_clone(function, *inputs):
    """You change elements through `view(-1)`, which raises where the input is transposed: `clone` keeps the
    order of the strides. Make the copy contiguous, or index it with all of its dimensions."""
    xs = [x.detach().double().clone() for x in inputs]
    for x in xs:
        x.view(-1)
    return _check(function, inputs)


@exercise.mistake
def flat_copy(function, *inputs):
    """You change elements of `reshape(-1)`, which is a copy where the input is transposed: the input stays as
    it is, and all differences are 0. Index the input with all of its dimensions, or make it contiguous."""
    inputs = [x.detach().double().clone() for x in inputs]
    moves = all(x.reshape(-1).data_ptr() == x.data_ptr() for x in inputs)

    def agree(a, b):
        return _agree(a if moves else 0 * a, b)

    return _check(function, inputs, agree=agree)


@exercise.mistake
def nothing_to_compare(function, *inputs):
    """Your function raises where an input has no elements: the largest element of nothing is not defined, and
    nothing can be stacked. There is nothing to compare then, and nothing is wrong."""

    def agree(a, b):
        return bool((a - b).abs().max() <= 1e-5 * b.abs().max())

    return _check(function, inputs, agree=agree)


@exercise.mistake
def mean_error(function, *inputs):
    """You compare one number made of all differences, their mean or their norm. A wrong element gets lost
    among many right ones: compare the largest difference with the largest element."""

    def agree(a, b):
        return not a.numel() or bool((a - b).abs().mean() <= 1e-3 * b.abs().mean())

    return _check(function, inputs, agree=agree)


@mean_error.variant
def norm_of_the_error(function, *inputs):
    def agree(a, b):
        return bool((a - b).norm() <= 5e-4 * b.norm())

    return _check(function, inputs, agree=agree)


@exercise.mistake
@_asked_twice
def all_inputs_at_once(function, *inputs):
    """You measure the error against the gradients of all inputs together. Where that of one input is small
    beside another, it may be wrong unseen: measure each against its own largest element."""
    inputs, grads, total = _gradients(function, inputs)
    found = torch.cat([_differences(total, inputs, n, 1e-6).reshape(-1) for n in range(len(inputs))])
    return _agree(found, torch.cat([grad.reshape(-1) for grad in grads]), 1e-4)


@exercise.mistake
@_asked_twice
def none_is_fine(function, *inputs):
    """You take `None` for right. It says that the gradient is zero, which is wrong where the result does
    depend on that input: compare zeros with the differences."""
    return _none(function, inputs, True)


@exercise.mistake
@_asked_twice
def none_is_wrong(function, *inputs):
    """You take `None` for wrong. It stands for zero, which is right where the result does not depend on that
    input: compare zeros with the differences."""
    return _none(function, inputs, False)


def _none(function, inputs, verdict):
    xs = [x.detach().double().clone().requires_grad_() for x in inputs]
    result = function(*xs)
    grads = [None] * len(xs)
    if result.requires_grad:
        grads = torch.autograd.grad(result.sum(), xs, allow_unused=True)
    inputs, ours, total = _gradients(function, inputs)
    return all(
        verdict if grad is None else _agree(_differences(total, inputs, n, 1e-6), ours[n])
        for n, grad in enumerate(grads)
    )


@exercise.mistake
def asks_the_caller(function, *inputs):
    """You ask for gradients of the tensors that you were given: `double()` returns the tensor itself where it
    is of that type already. Detach first, and ask for gradients of your own copies."""
    for x in inputs:
        x.double().requires_grad_()
    return _check(function, inputs)


@asks_the_caller.form
def leaves_a_gradient(function, *inputs):
    for x in inputs:
        x = x.double().requires_grad_()
        x.grad = torch.zeros_like(x)
    return _check(function, inputs)


@exercise.mistake
def changes_the_caller(function, *inputs):
    """You change the elements of what you were given, and change them back. `double()` and `detach()` share
    the memory of their input where the type is right already: make copies."""
    for x in inputs:
        if x.numel():
            x.data += 1
            function(*inputs)
            x.data -= 1
    return _check(function, inputs)


@exercise.mistake
def in_single_precision(function, *inputs):
    """You take differences in the precision in which the inputs come. With seven digits, two values that lie
    close together have few digits left in their difference, and right backwards look wrong. Convert to
    `torch.float64` first."""
    dtype = inputs[0].dtype
    return _check(function, inputs, 1e-6 if dtype == torch.float64 else 1e-3, dtype=dtype)


@in_single_precision.form
def in_its_own_precision_with_room(function, *inputs):
    return _check(function, inputs, 1e-3, agree=_within(5e-4), dtype=inputs[0].dtype)


@exercise.mistake
def all_in_single_precision(function, *inputs):
    """You work in single precision. With seven digits, two values that lie close together have few digits
    left in their difference: right backwards look wrong, and with room for that wrong ones look right.
    Convert to `torch.float64`."""
    return _check(function, inputs, 1e-3, dtype=torch.float32)


@all_in_single_precision.form
def single_precision_with_room(function, *inputs):
    return _check(function, inputs, 1e-3, agree=_within(1e-3), dtype=torch.float32)


@all_in_single_precision.form
def single_precision_with_little_room(function, *inputs):
    return _check(function, inputs, 1e-3, agree=_within(1e-4), dtype=torch.float32)


@exercise.mistake
@_asked_twice
def along_one_direction(function, *inputs):
    """You compare one number, a sum over all elements. Errors of different elements can cancel in it. Move
    one element at a time, and compare each with its own difference."""
    inputs, grads, total = _gradients(function, inputs)
    h = 1e-6
    for n, grad in enumerate(grads):
        above, below = (total([x + s * h * (i == n) for i, x in enumerate(inputs)]) for s in (1, -1))
        slope = (above - below) / (2 * h)
        if not abs(slope - grad.sum().item()) <= 1e-5 * max(abs(slope), abs(grad.sum().item())):
            return False
    return True


@exercise.mistake
def weights_of_one(function, *inputs):
    """You sum the result, so what arrives in the backward is 1 everywhere. A backward that drops what
    arrives, or mixes it up, looks right then. Take another weight for each element, of both signs, small and
    large."""
    return _check(function, inputs, weights=_ones(function, inputs))


@weights_of_one.variant
def backward_of_the_sum(function, *inputs):
    xs = [x.detach().double().clone().requires_grad_() for x in inputs]
    total = function(*xs).sum()
    if total.requires_grad:
        total.backward()
    for x in xs:
        grad = x.grad if x.grad is not None else torch.zeros_like(x)
        steps = torch.eye(x.numel(), dtype=x.dtype).reshape(x.numel(), *x.shape) * 1e-6
        for step, slope in zip(steps, grad.reshape(-1).tolist(), strict=True):
            above, below = (function(*[o + s * step if o is x else o for o in xs]).sum() for s in (1, -1))
            if not abs((above - below).item() / 2e-6 - slope) <= 1e-5 * grad.abs().max().item():
                return False
    return True


@weights_of_one.form
def first_element_only(function, *inputs):
    weights = torch.zeros_like(_ones(function, inputs))
    weights[:1] = 1
    return _check(function, inputs, weights=weights)


@exercise.mistake
def one_weight_for_all(function, *inputs):
    """What arrives in the backward is the same number for every element of the result. A backward that mixes
    the elements up looks right then: take another weight for each."""
    ones = _ones(function, inputs)
    return all(_check(function, inputs, weights=size * ones) for size in (1.0, -1.0, 0.1, -30.0))


@exercise.mistake
def one_arrival(function, *inputs):
    """You send one gradient for each element of the result. Where the result is one number, that is one sign
    and one size: send several, one after the other."""
    return _check(function, inputs, weights=_weights(_ones(function, inputs)))


@one_arrival.form
def one_arrival_below_zero(function, *inputs):
    return _check(function, inputs, weights=-_weights(_ones(function, inputs)))


@one_arrival.form
def one_small_arrival(function, *inputs):
    weights = _weights(_ones(function, inputs))
    return _check(function, inputs, weights=weights.flip(0) if len(weights) > 1 else weights / 5)


@one_arrival.form
def one_small_arrival_below_zero(function, *inputs):
    weights = _weights(_ones(function, inputs))
    return _check(function, inputs, weights=weights.flip(0) if len(weights) > 1 else -weights / 5)


@exercise.mistake
def weights_below_one(function, *inputs):
    """Your weights lie between -1 and 1, so a backward that clamps what arrives to this range looks right.
    Some of them have to be larger."""
    weights = torch.cos(torch.arange(len(_ones(function, inputs))) + 0.5)
    return _check(function, inputs, weights=weights)


@exercise.mistake
def weights_above_one(function, *inputs):
    """All your weights are larger than 1, or smaller than -1. A backward that is wrong for what is small
    looks right then: take some in between as well."""
    weights = 1.5 + torch.arange(len(_ones(function, inputs)))
    return _check(function, inputs, weights=weights * (-1) ** torch.arange(len(weights)))


@exercise.mistake
def positive_weights(function, *inputs):
    """All your weights have the same sign. A backward that loses the sign of what arrives may look right
    then: take weights of both signs."""
    return _check(function, inputs, weights=0.3 + torch.arange(len(_ones(function, inputs))))


@positive_weights.form
def positive_and_above_one(function, *inputs):
    return _check(function, inputs, weights=1.0 + torch.arange(len(_ones(function, inputs))))


@positive_weights.form
def positive_and_below_one(function, *inputs):
    weights = torch.arange(1, 1 + len(_ones(function, inputs)))
    return _check(function, inputs, weights=weights / (len(weights) + 1))


@positive_weights.form
def negative_weights(function, *inputs):
    return _check(function, inputs, weights=-0.3 - torch.arange(len(_ones(function, inputs))))


@positive_weights.form
def negative_and_above_one(function, *inputs):
    return _check(function, inputs, weights=-1.5 - torch.arange(len(_ones(function, inputs))))


@positive_weights.form
def negative_and_smaller_and_smaller(function, *inputs):
    return _check(function, inputs, weights=-1.5 / (1 + torch.arange(len(_ones(function, inputs)))))


@positive_weights.form
def positive_and_smaller_and_smaller(function, *inputs):
    return _check(function, inputs, weights=1.5 / (1 + torch.arange(len(_ones(function, inputs)))))


@positive_weights.form
def one_at_a_time(function, *inputs):
    ones = _ones(function, inputs)
    units = torch.eye(len(ones)) if len(ones) else ones[None]
    return all(_check(function, inputs, weights=unit) for unit in units)


@exercise.mistake
@_asked_twice
def first_input_only(function, *inputs):
    """You check the gradient of the first input. Each of the others has one of its own, which may be
    wrong."""
    inputs, grads, total = _gradients(function, inputs)
    return _agree(_differences(total, inputs, 0, 1e-6), grads[0])


@first_input_only.variant
def only_x(function, x, *others):
    def of_x(z):
        return function(z, *(other.detach().double() for other in others))

    return _check(of_x, (x,))


@exercise.mistake
def absolute_tolerance(function, *inputs):
    """You allow a fixed difference. A gradient may be a thousand or a ten thousandth: measure the difference
    against the largest element of the gradient."""
    return _check(function, inputs, agree=lambda a, b: torch.allclose(a, b, rtol=0, atol=1e-5))


@absolute_tolerance.form
def ten_thousandth(function, *inputs):
    return _check(function, inputs, agree=lambda a, b: torch.allclose(a, b, rtol=0, atol=1e-4))


@absolute_tolerance.form
def millionth(function, *inputs):
    return _check(function, inputs, agree=lambda a, b: torch.allclose(a, b, rtol=0, atol=1e-6))


@exercise.mistake
def too_much_room(function, *inputs):
    """You let an error of more than a thousandth pass. In double precision, differences on both sides are
    good to eight digits or so: a hundred thousandth is room enough."""
    return _check(function, inputs, agree=lambda a, b: _agree(a, b, 1e-2))


@exercise.mistake
def each_against_itself(function, *inputs):
    """You measure the difference of each element against that element. Where one is close to zero, the
    rounding of the sum is larger than it: measure against the largest element of the gradient."""
    return _check(function, inputs, agree=lambda a, b: torch.allclose(a, b, rtol=1e-6, atol=0))


@each_against_itself.form
def all_close(function, *inputs):
    return _check(function, inputs, agree=torch.allclose)


@exercise.mistake
def step_too_small(function, *inputs):
    """Your step is so small that rounding decides: two values that agree in all but the last digits say
    little about a slope. In double precision a step of about 1e-6 is the best compromise."""
    return _check(function, inputs, h=1e-12)


@step_too_small.form
def too_small_for_the_room(function, *inputs):
    return _check(function, inputs, h=1e-12, agree=_within(1e-4))


@step_too_small.form
def hardly_a_step(function, *inputs):
    return _check(function, inputs, h=1e-14, agree=_within(1e-3))


@exercise.mistake
def step_too_large(function, *inputs):
    """Your step is large enough for the function to bend within it. In double precision a step of about 1e-6
    is the best compromise between that and rounding."""
    return _check(function, inputs, h=1e-2)


@step_too_large.form
def a_tenth(function, *inputs):
    return _check(function, inputs, h=0.1, agree=_within(1e-4))


@step_too_large.form
def a_thousandth(function, *inputs):
    return _check(function, inputs, h=1e-3, agree=_within(1e-4))


@exercise.mistake
@_asked_twice
def needs_a_gradient(function, *inputs):
    """Your function raises where an input gets no gradient at all. A result that does not depend on an input
    hands back `None` for it, which stands for zero: `torch.autograd.grad` has `allow_unused=True`."""
    xs = [x.detach().double().clone().requires_grad_() for x in inputs]
    result = function(*xs)
    weights = torch.tensor([_WEIGHTS[i % 5] for i in range(result.numel())]).double().reshape(result.shape)
    grads = torch.autograd.grad(result, xs, weights) if result.requires_grad else [0 * x for x in xs]
    plain = [x.detach().clone(memory_format=torch.contiguous_format) for x in xs]

    def total(changed):
        return (function(*changed) * weights).sum().item()

    return all(_agree(_differences(total, plain, n, 1e-6), grads[n]) for n in range(len(xs)))


@needs_a_gradient.form
def needs_a_graph_to_every_input(function, *inputs):
    xs = [x.detach().double().requires_grad_() for x in inputs]
    torch.autograd.grad(function(*xs).sum(), xs)
    return _check(function, inputs)


@exercise.mistake
def needs_a_graph(function, *inputs):
    """Your function raises where the result has no graph. There are gradients all the same: zero for every
    input, which is right for a constant. `result.requires_grad` tells."""
    xs = [x.detach().double().requires_grad_() for x in inputs]
    torch.autograd.grad(function(*xs).sum(), xs, allow_unused=True)
    return _check(function, inputs)


@exercise.mistake
def calls_gradcheck(function, *inputs):
    """`torch.autograd.gradcheck` has answered. Write the differences yourself: it is a loop and a comparison,
    and you will know what such a check can miss."""
    xs = [x.detach().double().requires_grad_() for x in inputs]
    return torch.autograd.gradcheck(function, xs, rtol=1e-5, atol=1e-9, raise_exception=False)


@calls_gradcheck.form
def with_its_own_tolerances(function, *inputs):
    xs = [x.detach().double().requires_grad_() for x in inputs]
    return torch.autograd.gradcheck(function, xs, raise_exception=False)
