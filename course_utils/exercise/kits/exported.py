"""Models that are exported, for lesson 14: what export logs is swallowed, and the model is as it was."""

import contextlib
import copy
import functools
import io
import logging
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from course_utils.exercise import expect

_STATE = (
    "[m.training for m in model.modules()]",
    "[p.requires_grad for p in model.parameters()]",
    "[p.grad for p in model.parameters()]",
    "model.state_dict()",
)


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Before export raises it logs, with the time, and prints its graph to the standard error. Export to ONNX
    prints each step."""
    before, printed = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(printed):
            yield
    finally:
        logging.disable(before)
        lines = printed.getvalue().splitlines(keepends=True)
        print("".join(line for line in lines if "[torch.onnx]" not in line), end="")


@contextlib.contextmanager
def quick_onnx() -> Iterator[None]:
    """The table of what ONNX calls each operator is made once, not for each export: most of its time."""
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        made = ONNXRegistry.from_torchlib
    except (ImportError, AttributeError):  # another version of torch: slower
        yield
        return
    with mock.patch.object(ONNXRegistry, "from_torchlib", functools.partial(_tables, made)):
        yield


@functools.cache
def _tables(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return made(*args, **kwargs)


def expect_left_alone(t: expect.Given, statement: str, *more: str) -> None:
    """Running the statement leaves the modes, the numbers and the gradients of `model` as they were, and what
    `more` says."""
    before = [copy.deepcopy(t.call(part)) for part in (*_STATE, *more)]
    with unlogged():
        t.run(statement)
    for part, was in zip((*_STATE, *more), before, strict=True):
        expect.equal(t.call(part), was, what=f"afterwards `{part}`", rtol=0, atol=0)
