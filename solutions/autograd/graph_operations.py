"""A node may run when all its gradients have arrived. It doesn't know how many that are: it knows the nodes
that it sends to, not the ones that send to it. So a first walk counts the edges that lead to each node. A
second one lowers these counts as nodes are listed. When the count of a node reaches 0, it joins, behind all
that send to it. Each edge is looked at twice, however many paths run over it.

Torch does the same: before it runs anything, backward counts the *dependencies* of every node, and it queues
a node when the count reaches 0. Depth-first order works too if you list nodes when they are finished and turn
the list around. Listed when they are first reached, they may come too early.
"""

from collections import Counter

from torch import Tensor


def graph_operations(tensor: Tensor) -> list:
    """All nodes behind `tensor.grad_fn`, each before those in its `next_functions`"""
    root = tensor.grad_fn
    if root is None:
        return []
    arriving, found = Counter(), [root]
    for node in found:  # grows as it is walked
        for following in follows(node):
            if following not in arriving:
                found.append(following)
            arriving[following] += 1
    order, ready = [], [root]
    while ready:
        node = ready.pop()
        order.append(node)
        for following in follows(node):
            arriving[following] -= 1
            if arriving[following] == 0:
                ready.append(following)
    return order


def follows(node) -> list:
    """The nodes that get a gradient from this one, once for each edge"""
    return [following for following, _ in node.next_functions if following is not None]


# Other right answers

from course_utils.exercise import Edit, Wrong


def _finished_last_comes_first(tensor):
    """Depth first with a stack of its own; a node is listed when all behind it are."""
    seen, finished, stack = set(), [], [(tensor.grad_fn, False)]
    while stack:
        node, walked = stack.pop()
        if walked:
            finished.append(node)
        elif node is not None and node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((following, False) for following, _ in node.next_functions)
    return finished[::-1]


def _with_iterators(tensor):
    order, seen = [], {None, tensor.grad_fn}
    stack = [(tensor.grad_fn, iter(tensor.grad_fn.next_functions))] if tensor.grad_fn else []
    while stack:
        node, rest = stack[-1]
        for following, _ in rest:
            if following not in seen:
                seen.add(following)
                stack.append((following, iter(following.next_functions)))
                break
        else:
            order.insert(0, stack.pop()[0])
    return order


also_right = [_finished_last_comes_first, _with_iterators]


# Mistakes


def _recursive(tensor):
    order, seen = [], {None}

    def visit(node):
        if node not in seen:
            seen.add(node)
            for following, _ in node.next_functions:
                visit(following)
            order.insert(0, node)

    visit(tensor.grad_fn)
    return order


def _newest_first(tensor):
    nodes = set(graph_operations(tensor))
    made = sorted(nodes, key=lambda node: node._sequence_nr(), reverse=True)
    return sorted(made, key=lambda node: node.name().endswith("AccumulateGrad"))


mistakes = [
    Edit(
        "at first sight", "if arriving[following] == 0", "if following not in order + ready", told_by="order"
    ),
    Wrong(_newest_first, told_by="order"),
    Edit("once for each path", "if arriving[following] == 0", "if True", told_by="shared"),
    Edit("follows None", " if following is not None]", "]", told_by="nothing_there"),
    Edit("no leaves", "order.append(node)", "order += [node] if follows(node) else []", told_by="chain"),
    Edit("from the leaves to the root", "return order", "return order[::-1]", told_by="chain"),
    Wrong(_recursive, told_by="deep"),
    Edit(
        "runs a backward first",
        "if root is None:",
        "if root is not None:\n        tensor.sum().backward(retain_graph=True)\n    else:",
        told_by="only_read",
    ),
]
not_tried = {"hard numbers": "nothing is computed", "dtypes": "no element is read"}
