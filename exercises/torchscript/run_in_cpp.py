"""Run it in C++

Below is a whole program in C++17. It loads a file, gives the model in it one input after another and prints
what comes out. It is built here with cmake, against the LibTorch inside the installed torch, and run without
Python.

```cpp
#include <torch/script.h>

#include <cstdio>
#include <sstream>

// "1 2; 3 4" is a matrix of two rows, in double precision.
torch::Tensor matrix(const std::string& text) {
  std::vector<double> numbers;
  int64_t rows = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line, ';'); ++rows) {
    std::istringstream row(line);
    for (double number; row >> number;) numbers.push_back(number);
  }
  return torch::tensor(numbers, torch::kFloat64).view({rows, -1});
}

int fail(int code, const char* what, const std::exception& error) {
  std::string said = error.what();
  size_t end = said.find("\\nException raised from");  // C++ frames from here on
  std::fprintf(stderr, "%s: %s\\n", what, said.substr(0, end).c_str());
  return code;
}

// reader FILE INPUT...
int main(int argc, char** argv) {
  torch::jit::Module model;
  try {
    model = torch::jit::load(argv[1]);
  } catch (const std::exception& error) {
    return fail(2, "this file is not a TorchScript module", error);
  }
  try {
    for (int i = 2; i < argc; ++i) {
      torch::Tensor y = model.forward({matrix(argv[i])}).toTensor();
      for (const torch::Tensor& row : y.unbind()) {
        for (int64_t j = 0; j < row.numel(); ++j) std::printf("%.17g ", row[j].item<double>());
        std::printf("\\n");
      }
    }
  } catch (const std::exception& error) {
    return fail(3, "forward failed", error);
  }
}
```

Write the file. `run_in_cpp(model, example, path)` gets a model, one input that it takes, and where to write.
From then on the program computes what `model` computes in evaluation mode: for every batch size and on every
branch, whatever mode the model is in now. It comes between two epochs of training, so leave it as you found
it, with its gradients, and the example too.

The models can be scripted, and they are in double precision already, as the numbers of the program are. This
is one of them, before its `.double()`; others have buffers, dropout and batch norm.

```python
class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.near = nn.Linear(3, 2)
        self.far = nn.Linear(3, 2)

    def forward(self, x):
        if bool(x.norm() > 2):
            return self.far(x)
        return self.near(x)
```
"""

import copy
import zipfile
from pathlib import Path

import torch
from torch import Tensor, nn

from course_utils import cpp, evidence, expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=15,
    hints=[
        "What must be in the file so that a program without Python can take either branch? Weights alone do "
        "not say how they are used, and a recording of one input knows one branch.",
        "A scripted module has its own `.train()` and `.eval()`, which reach all modules inside it.",
        "The mode is written into the file. Which of the two modules, the one that you were given or the "
        "compiled one, may you switch, and when?",
    ],
)


@exercise.starter
def run_in_cpp(model: nn.Module, example: Tensor, path: Path) -> None:
    """Writes a TorchScript file from which C++ computes what `model` computes in evaluation mode"""
    raise NotImplementedError


PROGRAM = __doc__.split("```cpp\n")[1].split("```")[0]
# Most of it is for building the program, once: some ten seconds, and minutes on a machine that is busy.
DEADLINE = 240


class _Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.near = nn.Linear(3, 2)
        self.far = nn.Linear(3, 2)

    def forward(self, x):
        if bool(x.norm() > 2):
            return self.far(x)
        return self.near(x)


class _Standardised(nn.Module):
    """Two buffers, of which one is in no state dict, and a number."""

    def __init__(self, factor: float):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3]))
        self.register_buffer("scale", torch.tensor([1.1, 1.3, 1.7]), persistent=False)
        self.factor = factor

    def forward(self, x):
        return (x - self.mean) / self.scale * self.factor


class _Net(nn.Module):
    """What behaves differently in training mode, beside each other and inside each other."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.outer = nn.Linear(4, 8)

    def forward(self, x):
        return nn.functional.dropout(self.outer(self.inner(x)), 0.5, self.training)


def _given(run_in_cpp, setup, path):
    example = "\nexample = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]).double()"
    models = {"Gate": _Gate, "Standardised": _Standardised, "Net": _Net}
    return expect.given(setup + example, run_in_cpp=run_in_cpp, path=path, **models)


def _write(t):
    """Calls the answer. What is in the file then: a word for it, and what to tell of it."""
    t.call("run_in_cpp(model, example, path)")
    kind, told = _kind(t.path)
    evidence.record("file", kind)
    expect.true(kind != "nothing", "nothing was written to `path`")
    return told


def _kind(path):
    if not path.is_file():
        return "nothing", ""
    if not zipfile.is_zipfile(path):
        return "no archive", "what was written is not an archive of torch's"
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any("/code/" in name for name in names):
        return "script", "what was written is a TorchScript module"
    if any(name.endswith("archive_format") for name in names):
        return "program", "what was written is an exported program: a graph, and no TorchScript"
    try:
        content = torch.load(path, weights_only=True)
    except Exception:
        return "pickle", "what was written is a pickle: names of Python's classes, and no code"
    if isinstance(content, dict):
        return "dict", f"what was written is a dict of {len(content)} entries: names and tensors"
    return type(content).__name__, f"what `torch.load` finds in the file is a {type(content).__name__}"


def _from_cpp(path, inputs, told):
    """What the program prints for the inputs, as one matrix."""
    ran = cpp.run(_program(), path, *map(_text, inputs))
    evidence.record("exit code", ran.returncode)
    if ran.returncode:
        raise expect.Mismatch(f"the program ended with exit code {ran.returncode}", *_said(ran.stderr), told)
    rows = [[float(number) for number in line.split()] for line in ran.stdout.splitlines()]
    return torch.tensor(rows, dtype=torch.float64)


def _from_python(path, inputs, told):
    """The same from `torch.jit.load`, which needs no compiler, and the class as little as the program."""
    try:
        loaded = torch.jit.load(path)
        with torch.no_grad():
            return torch.cat([loaded(x) for x in inputs])
    except Exception as error:
        evidence.record("refused", None)
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        said, _, _ = lines[-1].partition(": file not found. This is an internal")
        raise expect.Mismatch(f"`torch.jit.load(path)(x)` raised: {_shortened(said)}", told) from None


def _said(errors):
    """What went wrong where: the beginning, and where TorchScript raised, the end of what it says."""
    lines = [line for line in errors.splitlines() if line.strip()]
    if len(lines) > 1:
        lines = [f"{lines[0].partition(':')[0]}: {lines[-1]}"]
    return [f"it says: {_shortened(line)}" for line in lines]


def _program():
    try:
        return cpp.build(PROGRAM, "reader")
    except cpp.BuildError as error:
        raise expect.CannotCheck("; ".join(["the program could not be built", *error.lines])) from error


def _text(x):
    return "; ".join(" ".join(map(repr, row)) for row in x.tolist())


def _shortened(line):
    return line if len(line) <= 130 else line[:129] + "…"


_NEAR = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], dtype=torch.float64)
_FAR = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0], [0.7, 0.8, 0.9]], dtype=torch.float64)


@exercise.check(deadline=60)
def without_the_class(run_in_cpp, tmp_path):
    """The file brings its own code: both branches, two buffers, a number, in double precision"""
    t = _given(run_in_cpp, "model = Standardised(2.5).double().eval()", tmp_path / "model.pt")
    wanted = t.model(_FAR)
    came = _from_python(t.path, [_FAR], _write(t))
    expect.equal(came, wanted, what="`torch.jit.load(path)(x)`", rtol=1e-10, atol=1e-12)
    # The branches are asked for here too: there may be no compiler for the program.
    t = _given(run_in_cpp, "model = Gate().double().eval()", tmp_path / "gate.pt")
    told = _write(t)
    for where, x in (("near", _NEAR), ("far", _FAR)):
        with torch.no_grad():
            wanted = t.model(x)
        came = _from_python(t.path, [x], told)
        what = f"`torch.jit.load(path)(x)` for {where} `x`"
        expect.equal(came, wanted, what=what, rtol=1e-10, atol=1e-12)


@exercise.check(deadline=60)
def in_training(run_in_cpp, tmp_path):
    """What is in training mode is evaluated by the file: dropout and batch norm"""
    t = _given(run_in_cpp, "model = Net().double()", tmp_path / "model.pt")
    with torch.no_grad():
        t.model(_FAR)  # running statistics that are not those of a new model
        wanted = copy.deepcopy(t.model).eval()(_FAR)
    told = _write(t)
    first, second = _from_python(t.path, [_FAR, _FAR], told).chunk(2)
    # Nothing else of what is random: it would be something else for another style of the same answer.
    random = not torch.equal(first, second)
    evidence.record("random", random)
    expect.true(not random, "for the same input it gives other numbers the second time", told)
    expect.equal(first, wanted, what="`torch.jit.load(path)(x)`", rtol=1e-10, atol=1e-12)


@exercise.check(deadline=60)
def left_as_it_was(run_in_cpp, tmp_path):
    """The model is left in its modes, with its numbers and gradients, and so is the example"""
    setup = "model = Net().double()\nmodel.inner[1].eval()\nmodel.outer.bias.requires_grad_(False)"
    t = _given(run_in_cpp, setup, tmp_path / "model.pt")
    t.model(t.example).sum().backward()
    before, example = _state(t.model), t.example.clone()
    _write(t)
    # One after another: the mode of the model itself comes first.
    now = _state(t.model)
    for what, was in before.items():
        expect.equal(now.get(what), was, what=what, rtol=0, atol=0)
    expect.equal(t.example, example, what="`example` afterwards", rtol=0, atol=0)
    expect.true(not t.example.requires_grad, "`example` requires a gradient now, and did not before")


def _state(model):
    """What a training loop goes on with, by what it is."""
    modules = [(f"model.{name}" if name else "model", module) for name, module in model.named_modules()]
    found = {f"`{name}.training` afterwards": module.training for name, module in modules}
    found |= {f"`model.{name}` afterwards": value.clone() for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        grad = None if parameter.grad is None else parameter.grad.clone()
        found[f"`model.{name}.requires_grad` afterwards"] = parameter.requires_grad
        found[f"`model.{name}.grad` afterwards"] = grad
    return found


@exercise.check(needs=("compiler", "cmake"), deadline=DEADLINE)
def in_cpp(run_in_cpp, tmp_path):
    """The program takes both branches of `Gate`, for batches of one to five rows"""
    t = _given(run_in_cpp, "model = Gate().double().eval()", tmp_path / "model.pt")
    inputs = [_NEAR, _FAR, _FAR[:1], _NEAR[1:], torch.cat([_FAR, _NEAR])]
    with torch.no_grad():
        wanted = [t.model(x) for x in inputs]
    came = _from_cpp(t.path, inputs, _write(t))
    shape = tuple(torch.cat(wanted).shape)
    expect.equal(tuple(came.shape), shape, what="the shape of all that the program printed")
    for x, part, expected in zip(inputs, came.split([len(x) for x in inputs]), wanted, strict=True):
        expect.equal(
            part, expected, what=f'what the program printed for "{_text(x)}"', rtol=1e-10, atol=1e-12
        )


# --- the mistakes -----------------------------------------------------------------------------------------


def _evaluated(model):
    return copy.deepcopy(model).eval()


@exercise.mistake
def traces(model, example, path):
    """You traced the model: the file holds what `example` made it do, and no branch. C++ then takes for every
    input the branch that `example` took, without a word."""
    torch.jit.trace(_evaluated(model), example).save(path)


@traces.variant
def traces_and_saves(model, example, path):
    traced = torch.jit.trace(copy.deepcopy(model).train(False), (example,), check_trace=False)
    torch.jit.save(torch.jit.freeze(traced), str(path))


@traces.form
def traces_it_as_it_is(model, example, path):
    torch.jit.trace(model, example, check_trace=False).save(path)


@exercise.mistake
def left_in_training(model, example, path):
    """The file says training mode: C++ drops out at random and normalises with the batch at hand. A mode is
    an attribute of every module, and it is saved as it is."""
    torch.jit.script(model).save(path)


@left_in_training.variant
def evaluates_too_late(model, example, path):
    scripted = torch.jit.script(model)
    torch.jit.save(scripted, str(path))
    scripted.eval()


@exercise.mistake
def saves_the_state(model, example, path):
    """You saved the state dict: names and numbers, and nothing that computes. Python puts them into a model
    whose class it has; C++ has no such class."""
    torch.save(model.state_dict(), path)


@saves_the_state.variant
def saves_the_state_of_a_script(model, example, path):
    scripted = torch.jit.script(model)
    scripted.eval()
    with path.open("wb") as file:
        torch.save(scripted.state_dict(), file)


@exercise.mistake
def pickles_the_module(model, example, path):
    """You pickled the module: the file says which class of Python's to look for, and the class is not in it.
    Only a compiled module brings its code along."""
    torch.save(_evaluated(model), path)


@exercise.mistake
def leaves_it_in_evaluation(model, example, path):
    """The file is right, and the model is in another mode than before: training goes on without dropout and
    with frozen statistics, or unfreezes what was frozen. Switch what you save, not what you were given, and
    not a shallow copy, which has the same modules inside."""
    torch.jit.script(model.eval()).save(path)


@leaves_it_in_evaluation.form
def switches_a_shallow_copy(model, example, path):
    torch.jit.script(copy.copy(model).eval()).save(path)


@leaves_it_in_evaluation.form
def puts_all_into_training(model, example, path):
    torch.jit.script(model.eval()).save(path)
    model.train()


@exercise.mistake
def saves_it_in_single_precision(model, example, path):
    """The file holds single precision. The program brings numbers in double precision: together with weights
    in float32 they are refused, or come out with half of the digits."""
    torch.jit.script(_evaluated(model).float()).save(path)
