"""`target.detach()` is a tensor on the same memory without a graph. Backward comes to the product, finds that
this factor needs no gradient, and goes on to the other. The caller's tensor is still in its graph.

The product keeps the constant for the gradient of `log_softmax(logits)`. A detached tensor counts versions
together with its original, so after a counted write to `target` backward raises. `target.data` reads the same
memory, but has a counter of its own: the gradient would be wrong, without a word. So don't use `.data`.
"""

from torch import Tensor


def stop_gradient(logits: Tensor, target: Tensor) -> Tensor:
    """(n, classes), (n, classes) -> the loss, without dimensions"""
    constant = target.detach()
    return -(constant * logits.log_softmax(1)).sum(1).mean()


# Other right answers

import torch
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _built_in(logits, target):
    return F.cross_entropy(logits, target.detach())


def _a_view_without_a_graph(logits, target):
    with torch.no_grad():
        constant = target.view_as(target)
    total = (logits.logsumexp(-1, keepdim=True) * constant).sum() - (constant * logits).sum()
    return total / len(logits)


def _row_by_row(logits, target):
    """What is stacked are the losses of the rows; of `target` nothing is copied."""
    pairs = zip(target.detach(), logits.log_softmax(-1), strict=True)
    return torch.stack([-(row * log_probabilities).sum() for row, log_probabilities in pairs]).mean()


also_right = [_built_in, _a_view_without_a_graph, _row_by_row]


# Mistakes


def _by_numpy(logits, target):
    constant = torch.from_numpy(target.detach().cpu().numpy().copy())
    return F.cross_entropy(logits, constant.to(logits.device))


def _divergence(logits, target):
    return F.kl_div(logits.log_softmax(-1), target.detach(), reduction="batchmean")


mistakes = [
    Wrong(_divergence, told_by="right_values"),
    Edit("stops nothing", "target.detach()", "target", told_by="one_branch"),
    Edit("a clone is no constant", "target.detach()", "target.clone()", told_by="one_branch"),
    Edit("stops the wrong branch", "* logits.", "* logits.detach().", told_by="one_branch"),
    Edit("detached in place", "target.detach()", "target.detach_()", told_by="callers_tensors"),
    Edit("versions of its own", "target.detach()", "target.data", told_by="written_to_in_between"),
    Edit("contiguous first", "target.detach()", "target.detach().contiguous()", told_by="no_copy"),
    Wrong(_by_numpy, told_by="no_copy"),
]
not_tried = {"hard numbers": "a logit of 300 is: its exponential is infinite"}
