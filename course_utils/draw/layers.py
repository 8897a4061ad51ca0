"""Places boxes that point at each other in layers, from the top down, with few crossings.

Layers and neighbours come from networkx; in a layer boxes stand in the order of the middles of their
neighbours, as near to these as the room allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import networkx

BESIDE = 16.0  # between two boxes of a layer
PASSING = 10.0  # between two lines that pass a layer
BETWEEN = 36.0  # between two layers
SWEEPS = 32


@dataclass(frozen=True)
class Placed:
    """`left` and `top` of every box; `routes[a, b]` is where a line from a to b passes the layers between: at
    which x, and from which height to which."""

    left: list[float]
    top: list[float]
    routes: dict[tuple[int, int], list[tuple[float, float, float]]]
    width: float
    height: float


def place(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]], width: float) -> Placed:
    """Boxes of these sizes (width, height), each above those that its edges lead to, in the middle of a page
    of `width`, or of a wider one."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(sizes)))
    graph.add_edges_from(edges)
    rows = [sorted(row) for row in networkx.topological_generations(graph)]
    layer = {n: number for number, row in enumerate(rows) for n in row}
    passing = {}
    for a, b in dict.fromkeys(edges):
        between = range(layer[a] + 1, layer[b])
        passing[a, b] = [(a, b, number) for number in between]
        for one, number in zip(passing[a, b], between, strict=True):
            rows[number].append(one)
        graph.remove_edge(a, b)
        networkx.add_path(graph, [a, *passing[a, b], b])
    wide = {n: sizes[n][0] if isinstance(n, int) else PASSING - BESIDE for row in rows for n in row}
    middle = _middles(graph, rows, wide)
    start = min(middle[n] - wide[n] / 2 for n in middle)
    end = max(middle[n] + wide[n] / 2 for n in middle)
    shift = -start + max(0.0, (width - (end - start)) / 2)
    heights = [max((sizes[n][1] for n in row if isinstance(n, int)), default=0.0) for row in rows]
    tops = list(itertools.accumulate((height + BETWEEN for height in heights), initial=0.0))
    routes = {
        edge: [(middle[one] + shift, tops[one[2]], tops[one[2]] + heights[one[2]]) for one in several]
        for edge, several in passing.items()
    }
    left = [middle[n] + shift - size[0] / 2 for n, size in enumerate(sizes)]
    top = [tops[layer[n]] for n in range(len(sizes))]
    return Placed(left, top, routes, max(width, end - start) + 1, tops[-1] - BETWEEN)


def _middles(graph: networkx.DiGraph, rows: list[list], wide: dict) -> dict:
    """Where the middle of each box is, and each line that passes a layer."""
    middle = {}
    for row in rows:
        middle.update(zip(row, _apart([0.0] * len(row), [wide[n] for n in row]), strict=True))
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            # The order looks one way; the places, once it stands, to both sides.
            late = sweep >= SWEEPS // 2
            wanted = {}
            for n in row:
                near = (
                    [*graph.pred[n], *graph.succ[n]] if late else [*(graph.pred if down else graph.succ)[n]]
                )
                wanted[n] = sum(middle[m] for m in near) / len(near) if near else middle[n]
            if not late:
                row.sort(key=wanted.__getitem__)
            spots = _apart([wanted[n] for n in row], [wide[n] for n in row])
            middle.update(zip(row, spots, strict=True))
    return middle


def _apart(wanted: list[float], widths: list[float]) -> list[float]:
    """The places nearest to those wanted, in squares, at which boxes of these widths do not touch."""
    offsets = [0.0]
    for a, b in itertools.pairwise(widths):
        offsets.append(offsets[-1] + (a + b) / 2 + BESIDE)
    # Once each has its distance from the first taken off, they must only be in order: pool what is not.
    pools: list[tuple[float, int]] = []
    for spot, offset in zip(wanted, offsets, strict=True):
        mean, count = spot - offset, 1
        while pools and pools[-1][0] > mean:
            before, n = pools.pop()
            mean, count = (before * n + mean * count) / (n + count), n + count
        pools.append((mean, count))
    level = itertools.chain.from_iterable([mean] * count for mean, count in pools)
    return [mean + offset for mean, offset in zip(level, offsets, strict=True)]
