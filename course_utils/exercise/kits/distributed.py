"""What exercises on files of a group look at: who writes and who reads, in an order that is the same on every
run, what stands in a folder at every moment, and a job of training that is lost and started again."""

import contextlib
import io
import itertools
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch import nn

from course_utils import torch_private
from course_utils.exercise.mismatch import Mismatch
from course_utils.measure.traffic import CollectiveWatch

# Seconds after which a rank that is held goes on: longer than it takes to come anywhere.
PATIENCE = 5.0
_STORAGES = (torch.UntypedStorage, torch.storage.TypedStorage)
_numbers = itertools.count()


class Files(CollectiveWatch):
    """Inside, all ranks work in one folder, and what this rank writes with `torch.save` and reads with
    `torch.load` is counted. All ranks enter it equally often.

    Who does not wait for another rank comes too early, on every machine. Rank 0 is held before it writes,
    until no other one gets any further alone: each waits for it, has read a file or failed to, or has left.
    Or, with `slow_readers`, the others are held before they read, until rank 0 waits for them or has left.
    With `slow_threads` a save of another thread is held until `saving_may_go_on` is set, or for two seconds:
    longer than it takes to go on without it. `saved` are the saves that came to their end.
    """

    def __init__(
        self, folder: Path | None = None, *, slow_readers: bool = False, slow_threads: bool = False
    ) -> None:
        super().__init__()
        self.saves = self.loads = self.saved = 0
        self.saving_may_go_on, self._thread = threading.Event(), threading.get_ident()
        if not slow_threads:
            self.saving_may_go_on.set()
        self._slow_readers, self._waits, self._rank = slow_readers, 0, dist.get_rank()
        plain = torch_private.default_store()
        self._store = dist.PrefixStore(f"files {next(_numbers)}", plain)
        self._folder = contextlib.chdir(common_folder() if folder is None else folder)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        with super().held(), self._folder:
            self._save, self._load = torch.save, torch.load
            torch.save, torch.load = self._saving, self._loading
            try:
                yield
            finally:
                torch.save, torch.load = self._save, self._load
                self._tell("left")

    def waits(self, number: int | None, wait: Callable[[], Any]) -> Any:
        self._waits += 1
        self._tell("waits")
        return wait()

    def _saving(self, thing: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(thing, _STORAGES):  # so tensors are pickled
            if self._rank == 0 and not self._slow_readers:
                self._until_others(left=0, read=self.saves)
            # What another rank puts into memory, to send it, is no file.
            self.saves += self._rank == 0 or not isinstance(f, io.BytesIO)
            if threading.get_ident() != self._thread:
                self.saving_may_go_on.wait(2)
        self._save(thing, f, *args, **kwargs)
        self.saved += not isinstance(thing, _STORAGES)

    def _loading(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, io.BytesIO) and kwargs.get("weights_only") is False:  # so they are unpickled
            return self._load(f, *args, **kwargs)
        self.loads += 1
        if self._rank > 0 and self._slow_readers:
            self._until_others(left=0)
        try:
            return self._load(f, *args, **kwargs)
        finally:
            self._tell("read")

    def _tell(self, what: str) -> None:
        self._store.add(f"{self._rank} {what}", 1)

    def _until_others(self, **told: int) -> None:
        """Until each other rank has told one of these more often than that, or waits for something that this
        rank has not come to."""
        others, end = {*range(dist.get_world_size())} - {self._rank}, time.monotonic() + PATIENCE
        told["waits"] = self._waits
        while others and time.monotonic() < end:
            time.sleep(0.002)
            for rank in list(others):
                if any(self._store.add(f"{rank} {what}", 0) > count for what, count in told.items()):
                    others.discard(rank)


def common_folder() -> Path:
    """A new folder of rank 0's, on every rank; it goes with the process of rank 0."""
    found = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    return Path(found[0])


@contextlib.contextmanager
def at_every_change(folder: Path, look: Callable[[], None]) -> Iterator[None]:
    """Calls `look` after each call of a function in C in which a file of the folder changed."""
    last = _files_of(folder)

    def returned(frame: Any, event: str, function: Any) -> None:
        nonlocal last
        if event == "c_return" and (now := _files_of(folder)) != last:
            last = now
            look()

    before = sys.getprofile()
    sys.setprofile(returned)
    try:
        yield
    finally:
        sys.setprofile(before)


def _files_of(folder: Path) -> list[tuple[Any, ...]]:
    about = [(path.name, path.stat()) for path in sorted(folder.iterdir())]
    return [(name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in about]


# --- a job that is lost -------------------------------------------------------------------------------------

# What a rank has, by what it is part of and by name.
State = dict[str, dict[str, torch.Tensor]]
_JOB, _LOST = "job", "lost"


class _Lost(BaseException):
    """A worker that is killed runs no line more."""


class Job:
    """A job of training on all ranks of this group, for `survive_a_lost_worker`.

        job = Job(lost_in=3)
        job.start(survive_a_lost_worker, steps=5)  # ends in step(3)
        job.start(survive_a_lost_worker, steps=5)

    `ran` has the steps of the latest start, `unsaved` those that were followed by another before a save had
    come to its end. `had[i]` is what this rank had when `step(i)` began for the first time, `has[i]` in the
    latest start; where `i` is the number of steps: in the end.
    """

    def __init__(self, lost_in: int | None = None, folder: Path | None = None) -> None:
        self.lost_in, self.ran, self.unsaved = lost_in, [], []
        self.had: dict[int, State] = {}
        self.has: dict[int, State] = {}
        self.random_state_of_rank_0: dict[int, torch.Tensor] = {}
        # How many steps were done, and which files there were, at each change in the folder.
        self.moments: list[tuple[int, str]] = []
        self._folder = common_folder() if folder is None else folder
        (self._folder / _JOB).mkdir(exist_ok=True)

    def start(
        self,
        answer: Callable[..., None],
        steps: int,
        *,
        keep_moments: bool = False,
        slow_threads: bool = False,
    ) -> int:
        """Runs the answer as a new start does; how often this rank called `torch.save`."""
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        torch.manual_seed(10 + dist.get_rank())
        self.ran, self.unsaved, self.has, self.steps = [], [], {}, steps
        with contextlib.ExitStack() as stack:
            files = self._files = stack.enter_context(Files(self._folder, slow_threads=slow_threads))
            if keep_moments:
                stack.enter_context(at_every_change(self._folder / _JOB, self._keep))
            try:
                answer(Path(_JOB), self.model, self.optimizer, self.step, steps)
                self._together(steps)
            except _Lost:
                if dist.get_rank() == 0:
                    shutil.rmtree(_JOB)
                    Path(_LOST).rename(_JOB)
                dist.barrier()
        return files.saves

    def start_from(self, moment: int, answer: Callable[..., None], steps: int) -> None:
        """A new start with the folder as it was at this moment."""
        shutil.rmtree(self._folder / _JOB)
        shutil.copytree(self._folder / f"moment {moment}", self._folder / _JOB)
        self.start(answer, steps)

    def step(self, i: int) -> None:
        """One step of all ranks, which average their gradients. Each has its own numbers and statistics."""
        if self.ran and not self._files.saved:
            self.unsaved.append(self.ran[-1])
        self._files.saving_may_go_on.set()
        self._together(int(i))
        if i == self.lost_in:
            self.lose()
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 3) + dist.get_rank()).pow(3).mean().backward()
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        self.optimizer.step()
        self.ran.append(i)
        self._files.saved = 0

    def lose(self) -> None:
        """Ends the call of the answer. Nothing that is written from here on will have been."""
        self.lost_in = None
        if dist.get_rank() == 0:
            shutil.copytree(_JOB, _LOST)
        raise _Lost

    def _together(self, i: int) -> None:
        """All ranks are about to run the same step."""
        everyones: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, (i, torch.get_rng_state()))
        numbers = ["none" if number == self.steps else number for number, _ in everyones]
        if len(set(numbers)) > 1:
            raise Mismatch(f"the step that each rank runs next is {numbers}", "expected: the same on all")
        memory = self.optimizer.state_dict()["state"]
        self.has[i] = {
            "the weights": {f"`{name}`": p.detach().clone() for name, p in self.model.named_parameters()},
            "the buffers": {f"`{name}`": b.clone() for name, b in self.model.named_buffers()},
            "the optimizer": {
                f"the optimizer's `{key}` of parameter {number}": value.clone()
                for number, entry in memory.items()
                for key, value in entry.items()
            },
            "the random state": {"the random state": torch.get_rng_state()},
        }
        self.had.setdefault(i, self.has[i])
        self.random_state_of_rank_0.setdefault(i, everyones[0][1])

    def _keep(self) -> None:
        job = self._folder / _JOB
        shutil.copytree(job, self._folder / f"moment {len(self.moments)}")
        files = ", ".join(f"`{path.name}` ({path.stat().st_size:,} bytes)" for path in sorted(job.iterdir()))
        self.moments.append((len(self.ran), files or "no file"))


class _JobOfAgent(Job):
    """In a worker of torchrun: rank 1 is killed."""

    def lose(self) -> None:
        torch.save(self.had[max(self.had)], self._folder / f"had {dist.get_rank()}")
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()  # until the agent ends this worker, too


def killed_in_torchrun(answer: Callable[..., None], steps: int, lost_in: int) -> list[dict[str, Any]]:
    """Runs the answer in two workers of an agent as `torchrun` starts it. Rank 1 is killed in a step, and the
    agent starts both anew. What each rank has to say of its second start: `ran`, and what it `had` and `has`
    when its first step begins; or `raised`, as lines; nothing where nothing came.

    The workers are forks of this process, which has imported what they need. Where autograd has started a
    thread, for a GPU or for backwards inside one another, backward raises in every later fork: then they are
    forks of a new process that has run nothing.
    """
    # Here: most processes that use this kit start no job, and this is a long import.
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    folder = Path(tempfile.mkdtemp())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="lost",
        rdzv_backend="static",
        rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_configs={"rank": 0, "timeout": 60},
        local_addr="127.0.0.1",
        max_restarts=1,
        monitor_interval=0.02,
        start_method="fork" if _forks_run_backward() else "forkserver",
    )
    # Imported once, not in every worker: the first optimizer asks for the compiler.
    multiprocessing.set_forkserver_preload([torch_private.DYNAMO, __name__])
    silent = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        elastic_launch(config, _worker)(cloudpickle.dumps(answer), folder, steps, lost_in)
    except ChildFailedError:
        pass  # what became of the workers they have written down themselves
    finally:
        logging.disable(silent)
    notes = [folder / f"note {rank}" for rank in range(2)]
    return [torch.load(note) if note.exists() else {} for note in notes]


def _forks_run_backward() -> bool:
    """Whether a fork of this process can."""
    if pid := os.fork():
        return os.waitpid(pid, 0)[1] == 0
    try:
        torch.ones(1, requires_grad=True).backward()
    except BaseException:
        os._exit(1)
    os._exit(0)


def _worker(answer: bytes, folder: Path, steps: int, lost_in: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork has the agent's own handler
    logging.disable(logging.CRITICAL)
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    agent = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    # The agent's store lives through a restart, with the addresses of the processes that are gone.
    store = dist.PrefixStore(f"attempt {attempt}", agent)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    job = _JobOfAgent(None if attempt else lost_in, folder)
    note: dict[str, Any] = {}
    try:
        saves = job.start(cloudpickle.loads(answer), steps)
        first = job.ran[0] if job.ran else steps
        had = torch.load(folder / f"had {rank}")
        note = {"ran": job.ran, "saves": saves, "had": had, "has": job.has[first]}
    except Mismatch as error:
        note = {"raised": error.lines}
    except BaseException as error:
        note = {"raised": [f"`{type(error).__name__}: {error}`"]}
    if attempt:
        unfinished = folder / f"unfinished {rank}"  # the agent may end this worker while it writes
        torch.save(note, unfinished)
        unfinished.replace(folder / f"note {rank}")
    if "raised" in note:
        os._exit(1)
