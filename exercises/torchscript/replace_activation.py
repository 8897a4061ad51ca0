"""Another activation in the place of every ReLU

Return an `fx.GraphModule` that computes what `model` computes with `activation`, a function of one tensor, in
the place of every ReLU: `nn.ReLU`, `F.relu` and `torch.relu`, the methods `x.relu()` and `x.relu_()`, with
`inplace=True` or without. Other activations stay.

A ReLU in place changes its input. Who reads that tensor later reads what was written, by the name of the
input or by that of the result: it has to read the result of `activation` then. Who reads it before has to
read what was there. `activation` writes into nothing.

Each ReLU becomes one node that calls `activation`, and `model` stays as it was.

`replace_activation(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), F.gelu)` → a graph that calls `0` and `gelu`
"""

from collections.abc import Callable

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=30,
    hints=[
        "There are three kinds of node to look for: those that call a module, a function and a method. Which "
        "of them change their input, and how does a node say so?",
        "A graph is in the order in which it runs. After a change in place, who reads the tensor? Not only "
        "those that read the node of the ReLU: those that stand after it and read its input as well.",
        "`replace_all_uses_with` takes `delete_user_cb`, a function that says of each reader whether it is "
        "to be changed. A module may have been called elsewhere: change nodes, and remove at the end what is "
        "unused.",
    ],
)


@exercise.starter
def replace_activation(model: nn.Module, activation: Callable[[Tensor], Tensor]) -> fx.GraphModule:
    """A model and a function of one tensor -> the model with that function in the place of every ReLU"""
    raise NotImplementedError


_MODEL = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
{parts}
    def forward(self, x):
        {forward}

torch.manual_seed(3)
model = Model()
x = torch.randn(3, 4)
new = replace_activation(model, F.gelu)"""


class _Instead(TorchFunctionMode):
    """The oracle: whenever a ReLU is called, gelu runs instead, in place where the ReLU was."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func not in (F.relu, torch.relu, Tensor.relu, torch.relu_, Tensor.relu_):
            return func(*args, **kwargs)
        x = kwargs.pop("input", args[0] if args else None)
        in_place = func in (torch.relu_, Tensor.relu_) or kwargs.get("inplace", (*args, False, False)[1])
        value = F.gelu(x.clone())
        return x.copy_(value) if in_place else value


def _replaced(replace_activation, forward, relus, **parts):
    """The example with its `new`: right values, one call of gelu for each ReLU, and no ReLU left."""
    lines = "".join(f"        self.{name} = {part}\n" for name, part in parts.items())
    setup = _MODEL.format(parts=lines, forward=forward.replace("; ", "\n        "))
    t = expect.given(setup, replace_activation=replace_activation)
    expect.true(
        isinstance(t.new, fx.GraphModule), f"the result is {expect.show(t.new)}, expected an `fx.GraphModule`"
    )
    with torch.no_grad(), _Instead():
        wanted = t.model(t.x.clone())
    with torch.no_grad():
        expect.equal(t.call("new(x)"), wanted, what="`new(x)`")
    calls = sum(node.target is F.gelu for node in t.new.graph.nodes)
    expect.true(calls == relus, f"nodes of `new` that call `F.gelu`: {calls}, expected {relus}")
    left = [name for name, module in t.new.named_modules() if isinstance(module, nn.ReLU)]
    expect.true(not left, f"modules of `new` that are a ReLU: {', '.join(left)}", "expected: none")
    return t


@exercise.check(deadline=60)
def every_way_to_write_it(replace_activation):
    """Every ReLU is found, however it is written

    Nodes come in kinds: `call_module` names a module, `call_function` holds a function, `call_method` the
    name of a method. The input of a call stands in `args` or in `kwargs`; `all_input_nodes` has both.
    A graph module runs the code that `recompile` has written.
    """
    with Rows() as rows:
        for line in (
            "self.act(input=self.linear(x)) * 2",
            "F.relu(self.linear(x)) * 2",
            "F.relu(input=self.linear(x), inplace=False)",
            "torch.relu(self.linear(x)) * 2",
            "self.linear(x).relu()",
            "F.relu(self.linear(x), inplace=True) * 2",
            "self.linear(x).relu_() * 2",
        ):
            with rows.of(f"`{line}`"):
                _replaced(replace_activation, f"return {line}", 1, act="nn.ReLU()")


@exercise.check(deadline=60)
def others_stay(replace_activation):
    """Other activations, other modules and other methods stay

    What a node calls is its target: a function itself, or the module that stands under a name. The name alone
    says little: `relu6` and `leaky_relu` have it in theirs, and a parameter may be called so.
    """
    forward = "x = self.six(self.leaky(self.linear(x))).clamp(min=0.1); x.mul_(3); "
    forward += "return F.leaky_relu(F.relu6(x) + self.relu, 0.2)"
    parts = {"six": "nn.ReLU6()", "leaky": "nn.LeakyReLU(0.3)", "relu": "nn.Parameter(torch.ones(4))"}
    _replaced(replace_activation, forward, 0, **parts)


@exercise.check(deadline=60)
def shared_modules(replace_activation):
    """One module called in many places, one inside another; the model stays as it was

    The modules of a graph module are those of the model, not copies. A module that was called twice is two
    nodes; taking it out of the graph module leaves the model's own where it is.
    """
    inner = "nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))"
    forward = "x = self.act(self.linear(x)); return self.act(self.net(x)) + self.act(x - 1)"
    t = _replaced(replace_activation, forward, 4, net=inner, act="nn.ReLU()")
    kinds = [type(module).__name__ for module in t.model.modules()]
    wanted = ["Model", "Linear", "Sequential", "Linear", "ReLU", "Linear", "ReLU"]
    expect.equal(kinds, wanted, what="the modules of `model` afterwards")
    with torch.no_grad():
        expect.equal(t.model(t.x), type(t.model).forward(t.model, t.x), what="`model(x)` afterwards")
        expect.true(bool((t.model.act(-t.x.abs()) == 0).all()), "`model.act` is no ReLU any more")


@exercise.check(deadline=60)
def read_before(replace_activation):
    """Who reads a tensor before, or what a ReLU out of place was given, reads the old values

    A graph is in the order in which it runs. Readers that stand before a change saw the old values. A ReLU
    out of place changes nothing, so all who read its input read what was there.
    """
    with Rows() as rows:
        for forward, relus in (
            ("y = self.linear(x); s = y * 2; z = y.relu_(); return s - z", 1),
            ("y = self.linear(x); z = F.relu(y); return y + z", 1),
            ("y = self.linear(x); z = self.act(y); w = z.relu_(); return y + w", 2),
        ):
            with rows.of(f"`{forward}`"):
                _replaced(replace_activation, forward, relus, act="nn.ReLU()")


@exercise.check(deadline=60)
def read_later(replace_activation):
    """Who reads a tensor after a ReLU in place reads the new values, by either name

    A change in place is an effect that no edge of the graph shows: a later node that reads the input has an
    edge to the input, not to the ReLU. In a graph in which nothing is written it needs an edge to the new
    node. Not only a name with an underscore says so: the module has `inplace`, and `F.relu` an argument.
    """
    with Rows() as rows:
        for forward, relus in (
            ("y = self.linear(x); y.relu_(); return y", 1),
            ("y = self.linear(x); z = self.act(y); return y + z * 2", 1),
            ("y = self.linear(x); F.relu(y, inplace=True); return y * 2", 1),
            ("y = self.linear(x); y.relu_(); z = y * 2; torch.relu_(y); return y + z", 2),
            ("y = self.linear(x); a = F.relu(y, True); b = y.relu_(); return a * 2 + b * 3 + y", 2),
        ):
            with rows.of(f"`{forward}`"):
                _replaced(replace_activation, forward, relus, act="nn.ReLU(inplace=True)")


@exercise.check(deadline=60)
def gradients(replace_activation):
    """Gradients flow through the activation

    gelu keeps its input for its derivative. Where that is overwritten before backward, torch raises, or the
    gradient is wrong. ReLU could be in place because it keeps its result.
    """
    forward = "y = self.linear(x); z = self.act(y); return y + F.relu(z, inplace=True)"
    t = _replaced(replace_activation, forward, 2, act="nn.ReLU(inplace=True)")
    t.run("new(x).sum().backward()")
    y = nn.functional.linear(t.x, t.model.linear.weight, t.model.linear.bias)
    once = F.gelu(y)
    wanted = torch.autograd.grad((2 * F.gelu(once)).sum(), t.model.linear.bias)[0]
    expect.equal(t.new.linear.bias.grad, wanted, what="`new.linear.bias.grad`")
