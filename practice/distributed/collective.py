"""What collectives leave on rank 1"""

import re

from course_utils.questions import Family

family = Family(section="Collectives", asked="What does rank 1 return?", slow=True)
HEAD = "from course_utils import run_ranks\nimport torch.distributed as dist\n\ndef f(rank, world_size):"
GATHER = [
    "parts = [torch.zeros_like(x) for _ in range(2)]",
    "dist.all_gather(parts, x)",
    "x = torch.cat(parts)",
]
SCATTER = ["half = torch.zeros({})", "dist.reduce_scatter(half, list(x.chunk(2)))", "x = half"]


@family.program
def messages(draw, level):
    size, kind = draw.choice([2, 4]), None
    numbers = ", ".join(f"{one}." for one in draw.sample(range(1, 13), size))
    lines = [f"x = torch.tensor([{numbers}]) * {draw.choice([10, 100])}**rank"]
    while len(lines) < [2, 3, 5, 6, 7][level - 1]:
        kinds = ["sum", "send"] + ["gather"] * (size < 4) + ["scatter"] * (size > 2)
        kind = draw.choice([one for one in kinds if one != kind])
        if kind == "sum":
            lines.append("dist.all_reduce(x)")
        elif kind == "send":
            lines.append(f"dist.broadcast(x, src={draw.randrange(2)})")
        elif kind == "gather":
            lines += GATHER
            size *= 2
        else:
            size //= 2
            lines += [line.format(size) for line in SCATTER]
    body = "\n".join("    " + line for line in [*lines, "return x.tolist()"])
    return f"{HEAD}\n{body}\n\nrun_ranks(f, 2)[1]"


@family.belief
def averages(run):
    """`all_reduce` and `reduce_scatter` average

    By default they sum. DDP divides by the number of ranks itself.

        from course_utils import run_ranks
        def f(rank, world_size):
            torch.distributed.all_reduce(x := torch.tensor([10.0 * rank]))
            return x
        run_ranks(f, 2)
    """
    code = run.code.replace("all_reduce(x)", "all_reduce(x.div_(2))")
    return run.again(code.replace("x = half", "x = half / 2"))


@family.belief
def only_on_rank_0(run):
    """Only rank 0 has the result of an `all_reduce` or `all_gather`

    All ranks have it: that's the "all". `reduce` and `gather` leave it on one.

        from course_utils import run_ranks
        def f(rank, world_size):
            torch.distributed.all_reduce(x := torch.tensor([10.0 * rank]))
            return x
        run_ranks(f, 2)
    """
    kept = r"\1dist.all_reduce(y := x.clone())\n\1x = x if rank else y"
    code = re.sub(r"( +)dist.all_reduce\(x\)", kept, run.code)
    gathered = "dist.all_gather(parts, x)"
    return run.again(code.replace(gathered, f"{gathered}\n    if rank: parts[0].zero_()"))


@family.belief
def returned(run):
    """A collective returns its result, and leaves `x` as it was

    It writes into the tensors meant for the result (in `broadcast` and `all_reduce` that is `x` itself). It
    returns None, or a work object with `async_op=True`.

        from course_utils import run_ranks
        def f(rank, world_size):
            x = torch.tensor([10.0 * rank])
            return torch.distributed.all_reduce(x), x
        run_ranks(f, 2)
    """
    return run.again(re.sub(r"(all_reduce|broadcast)\(x", r"\1(x.clone()", run.code))


@family.belief
def own_part_first(run):
    """In the result of an `all_gather` a rank's own part comes first

    The parts are in the order of the ranks: the same list on every rank.

        from course_utils import run_ranks
        def f(rank, world_size):
            parts = [torch.zeros(1), torch.zeros(1)]
            torch.distributed.all_gather(parts, torch.tensor([10.0 + rank]))
            return torch.cat(parts)
        run_ranks(f, 2)
    """
    return run.again(run.code.replace("torch.cat(parts)", "torch.cat(parts[::-1] if rank else parts)"))
