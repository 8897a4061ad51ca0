"""Right to the last example

A classifier is evaluated on all ranks at once. Every rank has the same `model`, and a `loader` of its own
with a `DistributedSampler`, which may shuffle. Return the accuracy and the mean of `F.cross_entropy`, both
over the whole data set, as two floats, the same on every rank. **Each example of the data set counts
once**, also where the sampler repeats some.

The sampler deals out one list: all examples in some order and, up to the next multiple of the number of
ranks, the same again from the beginning. With `n` ranks, rank `r` reads the places `r`, `r + n`, `r + 2n`
and so on of this list, one after another. `loader.sampler.rank` is `r`, `loader.sampler.num_replicas` is
`n`, and `len(loader.dataset)` is the number of examples: at least 1, and perhaps smaller than `n`.

A batch is `(x, y)`; `model(x)` has a row of logits for each example, and the largest is the prediction.
While the model runs, all of it is in eval mode and no graph is recorded. Afterwards every module is in the
mode in which it was, and all else about the model is as it was. A rank runs the model on no more examples
than its loader reads. It takes part in at most four collectives, however many batches there are, and what
it sends does not grow with the data set.

With `model = nn.Identity()`, two ranks and a data set of `x = torch.tensor([[2., 0.], [2., 0.], [0., 2.]])`
and `y = torch.tensor([0, 0, 0])` one of three is wrong: the result is, rounded, `(0.6667, 0.7936)`
"""

import contextlib
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=25,
    hints=[
        "A mean of means is the mean only where all of them are of equally many examples. Sums can be added "
        "up, over batches and over ranks. By what is the sum to be divided?",
        "The repeated examples stand at the end of the list, behind as many places as the data set has "
        "examples. At which place of the list stands what a rank reads as its `i`-th? So how many of a "
        "rank's examples are not repeated, and which of all that its loader reads?",
        "Keep count of how many of them are still to come, and take no more of a batch than these. That may "
        "be none: with `reduction='sum'` the loss of no examples is 0. Put both sums into one tensor and "
        "reduce it once, on all ranks.",
    ],
)


@exercise.starter
def evaluate_exactly(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """The accuracy and the mean loss over the whole data set"""
    raise NotImplementedError


_CALL = "evaluate_exactly(model, loader)"
_DATA = """torch.manual_seed(0)
x, y = torch.randn({n}, 3{on}), torch.randint(3, ({n},){on})
data = TensorDataset(x, y)
loader = DataLoader(data, {batch}, sampler=DistributedSampler(data, shuffle={shuffle}))"""
_LINEAR = """model = nn.Linear(3, 3{on})"""
_DEEP = (
    """model = nn.Sequential(nn.Linear(3, 8{on}), nn.BatchNorm1d(8{on}), nn.Dropout(), nn.Linear(8, 3{on}))"""
)


def _given(answer, device, n, batch, *, model=_LINEAR, shuffle=False, more=""):
    setup = "\n".join((_DATA, model)).format(n=n, batch=batch, shuffle=shuffle, on=expect.on(device))
    names = {kind.__name__: kind for kind in (DataLoader, DistributedSampler, TensorDataset)}
    return expect.given(f"{setup}\n{more}", evaluate_exactly=answer, **names)


def _oracle(t):
    """The whole data set at once, in double precision."""
    model = copy.deepcopy(t.model).cpu().double().eval()
    with torch.no_grad():
        logits, y = model(t.x.cpu().double()), t.y.cpu()
        right = (logits.argmax(1) == y).double().mean()
        return right.item(), F.cross_entropy(logits, y).item()


def _expect_result(t, found, wanted):
    """Beside a first difference stands what this rank has to do with it."""
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        expect.equal(found, wanted)
    evidence.record("result", found)
    try:
        for what, came, value in zip(("the accuracy", "the mean loss"), found, wanted, strict=True):
            expect.equal(came, value, what=what, rtol=1e-5, atol=1e-6)
    except expect.Mismatch as mismatch:
        if isinstance(came, torch.Tensor):
            mismatch.lines.append("a tensor is no float: take the number out of it with `item`")
            raise
        sampler = t.loader.sampler
        reads, ranks, n = len(sampler), sampler.num_replicas, len(t.data)
        repeated = sampler.rank + (reads - 1) * ranks >= n
        mismatch.lines.append(
            f"{ranks} ranks share {n} examples; this one reads {reads}, and "
            + ("the last is a repeated one" if repeated else "none of these is repeated")
        )
        raise


def _expect_right(t):
    wanted = _oracle(t)
    _expect_result(t, t.call(_CALL), wanted)


@exercise.check(ranks=2, deadline=10)
def equal_batches(evaluate_exactly, device):
    """Two ranks, all batches of one size"""
    _expect_right(_given(evaluate_exactly, device, 12, 3))


@exercise.check(ranks=2, deadline=10)
def last_batch(evaluate_exactly, device):
    """A last batch that is smaller than the others"""
    _expect_right(_given(evaluate_exactly, device, 10, 3))


@exercise.check(ranks=3, deadline=10)
def repeated(evaluate_exactly, device):
    """Three ranks: what the sampler repeats counts once"""
    _expect_right(_given(evaluate_exactly, device, 11, 5))
    _expect_right(_given(evaluate_exactly, device, 10, 3))


@exercise.check(ranks=2, deadline=10)
def shuffled(evaluate_exactly, device):
    """A sampler that shuffles"""
    _expect_right(_given(evaluate_exactly, device, 9, 2, shuffle=True, more="loader.sampler.set_epoch(2)"))


@exercise.check(ranks=2, deadline=10)
def how_it_runs(evaluate_exactly, device):
    """The model runs in eval mode, without a graph, and on the share of its rank only"""
    t = _given(evaluate_exactly, device, 8, 2, model=_DEEP)
    wanted, runs = _oracle(t), []

    def note(model, given, logits):
        runs.append((any(m.training for m in model.modules()), logits.requires_grad, len(logits)))

    t.model.register_forward_hook(note)
    found = t.call(_CALL)
    training, graph = any(run[0] for run in runs), any(run[1] for run in runs)
    examples = sum(run[2] for run in runs)
    evidence.record("runs", (training, graph, examples > 4))
    expect.true(
        not training,
        "the model ran with a module in training mode",
        "expected: all of its modules are in eval mode while it runs",
    )
    expect.true(
        not graph,
        "the logits of the model hang in a graph",
        "expected: none is recorded, for no backward will come",
    )
    expect.true(
        examples <= 4,
        f"this rank has run the model on {examples} examples, and its loader reads 4 of 8",
        "expected: no more than these",
    )
    _expect_result(t, found, wanted)


_WITH_STATE = """model[1].eval()
model[4].weight.grad = torch.ones_like(model[4].weight)"""
_NORMS = """norms = nn.BatchNorm1d(3{on}), nn.BatchNorm1d(3{on})
model = nn.Sequential(nn.Linear(3, 3{on}), norms[0], nn.Dropout(), norms[1], nn.Linear(3, 3{on}))"""


@exercise.check(ranks=2, deadline=10)
def left_alone(evaluate_exactly, device):
    """Afterwards every module is in the mode in which it was, and nothing else has changed"""
    t = _given(evaluate_exactly, device, 8, 2, model=_NORMS, more=_WITH_STATE)
    modes = {name or "model": module.training for name, module in t.model.named_modules()}
    before = {name: value.detach().clone() for name, value in t.model.state_dict().items()}
    t.call(_CALL)
    for name, module in t.model.named_modules():
        expect.equal(module.training, modes[name or "model"], what=_mode_of(name))
    for name, value in t.model.state_dict().items():
        expect.unchanged(value, before[name], what=f"`model`'s `{name}`")
    for name, parameter in t.model.named_parameters():
        expect.equal(parameter.requires_grad, True, what=f"`requires_grad` of `model`'s `{name}`")
        wanted = torch.ones_like(parameter) if name == "4.weight" else None
        expect.equal(parameter.grad, wanted, what=f"the `.grad` of `model`'s `{name}`")
    evidence.record("grad mode", torch.is_grad_enabled())
    expect.true(
        torch.is_grad_enabled(),
        "after the call torch records no graphs any more",
        "expected: `torch.is_grad_enabled()` is True again",
    )


def _mode_of(name):
    return f"`model[{name}].training`" if name else "`model.training`"


@exercise.check(ranks=2, deadline=10)
def traffic(evaluate_exactly, device):
    """What is sent does not grow with the data set"""
    calls, sent = [], []
    for n in (8, 240):
        t = _given(evaluate_exactly, device, n, 3)
        with measure.traffic() as seen:
            found = t.call(_CALL)
        calls.append(len(seen.calls))
        sent.append(sum(call.bytes for call in seen.calls))
    evidence.record("grows", (calls[1] > 4, calls[1] > calls[0], sent[1] - sent[0] > 64))
    expect.true(
        calls[1] <= 4,
        f"this rank takes part in {calls[0]} calls for 2 batches, and in {calls[1]} for 40",
        "expected: at most 4 for any number",
    )
    # What is pickled may be a few bytes longer where a number is.
    expect.true(
        sent[1] - sent[0] <= 64,
        f"this rank sends {sent[0]:,} bytes for a data set of 8 examples, and {sent[1]:,} for one of 240",
        "expected: as many for any data set",
    )
    _expect_result(t, found, _oracle(t))


@exercise.check(ranks=3, deadline=10)
def only_repeated(evaluate_exactly, device):
    """Ranks that read nothing but repeated examples"""
    _expect_right(_given(evaluate_exactly, device, 2, 2))
    _expect_right(_given(evaluate_exactly, device, 1, 4))


# --- the mistakes -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _evaluating(model, grad_mode=torch.no_grad):
    was = [(module, module.training) for module in model.modules()]
    model.eval()
    with grad_mode():
        yield
    for module, training in was:
        module.training = training


def _own(loader):
    """How many examples of this rank are not repeated ones."""
    return len(range(loader.sampler.rank, len(loader.dataset), loader.sampler.num_replicas))


def _scores(logits, y):
    """For each example whether it is right, and its loss."""
    return torch.stack(((logits.argmax(1) == y).double(), F.cross_entropy(logits, y, reduction="none")), 1)


def _batches(model, loader, left=None):
    """The scores of each batch, of the first `left` examples only."""
    found, left = [], _own(loader) if left is None else left
    for x, y in loader:
        found.append(_scores(model(x), y)[:left])
        left -= len(found[-1])
    return found


def _rows(model, loader, left=None, grad_mode=torch.no_grad):
    with _evaluating(model, grad_mode):
        return torch.cat(_batches(model, loader, left))


def _added(x):
    """Over all ranks."""
    x = x.clone()
    dist.all_reduce(x)
    return x


def _gathered(x):
    found = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(found, x.contiguous())
    return found


def _pair(x):
    return tuple(x.tolist())


@exercise.mistake
def counts_the_repeated(model, loader):
    """The examples that the sampler repeats count twice. All that the ranks have read is more than the data
    set: which of it was repeated follows from its place, the rank and the length of the data set."""
    rows = _rows(model, loader, len(loader.sampler))
    return _pair(_added(rows.sum(0)) / _added(torch.tensor(float(len(rows)), device=rows.device)))


@counts_the_repeated.variant
def means_over_all_that_was_read(model, loader):
    right, loss, n, was = 0, 0.0, 0, [m.training for m in model.modules()]
    for m in model.modules():
        m.training = False
    for x, y in loader:
        with torch.no_grad():
            logits = model(x)
        right, n = right + (logits.max(dim=1).indices == y).sum(), n + y.numel()
        loss = loss + F.cross_entropy(logits, y) * len(y)
    for m, mode in zip(model.modules(), was, strict=True):
        m.training = mode
    means = torch.stack((right / n, loss / n))
    dist.all_reduce(means)
    return tuple((means / dist.get_world_size()).tolist())


@exercise.mistake
def divides_all_by_the_length(model, loader):
    """Your sums hold the repeated examples too, and you divide them by `len(loader.dataset)`, in which these
    do not count. Leave them out of the sums: which they are follows from their place, the rank and that
    length."""
    rows = _rows(model, loader, len(loader.sampler))
    return _pair(_added(rows.sum(0)) / len(loader.dataset))


@exercise.mistake
def mean_of_rank_means(model, loader):
    """You average the means of the ranks. With what is repeated left out they have not equally many examples,
    and a rank with fewer weighs as much as one with more. Add up the sums, and divide once."""
    return _pair(_added(_rows(model, loader).mean(0)) / dist.get_world_size())


@mean_of_rank_means.variant
def gathers_rank_means(model, loader):
    logits, targets, left = [], [], _own(loader)
    with _evaluating(model):
        for x, y in loader:
            logits.append(model(x))
            targets.append(y)
    logits, y = torch.cat(logits)[:left], torch.cat(targets)[:left]
    means = torch.stack(((logits.argmax(-1) == y).float().mean(), F.cross_entropy(logits, y)))
    return _pair(torch.stack(_gathered(means)).mean(0))


@mean_of_rank_means.form
def zero_for_a_rank_without_any(model, loader):
    return _pair(_added(_rows(model, loader).sum(0) / max(_own(loader), 1)) / dist.get_world_size())


@exercise.mistake
def mean_of_batch_means(model, loader):
    """You average the means of batches. The last batch is smaller than the others and weighs as much: its
    examples count more than theirs."""
    with _evaluating(model):
        means = [rows.mean(0) for rows in _batches(model, loader, len(loader.sampler))]
    return _pair(_added(torch.stack(means).mean(0)) / dist.get_world_size())


@mean_of_batch_means.variant
def divides_by_the_number_of_batches(model, loader):
    sums, was = [0.0, 0.0], {m: m.training for m in model.modules()}
    model.train(False)
    with torch.inference_mode():
        for x, y in loader:
            logits = model(x)
            sums[0] += (logits.argmax(1) == y).float().mean().item()
            sums[1] += F.cross_entropy(logits, y).item()
    for m in was:
        m.training = was[m]
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, [part / len(loader) for part in sums])
    return sum(f[0] for f in found) / len(found), sum(f[1] for f in found) / len(found)


@mean_of_batch_means.form
def loss_from_cut_batch_means(model, loader):
    with _evaluating(model):
        batches = _batches(model, loader)
    rows, means = torch.cat(batches)[:, 0], [batch[:, 1].mean() for batch in batches if len(batch)]
    loss = _added(sum(means, torch.zeros_like(rows.sum())) / max(len(means), 1)) / dist.get_world_size()
    return _pair(torch.stack((_added(rows.sum()) / len(loader.dataset), loss)))


@mean_of_batch_means.form
def loss_over_the_length_of_the_loader(model, loader):
    with _evaluating(model):
        batches = _batches(model, loader)
    right = torch.cat(batches)[:, 0].sum()
    loss = sum((batch[:, 1].mean() for batch in batches if len(batch)), torch.zeros_like(right))
    sums = torch.stack((right / len(loader.dataset), loss / len(loader) / dist.get_world_size()))
    return _pair(_added(sums))


@mean_of_batch_means.form
def means_of_what_is_left_of_batches(model, loader):
    with _evaluating(model):
        batches = _batches(model, loader)
    means = torch.stack([rows.mean(0) if len(rows) else rows.sum(0) for rows in batches])
    return _pair(_added(means.mean(0)) / dist.get_world_size())


@mean_of_batch_means.form
def nan_of_what_is_left_of_batches(model, loader):
    with _evaluating(model):
        means = torch.stack([rows.mean(0) for rows in _batches(model, loader)])
    return _pair(_added(means.mean(0)) / dist.get_world_size())


@exercise.mistake
def divides_by_its_own_count(model, loader):
    """The sums are those of all ranks, and the number by which you divide is that of this rank alone. All
    examples together are `len(loader.dataset)`."""
    rows = _rows(model, loader)
    return _pair(_added(rows.sum(0)) / len(rows))


@divides_by_its_own_count.form
def multiplies_its_own_count(model, loader):
    rows = _rows(model, loader)
    return _pair(_added(rows.sum(0)) / (len(rows) * dist.get_world_size()))


@exercise.mistake
def its_own_share_only(model, loader):
    """Each rank returns the figures of its own share. To reach those of the data set the ranks have to add up
    what they found."""
    return _pair(_rows(model, loader, len(loader.sampler)).mean(0))


@its_own_share_only.form
def its_own_share_cut(model, loader):
    return _pair(_rows(model, loader).mean(0))


@exercise.mistake
def right_on_rank_0(model, loader):
    """Only rank 0 has the result. `reduce` leaves the sum on one rank, `all_reduce` on all of them."""
    sums = _rows(model, loader).sum(0)
    dist.reduce(sums, 0)
    return _pair(sums / len(loader.dataset))


@exercise.mistake
def nan_of_no_examples(model, loader):
    """The mean of no examples is nan, and nan times 0 is nan, which reaches all ranks. Where nothing is left
    of a batch, `reduction='sum'` gives 0."""
    sums, left = 0, _own(loader)
    with _evaluating(model):
        for x, y in loader:
            logits, y = model(x)[:left], y[:left]
            left -= len(y)
            right = (logits.argmax(1) == y).sum()
            sums = sums + torch.stack((right, F.cross_entropy(logits, y) * len(y)))
    return _pair(_added(sums) / len(loader.dataset))


@nan_of_no_examples.form
def nan_of_an_empty_share(model, loader):
    rows = _rows(model, loader)
    sums = torch.stack((rows[:, 0].sum(), rows[:, 1].mean() * len(rows)))
    return _pair(_added(sums) / len(loader.dataset))


@exercise.mistake
def cuts_the_wrong_ranks(model, loader):
    """You leave out examples that are not repeated. The repeated ones stand at the end of the list that is
    shared, and the ranks take turns in it: each of the last ranks reads one of them, as its last."""
    repeated = len(loader.sampler) * loader.sampler.num_replicas - len(loader.dataset)
    rows = _rows(model, loader, len(loader.sampler) - (loader.sampler.rank < repeated))
    return _pair(_added(rows.sum(0)) / len(loader.dataset))


@cuts_the_wrong_ranks.form
def cuts_the_last_rank_alone(model, loader):
    repeated = len(loader.sampler) * loader.sampler.num_replicas - len(loader.dataset)
    last = loader.sampler.rank == loader.sampler.num_replicas - 1
    rows = _rows(model, loader, max(len(loader.sampler) - repeated * last, 0))
    return _pair(_added(rows.sum(0)) / len(loader.dataset))


@cuts_the_wrong_ranks.form
def cuts_every_rank(model, loader):
    repeated = len(loader.sampler) * loader.sampler.num_replicas - len(loader.dataset)
    rows = _rows(model, loader, len(loader.sampler) - (repeated > 0))
    return _pair(_added(rows.sum(0)) / _added(torch.tensor(len(rows), device=rows.device)))


@exercise.mistake
def cuts_what_was_gathered(model, loader):
    """You join the shares one behind the other and cut the end off. There the last share ends, not the list
    that was shared: the examples of the ranks take turns in it."""
    rows = torch.cat(_gathered(_rows(model, loader, len(loader.sampler))))
    return _pair(rows[: len(loader.dataset)].mean(0))


@exercise.mistake
def gathers_every_example(model, loader):
    """Your result is right, but every rank sends something for each of its examples to all others. Two sums
    are all that they need from it."""
    rows = torch.stack(_gathered(_rows(model, loader, len(loader.sampler))), 1)
    return _pair(rows.flatten(0, 1)[: len(loader.dataset)].mean(0))


@gathers_every_example.variant
def gathers_lists(model, loader):
    mine = _rows(model, loader).tolist()
    shares = [None] * loader.sampler.num_replicas
    dist.all_gather_object(shares, mine)
    rows = [row for share in shares for row in share]
    return sum(row[0] for row in rows) / len(rows), sum(row[1] for row in rows) / len(rows)


@exercise.mistake
def reduces_every_batch(model, loader):
    """Your result is right, but the ranks wait for each other in every batch. Sums can be added up on the
    rank first: one reduction at the end does for all batches."""
    with _evaluating(model):
        total = sum(_added(rows.sum(0)) for rows in _batches(model, loader))
    return _pair(total / len(loader.dataset))


@reduces_every_batch.variant
def two_reductions_a_batch(model, loader):
    right = loss = 0.0
    left = _own(loader)
    with _evaluating(model):
        for x, y in loader:
            logits, y = model(x)[:left], y[:left]
            left = left - len(y)
            hits, losses = (logits.argmax(1) == y).sum(), F.cross_entropy(logits, y, reduction="sum")
            dist.all_reduce(hits)
            dist.all_reduce(losses)
            right, loss = right + hits.item(), loss + losses.item()
    return right / len(loader.dataset), loss / len(loader.dataset)


@exercise.mistake
def evaluates_everything(model, loader):
    """Your result is right, but every rank has run the model on the whole data set. With more ranks nothing
    gets faster."""
    whole = DataLoader(loader.dataset, loader.batch_size, collate_fn=loader.collate_fn)
    return _pair(_rows(model, whole, len(loader.dataset)).mean(0))


@evaluates_everything.variant
def one_batch_of_everything(model, loader):
    x, y = (torch.stack(parts) for parts in zip(*loader.dataset, strict=True))
    with _evaluating(model):
        logits = model(x)
        return (logits.argmax(1) == y).float().mean().item(), F.cross_entropy(logits, y).item()


@exercise.mistake
def leaves_without_examples(model, loader):
    """A rank of which all examples are repeated ones returns before the collective. The others wait in it for
    ever: every rank has to call it, also one that has nothing to add."""
    if _own(loader) == 0:
        return 0.0, 0.0
    return _pair(_added(_rows(model, loader).sum(0)) / len(loader.dataset))


@torch.no_grad
def _evaluated(model, loader):
    """A right answer that leaves the modes of the model to its caller."""
    return _pair(_added(torch.cat(_batches(model, loader)).sum(0)) / len(loader.dataset))


@exercise.mistake
def left_in_eval(model, loader):
    """You leave the model in eval mode. The training that goes on afterwards has no dropout, and BatchNorm
    learns no statistics any more."""
    model.eval()
    return _evaluated(model, loader)


@left_in_eval.variant
def switches_every_module_off(model, loader):
    for module in model.modules():
        module.training = False
    result = torch.inference_mode()(lambda: torch.cat(_batches(model, loader)).sum(0))()
    return _pair(_added(result.clone()) / len(loader.dataset))


@exercise.mistake
def trains_all_of_it(model, loader):
    """`model.train()` puts every module into training mode, also one that was in eval mode before: a frozen
    BatchNorm, say. Note the mode of each module, and put it back."""
    model.eval()
    result = _evaluated(model, loader)
    model.train()
    return result


@trains_all_of_it.variant
def puts_back_the_mode_of_the_model(model, loader):
    was = model.training
    model.train(False)
    with torch.no_grad():
        sums = sum(rows.sum(0) for rows in _batches(model, loader))
    model.train(was)
    return _pair(_added(sums) / len(loader.dataset))


@exercise.mistake
def never_in_eval(model, loader):
    """The model ran in the mode in which it came. In training mode dropout is on, and BatchNorm normalises
    with the batch and changes its running statistics: `no_grad` switches none of this off."""
    return _evaluated(model, loader)


@exercise.mistake
def with_a_graph(model, loader):
    """Eval mode does not stop autograd. Each forward records a graph and keeps what its backward would need.
    `torch.no_grad()` or `torch.inference_mode()` stops it."""
    rows = _rows(model, loader, grad_mode=contextlib.nullcontext)
    return _pair(_added(rows.detach().sum(0)) / len(loader.dataset))


@with_a_graph.variant
def takes_the_numbers_out(model, loader):
    was, right, loss, left = [m.training for m in model.modules()], 0, 0.0, _own(loader)
    model.eval()
    for x, y in loader:
        logits = model(x)[:left]
        right += int((logits.argmax(1) == y[:left]).sum())
        loss += float(F.cross_entropy(logits, y[:left], reduction="sum"))
        left -= len(logits)
    for m, mode in zip(model.modules(), was, strict=True):
        m.training = mode
    sums = torch.tensor([right, loss], dtype=torch.float64, device=y.device)
    return _pair(_added(sums) / len(loader.dataset))


@exercise.mistake
def grad_mode_left_off(model, loader):
    """`torch.set_grad_enabled(False)` stays in force after the function has returned. As a `with` block it
    ends by itself, as `no_grad` does."""
    torch.set_grad_enabled(False)
    rows = _rows(model, loader, grad_mode=contextlib.nullcontext)
    return _pair(_added(rows.sum(0)) / len(loader.dataset))
