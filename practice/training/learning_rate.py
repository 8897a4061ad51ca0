"""The learning rate after some steps"""

import re

from course_utils.questions import Family

family = Family(section="The rate over time", asked="What does the last line show (rounded)?")


@family.program
def schedules(draw, level):
    rate, other = (n / 10 for n in draw.sample([3, 7, 9, *range(11, 31)], 2))  # no rate is a factor
    epochs, batches, every = draw.choice([2, 3, 4]), draw.choice([2, 3]), draw.choice([2, 3])
    rising = f"min(1, (k + 1) / {draw.choice([4, 5, 8])})"
    factor = draw.choice([f"0.5 ** (k // {every})", "1 / (k + 1)", rising])
    scheduler = f"LambdaLR(optimizer, lambda k: {factor})"
    if draw.random() < 0.4:
        scheduler = f"StepLR(optimizer, {every}, gamma=0.5)"
    lines, groups, shown = [], "[nn.Parameter(torch.zeros(1))]", 'optimizer.param_groups[0]["lr"]'
    if level > 2:
        head = f'{{"params": head.parameters(), "lr": {other}}}'
        lines = ["body, head = nn.Linear(2, 2), nn.Linear(2, 1)"]
        lines.append(f'groups = [{{"params": body.parameters()}}, {head}]')
        groups, shown = "groups", "scheduler.get_last_lr()"
    lines.append(f"optimizer = torch.optim.SGD({groups}, lr={rate})")
    lines.append(f"scheduler = torch.optim.lr_scheduler.{scheduler}")
    if level in (1, 3):
        lines.append(f"for step in range({draw.randint(3, 8)}):")
        return "\n".join([*lines, "    optimizer.step()", "    scheduler.step()", shown])
    lines += ["rates = []"] * (level == 5)
    lines += [f"for epoch in range({epochs}):", f"    for batch in range({batches}):"]
    lines += ["        optimizer.step()", draw.choice(["        ", "        ", "    "]) + "scheduler.step()"]
    lines += ['    rates.append(optimizer.param_groups[1]["lr"])'] * (level == 5)
    return "\n".join([*lines, "rates" if level == 5 else shown])


@family.belief
def first_call_sets_the_first(run):
    """The first `scheduler.step()` sets the first rate

    The scheduler sets it when it is made, and each call goes on to the next. So the call comes after the
    optimizer's step, or the first rate is never used.

        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        optimizer.step()
        scheduler.step()
        scheduler.get_last_lr()
    """
    skips = "\nnext_one, scheduler.step = scheduler.step, lambda: setattr(scheduler, 'step', next_one)"
    return run.again(run.code.replace("\nfor ", f"{skips}\nfor ", 1))


@family.belief
def the_function_gives_the_rate(run):
    """The function of a `LambdaLR` returns the rate

    It returns a factor. The rate is this factor times the first rate of each group.

        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5).get_last_lr()
    """
    if "LambdaLR" not in run.code:
        return None
    return run.again(re.sub(r'(lr=|"lr": )[\d.]+', r"\g<1>1.0", run.code))


@family.belief
def factors_pile_up(run):
    """A `LambdaLR` multiplies the rate that is there by what its function returns

    It multiplies the first rate, at every step anew. `MultiplicativeLR` is the one that multiplies what is
    there.

        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5)
        for _ in range(3):
            optimizer.step(), scheduler.step()
        scheduler.get_last_lr()
    """
    return run.again(run.code.replace("LambdaLR", "MultiplicativeLR"))


@family.belief
def counts_epochs(run):
    """A scheduler goes on once an epoch, wherever it is called

    It counts the calls of its `step` and knows nothing of epochs. Called at every batch, `step_size=30` is
    over after 30 batches.

        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        for batch in range(6):
            optimizer.step(), scheduler.step()
        scheduler.get_last_lr()
    """
    return run.again(run.code.replace("        scheduler.step()", "    scheduler.step()"))
