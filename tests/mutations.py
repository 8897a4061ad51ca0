"""Grades every mutant of every reference and prints what became of them, exercise by exercise.

    python tests/mutations.py [exercise ...]

Ends with 1 when a mutant survives that is not listed beside its exercise as equivalent, or when more are
listed than may survive.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass

import laws
import mutate

_LINE = "{:32} {:>8} {:>9} {:>11} {:>9} {:>8}"


@dataclass(frozen=True)
class Row:
    """What became of the mutants of one exercise."""

    label: str
    rejected: int
    equivalent: int
    no_change: int
    survived: list[str]
    unusable: list[str]
    seconds: float

    @property
    def mutants(self) -> int:
        return self.rejected + self.equivalent + len(self.survived)

    @property
    def good(self) -> bool:
        within = self.equivalent <= mutate.may_survive(self.mutants)
        return not self.survived and not self.unusable and within


def examine(label: str) -> Row:
    """Grades all mutants of one exercise."""
    study, started = laws.study(label), time.perf_counter()
    with mutate.Bench(study.course.root, study.name) as bench:
        verdicts = [bench.try_mutant(mutant) for mutant in bench.mutants]
        counts = Counter(v.state for v in verdicts)
        passed = [v.mutant.description for v in verdicts if v.state == mutate.SURVIVED]
        return Row(
            label,
            counts[mutate.REJECTED],
            sum(description in bench.listed for description in passed),
            counts[mutate.NO_CHANGE],
            [description for description in passed if description not in bench.listed],
            bench.unusable,
            time.perf_counter() - started,
        )


def main(names: list[str]) -> int:
    """Prints the table; the exit code."""
    labels = [label for label in laws.labels() if not names or label.split("/")[1] in names]
    if not labels:
        print(f"no exercise is called {' or '.join(names)}")
        return 2
    print(_LINE.format("exercise", "mutants", "rejected", "equivalent", "survived", "seconds"))
    rows = []
    for label in labels:
        row = examine(label)
        rows.append(row)
        counts = row.mutants, row.rejected, row.equivalent, len(row.survived)
        print(_LINE.format(label, *counts, f"{row.seconds:.1f}"), flush=True)
        for description in row.survived:
            print(f"    survived: {description}")
        for name in row.unusable:
            print(f"    the reference does not pass {name} where its mutants are graded")
    rejected, mutants = sum(row.rejected for row in rows), sum(row.mutants for row in rows)
    print(f"\n{rejected} of {mutants} rejected, {rejected / max(mutants, 1):.1%}")
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
