"""One forward and backward of a model that leaves it, the batch and every `.grad` as they were."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parameter import is_lazy

from course_utils.draw.module_tree import must_be_module, said

SMALL = 1_000_000  # elements: below, threads wait for each other longer than they compute


def must_run(model: Any, who: str) -> None:
    """Raises `TypeError` for what is no module, `ValueError` for one that has no values to run with."""
    must_be_module(model, who)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(f"{who}: {name} has no size yet; run the model once, then draw it")
        if tensor.is_meta:
            raise ValueError(f"{who}: {name} is on meta and has no values; move the model to a real device")


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
    # Which kind of backward hooks a module has, it remembers when they are gone.
    before = {module: module._is_full_backward_hook for module in model.modules()}
    calls: list[nn.Module] = []  # that are running, the innermost last
    threads, small = torch.get_num_threads(), sum(one.numel() for one in model.parameters()) < SMALL
    handles = [register_module_forward_pre_hook(lambda module, given: calls.append(module))]
    handles += [register_module_forward_hook(lambda module, given, output: calls.remove(module))]
    try:
        torch.set_num_threads(1 if small else threads)
        for module, register, hook in hooks:
            handles.append(getattr(module, register)(hook))
        cuda = {tensor.device.index for tensor in model.parameters() if tensor.is_cuda}
        with (
            torch.random.fork_rng(devices=cuda),
            torch.inference_mode(False),
            torch.enable_grad(),
            warnings.catch_warnings(action="ignore"),
        ):
            args, kwargs = tuple(map(_copied, listed)), {name: _copied(one) for name, one in named.items()}
            functional_call(both, {f"model.{name}": one for name, one in swapped.items()}, args, kwargs)
    except Exception as error:  # whatever the model raises is what there is to tell
        raise ValueError(f"{who}: {_why(model, batch, both.doing, calls, error)}") from error
    finally:
        torch.set_num_threads(threads)
        for handle in handles:
            handle.remove()
        for module, kind in before.items():
            module._is_full_backward_hook = kind
    return both.backward


def _why(model: nn.Module, batch: Any, doing: str, calls: list[nn.Module], error: Exception) -> str:
    places = {module: path for path, module in model.named_modules() if path}
    at = f" in `{places[calls[-1]]}`, a {type(calls[-1]).__name__}" if calls and calls[-1] in places else ""
    first = (str(error).strip() or "nothing more").splitlines()[0].rstrip(".")
    what = f"the model's {doing} raised{at}: {type(error).__name__}: {first}"
    takes = f"what `forward{inspect.signature(model.forward)}` takes: a tensor, a tuple of arguments"
    given = f". Given was {said(batch)}; wanted is {takes} or a dict of them by name"
    return what + given * (doing == "forward")


class _ThereAndBack(nn.Module):
    """The model with its backward in one call: what is recomputed in backward finds the same weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.doing, self.backward = model, "forward", False

    def forward(self, *args: Any, **kwargs: Any) -> None:
        output = self.model(*args, **kwargs)
        self.doing = "backward"
        roots = [one for one in tensors_in(output) if one.requires_grad and not one.is_complex()]
        generator = torch.Generator().manual_seed(0)
        starts = [torch.randn(one.shape, generator=generator).to(one) if one.dim() else None for one in roots]
        if roots:
            # No `backward()`: that would write to `.grad`, and run what hangs on it.
            torch.autograd.grad(roots, _leaves(roots), starts, allow_unused=True)
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
    elif hasattr(value, "__dataclass_fields__"):
        yield from tensors_in(vars(value))


def _leaves(roots: list[Tensor]) -> list[Tensor]:
    """All that a backward from these would write a gradient to."""
    nodes = new = {root.grad_fn for root in roots} - {None}
    while new:
        new = {one for node in new for one, _ in node.next_functions if one is not None} - nodes
        nodes = nodes | new
    written = [node.variable for node in nodes if type(node).__name__ == "AccumulateGrad"]
    return [*written, *(root for root in roots if root.is_leaf)]
