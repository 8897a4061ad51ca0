"""What becomes of the signal through the depth of a model: activations on the way there, gradients on the
way back, recorded from one forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
from torch import Tensor, nn
from torch.nn.utils import parametrize

from course_utils import torch_private
from course_utils.draw import folding, model_run
from course_utils.draw.labels import Label, counted, percent, short_path
from course_utils.draw.shapes import WIDTH, Scene
from course_utils.measure.uncompiled import as_written
from course_utils.wrong_use import WrongUse

# Sizes in pixels of the page.
ROW, HIGH, TOP, BOTTOM, GAP = 17.0, 15.0, 44.0, 30.0, 14.0
SAID, ZERO = 72.0, 10.0  # the room for words beside a histogram, for the bar of its zeros before it
SMALL, TINY = 10.5, 10.0
BINS, SAMPLE = 48, 2048  # of a histogram; elements of a tensor that it is made of
LONGEST, FEWEST = 19, 2  # letters of a name, powers of ten on an axis
COLUMNS = (
    ("activations", "view", "size of what a layer returns"),
    ("gradients", "gradient", "size of the gradient that arrives there"),
)
SCALED = (nn.Linear, torch_private.Conv)


@dataclass(frozen=True)
class Values:
    """What is in a tensor: its number of elements, the shares of them that are nan, inf and 0, the standard
    deviation of the finite ones, and log10 of the size of some that are finite and not 0."""

    count: int
    shares: dict[str, float]
    std: float
    logs: numpy.ndarray

    @classmethod
    def of(cls, tensor: Tensor) -> Values:
        flat = tensor.detach().cpu().double().flatten().numpy()
        finite = flat[numpy.isfinite(flat)]
        counts = {"nan": numpy.isnan(flat), "inf": numpy.isinf(flat), "zeros": flat == 0}
        shares = {name: float(one.mean()) for name, one in counts.items() if one.any()}
        std = float(finite.std()) if len(finite) else math.nan
        # Of many elements the same ones each time, spread without a pattern.
        some = finite[numpy.arange(SAMPLE) * 2654435761 % len(finite)] if len(finite) > SAMPLE else finite
        logs = numpy.log10(numpy.abs(some[some != 0]))
        return cls(len(flat), shares, std, logs)

    def __str__(self) -> str:
        for name, share in self.shares.items():
            if share == 1 or name != "zeros":
                return f"{percent(share)} {name}"
        return f"std {self.std:.2g}" if self.count else "empty"


@dataclass(frozen=True)
class Layer:
    """A call of a layer: what it returned, and the gradient that arrived there; None where none did."""

    name: str
    activations: Values
    gradients: Values | None

    @property
    def usual(self) -> bool:
        return all(str(one).startswith("std") for one in (self.activations, self.gradients))


class _Times(nn.Module):
    """Stands behind the parametrizations of a weight."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.gain


def record(model: nn.Module, batch: Any, gain: float) -> list[Layer]:
    """What the signal explorer draws, with the weights of Linear and Conv layers times `gain`, those that a
    parametrization makes too."""
    calls: list[tuple[str, Values]] = []
    gradients: dict[int, Values] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            number, result = len(calls), model_run.returned(output)
            if result is None:
                return
            # At once: a layer in place may write over it.
            calls.append((name, Values.of(result)))
            if result.requires_grad:
                result.register_hook(lambda grad: gradients.__setitem__(number, Values.of(grad)))

        return hook

    model = as_written(model)
    layers = model_run.layers(model)
    gained = [one for one in layers.values() if isinstance(one, SCALED)]
    # What a parametrization makes of its own tensors is scaled, not those; `weight_g` is a length.
    made = [one.parametrizations.weight for one in gained if parametrize.is_parametrized(one, "weight")]
    own = [torch_private.parameters(one) for one in gained]
    weights = {id(one.get("weight_g", one.get("weight"))) for one in own}
    scaled = {
        name: (one.detach() * gain).requires_grad_(one.requires_grad)
        for name, one in model.named_parameters()
        if id(one) in weights
    }
    hooks = [(module.register_forward_hook, note(name or "the model")) for name, module in layers.items()]
    for one in made:
        one.append(_Times(gain))
    try:
        model_run.run(model, batch, "explore.signal", hooks, scaled)
    finally:
        for one in made:
            del one[-1]
    if not calls:
        raise WrongUse("explore.signal: no module with a weight of two or more dimensions was called")
    return [Layer(name, values, gradients.get(number)) for number, (name, values) in enumerate(calls)]


def compose(layers: list[Layer], title: str) -> Scene:
    """The histograms of activations and gradients; `title` stands behind these words."""
    scene = Scene("")
    most = int((folding.PAGE - TOP - BOTTOM - ROW) // ROW)
    shown = folding.chosen(layers, min(most, len(layers)), lambda place: not layers[place].usual)
    rest = f"… and {counted(len(layers) - len(shown), 'layer')} more between these" * (
        len(shown) < len(layers)
    )
    layers = [layers[place] for place in shown]
    names = [
        Label(1, TOP + ROW * (row + 1) - 6, short_path(layer.name, LONGEST), SMALL, code=True)
        for row, layer in enumerate(layers)
    ]
    first = max(one.width for one in names) + GAP
    wide = (WIDTH - first) / 2
    for number, (what, fill, about) in enumerate(COLUMNS):
        left = first + number * wide
        values = [getattr(layer, what) for layer in layers]
        axis = _Axis(values, left + ZERO + 4, left + wide - SAID - 6)
        scene.write(left, 11, what + title, 13, bold=True)
        scene.write(left, 29, about, SMALL, faint=True)
        _ticks(scene, axis, left, TOP + ROW * len(layers) + 3)
        for row, (layer, one) in enumerate(zip(layers, values, strict=True)):
            bottom = TOP + ROW * (row + 1)
            scene.line(((left, bottom), (axis.right, bottom)), 0.5)
            said = str(one or "no gradient")
            odd = not said.startswith("std")
            scene.write(axis.right + 6, bottom - 6, said, SMALL, bold=odd)
            if one:
                _histogram(scene, axis, left, bottom, one, fill, f"{what} of {layer.name}", layer.name)
    scene.words += names
    scene.height = TOP + ROW * len(layers) + BOTTOM
    if rest:
        scene.write(1, scene.height, rest, SMALL)
        scene.height += ROW
    told = "; ".join(f"{one.name}: {one.activations}, {one.gradients or 'no gradient'}" for one in layers)
    scene.description = f"Activations and gradients{title} by layer, from the first to the last. {told}"
    return scene


class _Axis:
    """Logarithms from `low` to `high`, between two places of the page. It begins and ends where the
    histograms do: whole powers of ten would leave up to a power at each end empty."""

    def __init__(self, values: list[Values | None], left: float, right: float) -> None:
        self.left, self.right = left, right
        logs = [one.logs for one in values if one and len(one.logs)]
        # What is closer to 0 than 99 of 100 elements of every layer would only make the axis longer.
        low = min((numpy.partition(one, len(one) // 100)[len(one) // 100] for one in logs), default=-2.0)
        self.high = max((float(one.max()) for one in logs), default=0.0)
        self.low = min(float(low), self.high - FEWEST)

    def x(self, power: float) -> float:
        return self.left + (power - self.low) / (self.high - self.low) * (self.right - self.left)


def _ticks(scene: Scene, axis: _Axis, left: float, y: float) -> None:
    scene.write(left + ZERO / 2, y + 8, "0", TINY, "middle")
    high, low = math.floor(axis.high), math.ceil(axis.low)
    for power in range(high, low - 1, -math.ceil((axis.high - axis.low) * 42 / (axis.right - axis.left))):
        x, text = axis.x(power), f"{10.0**power:g}" if -3 < power < 4 else f"1e{power}"
        scene.line(((x, TOP), (x, y)), 0.4)
        if x - left > 26:
            scene.write(x, y + 8, text, TINY, "middle")


def _histogram(
    scene: Scene, axis: _Axis, left: float, bottom: float, values: Values, fill: str, what: str, key: str
) -> None:
    also = "".join(f", {percent(share)} {name}" for name, share in values.shares.items())
    more = f"{what}: {values.count:,} elements, std {values.std:.3g}{also}"
    if zeros := values.shares.get("zeros"):
        top = bottom - HIGH * zeros
        corners = ((left, bottom), (left, top), (left + ZERO, top), (left + ZERO, bottom))
        scene.area(corners, fill, more, "zeros", key)
    limits = axis.low, axis.high
    counts = numpy.histogram(values.logs.clip(*limits), BINS, limits)[0].tolist()
    most, width = max(counts), (axis.right - axis.left) / BINS
    full = [place for place, count in enumerate(counts) if count] or [0]
    points = [(axis.left + full[0] * width, bottom)]
    for place in range(full[0], full[-1] + 1 if most else 0):
        top = bottom - HIGH * counts[place] / most
        points += [(axis.left + place * width, top), (axis.left + (place + 1) * width, top)]
    if most:
        scene.area((*points, (points[-1][0], bottom)), fill, more, "histogram", key)
