"""What more processes are worth

`scaling_report(runs)` says what was gained by more processes, and what became of the rest.

`runs` holds recordings of the same program: `{2: run, 1: run}`, by the number of processes, in any order. A
run has a list for each rank, and that has for each step `(samples, begin, wait, end)`: how many samples this
rank had, when it began with them, when it called the all-reduce, and when that was over. These are seconds,
of one clock for all ranks. Ranks may have unequal shares of a step; all of them together, the steps of a run
have equally many samples. **The first step is a warm-up and counts for nothing.**

Return for each number of processes a dict of seven entries.

- `"samples_per_second"`: the samples of all ranks, over the seconds from the moment when the first rank began
  to the moment when the last one had ended.
- `"speedup"`: this, over that of the *base*, the run with the fewest processes (perhaps more than one).
- `"efficiency"`: samples per second and process, over that of the base.
- `"scaling"`: `"base"`; or `"strong"`, where a step has as many samples as one of the base, for all ranks
  together; or `"weak"`, where it has as many for each process; or else `"neither"`.
- `"compute"`, `"late"`, `"exchange"`: what part of the time of all ranks (the seconds above, once for each
  process) was spent from `begin` to `wait`; in the all-reduce until the last rank had called it; and in the
  all-reduce after that. What a rank does outside its steps is none of the three.

Two ranks, one step after the warm-up: `(8, 1.0, 2.0, 4.0)` on rank 0, `(8, 1.0, 3.5, 4.0)` on rank 1. These
are 16 samples in 3 seconds; of the 6 seconds of both ranks 3.5 were compute, 1.5 late and 1 exchange."""

import copy
import time
from typing import Any

import torch
import torch.distributed as dist

from course_utils import evidence, expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=20,
    hints=[
        "No rank is done with a step before the last one is. Which moments decide how long a run took, and "
        "of which ranks are they?",
        "Samples per second are the same question for every batch. Count the samples, and speedup and "
        "efficiency need no case for strong and weak; their label needs the samples of one step.",
        "The all-reduce of a step can begin when the last rank has called it: the largest `wait` of that "
        "step. What lies before it is late, for each rank its own; what lies after it is exchange.",
    ],
)


@exercise.starter
def scaling_report(runs: dict[int, list[list[tuple[int, float, float, float]]]]) -> dict[int, dict[str, Any]]:
    """{processes: for each rank its steps} -> {processes: what they are worth}"""
    raise NotImplementedError


_WARM_UP = "warm_up = [(4, 0.0, 9.0, 10.0)]"
# Equal steps, no gap: rank 1 has more to do than rank 0.
_TWO = """two = [
    warm_up + [(3, 10.0, 11.0, 14.0), (3, 14.0, 15.0, 18.0)],
    warm_up + [(5, 10.0, 13.0, 14.0), (5, 14.0, 17.0, 18.0)],
]"""
_ONE = "one = [warm_up + [(4, 10.0, 12.0, 12.0), (4, 12.0, 15.0, 15.0)]]"


def _given(answer, *lines):
    return expect.given("\n".join((_WARM_UP, *lines)), scaling_report=answer)


def _expect_entries(t, expression, wanted):
    """Of every run the entries that are `wanted`."""
    found = t.call(expression)
    if not isinstance(found, dict):
        expect.equal(found, wanted)
    evidence.record("numbers of processes", sorted(map(str, found)))
    rows = sorted(found.items(), key=str)
    evidence.record("labels", [row.get("scaling") for _, row in rows if isinstance(row, dict)])
    expect.true(
        set(found) == set(wanted),
        f"the result has an entry for each of {sorted(found, key=str)}",
        f"expected: one for each of {sorted(wanted)}",
    )
    for processes in sorted(wanted):
        for name, value in wanted[processes].items():
            row = found[processes]
            expect.true(
                isinstance(row, dict) and name in row, f"`{processes}` has no `{name!r}`", "expected: one"
            )
            expect.equal(row[name], value, what=f"`{name!r}` {_of(processes)}")


def _of(processes):
    return f"of {processes} processes" if processes > 1 else "of one process"


@exercise.check
def samples_per_second(scaling_report):
    """The samples of all ranks, over the seconds of the run"""
    t = _given(scaling_report, _ONE, _TWO)
    wanted = {1: {"samples_per_second": 8 / 5}, 2: {"samples_per_second": 16 / 8}}
    _expect_entries(t, "scaling_report({1: one, 2: two})", wanted)


@exercise.check
def first_and_last(scaling_report):
    """Ranks that begin and end at different moments, with gaps between their steps"""
    ragged = """ragged = [
    warm_up + [(4, 10.0, 11.0, 13.0), (6, 15.0, 16.0, 18.0)],
    warm_up + [(6, 11.0, 12.5, 13.0), (4, 14.25, 17.0, 20.0)],
]"""
    t = _given(scaling_report, ragged)
    row = {"samples_per_second": 20 / 10, "compute": 6.25 / 20, "late": 2.5 / 20, "exchange": 5 / 20}
    _expect_entries(t, "scaling_report({2: ragged})", {2: row})


_THREE_RUNS = """two = [warm_up + [(4, 10.0, 12.0, 13.0)] for _ in range(2)]
four = [warm_up + [(2, 10.0, 11.0, 12.0)] for _ in range(4)]
eight = [warm_up + [(1, 10.0, 11.0, 11.5), (1, 11.5, 12.0, 12.5)] for _ in range(8)]"""


@exercise.check
def the_base(scaling_report):
    """The base is the run with the fewest processes, wherever it stands"""
    t = _given(scaling_report, _THREE_RUNS)
    wanted = {
        2: {"speedup": 1.0, "efficiency": 1.0},
        4: {"speedup": 4 / (8 / 3), "efficiency": 4 / (8 / 3) * 2 / 4},
        8: {"speedup": 6.4 / (8 / 3), "efficiency": 6.4 / (8 / 3) * 2 / 8},
    }
    _expect_entries(t, "scaling_report({4: four, 8: eight, 2: two})", wanted)


_GROWN = """one = [warm_up + [(8, t, t + 2.0, t + 2.0) for t in (10.0, 12.0, 14.0)]]
same = [warm_up + [(n, 10.0, 11.0, 11.25)] for n in (3, 5)]
grown = [warm_up + [(n, 10.0, 12.0, 12.5)] for n in (12, 4, 9, 7)]
other = [warm_up + [(8, 10.0, 12.0, 12.5)] for _ in range(2)] + [warm_up + [(0, 10.0, 10.5, 12.5)]]"""


@exercise.check
def strong_and_weak(scaling_report):
    """Work that stays the same, grows with the processes, or neither; unequal shares"""
    t = _given(scaling_report, _GROWN)
    wanted = {
        1: {"speedup": 1.0, "efficiency": 1.0, "scaling": "base"},
        2: {"speedup": 1.6, "efficiency": 0.8, "scaling": "strong"},
        3: {"speedup": 1.6, "efficiency": 1.6 / 3, "scaling": "neither"},
        4: {"speedup": 3.2, "efficiency": 0.8, "scaling": "weak"},
    }
    _expect_entries(t, "scaling_report({1: one, 2: same, 3: other, 4: grown})", wanted)


@exercise.check
def weak_from_two(scaling_report):
    """Strong and weak, from a base of two processes; a first step like the others"""
    lines = """first = [(n, 0.0, 9.0, 10.0) for n in range(7)]
two = [[first[6], (6, 10.0, 11.0, 12.0)], [first[2], (2, 10.0, 11.5, 12.0)]]
weak = [[first[4], (4, 10.0, 12.0, 12.5), (4, 12.5, 14.0, 15.0)] for _ in range(4)]
strong = [[first[n], (n, 10.0, 11.0, 11.25)] for n in (1, 2, 0, 3, 2)]
close = [[first[n], (n, 10.0, 11.0, 11.5)] for n in (4, 4, 5)]
other = [[first[2], (2, 10.0, 11.0, 11.5)] for _ in range(8)]"""
    t = _given(scaling_report, lines)
    labels = {2: "base", 3: "neither", 4: "weak", 5: "strong", 8: "neither"}
    wanted = {processes: {"scaling": label} for processes, label in labels.items()}
    _expect_entries(t, "scaling_report({2: two, 3: close, 4: weak, 5: strong, 8: other})", wanted)


@exercise.check
def where_the_time_goes(scaling_report):
    """Late and exchange are told apart, in each step anew"""
    three = """three = [
    warm_up + [(4, 10.0, 11.0, 14.0), (4, 14.0, 17.0, 18.0), (4, 18.0, 19.0, 20.0)],
    warm_up + [(4, 10.0, 13.0, 14.0), (4, 14.5, 15.0, 18.0), (4, 18.0, 19.0, 20.0)],
    warm_up + [(4, 10.0, 12.0, 14.0), (4, 14.0, 16.0, 18.0), (4, 18.0, 19.0, 20.0)],
]"""
    t = _given(scaling_report, _ONE, three)
    row = {"compute": 14.5 / 30, "late": 6 / 30, "exchange": 9 / 30}
    alone = {"compute": 1.0, "late": 0.0, "exchange": 0.0}
    _expect_entries(t, "scaling_report({3: three, 1: one})", {1: alone, 3: row})


# --- a recording of this machine --------------------------------------------------------------------------


def _in_turn(rank, processes, group):
    """The time, noted by one rank after the other. So rank 0 is the first to begin and the last rank the last
    to end: were they one rank by chance, its own time would be that of the run."""
    token = torch.zeros(1)
    if rank > 0:
        dist.recv(token, rank - 1, group=group)
    now = time.perf_counter()
    if rank + 1 < processes:
        dist.send(token, rank + 1, group=group)
    return now


def _recorded(rank, steps, samples, group, processes):
    """What one rank of `processes` does and notes down: products of matrices, and an all-reduce."""
    weight, gradient = torch.eye(64), torch.zeros(64, 64)
    found = []
    for _ in range(steps):
        begin = _in_turn(rank, processes, group)
        for _ in range(samples):
            gradient += weight @ weight
        wait = time.perf_counter()
        dist.all_reduce(gradient, group=group)
        gradient /= processes
        found.append((samples, begin, wait, _in_turn(rank, processes, group)))
    return found


@exercise.check(ranks=4, deadline=20)
def measured(scaling_report, rank, world_size):
    """Runs of 1, 2 and 4 processes on this machine"""
    runs = {}
    for processes in (4, 2, 1):
        group = dist.new_group(list(range(processes)))
        mine = _recorded(rank, 4, 8, group, processes) if rank < processes else None
        everyones = [None] * world_size
        dist.all_gather_object(everyones, mine)
        runs[processes] = everyones[:processes]
    before = copy.deepcopy(runs)
    found = scaling_report(runs)
    # Times are different on every run: what is kept of them is whether they fit together.
    with expect.situation("scaling_report(runs)  # of 1, 2 and 4 processes, recorded on this machine"):
        expect.true(runs == before, "`runs` was changed", "expected: it is as it was")
        for processes, run in runs.items():
            _expect_fits(found[processes], found[1], processes, run)


def _expect_fits(row, base, processes, run):
    told = _of(processes)
    seconds = max(steps[-1][3] for steps in run) - min(steps[1][1] for steps in run)

    def holds(name, value, wanted, wanted_as):
        fits = abs(value - wanted) <= 1e-6 * abs(wanted) + 1e-9
        expect.true(fits, f"`{name!r}` {told} is not what the recording says", f"expected: {wanted_as}")

    holds(
        "samples_per_second",
        row["samples_per_second"],
        3 * 8 * processes / seconds,
        "its samples over its seconds",
    )
    holds(
        "speedup",
        row["speedup"],
        row["samples_per_second"] / base["samples_per_second"],
        "that of its samples per second",
    )
    holds("efficiency", row["efficiency"] * processes, row["speedup"], "the speedup of each process")
    parts = [row[name] for name in ("compute", "late", "exchange")]
    in_steps = sum(step[3] - step[1] for steps in run for step in steps[1:])
    holds("compute + late + exchange", sum(parts), in_steps / (processes * seconds), "the time within steps")
    expect.true(min(parts) > -1e-9, f"a part {told} is negative", "expected: none is")
    expect.equal(row["scaling"], "base" if processes == 1 else "weak", what=f"`'scaling'` {told}")


# --- the mistakes -----------------------------------------------------------------------------------------


def _counted(run):
    return [steps[1:] for steps in run]


def _seconds(run):
    run = _counted(run)
    return max(steps[-1][3] for steps in run) - min(steps[0][1] for steps in run)


def _samples(run):
    return sum(step[0] for steps in _counted(run) for step in steps)


def _rate(run):
    return _samples(run) / _seconds(run)


def _label(run, processes, base, fewest):
    here, there = (sum(steps[1][0] for steps in one) for one in (run, base))
    if processes == fewest:
        return "base"
    return "strong" if here == there else "weak" if here * fewest == there * processes else "neither"


def _parts(run, seconds=None):
    run, whole = _counted(run), len(run) * (seconds or _seconds(run))
    steps = list(zip(*run, strict=True))
    compute = sum(wait - begin for step in steps for _, begin, wait, _ in step)
    exchange = sum(end - max(s[2] for s in step) for step in steps for *_, end in step)
    inside = sum(end - wait for step in steps for _, _, wait, end in step)
    return {"compute": compute / whole, "late": (inside - exchange) / whole, "exchange": exchange / whole}


def _rows(runs, rate=_rate, label=_label, parts=_parts, base=min, efficiency=None):
    """The report, with one of its parts made in another way."""
    first = base(runs)
    report = {}
    for n, run in runs.items():
        row = {"samples_per_second": rate(run)}
        row["speedup"] = row["samples_per_second"] / rate(runs[first])
        row["efficiency"] = (
            row["speedup"] * first / n if efficiency is None else efficiency(row["speedup"], n)
        )
        report[n] = {**row, "scaling": label(run, n, runs[min(runs)], min(runs)), **parts(run)}
    return report


@exercise.mistake
def averages_the_ranks(runs):
    """You take the time that single ranks took. The run begins with the first rank and is over when the last
    one has ended: from the earliest `begin` to the latest `end` of all ranks."""

    def rate(run):
        took = [steps[-1][3] - steps[0][1] for steps in _counted(run)]
        return _samples(run) * len(took) / sum(took)

    return _rows(runs, rate=rate)


@averages_the_ranks.variant
def mean_seconds(runs):
    rates, report = {}, _rows(runs)
    for n, run in runs.items():
        seconds = samples = 0
        for steps in run:
            samples += sum(count for count, *_ in steps[1:])
            seconds += (steps[-1][-1] - steps[1][1]) / n
        rates[n] = samples / seconds
    for n, row in report.items():
        speedup = rates[n] / rates[min(rates)]
        row |= {"samples_per_second": rates[n], "speedup": speedup, "efficiency": speedup / n * min(rates)}
    return report


@averages_the_ranks.form
def longest_of_the_ranks(runs):
    def rate(run):
        return _samples(run) / max(steps[-1][3] - steps[0][1] for steps in _counted(run))

    return _rows(runs, rate=rate)


@averages_the_ranks.form
def adds_what_each_does(runs):
    def rate(run):
        return sum(sum(s[0] for s in steps) / (steps[-1][3] - steps[0][1]) for steps in _counted(run))

    return _rows(runs, rate=rate)


@averages_the_ranks.form
def seconds_of_rank_0(runs):
    def rate(run):
        return _samples(run) / _seconds(run[:1])

    return _rows(runs, rate=rate, parts=lambda run: _parts(run, _seconds(run[:1])))


@exercise.mistake
def adds_up_the_steps(runs):
    """You add up how long the steps took, and leave out the time between them. Whoever waits for the run
    waits for that too: its seconds are those from the earliest `begin` to the latest `end`."""

    def seconds(run):
        steps = zip(*_counted(run), strict=True)
        return sum(max(s[3] for s in step) - min(s[1] for s in step) for step in steps)

    return _rows(runs, rate=lambda run: _samples(run) / seconds(run), parts=lambda r: _parts(r, seconds(r)))


@exercise.mistake
def samples_of_one_rank(runs):
    """You count the samples of rank 0. Every rank has samples of its own, and not always as many: add them up
    over the ranks."""

    def rate(run):
        return sum(step[0] for step in _counted(run)[0]) / _seconds(run)

    return _rows(runs, rate=rate)


@samples_of_one_rank.form
def as_many_on_each(runs):
    def rate(run):
        return len(run) * sum(step[0] for step in _counted(run)[0]) / _seconds(run)

    return _rows(runs, rate=rate)


def _second_label(run, processes, base, fewest):
    return _label(_counted(run), processes, _counted(base), fewest)


@exercise.mistake
def counts_the_warm_up(runs):
    """You count the first step, or its seconds. It takes longer than those after it, for reasons that come
    once: memory is allocated, connections are made, code is loaded."""
    return _rows({n: [[steps[0], *steps] for steps in run] for n, run in runs.items()}, label=_second_label)


@counts_the_warm_up.variant
def from_the_very_beginning(runs):
    shifted = {}
    for n, run in runs.items():
        shifted[n] = [[(0, 0.0, 0.0, 0.0), *steps] for steps in run]
    return _rows(shifted, label=_second_label)


@counts_the_warm_up.form
def labels_by_the_first_step(runs):
    return _rows({n: [[steps[0], *steps] for steps in run] for n, run in runs.items()})


@counts_the_warm_up.form
def labels_by_the_mean_step(runs):
    def label(run, n, base, fewest):
        means = [
            [[None, (sum(s[0] for s in steps[1:]) / len(steps[1:]),)] for steps in one] for one in (run, base)
        ]
        return _label(means[0], n, means[1], fewest)

    return _rows({n: [[steps[0], *steps] for steps in run] for n, run in runs.items()}, label=label)


@counts_the_warm_up.form
def seconds_of_the_warm_up(runs):
    def seconds(run):
        return max(steps[-1][3] for steps in run) - min(steps[0][1] for steps in run)

    return _rows(runs, rate=lambda run: _samples(run) / seconds(run), parts=lambda r: _parts(r, seconds(r)))


@exercise.mistake
def first_is_the_base(runs):
    """You take the run that stands first for the base. It is the one with the fewest processes, wherever it
    stands."""
    return _rows(runs, base=lambda runs: next(iter(runs)))


@first_is_the_base.form
def first_is_the_base_of_labels(runs):
    first = next(iter(runs))
    return _rows(runs, base=lambda _: first, label=lambda run, n, *_: _label(run, n, runs[first], first))


@exercise.mistake
def one_is_the_base(runs):
    """You compare with the run of one process, and there may be none: what needs the memory of two starts
    with two."""
    return _rows(runs, base=lambda runs: 1)


@exercise.mistake
def efficiency_of_one(runs):
    """You divide the speedup by the number of processes, as if the base had one. Where it has two, four
    processes are twice as many, and a speedup of 2 is all there is to gain."""
    return _rows(runs, efficiency=lambda speedup, n: speedup / n)


@exercise.mistake
def ratio_of_times(runs):
    """Your speedup is the time of the base over that of the run. That holds where both did the same work:
    with a step that grows with the processes (weak), or with more steps, more was done in that time."""

    def speedup(n):
        return _seconds(runs[min(runs)]) / _seconds(runs[n])

    report = _rows(runs)
    for n, row in report.items():
        row.update(speedup=speedup(n), efficiency=speedup(n) * min(runs) / n)
    return report


@exercise.mistake
def takes_all_for_weak(runs):
    """You take every run for one whose work has grown with the processes. Where a step has as many samples as
    before (strong), that counts work that nobody did, and efficiencies come out above 1."""
    report, fewest = _rows(runs), min(runs)
    for n, row in report.items():
        row["efficiency"] = _seconds(runs[fewest]) / _seconds(runs[n])
        row["speedup"] = row["efficiency"] * n / fewest
    return report


@exercise.mistake
def label_of_rank_0(runs):
    """You tell strong from weak by the samples of rank 0. Shares may be unequal: a step has the samples of
    all ranks together."""

    def label(run, n, base, fewest):
        here, there = run[0][1][0], base[0][1][0]
        if n == fewest:
            return "base"
        return "strong" if here * n == there * fewest else "weak" if here == there else "neither"

    return _rows(runs, label=label)


@exercise.mistake
def label_of_the_whole_run(runs):
    """You tell strong from weak by the samples of a whole run. One run may have more steps than another:
    compare what one step has."""

    def label(run, n, base, fewest):
        return _label([[None, (_samples(run),)]], n, [[None, (_samples(base),)]], fewest)

    return _rows(runs, label=label)


@exercise.mistake
def all_is_exchange(runs):
    """You take all of the all-reduce for exchange. A rank that calls it early waits there for the last one,
    and no faster network would change that: until the largest `wait` of the step it is late."""

    def parts(run):
        found = _parts(run)
        return {**found, "late": 0.0, "exchange": found["late"] + found["exchange"]}

    return _rows(runs, parts=parts)


@all_is_exchange.variant
def by_two_spans(runs):
    report = _rows(runs)
    for n, run in runs.items():
        everything = [step for steps in run for step in steps[1:]]
        whole = n * (max(s[3] for s in everything) - min(s[1] for s in everything))
        report[n]["exchange"] = sum(end - wait for _, _, wait, end in everything) / whole
        report[n]["late"] = 0.0
    return report


@all_is_exchange.form
def late_in_both(runs):
    def parts(run):
        found = _parts(run)
        return {**found, "exchange": found["late"] + found["exchange"]}

    return _rows(runs, parts=parts)


@exercise.mistake
def parts_of_the_steps(runs):
    """Your three parts always add up to 1, and they need not. Between two steps, before its first and after
    its last one a rank takes up time as well, in which it does none of the three."""

    def parts(run):
        found = _parts(run)
        return {name: value / sum(found.values()) for name, value in found.items()}

    return _rows(runs, parts=parts)


@parts_of_the_steps.form
def exchange_is_the_rest(runs):
    def parts(run):
        found = _parts(run)
        return {**found, "exchange": 1 - found["compute"] - found["late"]}

    return _rows(runs, parts=parts)


@exercise.mistake
def parts_of_rank_0(runs):
    """You look at the time of rank 0 alone. Where ranks have unequal shares, one of them computes while the
    others are late: add up the seconds of all ranks."""

    def parts(run):
        mine, whole = _counted(run)[0], _seconds(run)
        last = [max(step[2] for step in ranks) for ranks in zip(*_counted(run), strict=True)]
        return {
            "compute": sum(wait - begin for _, begin, wait, _ in mine) / whole,
            "late": sum(called - step[2] for called, step in zip(last, mine, strict=True)) / whole,
            "exchange": sum(step[3] - called for called, step in zip(last, mine, strict=True)) / whole,
        }

    return _rows(runs, parts=parts)
