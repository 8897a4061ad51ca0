"""Predict: what a trace keeps, and what a script keeps

Each function below is traced with `torch.ones(4)` and scripted; so is `Scale`, in evaluation mode. Then
something changes: another input `x`, another mode, another value. All three are run once more, Python's
original, the traced one and the scripted one, in the new situation. Which of the two copies gives what Python
gives?

- `"both"`, `"trace"` (only the traced one), `"script"` (only the scripted one), or `"neither"`.

A copy that raises gives something else than Python.

```python
def branch(x):  # x = -torch.ones(4)
    return x * 2 if x.sum() > 0 else -x

def chosen(x):  # x = -torch.ones(4)
    return torch.where(x > 0, x * 2, -x)

def by_dimension(x):  # x = torch.ones(2, 4)
    return x.sum(0) if x.dim() == 2 else x

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

def in_pairs(x):  # x = torch.arange(6.0)
    return x.view(x.shape[0] // 2, 2)

def last(x):  # x = torch.arange(6.0)
    return x[x.shape[0] - 1]

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.factor = 2.0
        self.drop = nn.Dropout(1.0)  # training: all zeros; evaluation: nothing dropped

    def forward(self, x):
        return self.drop(x) * self.weight * self.factor
```

For the models `x` stays `torch.ones(4)`, and each line says what happens after `model = Scale().eval()` was
traced and scripted. `all three` are the model and its two copies; the last three lines change the model
alone.

The first line is answered. Replace every other `...` before you run any of it.
"""

import functools
import linecache

import torch
from torch import Tensor, nn

from course_utils import evidence, expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=20,
    hints=[
        "A trace is the list of torch's operators that ran for one input. What of each function is an "
        "operator, and what did Python do on its own?",
        "While a trace is taken `x.shape[0]` is no number of Python's: it is recorded, and so is what is "
        "computed from it. `len(x)`, `.item()` and the answer to an `if` are Python's own, and stay as they "
        "were. A script is compiled from the text, with loops and branches; its whole numbers have 64 bits.",
        "Both copies hold the same parameters as the model: the tensors, not the names. An attribute that is "
        "a number was read when the copy was made. A mode is such an attribute too: the script has one of "
        "its own, for its own `.train()`; what a trace recorded does not look at it any more.",
    ],
)


@exercise.starter
def predict_trace() -> dict:
    """Which copy gives what Python gives: `"both"`, `"trace"`, `"script"` or `"neither"`"""
    return {
        "branch": "script",  # an example: this one is answered
        # one input, another input
        "chosen": ...,
        "by_dimension": ...,
        "halved": ...,
        "by_the_largest": ...,
        "big_number": ...,
        # another length
        "summed": ...,
        "mean_by_shape": ...,
        "mean_by_len": ...,
        "in_pairs": ...,
        "last": ...,
        # the model after it was copied
        "all three: .train()": ...,
        "model.weight.data.mul_(3)": ...,
        "model.weight = nn.Parameter(torch.full((4,), 3.0))": ...,
        "model.factor = 3.0": ...,
    }


_WORDS = ("both", "trace", "script", "neither")
_CODE = __doc__.split("```python\n")[1].split("```")[0]
_FILE = "<predict_trace>"


@functools.cache
def _copies():
    """What stands in the task, with a source that a script can be compiled from."""
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


def _truth(line):
    """Which of the two gives what Python gives, run now."""
    names = _copies()
    example = torch.ones(4)
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


# It is the same for every answer that this process grades.
_known = functools.cache(_truth)


def _same(came, wanted):
    return isinstance(came, Tensor) and came.shape == wanted.shape and torch.allclose(came, wanted)


def _compare(predictions, *lines):
    answers = predictions if type(predictions) is dict else {}
    given = [(line, answers[line]) for line in lines if line in answers]
    if strange := [(line, word) for line, word in given if isinstance(word, str) and word not in _WORDS]:
        evidence.record("not one of the words", strange)
        raise expect.Mismatch(
            *(f"`{line}`: {word!r} is not one of the four words" for line, word in strange),
            'expected: `"both"`, `"trace"`, `"script"` or `"neither"`, in lower case',
        )
    truths = {line: _known(line) for line in lines}
    expect.all_predicted(predictions, truths, names=exercise.starter_object())


@exercise.check(deadline=60)
def values(predict_trace):
    """A decision or a number that comes from values"""
    _compare(predict_trace(), "branch", "chosen", "by_dimension", "halved", "by_the_largest", "big_number")


@exercise.check(deadline=60)
def shapes(predict_trace):
    """Another length than the one that was traced"""
    _compare(predict_trace(), "summed", "mean_by_shape", "mean_by_len", "in_pairs", "last")


@exercise.check(deadline=60)
def models(predict_trace):
    """A model that changes after it was copied"""
    _compare(
        predict_trace(),
        "all three: .train()",
        "model.weight.data.mul_(3)",
        "model.weight = nn.Parameter(torch.full((4,), 3.0))",
        "model.factor = 3.0",
    )


@exercise.check(deadline=60)
def written_down(predict_trace):
    """The predictions are written down, not computed"""
    expect.written_down(predict_trace)


# What the people below believe of the lines that their misunderstanding does not touch.
_ELSEWHERE = {
    "branch": "script",
    "chosen": "both",
    "by_dimension": "script",
    "halved": "script",
    "by_the_largest": "script",
    "big_number": "trace",
    "summed": "script",
    "mean_by_shape": "both",
    "mean_by_len": "script",
    "in_pairs": "both",
    "last": "both",
    "all three: .train()": "script",
    "model.weight.data.mul_(3)": "both",
    "model.weight = nn.Parameter(torch.full((4,), 3.0))": "neither",
    "model.factor = 3.0": "neither",
}


def _where(change):
    """The lines above, changed by `change(line, answer)`."""
    return {line: change(line, answer) for line, answer in _ELSEWHERE.items()}


@exercise.mistake
def asks_torch():
    """You let torch compute the answers. They are right, and you have not found out what you believed:
    write the lines down first, then run the check."""
    return {line: _truth(line) for line in _ELSEWHERE}


@asks_torch.variant
def tries_one_of_them():
    x = torch.ones(4)
    return {**_ELSEWHERE, "branch": "script" if (-x).sum() < 0 else "both"}


@exercise.mistake
def shapes_are_constants():
    """You take every shape for a constant in the trace. While a trace is taken `x.shape[0]` is recorded as an
    operator, and so is the arithmetic with it. What becomes a constant is a shape that Python turned into a
    number of its own: with `len`, with `int`, in a `range`, in an `if`."""
    return {**_ELSEWHERE, "mean_by_shape": "script", "in_pairs": "script", "last": "script"}


@shapes_are_constants.variant
def a_trace_is_for_one_shape():
    lengths = ("summed", "mean_by_shape", "mean_by_len", "in_pairs", "last")
    return _where(lambda line, answer: "script" if line in lengths else answer)


@exercise.mistake
def arithmetic_makes_constants():
    """You take a shape for a constant once something is computed from it. What is recorded stays recorded:
    half of `x.shape[0]`, or one less, is an operator of its own, and may be a size or an index."""
    return {**_ELSEWHERE, "in_pairs": "script", "last": "script"}


@arithmetic_makes_constants.form
def an_index_is_a_constant():
    return {**_ELSEWHERE, "last": "script"}


@exercise.mistake
def len_is_the_shape():
    """You take `len(x)` for the same as `x.shape[0]`. Python insists that `len` gives a whole number of its
    own, so no tracer can hand out anything else: it becomes a constant, with a warning."""
    return {**_ELSEWHERE, "mean_by_len": "both"}


@exercise.mistake
def traces_keep_loops_over_rows():
    """You expect a trace to keep a loop over the elements of a tensor. A trace has no loops: it holds four
    additions, one for each element that there was."""
    return {**_ELSEWHERE, "summed": "both"}


@exercise.mistake
def traces_follow_python():
    """You expect a decision that Python took, a branch or the end of a loop, to be taken again when the trace
    runs. It is the list of the operators that ran once: which branch was taken, how often a loop ran and what
    `.item()` gave is not in it, only what came of it."""
    decided = ("branch", "by_dimension", "halved", "by_the_largest", "summed", "mean_by_len")
    return _where(lambda line, answer: "both" if line in decided else answer)


@traces_follow_python.form
def all_but_the_branch_that_was_answered():
    decided = ("by_dimension", "halved", "by_the_largest")
    return _where(lambda line, answer: "both" if line in decided else answer)


@traces_follow_python.form
def loops_are_recorded():
    return {**_ELSEWHERE, "halved": "both"}


@traces_follow_python.form
def dimensions_are_recorded():
    return {**_ELSEWHERE, "by_dimension": "both"}


@exercise.mistake
def where_is_a_branch():
    """You take `torch.where` for a branch. It is one operator: it is given both sides and chooses for every
    element, each time that it runs, so a trace that holds it chooses anew."""
    return {**_ELSEWHERE, "chosen": "script"}


@exercise.mistake
def items_are_recorded():
    """You expect `.item()` to be recorded. It gives a number of Python's own, and the trace divides by that
    number for ever. A tensor that stays a tensor, `x / x.max()`, would be recorded."""
    return {**_ELSEWHERE, "by_the_largest": "both"}


@exercise.mistake
def scripts_are_python():
    """You expect a script to compute with Python's numbers. Its language looks like Python, and its `int` has
    64 bits: the product does not fit, and what is left of it is another number, without an error. The trace
    has what Python itself computed."""
    return {**_ELSEWHERE, "big_number": "both"}


@exercise.mistake
def traces_get_it_wrong_too():
    """You expect the trace to have another product than Python. The loop ran in Python while it was traced,
    with numbers of any length, and the trace holds what came of it."""
    return {**_ELSEWHERE, "big_number": "neither"}


@traces_get_it_wrong_too.form
def the_loop_is_lost():
    return {**_ELSEWHERE, "big_number": "script"}


@exercise.mistake
def modes_reach_the_trace():
    """You expect `.train()` to reach the operators of a trace. Dropout did nothing while it was traced, and
    `training=False` is what was recorded. A script reads its flag each time it runs."""
    return {**_ELSEWHERE, "all three: .train()": "both"}


@exercise.mistake
def modes_are_read_once():
    """You expect a script to stay in the mode that it was compiled in. The mode is an attribute of it, which
    its own `.train()` changes, and its dropout asks for that each time it runs."""
    return {**_ELSEWHERE, "all three: .train()": "neither"}


@exercise.mistake
def copies_own_their_weights():
    """You expect a copy to have weights of its own. Trace and script hold the same parameters as the model:
    a write into the tensor reaches all three, and only another tensor under the name does not."""
    return {**_ELSEWHERE, "model.weight.data.mul_(3)": "neither"}


@copies_own_their_weights.form
def the_trace_owns_its_weights():
    return {**_ELSEWHERE, "model.weight.data.mul_(3)": "script"}


@copies_own_their_weights.form
def the_script_owns_its_weights():
    return {**_ELSEWHERE, "model.weight.data.mul_(3)": "trace"}


@exercise.mistake
def copies_look_names_up():
    """You expect a copy to look at the model again. It was made from what the model held then: a number was
    read once, and a new parameter is a new tensor, of which the copy knows nothing."""
    return _where(lambda line, answer: "both" if line.startswith("model.") else answer)


_PARAMETER = "model.weight = nn.Parameter(torch.full((4,), 3.0))"


@copies_look_names_up.form
def the_script_looks_names_up():
    return {**_ELSEWHERE, _PARAMETER: "script", "model.factor = 3.0": "script"}


@copies_look_names_up.form
def they_look_for_the_parameter():
    return {**_ELSEWHERE, _PARAMETER: "both"}


@copies_look_names_up.form
def they_look_for_the_number():
    return {**_ELSEWHERE, "model.factor = 3.0": "both"}


@copies_look_names_up.form
def the_script_looks_for_the_number():
    return {**_ELSEWHERE, "model.factor = 3.0": "script"}
