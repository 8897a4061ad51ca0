"""Compiled code can be used again while its guards hold. A guard on a tensor compares dtype, sizes and the
like, but no elements to compute with; one on a text compares the text. A Python float is a constant until it
changes, and here it stays one, because its value is needed: by `math.exp` while the graph is made, by
`alpha=` when AOTAutograd traces the graph. (With `backend="eager"`, an `alpha=` alone makes two graphs for
five rates; with `"aot_eager"` or Inductor, five.) So the learning rate goes in as a tensor without
dimensions, and the text doesn't go in.

Sizes need nothing. The first graph is for the first size; at the second size the compiler makes one with a
symbol for the number of rows, which serves all others. With `dynamic=True` it does so at once.

The rate is a tensor in double precision: without dimensions it doesn't change the dtype of the weight, and it
has enough digits.
"""

import math

import torch


def stop_recompiles(backend):
    """A compiled update(weight, gradient, lr, name) -> (new weight, line to log)"""

    @torch.compile(backend=backend)
    def step(weight, gradient, lr):
        return weight * torch.exp(-lr) - lr * gradient

    def update(weight, gradient, lr, name):
        return step(weight, gradient, torch.tensor(lr, dtype=torch.float64)), f"{name} updated"

    return update


# Other right answers

from course_utils.exercise import Edit, Wrong


def _variable_from_the_start(backend):
    """One graph, for all sizes; the rate has the dtype of the weight."""

    def step(weight, gradient, rate):
        return torch.addcmul(weight * rate.neg().exp(), gradient, rate, value=-1)

    compiled = torch.compile(step, backend=backend, dynamic=True)

    def update(weight, gradient, lr, name):
        new = compiled(weight, gradient, weight.new_tensor(lr))
        return new, name + " updated"

    return update


def _numbers_in_one_tensor(backend):
    """Python computes what Python can; both numbers travel in one tensor, and the rows are marked."""

    @torch.compile(backend=backend)
    def step(weight, gradient, numbers):
        decay, lr = numbers.unbind()
        return decay * weight - lr * gradient

    def update(weight, gradient, lr, name):
        for tensor in (weight, gradient):
            torch._dynamo.mark_dynamic(tensor, 0)
        numbers = torch.tensor([math.exp(-lr), lr], dtype=weight.dtype)
        return step(weight, gradient, numbers), f"{name} updated"

    return update


also_right = [_variable_from_the_start, _numbers_in_one_tensor]


# Mistakes


def rate_stays_a_number(backend):
    @torch.compile(backend=backend, dynamic=True)
    def step(weight, gradient, lr):
        return torch.sub(weight * math.exp(-lr), gradient, alpha=lr)

    return lambda weight, gradient, lr, name: (step(weight, gradient, lr), f"{name} updated")


def rate_learned_too_late(backend):
    @torch.compile(backend=backend)
    def step(weight, gradient, decay, lr):
        return weight * decay - gradient * lr

    return lambda weight, gradient, lr, name: (step(weight, gradient, math.exp(-lr), lr), f"{name} updated")


def name_goes_in(backend):
    step = torch.compile(
        lambda w, g, lr, name: (w * torch.exp(-lr) - lr * g, name + " updated"), backend=backend
    )
    return lambda w, g, lr, name: step(w, g, torch.tensor(lr, dtype=torch.double), name)


def keeps_the_first_weight(backend):
    update, first = stop_recompiles(backend), []

    def with_the_first(weight, gradient, lr, name):
        first.append(weight)
        return update(first[0], gradient, lr, name)

    return with_the_first


_kept = {}


def shares_one(backend):
    return _kept.setdefault("update", stop_recompiles(backend))


mistakes = [
    Wrong(keeps_the_first_weight, told_by="results"),
    Edit("another backend", "(backend=backend)", '(backend="eager")', told_by="in_the_graph"),
    Edit("rate in single precision", ", dtype=torch.float64", "", told_by="results"),
    Edit("static sizes", "(backend=backend)", "(backend=backend, dynamic=False)", told_by="sizes"),
    Wrong(rate_stays_a_number, told_by="learning_rates"),
    Wrong(rate_learned_too_late, told_by="one_after_another"),
    Wrong(name_goes_in, told_by="names"),
    Wrong(shares_one, told_by="two_backends"),
]

not_tried = {"hard numbers": "the formula is given"}
