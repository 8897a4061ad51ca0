"""A backend is called once for each graph, while the function is being compiled. What is to happen later,
when the graph runs, must be in the function that it returns. Each call of the backend makes a function of its
own, which remembers its graph and the graph's place in the lists: a closure. Had it looked the place up when
it runs, it would find that of the graph that came last.

`graph_module` is an ordinary module, and calling it runs the graph operator by operator. That is all that
torch's own backend `"eager"` does. A real backend would translate the graph here, and return what it made.
"""

import functools

import torch


class CountingBackend:
    """`operators`: a list of names for each graph; `runs`: how often each has run"""

    def __init__(self):
        self.operators = []
        self.runs = []

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: list):
        names = []
        for node in graph_module.graph.nodes:
            if node.op == "call_function":
                names.append(node.target.__name__)
            elif node.op in ("call_method", "call_module"):
                names.append(node.target)
        place = len(self.runs)
        self.operators.append(names)
        self.runs.append(0)

        def run(*inputs):
            self.runs[place] += 1
            return graph_module(*inputs)

        return run


# Other right answers


class _Interprets:
    """Keeps a record for each graph, and lets an interpreter run it node by node."""

    def __init__(self):
        self.records = []

    def __call__(self, graph_module, example_inputs):
        record = _Record(graph_module)
        self.records.append(record)
        return record

    @property
    def operators(self):
        return [record.names for record in self.records]

    @property
    def runs(self):
        return [record.count for record in self.records]


class _Record:
    def __init__(self, graph_module):
        called = (
            n.target for n in graph_module.graph.nodes if n.op not in ("placeholder", "get_attr", "output")
        )
        self.names = [target if isinstance(target, str) else target.__name__ for target in called]
        self.count, self.graph_module = 0, graph_module

    def __call__(self, *inputs):
        self.count += 1
        return torch.fx.Interpreter(self.graph_module).run(*inputs)


class _BindsThePlace:
    """One method runs all graphs; what it must know of one is bound to it."""

    def __init__(self):
        self.operators, self.runs = [], []

    def __call__(self, graph_module, example_inputs):
        called = [node.target for node in graph_module.graph.nodes if node.op.startswith("call")]
        self.operators += [[getattr(target, "__name__", target) for target in called]]
        self.runs += [0]
        return functools.partial(self.run, len(self.runs) - 1, graph_module.forward)

    def run(self, place, function, *inputs):
        outputs = function(*inputs)
        self.runs[place] += 1
        return outputs


class _HangsOnTheModule:
    """Gives the module back, with a hook that is called before each run."""

    def __init__(self):
        self.operators, self.runs = [], []

    def __call__(self, graph_module, example_inputs):
        nodes = [node for node in graph_module.graph.nodes if node.op.startswith("call")]
        self.operators.append([n.target.__name__ if n.op == "call_function" else n.target for n in nodes])
        self.runs.append(0)
        graph_module.register_forward_pre_hook(functools.partial(self.count, len(self.runs) - 1))
        return graph_module

    def count(self, place, module, inputs):
        self.runs[place] += 1


also_right = [_Interprets, _BindsThePlace, _HangsOnTheModule]
