"""Training runs that are saved, killed and resumed, for lesson 06.

A file holds `{"step": ..., "parts": {name: state dict}, "rng": {"torch": ..., "numpy": ..., "python": ...}}`.
"""

import errno
import json
import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

# What can make a name point to something else, or to nothing.
_NAMES_CHANGE = {"os.rename", "os.remove", "os.link", "os.symlink"}

# The first lines of an example.
RUN = """
import random, tempfile
from pathlib import Path
import numpy as np
from course_utils.exercise.kits.saved_runs import Position, begin, in_process, seed, train, write
folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "run.pt"
"""


class Position:
    """Where a sampler stands, and nothing else."""

    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def begin(number: int = 0) -> dict[str, Any]:
    """A run in small. Python seeds `random` anew after a fork, so it begins in the process that trains it."""
    seed(number)
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "sampler": Position()}


def train(
    run: dict[str, Any], steps: int, save: Callable[[int], Any] = lambda step: None, start: int = 0
) -> list[float]:
    """The losses of the steps up to `steps`; `save(step)` is called after each.

    Dropout draws from torch, the batch from NumPy, noise from Python.
    """
    losses = []
    for step in range(start, steps):
        run["sampler"].at += 1
        x = torch.tensor(np.random.rand(4, 2) + random.random(), dtype=torch.float32) + run["sampler"].at
        run["optimizer"].zero_grad()
        loss = run["model"](x).square().mean()
        loss.backward()
        run["optimizer"].step()
        run["scheduler"].step()
        losses.append(loss.item())
        save(step + 1)
    return losses


def write(path: str | Path, step: int, **parts: Any) -> None:
    """A file in the format above, written as it comes: who is killed meanwhile has half of it."""
    name, keys, *rest = np.random.get_state()
    rng = {"torch": torch.get_rng_state(), "python": random.getstate()}
    rng["numpy"] = (name, torch.from_numpy(keys), *rest)
    torch.save({"step": step, "parts": {k: p.state_dict() for k, p in parts.items()}, "rng": rng}, path)


def stir() -> dict[str, Any]:
    """Puts the three generators where no seed alone puts them, and returns where they stand: NumPy has one of
    a pair of normal numbers left over."""
    seed(7919)
    torch.rand(3), np.random.randn(3), random.random()
    return states()


def states() -> dict[str, Any]:
    """Where the three generators stand."""
    _, keys, *rest = np.random.get_state()
    numpys = [*keys.tolist(), *rest]
    return {"torch": torch.get_rng_state().tolist(), "NumPy": numpys, "Python": random.getstate()}


def moved(before: dict[str, Any]) -> list[str]:
    """The generators that no longer stand where they did."""
    return [name for name, state in states().items() if state != before[name]]


def in_process(
    job: Callable[[], Any], *, at_byte: int | None = None, at_name: int | None = None, disk: str | None = None
) -> Any:
    """What `job` returns in a process of its own, through JSON; "killed" where that was.

    `at_byte`: it is, when a file of its grows beyond so many bytes. `at_name`: just before it renames, links
    or removes something for the n-th time. `disk`: a folder that seems to be on a disk of its own, so that no
    file can be renamed into it. What `job` raises is raised as a `RuntimeError`.
    """
    ours, theirs = os.pipe()
    process = os.fork()
    if process == 0:
        said: dict[str, Any] = {}
        try:
            torch.set_num_threads(1)  # those of this process are gone
            if at_byte is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                resource.setrlimit(resource.RLIMIT_FSIZE, (at_byte, at_byte))
            if at_name is not None:
                sys.addaudithook(_kill_at(at_name))
            if disk is not None:
                sys.addaudithook(_a_disk_of_its_own(disk))
            said["value"] = job()
        except BaseException as error:
            said["error"] = f"{type(error).__name__}: {error}"
        finally:
            os.write(theirs, json.dumps(said).encode())
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        return "killed"
    said = json.loads(text)
    if "error" in said:
        raise RuntimeError(said["error"])
    return said["value"]


def _kill_at(number: int) -> Callable[[str, Any], None]:
    left = number

    def hook(event: str, _: Any) -> None:
        nonlocal left
        if event not in _NAMES_CHANGE:
            return
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def _a_disk_of_its_own(folder: str) -> Callable[[str, Any], None]:
    root = os.path.realpath(folder) + os.sep

    def hook(event: str, arguments: Any) -> None:
        if event in ("os.rename", "os.link"):
            inside = [os.path.realpath(os.fsdecode(name)).startswith(root) for name in arguments[:2]]
            if inside[0] != inside[1]:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), *arguments[:1], None, *arguments[1:2])

    return hook
