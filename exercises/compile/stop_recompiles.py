"""Repair: compiled once, or twice

`stop_recompiles(backend)` returns a compiled function `update(weight, gradient, lr, name)`: one step of an
optimizer with weight decay, which returns the new weight and a line for the log. It computes the right thing,
and it is compiled again in nearly every call, since a learning rate, a name or a size was another one. After
eight times the compiler gives up, and the function runs without it.

Mend it, so that **at most two graphs** are made, whatever sizes, rates and names come, in whatever order.
Mend the function, not the limit: the compiler's settings stay as they are.

- `update` is called as before, and returns what it returned: `weight * exp(-lr) - lr * gradient`, in the
  dtype and with the precision of `weight`, and the text `f"{name} updated"`. `weight` and `gradient`
  stay as they were. They have shape `(rows, 3)` with two rows or more, the same in one call, and one
  dtype in all calls of one `update`; `lr` is a `float`, `name` a `str`.
- Each call runs one graph. Whatever has as many elements as `weight` is computed in it, by torch.
- `backend` is handed on to `torch.compile`: a name, or a function that takes a graph.

You may change what goes into the part that is compiled, what stays outside, and how it is compiled.
"""

import logging
import math

import torch

from course_utils import evidence, expect
from course_utils.exercise import Exercise
from course_utils.measure.modes import Watch, packet
from course_utils.measure.storage import tensors_in

exercise = Exercise(
    minutes=20,
    hints=[
        "Compiled code may be used again when all that was assumed of its inputs still holds. What is "
        "assumed of a tensor, what of a Python number, what of a text? Which of the three can become another "
        "one without the code becoming wrong?",
        "Not all of `update` has to be compiled: the log is no business of a graph. And the elements of a "
        "tensor are never looked at, those of a tensor without dimensions neither.",
        "Compile an inner function of three tensors. Outside of it, make a tensor of the learning rate: "
        "without dimensions, so that it changes no dtype, and with enough digits for weights in double "
        "precision. Sizes may vary: the compiler learns that from the second one that it sees.",
    ],
)


@exercise.starter
def stop_recompiles(backend):
    """A compiled update(weight, gradient, lr, name) -> (new weight, line for the log)"""

    @torch.compile(backend=backend)
    def update(weight, gradient, lr, name):
        decayed = weight * math.exp(-lr)
        return torch.sub(decayed, gradient, alpha=lr), f"{name} updated"

    return update


# How often torch compiles one function, where nobody has changed that.
_LIMIT = 8


class _Counting:
    """A backend that counts the graphs that are made, and how often they run."""

    def __init__(self, inner="eager"):
        self.inner, self.graphs, self.runs, self.running = inner, 0, 0, False

    def __call__(self, graph_module, example_inputs):
        compiled = torch._dynamo.lookup_backend(self.inner)(graph_module, example_inputs)
        # Not before: where it starts again with a number as a constant, that is one graph.
        self.graphs += 1

        def run(*inputs):
            self.runs += 1
            self.running = True
            try:
                return compiled(*inputs)
            finally:
                self.running = False

        return run


class _Outside(Watch):
    """Names the operators that run outside of the graphs and make or change `size` elements or more."""

    def __init__(self, counts, size):
        super().__init__()
        self.counts, self.size, self.names = counts, size, []

    def saw(self, func, args, kwargs, run):
        result = run()
        given = {t.untyped_storage().data_ptr() for t in tensors_in((args, kwargs))}
        for t in () if self.counts.running else tensors_in(result):
            # A view computes nothing.
            computed = func._schema.is_mutable or t.untyped_storage().data_ptr() not in given
            if computed and t.numel() >= self.size:
                self.names.append(packet(func))
        return result


def _count(stop_recompiles, calls, inner="eager"):
    """The backend, after calls with (rows, lr, name)."""
    torch._logging.set_logs(dynamo=logging.CRITICAL)  # what it would log has the time in it
    counts = _Counting(inner)
    shown = [f"update(weight, gradient, {lr}, {name!r})  # {rows} rows" for rows, lr, name in calls[:4]]
    shown[-1] += f", and {len(calls) - 4} more calls" if len(calls) > 4 else ""
    with expect.situation("update = stop_recompiles(backend)", *shown):
        update = stop_recompiles(backend=counts)
        for rows, lr, name in calls:
            ones = torch.ones(rows, 3), torch.ones(rows, 3)
            found = update(*ones, lr, name)
            pair = isinstance(found, (tuple, list)) and len(found) == 2
            expect.true(pair, f"`update` returned {expect.show(found)}, expected a tensor and a text")
            wanted = torch.full((rows, 3), math.exp(-lr) - lr)
            expect.equal(found[0], wanted, what="the new weight", atol=1e-6)
        graphs, runs = counts.graphs, counts.runs
        # What was compiled, but not with the backend that was given.
        others = torch._dynamo.utils.counters["stats"]["unique_graphs"] - graphs
        if not graphs:
            evidence.record("made by another backend", others > 0)
        why = "it was compiled with another one" if others > 0 else "nothing was compiled"
        expect.true(graphs > 0, f"no graph came to `backend`: {why}", "expected: one or two graphs")
        # By how many it is too many depends on the style of the answer.
        evidence.record("too many", graphs > 2)
        evidence.record("learned at two times", graphs == 3)
        evidence.record("more than the limit", graphs > _LIMIT)
        raised = f"the compiler stops after {_LIMIT} for one function, if its limit is left alone"
        expect.true(graphs <= _LIMIT, f"graphs made: {graphs}, expected at most 2", raised)
        with evidence.silent():
            expect.at_most(graphs, 2, "graphs made")
        expect.true(runs == len(calls), f"{runs} graphs ran in {len(calls)} calls, expected one in each")
        # For the call that came last everything has been compiled.
        with _Outside(counts, 3 * rows) as outside:
            update(*ones, lr, name)
        told = [f"outside of the graph there runs `{one}`, on {3 * rows} elements" for one in outside.names]
        expect.true(not told, *told[:1], "expected: what is as large as `weight` is computed in the graph")


def _step(stop_recompiles, setup, lr, name, dtype):
    t = expect.given(f"update = stop_recompiles(backend='eager')\n{setup}", stop_recompiles=stop_recompiles)
    weight, gradient = t.weight.clone(), t.gradient.clone()
    exact = weight.double() * math.exp(-lr) - lr * gradient.double()
    found = t.call(f"update(weight, gradient, {lr}, {name!r})")
    pair = isinstance(found, (tuple, list)) and len(found) == 2
    expect.true(pair, f"the result is {expect.show(found)}, expected a tensor and a text")
    precise = {"rtol": 1e-14, "atol": 1e-14} if dtype is torch.float64 else {}
    expect.equal(found[0], exact.to(dtype), what="the new weight", **precise)
    expect.equal(found[1], f"{name} updated", what="the line for the log")
    expect.unchanged(t.weight, weight, what="`weight`")
    expect.unchanged(t.gradient, gradient, what="`gradient`")
    return t.update


@exercise.check(isolated=True, deadline=60)
def the_same_results(stop_recompiles):
    """The step and the log are what they were, call after call, in double precision too"""
    setup = "weight = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])\ngradient = weight.flip(0) / 8"
    update = _step(stop_recompiles, setup, 0.1, "head", torch.float32)
    weight, gradient = torch.ones(3, 2).t().expand(4, 2, 3)[1], torch.arange(6.0).view(2, 3)
    for lr, name in ((0.5, "head"), (0.25, "body"), (0.0, "tail"), (1.0, "tail")):
        call = f"update(torch.ones(2, 3), torch.arange(6.0).view(2, 3), {lr}, {name!r})"
        with expect.situation(f"{call}  # the same update, called again"):
            found = update(weight, gradient, lr, name)
            expect.equal(found[0], weight * math.exp(-lr) - lr * gradient, what="the new weight")
            expect.equal(found[1], f"{name} updated", what="the line for the log")
    setup = "weight = torch.arange(6).view(2, 3).double()\ngradient = weight / 7"
    _step(stop_recompiles, setup, 0.1, "head", torch.float64)


@exercise.check(isolated=True, deadline=60)
def learning_rates(stop_recompiles):
    """A learning rate that changes with every call, compiled with `aot_eager`"""
    _count(stop_recompiles, [(4, lr, "head") for lr in (0.1, 0.05, 0.2)], "aot_eager")


@exercise.check(isolated=True, deadline=60)
def names(stop_recompiles):
    """A name that changes with every call"""
    _count(stop_recompiles, [(4, 0.1, name) for name in ("head", "body", "tail")])


_MIXED = [(4, 0.1, "head"), (4, 0.2, "head"), (4, 0.2, "body"), (6, 0.2, "body"), (6, 0.3, "head")]
_MORE = [(9, 0.4, "tail"), (2, 0.5, "bias"), (7, 0.6, "more"), (5, 0.7, "last"), (8, 0.8, "head")]


@exercise.check(isolated=True, deadline=60)
def all_at_different_times(stop_recompiles):
    """Rates, names and sizes that begin to change one after another"""
    _count(stop_recompiles, _MIXED + _MORE)


@exercise.check(isolated=True, deadline=60)
def two_backends(stop_recompiles):
    """Two calls of `stop_recompiles`, each with a backend of its own"""
    one, other = _Counting(), _Counting()
    lines = [f"{update} = stop_recompiles(backend={update}_backend)" for update in ("one", "other")]
    with expect.situation(*lines, "# then each is called, with 4 rows, a rate of 0.1 and the name 'head'"):
        for update in [stop_recompiles(backend=one), stop_recompiles(backend=other)]:
            update(torch.ones(4, 3), torch.ones(4, 3), 0.1, "head")
        ran = f"graphs of `one_backend` ran {one.runs} times, of `other_backend` {other.runs} times"
        expect.true((one.runs, other.runs) == (1, 1), ran, "expected: one graph of each")


# --- the mistakes -----------------------------------------------------------------------------------------


def _formula(weight, gradient, lr):
    return weight * torch.exp(-lr) - lr * gradient


def _around(step, dtype=torch.float64):
    """The update around a compiled step of three tensors."""

    def update(weight, gradient, lr, name):
        return step(weight, gradient, torch.tensor(lr, dtype=dtype)), f"{name} updated"

    return update


@exercise.mistake
def rate_stays_a_number(backend):
    """The learning rate goes into the compiled part as a Python number. The code is then made for this
    number, or made again once the compiler has seen that it varies; and where something needs its value
    (`alpha=`, `math.exp`, `torch.tensor`), for each number. A tensor without dimensions is not looked
    into."""

    @torch.compile(backend=backend, dynamic=True)
    def step(weight, gradient, lr):
        return torch.sub(weight * math.exp(-lr), gradient, alpha=lr)

    return lambda weight, gradient, lr, name: (step(weight, gradient, lr), f"{name} updated")


@rate_stays_a_number.form
def rate_learned_too_late(backend):
    @torch.compile(backend=backend)
    def step(weight, gradient, decay, lr):
        return weight * decay - gradient * lr

    return lambda weight, gradient, lr, name: (
        step(weight, gradient, math.exp(-lr), lr),
        f"{name} updated",
    )


@rate_stays_a_number.form
def rate_made_a_tensor_inside(backend):
    @torch.compile(backend=backend, dynamic=True)
    def step(weight, gradient, lr):
        return _formula(weight, gradient, torch.tensor(lr, dtype=torch.float64))

    return lambda weight, gradient, lr, name: (step(weight, gradient, lr), f"{name} updated")


@exercise.mistake
def only_dynamic(backend):
    """`dynamic=True` is not enough. It makes variables of the sizes, and of numbers as long as nothing needs
    their value. A text stays a constant, and so does a rate that `math.exp` or `alpha=` gets: both still go
    in, and each new one is compiled for."""

    @torch.compile(backend=backend, dynamic=True)
    def update(weight, gradient, lr, name):
        return torch.sub(weight * math.exp(-lr), gradient, alpha=lr), f"{name} updated"

    return update


@exercise.mistake
def name_goes_in(backend):
    """The name goes into the compiled part. A text is a constant for the compiler: it is never a variable, so
    each name gets code of its own. Put the line for the log together outside."""

    @torch.compile(backend=backend)
    def step(weight, gradient, lr, name):
        return _formula(weight, gradient, lr), f"{name} updated"

    def update(weight, gradient, lr, name):
        return step(weight, gradient, torch.tensor(lr, dtype=torch.float64), name)

    return update


@exercise.mistake
def raises_the_limit(backend):
    """You raised the limit, and the function is compiled as often as before, or more often: it no longer
    stops after eight. A higher limit hides the symptom; what has to change is what the compiled code depends
    on."""
    torch._dynamo.config.recompile_limit = 1000

    @torch.compile(backend=backend)
    def update(weight, gradient, lr, name):
        return weight * math.exp(-lr) - lr * gradient, f"{name} updated"

    return update


@exercise.mistake
def not_compiled(backend):
    """No graph is made: nothing is compiled any more. That stops the recompilations, and it takes with
    them what the compiler was for."""
    return _around(_formula)


@not_compiled.variant
def compiles_nothing(backend):
    update = _around(torch.compile(_formula, backend=backend))

    def without_the_compiler(*arguments):
        with torch.compiler.set_stance("force_eager"):
            return update(*arguments)

    return without_the_compiler


@exercise.mistake
def only_a_part(backend):
    """A part of the step stays outside of the graph: there an operator as large as `weight` runs by itself,
    and reads and writes memory once more. Give the compiler the whole formula; only what is small, such as
    the rate, is made outside."""
    decay = torch.compile(lambda weight, lr: weight * torch.exp(-lr), backend=backend)

    def update(weight, gradient, lr, name):
        decayed = decay(weight, torch.tensor(lr, dtype=torch.float64))
        return torch.sub(decayed, gradient, alpha=lr), f"{name} updated"

    return update


@only_a_part.variant
def only_the_factor(backend):
    factor = torch.compile(lambda lr: torch.exp(-lr), backend=backend)

    def update(weight, gradient, lr, name):
        rate = torch.full((), lr, dtype=torch.float64)
        return factor(rate) * weight - gradient * rate, f"{name} updated"

    return update


@exercise.mistake
def rate_in_single_precision(backend):
    """For weights in double precision the rate has too few digits: `torch.tensor(0.1)` is float32, and
    that is wrong in the ninth digit. Give the tensor the dtype of the weight, or always float64."""
    return _around(torch.compile(_formula, backend=backend), dtype=torch.float32)


@rate_in_single_precision.variant
def default_dtype(backend):
    step = torch.compile(lambda w, g, r: w * torch.exp(r.neg()) - r * g, backend=backend, dynamic=True)

    def update(weight, gradient, lr, name):
        return step(weight, gradient, torch.full((), lr)), name + " updated"

    return update


@exercise.mistake
def leaves_out_the_log(backend):
    """The line for the log is gone, or a part of it is missing. It was in the way of the compiler, and
    it is part of the result: put it together outside of what is compiled."""
    step = _around(torch.compile(_formula, backend=backend))
    return lambda weight, gradient, lr, name: (step(weight, gradient, lr, name)[0], "")


@exercise.mistake
def static_sizes(backend):
    """Code is made for each size. `dynamic=False` does not stop the compiler from compiling: it forbids
    the one thing that would save it from doing so, code in which the size is a variable."""
    return _around(torch.compile(_formula, backend=backend, dynamic=False))


@exercise.mistake
def another_backend(backend):
    """It is compiled, and not with the backend that you were given. `torch.compile` takes one as `backend=`;
    without it, that is Inductor."""
    return _around(torch.compile(_formula, backend="eager"))


@another_backend.variant
def backend_of_its_own(backend):
    return _around(torch.compile(_formula, backend=lambda graph, example_inputs: graph.forward, dynamic=True))


_kept = {}


@exercise.mistake
def shares_one(backend):
    """All functions that `stop_recompiles` returned share one compiled function, which stands in a global. It
    has the backend of one call, and the backends of the others get no graph. What was done too often is done
    in the calls of `update`; `stop_recompiles` itself may compile each time, and its inner function keeps
    what it has made."""
    step = _kept.setdefault("step", torch.compile(_formula, backend=backend))
    return _around(step)


@shares_one.variant
def keeps_the_update(backend):
    if "update" not in _kept:
        _kept["update"] = _around(torch.compile(_formula, backend=backend, dynamic=True))
    return _kept["update"]


@shares_one.variant
def keeps_the_last(backend):
    _kept["last"] = torch.compile(_formula, backend=backend)
    return _around(lambda *tensors: _kept["last"](*tensors))
