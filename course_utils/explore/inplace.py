"""The in-place explorer: one write that a reader moves through a program, and what backward makes of it."""

from __future__ import annotations

from typing import Any

from course_utils.draw.inplace import scene_of
from course_utils.draw.inplace_program import Program
from course_utils.draw.shapes import Scene
from course_utils.explore.controls import dropdown, slider, wrapped
from course_utils.explore.explorer import Explorer
from course_utils.wrong_use import public


@public
def inplace(lines: str, operation: str, **given: Any) -> InplaceExplorer:
    """An explorer of what a write in place does to a program.

    `lines` is code, a statement each; the last gives the loss. `operation` is a write such as `y.add_(1)`,
    `given` are the tensors that the code starts from; copies are used. A reader moves the write between the
    lines and chooses its form; every time all of it is run, and the gradient compared with that of the same
    program out of place. Raises `ValueError` for what is no such program.
    """
    return InplaceExplorer(Program(lines, operation, given))


class InplaceExplorer(Explorer):
    """The widget. `slider` has the line after which the write stands, `form` how it is written."""

    def __init__(self, program: Program) -> None:
        self.program = program
        first, last = program.places[0], program.places[-1]
        self.slider = slider("after line", last, first, last, label=64)
        self.form = dropdown(
            "form", [(code, form) for form, code in program.forms.items()], width=340, label=40
        )
        super().__init__(wrapped([self.slider, self.form]), follows=[self.slider, self.form])
        self.draw()

    def scene(self) -> Scene:
        return scene_of(self.program.run(self.slider.value, self.form.value))
