"""What exercises on ranks look at: messages that were waited for, and gradients of a whole batch."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from course_utils import measure
from course_utils.exercise import expect
from course_utils.measure.traffic import Call


def given(setup: str, **names: Any) -> expect.Given:
    """An example that is the same code on every rank: `dist` is known in it."""
    return expect.given(setup, dist=dist, **names)


def all_through(t: expect.Given, call: str) -> tuple[Any, list[Call]]:
    """What `call` gave, and the messages and collectives of this rank, when all ranks are through.

    What was begun and not waited for is a mismatch: what such a call gives would be chance. A message that
    nobody keeps may get lost; here each is kept until it has arrived.
    """
    with measure.traffic() as seen:
        result = t.call(call)
        calls, order = list(seen.calls), set(seen.order)
        dist.barrier()
    left = [one.name for i, one in enumerate(calls) if not {"wait", f"wait {i}"} & order]
    expect.true(
        not left,
        f"this rank began {len(calls)} calls and waited for {len(calls) - len(left)}; the first that it did "
        f"not wait for is a `{left[0] if left else ''}`",
        "expected: it has waited for each when your function returns",
    )
    return result, calls
