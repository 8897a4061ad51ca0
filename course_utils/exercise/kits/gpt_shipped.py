"""What a program of the capstone's GPT, in a file, gives and refuses, and by which rule."""

import contextlib
import re
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from course_utils import stacks
from course_utils.exercise import Rows, expect
from course_utils.exercise.kits.exported import answering, unlogged
from course_utils.exercise.kits.whys import because

Size = tuple[int, int]

_PROMISED = """A `Dim` promises for which sizes the program does what it did with the example. From one
character to `context` the model does that; for more it has no places. Promise so many, and the program
refuses others. A wrapper that cuts or fills up rows has limits of its own, and isn't needed."""
_A_TEXT = "`extra_files` holds texts, by name. The weights are in the file already, with the graph."
_PICKLED = """A pickle needs the classes of what is in it. `torch.export.save` writes the graph and the
weights, and that is what `torch.export.load` reads."""
_LOGS = 'For more information, run with TORCH_LOGS="+dynamic".'
# What torch says of a wrong call, and the rule behind it.
_RAISED = {"Constraints violated": _PROMISED, "Expected string but got": _A_TEXT, "pickle": _PICKLED}
_CONSTANT = "A size of the example is a constant of the program unless export is told to open it."
_ONE = """By default export takes a size of 1 for a constant, and `Dim.AUTO` leaves it one. An example of
two rows has no such size."""
_RANGE = """A `Dim` has a smallest and a largest size, and the program refuses others. A row has at most as
many characters as the model has places: `model.context`."""
WRITTEN_DOWN = """Export writes down all that `forward` does, with the weights as they are. What a wrapper
adds to the model, or a cast of it, is a part of the program too."""


@contextlib.contextmanager
def shipping() -> Iterator[None]:
    """What torch raises for a call of the reader's is told with the rule behind it, where that is known."""
    try:
        with unlogged():
            yield
    except Exception as error:
        found = stacks.raised(error)
        why = next((why for said, why in _RAISED.items() if said in found.message), "")
        if not why or found.frame is None or found.frames[-1].readers:
            raise
        said, _, _ = found.message.partition("The error above occurred")
        said = " ".join(said.replace(_LOGS, "").split())
        told = f"`{found.type}: {said}`", f"at {stacks.place(found.frame)}"
        raise expect.Mismatch(*told, why=why) from None


def characters(rows: int, time: int) -> str:
    """Rows of characters, all of them different, as code."""
    return f"(torch.arange({rows * time}) * 7 % 3000).view({rows}, {time})"


def ids(size: Size) -> Tensor:
    """Such rows."""
    rows, time = size
    return (torch.arange(rows * time) * 7 % 3000).view(rows, time)


def expect_scores(t: expect.Given, run: Callable[[Size], Tensor], sizes: list[Size]) -> None:
    """The program gives, for rows of all these sizes, the scores of the model in evaluation mode."""
    with Rows() as rows, torch.no_grad():
        for size in sizes:
            named = zip(size, ("row", "character"), strict=True)
            with rows.of(" of ".join(f"{n} {what}{'s' * (n > 1)}" for n, what in named)):
                try:
                    with answering(size):
                        came = run(size)
                except expect.Mismatch as error:
                    error.why = _why_refused(error.lines[-1])
                    raise
                wanted = t.model.eval()(ids(size))
                like = {"what `softmax` makes of the model's scores": wanted.softmax(2)}
                like["what `log_softmax` makes of the model's scores"] = wanted.log_softmax(2)
                with because(WRITTEN_DOWN):
                    expect.equal(came, wanted, what="the output", rtol=1e-4, atol=1e-5, like=like)


def _why_refused(told: str) -> str:
    """The rule by which a program refuses a size, by the guard that it names; no text for other errors."""
    guard = re.search(r"size\(\)\[\d\] (\W+) (\d+)", told)
    if guard is None:
        return ""
    return _RANGE if guard[1] != "==" else _ONE if guard[2] == "1" else _CONSTANT
