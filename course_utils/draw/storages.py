"""How tensors read a storage: several of them over one, and the walk from each element to the next."""

from __future__ import annotations

import itertools
from collections import Counter

from torch import Tensor

from course_utils.draw import palette
from course_utils.draw.labels import LETTER, Label, counted
from course_utils.draw.layout import Layout, must_be_drawable, same_storage
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Scene, to_picture, trimmed
from course_utils.draw.storage_cells import CELL, Cells, storage_values
from course_utils.wrong_use import WrongUse, public

LONGEST_WALK, SHORT_STORAGE = 20, 12
MARGIN = 84  # for the names at the left
LINE = 22


@public
def storages(**tensors: Tensor) -> Picture:
    """Several tensors and what each reads: a row for each storage, below it a strip for each tensor.

    Raises `TypeError` for what has no strides, `ValueError` for what is too large.
    """
    for tensor in tensors.values():
        must_be_drawable(tensor)
    margin = max(MARGIN, max((LETTER * 12.5 * len(name) for name in tensors), default=0) + 52)
    rights = [1.08 * LETTER * 11 * len(strides_of(tensor)) for tensor in tensors.values()]
    groups = by_storage(tensors)
    said = "; ".join(f"{n}: {_reads(t)}" for group in groups for n, t in group.items())
    scene = Scene(f"{counted(len(groups), 'storage')}. {said}")
    y = 0.0
    for group in groups:
        first = next(iter(group.values()))
        cells, values = Cells.of(first), storage_values(first)
        width = min(SHORT_STORAGE, int((WIDTH - margin - 12 - max(rights)) // cells.width))
        read = {name: Counter(Layout.of(tensor).addresses()) for name, tensor in group.items()}
        by_any = dict.fromkeys(itertools.chain(*read.values()), 1)
        for start in range(0, max(len(values), 1), width):
            row = range(start, min(start + width, len(values)))
            scene.write(1, y + 13 + CELL / 2, "storage" if values else "empty storage", bold=True)
            cells.row(scene, row, values, by_any, margin, y + 13)
            y += 13 + CELL + LINE / 2 + 2
            for name, times in read.items():
                scene.write(1, y, name, code=True, bold=True)
                scene.write(margin - 7, y, "reads", anchor="end")
                for x, place in enumerate(row):
                    if place in times:
                        _bar(scene, margin + x * cells.width, y, cells.width, times[place])
                if start == 0:
                    right = margin + len(row) * cells.width + 12
                    scene.write(right, y, strides_of(group[name]), 11, code=True)
                y += LINE
        y += 10
    scene.height = y
    return to_picture(trimmed(scene))


@public
def walk(tensor: Tensor, name: str = "x") -> Picture:
    """The elements of a tensor in the order of reading, as a path below its storage: each lies one line lower
    than the one before.

    Steps as long as the first are alike, so that one stride is a straight line; the others stand out. Raises
    `ValueError` for a storage of more than 20 elements.
    """
    must_be_drawable(tensor)
    values = storage_values(tensor)
    if len(values) > LONGEST_WALK:
        raise WrongUse(f"the storage has {len(values)} elements; a walk can show {LONGEST_WALK}")
    cells, addresses = Cells.of(tensor), Layout.of(tensor).addresses()
    steps = [b - a for a, b in itertools.pairwise(addresses)]
    down = min(20, 324 / max(len(addresses), 1))
    first = CELL + 34
    scene = Scene(f"{name}: read in order, the steps in storage are {', '.join(f'{s:+d}' for s in steps)}")
    scene.write(1, 13 + CELL / 2, "storage", bold=True)
    cells.row(scene, range(len(values)), values, dict.fromkeys(addresses, 1), MARGIN, 13)
    scene.write(1, first, "read first", 11)
    if len(steps) > 1:
        scene.write(1, first + down * len(steps), "read last", 11)
    points = [(MARGIN + (a + 0.5) * cells.width, first + down * n) for n, a in enumerate(addresses)]
    for number, step in enumerate(steps):
        odd = step != steps[0]
        colour = palette.ODD if odd else palette.VIEW
        scene.line((points[number], points[number + 1]), 3, colour, dashed=odd)
        x, y = points[number]
        if odd:  # beside the upper end, on the side that the path leaves
            side = (9, "start") if step < 0 else (-9, "end")
            scene.write(x + side[0], y, f"{step:+d}", 11, side[1])
        elif number == 0:  # above the path, which has nothing above its first step
            scene.write(x + 7, y - 12, f"{step:+d}", 11)
    for x, y in points:
        scene.box(x - 3.5, y - 3.5, 7, 7, "storage", line=1)
    foot = first + down * len(addresses) + 8
    scene.write(1, foot, name, code=True, bold=True)
    scene.write(1, foot + LINE, _steps_in_words(steps))
    scene.height = foot + LINE + 12
    return to_picture(trimmed(scene))


def by_storage(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The tensors, those that share a storage together; in the order in which they are given."""
    groups: list[dict[str, Tensor]] = []
    for name, tensor in tensors.items():
        shared = (g for g in groups if same_storage(next(iter(g.values())), tensor))
        group = next(shared, None)
        if group is None:
            groups.append({name: tensor})
        else:
            group[name] = tensor
    return groups


def strides_of(tensor: Tensor) -> str:
    """Size, stride and offset in words."""
    layout = Layout.of(tensor)
    return f"size {layout.size} stride {layout.stride} offset {layout.offset}"


def _bar(scene: Scene, x: float, y: float, width: float, times: int) -> None:
    """This place of the storage is read: a bar below it, with how often where that is more than once."""
    said = (Label(x + width / 2, y, f"×{times}", 10, "middle", bold=True),) if times > 1 else ()
    scene.box(x + 3, y - 6, width - 6, 12, "view", said, line=0)


def _reads(tensor: Tensor) -> str:
    layout = Layout.of(tensor)
    return f"{strides_of(tensor)}, reads {len(set(layout.addresses()))} of {layout.length} places"


def _steps_in_words(steps: list[int]) -> str:
    if not steps:
        return "no step: at most one element"
    odd = sum(step != steps[0] for step in steps)
    if not odd:
        return f"every step is {steps[0]:+d}: one stride reads all {len(steps) + 1} elements"
    return f"{odd} of {len(steps)} steps are not {steps[0]:+d}: no single stride reads them in this order"
