"""Rates, range tests and live figures: what they show is what was recorded."""

import math
import sys

import pytest
import torch
from drawn import assert_words_can_be_read

from course_utils import draw, measure


def test_rates_are_drawn_as_the_optimizer_had_them():
    rates = {"StepLR": [0.1] * 3 + [0.01] * 3, "flat": [0.2] * 4}
    picture = draw.schedules(rates)
    assert [list(panel.lines[0].get_ydata()) for panel in picture.axes] == list(rates.values())
    assert "StepLR from 0.1 to 0.01" in repr(picture)
    assert [(panel.get_xlabel(), panel.get_ylabel()) for panel in picture.axes] == [
        ("step", "rate"),
        ("step", ""),
    ]
    assert_words_can_be_read(picture)


def test_a_range_test_marks_where_the_loss_falls_fastest():
    rates = [10 ** (i / 10) for i in range(30)]
    losses = [1.0] * 14 + [0.2] * 10 + [1.0, 50.0, math.inf, math.nan, 1.0, 1.0]
    picture = draw.range_test(rates, losses)
    (mark,) = [line for line in picture.axes[0].lines if len(set(line.get_xdata())) == 1]
    assert (picture.axes[0].get_xlabel(), picture.axes[0].get_ylabel()) == ("rate", "loss")
    assert mark.get_xdata()[0] == rates[14] and f"{rates[14]:.2g}" in repr(picture)
    assert_words_can_be_read(picture)


def test_a_range_test_is_not_misled_by_one_lucky_batch():
    rates = [10 ** (i / 10) for i in range(60)]
    falling = [1 - 0.05 * min(max(i - 20, 0), 15) + 0.02 * (-1) ** i for i in range(45)]
    falling[40] = 0.05  # one batch whose loss is low
    (mark,) = [
        line
        for line in draw.range_test(rates, [*falling, *[5.0] * 15]).axes[0].lines
        if len(set(line.get_xdata())) == 1
    ]
    assert rates[20] < mark.get_xdata()[0] < rates[36]


def test_a_live_figure_reads_what_has_come_at_once():
    live = draw.training()
    live._next = math.inf  # it is not drawn between
    for step in range(100):
        live.add(loss=torch.tensor(float(step)), half=torch.ones((), dtype=torch.bfloat16), rate=0.1)
    with measure.syncs() as found:
        live.picture()
    assert found.count() == 2, found
    assert live.values("loss") == [float(step) for step in range(100)]
    assert live.values("half") == [1.0] * 100 and live.values("rate") == [0.1] * 100


def test_a_live_figure_is_drawn_at_most_five_times_a_second_and_waits_for_nothing_between(monkeypatch):
    now, drawn = [0.0], []
    training = sys.modules[type(draw.training()).__module__]
    monkeypatch.setattr(training.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(training.Training, "_draw", lambda live: drawn.append(now[0]))
    live = draw.training()
    with measure.syncs() as found:
        for step in range(100):
            now[0] = step / 100
            live.add(loss=torch.tensor(1.0 / (step + 1)))
    assert len(drawn) == 5 and found.count() == 0
    live.close()
    assert live.values("loss") == [pytest.approx(1.0 / (step + 1)) for step in range(100)]
    picture = live.picture()
    assert (picture.axes[0].get_xlabel(), picture.axes[0].get_ylabel()) == ("step", "loss")
    assert list(picture.axes[0].lines[0].get_ydata()) == live.values("loss")
    assert_words_can_be_read(picture)
