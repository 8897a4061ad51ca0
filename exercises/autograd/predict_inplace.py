"""Predict: raises, safe, or wrong

`x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)`. Each line writes to a tensor in place; then
`y.sum().backward()` runs. For each line write down what comes of it:

- `"raises"`: an error, in the line itself or in backward;
- `"safe"`: it runs, and `x.grad` is the gradient of what was computed: how the sum changes with the numbers
  that `x` held at the beginning;
- `"wrong"`: it runs without an error, and `x.grad` is something else.

The first line is answered: `y + 1` writes to nothing. Replace every other `...` before you run any of the
lines. For each ask what an operator has kept for its backward, whether that was changed afterwards, and
whether autograd could notice."""

import torch

from course_utils import evidence, expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=20,
    hints=[
        "The derivative of `exp` is its result, that of `sin` is computed from its input, that of `x + 1` "
        "needs neither. What each of them keeps follows from that.",
        "Every tensor counts the writes to it, in `_version`. What is kept for backward is kept with the "
        "number that it had; backward compares, and raises where they differ. It does not compare values. A "
        "view and a detached tensor count together with their source; `.data` and NumPy do not.",
        "An error comes only where something was changed that backward reads. So a write is harmless after "
        "operators that kept nothing, and an operator that works in place can keep its own result. And where "
        "two names stand for one tensor, a write through one changes the other, which is no matter for "
        "autograd: it differentiates what was computed.",
    ],
)


@exercise.starter
def predict_inplace() -> dict:
    """What comes of each line: `"raises"`, `"safe"` or `"wrong"`"""
    return {
        "y = x.exp(); y = y + 1": "safe",  # an example: this one is answered
        # a result
        "y = x + 1; y += 1": ...,
        "y = x.exp(); y += 1": ...,
        "y = x.sin(); y += 1": ...,
        "y = x.exp(); y *= 1": ...,
        "y = x * 2; y.exp_()": ...,
        # x itself
        "x += 1; y = x * x": ...,
        "y = x * x; x.detach().add_(1)": ...,
        "y = x * x; x.data += 1": ...,
        "y = x + 1; x.data += 1": ...,
        "y = x * x; x.detach().numpy()[:] = 0": ...,
        # parts and operands
        "y = x.exp(); y[0] = 0": ...,
        "y = torch.zeros(2); y[:] = x[:2] * x[1:]": ...,
        "w = torch.ones(3); y = x * w; w.zero_()": ...,
        "h = x * 2; y = h.relu_() + h": ...,
    }


# The same lines, with every write into a new tensor.
_OUT_OF_PLACE = {
    "y = x.exp(); y = y + 1": "y = x.exp() + 1",
    "y = x + 1; y += 1": "y = (x + 1) + 1",
    "y = x.exp(); y += 1": "y = x.exp() + 1",
    "y = x.sin(); y += 1": "y = x.sin() + 1",
    "y = x.exp(); y *= 1": "y = x.exp() * 1",
    "y = x * 2; y.exp_()": "y = (x * 2).exp()",
    "x += 1; y = x * x": "h = x + 1; y = h * h",
    "y = x * x; x.detach().add_(1)": "y = x * x",
    "y = x * x; x.data += 1": "y = x * x",
    "y = x + 1; x.data += 1": "y = x + 1",
    "y = x * x; x.detach().numpy()[:] = 0": "y = x * x",
    "y = x.exp(); y[0] = 0": "y = x.exp() * torch.tensor([0.0, 1.0, 1.0])",
    "y = torch.zeros(2); y[:] = x[:2] * x[1:]": "y = x[:2] * x[1:]",
    "w = torch.ones(3); y = x * w; w.zero_()": "y = x * torch.ones(3)",
    "h = x * 2; y = h.relu_() + h": "h = (x * 2).relu(); y = h + h",
}


def _gradient(code):
    x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)
    names = {"torch": torch, "x": x}
    exec(code, names)
    names["y"].sum().backward()
    return x.grad


def _truth(code):
    try:
        came = _gradient(code)
    except RuntimeError:
        return "raises"
    return "safe" if torch.allclose(came, _gradient(_OUT_OF_PLACE[code])) else "wrong"


_WORDS = ("raises", "safe", "wrong")


def _compare(predictions, *lines):
    answers = predictions if type(predictions) is dict else {}
    given = [(line, answers[line]) for line in lines if line in answers]
    if strange := [(line, word) for line, word in given if isinstance(word, str) and word not in _WORDS]:
        evidence.record("not one of the words", strange)
        raise expect.Mismatch(
            *(f"`{line}`: {word!r} is not one of the three words" for line, word in strange),
            'expected: `"raises"`, `"safe"` or `"wrong"`, in lower case',
        )
    truths = {line: _truth(line) for line in lines}
    expect.all_predicted(predictions, truths, names=exercise.starter_object())


@exercise.check
def a_result(predict_inplace):
    """A write to the result of an operator"""
    _compare(
        predict_inplace(),
        "y = x.exp(); y = y + 1",
        "y = x + 1; y += 1",
        "y = x.exp(); y += 1",
        "y = x.sin(); y += 1",
        "y = x.exp(); y *= 1",
        "y = x * 2; y.exp_()",
    )


@exercise.check
def x_itself(predict_inplace):
    """A write to `x`"""
    _compare(
        predict_inplace(),
        "x += 1; y = x * x",
        "y = x * x; x.detach().add_(1)",
        "y = x * x; x.data += 1",
        "y = x + 1; x.data += 1",
        "y = x * x; x.detach().numpy()[:] = 0",
    )


@exercise.check
def parts_and_operands(predict_inplace):
    """A write to a part, to an operand, and under another name"""
    _compare(
        predict_inplace(),
        "y = x.exp(); y[0] = 0",
        "y = torch.zeros(2); y[:] = x[:2] * x[1:]",
        "w = torch.ones(3); y = x * w; w.zero_()",
        "h = x * 2; y = h.relu_() + h",
    )


@exercise.check
def written_down(predict_inplace):
    """The predictions are written down, not computed"""
    expect.written_down(predict_inplace)


# What the people below believe of the lines that their misunderstanding does not touch.
_ELSEWHERE = {
    "y = x.exp(); y = y + 1": "safe",
    "y = x + 1; y += 1": "safe",
    "y = x.exp(); y += 1": "raises",
    "y = x.sin(); y += 1": "safe",
    "y = x.exp(); y *= 1": "raises",
    "y = x * 2; y.exp_()": "safe",
    "x += 1; y = x * x": "raises",
    "y = x * x; x.detach().add_(1)": "raises",
    "y = x * x; x.data += 1": "wrong",
    "y = x + 1; x.data += 1": "safe",
    "y = x * x; x.detach().numpy()[:] = 0": "wrong",
    "y = x.exp(); y[0] = 0": "raises",
    "y = torch.zeros(2); y[:] = x[:2] * x[1:]": "safe",
    "w = torch.ones(3); y = x * w; w.zero_()": "raises",
    "h = x * 2; y = h.relu_() + h": "safe",
}


@exercise.mistake
def asks_torch():
    """You let torch compute the answers. They are right, and you have not found out what you believed:
    write the lines down first, then run the check."""
    return {line: _truth(line) for line in _ELSEWHERE}


@asks_torch.variant
def tries_one_of_them():
    x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)
    return {**_ELSEWHERE, "y = x.sin(); y += 1": "safe" if x.sin().add_(1).requires_grad else "raises"}


@exercise.mistake
def every_write_raises():
    """You expect an error wherever something in the graph is written to. Autograd records in-place operations
    like others, and raises only where a write changed what some operator kept for its backward: `x + 1` kept
    nothing, and `sin` kept its input, not its result."""
    return {
        **_ELSEWHERE,
        "y = x + 1; y += 1": "raises",
        "y = x.sin(); y += 1": "raises",
        "y = x * 2; y.exp_()": "raises",
        "y = torch.zeros(2); y[:] = x[:2] * x[1:]": "raises",
        "h = x * 2; y = h.relu_() + h": "raises",
    }


@every_write_raises.form
def every_write_to_a_result_raises():
    return {
        **_ELSEWHERE,
        "y = x + 1; y += 1": "raises",
        "y = x.sin(); y += 1": "raises",
        "y = x * 2; y.exp_()": "raises",
    }


@every_write_raises.form
def every_addition_to_a_result_raises():
    return {**_ELSEWHERE, "y = x + 1; y += 1": "raises", "y = x.sin(); y += 1": "raises"}


@every_write_raises.form
def all_but_data_raise():
    return {
        line: "raises" if answer == "safe" and "y + 1" not in line else answer
        for line, answer in _ELSEWHERE.items()
    }


@exercise.mistake
def everything_raises():
    """You expect an error from every line that writes in place. Autograd records in-place operations like
    others, and raises only where it sees a write to something that an operator kept for its backward.
    `x + 1` kept nothing, and `sin` its input, not its result. And `.data` and NumPy write unseen."""
    return {line: answer if "y + 1" in line else "raises" for line, answer in _ELSEWHERE.items()}


@exercise.mistake
def everything_is_safe():
    """You expect that no later write reaches what backward reads, as if operators kept copies. They keep the
    tensors themselves, with the version that they have then. A write to one that was kept is counted, and
    backward raises; where it is not counted, the gradient comes out wrong."""
    raises = "x += 1; y = x * x"
    return {line: answer if line == raises else "safe" for line, answer in _ELSEWHERE.items()}


@everything_is_safe.form
def even_a_write_to_a_leaf():
    return dict.fromkeys(_ELSEWHERE, "safe")


@exercise.mistake
def results_are_always_kept():
    """You expect an operator to keep its result. Some do, since their derivative is computed from it: `exp`,
    `sigmoid`, `relu`. `sin` keeps its input, because its derivative is `cos(x)`; its result is nobody's
    concern any more."""
    return {**_ELSEWHERE, "y = x.sin(); y += 1": "raises"}


@exercise.mistake
def an_addition_keeps_its_result():
    """An addition keeps neither its operands nor its result: its derivative is 1. So a write to the result
    changes nothing that backward reads, and the write is recorded like any other operator."""
    return {**_ELSEWHERE, "y = x + 1; y += 1": "raises"}


@exercise.mistake
def an_addition_to_exp_is_harmless():
    """`y += 1` needs nothing itself, and it writes to what `exp` kept: its derivative is its result, `y`. The
    write is counted, and backward raises."""
    return {**_ELSEWHERE, "y = x.exp(); y += 1": "safe"}


@exercise.mistake
def the_result_of_exp_may_change():
    """You expect a write to the result of `exp` to be safe. The derivative of `exp` is its own result, and
    that is what it keeps: a write to `y` is counted, and backward raises."""
    return {
        **_ELSEWHERE,
        "y = x.exp(); y += 1": "safe",
        "y = x.exp(); y *= 1": "safe",
        "y = x.exp(); y[0] = 0": "safe",
    }


@exercise.mistake
def values_are_compared():
    """`y *= 1` changes no value, and backward raises all the same: it compares how often a tensor was written
    to, which is one number, and not what it holds."""
    return {**_ELSEWHERE, "y = x.exp(); y *= 1": "safe"}


@exercise.mistake
def errors_are_wrong_gradients():
    """You expect a wrong gradient where a kept tensor was changed. Autograd notices: the tensor was kept with
    its version, every write counts the version up, and backward raises where the two differ."""
    swaps = {line: "wrong" for line, answer in _ELSEWHERE.items() if answer == "raises"}
    return {**_ELSEWHERE, **swaps, "x += 1; y = x * x": "raises"}


@exercise.mistake
def own_result_is_spoilt():
    """`exp_` writes its result over its input, and keeps that result: what its backward reads is what was
    written last. What was overwritten, the product, is read by nobody."""
    return {**_ELSEWHERE, "y = x * 2; y.exp_()": "raises"}


@own_result_is_spoilt.form
def own_result_is_wrong():
    return {**_ELSEWHERE, "y = x * 2; y.exp_()": "wrong"}


@exercise.mistake
def a_leaf_may_be_written_to():
    """A leaf that requires a gradient cannot be written to while grad mode is on: afterwards it would be the
    result of an operator, and `x.grad` belongs to the leaf. Under `no_grad` it can, which is how optimizers
    do it."""
    return {**_ELSEWHERE, "x += 1; y = x * x": "safe"}


@a_leaf_may_be_written_to.form
def a_leaf_is_silently_wrong():
    return {**_ELSEWHERE, "x += 1; y = x * x": "wrong"}


@exercise.mistake
def detach_hides_the_write():
    """A detached tensor shares the storage of `x` and its version counter too. A write through it is counted,
    and backward raises. `.data` is what has a counter of its own."""
    return {**_ELSEWHERE, "y = x * x; x.detach().add_(1)": "wrong"}


@exercise.mistake
def detach_is_a_copy():
    """You expect a detached tensor to be a copy. It shares its storage with `x`, and so does the NumPy array
    made of it: a write to either changes what the product kept."""
    return {
        **_ELSEWHERE,
        "y = x * x; x.detach().add_(1)": "safe",
        "y = x * x; x.detach().numpy()[:] = 0": "safe",
    }


@detach_is_a_copy.form
def detach_alone_is_a_copy():
    return {**_ELSEWHERE, "y = x * x; x.detach().add_(1)": "safe"}


@exercise.mistake
def data_is_noticed():
    """You expect an error after a write through `.data`. It shares the storage, but counts versions by
    itself: nothing tells backward that what the product kept has changed. It computes with the new values."""
    return {**_ELSEWHERE, "y = x * x; x.data += 1": "raises"}


@data_is_noticed.form
def data_is_noticed_always():
    return {**_ELSEWHERE, "y = x * x; x.data += 1": "raises", "y = x + 1; x.data += 1": "raises"}


@exercise.mistake
def data_is_safe():
    """You expect a write through `.data` to stay out of backward's way. It is not recorded, but it writes to
    the storage of `x`, and there lies what the product kept."""
    return {**_ELSEWHERE, "y = x * x; x.data += 1": "safe"}


@data_is_safe.form
def everything_unrecorded_is_safe():
    return {
        **_ELSEWHERE,
        "y = x * x; x.data += 1": "safe",
        "y = x * x; x.detach().numpy()[:] = 0": "safe",
    }


@data_is_safe.form
def everything_detached_is_safe():
    return {
        **_ELSEWHERE,
        "y = x * x; x.data += 1": "safe",
        "y = x * x; x.detach().add_(1)": "safe",
        "y = x * x; x.detach().numpy()[:] = 0": "safe",
    }


@exercise.mistake
def data_is_always_wrong():
    """A write through `.data` spoils a gradient only where backward reads what was written to. An addition
    kept nothing: its derivative is 1, whatever `x` is now."""
    return {**_ELSEWHERE, "y = x + 1; x.data += 1": "wrong"}


@exercise.mistake
def every_write_is_noticed():
    """You expect an error after a write through `.data` and through NumPy. Neither moves the version of `x`,
    so backward does not notice, and computes with what it finds: the gradient is wrong where the operator
    kept `x`, and right where it kept nothing."""
    return {
        **_ELSEWHERE,
        "y = x * x; x.data += 1": "raises",
        "y = x * x; x.detach().numpy()[:] = 0": "raises",
    }


@every_write_is_noticed.form
def every_write_to_x_raises():
    return {line: "raises" if "x.d" in line else answer for line, answer in _ELSEWHERE.items()}


@exercise.mistake
def every_hidden_write_is_wrong():
    """You expect a wrong gradient after every write to `x` that autograd does not record. A write to a
    detached tensor is not recorded, but it is counted, since the two share a counter: backward raises. And a
    write through `.data` does no harm after `x + 1`, which kept nothing."""
    return {
        **_ELSEWHERE,
        "y = x * x; x.detach().add_(1)": "wrong",
        "y = x + 1; x.data += 1": "wrong",
    }


@exercise.mistake
def numpy_is_noticed():
    """NumPy writes into the storage and knows nothing of torch's counters. The version stays what it was, and
    backward computes with what it finds."""
    return {**_ELSEWHERE, "y = x * x; x.detach().numpy()[:] = 0": "raises"}


@exercise.mistake
def parts_do_not_count():
    """`y[0] = 0` is a write to `y`, however small: a view counts its writes together with its base. `exp`
    kept the whole of `y`."""
    return {**_ELSEWHERE, "y = x.exp(); y[0] = 0": "safe"}


@parts_do_not_count.form
def parts_spoil_silently():
    return {**_ELSEWHERE, "y = x.exp(); y[0] = 0": "wrong"}


@exercise.mistake
def writing_into_a_buffer_loses_the_graph():
    """A write into a tensor that requires no gradient is recorded when what is written requires one: the
    buffer is in the graph from then on, and the gradient goes back through the part that was written."""
    return {**_ELSEWHERE, "y = torch.zeros(2); y[:] = x[:2] * x[1:]": "wrong"}


@writing_into_a_buffer_loses_the_graph.form
def writing_into_a_buffer_raises():
    return {**_ELSEWHERE, "y = torch.zeros(2); y[:] = x[:2] * x[1:]": "raises"}


@exercise.mistake
def constants_may_change():
    """`w` requires no gradient, and the product kept it: the gradient of `x` is `w`. What counts is not
    whether a tensor is trained but whether a backward reads it."""
    return {**_ELSEWHERE, "w = torch.ones(3); y = x * w; w.zero_()": "safe"}


@exercise.mistake
def constants_are_not_watched():
    """You expect a wrong gradient after the write to `w`. It requires no gradient, but its writes are counted
    as those of every tensor, and the product kept it together with its version: backward raises."""
    return {**_ELSEWHERE, "w = torch.ones(3); y = x * w; w.zero_()": "wrong"}


@exercise.mistake
def the_residual_is_the_old_one():
    """`relu_` overwrites `h`, so `+ h` adds the rectified values: what is computed is `2 * relu(h)`, and not
    `relu(h) + h`. Whoever wrote the line may have meant that; autograd differentiates what was computed, and
    nothing that it kept was changed."""
    return {**_ELSEWHERE, "h = x * 2; y = h.relu_() + h": "wrong"}


@the_residual_is_the_old_one.form
def the_residual_raises():
    return {**_ELSEWHERE, "h = x * 2; y = h.relu_() + h": "raises"}
