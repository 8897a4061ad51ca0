"""Backends for `torch.compile` that count: which graphs were made, how often each has run, and what ran
outside of them. They can be used in a cell, too; once one is made, the compiler logs nothing.

    from course_utils.exercise.kits.compiled import Counting
    backend = Counting()
    f = torch.compile(lambda x: x.sin() + 1, backend=backend)
    f(torch.ones(2))
    print(backend)  # sin add, ran once
"""

import contextlib
import logging
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from course_utils import torch_private
from course_utils.exercise.mismatch import Mismatch, looked
from course_utils.measure.modes import Noting, packet
from course_utils.measure.storage import tensors_in


@dataclass
class Graph:
    """One graph: the names of what it calls, in order; those of its operators that are not torch's; how often
    it has run; which part of a step it is (`CountingHalves`); and the addresses that its last operators, each
    a `copy_` to an input, wrote to."""

    operators: list[str]
    foreign: list[str]
    runs: int = 0
    half: str = ""
    wrote: set[int] = field(default_factory=set)

    def __str__(self) -> str:
        names = " ".join(self.operators)
        shown = names if 0 < len(names) <= 60 else f"{len(self.operators)} operators"
        return f"{self.half} {shown}, ran {times(self.runs)}".strip()


class Counting:
    """A backend that hands its graphs to another one (`inner`, by name), and counts."""

    _came = 0  # graphs, to all of these

    def __init__(self, inner: str = "eager") -> None:
        no_logs()
        self.inner = inner
        self.graphs: list[Graph] = []
        self._watched = False
        self._before = _made() - Counting._came

    def __call__(self, module: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        compiled = self._compiled(module, example_inputs)
        Counting._came += 1
        return compiled

    def _compiled(self, module: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        compiled = torch_private.lookup_backend(self.inner)(module, example_inputs)
        # Not before: where it has to start again, with a number as a constant, that is one graph.
        return self._counted(module, compiled)

    def _counted(self, module: fx.GraphModule, run: Callable[..., Any], half: str = "") -> Callable[..., Any]:
        graph = Graph(operators_of(module), _foreign(module), half=half)
        self.graphs.append(graph)
        written = _written(module)

        def counted(*inputs: Any) -> Any:
            graph.runs += 1
            graph.wrote |= {inputs[i].data_ptr() for i in written}
            with torch_private.disable_current_modes() if self._watched else contextlib.nullcontext():
                return run(*inputs)

        return counted

    @property
    def runs(self) -> int:
        """How often graphs have run, all together."""
        return sum(graph.runs for graph in self.graphs)

    @property
    def elsewhere(self) -> int:
        """How many graphs came to backends that don't count, since this one was made."""
        return max(0, _made() - Counting._came - self._before)

    def forget(self) -> None:
        """From here on `runs`, `ran` and `wrote` know what ran later only."""
        for graph in self.graphs:
            graph.runs, graph.wrote = 0, set()

    def ran(self) -> list[str]:
        """The names of the operators, without their overloads, in the graphs that have run."""
        return [name.partition(".")[0] for graph in self.graphs if graph.runs for name in graph.operators]

    def wrote(self, tensor: torch.Tensor) -> bool:
        """Whether one of the graphs wrote to this tensor."""
        return any(tensor.data_ptr() in graph.wrote for graph in self.graphs)

    def __str__(self) -> str:
        return self.told("; ".join(map(str, self.graphs)))

    def told(self, graphs: str) -> str:
        """These graphs, in words, and how many came to other backends."""
        others = f"; of another backend: {self.elsewhere}" if self.elsewhere else ""
        return (graphs or "none") + others

    @contextlib.contextmanager
    def outside(self, size: int = 1) -> Iterator[list[str]]:
        """The names of operators that compute `size` elements or more outside of the graphs. What is called
        inside should have been compiled before."""
        names: list[str] = []

        def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            given = {t.untyped_storage().data_ptr() for t in tensors_in((args, kwargs))}
            for t in tensors_in(out):
                # A view computes nothing.
                computed = t.untyped_storage().data_ptr() not in given
                if (computed or torch_private.schema(func).is_mutable) and t.numel() >= size:
                    names.append(packet(func).removeprefix("aten."))

        self._watched = True
        try:
            with Noting(note):
                yield names
        finally:
            self._watched = False


class CountingHalves(Counting):
    """The same behind AOTAutograd: it gets the graphs of forward and of backward, and those of what runs
    without gradients (`half`: "forward", "backward", "no gradients")."""

    def __init__(self) -> None:
        super().__init__()
        self._compile = torch_private.aot_autograd(
            fw_compiler=self._of("forward"),
            bw_compiler=self._of("backward"),
            inference_compiler=self._of("no gradients"),
            keep_inference_input_mutations=True,  # as Inductor does
        )

    def _compiled(self, module: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return self._compile(module, example_inputs)

    def _of(self, half: str) -> Callable[..., Any]:
        from functorch.compile import make_boxed_func

        return lambda module, inputs: make_boxed_func(self._counted(module, module.forward, half))


@contextlib.contextmanager
def as_raised() -> Iterator[None]:
    """What a backend raises inside is raised as it is, not wrapped by the compiler."""
    try:
        yield
    except torch_private.BackendCompilerFailed as error:
        raise error.inner_exception from None


def _made() -> int:
    """How many graphs the compiler has made in this process, for any backend."""
    compiled = torch_private.DYNAMO in sys.modules
    return torch_private.compiler_counters["stats"]["unique_graphs"] if compiled else 0


def _written(module: fx.GraphModule) -> list[int]:
    """Which inputs the graph of a `CountingHalves` writes to."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    targets = [n.args[0] for n in module.graph.nodes if n.target is torch.ops.aten.copy_.default]
    return [i for i, node in enumerate(inputs) if node in targets]


def operators_of(module: fx.GraphModule) -> list[str]:
    """The names of what the graph calls, in the order of its nodes."""
    called = [node.target for node in module.graph.nodes if node.op.startswith("call")]
    return [getattr(target, "__name__", str(target)) for target in called]


def _foreign(module: fx.GraphModule) -> list[str]:
    """What the graph calls, or one inside of it, that is not torch's: the compiler does not look into it."""
    parts = [part for part in module.modules() if isinstance(part, fx.GraphModule)]
    targets = [node.target for part in parts for node in part.graph.nodes if node.op == "call_function"]
    kinds = torch_private.OpOverload, torch_private.OpOverloadPacket
    overloads = [t for t in targets if isinstance(t, kinds)]
    functions = [t for t in targets if isinstance(t, types.FunctionType)]
    found = [str(t) for t in overloads if str(t).partition(".")[0] not in ("aten", "prims")]
    return found + [t.__name__ for t in functions if t.__module__.partition(".")[0] != "torch"]


def kernels_made() -> int:
    """How many kernels Inductor has written in this process."""
    return torch_private.kernel_metrics.generated_kernel_count


def no_logs() -> None:
    """What the compiler logs has the time in it: a report would be another one each time."""
    torch_private.set_logs(all=logging.CRITICAL)


def times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def expect_graphs(backend: Counting, *wanted: tuple[int, int]) -> None:
    """The backend got these graphs, in any order: (operators, how often it ran)."""
    looked()
    came = [(len(graph.operators), graph.runs) for graph in backend.graphs]
    if sorted(came) != sorted(wanted):
        found = backend.told(_told(came))
        raise Mismatch(f"graphs of `backend`: {found}", f"expected: {_told(list(wanted))}")


def _told(graphs: list[tuple[int, int]]) -> str:
    one = [f"{n} operator{'s' if n != 1 else ''}, ran {times(runs)}" for n, runs in graphs]
    return "; ".join(one)


class SimulatedMachine:
    """Two steps, a backend, and a clock that goes on when something runs: by `steps` seconds for the two, by
    `graph` for their graph and by 100 for compiling it. From run to run everything takes `slower` times as
    long; every seventh run, from number `busy` on, takes 40 seconds more. `compiled_late`: after the clock
    had been read.

    fused, speedup = fuse_pointwise(machine.functions, torch.ones(3), machine.backend, machine.clock)
    """

    def __init__(self, steps: float, graph: float, slower: float = 1.0, busy: int | None = None) -> None:
        no_logs()
        self.graph, self.slower, self.busy = graph, slower, busy
        self.now, self.runs, self.read, self.compiled_late = 0.0, 0, False, False

        def double(t: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_compiling():
                self._ran(steps)
            return t * 2

        self.functions = [double, torch.sin]

    def clock(self) -> float:
        self.read = True
        self.now += 1e-9  # it never stands still
        return self.now

    def backend(self, module: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self.now += 100.0
        self.compiled_late = self.read
        seconds = self.graph * len(operators_of(module)) / len(self.functions)

        def run(*inputs: Any) -> Any:
            self._ran(seconds)
            return module(*inputs)

        return run

    def _ran(self, seconds: float) -> None:
        busy = self.busy is not None and self.runs % 7 == self.busy
        self.now += seconds * self.slower**self.runs + (40.0 if busy else 0.0)
        self.runs += 1
