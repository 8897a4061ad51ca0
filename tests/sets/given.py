"""What the sets of models are written with."""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import Optimizer


class Given(NamedTuple):
    """What `diagnose` takes. `loop`: the reader's own training code, a few steps with this model and this
    optimizer; there where the fault is in it."""

    model: nn.Module
    batch: Any
    loss_fn: Callable[..., Any] | None = None
    optimizer: Optimizer | None = None
    loop: Callable[[], object] | None = None


Make = Callable[[], Given]


class Sick(NamedTuple):
    """`cause`: what a diagnosis is to name."""

    cause: str
    make: Make


def listed(table: dict[str, Make]) -> Callable[[Make], Make]:
    """Writes what makes a model into a table, by its name; random numbers are the same each time."""

    def written(make: Make) -> Make:
        @wraps(make)
        def seeded() -> Given:
            torch.manual_seed(0)
            return make()

        table[make.__name__] = seeded
        return seeded

    return written
