"""From what an author writes to the cells of a notebook.

A source is MyST Markdown, as jupytext reads it: a front matter with the minutes that reading takes, the
title, prose, code cells. Each ```` ```{exercise} name ```` fence becomes three cells: the task, the
starter, the call of `check`.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jupytext
import nbformat
from jupytext.myst import MystMetadataParsingError
from nbformat import NotebookNode, from_dict
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_utils.lessons import gpu_outputs
from course_utils.lessons.catalog import Course, CourseError, Lesson
from course_utils.lessons.freshness import repository
from course_utils.lessons.notebook_files import KERNELSPEC, LANGUAGE, address

TASK, STARTER, CHECK, SETUP, RESUME = "task", "starter", "check", "setup", "resume"
COMING_BACK = """\
# Coming back? This runs what the exercise where you stopped needs.
import course_utils

course_utils.resume()"""

_EXERCISE = re.compile(r"^(`{3,})\{exercise\}[ \t]+(\w+)[ \t]*\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#{1,6}) ", re.MULTILINE)
_CODE = re.compile(r"^(`{3,}|~{3,}).*?^\1`*[ \t]*$", re.MULTILINE | re.DOTALL)
_SETUP = re.compile(r"^from course_utils import\b", re.MULTILINE)
_DIRECTIVE = re.compile(r"^(?:`{3,}|~{3,}|:{3,})[ \t]*\{([\w-]+)\}", re.MULTILINE)


def notebook_of(course: Course, lesson: Lesson, *, solved: bool = False) -> NotebookNode:
    """The lesson as a notebook that has not been run. `solved`: with the references in place of the starters.
    Each cell of an exercise carries `{"course": {"exercise": name, "role": "task" | "starter" | "check"}}` in
    its metadata. Raises `CourseError` where the source cannot be read so."""
    try:
        read = jupytext.reads(lesson.source.read_text(encoding="utf-8"), fmt="md:myst")
    except (ValueError, nbformat.ValidationError, MystMetadataParsingError) as error:
        raise CourseError(f"{lesson.source}: {error}") from error
    reading = read.metadata.get("reading")
    if reading is not None and not isinstance(reading, int):
        raise CourseError(f"{lesson.source}: `reading` in its front matter is a whole number of minutes")
    cells: list[NotebookNode] = []
    records = gpu_outputs.read(lesson)
    for cell in read.cells:
        if cell.cell_type == "markdown":
            cells += _prose(course, lesson, cell.source, solved)
            continue
        cells.append(cell)
        if gpu_outputs.is_tagged(cell) and (record := records.get(cell_ids([cell])[0])):
            cells.append(gpu_outputs.cell_below(record))
    _put_tasks_below_sections(cells)
    if links := _neighbours(course, lesson):
        cells.append(new_markdown_cell(links))
    tasks = [cell for cell in cells if role(cell) == TASK]
    ids = {cell.metadata.course.exercise: one for cell, one in zip(tasks, cell_ids(tasks), strict=True)}
    routes = _routes(course, lesson, ids) if reading is not None else None
    _add_top(cells, lesson, routes, repository(course.root))
    placed = tuple(cell.metadata.course.exercise for cell in cells if role(cell) == STARTER)
    if placed != lesson.exercise_names:
        raise CourseError(f"{lesson.source}: an exercise fence is not closed, or is inside another")
    for cell, cell_id in zip(cells, cell_ids(cells), strict=True):
        cell["id"] = cell_id
    return new_notebook(cells=cells, metadata={"kernelspec": KERNELSPEC, "language_info": LANGUAGE})


def role(cell: NotebookNode | dict[str, Any]) -> str | None:
    """What a cell of the course is for (`TASK`, `STARTER`, `CHECK`, `SETUP`, `RESUME`), or None."""
    return cell["metadata"].get("course", {}).get("role")


def cell_ids(cells: list[NotebookNode]) -> list[str]:
    """An id for each cell that follows from its content: it stays when other cells come and go."""
    seen: Counter[str] = Counter()
    ids = []
    for cell in cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[digest] += 1
        ids.append(digest if seen[digest] == 1 else f"{digest}-{seen[digest]}")
    return ids


def colab_cell(address: str) -> NotebookNode:
    """The cell that fetches the course on Colab, from `address`, and does nothing elsewhere.
    COURSE_REPOSITORY in the environment stands for another address or a local folder. What the course lacks
    on Colab is known to the fetched course (`course_utils/colab.py`), not to the cell: a notebook that a
    reader has saved goes on working with a course that has moved on."""
    address = address.rstrip("/").removesuffix(".git")
    source = f"""\
# On Colab this fetches the course, and leaves the torch that is there alone. Elsewhere it does nothing.
import sys
from importlib.util import find_spec

if "google.colab" in sys.modules and not find_spec("course_utils"):
    import os
    import runpy
    import subprocess
    from pathlib import Path

    # Your progress is in the `workspace` of this folder, for as long as Colab keeps the session.
    course = Path("{address.rpartition("/")[2]}").resolve()
    if not (course / "course_utils").exists():
        address = os.environ.get("COURSE_REPOSITORY") or "{address}"
        clone = ["git", "clone", "--quiet", "--depth=1", address, str(course)]
        done = subprocess.run(clone, capture_output=True, text=True)
        if done.returncode:
            said = " ".join(done.stderr.split())
            why = RuntimeError(f"The course could not be fetched from {{address}}: {{said}}")
            why._render_traceback_ = lambda: [str(why)]  # this sentence instead of a traceback
            raise why
    runpy.run_path(str(course / "course_utils" / "colab.py"), run_name="__main__")
    sys.path.insert(0, str(course))"""
    return new_code_cell(source, metadata={"course": {"role": SETUP}})


def colab_badge(address: str, slug: str) -> str | None:
    """The badge that opens the lesson on Colab, as Markdown; None where the repository is not on GitHub."""
    found = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", address)
    if found is None:
        return None
    colab = "https://colab.research.google.com"
    notebook = f"{colab}/github/{found[1]}/blob/main/notebooks/{slug}.ipynb"
    return f"[![Open in Colab]({colab}/assets/colab-badge.svg)]({notebook})"


def _prose(course: Course, lesson: Lesson, text: str, solved: bool) -> list[NotebookNode]:
    cells = []
    start = 0
    for fence in _EXERCISE.finditer(text):
        if fence[3].strip():
            raise CourseError(f"{lesson.source}: the fence of {fence[2]} is not empty")
        cells += _markdown(lesson, text[start : fence.start()])
        cells += exercise_cells(course, fence[2], solved)
        start = fence.end()
    return cells + _markdown(lesson, text[start:])


def _markdown(lesson: Lesson, text: str) -> list[NotebookNode]:
    if unknown := _DIRECTIVE.search(text):
        raise CourseError(
            f"{lesson.source}: Jupyter shows no `{{{unknown[1]}}}`; code cells and exercises start at the "
            "margin and are closed, and there are no other directives"
        )
    return [new_markdown_cell(text.strip("\n"))] if text.strip() else []


def exercise_cells(course: Course, name: str, solved: bool) -> list[NotebookNode]:
    """The task, the starter (`solved`: the reference), the call of `check`."""
    exercise = course.exercise(name)
    start = course.solution(name).source if solved else exercise.starter_source
    star, way = ("★", "Core") if exercise.core else ("☆", "Further")
    head = f"### {star} {exercise.title}"
    task = f"{head}\n\n{exercise.task}\n\n*{star} {way} · about {exercise.minutes} minutes.*"
    call = new_code_cell(f"check({exercise.answer_name})")
    cells = [new_markdown_cell(task), new_code_cell(start.strip("\n")), call]
    for cell, role in zip(cells, (TASK, STARTER, CHECK), strict=True):
        cell.metadata = from_dict({"course": {"exercise": name, "role": role}})
    return cells


def _put_tasks_below_sections(cells: list[NotebookNode]) -> None:
    """Makes the heading of each task one level deeper than the one above it, for a table of contents."""
    level = "##"
    for cell in cells:
        if role(cell) == TASK:
            cell.source = f"{level}#{cell.source.lstrip('#')}"
        elif cell.cell_type == "markdown" and (found := _HEADING.findall(_CODE.sub("", cell.source))):
            level = found[-1]


def _neighbours(course: Course, lesson: Lesson) -> str:
    at = course.lessons.index(lesson)
    before, after = course.lessons[:at][-1:], course.lessons[at + 1 :][:1]
    links = [f"← [{one.number:02d} {one.title}]({one.slug}.ipynb)" for one in before]
    links += [f"[{one.number:02d} {one.title}]({one.slug}.ipynb) →" for one in after]
    return " · ".join(links)


HOUR = 60


def _routes(course: Course, lesson: Lesson, ids: Mapping[str, str]) -> str:
    """The three ways through a lesson and how long each takes, worked out from its exercises; what is named
    is a link to its task, whose cell is in `ids`."""
    first, time = [], HOUR - lesson.reading
    for one in map(course.card, lesson.exercise_names):
        if one.core and one.minutes <= time and len(first) < 2:
            first.append(one)
            time -= one.minutes
    in_core, further = course.minutes(lesson)
    ways = []
    if first and in_core > HOUR:
        file = lesson.notebook.name
        names = " and ".join(f"[{one.full_name}]({address(file, ids[one.name])})" for one in first)
        ways.append(f"**One hour**: read, and solve {names}")
    ways.append(f"**Core**, {in_core} minutes: all that is marked ★")
    if further:
        ways.append(f"**Everything**, {in_core + further} minutes")
    each = "each" if len(ways) > 1 else "it"
    return " · ".join(ways) + f" · {lesson.reading} minutes of {each} are reading."


def _add_top(cells: list[NotebookNode], lesson: Lesson, routes: str | None, address: str | None) -> None:
    """Below the title the ways through the lesson and, with an address, the way to Colab; below the set-up
    the way back."""
    title = f"# {lesson.title}"
    if not cells or cells[0].cell_type != "markdown" or cells[0].source.splitlines()[0].strip() != title:
        raise CourseError(f"{lesson.source}: the lesson begins with its title, `{title}`")
    rest = cells[0].source.partition("\n")[2].strip("\n")
    badge = colab_badge(address, lesson.slug) if address else None
    cells[0].source = "\n\n".join(filter(None, (title, routes, badge, rest)))
    codes = [cell for cell in cells if cell.cell_type == "code"]
    if codes and "parameters" in codes[0].metadata.get("tags", []):
        codes[1].metadata["jupyter"] = {"source_hidden": True}  # the set-up: nothing to read before the hook
    if setups := [i for i, cell in enumerate(cells) if cell in codes and _SETUP.search(cell.source)]:
        way_back = new_code_cell(COMING_BACK, metadata={"course": {"role": RESUME}})
        cells.insert(setups[0] + 1, way_back)
    if address:
        first = next((i for i, cell in enumerate(cells) if cell.cell_type == "code"), len(cells))
        cells.insert(first, colab_cell(address))
