"""A recorded backward, step by step: what has arrived where, and what each step does, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from torch import Tensor

from course_utils.draw.graph_backward import Gradient, Recording, Sent, Step, record
from course_utils.draw.graph_fold import Folded
from course_utils.draw.graph_nodes import Graph


class State:
    """What has arrived at a node."""

    def __init__(self) -> None:
        self.totals: dict[int, Gradient | None] = {}
        self.came = 0
        self.done = self.altered = False

    def take(self, sent: Sent) -> None:
        """Counts what was sent to it."""
        self.came += 1
        if sent.total is not None or sent.slot not in self.totals:
            self.totals[sent.slot] = sent.total


class Steps:
    """The steps of a backward through a folded graph; none before `run`."""

    def __init__(self, graph: Graph, folded: Folded) -> None:
        self.graph, self.folded = graph, folded
        self.recording: Recording | None = None
        self.moments: list[Step] = []
        self._awaits = Counter(target for op in graph.ops for target, _ in filter(None, op.edges))
        self._awaits.update(number for number, _ in graph.roots)

    @property
    def last(self) -> int:
        """The number of the last step; 0 is before the first."""
        return len(self.moments)

    def run(self, gradient: Sequence[Tensor] | Tensor | None = None) -> None:
        """Records a backward; what can be stepped through is that one."""
        self.recording = record(self.graph, _watched(self.graph, self.folded), gradient)
        self.moments = _shown(self.graph, self.folded, self.recording)

    def states(self, step: int) -> dict[int, State]:
        """What has arrived at each node after so many steps, and which nodes have run."""
        states: dict[int, State] = {}
        sents: Iterable[Sent] = self.recording.start if self.recording else ()
        for sent in sents:
            states.setdefault(sent.target, State()).take(sent)
        for moment in self.moments[:step]:
            state = states.setdefault(moment.number, State())
            state.done = True
            if moment.altered or not state.totals:
                state.totals = dict(enumerate(moment.given))
            state.altered = moment.altered
            for sent in moment.sent:
                states.setdefault(sent.target, State()).take(sent)
        return states

    def tell(self, step: int) -> list[str]:
        """What happens in a step, in sentences."""
        if self.recording is None:
            return []
        if step == 0:
            said = [
                f"Backward begins: {self.called(sent.target)} is given {text_of(sent.gradient)}."
                for sent in self.recording.start
            ]
        else:
            said = self._told(self.moments[step - 1], step)
        if step == self.last and self.recording.error:
            where = self.recording.failed
            at = f" in {self.called(where)}" if where is not None else ""
            said.append(f"✗ Backward raises{at}: {self.recording.error}")
        return said

    def _told(self, moment: Step, step: int) -> list[str]:
        op = self.graph.ops[moment.number]
        given = ", ".join(text_of(one) for one in moment.given)
        if op.leaf:
            first = f"The {self.called(op.number).partition(' ')[2]} has all of its gradient"
            first += f": backward() adds {given} to its .grad." if moment.given[0] else ", which is None."
        else:
            first = f"{self.called(op.number)} runs; it was given {given}."
        said = [first]
        if moment.altered:
            said.append("A hook has changed what had arrived.")
        states = self.states(step)
        for sent in moment.sent:
            if sent.gradient is None:
                text = f"input {sent.index}: None, nothing for {self.called(sent.target)}"
            else:
                text = f"input {sent.index}: {text_of(sent.gradient)} for {self.called(sent.target)}"
            came, awaited = states[sent.target].came, self.awaited(sent.target)
            if awaited > 1:
                total = f", together {text_of(sent.total)}" if sent.total != sent.gradient else ""
                text += f" ({came} of {awaited} have arrived{total})"
            said.append(text)
        return said

    def awaited(self, number: int) -> int:
        return self._awaits[number]

    def called(self, number: int) -> str:
        op = self.graph.ops[number]
        names = ", ".join(op.labels.values())
        if op.leaf:
            return f"the leaf {names}" if names else f"a leaf {op.shapes[0] if op.shapes else ''}".strip()
        box = self.folded.boxes[self.folded.box_of[number]]
        inside = f" (among {len(box.members):,} folded nodes)" if box.folded else ""
        return (f"{op.kind} of {names}" if names else op.kind) + inside


def text_of(gradient: Gradient | None) -> str:
    """A gradient in few characters."""
    return "None" if gradient is None else gradient.text


def _watched(graph: Graph, folded: Folded) -> set[int]:
    """Nodes with a box of their own, and those at which ways into and out of the others begin and end."""
    watch = {box.members[0] for box in folded.boxes if not box.folded}
    watch |= {number for number, _ in graph.roots}
    for box in folded.boxes:
        for ways in box.ways.values():
            watch |= {way.source for way in ways} | {way.target for way in ways}
        if box.why == "leaves":
            watch.update(box.members)
    return watch


def _shown(graph: Graph, folded: Folded, recording: Recording) -> list[Step]:
    """The steps to be shown: a node with a box of its own; of a folded box what sends something out of it,
    and the last one where nothing does."""
    last: dict[int, int] = {}
    sends: set[int] = set()
    for place_, step in enumerate(recording.steps):
        here = folded.box_of[step.number]
        last[here] = place_
        if any(folded.box_of[sent.target] != here for sent in step.sent):
            sends.add(here)
    moments = []
    for place_, step in enumerate(recording.steps):
        here = folded.box_of[step.number]
        box = folded.boxes[here]
        out = tuple(sent for sent in step.sent if folded.box_of[sent.target] != here)
        if not box.folded or out or (here not in sends and last[here] == place_):
            moments.append(Step(step.number, step.given, out if box.folded else step.sent, step.altered))
    return moments
