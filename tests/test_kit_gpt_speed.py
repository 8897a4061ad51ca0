"""How sure the speed of a step of the capstone has to be, on a clock that is not the machine's."""

import itertools

import pytest

from course_utils.exercise import expect
from course_utils.exercise.kits import gpt_speed


class Clock:
    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(gpt_speed.time, "process_time", lambda: self.now)

    def takes(self, *seconds):
        turns = itertools.cycle(seconds)

        def step():
            self.now += next(turns)

        return step


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.mark.parametrize(
    ("answer", "share"), [((4.0,), 0.0), ((1.0,), 1.0), ((0.4,), 1.2), ((2.0,), 2 / 3), ((6.0,), -2 / 3)]
)
def test_the_share_of_the_gain(clock, answer, share):
    found = gpt_speed.gain(clock.takes(4.0), clock.takes(*answer), clock.takes(1.0), least=0.5)
    assert found.share == pytest.approx(share) and found.noise < 1e-9 and found.rounds == 7


def test_one_slow_round_decides_nothing(clock):
    answer = clock.takes(*[1.2] * 5, 90.0, *[1.2] * 20)
    assert gpt_speed.gain(clock.takes(4.0), answer, clock.takes(1.0), least=0.5).share > 0.9


@pytest.mark.parametrize("answer", [(2.5,), (1.0, 4.0), (2.2, 2.9, 2.5)])
def test_what_is_not_clear_could_not_be_checked(clock, answer):
    with pytest.raises(expect.CannotCheck, match="uncertain by"):
        gpt_speed.gain(clock.takes(4.0), clock.takes(*answer), clock.takes(1.0), least=0.5)


def test_no_gain_to_be_had_could_not_be_checked(clock):
    with pytest.raises(expect.CannotCheck, match="in 0 of 21 rounds"):
        gpt_speed.gain(clock.takes(1.0), clock.takes(1.0), clock.takes(1.0), least=0.5)
