"""Predict: what a trace keeps, and what a script keeps

Each function in the docstring below is traced with `torch.ones(4)` and scripted; so is `model = Scale()`, in
evaluation mode. Then Python's original and both copies run with another input: the `x` beside the function.
For the lines below `# the model` it is `torch.ones(4)`, after the line has run. `all three` are the model and
its two copies; the other lines change the model alone.

Which copies give what Python gives? Answer `"both"`, `"trace"` (only the traced one), `"script"` (only the
scripted one) or `"neither"`. A copy that raises gives something else. The first line is answered.
"""

import functools
import inspect
import linecache

import torch
from torch import Tensor, nn

from course_utils.exercise import Exercise, predict

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "A trace is the list of torch's operators that ran for one input. What of each function is an "
        "operator, and what did Python do on its own?",
        "While a trace is taken `x.shape[0]` is no number of Python's: it is recorded. `len(x)`, "
        "`.item()` and the answer to an `if` are Python's own, and stay as they "
        "were. A script is compiled from the text, with loops and branches; its whole numbers have 64 bits.",
        "Both copies hold the same parameters as the model: the tensors, not the names. An attribute that is "
        "a number was read when the copy was made. A mode is such an attribute too: the script has one of "
        "its own, for its own `.train()`; what a trace recorded does not look at it any more.",
    ],
)


@exercise.starter
def predict_trace() -> dict:
    """Which copy gives what Python gives: `"both"`, `"trace"`, `"script"` or `"neither"`

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
            self.drop = nn.Dropout(1.0)  # training: all zeros; evaluation: nothing dropped

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
    "branch": "A trace has the operators that ran; the `if` was Python's. "
    "A script is compiled from the text.",
    "chosen": "`torch.where` is one operator: it decides for each element when it runs, in both copies.",
    "halved": "The trace has as many halvings as the first input took. In a script the loop is a loop.",
    "by_the_largest": "`.item()` makes a number of Python's, and a trace keeps it as a constant.",
    "big_number": "Whole numbers of a script have 64 bits and wrap around without an error. The trace has "
    "the number that Python computed.",
    "summed": "Going through a tensor is Python's: the trace has four additions, and six elements raise "
    "or are left out.",
    "mean_by_shape": "While a trace is taken a size is recorded as an operator, and asked anew each time.",
    "mean_by_len": "`len` makes a number of Python's, and a trace keeps it as a constant.",
    "all three: .train()": "A script has a mode of its own. A trace has recorded a dropout that "
    "drops nothing, and looks at no mode.",
    "model.weight.data.mul_(3)": "Both copies hold the model's parameters: a write into one reaches them.",
    "model.weight = nn.Parameter(torch.full((4,), 3.0))": "Both copies hold the tensor, not the name. "
    "Another tensor under the name is not theirs.",
    "model.factor = 3.0": "An attribute that is a number was read when the copy was made.",
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


@exercise.check(deadline=60)
def values(predict_trace):
    """A decision or a number that comes from values

    A trace is the list of torch's operators that ran for one input. What Python decides or computes on its
    own is not in it.
    """
    _compare(predict_trace, "branch", "chosen", "halved", "by_the_largest", "big_number")


@exercise.check(deadline=60)
def shapes(predict_trace):
    """Another length than the one that was traced

    A size that is asked for as `x.shape[0]` is recorded. A loop over the elements and `len` are not.
    """
    _compare(predict_trace, "summed", "mean_by_shape", "mean_by_len")


@exercise.check(deadline=60)
def models(predict_trace):
    """A model that changes after it was copied

    Both copies share the model's tensors and nothing else. The mode is an attribute of a script.
    """
    _compare(predict_trace, *[line for line in _WHYS if " " in line or "." in line])
