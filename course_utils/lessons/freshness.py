"""Whether a built notebook is older than what it is made from: read off, without running anything.

A built notebook carries two digests in its metadata: of all that it was made from, and of its cells
without their outputs.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from course_utils.lessons import glossary
from course_utils.lessons.catalog import Course, CourseError, Lesson
from course_utils.lessons.notebook_files import cells_digest

_PACKAGE = Path(__file__).resolve().parent.parent
_BUILDERS = tuple(
    f"lessons/{name}.py" for name in ("freshness", "source", "build", "notebook_files", "gpu_outputs")
)

_MAP = "progress(all=True)"  # where this is called in a lesson, it shows the map of the course
# Modules whose text or picture ends up in a lesson, whoever calls them.
_DRAWING = re.compile(r"course_utils\.(grading\.report|reader\.progress|draw|explore|diagnosis)\b")
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(course_utils[\w.]*)[ \t]+import[ \t]+(?:\(([^)]*)\)|([^\n#]*))"
    r"|import[ \t]+(course_utils[\w.]*))",
    re.MULTILINE,
)


def stamp(course: Course, lesson: Lesson, notebook: dict) -> dict[str, str]:
    """What a built notebook carries as `metadata.course`."""
    return {
        "lesson": lesson.slug,
        "source_digest": source_digest(course, lesson),
        "cells_digest": cells_digest(notebook),
    }


def why_stale(course: Course, lesson: Lesson) -> str | None:
    """Why the lesson's notebook has to be built again, or None."""
    if not lesson.notebook.is_file():
        return "has not been built"
    try:
        notebook = json.loads(lesson.notebook.read_text(encoding="utf-8"))
        stamped = notebook["metadata"]["course"]
        made_from, cells = stamped["source_digest"], stamped["cells_digest"]
        edited = cells != cells_digest(notebook)
    except (ValueError, KeyError, TypeError):
        return "is not a notebook that was built here"
    if made_from != source_digest(course, lesson):
        course_map = ", the map of the course" if _MAP in _text(lesson.source) else ""
        return f"is older than its source, an exercise of it{course_map}, or what draws it"
    return "was edited after it was built" if edited else None


def strays(course: Course) -> list[Path]:
    """Notebooks beside the lessons' own that no source makes."""
    ours = {lesson.notebook for lesson in course.lessons} | {glossary.path_of(course)}
    return sorted(path for path in (course.root / "notebooks").glob("*.ipynb") if path not in ours)


def source_digest(course: Course, lesson: Lesson) -> str:
    """A digest of all that the lesson's notebook is made from: its source, its exercises, the address of the
    repository, the code that builds it, the modules that its cells import and the drawing and reporting ones
    that these reach. What the rest of the engine changes in an output, a fresh run beside it finds."""
    source = _text(lesson.source)
    parts = [source, repository(course.root) or "", *(_text(_PACKAGE / name) for name in _BUILDERS)]
    if (records := course.root / "notebooks" / "gpu_outputs" / f"{lesson.slug}.json").is_file():
        parts.append(_text(records))
    parts += (_text(course.root / "exercises" / lesson.topic / f"{n}.py") for n in lesson.exercise_names)
    for module in what_draws(source):
        parts += module, _text(_path_of(module))
    at = course.lessons.index(lesson)
    for other in course.lessons[max(at - 1, 0) : at] + course.lessons[at + 1 : at + 2]:  # linked at the end
        parts += other.slug, other.title
    if _MAP in source:
        for other in course.lessons:
            parts += other.slug, other.title, str(other.reading), *other.needs
            parts += (repr(course.card(name)) for name in other.exercise_names)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def what_draws(source: str) -> list[str]:
    """The modules of this package that a lesson's outputs are drawn by, by their full names."""
    named = {module for module in _imported(source) if module != "course_utils"}
    seen: set[str] = set()
    waiting = list(named)
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += _imported(_text(_path_of(module))) - {"course_utils"}
    return sorted(module for module in seen if module in named or _DRAWING.match(module))


def repository(root: Path) -> str | None:
    """The address of the public repository (`[project.urls] Repository` in pyproject.toml), or None."""
    path = root / "pyproject.toml"
    if not path.is_file():
        return None
    return tomllib.loads(_text(path)).get("project", {}).get("urls", {}).get("Repository")


def _imported(text: str) -> set[str]:
    """The modules of this package that a text imports from; `from course_utils import check` is an
    import from the module that `check` comes from."""
    found: set[str] = set()
    for package, names in _imports(text):
        if _path_of(package) is not None:
            found.add(package)
        for name in names:
            if _path_of(f"{package}.{name}") is not None:
                found.add(f"{package}.{name}")
            elif package == "course_utils":
                found |= {origin for origin, given in _imports(_text(_path_of(package))) if name in given}
    return found


def _imports(text: str) -> Iterator[tuple[str, list[str]]]:
    for match in _IMPORT.finditer(text):
        names = re.findall(r"\w+", re.sub(r"\bas\s+\w+|#.*", "", match[2] or match[3] or ""))
        yield match[1] or match[4], names


def _path_of(module: str) -> Path | None:
    base = _PACKAGE.joinpath(*module.split(".")[1:])
    return next(filter(Path.is_file, (base.with_suffix(".py"), base / "__init__.py")), None)


def _text(path: Path | None) -> str:
    try:
        return path.read_text(encoding="utf-8") if path is not None else ""
    except FileNotFoundError:
        raise CourseError(f"{path} is missing") from None
