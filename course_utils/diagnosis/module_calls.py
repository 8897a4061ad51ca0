"""Which modules of a model are called, with what, and what comes out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.diagnosis.subject import Subject, modules
from course_utils.measure.modes import in_backward
from course_utils.measure.storage import tensors_in


@dataclass(eq=False)
class ModuleCall:
    """One call of a module. `size`: how many elements came in. `recording`: whether autograd was on.
    `enters`, `comes_out`: whether a tensor with a graph went in, came out. `ended`: whether it returned.
    `inner`: whether the module has modules of its own."""

    name: str
    module: nn.Module
    size: int
    recording: bool
    enters: bool
    comes_out: bool = False
    ended: bool = False

    @property
    def inner(self) -> bool:
        return next(self.module.children(), None) is not None


@contextlib.contextmanager
def called_modules(
    subject: Subject,
    before: Callable[[str, nn.Module, list[Tensor]], Any] = lambda *_: None,
    after: Callable[[str, nn.Module, list[Tensor], list[Tensor]], Any] = lambda *_: None,
) -> Iterator[list[ModuleCall]]:
    """Notes the calls of the model's modules, in the order in which they begin. What is computed again in a
    backward is none, and scripts are left out. `before` gets each module's name, itself and the tensors that
    go in, `after` those that come out too."""
    calls: list[ModuleCall] = []
    pending: list[ModuleCall] = []

    def entered(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            if in_backward():
                return
            given = [*tensors_in(args), *tensors_in(kwargs)]
            size = sum(one.numel() for one in given)
            entering = any(one.requires_grad for one in given)
            call = ModuleCall(name, module, size, torch.is_grad_enabled(), entering)
            calls.append(call)
            pending.append(call)
            before(name, module, given)

        return hook

    def left(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if in_backward() or not any(one.module is module for one in pending):
                return
            while (call := pending.pop()).module is not module:
                pass  # it raised, and somebody caught that
            came = [*tensors_in(output)]
            call.comes_out, call.ended = any(one.requires_grad for one in came), True
            after(name, module, [*tensors_in(args), *tensors_in(kwargs)], came)

        return hook

    with contextlib.ExitStack() as stack:
        for name, module in modules(subject):
            if isinstance(module, torch.jit.ScriptModule):  # takes no hooks from outside
                continue
            for handle in (
                module.register_forward_pre_hook(entered(name), with_kwargs=True),
                module.register_forward_hook(left(name), with_kwargs=True),
            ):
                stack.callback(handle.remove)
        yield calls
