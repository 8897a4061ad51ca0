"""Right to the last example

All ranks evaluate a classifier together. Return accuracy and mean `F.cross_entropy` over the whole data set:
two floats, the same everywhere. `model` is in eval mode and stays as it is.

The `DistributedSampler` of `loader` deals out one list: all examples in some order, then the first ones
again, up to a multiple of the number of ranks. `loader.sampler.rank` is `r`, `loader.sampler.num_replicas` is
`n`; rank `r` reads places `r`, `r + n`, ….

- **Each example counts once.**
- A rank runs the model only on what its loader reads.
- It sends few numbers, in at most four collectives.

Rounded: `nn.Identity()`, `x = [[2., 0.], [2., 0.], [0., 2.]]`, `y = [0, 0, 0]` → `(0.6667, 0.7936)`
"""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import numbers, ranks

exercise = Exercise(
    minutes=20,
    hints=[
        "A mean of means is the mean only where all of them are of equally many examples. Sums can be added "
        "up, over batches and over ranks. By what is the sum to be divided?",
        "The repeated examples stand at the end of the list, behind as many places as the data set has. At "
        "which place of it does a rank read its `i`-th example? So how many of its examples count?",
        "Keep count of how many are still to come, and take no more of a batch than these; that may be none. "
        "With `reduction='sum'` the loss of no examples is 0. All ranks reduce, also one that has nothing.",
    ],
)


@exercise.starter
def evaluate_exactly(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """The accuracy and the mean loss over the whole data set"""
    raise NotImplementedError


_CALL = "evaluate_exactly(model, loader)"
_SETUP = """from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.manual_seed(n)
data = TensorDataset(torch.randn(n, 3), torch.randint(3, (n,)))
loader = DataLoader(data, batch, sampler=DistributedSampler(data, shuffle=shuffle))
model = nn.Identity()"""
_OF_10 = f"n, batch, shuffle = 10, 3, False\n{_SETUP}"
_REPEATED = [(12, 4, False), (11, 4, False), (13, 3, False), (10, 4, True)]


def _expect_right(t):
    """The whole data set in one process is right. Other numbers that people come to are known by name."""
    found = t.call(_CALL)
    two = isinstance(found, (tuple, list)) and [type(number) for number in found] == [float, float]
    expect.true(two, f"the result is {expect.show(found)}", "expected: two floats, accuracy and mean loss")
    logits, y = t.data.tensors
    losses = F.cross_entropy(logits.double(), y, reduction="none")
    scores = torch.stack(((logits.argmax(1) == y).double(), losses), 1)
    shares = _shares(scores, t.loader.sampler)
    counted = [share[: len(range(rank, t.n, len(shares)))] for rank, share in enumerate(shares)]
    like = {
        "what counting the repeated examples twice gives": torch.cat(shares).mean(0),
        "the sum over all that was read, by the length of the data set": torch.cat(shares).sum(0) / t.n,
        "that without the last example of each rank": torch.cat([share[:-1] for share in shares]).mean(0),
        "the mean of the means of the batches": _mean_of_means([b for s in shares for b in s.split(t.batch)]),
        "the mean of the means of the ranks": _mean_of_means(counted),
        "what this rank alone has": shares[t.loader.sampler.rank].mean(0),
    }
    for i, what in ((1, "the mean loss"), (0, "the accuracy")):
        number, others = torch.tensor(found[i]).double(), {name: other[i] for name, other in like.items()}
        expect.equal(number, scores.mean(0)[i], what=what, rtol=1e-5, atol=1e-6, like=others)


def _shares(scores, sampler):
    """What each rank reads."""
    sampler, shares = copy.copy(sampler), []
    for rank in range(sampler.num_replicas):
        sampler.rank = rank
        shares.append(scores[list(sampler)])
    return shares


def _mean_of_means(parts):
    return torch.stack([part.mean(0) for part in parts]).mean(0)


@exercise.check(ranks=2, deadline=6, given=_OF_10)
def of_all_ranks(t):
    """Two ranks with two batches each, of three and of two examples

    A mean of means is the mean if all of them are over equally many examples. In a smaller last batch each
    example would count more. Add up sums, over batches and with `all_reduce` over ranks: it leaves the result
    on every rank, `reduce` on one.
    """
    _expect_right(t)


@exercise.check(ranks=3, deadline=6, given=_SETUP, cases=_REPEATED)
def repeated(t, n, batch, shuffle):
    """Three ranks: what the sampler repeats counts once

    The repeated examples stand at the end of the list, and the ranks take turns in it: each of the last ranks
    reads one of them, as its last. Together the ranks read more than the data set.
    """
    _expect_right(t)


@exercise.check(ranks=3, deadline=6, given=f"shuffle = False\n{_SETUP}", cases=[(10, 3), (2, 2), (1, 4)])
def nothing_to_count(t, n, batch):
    """A batch, or all that a rank reads, may consist of repeated examples

    The mean of no examples is nan, and nan times 0 is nan; a sum over none is 0. A rank that has nothing to
    add still takes part in the collective: the others wait for it.
    """
    _expect_right(t)


@exercise.check(
    ranks=2,
    deadline=6,
    given=lambda x: _OF_10.replace("torch.randn(n, 3)", x),
    cases=numbers.hard("10, 3", "large numbers"),
)
def large_logits(t):
    """The loss of large logits is finite

    `exp` of 100 is inf in float32. `F.cross_entropy` and `log_softmax` subtract the largest logit first, in
    `reduction="sum"` too.
    """
    _expect_right(t)


@exercise.check(ranks=2, deadline=6, given=f"n, batch, shuffle = 8, 2, False\n{_SETUP}")
def its_own_share(t):
    """The model runs on the share of its rank only, and its modules keep their modes

    If every rank evaluates the whole data set, nothing has to be sent, and more ranks don't make it faster.
    `eval()` and `train()` set the mode of all modules inside. Who evaluates doesn't know which are frozen:
    a `train()` at the end makes dropout and batch norm train in the next evaluation.
    """
    sizes = []
    t.run("model = nn.Sequential(nn.Linear(3, 3), nn.Dropout()).eval()")
    t.model.register_forward_hook(lambda model, given, logits: sizes.append(len(logits)))
    with expect.left_alone(t.model, what="`model`"):
        t.call(_CALL)
    expect.at_most(sum(sizes), 4, "examples on which this rank runs the model, of 8")


@exercise.check(ranks=2, deadline=6, given=f"n, batch, shuffle = 240, 3, False\n{_SETUP}")
def few_numbers(t):
    """What is sent does not grow with the data set

    In an `all_reduce` all ranks wait for the last one: one for each batch makes every batch as slow as
    the slowest rank. Two sums of a share are all that the others need.
    """
    _, calls = ranks.all_through(t, _CALL)
    expect.at_most(len(calls), 4, "collectives on this rank, for 40 batches")
    expect.at_most(sum(call.bytes for call in calls), 500, "bytes that this rank sends, for 120 examples")
