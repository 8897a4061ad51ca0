"""What a loop does where a line is missing or misplaced"""

import re

from course_utils.questions import Family

family = Family(section="What a healthy loop looks like")
ZERO, STEP = "optimizer.zero_grad()", "optimizer.step()"


@family.program
def loops(draw, level):
    names = ["w"] if level < 3 else ["body", "head"]
    weights = "w" if level < 3 else "(body + head)"
    missing = level in (1, 3) or level == 5 and draw.random() < 0.5
    lines = [f"{name} = nn.Parameter(torch.tensor({float(draw.randint(4, 29))}))" for name in names]
    lines.append(f"optimizer = torch.optim.SGD([{', '.join(names)}], lr={draw.choice([0.1, 0.2, 0.5])})")
    if level > 2:
        lines.append(f"head = nn.Parameter(torch.tensor({float(draw.randint(4, 29))}))  # begins anew")
    lines.append(f"for x in {tuple(float(draw.randint(3, 9)) for _ in range(2 if level < 3 else 3))}:")
    backward = f"(x * {weights}).backward()"
    if level in (1, 2, 5):
        lines.append(f"    baseline = {float(draw.randint(1, 2))} * {names[0]}  # to compare with")
        backward = f"(x * {weights} - baseline).backward()"
    misplaced = draw.choice([[backward, ZERO, STEP], [ZERO, STEP, backward], [STEP, ZERO, backward]])
    lines += [f"    {call}" for call in ([backward, STEP] if missing else misplaced)]
    return "\n".join([*lines, ", ".join(f"{name}.item()" for name in names)])


def healthy(code):
    """The program with the three calls in order."""
    code = code.replace(f"    {ZERO}\n", "").replace(f"    {STEP}\n", "")
    return code.replace(".backward()\n", f".backward()\n    {STEP}\n    {ZERO}\n")


@family.belief
def backward_overwrites(run):
    """Without `zero_grad` each step still uses the gradient of its own batch

    `backward()` adds to `.grad`, and `step()` leaves it there: a step uses the sum of all gradients so far.

        w = nn.Parameter(torch.tensor(0.0))
        optimizer = torch.optim.SGD([w], lr=1.0)
        for x in (1.0, 2.0):
            (x * w).backward()
            optimizer.step()
        w.item()
    """
    return None if "zero_grad" in run.code else run.again(healthy(run.code))


@family.belief
def any_order(run):
    """`zero_grad`, `backward` and `step` may stand in any order, since it is a loop

    From `backward` to `step` nothing may clear the gradient. And a step that comes first has none: it does
    nothing, or takes the batch before.

        w = nn.Parameter(torch.tensor(0.0))
        optimizer = torch.optim.SGD([w], lr=1.0)
        for x in (1.0, 2.0):
            (x * w).backward()
            optimizer.zero_grad()
            optimizer.step()
        w.item()
    """
    return run.again(healthy(run.code)) if "zero_grad" in run.code else None


@family.belief
def optimizer_follows(run):
    """An optimizer steps what stands under the name now

    It holds the tensors that it was given, and knows no names: a parameter that comes later isn't stepped.

        w = nn.Parameter(torch.tensor(0.0))
        optimizer = torch.optim.SGD([w], lr=1.0)
        w = nn.Parameter(torch.tensor(0.0))
        w.backward()
        optimizer.step()
        w.item()
    """
    made = re.search(r"optimizer = .*\n", run.code)[0]
    return run.again(run.code.replace(made, "").replace("for x", made + "for x"))


@family.belief
def baseline_is_a_number(run):
    """What a loss is compared with gets no gradient

    Whatever was computed from a parameter leads back to it. A target or a baseline needs `detach()`, or
    has to be computed under `no_grad`.

        w = torch.tensor(1.0, requires_grad=True)
        (5 * w - 2 * w).backward()
        held = torch.tensor(1.0, requires_grad=True)
        (5 * held - (2 * held).detach()).backward()
        w.grad.item(), held.grad.item()
    """
    return run.again(re.sub(r"baseline = (.*?)  #.*", r"baseline = (\1).detach()", run.code))
