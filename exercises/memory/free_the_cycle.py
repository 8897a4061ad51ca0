"""Memory that waits for the collector

The function below builds a chain of blocks and returns the first. Each block knows its `parent` and its
`children`. When nobody has a block any more, its `data` stays, until the garbage collector comes by. Mend it.

- When the last reference to the first block goes, all blocks are freed at once, with the collector off.
- `block.parent` is the parent block as long as somebody has it, and `None` afterwards. That of the first
  block is `None`.
- `data` and `children` stay as they are. Don't call the collector.

`free_the_cycle([3, 2]).children[0].parent.data.shape` → `(3,)`
"""

import gc
import weakref
from typing import Any

import torch

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect

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


@exercise.check
def freed(free_the_cycle):
    """All blocks are freed with the last reference to the first

    CPython frees an object when its last reference goes. In a cycle each object has one more, from inside.
    Then the garbage collector has to find it, and it counts objects, not bytes.
    """
    with Rows() as rows:
        for sizes in ([1000], [1000, 2000], [1000, 2000, 3000, 4000]):
            with rows.of(f"sizes {sizes}"):
                expect.given(
                    f"sizes = {sizes}\nfirst = free_the_cycle(sizes)\ndel first",
                    free_the_cycle=free_the_cycle,
                )
                left = measure.live_bytes(free_the_cycle, sizes).left
                expect.equal(left, 0, what="the bytes that are left when nobody has the first block")


@exercise.check
def chain(free_the_cycle):
    """Each block knows its parent and its children

    A weak reference gives its object when it is called, as long as the object is there.
    """
    t = expect.given("first = free_the_cycle([4, 3, 2])", free_the_cycle=free_the_cycle)
    blocks, sizes = [t.first], []
    while blocks[-1].children:
        expect.equal(len(blocks[-1].children), 1, what="the number of `children`")
        blocks.append(blocks[-1].children[0])
    sizes = [tuple(block.data.shape) for block in blocks]
    expect.equal(sizes, [(4,), (3,), (2,)], what="the shapes of `data` along the chain")
    expect.true(t.first.parent is None, f"`first.parent` is {expect.show(t.first.parent)}, expected None")
    for above, below in zip(blocks, blocks[1:], strict=False):
        expect.true(
            below.parent is above, "`block.children[0].parent` is not `block`", "expected: the same object"
        )


@exercise.check
def parents_go(free_the_cycle):
    """A block doesn't keep its parent

    Who has a block in the middle of the chain has what is below it. What is above it belongs to others.
    """
    t = expect.given("block = free_the_cycle([4, 3, 2]).children[0]", free_the_cycle=free_the_cycle)
    expect.true(t.block.parent is None, "`block.parent` is still there", "expected: None, nobody has it")
    expect.equal(tuple(t.block.children[0].data.shape), (2,), what="the shape of the `data` below it")
    kept = free_the_cycle([4, 3])
    gone = weakref.ref(kept.data)
    below = kept.children[0]
    del kept
    expect.true(gone() is None, "the `data` of a parent that nobody has is still there", "expected: freed")
    expect.true(below.parent is None, "`block.parent` is not None then", "expected: None")


@exercise.check
def no_collector(free_the_cycle):
    """The collector is left alone

    A collection looks at every object of the program. It can take longer than a training step.
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
