"""Loads the families: each is the file `practice/<topic>/<name>.py`."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path

from course_utils.lessons import catalog
from course_utils.places import default_root
from course_utils.questions.family import Family


def load(root: Path | None = None) -> dict[str, Family]:
    """All families by their name, `tensors.strides`, in the order of their lessons."""
    return _load(Path(root or default_root()).resolve())


@functools.cache
def _load(root: Path) -> dict[str, Family]:
    return {name: load_one(name, root) for name in catalog.load(root).family_names}


def load_one(name: str, root: Path) -> Family:
    """The family of this name. Raises `CourseError` where its file isn't a whole one."""
    topic, stem = name.split(".")
    path = root / "practice" / topic / f"{stem}.py"
    module = catalog.run_file(path, f"practice.{name}")
    family = getattr(module, "family", None)
    if not isinstance(family, Family) or family.generate is None:
        raise catalog.CourseError(f"{path} has no `family = Family(...)` with a program")
    family.title = inspect.cleandoc(module.__doc__ or "").partition("\n")[0].strip()
    family.topic, family.name = topic, name
    return family
