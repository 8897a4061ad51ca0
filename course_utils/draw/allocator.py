"""The segments of a caching allocator as strips of blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from course_utils.draw.labels import LETTER, Label
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Box, Scene, to_picture
from course_utils.wrong_use import public

TOP, HIGH, STEP, SMALL, LEAST = 26.0, 26.0, 34.0, 10.5, 1.5
FREE = "inactive"


@public
def allocator(segments: Sequence[Mapping[str, Any]]) -> Picture:
    """One strip for each segment; blocks in use are filled, free ones are holes.

    `segments`: as in `torch.cuda.memory._snapshot()["segments"]`, each with `total_size` and `blocks`, a list
    with `size` and `state` ("inactive" where it is free).
    """
    return to_picture(compose(segments))


def compose(segments: Sequence[Mapping[str, Any]], title: str = "") -> Scene:
    """The scene of `allocator`, under a `title`."""
    rows = sorted(segments, key=lambda segment: segment.get("address", 0))
    most = max((segment["total_size"] for segment in rows), default=1)
    used = sum(b["size"] for s in rows for b in s["blocks"] if b["state"] != FREE)
    reserved = sum(segment["total_size"] for segment in rows)
    said = f"{size_of(used)} allocated, {size_of(reserved)} reserved, segments: {len(rows)}"
    scene = Scene(f"{title}{': ' if title else ''}{said}.", height=TOP + STEP * max(len(rows), 1))
    scene.write(1, 11, title or said, SMALL, code=bool(title), bold=True)
    if title:
        scene.write(WIDTH - 1, 11, said, SMALL, "end", faint=True)
    for row, segment in enumerate(rows):
        x, y = 1.0, TOP + STEP * row
        for block in segment["blocks"]:
            wide = max((WIDTH - 2) * block["size"] / most, LEAST)
            scene.boxes.append(_block(x, y, wide, block))
            x += wide
    return scene


def _block(x: float, y: float, wide: float, block: Mapping[str, Any]) -> Box:
    free, text = block["state"] == FREE, size_of(block["size"])
    fits = LETTER * SMALL * len(text) < wide - 4
    words = (Label(x + wide / 2, y + HIGH / 2, text, SMALL, "middle", faint=free),) if fits else ()
    more = f"{text}, {'free' if free else 'in use'}"
    return Box(x, y, wide, HIGH, "" if free else "view", words, more, dashed=free)


def size_of(count: int) -> str:
    """Bytes as a short text: 512 B, 20 KiB, 1.5 MiB."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
