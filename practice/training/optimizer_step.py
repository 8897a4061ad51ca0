"""A weight after some steps"""

import re

from course_utils.questions import Family

family = Family(section="What an optimizer keeps", asked="What is the weight in the end (rounded)?")


@family.program
def steps(draw, level):
    kind = "SGD" if level == 1 else draw.choice(["SGD", "SGD", "AdamW"])
    rate, many = draw.choice([0.1, 0.2, 1.0]), 3 if level == 3 else 2
    if kind == "SGD":
        options = "momentum=0.5"
        gradients = [float(draw.randint(1, 9)) for _ in range(many)]
        gradients[-1] *= draw.random() < 0.5
    else:
        options = f"weight_decay={draw.choice([0.1, 0.5])}"
        gradients = [float(draw.choice([0, *range(2, 8)]))] * many
    lines = [f"w = nn.Parameter(torch.tensor({draw.randint(1, 9)}0.0))"]
    lines.append(f"optimizer = torch.optim.{kind}([w], lr={rate}, {options})")
    if level == 1:
        lines += [f"for gradient in {tuple(gradients)}:", "    w.grad = torch.tensor(gradient)"]
    else:
        lines += [f"for x in {tuple(gradients)}:", "    optimizer.zero_grad()", "    (x * w).backward()"]
    lines.append("    optimizer.step()")
    if level > 3:
        lines += [f'optimizer.param_groups[0]["lr"] = {rate / 10}'] * (level == 5)
        lines += [f"w.grad = torch.tensor({0.0 if kind == 'SGD' else gradients[0]})", "optimizer.step()"]
    return "\n".join([*lines, "w.item()"])


@family.belief
def momentum_is_a_mean(run):
    """Momentum steps along a running mean of the gradients

    SGD's momentum is by default a running sum: the old sum times the factor, plus the whole gradient.
    Adam's is a mean.

        w = nn.Parameter(torch.tensor(0.0))
        optimizer = torch.optim.SGD([w], lr=1.0, momentum=0.5)
        for _ in range(2):
            w.grad = torch.tensor(1.0)
            optimizer.step()
        w.item()
    """
    if "momentum" not in run.code:
        return None
    factor = float(re.search(r"momentum=([\d.]+)", run.code)[1])
    code = re.sub(r"lr=([\d.]+)", rf"lr=\1 * {1 - factor}", run.code)
    return run.again(re.sub(r'("lr"\] = [\d.]+)', rf"\1 * {1 - factor}", code))


@family.belief
def decay_without_rate(run):
    """`weight_decay=d` takes the share d of the weight at each step

    In plain SGD and in AdamW it takes the rate times that. In Adam it is added to the gradient, and divided
    by its own size.

        w = nn.Parameter(torch.tensor(1.0))
        w.grad = torch.tensor(0.0)
        torch.optim.SGD([w], lr=0.1, weight_decay=0.1).step()
        w.item()
    """
    if "weight_decay" not in run.code:
        return None
    decay = float(re.search(r"weight_decay=([\d.]+)", run.code)[1])
    code = re.sub(r"weight_decay=[\d.]+", "weight_decay=0", run.code)
    return run.again(code.replace("optimizer.step()", f"w.data.mul_({1 - decay}), optimizer.step()"))


@family.belief
def no_gradient_no_move(run):
    """Where the gradient is 0, the weight stays

    Momentum goes on, and weight decay, where set, still pulls. Only a parameter whose gradient is None is
    left out.

        w = nn.Parameter(torch.tensor(1.0))
        optimizer, seen = torch.optim.SGD([w], lr=0.1, momentum=0.5), []
        for gradient in (1.0, 0.0):
            w.grad = torch.tensor(gradient)
            optimizer.step(), seen.append(w.item())
        seen
    """
    return run.again(run.code.replace("optimizer.step()", "w.grad.any() and optimizer.step()"))


@family.belief
def adam_goes_by_the_gradient(run):
    """Adam moves a weight by the rate times the gradient, as SGD does

    It divides by the gradient's own size. With equal gradients each step is as long as the rate,
    whatever they are.

        w = nn.Parameter(torch.tensor([0.0, 0.0]))
        w.grad = torch.tensor([0.01, 100.0])
        torch.optim.Adam([w], lr=0.1).step()
        w.detach()
    """
    return run.again(re.sub(r"AdamW?\(", "SGD(", run.code))
