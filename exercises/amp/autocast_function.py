"""A Function under autocast

`AutocastFunction.apply(a, b)` computes the squared distances between the rows of `a` and those of `b`. It
subtracts large numbers from each other, and in 16 bits little is left of them. The formulas are right. Mend
what happens under `torch.autocast`, on the CPU.

- In a region, forward computes in float32 with autocast off: 16-bit inputs are cast, the result is float32.
  Outside, it computes in the dtype of its inputs, as now.
- Backward has autocast off too, wherever `backward()` is called.
- The caller's state is left as it was.

In a bfloat16 region, `AutocastFunction.apply(torch.tensor([[100.]]), torch.tensor([[101.]]))` → `[[1.]]`.
"""

import torch
from torch import Tensor

from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=8,
    hints=[
        "Autocast doesn't know your Function. But it knows `@`, inside `forward` too, and inside `backward` "
        "where somebody calls that in a region.",
        "Two things have to happen in a region: autocast goes off, and 16-bit inputs become float32. "
        "Switching off alone leaves bfloat16 inputs as they are. `torch.amp.custom_fwd` does both.",
        "Put `@torch.amp.custom_fwd(device_type='cpu', cast_inputs=torch.float32)` below `@staticmethod` of "
        "`forward`, and `@torch.amp.custom_bwd(device_type='cpu')` below that of `backward`.",
    ],
)


@exercise.starter
class AutocastFunction(torch.autograd.Function):
    """(n, d), (m, d) -> (n, m)"""

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a.square().sum(1)[:, None] + b.square().sum(1) - 2 * (a @ b.t())

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        by_a = grad.sum(1)[:, None] * a - grad @ b
        by_b = grad.sum(0)[:, None] * b - grad.t() @ a
        return 2 * by_a, 2 * by_b


_RUN = "y = AutocastFunction.apply(a, b)"
_BACKWARD = "by_a, by_b = torch.autograd.grad(y, (a, b), g)"
_REGION = "with torch.autocast('cpu', dtype=torch.bfloat16):\n    "


def _given(AutocastFunction, dtypes, *lines):
    """Inputs with these dtypes and what arrives in backward, then these lines, run one after the other."""
    setup = "torch.manual_seed(0)\n" + "\n".join(
        f"{name} = (10 * torch.randn({n}, 8)).to(torch.{dtype}).requires_grad_()"
        for name, n, dtype in zip("ab", (5, 3), dtypes, strict=True)
    )
    t = expect.given(setup, AutocastFunction=AutocastFunction)
    for line in lines:
        t.run("g = torch.randn(5, 3).to(y)" if line == "g" else line)
    return t


def _expect(t, dtype, *, gradients=True):
    """The result has this dtype and is right in it; a gradient has the dtype of its input."""
    a, b = (x.detach().double().requires_grad_() for x in (t.a, t.b))
    wanted = (a[:, None] - b).square().sum(-1)
    near = 32 * torch.finfo(dtype).eps
    largest = max(1000.0, a.square().sum(1).max().item())
    expect.equal(t.y.detach(), wanted.detach().to(dtype), rtol=near, atol=near * largest, what="`y`")
    if not gradients:
        return
    slopes = torch.autograd.grad(wanted, (a, b), t.g.double())
    for name, x, slope in zip("ab", (t.a, t.b), slopes, strict=True):
        atol = near * slope.abs().max().item()
        rtol = torch.finfo(x.dtype).eps  # rounded at the end
        expect.equal(getattr(t, f"by_{name}"), slope.to(x.dtype), rtol=rtol, atol=atol, what=f"`by_{name}`")


_INPUTS = {
    "float32": ("float32", "float32"),
    "bfloat16": ("bfloat16", "bfloat16"),
    "float16": ("float16", "float16"),
    "bfloat16 and float32": ("bfloat16", "float32"),
}


@exercise.check
def outside(AutocastFunction):
    """Outside a region it has the dtype of its inputs, as before

    There is nothing to protect from there. Who passes bfloat16 or float64 has chosen it. A region with
    `enabled=False` inside another one is outside too.
    """
    with Rows() as rows:
        for dtype in ("float32", "float64", "bfloat16"):
            with rows.of(dtype):
                t = _given(AutocastFunction, (dtype, dtype), _RUN, "g", _BACKWARD)
                _expect(t, getattr(torch, dtype))
        with rows.of("a region that is switched off"):
            off = f"with torch.autocast('cpu', enabled=False):\n        {_RUN}"
            t = _given(AutocastFunction, ("bfloat16", "bfloat16"), _REGION + off)
            _expect(t, torch.bfloat16, gradients=False)


@exercise.check
def forward_in_a_region(AutocastFunction):
    """In a region the result is float32, with the precision of float32

    Autocast casts the inputs of each `@`, inside the forward of a Function too. With autocast off nothing is
    cast: float32 inputs stay, and bfloat16 ones from a layer before do as well.
    """
    with Rows() as rows:
        for label, dtypes in _INPUTS.items():
            with rows.of(label):
                t = _given(AutocastFunction, dtypes, _REGION + _RUN)
                _expect(t, torch.float32, gradients=False)
        with rows.of("a float16 region"):
            t = _given(AutocastFunction, _INPUTS["float32"], _REGION.replace("bfloat16", "float16") + _RUN)
            _expect(t, torch.float32, gradients=False)


@exercise.check
def backward(AutocastFunction):
    """Backward has autocast off, after the region and in one

    Backward runs in the autocast state of whoever calls `backward()`, whatever forward had.
    `torch.amp.custom_bwd` brings the state of forward back, for a forward that has `custom_fwd`. Where
    autocast is off, `@` raises if its two sides have different dtypes.
    """
    with Rows() as rows:
        for label, dtypes in _INPUTS.items():
            for where, region in {"after the region": "", "in a region": _REGION}.items():
                with rows.of(f"{label} ({where})"):
                    t = _given(AutocastFunction, dtypes, _REGION + _RUN, "g", region + _BACKWARD)
                    _expect(t, torch.float32)
        with rows.of("float32 (in a region, and forward in none)"):
            t = _given(AutocastFunction, _INPUTS["float32"], _RUN, "g", _REGION + _BACKWARD)
            _expect(t, torch.float32)


@exercise.check
def state(AutocastFunction):
    """The caller's autocast state is left as it was, by an error too

    The state belongs to the thread. What forward switches off stays off for the layers after it, unless it is
    put back. `with torch.autocast(..., enabled=False)` does so when something raises too.
    """
    failing = "try:\n        AutocastFunction.apply(a, b[:, 1:])\n    except RuntimeError:\n        pass"
    told = "state = torch.is_autocast_enabled('cpu'), torch.get_autocast_dtype('cpu')"
    with Rows() as rows:
        for label, line in {"forward": _RUN, "a forward that raises": failing}.items():
            for on in (True, False):
                with rows.of(f"{label} ({'in a region' if on else 'outside'})"):
                    region = _REGION.replace(")", f", enabled={on})")
                    t = _given(AutocastFunction, _INPUTS["float32"], f"{region}{line}\n    {told}")
                    expect.equal(t.state, (on, torch.bfloat16), what="`state`, on or off and the dtype,")
