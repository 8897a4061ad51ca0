"""Parameters that the loss depends on and that no gradient reaches, and those that get zeros."""

from collections.abc import Iterator

import torch

from course_utils.diagnosis.finding import Finding
from course_utils.diagnosis.steps import Seen, loss_again


def cut_graph(seen: Seen) -> Iterator[Finding]:
    """A parameter has no gradient though the loss depends on its values, or though nothing does."""
    parameters = dict(seen.subject.parameters())
    without = [
        name for name, norms in seen.grads.items() if parameters[name].requires_grad and norms[0] is None
    ]
    if not without:
        return
    before = loss_again(seen.subject)

    def disturb() -> None:
        for name in without:
            values = parameters[name].data
            if values.is_floating_point():
                values.add_(torch.randn_like(values) * (values.std(correction=0) + 1))

    after = loss_again(seen.subject, disturb)
    evidence = [f"no gradient: {', '.join(without[:6])}{' …' * (len(without) > 6)}"]
    if before != after:
        evidence.append(f"other values in them: the loss is {after:.4g} instead of {before:.4g}")
        yield Finding(
            "fault",
            "cut_graph",
            f"The loss depends on {len(without)} parameters that no gradient reaches.",
            "A gradient goes back through what autograd recorded. `detach`, `.data`, `.item()`, NumPy, "
            "`no_grad` and integer results end the record: values go on, gradients don't come back.",
            "02_autograd",
            "Out of the graph",
            evidence,
        )
    else:
        evidence.append("other values in them: the loss stays the same")
        yield Finding(
            "doubt",
            "unused_parameter",
            f"{len(without)} parameters have no part in this loss.",
            "A parameter that the loss does not depend on keeps `grad = None`, and optimizers skip it.",
            "02_autograd",
            "Leaves",
            evidence,
        )


LOOKS = []
TRIALS = [cut_graph]
