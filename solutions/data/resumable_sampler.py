"""The state is how many indices the loop has used. Divided by n, that is the epoch and the place in it. The
order follows from the seed and the epoch, so it is drawn again, with a generator of its own.

Iterating changes nothing, because a loader with workers iterates ahead of the loop. `advance` does.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler


class ResumableSampler(Sampler):
    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = n, seed
        self.total = 0  # indices that the loop has used, over all epochs

    def advance(self, count: int) -> None:
        self.total += count

    def __iter__(self) -> Iterator[int]:
        epoch, used = divmod(self.total, self.n)
        generator = torch.Generator().manual_seed(self.seed + epoch)
        return iter(torch.randperm(self.n, generator=generator).tolist()[used:])

    def __len__(self) -> int:
        return self.n - self.total % self.n

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


# Other right answers

import random

from course_utils.exercise import Edit, Wrong


class DropsWhatIsOver(ResumableSampler):
    def advance(self, count):
        self.total = min(self.total + count, self.total + len(self))

    def __iter__(self):
        epoch, used = divmod(self.total, self.n)
        order = list(range(self.n))
        random.Random(f"{self.seed}/{epoch}").shuffle(order)
        yield from order[used:]


class ByTensor(ResumableSampler):
    def state_dict(self):
        return {"total": torch.tensor(self.total)}

    def load_state_dict(self, state):
        self.total = state["total"].item()


also_right = [DropsWhatIsOver, ByTensor]


# Mistakes


class CountsWhatItGives(ResumableSampler):
    given = 0

    def __iter__(self):
        for i in super().__iter__():
            self.given += 1
            yield i

    def state_dict(self):
        return {"total": self.given}


class KeepsTheOrder(ResumableSampler):
    def state_dict(self):
        return {"total": self.total, "rest": list(self)}


class SeedsPython(ResumableSampler):
    def __iter__(self):
        epoch, used = divmod(self.total, self.n)
        random.seed(f"{self.seed}/{epoch}")
        return iter(random.sample(range(self.n), self.n)[used:])


mistakes = [
    Edit("stays at the end", "self.n - self.total % self.n", "self.n - self.total", told_by="next_epoch"),
    Edit("same every epoch", "self.seed + epoch", "self.seed", told_by="shuffles"),
    Edit("from the start", ".tolist()[used:]", ".tolist()", told_by="gives_the_rest"),
    Wrong(CountsWhatItGives, told_by="iterating_uses_nothing"),
    Edit("forgets the epoch", '{"total": self.total}', '{"total": self.total % self.n}', told_by="goes_on"),
    Wrong(KeepsTheOrder, told_by="small_state"),
    Edit("salted", "self.seed + epoch", 'hash(f"{self.seed} {epoch}")', told_by="goes_on"),
    Wrong(SeedsPython, told_by="own_generator"),
]
equivalent = {
    "line 18: `self.seed + epoch` -> `self.seed - epoch`": "any number of the two will do",
    "line 19: `torch.randperm(self.n, generator=generator).tolist()` -> `torch.randperm(self.n, "
    "generator=generator)`": "a tensor of one number is an index too",
}
not_tried = {
    "hard numbers": "indices are whole numbers",
    "dtypes": "indices are Python's numbers",
    "left alone": "of the generators it is checked; a state is loaded twice",
}
