"""Repair: compiled once, or twice

`stop_recompiles(backend)` returns a compiled `update(weight, gradient, lr, name)`, one step of an optimizer:
`weight * exp(-lr) - lr * gradient` and the text `f"{name} updated"`. Its results are right, but it recompiles
in nearly every call, because a rate, a name or a size changed.

Mend the function, not the limit. You decide what goes into the compiled part.

- Compile **at most two graphs**, whatever rates, names and sizes come.
- Each call runs one graph, which computes everything as large as `weight`.
- Results stay the same, with all digits of float64.

`weight` and `gradient` have the shape `(rows, 3)`, two rows or more; `lr` is a `float`. Pass `backend` to
`torch.compile`.
"""

import math

import torch

from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=20,
    hints=[
        "What does compiled code assume about a tensor, a Python number, a text? Which of the three can "
        "change without making the code wrong?",
        "You needn't compile all of `update`: a graph can't make the text anyway. And elements that are only "
        "computed with have no guard, not even the one element of a tensor without dimensions.",
        "Compile an inner function of three tensors. Outside it, turn the learning rate into a tensor "
        "without dimensions, which leaves the weights their dtype, with enough digits for double precision. "
        "Sizes may vary: the second one becomes a symbol.",
    ],
)


@exercise.starter
def stop_recompiles(backend):
    """A compiled update(weight, gradient, lr, name) -> (new weight, line to log)"""

    @torch.compile(backend=backend)
    def update(weight, gradient, lr, name):
        decayed = weight * math.exp(-lr)
        return torch.sub(decayed, gradient, alpha=lr), f"{name} updated"

    return update


_COUNTED = """
from course_utils.exercise.kits.compiled import Counting
backend = Counting()
update = stop_recompiles(backend)
weight = gradient = torch.ones(4, 3)
"""


def _at_most_two(backend):
    expect.true(backend.graphs, f"graphs of `backend`: {backend}", "expected: one or two")
    expect.at_most(len(backend.graphs) + backend.elsewhere, 2, "graphs made")


@exercise.check(
    isolated=True,
    deadline=60,
    given="update = stop_recompiles('eager')\n"
    "weight = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=dtype)\ngradient = weight.flip(0) / 7",
    cases={"float32": (torch.float32, 1e-5), "float64": (torch.float64, 1e-14)},
)
def results(t, dtype, rtol):
    """The step and the log are what they were, call after call

    A rate without dimensions doesn't change the dtype of the new weight, but it brings its own digits. Made
    from a Python float, it's by default float32. The starter writes to neither tensor.
    """
    for lr, name in ((0.1, "head"), (0.5, "body"), (0.0, "tail")):
        weight = expect.left_alone(t.weight, what="`weight`")
        with weight, expect.left_alone(t.gradient, what="`gradient`"):
            found = t.call(f"update(weight, gradient, {lr}, {name!r})")
        pair = isinstance(found, (tuple, list)) and len(found) == 2
        expect.true(pair, f"the result is {expect.show(found)}, expected a tensor and a text")
        exact = t.weight.double() * math.exp(-lr) - lr * t.gradient.double()
        expect.equal(found[0], exact.to(dtype), what="the new weight", rtol=rtol, atol=rtol)
        expect.equal(found[1], f"{name} updated", what="the line for the log")
        t.run("weight, gradient = gradient + 1, weight")  # others of the same sizes


@exercise.check(isolated=True, deadline=60, given=_COUNTED)
def in_the_graph(t):
    """Each call runs one graph, which computes all that is large

    A graph goes to the backend that `torch.compile` was given. An operator outside the graph reads and writes
    memory once more, and isn't fused. Small things, such as a rate, cost little outside.
    """
    t.run("update(weight, gradient, 0.1, 'head')")
    expect.true(t.backend.runs == 1, f"graphs of `backend`: {t.backend}", "expected: one that ran once")
    with t.backend.outside(size=12) as names:
        t.run("update(weight, gradient, 0.1, 'head')")
    expect.true(t.backend.runs == 2, f"graphs of `backend`: {t.backend}", "expected: one that ran twice")
    told = f"outside of the graph there ran, on 12 elements: {', '.join(names)}"
    expect.true(not names, told, "expected: what is as large as `weight` is computed in the graph")


@exercise.check(isolated=True, deadline=60, given=_COUNTED.replace("Counting()", "Counting('aot_eager')"))
def learning_rates(t):
    """A learning rate that changes with every call, compiled with `aot_eager`

    A float argument may become a symbol at its second value, unless the value is needed while the graph is
    made. `math.exp` needs it; AOTAutograd, on which Inductor builds, needs it for `alpha=` and for
    `torch.tensor(lr)`. Then each value gets a graph. Elements of a tensor that are only computed with have no
    guard.
    """
    t.run("for lr in (0.1, 0.05, 0.2):\n    update(weight, gradient, lr, 'head')")
    _at_most_two(t.backend)


@exercise.check(isolated=True, deadline=60, given=_COUNTED)
def names(t):
    """A name that changes with every call

    The starter's compiled part puts the name into a text, so the name is guarded by its value, and each one
    gets code of its own. Do outside what no operator computes.
    """
    t.run("for name in ('head', 'body', 'tail'):\n    update(weight, gradient, 0.1, name)")
    _at_most_two(t.backend)


@exercise.check(isolated=True, deadline=60, given=_COUNTED)
def sizes(t):
    """A size that changes with every call

    The first size is a constant. At the second the compiler makes a graph with a symbol, which here serves
    all sizes of two rows and more. `dynamic=True` begins with the symbol; with `dynamic=False` each size gets
    a graph here.
    """
    t.run("for rows in (4, 6, 9, 2):\n    update(torch.ones(rows, 3), torch.ones(rows, 3), 0.1, 'head')")
    _at_most_two(t.backend)


_CALLS = """
calls = [(4, 0.1, "head"), (4, 0.2, "head"), (4, 0.2, "body"), (6, 0.2, "body"), (6, 0.3, "head")]
calls += [(9, 0.4, "tail"), (2, 0.5, "bias"), (7, 0.6, "more"), (5, 0.7, "last"), (8, 0.8, "head")]
for rows, lr, name in calls:
    update(torch.ones(rows, 3), torch.ones(rows, 3), lr, name)
"""


@exercise.check(isolated=True, deadline=60, given=_COUNTED)
def one_after_another(t):
    """Rates, names and sizes that begin to change one after another

    The compiler learns that something varies when it sees it change. Here a rate and a size that begin to
    vary in different calls cost a graph each, besides the first. So leave one for it to learn. Where
    compiling is forbidden, what has no graph runs in Python.
    """
    t.run(_CALLS)
    _at_most_two(t.backend)
    ran = f"graphs ran {t.backend.runs} times in 10 calls"
    expect.true(t.backend.runs == 10, ran, "expected: one in each call")


@exercise.check(isolated=True, deadline=60, given=_COUNTED)
def two_backends(t):
    """Two calls of `stop_recompiles`, each with a backend of its own

    Compiled code belongs to one backend. A compiled function that is kept, in a global for example, goes on
    with the first backend, and the others get no graph.
    """
    t.run("other = Counting()\nsecond = stop_recompiles(other)")
    t.run("update(weight, gradient, 0.1, 'head')\nsecond(weight, gradient, 0.1, 'head')")
    ran = f"graphs of `backend` ran {t.backend.runs} times, those of `other` {t.other.runs} times"
    expect.true((t.backend.runs, t.other.runs) == (1, 1), ran, "expected: once each")
