"""Graphs of autograd: their nodes, and what is copied or written to on the way."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def following(node: Any) -> list[Any]:
    """The nodes that get a gradient from this one, once for each edge."""
    return [after for after, _ in node.next_functions if after is not None]


def nodes(tensor: Tensor) -> list[Any]:
    """Every node of the graph behind a tensor, once, that of the tensor first; none where there is none."""
    found, waiting = {}, [tensor.grad_fn] if tensor.grad_fn is not None else []
    while waiting:
        node = waiting.pop()
        if node not in found:
            found[node] = True
            waiting += following(node)
    return list(found)
