"""A thread that loads ahead

`overlap_loading(batches, ahead=2)` is a generator. It yields the items of any iterable, the same objects in
the same order, while one thread of its own loads the next ones. `ahead` is at least 1.

- While the consumer holds an item, the `ahead` items after it get loaded, and no more. Before the first
  `next`, no thread starts.
- What the source raises, of any kind, is raised in the consumer, in its place: after the items before it.
- When the generator is closed early (`close()`, or a `break` after which nobody holds it), the source isn't
  read any further. However the generator ends, the thread has ended then.

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


# Seconds. Turns waiting for ever into a failure: no right answer comes near it.
_LIMIT = 3

_SOURCE = """
import threading, time
class Source:
    def __init__(self, n, error=None):
        self.n, self.error, self.loaded, self.threads = n, error, [], set()
    def __iter__(self):
        for i in range(self.n):
            self.threads.add(threading.current_thread())
            self.loaded.append(i)
            yield i
        if self.error: raise self.error
"""
_BROKEN = """
class Broken(Source):
    def __iter__(self): raise self.error
"""
_INTERRUPTS = """
import signal
class Interrupts(Source):
    def __iter__(self):
        for i in super().__iter__():
            if i == 1:
                time.sleep(0.1)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # as Ctrl-C does
            yield i
"""


def _given(overlap_loading, more):
    return expect.given(_SOURCE + more, overlap_loading=overlap_loading)


def _new(before):
    """The threads that have started since, and still live, beside the one that asks."""
    known = [*before, threading.current_thread()]
    return [thread for thread in threading.enumerate() if thread not in known]


@contextlib.contextmanager
def _slow_to_end():
    """Inside, a new thread ends only when the one that asks joins it, or has gone out. So one that nobody
    waits for is still there when it is looked for."""
    asks, over = threading.get_ident(), threading.Event()

    def is_joined():
        frame = sys._current_frames()[asks]
        while frame and frame.f_code is not threading.Thread.join.__code__:
            frame = frame.f_back
        return bool(frame)

    def end_late(frame, event, _):
        if event == "return" and frame.f_back and frame.f_back.f_code.co_name == "_bootstrap_inner":
            end = time.monotonic() + 0.5  # it may be waited for in another way
            while not (over.is_set() or is_joined()) and time.monotonic() < end:
                time.sleep(0.001)

    threading.setprofile(end_late)
    try:
        yield
    finally:
        threading.setprofile(None)
        over.set()


def _let_run(source, number, before):
    """Waits until the source has given so many items, and then until no new thread can go on. Linux says
    which can; on a busy machine one may not have had its turn."""
    end = time.monotonic() + _LIMIT
    while len(source.loaded) < number and _new(before) and time.monotonic() < end:
        time.sleep(0.001)
    time.sleep(0.05)  # for a thread that waits for the GIL
    for thread in _new(before):
        while time.monotonic() < end:
            try:
                stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
            except OSError:  # it has ended, or this is no Linux
                break
            if stat.rpartition(")")[2].split()[0] != "R":
                break
            time.sleep(0.001)


def _consumed(items, after_each):
    """The items that came, and what was raised. A consumer that nobody tells of an error waits for ever, so
    it has a thread of its own."""
    came, raised = [], []

    def consume():
        try:
            for item in items:
                came.append(item)
                after_each()
        except BaseException as error:
            raised.append(error)

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    consumer.join(_LIMIT)
    said = f"after the items {came} the consumer waits for one more, and nobody tells it of the exception"
    expect.true(not consumer.is_alive(), said, "expected: `source.error` is raised")
    return came, raised[0] if raised else None


@exercise.check(isolated=True, deadline=5)
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


@exercise.check(isolated=True, deadline=5)
def begins_late(overlap_loading):
    """No thread starts, and nothing is read, before the first `next`

    The body of a generator function runs from the first `next` on. Then an iterator that nobody asks starts
    no thread, and none is left that nobody ends: `close()` runs no `finally` of a body that hasn't begun.
    """
    before = threading.enumerate()
    t = _given(overlap_loading, "source = Source(9)\nitems = overlap_loading(source, 2)")
    begun = _new(before) or t.source.loaded
    expect.true(not begun, "nobody has asked for an item, and the loading has begun", "expected: not yet")


@exercise.check(isolated=True, deadline=5)
def one_thread(overlap_loading):
    """One thread reads the source, and it isn't the consumer's

    A source may be anything, and not everything is made for two threads at a time.
    """
    t = _given(overlap_loading, "source = Source(9)\nitems = list(overlap_loading(source, 2))")
    threads = t.call("source.threads")
    own = threading.current_thread() in threads
    expect.true(not own, "the thread that asks for the items reads the source", "expected: another one")
    expect.equal(len(threads), 1, what="the number of threads that read the source")


@exercise.check(isolated=True, deadline=12)
def ahead(overlap_loading):
    """While item i is held, the items up to i + `ahead` are loaded, and no more

    `Queue(maxsize=n)` blocks in `put`: then n items lie in the queue, and the thread holds one more that is
    loaded already. And a `maxsize` of 0 means no limit. What stands behind a `yield` runs when the consumer
    asks for the next item: a permit given back there comes when item i isn't held any longer.
    """
    with Rows() as rows:
        for given, number, taken in ((", 1", 1, 1), ("", 2, 3), (", 4", 4, 1)):
            with rows.of(f"`ahead={number}`" if given else "`ahead` by default"):
                before, count = threading.enumerate(), taken + number
                t = _given(
                    overlap_loading,
                    f"source = Source(9)\nitems = overlap_loading(source{given})\n"
                    f"held = [next(items) for _ in range({taken})][-1]\ntime.sleep(0.1)",
                )
                _let_run(t.source, count, before)
                what = f"the list of items loaded while the consumer holds item {t.held}"
                expect.equal(t.call("source.loaded"), list(range(count)), what=what)


@exercise.check(isolated=True, deadline=15)
def raises_in_place(overlap_loading):
    """An exception arrives after the items before it, and as it was raised

    An exception that nobody catches ends its thread, and the consumer must be told, or it may wait for ever.
    `iter(source)` may raise too, and `KeyboardInterrupt` is no `Exception`. The items before it were loaded
    and are good, so they come first.
    """
    threading.excepthook = lambda arguments: None  # what is wrong is told below
    with Rows() as rows:
        for label, make, n in (
            ("the source fails after 0 items", "Source(0, OSError('no more'))", 0),
            ("the source fails after 2 items", "Source(2, OSError('no more'))", 2),
            ("`iter(source)` fails", "Broken(0, OSError('no file'))", 0),
            ("a `KeyboardInterrupt` after 2 items", "Source(2, KeyboardInterrupt())", 2),
        ):
            with rows.of(label):
                before = threading.enumerate()
                t = _given(overlap_loading, f"{_BROKEN}source = {make}\nitems = overlap_loading(source, 4)")
                came, error = _consumed(
                    t.items, lambda t=t, n=n, before=before: _let_run(t.source, n, before)
                )
                expect.equal(came, list(range(n)), what="the list of items before the exception")
                said = "the items end, and nothing is raised" if error is None else "another error is raised"
                expect.true(error is t.source.error, said, "expected: `source.error` is raised")


@exercise.check(isolated=True, deadline=10)
def ends(overlap_loading):
    """The thread ends with the generator, and reads nothing more

    `close()` raises `GeneratorExit` at the `yield` where the generator stands, and it's called too, in
    CPython, when the last reference to the generator goes. `throw` raises anything there. An interrupt also
    comes where it waits for an item. The `finally` around these runs in each case. A thread that waits for
    room has to be woken first, and then has to notice. Told to end, or at the end of its source, it still
    lives for a while: `join()` returns when it has ended.
    """
    closes = "items = overlap_loading(source, 2)\nnext(items), next(items)\ntime.sleep(0.2)\nitems.close()"
    breaks = "for item in overlap_loading(source, 2):\n    time.sleep(0.1)\n    if item == 1: break"
    throws = "items = overlap_loading(source, 2)\nnext(items)\ntry: items.throw(KeyError())"
    throws += "\nexcept KeyError: pass"
    whole = "try: list(overlap_loading(source, 2))\nexcept {}: pass"
    with Rows() as rows:
        for label, source, how in (
            ("`close()`", "Source(20)", closes),
            ("`break`", "Source(20)", breaks),
            ("`throw(KeyError())`", "Source(20)", throws),
            ("an interrupt while it waits", "Interrupts(20)", whole.format("KeyboardInterrupt")),
            ("the end of the source", "Source(3)", "items = list(overlap_loading(source, 2))"),
            ("an exception of the source", "Source(3, OSError())", whole.format("OSError")),
        ):
            with rows.of(label):
                before = threading.enumerate()
                more = _INTERRUPTS if "Interrupts" in source else ""
                with _slow_to_end():
                    t = _given(overlap_loading, f"{more}source = {source}\n{how}")
                    left = len(_new(before))
                expect.at_most(left, 0, "threads that still live")
                expect.at_most(len(t.call("source.loaded")), 4, "items that were loaded")
