"""A job that survives the loss of a worker

When a worker of a job dies, `torchrun --max-restarts` ends the others and starts all of them anew, with the
script from its first line. What they held in memory is gone; files stay. Write what every rank runs, so that
the job ends as if nothing had happened.

On the first start call `step(0)`, `step(1)`, …, `step(steps - 1)`. `step(i)` trains `model` on batch `i`. All
ranks call it together, it averages their gradients, and it may draw from torch's random generator, whose
state is another one on each rank. After each step keep in `folder` what it takes to go on from there. **Rank
0 alone writes**, with `torch.save` into a file, and has written before it calls `step` again. A worker may be
lost at any moment, also while it writes.

On every other start there may be a checkpoint in `folder`. Go on with the first step that was not kept, each
rank with what it had then:

- the weights of `model` **and its buffers**, which a step may change as well;
- the state of the optimizer;
- the random state of this rank.

A job that had ended runs no step, and holds what it had in the end.

All ranks see the same `folder`, which is theirs alone and is there already. A process group exists, and the
number of ranks stays the same. `model` and `optimizer` come as the script made them, the same on every rank,
and are filled, not replaced.

Of `steps = 5` and a worker that is lost in `step(3)`, the next start runs `step(3)` and `step(4)`"""

import contextlib
import io
import json
import logging
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_utils import evidence, expect
from course_utils.exercise import Exercise
from course_utils.rank_process import LOOPBACK

exercise = Exercise(
    minutes=30,
    hints=[
        "List what `step` reads and changes: weights, buffers, what the optimizer remembers, the random "
        "state of this rank, the number of the step. What of it is not in the file is as new after a start.",
        "A file that is being written is half a file. Write it under another name. `os.replace` gives it the "
        "name that you look for, in one move: whoever looks finds the old file or the new one.",
        "Before rank 0 writes, the random states of all ranks have to come to it (`dist.gather_object`). "
        "When a rank starts, it looks for the file, loads it itself and takes the entry that is its own. "
        "How many steps are done after `step(i)`?",
    ],
)


@exercise.starter
def survive_a_lost_worker(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[int], None], steps: int
) -> None:
    """Runs the steps that are still to do, and keeps each of them in the folder"""
    raise NotImplementedError


# --- the job ----------------------------------------------------------------------------------------------


class _Model(nn.Module):
    """A line with three inputs, and the average of its weights over the steps."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 1)
        self.register_buffer("average", torch.zeros(1, 3))


# In place of the number of a step: there is none.
_RETURNED = -1


class _Script:
    """What a rank of the job does around the answer. `adam`: the optimizer remembers something. `draws`: the
    steps need random numbers."""

    def __init__(self, answer, rank=0, world=1, adam=False, draws=False):
        self.answer, self.rank, self.world, self.adam, self.draws = answer, rank, world, adam, draws
        self.saves = 0

    def undisturbed(self, steps):
        """The state of the model after so many steps, computed here for all ranks."""
        model, optimizer = self._made()
        generators = [torch.Generator().manual_seed(self._seed(rank)) for rank in range(self.world)]
        for i in range(steps):
            optimizer.zero_grad()
            for rank, generator in enumerate(generators):
                (self._loss(model, i, rank, generator) / self.world).backward()
            self._update(model, optimizer)
        return model.state_dict()

    def start(self, folder, steps, first, example, watch=lambda moment, i: None):
        """The answer, as a new start runs it. `first` is the step that it must run first; `watch` is told of
        each step and, on rank 0, of every file that is half written or about to be renamed."""
        model, optimizer = self._made()
        torch.manual_seed(self._seed(self.rank))
        done = first

        def step(i):
            nonlocal done
            self.same_steps(self._gathered(int(i)), done if done < steps else _RETURNED)
            watch("step", i)
            optimizer.zero_grad()
            self._loss(model, i, self.rank).backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= self.world
            self._update(model, optimizer)
            done += 1

        with expect.situation(*example), self._watched_files(lambda moment: watch(moment, done - 1)):
            self.answer(folder, model, optimizer, step, steps)
            # Another rank may call `step` now; and none starts again before all have ended.
            self.same_steps(self._gathered(_RETURNED), _RETURNED)
            expect.equal(done, steps, what="the number of steps that are done at the end")
        return model.state_dict()

    def same_steps(self, numbers, wanted):
        told = ["none" if number == _RETURNED else number for number in numbers]
        wanted = "none" if wanted == _RETURNED else wanted
        if self.world == 1:
            expect.equal(told[0], wanted, what="the step that is run next")
        else:
            expect.equal(told, [wanted] * self.world, what="the step that each rank runs next")

    def _made(self):
        torch.manual_seed(0)
        model = _Model()
        if self.adam:
            return model, torch.optim.Adam(model.parameters(), lr=0.1)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def _seed(self, rank):
        return 10 + rank

    def _loss(self, model, i, rank, generator=None):
        x = torch.sin(torch.arange(12.0).view(4, 3) * (i + 1) + rank)
        if self.draws:
            x = x + torch.randn(4, 3, generator=generator)
        return (model.line(x) - x.sum(1, keepdim=True) - 1).square().mean()

    def _update(self, model, optimizer):
        optimizer.step()
        model.average.lerp_(model.line.weight.detach(), 0.5)

    def _gathered(self, number):
        numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(numbers, torch.tensor([number]))
        return [int(n) for n in numbers]

    @contextlib.contextmanager
    def _watched_files(self, watch) -> Iterator[None]:
        """`torch.save` writes in two halves; what is half written or about to be renamed is told of. On other
        ranks than 0 no file is touched, and calls are counted."""
        save, moves = torch.save, {name: getattr(os, name) for name in ("replace", "rename")}

        def in_two_halves(thing, f, *args, **kwargs):
            whole = io.BytesIO()
            save(thing, whole, *args, **kwargs)
            data = whole.getvalue()
            if isinstance(f, io.BytesIO):  # `gather_object` does it, too
                f.write(data)
                return
            self.saves += 1
            if self.rank:
                return
            with contextlib.nullcontext(f) if hasattr(f, "write") else Path(f).open("wb") as file:
                file.write(data[: len(data) // 2])
                file.flush()
                watch("half of a file")
                file.write(data[len(data) // 2 :])

        def move(name):
            def watched(*args, **kwargs):
                if not self.rank:
                    watch("a rename")
                    moves[name](*args, **kwargs)

            return watched

        torch.save = in_two_halves
        for name in moves:
            setattr(os, name, move(name))
        try:
            yield
        finally:
            torch.save = save
            for name, function in moves.items():
                setattr(os, name, function)


def _call(steps, comment=""):
    return f"survive_a_lost_worker(folder, model, optimizer, step, {steps}){comment and f'  # {comment}'}"


def _common(path):
    """Rank 0's folder, on every rank."""
    found = [str(path)]
    dist.broadcast_object_list(found)
    return Path(found[0])


_MOMENTS = {
    "step": "lost in step {}",
    "half of a file": "lost with half of a file, after step {}",
    "a rename": "lost before a rename, after step {}",
}


def _first_run(script, path, steps, moments):
    """Runs the whole job once. Returns {moment: (the step to go on with, the folder as it was then)}: what a
    worker leaves that is lost at that moment. The job itself goes on."""
    (folder := path / "job").mkdir(exist_ok=True)
    found: dict[str, tuple[int, Path]] = {}

    def watch(moment, i):
        # In `step(i)` there are i steps to go on from; while step i is being kept, i as well.
        if script.rank == 0 and (moment, i) in moments:
            place = path / f"copy {len(found)}"
            shutil.copytree(folder, place)
            name = _MOMENTS[moment].format(i)
            found[f"{name}, again" if name in found else name] = i, place

    script.start(folder, steps, 0, [_call(steps)], watch)
    return found


def _expect_survives(script, path, steps, moments):
    """Whatever moment a worker is lost at, the next start goes on and ends with the undisturbed weights."""
    path = _common(path)
    told = [list(_first_run(script, path, steps, moments).items())]
    dist.broadcast_object_list(told)
    wanted = script.undisturbed(steps)
    for name, (first, folder) in told[0]:
        example = [_call(steps, name), _call(steps, "started again")]
        state = script.start(folder, steps, first, example)
        with expect.situation(*example):
            _expect_state(state, wanted)
    return told[0]


def _expect_state(state, wanted):
    for name, value in wanted.items():
        expect.equal(state[name], value, what=f"`{name}` in the end", rtol=1e-4, atol=1e-5)


# --- the checks -------------------------------------------------------------------------------------------


@exercise.check(ranks=2)
def goes_on(survive_a_lost_worker, rank, world_size, tmp_path):
    """Lost in `step(3)`, all ranks go on with `step(3)`"""
    script = _Script(survive_a_lost_worker, rank, world_size)
    _expect_survives(script, tmp_path, 5, [("step", 1), ("step", 3)])


@exercise.check(ranks=1)
def half_a_file(survive_a_lost_worker, tmp_path):
    """Lost while a file is being written or renamed"""
    script = _Script(survive_a_lost_worker, adam=True)
    moments = [(moment, i) for i in (0, 2) for moment in ("half of a file", "a rename")]
    lost = _expect_survives(script, tmp_path, 4, moments)
    with expect.situation(_call(4)):
        expect.true(
            bool(lost), "no call of `torch.save` into a file was seen", "expected: one after each step"
        )


@exercise.check(ranks=2)
def optimizer_state(survive_a_lost_worker, rank, world_size, tmp_path):
    """The optimizer goes on with what it remembers"""
    script = _Script(survive_a_lost_worker, rank, world_size, adam=True)
    _expect_survives(script, tmp_path, 4, [("step", 2)])


@exercise.check(ranks=2)
def random_states(survive_a_lost_worker, rank, world_size, tmp_path):
    """Every rank goes on with its own random numbers"""
    script = _Script(survive_a_lost_worker, rank, world_size, draws=True)
    _expect_survives(script, tmp_path, 4, [("step", 2)])


@exercise.check(ranks=1)
def more_than_ten(survive_a_lost_worker, tmp_path):
    """More than ten steps, and lost twice"""
    script = _Script(survive_a_lost_worker)
    lost = _expect_survives(script, tmp_path, 12, [("step", 9), ("step", 11)])
    # The first copy was run to its end since then; a start of its own is asked for more steps.
    folder = lost[0][1][1]
    example = [_call(12, "lost in step 9"), _call(12, "started again"), _call(14, "and for two steps more")]
    state = script.start(folder, 14, 12, example)
    with expect.situation(*example):
        _expect_state(state, script.undisturbed(14))


@exercise.check(ranks=2)
def rank_0_writes(survive_a_lost_worker, rank, world_size, tmp_path):
    """Rank 0 alone writes"""
    script = _Script(survive_a_lost_worker, rank, world_size)
    script.start(_common(tmp_path), 3, 0, [_call(3)])
    with expect.situation(_call(3)):
        if rank == 0:
            expect.true(
                script.saves >= 3, f"{script.saves} calls of `torch.save`", "expected: one for each step"
            )
        else:
            expect.equal(script.saves, 0, what="the number of calls of `torch.save`")


@exercise.check(ranks=2)
def after_the_end(survive_a_lost_worker, rank, world_size, tmp_path):
    """A job that had ended runs no step and has its weights"""
    script = _Script(survive_a_lost_worker, rank, world_size)
    folder = _common(tmp_path)
    script.start(folder, 3, 0, [_call(3)])
    example = [_call(3, "ends"), _call(3, "started again")]
    state = script.start(folder, 3, 3, example)
    with expect.situation(*example):
        _expect_state(state, script.undisturbed(3))


# --- a job of torchrun's -----------------------------------------------------------------------------------

_STEPS = 5
# (attempt, rank, moment, step): who is killed when. Each next attempt begins with the step in question.
_KILLED = [(0, 1, "step", 2), (1, 0, "half of a file", 3)]


@exercise.check(isolated=True, deadline=40)
def real_job(survive_a_lost_worker, tmp_path):
    """Two workers of `torchrun`, one killed in a step, then the other while it writes"""
    _alone(survive_a_lost_worker, tmp_path)
    for name in ("job", "told"):
        (tmp_path / name).mkdir()
    _torchrun(_worker, survive_a_lost_worker, tmp_path)
    with expect.situation(f"torchrun --nproc-per-node 2 --max-restarts 2  # {_call(_STEPS)}"):
        _expect_job(survive_a_lost_worker, tmp_path / "told")


def _alone(answer, path):
    """The same in this process, before a job is started for it: most that goes wrong goes wrong here."""
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK  # the workers of the job inherit it
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        (path / "alone").mkdir()
        script = _Script(answer, adam=True, draws=True)
        _expect_survives(script, path / "alone", _STEPS, [(moment, i) for _, _, moment, i in _KILLED])
    finally:
        dist.destroy_process_group()


def _torchrun(function: Callable[..., Any], *args: Any) -> None:
    """Runs the function as torchrun runs a script: an agent here starts two workers, watches them, and starts
    both anew when one is lost, twice at most."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="lost",
        rdzv_backend="static",
        rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_configs={"rank": 0, "timeout": 30},
        local_addr="127.0.0.1",
        max_restarts=len(_KILLED),
        monitor_interval=0.02,
        start_method="fork",  # of this process, which has torch: nothing is imported again
    )
    silent = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        elastic_launch(config, function)(*args)
    except ChildFailedError:
        pass  # what became of the workers they have written down themselves
    finally:
        logging.disable(silent)


def _worker(answer, path):
    """One worker of the job. Writes down what is asked for later; where that is an error, it ends with 1."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the agent's own handler was inherited
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    told = path / "told"
    agent = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    # The agent's store lives through a restart, with the addresses of the processes that are gone.
    store = dist.PrefixStore(f"attempt {attempt}", agent)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    script = _Script(answer, rank, 2, adam=True, draws=True)
    note: dict[str, Any] = {"rank": rank, "attempt": attempt}

    def watch(moment, i):
        if (attempt, rank, moment, i) in _KILLED:
            (told / f"killed {attempt}").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def same_steps(numbers, wanted):
        if numbers != [wanted] * 2:
            note.update(steps=numbers, wanted=wanted)
            raise _Told

    script.same_steps = same_steps
    first = [0, *(i for *_, i in _KILLED)][attempt]
    try:
        state = script.start(path / "job", _STEPS, first, [], watch)
        torch.save(state, told / f"state {rank}")
    except _Told:
        pass
    except BaseException as error:
        note["raised"] = [type(error).__name__, str(error)]
    note["saves"] = script.saves
    unfinished = told / f"unfinished {attempt} {rank}"  # the agent may end this worker while it writes
    unfinished.write_text(json.dumps(note))
    unfinished.replace(told / f"note {attempt} {rank}")
    if "steps" in note or "raised" in note:
        os._exit(1)


class _Told(Exception):
    """The ranks run different steps, or the wrong one."""


def _expect_job(answer, told):
    notes = [json.loads(note.read_text()) for note in sorted(told.glob("note *"))]
    # What a rank meets when the other was killed is no fault of the answer.
    for note in notes:
        if (told / f"killed {note['attempt']}").exists():
            continue
        if "steps" in note:
            _Script(answer, world=2).same_steps(note["steps"], note["wanted"])
        if "raised" in note and "closed by peer" not in note["raised"][1]:
            evidence.record("raised in the job", [note["rank"], note["attempt"], note["raised"][0]])
            raise expect.Mismatch(
                f"`{': '.join(note['raised'])[:200]}`",
                f"raised on rank {note['rank']} in attempt {note['attempt']}",
            )
        if note["rank"]:
            expect.true(not note["saves"], "rank 1 called `torch.save`, too", "expected: rank 0 alone writes")
    wanted = _Script(answer, 0, 2, adam=True, draws=True).undisturbed(_STEPS)
    for rank in range(2):
        ended = (told / f"state {rank}").exists()
        expect.true(ended, f"rank {rank} did not end", "expected: all ranks end, in the third attempt")
        _expect_state(torch.load(told / f"state {rank}"), wanted)


# --- the mistakes -----------------------------------------------------------------------------------------


def _random_states():
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, torch.get_rng_state())
    return states


def _content(model, optimizer, done):
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return {**states, "random": _random_states(), "done": done}


def _keep(folder, content, name="checkpoint.pt"):
    if dist.get_rank() == 0:
        torch.save(content, folder / "unfinished")
        (folder / "unfinished").replace(folder / name)


def _kept(folder, name="checkpoint.pt"):
    return torch.load(folder / name) if (folder / name).exists() else None


def _fill(kept, model, optimizer):
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    torch.set_rng_state(kept["random"][dist.get_rank()])
    return kept["done"]


def _restored(folder, model, optimizer):
    kept = _kept(folder)
    return _fill(kept, model, optimizer) if kept else 0


@exercise.mistake
def starts_anew(folder, model, optimizer, step, steps):
    """A started job begins at step 0. You keep checkpoints, and nobody loads them: look for one before the
    first step."""
    for i in range(steps):
        step(i)
        _keep(folder, _content(model, optimizer, i + 1))


@starts_anew.variant
def never_looks(folder, model, optimizer, step, steps):
    number = 0
    while number != steps:
        step(number)
        number += 1
        if dist.get_rank() == 0:
            torch.save((model.state_dict(), optimizer.state_dict(), number), f"{folder}/new")
            Path(f"{folder}/new").rename(folder / "newest")


@exercise.mistake
def forgets_the_random_state(folder, model, optimizer, step, steps):
    """The random generator starts as new, so the steps after a start draw the numbers of the first steps
    again. Its state (`torch.get_rng_state`) belongs into the checkpoint, for every rank its own."""
    kept = _kept(folder)
    now = [torch.get_rng_state()] * dist.get_world_size()
    for i in range(_fill({**kept, "random": now}, model, optimizer) if kept else 0, steps):
        step(i)
        _keep(folder, _content(model, optimizer, i + 1))


@forgets_the_random_state.variant
def weights_and_optimizer(folder, model, optimizer, step, steps):
    path, done = folder / "weights and optimizer", 0
    if path.exists():
        done, weights, memory = torch.load(path)
        model.load_state_dict(weights)
        optimizer.load_state_dict(memory)
    for i in range(done, steps):
        step(i)
        if dist.get_rank() == 0:
            torch.save([i + 1, model.state_dict(), optimizer.state_dict()], f"{path}~")
            Path(f"{path}~").replace(path)


@exercise.mistake
def writes_in_place(folder, model, optimizer, step, steps):
    """You write over the only checkpoint. A worker that is lost while it writes leaves half a file under the
    name that the next start loads. Write under another name, and rename with `os.replace`."""
    for i in range(_restored(folder, model, optimizer), steps):
        step(i)
        content = _content(model, optimizer, i + 1)
        if dist.get_rank() == 0:
            torch.save(content, folder / "checkpoint.pt")


@writes_in_place.variant
def writes_the_newest_in_place(folder, model, optimizer, step, steps):
    found = sorted(folder.glob("*.pt"))
    for i in range(_fill(torch.load(found[-1]), model, optimizer) if found else 0, steps):
        step(i)
        content = _content(model, optimizer, i + 1)
        if dist.get_rank() == 0:
            torch.save(content, folder / f"{i:06}.pt")


@writes_in_place.form
def goes_on_without(folder, model, optimizer, step, steps):
    try:
        done = _restored(folder, model, optimizer)
    except Exception:
        done = 0
    for i in range(done, steps):
        step(i)
        content = _content(model, optimizer, i + 1)
        if dist.get_rank() == 0:
            torch.save(content, folder / "checkpoint.pt")


@exercise.mistake
def without_the_optimizer(folder, model, optimizer, step, steps):
    """The optimizer starts as new. What it remembers of earlier gradients (momentum, the averages of Adam)
    decides the next update as the weights do: `optimizer.state_dict()` belongs into the checkpoint."""
    kept = _kept(folder)
    done = _fill({**kept, "optimizer": optimizer.state_dict()}, model, optimizer) if kept else 0
    for i in range(done, steps):
        step(i)
        _keep(folder, _content(model, optimizer, i + 1))


@without_the_optimizer.variant
def keeps_the_weights(folder, model, optimizer, step, steps):
    file, number = folder / "weights", 0
    if file.is_file():
        weights, number, random = torch.load(file)
        model.load_state_dict(weights)
        torch.set_rng_state(random[dist.get_rank()])
    while number < steps:
        step(number)
        number += 1
        random = _random_states()
        if dist.get_rank() == 0:
            torch.save([model.state_dict(), number, random], folder / "half")
            (folder / "half").replace(file)


@exercise.mistake
def two_files(folder, model, optimizer, step, steps):
    """You keep what belongs together in two files. Each is written whole, and a worker that is lost between
    them leaves files of two different steps. One file has one step."""
    done = 0
    if (folder / "optimizer.pt").exists():
        done = _fill({**_kept(folder, "model.pt"), **_kept(folder, "optimizer.pt")}, model, optimizer)
    for i in range(done, steps):
        step(i)
        content = _content(model, optimizer, i + 1)
        _keep(folder, {"model": content.pop("model")}, "model.pt")
        _keep(folder, content, "optimizer.pt")


@two_files.form
def two_files_weights_last(folder, model, optimizer, step, steps):
    done, second = 0, _kept(folder, "second")
    if second:
        done = _fill(second | _kept(folder, "first"), model, optimizer)
    for i in range(done, steps):
        step(i)
        content = _content(model, optimizer, i + 1)
        _keep(folder, {"optimizer": content.pop("optimizer"), "random": content.pop("random")}, "first")
        _keep(folder, content, "second")


@two_files.form
def the_number_apart(folder, model, optimizer, step, steps):
    number, rest = folder / "number", folder / "rest"
    for i in range(
        _fill(_kept(folder, "rest") | _kept(folder, "number"), model, optimizer) if number.exists() else 0,
        steps,
    ):
        step(i)
        content = _content(model, optimizer, i + 1)
        if dist.get_rank() == 0:
            for path, keys in ((rest, ("model", "optimizer", "random")), (number, ("done",))):
                torch.save({key: content[key] for key in keys}, folder / "unfinished")
                (folder / "unfinished").replace(path)


@exercise.mistake
def random_state_of_rank_0(folder, model, optimizer, step, steps):
    """All ranks go on with the random state of rank 0, and draw the same numbers from there. Each rank has a
    state of its own: gather them before rank 0 writes."""
    kept = _kept(folder)
    done = (
        _fill({**kept, "random": [kept["random"][0]] * dist.get_world_size()}, model, optimizer)
        if kept
        else 0
    )
    for i in range(done, steps):
        step(i)
        _keep(folder, _content(model, optimizer, i + 1))


@exercise.mistake
def random_state_before_the_step(folder, model, optimizer, step, steps):
    """You take the random states before the step and the weights after it. After a start the next step draws
    the numbers of the step before it again: take both when the step is done."""
    for i in range(_restored(folder, model, optimizer), steps):
        random = _random_states()
        step(i)
        _keep(folder, {**_content(model, optimizer, i + 1), "random": random})


@exercise.mistake
def keeps_the_end_only(folder, model, optimizer, step, steps):
    """You write a checkpoint once the last step is done, or when something is raised. A worker that is killed
    raises nothing, and runs no line more: what is to survive has to be in the folder after each step."""
    done = _restored(folder, model, optimizer)
    for i in range(done, steps):
        step(i)
    _keep(folder, _content(model, optimizer, steps))


@exercise.mistake
def keeps_before_the_step(folder, model, optimizer, step, steps):
    """You write a checkpoint before each step, and none after the last one. A job that had ended runs its
    last step once more when it is started again."""
    for i in range(_restored(folder, model, optimizer), steps):
        _keep(folder, _content(model, optimizer, i))
        step(i)


@exercise.mistake
def without_the_buffers(folder, model, optimizer, step, steps):
    """You keep the parameters and not the buffers. A running average is changed by a step as well;
    `model.state_dict()` holds both."""
    kept = _kept(folder)
    if kept:
        for name, p in model.named_parameters():
            p.data.copy_(kept["model"][name])
        kept["model"] = model.state_dict()
    for i in range(_fill(kept, model, optimizer) if kept else 0, steps):
        step(i)
        _keep(folder, _content(model, optimizer, i + 1))


@exercise.mistake
def repeats_a_step(folder, model, optimizer, step, steps):
    """The step that was done last is done again. After `step(i)` there are `i + 1` steps behind you: that is
    the number to keep, or to go on with."""
    for i in range(_restored(folder, model, optimizer), steps):
        step(i)
        _keep(folder, _content(model, optimizer, i))


@repeats_a_step.variant
def goes_on_with_the_last(folder, model, optimizer, step, steps):
    todo = list(range(steps))
    kept = _kept(folder, "kept")
    if kept is not None:
        todo = todo[_fill(kept, model, optimizer) - 1 :]
    for number in todo:
        step(number)
        _keep(folder, _content(model, optimizer, number + 1), "kept")


@exercise.mistake
def skips_a_step(folder, model, optimizer, step, steps):
    """One step is left out at every start: the number that you keep is already that of the next step, and you
    add one to it."""
    kept = _kept(folder)
    done = _fill(kept, model, optimizer) + 1 if kept else 0
    for i in range(done, steps):
        step(i)
        _keep(folder, _content(model, optimizer, i + 1))


@exercise.mistake
def counts_from_the_start(folder, model, optimizer, step, steps):
    """You run `steps` more steps at every start. `steps` is the number of the whole job: those that are kept
    count."""
    done = _restored(folder, model, optimizer)
    for i in range(done, done + steps):
        step(i)
        _keep(folder, _content(model, optimizer, i + 1))


@exercise.mistake
def leaves_when_done(folder, model, optimizer, step, steps):
    """Where no step is left you return before the checkpoint is loaded, and the model holds the weights that
    it was made with."""
    kept = _kept(folder)
    if kept and kept["done"] >= steps:
        return
    for i in range(_fill(kept, model, optimizer) if kept else 0, steps):
        step(i)
        _keep(folder, _content(model, optimizer, i + 1))


@exercise.mistake
def removes_at_the_end(folder, model, optimizer, step, steps):
    """You remove the checkpoint when the last step is done. A job that had ended then begins at step 0 when
    it is started again: nothing says that no step is left."""
    for i in range(_restored(folder, model, optimizer), steps):
        step(i)
        _keep(folder, _content(model, optimizer, i + 1))
    dist.barrier()
    if dist.get_rank() == 0:
        (folder / "checkpoint.pt").unlink()


@exercise.mistake
def removes_first(folder, model, optimizer, step, steps):
    """You remove the old checkpoint before the new one has its name. A worker that is lost between the two
    leaves none at all. `os.replace` needs no free name: it takes the place of what is there."""
    for i in range(_restored(folder, model, optimizer), steps):
        step(i)
        content = _content(model, optimizer, i + 1)
        if dist.get_rank() == 0:
            torch.save(content, folder / "new")
            (folder / "checkpoint.pt").unlink(missing_ok=True)
            (folder / "new").rename(folder / "checkpoint.pt")


@exercise.mistake
def newest_as_text(folder, model, optimizer, step, steps):
    """You take the newest file by its name as text, and there `9.pt` comes after `10.pt`. Compare numbers, or
    write them with leading zeros."""
    found = sorted(folder.glob("*.pt"))
    for i in range(_fill(torch.load(found[-1]), model, optimizer) if found else 0, steps):
        step(i)
        _keep(folder, _content(model, optimizer, i + 1), f"{i}.pt")


@newest_as_text.variant
def largest_name(folder, model, optimizer, step, steps):
    names = [path.name for path in folder.iterdir() if path.name.startswith("step_")]
    kept = _kept(folder, max(names)) if names else {"done": 0}
    done = _fill(kept, model, optimizer) if names else 0
    while done < steps:
        step(done)
        content = _content(model, optimizer, done + 1)
        _keep(folder, content, f"step_{done}")
        done = content["done"]


@exercise.mistake
def every_rank_writes(folder, model, optimizer, step, steps):
    """Every rank writes, and all of them the same files. Two that write one file at the same time leave a
    mixture, and who renames second finds nothing to rename: rank 0 writes for all."""
    for i in range(_restored(folder, model, optimizer), steps):
        step(i)
        torch.save(_content(model, optimizer, i + 1), folder / "unfinished")
        (folder / "unfinished").replace(folder / "checkpoint.pt")


@exercise.mistake
def a_file_for_each_rank(folder, model, optimizer, step, steps):
    """Every rank writes a file of its own. When a worker is lost, they may be of different steps, and each
    rank would go on with its own. Rank 0 writes for all, after it has gathered what differs."""
    name = f"rank {dist.get_rank()}"
    kept = _kept(folder, name)
    for i in range(_fill(kept, model, optimizer) if kept else 0, steps):
        step(i)
        torch.save(_content(model, optimizer, i + 1), folder / f"{name} unfinished")
        (folder / f"{name} unfinished").replace(folder / name)


@exercise.mistake
def loads_on_rank_0(folder, model, optimizer, step, steps):
    """Rank 0 alone loads the checkpoint. All ranks were started anew, and the others go on with the weights
    that they were made with: every rank has to load, or to be sent what was loaded."""
    done = [_restored(folder, model, optimizer) if dist.get_rank() == 0 else 0]
    dist.broadcast_object_list(done)
    for i in range(done[0], steps):
        step(i)
        _keep(folder, _content(model, optimizer, i + 1))


@loads_on_rank_0.form
def others_begin_at_0(folder, model, optimizer, step, steps):
    done = _restored(folder, model, optimizer) if dist.get_rank() == 0 else 0
    for i in range(done, steps):
        step(i)
        _keep(folder, _content(model, optimizer, i + 1))
