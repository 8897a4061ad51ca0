"""The loader draws a base seed from torch's generator before it starts workers, and gives each of them that
number plus its own. So it differs between workers and, nearly surely, epochs, and follows from
`torch.manual_seed`. Inside the worker it is `get_worker_info().seed`.

With persistent workers the function runs once, and the generator goes on from where it is. That is a new draw
in each epoch too.
"""

import numpy as np
from torch.utils.data import get_worker_info


def augmentation_seeds(worker_id: int) -> None:
    info = get_worker_info()
    info.dataset.rng = np.random.default_rng(info.seed)


# Other right answers

import random

import torch

from course_utils.exercise import Edit, Wrong


def by_initial_seed(worker_id):
    get_worker_info().dataset.rng = np.random.Generator(np.random.PCG64(torch.initial_seed()))


def by_sequence(worker_id):
    info = get_worker_info()
    sequence = np.random.SeedSequence([info.seed - worker_id, worker_id])
    info.dataset.rng = np.random.default_rng(sequence)


also_right = [by_initial_seed, by_sequence]


# Mistakes


def seeds_the_global(worker_id):
    np.random.seed(torch.initial_seed() % 2**32)


def seeds_all(worker_id):
    seed = get_worker_info().seed
    random.seed(seed + 1)
    np.random.seed(seed % 2**32)
    get_worker_info().dataset.rng = np.random.default_rng(seed)


mistakes = [
    Wrong(seeds_the_global, told_by="workers_differ"),
    Edit(
        "one for all", "default_rng(info.seed)", "default_rng(info.seed - info.id)", told_by="workers_differ"
    ),
    Edit("by number", "default_rng(info.seed)", "default_rng(worker_id)", told_by="epochs_differ"),
    Edit("by the system", "default_rng(info.seed)", "default_rng()", told_by="can_be_repeated"),
    Wrong(seeds_all, told_by="leaves_the_others"),
]
not_tried = {
    "hard numbers": "nothing is computed",
    "dtypes": "generators are seeded, no tensor is made",
    "left alone": "of what the loader has seeded it is checked, by its draws",
}
