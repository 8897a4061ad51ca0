"""The compile explorer as a reader has it, in JupyterLab in a real Chromium, on a function that was really
compiled. What it shows is compared with what was written down in the kernel."""

import json

import browser
import pytest
from browser import DARK, LIGHT, Notebook, assert_drawn_well, press
from playwright.sync_api import Locator, expect

pytest_plugins = ["browser_fixtures"]

WATCHED = """
import json
import torch
from course_utils import draw, explore, watch_compile

def f(x, n):
    y = x + 1
    print(end="")
    z = y * n
    if z.sum() > 0:
        z = z.relu()
    return z - 1

seen = watch_compile(f)
x = torch.ones(4, 8)
for arguments in ((x, 2), (x, 2), (x, 3), (torch.ones(5, 8), 3)):
    seen(*arguments)
explorer = explore.compiled(seen)
explorer
"""
TOLD = """
print(json.dumps({
    "calls": [[call.number, call.arguments, [[s.piece, s.version, s.what, s.why] for s in call.steps]]
              for call in seen.calls],
    "lines": [[line.number, line.text, line.pieces] for line in seen.lines],
    "guards": {graph.name: graph.guards for graph in seen.graphs},
    "breaks": [[one.line, one.reason] for one in seen.breaks],
}))
"""
STILL = "draw.compiled(seen)"


@pytest.fixture(scope="module")
def notebook(page, address):
    return Notebook(page, address, "00_start_here.ipynb")


def widget(output: Locator) -> Locator:
    found = output.locator(".widget-vbox").first
    expect(found.locator("svg")).to_be_visible()
    return found


@pytest.fixture(scope="module")
def explorer(notebook):
    return widget(notebook.run(notebook.add(WATCHED.strip())))


@pytest.fixture(scope="module")
def told(notebook, explorer):
    return json.loads(notebook.run(notebook.add(TOLD.strip())).text_content())


def message(explorer: Locator) -> str:
    return explorer.locator(".widget-html").first.inner_text()


def keys(explorer: Locator, part: str) -> list[str]:
    found = explorer.locator(f"svg g[data-part={part}]")
    return found.evaluate_all("all => all.map(g => g.dataset.key)")


def expect_call(explorer: Locator, told: dict, number: int) -> None:
    _, arguments, steps = told["calls"][number - 1]
    line = f"call {number} of {len(told['calls'])}: {', '.join(arguments)}"
    browser.until(lambda: line in message(explorer), f"call {number}: {line}")
    assert all(why in message(explorer) for *_, why in steps)


def test_the_source_is_drawn_with_its_pieces_and_breaks(explorer, told):
    drawn = explorer.locator("svg").text_content()
    assert all(text in drawn for _, text, _ in told["lines"])
    wanted = [f"{number}.{name}" for number, _, pieces in told["lines"] for name in pieces]
    assert sorted(keys(explorer, "line")) == sorted(wanted)
    assert keys(explorer, "break") == [str(line) for line, _ in told["breaks"]]
    assert all(reason in drawn for _, reason in told["breaks"])


def test_the_buttons_go_from_call_to_call(explorer, told):
    for number in range(1, 5):
        press(explorer, "Call ▶")
        expect_call(explorer, told, number)
    press(explorer, "◀ Back")
    expect_call(explorer, told, 3)
    assert len(keys(explorer, "hit")) == sum(s[2] == "hit" for _, _, steps in told["calls"] for s in steps)


def test_the_slider_goes_by_keyboard(explorer, told, page):
    explorer.locator(".noUi-handle").first.focus()
    page.keyboard.press("End")
    expect_call(explorer, told, 4)
    page.keyboard.press("Home")
    expect_call(explorer, told, 1)


def test_the_guards_of_a_version_can_be_chosen(explorer, told):
    choice = explorer.locator("select")
    for name, guards in told["guards"].items():
        choice.select_option(label=name)
        browser.until(
            lambda guards=guards: all(words in explorer.locator("svg").text_content() for words in guards),
            f"the guards of {name}",
        )
    press(explorer, "All")
    browser.until(lambda: "recompilations" in message(explorer), "all calls again")


def test_a_still_shows_all_of_it(notebook, explorer):
    still = notebook.run(notebook.add(STILL)).locator("img")
    browser.until(lambda: still.evaluate("i => i.clientWidth > 600"), "the picture")
    assert still.evaluate("i => i.naturalWidth / i.clientWidth") == pytest.approx(2, abs=0.01)


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_the_explorer_is_readable(theme, notebook, explorer):
    browser.set_theme(notebook.page, theme)
    press(explorer, "Call ▶")
    assert_drawn_well(explorer, least=30)
