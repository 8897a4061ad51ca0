"""A backend that counts

`torch.compile(f, backend=b)` calls `b(graph_module, example_inputs)` once for each graph that it captures.
What `b` returns takes the place of that graph: a function of the graph's inputs that returns its outputs as a
tuple. Write a backend that lets every graph run as it is, and keeps books about it.

- `counts.operators` has one entry for each graph, in the order in which they came: the list of what it calls,
  in the order of its nodes. Of the nodes in `graph_module.graph.nodes` those count whose `op` is
  `"call_function"` (called `node.target.__name__`), `"call_method"` or `"call_module"` (both called
  `node.target`, which is a string).
- `counts.runs` has one number for each graph: how often it has run. It is 0 when the graph is handed over,
  which does not run it.
- The results are those of the graph: the same outputs, part of the same autograd graph, and written in place
  where the graph writes in place. Each run of your function runs the graph once.
- One backend may serve several functions, and then counts the graphs of all. Two backends know nothing of
  each other.

`counts = CountingBackend()`, `f = torch.compile(lambda x: x.sin() + 1, backend=counts)`. After `f(x)`
and `f(x)`: `counts.operators` → `[["sin", "add"]]`, `counts.runs` → `[2]`
"""

import re

import numpy as np
import torch

from course_utils import expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=15,
    hints=[
        "Your backend is called while the function is being compiled. What has to happen when the function "
        "is called later, and where can you put code that happens then?",
        "Return a function of your own, made anew in each call of the backend. It can use the graph module, "
        "which is called like any module, and what else it finds in the call that made it.",
        "Which graph is running must be known to the function itself: remember the place of the graph in "
        "your lists before you define it. A place that is looked up later is that of another graph.",
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


_MADE = """counts = CountingBackend()
graph = torch.fx.symbolic_trace({function})"""


def _given(CountingBackend, function, *more):
    setup = "\n".join([_MADE.format(function=function), *more])
    return expect.given(setup, CountingBackend=CountingBackend)


def _books(t, operators, runs=None, name="counts"):
    counts = getattr(t, name)
    expect.equal(_plain(counts.operators), operators, what=f"`{name}.operators`")
    if runs is not None:
        expect.equal(_plain(counts.runs), runs, what=f"`{name}.runs`")


def _plain(books):
    """Numbers of NumPy's as Python's; texts without addresses, which are others in each process."""
    if isinstance(books, (list, tuple)):
        return [_plain(entry) for entry in books]
    if isinstance(books, np.integer):
        return int(books)
    return re.sub(r" at 0x\w+", "", books) if isinstance(books, str) else books


def _outputs(found):
    told = f"it returned {expect.show(found)}", "expected: the outputs of the graph, as a tuple"
    expect.true(isinstance(found, (tuple, list)), *told)
    return found


@exercise.check(isolated=True, deadline=60)
def the_results_of_the_graph(CountingBackend):
    """What it returns computes what the graph computes; handing a graph over runs nothing"""
    x = "x = torch.tensor([1.0, 2.0], requires_grad=True)"
    t = _given(CountingBackend, "lambda x, y: (x * y, y.sin(), x + 1)", x, "y = torch.tensor([[3.0], [4.0]])")
    found = _outputs(t.call("counts(graph, [x, y])(x, y)"))
    expect.equal(found, (t.x * t.y, t.y.sin(), t.x + 1))
    expect.in_graph(found[0], what="the first output", of="`x`")
    expect.in_graph(found[2], what="the third output", of="`x`")
    t = _given(CountingBackend, "lambda x: (x.add_(1),)", "x = torch.zeros(3)")
    before = t.graph.code
    with measure.operators() as ran:
        run = t.call("counts(graph, [x])")
    expect.equal(len(ran.calls), 0, what="the number of operators that ran")
    expect.equal(t.graph.code, before, what="`graph.code`")
    made = "graph = torch.fx.symbolic_trace(lambda x: (x.add_(1),))"
    with expect.situation(made, "x = torch.zeros(3)", "counts(graph, [x])(x)"):
        found = _outputs(run(t.x))
        expect.equal(t.x, torch.ones(3), what="`x`, to which the graph adds 1 in place")
        expect.same_storage(found[0], t.x, what="the output", of="`x`")


@exercise.check(isolated=True, deadline=60)
def names_of_operators(CountingBackend):
    """Functions, methods and modules are named, and nothing else is"""
    x = "x = torch.ones(2, 3)"
    t = _given(CountingBackend, "lambda x: (torch.exp(x) + x.sin() + x.sin(), x.sum(0))", x)
    t.call("counts(graph, [x])")
    _books(t, [["exp", "sin", "add", "sin", "add", "sum"]])
    t = _given(CountingBackend, "nn.Sequential(nn.Linear(3, 4), nn.ReLU())", x)
    t.call("counts(graph, [x])")
    _books(t, [["0", "1"]])
    scale = f"counts = CountingBackend()\nscale = torch.tensor(2.0)\n{x}"
    traced = "graph = torch.fx.symbolic_trace(lambda x: (x.neg() * scale,))  # `scale` is an attribute"
    t = expect.given(f"{scale}\n{traced}", CountingBackend=CountingBackend)
    t.call("counts(graph, [x])")
    _books(t, [["neg", "mul"]])
    t = _given(CountingBackend, "lambda x: (x,)", x)
    t.call("counts(graph, [x])")
    _books(t, [[]])


@exercise.check(isolated=True, deadline=60)
def each_graph_has_its_own_number(CountingBackend):
    """Two graphs of one backend that run in turn"""
    second = "other = torch.fx.symbolic_trace(lambda x: (x + 1,))"
    made = "first, second = counts(graph, [x]), counts(other, [x])"
    t = _given(CountingBackend, "lambda x: (x.sin(),)", second, "x = torch.ones(3)", made)
    _books(t, [["sin"], ["add"]], [0, 0])
    t.call("[first(x), second(x), first(x), first(x)]")
    _books(t, [["sin"], ["add"]], [3, 1])
    with measure.operators() as ran:
        t.call("second(x)")
    expect.equal(len(ran.calls), 1, what="the number of operators in one run")
    _books(t, [["sin"], ["add"]], [3, 2])


@exercise.check(isolated=True, deadline=60)
def two_backends(CountingBackend):
    """Two backends know nothing of each other"""
    both = "mine, yours = CountingBackend(), CountingBackend()\nx = torch.ones(3)"
    other = "other = torch.fx.symbolic_trace(lambda x: (x.cos(),))"
    made = "first, second = mine(graph, [x]), yours(other, [x])"
    t = _given(CountingBackend, "lambda x: (x.sin(),)", other, both, made)
    t.call("[first(x), first(x), second(x)]")
    _books(t, [["sin"]], [2], "mine")
    _books(t, [["cos"]], [1], "yours")
    expect.equal((t.counts.operators, t.counts.runs), ([], []), what="what a backend without graphs counts")


_BRANCHES = """counts = CountingBackend()
def function(x): y = x.sin(); return (y * x + 1, x) if y.sum() > 0 else (y - x, y)
f = torch.compile(function, backend=counts)
g = torch.compile(lambda x: x.exp(), backend=counts)
up, down = [torch.tensor([a, 2 * a], requires_grad=True) for a in (1.0, -1.0)]"""


@exercise.check(isolated=True, deadline=60)
def compiled_functions(CountingBackend):
    """Two functions share a backend: one has a branch, the other is compiled again for a dtype"""
    t = expect.given(_BRANCHES, CountingBackend=CountingBackend)
    found = t.call("[f(up), f(down), g(up), f(up), g(up.double()), g(up), f(up)]")
    up, down, exp = t.up, t.down, t.up.exp()
    above, below = (up.sin() * up + 1, up), (down.sin() - down, down.sin())
    expect.equal(found, [above, below, exp, above, up.double().exp(), exp, above])
    expect.in_graph(found[0][0], what="`f(up)[0]`", of="`up`")
    _books(t, [["sin", "sum", "gt"], ["mul", "add"], ["sub"], ["exp"], ["exp"]], [4, 3, 1, 2, 1])


# --- the mistakes -----------------------------------------------------------------------------------------


def _names(graph_module):
    called = [node for node in graph_module.graph.nodes if node.op.startswith("call_")]
    return [getattr(node.target, "__name__", node.target) for node in called]


class _Books:
    def __init__(self):
        self.operators, self.runs = [], []

    def note(self, graph_module):
        """Notes a graph; its place in the lists."""
        self.operators.append(_names(graph_module))
        self.runs.append(0)
        return len(self.runs) - 1

    def counted(self, place, function):
        def run(*inputs):
            self.runs[place] += 1
            return function(*inputs)

        return run


@exercise.mistake
class CountsTheLast(_Books):
    """Every run is counted for the graph that came last, or even runs it. Which graph is running must be
    known to the function that you return: take its place when the graph is handed over, not when it runs."""

    def __call__(self, graph_module, example_inputs):
        self.note(graph_module)

        def run(*inputs):
            self.runs[-1] += 1
            return graph_module(*inputs)

        return run


@CountsTheLast.variant
class LooksItsPlaceUpLater(_Books):
    def __call__(self, graph_module, example_inputs):
        self.latest = self.note(graph_module)

        def run(*inputs):
            outputs = graph_module.forward(*inputs)
            self.runs[self.latest] = self.runs[self.latest] + 1
            return outputs

        return run


@CountsTheLast.form
class RunsTheLast(_Books):
    def __call__(self, graph_module, example_inputs):
        self.latest, self.graph_module = self.note(graph_module), graph_module
        return self.run

    def run(self, *inputs):
        self.runs[self.latest] += 1
        return self.graph_module(*inputs)


@exercise.mistake
class SharesItsLists:
    """All backends write into the same lists. Make them in `__init__`: a list in the body of a class, or as a
    default argument, is made once."""

    operators, runs = [], []

    def __call__(self, graph_module, example_inputs):
        place = len(self.runs)
        self.operators.append(_names(graph_module))
        self.runs.append(0)
        return _Books.counted(self, place, graph_module)


@SharesItsLists.variant
class SharesItsDefaults:
    def __init__(self, operators=[], runs=[]):  # noqa: B006
        self.operators, self.runs = operators, runs

    def __call__(self, graph_module, example_inputs):
        self.runs += [0]
        self.operators += [_names(graph_module)]
        number = len(self.runs)

        def run(*inputs):
            self.runs[number - 1] += 1
            return graph_module.forward(*inputs)

        return run


@exercise.mistake
class RunsWhatItIsGiven(_Books):
    """Your backend runs the graph when it is handed over. It is called while the function is being compiled:
    the inputs are examples, and what the graph writes in place would be written once too often."""

    def __call__(self, graph_module, example_inputs):
        place = self.note(graph_module)
        graph_module(*example_inputs)
        return self.counted(place, graph_module)


@RunsWhatItIsGiven.form
class CountsTheRunOnWhatItIsGiven(_Books):
    def __call__(self, graph_module, example_inputs):
        run = self.counted(self.note(graph_module), graph_module)
        run(*example_inputs)
        return run


@exercise.mistake
class CountsHandovers(_Books):
    """You do not count runs. When the compiled function is called again, your backend is not called: the
    function that you returned is, so count there."""

    def __call__(self, graph_module, example_inputs):
        self.runs[self.note(graph_module)] = 1
        return graph_module.forward


@CountsHandovers.form
class CountsEqualGraphsTogether(_Books):
    def __call__(self, graph_module, example_inputs):
        names = _names(graph_module)
        if names not in self.operators:
            self.runs[self.note(graph_module)] = 1
        else:
            self.runs[self.operators.index(names)] += 1
        return graph_module.forward


@CountsHandovers.form
class NeverCounts(_Books):
    def __call__(self, graph_module, example_inputs):
        self.note(graph_module)
        return graph_module.forward


@exercise.mistake
class CountsAllNodes(_Books):
    """Your list holds every node. `placeholder` nodes are the inputs of the graph, `get_attr` reads what it
    keeps and `output` is what it returns: none of them calls anything."""

    def __call__(self, graph_module, example_inputs):
        place = self.note(graph_module)
        nodes = graph_module.graph.nodes
        self.operators[place] = [getattr(node.target, "__name__", node.target) for node in nodes]
        return self.counted(place, graph_module)


@CountsAllNodes.form
class CountsAttributes(_Books):
    def __call__(self, graph_module, example_inputs):
        place = self.note(graph_module)
        nodes = [n for n in graph_module.graph.nodes if n.op not in ("placeholder", "output")]
        self.operators[place] = [getattr(node.target, "__name__", node.target) for node in nodes]
        return self.counted(place, graph_module)


@exercise.mistake
class CountsFunctionsAlone(_Books):
    """Operators are missing: not all nodes that call something have the `op` `"call_function"`. `x.sin()` in
    the source is `"call_method"`, and a module of the graph `"call_module"`."""

    def __call__(self, graph_module, example_inputs):
        place = self.note(graph_module)
        nodes = [node for node in graph_module.graph.nodes if node.op == "call_function"]
        self.operators[place] = [node.target.__name__ for node in nodes]
        return self.counted(place, graph_module)


@exercise.mistake
class NamesOfNodes(_Books):
    """`node.name` is the name of the node's result, made so that no two are the same: the second `sin` of a
    graph is `sin_1`. What a node calls is its `target`."""

    def __call__(self, graph_module, example_inputs):
        place = self.note(graph_module)
        nodes = [node for node in graph_module.graph.nodes if node.op.startswith("call_")]
        self.operators[place] = [node.name for node in nodes]
        return self.counted(place, graph_module)


@exercise.mistake
class Targets(_Books):
    """You turned the targets into texts with `str`. The target of a `call_function` is the function itself,
    and its name is in `node.target.__name__`; only those of methods and modules are texts already."""

    def __call__(self, graph_module, example_inputs):
        place = self.note(graph_module)
        nodes = [node for node in graph_module.graph.nodes if node.op.startswith("call_")]
        self.operators[place] = [str(node.target) for node in nodes]
        return self.counted(place, graph_module)


@exercise.mistake
class FirstOutputAlone(_Books):
    """Your function takes an output out of its tuple. A graph has as many outputs as the code after it needs,
    and hands them back as a tuple, also when there is one."""

    def __call__(self, graph_module, example_inputs):
        return self.counted(self.note(graph_module), lambda *inputs: graph_module(*inputs)[0])


@FirstOutputAlone.form
class OneOutputAlone(_Books):
    def __call__(self, graph_module, example_inputs):
        def outputs(*inputs):
            found = graph_module(*inputs)
            return found[0] if len(found) == 1 else found

        return self.counted(self.note(graph_module), outputs)
