"""A thread that loads ahead

`overlap_loading(batches, ahead=2)` is a generator. It yields the items of any iterable, the same objects in
the same order, while one thread of its own loads the next ones. `ahead` is at least 1.

- While the consumer holds item i, the items up to i + `ahead` get loaded, and no more. Before the first
  `next`, no thread starts.
- What the source raises is raised in the consumer, in its place: after all the items before it.
- When the consumer stops early (`break`, `close()`), the source isn't read any further. When `close()`
  returns, the thread has ended.

`list(overlap_loading("abc"))` → `["a", "b", "c"]`
"""

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "A full queue blocks `put`, and then the item is loaded already. What has to block instead, so that "
        "the thread waits before it reads the source?",
        "Count permits: a `threading.Semaphore`. The thread takes one before each item, the consumer gives "
        "one back when it asks. What goes through the queue says whether it is an item, an error or the end.",
        "`finally` around the consumer's loop runs at `close()` too. There you set an event, give one more "
        "permit to a thread that may wait for it, and join. The thread looks at the event after each permit.",
    ],
)


@exercise.starter
def overlap_loading(batches: Iterable[Any], ahead: int = 2) -> Iterator[Any]:
    """Yields the items while a thread loads the next ones"""
    raise NotImplementedError


# Seconds. The first turns waiting for ever into a failure: no right answer comes near it. The second gives a
# thread that has no limit the time to show it.
_LIMIT, _MOMENT = 4, 0.1

_SOURCE = """
import threading, time
class Source:
    def __init__(self, n, fails_at=None):
        self.n, self.fails_at, self.error = n, fails_at, OSError("cannot be read")
        self.loaded, self.threads = [], set()
        self.reached = [threading.Event() for _ in range(n)]
    def __iter__(self):
        for i in range(self.n):
            self.threads.add(threading.current_thread())
            self.reached[i].set()
            if i == self.fails_at: raise self.error
            self.loaded.append(i)
            yield i
"""


def _given(overlap_loading, more):
    return expect.given(_SOURCE + more, overlap_loading=overlap_loading)


@contextlib.contextmanager
def _undivided():
    """A thread that runs is not interrupted until it waits: what it can do, it has done when the check runs
    again."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _new(before):
    """The threads that have started since, and still live."""
    return [thread for thread in threading.enumerate() if thread not in before]


def _let_run(threads):
    """Waits until none of them can go on. Linux says which can; on a busy machine one may not have had its
    turn."""
    for thread in threads:
        for _ in range(1000 * _LIMIT):
            try:
                stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
            except OSError:  # it has ended, or this is no Linux
                break
            if stat.rpartition(")")[2].split()[0] != "R":
                break
            time.sleep(0.001)


def _expect_reached(source, i, held, before):
    came = source.reached[i].wait(_LIMIT if _new(before) else 0)
    expect.true(
        came,
        f"item {i} isn't loaded while the consumer holds item {held}; loaded are {source.loaded}",
        "expected: it is",
    )


@exercise.check(isolated=True, deadline=10)
def same_objects(overlap_loading):
    """The same objects come out, in their order, whatever they are

    An item may be `None`, an exception or a tensor, for which `==` gives a tensor. So no value can say "the
    end": that takes an object of your own, found with `is`, or a second thing beside the item.
    """
    things = "[None, False, torch.ones(2), OSError('an item'), StopIteration(), (), 'end']"
    with Rows() as rows:
        for label, made, given in (
            ("many items", things, "things"),
            ("an iterator", things, "iter(things)"),
            ("one item", "[torch.ones(2)]", "things"),
            ("no item", "[]", "things"),
        ):
            with rows.of(label):
                setup = f"things = {made}\ncame = list(overlap_loading({given}, 3))"
                t = expect.given(setup, overlap_loading=overlap_loading)
                expect.equal(len(t.came), len(t.things), what="the number of items that came")
                for i, (came, thing) in enumerate(zip(t.came, t.things, strict=True)):
                    expect.true(
                        came is thing,
                        f"item {i} that came is {expect.show(came)}",
                        f"expected: the object `things[{i}]` itself, {expect.show(thing)}",
                    )


@exercise.check(isolated=True, deadline=10)
def begins_late(overlap_loading):
    """No thread starts, and nothing is read, before the first `next`

    The body of a generator function runs from the first `next` on. An iterator that nobody asks then costs
    nothing, and no thread is left that nobody ends: `close()` runs no `finally` of a body that hasn't begun.
    """
    before = threading.enumerate()
    with _undivided():
        t = _given(overlap_loading, "source = Source(9)\nitems = overlap_loading(source, 2)")
        started = len(_new(before))
    expect.equal(started, 0, what="the number of threads that have started before the first `next`")
    expect.equal(t.call("source.loaded"), [], what="the list of items loaded before the first `next`")


@exercise.check(isolated=True, deadline=10)
def one_thread(overlap_loading):
    """One thread reads the source, and it isn't the consumer's

    Many sources aren't made for two threads at a time: a generator that runs already raises `ValueError`, and
    an SQLite connection belongs to the thread that opened it.
    """
    t = _given(overlap_loading, "source = Source(9)\nitems = list(overlap_loading(source, 2))")
    threads = t.call("source.threads")
    own = threading.current_thread() in threads
    expect.true(not own, "the thread that asks for the items reads the source", "expected: another one")
    expect.equal(len(threads), 1, what="the number of threads that read the source")


@exercise.check(isolated=True, deadline=20)
def ahead(overlap_loading):
    """While item i is held, the items up to i + `ahead` are loaded, and no more

    `Queue(maxsize=n)` blocks in `put`: then n items lie in the queue, and the thread holds one more that is
    loaded already. And a `maxsize` of 0 means no limit.
    """
    with Rows() as rows:
        for given, number, taken in ((", 1", 1, 1), (", 2", 2, 3), ("", 2, 1), (", 4", 4, 1)):
            with rows.of(f"`ahead={number}`" if given else "`ahead` by default"):
                before, last = threading.enumerate(), taken - 1 + number
                t = _given(
                    overlap_loading,
                    f"source = Source(9)\nitems = overlap_loading(source{given})\n"
                    f"held = [next(items) for _ in range({taken})][-1]",
                )
                _expect_reached(t.source, last, t.held, before)
                t.run(f"time.sleep({_MOMENT})")
                _let_run(_new(before))
                what = f"the list of items loaded while the consumer holds item {t.held}"
                expect.equal(t.call("source.loaded"), list(range(last + 1)), what=what)


@exercise.check(isolated=True, deadline=10)
def raises_in_place(overlap_loading):
    """An exception arrives after the items before it, and as it was raised

    An exception in a thread ends that thread and nothing else: the consumer must be told. The items before it
    were loaded and are good, so they come first.
    """
    with Rows() as rows:
        for fails_at in (0, 2):
            with rows.of(f"the source fails at item {fails_at}"), _undivided():
                before, came, error = threading.enumerate(), [], None
                setup = f"source = Source(9, fails_at={fails_at})\nitems = overlap_loading(source, 4)"
                t = _given(overlap_loading, setup)
                try:
                    for item in t.items:
                        came.append(item)
                        _expect_reached(t.source, fails_at, item, before)
                except OSError as raised:
                    error = raised
                expect.equal(came, list(range(fails_at)), what="the list of items before the exception")
                expect.true(
                    error is not None,
                    "the items end, and nothing is raised",
                    "expected: the source's OSError",
                )
                expect.true(
                    error is t.source.error,
                    f"what is raised is {expect.show(error)}",
                    "expected: `source.error` itself",
                )


@exercise.check(isolated=True, deadline=10)
def ends(overlap_loading):
    """The thread ends with its consumer, and reads nothing more

    `close()`, and a `for` loop that is left, raise `GeneratorExit` at the `yield` where the generator stands,
    and `finally` runs. A thread that waits for room has to be woken first, and then has to notice.
    """
    waits = "source.reached[3].wait(1)"
    closes = f"items = overlap_loading(source, 2)\nnext(items), next(items)\n{waits}\nitems.close()"
    breaks = f"for item in overlap_loading(source, 2):\n    if item == 1:\n        {waits}\n        break"
    with Rows() as rows:
        for label, n, how in (
            ("`close()`", 20, closes),
            ("`break`", 20, breaks),
            ("the end of the source", 3, "items = list(overlap_loading(source, 2))"),
        ):
            with rows.of(label):
                before = threading.enumerate()
                with _undivided():
                    t = _given(overlap_loading, f"source = Source({n})\n{how}")
                    left = len(_new(before))
                expect.equal(left, 0, what="the number of threads that are left")
                expect.at_most(len(t.call("source.loaded")), 4, "the number of items that were loaded")
