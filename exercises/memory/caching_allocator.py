"""An allocator like torch's

Build what stands between torch and `cudaMalloc`.

- Requests are rounded up to 512 bytes. Up to 1 MiB they are *small*. Small blocks come from segments of
  2 MiB, large ones from segments of 20 MiB, or from 10 MiB on of the request in steps of 2 MiB. The two
  never mix.
- `malloc` takes the smallest free block that fits, or else a new segment. The rest is split off, in a large
  segment only if it is more than 1 MiB.
- `free` takes what `malloc` returned, and merges it with free neighbours in its segment. `empty_cache` gives
  back segments that are free.

`segments()` → `[{"address": 0, "total_size": 2097152, "blocks": [{"size": 512, "state": "inactive"}, ...]}]`,
oldest first; a block in use is `"active_allocated"`.
"""

import random
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


_SETUP = """
KiB, MiB = 2**10, 2**20
allocator = CachingAllocator()
"""


def _strips(allocator) -> list[str]:
    """Each segment in KiB, as `2048: 1 used, 2047 free`."""
    words, strips = {"inactive": "free", "active_allocated": "used"}, []
    for segment in allocator.segments():
        blocks = [f"{b['size'] / 1024:g} {words.get(b['state'], b['state'])}" for b in segment["blocks"]]
        strips.append(f"{segment['total_size'] / 1024:g}: {', '.join(blocks)}")
    return strips


def _follow(CachingAllocator, scripts):
    """Each script has lines of code, and after an arrow the segments that are there then."""
    with Rows() as rows:
        for script in scripts.split("--"):
            lines = [line.split(" -> ") for line in script.strip().splitlines()]
            with rows.of(f"`{lines[-1][0]}`"):
                t = expect.given(_SETUP, CachingAllocator=CachingAllocator)
                for code, wanted in lines:
                    t.run(code)
                    expect.equal(_strips(t.allocator), wanted.split(" | "), what="the segments, in KiB,")
                    used = sum(float(n) for n in re.findall(r"(\S+) used", wanted))
                    reserved = sum(float(n) for n in re.findall(r"(\S+):", wanted))
                    expect.equal(t.allocator.allocated, int(used * 1024), what="`allocated`")
                    expect.equal(t.allocator.reserved, int(reserved * 1024), what="`reserved`")


@exercise.check
def rounding(CachingAllocator):
    """Requests are rounded up to 512 bytes, and small segments are 2 MiB

    A tensor of one element takes 512 bytes of the device. What is left of the segment serves the next ones.
    """
    _follow(
        CachingAllocator,
        """a = allocator.malloc(1) -> 2048: 0.5 used, 2047.5 free
        --a = allocator.malloc(512) -> 2048: 0.5 used, 2047.5 free
        --a = allocator.malloc(513) -> 2048: 1 used, 2047 free
        --a, b = allocator.malloc(MiB), allocator.malloc(MiB) -> 2048: 1024 used, 1024 used
        c = allocator.malloc(1) -> 2048: 1024 used, 1024 used | 2048: 0.5 used, 2047.5 free""",
    )


@exercise.check
def pools(CachingAllocator):
    """Large requests have segments of their own

    20 MiB serve several large requests. From 10 MiB on, a segment would hold little else, so it has the size
    of the request, in steps of 2 MiB. Small blocks would break up large segments, so the two don't mix.
    """
    _follow(
        CachingAllocator,
        """a = allocator.malloc(MiB + 1) -> 20480: 1024.5 used, 19455.5 free
        --a = allocator.malloc(10 * MiB - 512) -> 20480: 10239.5 used, 10240.5 free
        --a = allocator.malloc(10 * MiB) -> 10240: 10240 used
        --a = allocator.malloc(12 * MiB + 1) -> 14336: 12288.5 used, 2047.5 free
        --a = allocator.malloc(2 * MiB) -> 20480: 2048 used, 18432 free
        b = allocator.malloc(1) -> 20480: 2048 used, 18432 free | 2048: 0.5 used, 2047.5 free""",
    )


@exercise.check
def splitting(CachingAllocator):
    """The rest of a block is split off, in a large segment if it is more than 1 MiB

    A rest of at most 1 MiB could serve no large request. It stays with the block, and counts as allocated.
    """
    _follow(
        CachingAllocator,
        """a = allocator.malloc(11 * MiB) -> 12288: 12288 used
        --a = allocator.malloc(11 * MiB - 512) -> 12288: 11263.5 used, 1024.5 free
        --a, b = map(allocator.malloc, (MiB, MiB - 512)) -> 2048: 1024 used, 1023.5 used, 0.5 free""",
    )


@exercise.check
def best_fit(CachingAllocator):
    """The smallest free block that fits is taken

    The first that fits may be the large one that the next request needs.
    """
    with Rows() as rows:
        for size, hole in ((64, "512 free, 1 used, 64 used"), (63, "512 free, 1 used, 63 used, 1 free"),
                           (65, "65 used, 447 free, 1 used, 64 free")):  # fmt: skip
            with rows.of(f"{size} KiB"):
                t = expect.given(_SETUP, CachingAllocator=CachingAllocator)
                t.run("a, b, c, d, e = (allocator.malloc(n * KiB) for n in (512, 1, 64, 1, 1))")
                t.run(f"allocator.free(a); allocator.free(c)\nf = allocator.malloc({size} * KiB)")
                wanted = [f"2048: {hole}, 1 used, 1 used, 1469 free"]
                expect.equal(_strips(t.allocator), wanted, what="the segments, in KiB,")


@exercise.check
def merging(CachingAllocator):
    """A freed block merges with free neighbours on both sides

    Otherwise the holes would get smaller with every request, and none would be large enough in the end. After
    hundreds of requests no two holes are neighbours, and the blocks of a segment add up to it.
    """
    start = "a, b, c = (allocator.malloc(512 * KiB) for _ in range(3)) -> "
    start += "2048: 512 used, 512 used, 512 used, 512 free\n"
    _follow(
        CachingAllocator,
        f"""{start}allocator.free(c) -> 2048: 512 used, 512 used, 1024 free
        --{start}allocator.free(a); allocator.free(b) -> 2048: 1024 free, 512 used, 512 free
        --{start}allocator.free(a); allocator.free(c); allocator.free(b) -> 2048: 2048 free""",
    )
    t, draw, held = expect.given(_SETUP, CachingAllocator=CachingAllocator), random.Random(0), []
    for _ in range(300):
        if held and draw.random() < 0.5:
            t.allocator.free(held.pop(draw.randrange(len(held))))
        else:
            held.append(t.allocator.malloc(draw.choice((1, 700, 2**16, 2**20, 2**21, 3 * 2**20, 11 * 2**20))))
        for segment in t.allocator.segments():
            sizes, states = zip(*((b["size"], b["state"]) for b in segment["blocks"]), strict=True)
            expect.equal(sum(sizes), segment["total_size"], what="the sum of the blocks of a segment")
            pairs = list(zip(states, states[1:], strict=False))
            expect.true(
                ("inactive", "inactive") not in pairs, "two holes are neighbours", "expected: one hole"
            )


@exercise.check
def cache(CachingAllocator):
    """`empty_cache` gives back what is free as a whole, and nothing else

    A segment with one block in use stays. Freed blocks are used again, so emptying the cache helps other
    programs, not yours.
    """
    two, c = "14336: 14336 used | 2048: 0.5 used, 2047.5 free", "c = allocator.malloc(1)"
    _follow(
        CachingAllocator,
        f"""a, b = map(allocator.malloc, (12 * MiB, 14 * MiB)) -> 12288: 12288 used | 14336: 14336 used
        {c} -> 12288: 12288 used | {two}
        allocator.free(a); allocator.empty_cache() -> {two}
        d = allocator.malloc(12 * MiB) -> {two} | 12288: 12288 used
        allocator.free(b); allocator.free(c); allocator.empty_cache() -> 12288: 12288 used""",
    )
    t = expect.given(
        _SETUP + "held = [allocator.malloc(n * MiB) for n in (1, 11, 30)]", CachingAllocator=CachingAllocator
    )
    places = [(s["address"], s["address"] + s["total_size"]) for s in t.allocator.segments()]
    apart = all(b <= c or d <= a for i, (a, b) in enumerate(places) for c, d in places[:i])
    expect.true(apart, f"segments lie on each other: {places}", "expected: addresses apart")
