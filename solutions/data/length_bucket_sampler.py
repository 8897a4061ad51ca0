"""The first shuffle decides who is in a pool with whom, and it's another one in each epoch. The sort inside a
pool puts similar lengths into one batch. The last shuffle takes the order away that the sort has made.

A generator of its own makes the batches follow from the seed and the epoch alone.
"""

from collections.abc import Iterator, Sequence

import torch


class LengthBucketSampler:
    def __init__(
        self, lengths: Sequence[int], batch_size: int, pool: int, seed: int
    ) -> None:
        self.lengths, self.batch_size = lengths, batch_size
        self.pool, self.seed, self.epoch = pool, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        shuffled = torch.randperm(len(self.lengths), generator=generator).tolist()
        size, batches = self.pool * self.batch_size, []
        for start in range(0, len(shuffled), size):
            pool = sorted(shuffled[start : start + size], key=self.lengths.__getitem__)
            for i in range(0, len(pool), self.batch_size):
                batches.append(pool[i : i + self.batch_size])
        for i in torch.randperm(len(batches), generator=generator).tolist():
            yield batches[i]

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size)


# Other right answers

import random

from course_utils.exercise import Edit, Wrong


class ByRandom(LengthBucketSampler):
    def __iter__(self):
        own = random.Random(f"{self.seed} {self.epoch}")
        order = list(range(len(self.lengths)))
        own.shuffle(order)
        batches = []
        while order:
            pool, order = order[: self.pool * self.batch_size], order[self.pool * self.batch_size :]
            pool.sort(key=lambda i: self.lengths[i], reverse=True)
            while pool:
                batches.append(pool[: self.batch_size])
                del pool[: self.batch_size]
        own.shuffle(batches)
        return iter(batches)


class BySplit(LengthBucketSampler):
    def __iter__(self):
        generator = torch.Generator()
        generator.manual_seed(hash((self.seed, self.epoch)))
        lengths = torch.as_tensor(self.lengths)
        batches = []
        for pool in torch.randperm(len(lengths), generator=generator).split(self.pool * self.batch_size):
            batches += pool[lengths[pool].argsort()].split(self.batch_size)
        return (batches[i].tolist() for i in torch.randperm(len(batches), generator=generator))


also_right = [ByRandom, BySplit]


class GoesOn(LengthBucketSampler):
    def __iter__(self):
        yield from list(super().__iter__())
        self.epoch += 1


class PoolByPool(LengthBucketSampler):
    def __iter__(self):
        own = random.Random(self.seed + self.epoch)
        order = own.sample(range(len(self.lengths)), len(self.lengths))
        for start in range(0, len(order), size := self.pool * self.batch_size):
            pool = sorted(order[start : start + size], key=self.lengths.__getitem__)
            cuts = range(0, len(pool), self.batch_size)
            yield from (pool[i : i + self.batch_size] for i in own.sample(cuts, len(cuts)))


mistakes = [
    Wrong(GoesOn, told_by="repeatable"),
    Wrong(PoolByPool, told_by="batches_are_shuffled"),
    Edit(
        "drops the last",
        "for i in range(0, len(pool), self",
        "for i in range(0, len(pool) - len(pool) % self.batch_size, self",
        told_by="every_index_once",
    ),
    Edit("no sort", ", key=self.lengths.__getitem__)", ", key=lambda i: 0)", told_by="little_padding"),
    Edit("one pool", "size, batches = self.pool * self.batch_size", "size, batches = 10**9", told_by="pools"),
    Edit("global state", "(len(batches), generator=generator)", "(len(batches))", told_by="repeatable"),
    Edit("seed 0 never changes", "self.seed + self.epoch", "self.seed * self.epoch", told_by="pools"),
    Edit("salted", "self.seed + self.epoch", 'hash(f"{self.seed} {self.epoch}")', told_by="repeatable"),
]
equivalent = {
    "line 17: `self.seed + self.epoch` -> `self.seed - self.epoch`": "any number of the two will do",
    "line 24: `torch.randperm(len(batches), generator=generator).tolist()` -> "
    "`torch.randperm(len(batches), generator=generator)`": "a tensor of one integer is an index too",
}
not_tried = {
    "hard numbers": "lengths are whole numbers",
    "dtypes": "lengths are whole numbers",
    "left alone": "a sorted `lengths` shows in the padding; of the generators it is checked",
}
