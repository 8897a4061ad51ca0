"""How many batches, and what is in one"""

import re

import torch

from course_utils.questions import Family

family = Family(section="Making a batch")
FIELDS = {"image": "torch.zeros(3, {w}, {w})", "label": "i % 3", "price": "0.5 * i", "flag": "i > 2"}


@family.program
def loaders(draw, level):
    n, size, w = draw.randint(7, 39), draw.randint(2, 6), draw.randint(4, 9)
    loading = f"batch_size={size}{draw.choice(['', ', drop_last=True'])})"
    lines = ["from torch.utils.data import DataLoader"]
    if level == 1:
        lines.append(f"loader = DataLoader(range({n}), {loading}")
        return "\n".join([*lines, "len(loader), len([*loader][-1])"])
    names = ["image", *draw.sample(["label", "price", "flag"], 1 if level < 4 else 2)]
    made = {name: FIELDS[name].format(w=w) for name in names}
    item = f"({', '.join(made.values())})"
    if level == 5:
        item = f"dict({', '.join(f'{name}={value}' for name, value in made.items())})"
    lines += [f"data = [{item} for i in range({n})]", f"loader = DataLoader(data, {loading}"]
    lines.append("batch = next(iter(loader))" if level == 2 else "*_, batch = loader  # the last one")
    lines.append(f"{', '.join(names)} = batch{'.values()' * (level == 5)}")
    shapes = [f"tuple({name}.shape)" for name in names[:2]]
    return "\n".join([*lines, f"len(loader), {', '.join(shapes)}, {names[-1]}.dtype"])


@family.belief
def a_short_one_is_dropped(run):
    """All batches have `batch_size` items: what is left over is dropped

    By default the last batch is as long as what is left. `drop_last=True` drops it.

        from torch.utils.data import DataLoader
        [len(batch) for batch in DataLoader(range(7), batch_size=3)]
    """
    return run.again(re.sub(r"(batch_size=\d+)\)", r"\1, drop_last=True)", run.code))


@family.belief
def drop_last_is_for_many(run):
    """`drop_last` is for several processes: a single loader gives every item

    It drops the last batch of any loader, where that is short. The sampler of several processes has one of
    its own.

        from torch.utils.data import DataLoader
        [len(batch) for batch in DataLoader(range(7), batch_size=3, drop_last=True)]
    """
    return run.again(run.code.replace(", drop_last=True", ""))


@family.belief
def length_counts_items(run):
    """`len(loader)` is the number of items

    It counts batches. The number of items is `len(loader.dataset)`.

        from torch.utils.data import DataLoader
        loader = DataLoader(range(7), batch_size=3)
        len(loader), len(loader.dataset)
    """
    return run.again(run.code.replace("len(loader)", "len(loader.dataset)"))


@family.belief
def numbers_get_a_column(run):
    """A number for each item makes a batch of shape (batch, 1)

    Numbers make a tensor with one dimension. Against predictions of shape (batch, 1) it broadcasts to a
    square, and the loss still falls.

        from torch.utils.data import default_collate
        default_collate([5, 6, 7]).shape
    """
    return run.again(re.sub(r"(label|price|flag)\.shape", r"\1[:, None].shape", run.code))


@family.belief
def floats_become_float32(run):
    """Numbers with a point become float32, as everywhere in torch

    A Python float is a double, and collating keeps it one: float64. `torch.tensor` is what makes the default
    dtype of it.

        from torch.utils.data import default_collate
        default_collate([0.5, 1.5]).dtype, torch.tensor([0.5, 1.5]).dtype
    """
    return tuple(torch.float32 if one is torch.float64 else one for one in run.value)
