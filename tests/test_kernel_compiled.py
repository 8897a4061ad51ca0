"""The right answers of lesson 15 compile for a GPU, on a machine that has none."""

import json
import os
import subprocess
import sys

import compile_kernels
import pytest


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
