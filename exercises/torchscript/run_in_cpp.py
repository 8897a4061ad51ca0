"""Run it in C++

This program in C++ is built here against the LibTorch inside the installed torch, and runs without Python. It
gives the model in a file one input after another and prints what comes out.

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

Write the file: `run_in_cpp(model, example, path)` gets a model that can be scripted, one input that it takes,
and where to write. All are in double precision.

- The program computes what `model` computes in evaluation mode, for every batch size and on every branch of
  its `forward`.
- The mode that the model is in does not matter.
- It comes between two epochs of training: `model` and `example` stay as they were, modes, gradients and hooks
  included.

After `run_in_cpp(model, example, path)`: `torch.jit.load(path)(example)` → what `model.eval()(example)` is.
"""

import linecache
import zipfile
from pathlib import Path

import torch
from torch import Tensor, nn

from course_utils import cpp
from course_utils.exercise import Exercise, Rows, expect

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


_PROGRAM = __doc__.split("```cpp\n")[1].split("```")[0]

_EXAMPLE = """import pathlib, tempfile
{}
example = torch.tensor([[0.5, 0.25, -0.25], [0.5, 0.125, 0.75]]).double()
folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "model.pt")"""

_GATE = """
class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.near, self.far = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        if bool(x.norm() > 2):
            return self.far(x)
        return self.near(x)

torch.manual_seed(0)
model = Gate().double()"""

_NET = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 8)).double()"""

_INPUTS = {
    "near": "torch.tensor([[0.5, 0.25, -0.25], [0.5, 0.125, 0.75]]).double()",
    "far": "torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0], [0.5, 0.75, 1.0]]).double()",
    "one row": "torch.tensor([[0.5, 0.75, 1.0]]).double()",
}


def _written(run_in_cpp, setup):
    """The example with the file, in which there is code."""
    code = _EXAMPLE.format(setup)
    linecache.cache["<given>"] = (
        len(code),
        None,
        code.splitlines(True),
        "<given>",
    )  # scripting reads the source
    t = expect.given(code, run_in_cpp=run_in_cpp)
    t.run("run_in_cpp(model, example, path)")
    expect.true(t.path.is_file(), "there is no file at `path`")
    names = zipfile.ZipFile(t.path).namelist() if zipfile.is_zipfile(t.path) else []
    expect.true(
        any("/code/" in name for name in names), "the file holds no code, and the program has none either"
    )
    return t


def _wanted(t, x):
    with torch.no_grad():
        return t.model.eval()(x)


@exercise.check(deadline=60)
def both_branches(run_in_cpp):
    """The file brings its own code, with both branches

    A state dict is names and numbers, and a pickle names a class of Python's that has to be there. A trace
    has code: the operators that ran for one input, and no branch. A script has the text of `forward`,
    compiled.
    """
    t = _written(run_in_cpp, _GATE)
    t.run("loaded = torch.jit.load(path)")
    with Rows() as rows, torch.no_grad():
        for label, x in _INPUTS.items():
            with rows.of(label):
                came = t.call(f"loaded({x})")
                expect.equal(came, _wanted(t, eval(x)), what="the result", rtol=1e-10, atol=1e-12)


@exercise.check(deadline=60)
def evaluates(run_in_cpp):
    """A model in training mode is evaluated by the file

    The mode is an attribute of each module, and it is written into the file as it is at that moment. In
    training mode dropout zeroes at random, and a batch norm uses the statistics of the batch at hand.
    """
    t = _written(run_in_cpp, f"{_NET}\nmodel(torch.randn(8, 3).double())")
    t.run("loaded = torch.jit.load(path)")
    for x in (_INPUTS["far"], _INPUTS["near"]):
        with torch.no_grad():
            came = t.call(f"loaded({x})")
        expect.equal(came, _wanted(t, eval(x)), what="the result", rtol=1e-10, atol=1e-12)


@exercise.check(deadline=60)
def left_as_it_was(run_in_cpp):
    """The model keeps its modes, numbers, gradients and hooks

    A scripted module has modes of its own, and shares its parameters with the original. `.eval()` and
    `.train()` reach all modules inside, whatever mode each was in. A shallow copy has the same modules
    inside.
    """
    setup = f"{_NET}\nmodel[1].eval()\nmodel[3].bias.requires_grad_(False)\n"
    setup += "model(torch.randn(8, 3).double()).sum().backward()"
    before = _state(expect.given(setup).model)
    t = _written(run_in_cpp, setup)
    expect.unchanged(t.example, eval(_INPUTS["near"]), what="`example`")
    now = _state(t.model)
    for what, was in before.items():
        expect.equal(now.get(what), was, what=f"afterwards `{what}`", rtol=0, atol=0)


def _state(model):
    """What a training loop goes on with, by its name in code."""
    found = {"model.training": model.training}
    found |= {f"model[{i}].training": module.training for i, module in enumerate(model)}
    found |= {f"model.state_dict()['{name}']": values.clone() for name, values in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        found[f"model.get_parameter('{name}').requires_grad"] = parameter.requires_grad
        found[f"model.get_parameter('{name}').grad"] = parameter.grad
    for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
        found[f"[len(m.{kind}) for m in model.modules()]"] = [len(getattr(m, kind)) for m in model.modules()]
    return found


# Most of the time is for building the program, once: some ten seconds, minutes on a machine that is busy.
@exercise.check(needs=("compiler", "cmake"), deadline=240)
def in_cpp(run_in_cpp):
    """The program in C++ computes the same

    It has LibTorch and the file, and nothing else: no Python, and no class. What `torch.jit.load` reads in
    Python, `torch::jit::load` reads in C++.
    """
    try:
        program = cpp.build(_PROGRAM, "reader")
    except cpp.BuildError as error:
        raise expect.CannotCheck("; ".join(["the program could not be built", *error.lines])) from error
    t = _written(run_in_cpp, _GATE)
    for label, x in _INPUTS.items():
        x = eval(x)
        text = "; ".join(" ".join(map(repr, row)) for row in x.tolist())
        ran = cpp.run(program, t.path, text)
        said = ran.stderr.strip().splitlines()[-1:]
        expect.true(ran.returncode == 0, f"the program ended with exit code {ran.returncode}", *said)
        rows = [[float(number) for number in line.split()] for line in ran.stdout.splitlines()]
        came = torch.tensor(rows, dtype=torch.float64)
        what = f'what the program printed for the input "{text}" ({label})'
        expect.equal(came, _wanted(t, x), what=what, rtol=1e-10, atol=1e-12)
