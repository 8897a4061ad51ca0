"""What an answer must not change: tensors and modules, down to their bits."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from course_utils import torch_private
from course_utils.exercise.compare import name_of, numbers, place
from course_utils.exercise.mismatch import Mismatch, looked


@contextlib.contextmanager
def left_alone(
    *things: Any, what: str = "the input", gradients: bool = False, hooks: bool = True
) -> Iterator[None]:
    """Checks that what runs inside changes none of these: tensors, modules, or lists, tuples and dicts of
    them.

    Of a tensor: the place that it reads, its size, strides, dtype and `requires_grad`, every bit of its
    elements, and its version counter, which counts writes that were undone again. Of a module: the same of
    its parameters and buffers, which stay the objects that they are, the mode of each of its parts, and all
    hooks. `gradients`: `.grad` too, its presence, its object and its bits. `hooks`: whether they count.
    """
    whole = things[0] if len(things) == 1 else list(things)
    before = {name: _Seen.of(value, gradients) for name, value in _places(whole, what).items()}
    modules = dict(_modules(whole, what)) if isinstance(whole, nn.Module) else {}
    modes = {name: module.training for name, module in modules.items()}
    with contextlib.ExitStack() as stack:
        if hooks and isinstance(whole, nn.Module):
            stack.enter_context(hooks_left_alone(whole, what))
        yield
    looked()
    now = _places(whole, what)
    for name, seen in before.items():
        if name not in now:
            raise Mismatch(f"{name} is gone after the call")
        seen.compare(now[name], name)
    if new := [name for name in now if name not in before]:
        raise Mismatch(f"{new[0]} is new after the call")
    for name, mode in modes.items():
        if modules[name].training is not mode:
            raise Mismatch(f"`{name}training` was {mode} and is {modules[name].training} now")


@contextlib.contextmanager
def hooks_left_alone(model: nn.Module, what: str = "`model`") -> Iterator[None]:
    """Checks that what runs inside neither adds nor removes a hook of a module, a part or a parameter of
    it."""
    before = _hooks(model, what)
    yield
    looked()
    now = _hooks(model, what)
    for where in {**before, **now}:
        was, are = before.get(where, []), now.get(where, [])
        if len(was) != len(are):
            raise Mismatch(f"`{where}` held {len(was)} before the call and holds {len(are)} now")
        if any(a is not b for a, b in zip(was, are, strict=True)):
            raise Mismatch(f"`{where}` holds another hook than before the call")


def _hooks(model: nn.Module, what: str) -> dict[str, list[Any]]:
    """By the attribute that holds them."""
    found = {}
    for prefix, module in _modules(model, what):
        found |= {f"{prefix}{kind}": held for kind, held in vars(module).items() if kind.endswith("_hooks")}
    for name, tensor in _places(model, what).items():
        for kind in torch_private.TENSOR_HOOKS:
            found[f"{name.strip('`')}.{kind}"] = getattr(tensor, kind, None)
    return {where: list(held.values()) for where, held in found.items() if isinstance(held, dict)}


@dataclass(frozen=True)
class _Seen:
    """A tensor as it was: what can be read off it in words, its bits, and the tensor itself."""

    tensor: Tensor
    facts: dict[str, Any]
    bits: Tensor | None
    elements: Tensor
    gradient: "_Seen | None"
    gradients: bool

    @classmethod
    def of(cls, tensor: Tensor, gradients: bool) -> "_Seen":
        elements = tensor.detach().clone()
        grad = tensor.grad if gradients and tensor.is_leaf else None
        seen = None if grad is None else cls.of(grad, False)
        return cls(tensor, _facts(tensor), _bits(elements), elements, seen, gradients)

    def compare(self, now: Tensor, name: str) -> None:
        """Raises `Mismatch` at the first thing that is another now."""
        if now is not self.tensor:
            raise Mismatch(f"{name} is another tensor than before the call")
        facts = _facts(now)
        for part, was in self.facts.items():
            if part in ("version", "place") or facts[part] == was:
                continue
            raise Mismatch(f"{name} was changed: its {part} was {was} and is {facts[part]} now")
        if facts.get("place") != self.facts.get("place"):
            raise Mismatch(f"{name} was changed: it reads from another place now than before the call")
        self._compare_elements(now, name)
        if facts["version"] != self.facts["version"]:
            told = f"{name} was written to: its version counter was {self.facts['version']} and is"
            raise Mismatch(f"{told} {facts['version']} now, though its elements are the same again")
        if self.gradients and now.is_leaf:
            self._compare_gradient(now.grad, name)

    def _compare_elements(self, now: Tensor, name: str) -> None:
        if self.bits is None:
            return
        differ = (_bits(now.detach()) != self.bits).any(-1)
        if bool(differ.any()):
            index = torch.unravel_index(differ.nonzero()[0, 0], now.shape)
            index = tuple(int(i) for i in index)
            was, came = numbers(self.elements[index].item(), now.detach()[index].item())
            where = f"element {place(index)}" if index else "it"
            raise Mismatch(f"{name} was changed: {where} was {was} and is {came} now")

    def _compare_gradient(self, grad: Tensor | None, name: str) -> None:
        whole = f"`{name.strip('`')}.grad`"
        if (grad is None) != (self.gradient is None):
            was, came = ("None", "a tensor") if self.gradient is None else ("a tensor", "None")
            raise Mismatch(f"{whole} was {was} and is {came} after the call")
        if self.gradient is not None:
            self.gradient.compare(grad, whole)


def _facts(tensor: Tensor) -> dict[str, Any]:
    facts = {
        "size": tuple(tensor.shape),
        "dtype": name_of(tensor.dtype),
        "`requires_grad`": tensor.requires_grad,
        "version": 0 if tensor.is_inference() else torch_private.version(tensor),
    }
    if tensor.layout is torch.strided and tensor.device.type != "meta":
        facts |= {"stride": tensor.stride()}
        facts |= {"place": (tensor.untyped_storage().data_ptr(), tensor.storage_offset())}
    return facts


def _bits(tensor: Tensor) -> Tensor | None:
    """The bytes of each element, (elements, bytes): the sign of a zero and the payload of a NaN count too.
    None where there are none to read."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).cpu()
    return flat.view(torch.uint8).view(flat.numel(), flat.element_size())


def _places(thing: Any, what: str) -> dict[str, Tensor]:
    """The tensors in it, by what they are called in a message."""
    if isinstance(thing, Tensor):
        return {what: thing}
    name = what.strip("`")
    if isinstance(thing, nn.Module):
        parameters = thing.named_parameters(remove_duplicate=False)
        named = [*parameters, *thing.named_buffers(remove_duplicate=False)]
        return {f"`{name}.{path}`": tensor for path, tensor in named}
    parts = thing.items() if isinstance(thing, dict) else enumerate(thing)
    return {k: t for key, part in parts for k, t in _places(part, f"`{name}[{key!r}]`").items()}


def _modules(module: nn.Module, what: str) -> Iterator[tuple[str, nn.Module]]:
    name = what.strip("`")
    return ((f"{name}.{path}." if path else f"{name}.", part) for path, part in module.named_modules())
