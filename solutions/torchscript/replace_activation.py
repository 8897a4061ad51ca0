"""A ReLU in place does two things: it has a result, and it changes its input, which no edge of the graph
shows. If nothing is written any more, the second must become an edge: later readers of the input get the new
node, and earlier ones keep the input. The order of the nodes is the order of the program.

Go through the nodes in that order. When you reach a ReLU in place, those before it are done, and its input is
the node that holds the values by then. So a second change of the same tensor finds the result of the first.
Writing the result back with `copy_` would need no redirecting. But an activation may have saved its input for
backward, and that would be overwritten; ReLU saves its result.

No module is changed, so you needn't copy any.
"""

from collections.abc import Callable

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F


def replace_activation(model: nn.Module, activation: Callable[[Tensor], Tensor]) -> fx.GraphModule:
    """A model, a function of a tensor -> the model with it in place of every ReLU"""
    new = fx.symbolic_trace(model)
    before = set()
    for node in new.graph.nodes:
        before.add(node)
        in_place = changes_its_input(new, node)
        if in_place is None:
            continue
        (source,) = node.all_input_nodes
        with new.graph.inserting_before(node):
            instead = new.graph.call_function(activation, (source,))
        before.add(instead)
        node.replace_all_uses_with(instead)
        if in_place:
            source.replace_all_uses_with(instead, delete_user_cb=lambda reader: reader not in before)
        new.graph.erase_node(node)
    new.delete_all_unused_submodules()
    new.recompile()
    return new


def changes_its_input(module: fx.GraphModule, node: fx.Node) -> bool | None:
    """Whether this ReLU works in place; None where the node is none."""
    if node.op == "call_module":
        called = module.get_submodule(node.target)
        return called.inplace if isinstance(called, nn.ReLU) else None
    if node.op == "call_method" and node.target in ("relu", "relu_"):
        return node.target == "relu_"
    if node.op == "call_function" and node.target in (F.relu, torch.relu):
        return node.kwargs.get("inplace", False)
    return None


# Other right answers

from course_utils.exercise import Edit, Wrong


def _writes_a_new_graph(model, activation):
    """Copies node by node; `now` says which node holds the values of each tensor at this point."""
    old = fx.symbolic_trace(model)
    graph, now, same = fx.Graph(), {}, {}
    for n in old.graph.nodes:
        in_place = changes_its_input(old, n)
        if in_place is None:
            now[n] = graph.node_copy(n, lambda read: now[same.get(read, read)])
            continue
        # All names of one tensor go by the first of them.
        first = same.get(n.args[0], n.args[0])
        node = graph.call_function(activation, (now[first],))
        if in_place:
            same[n] = first
        now[first if in_place else n] = node
    return fx.GraphModule(old, graph)


def _turns_nodes_into_others(model, activation):
    """The nodes stay where they are and become calls of the activation."""
    gm = fx.symbolic_trace(model)
    order = list(gm.graph.nodes)
    for place, node in enumerate(order):
        in_place = changes_its_input(gm, node)
        if in_place is None:
            continue
        (source,) = node.all_input_nodes
        node.op, node.target, node.args, node.kwargs = "call_function", activation, (source,), {}
        for reader in list(source.users) if in_place else []:
            if reader in order[place + 1 :]:
                reader.replace_input_with(source, node)
    gm.delete_all_unused_submodules()
    gm.recompile()
    return gm


also_right = [_writes_a_new_graph, _turns_nodes_into_others]


# Mistakes


def _writes_it_back(model, activation):
    gm = fx.symbolic_trace(model)
    for node in list(gm.graph.nodes):
        in_place = changes_its_input(gm, node)
        if in_place is not None:
            with gm.graph.inserting_before(node):
                new = gm.graph.call_function(activation, (node.args[0],))
                if in_place:
                    new = gm.graph.call_method("copy_", (node.args[0], new))
            node.replace_all_uses_with(new)
            gm.graph.erase_node(node)
    gm.delete_all_unused_submodules()
    gm.recompile()
    return gm


mistakes = [
    Edit(
        "edits a graph module",
        "new = fx.symbolic_trace(model)\n    before",
        "new = model if isinstance(model, fx.GraphModule) else fx.symbolic_trace(model)\n    before",
        told_by="model_unchanged",
    ),
    Wrong(_writes_it_back, told_by="read_later"),
    Edit("forgets what was changed", "        if in_place:\n", "        if False:\n", told_by="read_later"),
    Edit("redirects all", "reader not in before", "reader is not instead", told_by="read_before"),
    Edit("always in place", "        if in_place:\n", "        if True:\n", told_by="read_before"),
    Edit("never recompiles", "    new.recompile()\n", "", told_by="every_way_to_write_it"),
    Edit(
        "removes what nobody reads",
        "    new.recompile()",
        "    new.graph.eliminate_dead_code()\n    new.recompile()",
        told_by="others_stay",
    ),
    Edit(
        "leaves the modules",
        "    new.delete_all_unused_submodules()\n",
        "",
        told_by="every_way_to_write_it",
    ),
]

not_tried = {
    "hard numbers": "the activation computes",
    "dtypes": "the activation computes",
    "seeds": "the dropout drops nothing",
}

equivalent = {
    "line 37: `node.op == 'call_function' and node.target in (F.relu, torch.relu)` "
    "-> `node.target in (F.relu, torch.relu)`": "The target of every other kind of node is a name.",
}
