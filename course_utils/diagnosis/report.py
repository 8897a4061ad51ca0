"""What a diagnosis found, worst first, on a page."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any

from course_utils.diagnosis.finding import RANKS, Finding

WIDTH = 100
# `untouched` is what does it.
_PUT_BACK = (
    "parameters, buffers, gradients, modes, optimizer and random generators are as they were. What else your "
    "code has called may have changed: an object of another package, or how far an iterator is."
)
_TITLES = {"fault": "FAULT", "doubt": "DOUBT", "note": "NOTE"}


@dataclass(frozen=True)
class Report:
    """`findings`: worst first. `looked`: how many looks found nothing wrong. `unseen`: what could not be
    looked at, with the reason. `steps`: how many were taken. `copied`: bytes of the copies that stood in."""

    findings: list[Finding] = field(default_factory=list)
    looked: int = 0
    unseen: list[str] = field(default_factory=list)
    steps: int = 0
    copied: int = 0

    @property
    def causes(self) -> list[str]:
        """The names of what was found, worst first."""
        return [one.cause for one in self.findings]

    @property
    def faults(self) -> list[Finding]:
        return [one for one in self.findings if one.rank == "fault"]

    def as_data(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        parts = [_finding(one) for one in self.findings]
        parts.append(self._end())
        return "\n\n".join(parts)

    def _end(self) -> str:
        counts = {rank: sum(one.rank == rank for one in self.findings) for rank in RANKS}
        said = ", ".join(f"{n} {rank}{'s' * (n != 1)}" for rank, n in counts.items())
        lines = [f"{said}; {self.looked} looks found nothing. {self.steps} steps were taken on copies of "]
        lines[0] += f"{self.copied:,} bytes; {_PUT_BACK}"
        lines += [f"Could not look: {one}" for one in self.unseen]
        return "\n".join(textwrap.fill(line, WIDTH) for line in lines)

    __repr__ = __str__


def ordered(findings: list[Finding]) -> list[Finding]:
    """Worst first; within a rank as they were found."""
    return sorted(findings, key=lambda one: RANKS.index(one.rank))


def _finding(one: Finding) -> str:
    head = textwrap.fill(f"{_TITLES[one.rank]}  {one.said}", WIDTH, subsequent_indent="       ")
    lines = [head, *(f"       {line}" for line in one.evidence)]
    lines.append(textwrap.fill(one.rule, WIDTH, initial_indent="       ", subsequent_indent="       "))
    lines.append(f"       Lesson {one.lesson[:2]}, {one.section}")
    return "\n".join(lines)
