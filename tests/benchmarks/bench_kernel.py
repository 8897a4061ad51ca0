"""What `measure.kernels` adds to Triton's interpreter."""

import json
import os
import statistics
import subprocess
import sys

import torch

from tests.benchmarks.table import Row, seconds

CALLS = {
    "add_kernel": lambda answer: answer(*torch.randn(2, 10_000)),
    "softmax_kernel": lambda answer: answer(torch.randn(64, 300)),
    "matmul_kernel": lambda answer: answer(*torch.randn(2, 64, 64), 16),
    "transpose_kernel": lambda answer: answer(torch.randn(64, 64)),
    "attention_kernel": lambda answer: answer(*torch.randn(3, 2, 64, 16)),
}


def rows() -> list[Row]:
    # In a process that interprets, and in which nobody watches yet.
    environment = dict(os.environ, TRITON_INTERPRET="1")
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    ratios = json.loads(done.stdout)
    told = ", ".join(f"{name.removesuffix('_kernel')} {ratio:.2f}" for name, ratio in ratios.items())
    return [Row("measure.kernels against the interpreter alone", max(ratios.values()), 3, detail=told)]


def _ratios() -> dict[str, float]:
    from triton.runtime import interpreter

    from course_utils import measure
    from tests.compile_kernels import answers

    references = {name: answers(name)[0] for name in CALLS}
    owners = interpreter, interpreter.InterpreterBuilder, interpreter.GridExecutor
    before = [dict(vars(owner)) for owner in owners]
    measure.guard_kernels()
    replaced = [
        (owner, name, old[name], new)
        for owner, old in zip(owners, before, strict=True)
        for name, new in vars(owner).items()
        if new is not old.get(name)
    ]

    def alone(name: str) -> float:
        for owner, attribute, old, _ in replaced:
            setattr(owner, attribute, old)
        try:
            return seconds(lambda: CALLS[name](references[name]))
        finally:
            for owner, attribute, _, new in replaced:
                setattr(owner, attribute, new)

    def watched(name: str) -> float:
        def call() -> None:
            with measure.kernels() as launches:
                CALLS[name](references[name])
            assert launches

        return seconds(call)

    found = {}
    for name in CALLS:
        alone(name), watched(name)
        found[name] = statistics.median(watched(name) / alone(name) for _ in range(9))
    return found


if __name__ == "__main__":
    print(json.dumps(_ratios()))
