"""Another activation in the place of every ReLU

Return an `fx.GraphModule` that computes what `model` computes, with `activation` in the place of every ReLU.
`activation` is a named function of one tensor. A ReLU is `nn.ReLU()`, `F.relu(x)`, `torch.relu(x)` or
`x.relu()`.

- In place it is `nn.ReLU(inplace=True)`, `F.relu(x, inplace=True)` or `x.relu_()`. What reads that tensor
  later, by either name, now reads the result of `activation`, which writes into nothing. What reads it
  earlier reads the old values. No other name or view shares its memory.
- Each ReLU becomes one node that calls `activation` itself. No ReLU is left, in the graph or among the
  modules. All else stays.
- `model` doesn't change. It may be a graph module itself.

`replace_activation(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), F.gelu)` → a graph that calls `0` and `gelu`
"""

from collections.abc import Callable

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits.traced import expect_graph_module

exercise = Exercise(
    minutes=25,
    hints=[
        "Look for three kinds of node: those that call a module, a function and a method. Which of them "
        "change their input, and how can you tell from the node?",
        "The nodes stand in the order in which they run. After a change in place, what reads the tensor? "
        "Not only the readers of the ReLU's node: later readers of its input too.",
        "`replace_all_uses_with` takes `delete_user_cb`, a function that decides for each reader. A module "
        "may be called elsewhere, so change nodes, and remove unused modules at the end.",
    ],
)


@exercise.starter
def replace_activation(
    model: nn.Module, activation: Callable[[Tensor], Tensor]
) -> fx.GraphModule:
    """A model, a function of a tensor -> the model with it in place of every ReLU"""
    raise NotImplementedError


_MODEL = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
{parts}

    def forward(self, x):
        y = self.linear(x)
        {forward}

def swish(x):
    return x * torch.sigmoid(x)

torch.manual_seed(0)
model = Model()
x = torch.linspace(-2, 2, 12).view(3, 4)"""

_RELU, _IN_PLACE = {"act": "nn.ReLU()"}, {"act": "nn.ReLU(inplace=True)"}


class _Instead(TorchFunctionMode):
    """The oracle: whenever a ReLU is called, the activation runs instead, in place where the ReLU was."""

    def __init__(self, activation):
        super().__init__()
        self.activation = activation

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in (F.relu, torch.relu, Tensor.relu, Tensor.relu_, torch.relu_):
            return func(*args, **kwargs)
        in_place = func in (Tensor.relu_, torch.relu_) or kwargs.get("inplace", False)
        value = self.activation(args[0].clone())
        return args[0].copy_(value) if in_place else value


def _replaced(replace_activation, forward, calls, parts=None, gradients=False):
    """The example: the right values (and gradients), so many calls of the activation, and no ReLU."""
    lines = "\n".join(f"        self.{name} = {part}" for name, part in (parts or {}).items())
    setup = _MODEL.format(parts=lines, forward=forward.replace("\n", "\n        ")).replace("\n\n\n", "\n\n")
    t = expect.given(setup, replace_activation=replace_activation)
    with _Instead(t.swish):  # before the answer has the model: it may change it
        wanted = t.model(t.x)
    (slope,) = torch.autograd.grad(wanted.sum(), t.model.linear.weight)
    t.run("new = replace_activation(model, swish)")
    expect_graph_module(t, "new")
    came = t.call("new(x)")
    expect.equal(came, wanted, what="`new(x)`")
    if gradients:
        t.run("(gradient,) = torch.autograd.grad(new(x).sum(), new.linear.weight)")
        expect.equal(t.gradient, slope, what="`gradient`")
    found = sum(node.target is t.swish for node in t.new.graph.nodes)
    expect.equal(found, calls, what="the number of nodes that call `swish` itself")
    left = [name for name, module in t.new.named_modules() if isinstance(module, nn.ReLU)]
    expect.equal(left, [], what="the names of the `nn.ReLU` in `new.named_modules()`")
    others = [name for name in _called(fx.symbolic_trace(t.model)) if not name.startswith("ReLU ")]
    expect.equal(_called(t.new), others, what="the list of the modules that `new` calls")


def _called(traced):
    """The modules that the graph calls, in order: their kind and their name."""
    names = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    return [f"{type(traced.get_submodule(name)).__name__} {name}" for name in names]


@exercise.check(deadline=60)
def every_way_to_write_it(replace_activation):
    """Every ReLU is found, in each spelling

    A ReLU is one of three kinds of node. The target of `call_module` is the module's name, that of
    `call_function` is the function, and that of `call_method` is the method's name. A graph module runs the
    code of the old graph until `recompile`.
    """
    with Rows() as rows:
        for forward in (
            "return self.act(y) * 2",
            "return F.relu(y) * 2",
            "return torch.relu(y) * 2",
            "return y.relu() * 2",
            "return F.relu(y, inplace=True) * 2",
            "return y.relu_() * 2",
        ):
            with rows.of(f"`{forward}`"):
                _replaced(replace_activation, forward, 1, _RELU if "self.act" in forward else {})


@exercise.check(deadline=60)
def others_stay(replace_activation):
    """Other activations stay, and so do other changes in place

    `relu6`, `leaky_relu` and even a parameter may have `relu` in their names. A node that nobody reads may
    change a tensor that is read later; `eliminate_dead_code` doesn't see that.
    """
    parts = {"six": "nn.ReLU6()", "leaky": "nn.LeakyReLU(0.3)", "relu": "nn.Parameter(torch.ones(4))"}
    parts |= {"drop": "nn.Dropout(0.0)", "same": "nn.Identity()"}
    with Rows() as rows:
        for forward in (
            "return F.leaky_relu(F.relu6(y), 0.2) + self.relu",
            "return self.leaky(y) + self.six(y)",
            "z = y * 2\nz.mul_(3)\nreturn z",
            "return self.same(self.drop(y))",
        ):
            with rows.of("`" + forward.replace("\n", "; ") + "`"):
                _replaced(replace_activation, forward, 0, parts)


@exercise.check(deadline=60)
def shared_modules(replace_activation):
    """One module that is called in many places, and one inside another

    Each call is a node, with the same `target`. Remove the module when no node calls it any more:
    `erase_node` removes a call and leaves the module.
    """
    inner = "nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))"
    forward = "y = self.act(y)\nreturn self.act(self.net(y)) + self.act(y - 1)"
    _replaced(replace_activation, forward, 4, {**_RELU, "net": inner})


@exercise.check(deadline=60)
def read_later(replace_activation):
    """Later readers of a tensor that a ReLU changed read the new values, by either name

    A ReLU in place has a result, and it changes its input, which no edge of the graph shows. If you write
    nothing, later readers of the input must read the new node, and earlier ones must not. If you write the
    result back into the input, backward fails for an activation that saved its input.
    """
    with Rows() as rows:
        for forward, parts in (
            ("y.relu_()\nreturn y", {}),
            ("z = self.act(y)\nreturn y + z * 2", _IN_PLACE),
            ("F.relu(y, inplace=True)\nreturn y * 2", {}),
            ("a = y.relu_()\nb = y.relu_()\nreturn a * 2 + b * 3 + y", {}),
            ("y.relu_()\nreturn torch.cat([y, y * 2])", {}),
            ("y.relu_()\nreturn torch.clamp(input=y, max=9)", {}),
        ):
            with rows.of("`" + forward.replace("\n", "; ") + "`"):
                calls = forward.count("relu") + forward.count("self.act")
                _replaced(replace_activation, forward, calls, parts, gradients=True)


@exercise.check(deadline=60)
def read_before(replace_activation):
    """Earlier readers, and readers of a ReLU's input out of place, read the old values

    The nodes stand in the order in which they run. A node before the change in place has read the old
    values. A ReLU out of place doesn't change its input.
    """
    with Rows() as rows:
        for forward, calls, parts in (
            ("s = y.sum(0)\ny.relu_()\nreturn y + s", 1, {}),
            ("s = y * 2\nF.relu(y, inplace=True)\nreturn s - y", 1, {}),
            ("z = F.relu(y)\nreturn y + z", 1, {}),
            ("z = torch.relu(y)\nreturn y + z", 1, {}),
            ("y.relu_()\nz = y * 2\ny.relu_()\nreturn y + z", 2, {}),
            ("z = self.act(y)\nz.relu_()\nreturn y + z", 2, _RELU),
        ):
            with rows.of("`" + forward.replace("\n", "; ") + "`"):
                _replaced(replace_activation, forward, calls, parts)


@exercise.check(deadline=60)
def model_unchanged(replace_activation):
    """The model doesn't change, and the result is in its modes

    A graph module from `fx.symbolic_trace` calls the model's own modules, not copies. If you change one, you
    change the model. A model that is a graph module has a graph of its own, so trace that model too.
    """
    setup = """torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(inplace=True)))
x = torch.ones(1, 4)"""
    with Rows() as rows:
        for label, then in {"a module": "model[0].eval()", "a graph module": "model = {}(model)"}.items():
            with rows.of(label):
                then = then.format("torch.fx.symbolic_trace")
                t = expect.given(f"{setup}\n{then}", replace_activation=replace_activation)
                before = _shown(t.model)
                with expect.left_alone(t.model, what="model"):
                    t.run("new = replace_activation(model, F.gelu)")
                for what, was in before.items():
                    expect.equal(_shown(t.model)[what], was, what=f"what `print({what})` shows afterwards")
                wanted = F.gelu(t.model.get_submodule("0")(t.x))
                expect.equal(t.call("new(x)"), wanted, what="`new(x)`")
                modes = [t.model.training, t.model.get_submodule("0").training]
                found = [t.new.training, t.new.get_submodule("0").training]
                expect.equal(found, modes, what="`training` of `new` and of its first layer")


def _shown(model):
    graph = {"model.graph": str(model.graph)} if isinstance(model, fx.GraphModule) else {}
    return {"model": str(model), **graph}
