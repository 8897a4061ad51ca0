"""Predict: what a trace keeps, and what a script keeps

Each function in the docstring below is traced with `torch.ones(4)`, and scripted. So is `model = Scale()`, in
evaluation mode. Then the original and both copies get another input: the `x` beside the function. For the
lines below `# the model` it is `torch.ones(4)`, after the line has run. `all three` are the model and its two
copies; the other lines change the model alone.

Which copies give what Python gives? Answer `"both"`, `"trace"` (only the traced one), `"script"` (only the
scripted one) or `"neither"`. A copy that raises gives something else. The first line is answered. Replace
every `...` before you run any of it.
"""

import functools
import inspect
import linecache

import torch
from torch import Tensor, nn

from course_utils.exercise import Exercise, predict

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "A trace is the list of operators that ran for one input. Which parts of each function are "
        "operators, and which did Python do?",
        "During a trace, `x.shape[0]` isn't a Python number: here it's recorded. `len(x)`, `.item()` and the "
        "answer to an `if` are Python's, and become constants. A script is compiled from the source, with "
        "loops and branches; its whole numbers have 64 bits.",
        "Both copies hold the model's parameters: the tensors, not the names. They read an attribute that "
        "is a number when they were made. The mode is such an attribute: the script has its own, for its "
        "own `.train()`. A trace recorded what the mode led to, and doesn't read it.",
    ],
)


@exercise.starter
def predict_trace() -> dict:
    """Which copy gives what Python gives: `"both"`, `"trace"`, `"script"`, `"neither"`

    def branch(x):  # x = -torch.ones(4)
        return x * 2 if x.sum() > 0 else -x

    def chosen(x):  # x = -torch.ones(4)
        return torch.where(x > 0, x * 2, -x)

    def halved(x):  # x = torch.full((4,), 5.0)
        while x.norm() > 1:
            x = x / 2
        return x

    def by_the_largest(x):  # x = torch.tensor([1.0, 2.0, 3.0, 4.0])
        return x / x.max().item()

    def big_number(x):  # x = torch.zeros(4)
        product = 1
        for i in range(1, 26):
            product = product * i  # a number of 26 digits in the end
        return x + product / 1e25

    def summed(x):  # x = torch.arange(6.0)
        total = torch.zeros(())
        for number in x:
            total = total + number
        return total

    def mean_by_shape(x):  # x = torch.arange(6.0)
        return x.sum() / x.shape[0]

    def mean_by_len(x):  # x = torch.arange(6.0)
        return x.sum() / len(x)

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.factor = 2.0
            self.drop = nn.Dropout(1.0)  # training: zeros; evaluation: all stays

        def forward(self, x):
            return self.drop(x) * self.weight * self.factor
    """
    return {
        "branch": "script",  # an example: this one is answered
        # one input, another input
        "chosen": ...,
        "halved": ...,
        "by_the_largest": ...,
        "big_number": ...,
        # another length
        "summed": ...,
        "mean_by_shape": ...,
        "mean_by_len": ...,
        # the model
        "all three: .train()": ...,
        "model.weight.data.mul_(3)": ...,
        "model.weight = nn.Parameter(torch.full((4,), 3.0))": ...,
        "model.factor = 3.0": ...,
    }


_WORDS = ("both", "trace", "script", "neither")
_CODE = inspect.getdoc(exercise.starter_object).partition("\n\n")[2] + "\n"
_FILE = "<predict_trace>"

_WHYS = {
    "branch": "A trace has the operators that ran; Python decided the `if`. A script has the `if`.",
    "chosen": "`torch.where` is an operator: both copies decide for each element when they run.",
    "halved": "The trace has as many halvings as the first input took. The script has the loop.",
    "by_the_largest": "`.item()` returns a Python number, and a trace keeps it as a constant.",
    "big_number": "Whole numbers of a script have 64 bits and wrap around without an error. The trace has "
    "the number that Python computed.",
    "summed": "Python goes through the tensor: the trace has four additions, whatever the input.",
    "mean_by_shape": "The trace recorded this size as an operator, and asks for it in each call.",
    "mean_by_len": "`len` returns a Python number, and a trace keeps it as a constant.",
    "all three: .train()": "A script has a mode of its own. A trace recorded a dropout that drops nothing, "
    "and reads no mode.",
    "model.weight.data.mul_(3)": "Both copies hold the model's parameters, so a write reaches them.",
    "model.weight = nn.Parameter(torch.full((4,), 3.0))": "Both copies hold the old tensor. They don't look "
    "up the name again.",
    "model.factor = 3.0": "The copies read the number when they were made.",
}


@functools.cache
def _copies():
    """What stands in the docstring, with a source that a script can be compiled from."""
    linecache.cache[_FILE] = (len(_CODE), None, _CODE.splitlines(keepends=True), _FILE)
    names = {"torch": torch, "nn": nn, "__name__": "predict_trace"}
    exec(compile(_CODE, _FILE, "exec"), names)
    return names


def _input_of(name):
    line = next(line for line in _CODE.splitlines() if line.startswith(f"def {name}("))
    return eval(line.partition("# x = ")[2], {"torch": torch})


def _came(function, x):
    try:
        return function(x.clone())
    except RuntimeError as error:  # a trace that meets a shape for which it cannot run
        return error


@functools.cache
def _truth(line):
    """Which of the two gives what Python gives: run once in each process, the same for every answer."""
    names, example = _copies(), torch.ones(4)
    of_model = line not in names
    original = names["Scale"]().eval() if of_model else names[line]
    traced = torch.jit.trace(original, example, check_trace=False)
    scripted = torch.jit.script(original)
    x = example if of_model else _input_of(line)
    if line.startswith("all three"):
        for model in (original, traced, scripted):
            model.train()
    elif of_model:
        exec(line, {"torch": torch, "nn": nn, "model": original})
    with torch.no_grad():
        wanted = _came(original, x)
        right = [_same(_came(copy, x), wanted) for copy in (traced, scripted)]
    return {(True, True): "both", (True, False): "trace", (False, True): "script"}.get((*right,), "neither")


def _same(came, wanted):
    return isinstance(came, Tensor) and came.shape == wanted.shape and torch.allclose(came, wanted)


def _compare(predict_trace, *lines):
    truths = {line: _truth(line) for line in lines}
    answers = predict.written_down(predict_trace)
    predict.compare(answers, truths, _WHYS, words=_WORDS, all_lines=_WHYS)


predict.add_check(exercise)


@exercise.check(deadline=60)
def values(predict_trace):
    """A decision or a number that comes from values

    A trace is the list of operators that ran for one input. What Python decided or computed isn't in it.
    """
    _compare(predict_trace, "branch", "chosen", "halved", "by_the_largest", "big_number")


@exercise.check(deadline=60)
def shapes(predict_trace):
    """Another length than the one that was traced

    Here `x.shape[0]` is recorded as an operator. A loop over the elements and `len` aren't.
    """
    _compare(predict_trace, "summed", "mean_by_shape", "mean_by_len")


@exercise.check(deadline=60)
def models(predict_trace):
    """A model that changes after it was copied

    Both copies share the model's tensors, and read its other attributes when they were made. The mode is an
    attribute of a script.
    """
    _compare(predict_trace, *[line for line in _WHYS if " " in line or "." in line])
