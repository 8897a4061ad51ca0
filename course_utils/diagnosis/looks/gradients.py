"""Parameters that the loss depends on and that no gradient reaches, those that get zeros, and how gradients
shrink or grow from layer to layer."""

import math
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils import torch_private
from course_utils.diagnosis.finding import Finding
from course_utils.diagnosis.module_calls import ModuleCall, called_modules
from course_utils.diagnosis.steps import SEED, Seen, as_tensor, loss_again, modules
from course_utils.diagnosis.words import counted, listed
from course_utils.measure.modes import Noting, in_backward, packet
from course_utils.measure.uncompiled import uncompiled

_FAR = 1e5  # so many times smaller is a gradient that has vanished on its way
_LEAST = 32  # a layer of fewer numbers may be all zeros by chance


def cut_graph(seen: Seen) -> Iterator[Finding]:
    """A parameter has no gradient though the loss depends on its values."""
    parameters = dict(seen.subject.parameters())
    without = _without(seen)
    before = loss_again(seen.subject) if without else 0.0
    if not without or before != loss_again(seen.subject):  # it changes by itself: nothing can be shown
        return
    reaching, after = [], before
    if _loss_with_others(seen, [parameters[name] for name in without]) == before:
        return  # with one forward: none of them reaches it
    for group in _by_module(without):
        changed = _loss_with_others(seen, [parameters[name] for name in group])
        if changed != before:
            reaching += group
            after = changed
    if not reaching:
        return
    meant = _meant(seen, reaching)
    evidence = [
        f"no gradient: {listed(reaching)}",
        f"other values in the last of them: the loss is {after:.6g} instead of {before:.6g}",
        *_where_cut(seen, reaching),
        *([meant] if meant else []),
    ]
    yield Finding(
        "doubt" if meant else "fault",
        "cut_graph",
        f"The loss depends on {counted(reaching, 'parameter')} that no gradient reaches.",
        "A gradient goes back through what autograd recorded. `detach`, `.data`, `.item()`, NumPy, "
        "`no_grad` and integer results end the record: values go on, gradients don't come back.",
        "02_autograd",
        "Out of the graph",
        evidence,
    )


def unused_parameter(seen: Seen) -> Iterator[Finding]:
    """Parameters have no gradient, and the loss does not depend on them: a module that was not called is a
    note, a result that nobody uses is a doubt."""
    parameters, called = (
        dict(seen.subject.parameters()),
        {id(call.module) for call in seen.module_calls if call.size},
    )
    owners = {id(p): m for _, m in modules(seen.subject) for p in m.parameters(recurse=False)}
    idle: dict[bool, list[str]] = {False: [], True: []}
    if without := _without(seen):
        before = loss_again(seen.subject)
        none = before == _loss_with_others(seen, [parameters[name] for name in without])
        for group in [without] if none else _by_module(without):
            if none or before == _loss_with_others(seen, [parameters[name] for name in group]):
                for name in group:
                    idle[id(owners.get(id(parameters[name]))) in called].append(name)
    for ran, names in idle.items():
        if names:
            what = "The result of their modules is used by nothing that the loss depends on."
            yield Finding(
                "doubt" if ran else "note",
                "unused_parameter",
                f"{counted(names, 'parameter', 'has')} no part in this loss.",
                "Backward leaves the `.grad` of a parameter alone that the loss does not depend on. Most "
                "optimizers skip one that is None.",
                "02_autograd",
                "Leaves",
                [f"no gradient: {listed(names)}", what if ran else "Their modules were not called."],
            )


def frozen_weight(seen: Seen) -> Iterator[Finding]:
    """One parameter of a layer asks for no gradient, though the layer trains and its like do everywhere."""
    mixed, whole = [], 0
    for name, module in modules(seen.subject):
        own = dict(module.named_parameters(recurse=False))
        if not type(module).__module__.startswith("torch.nn") or not own:
            continue
        frozen = [f"{name}.{key}" if name else key for key, p in own.items() if not p.requires_grad]
        whole += not frozen
        if frozen and len(frozen) < len(own):
            mixed += frozen
    if mixed and len(mixed) <= max(1, whole // 10):
        yield Finding(
            "doubt",
            "frozen_weight",
            f"{listed(mixed)}: no gradient is asked for, in a layer that trains.",
            "A parameter with `requires_grad=False` gets no gradient, and most optimizers skip it while "
            "its `.grad` is None.",
            "02_autograd",
            "Leaves",
            [f"layers all of whose parameters train: {whole}"],
        )


def zero_gradients(seen: Seen) -> Iterator[Finding]:
    """A gradient arrives and is zeros at every step: through ReLUs that let nothing through, or through
    something else."""
    empty = {id(call.module) for call in seen.module_calls if call.size == 0}
    for _, module in modules(seen.subject):
        if id(module) in empty:
            empty.update(map(id, module.modules()))
    spared = {id(p) for _, m in modules(seen.subject) if id(m) in empty for p in m.parameters(recurse=False)}
    parameters = dict(seen.subject.parameters())
    names = [
        name
        for name, zeros in seen.zeros.items()
        if zeros and all(zeros) and id(parameters[name]) not in spared
    ]
    if not names:
        return
    steps = len(seen.zeros[names[0]])
    dead = _dead_relus(seen) if steps > 1 else []
    evidence = [f"zeros in {steps} of {steps} steps: {listed(names)}", *dead]
    if dead:
        yield Finding(
            "fault",
            "dead_relus",
            f"{counted(names, 'parameter', 'gets')} gradients that are all zeros: "
            "behind them a ReLU lets nothing through.",
            "The slope of a ReLU is 0 where its input is not above 0. Through a unit that is below 0 for "
            "all examples zeros come back.",
            "07_bugs",
            "Patient 18",
            evidence,
        )
    elif steps > 1 and not seen.half:  # at the first step alone LoRA gets zeros too
        flat = all(parameters[name].ndim < 2 for name in names)  # a bias may cancel out, as in a distance
        yield Finding(
            "note" if flat else "doubt",
            "zero_gradients",
            f"{counted(names, 'parameter', 'gets')} gradients that are all zeros.",
            "A gradient is multiplied by each slope on its way back. Where one is 0 (a product with zero, "
            "a clamp, a rounding, a saturated function), zeros arrive.",
            "03_functions",
            "Slopes that are not there",
            evidence,
        )


def vanishing(seen: Seen) -> Iterator[Finding]:
    """Over the depth of a model gradients shrink or grow by many orders, relative to the weights."""
    sizes = _relative(seen)
    if len(sizes) < 4:
        return
    quarter = max(2, len(sizes) // 4)
    first, last = (statistics.median(part) for part in (
        [size for _, size in sizes[:quarter]], [size for _, size in sizes[-quarter:]]
    ))  # fmt: skip
    ratio = first / last
    if 1 / _FAR < ratio < _FAR:
        return
    least, most = min(sizes, key=lambda one: one[1]), max(sizes, key=lambda one: one[1])
    shrinks = ratio < 1
    yield Finding(
        "doubt",
        "vanishing" if shrinks else "exploding",
        f"On its way back through {len(sizes)} weights the gradient "
        f"{'shrinks' if shrinks else 'grows'} to {ratio:.1g} times its size, relative to the weights.",
        "Backward multiplies by a layer's slope at every layer. Factors below 1 or above 1 multiply up over "
        "the depth, whatever the loss.",
        "04_modules",
        "Signal through depth",
        [f"gradient / weight: {size:.2g} at `{name}`" for name, size in (least, most)],
    )


def _without(seen: Seen) -> list[str]:
    """The parameters that ask for a gradient and got none at any step; none where no backward can start."""
    if seen.calls.loss:
        return []
    parameters = dict(seen.subject.parameters())
    return [
        name
        for name, norms in seen.grads.items()
        if parameters[name].requires_grad and norms and all(one is None for one in norms)
    ]


def _by_module(names: list[str]) -> list[list[str]]:
    """Names of parameters in at most eight groups of neighbours: each costs a forward."""
    size = math.ceil(len(names) / 8)
    return [names[at : at + size] for at in range(0, len(names), size)]


def _loss_with_others(seen: Seen, parameters: list[nn.Parameter]) -> float:
    """The loss with other values in these parameters, which are then again as they were."""
    was = [one.detach().clone() for one in parameters]

    def disturb() -> None:
        for one in parameters:
            if one.is_floating_point():
                one.data.add_(torch.randn_like(one) * (one.detach().std(correction=0) + 1))

    try:
        return loss_again(seen.subject, disturb)
    finally:
        for one, before in zip(parameters, was, strict=True):
            one.data.copy_(before)


def _meant(seen: Seen, names: list[str]) -> str:
    """What speaks for a graph that is cut on purpose; "" where nothing does."""
    parameters = dict(seen.subject.parameters())
    optimizer = seen.subject.optimizer
    if optimizer is not None:
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not any(id(parameters[name]) in stepped for name in names):
            return "The optimizer has none of them."
    ids = {id(parameters[name]) for name in names}
    owners = {id(p): m for _, m in modules(seen.subject) for p in m.parameters(recurse=False)}
    off = {id(call.module) for call in seen.module_calls if not call.recording}
    if all(id(owners[id(parameters[name])]) in off for name in names):
        return "Their modules are called under `no_grad`."
    cut = {owners[id(parameters[name])] for name in names}
    whole = all(id(p) in ids for module in cut for p in module.parameters(recurse=False))
    if optimizer is None and whole and seen.calls.ends == {"detach"}:
        return "The forward calls `detach`, and there is no optimizer to say what is to be trained."
    trained = [p for name, p in parameters.items() if name not in names and seen.grads.get(name, [None])[0]]
    if all(_has_twin(parameters[name], trained) for name in names):
        return "Each is like another one that trains: a copy that follows it, perhaps."
    return ""


def _has_twin(parameter: Tensor, others: Iterable[Tensor]) -> bool:
    flat = parameter.detach().flatten()
    return any(
        one.shape == parameter.shape and float(F.cosine_similarity(one.detach().flatten(), flat, 0)) > 0.9
        or torch.equal(one.detach(), parameter.detach())
        for one in others
    )  # fmt: skip


def _where_cut(seen: Seen, names: list[str]) -> list[str]:
    """Between which calls the graph ends: the last of those that got no gradient, and the next one."""
    parameters = dict(seen.subject.parameters())
    cut = {id(parameters[name]) for name in names}
    calls = [call for call in seen.module_calls if not call.inner]
    own = [any(id(p) in cut for p in call.module.parameters(recurse=False)) for call in calls]
    if True not in own:
        return []
    last = len(own) - 1 - own[::-1].index(True)
    before = calls[last]
    if not before.recording:
        return [f"`{before.name}` is called under `no_grad`"]
    for call in calls[last + 1 :]:
        if call.size and not call.enters:
            return [f"`{before.name}` returns a tensor with a graph, `{call.name}` gets one without"]
        before = call if call.comes_out else before
    return [f"`{before.name}` is the last module whose result has a graph"] if before.comes_out else []


def _dead_relus(seen: Seen) -> list[str]:
    """The ReLUs whose result is zeros for all of the batch, by the module in which they are."""
    found: list[str] = []
    inside: list[str] = []

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if packet(func) not in ("aten.relu", "aten.relu_") or in_backward():
            return
        if out.numel() >= _LEAST and not bool(out.any()):
            where = f"in `{inside[-1]}`" if inside and inside[-1] else "in the model's forward"
            found.append(f"a ReLU {where}: all {out.numel():,} numbers of its result are 0")

    torch.manual_seed(SEED)
    with (
        uncompiled(),
        called_modules(
            seen.subject,
            before=lambda name, *_: inside.append(name),
            after=lambda *_: inside.pop() if inside else None,
        ),
        Noting(note),
    ):
        as_tensor(seen.subject.loss(seen.subject.output()))
    return found[:3]


def _relative(seen: Seen) -> list[tuple[str, float]]:
    """By the order of the calls: weights of layers, and the norm of the gradient relative to that of the
    weight, at the first step."""
    order: dict[int, ModuleCall] = {}
    for call in seen.module_calls:
        order.setdefault(id(call.module), call)
    sizes = {}
    names = {id(p): name for name, p in seen.subject.parameters()}
    for call in order.values():
        if isinstance(call.module, nn.Embedding):
            continue
        for p in torch_private.parameters(call.module).values():
            name = names.get(id(p), "")
            grads = seen.grads.get(name, [None])
            if p is not None and p.ndim > 1 and grads[0] and seen.norms.get(name):
                sizes[name] = grads[0] / seen.norms[name]
    return [(name, size) for name, size in sizes.items() if math.isfinite(size)]


LOOKS = [frozen_weight, vanishing]
TRIALS = [cut_graph, unused_parameter, zero_gradients]
