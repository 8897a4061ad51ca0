"""The file grows under another name in the same folder, so whoever is killed meanwhile has spoilt a file that
nobody reads. On POSIX systems `os.replace` then moves the name in one step: a reader finds the old file or
the new one, whole.

A process that is killed loses nothing that the system has taken over. Against a power cut the file has to be
flushed to the disk before it is renamed: `os.fsync`.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch


def save_checkpoint(path: str | Path, step: int, **parts: Any) -> None:
    name, keys, *rest = np.random.get_state()
    checkpoint = {
        "step": step,
        "parts": {key: part.state_dict() for key, part in parts.items()},
        "rng": {
            "torch": torch.get_rng_state(),
            "numpy": (name, torch.from_numpy(keys), *rest),
            "python": random.getstate(),
        },
    }
    new = Path(f"{path}.new")
    torch.save(checkpoint, new)
    new.replace(path)


# Other right answers

import io
import os
import shutil
import tempfile

from course_utils.exercise import Edit, Wrong


def _rng():
    s = np.random.get_state()
    numpy = [s[0], torch.tensor(s[1].astype(np.int64)), s[2], s[3], s[4]]
    return {"torch": torch.random.get_rng_state(), "numpy": numpy, "python": random.getstate()}


def _through_memory(path, step, **parts):
    path, memory = Path(path), io.BytesIO()
    torch.save({"rng": _rng(), "step": step, "parts": {k: v.state_dict() for k, v in parts.items()}}, memory)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(memory.getvalue())
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)


def _in_a_folder(path, step, **parts):
    path = Path(path)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        state = {"step": step, "parts": {}, "rng": _rng()}
        for name in parts:
            state["parts"][name] = parts[name].state_dict()
        torch.save(state, Path(folder) / path.name)
        (Path(folder) / path.name).rename(path)


also_right = [_through_memory, _in_a_folder]


def _removes_first(path, step, **parts):
    save_checkpoint(f"{path}.2", step, **parts)
    Path(path).unlink(missing_ok=True)
    Path(f"{path}.2").rename(path)


def _from_another_folder(path, step, **parts):
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder) / "new.pt", step, **parts)
        shutil.move(Path(folder) / "new.pt", path)


def _keeps_the_old_one(path, step, **parts):
    if Path(path).exists():
        Path(f"{path}.{step}").write_bytes(Path(path).read_bytes())
    save_checkpoint(path, step, **parts)


mistakes = [
    Edit("writes over the old file", 'Path(f"{path}.new")', "Path(path)", told_by="killed_while_writing"),
    Wrong(_removes_first, told_by="one_step"),
    Wrong(_from_another_folder, told_by="one_step"),
    Edit(
        "a name for .new",
        'Path(f"{path}.new")',
        'Path(path).with_suffix(".new")',
        told_by="killed_while_writing",
    ),
    Edit("no leftover", "*rest),", "rest[0], 0, 0.0),", told_by="generators"),
    Edit("an array", "torch.from_numpy(keys)", "keys", told_by="content"),
    Edit("whole objects", "part.state_dict()", "part", told_by="content"),
    Wrong(_keeps_the_old_one, told_by="folder_is_clean"),
]
not_tried = {
    "hard numbers": "nothing is computed",
    "dtypes": "states are saved as they are",
    "seeds": "the file is compared with the states of the moment",
}
