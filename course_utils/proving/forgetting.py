"""Does practice keep more in memory than going round? Simulated readers forget, over some months."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from course_utils.practice.cards import Standing, due

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Memory:
    """What a reader keeps of one skill: half of it is gone after `half_life` days. A right answer makes that
    `gain` times as long, the more the nearer it was to being forgotten; a wrong one sets it back. (The model
    of half-life regression; FSRS has another.)"""

    half_life: float
    gain: float
    day: float = 0.0

    def known(self, day: float) -> float:
        return 2 ** -((day - self.day) / self.half_life)

    def ask(self, day: float, draw: random.Random) -> bool:
        """Asks on a day; returns whether the answer was right. The answer is told, so it's known then."""
        known = self.known(day)
        right = draw.random() < known
        self.half_life *= 1 + (self.gain - 1) * (1.5 - known) if right else 0.5
        self.half_life, self.day = max(self.half_life, 0.5), day
        return right


def memories(skills: int, seed: int) -> list[Memory]:
    """Some skills are forgotten soon, others later."""
    draw = random.Random(seed)
    return [Memory(draw.choice((1.0, 2.0, 4.0, 8.0)), draw.uniform(1.6, 3.0)) for _ in range(skills)]


def spaced(skills: int, days: int, a_day: int, seed: int) -> tuple[float, list[int]]:
    """How much is known in the mean of days and skills, when what is due is asked, `a_day` at most; and how
    many questions were asked each day."""
    kept, draw, counts, total = memories(skills, seed), random.Random(seed), [], 0.0
    standings = {str(i): Standing(str(i)) for i in range(skills)}
    for day in range(days):
        now = START + timedelta(days=day)
        asked = due(standings, [*standings], now)[:a_day]
        for name in asked:
            right = kept[int(name)].ask(day, draw)
            standings[name] = standings[name].after(right, now)
        counts.append(len(asked))
        total += sum(memory.known(day + 1) for memory in kept) / skills
    return total / days, counts


def in_a_circle(skills: int, counts: list[int], seed: int) -> float:
    """The same, when so many questions a day are asked of one skill after another."""
    kept, draw, total, place = memories(skills, seed), random.Random(seed), 0.0, 0
    for day, count in enumerate(counts):
        for _ in range(count):
            kept[place % skills].ask(day, draw)
            place += 1
        total += sum(memory.known(day + 1) for memory in kept) / skills
    return total / len(counts)
