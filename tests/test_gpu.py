"""What holds with a GPU and can be seen without one; and what cells showed on one."""

from __future__ import annotations

import os
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_output

from course_utils.exercise import Check, Exercise, expect
from course_utils.grading import attempt
from course_utils.lessons import catalog, freshness, gpu_outputs
from course_utils.lessons.source import notebook_of

AHEAD = """
import torch
from course_utils.processes.forkserver import FIRST, WHEN_IDLE, warm
asked = []
ask = torch.cuda.is_available
torch.cuda.is_available = there = lambda: asked.append(1) or ask()
torch.cuda.device_count = lambda: 1
warm([*FIRST, *WHEN_IDLE, "torch.utils.cpp_extension", "course_utils.grading.ready_to_compile"])
assert torch.cuda.is_available is there
print(len(asked))
"""


def test_what_is_imported_ahead_asks_for_no_gpu():
    """Forks of a process that has asked CUDA can't use a GPU."""
    done = subprocess.run([sys.executable, "-c", AHEAD], capture_output=True, text=True)
    assert done.stdout == "0\n", done.stderr


def _sees_no_gpu(answer):
    expect.equal(os.environ.get("CUDA_VISIBLE_DEVICES"), "", what="what this process sees")


@pytest.mark.parametrize("how", [{"isolated": True}, {"ranks": 2}])
def test_a_process_whose_check_asks_for_no_gpu_sees_none(how):
    exercise = Exercise(minutes=1, hints=[])
    exercise.checks.append(Check("sees", "It sees none", _sees_no_gpu, deadline=60, **how))
    exercise.starter_object = len
    assert attempt.grade(exercise, len).state == "passed"


SOURCE = """\
# Small

```{code-cell}
:tags: [parameters]
DEVICE = None
```

```{code-cell}
:tags: [gpu]
print("needs one")
```
"""


def test_what_a_gpu_showed_stands_below_its_cell_until_that_changes(tmp_path):
    source = tmp_path / "notebooks" / "source" / "01_small.md"
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE)
    course = catalog.load(tmp_path)
    lesson = course.lessons[0]
    executed, before = notebook_of(course, lesson), freshness.source_digest(course, lesson)
    executed.cells[-1].outputs = [
        new_output("stream", name="stdout", text="two\n"),
        new_output("stream", name="stderr", text="a warning\n"),
        new_output("display_data", {"image/png": "cGl4ZWxz"}),
    ]
    assert gpu_outputs.keep(lesson, executed, "H200, torch 2.11") == 1
    shown = notebook_of(course, lesson)
    nbformat.validate(shown)
    below = shown.cells[-1]
    said = "**Recorded** on an H200, torch 2.11:\n\n```text\ntwo\n```\n\n"
    assert below.source == said + "![What the cell drew](attachment:recorded_1.png)"
    assert below.attachments == {"recorded_1.png": {"image/png": "cGl4ZWxz"}}
    assert freshness.source_digest(course, lesson) != before
    source.write_text(SOURCE.replace("needs one", "needs two"))
    assert notebook_of(course, lesson).cells[-1].cell_type == "code"
