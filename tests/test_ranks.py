"""Ranks: real processes with gloo, and what is said when they go wrong. The kernel below is a real one."""

import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import course_utils.processes.ranks
from course_utils.processes.ranks import STUCK
from course_utils.processes.workers import Worker
from course_utils.stacks import place
from course_utils.watching.run_ranks import RankError, run_ranks

ROOT = Path(__file__).parent.parent
SOON = 5.0  # a deadline for what never ends
LONG = 60.0  # a deadline for what ends


@pytest.fixture(scope="module", autouse=True)
def warm():
    """Each worker imports this module; let what it imports itself be there already."""
    with Worker(preload=("pytest", "psutil")) as worker:
        assert worker.call(os.getpid, deadline=LONG).value


def states(results):
    return [result.state for result in results]


def reduces(rank, world_size, scale=1.0):
    """Also: each rank knows who it is, and draws numbers of its own."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    assert [os.environ[name] for name in names] == [str(rank), str(world_size), str(rank)]
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (rank, world_size, "gloo")
    x = torch.full((3,), (rank + 1) * scale)
    dist.all_reduce(x)
    return x, torch.rand(1).item()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_collectives_give_the_right_values(world_size):
    total = sum(range(1, world_size + 1)) * 2.0
    values = run_ranks(reduces, world_size, 2.0, deadline=LONG)
    assert [value.tolist() for value, _ in values] == [[total] * 3] * world_size
    assert len({drawn for _, drawn in values}) == world_size
    with pytest.raises(ValueError, match="at least one rank as `world_size`; given was 0"):
        run_ranks(reduces, 0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)


def ddp_step(rank, world_size):
    torch.manual_seed(rank)
    net = torch.nn.parallel.DistributedDataParallel(Net())
    print(f"step {rank}")
    os.system("echo a program")
    time.sleep(2.5 * rank)  # asleep for longer than it takes to conclude that nothing moves
    net(torch.randn(5, 4)).sum().backward()
    return net.module.layer.weight, net.module.layer.weight.grad


def test_a_ddp_step_gives_all_ranks_the_same_and_who_is_slow_is_waited_for(capfd):
    (weight, grad), (other_weight, other_grad) = run_ranks(ddp_step, 2, deadline=LONG)
    assert torch.equal(weight, other_weight)
    assert torch.equal(grad, other_grad)
    torch.manual_seed(0)
    assert torch.equal(weight, Net().layer.weight)
    # Output is labelled, and ordered by rank.
    lines = [f"[rank {rank}] {line}" for rank in range(2) for line in (f"step {rank}", "a program")]
    assert capfd.readouterr().out.splitlines() == lines


# A machine with no more of a network than itself, and a name server that takes questions and answers none.
DEAF = """
import contextlib, ctypes, fcntl, os, socket, struct, sys

NEW_MOUNTS, NEW_USERS, NEW_NETWORK, PRIVATE, BIND = 0x20000, 0x10000000, 0x40000000, 0x44000, 0x1000
libc = ctypes.CDLL(None)
if libc.unshare(NEW_MOUNTS | NEW_NETWORK | (NEW_USERS if os.geteuid() else 0)):
    sys.exit(77)
assert libc.mount(b"none", b"/", None, PRIVATE, None) == 0
assert libc.mount({resolv!r}, b"/etc/resolv.conf", None, BIND, None) == 0
deaf = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(deaf, 0x8914, struct.pack("16sh14x", b"lo", 0x41))  # the interface is up
deaf.bind(("127.0.0.1", 53))
deaf.setblocking(False)

def questions():
    asked = 0
    try:
        while deaf.recv(512):
            asked += 1
    except BlockingIOError:
        return asked

with contextlib.suppress(socket.gaierror):
    socket.getnameinfo(("::ffff:127.0.0.1", 80, 0, 0), socket.NI_NUMERICSERV)
print(questions() > 0)

from course_utils import run_ranks

def total(rank, world_size):
    import torch, torch.distributed as dist
    dist.all_reduce(one := torch.ones(()))
    return one.item()

print(run_ranks(total, 2), questions())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a network of its own is a matter of Linux")
def test_no_name_server_is_waited_for(tmp_path):
    resolv = tmp_path / "resolv.conf"
    resolv.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    script = DEAF.format(resolv=str(resolv).encode())
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("this user may not make a network")
    # The server is asked here, and by no rank.
    assert done.stdout.splitlines() == ["True", "[2.0, 2.0] 0"], done.stderr


# --- what goes wrong --------------------------------------------------------------------------------------


def failure(function, *args, world_size=2, deadline=SOON):
    with pytest.raises(RankError) as caught:
        run_ranks(function, world_size, *args, deadline=deadline)
    return caught.value


def raises(rank, world_size):
    x = torch.ones(1)
    if rank == 1:
        x.reshape(7)
    dist.all_reduce(x)  # rank 0


def test_a_rank_that_raises_shows_its_line_and_the_others_their_position():
    error = failure(raises, deadline=LONG)
    assert states(error.results) == ["timed out", "raised"]
    verdict, *lines = str(error).splitlines()
    assert verdict == "2 of 2 ranks did not return"
    assert lines[0] == "rank 1 raised RuntimeError: shape '[7]' is invalid for input of size 1"
    assert lines[1].endswith("of test_ranks.py (`x.reshape(7)`), in raises")
    assert lines[2].startswith("rank 0 waits in all_reduce at your line")
    assert lines[2].endswith("(`dist.all_reduce(x)  # rank 0`)")
    assert error.results[0].how == STUCK  # nobody waited for the deadline


def skips(rank, world_size):
    if rank != 1:
        dist.all_reduce(torch.ones(1))


def test_a_rank_that_skips_a_collective():
    error = failure(skips, world_size=3, deadline=LONG)
    assert states(error.results) == ["timed out", "returned", "timed out"]
    assert str(error).splitlines()[0] == "2 of 3 ranks did not return and nothing moved any more"
    assert [r.position.call for r in error.results if r.position] == ["all_reduce", "all_reduce"]
    assert str(error).splitlines()[-1] == "rank 1 has returned"


def brings(rank, world_size, name, more):
    dtype = torch.int32 if rank and name == "broadcast" else torch.float32
    x = torch.ones(2 + rank * (name == "all_reduce"), dtype=dtype)
    getattr(dist, name)(x, **more)
    dist.barrier()


@pytest.mark.parametrize(
    ("name", "more", "type_", "said"),
    [
        ("all_reduce", {}, "MismatchedCollective", "float32 of shape [2]"),
        ("broadcast", {"src": 0}, "MismatchedCollective", "int32 of shape [2]"),
        ("reduce", {"dst": 5}, "ValueError", "reduce with dst=5, in a group of ranks 0, 1"),
        ("send", {"dst": 2}, "ValueError", "send with dst=2"),
    ],
)
def test_what_does_not_fit_together_raises_and_names_both_lines(name, more, type_, said):
    error = failure(brings, name, more, deadline=LONG)
    raised = [result.error for result in error.results if result.state == "raised"]
    assert raised and all(one.type == type_ for one in raised), error
    assert any(said in one.message for one in raised), error
    assert all("getattr(dist, name)" in one.frame.source for one in raised)
    if type_ == "MismatchedCollective":
        # Both, where each has said what it brings before the other has looked.
        for one in raised:
            assert "at your line" in one.message and "(`getattr(dist, name)(x, **more)`)" in one.message


def sends_more(rank, world_size, receive):
    x, y, other = torch.ones(1, 4), torch.ones(1, 1), 1 - rank
    sending = dist.isend(x, other)
    got = receive(y, other)
    for work in (sending, got):
        if hasattr(work, "wait"):
            work.wait()
    return float(y)


def receives(y, other):
    dist.recv(y, other)


def launches(y, other):
    return dist.irecv(y, other)


@pytest.mark.parametrize("receive", [receives, launches])
def test_a_message_longer_than_its_room_raises_before_it_ends_a_process(receive):
    error = failure(sends_more, receive, deadline=LONG)
    raised = [result.error for result in error.results if result.state == "raised"]
    assert raised and all(one.type == "MismatchedMessage" for one in raised), error
    if receive is receives:  # always the one who receives
        assert [one.message.partition(", sent")[0] for one in raised] == [
            f"16 bytes come from rank {rank}, float32 of shape [1, 4]" for rank in (1, 0)
        ]


def loops(rank, world_size):
    if rank == 1:
        while True:
            pass
    dist.all_reduce(torch.ones(1))


def test_a_rank_that_loops_is_found_at_the_deadline():
    error = failure(loops)
    assert states(error.results) == ["timed out", "timed out"]
    assert str(error).splitlines()[0] == "2 of 2 ranks did not return within 5 s"
    assert error.results[0].position.call == "all_reduce"
    assert error.results[1].position.call is None
    assert error.results[1].position.frame.function == "loops"


def forgets_backward(rank, world_size):
    net = torch.nn.parallel.DistributedDataParallel(Net())
    loss = net(torch.randn(5, 4)).sum()
    if rank == 0:
        loss.backward()


def test_a_rank_that_waits_in_backward():
    error = failure(forgets_backward, deadline=LONG)
    assert states(error.results) == ["timed out", "returned"]
    assert error.results[0].position.call == "backward"
    assert error.results[0].position.frame.source == "loss.backward()"


def waits_itself(rank, world_size):
    x = torch.ones(1)
    if rank == 0:
        work = dist.irecv(x, 1)
        work.wait()


def test_ranks_that_all_wait_at_the_deadline_are_looked_at_to_the_end(monkeypatch):
    # Four looks take longer than the deadline. The wait is in the reader's own line.
    monkeypatch.setattr(course_utils.processes.ranks, "LOOK_EVERY", SOON / 3)
    monkeypatch.setattr(course_utils.processes.ranks, "LOOK_ON", LONG)
    first = failure(waits_itself).results[0]
    assert first.how == STUCK
    assert first.position.describe() == f"waits in wait at {place(first.position.frame)}"
    assert first.position.frame.source == "work.wait()"


def waits_for_a_child(rank, world_size):
    """As torchrun's agent waits for its workers, in a part of torch that waits for others."""
    from torch.distributed.elastic.utils import store as meeting

    busy = "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end: pass"
    child, store = subprocess.Popen([sys.executable, "-c", busy]), dist.HashStore()
    threading.Thread(target=lambda: (child.wait(), store.set("x0", "there"))).start()
    return meeting.get_all(store, 0, "x", 1)


def test_a_rank_whose_child_still_runs_is_not_stuck():
    assert run_ranks(waits_for_a_child, 1, deadline=LONG) == [[b"there"]]


def prints_and_raises(rank, world_size):
    print("on the way")
    raise KeyError(rank)


def test_all_ranks_may_raise_and_what_they_printed_comes_first(capsys):
    error = failure(prints_and_raises, deadline=LONG)
    assert capsys.readouterr().out == "[rank 0] on the way\n[rank 1] on the way\n"
    said = [line for line in str(error).splitlines() if line.startswith("rank")]
    assert said == ["rank 0 raised KeyError: 0", "rank 1 raised KeyError: 1"]
    shown = error._render_traceback_()  # in a notebook, where no frames are shown
    assert shown[0] == "RankError: 2 of 2 ranks did not return"
    assert not any("course_utils" in line for line in shown)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


# --- from a notebook --------------------------------------------------------------------------------------

CELLS = [
    """
    import torch
    import torch.distributed as dist
    from torch import nn
    from course_utils import run_ranks
    """,
    """
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([3.0]))

        def forward(self, x):
            return Square.apply(self.weight * x)

    def step(rank, world_size, net):
        net = nn.parallel.DistributedDataParallel(net)
        print("my x is", rank + 1)
        net(torch.tensor([rank + 1.0])).sum().backward()
        return net.module.weight.grad

    run_ranks(step, 2, Net())
    """,
    """
    def fails(rank, world_size):
        x = torch.ones(2)
        if rank == 1:
            x.view(7)
        dist.all_reduce(x)

    run_ranks(fails, 2)
    """,
]


@pytest.fixture(scope="module")
def notebook():
    """The cells, run by a kernel; each one's outputs."""
    import nbformat  # here: every rank imports this module
    from nbclient import NotebookClient

    cells = [nbformat.v4.new_code_cell(textwrap.dedent(code).strip()) for code in CELLS]
    book = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(book, timeout=120, kernel_name="python3", allow_errors=True).execute()
    return [cell.outputs for cell in book.cells]


def test_in_a_notebook_its_own_modules_and_functions_run_on_ranks(notebook):
    printed, value = notebook[1]
    assert printed.text == "[rank 0] my x is 1\n[rank 1] my x is 2\n"
    # d/dw (w x)^2 = 2 w x^2, the mean of both ranks: (6 + 24) / 2
    assert value.data["text/plain"] == "[tensor([15.]), tensor([15.])]"


def test_in_a_notebook_a_failure_is_a_short_message_with_the_line_of_the_cell(notebook):
    (error,) = notebook[2]
    assert error.ename == "RankError"
    assert error.traceback == [
        "RankError: 2 of 2 ranks did not return",
        "rank 1 raised RuntimeError: shape '[7]' is invalid for input of size 2",
        "    at your line 4 (`x.view(7)`), in fails",
        "rank 0 waits in all_reduce at your line 5 (`dist.all_reduce(x)`)",
    ]
