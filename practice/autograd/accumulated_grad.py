"""What is in `.grad` after some backwards"""

import re

from course_utils.questions import Family

family = Family(section="Gradients add up", asked="Which gradient does the last line show?")


@family.program
def backwards(draw, level):
    def loss():
        a, b = draw.sample([2, 3, 4, 5], 2)
        forms = [f"w * {a}", f"(w ** 2) * {a}", f"w.detach() * w * {a}", f"w * {a} + w * {b}"]
        forms.append(f"w * w + {a} * w")
        return draw.choice(forms[: 2 + level])

    lines = [f"w = torch.tensor({draw.randint(1, 6)}.0, requires_grad=True)"]
    if level > 2:
        lines.append(f"optimizer = torch.optim.SGD([w], lr={draw.choice([0.5, 1.0])})")
    lines.append(f"({loss()}).backward()")
    for _ in range(level):
        kind = draw.choice(["backward", "backward", "zero", "grad", "loop", "step", "step"][: 3 + level])
        kind = "backward" if kind == "step" and "optimizer.step()" in lines else kind
        if kind == "zero":
            lines.append(draw.choice(["w.grad = None", "w.grad.zero_()"]))
        elif kind == "grad":
            lines.append(f"g = torch.autograd.grad({loss()}, w)")
        elif kind == "loop":
            lines.append(f"for _ in range({draw.choice([2, 3])}):")
        elif kind == "step" and level > 2:
            lines.append("optimizer.step()")
        if kind != "grad":
            indent = "    " if kind == "loop" else ""
            lines.append(f"{indent}({loss()}).backward()")
    return "\n".join([*lines, "w.grad.item()"])


@family.belief
def backward_replaces(run):
    """`backward()` puts the new gradient in the place of the old one

    It adds. That is why a loop zeroes gradients, and how a large batch is fed in parts.

        w = torch.tensor(1.0, requires_grad=True)
        for _ in range(3):
            (w * 2).backward()
        w.grad
    """
    return run.again(re.sub(r"(?m)^( *)(\(.*backward)", r"\1w.grad = None\n\1\2", run.code))


@family.belief
def step_zeroes(run):
    """`optimizer.step()` also clears the gradients

    It reads them and leaves them as they are; `zero_grad` clears them.

        w = torch.tensor(1.0, requires_grad=True)
        (w * 2).backward()
        torch.optim.SGD([w], lr=0.1).step()
        w.grad
    """
    return run.again(run.code.replace(".step()", ".step(); w.grad = None"))


@family.belief
def grad_adds_too(run):
    """`torch.autograd.grad` adds to `.grad` as backward does

    It returns the gradients and leaves `.grad` alone.

        w = torch.tensor(1.0, requires_grad=True)
        torch.autograd.grad(w * 2, w), w.grad
    """
    return run.again(re.sub(r"torch.autograd.grad\((.*), w\)", r"(\1).backward()", run.code))


@family.belief
def detach_changes_nothing(run):
    """`detach()` inside a product makes no difference to the gradient, as the value is the same

    To autograd a detached factor is a constant: no gradient goes back through it.

        w = torch.tensor(3.0, requires_grad=True)
        torch.autograd.grad(w * w, w), torch.autograd.grad(w.detach() * w, w)
    """
    return run.again(run.code.replace(".detach()", ""))
