"""A matrix product keeps its factors, so `history[t - 1]` is kept for the gradient of `weight`. It is a view
of the buffer and shares its version counter: the write to row `t` counts for all rows. Autograd doesn't look
at which elements were written to.

`tanh` returns a new tensor and keeps it, since its derivative is `1 - h²`. The next product keeps the same
tensor: every state is kept once, by two operations. No later line writes to it, because `stack` copies all
states into a result of its own. Writing them into a buffer works too, as long as you don't read from it.
"""

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

from course_utils.exercise import Edit, Wrong


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
    states = [x[0].tanh()]
    for row in x[1:]:
        states.append(torch.addmm(row, states[-1], weight).tanh_())
    return torch.cat([state.unsqueeze(0) for state in states])


also_right = [_a_buffer_that_is_not_read, _from_a_state_of_zeros, _joined_by_cat]


# Mistakes


def _forgets_what_is_long_ago(x, weight):
    states = [torch.tanh(x[0])]
    for t, row in enumerate(x[1:], 1):
        before = states[-1] if t % 64 else states[-1].detach()
        states.append(torch.tanh(before @ weight + row))
    return torch.stack(states)


def _reads_a_clone(x, weight):
    history = torch.zeros_like(x)
    history[0] = torch.tanh(x[0])
    for t in range(1, len(x)):
        history[t] = torch.tanh(history[t - 1].clone() @ weight + x[t])
    return history


def _copies_all_rows_every_step(x, weight):
    history = torch.tanh(x[:1])
    for t in range(1, len(x)):
        history = torch.cat([history, torch.tanh(history[-1] @ weight + x[t])[None]])
    return history


def _contiguous_first(x, weight):
    return repair_inplace_history(x.contiguous(), weight.contiguous())


mistakes = [
    Edit("forgets the past", "state @ weight", "state.detach() @ weight", told_by="gradients"),
    Edit("leaves the graph", "torch.stack(states)", "torch.stack(states).detach()", told_by="gradients"),
    Edit("transposed", "state @ weight", "torch.nn.functional.linear(state, weight)", told_by="right_values"),
    Wrong(_forgets_what_is_long_ago, told_by="gradients"),
    Wrong(_reads_a_clone, told_by="copies"),
    Wrong(_copies_all_rows_every_step, told_by="copies"),
    Wrong(_contiguous_first, told_by="copies"),
    Edit(
        "keeps the argument too",
        "torch.tanh(state @ weight + row)",
        "(1 - 2 / ((2 * (state @ weight + row)).exp() + 1))",
        told_by="bytes_kept",
    ),
]
not_tried = {"hard numbers": "the formula is given"}
