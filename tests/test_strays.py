"""Nothing of any rank stays: no process, no file, no port, however its run ended and whoever ended it.

All that runs here, and all that it starts, carries a mark in its environment, and makes its temporary files
in a folder that is looked at afterwards. What torch compiles is to stay: it is kept elsewhere.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from course_utils.processes.ranks import run_group
from course_utils.watching.run_ranks import run_ranks

MARK = "STRAYS_OF"
PATIENCE = 60.0


def surroundings(mark, folder):
    """The environment of what is started here; its temporary files go to `folder`, which is made."""
    folder.mkdir()
    compiled = str(folder.with_name("compiled"))
    return {MARK: mark, "TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": compiled}


def marked(mark):
    """The processes that carry the mark, those that have ended and wait to be noticed left out."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def until(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


# --- what ranks do ----------------------------------------------------------------------------------------


def leaves_things(rank, folder, world_size=2):
    """A child in a session of its own, a port that listens, a temporary file; tells it, and waits for all."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    listening = socket.create_server(("127.0.0.1", 0))
    _, name = tempfile.mkstemp()
    told = {"pids": [os.getpid(), child.pid], "port": listening.getsockname()[1], "file": name}
    (folder / f"{rank}.part").write_text(json.dumps(told))
    (folder / f"{rank}.part").rename(folder / f"{rank}.json")
    told_by(folder, world_size)  # whoever ended before would take along a rank that has said nothing yet
    return listening


def hangs(rank, world_size, folder):
    kept = leaves_things(rank, folder)
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    return kept and None


def dies(rank, world_size, folder):
    if rank == 1:
        leaves_things(rank, folder)
        os.kill(os.getpid(), signal.SIGKILL)
    return hangs(rank, world_size, folder)


def raises(rank, world_size, folder):
    if rank == 1:
        leaves_things(rank, folder)
        raise ValueError("no")
    return hangs(rank, world_size, folder)


def loops(rank, world_size, folder):
    kept = leaves_things(rank, folder)
    while kept:
        time.sleep(0.01)


def told_by(folder, world_size=2):
    paths = [folder / f"{rank}.json" for rank in range(world_size)]
    until(lambda: all(path.exists() for path in paths), "the ranks did not start")
    return [json.loads(path.read_text()) for path in paths]


def is_open(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def expect_nothing(told):
    pids = [pid for each in told for pid in each["pids"]]
    until(lambda: not any(map(psutil.pid_exists, pids)), "a process is left")
    assert not [each["port"] for each in told if is_open(each["port"])]
    until(lambda: not [each["file"] for each in told if Path(each["file"]).exists()], "a file is left")


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("end", [hangs, dies, raises])
def test_nothing_is_left_of_a_run_that_fails(end, record, tmp_path):
    if record:
        run_ranks(end, 2, tmp_path, deadline=PATIENCE, trace=True)
    else:
        states = [result.state for result in run_group(end, 2, tmp_path, deadline=PATIENCE)]
        assert set(states) & {"timed out", "died", "raised"}
    expect_nothing(told_by(tmp_path))


def keeps_shared_memory(rank, world_size):
    return SharedMemory(create=True, size=8).name


def test_shared_memory_that_a_rank_has_left_is_unlinked():
    names = run_ranks(keeps_shared_memory, 2, deadline=PATIENCE)
    until(lambda: not any(Path("/dev/shm", name).exists() for name in names), "shared memory is left")


# --- twenty times --------------------------------------------------------------------------------------

TWENTY = """
import os, signal, sys
from concurrent.futures import ThreadPoolExecutor
import torch, torch.distributed as dist
from course_utils.processes.ranks import run_group

def hangs(rank, world_size):
    if rank == 0:
        dist.all_reduce(torch.ones(1))

def dies(rank, world_size):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))

def raises(rank, world_size):
    if rank == 1:
        raise ValueError("no")
    dist.all_reduce(torch.ones(1))

def once(end):
    return {result.state for result in run_group(end, 2, deadline=120)}

with ThreadPoolExecutor(8) as together:
    found = list(together.map(once, [hangs, dies, raises] * 20))
expected = [{"timed out", "returned"}, {"died"}, {"raised"}] * 20
assert all(state >= want for state, want in zip(found, expected)), found
print("ENDED", flush=True)
sys.stdin.readline()
"""


def test_twenty_runs_of_a_hanging_a_dying_and_a_raising_rank_leave_nothing(tmp_path):
    mark, files = uuid.uuid4().hex, tmp_path / "files"
    client = subprocess.Popen(
        [sys.executable, "-c", TWENTY],
        env={**os.environ, **surroundings(mark, files), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert client.stdout.readline() == "ENDED\n"
        # While it lives, its warm server is there and nothing else; no file.
        server = [child.pid for child in psutil.Process(client.pid).children()]
        until(lambda: set(marked(mark)) == {client.pid, *server}, "processes are left")
        assert len(server) == 1
        until(lambda: list(files.iterdir()) == [], "a folder is left")
        assert len(psutil.Process(client.pid).open_files()) == 0
        assert psutil.Process(client.pid).num_fds() < 30
        client.stdin.write("\n")
        client.stdin.flush()
        assert client.wait(PATIENCE) == 0
    finally:
        client.kill()
        client.wait()
    until(lambda: not marked(mark), "the server is left")
    assert list(files.iterdir()) == []


# --- a kernel that is interrupted, restarted, killed --------------------------------------------------------

CELL = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import test_strays
from course_utils.watching.run_ranks import run_ranks
run_ranks(test_strays.loops, 2, Path({folder!r}), deadline=1000, trace={trace})
"""


@pytest.fixture
def kernel(tmp_path):
    """A real kernel with a mark of its own: (manager, client, mark, its folder for temporary files)."""
    from jupyter_client.manager import start_new_kernel

    mark, files = uuid.uuid4().hex, tmp_path / "files"
    environment = {**os.environ, **surroundings(mark, files)}
    manager, client = start_new_kernel(kernel_name="python3", env=environment)
    try:
        yield manager, client, mark, files
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def start(client, folder, trace=False):
    folder.mkdir()
    tests = str(Path(__file__).parent)
    cell = CELL.format(tests=tests, folder=str(folder), trace=trace)
    # After a cell that raised, a kernel would refuse for a moment what comes next, as if it had been queued.
    asked = client.execute(cell, stop_on_error=False)
    return asked, told_by(folder)


@pytest.mark.parametrize(("how", "record"), [("killed", False), ("restarted", True), ("shut down", False)])
def test_nothing_is_left_when_the_kernel_is_interrupted_and_when_it_ends(kernel, tmp_path, how, record):
    manager, client, mark, files = kernel
    asked, told = start(client, tmp_path / "interrupted", record)
    manager.interrupt_kernel()
    reply = client.get_shell_msg(timeout=PATIENCE)
    while reply["parent_header"].get("msg_id") != asked:
        reply = client.get_shell_msg(timeout=PATIENCE)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    expect_nothing(told)
    until(lambda: list(files.iterdir()) == [], "a folder is left")
    # And the next run works.
    _, told = start(client, tmp_path / "ended", record)
    before = marked(mark)
    assert len(before) >= 6  # the kernel, the server, two ranks and their children
    if how == "killed":
        os.kill(manager.provisioner.process.pid, signal.SIGKILL)
    elif how == "restarted":
        manager.restart_kernel(now=True)
    else:
        manager.shutdown_kernel()
    expect_nothing(told)
    until(lambda: not set(marked(mark)) & set(before), "a process is left")
    assert list(files.iterdir()) == []
