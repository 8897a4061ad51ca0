"""Checking a backward by differences

Somebody has written a backward. `check_gradient(function, *inputs)` returns `True` if the gradients that
autograd gets from `function(*inputs)` are those of its values, and `False` if not. `function` returns one
tensor, of any shape, which depends on every input. Compare with differences of its values.

- A right gradient differs by rounding. A wrong one is off by a thousandth of its largest element or more, or
  `nan`, perhaps in one element of one input.
- A backward may be right only if ones arrive: let weights of both signs arrive, small and large.
- Inputs may be float32, too coarse for differences: work in float64. Don't change the inputs.

`torch.autograd.grad` is welcome; `torch.autograd.gradcheck` is what you are writing.

`check_gradient(torch.sin, torch.ones(3))` → `True`
"""

import textwrap

from torch import Tensor

from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=20,
    hints=[
        "Turn the result into one number: multiply it by weights and sum. For that number, what does "
        "autograd say, and what do the values at two neighbouring points say?",
        "`(f(x + h) - f(x - h)) / (2 * h)` for one element at a time, with h about `1e-6` in double "
        "precision. With one side the error grows with h and the curvature; with both it grows with h².",
        "With weights of 1 you can't find a backward that drops what arrives. Take weights of both signs, "
        "small and large. Then compare element by element: a ten thousandth of the largest element is more "
        "than rounding, and less than the error of any wrong gradient here.",
    ],
)


@exercise.starter
def check_gradient(function, *inputs: Tensor) -> bool:
    """Whether the gradients of `function(*inputs)` are those of its values"""
    raise NotImplementedError


def _function(names, forward, *backward):
    """The code of a function of `x` (and `y`) that computes the expression `forward`, and hands back the
    gradients that the expressions `backward` compute from these and `grad`."""
    return textwrap.dedent(f"""
        class Given(torch.autograd.Function):
            @staticmethod
            def forward(ctx, {names}):
                ctx.save_for_backward({names})
                return {forward}

            @staticmethod
            def backward(ctx, grad):
                {names}{"" if "," in names else ","} = ctx.saved_tensors
                return {", ".join(backward)}
    """)


def _expect_verdicts(check_gradient, inputs, right=(), wrong=()):
    """Each of these functions, (forward, backward…), is judged as it should be. `inputs` is code."""
    names = ", ".join(name for name in "xy" if f"{name} =" in inputs)
    with Rows() as rows:
        for verdict, functions in ((True, right), (False, wrong)):
            for forward, *backward in functions:
                with rows.of(f"`{', '.join(backward)}`"):
                    setup = f"{_function(names, forward, *backward)}\n{inputs}"
                    t = expect.given(setup, check_gradient=check_gradient)
                    found = t.call(f"check_gradient(Given.apply, {names})")
                    kind = "right" if verdict else "wrong"
                    expect.equal(found, verdict, what=f"the answer for a {kind} gradient")


@exercise.check
def right_and_wrong(check_gradient):
    """Right ones pass; a wrong sign, a wrong factor, a missing term and `nan` are found

    Element `i` of the gradient says how the weighted sum of **all** results changes with element `i` of `x`.
    A difference is not exact: the smaller the step, the more digits the two values share. `nan > tolerance`
    is false, and so is `nan < tolerance`.
    """
    _expect_verdicts(
        check_gradient,
        "x = torch.tensor([0.6, -1.0, 0.0, 0.7], dtype=torch.float64)",
        right=[
            ("x ** 2", "2 * x * grad"),
            ("(x ** 3).sum()", "3 * x ** 2 * grad"),
            ("x * x.sum()", "grad * x.sum() + (grad * x).sum()"),
        ],
        wrong=[
            ("x ** 2", "-2 * x * grad"),
            ("x ** 2", "x * grad"),
            ("x ** 2", "4 * x * grad"),
            ("x ** 2", "2.003 * x * grad"),
            ("(x ** 3).sum()", "3 * x * grad"),
            ("x * x.sum()", "grad * x.sum()"),
            ("x ** 2", "2 * x ** 2 / x * grad"),
        ],
    )


@exercise.check
def every_element(check_gradient):
    """An error in one element of one input is found, and two that cancel in the sum

    A step along one element measures one element of the gradient. A step along all of them, or a sum of all
    errors, measures their sum, in which errors may cancel; and a mean makes the error of one element small.
    Each input has its own gradient: one may be large and right, another small and wrong.
    """
    _expect_verdicts(
        check_gradient,
        "x = torch.linspace(0.5, 1, 40, dtype=torch.float64).view(8, 5).t()",
        right=[("x ** 2", "2 * x * grad"), ("x.sum(0)", "grad.expand(5, 8)")],
        wrong=[
            ("x ** 2", "2 * x * grad + 0.02 * (x == 1.0) * grad"),
            ("x ** 2", "2 * x * grad + 0.02 * (x == 0.5) * grad"),
            ("3 * x", "3 * grad + 0.1 * (x == 0.5) - 0.1 * (x == 1.0)"),
        ],
    )
    _expect_verdicts(
        check_gradient,
        "x = torch.linspace(0.5, 1, 24, dtype=torch.float64).view(2, 3, 1, 2, 2).transpose(0, 4)",
        right=[("x.cumsum(1).mean(4)", "grad.flip(1).cumsum(1).flip(1).unsqueeze(4).expand_as(x) / 2")],
        wrong=[("x.cumsum(1).mean(4)", "grad.cumsum(1).unsqueeze(4).expand_as(x) / 2")],
    )
    one_of_many = [("3 * x", "3 * grad + 0.05 * (x == 1.0)")]
    _expect_verdicts(check_gradient, "x = torch.linspace(0.5, 1, 150).double()", wrong=one_of_many)
    _expect_verdicts(
        check_gradient,
        "x = torch.tensor([[1.0, 2.0], [0.5, -1.0]]).double()\n"
        "y = torch.tensor([[0.3, -0.2], [2.0, 1.0]]).double()",
        right=[("x @ y", "grad @ y.t()", "x.t() @ grad"), ("1000 * x + y", "1000 * grad", "grad")],
        wrong=[
            ("x @ y", "grad @ y", "x.t() @ grad"),
            ("x @ y", "grad @ y.t()", "x @ grad"),
            ("1000 * x + y", "1000 * grad", "1.02 * grad"),
        ],
    )


@exercise.check
def whatever_arrives(check_gradient):
    """A backward that is right for some gradients only is found

    A right backward is a linear map of what arrives. With weights of 1, `grad`, a clamped `grad` and none at
    all look the same; with positive weights, `grad` and `grad.abs()`; with equal weights you can't see their
    order.
    """
    _expect_verdicts(
        check_gradient,
        "x = torch.linspace(-2, 2, 16, dtype=torch.float64)",
        right=[("x ** 2", "2 * x * grad"), ("x.cumsum(0)", "grad.flip(0).cumsum(0).flip(0)")],
        wrong=[
            ("x ** 2", "2 * x"),
            ("x ** 2", "2 * x * grad.abs()"),
            ("x ** 2", "-2 * x * grad.abs()"),
            ("x ** 2", "2 * x * grad.clamp(-1, 1)"),
            ("3 * x", "3 * torch.where(grad.abs() < 1, grad.sign(), grad)"),
            ("3 * x", "3 * grad.mean() * torch.ones_like(x)"),
            ("x.cumsum(0)", "grad.cumsum(0)"),
        ],
    )


@exercise.check
def both_sides(check_gradient):
    """Right ones pass where the function bends

    A difference on one side is off by about half the step times the curvature. With both sides that part
    cancels, and the rest grows with the square of the step; a step that is too large sees how the slope
    changes. Take each difference at the inputs themselves.
    """
    bends = [
        ("1e6 * x ** 2", "2e6 * x * grad"),
        ("1e6 * x.sum() ** 2", "2e6 * x.sum() * grad.expand(3)"),
    ]
    _expect_verdicts(
        check_gradient, "x = torch.tensor([1e-6, -2e-6, 4e-6], dtype=torch.float64)", right=bends
    )
    steep = [("torch.sin(300 * x)", "300 * torch.cos(300 * x) * grad")]
    _expect_verdicts(check_gradient, "x = torch.tensor([0.37, -0.82], dtype=torch.float64)", right=steep)


@exercise.check
def any_size(check_gradient):
    """Right and wrong are told apart where values are small, and where they are large

    Rounding grows with the size of the values. A fixed tolerance is wide for small gradients and narrow for
    large ones; a relative one for each element is too narrow where the slope is nearly 0.
    """
    _expect_verdicts(
        check_gradient,
        "x = torch.tensor([0.37, -0.82, 1.5707963], dtype=torch.float64)",
        right=[
            ("1000 + x", "grad"),
            ("1e6 * torch.sin(x).sum()", "1e6 * torch.cos(x) * grad"),
            ("1e-6 * torch.tanh(x)", "1e-6 * (1 - torch.tanh(x) ** 2) * grad"),
        ],
        wrong=[
            ("1000 + x", "1.002 * grad"),
            ("1e-6 * torch.tanh(x)", "1e-6 * (1 - torch.tanh(x)) * grad"),
        ],
    )
    at_the_bottom = [("x ** 2", "2 * x * grad")]
    _expect_verdicts(check_gradient, "x = torch.zeros(3, dtype=torch.float64)", right=at_the_bottom)


@exercise.check
def single_precision(check_gradient):
    """Inputs of single precision will do

    In float32 two values that lie close together share most of their seven digits, so few digits of the slope
    are left, and fewer if the values are large. `double()` gives sixteen.
    """
    _expect_verdicts(
        check_gradient,
        "x = torch.tensor([0.37, -0.82, 1.3])",
        right=[("torch.exp(x) + 500", "torch.exp(x) * grad")],
        wrong=[("torch.exp(x)", "1.002 * torch.exp(x) * grad")],
    )


@exercise.check(
    given="""
        x = torch.tensor([0.5, -1.0], dtype=torch.float64{})
        x.grad = torch.ones(2, dtype=torch.float64) if x.requires_grad else None
        seen = []
        def function(z):
            seen.append(x.tolist())
            return z ** 2
    """.format,
    cases={"`x` that requires no gradient": "", "`x` that requires one": ", requires_grad=True"},
)
def inputs_left_alone(t):
    """The inputs stay unchanged, also while the check runs

    `double()` and `detach()` of a float64 tensor share its memory: if you write a step there, you change the
    caller's tensor. `clone()` makes a new one. `backward()` leaves a `.grad` behind, `torch.autograd.grad`
    doesn't.
    """
    with expect.left_alone(t.x, what="`x`", gradients=True):
        t.run("check_gradient(function, x)")
    changed = [one for one in t.seen if one != [0.5, -1.0]]
    told = f"in a call of `function`, `x` was {changed[0] if changed else t.seen}"
    expect.true(not changed, told, "expected: as before")
