"""What torch.compile makes of a function: its pieces, why they end, and what each call ran.

    seen = watch_compile(f)
    seen(x), seen(y)
    print(seen)

The function is compiled and called as by `torch.compile`. Nothing of the process is reset, and nothing is
listened to while no call is under way. Calls from several threads at once are not told apart.
"""

from __future__ import annotations

import inspect
import re
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from course_utils.watching import compiled_words as in_words
from course_utils.watching.compiled_parts import Made, Now, Part, in_python
from course_utils.watching.compiled_seen import Break, Call, Graph, Line, Piece, Skipped, Step, told
from course_utils.watching.compiled_source import (
    RESUME,
    Source,
    bound,
    copy,
    function_of,
    name_of,
    signature_of,
)

GONE = "what was compiled before is gone"
LIMIT = "no version fits, and the recompile limit is reached"
BELOW = "after a piece that has reached the recompile limit nothing is compiled any more"
NOTHING = "the compiler leaves it as it is"
GENERATOR = "the compiler leaves generators to Python"


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
        self._target = function_of(f.forward if module else f)
        self.name = type(f).__name__ if module else self._target.__name__
        self._source = Source.of(self._target)
        self._signature = signature_of(f.forward if module else f)
        copied = f if module else copy(f)
        self._entry = function_of(copied.forward if module else copied).__code__
        self._inner, kept = _backend(torch, backend, options)
        self._parts: dict[int, Part] = {}  # by the identity of their code
        self._made: dict[str, Made] = {}  # by torch's name of the compilation that is under way
        self._now: Now | None = None
        self._part(self._entry)

        def compile_graph(*args: Any, **options: Any) -> Callable[..., Any]:
            return self._compile(*args, **options)

        # Torch's errors name the backend.
        compile_graph.__name__ = backend if isinstance(backend, str) else name_of(backend)
        self._run = torch.compile(copied, backend=compile_graph, **kept)
        self._is_traced = torch.compiler.is_compiling

    # --- what readers look at ---------------------------------------------------------------------------

    @property
    def lines(self) -> list[Line]:
        """The lines of the function, each with its pieces and breaks."""
        found = []
        for number, text in enumerate(self._source.text, self._source.first):
            inside = tuple(piece.name for piece in self.pieces if number in piece.lines)
            ends = tuple(one for one in self.breaks if one.line == number)
            found.append(Line(number, text.rstrip("\n"), inside, ends))
        return found

    def __str__(self) -> str:
        return "\n".join(told(self))

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

        given = bound(self._signature, args, kwargs)
        call = Call(len(self.calls) + 1, tuple(in_words.of_argument(*one) for one in given.items()))
        now = self._now = Now(call, given)
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

        made = Made(*self._source.in_graph(module))
        self._made[str(CompileContext.current_compile_id())] = made
        compiled = self._inner(module, inputs, **options)

        def run(*args: Any) -> Any:
            if self._now is not None and made.graph is not None:
                self._now.events.append(("ran", made.part, made.graph))
                if not made.part.own and (line := self._source.line_now()):
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
        made = made or Made((), ())
        part = self._part(code)
        part.frames.add(number.rpartition("/")[0])
        failures = now.failures(code)
        why = torch = ""
        if part.versions and failures:  # of all versions, the one that ran last first
            torch = failures[0]
            why = in_words.of_failure(torch, self._known(part, now))
        elif part.versions:
            why = GONE
        for one in now.reasons():
            reason, (line, inside) = one.reason, self._source.place(list(one.user_stack or ()))
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

    def _landed(self, part: Part, graph: Graph, lines: Any) -> None:
        """Operators of these lines are in this graph."""
        whole = {n for line in lines for n in self._source.statements.get(line, (line,))}
        graph.lines = tuple(sorted({*graph.lines, *whole}))
        part.lines |= whole
        if part.name and not graph.piece:
            graph.piece = part.name
            self.graphs.append(graph)
        elif graph.operators and not part.name:
            self._name(part)

    def _name(self, part: Part) -> None:
        part.name = _letter(len(self.pieces))
        part.piece = Piece(part.name, self._begins(part), part.lines)
        self.pieces.append(part.piece)
        self.graphs += part.versions
        for graph in part.versions:
            graph.piece = part.name

    def _part(self, code: types.CodeType) -> Part:
        if id(code) not in self._parts:
            own = code is self._entry or self._source.has(code.co_filename, code.co_firstlineno)
            part = Part(code, own)
            if not own:
                part.called = self._source.line_now()
                inside = any(one.own and one.versions for one in self._parts.values())
                part.wraps = part.called is None and not inside
            self._parts[id(code)] = part
        return self._parts[id(code)]

    def _after(self, out: types.CodeType) -> list[Part]:
        """The parts that compiled code goes on with after a break."""
        codes = [one for one in out.co_consts if isinstance(one, types.CodeType)]
        for name in out.co_names:
            if name.startswith("__resume_at_"):
                codes.append(getattr(self._target.__globals__.get(name), "__code__", None))
        return [self._part(code) for code in codes if code is not None and RESUME.match(code.co_name)]

    def _begins(self, part: Part) -> str:
        resumed = RESUME.match(part.code.co_name)
        if part.own or part.wraps:
            again = part.own and not resumed and part.code is not self._entry
            return f"after the break in line {resumed[2]}" if resumed else "from the top" + ", again" * again
        name = resumed[1] if resumed else part.code.co_qualname.rpartition("<locals>.")[2]
        words = f"`{name}` after its line {resumed[2]}" if resumed else f"`{name}`"
        return f"{words}, called in line {part.called}" if part.called else words

    # --- breaks -----------------------------------------------------------------------------------------

    def _broke(self, line: int | None, reason: str, inside: str, skips: bool = False) -> None:
        if line is None:
            return
        one = Break(line, in_words.of_break(reason), in_words.first_line(reason), inside, skips)
        if one not in self.breaks:
            self.breaks.append(one)
            self.breaks.sort(key=lambda one: one.line)

    # --- after a call -----------------------------------------------------------------------------------

    def _finish(self, now: Now, error: BaseException | None) -> None:
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

    def _known(self, part: Part, now: Now) -> dict[str, Any]:
        """The values of global names, and of the arguments that are not replaced before this part begins."""
        code, scope = self._entry, self._target.__globals__
        found = {name: scope[name] for name in code.co_names if name in scope and part.own}
        if part.code is code:
            return {**found, **now.given}
        given = {
            name: value for name, value in now.given.items() if part.own and name not in self._source.stored
        }
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
        if line and not self._source.has(getattr(one, "fail_user_frame_filename", "") or "", line):
            name = getattr(one, "fail_user_frame_name", None)
            inside = f"line {line}" + (f", in `{name}`" if name else "")
            line = part.called
        if line and "Observed exception" not in first:
            self._broke(line, first, inside, skips=not refused)
        if not refused and not part.versions:
            words = in_words.of_break(others[-1] if others else first)
            if not others and line in self._source.tried:
                words = "a break inside a `try`"
            part.python, part.torch = words, in_words.first_line(first)

    def _steps(self, now: Now, error: BaseException | None) -> list[Step]:
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
            left, silent = in_python(
                list(self._parts.values()), self._entry, {id(graph): part for part, graph in (*ran, *new)}
            )
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

    def _step(self, part: Part, graph: Graph, fresh: bool, times: int) -> tuple[int, Step | None]:
        if not part.name:
            return id(graph), None
        what = "hit" if not fresh else "compiled" if graph.version == 1 else "recompiled"
        why = graph.why if what == "recompiled" else ""
        return id(graph), Step(part.name, graph.version, what, why, max(times, 1))

    def _add_silent(self, steps: list[Step], silent: list[tuple[Part, Graph]]) -> None:
        """Adds versions without an operator, before what they go on with."""
        for part, graph in silent:
            nexts = {one.name for one in part.nexts if one.name}
            at = next((i for i, step in enumerate(steps) if step.piece in nexts), len(steps))
            at = 0 if part.code is self._entry else at
            steps.insert(at, Step(part.name, graph.version, "hit"))

    def _skip(self, part: Part) -> None:
        one = Skipped(self._begins(part), part.python, part.torch)
        if part.python and not part.name and one not in self.skipped:
            self.skipped.append(one)


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


def _letter(number: int) -> str:
    more, one = divmod(number, 26)
    return ("" if not more else _letter(more - 1)) + chr(ord("A") + one)
