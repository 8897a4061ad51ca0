"""A backend that counts

`torch.compile(f, backend=b)` calls `b(graph_module, example_inputs)` for each graph, while `f` is being
compiled. What `b` returns runs in place of the graph: it takes the graph's inputs and returns its outputs, as
a tuple. Write a backend that runs each graph unchanged, and counts.

- `operators` has a list for each graph, in order: the names of what it calls. Those are the nodes of
  `graph_module.graph.nodes` whose `op` begins with `"call_"`. The name is `node.target.__name__`, or
  `node.target` where that is a string.
- `runs` has a number for each graph: how often it has run. Compiling isn't a run.

After `f = torch.compile(lambda x: x.sin() + 1, backend=counts)` and two calls `f(x)`: `[["sin", "add"]]` and
`[2]`
"""

import torch

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "Your backend is called while the function is being compiled. What has to happen when the function "
        "is called later, and where can you put code that runs then?",
        "Return a function that you define inside `__call__`, so that each graph gets its own. It can call "
        "the graph module like any module, and use every name of the call that made it.",
        "The function must know its own graph: store the graph's place in your lists before you define it. "
        "A place that is looked up later belongs to another graph.",
    ],
)


@exercise.starter
class CountingBackend:
    """`operators`: a list of names for each graph; `runs`: how often each has run"""

    def __init__(self):
        self.operators = []
        self.runs = []

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: list):
        raise NotImplementedError


_GRAPH = "counts = CountingBackend()\ngraph = torch.fx.symbolic_trace({})\n"


def _books(counts, operators, runs):
    expect.equal(counts.operators, operators, what="`counts.operators`")
    expect.equal(counts.runs, runs, what="`counts.runs`")


@exercise.check(given=_GRAPH.format("lambda x: (x.sin(),)"))
def two_backends(t):
    """Two backends count separately

    A list in the body of a class, or as a default argument, is made once and belongs to all objects of the
    class. One that is made in `__init__` belongs to one.
    """
    t.run("other, x = torch.fx.symbolic_trace(lambda x: (x.cos(),)), torch.ones(3)")
    t.run("mine, yours = CountingBackend(), CountingBackend()")
    t.run("first, second = mine(graph, [x]), yours(other, [x])")
    t.run("first(x), first(x), second(x)")
    for name in ("mine", "yours"):
        graphs = len(getattr(t, name).runs), len(getattr(t, name).operators)
        told = f"`{name}.runs` and `{name}.operators` have {graphs[0]} and {graphs[1]} entries"
        expect.true(graphs == (1, 1), told, f"expected: one each, for the graph that `{name}` was given")


@exercise.check(given=_GRAPH.format("lambda x: (x.add_(1),)") + "x = torch.zeros(3)")
def handed_over(t):
    """Compiling a graph doesn't run it

    A backend is called while the function is being compiled, and the inputs are only examples. A graph that
    runs on them may write in place once too often, or draw random numbers that nobody asked for.
    """
    with measure.operators() as ran:
        t.call("counts(graph, [x])")
    expect.equal(len(ran.calls), 0, what="the number of operators that ran")
    expect.equal(t.counts.runs, [0], what="`counts.runs`")


@exercise.check
def results_of_the_graph(CountingBackend):
    """The returned function gives the outputs of the graph, as a tuple

    A graph of Dynamo's returns its outputs as a tuple, even a single one. It computes with what it is called
    with; `example_inputs` are examples. Autograd records its operators like any others. A node whose result
    nobody uses may write in place: it has to run too.
    """
    x, y = "x = torch.tensor([1.0, 2.0], requires_grad=True)", "y = torch.tensor([[3.0], [4.0]])"
    names = {"CountingBackend": CountingBackend}
    with Rows() as rows:
        with rows.of("three outputs"):
            t = expect.given(_GRAPH.format("lambda x, y: (x * y, y.sin(), x + 1)") + f"{x}\n{y}", **names)
            found = t.call("counts(graph, [0 * x, 0 * y])(x, y)")
            expect.equal(found, (t.x * t.y, t.y.sin(), t.x + 1))
            expect.in_graph(found[0], what="the first output", of="`x`")
        with rows.of("one output"):
            t = expect.given(_GRAPH.format("lambda x: (x.sin(),)") + x, **names)
            expect.equal(t.call("counts(graph, [x])(x)"), (t.x.sin(),))
        with rows.of("a write in place"):
            code = _GRAPH.format("lambda x: (x * 2, x.add_(1))[:1]")
            t = expect.given(f"{code}x = torch.arange(3.0)", **names)
            expect.equal(t.call("counts(graph, [x])(x)"), (2 * torch.arange(3.0),))
            expect.equal(t.x, 1 + torch.arange(3.0), what="`x` afterwards")


@exercise.check(
    given=f"{_GRAPH}x = torch.ones(2, 3)".format,
    cases={
        "`x.sin() + 1`": ("lambda x: (x.sin() + 1,)", ["sin", "add"]),
        "`x.sin() + x.sin()`": ("lambda x: (x.sin() + x.sin(),)", ["sin", "sin", "add"]),
        "two modules": ("nn.Sequential(nn.Linear(3, 4), nn.ReLU())", ["0", "1"]),
        "a tensor that the graph keeps": ("lambda x: (x * torch.ones(3),)", ["mul"]),
        "no call at all": ("lambda x: (x,)", []),
    },
)
def names_of_operators(t, names):
    """The names of all calls, and of nothing else

    A node is an input (`placeholder`), an attribute of the module (`get_attr`), a call, or the `output`.
    There are three ops of calls: `call_function`, whose target is the function itself, and `call_method` and
    `call_module`, whose target is a string. `node.name` names the result, and is unique.
    """
    t.call("counts(graph, [x])")
    expect.equal(t.counts.operators, [names], what="`counts.operators`")


@exercise.check(
    given=f"{_GRAPH}other = torch.fx.symbolic_trace(lambda x: (x + 1,))\nx = torch.ones(3)".format,
    cases={
        "different operators": ("lambda x: (x.sin(),)", "sin", torch.ones(3).sin()),
        "the same operators": ("lambda x: (x + 2,)", "add", torch.ones(3) + 2),
    },
)
def each_graph_has_its_own_number(t, name, wanted):
    """Two graphs of one backend that run in turn

    The backend is called for both graphs before the first of them runs. What a graph looks up while it runs,
    in `self` or at the end of a list, belongs to the graph that came last. A local name of the backend's call
    (a closure) belongs to its own graph. Two graphs may have the same operators and still be two.
    """
    t.run("first, second = counts(graph, [x]), counts(other, [x])")
    found = t.call("[first(x), second(x), first(x), first(x)]")
    expect.equal(found, [(wanted,), (t.x + 1,), (wanted,), (wanted,)])
    _books(t.counts, [[name], ["add"]], [3, 1])
    with measure.operators() as ran:
        t.run("second(x)")
    expect.equal(len(ran.calls), 1, what="the number of operators in the last run")


_COMPILED = """
counts = CountingBackend()
def function(x):
    y = x.sin()
    return y * x + 1 if y.sum() > 0 else y - x
f = torch.compile(function, backend=counts)
g = torch.compile(lambda x: x.exp(), backend=counts)
up, down = torch.tensor([1.0, 2.0]), torch.tensor([-1.0, -2.0])
"""


@exercise.check(isolated=True, deadline=60, given=_COMPILED)
def compiled_functions(t):
    """Two compiled functions: one has a branch, the other is compiled again for another dtype

    The backend is called for each compilation. When compiled code is used again, the function that the
    backend returned is called. A branch on an element cuts `f` into pieces, and each is a graph. Compiling
    again for another dtype makes another graph with the same names.
    """
    found = t.call("[f(up), f(down), g(up), f(up), g(up.double()), g(up), f(up)]")
    up, down, exp = t.up, t.down, t.up.exp()
    above, below = up.sin() * up + 1, down.sin() - down
    expect.equal(found, [above, below, exp, above, up.double().exp(), exp, above])
    _books(t.counts, [["sin", "sum", "gt"], ["mul", "add"], ["sub"], ["exp"], ["exp"]], [4, 3, 1, 2, 1])
