"""One route for an answer: its checks run here, in a fork of the warm server, or on ranks.

A notebook runs plain checks here, so that prints, breakpoints and `%debug` work; `course check` runs them in
a fork. Isolated checks and checks on ranks have processes of their own in both. Here is which check goes
where, and how what comes back is read; `in_child` is what runs there.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from course_utils import machine
from course_utils.exercise import Check, Exercise
from course_utils.exercise.once import one_report
from course_utils.exercise.states import COULD_NOT_CHECK, DIED, RAISED, TIMED_OUT
from course_utils.grading.check_run import Outcome, Place, limited, run, steady, still_running
from course_utils.grading.forks import (
    OF_TORCH,
    PRELOAD,
    PRELOAD_TO_COMPILE,
    READY_TO_INTERPRET,
    Forks,
    imported,
    will_need,
)
from course_utils.grading.in_child import compiles_kernels, conduct, conduct_rank, uses_gpus
from course_utils.grading.packing import PackedAnswer, by_value, packed
from course_utils.grading.ranks import combined
from course_utils.grading.recipe import Recipe
from course_utils.grading.report import Report, explained
from course_utils.processes import ranks, workers
from course_utils.processes.result import Result
from course_utils.words import what_to_look_for

# What a check may need, in the words of a report.
NEED = {
    "cuda": "CUDA device",
    "mps": "Apple GPU",
    "compiler": "C++ compiler",
    "cmake": "cmake",
    "onnxruntime": "ONNX Runtime with onnx and onnxscript; `pip install -e '.[deploy]'` installs them",
    "safetensors": "safetensors; `pip install -e '.[deploy]'` installs it",
    "triton": "Triton, which there is for Linux; `pip install -e '.[kernels]'` installs it",
}
# Seconds that an answer is given, after its deadline was signalled to it, to end by itself.
UNWINDING = 1.0
# Seconds more for a check whose kernels a compiler makes first, one for each size that is a `constexpr`.
COMPILING = 60.0

Visit = tuple[Check, Place]


@dataclass(frozen=True)
class Attempt:
    """An exercise and an answer to it: the object itself, or a recipe that makes it from a notebook in
    `folder`."""

    exercise: Exercise
    answer: Any
    folder: str = ""


def grade(
    exercise: Exercise,
    answer: Any,
    *,
    devices: Iterable[str] | None = None,
    begins: Callable[[Check], None] = lambda check: None,
) -> Report:
    """The report on an answer whose plain checks run here. `devices`: where checks that ask for a device run
    (default: every device of this machine). `begins` is called with each check before it runs."""
    return report(Attempt(exercise, answer), devices=devices, begins=begins)


def report(
    attempt: Attempt,
    forks: Forks | None = None,
    *,
    devices: Iterable[str] | None = None,
    begins: Callable[[Check], None] = lambda check: None,
) -> Report:
    """Runs every check; plain ones in `forks` where these are given, else here."""
    exercise = attempt.exercise
    found = Report(exercise.name, exercise.topic, exercise.title, exercise.answer_name)
    with Forks(on_output=lambda text: sys.stdout.write(text)) as own, one_report():
        todo = visits(exercise, devices)
        found.outcomes += outcomes(attempt, todo, forks or own, begins, plain_here=forks is None)
    explained(found, exercise)
    _tell_words_once(found.outcomes)
    own = [outcome.why for outcome in found.outcomes if outcome.check == found.told_by and outcome.why]
    found.why = own[0] if found.why and own else found.why
    return found


# An error, and from so many letters on its words are told once.
_ERROR, _LONG = re.compile(r"^`(\w+): (.*)`$", re.DOTALL), 60


def _tell_words_once(outcomes: Iterable[Outcome]) -> None:
    """Takes the words of a long error out of those that were raised after it: a compiler puts more around
    them."""
    words: list[str] = []
    for outcome in outcomes:
        told = [_ERROR.sub(r"\2", line) for line in outcome.message if not line.startswith("for\n")]
        for i, line in enumerate(outcome.message if outcome.state == RAISED else ()):
            error = _ERROR.match(line)
            if error and any(one in error[2] for one in words):
                outcome.message[i] = f"`{error[1]}`, with the words above"
        words += [one for one in told if len(one) > _LONG]


def visits(exercise: Exercise, devices: Iterable[str] | None = None) -> list[Visit]:
    """Each check once, or once for each device where it asks for one."""
    found: list[Visit] = []
    devices = list(devices) if devices is not None else machine.devices()
    for check in exercise.checks:
        if "device" not in check.wants:
            found.append((check, Place()))
            continue
        wanted = [need for need in check.needs if need in ("cuda", "mps")]
        if "triton" in check.needs:  # kernels are interpreted on a CPU, and compiled for a GPU
            wanted = ["cpu", *(name for name in devices if name == "cuda")]
        if check.ranks and not wanted:
            wanted = [name for name in devices if machine.serves(name, check.ranks)] or ["cpu"]
        places = [Place(device=name) for name in wanted or devices]
        longer = replace(check, deadline=check.deadline + COMPILING)
        found += [(longer if compiles_kernels(check, place) else check, place) for place in places]
    return found


def outcomes(
    attempt: Attempt,
    todo: list[Visit],
    forks: Forks,
    begins: Callable[[Check], None],
    plain_here: bool,
) -> Iterator[Outcome]:
    """Runs the checks one after another. After one that did not end the others are not run: each
    would take its whole deadline again, and what is not run is not passed."""
    stuck = False
    if any(check.isolated or check.ranks for check, _ in todo):
        will_need([attempt.exercise])
    while todo:
        check, place = todo[0]
        begins(check)
        missing = [need for need in check.needs if not machine.has(need)]
        if missing:
            found = [_not_run(check, place, f"this machine has no {NEED[missing[0]]}")]
        elif stuck:
            found = [_not_run(check, place, "not run: the check before it did not end")]
        elif check.ranks:
            found = [on_ranks(check, attempt.answer, place, check.deadline, attempt.folder)]
        elif check.isolated or not plain_here or compiles_kernels(check, place):
            found = _in_a_fork(attempt, _together(todo), forks)
        else:
            found = [run(check, attempt.answer, place, check.deadline)]
        stuck = stuck or found[-1].state == TIMED_OUT
        todo = todo[len(found) :]
        yield from found


def _together(todo: list[Visit]) -> list[Visit]:
    """The first visit, and those after it that may share its process."""
    if _alone(*todo[0]):
        return todo[:1]
    plain = [not (_alone(c, p) or c.ranks) and all(map(machine.has, c.needs)) for c, p in todo]
    return todo[: plain.index(False) if False in plain else None]


def _alone(check: Check, place: Place) -> bool:
    return check.isolated or compiles_kernels(check, place)


def _not_run(check: Check, place: Place, why: str) -> Outcome:
    return Outcome(check.name, check.title, COULD_NOT_CHECK, [why], place.device)


def _in_a_fork(attempt: Attempt, todo: list[Visit], forks: Forks) -> list[Outcome]:
    """What came of these checks in one process, as far as it came: the last of the outcomes may be how that
    process ended."""
    check, place = todo[0]
    by_value(attempt.answer)
    alone = _alone(check, place)
    deadline = check.deadline if alone else max(c.deadline for c, _ in todo) + UNWINDING
    needs = PRELOAD_TO_COMPILE if any("compiler" in c.needs for c, _ in todo) else ()
    if any("triton" in c.needs for c, _ in todo):
        needs += (READY_TO_INTERPRET,)
    try:
        checks, answer = packed(tuple(attempt.exercise.checks)), PackedAnswer.of(attempt.answer)
    except Exception as error:  # whatever pickling an answer raises
        return [_cannot_be_sent(error, check, place)]
    call = conduct, checks, answer, [(c.name, p) for c, p in todo], attempt.folder, alone
    try:
        result = forks.call(*call, needs=needs, deadline=deadline)
    except InterruptedError:
        raise
    except (workers.WorkersError, OSError) as error:  # such as too many open files
        return [_not_run(check, place, f"its process did not start: {error}")]
    return _read(_at_its_lines(result, attempt.answer), todo)


def _at_its_lines(result: Result, answer: Any) -> Result:
    if result.position is not None and isinstance(answer, Recipe):
        result.position.frames = [answer.shown(frame) for frame in result.position.frames]
    return result


def _read(result: Result, todo: list[Visit]) -> list[Outcome]:
    found: list[Outcome] = []
    for data in result.told:
        if not isinstance(data, dict):
            break
        if isinstance(names := data.get("imported"), list):
            imported.update((str(n), None) for n in names if OF_TORCH.fullmatch(str(n)))
        elif len(found) < len(todo):
            found.append(Outcome.of_plain(data, *todo[len(found)]))
    if len(found) == len(todo) or (found and found[-1].state == TIMED_OUT):
        return found
    check, place = todo[len(found)]
    last = _without_outcome(result, check, place)
    last.seconds = result.seconds
    return [*found, last]


def on_ranks(check: Check, answer: Any, place: Place, deadline: float, folder: str = "") -> Outcome:
    """The check in `check.ranks` processes that form one process group."""
    by_value(answer)
    try:
        sent = packed((check,)), PackedAnswer.of(answer)
    except Exception as error:  # whatever pickling an answer raises
        return _cannot_be_sent(error, check, place)
    try:
        call = conduct_rank, check.ranks, *sent, place.device, folder
        how = {"preload": (*PRELOAD, *imported), "plain": True, "gpus": uses_gpus(check, place)}
        results = ranks.run_group(*call, deadline=deadline, **how)
    except (workers.WorkersError, OSError) as error:
        return _not_run(check, place, f"its processes did not start: {error}")
    found = [
        Outcome.of_plain(result.told[-1], check, place)
        if result.state == "returned" and result.told
        else _without_outcome(_at_its_lines(result, answer), check, place)
        for result in results
    ]
    return combined(found, check, place)


def _without_outcome(result: Result, check: Check, place: Place) -> Outcome:
    """A process that sent no outcome: a failure by name."""
    outcome = Outcome(check.name, check.title, DIED, device=place.device)
    if result.state == "timed out":
        outcome.state = TIMED_OUT
        deadline = None if result.how == ranks.STUCK else check.deadline
        outcome.message = [still_running(deadline, result.position, check)]
    elif result.state == "raised":
        # `run` turns what an answer raises into an outcome; this is something that never reached it.
        outcome.state = RAISED
        outcome.message = [f"`{result.error.type}: {result.error.message}`"]
    elif result.state == "returned":
        outcome.message = ["its process sent something that is not the outcome of a check"]
    else:
        outcome.message = _ended(result.how, result)
    return outcome


def _ended(how: str, result: Result) -> list[str]:
    lines = [f"its process ended{how and ': '}{how}", *what_to_look_for(how, result.output)]
    return limited([steady(line) for line in lines])


def _cannot_be_sent(error: BaseException, check: Check, place: Place) -> Outcome:
    message = [f"your answer cannot be sent to the process of this check: {error}"]
    return Outcome(check.name, check.title, RAISED, message, place.device)
