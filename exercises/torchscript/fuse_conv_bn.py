"""Fold a batch norm into the convolution before it

In evaluation mode a batch norm multiplies each channel by one number and adds another. A convolution can do
that with another weight and another bias. Return an `fx.GraphModule` that computes what `model` computes,
with every batch norm folded into its convolution where that can be done.

A call of an `nn.BatchNorm1d`, `2d` or `3d` is folded where its input is the result of an `nn.Conv1d`, `2d` or
`3d`, unless

- something else reads that result as well,
- one of the two modules is called in another place too,
- the batch norm is in training mode, or keeps no running statistics.

Such a call stays as it is. The mode of the convolution does not matter. (No model here reads a weight of the
two by itself, has one batch norm right behind another, or one whose number of dimensions is not that of its
convolution.)

What was folded has left nothing behind: no call in the graph, no other in its place, no module. The
convolution keeps its name, all its settings and the dtype of its weight; `weight` and `bias` are parameters.

`model` is the same afterwards as before, modules and values, and goes on working. Its parameters may be
tied, its modules nested, and a call may give its input by keyword. `fx.symbolic_trace` can trace it.

What torch offers for the arithmetic (`torch.nn.utils.fuse_conv_bn_weights`) is welcome.

- `fuse_conv_bn(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval())` → a graph with one call, of `0`
"""

import contextlib
import copy

import torch
from torch import fx, nn
from torch.fx.experimental.optimization import fuse
from torch.nn.utils import fuse_conv_bn_weights

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=35,
    hints=[
        "With s = weight / sqrt(running_var + eps) of the batch norm, what is its result as a multiple of "
        "its input plus a number? Put the convolution in the place of that input.",
        "`node.all_input_nodes` are the nodes that a node reads, however they were passed, and `node.users` "
        "those that read it. How many nodes have this `target`? Whose modules are those of a graph module?",
        "Copy the model before you trace it. Give the copy of the convolution new parameters instead of "
        "writing into the old ones; let those who read the batch norm read the convolution, erase the node. "
        "What is left of the batch norm then, and what code does the graph module run?",
    ],
)


@exercise.starter
def fuse_conv_bn(model: nn.Module) -> fx.GraphModule:
    """A model -> the same with batch norms folded into convolutions"""
    raise NotImplementedError


_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d


class _Example:
    """A model of these modules, given as code, with this `forward`; parameters of all kinds."""

    def __init__(self, parts, forward, then="model.eval()", shape=(2, 3, 7, 6), dtype=torch.float32):
        names = {"torch": torch, "nn": nn, "F": nn.functional}
        code = f"def forward(self, x):\n    return {forward}\n"
        exec(code, names)
        model = names["model"] = type("Model", (nn.Module,), {"forward": names["forward"]})()
        for name, part in parts.items():
            setattr(model, name, eval(part, {**names, "self": model}))
        generator = torch.Generator().manual_seed(3)
        for name, values in model.state_dict().items():
            if values.is_floating_point():
                values.uniform_(0.3 if "var" in name else -1.0, 2.0, generator=generator)
        model.to(dtype)
        exec(then, names)
        self.model, self.shape, self.dtype = model, shape, dtype
        self.x = torch.randn(shape, generator=generator).to(dtype)
        self.lines = [f"self.{name} = {part}" for name, part in parts.items()]
        self.lines += [f"def forward(self, x): return {forward}", *then.splitlines()]

    def shown(self, call="fused = fuse_conv_bn(model)"):
        """Messages show the example."""
        return expect.situation(*self.lines, call)

    def fuse(self, fuse_conv_bn):
        """What the answer makes of it."""
        # Before the answer has the model: it may change it.
        oracle = copy.deepcopy(self.model).cpu().double().eval()
        with torch.no_grad():
            self.wanted = oracle(self.x.double())
        result = fuse_conv_bn(self.model)
        evidence.record("graph module", isinstance(result, fx.GraphModule))
        if not isinstance(result, fx.GraphModule):
            raise expect.Mismatch(f"the result is {expect.show(result)}, expected an `fx.GraphModule`")
        is_code = result.code == result.graph.python_code("self").src
        evidence.record("code of the graph", is_code)
        expect.true(is_code, "`fused.code` is not the code of `fused.graph`", "expected: it is")
        return result

    def expect_values(self, result, device="cpu"):
        """In evaluation mode the result computes what the model computes in double precision."""
        with torch.no_grad():
            came = expect.a_tensor(result.eval()(self.x.to(device)), what="`fused(x)`").cpu()
        expect.equal(came.dtype, self.dtype, what="the dtype of `fused(x)`")
        # In bfloat16 right ways to compute it differ by more than evidence overlooks.
        with evidence.silent() if self.dtype == torch.bfloat16 else contextlib.nullcontext():
            expect.close(came, self.wanted, what="`fused(x)`", factor=24)


def _called(result, kinds=nn.Module):
    """The names of the modules of these kinds that the graph calls, in its order."""
    calls = [node.target for node in result.graph.nodes if node.op == "call_module"]
    return [name for name in calls if isinstance(result.get_submodule(name), kinds)]


def _expect_norms(result, wanted):
    calls = _called(result, _NORMS)
    evidence.record("batch norms called", calls)
    if calls != wanted:
        raise expect.Mismatch(
            f"batch norms that are called in the graph: {_listed(calls)}", f"expected: {_listed(wanted)}"
        )


def _listed(names):
    return ", ".join(f"`{name}`" for name in names) or "none"


_PAIR = "self.bn(self.conv(x))"


@exercise.check(deadline=60)
def values(fuse_conv_bn, device):
    """The values, whatever the convolution and the batch norm are set to"""
    for conv, bn, shape in (
        ("nn.Conv2d(3, 4, 3)", "nn.BatchNorm2d(4)", (2, 3, 7, 6)),
        ("nn.Conv2d(3, 4, 3, bias=False)", "nn.BatchNorm2d(4, eps=0.5)", (2, 3, 7, 6)),
        ("nn.Conv2d(4, 6, (3, 2), stride=2, dilation=2, groups=2)", "nn.BatchNorm2d(6)", (1, 4, 9, 8)),
        ("nn.Conv2d(3, 3, 3, padding=2, padding_mode='circular')", "nn.BatchNorm2d(3)", (1, 3, 4, 5)),
        ("nn.Conv1d(3, 4, 3, padding=1, bias=False)", "nn.BatchNorm1d(4, affine=False)", (2, 3, 5)),
        ("nn.Conv3d(2, 2, 2)", "nn.BatchNorm3d(2)", (1, 2, 3, 4, 3)),
    ):
        t = _Example({"conv": conv, "bn": bn}, _PAIR, shape=shape)
        t.model.to(device)
        with t.shown():
            result = t.fuse(fuse_conv_bn)
            t.expect_values(result, device)
            _expect_norms(result, [])


@exercise.check(deadline=60)
def nothing_left(fuse_conv_bn):
    """No call, no module and no operator of what was folded is left, also in nested modules"""
    inner = "nn.Sequential(nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4))"
    parts = {"first": "nn.Conv2d(3, 4, 3)", "bn": "nn.BatchNorm2d(4)", "body": f"nn.Sequential({inner})"}
    t = _Example(parts, "self.body(self.bn(input=self.first(input=x)).relu())")
    with t.shown():
        result = t.fuse(fuse_conv_bn)
        result.graph.lint()
        t.expect_values(result)
        with torch.no_grad(), measure.operators() as before, evidence.silent():
            t.model(t.x)
        with torch.no_grad(), measure.operators() as after, evidence.silent():
            result(t.x)
        norms = "aten.native_batch_norm", "aten._native_batch_norm_legit_no_training", "aten.batch_norm"
        left = after.count(*norms, "aten.cudnn_batch_norm", "aten.miopen_batch_norm")
        expect.true(left == 0, f"batch norms that run in `fused(x)`: {left}", "expected: none")
        with evidence.silent():
            most = before.total() - 2
        expect.at_most(after.total(), most, "operators that run in `fused(x)`")
        calls = _called(result)
        evidence.record("called", calls)
        if calls != ["first", "body.0.0"]:
            raise expect.Mismatch(
                f"modules that the graph calls: {_listed(calls)}", "expected: `first`, `body.0.0`"
            )
        _expect_entries(result, ["body.0.0.bias", "body.0.0.weight", "first.bias", "first.weight"])


def _expect_entries(result, wanted):
    for what, names in (
        ("entries of its `state_dict()`", sorted(result.state_dict())),
        ("its parameters", sorted(name for name, _ in result.named_parameters())),
    ):
        evidence.record(what, names)
        if names != wanted:
            raise expect.Mismatch(f"{what}: {_listed(names)}", f"expected: {_listed(wanted)}")


_CONV, _BN = {"conv": "nn.Conv2d(3, 3, 3, padding=1)"}, {"bn": "nn.BatchNorm2d(3)"}
_TWO = {"conv2": "nn.Conv2d(3, 3, 1)", "bn2": "nn.BatchNorm2d(3)"}


@exercise.check(deadline=60)
def read_by_others(fuse_conv_bn):
    """It goes by who reads what: a batch norm stays where something else reads its input too"""
    for parts, forward, left in (
        ({**_CONV, **_BN}, "(lambda y: self.bn(y) + y)(self.conv(x))", ["bn"]),
        ({**_CONV, **_BN}, "self.conv(self.bn(x))", ["bn"]),
        ({**_CONV, **_BN, **_TWO}, "self.bn2(self.conv2(self.bn(self.conv(x).relu())))", ["bn"]),
        (
            {**_CONV, **_BN, **_TWO},
            "(lambda y, z: self.bn(y) * self.bn2(z))(self.conv(x), self.conv2(x))",
            [],
        ),
        ({**_BN, "up": "nn.ConvTranspose2d(3, 3, 2)"}, "self.bn(self.up(x))", ["bn"]),
    ):
        t = _Example(parts, forward)
        with t.shown():
            result = t.fuse(fuse_conv_bn)
            t.expect_values(result)
            _expect_norms(result, left)


@exercise.check(deadline=60)
def called_twice(fuse_conv_bn):
    """A batch norm stays where one of the two modules is called in two places"""
    for parts, forward, left in (
        ({**_CONV, **_BN}, "self.conv(self.bn(self.conv(x)))", ["bn"]),
        ({**_CONV, **_BN}, "self.bn(self.conv(x)) + self.bn(x)", ["bn", "bn"]),
        ({**_CONV, **_BN, **_TWO}, "self.bn2(self.conv(self.bn(self.conv(x))))", ["bn", "bn2"]),
    ):
        t = _Example(parts, forward)
        with t.shown():
            result = t.fuse(fuse_conv_bn)
            t.expect_values(result)
            _expect_norms(result, left)


@exercise.check(deadline=60)
def modes(fuse_conv_bn):
    """It goes by the mode of each batch norm, and by whether it has running statistics"""
    without = {"bn": "nn.BatchNorm2d(3, track_running_stats=False)"}
    chain = "self.bn2(self.conv2(self.bn(self.conv(x))))"
    for bn, then, left in (
        (_BN, "model.train()", ["bn", "bn2"]),
        (_BN, "model.eval()\nmodel.bn.train()", ["bn"]),
        (_BN, "model.train()\nmodel.bn.eval()", ["bn2"]),
        (without, "model.eval()", ["bn"]),
    ):
        t = _Example({**_CONV, **bn, **_TWO}, chain, then)
        with t.shown():
            result = t.fuse(fuse_conv_bn)
            _expect_norms(result, left)
        with t.shown("fused = fuse_conv_bn(model).eval()"):
            t.expect_values(result)


@exercise.check(deadline=60)
def model_unchanged(fuse_conv_bn):
    """The model is the same afterwards, and tied parameters stay right"""
    nested = {"nested": "nn.Sequential(nn.Conv2d(3, 3, 3, bias=False), nn.BatchNorm2d(3))"}
    parts = {**_CONV, **_BN, "conv2": "nn.Conv2d(3, 3, 3)", **nested}
    then = "model.conv2.weight = model.conv.weight\nmodel.conv2.bias = model.conv.bias\nmodel.eval()"
    t = _Example(parts, "self.nested(self.conv2(self.bn(self.conv(x))))", then)
    before = {name: values.clone() for name, values in t.model.state_dict().items()}
    things = [*t.model.modules(), *t.model.parameters()]
    with t.shown():
        result = t.fuse(fuse_conv_bn)
        now = t.model.state_dict()
        evidence.record("entries", sorted(now))
        new = sorted(set(now) ^ set(before))
        expect.true(
            not new, f"entries that have come to `model.state_dict()` or gone from it: {_listed(new)}"
        )
        for name, values in before.items():
            expect.unchanged(now[name], values, what=f"`model.{name}`")
        still = [*t.model.modules(), *t.model.parameters()]
        same = len(still) == len(things) and all(a is b for a, b in zip(still, things, strict=True))
        expect.true(same, "`model` has other modules or parameters than before", "expected: its own")
        t.expect_values(result)


@exercise.check(deadline=60)
def precision(fuse_conv_bn):
    """The weights keep their dtype, and in double precision no digit is lost"""
    for dtype, then in (
        (torch.float64, "model.double().eval()"),
        (torch.bfloat16, "model.bfloat16().eval()"),
        (torch.bfloat16, "model.bfloat16().eval()\nmodel.bn.float()"),
    ):
        t = _Example({**_CONV, **_BN}, _PAIR, then, dtype=dtype)
        with t.shown():
            result = t.fuse(fuse_conv_bn)
            for name, parameter in result.named_parameters():
                expect.equal(parameter.dtype, dtype, what=f"the dtype of `fused.{name}`")
            t.expect_values(result)


# --- the mistakes -----------------------------------------------------------------------------------------


def _source(node):
    (source,) = node.all_input_nodes
    return source


def _pairs(gm, *, shared_output=False, shared_modules=False, any_mode=False, source_of=_source):
    """The pairs that can be folded; of what must not be, those that a mistake folds too."""
    targets = [node.target for node in gm.graph.nodes if node.op == "call_module"]
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or not isinstance(bn := gm.get_submodule(node.target), _NORMS):
            continue
        source = source_of(node)
        if source.op != "call_module":
            continue
        conv = gm.get_submodule(source.target)
        if not isinstance(conv, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) or bn.running_var is None:
            continue
        if bn.training and not any_mode:
            continue
        if len(source.users) > 1 and not shared_output:
            continue
        if max(targets.count(source.target), targets.count(node.target)) > 1 and not shared_modules:
            continue
        yield source, node, conv, bn


def _factors(bn, eps=None):
    """What a batch norm multiplies by, and what it adds."""
    scale = (bn.running_var + (bn.eps if eps is None else eps)).rsqrt()
    scale = scale if bn.weight is None else scale * bn.weight
    shift = -bn.running_mean * scale
    return scale, shift if bn.bias is None else shift + bn.bias


@torch.no_grad()
def _refill(conv, bn, eps=None):
    """Gives the convolution new parameters."""
    weight, bias = _folded(conv, bn, eps)
    conv.weight, conv.bias = nn.Parameter(weight), nn.Parameter(bias)


@torch.no_grad()
def _folded(conv, bn, eps=None):
    """The weight and the bias with the batch norm in them."""
    scale, shift = _factors(bn, eps)
    weight = conv.weight * scale.view(-1, *[1] * (conv.weight.dim() - 1))
    bias = shift if conv.bias is None else conv.bias * scale + shift
    return weight.to(conv.weight.dtype), bias.to(conv.weight.dtype)


def _drop(gm, source, node):
    node.replace_all_uses_with(source)
    gm.graph.erase_node(node)


def _fold(gm, eps=None, **which):
    for source, node, conv, bn in _pairs(gm, **which):
        _refill(conv, bn, eps)
        _drop(gm, source, node)


def _finish(gm):
    gm.delete_all_unused_submodules()
    gm.recompile()
    return gm


@exercise.mistake
def folds_into_the_model(model):
    """You change the model that was given. `fx.symbolic_trace` makes a new graph around the same modules:
    new weights in one of them are new weights in the model, and its batch norms are applied on top of them.
    Copy the model first."""
    gm = fx.symbolic_trace(model)
    _fold(gm)
    return _finish(gm)


@folds_into_the_model.variant
def graph_around_the_model(model):
    graph = fx.Tracer().trace(model)
    gm = fx.GraphModule(model, graph)
    for source, node, conv, bn in _pairs(gm):
        weight, bias = conv.weight, conv.bias
        conv.weight, conv.bias = fuse_conv_bn_weights(
            weight, bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
        )
        node.replace_all_uses_with(source)
        graph.erase_node(node)
    return _finish(gm)


@exercise.mistake
def writes_into_what_is_tied(model):
    """You write new values into the parameter of the convolution. On a copy of the model that harms nothing,
    but a parameter that is tied to it is the same tensor, and changes as well. Give the convolution a new
    `nn.Parameter`."""
    gm = fx.symbolic_trace(copy.deepcopy(model))
    for source, node, conv, bn in _pairs(gm):
        weight, bias = _folded(conv, bn)
        conv.weight.data = weight
        if conv.bias is None:
            conv.bias = nn.Parameter(bias)
        else:
            conv.bias.data = bias
        _drop(gm, source, node)
    return _finish(gm)


@writes_into_what_is_tied.form
def writes_into_the_weight(model):
    gm = fx.symbolic_trace(copy.deepcopy(model))
    for source, node, conv, bn in _pairs(gm):
        weight, bias = _folded(conv, bn)
        conv.weight.data.copy_(weight)
        conv.bias = nn.Parameter(bias)
        _drop(gm, source, node)
    return _finish(gm)


@writes_into_what_is_tied.form
def writes_into_the_bias(model):
    gm = fx.symbolic_trace(copy.deepcopy(model))
    for source, node, conv, bn in _pairs(gm):
        weight, bias = _folded(conv, bn)
        if conv.bias is None:
            conv.bias = nn.Parameter(bias)
        conv.bias.data.copy_(bias)
        conv.weight = nn.Parameter(weight)
        _drop(gm, source, node)
    return _finish(gm)


@exercise.mistake
def takes_the_node_before(model):
    """You take the node that stands before the batch norm in the graph for the one that it reads. Often it
    is; the order of the nodes says when they run, and `args` and `kwargs` what they read."""
    gm = fx.symbolic_trace(copy.deepcopy(model))
    before = {node: node.prev for node in gm.graph.nodes}
    for source, node, conv, bn in _pairs(gm, source_of=before.get):
        _refill(conv, bn)
        _drop(gm, source, node)
    return _finish(gm)


@exercise.mistake
def folds_what_others_read(model):
    """You fold a convolution whose result something else reads. That now reads the result after the batch
    norm. `node.users` says who reads a node; it has to be one."""
    gm = fx.symbolic_trace(copy.deepcopy(model))
    _fold(gm, shared_output=True)
    return _finish(gm)


@exercise.mistake
def folds_what_is_called_twice(model):
    """You fold where a module is called in two places. There is one convolution with one weight, so its other
    call gets the batch norm as well. Count the nodes with the same `target`."""
    gm = fx.symbolic_trace(copy.deepcopy(model))
    _fold(gm, shared_modules=True)
    return _finish(gm)


@folds_what_is_called_twice.variant
def counts_the_batch_norm_alone(model):
    gm = fx.symbolic_trace(copy.deepcopy(model))
    calls = [node.target for node in gm.graph.nodes]
    for source, node, conv, bn in _pairs(gm, shared_modules=True):
        if calls.count(node.target) == 1:
            _refill(conv, bn)
            _drop(gm, source, node)
    return _finish(gm)


@exercise.mistake
def torchs_own(model):
    """This is what torch's own `fuse` does, in `torch.fx.experimental.optimization`. It does not ask how
    often a module is called, so other calls get the batch norm too; it overlooks inputs given by keyword, and
    raises for a model in training mode."""
    return fuse(model)


@exercise.mistake
def folds_in_training_mode(model):
    """You fold a batch norm that is in training mode. There it normalises by the batch in front of it, and
    no weights of a convolution do that. Look at the batch norm's own `training`: part of a model may be
    frozen."""
    gm = fx.symbolic_trace(copy.deepcopy(model))
    _fold(gm, any_mode=True)
    return _finish(gm)


@folds_in_training_mode.form
def goes_by_the_mode_of_the_model(model):
    gm = fx.symbolic_trace(copy.deepcopy(model))
    for source, node, conv, bn in _pairs(gm, any_mode=True):
        if not model.training:
            _refill(conv, bn)
            _drop(gm, source, node)
    return _finish(gm)


@exercise.mistake
def without_eps(model):
    """You divide by the root of the variance alone. The batch norm adds its `eps` to it first, and that need
    not be small."""
    gm = fx.symbolic_trace(copy.deepcopy(model))
    _fold(gm, eps=0)
    return _finish(gm)


@exercise.mistake
def without_a_new_bias(model):
    """You fold the bias where there is one. Where there is none it was zero, and after the batch norm it is
    not: its mean and its own bias have to go somewhere. Give such a convolution a bias."""
    gm = fx.symbolic_trace(copy.deepcopy(model))
    for source, node, conv, bn in _pairs(gm):
        had = conv.bias is not None
        _refill(conv, bn)
        if not had:
            conv.bias = None
        _drop(gm, source, node)
    return _finish(gm)


@exercise.mistake
def without_the_old_bias(model):
    """You leave out the bias that the convolution had. The batch norm multiplies what comes out of it, the
    bias included: the new one is `scale * (bias - running_mean)` and the bias of the batch norm."""
    gm = fx.symbolic_trace(copy.deepcopy(model))
    for source, node, conv, bn in _pairs(gm):
        conv.bias = None
        _refill(conv, bn)
        _drop(gm, source, node)
    return _finish(gm)


@exercise.mistake
def leaves_the_module(model):
    """You erase the call of the batch norm and keep the module: its parameters and statistics are still in
    the `state_dict`, are saved and moved with the rest, and are used by nothing."""
    gm = fx.symbolic_trace(copy.deepcopy(model))
    _fold(gm)
    gm.recompile()
    return gm


@exercise.mistake
def not_recompiled(model):
    """You change the graph and leave the code as it was. A graph module runs the code that was made of its
    graph; call `recompile()` after the last change."""
    gm = fx.symbolic_trace(copy.deepcopy(model))
    _fold(gm)
    return gm
