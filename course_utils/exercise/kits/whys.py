"""The rule that a report tells: where a check can fail for several reasons, each has its own."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from course_utils.exercise import expect


@contextlib.contextmanager
def because(why: str) -> Iterator[None]:
    """A `Mismatch` inside has this why, in the place of the check's, unless it has one of its own."""
    try:
        yield
    except expect.Mismatch as error:
        error.why = error.why or why
        raise


def with_its_why(judge: Callable[..., None]) -> Callable[..., None]:
    """Decorator: what it finds wrong is told with the rule behind it, the rest of its docstring, unless it
    has a why of its own."""
    why = inspect.cleandoc(judge.__doc__ or "").partition("\n\n")[2]

    @functools.wraps(judge)
    def told(*args: Any) -> None:
        with because(why):
            judge(*args)

    return told
