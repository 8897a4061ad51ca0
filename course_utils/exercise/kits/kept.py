"""What a repair of a training run leaves as it is: layers, parameters, batches, the first forward."""

import re
from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from course_utils.exercise import expect
from course_utils.measure.training import Forward, Layer, Run, Step

_MODAL = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


def same_layers(run: Run, model: nn.Module, sick: Run, but: Iterable[str] = ()) -> None:
    """The layers of the first training forward are those of the starter's, in the same order."""
    expect.true(bool(run.trained), "no gradient came back to a module that was called", "expected: it trains")
    layers = [_layers(r.trained[0], but) for r in (run, sick)]
    came, wanted = ([repr(x.module) for x in part] for part in layers)
    lost, added = Counter(wanted) - Counter(came), Counter(came) - Counter(wanted)
    gone, new = next(iter(lost), ""), next(iter(added), "")
    short = said if said(gone) != said(new) else "`{}`".format
    told = [f"{short(gone)} does not run in training any more"] if lost else []
    told += [f"{short(new)} runs in training, and did not before"] if added else []
    if told and not any(f.module is model for f in run.trained):
        told = ["the returned model itself was not called in training, at most parts of it, or its `forward`"]
    wanted_of_all = "expected: `model(x)` runs the same layers, with the same settings"
    expect.true(not told, "; ".join(told), wanted_of_all)
    expect.equal(came, wanted, what="the layers, in the order in which they run")
    for layer, other in zip(*layers, strict=True):
        has, asked = ([tuple(p.shape) for p in x.module.parameters()] for x in (layer, other))
        expect.equal(has, asked, what=f"the shapes of the parameters of {said(layer.module)}")


def same_parameters(run: Run, sick: Run, but: Iterable[str] = ()) -> None:
    """What got a gradient in the starter gets one: each parameter of these layers, at each step."""
    for layer, other in zip(*(_layers(r.trained[0], but) for r in (run, sick)), strict=True):
        for (name, p), was in zip(layer.module.named_parameters(), other.module.parameters(), strict=True):
            for number, (came, wanted) in enumerate(zip(run.steps, sick.steps, strict=True)):
                trains = wanted.norms.get(id(was)) is None or came.norms.get(id(p)) is not None
                why = "it has no gradient" if id(p) in came.norms else "the optimizer does not hold it"
                told = f"at step {number} the {name} of {said(layer.module)} is not trained: {why}"
                expect.true(trains, told, "expected: it is, as in the code to mend")


def same_batches(run: Run, sick: Run) -> None:
    """As many different batches come as in the starter, and each row as often."""
    batches = [[forward.input.flatten(1) for forward in r.trained] for r in (run, sick)]
    came, wanted = (len({tuple(batch.flatten().tolist()) for batch in part}) for part in batches)
    told = f"of {len(run.trained)} training batches {came} are different ones"
    expect.true(came == wanted, told, f"expected: {wanted}, as in the code to mend")
    came, wanted = (torch.cat(part).unique(dim=0, return_counts=True)[1].tolist() for part in batches)
    told = f"the model trains with {len(came)} different rows, the rarest {min(came)} times"
    expect.true(
        sorted(came) == sorted(wanted), told, f"expected: {len(wanted)} rows, the rarest {min(wanted)} times"
    )


def same_start(came: Forward, wanted: Forward, but: Iterable[str] = ()) -> None:
    """What the seed decides is as in the starter: the first batch, and what these layers make of it."""
    same = came.input is not None and wanted.input is not None and came.input.equal(wanted.input)
    told = "with the same seed the first batch holds other rows than in the code to mend"
    expect.true(same, told, "expected: the same, in the same order")
    for layer, other in zip(*(_layers(f, but) for f in (came, wanted)), strict=True):
        what = f"what {said(layer.module)} makes of the first batch, before any step,"
        expect.equal(layer.output, other.output, what=what, rtol=1e-4, atol=1e-5)


_RARE = re.compile(r", (eps|momentum|affine|bias|track_running_stats|inplace)=[^,()]+")


def said(layer: nn.Module | str) -> str:
    """A layer in a message: without settings that few people set."""
    return f"`{_RARE.sub('', str(layer))}`"


def _layers(forward: Forward, but: Iterable[str]) -> list[Layer]:
    """Without `but`, and without a class of the reader's that holds nothing: a function in other words."""
    kept = [x for x in forward.layers if type(x.module).__name__ not in set(but)]
    return [x for x in kept if type(x.module).__module__.startswith("torch.") or x.module.state_dict()]


def same_settings(came: Step, wanted: Step, number: int, free: Iterable[str] = ()) -> None:
    """The optimizer and its settings in each group, at one step; but not those of `free`."""
    expect.equal(type(came.optimizer).__name__, type(wanted.optimizer).__name__, what="the optimizer")
    alike = len(came.groups) == len(wanted.groups)
    for i, group in enumerate(came.groups):
        for name, value in wanted.groups[i if alike else 0].items():
            if name not in {"initial_lr", *free}:
                what = f"`{name}` of the optimizer at step {number}"
                expect.equal(group.get(name), value, what=what, rtol=1e-6, atol=0.0)


def rows_of(forward: Forward, data: Tensor, name: str = "x") -> Tensor:
    """For each row of the input of a forward, its place in `data`."""
    batch = forward.input
    if batch is not None and batch.shape[1:] == data.shape[1:]:
        same = (batch.flatten(1)[:, None] == data.flatten(1)[None]).all(-1)
        if bool(same.any(1).all()):
            return same.int().argmax(1)
    told = f"at step {forward.step} the model gets a batch whose rows are not rows of `{name}`"
    raise expect.Mismatch(told, f"expected: batches of `{name}`, as they are")


def scores(forward: Forward) -> Tensor:
    """What the last linear or convolutional layer of a forward returned: before any softmax."""
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    return next(x.output for x in reversed(forward.layers) if isinstance(x.module, kinds))


def modes(forward: Forward) -> dict[str, bool]:
    """`training` of the layers whose mode matters, as they ran: `{"`Dropout(p=0.5)`": True}`."""
    return {said(x.module): x.training for x in forward.layers if isinstance(x.module, _MODAL)}


def names_of(model: nn.Module) -> dict[int, str]:
    """The names of a model's parameters, by `id`."""
    return {id(p): name for name, p in model.named_parameters()}
