"""Compiled code is kept with guards on all that was assumed when it was made. The elements of a tensor
are not among that; its dtype, its sizes, whether it needs a gradient, and grad mode are. So are texts,
globals and the length of a list. A call looks through all code that is kept, so going back to what was
there before compiles nothing: two dtypes in turn are two graphs.

Sizes and numbers among the arguments are constants at first, and a variable from the second value on. So four
sizes are two graphs, six with 1 and 0 among them four, and with `dynamic=True`, which begins with a variable,
three. A branch on the size is decided while the graph is made: 2 (constant), 3 (variable, up to 3), 4
(variable, above 3). Texts never become variables, nor do whole numbers in globals: code for each of them.
"""


def predict_recompiles() -> dict:
    """How many graphs are made in all calls of a line"""
    return {
        "elements": 1,  # an example: this one is answered
        # sizes
        "sizes": 2,
        "sizes to zero": 4,
        "sizes, dynamic": 3,
        "sizes, a branch": 3,
        # what else is known of a tensor
        "dtypes": 2,
        "gradients": 2,
        "modes": 2,
        # what is no tensor
        "numbers": 2,
        "texts": 3,
        "lists": 3,
        "a global": 4,
    }
