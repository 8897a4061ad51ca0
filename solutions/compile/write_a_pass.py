"""A sum is replaced if one operand is a product of two tensors that no other node reads. The new node goes
where the sum stood, the sum's readers get the new node, and the two old ones are erased, the reader first.

The product now runs later than before. The result is the same if nothing was written in between. There may be
views of `a`, so any write is reason to leave both, and so is a node without a tensor as its value, such as a
switch of grad mode. The graph doesn't say what a write is for, so nodes without readers aren't dead, and only
the two replaced nodes are erased.

A pass over the graphs of AOTAutograd has less to look out for: they are functionalized, and most writes to
elements of an input come at the end, as a `copy_`."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

PRODUCTS = (operator.mul, torch.mul, "mul")
SUMS = (operator.add, torch.add, "add")


def write_a_pass(gm: fx.GraphModule, example_inputs: list[Tensor]) -> Callable:
    graph = gm.graph
    for node in list(graph.nodes):
        for product, other in _summands(node)[:1]:
            with graph.inserting_before(node):
                fused = graph.call_function(torch.addcmul, (other, *product.args))
            node.replace_all_uses_with(fused, propagate_meta=True)
            graph.erase_node(node)
            graph.erase_node(product)
    gm.recompile()
    return gm


def _summands(node: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
    """Each product that can be fused into this sum, and the other operand."""
    if not _is_call(node, SUMS):
        return []
    return [
        (product, other)
        for product, other in (node.args, node.args[::-1])
        if _is_call(product, PRODUCTS) and list(product.users) == [node] and product is not other
        if not _changes_between(product, node)
    ]


def _is_call(node: fx.Node, targets: tuple) -> bool:
    """A call of one of these with two tensors and nothing else."""
    return node.target in targets and not node.kwargs and all(map(_is_tensor, node.args))


def _is_tensor(argument: Any) -> bool:
    return isinstance(argument, fx.Node) and isinstance(argument.meta.get("example_value"), Tensor)


def _changes_between(start: fx.Node, end: fx.Node) -> bool:
    while start is not end and not _may_write(start):
        start = start.next
    return start is not end


def _may_write(node: fx.Node) -> bool:
    """Names of what works in place end in `_` or, as `isub`, begin with an i; others have a keyword for it.
    (Some that don't write look so, which may cost a fusion.)"""
    name = node.target if isinstance(node.target, str) else node.target.__name__
    return name.endswith("_") or name[0] == "i" or bool(node.kwargs) or not _is_tensor(node)


# Other right answers

from course_utils.exercise import Edit


def gives_the_sum_another_target(gm, example_inputs):
    """The node of the sum stays and becomes the new operator. What comes between is found by place."""
    nodes = list(gm.graph.nodes)
    changes = [i for i, n in enumerate(nodes) if n.op.startswith("call") and _may_write(n)]
    for product in nodes:
        if product.target not in (torch.mul, operator.mul, "mul") or len(product.users) != 1:
            continue
        total = next(iter(product.users))
        parts = [*total.args, *product.args]
        if total.target not in (torch.add, operator.add, "add") or total.kwargs or product.kwargs:
            continue
        if total.args[0] is total.args[1] or not all(map(_is_tensor, parts)):
            continue
        if any(nodes.index(product) < i < nodes.index(total) for i in changes):
            continue
        (other,) = (part for part in total.args if part is not product)
        total.op, total.target, total.args = "call_function", torch.addcmul, (other, *product.args)
        gm.graph.erase_node(product)
    gm.graph.lint()
    gm.recompile()
    return gm.forward


def copies_into_a_new_graph(gm, example_inputs):
    late = {node: pair for node in gm.graph.nodes for pair in _summands(node)[:1]}
    products = [product for product, _ in late.values()]
    new, copied = fx.Graph(), {}
    for node in gm.graph.nodes:
        if node in late:
            product, other = late[node]
            copied[node] = new.call_function(torch.addcmul, tuple(copied[n] for n in (other, *product.args)))
        elif node not in products:
            copied[node] = new.node_copy(node, lambda n: copied[n])
    return fx.GraphModule(gm, new)


also_right = [gives_the_sum_another_target, copies_into_a_new_graph]


# Mistakes

mistakes = [
    Edit("never recompiles", "    gm.recompile()\n", "", told_by="one_operator"),
    Edit("operands in order", "(other, *product.args)", "(*product.args, other)", told_by="one_operator"),
    Edit("one way of writing", '(operator.mul, torch.mul, "mul")', "(operator.mul,)", told_by="spellings"),
    Edit("first operand only", "(node.args, node.args[::-1])", "(node.args,)", told_by="either_side"),
    Edit("shared products", "list(product.users) == [node] and ", "", told_by="several_users"),
    Edit(
        "any node for a tensor",
        ' and isinstance(argument.meta.get("example_value"), Tensor)',
        "",
        told_by="numbers",
    ),
    Edit("moves over functions", ' or name[0] == "i"', "", told_by="in_place"),
    Edit("sweeps up", "    gm.rec", "    graph.eliminate_dead_code()\n    gm.rec", told_by="in_place"),
]

not_tried = {
    "hard numbers": "torch computes `addcmul`",
    "dtypes": "the same operator for all",
    "left alone": "a function may write to its inputs",
}
