"""An operator of your own

SiLU, `x * sigmoid(x)`, as an operator that torch knows by name. Register it with `torch.library` under the
given `name`, such as `"course::silu"`, and return the operator: `op = my_custom_op(name)`, then `op(x)`. The
result is a new tensor that looks like `torch.empty_like(x)`: shape, dtype, device, strides.

- The dispatcher sees one operator of that name, however it computes.
- Its gradient is that of SiLU, for whatever arrives. A second derivative is right or raises, and so is a
  gradient if `x` was changed in between.
- If `x` has no data, the result has none either, and looks like the real one. `torch.library.opcheck` finds
  nothing wrong, and `torch.compile` makes one graph of a function that calls it, forward and backward.

`my_custom_op("course::silu")(torch.tensor([0., 2.]))` → `[0., 1.7616]`
"""

import contextlib
import re
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import derivatives
from course_utils.measure.modes import is_registered, name_of_operator

exercise = Exercise(
    minutes=15,
    hints=[
        "Tell torch four things about an operator: its name and signature, how to compute it, what comes out "
        "if there is no data, and how to compute its gradient.",
        "`torch.library.custom_op(name, mutates_args=())` decorates the function that computes; its "
        "annotations are the signature. It returns an object with `register_fake` and `register_autograd`.",
        "The fake kernel gets tensors without data, and returns one that looks like the result. "
        "`register_autograd(backward, setup_context=...)` takes the two functions that an "
        "`autograd.Function` has; `backward` calls torch's operators, and doesn't look at values.",
    ],
)


@exercise.starter
def my_custom_op(name: str) -> Callable[[Tensor], Tensor]:
    """Registers SiLU as the operator `name`, "namespace::operator", and returns it"""
    raise NotImplementedError


# A name can be registered once, so each layout has one of its own.
_LAYOUTS = {
    "a vector": "torch.tensor([-100., -2., 0., 0.5, 3., 100.]{})",
    "a transposed matrix": "torch.arange(-3., 3.{}).view(2, 3).t()",
    "every other column in `bfloat16`": "torch.ones(4, 6, dtype=torch.bfloat16{})[:, ::2]",
    "an expanded column": "torch.ones(3, 1{}).expand(3, 2)",
    "float64": "torch.tensor([-1.5, 0.3, 2.], dtype=torch.float64)",
}
_CALL = 'my_custom_op("course_{}::silu")(x)'


def _registers(my_custom_op):
    """The answer; what it returns can be called."""

    def registered(name):
        op = my_custom_op(name)
        if called := name_of_operator(op):
            # To call one that is gone is an access to memory that is somebody else's.
            expect.true(
                is_registered(called),
                f"torch does not know the operator `{called}` any more",
                "what was registered through a `Library` is gone when that object is",
            )
        return op

    return registered


def _given(my_custom_op, setup, device=None):
    where = {} if device is None else {"device": device}
    return expect.given(setup, my_custom_op=_registers(my_custom_op), **where)


def _whole_sentences(text):
    """The first paragraph of a message of torch's, as far as it goes in three lines, without paths."""
    text = re.sub(r"^.*?\(with implementation in .*?>\): | at 0x[0-9a-f]+", "", text.strip(), flags=re.DOTALL)
    first, *others = re.split(r"(?<=[.!?])\s+", " ".join(text.split("\n\n")[0].split()))
    for sentence in others:
        if len(first) + len(sentence) < 300:
            first += f" {sentence}"
    return first.replace("!", "")


@contextlib.contextmanager
def _told(what):
    """What torch raises becomes two lines: the first of its own words says what it is about."""
    try:
        yield
    except expect.Mismatch:
        raise
    except Exception as error:
        text = str(error).partition("got RuntimeError('")[2] or str(error)
        raise expect.Mismatch(f"{what}: {type(error).__name__}", _whole_sentences(text)) from None


@exercise.check(isolated=True)
def values(my_custom_op, device):
    """The values are those of SiLU, in a new tensor that looks like `torch.empty_like(x)`

    `x * torch.sigmoid(x)` keeps the dtype of floats and the layout: for a transposed `x` the result is
    transposed; if `x` has gaps or is expanded, the result is dense. `contiguous` and `float` change that, and
    `mul_` writes to `x`.
    """
    with Rows() as rows:
        for number, (label, code) in enumerate(_LAYOUTS.items()):
            with rows.of(label):
                t = _given(my_custom_op, f"x = {code.format(', device=device')}", device)
                wanted = derivatives.exact(F.silu, t.x)[0]
                with derivatives.untouched():
                    result = t.call(_CALL.format(number))
                derivatives.agrees(result, wanted, t.x)
                expect.strides(result, torch.empty_like(t.x).stride())


@exercise.check(isolated=True)
def one_operator(my_custom_op):
    """The dispatcher sees one operator, with the given name

    `custom_op` returns the operator; the function that it decorates is a Python function. A kernel registered
    as `CompositeImplicitAutograd` is taken apart: a `TorchDispatchMode` sees the operators that it calls.
    """
    t = _given(my_custom_op, 'x = torch.ones(3)\nop = my_custom_op("course::my_silu")')
    with measure.operators() as ran:
        t.call("op(x)")
    seen = "operators that the dispatcher saw: " + (", ".join(f"`{name}`" for name in ran.names) or "none")
    expect.true(ran.names == ["course.my_silu"], seen, "expected: `course.my_silu` alone")


@exercise.check(isolated=True)
def gradient(my_custom_op, device):
    """The gradient is that of SiLU

    Autograd doesn't look inside such an operator: `register_autograd` says how to compute the gradient. With
    `s` for the sigmoid the slope is `s + x * s * (1 - s)`, by the product rule, and what arrives multiplies
    it. `exp(1000.)` is `inf`, and `inf / inf` and `0 * inf` are `nan`; `torch.sigmoid` has neither.
    """
    setup = """
        x = torch.tensor([-3., -0.5, 0., 2., -1000., 1000.], device=device, requires_grad=True)
        g = torch.tensor([1., -2., 3., 0.5, 1., -1.], device=device)
        y = my_custom_op("course::silu")(x)
    """
    t = _given(my_custom_op, setup, device)
    expect.in_graph(t.y, of="`x`")
    wanted = derivatives.exact(F.silu, t.x)[1] * t.g.cpu().double()
    with derivatives.untouched():
        found = t.call("torch.autograd.grad(y, x, g)[0]")
    derivatives.agrees(found, wanted, t.x, what="the gradient")


@exercise.check(isolated=True)
def again(my_custom_op):
    """A second derivative, and a gradient after `x` was changed, are right or raise

    `ctx.save_for_backward` in `setup_context` keeps an input with its history and its version: autograd
    records what backward computes from it, and compares the version. A tensor that is made there has no
    history, and an attribute of `ctx` isn't compared. What is computed from them can be wrong, without a
    word.
    """
    setup = "x = torch.tensor([-3., -0.5, 0., 2.], requires_grad=True)"
    with contextlib.suppress(RuntimeError):  # torch's own `silu_backward` has no derivative, and says so
        x, bend = derivatives.second(_given(my_custom_op, setup), _CALL.format("again"))
        derivatives.agrees(bend, derivatives.exact(F.silu, x)[2], x, what="the second derivative")
    derivatives.never_stale(_given(my_custom_op, setup), _CALL.format("stale"))


@exercise.check(isolated=True)
def without_data(my_custom_op):
    """For a tensor without data it returns the right shape, dtype, device and strides

    The compiler traces a function with tensors without data, and relies on what comes out. It doesn't look
    inside such an operator, so a fake kernel has to say it. By default `torch.empty(x.shape)` is a contiguous
    float32 tensor on the CPU, whatever `x` is.
    """
    with Rows() as rows:
        for number, (label, code) in enumerate(list(_LAYOUTS.items())[1:-1]):
            with rows.of(label):
                made = f"x = {code.format(', device=' + repr('meta'))}"
                t = _given(my_custom_op, f'{made}\nop = my_custom_op("course_{number}::silu")')
                with _told("no result for a tensor without data"):
                    result = t.call("op(x)")
                expect.equal(result, torch.empty_like(t.x))
                expect.strides(result, torch.empty_like(t.x).stride())


@exercise.check(isolated=True, deadline=60)
def passes_opcheck(my_custom_op):
    """`torch.library.opcheck` finds nothing wrong

    It runs the operator with data and without, and compares the two. It checks that the signature says which
    inputs are written to and which results are views. And it traces forward and backward with symbolic sizes,
    as the compiler does: `backward` can't have an `if` on values.
    """
    setup = 'x = torch.arange(-3., 3.).view(2, 3).t().requires_grad_()\nop = my_custom_op("course::silu")'
    t = _given(my_custom_op, setup)
    t.call("op(x)")
    known = hasattr(torch.ops.course, "silu")
    expect.true(known, "torch knows no operator `course::silu`", "expected: `my_custom_op` registers it")
    found = t.call("torch.library.opcheck(torch.ops.course.silu.default, (x,), raise_exception=False)")
    failed = {name: str(why) for name, why in found.items() if why != "SUCCESS"}
    names = ", ".join(f"`{name}`" for name in failed)
    told = _whole_sentences(next(iter(failed.values()), ""))
    expect.true(not failed, f"`opcheck` fails in {names}", told)


@exercise.check(isolated=True, deadline=60)
def compiles(my_custom_op):
    """`torch.compile` makes one graph of a function that calls it, forward and backward

    An operator with a fake kernel is one node in the graph. If you keep the compiler away from it, the graph
    breaks; and a backward with an `if` on values can't be traced without them.
    """
    setup = """
        x = torch.arange(-3., 3.).requires_grad_()
        op = my_custom_op("course::silu")
        f = torch.compile(lambda x: op(x * 2) + 1, backend="aot_eager")
    """
    t = _given(my_custom_op, setup)
    value, slope, _ = derivatives.exact(lambda x: F.silu(x * 2) + 1, t.x)
    with measure.graphs_compiled() as compiled, _told("what was to be compiled cannot be"):
        result = t.call("f(x)")
        t.run("f(x).sum().backward()")
    made = f"graphs: {compiled.graphs}, breaks: {compiled.breaks}"
    one = compiled.graphs == 1 and compiled.breaks == compiled.skipped == 0
    expect.true(one, made, "expected: one graph, without a break")
    derivatives.agrees(result.detach(), value, t.x, what="`f(x)`")
    derivatives.agrees(t.x.grad, slope, t.x, what="`x.grad`")
