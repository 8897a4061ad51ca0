"""A gated linear unit

`GatedLinearUnit(inputs, outputs, bias=True)` is an `nn.Module` that maps `(..., inputs)` to `(..., outputs)`,
for any number of leading dimensions. It makes twice `outputs` numbers of the input: the first half are
values, the second half gates. The result is each value times the sigmoid of its gate.

- All its parameters are those of one `nn.Linear`, under the name `linear`; values and gates come from one
  matrix product.
- It works with the parameters that `linear` has when it is called, after loading and moving too.
- `F.glu` and `nn.GLU` may not be used.

`GatedLinearUnit(4, 2)(torch.randn(5, 3, 4))` has the shape `(5, 3, 2)`
"""

from torch import Tensor, nn
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import derivatives, modules, numbers

exercise = Exercise(
    minutes=10,
    hints=[
        "A module finds a layer that is assigned to an attribute of `self`, once `super().__init__()` has "
        "run. Which attribute, and how many outputs does the layer need?",
        "Two halves of the last dimension: which function cuts a tensor into equal parts, and which of its "
        "dimensions is the last, whatever their number?",
        "`chunk(2, dim=-1)` gives two views of what the layer returned, values first. Cut the output and "
        "not the weights: a stored piece of these stays what it was when others are loaded.",
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


_SETUP = "torch.manual_seed(0)\nunit, x = GatedLinearUnit(4, 3), torch.randn(5, 4)\n"


def _wanted(t):
    """By torch's own functions, from the parameters that the unit has."""
    layer = getattr(t.unit, "linear", None)
    expect.true(isinstance(layer, nn.Linear), f"`unit.linear` is {expect.show(layer)}, expected an nn.Linear")
    return F.glu(F.linear(t.x, layer.weight, layer.bias), dim=-1)


def _expect_right(t):
    derivatives.agrees(wanted=_wanted(t), actual=t.call("unit(x)"), x=t.x, least=0.0)


@exercise.check(given="unit = GatedLinearUnit(4, 3, bias={})".format, cases=[True, False])
def registered(t, bias):
    """The parameters are those of `linear`

    `nn.Module` registers a Parameter or a Module when it is assigned to an attribute of `self`; what is in a
    plain list, or in a local variable of `forward`, it doesn't see.
    """
    shapes = {"linear.weight": (6, 4)} | ({"linear.bias": (6,)} if bias else {})
    found = t.call("{name: tuple(t.shape) for name, t in unit.state_dict().items()}")
    expect.equal(found, shapes, what="`unit.state_dict()`, by shape,")
    expect.equal(t.call("[n for n, _ in unit.named_parameters()]"), [*shapes], what="the list of parameters")


@exercise.check(given=f"{_SETUP}unit, x = unit.to(device), x.to(device).requires_grad_()")
def values_then_gates(GatedLinearUnit, t, device):
    """The first half are values, the second half gates, for the gradients too

    Weights are learned for one order: a checkpoint from a unit with the other order loads without a word and
    computes something else. The gate goes through a sigmoid, between 0 and 1; the value stays as it is. Where
    one of the two leaves the graph, its half of `linear` never learns.
    """
    wanted = _wanted(t)
    value, gate = t.unit.linear(t.x).chunk(2, dim=-1)
    like = {"gate times the sigmoid of the value": gate * value.sigmoid()}
    value, gate = t.unit.linear(t.x).unflatten(-1, (-1, 2)).unbind(-1)
    like["what comes out if values and gates take turns"] = value * gate.sigmoid()
    expect.equal(t.call("unit(x)"), wanted, like=like)
    names = ("x", "unit.linear.weight", "unit.linear.bias")
    with expect.left_alone(t.x, what="`x`"):
        modules.expect_gradients(t, "loss = unit(x).square().sum()", wanted.square().sum(), *names)
    t = expect.given(_SETUP + "nn.init.zeros_(unit.linear.bias)", GatedLinearUnit=GatedLinearUnit)
    modules.expect_gradients(t, "loss = unit(x).sum()", _wanted(t).sum(), *names[1:])
    with Rows() as rows:
        for label, code in numbers.hard("8, 4").items():
            with rows.of(label):
                _expect_right(expect.given(f"{_SETUP}x = {code}", GatedLinearUnit=GatedLinearUnit))


@exercise.check(
    given="torch.manual_seed(0)\nunit = GatedLinearUnit(4, 2, bias=False)",
    cases={
        "a vector": "x = torch.randn(4)",
        "four dimensions": "x = torch.randn(2, 4, 6, 4)",
        "five dimensions": "x = torch.randn(2, 4, 1, 6, 4)",
        "a transposed `x`": "x = torch.randn(4, 6, 2).transpose(0, 2)",
    },
)
def leading_dimensions(t):
    """Any number of leading dimensions

    A linear layer works on the last dimension, and all others are a batch to it. `dim=1` is the last
    dimension of a matrix and no other tensor's; `dim=-1` is the last of all. Nor need the rows of `x` lie one
    after the other in storage, as `view` wants them: `nn.Linear` takes any strides.
    """
    _expect_right(t)


@exercise.check(
    given=f"{_SETUP}unit(x)",
    cases={
        "assign": "unit.load_state_dict(GatedLinearUnit(4, 3).state_dict(), assign=True)",
        "double": "unit, x = unit.double(), x.double()",
    },
)
def present_parameters(t):
    """What is loaded or moved is used by the next call

    `load_state_dict` writes into the parameters; with `assign=True` it replaces them, and a list of them that
    was made in `__init__` goes on holding the old ones. `.double()` gives them other data, and a view of the
    weights goes on reading the old.
    """
    _expect_right(t)


@exercise.check(given=_SETUP)
def one_product(t):
    """One matrix product, and no `glu` of torch's

    One product of twice the width reads the input once. `chunk`, `split` and slices give its halves as views.
    Two products, with half of the weights each, are the same work. `F.glu` is what you build here.
    """
    with measure.operators() as ran:
        t.call("unit(x[None])")
    expect.equal(ran.matmuls(), 1, what="the number of matrix products in `unit(x[None])`")
    expect.at_most(ran.count("aten.glu"), 0, "calls of torch's `glu` in `unit(x[None])`")
