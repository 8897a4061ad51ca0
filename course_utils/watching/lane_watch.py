"""What a rank did when, written down while it happens: one line for each event, in a file that outlives it.

A rank that hangs is killed, and what it had in memory is gone. So nothing is kept here: each event is
written at once. `lanes` reads the lines.

    ["start", t] ["end", t]                 the function began (again: what came before does not count), ended
    ["op", t, t, phase]                     an operator ran, from when to when
    ["gradient", t, name, bytes]            a parameter's gradient has arrived and is about to be accumulated
    ["launch", t, number, name, bytes, peer, backward]      a message or collective
    ["over", t, number]                     it is complete
    ["wait", t, number] ["waited", t, over] this rank stands still for it; whether it was complete then
    ["cut", t]                              too much happened; operators are no longer noted

Times are those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.modules import module as modules
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from course_utils.measure.modes import in_backward
from course_utils.measure.traffic import Call, CollectiveWatch
from course_utils.measure.uncompiled import silence_about_hooks, unseen_by_compiler

MOST_OPERATORS = 20_000
# Seconds for which one thread may keep the others from noting that something is complete.
SWITCH = 1e-4

# What this process writes with, where it is recorded.
writing: LaneWatch | None = None


class LaneWatch(CollectiveWatch):
    """Writes down what this thread does to the file `fd`. For the rest of the life of its process."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.fd = fd
        self.operators = self.modules = 0
        self.stepping = False
        self.phase = "other"
        self.known: dict[Any, Any] = {}
        self.under_way: dict[int, Any] = {}

    def write(self, kind: str, *values: Any) -> None:
        os.write(self.fd, (json.dumps([kind, *values]) + "\n").encode())

    def begin(self) -> None:
        """What came before does not count."""
        self.operators = 0
        self.write("start", time.monotonic())

    def ran(self, func: Any, run: Callable[[], Any]) -> Any:
        begin = time.monotonic()
        out = run()
        if self.operators < MOST_OPERATORS:
            phase = "backward" if in_backward() else "step" if self.stepping else self.phase
            self.write("op", begin, time.monotonic(), phase)
        elif self.operators == MOST_OPERATORS:
            self.write("cut", begin)
        self.operators += 1
        return out

    def launched(self, number: int, call: Call, run: Callable[[], Any]) -> Any:
        self.write("launch", time.monotonic(), number, call.name, call.bytes, call.peer, call.backward)
        return run()

    def launched_as(self, number: int, work: Any) -> None:
        # On the CPU the future of a collective is complete when its last byte is there. A send or a receive
        # has none; nor is the host told when a GPU is done: for these, the end of waiting has to do.
        if work is None or torch.distributed.get_backend() != "gloo":
            return
        with contextlib.suppress(RuntimeError):
            self.under_way[number] = future = work.get_future()
            future.then(lambda ended: self._ended(number, ended))

    def _ended(self, number: int, future: Any) -> None:
        now = time.monotonic()
        with contextlib.suppress(RuntimeError):
            future.value()  # raises where it has failed: that will never be complete
            self.write("over", now, number)
        self.under_way.pop(number, None)

    def settle(self) -> None:
        """Waits until all that is complete has been written down: another thread does that."""
        patience = time.monotonic() + 1.0
        while any(future.done() for future in list(self.under_way.values())):
            if time.monotonic() > patience:
                return
            time.sleep(1e-4)

    def waits(self, number: int | None, wait: Callable[[], Any]) -> Any:
        self.write("wait", time.monotonic(), number)
        over = False
        try:
            found = wait()
            over = True
            return found
        finally:
            self.write("waited", time.monotonic(), over)

    # --- what is asked of torch's own hooks -------------------------------------------------------------

    def hook(self) -> None:
        """Looks at every module, parameter and optimizer of this process from now on; inside of what is
        compiled there are none."""
        silence_about_hooks()
        modules.register_module_forward_pre_hook(self._enters)
        modules.register_module_forward_hook(self._leaves, always_call=True)
        register_optimizer_step_pre_hook(unseen_by_compiler(lambda *_: self._steps(True)))
        register_optimizer_step_post_hook(unseen_by_compiler(lambda *_: self._steps(False)))

    def _enters(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self.modules == 0:
            self.phase = "forward"
            for name, parameter in module.named_parameters():
                self._listen(name.removeprefix("module."), parameter)
        self.modules += 1

    def _leaves(self, module: nn.Module, args: Any, out: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self.modules -= 1
        if self.modules == 0:
            self.phase = "other"

    def _steps(self, now: bool) -> None:
        self.stepping = now

    def _listen(self, name: str, parameter: nn.Parameter) -> None:
        if not parameter.requires_grad or parameter in self.known or torch.is_inference_mode_enabled():
            return  # in inference mode no node is made, and no gradient comes
        # A hook before the gradient is accumulated comes before all that others do after it.
        node = get_gradient_edge(parameter).node
        self.known[parameter] = node  # or it would be made anew for the next graph, without this hook
        size = parameter.numel() * parameter.element_size()
        node.register_prehook(lambda _: self.write("gradient", time.monotonic(), name, size))


@contextlib.contextmanager
def watching(fd: int) -> Iterator[None]:
    """Writes down to the file `fd` what runs inside."""
    global writing
    writing = watch = LaneWatch(fd)
    watch.hook()
    sys.setswitchinterval(SWITCH)
    torch.distributed.barrier()  # or the first lane would show how long the others took to start
    with watch:
        watch.begin()
        try:
            yield
        finally:
            watch.write("end", time.monotonic())
            watch.settle()
