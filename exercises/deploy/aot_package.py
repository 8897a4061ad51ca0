"""Compiled before it's shipped

A server has torch, but no compiler and none of your classes. `aot_package(model, example, path)` gets a
module, an input whose first dimension is the batch and which may have any others, and a path that ends in
`.pt2`. Compile the model ahead of time and write the package to `path`.

- The server loads it with `torch._inductor.aoti_load_package(path)`. It answers contiguous batches of every
  size from 2 up, even if `example` has one row or isn't contiguous.
- It computes what `model` computes in evaluation mode, even if `model` is in training mode.
- `example` doesn't change.

`torch._inductor.aoti_load_package(path)(x)` → the result of `model.eval()(x)`
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor, nn

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits.exported import answering, content, expect_ended_well, expect_open, unlogged

exercise = Exercise(
    minutes=15,
    hints=[
        "There are two steps: a program, then machine code for it. Which of them decides about the mode and "
        "about the sizes?",
        "A package for 1 row isn't made for another number. Export has to open the batch, and needs an "
        "example of two rows or more. The code is made for the strides of the example, too.",
        "`torch.cat` makes two rows of one. `torch._inductor.aoti_compile_and_package` takes the program; "
        "unless you give it a path, it chooses one of its own.",
    ],
)


@exercise.starter
def aot_package(model: nn.Module, example: Tensor, path: str) -> None:
    """Writes the model in evaluation mode, compiled for every size of the batch"""
    raise NotImplementedError


_NET = """
import pathlib, tempfile
folder = tempfile.TemporaryDirectory()
path = str(pathlib.Path(folder.name) / "model.pt2")

class Net(nn.Sequential):
    def forward(self, x):
        return super().forward(x).tanh()

torch.manual_seed(0)
model = Net(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).double()
model(torch.rand(8, 3).double())
"""
_ROWS = "torch.linspace(-1, 1, 3 * {0}).view({0}, 3).double()"
_IMAGES = "torch.linspace(-1, 1, 32 * {0}).view({0}, 2, 4, 4).double()"
_WORDS = "torch.arange({0}) % 10"

_OF_4, _OF_1 = (f"{_NET}example = {_ROWS.format(rows)}" for rows in (4, 1))


@contextlib.contextmanager
def _not_compiled():
    """The programs that would be compiled, while nothing is: each compilation takes many seconds."""
    programs = []

    def stand_in(program, *_, package_path=None, **__):
        programs.append(program)
        package_path = package_path or str(Path(elsewhere, "chosen.pt2"))
        torch.export.save(program, package_path)
        return package_path

    def load(path, *_, **__):
        return torch.export.load(path).module()

    patch = mock.patch.multiple(torch._inductor, aoti_compile_and_package=stand_in, aoti_load_package=load)
    with tempfile.TemporaryDirectory() as elsewhere, unlogged(), patch:
        yield programs


def _packaged(t):
    """The program that is in the package; the package itself where the answer has another way to make one."""
    with _not_compiled() as programs:
        t.run("aot_package(model, example, path)")
    there = sorted(path.name for path in Path(t.path).parent.iterdir())
    expect.true("model.pt2" in there, f"there is no `model.pt2`, the files in its folder are {there}")
    if programs:
        return programs[-1]
    told = f"the file at `path` holds {content(t.path)}, expected: a package of AOTInductor"
    expect.true(content(t.path) == "a package of AOTInductor", told)
    return torch._inductor.aoti_load_package(t.path)


def _compare(t, run, sizes, batch=_ROWS):
    who = "the package"
    if isinstance(run, torch.export.ExportedProgram):
        run, who = run.module(), "the program"
    with Rows() as rows, torch.no_grad():
        for size in sizes:
            with rows.of(f"{size} rows"):
                x = eval(batch.format(size))
                with answering(size, who):
                    came = run(x)
                expect.equal(came, t.model.eval()(x), what=f"the answer to a batch of size {size}")


@exercise.check(deadline=120, given=_OF_4)
def at_path(t):
    """There is a package at `path`, and `example` is as it was

    `torch.export.save` writes a program, which isn't compiled. A package has a library of machine code.
    Without `package_path` it's written into torch's cache.
    """
    with expect.left_alone(t.example, what="`example`"):
        _packaged(t)


# Another model, an example, a batch of so many rows.
_EXAMPLES = {
    "an example of 4 rows": ("", _ROWS.format(4), _ROWS),
    "an example of 1 row": ("", _ROWS.format(1), _ROWS),
    "a transposed example": ("", "torch.linspace(-1, 1, 12).view(3, 4).double().t()", _ROWS),
    "images": ("nn.Conv2d(2, 3, 3)", f"{_IMAGES.format(3)}.to(memory_format=torch.channels_last)", _IMAGES),
    "a word's number in each row": ("nn.Embedding(10, 4)", _WORDS.format(1), _WORDS),
}


def _of_another(layer, example, _):
    other = f"model = Net({layer}).double()\n" if layer else ""
    return f"{_NET}{other}model.eval()\nexample = {example}"


@exercise.check(deadline=120, given=_of_another, cases=_EXAMPLES)
def any_batch(t, batch):
    """It's compiled for contiguous batches of any size, whatever the example looks like

    By default export takes a size of 1 for a constant, and with `Dim.AUTO` it only logs that. It keeps the
    strides of the example; here `torch.cat` keeps `channels_last`. A package compares neither with its input
    unless `AOTI_RUNTIME_CHECK_INPUTS=1` is set.
    """
    program = _packaged(t)
    if isinstance(program, torch.export.ExportedProgram):
        expect_open(program)
        nodes = {node.name: node.meta for node in program.graph.nodes}
        came = list(nodes[program.graph_signature.user_inputs[0]]["val"].stride())
        said = f"the strides of the input in the compiled program are {came}"
        wanted = list(eval(batch.format(2)).stride())
        expect.true(came == wanted, said, f"expected {wanted}, those of a contiguous batch")
    _compare(t, program, (2, 7, 1000), batch)


@exercise.check(deadline=120, given=_OF_4)
def evaluates(t):
    """It evaluates, also when the model is in training mode

    Export writes down what `forward` does in the mode of the moment. A package has no mode to switch.
    """
    _compare(t, _packaged(t), (4, 7))


# What `aoti_load_package` calls; it imports the compiler as well, which takes seconds. torch
# is imported while the package is made.
_SERVER = """
import sys, torch
input()
package = torch._C._aoti.AOTIModelPackageLoader(sys.argv[1], "model", False, 1, -1)
torch.save([package.run([x])[0] for x in torch.load(sys.argv[2])], sys.argv[3])
"""


@exercise.check(needs="compiler", isolated=True, deadline=240, given=_OF_1)
def on_the_server(aot_package, t, tmp_path):
    """A new process without a compiler loads it and answers

    This package holds a library with the code and the weights. To load it takes no class and no compiler.
    """
    _compare(t, _packaged(t), (2,))  # what fails here isn't worth a compilation
    t = expect.given(_OF_1, aot_package=aot_package)
    package, inputs, outputs = (tmp_path / name for name in ("moved.pt2", "inputs.pt", "outputs.pt"))
    bare = {"PATH": "", "CXX": "no-compiler", "AOTI_RUNTIME_CHECK_INPUTS": "1"}
    command = [sys.executable, "-c", _SERVER, package, inputs, outputs]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=os.environ | bare, text=True, **pipes) as server:
        t.run("aot_package(model, example, path)")
        shutil.move(t.path, package)
        torch.save([eval(_ROWS.format(rows)) for rows in (2, 5, 300)], inputs)
        said = server.communicate("go on\n")
    ran = subprocess.CompletedProcess(command, server.returncode, *said)
    expect_ended_well(ran, "the server")
    answers = {len(answer): answer for answer in torch.load(outputs)}
    _compare(t, lambda x: answers[len(x)], (2, 5, 300))
