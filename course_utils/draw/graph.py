"""The graph behind a tensor: nodes, leaves, what is saved for backward, and a real backward step by step."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from course_utils.draw import graph_rows, palette
from course_utils.draw.folding import PAGE
from course_utils.draw.graph_backward import Gradient, Step
from course_utils.draw.graph_labels import chip, second, summary
from course_utils.draw.graph_nodes import Op, read
from course_utils.draw.graph_steps import State, Steps, text_of
from course_utils.draw.labels import LETTER, Label
from course_utils.draw.layers import Placed, place
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Scene, to_picture
from course_utils.wrong_use import public

LINE, CHIP, PAD = 16.0, 17.0, 7.0
BIG, SMALL, TINY = 12.0, 10.5, 9.5
SAVED = "saved for backward, at version v0; a write in place makes it v1"
PORT = 44.0  # between two lines that say where they arrive
TOP = 44.0  # for the lines above the picture
MOST = 120  # nodes: more of them have no room on a page
WIDEST = 1280.0  # a page scales down what is wide, and its letters


@public
def graph(output: Tensor, /, **names: Tensor) -> Picture:
    """The graph behind `output`: backward begins at the top and ends at the leaves.

    Tensors given by name, as in `w=w`, are called so. What has no room on a page is drawn as rows, a node in
    each, in the order of a backward: what comes again and again once, and what is left in the last row.
    Raises `ValueError` for a tensor that has no graph.
    """
    return to_picture(Drawing(output, names).scene())


class Drawing(Steps):
    """A graph, placed on a page; `scene` draws it, at any step of its recorded backward."""

    def __init__(self, output: Tensor, names: Mapping[str, Tensor]) -> None:
        super().__init__(read([output], names))
        self.outputs = {self.graph.roots[0]: "output"}
        # By the two nodes: which inputs of the first lead to which outputs of the second.
        self.ways: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for op in self.graph.ops:
            for index, edge in enumerate(op.edges):
                if edge is not None:
                    self.ways.setdefault((op.number, edge[0]), []).append((index, edge[1]))
        self.look()

    def look(self) -> None:
        """Reads anew what is saved, and places everything."""
        self.saved = {op.number: self.graph.saved(op.number) for op in self.graph.ops}
        self.placed: dict[bool, tuple[Placed, list[tuple[float, float]]]] = {}

    def run(self) -> None:
        """Records a backward; what can be stepped through is that one."""
        super().run()
        self.look()  # hooks may have packed, and a backward may have made a copy

    # --- the picture -------------------------------------------------------------------------------------

    def scene(self, step: int | None = None) -> Scene:
        """The picture: of the graph alone, or after `step` steps of the backward."""
        stepping = step is not None
        if not self.fits:
            return graph_rows.compose(self, self.rows, self.saved, self.outputs, step)
        now = self.moments[step - 1] if step else None
        placed, sizes = self._place(stepping)
        said = summary(self.graph, self.saved)
        scene = Scene(said if not stepping else f"{said} Step {step} of {self.last}.", placed.width)
        scene.height = placed.height + TOP + 8
        scene.write(2, 9, said, SMALL)
        if any(chip(one)[1] == "saved" for several in self.saved.values() for one in several):
            scene.box(3, 20, 16, 10, "saved", line=0.6)
            scene.write(25, 25, SAVED, SMALL)
        travelled = {
            (moment.number, sent.index) for moment in self.moments[: step or 0] for sent in moment.sent
        }
        failed = self.recording.failed if stepping and step == self.last else None
        states = self.states(step) if stepping else {}
        for op in self.graph.ops:
            self._lines(scene, placed, sizes, op, now, travelled)
        for op in self.graph.ops:
            x, y = placed.left[op.number], placed.top[op.number] + TOP
            self._box(scene, op, x, y, *sizes[op.number], states.get(op.number), now, failed)
        return scene

    @functools.cached_property
    def rows(self) -> graph_rows.Rows:
        return graph_rows.Rows(self)

    @functools.cached_property
    def fits(self) -> bool:
        """Whether the graph alone has room on a page."""
        if len(self.graph.ops) > MOST:
            return False
        placed, _ = self._place(False)
        return placed.height + TOP + 8 <= PAGE and placed.width <= WIDEST

    def _place(self, stepping: bool) -> tuple[Placed, list[tuple[float, float]]]:
        if stepping not in self.placed:
            widest = self._widest() if stepping else {}
            sizes = []
            for op in self.graph.ops:
                saved = [chip(one)[0] for one in self.saved[op.number]]
                rows = len(op.shapes) if stepping else 0
                texts = [(op.kind, BIG), (second(op, self.outputs), SMALL)]
                texts += [(text, SMALL) for text in (*saved, *widest.get(op.number, ()))]
                # Room for the sign before the title, which comes and goes.
                width = max(LETTER * size * len(text) for text, size in texts) + 2 * PAD + 4
                width += 2 * LETTER * BIG if stepping else 0
                if len(op.shapes) > 1:
                    width = max(
                        width, PORT * (len(self._comers(op.number)) + 1)
                    )  # each says where it arrives
                height = PAD + 2 * LINE + (len(saved) + rows) * CHIP + PAD / 2
                sizes.append((min(width, WIDTH - 8), height))
            self.placed[stepping] = place(sizes, list(self.ways), WIDTH - 4), sizes
        return self.placed[stepping]

    def _comers(self, target: int) -> list[int]:
        return [a for a, b in self.ways if b == target]

    def _widest(self) -> dict[int, set[str]]:
        """The texts that stand in the gradient lines of each box at some step, so that no box grows."""
        texts: dict[int, set[str]] = {}
        came: Counter[int] = Counter()
        sents = [*self.recording.start, *(sent for moment in self.moments for sent in moment.sent)]
        for sent in sents:
            came[sent.target] += 1
            text = self._arrived(sent.target, sent.slot, sent.total, came[sent.target])
            texts.setdefault(sent.target, set()).add(text)
        for moment in self.moments:
            for slot, one in enumerate(moment.given):
                text = self._arrived(moment.number, slot, one, came[moment.number])
                texts.setdefault(moment.number, set()).add(text)
        return texts

    def _arrived(self, number: int, slot: int, total: Gradient | None, came: int) -> str:
        awaited = self.awaited(number)
        which = f"{slot}: " if len(self.graph.ops[number].shapes) > 1 else ""
        count = f"{came} of {awaited}  " if awaited > 1 else ""
        return f"{which}{count}{text_of(total)}"

    def _box(
        self,
        scene: Scene,
        op: Op,
        x: float,
        y: float,
        width: float,
        height: float,
        state: State | None,
        now: Step | None,
        failed: int | None,
    ) -> None:
        runs, fails = now is not None and now.number == op.number, failed == op.number
        sign = "✗ " if fails else "▶ " if runs else "✓ " if state and state.done else ""
        at, names = y + PAD + LINE / 2 - 2, second(op, self.outputs)
        words = (
            Label(x + PAD, at, sign + op.kind, BIG, code=True, bold=True),
            Label(x + PAD, at + LINE, names, SMALL, code=True, bold=op.leaf),
        )
        fill = "odd" if fails else "lit" if runs else "view" if op.leaf else ""
        part, more = "leaf" if op.leaf else "node", f"{op.kind} {names}".strip()
        thick = 3.0 if runs or fails else 1.2
        scene.box(x, y, width, height, fill, words, more, thick, False, part, str(op.number))
        rows = [self._gradient(op, slot, state) for slot in range(len(op.shapes))] if state else []
        for text, fill, dashed, more in map(chip, self.saved[op.number]):
            rows.append((text, fill, dashed, more, 2.2 if fill == "odd" else 0.6, "saved", str(op.number)))
        at += 1.5 * LINE
        for text, fill, dashed, more, line, part, key in rows:
            inside = (Label(x + PAD + 1, at + CHIP / 2 - 0.5, text, SMALL, code=True),)
            scene.box(x + 4, at, width - 8, CHIP - 2, fill, inside, more, line, dashed, part, key)
            at += CHIP

    def _gradient(self, op: Op, slot: int, state: State) -> tuple[str, str, bool, str, float, str, str]:
        """The line that says what has arrived at an output of a node."""
        awaited = self.awaited(op.number)
        which = f"{slot}: " if len(op.shapes) > 1 else ""
        fill, dashed = "storage", not state.done
        if slot in state.totals:
            text = self._arrived(op.number, slot, state.totals[slot], state.came)
            fill, dashed = "gradient", state.came < awaited
        elif state.done:
            text = f"{which}None"
        else:
            text = f"{which}waits" + (f" for {awaited}" if awaited > 1 else "")
        return text, fill, dashed, "", 0.8, "gradient", f"{op.number}.{slot}"

    def _lines(
        self,
        scene: Scene,
        placed: Placed,
        sizes: list[tuple[float, float]],
        op: Op,
        now: Step | None,
        travelled: set[tuple[int, int]],
    ) -> None:
        """What leads from a box to others, and which of its inputs lead nowhere."""
        x, (width, height) = placed.left[op.number], sizes[op.number]
        foot = placed.top[op.number] + TOP + height
        ends: list[tuple[float, int | None, int]] = []  # where to, node or None, index of the input
        for target in sorted({edge[0] for edge in op.edges if edge}):
            route = placed.routes[op.number, target]
            towards = route[0][0] if route else placed.left[target] + sizes[target][0] / 2
            ends.append((towards, target, self.ways[op.number, target][0][0]))
        ends.sort()
        for index, edge in enumerate(op.edges):
            if edge is None:
                at = next((n for n, end in enumerate(ends) if end[2] > index), len(ends))
                ends.insert(at, (0.0, None, index))
        for number, (towards, target, index) in enumerate(ends):
            start = (x + width * (number + 1) / (len(ends) + 1), foot)
            if target is None:
                scene.line((start, (start[0], foot + 7)), 1.0, dashed=True)
                none = Label(start[0], foot + 14, f"{index}: None", TINY, "middle", code=True, faint=True)
                scene.words.append(none)
                continue
            goal = self._port(placed, sizes, op.number, target)
            points = [start]
            for middle, top, bottom in placed.routes[op.number, target]:
                points += [(middle, top + TOP), (middle, bottom + TOP)]
            inputs = [index for index, _ in self.ways[op.number, target]]
            here = now.sent if now and now.number == op.number else ()
            going = [one for one in here if one.index in inputs]
            empty = bool(going) and all(one.gradient is None for one in going)
            passed = any((op.number, index) in travelled for index in inputs)
            thick = 3.4 if going else 1.8 if passed else 1.1
            colour = palette.GRADIENT if passed else ""
            key = f"{op.number}-{target}"
            scene.line((*points, goal), thick, colour, True, empty, key, smooth=True)
            if len(op.edges) > 1 and width / (len(ends) + 1) > 14:
                # On the side that the line leaves.
                side, anchor = (-5, "end") if towards > start[0] + 2 else (5, "start")
                label = ", ".join(map(str, inputs))
                scene.write(start[0] + side, foot + 8, label, TINY, anchor, True, faint=True)
            if len(self.graph.ops[target].shapes) > 1:
                slots = sorted({slot for _, slot in self.ways[op.number, target]})
                text = "out " + ", ".join(map(str, slots))
                scene.write(goal[0] + 7, goal[1] - 9, text, TINY, code=True, faint=True)

    def _port(
        self, placed: Placed, sizes: list[tuple[float, float]], here: int, target: int
    ) -> tuple[float, float]:
        """Where a line from one box arrives at another: side by side, in the order in which they come."""
        comers = []
        for other in self._comers(target):
            route = placed.routes[other, target]
            comers.append((route[-1][0] if route else placed.left[other] + sizes[other][0] / 2, other))
        at = [other for _, other in sorted(comers)].index(here)
        width = sizes[target][0]
        return placed.left[target] + width * (at + 1) / (len(comers) + 1), placed.top[target] + TOP
