"""Predict: how often is it compiled

Each line is a function and some calls of `f = torch.compile(function, backend="eager")`, the first that this
function ever gets. Write down how many **graphs** are made in all these calls together. Where a call runs
code that an earlier one made, none is.

The functions and the calls stand beside the lines; a function stands for the lines below it, too. `x` is
`torch.ones(3)`, and `p` a parameter of three elements. "Sizes 2, 3" are calls with `torch.ones(2)` and
`torch.ones(3)`. The compiler's settings are those it comes with.

The first line is answered: three tensors of one size and dtype make one graph.
"""

import functools

import torch

from course_utils.exercise import Exercise, predict
from course_utils.exercise.kits.graphs_compiled import Counting

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "Code that was compiled is kept with its guards: what it assumed of its inputs and of what else it "
        "read. A call looks through all that is kept. For each line: what was assumed, does it still hold?",
        "The first time, everything but the elements of tensors is taken for a constant. The second time "
        "that a size is another one, or a number among the arguments, the compiler makes code in which it is "
        "a variable. That is how it learns, and there is nothing to learn from a text.",
        "Sizes 0 and 1 get code of their own here. A branch on a variable is decided when the code is made, "
        "and guarded. Whole numbers from globals stay constants.",
    ],
)


@exercise.starter
def predict_recompiles() -> dict:
    """How many graphs are made in all calls of a line"""
    return {
        # lambda x: x * 2
        "elements": 1,  # torch.ones(3), torch.zeros(3), torch.full((3,), 7.0)
        "sizes": ...,  # sizes 2, 3, 4, 5
        "sizes to zero": ...,  # sizes 2, 3, 4, 5, 1, 0
        "sizes, dynamic": ...,  # the same sizes; torch.compile(..., dynamic=True)
        "dtypes": ...,  # x, x.double(), x, x.double()
        "gradients": ...,  # x, p, x, p
        "modes": ...,  # x; twice under torch.no_grad(): x; then x again
        # lambda x: x * 2 if len(x) > 3 else x + 1
        "sizes, a branch": ...,  # sizes 2, 3, 4, 5, 6
        # lambda x, n: x * n
        "numbers": ...,  # x with n = 2, 3, 4, 5
        # lambda x, mode: x + 1 if mode == "up" else x - 1
        "texts": ...,  # x with "up", "down", "left", "up", "left"
        # lambda tensors: sum(tensors)
        "lists": ...,  # [x] * 2, [x] * 3, [x] * 4, [x] * 2, [x] * 3
        # lambda x: x * SCALE
        "a global": ...,  # x, four times, when the global SCALE is 2, 3, 4, 5
    }


SCALE = 1


def _graphs(function, calls, **options):
    torch.compiler.reset()
    backend = Counting()
    f = torch.compile(function, backend=backend, **options)
    for arguments in calls:
        f(*arguments)
    return len(backend.graphs)


def _double(x):
    return x * 2


def _sizes(*sizes):
    return [(torch.ones(n),) for n in sizes]


def _with_modes(x):
    for enabled in (True, False, False, True):
        torch.set_grad_enabled(enabled)
        yield (x,)


def _with_scales(x):
    global SCALE
    for value in (2, 3, 4, 5):
        SCALE = value
        yield (x,)


@functools.cache
def _truth(line):
    """What the compiler does now."""
    x, p = torch.ones(3), torch.nn.Parameter(torch.ones(3))
    match line:
        case "elements":
            return _graphs(_double, [(torch.ones(3),), (torch.zeros(3),), (torch.full((3,), 7.0),)])
        case "sizes":
            return _graphs(_double, _sizes(2, 3, 4, 5))
        case "sizes to zero":
            return _graphs(_double, _sizes(2, 3, 4, 5, 1, 0))
        case "sizes, dynamic":
            return _graphs(_double, _sizes(2, 3, 4, 5, 1, 0), dynamic=True)
        case "sizes, a branch":
            return _graphs(lambda x: x * 2 if len(x) > 3 else x + 1, _sizes(2, 3, 4, 5, 6))
        case "dtypes":
            return _graphs(_double, [(x,), (x.double(),)] * 2)
        case "gradients":
            return _graphs(_double, [(x,), (p,)] * 2)
        case "modes":
            return _graphs(_double, _with_modes(x))
        case "numbers":
            return _graphs(lambda x, n: x * n, [(x, n) for n in (2, 3, 4, 5)])
        case "texts":
            calls = [(x, mode) for mode in ("up", "down", "left", "up", "left")]
            return _graphs(lambda x, mode: x + 1 if mode == "up" else x - 1, calls)
        case "lists":
            return _graphs(lambda tensors: sum(tensors), [([x] * n,) for n in (2, 3, 4, 2, 3)])
        case "a global":
            return _graphs(lambda x: x * SCALE, _with_scales(x))


def _compare(predict_recompiles, whys):
    predictions = predict.written_down(predict_recompiles)
    truths = {line: _truth(line) for line in whys}
    predict.compare(predictions, truths, whys, all_lines=exercise.starter_object())


@exercise.check(isolated=True)
def written_down(predict_recompiles):
    """The predictions are written down, not computed

    What there is to learn lies between what you believed and what the compiler does. Whoever calls it is
    told before having believed anything.
    """
    predict.written_down(predict_recompiles)


@exercise.check(isolated=True, deadline=60)
def sizes(predict_recompiles):
    """Tensors of other sizes

    A size is a constant of the code the first time. When the same place sees another one, code with a
    variable is made. What Python decides about that variable becomes a guard on it.
    """
    whys = {
        "elements": "No guard is on the elements of a tensor: they go through the code.",
        "sizes": "The first size is a constant. At the second the compiler makes code in which it is a "
        "variable, and that serves all that follow.",
        "sizes to zero": "A variable size is guarded to be 2 or more: 1 and 0 find no code that fits. "
        "(A mark lifts that guard: `torch._dynamo.decorators.mark_unbacked`.)",
        "sizes, dynamic": "`dynamic=True` begins with a variable in place of the first constant. The guard "
        "of a variable size is the same as without it: 2 or more.",
        "sizes, a branch": "A branch on a variable is decided while the graph is made, and the side that was "
        "taken becomes a guard. Before there was a variable there was a constant.",
    }
    _compare(predict_recompiles, whys)


@exercise.check(isolated=True, deadline=60)
def other_tensors(predict_recompiles):
    """Another dtype, a gradient that is needed, and grad mode

    Each of them decides which kernels run or what is kept for backward, so each is guarded. None can be a
    variable, and no code is forgotten for other code.
    """
    whys = {
        "dtypes": "The dtype is guarded. Old code is kept beside the new, each with its guards: what comes "
        "back finds it.",
        "gradients": "Whether a tensor requires a gradient is guarded: it decides what is kept for backward.",
        "modes": "Grad mode is guarded. Going back to a mode finds the code that was made under it.",
    }
    _compare(predict_recompiles, whys)


@exercise.check(isolated=True, deadline=60)
def no_tensors(predict_recompiles):
    """Numbers, texts, lists and a global

    What is no tensor is a constant of the code the first time, with a guard on its value. Numbers that come
    in as arguments can become variables. A text, the length of a list and a whole number in a global cannot:
    each value gets code of its own.
    """
    whys = {
        "numbers": "A number among the arguments is a constant the first time, and a variable from the "
        "second value on.",
        "texts": "A text is never a variable, since no graph computes with one. The guard is on the text "
        "and not on the way it leads through the `if`.",
        "lists": "The length of a list stays a constant: the graph has an input for each tensor in it.",
        "a global": "A whole number in a global stays a constant, with a guard on its value.",
    }
    _compare(predict_recompiles, whys)
