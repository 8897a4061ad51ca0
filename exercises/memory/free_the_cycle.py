"""Memory that waits for the collector

The function below builds a chain of blocks and returns the first. Each block knows its `parent` and its
`children`. When nobody has a block any more, its `data` stays, until the garbage collector comes by. Mend it.

- When the last reference to the first block goes, all blocks are freed at once, with the collector off.
- `block.parent` is the parent block as long as somebody has it, and `None` afterwards. That of the first
  block is `None`.
- `data` and `children` stay as they are. Don't call the collector.

After `first = free_the_cycle([3, 2])`: `first.children[0].parent is first` → `True`
"""

import gc
import weakref
from typing import Any

import torch

from course_utils import measure
from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=8,
    core=True,
    hints=[
        "Follow the references from the first block: which way leads back to it?",
        "A parent has to keep its children. Does a child have to keep its parent?",
        "Store a weak reference to the parent, and make `parent` a property that calls it. The first block "
        "has no parent to refer to.",
    ],
)


@exercise.starter
def free_the_cycle(sizes: list[int]) -> Any:
    """The first of a chain of blocks, with `data` of these sizes"""

    class Block:
        def __init__(self, size, parent):
            self.data = torch.zeros(size)
            self.parent = parent
            self.children = []
            if parent is not None:
                parent.children.append(self)

    first = last = Block(sizes[0], None)
    for size in sizes[1:]:
        last = Block(size, last)
    return first


def _expect_parent(block, parent, what):
    came = block.parent
    wanted = "None" if parent is None else "`block` itself"
    expect.true(came is parent, f"{what} is of the type `{type(came).__name__}`, expected {wanted}")


@exercise.check(given="first = free_the_cycle([4, 3, 2])\nother = free_the_cycle([1, 1])")
def chain(t):
    """Each block knows its parent and its children

    Somebody has to hold a block, or it goes at once: its parent does, in `children`. The way back is the weak
    one. `weakref.ref` gives its object when it is called; it is not the object, and neither is a proxy.
    """
    blocks = [t.first]
    while blocks[-1].children:
        expect.true(isinstance(blocks[-1].children, list), "`children` is no list", "expected: a list")
        expect.equal(len(blocks[-1].children), 1, what="the number of `children`")
        blocks.append(blocks[-1].children[0])
    data = [block.data for block in blocks]
    expect.equal(data, [torch.zeros(n) for n in (4, 3, 2)], what="the list of `data` along the chain")
    _expect_parent(t.first, None, "`first.parent`")
    for above, below in zip(blocks, blocks[1:], strict=False):
        _expect_parent(below, above, "`block.children[0].parent`")


@exercise.check(
    given=lambda count, read: f"first = free_the_cycle({[1000] * count})\n{read}del first",
    cases={
        "1 in the chain": (1, ""),
        "3 in the chain": (3, ""),
        "3 in the chain and `parent` read": (3, "first.children[0].parent\n"),
    },
)
def freed(free_the_cycle, t, count, read):
    """All blocks are freed with the last reference to the first

    CPython frees an object when its last reference goes, be it in a variable, a list or a cache; the values
    of a `WeakKeyDictionary` are strong. `__del__` runs no sooner. In a cycle each object has a reference from
    inside, and waits for the garbage collector.
    """

    def used():
        first = free_the_cycle([1000] * count)
        _ = read and first.children[0].parent
        return first

    left = measure.live_bytes(used).left
    expect.equal(left, 0, what="the number of bytes that are still there")


@exercise.check(given="first = free_the_cycle([4, 3, 2])\nblock = first.children[0]\nblock.parent")
def parents_go(t):
    """A block doesn't keep its parent

    Who has a block in the middle of the chain has what is below it. What is above it belongs to others.
    """
    gone = weakref.ref(t.first.data)
    t.run("del first")
    expect.true(gone() is None, "the `data` of a parent that nobody has is still there")
    _expect_parent(t.block, None, "`block.parent`")
    expect.equal(tuple(t.block.children[0].data.shape), (2,), what="the shape of the `data` below it")


@exercise.check
def no_collector(free_the_cycle):
    """The collector is left alone

    A collection goes through many objects that have nothing to do with these blocks. Where references go one
    way, nothing waits for it.
    """
    ran = []
    gc.callbacks.append(lambda phase, info: ran.append(phase))
    enabled = gc.isenabled()
    gc.disable()
    try:
        free_the_cycle([10, 10])
        now = gc.isenabled()
    finally:
        gc.callbacks.pop()
        (gc.enable if enabled else gc.disable)()
    expect.true(not ran, "the garbage collector ran in the call", "expected: not once")
    expect.true(not now, "the garbage collector is switched on after the call", "expected: off, as before")
