"""A segment is a list of blocks in the order of their addresses, so neighbours in the list are neighbours in
memory. Splitting inserts a block behind, merging adds the size of the next one and removes it.

Free blocks are found by going through all of them, and the smallest that fits is taken.
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
        return [{name: s[name] for name in ("address", "total_size", "blocks")} for s in self.lists]

    @property
    def allocated(self) -> int:
        return sum(b["size"] for s in self.lists for b in s["blocks"] if b["state"] != "inactive")

    @property
    def reserved(self) -> int:
        return sum(segment["total_size"] for segment in self.lists)


# Other right answers

from course_utils.exercise import Edit, Wrong


class _Wraps(CachingAllocator):
    def malloc(self, size):
        return (super().malloc(size),)

    def free(self, block):
        super().free(*block)


class _MergesItself(CachingAllocator):
    def free(self, block):
        block["state"] = "inactive"
        blocks = next(s["blocks"] for s in self.lists if any(b is block for b in s["blocks"]))
        at = [one is block for one in blocks].index(True)
        for i in (at + 1, at):
            if 0 < i < len(blocks) and blocks[i]["state"] == blocks[i - 1]["state"]:
                blocks[i - 1]["size"] += blocks.pop(i)["size"]


also_right = [_Wraps, _MergesItself]

_FITS = "min(free, key=lambda one: one[0])"
_SHARED = "self, lists: list[dict[str, Any]] = []) -> None:\n        self.lists = lists"
_FREES_EQUAL = """\
        blocks = [one for s in self.lists for one in s["blocks"]]
        blocks[blocks.index(block)]["state"] = "inactive"
        for"""


class _FindsWhatIsGone(CachingAllocator):
    gone: tuple = ()

    def empty_cache(self):
        self.gone = [s["address"] for s in self.lists if all(b["state"] == "inactive" for b in s["blocks"])]

    def segments(self):
        return [s for s in super().segments() if s["address"] not in self.gone]

    @property
    def reserved(self):
        return sum(s["total_size"] for s in self.segments())


mistakes = [
    Edit(
        "one list for all",
        "self) -> None:\n        self.lists: list[dict[str, Any]] = []",
        _SHARED,
        told_by="rounding",
    ),
    Edit(
        "small blocks for large ones",
        'segment["large"] == large',
        'segment["large"] <= large',
        told_by="pools",
    ),
    Edit("always splits", "rest > large * MiB", "rest", told_by="splitting"),
    Edit("first fit", _FITS, "free[0]", told_by="best_fit"),
    Edit(
        "frees its equal", '        block["state"] = "inactive"\n        for', _FREES_EQUAL, told_by="merging"
    ),
    Edit("does not merge", 'merged[-1]["state"] == one["state"] == "inactive"', "False", told_by="merging"),
    Wrong(_FindsWhatIsGone, told_by="cache"),
    Edit("addresses used twice", '"address": self.end', '"address": self.reserved', told_by="cache"),
]

not_tried = {"hard numbers": "whole numbers only", "dtypes": "bytes", "left alone": "sizes come in"}
equivalent = {
    "line 9: `0` -> `1`": "where the addresses begin is left open",
    "line 9: `0` -> `-1`": "where the addresses begin is left open",
}
