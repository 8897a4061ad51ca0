"""For every size the function goes through all segments, adds up what is alive when that segment has been
computed again, and takes the highest of these moments. The checks run it on layers of different sizes.

Gradients and temporaries are left out. In these stacks that makes no difference to which size is best."""


def best_segment(kept: list[int], inputs: list[int]) -> int:
    n = len(kept)

    def peak(size):
        starts = range(0, n, size)
        return max(sum(inputs[:start:size]) + sum(kept[start : start + size]) for start in starts)

    return min(range(1, n + 1), key=peak)


# Other right answers

import math
from itertools import accumulate

from course_utils.exercise import Edit, Wrong


def _walks_along(kept, inputs):
    best = None
    for size in range(1, len(kept) + 1):
        waiting = highest = 0
        for start in range(0, len(kept), size):
            live = 0
            for i in range(start, min(start + size, len(kept))):
                live += kept[i]
            highest = max(highest, waiting + live)
            waiting += inputs[start]
        if best is None or highest <= best[0]:
            best = highest, size
    return best[1]


def _sums_first(kept, inputs):
    """Sums of all beginnings, and backward in the order in which it runs."""
    n, before = len(kept), [0, *accumulate(kept)]

    def moments(size):
        alive = sum(inputs[::size])
        for start in reversed(range(0, n, size)):
            alive -= inputs[start]
            yield alive + before[min(n, start + size)] - before[start]

    return sorted(range(1, n + 1), key=lambda size: max(moments(size)))[0]


also_right = [_walks_along, _sums_first]


def _root(kept, inputs):
    return max(1, math.isqrt(len(kept)))


def _by_the_mean(kept, inputs):
    n = len(kept)
    return min(range(1, n + 1), key=lambda s: sum(inputs) / n * (math.ceil(n / s) - 1) + sum(kept) / n * s)


_SIZES = "range(1, n + 1)"

mistakes = [
    Wrong(_root, told_by="equal_layers"),
    Edit("counts the live segment alone", "sum(inputs[:start:size]) + ", "", told_by="equal_layers"),
    Wrong(_by_the_mean, told_by="different_layers"),
    Edit("counts its input again", "[:start:size]", "[: start + 1 : size]", told_by="different_layers"),
    Edit("takes divisors", _SIZES, "[s for s in range(1, n + 1) if n % s == 0]", told_by="shorter_last"),
    Edit("leaves the rest out", "range(0, n, size)", "range(0, n - size + 1, size)", told_by="shorter_last"),
    Edit("counts inputs that are freed", "[:start:size]", "[::size]", told_by="freed_by_then"),
    Edit(
        "all inputs beside the largest segment",
        "[:start:size]) + ",
        "[::size]) - inputs[start] + ",
        told_by="freed_by_then",
    ),
]

equivalent = {"line 8: `1` -> `2` (2)": "a size of n + 1 makes one segment too, and n comes first"}
not_tried = {
    "hard numbers": "bytes are counted",
    "dtypes": "bytes are counted",
    "left alone": "two lists of numbers are given",
    "seeds": "bytes hang on sizes alone",
}
