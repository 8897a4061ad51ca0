"""A linear layer in float8

Build `Float8Linear(weight, length)`: `layer(x)` is `x @ weight.t()` in float32, for `x`
of shape (rows, in).

- All products multiply float8 numbers: `x` and `weight` in e4m3, the gradient that arrives in e5m2.
- Before its cast each is multiplied by a scale: the format's largest number, divided by the
  largest amax of this tensor in its last `length` calls (backwards, for the gradient), without this one.
  Calls with zeros or under `no_grad` count. The first takes its own. For an amax of 0 the scale is 1.
- What is too large saturates.
- The graph keeps `x` and `weight` in float8, and nothing wider but the scales.

All numbers and scales are finite. `F.scaled_mm` or `@` after a cast up multiplies.
"""

import torch
from torch import Tensor, nn

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import amp

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "Begin with what all three need: a list of amaxes, and a method that gives a float8 tensor and the "
        "factor that undoes its scale.",
        "An `autograd.Function` makes three products: `x @ w.t()` forward, `g @ w` and `g.t() @ x` backward. "
        "Only float8 tensors and factors go into `save_for_backward`.",
        "`known = max(amaxes, default=amax)`, then append. `(t * scale).clamp(-most, most).to(dtype)` "
        "saturates; the factor is `1 / scale`. A `deque` with a `maxlen` forgets by itself.",
    ],
)


@exercise.starter
class Float8Linear(nn.Module):
    def __init__(self, weight: nn.Parameter, length: int):
        super().__init__()
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor: ...


_SETUP = """
torch.manual_seed({})
weight = nn.Parameter(torch.randn(32, 16))
layer = Float8Linear(weight, length=3)
x = torch.randn(64, 16, requires_grad=True)"""


@exercise.check(
    given=lambda change: f"{_SETUP.format(0)}\nwith torch.no_grad():\n    {change}",
    cases={
        "tiny numbers": "x *= 1e-6",
        "ordinary ones": "x *= 1",
        "large ones": "x *= 1e6",
        "negative ones": "x.abs_().neg_()",
    },
)
def forward_error(t, change):
    """The result is as exact as e4m3 allows, for small and large numbers

    e4m3 has steps of an eighth between 1 and 2, so a cast is off by 1/16 at most where numbers are normal.
    The scale brings the largest absolute value to 448, and the product has to be divided by both scales. Each
    tensor of each layer has a scale and a history of its own.
    """
    with expect.left_alone(t.x, what="`x`"), expect.left_alone(t.weight, what="`weight`"):
        came = expect.a_tensor(t.call("layer(x)"))
    expect.equal(came.dtype, torch.float32, what="the dtype of the result")
    amp.expect_error(came, t.x.double() @ t.weight.double().t(), 0.025, 0.05, "the result")


@exercise.check(given=_SETUP.format(1))
def gradient_error(t):
    """Gradients reach further down than e4m3

    Gradients may spread over many powers of ten. Here half of the rows are a million times smaller than the
    rest. With one scale for all, e5m2 keeps nearly all of them as normal numbers; in e4m3 they are zero.
    Before the backward the layer may be called again and the weight changed: what backward needs hangs on the
    graph of its call.
    """
    weight = t.weight.detach().double().clone()
    t.run("g = torch.randn(64, 32)\ng[32:] *= 1e-6\nout = layer(x)")
    t.run("with torch.no_grad():\n    layer(-x)\n    weight.neg_()")
    t.run("out.backward(g)")
    g, x = t.g.double(), t.x.detach().double()
    wanted = g @ weight
    amp.expect_error(t.x.grad[32:], wanted[32:], 0.03, 0.08, "`x.grad[32:]` (from tiny gradients)")
    amp.expect_error(t.x.grad[:32], wanted[:32], 0.03, 0.08, "`x.grad[:32]`")
    amp.expect_error(t.weight.grad, g.t() @ x, 0.03, 0.08, "`weight.grad`")


@exercise.check(given=_SETUP.format(2))
def kept(t):
    """What is kept for backward has one byte an element

    Backward needs the input and the weight, and both are there in float8: a quarter of float32. A tensor that
    hangs on `ctx` without `save_for_backward` is kept as well.
    """
    limit = t.x.numel() + t.weight.numel() + 64
    saved = measure.saved_bytes(lambda: t.call("layer(x)"), exclude=[t.weight])
    expect.at_most(saved.total, limit, "what autograd saved", unit="bytes")
    live = measure.live_bytes(lambda: t.call("layer(x * 1)"))
    expect.at_most(
        live.held - live.result, limit + 256, "what a forward leaves, but its result", unit="bytes"
    )


_CALL = f"""{_SETUP.format(3)}
w, g = weight.detach().clone(), torch.linspace(-1, 1, 64 * 32).view(64, 32)
Float8Linear(weight, length=3)(1e20 * x).sum().backward()
def call(size_of_x, size_of_weight, size_of_gradient):
    x.grad, weight.data = None, size_of_weight * w
    out = layer(size_of_x * x)
    out.backward(size_of_gradient * g)
    return out.detach(), x.grad"""


@exercise.check(given=lambda which: _CALL, cases={"`x`": 0, "`weight`": 1, "the gradient": 2})
def jump(t, which):
    """Scales follow a jump one call late, and forget it `length` calls later

    The largest amax of the last `length` calls decides. Here a tensor that jumps saturates once: the cast to
    e4m3 stops at 448 by itself, the one to e5m2 goes to infinity. Afterwards its scale is small while the
    jump is in the history, and ordinary numbers become zero. Each tensor has a history of its own, in each
    layer.
    """
    sizes, length = [1.0, 1.0, 1e10, 1.0, 1.0, 1.0, 1.0], 3
    ones = [one.detach().double() for one in (t.x, t.w, t.g)]
    for number, size in enumerate(sizes):
        three = [1.0, 1.0, 1.0]
        three[which] = size
        t.run(f"out, grad = call({', '.join(f'{one:g}' for one in three)})")
        known = max(sizes[max(number - length, 0) : number], default=size)
        x, w, g = (size * one if n == which else one for n, one in enumerate(ones))
        most = known * ones[which].abs().max()  # larger ones saturate, and much smaller ones become zero
        x, w, g = (
            (one.clamp(-most, most) if known < 1e5 * size else 0 * one) if n == which else one
            for n, one in enumerate((x, w, g))
        )
        came, wanted, what = (t.grad, g @ w, "`grad`") if which == 2 else (t.out, x @ w.t(), "`out`")
        amp.expect_error(came, wanted, 0.0, 0.08, what)


@exercise.check(given=_SETUP.format(4), cases={"large numbers": 1e4, "tiny numbers": 1e-5})
def zeros(t, size):
    """In a fresh layer zeros stay zeros, and after zeros alone the scale is 1

    448 / 0 is infinite, and infinity times zero is NaN. A layer behind a dead ReLU gets zeros, and one in
    front of a weight that starts at zero gets a gradient of zeros. A call with zeros is in the history as any
    other, with the amax 0. With the scale 1 large numbers saturate, and tiny ones become zero; the call after
    that knows their amax.
    """
    t.run("zero = torch.zeros_like(x).requires_grad_()\nout = layer(zero)\nout.backward(0 * out)")
    expect.equal(t.out.detach(), torch.zeros_like(t.out), what="the result for zeros")
    expect.equal(t.zero.grad, torch.zeros_like(t.zero), what="the gradient for zeros")
    scaled, weight = size * t.x.double(), t.weight.double()
    first = scaled.clamp(-448, 448) if size > 1 else 0 * scaled
    for wanted, when in ((first, "right after zeros"), (scaled, "one call later")):
        t.run(f"with torch.no_grad():\n    out = layer({size:g} * x)")
        amp.expect_error(t.out, wanted @ weight.t(), 0.0, 0.05, f"the result {when}")


@exercise.check(
    given="""
layer = Float8Linear(nn.Parameter(torch.full((2, 16), 448.0)), length=2)
x = torch.ones(3, 16)
x[:, 0] = 448"""
)
def exact(t):
    """With the scale 1, numbers that e4m3 has come out exactly

    The amax is 448 and the scale 1, so the casts change nothing. float32 has the sums too; bfloat16 hasn't.
    """
    came = expect.a_tensor(t.call("layer(x)")).detach()
    expect.equal(came, torch.full((3, 2), 448.0 * 463), rtol=1e-6, atol=0.0)
