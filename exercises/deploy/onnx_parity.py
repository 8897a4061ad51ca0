"""The same answers in ONNX Runtime

Before a model is served from an ONNX file, you compare the two. `onnx_parity(model, batches, path)` gets a
module, a list of matrices with different numbers of rows, and the path of the file to write.

- The file answers what `model` answers in evaluation mode, for any number of rows. It needs no other file.
- Return a list of floats: for each batch the largest absolute difference between the answer of the file, run
  in ONNX Runtime, and the answer of `model` in evaluation mode. It's NaN if one of its differences is NaN.
- `model` keeps its modes and numbers.

`onnx_parity(model, [torch.rand(4, 3), torch.rand(9, 3)], path)` → `[0.0, 5.96e-08]`
"""

from pathlib import Path
from unittest import mock

import torch
from torch import Tensor, nn

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits.exported import expect_left_alone, quick_onnx, unlogged

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "Three things make the numbers differ that have nothing to do with ONNX: another mode, a batch that "
        "the file doesn't take, a difference with its sign. Which of them have you ruled out?",
        "`torch.onnx.export` takes `dynamic_shapes` as `torch.export.export` does. Where does it put weights "
        "that are large, and which argument changes that?",
        "For each batch: a dictionary from the session's input name to `x.numpy()`, then `run`. The absolute "
        "value comes before the largest. NumPy's and torch's `max` keep a NaN, Python's may lose it.",
    ],
)


@exercise.starter
def onnx_parity(model: nn.Module, batches: list[Tensor], path: Path) -> list[float]:
    """For each batch, how far the ONNX file's answer is from the model's"""
    raise NotImplementedError


_FOLDER = """
import pathlib, tempfile
folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name) / "model.onnx"
"""

_FAULTY = """
class Faulty(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        if not torch.compiler.is_exporting():  # the file has nothing of this
            y[-1, 0] += faults[int(x[0, 0])]
            y[0, 1] -= faults[int(x[0, 0])] / 2
        return y

torch.manual_seed(0)
model = Faulty(3, 2).eval()
batches = [torch.full((rows, 3), float(i)) for i, rows in enumerate(sizes)]
"""

_TRAINED = """
class Twice(nn.Module):
    def forward(self, x):
        return 2 * x if self.training else x

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, {0}), nn.BatchNorm1d({0}), Twice(), nn.Linear({0}, 2))
batches = [torch.rand(rows, 3) for rows in (4, 9)]
"""


def _run(onnx_parity, model):
    """The example with the file and the answer's list."""
    t = expect.given(f"{_FOLDER}{model}", onnx_parity=onnx_parity)
    with unlogged(), quick_onnx():
        t.run("differences = onnx_parity(model, batches, path)")
    expect.true(t.path.is_file(), "there is no file at `path`")
    return t


def _expect_differences(t, wanted):
    """They are these, up to the rounding of float32."""
    came = t.differences
    is_list = isinstance(came, (list, tuple)) and len(came) == len(wanted)
    expect.true(is_list, f"the result is {expect.show(came)}, expected a list of {len(wanted)} floats")
    rounded = [round(float(number), 4) for number in came]
    said = f"the result, rounded to four digits, is {rounded}, expected {wanted}"
    expect.true(str(rounded) == str(wanted), said)


def _faulty(onnx_parity, sizes, faults):
    return _run(onnx_parity, f"sizes = {sizes}\nfaults = {faults}\n{_FAULTY}")


def _session(path):
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # its text has the path in it
        raise expect.Mismatch(f"ONNX Runtime can't load the file: `{type(error).__name__}`") from error


def _expect_file(t, path):
    """The file at this path answers as the model does in evaluation mode."""
    session = _session(path)
    name = session.get_inputs()[0].name
    with torch.no_grad():
        for x in t.batches:
            came = torch.from_numpy(session.run(None, {name: x.numpy()})[0])
            what = f"what the file answers to a batch of size {len(x)}"
            expect.equal(came, t.model.eval()(x), what=what, rtol=1e-4, atol=1e-5)


@exercise.check(needs="onnxruntime", deadline=60)
def largest(onnx_parity):
    """It's the largest absolute difference, and a NaN isn't lost

    One wrong number is enough. A mean hides it among the right ones, and the largest difference with a sign
    misses one below 0. Every comparison with NaN is false: Python's `max` drops a NaN that isn't the first.
    """
    t = _faulty(onnx_parity, [4, 4, 4], "[0.5, -0.75, float('nan')]")
    _expect_differences(t, [0.5, 0.75, float("nan")])


@exercise.check(needs="onnxruntime", deadline=60)
def every_batch(onnx_parity):
    """Each batch is compared, and the file takes any number of rows

    A file may be right for one size and wrong for another, since `forward` can depend on it. A size that
    `dynamic_shapes` doesn't open is a constant, and ONNX Runtime refuses an input of another size.
    """
    t = _faulty(onnx_parity, [4, 2, 9], "[0.5, -0.25, 2.0]")
    _expect_differences(t, [0.5, 0.25, 2.0])
    sizes = _session(t.path).get_inputs()[0].shape
    said = f"the sizes of the file's input are {sizes}", "expected: a first one that is a name, not a number"
    expect.true(not isinstance(sizes[0], int), *said)


@exercise.check(needs="onnxruntime", deadline=60)
def in_the_runtime(onnx_parity):
    """ONNX Runtime runs every batch

    `torch.onnx.export` exports a program, translates its operators, and rewrites the graph. Only a run of the
    file tells what came of that.
    """
    from onnxruntime import InferenceSession

    seen = set()

    def watched(run):
        def runs(self, names, feeds, *args, **kwargs):
            seen.update(tuple(x.shape() if callable(x.shape) else x.shape) for x in feeds.values())
            return run(self, names, feeds, *args, **kwargs)

        return runs

    runs = {name: watched(getattr(InferenceSession, name)) for name in ("run", "run_with_ort_values")}
    with mock.patch.multiple(InferenceSession, **runs):
        t = _run(onnx_parity, _TRAINED.format(4))
    for shape in (tuple(x.shape) for x in t.batches):
        said = f"ONNX Runtime ran inputs of these shapes: {sorted(seen)}", f"expected: {shape} among them"
        expect.true(shape in seen, *said)


@exercise.check(needs="onnxruntime", deadline=60)
def evaluates(onnx_parity):
    """The file and the model evaluate, also when the model is in training mode

    Export writes `self.training` down as a constant. Eager mode asks for it in each call, and a batch norm in
    training mode computes with the statistics of the batch.
    """
    t = _run(onnx_parity, _TRAINED.format(4))
    _expect_differences(t, [0.0, 0.0])
    _expect_file(t, t.path)


@exercise.check(needs="onnxruntime", deadline=60)
def one_file(onnx_parity):
    """One file is enough, also with many weights

    By default `torch.onnx.export` writes weights of more than a few hundred bytes into a second file beside
    `path`, and `path` holds its name. ONNX Runtime doesn't load the one without the other.
    """
    t = _run(onnx_parity, _TRAINED.format(700))
    t.run("other = tempfile.TemporaryDirectory()\nmoved = path.rename(pathlib.Path(other.name, 'm.onnx'))")
    _expect_file(t, t.moved)


@exercise.check(needs="onnxruntime", deadline=60)
def left_as_it_was(onnx_parity):
    """The model keeps its modes and numbers

    A mode is an attribute of each module, and `train()` and `eval()` switch it in all modules inside: they
    can't restore modes that differed. A call in training mode moves the averages of a batch norm.
    """
    setup = f"{_FOLDER}{_TRAINED.format(4)}model[1].eval()"
    with quick_onnx():
        t = expect.given(setup, onnx_parity=onnx_parity)
        expect_left_alone(t, "onnx_parity(model, batches, path)", "batches")
