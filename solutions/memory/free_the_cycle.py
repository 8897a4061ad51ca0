"""The parent holds the child, the child held the parent: a cycle. One of the two has to let go, and a parent
needs its children. `weakref.ref` refers to the parent without keeping it. A property calls it, so
`block.parent` reads as before.

Then references go one way. When the first block loses its last one it is freed, its list of children with it,
and so on down the chain.
"""

import weakref
from typing import Any

import torch


def free_the_cycle(sizes: list[int]) -> Any:
    class Block:
        def __init__(self, size, parent):
            self.data = torch.zeros(size)
            self._parent = None if parent is None else weakref.ref(parent)
            self.children = []
            if parent is not None:
                parent.children.append(self)

        @property
        def parent(self):
            return None if self._parent is None else self._parent()

    first = last = Block(sizes[0], None)
    for size in sizes[1:]:
        last = Block(size, last)
    return first


# Other right answers

import gc
from dataclasses import dataclass, field

from course_utils.exercise import Edit, Wrong


@dataclass(eq=False)
class _Block:
    data: torch.Tensor
    up: Any = field(default=lambda: None, repr=False)
    children: list = field(default_factory=list)

    parent = property(lambda self: self.up())


def _from_below(sizes):
    first = _Block(torch.zeros(sizes[0]))
    at = first
    for size in sizes[1:]:
        at.children.append(_Block(torch.zeros(size), weakref.ref(at)))
        at = at.children[0]
    return first


def _in_a_dictionary(sizes):
    parents = weakref.WeakValueDictionary()

    class Block:
        def __init__(self, data, number):
            self.data, self.number, self.children = data, number, []

        def __getattr__(self, name):
            if name == "parent":
                return parents.get(self.number - 1)
            raise AttributeError(name)

    blocks = [Block(torch.zeros(size), number) for number, size in enumerate(sizes)]
    for above, below in zip(blocks, blocks[1:], strict=False):
        parents[above.number] = above
        above.children.append(below)
    return blocks[0]


also_right = [_from_below, _in_a_dictionary]


def _collects(sizes):
    gc.collect()
    return free_the_cycle(sizes)


_PLAIN = "weakref.ref(parent)"
mistakes = [
    Edit("a closure keeps it", _PLAIN, "(lambda: parent)", told_by="freed"),
    Edit(
        "keeps what it read",
        "self._parent()",
        "vars(self).setdefault('kept', self._parent())",
        told_by="freed",
    ),
    Edit(
        "weak downwards too",
        "parent.children.append(self)",
        "parent.children.append(weakref.proxy(self))",
        told_by="chain",
    ),
    Edit("gives the reference", "self._parent()", "self._parent", told_by="chain"),
    Edit("no parents", "None if parent is None else weakref.ref(parent)", "None", told_by="chain"),
    Wrong(_collects, told_by="no_collector"),
]

not_tried = {
    "hard numbers": "nothing is computed",
    "dtypes": "zeros, as the starter",
    "left alone": "sizes come in",
}
