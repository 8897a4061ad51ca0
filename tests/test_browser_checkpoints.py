"""The checkpoint explorer as a reader has it, in JupyterLab in a real Chromium. What it shows is compared
with what was recorded in the kernel."""

import json

import browser
import pytest
from browser import DARK, LIGHT, Notebook, assert_drawn_well, press, widget

pytest_plugins = ["browser_fixtures"]

EXPLORER = """
import json
import torch
from torch import nn
from course_utils import draw, explore
from course_utils.draw.checkpoints import bytes_said

explorer = explore.checkpoints(layers=16, segment=4)
explorer
"""
TOLD = """
print(json.dumps({size: bytes_said(step.peak) for size, step in explorer.steps.items()}))
"""
STILL = "draw.checkpoints(nn.Sequential(*explorer.stack.layers), explorer.stack.batch, segments=(None, 1, 4))"


@pytest.fixture(scope="module")
def notebook(page, address):
    return Notebook(page, address, "00_start_here.ipynb")


@pytest.fixture(scope="module")
def explorer(notebook):
    return widget(notebook.run(notebook.add(EXPLORER.strip())))


def shows(explorer, *words):
    svg = explorer.locator("svg")
    browser.until(lambda: all(word in svg.text_content() for word in words), f"{words} to be shown")


def test_the_segment_goes_by_keyboard_and_shows_what_was_recorded(notebook, explorer):
    told = json.loads(notebook.run(notebook.add(TOLD.strip())).text_content())
    shows(explorer, "segments of 4", told["4"], "√16 = 4", "least: 3")
    explorer.locator(".noUi-handle").first.focus()
    notebook.page.keyboard.press("ArrowRight")
    shows(explorer, "segments of 5", told["5"])
    notebook.page.keyboard.press("Home")
    shows(explorer, "no checkpoint", told["0"])
    notebook.page.keyboard.press("End")
    shows(explorer, "segments of 16", told["16"])


def test_another_depth_is_recorded_and_completed_by_the_button(notebook, explorer):
    explorer.locator(".noUi-handle").nth(1).focus()
    notebook.page.keyboard.press("ArrowLeft")
    shows(explorer, "√15 = 3.87", "least so far")
    sizes = explorer.locator("svg g[data-part=size], svg g[data-part=best]")
    few = sizes.count()
    press(explorer, "All sizes")
    browser.until(lambda: sizes.count() > few, "more sizes")
    assert "least so far" not in explorer.locator("svg").text_content()


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_the_sawtooth_is_readable(theme, notebook, explorer):
    browser.set_theme(notebook.page, theme)
    assert_drawn_well(explorer, least=18)


def test_a_still_is_shown(notebook, explorer):
    still = notebook.run(notebook.add(STILL)).locator("img")
    browser.until(lambda: still.evaluate("i => i.clientWidth > 600"), "the picture")
    assert still.evaluate("i => i.naturalWidth / i.clientWidth") >= 1.25
