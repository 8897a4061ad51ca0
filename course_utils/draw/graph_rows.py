"""A graph that is too large for a page, as rows: a node in each, in the order of a backward."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

from course_utils.draw import folding
from course_utils.draw.graph_labels import second, summary
from course_utils.draw.graph_steps import Steps
from course_utils.draw.labels import LETTER, bytes_said, cut
from course_utils.draw.shapes import WIDTH, Scene

# Sizes in pixels of the page.
ROW, TOP, LANE, LANES = 16.0, 44.0, 9.0, 9
BIG, SMALL = 11.0, 10.0
WIDE = LETTER + 0.04  # letters are rounded up to pixels
COLUMNS = {"node": 0.0, "gives": 0.42, "leaves": 0.67, "saves": 0.87}  # where they begin, as a share


class Rows:
    """The nodes but leaves, each before those that its edges lead to; what comes again and again is drawn
    once. `row_of`: the row that speaks for a node; a leaf has that of a node that it is an input of."""

    def __init__(self, steps: Steps) -> None:
        self.ops = ops = steps.graph.ops
        nodes = self._nodes()
        inputs = {
            n: [edge and ops[edge[0]].leaf and ops[edge[0]].shapes for edge in ops[n].edges] for n in nodes
        }
        groups = folding.fold([(ops[n].kind, ops[n].shapes, tuple(inputs[n])) for n in nodes], least=2)
        self.groups = folding.fitting(groups, (folding.PAGE - TOP) // ROW - 2)
        self.left = [ops[nodes[place]].kind for place in folding.left(groups, self.groups)]
        self.nodes = [nodes[group.start + n] for group in self.groups for n in range(group.size)]
        at = {number: row for row, number in enumerate(self.nodes)}
        self.row_of: dict[int, int] = {}
        copy_of: dict[int, tuple[int, int]] = {}
        for number, group in enumerate(groups):
            for turn, places in enumerate(group.copies()):
                for place, first in zip(places, range(group.start, group.start + group.size), strict=True):
                    self.row_of[nodes[place]] = at.get(nodes[first], len(at))  # the last row sums up
                    copy_of[nodes[place]] = number, turn
        self.ways: dict[int, set[int]] = {}
        for number in nodes:
            for target, _ in filter(None, ops[number].edges):
                if ops[target].leaf:
                    self.row_of.setdefault(target, self.row_of[number])
                    continue
                (group, turn), (other, again) = copy_of[number], copy_of[target]
                if group != other or turn == again:  # not from one of several to the next
                    self.ways.setdefault(self.row_of[number], set()).add(self.row_of[target])
        self.ways.pop(len(at), None)  # within the row that sums up

    def _nodes(self) -> list[int]:
        """Those made last come first, as in a backward."""
        waits = Counter(edge[0] for op in self.ops for edge in filter(None, op.edges))
        ready = [(-op.order, op.number) for op in self.ops if not waits[op.number]]
        found = []
        heapq.heapify(ready)
        while ready:
            _, number = heapq.heappop(ready)
            found += [number] * (not self.ops[number].leaf)
            for target, _ in filter(None, self.ops[number].edges):
                waits[target] -= 1
                if not waits[target]:
                    heapq.heappush(ready, (-self.ops[target].order, target))
        return found


def compose(steps: Steps, rows: Rows, saved: dict, outputs: dict, step: int | None) -> Scene:
    """The scene of a graph as rows, alone or after `step` steps of its backward."""
    said = summary(steps.graph, saved)
    scene = Scene(said if step is None else f"{said} Step {step} of {steps.last}.")
    scene.write(2, 9, said, 10.5)
    count = len(rows.nodes)
    left = 12 + LANE * _ways(scene, rows.ways, count + bool(rows.left), lambda row: TOP + (row + 0.5) * ROW)
    columns = {name: left + share * (WIDTH - 46 - left) for name, share in COLUMNS.items()}
    ends = dict(zip(columns, [*[*columns.values()][1:], WIDTH - 46.0], strict=True))
    for name, x in columns.items():
        scene.write(x, TOP - 10, name, SMALL, faint=True)
    times = {
        group: TOP + sum(one.size for one in rows.groups[:n]) * ROW for n, group in enumerate(rows.groups)
    }
    for group, y in times.items():
        if group.times > 1:
            scene.box(left - 6, y + 1, WIDTH - left + 5, group.size * ROW - 2, dashed=True, part="block")
            scene.write(WIDTH - 6, y + ROW / 2 + 1, f"×{group.times}", BIG, "end", bold=True)
    now = steps.moments[step - 1].number if step else None
    done, every = (
        Counter(rows.row_of[one.number] for one in steps.moments[: step or 0]),
        Counter(rows.row_of.values()),
    )
    for row, number in enumerate(rows.nodes):
        op, y = rows.ops[number], TOP + (row + 0.5) * ROW
        runs = now is not None and rows.row_of[now] == row
        sign = "▶ " if runs else "✓ " if done[row] == every[row] else ""
        leaves = [rows.ops[edge[0]] for edge in op.edges if edge and rows.ops[edge[0]].leaf]
        size = sum(one.bytes or 0 for one in saved[number])
        texts = {
            "node": sign + op.kind,
            "gives": second(op, outputs),
            "leaves": "; ".join(second(leaf, outputs).removeprefix("a leaf ") for leaf in leaves),
            "saves": bytes_said(size) if size else "",
        }
        more = " · ".join(f"{name}: {text}" for name, text in texts.items() if text)
        x, wide = columns["node"], min(WIDE * BIG * len(texts["node"]), ends["node"] - left)
        scene.box(
            x - 3,
            y - 7,
            wide + 2,
            14,
            "lit" if runs else "",
            (),
            more,
            0.8 * runs,
            part="node",
            key=str(number),
        )
        for name, text in texts.items():
            size = BIG if name == "node" else SMALL
            room = int((ends[name] - columns[name] - 8) / LETTER / size)
            scene.write(columns[name], y, cut(text, room), size, code=True, bold=runs and name == "node")
    if rows.left:
        text = folding.rest(rows.left, "node", int((WIDTH - left) / LETTER / BIG))
        scene.write(left, TOP + (count + 0.5) * ROW, text, BIG)
    scene.height = TOP + (count + bool(rows.left)) * ROW + 8
    return scene


def _ways(scene: Scene, ways: dict[int, set[int]], count: int, y: Callable[[int], float]) -> int:
    """Draws which row leads to which, side by side to the left of them; how many lines there are at most."""
    leads: list[int | None] = []  # to which row each line leads
    begun: dict[int, set[int]] = {}  # where each is in the row above
    widest = 1

    def x(lane: int) -> float:
        return 8 + LANE * min(lane, LANES)

    def free() -> int:
        if None not in leads:
            leads.append(None)
        return leads.index(None)

    for row in range(count):
        at = leads.index(row) if row in leads else free()
        for lane, target in enumerate(leads):
            if target is not None:
                here = x(at if target == row else lane)
                for before in begun[lane]:
                    scene.line(((x(before), y(row - 1)), (here, y(row))), 1.1, smooth=True)
                begun[lane] = {lane}
        leads = [None if target == row else target for target in leads]
        scene.box(x(at) - 2.5, y(row) - 2.5, 5, 5, "storage", line=0.8, part="point")
        for number, target in enumerate(sorted(ways.get(row, ()))):
            if target in leads:
                begun[leads.index(target)].add(at)
                continue
            lane = at if not number or leads[at] is None else free()
            leads[lane], begun[lane] = target, {at}
        widest = max(widest, len(leads))
    return min(widest, LANES) + 1
