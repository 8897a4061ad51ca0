"""The book: how long it takes to build, what its search finds, and how soon its largest lesson is there.

It needs what `.[test]` brings, and Chromium.
"""

from __future__ import annotations

import functools
import http.server
import statistics
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from course_utils.book import build
from tests import browser
from tests.benchmarks.table import Row, seconds

QUERIES = Path(__file__).with_name("book_queries.txt")
INTERACTIVE = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd / 1000"


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        built = seconds(lambda: build.build(Path(folder)))
        site = Path(folder) / "html"
        size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) / 1e6
        yield Row("the book is built", built, 120, unit="s", detail=f"{size:.0f} MB")
        largest = max(site.glob("[0-9]*.html"), key=lambda path: path.stat().st_size)
        with serving(site) as address, browser.chromium(Path(folder)) as page:
            yield from _search_rows(page, f"{address}/index.html")
            loads = [_interactive(page, f"{address}/{largest.name}") for _ in range(5)]
            there = statistics.median(loads)
            yield Row("its largest lesson is interactive", there, 2, unit="s", detail=largest.stem)


def queries() -> list[tuple[str, set[str]]]:
    """What is typed into the search, and the sections that answer it."""
    found: list[tuple[str, set[str]]] = []
    for line in QUERIES.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            found[-1][1].add(line.strip())
        elif not line.startswith("#"):
            found.append((line.partition(" | ")[2], set()))
    return found


def _search_rows(page: browser.Page, address: str) -> Iterator[Row]:
    page.goto(address)
    page.keyboard.press("ControlOrMeta+k")
    field, first, third, waited, not_found = page.locator("#pst-search-dialog input"), 0, 0, [], []
    for words, answers in queries():
        waited.append(seconds(lambda words=words: _searched(page, field, words)))
        links = page.locator("#search-results a").evaluate_all("all => all.map(one => one.href)")
        links = [link[len(address) - len("index.html") :].replace(".html#", "#") for link in links]
        first += bool(links) and links[0] in answers
        third += bool(answers & set(links[:3]))
        if not answers & set(links[:3]):
            not_found.append(words[:30])
    total = len(waited)
    yield Row(f"search: of {total} queries, the section is first", first, 16, at_most=False, unit="")
    yield Row(
        f"search: of {total} queries, the section is in the first three",
        third,
        24,
        at_most=False,
        unit="",
        detail=f"not: {'; '.join(not_found)}",
    )
    yield Row("search: from typing to results, the slowest", max(waited), 2, unit="s")


def _searched(page: browser.Page, field: browser.Locator, words: str) -> None:
    field.fill(words)
    page.locator("#search-results[aria-busy=false]").wait_for()


def _interactive(page: browser.Page, address: str) -> float:
    page.goto(address)
    return page.evaluate(INTERACTIVE)


@contextmanager
def serving(site: Path) -> Iterator[str]:
    """A static server of the site; its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *said: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
