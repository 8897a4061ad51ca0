"""Repair: a gate that is written over

The function below gates the elements of `x`: each is multiplied by a sigmoid of what the whole row says. Its
values are right. Its backward raises: *one of the variables needed for gradient computation has been modified
by an inplace operation*. Mend it.

The gradients of `x`, `weight` and `bias` are to be those of

    x * torch.sigmoid(x @ weight + bias)

and no more is to be kept for backward than that needs: `x`, which is there anyway, one tensor of the same
size, and the parameters. Nothing is copied, and `x`, `weight` and `bias` stay as they are. Three operations
here work in place; not all of them do harm. Any operator of torch's is welcome."""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=10,
    hints=[
        "Make an `x` that requires a gradient, call the function, and run backward. The message names the "
        "operation whose saved tensor was changed: which line made that tensor, and which wrote into it "
        "later?",
        "An operation is free to overwrite what nobody has kept. Adding keeps nothing. A sigmoid keeps its "
        "own result, since its derivative is `s * (1 - s)`. A product keeps both factors.",
        "Only one of the three lines overwrites something that an earlier one has kept. Let that line make "
        "a new tensor; a clone before it would be kept in addition to what is kept already.",
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


def _given(repair_inplace_gate, device, more=""):
    place = "" if device.type == "cpu" else f", device='{device.type}'"
    setup = f"{_SETUP}\n{more}".replace(", device=device", place)
    return expect.given(setup, repair_inplace_gate=repair_inplace_gate)


def _oracle(x, weight, bias):
    """The same by another operator of torch's: a gated linear unit halves its input, and gates one half by
    the other."""
    return F.glu(torch.cat([x, F.linear(x, weight.t(), bias)], dim=-1), dim=-1)


def _gradients(output, inputs, incoming):
    """What backward gives; where it raises because of a write, that is told with the words that matter."""
    expect.in_graph(output, of="`x`")
    expect.equal(tuple(output.shape), tuple(incoming.shape), what="the shape of the result")
    try:
        return torch.autograd.grad((output * incoming).sum(), inputs, allow_unused=True)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        evidence.record("backward", "modified by an inplace operation")
        said = str(error).partition("operation: ")[2].partition("; expected")[0]
        raise expect.Mismatch(
            "backward raises: a tensor that it needs was modified by an inplace operation",
            f"it is `{said}`",
        ) from None


def _expect_gradients(t, names, incoming):
    inputs = [getattr(t, name) for name in names]
    wanted = torch.autograd.grad((_oracle(t.x, t.weight, t.bias) * incoming).sum(), inputs)
    found = _gradients(t.call(_CALL), inputs, incoming)
    for name, came, right in zip(names, found, wanted, strict=True):
        evidence.record("reached", came is not None)
        expect.true(came is not None, f"no gradient reaches `{name}`", "expected: one does")
        expect.equal(came, right, what=f"the gradient of `{name}`")


@exercise.check
def right_values(repair_inplace_gate, device):
    """The values are those of a gated `x`"""
    for more in ("", "x = x[:1]", "x = x.detach().t()[:, :1].expand(3, 3)"):
        t = _given(repair_inplace_gate, device, more)
        expect.equal(t.call(_CALL), _oracle(t.x, t.weight, t.bias))
    if device.type != "mps":  # which has no float64
        double = "x, weight, bias = x.double(), weight.double(), bias.double()"
        t = _given(repair_inplace_gate, device, double)
        expect.equal(t.call(_CALL), _oracle(t.x, t.weight, t.bias), rtol=1e-10, atol=1e-10)


@exercise.check
def gradient_of_x(repair_inplace_gate, device):
    """The gradient of `x`, which has a part in both factors"""
    incoming = torch.tensor([[1.0, 2.0, -1.0], [0.5, 1.0, 3.0]], device=device)
    _expect_gradients(_given(repair_inplace_gate, device), ["x"], incoming)


@exercise.check
def gradient_of_the_gate(repair_inplace_gate, device):
    """The gradients of `weight` and `bias`"""
    incoming = torch.tensor([[1.0, 2.0, -1.0], [0.5, 1.0, 3.0]], device=device)
    _expect_gradients(_given(repair_inplace_gate, device), ["weight", "bias"], incoming)
    t = _given(repair_inplace_gate, device, "x = x.detach()")
    _expect_gradients(t, ["weight", "bias"], incoming)


@exercise.check
def inputs_left_alone(repair_inplace_gate, device):
    """`x`, `weight` and `bias` stay as they are, inside a graph too"""
    for more in ("", "x = x * 1", "x, weight, bias = x.detach(), weight.detach(), bias.detach()"):
        t = _given(repair_inplace_gate, device, more)
        with (
            expect.left_alone(t.x, what="`x`"),
            expect.left_alone(t.weight, what="`weight`"),
            expect.left_alone(t.bias, what="`bias`"),
        ):
            expect.a_tensor(t.call(_CALL))


_TRANSPOSED = "x = x.t().contiguous().t()"


@exercise.check
def bytes_kept(repair_inplace_gate, device):
    """Besides `x` and the parameters, one tensor of its size is kept"""
    for more in ("", "x = x.detach()", _TRANSPOSED):
        t = _given(repair_inplace_gate, device, more)
        with evidence.silent():  # what counts is that it is too much
            kept = measure.saved_bytes(t.call, _CALL, exclude=[t.x, t.weight, t.bias]).total
        expect.true(
            kept <= t.x.nbytes,
            f"kept for backward besides `x` and the parameters: {kept} bytes, expected at most {t.x.nbytes}",
        )


@exercise.check
def no_copies(repair_inplace_gate, device):
    """Nothing is copied"""
    for more in ("", _TRANSPOSED):
        t = _given(repair_inplace_gate, device, more)
        with measure.operators() as ran:
            expect.a_tensor(t.call(_CALL))
        with evidence.silent():
            copies = ran.copies
        expect.true(copies == 0, f"operators that do nothing but copy: {copies}, expected none")


# --- the mistakes -----------------------------------------------------------------------------------------


def _gate(x, weight, bias):
    return torch.sigmoid(x @ weight + bias)


@exercise.mistake
def clones_the_gate(x, weight, bias):
    """Your gradients are right, but something is copied for them that they do not need a copy of: by `clone`,
    or by an operator that copies on its way, such as `cat`. A sigmoid keeps its result, and a product that
    makes a new tensor keeps the same one and `x` itself."""
    gate = _gate(x, weight, bias).clone()
    gate *= x
    return gate


@clones_the_gate.variant
def clones_x(x, weight, bias):
    gated = x.clone()
    gated *= torch.sigmoid(torch.addmm(bias, x, weight))
    return gated


@clones_the_gate.form
def clones_the_result(x, weight, bias):
    return (x * _gate(x, weight, bias)).clone()


@clones_the_gate.form
def makes_x_contiguous(x, weight, bias):
    x = x.contiguous()
    return x * _gate(x, weight, bias)


@exercise.mistake
def data_hides_the_write(x, weight, bias):
    """The write is hidden from autograd, as by `.data`: backward does not raise any more, and is wrong
    without notice. The sigmoid finds the product where it has kept its result, and `x` as a factor is not in
    the graph at all."""
    gate = _gate(x, weight, bias)
    gate.data.mul_(x.detach())
    return gate


@data_hides_the_write.form
def sets_the_data(x, weight, bias):
    gate = _gate(x, weight, bias)
    gate.data *= x
    return gate


@data_hides_the_write.variant
def writes_into_data(x, weight, bias):
    gate = x @ weight
    gate += bias
    gate.sigmoid_()
    gate.data.mul_(x.data)
    return gate


@exercise.mistake
def still_written_over(x, weight, bias):
    """The result of the sigmoid is still written over, by the product. What happens before the sigmoid does
    no harm in place, since nothing of it is kept; `no_grad` and `detach` do not hide a write, since the
    version is counted there as well."""
    gate = _gate(x, weight, bias)
    gate *= x
    return gate


@still_written_over.variant
def only_the_sigmoid_out_of_place(x, weight, bias):
    gate = x @ weight
    gate += bias
    gate = gate.sigmoid()
    gate.mul_(x)
    return gate


@still_written_over.form
def in_no_grad(x, weight, bias):
    gate = _gate(x, weight, bias)
    with torch.no_grad():
        gate *= x
    return gate


@still_written_over.variant
def through_a_detached_one(x, weight, bias):
    gate = _gate(x, weight, bias)
    gate.detach().mul_(x.detach())
    return gate


@still_written_over.variant
def a_clone_of_x(x, weight, bias):
    gate = x @ weight
    gate += bias
    gate.sigmoid_()
    gate *= x.clone()
    return gate


@exercise.mistake
def gate_is_a_constant(x, weight, bias):
    """Nothing is written over any more, and the gate has left the graph: it counts as a constant, so `weight`
    and `bias` get no gradient, and `x` only a part of its own."""
    return x * _gate(x, weight, bias).detach()


@gate_is_a_constant.variant
def gate_in_no_grad(x, weight, bias):
    with torch.no_grad():
        gate = x @ weight
        gate += bias
        gate.sigmoid_()
    return gate * x


@exercise.mistake
def x_is_a_constant(x, weight, bias):
    """The gradient that goes to `x` straight from the product is missing, since `x` counts as a constant
    there. The one that comes back through the gate is right."""
    return _gate(x, weight, bias) * x.detach()


@x_is_a_constant.variant
def data_of_x(x, weight, bias):
    return torch.addmm(bias, x, weight).sigmoid() * x.data


@exercise.mistake
def gate_of_a_constant(x, weight, bias):
    """The gradient that goes to `x` through the gate is missing, since the gate was computed from a detached
    `x`. The one that goes there straight from the product is right."""
    return x * _gate(x.detach(), weight, bias)


@exercise.mistake
def bias_is_a_constant(x, weight, bias):
    """No gradient reaches `bias`, since it was added as a constant, by `.data` or `detach`. An addition keeps
    nothing for backward: it may be in place, inside the graph."""
    gate = x @ weight
    gate += bias.data
    return x * gate.sigmoid_()


@exercise.mistake
def leaves_the_graph(x, weight, bias):
    """The result has no graph, so backward does not raise: there is none. `no_grad` around the whole
    computation and a `detach` of its result leave nothing to differentiate."""
    with torch.no_grad():
        return x * _gate(x, weight, bias)


@leaves_the_graph.variant
def detaches_the_result(x, weight, bias):
    return (x * _gate(x, weight, bias)).detach()


@exercise.mistake
def writes_into_an_input(x, weight, bias):
    """Now it is one of the inputs that is written over: a tensor of the caller's. torch refuses it where that
    is a leaf that requires a gradient."""
    gate = _gate(x, weight, bias)
    x *= gate
    return x


@exercise.mistake
def forgets_the_bias(x, weight, bias):
    """The bias has no part in your gate."""
    return x * torch.sigmoid(x @ weight)


@exercise.mistake
def keeps_the_sum_too(x, weight, bias):
    """Your gradients are right, but more than one tensor of the size of `x` is kept for them, where the
    result of the sigmoid alone would do. Each operator keeps what it needs for its own step, also one that
    stands between: look for what is computed besides the sum, one sigmoid and one product with `x` itself."""
    return x / (1 + torch.exp(-(x @ weight + bias)))
