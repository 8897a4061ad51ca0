"""The allocator explorer: a script of allocations, step by step, through a caching allocator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from course_utils.draw.allocator import compose, size_of
from course_utils.draw.shapes import Scene
from course_utils.explore.controls import slider
from course_utils.explore.explorer import Explorer
from course_utils.wrong_use import WrongUse, public

Step = tuple[str, int | str]


@public
def allocator(script: Sequence[Step], make: Callable[[], Any]) -> AllocatorExplorer:
    """An explorer of what `draw.allocator` draws, after each step of a script.

    `script`: steps such as `("a", 2048)`, allocate 2048 bytes as `a`, and `("free", "a")`. `make()` returns
    an allocator with `malloc(size)`, `free(block)` and `segments()`; one that is not written yet (it raises
    `NotImplementedError`) is stood in for by the course's own. Raises `ValueError` for any other step.
    """
    for step in script:
        if not (isinstance(step, tuple) and len(step) == 2 and isinstance(step[0], str)):
            raise WrongUse(f'explore.allocator: a step is ("a", 2048) or ("free", "a"); given was {step!r}')
    try:
        return AllocatorExplorer(script, make)
    except NotImplementedError:
        from course_utils.lessons import catalog

        return AllocatorExplorer(
            script, catalog.load().solution("caching_allocator").reference, "the course's"
        )


class AllocatorExplorer(Explorer):
    """The widget. `step` is the slider: so many steps have been done."""

    def __init__(self, script: Sequence[Step], make: Callable[[], Any], whose: str = "yours") -> None:
        self.whose, self.states = whose, _states(script, make())
        last = len(self.states) - 1
        self.step = slider("step", last, 0, last, width=420)
        super().__init__(self.step, follows=[self.step])
        self.draw()

    def scene(self) -> Scene:
        said, segments = self.states[self.step.value]
        return compose(segments, f"{said} ({self.whose})")


def _states(script: Sequence[Step], allocator: Any) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """What was done, and the segments after it, for each step; before any of them first."""
    held: dict[str, Any] = {}
    states = [("nothing yet", _copy(allocator))]
    for name, what in script:
        if name == "free":
            allocator.free(held.pop(str(what)))
            said = f"free {what}"
        else:
            held[name] = allocator.malloc(what)
            said = f"{name} = malloc({size_of(int(what))})"
        states.append((said, _copy(allocator)))
    return states


def _copy(allocator: Any) -> list[Mapping[str, Any]]:
    """The segments as they are now: the allocator goes on changing its own."""
    if (segments := allocator.segments()) is None:
        raise NotImplementedError("segments() is not written yet")
    return [{**segment, "blocks": [dict(b) for b in segment["blocks"]]} for segment in segments]
