"""How long a reader waits for a question: one that nobody prepared, and those that come after an answer."""

import statistics
import tempfile
import time
from pathlib import Path

from course_utils.lessons import catalog
from course_utils.practice.sitting import PlacementSitting
from course_utils.questions import families
from course_utils.questions.maker import Maker
from course_utils.reader.record import Record
from tests.benchmarks.table import Row

THINKS = 3.0  # seconds that a quick reader takes to answer
QUICK, SLOW = 100, 2000  # milliseconds


def rows() -> list[Row]:
    maker, quick, after = Maker(), [], []
    slow: dict[str, float] = {}
    for name, family in families.load().items():
        maker.get(name, 2, 1)  # what it imports is there
        started = time.perf_counter()
        maker.get(name, 2, 100)
        taken = 1000 * (time.perf_counter() - started)
        if family.slow:
            slow[name] = taken
        else:
            quick.append(taken)
    with tempfile.TemporaryDirectory() as folder:
        sitting = PlacementSitting(catalog.load(), Record(Path(folder) / "record.jsonl"), maker)
        sitting.ask()
        while sitting.question:
            time.sleep(THINKS)
            chosen = sitting.question.right if sitting.asked % 3 else None
            started = time.perf_counter()
            sitting.answer(chosen)
            sitting.ask()
            after.append(1000 * (time.perf_counter() - started))
    slowest = max(slow, key=slow.get)
    return [
        Row("a question that nobody prepared, at the median", statistics.median(quick), QUICK, unit="ms"),
        Row(f"the slowest that compiles or starts ranks ({slowest})", slow[slowest], SLOW, unit="ms"),
        Row("from an answer to the next question, at the median", statistics.median(after), QUICK, unit="ms"),
        Row("from an answer to the next question, the slowest", max(after), SLOW, unit="ms"),
    ]
