"""`x @ weight_ih.T` and both biases don't depend on the state, so they are there for all steps after one
product. What is left in a step is one product with `h`, of the size of the batch, and a few operators of each
element.

The second direction is the same function on `x.flip(0)`. Its outputs come in the order in which it read, so
they are turned around before they are joined to those of the first. Its last state is the one after `x[0]`:
taken before the turn, it is the state after the last step that was run, as for the first direction.

`h` is what the next layer sees; `c` is the memory. `h` stays between -1 and 1, `c` need not: 50 steps with
open gates sum up to 50. In an LSTM of several layers, without dropout or a projection, `output` is the `x` of
the next one, and `weight_ih_l1` has twice `hidden` columns where there are two directions."""

import torch
from torch import Tensor
from torch.nn import functional as F


def lstm_forward(x: Tensor, weights: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """(steps, batch, inputs) -> (steps, batch, directions * hidden), two of (directions, batch, hidden)"""
    outputs, last_h, last_c = [], [], []
    for suffix in ("", "_reverse"):
        if f"weight_ih_l0{suffix}" in weights:
            kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            weight_ih, weight_hh, bias_ih, bias_hh = (weights[f"{kind}_l0{suffix}"] for kind in kinds)
            of_x = F.linear(x.flip(0) if suffix else x, weight_ih, bias_ih + bias_hh)
            h = c = x.new_zeros(x.shape[1], weight_hh.shape[1])
            steps = []
            for of_step in of_x:
                i, f, g, o = (of_step + h @ weight_hh.T).chunk(4, dim=1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                steps.append(h)
            outputs.append(torch.stack(steps[::-1] if suffix else steps))
            last_h.append(h)
            last_c.append(c)
    return torch.cat(outputs, dim=-1), (torch.stack(last_h), torch.stack(last_c))


# Other right answers

from course_utils.exercise import Edit, Wrong


def _inputs_and_state_as_one(x, weights):
    """One product for each step, with both weights side by side."""
    sides = []
    for end in ("_l0", "_l0_reverse")[: len(weights) // 4]:
        both = torch.cat([weights["weight_ih" + end], weights["weight_hh" + end]], dim=1)
        bias = weights["bias_ih" + end] + weights["bias_hh" + end]
        n = both.shape[0] // 4
        h = c = torch.zeros(x.shape[1], n, dtype=x.dtype, device=x.device)
        output = [None] * len(x)
        order = range(len(x)) if end == "_l0" else reversed(range(len(x)))
        for t in order:
            z = torch.addmm(bias, torch.cat([x[t], h], dim=1), both.t())
            i, f, o = z[:, :n].sigmoid(), z[:, n : 2 * n].sigmoid(), z[:, 3 * n :].sigmoid()
            c = f * c + i * z[:, 2 * n : 3 * n].tanh()
            h = o * c.tanh()
            output[t] = h
        sides.append((torch.stack(output), h, c))
    output, h, c = zip(*sides, strict=True)
    return torch.cat(output, 2), (torch.stack(h), torch.stack(c))


def _directions_as_a_batch(x, weights):
    """Both directions in one batched product."""
    ends = ["_l0"] if len(weights) == 4 else ["_l0", "_l0_reverse"]
    w_ih, w_hh, b_ih, b_hh = (
        torch.stack([weights[kind + end] for end in ends])
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    read = torch.stack([x, x.flip(0)][: len(ends)])
    of_x = torch.einsum("dtni,dgi->tdng", read, w_ih) + (b_ih + b_hh)[:, None]
    h = c = x.new_zeros(len(ends), x.shape[1], w_hh.shape[-1])
    steps = []
    for step in of_x:
        i, f, g, o = torch.split(step + h.bmm(w_hh.mT), h.shape[-1], dim=-1)
        c = torch.sigmoid(f).mul(c).addcmul(torch.sigmoid(i), torch.tanh(g))
        h = torch.sigmoid(o) * torch.tanh(c)
        steps.append(h)
    output = torch.stack(steps, dim=1)
    return torch.cat([output[0], *(one.flip(0) for one in output[1:])], dim=-1), (h, c)


also_right = [_inputs_and_state_as_one, _directions_as_a_batch]


# Mistakes


def _ready_made(x, weights):
    from torch import nn

    n = weights["weight_hh_l0"].shape[1]
    lstm = nn.LSTM(x.shape[2], n, bidirectional=len(weights) == 8, dtype=x.dtype, device=x.device)
    return torch.func.functional_call(lstm, weights, (x,))


_RECURRENT = "of_step + h @ weight_hh.T"

mistakes = [
    Edit("o before g", "i, f, g, o = (", "i, f, o, g = (", told_by="gates"),
    Edit("a sigmoid for g", "i.sigmoid() * g.tanh()", "i.sigmoid() * g.sigmoid()", told_by="gates"),
    Edit("one bias", "bias_ih + bias_hh)", "bias_ih)", told_by="gates"),
    Edit("outputs in reverse", "steps[::-1] if suffix else steps", "steps", told_by="both_directions"),
    Edit(
        "state at the end of `output`",
        "last_h.append(h)",
        "last_h.append(outputs[-1][-1])",
        told_by="both_directions",
    ),
    Edit(
        "detaches the state",
        "h = o.sigmoid() * c.tanh()",
        "h, c = o.sigmoid() * c.tanh(), c.detach()",
        told_by="gradients",
    ),
    Edit(
        "two products in each step",
        _RECURRENT,
        "of_step + sum(h[:, [k]] @ weight_hh[:, [k]].T for k in range(h.shape[1]))",
        told_by="products",
    ),
    Wrong(_ready_made, told_by="products"),
]

not_tried = {"seeds": "no draw decides"}
