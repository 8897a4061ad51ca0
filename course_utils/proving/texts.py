"""What the course's voice does not allow, in all that a reader may be shown."""

import ast
import re
from collections.abc import Iterator

from course_utils.exercise import Exercise
from course_utils.lessons.solutions import Solution

# How a text begins that `course new` has left to be written.
TO_WRITE = "…"
BANNED = ("simply", "just", "obviously", "powerful", "seamless", "seamlessly", "dive into", "oops")
_BANNED = re.compile(rf"\b({'|'.join(BANNED)})\b", re.IGNORECASE)
_CODE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """The text without its code."""
    return _CODE.sub("CODE", text)


def code_lines(text: str) -> list[str]:
    """The lines of the blocks of code in the text."""
    blocks = [match[0] for match in _CODE.finditer(text) if match[1]]
    return [line for block in blocks for line in block.splitlines()[1:-1]]


def code_in(text: str) -> list[str]:
    """The blocks of code in the text, and what stands in backticks, with these."""
    return [match[0] for match in _CODE.finditer(text)]


def faults(text: str) -> list[str]:
    """What the course's voice does not allow in a text."""
    words = prose(text)
    found = [repr(match[0]) for match in _BANNED.finditer(words)]
    if "!" in words:
        found.append("an exclamation mark")
    if re.search(r"\b0x[0-9a-f]{6,}", text):
        found.append("an address")
    return found


def texts(exercise: Exercise, solution: Solution) -> Iterator[tuple[str, str]]:
    """(where it stands, text) of all that a reader may be shown."""
    yield "the title", exercise.title
    yield "the task", exercise.task
    for number, hint in enumerate(exercise.hints, 1):
        yield f"hint {number}", hint
    for check in exercise.checks:
        yield f"check {check.name}", check.title
        yield f"the why of {check.name}", check.why
    yield "the solution's docstring", solution.why


def statements(source: str) -> set[str]:
    """The code that gives an answer away: its statements and what they compute, as one writes them."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Return, ast.Assign, ast.AugAssign, ast.Expr)) and node.value is not None:
            if isinstance(node.value, (ast.Constant, ast.Name, ast.Attribute)):
                continue
            found |= {_squeezed(ast.unparse(node)), _squeezed(ast.unparse(node.value))}
    return {text for text in found if len(text) > 12 and "super()" not in text}


def given_away(hint: str, source: str) -> list[str]:
    """The statements of `source` that stand in the hint."""
    return sorted(text for text in statements(source) if text in _squeezed(hint))


def _squeezed(code: str) -> str:
    return re.sub(r"\s+", "", code)
