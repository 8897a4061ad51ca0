"""A write in place among the lines of a program: at which version each tensor was saved, at which it is after
every line, and what backward makes of that."""

from __future__ import annotations

import textwrap

from course_utils.draw.graph_backward import Gradient
from course_utils.draw.inplace_program import Lane, Run
from course_utils.draw.shapes import WIDTH, Scene
from course_utils.draw.words import LETTER, Words

ROW, GAP = 24.0, 12.0
CODE, SMALL, TINY = 12.0, 10.5, 9.5
LETTERS = 96  # of a line of text below the picture
SIGNS = {
    "harmless": ("✓ harmless", "rank"),
    "raises": ("✗ backward raises", "odd"),
    "raises at once": ("✗ raises at once", "odd"),
    "silently wrong": ("≠ silently wrong", "odd"),
    "unknown": ("? not judged", "storage"),
}


def scene_of(run: Run) -> Scene:
    """The picture of a run."""
    sign, fill = SIGNS[run.verdict]
    scene = Scene(_described(run))
    # Two letters for the sign before the write; the box ends 9 pixels before the column does.
    code = max([len(row) + 2 for row in run.rows] + [18]) * LETTER * CODE + 24
    lanes, left_out = _shown(run.lanes, WIDTH - code)
    top = _heads(scene, lanes, code)
    for number, row in enumerate(run.rows):
        y = top + number * ROW
        write, last = number == run.row, number == len(run.rows) - 1
        text = f"▶ {row}" if write else row
        words = Words(8, y + ROW / 2 - 1, text, CODE, code=True, bold=write)
        failed = run.failed == number
        if write or failed:
            inner = (words,)
            filled = "odd" if failed else "lit"
            scene.box(0.8, y, code - 10, ROW - 3, filled, inner, "", 2.2, part="line", key=str(number))
        else:
            scene.box(0.8, y, code - 10, ROW - 3, "", (words,), "", 0.6, last, "line", str(number))
        x = code
        for lane in lanes:
            wide = _wide(lane)
            _cell(scene, run, lane, number, x, y, wide)
            x += wide + GAP
    scene.width = max(WIDTH, x if lanes else 0)
    y = top + len(run.rows) * ROW + 10
    if left_out:
        count = len(left_out)
        said = f"{count} more saved tensor{'s' if count > 1 else ''}, not shown: "
        said += "unchanged" if not any(lane.changed for lane in left_out) else "some of them written to"
        scene.write(code, y - 4, said, TINY, faint=True)
        y += 12
    wide = LETTER * CODE * len(sign) + 18
    words = (Words(9, y + 11, sign, CODE, code=True, bold=True),)
    scene.box(1, y, wide, 22, fill, words, run.reason, 2.2, part="verdict", key=run.verdict)
    beside = textwrap.wrap(run.reason, int((WIDTH - wide - 16) / 6.4))
    for number, line in enumerate(beside):
        scene.write(wide + 12, y + 11 + 16 * number, line, SMALL + 1)
    y += 16 + 16 * max(len(beside), 1)
    for line in textwrap.wrap(run.error, LETTERS):
        scene.write(2, y + 4, line, SMALL, code=True)
        y += 16
    y += 6 if run.error else 0
    for name, true in run.truth.items():
        y = _compared(scene, run, name, true, y)
    scene.height = y + 6
    return scene


def _shown(lanes: list[Lane], room: float) -> tuple[list[Lane], list[Lane]]:
    """The lanes that there is room for, those that were written to before the others; and those left out."""
    kept = list(lanes)
    while len(kept) > 1 and sum(_wide(lane) + GAP for lane in kept) > room:
        quiet = [lane for lane in kept if not lane.changed]
        kept.remove(quiet[-1] if quiet else kept[-1])
    return kept, [lane for lane in lanes if lane not in kept]


def _head(lane: Lane) -> tuple[str, str, str]:
    return lane.node, f"saves {lane.name}", f"= {lane.whose}" if lane.whose else ""


def _wide(lane: Lane) -> float:
    return max([104.0] + [LETTER * SMALL * len(text) + 4 for text in _head(lane)])


def _heads(scene: Scene, lanes: list[Lane], x: float) -> float:
    lines = 3 if any(lane.whose for lane in lanes) else 2
    if not lanes:
        scene.write(x, 10, "nothing is saved for backward", SMALL)
        return 22.0
    for lane in lanes:
        for number, text in enumerate(_head(lane)):
            scene.write(x, 9 + 14 * number, text, SMALL, code=True, bold=number == 0)
        x += _wide(lane) + GAP
    return 8 + 14.0 * lines


def _cell(scene: Scene, run: Run, lane: Lane, row: int, x: float, y: float, wide: float) -> None:
    """What is true of a saved tensor after a row."""
    if row < lane.since:
        return
    last = row == len(run.rows) - 1
    place = min(row - lane.since, len(lane.now) - 1)
    if row - lane.since > len(lane.now) and not last:
        return
    now, written = lane.now[place], lane.written[place]
    behind = now != lane.version
    text, fill, dashed, line = f"v{now}", "saved", False, 0.8
    more = f"saved at version {lane.version}, at version {now} after this line"
    if row == lane.since:
        text = f"saved at v{lane.version}"
    if written and not behind:
        text, fill, dashed, line = f"≠ v{now}", "odd", True, 2.0
        more = f"other values than were saved, and still version {now}"
    elif behind:
        text, fill, line = f"✗ v{now}", "odd", 2.0
    if last:
        if not lane.used:
            text, fill, dashed, line = "not used", "storage", True, 0.8
        elif run.verdict == "raises at once":
            return
        elif behind:
            text = f"✗ v{now}, not v{lane.version}"
        elif written:
            text = "≠ other values"
        else:
            text = f"✓ v{now}"
    words = (Words(x + 6, y + ROW / 2 - 1, text, SMALL, code=True, bold=behind or written),)
    scene.box(x, y, wide, ROW - 3, fill, words, more, line, dashed, "cell", f"{lane.node}.{lane.name}.{row}")


def _compared(scene: Scene, run: Run, name: str, true: Gradient | None, y: float) -> float:
    """The gradient of a leaf and the true one."""
    lines = []
    if name in run.gradients:
        lines.append((f"{name}.grad", _text(run.gradients[name]), run.gradients[name] != true))
    lines.append(("true gradient" if lines else f"true gradient of {name}", _text(true), False))
    wide = max(len(label) for label, *_ in lines) * LETTER * CODE + 14
    for label, text, odd in lines:
        scene.write(2, y + 6, label, CODE, code=True)
        scene.write(2 + wide, y + 6, text, CODE, code=True, bold=odd and run.verdict == "silently wrong")
        y += 18
    return y


def _text(gradient: Gradient | None) -> str:
    return "None" if gradient is None else gradient.text


def _described(run: Run) -> str:
    sign = SIGNS[run.verdict][0].partition(" ")[2]
    lanes = "; ".join(
        f"{lane.node} saved {lane.name} at version {lane.version}, now {lane.now[-1]}" for lane in run.lanes
    )
    return f"{' · '.join(run.rows)}: {sign}. {run.reason} {lanes}".rstrip()
