"""Every `get` has its `set`. The generators come last, because whatever is loaded before them may draw.
NumPy takes the tensor in place of its array.

The step that was saved is the number of steps done, and so the index of the next one.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch


def resume(path: str | Path, **parts: Any) -> int:
    if not Path(path).exists():
        return 0
    saved = torch.load(path)
    for name, part in parts.items():
        part.load_state_dict(saved["parts"][name])
    np.random.set_state(saved["rng"]["numpy"])
    torch.set_rng_state(saved["rng"]["torch"])
    random.setstate(saved["rng"]["python"])
    return saved["step"]


# Other right answers

from course_utils.exercise import Edit, Wrong


def _tries(path, **parts):
    try:
        saved = torch.load(str(path), map_location="cpu", weights_only=True)
    except FileNotFoundError:
        return 0
    states = {name: saved["parts"][name] for name in parts}
    for name in states:
        parts[name].load_state_dict(states[name])
    rng = saved["rng"]
    numpy = list(rng["numpy"])
    numpy[1] = np.array(numpy[1].tolist(), dtype=np.uint32)
    for put, state in ((np.random.set_state, tuple(numpy)), (random.setstate, rng["python"])):
        put(state)
    torch.random.set_rng_state(rng["torch"])
    return int(saved["step"])


_PUT_BACK = {"python": random.setstate, "torch": torch.default_generator.set_state}


def _generators_apart(path, **parts):
    if not Path(path).is_file():
        return 0
    with Path(path).open("rb") as file:
        saved = torch.load(file)
    [part.load_state_dict(saved["parts"][name]) for name, part in parts.items()]
    for name, put_back in _PUT_BACK.items():
        put_back(saved["rng"][name])
    kind, keys, pos, has_gauss, gauss = saved["rng"]["numpy"]
    np.random.set_state((kind, np.asarray(keys), pos, has_gauss, gauss))
    return saved["step"]


also_right = [_tries, _generators_apart]


def _seeds_again(path, **parts):
    step = resume(path, **parts)
    torch.manual_seed(step)
    return step


mistakes = [
    Wrong(_seeds_again, told_by="no_file"),
    Edit("no NumPy", 'np.random.set_state(saved["rng"]["numpy"])', "pass", told_by="generators"),
    Edit("no Python", 'random.setstate(saved["rng"]["python"])', "pass", told_by="generators"),
    Edit("no leftover", '(saved["rng"]["numpy"])', '(saved["rng"]["numpy"][:3])', told_by="generators"),
    Edit("one step further", 'return saved["step"]', 'return saved["step"] + 1', told_by="parts"),
    Edit(
        "other parameters than the optimizer's",
        'load_state_dict(saved["parts"][name])',
        'load_state_dict(saved["parts"][name], **{"assign": True} if name == "model" else {})',
        told_by="parts",
    ),
    Edit("runs code", "torch.load(path)", "torch.load(path, weights_only=False)", told_by="nothing_runs"),
    Edit(
        "leaves out what is missing",
        'saved["parts"][name]',
        'saved["parts"].get(name, part.state_dict())',
        told_by="parts",
    ),
]
not_tried = {
    "hard numbers": "nothing is computed",
    "dtypes": "states are loaded as they are",
}
