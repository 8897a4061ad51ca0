"""One kernel for a chain of operators, and what it gains

`steps` is a list of functions of a tensor, to be applied one after another. Each makes a new tensor of the
same size, so for a large `x` nearly all of the time goes into reading and writing memory. One kernel for all
of them reads once and writes once.

Return `(fused, speedup)`.

- `fused(x)` applies all steps. It is compiled with `backend`, as one graph, once and for all; a later call
  with a tensor like `x` costs nothing but the run.
- `speedup` is the time that the steps take on `x`, one after another without the compiler, divided by that of
  `fused(x)`. `clock()` gives the time in seconds; compile before you read it first, since what compiling
  takes does not count. Time each at least five times, and not more than 50 times.
- Other programs run on the machine as well. It becomes slower or faster while you measure, and now and then
  something else is in between for a moment. For all that, your number is to be off by no more than a tenth.

`fuse_pointwise([torch.sin, torch.relu], x, "inductor")` → a function that computes
`torch.relu(torch.sin(x))`, and a number such as 1.7."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=20,
    hints=[
        "What does the compiler see when each step is compiled by itself, and what when one function calls "
        "all of them? Nothing in between may need a value: no print, no `if` on an element, no `.item()`.",
        "When is code compiled: when `torch.compile` is called, or in the first call of what it gives? That "
        "call must not be among those that are timed.",
        "Time the two in turns, so that each pair shares its moment, and take the middle one of the ratios: "
        "a moment in which something else ran spoils one pair and not the result.",
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


def _pair(found):
    """The two parts of a result."""
    evidence.record("a pair", type(found) is tuple and len(found) == 2 and callable(found[0]))
    expect.true(
        type(found) is tuple and len(found) == 2 and callable(found[0]),
        f"the result is {expect.show(found)}",
        "expected: a pair, of a function and a number",
    )
    return found


# --- counted --------------------------------------------------------------------------------------------


class _Counting:
    def __init__(self):
        self.sizes, self.runs = [], 0

    def __call__(self, gm, example_inputs):
        self.sizes.append(sum(node.op.startswith("call") for node in gm.graph.nodes))

        def run(*args):
            self.runs += 1
            return gm(*args)

        return run


@contextlib.contextmanager
def _wrappers_made():
    """A list that grows with each call of `torch.compile` inside."""
    made, real = [], torch.compile

    def noting(*args, **kwargs):
        made.append(1)
        return real(*args, **kwargs)

    torch.compile = noting
    try:
        yield made
    finally:
        torch.compile = real


@exercise.check(isolated=True, deadline=60)
def one_graph(fuse_pointwise):
    """All steps in one graph, compiled once"""
    counting = _Counting()
    code = (
        "steps = [torch.sin, lambda t: t * 2 + 1, torch.relu, torch.sqrt]",
        "fused, speedup = fuse_pointwise(steps, x, backend)",
    )
    t = expect.given(code[0])
    x = torch.linspace(-3, 3, 24).view(4, 6)
    with expect.situation(*code):
        with expect.left_alone(x, what="`x`"):
            fused, _ = _pair(fuse_pointwise(t.steps, x, counting))
        before = counting.runs
        with _wrappers_made() as made:
            for one in (x, x.neg()):
                wanted = torch.sqrt(torch.relu(torch.sin(one) * 2 + 1))
                expect.equal(fused(one), wanted, what="`fused(x)`")
        # By how many parts a chain falls apart follows from the number of its steps.
        evidence.record("graphs", counting.sizes)
        told = ", ".join(f"one of {size} operators" for size in counting.sizes) or "none came to `backend`"
        expect.true(counting.sizes == [5], f"graphs: {told}", "expected: one of 5 operators")
        ran = counting.runs > before
        expect.true(ran, "`fused` does not run the graph", "expected: `fused` is what was compiled")
        again = "`torch.compile` is called again in each call of `fused`"
        expect.true(not made, again, "expected: a later call costs nothing but the run")
    x = torch.ones(3)
    with expect.situation("fused, speedup = fuse_pointwise([], x, backend)"):
        fused, _ = _pair(fuse_pointwise([], x, counting))
        expect.equal(fused(x), x, what="`fused(x)`")


# --- timed by a clock of our own ------------------------------------------------------------------------


class _Machine:
    """A clock that goes on when something runs: `alone` seconds for the two steps, 1 for their graph, 100 for
    compiling it. From call to call everything takes `slower` times as long; every `busy`th call takes 40
    seconds more."""

    def __init__(self, alone, slower=1.0, busy=10**9):
        self.alone = alone
        self.read = self.compiled_late = False
        self.now, self.calls, self.factor, self.slower, self.busy = 0.0, {}, 1.0, slower, busy

    def __call__(self):
        self.read = True
        self.now += 1e-9  # it never stands still
        return self.now

    def ran(self, what, seconds):
        self.calls[what] = self.calls.get(what, 0) + 1
        number = sum(self.calls.values())
        self.now += seconds * self.factor + (40 if number % self.busy == 0 else 0)
        self.factor *= self.slower

    def steps(self):
        def first(t):
            if not torch.compiler.is_compiling():
                self.ran("steps", self.alone)
            return t * 2

        # A function of Python's as well, so that it is compiled by itself where the chain is left to Python.
        def second(t):
            return torch.sin(t)

        return [first, second]

    def backend(self, gm, example_inputs):
        self.now += 100.0
        self.compiled_late = self.compiled_late or self.read

        operators = sum(node.op.startswith("call") for node in gm.graph.nodes)

        def run(*args):
            self.ran("fused", 0.5 * operators)
            return gm(*args)

        return run


def _expect_speedup(answer, machine, story):
    x = torch.ones(3)
    code = f"fused, speedup = fuse_pointwise(steps, x, backend, clock)  # {story}"
    with expect.situation(code):
        fused, speedup = _pair(answer(machine.steps(), x, machine.backend, machine))
        number = isinstance(speedup, float)
        expect.true(number, f"`speedup` is {expect.show(speedup)}, expected a number with a point")
        expect.true(machine.read, "`clock` was never called", "expected: it gives the time")
        with evidence.silent():
            expect.at_least(machine.calls.get("steps", 0), 5, "runs of the steps without the compiler")
            expect.at_least(machine.calls.get("fused", 0), 5, "runs of what was compiled")
            # A few runs that are not timed may come before.
            expect.at_most(machine.calls["steps"], 55, "runs of the steps without the compiler")
            expect.at_most(machine.calls["fused"], 55, "runs of what was compiled")
        late = "the graph was compiled after the clock had been read"
        expect.true(not machine.compiled_late, late, "expected: the first call comes before that")
        off = speedup / machine.alone
        # How far it is off depends on the number of runs; these tell one misunderstanding from another.
        evidence.record("the other way round", abs(speedup * machine.alone - 1) < 0.1)
        evidence.record("far off", (off > 10) - (off < 0.1))
        told = (
            f"`speedup` is {speedup:.3g}" if machine.slower == 1 else "`speedup` is off by more than a tenth"
        )
        expect.true(0.9 <= off <= 1.1, told, f"expected: {machine.alone}, give or take a tenth")
        if machine.slower == 1 and machine.busy == 10**9:
            told = f"`speedup` is {speedup:.4g} on a machine on which nothing else runs"
            expect.true(abs(off - 1) < 1e-6, told, f"expected: {machine.alone}")


@exercise.check(isolated=True, deadline=60)
def without_compiling(fuse_pointwise):
    """The number leaves out what compiling takes"""
    for alone in (3.0, 0.5):
        story = f"the steps take {alone} seconds, the graph 1, compiling 100"
        _expect_speedup(fuse_pointwise, _Machine(alone), story)


@exercise.check(isolated=True, deadline=60)
def on_a_busy_machine(fuse_pointwise):
    """The number holds on a machine that becomes slower, and is busy now and then"""
    story = "3 seconds and 1; each call takes 4 % longer than the one before"
    _expect_speedup(fuse_pointwise, _Machine(3.0, slower=1.04), story)
    story = "2 seconds and 1; every 7th call takes 40 seconds more"
    _expect_speedup(fuse_pointwise, _Machine(2.0, busy=7), story)


# --- kernels --------------------------------------------------------------------------------------------

_STEPS = """steps = [lambda t: t * 1.5, torch.abs, torch.sqrt, lambda t: t - 0.5, torch.relu, torch.neg]
x = torch.linspace(-1, 1, 4_000_000)"""


@exercise.check(isolated=True, needs="compiler", deadline=120)
def one_kernel(fuse_pointwise):
    """Four million elements: one kernel, and little besides it"""
    from torch._inductor import metrics
    from torch._inductor.compile_fx import compile_fx

    graphs, runs = [], []

    def inductor(gm, example_inputs):
        # Where there is a second graph there is a second kernel, and no need to make one.
        graphs.append(gm if graphs else compile_fx(gm, example_inputs))
        graph = graphs[-1]

        def run(*args):
            runs.append(args)
            return graph(*args)

        return run

    t = expect.given(_STEPS)

    def eager(one):
        for step in t.steps:
            one = step(one)
        return one

    with expect.situation(*_STEPS.splitlines(), 'fused, speedup = fuse_pointwise(steps, x, "inductor")'):
        with evidence.silent():
            metrics.reset()
            fused, _ = _pair(fuse_pointwise(t.steps, t.x, inductor))
            runs.clear()
            same = torch.allclose(fused(t.x), eager(t.x), rtol=1e-5, atol=1e-6)
            kernels = max(metrics.generated_kernel_count, len(graphs))
        # How many more than one there are depends on the style of the answer.
        expect.true(kernels == 1, f"kernels: {kernels}, expected 1")
        expect.true(same, "`fused(x)` is something else than the steps give, one after another")
        expect.true(
            len(runs) > 0, "`fused` does not run the kernel", "expected: `fused` is what was compiled"
        )
        inputs = runs[0]
        with evidence.silent():
            # The kernel is the same, so only an answer that does more than run it is this much slower.
            ratio = measure.time_ratio(
                lambda: fused(t.x), lambda: graphs[0](*inputs), target=4.0, seconds=0.2
            )
        if not ratio.enough:
            raise expect.CannotCheck("times on this machine vary too much at the moment")
        told = "`fused(x)` takes more than four times as long as its kernel"
        expect.true(ratio.ratio <= 4, told, "expected: nothing but the run")


# --- the mistakes ---------------------------------------------------------------------------------------


def _chain(steps):
    def run(x):
        for step in steps:
            x = step(x)
        return x

    return run


def _times(functions, x, clock, number=9):
    """Seconds of each call, in turns."""
    found = [[] for _ in functions]
    for _ in range(number):
        for times, function in zip(found, functions, strict=True):
            start = clock()
            function(x)
            times.append(clock() - start)
    return found


def _middle(numbers):
    return sorted(numbers)[len(numbers) // 2]


def _ratio(functions, x, clock):
    slow, fast = _times(functions, x, clock)
    return float(_middle([a / b if b else 1.0 for a, b in zip(slow, fast, strict=True)]))


def _measured(steps, fused, x, clock):
    fused(x)
    return fused, _ratio((_chain(steps), fused), x, clock)


@exercise.mistake
def each_step_alone(steps, x, backend, clock=time.perf_counter):
    """You compile each step by itself. Each becomes a graph of its own, with a kernel that reads and writes
    all of memory, so nothing is fused. The compiler has to see one function that calls them all."""
    fused = _chain([torch.compile(step, backend=backend) for step in steps])
    return _measured(steps, fused, x, clock)


@each_step_alone.variant
def wrapped_one_by_one(steps, x, backend, clock=time.perf_counter):
    def wrapped(step):
        return torch.compile(lambda t: step(t), backend=backend)

    pieces = list(map(wrapped, steps))

    def fused(t):
        for piece in pieces:
            t = piece(t)
        return t

    fused(x)
    return fused, _ratio((_chain(steps), fused), x, clock)


@exercise.mistake
def a_break_in_the_middle(steps, x, backend, clock=time.perf_counter):
    """Between the steps you ask for a value: a print, an `if` on an element, `.item()`, an assertion. The
    graph ends there, what is before it is written to memory, and another graph goes on behind it."""

    def run(t):
        for step in steps:
            t = step(t)
            if t.sum().item() != t.sum().item():
                print("not a number")
        return t

    return _measured(steps, torch.compile(run, backend=backend), x, clock)


@exercise.mistake
def compiles_in_each_call(steps, x, backend, clock=time.perf_counter):
    """You call `torch.compile` inside of the function, in each of its calls. What was compiled is found
    again, since it belongs to the code, but the wrapper is made anew each time, and that takes longer than
    many a call. Compile once, outside."""
    run = _chain(steps)

    def fused(t):
        return torch.compile(run, backend=backend)(t)

    return _measured(steps, fused, x, clock)


@compiles_in_each_call.variant
def decorates_inside(steps, x, backend, clock=time.perf_counter):
    def fused(t):
        @torch.compile(backend=backend)
        def all_of_them(u):
            for step in steps:
                u = step(u)
            return u

        return all_of_them(t)

    return _measured(steps, fused, x, clock)


@exercise.mistake
def returns_the_plain_one(steps, x, backend, clock=time.perf_counter):
    """The function that you return is the plain one: you compile and time another, and whoever calls `fused`
    runs the steps one by one."""
    run = _chain(steps)
    _, found = _measured(steps, torch.compile(run, backend=backend), x, clock)
    return run, found


@exercise.mistake
def times_the_first_call(steps, x, backend, clock=time.perf_counter):
    """The clock is read before the function has been compiled. `torch.compile` itself compiles nothing: that
    is done when the function is called first. Call it once before the clock runs."""
    fused, run = torch.compile(_chain(steps), backend=backend), _chain(steps)
    slow, fast = _times((run, fused), x, clock, 8)
    return fused, float(sum(slow) / (sum(fast) or 1.0))


@exercise.mistake
def one_after_the_other(steps, x, backend, clock=time.perf_counter):
    """You time several runs of the one, then several of the other. A machine that becomes slower in the
    meantime, since it gets warm or others use it, makes the second look worse. Time them in turns, one run
    each, and compare each pair."""
    fused = torch.compile(_chain(steps), backend=backend)
    fused(x)
    (slow,), (fast,) = _times((_chain(steps),), x, clock, 11), _times((fused,), x, clock, 11)
    return fused, float(_middle(slow) / (_middle(fast) or 1.0))


@exercise.mistake
def takes_the_mean(steps, x, backend, clock=time.perf_counter):
    """You add up all times, or take a mean. One moment in which something else ran counts as much as all
    the rest together. The middle one of the ratios, the median, does not notice it."""
    fused = torch.compile(_chain(steps), backend=backend)
    fused(x)
    slow, fast = _times((_chain(steps), fused), x, clock, 15)
    return fused, float(sum(slow) / (sum(fast) or 1.0))


@exercise.mistake
def upside_down(steps, x, backend, clock=time.perf_counter):
    """Your number is the other way round: the time of `fused` over that of the steps."""
    fused = torch.compile(_chain(steps), backend=backend)
    fused(x)
    return fused, _ratio((fused, _chain(steps)), x, clock)
