"""A course of three small exercises, made in a temporary folder, and notebooks for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.files import write

CENTRE = '''
"""The values around their mean

Return `x` minus its mean.
"""

import torch
import torch._meta_registrations  # what the first tensor on `meta` waits for, longer than a check may take
from torch import Tensor

from course_utils.exercise import Exercise, expect

exercise = Exercise(minutes=5, hints=["What is the mean of `x`?", "`Tensor.mean`", "Take it away from each."])


@exercise.starter
def centre(x: Tensor) -> Tensor:
    """(n,) -> (n,)"""
    raise NotImplementedError


@exercise.check(deadline=2.0)
def values(centre):
    """The mean is taken away

    To centre is to subtract the mean.
    """
    expect.equal(centre(torch.tensor([1.0, 2.0, 6.0])), torch.tensor([-2.0, -1.0, 3.0]))


@exercise.check(deadline=2.0)
def keeps_dtype(centre):
    """The dtype stays"""
    made = centre(torch.arange(4.0, dtype=torch.float64))
    expect.equal(made, torch.arange(4.0, dtype=torch.float64) - 1.5)
'''

PLUS_ONE = '''
"""One more

Return `x` plus one.
"""

import torch
from torch import Tensor

from course_utils.exercise import Exercise, expect

exercise = Exercise(minutes=5, hints=["`+`"])


@exercise.starter
def plus_one(x: Tensor) -> Tensor:
    """(n,) -> (n,)"""
    raise NotImplementedError


@exercise.check
def values(plus_one):
    """One is added

    One more.
    """
    expect.equal(plus_one(torch.arange(3)), torch.tensor([1, 2, 3]))


@exercise.check
def leaves_the_input(plus_one, tmp_path, device):
    """The input stays as it was"""
    x = torch.ones(3, device=device)
    plus_one(x)
    expect.unchanged(x, torch.ones(3, device=device))
    (tmp_path / "seen").write_text("yes")
    expect.true((tmp_path / "seen").exists())
'''

SCALE = '''
"""A layer with one number

Multiply by a parameter that starts as 1.
"""

import torch
from torch import Tensor, nn

from course_utils.exercise import Exercise, expect

exercise = Exercise(minutes=5, hints=["`nn.Parameter`"])


@exercise.starter
class Scale(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


@exercise.check
def values(Scale):
    """It multiplies

    A module finds its parameters among its attributes.
    """
    layer = Scale()
    expect.equal([p.item() for p in layer.parameters()], [1.0])
    expect.equal(layer(torch.ones(2)).detach(), torch.ones(2))


@exercise.check(isolated=True, deadline=4)
def learns(Scale):
    """Its parameter gets a gradient"""
    layer = Scale()
    layer(torch.tensor([2.0])).sum().backward()
    expect.equal(next(layer.parameters()).grad.sum(), torch.tensor(2.0))
'''

RIGHT = {
    "centre": "def centre(x):\n    return x - x.mean()",
    "plus_one": "def plus_one(x):\n    return x + ONE",
    "scale": """
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.weight
""",
}
IMPORTS = "import torch\nfrom torch import Tensor, nn\n\nfrom course_utils import check\n\nONE = 1"

LESSON = "# Small\n\n" + "\n\n".join(f"```{{exercise}} {name}\n```" for name in RIGHT) + "\n"


def make_course(root: Path) -> Path:
    """Writes the course below `root`."""
    files = {"notebooks/source/01_small.md": f"---\nminutes: 15\n---\n\n{LESSON}"}
    for name, text in {"centre": CENTRE, "plus_one": PLUS_ONE, "scale": SCALE}.items():
        files[f"exercises/small/{name}.py"] = text.lstrip()
        files[f"solutions/small/{name}.py"] = f'"""It works."""\n\n{IMPORTS}\n\n{RIGHT[name]}\n'
    return write(root, files)


def code(source: str, **course: str) -> dict[str, Any]:
    """A code cell; `course` is what the course's metadata says."""
    metadata = {"course": course} if course else {}
    return {"cell_type": "code", "source": source, "metadata": metadata, "outputs": [], "execution_count": 1}


def notebook(path: Path, *cells: str | dict[str, Any], **metadata: Any) -> Path:
    """Writes a notebook of these cells; a string is a code cell."""
    cells = [code(cell) if isinstance(cell, str) else cell for cell in cells]
    content = {"nbformat": 4, "nbformat_minor": 4, "metadata": metadata, "cells": cells}
    return write(path.parent, {path.name: json.dumps(content)}) / path.name
