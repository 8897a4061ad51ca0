"""What the exercises that predict share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course_utils.exercise import Exercise, predict


def written_down(exercise: Exercise) -> None:
    """Gives the exercise the check that its predictions are written down."""

    def written_down(answer: Callable[[], Any]) -> None:
        """The predictions are written down, not computed

        A prediction is what you believe before torch tells you.
        """
        predict.written_down(answer)

    exercise.check(written_down)
