"""A live model as a tree: what each module holds, and what becomes of it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from torch import nn

from course_utils.draw import folding, palette
from course_utils.draw.folding import PAGE
from course_utils.draw.labels import LETTER, Label, bytes_said, counted, cut
from course_utils.draw.module_tree import BADGES, Held, Node, read
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Box, Scene, to_picture
from course_utils.wrong_use import public

# Sizes in pixels of the page.
ROW, CODE, SMALL, INDENT = 20.0, 12.0, 10.5, 14.0
SHAPE, BYTES, KIND = 208.0, 356.0, 364.0
COLUMNS = {"saved": (488.0, 42.0), "moved": (533.0, 46.0), "trained": (582.0, 50.0), "shared": (635.0, 46.0)}
FILLS = {"saved": "storage", "moved": "flight", "trained": "gradient", "shared": "view"}
DEEP, LETTERS = 10, 110  # levels that are indented, letters that have room in a line
TIES = 683.0  # where lines between shared tensors begin
OUTSIDE = "not saved, not moved, not in parameters()"


@public
def modules(model: nn.Module) -> Picture:
    """A picture of a model as a tree: a row for each module, and for each tensor that it holds.

    A tensor's row says its shape, its bytes, its kind, and what becomes of it: saved (in `state_dict()`),
    moved (by `.to()`), trained (in `parameters()`, and requires a gradient), shared (under several names,
    joined by a line). A list, tuple or dict of modules or tensors stands in a dashed frame: it is outside.
    Of what has no room on a page, modules of equal structure in a row are drawn once, as in "×12", then only
    the upper levels; what is left is summed up in the last row.
    Raises `TypeError` for what is no module.
    """
    tree = read(model)
    return to_picture(compose(tree, levels(tree)))


@dataclass(frozen=True)
class Row:
    """A line of the picture: a module, or a tensor (`held`). `closed`: what is in it is not shown; `framed`:
    how many rows, from this one on, stand in a dashed frame. `times`: for how many modules in a row it
    speaks; `many`: how often it is in the model, with those that it is in."""

    level: int
    node: Node
    held: Held | None = None
    closed: bool = False
    framed: int = 0
    times: int = 1
    many: int = 1

    def has(self, badge: str) -> tuple[int, int]:
        """Of how many tensors it speaks here, and how many of them have this badge."""
        inside = [self.held] if self.held else self.node.tensors() if self.closed else []
        return len(inside), sum(getattr(one, badge) for one in inside)


def levels(node: Node) -> int:
    """How many levels can be open."""
    return 1 + max(map(levels, node.below), default=0) if node.held or node.below else 0


def _rows(node: Node, depth: int, like: dict | None = None, row: Row | None = None) -> list[Row]:
    """A row for the node, and those in it. `like`: those of equal structure in a row are one, and by which
    numbers they are told apart."""
    row = row or Row(0, node)
    frame, closed = node.outside and not row.framed, row.level >= depth and bool(node.held or node.below)
    rows = [] if closed else [Row(row.level + 1, node, held, many=row.many) for held in node.held]
    below = [] if closed else node.below
    groups = [folding.Group(0, len(below))]
    if like is not None:
        groups = folding.fold([(like[id(one)], folding.unnumbered(one.name)) for one in below])
    for group in groups:
        many = row.many * group.times
        for one in below[group.start : group.start + group.size]:
            inner = Row(row.level + 1, one, framed=row.framed or frame, times=group.times, many=many)
            rows += _rows(one, depth, like, inner)
    return [replace(row, closed=closed, framed=(len(rows) + 1) * frame), *rows]


def _fitting(tree: Node, depth: int) -> tuple[list[Row], str]:
    """The rows, of at most so many levels, and what sums up those without room."""
    rows, like = _rows(tree, depth), {}
    most = int((PAGE - 60) // ROW)
    if len(rows) <= most:
        return rows, ""
    tree.like(like)
    for levels in range(min(depth, max(row.level for row in rows) + 1), 0, -1):
        rows = _rows(tree, levels, like)
        if len(rows) <= most:
            return rows, ""
    left = []
    for row in rows[most - 1 :]:
        inside = [] if row.held else list(row.node.walk()) if row.closed else [row.node]
        kinds = ["tensor"] * bool(row.held) + [one.what for one in inside if not one.outside]
        left += kinds * row.many
    what = "tensor" if set(left) == {"tensor"} else "module" if "tensor" not in left else "module and tensor"
    return rows[: most - 1], folding.rest(left, what, LETTERS)


def compose(tree: Node, depth: int, lit: str = "") -> Scene:
    """The scene of `modules` with so many levels open. `lit`: "saved", "moved", "trained" or "shared"; what
    has that badge is lit."""
    tensors = tree.tensors()
    modules = sum(not one.outside for one in tree.walk()) - 1
    head = f"{tree.path}, a {tree.what}" if tree.path else tree.what
    head = f"{head}: {counted(modules, 'module')} inside, {_sizes(tensors)}"
    counts = " · ".join(f"{sum(getattr(one, badge) for one in tensors):,} {badge}" for badge in BADGES)
    scene = Scene(head)
    scene.words += [Label(1, 11, head, 13.5, bold=True), Label(1, 32, counts, SMALL + 1)]
    for badge in BADGES[:3]:
        x, width = COLUMNS[badge]
        scene.write(x + width / 2, 32, f"{badge}?", SMALL, "middle", faint=True)
    (rows, rest), y = _fitting(tree, depth), 46.0
    ties: dict[int, list[tuple[float, list[str]]]] = {}
    frame, left, ends, told = 0.0, 0.0, 0, []
    for number, row in enumerate(rows):
        if row.framed:
            y += 3
            frame, left, ends = y, min(row.level, DEEP) * INDENT, min(number + row.framed, len(rows))
            told.append(f"{row.node.path}, a {row.node.what}, is outside of the tree: {OUTSIDE}")
        _row(scene, row, y, lit)
        if row.held:
            ties.setdefault(row.held.ident, []).append((y + ROW / 2, row.held.names))
        y += ROW
        if ends == number + 1:
            scene.box(left, frame, WIDTH - 1 - left, y - frame, dashed=True, part="outside")
            y, ends = y + 3, 0
    for number, tie in enumerate(tie for tie in ties.values() if len(tie) > 1):
        names = list(dict.fromkeys(name for _, some in tie for name in some))
        x = TIES + 6 + 4 * (number % 3)
        for (above, _), (below, _) in itertools.pairwise(tie):
            points = ((TIES, above), (x, above), (x, below), (TIES, below))
            scene.line(points, 2.0, palette.VIEW, key=names[0])
        told.append(f"{' and '.join(names)} are one")
    if rest:
        scene.write(4, y + ROW / 2, rest, SMALL + 1)
        told, y = [*told, rest], y + ROW
    scene.description = ". ".join([f"{head}: {counts}", *told])
    scene.height = y + 4
    return scene


def _sizes(tensors: list[Held]) -> str:
    return f"{counted(len(tensors), 'tensor')}, {bytes_said(sum(one.bytes for one in tensors))}"


def _row(scene: Scene, row: Row, y: float, lit: str) -> None:
    x, middle = min(row.level, DEEP) * INDENT + 4, y + ROW / 2
    part, here = ("tensor", row.held) if row.held else ("module", row.node)
    name = here.name or "the model"
    name = cut(name, int((SHAPE - x if row.held else 250) / (LETTER * CODE)))
    words = Label(x, middle, name, CODE, code=True, bold=not row.held)
    fill, path = "lit" if lit and row.has(lit)[1] else "", here.path
    # A box for each row, so that what has no fill can be pointed at too.
    line = 0.8 * bool(fill)
    box = Box(x - 3, y + 1, words.width + 6, ROW - 2, fill, (words,), path, line, part=part, key=path)
    scene.boxes.append(box)
    if row.held:
        scene.words += [
            Label(SHAPE, middle, row.held.shape, SMALL, code=True),
            Label(BYTES, middle, bytes_said(row.held.bytes), SMALL, "end", faint=True),
            Label(KIND, middle, row.held.kind, SMALL, faint=True),
        ]
    else:
        _module(scene, row, x + words.width + 10, middle)
    for badge in BADGES:
        _badge(scene, row, badge, middle)


def _module(scene: Scene, row: Row, x: float, middle: float) -> None:
    said = row.node.what + f" ×{row.times}" * (row.times > 1)
    if row.framed:
        words = (Label(x + 27, middle, "outside", SMALL, "middle"),)
        scene.box(x, middle - 8, 54, 16, "odd", words, line=0.8)
        x += 62
        said += "" if row.closed else f", {OUTSIDE}"
    if row.closed:
        said += f" ▸ {_sizes(row.node.tensors())}"
    scene.write(x, middle, said, SMALL + 1)


def _badge(scene: Scene, row: Row, badge: str, middle: float) -> None:
    """A filled box for what all of it has, how many for what some of it have, a dash for what it has not."""
    of, count = row.has(badge)
    if count:
        more = f"{badge}: {', '.join(row.held.names)}" if row.held else ""
        key = f"{row.held.path if row.held else row.node.path}.{badge}"
        _box(scene, badge, middle, badge if count == of else f"{count}/{of}", more, key)
    elif of and badge != "shared":
        x, width = COLUMNS[badge]
        scene.write(x + width / 2, middle, "–", SMALL, "middle", faint=True)


def _box(scene: Scene, badge: str, middle: float, text: str, more: str, key: str) -> None:
    x, width = COLUMNS[badge]
    words = (Label(x + width / 2, middle, text, SMALL, "middle"),)
    fill = FILLS[badge] if text == badge else ""
    scene.box(x, middle - 7.5, width, 15, fill, words, more, 0.8, part=badge, key=key)
