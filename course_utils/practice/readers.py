"""What a reader may know, as probabilities: lessons along the course's map, and beliefs in its families.

Lessons are known or not, and who knows one knows mostly what it builds on. Of this a few thousand readers are
drawn, and what is known of a real one weighs them (importance sampling). A belief is held by few; whether it
is hangs on nothing but the answers to its family, so all of it is exact but for the drawing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from course_utils.practice.answers import Answer

DRAWN = 4000  # readers
EXCEPTIONS = 0.04  # how often a lesson isn't as the map would have it
SPREAD = 0.15  # how far one reader's order of lessons is from another's, of the whole course
HELD = 0.03  # how often a belief is held
SLIP, UNSURE = 0.1, 0.5  # who knows slips; who doesn't says so, or guesses
LIKE_A_BELIEF = 2.0  # how much more an answer is worth for what it tells of beliefs


def drawn(needs: Mapping[str, Sequence[str]], many: int = DRAWN, seed: int = 0) -> np.ndarray:
    """Readers who know what the map would have them know, with exceptions: a row for each, with a column
    for each lesson, in the order of `needs`, which stands by the topic of each lesson what it builds on."""
    random, topics = np.random.default_rng(seed), [*needs]
    below = [[topics.index(one) for one in needs[topic] if one in topics] for topic in topics]
    depth: list[int] = []
    for some in below:
        depth.append(1 + max((depth[one] for one in some), default=-1))
    place = 2 * np.array(depth) + np.arange(len(topics)) / 3
    place = (place - place.min()) / max(place.max() - place.min(), 1)
    reach = random.uniform(-0.2, 1.2, (many, 1)) + random.normal(0, SPREAD, (many, len(topics)))
    known = reach > place
    for i, some in enumerate(below):
        for one in some:
            known[:, i] &= known[:, one]
    return known ^ (random.random(known.shape) < EXCEPTIONS)


class Reader:
    """One reader, as far as answers tell. `needs`: as for `drawn`; `beliefs`: the names of those of each
    family, in the families that there are."""

    def __init__(self, needs: Mapping[str, Sequence[str]], beliefs: Mapping[str, Sequence[str]]) -> None:
        self.topics = [*needs]
        self.beliefs = beliefs
        self._readers = _drawn_once(tuple((topic, tuple(some)) for topic, some in needs.items()))
        self._weights = np.full(len(self._readers), 1 / len(self._readers))
        # By family: for a reader who doesn't know its lesson, and one who does, how likely no belief and each
        # belief is, times how likely the answers to it are then.
        self._joint = {name: np.tile(_held(len(some)), (2, 1)) for name, some in beliefs.items()}

    def hear(self, asked: Answer) -> None:
        """Takes an answer in."""
        joint, column = self._joint[asked.family], self._readers[:, self.topics.index(asked.topic)]
        before = joint.sum(1)
        joint *= self._likely(asked)[:, :, -1 if asked.chosen is None else asked.chosen]
        self._weights *= (joint.sum(1) / before)[column.astype(int)]
        self._weights /= self._weights.sum()

    def known(self) -> dict[str, float]:
        """How likely it is that each lesson is known."""
        return dict(zip(self.topics, (self._weights @ self._readers).tolist(), strict=True))

    def held(self, family: str) -> dict[str, float]:
        """How likely it is that each belief of a family is held."""
        shares = self._shares(family).sum(0)
        return dict(zip(self.beliefs[family], shares[1:].tolist(), strict=True))

    def worth(self, asked: Answer) -> float:
        """How much an answer would tell, in bits: of what is known, and, worth more, of what is believed."""
        likely = self._likely(asked)
        shares = self._shares(asked.family)
        answers = np.tensordot(shares, likely, 2)
        given_known = (shares[:, :, None] * likely).sum(1)
        known = shares.sum(1)
        of_known = _bits(answers) - known @ _bits(given_known / np.maximum(known, 1e-12)[:, None])
        of_all = _bits(answers) - (shares * _bits(likely)).sum()
        return float(of_known + LIKE_A_BELIEF * (of_all - of_known))

    def _shares(self, family: str) -> np.ndarray:
        """How likely each belief is, together with the lesson's being known or not."""
        joint, known = self._joint[family], self.known()[family.partition(".")[0]]
        return joint / joint.sum(1, keepdims=True) * np.array([[1 - known], [known]])

    def _likely(self, asked: Answer) -> np.ndarray:
        """How likely each answer is, the last of them "I don't know": for who doesn't know the lesson and who
        does, with no belief and with each."""
        names = self.beliefs[asked.family]
        likely = np.empty((2, 1 + len(names), asked.choices + 1))
        slip = np.append(np.full(asked.choices, SLIP / asked.choices), 0.01)
        for known in (0, 1):
            for i, name in enumerate((None, *names)):
                choice = asked.separated.get(name, asked.right if known else None)
                if choice is None:
                    likely[known, i] = (1 - UNSURE) / asked.choices
                    likely[known, i, -1] = UNSURE
                else:
                    likely[known, i] = slip
                    likely[known, i, choice] += 0.99 - SLIP
        return likely


def _held(many: int) -> np.ndarray:
    return np.array([1 - many * HELD] + [HELD] * many)


def _bits(shares: np.ndarray) -> np.ndarray:
    """The entropy of distributions over the last axis."""
    return -(shares * np.log2(np.maximum(shares, 1e-12))).sum(-1)


@functools.cache
def _drawn_once(needs: tuple[tuple[str, tuple[str, ...]], ...]) -> np.ndarray:
    return drawn(dict(needs))
