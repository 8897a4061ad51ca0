"""The compile explorer: what torch.compile made of a function, and each call of it to step through."""

from __future__ import annotations

from collections import Counter

from course_utils.draw.compiled import compose
from course_utils.draw.shapes import Scene
from course_utils.explore.controls import dropdown
from course_utils.explore.explorer import Stepper
from course_utils.watching.compiled import Watched
from course_utils.watching.compiled_seen import NO_GRAPH, Call, Step, count, summary
from course_utils.wrong_use import public


@public
def compiled(seen: Watched) -> CompiledExplorer:
    """An explorer of what `watch_compile` gave: steps from call to call, and the guards of one compiled
    version at a time. Calls that are made later are there at the next step."""
    return CompiledExplorer(seen)


class CompiledExplorer(Stepper):
    """The widget. `step` is the number of the call that is shown; `chosen` has the name of the version of
    which guards are shown."""

    first = 1

    def __init__(self, seen: Watched) -> None:
        self.seen = seen
        self.chosen = dropdown("guards", width=130, label=48)
        super().__init__("call", "Call ▶", "All", self.chosen)
        self.chosen.observe(lambda change: self.redraw(), "value")
        self.go(None)

    def last(self) -> int:
        return len(self.seen.calls)

    def go(self, step: int | None) -> None:
        """To call number `step`. Where it has compiled something, the guards of that are shown."""
        names = [graph.name for graph in self.seen.graphs]
        new = [graph.name for graph in self.seen.graphs if graph.call == step]
        kept = self.chosen.value
        with self._silent():
            self.chosen.options = [("none", ""), *((name, name) for name in names)]
            self.chosen.value = (new or [kept if kept is not None else "".join(names[:1])])[0]
        super().go(step if self.seen.calls else None)
        self.slider.disabled = not self.seen.calls
        self.forward_button.disabled = False  # another cell may have made more calls since

    def scene(self) -> Scene:
        graphs = [graph for graph in self.seen.graphs if graph.name == self.chosen.value]
        return compose(self.seen, self.step, graphs)

    def said(self) -> list[str]:
        calls = self.seen.calls
        return overall(self.seen) if self.step is None else tell(calls[self.step - 1], len(calls))


def overall(seen: Watched) -> list[str]:
    """What became of the function, and its pieces."""
    versions = Counter(graph.piece for graph in seen.graphs)
    pieces = [
        f"piece {one.name}: {one.begins}, {count(versions[one.name], 'version')}" for one in seen.pieces
    ]
    return [summary(seen), *pieces]


def tell(call: Call, of: int) -> list[str]:
    """What a call did, in words."""
    lines = [f"call {call.number} of {of}: {', '.join(call.arguments) or 'no arguments'}"]
    lines += map(_told, call.steps) if call.steps else [NO_GRAPH]
    return lines


def _told(step: Step) -> str:
    if step.what == "python":
        return f"piece {step.piece}: plain Python, since {step.why}"
    times = f", {step.times} times" if step.times > 1 else ""
    if step.what == "hit":
        return f"piece {step.piece}: version {step.version} fits and ran{times}"
    anew = "for the first time" if step.what == "compiled" else f"anew as version {step.version}"
    since = f", since {step.why}" if step.what == "recompiled" else ""
    return f"piece {step.piece}: compiled {anew}{', and ran' if times else ''}{times}{since}"
