"""In such a model the samples of a batch don't meet before the parameters: the gradient of a layer's output
has a row for each, and the loss of one sample doesn't depend on the row of another. So one backward of the
summed losses gives per-sample gradients of these outputs. An ordinary backward then computes a matrix
product, `g.t() @ a`: it multiplies each row of `g` with its row of `a` and adds up. Leave out the addition,
and you have one matrix for each sample.

The same without a look inside the layers: give each sample a copy of the parameters (`expand` makes one
without copying) and differentiate with respect to the copies. `torch.func.vmap(torch.func.grad(...))` does
that.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def per_sample_gradients(
    model: nn.Sequential, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """(n, d), (n, ...) -> for each parameter a tensor of shape (n, *its shape)"""
    layers, outputs, h = [], [], x
    names = {layer: name for name, layer in model.named_children()}
    for layer in model:  # a function that stands here twice has one name
        before, h = h.detach(), layer(h)
        if isinstance(layer, nn.Linear):
            layers.append((names[layer], layer, before))
            outputs.append(h)
    found = {}
    for i, g in enumerate(torch.autograd.grad(loss(h, y).sum(), outputs)):
        name, layer, before = layers[i]
        found[f"{name}.weight"] = g[:, :, None] * before[:, None, :]
        if layer.bias is not None:
            found[f"{name}.bias"] = g
    return found


# Other right answers

from course_utils.exercise import Edit, Wrong


def _mapped(model, loss, x, y):
    from torch.func import functional_call, grad, vmap

    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss_of(parameters, row, target):
        return loss(functional_call(model, parameters, (row[None],)), target[None]).sum()

    return vmap(grad(loss_of), in_dims=(None, 0, 0))(parameters, x.detach(), y)


def _a_copy_for_each_sample(model, loss, x, y):
    copies = {k: p.detach().expand(len(x), *p.shape).requires_grad_() for k, p in model.named_parameters()}
    h = x.detach()
    for name, layer in model.named_modules(remove_duplicate=False):
        if layer is model:
            continue
        if isinstance(layer, nn.Linear):
            h = torch.bmm(copies[f"{name}.weight"], h[:, :, None])[:, :, 0]
            if layer.bias is not None:
                h = h + copies[f"{name}.bias"]
        else:
            h = layer(h)
    return dict(zip(copies, torch.autograd.grad(loss(h, y).sum(), list(copies.values())), strict=True))


also_right = [_mapped, _a_copy_for_each_sample]


# Mistakes


def _sample_by_sample(model, loss, x, y):
    names, parameters = zip(*model.named_parameters(), strict=True)
    losses = loss(model(x), y)
    rows = [torch.autograd.grad(one, parameters, retain_graph=True) for one in losses]
    return {name: torch.stack([row[k] for row in rows]) for k, name in enumerate(names)}


def _a_batch_of_backwards(model, loss, x, y):
    names, parameters = zip(*model.named_parameters(), strict=True)
    each = torch.eye(len(x), dtype=x.dtype).to(x.device)
    found = torch.autograd.grad(loss(model(x), y), parameters, each, is_grads_batched=True)
    return dict(zip(names, found, strict=True))


_OUTER = "g[:, :, None] * before[:, None, :]"

mistakes = [
    Edit(
        "a function once", "for layer in model:", "for layer in model.children():", told_by="several_layers"
    ),
    Edit("of the batch", _OUTER, "g.t() @ before", told_by="one_layer"),
    Edit("the mean of the losses", "loss(h, y).sum()", "loss(h, y).mean()", told_by="one_layer"),
    Edit("a bias for every layer", "if layer.bias is not None:", "if True:", told_by="several_layers"),
    Edit("keeps the graph", "h.detach(), layer(h)", "h, layer(h)", told_by="left_alone"),
    Edit("asks `x` for a gradient", "[], [], x\n", "[], [], x.requires_grad_()\n", told_by="left_alone"),
    Wrong(_sample_by_sample, told_by="work"),
    Wrong(_a_batch_of_backwards, told_by="work"),
]
not_tried = {"hard numbers": "products of what torch computes", "seeds": "any numbers tell samples apart"}
