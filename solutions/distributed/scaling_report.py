"""A run has one beginning and one end, whoever is first and last: that is what somebody waits for who started
it. Over these seconds, the samples of all ranks can be compared between any two runs, whether their work is
the same, has grown with the processes, or neither. Speedup and efficiency are two ratios of that, and no case
is needed. What a ratio of times says depends on the work, so it would need one.

The time in an all-reduce is of two kinds. Until the last rank has called it, the others are late through no
fault of the network: their shares are unequal, or they share cores. After that the ranks exchange. The first
is mended by other shares, the second by fewer or smaller messages."""

from typing import Any


def scaling_report(runs: dict[int, list[list[tuple[int, float, float, float]]]]) -> dict[int, dict[str, Any]]:
    """{processes: for each rank its steps} -> {processes: what they are worth}"""
    counted = {n: [steps[1:] for steps in run] for n, run in runs.items()}
    base = min(runs)
    base_batch = sum(steps[0][0] for steps in counted[base])
    rates = {n: _samples(run) / _seconds(run) for n, run in counted.items()}
    report = {}
    for n, run in counted.items():
        batch = sum(steps[0][0] for steps in run)
        if n == base:
            scaling = "base"
        elif batch == base_batch:
            scaling = "strong"
        else:
            scaling = "weak" if batch * base == base_batch * n else "neither"
        speedup = rates[n] / rates[base]
        report[n] = {
            "samples_per_second": rates[n],
            "speedup": speedup,
            "efficiency": speedup * base / n,
            "scaling": scaling,
            **_parts(run),
        }
    return report


def _samples(run):
    return sum(samples for steps in run for samples, *_ in steps)


def _seconds(run):
    return max(steps[-1][3] for steps in run) - min(steps[0][1] for steps in run)


def _parts(run):
    compute = late = exchange = 0.0
    for step in zip(*run, strict=True):
        last = max(wait for _, _, wait, _ in step)
        for _, begin, wait, end in step:
            compute += wait - begin
            late += last - wait
            exchange += end - last
    whole = len(run) * _seconds(run)
    return {"compute": compute / whole, "late": late / whole, "exchange": exchange / whole}


# Other right answers


def with_tensors(runs):
    """One tensor (ranks, steps, 4) for each run."""
    import torch

    found, order = {}, sorted(runs)
    for n in order:
        samples, begin, wait, end = torch.tensor(runs[n], dtype=torch.float64)[:, 1:].unbind(-1)
        seconds, last = end.max() - begin.min(), wait.amax(0)
        parts = (wait - begin, last - wait, end - last)
        row = dict(zip(("compute", "late", "exchange"), (p.sum().item() for p in parts), strict=True))
        row = {name: value / (n * seconds.item()) for name, value in row.items()}
        found[n] = row | {"samples_per_second": (samples.sum() / seconds).item()}
        found[n]["batch"] = int(samples[:, 0].sum())
    first = found[order[0]]
    per_process, batch = first["samples_per_second"] / order[0], first["batch"]
    for n, row in found.items():
        row["efficiency"] = row["samples_per_second"] / n / per_process
        row["speedup"] = row["efficiency"] * (n / order[0])
        kinds = {batch * n / order[0]: "weak", batch: "strong"}
        row["scaling"] = "base" if n == order[0] else kinds.get(row.pop("batch"), "neither")
    return found


def row_by_row(runs):
    """By counting down: what is neither compute nor exchange nor between two steps is late."""
    few = sorted(runs)[0]

    def looked_at(n):
        flat = [step for steps in runs[n] for step in steps[1:]]
        elapsed = max(end for *_, end in flat) - min(step[1] for step in flat)
        return flat, elapsed, sum(step[0] for step in flat)

    def row(n):
        flat, elapsed, samples = looked_at(n)
        _, of_base, work = looked_at(few)
        steps = len(runs[n][0]) - 1
        batch, batch_of_base = samples // steps, work // (len(runs[few][0]) - 1)
        exchange = 0.0
        for i in range(1, steps + 1):
            called = sorted(ranks[i][2] for ranks in runs[n])[-1]
            exchange += sum(ranks[i][3] - called for ranks in runs[n])
        compute = sum(step[2] - step[1] for step in flat)
        inside = sum(step[3] - step[1] for step in flat)
        kind = "neither"
        if batch == batch_of_base:
            kind = "strong"
        if batch / n == batch_of_base / few:
            kind = "weak"
        parts = {"compute": compute, "late": inside - compute - exchange, "exchange": exchange}
        return {
            **{name: seconds / (elapsed * n) for name, seconds in parts.items()},
            "samples_per_second": samples / elapsed,
            "speedup": samples * of_base / (elapsed * work),
            "efficiency": (samples / elapsed / n) / (work / of_base / few),
            "scaling": kind if n > few else "base",
        }

    return {n: row(n) for n in runs}


also_right = [with_tensors, row_by_row]


# Mutants that no check can tell from the reference

_ANY_STEP = "All steps of a run have equally many samples, so any step will do for their number."
_ALL_RANKS = "All ranks of a run have equally many steps."

equivalent = {
    "line 8: `0` -> `-1`": _ANY_STEP,
    "line 12: `0` -> `-1`": _ANY_STEP,
    "line 40: `zip(*run, strict=True)` -> `zip(*run)`": _ALL_RANKS,
    "line 40: `True` -> `False`": _ALL_RANKS,
}


def generated(answer):
    import random

    draw = random.Random(0)

    def run(processes, batch, steps):
        ranks = [[] for _ in range(processes)]
        clock = 0.0
        for _ in range(steps + 1):
            owners = [draw.randrange(processes) for _ in range(batch)]
            begins = [clock + draw.random() for _ in ranks]
            waits = [begin + draw.random() for begin in begins]
            for rank, steps_of_rank in enumerate(ranks):
                end = max(waits) + draw.random()
                steps_of_rank.append((owners.count(rank), begins[rank], waits[rank], end))
            clock = max(steps_of_rank[-1][3] for steps_of_rank in ranks)
        return ranks

    for batches in ([8, 8, 8], [4, 8, 16], [6, 9, 5]):
        yield answer({n: run(n, batch, n + 2) for n, batch in zip((2, 4, 8), batches, strict=True)})
