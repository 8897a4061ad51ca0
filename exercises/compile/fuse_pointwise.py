"""One kernel for a chain of operators, and what it gains

`steps` are functions of a tensor, applied one after another. Each makes a new tensor of the same size, so a
large `x` is read and written many times. One kernel for all can read once and write once.

Return `(fused, speedup)`.

- `fused(x)` applies all steps. It's compiled with `backend`, as one graph; a later call runs it and does
  nothing else.
- `speedup` is the time of the steps on `x` without the compiler, divided by that of `fused`. `clock()` gives
  seconds; compile before you read it.
- The machine becomes slower or faster meanwhile, and is sometimes busy. `speedup` may be off by a tenth.

`fuse_pointwise([torch.sin, torch.relu], x, "inductor")` → a function, and 1.7, say.
"""

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits.compiled import kernels_made

exercise = Exercise(
    minutes=20,
    hints=[
        "What does the compiler see if you compile each step, and what if one function calls them all? "
        "Nothing in between may need a value: no print, no `if` on an element, no `.item()`.",
        "When is code compiled: when you call `torch.compile`, or in the first call of its result? Don't "
        "time that call.",
        "Time the two in turns, so that both times of a pair are from the same moment, and take the median "
        "of the ratios. If something else runs for a moment, it spoils one pair and not the result.",
    ],
)


@exercise.starter
def fuse_pointwise(
    steps: list[Callable[[Tensor], Tensor]],
    x: Tensor,
    backend: Any,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Callable[[Tensor], Tensor], float]:
    """The steps as one compiled function, and how much faster that is"""
    raise NotImplementedError


def _given(fuse_pointwise, *lines):
    """An example, up to the call that returns `found`, a function and something else."""
    t = expect.given("\n".join(lines[:-1]), fuse_pointwise=fuse_pointwise)
    t.run(f"found = {lines[-1]}")
    pair = isinstance(t.found, (tuple, list)) and len(t.found) == 2 and callable(t.found[0])
    expect.true(pair, f"the result is {expect.show(t.found)}", "expected: a function and a number")
    t.run("fused, speedup = found")
    return t


_STEPS = "steps = [torch.sin, lambda t: t * 2 + 1, torch.relu, torch.sqrt]"
_COUNTING = (
    "from course_utils.exercise.kits.compiled import Counting",
    "backend = Counting()",
    _STEPS,
    "x = torch.linspace(-3, 3, 24).view(4, 6)",
    "fuse_pointwise(steps, x, backend)",
)


def _of(steps, x):
    return functools.reduce(lambda t, step: step(t), steps, x)


@exercise.check(isolated=True, deadline=60)
def results(fuse_pointwise):
    """`fused` applies the steps to what it is given, in their order

    Each step gets what the one before it returned. The `x` of the first call, with which it was compiled, is
    an example: the graph takes a tensor of these sizes as an input.
    """
    lines = ("steps = [torch.sin, lambda t: t * 2 + 1, torch.relu]", "x, y = torch.ones(3), -torch.ones(3)")
    t = _given(fuse_pointwise, *lines, "fuse_pointwise(steps, x, 'eager')")
    for name, value in {"x": torch.ones(3), "y": -torch.ones(3)}.items():
        backwards = {"what the steps give in reversed order": _of(t.steps[::-1], value)}
        like = backwards | ({"`fused(x)`": _of(t.steps, torch.ones(3))} if name == "y" else {})
        expect.equal(t.call(f"fused({name})"), _of(t.steps, value), what=f"`fused({name})`", like=like)


@exercise.check(isolated=True, deadline=60)
def one_graph(fuse_pointwise):
    """All steps are in one graph of `backend`

    A step compiled alone is a graph of its own, with a kernel that reads and writes every element. One
    function that calls all steps is one graph, if nothing between two of them asks for a value. It goes to
    the backend that `torch.compile` was given.
    """
    t = _given(fuse_pointwise, *_COUNTING)
    t.run("fused(x)")
    sizes = {len(graph.operators) for graph in t.backend.graphs}
    expect.true(sizes == {5}, f"graphs of `backend`: {t.backend}", "expected: one, with all five operators")


@contextlib.contextmanager
def _calls_of_compile():
    """A list that grows with each call of `torch.compile` inside."""
    calls, real = [], torch.compile

    def noting(*args, **kwargs):
        calls.append(1)
        return real(*args, **kwargs)

    torch.compile = noting
    try:
        yield calls
    finally:
        torch.compile = real


@exercise.check(isolated=True, deadline=60)
def compiled_once(fuse_pointwise):
    """`fused` is compiled once, and a later call only runs it

    `torch.compile(f)` makes a wrapper around `f`. The compiled code is kept with the code of `f` and is found
    again. But making the wrapper takes time too, and a wrapper made in each call costs it in each call. The
    code is for one grad mode: what was compiled under `no_grad` is compiled again outside of it.
    """
    t = _given(fuse_pointwise, *_COUNTING)
    t.run("fused(x)")
    made = len(t.backend.graphs)
    expect.true(made == 1, f"graphs of `backend`: {t.backend}", "expected: one, for all calls")
    before = t.backend.runs
    with _calls_of_compile() as calls, t.backend.outside() as names:
        t.run("fused(x)")
    ran = t.backend.runs - before
    expect.true(ran == 1, f"graphs that ran in the last call: {ran}", "expected: one")
    expect.true(not names, f"outside of the graph there ran: {', '.join(names)}", "expected: nothing")
    expect.true(not calls, "`torch.compile` was called in the last call", "expected: compiled before")


def _expect_speedup(fuse_pointwise, machine, speedup, before=False):
    torch.compiler.reset()
    t = _given(
        fuse_pointwise,
        "from course_utils.exercise.kits.compiled import SimulatedMachine",
        f"machine = SimulatedMachine({machine})",
        "fuse_pointwise(machine.functions, torch.ones(3), machine.backend, machine.clock)",
    )
    late = "the graph was compiled after the clock had been read"
    expect.true(not (before and t.machine.compiled_late), late, "expected: compiled before")
    expect.true(t.machine.read, "`clock` was not called", "expected: all times are differences of its values")
    expect.equal(t.speedup, speedup, what="`speedup`", rtol=0.1)


@exercise.check(isolated=True, deadline=60)
def without_compiling(fuse_pointwise):
    """`speedup` leaves out the time for compiling

    `torch.compile` itself compiles nothing: the first call does. Here it takes 100 seconds; the steps take 6
    and their graph 2, or 1 and 2. Only `clock` shows these seconds of a simulated machine.
    """
    _expect_speedup(fuse_pointwise, "steps=6.0, graph=2.0", 3.0, before=True)
    _expect_speedup(fuse_pointwise, "steps=1.0, graph=2.0", 0.5, before=True)


@exercise.check(isolated=True, deadline=60)
def on_a_busy_machine(fuse_pointwise):
    """`speedup` is right on a machine that changes its pace and is sometimes busy

    Two times can be compared if they are from the same moment: take turns, one run each. One very slow run
    spoils a sum or a mean, but not a median.
    """
    with Rows() as rows:
        for pace, slower in (("slower", 1.04), ("faster", 0.96)):
            with rows.of(f"each run 4 % {pace}"):
                _expect_speedup(fuse_pointwise, f"steps=6.0, graph=2.0, slower={slower}", 3.0)
        with rows.of("every seventh run 40 seconds longer"):
            for first in range(7):
                _expect_speedup(fuse_pointwise, f"steps=4.0, graph=2.0, busy={first}", 2.0)


@exercise.check(isolated=True, needs="compiler", deadline=120)
def one_kernel(fuse_pointwise):
    """Inductor makes one kernel of the steps

    Inductor can fuse operators of one graph. What one kernel hands to another goes through memory.
    """
    before = kernels_made()
    t = _given(
        fuse_pointwise,
        "from course_utils.exercise.kits.compiled import Counting",
        "backend = Counting('inductor')",
        "steps = [torch.abs, torch.sqrt, lambda t: t * 1.5 - 0.5, torch.relu, torch.neg]",
        "x = torch.linspace(-1, 1, 1000)",
        "fuse_pointwise(steps, x, backend)",
    )
    wanted = -torch.relu(t.x.abs().sqrt() * 1.5 - 0.5)
    expect.equal(t.call("fused(x)"), wanted, what="`fused(x)`", rtol=1e-5, atol=1e-6)
    kernels = kernels_made() - before
    expect.true(kernels == 1, f"kernels made by Inductor: {kernels}", "expected: one")
