"""The kinds of nodes in an FX graph"""

import operator
import re

import torch

from course_utils.questions import Family

family = Family(section="A graph in Python")
STEPS = ["{}.sin()", "torch.cos({})", "{} + 1", "{}.relu()", "F.gelu({})", "{} * 2", "{}.exp()", "1 - {}"]
LAYERS = {"self.linear": "nn.Linear(2, 2)", "self.drop": "nn.Dropout(0.1)", "self.act": "nn.ReLU()"}
LAYERS |= {"self.shift": "nn.Parameter(torch.ones(2))"}
LAYERS |= {"self.body": "nn.Sequential(nn.Linear(2, 2), nn.Tanh())"}


@family.program
def graph(draw, level):
    used = draw.sample([*LAYERS], max(0, level - 2))
    values = [f"torch.add(x, {one})" if one == "self.shift" else f"{one}(x)" for one in used]
    values = [value if level == 3 else draw.choice(STEPS).format(value) for value in values]
    values += [one.format("x") for one in draw.sample(STEPS, [3, 4, 3, 1, 0][level - 1])]
    body = [f"x = {value}" for value in draw.sample(values, len(values))]
    if level != 3 and (level > 1 or draw.random() < 0.5):
        body[0] = f"for _ in range({draw.choice([2, 3])}):\n    {body[0]}"
    kinds = "'call_function', 'call_method'"
    if level >= 3:
        kinds += ", 'call_module'"
        lines = ["class Net(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        lines += [f"        {one} = {LAYERS[one]}" for one in used]
        lines += ["    def forward(self, x):", *_indented(body, 8)]
    else:
        lines = ["def f(x):", *_indented(body, 4)]
    lines.append(f"graph = torch.fx.symbolic_trace({'Net()' if level >= 3 else 'f'}).graph")
    lines += ["ops = [node.op for node in graph.nodes]", f"[ops.count(kind) for kind in ({kinds})]"]
    return "\n".join(lines)


def _indented(body, by):
    return [" " * by + line for line in "\n".join([*body, "return x"]).splitlines()]


def _were(run, kind_of):
    """What the last line would show, were these the kinds of the nodes."""
    made = run.names["Net"]() if "Net" in run.names else run.names["f"]
    ops = [kind_of(node) for node in torch.fx.symbolic_trace(made).graph.nodes]
    return [ops.count(kind) for kind in re.findall(r"'(\w+)'", run.code)]


@family.belief
def method_or_function(run):
    """`x.sin()` and `torch.sin(x)` are the same node, a `call_function`

    FX writes down how it was called. A method is `call_method`; `+` and `*` are functions of the module
    `operator`. Exported graphs have an operator of torch in all cases.

        [node.op for node in torch.fx.symbolic_trace(lambda x: torch.sin(x).sin() + 1).graph.nodes]
    """
    return _were(run, lambda node: node.op.replace("call_method", "call_function"))


@family.belief
def operators_are_methods(run):
    """`x + 1` is a method of `x`, so it's a `call_method`

    What FX writes down for it is `operator.add`, a function: `call_function`.

        [node.op for node in torch.fx.symbolic_trace(lambda x: x + 1).graph.nodes]
    """
    return _were(run, lambda node: "call_method" if node.target in vars(operator).values() else node.op)


@family.belief
def into_layers(run):
    """FX traces into a layer such as `nn.Linear`, down to its functions

    Its tracer keeps the layers of `torch.nn` whole, as `call_module`. Into other modules, and into
    `nn.Sequential`, it goes. Export has no layers in its graph.

        graph = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU())).graph
        [node.op for node in graph.nodes]
    """
    return _were(run, lambda node: node.op.replace("call_module", "call_function"))


@family.belief
def a_module_is_a_node(run):
    """Each submodule is one node, `nn.Sequential` too

    By default the tracer goes into `nn.Sequential` and into your own modules. It stops at the other layers of
    `torch.nn`.

        net = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        [node.target for node in torch.fx.symbolic_trace(net).graph.nodes]
    """
    return _were(run, lambda node: "" if node.name == "body_1" else node.op)


@family.belief
def a_loop_is_written_once(run):
    """What stands in a loop is one node

    The tracer runs the Python. Each round writes down a node of its own, and the loop itself is no node.

        f = lambda x: [x.sin() for _ in range(3)]
        [node.name for node in torch.fx.symbolic_trace(f).graph.nodes]
    """
    return run.again(re.sub(r"range\(\d\)", "range(1)", run.code))
