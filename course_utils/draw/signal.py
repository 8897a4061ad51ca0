"""What becomes of the signal through the depth of a model: activations on the way there, gradients on the
way back, recorded from one forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
from torch import Tensor, nn

from course_utils.draw.model_run import must_run, run, tensors_in
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Area, Line, Scene, to_picture
from course_utils.draw.words import Words

# Sizes in pixels of the page.
ROW, HIGH, TOP, BOTTOM, LEFT = 17.0, 15.0, 44.0, 30.0, 128.0
SAID, ZERO = 72.0, 10.0  # the room for words beside a histogram, for the bar of its zeros before it
SMALL, TINY = 10.5, 10.0
BINS, SAMPLE = 48, 2048  # of a histogram; elements of a tensor that it is made of
MOST, LONGEST, FEWEST = 40, 19, 4  # rows, letters of a name, powers of ten on an axis
COLUMNS = (
    ("activations", "view", "size of what a layer returns"),
    ("gradients", "gradient", "size of the gradient that arrives there"),
)
SCALED = (nn.Linear, nn.modules.conv._ConvNd)
Kinds = type | tuple | None


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
                return f"{_percent(share)} {name}"
        return f"std {self.std:.2g}" if self.count else "empty"


@dataclass(frozen=True)
class Layer:
    """A call of a layer: what it returned, and the gradient that arrived there; None where none did."""

    name: str
    activations: Values
    gradients: Values | None


def signal(model: nn.Module, batch: Any, *, layers: Kinds = None) -> Picture:
    """A picture of what each layer returns and of the gradient that arrives there: histograms of the size of
    the values, on an axis of powers of ten.

    A row for each call of a layer: of a module with a weight of two or more dimensions, or of the classes
    `layers`, such as `nn.ReLU`. The model runs forward and backward once; it, its `.grad`, its buffers and
    the batch stay as they were. Backward begins with ones where the model returns a scalar, else with
    standard normal numbers. `batch`: a tensor, a tuple of arguments or a dict of keyword arguments. Raises
    `TypeError` for what is no module, `ValueError` where it cannot be run or has no such layer.
    """
    return to_picture(compose(record(model, batch, layers=layers)))


def record(
    model: nn.Module, batch: Any, *, gain: float = 1.0, layers: Kinds = None, who: str = "draw.signal"
) -> list[Layer]:
    """What `signal` draws; with the weights of Linear and Conv layers times `gain`."""
    must_run(model, who)
    if not isinstance(layers, Kinds):
        raise TypeError(f"{who}: layers is a class of modules or a tuple of such, as nn.ReLU; not {layers!r}")
    calls: list[tuple[str, Values]] = []
    gradients: dict[int, Values] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            number = len(calls)
            for one in [*tensors_in(output)][:1]:
                # At once: a layer in place may write over it.
                calls.append((name, Values.of(one)))
                if one.requires_grad:
                    one.register_hook(lambda grad: gradients.__setitem__(number, Values.of(grad)))

        return hook

    wanted = [
        (module, "register_forward_hook", note(name or "the model"))
        for name, module in model.named_modules()
        if (_weighs(module) if layers is None else isinstance(module, layers))
    ]
    weights = {id(layer.weight) for layer in scaled_layers(model) if gain != 1}
    weights = {name: one for name, one in model.named_parameters() if id(one) in weights}
    scaled = {name: (one.detach() * gain).requires_grad_(one.requires_grad) for name, one in weights.items()}
    run(model, batch, who, wanted, scaled)
    if not calls:
        what = "with a weight of two or more dimensions" if layers is None else f"of {layers!r}"
        raise ValueError(f"{who}: no module {what} was called; layers= picks others, as in layers=nn.ReLU")
    return [Layer(name, values, gradients.get(number)) for number, (name, values) in enumerate(calls)]


def scaled_layers(model: nn.Module) -> list[nn.Module]:
    """The layers whose weights a gain multiplies."""
    return [one for one in model.modules() if isinstance(one, SCALED) and "weight" in one._parameters]


def _weighs(module: nn.Module) -> bool:
    own = (*module._parameters.values(), getattr(module, "weight", None))
    return any(isinstance(one, Tensor) and one.dim() > 1 for one in own)


def compose(layers: list[Layer], title: str = "") -> Scene:
    """The scene of `signal`."""
    every = math.ceil(len(layers) / MOST)
    shown = layers[::every]
    scene = Scene("")
    wide = (WIDTH - LEFT) / 2
    for number, (what, fill, about) in enumerate(COLUMNS):
        left = LEFT + number * wide
        values = [getattr(layer, what) for layer in shown]
        axis = _Axis(values, left + ZERO + 4, left + wide - SAID - 6)
        scene.words.append(Words(left, 11, what + title, 13, bold=True))
        scene.words.append(Words(left, 29, about, SMALL, faint=True))
        _ticks(scene, axis, left, TOP + ROW * len(shown) + 3)
        for row, (layer, one) in enumerate(zip(shown, values, strict=True)):
            bottom = TOP + ROW * (row + 1)
            scene.lines.append(Line(((left, bottom), (axis.right, bottom)), 0.5, arrow=False))
            said = str(one or "no gradient")
            odd = not said.startswith("std")
            scene.words.append(Words(axis.right + 6, bottom - 6, said, SMALL, bold=odd))
            if one:
                _histogram(scene, axis, left, bottom, one, fill, f"{what} of {layer.name}", layer.name)
    for row, layer in enumerate(shown):
        scene.words.append(Words(1, TOP + ROW * (row + 1) - 6, _short(layer.name), SMALL, code=True))
    scene.height = TOP + ROW * len(shown) + BOTTOM
    if every > 1:
        words = f"1 in {every} of {len(layers)} calls of layers"
        scene.words.append(Words(1, scene.height, words, SMALL, faint=True))
        scene.height += 12
    told = "; ".join(f"{one.name}: {one.activations}, {one.gradients or 'no gradient'}" for one in shown)
    scene.description = f"Activations and gradients{title} by layer, from the first to the last. {told}"
    return scene


class _Axis:
    """Powers of ten from `low` to `high`, between two places of the page."""

    def __init__(self, values: list[Values | None], left: float, right: float) -> None:
        self.left, self.right = left, right
        logs = [one.logs for one in values if one and len(one.logs)]
        # What is closer to 0 than 99 of 100 elements of every layer would only make the axis longer.
        low = min((numpy.partition(one, len(one) // 100)[len(one) // 100] for one in logs), default=-2.0)
        self.high = math.ceil(max((one.max() for one in logs), default=0.0))
        self.low = min(math.floor(low), self.high - FEWEST)

    def x(self, power: float) -> float:
        return self.left + (power - self.low) / (self.high - self.low) * (self.right - self.left)


def _ticks(scene: Scene, axis: _Axis, left: float, y: float) -> None:
    scene.words.append(Words(left + ZERO / 2, y + 8, "0", TINY, "middle"))
    for power in range(
        axis.high, axis.low - 1, -math.ceil((axis.high - axis.low) * 42 / (axis.right - axis.left))
    ):
        x, text = axis.x(power), f"{10.0**power:g}" if -3 < power < 4 else f"1e{power}"
        scene.lines.append(Line(((x, TOP), (x, y)), 0.4, arrow=False))
        if x - left > 26:
            scene.words.append(Words(x, y + 8, text, TINY, "middle"))


def _histogram(
    scene: Scene, axis: _Axis, left: float, bottom: float, values: Values, fill: str, what: str, key: str
) -> None:
    also = "".join(f", {_percent(share)} {name}" for name, share in values.shares.items())
    more = f"{what}: {values.count:,} elements, std {values.std:.3g}{also}"
    if zeros := values.shares.get("zeros"):
        top = bottom - HIGH * zeros
        corners = ((left, bottom), (left, top), (left + ZERO, top), (left + ZERO, bottom))
        scene.areas.append(Area(corners, fill, more, "zeros", key))
    limits = axis.low, axis.high
    counts = numpy.histogram(values.logs.clip(*limits), BINS, limits)[0].tolist()
    most, width = max(counts), (axis.right - axis.left) / BINS
    full = [place for place, count in enumerate(counts) if count] or [0]
    points = [(axis.left + full[0] * width, bottom)]
    for place in range(full[0], full[-1] + 1 if most else 0):
        top = bottom - HIGH * counts[place] / most
        points += [(axis.left + place * width, top), (axis.left + (place + 1) * width, top)]
    if most:
        scene.areas.append(Area((*points, (points[-1][0], bottom)), fill, more, "histogram", key))


def _percent(share: float) -> str:
    return "all" if share == 1 else "<1 %" if share < 0.01 else f"{math.floor(100 * share)} %"


def _short(path: str) -> str:
    """A path as it fits before its row: of all but the last name the first letters."""
    *others, last = path.split(".")
    short = path if len(path) <= LONGEST else ".".join([*(name[:2] for name in others), last])
    return short if len(short) <= LONGEST else "…" + short[1 - LONGEST :]
