"""A gated linear unit

`GatedLinearUnit(inputs, outputs, bias=True)` is an `nn.Module` that maps `(..., inputs)` to `(..., outputs)`,
for any number of leading dimensions. It makes twice `outputs` numbers of the input: the first half are
values, the second half gates. The result is each value times the sigmoid of its gate.

- All its parameters are those of one `nn.Linear`, under the name `linear`; values and gates come from one
  matrix product.
- It works with the parameters that `linear` has when it is called, after loading and moving too.
- `F.glu` and `nn.GLU` may not be used.

`GatedLinearUnit(4, 2)(torch.randn(5, 3, 4))` has the shape `(5, 3, 2)`; its `state_dict()` has the keys
`linear.weight`, of shape `(4, 4)`, and `linear.bias`
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=10,
    hints=[
        "A module finds a layer that is assigned to an attribute of `self`, once `super().__init__()` has "
        "run. Which attribute, and how many outputs does the layer need?",
        "Two halves of the last dimension: which function cuts a tensor into equal parts, and which of its "
        "dimensions is the last, whatever their number?",
        "`chunk(2, dim=-1)` gives two views of what the layer returned, values first. Cut the output and not "
        "the weights: a piece of the weights that is stored in `__init__` stays what it was when others are "
        "loaded.",
    ],
)


@exercise.starter
class GatedLinearUnit(nn.Module):
    """(..., inputs) -> (..., outputs)"""

    def __init__(self, inputs: int, outputs: int, bias: bool = True):
        super().__init__()
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def _wanted(unit, x):
    """By torch's own functions, from the parameters that the unit has."""
    layer = getattr(unit, "linear", None)
    expect.true(isinstance(layer, nn.Linear), f"`unit.linear` is {expect.show(layer)}, expected an nn.Linear")
    return F.glu(F.linear(x, layer.weight, layer.bias), dim=-1)


@exercise.check
def registered(GatedLinearUnit):
    """The parameters are those of `linear`, and each unit has its own

    `nn.Module` registers a Parameter or a Module when it is assigned to an attribute of `self`; what is in a
    plain list, or made anew in `forward`, it doesn't see. A layer that is made in the body of the class is
    the same one for all units.
    """
    with Rows() as rows:
        for bias in (True, False):
            with rows.of(f"`bias={bias}`"):
                t = expect.given(
                    f"unit, other = (GatedLinearUnit(4, 3, bias={bias}) for _ in range(2))",
                    GatedLinearUnit=GatedLinearUnit,
                )
                shapes = {"linear.weight": (6, 4)} | ({"linear.bias": (6,)} if bias else {})
                found = t.call("{name: tuple(t.shape) for name, t in unit.state_dict().items()}")
                expect.equal(found, shapes, what="`unit.state_dict()`, by shape,")
                found = t.call("[name for name, _ in unit.named_parameters()]")
                expect.equal(found, [*shapes], what="the list of parameters")
                shared = {*t.unit.parameters()} & {*t.other.parameters()}
                expect.true(not shared, "`unit` and `other` share parameters", "expected: each has its own")


@exercise.check
def values_then_gates(GatedLinearUnit, device):
    """The first half are values, the second half gates

    Weights are learned for one order: a checkpoint from a unit with the other order loads without a word and
    computes something else. The gate goes through a sigmoid, between 0 and 1; the value stays as it is.
    """
    with Rows() as rows:
        for bias in (True, False):
            with rows.of(f"`bias={bias}`"):
                setup = f"""
                    torch.manual_seed(0)
                    unit = GatedLinearUnit(4, 3, bias={bias}).to(device)
                    x = torch.randn(5, 4).to(device)
                """
                t = expect.given(setup, GatedLinearUnit=GatedLinearUnit, device=device)
                wanted = _wanted(t.unit, t.x)
                layer = t.unit.linear
                value, gate = F.linear(t.x, layer.weight, layer.bias).chunk(2, dim=-1)
                like = {"gate times the sigmoid of the value": gate * value.sigmoid()}
                expect.equal(t.call("unit(x)"), wanted, like=like)


@exercise.check
def leading_dimensions(GatedLinearUnit):
    """Any number of leading dimensions

    A linear layer works on the last dimension, and all others are a batch to it. `dim=1` is the last
    dimension of a matrix and no other tensor's; `dim=-1` is the last of all. Nor need the rows of `x` lie one
    after the other in storage, as `view` wants them: `nn.Linear` takes any strides.
    """
    with Rows() as rows:
        for label, x in {
            "a vector": "torch.randn(4)",
            "three dimensions": "torch.randn(5, 2, 4)",
            "four dimensions": "torch.randn(2, 4, 6, 4)",
            "a transposed `x`": "torch.randn(4, 6, 2).transpose(0, 2)",
        }.items():
            with rows.of(label):
                setup = f"torch.manual_seed(0)\nunit = GatedLinearUnit(4, 2)\nx = {x}"
                t = expect.given(setup, GatedLinearUnit=GatedLinearUnit)
                wanted = _wanted(t.unit, t.x)
                expect.equal(t.call("unit(x)"), wanted)


@exercise.check
def present_parameters(GatedLinearUnit):
    """What is loaded, moved or replaced is used by the next call

    `load_state_dict` writes into the parameters; with `assign=True` it replaces them, and a list of them that
    was made in `__init__` goes on holding the old ones. `.double()` gives them other data, and a view of the
    weights goes on reading the old.
    """
    others = "{name: torch.randn_like(p) for name, p in unit.state_dict().items()}"
    with Rows() as rows:
        for label, line in {
            "load_state_dict": f"unit.load_state_dict({others})",
            "load_state_dict with assign": f"unit.load_state_dict({others}, assign=True)",
            "double": "unit, x = unit.double(), x.double()",
            "another layer": "unit.linear = nn.Linear(4, 6)",
        }.items():
            with rows.of(label):
                setup = "torch.manual_seed(0)\nunit, x = GatedLinearUnit(4, 3), torch.randn(5, 4)\nunit(x)\n"
                t = expect.given(setup + line, GatedLinearUnit=GatedLinearUnit)
                wanted = _wanted(t.unit, t.x)
                expect.equal(t.call("unit(x)"), wanted)


@exercise.check
def gradients(GatedLinearUnit):
    """Gradients reach the input, the values and the gates

    The derivative of a product has two terms: the gate scales what goes back to the value, and the value
    scales what goes back to the gate. Where one factor leaves the graph, its half of `linear` never learns.
    """
    setup = """
        torch.manual_seed(0)
        unit = GatedLinearUnit(4, 3)
        x = torch.randn(2, 5, 4, requires_grad=True)
    """
    t = expect.given(setup, GatedLinearUnit=GatedLinearUnit)
    result = _wanted(t.unit, t.x)
    names = ["x", "unit.linear.weight", "unit.linear.bias"]
    wanted = torch.autograd.grad(result.square().sum(), [t.x, *t.unit.parameters()])
    t.run("y = unit(x)")
    expect.in_graph(t.y, what="`y`", of="`x`")
    t.run("y.square().sum().backward()")
    for name, gradient in zip(names, wanted, strict=True):
        expect.equal(t.call(f"{name}.grad"), gradient, what=f"the gradient of `{name}`")


@exercise.check
def one_product(GatedLinearUnit):
    """One matrix product, and no `glu` of torch's

    One product of twice the width reads the input once. `chunk`, `split` and slices give its halves as views.
    To multiply with each half of the weights is the same work in two products. `F.glu` is what you build
    here.
    """
    with Rows() as rows:
        for label, x in {"a matrix": "torch.randn(5, 4)", "three dimensions": "torch.randn(2, 5, 4)"}.items():
            with rows.of(label):
                setup = f"unit, x = GatedLinearUnit(4, 3), {x}"
                t = expect.given(setup, GatedLinearUnit=GatedLinearUnit)
                t.call("unit(x)")
                with measure.operators() as ran:
                    t.call("unit(x)")
                expect.equal(ran.matmuls(), 1, what="the number of matrix products in `unit(x)`")
                expect.at_most(ran.count("aten.glu"), 0, "calls of torch's `glu` in `unit(x)`")
