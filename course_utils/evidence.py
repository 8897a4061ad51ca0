"""Until no exercise asks for it: what an exercise recorded is that something was looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from course_utils.exercise.compare import is_tensor, plain
from course_utils.exercise.mismatch import looked

__all__ = ["is_tensor", "plain", "record", "silent"]


def record(kind: str, value: Any) -> None:
    looked()


@contextlib.contextmanager
def silent() -> Iterator[None]:
    yield
