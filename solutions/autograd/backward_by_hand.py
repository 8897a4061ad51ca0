"""The engine behind `backward` is this loop. It counts the edges that lead to each node, keeps for each node
what has arrived so far, one slot for each output of the operator, and runs a node when nothing more can
come. Between two nodes it adds: a tensor that was used several times gets the sum of what its users send.
The sum is a new tensor, for its parts may be held elsewhere: the node of an addition hands one and the same
tensor to both operands.

Before it adds, it fits each gradient to the tensor that it belongs to. The formulas do not know who was
broadcast, so the gradient of a bias comes with the batch still in it, and the sum over the batch is taken on
the way. For a Function of your own the engine does two things more: it puts zeros where nothing arrived, and
drops what backward returns for arguments without an edge.

`AccumulateGrad` is a node like the others. It has no edges, and running it changes `.grad`.
"""

from collections import Counter
from itertools import compress

import torch
from torch import Tensor


def backward_by_hand(root: Tensor, grad: Tensor) -> None:
    """Adds to `.grad` of every leaf behind `root` what `root.backward(grad)` would add"""
    waiting = arrivals(root.grad_fn)
    arrived, ready = {root.grad_fn: {root.output_nr: grad}}, [root.grad_fn]
    with torch.no_grad():
        while ready:
            node = ready.pop()
            gradients = run(node, arrived.pop(node, {}))
            for i, (following, number) in enumerate(node.next_functions):
                if following is None:
                    continue
                if gradients[i] is not None:
                    about = following._input_metadata[number]
                    sent = gradients[i].sum_to_size(about.shape).to(about.dtype)
                    slots = arrived.setdefault(following, {})
                    slots[number] = slots[number] + sent if number in slots else sent
                waiting[following] -= 1
                if waiting[following] == 0:
                    ready.append(following)


def arrivals(root) -> Counter:
    """How many edges lead to each node"""
    counts, found = Counter(), [root]
    for node in found:  # grows as it is walked
        for following, _ in node.next_functions:
            if following is not None:
                if following not in counts:
                    found.append(following)
                counts[following] += 1
    return counts


def run(node, slots: dict) -> list:
    """Runs a node; what goes over each of its edges"""
    inputs = enumerate(node._input_metadata)
    if not hasattr(node, "apply"):
        return several(node(*(slots.get(number) for number, _ in inputs)))
    # A custom Function
    given = [slots[i] if i in slots else zeros(about) for i, about in inputs]
    wanted = compress(several(node.apply(*given)), node.needs_input_grad)
    return [None if following is None else next(wanted) for following, _ in node.next_functions]


def several(returned) -> tuple:
    """A node with one edge may return its gradient alone"""
    return returned if isinstance(returned, tuple) else (returned,)


def zeros(about) -> Tensor:
    """The gradient of an output that nobody used"""
    return torch.zeros(about.shape, dtype=about.dtype, device=about.device)


# Other right answers


def _listed_first(root, grad):
    """All nodes in order, then run in that order; `.grad` is added to without `AccumulateGrad`."""
    seen, order, stack = set(), [], [(root.grad_fn, False)]
    while stack:
        node, finished = stack.pop()
        if finished:
            order.insert(0, node)
        elif node is not None and node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(following, False) for following, _ in node.next_functions]
    inputs = {node: [None] * len(node._input_metadata) for node in order}
    inputs[root.grad_fn][root.output_nr] = grad
    with torch.no_grad():
        for node in order:
            given, about = inputs[node], node._input_metadata
            if hasattr(node, "variable"):
                if given[0] is not None:
                    leaf = node.variable
                    leaf.grad = given[0].clone() if leaf.grad is None else leaf.grad + given[0]
                continue
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                for i, m in enumerate(about):
                    if given[i] is None:
                        given[i] = torch.zeros(m.shape, dtype=m.dtype, device=m.device)
                out = node.apply(*given)
                out = out if type(out) is tuple else (out,)
                out = [g for g, needed in zip(out, node.needs_input_grad, strict=True) if needed]
            else:
                out = node(*given)
                out = out if type(out) is tuple else (out,)
                out = [g for g, (following, _) in zip(out, node.next_functions, strict=True) if following]
            edges = [edge for edge in node.next_functions if edge[0] is not None]
            for g, (following, i) in zip(out, edges, strict=True):
                if g is not None:
                    m = following._input_metadata[i]
                    while g.dim() > len(m.shape):
                        g = g.sum(0)
                    wide = [d for d, n in enumerate(m.shape) if n == 1]
                    g = (g.sum(wide, keepdim=True) if wide else g).to(m.dtype)
                    before = inputs[following][i]
                    inputs[following][i] = g if before is None else torch.add(before, g)


@torch.no_grad()
def _collects_then_adds(root, grad):
    """Keeps all that arrived at each input in a list, and adds it up when the node runs."""
    edges_to, nodes = {root.grad_fn: 0}, [root.grad_fn]
    for node in nodes:
        for n, _ in node.next_functions:
            if n:
                nodes += [] if n in edges_to else [n]
                edges_to[n] = edges_to.get(n, 0) + 1
    mail = {node: [[] for _ in node._input_metadata] for node in nodes}
    mail[root.grad_fn][root.output_nr].append(grad)
    queue = [root.grad_fn]
    for node in queue:
        own = hasattr(node, "needs_input_grad")
        given = []
        for letters, m in zip(mail[node], node._input_metadata, strict=True):
            fitting = [g.sum_to_size(m.shape).type(m.dtype) for g in letters if g is not None]
            nothing = torch.zeros(m.shape, dtype=m.dtype, device=m.device) if own else None
            given.append(sum(fitting[1:], fitting[0]) if fitting else nothing)
        came = (node.apply if own else node)(*given)
        came = list(came) if isinstance(came, tuple) else [came]
        if own:
            came = [g for i, g in enumerate(came) if node.needs_input_grad[i]]
            for i, (n, _) in enumerate(node.next_functions):
                if n is None:
                    came.insert(i, None)
        for i, (n, number) in enumerate(node.next_functions):
            if n:
                mail[n][number].append(came[i])
                edges_to[n] -= 1
                queue += [] if edges_to[n] else [n]


also_right = [_listed_first, _collects_then_adds]

equivalent = {
    "line 59: `torch.zeros(about.shape, dtype=about.dtype, device=about.device)` -> "
    "`torch.zeros(about.shape, dtype=about.dtype)`": "only where a tensor is somewhere else than on the CPU",
}


def generated(answer):
    class Pair(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x, 3 * x

        @staticmethod
        def backward(ctx, g, h):
            return 2 * g + 3 * h

    for n in (1, 2, 5):
        x, w = (torch.randn(n, requires_grad=True) for _ in range(2))
        first, _ = Pair.apply(x * w)
        root = first.sin() + x
        answer(root, torch.randn(n))
        yield x.grad
        yield w.grad
