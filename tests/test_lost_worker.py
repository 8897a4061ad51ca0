"""Workers of torchrun, as `survive_a_lost_worker` is checked with them."""

import threading

import torch

from course_utils.exercise.kits.distributed import killed_in_torchrun
from course_utils.grading import attempt
from course_utils.lessons import catalog
from course_utils.processes import client
from course_utils.processes.ranks import run_group

REFERENCE = catalog.load().solution("survive_a_lost_worker").reference


class Nested(torch.autograd.Function):
    """A backward that runs a backward, and so on."""

    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.depth:
            with torch.enable_grad():
                Nested.apply(torch.ones(1, requires_grad=True), ctx.depth - 1).backward()
        return grad, None


def started_again(rank, world_size, answer):
    """After so many backwards inside one another autograd has threads, and no fork can run a backward. They
    have a stack of their own: what a long session has imported makes each of them too deep for the usual."""
    x = torch.ones(1, requires_grad=True)
    threading.stack_size(256 << 20)
    nested = threading.Thread(target=lambda: Nested.apply(x, 62).backward())
    nested.start()
    nested.join()
    threading.stack_size(0)
    torch.distributed.destroy_process_group()
    return [note.get("raised", note.get("ran")) for note in killed_in_torchrun(answer, steps=4, lost_in=2)]


def test_workers_are_started_anew_whatever_this_process_has_run():
    attempt.by_value(REFERENCE)
    client.shut_down()  # a server that has served nothing else
    (result,) = run_group(started_again, 1, REFERENCE, deadline=120)
    assert result.state == "returned", result.describe()
    assert result.value == [[2, 3], [2, 3]]
