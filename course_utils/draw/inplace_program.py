"""A short program with one write in place, run to see what backward makes of it.

Everything is found by running: the program on copies of the reader's tensors, with the write in the form and
at the place that are asked for; the true gradient by the same program out of place.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import allow_mutation_on_saved_tensors

from course_utils.draw.graph_backward import Gradient, describe
from course_utils.draw.graph_nodes import Graph, kept_by, read, whose

FORMS = ("tracked", "data", "detach", "no_grad")
_METHODS = {
    ast.Add: "add_",
    ast.Sub: "sub_",
    ast.Mult: "mul_",
    ast.Div: "div_",
    ast.Pow: "pow_",
}


@dataclass
class Lane:
    """A saved tensor through the lines of a run: which node keeps it, since which row, at which version.
    `now` and `written` hold for each row from there on the version and whether the values are others than
    those that were saved. `used`: backward reaches its node."""

    node: str
    name: str
    whose: str
    since: int
    version: int
    now: list[int] = field(default_factory=list)
    written: list[bool] = field(default_factory=list)
    used: bool = True

    @property
    def changed(self) -> bool:
        return self.now[-1] != self.version or self.written[-1]


@dataclass
class Run:
    """What came of it. `rows` are the lines as they ran, `row` the number of the write among them; the last
    row is the backward. `verdict` is "harmless", "raises", "raises at once", "silently wrong" or "unknown"
    (no true gradient was found)."""

    rows: list[str]
    row: int
    lanes: list[Lane] = field(default_factory=list)
    verdict: str = ""
    error: str = ""
    failed: int | None = None
    gradients: dict[str, Gradient | None] = field(default_factory=dict)
    truth: dict[str, Gradient | None] = field(default_factory=dict)
    reason: str = ""


class Program:
    """Lines of code, the tensors that they start from, and the write. The last line gives the loss.

    Raises `ValueError` where the operation is no write in place to a tensor of the program, and whatever the
    program raises without it.
    """

    def __init__(self, lines: str | Sequence[str], operation: str, given: Mapping[str, Any]) -> None:
        lines = lines.splitlines() if isinstance(lines, str) else list(lines)
        self.lines = [line.strip() for line in lines if line.strip()]
        self.operation = operation.strip()
        self.given = dict(given)
        self.target, self.forms = _forms(self.operation)
        self.loss = _assigned(self.lines[-1]) if self.lines else ""
        if not self.loss:
            raise ValueError('the last line has to give the loss, as in "loss = z.sum()"')
        self.leaves = [
            name for name, thing in self.given.items() if isinstance(thing, Tensor) and thing.requires_grad
        ]
        if not self.leaves:
            raise ValueError("none of the tensors given requires a gradient")
        self.places = self._places()

    def _places(self) -> range:
        """After how many lines the write can stand: from where its tensor exists."""
        space, _ = self._start()
        first = 0 if isinstance(space.get(self.target), Tensor) else None
        with _same_dice():
            for number, line in enumerate(self.lines, 1):
                exec(line, space)
                if first is None and isinstance(space.get(self.target), Tensor):
                    first = number
        if first is None:
            raise ValueError(f"{self.target} is no tensor of this program")
        return range(first, len(self.lines) + 1)

    def run(self, at: int, form: str = "tracked") -> Run:
        """The program with the write after `at` lines, in one of `FORMS`. Raises `ValueError` where that is
        no place for it."""
        if at not in self.places:
            raise ValueError(f"{self.target} does not exist after {at} lines; from {self.places.start} on")
        if form not in self.forms:
            raise ValueError(f"the forms are {', '.join(FORMS)}, not {form}")
        code = self.forms[form]
        run = Run([*self.lines[:at], code, *self.lines[at:]], at)
        space, leaves = self._start()
        watch = _Watch(run, space)
        with _same_dice():
            for row, line in enumerate(run.rows):
                try:
                    exec(line, space)
                except Exception as error:  # what torch says to the write is what there is to show
                    run.verdict, run.error, run.failed = "raises at once", _said(error), row
                    run.rows.append(self._backward(space.get(self.loss)))
                    run.reason = "The line itself raises; backward is never reached."
                    return run
                watch.look(row)
            loss = space[self.loss]
            run.rows.append(self._backward(loss))
            watch.note_use(loss)
            try:
                _backward(loss)
            except Exception as error:
                run.verdict, run.error, run.failed = "raises", _said(error), len(run.rows) - 1
        truth = self._truth(at)
        run.truth = {name: describe(one) for name, one in (truth or {}).items()}
        if not run.error:
            run.gradients = {name: describe(leaf.grad) for name, leaf in leaves.items()}
            if truth is None:
                run.verdict = "unknown"
            else:
                wrong = [name for name, leaf in leaves.items() if not _equal(leaf.grad, truth[name])]
                run.verdict = "silently wrong" if wrong else "harmless"
        run.reason = _reason(run, self.target)
        return run

    def _start(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Copies of what the program starts from, and among them the leaves."""
        space: dict[str, Any] = {"torch": torch, "nn": nn, "F": nn.functional}
        for name, thing in self.given.items():
            if isinstance(thing, Tensor):
                space[name] = thing.detach().clone().requires_grad_(thing.requires_grad)
            else:
                space[name] = copy.deepcopy(thing) if isinstance(thing, nn.Module) else thing
        return space, {name: space[name] for name in self.leaves}

    def _backward(self, loss: Any) -> str:
        scalar = not isinstance(loss, Tensor) or loss.numel() == 1
        return f"{self.loss}.backward()" if scalar else f"{self.loss}.sum().backward()"

    def _truth(self, at: int) -> dict[str, Tensor | None] | None:
        """The gradients of what the program computes: by the same program with the write out of place. None
        where there is no such program."""
        name = self.target
        space, leaves = self._start()
        numbers = self._numbers(at)
        try:
            with _same_dice():
                for line in self.lines[:at]:
                    exec(line, space)
                old = space[name]
                if old.is_leaf and old.requires_grad:
                    # A step of a parameter: gradients are asked for at the values that it had at each use,
                    # and the step itself is no part of the function.
                    space[name] = old.detach().clone()
                    exec(self.operation, space)
                    space[name] = old + (space[name] - old.detach())
                else:
                    space[name] = old.clone()
                    exec(self.operation, space)
                for line in self.lines[at:]:
                    exec(line, space)
                loss = space[self.loss]
                if numbers is not None and _equal(loss.detach(), numbers):
                    _backward(loss)
                    return {name: leaf.grad for name, leaf in leaves.items()}
        except Exception:
            pass  # some writes cannot be made like that; the way below can
        return self._truth_by_copies(at)

    def _truth_by_copies(self, at: int) -> dict[str, Tensor | None] | None:
        """The same where other names look into the storage that is written to, so that a copy would leave
        them behind: torch makes the copies, of what is saved."""
        space, leaves = self._start()
        try:
            with _same_dice(), allow_mutation_on_saved_tensors():
                for line in [*self.lines[:at], self.operation, *self.lines[at:]]:
                    exec(line, space)
                _backward(space[self.loss])
        except Exception:
            return None
        return {name: leaf.grad for name, leaf in leaves.items()}

    def _numbers(self, at: int) -> Tensor | None:
        """The loss that the program computes with the write in place, gradients aside."""
        space, _ = self._start()
        try:
            with _same_dice(), torch.no_grad():
                for line in [*self.lines[:at], self.operation, *self.lines[at:]]:
                    exec(line, space)
                return space[self.loss].clone()
        except Exception:
            return None


class _Watch:
    """Follows what the nodes of a run keep, line by line."""

    def __init__(self, run: Run, space: dict[str, Any]) -> None:
        self.run, self.space = run, space
        self.nodes: dict[Any, list[tuple[Lane, Tensor, Tensor]]] = {}
        self.order: dict[Any, int] = {}

    def look(self, row: int) -> None:
        """After a row: which tensors are saved since, and what has become of those before."""
        names = {name: thing for name, thing in self.space.items() if isinstance(thing, Tensor)}
        for op in self._graph(list(names.values())).ops:
            if op.node in self.nodes:
                continue
            self.order[op.node] = op.order
            self.nodes[op.node] = []
            for name, tensor in kept_by(op.node):
                lane = Lane(op.kind, name, whose(tensor, names), row, tensor._version)
                self.nodes[op.node].append((lane, tensor, tensor.detach().clone()))
        for lane, tensor, before in (entry for entries in self.nodes.values() for entry in entries):
            lane.now.append(tensor._version)
            lane.written.append(not _equal(tensor.detach(), before.detach(), exactly=True))
        ordered = sorted(self.nodes, key=self.order.__getitem__)
        self.run.lanes = [lane for node in ordered for lane, *_ in self.nodes[node]]

    def note_use(self, loss: Tensor) -> None:
        reached = {op.node for op in self._graph([loss]).ops}
        for node, entries in self.nodes.items():
            for lane, *_ in entries:
                lane.used = node in reached

    def _graph(self, tensors: list[Tensor]) -> Graph:
        tensors = [tensor for tensor in tensors if tensor.requires_grad]
        return read(tensors) if tensors else Graph([], [], [], {})


def _backward(loss: Tensor) -> None:
    loss.backward(torch.ones_like(loss))


def _same_dice() -> Any:
    """Every run throws the same dice, and leaves the reader's as they were."""
    fork = torch.random.fork_rng(devices=[])

    class Same:
        def __enter__(self) -> None:
            fork.__enter__()
            torch.manual_seed(0)

        def __exit__(self, *error: object) -> None:
            fork.__exit__(*error)

    return Same()


def _equal(a: Tensor | None, b: Tensor | None, exactly: bool = False) -> bool:
    if a is None or b is None:
        return a is b
    if a.shape != b.shape:
        return False
    if exactly:
        return bool(((a == b) | ((a != a) & (b != b))).all())
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)


def _said(error: Exception) -> str:
    """The exception's own words, without the advice after them."""
    words = str(error).strip().split("\n")[0].partition(" Hint: ")[0]
    return f"{type(error).__name__}: {words}"


def _reason(run: Run, target: str) -> str:
    behind = [lane for lane in run.lanes if lane.used and lane.now[-1] != lane.version]
    quiet = [lane for lane in run.lanes if lane.used and lane.written[-1] and lane.now[-1] == lane.version]
    if behind and run.verdict == "raises":
        lane = behind[-1]
        return (
            f"{lane.node} saved its {lane.name} at version {lane.version}; "
            f"it is at version {lane.now[-1]} now."
        )
    if run.verdict == "raises":
        return "Backward refuses."
    if quiet:
        lane = quiet[-1]
        said = f"{lane.node} used other values than it saved as {lane.name}; the version is the same"
        if run.verdict == "silently wrong":
            return f"{said}, so nothing noticed."
        return f"{said}. Here that makes no difference."
    if run.verdict == "silently wrong":
        return f"No saved tensor is affected, but the graph knows nothing of the write to {target}."
    if run.verdict == "unknown":
        return "There is no program out of place to compare with."
    return "Backward gives the true gradient: nothing that it uses has been written to."


# --- the write and its forms -------------------------------------------------------------------------


def _assigned(line: str) -> str:
    """The name that a line assigns to; empty where it does not."""
    statement = ast.parse(line).body[-1]
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[-1], ast.Name):
        return statement.targets[-1].id
    return ""


def _forms(operation: str) -> tuple[str, dict[str, str]]:
    """The name of the tensor that an operation writes to, and the code of the operation in each form."""
    wrong = f"{operation!r} is no write in place such as y.add_(1), y[0] = 5 or y *= 2"
    try:
        (statement,) = ast.parse(operation).body
    except (SyntaxError, ValueError):
        raise ValueError(wrong) from None
    call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    if call and isinstance(statement.value.func, ast.Attribute) and statement.value.func.attr.endswith("_"):
        written = statement.value.func.value
    elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        written = statement.targets[0].value
    elif isinstance(statement, ast.AugAssign) and type(statement.op) in _METHODS:
        written = statement.target
    else:
        raise ValueError(wrong)
    while isinstance(written, (ast.Subscript, ast.Attribute, ast.Call)):
        written = written.func if isinstance(written, ast.Call) else written.value
    if not isinstance(written, ast.Name):
        raise ValueError(wrong)
    name = written.id
    through = {"data": f"{name}.data", "detach": f"{name}.detach()"}
    forms = {"tracked": operation}
    for form, start in through.items():
        if isinstance(statement, ast.AugAssign):
            inner = ast.unparse(statement.target).replace(name, start, 1)
            forms[form] = f"{inner}.{_METHODS[type(statement.op)]}({ast.unparse(statement.value)})"
        else:
            forms[form] = _replaced(operation, written, start)
    forms["no_grad"] = f"with torch.no_grad(): {operation}"
    return name, forms


def _replaced(code: str, name: ast.Name, text: str) -> str:
    return code[: name.col_offset] + text + code[name.end_col_offset :]
