"""Places boxes that point at each other in layers, from the top down, with few crossings.

Layers come from networkx; within a layer boxes are ordered by the middle of their neighbours, and then moved
as near to these as the room allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import networkx

BESIDE = 16.0  # between two boxes of a layer
PASSING = 10.0  # between two lines that pass a layer
SWEEPS = 8


@dataclass(frozen=True)
class Placed:
    """`left` and `top` of every box; `routes[a, b]` is where a line from a to b passes the layers between: at
    which x, and from which height to which."""

    left: list[float]
    top: list[float]
    routes: dict[tuple[int, int], list[tuple[float, float, float]]]  # x, and between which heights
    width: float
    height: float


def place(
    sizes: Sequence[tuple[float, float]],
    edges: Sequence[tuple[int, int]],
    width: float,
    between: float = 36.0,
) -> Placed:
    """Boxes of these sizes (width, height), each above those that its edges lead to. Wider than `width` only
    where a single box is, or very many lines pass one."""
    if not sizes:
        return Placed([], [], {}, width, 0.0)
    layer = _layers(sizes, edges, width)
    rows, chains = _rows(layer, edges, len(sizes))
    above, below = _neighbours(chains, edges)
    rows = _untangled(rows, above, below)
    wide = {n: sizes[n][0] if n < len(sizes) else PASSING - BESIDE for row in rows for n in row}
    middle = _middles(rows, wide, above, below, width)
    start = min(middle[n] - wide[n] / 2 for row in rows for n in row)
    end = max(middle[n] + wide[n] / 2 for row in rows for n in row)
    # All that there is stands in the middle of the page, or as wide as it has to be.
    shift = -start + max(0.0, (width - (end - start)) / 2)
    tops, y = [], 0.0
    heights = [max((sizes[n][1] for n in row if n < len(sizes)), default=0.0) for row in rows]
    for height in heights:
        tops.append(y)
        y += height + between
    left = [middle[n] + shift - sizes[n][0] / 2 for n in range(len(sizes))]
    top = [tops[layer[n]] for n in range(len(sizes))]
    routes = {}
    for a, b in set(edges):
        inner = chains[a, b]
        routes[a, b] = [
            (middle[n] + shift, tops[r], tops[r] + heights[r])
            for n, r in zip(inner, range(layer[a] + 1, layer[b]), strict=True)
        ]
    return Placed(left, top, routes, max(width, end - start) + 1, y - between)


def _layers(
    sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]], width: float
) -> list[int]:
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(sizes)))
    graph.add_edges_from(edges)
    layer = [0] * len(sizes)
    row = 0
    for generation in networkx.topological_generations(graph):
        # What does not fit side by side stands in several rows, which the lines of the others pass.
        taken, room = 0.0, width
        if sum(sizes[n][0] + BESIDE for n in generation) > width:
            room = max(width - PASSING * len(generation), width / 2)
        for n in sorted(generation):
            if taken and taken + sizes[n][0] > room:
                row, taken = row + 1, 0.0
            layer[n] = row
            taken += sizes[n][0] + BESIDE
        row += 1
    return layer


def _rows(
    layer: list[int], edges: Sequence[tuple[int, int]], count: int
) -> tuple[list[list[int]], dict[tuple[int, int], list[int]]]:
    """What stands in each layer, lines that pass it included (numbers from `count` on), and by edge the
    numbers of those."""
    rows: list[list[int]] = [[] for _ in range(max(layer) + 1)]
    for n in range(count):
        rows[layer[n]].append(n)
    chains: dict[tuple[int, int], list[int]] = {}
    for a, b in dict.fromkeys(edges):
        chain = []
        for r in range(layer[a] + 1, layer[b]):
            chain.append(count)
            rows[r].append(count)
            count += 1
        chains[a, b] = chain
    return rows, chains


def _neighbours(
    chains: dict[tuple[int, int], list[int]], edges: Sequence[tuple[int, int]]
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    above: dict[int, list[int]] = {}
    below: dict[int, list[int]] = {}
    for (a, b), chain in chains.items():
        for one, other in itertools.pairwise((a, *chain, b)):
            below.setdefault(one, []).append(other)
            above.setdefault(other, []).append(one)
    return above, below


def _untangled(
    rows: list[list[int]], above: dict[int, list[int]], below: dict[int, list[int]]
) -> list[list[int]]:
    best, fewest = rows, _crossings(rows, below)
    now = [list(row) for row in rows]
    for sweep in range(SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        place = {n: i for row in now for i, n in enumerate(row)}
        for row in now if down else reversed(now):
            others = above if down else below
            weight = {
                n: sum(place[m] for m in others[n]) / len(others[n]) if others.get(n) else place[n]
                for n in row
            }
            row.sort(key=weight.__getitem__)
            place.update({n: i for i, n in enumerate(row)})
        count = _crossings(now, below)
        if count < fewest:
            best, fewest = [list(row) for row in now], count
    return best


def _crossings(rows: list[list[int]], below: dict[int, list[int]]) -> int:
    count = 0
    for row, following in itertools.pairwise(rows):
        place = {n: i for i, n in enumerate(following)}
        ends = [sorted(place[m] for m in below.get(n, ())) for n in row]
        seen: list[int] = []
        for lines in ends:
            count += sum(1 for line in lines for other in seen if other > line)
            seen += lines
    return count


def _middles(
    rows: list[list[int]],
    wide: dict[int, float],
    above: dict[int, list[int]],
    below: dict[int, list[int]],
    width: float,
) -> dict[int, float]:
    middle: dict[int, float] = {}
    for row in rows:
        middle.update(zip(row, _apart([width / 2] * len(row), [wide[n] for n in row]), strict=True))
    for sweep in range(4 * SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = []
            for n in row:
                near = [*above.get(n, ()), *below.get(n, ())]
                wanted.append(sum(middle[m] for m in near) / len(near) if near else middle[n])
            widths = [wide[n] for n in row]
            spots = _apart(wanted, widths)
            over = max(0.0, spots[-1] + widths[-1] / 2 - width)
            under = min(0.0, spots[0] - widths[0] / 2 - over)
            if over or under:  # back onto the page, where there is room for all of it
                low = list(itertools.accumulate([w + BESIDE for w in widths], initial=0.0))
                room = max(width, low[-1] - BESIDE)
                spots = [
                    min(max(s, lo + w / 2), room - (low[-1] - BESIDE - lo) + w / 2)
                    for s, w, lo in zip(spots, widths, low, strict=False)
                ]
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
