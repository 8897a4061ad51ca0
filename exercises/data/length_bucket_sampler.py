"""Batches of similar lengths

Write a batch sampler: iterating over it gives lists of indices into `lengths`. In each epoch it

- shuffles all indices and cuts them into pools of `pool * batch_size`,
- sorts each pool by length and cuts it into batches of `batch_size`,
- gives the batches of all pools in shuffled order. Every index comes once; one batch may be shorter.

`set_epoch(epoch)` says which shuffle is next; it starts with epoch 0. The same `seed` and epoch give the
same batches; another seed, or another epoch, gives others. Global generators play no part and stay as they
are. `len(sampler)` is the number of batches.

`list(LengthBucketSampler([3, 9, 4, 8], batch_size=2, pool=2, seed=0))` → for example `[[1, 3], [0, 2]]`
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import numbers, saved_runs

exercise = Exercise(
    minutes=15,
    hints=[
        "Three steps in a row: shuffle all indices, sort inside each pool, shuffle the finished batches.",
        "A `torch.Generator` of your own, seeded from the seed and the epoch, can be handed to "
        "`torch.randperm`.",
        "Sort with the length as the key. Collect the batches of all pools in one list, and shuffle that "
        "list as a whole at the end.",
    ],
)


@exercise.starter
class LengthBucketSampler:
    """Lists of indices whose lengths are similar"""

    def __init__(
        self, lengths: Sequence[int], batch_size: int, pool: int, seed: int
    ) -> None:
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[list[int]]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


_SETUP = """import torch
lengths = torch.randint(1, 200, ({},), generator=torch.Generator().manual_seed(1)).tolist()
sampler = LengthBucketSampler(lengths, batch_size=8, pool={}, seed={})"""


def _given(LengthBucketSampler, n=1003, pool=20, seed=3):
    return expect.given(_SETUP.format(n, pool, seed), LengthBucketSampler=LengthBucketSampler)


def _padding(batches, lengths):
    """The share of a batch that is padding, over all batches."""
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    return 1 - sum(lengths) / padded


def _cut(order):
    return [order[i : i + 8] for i in range(0, len(order), 8)]


@exercise.check(cases={f"{n} lengths": n for n in (1003, 1000, 5)})
def every_index_once(LengthBucketSampler, n):
    """Every index comes once, in full batches and at most one shorter one

    A loader takes each list as one batch, and asks nobody for an index that is missing. A pool of a multiple
    of `batch_size` is cut without a rest; the last pool may be smaller.
    """
    t = _given(LengthBucketSampler, n)
    batches = t.call("list(sampler)")
    for batch in batches:
        told = f"a batch is {expect.show(batch)}, expected a list of indices"
        expect.true(isinstance(batch, (list, tuple)), told)
    came = Counter(itertools.chain(*batches))
    wrong = {i: came[i] for i in {*range(n), *came} if came[i] != (i in range(n))}
    first = min(wrong, default=0)
    told = f"of {n} indices {len(wrong)} don't come once: {first} comes {came[first]} times"
    expect.true(not wrong, told, "expected: each comes once")
    short = [len(batch) for batch in batches if len(batch) != 8]
    expect.equal(short, [n % 8] if n % 8 else [], what="the sizes of batches that have not 8")
    expect.equal(t.call("len(sampler)"), len(batches), what="`len(sampler)`")


@exercise.check
def little_padding(LengthBucketSampler):
    """Most of the padding is gone

    A batch is as wide as its longest sample. Sorting all of these lengths leaves little padding. Sorting
    pools of 20 batches comes close to that, and shuffled lengths are far from it.
    """
    t = _given(LengthBucketSampler)
    share = _padding(t.call("list(sampler)"), t.lengths)
    least = _padding(_cut(sorted(range(1003), key=t.lengths.__getitem__)), t.lengths)
    order = torch.randperm(1003, generator=torch.Generator().manual_seed(2)).tolist()
    shuffled = _padding(_cut(order), t.lengths)
    most = least + 0.2 * (shuffled - least)
    said = f"{share:.0%} of the batches is padding (all sorted: {least:.0%}, only shuffled: {shuffled:.0%})"
    expect.true(share < most, said, f"expected: less than {most:.0%}")


@exercise.check
def pools(LengthBucketSampler):
    """Who shares a batch changes from epoch to epoch

    A shuffle that is seeded alike in each epoch gives the same batches in each. With everything sorted, a
    sample meets its neighbours in length each time. Sorted inside pools of shuffled samples, most meet others
    next time.
    """
    with Rows() as rows:
        for seed in (3, 0):
            with rows.of(f"`seed={seed}`"):
                t = _given(LengthBucketSampler, seed=seed)
                epochs = [{frozenset(batch) for batch in _order(t, epoch)} for epoch in (0, 1, 2)]
                for a, b in itertools.combinations(range(3), 2):
                    same = len(epochs[a] & epochs[b])
                    said = f"{same} batches of epoch {b} had the same members in epoch {a}"
                    expect.true(same <= 5, said, "expected: hardly any")
    t = _given(LengthBucketSampler, n=640, pool=2)
    share = _padding(t.call("list(sampler)"), t.lengths)
    expect.true(0.15 < share < 0.4, f"with pools of 2 batches {share:.0%} is padding", "expected: 15 to 40%")


@exercise.check
def batches_are_shuffled(LengthBucketSampler):
    """The batches come in shuffled order

    A sorted pool is cut into batches from short to long. In this order each pool ends on its longest. Where
    only the batches of one pool are shuffled, its samples still come one after the other, pool by pool. The
    shorter batch takes part as well.
    """
    t = _given(LengthBucketSampler, n=640, pool=2)
    came = [sorted(t.lengths[i] for i in batch) for batch in t.call("list(sampler)")]
    pairs = zip(came[::2], came[1::2], strict=False)
    apart = sum(a[-1] <= b[0] or b[-1] <= a[0] for a, b in pairs)
    said = f"in {apart} of 40 pairs of batches one is all shorter than the other: a pool, cut in two"
    expect.true(apart <= 32, said, "expected: in few, for the batches of all pools are shuffled together")
    t = _given(LengthBucketSampler)
    short = {[len(batch) == 8 for batch in _order(t, epoch)].index(False) for epoch in range(5)}
    said = f"in each of five epochs the shorter batch is number {min(short)} of 126, counted from 0"
    expect.true(len(short) > 1, said, "expected: it comes anywhere")


def _order(t, epoch):
    t.run(f"sampler.set_epoch({epoch})")
    return t.call("list(sampler)")


@exercise.check
def repeatable(LengthBucketSampler):
    """The seed and the epoch decide, and nothing else

    With several ranks each must come to the same batches by itself; `hash` of a text may differ between them.
    The state of a global generator depends on what else has drawn from it, and who draws from it changes it.
    """
    t = _given(LengthBucketSampler)
    zero = t.call("list(sampler)")
    said = "iterating again, still in epoch 0, gives other batches"
    expect.true(t.call("list(sampler)") == zero, said, "expected: the same")
    again = _order(t, 0)
    said = "after `set_epoch(0)` the batches are others than in a new sampler's first epoch"
    expect.true(again == zero, said, "expected: the same, both are epoch 0")
    first = _order(t, 4)
    generators = saved_runs.stir()
    with numbers.another_process():
        second = _order(_given(LengthBucketSampler), 4)
    said = "a second sampler with these arguments, as in another process, gives other batches in epoch 4"
    expect.true(second == first, said, "expected: the same")
    moved = saved_runs.moved(generators)
    expect.equal(moved, [], what="the list of global generators that have drawn or were seeded")
    t = _given(LengthBucketSampler, seed=9)
    for epoch, batches in ((4, first), (0, zero)):
        said = f"with seeds 3 and 9 the batches of epoch {epoch} are the same"
        expect.true(_order(t, epoch) != batches, said, "expected: others")
