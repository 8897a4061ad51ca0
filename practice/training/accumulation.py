"""Gradients and steps of several pieces"""

import re

from course_utils.questions import Family

family = Family(section="A large batch in small pieces", asked="What does the last line show (rounded)?")


@family.program
def pieces(draw, level):
    every = draw.choice([2, 3])
    rest = draw.randint(1, every - 1) if level > 3 else 0
    many = (draw.choice([4, 6]), 5, 2 * every, 2 * every + rest, 2 * (every + rest))[level - 1]
    numbers = [float(draw.randint(1, 9)) for _ in range(many)]
    lines = [f"x = torch.tensor({numbers})", "w = torch.tensor(1.0, requires_grad=True)"]
    if level < 3:
        cut = draw.randint(1, 4)
        parts, count = ("2", many // 2) if level == 1 else (f"[{cut}, {5 - cut}]", 2)
        mean = draw.choice(["sum()", "mean()", f"mean() / {count}"])
        lines += [f"for part in x.split({parts}):", f"    loss = (w * part).{mean}", "    loss.backward()"]
        return "\n".join([*lines, "w.grad.item()"])
    divided = draw.choice(["", f" / {every}"])
    lines.append(f"optimizer = torch.optim.SGD([w], lr={draw.choice([0.1, 0.01, 1.0])})")
    if level == 5:
        lines += ["for i, part in enumerate(x.split(2)):", f"    loss = (w * part).mean(){divided}"]
    else:
        lines += ["for i in range(len(x)):", f"    loss = w * x[i]{divided}"]
    lines += ["    loss.backward()", f"    if (i + 1) % {every} == 0:"]
    return "\n".join([*lines, "        optimizer.step()", "        optimizer.zero_grad()", "w.item()"])


@family.belief
def backward_overwrites(run):
    """`backward()` sets `.grad`

    It adds to what is there, for any tensor. `zero_grad`, or `grad = None`, takes that away.

        w = torch.tensor(1.0, requires_grad=True)
        (3 * w).backward()
        (5 * w).backward()
        w.grad.item()
    """
    return run.again(run.code.replace("    loss.backward()", "    w.grad = None\n    loss.backward()"))


@family.belief
def backward_averages(run):
    """The gradients of several pieces are averaged

    They are added. If you feed a batch in equal pieces, divide each loss by their number.

        w = torch.tensor(1.0, requires_grad=True)
        for x in (2.0, 4.0):
            (x * w).backward()
        w.grad.item()
    """
    if "optimizer" in run.code:
        return run.again(re.sub(r"( % (\d) == 0:\n)", r"\1        w.grad /= \2\n", run.code))
    count = run.again(run.code.replace("w.grad.item()", re.search(r"x\.split\(.*?\)", run.code)[0]))
    return run.value / len(count)


@family.belief
def like_the_large_batch(run):
    """Accumulating gives the gradient of the whole batch at once

    Of sums it does. The means of pieces add up to a multiple of the whole mean, and if the pieces differ in
    size, not even that.

        w, x = torch.tensor(1.0, requires_grad=True), torch.tensor([1.0, 3.0, 5.0, 7.0])
        for part in x.split(2):
            (w * part).mean().backward()
        w.grad.item(), x.mean().item()
    """
    if "optimizer" in run.code:
        return None
    return run.again(re.sub(r"\) / \d", ")", re.sub(r"x.split\(.*?\):", "[x]:", run.code)))


@family.belief
def the_rest_is_stepped(run):
    """What is left over at the end makes a step too

    Nothing knows that it was the last piece. Its gradient stays in `.grad`, and the next epoch begins
    with it.

        w = torch.tensor(1.0, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        for i, x in enumerate((2.0, 4.0, 6.0)):
            (x * w).backward()
            if (i + 1) % 2 == 0:
                optimizer.step(), optimizer.zero_grad()
        w.grad.item()
    """
    last = "len(x.split(2))" if "split" in run.code else "len(x)"
    return run.again(re.sub(r"( % \d == 0):", rf"\1 or i + 1 == {last}:", run.code))
