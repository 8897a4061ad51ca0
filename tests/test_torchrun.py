"""The reference of `survive_a_lost_worker` in a job of the command `torchrun`. Its check does without: there
the same agent runs in a warm process and forks its workers, so that nothing is imported four times."""

import signal
import subprocess
import sys
from pathlib import Path

import cloudpickle
import psutil
import torch

from course_utils.exercise.kits import groups
from course_utils.lessons import catalog

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = """
import os, pickle, sys
sys.path.insert(0, {root!r})
with open({job!r}, "rb") as file:
    function, args = pickle.load(file)
function(*args)
os._exit(0)  # a process group that is torn down with the interpreter may abort it
"""


def test_a_job_of_the_command_survives_the_loss_of_a_worker(tmp_path):
    reference = catalog.load(ROOT).solution("survive_a_lost_worker").reference
    # It is loaded from a file that nobody can import.
    cloudpickle.register_pickle_by_value(sys.modules[reference.__module__])
    job, script = tmp_path / "job.pkl", tmp_path / "worker.py"
    job.write_bytes(cloudpickle.dumps((groups._worker, (reference, tmp_path, 4, 2))))
    script.write_text(SCRIPT.format(root=str(ROOT), job=str(job)))
    options = ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2", "--max-restarts=1"]
    options += ["--monitor-interval=0.1", f"--log-dir={tmp_path}/logs", str(script)]
    command = [sys.executable, "-m", "torch.distributed.run", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as agent:
        try:
            printed, _ = agent.communicate(timeout=240)
        finally:
            left = psutil.Process(agent.pid).children(recursive=True) if agent.poll() is None else []
            for process in [agent, *left]:
                process.send_signal(signal.SIGKILL)
    assert agent.returncode == 0, printed
    # Rank 1 was killed in `step(2)`, both were started anew, and each had what it had.
    for rank in range(2):
        note = torch.load(tmp_path / f"note {rank}")
        assert note["ran"] == [2, 3]
        assert [*note["had"]] == [*note["has"]]
        for part, tensors in note["had"].items():
            for name, tensor in tensors.items():
                assert torch.equal(note["has"][part][name], tensor), name
