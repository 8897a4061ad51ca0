"""Training mode and evaluation mode, and norms that learn more or less than they should."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils import torch_private
from course_utils.diagnosis.calls import NormCall
from course_utils.diagnosis.finding import Finding
from course_utils.diagnosis.steps import SEED, Seen, evaluating, loss_again
from course_utils.diagnosis.subject import Subject, modules
from course_utils.diagnosis.words import counted, listed
from course_utils.measure.frames import readers_line
from course_utils.measure.modes import CallWatch
from course_utils.measure.storage import tensors_in
from course_utils.measure.uncompiled import as_said

_DROPOUTS = {getattr(F, name) for name in ("dropout", "dropout1d", "dropout2d", "dropout3d")}
_DROPOUTS |= {F.alpha_dropout, F.feature_alpha_dropout, torch.dropout}
_DRAWS = ("rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "randperm", "bernoulli")
_DRAWS += ("multinomial", "normal", "normal_", "uniform_", "bernoulli_", "exponential_", "poisson", "rrelu")


def norm_used_twice(seen: Seen) -> Iterator[Finding]:
    """A batch norm normalizes inputs of different kinds in one forward, and keeps one mean for all."""
    for name, module in modules(seen.subject):
        if not isinstance(module, torch_private.BatchNorm) or module.running_mean is None:
            continue
        calls = seen.calls.norms.get(id(module.running_mean), [])
        apart = [(first, second) for at, second in enumerate(calls) for first in calls[:at]]
        pair = next((pair for pair in apart if _differ(*pair, module.eps)), None)
        if pair is None:
            continue
        channel = int((pair[0].mean - pair[1].mean).abs().argmax())
        shown = [
            f"channel {channel}: mean {call.mean[channel]:.3g}, variance {call.variance[channel]:.3g}"
            for call in pair
        ]
        yield Finding(
            "fault",
            "norm_used_twice",
            f"`{name}` is called {len(calls)} times in one forward, on inputs of different statistics.",
            "In training mode each call of a batch norm uses the statistics of its own input. In "
            "evaluation mode all calls use one running mean and variance, which may fit none of them.",
            "04_modules",
            "Two modes",
            shown,
        )


def _differ(one: NormCall, other: NormCall, eps: float) -> bool:
    """Whether two inputs differ clearly more than two batches of one kind do."""
    size = max(2, min(one.size, other.size))
    spread = (one.variance + other.variance) / 2 + eps
    shift = float(((one.mean - other.mean) ** 2 / spread).mean().sqrt())
    ratio = float(((one.variance + eps) / (other.variance + eps)).log().abs().mean())
    return shift > max(0.5, 3 * math.sqrt(2 / size)) or ratio > max(math.log(4), 5 / math.sqrt(size - 1))


def evaluation_mode(seen: Seen) -> Iterator[Finding]:
    """The model, or a dropout or norm in it, is in evaluation mode while it is to be trained."""
    model = seen.subject.model
    every = list(modules(seen.subject))
    if not any(parameter.requires_grad for _, parameter in seen.subject.parameters()):
        return
    if not any(module.training for _, module in every):
        told = Counter(type(module).__name__ for _, module in every if _has_modes(module))
        reads = any(_reads_mode(module) for _, module in every)
        yield Finding(
            "doubt" if told or reads else "note",
            "evaluation_mode",
            "The whole model is in evaluation mode.",
            "`model.train()` sets training mode in all registered modules, `eval()` ends it. In "
            "evaluation mode `nn.Dropout` does nothing, and a batch norm with running statistics uses "
            "them and doesn't learn them.",
            "04_modules",
            "Two modes",
            [f"{count} {kind}" for kind, count in told.items()]
            or [f"modules that do something else in training mode: {'some' if reads else 'none'}"],
        )
        return
    inside = {id(child): parent for _, parent in every for child in parent.children()}
    alone = [
        (name, module)
        for name, module in every
        if module is not model
        and module.training != inside[id(module)].training
        and _has_modes(module)
        and not (_is_frozen(module) and not module.training)
    ]
    for dropout in (True, False):
        found = [(name, one) for name, one in alone if isinstance(one, torch_private.Dropout) == dropout]
        if found:
            name, first = found[0]
            mode = "training" if first.training else "evaluation"
            yield Finding(
                "doubt" if dropout else "note",
                "evaluation_mode",
                f"`{name}`"
                + (f" and {len(found) - 1} more" if len(found) > 1 else "")
                + f" of class {type(first).__name__} is in {mode} mode, the module around it is not.",
                "A mode is an attribute of each module. `model.train()` and `model.eval()` set it in all "
                "modules below, so a mode of its own lasts until the next of these calls.",
                "04_modules",
                "Two modes",
            )


def _has_modes(module: nn.Module) -> bool:
    if isinstance(module, torch_private.Dropout):
        return module.p > 0
    if isinstance(module, torch_private.BatchNorm):
        return module.track_running_stats
    return isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) and module.dropout > 0


def _reads_mode(module: nn.Module) -> bool:
    """Whether its own forward asks for the mode."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    known = type(module).__module__.startswith("torch.nn.")
    return not known and code is not None and "training" in code.co_names


def _is_frozen(module: nn.Module) -> bool:
    own = list(module.parameters(recurse=False))
    return bool(own) and not any(parameter.requires_grad for parameter in own)


class InTraining(CallWatch):
    """Notes calls that do what belongs to training, `dropped` and `learned`, and others that `drew`."""

    def __init__(self) -> None:
        super().__init__()
        self.outside = readers_line()
        self.dropped: Counter[str] = Counter()
        self.learned: Counter[str] = Counter()
        self.drew: Counter[str] = Counter()
        self.means: set[int] = set()  # the running means that were learned

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        name = getattr(func, "__name__", "")
        if func in _DROPOUTS:
            given = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
            given.setdefault("training", given.get("train", True))
            self._note(self.dropped, name, given["training"] and given.get("p", 0.5) > 0)
        elif func is F.multi_head_attention_forward:
            self._note(self.dropped, name, kwargs.get("training", True) and args[10] > 0)
        elif func is F.scaled_dot_product_attention:
            self._note(self.dropped, name, (kwargs.get("dropout_p", 0.0), *args[4:5])[-1] > 0)
        elif func is F.batch_norm:
            names = ("input", "running_mean", "running_var", "weight", "bias", "training")
            given = dict(zip(names, args, strict=False)) | kwargs
            mean = given.get("running_mean")
            if self._note(self.learned, name, given.get("training", False) and mean is not None):
                self.means.add(id(mean))
        elif name in _DRAWS:
            self._note(self.drew, name, True)
        return run()

    def _note(self, where: Counter[str], name: str, holds: bool) -> bool:
        if holds:
            line = readers_line()
            where[f"`{name}` at `{line}`" if line != self.outside else f"`{name}`"] += 1
        return holds


def training_in_eval(seen: Seen) -> Iterator[Finding]:
    """In evaluation mode dropout still drops, or statistics still move."""
    subject = seen.subject
    outputs = []
    watch = InTraining()
    buffers, running = _buffers(subject), statistics(subject)
    with evaluating(subject):
        for seed in (SEED, SEED + 1):
            torch.manual_seed(seed)
            with watch:
                outputs.append([one.detach().clone() for one in tensors_in(subject.output())])
    differs = any(not _same(one, other) for one, other in zip(*outputs, strict=False))
    if watch.dropped and differs:
        yield _in_eval(
            "fault",
            "In evaluation mode the model still drops at random: two outputs for one batch differ.",
            "`eval()` sets `training` in registered modules. It reaches no module in a plain list, no "
            "`F.dropout` without `training=self.training`, and no `dropout_p`.",
            [f"{what}, {count} times" for what, count in watch.dropped.items()],
        )
    elif differs:
        yield _in_eval(
            "note",
            "In evaluation mode two outputs for one batch differ.",
            "Evaluation mode ends dropout and the learning of norms. What draws random numbers itself, or "
            "keeps something from call to call, goes on.",
            [f"{what}, {count} times" for what, count in watch.drew.items()],
        )
    # A norm that is not registered has a cause of its own.
    if (learned := moved(subject, running)) or watch.means & {
        id(buffer) for buffer in subject.model.buffers()
    }:
        yield _in_eval(
            "fault",
            "In evaluation mode the running statistics of a norm still move.",
            "A batch norm's forward writes running statistics in training mode, whether gradients are "
            "recorded or not. What is predicted then depends on what was predicted before.",
            [f"moved: {listed(learned)}"] if learned else [*watch.learned],
        )
    elif changed := moved(subject, buffers):
        yield _in_eval(
            "note",
            f"In evaluation mode a forward changes {counted(changed, 'buffer')}.",
            "A buffer is a part of a model's state, unless it was registered with `persistent=False`: "
            "what a forward writes to it is saved with it.",
            [listed(changed)],
        )


def _buffers(subject: Subject) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in subject.model.named_buffers()}


def statistics(subject: Subject) -> dict[str, Tensor]:
    """Copies of the buffers that, by their names, are running statistics."""
    words = ("running", "mean", "var")
    return {name: kept for name, kept in _buffers(subject).items() if any(word in name for word in words)}


def moved(subject: Subject, before: dict[str, Tensor]) -> list[str]:
    """The names of the buffers that are not what they were."""
    now = dict(subject.model.named_buffers())
    return [as_said(name) for name, was in before.items() if name in now and not _same(was, now[name])]


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one.nan_to_num(), other.nan_to_num()))


def _in_eval(rank: Any, said: str, rule: str, evidence: list[str]) -> Finding:
    return Finding(rank, "training_in_eval", said, rule, "04_modules", "Two modes", evidence)


def thawed_batch_norm(seen: Seen) -> Iterator[Finding]:
    """A batch norm inside a frozen part of a model goes on learning its running statistics."""
    subject = seen.subject
    if not any(parameter.requires_grad for _, parameter in subject.parameters()):
        return
    norms = [
        (name, module)
        for name, module in modules(subject)
        if isinstance(module, torch_private.BatchNorm)
        and module.training
        and module.running_mean is not None
        and _lies_in_frozen(seen, module)
    ]
    if not norms:
        return
    before = [module.running_mean.clone() for _, module in norms]
    loss_again(subject)
    learned = [
        (name, float((module.running_mean - was).norm()))
        for (name, module), was in zip(norms, before, strict=True)
        if not torch.equal(module.running_mean, was)
    ]
    if learned:
        name, by = max(learned, key=lambda one: one[1])
        yield Finding(
            "fault",
            "thawed_batch_norm",
            f"{counted(learned, 'batch norm', 'learns')} statistics in a frozen part of the model.",
            "Batch norm in training mode moves its running mean and variance in every forward. They are "
            "buffers: `requires_grad_(False)` and `no_grad` don't stop that, `eval()` does.",
            "07_bugs",
            "Patient 12",
            [f"after one forward the running mean of `{name}` is {by:.3g} from where it was"],
        )


def _lies_in_frozen(seen: Seen, norm: nn.Module) -> bool:
    """Whether its own parameters and those of its neighbours, in the innermost module that has any, are all
    frozen."""
    own = {id(parameter) for parameter in norm.parameters()}
    if any(parameter.requires_grad for parameter in norm.parameters()):
        return False
    around = [module for _, module in modules(seen.subject) if any(one is norm for one in module.modules())]
    for module in reversed(around):
        others = [parameter for parameter in module.parameters() if id(parameter) not in own]
        if others:
            return not any(parameter.requires_grad for parameter in others)
    return False


LOOKS: list[Callable[[Seen], Iterator[Finding]]] = [norm_used_twice]
# A loop of the reader's may have left other modes: a trial has those that the model came with.
TRIALS: list[Callable[[Seen], Iterator[Finding]]] = [evaluation_mode, training_in_eval, thawed_batch_norm]
