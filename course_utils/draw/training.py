"""Rates over time, a range test, and a run as it goes."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from course_utils.draw import palette
from course_utils.draw.picture import Picture, panels
from course_utils.wrong_use import public

SECONDS = 0.2  # between two drawings of a live figure


@public
def schedules(rates: Mapping[str, Sequence[float]]) -> Picture:
    """One panel for each schedule: its rate at each step, as `param_groups[0]["lr"]` had it.

    `rates`: name to a list of rates.
    """
    rows = math.ceil(len(rates) / 3)
    columns = min(len(rates), 3)
    picture, found = panels(1.55 * rows + 0.2, rows, columns)
    top = max(max(values) for values in rates.values())
    for panel, (name, values) in zip(found, rates.items(), strict=False):
        panel.plot(values, color=palette.VIEW, linewidth=2)
        panel.set_ylim(-0.04 * top, 1.08 * top)
        panel.set_title(name, fontsize=9.5, color=palette.TEXT, family=palette.CODE, loc="left")
    for i, panel in enumerate(found[: len(rates)]):
        if i % columns == 0:
            panel.set_ylabel("rate")
        if i + columns >= len(rates):
            panel.set_xlabel("step")
    for panel in found[len(rates) :]:
        panel.remove()
    said = (f"{name} from {values[0]:.3g} to {values[-1]:.3g}" for name, values in rates.items())
    picture.description = f"Rates over the steps: {'; '.join(said)}."
    return picture


@public
def range_test(rates: Sequence[float], losses: Sequence[float]) -> Picture:
    """The losses of a learning-rate range test over its rates, with the rate at which the loss falls fastest,
    measured over several steps."""
    picture, (panel,) = panels(2.6)
    finite = list(itertools.takewhile(math.isfinite, losses))
    smooth = _smoothed(finite)
    falling = finite[: smooth.index(min(smooth)) + 1] if smooth else []  # beyond it, it has exploded
    # From one step to the next a fall is the chance of a batch: several before against several after.
    reach = max(1, len(falling) // 12)
    steepest = min(
        range(1, len(falling)),
        key=lambda i: fmean(falling[i : i + reach]) - fmean(falling[max(i - reach, 0) : i]),
        default=0,
    )
    panel.plot(rates, losses, color=palette.STORAGE, linewidth=1.2)
    panel.plot(rates[: len(smooth)], smooth, color=palette.VIEW, linewidth=2)
    panel.axvline(rates[steepest], color=palette.ODD, linewidth=1.4)
    panel.set_xscale("log")
    panel.set_ylim(0.9 * min(finite, default=0), 1.5 * losses[0] if losses[0] > 0 else None)
    panel.set_xlabel("rate")
    panel.set_ylabel("loss")
    panel.annotate(
        f" {rates[steepest]:.2g}: falls fastest",
        (rates[steepest], 1),
        xycoords=("data", "axes fraction"),
        va="top",
        fontsize=9.5,
        color=palette.TEXT,
    )
    picture.description = (
        f"Range test over {len(rates)} rates. The loss falls fastest at {rates[steepest]:.2g}."
    )
    return picture


class Training:
    """A figure that a loop adds to: a panel for each number, over the steps.

        live = draw.training()
        live.add(loss=loss.detach(), rate=optimizer.param_groups[0]["lr"])
        live.close()

    It is drawn at most five times a second. Tensors are kept as they are and read when it is drawn, all of a
    name at once, so a step in between waits for no device.
    """

    def __init__(self) -> None:
        self._kept: dict[str, list[Any]] = {}
        self._shown: Any = None
        self._next = 0.0

    def add(self, **numbers: Any) -> None:
        """One step: numbers or 0-d tensors by name."""
        for name, value in numbers.items():
            detached = value.detach() if hasattr(value, "detach") else value
            self._kept.setdefault(name, []).append(detached)
        if time.monotonic() >= self._next:
            self._draw()
            self._next = time.monotonic() + SECONDS

    def close(self) -> None:
        """Draws what has come since."""
        self._draw()

    def values(self, name: str) -> list[float]:
        """The numbers of this name, step by step."""
        kept = self._kept[name]
        waiting: dict[Any, list[int]] = {}
        for place, value in enumerate(kept):
            if hasattr(value, "detach"):
                waiting.setdefault((value.device, value.dtype), []).append(place)
            else:
                kept[place] = float(value)
        for places in waiting.values():  # all of them at once: one wait for the device, not one each
            read = torch.stack([kept[place].reshape(()) for place in places]).tolist()
            for place, number in zip(places, read, strict=True):
                kept[place] = float(number)
        return list(kept)

    def picture(self) -> Picture:
        """What has been added so far."""
        picture, found = panels(1.9, columns=max(len(self._kept), 1))
        for panel, name, hue in zip(found, self._kept, palette.HUES, strict=False):
            panel.plot(self.values(name), color=hue, linewidth=1.6)
            panel.set_ylabel(name)
            panel.set_xlabel("step")
        picture.description = f"A run as it goes: {', '.join(self._kept)}."
        return picture

    def _draw(self) -> None:
        from IPython.display import display

        if self._shown is None:
            self._shown = display(self.picture(), display_id=True)
        else:
            self._shown.update(self.picture())


@public
def training() -> Training:
    """A live figure of a run: see `Training`."""
    return Training()


def _smoothed(losses: Sequence[float]) -> list[float]:
    """A running mean that keeps four fifths at each step, corrected for its start at zero."""
    mean, smooth = 0.0, []
    for step, loss in enumerate(losses, 1):
        mean = 0.8 * mean + 0.2 * loss
        smooth.append(mean / (1 - 0.8**step))
    return smooth
