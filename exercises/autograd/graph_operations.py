"""The graph as a list

Return the nodes of the graph behind a tensor as a list, those of the leaves included. Each node stands in it
once, **before all nodes that it sends gradients to**. These are in the pairs `(node, number)` of its
`next_functions`; a pair `(None, 0)` leads nowhere. If several orders fit, any of them is right. For a tensor
without a `grad_fn` return an empty list.

- A graph may be 20,000 nodes deep.
- A graph with few edges may have a billion paths.
- Only read the graph: run no operation, and leave nothing behind in it.

`y = (x * 2).exp()` → an `ExpBackward0`, a `MulBackward0` and an `AccumulateGrad`
"""

from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import graphs
from course_utils.measure.saved import nodes_behind

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "Draw `z = y.sin() * y` with its nodes. The node that made `y` is reached over two paths, a short "
        "one and a long one. When may it be put into the list, and how can you know at that moment?",
        "A node may follow once all nodes that send it gradients are in the list. A first walk over the "
        "graph, with a set of what was seen, can count for each node how many edges lead to it.",
        "Keep a list of nodes to which no more edges lead; at first that is the root. Take one out, put it "
        "into the result, and lower the count of each node that follows it. A count of 0 joins the list.",
    ],
)


@exercise.starter
def graph_operations(tensor: Tensor) -> list:
    """All nodes behind `tensor.grad_fn`, each before those in its `next_functions`"""
    raise NotImplementedError


_X = "x = torch.ones(3, requires_grad=True)"


def _expect_nodes(t):
    """The list that comes: it holds the nodes of the graph, each once, in whatever order."""
    found = t.call("graph_operations(y)")
    expect.true(type(found) in (list, tuple), f"the result is {expect.show(found)}", "expected: a list")
    nodes, place = list(nodes_behind(t.y)), {}
    known = {id(node) for node in nodes}
    for i, node in enumerate(found):
        if id(node) not in known:
            shown = f"`{_name(node)}`" if hasattr(node, "next_functions") else expect.show(node)
            wanted = "a node of this graph" if nodes else "an empty list: `y.grad_fn` is None"
            raise expect.Mismatch(f"entry {i} of the result is {shown}", f"expected: {wanted}")
        if node in place:
            raise expect.Mismatch(
                f"entries {place[node]} and {i} of the result are the same `{_name(node)}`",
                "expected: every node once",
            )
        place[node] = i
    missing = [_name(node) for node in nodes if node not in place]
    count = f"nodes missing from the list: {len(missing)} of {len(nodes)}"
    expect.true(not missing, f"{count}, first `{''.join(missing[:1])}`")
    return found, place


def _expect_order(t):
    """The same, and no node stands before one that sends it a gradient."""
    found, place = _expect_nodes(t)
    for node in found:
        for after in graphs.following(node):
            if place[after] < place[node]:
                reverse = all(place[n] > place[m] for n in found for m in graphs.following(n))
                raise expect.Mismatch(
                    f"entry {place[after]}, `{_name(after)}`, stands before entry {place[node]}, "
                    f"`{_name(node)}`, which sends it a gradient",
                    symptom="In reverse, this list is right." if reverse else "",
                )


def _name(node):
    return type(node).__name__


@exercise.check(given=_X, cases=["y = x.exp()", "y = x.exp().sin().sum()", "y = x.exp().exp()"])
def chain(t):
    """One path: the root first, the leaf's node last

    `grad_fn` is the node of the operation that made a tensor, and it belongs to the graph itself. A leaf has
    no `grad_fn`, but in the graph it has a node, the `AccumulateGrad` that adds to its `.grad`. Two nodes of
    one kind are two nodes.
    """
    _expect_order(t)


@exercise.check(
    given=_X,
    cases=[
        "y = (x * 2).exp()",
        "y = torch.where(x > 0, torch.zeros(3), x)",
        "y = x",
        "y = torch.ones(3) * 2",
    ],
)
def nothing_there(t):
    """A pair `(None, 0)` leads nowhere, and without a `grad_fn` there are no nodes

    An operand that needs no gradient can have the pair `(None, 0)`, in its place among the others: pairs
    behind it count. (The condition of `torch.where` has no pair at all.) A leaf has no `grad_fn`, even if it
    asks for a gradient, and neither has a tensor that was computed from constants alone.
    """
    _expect_order(t)


@exercise.check(
    given="x = torch.ones(3, 2, requires_grad=True)",
    cases=[
        "y = x * x",
        "h = x.exp(); y = h.sin() * h.cos()",
        "a, b, c = x.exp().unbind(); y = a * b + c",
        "y = x.sin() * x.cos()",
    ],
)
def shared(t):
    """A node that several edges lead to stands in the list once

    A tensor that was used twice has one node, and two edges lead to it. The outputs of `unbind` share a node
    too; their edges differ in the number. Nodes can stand in a set, so you can note which ones you have seen.
    """
    _expect_nodes(t)


@exercise.check(
    given=_X,
    cases=[
        "h = x.exp(); y = h.sin().cos().tan() * h.neg()",
        "h = x.exp(); y = h.neg() * h.sin().cos().tan()",
        "y = x * x.sin()",
        "y = x.sin() * x",
        "h = x.exp(); k = h.sin() * x; y = k.cos() * h",
        "h = x.exp(); y = h * h + h.sin().cos().tan()",
        "h = x.exp(); y = h.sin().cos().tan() + h * h",
        "a, b, c = x.exp().unbind(); y = c * a.sin() + b",
        "b = x * 1; v = b[:2]; w = v.exp(); b.mul_(2); y = (v.sin() * w).sum()",
    ],
)
def order(t):
    """Where a short path and a long one meet, the node waits for the long one

    Backward runs a node once, with the sum of its gradients. So it comes after every node that sends it one,
    not when it is first reached, and not at the end of the shortest path. Parallel edges count too: `h * h`
    has two to the node of `h`. Go by the edges, not by when a node was made: after a write to its base, a
    view gets a new node.
    """
    _expect_order(t)


@exercise.check(given=f"{_X}\ny = (x.exp() * x).sum()")
def only_read(t):
    """Nothing runs, and a second call finds the graph as the first one did

    After the forward the graph is there. You can read `grad_fn` and `next_functions` without running
    anything. A default such as `seen=set()` is made once, when the function is defined, so the next call
    finds what the last one put into it.
    """
    with expect.left_alone(t.x, what="`x`", gradients=True), measure.operators() as ran:
        t.run("first = graph_operations(y)")
    expect.true(not ran.calls, f"{len(ran.calls)} operators ran", "expected: none")
    for node in nodes_behind(t.y):
        left = f"`metadata` of a `{_name(node)}` is {expect.show(node.metadata)}"
        expect.true(not node.metadata, left, "expected: empty, as before")
    _expect_order(t)


@exercise.check(given=f"{_X}\ny = x\nfor _ in range(20_000): y = -y")
def deep(t):
    """A graph of 20,000 nodes in a row

    Python limits the depth of recursion. A list of nodes that wait has no such limit.
    """
    _expect_order(t)


@exercise.check(deadline=5.0, given=f"{_X}\ny = x\nfor _ in range(30): y = y * y")
def many_paths(t):
    """A graph of few nodes and a billion paths

    In `y = y * y` two edges lead to one node, so each time the number of paths doubles. A walk that goes on
    from each node once follows 60 edges here. A walk along every path follows more than a billion.
    """
    _expect_order(t)
