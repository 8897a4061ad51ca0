"""`target.detach()` is a tensor that reads the same memory and has no graph. Backward comes to the product,
finds that one of its factors needs no gradient, and goes on to the other; the caller's tensor is still in its
graph.

The product keeps the constant, since that is the gradient of `log_softmax(logits)`. A detached tensor counts
versions together with its original: after a write to `target` backward raises, as it would if the original
had been kept. `target.data` reads the same memory too, but begins a counter of its own. That is the whole
difference between the two, and the reason not to use `.data`.
"""

from torch import Tensor


def stop_gradient(logits: Tensor, target: Tensor) -> Tensor:
    """(n, classes), (n, classes) -> the loss, without dimensions"""
    constant = target.detach()
    return -(constant * logits.log_softmax(1)).sum(1).mean()


# Other right answers


def _built_in(logits, target):
    from torch.nn import functional as F

    return F.cross_entropy(logits, target.detach())


def _a_view_without_a_graph(logits, target):
    import torch

    with torch.no_grad():
        constant = target.view_as(target)
    total = (logits.logsumexp(-1, keepdim=True) * constant).sum() - (constant * logits).sum()
    return total / len(logits)


def _negative_first(logits, target):
    """The factor that is kept is a new tensor: a write to `target` does not reach it."""
    import torch

    weights = target.detach().neg().div(logits.shape[0])
    return torch.sum(weights * (logits - logits.logsumexp(dim=1, keepdim=True)))


def _row_by_row(logits, target):
    """What is stacked are the losses of the rows; of `target` nothing is copied."""
    import torch

    pairs = zip(target.detach(), logits.double().log_softmax(-1), strict=True)
    losses = [-(row * log_probabilities).sum() for row, log_probabilities in pairs]
    return torch.stack(losses).mean().to(logits.dtype)


also_right = [_built_in, _a_view_without_a_graph, _negative_first, _row_by_row]
