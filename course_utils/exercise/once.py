"""What several checks of one report ask for alike is done once: an answer's training run, say."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

_done: ContextVar[dict[Any, Any] | None] = ContextVar("done", default=None)


@contextlib.contextmanager
def one_report() -> Iterator[None]:
    """The checks that run inside are those of one answer."""
    token = _done.set({})
    try:
        yield
    finally:
        _done.reset(token)


def done_before() -> dict[Any, Any]:
    """What checks of this report have put here, for those that come later; outside of one, nothing."""
    done = _done.get()
    return {} if done is None else done
