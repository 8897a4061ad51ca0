"""The graph behind a tensor: nodes, leaves, what is saved for backward, and a real backward step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from torch import Tensor

from course_utils.draw import palette
from course_utils.draw.graph_backward import Gradient, Step
from course_utils.draw.graph_fold import MOST, Box, Way, fold
from course_utils.draw.graph_nodes import Graph, Op, Saved, read
from course_utils.draw.graph_steps import State, Steps, text_of
from course_utils.draw.graph_words import COUNTED, MOST_SLOTS, Chip, chips, headed, second, summary
from course_utils.draw.layers import Placed, place
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Line, Scene, to_picture
from course_utils.draw.shapes import Box as Shape
from course_utils.draw.words import LETTER, Words

LINE, CHIP, PAD = 16.0, 17.0, 7.0
BIG, SMALL, TINY = 12.0, 10.5, 9.5
PORT = 44.0  # between two lines that say where they arrive
TOP = 30.0  # for the line above the picture


def graph(
    *outputs: Tensor,
    params: Mapping[str, Tensor] | None = None,
    step: int | None = None,
    saved: bool = True,
    most: int = MOST,
    **names: Tensor,
) -> Picture:
    """The graph behind `outputs`: backward begins at the top and ends at the leaves.

    Tensors given by name (`w=w`, or `params=dict(module.named_parameters())`) are called so. `step` draws the
    state after so many steps of a real backward (-1: after the last), which leaves every `.grad` as it was.
    Beyond about `most` nodes parts are folded. Raises `ValueError` for a tensor that has no graph.
    """
    drawing = Drawing(read(outputs, params, names), saved=saved, most=most)
    if step is not None:
        drawing.run()
        step = range(drawing.last + 1)[step] if step < 0 else min(step, drawing.last)
    return to_picture(drawing.scene(step))


class Drawing(Steps):
    """A graph, folded and placed on a page; `scene` draws it, at any step of its recorded backward."""

    def __init__(self, read_graph: Graph, *, saved: bool = True, most: int = MOST) -> None:
        super().__init__(read_graph, fold(read_graph, most))
        self.show_saved = saved
        self._comers: list[list[int]] = [[] for _ in self.folded.boxes]
        for here, box in enumerate(self.folded.boxes):
            for target in box.ways:
                self._comers[target].append(here)
        self._heads: dict[int, list[str]] = {}
        self.outputs = {root: f"output {n}" for n, root in enumerate(read_graph.roots)}
        if len(read_graph.roots) == 1:
            self.outputs = {read_graph.roots[0]: "output"}
        self.look()

    def look(self) -> None:
        """Reads anew what is saved, and places everything."""
        whole = len(self.graph.ops) <= COUNTED
        self.saved: dict[int, list[Saved]] = {}
        for box in self.folded.boxes:
            if whole or not box.folded:
                self.saved.update((n, self.graph.saved(n)) for n in box.members)
        self.placed: dict[bool, tuple[Placed, list[tuple[float, float]]]] = {}

    def run(self, gradient: Sequence[Tensor] | Tensor | None = None) -> None:
        """Records a backward; what can be stepped through is that one."""
        super().run(gradient)
        self.placed = {}
        self.look()  # hooks may have packed, and a backward may have made a copy

    # --- the picture -------------------------------------------------------------------------------------

    def scene(self, step: int | None = None) -> Scene:
        """The picture: of the graph alone, or after `step` steps of the backward."""
        stepping = step is not None and self.recording is not None
        states = self.states(step) if stepping else {}
        now = self.moments[step - 1] if stepping and step else None
        placed, sizes = self._place(stepping)
        said = self.summary()
        scene = Scene(said if not stepping else f"{said} Step {step} of {self.last}.", placed.width)
        scene.height = placed.height + TOP + 8
        scene.words.append(Words(2, 9, said, SMALL))
        travelled = {
            (moment.number, sent.index) for moment in self.moments[: step or 0] for sent in moment.sent
        }
        for here in range(len(self.folded.boxes)):
            self._lines(scene, placed, sizes, here, now, travelled if stepping else set())
        failed = self.recording.failed if stepping and step == self.last else None
        for here, box in enumerate(self.folded.boxes):
            x, y = placed.left[here], placed.top[here] + TOP
            self._box(scene, box, x, y, *sizes[here], states, now, failed, stepping)
        return scene

    def around(self, step: int | None) -> tuple[float, float]:
        """From which height to which the box lies that is spoken of at a step."""
        placed, sizes = self._place(step is not None)
        number = self.graph.roots[0][0]
        if step and self.moments:
            number = self.moments[step - 1].number
        here = self.folded.box_of[number]
        return placed.top[here] + TOP, placed.top[here] + TOP + sizes[here][1]

    def summary(self) -> str:
        """The graph in one sentence."""
        return summary(self.graph, self.folded, self.saved)

    def _place(self, stepping: bool) -> tuple[Placed, list[tuple[float, float]]]:
        if stepping not in self.placed:
            widest = self._widest() if stepping else {}
            sizes = []
            for box in self.folded.boxes:
                texts = [(t, BIG if n == 0 else SMALL) for n, t in enumerate(self._head(box))]
                chips = [text for text, *_ in self._chips(box)]
                texts += [(text, SMALL) for text in chips]
                rows = len(self._slots(box)) if stepping else 0
                texts += [(text, SMALL) for n in box.members[:1] for text in widest.get(n, ())]
                # Room for the sign before the title, which comes and goes.
                width = max(LETTER * size * len(text) for text, size in texts) + 2 * PAD + 4
                width += 2 * LETTER * BIG if stepping else 0
                comers = self._comers[self.folded.box_of[box.members[0]]]
                if not box.folded and len(self.graph.ops[box.members[0]].shapes) > 1:
                    width = max(width, PORT * (len(comers) + 1))  # each says at which output it arrives
                height = PAD + len(self._head(box)) * LINE + (len(chips) + rows) * CHIP + PAD / 2
                sizes.append((min(width, WIDTH - 8), height))
            edges = [(n, target) for n, box in enumerate(self.folded.boxes) for target in box.ways]
            self.placed[stepping] = place(sizes, edges, WIDTH - 4), sizes
        return self.placed[stepping]

    def _widest(self) -> dict[int, list[str]]:
        """The texts that stand in the gradient lines of each box at some step, so that no box grows."""
        texts: dict[int, set[str]] = {}
        came: Counter[int] = Counter()
        sents = [*(self.recording.start if self.recording else ())]
        sents += [sent for moment in self.moments for sent in moment.sent]
        for sent in sents:
            came[sent.target] += 1
            first = self._first(sent.target)
            texts.setdefault(first, set()).add(self._slot_text(sent.target, sent.slot, sent.total, came))
        for moment in self.moments:
            for slot, one in enumerate(moment.given):
                texts.setdefault(self._first(moment.number), set()).add(
                    self._slot_text(moment.number, slot, one, came)
                )
        return {first: sorted(several) for first, several in texts.items()}

    def _first(self, number: int) -> int:
        return self.folded.boxes[self.folded.box_of[number]].members[0]

    def _head(self, box: Box) -> list[str]:
        """The lines at the top of a box."""
        first = box.members[0]
        if first not in self._heads:
            self._heads[first] = headed(self.graph, box, self.outputs)
        return self._heads[first]

    def _chips(self, box: Box) -> list[Chip]:
        return chips(self.saved.get(box.members[0], ())) if self.show_saved and not box.folded else []

    def _slots(self, box: Box) -> list[tuple[int, int]]:
        """The places at which gradients arrive that are shown in a box: node and output."""
        op = self.graph.ops[box.members[0]]
        if box.why in ("", "leaves"):
            slots = [(op.number, slot) for slot in range(max(len(op.shapes), 1))]
            if len(slots) <= MOST_SLOTS:
                return slots
            return [*slots[: MOST_SLOTS - 1], (op.number, MOST_SLOTS - 1 - len(slots))]
        here = self.folded.box_of[op.number]
        ways = (way for other in self.folded.boxes for way in other.ways.get(here, ()))
        entries = list(dict.fromkeys((way.target, way.slot) for way in ways))
        entries += [root for root in self.graph.roots if self.folded.box_of[root[0]] == here]
        return entries[:1] if len(entries) == 1 else [(-1, len(entries))]

    def _slot_text(self, number: int, slot: int, total: Gradient | None, came: Mapping[int, int]) -> str:
        op, awaited = self.graph.ops[number], self.awaited(number)
        which = f"{slot}: " if len(op.shapes) > 1 else ""
        count = f"{came[number]} of {awaited}  " if awaited > 1 else ""
        return f"{which}{count}{text_of(total)}"

    def _box(
        self,
        scene: Scene,
        box: Box,
        x: float,
        y: float,
        width: float,
        height: float,
        states: dict[int, State],
        now: Step | None,
        failed: int | None,
        stepping: bool,
    ) -> None:
        op = self.graph.ops[box.members[0]]
        runs = now is not None and now.number in box.members
        done = stepping and self._done(box, states)
        sign = "✗ " if failed in box.members else "▶ " if runs else "✓ " if done else ""
        head = self._head(box)
        words = []
        at = y + PAD + LINE / 2 - 2
        for n, text in enumerate(head):
            shown = sign + text if n == 0 else text
            size = BIG if n == 0 else SMALL
            words.append(Words(x + PAD, at, shown, size, code=True, bold=n == 0 or (op.leaf and n == 1)))
            at += LINE
        leaf = op.leaf and not box.folded
        fill = "odd" if failed in box.members else "lit" if runs else "view" if leaf else ""
        kinds = " ".join(self.graph.ops[n].kind for n in box.members[:20])
        more = kinds if box.folded else f"{op.kind} {second(op, self.outputs)}".strip()
        part = "leaf" if leaf else "folded" if box.folded else "node"
        thick = 3.0 if runs or failed in box.members else 1.2
        shape = Shape(x, y, width, height, fill, tuple(words), more, thick, box.folded, part, str(op.number))
        scene.boxes.append(shape)
        at -= LINE / 2
        if stepping:
            for number, slot in self._slots(box):
                self._arrived(scene, box, number, slot, x, at, width, states)
                at += CHIP
        for text, chip, dashed, more in self._chips(box):
            inside = (Words(x + PAD + 1, at + CHIP / 2 - 0.5, text, SMALL, code=True),)
            bold = 2.2 if chip == "odd" else 0.6
            key = str(op.number)
            scene.boxes.append(
                Shape(x + 4, at, width - 8, CHIP - 2, chip, inside, more, bold, dashed, "saved", key)
            )
            at += CHIP

    def _arrived(
        self,
        scene: Scene,
        box: Box,
        number: int,
        slot: int,
        x: float,
        y: float,
        width: float,
        states: dict[int, State],
    ) -> None:
        """What has arrived at an output of a node, as a line in its box."""
        fill, dashed = "", True
        if number < 0:  # a folded box with several ways in
            count = sum(states[n].came for n in box.members if n in states)
            awaited = sum(len(ways) for other in self.folded.boxes for ways in self._into(other, box))
            text = f"{count} of {awaited} arrived" if count else f"waits for {awaited}"
            key = str(box.members[0])
            fill, dashed = ("gradient", count < awaited) if count else ("", True)
        else:
            state, awaited, key = states.get(number, State()), self.awaited(number), f"{number}.{slot}"
            which = f"{slot}: " if len(self.graph.ops[number].shapes) > 1 else ""
            if slot < 0:  # all that there is no room for
                count = sum(one >= MOST_SLOTS - 1 for one in state.totals)
                text = f"{-slot} more: {count} arrived"
                fill, dashed = ("gradient" if count else ""), count < -slot
            elif slot in state.totals:
                text = self._slot_text(number, slot, state.totals[slot], {number: state.came})
                fill, dashed = "gradient", state.came < awaited
            elif state.done:
                text, dashed = f"{which}None", False
            else:
                text = f"{which}waits" + (f" for {awaited}" if awaited > 1 else "")
        fill = fill or "storage"
        inside = (Words(x + PAD + 1, y + CHIP / 2 - 0.5, text, SMALL, code=True),)
        scene.boxes.append(
            Shape(x + 4, y, width - 8, CHIP - 2, fill, inside, "", 0.8, dashed, "gradient", key)
        )

    def _into(self, other: Box, box: Box) -> list[list[Way]]:
        here = self.folded.box_of[box.members[0]]
        return [other.ways[here]] if here in other.ways else []

    def _done(self, box: Box, states: dict[int, State]) -> bool:
        ran = [n for n in box.members if n in states and states[n].done]
        if not box.folded:
            return bool(ran)
        mine = {moment.number for moment in self.moments} & set(box.members)
        return bool(mine) and mine <= set(ran)

    def _lines(
        self,
        scene: Scene,
        placed: Placed,
        sizes: list[tuple[float, float]],
        here: int,
        now: Step | None,
        travelled: set[tuple[int, int]],
    ) -> None:
        """What leads from a box to others, and which of its inputs lead nowhere."""
        box = self.folded.boxes[here]
        op = self.graph.ops[box.members[0]]
        x, (width, height) = placed.left[here], sizes[here]
        foot = placed.top[here] + TOP + height
        ends: list[tuple[float, int | None, int]] = []  # where to, box or None, index of the input
        for target, ways in box.ways.items():
            route = placed.routes[here, target]
            towards = route[0][0] if route else placed.left[target] + sizes[target][0] / 2
            ends.append((towards, target, min(way.index for way in ways)))
        ends.sort()
        for index, edge in enumerate(op.edges if not box.folded else ()):
            if edge is None:
                at = next((n for n, end in enumerate(ends) if end[2] > index), len(ends))
                ends.insert(at, (0.0, None, index))
        for place_, (towards, target, index) in enumerate(ends):
            start = (x + width * (place_ + 1) / (len(ends) + 1), foot)
            if target is None:
                scene.lines.append(Line((start, (start[0], foot + 7)), 1.0, arrow=False, dashed=True))
                scene.words.append(
                    Words(start[0], foot + 14, f"{index}: None", TINY, "middle", code=True, faint=True)
                )
                continue
            ways = box.ways[target]
            goal = self._port(placed, sizes, here, target)
            points = [start]
            for middle, top, bottom in placed.routes[here, target]:
                points += [(middle, top + TOP), (middle, bottom + TOP)]
            keys = {(way.source, way.index) for way in ways}
            sent = {(now.number, one.index): one for one in now.sent} if now else {}
            going = [sent[key] for key in keys if key in sent]
            empty = bool(going) and all(one.gradient is None for one in going)
            thick = 3.4 if going else 1.8 if keys & travelled else 1.1
            colour = palette.GRADIENT if (going and not empty) or keys & travelled else ""
            scene.lines.append(
                Line((*points, goal), thick, colour, True, empty, f"{box.members[0]}-{ways[0].target}")
            )
            label = self._numbers(box, op, ways)
            if label and width / (len(ends) + 1) > 14:
                # On the side that the line leaves.
                side, anchor = (-5, "end") if towards > start[0] + 2 else (5, "start")
                scene.words.append(Words(start[0] + side, foot + 8, label, TINY, anchor, True, faint=True))
            slots = sorted({way.slot for way in ways})
            outputs = self.folded.boxes[target]
            room = sizes[target][0] / (len(self._comers[target]) + 1) >= PORT - 6
            if not outputs.folded and len(self.graph.ops[ways[0].target].shapes) > 1 and room:
                text = "out " + ", ".join(map(str, slots))
                scene.words.append(Words(goal[0] + 7, goal[1] - 9, text, TINY, code=True, faint=True))

    def _numbers(self, box: Box, op: Op, ways: list[Way]) -> str:
        if box.folded:
            return f"×{len(ways)}" if len(ways) > 1 else ""
        return ", ".join(str(way.index) for way in ways) if len(op.edges) > 1 else ""

    def _port(
        self, placed: Placed, sizes: list[tuple[float, float]], here: int, target: int
    ) -> tuple[float, float]:
        """Where a line from one box arrives at another: side by side, in the order in which they come."""
        comers = []
        for other in self._comers[target]:
            route = placed.routes[other, target]
            comers.append((route[-1][0] if route else placed.left[other] + sizes[other][0] / 2, other))
        comers.sort()
        at = [other for _, other in comers].index(here)
        width = sizes[target][0]
        return placed.left[target] + width * (at + 1) / (len(comers) + 1), placed.top[target] + TOP
