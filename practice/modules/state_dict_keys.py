"""What a state_dict holds"""

import re

from course_utils.questions import Family

family = Family(section="Names, and what is saved", asked="Which names does the state_dict have?")
KINDS = {  # the names it may have, and the line that makes it
    "parameter": (["scale", "gain", "bias"], "{name} = nn.Parameter(torch.ones({n}))"),
    "buffer": (["mean", "table", "count"], 'register_buffer("{name}", torch.ones({n}))'),
    "scratch": (["mask", "cache", "grid"], 'register_buffer("{name}", torch.ones({n}), persistent=False)'),
    "plain": (["offset", "limit", "prior"], "{name} = torch.ones({n})"),
    "held": (["stages", "parts", "steps"], "{name} = nn.ModuleList([nn.Linear({n}, {n}, bias=False)])"),
}
TIED = """
inner = nn.Linear({n}, {n}, bias=False)
outer = nn.Linear({n}, {n}, bias=False)
outer.weight = self.inner.weight
"""


@family.program
def saved(draw, level):
    n, attributes = draw.randint(2, 9), []
    for kind in draw.sample([*KINDS][: 4 if level == 1 else 5], (3, 4, 3, 4, 5)[level - 1]):
        names, line = KINDS[kind]
        attributes.append(line.format(name=draw.choice(names), n=n))
    if level == 1:
        return "\n".join(["net = nn.Module()", *(f"net.{a}" for a in attributes), "sorted(net.state_dict())"])
    if level > 2:
        place = draw.randint(0, len(attributes))
        attributes[place:place] = TIED.strip().format(n=n).splitlines()
    lines = ["class Net(nn.Module):", "    def __init__(self):", "        super().__init__()"]
    return "\n".join([*lines, *(f"        self.{a}" for a in attributes), "", "sorted(Net().state_dict())"])


@family.belief
def parameters_only(run):
    """A state_dict holds the parameters, and nothing else

    It holds the persistent buffers too: a batch norm without its running statistics would not be the one that
    was trained.

        norm = nn.BatchNorm1d(3)
        [name for name, _ in norm.named_parameters()], list(norm.state_dict())
    """
    return run.again(re.sub(r"\.register_buffer\((.*?), (.*?\)).*", r".__dict__[\1] = \2", run.code))


@family.belief
def every_tensor(run):
    """A tensor that is assigned to `self` is saved

    A plain tensor becomes an ordinary attribute. What is saved is a `Parameter`, a persistent buffer, and
    what registered modules hold of these.

        net = nn.Module()
        net.plain, net.buffer = torch.ones(2), nn.Buffer(torch.ones(2))
        list(net.state_dict())
    """
    return run.again(re.sub(r"= (torch\..*)$", r"= nn.Buffer(\1)", run.code, flags=re.M))


@family.belief
def tied_once(run):
    """A weight that two layers share is saved under one name

    A state_dict has an entry for each path. `parameters()` is what lists a tensor once.

        net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        net[1].weight = net[0].weight
        len(list(net.parameters())), list(net.state_dict())
    """
    return run.again(run.code.replace("self.outer.weight = self.inner.weight", "del self.outer.weight"))


@family.belief
def every_buffer(run):
    """A state_dict holds all buffers

    With `persistent=False` a buffer moves along with the model, and isn't saved: it is for what can be
    computed again.

        net = nn.Module()
        net.register_buffer("kept", torch.ones(2))
        net.register_buffer("scratch", torch.ones(2), persistent=False)
        list(net.state_dict())
    """
    return run.again(run.code.replace(", persistent=False", ""))
