"""Repair: a recurrence in one buffer

The function below starts with `tanh(x[0])`, runs `h[t] = tanh(h[t - 1] @ weight + x[t])`, and writes the
states into the rows of one tensor. Its values are right, but backward raises: *one of the variables needed
for gradient computation has been modified by an inplace operation*. Repair it. The gradients go through the
whole recurrence.

- Copy every state at most once, into the result, and nothing else.
- Besides `x` and `weight`, the graph keeps every state once, and one state of zeros if you start with one.
- Leave `x` and `weight` as they are.

You may keep the loop.

`repair_inplace_history(torch.zeros(2, 1, 1), torch.ones(1, 1))` → `[[[0.]], [[0.]]]`
"""

import torch
from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import graphs

exercise = Exercise(
    minutes=10,
    hints=[
        "Which operation keeps `history[t - 1]`, and for what? And which later line changes its version?",
        "`history[t - 1]` is a view: it counts its versions together with the whole buffer. So a write to "
        "any row makes all rows that were kept count as changed. You need not read the previous state from "
        "the buffer: you had it one step before.",
        "Keep the previous state under a name of its own, as the tensor that `tanh` returned. The states "
        "can be collected in a list and put together at the end, or written into a buffer that is never "
        "read.",
    ],
)


@exercise.starter
def repair_inplace_history(x: Tensor, weight: Tensor) -> Tensor:
    """(steps, n, d), (d, d) -> (steps, n, d)"""
    history = torch.zeros_like(x)
    history[0] = torch.tanh(x[0])
    for t in range(1, len(x)):
        history[t] = torch.tanh(history[t - 1] @ weight + x[t])
    return history


_SETUP = """x = torch.linspace(-1, 2, 24, device=device).reshape(4, 2, 3).requires_grad_()
weight = nn.Parameter(torch.tensor([[1., 0., -1.], [0.5, 2., 0.], [-0.5, 1., 1.]], device=device))"""
_CALL = "repair_inplace_history(x, weight)"
# So small that no `tanh` flattens, with a weight that only turns: the last gradient reaches the first step.
_LONG = """
x = (x.detach() / 99).repeat(25, 1, 1).requires_grad_()
weight = nn.Parameter(torch.eye(3, device=device).roll(1, 0))"""
# What may be free in one layout is a copy in another, and what is too much may grow with the steps.
_LAYOUTS = {
    "contiguous tensors": "",
    "one step": "x = x.detach()[:1].requires_grad_()",
    "twelve steps": "x = x.detach().repeat(3, 1, 1).requires_grad_()",
    "an `x` with steps in the second place": "x = x.detach().transpose(0, 1).contiguous().transpose(0, 1)",
    "an `x` with transposed rows": "x = x.detach().mT.contiguous().mT.requires_grad_()",
    "float64": "x, weight = (t.detach().cpu().double().requires_grad_() for t in (x, weight))",
    "a transposed `weight`": "weight = nn.Parameter(weight.detach().t())",
}


def _oracle(x, weight):
    """The same by torch's own recurrent layer on the CPU, whose weight for the input is the identity."""
    device, x, weight = x.device, x.cpu(), weight.cpu()
    start = x.new_zeros(1, *x.shape[1:])
    layer = [torch.eye(x.shape[-1], dtype=x.dtype), weight.t().contiguous()]
    return torch.rnn_tanh(x, start, layer, False, 1, 0.0, False, False, False)[0].to(device)


@exercise.check(given=_SETUP, cases=["x = x * 1", "x, weight = x.detach(), weight.detach()"])
def inputs_left_alone(t, device):
    """`x` and `weight` stay as they are

    Writing the states over `x` saves a buffer and destroys the caller's data. Torch refuses it if `x` is a
    leaf that requires grad, but not if `x` was computed.
    """
    with expect.left_alone(t.x, what="`x`"), expect.left_alone(t.weight, what="`weight`"):
        t.run(f"history = {_CALL}")
    expect.own_storage(t.history, t.x, of="`x`")


@exercise.check(given=_SETUP, cases=_LAYOUTS)
def right_values(t, device):
    """The states of the recurrence, in their rows

    The values were right before: a repair changes when memory is written to, not what is computed,
    and in which dtype.
    """
    expect.equal(t.call(_CALL), _oracle(t.x, t.weight))


@exercise.check(
    given=_SETUP,
    cases={
        "all states, `x`": ("", "x", "loss = (history * x.detach()).sum()"),
        "all states, `weight`": ("", "weight", "loss = (history * x.detach()).sum()"),
        "the last state, `x`": ("", "x", "loss = history[-1].square().sum()"),
        "the last of a hundred states, `x`": (_LONG, "x", "loss = history[-1].square().sum()"),
    },
)
def gradients(t, device, name, code):
    """The last state leads back to the first step, and to `weight`

    The product keeps its factors. A row of the buffer is a view and counts versions together with the whole
    buffer. So a write to any row counts as a write to each row that was kept. What you take out of the graph,
    with `detach`, `.data` or `no_grad`, is a constant for all later steps.
    """
    tensor = getattr(t, name)
    with graphs.writes_told():
        t.run(f"history = {_CALL}")
        expect.in_graph(t.history, of=f"`{name}`")
        t.run(f"{code}\nloss.backward()")
    names = {"history": _oracle(t.x, t.weight), "x": t.x}
    exec(code, names)
    wanted = torch.autograd.grad(names["loss"], tensor)[0]
    got = f"`{name}.grad` is None after backward"
    expect.true(tensor.grad is not None, got, "expected: a gradient")
    expect.equal(tensor.grad, wanted, what=f"`{name}.grad` after backward", rtol=1e-4, atol=1e-5)


@exercise.check(given=_SETUP, cases=_LAYOUTS)
def copies(t, device):
    """Every state is copied once at most, and nothing else is, whatever the strides

    `tanh` returns a tensor of its own, which goes into the next product as it is. One copy puts the states
    into the result. A `cat` of all rows so far, in every step, copies an amount that grows with the square of
    the steps.
    """
    with graphs.copies() as copied:
        expect.a_tensor(t.call(_CALL))
    total, limit = sum(copy.written for copy in copied), t.x.numel() * t.x.element_size()
    said = ", ".join(dict.fromkeys(copy.said for copy in copied))
    expect.at_most(total, limit, f"copied ({said})", unit="bytes")


@exercise.check(deadline=30.0, given=_SETUP, cases=_LAYOUTS)
def bytes_kept(t, device):
    """Beside the inputs, every state is kept once

    `tanh` keeps its result, since its derivative is `1 - h²`, and the next product keeps the same tensor: two
    nodes, one piece of memory. A row of a buffer keeps the whole buffer, and a copy of a state is kept in
    addition.
    """
    kept = measure.saved_bytes(t.call, _CALL, exclude=[t.x, t.weight]).total
    limit = (t.x.numel() + t.x[0].numel()) * t.x.element_size()
    expect.at_most(kept, limit, "kept for backward beside `x` and `weight`", unit="bytes")
