"""Gradients after DDP with unequal batches or losses"""

import re

from course_utils.questions import Family

family = Family(section="What DDP does", asked="Which gradient has each of the two ranks?", slow=True)
HEAD = """from course_utils import run_ranks
from torch.nn.parallel import DistributedDataParallel as DDP

def gradients(rank, world_size):"""


@family.program
def shares(draw, level):
    many = min(level, 3) + draw.choice([1, 2, 3])
    numbers = [float(draw.randrange(1, 13)) for _ in range(many)]
    cut = draw.randrange(1, many) if level > 1 else many // 2
    lines = [
        "model = DDP(nn.Linear(1, 1, bias=False))",
        f"x = torch.tensor({numbers}).split([{cut}, {many - cut}])[rank].view(-1, 1)",
    ]
    last = f"model(x).{draw.choice(['mean', 'sum'])}().backward()"
    if level == 3:
        lines.append("model(x).sum().backward()")
    elif level > 3:
        lines += ["with model.no_sync():", "    model(x).sum().backward()"]
    if level > 4:
        lines.append("    model(x).mean().backward()")
    body = "\n".join("    " + line for line in [*lines, last, "return model.module.weight.grad.item()"])
    return f"{HEAD}\n{body}\n\nrun_ranks(gradients, 2)"


@family.belief
def sums(run):
    """DDP sums the gradients of the ranks

    It sums and divides by the number of ranks: an average, one vote for each rank.

        from course_utils import run_ranks
        def f(rank, world_size):
            model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1, bias=False))
            model(torch.tensor([[2.0, 6.0][rank]])).sum().backward()
            return model.module.weight.grad.item()
        run_ranks(f, 2)
    """
    return [2 * one for one in run.value]


@family.belief
def of_the_whole_batch(run):
    """The gradient is that of one process with the whole batch

    For a mean over equal shares it is. A mean over unequal shares gives each sample of the smaller share more
    weight, and the average of two sums is half the sum.

        from course_utils import run_ranks
        def f(rank, world_size):
            model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1, bias=False))
            model(torch.tensor([[[2.0], [2.0]], [[8.0]]][rank])).mean().backward()
            return model.module.weight.grad.item()
        run_ranks(f, 2), (2.0 + 2.0 + 8.0) / 3
    """
    numbers = [float(one) for one in re.search(r"tensor\(\[(.*?)\]", run.code)[1].split(", ")]
    total = 0.0
    for reduce in re.findall(r"\(x\)\.(mean|sum)", run.code):
        total += sum(numbers) / (len(numbers) if reduce == "mean" else 1)
    return [total, total]


@family.belief
def silent_stays_local(run):
    """What a backward in `no_sync` has added is never averaged

    Gradients add up in `.grad`. The next backward outside averages all that is there.

        from course_utils import run_ranks
        def f(rank, world_size):
            model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1, bias=False))
            x = torch.tensor([[2.0, 6.0][rank]])
            with model.no_sync():
                model(x).sum().backward()
            model(x).sum().backward()
            return model.module.weight.grad.item()
        run_ranks(f, 2)
    """
    silent = re.search(r"    with model.no_sync\(\):\n(?:        .*\n)+", run.code)
    if silent is None:
        return None
    averaged = run.again(run.code.replace(silent[0], ""))
    local = run.again(re.sub(r"\n    model\(x\).*", "", run.code))
    return [a + b for a, b in zip(averaged, local, strict=True)]
