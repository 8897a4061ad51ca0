"""What goes wrong between the calls: in the reader's own loop, which was recorded.

Each look takes what was seen of a few steps; `seen.run` is the recorded loop.
"""

import math
from collections import defaultdict
from collections.abc import Iterator

from torch import nn

from course_utils import torch_private
from course_utils.diagnosis.finding import CannotSee, Finding
from course_utils.diagnosis.steps import Seen
from course_utils.measure.training import Forward, Run


def missing_zero_grad(seen: Seen) -> Iterator[Finding]:
    """A step uses gradients again that an earlier one has used, with new ones on top."""
    run = _stepped(seen)
    again = [left for number, left in enumerate(run.uncleared) if set(left) & _stepped_next(run, number)]
    if again:
        worst = max(math.hypot(*left.values()) for left in again)
        yield Finding(
            "fault",
            "missing_zero_grad",
            f"{len(again)} of {len(run.uncleared)} backward calls added to gradients that a step had used "
            "already, and the next step used the sum.",
            "Backward adds to `.grad`, and a step leaves it as it is. What is not cleared between a step and "
            "the next backward is used again, with the new gradient on top.",
            "02_autograd",
            "Gradients add up",
            [f"the largest norm of what was left over: {worst:.4g}"],
        )


def _stepped_next(run: Run, backward: int) -> set[int]:
    """The parameters, by `id`, that are stepped after this call of backward and before the next one that is
    followed by a step. In adversarial training another model's gradients grow too, and are cleared first."""
    later = [step for step in run.steps if step.backwards > backward]
    return {id(p) for step in later if step.backwards == later[0].backwards for p in step.parameters}


def zeroed_gradients(seen: Seen) -> Iterator[Finding]:
    """An optimizer steps after a backward and finds no gradient at all."""
    run = _stepped(seen)
    before = 0
    empty = 0
    for step in run.steps:
        came, before = step.backwards > before, step.backwards
        empty += came and not any(step.norms.values())
    if empty:
        yield Finding(
            "fault",
            "zeroed_gradients",
            f"In {empty} of {len(run.steps)} steps the optimizer found no gradient after a backward.",
            "A step reads `.grad` as it is at that moment. Gradients that are cleared after the backward, or "
            "that went to other parameters, are not there.",
            "06_training",
            "Five steps",
        )


def hasty_scheduler(seen: Seen) -> Iterator[Finding]:
    """A scheduler is called after most steps, and the learning rate has fallen to a quarter, or lower, within
    the recorded ones."""
    run = _run(seen)
    rates, called = run.rates, len(run.scheduled)
    if len(rates) > 2 and rates[-1] <= max(rates) / 4 and called > len(rates) / 2:
        at = next(i for i, rate in enumerate(rates) if rate <= max(rates) / 4)
        yield Finding(
            "doubt",
            "hasty_scheduler",
            f"The learning rate was {max(rates):.3g} and is at most a quarter of that from step {at + 1} on.",
            "A scheduler counts its own calls of `step()`, not epochs: called after every batch, it goes "
            "through its epochs batch by batch.",
            "06_training",
            "The rate over time",
            [
                f"a scheduler was called after {called} of {len(rates)} steps: right if it counts steps",
                "rates: " + ", ".join(f"{rate:.3g}" for rate in rates[:8]) + " …" * (len(rates) > 8),
            ],
        )


def kept_graphs(seen: Seen) -> Iterator[Finding]:
    """Graphs of forwards that are long over still exist when the loop has returned."""
    run = _run(seen)
    by_model: dict[int, list[Forward]] = defaultdict(list)
    for forward in run.forwards:
        if forward.graph and any(True for _ in forward.module.parameters()):
            by_model[id(forward.module)].append(forward)
    found = [calls for calls in by_model.values() if sum(one.kept for one in calls) >= max(3, len(calls) / 4)]
    if not found:
        return
    calls = [one for each in found for one in each]
    kept = [one for one in calls if one.kept]
    yield Finding(
        "fault",
        "growing_history" if any(one.trained for one in kept) else "hoarded_predictions",
        f"Of {len(calls)} forwards of {_and({type(one.module) for one in calls})} {len(kept)} still have "
        "their graphs when the loop has returned.",
        "A tensor with a `grad_fn` keeps the graph behind it, and what that has saved until a backward "
        "frees it. A list of such tensors grows by a graph at each entry: keep `loss.item()` or "
        "`loss.detach()`, and predict under `no_grad`.",
        "08_memory",
        "Memory that nobody frees",
        [
            f"graphs alive at the start of each forward: {', '.join(map(str, run.graphs[:8]))}"
            + " …" * (len(run.graphs) > 8),
            f"of the kept, a gradient came back through {sum(one.trained for one in kept)}",
        ],
    )


def forgotten_eval(seen: Seen) -> Iterator[Finding]:
    """An evaluation runs with dropout or batch norm in training mode."""
    run = _run(seen)
    if not run.steps and not run.trained:
        return
    # A part that is in training mode in a model that isn't is meant so: dropout that is sampled, say.
    evaluated = [one for one in run.evaluated if one.training and (not one.graph or one.step)]
    wrong = {
        type(layer.module)
        for forward in evaluated
        for layer in forward.layers
        if layer.training and _has_modes(layer.module)
    }
    if wrong:
        # Statistics may be made anew on purpose, by forwards whose outputs nobody uses.
        norms = any(issubclass(kind, torch_private.BatchNorm) for kind in wrong)
        yield Finding(
            "doubt" if norms else "fault",
            "forgotten_eval",
            f"{len(evaluated)} forwards that trained nothing ran with {_and(wrong)} in training mode.",
            "In training mode dropout drops, and batch norm uses and updates the statistics of its batch. "
            "`no_grad` changes neither; `eval()` does.",
            "04_modules",
            "Two modes",
            ["right if the statistics of a batch norm are made anew by it"] if norms else [],
        )


def forgotten_train(seen: Seen) -> Iterator[Finding]:
    """Training goes on in evaluation mode, after it had begun in training mode."""
    trained = _run(seen).trained
    modes = [_mode(forward) for forward in trained]
    after = sum(mode is False for mode in modes)
    if True in modes and after:
        yield Finding(
            "fault",
            "forgotten_train",
            f"{after} of {len(trained)} forwards that trained ran in evaluation mode, the others not.",
            "`eval()` holds until somebody calls `train()`: after an evaluation in the middle, dropout and "
            "batch norm stay in evaluation mode.",
            "06_training",
            "An evaluation in between",
        )


def loop_raised(seen: Seen) -> Iterator[Finding]:
    """The loop ended in an error."""
    error = seen.loop_raised
    if error is not None:
        yield Finding(
            "fault",
            "raised",
            f"The loop raised {error.message}",
            "What was freed, written in place or given another shape raises where it is used, which may be "
            "later than where it was made.",
            "02_autograd",
            "The way back",
            [*([f"at {error.line}"] if error.line else []), f"until then: {seen.run}"],
        )


def _run(seen: Seen) -> Run:
    """The recorded loop. Of one that ended in an error nothing else is said: its last call did nothing."""
    return Run() if seen.run is None or seen.loop_raised else seen.run


def _stepped(seen: Seen) -> Run:
    """The same, where the optimizers that step in it can be seen."""
    run = _run(seen)
    if run.losses and not run.steps:
        raise CannotSee("the loop calls backward, and no optimizer of `torch.optim` steps in it")
    return run


def _has_modes(module: nn.Module) -> bool:
    """Whether it does something else in evaluation mode."""
    if isinstance(module, torch_private.Dropout):
        return module.p > 0
    return isinstance(module, torch_private.BatchNorm) and module.track_running_stats


def _mode(forward: Forward) -> bool | None:
    """The mode in which the layers ran that have two; None where none has."""
    modes = [layer.training for layer in forward.layers if _has_modes(layer.module)]
    return any(modes) if modes else None


def _and(kinds: set[type[nn.Module]]) -> str:
    return " and ".join(sorted(kind.__name__ for kind in kinds))


LOOKS = [
    loop_raised,
    missing_zero_grad,
    zeroed_gradients,
    kept_graphs,
    forgotten_eval,
    forgotten_train,
    hasty_scheduler,
]
