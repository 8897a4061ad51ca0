"""A training process that is killed twenty times is bit for bit where one is that was never interrupted."""

import os
import random
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from torch import nn

from course_utils.exercise.kits.saved_runs import in_process
from course_utils.lessons import catalog

KILLS = 20
SEED = 15


class Sampler:
    """Goes through ten examples in an order of its own, a new one in each epoch."""

    def __init__(self):
        self.epoch, self.at = 0, 0

    def __next__(self):
        if self.at == 10:
            self.epoch, self.at = self.epoch + 1, 0
        order = torch.randperm(10, generator=torch.Generator().manual_seed(self.epoch))
        self.at += 2
        return order[self.at - 2 : self.at]

    def state_dict(self):
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state):
        self.epoch, self.at = state["epoch"], state["at"]


def begin(seed):
    torch.set_num_threads(1)
    torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)
    model = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 7),
        # Soon too large: some steps are skipped, and it halves.
        "scaler": torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=2),
        "sampler": Sampler(),
    }


def step(run):
    index = next(run["sampler"])
    x = torch.linspace(-1, 1, 20).view(10, 2)[index]
    x = x + torch.tensor(np.random.rand(2, 2) + random.random(), dtype=torch.float32)
    run["optimizer"].zero_grad()
    run["scaler"].scale(run["model"](x).sub(1).square().mean()).backward()
    run["scaler"].step(run["optimizer"])
    run["scaler"].update()
    run["scheduler"].step()


def exact(state):
    """All that a checkpoint holds, bit for bit, as text."""
    if isinstance(state, torch.Tensor):
        content = state.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return f"{state.dtype} {list(state.shape)} {content.hex()}"
    if isinstance(state, dict):
        return str({key: exact(value) for key, value in state.items()})
    return str([exact(item) for item in state]) if isinstance(state, list | tuple) else repr(state)


def train_until_killed(pipe, path, seed, left_out):
    solution = catalog.load().solution
    save, resume = solution("save_checkpoint").reference, solution("resume").reference
    run = begin(seed)
    done = resume(path, **{name: part for name, part in run.items() if name != left_out})
    os.write(pipe, b".")
    while True:
        step(run)
        done += 1
        save(path, done, **run)
        os.write(pipe, b".")


def kill_one(moments, path, seed, left_out):
    """Starts a run and kills it; how many steps it told that it had saved."""
    saves, then = moments.randrange(12), moments.uniform(0, 0.004)
    ours, theirs = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            train_until_killed(theirs, path, seed, left_out)
        finally:
            os._exit(1)
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as pipe:
        told = 0
        while told <= saves and pipe.read(1):
            told += 1
        time.sleep(then)
        os.kill(process, signal.SIGKILL)
        told += len(pipe.readall())
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, "it ended by itself"
    return told - 1


def uninterrupted(path, steps):
    """What a run that is saved once, after so many steps, has in its file: for each of `steps`."""
    save = catalog.load().solution("save_checkpoint").reference
    run, found = begin(SEED), {}
    for done in range(1, max(steps) + 1):
        step(run)
        if done in steps:
            save(path, done, **run)
            found[done] = exact(torch.load(path))
    return [found[done] for done in steps]


def kill(folder, kills, left_out=None):
    """(the step, whether its file is the uninterrupted run's) after each kill."""
    catalog.load().solution("resume")
    moments, path = random.Random(SEED), f"{folder}/run.pt"
    catalog.load().solution("save_checkpoint").reference(path, 0, **begin(SEED))
    steps, found = [0], []
    for number in range(kills):
        told = kill_one(moments, path, SEED + 1 + number, left_out)
        saved = torch.load(path)  # whole, after each kill
        assert saved["step"] - steps[-1] in (told, told + 1), "the last step that was saved is in the file"
        steps.append(saved["step"])
        found.append(exact(saved))
    # The process that went before has changed no generator here: the other run begins in one of its own.
    last = [max(1, done) for done in steps[1:]]
    wanted = in_process(lambda: uninterrupted(f"{folder}/through.pt", last))
    return [(done, a == b) for done, a, b in zip(steps[1:], found, wanted, strict=True) if done]


@pytest.fixture(scope="module")
def warm():
    """One process that has loaded torch, and forks."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


def test_a_run_that_is_killed_twenty_times_is_where_it_would_have_been(warm, tmp_path):
    ended = warm.submit(kill, tmp_path, KILLS).result()
    assert ended[-1][0] >= KILLS  # it went on between the kills
    assert [done for done, same in ended if not same] == []


@pytest.mark.parametrize("part", ["optimizer", "sampler"])
def test_a_part_that_is_not_resumed_shows(warm, tmp_path, part):
    ended = warm.submit(kill, tmp_path, 3, part).result()
    assert not all(same for _, same in ended)
