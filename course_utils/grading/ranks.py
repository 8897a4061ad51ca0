"""What came of a check on several ranks, in one outcome."""

from dataclasses import replace

from course_utils.exercise import Check
from course_utils.exercise.states import PASSED, TIMED_OUT, WRONG
from course_utils.grading.check_run import NEVER, Outcome, Place
from course_utils.words import CUT_OFF, causes_first


def combined(found: list[Outcome], check: Check, place: Place) -> Outcome:
    """One outcome for a check on ranks: of the likely cause, and what there is to say of the others."""
    if any(outcome.state == WRONG for outcome in found):
        found = [_left_behind(outcome) for outcome in found]
    ends = causes_first([(outcome.state, " ".join(outcome.message)) for outcome in found])
    state = ends[0][1]
    message: list[str] = []
    # What is the same on several ranks is told once, and only what comes first in full.
    told: dict[tuple[str, ...], list[int]] = {}
    for rank, end in ends:
        example, said = ("", (CUT_OFF,)) if end == CUT_OFF else _of_rank(found[rank], state)
        if said:
            message += [example] if example and not message else []
            told.setdefault(said, []).append(rank)
    for number, (said, ranks) in enumerate(told.items()):
        message.append(f"{_ranks(ranks)}: {said[0]}")
        message += said[1:] if number == 0 else []
    joined = Outcome(check.name, check.title, state, message, place.device)
    joined.seconds = max(outcome.seconds for outcome in found)
    joined.looks = min(outcome.looks for outcome in found)
    told = {(outcome.symptom, outcome.why) for outcome in found if outcome.state == state}
    joined.symptom, joined.why = told.pop() if len(told) == 1 else ("", "")
    return joined


def _ranks(ranks: list[int]) -> str:
    """`rank 1`, `ranks 0 and 2`: what is the same on several is told once."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _left_behind(outcome: Outcome) -> Outcome:
    """A rank that waits where another saw a wrong value and left the check, perhaps between two calls of the
    answer: what it waits for is all that is known."""
    if outcome.state == TIMED_OUT and (where := outcome.message[0].partition(f"{NEVER}; it ")[2]):
        return replace(outcome, message=[f"{where}; others have left the check"])
    return outcome


def _of_rank(outcome: Outcome, state: str) -> tuple[str, tuple[str, ...]]:
    """The example, and what there is to say of a rank: of one that passed, only where somebody waits."""
    if outcome.state == PASSED:
        return "", ("has returned",) if state == TIMED_OUT else ()
    said = outcome.message or [outcome.state]
    if said[0].startswith("for") and len(said) > 1:
        return said[0], tuple(said[1:])
    return "", tuple(said)
