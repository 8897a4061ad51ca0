"""The forward of an LSTM, from its weights

`weights` is `dict(lstm.named_parameters())` of an `nn.LSTM` with one layer and biases, in one direction or in
both: then there are also `weight_ih_l0_reverse` and its kin, for the direction that reads `x` from the end.
`lstm_forward(x, weights)` returns what `lstm(x)` returns: `output, (h_n, c_n)`, starting from zeros.

In each step, with `*` element by element:

    i, f, g, o = the four quarters of x_t @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h = sigmoid(o) * tanh(c)

- A gradient reaches `x` and all weights.
- In each direction at most one matrix product for each step runs, and one more.
- None of torch's own LSTMs runs.
"""

import copy

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=25,
    hints=[
        "Write one direction first, as a function of `x` and four tensors. Which product does not depend on "
        "`h`, and could be there for all steps before the first? The hidden size is `weight_hh.shape[1]`.",
        "The direction that reads from the end is the same function, given `x.flip(0)`. Its first output "
        "belongs to the last step of `x`. Which of its outputs is its last state?",
        "Along the last dimension of `output` the forward direction comes first, and at step `t` both have "
        "read `x[t]` last: turn the outputs of the second around again before they are joined. `h_n` and "
        "`c_n` have shape `(directions, batch, hidden)`: each direction's state after its own last step.",
    ],
)


@exercise.starter
def lstm_forward(x: Tensor, weights: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """(steps, batch, inputs) -> (steps, batch, directions * hidden), two of (directions, batch, hidden)"""
    raise NotImplementedError


def _given(lstm_forward, *more, steps=5, both=False, dtype="float64", **device):
    on = "dtype=torch." + dtype + ", device=device" * bool(device)
    lines = [
        f"torch.manual_seed(0)\nlstm = nn.LSTM(3, 5, bidirectional={both}, {on})",
        f"x = torch.randn({steps}, 2, 3, {on})",
        *more,
        "weights = dict(lstm.named_parameters())",
    ]
    return expect.given("\n".join(lines), lstm_forward=lstm_forward, **device)


def _expect_output(t, like=None):
    """The output that `lstm` has; returns the states that came with it."""
    wanted, _ = t.lstm(t.x)
    found = t.call("lstm_forward(x, weights)")
    pair = isinstance(found, (tuple, list)) and len(found) > 0
    expect.true(pair, f"the result is {expect.show(found)}", "expected: `output, (h_n, c_n)`")
    expect.equal(found[0], wanted.detach(), what="`output`", like=like)
    return found[1:]


def _expect_all(t, like=None):
    """Output and states, as `lstm` has them."""
    _, (h, c) = t.lstm(t.x)
    rest = _expect_output(t, like)
    pair = len(rest) == 1 and isinstance(rest[0], (tuple, list)) and len(rest[0]) == 2
    expect.true(pair, "after `output` comes something else than a pair", "expected: `output, (h_n, c_n)`")
    for name, state, wanted, other in zip(("h_n", "c_n"), rest[0], (h, c), (c, h), strict=True):
        expect.equal(state, wanted.detach(), what=f"`{name}`", like={"the other of the two states": other})


def _output(t, change):
    """The output of the LSTM with its weights changed."""
    other = copy.deepcopy(t.lstm)
    with torch.no_grad():
        for name, p in other.named_parameters():
            p.copy_(change(name, p))
        return other(t.x)[0]


_ORDERS = {"i, f, o, g": [0, 1, 3, 2], "i, g, f, o": [0, 2, 1, 3], "f, i, g, o": [1, 0, 2, 3]}


@exercise.check
def gates(lstm_forward, device):
    """The four quarters are i, f, g and o, in this order

    The rows of `weight_ih` and `weight_hh` belong to the gates, `hidden` of them to each. `i`, `f` and `o` go
    through a sigmoid: they say how much; `g` goes through a tanh: it says what is added to the cell. All four
    have the same shape, so another order runs as well.
    """
    zeros = "for name in ('bias_ih_l0', 'bias_hh_l0'):\n    nn.init.zeros_(getattr(lstm, name))"
    t = _given(lstm_forward, zeros, dtype="float32", device=device)
    like = {}
    for written, order in _ORDERS.items():
        changed = _output(
            t, lambda name, p, order=order: torch.cat([p.chunk(4)[order.index(k)] for k in range(4)])
        )
        like[f"what comes if the quarters are taken for {written}"] = changed
    _expect_output(t, like)


@exercise.check
def both_biases(lstm_forward):
    """Both biases are added

    cuDNN, whose layout torch follows, has a bias for each of the two products. Only their sum has a part in
    the result, and both are trained.
    """
    t = _given(lstm_forward)
    like = {
        f"what comes without `{left_out}`": _output(t, lambda name, p, out=left_out: p * (name != out))
        for left_out in ("bias_ih_l0", "bias_hh_l0")
    }
    _expect_output(t, like)


@exercise.check
def states(lstm_forward):
    """The states after the last step, for one step and for many

    `h` is a product of numbers between -1 and 1. `c` is a sum over the steps, and grows beyond 1 where gates
    stay open. Each comes with a dimension for the directions, of size 1 if there is one.
    """
    with Rows() as rows:
        for steps in (1, 2, 30):
            with rows.of(f"{steps} step{'s' * (steps > 1)}"):
                _expect_all(_given(lstm_forward, "nn.init.ones_(lstm.bias_ih_l0)", steps=steps))


@exercise.check
def both_directions(lstm_forward):
    """The second direction reads from the end; its outputs stand at their own steps

    At step `t` the first direction has read `x[0]` to `x[t]`, the second `x[-1]` back to `x[t]`. So the last
    state of the second is the one that has read `x[0]`: it stands in `output[0]`, not in `output[-1]`.
    """
    with Rows() as rows:
        for steps in (1, 5):
            with rows.of(f"{steps} step{'s' * (steps > 1)}"):
                t = _given(lstm_forward, steps=steps, both=True)
                forward, backward = t.lstm(t.x)[0].detach().chunk(2, dim=-1)
                turned = torch.cat([forward, backward.flip(0)], dim=-1)
                _expect_all(t, {"right but for the second direction, whose steps are in reverse": turned})


@exercise.check
def gradients(lstm_forward):
    """A gradient reaches `x` and all weights

    Backward goes through all steps, last to first, and adds up what comes to the weights in each. A state
    that was detached ends it there: truncated backpropagation through time.
    """
    t = _given(lstm_forward, both=True)
    t.run("x.requires_grad_()")
    output, (h, c) = t.lstm(t.x)
    named = {"x": t.x, **t.weights}
    wanted = torch.autograd.grad(output.pow(3).sum() + (h * c).sum(), [*named.values()])
    t.run("output, (h, c) = lstm_forward(x, weights)\nloss = output.pow(3).sum() + (h * c).sum()")
    expect.in_graph(t.loss, what="`loss`", of="the weights")
    t.run("loss.backward()")
    for (name, tensor), gradient in zip(named.items(), wanted, strict=True):
        expect.equal(tensor.grad, gradient, what=f"the gradient of `{name}`")


class _Called(TorchFunctionMode):
    """Notes the names of torch's functions that are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.add(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


@exercise.check
def products(lstm_forward):
    """One product for each step and one more; none of torch's LSTMs

    Only `h @ weight_hh.T` has to wait for the step before. `x @ weight_ih.T` can be there for all steps at
    once: one large product instead of many small ones, which is what torch does too.
    """
    with Rows() as rows:
        for both in (False, True):
            with rows.of("two directions" if both else "one direction"):
                t = _given(lstm_forward, steps=7, both=both)
                with measure.operators() as ran, _Called() as called:
                    t.call("lstm_forward(x, weights)")
                found = sorted({"lstm", "lstm_cell"} & called.names)
                expect.true(not found, f"torch's own `{'`, `'.join(found)}` ran", "expected: your own steps")
                limit, what = 8 * (1 + both), f"matrix products in 7 steps, {1 + both} direction(s)"
                expect.at_most(ran.matmuls(), limit, what)
