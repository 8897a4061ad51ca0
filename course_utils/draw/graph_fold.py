"""Which nodes of a graph are drawn as a box of their own and which are folded into one.

As little is folded as has to be: first runs of nodes with one way in and one way out, the longest first;
then leaves into the only node that uses them; then all that backward reaches last.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from course_utils.draw.graph_nodes import Graph

MOST = 60
DEEPEST = 20  # layers, where parts are folded anyway: a column of sixty boxes is no picture
ENDS = 4  # of a folded run so many nodes stay at each end, where there is room
SHORTEST = 3  # a shorter run is not worth folding


@dataclass(frozen=True)
class Way:
    """From a box to another one: from input `index` of node `source` to output `slot` of node `target`."""

    source: int
    index: int
    target: int
    slot: int


@dataclass
class Box:
    """One node, or several that are folded: `why` is "", "run", "leaves" or "far"."""

    members: tuple[int, ...]
    why: str = ""
    ways: dict[int, list[Way]] = field(default_factory=dict)  # by the box that they lead to

    @property
    def folded(self) -> bool:
        return len(self.members) > 1


@dataclass
class Folded:
    """The boxes of a graph. `box_of[n]` is the number of the box in which node n is."""

    boxes: list[Box]
    box_of: list[int]

    @property
    def hidden(self) -> int:
        """How many nodes have no box of their own."""
        return sum(len(box.members) for box in self.boxes if box.folded)


def execution_order(graph: Graph) -> list[int]:
    """The nodes as the engine runs them on one device: of those that have all their gradients the one that
    was made last, a leaf before all others."""
    waits = Counter(target for op in graph.ops for target, _ in filter(None, op.edges))
    starts = {number for number, _ in graph.roots}
    ready = [(-graph.ops[n].order, n) for n in starts if not waits[n]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for target, _ in filter(None, graph.ops[number].edges):
            waits[target] -= 1
            if not waits[target]:
                heapq.heappush(ready, (-graph.ops[target].order, target))
    return order


def fold(graph: Graph, most: int = MOST) -> Folded:
    """At most about `most` boxes."""
    size = len(graph.ops)
    groups: list[tuple[tuple[int, ...], str]] = []
    if size > most:
        runs = sorted(_runs(graph), key=len, reverse=True)
        count = size
        for run in runs:
            if count <= most or len(run) < SHORTEST:
                break
            # What has to go goes from the middle; the ends of a long run are kept as far as there is room.
            keep = min(ENDS, (len(run) - SHORTEST) // 2) if most > 4 * ENDS else 0
            middle = run[keep : len(run) - keep]
            groups.append((tuple(middle), "run"))
            count -= len(middle) - 1
        if count > most:
            groups, count = _far(graph, most)
    return _boxes(graph, groups)


def _ways_in(graph: Graph) -> list[int]:
    ways = [0] * len(graph.ops)
    for op in graph.ops:
        for target, _ in filter(None, op.edges):
            ways[target] += 1
    for number, _ in graph.roots:
        ways[number] += 1
    return ways


def _runs(graph: Graph) -> Iterable[list[int]]:
    """Chains of nodes, each of which leads only to the next, which is reached only from it. Leaves and roots
    are not in them: they are what a reader looks for."""
    ways_in, roots = _ways_in(graph), {number for number, _ in graph.roots}
    inner = []
    for op in graph.ops:
        plain = not op.leaf and not op.labels and op.number not in roots
        inner.append(plain and ways_in[op.number] == 1 and sum(e is not None for e in op.edges) == 1)
    begun = [False] * len(inner)
    for op in graph.ops:
        for target, _ in filter(None, op.edges):
            if not inner[target] or begun[target] or inner[op.number]:
                continue
            run = []
            while inner[target]:
                begun[target] = True
                run.append(target)
                ((target, _),) = filter(None, graph.ops[target].edges)
            yield run


def _far(graph: Graph, most: int) -> tuple[list[tuple[tuple[int, ...], str]], int]:
    """Leaves that one node alone uses are folded into it, with what is on the way (a transpose, say); where
    that is not enough, all that backward reaches last becomes one box for each of its parts."""
    ways_in, order = _ways_in(graph), execution_order(graph)
    into: dict[int, list[int]] = {}
    taken: set[int] = set()
    for op in graph.ops:
        if op.leaf:
            continue
        others = [t for t, _ in filter(None, op.edges)]
        for target in others:
            chain = _to_a_leaf(graph, target, ways_in)
            if chain and len(chain) <= 3 and len(others) > 1:
                into.setdefault(op.number, []).extend(chain)
    inside = {n for chain in into.values() for n in chain}
    groups = [((n, *chain), "leaves") for n, chain in into.items() if n not in inside]
    taken = {n for members, _ in groups for n in members[1:]}
    count = len(graph.ops) - len(taken)
    if count <= most:
        return groups, count
    spine = [n for n in order if n not in taken]
    depth: dict[int, int] = {}
    for n in order:
        for target, _ in filter(None, graph.ops[n].edges):
            depth[target] = max(depth.get(target, 0), depth.get(n, 0) + 1)
    near = {n for n in spine[: max(most - 2, 1)] if depth.get(n, 0) < DEEPEST}
    kept = [(members, why) for members, why in groups if members[0] in near]
    shown = near | {n for members, _ in kept for n in members}
    parts = _parts(graph, [n for n in order if n not in shown])
    # Many small parts would be as many boxes again.
    parts.sort(key=len, reverse=True)
    if len(parts) > max(most // 6, 1):
        first = max(most // 6, 1)
        parts = [*parts[: first - 1], [n for part in parts[first - 1 :] for n in part]]
    groups = kept + [(tuple(part), "far") for part in parts]
    return groups, len(near) + len(parts)


def _to_a_leaf(graph: Graph, number: int, ways_in: list[int]) -> list[int]:
    """The nodes from here to a leaf that nobody else uses; empty where there is another way in or out."""
    chain = []
    while ways_in[number] == 1 and len(chain) < 4:
        chain.append(number)
        op = graph.ops[number]
        if op.leaf:
            return chain
        following = list(filter(None, op.edges))
        if len(following) != 1 or op.labels:
            break
        number = following[0][0]
    return []


def _parts(graph: Graph, numbers: list[int]) -> list[list[int]]:
    """The numbers in groups that no edge joins; each in the order given."""
    parent = {n: n for n in numbers}

    def top(n: int) -> int:
        while parent[n] != n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    for n in numbers:
        for target, _ in filter(None, graph.ops[n].edges):
            if target in parent:
                parent[top(target)] = top(n)
    parts: dict[int, list[int]] = {}
    for n in numbers:
        parts.setdefault(top(n), []).append(n)
    return list(parts.values())


def _boxes(graph: Graph, groups: list[tuple[tuple[int, ...], str]]) -> Folded:
    grouped = {n: place for place, (members, _) in enumerate(groups) for n in members}
    boxes: list[Box] = []
    box_of = [-1] * len(graph.ops)
    for number in range(len(graph.ops)):
        if box_of[number] >= 0:
            continue
        members, why = groups[grouped[number]] if number in grouped else ((number,), "")
        for n in members:
            box_of[n] = len(boxes)
        boxes.append(Box(members, why if len(members) > 1 else ""))
    for op in graph.ops:
        here = box_of[op.number]
        for index, edge in enumerate(op.edges):
            if edge is not None and box_of[edge[0]] != here:
                boxes[here].ways.setdefault(box_of[edge[0]], []).append(Way(op.number, index, *edge))
    return Folded(boxes, box_of)
