"""A sum is replaced when one operand is a product of two tensors that nobody else reads. The new node stands
where the sum stood, the sum's readers get the new node, and the two old ones are erased, the reader first.

The product is computed later than before. That is the same as long as nothing was changed in place between
the two: there may be views of `a`, so any operator in place is reason enough to leave both. The graph does
not say what an operator in place is for, so nodes without readers are not dead, and only what was replaced is
erased."""

import operator
from collections.abc import Callable

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
            node.replace_all_uses_with(fused)
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
    return node.target in targets and not node.kwargs and all(isinstance(a, fx.Node) for a in node.args)


def _changes_between(start: fx.Node, end: fx.Node) -> bool:
    node = start
    while node is not end and not _writes(node):
        node = node.next
    return node is not end


def _writes(node: fx.Node) -> bool:
    name = getattr(node.target, "__name__", node.target)
    return name.endswith("_") or node.target in IN_PLACE


IN_PLACE = (
    operator.setitem,
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod),
    *(operator.ipow, operator.imatmul, operator.iand, operator.ior, operator.ixor),
    *(operator.ilshift, operator.irshift),
)


# Other right answers


def _changes_something(node):
    name = node.target if isinstance(node.target, str) else node.target.__name__
    of_operator = getattr(node.target, "__module__", "") == "_operator"
    return name[-1] == "_" or of_operator and (name == "setitem" or name[0] == "i")


def gives_the_sum_another_target(gm, example_inputs):
    """The node of the sum stays and becomes the new operator. Sums that would move over a change, or are
    no sums of a product, are found by their places in the graph."""
    nodes = list(gm.graph.nodes)
    place = {node: i for i, node in enumerate(nodes)}
    changes = [i for i, n in enumerate(nodes) if n.op.startswith("call") and _changes_something(n)]
    for product in nodes:
        if product.target not in (torch.mul, operator.mul, "mul") or len(product.users) != 1:
            continue
        total = next(iter(product.users))
        parts = [*total.args, *product.args]
        if total.target not in (torch.add, operator.add, "add") or total.kwargs or product.kwargs:
            continue
        if total.args[0] is total.args[1] or not all(type(part) is fx.Node for part in parts):
            continue
        if any(place[product] < i < place[total] for i in changes):
            continue
        (other,) = (part for part in total.args if part is not product)
        total.op, total.target, total.args = "call_function", torch.addcmul, (other, *product.args)
        gm.graph.erase_node(product)
    gm.graph.lint()
    gm.recompile()
    return gm.forward


class _Late(fx.Interpreter):
    """Runs the graph; a product that only one sum reads is not computed before that sum."""

    def __init__(self, gm):
        super().__init__(gm)
        self.late = {}
        waiting = set()
        for node in gm.graph.nodes:
            if node.op.startswith("call") and _changes_something(node):
                waiting.clear()
            operands = [n for n in node.args if type(n) is fx.Node]
            if len(operands) != 2 or len(node.args) != 2 or node.kwargs:
                continue
            if node.target in (operator.mul, torch.mul, "mul") and len(node.users) == 1:
                waiting.add(node)
            if node.target in (operator.add, torch.add, "add") and operands[0] is not operands[1]:
                for product in operands:
                    if product in waiting and node not in self.late:
                        self.late[node] = product

    def run_node(self, node):
        if node in self.late.values():
            return None
        if node not in self.late:
            return super().run_node(node)
        product = self.late[node]
        (other,) = (n for n in node.args if n is not product)
        factors = [self.env[n] for n in product.args]
        return torch.addcmul(self.env[other], *factors)


def interprets(gm, example_inputs):
    """Leaves the graph as it is and runs it in another way."""
    late = _Late(gm)
    late.garbage_collect_values = False
    return late.run


also_right = [gives_the_sum_another_target, interprets]
