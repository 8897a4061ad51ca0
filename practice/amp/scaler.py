"""The scale and the steps of a GradScaler"""

import re

from course_utils.questions import Family

family = Family(
    section="float16, and a scale for the loss",
    asked="What does the last line show: the scale, and the weight?",
)


@family.program
def steps(draw, level):
    many = [1, 3, 4, 5, 6][level - 1]
    factors = [draw.choice(["1.0", "2.0", "torch.inf"]) for _ in range(many)]
    if level > 1:
        factors[draw.randrange(many)] = "torch.inf"
    how = f"init_scale={draw.choice([2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0])}"
    how += f", growth_interval={draw.choice([1, 2, 2])}"
    if level > 3:
        how += f", {draw.choice(['backoff_factor=0.25', 'growth_factor=4.0'])}"
    lines = [
        f"w = nn.Parameter(torch.tensor({draw.choice([5.0, 10.0, 20.0, 30.0, 50.0, 100.0])}))",
        "optimizer = torch.optim.SGD([w], lr=1.0)",
        f'scaler = torch.amp.GradScaler("cpu", {how})',
    ]
    one = [f"scaler.scale({factors[0]} * w).backward()", "scaler.step(optimizer)", "scaler.update()"]
    if level == 1:
        lines += one
    else:
        one = ["optimizer.zero_grad()", "scaler.scale(factor * w).backward()", *one[1:]]
        lines += [f"for factor in ({', '.join(factors)}):", *("    " + line for line in one)]
    return "\n".join([*lines, "scaler.get_scale(), w.item()"])


@family.belief
def taken_all_the_same(run):
    """With inf the scale falls, and the step is taken all the same

    `step` leaves it out: the optimizer isn't called, and the weight stays what it was.

        w = nn.Parameter(torch.tensor(1.0))
        optimizer, scaler = torch.optim.SGD([w], lr=1.0), torch.amp.GradScaler("cpu")
        scaler.scale(torch.inf * w).backward()
        scaler.step(optimizer)
        w.item(), w.grad.item()
    """
    taken = r"\1scaler.unscale_(optimizer)\n\1optimizer.step()"
    return run.again(re.sub(r"( *)scaler.step\(optimizer\)", taken, run.code))


@family.belief
def every_good_step(run):
    """Every good step multiplies the scale by the growth factor

    `growth_interval` good ones in a row do. The default is 2,000.

        w = nn.Parameter(torch.tensor(1.0))
        optimizer, scaler = torch.optim.SGD([w], lr=1.0), torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(w).backward()
        scaler.step(optimizer)
        scaler.update()
        scaler.get_scale()
    """
    return run.again(run.code.replace("growth_interval=2", "growth_interval=1"))


@family.belief
def steps_are_scaled(run):
    """The gradients are scaled, so the steps are too

    `step` divides the gradients by the scale before the optimizer sees them, if `unscale_` hasn't.

        w = nn.Parameter(torch.tensor(1.0))
        optimizer, scaler = torch.optim.SGD([w], lr=0.5), torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(w).backward()
        before = w.grad.item()
        scaler.step(optimizer)
        before, w.grad.item(), w.item()
    """
    scaled = r"\1w.grad.isfinite() and optimizer.step()\n\1scaler.unscale_(optimizer)"
    return run.again(re.sub(r"( *)scaler.step\(optimizer\)", scaled, run.code))


@family.belief
def the_scale_is_fixed(run):
    """The scale stays what it was set to

    `update` lowers it after a skipped step, and raises it after enough good ones in a row.

        w = nn.Parameter(torch.tensor(1.0))
        optimizer, scaler = torch.optim.SGD([w], lr=1.0), torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(torch.inf * w).backward()
        scaler.step(optimizer)
        scaler.update()
        scaler.get_scale()
    """
    return float(re.search(r"init_scale=([\d.]+)", run.code)[1]), run.value[1]
