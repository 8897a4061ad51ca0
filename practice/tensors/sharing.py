"""Who shares memory with a tensor"""

import re

from course_utils.questions import Family

family = Family(section="What copies", asked="Which of these does the write to `x` reach?")
FIRST = [".t()"] * 3 + [".float()"] * 2 + ["[:, 1:]", "[:, ::2]", "[[0, 1]]", "[[2, 0]]", "[-1]", "[1:3]"]
SECOND = [".reshape(-1)"] * 3 + [".flatten()", ".contiguous()"]


@family.program
def derived(draw, level):
    rows, columns = draw.sample([5, 6, 7, 8, 9], 2)
    bases, asked = "abc"[: (level + 1) // 2 if level > 1 else 0], "pqrs"[: 3 + (level > 3)]
    lines, source = [f"x = torch.zeros({rows}, {columns})"], "x"
    for name in bases:
        lines.append(f"{name} = {source}{draw.choice(['.t()', '.t()', '[:, 1:]', '.contiguous()', '[1:]'])}")
        source = name
    for name in asked:
        first, second = draw.choice(FIRST), draw.choice(SECOND)
        lines.append(f"{name} = {source}{draw.choice([first, second, first + second, first + second])}")
        source = draw.choice(["x", *bases])
    return "\n".join([*lines, "x.fill_(1)", f"[bool(y.all()) for y in ({', '.join(asked)})]"])


def reached(run, shares):
    """Which of them the write reaches. `shares`: whether an operation's result does; None for torch's own."""
    found = {"x": True}
    for line in run.code.splitlines()[1:-2]:
        name, source, operations = re.fullmatch(r"(\w) = (\w)(.*)", line).groups()
        found[name], y = found[source], run.names[source]
        for operation in re.findall(r"\.\w+\(.*?\)|\[+.*?\]+", operations):
            z = eval(f"y{operation}", {"y": y})
            if (same := shares(operation)) is None:
                same = z.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
            found[name], y = found[name] and same, z
    return [*found.values()][-len(run.value) :]


@family.belief
def transpose_copies(run):
    """`t()` puts the elements into a new order in memory

    It swaps two sizes and two strides. No element is moved, and a write to one of the two shows in the other.

        x = torch.zeros(2, 3)
        x.t()[0, 1] = 5
        x
    """
    return reached(run, lambda operation: False if operation == ".t()" else None)


@family.belief
def reshape_copies(run):
    """`reshape` and `flatten` make a copy

    They return a view where there is one, and copy only where no strides give the new shape.

        x = torch.zeros(2, 3)
        x.reshape(6)[1] = x.flatten()[2] = 5
        x
    """
    return reached(run, lambda operation: False if operation in (".reshape(-1)", ".flatten()") else None)


@family.belief
def reshape_shares(run):
    """`reshape` is `view` by another name: it always shares

    Where there is no view of that shape, `view` raises and `reshape` copies, without a word.

        x = torch.zeros(2, 3)
        x.t().reshape(6)[1] = 5
        x
    """
    return reached(run, lambda operation: True if operation in (".reshape(-1)", ".flatten()") else None)


@family.belief
def indexing_shares(run):
    """What you read with square brackets is a view

    An integer and a slice give views. A list of integers and a mask pick from anywhere, so they copy.

        x = torch.zeros(3)
        x[[0, 1]].fill_(5), x[1:].fill_(7), x
    """
    return reached(run, lambda operation: True if operation.startswith("[") else None)


@family.belief
def conversion_copies(run):
    """A conversion always copies

    Where there is nothing to convert, it returns the tensor: so does `float()` of float32, and `to`.

        x = torch.zeros(3)
        x.float() is x, x.double() is x
    """
    return reached(run, lambda operation: False if operation == ".float()" else None)
