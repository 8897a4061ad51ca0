"""`diagnose` and torchtest2's `check_model` on the same fourteen sick models and ten healthy ones.

Each is called as its documentation calls it first: model, batch, loss and optimizer. Of torchtest2 a cause
counts as named where a check that is about it fails or warns; a healthy model as accused where one fails. It
lives in the peers' virtual environment, given by PEERS.
"""

import json
import os
import subprocess
from pathlib import Path

import torch

from course_utils.diagnosis import diagnose
from tests.benchmarks.table import Row, seconds
from tests.sets import HEALTHY, Make
from tests.sets.sick_fourteen import FOURTEEN

ROOT = Path(__file__).parent.parent.parent
# Each takes its batch first, as torchtest2 expects unless it is told.
TEN = ("frozen_backbone", "lora", "tied_head", "rare_rows", "idle_experts")
TEN += ("unused_in_training", "zero_residual", "siamese", "batch_of_one", "masked_words")
# Which of torchtest2's checks are about a cause, by its table of "typical bugs".
ABOUT = {
    "list_of_layers": ("optimizer_coverage", "gradient_flow"),
    "broadcast_loss": ("loss", "output_varies"),
    "double_softmax": ("loss", "initial_loss", "output_range"),
    "shared_norm": ("batch_independence",),
    "decayed_norms": ("optimizer_coverage",),
    "frozen_weight": ("frozen_params", "gradient_flow"),
    "unused_parameter": ("gradient_flow",),
    "stale_optimizer": ("optimizer_coverage",),
    "cut_graph": ("gradient_flow",),
    "mixed_batch": ("batch_independence",),
    "dropout_in_evaluation": ("eval_determinism",),
    "unmoved": ("params_change",),
    "nan_loss": ("output_finite", "gradient_magnitude"),
    "softmax_over_batch": ("batch_independence",),
}


def compared() -> dict[str, Make]:
    return {name: one.make for name, one in FOURTEEN.items()} | {name: HEALTHY[name] for name in TEN}


def rows() -> list[Row]:
    python = Path(os.environ["PEERS"]).resolve() / "bin" / "python"
    command = [python, "-m", "tests.benchmarks.torchtest2_told"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    theirs = json.loads(subprocess.check_output(command, cwd=ROOT, text=True, env=environment))
    ours, times = {}, {}
    for name, make in compared().items():
        given = make()
        times[name] = seconds(lambda name=name, given=given: ours.setdefault(name, diagnose(*given[:4])))
    named = sum(one.cause in ours[name].causes for name, one in FOURTEEN.items())
    also = sum(
        any(check in theirs[name]["failed"] + theirs[name]["warned"] for check in ABOUT[name])
        for name in FOURTEEN
    )
    alarms = sum(bool(ours[name].faults) for name in TEN)
    theirs_wrong = sum(bool(theirs[name]["failed"]) for name in TEN)
    taken, theirs_taken = sum(times.values()), sum(one["seconds"] for one in theirs.values())
    return [
        Row("fourteen sick models: causes named", named, 13, False, "", f"torchtest2: {also}"),
        Row("ten healthy models: accused", alarms, 0, unit="", detail=f"torchtest2: {theirs_wrong}"),
        Row(
            "a model: torchtest2 / diagnose",
            theirs_taken / taken,
            1,
            False,
            detail=f"{theirs_taken / len(times):.2f} s, {taken / len(times):.2f} s",
        ),
    ]
