"""The gradients of a live model by layer, all of them, and what a narrow format would make of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
from torch import Tensor, nn

from course_utils.draw import model_run
from course_utils.draw.formats import Format
from course_utils.measure.storage import values
from course_utils.measure.uncompiled import as_written

KINDS = {
    "outputs": "gradients that arrive at the output of each layer",
    "weights": "gradients of the weights of each layer",
}
Loss = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Shares:
    """Of the gradients that are not 0: the share that becomes 0, a subnormal number, or is too large."""

    zero: float
    subnormal: float
    overflow: float


@dataclass(frozen=True)
class Gradients:
    """Of one layer: the sizes of those that are numbers and not 0, in order; how many others there are."""

    name: str
    sizes: numpy.ndarray
    zeros: int
    nans: int

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> Gradients:
        there = values(tensor.detach())  # of a sparse one: the rows that are not there are zeros
        sizes = there.cpu().double().flatten().abs().numpy()
        nans, zeros = int(numpy.isnan(sizes).sum()), int((sizes == 0).sum()) + tensor.numel() - there.numel()
        return cls(name, numpy.sort(sizes[sizes > 0]), zeros, nans)

    def below(self, size: float, *, also_at: bool = False) -> int:
        """How many are smaller than `size`, or not larger."""
        return int(numpy.searchsorted(self.sizes, size, side="right" if also_at else "left"))

    def shares(self, form: Format, scale: float) -> Shares:
        """What becomes of them times `scale` in a format. Ties are rounded to the even one of two numbers:
        half of the smallest number to 0, half a step above the largest to inf, without inf to the largest."""
        total = max(len(self.sizes), 1)
        zero = self.below(form.vanishing / scale, also_at=True)
        small = self.below((form.smallest_normal - form.smallest / 2) / scale)
        large = self.below(form.overflowing / scale, also_at=not form.has_inf)
        return Shares(zero / total, (small - zero) / total, (len(self.sizes) - large) / total)


def record(model: nn.Module, batch: Any, loss: Loss | None, who: str) -> dict[str, list[Gradients]]:
    """Runs `model` forward and backward once, from what `loss` makes of its output; without `loss`, from its
    output. Gradients of both `KINDS`; layers are modules whose weight has two or more dimensions. The model,
    its `.grad`, its buffers and the batch stay as they were. Raises `ValueError`
    where it cannot be run."""
    model = as_written(model)
    calls: list[Gradients | None] = []
    weights: dict[str, Gradients] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            place, result = len(calls), model_run.returned(output)
            if result is not None and result.requires_grad:
                calls.append(None)
                result.register_hook(lambda grad: calls.__setitem__(place, Gradients.of(name, grad)))

        return hook

    def finish(module: nn.Module, given: Any, output: Any) -> Any:
        return output if loss is None else loss(output)

    copies = {
        name: one.detach().clone().requires_grad_()
        for name, one in model.named_parameters()
        if one.requires_grad
    }
    for name, one in copies.items():
        if one.dim() > 1:
            one.register_hook(lambda grad, name=name: weights.__setitem__(name, Gradients.of(name, grad)))
    hooks = [
        (module.register_forward_hook, note(_called(name, module)))
        for name, module in model_run.layers(model).items()
    ]
    model_run.run(model, batch, who, [*hooks, (model.register_forward_hook, finish)], copies)
    found = {
        "outputs": [one for one in calls if one],
        "weights": [weights[name] for name in copies if name in weights],
    }
    return {kind: rows for kind, rows in found.items() if rows}


def _called(name: str, module: nn.Module) -> str:
    """A name that is a number, as in a `Sequential`, says little without the kind of layer."""
    number = name.rpartition(".")[2].isdigit()
    return f"{name} ({type(module).__name__})" if number else name or "the model"
