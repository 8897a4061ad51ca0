"""The loading explorer: a loader with other numbers of workers, watched anew at every move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from course_utils.draw.loading import compose
from course_utils.draw.shapes import Scene
from course_utils.explore.controls import slider, wrapped
from course_utils.explore.explorer import Explorer
from course_utils.measure.loading import Loading
from course_utils.measure.loading import loading as watch
from course_utils.wrong_use import public


@public
def loading(
    make: Callable[[int, int | None], DataLoader], step: Callable[[Any], Any], batches: int
) -> LoadingExplorer:
    """An explorer of what `draw.loading` draws, over the number of workers and how far they run ahead.

    `make(num_workers, prefetch_factor)` returns a loader; without workers `prefetch_factor` is None. `step`
    is called with each of the first `batches` batches. Raises `TypeError` where `make` returns no loader.
    """
    return LoadingExplorer(make, step, batches)


class LoadingExplorer(Explorer):
    """The widget. `workers` and `ahead` are the sliders; `found` is what was last recorded."""

    def __init__(
        self, make: Callable[[int, int | None], DataLoader], step: Callable[[Any], Any], batches: int
    ) -> None:
        self.make, self.step, self.batches = make, step, batches
        self.workers = slider("workers", 2, 0, 4, continuous_update=False)
        self.ahead = slider("ahead", 2, 1, 4, continuous_update=False)
        controls = [self.workers, self.ahead]
        super().__init__(wrapped(controls), follows=controls)
        self.draw()

    def draw(self) -> None:
        """Records again with what the sliders say, and shows it."""
        workers = self.workers.value
        self.ahead.disabled = not workers
        loader = self.make(workers, self.ahead.value if workers else None)
        self.found: Loading = watch(loader, self.step, self.batches)
        super().draw()

    def scene(self) -> Scene:
        return compose(self.found)
