"""With `s = weight / sqrt(running_var + eps)` the batch norm computes `s * (y - running_mean) + bias`, and
`y` is `W x + b`. Put together: the weight is `s * W`, the bias `s * (b - running_mean) + bias`, where `s`
belongs to an output channel, the first dimension of the weight, whatever the groups.

The conditions all say the same: there is one weight, and it has to be right for all who see its result.
Another reader of the node, another call of the module and another owner of the parameter would each get the
batch norm without having asked for it.

`fx.symbolic_trace` makes new code around the modules of the model, not around copies of them. What is to be
changed is copied before. torch's own `torch.fx.experimental.optimization.fuse` does not count the calls of a
module: a convolution that is called twice comes out wrong there.
"""

import copy

import torch
from torch import fx, nn


def fuse_conv_bn(model: nn.Module) -> fx.GraphModule:
    """A model -> the same with batch norms folded into convolutions"""
    fused = fx.symbolic_trace(copy.deepcopy(model))
    modules = dict(fused.named_modules())
    targets = [node.target for node in fused.graph.nodes]
    for node in fused.graph.nodes:
        bn = modules.get(node.target)
        if not isinstance(bn, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
            continue
        (source,) = node.all_input_nodes
        conv = modules.get(source.target)
        if not isinstance(conv, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) or len(source.users) > 1:
            continue
        if targets.count(source.target) > 1 or targets.count(node.target) > 1:
            continue
        if bn.training or bn.running_var is None:
            continue
        fold(conv, bn)
        node.replace_all_uses_with(source)
        fused.graph.erase_node(node)
    fused.delete_all_unused_submodules()
    fused.recompile()
    return fused


def fold(conv: nn.Module, bn: nn.Module) -> None:
    """Gives the convolution parameters with the batch norm in them."""
    scale = (bn.running_var + bn.eps).rsqrt()
    shift = -bn.running_mean if conv.bias is None else conv.bias - bn.running_mean
    if bn.affine:
        scale = scale * bn.weight
    shift = shift * scale + bn.bias if bn.affine else shift * scale
    weight = conv.weight * scale.view(-1, *[1] * (conv.weight.dim() - 1))
    dtype = conv.weight.dtype
    conv.weight, conv.bias = nn.Parameter(weight.to(dtype)), nn.Parameter(shift.to(dtype))


# Other right answers


def _with_torchs_arithmetic(model):
    graph = fx.Tracer().trace(model)
    modules = dict(model.named_modules())
    calls = [node for node in graph.nodes if node.op == "call_module"]
    fused = {}
    for node in calls:
        bn, before = modules[node.target], node.all_input_nodes[0]
        if type(bn) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d) or before not in calls:
            continue
        conv = modules[before.target]
        usable = type(conv) in (nn.Conv1d, nn.Conv2d, nn.Conv3d) and bn.track_running_stats
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


class _Folding(fx.Transformer):
    """Writes a new graph: a batch norm that was folded returns what it was given."""

    def __init__(self, module, folded):
        super().__init__(module)
        self.folded = folded

    def call_module(self, target, args, kwargs):
        if target in self.folded:
            return (*args, *kwargs.values())[0]
        return super().call_module(target, args, kwargs)


def _with_a_transformer(model):
    traced = fx.symbolic_trace(copy.deepcopy(model))
    calls = {}
    for node in traced.graph.nodes:
        if node.op == "call_module":
            calls.setdefault(node.target, []).append(node)
    folded = set()
    for name, nodes in calls.items():
        bn = traced.get_submodule(name)
        source = nodes[0].all_input_nodes[0]
        if not isinstance(bn, nn.modules.batchnorm._BatchNorm) or len(calls.get(source.target, ())) != 1:
            continue
        conv = traced.get_submodule(source.target)
        transposed = getattr(conv, "transposed", True)
        if transposed or bn.training or bn.running_mean is None or len(nodes) * len(source.users) > 1:
            continue
        with torch.no_grad():
            # The batch norm itself says what it makes of 0 and of 1 in each channel.
            shape = (1, bn.num_features, *[1] * (conv.weight.dim() - 2))
            zero = torch.zeros(shape, dtype=conv.weight.dtype, device=conv.weight.device)
            shift = bn(zero).flatten()
            scale = bn(zero + 1).flatten() - shift
            bias = shift if conv.bias is None else torch.addcmul(shift, scale, conv.bias)
            weight = torch.einsum("o...,o->o...", conv.weight, scale)
        conv.weight, conv.bias = nn.Parameter(weight), nn.Parameter(bias)
        folded.add(name)
    return _Folding(traced, folded).transform()


also_right = [_with_torchs_arithmetic, _with_a_transformer]
