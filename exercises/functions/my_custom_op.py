"""An operator of your own

SiLU, `x * sigmoid(x)`, as an operator that torch knows by name. Register it through `torch.library` under the
`name` that is given (such as `"course::silu"`), and return what it is called by: `op = my_custom_op(name)`,
then `op(x)`.

- The dispatcher sees one operator of that name; what it computes with is its own affair.
- Its gradient is that of SiLU, and can be differentiated again. `x` is saved for it, where autograd notes its
  version, and nothing else is kept. What arrives in backward is not written to.
- It says what its result looks like where `x` has no data: shape, dtype, device and strides are those of the
  real result, which are those of `torch.empty_like(x)`.
- `torch.library.opcheck` finds nothing wrong, and `torch.compile` makes one graph of a function that calls
  it.

- `my_custom_op("course::silu")(torch.tensor([0., 2.]))` is `[0.0000, 1.7616]`
"""

import contextlib
import re
from collections.abc import Callable

import torch
from torch import Tensor

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=15,
    hints=[
        "Torch has to be told four things of an operator: its name and signature, how to compute it, what "
        "comes out without computing it, and how its gradient is made.",
        "`torch.library.custom_op(name, mutates_args=())` decorates the function that computes; its "
        "annotations are the signature. What it returns has `register_fake` and `register_autograd`.",
        "The fake kernel gets tensors without data and makes one that looks like the result and has no data "
        "either. `register_autograd(backward, setup_context=...)` takes the two functions that an "
        "`autograd.Function` has; `backward` is made of torch's operators and looks at no values.",
    ],
)


@exercise.starter
def my_custom_op(name: str) -> Callable[[Tensor], Tensor]:
    """Registers SiLU as the operator `name`, "namespace::operator", and returns it"""
    raise NotImplementedError


def _silu(x):
    """The oracle, in double precision."""
    x = x.double()
    return x / (1 + torch.exp(-x))


def _given(my_custom_op, setup):
    def registered(name):
        op = my_custom_op(name)
        if isinstance(op, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            # To call one that is gone is an access to memory that is somebody else's.
            called = op._schema.name if isinstance(op, torch._ops.OpOverload) else op._qualified_op_name
            known = torch._C._dispatch_has_kernel(called)
            evidence.record("gone", not known)
            if not known:
                raise expect.Mismatch(
                    f"torch does not know the operator `{called}` any more",
                    "what was registered through a `Library` is gone when that object is",
                )
        return op

    return expect.given(setup, my_custom_op=registered)


def _first_sentence(message):
    line = next((line.strip() for line in message.splitlines() if line.strip()), "no reason is given")
    # An exclamation mark may be part of a signature: `Tensor(a0!)`.
    return re.sub(r"!(?![)\w])", "", line.split(". ")[0])[:160]


@contextlib.contextmanager
def _told(what):
    """An error of torch's becomes a line: its own text names the functions of whoever wrote the answer."""
    try:
        yield
    except expect.Mismatch:
        raise
    except Exception as error:
        evidence.record(what, type(error).__name__)
        text = str(error).partition("got RuntimeError('")[2] or str(error)
        raise expect.Mismatch(f"{what}: {type(error).__name__}", _first_sentence(text)) from None


@exercise.check(isolated=True)
def values(my_custom_op, device):
    """The values are those of SiLU, in every layout and dtype"""
    where = expect.on(device)
    # A name can be registered once, and so can a namespace where it is defined as a whole.
    for number, setup in enumerate(
        (
            f"x = torch.tensor([-100., -2., 0., 0.5, 3.]{where})",
            f"x = torch.arange(-3., 3.{where}).view(2, 3).t()",
            f"x = torch.ones(4, 6, dtype=torch.bfloat16{where})[:, ::2]",
            f"x = torch.ones(3, 1{where}).expand(3, 2)",
            f"x = torch.empty(0, 2{where})",
        )
    ):
        t = _given(my_custom_op, setup)
        before = t.x.clone()
        result = expect.a_tensor(t.call(f'my_custom_op("course_{number}::silu")(x)'))
        expect.equal(result.dtype, t.x.dtype, what="the dtype of the result")
        expect.close(result.cpu(), _silu(before).cpu())
        expect.unchanged(t.x, before, what="`x`")
        expect.strides(result, torch.empty_like(t.x).stride())


@exercise.check(isolated=True)
def one_operator(my_custom_op):
    """The dispatcher sees one operator, of the name that was given"""
    t = _given(my_custom_op, 'x = torch.ones(3)\nop = my_custom_op("course::my_silu")')
    with measure.operators() as ran:
        t.call("op(x)")
    names = sorted({call.name for call in ran.calls})
    mine = [name for name in names if name.startswith("course.my_silu")]
    evidence.record("others", [name for name in names if name not in mine])
    seen = "operators that the dispatcher saw: " + (", ".join(f"`{name}`" for name in names) or "none")
    expect.true(bool(mine), seen, "expected: `course::my_silu`")
    expect.true(len(names) == 1, seen, "expected: `course::my_silu` alone")


@exercise.check(isolated=True)
def gradient(my_custom_op, device):
    """The gradient is that of SiLU, once and twice"""
    where = expect.on(device)
    t = _given(my_custom_op, f"x = torch.tensor([-3., -0.5, 0., 2.]{where}).requires_grad_()")
    result = t.call('my_custom_op("course::silu")(x)')
    expect.in_graph(expect.a_tensor(result), of="`x`")
    weights = torch.tensor([1.0, -2.0, 3.0, 0.5]).to(t.x)
    with expect.left_alone(weights, what="what arrives in backward"):
        (first,) = torch.autograd.grad(result, t.x, weights, create_graph=True)
    z = t.x.detach().cpu().double().requires_grad_()
    (wanted,) = torch.autograd.grad(_silu(z), z, weights.cpu().double(), create_graph=True)
    expect.close(first.detach().cpu(), wanted.detach(), what="the gradient", factor=8)
    expect.true(first.requires_grad, "the gradient has no graph", "expected: it can be differentiated again")
    (second,) = torch.autograd.grad(first, t.x, weights)
    (wanted,) = torch.autograd.grad(wanted, z, weights.cpu().double())
    expect.close(second.cpu(), wanted, what="the second derivative", factor=32)


@exercise.check(isolated=True)
def kept(my_custom_op):
    """For backward `x` is kept, and nothing else"""
    setup = 'x = torch.ones(2, 4).requires_grad_()\nop = my_custom_op("course::silu")'
    t = _given(my_custom_op, setup)
    t.call("op(x)")
    saved = measure.saved_bytes(t.op, t.x)
    evidence.record("saved", saved.total)
    if saved.total == 0:
        raise expect.Mismatch(
            "nothing is saved for backward where autograd would note its version",
            "expected: `x` is, by `save_for_backward`",
        )
    expect.true(saved.total == 32, f"kept for backward: {saved.total} bytes", "expected: the 32 bytes of `x`")
    live = measure.live_bytes(t.op, t.x)
    expect.at_most(live.held - live.result, 0, "made in between and kept beside the result", unit="bytes")
    with expect.situation(*setup.splitlines(), "y = op(x)", "del y"):
        expect.at_most(live.left, 0, "still there", unit="bytes")


@exercise.check(isolated=True)
def without_data(my_custom_op):
    """It says what comes of a tensor without data: shape, dtype, device and strides"""
    for number, setup in enumerate(
        (
            "x = torch.empty(2, 3, device='meta')",
            "x = torch.empty(2, 3, dtype=torch.float64, device='meta').t()",
            "x = torch.empty(0, 5, dtype=torch.bfloat16, device='meta')",
            "x = torch.empty(4, 6, device='meta')[:, ::2]",
            "x = torch.empty(3, 1, device='meta').expand(3, 2)",
        )
    ):
        t = _given(my_custom_op, f'{setup}\nop = my_custom_op("course_{number}::silu")')
        with _told("no result for a tensor without data"):
            result = t.call("op(x)")
        result = expect.a_tensor(result)
        expect.equal(tuple(result.shape), tuple(t.x.shape), what="the shape of the result")
        expect.equal(result.dtype, t.x.dtype, what="the dtype of the result")
        expect.equal(result.device.type, "meta", what="the device of the result")
        expect.strides(result, torch.empty_like(t.x).stride())


@exercise.check(isolated=True, deadline=60)
def passes_opcheck(my_custom_op):
    """`torch.library.opcheck` finds nothing wrong"""
    setup = 'x = torch.arange(-3., 3.).view(2, 3).t().requires_grad_()\nop = my_custom_op("course::silu")'
    t = _given(my_custom_op, setup)
    t.call("op(x)")
    known = hasattr(torch.ops.course, "silu")
    expect.true(known, "torch knows no operator `course::silu`", "expected: `my_custom_op` registers it")
    found = torch.library.opcheck(torch.ops.course.silu.default, (t.x,), raise_exception=False)
    failed = {name: str(why) for name, why in found.items() if why != "SUCCESS"}
    evidence.record("opcheck", sorted(failed))
    if failed:
        names = ", ".join(f"`{name}`" for name in failed)
        raise expect.Mismatch(
            f"`torch.library.opcheck(op, (x,))` fails in {names}",
            _first_sentence(next(iter(failed.values()))),
        )


@exercise.check(isolated=True, deadline=60)
def compiles(my_custom_op):
    """`torch.compile` makes one graph of a function that calls it, forward and backward"""
    code = "f = torch.compile(lambda x: op(x * 2) + 1)", "f(x).sum().backward()"
    t = _given(my_custom_op, 'x = torch.arange(-3., 3.).requires_grad_()\nop = my_custom_op("course::silu")')
    t.call("op(x)")
    with expect.situation('op = my_custom_op("course::silu")', *code):
        with measure.graphs_compiled() as compiled:
            f = torch.compile(lambda x: t.op(x * 2) + 1, backend="aot_eager")
            with _told("what was to be compiled cannot be"):
                result = f(t.x)
                result.sum().backward()
        with evidence.silent():
            graphs, breaks, skipped = compiled.graphs, compiled.breaks, compiled.skipped
        made = f"graphs: {graphs}, breaks: {breaks}"
        expect.true(graphs == 1 and breaks == skipped == 0, made, "expected: one graph, without a break")
        z = t.x.detach().double().requires_grad_()
        wanted = _silu(z * 2) + 1
        expect.close(result.detach(), wanted.detach(), what="`f(x)`", factor=8)
        expect.close(t.x.grad, torch.autograd.grad(wanted.sum(), z)[0], what="`x.grad`", factor=8)


# --- the mistakes -----------------------------------------------------------------------------------------


def _forward(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def _keep_x(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad):
    (x,) = ctx.saved_tensors
    s = torch.sigmoid(x)
    return grad * s * (1 + x * (1 - s))


def _registered(name, forward=_forward, fake=torch.empty_like, backward=_backward, setup_context=_keep_x):
    """An operator of these parts; a part that is None is left out."""
    op = torch.library.custom_op(name, forward, mutates_args=())
    if fake is not None:
        op.register_fake(fake)
    if backward is not None:
        op.register_autograd(backward, setup_context=setup_context)
    return op


@exercise.mistake
def no_fake(name):
    """You have not said what the result looks like where there is no data. `torch.compile` runs your function
    on tensors without data to find the shapes, and cannot go on there: register a fake kernel,
    `register_fake`."""
    return _registered(name, fake=None)


@no_fake.variant
def without_a_meta_kernel(name):
    @torch.library.custom_op(name, mutates_args=())
    def silu(x: Tensor) -> Tensor:
        return x / (1 + torch.exp(-x))

    def slope(ctx, upstream):
        s = torch.sigmoid(ctx.saved_tensors[0])
        return upstream * (s + ctx.saved_tensors[0] * s * (1 - s))

    torch.library.register_autograd(name, slope, setup_context=_keep_x)
    return silu


@exercise.mistake
def no_gradient(name):
    """Your operator has no gradient. Autograd does not look inside an operator, whatever it is made of: it
    has to be told how the gradient is made, with `register_autograd`."""
    op = torch.library.custom_op(name, _forward, mutates_args=())
    op.register_fake(torch.empty_like)
    return op


@no_gradient.variant
def forward_and_fake_only(name):
    @torch.library.custom_op(name, mutates_args=())
    def silu(x: Tensor) -> Tensor:
        return torch.nn.functional.silu(x)

    @silu.register_fake
    def _(x):
        return x.new_empty(x.shape) if x.is_contiguous() else torch.empty_like(x)

    return silu


@exercise.mistake
def a_function(name):
    """You have registered no operator of that name: what you return is a function, and the dispatcher sees
    the operators that it is made of."""
    return _forward


@a_function.variant
def torchs_own(name):
    def silu(x):
        return torch.mul(torch.sigmoid(x), x)

    return silu


@a_function.form
def torchs_own_silu(name):
    return torch.nn.functional.silu


@a_function.form
def an_autograd_function(name):
    class Silu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return _forward(x)

        @staticmethod
        def backward(ctx, grad):
            return _backward(ctx, grad)

    return Silu.apply


@exercise.mistake
def returns_what_computes(name):
    """You register the operator, and return the function that it computes with: the dispatcher sees what that
    is made of. Return what `custom_op` has returned."""

    def silu(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    _registered(name, silu)
    return silu


@exercise.mistake
def another_name(name):
    """You register the operator under a name of your own. It is to have the `name` that is given."""
    return _registered("course::silu")


@exercise.mistake
def fake_without_dtype(name):
    """Your fake kernel makes a tensor on the CPU, whatever it is given. All that is true of the result is to
    be true of it, dtype and device too: `torch.empty_like(x)`, or `x.new_empty(...)`."""
    return _registered(name, fake=lambda x: torch.empty(x.shape))


@fake_without_dtype.form
def fake_without_device(name):
    return _registered(
        name, fake=lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu")
    )


@exercise.mistake
def fake_is_contiguous(name):
    """Your fake kernel makes a contiguous tensor, and your operator returns one that is laid out like `x`.
    What has been compiled for one layout meets another then. `torch.empty_like(x)` has the layout of `x`."""
    return _registered(name, fake=lambda x: x.new_empty(x.shape))


@fake_is_contiguous.variant
def fake_by_shape(name):
    op = torch.library.custom_op(name, _forward, mutates_args=())
    op.register_fake(lambda x: torch.empty(x.size(), dtype=x.dtype, device=x.device))
    op.register_autograd(_backward, setup_context=_keep_x)
    return op


@exercise.mistake
def fake_has_the_strides_of_x(name):
    """Your fake kernel makes a tensor with the strides of `x`, whatever they are. Where `x` has gaps, or
    one element stands for several, the real result has others: those of `torch.empty_like(x)`."""

    def fake(x):
        return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device)

    return _registered(name, fake=fake)


@exercise.mistake
def fake_is_x(name):
    """Your fake kernel returns `x` itself. So it says that the result has the memory of `x`, and the real one
    has memory of its own: make a new tensor, `torch.empty_like(x)`."""
    return _registered(name, fake=lambda x: x)


@exercise.mistake
def result_is_contiguous(name):
    """Your operator returns a contiguous tensor, whatever the layout of `x`. It is to have the strides of
    `torch.empty_like(x)`, and so is what the fake kernel makes."""

    def forward(x: Tensor) -> Tensor:
        x = x.contiguous()
        return x * torch.sigmoid(x)

    return _registered(name, forward)


@result_is_contiguous.form
def both_are_contiguous(name):
    def forward(x: Tensor) -> Tensor:
        return (x * torch.sigmoid(x)).contiguous()

    return _registered(name, forward, fake=lambda x: x.new_empty(x.shape))


@exercise.mistake
def always_float32(name):
    """Your operator returns float32, whatever the dtype of `x`. It is to be that of `x`, as your fake kernel
    says: leave the dtype as it is, or cast back at the end."""

    def forward(x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.sigmoid(x)

    return _registered(name, forward)


@exercise.mistake
def keeps_on_ctx(name):
    """You keep `x` in another place than `ctx.save_for_backward`, as an attribute of `ctx` say. Autograd
    knows nothing of it there, and does not notice when it is changed in between."""

    def keep(ctx, inputs, output):
        (ctx.x,) = inputs

    def backward(ctx, grad):
        s = torch.sigmoid(ctx.x)
        return grad * s * (1 + ctx.x * (1 - s))

    return _registered(name, backward=backward, setup_context=keep)


@exercise.mistake
def slope_of_the_sigmoid(name):
    """Your backward multiplies by the derivative of the sigmoid. SiLU is a product of two factors that both
    depend on `x`: the product rule gives `s + x * s * (1 - s)`."""

    def backward(ctx, grad):
        s = torch.sigmoid(ctx.saved_tensors[0])
        return grad * s * (1 - s)

    return _registered(name, backward=backward)


@exercise.mistake
def sigmoid_as_a_constant(name):
    """Your backward multiplies by the sigmoid, as if that were a constant. It depends on `x` as well: the
    product rule has a second term, `x * s * (1 - s)`."""

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(x)

    return _registered(name, backward=backward)


@exercise.mistake
def sigmoid_without_a_graph(name):
    """The gradient is right, but the second derivative is not: the sigmoid in your backward has no graph that
    leads to `x`, and counts as a constant. Compute it from the saved `x` itself."""

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x.detach())
        return grad * s * (1 + x * (1 - s))

    return _registered(name, backward=backward)


@exercise.mistake
def nothing_is_saved(name):
    """Your backward looks for a saved tensor, and none was saved. Who saves is the function that
    `register_autograd` takes as `setup_context`: it gets `ctx`, the inputs and the output."""
    op = _registered(name, backward=None)
    op.register_autograd(_backward)
    return op


@nothing_is_saved.variant
def forgets_to_save(name):
    def keep(ctx, inputs, output):
        pass

    def backward(ctx, upstream):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return (s + x * s * (1 - s)) * upstream

    return _registered(name, backward=backward, setup_context=keep)


@exercise.mistake
def backward_is_opaque(name):
    """Your backward is an operator of its own that has no gradient, so the gradient cannot be differentiated
    again. Made of torch's operators it can; or register a gradient for that operator as well."""

    @torch.library.custom_op(f"{name}_backward", mutates_args=())
    def slope(grad: Tensor, x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        return grad * s * (1 + x * (1 - s))

    slope.register_fake(lambda grad, x: torch.empty_like(x))
    return _registered(name, backward=lambda ctx, grad: slope(grad, *ctx.saved_tensors))


@exercise.mistake
def overwrites_what_arrives(name):
    """Your backward writes into what arrives. It is not yours: others may get the same tensor. Multiply into
    a new one."""

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad.mul_(s * (1 + x * (1 - s)))

    return _registered(name, backward=backward)


@exercise.mistake
def keeps_the_result_too(name):
    """You keep more than `x` for backward. Everything that the gradient needs can be computed from `x`
    again."""

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    def backward(ctx, grad):
        x, _ = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * s * (1 + x * (1 - s))

    return _registered(name, backward=backward, setup_context=keep)


@keeps_the_result_too.variant
def keeps_the_sigmoid(name):
    def keep(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(torch.sigmoid(x), x)

    def backward(ctx, grad):
        s = torch.sigmoid(ctx.saved_tensors[1])
        return (s + ctx.saved_tensors[1] * s * (1 - s)) * grad

    op = torch.library.custom_op(name, _forward, mutates_args=())
    op.register_fake(torch.empty_like)
    op.register_autograd(backward, setup_context=keep)
    return op


@keeps_the_result_too.form
def uses_the_sigmoid_it_kept(name):
    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs, torch.sigmoid(*inputs))

    def backward(ctx, grad):
        x, s = ctx.saved_tensors
        return grad * s * (1 + x * (1 - s))

    return _registered(name, backward=backward, setup_context=keep)


@exercise.mistake
def drops_what_arrives(name):
    """Your backward returns the derivative of SiLU alone. The chain rule multiplies it by what arrives."""

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return s * (1 + x * (1 - s))

    return _registered(name, backward=backward)


@exercise.mistake
def differentiable_once(name):
    """Your backward works without a graph, so the gradient cannot be differentiated again. Made of torch's
    operators, and without `no_grad` or `detach`, it is recorded like everything else."""

    @torch.no_grad()
    def backward(ctx, grad):
        return _backward(ctx, grad)

    return _registered(name, backward=backward)


@exercise.mistake
def looks_at_values(name):
    """Your backward looks at values: an `if` on a tensor. The compiler follows backward with tensors that
    have no data, and there is nothing to decide by."""

    def backward(ctx, grad):
        if (grad == 0).all():
            return grad
        return _backward(ctx, grad)

    return _registered(name, backward=backward)


@exercise.mistake
def overwrites_x(name):
    """You compute in the memory of `x`, and `x` is not yours: whoever called still wants it. The signature
    that you have registered says that nothing is written to."""

    def forward(x: Tensor) -> Tensor:
        return x.mul_(torch.sigmoid(x)).clone()

    return _registered(name, forward)


@exercise.mistake
def hidden_from_the_compiler(name):
    """You keep the compiler away from your operator with `torch.compiler.disable`: there the graph breaks. An
    operator with a fake kernel needs no such thing."""
    return torch.compiler.disable(_registered(name))


_libraries = []


@exercise.mistake
def taken_apart(name):
    """You have registered a composite of other operators: torch takes it apart before anybody sees it. A
    kernel that is registered for the devices, or for `CompositeExplicitAutograd`, stays one operator."""
    namespace, operator = name.split("::")
    library = torch.library.Library(namespace, "FRAGMENT")
    _libraries.append(library)
    library.define(f"{operator}(Tensor x) -> Tensor")
    library.impl(operator, _forward, "CompositeImplicitAutograd")
    return getattr(getattr(torch.ops, namespace), operator)
