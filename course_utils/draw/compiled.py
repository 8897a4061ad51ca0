"""What torch.compile made of a function, from what `watch_compile` wrote down: its lines in the colours of
the graphs that they landed in, the guards in words, and a strip of calls."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from course_utils.draw.labels import Label, counted
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Scene, to_picture
from course_utils.watching.compiled import Watched
from course_utils.watching.compiled_seen import (
    NO_GRAPH,
    Call,
    Graph,
    Line,
    Piece,
    Step,
    ending,
    mark,
    summary,
)
from course_utils.wrong_use import public

# Sizes in pixels of the page.
ROW, CHIP, TEXT = 20.0, 16.0, 17.0
CODE, NUMBER, SMALL = 12.0, 10.5, 11.5
NUMBERS, CHIPS, BAND, RIGHT = 34.0, 40.0, 80.0, WIDTH - 4.0
MARKS, MARK = 262.0, 150.0  # where what ran in a call begins, and how wide each of it is at most
PROSE = 88  # letters in a line
FILLS = ("view", "gradient", "saved", "rank", "lit", "flight")


@public
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
    chosen = seen.calls[call - 1] if call else None
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
        said.append(f"call {one.number}: {marks}")
    return "; ".join(said)


def fill_of(seen: Watched, name: str) -> str:
    """The colour of a piece, as a name of the palette."""
    number = [piece.name for piece in seen.pieces].index(name)
    return FILLS[number % len(FILLS)]


def _chip(scene: Scene, seen: Watched, name: str, x: float, y: float) -> None:
    word = Label(x + CHIP / 2, y + ROW / 2, name, SMALL, "middle", code=True, bold=True)
    scene.box(x, y + 2, CHIP, CHIP, fill_of(seen, name), (word,), "", 0.8, part="chip", key=name)


def _wrapped(scene: Scene, text: str, letters: int, x: float, y: float, **how: bool) -> float:
    """Writes text in lines; returns where they end."""
    for line in textwrap.wrap(text, letters):
        scene.write(x, y + TEXT / 2, line, SMALL, **how)
        y += TEXT
    return y


# --- the source -------------------------------------------------------------------------------------------


def _source(scene: Scene, seen: Watched, call: Call | None, y: float) -> float:
    ran = None if call is None else {step.piece: step for step in call.steps}
    for line in seen.lines:
        _line(scene, seen, line, ran, y)
        y += ROW
        for one in line.breaks:
            end = _wrapped(scene, f"↳ {ending(one)}", PROSE - 4, BAND + 24, y + 2, bold=True)
            how = {"line": 1.0, "dashed": True, "part": "break", "key": str(one.line)}
            scene.box(BAND + 16, y + 1, RIGHT - BAND - 16, end - y - 1, **how)
            y = end + 2
    return y


def _line(scene: Scene, seen: Watched, line: Line, ran: dict[str, Step] | None, y: float) -> None:
    scene.write(NUMBERS, y + ROW / 2, str(line.number), NUMBER, "end", code=True, faint=True)
    for number, name in enumerate(line.pieces):
        _chip(scene, seen, name, CHIPS + number * (CHIP + 2), y)
    filled = [n for n in line.pieces if ran is None or (n in ran and ran[n].what != "python")]
    # A line that has operators in several graphs is underlined in the colours of the others.
    under = 6.0 if filled[1:] else 0.0
    words = Label(BAND + 8, y + (ROW - under) / 2, line.text.expandtabs(4), CODE, code=True)
    if not filled:
        scene.words.append(words)
    more, top = f"line {line.number} is in piece {' and '.join(line.pieces)}", y + 0.5
    for name in filled:
        fresh = ran is not None and ran[name].what in ("compiled", "recompiled")
        first = name is filled[0]
        high = ROW - 1 - under if first else under / len(filled[1:])
        fill, inside, edge = fill_of(seen, name), (words,) if first else (), 2.0 if fresh else 0.4
        key = f"{line.number}.{name}"
        scene.box(BAND, top, RIGHT - BAND, high, fill, inside, more, edge, False, "line", key)
        top += high


# --- the guards -------------------------------------------------------------------------------------------


def _guards(scene: Scene, seen: Watched, chosen: Sequence[Graph] | None, y: float) -> float:
    scene.write(1, y + TEXT / 2, "guards", 13, bold=True)
    y += TEXT + 3
    for piece in seen.pieces:
        if chosen is None or any(graph.piece == piece.name for graph in chosen):
            y = _piece(scene, seen, piece, chosen, y) + 6
    return y


def _piece(scene: Scene, seen: Watched, piece: Piece, chosen: Sequence[Graph] | None, y: float) -> float:
    _chip(scene, seen, piece.name, CHIPS, y)
    graphs = [graph for graph in seen.graphs if graph.piece == piece.name]
    said = f"{piece.begins} · {counted(len(graphs), 'version')}"
    said += " · the recompile limit is reached" if piece.limit else ""
    scene.write(BAND, y + ROW / 2, said, SMALL + 0.5, bold=True)
    y += ROW
    # What all versions ask for is said once.
    alone = len(graphs) == 1 or chosen is not None
    shared = [] if alone else [g for g in graphs[0].guards if all(g in one.guards for one in graphs)]
    for graph in graphs if chosen is None else chosen:
        operators = ", ".join(graph.operators) or "no operators"
        said = f"call {graph.call}" + (f": {graph.why}" if graph.why else "") + f" · {operators}"
        scene.write(CHIPS, y + TEXT / 2, graph.name, SMALL, code=True, bold=True)
        y = _wrapped(scene, said, PROSE, BAND, y)
        y = _list(scene, [guard for guard in graph.guards if guard not in shared], y)
    if shared:
        y = _list(scene, shared, _wrapped(scene, "and for every version", PROSE, BAND, y))
    return y


def _list(scene: Scene, guards: Sequence[str], y: float) -> float:
    for guard in guards:
        scene.write(BAND + 8, y + TEXT / 2, "·", SMALL, faint=True)
        y = _wrapped(scene, guard, PROSE - 4, BAND + 18, y, faint=True)
    return y


# --- the calls --------------------------------------------------------------------------------------------


def _calls(scene: Scene, seen: Watched, chosen: Call | None, y: float) -> float:
    scene.write(1, y + TEXT / 2, "calls", 13, bold=True)
    y += TEXT + 5
    for call in seen.calls:
        y = _call(scene, seen, call, call is chosen, y) + 5
    return y


def _call(scene: Scene, seen: Watched, call: Call, here: bool, y: float) -> float:
    scene.write(NUMBERS, y + ROW / 2, f"{'▸ ' * here}{call.number}", SMALL, "end", bold=True)
    left = y
    for line in textwrap.wrap(", ".join(call.arguments) or "no arguments", 30):
        scene.write(CHIPS, left + ROW / 2, line, SMALL, code=True, bold=here)
        left += TEXT
    # A column for each piece, in the order in which they first ran.
    names = list(dict.fromkeys(step.piece for one in seen.calls for step in one.steps))
    width = min((RIGHT - MARKS) / max(len(names), 1), MARK)
    for step in call.steps:
        x = MARKS + width * names.index(step.piece)
        _mark(scene, seen, call, step, x, y, width - 6)
    if not call.steps:
        scene.write(MARKS, y + ROW / 2, NO_GRAPH, SMALL, faint=True)
    bottom = y + ROW
    for step in call.steps:
        if step.why:
            bottom = _wrapped(scene, f"{step.piece}: {step.why}", 62, MARKS, bottom + 1) - 1
    bottom = max(bottom, left + 2)
    scene.line(((CHIPS, bottom + 2), (RIGHT, bottom + 2)), 0.4)
    return bottom


def _mark(scene: Scene, seen: Watched, call: Call, step: Step, x: float, y: float, width: float) -> None:
    python, fresh = step.what == "python", step.what in ("compiled", "recompiled")
    fill = "" if python else fill_of(seen, step.piece)
    word = Label(x + width / 2, y + ROW / 2, mark(step), SMALL - 0.5, "middle", bold=fresh)
    more = f"call {call.number}: {mark(step)}" + (f": {step.why}" if step.why else "")
    key, line = f"{call.number}.{step.piece}{step.version}", 2.2 if fresh else 0.8
    scene.box(x, y + 1, width, ROW - 2, fill, (word,), more, line, python, step.what, key)
