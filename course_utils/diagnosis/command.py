"""`course diagnose script.py:make`: what a function in a script makes is diagnosed."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from course_utils.diagnosis.diagnose import diagnose
from course_utils.lessons.catalog import CourseError
from course_utils.wrong_use import WrongUse, said

_WANTED = "model, batch, loss_fn, optimizer, as a tuple in this order or as a dictionary with these names"


def run(where: str, as_json: bool) -> int:
    """Diagnoses what the function returns: a tuple or a dictionary of what `diagnose` takes. Prints the
    report; returns 1 where it found a fault. Raises `CourseError` where there is nothing to diagnose."""
    made = _function(where)()
    if isinstance(made, Mapping):
        args, kwargs = (), dict(made)
    elif isinstance(made, tuple):
        args, kwargs = made, {}
    else:
        raise CourseError(f"{where} should return {_WANTED}; it returned {said(made)}.")
    try:
        report = diagnose(*args, **kwargs)
    except WrongUse as error:
        raise CourseError(f"{where} should return {_WANTED}: {error}") from error
    print(json.dumps(report.as_data(), indent=2) if as_json else report)
    return int(bool(report.faults))


def _function(where: str) -> Callable[[], Any]:
    file, _, name = where.rpartition(":")
    path = Path(file)
    if not file or not path.is_file():
        raise CourseError(f"wanted FILE.py:FUNCTION, with a file that is there; given {where!r}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CourseError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where what it defines is looked up by its module's name
    sys.path.insert(0, str(path.parent.resolve()))  # as `python FILE.py` does
    spec.loader.exec_module(module)
    if not callable(made := getattr(module, name, None)):
        raise CourseError(f"{file} has no function {name!r}")
    return made
