"""What a repair of a training run leaves as it is: layers, parameters, batches, the first forward."""

import re
from collections import Counter
from collections.abc import Collection, Iterable

import torch
from torch import Tensor, nn

from course_utils import torch_private
from course_utils.exercise import expect
from course_utils.measure.training import Forward, Layer, Run, Step

MODAL = (torch_private.BatchNorm, torch_private.Dropout)


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


def same_shapes(run: Run, model: nn.Module, sick: Run) -> None:
    """As many batches come as in the starter, each of the same shape."""
    came, wanted = ([f.input is not None and tuple(f.input.shape) for f in r.trained] for r in (run, sick))
    if len(came) != len(wanted):
        told = f"{len(came)} batches train"
        short = sorted({len(b) for b in _inputs(sick)} - {len(b) for b in _inputs(run)})
        told += f", and none has {short[0]} rows, as the last one of an epoch" if short else ""
        if not any(f.module is model for f in run.trained):
            told = f"in training the returned model was not called: other modules were, {len(came)} times"
        raise expect.Mismatch(told, f"expected: {len(wanted)}, as in the code to mend")
    for number, (shape, other) in enumerate(zip(came, wanted, strict=True)):
        expect.equal(shape, other, what=f"the shape of training batch {number}")


def _inputs(run: Run) -> list[Tensor]:
    return [f.input for f in run.trained if f.input is not None]


def batches(run: Run, data: Tensor | None) -> list[Tensor]:
    """The batches that train, flat; with `data`, the places that their rows have there, up to scale."""
    if data is None:
        return [batch.flatten(1) for batch in _inputs(run)]
    return [nearest(forward, data)[0][:, None] for forward in run.trained]


def same_batches(came: list[Tensor], wanted: list[Tensor]) -> None:
    """As many different batches come as in the starter, and each row as often."""
    distinct = [len({tuple(batch.flatten().tolist()) for batch in part}) for part in (came, wanted)]
    told = f"the {len(came)} training batches are {distinct[0]} different ones"
    told += ", which come again and again" if distinct[0] < len(came) else ""
    expect.true(distinct[0] == distinct[1], told, f"expected: {distinct[1]} different ones")
    rows, others = (torch.cat(part).unique(dim=0, return_counts=True)[1].tolist() for part in (came, wanted))
    told = f"the model trains with {len(rows)} different rows, the rarest {min(rows)} times"
    more = f"expected: {len(others)} rows, the rarest {min(others)} times"
    expect.true(sorted(rows) == sorted(others), told, more)


def same_start(
    run: Run, sick: Run, first: list[list[Tensor]], start: Collection[str], but: Iterable[str] = ()
) -> None:
    """What the seed decides is as in the starter: the first weights, the first batch, what layers make of it.
    `first`: the batches of both."""
    forward, other = run.trained[0], sick.trained[0]
    pairs = list(zip(_layers(forward, but), _layers(other, but), strict=True))
    named = [(f"layer {forward.layers.index(x)}, {said(x.module)}", x, y) for x, y in pairs]
    for which, layer, wanted in named if "weights" in start else ():
        for name, weight in wanted.weights.items() if layer.weights else ():
            what = f"the {name} of {which}, with this seed, before any step,"
            expect.equal(layer.weights[name], weight, what=what, rtol=1e-4, atol=1e-6)
    if "rows" in start:
        told = "with the same seed the first batch holds other rows than in the code to mend"
        expect.true(first[0][0].equal(first[1][0]), told, "expected: the same, in the same order")
    for which, layer, wanted in named if "inputs" in start else ():
        told = f"{which}, gets another input at the first batch than in the code to mend, though the layers"
        told += " before it return the same"
        expect.true(_close(layer.input, wanted.input), told, "expected: what runs between layers stays")
        what = f"what {which}, makes of the first batch, before any step,"
        expect.equal(layer.output, wanted.output, what=what, rtol=1e-4, atol=1e-5)


def _close(came: Tensor | None, wanted: Tensor | None) -> bool:
    if came is None or wanted is None or came.numel() != wanted.numel():
        return False
    return torch.allclose(came.flatten().float(), wanted.flatten().float(), rtol=1e-4, atol=1e-5)


_RARE = re.compile(r", (eps|momentum|affine|bias|track_running_stats|inplace)=[^,()]+")


def said(layer: nn.Module | str) -> str:
    """A layer in a message: without settings that few people set."""
    return f"`{_RARE.sub('', str(layer))}`"


def _layers(forward: Forward, but: Iterable[str]) -> list[Layer]:
    """Without `but`, and without a class of the reader's that holds nothing: a function in other words."""
    kept = [x for x in forward.layers if type(x.module).__name__ not in set(but)]
    return [x for x in kept if type(x.module).__module__.startswith("torch.") or x.module.state_dict()]


def same_steps(run: Run, sick: Run, free: Iterable[str] = ()) -> None:
    """As many optimizers take as many steps as in the starter, with the same settings but those of `free`."""
    came, wanted = (len({id(step.optimizer) for step in r.steps}) for r in (run, sick))
    told = f"{came} optimizers take the steps, one after another or in turn"
    more = f"expected: {wanted}, as in the code to mend. A new one has no state, such as momentum"
    expect.true(came == wanted, told, more)
    expect.equal(len(run.steps), len(sick.steps), what="the number of optimizer steps")
    for number, (step, other) in enumerate(zip(run.steps, sick.steps, strict=True)):
        _same_settings(step, other, number, free)


def _same_settings(came: Step, wanted: Step, number: int, free: Iterable[str]) -> None:
    expect.equal(type(came.optimizer).__name__, type(wanted.optimizer).__name__, what="the optimizer")
    alike = len(came.groups) == len(wanted.groups)
    for i, group in enumerate(came.groups):
        for name, value in wanted.groups[i if alike else 0].items():
            if name not in {"initial_lr", *free}:
                what = f"`{name}` of the optimizer at step {number}"
                expect.equal(group.get(name), value, what=what, rtol=1e-6, atol=0.0)


def nearest(forward: Forward, data: Tensor, name: str = "x") -> tuple[Tensor, Tensor]:
    """For each row of the input of a forward, its place in `data`, whatever its brightness and contrast, and
    how alike the two are: 1 where nothing else differs."""
    batch = forward.input
    if batch is None or batch[0].numel() != data[0].numel():
        told = f"at step {forward.step} the model gets no batch of rows like those of `{name}`"
        raise expect.Mismatch(told, f"expected: {tuple(data.shape[1:])} for each of them")
    rows, known = (_unit(part.flatten(1)) for part in (batch, data))
    alike, places = (rows @ known.T).max(1)
    return places, alike


def _unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows - rows.mean(1, keepdim=True), dim=1)


def rows_of(forward: Forward, data: Tensor, name: str) -> Tensor:
    """For each row of the input of a forward, its place in `data`."""
    batch = forward.input
    if batch is not None and batch.shape[1:] == data.shape[1:]:
        places: dict[bytes, int] = {}
        for place, row in enumerate(_bytes(data)):
            places.setdefault(row, place)
        found = [places.get(row) for row in _bytes(batch.to(data.dtype))]
        if None not in found:
            return torch.tensor(found)
    told = f"at step {forward.step} the model gets a batch whose rows are not rows of `{name}`"
    raise expect.Mismatch(told, f"expected: batches of `{name}`, as they are")


def _bytes(rows: Tensor) -> list[bytes]:
    """Each row as bytes: much faster to look up than numbers are to compare. `+ 0` makes -0. the zero it is
    equal to."""
    return [row.tobytes() for row in (rows.detach().flatten(1) + 0).numpy()]


def scores(forward: Forward) -> Tensor:
    """What the last linear or convolutional layer of a forward returned: before any softmax."""
    kinds = (nn.Linear, torch_private.Conv)
    return next(x.output for x in reversed(forward.layers) if isinstance(x.module, kinds))


def modes(forward: Forward) -> dict[str, bool]:
    """`training` of the layers whose mode matters, as they ran: `{"`Dropout(p=0.5)`": True}`."""
    return {said(x.module): x.training for x in forward.layers if isinstance(x.module, MODAL)}


def names_of(model: nn.Module) -> dict[int, str]:
    """The names of a model's parameters, by `id`."""
    return {id(p): name for name, p in model.named_parameters()}
