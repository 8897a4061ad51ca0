"""The pictures of the README, taken from a real browser: `make pictures`.

Lesson 01 is opened in JupyterLab, run, and photographed: once at a figure, once at the report on a wrong
answer. Look at them before they are committed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import browser
import nbformat
from browser import ROOT, Notebook
from playwright.sync_api import Page

FOLDER = ROOT / "pictures"
LESSON = "01_tensors.ipynb"
WIDTH, HEIGHT = 1000, 750
FIGURE = "explorer = explore.strides("
WRONG = """\
def sliding_windows(x: Tensor, size: int, step: int = 1) -> Tensor:
    \"""(n,) -> (windows, size)\"""
    starts = range(0, len(x) - size + 1, step)
    return torch.stack([x[i : i + size] for i in starts])"""


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    sources = [cell.source for cell in nbformat.read(ROOT / "notebooks" / LESSON, as_version=4).cells]
    figure = next(n for n, source in enumerate(sources) if source.startswith(FIGURE))
    check = sources.index("check(sliding_windows)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root = browser.course_for_a_reader(folder)
        with (
            browser.serving(root, folder) as address,
            browser.chromium(folder, width=WIDTH, height=HEIGHT) as page,
        ):
            lesson = Notebook(page, address, LESSON)
            browser.choose(page, "View", "Appearance", "Show Left Sidebar")
            lesson.run_all()
            take(page, lesson, figure - 1, "lesson.png")
            lesson.write(check - 1, WRONG)
            lesson.run(check - 1)
            lesson.run(check)
            take(page, lesson, check - 1, "diagnosis.png")


def take(page: Page, lesson: Notebook, first: int, name: str) -> None:
    """Photographs the notebook with cell `first` at its top."""
    browser.until(lambda: abs(scroll_to(lesson, first)) < 20, f"cell {first} to be at the top")
    page.screenshot(path=FOLDER / name)
    print(f"pictures/{name}: {(FOLDER / name).stat().st_size // 1000} kB")


def scroll_to(lesson: Notebook, cell: int) -> float:
    """Scrolls; returns how many pixels below the top the cell was before. Cells that come into view may
    turn out higher than JupyterLab took them for, and move what is below them."""
    top = lesson.panel.locator(".jp-WindowedPanel-outer").bounding_box()["y"]
    away = lesson.cell(cell).bounding_box()["y"] - top
    lesson.cell(cell).evaluate("cell => cell.scrollIntoView({block: 'start'})")
    return away


if __name__ == "__main__":
    main()
