"""Run it in C++

A C++ program loads your file with `torch::jit::load`. It calls `forward` with several inputs, each a matrix
in double precision, and prints the results. It has LibTorch and the file, but no Python and none of your
classes.

Write the file. `run_in_cpp(model, example, path)` gets a model that can be scripted, an example input (both
in double precision), and the path.

- The program computes what `model` computes in evaluation mode, even if `model` is in training mode.
- It does so for every batch size and on every branch of `forward`.
- `model` and `example` don't change: modes, numbers, gradients, hooks.

After the call, `torch.jit.load(path)(example)` → the result of `model.eval()(example)`
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from course_utils import cpp
from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits.exported import answering, content, expect_ended_well

exercise = Exercise(
    minutes=15,
    hints=[
        "What must be in the file so that a program without Python can take either branch? Weights alone "
        "don't say how they're used, and a recording of one input has one branch.",
        "A scripted module has its own `.train()` and `.eval()`, which reach all modules inside it.",
        "The file holds the mode of the moment. Which of the two modules may you switch, the model or the "
        "script, and when?",
    ],
)


@exercise.starter
def run_in_cpp(model: nn.Module, example: Tensor, path: Path) -> None:
    """Writes a file from which C++ computes what `model` does in evaluation mode"""
    raise NotImplementedError


_PROGRAM = r"""
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
  size_t end = said.find("\nException raised from");  // C++ frames from here on
  std::fprintf(stderr, "%s: %s\n", what, said.substr(0, end).c_str());
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
        std::printf("\n");
      }
    }
  } catch (const std::exception& error) {
    return fail(3, "forward failed", error);
  }
}
"""

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
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 8)).double()
model(torch.randn(8, 3).double()).sum().backward()"""

# Each can be scripted, and changes no result.
_HOOKS = """
def forward_hook(self, x: tuple[torch.Tensor], y: torch.Tensor): pass

model[0].register_forward_hook(forward_hook)
model[1].register_full_backward_hook(lambda *_: None)
model[3].weight.register_hook(lambda grad: None)""".strip()

_INPUTS = {
    "near": "torch.tensor([[0.5, 0.25, -0.25], [0.5, 0.125, 0.75]]).double()",
    "far": "torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0], [0.5, 0.75, 1.0]]).double()",
    "one row": "torch.tensor([[0.5, 0.75, 1.0]]).double()",
}


def _given(run_in_cpp, model):
    """The example before the call."""
    setup = f"import pathlib, tempfile\n{model}\nexample = {_INPUTS['near']}\n"
    setup += 'folder = tempfile.TemporaryDirectory()\npath = pathlib.Path(folder.name, "model.pt")'
    return expect.given(setup, run_in_cpp=run_in_cpp)


def _written(run_in_cpp, model):
    """The example with the file, in which there is code."""
    t = _given(run_in_cpp, model)
    t.run("run_in_cpp(model, example, path)")
    held = content(t.path)
    expect.true(held == "a script", f"the file holds {held}, and `torch::jit::load` reads only scripts")
    return t


def _called(t, x):
    """What the file, loaded as `loaded`, gives for this input."""
    with torch.no_grad(), answering(len(eval(x)), "the script in the file"):
        return t.call(f"loaded({x})")


def _expect(came, t, x, what="the result"):
    """It is what the model computes in evaluation mode."""
    with torch.no_grad():
        expect.equal(came, t.model.eval()(eval(x)), what=what, rtol=1e-10, atol=1e-12)


@exercise.check(deadline=60)
def both_branches(run_in_cpp):
    """The file brings its own code, with both branches

    A state dict has names and numbers. A pickle names a Python class that must be there. A trace of this
    model has the operators of one input and no branch. A script has the compiled source of `forward`.
    """
    t = _written(run_in_cpp, _GATE)
    t.run("loaded = torch.jit.load(path)")
    with Rows() as rows:
        for label, x in _INPUTS.items():
            with rows.of(label):
                _expect(_called(t, x), t, x)


@exercise.check(deadline=60)
def evaluates(run_in_cpp):
    """The file evaluates, also when the model is in training mode

    `torch.jit.script` makes the mode an attribute of each module, and the file holds it as it was when you
    saved. In training mode dropout zeroes at random, and a batch norm uses the statistics of the batch.
    """
    t = _written(run_in_cpp, _NET)
    t.run("loaded = torch.jit.load(path)")
    for x in _INPUTS["far"], _INPUTS["near"]:
        _expect(_called(t, x), t, x)


@exercise.check(deadline=60)
def left_as_it_was(run_in_cpp):
    """The model keeps its modes, numbers, gradients and hooks

    A script has its own modes, and shares its parameters with the model. `.eval()` and `.train()` switch all
    modules inside, so one call can't restore modes that differed. A shallow copy holds the same modules and
    hooks.
    """
    mixed = "model.append(nn.Sequential(model[2].eval()))\nmodel[3].bias.requires_grad_(False)"
    t = _given(run_in_cpp, f"{_NET}\n{mixed}\n{_HOOKS}")
    model = expect.left_alone(t.model, what="model", gradients=True)
    with model, expect.left_alone(t.example, what="`example`"):
        t.run("run_in_cpp(model, example, path)")


# Most of the time is for building the program, once: some ten seconds, minutes on a machine that is busy.
@exercise.check(needs=("compiler", "cmake"), deadline=240)
def in_cpp(run_in_cpp):
    """The C++ program computes the same

    It has LibTorch and the file, and nothing else. `torch::jit::load` is `torch.jit.load` in C++.
    """
    try:
        program = cpp.build(_PROGRAM, "reader")
    except cpp.BuildError as error:
        raise expect.CannotCheck("; ".join(["the program could not be built", *error.lines])) from error
    t = _written(run_in_cpp, _GATE)
    for label, x in _INPUTS.items():
        text = "; ".join(" ".join(map(repr, row)) for row in eval(x).tolist())
        ran = cpp.run(program, t.path, text)
        expect_ended_well(ran, f"the program, given a batch of size {len(eval(x))},")
        rows = [[float(number) for number in line.split()] for line in ran.stdout.splitlines()]
        what = f'what the program printed for the input "{text}" ({label})'
        _expect(torch.tensor(rows, dtype=torch.float64), t, x, what)
