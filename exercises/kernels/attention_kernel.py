"""Attention that stores no scores

Write a kernel, and the function that launches it: `attention_kernel(q, k, v)` returns causal attention, as
torch's `scaled_dot_product_attention` does with `is_causal=True`. The three are contiguous, float32, of one
shape (heads, T, d), d at most 64. Scores may be in the thousands.

- A program handles 16 queries of one head (0 to 15, 16 to 31, …), and takes keys and values 16 at a time.
- It loads nothing twice, and no block of keys or values that its queries don't see.
- Each element of the result is stored once. Beside it at most one number a query is stored.
- No program touches an address outside the tensors.

Write the kernel above `attention_kernel`, in the same cell.
"""

import math

import torch
from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits.kernels import (
    a_program_for_each,
    as_often,
    because,
    exact_products,
    inside,
    launched,
    loose_loads_told,
    most_at_once,
    once,
    small_blocks,
    untouched,
    unwritten_is_nan,
    watched,
)

exercise = Exercise(
    minutes=20,
    hints=[
        "Three things for each query go from block to block: the largest score so far, the sum of the "
        "exponentials, and the weighted sum of values. What happens to the last two if the first grows?",
        "Let the grid be (blocks of queries, heads). The block of queries that begins at `first` sees the "
        "keys up to `first + 15`, so the loop over keys ends there. A block of d dimensions is padded to a "
        "power of two; `tl.dot` needs at least 16 on a GPU.",
        "In the loop: scores, scaled by `d ** -0.5`, and -inf where the key comes after the query. The new "
        "largest of each row, `exp(old - new)` for what was summed, `exp(scores - new)` for what is added. "
        "Behind the loop: divide, and store where the query and the dimension exist.",
    ],
)


@exercise.starter
def attention_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(heads, T, d) three times -> (heads, T, d), by a kernel"""
    raise NotImplementedError


BLOCK = 16


def _drawn(*sizes, where=""):
    """Three storages: what is written to one leaves the version counters of the others."""
    drawn = f"q, k, v = (torch.randn({{}}{where}) for _ in range(3))"
    return {f"({size})": f"torch.manual_seed(0)\n{drawn.format(size)}" for size in sizes}


_SIZES = ("2, 32, 16", "2, 40, 20", "1, 50, 64", "3, 7, 5", "2, 1, 1")
_COUNTED = _drawn("2, 40, 20", "1, 32, 16", "3, 7, 5")
_LARGE = {
    "scores of 1,000": "q = q * 1000",
    "scores of -1,000": "q, k = q.abs() * 1000, -k.abs()",
    "scores that grow by 100": "q[:], k[:] = 1, torch.arange(40, device=device)[:, None] * 25",
    "the largest is never seen": "q, k[:, -1] = q.abs(), 1000",
}


_CALL = "attention_kernel(q, k, v)"
_SUMS = (
    "What was summed stays with the program until its last block of keys, and goes to memory once. A result "
    "that is stored in each step is loaded in each, too."
)
_ONE_NUMBER = (
    "Backward needs of each query its largest score and its sum of exponentials, and one number has both: "
    "the largest plus the logarithm of the sum."
)
_AGAIN = (
    "A program's queries are the same for all blocks of keys: they are loaded before the loop, and stay."
)


_FROM_0 = (
    "A largest score that begins at 0 stays 0 where all scores of a query are below it. In float32 `exp` is "
    "0 below -104: all exponentials are 0 then, and so is their sum, and 0 / 0 is NaN. It begins at -inf."
)


def _nan_told(result, largest):
    """The why of NaN where the largest score of each such query is far below 0, and of no other."""
    if not expect.is_tensor(result) or result.shape[:-1] != largest.shape:
        return ""
    far_below = largest[result.isnan().any(-1)] < -87
    return _FROM_0 if len(far_below) and far_below.all() else ""


def _compare(t, factor):
    scores = t.q.double() @ t.k.double().mT / math.sqrt(t.q.shape[-1])
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    oracle = scores.masked_fill(hidden, -math.inf).softmax(-1) @ t.v.double()
    with unwritten_is_nan(), untouched():
        result = t.call(_CALL)
    largest = scores.masked_fill(hidden, -math.inf).amax(-1)
    with because(_nan_told(result, largest)), loose_loads_told(t, _CALL):
        expect.close(result, oracle, factor=factor)


@exercise.check(needs="triton", cases=_drawn(*_SIZES, where=", device=device"))
def values(t, device):
    """The values are those of the whole matrix

    The softmax of one block is divided by the sum of that block, and what counts is the sum over all of them.
    A score that is hidden is -inf before `exp`: 0 would be a score like any other. Scores are divided by the
    root of d, and not by that of the block that d was padded to.
    """
    _compare(t, 32)


@exercise.check(
    needs="triton",
    given=_drawn("2, 40, 16", where=", device=device")["(2, 40, 16)"],
    cases=_LARGE,
)
def large(t, device):
    """Scores may be large, and a larger one may come in a later block

    In float32 `exp` is inf from 89 on, and 0 below -104. The largest score of a query so far is subtracted,
    and all that was summed belongs to it: when it grows, the sum of exponentials and that of values shrink by
    the same factor. A hidden score has no part in it.
    """
    # A score of 1,000 is rounded to 6e-5, and so is its exponential.
    _compare(t, 2**13)


@exercise.check(isolated=True, needs="triton", cases=_COUNTED)
def addresses(t):
    """A kernel computes the result, and no program goes beyond the end of a tensor

    The last block of T and the block of d both reach beyond. Behind dimension d - 1 of one query lies the
    next query: numbers that belong to the tensor, but not to this sum, except in the last one.
    """
    inside(launched(t, _CALL))


@exercise.check(isolated=True, needs="triton", cases=_drawn("1, 32, 16"))
def exact(t):
    """No product of float32 is rounded on a GPU

    There `tl.dot` rounds float32 to TF32, with 10 bits behind the point, unless it is told
    `input_precision="ieee"`. The interpreter doesn't round, so the values are right here.
    """
    exact_products(watched(t, _CALL))


@exercise.check(isolated=True, needs="triton", cases=_COUNTED)
def traffic(t):
    """Blocks above the diagonal are not loaded

    Queries 0 to 15 see no key from 16 on. Such a block adds nothing, so nearly half of the loads and of the
    products can be left out when T is large. What is seen is loaded once: the online softmax needs no second
    walk.
    """
    launches = watched(t, _CALL)
    block = torch.arange(t.q.shape[1]) // BLOCK
    seen = (block.max() + 1 - block)[:, None].expand_as(t.q)
    with because(_AGAIN):
        once(t, launches, ["q"], [])
    for name in ("k", "v"):
        as_often(t, launches, name, seen, "once for each block of queries that sees it")


@exercise.check(isolated=True, needs="triton", cases=_COUNTED)
def stored(t):
    """The result is stored once, and beside it at most one number a query

    Scores that are stored are loaded again by another kernel, and for T = 8,192 they are 256 MiB a head. In a
    program they are one block that the next one replaces.
    """
    launches = watched(t, _CALL)
    with because(_SUMS):
        once(t, launches, [], ["found"])
    total = sum(one.bytes_stored for launch in launches for one in set(launch.tensors.values()))
    queries = t.q.shape[0] * t.q.shape[1]
    more = total // 4 - t.q.numel()
    told = f"for {queries:,} queries {more:,} numbers are stored beside the result"
    with because(_ONE_NUMBER if more <= 4 * queries else ""):
        expect.true(more <= queries, told, "expected: at most one for each")


@exercise.check(isolated=True, needs="triton", cases=_COUNTED | _drawn("1, 50, 64"))
def blocks(t):
    """A program handles 16 queries, and takes 16 keys at a time

    All keys at once fit a program while T is small. What it holds has to stay the same when T grows. And
    programs are what runs side by side: one for each block of queries and each head.
    """
    launches = watched(t, _CALL)
    for name in ("k", "v"):
        rows = most_at_once(launches, getattr(t, name), "load") / t.q.shape[-1]
        expect.at_most(math.ceil(rows), BLOCK, f"rows of `{name}` that one load asks for")
    small_blocks(launches, BLOCK * 64)
    count = t.q.shape[0] * math.ceil(t.q.shape[1] / BLOCK)
    a_program_for_each(launches, count, "blocks of queries")
