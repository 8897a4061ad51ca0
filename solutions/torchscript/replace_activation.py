"""A ReLU in place is two things: a node with a result, and a change of its input that no edge of the graph
shows. In a graph in which nothing is written the second has to be an edge. So who reads the input later is
given the new node, and who reads it before keeps the input: the order of the nodes is that of the program.

The nodes are gone through in that order. When a ReLU in place is reached, those before it are done, and its
input is whatever holds the values by then; a second change in place of the same tensor finds the result of
the first. Writing the result back with `copy_` would need no redirecting. But gelu keeps its input for
backward, and that would have been written over; ReLU kept its result.

No module is changed, so nothing has to be copied but the graph of a graph module that was given: tracing it
again would lose what stands in `meta`.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F


def replace_activation(model: nn.Module, activation: Callable[[Tensor], Tensor]) -> fx.GraphModule:
    """A model and a function of one tensor -> the model with that function in the place of every ReLU"""
    if isinstance(model, fx.GraphModule):
        new = fx.GraphModule(model, copy.deepcopy(model.graph))
    else:
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
        instead.meta = dict(node.meta)
        node.replace_all_uses_with(instead)
        before.add(instead)
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
    if node.op in ("call_function", "call_method"):
        if node.target in (torch.relu_, "relu_"):
            return True
        if node.target in (F.relu, torch.relu, "relu"):
            return True in (*node.args, *node.kwargs.values())
    return None


# Other right answers


def _writes_a_new_graph(model, activation):
    """Copies node by node; `now` says which node holds the values of each tensor at this point."""
    old = model if isinstance(model, fx.GraphModule) else fx.symbolic_trace(model)
    graph, now, same = fx.Graph(), {}, {}
    for n in old.graph.nodes:
        in_place = None
        if n.op == "call_module" and type(old.get_submodule(n.target)) is nn.ReLU:
            in_place = old.get_submodule(n.target).inplace
        elif n.op == "call_method" and n.target in ("relu", "relu_"):
            in_place = n.target == "relu_"
        elif n.op == "call_function" and n.target in (F.relu, torch.relu, torch.relu_):
            in_place = n.target is torch.relu_ or n.kwargs.get("inplace", len(n.args) > 1 and n.args[1])
        if in_place is None:
            now[n] = graph.node_copy(n, lambda read: now[same.get(read, read)])
            continue
        source = n.kwargs["input"] if "input" in n.kwargs else n.args[0]
        # All names of one tensor go by the first of them.
        first = same.get(source, source)
        node = graph.call_function(activation, (now[first],))
        node.meta.update(n.meta)
        if in_place:
            same[n] = first
            now[first] = node
        else:
            now[n] = node
    return fx.GraphModule(old, graph)


def _turns_nodes_into_others(model, activation):
    """The nodes stay where they are and become calls of the activation."""
    gm = copy.deepcopy(model)
    gm = gm if isinstance(gm, fx.GraphModule) else fx.symbolic_trace(gm)
    order = list(gm.graph.nodes)
    for place, node in enumerate(order):
        module = gm.get_submodule(node.target) if node.op == "call_module" else None
        written = {torch.relu_: True, "relu_": True, torch.relu: False, "relu": False}
        if isinstance(module, nn.ReLU):
            in_place = module.inplace
        elif node.target is F.relu:
            in_place = any(value is True for value in [*node.args[1:], node.kwargs.get("inplace")])
        elif node.op in ("call_function", "call_method") and node.target in written:
            in_place = written[node.target]
        else:
            continue
        (source,) = node.all_input_nodes
        node.op, node.target, node.args, node.kwargs = "call_function", activation, (source,), {}
        node.name = gm.graph._graph_namespace.create_name(activation.__name__, node)
        for reader in list(source.users) if in_place else []:
            if reader in order[place + 1 :]:
                reader.replace_input_with(source, node)
    gm.delete_all_unused_submodules()
    gm.recompile()
    return gm


also_right = [_writes_a_new_graph, _turns_nodes_into_others]
