"""Run the graph yourself

Add to `.grad` of every leaf what `root.backward(grad)` would add, without autograd's engine (`backward`,
`torch.autograd.grad`). You may use your `graph_operations`.

- Call a node with a gradient for each output of its operation, `len(node._input_metadata)` in all, None where
  none arrived: `node(g0, g1)`. It returns one for each pair in `next_functions`: a tuple, or one alone.
- For a pair `(following, number)`, it goes to input `number` of `following`. `root` is output
  `root.output_nr` of its node.
- An `AccumulateGrad` adds to `.grad` when called.

Run each node once. A graph may be 20,000 nodes deep. Gradients have no graph. `root` is no leaf. Nothing
broadcasts, changes dtype, has a hook, or is a custom Function.

`backward_by_hand(x * 3, torch.ones(2))` leaves `[3., 3.]` in `x.grad`.
"""

import torch
from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=30,
    hints=[
        "A tensor that was used twice gets two gradients, and the node that made it needs their sum. How do "
        "you know that all have arrived? `graph_operations` gives an order in which they always have.",
        "Keep a dictionary of what has arrived so far, by node and input number: that is what a pair of "
        "`next_functions` holds. If a gradient is there already, replace it by the sum, a new tensor: others "
        "may hold the old one.",
        "For each node in order: take the gradients that arrived for its inputs, None in the gaps; call it "
        "under `torch.no_grad()`; make the answer a tuple if it isn't one; then deliver pair by pair, and "
        "skip None.",
    ],
)


@exercise.starter
def backward_by_hand(root: Tensor, grad: Tensor) -> None:
    """Adds to `.grad` of every leaf behind `root` what `root.backward(grad)` adds"""
    raise NotImplementedError


_X = "x = torch.randn(3, device=device, requires_grad=True)"
_W = "w = torch.randn(3, device=device, requires_grad=True)"
_ROWS = "x = torch.randn(3, 2, device=device, requires_grad=True)"
_CALL = "backward_by_hand(root, grad)"


def _given(lines, device, **answer):
    setup = "\n".join(["torch.manual_seed(0)", *lines, "grad = torch.randn_like(root)"])
    return expect.given(setup, device=device, **answer)


def _expect_gradients(backward_by_hand, device, *examples, like=None):
    """`.grad` of every leaf is what backward leaves there. An example: the leaves, then more lines; its
    label is the last of them. `like`: what `expect.equal` takes, by a function of the example."""
    with Rows() as rows:
        for *leaves, code in examples:
            with rows.of(f"`{code}`"):
                engine = _given([*leaves, code], device)
                known = like(engine) if like else {}
                engine.root.backward(engine.grad)
                t = _given([*leaves, code], device, backward_by_hand=backward_by_hand)
                t.run(_CALL)
                for name in ("x", "w"):
                    if (leaf := getattr(t, name, None)) is not None:
                        got = f"`{name}.grad` is None after the call"
                        expect.true(leaf.grad is not None, got, "expected: a gradient")
                        what, wanted = f"`{name}.grad` after the call", getattr(engine, name).grad
                        expect.equal(leaf.grad, wanted, what=what, rtol=1e-4, atol=1e-5, like=known)


@exercise.check
def chain(backward_by_hand, device):
    """One path from the root to the leaf

    A node takes the gradient of its result, at first `grad`. It returns one gradient for each pair of
    `next_functions`. An operand that needs no gradient has the pair `(None, 0)`, and its gradient is None. A
    gradient of zeros is a gradient like any other.
    """
    _expect_gradients(
        backward_by_hand,
        device,
        (_X, "root = x.exp().sin()"),
        (_X, "root = (x * 2).exp()"),
        (_X, "root = torch.mul(torch.ones_like(x), x).cos()"),
        (_X, "root = x.exp() * 0"),
        (_X.replace("device=", "dtype=torch.bfloat16, device="), "root = x.sin().exp()"),
        like=lambda t: {"what ones in place of `grad` lead to": _of_ones(t)},
    )


def _of_ones(t):
    return torch.autograd.grad(t.root, t.x, torch.ones_like(t.root), retain_graph=True)[0]


@exercise.check
def paths_meet(backward_by_hand, device):
    """Where paths meet, a node waits for all its gradients and gets their sum

    A tensor that was used twice gets a gradient from each use, and needs their sum. A node that runs before
    the last one has come passes on too little. The number in a pair names an input of the node; several
    gradients may go to one input.
    """
    over = {"what comes over the first path alone": 2, "what comes over the second path alone": 5}
    _expect_gradients(
        backward_by_hand,
        device,
        (_X, "root = x * 2 + x * 5"),
        like=lambda t: {words: factor * t.grad for words, factor in over.items()},
    )
    _expect_gradients(
        backward_by_hand,
        device,
        (_X, "root = x * x"),
        (_X, "h = x.exp()", "root = h.sin() * h.cos()"),
        (_X, "h = x.exp()", "root = h * h.sin()"),
        (_X, "h = x.exp()", "root = h.sin().cos() * h"),
        (_X, _W, "h = x.exp() * w", "root = (h.sin() * x).cos() * h"),
    )


@exercise.check
def several_outputs(backward_by_hand, device):
    """Each gradient goes to its own input of a node with several outputs

    An operation with several results has one node, with an input for the gradient of each. The number in a
    pair says which input is meant; `output_nr` says it for the root. If a result was not used, its gradient
    is None. With zeros in its place the node computes, and may get NaN.
    """
    _expect_gradients(
        backward_by_hand,
        device,
        (_ROWS, "a, b, c = x.exp().unbind()", "root = c * a.sin() * b"),
        (_ROWS, "a, b, c = x.unbind()", "root = a.sin() * a * c"),
        (_ROWS, "a, root, c = x.exp().unbind()"),
        (_ROWS, "spread, mean = torch.std_mean(x.exp(), dim=0)", "root = mean.exp()"),
        (_ROWS, "spread, mean = torch.std_mean(x[:1].exp(), dim=0)", "root = mean.sin()"),
    )


@exercise.check
def each_node_once(backward_by_hand, device):
    """Your code runs the nodes, each of them once

    The engine calls a node, and so can your code. A node could run again for every gradient that arrives, and
    the result would be the same, but the work doubles each time paths meet. The graph here has two products
    with a constant matrix, and each takes one product on the way back.
    """
    lines = ("m = torch.ones(3, 3, device=device)", _X, "h = x @ m @ m", "root = h.sin() * h.cos() + h")
    t = _given(lines, device, backward_by_hand=backward_by_hand)
    with measure.operators() as ran:
        t.run(_CALL)
    engine = ran.total("backward")
    expect.true(
        not engine, f"autograd's engine ran {engine} operators", "expected: your code calls the nodes"
    )
    expect.equal(ran.matmuls(), 2, what="the number of matrix products that ran in the call")


@exercise.check
def adds_to_grad(backward_by_hand, device):
    """What is in `.grad` already stays in the sum

    Backward adds to `.grad`, because another loss may have left a gradient there. An `AccumulateGrad` does
    this when it is called.
    """
    _expect_gradients(
        backward_by_hand,
        device,
        (_X, "x.grad = torch.randn_like(x)", "root = x.exp()"),
        (_X, _W, "w.grad = torch.randn_like(w)", "root = w * x.sin() * w"),
    )


@exercise.check
def of_their_own(backward_by_hand, device):
    """Every `.grad` is a tensor of its own without a graph; `grad` and `root` stay as they were

    The node of an addition sends the same tensor to both operands, and the very first gradient belongs to the
    caller. Adding to such a tensor in place changes it for the others. Nodes compute with tensors that
    require grad, so outside of `torch.no_grad()` their steps are recorded in a new graph.
    """
    with Rows() as rows:
        for code in ("x + w", "(x + w) + x.sin()", "x.sin() + (x + w)", "x.exp() * w"):
            with rows.of(f"`root = {code}`"):
                t = _given([_X, _W, f"root = {code}"], device, backward_by_hand=backward_by_hand)
                with expect.left_alone(t.grad, what="`grad`"), expect.left_alone(t.root, what="`root`"):
                    t.run(_CALL)
                for leaf, name, other in ((t.x, "x", t.grad), (t.w, "w", t.grad), (t.x, "x", t.w.grad)):
                    got = f"`{name}.grad` is {expect.show(leaf.grad)} after the call"
                    expect.true(leaf.grad is not None, got, "expected: a gradient")
                    of = "`grad`" if other is t.grad else "`w.grad`"
                    expect.own_storage(leaf.grad, other, what=f"`{name}.grad`", of=of)
                    graph = f"`{name}.grad.requires_grad` is `True`: the call recorded a graph"
                    expect.true(not leaf.grad.requires_grad, graph, "expected: a gradient without a graph")


@exercise.check
def deep(backward_by_hand, device):
    """A graph of 20,000 nodes in a row

    Python stops recursion after about a thousand calls. A list of nodes that wait has no such limit.
    """
    lines = [_X, "root = x.exp()", "for _ in range(20_000): root = -root"]
    t = _given(lines, device, backward_by_hand=backward_by_hand)
    t.run(_CALL)
    expect.true(t.x.grad is not None, "`x.grad` is None after the call", "expected: a gradient")
    expect.equal(t.x.grad, t.grad * t.x.detach().exp(), what="`x.grad` after the call")
