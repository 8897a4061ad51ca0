"""Two recorded training runs, number by number: what differs, and from which step on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from course_utils.measure.training import Run
from course_utils.wrong_use import WrongUse

Numbers = Sequence[float]
# Two numbers are the same where they differ by less than this share of the larger, or of the largest so far.
ROUNDING, OF_ALL = 1e-4, 1e-6
# Two graphs of the step before may still be there: names such as `loss` keep them until they are used again.
FEW_GRAPHS = 2
FEW_LATE = 8  # layers of which it is said when their gradient ended
LOSS, LEFT_OVER, GRAPHS, RATE = "loss", "left over", "graphs kept", "learning rate"
NODES = "nodes"
_SAID = {
    LOSS: "the loss",
    LEFT_OVER: "the gradient left over from the step before",
    GRAPHS: "the graphs that are kept",
    RATE: "the learning rate",
    NODES: "the nodes that a backward goes through",
}


@dataclass(frozen=True, eq=False)
class Row:
    """Numbers of each run, by step; None for a run whose model has no such layer. `missing`: of a layer,
    for each run, the steps at which it had no gradient, not even zeros. `frozen`: of a layer, that it wanted
    none in any run, which is nobody's fault. `points`: what to draw of each run, where that is more than a
    number for each step."""

    name: str
    values: tuple[tuple[float, ...] | None, ...]
    layer: bool = False
    epochs: bool = False
    missing: tuple[frozenset[int], ...] = ()
    frozen: bool = False
    points: tuple[Numbers, ...] = ()

    def silent(self, number: int, start: int = 0) -> str:
        """Whether from this step on a run's gradient of the layer is "missing", or "zeros"; else ""."""
        values = (self.values[number] or ())[start:]
        if not self.layer or not values or any(values):
            return ""
        missing = self.missing[number] if self.missing else frozenset()
        return "missing" if missing.issuperset(range(start, start + len(values))) else "zeros"


class Parting(NamedTuple):
    """The first step at which two runs differ by more than rounding, and the rows in which they do."""

    step: int
    rows: tuple[Row, ...]


class Compared:
    """One run or two, row by row. `steps`: how many the longer one has. `parting`: None where they are equal,
    and for one run. `tall`: the name of a row that is to be seen well, though there is one run, or no
    difference."""

    def __init__(
        self,
        runs: Sequence[Run],
        names: Sequence[str] = ("sick", "healthy"),
        also: Mapping[str, Sequence[Numbers]] | None = None,
        tall: str = "",
    ) -> None:
        count, self.tall = len(runs), tall
        self.names = tuple(names[:count])
        losses = tuple(losses_of(run, name) for run, name in zip(runs, self.names, strict=True))
        self.steps = max(map(len, losses))
        self.rows = [Row(LOSS, losses)]
        for name, lists in (also or {}).items():
            self.rows.append(Row(name, tuple(map(self._spread, lists)), epochs=True))
        for name, of in ((LEFT_OVER, _left_over), (GRAPHS, _graphs), (RATE, lambda run: run.rates)):
            row = Row(name, tuple(tuple(of(run)) for run in runs))
            differs = count == 2 and self._first(row) is not None
            self.rows += [row] if differs or name == tall else []
        if tall == NODES:
            each = tuple(run.nodes for run in runs)
            values = tuple(_by_step(run, run.nodes, max) for run in runs)
            self.rows.append(Row(NODES, values, points=each))
        every = {name: None for run in reversed(runs) for name in run.grad_norms}
        self.layers = [
            Row(
                name,
                tuple(_norms(run, name) for run in runs),
                True,
                missing=tuple(_missing(run, name) for run in runs),
                frozen=all(all(run.frozen.get(name, [True])) for run in runs),
            )
            for name in every
        ]
        firsts = [(self._first(row), row) for row in (*self.rows, *self.layers)] if count == 2 else []
        known = [step for step, _ in firsts if step is not None]
        start = min(known, default=-1)
        self.parting = Parting(start, tuple(row for step, row in firsts if step == start)) if known else None

    def _spread(self, values: Numbers) -> tuple[float, ...]:
        """What is known at each step, of fewer numbers than steps: such as one after each epoch."""
        known = (((step + 1) * len(values) + 1e-9) // self.steps for step in range(self.steps))
        return tuple(values[int(n) - 1] if n else math.nan for n in known)

    def _first(self, row: Row) -> int | None:
        """The first step at which a row differs; None where it does not, or is that of one run alone."""
        one, other = row.values
        if one is None or other is None:
            return None
        largest = 0.0
        for step, (a, b) in enumerate(zip(one, other, strict=False)):
            largest = max(largest, *(abs(v) for v in (a, b) if math.isfinite(v)), 0.0)
            if row.name == GRAPHS:
                a, b = max(a, FEW_GRAPHS), max(b, FEW_GRAPHS)
            if not _same(a, b, OF_ALL * largest):
                return step
        return min(len(one), len(other)) if len(one) != len(other) and row.name == LOSS else None

    def said(self) -> list[str]:
        """What there is to see, in sentences."""
        told = []
        if self.parting:
            told.append(f"They part at step {self.parting.step}, {self._where(self.parting.rows)}.")
        elif len(self.names) == 2:
            told.append("They agree at every step: their curves lie on each other.")
        for number, name in enumerate(self.names):
            losses = self.rows[0].values[number] or ()
            if len(losses) < self.steps:
                told.append(f"The {name} run has {len(losses)} steps, the other {self.steps}.")
            if bad := [step for step, loss in enumerate(losses) if not math.isfinite(loss)]:
                told.append(f"In the {name} run the loss is {losses[bad[0]]:g} at step {bad[0]}.")
            wanting = [row for row in self.layers if not row.frozen]
            for kind, what in _SILENT.items():
                if none := [row.name for row in wanting if row.silent(number) == kind]:
                    told.append(f"In the {name} run {_listed(none)} get{'s' * (len(none) == 1)} {what}.")
            late = []
            for row in wanting:
                values = row.values[number] or ()
                last = max((step for step, value in enumerate(values) if value), default=-1)
                if 0 <= last < len(values) - 1:
                    what = _SILENT[row.silent(number, last + 1)]
                    late.append(f"In the {name} run layer `{row.name}` gets {what} from step {last + 1} on.")
            more = f"So it is with {len(late) - FEW_LATE} layers more."
            told += late if len(late) <= FEW_LATE + 1 else [*late[:FEW_LATE], more]
            if alone := [row.name for row in self.layers if row.values[number] and None in row.values]:
                told.append(f"Only the {name} model has {_listed(alone)}.")
        return told

    def _where(self, rows: Sequence[Row]) -> str:
        parts = [f"in {_SAID.get(row.name, f'`{row.name}`')}" for row in rows if not row.layer]
        layers = [row.name for row in rows if row.layer]
        if layers:
            every = 2 < len(layers) == sum(None not in row.values for row in self.layers)
            parts.append("at every layer" if every else f"at {_listed(layers)}")
        return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


_SILENT = {"missing": "no gradient", "zeros": "zeros for a gradient"}


def losses_of(run: Run, name: str) -> tuple[float, ...]:
    """The loss at each step of a run. Raises `ValueError` where there is none."""
    losses = _by_step(run, run.losses, sum)  # a step's gradient is that of the sum of its losses
    if not losses:
        raise WrongUse(f"the run {name} has no losses; nothing called backward while it was recorded")
    return losses


def _by_step(run: Run, numbers: Numbers, together: Callable[[Any], float]) -> tuple[float, ...]:
    """A number for each optimizer step, of its calls of backward; by call where no optimizer stepped."""
    ends = [step.backwards for step in run.steps]
    if not any(ends):
        return tuple(numbers)
    parts = [numbers[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    return tuple(together(part) if part else math.nan for part in parts)


def _left_over(run: Run) -> tuple[float, ...]:
    return _by_step(run, run.leftovers, max)


def _graphs(run: Run) -> list[int]:
    kept = [0] * len(run.steps)
    for forward, count in zip(run.forwards, run.graphs, strict=False):
        if forward.step < len(kept):
            kept[forward.step] = max(kept[forward.step], count)
    return kept


def _norms(run: Run, name: str) -> tuple[float, ...] | None:
    """Of a layer, by step; from the end, since a model may be called for the first time later on."""
    found = run.grad_norms.get(name)
    return None if found is None else (math.nan,) * (len(run.steps) - len(found)) + tuple(found)


def _missing(run: Run, name: str) -> frozenset[int]:
    found = run.missing.get(name, [])
    start = len(run.steps) - len(found)
    return frozenset([*range(start), *(start + i for i, none in enumerate(found) if none)])


def _same(a: float, b: float, room: float) -> bool:
    if math.isfinite(a) and math.isfinite(b):
        return abs(a - b) <= ROUNDING * max(abs(a), abs(b)) + room
    return a == b or (math.isnan(a) and math.isnan(b))


def _listed(layers: list[str]) -> str:
    """Layer `0`; layers `0` and `2`."""
    quoted = [f"`{name}`" for name in layers]
    if len(quoted) > 4:
        quoted = [*quoted[:3], f"{len(quoted) - 3} more"]
    text = " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
    return f"layer{'s' * (len(quoted) > 1)} {text}"
