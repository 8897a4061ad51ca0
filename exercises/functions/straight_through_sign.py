"""A sign that can be trained

`StraightThroughSign.apply(x)` gives -1 for each negative element of `x` and 1 for all others: there is no
third value, and 0 and `-0.` become 1. The result has the dtype of `x`.

The sign has the slope 0. So backward takes it for `x` clipped to [-1, 1], whose slope is 1 there and 0
elsewhere:

- where an element of `x` lies between -1 and 1, **both ends included**, what arrives is handed back as it is;
- elsewhere 0 is handed back, *whatever* arrives: large or small, of either sign, `inf` or `nan`;
- neither `x` nor what arrives is written to.

`StraightThroughSign.apply(torch.tensor([-3., 0., 0.5]))` → `[-1., 1., 1.]`; where `[5., 5., 5.]` arrives,
`[0., 5., 5.]` is handed back.
"""

import torch
from torch import Tensor

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import derivatives

exercise = Exercise(
    minutes=8,
    hints=[
        "What does `torch.sign` return for 0? A comparison has two outcomes only; choose between two numbers "
        "with it, and look at the dtype of what comes out.",
        "The mask asks how large the *input* is. Neither the result helps (its elements all have size 1) nor "
        "what arrives, which may be as large as it likes.",
        "A product with a mask is 0 where the mask is 0, but for two numbers: 0 times `inf`, and 0 times "
        "`nan`. `torch.where` and `masked_fill` choose, and do not multiply.",
    ],
)


@exercise.starter
class StraightThroughSign(torch.autograd.Function):
    """x -> -1 or 1"""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        raise NotImplementedError


_CALL = "StraightThroughSign.apply(x)"


def _expect_gradient(StraightThroughSign, device, xs, gs, wanted):
    setup = f"""
        x = torch.tensor([{xs}], device=device, requires_grad=True)
        g = torch.tensor([{gs}], device=device)
    """
    t = expect.given(setup, StraightThroughSign=StraightThroughSign, device=device)
    found = t.call(f"torch.autograd.grad({_CALL}, x, g)[0]")
    expect.equal(found, torch.tensor(wanted, device=device), what="the gradient")


@exercise.check
def values(StraightThroughSign, device):
    """Negative elements become -1, positive ones 1, in the dtype of `x`

    A comparison gives booleans. `torch.where` makes numbers of them: integers of two integers, and of two
    floats the default dtype, whatever `x` is. A tensor of integers cannot require a gradient, and is left out
    of the graph.
    """
    with Rows() as rows:
        for dtype in ("float32", "bfloat16"):
            with rows.of(f"`{dtype}`"):
                numbers = "[-float('inf'), -30., -1., -0.25, -1e-30, 1e-30, 0.5, 1., 7., float('inf')]"
                setup = f"x = torch.tensor({numbers}, dtype=torch.{dtype}, device=device, requires_grad=True)"
                t = expect.given(setup, StraightThroughSign=StraightThroughSign, device=device)
                wanted = torch.tensor([-1.0] * 5 + [1.0] * 5).to(t.x)
                result = t.call(_CALL)
                expect.equal(result, wanted)
                expect.in_graph(result, of="`x`")


@exercise.check
def no_third_value(StraightThroughSign, device):
    """0 becomes 1, and so does -0

    `torch.sign(0.)` is 0. `0.` and `-0.` are equal, so no comparison tells them apart; `torch.copysign` and
    `1 / x` do.
    """
    setup = "x = torch.tensor([0., -0., 0.5, -0.5], device=device)"
    t = expect.given(setup, StraightThroughSign=StraightThroughSign, device=device)
    wanted = torch.tensor([1.0, 1, 1, -1], device=device)
    expect.equal(t.call(_CALL), wanted)


@exercise.check
def passes_inside(StraightThroughSign, device):
    """Between -1 and 1 what arrives passes as it is, whatever its size

    Clipping to [-1, 1] has the slope 1 there, and what arrives is multiplied by it. Neither the result, which
    is -1 or 1, nor the size of what arrives says where the input was.
    """
    inside = "-0.9, -0.2, 0., 0.1, 0.8"
    _expect_gradient(
        StraightThroughSign, device, inside, "5., -7., 0.25, 3., -0.5", [5.0, -7.0, 0.25, 3.0, -0.5]
    )


@exercise.check
def stops_outside(StraightThroughSign, device):
    """Beyond -1 and 1 nothing passes

    Out there the clipped value stays what it is when `x` is moved a little: its slope is 0. Where `x` lies
    decides that alone, and not the sign or the size of what arrives: what would pull `x` back is stopped too.
    """
    outside = "-3., -1.05, 0.4, 1.05, 2."
    _expect_gradient(
        StraightThroughSign, device, outside, "2., 0.5, 0.25, 0.5, 3.", [0.0, 0.0, 0.25, 0.0, 0.0]
    )
    _expect_gradient(
        StraightThroughSign, device, outside, "-2., -0.5, -0.25, -0.5, -3.", [0.0, 0.0, -0.25, 0.0, 0.0]
    )


@exercise.check
def passes_at_the_ends(StraightThroughSign, device):
    """At -1 and at 1 themselves it passes

    Weights that are clipped to [-1, 1] after each step often lie exactly there; with the ends left out they
    would never move again. `clamp` and `hardtanh` of torch's differ here: the first passes at its bounds, the
    second does not.
    """
    _expect_gradient(StraightThroughSign, device, "-1., 1.", "0.5, -0.25", [0.5, -0.25])


@exercise.check
def stops_all(StraightThroughSign, device):
    """Where the gradient is stopped, 0 is handed back also for `inf` and `nan`

    0 times `inf` is `nan`, and so is 0 times `nan`: a mask that is multiplied lets both through. One such
    element far outside would spoil all that it is summed into. `torch.where` chooses.
    """
    _expect_gradient(
        StraightThroughSign,
        device,
        "-2., 0.5, 3., 4.",
        "float('inf'), 1., -float('inf'), float('nan')",
        [0.0, 1.0, 0.0, 0.0],
    )


@exercise.check
def left_alone(StraightThroughSign, device):
    """`x` and what arrives stay what they were

    What arrives in backward may be on its way to other nodes too, or be the tensor of whoever called. A write
    to it, through an index or by `mul_`, is a write for all of them. `torch.where` and `masked_fill` make a
    new tensor.
    """
    matrix = "torch.tensor([[-3., -0.5, 0.], [0.7, 3., -0.]], device=device)"
    with Rows() as rows:
        for label, code in {"a matrix": matrix, "a transposed one": f"{matrix}.t()"}.items():
            with rows.of(label):
                setup = f"x = {code}.requires_grad_()"
                derivatives.leaves_alone(StraightThroughSign, _CALL, setup, device)
