"""What torch.compile makes of a function: its pieces, why they end, and what each call ran.

    seen = watch_compile(f)
    seen(x), seen(y)
    print(seen)

The function is compiled and called as by `torch.compile`. Nothing of the process is reset, and nothing is
listened to while no call is under way. Calls from several threads at once are not told apart.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_utils.watching import compiled_words as in_words

_RESUME = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)$")
_FRAME = re.compile(r'File "(.+?)", line (\d+), in (.+)')
GONE = "what was compiled before is gone"
LIMIT = "no version fits, and the recompile limit is reached"
BELOW = "after a piece that has reached the recompile limit nothing is compiled any more"
NOTHING = "the compiler leaves it as it is"
NO_GRAPH = "no graph ran"
GENERATOR = "the compiler leaves generators to Python"


@dataclass
class Piece:
    """A part of the function that is compiled by itself, from its beginning or a break to the next break.

    `name` is a letter. `begins` says where it does, in words; `lines` are those of the reader's function of
    which it has operators. `limit`: it will not be compiled again, since torch's limit was reached.
    """

    name: str
    begins: str
    lines: set[int] = field(default_factory=set)
    limit: bool = False


@dataclass
class Graph:
    """One compiled version of a piece, versions counted from 1. `why` it was made, in words; `torch`: what
    torch says of that. `call`: the number of the call that made it."""

    piece: str
    version: int
    lines: tuple[int, ...]
    operators: tuple[str, ...]
    why: str
    torch: str = ""
    guards: tuple[str, ...] = ()
    call: int = 0

    @property
    def name(self) -> str:
        return f"{self.piece}{self.version}"


@dataclass(frozen=True)
class Break:
    """A line at which a graph ends before the function does. `inside`: the line of another function that is
    called there, where the reason lies. `skips`: there is no way to go on after it, so that what was being
    compiled is left to Python as a whole. `torch` is the first line of what torch says."""

    line: int
    reason: str
    torch: str
    inside: str = ""
    skips: bool = False


@dataclass(frozen=True)
class Skipped:
    """A part of the function that is never compiled: where it begins, and why."""

    begins: str
    reason: str
    torch: str = ""


@dataclass(frozen=True)
class Step:
    """What one piece did in a call. `what` is "compiled", "recompiled", "hit" or "python"; `piece` is "" for
    a part without a graph, which `begins` where this says; `times`: how often it ran."""

    piece: str
    version: int
    what: str
    why: str = ""
    times: int = 1
    begins: str = ""


@dataclass
class Call:
    """One call: the arguments in short words, what ran in it, and what it raised, "" for nothing."""

    number: int
    arguments: tuple[str, ...]
    steps: list[Step] = field(default_factory=list)
    raised: str = ""


@dataclass(frozen=True)
class Line:
    """A line of the function, with the letters of the pieces that have operators of it."""

    number: int
    text: str
    pieces: tuple[str, ...] = ()
    breaks: tuple[Break, ...] = ()


def watch_compile(f: Callable[..., Any], backend: Any = "eager", **options: Any) -> Watched:
    """Compiles a function or a module as `torch.compile(f, backend=backend, **options)` does, and writes down
    what becomes of it with each call.

    A function or a method is compiled as a copy, so that what was compiled of it before plays no part; all
    else, such as a module, a partial or a decorated function, is compiled itself. Even of a copy torch knows
    by its file and line which sizes have varied before, and leaves them open from the first call on:
    `torch.compiler.reset()` makes it forget.

    Where a function that is compiled calls what this gives, that is a part of the caller, as it is without a
    record, and nothing is written down.
    """
    return Watched(f, backend, options)


class Watched:
    """What `watch_compile` gives. Call it as the function; then look at `pieces`, `graphs`, `breaks`,
    `skipped`, `calls` and `lines`, or print it."""

    def __init__(self, f: Callable[..., Any], backend: Any, options: dict[str, Any]) -> None:
        import torch

        if hasattr(f, "_torchdynamo_orig_callable") or hasattr(f, "_orig_mod"):
            raise ValueError("this is compiled already: watch_compile takes the function itself")
        module = isinstance(f, torch.nn.Module)
        if not callable(f):
            raise TypeError(f"a {type(f).__name__} cannot be called")
        self.pieces: list[Piece] = []
        self.graphs: list[Graph] = []
        self.breaks: list[Break] = []
        self.skipped: list[Skipped] = []
        self.calls: list[Call] = []
        self._target = _function_of(f.forward if module else f)
        self.name = type(f).__name__ if module else self._target.__name__
        self.file, self.first, self._source = _source_of(self._target)
        self._statements = _statements("".join(self._source), self.first)
        self._stored = _stored("".join(self._source))
        self._tried = _tried("".join(self._source), self.first)
        self._signature = _signature_of(f.forward if module else f)
        copied = f if module else _copy(f)
        self._entry = _function_of(copied.forward if module else copied).__code__
        self._inner, kept = _backend(torch, backend, options)
        self._parts: dict[int, _Part] = {}  # by the identity of their code
        self._made: dict[str, _Made] = {}  # by torch's name of the compilation that is under way
        self._now: _Now | None = None
        self._part(self._entry)

        def compile_graph(*args: Any, **options: Any) -> Callable[..., Any]:
            return self._compile(*args, **options)

        # Torch's errors name the backend.
        compile_graph.__name__ = backend if isinstance(backend, str) else _name_of(backend)
        self._run = torch.compile(copied, backend=compile_graph, **kept)
        self._is_traced = torch.compiler.is_compiling

    # --- what readers look at ---------------------------------------------------------------------------

    @property
    def lines(self) -> list[Line]:
        """The lines of the function, each with its pieces and breaks."""
        found = []
        for number, text in enumerate(self._source, self.first):
            inside = tuple(piece.name for piece in self.pieces if number in piece.lines)
            ends = tuple(one for one in self.breaks if one.line == number)
            found.append(Line(number, text.rstrip("\n"), inside, ends))
        return found

    def __str__(self) -> str:
        return "\n".join(_told(self))

    __repr__ = __str__

    # --- calls ------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A call in which it calls itself is one call.
        if self._is_traced() or self._now is not None:
            return self._run(*args, **kwargs)
        with self._listening(args, kwargs):
            return self._run(*args, **kwargs)

    @contextmanager
    def _listening(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        from torch._dynamo.convert_frame import register_bytecode_hook

        given = _bound(self._signature, args, kwargs)
        call = Call(len(self.calls) + 1, tuple(in_words.of_argument(*one) for one in given.items()))
        now = self._now = _Now(call, given)
        handle = register_bytecode_hook(self._compiled)
        error = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            handle.remove()
            self._now = None
            self._made.clear()
            self.calls.append(call)
            if error is not None:
                call.raised = in_words.of_error(error)
            self._finish(now, error)

    # --- what torch tells while it compiles and runs ----------------------------------------------------

    def _compile(self, module: Any, inputs: list[Any], **options: Any) -> Callable[..., Any]:
        """The backend: sees each graph once."""
        from torch._guards import CompileContext

        made = _Made(*self._read(module))
        self._made[str(CompileContext.current_compile_id())] = made
        compiled = self._inner(module, inputs, **options)

        def run(*args: Any) -> Any:
            if self._now is not None and made.graph is not None:
                self._now.events.append(("ran", made.part, made.graph))
                if not made.part.own and (line := self._line_now()):
                    self._landed(made.part, made.graph, [line])
            return compiled(*args)

        return run

    def _compiled(self, code: types.CodeType, out: types.CodeType) -> None:
        """A code object was compiled: with a graph, or with no operator in it."""
        from torch._guards import CompileContext

        number = str(CompileContext.current_compile_id())
        made = self._made.pop(number, None)
        now = self._now
        if now is None or (made is None and id(code) not in self._parts):
            if now is not None:
                now.reasons()  # somebody else's
            return
        made = made or _Made((), ())
        part = self._part(code)
        part.frames.add(number.rpartition("/")[0])
        failures = now.failures(code)
        why = torch = ""
        if part.versions and failures:  # of all versions, the one that ran last first
            torch = failures[0]
            why = in_words.of_failure(torch, self._known(part, now))
        elif part.versions:
            why = GONE
        for line, (reason, inside) in self._ends(now.reasons()):
            # No part of a `try` can be compiled: what is left of the function stays as it was.
            stays = reason.startswith("step_unsupported")
            self._broke(line, reason, inside, skips=stays)
            if stays:
                part.rest = Skipped(f"from line {line} on", in_words.of_break(reason), reason)
        graph = Graph("", len(part.versions) + 1, (), made.operators, why, torch, (), now.call.number)
        made.part, made.graph = part, graph
        part.versions.append(graph)
        part.codes[id(graph)] = out
        part.after[id(graph)] = self._after(out)
        self._landed(part, graph, made.lines)
        now.events.append(("compiled", part, graph))

    def _landed(self, part: _Part, graph: Graph, lines: Any) -> None:
        """Operators of these lines are in this graph."""
        whole = {n for line in lines for n in self._statements.get(line, (line,))}
        graph.lines = tuple(sorted({*graph.lines, *whole}))
        part.lines |= whole
        if part.name and not graph.piece:
            graph.piece = part.name
            self.graphs.append(graph)
        elif graph.operators and not part.name:
            self._name(part)

    def _name(self, part: _Part) -> None:
        part.name = _letter(len(self.pieces))
        part.piece = Piece(part.name, self._begins(part), part.lines)
        self.pieces.append(part.piece)
        self.graphs += part.versions
        for graph in part.versions:
            graph.piece = part.name

    def _read(self, module: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The lines of the reader's function that are in a graph, and its operators."""
        lines, operators = [], []
        for node in module.graph.nodes:
            if node.op in ("placeholder", "output", "get_attr"):
                continue
            operators.append(_operator(node.target))
            frames = _FRAME.findall(node.stack_trace or "")
            lines += [int(line) for file, line, _ in frames if self._has(file, int(line))][:1]
        return tuple(lines), tuple(operators)

    def _has(self, file: str, line: int) -> bool:
        return file == self.file and self.first <= line < self.first + max(len(self._source), 1)

    def _line_now(self) -> int | None:
        """The line of the reader's function that is being run."""
        frame = sys._getframe(1)
        while frame is not None:
            if self._has(frame.f_code.co_filename, frame.f_lineno):
                return frame.f_lineno
            frame = frame.f_back
        return None

    def _part(self, code: types.CodeType) -> _Part:
        if id(code) not in self._parts:
            own = code is self._entry or self._has(code.co_filename, code.co_firstlineno)
            part = _Part(code, own)
            if not own:
                part.called = self._line_now()
                inside = any(one.own and one.versions for one in self._parts.values())
                part.wraps = part.called is None and not inside
            self._parts[id(code)] = part
        return self._parts[id(code)]

    def _after(self, out: types.CodeType) -> list[_Part]:
        """The parts that compiled code goes on with after a break."""
        codes = [one for one in out.co_consts if isinstance(one, types.CodeType)]
        for name in out.co_names:
            if name.startswith("__resume_at_"):
                codes.append(getattr(self._target.__globals__.get(name), "__code__", None))
        return [self._part(code) for code in codes if code is not None and _RESUME.match(code.co_name)]

    def _begins(self, part: _Part) -> str:
        resumed = _RESUME.match(part.code.co_name)
        if part.own or part.wraps:
            again = part.own and not resumed and part.code is not self._entry
            return f"after the break in line {resumed[2]}" if resumed else "from the top" + ", again" * again
        name = resumed[1] if resumed else part.code.co_qualname.rpartition("<locals>.")[2]
        words = f"`{name}` after its line {resumed[2]}" if resumed else f"`{name}`"
        return f"{words}, called in line {part.called}" if part.called else words

    # --- breaks -----------------------------------------------------------------------------------------

    def _ends(self, reasons: list[Any]) -> Iterator[tuple[int | None, tuple[str, str]]]:
        """(line of the reader's function, (reason, line inside another function)) of what torch noted."""
        for one in reasons:
            stack = list(one.user_stack or ())
            yield self._place(stack, one.reason)

    def _place(self, stack: list[Any], reason: str) -> tuple[int | None, tuple[str, str]]:
        own = [frame for frame in stack if self._has(frame.filename, frame.lineno)]
        line = own[0].lineno if own else self._line_now()
        last = stack[-1] if stack else None
        inside = ""
        if last is not None and not self._has(last.filename, last.lineno):
            name = resumed[1] if (resumed := _RESUME.match(last.name)) else last.name
            where = "" if last.filename == self.file else f" of {Path(last.filename).name}"
            code = (last.line or "").strip()
            inside = f"line {last.lineno}{where}, in `{name}`" + (f": `{code}`" if code else "")
        return line, (reason, inside)

    def _broke(self, line: int | None, reason: str, inside: str, skips: bool = False) -> None:
        if line is None:
            return
        one = Break(line, in_words.of_break(reason), in_words.first_line(reason), inside, skips)
        if one not in self.breaks:
            self.breaks.append(one)
            self.breaks.sort(key=lambda one: one.line)

    # --- after a call -----------------------------------------------------------------------------------

    def _finish(self, now: _Now, error: BaseException | None) -> None:
        from torch._dynamo import exc

        refused = isinstance(error, exc.TorchDynamoException)
        compiled = {id(part) for kind, part, _ in now.events if kind == "compiled"}
        self._read_guards()
        for one in now.metrics():
            self._failed(one, refused)
        fresh = now.looked_at()
        for part in list(self._parts.values()):
            if id(part) in compiled:
                continue
            failures = now.failures(part.code)
            if failures and not refused:
                part.limited = True
                why = in_words.of_failure(failures[0], self._known(part, now))
                now.limits[id(part)] = f"the recompile limit is reached: {why}"
                if part.piece:
                    part.piece.limit = True
            elif id(part.code) in fresh and not part.versions and not part.python and not refused:
                part.python = GENERATOR if part.code.co_flags & inspect.CO_GENERATOR else NOTHING
        now.call.steps = self._steps(now, error)

    def _known(self, part: _Part, now: _Now) -> dict[str, Any]:
        """The values of global names, and of the arguments that are not replaced before this part begins."""
        code, scope = self._entry, self._target.__globals__
        found = {name: scope[name] for name in code.co_names if name in scope and part.own}
        if part.code is code:
            return {**found, **now.given}
        given = {name: value for name, value in now.given.items() if part.own and name not in self._stored}
        return {**found, **given}

    def _read_guards(self) -> None:
        from torch._dynamo.eval_frame import _debug_get_cache_entry_list

        for part in self._parts.values():
            new = [graph for graph in part.versions if not graph.guards]
            entries = _debug_get_cache_entry_list(part.code) if new else []
            for graph in new:
                for entry in entries:
                    if entry.code is part.codes.get(id(graph)):
                        graph.guards = in_words.of_guards(str(entry.guard_manager))
                part.codes.pop(id(graph), None)

    def _failed(self, one: Any, refused: bool) -> None:
        """Reads a compilation that gave nothing: torch's record of it says where and why."""
        reason = getattr(one, "fail_reason", None) or ""
        if not getattr(one, "fail_type", None) or "recompile limit" in reason:
            return
        part = next((part for part in self._parts.values() if part.is_of(one)), None)
        if part is None:
            return
        first, *others = re.split(r"\n*\*\*\* While handling this graph break.*\*\*\*\n*", reason)
        line = getattr(one, "fail_user_frame_lineno", None)
        inside = ""
        if line and not self._has(getattr(one, "fail_user_frame_filename", "") or "", line):
            name = getattr(one, "fail_user_frame_name", None)
            inside = f"line {line}" + (f", in `{name}`" if name else "")
            line = part.called
        if line and "Observed exception" not in first:
            self._broke(line, first, inside, skips=not refused)
        if not refused and not part.versions:
            words = in_words.of_break(others[-1] if others else first)
            if not others and line in self._tried:
                words = "a break inside a `try`"
            part.python, part.torch = words, in_words.first_line(first)

    def _steps(self, now: _Now, error: BaseException | None) -> list[Step]:
        """What ran in this call, in order. A graph tells that it runs; a part that runs in Python does not,
        so that it is what the part before it goes on with where no graph of it ran."""
        ran = [(part, graph) for kind, part, graph in now.events if kind == "ran"]
        new = [(part, graph) for kind, part, graph in now.events if kind == "compiled"]
        steps = []
        for part, graph in dict.fromkeys((id(p), id(g)) for p, g in (*ran, *new)):
            found = next((p, g) for p, g in (*ran, *new) if (id(p), id(g)) == (part, graph))
            steps.append(self._step(*found, fresh=found in new, times=ran.count(found)))
        order = {id(graph): i for i, (_, _, graph) in reversed(list(enumerate(now.events)))}
        steps = [step for _, step in sorted(steps, key=lambda one: order[one[0]]) if step]
        for part in {id(part): part for part, _ in ran if part.rest}.values():
            steps.append(Step("", 0, "python", part.rest.reason, begins=part.rest.begins))
            if part.rest not in self.skipped:
                self.skipped.append(part.rest)
        if error is None:
            left, silent = self._in_python({id(graph): part for part, graph in (*ran, *new)})
            self._add_silent(steps, silent)
        else:  # it has passed through the code that ran
            codes = {id(frame.f_code) for frame, _ in traceback.walk_tb(error.__traceback__)}
            left = [part for code, part in self._parts.items() if code in codes]
        for part in left:
            if part.python == NOTHING and part.code is not self._entry:
                continue
            why = now.limits.get(id(part)) or (LIMIT if part.limited else part.python or BELOW)
            self._skip(part)
            steps.append(Step(part.name, 0, "python", why, begins=self._begins(part)))
        if any(part.code is self._entry for part in left):
            steps.sort(key=lambda step: step.what != "python")
        return steps

    def _step(self, part: _Part, graph: Graph, fresh: bool, times: int) -> tuple[int, Step | None]:
        if not part.name:
            return id(graph), None
        what = "hit" if not fresh else "compiled" if graph.version == 1 else "recompiled"
        why = graph.why if what == "recompiled" else ""
        return id(graph), Step(part.name, graph.version, what, why, max(times, 1))

    def _add_silent(self, steps: list[Step], silent: list[tuple[_Part, Graph]]) -> None:
        """Adds versions without an operator, before what they go on with."""
        for part, graph in silent:
            nexts = {one.name for one in part.nexts if one.name}
            at = next((i for i, step in enumerate(steps) if step.piece in nexts), len(steps))
            at = 0 if part.code is self._entry else at
            steps.insert(at, Step(part.name, graph.version, "hit"))

    def _in_python(self, ran: dict[int, _Part]) -> tuple[list[_Part], list[tuple[_Part, Graph]]]:
        """The parts that a call has run as plain Python, and the versions of named parts that it has run and
        that have no operators; `ran`: the graphs that it did run."""
        touched = {id(part) for part in ran.values()}
        # A module may be entered through code of torch's.
        first = [part for part in self._parts.values() if part.code is self._entry or part.outermost]
        left: list[_Part] = []
        silent: list[tuple[_Part, Graph]] = []
        passed: set[int] = set()

        def follow(part: _Part, below: bool) -> None:
            if id(part) in passed:
                return
            passed.add(id(part))
            if not part.reaches(touched) and (part.python or part.limited):
                left.append(part)
                return
            mine = [one for graph, after in part.after.items() if graph in ran for one in after]
            nexts = list(dict.fromkeys(mine)) or ([] if id(part) in touched else part.nexts)
            live = [one for one in nexts if one.reaches(touched)]
            if part.name and id(part) not in touched:
                empty = [graph for graph in part.versions if not graph.operators]
                fits = [graph for graph in empty if set(live) & set(part.after.get(id(graph), ()))]
                silent.extend((part, graph) for graph in (fits or empty)[-1:])
            others = [one for one in nexts if one.python or one.limited]
            fresh = [one for one in nexts if not one.versions]
            below |= part.limited
            if live:
                for one in live:
                    follow(one, below)
            elif others:
                follow(others[0], below)
            elif below and nexts:
                left.append((fresh or nexts)[0])
            elif nexts:
                follow(nexts[0], below)

        for part in first:
            follow(part, False)
        return left, silent

    def _skip(self, part: _Part) -> None:
        one = Skipped(self._begins(part), part.python, part.torch)
        if part.python and not part.name and one not in self.skipped:
            self.skipped.append(one)


@dataclass(eq=False)
class _Part:
    """A code object: the function, what is left of it after a break, or a function that it calls."""

    code: types.CodeType
    own: bool
    name: str = ""
    piece: Piece | None = None
    called: int | None = None
    # The function is entered through it: a decorator, or torch's own code of a module. What is called outside
    # of the function later on, such as a hook of a module, is none.
    wraps: bool = False
    versions: list[Graph] = field(default_factory=list)
    codes: dict[int, types.CodeType] = field(default_factory=dict)
    after: dict[int, list[_Part]] = field(default_factory=dict)  # what each version goes on with
    lines: set[int] = field(default_factory=set)
    frames: set[str] = field(default_factory=set)
    python: str = ""  # why it is never compiled
    torch: str = ""
    limited: bool = False
    rest: Skipped | None = None  # what compiled code goes on with in Python, in the same code

    @property
    def outermost(self) -> bool:
        return not self.own and self.called is None

    def is_of(self, metric: Any) -> bool:
        """Whether one of torch's records is about this code."""
        number = str(getattr(metric, "compile_id", "")).rpartition("/")[0]
        if number and number in self.frames:
            return True
        named = (metric.co_filename, metric.co_name, metric.co_firstlineno)
        return named == (self.code.co_filename, self.code.co_name, self.code.co_firstlineno)

    @property
    def nexts(self) -> list[_Part]:
        return list(dict.fromkeys(one for after in self.after.values() for one in after))

    def reaches(self, touched: set[int], passed: frozenset[int] = frozenset()) -> bool:
        """Whether it, or what comes after it, is among these."""
        if id(self) in touched:
            return True
        passed |= {id(self)}
        return any(one.reaches(touched, passed) for one in self.nexts if id(one) not in passed)


@dataclass(eq=False)
class _Made:
    """A graph that the backend has seen, and what became of it."""

    lines: tuple[int, ...]
    operators: tuple[str, ...]
    part: Any = None
    graph: Graph | None = None


class _Now:
    """One call while it is under way: what torch had noted before it, and what has happened since."""

    def __init__(self, call: Call, given: dict[str, Any]) -> None:
        from torch._dynamo import utils
        from torch._dynamo.convert_frame import input_codes

        self.call, self.given = call, given
        self.events: list[tuple[str, _Part, Graph]] = []
        self.limits: dict[int, str] = {}
        self._utils, self._codes = utils, input_codes
        self._reasons = list(utils.graph_break_reasons)
        self._metrics = list(utils.get_compilation_metrics())
        self._failures = {code: len(found) for code, found in utils.guard_failures.items()}
        self._seen = self._alive()

    def reasons(self) -> list[Any]:
        """The breaks that were noted since this was last asked."""
        now = list(self._utils.graph_break_reasons)
        new = [one for one in now if all(one is not old for old in self._reasons)]
        self._reasons = now
        return new

    def metrics(self) -> list[Any]:
        """Torch's records of what it has compiled, or has not, in this call."""
        now = list(self._utils.get_compilation_metrics())
        return [one for one in now if all(one is not old for old in self._metrics)]

    def failures(self, code: types.CodeType) -> list[str]:
        """The guards of this code that have failed since this was last asked."""
        all_of_them = list(self._utils.guard_failures.get(code, ()))
        start = self._failures.get(code, 0)
        self._failures[code] = len(all_of_them)
        return [str(one) for one in all_of_them[start if start <= len(all_of_them) else 0 :]]

    def looked_at(self) -> set[int]:
        """The code that the compiler was asked about for the first time in this call."""
        return self._alive() - self._seen

    def _alive(self) -> set[int]:
        return {id(code) for code in (one() for one in self._codes.seen) if code is not None}


# --- the function -----------------------------------------------------------------------------------------


def _function_of(f: Any) -> Any:
    """The Python function behind a method, a partial or a wrapper."""
    while True:
        f = inspect.unwrap(f)
        if isinstance(f, functools.partial):
            f = f.func
        elif inspect.ismethod(f):
            f = f.__func__
        elif inspect.isfunction(f):
            return f
        elif callable(f) and inspect.isfunction(type(f).__call__):
            f = type(f).__call__
        else:
            raise TypeError(f"{_name_of(f)} is not written in Python")


def _copy(f: Any) -> Any:
    """The function with code of its own: what torch has compiled it keeps by its code."""
    if inspect.ismethod(f):
        return types.MethodType(_copy(f.__func__), f.__self__)
    if not inspect.isfunction(f) or hasattr(f, "__wrapped__"):
        return f
    copied = types.FunctionType(
        f.__code__.replace(), f.__globals__, f.__name__, f.__defaults__, f.__closure__
    )
    for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__"):
        setattr(copied, name, getattr(f, name))
    copied.__dict__.update(f.__dict__)
    return copied


def _source_of(f: Any) -> tuple[str, int, list[str]]:
    file, first = f.__code__.co_filename, f.__code__.co_firstlineno
    try:
        lines, first = inspect.getsourcelines(f)
    except (OSError, TypeError):  # made by `exec`: torch compiles it, and there is nothing to show
        lines = []
    return file, first, dedented(lines)


def dedented(lines: list[str]) -> list[str]:
    """The lines of a definition, moved to the margin by as much as the first: a comment or a text may stand
    further left than the code."""
    indent = re.match(r"[ \t]*", lines[0])[0] if lines else ""
    return [line.removeprefix(indent) for line in lines]


def _statements(source: str, first: int) -> dict[int, range]:
    """For each line the lines of the statement that it is in; of a compound one only its head."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a lambda in the middle of a call
        return {}
    found: dict[int, range] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        body = getattr(node, "body", None)
        end = node.end_lineno or node.lineno
        if isinstance(body, list) and body:
            end = max(min(end, body[0].lineno - 1), node.lineno)
        lines = range(node.lineno + first - 1, end + first)
        for line in lines:
            if line not in found or len(found[line]) > len(lines):
                found[line] = lines
    return found


def _stored(source: str) -> set[str]:
    """The names that are assigned to."""
    try:
        nodes = ast.walk(ast.parse(source))
    except SyntaxError:
        return set()
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _tried(source: str, first: int) -> set[int]:
    """The lines inside of a `try`."""
    try:
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Try, ast.TryStar))]
    except SyntaxError:
        return set()
    return {n + first - 1 for node in nodes for n in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def _signature_of(f: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(f)
    except (TypeError, ValueError):
        return None


def _bound(signature: inspect.Signature | None, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name."""
    try:
        bound = signature.bind(*args, **kwargs).arguments if signature else {"": args, **kwargs}
    except TypeError:  # the call will raise by itself
        return {**{f"argument {i + 1}": one for i, one in enumerate(args)}, **kwargs}
    found: dict[str, Any] = {}
    for name, value in bound.items():
        kind = signature.parameters[name].kind if signature else None
        if kind is inspect.Parameter.VAR_POSITIONAL:
            found.update({f"{name}[{i}]": one for i, one in enumerate(value)})
        elif kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    return found


def _backend(torch: Any, backend: Any, options: dict[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """What compiles a graph, and the options that are left for `torch.compile`."""
    kept = dict(options)
    if backend == "inductor":
        mode, chosen = kept.pop("mode", None), kept.pop("options", None)
        if mode is None and chosen is None:
            mode = "default"
        return torch._TorchCompileInductorWrapper(mode, chosen, kept.get("dynamic")), kept
    if isinstance(backend, str):
        from torch._dynamo import lookup_backend

        return lookup_backend(backend), kept
    return backend, kept


def _operator(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _name_of(thing: Any) -> str:
    return getattr(thing, "__name__", type(thing).__name__)


def _letter(number: int) -> str:
    more, one = divmod(number, 26)
    return ("" if not more else _letter(more - 1)) + chr(ord("A") + one)


# --- in words ---------------------------------------------------------------------------------------------


def count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def summary(seen: Watched) -> str:
    """What became of a function, in a sentence."""
    again = sum(step.what == "recompiled" for call in seen.calls for step in call.steps)
    parts = [
        count(len(seen.pieces), "piece"),
        count(len(seen.breaks), "break"),
        count(len(seen.graphs), "graph") + " compiled",
        count(again, "recompilation"),
        count(len(seen.calls), "call"),
    ]
    return f"{seen.name}: {', '.join(parts)}"


def mark(step: Step) -> str:
    """`A2 hit`: what a piece did in a call."""
    if step.what == "python":
        return f"{step.piece} Python".strip()
    times = f" ×{step.times}" if step.times > 1 and step.what == "hit" else ""
    return f"{step.piece}{step.version} {step.what}{times}"


def ending(one: Break) -> str:
    """The words beside a line at which a graph ends."""
    words = f"break{', and no graph goes on from here' if one.skips else ''}: {one.reason}"
    return f"{words} ({one.inside})" if one.inside else words


def _told(seen: Watched) -> list[str]:
    told = [summary(seen)]
    for line in seen.lines:
        told.append(f"{line.number:5d} {'+'.join(line.pieces):>3} │ {line.text}".rstrip())
        told += [f"{'':9} │   ↳ {ending(one)}" for one in line.breaks]
    told += [f"Python {one.begins}: {one.reason}" for one in seen.skipped]
    for piece in seen.pieces:
        told.append(f"{piece.name}  {piece.begins}" + ("; recompile limit reached" if piece.limit else ""))
        for graph in (graph for graph in seen.graphs if graph.piece == piece.name):
            why = f": {graph.why}" if graph.why else ""
            operators = ", ".join(graph.operators) or "no operators"
            told.append(f"   {graph.name} by call {graph.call}{why} [{operators}]")
            told += [f"      {words}" for words in graph.guards]
    for call in seen.calls:
        marks = " · ".join(map(mark, call.steps)) or NO_GRAPH
        told.append(f"call {call.number} ({', '.join(call.arguments)}): {marks}")
        told += [f"      {step.piece or 'Python'}: {step.why}" for step in call.steps if step.why]
        if call.raised:
            told.append(f"      raised {call.raised}")
    return told
