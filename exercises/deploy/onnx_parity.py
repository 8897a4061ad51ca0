"""The same answers in ONNX Runtime

Before a model is served from an ONNX file, you compare the two. `onnx_parity(model, batches, path)` gets a
module, a list of matrices with different numbers of rows, maybe one, and the path of the file to write.

- The file answers what `model` answers in evaluation mode, for any number of rows. No other file is written.
- Return a list of floats: for each batch the largest absolute difference between the answer of the file, run
  in ONNX Runtime, and the answer of `model` in evaluation mode. It's NaN if one of its differences is NaN.
- `model` keeps its modes, numbers and hooks.

`onnx_parity(model, [torch.rand(4, 3), torch.rand(9, 3)], path)` → `[0.0, 5.96e-08]`
"""

import numbers
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor, nn

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits.exported import answering, quick_onnx, run_for_later
from course_utils.exercise.once import done_before

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "Three things make the numbers differ that have nothing to do with ONNX: another mode, a batch that "
        "the file doesn't take, a difference with its sign. Which of them have you ruled out?",
        "`torch.onnx.export` takes `dynamic_shapes` as `torch.export.export` does. Where does it put weights "
        "that are large, and which argument changes that?",
        "For each batch: a dictionary from the session's input name to `x.numpy()`, then `run`. The absolute "
        "value comes before the largest. For floats NumPy's and torch's `max` keep a NaN, Python's may not.",
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

_UNLIKE = """
class Unlike(nn.Linear):
    def forward(self, x):  # the file answers 0, the model `x`: these elements are the differences
        exporting = torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export()
        return 0 * super().forward(x) if exporting else x

model = Unlike(30, 30).eval()
batches = [torch.zeros(rows, 30) for rows in (1, 2, 9)]
batches[0][0, 1], batches[1][1, 2], batches[2][5, 1] = 0.5123, -0.7534, float("nan")
"""

_TRAINED = """
class Twice(nn.Module):
    def forward(self, x):
        return 2 * x if self.training else x

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), Twice(), nn.Linear(4, 2))
model.insert(2, nn.Sequential(model[1]))
model[2].training = False
model[0].register_forward_hook(lambda *_: None)
batches = [torch.rand(rows, 3) for rows in (4, 9)]
"""
_CALL = "differences = onnx_parity(model, batches, path)"


def _expect_differences(t, wanted):
    """They are these, up to the rounding of float32."""
    came = t.differences
    is_list = isinstance(came, (list, tuple)) and len(came) == len(wanted)
    is_list = is_list and all(isinstance(number, numbers.Real) for number in came)
    expect.true(is_list, f"the result is {expect.show(came)}, expected a list of {len(wanted)} floats")
    rounded = [round(float(number), 4) for number in came]
    said = f"the result, rounded to four digits, is {rounded}, expected {wanted}"
    expect.true(str(rounded) == str(wanted), said)


def _session(path):
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # its text has the path in it
        raise expect.Mismatch(f"ONNX Runtime can't load `path`: `{type(error).__name__}`") from error


def _made(onnx_parity, model):
    """The example after the answer has run, once for a report; which methods of ONNX Runtime ran; and what
    raises where the answer didn't leave its arguments alone."""
    done, key = done_before(), (onnx_parity, model)
    if key not in done:
        from onnxruntime import InferenceSession

        ran = []

        def watched(name):
            run = getattr(InferenceSession, name)
            return lambda *args, **kwargs: ran.append(name) or run(*args, **kwargs)

        names = "run", "run_with_ort_values", "run_with_iobinding"
        t = expect.given(_FOLDER + model, onnx_parity=onnx_parity)
        watch = mock.patch.multiple(InferenceSession, **{name: watched(name) for name in names})
        with watch, quick_onnx():
            done[key] = t, ran, run_for_later(t, _CALL, "batches")
    t, ran, left_alone = done[key]
    t.call("differences")  # so that a message shows this example
    return t, ran, left_alone


@exercise.check(needs="onnxruntime", deadline=60)
def every_size(onnx_parity):
    """The file takes any number of rows

    Export makes a constant of a size that it isn't told to open, and ONNX Runtime refuses an input of another
    size. `torch.export.export` refuses to open a size of 1 in its example; here `torch.onnx.export` opens it.
    """
    t, *_ = _made(onnx_parity, _UNLIKE)
    rows, _ = _session(t.path).get_inputs()[0].shape
    said = f"in the file the number of rows is {rows!r}, expected a name: any number"
    expect.true(isinstance(rows, str), said)


@exercise.check(needs="onnxruntime", deadline=60)
def largest(onnx_parity):
    """It's the largest absolute difference, and a NaN isn't lost

    A mean can hide one wrong number among many right ones, and the largest difference with a sign
    misses one below 0. `<` and `>` with NaN are false: Python's `max` drops a NaN that isn't the first.
    """
    t, *_ = _made(onnx_parity, _UNLIKE)
    _expect_differences(t, [0.5123, 0.7534, float("nan")])


@exercise.check(needs="onnxruntime", deadline=60)
def in_the_runtime(onnx_parity):
    """The file is run in ONNX Runtime

    `torch.onnx.export` exports a program, translates its operators, and rewrites the graph. A run of the file
    tells what came of that.
    """
    _, ran, _ = _made(onnx_parity, _UNLIKE)
    expect.true(ran, "ONNX Runtime ran nothing")


@exercise.check(needs="onnxruntime", deadline=60)
def evaluates(onnx_parity):
    """The file and the model evaluate, also when the model is in training mode

    Export writes `self.training` down as a constant. Eager mode asks for it in each call, and a batch norm in
    training mode computes with the statistics of the batch.
    """
    t, *_ = _made(onnx_parity, _TRAINED)
    _expect_differences(t, [0.0, 0.0])
    session = _session(t.path)
    for x in t.batches:
        with answering(len(x), "the file"):
            came = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
        what = f"what the file answers to a batch of size {len(x)}"
        expect.equal(came, t.model.eval()(x).detach(), what=what, rtol=1e-4, atol=1e-5)


@exercise.check(needs="onnxruntime", deadline=60)
def one_file(onnx_parity):
    """One file is enough, also with many weights

    By default `torch.onnx.export` writes all but small weights into a second file beside `path`, which holds
    its name. With this model both have to travel.
    """
    t, *_ = _made(onnx_parity, _UNLIKE)
    files = t.call("sorted(file.name for file in path.parent.iterdir())")
    expect.equal(files, ["model.onnx"], what="the list of files there")


@exercise.check(needs="onnxruntime", deadline=60)
def left_as_it_was(onnx_parity):
    """The model keeps its modes, numbers and hooks

    A mode is an attribute of each module, and `train()` and `eval()` switch it in all modules inside. So
    one call can't restore modes that differed, and one call for each module may fail for a part that two
    modules hold. A call in training mode moves the averages of this batch norm.
    """
    *_, left_alone = _made(onnx_parity, _TRAINED)
    left_alone()
