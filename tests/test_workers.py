"""Warm processes, with what may happen in them. The functions below run in real processes of their own."""

import collections
import contextlib
import ctypes
import itertools
import linecache
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import psutil
import pytest
import torch
from isolation import isolated

from course_utils.processes import client, forkserver, streams, transport, tree, workers
from course_utils.processes.workers import CannotSendError, Worker, WorkersError
from course_utils.stacks import raised

SOON = 2.0  # a deadline for what never ends
LONG = 60.0  # a deadline for what ends


def until(condition, seconds=LONG):
    """Waits for what must come about; fails the test where it does not."""
    patience = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < patience, "this did not come about"
        time.sleep(0.01)


def gone(pid):
    return not tree.alive([pid])


def pids_in(path):
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def note_pid(path):
    with path.open("a") as file:
        file.write(f"{os.getpid()}\n")


@pytest.fixture(scope="module", autouse=True)
def warm():
    """Each worker imports this module; let what it imports itself be there already."""
    with Worker(preload=("pytest", "psutil", "concurrent.futures.thread")) as worker:
        assert worker.call(os.getpid, deadline=LONG).value


# --- values, state, surroundings --------------------------------------------------------------------------


def double(x):
    return 2 * x


def test_a_value_comes_back_also_a_large_one():
    result = isolated(double, torch.arange(3), deadline=LONG)
    assert (result.state, result.value.tolist()) == ("returned", [0, 2, 4])
    assert (result.output, result.how, result.error) == ("", "", None)
    big = torch.arange(5_000_000)
    assert torch.equal(isolated(double, big, deadline=LONG).value, 2 * big)


def test_every_isolated_call_has_a_process_of_its_own_that_is_gone_afterwards():
    pids = [isolated(os.getpid, deadline=LONG).value for _ in range(3)]
    assert len({*pids, os.getpid()}) == 4
    assert all(map(gone, pids))


def recalls(value=None):
    """What was given the time before."""
    before = getattr(sys.modules["torch"], "remembered", None)
    sys.modules["torch"].remembered = value
    return before, os.getpid()


def test_calls_to_one_worker_share_its_state_and_no_other_worker_sees_it():
    with Worker() as worker, Worker() as other:
        assert worker.call(recalls, 7, deadline=LONG).value == (None, worker.pid)
        assert worker.call(raises_deep, 3, deadline=LONG).state == "raised"  # it goes on
        assert worker.call(recalls, deadline=LONG).value == (7, worker.pid)
        assert other.call(recalls, deadline=LONG).value == (None, other.pid)
        assert len({os.getpid(), worker.pid, other.pid}) == 3
    assert not hasattr(torch, "remembered")


def test_a_worker_finds_what_is_found_here(monkeypatch, tmp_path):
    monkeypatch.setenv("A_VARIABLE", "changed after the server was started")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "a_module_of_today.py").write_text("x = 5")
    found = isolated(lambda: (os.environ["A_VARIABLE"], str(Path.cwd()), sys.path), deadline=LONG).value
    assert found == ("changed after the server was started", str(tmp_path), sys.path)
    import a_module_of_today

    assert isolated(getattr, a_module_of_today, "x", deadline=LONG).value == 5


def test_workers_draw_different_numbers_and_use_one_thread():
    def draws():
        return torch.rand(3).tolist(), numpy.random.rand(3).tolist(), torch.get_num_threads()

    one, other = (isolated(draws, deadline=LONG).value for _ in range(2))
    assert one[0] != other[0] and one[1] != other[1]
    assert one[2] == other[2] == 1


def leaves_a_file(note, hang):
    path = Path(tempfile.mkdtemp()) / "left"
    path.write_text("x")
    note.write_text(str(path))
    while hang:
        time.sleep(1)


@pytest.mark.parametrize("hang", [False, True])
def test_temporary_files_go_with_the_worker(tmp_path, hang):
    isolated(leaves_a_file, tmp_path / "note", hang, deadline=SOON if hang else LONG)
    path = Path((tmp_path / "note").read_text())
    assert path.parent.parent.name.startswith("course-")
    assert not path.parent.parent.exists()


# --- what is raised, and where ----------------------------------------------------------------------------


def raises_deep(x):
    return torch.ones(2) @ helper(x)


def helper(x):
    return torch.ones(3).reshape(x, 5)  # this line


def test_a_raise_is_shown_at_the_readers_own_line():
    error = isolated(raises_deep, 2, deadline=LONG).error
    assert error.type == "RuntimeError"
    assert "shape '[2, 5]' is invalid" in error.message
    assert error.frame.function == "helper"
    assert error.frame.source == "return torch.ones(3).reshape(x, 5)  # this line"
    assert [frame.function for frame in error.frames] == ["raises_deep", "helper"]


def raises_inside_torch():
    torch.nn.Linear(2, 2)(torch.ones(3))  # the reader's


def test_of_a_deep_recursion_few_frames_are_kept():
    def deeper(left):
        if not left:
            raise ValueError("at the bottom")
        deeper(left - 1)

    most = sys.getrecursionlimit()
    sys.setrecursionlimit(30_000)
    try:
        deeper(20_000)
    except ValueError as error:
        described = raised(error)
    finally:
        sys.setrecursionlimit(most)
    assert described.frame.source == 'raise ValueError("at the bottom")'
    assert len(described.frames) == 200 and str(described) == "ValueError: at the bottom"


def test_the_readers_line_is_found_above_the_frames_of_torch():
    error = isolated(raises_inside_torch, deadline=LONG).error
    assert error.frame.source == "torch.nn.Linear(2, 2)(torch.ones(3))  # the reader's"
    assert not error.frames[-1].readers


def test_operators_travel_by_name():
    """A function of a notebook that mentions `torch.ops` carries the whole tree with it."""
    operators = torch.ops, torch.ops.aten, torch.ops.aten.add, torch.ops.aten.add.Tensor
    assert pickle.loads(transport.dumps(operators)[0]) == operators
    assert isolated(lambda x: torch.ops.aten.neg(x).item(), torch.ones(()), deadline=LONG).value == -1


def test_generators_of_the_process_travel_by_name():
    own = random.seed, random.random, numpy.random.rand, torch.default_generator.manual_seed
    for here, there in zip(own, pickle.loads(transport.dumps(own)[0]), strict=True):
        assert there.__self__ is here.__self__
    other = torch.Generator()
    assert pickle.loads(transport.dumps(other)[0]) is not other


def test_what_cannot_travel_is_an_error_by_name():
    result = isolated(threading.Lock, deadline=LONG)
    assert result.state == "raised"
    assert "the result, of type lock, cannot be sent" in result.error.message
    lock = threading.Lock()
    with pytest.raises(CannotSendError, match="cannot be sent to another process"):
        isolated(lambda: lock, deadline=LONG)


# --- code that is in no file ------------------------------------------------------------------------------

CELL = """
import torch
import inspect

scale = 3

def inner(x):
    return x * scale

def outer(x):
    if x.sum() > 0:
        x = inner(x)
    return x

class Net(torch.nn.Module):
    def forward(self, x):
        return outer(x)

def fails():
    return Net()(None)

def scripted():
    def twice(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            x = x * 2
        return x
    return torch.jit.script(twice)(torch.ones(1), 3)

def rectified(x):
    return torch.relu(inner(x))

def source_of_all():
    return [inspect.getsource(f) for f in (inner, outer, Net.forward)]

def pickles_plainly():
    import pickle
    return type(pickle.loads(pickle.dumps(Net()))) is Net
"""


@pytest.fixture
def cell(monkeypatch):
    """Definitions as a notebook makes them: in `__main__`, with lines that only `linecache` has."""
    name = "<a cell of a notebook>"
    monkeypatch.setitem(linecache.cache, name, (len(CELL), None, CELL.splitlines(True), name))
    namespace = {"__name__": "__main__"}
    exec(compile(CELL, name, "exec"), namespace)
    for key, value in namespace.items():
        if not key.startswith("__"):
            monkeypatch.setattr(sys.modules["__main__"], key, value, raising=False)
    return namespace


def compiles(function):
    return torch.compile(lambda x: function(x), backend="eager", fullgraph=True)(torch.ones(2)).tolist()


def pickles_an_instance(answer):
    return type(pickle.loads(pickle.dumps(answer()))) is answer


def test_code_of_a_cell_is_at_home_in_a_worker(cell):
    assert isolated(cell["Net"](), torch.ones(2), deadline=LONG).value.tolist() == [3.0, 3.0]
    sources = isolated(cell["source_of_all"], deadline=LONG).value
    assert sources[0] == "def inner(x):\n    return x * scale\n"
    assert sources[2].strip() == "def forward(self, x):\n        return outer(x)"
    # TorchScript finds the source; the compiler follows a function of another module into one of `__main__`,
    # and on to what that uses by name.
    assert isolated(cell["scripted"], deadline=LONG).value.tolist() == [8.0]
    assert isolated(compiles, cell["rectified"], deadline=LONG).value == [3.0, 3.0]
    # Plain pickle finds classes of a cell; their instances come back as instances.
    assert isolated(cell["pickles_plainly"], deadline=LONG).value is True
    assert isolated(pickles_an_instance, cell["Net"], deadline=LONG).value is True
    assert type(isolated(cell["Net"], deadline=LONG).value) is cell["Net"]


def test_a_raise_in_a_cell_shows_the_line_of_the_cell(cell):
    error = isolated(cell["fails"], deadline=LONG).error
    assert error.type == "AttributeError"
    assert error.frame.source == "if x.sum() > 0:"


# --- what does not end ------------------------------------------------------------------------------------


def hangs():
    while True:
        pass  # here


def hangs_and_swallows():
    while True:
        try:
            while True:
                time.sleep(0.01)  # or here
        except BaseException:
            pass


def hangs_in_native_code():
    collections.deque(itertools.count(), maxlen=0)  # holds the interpreter's lock for ever


def hangs_deaf():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    hangs()


def hangs_in_torch():
    torch.futures.Future().wait()  # nobody sets it


def hangs_and_will_not_say():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    hangs()


def prints_and_hangs():
    print("before")
    hangs()


HANGING = {
    hangs: "pass  # here",
    prints_and_hangs: "pass  # here",
    hangs_and_swallows: "time.sleep(0.01)  # or here",
    hangs_in_native_code: "collections.deque(itertools.count(), maxlen=0)",
    hangs_deaf: "pass  # here",
    hangs_in_torch: "torch.futures.Future().wait()  # nobody sets it",
    hangs_and_will_not_say: None,
}


@pytest.fixture(scope="module")
def ended():
    """What came of each of these, and whether its process is gone; they hang side by side."""

    def run(function):
        with Worker() as worker:
            return worker.call(function, deadline=SOON), gone(worker.pid)

    with ThreadPoolExecutor(len(HANGING)) as pool:
        return dict(zip(HANGING, pool.map(run, HANGING), strict=True))


@pytest.mark.parametrize("function", HANGING)
def test_what_hangs_is_ended_and_its_position_known(function, ended):
    result, is_gone = ended[function]
    assert is_gone
    assert (result.state, result.how) == ("timed out", "deadline of 2 s")
    assert (result.output == "before\n") == (function is prints_and_hangs)
    if function is hangs_and_will_not_say:
        assert (result.position, result.describe()) == (None, "did not say where it was")
        return
    # A loop is on one of its two lines.
    assert result.position.frame.function in (function.__name__, "hangs")
    source = result.position.frame.source
    assert HANGING[function] in source or source == "while True:"
    assert "at your line" in result.describe()


# --- what dies --------------------------------------------------------------------------------------------


def segfaults():
    ctypes.string_at(0)


def kills_itself():
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("function", "args", "how", "output"),
    [
        (os._exit, (3,), "exit code 3", ""),
        (os._exit, (0,), "exit code 0", ""),
        (segfaults, (), "signal 11 (SIGSEGV)", ""),
        (os.abort, (), "signal 6 (SIGABRT)", ""),
        (kills_itself, (), "signal 9 (SIGKILL)", "last words\n"),
    ],
)
def test_what_dies_is_reported_with_how_and_leaves_a_closed_worker(function, args, how, output):
    with Worker() as worker:
        result = worker.call(function, *args, deadline=LONG)
        assert (result.state, result.how, result.value, result.output) == ("died", how, None, output)
        with pytest.raises(WorkersError, match="closed"):
            worker.call(double, 1, deadline=LONG)


def dies_later(path):
    def dies():
        while not path.exists():
            time.sleep(0.01)
        os._exit(5)

    threading.Thread(target=dies).start()


def test_a_death_between_two_calls_is_found_by_the_next(tmp_path):
    with Worker() as worker:
        assert worker.call(dies_later, tmp_path / "now", deadline=LONG).state == "returned"
        (tmp_path / "now").touch()
        until(lambda: gone(worker.pid))
        result = worker.call(double, 1, deadline=LONG)
        assert (result.state, result.how) == ("died", "exit code 5")


def closes_everything(seconds):
    os.closerange(0, 4096)
    time.sleep(seconds)
    return "a result that cannot arrive"


def kills_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def test_how_it_ended_is_awaited_where_it_is_told_late():
    with Worker() as worker:
        assert worker.call(os.getpid, deadline=LONG).value
        assert not tree.is_ending(worker.pid)
        os.kill(server_pid(), signal.SIGSTOP)  # it tells no status any more
        worker.begin(kills_itself)
        told = workers.attend([worker], 2.0)
        assert not told and tree.is_ending(worker.pid)
        worker.server.wake()
        until(lambda: workers.attend([worker], 0.5))
        assert "SIGKILL" in worker.finish().how


def writes_everywhere():
    for fd in range(3, 4096):
        with contextlib.suppress(OSError):
            os.write(fd, b"R" * 4000)
    return "a result after garbage"


@pytest.mark.parametrize(
    ("function", "args", "how"),
    [
        (closes_everything, (0,), "it closed its connection or exit code 1"),
        (closes_everything, (1000,), "it closed its connection or exit code 1"),
        (writes_everywhere, (), "what it sent back could not be read"),
    ],
)
def test_who_spoils_the_connection_has_died(function, args, how):
    result = isolated(function, *args, deadline=LONG)
    assert result.state == "died" and result.how in how.split(" or ")


# --- limits -----------------------------------------------------------------------------------------------


def holds_in_children(size, children, seconds):
    for _ in range(children):
        if os.fork() == 0:
            held = bytearray(os.urandom(1 << 20)) * (size >> 20)
            time.sleep(1000)
            os._exit(len(held) > size)
    time.sleep(seconds)
    return "returned"


def test_memory_spread_over_processes_is_counted_together_and_what_forks_share_once(monkeypatch):
    monkeypatch.setattr(workers, "MOST_MEMORY", 1 << 30)
    result = isolated(holds_in_children, 300 << 20, 4, 1000, deadline=LONG)
    assert (result.state, result.how) == ("died", "memory limit of 1.0 GiB")
    # Each of these ten shows 300 MB and more, nearly all of it the server's.
    result = isolated(holds_in_children, 0, 10, 2, deadline=LONG)
    assert result.value == "returned", result


def fork_bomb(path, depth):
    for _ in range(depth):
        os.fork()
        note_pid(path)
    time.sleep(1000)


def test_a_fork_bomb_is_stopped_and_nothing_of_it_is_left(tmp_path):
    result = isolated(fork_bomb, tmp_path / "pids", 9, deadline=LONG)
    assert (result.state, result.how) == ("died", "process limit of 64")
    pids = pids_in(tmp_path / "pids")
    # To be more than 64 they forked 64 times. Who forks again has noted the time before, and who was forked
    # notes that first: one of the 64, at most, is not noted yet.
    assert len(pids) >= 63
    assert not tree.alive(pids)


# --- what is left behind ----------------------------------------------------------------------------------


def starts_a_daemon(path):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for fd in range(256):
                with contextlib.suppress(OSError):
                    os.close(fd)
            note_pid(path)
            time.sleep(1000)
        os._exit(0)
    while not pids_in(path):
        time.sleep(0.01)


def starts_a_program(path):
    program = subprocess.Popen(["sleep", "1000"], start_new_session=True, env={})
    path.write_text(f"{program.pid}\n")


def starts_threads(path):
    for _ in range(5):
        threading.Thread(target=hangs).start()  # not daemons: they would keep an interpreter from ending
    note_pid(path)


def starts_a_daemon_and_dies(path):
    starts_a_daemon(path)
    os._exit(3)


def starts_a_daemon_and_hangs(path):
    starts_a_daemon(path)
    hangs()


@pytest.mark.parametrize(
    ("function", "state"),
    [
        (starts_a_daemon, "returned"),
        (starts_a_program, "returned"),
        (starts_threads, "returned"),
        (starts_a_daemon_and_dies, "died"),
        (starts_a_daemon_and_hangs, "timed out"),
    ],
)
def test_what_an_answer_has_started_ends_with_it(function, state, tmp_path):
    deadline = 2 * SOON if state == "timed out" else LONG  # it has to start the daemon before it hangs
    result = isolated(function, tmp_path / "pids", deadline=deadline)
    assert result.state == state
    (pid,) = pids_in(tmp_path / "pids")
    assert gone(pid)


CLIENT = """
import os, sys, threading, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from course_utils.processes import client, streams, tree, workers
import test_workers
from isolation import isolated
def run():
    isolated(test_workers.starts_a_daemon_and_hangs, Path({folder!r}) / "daemon", deadline=1000)
threading.Thread(target=run, daemon=True).start()
with workers.Worker() as idle:
    idle.call(test_workers.starts_a_program, Path({folder!r}) / "program", deadline=60)
    if os.fork() == 0:
        time.sleep(1000)  # a copy of the client that outlives it, with all its descriptors
    while not test_workers.pids_in(Path({folder!r}, "daemon")):
        time.sleep(0.01)
    server = client.current.process.pid
    print(server, idle.pid, *tree.children(server), flush=True)
    time.sleep(1000)
"""


def test_nothing_is_left_when_the_client_is_killed(tmp_path):
    code = CLIENT.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    client = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        server, idle, *more = map(int, client.stdout.readline().split())
        pids = [server, idle, *more, *pids_in(tmp_path / "daemon"), *pids_in(tmp_path / "program")]
        assert len(set(pids)) >= 5
        assert len(tree.alive(pids)) == len(pids)
        client.kill()
        client.wait()
        until(lambda: not tree.alive(pids))
    finally:
        os.killpg(client.pid, signal.SIGKILL)
        client.stdout.close()


# --- the server -------------------------------------------------------------------------------------------


def server_pid():
    client.warm_up()
    return client.current.process.pid


def test_a_killed_server_is_replaced(tmp_path):
    with Worker() as worker, ThreadPoolExecutor(1) as pool:
        folder = Path(worker.call(tempfile.gettempdir, deadline=LONG).value)
        assert folder.is_dir()
        running = pool.submit(worker.call, starts_a_daemon_and_hangs, tmp_path / "pids", deadline=LONG)
        until(lambda: pids_in(tmp_path / "pids"))
        pid, killed = worker.pid, server_pid()
        os.kill(killed, signal.SIGKILL)
        result = running.result()
        assert (result.state, result.how) == ("died", "the warm server was ended")
        until(lambda: gone(pid))
        assert all(map(gone, pids_in(tmp_path / "pids")))
    assert not folder.exists()
    assert isolated(double, 2, deadline=LONG).value == 4
    assert server_pid() != killed


def test_the_server_has_one_thread_whatever_it_imported():
    with Worker(preload=forkserver.WHEN_IDLE) as worker:
        loaded = worker.call(
            lambda names: [name in sys.modules for name in names], forkserver.WHEN_IDLE, deadline=LONG
        ).value
        assert all(loaded)
    assert psutil.Process(server_pid()).num_threads() == 1


def test_shut_down_ends_everything():
    worker = Worker()
    pids = [worker.call(os.getpid, deadline=LONG).value, server_pid()]
    client.shut_down()
    assert all(map(gone, pids))
    assert isolated(double, 5, deadline=LONG).value == 10


def notes_and_hangs(path):
    note_pid(path)
    hangs()


def test_an_interrupt_ends_the_call_and_the_process(tmp_path):
    def interrupt():
        until(lambda: pids_in(tmp_path / "runs"))
        os.kill(os.getpid(), signal.SIGINT)

    with Worker() as worker, ThreadPoolExecutor(1) as pool:
        with pytest.raises(KeyboardInterrupt):
            pool.submit(interrupt)
            worker.call(notes_and_hangs, tmp_path / "runs", deadline=LONG)
        (pid,) = pids_in(tmp_path / "runs")
        assert gone(pid)


# --- output -----------------------------------------------------------------------------------------------


def prints():
    print("one")
    os.system("echo two")
    print("three", file=sys.stderr)
    ctypes.CDLL(None).puts(b"four")


def test_output_comes_in_the_order_in_which_it_was_printed_and_megabytes_block_nothing():
    assert isolated(prints, deadline=LONG).output == "one\ntwo\nthree\nfour\n"
    result = isolated(lambda: sys.stdout.write("é" * (10 << 20)), deadline=LONG)
    assert result.value == 10 << 20
    assert result.output == "é" * (streams.KEPT_OUTPUT // 2)
    assert result.output_cut == (20 << 20) - streams.KEPT_OUTPUT


def prints_slowly(path):
    print("first")
    while not path.exists():
        time.sleep(0.01)
    print("second")


def test_output_can_be_followed(tmp_path):
    heard = []

    def listen(text):
        heard.append(text)
        (tmp_path / "heard").touch()  # the function waits for this

    result = isolated(prints_slowly, tmp_path / "heard", deadline=LONG, on_output=listen)
    assert (result.state, "".join(heard), result.output) == ("returned", "first\nsecond\n", "first\nsecond\n")


# --- what may fail here -----------------------------------------------------------------------------------


def test_a_server_that_cannot_start_says_why(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('this torch is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    client.shut_down()
    try:
        with pytest.raises(WorkersError, match="ImportError: this torch is broken"):
            isolated(double, 1, deadline=LONG)
    finally:
        monkeypatch.undo()
        client.shut_down()
    assert isolated(double, 1, deadline=LONG).value == 2


def test_a_server_killed_before_it_forked_costs_one_more_attempt():
    os.kill(server_pid(), signal.SIGSTOP)  # it takes no request any more
    threading.Timer(0.3, os.kill, (server_pid(), signal.SIGKILL)).start()
    assert isolated(double, 3, deadline=LONG).value == 6


def nested():
    from course_utils.watching.run_ranks import run_ranks

    return [value.tolist() for value in run_ranks(sums, 2, deadline=LONG)], os.getpid()


def sums(rank, world_size):
    x = torch.tensor(rank + 1.0)
    torch.distributed.all_reduce(x)
    return x


def test_a_worker_may_have_workers_of_its_own():
    result = isolated(nested, deadline=LONG)
    assert result.state == "returned", result.describe()
    values, pid = result.value
    assert values == [3.0, 3.0]
    assert gone(pid)
