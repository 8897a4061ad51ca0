"""Predict: how often does it compile?

Each line is a function and some calls of `f = torch.compile(function, backend="eager")`. It starts with
nothing compiled. Write down, before you run any, how many **graphs** all its calls together compile. A call
that runs code from an earlier call compiles none.

The calls stand beside the lines; a function stands above the lines that call it. `x` is `torch.ones(3)`, and
`p` a parameter of three elements. "Sizes 2, 3" are calls with `torch.ones(2)` and `torch.ones(3)`. All
settings are the defaults.

The first line is answered: three tensors of one size and dtype make one graph.
"""

import functools

import torch

from course_utils.exercise import Exercise, predict
from course_utils.exercise.kits.compiled import Counting

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "Compiled code is kept with its guards: what it assumed about its inputs and whatever else it read. "
        "A call tries all versions. For each line: what was assumed, and does it still hold?",
        "The first time, sizes, numbers and texts are constants, if you don't ask for `dynamic=True`. When "
        "a size or a number among the arguments changes, the compiler can make code with a symbol in its "
        "place. For a text it can't.",
        "Sizes 0 and 1 get code of their own here. A branch on a symbol is decided while compiling, and "
        "guarded. Integers from globals stay constants.",
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
    predict.compare(predictions, truths, whys, unit="graphs", all_lines=exercise.starter_object())


predict.add_check(exercise, isolated=True)


@exercise.check(isolated=True, deadline=60)
def sizes(predict_recompiles):
    """Tensors of other sizes

    Without `dynamic=True` these sizes are constants the first time. When one changes, the compiler makes code
    with a symbol. What Python decides about the symbol becomes a guard on it.
    """
    whys = {
        "elements": "Elements of a tensor that are only computed with have no guard.",
        "sizes": "The first size is a constant. At the second the compiler makes code with a symbol, "
        "which serves all that follow.",
        "sizes to zero": "The symbol's guard says 2 or more, so 1 and 0 find no code that fits. "
        "(A mark lifts that guard: `torch._dynamo.decorators.mark_unbacked`.)",
        "sizes, dynamic": "`dynamic=True` begins with a symbol in place of the first constant. The guard of "
        "the symbol is the same as without it: 2 or more.",
        "sizes, a branch": "The branch on the symbol is decided while compiling, and the side taken becomes "
        "a guard. Before the symbol there was a constant.",
    }
    _compare(predict_recompiles, whys)


@exercise.check(isolated=True, deadline=60)
def other_tensors(predict_recompiles):
    """Another dtype, a gradient that is needed, and grad mode

    Each of them decides which kernels run or what is kept for backward, so each is guarded. None becomes a
    symbol, and new code doesn't replace old code.
    """
    whys = {
        "dtypes": "The dtype is guarded. Old code is kept beside the new, each with its guards, so a dtype "
        "that comes back finds its code.",
        "gradients": "Whether a tensor requires a gradient is guarded: it decides what is kept for backward.",
        "modes": "Grad mode is guarded. Going back to a mode finds the code that was made under it.",
    }
    _compare(predict_recompiles, whys)


@exercise.check(isolated=True, deadline=60)
def no_tensors(predict_recompiles):
    """Numbers, texts, lists and a global

    Here numbers, texts and lengths are constants the first time, with guards on their values. Numbers among
    the arguments can become symbols. A text, the length of a list and an integer in a global don't by
    default: each value gets code of its own.
    """
    whys = {
        "numbers": "This integer is a constant the first time, and a symbol from the second value on.",
        "texts": "A text doesn't become a symbol. The guard is on the text, not on the side of the `if` that "
        "was taken.",
        "lists": "The length of a list stays a constant: `sum` is unrolled while tracing.",
        "a global": "An integer in a global stays a constant, with a guard on its value.",
    }
    _compare(predict_recompiles, whys)
