"""All that an exercise file and its solution import, beside torch and `course_utils.measure`.

`form`: what an exercise is made of. `expect`: assertions that say what came and what was expected. `given`:
examples that a reader can paste. `cases`: tables of cases, and labelled examples. `predict`: predictions.
`symptoms`: what is known of a wrong value. `kits`: what several exercises of one topic share.

It may import `measure`, `machine` and `words`; nothing in it knows how a check is run.
"""

import importlib
from typing import Any

from course_utils.exercise.form import Check, Edit, Exercise, Mistake, Wrong, snake_case

__all__ = [
    "Check",
    "Edit",
    "Exercise",
    "Mistake",
    "Rows",
    "Table",
    "Trait",
    "Wrong",
    "expect",
    "kits",
    "predict",
    "snake_case",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    # What imports torch is imported when it is asked for: `course progress` lists exercises without it.
    if name in ("expect", "kits", "predict"):
        return importlib.import_module(f"course_utils.exercise.{name}")
    if name in ("Rows", "Table", "Trait"):
        return getattr(importlib.import_module("course_utils.exercise.cases"), name)
    raise AttributeError(name)
