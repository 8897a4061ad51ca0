"""An allocator like torch's

Build what hands out a GPU's memory.

- Requests are first rounded up to 512 bytes. Up to 1 MiB they are *small*. A new segment has 2 MiB for a
  small request, 20 MiB for a large one; from 10 MiB on it has the request's size, rounded up to 2 MiB. Small
  and large never share one.
- `malloc` takes the smallest free block that fits, or else a new segment. The rest is split off; in a large
  segment only a rest above 1 MiB.
- `free` takes what `malloc` returned, and merges it with free neighbours in its segment. `empty_cache` gives
  back free segments.

`segments()` → `[{"address": 0, "total_size": 2097152, "blocks": [{"size": 512, "state": "inactive"}, ...]}]`,
oldest first; a block in use is `"active_allocated"`.
"""

import re
from typing import Any

from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=25,
    hints=[
        "What has to be known of a block so that `free` finds its neighbours, and `malloc` all free ones?",
        "A list of blocks for each segment, in the order of their addresses, holds it all. Splitting inserts "
        "into the list, merging removes from it.",
        "`min(candidates, key=size)` over the free blocks of all segments of the right kind. `reserved` and "
        "`allocated` are sums over the same lists; addresses begin where the last segment ended.",
    ],
)


@exercise.starter
class CachingAllocator:
    def malloc(self, size: int) -> Any:
        raise NotImplementedError

    def free(self, block: Any) -> None: ...
    def empty_cache(self) -> None: ...
    def segments(self) -> list[dict[str, Any]]: ...

    @property
    def allocated(self) -> int:
        """Bytes of the blocks in use"""

    @property
    def reserved(self) -> int:
        """Bytes of all segments"""


_SETUP = "KiB, MiB = 2**10, 2**20\nallocator = CachingAllocator()\n"


def _strips(allocator) -> list[str]:
    """Each segment in KiB, as `2048: 1 used, 2047 free`."""
    words, strips = {"inactive": "free", "active_allocated": "used"}, []
    for segment in allocator.segments():
        blocks = [f"{b['size'] / 1024:g} {words.get(b['state'], b['state'])}" for b in segment["blocks"]]
        strips.append(f"{segment['total_size'] / 1024:g}: {', '.join(blocks)}")
    return strips


def _follow(CachingAllocator, scripts):
    """Scripts, parted by `--`: a label, then lines of code, most with the segments after an arrow."""
    with Rows() as rows:
        for script in scripts.split("--"):
            label, code = script.strip().split(": ", 1)
            lines = [line.strip().split(" -> ") for line in code.splitlines()]
            with rows.of(label):
                t = expect.given(_SETUP, CachingAllocator=CachingAllocator)
                for code, *after in lines:
                    t.run(code)
                    for strips in after:
                        wanted = [] if strips == "none" else strips.split(" | ")
                        expect.equal(_strips(t.allocator), wanted, what="the list of segments, in KiB,")
                        for name, pattern in (("allocated", r"(\S+) used"), ("reserved", r"(\S+):")):
                            total = sum(float(n) for n in re.findall(pattern, strips)) * 1024
                            expect.equal(getattr(t.allocator, name), int(total), what=f"`{name}`")


@exercise.check
def rounding(CachingAllocator):
    """Requests are rounded up to 512 bytes, and up to 1 MiB they are small

    One byte takes 512, and `allocated` counts them all. What is left of the segment serves the next ones. Two
    requests of exactly 1 MiB fill a small segment.
    """
    setup = f"{_SETUP}a = allocator.malloc(1)\nanother = CachingAllocator()"
    t = expect.given(setup, CachingAllocator=CachingAllocator)
    told = f"`another` is new, and its list of segments, in KiB, is `{_strips(t.another)}`, expected `[]`"
    shared = "what stands in the body of the class, or is the default of an argument, is there once for all"
    expect.true(not t.another.segments(), told, shared)
    scripts = """1 byte: a = allocator.malloc(1) -> 2048: 0.5 used, 2047.5 free
        --512 bytes: a = allocator.malloc(512) -> 2048: 0.5 used, 2047.5 free
        --513 bytes: a = allocator.malloc(513) -> 2048: 1 used, 2047 free
        --two of 1 MiB: a, b = allocator.malloc(MiB), allocator.malloc(MiB) -> 2048: 1024 used, 1024 used
        c = allocator.malloc(1) -> 2048: 1024 used, 1024 used | 2048: 0.5 used, 2047.5 free"""
    _follow(CachingAllocator, scripts)


@exercise.check
def pools(CachingAllocator):
    """Large requests have segments of their own

    20 MiB serve several large requests. From 10 MiB on, a segment would hold little else, so it has the size
    of the request, in steps of 2 MiB. Small blocks would break up large segments, so the two don't mix.
    """
    scripts = """1 MiB and 1 byte: a = allocator.malloc(MiB + 1) -> 20480: 1024.5 used, 19455.5 free
        --nearly 10 MiB: a = allocator.malloc(10 * MiB - 512) -> 20480: 10239.5 used, 10240.5 free
        --10 MiB: a = allocator.malloc(10 * MiB) -> 10240: 10240 used
        --10 MiB when it is rounded: a = allocator.malloc(10 * MiB - 1) -> 10240: 10240 used
        --12 MiB and 1 byte: a = allocator.malloc(12 * MiB + 1) -> 14336: 12288.5 used, 2047.5 free
        --large then small: a = allocator.malloc(2 * MiB) -> 20480: 2048 used, 18432 free
        b = allocator.malloc(1) -> 20480: 2048 used, 18432 free | 2048: 0.5 used, 2047.5 free
        --small then large: a = allocator.malloc(1)
        b = allocator.malloc(MiB + 1) -> 2048: 0.5 used, 2047.5 free | 20480: 1024.5 used, 19455.5 free"""
    _follow(CachingAllocator, scripts)


@exercise.check
def splitting(CachingAllocator):
    """The rest of a block is split off, in a large segment if it is more than 1 MiB

    A rest of at most 1 MiB alone could serve no large request. It stays with the block, and counts as
    allocated.
    """
    scripts = """a rest of 1 MiB: a = allocator.malloc(11 * MiB) -> 12288: 12288 used
        --a rest above 1 MiB: a = allocator.malloc(11 * MiB - 512) -> 12288: 11263.5 used, 1024.5 free
        --a rest of 1 MiB that is freed: a = allocator.malloc(11 * MiB)
        allocator.free(a) -> 12288: 12288 free
        --small: a, b = map(allocator.malloc, (MiB, MiB - 512)) -> 2048: 1024 used, 1023.5 used, 0.5 free"""
    _follow(CachingAllocator, scripts)


@exercise.check
def merging(CachingAllocator):
    """A freed block merges with free neighbours on both sides

    Otherwise holes could only get smaller, until none is large enough. Two segments don't merge, even if one
    ends where the next begins. Two blocks of one size and state are equal for `==` if they are dicts, tuples
    or dataclasses: `in`, `index` and `remove` take the first that is.
    """
    start = "a, b, c = (allocator.malloc(512 * KiB) for _ in range(3))\n"
    t = expect.given(_SETUP + start, CachingAllocator=CachingAllocator)
    equal = "; `a == c` is true for these two blocks" if bool(t.a == t.c) else ""
    t.run("allocator.free(c)")
    first_freed = _strips(t.allocator) == ["2048: 512 free, 512 used, 512 used, 512 free"]
    expect.true(not first_freed, f"what was freed is `a`{equal}", "expected: `c`, the block that `free` got")
    scripts = f"""behind it: {start}allocator.free(c) -> 2048: 512 used, 512 used, 1024 free
        --before it: {start}allocator.free(a); allocator.free(b) -> 2048: 1024 free, 512 used, 512 free
        --both: {start}allocator.free(a); allocator.free(c); allocator.free(b) -> 2048: 2048 free
        --two segments: a, b, c = (allocator.malloc(MiB) for _ in range(3))
        allocator.free(b); allocator.free(c) -> 2048: 1024 used, 1024 free | 2048: 2048 free
        --large: a, b = (allocator.malloc(8 * MiB) for _ in range(2))
        allocator.free(a); allocator.free(b) -> 20480: 20480 free
        --another hole of its size: a, b, c, d, e = (allocator.malloc(256 * KiB) for _ in range(5))
        for b in (a, d, c): allocator.free(b) -> 2048: 256 free, 256 used, 512 free, 256 used, 768 free"""
    _follow(CachingAllocator, scripts)


@exercise.check
def best_fit(CachingAllocator):
    """The smallest free block that fits is taken, from whichever segment

    The first that fits may be the large one that the next request needs. A new segment is made only if none
    fits, however large the request.
    """
    holes = "a, b, c, d = (allocator.malloc(n * KiB) for n in (512, 1, 64, 1))\n"
    holes += "allocator.free(a); allocator.free(c)\ne = allocator.malloc"
    scripts = f"""a hole of this size: {holes}(64 * KiB) -> 2048: 512 free, 1 used, 64 used, 1 used, 1470 free
        --the smaller hole: {holes}(63 * KiB) -> 2048: 512 free, 1 used, 63 used, 1 free, 1 used, 1470 free
        --the larger hole: {holes}(65 * KiB) -> 2048: 65 used, 447 free, 1 used, 64 free, 1 used, 1470 free
        --a smaller hole in another segment: a, b = map(allocator.malloc, (18 * MiB, 16 * MiB))
        allocator.free(a); allocator.free(b)
        c = allocator.malloc(2 * MiB) -> 18432: 18432 free | 16384: 2048 used, 14336 free
        --10 MiB from the cache: allocator.free(allocator.malloc(12 * MiB))
        a = allocator.malloc(10 * MiB) -> 12288: 10240 used, 2048 free
        --two of one size: a, b, c = (allocator.malloc(MiB) for _ in range(3)); allocator.free(a)
        d, e = map(allocator.malloc, (MiB, MiB)) -> 2048: 1024 used, 1024 used | 2048: 1024 used, 1024 used"""
    _follow(CachingAllocator, scripts)


@exercise.check
def cache(CachingAllocator):
    """`empty_cache` gives back what is free as a whole, and nothing else

    A segment with one block in use stays. The blocks of the others are gone: no `malloc` may find one.
    """
    scripts = """whole segments: a, b, c = map(allocator.malloc, (12 * MiB, 14 * MiB, 1))
        allocator.free(a); allocator.empty_cache() -> 14336: 14336 used | 2048: 0.5 used, 2047.5 free
        allocator.free(b); allocator.empty_cache() -> 2048: 0.5 used, 2047.5 free
        allocator.free(c); allocator.empty_cache() -> none
        --used after that: allocator.free(allocator.malloc(1)); allocator.empty_cache() -> none
        a = allocator.malloc(1) -> 2048: 0.5 used, 2047.5 free
        --neighbours: a, b, c = map(allocator.malloc, (12 * MiB, 14 * MiB, 16 * MiB))
        allocator.free(a); allocator.free(b); allocator.free(c); allocator.empty_cache() -> none
        --a part of one: a, b = map(allocator.malloc, (MiB, MiB))
        allocator.free(a); allocator.empty_cache() -> 2048: 1024 free, 1024 used"""
    _follow(CachingAllocator, scripts)
    t = expect.given(_SETUP, CachingAllocator=CachingAllocator)
    t.run("a, b = map(allocator.malloc, (12 * MiB, 14 * MiB)); allocator.free(a); allocator.empty_cache()")
    t.run("c = allocator.malloc(16 * MiB)")
    (a, b), (c, d) = ((s["address"], s["address"] + s["total_size"]) for s in t.allocator.segments())
    expect.true(b <= c or d <= a, f"segments overlap: {a} to {b}, {c} to {d}", "expected: they don't")
