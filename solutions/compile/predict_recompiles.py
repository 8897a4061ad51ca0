"""Compiled code is kept with guards on what it assumed. Elements that are only computed with
aren't guarded; a tensor's dtype, its sizes, whether it needs a gradient, and grad mode are. So are texts,
globals and the length of a list, if the function uses them. A call tries all versions, so returning to an
earlier case compiles nothing: two dtypes in turn are two graphs.

Sizes and numbers among these arguments are constants at first, and symbols from the second value on. So four
sizes are two graphs. The guard of a size's symbol says 2 or more, unless the dimension was marked with
`mark_unbacked`: with 1 and 0 among them, six sizes are four graphs, and with `dynamic=True`, which begins
with a symbol, three. A branch on the size is decided while compiling: 2 (constant), 3 (symbol, up to 3), 4
(symbol, above 3). By default texts don't become symbols, nor do integers in globals.
"""


def predict_recompiles() -> dict:
    """How many graphs are made in all calls of a line"""
    return {
        # lambda x: x * 2
        "elements": 1,
        "sizes": 2,
        "sizes to zero": 4,
        "sizes, dynamic": 3,
        "dtypes": 2,
        "gradients": 2,
        "modes": 2,
        # lambda x: x * 2 if len(x) > 3 else x + 1
        "sizes, a branch": 3,
        # lambda x, n: x * n
        "numbers": 2,
        # lambda x, mode: x + 1 if mode == "up" else x - 1
        "texts": 3,
        # lambda tensors: sum(tensors)
        "lists": 3,
        # lambda x: x * SCALE
        "a global": 4,
    }


# Other right answers

import torch

from course_utils.exercise import Edit, Wrong

also_right = []


# Mistakes


def _with_torch():
    f = torch.compile(lambda x: x * 2, backend="eager")
    return {**predict_recompiles(), "elements": int(f(torch.ones(1)).item()) - 1}


mistakes = [
    Edit("a graph for each size", '"sizes": 2', '"sizes": 4', told_by="sizes"),
    Edit("one graph for all sizes", '"sizes": 2', '"sizes": 1', told_by="sizes"),
    Edit("0 and 1 are sizes like others", '"sizes, dynamic": 3', '"sizes, dynamic": 1', told_by="sizes"),
    Edit("a graph for each side", '"sizes, a branch": 3', '"sizes, a branch": 2', told_by="sizes"),
    Edit("forgets what it made", '"dtypes": 2', '"dtypes": 4', told_by="other_tensors"),
    Edit("a graph for each number", '"numbers": 2', '"numbers": 4', told_by="no_tensors"),
    Edit("a global becomes a variable", '"a global": 4', '"a global": 2', told_by="no_tensors"),
    Wrong(_with_torch, told_by="written_down"),
]
