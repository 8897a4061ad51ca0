"""`course prove [EXERCISE...]`: the laws, for whoever is writing an exercise."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from course_utils.lessons import catalog
from course_utils.processes import client
from course_utils.proving import laws


def run(names: list[str], sample: int | None = None) -> int:
    """Proves the exercises, all of them without a name; prints the faults. 0 where there is none.

    Raises `CourseError` where there is no such exercise, or a file of one is not whole.
    """
    course = catalog.load()
    for name in names:
        course.lesson_of(name)
    # As in a reader's kernel: nothing in the course's folder can be imported by name.
    sys.path = [entry for entry in sys.path if Path(entry).resolve() != course.root]
    client.warm_up()
    bad = 0
    for name in names or course.exercise_names:
        started, found = time.perf_counter(), 0
        for law, faults in laws.prove(course, name, sample):
            found += len(faults)
            for fault in faults:
                print(f"  {law}: {fault}", flush=True)
        bad += bool(found)
        says = f"{found} fault{'s' * (found > 1)}" if found else "holds"
        print(f"{'✗' if found else '✓'} {name}: {says} ({time.perf_counter() - started:.1f} s)", flush=True)
    return 1 if bad else 0
