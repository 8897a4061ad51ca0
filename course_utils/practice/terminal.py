"""A sitting in a terminal: a number and Enter."""

import re

from course_utils.practice import told
from course_utils.practice.sitting import Sitting


def ask(sitting: Sitting) -> int:
    """Asks until the sitting is at its end, or somebody stops it; returns an exit code. What was answered is
    kept."""
    sitting.ask()
    while sitting.question is not None:
        _say(f"{told.question(sitting)}\n")
        choices = len(sitting.question.choices)
        typed = _typed(f"Your answer (0 to {choices}, q to stop): ", choices)
        if typed is None:
            break
        sitting.answer(typed - 1 if typed else None)
        _say(told.answer(sitting.told))
        sitting.ask()
    for notice in (sitting.trouble, told.end(sitting), sitting.record.news()):
        if notice:
            _say(notice)
    return 0


def _say(text: str) -> None:
    """Prints Markdown; outside code without the signs of what is bold and of links."""
    for line in ("", *text.splitlines()):
        if not line.startswith("    "):
            line = re.sub(r"\*\*(?=\S)(.+?)(?<=\S)\*\*", r"\1", line)
            line = re.sub(r"\[([^]]+)\]\([^)\s]+\)", r"\1", line)
        print(line)


def _typed(prompt: str, choices: int) -> int | None:
    """A number from 0 to `choices`; None to stop."""
    while True:
        try:
            word = input(prompt).strip().lower()
        except EOFError:
            return None
        if word in ("q", "quit", "exit"):
            return None
        if word.isdecimal() and int(word) <= choices:
            return int(word)
        print(f"Type a number from 0 to {choices}, or q.")
