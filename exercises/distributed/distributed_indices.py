"""The indices of one rank

In one epoch a data set of `length` items is shared among `num_replicas` ranks. Return the indices of the
items that `rank` reads, in their order, as a list of ints. They are those that
`torch.utils.data.DistributedSampler` gives this rank, with the same arguments and after `set_epoch(epoch)`.
This is its rule:

1. *The order*, the same on all ranks. With `shuffle=False` it is 0, 1, 2 up to `length - 1`. With
   `shuffle=True` it is `torch.randperm(length, generator=g)`, where `g` is a new `torch.Generator()` with the
   seed `seed + epoch`.
2. *A length that can be shared.* Where `length` is no multiple of `num_replicas`, the order is filled up to
   the next multiple with its own entries again, from its first one on, as many times over as it takes. With
   `drop_last=True` it is cut after the last multiple instead.
3. *The share.* Of what is now the order, rank `r` has entry `r` and then every `num_replicas`-th.

`length` may be smaller than `num_replicas`, and 0: then no rank has an index. No process group is needed.
torch's own random state stays as it is. Write it without a `DistributedSampler`, which is what your indices
are compared with.

`distributed_indices(10, 4, 3, shuffle=False)` → `[3, 7, 1]`
"""

import operator
import random
from unittest import mock

import numpy
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from course_utils import evidence, expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=15,
    hints=[
        "Three steps, one after another: an order of all items that every rank makes alike, then its length, "
        "then a share of it. Only in the last step does `rank` play a part.",
        "How long is the filled order? Each rank gets `length / num_replicas` entries, rounded up; with "
        "`drop_last` rounded down. What stands at place `length` of an order that begins again there?",
        "`torch.Generator` has a method `manual_seed`, which returns the generator. Entry `i` of an order "
        "that begins again behind its end is entry `i` modulo its length. The places of one rank are a "
        "`range` that begins at `rank`, with a step.",
    ],
)


@exercise.starter
def distributed_indices(
    length: int,
    num_replicas: int,
    rank: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    epoch: int = 0,
    drop_last: bool = False,
) -> list[int]:
    """The items that this rank reads in this epoch, in their order"""
    raise NotImplementedError


def _of_torch(length, num_replicas, rank, *, epoch=0, **options):
    sampler = DistributedSampler(range(length), num_replicas, rank, **options)
    sampler.set_epoch(epoch)
    return list(sampler)


def _call(length, num_replicas, rank, options):
    more = "".join(f", {name}={value}" for name, value in options.items())
    return f"distributed_indices({length}, {num_replicas}, {rank}{more})"


def _expect_shares(answer, length, num_replicas, **options):
    """The share of every rank, one after another."""
    for rank in range(num_replicas):
        t = expect.given("", distributed_indices=answer)
        found = t.call(_call(length, num_replicas, rank, options))
        expect.equal(found, _of_torch(length, num_replicas, rank, **options))


@exercise.check
def in_order(distributed_indices):
    """Without shuffling, a length that can be shared"""
    _expect_shares(distributed_indices, 12, 3, shuffle=False)
    _expect_shares(distributed_indices, 5, 1, shuffle=False)


@exercise.check
def filled_up(distributed_indices):
    """Every rank has as many, also where the length cannot be shared"""
    _expect_shares(distributed_indices, 10, 4, shuffle=False)
    _expect_shares(distributed_indices, 13, 3, shuffle=False, drop_last=False)
    _expect_shares(distributed_indices, 11, 4, shuffle=True, seed=8)


@exercise.check
def few_items(distributed_indices):
    """Fewer items than ranks, and none at all"""
    _expect_shares(distributed_indices, 3, 8, shuffle=False)
    _expect_shares(distributed_indices, 2, 7, shuffle=True, seed=5)
    _expect_shares(distributed_indices, 2, 3, shuffle=False, drop_last=True)
    _expect_shares(distributed_indices, 0, 2, shuffle=True)


@exercise.check
def cut(distributed_indices):
    """With `drop_last` what cannot be shared is left out"""
    _expect_shares(distributed_indices, 11, 4, shuffle=False, drop_last=True)
    _expect_shares(distributed_indices, 12, 4, shuffle=False, drop_last=True)
    _expect_shares(distributed_indices, 11, 3, shuffle=True, seed=2, drop_last=True)


@exercise.check
def shuffled(distributed_indices):
    """Shuffled, with the seed that is given"""
    _expect_shares(distributed_indices, 8, 2)
    _expect_shares(distributed_indices, 9, 3, shuffle=True, seed=7)


@exercise.check
def every_epoch(distributed_indices):
    """Another order in every epoch, the same on all ranks"""
    for epoch in range(3):
        _expect_shares(distributed_indices, 8, 2, seed=4, epoch=epoch)


@exercise.check
def on_its_own(distributed_indices):
    """Made without torch's random state and without a `DistributedSampler`"""
    options = {"seed": 3}
    wanted = _of_torch(9, 3, 1, **options)
    t = expect.given("", distributed_indices=distributed_indices)
    before = torch.get_rng_state()
    made_by = DistributedSampler.__iter__
    with mock.patch.object(DistributedSampler, "__iter__", autospec=True, side_effect=made_by) as asked:
        found = t.call(_call(9, 3, 1, options))
    evidence.record("asked a sampler", asked.called)
    expect.true(
        not asked.called,
        "a `DistributedSampler` was asked for its indices",
        "expected: they are made without one",
    )
    kept = torch.equal(torch.get_rng_state(), before)
    evidence.record("random state", (kept, torch.initial_seed()))
    expect.true(
        kept,
        "the call has changed torch's random state, from which the rest of the program draws",
        "expected: it is what it was; the order comes from a generator of its own",
    )
    expect.equal(found, wanted)


@exercise.check(ranks=3, deadline=10)
def on_ranks(distributed_indices, rank, world_size):
    """On three ranks: all together read every item"""
    t = expect.given("", distributed_indices=distributed_indices)
    found = t.call(_call(10, world_size, rank, {"epoch": 1}))
    shares = [None] * world_size
    dist.all_gather_object(shares, found)
    expect.true(
        isinstance(found, (list, tuple)), f"the result is {expect.show(found)}", "expected: a list of indices"
    )
    shares = [list(map(_number, share)) for share in shares]
    missing = sorted(set(range(10)).difference(*shares))
    evidence.record("missing", missing)
    expect.true(
        not missing,
        f"no rank reads item {missing and missing[0]}; the ranks read {shares}",
        "expected: together they read all items, 0 to 9",
    )


def _number(index):
    """The index as an int, also where it is a tensor without dimensions; None where it is no index."""
    try:
        return operator.index(index)
    except TypeError:
        return None


# --- the mistakes -----------------------------------------------------------------------------------------


def _drawn(length, seed):
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed)).tolist()


def _order(length, shuffle, seed, epoch):
    return _drawn(length, seed + epoch) if shuffle else list(range(length))


def _again(order, missing):
    return [order[i % len(order)] for i in range(missing)]


def _every(order, num_replicas, rank):
    return order[rank::num_replicas]


def _indices(
    length,
    num_replicas,
    rank,
    *,
    shuffle=True,
    seed=0,
    epoch=0,
    drop_last=False,
    order=_order,
    more=_again,
    share=_every,
):
    """A right answer with holes, each of which a mistake fills in its way: `more(order, missing)` are the
    entries with which the order is filled up."""
    items = order(length, shuffle, seed, epoch)
    if drop_last:
        items = items[: length // num_replicas * num_replicas]
    return share(items + more(items, -len(items) % num_replicas), num_replicas, rank)


@exercise.mistake
def epoch_ignored(length, num_replicas, rank, *, epoch=0, **options):
    """Every epoch has the same order: only `seed` goes into the generator. This is what happens in a training
    loop without `set_epoch`."""
    return _indices(length, num_replicas, rank, **options)


@epoch_ignored.variant
def seeds_with_the_seed(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    order = torch.arange(length)
    if shuffle:
        g = torch.Generator()
        g.manual_seed(seed)
        order = torch.randperm(length, generator=g)
    each = length // num_replicas if drop_last else -(-length // num_replicas)
    order = order.repeat(num_replicas)[: each * num_replicas]
    return order.reshape(each, num_replicas)[:, rank].tolist()


@exercise.mistake
def goes_on_drawing(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    """You draw one order after another from a generator with the seed `seed`, one for each epoch. Here the
    generator of an epoch is a new one, with the seed `seed + epoch`, so that no epoch depends on those before
    it."""
    g = torch.Generator().manual_seed(seed)
    for _ in range(epoch + 1):
        drawn = torch.randperm(length, generator=g).tolist()
    order = drawn if shuffle else list(range(length))
    return _indices(length, num_replicas, rank, drop_last=drop_last, order=lambda *_: order)


@exercise.mistake
def seed_ignored(length, num_replicas, rank, *, seed=0, **options):
    """`seed` plays no part in your order. Two runs with two seeds read the items in the same order."""
    return _indices(length, num_replicas, rank, **options)


@seed_ignored.form
def generator_without_a_seed(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    order = list(range(length))
    if shuffle:  # a new generator always begins with the same seed
        order = torch.randperm(length, generator=torch.Generator()).tolist()
    return _indices(length, num_replicas, rank, drop_last=drop_last, order=lambda *_: order)


@exercise.mistake
def seed_and_rank(length, num_replicas, rank, *, seed=0, **options):
    """Each rank shuffles in an order of its own: `rank` has gone into the seed. The shares of different
    orders overlap, and some items are read by nobody."""
    return _indices(length, num_replicas, rank, seed=seed + rank, **options)


@seed_and_rank.variant
def a_generator_for_each_rank(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    g = torch.Generator()
    g.manual_seed(seed + epoch + rank)
    order = torch.randperm(length, generator=g).tolist() if shuffle else [*range(length)]
    if drop_last:
        del order[length - length % num_replicas :]
    while len(order) % num_replicas:
        order.append(order[len(order) - length])
    return order[rank::num_replicas]


@exercise.mistake
def draws_without_a_generator(length, num_replicas, rank, *, shuffle=True, drop_last=False, **options):
    """Your order is drawn from torch's random state, which neither `seed` nor `epoch` sets. Every rank has a
    state of its own, and the orders of the ranks differ."""
    order = torch.randperm(length).tolist() if shuffle else list(range(length))
    return _indices(length, num_replicas, rank, drop_last=drop_last, order=lambda *_: order)


@draws_without_a_generator.variant
def draws_into_a_tensor(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    order = torch.randperm(length) if shuffle else torch.arange(length)
    total = (length + (0 if drop_last else num_replicas - 1)) // num_replicas * num_replicas
    return order[torch.arange(rank, total, num_replicas) % max(length, 1)].tolist()


@exercise.mistake
def seeds_the_program(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    """Your indices are right, and `torch.manual_seed` has set the random state of the whole program. All that
    draws from it afterwards, dropout and initialisation too, begins again in every epoch. A `torch.Generator`
    has a state of its own."""
    torch.manual_seed(seed + epoch)
    order = torch.randperm(length).tolist() if shuffle else list(range(length))
    return _indices(length, num_replicas, rank, drop_last=drop_last, order=lambda *_: order)


@seeds_the_program.variant
def seeds_the_default_generator(length, num_replicas, rank, *, seed=0, epoch=0, **options):
    def order(length, shuffle, *_):
        g = torch.default_generator.manual_seed(seed + epoch)
        return torch.randperm(length, generator=g).tolist() if shuffle else list(range(length))

    return _indices(length, num_replicas, rank, order=order, **options)


@exercise.mistake
def shuffled_by_python(length, num_replicas, rank, **options):
    """Your order is not that of `torch.randperm`. Python's `random`, numpy and sorted random numbers give
    other orders for the same seed."""

    def order(length, shuffle, seed, epoch):
        found = list(range(length))
        if shuffle:
            random.Random(seed + epoch).shuffle(found)
        return found

    return _indices(length, num_replicas, rank, order=order, **options)


@shuffled_by_python.form
def shuffled_by_numpy(length, num_replicas, rank, **options):
    def order(length, shuffle, seed, epoch):
        drawn = numpy.random.default_rng(seed + epoch).permutation(length)
        return drawn.tolist() if shuffle else list(range(length))

    return _indices(length, num_replicas, rank, order=order, **options)


@shuffled_by_python.form
def shuffled_by_sorting(length, num_replicas, rank, **options):
    def order(length, shuffle, seed, epoch):
        drawn = torch.rand(length, generator=torch.Generator().manual_seed(seed + epoch))
        return drawn.argsort().tolist() if shuffle else list(range(length))

    return _indices(length, num_replicas, rank, order=order, **options)


@exercise.mistake
def shuffles_its_share(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, **options):
    """You take the share first and shuffle it afterwards. Each rank then reads the same items in every epoch,
    only in another order."""
    found = _indices(length, num_replicas, rank, shuffle=False, **options)
    return [found[i] for i in _drawn(len(found), seed + epoch)] if shuffle else found


@exercise.mistake
def contiguous(length, num_replicas, rank, **options):
    """You give each rank one piece of the order, from one place to another. A rank has every
    `num_replicas`-th entry."""

    def piece(order, num_replicas, rank):
        each = len(order) // num_replicas
        return order[rank * each : (rank + 1) * each]

    return _indices(length, num_replicas, rank, share=piece, **options)


@contiguous.variant
def chunks_of_a_tensor(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    order = torch.tensor(_order(length, shuffle, seed, epoch), dtype=torch.int64)
    each = length // num_replicas if drop_last else -(-length // num_replicas)
    places = torch.arange(num_replicas * each).view(num_replicas, each)[rank] % max(1, length)
    return order[places].tolist()


@contiguous.form
def pieces_of_what_there_is(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    each = length // num_replicas if drop_last else -(-length // num_replicas)
    return _order(length, shuffle, seed, epoch)[rank * each : (rank + 1) * each]


@exercise.mistake
def not_filled_up(length, num_replicas, rank, **options):
    """The ranks have unequal shares, for nothing fills the order up. In training a rank with fewer batches
    leaves the others waiting for its gradients."""
    return _indices(length, num_replicas, rank, more=lambda *_: [], **options)


@not_filled_up.variant
def steps_through_what_there_is(
    length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False
):
    stop = length - length % num_replicas if drop_last else length
    order = torch.arange(length)
    if shuffle:
        order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch))
    return [int(order[place]) for place in range(rank, stop, num_replicas)]


@exercise.mistake
def always_cut(length, num_replicas, rank, *, drop_last=False, **options):
    """Your shares are equal because the rest is left out, also without `drop_last`. Some items are then read
    by no rank."""
    return _indices(length, num_replicas, rank, drop_last=True, **options)


@always_cut.variant
def rounds_down(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    order = torch.tensor(_order(length, shuffle, seed, epoch), dtype=torch.int64)
    each = length // num_replicas
    return order[: each * num_replicas].reshape(each, num_replicas)[:, rank].tolist()


@exercise.mistake
def never_cut(length, num_replicas, rank, *, drop_last=False, **options):
    """`drop_last` plays no part: the order is filled up in any case."""
    return _indices(length, num_replicas, rank, **options)


@exercise.mistake
def cut_before_shuffling(length, num_replicas, rank, *, drop_last=False, **options):
    """With `drop_last` you shuffle only as many items as can be shared. The last items are then left out in
    every epoch. Shuffled first and cut afterwards, it is others each time."""
    kept = length - length % num_replicas if drop_last else length
    return _indices(kept, num_replicas, rank, **options)


@exercise.mistake
def filled_before_shuffling(length, num_replicas, rank, *, drop_last=False, **options):
    """You fill the items up before you shuffle them: what is repeated is items 0, 1, 2 and on in every epoch.
    Shuffled first and brought to a length that can be shared afterwards, it is others each time."""

    def order(length, shuffle, seed, epoch):
        items = list(range(length))
        rest = length % num_replicas
        if drop_last:
            items = items[: length - rest]
        elif rest:
            items += _again(items, num_replicas - rest)
        return [items[i] for i in _order(len(items), shuffle, seed, epoch)]

    return _indices(length, num_replicas, rank, drop_last=drop_last, order=order, **options)


@filled_before_shuffling.form
def filled_before_shuffling_only(length, num_replicas, rank, *, drop_last=False, **options):
    alike = _indices if drop_last else filled_before_shuffling
    return alike(length, num_replicas, rank, drop_last=drop_last, **options)


@exercise.mistake
def filled_with_its_own(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    """A short share is filled up with an item of its own. It is the order that is filled up, before it is
    shared: with its first entries, which belong to other ranks."""
    order = _order(length, shuffle, seed, epoch)
    found = order[rank::num_replicas]
    if drop_last:
        return found[: length // num_replicas]
    each = -(-length // num_replicas)
    return found + found[: each - len(found)]


@filled_with_its_own.form
def filled_with_its_own_last(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    found = _order(length, shuffle, seed, epoch)[rank::num_replicas]
    if drop_last:
        return found[: length // num_replicas]
    each = -(-length // num_replicas)
    return found + found[-1:] * (each - len(found))


@exercise.mistake
def filled_with_the_end(length, num_replicas, rank, **options):
    """You fill the order up with entries from its end. It begins again with its first one."""
    return _indices(length, num_replicas, rank, more=lambda order, n: order[-1:] * n, **options)


@filled_with_the_end.form
def filled_with_the_last_ones(length, num_replicas, rank, **options):
    def more(order, missing):
        return _again(order[::-1], missing)[::-1]

    return _indices(length, num_replicas, rank, more=more, **options)


@exercise.mistake
def filled_with_the_first_items(length, num_replicas, rank, **options):
    """You fill up with the items 0, 1, 2 and on, so they are read twice in every epoch. With shuffling the
    first entries of the order are other items."""

    def more(order, missing):
        return [i % len(order) for i in range(missing)]

    return _indices(length, num_replicas, rank, more=more, **options)


@exercise.mistake
def filled_once(length, num_replicas, rank, **options):
    """You fill up with one slice of the order. Where more entries are missing than there are, a slice ends
    too soon, and some ranks get nothing: repeat the order as often as it takes."""
    return _indices(length, num_replicas, rank, more=lambda order, n: order[:n], **options)


@filled_once.variant
def chained_once(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    order = torch.tensor(_order(length, shuffle, seed, epoch), dtype=torch.int64)
    if drop_last:
        order = order[: length - length % num_replicas]
    elif length % num_replicas:
        order = torch.cat((order, order[: num_replicas - length % num_replicas]))
    return order[rank::num_replicas].tolist()


@exercise.mistake
def divides_by_the_length(length, num_replicas, rank, **options):
    """An empty data set makes you divide by zero. Nothing is missing there, and nothing needs to be
    repeated."""

    def more(order, missing):
        return (order * (1 + missing // len(order)))[:missing]

    return _indices(length, num_replicas, rank, more=more, **options)


@exercise.mistake
def filled_with_one_item(length, num_replicas, rank, **options):
    """You fill up with the first entry, again and again. After the first entry comes the second."""
    return _indices(length, num_replicas, rank, more=lambda order, n: order[:1] * n, **options)


@exercise.mistake
def fills_what_is_full(length, num_replicas, rank, *, drop_last=False, **options):
    """A length that can be shared is filled up as well, with one entry more for every rank:
    `num_replicas - length % num_replicas` is `num_replicas` there, not 0."""

    def more(order, missing):
        return [] if drop_last or not order else _again(order, missing or num_replicas)

    return _indices(length, num_replicas, rank, drop_last=drop_last, more=more, **options)


@exercise.mistake
def cuts_what_is_even(length, num_replicas, rank, *, drop_last=False, **options):
    """With `drop_last` every rank loses an index, also where nothing is left over. What is left out are
    `length % num_replicas` entries."""
    found = _indices(length, num_replicas, rank, drop_last=drop_last, **options)
    return found[:-1] if drop_last and length % num_replicas == 0 else found


@exercise.mistake
def list_of_tensors(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    """Your indices are tensors without dimensions. `list(x)` takes a tensor apart into tensors, `x.tolist()`
    into numbers."""

    def order(length, shuffle, seed, epoch):
        return [torch.tensor(i) for i in _drawn(length, seed + epoch)] if shuffle else list(range(length))

    options = {"shuffle": shuffle, "seed": seed, "epoch": epoch, "drop_last": drop_last}
    return _indices(length, num_replicas, rank, order=order, **options)


@list_of_tensors.form
def list_of_tensors_in_any_case(length, num_replicas, rank, **options):
    return list(torch.tensor(_indices(length, num_replicas, rank, **options), dtype=torch.int64))


@exercise.mistake
def asks_the_sampler(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    """You ask a `DistributedSampler`. Its rule is what is to be written here: an order, a length, a share."""
    sampler = DistributedSampler(range(length), num_replicas, rank, shuffle, seed, drop_last)
    sampler.set_epoch(epoch)
    return list(sampler)
