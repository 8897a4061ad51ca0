"""A run has one beginning and one end, whoever is first and last: that is what somebody waits for who started
it. Over these seconds, the samples of all ranks can be compared between any two runs, whether their work is
the same, has grown with the processes, or neither. What a ratio of times says depends on the work.

The time in an all-reduce is of two kinds. Until the last rank has called it, the others are late through no
fault of the network: their shares are unequal, or they share cores. After that the ranks exchange. Other
shares may mend the first, fewer or smaller messages the second.
"""


def scaling_report(
    runs: dict[int, list[list[tuple[int, float, float, float]]]],
) -> dict[int, dict[str, float]]:
    """{processes: for each rank its steps} -> {processes: what they are worth}"""
    report = {n: _row([steps[1:] for steps in run]) for n, run in runs.items()}
    base = min(runs)
    for n, row in report.items():
        row["efficiency"] = row["samples_per_second"] / n / (report[base]["samples_per_second"] / base)
    return report


def _row(run):
    seconds = max(steps[-1][3] for steps in run) - min(steps[0][1] for steps in run)
    samples = compute = late = exchange = 0
    for number in range(len(run[0])):
        step = [steps[number] for steps in run]
        last = max(wait for _, _, wait, _ in step)
        for count, begin, wait, end in step:
            samples += count
            compute += wait - begin
            late += last - wait
            exchange += end - last
    whole = len(run) * seconds
    parts = {"compute": compute / whole, "late": late / whole, "exchange": exchange / whole}
    return {"samples_per_second": samples / seconds, **parts}


# Other right answers

from course_utils.exercise import Edit


def _with_tensors(runs):
    """One tensor (ranks, steps, 4) for each run."""
    import torch

    found, first = {}, min(runs)
    for n in sorted(runs):
        samples, begin, wait, end = torch.tensor(runs[n], dtype=torch.float64)[:, 1:].unbind(-1)
        seconds, last = end.max() - begin.min(), wait.amax(0)
        parts = {"compute": wait - begin, "late": last - wait, "exchange": end - last}
        found[n] = {name: (part.sum() / (n * seconds)).item() for name, part in parts.items()}
        found[n]["samples_per_second"] = (samples.sum() / seconds).item()
        of_base = found[first]["samples_per_second"] * n / first
        found[n]["efficiency"] = found[n]["samples_per_second"] / of_base
    return found


def _by_counting_down(runs):
    """What is in a step and neither compute nor exchange is late."""

    def row(run):
        flat = [step for steps in run for step in steps[1:]]
        elapsed = max(end for *_, end in flat) - min(step[1] for step in flat)
        exchange = 0.0
        for step in list(zip(*run, strict=True))[1:]:
            called = sorted(wait for *_, wait, _ in step)[-1]
            exchange += sum(end - called for *_, end in step)
        compute = sum(step[2] - step[1] for step in flat)
        late = sum(step[3] - step[1] for step in flat) - compute - exchange
        parts = {"compute": compute, "late": late, "exchange": exchange}
        row = {name: seconds / (elapsed * len(run)) for name, seconds in parts.items()}
        return {**row, "samples_per_second": sum(step[0] for step in flat) / elapsed}

    rows = {n: row(run) for n, run in runs.items()}
    each = {n: row["samples_per_second"] / n for n, row in rows.items()}
    return {n: {**row, "efficiency": each[n] / each[min(each)]} for n, row in rows.items()}


also_right = [_with_tensors, _by_counting_down]


# Mistakes

_FIRST = "samples_per_second"
_BEGINS = "min(steps[0][1] for steps in run)"
_OF_BASE = ' / (report[base]["samples_per_second"] / base)'
_WHOLE = "    whole = len(run) * seconds\n"

mistakes = [
    Edit("counts the warm-up", "steps[1:]", "steps", told_by="samples_per_second"),
    Edit(
        "seconds of rank 0",
        _BEGINS,
        "run[0][0][1]\n    seconds = run[0][-1][3] - run[0][0][1]",
        told_by="first_and_last",
    ),
    Edit("parts of the steps", _WHOLE, "    whole = compute + late + exchange\n", told_by="first_and_last"),
    Edit("the first is the base", "min(runs)", "next(iter(runs))", told_by="efficiency"),
    Edit("as if the base had one", _OF_BASE, ' / report[base]["samples_per_second"]', told_by="efficiency"),
    Edit(
        "all is exchange", "exchange += end - last", "exchange += end - wait", told_by="where_the_time_goes"
    ),
    Edit(
        "takes it out", "steps[1:] for steps in run", "steps for steps in run if steps.pop(0)", told_by=_FIRST
    ),
    Edit(
        "rank 0 is the last",
        "last = max(wait for _, _, wait, _ in step)",
        "last = step[0][2]",
        told_by="where_the_time_goes",
    ),
]
not_tried = {
    "hard numbers": "seconds and samples are plain numbers",
    "dtypes": "there is no tensor",
    "left alone": "the lists are compared as text",
}

equivalent = {"line 15: `0` -> `-1`": "all ranks of a run have equally many steps"}
