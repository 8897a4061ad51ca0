"""The thread needs a permit for each item, and takes it before it reads the source. `ahead` permits are there
at the start and one more comes with each `next`: with item i in the consumer's hands, i + 1 + `ahead` items
may have been read. The queue itself needs no limit.

What failed goes through the same queue as the items, so it arrives in its place. The end of a source is an
exception as well, `StopIteration`, and comes the same way; the flag beside it tells it from an item.

`finally` runs at the end, after an exception, and when the generator is closed. The event is set before the
permit is given: the thread that it wakes sees it. A daemon doesn't keep a program alive that ends while
somebody still holds the generator.
"""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any


def overlap_loading(batches: Iterable[Any], ahead: int = 2) -> Iterator[Any]:
    room, ready = threading.Semaphore(ahead), queue.Queue()
    left = threading.Event()

    def load():
        try:
            source = iter(batches)
            while room.acquire() and not left.is_set():
                ready.put((next(source), False))
        except BaseException as error:
            ready.put((error, True))

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    try:
        while True:
            room.release()
            item, failed = ready.get()
            if failed and isinstance(item, StopIteration):
                return
            if failed:
                raise item
            yield item
    finally:
        left.set()
        room.release()
        thread.join()


# Other right answers

import itertools
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from course_utils.exercise import Edit, Wrong


def _with_an_executor(batches, ahead=2):
    end, pool = object(), ThreadPoolExecutor(1)
    source = iter(batches)
    waiting = deque(pool.submit(next, source, end) for _ in range(ahead))
    try:
        while True:
            waiting.append(pool.submit(next, source, end))
            if (item := waiting.popleft().result()) is end:
                break
            yield item
    finally:
        pool.shutdown(cancel_futures=True)


def _asks_for_each(batches, ahead=2):
    asked, ready = queue.SimpleQueue(), queue.SimpleQueue()

    def load():
        try:
            source = iter(batches)
            while asked.get():
                ready.put(("item", next(source)))
        except BaseException as error:
            ready.put(("error", error))

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for number in itertools.count():
            for _ in range(ahead + 1 if number == 0 else 1):
                asked.put(True)
            kind, value = ready.get()
            if kind == "error":
                break
            yield value
        if not isinstance(value, StopIteration):
            raise value
    finally:
        with suppress(queue.Empty):
            while True:
                asked.get_nowait()
        asked.put(False)
        thread.join()


also_right = [_with_an_executor, _asks_for_each]


def _none_is_the_end(batches, ahead=2):
    def with_end():
        yield from batches
        while True:
            yield None

    for item in overlap_loading(with_end(), ahead):
        if item is None:
            return
        yield item


def _starts_at_once(batches, ahead=2):
    items = overlap_loading(batches, ahead)
    return itertools.chain(list(itertools.islice(items, 1)), items)


mistakes = [
    Wrong(_none_is_the_end, told_by="same_objects"),
    Wrong(_starts_at_once, told_by="begins_late"),
    Edit(
        "no thread",
        "    room, ready =",
        "    yield from batches\n    return\n    room, ready =",
        told_by="one_thread",
    ),
    Edit("one more in the thread's hands", "Semaphore(ahead)", "Semaphore(ahead + 1)", told_by="ahead"),
    Edit("no exception", "raise item", "return", told_by="raises_in_place"),
    Edit("no interrupt", "except BaseException as", "except Exception as", told_by="raises_in_place"),
    Edit("ends with `close` alone", "    finally:\n", "    except GeneratorExit:\n", told_by="ends"),
    Edit(
        "reads one more",
        "            while room.acquire() and not left.is_set():\n",
        "            while not left.is_set() and room.acquire():\n",
        told_by="ends",
    ),
]

_DAEMON = "makes a difference where a program ends while it holds the generator, which is not asked"
equivalent = {
    "line 19: `threading.Thread(target=load, daemon=True)` -> `threading.Thread(target=load)`": _DAEMON,
    "line 19: `True` -> `False`": _DAEMON,
}
not_tried = {
    "hard numbers": "nothing is computed",
    "dtypes": "items may be anything, and come out as they are",
    "left alone": "what comes out is the very item",
}
