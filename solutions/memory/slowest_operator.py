"""A caller begins before what it calls and ends after it. Sorted by their start, the calls that are open form
a stack, and the one on top is the direct caller. Each call adds its time to its own name and takes it off its
caller's: what was taken off a grandchild's caller isn't taken off again.

The outermost call has the most time as a whole and often the least of its own.
"""

from collections import defaultdict


def slowest_operator(events: list[tuple[str, int, float, float]]) -> tuple[str, float]:
    own: dict[str, float] = defaultdict(float)
    stacks: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for name, thread, start, end in sorted(events, key=lambda e: (e[2], -e[3])):
        stack = stacks[thread]
        while stack and stack[-1][1] <= start:
            stack.pop()
        if stack:
            own[stack[-1][0]] -= end - start
        own[name] += end - start
        stack.append((name, end))
    most = max(own, key=own.get)
    return most, own[most]


# Other right answers

from course_utils.exercise import Edit, Wrong


def _by_callers(events):
    """For each call the smallest one around it."""
    own = {}
    for i, (name, thread, start, end) in enumerate(events):
        own[name] = own.get(name, 0) + end - start
        around = [
            (e - s, -j, n)
            for j, (n, t, s, e) in enumerate(events)
            if j != i and t == thread and s <= start and end <= e and ((s, e) != (start, end) or j < i)
        ]
        if around:
            caller = min(around)[2]
            own[caller] = own.get(caller, 0) - (end - start)
    name = sorted(own, key=lambda n: own[n])[-1]
    return name, own[name]


def _by_sweep(events):
    """Goes through the moments of each thread; time belongs to the call that began last."""
    own = {}
    for thread in {e[1] for e in events}:
        mine = sorted((e for e in events if e[1] == thread), key=lambda e: (e[2], -e[3]))
        moments = sorted({t for e in mine for t in e[2:]})
        open_, place = [], 0
        for now, after in zip(moments, moments[1:], strict=False):
            open_ = [e for e in open_ if e[3] > now]
            while place < len(mine) and mine[place][2] <= now:
                open_.append(mine[place])
                place += 1
            open_ = [e for e in open_ if e[3] > now]
            if open_:
                own[open_[-1][0]] = own.get(open_[-1][0], 0.0) + after - now
    return max(own.items(), key=lambda item: item[1])


also_right = [_by_callers, _by_sweep]


def _all_inside(events):
    own = defaultdict(float)
    for name, thread, start, end in events:
        inside = [e - s for _, t, s, e in events if t == thread and start <= s and e <= end]
        own[name] += 2 * (end - start) - sum(inside)  # the call itself is one of them
    most = max(own, key=own.get)
    return most, own[most]


mistakes = [
    Edit("total time", "own[stack[-1][0]] -= end - start", "pass", told_by="self_time"),
    Wrong(_all_inside, told_by="self_time"),
    Edit("sorted by start alone", "(e[2], -e[3])", "e[2]", told_by="edges"),
    Edit("the last call", "own[name] += end", "own[name] = end", told_by="sums"),
    Edit("one thread", "stacks[thread]", "stacks[0]", told_by="threads"),
    Edit("not sorted", "sorted(events, key=lambda e: (e[2], -e[3]))", "events", told_by="any_order"),
    Edit("touching is inside", "stack[-1][1] <= start", "stack[-1][1] < start", told_by="edges"),
]

not_tried = {
    "hard numbers": "differences of Python's numbers",
    "dtypes": "Python's numbers",
    "left alone": "a list, which is compared",
}
