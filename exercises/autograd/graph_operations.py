"""The graph as a list

Every tensor that autograd follows knows the node that made it: `y.grad_fn`. Every node knows where its
gradients go next: `node.next_functions` is a tuple of pairs `(node, input number)`. Return all nodes of the
graph behind a tensor as a list in which every node stands **before the nodes that it sends gradients to**.
That is reverse topological order, the order in which backward can run them.

Each node is there once, also the `AccumulateGrad` nodes at the ends, which belong to the leaves. Where an
operand needs no gradient the pair is `(None, 0)`: nothing follows there. Where the order leaves a choice, any
choice is right. A tensor without a `grad_fn` has the empty list.

Nodes are found, not run: no operator is called, and the graph stays as it was. Graphs can be deep (20,000
nodes in a row) and paths can be many (each time two meet, the number of paths may double).

For `y = (x * 2).exp()` the list holds an `ExpBackward0`, a `MulBackward0` and an `AccumulateGrad`.
"""

from collections import Counter

import torch
from torch import Tensor

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=20,
    hints=[
        "Draw `z = y.sin() * y` with its nodes. The node that made `y` is reached over two paths, a short "
        "one and a long one. When may it be put into the list, and how can you know at that moment?",
        "A node may follow once all nodes that send it gradients are in the list. A first walk over the "
        "graph, with a set of what was seen, can count for each node how many edges lead to it.",
        "Keep a list of nodes to which no more edges lead; at first that is the root. Take one out, put it "
        "into the result, and lower the count of each node that follows it. Whose count is 0 joins the list.",
    ],
)


@exercise.starter
def graph_operations(tensor: Tensor) -> list:
    """All nodes behind `tensor.grad_fn`, each before those in its `next_functions`"""
    raise NotImplementedError


def _graph(root):
    """Every node, the root first, in the order in which they are found."""
    found, waiting = {}, [root] if root is not None else []
    while waiting:
        node = waiting.pop()
        if node not in found:
            found[node] = None
            waiting += _following(node)
    return list(found)


def _following(node):
    return [following for following, _ in node.next_functions if following is not None]


def _name(node):
    return f"`{type(node).__name__}`"


def _fault(order, root):
    """(what kind of fault, lines about it) of one list; None where it is right."""
    if type(order) not in (list, tuple):
        return "not a list", [f"the result is a {type(order).__name__}, expected a list of nodes"]
    nodes = _graph(root)
    known = {id(node): node for node in nodes}
    place = {}
    for i, node in enumerate(order):
        if node is None:
            return "None", [f"entry {i} of the result is None, which is no node"]
        if id(node) not in known:
            shown = _name(node) if hasattr(node, "next_functions") else expect.show(node)
            kind = f"foreign {type(node).__name__}"
            return kind, [f"entry {i} of the result is {shown}: no node of this graph"]
        if id(node) in place:
            first = place[id(node)]
            return "twice", [f"entries {first} and {i} of the result are the same {_name(node)}"]
        place[id(node)] = i
    if missing := [node for node in nodes if id(node) not in place]:
        kinds = sorted({type(node).__name__ for node in missing})
        line = f"{len(order)} of {len(nodes)} nodes are there; missing is {_name(missing[0])}"
        return f"missing {kinds}", [line]
    for node in order:
        for following in _following(node):
            if place[id(following)] < place[id(node)]:
                late, early = place[id(node)], place[id(following)]
                return "turned around" if _is_right(order[::-1]) else "order", [
                    f"entry {early} is {_name(following)}; entry {late}, {_name(node)}, sends it a gradient",
                    "expected: what sends a gradient stands first",
                ]
    return None


def _is_right(order):
    """Whether every node of a list stands before those that it sends gradients to."""
    place = {node: i for i, node in enumerate(order)}
    return all(place[node] < place[following] for node in order for following in _following(node))


def _expect_orders(graph_operations, setups):
    """The list of each graph is right. What is wrong in several graphs counts as one behaviour."""
    kinds, first = set(), None
    for setup in setups:
        t = expect.given(setup, graph_operations=graph_operations)
        fault = _fault(t.call("graph_operations(y)"), t.y.grad_fn)
        if fault:
            kinds.add(fault[0])
            first = first or expect.Mismatch(*fault[1])
    evidence.record("faults", sorted(kinds))
    if first:
        raise first


_LEAF = "x = torch.ones(3, requires_grad=True)\n"


@exercise.check
def chain(graph_operations, device):
    """A chain: the root first, the leaf's node last"""
    x = f"x = torch.ones(3, device='{device.type}', requires_grad=True)\n"
    _expect_orders(graph_operations, [x + "y = x.exp()", x + "y = x.exp().sin().sum()"])


@exercise.check
def equal_paths(graph_operations):
    """Two paths of one length meet at a node"""
    lines = ["h = x.exp()\ny = h.sin() * h.cos()", "y = x.sin() * x.cos()"]
    _expect_orders(graph_operations, [_LEAF + line for line in lines])


@exercise.check
def unequal_paths(graph_operations):
    """A short path and a long one meet at a node"""
    lines = (
        "h = x.exp()\ny = h.sin().cos().tan() * h.neg()",
        "h = x.exp()\ny = h.neg() * h.sin().cos().tan()",
    )
    _expect_orders(graph_operations, [_LEAF + line for line in lines])


@exercise.check
def early_and_late(graph_operations):
    """A leaf that is used at the beginning and again at the end"""
    lines = ("y = x * x.sin()", "y = x.sin() * x", "y = x.sin().cos() * x")
    _expect_orders(graph_operations, [_LEAF + line for line in lines])


@exercise.check
def no_edge(graph_operations):
    """Operands that need no gradient: nothing follows there"""
    lines = (
        "y = x * 2",
        "y = torch.mul(torch.ones(3), x).exp()",
        "y = torch.where(x > 0, torch.zeros(3), x)",
        "y = nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3), x.sum().expand(4))",
    )
    _expect_orders(graph_operations, [_LEAF + line for line in lines])


@exercise.check
def several_edges(graph_operations, device):
    """A node that gets gradients at once and later, over two edges, for several outputs"""
    x = f"x = torch.ones(3, 2, device='{device.type}', requires_grad=True)\n"
    lines = (
        "y = x * x",
        "h = x.exp()\ny = h * h.sin()",
        "h = x.exp()\ny = h.sin() * h",
        "h = x.exp()\nk = h.sin() * x\ny = k.cos() * h",
        "h = x.exp()\ny = h.sin() + h * h",
        "h = x.exp()\ny = h * h + h.sin().cos().tan()",
        "h = x.exp()\ny = h.sin().cos().tan() + h * h",
        "a, b, c = x.unbind()\ny = a * b + c",
        "a, b, c = x.exp().unbind()\ny = c * a.sin() + b",
    )
    _expect_orders(graph_operations, [x + line for line in lines])


@exercise.check
def nodes_of_one_name(graph_operations):
    """Several nodes of one kind, and several leaves"""
    layers = "nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh()"
    setups = [
        _LEAF + "w = torch.ones(3, requires_grad=True)\ny = (x * w).exp() + (x * 2).exp()",
        f"net = nn.Sequential({layers})\ny = net(torch.ones(2, 3)).sum()",
    ]
    _expect_orders(graph_operations, setups)


@exercise.check
def no_graph(graph_operations):
    """A tensor without a `grad_fn` has no nodes"""
    setups = ["y = torch.ones(3, requires_grad=True)", "y = torch.ones(3)", "y = (torch.ones(3) * 2).exp()"]
    _expect_orders(graph_operations, setups)


@exercise.check
def nothing_runs(graph_operations):
    """No operator runs, and the graph stays as it was"""
    t = expect.given(_LEAF + "y = (x.exp() * x).sum()", graph_operations=graph_operations)
    with measure.operators() as ran:
        order = t.call("graph_operations(y)")
    expect.true(type(order) in (list, tuple), f"the result is a {type(order).__name__}, expected a list")
    number = len(ran.calls)
    expect.equal(number, 0, what="the number of operators that ran")
    expect.true(t.x.grad is None, "`x.grad` was written to", "expected: it is None, as before")
    t.y.backward()
    wanted = (t.x.detach() + 1) * t.x.detach().exp()
    expect.equal(t.x.grad, wanted, what="`x.grad`, after `y.backward()`")


@exercise.check
def once_more(graph_operations):
    """A second call on the same graph gives the same list, and nothing stays in the nodes"""
    t = expect.given(_LEAF + "y = x.exp().sin()", graph_operations=graph_operations)
    t.call("graph_operations(y)")
    left = [node for node in _graph(t.y.grad_fn) if node.metadata]
    fault = _fault(t.call("graph_operations(y)"), t.y.grad_fn)
    evidence.record("left in the nodes", bool(left))
    evidence.record("fault of the second call", fault and fault[0])
    if left:
        raise expect.Mismatch(
            f"`metadata` of {_name(left[0])} holds {expect.show(left[0].metadata)} after the first call",
            "expected: nothing, as before",
        )
    if fault:
        raise expect.Mismatch("in the second call on the same graph:", *fault[1])


@exercise.check
def deep(graph_operations):
    """A graph of 20,000 nodes in a row"""
    _expect_orders(graph_operations, [_LEAF + "y = x\nfor _ in range(20_000): y = -y"])


@exercise.check(deadline=2.0)
def many_paths(graph_operations):
    """A graph of few nodes and a billion paths"""
    _expect_orders(graph_operations, [_LEAF + "y = x\nfor _ in range(30): y = y * y"])


@exercise.mistake
def visits_shared_nodes_again(tensor):
    """A node stands in your list once for each path that leads to it. Where paths meet, ask first whether the
    node was there already: a set of the nodes seen so far answers that at once."""
    order, waiting = [], [tensor.grad_fn] if tensor.grad_fn else []
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += _following(node)
    return order


@visits_shared_nodes_again.variant
def level_by_level_again(tensor):
    level = [tensor.grad_fn] if tensor.grad_fn is not None else []
    order = []
    while level:
        order.extend(level)
        level = [n for node in level for n, _ in node.next_functions if n]
    return order


@visits_shared_nodes_again.form
def calls_itself_for_every_path(tensor):
    order = []

    def visit(node):
        if node is not None:
            order.append(node)
            for following, _ in node.next_functions:
                visit(following)

    visit(tensor.grad_fn)
    return order


@exercise.mistake
def depth_first(tensor):
    """You put a node into the list when you first come to it, and follow one path to its end before the
    next. Where two paths meet, what lies behind that place is then listed before the second path was
    walked, and the second path still sends gradients there."""
    seen, waiting = {}, [tensor.grad_fn] if tensor.grad_fn else []
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen[node] = True
            waiting += reversed(_following(node))
    return list(seen)


@depth_first.variant
def last_branch_first(tensor):
    order, stack, seen = [], [], set()
    if tensor.grad_fn is not None:
        stack.append(tensor.grad_fn)
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        order.append(node)
        for pair in node.next_functions:
            if pair[0] is not None:
                stack.append(pair[0])
    return order


@depth_first.form
def depth_first_by_recursion(tensor):
    order, seen = [], set()

    def visit(node):
        if node is None or node in seen:
            return
        seen.add(node)
        order.append(node)
        for following, _ in node.next_functions:
            visit(following)

    visit(tensor.grad_fn)
    return order


@depth_first.variant
def marks_when_pushed(tensor):
    order, stack = [], [tensor.grad_fn] if tensor.grad_fn else []
    seen = set(stack)
    while stack:
        node = stack.pop()
        order.append(node)
        for following in _following(node):
            if following not in seen:
                seen.add(following)
                stack.append(following)
    return order


@exercise.mistake
def marks_what_waits(tensor):
    """You mark a node as seen when you put it on the stack, before its turn has come. Another node that leads
    to it finds it marked and is finished first: turned around, the list has that other node behind it. Mark a
    node when you take it from the stack."""
    finished, stack = [], [tensor.grad_fn] if tensor.grad_fn else []
    seen = set(stack)
    while stack:
        found = [following for following in _following(stack[-1]) if following not in seen]
        if not found:
            finished.append(stack.pop())
        seen.update(found)
        stack += found
    return finished[::-1]


@marks_what_waits.form
def marks_what_waits_with_flags(tensor):
    finished, stack = [], [(tensor.grad_fn, False)] if tensor.grad_fn else []
    seen = {tensor.grad_fn, None}
    while stack:
        node, walked = stack.pop()
        if walked:
            finished.insert(0, node)
            continue
        stack.append((node, True))
        for following, _ in node.next_functions:
            if following not in seen:
                seen.add(following)
                stack.append((following, False))
    return finished


@exercise.mistake
def breadth_first(tensor):
    """You go level by level, so a node stands where the *shortest* path to it ends. It has to wait for the
    longest: a node further from the root may still send it a gradient."""
    order = [tensor.grad_fn] if tensor.grad_fn else []
    seen = set(order)
    for node in order:
        for following in _following(node):
            if following not in seen:
                seen.add(following)
                order.append(following)
    return order


@breadth_first.variant
def with_a_queue(tensor):
    from collections import deque

    queue, order = deque([tensor.grad_fn]), {}
    while queue:
        node = queue.popleft()
        if node is None or node in order:
            continue
        order[node] = len(order)
        queue.extend(n for n, _ in node.next_functions)
    return sorted(order, key=order.get)


@exercise.mistake
def moves_a_node_alone(tensor):
    """A node that is found again moves to the end of your list, and what follows it stays where it was. To
    move all that too would take long: list a node when no edge is left that leads to it."""
    order, queue, seen = {}, [tensor.grad_fn] if tensor.grad_fn else [], set()
    for node in queue:
        order.pop(node, None)
        order[node] = True
        if node not in seen:
            seen.add(node)
            queue += _following(node)
    return list(order)


@exercise.mistake
def first_edge_only(tensor):
    """You follow the first pair of `next_functions` only, as if the graph were a chain. A node has a pair for
    each operand, and a path goes on behind each."""
    order, node = [], tensor.grad_fn
    while node is not None:
        order.append(node)
        node = node.next_functions[0][0] if node.next_functions else None
    return order


@first_edge_only.form
def first_edge_that_leads_somewhere(tensor):
    order, node = [], tensor.grad_fn
    while node is not None:
        order.append(node)
        node = next(iter(_following(node)), None)
    return order


@exercise.mistake
def counts_edges_lists_nodes(tensor):
    """You count every edge that leads to a node, and count off once for each node that sends to it. A node
    may send over two edges, as that of `x * x` does: then the count never comes to 0, and all that follows
    is missing. Count off every edge."""
    if tensor.grad_fn is None:
        return []
    arriving = Counter(following for node in _graph(tensor.grad_fn) for following in _following(node))
    order, ready = [], [tensor.grad_fn]
    for node in ready:
        order.append(node)
        for following in set(_following(node)):
            arriving[following] -= 1
            if not arriving[following]:
                ready.append(following)
    return order


@exercise.mistake
def counts_nodes_takes_edges(tensor):
    """You count how many nodes send to a node, and count off every edge. A node may send over two edges, as
    that of `x * x` does: then the count comes to 0 while another node is still to send. Count the edges."""
    if tensor.grad_fn is None:
        return []
    nodes = _graph(tensor.grad_fn)
    arriving = Counter(following for node in nodes for following in set(_following(node)))
    return _in_order(tensor.grad_fn, arriving)


@exercise.mistake
def remembers_former_calls(tensor, seen=set()):  # noqa: B006
    """Your function remembers what it saw in former calls: asked again for the same graph, it finds that all
    was seen. A default such as `seen=set()` is made once, when the function is defined, as is a set that
    stands outside. Make it inside."""
    finished, stack = [], [(tensor.grad_fn, False)]
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
def by_sequence_number(tensor):
    """You sort by the number that a node got when its operator was called, and `AccumulateGrad` nodes were
    made by no operator: their number is the largest that there is, so they stand first, and belong at the
    end."""
    return sorted(_graph(tensor.grad_fn), key=lambda node: node._sequence_nr(), reverse=True)


@exercise.mistake
def follows_none(tensor):
    """An operand that needs no gradient has the pair `(None, 0)`: there is no node. `next_functions` keeps
    its place so that the other pairs keep theirs."""
    if tensor.grad_fn is None:
        return []
    arriving, found = {tensor.grad_fn: 0}, [tensor.grad_fn]
    for node in found:
        for following, _ in node.next_functions:
            if following not in arriving:
                arriving[following] = 0
                found.append(following)
            arriving[following] += 1
    return _in_order(tensor.grad_fn, arriving)


@follows_none.variant
def finishes_none_too(tensor):
    done, order, stack = set(), [], [(tensor.grad_fn, False)] if tensor.grad_fn else []
    while stack:
        node, walked = stack.pop()
        if walked:
            order.append(node)
        elif node not in done:
            done.add(node)
            stack.append((node, True))
            stack += [(following, False) for following, _ in node.next_functions]
    return order[::-1]


@follows_none.form
def lists_none(tensor):
    done, order, stack = set(), [], [(tensor.grad_fn, False)] if tensor.grad_fn else []
    while stack:
        node, walked = stack.pop()
        if walked:
            order.append(node)
        elif node not in done:
            done.add(node)
            stack.append((node, True))
            stack += [(following, False) for following, _ in getattr(node, "next_functions", ())]
    return order[::-1]


def _in_order(root, arriving):
    """The nodes, each when no edge is left that leads to it."""
    order, ready = [], [root]
    while ready:
        node = ready.pop()
        order.append(node)
        for following in _following(node):
            arriving[following] -= 1
            if arriving[following] == 0:
                ready.append(following)
    return order


@exercise.mistake
def recursive(tensor):
    """The order is right, and the function calls itself once for each node on its way down: Python stops that
    after a thousand calls or so. Keep the nodes that wait in a list of your own."""
    order, seen = [], set()

    def visit(node):
        if node is None or node in seen:
            return
        seen.add(node)
        for following, _ in node.next_functions:
            visit(following)
        order.append(node)

    visit(tensor.grad_fn)
    return order[::-1]


@recursive.variant
def counts_by_recursion(tensor):
    arriving = {}

    def count(node):
        for following in _following(node):
            arriving[following] = arriving.get(following, 0) + 1
            if arriving[following] == 1:
                count(following)

    if not tensor.grad_fn:
        return []
    count(tensor.grad_fn)
    return _in_order(tensor.grad_fn, arriving)


@recursive.form
def recursive_from_any_root(tensor):
    order, seen = [], set()

    def visit(node):
        seen.add(node)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                visit(following)
        order.insert(0, node)

    visit(tensor.grad_fn)
    return order


@exercise.mistake
def forward_order(tensor):
    """In your list the nodes at the leaves stand before those that send them gradients. Backward begins at
    the root, and its edges lead from there to the leaves."""
    seen, order, stack = set(), [], [(tensor.grad_fn, False)]
    while stack:
        node, walked = stack.pop()
        if walked:
            order.append(node)
        elif node is not None and node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(following, False) for following, _ in node.next_functions]
    return order


@forward_order.variant
def turned_around(tensor):
    if tensor.grad_fn is None:
        return []
    arriving = {}
    for node in _graph(tensor.grad_fn):
        for following in _following(node):
            arriving[following] = arriving.get(following, 0) + 1
    return list(reversed(_in_order(tensor.grad_fn, arriving)))


@forward_order.form
def forward_by_recursion(tensor):
    order, seen = [], set()

    def visit(node):
        if node is None or node in seen:
            return
        seen.add(node)
        for following, _ in node.next_functions:
            visit(following)
        order.append(node)

    visit(tensor.grad_fn)
    return order


def _topological(root):
    if root is None:
        return []
    arriving = dict.fromkeys(_graph(root), 0)
    for node in list(arriving):
        for following in _following(node):
            arriving[following] += 1
    return _in_order(root, arriving)


@exercise.mistake
def leaves_out_accumulate_grad(tensor):
    """The `AccumulateGrad` nodes are missing. A leaf has no `grad_fn`, but in the graph it has a node: the
    one that adds what arrives to its `.grad`."""
    return [node for node in _topological(tensor.grad_fn) if node.next_functions]


@leaves_out_accumulate_grad.variant
def nodes_without_a_variable(tensor):
    return [node for node in _topological(tensor.grad_fn) if not hasattr(node, "variable")]


@exercise.mistake
def forgets_the_root(tensor):
    """The first node is missing: `tensor.grad_fn` itself belongs to the graph, and backward begins there."""
    return _topological(tensor.grad_fn)[1:]


@exercise.mistake
def once_for_each_output(tensor):
    """You took a pair `(node, input number)` for a node. A node with several outputs gets a gradient for
    each, under different numbers; it is one node all the same, and runs once."""
    root = (tensor.grad_fn, tensor.output_nr)
    order, seen, stack = [], set(), [(root, False)] if tensor.grad_fn else []
    while stack:
        pair, walked = stack.pop()
        if walked:
            order.append(pair[0])
        elif pair not in seen:
            seen.add(pair)
            stack.append((pair, True))
            stack += [(edge, False) for edge in pair[0].next_functions if edge[0] is not None]
    return order[::-1]


@exercise.mistake
def asks_the_leaf(tensor):
    """A leaf has no `grad_fn`: it is None, and has no `next_functions`. No operator made this tensor, so the
    list is empty."""
    arriving = dict.fromkeys(_graph(tensor.grad_fn), 0)
    for node in list(arriving):
        for following in _following(node):
            arriving[following] += 1
    return _in_order(tensor.grad_fn, arriving)


@asks_the_leaf.form
def lists_the_missing_root(tensor):
    return _topological(tensor.grad_fn) or [tensor.grad_fn]


@exercise.mistake
def tells_nodes_by_name(tensor):
    """You tell nodes apart by their names. A graph has many nodes of one kind, and they are different nodes:
    compare the nodes themselves, which can stand in a set."""
    order, names = [], set()
    for node in _topological(tensor.grad_fn):
        if node.name() not in names:
            names.add(node.name())
            order.append(node)
    return order


@exercise.mistake
def names_only(tensor):
    """These are names. What was asked for are the nodes: who runs a graph has to call them."""
    return [node.name() for node in _topological(tensor.grad_fn)]


@names_only.variant
def names_of_types(tensor):
    return [type(node).__name__ for node in _topological(tensor.grad_fn)]


@exercise.mistake
def pairs(tensor):
    """The entries of your list are tuples, as the pairs of `next_functions` are. What was asked for are the
    nodes themselves, the first half of each pair."""
    return [(node, 0) for node in _topological(tensor.grad_fn)]


@pairs.variant
def takes_edges_over(tensor):
    order = [(tensor.grad_fn, tensor.output_nr)] if tensor.grad_fn else []
    seen = {tensor.grad_fn}
    for node, _ in order:
        for edge in node.next_functions:
            if edge[0] is not None and edge[0] not in seen:
                seen.add(edge[0])
                order.append(edge)
    return order


@exercise.mistake
def lists_the_node_of_a_leaf(tensor):
    """Your list for a leaf is its `AccumulateGrad` node. Others lead to that node when the leaf is used; the
    leaf itself has no `grad_fn`, and what was asked for then is the empty list."""
    if not tensor.requires_grad:
        return []
    return _topological(torch.autograd.graph.get_gradient_edge(tensor).node)


@exercise.mistake
def walks_every_path(tensor):
    """The order is right, but you walk every *path* for it, and paths double wherever two meet. A node moves
    to the end each time that it is reached, and all behind it once more. Count edges, and each is walked
    once."""
    order, waiting = {}, [tensor.grad_fn] if tensor.grad_fn else []
    while waiting:
        following = []
        for node in waiting:
            order.pop(node, None)
            order[node] = True
            following += _following(node)
        waiting = following
    return list(order)


@exercise.mistake
def watches_a_backward(tensor):
    """You let autograd run the graph and wrote down in which order it did. That is a right order, but the
    graph was to be read, not run: backward computes, writes to `.grad`, and frees what the nodes saved."""
    order = []
    nodes = _graph(tensor.grad_fn)
    handles = [node.register_prehook(lambda grads, node=node: order.append(node)) for node in nodes]
    if nodes:
        tensor.backward(torch.ones_like(tensor))
    for handle in handles:
        handle.remove()
    return order


@watches_a_backward.form
def watches_and_retains(tensor):
    order = []
    handles = []
    for node in _graph(tensor.grad_fn):
        handles.append(node.register_prehook(lambda grads, node=node: order.append(node)))
    if tensor.grad_fn is not None:
        torch.autograd.backward(tensor, torch.ones_like(tensor), retain_graph=True)
    for handle in handles:
        handle.remove()
    return order
