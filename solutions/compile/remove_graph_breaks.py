"""Each break stood where Python needed something that isn't there while the graph is made: `.item()` and
`np.argmax` numbers, `if` and `math.isfinite` a decision, `print` a text. As tensors all of these go through
the graph. The norms become one tensor, `isfinite` and `clamp` return tensors too, and `torch.where` chooses
between the cases, element by element.

The price: it computes cases that it then throws away. For pointwise arithmetic that is cheap. If a case is
expensive, `torch.cond` keeps both in the graph and runs one.
"""

import torch
from torch import Tensor


def remove_graph_breaks(gradients: list[Tensor], limit: float) -> tuple[list[Tensor], dict]:
    """(the gradients for the step, what there is to report)"""
    norms = torch.stack([g.norm() for g in gradients])
    norm = norms.norm()
    skipped = ~norm.isfinite()
    factor = (limit / norm).clamp(max=1.0)  # zeros have no length: the quotient is infinite, the factor 1
    scaled = [torch.where(skipped, 0.0, g * factor) for g in gradients]
    return scaled, {"norm": norm, "largest": norms.argmax(), "skipped": skipped}


# Other right answers

from course_utils.exercise import Edit


def _both_in_the_graph(gradients, limit):
    """Keeps the cases apart, and the choice in the graph."""
    lengths = torch.stack([torch.linalg.vector_norm(g) for g in gradients])
    length = lengths.square().sum().sqrt()

    def scale(*tensors):
        return tuple(t * (limit / length).clamp(max=1.0) for t in tensors)

    def zeros(*tensors):
        return tuple(torch.zeros_like(t) for t in tensors)

    found = torch.cond(length.isfinite(), scale, zeros, tuple(gradients))
    skipped = length.isfinite().logical_not()
    return list(found), {"norm": length, "largest": lengths.argmax(), "skipped": skipped}


def _in_double_precision(gradients, limit):
    """Reports the norm as it was printed, a number in double precision."""
    norms = torch.stack(torch._foreach_norm(gradients)).double()
    norm = norms.square().sum().sqrt()
    skipped = ~norm.isfinite()
    factor = torch.where(norm > limit, limit / norm, 1.0)
    scaled = [(g * factor).to(g.dtype).masked_fill(skipped, 0) for g in gradients]
    return scaled, {"norm": norm, "largest": norms.max(0).indices, "skipped": skipped}


also_right = [_both_in_the_graph, _in_double_precision]


# Mistakes


mistakes = [
    Edit("always scales", ".clamp(max=1.0)", "", told_by="long_and_short"),
    Edit("adds an epsilon", "(limit / norm)", "(limit / (norm + 1e-6))", told_by="long_and_short"),
    Edit(
        "zero times NaN",
        "torch.where(skipped, 0.0, g * factor)",
        "g * factor * ~skipped",
        told_by="not_finite",
    ),
    Edit("in single precision", "[g.norm() for", "[g.float().norm() for", told_by="double_precision"),
    Edit(
        "in double precision throughout",
        "in gradients])\n    norm = norms",
        "in gradients]).double()\n    norm = norms",
        told_by="single_numbers",
    ),
    Edit(
        "the largest element",
        "norms.argmax()",
        "torch.stack([g.abs().amax() for g in gradients]).argmax()",
        told_by="report",
    ),
    Edit("in place", "g * factor)", "g.mul_(factor))", told_by="left_alone"),
    Edit(
        "prints still", "    return scaled", '    print("norm", norm)\n    return scaled', told_by="one_graph"
    ),
]

not_tried = {"seeds": "any numbers will do"}
