"""A batch of any form, moved

Return `batch` with every tensor in it on `device`. A batch is a tensor, a dictionary, a list, a tuple, a
named tuple, a dataclass, an object with a method `to`, or any of these inside another. Everything else
(numbers, strings, `None`) stays as it is.

- Each container keeps its type. `batch` itself isn't changed.
- A tensor that stands in two places is moved once: it is one tensor afterwards too.

`move_to({"x": torch.ones(2), "id": 7}, "meta")` → `{"x": tensor(..., device='meta', size=(2,)), "id": 7}`
"""

import dataclasses
from collections import namedtuple
from typing import Any

import torch

from course_utils import measure
from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=10,
    hints=[
        "Which kinds of container are there, and how is a new one of the same type made from new parts?",
        "A named tuple takes its fields one by one: `type(batch)(*parts)`. For a dataclass see "
        "`dataclasses.fields` and `dataclasses.replace`. How do you know that a tensor was moved before?",
        "A function inside, that calls itself, and a dictionary from `id(tensor)` to the moved tensor. Ask "
        "for containers first, for a method `to` after them.",
    ],
)


@exercise.starter
def move_to(batch: Any, device: str | torch.device) -> Any:
    """The same batch, its tensors on `device`"""
    raise NotImplementedError


Pair = namedtuple("Pair", ["x", "y"])

_TYPES = """
import dataclasses
from collections import OrderedDict, namedtuple
Pair = namedtuple("Pair", ["x", "y"])
@dataclasses.dataclass
class Sample:
    tokens: torch.Tensor
    name: str
class Ragged:
    def __init__(self, values): self.values = values
    def to(self, device): return Ragged(self.values.to(device))
"""


def _devices(value: Any) -> set[str]:
    """The devices of all tensors in it."""
    if isinstance(value, torch.Tensor):
        return {value.device.type}
    if isinstance(value, dict):
        value = list(value.values())
    elif dataclasses.is_dataclass(value) or hasattr(value, "values"):
        value = list(vars(value).values())
    return set().union(*map(_devices, value)) if isinstance(value, (list, tuple)) else set()


def _moved(move_to, batch: str):
    t = expect.given(_TYPES + f"batch = {batch}", move_to=move_to)
    t.run("moved = move_to(batch, 'meta')")
    expect.true(
        type(t.moved) is type(t.batch),
        f"`moved` is a {type(t.moved).__name__}, expected a {type(t.batch).__name__}",
    )
    expect.equal(_devices(t.moved), {"meta"}, what="the devices in `moved`")
    expect.equal(_devices(t.batch), {"cpu"}, what="the devices in `batch` afterwards")
    return t


@exercise.check
def containers(move_to):
    """Dictionaries, lists and tuples, one inside another

    `.to` is a method of tensors and modules. A dictionary has none.
    """
    t = _moved(move_to, "{'x': [torch.ones(2), (torch.zeros(3), 4)], 'name': 'a', 'none': None}")
    expect.equal(list(t.moved), ["x", "name", "none"], what="the keys of `moved`")
    expect.equal(
        [t.moved["name"], t.moved["none"], t.moved["x"][1][1]], ["a", None, 4], what="the rest of `moved`"
    )
    inner = type(t.moved["x"]).__name__, type(t.moved["x"][1]).__name__
    expect.equal(inner, ("list", "tuple"), what="the types of the containers inside")
    expect.equal(_moved(move_to, "torch.ones(2)").batch, torch.ones(2), what="`batch` afterwards")
    _moved(move_to, "OrderedDict(b=torch.ones(1), a=torch.ones(1))")


@exercise.check
def named_tuples(move_to):
    """Named tuples and dataclasses stay what they are

    A named tuple is a tuple, but its constructor takes one argument for each field. `default_collate` makes
    them from samples that are named tuples.
    """
    t = _moved(move_to, "Pair(x=torch.ones(2), y=[torch.ones(1)])")
    expect.equal(t.moved._fields, ("x", "y"), what="the fields of `moved`")
    t = _moved(move_to, "Sample(torch.ones(2), 'a')")
    expect.equal(t.moved.name, "a", what="`moved.name`")
    _moved(move_to, "[Sample(torch.ones(2), 'a'), Pair(torch.ones(1), 2)]")


@exercise.check
def custom(move_to):
    """An object with a method `to` moves itself

    A batch type of your own knows its parts. The loader and the loop need to know one method of it.
    """
    _moved(move_to, "Ragged(torch.ones(3))")
    _moved(move_to, "{'ragged': Ragged(torch.ones(3))}")


@exercise.check
def shared(move_to):
    """One tensor in two places stays one tensor

    Two copies cost twice the memory. And a write to one of them doesn't show in the other any more. What one
    call has moved is no business of the next: a default argument that remembers it is the same in all calls.
    """
    t = expect.given(_TYPES + "t = torch.ones(2)\nbatch = {'a': t, 'b': [t, torch.ones(2)]}", move_to=move_to)
    t.run("moved = move_to(batch, 'meta')")
    expect.true(
        t.moved["a"] is t.moved["b"][0], "`moved['a']` and `moved['b'][0]` are two tensors", "expected: one"
    )
    expect.true(t.moved["a"] is not t.moved["b"][1], "two tensors have become one", "expected: two")
    t.run("again = move_to({'a': t}, 'cpu')")
    expect.equal(_devices(t.again), {"cpu"}, what="the devices in `again`")


@exercise.check
def there(move_to):
    """What is there already isn't copied

    `.to` returns the tensor itself where nothing has to be done. `torch.tensor(t)` and `clone` copy.
    """
    t = expect.given(_TYPES + "x = torch.ones(4)[::2]\nbatch = [x, Pair(x, 1)]", move_to=move_to)
    with measure.operators() as ops, expect.left_alone(t.x, what="`x`"):
        t.run("same = move_to(batch, 'cpu')")
    expect.equal(ops.count(), 0, what="the number of operators that ran")
    expect.same_storage(t.same[0], t.x, what="`same[0]`", of="`x`")
