"""Which new shapes are views"""

import re
from itertools import accumulate
from math import prod
from operator import mul

from course_utils.questions import Family

family = Family(section="`view` and `reshape`", asked="For which shapes is the result a view of `y`?")


@family.program
def reshaped(draw, level):
    sizes = draw.sample([4, 6, 8, 10, 12], 2) + ([draw.choice([2, 4])] if level > 2 else [])
    lines, source = [f"x = torch.zeros({', '.join(map(str, sizes))})"], "x"
    for _ in range(level - level // 3):
        i, j = sorted(draw.sample(range(len(sizes)), 2))
        kind = draw.choice(["transpose", "rows", "step", "columns"])
        if kind == "transpose" or sizes[0 if kind == "rows" else -1] < 4:
            lines.append(f"y = {source}.transpose({i}, {j})")
            sizes[i], sizes[j] = sizes[j], sizes[i]
        elif kind == "rows":
            lines.append(f"y = {source}[2:]")
            sizes[0] -= 2
        elif kind == "step":
            lines.append(f"y = {source}[..., ::2]")
            sizes[-1] = (sizes[-1] + 1) // 2
        else:
            lines.append(f"y = {source}[..., {sizes[-1] - 2}:]")
            sizes[-1] = 2
        source = "y"
    shapes = [[total := prod(sizes)], sizes[::-1], [1, *sizes]]
    for i, size in enumerate(sizes):
        if size % 2 == 0 and size > 2:
            shapes += [[*sizes[:i], 2, size // 2, *sizes[i + 1 :]]]
            shapes += [[*sizes[: i - 1], 2 * sizes[i - 1], size // 2, *sizes[i + 1 :]]] if i else []
        if i:
            shapes += [[*sizes[: i - 1], sizes[i - 1] // 2, 2 * size, *sizes[i + 1 :]]]
            shapes += [[*sizes[: i - 1], sizes[i - 1] * size, *sizes[i + 1 :]]] * (len(sizes) > 2)
    shapes = [one for k, one in enumerate(shapes) if one not in (sizes, *shapes[:k]) and prod(one) == total]
    shapes = draw.sample(shapes, min(len(shapes), (level + 4) // 2))
    lines.append(f"shapes = [{', '.join(map(str, shapes))}]")
    return "\n".join([*lines, "[y.reshape(shape).data_ptr() == y.data_ptr() for shape in shapes]"])


@family.belief
def needs_contiguous(run):
    """A view needs a contiguous tensor; `reshape` copies any other

    Only neighbours count: two dimensions merge where one step of the outer is a full run of the inner, and
    splitting one always works.

        y = torch.arange(18).view(3, 6)[:, ::2]
        y.is_contiguous(), y.view(9).stride()
    """
    return [run.names["y"].is_contiguous()] * len(run.value)


@family.belief
def transpose_copies(run):
    """`transpose` puts the elements into a new order in memory

    It swaps two strides and moves nothing, so what comes after it reads the old order with new strides.

        x = torch.arange(6).view(2, 3)
        x.t().stride(), x.t().data_ptr() == x.data_ptr()
    """
    return run.again(re.sub(r"(\.transpose\(\d, \d\))", r"\1.contiguous()", run.code))


@family.belief
def numbers_fit(run):
    """A view of a new shape needs only the same number of elements

    A view has one stride for each dimension. Where the elements, in their order, don't lie at such places,
    there is no view, and `reshape` copies.

        y = torch.arange(6).view(2, 3).t()
        y.reshape(6).data_ptr() == y.data_ptr(), y.reshape(6).tolist()
    """
    return [True] * len(run.value)


@family.belief
def only_transposes(run):
    """Without a transpose or a permute there is always a view, and with one there is none

    A slice can leave gaps. If they lie between the rows only, a row and its successor can't be read with one
    stride. And a transposed tensor can have views: splitting a dimension works whatever its stride.

        y = torch.arange(18).view(3, 6)
        [z.data_ptr() == y.data_ptr() for z in (y[:, :4].reshape(12), y.t().reshape(2, 3, 3))]
    """
    strides = run.names["y"].stride()
    return [sorted(strides, reverse=True) == [*strides]] * len(run.value)


@family.belief
def merging_copies(run):
    """Of a tensor that isn't contiguous, dimensions can be split, but not merged

    They can be merged where one step of the outer is as long as a full run of the inner, gaps or not.

        y = torch.arange(18).view(3, 6)[:, ::2]
        y.is_contiguous(), y.view(9).stride()
    """
    y, shapes = run.names["y"], run.names["shapes"]
    starts = {*accumulate(y.shape, mul)}
    return [y.is_contiguous() or starts <= {*accumulate(shape, mul)} for shape in shapes]
