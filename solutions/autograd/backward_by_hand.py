"""The engine behind `backward` is this loop. It runs a node when no more gradients can come for it. Until
then it keeps what has arrived, with one place for each output of the operation. A pair of `next_functions`, a
node and a number, names such a place. If a gradient is there already, the sum replaces it. Here the sum is a
new tensor, because others may hold its parts: the node of `x + w` hands one tensor to both operands.

`AccumulateGrad` is a node like the others. It has no pairs, and running it changes `.grad`.

The engine does more between two nodes: it sums a gradient down to the shape of a broadcast operand, converts
it to its dtype, and runs hooks. For a custom Function, zeros stand by default where nothing arrived.
"""

import torch
from torch import Tensor


def backward_by_hand(root: Tensor, grad: Tensor) -> None:
    """Adds to `.grad` of every leaf behind `root` what `root.backward(grad)` adds"""
    arrived = {(root.grad_fn, root.output_nr): grad}
    with torch.no_grad():
        for node in in_order(root.grad_fn):
            inputs = range(len(node._input_metadata))
            returned = node(*[arrived.pop((node, i), None) for i in inputs])
            gradients = returned if isinstance(returned, tuple) else (returned,)
            for i, pair in enumerate(node.next_functions):
                if gradients[i] is not None:
                    arrived[pair] = arrived[pair] + gradients[i] if pair in arrived else gradients[i]


def in_order(root) -> list:
    """All nodes, each before those that it sends gradients to"""
    seen, finished, stack = {None}, [], [(root, False)]
    while stack:
        node, walked = stack.pop()
        if walked:
            finished.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(following, False) for following, _ in node.next_functions]
    return finished[::-1]


# Other right answers

from course_utils.exercise import Edit, Wrong


@torch.no_grad()
def _without_accumulate_grad(root, grad):
    """A list of inputs for each node; `.grad` is added to by hand."""
    order = in_order(root.grad_fn)
    slots = {node: [None] * len(node._input_metadata) for node in order}
    slots[root.grad_fn][root.output_nr] = grad
    for node in order:
        if hasattr(node, "variable"):
            leaf, (g,) = node.variable, slots[node]
            leaf.grad = g.clone() if leaf.grad is None else leaf.grad + g
            continue
        came = node(*slots.pop(node))
        for g, (following, i) in zip(
            came if type(came) is tuple else [came], node.next_functions, strict=True
        ):
            if following is not None:
                before = slots[following][i]
                slots[following][i] = g if before is None else torch.add(before, g)


@torch.no_grad()
def _collects_then_adds(root, grad):
    """Keeps all that arrived at each input in a list, and adds it up when the node runs."""
    mail = {(root.grad_fn, root.output_nr): [grad]}
    for node in in_order(root.grad_fn):
        letters = [mail.get((node, i)) for i in range(len(node._input_metadata))]
        came = node(*[sum(some[1:], some[0]) if some else None for some in letters])
        for pair, g in zip(node.next_functions, came if type(came) is tuple else [came], strict=True):
            mail.setdefault(pair, []).extend([] if g is None else [g])


also_right = [_without_accumulate_grad, _collects_then_adds]


# Mistakes


def _once_for_each_path(root, grad):
    waiting = [(root.grad_fn, root.output_nr, grad)]
    with torch.no_grad():
        while waiting:
            node, number, g = waiting.pop()
            came = node(*[g if i == number else None for i in range(len(node._input_metadata))])
            came = came if type(came) is tuple else (came,)
            waiting += [
                (*pair, g) for pair, g in zip(node.next_functions, came, strict=True) if g is not None
            ]


mistakes = [
    Edit("overwrites", "arrived[pair] + gradients[i] if", "gradients[i] if", told_by="paths_meet"),
    Edit("runs too early", "stack.append((node, True))", "finished.insert(0, node)", told_by="paths_meet"),
    Edit(
        "one input for all",
        "arrived.pop((node, i), None)",
        "arrived.get((node, 0))",
        told_by="several_outputs",
    ),
    Edit("the root is output 0", "root.output_nr", "0", told_by="several_outputs"),
    Wrong(_once_for_each_path, told_by="each_node_once"),
    Edit(
        "adds in place",
        "arrived[pair] + gradients[i]",
        "arrived[pair].add_(gradients[i])",
        told_by="of_their_own",
    ),
    Edit("records a graph", "with torch.no_grad():", "if True:", told_by="of_their_own"),
]
not_tried = {"hard numbers": "the nodes compute", "seeds": "any numbers will do"}
