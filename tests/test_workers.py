"""Warm processes, with what may happen in them. The functions below run in real processes of their own."""

import collections
import ctypes
import functools
import importlib.util
import inspect
import itertools
import linecache
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import psutil
import pytest
import torch
from isolation import isolated

from course_utils.processes import client, streams, transport, tree, worker_server
from course_utils.processes.workers import CannotSendError, Worker, WorkersError

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
        assert worker.pid


# --- values, state, surroundings --------------------------------------------------------------------------


def double(x):
    return 2 * x


def test_a_value_comes_back():
    result = isolated(double, torch.arange(3), deadline=LONG)
    assert result.state == "returned"
    assert result.value.tolist() == [0, 2, 4]
    assert (result.output, result.how, result.error) == ("", "", None)


def test_every_isolated_call_has_a_process_of_its_own_that_is_gone_afterwards():
    pids = [isolated(os.getpid, deadline=LONG).value for _ in range(3)]
    assert len({*pids, os.getpid()}) == 4
    assert all(map(gone, pids))


def remember(value):
    sys.modules["torch"].remembered = value
    return os.getpid()


def recall():
    return getattr(sys.modules["torch"], "remembered", None), os.getpid()


def test_calls_to_one_worker_share_its_state_and_no_other_worker_sees_it():
    with Worker() as worker, Worker() as other:
        pid = worker.call(remember, 7, deadline=LONG).value
        assert worker.call(recall, deadline=LONG).value == (7, pid)
        assert other.call(recall, deadline=LONG).value == (None, other.pid)
        assert worker.pid == pid
    assert not hasattr(torch, "remembered")


def test_a_raise_does_not_end_the_worker():
    with Worker() as worker:
        assert worker.call(raises_deep, 3, deadline=LONG).state == "raised"
        assert worker.call(double, 3, deadline=LONG).value == 6


def test_a_closed_worker_says_so():
    worker = Worker()
    worker.close()
    worker.close()
    with pytest.raises(WorkersError, match="closed"):
        worker.call(double, 1, deadline=LONG)


def surroundings():
    return os.environ.get("A_VARIABLE"), os.environ.get("OPENBLAS_NUM_THREADS"), str(Path.cwd()), sys.path


def test_a_worker_finds_what_is_found_here(monkeypatch, tmp_path):
    monkeypatch.setenv("A_VARIABLE", "changed after the server was started")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "a_module_of_today.py").write_text("x = 5")
    variable, threads, folder, path = isolated(surroundings, deadline=LONG).value
    assert variable == "changed after the server was started"
    assert threads == os.environ.get("OPENBLAS_NUM_THREADS")
    assert (folder, path) == (str(tmp_path), sys.path)
    import a_module_of_today

    assert isolated(getattr, a_module_of_today, "x", deadline=LONG).value == 5


def first_numbers():
    import numpy

    return torch.rand(3).tolist(), numpy.random.rand(3).tolist(), torch.get_num_threads()


def test_workers_draw_different_numbers_and_use_one_thread():
    one, other = (isolated(first_numbers, deadline=LONG).value for _ in range(2))
    assert one[0] != other[0]
    assert one[1] != other[1]
    assert one[2] == other[2] == 1


def leaves_a_file():
    path = Path(tempfile.mkdtemp()) / "left"
    path.write_text("x")
    return str(path)


def leaves_a_file_and_hangs(note):
    note.write_text(leaves_a_file())
    time.sleep(1000)


def test_temporary_files_go_with_the_worker(tmp_path):
    path = Path(isolated(leaves_a_file, deadline=LONG).value)
    assert path.parent.parent.name.startswith("course-")
    assert not path.parent.parent.exists()
    isolated(leaves_a_file_and_hangs, tmp_path / "note", deadline=SOON)
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
    assert (error.type, error.is_a[:2]) == ("RuntimeError", ("RuntimeError", "Exception"))
    assert "shape '[2, 5]' is invalid" in error.message
    assert error.frame.function == "helper"
    assert error.frame.source == "return torch.ones(3).reshape(x, 5)  # this line"
    assert [frame.function for frame in error.frames] == ["raises_deep", "helper"]
    assert "course_utils" not in error.text
    assert error.text.endswith("RuntimeError: " + error.message)


def raises_inside_torch():
    torch.nn.Linear(2, 2)(torch.ones(3))  # the reader's


def test_the_readers_line_is_found_above_the_frames_of_torch():
    error = isolated(raises_inside_torch, deadline=LONG).error
    assert error.frame.source == "torch.nn.Linear(2, 2)(torch.ones(3))  # the reader's"
    assert not error.frames[-1].readers


class Nasty(Exception):
    def __str__(self):
        raise ValueError("my text fails too")


def raises_nasty():
    raise Nasty


def leaves():
    sys.exit("no more")


def interrupts_itself():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "function, type_, message",
    [
        (raises_nasty, "Nasty", "<its message cannot be shown>"),
        (leaves, "SystemExit", "no more"),
        (interrupts_itself, "KeyboardInterrupt", ""),
    ],
)
def test_whatever_is_raised_is_reported(function, type_, message):
    result = isolated(function, deadline=LONG)
    assert (result.state, result.error.type, result.error.message) == ("raised", type_, message)


def operators():
    return torch.ops, torch.ops.aten, torch.ops.aten.add, torch.ops.aten.add.Tensor


def test_operators_travel_by_name():
    """A function of a notebook that mentions `torch.ops` carries the whole tree with it."""
    assert pickle.loads(transport.dumps(operators())[0]) == operators()
    assert isolated(operators, deadline=LONG).value == operators()
    assert isolated(lambda x: torch.ops.aten.neg(x).item(), torch.ones(()), deadline=LONG).value == -1


def test_a_result_that_cannot_travel_is_an_error_by_name():
    result = isolated(threading.Lock, deadline=LONG)
    assert result.state == "raised"
    assert "the result, of type lock, cannot be sent" in result.error.message


def test_a_function_that_cannot_travel_is_refused_here():
    lock = threading.Lock()
    with pytest.raises(CannotSendError, match="cannot be sent to another process"):
        isolated(lambda: lock, deadline=LONG)


def settings():
    return torch._dynamo.config


def test_a_module_of_a_kind_of_its_own_travels_by_name():
    assert settings() is pickle.loads(transport.dumps(settings())[0])
    assert isolated(settings, deadline=LONG).state == "returned"


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


def test_code_of_a_cell_runs_and_shows_its_source(cell):
    assert isolated(cell["Net"](), torch.ones(2), deadline=LONG).value.tolist() == [3.0, 3.0]
    sources = isolated(cell["source_of_all"], deadline=LONG).value
    assert sources[0] == "def inner(x):\n    return x * scale\n"
    assert sources[2].strip() == "def forward(self, x):\n        return outer(x)"


def test_a_raise_in_a_cell_shows_the_line_of_the_cell(cell):
    error = isolated(cell["fails"], deadline=LONG).error
    assert error.type == "AttributeError"
    assert error.frame.source == "if x.sum() > 0:"
    assert "if x.sum() > 0:" in error.text


def test_torchscript_compiles_code_of_a_cell(cell):
    assert isolated(cell["scripted"], deadline=LONG).value.tolist() == [8.0]


def compiles(function):
    return torch.compile(lambda x: function(x), backend="eager", fullgraph=True)(torch.ones(2)).tolist()


def test_the_compiler_follows_code_of_a_cell(cell):
    """From a function of another module into one of `__main__`, and on to what that uses by name."""
    assert isolated(compiles, cell["rectified"], deadline=LONG).value == [3.0, 3.0]


def test_plain_pickle_finds_classes_of_a_cell(cell):
    assert isolated(cell["pickles_plainly"], deadline=LONG).value is True


def pickles_an_instance(answer):
    return type(pickle.loads(pickle.dumps(answer()))) is answer


def test_plain_pickle_finds_a_class_of_a_cell_that_is_handed_in(cell):
    assert isolated(pickles_an_instance, cell["Net"], deadline=LONG).value is True


def test_instances_of_classes_of_a_cell_come_back_as_instances(cell):
    assert type(isolated(cell["Net"], deadline=LONG).value) is cell["Net"]


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


@pytest.mark.parametrize(
    "function, source",
    [
        (hangs, "pass  # here"),
        (hangs_and_swallows, "time.sleep(0.01)  # or here"),
        (hangs_in_native_code, "collections.deque(itertools.count(), maxlen=0)"),
        (hangs_deaf, "pass  # here"),
        (hangs_in_torch, "torch.futures.Future().wait()  # nobody sets it"),
    ],
)
def test_what_hangs_is_ended_and_its_position_known(function, source):
    with Worker() as worker:
        pid = worker.pid
        result = worker.call(function, deadline=SOON)
        assert gone(pid)
    assert (result.state, result.how) == ("timed out", "deadline of 2 s")
    # A loop is on one of its two lines.
    assert result.position.frame.function in (function.__name__, "hangs")
    assert result.position.frame.source in (source, "while True:") or source in result.position.frame.source
    assert "at your line" in result.describe()


def hangs_and_will_not_say():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    hangs()


def test_a_position_that_cannot_be_had_is_none():
    result = isolated(hangs_and_will_not_say, deadline=SOON)
    assert (result.state, result.position) == ("timed out", None)
    assert result.describe() == "did not say where it was"


def prints_and_hangs():
    print("before")
    hangs()


def test_what_was_printed_before_a_hang_is_kept():
    assert isolated(prints_and_hangs, deadline=SOON).output == "before\n"


# --- what dies --------------------------------------------------------------------------------------------


def segfaults():
    ctypes.string_at(0)


def raises_in_native_code():
    os.abort()


@pytest.mark.parametrize(
    "function, args, how",
    [
        (os._exit, (3,), "exit code 3"),
        (os._exit, (0,), "exit code 0"),
        (segfaults, (), "signal 11 (SIGSEGV)"),
        (raises_in_native_code, (), "signal 6 (SIGABRT)"),
    ],
)
def test_what_dies_is_reported_with_how(function, args, how):
    result = isolated(function, *args, deadline=LONG)
    assert (result.state, result.how, result.value) == ("died", how, None)


def kills_itself():
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_was_printed_before_a_death_is_kept():
    result = isolated(kills_itself, deadline=LONG)
    assert (result.state, result.how, result.output) == ("died", "signal 9 (SIGKILL)", "last words\n")


def test_after_a_death_the_worker_is_closed():
    with Worker() as worker:
        worker.call(os._exit, 1, deadline=LONG)
        with pytest.raises(WorkersError):
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


def closes_everything():
    os.closerange(0, 4096)
    return "a result that cannot arrive"


def closes_everything_and_hangs():
    os.closerange(0, 4096)
    time.sleep(1000)


@pytest.mark.parametrize("function", [closes_everything, closes_everything_and_hangs])
def test_a_process_that_closes_all_its_descriptors_has_died(function):
    result = isolated(function, deadline=LONG)
    assert result.state == "died"
    assert result.how in ("it closed its connection", "exit code 1")


def writes_everywhere():
    for fd in range(3, 4096):
        try:
            os.write(fd, b"R" * 4000)
        except OSError:
            continue
    return "a result after garbage"


def test_garbage_on_the_connection_is_not_a_result():
    result = isolated(writes_everywhere, deadline=LONG)
    assert (result.state, result.how) == ("died", "what it sent back could not be read")


def forks_and_both_return(path):
    pid = os.fork()
    note_pid(path)
    if pid:
        os.waitpid(pid, 0)
    return "parent" if pid else "child"


def test_a_forked_copy_of_an_answer_gives_no_result(tmp_path):
    with Worker() as worker:
        assert worker.call(forks_and_both_return, tmp_path / "pids", deadline=LONG).value == "parent"
        assert worker.call(double, 4, deadline=LONG).value == 8
    assert len(pids_in(tmp_path / "pids")) == 2


# --- limits -----------------------------------------------------------------------------------------------


def takes_at_once(size):
    return torch.empty(size, dtype=torch.uint8).numel()


def holds(size, seconds=1000.0):
    held = bytearray(os.urandom(1 << 20)) * (size >> 20)
    time.sleep(seconds)
    return len(held)


def holds_in_children(size, children):
    for _ in range(children):
        if os.fork() == 0:
            holds(size)
    time.sleep(1000)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
def test_forty_gigabytes_at_once_are_refused():
    result = isolated(takes_at_once, 40 << 30, deadline=LONG)
    assert result.state == "raised"
    assert "you tried to allocate 42949672960 bytes" in result.error.message
    assert result.error.frame.source == "return torch.empty(size, dtype=torch.uint8).numel()"
    assert result.how.startswith("memory limit of")


def test_memory_spread_over_processes_is_counted_together():
    result = isolated(holds_in_children, 300 << 20, 4, deadline=LONG, memory=1 << 30)
    assert (result.state, result.how) == ("died", "memory limit of 1.0 GiB")


def sleeps_in_children(children):
    for _ in range(children):
        if os.fork() == 0:
            time.sleep(1000)
    time.sleep(2)
    return "returned"


def test_pages_that_forks_share_are_counted_once():
    # Each of these ten shows 300 MB and more, nearly all of it the server's.
    result = isolated(sleeps_in_children, 10, deadline=LONG, memory=1 << 30)
    assert result.value == "returned", result


def fork_bomb(path, depth):
    for _ in range(depth):
        os.fork()
        note_pid(path)
    time.sleep(1000)


def test_a_fork_bomb_is_stopped_and_nothing_of_it_is_left(tmp_path):
    result = isolated(fork_bomb, tmp_path / "pids", 9, deadline=LONG, processes=16)
    assert (result.state, result.how) == ("died", "process limit of 16")
    pids = pids_in(tmp_path / "pids")
    # To be more than 16 they forked 16 times. Who forks again has noted the time before, and who was forked
    # notes that first: one of the 16, at most, is not noted yet.
    assert len(pids) >= 15
    assert not tree.alive(pids)


def test_limits_have_defaults():
    assert client.default_memory() == min(8 << 30, psutil.virtual_memory().total // 2)


# --- what is left behind ----------------------------------------------------------------------------------


def starts_a_daemon(path):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for fd in range(256):
                try:
                    os.close(fd)
                except OSError:
                    continue
            note_pid(path)
            time.sleep(1000)
        os._exit(0)
    while not pids_in(path):
        time.sleep(0.01)


def starts_a_program(path):
    program = subprocess.Popen(["sleep", "1000"], start_new_session=True, env={})
    path.write_text(f"{program.pid}\n")


def starts_a_daemon_and_dies(path):
    starts_a_daemon(path)
    os._exit(3)


def starts_a_daemon_and_hangs(path):
    starts_a_daemon(path)
    hangs()


@pytest.mark.parametrize(
    "function, state",
    [
        (starts_a_daemon, "returned"),
        (starts_a_program, "returned"),
        (starts_a_daemon_and_dies, "died"),
        (starts_a_daemon_and_hangs, "timed out"),
    ],
)
def test_what_an_answer_has_started_ends_with_it(function, state, tmp_path):
    deadline = 5 * SOON if state == "timed out" else LONG  # it has to start the daemon before it hangs
    result = isolated(function, tmp_path / "pids", deadline=deadline)
    assert result.state == state
    pids = pids_in(tmp_path / "pids")
    assert len(pids) == 1
    assert all(map(gone, pids))


def starts_threads():
    for _ in range(5):
        threading.Thread(target=hangs).start()  # not daemons: they would keep an interpreter from ending
    return os.getpid()


def test_threads_that_outlive_the_answer_end_with_the_process():
    result = isolated(starts_threads, deadline=LONG)
    assert result.state == "returned"
    assert gone(result.value)


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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_client_is_killed(number, tmp_path):
    code = CLIENT.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    client = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        server, idle, *more = map(int, client.stdout.readline().split())
        pids = [server, idle, *more, *pids_in(tmp_path / "daemon"), *pids_in(tmp_path / "program")]
        assert len(set(pids)) >= 5
        assert len(tree.alive(pids)) == len(pids)
        os.kill(client.pid, number)
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
    with Worker(preload=worker_server.WHEN_IDLE) as worker:
        loaded = worker.call(
            lambda names: [name in sys.modules for name in names], worker_server.WHEN_IDLE, deadline=LONG
        ).value
        assert all(loaded)
    assert psutil.Process(server_pid()).num_threads() == 1


def test_shut_down_ends_everything():
    worker = Worker()
    pids = [worker.pid, server_pid()]
    client.shut_down()
    assert all(map(gone, pids))
    assert isolated(double, 5, deadline=LONG).value == 10


def test_calls_from_several_threads():
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda n: isolated(double, n, deadline=LONG), range(12)))
    assert [result.value for result in results] == [2 * n for n in range(12)]


def test_a_forked_copy_of_the_client_has_a_server_of_its_own():
    ours = server_pid()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        value = isolated(double, 21, deadline=LONG).value
        os.write(write, f"{value} {server_pid() == ours}".encode())
        client.shut_down()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        assert answer.read() == "42 False"
    os.waitpid(pid, 0)
    assert (isolated(double, 1, deadline=LONG).value, server_pid()) == (2, ours)


def notes_and_hangs(path):
    note_pid(path)
    hangs()


def test_an_interrupt_ends_the_call_and_the_process(tmp_path):
    def interrupt():
        until((tmp_path / "runs").exists)
        os.kill(os.getpid(), signal.SIGINT)

    with Worker() as worker, ThreadPoolExecutor(1) as pool:
        pid = worker.pid
        with pytest.raises(KeyboardInterrupt):
            pool.submit(interrupt)
            worker.call(notes_and_hangs, tmp_path / "runs", deadline=LONG)
        assert gone(pid)


# --- output -----------------------------------------------------------------------------------------------


def prints():
    print("one")
    os.system("echo two")
    print("three", file=sys.stderr)
    ctypes.CDLL(None).puts(b"four")


def test_output_comes_in_the_order_in_which_it_was_printed():
    result = isolated(prints, deadline=LONG)
    assert result.output == "one\ntwo\nthree\nfour\n"


def prints_much():
    sys.stdout.write("é" * (10 << 20))
    return "done"


def test_megabytes_of_output_block_nothing():
    result = isolated(prints_much, deadline=LONG)
    assert result.value == "done"
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


def test_a_function_that_keeps_its_results_travels_with_its_settings():
    namespace = {"__name__": "__main__", "functools": functools}
    fib = "def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)"
    exec(f"@functools.lru_cache(maxsize=40, typed=True)\n{fib}", namespace)
    fib = namespace["fib"]
    assert isolated(fib, 60, deadline=LONG).value == 1548008755920
    assert isolated(lambda: fib.cache_parameters(), deadline=LONG).value == {"maxsize": 40, "typed": True}


def test_a_large_argument_and_a_large_result_travel():
    big = torch.arange(5_000_000)
    assert torch.equal(isolated(double, big, deadline=LONG).value, 2 * big)


def test_the_compiler_goes_into_functions_of_a_module_that_cannot_be_imported(tmp_path):
    path = tmp_path / "made_up.py"
    path.write_text("FACTOR = 2\n\ndef times(x):\n    return x * FACTOR\n")
    spec = importlib.util.spec_from_file_location("exercises.made_up", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    try:
        result = isolated(compiles, module.times, deadline=LONG)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[spec.name]
    assert result.state == "returned", result.describe()
    assert result.value == [2, 2]


def test_sources_of_functions_in_files_are_found_too():
    assert isolated(inspect.getsource, double, deadline=LONG).value == textwrap.dedent(
        """\
        def double(x):
            return 2 * x
        """
    )


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


def test_a_worker_that_cannot_be_started_says_why_and_the_next_one_can(monkeypatch, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    client.shut_down()
    assert isolated(double, 1, deadline=LONG).value == 2
    folder.rename(tmp_path / "away")
    try:
        with pytest.raises(WorkersError, match="no process could be started: .*No such file"):
            isolated(double, 1, deadline=LONG)
        (tmp_path / "away").rename(folder)
        assert isolated(double, 1, deadline=LONG).value == 2
    finally:
        client.shut_down()


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
