"""Builds the book: writes its sources, and has Sphinx make the site of them."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from course_utils.book import claims, errors, glossary_page, interview, search, sheets
from course_utils.book.conf import SETTINGS
from course_utils.book.pages import Places, page
from course_utils.book.ways import front_page
from course_utils.lessons import catalog
from course_utils.lessons.catalog import LESSON_TITLE, Course, CourseError
from course_utils.lessons.freshness import repository

STATIC = Path(__file__).parent / "static"


def build(out: Path, course: Course | None = None, address: str | None = None) -> Path:
    """Builds the book of the course into `out` and returns the folder of the site. `address`: of the public
    repository, where the course's own is not meant. Raises `CourseError` for a link that leads nowhere, for
    what Sphinx warns of, and where the extra `book` isn't installed."""
    course = course or catalog.load()
    for name in ("sphinx", "pagefind"):
        if importlib.util.find_spec(name) is None:
            raise CourseError(f"the book is made with {name}, which is not here: pip install -e '.[book]'")
    source, site = out / "source", out / "html"
    for folder in (source, site):
        shutil.rmtree(folder, ignore_errors=True)
    write_sources(course, source, address or repository(course.root))
    _run_sphinx(source, site)
    search.make_index(site)
    return site


def write_sources(course: Course, source: Path, address: str | None) -> None:
    """Writes what Sphinx reads: a notebook a lesson, the collected pages, the front page."""
    pictures = source / "_static" / "pictures"
    pictures.mkdir(parents=True)
    shutil.copytree(STATIC, source / "_static", dirs_exist_ok=True)

    def keep(png: bytes) -> str:
        name = f"{hashlib.sha256(png).hexdigest()[:16]}.png"
        (pictures / name).write_bytes(png)
        return f"_static/pictures/{name}"

    places = Places(course)
    for lesson in course.lessons:
        text = page(course, lesson, places, keep, address)
        (source / lesson.notebook.name).write_text(text, encoding="utf-8")
    more = []
    for name, text in collected(course):
        path = source / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if "/" not in name:  # a page of a folder is in the contents of that folder's own page
            more.append((name, LESSON_TITLE.search(text)[1]))
    (source / "index.md").write_text(front_page(course, more), encoding="utf-8")


def collected(course: Course) -> Iterator[tuple[str, str]]:
    """The pages that are collected from all lessons: the name and the text of each."""
    yield "claims", claims.page(course)
    yield "errors", errors.page(course)
    yield "sheets", sheets.page(course)
    yield from sheets.pages(course)
    yield "interview", interview.page(course)
    yield "glossary", glossary_page.page(course)


def _run_sphinx(source: Path, site: Path) -> None:
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    said = io.StringIO()
    with patch_docutils(), docutils_namespace():
        app = Sphinx(
            srcdir=source,
            confdir=None,
            outdir=site,
            doctreedir=source.parent / "doctrees",
            buildername="html",
            confoverrides=SETTINGS,
            status=None,
            warning=said,
            freshenv=True,
            parallel=2,
        )
        app.builder.search = False  # which finds pages, not sections
        app.build(force_all=True)
    for name in ("searchtools.js", "language_data.js"):
        (site / "_static" / name).unlink(missing_ok=True)
    # The theme's icons are 1.5 MB of JavaScript; the dozen that it shows here are in `static/icons.css`.
    (site / "_static" / "scripts" / "fontawesome.js").write_text("")
    for path in site.rglob("*.map"):
        path.unlink()
    if said.getvalue():
        raise CourseError(f"Sphinx warns of what stands in the book:\n{said.getvalue()}")


def main(out: Path) -> int:
    """Builds the book and says where it is; the exit code."""
    started = time.monotonic()
    try:
        site = build(out)
    except CourseError as error:
        print(error)
        return 1
    print(f"{site / 'index.html'}: built in {time.monotonic() - started:.0f} s")
    return 0
