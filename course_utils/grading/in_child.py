"""What runs in the process of an answer: a fork of the warm server, or a rank. It runs checks and tells what
came of each; `attempt` reads that."""

import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from course_utils import stacks, torch_private
from course_utils.exercise import Check
from course_utils.exercise.once import one_report
from course_utils.exercise.states import RAISED, TIMED_OUT
from course_utils.grading import tampering
from course_utils.grading.check_run import Outcome, Place, describe_error, run
from course_utils.grading.forks import READY_TO_INTERPRET, imported_after
from course_utils.grading.packing import Packed
from course_utils.processes import worker_process


@one_report()
def conduct(sent: Packed, answer: Any, todo: list[tuple[str, Place]], folder: str, alone: bool) -> None:
    """The inside of a fork: runs the checks of `todo`, each (name, place), up to one that does not end, and
    tells what came of each, and which modules it imported. `folder`: that of the notebook. `alone`: whoever
    made the call watches the time."""
    _enter_own_folder(folder)
    ready = sys.modules.get(READY_TO_INTERPRET)  # of the server: what is unpacked from here on compiles
    if ready is not None and all(place.device == "cuda" for _, place in todo):
        ready.compile_again()
    checks = sent.unpacked()
    if not any(uses_gpus(checks[name], place) for name, place in todo):
        worker_process.hide_gpus()
        if any("triton" in checks[name].needs for name, _ in todo):
            importlib.import_module(READY_TO_INTERPRET).interpret()  # the variable is read again
    for name, place in todo:
        check = checks[name]
        modules = len(sys.modules)
        outcome = _outcome(check, answer, place, None if alone else check.deadline)
        worker_process.tell(outcome.as_plain())
        if outcome.state == TIMED_OUT:  # the others would take their whole deadlines too
            return
        if new := imported_after(modules):
            worker_process.tell({"imported": new})


def conduct_rank(
    rank: int, world_size: int, sent: Packed, answer: Any, device: str | None, folder: str
) -> None:
    """The inside of one rank: runs the only check and tells what came of it."""
    _enter_own_folder(folder)
    (check,) = sent.unpacked().values()
    worker_process.tell(_outcome(check, answer, Place(device, rank, world_size), None).as_plain())


def uses_gpus(check: Check, place: Place) -> bool:
    """Whether the check, at this place, asks for an NVIDIA GPU: where none does, the process sees none."""
    return place.device == "cuda" or "cuda" in check.needs


def compiles_kernels(check: Check, place: Place) -> bool:
    """Whether kernels in Triton run compiled in the check, at this place: that takes a process of its own."""
    return place.device == "cuda" and "triton" in check.needs


def _outcome(check: Check, answer: Any, place: Place, deadline: float | None) -> Outcome:
    try:
        return run(check, answer, place, deadline, shared=False)
    except KeyboardInterrupt as error:  # nobody sits here who could have pressed a key
        return Outcome(check.name, check.title, RAISED, describe_error(error, check), place.device)


def _enter_own_folder(folder: str) -> None:
    if not folder:
        return
    if folder not in sys.path:
        sys.path.append(folder)  # a notebook may import what lies beside it
    own = Path(tempfile.gettempdir(), f"answer-{os.getpid()}")
    own.mkdir(parents=True, exist_ok=True)  # an answer may have removed what it stands in
    os.chdir(own)
    # torch.compile would start a pool of processes that stays.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if inductor := sys.modules.get(torch_private.INDUCTOR_CONFIG):
        inductor.compile_threads = 1


# Once here, where this is imported before processes are forked, and not in each of them: there an answer may
# keep it from finding out.
tampering.changes()
stacks.is_readers(__file__)
