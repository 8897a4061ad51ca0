"""Bytes of gradients and optimizer state after a step"""

import re

from course_utils.questions import Family

family = Family(
    section="Where training memory goes",
    asked="How many bytes do the gradients take, and how many the optimizer's state?",
)
OPTIMIZERS = ("SGD({}, lr=0.1)", "SGD({}, lr=0.1, momentum=0.9)", "Adam({}, lr=0.1)", "AdamW({}, lr=0.1)")


@family.program
def step(draw, level):
    depth = [1, 1, 2, 2, 3][level - 1]
    sizes = [draw.choice([2, 3, 4, 5, 8, 10, 20, 30, 40, 50]) for _ in range(depth + 1)]
    layers = [f"nn.Linear({a}, {b}, bias=False)" for a, b in zip(sizes, sizes[1:], strict=False)]
    half = draw.choice(["", ".bfloat16()"])
    if depth == 1:
        lines = [f"net = {layers[0]}{half}"]
    else:
        lines = ["net = nn.Sequential(", *(f"    {layer}," for layer in layers), f"){half}"]
    if level > 4 or (level > 2 and draw.random() < 0.7):
        lines.append(f"net[{draw.randrange(depth)}].requires_grad_(False)")
    lines += [
        f"optimizer = torch.optim.{draw.choice(OPTIMIZERS).format('net.parameters()')}",
        "sum(p.sum() for p in net.parameters()).backward()",
        "optimizer.step()",
    ]
    if level > 3 or (level > 1 and draw.random() < 0.5):
        lines.append(draw.choice(["optimizer", "net"]) + ".zero_grad()")
    lines += [
        "grads = [p.grad for p in net.parameters() if p.grad is not None]",
        "state = [t for entry in optimizer.state.values() for t in entry.values()]",
        "[sum(t.nbytes for t in tensors) for tensors in (grads, state)]",
    ]
    return "\n".join(lines)


@family.belief
def as_adam(run):
    """Every optimizer keeps what Adam keeps

    Adam and AdamW keep two tensors of a parameter's size and a step count of 4 bytes. SGD keeps none;
    with momentum it keeps one.

        w = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
        w.sum().backward()
        optimizer.step()
        optimizer.state[w]
    """
    return run.again(re.sub(r"SGD(.*lr=0.1).*\)", r"Adam\1)", run.code))


@family.belief
def zeros_stay(run):
    """`zero_grad` fills the gradients with zeros, and their memory stays

    It sets them to None, and their memory is free. With `set_to_none=False` they would be zeros.

        w = nn.Parameter(torch.ones(3))
        w.sum().backward()
        torch.optim.SGD([w], lr=0.1).zero_grad()
        w.grad
    """
    return run.again(re.sub(r".*zero_grad.*\n", "", run.code))


@family.belief
def frozen_too(run):
    """What the optimizer was given has a gradient and state, frozen or not

    A frozen parameter gets no gradient, and the optimizer passes over what has none. State is made in the
    first `step` that finds a gradient.

        a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3), requires_grad=False)
        optimizer = torch.optim.Adam([a, b])
        (a + b).sum().backward()
        optimizer.step()
        b.grad, b in optimizer.state
    """
    return run.again(re.sub(r".*requires_grad_.*\n", "", run.code))


@family.belief
def state_in_float32(run):
    """The optimizer's state is float32, whatever the parameters are

    It has the dtype of the parameter. For float32 state one steps float32 master weights.

        w = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        optimizer = torch.optim.Adam([w])
        w.sum().backward()
        optimizer.step()
        optimizer.state[w]["exp_avg"].dtype
    """
    return [run.value[0], run.again(run.code.replace(".bfloat16()", ""))[1]]
