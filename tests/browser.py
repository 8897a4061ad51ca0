"""JupyterLab in a real Chromium: `course lab` on a course of its own, and hands for its notebooks.

Everything is done as a reader does it, with menus, keys and the mouse, and everything is read off the page.
Every wait is for a condition.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from playwright.sync_api import Locator, Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
APPLICATIONS = (
    Path("/Applications/Chromium.app/Contents/MacOS/Chromium"),
    Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"),
)
# Seconds until a condition that never comes true is a failure. Nothing waits that long for its own sake.
PATIENCE = 60.0
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"
MODIFIER = "Meta" if sys.platform == "darwin" else "Control"
expect.set_options(timeout=1000 * PATIENCE)


class NoChromium(Exception):
    """This machine has no browser that the tests can drive; the message says what to install."""


def find_chromium() -> str:
    """The path of a Chromium or Chrome. Raises `NoChromium`."""
    found = [path for command in COMMANDS if (path := shutil.which(command))]
    found += [str(path) for path in APPLICATIONS if path.exists()]
    if not found:
        raise NoChromium(
            "These tests open JupyterLab in Chromium, and there is none on this machine.\n"
            "    Debian, Ubuntu: sudo apt install chromium\n"
            "    macOS: brew install --cask chromium"
        )
    return found[0]


# --- the server and the browser ----------------------------------------------------------------------


def course_for_a_reader(folder: Path) -> Path:
    """Puts a copy of the course into `folder` and returns its root. Its workspace is its own."""
    root = folder / "course"
    for name in ("notebooks", "exercises", "solutions", "practice"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@contextmanager
def serving(root: Path, folder: Path) -> Iterator[str]:
    """Runs `course lab` on the course in `root`. Yields its address up to the path, and the token after `?`.

    What Jupyter keeps for a reader goes to `folder`. At the end it gets a Ctrl-C.
    """
    environment = {**os.environ, "COURSE_ROOT": str(root), "HOME": str(folder / "home")}
    environment.pop("COURSE_RECORD", None)  # the record is where a reader's is: in the workspace
    environment["COURSE_DEVICE"] = "cpu"
    environment["COURSE_QUIET"] = "1"  # a report is the one output of its cell, also on a busy machine
    for kind in ("CONFIG", "DATA", "RUNTIME"):
        environment[f"JUPYTER_{kind}_DIR"] = str(folder / "jupyter" / kind.lower())
    (folder / "home").mkdir()
    log = folder / "lab.log"
    with log.open("w") as said:
        server = subprocess.Popen(
            [sys.executable, "-m", "course_utils.cli", "lab", "--no-browser"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: server.poll() is not None or "?token=" in log.read_text(), f"{log} to hold an address")
        [address] = re.findall(r"^http\S+", log.read_text(), re.MULTILINE) or [None]
        if address is None:
            raise RuntimeError(f"course lab ended: {log.read_text()}")
        yield address
        server.send_signal(signal.SIGINT)
        code = server.wait(PATIENCE)
        if code:
            raise RuntimeError(f"course lab ended with exit code {code}: {log.read_text()}")
    finally:
        server.kill()
        server.wait()


@contextmanager
def chromium(folder: Path, width: int = 1200, height: int = 1000) -> Iterator[Page]:
    """Opens a Chromium without a window, with a profile in `folder`, and yields its page.

    The page reaches this machine and nothing else: that a reader needs no network is a part of what is
    tested. Raises `AssertionError` at the end where the page has asked for more.
    """
    asked_for = []

    def guard(route):
        if urlsplit(route.request.url).hostname in ("localhost", "127.0.0.1"):
            route.continue_()
        else:
            asked_for.append(route.request.url)
            route.abort()

    path = find_chromium()
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            folder / "profile",
            executable_path=path,
            viewport={"width": width, "height": height},
            device_scale_factor=1,
            reduced_motion="reduce",
        )
        try:
            context.set_default_timeout(1000 * PATIENCE)
            context.route(lambda url: not url.startswith("data:"), guard)
            yield context.pages[0]
        finally:
            context.close()
    assert not asked_for, f"the page asked other machines: {asked_for}"


@contextmanager
def nothing_left_running(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Raises `AssertionError` where a process that was started inside has not ended after the end: a
    descendant of this process, or, where it has left the family, one that has `folder` in its command or
    environment."""
    before = set(psutil.Process().children(recursive=True))
    yield
    until(
        lambda: not _running(before, folder),
        lambda: f"processes to end: {_running(before, folder)}",
        patience,
    )


def _running(before: set[psutil.Process], folder: Path) -> list[str]:
    family = set(psutil.Process().children(recursive=True)) - before
    found = []
    for process in psutil.process_iter():
        try:
            mine = process in family or str(folder) in "\0".join(
                [*process.cmdline(), *process.environ().values()]
            )
            if mine and process not in before and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
        except psutil.Error:  # ended meanwhile, or somebody else's
            continue
    return found


def until(condition, what, patience: float = PATIENCE) -> None:
    """Waits until `condition()` is true, or raises `AssertionError` that names `what` it has waited for."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience:g} s for {what() if callable(what) else what}")
        time.sleep(0.1)


# --- JupyterLab --------------------------------------------------------------------------------------


def choose(page: Page, *path: str) -> None:
    """Chooses from the menus: `choose(page, "Run", "Run All Cells")`."""
    first, *rest = path
    page.locator(".lm-MenuBar-item").filter(has_text=re.compile(f"^{first}$")).click()
    for words in rest:
        page.locator(".lm-Menu-item", has=page.get_by_text(words, exact=True)).click()


def set_theme(page: Page, name: str) -> None:
    """Chooses the theme LIGHT or DARK and waits until the page has it."""
    choose(page, "Settings", "Theme", name)
    expect(page.locator("body")).to_have_attribute("data-jp-theme-name", name)
    expect(page.locator("#jupyterlab-splash")).to_have_count(0)


PROMPTS = ".jp-CodeCell .jp-InputPrompt"


def _count(prompt: str) -> int | None:
    found = re.fullmatch(r"\[(\d+)\]:", prompt.strip())
    return int(found[1]) if found else None


class Notebook:
    """A notebook that is open in JupyterLab. Cells are counted from 0, as they are in the file."""

    def __init__(self, page: Page, address: str, name: str) -> None:
        """Opens `workspace/<name>` and waits for its kernel. `address` is the one that `course lab` says."""
        self.page = page
        start, _, token = address.partition("?")
        self.name = name
        page.goto(f"{start.rpartition('/')[0]}/{name}?{token}")
        self._wait_for_kernel()

    def reload(self) -> None:
        """Loads the page anew, as the reader's F5 does."""
        self.page.reload()
        self._wait_for_kernel()

    def _wait_for_kernel(self) -> None:
        # The kernel is there when the status bar says so, the page when it has as many cells as it counts.
        def ready() -> bool:
            said = self.page.locator("#jp-main-statusbar").text_content(timeout=1000 * PATIENCE)
            count = re.search(r"Cell \d+/(\d+)", said)
            right = self.name in said and "| Idle" in said and self.panel.count() == 1
            return bool(right and count and int(count[1]) == self.cells.count())

        until(ready, f"{self.name} to be there, with its kernel")

    @property
    def panel(self) -> Locator:
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")

    @property
    def cells(self) -> Locator:
        return self.panel.locator(".jp-Cell")

    def cell(self, number: int) -> Locator:
        return self.cells.nth(number)

    def source(self, number: int) -> Locator:
        return self.cell(number).locator(".jp-InputArea-editor .cm-content")

    def output(self, number: int) -> Locator:
        return self.cell(number).locator(".jp-OutputArea-output")

    @property
    def counts(self) -> list[int | None]:
        """The numbers beside the code cells, in the order of the page; None where one has not run."""
        return [_count(prompt) for prompt in self.panel.locator(PROMPTS).all_text_contents()]

    def run_all(self) -> None:
        """Clears what is stored, runs every cell and waits until the last one has run."""
        choose(self.page, "Edit", "Clear Outputs of All Cells")
        until(lambda: not any(self.counts), "the cells to be cleared")
        choose(self.page, "Run", "Run All Cells")
        until(lambda: self.counts[-1], "the last cell to have run")

    def is_code(self, number: int) -> bool:
        """Whether a cell holds code."""
        return "jp-CodeCell" in self.cell(number).get_attribute("class")

    def write(self, number: int, text: str) -> None:
        """Replaces the text of a cell and leaves the cursor in it."""
        self.source(number).click()
        self.page.keyboard.press(f"{MODIFIER}+a")
        self.page.keyboard.insert_text(text)
        expect(self.source(number)).to_have_text(text.replace("\n", ""))

    def run(self, number: int) -> Locator:
        """Runs a cell from its editor (where that is collapsed, as it is), waits, and returns its output."""
        # After a restart a cell may get the number that it had. So the number is taken away first.
        prompt = self.cell(number).locator(".jp-InputPrompt")
        prompt.evaluate("prompt => { prompt.textContent = '' }")
        collapsed = self.cell(number).locator(".jp-InputPlaceholder").count()
        (prompt if collapsed else self.source(number)).click()
        self.page.keyboard.press("Shift+Enter")
        until(lambda: _count(prompt.text_content()), f"cell {number} to have run")
        return self.output(number)

    def add(self, text: str) -> int:
        """Adds a code cell below all others; returns its number."""
        last = self.cells.count() - 1
        self.cell(last).locator(".jp-InputPrompt").click()
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("b")
        expect(self.cells).to_have_count(last + 2)
        self.write(last + 1, text)
        return last + 1

    def save(self) -> None:
        self.page.keyboard.press(f"{MODIFIER}+s")
        expect(self.page.locator(".lm-TabBar-tab.lm-mod-current.jp-mod-dirty")).to_have_count(0)

    def restart_kernel(self) -> None:
        choose(self.page, "Kernel", "Restart Kernel…")
        self.page.locator(".jp-Dialog .jp-mod-accept").click()
        expect(self.page.locator(".jp-Dialog")).to_have_count(0)
        self._wait_for_kernel()


# --- what is on the page -----------------------------------------------------------------------------


def press(widget: Locator, words: str) -> None:
    """Clicks the button of a widget that has these words."""
    widget.get_by_role("button", name=words, exact=True).click()


def widget(output: Locator) -> Locator:
    """The explorer in the output of a cell, once its picture is there."""
    found = output.locator(".widget-vbox").first
    expect(found.locator("svg")).to_be_visible()
    return found


# Every piece of text in an element that can be seen, with the contrast (WCAG 2.1) between its colour and
# what is painted under it: backgrounds of all elements around it, or the box of its cell in a drawing.
CONTRASTS = """
element => {
  const rgba = text => {
    const n = text.match(/[\\d.]+/g).map(Number);
    return {rgb: n.slice(0, 3), a: n.length > 3 ? n[3] : 1};
  };
  const over = (top, below) => top.rgb.map((c, i) => c * top.a + below[i] * (1 - top.a));
  const ancestors = e => e ? [...ancestors(e.parentElement), e] : [];
  const luminance = rgb => {
    const [r, g, b] = rgb.map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const walk = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode.textContent.trim(), parent = walk.currentNode.parentElement;
    // A control that is switched off is grey in every theme, and WCAG asks nothing of it.
    if (!text || !parent.checkVisibility() || parent.closest("style, title, :disabled")) continue;
    let below = [255, 255, 255], opacity = 1;
    for (const e of ancestors(parent)) {
      const style = getComputedStyle(e);
      below = over(rgba(style.backgroundColor), below);
      opacity *= Number(style.opacity);
    }
    const box = parent instanceof SVGElement && parent.parentElement.querySelector(":scope > rect");
    const filled = box && getComputedStyle(box).fill;
    if (filled && filled !== "none") below = over(rgba(filled), below);
    const style = getComputedStyle(parent);
    const ink = rgba(parent instanceof SVGElement ? style.fill : style.color);
    const seen = over({rgb: ink.rgb, a: ink.a * opacity}, below);
    const [dark, light] = [luminance(seen), luminance(below)].sort((a, b) => a - b);
    found.push([text, (light + 0.05) / (dark + 0.05)]);
  }
  return found;
}
"""
SIGNS = set("✓✗○·")


def assert_readable(element: Locator, least: int) -> None:
    """`element` shows at least so many pieces of text, and all of them have enough contrast: 4.5 for text,
    3 for signs."""
    found = element.evaluate(CONTRASTS)
    assert len(found) >= least, found
    weak = [(text, round(ratio, 2)) for text, ratio in found if ratio < (3 if text in SIGNS else 4.5)]
    assert not weak, weak


# Words that do not stay within their box, or within the picture, with a margin; in units of the drawing.
STICKING_OUT = """
svg => {
  const found = [], page = svg.viewBox.baseVal;
  for (const text of svg.querySelectorAll("text")) {
    const at = text.getBBox(), rect = text.parentElement.querySelector(":scope > rect");
    const room = rect ? rect.getBBox() : page, margin = rect ? 3 : 0;
    const left = at.x - room.x - margin, right = room.x + room.width - margin - at.x - at.width;
    if (left < 0 || right < 0) found.push([text.textContent, left, right]);
  }
  return found;
}
"""


def assert_drawn_well(explorer: Locator, least: int) -> None:
    """A widget shows at least so many pieces of text, all of them can be read and stay within their boxes,
    and nothing is scaled down or cut off at the side."""
    assert_readable(explorer, least)
    # After a change the page may still be laying out what came.
    picture, found = explorer.locator("svg"), []

    def within() -> bool:
        found[:] = picture.evaluate(STICKING_OUT)
        return not found

    until(within, lambda: f"words to stay within their boxes: {found}")
    cut = "buttons => buttons.filter(b => b.scrollWidth > b.clientWidth).map(b => b.textContent)"
    assert not explorer.locator("button").evaluate_all(cut), "a button shows all of its words"
    widths = "s => [s.viewBox.baseVal.width, s.clientWidth]"
    until(lambda: len(set(picture.evaluate(widths))) == 1, "a picture in full size")
    assert explorer.evaluate("e => e.scrollWidth <= e.clientWidth")
