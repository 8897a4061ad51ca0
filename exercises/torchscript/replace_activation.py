"""Another activation in the place of every ReLU

Return an `fx.GraphModule` that computes what `model` computes with `activation`, a function of one tensor, in
the place of every ReLU. A ReLU may be written as

- `nn.ReLU()` and `nn.ReLU(inplace=True)`, one module called in many places or many modules;
- `F.relu(x)`, also with `inplace=True`, `torch.relu(x)` and `x.relu()`;
- `torch.relu_(x)`, `F.relu_(x)` and `x.relu_()`,

with its input by position or by keyword. All else stays, `nn.ReLU6` and `nn.LeakyReLU` for example.

A ReLU in place changes its input, and who reads that tensor later reads what was written, by the name of the
input or by that of the result. It has to read the result of `activation` then, and who reads it before has to
read what was there. `activation` makes a new tensor and writes into nothing. (No model here gives such a
tensor further names: there are no views of it, and nothing but ReLUs returns it again.)

In what you return, each ReLU is one node, which calls `activation` itself and has the `meta` of the node in
whose place it stands. The other nodes keep their names, their order and their `meta`, none is added, none
removed, and the graph keeps its output. No ReLU is left among the modules. The code is that of the graph, and
gradients flow.

`model` is an `nn.Module` that `fx.symbolic_trace` can trace, or an `fx.GraphModule`, whose nodes may carry
`meta`. It is the same afterwards as before, its mode as well. (A constant that `fx.symbolic_trace` itself
leaves on it does not count.)

- `replace_activation(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), F.gelu)` → a graph that calls `0` and `gelu`
"""

import copy
import re
from collections.abc import Callable

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=40,
    hints=[
        "There are three kinds of node to look for: those that call a module, a function and a method. Which "
        "of them change their input, and how does a node say so?",
        "A graph is in the order in which it runs. After a change in place, who reads the tensor? Not only "
        "those that read the node of the ReLU: those that stand after it and read its input as well.",
        "`replace_all_uses_with` takes `delete_user_cb`, a function that says of each reader whether it is "
        "to be changed. A module may have been called elsewhere: change nodes, and remove at the end what is "
        "unused. `copy.deepcopy` of a graph module keeps what `symbolic_trace` would not.",
    ],
)


@exercise.starter
def replace_activation(model: nn.Module, activation: Callable[[Tensor], Tensor]) -> fx.GraphModule:
    """A model and a function of one tensor -> the model with that function in the place of every ReLU"""
    raise NotImplementedError


class _Example:
    """A model of these modules, given as code, whose `forward` has these lines."""

    def __init__(self, *forward, traced=False, activation=F.gelu, **parts):
        names = {"torch": torch, "nn": nn, "F": F}
        exec("\n    ".join(["def forward(self, x):", *forward]), names)
        self.model = type("Model", (nn.Module,), {"forward": names["forward"]})()
        for name, part in parts.items():
            setattr(self.model, name, eval(part, names))
        self.lines = [f"self.{name} = {part}" for name, part in parts.items()]
        self.lines += ["def forward(self, x):", *forward]
        self.activation = activation
        if activation is _swish:
            self.lines.append("def swish(x): return x * torch.sigmoid(x)")
        if traced:
            self.model = fx.symbolic_trace(self.model)
            self.lines.append("model = fx.symbolic_trace(model)")
        self.x = torch.linspace(-2, 2, 12).view(3, 4)

    def shown(self):
        """Messages show the example."""
        name = "F.gelu" if self.activation is F.gelu else "swish"
        return expect.situation(*self.lines, f"new = replace_activation(model, {name})")

    def replace(self, replace_activation):
        """What the answer makes of it."""
        # Before the answer has the model: it may change it.
        with _Instead(self.activation):
            self.wanted = self.model(self.x.clone())
        result = replace_activation(self.model, self.activation)
        evidence.record("graph module", isinstance(result, fx.GraphModule))
        if not isinstance(result, fx.GraphModule):
            raise expect.Mismatch(f"the result is {expect.show(result)}, expected an `fx.GraphModule`")
        # Before it runs: code that reads a name before it is there raises a tale of its own.
        try:
            result.graph.lint()
        except RuntimeError as error:
            said = str(error).partition("!")[0].replace("'", "`")
            evidence.record("lint", said)
            raise expect.Mismatch(f"`new.graph.lint()` raises: {said}", "expected: it passes") from None
        is_code = result.code == result.graph.python_code("self").src
        evidence.record("code of the graph", is_code)
        expect.true(is_code, "`new.code` is not the code of `new.graph`", "expected: it is")
        return result

    def expect_values(self, result):
        """The result computes what the model does where every ReLU is intercepted."""
        came = result(self.x.clone())
        expect.equal(came, self.wanted, what="`new(x)`")
        return came

    def expect_calls(self, result, number):
        """So many calls of the activation in the graph, and no ReLU anywhere."""
        nodes = [node for node in result.graph.nodes if node.op == "call_function"]
        calls = sum(node.target is self.activation for node in nodes)
        left = [str(node) for node in result.graph.nodes if _is_relu(result, node)]
        evidence.record("calls", [calls, left])
        if left:
            raise expect.Mismatch(f"nodes that still call a ReLU: {_listed(left)}", "expected: none")
        if calls != number:
            raise expect.Mismatch(f"nodes that call `activation`: {calls}, expected {number}")


def _swish(x):
    """An activation that is written in Python: two operations."""
    return x * torch.sigmoid(x)


class _Instead(TorchFunctionMode):
    """The oracle: whenever a ReLU is called, the activation runs instead, in place where the ReLU was."""

    def __init__(self, activation):
        super().__init__()
        self.activation = activation

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func not in (*_OUT_OF_PLACE, *_IN_PLACE):
            return func(*args, **kwargs)
        x = kwargs.pop("input", args[0] if args else None)
        inplace = func in _IN_PLACE or kwargs.get("inplace", args[1] if len(args) > 1 else False)
        value = self.activation(x.clone())
        return x.copy_(value) if inplace else value


_OUT_OF_PLACE = F.relu, torch.relu, Tensor.relu
_IN_PLACE = torch.relu_, F.relu_, Tensor.relu_


def _is_relu(module, node):
    if node.op == "call_module":
        return isinstance(module.get_submodule(node.target), nn.ReLU)
    return node.target in (*_OUT_OF_PLACE, *_IN_PLACE, "relu", "relu_") and node.op.startswith("call")


def _listed(names):
    return ", ".join(f"`{name}`" for name in names) or "none"


_LINEAR = {"linear": "nn.Linear(4, 4)"}


@exercise.check(deadline=60)
def every_way_to_write_it(replace_activation):
    """Every ReLU is found, however it is written"""
    for line in (
        "self.act(self.linear(x))",
        "self.act(input=self.linear(x)) * 2",
        "F.relu(self.linear(x)) * 2",
        "F.relu(input=self.linear(x), inplace=False) * 2",
        "torch.relu(self.linear(x)) * 2",
        "torch.relu(input=self.linear(x)) * 2",
        "self.linear(x).relu()",
        "F.relu(self.linear(x), inplace=True) * 2",
        "F.relu(self.linear(x), True) * 2",
        "torch.relu_(self.linear(x)) * 2",
        "self.linear(x).relu_() * 2",
    ):
        act = {"act": "nn.ReLU()"} if "self.act" in line else {}
        t = _Example(f"return {line}", **_LINEAR, **act, activation=_swish if "torch" in line else F.gelu)
        with t.shown():
            result = t.replace(replace_activation)
            t.expect_calls(result, 1)
            t.expect_values(result)


@exercise.check(deadline=60)
def others_stay(replace_activation):
    """Other activations, other modules and other methods stay, also in place"""
    t = _Example(
        "x = self.six(self.leaky(self.linear(x))).clamp(min=0.1)",
        "x.mul_(3)",
        "return F.leaky_relu(F.relu6(x) + self.relu, 0.2)",
        **_LINEAR,
        six="nn.ReLU6()",
        leaky="nn.LeakyReLU(0.3)",
        relu="nn.Parameter(torch.ones(4))",
    )
    with t.shown():
        result = t.replace(replace_activation)
        t.expect_calls(result, 0)
        t.expect_values(result)


@exercise.check(deadline=60)
def shared_modules(replace_activation):
    """One module that is called in many places, and one inside another"""
    inner = "nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))"
    t = _Example(
        "x = self.act(self.linear(x))",
        "return self.act(self.net(x)) + self.same(x - 1)",
        **_LINEAR,
        net=inner,
        act="nn.ReLU()",
    )
    t.model.same = t.model.act
    t.lines.insert(3, "self.same = self.act")
    before = dict(t.model.named_modules(remove_duplicate=False))
    with t.shown():
        result = t.replace(replace_activation)
        t.expect_calls(result, 4)
        t.expect_values(result)
        left = [name for name, module in result.named_modules() if isinstance(module, nn.ReLU)]
        evidence.record("left", left)
        expect.true(not left, f"modules of `new` that are a ReLU: {_listed(left)}", "expected: none")
        now = dict(t.model.named_modules(remove_duplicate=False))
        same = now.keys() == before.keys() and all(now[name] is before[name] for name in before)
        expect.true(same, "`model` has other modules than before", "expected: its own")


@exercise.check(deadline=60)
def read_later(replace_activation):
    """Who reads a tensor after a ReLU in place reads the new values, by either name"""
    for lines in (
        ("y = self.linear(x)", "y.relu_()", "return y"),
        ("y = self.linear(x)", "y.relu_()", "return torch.cat([y, y * 2])"),
        ("y = self.linear(x)", "z = self.act(y)", "return y + z * 2"),
        ("y = self.linear(x)", "F.relu(y, inplace=True)", "return y * 2"),
        ("y = self.linear(x)", "y.relu_()", "z = y * 2", "torch.relu_(input=y)", "return y + z"),
        ("y = self.linear(x)", "a = F.relu_(y)", "b = y.relu_()", "return a * 2 + b * 3 + y"),
    ):
        act = {"act": "nn.ReLU(inplace=True)"} if "self.act" in " ".join(lines) else {}
        t = _Example(*lines, **_LINEAR, **act)
        with t.shown():
            result = t.replace(replace_activation)
            t.expect_calls(result, sum(bool(re.search("relu|act", line)) for line in lines))
            t.expect_values(result)


@exercise.check(deadline=60)
def read_before(replace_activation):
    """Who reads a tensor before, or what a ReLU out of place was given, reads the old values"""
    for lines in (
        ("y = self.linear(x)", "s = y.sum(0)", "y.relu_()", "return y + s"),
        ("y = self.linear(x)", "s = y * 2", "F.relu(y, inplace=True)", "return s - y"),
        ("y = self.linear(x)", "z = F.relu(y)", "return y + z"),
        ("y = self.linear(x)", "z = self.act(y)", "z.relu_()", "return y + z"),
    ):
        act = {"act": "nn.ReLU()"} if "self.act" in " ".join(lines) else {}
        t = _Example(*lines, **_LINEAR, **act)
        with t.shown():
            t.expect_values(t.replace(replace_activation))


@exercise.check(deadline=60)
def sound_graph(replace_activation):
    """The graph passes its lint, names and order stay, and so does what is noted in `meta`"""
    t = _Example(
        "y = self.linear(x)",
        "a = self.act(y).tanh()",
        "return (a + y.relu_()).sigmoid()",
        traced=True,
        **_LINEAR,
        act="nn.ReLU()",
    )
    for number, node in enumerate(t.model.graph.nodes):
        node.meta["number"] = number
    t.lines.append("for number, node in enumerate(model.graph.nodes): node.meta['number'] = number")
    before = _noted(t.model)
    # A ReLU's place in a graph is that of the activation.
    wanted = [(None if number in (2, 4) else name, number) for name, number in before]
    with t.shown():
        result = t.replace(replace_activation)
        found = [
            (None if node.target is F.gelu else node.name, node.meta.get("number"))
            for node in result.graph.nodes
        ]
        evidence.record("nodes", found)
        for (name, number), (old, noted) in zip(found, wanted, strict=False):
            place = f"`{name}`" if name else "the call of `activation`"
            if name != old:
                was = f"`{old}`" if old else "a call of `activation`"
                raise expect.Mismatch(f"there is {place} in the graph where {was} should be")
            if number != noted:
                raise expect.Mismatch(
                    f"`meta['number']` of {place} is {expect.show(number)}, expected {noted}, as before"
                )
        expect.true(len(found) == len(wanted), f"nodes: {len(found)}, expected {len(wanted)}")
        t.expect_values(result)


def _noted(module):
    return [(node.name, node.meta.get("number")) for node in module.graph.nodes]


@exercise.check(deadline=60)
def model_unchanged(replace_activation):
    """The model is the same afterwards, module or graph, and gradients flow in the new one"""
    lines = "y = self.linear(x)", "z = self.act(y)", "return y + F.relu(z, inplace=True)"
    for traced in (False, True):
        t = _Example(*lines, traced=traced, **_LINEAR, act="nn.ReLU(inplace=True)")
        before = copy.deepcopy(t.model)
        code = t.model.code if traced else None
        t.model.linear.eval()
        t.lines.append("model.linear.eval()")
        modules, modes = list(t.model.modules()), _modes(t.model)
        with t.shown():
            result = t.replace(replace_activation)
            expect.equal(t.model(t.x.clone()), before(t.x.clone()), what="`model(x)` afterwards")
            still = list(t.model.modules())
            same = len(still) == len(modules) and all(a is b for a, b in zip(still, modules, strict=True))
            expect.true(same, "`model` has other modules than before", "expected: its own")
            changed = [name for name, training in _modes(t.model).items() if training != modes[name]]
            evidence.record("other mode", changed)
            expect.true(not changed, f"in another mode than before: {_listed(changed)}", "expected: the same")
            if traced:
                nodes = [node.name for node in t.model.graph.nodes]
                wanted = [node.name for node in before.graph.nodes]
                expect.equal(nodes, wanted, what="the list of nodes in the graph that was given")
                expect.true(t.model.code == code, "the code of the graph module that was given has changed")
            value = t.expect_values(result)
            expect.in_graph(value, what="`new(x)`", of="`model.linear.weight`")
            with measure.operators() as ran, evidence.silent():
                value.sum().backward()
                backwards = ran.count("aten.gelu_backward")
            expect.true(backwards == 2, f"derivatives of gelu that ran: {backwards}", "expected: 2")


def _modes(model):
    return {name or "model": module.training for name, module in model.named_modules()}


# --- the mistakes -----------------------------------------------------------------------------------------


def _copied(model):
    """A graph module of its own, with the nodes' meta."""
    model = copy.deepcopy(model)
    return model if isinstance(model, fx.GraphModule) else fx.symbolic_trace(model)


def _source(node):
    return node.args[0] if node.args else node.kwargs["input"]


def _in_place(module, node):
    """Whether this ReLU changes its input."""
    if node.op == "call_module":
        return module.get_submodule(node.target).inplace
    written = node.kwargs.get("inplace", node.args[1] if len(node.args) > 1 else False)
    return node.target in (torch.relu_, "relu_") or written


def _called(gm, node, activation):
    return gm.graph.call_function(activation, (_source(node),))


def _put(gm, node, activation, keep_meta=True, make=_called):
    """Another node in the place of this one."""
    with gm.graph.inserting_before(node):
        new = make(gm, node, activation)
    if keep_meta:
        new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    return new


def _redirect(gm, node, new):
    """Who reads the input later reads the new node."""
    later = list(gm.graph.nodes)
    later = later[later.index(node) + 1 :]
    _source(node).replace_all_uses_with(new, delete_user_cb=lambda user: user in later)


def _finish(gm):
    gm.delete_all_unused_submodules()
    gm.recompile()
    return gm


def _replace(model, activation, wanted=_is_relu, in_place=_in_place, keep_meta=True, make=_called):
    """As it should be done; each mistake changes one thing."""
    return _replace_in(_copied(model), activation, wanted, in_place, keep_meta, make)


def _replace_in(gm, activation, wanted=_is_relu, in_place=_in_place, keep_meta=True, make=_called):
    for node in list(gm.graph.nodes):
        if wanted(gm, node):
            new = _put(gm, node, activation, keep_meta, make)
            if in_place(gm, node):
                _redirect(gm, node, new)
            gm.graph.erase_node(node)
    return _finish(gm)


@exercise.mistake
def forgets_what_was_changed(model, activation):
    """You replace the node and those that read it. A ReLU in place changes its input, and who reads that
    later reads the old values now: those nodes read the input, not the ReLU."""
    return _replace(model, activation, in_place=lambda gm, node: False)


@forgets_what_was_changed.variant
def with_a_transformer(model, activation):
    gm = _copied(model)

    class Replacing(fx.Transformer):
        def run_node(self, n):
            if _is_relu(gm, n):
                args, kwargs = self.fetch_args_kwargs_from_env(n)
                found = super().call_function(activation, (*args, *kwargs.values())[:1], {})
            else:
                found = super().run_node(n)
            if n.op != "output":
                found.node.meta = dict(n.meta)
            return found

    return Replacing(gm).transform()


@exercise.mistake
def redirects_all(model, activation):
    """You let all who read the input of a ReLU in place read the activation, also those that stand
    before it. They ran before the tensor was changed: ask for each reader where it stands."""
    gm = _copied(model)
    for node in list(gm.graph.nodes):
        if _is_relu(gm, node):
            new = _put(gm, node, activation)
            if _in_place(gm, node):
                _source(node).replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
            gm.graph.erase_node(node)
    return _finish(gm)


@redirects_all.form
def redirects_all_and_lints(model, activation):
    gm = redirects_all(model, activation)
    gm.graph.lint()
    return gm


@exercise.mistake
def overlooks_the_argument(model, activation):
    """You take a ReLU with `inplace=True` for one out of place. Not only what ends in an underscore changes
    its input: the module has an attribute `inplace`, and `F.relu` an argument."""
    return _replace(model, activation, in_place=lambda gm, node: node.target in (torch.relu_, "relu_"))


@overlooks_the_argument.form
def overlooks_the_modules(model, activation):
    def in_place(gm, node):
        return node.op != "call_module" and _in_place(gm, node)

    return _replace(model, activation, in_place=in_place)


@overlooks_the_argument.form
def overlooks_the_functions(model, activation):
    def in_place(gm, node):
        return node.target is not F.relu and _in_place(gm, node)

    return _replace(model, activation, in_place=in_place)


@exercise.mistake
def always_in_place(model, activation):
    """You take every ReLU for one in place. One that is not leaves its input alone, and who reads that later
    reads the old values."""
    return _replace(model, activation, in_place=lambda gm, node: True)


@always_in_place.variant
def one_value_for_each_tensor(model, activation):
    old = _copied(model)
    graph, holds = fx.Graph(), {}
    for node in old.graph.nodes:
        if not _is_relu(old, node):
            holds[node] = [graph.node_copy(node, lambda read: holds[read][0])]
            continue
        cell = holds[node] = holds[_source(node)]
        cell[0] = graph.call_function(activation, (cell[0],))
        cell[0].meta = dict(node.meta)
    return fx.GraphModule(old, graph)


@exercise.mistake
def writes_it_back(model, activation):
    """You write the result of the activation into its input. All who read it later see it, and the activation
    had kept its input for backward: that raises now, or gives a wrong gradient. There is a node more, too."""
    gm = _copied(model)
    for node in list(gm.graph.nodes):
        if not _is_relu(gm, node):
            continue
        new = _put(gm, node, activation)
        if _in_place(gm, node):
            with gm.graph.inserting_before(node):
                written = gm.graph.call_method("copy_", (_source(node), new))
            new.replace_all_uses_with(
                written, delete_user_cb=lambda user, written=written: user is not written
            )
        gm.graph.erase_node(node)
    return _finish(gm)


@exercise.mistake
def modules_alone(model, activation):
    """You replace the modules. `F.relu`, `torch.relu` and `x.relu()` are nodes as well, of the kinds
    `call_function` and `call_method`."""
    return _replace(model, activation, lambda gm, node: node.op == "call_module" and _is_relu(gm, node))


@exercise.mistake
def whatever_is_called_relu(model, activation):
    """You go by the name. `relu6` and `leaky_relu` have it in theirs, and a parameter may be called so."""

    def wanted(gm, node):
        called = str(node.target)
        if node.op == "call_module":
            called = type(gm.get_submodule(node.target)).__name__.lower()
        return "relu" in called and node.op.startswith("call")

    def in_place(gm, node):
        known = _is_relu(gm, node)
        return known and _in_place(gm, node)

    return _replace(model, activation, wanted, in_place)


@exercise.mistake
def by_position(model, activation):
    """You look for the input at `node.args[0]`. Where it was given by keyword, `args` is empty and it stands
    in `node.kwargs`."""

    def make(gm, node, activation):
        return gm.graph.call_function(activation, (node.args[0],))

    return _replace(model, activation, make=make)


@exercise.mistake
def without_meta(model, activation):
    """You make a new node and leave `meta` behind. Shapes, stack traces and what other passes have noted
    stand in it; take it over from the node whose place it takes."""
    return _replace(model, activation, keep_meta=False)


@exercise.mistake
def calls_it_on_a_proxy(model, activation):
    """You call `activation` while you build the graph, and what it consists of is recorded in its place. A
    function of torch is one node then; one that is written in Python is several, and its name is lost."""
    return _replace(
        model, activation, make=lambda gm, node, activation: activation(fx.Proxy(_source(node))).node
    )


@exercise.mistake
def not_recompiled(model, activation):
    """You change the graph and leave the code as it was. A graph module runs the code that was made of its
    graph; call `recompile()` after the last change."""
    gm = _copied(model)
    for node in list(gm.graph.nodes):
        if _is_relu(gm, node):
            _put(gm, node, activation)
            gm.graph.erase_node(node)
    return gm


@exercise.mistake
def traced_again(model, activation):
    """You trace a graph module that is given. All nodes of the new trace are new, and what other passes have
    noted in `meta` is lost; copy the graph that is there."""
    return _replace(fx.symbolic_trace(model), activation)


@traced_again.variant
def traced_from_the_module(model, activation):
    return _replace(fx.GraphModule(model, fx.Tracer().trace(copy.deepcopy(model))), activation)


@exercise.mistake
def changes_what_was_given(model, activation):
    """You change the graph of the graph module that was given: it is itself what you return, or yours has the
    same graph object. Copy the graph first."""
    return _replace_in(model if isinstance(model, fx.GraphModule) else fx.symbolic_trace(model), activation)


@changes_what_was_given.form
def shares_the_graph(model, activation):
    traced = model if isinstance(model, fx.GraphModule) else fx.symbolic_trace(model)
    return _replace_in(copy.copy(traced), activation)


@exercise.mistake
def removes_what_nobody_reads(model, activation):
    """You call `eliminate_dead_code`. It removes every node that nobody reads, and with it a change in place
    whose result has no reader; who reads the tensor itself later reads the old values."""
    gm = _replace(model, activation)
    gm.graph.eliminate_dead_code()
    return _finish(gm)
