"""What more processes are worth

`runs` holds recordings, `{2: run, 1: run}`, by number of processes. A run has a list for each rank, with
`(samples, begin, wait, end)` for each step; `wait` is when it called the `all_reduce`. **Skip the first
step.** Return a dict for each number:

- `"samples_per_second"`: of all ranks, from the first `begin` to the last `end`;
- `"efficiency"`: that per process, over the same of the run with the fewest;
- `"compute"`, `"late"`, `"exchange"`: the seconds before `wait`, until the last rank calls, and after, added
  up, as parts of all ranks' time: their number times the seconds of the run.

`runs` stays as it is.

Steps `(8, 1, 2, 4)`, `(8, 1, 3.5, 4)` → `16 / 3` per second; parts `3.5 / 6, 1.5 / 6, 1 / 6`
"""

from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=20,
    hints=[
        "A step ends for all ranks when its last rank is done. Which moments decide how long a run took, "
        "and of which ranks are they?",
        "Samples per second can be compared between any batches, and so can the efficiency, even if the "
        "run with the fewest processes has more than one.",
        "The `all_reduce` of a step can begin when the last rank has called it: at the largest `wait` of "
        "that step. Time before it is late, for each rank its own; time after it is exchange.",
    ],
)


@exercise.starter
def scaling_report(
    runs: dict[int, list[list[tuple[int, float, float, float]]]],
) -> dict[int, dict[str, float]]:
    """{processes: for each rank its steps} -> {processes: what they are worth}"""
    raise NotImplementedError


# Its samples and seconds would be seen in every number.
_WARM_UP = "warm_up = [(4, 0.0, 9.0, 10.0)]\n"


def _expect_entries(scaling_report, setup, expression, wanted):
    """The entries that are `wanted` of each number of processes."""
    t = expect.given(f"{_WARM_UP}{setup}\nruns = {expression}", scaling_report=scaling_report)
    before = repr(t.runs)
    found = t.call("scaling_report(runs)")
    told = "`runs` was changed: the caller's lists are not what they were before the call"
    expect.true(repr(t.runs) == before, told, "expected: they are left as they are")
    if not isinstance(found, dict) or any(not isinstance(row, dict) for row in found.values()):
        expect.equal(found, wanted)
    expect.equal(sorted(found, key=str), sorted(wanted), what="the list of the numbers of processes")
    for processes, entries in wanted.items():
        looked_at = {name: value for name, value in found[processes].items() if name in entries}
        what = f"`result[{processes}]`"
        expect.equal(looked_at, entries, what=what, factors={"the number of processes": processes})


@exercise.check
def samples_per_second(scaling_report):
    """The samples of all ranks, over the seconds of the run

    The first step often takes longer, for reasons that come once: memory is allocated, connections are made,
    code is loaded. All other steps count, and all ranks, whose shares may be unequal.
    """
    setup = """one = [warm_up + [(4, 10.0, 12.0, 12.0), (4, 12.0, 15.0, 15.0)]]
two = [
    warm_up + [(3, 10.0, 11.0, 14.0), (3, 14.0, 15.0, 18.0)],
    warm_up + [(5, 10.0, 13.0, 14.0), (5, 14.0, 17.0, 18.0)],
]"""
    wanted = {1: {"samples_per_second": 8 / 5}, 2: {"samples_per_second": 16 / 8}}
    _expect_entries(scaling_report, setup, "{1: one, 2: two}", wanted)


@exercise.check
def first_and_last(scaling_report):
    """Ranks that begin and end at different moments, with gaps between their steps

    A run lasts from the moment when its first rank begins to the moment when its last one ends. Loading data,
    or a step of the optimizer, takes time too, in which a rank does none of the three.
    """
    setup = """ragged = [
    warm_up + [(4, 10.0, 11.0, 13.0), (6, 15.0, 16.0, 18.0)],
    warm_up + [(6, 11.0, 12.5, 13.0), (4, 14.25, 17.0, 20.0)],
]"""
    row = {"samples_per_second": 20 / 10, "compute": 6.25 / 20}
    _expect_entries(scaling_report, setup, "{2: ragged}", {2: row})


@exercise.check
def efficiency(scaling_report):
    """Efficiency is per process, and measured against the run with the fewest

    A program that needs the memory of two starts with two processes: four are twice as many. If a step has
    more samples than before, or a run more steps, a ratio of times says nothing about samples.
    """
    setup = """two = [warm_up + [(4, 10.0, 12.0, 13.0)] for _ in range(2)]
four = [warm_up + [(2, 10.0, 11.0, 12.0)] for _ in range(4)]
eight = [warm_up + [(4, 10.0, 11.0, 13.0), (4, 13.0, 14.0, 16.0)] for _ in range(8)]"""
    wanted = {2: {"efficiency": 1.0}, 4: {"efficiency": 3 / 4}, 8: {"efficiency": 1.0}}
    with Rows() as rows:
        for label, runs in (
            ("two processes first", "{2: two, 4: four, 8: eight}"),
            ("two processes last", "{4: four, 2: two}"),
        ):
            with rows.of(label):
                here = {n: row for n, row in wanted.items() if f"{n}:" in runs}
                _expect_entries(scaling_report, setup, runs, here)


@exercise.check
def where_the_time_goes(scaling_report):
    """Late and exchange are told apart, in each step anew, for all ranks

    An `all_reduce` can't end before its last rank has called it. Until then somebody is late, and a faster
    network wouldn't change that: other shares could. While one rank computes, another may be late, so add up
    the seconds of all ranks.
    """
    setup = """one = [warm_up + [(4, 10.0, 12.0, 12.0)]]
three = [
    warm_up + [(4, 10.0, 11.0, 14.0), (4, 14.0, 17.0, 18.0), (4, 18.0, 19.0, 20.0)],
    warm_up + [(4, 10.0, 13.0, 14.0), (4, 14.5, 15.0, 18.0), (4, 18.0, 19.0, 20.0)],
    warm_up + [(4, 10.0, 12.0, 14.0), (4, 14.0, 16.0, 18.0), (4, 18.0, 19.0, 20.0)],
]"""
    row = {"compute": 14.5 / 30, "late": 6 / 30, "exchange": 9 / 30}
    alone = {"compute": 1.0, "late": 0.0, "exchange": 0.0}
    _expect_entries(scaling_report, setup, "{3: three, 1: one}", {1: alone, 3: row})
