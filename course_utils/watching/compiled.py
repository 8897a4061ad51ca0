"""What torch.compile makes of a function: its pieces, why they end, and what each call ran.

    seen = watch_compile(f)
    seen(x), seen(y)
    print(seen.graphs)

The function is compiled and called as by `torch.compile`. Nothing of the process is reset, and nothing is
listened to while no call is under way. Calls from several threads at once are not told apart.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from course_utils import torch_private
from course_utils.watching import compiled_messages as in_words
from course_utils.watching.compiled_parts import Made, Now, Part
from course_utils.watching.compiled_seen import Break, Call, Graph, Line, Piece, Step
from course_utils.watching.compiled_source import RESUME, Source, copy, function_of
from course_utils.wrong_use import public

GONE = "what was compiled before is gone"
LIMIT = "no version fits, and the recompile limit is reached"


@public
def watch_compile(f: Callable[..., Any], backend: str = "eager", **options: Any) -> Watched:
    """Compiles a function or a module as `torch.compile(f, backend=backend, **options)` does, and writes down
    what becomes of it with each call.

    A function is compiled as a copy, so that what was compiled of it before plays no part; a module is
    compiled itself. Even of a copy torch knows by its file and line which sizes have varied before, and
    leaves them open from the first call on: `torch.compiler.reset()` makes it forget.
    """
    return Watched(f, backend, options)


class Watched:
    """What `watch_compile` gives. Call it as the function; then look at `pieces`, `graphs`, `breaks`,
    `calls` and `lines`."""

    def __init__(self, f: Callable[..., Any], backend: str, options: dict[str, Any]) -> None:
        import torch

        module = isinstance(f, torch.nn.Module)
        self.pieces: list[Piece] = []
        self.graphs: list[Graph] = []
        self.breaks: list[Break] = []
        self.calls: list[Call] = []
        self._target = function_of(f.forward if module else f)
        self.name = type(f).__name__ if module else self._target.__name__
        self._source = Source.of(self._target)
        self._signature = inspect.signature(f.forward if module else f)
        copied = f if module else copy(f)
        self._entry = function_of(copied.forward if module else copied).__code__
        self._inner = torch_private.lookup_backend(backend)
        self._parts: dict[int, Part] = {}  # by the identity of their code
        self._made: dict[str, Made] = {}  # by torch's name of the compilation that is under way
        self._now: Now | None = None
        self._part(self._entry)

        def compile_graph(*args: Any, **options: Any) -> Callable[..., Any]:
            return self._compile(*args, **options)

        compile_graph.__name__ = backend  # torch's errors name it
        self._run = torch.compile(copied, backend=compile_graph, **options)

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

    # --- calls ------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._listening(args, kwargs):
            return self._run(*args, **kwargs)

    @contextmanager
    def _listening(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        given = self._signature.bind(*args, **kwargs).arguments
        call = Call(len(self.calls) + 1, tuple(in_words.of_argument(*one) for one in given.items()))
        self._now = Now(call, given)
        handle = torch_private.register_bytecode_hook(self._compiled)
        try:
            yield
        finally:
            handle.remove()
            now, self._now = self._now, None
            self._made.clear()
            self.calls.append(call)
            self._read_guards()
            self._note_limits(now)
            call.steps = self._steps(now)

    # --- what torch tells while it compiles and runs ----------------------------------------------------

    def _compile(self, module: Any, inputs: list[Any], **options: Any) -> Callable[..., Any]:
        """The backend: sees each graph once."""
        made = Made(*self._source.in_graph(module))
        self._made[str(torch_private.CompileContext.current_compile_id())] = made
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
        now, made = self._now, self._made.pop(str(torch_private.CompileContext.current_compile_id()), None)
        reasons = now.reasons()
        if made is None and id(code) not in self._parts and not self._is_own(code):
            return  # somebody else's
        made, part = made or Made((), ()), self._part(code)
        failures = now.failures(code)
        why = ""
        if part.versions:  # of all versions, the one that ran last first
            why = in_words.of_failure(failures[0], self._known(part, now)) if failures else GONE
        for one in reasons:
            line, inside = self._source.place(list(one.user_stack or ()))
            self._broke(line, one.reason, inside)
        graph = Graph("", len(part.versions) + 1, (), made.operators, why, (), now.call.number)
        made.part, made.graph = part, graph
        part.versions.append(graph)
        part.codes[id(graph)] = out
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
            part.name = chr(ord("A") + len(self.pieces))
            part.piece = Piece(part.name, self._begins(part), part.lines)
            self.pieces.append(part.piece)
            self.graphs += part.versions
            for version in part.versions:
                version.piece = part.name

    def _is_own(self, code: types.CodeType) -> bool:
        return code is self._entry or self._source.has(code.co_filename, code.co_firstlineno)

    def _part(self, code: types.CodeType) -> Part:
        if id(code) not in self._parts:
            own = self._is_own(code)
            self._parts[id(code)] = Part(code, own, None if own else self._source.line_now())
        return self._parts[id(code)]

    def _begins(self, part: Part) -> str:
        resumed = RESUME.match(part.code.co_name)
        if part.own or part.called is None:
            return f"after the break in line {resumed[2]}" if resumed else "from the top"
        name = resumed[1] if resumed else part.code.co_qualname.rpartition("<locals>.")[2]
        words = f"`{name}` after its line {resumed[2]}" if resumed else f"`{name}`"
        return f"{words}, called in line {part.called}"

    def _broke(self, line: int | None, reason: str, inside: str) -> None:
        one = Break(line, in_words.of_break(reason), inside)
        if line is not None and one not in self.breaks:
            self.breaks.append(one)
            self.breaks.sort(key=lambda one: one.line)

    # --- after a call -----------------------------------------------------------------------------------

    def _note_limits(self, now: Now) -> None:
        """A piece of which guards have failed, and that was not compiled anew, never will be."""
        compiled = {id(part) for kind, part, _ in now.events if kind == "compiled"}
        for part in self._parts.values():
            failures = now.failures(part.code) if id(part) not in compiled else ()
            if failures and part.piece:
                part.piece.limit = True
                why = in_words.of_failure(failures[0], self._known(part, now))
                now.limits[id(part)] = f"the recompile limit is reached: {why}"

    def _known(self, part: Part, now: Now) -> dict[str, Any]:
        """The values of global names, and of the arguments that are not replaced before this part begins."""
        if not part.own:
            return {}
        code, scope = self._entry, self._target.__globals__
        found = {name: scope[name] for name in code.co_names if name in scope}
        replaced = () if part.code is code else self._source.stored
        return found | {name: value for name, value in now.given.items() if name not in replaced}

    def _read_guards(self) -> None:
        for part in self._parts.values():
            new = [graph for graph in part.versions if not graph.guards]
            entries = torch_private.cache_entries(part.code) if new else []
            for graph in new:
                for entry in entries:
                    if entry.code is part.codes.get(id(graph)):
                        graph.guards = in_words.of_guards(str(entry.guard_manager))
                part.codes.pop(id(graph), None)

    def _steps(self, now: Now) -> list[Step]:
        """What ran in this call, in order. A graph tells that it runs; of a piece at its limit none does."""
        events: dict[int, list[tuple[str, Part, Graph]]] = {}
        for event in now.events:
            events.setdefault(id(event[2]), []).append(event)
        steps = []
        for several in events.values():
            _, part, graph = several[0]
            kinds = [kind for kind, *_ in several]
            what = "hit" if "compiled" not in kinds else "compiled" if graph.version == 1 else "recompiled"
            why = graph.why if what == "recompiled" else ""
            if part.name:
                steps.append(Step(part.name, graph.version, what, why, max(kinds.count("ran"), 1)))
        ran = {step.piece for step in steps}
        for part in self._parts.values():
            if part.piece and part.piece.limit and part.name not in ran:
                steps.append(Step(part.name, 0, "python", now.limits.get(id(part), LIMIT)))
        return steps
