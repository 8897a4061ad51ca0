"""An operator made of a kernel

`my_triton_op(name)` registers the squared ReLU, `max(x, 0)²`, as the operator `name`, such as
`"course::squared_relu"`, and returns it. `x` has any strides, any size but 0, and dtype float16, float32 or
float64. The result is new and contiguous.

- Forward and backward are each computed by a kernel of yours. It loads and stores each element once, and
  nothing outside the tensors.
- Nothing but `x` is kept for backward.
- `torch.library.opcheck` finds nothing wrong. Without data, result and gradient look as they do with data.
- A function that calls `op` compiles into one graph, forward and backward.

Write the kernels above `my_triton_op`, and register everything inside it.

`my_triton_op("course::squared_relu")(torch.tensor([-1., 3.]))` → `[0., 9.]`
"""

import itertools

import torch

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import derivatives
from course_utils.exercise.kits.kernels import agrees, because, computed, inside, keeps, once, untouched
from course_utils.measure.modes import is_registered, name_of_operator

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "The compiler traces backward too, without data. How does it get past your forward kernel?",
        "`torch.library.custom_op(name, mutates_args=())` hides a launch. `register_fake` says what comes "
        'out. Make two: `name`, and `name + "_backward"`, which takes `x` and the gradient that arrives.',
        "Inside the operators call `.contiguous()` on `x` and on what arrives. The fakes return an empty, "
        "contiguous tensor. Then `op.register_autograd(backward, setup_context=setup_context)`.",
    ],
)


@exercise.starter
def my_triton_op(name: str):
    """Registers the operator `name`, "namespace::operator", and returns it"""
    raise NotImplementedError


_LAYOUTS = {
    "2,500 elements": "torch.randn(2500, device=device)",
    "one number": "torch.tensor(-3., device=device)",
    "float16": "torch.randn(1500, device=device).half()",
    "a transposed matrix, float64": "torch.randn(37, 41, device=device).double().t()",
    "every other column": "torch.randn(30, 80, device=device)[:, ::2]",
    "an expanded column": "torch.randn(7, 1, device=device).expand(7, 5)",
}
_DRAWN = {label: f"torch.manual_seed(0)\nx = {code}" for label, code in _LAYOUTS.items()}
_WITHOUT = "\nx = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device='meta')"
_PAIRS = {"2,565 elements": "x, g = torch.randn(2, 2565)", "a matrix": "x, g = torch.randn(2, 7, 5)"}
_KEPT = {"a matrix": "x = torch.randn(100, 50)", "a transposed matrix": "x = torch.randn(50, 100).t()"}
_REAL = {label: f"real = {code.replace(', device=device', '')}{_WITHOUT}" for label, code in _LAYOUTS.items()}


def _squared_relu(x):
    return x.relu().square()


_ROUNDED = (
    "float64 has 53 bits and float32 has 24. What is loaded has the dtype of its tensor, and so has what is "
    "computed of it, unless the kernel converts it."
)
_NEW = (
    "`mutates_args=()` promises that no argument is written to, and none returned. `x.contiguous()` is `x` "
    "itself where that is contiguous."
)


def _agrees(found, wanted, t, what):
    """`agrees`, with a why where float64 went through float32."""
    wide = t.x.dtype == torch.float64 and expect.is_tensor(found) and found.shape == wanted.shape
    near = wide and torch.allclose(found.detach().cpu().double(), wanted.double(), 1e-5, 1e-6)
    with because(_ROUNDED if near else ""):
        agrees(found, wanted, t.x, what=what)


def _register(t):
    """Makes the operator of the example, under a name that was free, and returns that."""
    names = map("squared_relu_{}".format, itertools.count())
    name = next(one for one in names if not is_registered(f"course::{one}"))
    t.run(f'op = my_triton_op("course::{name}")')
    called = name_of_operator(t.op)  # to call one that is gone is an access to other memory
    expect.true(not called or is_registered(called), f"torch doesn't know `{called}` any more")
    return name


@exercise.check(isolated=True, needs="triton", cases=_DRAWN)
def values(t, device):
    """The values are those of the squared ReLU, in a new, contiguous tensor

    A kernel gets an address, and no strides. If it counts on from there, it reads elements in the order in
    which they lie. In a transposed matrix that is another order, and in a slice there are others between.
    """
    _register(t)
    wanted = derivatives.exact(_squared_relu, t.x)[0]
    try:
        with untouched():
            found = t.call("op(x)")
    except RuntimeError as error:
        if "must not also be an input" not in str(error):
            raise
        told = "what is returned is `x` itself, which torch refuses"
        raise expect.Mismatch(told, "expected: a new tensor", why=_NEW) from None
    _agrees(found, wanted, t, "the result")
    expect.strides(found, torch.empty(t.x.shape).stride())


@exercise.check(isolated=True, needs="triton", cases=_DRAWN)
def gradient(t, device):
    """The gradient is `2 * max(x, 0)` times what arrives

    Autograd doesn't look into an operator: `register_autograd` says how its gradient is computed. What
    arrives need not be contiguous: a sum sends back one number, expanded to the shape of its input.
    """
    _register(t)
    t.run("x.requires_grad_()\ny = op(x)\ng = torch.randn_like(y)")
    expect.in_graph(t.y, of="`x`")
    _, wanted, _ = derivatives.exact(_squared_relu, t.x)
    given = t.g.cpu().double()
    with untouched():
        found = t.call("torch.autograd.grad((3 * y).sum(), x, retain_graph=True)[0]")
    _agrees(found, 3 * wanted, t, "the gradient")
    with untouched():
        found = t.call("torch.autograd.grad(y, x, g)[0]")
    _agrees(found, given * wanted, t, "the gradient")


# What a profile names beside its parts.
_PARTED = ("aten::contiguous", "aten::flatten", "aten::ravel", "aten::reshape", "aten::to")


def _launched(t, call, name):
    """The launches of a call. What runs inside an operator is seen by no watch of operators."""
    with torch.autograd.profiler.profile() as ran, measure.kernels() as launches:
        t.run(f"{name} = {call}")
    names = [event.name for event in ran.function_events]
    ours = [one for one in names if one.startswith("aten::") and one not in _PARTED]
    return computed(launches, ours, by=call)


@exercise.check(isolated=True, needs="triton", cases=_PAIRS)
def launches(t):
    """Kernels compute the result and the gradient

    Torch takes any function as an operator, `x.relu().square()` too, with two passes over memory. Each kernel
    loads each element once and stores each once, and none goes beyond the end.
    """
    _register(t)
    forward = _launched(t, "op(x.requires_grad_())", "y")
    backward = _launched(t, "torch.autograd.grad(y, x, g)[0]", "slope")
    once(t, forward, ["x"], ["y"], during="forward")
    once(t, backward, ["x", "g"], ["slope"], during="backward")
    inside(forward + backward)


@exercise.check(isolated=True, needs="triton", cases=_KEPT)
def kept(t):
    """Nothing but `x` is kept for backward

    `x` is there anyway, so it costs nothing. What is computed from it, a copy too, takes memory until then.
    """
    _register(t)
    t.run("x.requires_grad_()")
    keeps(t, "op(x)")


@exercise.check(isolated=True, needs="triton", given="x = torch.randn(4, 3).double().requires_grad_()")
def passes_opcheck(t):
    """`torch.library.opcheck` finds nothing wrong

    It runs the operator with data and without, compares, and traces forward and backward as a compiler does.
    What backward launches itself gets tensors without data there. What an operator launches doesn't run.
    """
    name = _register(t)
    told = f"`course::{name}` is no operator that torch knows"
    expect.true(is_registered(f"course::{name}"), told, "expected: `my_triton_op` registers it")
    found = t.call(f"torch.library.opcheck(torch.ops.course.{name}.default, (x,), raise_exception=False)")
    failed = {test: str(why) for test, why in found.items() if why != "SUCCESS"}
    why = " ".join(next(iter(failed.values()), "").split("\n\n")[0].split())[:300].replace("!", ".")
    expect.true(not failed, f"`opcheck` fails in {', '.join(f'`{test}`' for test in failed)}", why)


@exercise.check(isolated=True, needs="triton", cases=_REAL)
def without_data(t):
    """For a tensor without data it returns one that looks like the result

    The compiler takes shape, dtype, device and strides from the fake kernel. `torch.empty(x.shape)` is
    float32 and on the CPU, whatever `x` is. `torch.empty_like(x)` is transposed where `x` is.
    """
    _register(t)
    found = t.call("op(x)")
    expect.equal(found, wanted := t.x.new_empty(t.x.shape))
    expect.strides(found, wanted.stride())
    t.run("slope, = torch.autograd.grad(op(real.requires_grad_()).sum(), real)")
    found = t.call("torch.autograd.grad(op(x.requires_grad_()).sum(), x)[0]")
    expect.equal(found, t.slope.to("meta"), what="the gradient")
    expect.strides(found, t.slope.stride(), what="the gradient")


@exercise.check(isolated=True, needs="triton", deadline=60, given="x = torch.randn(20, requires_grad=True)")
def compiles(t):
    """A function that calls it compiles into one graph, forward and backward

    To the compiler a `custom_op` with a fake kernel is one node. It neither traces nor fuses what is in it.
    """
    _register(t)
    t.run('f = torch.compile(lambda x: op(x * 2), backend="aot_eager")')
    _, slope, _ = derivatives.exact(lambda x: _squared_relu(x * 2), t.x)
    with measure.graphs_compiled() as compiled:
        t.run("f(x).sum().backward()")
    made = f"graphs: {compiled.graphs}, breaks: {compiled.breaks + compiled.skipped}"
    expect.true(made == "graphs: 1, breaks: 0", made, "expected: one graph, without a break")
    derivatives.agrees(t.x.grad, slope, t.x, what="`x.grad`")
