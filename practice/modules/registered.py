"""Who sees what of a model"""

import re
import textwrap

from course_utils.questions import Family, Run

family = Family(section="What an assignment does", asked="Which names does the last line give?")
KINDS = {  # the names it may have, and what is assigned
    "parameter": (["scale", "gain", "bias"], "nn.Parameter(torch.ones({n}))"),
    "buffer": (["mean", "var", "table"], "nn.Buffer(torch.ones({n}))"),
    "count": (["count", "seen", "epoch"], "nn.Buffer(torch.tensor(0))"),
    "plain": (["mask", "limit", "grid"], "torch.ones({n})"),
    "list": (["heads", "blocks", "layers"], "[nn.Linear({n}, 1)]"),
    "held": (["stages", "parts", "steps"], "nn.ModuleList([nn.Linear({n}, 1)])"),
}
ACTS = {
    "net.double()": "t.dtype == torch.float64",
    'net.to("meta")': "t.is_meta",
    "listed = {id(p) for p in net.parameters()}": "id(t) in listed",
}


@family.program
def assigned(draw, level):
    n, act = draw.randint(2, 9), draw.choice([*ACTS])
    lines, tensors = ["net = nn.Module()"], []
    for kind in draw.sample([*KINDS][: 4 if level == 1 else 6], (3, 3, 4, 5, 6)[level - 1]):
        names, made = KINDS[kind]
        name = draw.choice(names)
        lines.append(f"net.{name} = {made.format(n=n)}")
        tensors.append(f"{name}=net.{name}" + "[0].weight" * ("Linear" in made))
    shown = textwrap.fill(f"tensors = dict({', '.join(tensors)})", 88, subsequent_indent=" " * 15)
    return "\n".join([*lines, act, shown, f"[name for name, t in tensors.items() if {ACTS[act]}]"])


@family.belief
def all_of_it(run):
    """What is assigned to `self` belongs to the model, whatever it is

    An assignment registers parameters, buffers and modules. A plain tensor, or a list of layers, becomes an
    ordinary attribute, which no method of `nn.Module` looks at.

        net = nn.Module()
        net.plain, net.listed = torch.ones(2), [nn.Linear(1, 1)]
        net.buffer = nn.Buffer(torch.ones(2))
        net.double()
        net.plain.dtype, net.listed[0].weight.dtype, net.buffer.dtype
    """
    if "parameters()" in run.code:
        return None
    code = re.sub(r"= (torch.ones.*)$", r"= nn.Buffer(\1)", run.code, flags=re.M)
    return lists_too(Run(code, {}, None))


@family.belief
def lists_too(run):
    """The layers in a list are layers of the model

    The list is an ordinary attribute: its layers are neither moved nor listed. `nn.ModuleList` registers
    them.

        net = nn.Module()
        net.plain, net.held = [nn.Linear(1, 1)], nn.ModuleList([nn.Linear(1, 1)])
        [name for name, _ in net.named_parameters()]
    """
    return run.again(re.sub(r"= (\[nn.*)$", r"= nn.ModuleList(\1)", run.code, flags=re.M))


@family.belief
def parameters_alone(run):
    """Buffers stay as they are: only parameters are moved and converted

    A buffer is registered so that it goes where the parameters go. Else a batch norm on a GPU would have its
    running statistics on the CPU.

        norm = nn.BatchNorm1d(2).double()
        norm.weight.dtype, norm.running_mean.dtype
    """
    return run.again(re.sub(r"nn.Buffer\((.*)\)", r"\1", run.code))


@family.belief
def buffers_are_parameters(run):
    """A buffer is a parameter that isn't trained, so it is treated like one

    `parameters()` doesn't list it, so no optimizer gets it. `buffers()` does.

        norm = nn.BatchNorm1d(2)
        [name for name, _ in norm.named_parameters()], [name for name, _ in norm.named_buffers()]
    """
    code = run.code.replace("torch.tensor(0)", "torch.tensor(0.0)")
    return run.again(code.replace("nn.Buffer", "nn.Parameter")) if "parameters()" in code else None


@family.belief
def counts_converted(run):
    """`double()` converts every registered tensor

    It converts those of floating point, and so do `half()` and `to(dtype)`. A counter keeps its integers.

        norm = nn.BatchNorm1d(2).double()
        norm.running_mean.dtype, norm.num_batches_tracked.dtype
    """
    return run.again(run.code.replace("torch.tensor(0)", "torch.tensor(0.0)"))
