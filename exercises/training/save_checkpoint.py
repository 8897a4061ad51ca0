"""A checkpoint that survives a kill

Write to `path` what a run on the CPU needs to go on, as one file that `torch.load(path)` reads:

    {"step": step,
     "parts": {name: part.state_dict(), ...},
     "rng": {"torch": torch.get_rng_state(),
             "numpy": np.random.get_state(), with its array as a tensor,
             "python": random.getstate()}}

- A process that is killed at any moment leaves a whole file under `path`: the one from before (none, if there
  was none) or the new one.
- A success leaves no other file of its own in the folder.
- No generator draws.

`save_checkpoint("run.pt", 7, model=model, optimizer=optimizer)`
"""

from pathlib import Path
from typing import Any

import torch

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import saved_runs

exercise = Exercise(
    minutes=9,
    core=True,
    hints=[
        "When is the old file gone, if you write to `path`? Where else could the new one grow?",
        "`os.replace` puts a file in the place of another in one step, within one folder. And "
        "`torch.from_numpy` makes a tensor of NumPy's array.",
        "Write to a name of your own in the same folder, then replace. NumPy's state is a tuple of five; its "
        "second element is the array.",
    ],
)


@exercise.starter
def save_checkpoint(path: str | Path, step: int, **parts: Any) -> None:
    """Writes the file; `parts` have a `state_dict`"""
    raise NotImplementedError


_SETUP = f"{saved_runs.RUN}run = begin()\ntrain(run, 2)\n"
_SAVE = "save_checkpoint(path, 2, **run)"


def _loaded(t):
    try:
        return t.call("torch.load(path)")
    except Exception as error:
        said = str(error).partition("WeightsUnpickler error: ")[2] or str(error) or type(error).__name__
        told = f"`torch.load(path)` can't read the file: {said.splitlines()[0]}"
        expect.true(False, told, "expected: it can")


@exercise.check(
    isolated=True,
    given=_SETUP,
    cases=[
        "run['model'][1].eval()",
        "path = str(path)",
        "import os\nos.chdir(folder.name)\npath = 'run.pt'",
    ],
)
def content(t):
    """The file holds the step and the state dict of each part

    This run, with only its weights back, has lost the optimizer's means, and its learning rate starts over.
    By default `torch.load` refuses what isn't on its list. Plain tensors, floats, strings, lists, tuples
    and dicts are on it; a whole model isn't. The run goes on afterwards, so its modes and gradients stay.
    """
    run = t.call("run")
    with expect.left_alone(run["model"], what="`run['model']`", gradients=True):
        t.run(_SAVE)
    file = _loaded(t)
    expect.true(isinstance(file, dict), f"the file holds {expect.show(file)}, expected a dictionary")
    expect.equal(sorted(file), ["parts", "rng", "step"], what="the keys of the file, sorted")
    expect.equal(file["step"], 2, what="the step in the file")
    expect.equal(sorted(file["parts"]), sorted(run), what="the parts in the file, sorted")
    for part, thing in run.items():
        expect.equal(file["parts"][part], thing.state_dict(), what=f"the state of `{part}`")


@exercise.check(isolated=True, given=f"{_SETUP}np.random.randn()")
def generators(t):
    """All three generators are in the file, and none of them draws

    The next step is to begin with the states that the file has, so saving must not move them. NumPy's is five
    things: a name, the array, where in it the next draw is, and a normal number that it may have left over.
    """
    before = saved_runs.states()
    t.run(_SAVE)
    expect.equal(saved_runs.moved(before), [], what="the list of generators that have drawn")
    rng = _loaded(t)["rng"]
    expect.equal(sorted(rng), ["numpy", "python", "torch"], what='the keys of `["rng"]`, sorted')
    expect.equal(rng["torch"], torch.get_rng_state(), what="torch's state in the file")
    expect.equal(rng["python"], before["Python"], what="Python's state in the file")
    told = f"NumPy's state is {expect.show(rng['numpy'])} in the file"
    five = isinstance(rng["numpy"], (tuple, list)) and len(rng["numpy"]) == 5
    expect.true(five, told, "expected: a tuple or list of five, as `np.random.get_state()` has them")
    _, keys, *rest = rng["numpy"]
    told = f"NumPy's array is {expect.show(keys)} in the file, expected a tensor"
    expect.true(isinstance(keys, torch.Tensor), told)
    what = "NumPy's array and what follows it, as a list"
    expect.equal([*keys.tolist(), *rest], before["NumPy"], what=what)


@exercise.check(isolated=True)
def killed_while_writing(save_checkpoint):
    """A process that is killed in the middle of writing leaves the old file

    Opening a file with mode `w` or `wb` empties it, so the new one has to grow under another name, whatever
    `path` is: of `run.tmp`, too, `with_suffix(".tmp")` makes `run.tmp`. A process killed by `SIGKILL` runs
    nothing more: no `except`, no `finally`.
    """
    with Rows() as rows:
        names = {"run.pt": "the first file, killed after 5,000 bytes"}
        while names:
            name, label = names.popitem()
            with rows.of(label):
                t = expect.given(f"{_SETUP}path = path.with_name({name!r})", save_checkpoint=save_checkpoint)
                t.run(f"in_process(lambda: {_SAVE}, at_byte=5000)")
                left = [p.name for p in t.path.parent.iterdir() if p.is_file() and p != t.path]
                names = dict.fromkeys(left if name == "run.pt" else [], "a name that the first had left")
                expect.true(not t.path.exists(), "half a file is left under `path`", "expected: none yet")
        for part in ("0", "size // 2", "size * 9 // 10"):
            with rows.of(f"killed after {part} bytes"):
                setup = f"{_SETUP}save_checkpoint(path, 1, **run)\nsize = path.stat().st_size"
                t = expect.given(setup, save_checkpoint=save_checkpoint)
                t.run(f"in_process(lambda: {_SAVE}, at_byte={part})  # killed when a file would grow longer")
                expect.true(t.path.exists(), "there is no file under `path` any more", "expected: one")
                expect.equal(_loaded(t)["step"], 1, what="the step in the file")


@exercise.check(isolated=True, given=f"{_SETUP}import os\nsave_checkpoint(path, 1, **run)")
def one_step(save_checkpoint, t):
    """The new file takes the old one's name in one step

    Between removing the old file and renaming the new one there is none. And a copy writes over the old one:
    its second name, a hard link, shows that. `os.replace` does neither, from the same folder. Another folder
    may be on another disk: from there `os.replace` fails, and `shutil.move` copies.
    """
    for number in range(1, 6):
        ended = t.call(f"in_process(lambda: {_SAVE}, at_name={number})")
        told = f"killed before its change {number} to a name, it leaves no file under `path`"
        expect.true(t.path.exists(), told, "expected: one")
        expect.true(_loaded(t)["step"] in (1, 2), "the file is of neither run", "expected: old or new")
        if ended != "killed":
            break
    t = expect.given(f"{_SETUP}import os\nsave_checkpoint(path, 1, **run)", save_checkpoint=save_checkpoint)
    t.run("old = Path(folder.name) / 'old.pt'\nos.link(path, old)")
    t.run(f"in_process(lambda: {_SAVE}, disk=folder.name)  # as if other folders were on another disk")
    expect.equal(_loaded(t)["step"], 2, what="the step under `path`")
    told = "the old file was written over: its second name shows the new step"
    expect.true(t.call("torch.load(old)['step'] == 1"), told, "expected: step 1")


@exercise.check(isolated=True, given=f"{_SETUP}(Path(folder.name) / 'notes.txt').write_text('mine')")
def folder_is_clean(t):
    """One file is left, whatever was there before

    A checkpoint each hour fills a disk if each leaves a copy behind. Other files of the folder aren't yours.
    """
    for _ in range(2):
        t.run(_SAVE)
        names = sorted(p.name for p in Path(t.folder.name).iterdir())
        expect.equal(names, ["notes.txt", "run.pt"], what="the list of files in the folder")
    expect.equal(t.call("(Path(folder.name) / 'notes.txt').read_text()"), "mine", what="`notes.txt`")
