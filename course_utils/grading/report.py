"""A report: what came of one answer, as text for a terminal and as HTML for a notebook.

What is shown is the same on every run, so that notebooks with reports in them can be validated cell by
cell: no times, no addresses. A colour is never the only sign; every state has a symbol and a word.
"""

import itertools
import re
import textwrap
from dataclasses import dataclass, field
from html import escape

from course_utils.exercise import Exercise
from course_utils.exercise.cases import OF_ALL_CASES
from course_utils.exercise.predict import TOLD
from course_utils.exercise.states import (
    COLOUR,
    COULD_NOT_CHECK,
    FAILED,
    NOT_ATTEMPTED,
    PASSED,
    RAISED,
    TIMED_OUT,
    WRONG,
    colour,
    symbol,
)
from course_utils.grading.check_run import Outcome
from course_utils.lessons.solutions import Solution
from course_utils.words import full_name, markdown
from course_utils.words import inline as _inline

# On which ranks something was raised, at the beginning of a line.
_OF_RANKS = re.compile(r"^ranks? \d[\d, and]*: ")


@dataclass
class Report:
    """What came of one answer to one exercise. `told_by` is the check whose `why` is told, the first that
    failed, or None; `symptom` stands before it. `hint` is the next one, (number, of how many, text).
    `solution` is given once the answer has passed."""

    exercise: str
    topic: str
    title: str
    answer_name: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    told_by: str | None = None
    symptom: str = ""
    why: str = ""
    not_attempted: bool = False
    hint: tuple[int, int, str] | None = None
    solution: Solution | None = None
    notice: str = ""

    @property
    def full_name(self) -> str:
        return full_name(self.title, self.answer_name or self.exercise)

    @property
    def state(self) -> str:
        """*passed* when a check passed and none failed; else that of the first failing check."""
        if self.not_attempted:
            return NOT_ATTEMPTED
        for outcome in self.outcomes:
            if outcome.state in FAILED:
                return outcome.state
        return PASSED if self.passed else COULD_NOT_CHECK

    @property
    def passed(self) -> int:
        return sum(outcome.state == PASSED for outcome in self.outcomes)

    @property
    def total(self) -> int:
        return len(self.outcomes)

    def __repr__(self) -> str:
        lines = [f"{symbol(self.state)} {self.full_name}: {verdict(self)}"]
        if self.state == NOT_ATTEMPTED:
            lines.append("  The cell above still holds what it started with.")
        for outcome, message in _messages(self):
            lines.append(f"  {symbol(outcome.state)} {_line(outcome)}")
            lines += [f"      {line}" for entry in message for line in entry.splitlines()]
        if self.symptom:
            lines += ["", self.symptom]
        if self.why:
            lines += ["", f"Why: {' '.join(self.why.split())}"]
        if self.hint:
            lines += ["", f"Hint {self.hint[0]} of {self.hint[1]}: hint({self.answer_name})"]
        if self.solution:
            lines += ["", f"Why it works, and one way to write it: solution({self.answer_name})"]
        if self.notice:
            lines += ["", self.notice]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = f"{_sign(self.state)} <b>{_inline(self.full_name)}</b> — {escape(verdict(self))}"
        parts = [_heading(head)]
        if self.state == NOT_ATTEMPTED:
            parts.append("<div>The cell above still holds what it started with.</div>")
        if checks := "".join(_outcome(outcome, message) for outcome, message in _messages(self)):
            parts.append(f'<ul role="list" style="list-style:none;margin:0;padding:0">{checks}</ul>')
        if self.symptom:
            parts.append(_below(_inline(self.symptom)))
        if self.why:
            parts.append(_below(f'<b role="heading" aria-level="5">Why</b>: {_inline(self.why)}'))
        if self.hint:
            number, total, text = self.hint
            parts.append(_fold(f"Hint {number} of {total}", markdown(text)))
        if self.solution:
            parts.append(_fold("Why it works", markdown(self.solution.why)))
            parts.append(_fold("One way to write it", _code(self.solution.source)))
        if self.notice:
            parts.append(_below(_inline(self.notice)))
        return _frame("".join(parts), colour(self.state))


@dataclass(frozen=True)
class Note:
    """A few lines for the reader, outside any report. Lines are Markdown."""

    title: str
    body: str = ""
    code: str = ""

    def __repr__(self) -> str:
        parts = [self.title, self.body, textwrap.indent(self.code.rstrip(), "    ")]
        return "\n\n".join(part for part in parts if part)

    def _repr_html_(self) -> str:
        title = _heading(f"<b>{_inline(self.title)}</b>")
        code = _code(self.code) if self.code else ""
        return _frame(title + markdown(self.body) + code, COLOUR[NOT_ATTEMPTED])


def explained(found: Report, exercise: Exercise) -> Report:
    """The same report, with the why of the first failing check and the symptom that stands before it. The
    symptom is that check's own; where it has none, that of a table of cases in a later check, since it is
    about all that the answer does. Where the answer raised the same in every check, and not by a rule of
    torch's, or did not end in the first one, it does not run at all, and no more does one that takes other
    arguments: then the line where it raised or was found is all there is to say. (Ranks that wait for each
    other are what their check is about.)"""
    failed = [outcome for outcome in found.outcomes if outcome.state in FAILED]
    if not failed:
        return found
    first = failed[0]
    found.told_by = first.check
    if all(_is_uncalled(outcome, found.answer_name) for outcome in found.outcomes):
        return found
    of_all = [outcome.symptom for outcome in failed if outcome.symptom.startswith(OF_ALL_CASES)]
    found.symptom = first.symptom or (of_all[-1] if of_all else "")
    raised = [outcome.message[-2:] for outcome in found.outcomes if outcome.state == RAISED]
    errors = {tuple(_OF_RANKS.sub("", line) for line in lines) for lines in raised}
    runs = len(errors) != 1 or any(outcome.state != RAISED for outcome in found.outcomes)
    if first.disturbed:
        return found  # whatever came of the check itself
    check = next(check for check in exercise.checks if check.name == first.check)
    one_of_many = first is found.outcomes[0] and len(found.outcomes) > 1
    if first.state == TIMED_OUT and one_of_many and not check.ranks:
        return found
    if runs or len(found.outcomes) == 1 or any("`RuntimeError" in line for line in first.message):
        found.why = check.why
    return found


def _is_uncalled(outcome: Outcome, answer_name: str) -> bool:
    """Whether the check's arguments did not fit the answer, so that none of its lines ran."""
    called = rf"`TypeError: (.*<locals>\.)?({re.escape(answer_name)}|<lambda>)[\w.]*\(\) (takes|missing|got) "
    lines = [_OF_RANKS.sub("", line) for line in outcome.message]
    at_a_line = any(line.startswith("at your line") for line in lines)
    return outcome.state == RAISED and not at_a_line and any(re.match(called, line) for line in lines)


def verdict(report: Report) -> str:
    """The first line's words: what is the case, and how many checks say so."""
    if report.state == NOT_ATTEMPTED:
        return "not attempted"
    unknown = sum(outcome.state == COULD_NOT_CHECK for outcome in report.outcomes)
    # What was left out after a check that did not end says nothing of this machine.
    stuck = any(outcome.state == TIMED_OUT for outcome in report.outcomes)
    left = "not run" if stuck else "could not be checked here"
    beside = f", {unknown} {left}" if unknown else ""
    if report.state == PASSED:
        return f"passed · {_checks(report.passed)}{beside}"
    counted = f"{report.passed} of {_checks(report.total - unknown)}{beside}"
    if report.state == COULD_NOT_CHECK:
        return f"could not check · {_checks(report.total)}"
    word = {WRONG: "not yet", RAISED: "not yet, it raised"}.get(report.state, f"not yet, it {report.state}")
    return f"{word} · {counted}"


def _checks(count: int) -> str:
    return f"{count} check" if count == 1 else f"{count} checks"


def _line(outcome: Outcome) -> str:
    words = outcome.title
    if outcome.device not in (None, "cpu"):
        words += f" ({outcome.device})"
    return words if outcome.state in (PASSED, WRONG) else f"{words} — {outcome.state}"


def _messages(report: Report) -> list[tuple[Outcome, list[str]]]:
    """Each outcome with what is said of it: in full of the first failure; of the others the example and the
    first difference, or the lines of a prediction. An error at the same line of the reader's is told once."""
    found, told, failed, shown = [], set(), False, []
    for outcome in report.outcomes:
        message, error = outcome.message, tuple(outcome.message[-2:])
        if outcome.state == RAISED and error[-1:] and error[-1].startswith("at your line"):
            if error in told:
                message = ["the same, at the same line"]
            told.add(error)
        elif failed and outcome.state == WRONG:
            message = message[: 2 if message and message[0].startswith("for") else TOLD + 1]
        failed = failed or outcome.state in FAILED
        if message and message[0].startswith("for\n"):
            example = message[0].splitlines()[1:]
            message = [_beside(example, shown), *message[1:]]
            shown = example if message[0].startswith("for\n") else shown
        found.append((outcome, message))
    return found


# From so many lines on what two examples begin with is shown once.
_LONG = 4
_SAME = "for the same example"


def _beside(example: list[str], shown: list[str]) -> str:
    """The lines of an example, below another that is shown in full: without those that both begin with."""
    pairs = zip(example, shown, strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    while same < len(example) and not re.match(r"(?!else|elif|except|finally)\w", example[same]):
        same -= 1  # not in the middle of a statement
    if same < _LONG:
        return "\n".join(["for", *example])
    rest, other = example[same:], len(shown) - same
    # An example ends in the call that it is about: that may be another one here.
    whole = other == 0 or (other == 1 and rest)
    told = _SAME if whole else f"for the first {same} lines of the same example"
    if len(rest) == 1:
        return f"{told}, with `{rest[0]}`"
    return "\n".join([f"{told}, then", *rest]) if rest else told


def _outcome(outcome: Outcome, message: list[str]) -> str:
    title = _inline(_line(outcome))
    if outcome.state in FAILED:
        title = f"<b>{title}</b>"
    sign = _sign(outcome.state, "failed" if outcome.state in FAILED else outcome.state)
    lines = "".join(f'<div style="margin-left:1.4em">{_message_line(line)}</div>' for line in message)
    return f'<li style="margin:0 0 0 .2em">{sign} {title}{lines}</li>'


def _heading(line: str) -> str:
    """A heading to who listens; one of HTML's own would stand in JupyterLab's table of contents."""
    return f'<div role="heading" aria-level="4">{line}</div>'


def _sign(state: str, word: str = "") -> str:
    """The sign of a state, read out as `word`, or not at all where the words beside it say the same."""
    said = f'role="img" aria-label="{word}"' if word else 'aria-hidden="true"'
    return f'<span {said} style="color:{colour(state)};font-weight:700">{symbol(state)}</span>'


# So many lines of an example are shown at once; more are folded under the last one.
_LINES = 8


def _message_line(line: str) -> str:
    """A line of a message; several lines of code under one word stand as in a cell."""
    first, _, code = line.partition("\n")
    if code.count("\n") < _LINES:
        return _inline(first) + (_code(code) if code else "")
    last = code.rpartition("\n")[2]
    summary = f'<summary style="cursor:pointer">{_inline(f"{first} `{last}`, after …")}</summary>'
    return f"<details>{summary}{_code(code)}</details>"


def _below(body: str) -> str:
    return f'<p style="margin:.6em 0 0">{body}</p>'


def _fold(title: str, body: str) -> str:
    return (
        f'<details style="margin-top:.4em"><summary style="cursor:pointer">{escape(title)}</summary>'
        f'<div style="margin:.2em 0 .2em 1.2em">{body}</div></details>'
    )


def _code(source: str) -> str:
    return f'<pre style="margin:.4em 0"><code>{escape(source.rstrip())}</code></pre>'


def _frame(body: str, edge: str) -> str:
    style = f"border-left:4px solid {edge};padding:.1em 0 .1em .9em;margin:.2em 0;line-height:1.5"
    return f'<div style="{style}">{body}</div>'
