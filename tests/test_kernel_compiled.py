"""The right answers of lesson 15 compile for a GPU, on a machine that has none; and so do the kernels of an
answer whose check has the place of one there."""

import json
import linecache
import os
import subprocess
import sys

import cloudpickle
import compile_kernels
import pytest
import torch

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits.kernels import tl, triton
from course_utils.grading import attempt
from course_utils.grading.answers import Submission
from course_utils.grading.cells import units
from course_utils.grading.forks import Forks


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("compiled"))
    command = [sys.executable, compile_kernels.__file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("exercise", compile_kernels.CALLS)
def test_right_answers_compile(told, exercise):
    assert len(told[exercise]) > 1
    assert dict.fromkeys(told[exercise], "") == told[exercise]


SOURCE = """\
import torch, triton, triton.language as tl

@triton.jit
def _double(x, out, n, BLOCK: tl.constexpr):
    where = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + where, 2 * tl.load(x + where, mask=where < n), mask=where < n)

def doubled(x):
    out = torch.empty_like(x)
    _double[(triton.cdiv(len(x), 64),)](x, out, len(x), BLOCK=64)
    return out
"""
RECIPE = Submission("", units(SOURCE, "cell 1", 0)[0]).recipe("doubled")


@pytest.fixture
def in_a_notebook():
    """The answer as a notebook has it; and as there, what this file's checks use travels whole."""
    linecache.cache["cell 2"] = len(SOURCE), None, SOURCE.splitlines(True), "cell 2"
    names = {"__name__": "a_notebook"}
    exec(compile(SOURCE, "cell 2", "exec"), names)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield names["doubled"]
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@triton.jit
def _twice(x, out):
    where = tl.program_id(0) * 4 + tl.arange(0, 4)
    tl.store(out + where, 2 * tl.load(x + where))


def _values(t, device):
    """It doubles, as a kernel of the check's does"""
    wanted = torch.empty_like(t.x)
    gpu = device.type == "cuda"  # there is none: what is launched is compiled, and that's all
    launched = compile_kernels.compile_in_place_of_launches() if gpu else []
    found = t.call("doubled(x)")
    _twice[(25,)](t.x, wanted)
    expect.equal(launched, ["_double", "_twice"] if gpu else [])
    if not gpu:
        expect.equal(found, wanted)


@pytest.mark.parametrize("how", [{}, {"isolated": True}])
def test_for_a_gpu_the_kernels_of_an_answer_and_of_its_check_are_compiled(in_a_notebook, how):
    exercise = Exercise(minutes=1, hints=[])
    exercise.starter(in_a_notebook)
    exercise.check(needs="triton", given="x = torch.arange(100.0)", **how)(_values)
    with Forks() as forks:
        for answer, how in ((in_a_notebook, None), (RECIPE, forks)):  # in a notebook, in `course check`
            given = attempt.Attempt(exercise, answer)
            found = attempt.report(given, how, devices=["cpu", "cuda", "mps"]).outcomes
            told = [(one.device, one.state, one.message) for one in found]
            assert told == [("cpu", "passed", []), ("cuda", "passed", [])]
