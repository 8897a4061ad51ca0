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

import torch
from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import modules, numbers

exercise = Exercise(
    minutes=25,
    hints=[
        "Write one direction first, as a function of `x` and four tensors. Which product does not depend on "
        "`h`, and could be there for all steps before the first?",
        "The direction that reads from the end is the same function, given `x.flip(0)`. Its first output "
        "belongs to the last step of `x`. Which of its outputs is its last state?",
        "Along the last dimension of `output` the forward direction comes first. Turn the outputs of the "
        "second around again before they are joined; its state is the one after its own last step.",
    ],
)


@exercise.starter
def lstm_forward(
    x: Tensor, weights: dict[str, Tensor]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """(steps, batch, inputs) -> (steps, batch, directions * hidden), (h, c)

    `h` and `c` are (directions, batch, hidden).
    """
    raise NotImplementedError


def _setup(steps=5, batch=2, hidden=5, both=False):
    return f"""
torch.manual_seed(0)
lstm = nn.LSTM(3, {hidden}, bidirectional={both})
x = torch.randn({steps}, {batch}, 3)
weights = dict(lstm.named_parameters())
"""


_DOUBLE = "lstm, x = lstm.double(), x.double()"


def _expect(t, *names, like=None):
    """Of `output`, `h_n` and `c_n` those that are named are what `lstm` returns."""
    output, (h, c) = t.lstm(t.x)
    wanted = {"output": output.detach(), "h_n": h.detach(), "c_n": c.detach()}
    with expect.left_alone(t.x, what="`x`"), expect.left_alone(t.weights, what="`weights`"):
        found = t.call("lstm_forward(x, weights)")
    near = {"atol": 1e-5} if t.x.dtype is torch.float32 else {"rtol": 0.0, "atol": 1e-12}
    try:
        output, (h, c) = found
    except (TypeError, ValueError):
        raise expect.Mismatch("the result has another form", "expected: `output, (h_n, c_n)`") from None
    found = {"output": output, "h_n": h, "c_n": c}
    for name in names:
        others = {f"what `{other}` is": wanted[other] for other in ("h_n", "c_n") if other != name}
        expect.equal(found[name], wanted[name], what=f"`{name}`", like={**others, **(like or {})}, **near)


def _output(t, change):
    """The output of the LSTM with its weights changed."""
    changed = {name: change(name, p.detach()) for name, p in t.weights.items()}
    return torch.func.functional_call(t.lstm, changed, t.x)[0].detach()


@exercise.check(given=f"{_setup()}lstm, x = lstm.to(device), x.to(device)")
def gates(t, device):
    """The four quarters are i, f, g and o, in this order, and both biases are added

    The rows of `weight_ih` and `weight_hh` belong to the gates, `hidden` of them to each. `i`, `f` and `o` go
    through a sigmoid, `g` through a tanh. All four have the same shape, so another order runs as well. cuDNN,
    whose layout torch follows, has a bias for each of the two products.
    """
    like = {}
    for out in ("bias_ih_l0", "bias_hh_l0"):
        like[f"what comes without `{out}`"] = _output(t, lambda name, p, out=out: p * (name != out))
    for taken in ("i, f, o, g", "i, g, f, o", "f, i, g, o"):
        order = [taken.split(", ").index(gate) for gate in "ifgo"]
        output = _output(t, lambda name, p, order=order: torch.cat([p.chunk(4)[k] for k in order]))
        like[f"what comes if the quarters are taken for {taken}"] = output
    _expect(t, "output", like=like)


@exercise.check(
    given=lambda *sizes: f"{_setup(*sizes)}{_DOUBLE}\nnn.init.ones_(lstm.bias_ih_l0)",
    cases={"one step": (1, 1, 4), "30 steps": (30, 3, 6)},
)
def states(t):
    """The states after the last step, for one step and for many, in any dtype

    `h` is a product of numbers between -1 and 1. `c` is a sum over the steps, and can grow beyond 1 where
    gates stay open. Each comes with a dimension for the directions, of size 1 if there is one. They start
    from zeros that have the batch of `x`, the width of `weight_hh`, and the dtype of both.
    """
    _expect(t, "output", "h_n", "c_n")


@exercise.check(given=_setup(both=True))
def both_directions(t):
    """The second direction reads from the end; its outputs stand at their own steps

    At step `t` the first direction has read `x[0]` to `x[t]`, the second `x[-1]` back to `x[t]`. So the last
    state of the second is the one that has read `x[0]`: it stands in `output[0]`, not in `output[-1]`. Each
    direction has two weights and two biases of its own.
    """
    forward, backward = t.lstm(t.x)[0].detach().chunk(2, dim=-1)
    turned = torch.cat([forward, backward.flip(0)], dim=-1)
    like = {"right but for the second direction, whose steps are in reverse": turned}
    for own in [name for name in t.weights if name.endswith("_reverse")]:
        other = own.removesuffix("_reverse")
        output = _output(t, lambda name, p, own=own, other=other: t.weights[other] if name == own else p)
        like[f"what comes with `{other}` in the place of `{own}`"] = output
    _expect(t, "output", "h_n", "c_n", like=like)


@exercise.check(
    given=f"{_setup(both=True)}{_DOUBLE}.requires_grad_()",
    cases={
        "random weights": "",
        "biases of zeros": "for p in weights.values():\n    if p.dim() == 1: nn.init.zeros_(p)",
    },
)
def gradients(t):
    """A gradient reaches `x` and all weights

    Backward goes through all steps, last to first, and adds up what comes to the weights in each. A detached
    weight gets nothing, and a detached state ends the way there: truncated backpropagation through time. A
    bias of zeros learns too.
    """
    output, (h, c) = t.lstm(t.x)
    loss = "loss = output.pow(3).sum() + (h * c).sum()"
    code = f"output, (h, c) = lstm_forward(x, weights)\n{loss}"
    # `x` comes last: its gradient is wrong where that of a weight is.
    names = (*(f"weights[{name!r}]" for name in t.weights), "x")
    modules.expect_gradients(t, code, output.pow(3).sum() + (h * c).sum(), *names)


@exercise.check(
    given=f"{_setup(both=True)}lstm, x = lstm.double(), ({{}}).double()".format,
    cases=numbers.hard("5, 2, 3"),
)
def hard(t):
    """Very large and very small numbers in `x`

    `exp` of a large number is `inf`, even in float64, and `inf / inf` is `nan`. `torch.sigmoid` and
    `torch.tanh` end at 0, 1 and -1.
    """
    _expect(t, "output", "h_n", "c_n")


@exercise.check(
    given=lambda both: _setup(steps=7, both=both), cases={"one direction": False, "both directions": True}
)
def products(t, both):
    """One product for each step and one more; none of torch's LSTMs

    Only `h @ weight_hh.T` has to wait for the step before. `x @ weight_ih.T` can be there for all steps at
    once: one large product instead of many small ones.
    """
    with measure.operators() as ran, modules.Called() as called:
        t.call("lstm_forward(x, weights)")
    found = sorted({"lstm", "lstm_cell"}.intersection(called.names))
    expect.true(not found, f"torch's own `{'`, `'.join(found)}` ran", "expected: your own steps")
    what = f"matrix products in 7 steps, {1 + both} direction(s)"
    expect.at_most(ran.matmuls(), 8 * (1 + both), what)
