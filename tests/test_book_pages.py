"""The pages of the book that are collected from all lessons."""

import json
import re
import textwrap
from pathlib import Path

import pytest

from course_utils.book import addresses, claims, errors, glossary_page, interview, sheets
from course_utils.book.stored import Place, places, printed
from course_utils.lessons import catalog, glossary
from course_utils.lessons.catalog import Course, CourseError

ENTRY = "- view size\n  The shapes don't fit.\n"
CLAIM = '> **Heard elsewhere: "a view is a copy."**'


@pytest.fixture(scope="module")
def course() -> Course:
    return catalog.load()


@pytest.fixture(scope="module")
def heard(course: Course) -> list[claims.Heard]:
    return claims.heard(course)


@pytest.fixture(scope="module")
def messages(course: Course) -> list[errors.Message]:
    return errors.messages(course)


@pytest.fixture(scope="module")
def pages(course: Course) -> dict[str, str]:
    modules = {"claims": claims, "errors": errors, "interview": interview, "glossary": glossary_page}
    return {name: module.page(course) for name, module in modules.items()} | dict(sheets.pages(course))


def a_course(root: Path, *cells: dict, **lists: str) -> Course:
    """A course of one lesson with these cells and these lists."""
    (root / "notebooks" / "source").mkdir(parents=True)
    (root / "notebooks" / "source" / "01_views.md").write_text("# Views\n", encoding="utf-8")
    (root / "notebooks" / "01_views.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    (root / "notebooks" / "book").mkdir()
    for name, text in lists.items():
        (root / "notebooks" / "book" / f"{name}.md").write_text(text, encoding="utf-8")
    return catalog.load(root)


def prose(text: str) -> dict:
    return {"cell_type": "markdown", "id": "0" * 12, "metadata": {}, "source": text}


def code(cell_id: str, source: str, shown: str = "") -> dict:
    outputs = [{"output_type": "stream", "name": "stdout", "text": shown}] if shown else []
    return {"cell_type": "code", "id": cell_id, "metadata": {}, "source": source, "outputs": outputs}


# --- all pages ---------------------------------------------------------------------------------------


def test_every_link_to_a_section_leads_to_a_heading(course, pages):
    known = {lesson.notebook.name: headings_of(lesson) for lesson in course.lessons}
    count = 0
    for name, text in pages.items():
        for file, anchor in re.findall(r"\]\(((?:\.\./)?\w+\.ipynb)(?:#([\w-]+))?\)", text):
            assert file.startswith("../") == name.startswith("sheets/"), (name, file)
            assert not anchor or anchor in known[file.removeprefix("../")], (name, file, anchor)
            count += 1
    assert count > 300


def headings_of(lesson):
    cells = json.loads(lesson.notebook.read_text(encoding="utf-8"))["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return {addresses.anchor(heading) for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)}


def test_each_section_of_a_page_has_an_address_of_its_own(pages):
    for name, text in pages.items():
        headings = re.findall(r"^## (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.MULTILINE)
        anchors = [addresses.anchor(heading) for heading in headings]
        assert len(set(anchors)) == len(anchors), name
        assert all(anchors), name


def test_no_page_loads_anything(pages):
    for text in pages.values():
        assert not re.search(r'<(?:script|link|img)[^>]*(?:src|href)="(?!data:)', text)


# --- the claims --------------------------------------------------------------------------------------


def test_every_claim_of_the_lessons_is_there_once(course, heard, pages):
    sources = [lesson.source.read_text(encoding="utf-8") for lesson in course.lessons]
    said = [words for text in sources for words in re.findall(r'Heard elsewhere: "(.+?)\.?"', text)]
    assert [claim.words for claim in heard] == said
    assert len(set(said)) == len(said) > 40
    for claim in heard:
        assert pages["claims"].count(f"\n## “{claim.words}”\n") == 1
        assert f'data-verdict="{claim.verdict}"' in pages["claims"]


def test_a_claim_shows_a_cell_that_shows_something(heard, pages):
    for claim in heard:
        cell, *recorded = claim.cells
        assert printed(cell).strip(), claim.words
        assert "".join(cell["source"]) in pages["claims"], claim.words
        assert all(printed(one) in pages["claims"] for one in recorded)


def test_a_claim_and_its_cell_are_of_one_lesson_and_next_to_each_other(heard):
    for claim in heard:
        at = {one.cell["id"]: i for i, one in enumerate(places(claim.place.lesson)) if one.cell}
        said = next(i for i, one in enumerate(places(claim.place.lesson)) if one.line == claim.place.line)
        assert abs(at[claim.cells[0]["id"]] - said) < 15, claim.words


@pytest.mark.parametrize(
    "words, shown",
    [
        ("`view` needs a contiguous tensor", "contiguous: False False"),  # below
        ("Triton needs a GPU", "addresses outside"),  # above, as the lesson answers at once
        ("more workers are faster", "1: the loop waits"),  # below, where a colon announces it
        ("with √n segments the memory falls to √n", "bytes at the peak"),  # named in the list
    ],
)
def test_a_claim_has_the_cell_that_shows_it(heard, words, shown):
    (claim,) = (one for one in heard if one.words == words)
    assert shown in printed(claim.cells[0])


def test_what_a_gpu_showed_stands_beside_what_this_machine_showed(heard):
    (claim,) = (one for one in heard if "copied twice" in one.words)
    assert len(claim.cells) == 2
    assert "times as long" in printed(claim.cells[1])


def test_a_claim_without_a_verdict_is_told(tmp_path):
    lesson = a_course(tmp_path, prose(CLAIM), code("a" * 12, "x", "shown"), claims="")
    with pytest.raises(
        CourseError, match='of "a view is a copy" in 01_views it has to say one of False, Half true'
    ):
        claims.heard(lesson)


def test_a_verdict_on_what_no_lesson_has_heard_is_told(tmp_path):
    verdict = "- a view is a copy\n  False. It shares.\n- tensors are slow\n  False. They are fast.\n"
    lesson = a_course(tmp_path, prose(CLAIM), code("a" * 12, "x", "shown"), claims=verdict)
    with pytest.raises(CourseError, match="no lesson has heard tensors are slow"):
        claims.heard(lesson)


# --- the errors --------------------------------------------------------------------------------------


def test_every_error_that_a_lesson_shows_is_on_the_page(course, pages):
    """Found here by another way than there: by the lines that begin with the name of an error."""
    ours = ("RankError", "KeyError")  # of the course, and of a lesson's own dataset
    text = " ".join(pages["errors"].split())
    count = 0
    for place in (one for lesson in course.lessons for one in places(lesson) if one.cell):
        for name, line in re.findall(r"^ *(\w+Error): (.+)", printed(place.cell), re.MULTILINE):
            if name not in ours:
                assert " ".join(line.split()).rstrip(".,-") in text, (place.lesson.slug, line)
                count += 1
    assert count > 100


def test_a_message_stands_in_full(pages):
    whole = (
        "Trying to backward through the graph a second time (or directly access saved tensors after they "
        "have already been freed). Saved intermediate values of the graph are freed when you call "
        ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the graph "
        "a second time or if you need to access saved tensors after calling backward."
    )
    assert f"\n{whole}\n" in pages["errors"]


def test_a_message_of_several_lessons_leads_to_each(messages):
    (message,) = (one for one in messages if one.words.startswith("element 0 of tensors"))
    assert [place.lesson.number for place in message.places] == [2, 2, 2, 3, 7]


def test_warnings_and_what_a_gpu_said_are_there_too(messages):
    words = [message.words for message in messages]
    assert "Got pickle error when attempting to start a worker Process" in words  # on stderr
    assert "TypedStorage is deprecated" in words  # caught by the lesson, and printed
    assert (
        "Expected all tensors to be on the same device, but found at least two devices" in words
    )  # recorded


def test_no_message_is_of_the_course(messages):
    kinds = {kind for message in messages for kind in message.kinds}
    assert "RuntimeError" in kinds and "RankError" not in kinds
    assert not any(message.cause.startswith("left out") for message in messages)


def test_a_message_without_a_cause_is_told(tmp_path):
    cell = code("a" * 12, "show_error(f)", "RuntimeError: size is wrong\n")
    with pytest.raises(
        CourseError, match="01_views shows a message that has no entry: RuntimeError: size is wrong"
    ):
        errors.messages(a_course(tmp_path, cell, errors=ENTRY))


def test_a_cause_without_a_message_is_told(tmp_path):
    with pytest.raises(CourseError, match="no lesson shows view size"):
        errors.messages(a_course(tmp_path, code("a" * 12, "x", "fine\n"), errors=ENTRY))


def test_what_is_no_entry_is_told(tmp_path):
    with pytest.raises(CourseError, match="not two lines.*: view size"):
        errors.messages(a_course(tmp_path, code("a" * 12, "x"), errors=ENTRY + "view size\n"))


def test_lines_that_were_filled_are_whole_again():
    said = "RuntimeError: the sizes and strides of an in-place copy, one of many, do not fit each other."
    lines = [*textwrap.fill(said, 72).splitlines(), "next: 1", "ValueError: short", "and more"]
    assert len(lines) == 5
    whole = [line for line in errors._unwrapped(lines, [], 72) if line]
    assert whole == [said, "next: 1", "ValueError: short", "and more"]


# --- the rest ----------------------------------------------------------------------------------------


def test_a_sheet_has_the_whole_recap_and_what_was_heard(course, heard):
    for (name, text), lesson in zip(sheets.pages(course), course.lessons, strict=True):
        recap = (
            lesson.source.read_text(encoding="utf-8")
            .partition("## What to remember\n")[2]
            .partition("\n## ")[0]
        )
        lines = re.findall(r"^- (?:Trap: )?.(.+)$", recap, re.MULTILINE)
        assert name == f"sheets/{lesson.slug}" and len(lines) >= 5
        assert all(text.count(line) == 1 for line in lines), name
        assert all(claim.sentence in text for claim in heard if claim.place.lesson == lesson)
        assert len(text.split()) < 450, f"{name} is longer than a page of two columns"
        assert name in sheets.page(course)


def test_a_line_of_code_is_a_call_and_a_trap_is_a_trap(course):
    text = dict(sheets.pages(course))["sheets/01_tensors"]
    calls, rules, traps = re.split(r"^## \w+$", text, flags=re.MULTILINE)[1:]
    assert "storage_offset()" in calls
    assert "`reshape` shares or copies" in rules
    assert "Don't write to an expanded" in traps


def test_every_interview_question_is_there_with_its_answer(course, pages):
    count = sum(len(interview.questions(lesson)) for lesson in course.lessons)
    assert count == 5 * len(course.lessons) == pages["interview"].count("<summary>")
    assert "`view` doesn't copy: it finds strides" in pages["interview"]


def test_every_term_is_in_the_glossary(course, pages):
    words = re.findall(r"```\{glossary\}\n(.+)\n", pages["glossary"])
    assert words == [term.word for term in glossary.terms(course)]


def test_a_place_is_below_its_heading(tmp_path):
    cells = [
        prose("# Views\n\n## One\n\ntext\n\n```\n## no\n```"),
        code("a" * 12, "x"),
        prose("## Two"),
        code("b" * 12, "y"),
    ]
    lesson = a_course(tmp_path, *cells).lessons[0]
    assert [(one.heading, one.line) for one in places(lesson)] == [("One", "text"), ("One", ""), ("Two", "")]
    assert all(isinstance(one, Place) for one in places(lesson))
