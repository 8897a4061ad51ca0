"""A product of matrices keeps its factors, so `history[t - 1]` is kept for the gradient of `weight`. It is a
view of the buffer, and a view has no version counter of its own: the write to row `t` counts for all of them,
although it touches another row. Autograd does not look which elements were written to.

`tanh` returns a new tensor and keeps it, since its derivative is `1 - h²`. The same tensor is what the next
product keeps: every state is kept once, by two operations. Nothing ever writes into it, because `stack`
copies all of them into a result of their own. Writing them into a buffer would also do, as long as nothing is
read from it."""

import torch
from torch import Tensor


def repair_inplace_history(x: Tensor, weight: Tensor) -> Tensor:
    """(steps, n, d), (d, d) -> (steps, n, d)"""
    state = torch.tanh(x[0])
    states = [state]
    for row in x[1:]:
        state = torch.tanh(state @ weight + row)
        states.append(state)
    return torch.stack(states)


# Other right answers


def _a_buffer_that_is_not_read(x, weight):
    history = torch.zeros_like(x)
    state = history[0] = torch.tanh(x[0])
    for t in range(1, len(x)):
        state = torch.tanh(state @ weight + x[t])
        history[t] = state
    return history


def _from_a_state_of_zeros(x, weight):
    state, states = x.new_zeros(x.shape[1:]), []
    for t in range(x.size(0)):
        state = (x[t] + state.matmul(weight)).tanh()
        states.append(state)
    return torch.stack(states)


def _joined_by_cat(x, weight):
    from itertools import accumulate

    def following(state, row):
        return torch.addmm(row, state, weight).tanh_()

    first, *rest = x.unbind()
    states = accumulate(rest, following, initial=first.tanh())
    return torch.cat([state.unsqueeze(0) for state in states])


def _from_the_end(x, weight):
    def states(t):
        if t == 0:
            return [torch.tanh(x[0])]
        before = states(t - 1)
        return [*before, torch.tanh(before[-1].matmul(weight).add_(x[t]))]

    return torch.stack(states(len(x) - 1), dim=0)


also_right = [_a_buffer_that_is_not_read, _from_a_state_of_zeros, _joined_by_cat, _from_the_end]
