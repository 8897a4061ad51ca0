"""Questions are made in warm processes, and ahead: a program of theirs may set what it likes there, and
nothing of the reader's changes what it shows."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from course_utils.processes.workers import Worker, WorkersError
from course_utils.questions import families
from course_utils.questions.family import run, text_of
from course_utils.questions.question import Question, from_plain, make

DEADLINE = 30.0  # seconds for a question
AMONG = 4  # of so many the one is taken that tells most beliefs apart


class NoQuestion(Exception):
    """A question could not be made; the message says why."""


def pick(name: str, level: int, seed: int, telling: str | None = None) -> dict:
    """A question, as data. Of several, from `seed` on, the one that tells the belief `telling` from the truth
    and most others apart."""
    family = families.load()[name]
    among = 1 if family.slow and telling is None else AMONG
    made = [make(family, level, seed + i) for i in range(among)]
    return max(made, key=lambda one: (telling in one.separated, len(set(one.separated.values())))).plain()


def same(name: str, level: int, seed: int) -> dict:
    """A question that was asked before, as data."""
    return make(families.load()[name], level, seed).plain()


def shown(name: str, belief: str) -> str:
    """What the program shows that stands with a belief."""
    [found] = [one for one in families.load()[name].beliefs if one.name == belief]
    return text_of(run(found.cell).value)


class Maker:
    """Makes questions, one process for quick ones and one for slow ones. What is prepared is there when it is
    asked for."""

    def __init__(self) -> None:
        self._lanes = {slow: _Lane() for slow in (False, True)}
        self._prepared: dict[tuple, Future] = {}

    def prepare(self, name: str, level: int, seed: int, telling: str | None = None) -> None:
        """Begins to make a question; returns at once."""
        key = name, level, seed, telling
        if key not in self._prepared:
            self._prepared[key] = self._lane(name).begin(pick, *key)

    def get(self, name: str, level: int, seed: int, telling: str | None = None) -> Question:
        """A question. What else was prepared and is not begun is dropped. Raises `NoQuestion`."""
        key = name, level, seed, telling
        if key not in self._prepared:
            self.drop()
        self.prepare(*key)
        made = self._prepared.pop(key)
        self.drop()
        return from_plain(made.result())

    def again(self, name: str, level: int, seed: int) -> Question:
        """A question that was asked before. Raises `NoQuestion`."""
        return from_plain(self._lane(name).begin(same, name, level, seed).result())

    def drop(self) -> None:
        """Lets go what was prepared and is not begun."""
        for key, future in [*self._prepared.items()]:
            if future.cancel():
                del self._prepared[key]

    def shown(self, name: str, belief: str) -> str:
        """What the program shows that stands with a belief; why it shows nothing, where it doesn't."""
        try:
            return self._lane(name).begin(shown, name, belief).result()
        except NoQuestion as error:
            return str(error)

    def _lane(self, name: str) -> _Lane:
        return self._lanes[families.load()[name].slow]


class _Lane:
    """A warm process and the thread that asks it, both begun when they are first needed."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="questions")
        self._worker: Worker | None = None
        self._lock = threading.Lock()

    def begin(self, function, *given) -> Future:
        return self._thread.submit(self._call, function, *given)

    def _call(self, function, *given):
        try:
            if self._worker is None or self._worker.gone:
                self._worker = Worker(preload=["torch", "course_utils.questions.maker"])
            result = self._worker.call(function, *given, deadline=DEADLINE)
        except WorkersError as error:
            raise NoQuestion(str(error)) from error
        if result.state != "returned":
            raise NoQuestion(f"a question of {given[0]} {result.describe()}")
        return result.value


_maker: Maker | None = None


def maker() -> Maker:
    """The maker of this process."""
    global _maker
    if _maker is None:
        _maker = Maker()
    return _maker
