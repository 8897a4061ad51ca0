"""Models that are exported, for lessons 13 and 14: what a file holds, what a program refuses, and the model
is as it was. What export logs is swallowed."""

import contextlib
import copy
import functools
import io
import logging
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.export import ExportedProgram

from course_utils import torch_private
from course_utils.cpp import Ran
from course_utils.exercise import expect
from course_utils.words import cause, how_it_ended, what_to_look_for

_STATE = (
    "[m.training for m in model.modules()]",
    "[p.requires_grad for p in model.parameters()]",
    "[p.grad for p in model.parameters()]",
    "dict(model.named_parameters())",
    "dict(model.named_buffers())",
)
# A bound from here on is none: so many rows of anything fit into no memory.
_BOUNDLESS = 2**31 - 1


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
    """The tables of what ONNX calls each operator, and of how others are taken apart, are made once, not for
    each export: most of its time."""
    try:
        registry = torch_private.ONNXRegistry
        made = registry.from_torchlib
        taken_apart, fetched = torch_private.onnx_decompositions, torch_private.fetch_composites
    except (ImportError, AttributeError, torch_private.Gone):  # without ONNX, or in another torch: slower
        yield
        return
    with (
        mock.patch.object(registry, "from_torchlib", functools.partial(_tables, made)),
        mock.patch(_place(taken_apart), lambda known: dict(_tables(taken_apart, frozenset(known)))),
        mock.patch(_place(fetched), functools.partial(_tables, fetched)),
    ):
        yield


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


@functools.cache
def _tables(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return made(*args, **kwargs)


def expect_open(program: ExportedProgram) -> None:
    """The program takes any number of rows from 2 up, in each of its inputs."""
    nodes = {node.name: node.meta for node in program.graph.nodes}
    for name in program.graph_signature.user_inputs:
        rows = nodes[name]["val"].shape[0]
        told = f"in the program the number of rows is {rows}, a constant"
        expect.true(isinstance(rows, torch.SymInt), told, "expected: any number")
        # A size that is computed from another has no range of its own.
        if found := program.range_constraints.get(rows.node.expr):
            bounded = found.upper < _BOUNDLESS
            told = f"{found.lower} {f'to {found.upper} rows' if bounded else 'rows or more'}"
            told = f"the program takes {told} (`program.range_constraints`)"
            expect.true(found.lower <= 2 and not bounded, told, "expected: 2 or more, without a bound")


@contextlib.contextmanager
def answering(size: int, who: str = "the program") -> Iterator[None]:
    """What is raised inside is told as what `who` does with a batch of this size."""
    try:
        yield
    except expect.Mismatch:
        raise
    except Exception as error:
        said = " ".join(cause(str(error)).strip().splitlines()[:1])
        guard = said.partition("Guard failed: ")[2]
        told = f"raises for a batch of size {size}: `{type(error).__name__}: {said}`"
        if guard:
            told = f"refuses a batch of size {size}: it was exported for `{guard}` alone"
        raise expect.Mismatch(f"{who} {told}") from error


# What lies in the zip of a file that torch writes, and what the file is then.
_HOLDS = {
    "/code/": "a script",
    "/aotinductor/": "a package of AOTInductor",
    "/models/": "an exported program",
    "/data.pkl": "a pickle",
}


def content(path: str | Path) -> str:
    """What the file holds, by what lies in it."""
    expect.true(Path(path).is_file(), "there is no file at `path`")
    names = zipfile.ZipFile(path).namelist() if zipfile.is_zipfile(path) else []
    found = (what for part, what in _HOLDS.items() if any(part in f"/{name}" for name in names))
    return next(found, "nothing that torch writes")


def expect_ended_well(ran: Ran, who: str) -> None:
    """The program, in a process of its own, ended without an error; where a signal ended it: what to look
    for."""
    how = how_it_ended(ran.returncode)
    said = cause(ran.stderr).strip().splitlines()[-1:] or [how]
    looks = [f"it ended by {how}", *what_to_look_for(how)] if ran.returncode < 0 else []
    expect.true(ran.returncode == 0, f"{who} failed: `{said[0]}`", *looks)


def expect_left_alone(t: expect.Given, statement: str, inputs: str = "()") -> None:
    """Running the statement leaves the modes, the numbers, the gradients and the hooks of `model` as they
    were, and the `inputs`."""
    run_for_later(t, statement, inputs)()


def run_for_later(t: expect.Given, statement: str, inputs: str = "()") -> Callable[[], None]:
    """Runs the statement, and returns what raises as `expect_left_alone` does: a check that comes later may
    ask for that, after others have looked at what the statement made."""
    before = [copy.deepcopy(t.call(part)) for part in _STATE]
    alone = expect.left_alone(t.call(inputs), what=f"`{inputs}`")
    ran, found = False, None
    try:
        with unlogged(), alone, expect.hooks_left_alone(t.model):
            t.run(statement)
            ran = True
        for part, was in zip(_STATE, before, strict=True):
            expect.equal(t.call(part), was, what=f"afterwards `{part}`", rtol=0, atol=0)
    except expect.Mismatch as error:
        if not ran:  # the answer's own
            raise
        found = error

    def judge() -> None:
        expect.looked()
        if found is not None:
            raise found

    return judge
