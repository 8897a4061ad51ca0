"""One thing that was found in a reader's model or training step, with what shows it."""

from dataclasses import dataclass, field
from typing import Literal

Rank = Literal["fault", "doubt", "note"]
RANKS: tuple[Rank, ...] = ("fault", "doubt", "note")


@dataclass(frozen=True)
class Finding:
    """`rank`: "fault" is hardly ever meant; "doubt" is wrong unless it is meant; "note" is worth knowing.
    `cause`: a name for it, the same whatever model it is found in. `said`: one sentence with the
    names and numbers of this model. `evidence`: what was measured, a line each. `rule`: what torch does,
    true for every model. `lesson` and `section`: where the course shows it: `02_autograd`, a heading of it.
    """

    rank: Rank
    cause: str
    said: str
    rule: str
    lesson: str
    section: str
    evidence: list[str] = field(default_factory=list)


class CannotSee(Exception):
    """A look has no evidence to look at in this model or batch, and says why."""
