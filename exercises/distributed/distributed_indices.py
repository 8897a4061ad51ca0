"""The indices of one rank

`length` items are shared among `num_replicas` ranks. Return the indices that `rank` reads in an epoch, as a
list or tuple of integers: those that `DistributedSampler` gives it with the same arguments, after
`set_epoch(epoch)`.

1. The order, the same on all ranks: 0, 1, 2, …, or with `shuffle` `torch.randperm(length, generator=g)`; `g`
   is a `torch.Generator` of its own, seeded with `seed + epoch`.
2. If `length` isn't a multiple of `num_replicas`, fill the order up to the next one: begin again from its
   first entry, as often as it takes. With `drop_last` cut it instead.
3. Rank `r` reads entry `r` and every `num_replicas`-th after it.

Use no `DistributedSampler`.

`distributed_indices(10, 4, 3, shuffle=False)` → `[3, 7, 1]`
"""

from dataclasses import dataclass
from numbers import Integral
from typing import Any
from unittest import mock

import torch
from torch.utils.data import DistributedSampler

from course_utils.exercise import Exercise, Table, Trait, expect

exercise = Exercise(
    minutes=15,
    hints=[
        "There are three steps: an order of all items that every rank makes alike, its length, and a "
        "share of it. Only the last step needs `rank`.",
        "How long is the filled order? Each rank gets `length / num_replicas` entries, rounded up; with "
        "`drop_last` rounded down. What stands at place `length` of an order that begins again there?",
        "`torch.Generator` has a method `manual_seed`, which returns the generator. Entry `i` of an order "
        "that begins again at its end is entry `i` modulo its length. The places of one rank are a "
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


@dataclass(frozen=True)
class _Option:
    """An argument by name, which shows itself as it is written in a call."""

    name: str
    value: Any

    def __repr__(self):
        return f"{self.name}={self.value}"


def _of_torch(length, num_replicas, rank, epoch=0, **options):
    sampler = DistributedSampler(range(length), num_replicas, rank, **options)
    sampler.set_epoch(epoch)
    return list(sampler)


def _expect_shares(distributed_indices, sizes, *option_sets, traits=()):
    """The share of every rank, for each (length, number of ranks) and each set of options."""
    cases = [
        ((*size, rank, *(_Option(*option) for option in options.items())), _of_torch(*size, rank, **options))
        for size in sizes
        for rank in range(size[1])
        for options in option_sets
    ]

    def answer(length, num_replicas, rank, *options):
        return distributed_indices(length, num_replicas, rank, **{o.name: o.value for o in options})

    Table("distributed_indices", cases, traits).compare(
        answer, _judge, simplest=lambda arguments: arguments[:3]
    )


def _judge(came, wanted):
    if not isinstance(came, (list, tuple)) or not all(isinstance(index, Integral) for index in came):
        return "you give no list or tuple of integers"
    if list(came) == wanted:
        return ""
    if len(came) != len(wanted):
        return f"you give too {'few' if len(came) < len(wanted) else 'many'} indices"
    return (
        "you give the right items in another order"
        if sorted(came) == sorted(wanted)
        else "you give other items"
    )


_EVEN = [(n * each, n) for n in (1, 2, 3, 4) for each in (1, 2, 3)]
_UNEVEN = [(length, n) for n in (2, 3, 4, 7) for length in range(1, 14) if length % n]
_NO_MULTIPLE = Trait(
    "`length` is no multiple of `num_replicas`",
    lambda length, n, *rest: length % n > 0,
    "`length % num_replicas` says how much is left over.",
)
_IN_ORDER = {"shuffle": False}


@exercise.check
def shares(distributed_indices):
    """Without shuffling, a length that can be shared

    A rank has every `num_replicas`-th entry, not one piece of the order: so the first batches of all ranks
    together are the beginning of the order. What comes out is a list or tuple of Python's integers.
    """
    _expect_shares(distributed_indices, _EVEN, _IN_ORDER)


@exercise.check
def filled_up(distributed_indices):
    """Every rank has as many, also where the length cannot be shared

    A rank with fewer batches would leave the others waiting for its gradients. So the order goes on with its
    first entry, then the second, through all of it and again. What is filled in is shared like the rest.
    """
    traits = [
        _NO_MULTIPLE,
        Trait(
            "more entries are missing than there are",
            lambda length, n, *rest: -length % n > length,
            "A slice of the order ends where the order does: it may take several rounds.",
        ),
        Trait(
            "a repeated entry falls to this rank",
            lambda length, n, rank, *rest: rank >= length % n > 0,
            "What is repeated falls to the last ranks.",
        ),
    ]
    _expect_shares(distributed_indices, _EVEN + _UNEVEN, _IN_ORDER, traits=traits)


@exercise.check
def cut(distributed_indices):
    """With `drop_last` what cannot be shared is left out

    Each rank has `length // num_replicas` indices then. If nothing is left over, nothing is left out.
    """
    few = Trait("`length` is below `num_replicas`", lambda length, n, *rest: length < n, "No rank gets any.")
    options = {**_IN_ORDER, "drop_last": True}
    _expect_shares(distributed_indices, _EVEN + _UNEVEN, options, traits=[_NO_MULTIPLE, few])


@exercise.check
def shuffled(distributed_indices):
    """Shuffled by the seed that is given, and alike on all ranks

    The ranks send nothing to each other: they agree because each makes the same order from the same seed, and
    that is `seed + epoch`, with epoch 0 here, no other number. Shares of different orders can overlap, and
    leave items that nobody reads. It's the whole order that is shuffled, and then shared. Python's `random`,
    NumPy and sorted random numbers have other orders for the same seed.
    """
    not_first = Trait("`rank` is not 0", lambda length, n, rank, *rest: rank > 0, "All have the same order.")
    _expect_shares(distributed_indices, _EVEN, {}, {"shuffle": True, "seed": 7}, traits=[not_first])


@exercise.check
def every_epoch(distributed_indices):
    """Another order in every epoch

    The seed is `seed + epoch`. So you can make the order of an epoch without those before it: a run that is
    resumed in epoch 7 needs no random state of an earlier one.
    """
    _expect_shares(distributed_indices, _EVEN, {"epoch": 1}, {"seed": 4, "epoch": 2})


@exercise.check
def shuffled_first(distributed_indices):
    """Shuffled first, filled up or cut afterwards, and shared last

    What is filled in is the beginning of the shuffled order, not 0, 1, 2, … And if the order is shuffled
    last, the same items are repeated, left out, or read by one rank in every epoch.
    """
    _expect_shares(distributed_indices, _UNEVEN, {"seed": 3}, {"seed": 3, "drop_last": True})


@exercise.check
def on_its_own(distributed_indices):
    """Made without torch's random state and without a `DistributedSampler`

    `torch.manual_seed` sets the random state of the whole program: all that draws from it afterwards, dropout
    and initialisation too, would begin again in every epoch. A `torch.Generator` has a state of its own. And
    `DistributedSampler` is what you write here.
    """
    t, before = expect.given("", distributed_indices=distributed_indices), torch.get_rng_state()
    plain = DistributedSampler.__iter__
    with mock.patch.object(DistributedSampler, "__iter__", autospec=True, side_effect=plain) as asked:
        t.call("distributed_indices(9, 3, 1, seed=3)")
    kept = torch.equal(torch.get_rng_state(), before)
    expect.true(kept, "the call has changed torch's random state", "expected: it is what it was")
    expect.true(not asked.called, "a `DistributedSampler` was asked for its indices", "expected: none is")
