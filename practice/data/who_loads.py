"""What the workers of a loader load"""

import re

from course_utils.questions import Family

family = Family(section="Streams", slow=True)
ALL = "return iter(range({first}, {end}))"
SHARES = {  # at these levels each worker takes its share
    4: "return iter(range({first} + info.id, {end}, info.num_workers))",
    5: "return iter(torch.arange({first}, {end}).tensor_split(info.num_workers)[info.id])",
}


@family.program
def workers(draw, level):
    many, size = draw.choice([2, 2, 3]), draw.randint(2, 4)
    first, n = draw.randint(0, 90), draw.randint(4, 7)
    if level > 3:
        n = many * size + draw.randint(2, 5)
    drop = ", drop_last=True" * (level > 2 or level == 2 and draw.random() < 0.5)
    lines = ["from torch.utils.data import DataLoader, IterableDataset" + ", get_worker_info" * (level > 3)]
    lines += ["class Stream(IterableDataset):", "    def __iter__(self):"]
    lines += ["        info = get_worker_info()"] * (level > 3)
    lines.append("        " + SHARES.get(level, ALL).format(first=first, end=first + n))
    lines.append(f"loader = DataLoader(Stream(), batch_size={size}, num_workers={many}{drop})")
    return "\n".join([*lines, "[batch.tolist() for batch in loader]"])


def without_a_short_end(run, batches):
    return batches[:-1] if len(batches[-1]) < run.names["loader"].batch_size else batches


@family.belief
def shared_by_the_loader(run):
    """The loader shares a stream out among its workers

    Each worker gets a copy of the dataset and reads all of it, so each item comes once for every worker. The
    dataset has to take its share, by `get_worker_info()`.

        from torch.utils.data import DataLoader, IterableDataset
        class Stream(IterableDataset):
            def __iter__(self):
                return iter(range(3))
        [batch.tolist() for batch in DataLoader(Stream(), 3, num_workers=2)]
    """
    return run.again(re.sub(r"num_workers=\d", "num_workers=0", run.code))


@family.belief
def batches_are_mixed(run):
    """The workers load item by item in turn, so a batch has items of all of them

    A worker makes whole batches: it gets the indices of one, or cuts its own stream into batches.

        from torch.utils.data import DataLoader, get_worker_info
        class Items(list):
            def __getitem__(self, i):
                return get_worker_info().id
        [batch.tolist() for batch in DataLoader(Items(range(8)), 4, num_workers=2)]
    """
    size = run.names["loader"].batch_size
    items = sum(run.again(re.sub(r"batch_size=\d", "batch_size=1", run.code)), [])
    batches = [items[i : i + size] for i in range(0, len(items), size)]
    return without_a_short_end(run, batches) if "drop_last" in run.code else batches


@family.belief
def drops_one_at_most(run):
    """`drop_last` drops one batch at most, the last of all

    For a stream each worker makes its own batches, and drops its own short one.

        from torch.utils.data import DataLoader, IterableDataset
        class Stream(IterableDataset):
            def __iter__(self):
                return iter(range(5))
        [batch.tolist() for batch in DataLoader(Stream(), 4, num_workers=2, drop_last=True)]
    """
    if "drop_last" not in run.code:
        return None
    return without_a_short_end(run, run.again(run.code.replace(", drop_last=True", "")))
