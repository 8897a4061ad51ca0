"""What a reader calls, in a real kernel: check, hint, solution, progress."""

import json
import os
import queue
import re
import sys
import time
from pathlib import Path

import pytest
from jupyter_client import KernelManager

from tests.hostile.course import make_course

ROOT = Path(__file__).resolve().parent.parent
CENTRE = "The values around their mean (`centre`)"
RIGHT = "def centre(x):\n    return x - x.mean()"
WRONG = "def centre(x):\n    return x + x.mean()"


# Seconds after which a cell is said not to end: longer than any deadline of what runs in one.
ENDLESS = 180.0


class Kernel:
    """A kernel on a small course. `run` gives what a cell printed and showed, as text."""

    def __init__(self, folder: Path) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.kernel_spec.argv[0] = sys.executable
        environment = {
            **os.environ,
            "COURSE_ROOT": str(make_course(folder)),
            "COURSE_RECORD": str(folder / "record"),
        }
        self.manager.start_kernel(env=environment)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.run("import torch\nfrom course_utils import check, hint, progress, show_error, solution")

    def run(self, code: str) -> str:
        # After a cell that raised, a kernel would refuse for a moment what comes next, as if queued.
        asked, shown = self.client.execute(code, stop_on_error=False), []
        end = time.monotonic() + ENDLESS
        while time.monotonic() < end:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                shown.append(content["text"])
            elif kind in ("execute_result", "display_data"):
                shown.append(content["data"]["text/plain"])
            elif kind == "error":
                shown.append(f"{content['ename']}: {content['evalue']}")
            elif kind == "status" and content["execution_state"] == "idle":
                return "\n".join(shown)
        raise TimeoutError(f"the cell did not end: {code}")

    def restart(self) -> None:
        self.manager.restart_kernel(now=True)
        self.client.wait_for_ready(timeout=60)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    kernel = Kernel(tmp_path_factory.mktemp("kernel"))
    yield kernel
    kernel.close()


@pytest.fixture
def kernel(shared, tmp_path):
    """The shared kernel, with a record of its own for this test."""
    shared.run(f"import os; os.environ['COURSE_RECORD'] = {str(tmp_path / 'record.jsonl')!r}")
    return shared


def test_a_wrong_answer_is_named_and_a_right_one_passes(kernel):
    said = kernel.run(f"{WRONG}\ncheck(centre)")
    assert f"✗ {CENTRE}: not yet" in said
    assert "Why: To centre is to subtract the mean." in said
    assert "Hint 1 of 3" in said
    said = kernel.run(f"{RIGHT}\ncheck(centre)")
    assert f"✓ {CENTRE}: passed" in said
    assert "Hint" not in said
    assert "def centre" in kernel.run("solution(centre)")


def test_the_starter_is_not_an_attempt(kernel):
    starter = "def centre(x):\n    '''another docstring'''\n    raise NotImplementedError  # later"
    assert "not attempted" in kernel.run(f"{starter}\ncheck(centre)")
    kernel.run(f"{WRONG}\ncheck(centre, save_progress=False)")  # nor is a demonstration
    assert re.search(rf"· {re.escape(CENTRE)} +not attempted\n", kernel.run("progress()"))


def test_the_first_cell_of_an_exercise_comes_back_in_a_new_cell(kernel):
    kernel.run(WRONG)
    assert "new cell below" in kernel.run("from course_utils import starter\nstarter(centre)")
    reply = kernel.client.get_shell_msg(timeout=60)
    while not reply["content"].get("payload"):  # of cells before
        reply = kernel.client.get_shell_msg(timeout=60)
    (payload,) = reply["content"]["payload"]
    assert (payload["source"], payload["replace"]) == ("set_next_input", False)
    assert payload["text"].startswith("def centre(x: Tensor)") and "NotImplementedError" in payload["text"]


def test_attempts_are_counted_and_a_pass_stays(kernel):
    kernel.run(f"{WRONG}\ncheck(centre)")
    kernel.run(f"{RIGHT}\ncheck(centre)")
    kernel.run(f"{WRONG}\ncheck(centre)")
    said = kernel.run("progress()")
    assert re.search(rf"✓ {re.escape(CENTRE)} +passed, 2 attempts\n", said)
    assert "Further · 1 of 3" in said
    assert "Next: One more (`plus_one`) in 01 Small" in said


def test_an_answer_is_found_by_its_name(kernel):
    assert "There is no `Scale` yet." in kernel.run("check('scale')")
    assert f"✓ {CENTRE}: passed" in kernel.run(f"{RIGHT}\ncheck('centre')")
    kernel.run("class Scale(torch.nn.Module):\n    def forward(self, x):\n        return x")
    for name in ("Scale", "'Scale'", "'scale'"):
        assert "(`Scale`): not yet" in kernel.run(f"check({name})")
    # A lambda has the name that it is bound to. What an answer prints is shown.
    said = kernel.run("centre = lambda x: print('seen', len(x))\ncheck(centre)")
    assert "seen 3" in said and f"✗ {CENTRE}: not yet" in said


def test_hints_come_one_at_a_time(kernel):
    first, second = kernel.run("hint('centre')"), kernel.run("hint('centre')")
    assert "hint 1 of 3" in first
    assert "hint 2 of 3" in second
    assert first.splitlines()[2] in second
    assert "solution(centre)" in kernel.run("hint('centre')")
    # The hints that were seen are not folded into the next report again.
    said = kernel.run(f"{WRONG}\ncheck(centre)")
    assert "Hint" not in said
    # What they begin with is the rule behind the check that failed last.
    why = said.partition("Why: ")[2].splitlines()[0]
    assert why and why in kernel.run("hint(centre)").splitlines()[2]
    assert "failed last" not in kernel.run("def centre():\n    pass\n_ = check(centre)\nhint(centre)")


def test_the_solution_comes_when_asked_twice(kernel):
    assert "def centre" not in kernel.run("solution('centre')")
    assert "def centre" in kernel.run("solution('centre')")


def test_the_solution_comes_after_three_attempts(kernel):
    kernel.run("\n".join([WRONG, *["_ = check(centre)"] * 3]))
    assert "def centre" in kernel.run("solution(centre)")


def test_what_is_no_exercise_is_said_plainly(kernel):
    assert "There is no exercise called `len`" in kernel.run("check(len)")
    assert "There is no exercise" in kernel.run("check(3)")
    assert "There is no exercise called `nothing`." in kernel.run("hint('nothing')")
    assert "called `Centr`; did you mean centre?" in kernel.run("solution('Centr')")


def test_an_error_is_shown_at_the_readers_line_and_left_to_the_debugger(kernel):
    said = kernel.run("def centre(x):\n    c = x\n    return c.view(7, 11)\ncheck(centre)")
    assert "at your line 3 (`return c.view(7, 11)`)" in said
    assert "ipykernel" not in said
    kernel.run("import sys, traceback")
    frames = kernel.run("[frame.name for frame in traceback.extract_tb(sys.last_traceback)]")
    assert frames == "['centre']"


IN_TURN = """
def sliding_windows(x, size, step=1):
    y = x.unfold(0, size, step)
    assert shares_storage(x, y)
    return y


def image_patches(x, p):
    rows = [sliding_windows(row, p, p) for row in x[0]]
    return torch.stack(rows)


def view_strides(size, stride, shape):
    return nn.functional.pad(size, (1, 1))


def broadcast_strides(*tensors):
    return exec("nn.Linear(1, 1)", {})


def overlaps(*args):
    return code
"""


def test_a_name_that_the_lesson_makes_and_the_kernel_lacks_is_said_once(kernel):
    """In answers to exercises of the first lesson, of which nothing was run."""
    usual = kernel.run("os.environ['COURSE_ROOT']").strip("'")
    kernel.run(f"os.environ['COURSE_ROOT'] = {str(ROOT)!r}\n{IN_TURN}")
    try:
        said = kernel.run("check(sliding_windows)")
        assert "`NameError: name 'shares_storage' is not defined`" in said
        told = "`shares_storage` is defined in the cell that begins `def shares_storage(a, b):`: run it."
        assert said.count("run it") == 1 and f"\n\n{told}\n" in said and "Why:" not in said
        kernel.run("del sliding_windows")
        said = kernel.run("check(image_patches)")
        assert "\n\n`sliding_windows` is the answer to an exercise above: run its cell.\n" in said
        assert "\n\n`nn` is imported in the set-up cell: run it.\n" in kernel.run("check(view_strides)")
        # It is there: that a string does not see it has another reason.
        said = kernel.run("from torch import nn\ncheck(broadcast_strides)")
        assert "NameError: name 'nn' is not defined" in said and "run it" not in said
        # Only a loop of the lesson leaves this one.
        said = kernel.run("check(overlaps)")
        assert "NameError: name 'code' is not defined" in said and "run it" not in said
    finally:
        kernel.run(f"os.environ['COURSE_ROOT'] = {usual!r}")


def test_after_a_restart_the_exercise_where_the_reader_stopped_can_be_gone_on_with(kernel, tmp_path):
    path = tmp_path / "01_small.ipynb"
    sources = [
        "import torch\nfrom course_utils import check, hint, progress, show_error, solution",
        "# helpers\n\ndef middle(x):\n    return x.mean()\n\nprint('a demonstration')",
        "def centre(x):\n    return x - middle(x)",
        "check(centre)",
    ]
    cells = [{"cell_type": "code", "metadata": {}, "source": text} for text in sources]
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}))
    kernel.run(f"{WRONG}\ncheck(centre)")
    kernel.restart()
    kernel.run(f"import os; os.environ['COURSE_RECORD'] = {str(tmp_path / 'record.jsonl')!r}")
    said = kernel.run(
        f"os.environ['JPY_SESSION_NAME'] = {str(path)!r}\nimport course_utils; course_utils.resume()"
    )
    told = "What this exercise needs was run: 3 cells of 01_small.ipynb as it was last saved."
    assert said.splitlines()[0] == f"You stopped at {CENTRE}. {told}"
    assert f"✓ {CENTRE}: passed" in kernel.run("check(centre)")
    assert kernel.run("import inspect; print(inspect.getsource(middle))") == (
        "def middle(x):\n    return x.mean()\n\n"
    )
    where = "import sys\ntry:\n    middle(1)\nexcept AttributeError as error:\n    "
    where += "print(error.__traceback__.tb_next.tb_lineno)"
    assert kernel.run(where) == "4\n"


def test_the_readers_state_is_left_alone(kernel):
    before = "torch.manual_seed(3); torch.set_default_dtype(torch.float64); _ = torch.set_grad_enabled(False)"
    kernel.run(f"{before}; a = torch.rand(2); torch.manual_seed(3)\n{RIGHT}")
    kernel.run("check(centre)")
    state = kernel.run(
        "(bool((torch.rand(2) == a).all()), torch.get_default_dtype(), torch.is_grad_enabled())"
    )
    kernel.run("torch.set_default_dtype(torch.float32); _ = torch.set_grad_enabled(True)")
    assert state == "(True, torch.float64, False)"


def test_an_endless_loop_ends_at_the_deadline_and_the_kernel_lives(kernel):
    said = kernel.run("def centre(x):\n    while True:\n        pass\ncheck(centre)")
    assert "it timed out" in said
    assert "it is in the loop at your line 2 (`while True:`)" in said
    assert kernel.run("1 + 1") == "2"


def test_an_interrupt_ends_a_check_and_counts_nothing(kernel, tmp_path):
    runs = tmp_path / "runs"
    # Not a file that is opened: Python drops an interrupt that arrives while it closes one.
    kernel.run(f"def centre(x):\n    os.mkdir({str(runs)!r})\n    while True:\n        pass")
    asked = kernel.client.execute("check(centre)", stop_on_error=False)
    end = time.monotonic() + ENDLESS
    while not runs.exists() and time.monotonic() < end:
        time.sleep(0.01)
    kernel.manager.interrupt_kernel()
    reply = kernel.client.get_shell_msg(timeout=ENDLESS)
    while reply["parent_header"].get("msg_id") != asked:
        reply = kernel.client.get_shell_msg(timeout=ENDLESS)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert re.search(rf"· {re.escape(CENTRE)} +not attempted\n", kernel.run("progress()"))


def test_show_error_prints_what_is_raised_and_insists_on_it(kernel):
    assert kernel.run("show_error(lambda: torch.ones(2).view(3))").startswith(
        "RuntimeError: shape '[3]' is invalid"
    )
    assert kernel.run("show_error(lambda: 1)").startswith("AssertionError")


def test_a_record_that_cannot_be_written_is_said_once_and_nothing_breaks(kernel, tmp_path):
    kernel.run(
        f"os.environ['COURSE_RECORD'] = {str(tmp_path / 'a_folder')!r}; os.mkdir(os.environ['COURSE_RECORD'])"
    )
    said = kernel.run(f"{RIGHT}\ncheck(centre)")
    assert f"✓ {CENTRE}: passed" in said
    assert "Traceback" not in said
    assert "Error" not in said.replace("NotImplementedError", "")
    assert "passed, 1 attempt" in kernel.run("progress()")


def test_a_report_that_takes_long_says_what_is_running(kernel):
    slow = RIGHT.replace("    return", "    import time; time.sleep(1.5)\n    return")
    assert "checking 1 of " in kernel.run(f"{slow}\ncheck(centre)")
    assert kernel.run("import os; os.environ['COURSE_QUIET'] = '1'") == ""
    assert "checking" not in kernel.run(f"{slow}\ncheck(centre)")
    kernel.run("del os.environ['COURSE_QUIET']")
