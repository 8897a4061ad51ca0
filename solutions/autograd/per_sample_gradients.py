"""The samples of a batch do not meet before the parameters: the gradient of a layer's output has a row for
each, and the loss of one sample has no part in the row of another. So the gradients of these outputs, all
from one backward of the summed losses, are per-sample gradients already. What an ordinary backward does with
them is a product of matrices, `g.t() @ a`, which multiplies each row of `g` with the row of `a` that belongs
to it, and adds up. Leave out the addition, and there is one matrix for each sample.

The same without a look inside the layers: give each sample a copy of the parameters (`expand` makes one
without copying), and differentiate with respect to the copies. `torch.func.vmap(torch.func.grad(...))` does
that."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def per_sample_gradients(
    model: nn.Sequential, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """(n, d), (n, ...) -> for each parameter a tensor of shape (n, *its shape)"""
    layers, inputs, outputs = [], [], []
    h = x
    for layer in model:
        if isinstance(layer, nn.Linear):
            layers.append(layer)
            inputs.append(h.detach())
        h = layer(h)
        if isinstance(layer, nn.Linear):
            outputs.append(h)
    incoming = torch.autograd.grad(loss(h, y).sum(), outputs)

    found = {parameter: parameter.new_zeros(len(x), *parameter.shape) for parameter in model.parameters()}
    for i, layer in enumerate(layers):
        found[layer.weight] += incoming[i][:, :, None] * inputs[i][:, None, :]
        if layer.bias is not None:
            found[layer.bias] += incoming[i]
    return {name: found[parameter] for name, parameter in model.named_parameters()}


# Other right answers


def _mapped(model, loss, x, y):
    from torch.func import functional_call, grad, vmap

    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss_of(parameters, row, target):
        outputs = functional_call(model, parameters, (row[None],), tie_weights=False)
        return loss(outputs, target[None]).sum()

    return vmap(grad(loss_of), in_dims=(None, 0, 0))(parameters, x.detach(), y)


def _a_copy_for_each_sample(model, loss, x, y):
    copies = {p: p.detach().expand(len(x), *p.shape).requires_grad_() for p in model.parameters()}
    h = x.detach()
    for layer in model:
        if isinstance(layer, nn.Linear):
            h = torch.bmm(copies[layer.weight], h[:, :, None])[:, :, 0]
            if layer.bias is not None:
                h = h + copies[layer.bias]
        else:
            h = layer(h)
    parts = torch.autograd.grad(loss(h, y).sum(), list(copies.values()))
    names = [name for name, _ in model.named_parameters()]
    return {name: part for name, part in zip(names, parts, strict=True)}


def _with_hooks(model, loss, x, y):
    seen = []

    def note(layer, given, output):
        if isinstance(layer, nn.Linear):
            seen.append((layer, given[0].detach(), output))

    hooks = [layer.register_forward_hook(note) for layer in dict.fromkeys(model)]
    try:
        losses = loss(model(x), y)
    finally:
        for hook in hooks:
            hook.remove()
    incoming = torch.autograd.grad(losses, [output for _, _, output in seen], torch.ones_like(losses))
    found = {}
    for name, parameter in model.named_parameters():
        parts = []
        for (layer, before, _), g in zip(seen, incoming, strict=True):
            if layer.weight is parameter:
                parts.append(torch.einsum("no,ni->noi", g, before))
            elif layer.bias is parameter:
                parts.append(g)
        found[name] = torch.stack(parts).sum(0)
    return found


also_right = [_mapped, _a_copy_for_each_sample, _with_hooks]
