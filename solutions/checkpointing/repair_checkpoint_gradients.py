"""A reentrant checkpoint is an `autograd.Function`. It runs the layer under `no_grad`, so its node alone
connects the output with what came before, and the node is there if a tensor argument requires grad. Data
don't. So the output of the first layer looks like data too, and the same happens at the next, up to the head.

With `use_reentrant=False` the layer runs with grad, under hooks that keep no tensors. The graph is the
ordinary one, and begins at the parameters.

An old way round was to hand the checkpoint a tensor that requires grad and is not used. It works, and for the
same reason: the node asks its arguments. Giving that job to `x` itself computes a gradient of the data, and
integers can't have one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def repair_checkpoint_gradients(layers: Sequence[nn.Module], head: nn.Module, x: Tensor) -> Tensor:
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False)
    return head(x)


# Other right answers

from torch.utils.checkpoint import checkpoint_sequential

from course_utils.exercise import Edit, Wrong


def _a_tensor_that_requires_grad(layers, head, x):
    unused = torch.ones((), requires_grad=True)
    for layer in layers:
        x = checkpoint(lambda x, _, layer=layer: layer(x), x, unused, use_reentrant=True)
    return head(x)


def _by_torch(layers, head, x):
    *first, last = layers
    x = checkpoint_sequential(nn.Sequential(*first, nn.Identity()), len(layers), x, use_reentrant=False)
    return head(checkpoint(last, x, use_reentrant=False))


also_right = [_a_tensor_that_requires_grad, _by_torch]


def _asks_the_data(layers, head, x):
    x.requires_grad_()
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=True)
    return head(x)


def _a_copy_that_requires_grad(layers, head, x):
    x = x.detach().requires_grad_()
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=True)
    return head(x)


def _the_first_without(layers, head, x):
    x = layers[0](x)
    for layer in layers[1:]:
        x = checkpoint(layer, x, use_reentrant=False)
    return head(x)


mistakes = [
    Edit(
        "no checkpoint", "checkpoint(layer, x, use_reentrant=False)", "layer(x)", told_by="still_checkpointed"
    ),
    Edit(
        "dropout draws another mask",
        "use_reentrant=False",
        "use_reentrant=False, preserve_rng_state=False",
        told_by="gradients",
    ),
    Edit(
        "under no_grad",
        "checkpoint(layer, x, use_reentrant=False)",
        "checkpoint(torch.no_grad()(layer.forward), x, use_reentrant=False)",
        told_by="gradients",
    ),
    Wrong(_asks_the_data, told_by="gradients"),
    Wrong(_a_copy_that_requires_grad, told_by="gradients"),
    Wrong(_the_first_without, told_by="still_checkpointed"),
]
not_tried = {"hard numbers": "the layers alone compute", "dtypes": "the layers alone compute"}
