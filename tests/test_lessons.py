"""`course build` on a small course of its own, in real kernels."""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from course_utils import reveal
from course_utils.lessons import build, catalog, freshness, glossary
from course_utils.lessons.build import run_build
from course_utils.lessons.catalog import CourseError
from course_utils.lessons.notebook_files import COUNT, MOST_BYTES, STEADY, steady, write_notebook
from course_utils.lessons.source import notebook_of
from course_utils.proving.laws import MOST_COLUMNS
from tests.files import FLIP_ROWS, FLIPPED, write

NBVAL_CFG = Path(__file__).parent / "nbval.cfg"

# With everything in it that differs from one run of a kernel to the next.
LESSON = """---
reading: 20
---

# Shapes

A first sentence.

```{code-cell} python
:tags: [parameters]

DEVICE = "cpu"
```

```{code-cell} python
import os, sys, tempfile, warnings
import matplotlib.pyplot as plt
import ipywidgets
import torch
from course_utils import check, progress
torch.ones(2, 3)
```

Above the exercise.

```{exercise} flip_rows
```

Below the exercise.

```{code-cell} python
for i in range(3):
    print("out", i, flush=True)
    print("err", i, file=sys.stderr, flush=True)
fig, ax = plt.subplots()
ax.plot([1, 2, 3])
plt.show()
print("after the figure")
print(object(), set("abcdef"), tempfile.mkdtemp())
warnings.warn("careful")
```

```{code-cell} python
ipywidgets.IntSlider(3)
```

```{code-cell} python
:tags: [nbval-ignore-output]

print("process", os.getpid(), sys.executable)
```

```{code-cell} python
progress()
```
"""


def make_course(root: Path, lesson: str = LESSON) -> Path:
    files = {
        "exercises/shapes/flip_rows.py": FLIP_ROWS,
        "solutions/shapes/flip_rows.py": FLIPPED,
        "notebooks/source/01_shapes.md": lesson,
    }
    return write(root, files)


@pytest.fixture
def course_at(tmp_path, monkeypatch):
    """Makes a course with one lesson and lets `run_build` find it."""

    def make(lesson: str = LESSON) -> Path:
        monkeypatch.setenv("COURSE_ROOT", str(make_course(tmp_path / "course", lesson)))
        return tmp_path / "course"

    return make


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A course with its one lesson built. Tests that change it work on a copy."""
    root = make_course(tmp_path_factory.mktemp("built") / "course")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_ROOT", str(root))
        assert run_build([], check=False, force=False, solved=None) == 0
    return root


@pytest.fixture
def copy_of_built(built, tmp_path, monkeypatch) -> Path:
    root = tmp_path / "course"
    shutil.copytree(built, root)
    monkeypatch.setenv("COURSE_ROOT", str(root))
    return root


def read(root: Path) -> nbformat.NotebookNode:
    return nbformat.read(root / "notebooks" / "01_shapes.ipynb", as_version=4)


def code(notebook: nbformat.NotebookNode, start: str) -> nbformat.NotebookNode:
    """The one code cell that contains `start`."""
    (found,) = [cell for cell in notebook.cells if cell.cell_type == "code" and start in cell.source]
    return found


# --- from the source to cells ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("above", "heading"),
    [
        ("", "## ☆ Rows"),
        ("## A section\n\nText.\n\n", "### ☆ Rows"),
        ("## A section\n\n### Below it\n\n```text\n# no heading\n```\n\n", "#### ☆ Rows"),
        ("### Below\n\n## A section\n\n```{code-cell} python\n# no heading\n1\n```\n\n", "### ☆ Rows"),
    ],
)
def test_a_task_stands_one_level_below_its_section(above, heading, tmp_path):
    source = LESSON.replace("Above the exercise.", f"{above}Above the exercise.")
    assert above in source
    course = catalog.load(make_course(tmp_path, source))
    cells = notebook_of(course, course.lessons[0]).cells
    (task,) = [cell for cell in cells if cell.metadata.get("course", {}).get("role") == "task"]
    assert task.source.startswith(f"{heading} upside down\n")


def test_exercise_becomes_three_cells(tmp_path):
    course = catalog.load(make_course(tmp_path))
    notebook = notebook_of(course, course.lessons[0])
    cells = [cell for cell in notebook.cells if "exercise" in cell.metadata.get("course", {})]
    assert [cell.metadata.course for cell in cells] == [
        {"exercise": "flip_rows", "role": role} for role in ("task", "starter", "check")
    ]
    task, starter, check = cells
    assert task.source.startswith("## ☆ Rows upside down\n\nReturn the rows")
    assert "*☆ Further · about 5 minutes.*" in task.source
    assert starter.source == 'def flip_rows(x):\n    """(m, n) -> (m, n)"""\n    raise NotImplementedError'
    assert check.source == "check(flip_rows)"
    at = notebook.cells.index(task)
    assert notebook.cells[at - 1].source == "Above the exercise."
    assert notebook.cells[at + 3].source == "Below the exercise."
    routes = "**Core**, 20 minutes: all that is marked ★ · **Everything**, 25 minutes · 20 minutes of each"
    assert routes in notebook.cells[0].source
    setup = next(
        c for c in notebook.cells if c.cell_type == "code" and "parameters" not in c.metadata.get("tags", [])
    )
    assert setup.metadata.jupyter == {"source_hidden": True}
    assert notebook.metadata.kernelspec.name == "python3"
    nbformat.validate(notebook)


def test_solved_has_references_and_the_same_checks(tmp_path):
    course = catalog.load(make_course(tmp_path))
    shipped, solved = (notebook_of(course, course.lessons[0], solved=solved) for solved in (False, True))
    differ = [(a, b) for a, b in zip(shipped.cells, solved.cells, strict=True) if a.source != b.source]
    ((starter, reference),) = differ
    assert starter.metadata == reference.metadata
    assert reference.source == "def flip_rows(x):\n    return x.flip(0)"
    assert "olab" not in nbformat.writes(shipped)  # the repository is not known


def test_ids_follow_from_the_content(tmp_path):
    twice = LESSON.replace("Below the exercise.", "```{code-cell} python\nprogress()\n```\n")
    more = twice.replace("A first", "```{code-cell}\n1\n```\n\nA first")
    courses = [catalog.load(make_course(tmp_path / name, text)) for name, text in (("a", twice), ("b", more))]
    ids, others = ([cell.id for cell in notebook_of(one, one.lessons[0]).cells] for one in courses)
    assert len(set(ids)) == len(ids)
    assert len(set(ids) & set(others)) == len(ids) - 1


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("```{exercise} flip_rows\n", "```{exercise} flip_rows\nsome text\n", "not empty"),
        ("A first sentence.", "```{note}\nA first sentence.\n```", "{note}"),
        ("reading: 20", "reading: soon", "reading"),
        ("# Shapes", "Before the title.\n\n# Shapes", "begins with its title"),
        ("```{exercise} flip_rows\n```", "````\n```{exercise} flip_rows\n````", "{exercise}"),
        (":tags: [parameters]", ":tags: [parameters", "YAML"),
    ],
)
def test_a_source_that_is_no_lesson(tmp_path, old, new, told):
    assert old in LESSON
    course = catalog.load(make_course(tmp_path, LESSON.replace(old, new)))
    with pytest.raises(CourseError, match=re.escape(told)):
        notebook_of(course, course.lessons[0])


# --- what is left of a run -------------------------------------------------------------------------------


def test_built_notebook_is_steady(built):
    notebook = read(built)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert {cell.execution_count for cell in cells} == {COUNT}
    printed = code(notebook, "range(3)").outputs
    assert [output.get("name") for output in printed] == ["stdout", "stderr", None, "stdout", "stderr"]
    assert printed[0].text == "out 0\nout 1\nout 2\n"
    assert printed[3].text.startswith("after the figure\n<object object at 0x...>")
    assert printed[3].text.endswith("/tmp/...\n")
    assert printed[4].text.startswith("cell.py:9: UserWarning: careful")
    assert b"tEXt" not in base64.b64decode(printed[2].data["image/png"])
    (slider,) = code(notebook, "IntSlider").outputs
    assert set(slider.data) == {"text/plain"}
    # Nothing was there before: what links lead to is the notebook that was being built.
    (task,) = (cell for cell in notebook.cells if cell.metadata.get("course", {}).get("role") == "task")
    assert f"#cell-id={task.id}" in code(notebook, "progress()").outputs[0].data["text/html"]
    text = (built / "notebooks" / "01_shapes.ipynb").read_text()
    for word in (str(built), "ipykernel_", '"execution"', "widget-state", '"version"'):
        assert word not in text
    assert "not attempted" in str(code(notebook, "check(flip_rows)").outputs)
    assert not (built / "workspace").exists()


def test_kernel_is_this_python_whatever_is_installed(course_at, tmp_path, monkeypatch):
    root = course_at(
        "# Shapes\n\n```{code-cell}\nimport sys\nsys.executable, sys.flags.hash_randomization\n```\n"
    )
    spec = tmp_path / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(
        json.dumps({"argv": ["false"], "display_name": "no", "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    assert run_build(["shapes"], check=False, force=False, solved=None) == 0
    assert code(read(root), "sys").outputs[0].data["text/plain"] == f"({sys.executable!r}, 0)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<function f at 0x7f12ab>", "<function f at 0x...>"),
        ("/tmp/ipykernel_12/345.py:3: UserWarning", "cell.py:3: UserWarning"),
        ('File "/v/lib/python3.11/site-packages/torch/a.py"', 'File "site-packages/torch/a.py"'),
        ("in /home/me/course/course_utils/draw/strides.py", "in course_utils/draw/strides.py"),
        ("saved to /tmp/tmpab_1cd23/model.pt2", "saved to /tmp/.../model.pt2"),
        ("https://example.org/exercises/a", "https://example.org/exercises/a"),
        ("shape (2, 3), 12 of 0x10 bytes at 3.5", "shape (2, 3), 12 of 0x10 bytes at 3.5"),
    ],
)
def test_steady(text, expected):
    assert steady(text) == expected
    assert steady(expected) == expected


def test_nbval_takes_out_the_same():
    from nbval.plugin import get_sanitize_patterns

    pairs = get_sanitize_patterns(NBVAL_CFG.read_text(encoding="utf-8"))
    assert pairs[: len(STEADY)] == list(STEADY)


# --- stale or not ----------------------------------------------------------------------------------------


def test_up_to_date_is_left_alone(copy_of_built, capsys):
    notebook = copy_of_built / "notebooks" / "01_shapes.ipynb"
    before = notebook.stat().st_mtime_ns
    # Of its solution it is not made.
    change(copy_of_built / "solutions/shapes/flip_rows.py", "x.flip(0)", "torch.flip(x, [0])")
    assert run_build([], check=True, force=False, solved=None) == 0
    assert run_build(["1"], check=False, force=False, solved=None) == 0
    assert "up to date" in capsys.readouterr().out
    assert notebook.stat().st_mtime_ns == before


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("notebooks/source/01_shapes.md", "A first", "The first"),
        ("exercises/shapes/flip_rows.py", "Return the rows", "Give the rows"),
        ("notebooks/01_shapes.ipynb", "raise NotImplementedError", "return x.flip(0)"),
        ("notebooks/01_shapes.ipynb", '"course": {', '"other": {'),
        ("notebooks/01_shapes.ipynb", '"cells": [', '"cells": <<<<<<< ['),
    ],
)
def test_stale(copy_of_built, capsys, path, old, new):
    change(copy_of_built / path, old, new)
    assert run_build([], check=True, force=False, solved=None) == 1
    told = capsys.readouterr().out
    assert told.startswith("01_shapes ")
    assert "course build 01_shapes" in told


def test_a_notebook_that_is_missing_or_has_no_source_is_named(copy_of_built, capsys):
    notebook = copy_of_built / "notebooks" / "01_shapes.ipynb"
    notebook.rename(notebook.with_name("07_left_over.ipynb"))
    assert run_build([], check=True, force=False, solved=None) == 1
    told = capsys.readouterr().out
    assert "01_shapes has not been built" in told
    assert "07_left_over.ipynb has no source" in told


def test_missing_exercise_is_named(copy_of_built, capsys):
    (copy_of_built / "exercises" / "shapes" / "flip_rows.py").unlink()
    with pytest.raises(CourseError, match=r"flip_rows\.py is missing"):
        run_build([], check=True, force=False, solved=None)
    assert run_build([], check=False, force=True, solved=None) == 1
    assert "flip_rows.py is missing" in capsys.readouterr().out


def test_a_new_lesson_makes_the_one_that_lists_them_all_stale(copy_of_built, tmp_path):
    (copy_of_built / "notebooks" / "source" / "02_more.md").write_text("# More\n")
    course = catalog.load(copy_of_built)
    assert freshness.why_stale(course, course.lessons[0]) is not None


def test_a_lesson_is_made_from_the_title_of_the_next_and_from_no_other(tmp_path):
    digests = []
    for title in ("More", "Even more", "More"):  # it is linked at the end
        root = make_course(tmp_path / f"{title} {len(digests)}", LESSON.replace("progress()", "1"))
        (root / "notebooks" / "source" / "02_more.md").write_text(f"# {title}\n")
        (root / "notebooks" / "source" / "03_far.md").write_text(f"# {len(digests)}\n")
        two = catalog.load(root)
        assert f"[02 {title}](02_more.ipynb) →" in notebook_of(two, two.lessons[0]).cells[-1].source
        digests.append(freshness.source_digest(two, two.lessons[0]))
    assert digests[0] == digests[2] != digests[1]


def test_only_a_lesson_that_shows_the_map_is_made_from_all_lessons(tmp_path):
    for call, told in (("progress()", None), ("progress(all=True)", "the map of the course")):
        root = make_course(tmp_path / call, LESSON.replace("progress()", call))
        (root / "notebooks" / "source" / "02_more.md").write_text("# More\n")
        for title in ("Far", "Further"):
            (root / "notebooks" / "source" / "03_far.md").write_text(f"# {title}\n")
            course = catalog._load.__wrapped__(root)
            why = freshness.why_stale(course, course.lessons[0])
            notebook = notebook_of(course, course.lessons[0])
            notebook.metadata["course"] = freshness.stamp(course, course.lessons[0], notebook)
            write_notebook(course.lessons[0].notebook, notebook)
        assert told in why if told else why is None


FIRST = """# Shapes

## The `row`

Not this. A *view* shares a storage: `a * b * c`. **No** term.

```{code-cell}
x = 'a *word* in code'
```
"""
SECOND = """# More

> The *storage* is a row.

A *view* again.

*Sharing* is cheap. *FX graphs* and *Dynamo* are names. *Dynamo* is one. (None.) *Loss scaling* is none.
"""


def test_the_glossary_has_each_term_with_its_sentence_and_place(tmp_path, monkeypatch, capsys):
    write(tmp_path, {"notebooks/source/01_shapes.md": FIRST, "notebooks/source/02_more.md": SECOND})
    monkeypatch.setenv("COURSE_ROOT", str(tmp_path))
    course = catalog.load(tmp_path)
    assert glossary.is_stale(course) and glossary.write(course) and not glossary.is_stale(course)
    text = nbformat.read(glossary.path_of(course), as_version=4).cells[0].source
    view = "**view**: A *view* shares a storage: `a * b * c`. [01 The `row`](<01_shapes.ipynb#The-row>)"
    assert view in text
    assert "**storage**: The *storage* is a row. [02 More](<02_more.ipynb#More>)" in text
    assert text.index("storage") < text.index("view") and "word" not in text and text.count("**view**") == 1
    words = [term.word for term in glossary.terms(course)]
    assert words == ["Dynamo", "FX graphs", "loss scaling", "sharing", "storage", "view"]
    glossary.path_of(course).write_text("{}")
    assert run_build([], check=True, force=False, solved=None) == 1
    assert "the glossary is older than the lessons" in capsys.readouterr().out


def test_an_entry_of_the_glossary_says_what_its_term_is():
    for term in glossary.terms(catalog.load()):
        first, *others = term.sentence.split()
        assert len(others) >= 5, f"{term.word}: {term.sentence}"
        # "That is the *mask*." points at a sentence that isn't in the glossary.
        assert first not in ("That", "This", "It", "Such", "These", "They"), f"{term.word}: {term.sentence}"


def test_no_title_stands_twice_in_a_lesson():
    course = catalog.load()
    for lesson in course.lessons:
        cells = jupytext.reads(lesson.source.read_text(encoding="utf-8"), fmt="md:myst").cells
        prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        titles = re.findall(r"^#+ +(.*)$", re.sub(r"```.*?```", "", prose, flags=re.DOTALL), re.MULTILINE)
        titles += [course.card(name).title for name in lesson.exercise_names]
        plain = Counter(title.replace("`", "").strip().lower() for title in titles)
        assert len(titles) > 5 and not [title for title, times in plain.items() if times > 1], lesson.slug


def test_code_in_a_lesson_is_no_wider_than_its_cell():
    for lesson in catalog.load().lessons:
        for cell in jupytext.reads(lesson.source.read_text(encoding="utf-8"), fmt="md:myst").cells:
            if cell.cell_type == "code":
                wide = [line for line in cell.source.splitlines() if len(line) > MOST_COLUMNS]
                assert not wide, f"{lesson.slug}: {wide}"


def test_an_answer_is_folded_until_the_readers_own_is_given():
    cases = [
        ("...", "<details>", "nothing yet"),
        ("[1, ...]", "<details>", "[1, 'nothing yet']"),
        ("{'a': 2}", "<details open>", "{'a': 2}"),
    ]
    start = "from course_utils import reveal\nwith reveal({}) as mine:\n    print('you < me:', mine)"
    notebook = new_notebook(cells=[new_code_cell(start.format(mine)) for mine, _, _ in cases])
    NotebookClient(notebook, kernel_name="python3").execute()
    for cell, (_, opens, said) in zip(notebook.cells, cases, strict=True):
        (output,) = cell.outputs
        assert output.data["text/plain"] == f"you < me: {said}\n"
        assert output.data["text/html"].startswith(opens)
        assert f"<pre>you &lt; me: {said.replace(chr(39), '&#x27;')}" in output.data["text/html"]


def test_a_fold_without_a_block_says_that_it_needs_one():
    assert repr(reveal(3)) == (
        "reveal folds a block: write `with reveal(my_prediction):` and, indented below, what to fold."
    )


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        ("- A first\n  sentence.\n  `{cell}` `flip_rows.right_values`\n- Above the\n  `{cell}`\n", None),
        ("- in reverse order\n  `flip_rows.right_values`\n- `flip(0)` reverses\n  `{cell}`\n", None),
        ("- A second sentence.\n  `{cell}`\n", "no longer says 'A second sentence.': take it off the list"),
        ("- A first sentence.\n  `{cell}` `0a1b2c3d4e5f`\n", "is gone: 0a1b2c3d4e5f. Look whether it still"),
        ("- A first sentence.\n  `flip_rows.values`\n", "is gone: flip_rows.values. Look"),
        ("- A first sentence.\n", "no claim with what shows it in backticks below: - A first sentence."),
    ],
)
def test_a_claim_is_said_and_something_shows_it(copy_of_built, capsys, listed, told):
    cell = code(read(copy_of_built), "for i in range").id
    write(copy_of_built, {"notebooks/claims/01_shapes.md": listed.replace("{cell}", cell)})
    for check in (False, True):
        assert run_build([], check=check, force=False, solved=None) == (told is not None)
        assert told is None or told in capsys.readouterr().out


def test_what_draws(tmp_path, monkeypatch):
    """A module that a lesson does not draw with leaves it fresh."""
    package = tmp_path / "course_utils"
    files = {
        "__init__.py": "from course_utils.notebook import check, progress",
        "notebook.py": "def check(a):\n    from course_utils.grading import attempt, report",
        "grading/attempt.py": "from course_utils import expect",
        "draw/strides.py": "from course_utils.draw.palette import (\n    INK,  # dark\n)",
        "explore/strides.py": "from course_utils.draw import strides as picture",
    }
    empty = ("grading/__init__", "grading/report", "expect", "measure", "draw/__init__", "draw/palette")
    files |= dict.fromkeys([f"{name}.py" for name in (*empty, "draw/graph", "explore/__init__")], "")
    write(package, files)
    monkeypatch.setattr(freshness, "_PACKAGE", package)
    engine, drawn = {"notebook", "grading.report"}, {"draw", "draw.palette", "draw.strides"}
    for source, modules in {
        "from course_utils import check as c, progress, nothing": engine,
        "import course_utils.measure as m\nimport torch": {"measure"},
        "    from course_utils.draw import strides": drawn,
        "from course_utils.explore.strides import explore": drawn | {"explore.strides"},
    }.items():
        assert set(freshness.what_draws(source)) == {f"course_utils.{name}" for name in modules}


def test_unknown_lesson_and_no_lessons(copy_of_built, tmp_path, monkeypatch):
    with pytest.raises(CourseError, match="'12'"):
        run_build(["12"], check=False, force=False, solved=None)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("COURSE_ROOT", str(tmp_path / "empty"))
    assert run_build([], check=True, force=False, solved=None) == 2


# --- a build that fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        (":tags: [raises-exception]\n\n1 / 0", "ZeroDivisionError: division by zero"),
        ("import os; os._exit(3)", "ended the kernel"),
        ("while True: pass", "still running after 2 seconds"),
        (f"print('x' * {MOST_BYTES})", "bytes"),
    ],
)
def test_failing_cell_is_named_and_the_notebook_kept(course_at, capsys, monkeypatch, cell, told):
    if cell == "while True: pass":
        monkeypatch.setattr(build, "CELL_TIMEOUT", 2)
    root = course_at(f"# Shapes\n\n```{{code-cell}}\n{cell}\n```\n")
    notebook = root / "notebooks" / "01_shapes.ipynb"
    notebook.write_text("what was there")
    assert run_build([], check=False, force=False, solved=None) == 1
    said = capsys.readouterr().out
    assert "01_shapes: not built." in said
    assert told in said
    assert told == "bytes" or cell.splitlines()[-1] in said
    assert notebook.read_text() == "what was there"
    assert [path.name for path in (root / "notebooks").iterdir() if path.is_file()] == ["01_shapes.ipynb"]


def test_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.ipynb"
    path.write_text("before")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_notebook(path, new_notebook())
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


# --- solved ----------------------------------------------------------------------------------------------


def test_solved_is_written_and_nothing_else(copy_of_built, tmp_path):
    shipped = (copy_of_built / "notebooks" / "01_shapes.ipynb").read_text()
    assert run_build([], check=False, force=False, solved=tmp_path / "new" / "solved") == 0
    solved = nbformat.read(tmp_path / "new" / "solved" / "01_shapes.ipynb", as_version=4)
    assert "x.flip(0)" in code(solved, "def flip_rows").source
    assert not any(cell.outputs for cell in solved.cells if cell.cell_type == "code")
    assert (copy_of_built / "notebooks" / "01_shapes.ipynb").read_text() == shipped
