"""A batch of any form, moved

Return `batch` with every tensor in it on `device`. A batch is a tensor, a `dict` or `OrderedDict`, a list, a
tuple, a named tuple, a dataclass, an object with a method `to`, or any of these inside another. Everything
else stays the object that it is.

- Each container keeps its type. `batch` itself isn't changed.
- A tensor that stands in two places is moved once: it is one tensor afterwards too.

No other subclasses of containers occur, no class as a value, and the fields of a dataclass are the arguments
that make it.

`move_to({"x": torch.ones(2), "id": 7}, "meta")` → `{"x": tensor(..., device='meta', size=(2,)), "id": 7}`
"""

from typing import Any

import torch

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.compare import kind_of

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


_TYPES = {
    "OrderedDict": "from collections import OrderedDict\n",
    "Pair": 'from collections import namedtuple\nPair = namedtuple("Pair", ["x", "y"])\n',
    "Sample": """import dataclasses
@dataclasses.dataclass(frozen=True)
class Sample:
    tokens: object
    name: str
""",
    "Ragged": """class Ragged:
    def __init__(self, values): self.values = values
    def to(self, device): return Ragged(self.values.to(device))
""",
}


def _given(move_to, code: str):
    types = "".join(made for name, made in _TYPES.items() if name in code)
    return expect.given(types + code, move_to=move_to)


def _parts(value: Any, path: str = "") -> dict[str, Any]:
    """All parts of a batch, by what to write behind its name."""
    inside = value._asdict() if hasattr(value, "_asdict") else getattr(value, "__dict__", {})
    steps = {f".{name}": part for name, part in inside.items()}
    if type(value) in (list, tuple):
        steps = {f"[{i}]": part for i, part in enumerate(value)}
    if isinstance(value, dict):
        steps = {f"[{key!r}]": part for key, part in value.items()}
    found = {path: value}
    for step, part in steps.items():
        found |= _parts(part, path + step)
    return found


def _moved(move_to, batch: str, device="'meta'"):
    t = _given(move_to, f"batch = {batch}")
    before = _parts(t.batch)
    t.run(f"moved = move_to(batch, {device})")
    for path, part in _parts(t.batch).items():
        expect.true(part is before[path], f"`batch{path}` is another object now: `batch` was changed")
    now = _parts(t.moved)
    for path, part in before.items():
        expect.true(path in now, f"there is no `moved{path}`", "expected: all parts of the batch")
        came, wanted = (kind_of(one, "") for one in (now[path], part))
        expect.true(came == wanted, f"`moved{path}` is {came}, expected {wanted}")
        if isinstance(part, torch.Tensor):
            facts = tuple(part.shape), part.dtype, "meta"
            came = tuple(now[path].shape), now[path].dtype, now[path].device.type
            expect.equal(came, facts, what=f"what `moved{path}` has as shape, dtype and type of device")
        elif part is None or isinstance(part, (int, float, str, set)):
            expect.true(now[path] is part, f"`moved{path}` is not the object that `batch{path}` is")
    expect.equal(list(now), list(before), what="what stands behind `moved` to get all its parts")
    return t


@exercise.check
def containers(move_to):
    """Dictionaries, lists and tuples, one inside another

    `.to` is a method of tensors; a dictionary has none. A new container of the same type is made from the
    moved parts: `{...}` makes a plain dictionary. What is written into the old one, the caller has too. What
    holds no tensor needs no copy. What one call has moved is no business of the next: a default argument that
    remembers it is the same in all calls.
    """
    first = _moved(move_to, "torch.ones(2)")  # held until the end: a tensor that is gone gives its `id` away
    expect.equal(first.batch, torch.ones(2), what="`batch` afterwards")
    batch = "{'x': [torch.ones(2), (torch.zeros(3, 1), 0.5)], 'n': 4, 'none': None, 'empty': []}"
    second = _moved(move_to, batch)
    second.run("again = move_to(batch, 'cpu')")
    expect.equal(second.again["x"][0].device.type, "cpu", what="`again['x'][0].device.type`")
    _moved(move_to, "OrderedDict(b=torch.ones(3).half(), a=1, c={2})", "torch.device('meta')")


@exercise.check
def named_tuples(move_to):
    """Named tuples and dataclasses stay what they are

    A named tuple is a tuple, but its constructor takes one argument for each field. `dataclasses.replace`
    makes a new object, also of a frozen one. `asdict` makes dictionaries of all dataclasses that are inside.
    """
    _moved(move_to, "Pair(x=torch.ones(2), y=[torch.ones(1)])")
    _moved(move_to, "Sample(torch.ones(2), 'a')")
    _moved(move_to, "[Sample(Sample(torch.ones(2), 'a'), 'b'), Pair(torch.ones(1), 2)]")


@exercise.check
def custom(move_to):
    """An object with a method `to` moves itself

    A batch type of your own knows its parts. The loop needs to know one method of it.
    """
    _moved(move_to, "Ragged(torch.ones(3))")
    _moved(move_to, "{'ragged': Ragged(torch.ones(3))}")


@exercise.check
def shared(move_to):
    """One tensor in two places stays one tensor

    Two copies cost twice the memory, and a write to one doesn't show in the other. `id` tells tensors apart;
    equal ones are two, and a view may begin at the address of its base.
    """
    batch = "{'a': t, 'b': [t, torch.ones(2), t[:1]], 'c': Pair(t, Sample(t, ''))}"
    t = _given(move_to, f"t = torch.ones(2)\nbatch = {batch}")
    t.run("moved = move_to(batch, 'meta')")
    for path in ("['b'][0]", "['c'].x", "['c'].y.tokens"):
        same = t.call(f"moved{path} is moved['a']")
        expect.true(same, f"`moved['a']` and `moved{path}` are two tensors", "expected: one")
    for path in ("['b'][1]", "['b'][2]"):
        same = t.call(f"moved{path} is moved['a']")
        expect.true(not same, f"`moved['a']` and `moved{path}` are one tensor", "expected: two")


@exercise.check
def there(move_to):
    """What is there already isn't copied

    `t.to(t.device)` is `t` itself. `torch.tensor`, `clone` and `asdict` copy.
    """
    t = _given(move_to, "x = torch.ones(4)[::2]\nbatch = [x, Pair(x, 1), Sample(x, 'a')]")
    with measure.operators() as ops, expect.left_alone(t.x, what="`x`"):
        t.run("same = move_to(batch, 'cpu')")
    for path, part in _parts(t.same).items():
        if isinstance(part, torch.Tensor):
            expect.same_storage(part, t.x, what=f"`same{path}`", of="`x`")
    expect.equal(ops.count(), 0, what="the number of operators that ran")
