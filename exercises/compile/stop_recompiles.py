"""Repair: compiled once, or twice

`stop_recompiles(backend)` returns a compiled `update(weight, gradient, lr, name)`, one step of an optimizer:
`weight * exp(-lr) - lr * gradient` and the text `f"{name} updated"`. It is right, and is compiled again in
nearly every call, because a rate, a name or a size has changed. After eight versions the compiler gives up.

Mend the function, not the limit. You decide what goes into the compiled part.

- **At most two graphs** are made, whatever rates, names and sizes come.
- Each call runs one graph. All that is as large as `weight` is computed in it.
- Results stay the same, in float64 with its digits.

`weight` and `gradient` have the shape `(rows, 3)`, two rows or more; `lr` is a `float`. `backend` is what
`torch.compile` takes.
"""

import math

import torch

from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "Compiled code may be used again when all that was assumed of its inputs still holds. What is "
        "assumed of a tensor, what of a Python number, what of a text? Which of the three can become another "
        "one without the code becoming wrong?",
        "Not all of `update` has to be compiled: the log is no business of a graph. And the elements of a "
        "tensor are never looked at, nor is that of a tensor without dimensions.",
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


def _counted(stop_recompiles, *lines, inner=""):
    setup = (
        "from course_utils.exercise.kits.graphs_compiled import Counting",
        f"backend = Counting({inner})",
        "update = stop_recompiles(backend)",
        "weight = gradient = torch.ones(4, 3)",
        *lines,
    )
    return expect.given("\n".join(setup), stop_recompiles=stop_recompiles)


def _at_most_two(backend):
    graphs = len(backend.graphs)
    expect.true(graphs > 0, "no graph came to `backend`", "expected: one or two")
    expect.at_most(graphs, 2, "graphs made")


@exercise.check(isolated=True, deadline=60)
def results(stop_recompiles):
    """The step and the log are what they were, call after call

    A graph computes in the dtype of its inputs. A tensor without dimensions leaves the dtype of the result to
    the weight and brings its own digits with it: made of a Python number, it is float32 unless something else
    is asked for.
    """
    setup = "update = stop_recompiles('eager')\nweight = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])"
    with Rows() as rows:
        for label, dtype, rtol in (("float32", torch.float32, 1e-5), ("float64", torch.float64, 1e-14)):
            with rows.of(label):
                t = expect.given(setup, stop_recompiles=stop_recompiles, dtype=dtype)
                t.run("weight = weight.to(dtype)\ngradient = weight.flip(0) / 7")
                weight, gradient = t.weight.clone(), t.gradient.clone()
                for lr, name in ((0.1, "head"), (0.5, "body"), (0.0, "tail")):
                    found = t.call(f"update(weight, gradient, {lr}, {name!r})")
                    pair = isinstance(found, (tuple, list)) and len(found) == 2
                    expect.true(pair, f"the result is {expect.show(found)}, expected a tensor and a text")
                    exact = weight.double() * math.exp(-lr) - lr * gradient.double()
                    expect.equal(found[0], exact.to(dtype), what="the new weight", rtol=rtol, atol=rtol)
                    expect.equal(found[1], f"{name} updated", what="the line for the log")
                expect.unchanged(t.weight, weight, what="`weight`")
                expect.unchanged(t.gradient, gradient, what="`gradient`")


@exercise.check(isolated=True, deadline=60)
def in_the_graph(stop_recompiles):
    """Each call runs one graph, which computes all that is large

    What is left out of a graph runs by itself: it reads and writes memory once more, and nothing is fused
    with it. What is small, such as a rate, costs little where it is.
    """
    t = _counted(stop_recompiles, "update(weight, gradient, 0.1, 'head')")
    expect.true(t.backend.runs == 1, f"graphs of `backend`: {t.backend}", "expected: one that ran once")
    with t.backend.outside(size=12) as names:
        t.run("update(weight, gradient, 0.1, 'head')")
    expect.true(t.backend.runs == 2, f"graphs of `backend`: {t.backend}", "expected: one that ran twice")
    told = f"outside of the graph there ran, on 12 elements: {', '.join(names)}"
    expect.true(not names, told, "expected: what is as large as `weight` is computed in the graph")


@exercise.check(isolated=True, deadline=60)
def learning_rates(stop_recompiles):
    """A learning rate that changes with every call, compiled with `aot_eager`

    A float that comes in is a constant the first time and a variable from the second value on, unless its
    value is needed while the graph is made. `math.exp` needs it; AOTAutograd, on which Inductor builds, needs
    it for an `alpha=` and for `torch.tensor(lr)`. Then each value gets a graph. The elements of a tensor are
    never looked at.
    """
    loop = "for lr in (0.1, 0.05, 0.2):\n    update(weight, gradient, lr, 'head')"
    _at_most_two(_counted(stop_recompiles, loop, inner="'aot_eager'").backend)


@exercise.check(isolated=True, deadline=60)
def names(stop_recompiles):
    """A name that changes with every call

    A text that goes into the compiled part is guarded: it is never a variable, so each one gets code of its
    own. What no operator computes can be done outside.
    """
    loop = "for name in ('head', 'body', 'tail'):\n    update(weight, gradient, 0.1, name)"
    _at_most_two(_counted(stop_recompiles, loop).backend)


@exercise.check(isolated=True, deadline=60)
def sizes(stop_recompiles):
    """A size that changes with every call

    The first size is a constant, and at the second the compiler makes a graph in which it is a variable:
    that serves all others, of two rows and more. `dynamic=True` begins with the variable, and
    `dynamic=False` forbids it.
    """
    loop = "for rows in (4, 6, 9, 2):\n    update(torch.ones(rows, 3), torch.ones(rows, 3), 0.1, 'head')"
    _at_most_two(_counted(stop_recompiles, loop).backend)


_CALLS = """
calls = [(4, 0.1, "head"), (4, 0.2, "head"), (4, 0.2, "body"), (6, 0.2, "body"), (6, 0.3, "head")]
calls += [(9, 0.4, "tail"), (2, 0.5, "bias"), (7, 0.6, "more"), (5, 0.7, "last"), (8, 0.8, "head")]
for rows, lr, name in calls:
    update(torch.ones(rows, 3), torch.ones(rows, 3), lr, name)
"""


@exercise.check(isolated=True, deadline=60)
def one_after_another(stop_recompiles):
    """Rates, names and sizes that begin to change one after another

    The compiler learns that something varies when it sees it vary. Two things that begin to vary in different
    calls cost a graph each, besides the first: no more than one may be left to learn.
    """
    t = _counted(stop_recompiles, _CALLS.strip())
    _at_most_two(t.backend)
    expect.true(
        t.backend.runs == 10, f"graphs ran {t.backend.runs} times", "expected: once in each of 10 calls"
    )


@exercise.check(isolated=True, deadline=60)
def two_backends(stop_recompiles):
    """Two calls of `stop_recompiles`, each with a backend of its own

    What was compiled belongs to one backend. A compiled function that is kept for later calls, in a global
    say, goes on with the first one, and the others get no graph.
    """
    t = _counted(
        stop_recompiles,
        "other = Counting()",
        "second = stop_recompiles(other)",
        "update(weight, gradient, 0.1, 'head')",
        "second(weight, gradient, 0.1, 'head')",
    )
    ran = f"graphs of `backend` ran {t.backend.runs} times, those of `other` {t.other.runs} times"
    expect.true((t.backend.runs, t.other.runs) == (1, 1), ran, "expected: once each")
