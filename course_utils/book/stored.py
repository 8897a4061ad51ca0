"""What stands in the built notebooks, in the order of a reader: lines of prose and cells with what they
showed, each with its section. And what the collected pages have in common."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils.book.pages import FENCE, picture
from course_utils.lessons.catalog import Course, CourseError, Lesson

_HEADING = re.compile(r"#{1,6} +(.+?)[ \t]*$")
_ENTRY = re.compile(r"^- (.+)\n((?:  .+(?:\n|\Z))+)", re.MULTILINE)


@dataclass(frozen=True)
class Place:
    """A line of prose, or a cell of code or a recording, below a heading of a lesson."""

    lesson: Lesson
    heading: str
    line: str = ""
    cell: dict[str, Any] | None = None


def places(lesson: Lesson) -> Iterator[Place]:
    """The lesson from its top to its end, without its exercises."""
    heading = lesson.title
    for cell in json.loads(lesson.notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["metadata"].get("course"):
            continue
        if cell["cell_type"] == "code" or is_recording(cell):
            yield Place(lesson, heading, cell=cell)
            continue
        for line in FENCE.sub("", source).splitlines():
            if found := _HEADING.match(line):
                heading = found[1]
            elif line.strip():
                yield Place(lesson, heading, line=line)


def is_recording(cell: dict[str, Any]) -> bool:
    """Whether the cell has what the one above it showed on a GPU."""
    return cell["cell_type"] == "markdown" and "".join(cell["source"]).startswith("**Recorded** on ")


def printed(cell: dict[str, Any]) -> str:
    """What a cell showed as text."""
    if cell["cell_type"] != "code":
        return "".join(cell["source"])
    return "".join(_text(output) for output in cell["outputs"])


def _text(output: dict[str, Any]) -> str:
    text = output.get("text") or output.get("data", {}).get("text/plain", "")
    return "".join(text).rstrip("\n") + "\n"


def with_outputs(cell: dict[str, Any], about: str) -> str:
    """The cell as Markdown: its code, and below it what it showed. `about`: what its pictures show."""
    parts = [_fenced("".join(cell["source"]), "python")]
    for output in cell["outputs"]:
        if data := output.get("data", {}).get("image/png"):
            width = output["metadata"].get("image/png", {}).get("width")
            parts.append(picture(f"data:image/png;base64,{''.join(data).strip()}", about, width))
        elif (text := _text(output)).strip():
            parts.append(_fenced(text, "text"))
    return "\n\n".join(parts)


def _fenced(text: str, language: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.strip(chr(10))}\n{fence}"


def entries(course: Course, name: str) -> dict[str, str]:
    """What authors wrote down for a collected page, in `notebooks/book/<name>.md`: the words of a lesson, and
    in the lines below what is to be said of them. Raises `CourseError` where something else stands there."""
    path = path_of(course, name)
    text = re.sub(r"\A#.*?\n(?=- )", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = [(match[1], " ".join(match[2].split())) for match in _ENTRY.finditer(text)]
    if rest := _ENTRY.sub("", text).strip():
        raise CourseError(f"{path}: not two lines, words and what is said of them: {rest.splitlines()[0]}")
    if len(dict(found)) < len(found):
        raise CourseError(f"{path}: the same words stand there twice")
    return dict(found)


def path_of(course: Course, name: str) -> Path:
    return course.root / "notebooks" / "book" / f"{name}.md"


def tools(orders: dict[str, str]) -> str:
    """A field that filters the sections of a page and a choice of their order, as HTML: the `data-` attribute
    of a section's mark that it is sorted by, and what to call that. Without JavaScript the list is whole."""
    options = "".join(f'<option value="{value}">{name}</option>' for value, name in orders.items())
    script = (Path(__file__).parent / "static" / "list.js").read_text(encoding="utf-8").strip()
    return f"""\
<p id="list-tools" hidden><label>Filter <input type="search"></label>
<label>Sort by <select>{options}</select></label> <output></output></p>
<script>
{script}
</script>
"""


def mark(lesson: Lesson, text: str, /, **by: str) -> str:
    """Text that carries what the list is sorted by, as Markdown."""
    data = "".join(
        f' data-{name}="{value}"' for name, value in {"lesson": f"{lesson.number:02d}", **by}.items()
    )
    return f"<span{data}>{text}</span>"
