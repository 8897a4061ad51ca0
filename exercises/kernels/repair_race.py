"""Repair: a histogram that loses counts

`repair_race(values, bins)` counts how often each of `0, …, bins - 1` stands in `values`, a contiguous
vector of int64 that is not empty. The kernel below counts too few. Mend it.

- Each value is loaded once, and a program loads at most 1,024 of them.
- Programs don't race: the counts are right in whatever order they run, or at the same time.
- Kernels count, several launches if you like; torch hands out memory. No program touches an address outside
  the tensors.

`repair_race(torch.tensor([2, 0, 2, 2]), 3)` → `[1, 0, 3]`, in int64. It returns `[1, 0, 1]` now. Your
kernels may stand in the function or above it.
"""

from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits.kernels import (
    because,
    inside,
    launched,
    loose_loads_told,
    most_in_a_program,
    no_race,
    once,
    tl,
    triton,
    untouched,
    unwritten_is_nan,
    watched,
)

exercise = Exercise(
    minutes=15,
    hints=[
        "Follow the example: three lanes of one program hit bin 2. What does each load, and what does each "
        "store? Then think of two programs in place of two lanes.",
        "Load, add and store are three steps, and others come between them. Either one step does it all, or "
        "nobody else uses the memory that is stored to.",
        "`tl.atomic_add` is one step, and takes pointers, a number and a mask, as `tl.store` does. Or "
        "`tl.histogram(block, bins, mask=…)` counts a block, in as many bins as a power of two says; each "
        "program stores its counts in a row of its own, and a second launch adds the rows.",
    ],
)


@exercise.starter
def repair_race(values: Tensor, bins: int) -> Tensor:
    """(n,) -> (bins,)"""

    @triton.jit
    def count(values, counts, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = offsets < n
        which = tl.load(values + offsets, mask=inside, other=0)
        so_far = tl.load(counts + which, mask=inside)
        tl.store(counts + which, so_far + 1, mask=inside)

    n = len(values)
    counts = values.new_zeros(bins)
    count[(triton.cdiv(n, 256),)](values, counts, n, BLOCK=256)
    return counts


_CALL = "repair_race(values, bins)"
_SEED = "torch.manual_seed(0)\n"
_DRAWN = "values, bins = torch.randint({1}, ({0},), device=device), {1}"
_CASES = {
    "the example": "values, bins = torch.tensor([2, 0, 2, 2], device=device), 3",
    "no value twice": "values, bins = torch.arange(100, device=device), 100",
    "one block, 10 bins": _SEED + _DRAWN.format(256, 10),
    "1,000 values": _SEED + _DRAWN.format(1000, 10),
    "2,049 values, 300 bins": _SEED + _DRAWN.format(2049, 300),
    "all in the last bin": "values, bins = torch.full((1500,), 4, device=device), 5",
    "one bin": "values, bins = torch.zeros(700, device=device, dtype=torch.int64), 1",
    "one value": "values, bins = torch.tensor([6], device=device), 8",
    "in order": _SEED + _DRAWN.format(1500, 7) + "\nvalues = values.sort().values",
    "most bins empty": "values, bins = torch.arange(1100, device=device) % 3 * 33, 70",
}
_ON_CPU = {label: f'device = "cpu"\n{setup}' for label, setup in _CASES.items()}


_INT64 = "`torch.zeros` and its like take `dtype=`; `values.new_zeros(bins)` has the dtype of `values`."
_ANYTHING = (
    "No count is below 0 or above the number of values. What `torch.empty` hands out holds anything, and so "
    "does the place of a masked lane in a block that was loaded without `other=`. Here both hold the largest "
    "integer. Neither may get into a sum."
)


@exercise.check(needs="triton", cases=_CASES)
def counts(t, device):
    """Each value counts, also where several stand in one bin

    The lanes of a block do each step together: all load, all add 1, then all store. Of lanes that store to
    one address, one is left. And what is added to begins as zeros.
    """
    wanted, most = t.values.bincount(minlength=t.bins), len(t.values)
    with untouched(), unwritten_is_nan():
        found = expect.a_tensor(t.call(_CALL))
    def odd(counts):
        return (counts < 0) | (counts > most)

    why = _ANYTHING if odd(found).any() else "" if found.dtype == wanted.dtype else _INT64
    with loose_loads_told(t, _CALL, odd), because(why):
        expect.equal(found, wanted)


_SHUFFLED = ("the example", "1,000 values", "2,049 values, 300 bins", "all in the last bin", "in order")


@exercise.check(isolated=True, needs="triton", cases={label: _ON_CPU[label] for label in _SHUFFLED})
def any_order(t):
    """No two programs race, in whatever order they run

    Counting a block first makes its lanes one, and the numbers are right here, where programs run one after
    the other. On a GPU they run at the same time: what one stores between another's load and store is lost.
    Atomics of several programs to one address are no race.
    """
    with unwritten_is_nan():
        no_race(watched(t, _CALL, shuffle=1))
        expect.equal(t.found, t.call(_CALL), what="the result in a shuffled order")


@exercise.check(isolated=True, needs="triton", cases=_ON_CPU)
def addresses(t):
    """Kernels count, and no program goes beyond the end of a tensor

    A lane behind the last value has no bin, and what a masked load gives there is an index all the same: the
    mask belongs to what is done with it, too. A block of bins is a power of two, and `bins` is any number.
    """
    inside(launched(t, _CALL))


@exercise.check(isolated=True, needs="triton", given='device = "cpu"\n' + _DRAWN.format(3000, 10))
def traffic(t):
    """Each value is loaded once, and a program loads at most 1,024 of them

    A program for each bin doesn't race either, but each loads all values. A single program has nobody to race
    with, and nobody to share the work with.
    """
    launches = watched(t, _CALL)
    once(t, launches, ["values"], [])
    expect.at_most(most_in_a_program(launches, t.values, "load"), 1024, "values in one program")
