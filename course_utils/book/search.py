"""What the search of the book finds: sections, entries of the lists and terms, each by an address of its own.

Pagefind makes an index of pages, and ranks pages. A page here is a lesson of 300 KB, so it is given a page
for each section instead: its title, what is said there, and, of less weight, code, what cells showed, and
what is folded. `static/search.js` asks the index.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from html import escape
from html.parser import HTMLParser
from pathlib import Path

from course_utils.lessons.catalog import CourseError

# What `search.js` needs of Pagefind, besides the index; it has interfaces of its own.
_NEEDED = ("pagefind.js", "pagefind-entry.json", "pagefind-worker.js", "pagefind.en_", "wasm.en.")
# What only says again what stands elsewhere is found below that.
_SAYS_AGAIN = ("interview", "sheets/", "glossary")
_AGAIN = ("What to remember", "Five questions", "Where to read on")
_VOID = {"area", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_HEADINGS = {f"h{level}" for level in range(1, 7)}
_UNSEEN = {"script", "style", "svg", "select", "button"}
_SHOWN = {"pre", "details", "table"}
_IN_A_WORD = {"a", "b", "code", "em", "i", "span", "strong"}


@dataclass
class Section:
    """A place with an id: its title, what is said there, and what is shown or folded there."""

    id: str
    title: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)


class Sections(HTMLParser):
    """The sections of a page, without those in them, and the terms of a glossary."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[Section] = []
        self._open: list[tuple[str, str]] = []  # elements: the name of each, and what begins with it
        self._inside: list[
            tuple[int, Section]
        ] = []  # sections, and how many elements are open in each at least
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _IN_A_WORD:
            self.handle_data(" ")
        if tag in _VOID:
            return
        given, depth = dict(attrs), len(self._open)
        classes = (given.get("class") or "").split()
        if tag == "section":
            self._begin(depth + 1, given["id"])
        elif tag == "dt" and "id" in given:
            self._leave(depth - 1)
            self._begin(depth, given["id"])
        kind = ""
        if tag in _HEADINGS or tag == "dt" and "id" in given:
            kind = "title"
        elif tag in _UNSEEN or "headerlink" in classes:
            kind = "unseen"
        elif tag in _SHOWN or "cell_output" in classes:
            kind = "shown"
        self._open.append((tag, kind))

    def handle_endtag(self, tag: str) -> None:
        if tag in (opened for opened, _ in self._open):
            while self._open.pop()[0] != tag:
                pass
            self._leave(len(self._open))

    def handle_data(self, data: str) -> None:
        kinds = [kind for _, kind in self._open]
        if self._inside and "unseen" not in kinds:
            _, here = self._inside[-1]
            part = here.shown if "shown" in kinds else here.title if "title" in kinds else here.said
            part.append(data)

    def _begin(self, depth: int, anchor: str | None) -> None:
        self.found.append(Section(anchor or ""))
        self._inside.append((depth, self.found[-1]))

    def _leave(self, depth: int) -> None:
        while self._inside and self._inside[-1][0] > depth:
            self._inside.pop()


def make_index(site: Path) -> None:
    """Writes the index of the site into its folder `pagefind`. Raises `CourseError` where Pagefind fails."""
    with tempfile.TemporaryDirectory() as folder:
        number = 0
        for path in sorted(site.rglob("*.html")):
            page = path.relative_to(site).as_posix()
            if page.startswith("_static"):
                continue
            article = path.read_text(encoding="utf-8").partition('<article class="bd-article"')[2]
            of = ""
            for section in Sections(article).found:
                title = " ".join("".join(section.title).split())
                of = of or title  # a page's own title is the first
                text = _page(f"{page}#{section.id}", title, of, section)
                (Path(folder) / f"{number}.html").write_text(text, encoding="utf-8")
                number += 1
        command = [
            sys.executable,
            "-m",
            "pagefind",
            "--site",
            folder,
            "--output-path",
            str(site / "pagefind"),
        ]
        done = subprocess.run([*command, "--force-language", "en"], capture_output=True, text=True)
    if done.returncode:
        raise CourseError(f"Pagefind failed:\n{done.stdout}{done.stderr}")
    for path in (site / "pagefind").iterdir():
        if path.is_file() and not path.name.startswith(_NEEDED):
            path.unlink()


def _page(address: str, title: str, of: str, section: Section) -> str:
    """A section as a page of its own. `of`: the page that it is on."""
    again = address.startswith(_SAYS_AGAIN) or title in _AGAIN
    said, shown = ("".join(part) for part in (section.said, section.shown))
    return (
        f'<html lang="en"><body data-pagefind-weight="{0.4 if again else 1}">'
        f'<h1>{escape(title)}</h1><p>{escape(said)}</p><p data-pagefind-weight="0.5">{escape(shown)}</p>'
        f'<i data-pagefind-meta="url:{escape(address)}"></i><i data-pagefind-meta="of:{escape(of)}"></i>'
        "</body></html>"
    )
