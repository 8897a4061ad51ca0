"""Which items a DistributedSampler gives to a rank"""

import re

from course_utils.questions import Family

family = Family(section="Who reads what")


@family.program
def sampler(draw, level):
    ranks = draw.randrange(3, 12)
    rounds = draw.randrange(3, 8) if level == 4 else draw.randrange(1, 6)
    items = ranks * rounds + draw.randrange(1, ranks)  # not a multiple: some rank lacks one
    drop = draw.choice(["", ",\n    drop_last=True"]) if level > 1 else ""
    rank = "rank" if level > 2 else draw.choice([draw.randrange(ranks), ranks - 1])
    head = "from torch.utils.data import DataLoader, DistributedSampler\n"
    given = f"num_replicas={ranks}, rank={rank}, shuffle=False{drop}"
    made = f"sampler = DistributedSampler(range({items}), {given})"
    if level < 3:
        return "\n".join([head.replace("DataLoader, ", ""), made, "list(sampler)"])
    one, other = draw.randrange(ranks - 1), draw.choice([draw.randrange(ranks), ranks - 1])
    lines = ["read = []", f"for rank in range({ranks}):", f"    {made}".replace("\n", "\n    ")]
    if level == 3:
        lines = [head.replace("DataLoader, ", ""), *lines, "    read.append(list(sampler))"]
        return "\n".join([*lines, f"read[{one}], read[{other}]"])
    lines.append(f"    loader = DataLoader(range({items}), 2, sampler=sampler)")
    lines.append("    read.append([batch.tolist() for batch in loader])")
    if level == 4:
        return "\n".join([head, *lines, f"read[{other}]"])
    lines += [
        f"shuffled = DistributedSampler(range(100), num_replicas={ranks}, rank=0)",
        "first, second = list(shuffled), list(shuffled)",
        f"shuffled.set_epoch({draw.randrange(1, 9)})",
    ]
    return "\n".join([head, *lines, f"read[{other}], first == second, second == list(shuffled)"])


def dealt(run, how):
    """What the program gives where each rank has other items of `range({0})`, of {1} ranks, at rank {2}."""
    made = r"DistributedSampler\(range\((\d+)\), num_replicas=(\d+), rank=(\w+), shuffle=False[^)]*\)"
    return run.again(re.sub(made, lambda found: how.format(*found.groups()), run.code))


@family.belief
def in_blocks(run):
    """Each rank gets a block of neighbours

    The items are dealt out in turn: rank 1 of 3 gets 1, 4, 7.

        from torch.utils.data import DistributedSampler
        list(DistributedSampler(range(9), num_replicas=3, rank=1, shuffle=False))
    """
    count = r"-(-{0} // {1})" if "drop_last" not in run.code else "({0} // {1})"
    return dealt(run, f"([*range({{0}})] * 2)[{count} * {{2}} : {count} * ({{2}} + 1)]")


@family.belief
def no_padding(run):
    """Each item is read once, and some ranks get one less

    Every rank gets as many as the others. Items from the start are read twice to fill up, or with
    `drop_last=True` the items at the end are left out.

        from torch.utils.data import DistributedSampler
        samplers = [DistributedSampler(range(5), 2, rank, shuffle=False) for rank in range(2)]
        [list(sampler) for sampler in samplers]
    """
    return dealt(run, "range({0})[{2}::{1}]")


@family.belief
def drop_last_is_for_batches(run):
    """`drop_last` of a sampler is about batches; the ranks are filled up all the same

    Here it leaves out items at the end, so that nothing is read twice. That of a `DataLoader` is about
    batches.

        from torch.utils.data import DistributedSampler
        list(DistributedSampler(range(5), num_replicas=2, rank=1, shuffle=False, drop_last=True))
    """
    return run.again(re.sub(r",\s+drop_last=True", "", run.code))


@family.belief
def anew_each_time(run):
    """It shuffles anew each time that one goes through it

    The order comes from the seed and the epoch. Without `set_epoch` every epoch has the same.

        from torch.utils.data import DistributedSampler
        sampler = DistributedSampler(range(100), num_replicas=2, rank=0)
        list(sampler) == list(sampler)
    """
    return (run.value[0], False, False) if "set_epoch" in run.code else None
