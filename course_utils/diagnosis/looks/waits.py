"""Where a GPU would be waited for."""

from collections import Counter
from collections.abc import Callable, Iterator

import torch

from course_utils.diagnosis.finding import Finding
from course_utils.diagnosis.steps import SEED, Seen
from course_utils.diagnosis.words import counted
from course_utils.measure.frames import frames
from course_utils.measure.syncs import syncs
from course_utils.measure.uncompiled import uncompiled
from course_utils.stacks import is_readers


def hidden_syncs(seen: Seen) -> Iterator[Finding]:
    """The forward or the loss needs values on the host."""
    subject = seen.subject
    device = next((parameter.device.type for _, parameter in subject.parameters()), "cpu")
    outside = next(
        ((f.f_code.co_filename, f.f_lineno) for f in frames() if is_readers(f.f_code.co_filename)), None
    )
    torch.manual_seed(SEED)
    with uncompiled(), syncs(device) as waits:
        subject.loss(subject.output())
    if not waits.found:
        return
    own = Counter(one for one in waits.found if one.code and (one.file, one.line) != outside)
    theirs = Counter(one.kind for one in waits.found if one not in own)
    evidence = [f"{one}" + (f", {count} times" if count > 1 else "") for one, count in own.most_common(8)]
    if theirs:
        kinds = ", ".join(f"{count} {kind}" for kind, count in theirs.most_common())
        evidence.append(f"in code of packages: {kinds}")
    yield Finding(
        "note",
        "hidden_syncs",
        f"{counted(waits.found, 'value', 'is')} needed on the host in a forward and its loss: on a GPU each "
        "is a wait.",
        "Python runs ahead of a GPU, and waits where it needs a value or a size: `.item()`, `if tensor`, "
        "printing, `x[mask]`. Meanwhile it queues no work.",
        "08_memory",
        "Who waits for whom",
        evidence,
    )


LOOKS: list[Callable[[Seen], Iterator[Finding]]] = []
TRIALS: list[Callable[[Seen], Iterator[Finding]]] = [hidden_syncs]
