"""A write in place among the lines of a program: at which version each tensor was saved, at which it is after
every line, and what backward makes of that."""

from __future__ import annotations

import textwrap

from course_utils.draw.graph_steps import text_of
from course_utils.draw.inplace_program import Lane, Run
from course_utils.draw.labels import LETTER, Label
from course_utils.draw.shapes import WIDTH, Scene

ROW, GAP = 24.0, 12.0
CODE, SMALL = 12.0, 11.0
LETTERS = 96  # of a line of text below the picture
SIGNS = {
    "harmless": ("✓ harmless", "rank"),
    "raises": ("✗ backward raises", "odd"),
    "silently wrong": ("≠ silently wrong", "odd"),
}


def scene_of(run: Run) -> Scene:
    """The picture of a run."""
    sign, fill = SIGNS[run.verdict]
    scene = Scene(_described(run))
    # Two letters for the sign before the write; the box ends 9 pixels before the column does.
    x = code = max([len(row) + 2 for row in run.rows] + [18]) * LETTER * CODE + 24
    top = 8 + 14.0 * (3 if any(lane.whose for lane in run.lanes) else 2)
    last = len(run.rows) - 1
    for number, row in enumerate(run.rows):
        y, write, failed = top + number * ROW, number == run.row, run.error and number == last
        text = f"▶ {row}" if write else row
        words = (Label(8, y + ROW / 2 - 1, text, CODE, code=True, bold=write),)
        filled, line = "odd" if failed else "lit" if write else "", 2.2 if write or failed else 0.6
        dashed = number == last and not failed
        scene.box(0.8, y, code - 10, ROW - 3, filled, words, "", line, dashed, "line", str(number))
    for lane in run.lanes:
        head = lane.node, f"saves {lane.name}", f"= {lane.whose}" if lane.whose else ""
        wide = max([104.0] + [LETTER * SMALL * len(text) + 4 for text in head])
        for number, text in enumerate(head):
            scene.write(x, 9 + 14 * number, text, SMALL, code=True, bold=number == 0)
        for row in range(lane.since, len(run.rows)):
            _cell(scene, lane, row, row == last, x, top + row * ROW, wide)
        x += wide + GAP
    scene.width = max(WIDTH, x)
    y = top + len(run.rows) * ROW + 10
    wide = LETTER * CODE * len(sign) + 18
    words = (Label(9, y + 11, sign, CODE, code=True, bold=True),)
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
        lines = [("true gradient" if run.gradients else f"true gradient of {name}", text_of(true), False)]
        if run.gradients:
            wrong = run.verdict == "silently wrong" and run.gradients[name] != true
            lines.insert(0, (f"{name}.grad", text_of(run.gradients[name]), wrong))
        wide = max(len(label) for label, *_ in lines) * LETTER * CODE + 14
        for label, text, odd in lines:
            scene.write(2, y + 6, label, CODE, code=True)
            scene.write(2 + wide, y + 6, text, CODE, code=True, bold=odd)
            y += 18
    scene.height = y + 6
    return scene


def _cell(scene: Scene, lane: Lane, row: int, last: bool, x: float, y: float, wide: float) -> None:
    """What is true of a saved tensor after a row."""
    place = min(row - lane.since, len(lane.now) - 1)
    now, written = lane.now[place], lane.written[place]
    behind = now != lane.version
    text, fill, line = f"✓ v{now}" if last else f"v{now}", "saved", 0.8
    more = f"saved at version {lane.version}, at version {now} after this line"
    if row == lane.since:
        text = f"saved at v{lane.version}"
    if behind:
        text, fill, line = f"✗ v{now}, not v{lane.version}" if last else f"✗ v{now}", "odd", 2.0
    elif written:
        text, fill, line = "≠ other values" if last else f"≠ v{now}", "odd", 2.0
        more = f"other values than were saved, and still version {now}"
    words = (Label(x + 6, y + ROW / 2 - 1, text, SMALL, code=True, bold=behind or written),)
    key, dashed = f"{lane.node}.{lane.name}.{row}", written and not behind
    scene.box(x, y, wide, ROW - 3, fill, words, more, line, dashed, "cell", key)


def _described(run: Run) -> str:
    sign = SIGNS[run.verdict][0].partition(" ")[2]
    lanes = "; ".join(
        f"{lane.node} saved {lane.name} at version {lane.version}, now {lane.now[-1]}" for lane in run.lanes
    )
    return f"{' · '.join(run.rows)}: {sign}. {run.reason} {lanes}".rstrip()
