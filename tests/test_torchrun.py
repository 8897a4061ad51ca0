"""The reference of `survive_a_lost_worker` in a job of the command `torchrun`. Its check does without: there
the same agent runs in a warm process and forks its workers, so that nothing is imported six times."""

import signal
import subprocess
import sys
from pathlib import Path

import cloudpickle
import psutil

from course_utils import catalog

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = """
import pickle, sys
sys.path.insert(0, {root!r})
with open({job!r}, "rb") as file:
    function, args = pickle.load(file)
function(*args)
"""


def test_a_job_of_the_command_survives_the_loss_of_two_workers(tmp_path):
    name = "survive_a_lost_worker"
    course = catalog.load(ROOT)
    reference = course.solution(name).reference
    exercise = sys.modules[f"exercises.{course.lesson_of(name).topic}.{name}"]
    for module in (exercise, sys.modules[reference.__module__]):
        cloudpickle.register_pickle_by_value(module)  # it is loaded from a file that nobody can import
    for folder in ("job", "told"):
        (tmp_path / folder).mkdir()
    job, script = tmp_path / "job.pkl", tmp_path / "worker.py"
    job.write_bytes(cloudpickle.dumps((exercise._worker, (reference, tmp_path))))
    script.write_text(SCRIPT.format(root=str(ROOT), job=str(job)))
    options = ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2", "--max-restarts=2"]
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
    # Both were killed, each time all started anew, and the weights are those of an undisturbed run.
    assert sorted(path.name for path in (tmp_path / "told").glob("killed *")) == ["killed 0", "killed 1"]
    exercise._expect_job(reference, tmp_path / "told")
