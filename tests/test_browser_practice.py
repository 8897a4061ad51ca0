"""Questions as a reader has them: one JupyterLab in a real Chromium, by mouse and by keys."""

from __future__ import annotations

import json
import re

import browser
import pytest
from browser import DARK, LIGHT, Notebook, assert_readable, press
from playwright.sync_api import Locator, expect

pytest_plugins = ["browser_fixtures"]


@pytest.fixture(scope="module")
def notebook(page, address):
    return Notebook(page, address, "00_start_here.ipynb")


@pytest.fixture(scope="module")
def card(notebook) -> Locator:
    """A placement that has begun."""
    code = "from course_utils import answer, placement, practice\ncard = placement()\ncard"
    card = notebook.run(notebook.add(code)).locator(".widget-vbox").first
    press(card, "Begin")
    return card


def choices(card: Locator) -> Locator:
    return card.locator(".course-choice")


def answers(root) -> list[dict]:
    lines = (root / "workspace" / ".record.jsonl").read_text().splitlines()
    return [entry for line in lines if (entry := json.loads(line))["kind"] == "question"]


def test_a_question_is_answered_by_mouse_and_by_keys_and_read_in_both_themes(card, page, root):
    expect(choices(card).first).to_be_visible()
    for theme in (DARK, LIGHT):
        browser.set_theme(page, theme)
        assert_readable(card, 5)
    expect(card.get_by_text("Question 1 of at most 15")).to_be_visible()
    choices(card).first.click()
    expect(card.get_by_text(re.compile(r"^[✓✗]"))).to_be_visible()
    expect(card.get_by_role("link")).to_be_visible()
    assert_readable(card, 3)
    page.keyboard.type("n")  # the keys go to the card by themselves
    expect(card.get_by_text("Question 2 of at most 15")).to_be_visible()
    page.keyboard.type("0")
    expect(card.get_by_text(re.compile(r"^· torch"))).to_be_visible()
    first, second = (entry["answered"] for entry in answers(root))
    assert first["chosen"] == 0 and second["chosen"] is None


def test_it_is_stopped_and_goes_on_later_also_without_widgets(card, notebook):
    press(card, "Stop here")
    expect(card.get_by_text("Your route:")).to_be_visible()
    assert_readable(card, 16)
    later = notebook.run(notebook.add("placement();\nanswer()"))
    expect(later.get_by_text("Question 3 of at most 15")).to_be_visible()
    told = notebook.run(notebook.add("answer(1)"))
    expect(told.get_by_text("Question 4 of at most 15")).to_be_visible()
