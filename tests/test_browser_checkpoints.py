"""The checkpoint explorer as a reader has it, in JupyterLab in a real Chromium. What it shows is compared
with what was recorded in the kernel."""

import json

import browser
import pytest
from browser import DARK, LIGHT, Notebook, assert_drawn_well, widget

pytest_plugins = ["browser_fixtures"]

EXPLORER = """
import json
import torch
from torch import nn
from course_utils import draw, explore
from course_utils.draw.words import bytes_said

explorer = explore.checkpoints()
explorer
"""
TOLD = """
print(json.dumps({size: bytes_said(explorer.stack.record(size, 36).peak) for size in (0, 6, 7, 36)}))
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
    shows(explorer, "segments of 6", told["6"], "√36 = 6", "least: 4")
    explorer.locator(".noUi-handle").first.focus()
    notebook.page.keyboard.press("ArrowRight")
    shows(explorer, "segments of 7", told["7"])
    notebook.page.keyboard.press("Home")
    shows(explorer, "no checkpoint", told["0"])
    notebook.page.keyboard.press("End")
    shows(explorer, "segments of 36", told["36"])


def test_another_depth_is_recorded(notebook, explorer):
    explorer.locator(".noUi-handle").nth(1).focus()
    notebook.page.keyboard.press("ArrowLeft")
    shows(explorer, "√35 = 5.92", "least: ")


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_the_sawtooth_is_readable(theme, notebook, explorer):
    browser.set_theme(notebook.page, theme)
    assert_drawn_well(explorer, least=18)


def test_a_still_is_shown(notebook, explorer):
    still = notebook.run(notebook.add(STILL)).locator("img")
    browser.until(lambda: still.evaluate("i => i.clientWidth > 600"), "the picture")
    assert still.evaluate("i => i.naturalWidth / i.clientWidth") >= 1.25
