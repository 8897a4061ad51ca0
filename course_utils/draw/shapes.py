"""Shapes at places, measured in pixels of the page: drawn as SVG for a page, as a matplotlib picture for
where there is only a file."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from html import escape
from typing import Any

from course_utils.draw import labels, palette
from course_utils.draw.labels import STYLE, Label
from course_utils.draw.picture import MARGIN, Picture

WIDTH = 700


@dataclass(frozen=True)
class Box:
    """A rectangle and the words in it. `fill` is a name of the palette or "" for none; `words` of a filled
    box are dark. `more` says all about it, to who points at it."""

    x: float
    y: float
    width: float
    height: float
    fill: str = ""
    words: tuple[Label, ...] = ()
    more: str = ""
    line: float = 1.2
    dashed: bool = False
    part: str = ""
    key: str = ""


@dataclass(frozen=True)
class Line:
    """A line through points, straight from one to the next or smooth; `arrow`: at its end."""

    points: tuple[tuple[float, float], ...]
    line: float = 1.2
    colour: str = ""
    arrow: bool = False
    dashed: bool = False
    key: str = ""
    smooth: bool = False


@dataclass(frozen=True)
class Area:
    """A filled shape with corners at `points`. `more` says all about it, to who points at it."""

    points: tuple[tuple[float, float], ...]
    fill: str
    more: str = ""
    part: str = ""
    key: str = ""


@dataclass
class Scene:
    """Shapes on a page, and what they show in one sentence. `linked`: who points at a box sees all boxes with
    its key."""

    description: str
    width: float = WIDTH
    height: float = 0.0
    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    words: list[Label] = field(default_factory=list)
    areas: list[Area] = field(default_factory=list)
    linked: bool = False

    def box(self, *values: Any, **more: Any) -> None:
        """Adds a `Box` of these values."""
        self.boxes.append(Box(*values, **more))

    def line(self, *values: Any, **more: Any) -> None:
        """Adds a `Line` of these values."""
        self.lines.append(Line(*values, **more))

    def write(self, *values: Any, **more: Any) -> None:
        """Adds `Label` of these values."""
        self.words.append(Label(*values, **more))

    def area(self, *values: Any, **more: Any) -> None:
        """Adds an `Area` of these values."""
        self.areas.append(Area(*values, **more))


def trimmed(scene: Scene) -> Scene:
    """The same scene without what is empty at the right: a page that is narrower than a picture scales it
    down, letters included."""
    wider = 1.08  # letters are rounded up to pixels of the image
    rights = [box.x + box.width for box in scene.boxes]
    for one in scene.words:
        rights.append(one.x + wider * one.width * {"start": 1, "middle": 0.5, "end": 0}[one.anchor])
    scene.width = min(max(rights, default=0) + 8, scene.width)
    return scene


_STYLE = (
    STYLE
    + """
#{id} rect{{fill:none;stroke:currentColor}}
#{id} path{{fill:none;stroke:currentColor;stroke-opacity:.6}}
#{id} .tip{{fill:currentColor;fill-opacity:.75;stroke:none}}
#{id} g.fill text{{fill:{ink}}}
"""
)
_LINKED = "#{id}:has({same}:hover) {same} rect{{stroke-width:3}}\n"
_FILL = "#{id} g.{name}>rect{{fill:{colour}}}\n"
_AREA = "#{id} g.{name}>path{{fill:{colour};stroke-width:.6}}\n"


def to_svg(scene: Scene, ident: str) -> str:
    """The scene as an `<svg>` with the id `ident`, which no other on the page may have."""
    style = _STYLE.format(id=ident, width=scene.width, ink=palette.INK)
    for name in sorted({box.fill for box in scene.boxes if box.fill}):
        style += _FILL.format(id=ident, name=name, colour=palette.FILLS[name])
    for name in sorted({area.fill for area in scene.areas}):
        style += _AREA.format(id=ident, name=name, colour=palette.FILLS[name])
    for key in sorted({box.key for box in scene.boxes if box.key} if scene.linked else ()):
        style += _LINKED.format(id=ident, same=f'[data-key="{key}"]')
    parts = [
        f'<svg id="{ident}" xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {scene.width:g} {scene.height:g}" width="{scene.width:g}" role="img" '
        f'aria-label="{escape(scene.description)}"><style>{style}</style>'
    ]
    parts += [*map(_area, scene.areas), *map(_line, scene.lines), *map(_box, scene.boxes)]
    return "".join([*parts, *map(labels.to_svg, scene.words), "</svg>"])


def _box(box: Box) -> str:
    names = f"fill {box.fill}" if box.fill else "open"
    data = f' data-part="{escape(box.part)}"' if box.part else ""
    data += f' data-key="{escape(box.key)}"' if box.key else ""
    dashes = ' stroke-dasharray="4 3"' if box.dashed else ""
    said = f"<title>{escape(box.more)}</title>" if box.more else ""
    return (
        f'<g class="{names}"{data}>{said}'
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="4" '
        f'stroke-width="{box.line:g}"{dashes}/>{"".join(map(labels.to_svg, box.words))}</g>'
    )


def _area(area: Area) -> str:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in area.points)
    return (
        f'<g class="fill {area.fill}" data-part="{escape(area.part)}" data-key="{escape(area.key)}">'
        f'<title>{escape(area.more)}</title><path d="M{path}Z"/></g>'
    )


def _line(line: Line) -> str:
    (x, y), *others = line.points
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in line.points[: 1 if line.smooth else None])
    for (a, b), (c, d) in zip(line.points, others if line.smooth else (), strict=False):
        half = (b + d) / 2
        path += f"C{a:.1f} {half:.1f} {c:.1f} {half:.1f} {c:.1f} {d:.1f}"
    colour = f"stroke:{line.colour};stroke-opacity:1;" if line.colour else ""
    dashes = "stroke-dasharray:4 3;" if line.dashed else ""
    dashes += "" if line.smooth else "stroke-linejoin:round;"
    x, y = line.points[-1]
    size = 3.5 + line.line / 2
    tip = f"M{x:.1f} {y:.1f}l{-size:.1f} {-1.7 * size:.1f}h{2 * size:.1f}z"
    filled = f' style="fill:{line.colour};fill-opacity:1"' if line.colour else ""
    arrow = f'<path class="tip" d="{tip}"{filled}/>' if line.arrow else ""
    key = f' data-edge="{escape(line.key)}"' if line.key else ""
    return f'<path{key} d="{path}" style="stroke-width:{line.line:g};{colour}{dashes}"/>{arrow}'


class Drawn(Picture):
    """A picture with few colours, kept as such: a third of the size, and notebooks have a limit."""

    colours = 256

    def png(self) -> bytes:
        from PIL import Image

        with Image.open(io.BytesIO(super().png())) as image:
            few = image.quantize(self.colours, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        page = io.BytesIO()
        few.save(page, "png", compress_level=9)
        return page.getvalue()


class Small(Drawn):
    """A picture of a few colours: a lesson has many."""

    colours = 32


NOTE = 32  # how high it is, with what is left free below


def to_picture(scene: Scene, kind: type[Picture] = Drawn, note: str = "") -> Picture:
    """The scene as a figure of this kind, to be kept in a notebook or printed. `note` stands above it."""
    from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
    from matplotlib.path import Path

    left, right, top, bottom = -MARGIN, scene.width + MARGIN, -MARGIN, max(scene.height, 1) + MARGIN
    words = scene.words
    if note:
        top -= NOTE
        words = [*words, Label(0, 12 - NOTE, note)]  # in no box: it is no button
    picture = kind(figsize=((right - left) / 100, (bottom - top) / 100))
    picture.description = scene.description
    axes = picture.add_axes((0, 0, 1, 1))
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.set_axis_off()

    for area in scene.areas:
        filled = {"facecolor": palette.FILLS[area.fill], "edgecolor": palette.LINE, "linewidth": 0.4}
        axes.add_patch(Polygon(area.points, closed=True, **filled))
    for line in scene.lines:
        points, codes = [line.points[0]], [Path.MOVETO]
        for (a, b), (c, d) in zip(line.points, line.points[1:], strict=False):
            points += [(a, (b + d) / 2), (c, (b + d) / 2), (c, d)] if line.smooth else [(c, d)]
            codes += [Path.CURVE4] * 3 if line.smooth else [Path.LINETO]
        colour = line.colour or palette.LINE
        dashes = (0, (4, 3)) if line.dashed else "solid"
        path, width = Path(points, codes), 0.72 * line.line
        how = {"edgecolor": colour, "linewidth": width, "linestyle": dashes}
        axes.add_patch(PathPatch(path, fill=False, joinstyle="miter" if line.smooth else "round", **how))
        if line.arrow:
            (x, y), size = line.points[-1], 3.5 + line.line / 2
            tip = [(x, y), (x - size, y - 1.7 * size), (x + size, y - 1.7 * size)]
            axes.add_patch(Polygon(tip, closed=True, facecolor=colour, edgecolor="none"))
    for box in scene.boxes:
        axes.add_patch(
            FancyBboxPatch(
                (box.x, box.y),
                box.width,
                box.height,
                boxstyle=f"round,pad=0,rounding_size={min(4, box.width / 2, box.height / 2):g}",
                facecolor=palette.FILLS[box.fill] if box.fill else "none",
                edgecolor=palette.LINE,
                linewidth=0.72 * box.line,
                linestyle=(0, (4, 3)) if box.dashed else "solid",
            )
        )
        for one in box.words:
            labels.say(axes, one, palette.INK if box.fill else palette.TEXT)
    for one in words:
        labels.say(axes, one)
    return picture
