"""What torchtest2 says of the fourteen sick models and of ten healthy ones, as JSON: run where it is."""

from __future__ import annotations

import json
import time
import warnings

import torchtest2

from course_utils.diagnosis.subject import subject
from tests.benchmarks.bench_peers_diagnose import compared
from tests.sets import Given


def told(given: Given) -> dict[str, object]:
    """The names of the checks that failed and that warned, and how long all took."""
    case = subject(*given[:4])
    inputs = dict(case.kwargs) or case.args
    started = time.perf_counter()
    report = torchtest2.check_model(
        given.model, inputs, case.target, loss_fn=case.loss_fn, optimizer=case.optimizer
    )
    taken = time.perf_counter() - started
    return {
        "failed": [one.name for one in report.failures],
        "warned": [one.name for one in report.warnings],
        "seconds": taken,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps({name: told(make()) for name, make in compared().items()}))
