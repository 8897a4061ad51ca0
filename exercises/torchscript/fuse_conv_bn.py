"""Fold a batch norm into the convolution before it

In evaluation mode a batch norm multiplies each channel by a number and adds another. A convolution can do
that with another weight and bias. Return an `fx.GraphModule` that computes what `model` computes, with each
`nn.BatchNorm2d` folded into the `nn.Conv2d` whose result it reads. All batch norms keep running statistics;
modules may share parameters.

- Don't fold a batch norm in training mode, or where something else reads the convolution's result, or where
  one of the two modules is also used elsewhere, called or read.
- A folded batch norm leaves no call and no module. `model` doesn't change.

`fuse_conv_bn(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval())` → a graph with one call, of `0`

`torch.nn.utils.fuse_conv_bn_weights` does the arithmetic, if you like.
"""

import copy

import torch
from torch import fx, nn

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits.traced import expect_graph_module

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "Let s be weight / sqrt(running_var + eps) of the batch norm. Write its result as a multiple of its "
        "input plus a number. Then put the convolution in the place of the input.",
        "`node.args[0]` is the node that a batch norm reads; `node.users` are the nodes that read a result. "
        "How many nodes have this `target`? Whose modules does a graph module call?",
        "Copy the model before you trace it. Give the copied convolution new parameters; don't write into "
        "the old ones. Let the readers of the batch norm read the convolution, and erase the node. What's "
        "left of the batch norm, and what code does the graph module run?",
    ],
)


@exercise.starter
def fuse_conv_bn(model: nn.Module) -> fx.GraphModule:
    """A model -> the same with batch norms folded into convolutions"""
    raise NotImplementedError


_MODEL = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
{parts}

    def forward(self, x):
        {forward}

torch.manual_seed(3)
model = Model()
for name, values in model.state_dict().items():
    if values.is_floating_point():
        values.uniform_(0.3 if "var" in name else -1.0, 2.0)
model.eval()
{then}
x = torch.randn(2, 3, 7, 6)"""
_CONV, _BN = {"conv": "nn.Conv2d(3, 3, 3, padding=1)"}, {"bn": "nn.BatchNorm2d(3)"}
_CHAIN = "self.bn(self.conv(x))"
_TWO = {"conv2": "nn.Conv2d(3, 3, 1)", "bn2": "nn.BatchNorm2d(3)"}


def _given(fuse_conv_bn, parts, forward, then="", to="", device="cpu"):
    """(the example, what its model gives). `to`: code for a move of the model and its input."""
    lines = "\n".join(f"        self.{name} = {part}" for name, part in parts.items())
    forward = forward if "\n" in forward else f"return {forward}"
    then = "\n".join(line for line in (then, f"model{to}" if to else "") if line)
    setup = _MODEL.format(parts=lines, forward=forward.replace("\n", "\n        "), then=then)
    t = expect.given(setup.replace("\n\nx =", "\nx =") + to, fuse_conv_bn=fuse_conv_bn, device=device)
    with torch.no_grad():  # before the answer has the model: it may change it
        return t, copy.deepcopy(t.model).cpu().double().eval()(t.x.cpu().double())


def _fuse(t):
    t.run("fused = fuse_conv_bn(model)")
    expect_graph_module(t, "fused")


def _expect_fused(fuse_conv_bn, parts, forward, left, then="", to="", device="cpu", training=False):
    """The values are right, and of batch norms only those that are `left` are called; `training`: they are in
    training mode."""
    t, wanted = _given(fuse_conv_bn, parts, forward, then, to, device)
    _fuse(t)
    norms = [name for name in _calls(t.fused) if isinstance(t.fused.get_submodule(name), nn.BatchNorm2d)]
    expect.true(norms == left, f"batch norms that are called: {_listed(norms)}", f"expected: {_listed(left)}")
    for name in left if training else []:
        expect.equal(t.call(f"fused.{name}.training"), True)
    with torch.no_grad():
        came = expect.a_tensor(t.call("fused.eval()(x)"))
    expect.equal(came.dtype, t.x.dtype, what="the dtype of `fused.eval()(x)`")
    expect.close(came, wanted, what="`fused.eval()(x)`", factor=64)


def _calls(fused):
    return [node.target for node in fused.graph.nodes if node.op == "call_module"]


def _listed(names):
    return ", ".join(f"`{name}`" for name in names) or "none"


_NESTED = {
    "first": "nn.Conv2d(3, 4, 3)",
    "bn": "nn.BatchNorm2d(4)",
    "body": "nn.Sequential(nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)))",
}
_THROUGH_NESTED = "self.body(self.bn(self.first(x)).relu())"


@exercise.check(deadline=60)
def nothing_left(fuse_conv_bn):
    """No call and no module of what was folded is left, also in nested modules

    `erase_node` removes the call from the graph. The graph module runs old code until `recompile`. The module
    stays, also in `state_dict()`, until something removes it, such as `delete_all_unused_submodules`.
    """
    t, _ = _given(fuse_conv_bn, _NESTED, _THROUGH_NESTED)
    _fuse(t)
    expect.equal(_calls(t.fused), ["first", "body.0.0"], what="the list of modules that the graph calls")
    wanted = ["body.0.0.bias", "body.0.0.weight", "first.bias", "first.weight"]
    expect.equal(sorted(t.fused.state_dict()), wanted, what="`sorted(fused.state_dict())`")
    named = sorted(name for name, _ in t.fused.named_parameters())
    expect.equal(named, wanted, what="the sorted list of names in `fused.named_parameters()`")


@exercise.check(deadline=60)
def values(fuse_conv_bn, device):
    """The values, with any settings of the convolution and the batch norm

    s * (W x + b - running_mean) + bias is a convolution with the weight s * W. The factor s belongs to an
    output channel, the first dimension of the weight, with groups too. Without a bias b is 0. Without
    `affine` the batch norm has no weight and no bias. `eps` is inside the root.
    """
    to = ".to(device)" if str(device) != "cpu" else ""
    with Rows() as rows:
        for conv, bn in (
            ("nn.Conv2d(3, 4, 3)", "nn.BatchNorm2d(4)"),
            ("nn.Conv2d(3, 4, 3, bias=False)", "nn.BatchNorm2d(4, eps=0.5)"),
            ("nn.Conv2d(3, 6, (3, 2), stride=2, dilation=2, groups=3)", "nn.BatchNorm2d(6)"),
            ("nn.Conv2d(3, 4, 3, padding=2, padding_mode='circular')", "nn.BatchNorm2d(4, affine=False)"),
        ):
            with rows.of(f"`{conv}, {bn}`"):
                _expect_fused(fuse_conv_bn, {"conv": conv, "bn": bn}, _CHAIN, [], to=to, device=device)
        with rows.of("nested modules"):
            _expect_fused(fuse_conv_bn, _NESTED, _THROUGH_NESTED, [], to=to, device=device)
        if not to:
            with rows.of("in float64"):
                _expect_fused(fuse_conv_bn, {**_CONV, **_BN}, _CHAIN, [], to=".double()")


@exercise.check(deadline=60)
def read_by_others(fuse_conv_bn):
    """A batch norm stays where something else reads its input too

    A convolution has one weight, for all that read its result. Another reader would get the batch norm too.
    Neighbours in the list of nodes needn't read each other: look at `args` and `users`.
    """
    with Rows() as rows:
        for label, parts, forward, left in (
            ("a second reader", {**_CONV, **_BN}, "y = self.conv(x)\nreturn self.bn(y) + y", ["bn"]),
            ("a batch norm before", {**_CONV, **_BN}, "self.conv(self.bn(x))", ["bn"]),
            ("something between", {**_CONV, **_BN}, "self.bn(self.conv(x).relu())", ["bn"]),
            (
                "two pairs side by side",
                {**_CONV, **_BN, **_TWO},
                "y, z = self.conv(x), self.conv2(x)\nreturn self.bn(y) * self.bn2(z)",
                [],
            ),
        ):
            with rows.of(label):
                _expect_fused(fuse_conv_bn, parts, forward, left)


@exercise.check(deadline=60)
def used_twice(fuse_conv_bn):
    """A batch norm stays where one of the two modules is used in two places

    A module that is called twice has one weight for both calls. A `get_attr` node, with the target
    `conv.weight`, reads that weight too. A later pair in the graph can still be folded.
    """
    with Rows() as rows:
        for label, forward, left in (
            ("the convolution", "self.bn2(self.conv2(self.conv(self.bn(self.conv(x)))))", ["bn"]),
            ("the batch norm", "self.bn2(self.conv2(self.bn(self.conv(x)) + self.bn(x)))", ["bn", "bn"]),
            ("a weight", "self.bn2(self.conv2(self.bn(self.conv(x)) + self.conv.weight.mean()))", ["bn"]),
        ):
            with rows.of(label):
                _expect_fused(fuse_conv_bn, {**_CONV, **_BN, **_TWO}, forward, left)


@exercise.check(deadline=60)
def modes(fuse_conv_bn):
    """It goes by the mode of each batch norm

    In training mode a batch norm uses the statistics of the current batch. The mode is an attribute of each
    module: a batch norm may be in evaluation mode while its neighbour isn't.
    """
    chain = "self.bn2(self.conv2(self.bn(self.conv(x))))"
    with Rows() as rows:
        for then, left in (("model.bn.train()", ["bn"]), ("model.train()\nmodel.bn.eval()", ["bn2"])):
            with rows.of(f"`{then}`".replace("\n", "; ")):
                _expect_fused(fuse_conv_bn, {**_CONV, **_BN, **_TWO}, chain, left, then, training=True)


@exercise.check(deadline=60)
def model_unchanged(fuse_conv_bn):
    """The model doesn't change, and tied parameters stay right

    A graph module from `fx.symbolic_trace` calls the model's own modules, not copies. Two modules may also
    share a parameter: a write into it would reach both.
    """
    parts, forward = {**_CONV, **_BN, "conv2": "nn.Conv2d(3, 3, 3)"}, "self.conv2(self.bn(self.conv(x)))"
    then = "model.conv2.weight, model.conv2.bias = model.conv.weight, model.conv.bias"
    t, _ = _given(fuse_conv_bn, parts, forward, then)
    names = [name for name, _ in t.model.named_modules()]
    with expect.left_alone(t.model, what="model"):
        _fuse(t)
    now = [name for name, _ in t.model.named_modules()]
    expect.equal(now, names, what="the names of the modules of `model` afterwards")
    _expect_fused(fuse_conv_bn, parts, forward, [], then)
