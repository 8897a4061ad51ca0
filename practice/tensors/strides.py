"""Strides after a chain of views"""

import re

from course_utils.questions import Family

family = Family(section="Storage, offset, size, stride")


@family.program
def views(draw, level):
    shape = draw.sample([2, 3, 4, 5, 6], draw.choice([2, 3]))
    total = 1
    for size in shape:
        total *= size
    lines = [f"x = torch.arange({total}.).view({', '.join(map(str, shape))})", "y = x"]
    dims = list(shape)
    while len(lines) < level + 2:
        kind = draw.choice(["transpose", "slice", "step", "select", "expand"])
        i = draw.randrange(len(dims))
        if kind == "transpose" and len(dims) > 1:
            j = draw.choice([k for k in range(len(dims)) if k != i])
            lines.append(f"y = y.transpose({i}, {j})")
            dims[i], dims[j] = dims[j], dims[i]
        elif kind == "slice" and dims[0] > 2:
            lines.append("y = y[1:]")
            dims[0] -= 1
        elif kind == "step" and dims[-1] > 2:
            lines.append("y = y[..., ::2]")
            dims[-1] = (dims[-1] + 1) // 2
        elif kind == "select" and len(dims) > 2:
            lines.append(f"y = y.select({i}, 0)")
            del dims[i]
        elif kind == "expand" and len(dims) < 4:
            lines.append(f"y = y.unsqueeze(0).expand(3, {', '.join(map(str, dims))})")
            dims.insert(0, 3)
    return "\n".join([*lines, "y.stride()"])


@family.belief
def of_contiguous(run):
    """Strides are those of a contiguous tensor of that size

    A view keeps the storage; its strides say how far apart two neighbours lie *there*. Only in a
    contiguous tensor do they follow from its size: `contiguous()` makes one.

        x = torch.arange(6.).view(2, 3)
        x.t().stride(), x.t().contiguous().stride()
    """
    return run.names["y"].contiguous().stride()


@family.belief
def of_the_original(run):
    """A view has the strides of what it was made from

    `transpose` swaps strides, a step multiplies one, `select` drops one, `expand` puts a 0 in.
    Only a slice with step 1 keeps them all.

        x = torch.arange(6.).view(2, 3)
        x.stride(), x[:, ::2].stride()
    """
    x, y = run.names["x"], run.names["y"]
    return x.stride() if x.dim() == y.dim() else None


@family.belief
def expand_copies(run):
    """`expand` repeats the elements in memory

    It gives each dimension that it widens stride 0: every index along it reads the same element.

        x = torch.arange(3.)
        x.expand(4, 3).stride(), x.expand(4, 3).untyped_storage().nbytes()
    """
    return run.again(re.sub(r"(expand.*)", r"\1.contiguous()", run.code))


@family.belief
def in_bytes(run):
    """Strides count bytes

    torch counts elements. NumPy counts bytes.

        x = torch.arange(6.).view(2, 3)
        x.stride(), x.numpy().strides
    """
    y = run.names["y"]
    return tuple(stride * y.element_size() for stride in y.stride())
