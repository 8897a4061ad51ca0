"""Models for a diagnosis to be tried on: real architectures, healthy ones that look sick, and sick ones."""

from tests.sets.given import Given, Make, Sick, listed
from tests.sets.healthy import NETS
from tests.sets.healthy_losses import METHODS

HEALTHY: dict[str, Make] = NETS | METHODS

__all__ = ["HEALTHY", "Given", "Make", "Sick", "listed"]
