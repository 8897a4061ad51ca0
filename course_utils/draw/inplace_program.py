"""A short program with one write in place, run to see what backward makes of it.

Everything is found by running: the program on copies of the reader's tensors, with the write in the form and
at the place that are asked for; the true gradient by torch's own copies of what is saved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import allow_mutation_on_saved_tensors

from course_utils import torch_private
from course_utils.draw.graph_backward import Gradient, describe, in_one_line
from course_utils.draw.graph_nodes import kept_by, read, whose
from course_utils.wrong_use import WrongUse


@dataclass
class Lane:
    """A saved tensor through the lines of a run: which node keeps it, since which row, at which version.
    `now` and `written` hold for each row from there on the version and whether the values are others than
    those that were saved."""

    node: str
    name: str
    whose: str
    since: int
    version: int
    now: list[int] = field(default_factory=list)
    written: list[bool] = field(default_factory=list)

    @property
    def behind(self) -> bool:
        """Whether backward would find another version than was saved."""
        return self.now[-1] != self.version


@dataclass
class Run:
    """What came of it. `rows` are the lines as they ran, `row` the number of the write among them; the last
    row is the backward. `verdict` is "harmless", "raises" or "silently wrong"."""

    rows: list[str]
    row: int
    lanes: list[Lane] = field(default_factory=list)
    verdict: str = ""
    error: str = ""
    gradients: dict[str, Gradient | None] = field(default_factory=dict)
    truth: dict[str, Gradient | None] = field(default_factory=dict)
    reason: str = ""


class Program:
    """Lines of code, the tensors that they start from, and the write. The last line gives the loss.

    Raises `ValueError` where the operation is no write in place to a tensor that one of the lines makes, and
    whatever the program raises without it.
    """

    def __init__(self, lines: str, operation: str, given: Mapping[str, Tensor]) -> None:
        self.lines, self.operation, self.given = lines.splitlines(), operation, dict(given)
        call = re.fullmatch(r"(\w+)(\.\w+_\(.*\))", operation)
        made = [line.partition(" = ")[0] for line in self.lines]
        if not call or call[1] not in made:
            raise WrongUse(f"{operation!r} is no write to a tensor of these lines, such as y.add_(1)")
        (name, write), self.loss = call.groups(), made[-1]
        self.forms = {
            "tracked": operation,
            "data": f"{name}.data{write}",
            "detach": f"{name}.detach(){write}",
            "no_grad": f"with torch.no_grad(): {operation}",
        }
        # After how many lines the write can stand: from where its tensor exists.
        self.places = range(made.index(name) + 1, len(made) + 1)

    def run(self, at: int, form: str = "tracked") -> Run:
        """The program with the write after `at` lines, in one of its `forms`."""
        run = Run([*self.lines[:at], self.forms[form], *self.lines[at:], f"{self.loss}.backward()"], at)
        space, leaves = self._start()
        watch = _Watch(run, space)
        for row, line in enumerate(run.rows[:-1]):
            exec(line, space)
            watch.look(row)
        truth = self._truth(at)
        run.truth = {name: describe(one) for name, one in truth.items()}
        try:
            space[self.loss].backward()
        except RuntimeError as error:
            run.verdict, run.error = "raises", in_one_line(error)
        else:
            run.gradients = {name: describe(leaf.grad) for name, leaf in leaves.items()}
            right = all(torch.allclose(leaf.grad, truth[name], 1e-4) for name, leaf in leaves.items())
            run.verdict = "harmless" if right else "silently wrong"
        run.reason = _reason(run)
        return run

    def _start(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Copies of what the program starts from, and among them the leaves."""
        copies = {name: x.detach().clone().requires_grad_(x.requires_grad) for name, x in self.given.items()}
        leaves = {name: x for name, x in copies.items() if x.requires_grad}
        return {"torch": torch, **copies}, leaves

    def _truth(self, at: int) -> dict[str, Tensor]:
        """The gradients of what the program computes: torch copies what is saved before it is written to."""
        space, leaves = self._start()
        with allow_mutation_on_saved_tensors():
            for line in [*self.lines[:at], self.operation, *self.lines[at:]]:
                exec(line, space)
            space[self.loss].backward()
        return {name: leaf.grad for name, leaf in leaves.items()}


class _Watch:
    """Follows what the nodes of a run keep, line by line."""

    def __init__(self, run: Run, space: dict[str, Any]) -> None:
        self.run, self.space = run, space
        self.nodes: dict[Any, list[tuple[Lane, Tensor, Tensor]]] = {}

    def look(self, row: int) -> None:
        """After a row: which tensors are saved since, and what has become of those before."""
        names = {name: thing for name, thing in self.space.items() if isinstance(thing, Tensor)}
        graph = read([tensor for tensor in names.values() if tensor.requires_grad], {})
        for op in sorted(graph.ops, key=lambda op: op.order):
            if op.node in self.nodes:
                continue
            self.nodes[op.node] = []
            for name, tensor in kept_by(op.node):
                lane = Lane(op.kind, name, whose(tensor, names), row, torch_private.version(tensor))
                self.nodes[op.node].append((lane, tensor, tensor.detach().clone()))
        every = [entry for entries in self.nodes.values() for entry in entries]
        for lane, tensor, before in every:
            lane.now.append(torch_private.version(tensor))
            lane.written.append(not torch.equal(tensor.detach(), before))
        self.run.lanes = [lane for lane, *_ in every]


def _reason(run: Run) -> str:
    behind = [lane for lane in run.lanes if lane.behind]
    quiet = [lane for lane in run.lanes if lane.written[-1] and not lane.behind]
    if run.verdict == "raises":
        lane = behind[-1]
        return (
            f"{lane.node} saved its {lane.name} at version {lane.version}; "
            f"it is at version {lane.now[-1]} now."
        )
    wrong = run.verdict == "silently wrong"
    if quiet:
        said = (
            f"{quiet[-1].node} used other values than it saved as {quiet[-1].name}; the version is the same"
        )
        return f"{said}, so nothing noticed." if wrong else f"{said}. Here that makes no difference."
    if wrong:
        return "No saved tensor is affected, but the graph knows nothing of the write."
    return "Backward gives the true gradient: nothing that it uses has been written to."
