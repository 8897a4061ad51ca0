"""Reports: what they say in each state, as text and as HTML."""

import re
import threading
from html.parser import HTMLParser

import pytest

from course_utils.exercise import Check, expect
from course_utils.exercise.states import COULD_NOT_CHECK, DIED, PASSED, RAISED, STATES, TIMED_OUT, WRONG
from course_utils.grading import attempt
from course_utils.grading.check_run import Outcome, run
from course_utils.grading.report import Note, Report, colour, symbol


def report(*states: str, **more) -> Report:
    outcomes = [Outcome(f"check_{i}", f"Line {i}", state, [f"why {i}"]) for i, state in enumerate(states)]
    return Report("last_row", "toy", "The last row", "last_row", outcomes, **more)


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ((PASSED, PASSED), PASSED),
        ((PASSED, COULD_NOT_CHECK), PASSED),
        ((COULD_NOT_CHECK,), COULD_NOT_CHECK),
        ((), COULD_NOT_CHECK),
        ((PASSED, RAISED, WRONG), RAISED),
        ((COULD_NOT_CHECK, TIMED_OUT), TIMED_OUT),
        ((DIED, PASSED), DIED),
    ],
)
def test_the_state_is_that_of_the_first_failing_check_and_no_evidence_is_no_pass(states, state):
    assert report(*states).state == state


def test_what_could_not_be_checked_is_named_beside_a_pass():
    text = repr(report(PASSED, COULD_NOT_CHECK))
    assert "passed · 1 check, 1 could not be checked here" in text
    assert "why 1" in text
    text = repr(report(PASSED, TIMED_OUT, COULD_NOT_CHECK))
    assert "not yet, it timed out · 1 of 2 checks, 1 not run" in text
    assert "not yet · 0 of 2 checks, 1 not run" in repr(report(WRONG, TIMED_OUT, COULD_NOT_CHECK))


@pytest.mark.parametrize("state", STATES)
def test_no_two_kinds_of_state_differ_by_colour_alone(state):
    """States of one colour share a symbol, states of different colours have different ones."""
    for other in STATES:
        assert (colour(state) == colour(other)) <= (symbol(state) == symbol(other)) or COULD_NOT_CHECK in (
            state,
            other,
        )
        assert (symbol(state) == symbol(other)) <= (colour(state) == colour(other))


def test_text_and_html_say_the_same():
    one = report(
        PASSED, WRONG, RAISED, TIMED_OUT,
        told_by="shares", symptom="It is a copy.", why="What is\ncopied.", hint=(2, 3, "Look at `stride`."),
    )  # fmt: skip
    text, html = repr(one), readable(one._repr_html_())
    shown = (
        "not yet · 1 of 4 checks",
        "Line 0",
        "why 1",
        "Line 2 — raised",
        "Line 3 — timed out",
        "Hint 2 of 3",
    )
    assert all(words in text and words in html for words in shown)
    assert "It is a copy.\n\nWhy: What is copied." in text
    assert "It is a copy. Why : What is copied." in html
    assert "Look at stride ." in html  # folded into the page, so that no cell has to be run for it
    note = Note("`f` · hint 1 of 3", "1. Look at `stride`.", "def f(): ...\n")
    assert repr(note) == "`f` · hint 1 of 3\n\n1. Look at `stride`.\n\n    def f(): ..."
    assert "Look at stride ." in readable(note._repr_html_())
    unread = Report("last_row", "toy", "The last row", "last_row", not_attempted=True)
    assert repr(unread).splitlines()[0] == "· The last row (`last_row`): not attempted"


def test_a_long_example_is_folded_under_its_last_line():
    one = report(WRONG)
    lines = [f"x{i} = {i}" for i in range(12)]
    one.outcomes[0].message = ["for\n" + "\n".join(lines), "no"]
    html = one._repr_html_()
    assert "for x11 = 11 , after …" in readable(html) and html.count("<details>") == 1
    assert all(line in repr(one) and line in readable(html) for line in lines)
    one.outcomes[0].message = ["for\nx = 1\ny = 2", "no"]
    assert "<details>" not in one._repr_html_() and "<pre" in one._repr_html_()


SETUP = ["model = nn.Linear(2, 2)", "for p in model.parameters():", "    p.grad = None", "x = 1", "y = 2"]


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ([*SETUP, "f(x)"], "for the same example"),
        ([*SETUP, "f(y)"], "for the same example, with `f(y)`"),
        ([*SETUP, "z = 3", "f(z)"], "for the same example, then\n      z = 3\n      f(z)"),
        (SETUP, "for the first 5 lines of the same example"),
        ([*SETUP[:4], "f(x)"], "for the first 4 lines of the same example, with `f(x)`"),
        # Not in the middle of a statement, and not for a few lines.
        ([*SETUP[:2], "    print(p)", "f(x)"], None),
        ([*SETUP[:1], "f(x)"], None),
    ],
)
def test_a_long_example_is_told_once(second, told):
    one = report(WRONG, PASSED, WRONG)
    for outcome, code in zip(one.outcomes[::2], ([*SETUP, "f(x)"], second), strict=True):
        outcome.message = ["\n".join(["for", *code]), "no"]
    before = [list(outcome.message) for outcome in one.outcomes]
    text = repr(one)
    assert all(
        f"      {line}\n" in text for line in [*SETUP, "f(x)"]
    )  # where it is first shown, to be pasted
    later = text.partition("Line 2\n")[2]
    assert later == "      " + "\n      ".join(["for", *second] if told is None else [told]) + "\n      no"
    assert one._repr_html_() and [outcome.message for outcome in one.outcomes] == before


def test_what_the_reader_wrote_cannot_break_the_page():
    one = report(WRONG)
    one.outcomes[0].message = ["the result is `<script>alert(1)</script>` & more"]
    assert "<script>" not in one._repr_html_()
    assert "<script>alert(1)</script> & more" in readable(one._repr_html_())


def test_an_error_that_was_raised_at_one_line_in_every_check_is_told_once():
    one = report(RAISED, RAISED, RAISED, WRONG)
    for outcome, why in zip(one.outcomes[:3], ("no", "no", "another"), strict=True):
        outcome.message = ["for `f(x)`", f"`ValueError: {why}`", "at your line 3 (`x.view(2)`)"]
    assert repr(one).count("ValueError: no") == 1
    assert repr(one).count("ValueError: another") == 1
    assert repr(one).count("Line ") == 4


def test_the_words_of_a_long_error_are_told_once():
    words = "There was no fake impl registered for this operator. Please use `op.register_fake`."
    outcomes = [
        Outcome("first", "Traced", WRONG, ["`opcheck` fails", words]),
        Outcome("second", "Without data", RAISED, ["for\nop(x)", f"`RuntimeError: {words}`"]),
        Outcome("third", "Compiled", RAISED, [f"`Unsupported: Dynamo failed: {words} Set TORCH_LOGS.`"]),
        Outcome("fourth", "Called", RAISED, ["`TypeError: no number`"]),
    ]
    attempt._tell_words_once(outcomes)
    assert [one.message[-1] for one in outcomes] == [
        words,
        "`RuntimeError`, with the words above",
        "`Unsupported`, with the words above",
        "`TypeError: no number`",
    ]


def test_what_a_thread_of_the_answer_raises_stands_in_the_report_or_nowhere(capsys):
    def answer(then):
        thread = threading.Thread(target=lambda: {}["lost"])
        thread.start()
        thread.join()
        return then()

    def passes(answer):
        expect.true(answer(lambda: True), "it is not")

    def differs(answer):
        expect.true(answer(lambda: False), "it is not")

    def raises(answer):
        answer(lambda: 1 // 0)

    before = threading.excepthook
    checks = [Check(check.__name__, "It holds", check) for check in (passes, differs, raises)]
    right, wrong, raised = (run(check, answer).message for check in checks)
    lost = "raised in another thread: `KeyError: 'lost'`"
    assert right == [] and wrong[0] == "it is not" and wrong[1].startswith(lost)
    assert raised[0].startswith(lost) and "ZeroDivisionError" in raised[1]
    assert threading.excepthook is before and capsys.readouterr().err == ""


def test_a_report_takes_its_text_colour_from_the_page():
    """Only signs and edges have a colour: a set text colour would be unreadable in dark or in light."""
    html = report(PASSED, WRONG, told_by="a", symptom="b", why="c")._repr_html_()
    coloured = re.findall(r'<(\w+) [^>]*style="[^"]*(?<!-)color:#\w+[^"]*">([^<]*)<', html)
    assert coloured
    assert {text for _, text in coloured} <= {"✓", "✗", "○", "·"}
    assert "background" not in html


def readable(html: str) -> str:
    """The text of a page, with one space where an element begins or ends."""
    found: list[str] = []
    parser = HTMLParser()
    parser.handle_data = lambda data: found.append(data.strip())
    parser.feed(html)
    return " ".join(" ".join(part for part in found if part).split())
