"""A live model as a tree: what each module holds, and what becomes of it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from torch import nn

from course_utils.draw import palette
from course_utils.draw.lanes import _size
from course_utils.draw.module_tree import BADGES, Held, Node, counted, fold, must_be_module, read
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Box, Line, Scene, to_picture
from course_utils.draw.words import LETTER, Words

# Sizes in pixels of the page.
ROW, CODE, SMALL, INDENT = 20.0, 12.0, 10.5, 14.0
SHAPE, BYTES, KIND = 208.0, 356.0, 364.0
COLUMNS = {"saved": (488.0, 42.0), "moved": (533.0, 46.0), "trained": (582.0, 50.0), "shared": (635.0, 46.0)}
FILLS = {"saved": "storage", "moved": "flight", "trained": "gradient", "shared": "view"}
TIES = 683.0  # where lines between shared tensors begin
MOST, MOST_FOLDED = 40, 90  # rows; with more what repeats is folded, then what lies deep is closed
OUTSIDE = "not saved, not moved, not in parameters()"


def modules(model: nn.Module, *, depth: int | None = None) -> Picture:
    """A picture of a model as a tree: a row for each module, and for each tensor that it holds.

    A tensor's row says its shape, its bytes, its kind, and what becomes of it: saved (in `state_dict()`),
    moved (by `.to()`), trained (in `parameters()`, and requires a gradient), shared (under several names,
    joined by a line). A list, tuple or dict of modules or tensors stands in a dashed frame: it is outside.
    Modules deeper than `depth` are closed. In a large model siblings of one structure are drawn once.
    Raises `TypeError` for what is no module.
    """
    must_be_module(model, "draw.modules", depth)
    return to_picture(compose(read(model), depth))


@dataclass(frozen=True)
class Row:
    """A line of the picture: a module, or a tensor (`held`). `closed`: what is in it is not shown; `framed`:
    how many rows, from this one on, stand in a dashed frame."""

    level: int
    node: Node
    held: Held | None = None
    closed: bool = False
    framed: int = 0

    def has(self, badge: str) -> tuple[int, int]:
        """Of how many tensors it speaks here, and how many of them have this badge."""
        inside = [self.held] if self.held else self.node.tensors() if self.closed else []
        return len(inside), sum(getattr(one, badge) for one in inside)


def levels(node: Node) -> int:
    """How many levels can be open."""
    return 1 + max(map(levels, node.below), default=0) if node.held or node.below else 0


def rows_of(tree: Node, depth: int | None = None) -> list[Row]:
    """The rows of a picture: all of them, where there is room or a depth is asked for."""
    most = levels(tree) if depth is None else depth
    rows = _rows(tree, 0, most)
    if len(rows) > MOST:
        rows = _rows(fold(tree), 0, most)
    while depth is None and len(rows) > MOST_FOLDED and most > 1:
        most -= 1
        rows = _rows(fold(tree), 0, most)
    return rows


def _rows(node: Node, level: int, depth: int, inside: bool = False) -> list[Row]:
    frame, closed = node.outside and not inside, level >= depth and bool(node.held or node.below)
    rows = [] if closed else [Row(level + 1, node, held) for held in node.held]
    for one in () if closed else node.below:
        rows += _rows(one, level + 1, depth, inside or frame)
    return [Row(level, node, closed=closed, framed=(len(rows) + 1) * frame), *rows]


def compose(tree: Node, depth: int | None = None, lit: str = "") -> Scene:
    """The scene of `modules`. `lit`: "saved", "moved", "trained" or "shared"; what has that badge is lit."""
    tensors = tree.tensors()
    modules = sum(not one.outside and not one.same for one in tree.walk()) - 1
    head = f"{tree.path}, a {tree.what}" if tree.path else tree.what
    head = f"{head}: {counted(modules, 'module')} inside, {_sizes(tensors)}"
    counts = " · ".join(f"{sum(getattr(one, badge) for one in tensors):,} {badge}" for badge in BADGES)
    scene = Scene(head)
    scene.words += [Words(1, 11, head, 13.5, bold=True), Words(1, 32, counts, SMALL + 1)]
    for badge in BADGES[:3]:
        x, width = COLUMNS[badge]
        scene.words.append(Words(x + width / 2, 32, f"{badge}?", SMALL, "middle", faint=True))
    rows, y = rows_of(tree, depth), 46.0
    twice = {row.node.same for row in rows} - {""}
    ties: dict[int | str, list[tuple[float, tuple[str, ...]]]] = {}
    frame, left, ends, told = 0.0, 0.0, 0, []
    for number, row in enumerate(rows):
        if row.framed:
            y += 3
            frame, left, ends = y, row.level * INDENT, number + row.framed
            told.append(f"{row.node.path}, a {row.node.what}, is outside of the tree: {_why(row.node)}")
        _row(scene, row, y, lit)
        if row.held:
            ties.setdefault(row.held.ident, []).append((y + ROW / 2, row.held.names))
        elif row.node.same or row.node.path in twice:
            first = row.node.same or row.node.path
            ties.setdefault(first, []).append((y + ROW / 2, tuple(dict.fromkeys((first, row.node.path)))))
            _box(scene, "shared", y + ROW / 2, "shared", "", f"{row.node.path}.shared")
        y += ROW
        if ends == number + 1:
            scene.boxes.append(Box(left, frame, WIDTH - 1 - left, y - frame, dashed=True, part="outside"))
            y, ends = y + 3, 0
    for number, tie in enumerate(tie for tie in ties.values() if len(tie) > 1):
        names = list(dict.fromkeys(name for _, some in tie for name in some))
        x = TIES + 6 + 4 * (number % 3)
        for (above, _), (below, _) in itertools.pairwise(tie):
            points = ((TIES, above), (x, above), (x, below), (TIES, below))
            scene.lines.append(Line(points, 2.0, palette.VIEW, arrow=False, key=names[0]))
        told.append(f"{' and '.join(names)} are one")
    scene.description = ". ".join([f"{head}: {counts}", *told])
    scene.height = y + 4
    return scene


def _sizes(tensors: list[Held]) -> str:
    return f"{counted(len(tensors), 'tensor')}, {_size(sum(one.bytes for one in tensors))}"


def _why(node: Node) -> str:
    """What becomes of what is not in the tree of registered modules."""
    if not node.registered_as:
        some = any(
            one.registered_as or any(held.saved or held.moved for held in one.held) for one in node.walk()
        )
        return "some of it registered as well" if some else OUTSIDE
    first, *others = node.registered_as
    return f"registered as well, as {first}" + (f" and {len(others)} more" if others else "")


def _row(scene: Scene, row: Row, y: float, lit: str) -> None:
    x, middle = row.level * INDENT + 4, y + ROW / 2
    part, here = ("tensor", row.held) if row.held else ("module", row.node)
    name = here.name or "the model"
    name += f" ×{row.node.times}" * (row.node.times > 1 and not row.held)
    name = _cut(name, SHAPE - x if row.held else 250, CODE)
    words = Words(x, middle, name, CODE, code=True, bold=not row.held)
    fill, path = "lit" if lit and row.has(lit)[1] else "", here.path
    # A box for each row, so that what has no fill can be pointed at too.
    line = 0.8 * bool(fill)
    box = Box(x - 3, y + 1, words.width + 6, ROW - 2, fill, (words,), path, line, part=part, key=path)
    scene.boxes.append(box)
    if row.held:
        scene.words += [
            Words(SHAPE, middle, _cut(row.held.shape, BYTES - SHAPE - 60, SMALL), SMALL, code=True),
            Words(BYTES, middle, _size(row.held.bytes), SMALL, "end", faint=True),
            Words(KIND, middle, row.held.kind, SMALL, faint=True),
        ]
    else:
        _module(scene, row, x + words.width + 10, middle)
    for badge in BADGES:
        _badge(scene, row, badge, middle)


def _module(scene: Scene, row: Row, x: float, middle: float) -> None:
    node, said = row.node, row.node.what
    room = (COLUMNS["saved"][0] if row.closed else WIDTH) - 4
    if node.same:
        said += f", the same module as {node.same}"
    elif node.registered_as:
        said += f", {_why(node)}"
    elif row.framed:
        words = (Words(x + 27, middle, "outside", SMALL, "middle"),)
        scene.boxes.append(Box(x, middle - 8, 54, 16, "odd", words, line=0.8))
        x += 62
        said += "" if row.closed else f", {_why(node)}"
    if row.closed:
        said += f" ▸ {_sizes(node.tensors())}" + " each" * (node.times > 1)
    scene.words.append(Words(x, middle, _cut(said, room - x, SMALL + 1, 0.52), SMALL + 1))


def _badge(scene: Scene, row: Row, badge: str, middle: float) -> None:
    """A filled box for what all of it has, how many for what some of it have, a dash for what it has not."""
    of, count = row.has(badge)
    if count:
        more = f"{badge}: {', '.join(row.held.names)}" if row.held else ""
        key = f"{row.held.path if row.held else row.node.path}.{badge}"
        _box(scene, badge, middle, badge if count == of else f"{count}/{of}", more, key)
    elif of and badge != "shared":
        x, width = COLUMNS[badge]
        scene.words.append(Words(x + width / 2, middle, "–", SMALL, "middle", faint=True))


def _box(scene: Scene, badge: str, middle: float, text: str, more: str, key: str) -> None:
    x, width = COLUMNS[badge]
    words = (Words(x + width / 2, middle, text, SMALL, "middle"),)
    fill = FILLS[badge] if text == badge else ""
    scene.boxes.append(Box(x, middle - 7.5, width, 15, fill, words, more, 0.8, part=badge, key=key))


def _cut(text: str, room: float, pixels: float, letter: float = LETTER) -> str:
    most = max(int(room / (letter * pixels)), 4)
    return text if len(text) <= most else text[: most - 1] + "…"
