"""The one door: a model, a batch, a loss, an optimizer in; a report out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from course_utils.diagnosis.finding import CannotSee, Finding
from course_utils.diagnosis.looks import LOOKS, OF_LOOPS, TRIALS
from course_utils.diagnosis.report import Report, ordered
from course_utils.diagnosis.steps import record, train
from course_utils.diagnosis.subject import subject
from course_utils.diagnosis.untouched import untouched
from course_utils.wrong_use import WrongUse, public


@public
def diagnose(
    model: nn.Module,
    batch: Any,
    loss_fn: Callable[..., Any] | None = None,
    optimizer: Optimizer | None = None,
    steps: int = 3,
    loop: Callable[[], Any] | None = None,
) -> Report:
    """Takes a few real training steps with a model and says what is wrong with it, with evidence.

    `batch` is what the model takes: a tensor, a tuple of arguments or a dictionary of them. With `loss_fn`
    its last entry, or the one called `labels` or `targets`, is what the loss is given beside the output; a
    model that returns its loss needs none. The steps are taken on copies. Afterwards these are as they were:
    parameters, buffers, gradients, modes, tensors and lists that modules keep, the optimizer, random
    generators. What an object of another package keeps is not put back, nor how far an iterator is. `loop`:
    training code of your own, which trains this model with this optimizer for a few steps and is called once,
    on copies too: what goes wrong between the calls shows there and not in steps that somebody else takes.
    Returns a report that prints itself.
    """
    case = subject(model, batch, loss_fn, optimizer)
    findings: list[Finding] = []
    unseen: list[str] = []
    looked = 0
    with untouched(case, loop) as held:
        seen = train(case, steps, held)
        if loop is not None:
            held.reset()
            record(seen, loop)
        for look in (*LOOKS, *(TRIALS if seen.runs else ()), *(OF_LOOPS if loop else ())):
            if look in TRIALS:
                held.reset()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = list(look(seen))
            except WrongUse:
                raise
            except CannotSee as why:
                unseen.append(f"{look.__name__}: {why}")
                continue
            except Exception as error:  # an error of a look is the look's, whatever the model is
                unseen.append(f"{look.__name__}: {type(error).__name__}: {error}")
                continue
            findings += found
            looked += not found
    return Report(ordered(findings), looked, unseen, len(seen.losses), held.size)
