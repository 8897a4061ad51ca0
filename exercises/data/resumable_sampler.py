"""A sampler that can go on

`ResumableSampler(n, seed)` gives the indices 0 to n-1 in a shuffled order, another one in each epoch. The
loader's workers run ahead of the loop, so the loop says what it has used: `advance(count)` after each batch.
No batch crosses the end of an epoch: when all indices are used, the next one begins.

- Iterating gives what is not used yet of the present epoch, in its order. `len(sampler)` is how many.
- `state_dict()` is a dictionary of a few numbers, which `torch.load(..., weights_only=True)` accepts.
- After `load_state_dict(state)` a new sampler of the same `n` and `seed` goes on from there.

Global generators play no part and stay as they are.
"""

import io
import itertools
import pickle
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import numbers, saved_runs

exercise = Exercise(
    minutes=15,
    hints=[
        "What must be known to draw an epoch's order again? What else, to know where in it you are?",
        "Two numbers are the whole state. The order follows from the seed and one of them; draw it anew in "
        "`__iter__`, with a generator of your own.",
        "Iterating changes nothing. Only `advance` does: it counts, and when the count is n it goes to the "
        "next epoch and starts from 0.",
    ],
)


@exercise.starter
class ResumableSampler(Sampler):
    """Indices 0 to n-1, shuffled anew in each epoch"""

    def __init__(self, n: int, seed: int) -> None:
        raise NotImplementedError

    def advance(self, count: int) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


_SAMPLER = "sampler = ResumableSampler(10, seed=0)"


def _list(t, name="sampler"):
    t.run(f"order = list({name})")
    return [int(i) for i in t.order]


@exercise.check(given=_SAMPLER)
def next_epoch(t):
    """When all of an epoch's indices are used, the next epoch begins

    Nobody tells the sampler that an epoch is over: it counts. After the n-th used index all n are to come.
    """
    t.run("sampler.advance(10)")
    expect.equal(t.call("len(sampler)"), 10, what="`len(sampler)`")


@exercise.check(given="sampler = ResumableSampler(40, seed=0)")
def shuffles(t):
    """Each epoch is a new order of all indices

    With one order for all epochs the same samples meet in a batch every time. The seed decides which orders
    come, and the epoch which of them is due.
    """
    three = "[([int(i) for i in sampler], sampler.advance(40))[0] for _ in range(3)]"
    epochs = t.call(three)
    t.run("sampler = ResumableSampler(40, seed=0)")
    again = t.call(three)
    for number, order in enumerate(epochs):
        expect.equal(sorted(order), list(range(40)), what=f"the indices of epoch {number}, sorted,")
        steps = Counter((b - a) % 40 for a, b in itertools.pairwise(order))
        (step, often), *_ = steps.most_common(1)
        told = f"epoch {number} is not shuffled: {often} of 39 indices are the one before plus {step}"
        expect.true(often < 20, told, "expected: a random order")
    expect.true(len(set(map(tuple, epochs))) == 3, "two of three epochs have the same order")
    expect.equal(again, epochs, what="three epochs of a second sampler")
    t.run("sampler = ResumableSampler(40, seed=1)")
    expect.true(_list(t) != epochs[0], "another seed gives the same order")


@exercise.check(given=_SAMPLER)
def iterating_uses_nothing(t):
    """To give an index out is not to have used it

    A loader with workers is ahead of the loop by up to `num_workers * prefetch_factor` batches. And the loop
    calls `advance` while the loader still reads from the same iterator. A generator that draws on gives
    another order next time: one that is new, and seeded by seed and epoch, gives the epoch's.
    """
    whole = _list(t)
    expect.equal(_list(t), whole, what="what comes when it is iterated again, with nothing used,")
    t.run("ahead = iter(sampler)\nfirst = [next(ahead) for _ in range(8)]")
    t.run("other = ResumableSampler(10, seed=0)\nother.load_state_dict(sampler.state_dict())")
    expect.equal(_list(t, "other"), whole, what="what a sampler gives that goes on from there")
    t.run("sampler.advance(2)")
    expect.equal([int(i) for i in t.call("first + list(ahead)")], whole, what="what one iterator gives")


@exercise.check(given=_SAMPLER)
def gives_the_rest(t):
    """What is used doesn't come again in this epoch

    The loop calls `advance` after training on a batch. Iterating again gives the rest of the same order.
    """
    whole = _list(t)
    t.run("sampler.advance(3)")
    expect.equal(_list(t), whole[3:], what="the list of indices after `advance(3)`")
    expect.equal(t.call("len(sampler)"), 7, what="`len(sampler)`")
    t.run("sampler.advance(4)")
    expect.equal(_list(t), whole[7:], what="the list of indices after `advance(4)` as well")


@exercise.check(
    given="sampler = ResumableSampler(10, seed=5)\nfor _ in range({}): sampler.advance(1)".format,
    cases={f"{used} indices used": used for used in (4, 10, 13, 29)},
)
def goes_on(t):
    """A new sampler goes on where the old one was, and through the epochs after it

    The position alone is not enough: the order is that of an epoch, and it has to be drawn again, in another
    process, where `hash` of a text may be another. A dict that the sampler goes on to write to is no record.
    """
    t.run("state = sampler.state_dict()\nother = ResumableSampler(10, seed=5)")
    t.run("other.load_state_dict(state)")
    rest = _list(t)
    expect.equal(_list(t, "other"), rest, what="the rest of this epoch")
    t.run("sampler.advance(len(sampler))\nother.advance(len(other))")
    expect.equal(_list(t, "other"), _list(t), what="the epoch after it")
    with numbers.another_process():
        t.run("third = ResumableSampler(10, seed=5)\nthird.load_state_dict(state)")
        what = "what a third sampler gives from the same state, as in another process"
        expect.equal(_list(t, "third"), rest, what=what)


@exercise.check(given="sampler = ResumableSampler(1_000_000, seed=0)\nsampler.advance(123_456)")
def small_state(t):
    """The state is a few numbers

    A checkpoint is written often, and n may be a billion. A permutation can be drawn again; it needn't be
    kept. `weights_only=True` accepts numbers like these, and no class of your own unless it is told to.
    """
    torch.save(t.call("sampler.state_dict()"), file := io.BytesIO())
    expect.at_most(file.tell(), 4_000, "bytes of the saved state")
    try:
        torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    except pickle.UnpicklingError as error:
        raise expect.Mismatch("`torch.load(..., weights_only=True)` refuses the state") from error


@exercise.check(given=_SAMPLER)
def own_generator(t):
    """Global generators play no part and stay as they are

    Dropout and augmentations draw from them. What draws too depends on all others, and a resumed run may have
    another order. What seeds one decides what the others draw from it.
    """
    whole = _list(t)
    before = saved_runs.stir()
    t.run("sampler = ResumableSampler(10, seed=0)")
    expect.equal(_list(t), whole, what="the order after other seeds")
    t.run("sampler.advance(10)\nlist(sampler)\nsampler.load_state_dict(sampler.state_dict())")
    moved = saved_runs.moved(before)
    expect.equal(moved, [], what="the list of global generators that have drawn or were seeded")
