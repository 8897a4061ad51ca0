"""What torch.compile made of a function, from what `watch_compile` wrote down: its lines in the colours of
the graphs that they landed in, the guards in words, and a strip of calls."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Box, Scene, to_picture
from course_utils.draw.words import LETTER, Words
from course_utils.watching.compiled import Watched
from course_utils.watching.compiled_seen import (
    NO_GRAPH,
    Call,
    Graph,
    Line,
    Piece,
    Step,
    count,
    ending,
    mark,
    summary,
)

# Sizes in pixels of the page.
ROW, CHIP, TEXT = 20.0, 16.0, 17.0
CODE, NUMBER, SMALL = 12.0, 10.5, 11.5
NUMBERS, CHIPS, BAND, RIGHT = 34.0, 40.0, 80.0, WIDTH - 4.0
MARKS = 262.0
COLUMNS = 4
# Letters in a line of prose and of code.
PROSE = 88
CODES = int((RIGHT - BAND - 16) / (LETTER * CODE))
# Beyond these, what is alike is folded.
MOST_LINES, MOST_GUARDS, MOST_VERSIONS, MOST_CALLS = 44, 8, 6, 14
FILLS = ("view", "gradient", "saved", "rank", "lit", "flight")


def compiled(seen: Watched) -> Picture:
    """A picture of what torch.compile made of a function: `seen` is what `watch_compile` gave.

    Above, the source: a line with a fill and a letter has operators in the graph of that piece, one without
    has none. A break stands below its line, with its reason. Then the guards of each piece and its versions,
    then a row for each call.
    """
    return to_picture(compose(seen))


def compose(seen: Watched, call: int | None = None, graphs: Sequence[Graph] | None = None) -> Scene:
    """The scene of `compiled`. `call`: the number of a call; then only the pieces that ran in it are filled.
    `graphs`: the versions of which guards are shown (default: all)."""
    scene = Scene(described(seen))
    chosen = next((one for one in seen.calls if one.number == call), None)
    y = _source(scene, seen, chosen, 4.0)
    if seen.pieces and graphs != []:
        y = _guards(scene, seen, graphs, y + 12)
    if seen.calls:
        y = _calls(scene, seen, chosen, y + 12)
    scene.height = y + 4
    return scene


def described(seen: Watched) -> str:
    """What the picture shows, for who cannot see it."""
    said = [summary(seen)]
    for piece in seen.pieces:
        lines = ", ".join(map(str, sorted(piece.lines)))
        said.append(f"piece {piece.name} has lines {lines}" if lines else f"piece {piece.name} has no line")
    said += [f"line {one.line}: {ending(one)}" for one in seen.breaks]
    for one in seen.calls:
        marks = ", ".join(map(mark, one.steps)) or NO_GRAPH
        said.append(f"call {one.number}: {marks}" + (f", raised {one.raised}" if one.raised else ""))
    return "; ".join(said)


def fill_of(seen: Watched, name: str) -> str:
    """The colour of a piece, as a name of the palette."""
    number = [piece.name for piece in seen.pieces].index(name)
    return FILLS[number % len(FILLS)]


# --- the source -------------------------------------------------------------------------------------------


def _source(scene: Scene, seen: Watched, call: Call | None, y: float) -> float:
    ran = None if call is None else {step.piece: step for step in call.steps}
    for row in _folded(seen.lines):
        if isinstance(row, int):
            scene.write(BAND + 8, y + ROW / 2, f"⋯ {row} lines", SMALL, faint=True)
            y += ROW
            continue
        y = _line(scene, seen, row, ran, y)
        for one in row.breaks:
            y = _told(scene, f"↳ {ending(one)}", BAND + 16, y, PROSE - 4, "break", str(one.line))
    for one in seen.skipped:
        # What a line says already is not said again.
        known = any(one.reason == other.reason for other in seen.breaks if other.skips)
        said = f"Python {one.begins}" + ("" if known else f": {one.reason}")
        y = _told(scene, said, BAND, y + 4, PROSE - 2, "skipped", one.begins)
    return y


def _told(scene: Scene, text: str, x: float, y: float, letters: int, part: str, key: str) -> float:
    """Words in a box with a dashed edge, as high as they need."""
    lines = textwrap.wrap(text, letters)
    height = TEXT * len(lines) + 3
    words = tuple(
        Words(x + 8, y + 2 + TEXT * (i + 0.5), line, SMALL, bold=part == "break")
        for i, line in enumerate(lines)
    )
    scene.box(x, y + 1, RIGHT - x, height - 2, "", words, "", 1.0, True, part, key)
    return y + height + 1


def _line(scene: Scene, seen: Watched, line: Line, ran: dict[str, Step] | None, y: float) -> float:
    texts = _broken(line.text)
    height = ROW * len(texts)
    scene.write(NUMBERS, y + ROW / 2, str(line.number), NUMBER, "end", code=True, faint=True)
    shown = line.pieces if len(line.pieces) < 3 else (f"{line.pieces[0]}+{len(line.pieces) - 1}",)
    x = CHIPS
    for name, text in zip(line.pieces, shown, strict=False):
        width = CHIP if len(text) == 1 else 2 * CHIP + 2
        word = Words(x + width / 2, y + ROW / 2, text, SMALL, "middle", code=True, bold=True)
        fill = fill_of(seen, name)
        scene.box(x, y + 2, width, CHIP, fill, (word,), "", 0.8, part="chip", key=name)
        x += width + 2
    filled = [name for name in line.pieces if ran is None or _in_graph(ran.get(name))]
    words = tuple(
        Words(BAND + 8, y + ROW * (i + 0.5), text, CODE, code=True) for i, text in enumerate(texts) if text
    )
    if not filled:
        scene.words += words
        return y + height
    # A line that has operators in several graphs is underlined in the colours of the others.
    others = filled[1:]
    under = 6.0 if others else 0.0
    more = f"line {line.number} is in piece {' and '.join(line.pieces)}"
    words = tuple(replace(one, y=one.y - under / 2) for one in words)
    top = y + 0.5
    for name in filled:
        fresh = ran is not None and ran[name].what in ("compiled", "recompiled")
        high = height - 1 - under if name is filled[0] else under / len(others)
        inside = words if name is filled[0] else ()
        edge = 2.0 if fresh else 0.4
        fill, key = fill_of(seen, name), f"{line.number}.{name}"
        box = Box(BAND, top, RIGHT - BAND, high, fill, inside, more, edge, False, "line", key)
        scene.boxes.append(box)
        top += high
    return y + height


def _in_graph(step: Step | None) -> bool:
    return step is not None and step.what != "python"


def _broken(text: str) -> list[str]:
    """A line of code in rows that fit."""
    text = text.expandtabs(4)
    if len(text) <= CODES:
        return [text]
    indent = " " * min(len(text) - len(text.lstrip()) + 8, CODES // 2)
    rows = [text[:CODES]]
    rest, room = text[CODES:], CODES - len(indent)
    return rows + [indent + rest[i : i + room] for i in range(0, len(rest), room)]


def _folded(lines: Sequence[Line]) -> list[Line | int]:
    """The lines, or for a long function those around which something changes, with numbers of lines that
    were left out."""
    if len(lines) <= MOST_LINES:
        return list(lines)
    kept = set(range(2)) | {len(lines) - 1}
    for i, (a, b) in enumerate(itertools.pairwise(lines)):
        if a.pieces != b.pieces or a.breaks or b.breaks:
            kept |= set(range(max(i - 1, 0), min(i + 3, len(lines))))
    found: list[Line | int] = []
    for keep, group in itertools.groupby(range(len(lines)), lambda i: i in kept):
        numbers = list(group)
        if keep or len(numbers) < 4:
            found += [lines[i] for i in numbers]
        else:
            found.append(len(numbers))
    return found


# --- the guards -------------------------------------------------------------------------------------------


def _guards(scene: Scene, seen: Watched, chosen: Sequence[Graph] | None, y: float) -> float:
    scene.write(1, y + TEXT / 2, "guards", 13, bold=True)
    y += TEXT + 3
    for piece in seen.pieces:
        if chosen is None or any(graph.piece == piece.name for graph in chosen):
            y = _piece(scene, seen, piece, chosen, y) + 6
    return y


def _piece(scene: Scene, seen: Watched, piece: Piece, chosen: Sequence[Graph] | None, y: float) -> float:
    word = Words(CHIPS + CHIP / 2, y + ROW / 2, piece.name, SMALL, "middle", code=True, bold=True)
    fill = fill_of(seen, piece.name)
    scene.box(CHIPS, y + 2, CHIP, CHIP, fill, (word,), "", 0.8, part="chip", key=piece.name)
    graphs = [graph for graph in seen.graphs if graph.piece == piece.name]
    said = f"{piece.begins} · {count(len(graphs), 'version')}"
    said += " · the recompile limit is reached" if piece.limit else ""
    scene.write(BAND, y + ROW / 2, said, SMALL + 0.5, bold=True)
    y += ROW
    if chosen is not None:
        for graph in chosen:
            if graph.piece == piece.name:
                y = _version(scene, graph, graph.guards, y, most=30)
        return y
    # What all versions ask for is said once.
    shared = [g for g in graphs[0].guards if all(g in one.guards for one in graphs)]
    if len(graphs) == 1:
        return _version(scene, graphs[0], graphs[0].guards, y)
    for row in _few(graphs):
        if isinstance(row, int):
            scene.write(BAND, y + TEXT / 2, f"⋯ {row} more versions", SMALL, faint=True)
            y += TEXT
        else:
            y = _version(scene, row, [g for g in row.guards if g not in shared], y)
    if shared:
        scene.write(BAND, y + TEXT / 2, "and for every version", SMALL)
        y = _list(scene, shared, y + TEXT, MOST_GUARDS)
    return y


def _few(graphs: Sequence[Graph]) -> list[Graph | int]:
    if len(graphs) <= MOST_VERSIONS:
        return list(graphs)
    left = len(graphs) - MOST_VERSIONS + 1
    return [*graphs[: MOST_VERSIONS - 3], left, *graphs[-2:]]


def _version(scene: Scene, graph: Graph, guards: Sequence[str], y: float, most: int = MOST_GUARDS) -> float:
    operators = ", ".join(graph.operators) or "no operators"
    said = f"call {graph.call}" + (f": {graph.why}" if graph.why else "") + f" · {operators}"
    scene.write(CHIPS, y + TEXT / 2, graph.name, SMALL, code=True, bold=True)
    for line in textwrap.wrap(said, PROSE, max_lines=3, placeholder=" …"):
        scene.write(BAND, y + TEXT / 2, line, SMALL)
        y += TEXT
    return _list(scene, guards, y, most)


def _list(scene: Scene, guards: Sequence[str], y: float, most: int) -> float:
    shown = guards if len(guards) <= most else guards[: most - 1]
    more = [f"… and {len(guards) - len(shown)} more"] if len(shown) < len(guards) else []
    for guard in [*shown, *more]:
        for i, line in enumerate(textwrap.wrap(guard, PROSE - 4)):
            if not i:
                scene.write(BAND + 8, y + TEXT / 2, "·", SMALL, faint=True)
            scene.write(BAND + 18, y + TEXT / 2, line, SMALL, faint=True)
            y += TEXT
    return y


# --- the calls --------------------------------------------------------------------------------------------


def _calls(scene: Scene, seen: Watched, chosen: Call | None, y: float) -> float:
    scene.write(1, y + TEXT / 2, "calls", 13, bold=True)
    y += TEXT + 5
    for row in _grouped(seen.calls, chosen):
        if isinstance(row, int):
            scene.write(CHIPS, y + ROW / 2, f"⋯ {row} calls", SMALL, faint=True)
            y += ROW
        else:
            y = _call(scene, seen, *row, chosen, y) + 5
    return y


def _call(scene: Scene, seen: Watched, call: Call, last: int, chosen: Call | None, y: float) -> float:
    number = str(call.number) if last == call.number else f"{call.number}–{last}"
    here = chosen is not None and chosen.number == call.number
    scene.write(NUMBERS, y + ROW / 2, ("▸ " if here else "") + number, SMALL, "end", bold=True)
    left = y
    for line in _packed(call.arguments or ["no arguments"], 30):
        scene.write(CHIPS, left + ROW / 2, line, SMALL, code=True, bold=here)
        left += TEXT
    # A column for each piece and each part that is in Python, in the order in which they first ran.
    names = list(dict.fromkeys(_column(step) for one in seen.calls for step in one.steps))
    columns = max(min(len(names), COLUMNS), 1)
    width = min((RIGHT - MARKS) / columns, 150.0)
    bottom = y
    for step in call.steps:
        place = names.index(_column(step))
        x, top = MARKS + width * (place % columns), y + (ROW + 2) * (place // columns)
        scene.boxes.append(_mark(seen, call, step, x, top, width - 6))
        bottom = max(bottom, top + ROW)
    if not call.steps:
        scene.write(MARKS, y + ROW / 2, NO_GRAPH, SMALL, faint=True)
        bottom = y + ROW
    for said in _reasons(seen, call):
        for line in textwrap.wrap(said, 62):
            scene.write(MARKS, bottom + 1 + TEXT / 2, line, SMALL)
            bottom += TEXT
    bottom = max(bottom, left + 2)
    scene.line(((CHIPS, bottom + 2), (RIGHT, bottom + 2)), 0.4)
    return bottom


def _column(step: Step) -> str:
    return step.piece or step.begins


def _packed(parts: Sequence[str], room: int, most: int = 5) -> list[str]:
    """Parts with commas between them, in rows; a part is only broken where it fills more than one."""
    rows: list[str] = []
    for part, end in zip(parts, [*[","] * (len(parts) - 1), ""], strict=True):
        pieces = textwrap.wrap(part + end, room) or [end]
        if rows and len(rows[-1]) + 1 + len(pieces[0]) <= room:
            rows[-1] += " " + pieces.pop(0)
        rows += pieces
    return rows if len(rows) <= most else [*rows[: most - 1], "…"]


def _mark(seen: Watched, call: Call, step: Step, x: float, y: float, width: float) -> Box:
    python = step.what == "python"
    fill = "" if python else fill_of(seen, step.piece)
    fresh = step.what in ("compiled", "recompiled")
    word = Words(x + width / 2, y + ROW / 2, mark(step), SMALL - 0.5, "middle", bold=fresh)
    more = f"call {call.number}: {mark(step)}" + (f": {step.why}" if step.why else "")
    line = 2.2 if fresh else 0.8
    key = f"{call.number}.{step.piece}{step.version}"
    return Box(x, y + 1, width, ROW - 2, fill, (word,), more, line, python, step.what, key)


def _reasons(seen: Watched, call: Call) -> list[str]:
    # Why a part is never compiled stands below the source.
    never = {one.reason for one in seen.skipped}
    steps = [step for step in call.steps if step.why and not (step.why in never and not step.piece)]
    said = [f"{step.piece or 'Python'}: {step.why}" for step in steps]
    return [*said, f"raised {call.raised}"] if call.raised else said


def _grouped(calls: Sequence[Call], chosen: Call | None) -> list[tuple[Call, int] | int]:
    """(call, number of the last that is like it): calls that repeat are one row; of many rows those in the
    middle are left out, but not the chosen one."""
    rows: list[tuple[Call, int]] = []
    for call in calls:
        before = rows[-1][0] if rows else None
        alike = before is not None and (before.arguments, before.steps, before.raised) == (
            call.arguments,
            call.steps,
            call.raised,
        )
        if alike and call is not chosen and before is not chosen:
            rows[-1] = (before, call.number)
        else:
            rows.append((call, call.number))
    if len(rows) <= MOST_CALLS:
        return list(rows)
    kept = {*range(MOST_CALLS - 5), *range(len(rows) - 4, len(rows))}
    kept |= {i for i, (call, _) in enumerate(rows) if call is chosen}
    found: list[tuple[Call, int] | int] = []
    for keep, group in itertools.groupby(range(len(rows)), lambda i: i in kept):
        numbers = list(group)
        found += (
            [rows[i] for i in numbers] if keep else [sum(rows[i][1] - rows[i][0].number + 1 for i in numbers)]
        )
    return found
