"""The order in which hooks fire"""

import re

from course_utils.questions import Family

family = Family(section="Hooks", asked="In which order have the hooks fired?")
BATCH, WANTS_GRAD = "torch.ones(5, 2)", "torch.ones(5, 2, requires_grad=True)"


@family.program
def hooks(draw, level):
    width, between = draw.randint(3, 8), draw.choice(["nn.Tanh()", "nn.ReLU()", "nn.GELU()", "nn.Sigmoid()"])
    layers, modules = f"nn.Linear(2, {width}), {between}", ["net[0]", "net[1]"]
    if level > 3:
        layers, modules = f"nn.Sequential({layers}), nn.Linear({width}, 1)", ["net[0]", "net[0][0]", "net[1]"]
    kinds, hooked = ["forward_hook", "forward_pre_hook"], [("net", "forward_hook")]
    given, call = BATCH, "net(x)"
    if level > 2:
        kinds = ["full_backward_hook", "full_backward_pre_hook", "forward_hook"]
        hooked = [("net", "full_backward_hook"), *hooked * (level == 5)]
        given, call = draw.choice([BATCH, WANTS_GRAD]), "net(x).sum().backward()"
    others = [(module, kind) for module in modules for kind in kinds]
    hooked += draw.sample(others, (2, 3, 3, 3, 3)[level - 1])
    draw.shuffle(hooked)
    lines = ["seen = []", f"net = nn.Sequential({layers})"]
    for (module, kind), letter in zip(hooked, "abcde", strict=False):
        lines.append(f'{module}.register_{kind}(lambda *_: seen.append("{letter}"))')
    return "\n".join([*lines, call.replace("x", given), "seen"])


@family.belief
def as_registered(run):
    """Hooks fire in the order in which they were registered

    By default that holds for hooks of one kind on one module. Else each fires when its module's turn
    comes, in the forward or in the backward.

        seen, layer = [], nn.Linear(1, 1)
        layer.register_forward_hook(lambda *_: seen.append("registered first"))
        layer.register_forward_pre_hook(lambda *_: seen.append("registered second"))
        layer(torch.ones(1))
        seen
    """
    return sorted(run.value)


@family.belief
def outside_in(run):
    """A model's forward hook fires before those of its layers

    A forward hook gets the output, so its module has to be done. A pre-hook is what fires before the layers
    do.

        seen, net = [], nn.Sequential(nn.Tanh())
        net.register_forward_hook(lambda *_: seen.append("the model's"))
        net[0].register_forward_hook(lambda *_: seen.append("the layer's"))
        net(torch.ones(1))
        seen
    """
    own = re.search(r'net\.register_forward_hook\(.*"(\w)"', run.code)
    return own and sorted(run.value, key=lambda letter: letter != own[1])


@family.belief
def backward_hook_first(run):
    """The backward goes from the outside in: a model's backward hook always fires before its layers'

    A full backward hook waits for the gradient of its module's input, which comes last. Only where the input
    requires no gradient it doesn't wait.

        seen, net = [], nn.Sequential(nn.Linear(1, 1))
        net.register_full_backward_hook(lambda *_: seen.append("the model's"))
        net[0].register_full_backward_hook(lambda *_: seen.append("the layer's"))
        net(torch.ones(1, requires_grad=True)).backward()
        seen
    """
    return run.again(run.code.replace(WANTS_GRAD, BATCH))


@family.belief
def backward_hook_last(run):
    """A model's backward hook always fires after those of its layers

    It waits for the gradient of the model's input. A batch that requires no gradient gets none, so there it
    fires when the backward comes to the model.

        seen, net = [], nn.Sequential(nn.Linear(1, 1))
        net.register_full_backward_hook(lambda *_: seen.append("the model's"))
        net[0].register_full_backward_hook(lambda *_: seen.append("the layer's"))
        net(torch.ones(1)).backward()
        net(torch.ones(1, requires_grad=True)).backward()
        seen
    """
    return run.again(run.code.replace(BATCH, WANTS_GRAD))
