"""Another activation in the place of every ReLU

Return an `fx.GraphModule` that computes what `model` computes with `activation`, a function of one tensor, in
the place of every ReLU. A ReLU may be written as

- `nn.ReLU()` and `nn.ReLU(inplace=True)`, one module called in many places or many modules;
- `F.relu(x)`, also with `inplace=True`, `torch.relu(x)` and `x.relu()`;
- `torch.relu_(x)`, `F.relu_(x)` and `x.relu_()`,

with its input by position or by keyword. All else stays, `nn.ReLU6` and `nn.LeakyReLU` for example.

A ReLU in place changes its input, and who reads that tensor later, by whatever name, reads what was written.
It has to read the result of `activation` then, and who reads it before has to read what was there.
`activation` makes a new tensor and writes into nothing. (No model here reads a view of what is changed in
place.)

In what you return, each ReLU is one call of `activation` in the graph, with the `meta` of the node whose
place it takes. The other nodes keep their names, their order and their `meta`, and the graph its output. No
ReLU is left among the modules. The code is that of the graph, and gradients flow.

`model` is an `nn.Module` that `fx.symbolic_trace` can trace, or an `fx.GraphModule`, whose nodes may carry
`meta`. It is the same afterwards as before.

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
    minutes=30,
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

    def __init__(self, *forward, traced=False, **parts):
        names = {"torch": torch, "nn": nn, "F": F}
        exec("\n    ".join(["def forward(self, x):", *forward]), names)
        self.model = type("Model", (nn.Module,), {"forward": names["forward"]})()
        for name, part in parts.items():
            setattr(self.model, name, eval(part, names))
        self.lines = [f"self.{name} = {part}" for name, part in parts.items()]
        self.lines += ["def forward(self, x):", *forward]
        self.call = "new = replace_activation(model, F.gelu)"
        if traced:
            self.model = fx.symbolic_trace(self.model)
            self.call = "new = replace_activation(fx.symbolic_trace(model), F.gelu)"
        self.x = torch.linspace(-2, 2, 12).view(3, 4)

    def shown(self):
        """Messages show the example."""
        return expect.situation(*self.lines, self.call)

    def replace(self, replace_activation):
        """What the answer makes of it."""
        result = replace_activation(self.model, F.gelu)
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
        return result

    def expect_values(self, result):
        """The result computes what the model does where every ReLU is intercepted."""
        with _Instead():
            wanted = self.model(self.x.clone())
        came = result(self.x.clone())
        expect.equal(came, wanted, what="`new(x)`")
        return came


class _Instead(TorchFunctionMode):
    """The oracle: whenever a ReLU is called, gelu runs instead, in place where the ReLU was."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func not in (*_OUT_OF_PLACE, *_IN_PLACE):
            return func(*args, **kwargs)
        x = kwargs.pop("input", args[0] if args else None)
        inplace = func in _IN_PLACE or kwargs.get("inplace", args[1] if len(args) > 1 else False)
        value = F.gelu(x.clone())
        return x.copy_(value) if inplace else value


_OUT_OF_PLACE = F.relu, torch.relu, Tensor.relu
_IN_PLACE = torch.relu_, F.relu_, Tensor.relu_


def _expect_calls(result, number):
    """So many calls of gelu in the graph, and no ReLU anywhere."""
    calls = sum(node.op == "call_function" and node.target is F.gelu for node in result.graph.nodes)
    left = [str(node) for node in result.graph.nodes if _is_relu(result, node)]
    evidence.record("calls", [calls, left])
    if left:
        raise expect.Mismatch(f"nodes that still call a ReLU: {_listed(left)}", "expected: none")
    if calls != number:
        raise expect.Mismatch(f"nodes that call `activation`: {calls}, expected {number}")


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
        "self.act(self.linear(x)) * 2",
        "self.act(input=self.linear(x)) * 2",
        "F.relu(self.linear(x)) * 2",
        "F.relu(input=self.linear(x), inplace=False) * 2",
        "torch.relu(self.linear(x)) * 2",
        "torch.relu(input=self.linear(x)) * 2",
        "self.linear(x).relu() * 2",
        "F.relu(self.linear(x), inplace=True) * 2",
        "F.relu(self.linear(x), True) * 2",
        "torch.relu_(self.linear(x)) * 2",
        "self.linear(x).relu_() * 2",
    ):
        act = {"act": "nn.ReLU()"} if "self.act" in line else {}
        t = _Example(f"return {line}", **_LINEAR, **act)
        with t.shown():
            result = t.replace(replace_activation)
            t.expect_values(result)
            _expect_calls(result, 1)


@exercise.check(deadline=60)
def others_stay(replace_activation):
    """Other activations, other modules and other methods stay"""
    t = _Example(
        "x = self.six(self.leaky(self.linear(x))).clamp(min=0.1)",
        "return F.leaky_relu(F.relu6(x) + self.relu, 0.2)",
        **_LINEAR,
        six="nn.ReLU6()",
        leaky="nn.LeakyReLU(0.3)",
        relu="nn.Parameter(torch.ones(4))",
    )
    with t.shown():
        result = t.replace(replace_activation)
        t.expect_values(result)
        _expect_calls(result, 0)


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
        t.expect_values(result)
        _expect_calls(result, 4)
        left = [name for name, module in result.named_modules() if isinstance(module, nn.ReLU)]
        evidence.record("left", left)
        expect.true(not left, f"modules of `new` that are a ReLU: {_listed(left)}", "expected: none")
        now = dict(t.model.named_modules(remove_duplicate=False))
        same = now.keys() == before.keys() and all(now[name] is before[name] for name in before)
        expect.true(same, "`model` has other modules than before", "expected: its own")


@exercise.check(deadline=60)
def read_later(replace_activation):
    """Who reads a tensor after a ReLU in place reads the new values, by whatever name"""
    for lines in (
        ("y = self.linear(x)", "z = self.act(y)", "return y + z * 2"),
        ("y = self.linear(x)", "F.relu(y, inplace=True)", "return y * 2"),
        ("y = self.linear(x)", "y.relu_()", "z = y * 2", "torch.relu_(input=y)", "return y + z"),
        ("y = self.linear(x)", "a = F.relu_(y)", "b = y.relu_()", "return a * 2 + b * 3 + y"),
    ):
        act = {"act": "nn.ReLU(inplace=True)"} if "self.act" in " ".join(lines) else {}
        t = _Example(*lines, **_LINEAR, **act)
        with t.shown():
            result = t.replace(replace_activation)
            t.expect_values(result)
            _expect_calls(result, sum(bool(re.search("relu|act", line)) for line in lines))


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
    before = _noted(t.model)
    # A ReLU's place in a graph is that of the activation.
    wanted = [(None if number in (2, 4) else name, number) for name, number in before]
    with t.shown():
        result = t.replace(replace_activation)
        t.expect_values(result)
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
        modules = list(t.model.modules())
        with t.shown():
            result = t.replace(replace_activation)
            expect.equal(t.model(t.x.clone()), before(t.x.clone()), what="`model(x)` afterwards")
            still = list(t.model.modules())
            same = len(still) == len(modules) and all(a is b for a, b in zip(still, modules, strict=True))
            expect.true(same, "`model` has other modules than before", "expected: its own")
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


def _put(gm, node, activation, keep_meta=True):
    """Another node in the place of this one."""
    with gm.graph.inserting_before(node):
        new = gm.graph.call_function(activation, (_source(node),))
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


def _replace(model, activation, wanted=_is_relu, in_place=_in_place, keep_meta=True):
    """As it should be done; each mistake changes one thing."""
    gm = _copied(model)
    for node in list(gm.graph.nodes):
        if wanted(gm, node):
            new = _put(gm, node, activation, keep_meta)
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
    gm = _copied(model)
    for node in list(gm.graph.nodes):
        if _is_relu(gm, node):
            with gm.graph.inserting_before(node):
                new = gm.graph.call_function(activation, (node.args[0],))
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)
            if _in_place(gm, node):
                _redirect(gm, node, new)
            gm.graph.erase_node(node)
    return _finish(gm)


@exercise.mistake
def without_meta(model, activation):
    """You make a new node and leave `meta` behind. Shapes, stack traces and what other passes have noted
    stand in it; take it over from the node whose place it takes."""
    return _replace(model, activation, keep_meta=False)
