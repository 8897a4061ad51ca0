"""Bytes that a forward keeps for backward"""

import re

from course_utils.questions import Family

family = Family(
    section="What a forward keeps",
    asked="How many bytes does the forward keep for backward? Parameters don't count, inputs do.",
)


@family.program
def network(draw, level):
    inputs, batch = draw.choice([4, 5, 8, 10, 20]), draw.choice([10, 20, 50, 100])
    layers, width = [], inputs
    kinds = ["ReLU", "Sigmoid"] if level < 3 else ["ReLU", "Tanh", "GELU"]
    while len(layers) < min(level + 1, 5):
        if layers and "Linear" in layers[-1]:
            layers.append(f"nn.{draw.choice(kinds)}()")
        else:
            new = draw.choice([one for one in [2, 4, 5, 8, 10, 20] if one != width])
            layers.append(f"nn.Linear({width}, {new})")
            width = new
    row = ", ".join(layers)
    net = f"net = nn.Sequential({row})" if len(layers) < 4 else f"net = nn.Sequential(\n    {row}\n)"
    lines = ["from course_utils import measure\n", net]
    if level > 3:
        lines.append(f"net[{draw.choice([0, 2, 4])}].requires_grad_(False)")
    if level > 4 or draw.random() < 0.3:
        lines.append("net.eval()")
    return "\n".join([*lines, f"x = torch.randn({batch}, {inputs})", "measure.saved_bytes(net, x).total"])


@family.belief
def every_output(run):
    """What is kept is the output of every layer

    An operator keeps what its own derivative needs: a linear layer and GELU their input, ReLU, sigmoid and
    tanh their output. So nobody keeps the output of a linear layer before a sigmoid, or of a last one.

        from course_utils import measure
        net = nn.Sequential(nn.Linear(4, 7), nn.Sigmoid())
        [(t.op, t.shape) for t in measure.saved_bytes(net, torch.ones(1, 4)).tensors]
    """
    x, total = run.names["x"], 0
    for layer in run.names["net"]:
        x = layer(x)
        total += x.nbytes
    return total


@family.belief
def counted_twice(run):
    """A tensor that two layers keep costs its bytes twice

    What is saved is a reference. The output that a ReLU keeps is the input that the next linear layer keeps.

        from course_utils import measure
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        saved = measure.saved_bytes(net, torch.ones(100, 4))
        saved.total, [t.storage for t in saved.tensors]
    """
    saved = "measure.saved_bytes(net, x)"
    return run.again(run.code.replace(f"{saved}.total", f"sum(t.bytes for t in {saved}.tensors)"))


@family.belief
def freezing_keeps_it(run):
    """Freezing a layer saves its gradient, and nothing of the activations

    A linear layer needs its input for the gradient of its weight only. Frozen, it doesn't keep it.

        from course_utils import measure
        x = torch.ones(100, 4, requires_grad=True)
        layer = nn.Linear(4, 4)
        frozen = nn.Linear(4, 4).requires_grad_(False)
        measure.saved_bytes(layer, x).total, measure.saved_bytes(frozen, x).total
    """
    return run.again(re.sub(r".*requires_grad_.*\n", "", run.code))


@family.belief
def eval_keeps_nothing(run):
    """In eval mode nothing is kept

    `eval()` tells layers such as dropout what to compute. `torch.no_grad()` turns recording off.

        from course_utils import measure
        net = nn.Linear(4, 4).eval()
        with torch.no_grad():
            without = measure.saved_bytes(net, torch.ones(100, 4)).total
        measure.saved_bytes(net, torch.ones(100, 4)).total, without
    """
    return 0 if "eval" in run.code else None
