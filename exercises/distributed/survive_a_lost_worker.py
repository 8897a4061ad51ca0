"""A job that survives the loss of a worker

When a worker is lost, `torchrun --max-restarts` starts all anew: files stay. Write what every rank runs.

Call `step(0)` to `step(steps - 1)`, all ranks together; `step` trains `model` with `optimizer`. After each
step save in `folder`, which all ranks see, what it takes to go on. Rank 0 alone writes, with `torch.save`,
before it calls `step` again. A worker may be lost at any moment, even while it writes.

A later start goes on with the first step that wasn't saved. Each rank then has its weights, optimizer,
buffers and random state.

`steps = 5`, lost in `step(3)` → the next start runs `step(3)` and `step(4)`.
"""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import distributed

exercise = Exercise(
    minutes=30,
    hints=[
        "List what `step` reads and changes: weights, buffers, what the optimizer remembers, the random "
        "state of this rank, the number of the step. What is not in the file is new after a start.",
        "A file that is being written is half a file. Write it under another name. `os.replace` gives it the "
        "name that you look for, in one move: whoever looks finds the old file or the new one.",
        "Before rank 0 writes, what differs from rank to rank has to come to it (`dist.gather_object`). "
        "When a rank starts, it looks for the file, loads it itself and takes the entry that is its own. "
        "How many steps are done after `step(i)`?",
    ],
)


@exercise.starter
def survive_a_lost_worker(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: Callable[[int], None],
    steps: int,
) -> None:
    """Runs the steps that are still to do, and keeps each of them in the folder"""
    raise NotImplementedError


_SETUP = "from course_utils.exercise.kits.distributed import Job\njob = Job(lost_in={})".format
_START = "job.start(survive_a_lost_worker, steps={})"


def _expect_what_it_had(has, had, when, others=()):
    """This rank has what it had when the same step began for the first time, not what `others` had."""
    with Rows() as rows:
        for part, tensors in had.items():
            with rows.of(part):
                for name, wanted in tensors.items():
                    expect.true(name in has[part], f"this is missing: {name} {when}")
                    like = {who: parts[part][name] for who, parts in others if name in parts.get(part, {})}
                    expect.equal(has[part][name], wanted, what=f"{name} {when}", like=like)


def _expect_it_goes_on(job, i):
    """The latest start went on with `step(i)`, and with what this rank had then."""
    zero = {"the random state": {"the random state": job.random_state_of_rank_0[i]}}
    others = [("that of rank 0", zero), (f"what it was when `step({i - 1})` began", job.had.get(i - 1, {}))]
    when = "of this rank in the end" if i == job.steps else f"of this rank when `step({i})` begins"
    _expect_what_it_had(job.has[i], job.had[i], when, others)


@exercise.check(ranks=2, given=_SETUP(None))
def rank_zero_writes(t, rank):
    """Rank 0 alone writes, and before it calls `step` again

    Two that write to one name at once can spoil the file. Files of several ranks may be of different steps
    when a worker is lost between them. While a thread still writes, the file is that of a step before.
    """
    saves = t.call("job.start(survive_a_lost_worker, steps=2, slow_threads=True)")
    told = f"this rank called `torch.save` {saves} times for 2 steps"
    expect.true(saves == 0 if rank else saves >= 2, told, f"expected: {'never' if rank else 'once a step'}")
    told = f"`step` is called again while these steps are not saved yet: {t.job.unsaved}"
    expect.true(rank > 0 or not t.job.unsaved, told, "expected: `torch.save` has returned")


@exercise.check(ranks=2, given=_SETUP, cases={"lost in `step(2)`": (2, 4), "lost in `step(11)`": (11, 12)})
def goes_on(t, lost_in, steps):
    """Lost in a step, all ranks go on with that step

    All ranks are started anew, with the script from its first line: here the folder tells that there was a
    start before. When `step(i)` has returned, `i + 1` steps are done. Among sorted names `10` is before `9`.
    """
    for start, ran in (("first", range(lost_in)), ("second", range(lost_in, steps))):
        t.run(_START.format(steps))
        expect.equal(t.job.ran, [*ran], what=f"the list of steps in the {start} start")


@exercise.check(ranks=2, given=_SETUP(2))
def what_it_had(t):
    """Each rank goes on with what it had

    A module's state dict holds weights and persistent buffers; those of a batch norm come from what this rank
    has seen. An optimizer can remember earlier gradients. The random state belongs to a process, and decides
    what the next step draws.
    """
    t.run(_START.format(3))
    t.run(_START.format(3))
    expect.equal(t.job.ran, [2], what="the list of steps in the second start")
    _expect_it_goes_on(t.job, 2)


@exercise.check(ranks=1, given=_SETUP(None))
def at_any_moment(t):
    """Lost at any moment: while a file is written, renamed, removed, or when all steps are done

    A worker that is killed doesn't run another line, no `finally` either, and may leave the first part of a
    file that it was writing. A rename within a folder is one step. Of two files that belong together one may
    be of the step before. A job that had ended has no step to run, and must still load what it had.
    """
    t.run("job.start(survive_a_lost_worker, steps=2, keep_moments=True)")
    expect.true(bool(t.job.moments), "nothing was written", "expected: a file after each step")
    for number, (done, files) in enumerate(t.job.moments):
        t.call(f"job.start_from({number}, survive_a_lost_worker, steps=2)  # {files}")
        first = t.job.ran[0] if t.job.ran else 2
        told = f"lost while `step({done - 1})` is being kept, the job goes on with `step({first})`"
        expect.true(first in (done - 1, done), told, f"expected: `step({done - 1})`, or `step({done})`")
        _expect_it_goes_on(t.job, first)


@exercise.check(ranks=1, deadline=120)
def real_job(survive_a_lost_worker):
    """Two workers of `torchrun`, one of them killed in `step(2)`

    The agent sees that a worker has ended, ends the other one, and starts both again. The killed worker
    doesn't raise anything.
    """
    dist.destroy_process_group()
    with expect.situation():
        for rank, note in enumerate(
            distributed.killed_in_torchrun(survive_a_lost_worker, steps=4, lost_in=2)
        ):
            where = f"of worker {rank} of the job, when it was started again"
            expect.true(bool(note), f"nothing was heard {where}", "expected: it runs to its end")
            if "raised" in note:
                raise expect.Mismatch(*note["raised"], f"that is the end {where}")
            expect.equal(note["ran"], [2, 3], what=f"the list of steps {where}")
            _expect_what_it_had(note["has"], note["had"], where)
