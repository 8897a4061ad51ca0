"""The compile explorer: what torch.compile made of a function, and each call of it to step through."""

from __future__ import annotations

from collections import Counter
from html import escape

import ipywidgets as widgets

from course_utils.draw.compiled import compose
from course_utils.draw.shapes import Scene, to_svg
from course_utils.explore.controls import button
from course_utils.explore.explorer import COLOUR, Explorer
from course_utils.watching.compiled import Watched
from course_utils.watching.compiled_seen import NO_GRAPH, Call, Graph, Step, count, summary


def compiled(seen: Watched) -> CompiledExplorer:
    """An explorer of what `watch_compile` gave: steps from call to call, and the guards of one compiled
    version at a time. Calls that are made later are there at the next step."""
    return CompiledExplorer(seen)


class CompiledExplorer(Explorer):
    """The widget. `call` is the number of the call that is shown, from 1; None before one was asked for."""

    def __init__(self, seen: Watched) -> None:
        self.seen = seen
        self.call: int | None = None

        self.all_button = button("All", self.leave, width="52px")
        self.back_button = button("◀ Back", self.back)
        self.forward_button = button("Call ▶", self.forward)
        self.slider = widgets.IntSlider(
            min=1,
            max=2,
            description="call",
            layout=widgets.Layout(width="250px"),
            style={"description_width": "30px"},
        )
        self.chosen = widgets.Dropdown(
            description="guards", layout=widgets.Layout(width="130px"), style={"description_width": "48px"}
        )
        self.message = widgets.HTML()
        self.picture = widgets.HTML()
        super().__init__(layout=widgets.Layout(max_width="720px"))
        row = widgets.Layout(flex_flow="row wrap", align_items="center")
        controls = [self.all_button, self.back_button, self.forward_button, self.slider, self.chosen]
        self.children = [widgets.HBox(controls, layout=row), self.message, self.picture]
        self.slider.observe(self._slid, "value")
        self.chosen.observe(self._changed, "value")
        self._show()

    def forward(self) -> None:
        """To the next call, where there is one."""
        self.go(1 if self.call is None else self.call + 1)

    def back(self) -> None:
        """To the call before; before the first, all of them."""
        if self.call is not None and self.call > 1:
            self.go(self.call - 1)
        else:
            self.leave()

    def go(self, call: int) -> None:
        """To call number `call`. Where it has compiled something, the guards of that are shown."""
        if not self.seen.calls:
            return
        self.call = max(1, min(call, len(self.seen.calls)))
        new = [graph.name for graph in self.seen.graphs if graph.call == self.call]
        self._show(new[0] if new else None)

    def leave(self) -> None:
        """Shows what all calls have made."""
        self.call = None
        self._show()

    def guards(self, name: str) -> None:
        """Shows the guards of a version, such as "A1"; of none for ""."""
        self.chosen.value = name

    def scene(self) -> Scene:
        """The picture that is shown."""
        return compose(self.seen, self.call, self._graphs())

    def _graphs(self) -> list[Graph]:
        return [graph for graph in self.seen.graphs if graph.name == self.chosen.value]

    def _show(self, guards: str | None = None) -> None:
        with self._silent():
            names = [graph.name for graph in self.seen.graphs]
            kept = self.chosen.value
            options = [("none", ""), *((name, name) for name in names)]
            if tuple(self.chosen.options) != tuple(options):
                self.chosen.options = options
                self.chosen.value = kept if kept in names else names[0] if names else ""
            if guards is not None:
                self.chosen.value = guards
            self.slider.max = max(len(self.seen.calls), 2)
            self.slider.value = self.call or 1
            self.slider.disabled = not self.seen.calls
        # Forward it can always go: another cell may have made more calls since.
        self.back_button.disabled = self.all_button.disabled = self.call is None
        self._draw()

    def _draw(self) -> None:
        self.picture.value = to_svg(self.scene(), f"compiled-{self.model_id}")
        self.message.value = self._said()

    def _said(self) -> str:
        calls = self.seen.calls
        lines = overall(self.seen) if self.call is None else tell(calls[self.call - 1], len(calls))
        first, *others = lines
        said = f"<b>{escape(first)}</b>" + "".join(f"<div>{escape(line)}</div>" for line in others)
        # As high as most calls need, so that the picture below stays where it is.
        least = 22 * (1 + max((len(call.steps) for call in calls), default=0))
        return f"<div style='{COLOUR};line-height:1.45;min-height:{least}px;margin:2px 0'>{said}</div>"

    def _slid(self, change: dict) -> None:
        if not self._quiet:
            self.go(change["new"])

    def _changed(self, change: dict) -> None:
        if not self._quiet:
            self._draw()


def overall(seen: Watched) -> list[str]:
    """What became of the function, and its pieces."""
    versions = Counter(graph.piece for graph in seen.graphs)
    pieces = [
        f"piece {one.name}: {one.begins}, {count(versions[one.name], 'version')}" for one in seen.pieces
    ]
    python = [f"Python {one.begins}: {one.reason}" for one in seen.skipped]
    return [summary(seen), *python, *pieces]


def tell(call: Call, of: int) -> list[str]:
    """What a call did, in words."""
    lines = [f"call {call.number} of {of}: {', '.join(call.arguments) or 'no arguments'}"]
    lines += map(_told, call.steps) if call.steps else [NO_GRAPH]
    return [*lines, f"raised {call.raised}"] if call.raised else lines


def _told(step: Step) -> str:
    times = f", {step.times} times" if step.times > 1 else ""
    ran = f", and ran {step.times} times" if step.times > 1 else ""
    if step.what == "python":
        name = f"piece {step.piece}" if step.piece else step.begins
        return f"{name}: plain Python, since {step.why}"
    name = f"piece {step.piece}"
    if step.what == "hit":
        return f"{name}: version {step.version} fits and ran{times}"
    if step.what == "compiled":
        return f"{name}: compiled for the first time{ran}"
    return f"{name}: compiled anew as version {step.version}{ran}, since {step.why}"
