"""A function and its backward, side by side: the value, the true slope, and the one that backward returns."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from course_utils.draw import palette
from course_utils.draw.picture import Picture, panels
from course_utils.wrong_use import public

START, STOP, POINTS = -3.0, 3.0, 240
# Two slopes part where that can be seen: a thousandth of the largest of them.
VISIBLE = 1e-3
# A value that rises so many times faster than its slope says has a jump.
JUMP = 4


@dataclass(frozen=True)
class Slopes:
    """A function of one number at evenly spaced points from -3 to 3, in float64: its values, nan behind a
    jump; its slope by central differences; what its backward returns when 1 arrives; whether the two part."""

    points: Tensor
    values: Tensor
    true: Tensor
    handed: Tensor
    part: Tensor

    def stretches(self) -> list[tuple[float, float]]:
        """From where to where the two slopes part."""
        half, found = (STOP - START) / POINTS / 2, []
        together = zip(self.points.tolist(), self.part.tolist(), strict=True)
        for part, group in itertools.groupby(together, key=lambda one: one[1]):
            inside = [x for x, _ in group]
            if part:
                found.append((inside[0] - half, inside[-1] + half))
        return found


def compare(function: Callable[[Tensor], Tensor]) -> Slopes:
    """The value, the slope and the backward of `function`, which works element by element."""
    width = (STOP - START) / POINTS
    # The middles of equal cells: a kink or a step at a round number falls between two of them.
    xs = START + width * (torch.arange(POINTS, dtype=torch.float64) + 0.5)
    leaf = xs.clone().requires_grad_()
    result = function(leaf)
    (handed,) = torch.autograd.grad(result.sum(), leaf)
    values, reach = result.detach().clone(), 1e-6 * xs.abs().clamp(min=1)
    with torch.no_grad():
        true = (function(xs + reach) - function(xs - reach)) / (2 * reach)
    part = (handed - true).abs() > VISIBLE * torch.cat([true, handed]).abs().max()
    steepest = torch.maximum(true[1:].abs(), true[:-1].abs())
    values[1:][values.diff().abs() > JUMP * steepest * width + 1e-9] = torch.nan
    return Slopes(xs, values, true, handed, part)


@public
def slopes(function: Callable[[Tensor], Tensor], *, name: str) -> Picture:
    """A function of one number and its backward side by side, between -3 and 3: at the left the value, at the
    right the true slope and the one that backward returns. Where the two part is shaded.

    `function` works element by element on a tensor of float64.
    """
    data = compare(function)
    picture, (value, slope) = panels(2.7, columns=2)
    for axes, title in ((value, name), (slope, "slope")):
        axes.set_title(title, fontsize=10.5, color=palette.TEXT, weight="bold", loc="left")
        axes.set_xlim(START, STOP)
        for start, stop in data.stretches():
            axes.axvspan(start, stop, color=palette.ODD, alpha=0.22, linewidth=0)
    value.plot(data.points, data.values, color=palette.TEXT, linewidth=2.2)
    true, handed = data.true[-1].item(), data.handed[-1].item()
    apart = 0.5 if abs(handed - true) < 0.1 * max(abs(true), abs(handed), 1) else 0
    for ys, name_, color, width, up in (
        (data.true, "true slope", palette.TEXT, 4.5, -apart),
        (data.handed, "backward returns", palette.GRADIENT, 2, apart),
    ):
        slope.plot(data.points, ys, color=color, linewidth=width)
        end = {"xy": (STOP, ys[-1].item()), "xytext": (6, 14 * up), "textcoords": "offset points"}
        slope.annotate(name_, **end, va="center", fontsize=9.5, color=palette.TEXT, annotation_clip=False)
    parts = " and ".join(f"from {start:.3g} to {stop:.3g}" for start, stop in data.stretches())
    picture.description = f"{name}, from -3 to 3. True slope and backward differ {parts or 'nowhere'}."
    return picture
