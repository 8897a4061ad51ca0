"""A training process that is killed again and again ends where one that nobody killed does."""

import os
import random
import signal
import time
from pathlib import Path

import torch
from torch import nn

from course_utils import catalog
from course_utils.exercise.kits.saved_runs import RUN, in_process

STEPS, KILLS = 60, 20


def test_twenty_kills_at_random_moments_change_nothing(tmp_path):
    course = catalog.load()
    save, resume = (course.solution(name).reference for name in ("save_checkpoint", "resume"))
    names = {"torch": torch, "nn": nn}
    exec(RUN, names)
    path = tmp_path / "run.pt"

    def start():
        run = names["begin"](os.getpid())
        begun = names["begin"]() if not path.exists() else run
        step = resume(path, **begun)
        names["train"](begun, STEPS, lambda step: save(path, step, **begun), start=step)
        return _numbers(begun)

    def through():
        run = names["begin"]()
        names["train"](run, STEPS)
        return _numbers(run)

    wanted, moments, reached = in_process(through), random.Random(), []
    whole = _seconds(lambda: in_process(start))
    path.unlink()
    for _ in range(KILLS):
        _killed_after(moments.uniform(0.05, 0.4) * whole, start)
        reached.append(torch.load(path)["step"] if path.exists() else 0)
    assert in_process(start) == wanted
    assert reached == sorted(reached) and any(0 < step < STEPS for step in reached)
    assert [file.name for file in Path(tmp_path).iterdir()] == ["run.pt"]


def _numbers(run):
    return [p.tolist() for p in run["model"].state_dict().values()] + [run["sampler"].at]


def _seconds(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _killed_after(seconds, job):
    process = os.fork()
    if process == 0:
        try:
            torch.set_num_threads(1)
            job()
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
