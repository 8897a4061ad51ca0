"""Repair: a gate that is written over

The function below multiplies `x` by a sigmoid of `x @ weight + bias`. Its values are right, but backward
raises: *one of the variables needed for gradient computation has been modified by an inplace operation*.
Repair it. `x`, `weight` and `bias` must get the gradients of

    x * torch.sigmoid(x @ weight + bias)

- Copy nothing, whatever the strides of `x` and `weight`.
- Besides `x` and the parameters, the graph keeps one tensor of the size of `x`.
- Leave `x`, `weight` and `bias` as they are.

Three operations here work in place. Not all of them do harm.

`repair_inplace_gate(torch.ones(1, 1), torch.zeros(1, 1), torch.zeros(1))` → `[[0.5]]`
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import graphs

exercise = Exercise(
    minutes=10,
    hints=[
        "Make an `x` that requires a gradient, call the function, and run backward. The message names the "
        "operation whose saved tensor was changed: which line made that tensor, and which wrote into it "
        "later?",
        "Here an operation may overwrite a tensor that no node has kept. Adding keeps no tensor. A sigmoid "
        "keeps its own result, since its derivative is `s * (1 - s)`. The product keeps both factors.",
        "Only one of the three lines overwrites something that an earlier one has kept. Let that line make "
        "a new tensor; a clone before it would be one more tensor to keep.",
    ],
)


@exercise.starter
def repair_inplace_gate(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(n, d), (d, d), (d,) -> (n, d)"""
    gate = x @ weight
    gate += bias
    gate.sigmoid_()
    gate *= x
    return gate


_SETUP = """x = torch.tensor([[1., -2., 0.5], [0., 3., -1.]], device=device, requires_grad=True)
weight = nn.Parameter(torch.tensor([[1., 0., -1.], [0.5, 2., 0.], [-0.5, 1., 1.]], device=device))
bias = nn.Parameter(torch.tensor([0., 0.5, -1.], device=device))"""
_CALL = "repair_inplace_gate(x, weight, bias)"
# What may be free in one layout is a copy in another.
_LAYOUTS = {
    "contiguous tensors": "",
    "a transposed `x`": "x = x.detach().t().contiguous().t().requires_grad_()",
    "an expanded `x`": "x = x.detach()[:1].expand(4, 3).requires_grad_()",
    "float64": "x, weight, bias = (t.detach().cpu().double().requires_grad_() for t in (x, weight, bias))",
    "a transposed `weight`": "weight = nn.Parameter(weight.detach().t())",
    "an `x` without a gradient": "x = x.detach()",
}


def _oracle(x, weight, bias):
    """The same by another operator of torch's: a gated linear unit halves its input, and gates one half by
    the other."""
    return F.glu(torch.cat([x, F.linear(x, weight.t(), bias)], dim=-1), dim=-1)


@exercise.check(
    given=f"{_SETUP}\nincoming = torch.tensor([[1., 2., -1.], [0.5, 1., 3.]], device=device)",
    cases={
        "`x`": ("", "x"),
        "`weight`": ("", "weight"),
        "`bias`": ("", "bias"),
        "`bias`, of zeros": ("bias = nn.Parameter(torch.zeros_like(bias))", "bias"),
    },
)
def gradients(t, device, name):
    """`x`, `weight` and `bias` get the gradients of the formula

    A sigmoid keeps its result and computes its derivative from it. The product keeps both factors. A counted
    write to one of them makes backward raise; one through `.data` isn't noticed. `detach`
    and `no_grad` leave something out of the graph, and then the gradient through it is missing.
    """
    tensor = getattr(t, name)
    wanted = torch.autograd.grad(_oracle(t.x, t.weight, t.bias), tensor, t.incoming)[0]
    with graphs.writes_told():
        t.run(f"y = {_CALL}")
        expect.in_graph(t.y, of=f"`{name}`")
        t.run("y.backward(incoming)")
    got = f"`{name}.grad` is None after backward"
    expect.true(tensor.grad is not None, got, "expected: a gradient")
    like = _parts(t, wanted) if name == "x" else {}
    expect.equal(tensor.grad, wanted, what=f"`{name}.grad` after backward", like=like)


def _parts(t, wanted):
    """The two parts of the gradient of `x`, each in words."""
    straight = t.incoming * torch.sigmoid(t.x @ t.weight + t.bias).detach()
    return {
        "only the part that goes straight through the product": straight,
        "only the part that goes through the gate": wanted - straight,
    }


@exercise.check(given=_SETUP, cases=_LAYOUTS)
def right_values(t, device):
    """The values stay those of a gated `x`

    The values were right before: a repair changes when memory is written to, not what is computed,
    and in which dtype.
    """
    expect.equal(t.call(_CALL), _oracle(t.x, t.weight, t.bias))


@exercise.check(
    given=_SETUP,
    cases=["x = x * 1", "x, weight, bias = x.detach(), weight.detach(), bias.detach()"],
)
def inputs_left_alone(t, device):
    """`x`, `weight` and `bias` stay as they are

    Writing into `x` instead of the gate moves the harm to the caller. Torch refuses it if `x` is a leaf that
    requires grad, but not if `x` was computed.
    """
    with (
        expect.left_alone(t.x, what="`x`"),
        expect.left_alone(t.weight, what="`weight`"),
        expect.left_alone(t.bias, what="`bias`"),
    ):
        expect.a_tensor(t.call(_CALL))


@exercise.check(given=_SETUP, cases=_LAYOUTS)
def no_copies(t, device):
    """Nothing is copied, whatever the strides

    `.contiguous()` and `reshape` are free in some layouts and copy in others. A recorded `mul_` clones the
    old value of its tensor if the other factor requires grad, since it is about to write over it.
    """
    with graphs.copies() as copied:
        expect.a_tensor(t.call(_CALL))
    said = copied and ", ".join(dict.fromkeys(copy.said for copy in copied))
    expect.true(not copied, said, "expected: no operator that only moves numbers elsewhere")


@exercise.check(deadline=30.0, given=_SETUP, cases=_LAYOUTS)
def bytes_kept(t, device):
    """Beside `x` and the parameters, one tensor of its size is kept

    The sigmoid keeps its result. A product that makes a new tensor keeps the same result, and `x`, which the
    caller holds: references, not copies. The result of an `exp` or of a clone is kept in addition.
    """
    kept = measure.saved_bytes(t.call, _CALL, exclude=[t.x, t.weight, t.bias]).total
    limit = t.x.numel() * t.x.element_size()
    expect.at_most(kept, limit, "kept for backward beside `x` and the parameters", unit="bytes")
