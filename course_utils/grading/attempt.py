"""An exercise and an answer in, a report out: which checks hold, and what the first that fails is about."""

from __future__ import annotations

import bisect
import dis
import itertools
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol

from course_utils import machine
from course_utils.exercise import Check, Exercise
from course_utils.exercise.cases import OF_ALL_CASES
from course_utils.exercise.states import COULD_NOT_CHECK, DIED, FAILED, PASSED, RAISED, TIMED_OUT, WRONG
from course_utils.grading.check_run import Outcome, Place, conduct, steady, still_running
from course_utils.grading.report import Report

# What a check may need, in the words of a report.
NEED = {
    "cuda": "CUDA device",
    "mps": "Apple GPU",
    "compiler": "C++ compiler",
    "cmake": "cmake",
    "onnxruntime": "ONNX Runtime with onnx and onnxscript; `pip install -e '.[deploy]'` installs them",
    "safetensors": "safetensors; `pip install -e '.[deploy]'` installs it",
}


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
    devices: Iterable[str] | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Report:
    """Runs every check of the exercise on the answer.

    `answer` is a function, a class, or a `Recipe`. `devices`: where checks that ask for a device run
    (default: every device of this machine).
    """
    runner = runner or KernelRunner()
    report = Report(exercise.name, exercise.topic, exercise.title, exercise.answer_name)
    report.outcomes = list(outcomes(exercise, answer, runner, devices, on_outcome=on_outcome))
    return explained(report, exercise)


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


# --- what is told beside the messages ------------------------------------------------------------------


def explained(report: Report, exercise: Exercise) -> Report:
    """The same report, with the why of the first failing check and the symptom that stands before it.

    The symptom is that check's own; where it has none, that of a table of cases in a later check, since it is
    about all that the answer does. Where the answer raised the same in every check, and not by a
    rule of torch's, it does not run at all: then the line where it raised is all there is to say.
    """
    failed = [outcome for outcome in report.outcomes if outcome.state in FAILED]
    if not failed:
        return report
    first = failed[0]
    report.told_by = first.check
    of_all = [outcome.symptom for outcome in failed if outcome.symptom.startswith(OF_ALL_CASES)]
    report.symptom = first.symptom or (of_all[-1] if of_all else "")
    errors = {tuple(outcome.message[-2:]) for outcome in report.outcomes if outcome.state == RAISED}
    runs = len(errors) != 1 or any(outcome.state != RAISED for outcome in report.outcomes)
    if runs or len(report.outcomes) == 1 or any("`RuntimeError" in line for line in first.message):
        report.why = next(check.why for check in exercise.checks if check.name == first.check)
    return report


# --- warm processes --------------------------------------------------------------------------------


# What every check needs in its process: imported once, where the processes are forked from.
PRELOAD = ("course_utils.grading.attempt", "course_utils.measure")
READY_TO_COMPILE = "course_utils.processes.ready_to_compile"
READY_TO_MAKE_KERNELS = "course_utils.processes.ready_to_make_kernels"
PRELOAD_TO_COMPILE = (*PRELOAD, READY_TO_COMPILE, "torch._inductor.compile_fx", READY_TO_MAKE_KERNELS)


def run_isolated(check: Check, answer: Any, place: Place, deadline: float) -> Outcome:
    """The check in a warm process of its own."""
    from course_utils.processes import workers

    _ship_by_value(check.function, answer)
    preload = (*(PRELOAD_TO_COMPILE if "compiler" in check.needs else PRELOAD), *_wanted)
    try:
        result = _once_more(
            lambda: workers.isolated(
                _conduct_alone, check, answer, place, deadline=deadline, preload=preload, on_output=_print
            )
        )
    except workers.CannotSendError as error:
        return _cannot_be_sent(error, check, place)
    except workers.WorkersError as error:
        return _not_run(check, place, f"its process did not start: {error}")
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
    from course_utils.processes import ranks, workers

    _ship_by_value(check.function, answer)
    try:
        results = _once_more(
            lambda: ranks.ranks(
                _conduct_rank, check.ranks, check, answer, place, deadline=deadline, preload=PRELOAD
            )
        )
    except workers.CannotSendError as error:
        return _cannot_be_sent(error, check, place)
    except workers.WorkersError as error:
        return _not_run(check, place, f"its processes did not start: {error}")
    return combine_ranks([outcome_of(result, check, place, deadline) for result in results], check, place)


def _once_more(run: Callable[[], Any]) -> Any:
    """A machine that is very busy may leave a process unanswered once: it is asked for a second time."""
    from course_utils.processes import workers

    try:
        return run()
    except workers.WorkersError:
        return run()


def _conduct_rank(rank: int, world_size: int, check: Check, answer: Any, place: Place) -> Outcome:
    return conduct(check, answer, Place(place.device, rank, world_size))


def _cannot_be_sent(error: Exception, check: Check, place: Place) -> Outcome:
    reason = str(error.__cause__ or error)
    message = [f"your answer cannot be sent to the process of this check: {reason}"]
    return Outcome(check.name, check.title, RAISED, message, place.device)


def outcome_of(result: Any, check: Check, place: Place, deadline: float) -> Outcome:
    """A worker's `Result` as an outcome. What is not a returned outcome is a failure by name."""
    if result.state == "returned" and isinstance(result.value, Outcome):
        return result.value
    outcome = Outcome(check.name, check.title, DIED, device=place.device)
    if result.state == "timed out":
        outcome.state = TIMED_OUT
        from course_utils.processes.ranks import STUCK

        stuck = result.how == STUCK
        outcome.message = [still_running(None if stuck else deadline, result.position, check)]
    elif result.state == "raised":
        # `conduct` turns what an answer raises into an outcome; this is something that never reached it.
        outcome.state = RAISED
        outcome.message = [f"`{result.error.type}: {result.error.message}`"]
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
    if state != PASSED:
        # What is the same on several ranks is told once, and only what comes first in full.
        told: dict[tuple[str, ...], list[int]] = {}
        for rank in sorted(range(len(found)), key=lambda rank: (found[rank].state != state, rank)):
            example, said = _of_rank(found[rank], state)
            if said:
                message += [example] if example and not message else []
                told.setdefault(said, []).append(rank)
        for number, (said, ranks) in enumerate(told.items()):
            message.append(f"{_ranks(ranks)}: {said[0]}")
            message += said[1:] if number == 0 else []
    joined = Outcome(check.name, check.title, state, message, place.device)
    joined.seconds = max(outcome.seconds for outcome in found)
    joined.looks = min(outcome.looks for outcome in found)
    symptoms = {outcome.symptom for outcome in found if outcome.state == state}
    joined.symptom = symptoms.pop() if len(symptoms) == 1 else ""
    return joined


def _ranks(ranks: list[int]) -> str:
    """`rank 1`, `ranks 0 and 2`: what is the same on several is told once."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _cut_off(outcome: Outcome) -> Outcome:
    """A rank that raised because another had died only says what follows from that."""
    from course_utils.processes.ranks import lost_connection

    if outcome.state == RAISED and lost_connection(" ".join(outcome.message)):
        return replace(outcome, state=TIMED_OUT, message=["lost its connection"])
    return outcome


def _of_rank(outcome: Outcome, state: str) -> tuple[str, tuple[str, ...]]:
    """The example, and what there is to say of a rank: of one that passed, only where somebody waits."""
    if outcome.state == PASSED:
        return "", ("has returned",) if state == TIMED_OUT else ()
    said = outcome.message or [outcome.state]
    if said[0].startswith("for") and len(said) > 1:
        return said[0], tuple(said[1:])
    return "", tuple(said)


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
