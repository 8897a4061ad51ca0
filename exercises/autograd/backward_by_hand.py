"""Run the graph yourself

Add to `.grad` of every leaf what `root.backward(grad)` would add, without autograd's engine (`backward`,
`torch.autograd.grad`). You may use your `graph_operations`.

- Call a node with a gradient for each output that can have one, `len(node._input_metadata)` in all, None
  where none arrived: `node(g0, g1)`. It returns one for each pair in `next_functions`: a tuple, or one alone.
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
from course_utils.exercise import Exercise, expect

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
_CALL = "backward_by_hand(root, grad)"


def _setup(code, leaves=_X):
    return f"torch.manual_seed(0)\n{leaves}\n{code}\ngrad = torch.randn_like(root)"


def _engines(t, leaf, grad):
    return torch.autograd.grad(t.root, leaf, grad, retain_graph=True)[0]


def _expect_gradients(t, like=None):
    """`.grad` of every leaf is what backward would leave there. `like`: what `expect.equal` takes."""
    leaves = {name: getattr(t, name) for name in ("x", "w") if hasattr(t, name)}
    wanted = {name: _engines(t, leaf, t.grad) for name, leaf in leaves.items()}
    for name, leaf in leaves.items():
        if leaf.grad is not None:
            wanted[name] = wanted[name] + leaf.grad
    t.run(_CALL)
    for name, leaf in leaves.items():
        what = f"`{name}.grad` after the call"
        expect.true(leaf.grad is not None, f"`{name}.grad` is None after the call", "expected: a gradient")
        expect.equal(leaf.grad, wanted[name], what=what, rtol=1e-4, atol=1e-5, like=like)


@exercise.check(
    given=_setup,
    cases=[
        "root = x.exp().sin()",
        "root = (x * 2).exp()",
        "root = torch.mul(torch.ones_like(x), x).cos()",
        "root = x.exp() * 0",
        ("root = x.sin().exp()", _X.replace("device=", "dtype=torch.bfloat16, device=")),
    ],
)
def chain(t, device):
    """One path from the root to the leaf

    A node takes the gradient of its result, at first `grad`. It returns one gradient for each pair of
    `next_functions`. A pair `(None, 0)` belongs to an operand that needs no gradient, and there it returns
    None. A gradient of zeros is a gradient like any other.
    """
    of_ones = _engines(t, t.x, torch.ones_like(t.root))
    _expect_gradients(t, {"what ones in place of `grad` lead to": of_ones})


@exercise.check(
    given=_setup,
    cases=[
        "root = x * 2 + x * 5",
        "root = x * x",
        "h = x.exp()\nroot = h.sin() * h.cos()",
        "h = x.exp()\nroot = h * h.sin()",
        "h = x.exp()\nroot = h.sin().cos() * h",
        ("h = x.exp() * w\nroot = (h.sin() * x).cos() * h", f"{_X}\n{_W}"),
    ],
)
def paths_meet(t, device):
    """Where paths meet, a node waits for all its gradients and gets their sum

    A tensor that was used twice gets a gradient from each use, and needs their sum. A node that runs before
    the last one has come passes on too little. The number in a pair names an input of the node; several
    gradients may go to one input.
    """
    over = {"what comes over the first path alone": 2, "what comes over the second path alone": 5}
    two_paths = torch.equal(t.root, t.x * 2 + t.x * 5)
    _expect_gradients(t, {words: factor * t.grad for words, factor in over.items()} if two_paths else None)


@exercise.check(
    given=lambda code: _setup(code, "x = torch.randn(3, 2, device=device, requires_grad=True)"),
    cases=[
        "a, b, c = x.exp().unbind()\nroot = c * a.sin() * b",
        "a, b, c = x.unbind()\nroot = a.sin() * a * c",
        "a, root, c = x.exp().unbind()",
        "spread, mean = torch.std_mean(x.exp(), dim=0)\nroot = mean.exp()",
        "spread, mean = torch.std_mean(x[:1].exp(), dim=0)\nroot = mean.sin()",
    ],
)
def several_outputs(t, device):
    """Each gradient goes to its own input of a node with several outputs

    Each of these operations has one node, with an input for the gradient of each result. The number in a pair
    says which input is meant; `output_nr` says it for the root. If a result was not used, its gradient is
    None. With zeros in its place the node computes, and may get NaN.
    """
    _expect_gradients(t)


@exercise.check(
    given=_setup("m = torch.ones(3, 3, device=device)\nh = x @ m @ m\nroot = h.sin() * h.cos() + h")
)
def each_node_once(t, device):
    """Your code runs the nodes, each of them once

    The engine calls a node, and so can your code. A node could run again for every gradient that arrives, and
    the result would be the same, but the work doubles each time paths meet. The graph here has two products
    with a constant matrix, and each takes one product on the way back.
    """
    with measure.operators() as ran:
        t.run(_CALL)
    engine = ran.total("backward")
    expect.true(
        not engine, f"autograd's engine ran {engine} operators", "expected: your code calls the nodes"
    )
    expect.equal(ran.matmuls(), 2, what="the number of matrix products that ran in the call")


@exercise.check(
    given=_setup,
    cases=[
        ("root = x.exp()", f"{_X}\nx.grad = torch.randn_like(x)"),
        ("root = w * x.sin() * w", f"{_X}\n{_W}\nw.grad = torch.randn_like(w)"),
    ],
)
def adds_to_grad(t, device):
    """What is in `.grad` already stays in the sum

    Backward adds to `.grad`, because another loss may have left a gradient there. An `AccumulateGrad` does
    this when it is called.
    """
    _expect_gradients(t)


@exercise.check(
    given=lambda code: _setup(code, f"{_X}\n{_W}"),
    cases=[f"root = {code}" for code in ("x + w", "(x + w) + x.sin()", "x.sin() + (x + w)", "x.exp() * w")],
)
def of_their_own(t, device):
    """Every `.grad` is a tensor of its own without a graph; `grad` and `root` stay as they were

    The node of `x + w` sends the same tensor to both operands, and the very first gradient belongs to the
    caller. Adding to such a tensor in place changes it for the others. Nodes compute with tensors that
    require grad, so outside of `torch.no_grad()` their steps are recorded in a new graph.
    """
    with expect.left_alone(t.grad, what="`grad`"), expect.left_alone(t.root, what="`root`"):
        t.run(_CALL)
    for leaf, name, other in ((t.x, "x", t.grad), (t.w, "w", t.grad), (t.x, "x", t.w.grad)):
        got = f"`{name}.grad` is {expect.show(leaf.grad)} after the call"
        expect.true(leaf.grad is not None, got, "expected: a gradient")
        of = "`grad`" if other is t.grad else "`w.grad`"
        expect.own_storage(leaf.grad, other, what=f"`{name}.grad`", of=of)
        graph = f"`{name}.grad.requires_grad` is `True`: the call recorded a graph"
        expect.true(not leaf.grad.requires_grad, graph, "expected: a gradient without a graph")


@exercise.check(given=_setup("root = x.exp()\nfor _ in range(20_000): root = -root"))
def deep(t, device):
    """A graph of 20,000 nodes in a row

    Python limits the depth of recursion. A list of nodes that wait has no such limit.
    """
    t.run(_CALL)
    expect.true(t.x.grad is not None, "`x.grad` is None after the call", "expected: a gradient")
    expect.equal(t.x.grad, t.grad * t.x.detach().exp(), what="`x.grad` after the call")
