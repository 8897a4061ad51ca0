"""What the exercises on checkpointing share: a run beside the same one without a checkpoint."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from course_utils import measure
from course_utils.exercise import expect


def same_step(run: Callable[[], Tensor], plain: Callable[[], Tensor], modules: Iterable[nn.Module]) -> None:
    """Both runs start from the same seed: the result is that of the plain one, and so are the gradients of
    all parameters after `result.square().mean().backward()`."""
    names = {f"`{name}`": p for name, p in nn.ModuleList(modules).named_parameters()}
    found = []
    for one in (plain, run):
        torch.manual_seed(0)
        for p in names.values():
            p.grad = None
        result = one()
        if not found:
            torch.rand(5)  # whatever else draws numbers before backward
        expect.in_graph(result, of="a parameter")
        result.square().mean().backward()
        found.append((result.detach(), {name: p.grad for name, p in names.items()}))
    (wanted, right), (came, grads) = found
    expect.equal(came, wanted, what="the result, beside a run without a checkpoint")
    for name, gradient in right.items():
        told = f"the gradient of {name} is None after backward"
        expect.true(gradient is None or grads[name] is not None, told, "expected: a gradient")
        expect.equal(grads[name], gradient, what=f"the gradient of {name}")


def keeps(run: Callable[[], Any], limit: int, what: str, exclude: Any = ()) -> None:
    """At most `limit` bytes are kept for backward by the result of `run`; parameters don't count,
    nor does what stands in `exclude`."""
    kept = measure.saved_bytes(run, exclude=exclude).total
    told = f"kept for backward, beside the parameters ({what})"
    expect.at_most(kept, limit + 64, told, unit="bytes")


def runs(run: Callable[[], Tensor], modules: Iterable[nn.Module]) -> None:
    """Each module runs twice in a step: in the forward and in the recomputation."""
    counts = {module: 0 for module in modules}

    def note(module: nn.Module, args: Any) -> None:
        if module in counts:  # a copy of a module has its hooks, too
            counts[module] += 1

    with contextlib.ExitStack() as stack:
        for module in counts:
            stack.callback(module.register_forward_pre_hook(note).remove)
        run().square().mean().backward()
    for number, count in enumerate(counts.values()):
        expect.equal(count, 2, what=f"runs of layer {number} in a forward with its backward")
