"""Compiled code is used again while its guards hold. A guard on a tensor asks for dtype, sizes and the
like and never for elements; one on a text asks for the text; one on a Python number asks for the number,
until the compiler has seen another, and for ever where an operator needs the value as a constant. So the
learning rate goes in as a tensor without dimensions, and the text does not go in at all.

Sizes need nothing. The first graph is made for the size that came; at the second size the compiler makes
one in which the number of rows is a variable, and that serves all others. With `dynamic=True` it does so
at once.

The rate is a tensor in double precision: without dimensions it leaves the dtype of the result to the weight,
and it has digits enough for any.
"""

import math

import torch


def stop_recompiles(backend):
    """A compiled update(weight, gradient, lr, name) -> (new weight, line for the log)"""

    @torch.compile(backend=backend)
    def step(weight, gradient, lr):
        return weight * torch.exp(-lr) - lr * gradient

    def update(weight, gradient, lr, name):
        return step(weight, gradient, torch.tensor(lr, dtype=torch.float64)), f"{name} updated"

    return update


# Other right answers


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


class _Kept:
    """Writes the rate into a tensor that stays the same."""

    def __init__(self, backend):
        self.lr = torch.zeros((), dtype=torch.float64)
        self.step = torch.compile(self.formula, backend=backend)

    def formula(self, weight, gradient):
        return torch.exp(-self.lr) * weight - self.lr * gradient

    def __call__(self, weight, gradient, lr, name):
        self.lr.fill_(lr)
        return self.step(weight, gradient), f"{name} updated"


def _rate_is_kept(backend):
    return _Kept(backend)


also_right = [_variable_from_the_start, _numbers_in_one_tensor, _rate_is_kept]
