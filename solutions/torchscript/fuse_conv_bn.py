"""With `s = weight / sqrt(running_var + eps)` the batch norm computes `s * (y - running_mean) + bias`, and
`y` is `W x + b`. Together: the weight is `s * W`, and the bias is `s * (b - running_mean) + bias`. `s`
belongs to an output channel, the first dimension of the weight, with groups too.

The conditions have one reason: there is one weight, and it must be right for all that read its result.
Another reader of the node, another call of the module, another node that reads its weight and another owner
of the parameter would each get the batch norm too.

`fx.symbolic_trace` writes new code around the model's own modules, so copy the model before you change them.
torch's own `torch.fx.experimental.optimization.fuse` doesn't count the calls of a module: a convolution that
is called twice comes out wrong there.
"""

import copy

from torch import fx, nn


def fuse_conv_bn(model: nn.Module) -> fx.GraphModule:
    """A model -> the same with batch norms folded into convolutions"""
    fused = fx.symbolic_trace(copy.deepcopy(model))
    modules = dict(fused.named_modules())
    for node in fused.graph.nodes:
        bn = modules.get(node.target)
        if not isinstance(bn, nn.BatchNorm2d):
            continue
        (source,) = node.all_input_nodes
        conv = modules.get(source.target)
        if not isinstance(conv, nn.Conv2d) or len(source.users) > 1:
            continue
        if uses(fused.graph, source.target) > 1 or uses(fused.graph, node.target) > 1:
            continue
        if bn.training:
            continue
        fold(conv, bn)
        node.replace_all_uses_with(source)
        fused.graph.erase_node(node)
    fused.delete_all_unused_submodules()
    fused.recompile()
    return fused


def uses(graph: fx.Graph, name: str) -> int:
    """How many nodes call this module, or read something of it: `conv.weight` is of `conv`."""
    return sum(f"{node.target}.".startswith(f"{name}.") for node in graph.nodes)


def fold(conv: nn.Module, bn: nn.Module) -> None:
    """Gives the convolution parameters with the batch norm in them."""
    scale = (bn.running_var + bn.eps).rsqrt()
    shift = -bn.running_mean if conv.bias is None else conv.bias - bn.running_mean
    if bn.affine:
        scale = scale * bn.weight
    shift = shift * scale + bn.bias if bn.affine else shift * scale
    conv.weight = nn.Parameter(conv.weight * scale.view(-1, 1, 1, 1))
    conv.bias = nn.Parameter(shift)


# Other right answers

from course_utils.exercise import Edit


def _with_torchs_arithmetic(model):
    graph = fx.Tracer().trace(model)
    modules = dict(model.named_modules())
    read = {node.target.rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    calls = [node for node in graph.nodes if node.op == "call_module"]
    fused = {}
    for node in calls:
        bn, before = modules[node.target], node.args[0]
        if type(bn) is not nn.BatchNorm2d or before not in calls:
            continue
        conv = modules[before.target]
        usable = type(conv) is nn.Conv2d and not read & {node.target, before.target}
        alone = sum(n.target in (node.target, before.target) for n in calls) == 2
        if usable and alone and not bn.training and set(before.users) == {node}:
            new = fused[before.target] = copy.deepcopy(conv)
            new.weight, new.bias = nn.utils.fuse_conv_bn_weights(
                conv.weight, conv.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
            )
            node.replace_all_uses_with(before)
            graph.erase_node(node)
    result = fx.GraphModule(model, graph)
    # The graph module has containers of its own around the modules of the model.
    for name, module in fused.items():
        result.set_submodule(name, module)
    return result


def _module_by_module(model):
    fused = fx.symbolic_trace(copy.deepcopy(model))
    calls = [node for node in fused.graph.nodes if node.op == "call_module"]
    names = [node.target for node in calls]
    names += [n.target.rpartition(".")[0] for n in fused.graph.nodes if n.op == "get_attr"]
    for node in calls:
        source = node.args[0]
        once = source.op == "call_module" and names.count(node.target) == names.count(source.target) == 1
        if not once or list(source.users) != [node]:
            continue
        conv, bn = fused.get_submodule(source.target), fused.get_submodule(node.target)
        if isinstance(conv, nn.Conv2d) and isinstance(bn, nn.BatchNorm2d) and not bn.training:
            fused.set_submodule(source.target, nn.utils.fuse_conv_bn_eval(conv.eval(), bn))
            node.replace_all_uses_with(source)
            fused.graph.erase_node(node)
            fused.delete_submodule(node.target)
    fused.recompile()
    return fused


also_right = [_with_torchs_arithmetic, _module_by_module]


# Mistakes

mistakes = [
    Edit("without eps", "(bn.running_var + bn.eps)", "bn.running_var", told_by="values"),
    Edit("does not recompile", "    fused.recompile()\n", "", told_by="nothing_left"),
    Edit("leaves the module", "    fused.delete_all_unused_submodules()\n", "", told_by="nothing_left"),
    Edit("does not ask who else reads", " or len(source.users) > 1", "", told_by="read_by_others"),
    Edit(
        "counts calls alone",
        'f"{node.target}.".startswith(f"{name}.")',
        "node.target == name",
        told_by="used_twice",
    ),
    Edit(
        "stops at the first",
        "node.target) > 1:\n            continue",
        "node.target) > 1:\n            break",
        told_by="used_twice",
    ),
    Edit("whatever the mode", "if bn.training:", "if False:", told_by="modes"),
    Edit("writes into the model", "copy.deepcopy(model)", "model", told_by="model_unchanged"),
]

not_tried = {"hard numbers": "the batch norm divides", "seeds": "any numbers will do"}
