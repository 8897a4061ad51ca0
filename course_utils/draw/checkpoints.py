"""The sawtooth: the bytes alive over one training step, for layers that are checkpointed in segments, and the
peak by the size of a segment."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby

from torch import Tensor, nn

from course_utils.draw.checkpoint_steps import Stack
from course_utils.draw.labels import LETTER, Label, bytes_said
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Box, Scene, Small, to_picture
from course_utils.draw.time_axis import round_step
from course_utils.measure.steps import PHASES, Phase, StepTimeline
from course_utils.wrong_use import public

FILLS: dict[Phase, str] = {"forward": "saved", "recompute": "lit", "backward": "gradient"}
# Sizes in pixels of the page.
TOP, LEFT, RIGHT, HEAD, STRIP, GAP = 24.0, 62.0, 446.0, 23.0, 13.0, 10.0
HIGH, ALL = 140.0, 290.0  # the plot of the highest peak, and all plots together, at most
CURVE, CURVE_HIGH, CURVE_TOP = 508.0, 168.0, 42.0
SMALL, TINY, LETTERS, LINE = 10.5, 9.5, 33, 15.0

Point = tuple[float, float]


@public
def checkpoints(
    model: nn.Module | Sequence[nn.Module], batch: Tensor, *, segments: Sequence[int | None]
) -> Picture:
    """The bytes alive over one training step, recorded for each of these segment sizes, and the peak by
    segment size.

    `model`: an `nn.Sequential` or a list of layers; `segments`: how many neighbouring layers share a
    checkpoint (`use_reentrant=False`), 0 or None for none. A step is a forward, `output.square().mean()` and
    a backward; it runs on a copy of the layers. Time is counted in operators, views aside. Colours say when
    the bytes were made; below stands when operators ran, and which of them were run again. Parameters and
    their gradients are left out. Raises `ValueError` where the layers cannot be run.
    """
    stack = Stack(model, batch, "draw.checkpoints")
    depth, wanted = len(stack.layers), [size or 0 for size in segments]
    steps = {size: stack.record(size, depth) for size in (0, *curve_sizes(depth), *wanted)}
    return to_picture(compose(steps, wanted, depth), Small)


def curve_sizes(depth: int) -> list[int]:
    """The segment sizes of the curve: the small ones, where it bends, and fewer towards the end."""
    near = range(1, min(depth, 2 + round(1.5 * math.sqrt(depth))) + 1)
    return sorted({*near, *(math.ceil(depth / parts) for parts in range(1, 5))})


def least(steps: Mapping[int, StepTimeline]) -> int:
    """The segment size with the lowest peak, the smallest of several."""
    return min((size for size in steps if size), key=lambda size: (steps[size].peak, size))


def compose(
    steps: Mapping[int, StepTimeline], shown: Sequence[int], depth: int, *, over: bool = False
) -> Scene:
    """The scene of `checkpoints`: a panel for each segment size of `shown`, and the curve of all `steps`.
    `over`: over the step without checkpoints, in outline."""
    told = _told(steps, depth)
    peaks = "; ".join(f"{_called(size)}: {steps[size]}" for size in shown)
    scene = Scene(f"Bytes alive over one training step of {depth} layers. {peaks}. {' '.join(told)}")
    scene.write(LEFT, 11, "bytes alive, by when they were made", 13, bold=True)
    outline = steps[0] if over else None
    scale = _Scale([*(steps[size] for size in shown), *([outline] if outline else ())], over)
    y = TOP
    for size in shown:
        high = scale.height((outline or steps[size]).peak)
        _panel(scene, scale, steps[size], size, y + HEAD, high, outline)
        y += HEAD + high + STRIP + GAP
    y -= GAP
    _clock(scene, scale, y)
    below = _curve(scene, steps, shown, depth)
    for sentence in told:
        for number, part in enumerate(textwrap.wrap(sentence, LETTERS)):
            below += LINE + (4 if number == 0 else 0)
            scene.write(CURVE - 40, below, part, SMALL)
    scene.height = max(y + 30, below + 12)
    return scene


class _Scale:
    """Bytes upwards and operators to the right, the same for all panels."""

    def __init__(self, steps: Sequence[StepTimeline], large: bool) -> None:
        most = max(max(step.peak for step in steps), 1)
        together = most if large else max(sum(step.peak for step in steps), 1)
        self.pixels = ALL * 0.8 / most if large else min(HIGH / most, ALL / together)
        self.operators = max(1, *(len(step.ticks) for step in steps))

    def x(self, operator: float) -> float:
        return LEFT + operator / self.operators * (RIGHT - LEFT)

    def height(self, size: int) -> float:
        return size * self.pixels


def _panel(
    scene: Scene,
    scale: _Scale,
    step: StepTimeline,
    size: int,
    top: float,
    high: float,
    outline: StepTimeline | None,
) -> None:
    """One step: what is alive at each operator, and below it which operators ran when."""
    bottom, end = top + high, scale.x(len(step.ticks))
    again, count = step.operators("recompute"), len(step.ticks)
    scene.write(LEFT, top - 10, _called(size), 12, bold=True)
    said = f"{again} of {count} operators run again ({100 * again / max(count, 1):.0f} %)"
    said = said if size else f"{count} operators"
    scene.write(RIGHT - 14 * bool(again), top - 10, said, SMALL, "end", faint=True)
    if again:
        scene.box(RIGHT - 9, top - 14.5, 9, 9, FILLS["recompute"], line=0.3, part="swatch")
    for number in range(len(PHASES), 0, -1):  # each from the bottom; the next is drawn over it
        parts = PHASES[:number]
        levels = [sum(getattr(tick, part) for part in parts) for tick in step.ticks]
        if any(getattr(tick, parts[-1]) for tick in step.ticks):
            heights = [bottom - scale.height(level) for level in levels]
            points = ((LEFT, bottom), *_stairs(heights, scale), (end, bottom))
            most = max(getattr(tick, parts[-1]) for tick in step.ticks)
            more = f"{_called(size)}: made in {parts[-1]}, at most {bytes_said(most)}"
            scene.area(points, FILLS[parts[-1]], more, parts[-1], str(size))
    if outline and outline is not step:
        heights = [bottom - scale.height(tick.live) for tick in outline.ticks]
        points = ((LEFT, bottom), *_stairs(heights, scale), (scale.x(len(outline.ticks)), bottom))
        scene.line(points, 0.9, "", False, False, "outline")
        text = f"no checkpoint: {bytes_said(outline.peak)}"
        at = max(range(len(outline.ticks)), key=lambda n: outline.ticks[n].live)
        if high - scale.height(step.peak) > 16:  # else the line of the peak runs through it
            scene.write(scale.x(at) + 14, top + 6, text, SMALL, faint=True)
    peak = bottom - scale.height(step.peak)
    scene.line(((LEFT - 4, peak), (RIGHT, peak)), 0.9, dashed=True)
    scene.write(LEFT - 8, peak, bytes_said(step.peak), SMALL, "end", bold=True)
    if bottom - peak > 14:
        scene.write(LEFT - 8, bottom, "0", TINY, "end", faint=True)
    at = 0
    for phase, group in groupby(tick.phase for tick in step.ticks):
        count = len(list(group))
        left, right = scale.x(at), scale.x(at + count)
        at += count
        text = _PHASES[phase] if _wide(_PHASES[phase]) < right - left - 1 else ""
        label = (Label((left + right) / 2, bottom + 2 + STRIP / 2, text, TINY, "middle"),) if text else ()
        more = f"{phase}: {count} operators"
        box = Box(
            left, bottom + 2, right - left, STRIP, FILLS[phase], label, more, 0.3, part="ran", key=phase
        )
        scene.boxes.append(box)


_PHASES: dict[Phase, str] = {"forward": "forward", "recompute": "again", "backward": "backward"}


def _stairs(heights: Sequence[float], scale: _Scale) -> list[Point]:
    points, at = [], 0
    for height, group in groupby(heights):
        count = len(list(group))
        points += [(scale.x(at), height), (scale.x(at + count), height)]
        at += count
    return points


def _clock(scene: Scene, scale: _Scale, y: float) -> None:
    """The axis of operators, below all panels."""
    every = round(max(round_step(scale.operators / 7), 1))
    for operator in range(0, scale.operators + 1, every):
        x = scale.x(operator)
        scene.line(((x, y + 3), (x, y + 7)), 0.8)
        scene.write(x, y + 15, str(operator), TINY, "middle")
    scene.write(LEFT - 8, y + 15, "operators", TINY, "end", faint=True)


def _curve(scene: Scene, steps: Mapping[int, StepTimeline], shown: Sequence[int], depth: int) -> float:
    """The peak by segment size; returns where it ends."""
    sizes, best, root = sorted(size for size in steps if size), least(steps), math.sqrt(depth)
    most = max(step.peak for step in steps.values()) or 1
    bottom, right = CURVE_TOP + CURVE_HIGH, WIDTH - 10
    wide = right - CURVE

    def place(size: float, peak: float) -> Point:
        return CURVE + wide * math.log(size) / math.log(max(depth, 2)), bottom - peak / most * CURVE_HIGH

    scene.write(CURVE - 40, 11, "peak by segment size", 13, bold=True)
    scene.line(((CURVE - 6, bottom), (right + 4, bottom)), 0.6)
    scene.write(CURVE - 10, bottom, "0", TINY, "end", faint=True)
    y = place(1, steps[0].peak)[1]
    scene.line(((CURVE - 6, y), (right + 4, y)), 0.9, dashed=True)
    scene.write(CURVE, y - 9, f"no checkpoint: {bytes_said(steps[0].peak)}", SMALL)
    x = place(root, 0)[0]
    scene.line(((x, CURVE_TOP + 22), (x, bottom)), 0.9, dashed=True, key="root")
    scene.write(x, CURVE_TOP + 14, f"√{depth} = {root:.3g}", SMALL, "middle")
    points = tuple(place(size, steps[size].peak) for size in sizes)
    scene.line(points, 1.6, key="peaks")
    for size, (x, y) in zip(sizes, points, strict=True):
        half = 4.0 if size == best or size in shown else 2.0
        fill = "view" if size == best else "storage"
        more = f"{_called(size)}: {bytes_said(steps[size].peak)}"
        part = "best" if size == best else "size"
        scene.box(x - half, y - half, 2 * half, 2 * half, fill, (), more, 0.8, part=part, key=str(size))
    x, y = place(best, steps[best].peak)
    away = place(root, 0)[0] - x
    anchor, x = ("start", x - 4) if away < -12 else ("end", x + (4 if away > 12 else -5))
    scene.write(x, y + 15, f"least: {best}", SMALL, anchor, bold=True)
    taken: list[float] = []
    for size in sorted(sizes, key=lambda size: (size not in (best, 1, depth), size not in shown, size)):
        x = place(size, 0)[0]
        if all(abs(x - other) >= 5 + _wide(str(max(sizes))) for other in taken):
            scene.write(x, bottom + 11, str(size), TINY, "middle")
            scene.line(((x, bottom), (x, bottom + 4)), 0.8)
            taken.append(x)
    return bottom + 22


def _told(steps: Mapping[int, StepTimeline], depth: int) -> list[str]:
    """What there is to see, in sentences."""
    best, near = least(steps), round(math.sqrt(depth))
    share = f", {100 * steps[best].peak / max(steps[0].peak, 1):.0f} % of the peak without a checkpoint"
    told = [f"Least is {best}: {bytes_said(steps[best].peak)}{share}."]
    if near in steps and near != best:
        told.append(f"At {near}, nearest to √{depth}: {bytes_said(steps[near].peak)}.")
    if steps[1].kept:
        ratio = f"{steps[0].kept / steps[1].kept:.2g}"
        root = f"{math.sqrt(depth / float(ratio)):.2g}" if float(ratio) else ""
        if ratio == "1":
            told.append("√n is least for n/s + s: a layer keeps as much as its input. Here it does.")
        elif root:
            told.append(
                f"√n is least for n/s + s. Here a layer keeps {ratio} times its input: "
                f"{depth}/s + {ratio}·s is least at {root}."
            )
    return told


def _called(size: int) -> str:
    return "no checkpoint" if not size else "each layer" if size == 1 else f"segments of {size}"


def _wide(text: str) -> float:
    return LETTER * TINY * len(text)
