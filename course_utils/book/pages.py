"""A lesson's page: its built notebook, read again with what the book shows otherwise. Nothing is run."""

from __future__ import annotations

import ast
import base64
import json
import re
from collections.abc import Callable
from functools import partial
from html import escape, unescape
from typing import Any

from course_utils.book import addresses, explorers
from course_utils.book.ways import work_on_it
from course_utils.lessons.catalog import Course, CourseError, Lesson, anchor

Cell = dict[str, Any]
Keep = Callable[[bytes], str]  # takes a picture and gives the address that a page has for it

# What is of use in a notebook only: a page ends with its own links, and nothing on it can be checked.
LEFT_OUT = ("check", "resume", "setup")

FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1`*[ \t]*$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?)[ \t]*$", re.MULTILINE)
_MARKS = re.compile(r"^(#{1,6}) ", re.MULTILINE)
_LINK = re.compile(r"\]\(<?(\w+)\.ipynb(?:#([^)>\n]+))?>?\)")
_ATTACHED = re.compile(r"!\[([^\]]*)\]\(attachment:([^)]+)\)")
_INSIDE = re.compile(r'<img src="data:image/png;base64,([^"]+)"([^>]*)>')
# A reader of the book has no progress and is asked nothing.
_OF_A_READER = re.compile(r"(progress|placement|practice)\([^)]*\)\s*$")
_NEIGHBOURS = re.compile(r"(← )?\[\d\d [^\]]+\]\(\w+\.ipynb\)( → | →| · |$)")


class Places:
    """Where links between notebooks lead in the book: headings as JupyterLab calls them, tasks by their
    cells."""

    def __init__(self, course: Course) -> None:
        self.known = {one.slug: _places(read(one)) for one in course.lessons}

    def linked(self, text: str, where: str) -> str:
        """Markdown with its links to notebooks as the book has them. Raises `CourseError` for one that leads
        nowhere; `where` it stands is said then."""

        def turned(link: re.Match[str]) -> str:
            slug, place = link.groups()
            if slug == "glossary":
                return "](glossary.md)"
            if slug not in self.known or place and place not in self.known[slug]:
                raise CourseError(f"{where}: nothing is where {link[0][2:-1]} leads")
            return f"]({slug}.ipynb{'#' + self.known[slug][place] if place else ''})"

        return _LINK.sub(turned, text)


def read(lesson: Lesson) -> list[Cell]:
    """The cells of the built notebook, each with its source as one text. Raises `CourseError` where there is
    no such notebook."""
    if not lesson.notebook.is_file():
        raise CourseError(f"{lesson.notebook} is missing: course build {lesson.slug}")
    cells = json.loads(lesson.notebook.read_text(encoding="utf-8"))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in cells]


def page(course: Course, lesson: Lesson, places: Places, keep: Keep, repository: str | None) -> str:
    """The lesson's page, as the text of a notebook that myst-nb reads. Its pictures are given to `keep`."""
    cells: list[Cell] = []
    level = 1  # of the heading above
    for cell in read(lesson):
        role = cell["metadata"].get("course", {}).get("role")
        if role in LEFT_OUT or cell["cell_type"] == "markdown" and _NEIGHBOURS.match(cell["source"]):
            continue
        if cell["cell_type"] == "code" and _OF_A_READER.match(cell["source"].rpartition("\n")[2]):
            continue
        if cell["cell_type"] == "markdown":
            if marks := _MARKS.findall(FENCE.sub("", cell["source"])):
                level = len(marks[-1])
            cells.append(cell | {"source": places.linked(_with_pictures(cell, keep), lesson.slug)})
            if len(cells) == 1:
                cells.append(_prose("work", work_on_it(lesson, repository)))
            continue
        if cells[-1]["metadata"].get("tags") == ["parameters"]:
            cell["source"] = f"{cells.pop()['source']}\n\n{cell['source']}"
        cells.append(_code(cell, keep, level, explorers.in_page(lesson.slug, cell["source"])))
        if role == "starter":
            name = cell["metadata"]["course"]["exercise"]
            cells.append(_prose(f"{cell['id']}-help", helps(course, name)))
    language = {"name": "python", "pygments_lexer": "ipython3"}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "language_info": language}
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


def helps(course: Course, name: str) -> str:
    """An exercise's hints and its solution, each folded, as Markdown."""
    hints, solution = course.exercise(name).hints, course.solution(name)
    folds = [fold(f"Hint {number} of {len(hints)}", hint) for number, hint in enumerate(hints, 1)]
    code = f"````python\n{solution.source.strip()}\n````"
    return "\n\n".join([*folds, fold("The solution", f"{solution.why}\n\n{code}")])


def fold(summary: str, text: str) -> str:
    """Markdown that stands folded below its summary."""
    return f"<details>\n<summary>{summary}</summary>\n\n{text}\n\n</details>"


def picture(address: str, alt: str, width: int | None) -> str:
    """HTML: a picture on the white page that it is drawn for, in its size; where that is too wide for the
    window, it is moved within."""
    size = f' width="{width}"' if width else ""
    return (
        '<div class="picture" tabindex="0" role="group" aria-label="Picture">'
        f'<img src="{address}" alt="{escape(alt, quote=True)}"{size} loading="lazy"></div>'
    )


def _places(cells: list[Cell]) -> dict[str, str]:
    found: dict[str, str] = {}
    for cell in cells:
        if cell["cell_type"] == "markdown":
            headings = _HEADING.findall(FENCE.sub("", cell["source"]))
            found |= {anchor(heading): addresses.anchor(heading) for heading in headings}
            if headings:
                found[f"cell-id={cell['id']}"] = addresses.anchor(headings[0])
    return found


def _prose(cell_id: str, text: str) -> Cell:
    return {"cell_type": "markdown", "id": cell_id, "metadata": {}, "source": text}


def _with_pictures(cell: Cell, keep: Keep) -> str:
    def shown(link: re.Match[str]) -> str:
        png = base64.b64decode(cell["attachments"][link[2]]["image/png"])
        return picture(keep(png), link[1] or "What was recorded", _width(png))

    return _ATTACHED.sub(shown, cell["source"])


def _code(cell: Cell, keep: Keep, level: int, explorer: str | None) -> Cell:
    """The cell with its outputs as the page shows them, or the explorer that stands for its widget; folded
    where it says nothing but what it imports."""
    hidden = cell["metadata"].get("jupyter", {}).get("source_hidden") or _only_imports(cell["source"])
    tags = cell["metadata"].get("tags", []) + ["hide-input"] * bool(hidden)
    shown = [_html(explorer)] if explorer else [_output(output, keep, level) for output in cell["outputs"]]
    return cell | {"metadata": {"tags": tags}, "outputs": shown, "execution_count": None}


def _only_imports(source: str) -> bool:
    try:
        body = ast.parse(source).body
    except SyntaxError:  # it has a magic of IPython's
        return False
    return all(isinstance(one, ast.Import | ast.ImportFrom) for one in body)


def _output(output: dict[str, Any], keep: Keep, level: int) -> dict[str, Any]:
    data = output.get("data", {})
    said = "".join(data.get("text/plain", ""))
    if "text/html" in data:
        html = _INSIDE.sub(partial(_taken_out, keep=keep, said=said), "".join(data["text/html"]))
        # A report in a notebook has headings of the levels 4 and 5.
        html = re.sub(r'aria-level="([45])"', lambda one: f'aria-level="{level + int(one[1]) - 3}"', html)
        html = re.sub(r'href="(\w+)\.ipynb(?:#[^"]*)?"', r'href="\1.html"', html)
    elif "image/png" in data:
        about = output["metadata"].get("image/png", {})
        png = base64.b64decode("".join(data["image/png"]))
        html = picture(keep(png), about.get("alt") or said, about.get("width"))
    else:
        return output
    return _html(html)


def _html(html: str) -> dict[str, Any]:
    return {"output_type": "display_data", "metadata": {}, "data": {"text/html": html}}


def _taken_out(image: re.Match[str], keep: Keep, said: str) -> str:
    """A picture inside of HTML. What it shows is what the text ends with that stands for all of the HTML."""
    png = base64.b64decode(image[1])
    alt = re.search(r'alt="([^"]*)"', image[2])
    return picture(keep(png), unescape(alt[1]) if alt else said.strip().rpartition("\n")[2], _width(png))


def _width(png: bytes) -> int:
    """In pixels of a page: pictures are drawn for twice as many."""
    return int.from_bytes(png[16:20]) // 2
