"""Wrong use of what lessons show gets one sentence, and right use is let through."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from torch import Tensor, nn

import course_utils
from course_utils import cli, draw, explore, measure, wrong_use
from course_utils.measure.training import Run
from course_utils.wrong_use import WrongUse, public

ROOT = Path(__file__).parent.parent
# What answers with a sentence of its own, or takes any value.
ANSWERED = ("check", "hint", "solution", "starter", "reveal")
MORE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def shown() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions of the course that lessons show, and all of the rooms that they import."""
    for room in (course_utils, draw, explore, measure):
        for name in room.__all__:
            yield f"{room.__name__}.{name}", getattr(room, name)
    for source in sorted((ROOT / "notebooks" / "source").glob("*.md")):
        code = re.findall(r"^```\{code-cell\}.*?\n(.*?)^```", source.read_text("utf-8"), re.M | re.S)
        trees = [ast.parse(re.sub(r"^(:.*|---$[\s\S]*?^---$)", "", cell, flags=re.M)) for cell in code]
        names: dict[str, Any] = {}
        for node in (node for tree in trees for node in ast.walk(tree)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("course_utils"):
                for alias in node.names:
                    there = importlib.import_module(node.module)
                    if not hasattr(there, alias.name):
                        importlib.import_module(f"{node.module}.{alias.name}")
                    names[alias.asname or alias.name] = getattr(there, alias.name)
                    yield f"{node.module}.{alias.name}", getattr(there, alias.name)
        for node in (node for tree in trees for node in ast.walk(tree)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = names.get(node.value.id)
                if isinstance(module, ModuleType):
                    yield f"{module.__name__}.{node.attr}", getattr(module, node.attr)


FUNCTIONS = {name: one for name, one in dict(shown()).items() if inspect.isfunction(one)}


def test_what_lessons_show_is_found():
    expected = ("check", "draw.graph", "explore.strides", "measure.syncs", "clinic.card", "cpp.run")
    assert len(FUNCTIONS) >= 70 and {f"course_utils.{name}" for name in expected} <= set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_wrong_use_gets_one_sentence(name):
    function = FUNCTIONS[name]
    parameters = inspect.signature(function).parameters.values()
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in MORE]
    calls = [(value,) for value in (3, "abc", None)]
    if not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        calls += [call * (len(placed) + 1) for call in calls]
    if required:  # what needs no argument is called so in lessons; some of it takes minutes
        calls.append(())
    refused = 0
    for call in calls:
        try:
            result = function(*call)
        except WrongUse as error:
            said = str(error)
            refused += 1
            assert re.fullmatch(r"[^\n]+(; given (was|were) |; given: )[^\n]+", said), said
            assert function.__name__ in said or "wanted: " in said, said
        else:
            answers = function.__name__ in ANSWERED and call
            fits = placed and wrong_use._Wanted(function).wrong(call, {}) is None
            assert answers or fits, f"{name}{call} gave {result!r}"
    assert refused


def test_a_sentence_says_what_was_given():
    x = torch.ones(2, 3)
    for call, sentence in (
        (lambda: draw.hooks(nn.Linear, x), "model, an nn.Module, as `model`; given was the class Linear."),
        (lambda: draw.hooks(nn.Linear(3, 3)), "draw.hooks needs a value as `batch`; given was nothing."),
        (lambda: draw.lanes(x), "gave as `recording`; given was a tensor of shape (2, 3), float32."),
        (lambda: draw.lanes(draw), "gave as `recording`; given was a module."),
        (lambda: course_utils.progress("05"), "nothing but `all=` and `reset=`; given was '05'."),
        (lambda: draw.training(3), "draw.training takes nothing; given was 3."),
        (lambda: draw.modules(nn.Linear(3, 3), depth=3), "nothing but `model`; given was `depth=`."),
        (lambda: measure.flops(x, fn=x), "needs a function as `fn`; given was a tensor"),
        (lambda: draw.strides(x, tensor=x), "needs one value as `tensor`; given were two."),
        (lambda: draw.slopes(torch.sin), "draw.slopes needs a text as `name`; given was nothing."),
        (lambda: measure.time_ratio(min, max, seconds="1"), "needs a number as `seconds`; given was '1'."),
        (lambda: draw.storages(x=x, y=3), "draw.storages needs a tensor as `y`; given was 3."),
        (lambda: course_utils.run_ranks(min, 2.0), "needs a whole number as `world_size`; given was 2.0."),
        (lambda: course_utils.run_ranks(min, 0), "given was 0"),
        (lambda: draw.graph(x), "does not require a gradient"),
    ):
        with pytest.raises(WrongUse, match=re.escape(sentence)):
            call()


def test_what_is_like_the_right_thing_is_let_through(tmp_path):
    @public
    def takes(
        tensor: Tensor,
        model: nn.Module,
        number: float,
        whole: int,
        path: Path,
        numbers: Sequence[float],
        pairs: Mapping[str, Any],
        call: Callable[[], Any],
        device: str | torch.device,
        run: Run | None = None,
    ) -> int:
        return 7

    class Sub(Tensor):
        pass

    for given in (
        (nn.Parameter(torch.ones(2)), nn.ReLU(), 3, 3, tmp_path, [1.0], {}, len, "cpu"),
        (
            torch.ones(2).as_subclass(Sub),
            nn.Sequential(),
            np.float32(3),
            np.int64(3),
            "a/b",
            (1.0,),
            {},
            Sub,
            "meta",
        ),
        (
            torch.ones(2).to_sparse(),
            nn.ModuleList(),
            torch.ones(()),
            torch.tensor(3),
            Path(),
            np.ones(2),
            UserDict(),
            nn.ReLU(),
            torch.device("cuda", 1),
            SimpleNamespace(grad_norms={}),
        ),
        (
            torch.ones(2),
            nn.DataParallel(nn.ReLU()),
            Fraction(1, 3),
            True,
            Path(),
            torch.ones(2),
            os.environ,
            partial(len),
            "cuda:1",
            measure.record_run(len, "abc"),
        ),
    ):
        assert takes(*given) == 7
    by_name = dict(zip(inspect.signature(takes).parameters, given, strict=True))
    assert takes(**by_name) == takes(**by_name | {"run": None}) == 7
    x = torch.ones(1, requires_grad=True)
    assert draw.graph((x * 2).sum(), output=x)  # `output` is a name like others here


def test_the_readers_own_error_is_shown_as_it_is():
    shell = InteractiveShell()
    cell = """
from course_utils import measure

def mine(x):
    return len(x + 1)

measure.saved_bytes(mine, 3)
"""
    with capture_output() as shown:
        result = shell.run_cell(cell)
    assert type(result.error_in_exec) is TypeError
    text = re.sub(r"\x1b\[[\d;]*m", "", shown.stdout)
    assert text.endswith("TypeError: object of type 'int' has no len()\n") and "return len(x + 1)" in text
    assert "wrong_use.py" not in text


def test_a_notebook_shows_the_sentence_and_the_readers_line():
    shell = InteractiveShell()
    with capture_output() as shown:
        shell.run_cell("from course_utils import draw\nx = 3\ndraw.strides(x)\n")
    told = "draw.strides needs a tensor as `tensor`; given was 3.\n    at your line 3 (`draw.strides(x)`)"
    assert shown.stdout.strip() == told


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_shows_a_function_as_it_was_written(name):
    function, inner = FUNCTIONS[name], inspect.unwrap(FUNCTIONS[name])
    assert inspect.signature(function) == inspect.signature(inner) and function.__doc__ == inner.__doc__
    assert inspect.getsource(function).lstrip("@").startswith("public\n")


COMMANDS = {
    "frobnicate": "course has no command 'frobnicate'; there are ",
    "--port": "course has no command '--port'; there are ",
    "progress 99": "no lesson is called '99'; there are 00_start_here,",
    "progress 05 06": "course progress: unrecognized arguments: 06",
    "progress --foo": "course progress: unrecognized arguments: --foo",
    "copy 99": "no lesson is called '99'; there are 00_start_here,",
    "check": "course check: the following arguments are required: NOTEBOOK",
    "check nowhere.ipynb": "there is no such file",
    "check --jobs x y.ipynb": "course check: argument --jobs: wanted a number from 1 on, given 'x'",
    "lab --port x": "course lab: argument --port: wanted a number from 1 to 65535, given 'x'",
    "lab --port 65536": "course lab: argument --port: wanted a number from 1 to 65535, given '65536'",
    "new 99 name": "no lesson is called '99'; there are 00_start_here,",
    "build 99": "no lesson is called '99'; there are 00_start_here,",
    "prove nowhere": "no lesson has an exercise called 'nowhere'",
    "doctor 05": "course doctor: unrecognized arguments: 05",
}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_says_what_was_given_and_what_is_wanted(words, capsys):
    try:
        code = cli.main(words.split())
    except SystemExit as ended:
        code = ended.code
    output = capsys.readouterr()
    assert code == 2 and COMMANDS[words] in output.out + output.err


@pytest.mark.parametrize("words", ["progress", "--help"])
def test_a_command_whose_reader_has_gone_ends_quietly(words):
    read, write = os.pipe()
    os.close(read)  # as `head` does once it has its lines
    command = [sys.executable, "-m", "course_utils.cli", words]
    done = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")
