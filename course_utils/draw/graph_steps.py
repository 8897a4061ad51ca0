"""A recorded backward, step by step: what has arrived where, and what each step does, in sentences."""

from __future__ import annotations

from collections import Counter

from course_utils.draw.graph_backward import Gradient, Recording, Sent, Step, record
from course_utils.draw.graph_nodes import Graph


class State:
    """What has arrived at a node."""

    def __init__(self) -> None:
        self.totals: dict[int, Gradient | None] = {}
        self.came = 0
        self.done = False

    def take(self, sent: Sent) -> None:
        """Counts what was sent to it."""
        self.came += 1
        if sent.total is not None or sent.slot not in self.totals:
            self.totals[sent.slot] = sent.total


class Steps:
    """The steps of a backward through a graph; none before `run`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.recording: Recording | None = None
        self._awaits = Counter(target for op in graph.ops for target, _ in filter(None, op.edges))
        self._awaits.update(number for number, _ in graph.roots)

    @property
    def moments(self) -> list[Step]:
        return self.recording.steps if self.recording else []

    @property
    def last(self) -> int:
        """The number of the last step; 0 is before the first."""
        return len(self.moments)

    def run(self) -> None:
        """Records a backward; what can be stepped through is that one."""
        self.recording = record(self.graph)

    def states(self, step: int) -> dict[int, State]:
        """What has arrived at each node after so many steps, and which nodes have run."""
        states = {op.number: State() for op in self.graph.ops}
        for sent in self.recording.start if self.recording else ():
            states[sent.target].take(sent)
        for moment in self.moments[:step]:
            state = states[moment.number]
            state.done = True
            for slot, one in enumerate(moment.given):  # hooks may have changed what had arrived
                if one is not None or slot in state.totals:
                    state.totals[slot] = one
            for sent in moment.sent:
                states[sent.target].take(sent)
        return states

    def tell(self, step: int) -> list[str]:
        """What happens in a step, in sentences."""
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
            name = self.called(op.number).partition(" ")[2]
            return [f"The {name} has all of its gradient: backward() adds {given} to its .grad."]
        said = [f"{self.called(op.number)} runs; it was given {given}."]
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
            return f"the leaf {names}" if names else f"a leaf {op.shapes[0]}"
        return f"{op.kind} of {names}" if names else op.kind


def text_of(gradient: Gradient | None) -> str:
    """A gradient in few characters."""
    return "None" if gradient is None else gradient.text
