"""Three global generators, three seeds. The loader gets a fourth generator, because dropout on the CPU draws
from torch's own as well: one dropout more, and the order of the data would be another one.

For these three a worker needs nothing from you. The loader draws a base seed from its generator and seeds
torch, NumPy and `random` in each worker from it. The flag has a price: some operators raise, and other
kernels may be slower.
"""

import random

import numpy as np
import torch


def set_seed(seed: int, deterministic: bool = False) -> torch.Generator:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    return torch.Generator().manual_seed(seed)


# Other right answers

import os

from course_utils.exercise import Edit, Wrong


def _one_by_one(seed, deterministic=False):
    for plant in (random.seed, np.random.seed, torch.random.manual_seed):
        plant(seed)
    generator = torch.Generator(device="cpu")
    generator.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True, warn_only=False)
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
    return generator


def _numpy_state(seed, deterministic=False):
    np.random.set_state(np.random.RandomState(seed).get_state())
    random.setstate(random.Random(seed).getstate())
    torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.set_deterministic_debug_mode("error")
        torch.backends.cudnn.benchmark = False
    loader = torch.Generator()
    loader.manual_seed(seed)
    return loader


also_right = [_one_by_one, _numpy_state]


def _hash_seed(seed, deterministic=False):
    os.environ["PYTHONHASHSEED"] = str(seed)
    np.random.default_rng(seed)
    return torch.manual_seed(seed)


mistakes = [
    Wrong(_hash_seed, told_by="three_generators"),
    Edit("no Python", "random.seed(seed)\n    np", "np", told_by="three_generators"),
    Edit(
        "the default generator",
        "torch.Generator().manual_seed(seed)",
        "torch.default_generator",
        told_by="a_generator_of_its_own",
    ),
    Edit(
        "not seeded",
        "torch.Generator().manual_seed(seed)",
        "torch.Generator()",
        told_by="a_generator_of_its_own",
    ),
    Edit("cut", "np.random.seed(seed)", "np.random.seed(seed % 2**31)", told_by="three_generators"),
    Edit(
        "a salted hash",
        "random.seed(seed)\n    np",
        "random.seed(hash(str(seed)))\n    np",
        told_by="three_generators",
    ),
    Edit("only warns", "algorithms(True)", "algorithms(True, warn_only=True)", told_by="settings"),
    Edit(
        "switches off",
        "    if deterministic:\n        torch.use_deterministic_algorithms(True)",
        "    torch.use_deterministic_algorithms(deterministic)\n    if deterministic:",
        told_by="settings",
    ),
]
not_tried = {
    "hard numbers": "nothing is computed",
    "left alone": "global generators and settings are to be set",
}
