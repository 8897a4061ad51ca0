"""Files that tests are made of, and what files import."""

import ast
from pathlib import Path

FLIP_ROWS = '''"""Rows upside down

Return the rows of a matrix in reverse order.
"""

import torch

from course_utils.exercise import Exercise, expect

exercise = Exercise(minutes=5, hints=["`Tensor.flip` takes dimensions."])


@exercise.starter
def flip_rows(x):
    """(m, n) -> (m, n)"""
    raise NotImplementedError


@exercise.check
def right_values(flip_rows):
    """The last row comes first"""
    x = torch.arange(6).reshape(3, 2)
    expect.equal(flip_rows(x), torch.tensor([[4, 5], [2, 3], [0, 1]]))
'''
FLIPPED = '''"""`flip(0)` reverses the first dimension."""


def flip_rows(x):
    return x.flip(0)
'''


def write(root: Path, files: dict[str, str]) -> Path:
    """Writes texts by their paths below `root`, which is returned; folders are made."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def imported(text: str) -> set[str]:
    """The modules that a text imports anywhere in it, for more than its annotations."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        waiting += ast.iter_child_nodes(node)
    return found
