"""Graphs of autograd: their nodes, writes to what they keep, and copies made on the way."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from course_utils import measure
from course_utils.exercise import expect
from course_utils.exercise.kits.modules import Called
from course_utils.measure.modes import Noting, packet
from course_utils.measure.operators import is_copy
from course_utils.measure.storage import tensors_in


def following(node: Any) -> list[Any]:
    """The nodes that get a gradient from this one, once for each edge."""
    return [after for after, _ in node.next_functions if after is not None]


@contextlib.contextmanager
def writes_told() -> Iterator[None]:
    """A backward inside that raises because of a write in place is told in a few words."""
    try:
        yield
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        blamed = str(error).partition("operation: ")[2].partition(" instead. Hint")[0]
        raise expect.Mismatch(
            "backward raises: a tensor that it needs was modified by an inplace operation",
            f"torch says of it: `{blamed}`",
        ) from None


class Copy(NamedTuple):
    """An operator that only moved numbers to other memory: in words, and how many bytes it wrote."""

    said: str
    written: int


# They move numbers as well, and put them among others.
_ALSO_COPIES = ("select_scatter", "slice_scatter", "index_copy", "index_put", "where")


@contextlib.contextmanager
def copies(*of: Tensor) -> Iterator[list[Copy]]:
    """Notes the operators inside that only move numbers to other memory, those inside of other operators too.

    `of`: only where these tensors, or views of them, are what is copied. What NumPy copies is not seen.
    """
    found: list[Copy] = []

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        name = packet(func)
        short = name.removeprefix("aten.")
        if not is_copy(name) and short not in _ALSO_COPIES:
            return
        into = name in ("aten.copy_", "aten._foreach_copy_")
        sources = list(tensors_in([args[1:] if into else args, kwargs]))
        if of and not any(measure.same_storage(t, other) for t in sources for other in of):
            return
        last = calls.names[-1] if calls.names else ""
        inside = f" inside `{last}`" if last not in ("", short) else ""
        written = sum(t.nbytes for t in tensors_in(args[0] if into else out))
        found.append(Copy(f"`{short}` ran{inside}", written))

    with Called() as calls, Noting(note):
        yield found
