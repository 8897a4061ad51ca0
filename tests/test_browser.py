"""Lesson 01, the stride and the float explorer as a reader has them: JupyterLab in a real Chromium."""

from __future__ import annotations

import re

import browser
import nbformat
import pytest
import torch
from browser import CONTRASTS, DARK, LIGHT, Notebook, assert_drawn_well, assert_readable, press, widget
from playwright.sync_api import expect

from course_utils.lessons import catalog
from course_utils.reader.record import Record

pytest_plugins = ["browser_fixtures"]

LESSON = "01_tensors.ipynb"
RIGHT = """\
def sliding_windows(x: Tensor, size: int, step: int = 1) -> Tensor:
    return x.unfold(0, size, step)"""
WRONG = """\
def sliding_windows(x: Tensor, size: int, step: int = 1) -> Tensor:
    windows = (len(x) - size) // step + 1
    return x.as_strided((windows, size), (step, 1))"""


@pytest.fixture(scope="module")
def lesson(page, address):
    """Lesson 01, every cell of which has run."""
    notebook = Notebook(page, address, LESSON)
    notebook.run_all()
    return notebook


SOURCES = [cell.source for cell in nbformat.read(browser.ROOT / "notebooks" / LESSON, as_version=4).cells]
IMPORTS = next(n for n, source in enumerate(SOURCES) if "from course_utils import" in source)
CHECK = SOURCES.index("check(sliding_windows)")
STARTER = CHECK - 1


def hand_in(lesson: Notebook, answer: str):
    """Types an answer over what is in its cell, runs it and the check below; returns the report."""
    lesson.write(STARTER, answer)
    lesson.run(STARTER)
    return lesson.run(CHECK)


def widest(pictures) -> float:
    """The width of the widest of these elements on the page, in pixels."""
    return max([box["width"] for one in pictures.all() if (box := one.bounding_box())], default=0)


def words(text: str) -> str:
    """Text as a page shows it: no backticks, and every gap one space."""
    return " ".join(text.replace("`", "").split())


# --- lesson 01 ---------------------------------------------------------------------------------------


def collapsed(cell):
    return cell.metadata.get("jupyter", {}).get("source_hidden", False)


def test_every_cell_of_the_lesson_runs(lesson, root):
    cells = nbformat.read(root / "workspace" / LESSON, as_version=4).cells
    assert lesson.cells.count() == len(cells)
    code = [n for n, cell in enumerate(cells) if cell.cell_type == "code"]
    # A collapsed cell shows no number.
    assert [n for n in lesson.counts if n] == [i for i, n in enumerate(code, 1) if not collapsed(cells[n])]
    for kind in ("error", "stderr"):
        found = lesson.panel.locator(f'[data-mime-type="application/vnd.jupyter.{kind}"]')
        assert found.all_inner_texts() == []
    # What a cell has printed on the machine that built the lesson is what the page shows after running it.
    for n in code:
        if "nbval-ignore-output" in cells[n].metadata.get("tags", []):
            continue
        stored = "".join(o.text for o in cells[n].outputs if o.output_type == "stream").strip()
        if stored:
            assert lesson.output(n).first.text_content().strip() == stored
    pictures = [n for n in code if any("image/png" in o.get("data", {}) for o in cells[n].outputs)]
    assert len(pictures) > 3
    for n in pictures:
        lesson.cell(n).scroll_into_view_if_needed()
        shown = lesson.output(n).locator("img, svg")
        browser.until(lambda shown=shown: widest(shown) > 300, f"the picture of cell {n}")


def close(page, slug: str) -> None:
    """Closes a notebook in which nothing was done, once its kernel is there: there is nothing to save."""
    expect(page.locator("#jp-main-statusbar")).to_contain_text(re.compile(r"\| Idle.*" + slug))
    tab = page.get_by_role("tab", name=re.compile(slug))
    tab.locator(".lm-TabBar-tabCloseIcon").click()
    expect(tab).to_have_count(0)
    page.get_by_role("tab", name=LESSON).click()


def heading(panel, words: str):
    """A heading of the text; a report has one of its own."""
    return panel.locator("h1, h2, h3, h4").filter(has_text=words)


def test_a_name_in_progress_leads_to_its_task(lesson, root):
    course = catalog.load()
    here, further = course.lesson("01"), course.lesson("03")
    cards = [course.card(name) for name in here.exercise_names]
    first, card = next(one for one in cards if one.core), cards[-1]
    lesson.cell(0).scroll_into_view_if_needed()
    lesson.cell(0).get_by_role("link", name=f"{first.title} ({first.answer_name})").click()
    expect(heading(lesson.panel, first.title)).to_be_in_viewport()
    shown = lesson.run(lesson.add("progress()"))
    shown.get_by_role("row").get_by_role("link", name=f"{card.title} ({card.answer_name})").click()
    expect(heading(lesson.panel, card.title)).to_be_in_viewport()
    assert_readable(lesson.run(lesson.add("progress(all=True)")), least=60)
    # "Next" goes to its task in a notebook that is not open; a lesson's first link is in the map.
    following = course.card(course.exercise_names[1])
    Record(root / "workspace" / ".record.jsonl").add_attempt(
        course.exercise_names[0], "start_here", "passed", 1, 1
    )
    page = lesson.page
    panels = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
    shown = lesson.run(lesson.add("progress(all=True)"))
    places = (
        (shown.get_by_role("link", name=further.title).first, further.title, further.slug),
        (shown.locator("p").get_by_role("link"), following.title, "00_start_here"),
    )
    for link, words, slug in places:
        link.click()
        expect(heading(panels, words)).to_be_in_viewport()
        close(page, slug)


def test_a_wrong_answer_is_told_why(lesson):
    report = hand_in(lesson, WRONG)
    expect(report).to_contain_text("✗ Sliding windows without a copy (sliding_windows) — not yet")
    expect(report).to_contain_text("✗ The input may be a view itself")
    # To a screen reader it is a heading, a list of checks with a word for each sign, and the why.
    tree = report.aria_snapshot()
    assert re.search(r'- heading "Sliding windows .* not yet · 4 of 5 checks" \[level=4\]', tree)
    assert re.findall(r'listitem:\n +- img "(\w+)"', tree) == ["passed"] * 2 + ["failed"] + ["passed"] * 2
    assert 'heading "Why"' in tree
    example = report.locator("pre", has_text="x = torch.arange(1., 13.).square()[::2]")
    assert example.inner_text().split("\n")[-1].startswith("sliding_windows(x, 3")
    check = next(
        c for c in catalog.load(browser.ROOT).exercise("sliding_windows").checks if c.name == "of_a_view"
    )
    assert f"Why: {words(check.why)}" in words(report.inner_text())
    hint = report.locator("details", has_text="Hint 1 of 3")
    text = hint.get_by_text("From one element of a row to the next")
    expect(text).to_be_hidden()
    hint.locator("summary").click()
    expect(text).to_be_visible()


def test_a_right_answer_passes_and_its_solution_folds_out(lesson):
    report = hand_in(lesson, RIGHT)
    expect(report).to_contain_text("✓ Sliding windows without a copy (sliding_windows) — passed · ")
    expect(report).not_to_contain_text("✗")
    solution = catalog.load(browser.ROOT).solution("sliding_windows")
    why, code = (report.locator("details", has_text=title) for title in ("Why it works", "One way to write"))
    expect(why.locator("p").first).to_be_hidden()
    why.locator("summary").click()
    expect(why.locator("p").first).to_be_visible()
    first_sentence = words(solution.why).partition(".")[0]
    assert first_sentence in words(why.inner_text())
    expect(code.locator("pre")).to_be_hidden()
    code.locator("summary").click()
    expect(code.locator("pre")).to_be_visible()
    assert code.locator("pre").inner_text().strip() == solution.source.strip()


def test_answers_and_progress_outlive_the_page_and_the_kernel(lesson, root):
    hand_in(lesson, RIGHT)
    lesson.save()
    saved = nbformat.read(root / "workspace" / LESSON, as_version=4)
    assert saved.cells[STARTER].source == RIGHT

    lesson.reload()
    expect(lesson.source(STARTER)).to_have_text(RIGHT.replace("\n", ""))
    expect(lesson.output(CHECK)).to_contain_text("(sliding_windows) — passed")

    lesson.restart_kernel()
    for number in range(IMPORTS + 1):
        if lesson.is_code(number):
            lesson.run(number)
    title = catalog.load().card("sliding_windows").title
    row = lesson.run(lesson.add("progress()")).get_by_role("row").filter(has_text=title)
    expect(row).to_contain_text("✓")
    expect(row).to_contain_text(re.compile(r"passed, \d+ attempts?"))
    # The record is a file beside the answers.
    assert Record(root / "workspace" / ".record.jsonl").state("sliding_windows") == "passed"


# --- the stride explorer -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def explorer(lesson):
    """The explorer of a small tensor, in a cell below the lesson."""
    code = "from course_utils import explore\n\nexplore.strides(torch.arange(12).reshape(3, 4))"
    output = lesson.run(lesson.add(code))
    widget = output.locator(".widget-vbox").first
    expect(widget.locator("svg")).to_be_visible()
    expect(output.locator("img")).to_have_count(0)  # a still says to run the cell, so it's never beside it
    return widget


CELLS = """
drawing => [...drawing.querySelectorAll("g[data-part]")].map(g => ({
  part: g.dataset.part,
  address: g.dataset.key === undefined ? null : Number(g.dataset.key),
  index: g.dataset.part === "storage" ? null :
    JSON.parse(g.querySelector("title").textContent.match(/^\\[.*?\\]/)[0]),
  lit: g.classList.contains("lit"),
  stroke: parseFloat(getComputedStyle(g.querySelector("rect")).strokeWidth),
  text: g.querySelector("text").textContent,
}))
"""


def seen(explorer) -> tuple[str, list[dict]]:
    """The expression and the cells that are on the page."""
    return explorer.locator("b").first.inner_text(), explorer.locator("svg").evaluate(CELLS)


def lit_index(explorer) -> list[int]:
    return next(c["index"] for c in seen(explorer)[1] if c["lit"] and c["part"] == "grid")


def assert_addresses(explorer) -> None:
    """Every cell of the grid, and the lit one in the storage, lie where the strides of the tensor say."""
    code, cells = seen(explorer)
    x = torch.arange(12).reshape(3, 4)
    y = eval(code, {"x": x})
    values = x.flatten().tolist()

    def address(index):
        return y.storage_offset() + sum(i * s for i, s in zip(index, y.stride(), strict=True))

    storage = [cell for cell in cells if cell["part"] == "storage"]
    grid = [cell for cell in cells if cell["part"] == "grid"]
    assert [cell["address"] for cell in storage] == list(range(12))
    assert sorted(cell["index"] for cell in grid) == sorted(torch.ones(y.shape).nonzero().tolist())
    for cell in grid:
        assert cell["address"] == address(cell["index"])
        assert int(cell["text"]) == values[cell["address"]] == y[tuple(cell["index"])]
    [lit] = [cell for cell in grid if cell["lit"]]
    assert [cell["address"] for cell in storage if cell["lit"]] == [address(lit["index"])]
    # It is lit for the eye, too.
    thickest = max(cell["stroke"] for cell in cells)
    assert {cell["lit"] for cell in cells if cell["stroke"] == thickest} == {True}


def test_the_explorer_lights_what_the_strides_say(explorer, page):
    assert seen(explorer)[0] == "x"
    assert_addresses(explorer)

    # A slider with the keyboard: the element moves along a row, and its place with it.
    handle = explorer.locator(".widget-slider", has_text="index[1]").get_by_role("slider")
    handle.focus()
    for key, step in (("Home", None), ("ArrowRight", 1), ("ArrowRight", 1)):
        before = lit_index(explorer)
        wanted = [before[0], 0 if step is None else before[1] + step]
        page.keyboard.press(key)
        browser.until(lambda wanted=wanted: lit_index(explorer) == wanted, f"element {wanted} to be lit")
        assert_addresses(explorer)

    # A button: the same place, another index.
    before = lit_index(explorer)
    press(explorer, ".t()")
    browser.until(lambda: seen(explorer)[0] == "x.t()", "the transpose")
    browser.until(lambda: lit_index(explorer) == before[::-1], "the lit element to change its index")
    assert_addresses(explorer)

    # What fails is said and changes nothing.
    press(explorer, "view")
    press(explorer, ".view(-1)")
    expect(explorer).to_contain_text("✗ x.t().view(-1) raises RuntimeError")
    assert_addresses(explorer)
    press(explorer, "Undo")
    browser.until(lambda: seen(explorer)[0] == "x", "the way back")
    browser.until(lambda: lit_index(explorer) == before, "the lit element to be where it was")


# --- the float explorer ------------------------------------------------------------------------------

FLOATS = """\
from torch import nn
from course_utils import explore

model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
explore.floats(model, torch.randn(4, 8), torch.mean)"""


@pytest.fixture(scope="module")
def floats(lesson):
    return widget(lesson.run(lesson.add(FLOATS)))


def test_a_bit_is_clicked_and_the_number_changes(floats):
    bits = floats.get_by_role("button", name=re.compile("^[01]$"))
    expect(bits).to_have_text(list("0010111001100110"))
    for place in (15, 4, 0):
        bits.nth(place).click()
    expect(bits).to_have_text(list(pattern := "1010011001100111"))
    number = torch.tensor(int(pattern, 2)).to(torch.int16).view(torch.float16).item()
    expect(floats.locator("svg")).to_contain_text(f"float16: {number}")
    field = floats.get_by_role("textbox")
    expect(field).to_have_value(str(number))
    field.fill("1e-8")
    field.press("Enter")
    expect(bits).to_have_text(list("0" * 16))
    expect(floats.locator("svg")).to_contain_text("1e-08 becomes 0.0")


# --- light and dark ---------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_reports_progress_and_explorers_are_readable_in_a_page_as_dark_as_its_theme(
    theme, lesson, explorer, floats
):
    browser.set_theme(lesson.page, theme)
    background = lesson.panel.evaluate("e => getComputedStyle(e).backgroundColor")
    red, green, blue = map(int, re.findall(r"\d+", background)[:3])
    assert max(red, green, blue) < 60 if theme == DARK else min(red, green, blue) > 230
    for answer, says in ((WRONG, "not yet"), (RIGHT, "passed")):
        report = hand_in(lesson, answer)
        expect(report).to_contain_text(says)
        for fold in report.locator("details").all():
            fold.locator("summary").click()
        assert_readable(report, least=20)
        assert {"✓", "✗"} & {text for text, _ in report.evaluate(CONTRASTS)}
    assert_readable(lesson.run(lesson.add("progress()")), least=10)
    assert_readable(explorer, least=30)
    assert_drawn_well(floats, least=30)


def test_weak_text_is_found(page):
    """What the tests above rely on."""
    page.evaluate(
        """() => document.body.insertAdjacentHTML("beforeend",
          `<div id="probe" style="background:#fff;color:#777">a<b style="opacity:.5">b</b>
           <i style="background:rgba(0,0,0,.5);color:#000">c</i><u hidden>d</u>
           <svg><g><rect fill="#000"/><text fill="#fff">e</text></g></svg></div>`)"""
    )
    found = dict(page.locator("#probe").evaluate(CONTRASTS))
    page.evaluate("() => document.getElementById('probe').remove()")
    assert found == pytest.approx({"a": 4.48, "b": 1.92, "c": 5.28, "e": 21}, abs=0.02)
