"""Draws a scene: as SVG for a page, as a matplotlib picture for where there is only a file."""

from __future__ import annotations

from html import escape

from course_utils.draw import palette, words
from course_utils.draw.picture import Picture
from course_utils.draw.words import LETTER, STYLE, Words
from course_utils.explore.scene import CELL, WIDTH, Cell, Scene

GAP, ROUND = 1.5, 3.5
BOX = CELL - 2 * GAP

_STYLE = (
    STYLE
    + """
#{id} .cell text{{font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}}
#{id} rect{{stroke-width:1.2;fill:none;stroke:currentColor}}
#{id} .cell text{{text-anchor:middle}}
#{id} .read text{{fill:{ink}}}
#{id} .read rect{{fill:{view};stroke:{view}}}
#{id} .unread rect{{stroke-dasharray:2 2;stroke-opacity:.5}}
#{id} .unread text{{opacity:.72}}
#{id} .twin rect{{stroke:currentColor;stroke-width:2.2;stroke-dasharray:4 2.5}}
#{id} .lit rect{{fill:{lit};stroke:currentColor;stroke-width:3}}
#{id} .lit text{{font-weight:bold}}
"""
)


def to_svg(scene: Scene, ident: str) -> str:
    """The scene as an `<svg>` with the id `ident`, which no other on the page may have.

    Every cell carries `data-part`, and `data-address` and `data-index` where it has them. To point at a cell
    outlines all cells of its address, without asking the kernel.
    """
    style = _STYLE.format(id=ident, width=WIDTH, ink=palette.INK, view=palette.VIEW, lit=palette.LIT)
    addresses = sorted({cell.address for cell in scene.cells if cell.address is not None})
    for address in addresses:
        same = f'[data-address="{address}"]'
        style += f"#{ident}:has({same}:hover) {same} rect{{stroke:currentColor;stroke-width:3}}\n"
    parts = [
        f'<svg id="{ident}" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {scene.height:g}" '
        f'width="{WIDTH}" role="img" aria-label="{escape(scene.description)}">',
        f"<style>{style}</style>",
        *map(words.to_svg, scene.words),
        *(_cell(cell, _pixels(scene)) for cell in scene.cells),
        "</svg>",
    ]
    return "".join(parts)


def _cell(cell: Cell, pixels: float) -> str:
    names = ["cell", "read" if cell.read else "unread"]
    names += [name for name in ("twin", "lit") if getattr(cell, name)]
    data = f' data-part="{cell.part}"'
    if cell.address is not None:
        data += f' data-address="{cell.address}"'
    if cell.index is not None:
        data += f' data-index="{",".join(map(str, cell.index))}"'
    return (
        f'<g class="{" ".join(names)}"{data}><title>{escape(cell.words)}</title>'
        f'<rect x="{cell.x + GAP:g}" y="{cell.y + GAP:g}" width="{cell.width - 2 * GAP:g}" '
        f'height="{BOX:g}" rx="{ROUND}"/>'
        f'<text x="{cell.x + cell.width / 2:g}" y="{cell.y + CELL / 2:g}" font-size="{pixels:g}">'
        f"{escape(cell.text)}</text></g>"
    )


def _pixels(scene: Scene) -> float:
    """How large values are written: as large as the longest fits."""
    return round(min(12.0, (scene.cell - 2 * GAP - 2) / (LETTER * max(scene.longest, 1))), 1)


def to_picture(scene: Scene) -> Picture:
    """The scene as a figure, to be kept in a notebook."""
    from matplotlib.patches import FancyBboxPatch

    picture = Picture(figsize=(WIDTH / 100, scene.height / 100))
    picture.description = scene.description
    axes = picture.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(scene.height, 0)
    axes.set_axis_off()

    for cell in scene.cells:
        fill = palette.LIT if cell.lit else palette.VIEW if cell.read else "none"
        marked = cell.lit or cell.twin
        axes.add_patch(
            FancyBboxPatch(
                (cell.x + GAP, cell.y + GAP),
                cell.width - 2 * GAP,
                BOX,
                boxstyle=f"round,pad=0,rounding_size={ROUND}",
                facecolor=fill,
                edgecolor=palette.TEXT if marked or not cell.read else fill,
                linewidth=2.2 if cell.lit else 1.7 if cell.twin else 0.9,
                linestyle=(0, (2, 1.3)) if cell.twin or not cell.read else "solid",
            )
        )
        colour = palette.INK if cell.read else palette.TEXT
        x, y = cell.x + cell.width / 2, cell.y + CELL / 2
        inside = Words(x, y, cell.text, _pixels(scene), "middle", code=True, bold=cell.lit)
        words.say(axes, inside, colour)
    for one in scene.words:
        words.say(axes, one)
    return picture
