"""`resume()`: where a reader stopped, what is run for it out of their notebook, and what is told."""

from __future__ import annotations

import inspect
import json
import sys
import traceback
from types import ModuleType

import pytest

from course_utils.grading.coming_back import NOTHING, resume
from course_utils.lessons import catalog, source
from course_utils.reader import lab
from course_utils.reader.record import open_record
from course_utils.reader.stopped import stopped_at

COURSE = catalog.load()
LESSON = COURSE.lesson("01")
SETUP = "# the set-up\nimport torch\n\nfrom course_utils import check\nhere = torch.device('cpu')"
HALF = "ran = 'a demonstration'\n\ndef half(x):\n    return x / 2\n\nprint('seen')"
ANSWER = """\
@marked
def sliding_windows(x, size, step=1):
    half(x), rows, unheard_of
    return x.unfold(0, size, step)"""
MARKED = "def marked(f):\n    return f"
CELLS = [
    SETUP,
    MARKED,
    HALF,
    "\n# a file\nrows = open('/nowhere/at all').read()\nother = 1",
    ANSWER,
    "check(sliding_windows)",
    "def half(x):\n    return 'below'",
]


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_RECORD", str(tmp_path / "record.jsonl"))
    return open_record()


@pytest.fixture
def names(monkeypatch):
    """Those of a notebook, which is the main module."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return vars(module)


def notebook(path, *cells):
    made = [{"cell_type": "code", "metadata": {}, "source": cell} for cell in cells]
    task = {"course": {"exercise": "sliding_windows", "role": "task"}}
    made.append({"cell_type": "markdown", "id": "the-task", "metadata": task, "source": "# Task"})
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": made}))
    return path


def stop_at(record, name, state="wrong"):
    record.add_attempt(name, COURSE.lesson_of(name).topic, state, 1, 2)


def test_where_the_reader_stopped(record):
    first, second, third, *_, last = LESSON.exercise_names

    def now():
        return stopped_at(COURSE, LESSON, record.summary())

    assert now() is None
    stop_at(record, second, "passed")
    assert now() == third
    stop_at(record, last, "passed")
    assert now() == first
    stop_at(record, third)
    stop_at(record, first)
    assert now() == first
    stop_at(record, first, "passed")
    assert now() == third
    for name in LESSON.exercise_names:
        stop_at(record, name, "passed")
    assert now() is None


def test_what_is_next_is_core_before_further(record):
    lesson = COURSE.lesson("02")
    *before, last = [name for name in lesson.exercise_names if COURSE.card(name).core]
    names = lesson.exercise_names
    assert len(names[names.index(before[-1]) : names.index(last)]) > 1  # a further one stands between
    for name in before:
        stop_at(record, name, "passed")
    assert stopped_at(COURSE, lesson, record.summary()) == last


def test_what_the_exercise_needs_is_run_and_nothing_else(record, names, tmp_path, capsys):
    stop_at(record, "sliding_windows")
    file = notebook(tmp_path / "01_tensors.new.ipynb", *CELLS)
    told = resume(COURSE, record, LESSON, file, names)
    assert {"torch", "check", "here", "half", "marked", "sliding_windows"} <= names.keys()
    assert not {"ran", "rows", "other"} & names.keys() and capsys.readouterr().out == ""
    assert names["half"](8) == 4  # as it is where the check stands
    assert inspect.getsource(names["half"]) == "def half(x):\n    return x / 2\n"
    assert inspect.getsource(names["sliding_windows"]) == ANSWER
    with pytest.raises(TypeError) as raised:
        names["half"](None)
    assert (frame := traceback.extract_tb(raised.tb)[-1]).lineno == 4 and frame.line == "return x / 2"
    first, error, lacking, go_on = repr(told).splitlines()
    title = COURSE.card("sliding_windows").title
    assert first == (
        f"You stopped at {title} (`sliding_windows`). "
        "What this exercise needs was run: 5 cells of 01_tensors.new.ipynb as it was last saved."
    )
    assert error == (
        "`rows` could not be had: the cell that begins `# a file` raised "
        "`FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/at all'`."
    )
    assert lacking == "No cell of 01_tensors.new.ipynb makes `unheard_of`."
    assert "Run All Above Selected Cell" in go_on
    assert '<a href="01_tensors.new.ipynb#cell-id=the-task">' in told._repr_html_()


def test_a_set_up_that_has_run_is_not_run_again(record, names, tmp_path):
    stop_at(record, "sliding_windows")
    file = notebook(tmp_path / "01_tensors.ipynb", *CELLS)
    names.update(torch=None, check=None, here="as it is")
    said = repr(resume(COURSE, record, LESSON, file, names))
    assert "4 cells" in said and names["here"] == "as it is" and "half" in names


def test_an_answer_that_is_no_python_yet_or_gone_is_told(record, names, tmp_path):
    stop_at(record, "sliding_windows")
    call = "check(sliding_windows)"
    broken = notebook(tmp_path / "01_tensors.ipynb", SETUP, "def sliding_windows(x:", call)
    said = repr(resume(COURSE, record, LESSON, broken, names))
    assert "`sliding_windows` could not be had: the cell that begins `def sliding_windows(x:` raised" in said
    gone = notebook(tmp_path / "01_tensors.ipynb", SETUP, call)
    said = repr(resume(COURSE, record, LESSON, gone, names))
    assert "No cell of 01_tensors.ipynb makes `sliding_windows`." in said and "check" in names


def test_what_cannot_be_gone_back_to_is_said_in_a_line(record, names, tmp_path):
    # The line stays on the page until the cell is run again: of the record, which has grown, it says nothing.
    assert NOTHING == "When you come back, run this cell to go on."
    assert repr(resume(COURSE, record, LESSON, None, names)) == NOTHING
    stop_at(record, "set_seed")
    assert repr(resume(COURSE, record, LESSON, None, names)) == NOTHING
    stop_at(record, "sliding_windows")
    assert "not known here which file" in repr(resume(COURSE, record, LESSON, None, names))
    (tmp_path / "01_tensors.ipynb").write_text("{")
    said = repr(resume(COURSE, record, LESSON, tmp_path / "01_tensors.ipynb", names))
    assert "01_tensors.ipynb: this is not a notebook" in said and "run its cells from the top" in said
    # A notebook under another name is known by what is in it.
    renamed = notebook(tmp_path / "mine.ipynb", *CELLS)
    assert "(`sliding_windows`)" in repr(resume(COURSE, record, None, renamed, names))


def test_a_lesson_that_is_done_leads_to_where_the_reader_stopped(record, names, tmp_path):
    for name in LESSON.exercise_names:
        stop_at(record, name, "passed")
    file = notebook(tmp_path / LESSON.notebook.name, *CELLS)
    assert repr(resume(COURSE, record, LESSON, file, names)) == "Every exercise of this lesson is passed."
    stop_at(record, "tabular_dataset")
    said = resume(COURSE, record, LESSON, file, names)
    assert repr(said).endswith(
        "You stopped at A table without a copy (`TabularDataset`) in 05 Feeding the model."
    )
    assert (
        '<a href="05_data.ipynb#cell-id=' in said._repr_html_() and "Feeding the model" in said._repr_html_()
    )


def test_every_lesson_has_the_cell_below_its_set_up():
    cells = source.notebook_of(COURSE, COURSE.lesson("00")).cells
    (at,) = (i for i, cell in enumerate(cells) if source.role(cell) == source.RESUME)
    assert "import check" in cells[at - 1].source and "course_utils.resume()" in cells[at].source
    for lesson in COURSE.lessons:  # which is found by what it imports
        assert source._SETUP.search(lesson.source.read_text(encoding="utf-8")), lesson.slug


def test_course_lab_says_where_and_how(record):
    stop_at(record, "tabular_dataset")
    file, said = lab._where_the_reader_stopped(COURSE.root)
    assert file == "05_data.ipynb"
    assert said[0] == "You stopped at A table without a copy (`TabularDataset`) in 05 Feeding the model."
    assert said[-1].strip() == "import course_utils; course_utils.resume()"
