"""Each element of a result is a sum of products, and there are as many multiplications as additions in it
(the first is added to zero). So the number is `2 * result.numel()` times the length of the sum: broadcasting,
stride and padding are all in the number of elements.

How long the sum is stands in one of the two factors: the last dimension of the first factor of a product; in
a convolution all dimensions of the weight but the first, which have been divided by the groups already.

An interpreter runs the graph node by node on real tensors, so the shapes are there to be read, and it returns
what the model returns: nothing has to run a second time. torch's `FlopCounterMode` does the same one level
below, for the operators under autograd. It knows `mm` and `bmm` and no `mv`: a matrix times a vector counts
nothing there.
"""

from typing import Any

import torch
from torch import Tensor, fx, nn

# Where the tensor stands that says how long the sum is: its position, and its keyword.
FACTOR = {
    "linear": (0, "input"),
    "mm": (0, "input"),
    "bmm": (0, "input"),
    "matmul": (0, "input"),
    "addmm": (1, "mat1"),
    "baddbmm": (1, "batch1"),
    "conv1d": (1, "weight"),
    "conv2d": (1, "weight"),
    "conv3d": (1, "weight"),
}


def count_flops(model: nn.Module, *inputs: Tensor) -> tuple[Tensor, dict[str, int]]:
    """The result of the model, and the operations of each node"""
    counting = Counting(fx.symbolic_trace(model))
    return counting.run(*inputs), counting.flops


class Counting(fx.Interpreter):
    """Runs a graph and counts."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.flops: dict[str, int] = {}

    def run_node(self, node: fx.Node) -> Any:
        result = super().run_node(node)
        if length := self.length_of_sum(node):
            self.flops[node.name] = 2 * result.numel() * length
        return result

    def length_of_sum(self, node: fx.Node) -> int | None:
        """How many products each element of the result adds up; None where it is no such sum."""
        if node.op == "call_module":
            module = self.fetch_attr(node.target)
            if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
                return module.weight.shape[1:].numel()
        elif node.op in ("call_function", "call_method"):
            name = getattr(node.target, "__name__", node.target)
            if name in FACTOR:
                args, kwargs = self.fetch_args_kwargs_from_env(node)
                position, keyword = FACTOR[name]
                factor = kwargs[keyword] if keyword in kwargs else args[position]
                return factor.shape[1:].numel() if keyword == "weight" else factor.shape[-1]
        return None


# Other right answers


def _by_kind_of_node(model, *inputs):
    flops = {}
    seen = {}

    class Interpreter(fx.Interpreter):
        def run_node(self, n):
            seen["node"] = n.name
            return super().run_node(n)

        def note(self, out, inner):
            flops[seen["node"]] = 2 * inner * out.nelement()
            return out

        def call_module(self, target, args, kwargs):
            out = super().call_module(target, args, kwargs)
            match self.submodules[target]:
                case nn.Linear(in_features=size):
                    return self.note(out, size)
                case nn.Conv1d() | nn.Conv2d() | nn.Conv3d() as conv:
                    return self.note(out, conv.weight.numel() // conv.out_channels)
            return out

        def call_function(self, target, args, kwargs):
            return self.named(target.__name__, super().call_function(target, args, kwargs), args, kwargs)

        def call_method(self, target, args, kwargs):
            return self.named(target, super().call_method(target, args, kwargs), args, kwargs)

        def named(self, name, out, args, kwargs):
            args = dict(enumerate(args)) | kwargs
            if name in ("mm", "bmm", "matmul", "linear"):
                return self.note(out, args.get("input", args.get(0)).size(-1))
            if name in ("addmm", "baddbmm"):
                second = args.get("mat2", args.get("batch2", args.get(2)))
                return self.note(out, second.size(-2))
            if name in ("conv1d", "conv2d", "conv3d"):
                weight = args["weight"] if "weight" in args else args[1]
                return self.note(out, weight.numel() // weight.size(0))
            return out

    interpreter = Interpreter(fx.symbolic_trace(model))
    interpreter.submodules = dict(interpreter.module.named_modules())
    return interpreter.run(*inputs), flops


def _from_noted_shapes(model, *inputs):
    """Notes the shapes in the graph while it runs, and reads the graph afterwards."""

    class Noting(fx.Interpreter):
        def run_node(self, n):
            out = super().run_node(n)
            n.meta["shape"] = getattr(out, "shape", None)
            return out

    traced = fx.symbolic_trace(model)
    out, flops = Noting(traced).run(*inputs), {}
    for n in traced.graph.nodes:
        if n.op == "call_module":
            weight = getattr(traced.get_submodule(n.target), "weight", None)
            known = isinstance(traced.get_submodule(n.target), (nn.Linear, nn.modules.conv._ConvNd))
            length = weight.numel() // len(weight) if known else 0
        else:
            name = n.target if n.op == "call_method" else getattr(n.target, "__name__", "")
            length = _length(name, n.args, n.kwargs)
        if length:
            flops[n.name] = length * n.meta["shape"].numel() * 2
    return out, flops


def _length(name, args, kwargs):
    if name in ("mm", "bmm", "matmul", "linear"):
        return (args[0] if args else kwargs["input"]).meta["shape"][-1]
    if name in ("addmm", "baddbmm"):
        factors = [*args[1:2], *(value for key, value in kwargs.items() if key in ("mat1", "batch1"))]
        return factors[0].meta["shape"][-1]
    if name in ("conv1d", "conv2d", "conv3d"):
        weight = kwargs.get("weight") or args[1]
        return weight.meta["shape"][1:].numel()
    return 0


also_right = [_by_kind_of_node, _from_noted_shapes]

equivalent = {
    "line 8: `0` -> `1`": "The weight of a linear layer has the inputs in its last dimension as well.",
}


def generated(count_flops):
    class Model(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(outputs, inputs))
            self.bias = nn.Parameter(torch.randn(outputs))

        def forward(self, x):
            y = nn.functional.linear(x, self.weight, self.bias)
            return nn.functional.linear(input=y, weight=self.weight.t()) @ self.weight.t()

    for inputs, outputs in ((3, 4), (5, 2), (1, 3)):
        for shape in ((2, inputs), (2, 3, inputs)):
            yield count_flops(Model(inputs, outputs), torch.randn(shape))
