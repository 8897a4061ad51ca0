"""Ship it

A server has torch, but neither the course nor your classes. `ship_gpt(model, alphabet, path)` exports the
lesson's `GPT` and saves it at `path`, with `alphabet`, the string of its characters.

There, this loads both:

    extra = {"alphabet": ""}
    run = torch.export.load(path, extra_files=extra).module()

- `run(ids)` gives the scores of the model in evaluation mode, for one or more rows of 1 to `model.context`
  characters. It refuses longer rows.
- `extra["alphabet"]` is the alphabet.
- The file holds each weight once.
- `model` keeps its modes, weights and hooks.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import gpt, gpt_shipped
from course_utils.exercise.kits.exported import expect_ended_well, unlogged
from course_utils.exercise.kits.whys import because
from course_utils.exercise.once import done_before

exercise = Exercise(
    minutes=15,
    hints=[
        "Export needs an example. Which of its sizes stay constants unless you say something, and which "
        "number of rows does it take for a constant all the same?",
        "`dynamic_shapes=({0: ..., 1: ...},)` with two `Dim`s. The model itself says how long a row may be. "
        "`torch.export.save` has `extra_files`.",
        "Note the mode of every module, switch to evaluation, export two rows of a few characters, and put "
        "each mode back. Then save, with a dict that has `alphabet` in it.",
    ],
)


@exercise.starter
def ship_gpt(model: gpt.GPT, alphabet: str, path: str) -> None:
    """Writes the model and its characters, for a Python that knows neither"""
    raise NotImplementedError


_SETUP = """
import pathlib, tempfile
from course_utils.exercise.kits import gpt
folder = tempfile.TemporaryDirectory()
path = str(pathlib.Path(folder.name) / "gpt.pt2")
alphabet = "".join(map(chr, range(32, 3032)))
torch.manual_seed(0)
model = gpt.GPT(len(alphabet), context=12, width=32, heads=2, layers=1, dropout=0.5).eval()
"""
_MODES = "model.train()\nmodel.blocks[0].mlp.eval()\nmodel.register_forward_hook(lambda *_: None)\n"
_CALL = "ship_gpt(model, alphabet, path)"
_LOAD = 'extra = {"alphabet": ""}\nrun = torch.export.load(path, extra_files=extra).module()'
_SIZES = [(rows, time) for rows in (1, 2, 5) for time in (1, 2, 11, 12)]

_SERVER = """
import sys
sys.modules["course_utils"] = None  # so that nobody can import it
import torch
extra = {"alphabet": ""}
run = torch.export.load(sys.argv[1], extra_files=extra).module()
torch.save([extra, [run(ids) for ids in torch.load(sys.argv[2])]], sys.argv[3])
"""


def _shipped(ship_gpt):
    """The example with the file; it's written once for all checks of a report."""
    done = done_before()
    if ship_gpt not in done:
        t = expect.given(_SETUP, ship_gpt=ship_gpt)
        with gpt_shipped.shipping():
            t.run(_CALL)
        done[ship_gpt] = t
    t = done[ship_gpt]
    expect.true(Path(t.path).is_file(), "there is no file at `path`")
    return t


def _program(t):
    """Loads what was shipped, and gives what runs it with rows of a size."""
    with unlogged():
        t.run(_LOAD)
    return lambda size: t.call(f"run({gpt_shipped.characters(*size)})")


_LONGER = """The model has `context` vectors of places. A program that cuts longer rows answers for another
text and says nothing. One that is exported for 1 to `context` characters refuses them."""


@exercise.check(deadline=90)
def any_size(ship_gpt):
    """It takes one or more rows with 1 to `context` characters, and refuses longer ones

    A size of the example is a constant of the program unless export is told to open it, and by default a size
    of 1 can't be opened. There are `context` vectors of places: `Dim("time")` alone promises more than the
    model can do, and export refuses it.
    """
    t = _shipped(ship_gpt)
    gpt_shipped.expect_scores(t, _program(t), _SIZES)
    t.run("ids = torch.arange(13)[None]")
    what = "`run(ids)` with a row of 13 characters, for a model whose `context` is 12,"
    with because(_LONGER):
        expect.raises(Exception, lambda: t.call("run(ids)"), what=what)


@exercise.check(deadline=90)
def each_weight_once(ship_gpt):
    """The file holds each weight once

    The head's weight is the table of characters. Export keeps both names for one tensor, and `save` writes
    its storage once. A clone is a tensor of its own.
    """
    t = _shipped(ship_gpt)
    table, size = t.model.token.weight.nbytes, sum(p.nbytes for p in t.model.parameters())
    told = f"bytes in the file (the parameters have {size:,}, the table of characters {table:,} of them)"
    expect.at_most(Path(t.path).stat().st_size, size + table // 2, told, unit="bytes")


_HOOKS = """Hooks belong to whoever registered them. What is taken off for the export has to come back
afterwards."""
_RESTORED = """`eval()` and `train()` switch all modules inside, so one call doesn't restore modes that
differed."""
_LEFT = "The model is the caller's, and goes on as it is. A copy can be cast, or have its weights replaced."


@exercise.check(deadline=90)
def in_training_mode(ship_gpt):
    """A model in training mode is shipped in evaluation mode, and stays as it was

    Export writes down what `forward` does in the mode of the moment: in training mode, with dropout.
    """
    t = expect.given(f"{_SETUP}{_MODES}", ship_gpt=ship_gpt)
    modes = [(name, part, part.training) for name, part in t.model.named_modules()]
    left_alone = expect.left_alone(*t.model.parameters(), what="the weights", gradients=True)
    hooks_left_alone = expect.hooks_left_alone(t.model)
    with because(_HOOKS), hooks_left_alone, because(_LEFT), left_alone, gpt_shipped.shipping():
        t.run(_CALL)
    for name, part, mode in modes:
        name = f"model.{name}".removesuffix(".")
        with because(_RESTORED):
            expect.true(part.training is mode, f"`{name}.training` was {mode} and is {part.training} now")
    try:
        gpt_shipped.expect_scores(t, _program(t), [(3, 7)])
    except expect.Mismatch as error:
        # For a model in evaluation mode they are right, or the first check has told it.
        error.why = "" if error.why == gpt_shipped.WRITTEN_DOWN else error.why
        raise


_BESIDE = """What a program needs beside its tensors travels in `extra_files`, a text for each name.
Loading fills in the names that it's asked for, here `alphabet`, with the text that was saved."""


@exercise.check(deadline=120)
def fresh_python(ship_gpt, tmp_path):
    """A new process without the course loads it, and gives the same scores

    The file holds the graph and the weights; no class and no module of yours has to be there. A pickle of the
    model names its classes, and needs the modules in which they stand.
    """
    t = _shipped(ship_gpt)
    file, inputs, outputs = (tmp_path / name for name in ("moved.pt2", "inputs.pt", "outputs.pt"))
    shutil.copy(t.path, file)
    torch.save([gpt_shipped.ids(size) for size in _SIZES], inputs)
    command = [sys.executable, "-c", _SERVER, file, inputs, outputs]
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True)
    expect_ended_well(ran, "the new process")
    extra, scores = torch.load(outputs)
    with because(_BESIDE):
        others = [name for name, text in extra.items() if name != "alphabet" and text == t.alphabet]
        told = f"the file has the alphabet under another name, `{(others or [''])[0]}`"
        expect.true(not others, told, "expected: under `alphabet`")
        expect.equal(extra["alphabet"], t.alphabet, what='`extra["alphabet"]` in the new process')
    answers = {tuple(one.shape[:2]): one for one in scores}
    gpt_shipped.expect_scores(t, answers.__getitem__, _SIZES)
