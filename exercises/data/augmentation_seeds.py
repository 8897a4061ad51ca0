"""New numbers in every worker

A dataset draws its augmentations from `self.rng`, a NumPy `Generator` that was made before the workers
started. So every worker has a copy, in the same state. Write `augmentation_seeds(worker_id)`, the loader's
`worker_init_fn`: it gives this worker's dataset an `rng` of its own.

- No two workers draw the same numbers, and no two epochs do, with `persistent_workers` or without.
- The draws follow from `torch.manual_seed` in the main process: the same seed, the same draws.
- What the loader has seeded itself (`torch`, `random`, `np.random`) stays as it is.

`DataLoader(data, num_workers=2, worker_init_fn=augmentation_seeds)`
"""

import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import numbers

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "Which number differs between workers and between epochs, and still follows from the seed of the "
        "main process?",
        "The loader gives each worker such a number. Inside the worker `torch.initial_seed()` returns it, "
        "and it stands in the worker info.",
        "The worker info holds the worker's own copy of the dataset too. Put a new generator there, made "
        "from the worker's seed.",
    ],
)


@exercise.starter
def augmentation_seeds(worker_id: int) -> None:
    """Called once in each new worker, before its first item"""
    raise NotImplementedError


class _Draws(Dataset):
    """Four items, each what the generators of its worker give."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 4

    def __getitem__(self, i):
        own = self.rng.integers(2**60).item()
        return own, (torch.randint(2**60, ()).item(), random.getrandbits(60), np.random.randint(2**60))


def _draw(init, epochs=1, seed=0, persistent=False):
    """For each epoch what worker 0 and what worker 1 drew: [(own, (torch, random, NumPy)), ...]"""
    torch.manual_seed(seed)
    workers = {"num_workers": 2, "worker_init_fn": init, "persistent_workers": persistent}
    loader = DataLoader(_Draws(), batch_size=None, multiprocessing_context="fork", **workers)
    found = []
    for _ in range(epochs):
        items = list(loader)
        found.append((items[0::2], items[1::2]))
    return found


def _own(items):
    return [own for own, _ in items]


@exercise.check(isolated=True, cases=numbers.SEEDS)
def workers_differ(augmentation_seeds, seed):
    """No two workers draw the same

    A forked worker is a copy of its parent, with every generator in the state that it had. The loader seeds
    `torch`, `random` and `np.random`; a `Generator` of your own it doesn't know. The seeds of two workers are
    mostly large and differ by 1: of 63 bits a float keeps 53.
    """
    ((zero, one),) = _draw(augmentation_seeds, seed=seed)
    told = f"after `torch.manual_seed({seed})` both workers drew the same numbers from `rng`"
    expect.true(not set(_own(zero)) & set(_own(one)), told, "expected: other ones")


@exercise.check(isolated=True, cases={f"persistent_workers={given}": given for given in (False, True)})
def epochs_differ(augmentation_seeds, persistent):
    """No two epochs draw the same

    Without `persistent_workers` new workers start in each epoch, forked from the same parent. The number of a
    worker is the same again. The loader draws a new base seed whenever it starts workers.
    """
    epochs = _draw(augmentation_seeds, epochs=2, persistent=persistent)
    seen = [own for epoch in epochs for worker in epoch for own in _own(worker)]
    told = f"of {len(seen)} draws in two epochs {len(set(seen))} are different"
    expect.true(len(set(seen)) == len(seen), told, "expected: all of them")


@exercise.check(isolated=True)
def can_be_repeated(augmentation_seeds):
    """The same seed in the main process, the same draws

    A loader that has no generator of its own draws its base seed from torch's, in the main process. What the
    system or a clock seeds doesn't follow from that.
    """
    with Rows() as rows:
        first, again, other = (_draw(augmentation_seeds, seed=seed) for seed in (5, 5, 6))
        expect.looked()
        owns = [[_own(worker) for epoch in run for worker in epoch] for run in (first, again, other)]
        with rows.of("the same seed twice"):
            expect.true(owns[0] == owns[1], "the draws differ", "expected: the same draws")
        with rows.of("another seed"):
            expect.true(owns[0] != owns[2], "the draws are the same", "expected: other draws")


@exercise.check(isolated=True)
def leaves_the_others(augmentation_seeds):
    """torch, random and np.random draw what the loader has seeded them for

    The loader has seeded them when `worker_init_fn` is called. Seeding one with another number, or drawing
    from it, can change what others draw from it.
    """
    (with_it,), (without,) = _draw(augmentation_seeds), _draw(lambda worker_id: None)
    with Rows() as rows:
        for place, name in enumerate(("torch", "random", "np.random")):
            with rows.of(name):
                drawn = [[item[1][place] for item in worker] for worker in with_it]
                wanted = [[item[1][place] for item in worker] for worker in without]
                expect.looked()
                told = f"the draws of `{name}` are not those of a loader without your function"
                expect.true(drawn == wanted, told)
