"""What `measure.traffic` counts, on real ranks, against what was really called."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from course_utils import measure
from course_utils.processes.workers import Worker
from course_utils.watching.run_ranks import run_ranks

LONG = 60.0


@pytest.fixture(scope="module", autouse=True)
def warm():
    with Worker(preload=("pytest", "course_utils.measure")) as worker:
        assert worker.call(int, deadline=LONG).value == 0


def every_call(rank, world_size):
    x = torch.ones(6)
    other = 1 - rank
    with measure.traffic() as t:
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.all_gather([torch.empty(6), torch.empty(6)], x)
        dist.all_gather_into_tensor(torch.empty(12), x)
        dist.reduce(x, 0)
        dist.gather(x, [torch.empty(6), torch.empty(6)] if rank == 0 else None)
        dist.scatter(torch.empty(3), list(x.view(2, 3)) if rank == 0 else None)
        dist.reduce_scatter(torch.empty(3), list(x.view(2, 3)))
        dist.all_to_all_single(torch.empty(6), x)
        dist.barrier()
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        sent = dist.isend(x, other)
        dist.irecv(torch.empty(6), other).wait()
        sent.wait()
    return t


def test_every_call_is_seen_with_its_bytes():
    first, second = run_ranks(every_call, 2, deadline=LONG)
    names = (
        "all_reduce broadcast all_gather all_gather reduce gather scatter reduce_scatter all_to_all barrier"
    )
    assert [call.name for call in first.calls] == [*names.split(), "send", "send", "recv"]
    assert [call.name for call in second.calls] == [*names.split(), "recv", "send", "recv"]
    # Rank 1 brings nothing to a scatter from rank 0.
    assert [call.bytes for call in first.calls] == [24] * 9 + [0] + [24] * 3
    assert [call.bytes for call in second.calls] == [24] * 6 + [0] + [24] * 2 + [0] + [24] * 3
    assert [call.peer for call in first.calls][10:] == [1, 1, 1]
    assert [call.peer for call in second.calls][:11] == [None] * 10 + [0]
    assert (first.count(), first.count("send"), first.count("send", "recv")) == (13, 2, 3)
    assert first.bytes("send") == 48
    assert "all_reduce  24 bytes" in str(first)
    with pytest.raises(ValueError, match="'allreduce'"):
        first.count("allreduce")


def in_order(rank, world_size):
    x, before = torch.ones(2), Work.wait
    with measure.traffic() as t:
        one = dist.all_reduce(x, async_op=True)
        with measure.traffic() as inner:
            two = dist.all_reduce(x.clone(), async_op=True)
        t.note("both are under way")
        two.wait()
        one.wait()
        try:
            dist.all_gather([torch.empty(5), torch.empty(5)], x)
        except RuntimeError as error:
            t.note(type(error).__name__)
        three = dist.all_reduce(x, async_op=True)
        three.get_future().wait()
    after = Work.wait is before
    dist.all_reduce(x)
    return t.order, inner.order, len(t.calls), after


def test_launches_and_waits_are_told_apart_and_in_order():
    """Also a call that raises, a future that is waited for, and one watch inside another."""
    for order, inner, calls, as_before in run_ranks(in_order, 2, deadline=LONG):
        launches = ["all_reduce 0", "all_reduce 1", "both are under way", "wait 1", "wait 0"]
        assert order == [*launches, "all_gather 2", "RuntimeError", "all_reduce 3", "wait"]
        assert inner == ["all_reduce 0"]
        assert (calls, as_before) == (4, True)


def in_threads(rank, world_size):
    x, started = torch.ones(2), threading.Thread.start
    with ThreadPoolExecutor(1) as before, measure.traffic() as t:
        before.submit(int).result()
        dist.all_reduce(x)
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(dist.all_reduce, x, async_op=True).result()
        work.wait()
        thread = threading.Thread(target=dist.barrier)
        thread.start()
        thread.join()
    return t.order, threading.Thread.start is started


def test_calls_of_threads_that_are_started_inside_are_seen():
    for order, as_before in run_ranks(in_threads, 2, deadline=LONG):
        launches = ["all_reduce 0", "wait 0", "all_reduce 1", "wait 1", "barrier 2", "wait 2"]
        assert (order, as_before) == (launches, True)


def in_inference_mode(rank, world_size):
    """An operator that comes undivided before a call, and between it and its wait."""
    x, weight = torch.ones(2), torch.ones(3, 2)
    with torch.inference_mode(), measure.traffic() as t:
        torch.nn.functional.linear(x, weight)
        work = dist.all_reduce(x, async_op=True)
        torch.nn.functional.linear(weight, weight)
        work.wait()
        dist.all_reduce(x)
    return t.order


def test_waits_are_seen_in_inference_mode():
    expected = ["all_reduce 0", "wait 0", "all_reduce 1", "wait 1"]
    assert run_ranks(in_inference_mode, 2, deadline=LONG) == [expected] * 2


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(300, 300), torch.nn.Linear(300, 300)

    def forward(self, x):
        return self.second(self.first(x))


def ddp_step(rank, world_size):
    with measure.traffic() as built:
        net = torch.nn.parallel.DistributedDataParallel(Two(), bucket_cap_mb=0.2)
    net(torch.ones(2, 300)).sum().backward()  # after the first, DDP makes its buckets anew
    with measure.traffic() as t:
        loss = net(torch.ones(2, 300)).sum()
        t.note("forward is over")
        for name, parameter in net.module.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: t.note(name))
        loss.backward()
        t.note("backward is over")
    with net.no_sync(), measure.traffic() as quiet:
        net(torch.ones(2, 300)).sum().backward()
    return built, t, quiet


def test_what_ddp_does_by_itself_is_seen():
    for built, t, quiet in run_ranks(ddp_step, 2, deadline=LONG):
        size = sum(p.numel() for p in Two().parameters()) * 4
        assert built.bytes("broadcast") >= size
        assert not built.count(backward=True)
        assert t.bytes("all_reduce", backward=True) == size
        launches = [line for line in t.order if line.startswith("all_reduce")]
        assert len(launches) == 2
        # The first bucket leaves before the last gradient has arrived.
        assert t.order.index(launches[0]) < t.order.index("first.weight") < t.order.index("backward is over")
        assert quiet.count() == 0
