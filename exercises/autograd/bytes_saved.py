"""What a forward keeps

Call `forward()` once and return how many bytes its graph keeps for backward. It frees nothing on the way, but
may run a backward.

- Count each storage once and whole, however many kept tensors share it.
- Don't count the storages of `parameters`, even if a view of one is kept. Count all others, inputs too.
- Leave nothing behind: no hook, even if `forward` raises, and no memory.

`torch.autograd.graph.saved_tensors_hooks(pack, unpack)` calls `pack` with the tensors to be kept. Let it
return `t.detach()`: an operation may keep its own result, whose `grad_fn` is the node that keeps it, and then
neither is freed.

For `x = torch.ones(8, requires_grad=True)`: `bytes_saved(lambda: x.exp())` → `32`
"""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import graphs
from course_utils.exercise.symptoms import BYTES

exercise = Exercise(
    minutes=20,
    hints=[
        "`pack` is your function. It sees the tensors that are kept and can note them. How do you tell the "
        "storage of a tensor from others, and how large is the whole storage?",
        "A storage, which `untyped_storage()` gives, has an address, `data_ptr()`, and a size in bytes, "
        "`nbytes()`. Compare storages for the parameters too: `weight.t()` is another tensor than `weight`.",
        "A dictionary from addresses to sizes counts each storage once. Note the addresses of the "
        "parameters first, since `parameters` may be a generator, and use the hooks in a `with` block.",
    ],
)


@exercise.starter
def bytes_saved(forward: Callable[[], Any], parameters: Iterable[Tensor] = ()) -> int:
    """Bytes that the graph of `forward()` keeps for backward, without parameters"""
    raise NotImplementedError


_X = "x = torch.ones(4, 4, requires_grad=True)"
_FORWARD = f"{_X}\nforward = lambda: {{}}".format


def _expect_bytes(t, parameters=""):
    """The bytes that `forward` keeps, with and without a second argument."""
    wanted = measure.saved_bytes(t.forward, exclude=list(eval(parameters or "[]", t._names))).total
    _expect_number(t.call(f"bytes_saved(forward{parameters and ', '}{parameters})"), wanted)


def _expect_number(came, wanted):
    expect.equal(came, wanted, what="the number of bytes", factors=BYTES)


@exercise.check(
    given="x = torch.ones(4, 4, device=device, requires_grad=True)\nforward = lambda: {}".format,
    cases=["x.sin()", "x.exp()", "x + 1", "torch.where(x > 0, x, 0)", "x.cpu().double().exp()"],
)
def one_operator(t, device):
    """A single operator: its input, its result, or nothing

    These operations keep what their derivatives need. A storage knows its size in bytes: float64 takes eight
    for each element, a boolean mask one.
    """
    _expect_bytes(t)


@exercise.check(
    given=_FORWARD,
    cases=["x * x", "(h := x * 2) @ h.t()", "(h := x * 2)[1].expand(4, 4).sin() + h.sin()"],
)
def each_storage_once(t):
    """A storage counts once, whoever reads it

    These nodes keep references, not copies. `x * x` keeps `x` twice. A tensor, its transpose and its slices
    share one storage; tell storages apart by their own address, not by that of a first element.
    """
    _expect_bytes(t)


@exercise.check(given=_FORWARD, cases=["(x * 2)[0].sin()", "(x * 2)[0].expand(9, 4).sin()"])
def whole_storage(t):
    """A storage counts whole, even where a part of it is read

    A slice keeps the whole storage in memory. An expanded tensor shows one element many times, so it can have
    more elements than its storage.
    """
    _expect_bytes(t)


@exercise.check
def without_parameters(bytes_saved):
    """The storages of `parameters` do not count, and nothing else is left out

    A linear layer may keep `weight.t()`, another tensor on the storage of the weight; it keeps no bias.
    `net.parameters()` is a generator, which you can go through once. A tensor that isn't among them counts,
    even if it is an `nn.Parameter`.
    """
    w = f"{_X}\nw = torch.ones(5, 4, requires_grad=True)"
    view = f"{_X}\nw = torch.ones(20)[4:].view(4, 4).requires_grad_()"
    linear = "net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))\nx = torch.ones(3, 4)"
    conv = "net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())\nx = torch.ones(2, 2, 8, 8)"
    with Rows() as rows:
        for label, setup, code, parameters in [
            ("a transpose of `w`", w, "x @ w.t()", "[w]"),
            ("a row of `w`", w, "x * w[1]", "[w]"),
            ("a detached slice of `w`", w, "x * w[:4].detach()", "[w]"),
            ("a `w` that is a view itself", view, "x * w.t()", "[w]"),
            ("no parameters", w, "x @ w.t()", ""),
            ("linear layers", linear, "net(x)", "net.parameters()"),
            ("a convolution", conv, "net(x)", "net.parameters()"),
        ]:
            with rows.of(label):
                t = expect.given(f"{setup}\nforward = lambda: {code}", bytes_saved=bytes_saved)
                _expect_bytes(t, parameters)
        with rows.of("an `nn.Parameter` that is not in `parameters`"):
            setup = f"{_X}\nw = nn.Parameter(torch.ones(4, 4))\nforward = lambda: x * w"
            t = expect.given(setup, bytes_saved=bytes_saved)
            _expect_number(t.call("bytes_saved(forward, [x])"), t.w.nbytes)


@exercise.check
def as_in_training(bytes_saved):
    """`forward` runs once, as it would without you, and its result can be anything

    Under `no_grad` nothing is kept. Backward computes with what `unpack` returns, in place of the kept
    tensor.
    """
    for result in ("[h]", "None"):
        lines = f"    calls.append(1)\n    h = x.exp() * 2\n    kept.append(h)\n    return {result}"
        old = "x.grad = torch.full((4, 4), 7.)\n" * (result == "None")
        setup = f"{_X}\n{old}calls, kept = [], []\ndef forward():\n{lines}"
        t = expect.given(setup, bytes_saved=bytes_saved)
        with expect.left_alone(t.x, what="`x`", gradients=True):
            came = t.call("bytes_saved(forward)")
        expect.equal(len(t.calls), 1, what="the number of calls of `forward`")
        _expect_number(came, t.x.nbytes)
    lines = "    (g,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)\n    seen.append(g)"
    t = expect.given(f"{_X}\nseen = []\ndef forward():\n{lines}", bytes_saved=bytes_saved)
    t.call("bytes_saved(forward)")
    expect.equal(t.seen[0], t.x.exp(), what="the gradient that `forward` computed")


@exercise.check
def leaves_nothing_behind(bytes_saved):
    """No hook stays, also when `forward` raises, and no memory

    A `with` block removes its hooks whatever happens. `x.exp()` keeps its result, whose `grad_fn` is the node
    that keeps it. If the graph holds that very tensor, the two hold each other, and neither is freed.
    `t.detach()` has the same storage and no `grad_fn`.
    """
    t = expect.given(f"{_X}\ndef forward():\n    x.exp()\n    raise KeyError", bytes_saved=bytes_saved)
    expect.raises(KeyError, lambda: t.call("bytes_saved(forward)"))
    _expect_no_hooks()
    lines = "    h = x.exp()\n    held.append(ref(h))\n    return h * 2"
    setup = f"from weakref import ref\nheld = []\n{_X}\ndef forward():\n{lines}"
    t = expect.given(setup, bytes_saved=bytes_saved)
    t.call("bytes_saved(forward)")
    _expect_no_hooks()
    expect.true(
        t.held[0]() is None,
        "the result of `x.exp()` is still in memory after `bytes_saved` has returned, and its graph with it",
        "expected: `held[0]()` is None, both are freed",
    )


def _expect_no_hooks():
    there = graphs.saves_through_hooks()
    expect.true(not there, "hooks for saved tensors are still installed", "expected: none, as before")
