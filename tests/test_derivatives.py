"""What is checked of every function with a backward of its own: right ones pass, wrong ones are told."""

import pytest
import torch
from torch.autograd import Function

from course_utils import derivatives, evidence, expect

CPU = torch.device("cpu")
X = derivatives.x_line([-1.0, 0.5, 2.0], CPU)
CALL = "Square.apply(x)"


class Right(Function):
    """x -> x², and what the wrong ones start from"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


class WritesToTheGradient(Right):
    @staticmethod
    def backward(ctx, grad):
        return grad.mul_(2 * ctx.saved_tensors[0])


class WritesToX(Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return x.detach().mul_(2) * grad


class Contiguous(Right):
    @staticmethod
    def forward(ctx, x):
        return Right.forward(ctx, x).contiguous()


class ContiguousGradient(Right):
    @staticmethod
    def backward(ctx, grad):
        return Right.backward(ctx, grad).contiguous()


class WrongFactor(Right):
    @staticmethod
    def backward(ctx, grad):
        return 3 * ctx.saved_tensors[0] * grad


class Detached(Right):
    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0].detach() * grad


class WithoutAGraph(Right):
    @staticmethod
    def backward(ctx, grad):
        return (2 * ctx.saved_tensors[0] * grad).detach()


class ForOnes(Right):
    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad.sign()


class SavesTwo(Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x + x)
        return x * x


class Hides(Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.twice = x + x
        return x * x


class Hoards(Right):
    kept = []

    @staticmethod
    def forward(ctx, x):
        Hoards.kept.append(x + x)
        ctx.save_for_backward(x)
        return x * x


class OnCtx(Right):
    """Nothing counts the versions of what is kept like this"""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach()
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.x * grad


class OfTheResult(Function):
    """x -> exp(x), from the result, which is kept without its version"""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.y = y.detach()
        return y

    @staticmethod
    def backward(ctx, grad):
        return ctx.y * grad


class Copies(OnCtx):
    """A copy that nobody else can change"""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach().clone()
        return x * x


class CountsItself(Right):
    """Kept without its version, which backward looks at itself"""

    @staticmethod
    def forward(ctx, x):
        ctx.x, ctx.version = x.detach(), x._version
        return x * x

    @staticmethod
    def backward(ctx, grad):
        assert ctx.x._version == ctx.version, "x has another version now"
        return 2 * ctx.x * grad


class LeftToAutograd(Right):
    @staticmethod
    def apply(x):
        return x * x


class Raises(Right):
    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("not today")


@pytest.fixture(autouse=True)
def nothing_given():
    """An example that a test gives belongs to that test."""
    with expect.situation():
        yield


def leaves_alone(square):
    derivatives.leaves_alone(square, CALL, X)


def keeps_strides(square):
    setup = derivatives.transposed_x([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], CPU)
    derivatives.keeps_strides(square, CALL, setup)


def agrees_with_differences(square):
    derivatives.agrees_with_differences(square, "Square.apply")


def second(square):
    x, found = derivatives.second(square, CALL, X)
    expect.equal(found, torch.full_like(x, 2.0), what="the second derivative")


def backward_can_be_differentiated(square):
    derivatives.backward_can_be_differentiated(square, CALL, X, [-2.0, 1.0, 4.0])


def keeps_no_more_than_x(square):
    derivatives.keeps_no_more_than_x(square, "Square.apply", X)


def has_a_node_of_its_own(square):
    derivatives.has_a_node_of_its_own(square, CALL, X)


def ignores_changes(square):
    derivatives.ignores_changes(square, "Square.apply(a)", X)


CHECKS = [
    leaves_alone,
    keeps_strides,
    agrees_with_differences,
    second,
    backward_can_be_differentiated,
    keeps_no_more_than_x,
    has_a_node_of_its_own,
    ignores_changes,
]


@pytest.mark.parametrize(
    ("check", "square"),
    [
        *((check, Right) for check in CHECKS),
        (ignores_changes, Copies),
        (ignores_changes, CountsItself),
        (keeps_no_more_than_x, Copies),
        (leaves_alone, WrongFactor),
    ],
)
def test_right_ones_pass_and_leave_evidence(check, square):
    with evidence.recording() as seen:
        check(square)
    assert seen


def test_lines_that_make_x():
    assert X == "x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)"
    line = derivatives.x_line([1.0], torch.device("meta"), dtype=torch.float16)
    assert line == "x = torch.tensor([1.0], device='meta', dtype=torch.float16, requires_grad=True)"
    t = expect.given(derivatives.transposed_x([[1.0, 2.0, 3.0]], CPU))
    assert t.x.shape == (3, 1) and t.x.requires_grad and t.x.grad_fn is not None


def test_dtypes_that_a_device_has():
    halves = [torch.float16, torch.bfloat16]
    assert derivatives.other_dtypes(CPU) == [*halves, torch.float64]
    assert derivatives.other_dtypes(torch.device("mps")) == halves


WRITTEN = "was changed: element `[0]` was"
SLOPE = "torch.autograd.grad(Square.apply(x), x, g, create_graph=True)[0]"


@pytest.mark.parametrize(
    ("check", "square", "said"),
    [
        (leaves_alone, WritesToTheGradient, f"the incoming gradient `g` {WRITTEN} 1 and is -2 now"),
        (leaves_alone, WritesToX, f"`x` {WRITTEN} -1 and is -2 now"),
        (keeps_strides, Contiguous, "the strides of the result are (2, 1), expected (1, 3)"),
        (keeps_strides, ContiguousGradient, "the strides of the gradient are (2, 1), expected (1, 3)"),
        (agrees_with_differences, WrongFactor, "`torch.autograd.gradcheck` does not agree"),
        (agrees_with_differences, Detached, "`torch.autograd.gradgradcheck` does not agree"),
        (second, WithoutAGraph, "`g` requires a gradient and the gradient does not"),
        (second, Detached, "no graph leads from the gradient to `x`: `x.grad` is None"),
        (second, WrongFactor, "element `[0]` of the second derivative is 3, expected 2"),
        (backward_can_be_differentiated, ForOnes, "element `[0]` of `h.grad`, after"),
        (keeps_no_more_than_x, SavesTwo, "kept for backward: 24 bytes, expected at most 12 bytes"),
        (keeps_no_more_than_x, Hides, "still there beside `x` and `z`: 24 bytes, expected at most 12 bytes"),
        (keeps_no_more_than_x, Hoards, "still there beside `x` and `z`: 24 bytes"),
        (has_a_node_of_its_own, LeftToAutograd, "is `MulBackward0`, which does not call your `backward`"),
        (ignores_changes, OnCtx, "it was computed from the changed `a`"),
        (ignores_changes, OfTheResult, "it was computed from the changed `y`"),
    ],
)
def test_wrong_ones_are_told(check, square, said):
    with pytest.raises(expect.Mismatch) as caught:
        check(square)
    example, *lines = caught.value.lines
    assert example.startswith("for `") and "Square.apply" in example
    assert said in lines[0]


def test_what_is_kept_when_all_is_gone_is_told():
    class Hoards(Right):
        kept = []

        @staticmethod
        def forward(ctx, x):
            Hoards.kept.append(x[:1] + 1)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    with pytest.raises(expect.Mismatch, match="beside `x`: 4 bytes, expected at most 0 bytes") as caught:
        keeps_no_more_than_x(Hoards)
    assert caught.value.lines[0] == f"for `{X}`, `z = Square.apply(x * 1) * 1`, `del z`"


def test_messages_show_where_the_second_derivative_comes_from():
    with pytest.raises(expect.Mismatch) as caught:
        second(WrongFactor)
    lines = X, "g = torch.ones_like(x, requires_grad=True)", f"slope = {SLOPE}", "slope.sum().backward()"
    assert caught.value.lines[0] == "for " + ", ".join(f"`{line}`" for line in lines)


@pytest.mark.parametrize("check", [leaves_alone, second, ignores_changes])
def test_what_the_answer_raises_goes_through(check):
    with pytest.raises(RuntimeError, match="not today"):
        check(Raises)
