"""Ranks with unequally many batches

Train `model` where one rank may have more batches than another. In every step each rank that still has a
batch takes its next one, and the gradient is the **mean over these ranks** of the gradients of their
`loss(model(x), y)`. A rank that has run out goes on with the others until nobody has a batch: it adds zeros
where they add gradients, does not count in the mean, and takes the same step. Return the number of steps, the
same on all ranks.

All ranks begin with the same weights and the same state of the optimizer, and they end with the same ones:
those of one process that takes the batches of all ranks together, step by step. They may train again, with
the same optimizer.

- `batches` is an iterator of pairs `(x, y)`, of unknown length, and what it gives may be large: hold three
  batches at a time at most. On some ranks, or on all, there may be none.
- A step takes two collectives at most, however many parameters there are. Two more may go to finding out that
  all are done. A rank without a batch does not run the model.
- Parameters may be tied, frozen, and of any layout, all of one dtype and on one device. The frozen ones stay
  as they are; the others get a gradient from every batch. What `.grad` holds before does not count.

DDP's `join()` is made for this. Its ranks that have run out take no step; at the end they get the weights,
but not the state of the optimizer. So it does not give what is asked for here.

With `model = nn.Linear(1, 1, bias=False)`, `loss = lambda output, y: output.sum()` and `optimizer =
torch.optim.SGD(model.parameters(), lr=1.0)`, where `x` is `[[2.]]` and then `[[4.]]` on rank 0 and `[[6.]]`
on rank 1, the weight falls by 4 twice, on both ranks, and `uneven_inputs` returns `2`
"""

import weakref
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=25,
    hints=[
        "A collective is over when every rank has called it. So a rank may leave its loop only when all know "
        "that nobody has a batch left. Who can tell them?",
        "A sum over ranks of ones and zeros says how many still have a batch. It can travel in the tensor in "
        "which the gradients travel, or before it.",
        "In every round: no old gradients; a forward and a backward where there is a batch; all gradients in "
        "one flat tensor, zeros where there was none, and behind them a 1 or a 0; add it up over the ranks. "
        "If the last element is 0, all are done. Otherwise divide by it, hand out the gradients, step.",
    ],
)


@exercise.starter
def uneven_inputs(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    batches: Iterator[tuple[Tensor, Tensor]],
) -> int:
    """-> the number of steps"""
    raise NotImplementedError


_CALL = "uneven_inputs(model, loss, optimizer, batches)"
_MODEL = "model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()"
_SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.2)"
_ADAM = "optimizer = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.1)"
# Tied, frozen, transposed; and gradients of other days.
_ODD = """layer = nn.Linear(2, 2)
layer.weight = nn.Parameter(torch.randn(2, 2).t())
model = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(2, 2), nn.Linear(2, 1)).double()
model[3].requires_grad_(False)
for p in model[2].parameters(): p.grad = torch.full_like(p, 7)"""
# Its arguments cannot be exchanged.
_LOSS = "loss = F.binary_cross_entropy_with_logits"
_FLAT = "loss = lambda output, y: 0 * output.sum()  # every gradient is 0"
_DECAYS = "optimizer = torch.optim.SGD(model.parameters(), lr=0.2, weight_decay=0.5)"


def _setup(rank, device, lengths, model=_MODEL, optimizer=_SGD, loss=_LOSS, feed="iter"):
    """The example as code: all data on every rank, and `batches` for this one. `lengths`: how many batches
    each rank has."""
    moved = f"\nmodel = model.to('{device.type}')" * (device.type != "cpu")
    more = f", dtype=torch.float64{expect.on(device)}"
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    shares = ", ".join(f"data[{end - n}:{end}]" for n, end in zip(lengths, ends, strict=True))
    # Batches of different sizes: neither rows nor batches but ranks have equal weight.
    return f"""torch.manual_seed(0)
{model}{moved}
{optimizer}
{loss}
data = [(torch.randn(1 + i % 3, 2{more}), torch.rand(1 + i % 3, 1{more})) for i in range({sum(lengths)})]
shares = [{shares}]
batches = {feed}(shares[{rank}])  # rank {rank}"""


def _given(uneven_inputs, rank, device, lengths, **how):
    """The example, and the same again for one process."""
    setup = _setup(rank, device, lengths, **how)
    return expect.given(setup, uneven_inputs=uneven_inputs), expect.given(setup)


def _in_one_process(t, shares):
    """Trains on the batches of all ranks; the number of steps."""
    steps = max(map(len, shares))
    for step in range(steps):
        losses = [t.loss(t.model(share[step][0]), share[step][1]) for share in shares if step < len(share)]
        t.optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        t.optimizer.step()
    return steps


def _expect_trained(t, wanted, result, steps):
    found, oracle = ({name: p.detach() for name, p in one.model.named_parameters()} for one in (t, wanted))
    expect.equal(found, oracle, what="the model's parameters", rtol=1e-7, atol=1e-10)
    expect.equal(result, steps, what="the number of steps")


def _expect_like_one_process(uneven_inputs, rank, device, lengths, **how):
    t, one = _given(uneven_inputs, rank, device, lengths, **how)
    result = t.call(_CALL)
    _expect_trained(t, one, result, _in_one_process(one, one.shares))


@exercise.check(ranks=2)
def equally_many(uneven_inputs, rank, device):
    """Two ranks with equally many batches"""
    _expect_like_one_process(uneven_inputs, rank, device, (3, 3))


@exercise.check(ranks=2)
def one_runs_out(uneven_inputs, rank, device):
    """A rank runs out of batches"""
    _expect_like_one_process(uneven_inputs, rank, device, (2, 5))
    # A gradient of zeros is a gradient: it does not say that nobody has a batch.
    _expect_like_one_process(uneven_inputs, rank, device, (1, 2), optimizer=_DECAYS, loss=_FLAT)


@exercise.check(ranks=3)
def none_at_all(uneven_inputs, rank, device):
    """Three ranks, one of which never has a batch"""
    _expect_like_one_process(uneven_inputs, rank, device, (4, 1, 0))


@exercise.check(ranks=2)
def nobody_has_any(uneven_inputs, rank, device):
    """No rank has a batch: nothing is trained"""
    t, one = _given(uneven_inputs, rank, device, (0, 0), optimizer=_DECAYS)
    _expect_trained(t, one, t.call(_CALL), 0)


@exercise.check(ranks=2)
def trains_again(uneven_inputs, rank, device):
    """Trained again with the same optimizer, the other rank running out first"""
    t, one = _given(uneven_inputs, rank, device, (1, 3), optimizer=_ADAM)
    t.call(_CALL)
    result = t.call(f"uneven_inputs(model, loss, optimizer, iter(shares[{1 - rank}]))")
    _in_one_process(one, one.shares)
    _expect_trained(t, one, result, _in_one_process(one, one.shares))


@exercise.check(ranks=2)
def odd_parameters(uneven_inputs, rank, device):
    """Tied, frozen and transposed parameters, and gradients from before"""
    _expect_like_one_process(uneven_inputs, rank, device, (3, 1), model=_ODD, optimizer=_DECAYS)


@exercise.check(ranks=2)
def what_it_takes(uneven_inputs, rank, device):
    """Two collectives a step at most, and no forward without a batch"""
    lengths = 1, 4
    t, _ = _given(uneven_inputs, rank, device, lengths)
    forwards = []
    t.model.register_forward_hook(lambda *_: forwards.append(1))
    with measure.traffic() as seen:
        t.call(_CALL)
    expect.at_most(seen.count(), 2 * 4 + 2, "collectives for 4 steps")
    expect.at_most(len(forwards), lengths[rank], f"forwards of a rank with {lengths[rank]} batches")


@exercise.check(ranks=2)
def not_collected(uneven_inputs, rank, device):
    """No more than three batches are held at a time"""
    held = [0]

    def one_by_one(share):
        places = []
        for x, y in share:
            batch = x.clone(), y.clone()
            places.append(weakref.ref(batch[0]))
            held[0] = max(held[0], sum(place() is not None for place in places))
            yield batch

    setup = _setup(rank, device, (6, 8), feed="one_by_one")
    t = expect.given(setup, uneven_inputs=uneven_inputs, one_by_one=one_by_one)
    t.call(_CALL)
    # Up to three, it is a matter of style.
    evidence.record("collected", held[0] > 3)
    expect.true(
        0 < held[0] <= 3,
        f"{held[0]} batches are held at a time, expected 1 to 3",
        "`one_by_one` makes each batch when it is asked for",
    )


# --- the mistakes -----------------------------------------------------------------------------------------


def _trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def _backward(model, loss, optimizer, batch):
    optimizer.zero_grad()
    if batch is not None:
        loss(model(batch[0]), batch[1]).backward()


def _add_up(parameters, counts):
    """Adds up gradients and counts over the ranks; the count of all ranks."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([*(part.reshape(-1) for part in parts), parts[0].new_tensor([float(counts)])])
    dist.all_reduce(flat)
    *sums, count = flat.split([*(p.numel() for p in parameters), 1])
    for p, part in zip(parameters, sums, strict=True):
        p.grad = part.view_as(p)
    return count.item()


def _divide(parameters, count):
    for p in parameters:
        p.grad /= count


def _how_many(flag, model, op=dist.ReduceOp.SUM):
    total = torch.tensor(float(flag), device=next(model.parameters()).device)
    dist.all_reduce(total, op=op)
    return int(total)


@exercise.mistake
def finished_leaves(model, loss, optimizer, batches):
    """A rank that has run out leaves the loop, and the others wait for its gradients for ever. It has to take
    part in every collective until nobody has a batch, with zeros."""
    parameters, steps = _trainable(model), 0
    for batch in batches:
        _backward(model, loss, optimizer, batch)
        _divide(parameters, _add_up(parameters, 1))
        optimizer.step()
        steps += 1
    return steps


@exercise.mistake
def stops_at_the_shortest(model, loss, optimizer, batches):
    """You stop as soon as one rank has run out. The batches that the others still have are never trained on:
    go on until nobody has one."""
    parameters, steps, batches = _trainable(model), 0, iter(batches)
    while True:
        batch = next(batches, None)
        _backward(model, loss, optimizer, batch)
        if _how_many(batch is not None, model) < dist.get_world_size():
            return steps
        _divide(parameters, _add_up(parameters, batch is not None))
        optimizer.step()
        steps += 1


@stops_at_the_shortest.variant
def while_all_have_one(model, loss, optimizer, batches):
    number = 0
    while _how_many((batch := next(batches, None)) is not None, model, dist.ReduceOp.MIN):
        model.zero_grad()
        loss(model(batch[0]), batch[1]).backward()
        flat = torch.cat([p.grad.flatten() for p in _trainable(model)])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for p, part in zip(
            _trainable(model), flat.split([p.numel() for p in _trainable(model)]), strict=True
        ):
            p.grad = part.reshape(p.shape)
        optimizer.step()
        number += 1
    return number


def _trained(
    model, loss, optimizer, batches, *, repeat=None, divide=lambda count: count, step=True, steps_of=max
):
    """A right answer with holes."""
    parameters, steps, own, batches, last = _trainable(model), 0, 0, iter(batches), None
    while True:
        batch = next(batches, None)
        has_one = batch is not None
        if repeat == "batch" or (repeat == "uncounted" and last is not None):
            batch = last if batch is None else batch
        if has_one or repeat != "gradient":
            _backward(model, loss, optimizer, batch)
        last, own = batch, own + has_one
        if not _how_many(has_one, model):
            return steps_of(steps, own)
        count = _add_up(parameters, batch is not None if repeat == "batch" else has_one)
        _divide(parameters, divide(count))
        if has_one or step:
            optimizer.step()
        steps += 1


@exercise.mistake
def divides_by_all_ranks(model, loss, optimizer, batches):
    """You divide by the number of all ranks, also where fewer have a batch: every step that some sit out is
    too small. (DDP's `join()` does so unless it is told otherwise.) Divide by how many gave a gradient."""
    return _trained(model, loss, optimizer, batches, divide=lambda count: dist.get_world_size())


@divides_by_all_ranks.variant
def shares_before_adding(model, loss, optimizer, batches):
    steps = 0
    while True:
        pair = next(batches, None)
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        if pair:
            (loss(model(pair[0]), pair[1]) / dist.get_world_size()).backward()
        if _add_up(_trainable(model), bool(pair)) == 0:
            return steps
        optimizer.step()
        steps += 1


@exercise.mistake
def sums(model, loss, optimizer, batches):
    """You add up the gradients of the ranks and do not divide. The mean is asked for: divide by how many
    ranks gave one."""
    return _trained(model, loss, optimizer, batches, divide=lambda count: 1)


@exercise.mistake
def weighs_by_rows(model, loss, optimizer, batches):
    """You weigh each gradient by the rows of its batch. The mean is over the ranks: a batch of one row counts
    as much as a batch of three."""
    parameters, steps, batches = _trainable(model), 0, iter(batches)
    while True:
        batch = next(batches, None)
        _backward(model, lambda output, y: len(y) * loss(output, y), optimizer, batch)
        if not (rows := _add_up(parameters, 0 if batch is None else len(batch[0]))):
            return steps
        _divide(parameters, rows)
        optimizer.step()
        steps += 1


@exercise.mistake
def repeats_last_batch(model, loss, optimizer, batches):
    """A rank that has run out trains on its last batch again and again. It counts in every mean then, more
    often than any other batch. Zeros are what such a rank has to give."""
    return _trained(model, loss, optimizer, batches, repeat="batch")


@repeats_last_batch.form
def repeats_uncounted(model, loss, optimizer, batches):
    return _trained(model, loss, optimizer, batches, repeat="uncounted")


@exercise.mistake
def repeats_last_gradient(model, loss, optimizer, batches):
    """A rank that has run out hands in again what stands in `.grad`: the mean of the step before. Clear the
    gradients before every round, also where no backward follows."""
    return _trained(model, loss, optimizer, batches, repeat="gradient")


@exercise.mistake
def old_gradients(model, loss, optimizer, batches):
    """`backward` adds to what stands in `.grad`, and you do not clear it: what is from before, and each mean,
    goes into the next step. Clear the gradients before each backward."""
    parameters, steps, batches = _trainable(model), 0, iter(batches)
    while True:
        batch = next(batches, None)
        if batch is not None:
            loss(model(batch[0]), batch[1]).backward()
        if not _how_many(batch is not None, model):
            return steps
        _divide(parameters, _add_up(parameters, batch is not None))
        optimizer.step()
        steps += 1


@old_gradients.form
def clears_afterwards(model, loss, optimizer, batches):
    parameters, steps, batches = _trainable(model), 0, iter(batches)
    while True:
        batch = next(batches, None)
        if batch is not None:
            loss(model(batch[0]), batch[1]).backward()
        if not _how_many(batch is not None, model):
            return steps
        _divide(parameters, _add_up(parameters, batch is not None))
        optimizer.step()
        optimizer.zero_grad()
        steps += 1


@exercise.mistake
def finished_takes_no_step(model, loss, optimizer, batches):
    """A rank that has run out takes part in the collectives, but not in the steps: its weights stay behind.
    The mean is in its `.grad` as well; it takes the same step as the others."""
    return _trained(model, loss, optimizer, batches, step=False)


@finished_takes_no_step.variant
def two_loops(model, loss, optimizer, batches):
    parameters, steps = _trainable(model), 0
    for batch in batches:
        _backward(model, loss, optimizer, batch)
        _divide(parameters, _add_up(parameters, True))
        optimizer.step()
        steps += 1
    while True:
        optimizer.zero_grad()
        if not _add_up(parameters, False):
            return steps
        steps += 1


@exercise.mistake
def weights_without_state(model, loss, optimizer, batches):
    """A rank that has run out takes no step, and is given the weights of another at the end. The state of its
    optimizer is still the old one, such as its moments and its count of steps: when they train on, its steps
    are others than those of the other ranks."""
    steps = _trained(model, loss, optimizer, batches, step=False, steps_of=lambda steps, own: (steps, own))
    last = _how_many(dist.get_rank() if steps[0] == steps[1] else 0, model, dist.ReduceOp.MAX)
    for p in model.parameters():
        dist.broadcast(p.data, src=last)
    return steps[0]


@exercise.mistake
def joins(model, loss, optimizer, batches):
    """This is what DDP's `join()` gives: a rank that has run out takes part in the collectives, takes no
    step, and gets the weights of another one at the end. The state of its optimizer stays behind."""
    from torch.nn.parallel import DistributedDataParallel

    wrapped, steps = DistributedDataParallel(model), 0
    with wrapped.join(divide_by_initial_world_size=False):
        for x, y in batches:
            optimizer.zero_grad()
            loss(wrapped(x), y).backward()
            optimizer.step()
            steps += 1
    return _how_many(steps, model, dist.ReduceOp.MAX)


@exercise.mistake
def divides_by_nobody(model, loss, optimizer, batches):
    """You take a step in the round in which nobody has a batch. There is nothing to divide by, and nothing to
    learn: leave before the division and the step."""
    parameters, steps, batches = _trainable(model), 0, iter(batches)
    while True:
        batch = next(batches, None)
        _backward(model, loss, optimizer, batch)
        count = _add_up(parameters, batch is not None)
        for p in parameters:
            p.grad = p.grad / torch.tensor(count)
        optimizer.step()
        if not count:
            return steps
        steps += 1


@divides_by_nobody.form
def a_step_without_gradients(model, loss, optimizer, batches):
    parameters, steps, batches = _trainable(model), 0, iter(batches)
    while True:
        batch = next(batches, None)
        _backward(model, loss, optimizer, batch)
        count = _add_up(parameters, batch is not None)
        _divide(parameters, max(count, 1))
        optimizer.step()
        if not count:
            return steps
        steps += 1


@exercise.mistake
def trains_the_frozen(model, loss, optimizer, batches):
    """You give frozen parameters a gradient of zeros. An optimizer leaves out what has none; with zeros it
    applies weight decay, and the frozen weights shrink. Take the parameters that require a gradient."""
    parameters, steps, batches = list(model.parameters()), 0, iter(batches)
    while True:
        batch = next(batches, None)
        _backward(model, loss, optimizer, batch)
        if not (count := _add_up(parameters, batch is not None)):
            return steps
        _divide(parameters, count)
        optimizer.step()
        steps += 1


@exercise.mistake
def views_transposed(model, loss, optimizer, batches):
    """You make a gradient flat with `view(-1)`. It has the layout of its parameter, and where that is
    transposed there is no such view: `flatten()` or `reshape(-1)` copies then."""
    steps = 0
    parameters = _trainable(model)
    while True:
        batch = next(batches, None)
        _backward(model, loss, optimizer, batch)
        grads = [torch.zeros(p.shape).to(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat(
            [g.view(-1) for g in grads] + [torch.tensor([float(batch is not None)]).to(grads[0])]
        )
        dist.all_reduce(flat)
        if not flat[-1]:
            return steps
        sizes = [p.numel() for p in parameters]
        for p, part in zip(parameters, (flat[:-1] / flat[-1]).split(sizes), strict=True):
            p.grad = part.view(p.shape)
        optimizer.step()
        steps += 1


@exercise.mistake
def counts_its_own_steps(model, loss, optimizer, batches):
    """You return how many batches this rank had. A rank that has run out goes on stepping with the others:
    the number of steps is the same on all."""
    return _trained(model, loss, optimizer, batches, steps_of=lambda steps, own: own)


@exercise.mistake
def a_collective_for_each(model, loss, optimizer, batches):
    """You take a collective for every parameter. Each is a time of waiting: lay the gradients behind one
    another in one tensor, and add that up."""
    parameters, steps, batches = _trainable(model), 0, iter(batches)
    while True:
        batch = next(batches, None)
        _backward(model, loss, optimizer, batch)
        if not (count := _how_many(batch is not None, model)):
            return steps
        for p in parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad.contiguous()
            total = p.grad.contiguous()
            dist.all_reduce(total)
            p.grad = total / count
        optimizer.step()
        steps += 1


@a_collective_for_each.form
def each_in_the_last_round_too(model, loss, optimizer, batches):
    parameters, steps, batches = _trainable(model), 0, iter(batches)
    while True:
        batch = next(batches, None)
        _backward(model, loss, optimizer, batch)
        for p in parameters:
            p.grad = torch.zeros(p.shape).to(p) if p.grad is None else p.grad.contiguous()
            dist.all_reduce(p.grad)
        if not (count := _how_many(batch is not None, model)):
            return steps
        _divide(parameters, count)
        optimizer.step()
        steps += 1


@exercise.mistake
def runs_the_model_for_zeros(model, loss, optimizer, batches):
    """A rank that has run out runs the model to get a gradient of zeros. Zeros can be had without a forward
    and a backward; `torch.zeros_like` makes them."""
    steps, last = 0, None
    parameters, batches = _trainable(model), iter(batches)
    while True:
        batch = next(batches, None)
        last = batch or last
        _backward(
            model, lambda out, y, weight=float(batch is not None): weight * loss(out, y), optimizer, last
        )
        if not (count := _add_up(parameters, batch is not None)):
            return steps
        _divide(parameters, count)
        optimizer.step()
        steps += 1


@exercise.mistake
def collects_the_batches(model, loss, optimizer, batches):
    """You put all batches into a list to know how many there are. They are all held at once then. Which rank
    has one left can be found out step by step."""
    batches = list(batches)
    parameters, most = _trainable(model), _how_many(len(batches), model, dist.ReduceOp.MAX)
    for step in range(most):
        batch = batches[step] if step < len(batches) else None
        _backward(model, loss, optimizer, batch)
        _divide(parameters, _add_up(parameters, batch is not None))
        optimizer.step()
    return most
