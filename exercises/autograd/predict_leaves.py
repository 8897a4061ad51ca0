"""Predict: leaf, `requires_grad`, `.grad`

`x = torch.ones(3, requires_grad=True)`. Each line makes a tensor `y`; then `(x.sum() + y.sum()).backward()`
runs. For each line write down three things, each `True` or `False`: whether `y` is a leaf (`y.is_leaf`),
whether it requires a gradient (`y.requires_grad`), and whether it has a gradient after that backward, that
is, whether `y.grad` is a tensor and not None.

The first line is answered: `y` is `x` itself, a leaf that requires a gradient and gets one. Replace every
`...` before you run any of the lines. Two of the three answers often decide the third; one line breaks that
rule."""

import torch

from course_utils import expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=15,
    hints=[
        "A leaf is a tensor with no node behind it: `grad_fn` is None. When does an operator leave a node "
        "behind, and when has it no reason to?",
        "An operator is recorded when grad mode is on and at least one of its inputs requires a gradient. "
        "Without a node the result is a leaf, whoever made it. Some calls hand back the tensor they got, "
        "since there is nothing to do, and some make a new start with the same numbers.",
        "Backward fills `.grad` of leaves that require a gradient and are reached, and of no other tensor "
        "unless it was asked to keep it there. An in-place operation is recorded like any other, for the "
        "tensor that it writes to.",
    ],
)


@exercise.starter
def predict_leaves() -> dict:
    """(leaf?, requires a gradient?, has a gradient afterwards?) for each y"""
    return {
        "y = x": (True, True, True),  # an example: this one is answered
        # without x
        "y = torch.ones(3)": ...,
        "y = torch.ones(3) * 2": ...,
        # from x
        "y = x * 2": ...,
        "y = x[:2]": ...,
        "y = x.clone()": ...,
        "y = x > 0": ...,
        # converted
        "y = x.double()": ...,
        "y = x.float()": ...,
        # a new start
        "y = x.detach()": ...,
        "with torch.no_grad(): y = x * 2": ...,
        "y = nn.Parameter(x * 2)": ...,
        # later
        "y = torch.zeros(3); y += x": ...,
        "y = x * 2; y.retain_grad()": ...,
    }


def _truth(code):
    names = {"torch": torch, "nn": torch.nn, "x": torch.ones(3, requires_grad=True)}
    exec(code, names)
    x, y = names["x"], names["y"]
    leaf, requires_grad = y.is_leaf, y.requires_grad
    (x.sum() + y.sum()).backward()
    return leaf, requires_grad, y.grad is not None


def _compare(predictions, *lines):
    truths = {line: _truth(line) for line in lines}
    parts = ("leaf", "requires_grad", "gradient")
    expect.all_predicted(predictions, truths, names=exercise.starter_object(), parts=parts)


@exercise.check
def without_x(predict_leaves):
    """Tensors that have nothing to do with `x`"""
    _compare(predict_leaves(), "y = x", "y = torch.ones(3)", "y = torch.ones(3) * 2")


@exercise.check
def from_x(predict_leaves):
    """Results of operators on `x`"""
    _compare(predict_leaves(), "y = x * 2", "y = x[:2]", "y = x.clone()", "y = x > 0")


@exercise.check
def converted(predict_leaves):
    """`x` in another dtype, and in the one that it has"""
    _compare(predict_leaves(), "y = x.double()", "y = x.float()")


@exercise.check
def new_start(predict_leaves):
    """The same numbers, and no way back to `x`"""
    _compare(predict_leaves(), "y = x.detach()", "with torch.no_grad(): y = x * 2", "y = nn.Parameter(x * 2)")


@exercise.check
def later(predict_leaves):
    """What is done to `y` after it was made"""
    _compare(predict_leaves(), "y = torch.zeros(3); y += x", "y = x * 2; y.retain_grad()")


@exercise.check
def written_down(predict_leaves):
    """The predictions are written down, not computed"""
    expect.written_down(predict_leaves)


# What the people below believe of the lines that their misunderstanding does not touch.
_ELSEWHERE = {
    "y = x": (True, True, True),
    "y = torch.ones(3)": (True, False, False),
    "y = torch.ones(3) * 2": (True, False, False),
    "y = x * 2": (False, True, False),
    "y = x[:2]": (False, True, False),
    "y = x.clone()": (False, True, False),
    "y = x > 0": (True, False, False),
    "y = x.double()": (False, True, False),
    "y = x.float()": (True, True, True),
    "y = x.detach()": (True, False, False),
    "with torch.no_grad(): y = x * 2": (True, False, False),
    "y = nn.Parameter(x * 2)": (True, True, True),
    "y = torch.zeros(3); y += x": (False, True, False),
    "y = x * 2; y.retain_grad()": (False, True, True),
}


@exercise.mistake
def asks_torch():
    """You let torch compute the answers. They are right, and you have not found out what you believed:
    write the lines down first, then run the check."""
    return {line: _truth(line) for line in _ELSEWHERE}


@asks_torch.variant
def looks_at_one_of_them():
    x = torch.ones(3, requires_grad=True)
    return {
        **_ELSEWHERE,
        "y = x.float()": (x.float().is_leaf, True, True),
        "y = x * 2": ((x * 2).is_leaf, True, False),
    }


@exercise.mistake
def results_are_no_leaves():
    """You expect the result of an operator to be no leaf. It is one where the operator was not recorded:
    where no input requires a gradient, or grad mode is off, or the result cannot have a gradient. A leaf is a
    tensor without a `grad_fn`, and most leaves require no gradient."""
    return {
        **_ELSEWHERE,
        "y = torch.ones(3) * 2": (False, False, False),
        "y = x > 0": (False, False, False),
        "y = x.detach()": (False, False, False),
        "with torch.no_grad(): y = x * 2": (False, False, False),
    }


@results_are_no_leaves.form
def results_in_a_graph_are_no_leaves():
    return {
        **_ELSEWHERE,
        "y = torch.ones(3) * 2": (False, False, False),
        "y = x > 0": (False, False, False),
        "with torch.no_grad(): y = x * 2": (False, False, False),
    }


@results_are_no_leaves.form
def only_products_are_no_leaves():
    return {
        **_ELSEWHERE,
        "y = torch.ones(3) * 2": (False, False, False),
        "with torch.no_grad(): y = x * 2": (False, False, False),
    }


@results_are_no_leaves.form
def a_product_of_constants_is_none():
    return {**_ELSEWHERE, "y = torch.ones(3) * 2": (False, False, False)}


@results_are_no_leaves.form
def a_comparison_is_none():
    return {**_ELSEWHERE, "y = x > 0": (False, False, False)}


@results_are_no_leaves.form
def a_detached_one_is_none():
    return {**_ELSEWHERE, "y = x.detach()": (False, False, False)}


@results_are_no_leaves.form
def a_product_in_no_grad_is_none():
    return {**_ELSEWHERE, "with torch.no_grad(): y = x * 2": (False, False, False)}


@exercise.mistake
def leaves_require_gradients():
    """You call a tensor a leaf when it requires a gradient and no operator made it. It is enough that there
    is no `grad_fn`: every tensor outside a graph is a leaf, and `torch.ones(3)` is one."""
    return {line: (leaf and needs, needs, has) for line, (leaf, needs, has) in _ELSEWHERE.items()}


@leaves_require_gradients.form
def only_computed_constants_are_none():
    return {**_ELSEWHERE, "y = torch.ones(3)": (False, False, False)}


@exercise.mistake
def all_in_the_graph_have_gradients():
    """You expect `.grad` wherever `requires_grad` is `True`. Backward computes a gradient for all of these,
    and keeps it only at leaves: inside the graph it is used and freed. `retain_grad()` asks for it to be
    kept."""
    return {line: (leaf, needs, needs) for line, (leaf, needs, _) in _ELSEWHERE.items()}


@exercise.mistake
def computed_is_no_leaf_and_all_have_gradients():
    """You expect the result of an operator to be no leaf, and `.grad` wherever `requires_grad` is `True`. A
    leaf is a tensor without a `grad_fn`, and where no input requires a gradient, or grad mode is off, the
    result has none. And backward keeps gradients at leaves only, unless `retain_grad()` asks for it."""
    return {
        line: (leaf and not _is_computed(line), needs, needs) for line, (leaf, needs, _) in _ELSEWHERE.items()
    }


def _is_computed(line):
    return any(part in line for part in ("* 2", "> 0", "detach")) and "Parameter" not in line


@exercise.mistake
def all_in_the_loss_have_gradients():
    """You expect a gradient for every leaf that the loss was computed from. Backward computes one only where
    `requires_grad` is `True`: a tensor that requires none is a constant for it."""
    return {line: (leaf, needs, has or leaf) for line, (leaf, needs, has) in _ELSEWHERE.items()}


@exercise.mistake
def leaves_are_results():
    """You have leaves the wrong way round: a leaf is where backward ends, not where it begins. It has no
    `grad_fn`. The result of an operator that was recorded has one, and is no leaf."""
    return {
        line: (leaf if line == "y = x" else not leaf, *more) for line, (leaf, *more) in _ELSEWHERE.items()
    }


@exercise.mistake
def retained_makes_a_leaf():
    """`retain_grad()` lets the tensor keep its gradient. It stays where it is in the graph: its `grad_fn` is
    still there, so it is no leaf."""
    return {**_ELSEWHERE, "y = x * 2; y.retain_grad()": (True, True, True)}


@exercise.mistake
def retained_is_nothing():
    """`.grad` is kept for leaves, and for a tensor inside the graph that was asked to keep it: that is what
    `retain_grad()` does. This is the one line where a tensor inside the graph has one."""
    return {**_ELSEWHERE, "y = x * 2; y.retain_grad()": (False, True, False)}


@exercise.mistake
def copies_are_leaves():
    """You expect a copy to begin anew. `clone()` and a conversion are operators like the others: they are
    recorded, and a gradient goes back through them to `x`. What begins anew is `detach()`."""
    return {**_ELSEWHERE, "y = x.clone()": (True, True, True), "y = x.double()": (True, True, True)}


@copies_are_leaves.form
def a_clone_is_a_leaf():
    return {**_ELSEWHERE, "y = x.clone()": (True, True, True)}


@copies_are_leaves.form
def copies_are_leaves_without_gradients():
    return {**_ELSEWHERE, "y = x.clone()": (True, False, False), "y = x.double()": (True, False, False)}


@copies_are_leaves.form
def a_clone_is_a_leaf_without_a_gradient():
    return {**_ELSEWHERE, "y = x.clone()": (True, False, False)}


@exercise.mistake
def conversions_are_leaves():
    """You expect `x.double()` to be a leaf with a gradient of its own. A conversion is an operator and is
    recorded; `.grad` goes to the tensor that was converted. So it is with `.to(device)`: move first, and ask
    for a gradient afterwards."""
    return {**_ELSEWHERE, "y = x.double()": (True, True, True)}


@exercise.mistake
def every_conversion_is_recorded():
    """`x` is float32 already, so `x.float()` has nothing to do: it returns `x` itself, the leaf. The same
    holds for `.to(device)` where the tensor is there, and for `.contiguous()`."""
    return {**_ELSEWHERE, "y = x.float()": (False, True, False)}


@exercise.mistake
def views_are_leaves():
    """A slice shares the storage of `x`, and it is a new tensor that an operator made: `grad_fn` remembers
    which part of `x` it is. The gradient of that part goes into `x.grad`."""
    return {**_ELSEWHERE, "y = x[:2]": (True, True, True)}


@views_are_leaves.form
def a_slice_has_a_part_of_the_gradient():
    return {**_ELSEWHERE, "y = x[:2]": (False, True, True)}


@exercise.mistake
def comparisons_require_gradients():
    """A comparison gives booleans. Only tensors of floating point (or complex) numbers can require a
    gradient, so nothing is recorded: the result is outside the graph, and a leaf."""
    return {**_ELSEWHERE, "y = x > 0": (False, True, False)}


@exercise.mistake
def detached_still_requires():
    """A detached tensor has the numbers of `x` and nothing of its history: it requires no gradient until you
    ask for one, with `requires_grad_()`."""
    return {**_ELSEWHERE, "y = x.detach()": (True, True, False)}


@detached_still_requires.form
def detached_has_a_gradient_of_its_own():
    return {**_ELSEWHERE, "y = x.detach()": (True, True, True)}


@exercise.mistake
def parameters_stay_in_the_graph():
    """`nn.Parameter` takes the numbers and leaves the history: it is a leaf, made from a detached tensor. No
    gradient goes on to `x`. To train through a computed weight, use the result itself, not a Parameter of
    it."""
    return {**_ELSEWHERE, "y = nn.Parameter(x * 2)": (False, True, False)}


@exercise.mistake
def a_parameter_gets_nothing():
    """You expect no gradient for the Parameter, perhaps since nothing leads from it to `x`. Nothing does, but
    the loss is computed from the Parameter itself: it is a leaf that requires a gradient, and backward gets
    to it."""
    return {**_ELSEWHERE, "y = nn.Parameter(x * 2)": (True, True, False)}


@exercise.mistake
def a_leaf_stays_a_leaf():
    """`y += x` is recorded too: `y` becomes the result of an addition with `x`, in the graph and no leaf any
    more. Whether a tensor is a leaf can change as long as it requires no gradient itself."""
    return {**_ELSEWHERE, "y = torch.zeros(3); y += x": (True, False, False)}


@a_leaf_stays_a_leaf.form
def a_leaf_that_requires_a_gradient_now():
    return {**_ELSEWHERE, "y = torch.zeros(3); y += x": (True, True, True)}


@exercise.mistake
def no_grad_comes_later():
    """Under `no_grad` an operator leaves no node behind, and its result requires no gradient. That is so for
    good: leaving the block does not bring it back into the graph."""
    return {**_ELSEWHERE, "with torch.no_grad(): y = x * 2": (False, True, False)}


@no_grad_comes_later.form
def no_grad_keeps_the_flag():
    return {**_ELSEWHERE, "with torch.no_grad(): y = x * 2": (True, True, False)}
