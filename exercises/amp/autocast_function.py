"""A Function of your own, under autocast

`autocast_function(function, dtype=None)` gets an `autograd.Function` with a `forward(ctx, ...)` that knows
nothing of autocast. It returns a subclass for use on the CPU:

- Without `dtype`, forward runs as it is called. Backward runs in the state that its forward had: autocast on
  or off, and in the same dtype, wherever it is called.
- With `dtype`, a forward in a region gets its floating-point tensors cast to `dtype`, except those of
  float64. It runs with autocast off, and so does its backward. Outside a region nothing is cast.

`function` stays as it is. `torch.amp.custom_fwd` and `custom_bwd` are welcome.

`autocast_function(MyProduct, torch.float32).apply(a, b)`: the product, computed in float32 in a region too.
"""

import torch

from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=15,
    hints=[
        "Make a `class Wrapped(function)` whose methods call those of `function`. What is around each call?",
        "Forward can ask for the state of autocast. What belongs to one call, and reaches its backward?",
        "`custom_fwd(device_type='cpu', cast_inputs=dtype)` decorates a `forward(ctx, *args)` that returns "
        "`function.forward(ctx, *args)`, and `custom_bwd` a backward like it. `@staticmethod` stands above.",
    ],
)


@exercise.starter
def autocast_function(function: type, dtype: torch.dtype | None = None) -> type:
    raise NotImplementedError


_SETUP = """
from course_utils.exercise.kits import formats
Product, seen = formats.product()
torch.manual_seed(0)
a, b = torch.randn(2, 3, requires_grad=True), torch.randn(3, 4, requires_grad=True)
off = torch.autocast("cpu", enabled=False)
bfloat16, float16 = (torch.autocast("cpu", dtype=d) for d in (torch.bfloat16, torch.float16))
"""
_REGIONS = "off", "bfloat16", "float16"


def _run(t, call, forward, backward=None):
    """Forward and backward in the regions of these names; `call`: what follows on `autocast_function`."""
    t.run(f"with {forward}:\n    out = autocast_function{call}\n    on = torch.is_autocast_enabled('cpu')")
    expect.equal(t.on, forward != "off", what="whether autocast is on in the region after the call")
    if backward:
        t.run(f"with {backward}:\n    out.backward(torch.ones_like(out))")


def _saw(t, where, state, dtypes=None):
    expect.equal(t.call(f"seen['autocast in {where}']"), state, what=f"autocast in {where}")
    if dtypes:
        expect.equal(t.call(f"seen['dtypes in {where}']"), dtypes, what=f"dtypes in {where}")


@exercise.check(
    given=_SETUP,
    cases={f"`{one}` then `{other}`": (one, other) for one in _REGIONS for other in _REGIONS},
)
def as_forward(t, one, other):
    """Without a `dtype`, backward runs in the state that forward had

    The casts of autocast are in the graph. The backward of a Function runs operators anew, in the state
    of whoever calls `backward`, after the region or in another.
    """
    _run(t, "(Product).apply(a, b, 2)", one, other)
    _saw(t, "forward", one, [torch.float32] * 2)
    _saw(t, "backward", one)
    wanted = 2 * torch.ones(2, 4) @ t.b.detach().t()
    expect.equal(t.a.grad, wanted, what="`a.grad`", rtol=0.02, atol=0.1)


@exercise.check(
    given=_SETUP,
    cases={
        f"`{left}` and `{dtype}`": (f"left = {left}", dtype)
        for left in ("a", "a.half()", "a.bfloat16()")
        for dtype in (torch.float32, torch.bfloat16, torch.float64)
    },
)
def computed_in_dtype(t, dtype):
    """With a `dtype`, all of the forward is computed in it

    Casting is half of it: while autocast is on, `@` inside casts float32 down again. Where it's off, `@`
    takes no tensors of different dtypes: `float16` and `bfloat16` are to be cast as well.
    """
    _run(t, f"(Product, {dtype}).apply(left, b, 3)", "bfloat16")
    _saw(t, "forward", "off", [dtype] * 2)
    expect.equal(t.out.detach(), t.left.detach().to(dtype) @ t.b.detach().to(dtype) * 3)


@exercise.check(given=f"{_SETUP}h = a.detach().bfloat16().requires_grad_()", cases=_REGIONS)
def backward_too(t, region):
    """With a `dtype`, backward is computed in it too

    It runs with autocast off, in whatever region it's called. The inputs that forward saved are in `dtype`.
    Autograd casts each gradient to the dtype that the argument of `apply` has.
    """
    _run(t, "(Product, torch.float32).apply(h, b)", "bfloat16", region)
    _saw(t, "backward", "off", [torch.float32] * 3)
    expect.equal(t.h.grad, (torch.ones(2, 4) @ t.b.detach().t()).bfloat16(), what="`h.grad`")
    expect.equal(t.b.grad, t.h.detach().float().t() @ torch.ones(2, 4), what="`b.grad`")
    _run(t, "(Product, torch.float32).apply(a, b)", "off", region)
    _saw(t, "backward", "off", [torch.float32] * 3)


@exercise.check(
    given=lambda row: f"{_SETUP}x, y = (one.detach().{row.split()[0]}() for one in (a, b))",
    cases=["bfloat16 in off", "half in off", "double in bfloat16", "long in bfloat16"],
)
def left_alone(t, row):
    """Outside a region nothing is cast; inside, float64 and integers are left alone

    Whoever calls outside a region wants the dtypes that came. Autocast leaves float64 alone: whoever uses it
    wants the digits. And an integer may be an index.
    """
    region = row.split(" in ")[1]
    _run(t, "(Product, torch.float32).apply(x, y)", region)
    _saw(t, "forward", "off", [t.x.dtype] * 2)
    expect.equal(t.out, t.x @ t.y)


@exercise.check(given=_SETUP)
def each_call(t):
    """Each call has a state of its own, and `function` stays as it is

    Between a forward and its backward the class may be used again. What belongs to one call is kept on its
    `ctx`. A subclass leaves the class alone that it was made of.
    """
    t.run("Wrapped = autocast_function(Product)\nfirst, plain = Wrapped.apply(a, b), Product.apply(a, b)")
    t.run("with bfloat16:\n    second = Wrapped.apply(a, b)")
    for name, region in {"first": "off", "second": "bfloat16", "plain": "bfloat16"}.items():
        t.run(f"with bfloat16:\n    {name}.sum().backward()")
        _saw(t, "backward", region)
