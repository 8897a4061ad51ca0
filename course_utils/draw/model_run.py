"""One forward and backward of a model that leaves it, the batch and every `.grad` as they were."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from course_utils.wrong_use import said

Hooks = Sequence[tuple[nn.Module, str, Callable[..., None]]]


def run(model: nn.Module, batch: Any, who: str, hooks: Hooks, weights: Mapping[str, Tensor]) -> bool:
    """Runs `model` forward and backward; whether there was a backward.

    `batch` is what the model is given: a tensor, a tuple or list of arguments, or a dict of keyword
    arguments. Backward begins with ones for a scalar, else with standard normal numbers, the same each time.
    `hooks`: modules, the methods that register a hook there, and hooks, which are taken off again. `weights`
    stand in for parameters of these names. Raises `ValueError` where the model cannot be run.
    """
    named = batch if isinstance(batch, dict) else {}
    listed = () if batch is named else batch if isinstance(batch, (tuple, list)) else (batch,)
    swapped = {name: buffer.detach().clone() for name, buffer in model.named_buffers()} | dict(weights)
    both = _ThereAndBack(model)
    handles = [getattr(module, register)(hook) for module, register, hook in hooks]
    cuda = {tensor.device.index for tensor in model.parameters() if tensor.is_cuda}
    try:
        with (
            torch.random.fork_rng(devices=cuda),
            torch.enable_grad(),
            warnings.catch_warnings(action="ignore"),
        ):
            args, kwargs = tuple(map(_copied, listed)), {name: _copied(one) for name, one in named.items()}
            functional_call(both, {f"model.{name}": one for name, one in swapped.items()}, args, kwargs)
    except Exception as error:  # whatever the model raises is what there is to tell
        first = str(error).partition("\n")[0]
        raise ValueError(
            f"{who}: the model's {both.doing} on {said(batch)} raised {type(error).__name__}: {first}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return both.backward


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


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in what a model is given or returns."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(one)
