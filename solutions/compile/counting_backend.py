"""The compiler calls a backend for each graph, while it compiles the function. Code that runs later, with the
graph, must be in the function that the backend returns. Each call of the backend makes a new function, which
remembers its graph and the graph's place in the lists: a closure. A place that is looked up when the graph
runs would belong to the graph that came last.

`graph_module` is an ordinary module, and calling it runs the graph operator by operator. Torch's own backend
`"eager"` does no more than that. A real backend would translate the graph here, and return the result.
"""

import functools

import torch


class CountingBackend:
    """`operators`: a list of names for each graph; `runs`: how often each has run"""

    def __init__(self):
        self.operators = []
        self.runs = []

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: list):
        called = [node.target for node in graph_module.graph.nodes if node.op.startswith("call_")]
        place = len(self.runs)
        self.operators.append([getattr(target, "__name__", target) for target in called])
        self.runs.append(0)

        def run(*inputs):
            self.runs[place] += 1
            return graph_module(*inputs)

        return run


# Other right answers

from course_utils.exercise import Edit, Wrong


class _Interprets:
    """Keeps a record for each graph, and lets an interpreter run it node by node."""

    def __init__(self):
        self.records = []

    def __call__(self, graph_module, example_inputs):
        record = _Record(graph_module)
        self.records.append(record)
        return record

    operators = property(lambda self: [record.names for record in self.records])
    runs = property(lambda self: [record.count for record in self.records])


class _Record:
    def __init__(self, graph_module):
        targets = [n.target for n in graph_module.graph.nodes if n.op in ("call_function", "call_method")]
        targets += [n.target for n in graph_module.graph.nodes if n.op == "call_module"]
        self.names = [target if isinstance(target, str) else target.__name__ for target in targets]
        self.count, self.graph_module = 0, graph_module

    def __call__(self, *inputs):
        self.count += 1
        return torch.fx.Interpreter(self.graph_module).run(*inputs)


class _HangsOnTheModule(CountingBackend):
    """Gives the module back, with a hook that is called before each run."""

    def __call__(self, graph_module, example_inputs):
        super().__call__(graph_module, example_inputs)
        graph_module.register_forward_pre_hook(functools.partial(self.count, len(self.runs) - 1))
        return graph_module

    def count(self, place, module, inputs):
        self.runs[place] += 1


also_right = [_Interprets, _HangsOnTheModule]


# Mistakes


class SharesItsDefaults(CountingBackend):
    def __init__(self, operators=[], runs=[]):  # noqa: B006
        self.operators, self.runs = operators, runs


mistakes = [
    Edit("counts the last", "self.runs[place]", "self.runs[-1]", told_by="each_graph_has_its_own_number"),
    Edit(
        "runs what it is given",
        "(0)\n",
        "(0)\n        graph_module(*example_inputs)\n",
        told_by="handed_over",
    ),
    Edit(
        "first output alone",
        "graph_module(*inputs)",
        "graph_module(*inputs)[0]",
        told_by="results_of_the_graph",
    ),
    Edit("counts all nodes", ' if node.op.startswith("call_")', "", told_by="names_of_operators"),
    Edit("functions alone", '.startswith("call_")', ' == "call_function"', told_by="names_of_operators"),
    Edit("names of nodes", "[node.target for", "[node.name for", told_by="names_of_operators"),
    Edit(
        "runs on the examples",
        "graph_module(*inputs)",
        "graph_module(*example_inputs)",
        told_by="results_of_the_graph",
    ),
    Wrong(SharesItsDefaults, told_by="two_backends"),
]

not_tried = {
    "hard numbers": "the graph computes",
    "left alone": "a graph may write to its inputs",
    "seeds": "nothing is drawn",
}
