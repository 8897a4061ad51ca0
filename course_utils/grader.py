"""An exercise and an answer in, a report out: which checks hold, and which misunderstanding it was."""

from __future__ import annotations

import bisect
import contextlib
import dis
import io
import itertools
import sys
import time
import types
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol

from course_utils import evidence, machine
from course_utils.conduct import (
    COULD_NOT_CHECK,
    DIED,
    FAILED,
    PASSED,
    RAISED,
    TIMED_OUT,
    WRONG,
    Outcome,
    Place,
    conduct,
    steady,
    still_running,
)
from course_utils.exercise import Check, Exercise, Mistake
from course_utils.report import Report

# Looking for a diagnosis may take this many seconds, and `PATIENCE` times what the answer's own checks
# took; one check of a mistake `PATIENCE` times what it took for the answer, and no less than this.
DIAGNOSIS_BUDGET = 8.0
MISTAKE_DEADLINE = 2.0
PATIENCE = 3.0


# What a check may need, in the words of a report.
NEED = {"cuda": "CUDA device", "mps": "Apple GPU", "compiler": "C++ compiler", "cmake": "cmake"}


class Runner(Protocol):
    """Runs one check on one answer somewhere: in this process, or in a worker."""

    def run(self, check: Check, answer: Any, place: Place, deadline: float) -> Outcome: ...


class KernelRunner:
    """Plain checks here, so that prints, breakpoints and `%debug` work; the others in warm processes."""

    def run(self, check: Check, answer: Any, place: Place, deadline: float) -> Outcome:
        if check.ranks:
            return run_on_ranks(check, answer, place, deadline)
        if check.isolated:
            return run_isolated(check, answer, place, deadline)
        return conduct(check, answer, place, deadline)


def grade(
    exercise: Exercise,
    answer: Any,
    runner: Runner | None = None,
    *,
    diagnose: bool = True,
    devices: Iterable[str] | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Report:
    """Runs every check of the exercise on the answer, and names the mistake where one behaves alike.

    `answer` is a function, a class, or a `Recipe`. `devices`: where checks that ask for a device run
    (default: every device of this machine).
    """
    runner = runner or KernelRunner()
    report = Report(exercise.name, exercise.topic, exercise.title, exercise.answer_name)
    report.outcomes = list(outcomes(exercise, answer, runner, devices, on_outcome=on_outcome))
    if diagnose and report.state in FAILED:
        found = find_mistake(exercise, report.outcomes, runner, devices)
        if found is not None:
            report.diagnosis, report.diagnosis_text = found.name, found.diagnosis
    return report


def outcomes(
    exercise: Exercise,
    answer: Any,
    runner: Runner,
    devices: Iterable[str] | None = None,
    *,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Iterable[Outcome]:
    """Runs the checks one after another. After one that did not end the others are not run: each
    would take its whole deadline again, and what is not run is not passed."""
    stuck = False
    for check, place in visits(exercise, devices):
        missing = [need for need in check.needs if not machine.has(need)]
        if missing:
            outcome = _not_run(check, place, f"this machine has no {NEED[missing[0]]}")
        elif stuck:
            outcome = _not_run(check, place, "not run: the check before it did not end")
        else:
            outcome = runner.run(check, answer, place, check.deadline)
            stuck = outcome.state == TIMED_OUT
        if on_outcome is not None:
            on_outcome(outcome)
        yield outcome


def visits(exercise: Exercise, devices: Iterable[str] | None = None) -> list[tuple[Check, Place]]:
    """Each check once, or once for each device where it asks for one."""
    found: list[tuple[Check, Place]] = []
    devices = list(devices) if devices is not None else machine.devices()
    for check in exercise.checks:
        if "device" not in check.wants:
            found.append((check, Place()))
            continue
        wanted = [need for need in check.needs if need in ("cuda", "mps")]
        if check.ranks and not wanted:
            wanted = [name for name in devices if machine.serves(name, check.ranks)] or ["cpu"]
        found += [(check, Place(device=name)) for name in wanted or devices]
    return found


def _not_run(check: Check, place: Place, why: str) -> Outcome:
    return Outcome(check.name, check.title, COULD_NOT_CHECK, [why], place.device)


# --- diagnosis -----------------------------------------------------------------------------------


def find_mistake(
    exercise: Exercise, seen: list[Outcome], runner: Runner, devices: Iterable[str] | None = None
) -> Mistake | None:
    """The mistake that has, in one of its forms, the outcomes and evidence `seen`, in every check; or None.

    Each mistake is followed only as far as it behaves alike, and all of them together for a bounded
    time (see `DIAGNOSIS_BUDGET`): without a match within that, there is no diagnosis.
    """
    took = sum(outcome.seconds for outcome in seen if outcome.state != TIMED_OUT)
    end = time.monotonic() + DIAGNOSIS_BUDGET + PATIENCE * took
    for mistake in exercise.mistakes:
        if time.monotonic() > end:
            return None
        for answer in (mistake.answer, *mistake.forms):
            if _behaves_alike(exercise, answer, seen, runner, devices, end):
                return mistake
    return None


def _behaves_alike(
    exercise: Exercise,
    mistaken: Any,
    seen: list[Outcome],
    runner: Runner,
    devices: Iterable[str] | None,
    end: float,
) -> bool:
    pairs = list(zip(visits(exercise, devices), seen, strict=True))
    for (check, place), theirs in sorted(pairs, key=_cost):
        if theirs.state == COULD_NOT_CHECK and not theirs.evidence:
            continue  # a missing need, or not run: it would be the same for the mistake
        left = end - time.monotonic()
        if left <= 0:
            return False
        # Where the answer did not end, less than the whole deadline could take slow for endless.
        enough = left if theirs.state == TIMED_OUT else PATIENCE * theirs.seconds
        deadline = min(check.deadline, max(enough, MISTAKE_DEADLINE))
        if not alike(_outcome_of_mistake(mistaken, check, place, runner, deadline), theirs):
            return False
    return True


def _cost(pair: tuple[tuple[Check, Place], Outcome]) -> tuple[bool, bool, bool]:
    # What is cheap to compare comes first: most mistakes go no further than that.
    (check, _), theirs = pair
    return theirs.state == TIMED_OUT, theirs.seconds > 0.5, check.isolated or bool(check.ranks)


# A mistake behaves the same every time (every check starts from the same state), so what came of it
# is kept: the second wrong answer to an exercise is diagnosed at once.
_kept: dict[tuple[int, str, str | None], tuple[Any, Outcome]] = {}


def _outcome_of_mistake(
    mistaken: Any, check: Check, place: Place, runner: Runner, deadline: float
) -> Outcome:
    key = (id(mistaken), check.name, place.device)
    if key not in _kept:
        quiet = io.StringIO()
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            outcome = runner.run(check, mistaken, place, deadline)
        outcome.error = None
        if outcome.state == TIMED_OUT and deadline < check.deadline:
            return outcome  # perhaps only slow
        _kept[key] = mistaken, outcome  # the answer too: its id must not become another's
    return _kept[key][1]


def alike(a: Outcome, b: Outcome) -> bool:
    """Whether two outcomes of one check show the same behaviour."""
    if a.state != b.state:
        return False
    if a.state in (TIMED_OUT, DIED):
        # How far each got before that is not behaviour; a deadlock is another one than a loop.
        return _is_deadlock(a) == _is_deadlock(b)
    return evidence.same(_behaviour(a), _behaviour(b))


def _is_deadlock(outcome: Outcome) -> bool:
    return ("stuck", True) in outcome.evidence


# Amounts that were asked for: bytes, operators, graphs.
_AMOUNTS = ("at_most", "at_least", "measure.")
_NOT_AMOUNTS = ("measure.same_storage", "measure.version")


def _behaviour(outcome: Outcome) -> list[Any]:
    """The evidence of a check; where it passed, without amounts: by how much an answer stays within a
    limit is a matter of how it is written."""
    if outcome.state != PASSED:
        return outcome.evidence
    return [
        (kind, value)
        for kind, value in outcome.evidence
        if not kind.startswith(_AMOUNTS) or kind in _NOT_AMOUNTS
    ]


# --- warm processes --------------------------------------------------------------------------------


# What every check needs in its process: imported once, where the processes are forked from.
PRELOAD = ("course_utils.grader", "course_utils.measure")
READY_TO_COMPILE = "course_utils.ready_to_compile"
READY_TO_MAKE_KERNELS = "course_utils.ready_to_make_kernels"
PRELOAD_TO_COMPILE = (*PRELOAD, READY_TO_COMPILE, "torch._inductor.compile_fx", READY_TO_MAKE_KERNELS)


def run_isolated(check: Check, answer: Any, place: Place, deadline: float) -> Outcome:
    """The check in a warm process of its own."""
    from course_utils import workers

    _ship_by_value(check.function, answer)
    preload = (*(PRELOAD_TO_COMPILE if "compiler" in check.needs else PRELOAD), *_wanted)
    try:
        result = workers.isolated(
            _conduct_alone, check, answer, place, deadline=deadline, preload=preload, on_output=_print
        )
    except workers.CannotSendError as error:
        return _cannot_be_sent(error, check, place)
    if result.state == "returned" and isinstance(result.value, tuple):
        result.value, imported = result.value
        _wanted.update(dict.fromkeys(imported))
    return outcome_of(result, check, place, deadline)


# What isolated checks have imported of torch: that may take longer than the check, so the processes that come
# later have it from the start. In the order in which it was imported.
_wanted: dict[str, None] = {}


def _conduct_alone(check: Check, answer: Any, place: Place) -> tuple[Outcome, tuple[str, ...]]:
    """What came of the check, and what later processes should import before they begin."""
    modules = len(sys.modules)
    return conduct(check, answer, place), imported_after(modules)


def imported_after(modules: int) -> tuple[str, ...]:
    """The parts of torch that were imported since there were so many modules, in that order; where the
    compiler is among them, instead of its hundreds of parts what brings them all."""
    latest = list(itertools.islice(reversed(sys.modules), max(0, len(sys.modules) - modules)))
    found = [name for name in reversed(latest) if name.startswith("torch.")]
    if not any(name.startswith("torch._dynamo.") for name in found):
        return tuple(found)
    return (READY_TO_COMPILE, *(name for name in found if name == "torch._inductor.compile_fx"))


def run_on_ranks(check: Check, answer: Any, place: Place, deadline: float) -> Outcome:
    """The check in `check.ranks` processes that form one process group."""
    from course_utils import ranks, workers

    _ship_by_value(check.function, answer)
    try:
        results = ranks.ranks(
            _conduct_rank, check.ranks, check, answer, place, deadline=deadline, preload=PRELOAD
        )
    except workers.CannotSendError as error:
        return _cannot_be_sent(error, check, place)
    return combine_ranks([outcome_of(result, check, place, deadline) for result in results], check, place)


def _conduct_rank(rank: int, world_size: int, check: Check, answer: Any, place: Place) -> Outcome:
    return conduct(check, answer, Place(place.device, rank, world_size))


def _cannot_be_sent(error: Exception, check: Check, place: Place) -> Outcome:
    reason = str(error.__cause__ or error)
    message = [f"your answer cannot be sent to the process of this check: {reason}"]
    seen = [("raised", ["cannot be sent", None])]
    return Outcome(check.name, check.title, RAISED, message, place.device, seen)


def outcome_of(result: Any, check: Check, place: Place, deadline: float) -> Outcome:
    """A worker's `Result` as an outcome. What is not a returned outcome is a failure by name."""
    if result.state == "returned" and isinstance(result.value, Outcome):
        return result.value
    outcome = Outcome(check.name, check.title, DIED, device=place.device)
    if result.state == "timed out":
        outcome.state = TIMED_OUT
        from course_utils.ranks import STUCK

        stuck = result.how == STUCK
        outcome.message = [still_running(None if stuck else deadline, result.position, check)]
        outcome.evidence = [("stuck", stuck)]
    elif result.state == "raised":
        # `conduct` turns what an answer raises into an outcome; this is something that never reached it.
        outcome.state = RAISED
        outcome.message = [f"`{result.error.type}: {result.error.message}`"]
        outcome.evidence = [("raised", [result.error.type, None])]
    elif result.state == "returned":
        outcome.message = ["its process sent something that is not the outcome of a check"]
    else:
        outcome.message = [f"its process ended: {result.how}"]
    return outcome


def combine_ranks(found: list[Outcome], check: Check, place: Place) -> Outcome:
    """One outcome for a check on ranks.

    A rank that raised or saw a wrong value leaves the others waiting, so it comes first; then one that
    died, and only then those that lost their connection to it or were still waiting, and each says where.
    """
    if any(outcome.state == DIED for outcome in found):
        found = [_cut_off(outcome) for outcome in found]
    for state in (WRONG, RAISED, DIED, TIMED_OUT, COULD_NOT_CHECK):
        if any(outcome.state == state for outcome in found):
            break
    else:
        state = PASSED
    message: list[str] = []
    examples: set[str] = set()
    if state != PASSED:
        order = sorted(range(len(found)), key=lambda rank: (found[rank].state != state, rank))
        for rank in order:
            message += _of_rank(rank, found[rank], state, examples)
    seen = [[o.state, _behaviour(o) if o.state not in (TIMED_OUT, DIED) else None] for o in found]
    behaviour: list[Any] = [("ranks", seen)]
    if state == TIMED_OUT:
        behaviour = [("stuck", all(_is_deadlock(o) for o in found if o.state == TIMED_OUT))]
    seconds = max(outcome.seconds for outcome in found)
    return Outcome(check.name, check.title, state, message, place.device, behaviour, seconds)


def _cut_off(outcome: Outcome) -> Outcome:
    """A rank that raised because another had died only says what follows from that."""
    from course_utils.ranks import lost_connection

    if outcome.state == RAISED and lost_connection(" ".join(outcome.message)):
        return replace(outcome, state=TIMED_OUT, message=["lost its connection"])
    return outcome


def _of_rank(rank: int, outcome: Outcome, state: str, examples: set[str]) -> list[str]:
    """What there is to say of a rank; without its example where that is one of `examples`, which grows."""
    if outcome.state == PASSED:
        # Worth a line only where somebody waits for it.
        return [f"rank {rank} has returned"] if state == TIMED_OUT else []
    head, *rest = outcome.message or [outcome.state]
    if rest and head in examples:
        head, *rest = rest
    elif head.startswith("for `"):
        examples.add(head)
    return [f"rank {rank}: {head}", *rest]


def _ship_by_value(*objects: Any) -> None:
    """Exercises and solutions are loaded by path: a worker cannot import them, so they travel whole."""
    import cloudpickle

    for thing in objects:
        module = sys.modules.get(getattr(thing, "__module__", None) or "")
        if module is not None and module.__name__.partition(".")[0] in ("exercises", "solutions"):
            cloudpickle.register_pickle_by_value(module)


def _print(text: str) -> None:
    sys.stdout.write(text)


# --- equal to the starter ----------------------------------------------------------------------------


def is_starter(exercise: Exercise, answer: Any) -> bool:
    """Whether the answer does what the starter does, instruction by instruction."""
    return fingerprint(answer) == fingerprint(exercise.starter_object)


def fingerprint(answer: Any) -> Any:
    """What a function or class does, as plain data: its instructions, without docstrings, comments,
    names of files and numbers of lines; for a class those of its methods and its attributes."""
    if isinstance(answer, (staticmethod, classmethod)):
        return type(answer).__name__, fingerprint(answer.__func__)
    if isinstance(answer, property):
        return "property", *(fingerprint(f) if f else None for f in (answer.fget, answer.fset, answer.fdel))
    if hasattr(answer, "__wrapped__"):  # all that a decorator wraps runs the same few instructions of its own
        return "wrapped", fingerprint(answer.__wrapped__)
    if isinstance(answer, types.FunctionType):
        named = sorted((answer.__kwdefaults__ or {}).items())
        defaults = [*(answer.__defaults__ or ()), *(part for pair in named for part in pair)]
        return _instructions(answer.__code__), [
            fingerprint(value) if isinstance(value, types.FunctionType) else steady(repr(value))
            for value in defaults
        ]
    if isinstance(answer, type):
        skipped = ("__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__firstlineno__")
        return [base.__name__ for base in answer.__bases__], [
            (name, _of_attribute(answer, value))
            for name, value in sorted(vars(answer).items())
            if name not in skipped and not name.startswith("__static_attributes")
        ]
    return steady(repr(answer))


def _of_attribute(owner: type, value: Any) -> Any:
    # A class that was not written inside this one may refer back to it, as the backward class of an
    # autograd Function does.
    if isinstance(value, type) and not value.__qualname__.startswith(f"{owner.__qualname__}."):
        return value.__name__
    return fingerprint(value)


# A file that imports a module and a cell that finds it imported call its functions by different instructions,
# whatever the cell says otherwise; that may also make a jump long enough to need an instruction more.
_CHANGING = ("PUSH_NULL", "PRECALL", "EXTENDED_ARG")
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_ANOTHER_NAME = {"LOAD_METHOD": "LOAD_ATTR", "CALL_METHOD": "CALL_FUNCTION"}


def _instructions(code: types.CodeType) -> list[tuple[str, Any]]:
    kept = [i for i in dis.get_instructions(code) if i.opname not in _CHANGING]
    places = [instruction.offset for instruction in kept]
    found: list[tuple[str, Any]] = []
    for instruction in kept:
        value = instruction.argval
        if instruction.opname == "KW_NAMES":  # which Python 3.11 does not show
            value = code.co_consts[instruction.arg]
        if isinstance(value, types.CodeType):
            shown: Any = _instructions(value)
        elif instruction.opcode in _JUMPS:  # to which instruction, not to which byte
            shown = bisect.bisect_left(places, value)
        else:
            shown = repr(value)
        found.append((_ANOTHER_NAME.get(instruction.opname, instruction.opname), shown))
    return found
