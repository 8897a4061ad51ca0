"""Each element of a result is a sum of products, with as many additions as multiplications (the first product
is added to zero). So the number is `2 * result.numel()` times the length of the sum. Broadcasting, stride and
padding are all in the number of elements.

You can read the length of the sum from one factor: the last dimension of the first factor of a product; in a
convolution, all dimensions of the weight but the first. These are already divided by the groups.

An interpreter runs the graph node by node on real tensors, so the shapes are there. It returns what the model
returns, so nothing runs twice. torch's `FlopCounterMode` does the same one level below, for the operators
under autograd. It knows `mm` and `bmm` but not `mv`: a matrix times a vector counts nothing there.
"""

from typing import Any

from torch import Tensor, fx, nn


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
        if (length := self.length_of_sum(node)) is not None:
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
            if name == "matmul":
                args, _ = self.fetch_args_kwargs_from_env(node)
                return args[0].shape[-1]
        return None


# Other right answers

import operator

import torch

from course_utils.exercise import Edit, Wrong


def _by_the_second_factor(model, *inputs):
    flops = {}

    class Interpreter(fx.Interpreter):
        def run_node(self, n):
            out, length = super().run_node(n), 0
            if n.op == "call_module":
                weight = getattr(self.fetch_attr(n.target), "weight", torch.zeros(0))
                length = weight[0].numel() if weight.dim() > 1 else 0
            elif n.op != "get_attr" and n.target in ("matmul", torch.matmul, operator.matmul):
                length = self.env[n.args[1]].size(-2)
            if length:
                flops[n.name] = 2 * out.numel() * length
            return out

    return Interpreter(fx.symbolic_trace(model), garbage_collect_values=False).run(*inputs), flops


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
        module = traced.get_submodule(n.target) if n.op == "call_module" else None
        if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)):
            flops[n.name] = 2 * n.meta["shape"].numel() * module.weight.numel() // len(module.weight)
        elif n.op != "get_attr" and n.target in ("matmul", torch.matmul, operator.matmul):
            flops[n.name] = 2 * n.meta["shape"].numel() * n.args[0].meta["shape"][-1]
    return out, flops


also_right = [_by_the_second_factor, _from_noted_shapes]


# Mistakes


def _runs_it_twice(model, *inputs):
    return model(*inputs), count_flops(model, *inputs)[1]


mistakes = [
    Edit("half of them", "2 * result.numel()", "result.numel()", told_by="linear_layers"),
    Edit(
        "one matrix of the batch",
        "2 * result.numel() * length",
        "2 * result.shape[-2:].numel() * length",
        told_by="linear_layers",
    ),
    Edit(
        "no methods",
        'in ("call_function", "call_method")',
        '== "call_function"',
        told_by="products",
    ),
    Edit(
        "without groups",
        "module.weight.shape[1:].numel()",
        'module.weight.shape[1:].numel() * getattr(module, "groups", 1)',
        told_by="convolutions",
    ),
    Edit(
        "named after the target",
        "self.flops[node.name]",
        'self.flops[getattr(node.target, "__name__", node.target)]',
        told_by="every_node",
    ),
    Wrong(_runs_it_twice, told_by="runs_once"),
    Edit(
        "runs a copy",
        "fx.symbolic_trace(model)",
        "fx.symbolic_trace(__import__('copy').deepcopy(model))",
        told_by="runs_once",
    ),
]

not_tried = {
    "hard numbers": "sizes are counted",
    "dtypes": "sizes are counted",
    "left alone": "a run changes a batch norm",
    "seeds": "sizes are counted",
}
