"""A segment is a list of blocks in the order of their addresses, so neighbours in the list are neighbours in
memory. Splitting inserts a block behind, merging adds the size of the next one and removes it.

Free blocks are found by going through all of them. torch keeps them in a sorted set; the result is the same.
"""

from typing import Any

MiB = 2**20


class CachingAllocator:
    def __init__(self) -> None:
        self.lists: list[dict[str, Any]] = []
        self.end = 0

    def malloc(self, size: int) -> dict[str, Any]:
        size = -(-size // 512) * 512
        large = size > MiB
        free = [
            (block["size"], block, segment["blocks"])
            for segment in self.lists
            for block in segment["blocks"]
            if segment["large"] == large and block["state"] == "inactive" and block["size"] >= size
        ]
        if free:
            _, block, blocks = min(free, key=lambda one: one[0])
        else:
            total = 2 * MiB if not large else 20 * MiB if size < 10 * MiB else -(-size // (2 * MiB)) * 2 * MiB
            block = {"size": total}
            blocks = [block]
            self.lists.append({"address": self.end, "total_size": total, "large": large, "blocks": blocks})
            self.end += total
        rest = block["size"] - size
        if rest > large * MiB:
            block["size"] = size
            place = next(i for i, one in enumerate(blocks) if one is block)
            blocks.insert(place + 1, {"size": rest, "state": "inactive"})
        block["state"] = "active_allocated"
        return block

    def free(self, block: dict[str, Any]) -> None:
        block["state"] = "inactive"
        for segment in self.lists:
            merged: list[dict[str, Any]] = []
            for one in segment["blocks"]:
                if merged and merged[-1]["state"] == one["state"] == "inactive":
                    merged[-1]["size"] += one["size"]
                else:
                    merged.append(one)
            segment["blocks"][:] = merged

    def empty_cache(self) -> None:
        self.lists = [s for s in self.lists if any(b["state"] != "inactive" for b in s["blocks"])]

    def segments(self) -> list[dict[str, Any]]:
        names = ("address", "total_size", "blocks")
        return [{name: segment[name] for name in names} for segment in self.lists]

    @property
    def allocated(self) -> int:
        return sum(b["size"] for s in self.lists for b in s["blocks"] if b["state"] != "inactive")

    @property
    def reserved(self) -> int:
        return sum(segment["total_size"] for segment in self.lists)


# Other right answers

import copy

from course_utils.exercise import Edit


class _ByAddress:
    """Blocks are numbers: address -> [size, used]. A segment is a range of addresses."""

    def __init__(self):
        self.map, self.ranges, self.top = {}, [], 1 << 30

    def malloc(self, size):
        size = (size + 511) // 512 * 512
        small = size <= MiB
        fits = sorted(
            (n, at)
            for at, (n, used) in self.map.items()
            if not used and n >= size and self._of(at)[2] == small
        )
        if not fits:
            total = 2 * MiB if small else 20 * MiB
            if size >= 10 * MiB:
                total = (size + 2 * MiB - 1) // (2 * MiB) * (2 * MiB)
            self.ranges.append((self.top, total, small))
            self.map[self.top] = [total, False]
            fits = [(total, self.top)]
            self.top += total
        n, at = fits[0]
        if n - size >= (512 if small else MiB + 512):
            self.map[at + size] = [n - size, False]
            n = size
        self.map[at] = [n, True]
        return at

    def _of(self, at):
        return next(r for r in self.ranges if r[0] <= at < r[0] + r[1])

    def free(self, at):
        self.map[at][1] = False
        start, total, _ = self._of(at)
        inside = sorted(a for a in self.map if start <= a < start + total)
        for left, right in reversed(list(zip(inside, inside[1:], strict=False))):
            if not self.map[left][1] and not self.map[right][1]:
                self.map[left][0] += self.map.pop(right)[0]

    def empty_cache(self):
        for r in list(self.ranges):
            if self.map[r[0]] == [r[1], False]:
                del self.map[r[0]]
                self.ranges.remove(r)

    def segments(self):
        words = ("inactive", "active_allocated")
        return [
            {
                "address": s,
                "total_size": n,
                "blocks": [
                    {"size": self.map[a][0], "state": words[self.map[a][1]]}
                    for a in sorted(self.map)
                    if s <= a < s + n
                ],
            }
            for s, n, _ in self.ranges
        ]

    allocated = property(lambda self: sum(n for n, used in self.map.values() if used))
    reserved = property(lambda self: sum(n for _, n, _ in self.ranges))


class _Copies(CachingAllocator):
    """Hands out copies in `segments`, and numbers as blocks."""

    def __init__(self):
        super().__init__()
        self.held = {}

    def malloc(self, size):
        self.held[len(self.held)] = super().malloc(size)
        return len(self.held) - 1

    def free(self, block):
        super().free(self.held[block])

    def segments(self):
        return copy.deepcopy(super().segments())


also_right = [_ByAddress, _Copies]

mistakes = [
    Edit("rounds down", "-(-size // 512) * 512", "max(size // 512, 1) * 512", told_by="rounding"),
    Edit("one pool", 'segment["large"] == large and ', "", told_by="pools"),
    Edit("first fit", "min(free, key=lambda one: one[0])", "free[0]", told_by="best_fit"),
    Edit("always splits", "rest > large * MiB", "rest", told_by="splitting"),
    Edit("does not merge", 'merged[-1]["state"] == one["state"] == "inactive"', "False", told_by="merging"),
    Edit(
        "gives back nothing",
        "self.lists = [s for s in self.lists if any",
        "[s for s in self.lists if any",
        told_by="cache",
    ),
]

equivalent = {
    "line 9: `0` -> `1`": "where the addresses begin is left open",
    "line 9: `0` -> `-1`": "where the addresses begin is left open",
}
