"""One output is a sum over `fan_in` inputs, each times a weight of its own. With independent weights, drawn
symmetrically around 0 with variance `v`, the mean square of the sum is `fan_in * v` times that of the inputs.
The sum is positive or negative with equal chance, and a ReLU drops one half: it keeps half of the mean
square. So `v = 2 / fan_in`. This is Kaiming initialisation, and `weight[0]` holds the weights of one output,
whatever the kernel and the number of groups.

On its way back through an `nn.Linear` the gradient at one input is a sum over `fan_out` outputs. Where the
layer is as wide as its input both are the same number. Where it isn't, one of the two has to give, by the
ratio of the widths: over the whole model that is the ratio of the last width to the first, however many
layers there are.

The functions of `nn.init` write in place, under `no_grad`."""

from torch import nn


def init_weights(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            fan_in = layer.weight[0].numel()
            nn.init.normal_(layer.weight, std=(2 / fan_in) ** 0.5)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


# Other right answers

import torch

from course_utils.exercise import Edit, Wrong


def _kaiming_uniform(model):
    def init(layer):
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                layer.bias.data.fill_(0)

    model.apply(init)


@torch.no_grad()
def _copies(model):
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            fan_in = layer.in_features
        elif isinstance(layer, nn.Conv2d):
            fan_in = layer.in_channels // layer.groups * layer.kernel_size[0] * layer.kernel_size[1]
        else:
            continue
        layer.weight.copy_(torch.randn_like(layer.weight) * (2 / fan_in) ** 0.5)
        if layer.bias is not None:
            layer.bias *= 0


also_right = [_kaiming_uniform, _copies]


# Mistakes


def _by_dimensions(model):
    for name, p in model.named_parameters():
        if p.dim() > 1:
            nn.init.kaiming_normal_(p, nonlinearity="relu")
        elif name.endswith("bias"):
            nn.init.zeros_(p)


_DRAWS = "nn.init.normal_(layer.weight, std=(2 / fan_in) ** 0.5)"

mistakes = [
    Edit(
        "fan of the wrong side", "layer.weight[0].numel()", "layer.weight[:, 0].numel()", told_by="each_layer"
    ),
    Edit("forgets the gain", "(2 / fan_in)", "(1 / fan_in)", told_by="each_layer"),
    Edit("the default of `nn.Linear`", _DRAWS, "layer.reset_parameters()", told_by="each_layer"),
    Edit("children alone", "model.modules()", "model.children()", told_by="every_layer"),
    Edit(
        "every bias",
        "isinstance(layer, (nn.Linear, nn.Conv2d))",
        "hasattr(layer, 'weight')",
        told_by="others_left_alone",
    ),
    Wrong(_by_dimensions, told_by="others_left_alone"),
    Edit(
        "new parameters",
        _DRAWS,
        f"layer.weight = nn.Parameter(layer.weight.detach().clone())\n            {_DRAWS}",
        told_by="same_objects",
    ),
]

equivalent = {"line 7: `0` -> `-1`": "the last output has as many inputs as the first"}

not_tried = {
    "hard numbers": "nothing is computed from inputs",
    "dtypes": "weights are drawn in the dtype they have",
    "seeds": "no draw decides",
}
