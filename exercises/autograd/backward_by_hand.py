"""Run the graph yourself

Do what `root.backward(grad)` does, without it: run the nodes of the graph behind `root` yourself, and leave
in `.grad` of every leaf what backward would leave there, added to what is there already. `root` has a
`grad_fn`; it is output number `root.output_nr` of that node. Autograd's own engine, `backward` and
`torch.autograd.grad`, is not allowed. Your `graph_operations` is, where it stands in the same notebook.

A node does its own step and nothing more. What you need to know about it:

- The pair `(following, number)` in place `i` of `node.next_functions` says where the node's gradient `i`
  goes: to input `number` of the node `following`. At `(None, 0)` it goes nowhere.
- A node has as many inputs as its operator had outputs, `len(node._input_metadata)`. Call it with one
  gradient for each, None where none arrived: `node(g0, g1)`. It returns a tuple with a gradient or None for
  each entry of `next_functions`; where there is one entry it may be without the tuple.
- An `AccumulateGrad` node has no `next_functions`. Calling it adds to the `.grad` of its leaf,
  `node.variable`.
- The formulas know nothing of broadcasting and dtypes. `node._input_metadata[number]` has the `shape`,
  `dtype` and `device` of the tensor that this input belongs to. A gradient has to be brought to that shape
  (`Tensor.sum_to_size` does it) and to that dtype before it goes in.
- The node of a custom Function, the only kind that has an `apply`, is not called but applied,
  `node.apply(g0, g1)`, which runs the `backward` that somebody wrote. That expects zeros where no gradient
  arrived, also where none arrived at all: it runs all the same. It returns one entry for each argument
  of `forward`, also for those that are no tensors and have no place in `next_functions`.
  `node.needs_input_grad` says for each argument whether its gradient is wanted. These gradients, in order,
  belong to the entries of `next_functions` that are not `(None, 0)`.

Each node runs once, also where many paths lead to it, and a graph may be 20,000 nodes deep. Gradients get no
graph of their own. There are no hooks and no `retain_grad` to think of.
"""

import contextlib

import torch
from torch import Tensor
from torch.autograd import Function

from course_utils import evidence, expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=50,
    hints=[
        "A tensor that was used twice gets two gradients, and the node that made it needs their sum. How do "
        "you know that all have arrived? `graph_operations` gives an order in which they always have.",
        "Keep a dictionary: for each node, what has arrived for it so far, by input number. A gradient that "
        "arrives where there is one already is added to it, as a new tensor: the old one may be held by "
        "others. Every gradient is fitted to its input before it is added.",
        "For each node in order: take what arrived for it, with None (custom Function: zeros) in the gaps; "
        "run it under `torch.no_grad()`; make a tuple of what came; for a custom Function keep the entries "
        "that `needs_input_grad` marks and put None where the edge is `(None, 0)`; then deliver, place by "
        "place.",
    ],
)


@exercise.starter
def backward_by_hand(root: Tensor, grad: Tensor) -> None:
    """Adds to `.grad` of every leaf behind `root` what `root.backward(grad)` would add"""
    raise NotImplementedError


class ShareOut(Function):
    """Two outputs, and a first argument that is no tensor."""

    @staticmethod
    def forward(ctx, part, x):
        ctx.part = part
        return part * x, (1 - part) * x

    @staticmethod
    def backward(ctx, g, h):
        return None, torch.lerp(h, g, ctx.part)


class Gate(Function):
    """`x * gate`; no gradient for the gate."""

    @staticmethod
    def forward(ctx, x, gate):
        ctx.save_for_backward(gate)
        return x * gate

    @staticmethod
    def backward(ctx, g):
        (gate,) = ctx.saved_tensors
        return g * gate, None


class Product(Function):
    """`x * y`; a gradient for both."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x


class Both(Function):
    """`2 * x`, and the sum of `x`: two outputs of unlike shapes."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x, x.sum()

    @staticmethod
    def backward(ctx, g, h):
        return 2 * g + h


class Counted(Function):
    """`2 * x`; counts the runs of its backward."""

    runs = 0

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        Counted.runs += 1
        return 2 * g


_ABOUT = {
    "ShareOut": "`ShareOut.forward(ctx, part, x)` returns `part * x` and `(1 - part) * x`; its backward "
    "returns `None` and `part * g + (1 - part) * h`, by `torch.lerp`",
    "Gate": "`Gate.forward(ctx, x, gate)` returns `x * gate`; its backward returns `gate * g, None`",
    "Product": "`Product.forward(ctx, x, y)` returns `x * y`; its backward returns `g * y, g * x`",
    "Both": "`Both.forward(ctx, x)` returns `2 * x` and `x.sum()`; its backward returns `2 * g + h`",
    "Counted": "`Counted.forward(ctx, x)` returns `2 * x`; its backward counts how often it runs",
}


def _nodes(root):
    found = dict.fromkeys([root])
    waiting = [root]
    while waiting:
        for following, _ in waiting.pop().next_functions:
            if following is not None and following not in found:
                found[following] = None
                waiting.append(following)
    return found


def _leaves(t):
    """The leaves among the names of an example, and the parameters of its modules."""
    found = {}
    for name, value in t._names.items():
        if isinstance(value, Tensor) and value.is_leaf and name != "grad":
            found[name] = value
        elif isinstance(value, torch.nn.Module):
            found |= {f"{name}.{inner}": p for inner, p in value.named_parameters()}
    return found


def _given(setup, **more):
    return expect.given(setup, **{name: globals()[name] for name in _ABOUT if name in setup}, **more)


def _expect(faults, backward_by_hand, setups, *, together=False):
    """Runs the answer in every example, and raises what is wrong with the first that is not right.

    `faults(t, setup)`: pairs of a word for a fault and a `Mismatch`. The words are the evidence, those of
    each example by themselves or of all `together`: what is lost or overwritten may depend on the order in
    which an answer runs nodes, and many orders are right.
    """
    seen, first = [], None
    for setup in setups:
        t = _given(setup, backward_by_hand=backward_by_hand)
        try:
            t.call("backward_by_hand(root, grad)")
            with evidence.silent():
                found = list(faults(t, setup))
        except Exception as error:
            found = [(f"raised {type(error).__name__}", error)]
        seen.append({word for word, _ in found})
        first = first or [(setup, error) for _, error in found][:1]
    evidence.record("faults", set.union(*seen) if together else seen)
    if not first:
        return
    [(setup, error)] = first
    if not isinstance(error, expect.Mismatch):
        _again(setup, error)
    error.lines += [about for name, about in _ABOUT.items() if name in setup]
    raise error


def _again(setup, error):
    """Raises what the answer raised in an example; that example is the one that is shown."""

    def backward_by_hand(root, grad):
        raise error

    _given(setup, backward_by_hand=backward_by_hand).call("backward_by_hand(root, grad)")


def _wrong_gradients(t, setup):
    """Where `.grad` of a leaf is not what backward leaves there."""
    engine, leaves = _given(setup), _leaves(t)
    engine.root.backward(engine.grad)
    for name, leaf in _leaves(engine).items():
        wanted, came, what = leaf.grad, leaves[name].grad, f"`{name}.grad`"
        try:
            if wanted is None:
                expect.true(came is None, f"{what} is {expect.show(came)}, expected None")
            else:
                expect.equal(came, wanted, what=what, rtol=1e-4, atol=1e-5)
        except expect.Mismatch as found:
            yield _word(came, wanted), found


def _word(came, wanted):
    if came is None:
        return "none"
    if wanted is None:
        return "a gradient" if came.any() else "zeros"
    return "shape" if came.shape != wanted.shape else "dtype" if came.dtype != wanted.dtype else "values"


def _expect_gradients(backward_by_hand, *setups, together=False):
    """`.grad` of every leaf is what backward leaves there."""
    _expect(_wrong_gradients, backward_by_hand, setups, together=together)


_SEED = "torch.manual_seed(0)\n"
_GRAD = "\ngrad = torch.randn_like(root)"


def _setup(*lines):
    return _SEED + "\n".join(lines) + _GRAD


_X = "x = torch.randn(3, requires_grad=True)"
_ROWS = "x = torch.randn(3, 2, requires_grad=True)"


@exercise.check
def chain(backward_by_hand, device):
    """One path from the root to the leaf"""
    x = f"x = torch.randn(3, device='{device.type}', requires_grad=True)"
    _expect_gradients(
        backward_by_hand, _setup(x, "root = x.exp().sin()"), _setup(x, "root = -x.cos().tanh()")
    )


@exercise.check
def paths_meet(backward_by_hand):
    """Where paths meet, gradients are added"""
    _record_what_is_made_of_two(backward_by_hand)
    _expect_gradients(
        backward_by_hand,
        _setup(_X, "h = x.exp()", "root = h.sin() * h.cos()"),
        _setup(_X, "h = x.exp()", "root = h * h.sin()"),
        _setup(_X, "h = x.exp()", "root = h.sin().cos() * h"),
        _setup(_X, "root = x * x"),
        _setup(_X, "h = x.exp()", "k = h.sin() * x", "root = k.cos() * h"),
        _setup(_X, "root = x * 2 + x * 5"),
        together=True,
    )


def _record_what_is_made_of_two(backward_by_hand):
    """Of two gradients an answer may keep either, add them, or do something else."""
    t = _given(_setup(_X, "root = x * 2 + x * 5"), backward_by_hand=backward_by_hand)
    with contextlib.suppress(Exception):
        t.call("backward_by_hand(root, grad)")
        factor = round((t.x.grad / t.grad).mean().item(), 3)
        evidence.record("made of two", "one of them" if factor in (2, 5) else factor)


@exercise.check
def each_node_once(backward_by_hand):
    """Each node runs once, when all its gradients have arrived"""
    for lines in (
        ("root = Counted.apply(x.exp())",),
        ("h = Counted.apply(x)", "root = h.sin() * h.tan().cos()"),
    ):
        Counted.runs = 0
        setup = _setup(_X, *lines)
        _given(setup, backward_by_hand=backward_by_hand).call("backward_by_hand(root, grad)")
        evidence.record("runs", Counted.runs)
        runs = f"the node of `Counted` ran {Counted.runs} times"
        expect.true(Counted.runs == 1, runs, "expected: once, with the sum of its gradients")


@exercise.check
def several_outputs(backward_by_hand):
    """Each gradient goes to its own input of a node with several outputs"""
    _expect_gradients(
        backward_by_hand,
        _setup(_ROWS, "a, b, c = x.exp().unbind()", "root = c * a.sin() * b"),
        _setup(_ROWS, "a, b, c = x.unbind()", "root = a.sin() * a * c"),
        _setup(_ROWS, "a, root, c = x.unbind()"),
        _setup("x = torch.randn(5, requires_grad=True)", "a, b = x.split([2, 3])", "root = b.exp()"),
    )


@exercise.check
def nothing_follows(backward_by_hand):
    """Edges that lead nowhere, and gradients that are None"""
    _expect_gradients(
        backward_by_hand,
        _setup(_X, "root = (x * 2).exp()"),
        _setup(_X, "k = torch.randn(3)", "root = torch.mul(k, x) - k.sin()"),
        _setup(_X, "k = torch.randn(3)", "root = torch.cat([k, x, k, x.sin()])"),
        _setup(_X, "gate = torch.randn(3, requires_grad=True)", "root = Gate.apply(x, gate.exp())"),
        _setup(_X, "h = x.exp()", "root = Gate.apply(h.sin(), h)"),
    )


@exercise.check
def broadcast(backward_by_hand):
    """A tensor that was broadcast gets a gradient of its own shape"""
    _expect_gradients(
        backward_by_hand,
        _setup(_X, "s = torch.tensor(2., requires_grad=True)", "root = x * s.exp()"),
        _setup(_X, "b = torch.randn(2, 1, requires_grad=True)", "root = x + b"),
        _setup("net = nn.Linear(3, 2)", "root = net(torch.randn(4, 3))"),
        _setup(
            "x = torch.randn(1, 3, requires_grad=True)", "h = x.exp()", "root = h * torch.randn(4, 3) + h"
        ),
        _setup(_X, "v = torch.randn(4, requires_grad=True)", "root = x.exp().sum() + v"),
        _setup(_X, "h = x.exp()", "root = (h + torch.randn(2, 3)).sum() + (h * 2).sum()"),
        _setup(_X, "h = x.exp()", "root = (h * 2).sum() + (h + torch.randn(2, 3)).sum()"),
        _setup(
            _X,
            "w = torch.randn(3, 1, requires_grad=True)",
            "root = (torch.ones(2, 3) * x) @ w + torch.randn(2, 4)",
        ),
    )


@exercise.check
def two_dtypes(backward_by_hand):
    """A float32 leaf gets a float32 gradient, whatever it was multiplied with"""
    double = "w = torch.randn(3, dtype=torch.float64, requires_grad=True)"
    _expect_gradients(
        backward_by_hand,
        _setup(_X, double, "root = x * w"),
        _setup(_X, double, "h = x.exp()", "root = h.sin() * w + h"),
        _setup(_X, double, "m = torch.randn(3, 3, requires_grad=True)", "root = (x.exp() @ m) * w"),
    )


@exercise.check
def accumulates(backward_by_hand):
    """What is in `.grad` already stays in the sum"""
    _expect_gradients(
        backward_by_hand,
        _setup(_X, "x.grad = torch.randn(3)", "root = x.exp()"),
        _setup(
            _X, "w = torch.randn(3, requires_grad=True)", "w.grad = torch.randn(3)", "root = w * x.sin() * w"
        ),
        _setup(
            _X, "other = torch.randn(3, requires_grad=True)", "other.grad = torch.ones(3)", "root = x.exp()"
        ),
    )


@exercise.check
def gradients_of_their_own(backward_by_hand):
    """Every `.grad` is a tensor of its own, without a graph, and `grad` stays as it was"""
    w = "w = torch.randn(3, requires_grad=True)"
    setups = [
        _setup(_X, *lines)
        for lines in (
            ["root = x + 1"],
            [w, "root = x + w"],
            [w, "root = (x + w) + x.sin()"],
            [w, "root = x.sin() + (x + w)"],
            [w, "root = x.exp() * w"],
        )
    ]
    _expect(_shared, backward_by_hand, setups, together=True)


def _shared(t, setup):
    """Where a gradient has a graph or shares its storage, and whether `grad` was changed."""
    seen = {"grad": t.grad}
    for name, leaf in _leaves(t).items():
        what = f"`{name}.grad`"
        if leaf.grad is None:
            yield "none", expect.Mismatch(f"{what} is None, expected a tensor")
            continue
        if leaf.grad.requires_grad:
            yield (
                "a graph",
                expect.Mismatch(
                    f"{what} requires a gradient: the steps of backward were recorded in a graph",
                    "expected: a gradient without a graph",
                ),
            )
        for other, tensor in seen.items():
            if tensor.untyped_storage().data_ptr() == leaf.grad.untyped_storage().data_ptr():
                yield (
                    "shared with grad" if tensor is t.grad else "shared",
                    expect.Mismatch(
                        f"{what} and `{other}` share a storage: a write to one changes the other",
                        "expected: a storage for each",
                    ),
                )
        seen[f"{name}.grad"] = leaf.grad
    try:
        expect.unchanged(t.grad, _given(setup).grad, what="`grad`")
    except expect.Mismatch as found:
        yield "grad changed", found


@exercise.check
def custom_functions(backward_by_hand):
    """Custom Functions: arguments that are no tensors, outputs that nobody used"""
    _expect_gradients(
        backward_by_hand,
        _setup(_X, "root = Counted.apply(x.exp())"),
        _setup(_X, "a, b = ShareOut.apply(0.25, x.exp())", "root = a * b.sin()"),
        _setup(_X, "a, root = ShareOut.apply(0.25, x.exp())"),
        _setup(_X, "a, b = Both.apply(x.exp())", "root = b * 3"),
        _setup(
            "x = torch.randn(3, dtype=torch.float64, requires_grad=True)",
            "root, b = ShareOut.apply(0.25, x)",
        ),
        _setup(
            "x, w = torch.randn(2, 3, requires_grad=True)",
            "root = Gate.apply(Counted.apply(x), Counted.apply(w))",
        ),
        _setup(
            "gate = torch.randn(3, requires_grad=True)",
            "root = Gate.apply(torch.ones(3), Counted.apply(gate))",
        ),
        _setup(_X, "root = Product.apply(torch.randn(3), x.exp())"),
    )


@exercise.check
def classifier(backward_by_hand, device):
    """An embedding, a normalisation and two layers; one layer is frozen"""
    layers = "nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3)"
    lines = [f"net = nn.Sequential({layers}).to('{device.type}')", "net[2].requires_grad_(False)"]
    lines += [f"i = torch.tensor([0, 3, 3], device='{device.type}')", "root = F.cross_entropy(net(i), i % 3)"]
    _expect_gradients(backward_by_hand, _setup(*lines))


@exercise.check
def convolution(backward_by_hand, device):
    """A convolution, batch normalisation, pooling, and a write into a part of a tensor"""
    layers = "nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)"
    x = f"x = torch.randn(2, 2, 6, 6, device='{device.type}')"
    part = "h = net(x) * 1\nh[:, 0] *= 3\nroot = h.flatten(1)"
    _expect_gradients(backward_by_hand, _setup(f"net = nn.Sequential({layers}).to('{device.type}')", x, part))


@exercise.check
def lstm_step(backward_by_hand, device):
    """Two steps of an LSTM"""
    lines = [f"net = nn.LSTMCell(3, 4, device='{device.type}')"]
    lines += [f"x = torch.randn(2, 3, device='{device.type}')"]
    lines += [f"c = torch.randn(2, 4, device='{device.type}', requires_grad=True)"]
    lines += ["state = net(x, net(x, (c.tanh(), c)))", "root = state[0] * state[1]"]
    _expect_gradients(backward_by_hand, _setup(*lines))


@exercise.check
def attention(backward_by_hand, device):
    """A layer of a transformer"""
    options = f"dropout=0.0, batch_first=True, bias=False, device='{device.type}'"
    layer = f"net = nn.TransformerEncoderLayer(4, 2, 8, {options})"
    x = f"x = torch.randn(2, 3, 4, device='{device.type}', requires_grad=True)"
    _expect_gradients(backward_by_hand, _setup(layer, x, "root = net(x)"))


@exercise.check
def engine_stays_out(backward_by_hand):
    """The nodes are run by your code, not by autograd's engine"""
    for lines in (
        (_X, "root = x.exp()"),
        (_ROWS, "a, b, c = x.exp().unbind()", "root = a.sin() * a * c"),
        (_X, "a, b = ShareOut.apply(0.25, x.exp())", "root = a * b.sin()"),
        ("net = nn.Linear(3, 2)", "root = net(torch.randn(4, 3))"),
        ("net = nn.LSTMCell(3, 4)", "root = net(torch.randn(2, 3))[0]"),
    ):
        t = _given(_setup(*lines), backward_by_hand=backward_by_hand)
        # Who calls a node runs no hooks; the engine runs them before it runs the node.
        ran = []
        for node in _nodes(t.root.grad_fn):
            node.register_prehook(lambda gradients, ran=ran: ran.append(True))
        with contextlib.suppress(Exception):
            t.call("backward_by_hand(root, grad)")
        if not ran and any(leaf.grad is None for leaf in _leaves(t).values()):
            raise expect.CannotCheck("your function leaves some gradients out here")
        expect.true(
            not ran,
            "autograd's engine ran the graph, as `backward` and `torch.autograd.grad` do",
            "expected: nodes that your own code calls",
        )


@exercise.check
def deep(backward_by_hand):
    """A graph of 20,000 nodes in a row"""
    setup = _setup(_X, "root = x.exp()", "for _ in range(20_000): root = -root")
    _expect_gradients(backward_by_hand, setup)


# --- a loop of which one part can be exchanged -------------------------------------------------------


def _fit(g, about):
    return g.sum_to_size(about.shape).to(about.dtype)


def _zeros(about):
    return torch.zeros(about.shape, dtype=about.dtype, device=about.device)


def _apply(node, given):
    """A custom Function's gradients, one for each edge."""
    given = [_zeros(m) if g is None else g for g, m in zip(given, node._input_metadata, strict=True)]
    came = node.apply(*given)
    came = came if isinstance(came, tuple) else (came,)
    wanted = iter([g for g, needed in zip(came, node.needs_input_grad, strict=True) if needed])
    return [next(wanted) if following else None for following, _ in node.next_functions]


def _as_it_is(g, about=None):
    return g


def _loop(
    root,
    grad,
    *,
    add=torch.add,
    fit=_fit,
    fit_inputs=_as_it_is,
    accumulate=None,
    apply=_apply,
    number=_as_it_is,
    known=True,
    gaps=None,
    several=lambda came: came if isinstance(came, (tuple, list)) else (came,),
    carries_on=lambda g: g is not None,
):
    order = _order(root.grad_fn)
    inputs = {node: [None] * len(node._input_metadata) for node in order}
    inputs[root.grad_fn][root.output_nr if known else 0] = grad
    for node in order:
        given, about = inputs.pop(node), node._input_metadata
        given = [g if g is None else fit_inputs(g, m) for g, m in zip(given, about, strict=True)]
        if gaps:
            given = [gaps(m) if g is None else g for g, m in zip(given, about, strict=True)]
        if accumulate and hasattr(node, "variable"):
            if given[0] is not None:
                accumulate(node.variable, given[0])
            continue
        came = several(apply(node, given) if hasattr(node, "apply") else node(*given))
        for g, (following, i) in zip(came, node.next_functions, strict=False):
            if following is None or not carries_on(g):
                continue
            slots, g, i = inputs[following], fit(g, following._input_metadata[i]), number(i)
            slots[i] = g if slots[i] is None else add(slots[i], g)


def _order(root):
    """The nodes, each before those that it sends to."""
    seen, finished, stack = set(), [], [(root, False)]
    while stack:
        node, walked = stack.pop()
        if walked:
            finished.append(node)
        elif node is not None and node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(following, False) for following, _ in node.next_functions]
    return finished[::-1]


@exercise.mistake
def keeps_the_last(root, grad):
    """Where two paths meet, you keep one of the gradients that arrive, and the other is lost. A tensor that
    was used twice gets the sum: each use has its part in what the root does."""
    with torch.no_grad():
        _loop(root, grad, add=lambda old, new: new)


@keeps_the_last.variant
@torch.no_grad()
def assigns_what_arrives(root, grad):
    arrived = {(root.grad_fn, root.output_nr): grad}
    for node in _order(root.grad_fn):
        given = [arrived.get((node, i)) for i in range(len(node._input_metadata))]
        came = _apply(node, given) if hasattr(node, "needs_input_grad") else node(*given)
        edges = node.next_functions
        for edge, g in zip(
            edges, [came] if isinstance(came, Tensor) else came or [None] * len(edges), strict=True
        ):
            if edge[0] is not None and g is not None:
                arrived[edge] = _fit(g, edge[0]._input_metadata[edge[1]])


@exercise.mistake
def runs_too_early(root, grad):
    """A node runs as soon as it is reached for the first time, with what has arrived by then. What comes
    later over a longer path is lost. It may run when every node that sends to it has run."""
    with torch.no_grad():
        inputs, queue = {root.grad_fn: {root.output_nr: grad}}, [root.grad_fn]
        for node in queue:
            given = [inputs[node].get(i) for i in range(len(node._input_metadata))]
            came = _apply(node, given) if hasattr(node, "apply") else node(*given)
            came = came if isinstance(came, (tuple, list)) else (came,)
            for g, (following, i) in zip(came, node.next_functions, strict=True):
                if following is None:
                    continue
                if following not in inputs:
                    inputs[following] = {}
                    queue.append(following)
                if g is not None:
                    g, slots = _fit(g, following._input_metadata[i]), inputs[following]
                    slots[i] = slots[i] + g if i in slots else g


@runs_too_early.form
@torch.no_grad()
def runs_too_early_depth_first(root, grad):
    inputs, stack, done = {root.grad_fn: {root.output_nr: grad}}, [root.grad_fn], set()
    while stack:
        node = stack.pop()
        if node in done:
            continue
        done.add(node)
        given = [inputs[node].get(i) for i in range(len(node._input_metadata))]
        came = _apply(node, given) if hasattr(node, "apply") else node(*given)
        came = came if isinstance(came, (tuple, list)) else (came,)
        for g, (following, i) in zip(came, node.next_functions, strict=True):
            if following is not None:
                slots = inputs.setdefault(following, {})
                if g is not None:
                    g = _fit(g, following._input_metadata[i])
                    slots[i] = slots[i] + g if i in slots else g
                stack.append(following)


@exercise.mistake
def once_for_each_path(root, grad):
    """The gradients are right, since a sum of parts comes to the same, and you run a node again for every
    gradient that arrives. Where paths meet again and again that doubles the work each time: wait until all
    gradients of a node are there, and run it once."""
    with torch.no_grad():
        waiting = [(root.grad_fn, root.output_nr, grad)]
        while waiting:
            node, number, g = waiting.pop()
            given = [g if i == number else None for i in range(len(node._input_metadata))]
            came = _apply(node, given) if hasattr(node, "apply") else node(*given)
            came = came if isinstance(came, (tuple, list)) else (came,)
            for sent, (following, i) in zip(came, node.next_functions, strict=False):
                if following is not None and sent is not None:
                    waiting.append((following, i, _fit(sent, following._input_metadata[i])))


@once_for_each_path.form
def recursion_over_paths(root, grad):
    def send(node, number, g):
        given = [None] * len(node._input_metadata)
        given[number] = g
        came = _apply(node, given) if hasattr(node, "needs_input_grad") else node(*given)
        came = came if isinstance(came, (tuple, list)) else [came]
        for (following, i), sent in zip(node.next_functions, came, strict=False):
            if following and sent is not None:
                send(following, i, _fit(sent, following._input_metadata[i]))

    with torch.no_grad():
        send(root.grad_fn, root.output_nr, grad)


@exercise.mistake
def recursive(root, grad):
    """The gradients are right, and your function calls itself for each node on its way down: Python stops
    that after a thousand calls or so. Keep the nodes that wait in a list of your own."""
    waiting = {}
    for node in _nodes(root.grad_fn):
        for following, _ in node.next_functions:
            waiting[following] = waiting.get(following, 0) + 1
    inputs = {}

    def run(node):
        given = [inputs.get((node, i)) for i in range(len(node._input_metadata))]
        came = _apply(node, given) if hasattr(node, "apply") else node(*given)
        came = came if isinstance(came, (tuple, list)) else (came,)
        for g, (following, i) in zip(came, node.next_functions, strict=False):
            if following is None:
                continue
            if g is not None:
                g = _fit(g, following._input_metadata[i])
                inputs[following, i] = inputs[following, i] + g if (following, i) in inputs else g
            waiting[following] -= 1
            if not waiting[following]:
                run(following)

    inputs[root.grad_fn, root.output_nr] = grad
    with torch.no_grad():
        run(root.grad_fn)


@exercise.mistake
def ignores_the_input_number(root, grad):
    """Every gradient that arrives at a node goes into its first input. A node with several outputs has an
    input for each, and the second entry of an edge says which one is meant."""
    with torch.no_grad():
        _loop(root, grad, number=lambda i: 0, fit=lambda g, about: _fit(g, about))


@ignores_the_input_number.variant
def one_sum_for_each_node(root, grad):
    sums = {root.grad_fn: grad}
    with torch.no_grad():
        for node in _order(root.grad_fn):
            if node is root.grad_fn:
                given = [None] * len(node._input_metadata)
                given[root.output_nr] = grad
            else:
                given = [sums.get(node)] + [None] * (len(node._input_metadata) - 1)
            came = _apply(node, given) if hasattr(node, "apply") else node(*given)
            came = came if isinstance(came, (tuple, list)) else (came,)
            for g, (following, i) in zip(came, node.next_functions, strict=False):
                if following is not None and g is not None:
                    g = _fit(g, following._input_metadata[i])
                    sums[following] = sums[following] + g if following in sums else g


@ignores_the_input_number.form
@torch.no_grad()
def in_order_of_arrival(root, grad):
    inputs = {}
    for node in _order(root.grad_fn):
        count = len(node._input_metadata)
        given = inputs.get(node, [])[:count]
        if node is root.grad_fn:
            given = [None] * root.output_nr + [grad]
        elif count == 1 and given:
            given = [sum(inputs[node][1:], inputs[node][0])]
        given = [*given, *[None] * (count - len(given))]
        came = _apply(node, given) if hasattr(node, "apply") else node(*given)
        came = came if isinstance(came, (tuple, list)) else (came,)
        for g, (following, i) in zip(came, node.next_functions, strict=False):
            if following is not None and g is not None:
                inputs.setdefault(following, []).append(_fit(g, following._input_metadata[i]))


@exercise.mistake
def root_is_output_0(root, grad):
    """You hand `grad` to the first input of the first node. `root` may be another output of its operator:
    `root.output_nr` says which."""
    with torch.no_grad():
        _loop(root, grad, known=False)


@exercise.mistake
def replaces_what_is_there(root, grad):
    """You set `.grad`. Backward adds to it: what was there before, from another loss perhaps, belongs to the
    sum."""

    def put(leaf, g):
        leaf.grad = g.clone()

    with torch.no_grad():
        _loop(root, grad, accumulate=put)


@replaces_what_is_there.variant
@torch.no_grad()
def clears_first(root, grad):
    for node in _nodes(root.grad_fn):
        if hasattr(node, "variable"):
            node.variable.grad = None
    _loop(root, grad)


@exercise.mistake
def puts_in_what_arrives(root, grad):
    """You put the tensor that arrived into `.grad`, over what was there. Backward adds to what is there, from
    another loss perhaps. And where nothing is there, put in a clone: the tensor that arrived may be held by
    others, by a second leaf or by whoever made `grad`."""

    def put(leaf, g):
        leaf.grad = g

    with torch.no_grad():
        _loop(root, grad, accumulate=put)


@puts_in_what_arrives.variant
@torch.no_grad()
def puts_in_what_arrived_at_leaves(root, grad):
    arrived = {(root.grad_fn, root.output_nr): grad}
    for node in _order(root.grad_fn):
        given = [arrived.get((node, i)) for i in range(len(node._input_metadata))]
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            leaf.grad = given[0]
            continue
        came = _apply(node, given) if hasattr(node, "needs_input_grad") else node(*given)
        came = came if isinstance(came, (tuple, list)) else (came,)
        for edge, g in zip(node.next_functions, came, strict=True):
            if edge[0] is not None and g is not None:
                g = _fit(g, edge[0]._input_metadata[edge[1]])
                arrived[edge] = arrived[edge] + g if edge in arrived else g


@exercise.mistake
def hands_out_what_it_got(root, grad):
    """You put the tensor that arrived into `.grad` as it is. Others may hold it too: the node of an addition
    sends one and the same tensor to both operands, and the first of all is the caller's `grad`. Clone it."""

    def put(leaf, g):
        leaf.grad = g if leaf.grad is None else leaf.grad + g

    with torch.no_grad():
        _loop(root, grad, accumulate=put)


@exercise.mistake
def adds_in_place(root, grad):
    """You add in place to what arrived first. That tensor may be held elsewhere: the node of an addition
    sends one and the same tensor to both operands, and the first of all is the caller's `grad`. Make a new
    tensor for the sum."""
    with torch.no_grad():
        _loop(root, grad, add=lambda old, new: old.add_(new))


@adds_in_place.variant
@torch.no_grad()
def adds_in_place_to_a_dictionary(root, grad):
    inputs = {(root.grad_fn, root.output_nr): grad}
    for node in _order(root.grad_fn):
        given = [inputs.get((node, i)) for i in range(len(node._input_metadata))]
        came = _apply(node, given) if hasattr(node, "apply") else node(*given)
        came = came if isinstance(came, (tuple, list)) else (came,)
        for g, edge in zip(came, node.next_functions, strict=False):
            if edge[0] is None or g is None:
                continue
            g = _fit(g, edge[0]._input_metadata[edge[1]])
            if edge in inputs:
                inputs[edge] += g
            else:
                inputs[edge] = g


@exercise.mistake
def no_sum_to_size(root, grad):
    """A gradient arrives in the shape of the operator's result. The formulas do not undo broadcasting: that
    is done on the way to the next node, where the shape is known that the operand had."""
    with torch.no_grad():
        _loop(root, grad, fit=lambda g, about: g.to(about.dtype))


@no_sum_to_size.form
def no_sum_to_size_and_no_node(root, grad):
    def put(leaf, g):
        leaf.grad = g.clone() if leaf.grad is None else leaf.grad + g

    with torch.no_grad():
        _loop(root, grad, fit=lambda g, about: g.to(about.dtype), accumulate=put)


@exercise.mistake
def fits_at_leaves(root, grad):
    """You bring a gradient to the right shape only where it arrives at a leaf. Tensors inside the graph are
    broadcast as well, and the formulas of the nodes that made them expect a gradient of their shape."""

    def put(leaf, g):
        g = g.sum_to_size(leaf.shape).to(leaf.dtype)
        leaf.grad = g.clone() if leaf.grad is None else leaf.grad + g

    with torch.no_grad():
        _loop(root, grad, fit=_as_it_is, accumulate=put)


@fits_at_leaves.form
def shapes_at_leaves(root, grad):
    def put(leaf, g):
        g = g.sum_to_size(leaf.shape)
        leaf.grad = g.clone() if leaf.grad is None else leaf.grad + g

    with torch.no_grad():
        _loop(root, grad, fit=lambda g, about: g.to(about.dtype), accumulate=put)


@exercise.mistake
def adds_before_it_fits(root, grad):
    """You add the gradients that arrive at an input before you bring them to its shape. They may differ in
    shape: added, the small one is repeated along the large one, and counts too often. Fit each by itself,
    then add."""
    with torch.no_grad():
        _loop(root, grad, fit=_as_it_is, fit_inputs=_fit)


@adds_before_it_fits.variant
def sums_before_it_fits(root, grad):
    with torch.no_grad():
        _loop(root, grad, fit=lambda g, about: g.to(about.dtype), fit_inputs=_fit)


@exercise.mistake
def converts_at_leaves(root, grad):
    """You convert a gradient only where it arrives at a leaf. Inside the graph there are dtypes too: the node
    of a product of float32 matrices expects a float32 gradient, whatever the result was multiplied with."""

    def put(leaf, g):
        g = g.to(leaf.dtype)
        leaf.grad = g.clone() if leaf.grad is None else leaf.grad + g

    with torch.no_grad():
        _loop(root, grad, fit=lambda g, about: g.sum_to_size(about.shape), accumulate=put)


@exercise.mistake
def no_shape_and_no_dtype(root, grad):
    """A gradient arrives in the shape and the dtype of the operator's result. The formulas undo neither
    broadcasting nor a conversion: that is done on the way to the next node, where shape and dtype of the
    operand are known."""
    with torch.no_grad():
        _loop(root, grad, fit=_as_it_is)


@no_shape_and_no_dtype.form
def no_fit_and_no_node(root, grad):
    def put(leaf, g):
        leaf.grad = g.clone() if leaf.grad is None else leaf.grad + g

    with torch.no_grad():
        _loop(root, grad, fit=_as_it_is, accumulate=put)


@exercise.mistake
def no_dtype(root, grad):
    """A float32 leaf was multiplied with a float64 tensor, and the gradient that arrives is float64. Backward
    converts it to the dtype of the operand before it goes on."""
    with torch.no_grad():
        _loop(root, grad, fit=lambda g, about: g.sum_to_size(about.shape))


@no_dtype.form
def no_dtype_and_no_node(root, grad):
    def put(leaf, g):
        leaf.grad = g.clone() if leaf.grad is None else leaf.grad + g

    with torch.no_grad():
        _loop(root, grad, fit=lambda g, about: g.sum_to_size(about.shape), accumulate=put)


@exercise.mistake
def recorded(root, grad):
    """The gradients are right, and they have a graph: every step of your backward was recorded, since the
    saved tensors that it computes with require gradients. Run the nodes under `torch.no_grad()`."""
    _loop(root, grad)


@recorded.variant
@torch.enable_grad()
def recorded_on_purpose(root, grad):
    _loop(root, grad, fit=lambda g, about: g.sum_to_size(about.shape).type(about.dtype))


@exercise.mistake
def calls_every_node(root, grad):
    """The node of a custom Function is written in Python and cannot be called. Its `apply` runs the backward
    that somebody wrote."""
    with torch.no_grad():
        _loop(root, grad, apply=lambda node, given: node(*given))


@exercise.mistake
def zips_all_arguments(root, grad):
    """The backward of a custom Function returns an entry for each argument of `forward`, and arguments that
    are no tensors have no place in `next_functions`. You paired them one by one, so that what belongs to the
    second argument goes to the first edge, or nowhere."""

    def apply(node, given):
        given = [_zeros(m) if g is None else g for g, m in zip(given, node._input_metadata, strict=True)]
        return node.apply(*given)

    with torch.no_grad():
        _loop(root, grad, apply=apply)


@zips_all_arguments.form
def zips_all_arguments_with_edges(root, grad):
    def apply(node, given):
        given = [_zeros(m) if g is None else g for g, m in zip(given, node._input_metadata, strict=True)]
        came = node.apply(*given)
        came = iter(came if isinstance(came, tuple) else (came,))
        return [next(came) if following else None for following, _ in node.next_functions]

    with torch.no_grad():
        _loop(root, grad, apply=apply)


@exercise.mistake
def filters_gradients_alone(root, grad):
    """Of what a custom Function returned you leave out the gradients that nobody wants, and pair the rest
    with all edges. A tensor that needs no gradient has an edge, `(None, 0)`: leave it out too, or the
    gradient of a later argument goes nowhere."""

    def apply(node, given):
        given = [_zeros(m) if g is None else g for g, m in zip(given, node._input_metadata, strict=True)]
        came = node.apply(*given)
        came = came if isinstance(came, (tuple, list)) else (came,)
        return [g for g, needed in zip(came, node.needs_input_grad, strict=True) if needed]

    with torch.no_grad():
        _loop(root, grad, apply=apply)


@exercise.mistake
def leaves_out_none(root, grad):
    """Of what a custom Function returned you leave out what is None. A backward may return a gradient that
    nobody wants, and None where one is wanted: `node.needs_input_grad` says which entries have an edge."""

    def apply(node, given):
        given = [_zeros(m) if g is None else g for g, m in zip(given, node._input_metadata, strict=True)]
        came = node.apply(*given)
        left = iter([g for g in (came if isinstance(came, tuple) else (came,)) if g is not None])
        return [next(left, None) if following else None for following, _ in node.next_functions]

    with torch.no_grad():
        _loop(root, grad, apply=apply)


@exercise.mistake
def zeros_of_another_kind(root, grad):
    """The zeros that you hand to a custom Function for an output that nobody used have another shape or dtype
    than that output. `node._input_metadata[number]` has both."""

    def apply(node, given):
        some = next((g for g in given if g is not None), None)
        if some is not None:
            given = [torch.zeros_like(some) if g is None else g for g in given]
        return _apply(node, given)

    with torch.no_grad():
        _loop(root, grad, apply=apply)


@zeros_of_another_kind.form
def zeros_in_the_default_dtype(root, grad):
    def apply(node, given):
        about = node._input_metadata
        return _apply(
            node, [torch.zeros(m.shape) if g is None else g for g, m in zip(given, about, strict=True)]
        )

    with torch.no_grad():
        _loop(root, grad, apply=apply)


@exercise.mistake
def none_for_a_custom_function(root, grad):
    """The backward of a custom Function got None for an output that nobody used. Autograd gives it zeros
    there, in shape and dtype of that output, so that whoever writes a backward need not think of it."""

    def apply(node, given):
        came = node.apply(*given)
        came = came if isinstance(came, (tuple, list)) else (came,)
        wanted = iter([g for g, needed in zip(came, node.needs_input_grad, strict=True) if needed])
        return [next(wanted) if following else None for following, _ in node.next_functions]

    with torch.no_grad():
        _loop(root, grad, apply=apply)


@exercise.mistake
def skips_what_got_nothing(root, grad):
    """A custom Function to which no gradient came is not run in your loop. Backward runs it all the same,
    with zeros, and zeros are what the leaves behind it get: their `.grad` is not None."""
    with torch.no_grad():
        inputs = {root.grad_fn: {root.output_nr: grad}}
        for node in _order(root.grad_fn):
            if node not in inputs:
                continue
            given = [inputs[node].get(i) for i in range(len(node._input_metadata))]
            came = _apply(node, given) if hasattr(node, "apply") else node(*given)
            came = came if isinstance(came, (tuple, list)) else (came,)
            for g, (following, i) in zip(came, node.next_functions, strict=False):
                if following is not None and g is not None:
                    slots = inputs.setdefault(following, {})
                    g = _fit(g, following._input_metadata[i])
                    slots[i] = slots[i] + g if i in slots else g


@exercise.mistake
def zeros_for_every_node(root, grad):
    """A leaf that no gradient reaches gets zeros from you, and backward leaves its `.grad` None. Zeros stand
    for a gradient that did not arrive at the node of a custom Function, and there only: other nodes are
    handed None, and None is not sent on."""
    with torch.no_grad():
        _loop(root, grad, gaps=_zeros)


@zeros_for_every_node.variant
@torch.no_grad()
def sends_zeros_for_none(root, grad):
    arrived = {(root.grad_fn, root.output_nr): grad}
    for node in _order(root.grad_fn):
        given = [arrived.get((node, i)) for i in range(len(node._input_metadata))]
        came = _apply(node, given) if hasattr(node, "needs_input_grad") else node(*given)
        came = came if isinstance(came, (tuple, list)) else (came,)
        for edge, g in zip(node.next_functions, came, strict=False):
            if edge[0] is not None:
                about = edge[0]._input_metadata[edge[1]]
                g = _zeros(about) if g is None else _fit(g, about)
                arrived[edge] = arrived[edge] + g if edge in arrived else g


@exercise.mistake
def stops_at_zeros(root, grad):
    """You do not carry on a gradient whose elements are all 0. It is a gradient like others: what lies behind
    gets zeros, and the `.grad` of a leaf is not None."""
    with torch.no_grad():
        _loop(root, grad, carries_on=lambda g: g is not None and g.any())


@exercise.mistake
def counts_gradients(root, grad):
    """A node waits in your loop for a gradient over each of its edges, and some send None: what waits there
    never runs. Count an edge off also where nothing came over it."""
    waiting = {}
    for node in _nodes(root.grad_fn):
        for following, _ in node.next_functions:
            waiting[following] = waiting.get(following, 0) + 1
    inputs, ready = {(root.grad_fn, root.output_nr): grad}, [root.grad_fn]
    with torch.no_grad():
        while ready:
            node = ready.pop()
            given = [inputs.get((node, i)) for i in range(len(node._input_metadata))]
            came = _apply(node, given) if hasattr(node, "apply") else node(*given)
            came = came if isinstance(came, (tuple, list)) else (came,)
            for g, edge in zip(came, node.next_functions, strict=False):
                if edge[0] is None or g is None:
                    continue
                g = _fit(g, edge[0]._input_metadata[edge[1]])
                inputs[edge] = inputs[edge] + g if edge in inputs else g
                waiting[edge[0]] -= 1
                if not waiting[edge[0]]:
                    ready.append(edge[0])


@exercise.mistake
def always_a_tuple(root, grad):
    """You take what a node returned for a tuple, and a node with one edge may return its gradient without
    one: then you take the rows of that tensor for gradients."""
    with torch.no_grad():
        _loop(root, grad, several=_as_it_is)


@always_a_tuple.form
def always_a_tuple_where_something_arrived(root, grad):
    with torch.no_grad():
        inputs = {(root.grad_fn, root.output_nr): grad}
        for node in _order(root.grad_fn):
            given = [inputs.get((node, i)) for i in range(len(node._input_metadata))]
            if not hasattr(node, "apply") and all(g is None for g in given):
                continue
            came = _apply(node, given) if hasattr(node, "apply") else node(*given)
            for g, edge in zip(came, node.next_functions, strict=False):
                if edge[0] is not None and g is not None:
                    g = _fit(g, edge[0]._input_metadata[edge[1]])
                    inputs[edge] = inputs[edge] + g if edge in inputs else g


@exercise.mistake
def begins_with_ones(root, grad):
    """You begin with ones. `backward` does that for a single number when it is given nothing; here it is
    given `grad`, and that is what arrives at the node of the root."""
    with torch.no_grad():
        _loop(root, torch.ones_like(grad))


@exercise.mistake
def follows_none(root, grad):
    """The edge `(None, 0)` leads nowhere: the operand there needs no gradient. There is no node to hand
    anything to."""
    with torch.no_grad():
        inputs = {root.grad_fn: {root.output_nr: grad}}
        for node in _order(root.grad_fn):
            given = [inputs.get(node, {}).get(i) for i in range(len(node._input_metadata))]
            came = _apply(node, given) if hasattr(node, "apply") else node(*given)
            came = came if isinstance(came, (tuple, list)) else (came,)
            for g, (following, i) in zip(came, node.next_functions, strict=False):
                about = following._input_metadata[i]
                if g is not None:
                    slots = inputs.setdefault(following, {})
                    slots[i] = slots[i] + _fit(g, about) if i in slots else _fit(g, about)


@follows_none.form
def follows_none_with_a_gradient(root, grad):
    with torch.no_grad():
        inputs = {(root.grad_fn, root.output_nr): grad}
        for node in _order(root.grad_fn):
            given = [inputs.get((node, i)) for i in range(len(node._input_metadata))]
            came = _apply(node, given) if hasattr(node, "apply") else node(*given)
            came = came if isinstance(came, (tuple, list)) else (came,)
            for g, edge in zip(came, node.next_functions, strict=False):
                if g is not None:
                    g = _fit(g, edge[0]._input_metadata[edge[1]])
                    inputs[edge] = inputs[edge] + g if edge in inputs else g


@exercise.mistake
def adds_none(root, grad):
    """A node may send None over an edge that leads somewhere: no gradient, which is not a tensor and cannot
    be fitted or added. What it would have been added to stays as it is."""
    with torch.no_grad():
        inputs = {root.grad_fn: {root.output_nr: grad}}
        for node in _order(root.grad_fn):
            given = [inputs.get(node, {}).get(i) for i in range(len(node._input_metadata))]
            came = _apply(node, given) if hasattr(node, "apply") else node(*given)
            came = came if isinstance(came, (tuple, list)) else (came,)
            for g, (following, i) in zip(came, node.next_functions, strict=False):
                if following is not None:
                    slots, g = inputs.setdefault(following, {}), _fit(g, following._input_metadata[i])
                    slots[i] = slots[i] + g if i in slots else g


@exercise.mistake
def lets_the_engine_run(root, grad):
    """Autograd's engine ran the graph for you. What this is about is how the gradients come about: call the
    nodes yourself."""
    root.backward(grad)


@lets_the_engine_run.variant
def asks_for_gradients(root, grad):
    leaves = [node.variable for node in _nodes(root.grad_fn) if hasattr(node, "variable")]
    gradients = torch.autograd.grad(root, leaves, grad, allow_unused=True, retain_graph=True)
    for leaf, g in zip(leaves, gradients, strict=True):
        if g is not None:
            leaf.grad = g.clone() if leaf.grad is None else leaf.grad + g


@lets_the_engine_run.form
def hands_out_what_the_engine_made(root, grad):
    leaves = [node.variable for node in _nodes(root.grad_fn) if hasattr(node, "variable")]
    gradients = torch.autograd.grad(root, leaves, grad, allow_unused=True)
    for leaf, g in zip(leaves, gradients, strict=True):
        if g is not None:
            leaf.grad = g if leaf.grad is None else leaf.grad + g
