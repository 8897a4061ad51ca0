"""One forward and backward of a model that leaves it, the batch and every `.grad` as they were."""

from __future__ import annotations

import contextlib
import random
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.func import functional_call

from course_utils import torch_private
from course_utils.measure.storage import tensors_in
from course_utils.measure.uncompiled import as_said
from course_utils.stacks import in_torch, is_ours
from course_utils.wrong_use import said

Hooks = Sequence[tuple[Callable[..., Any], Callable[..., Any]]]


def run(model: nn.Module, batch: Any, who: str, hooks: Hooks, weights: Mapping[str, Tensor]) -> bool:
    """Runs `model` forward and backward; whether there was a backward.

    `batch` is what the model is given: a tensor, a tuple or list of arguments, or a dict of keyword
    arguments. Backward begins with ones for a scalar, else with standard normal numbers, the same each time.
    `hooks`: what registers a hook, a module's method, and the hook, which is taken off again. `weights`
    stand in for parameters of these names. Raises `ValueError` where the model cannot be run.
    """
    named = batch if isinstance(batch, dict) else {}
    listed = () if batch is named else batch if isinstance(batch, (tuple, list)) else (batch,)
    swapped = {name: buffer.detach().clone() for name, buffer in model.named_buffers()} | dict(weights)
    both = _ThereAndBack(model)
    handles = [register(hook) for register, hook in hooks]
    cuda = {tensor.device.index for tensor in model.parameters() if tensor.is_cuda}
    try:
        with (
            _as_it_was(model),
            torch.random.fork_rng(devices=cuda),
            torch.enable_grad(),
            warnings.catch_warnings(action="ignore"),
        ):
            args, kwargs = tuple(map(_copied, listed)), {name: _copied(one) for name, one in named.items()}
            functional_call(both, {f"model.{name}": one for name, one in swapped.items()}, args, kwargs)
    except Exception as error:  # whatever the model raises is what there is to tell
        if _raised_here(error):
            raise  # an instrument's own fault is not the model's
        first = str(error).partition("\n")[0]
        raise ValueError(
            f"{who}: the model's {both.doing} on {said(batch)} raised {type(error).__name__}: {first}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return both.backward


@contextlib.contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """What a forward notes in its modules, their lists and dictionaries, and the generators of Python and
    NumPy are afterwards as they were."""
    kept = [(vars(module), dict(vars(module))) for module in model.modules()]
    inside = [one for _, values in kept for one in values.values() if isinstance(one, (dict, list, set))]
    contents = [(one, one.copy()) for one in inside]
    numbers = random.getstate(), numpy.random.get_state()
    try:
        yield
    finally:
        for values, before in (*kept, *contents):
            values.clear()
            values.extend(before) if isinstance(values, list) else values.update(before)
        random.setstate(numbers[0])
        numpy.random.set_state(numbers[1])


def _raised_here(error: BaseException) -> bool:
    """Whether it was raised by the course's own code, or by what that called of torch."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((is_ours(file) and file != __file__ for file in reversed(files) if not in_torch(file)), False)


def layers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules with a weight of two or more dimensions, by their paths. What a parametrization keeps is a
    weight of the module that has it; a path doesn't name what torch.compile has put around."""
    found = {}
    for path, module in model.named_modules():
        if ".parametrizations." in f".{path}.":
            continue
        own = [*torch_private.parameters(module).values()]
        if kept := torch_private.submodules(module).get("parametrizations"):
            own += kept.parameters()
        if any(isinstance(one, Tensor) and one.dim() > 1 for one in own):
            found[as_said(path)] = module
    return found


def returned(output: Any) -> Tensor | None:
    """What counts as a layer's output: the first tensor in it with numbers that can have a gradient."""
    return next((one for one in tensors_in(output) if one.is_floating_point() or one.is_complex()), None)


class _ThereAndBack(nn.Module):
    """The model with its backward in one call: what is recomputed in backward finds the same weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.doing, self.backward = model, "forward", False

    def forward(self, *args: Any, **kwargs: Any) -> None:
        output = self.model(*args, **kwargs)
        self.doing = "backward"
        roots = [one for one in tensors_in(output) if one.requires_grad]
        generator = torch.Generator().manual_seed(0)
        starts = [torch.randn(one.shape, generator=generator).to(one) if one.dim() else None for one in roots]
        leaves = [*self.model.parameters(), *tensors_in(args), *tensors_in(kwargs)]
        leaves = [one for one in leaves if one.requires_grad]
        if roots:
            # No `backward()`: that would write to `.grad`, and run what hangs on it.
            torch.autograd.grad(roots, leaves, starts, allow_unused=True)
            self.backward = True


def _copied(one: Any) -> Any:
    return one.detach().clone().requires_grad_(one.requires_grad) if isinstance(one, Tensor) else one
