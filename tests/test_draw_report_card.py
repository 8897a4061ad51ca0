"""The report card of a step, and what it is drawn from: groups of time, peak bytes, the machine's limit."""

from types import SimpleNamespace

import pytest
import torch
from drawn import assert_words_can_be_read
from matplotlib.text import Text
from torch import nn

from course_utils import draw, measure
from course_utils.draw import palette
from course_utils.draw.report_card import COLOURS, MOST_CHANGES
from course_utils.measure import limit
from course_utils.measure.roofline import Roofline
from course_utils.measure.step_cost import GROUPS, StepCost, grouped
from course_utils.measure.timing import Ratio
from course_utils.wrong_use import WrongUse

BEFORE = StepCost(dict(zip(GROUPS, (0.01, 0.05, 0.03, 0.001, 0.02), strict=True)), 5_000_000)
AFTER = StepCost(dict(zip(GROUPS, (0.0, 0.01, 0.02, 0.004, 0.003), strict=True)), 15_000_000, limit=0.012)
CHANGES = [
    draw.Change("merged batches", 0.111, 0.06),
    draw.Change("SDPA", 0.06, 0.07, kept=False),
    draw.Change("fused AdamW", 0.06, 0.06),
]
CURVES = {"before": [4.0, 3.0, 2.0], "after": [4.0, 3.1, 2.1]}


def words(picture):
    return [text.get_text().strip() for text in picture.findobj(Text) if text.get_text().strip()]


def test_it_says_what_was_measured():
    picture = draw.report_card(BEFORE, AFTER, CHANGES, CURVES)
    said = words(picture)
    for text in ("111 ms", "37 ms", "5 MB", "15 MB", "51 ms", "10 ms longer, not kept", "before", "after"):
        assert text in said, text
    assert "A step: 3.0 times as fast" in said and "the least here: 12 ms, 32% of “after”" in said
    assert "The least here is 12 ms" in picture.description and "SDPA -10 ms" in picture.description


def test_bars_are_as_long_as_the_times():
    time, peak, brought, losses = draw.report_card(BEFORE, AFTER, CHANGES, CURVES).axes
    wide = [bar.get_width() for bar in time.patches]
    assert wide == pytest.approx([1e3 * cost.seconds[group] for cost in (BEFORE, AFTER) for group in GROUPS])
    assert len(set(COLOURS.values())) == len(GROUPS)
    assert [bar.get_width() for bar in peak.patches] == [BEFORE.peak, AFTER.peak]
    assert [bar.get_width() for bar in brought.patches] == pytest.approx([51, -10, 0])
    assert [list(line.get_ydata()) for line in losses.lines[:2]] == list(CURVES.values())


@pytest.mark.parametrize(("changes", "limit"), [([], None), (CHANGES, 0.001), (CHANGES * 4, 0.037)])
def test_words_can_be_read_and_lie_on_no_other(changes, limit):
    picture = draw.report_card(BEFORE, StepCost(AFTER.seconds, 1, limit), changes, CURVES)
    assert_words_can_be_read(picture)
    for axes in picture.axes:
        boxes = [text.get_window_extent() for text in axes.texts if text.get_text().strip()]
        for at, box in enumerate(boxes):
            assert picture.bbox.x0 <= box.x0 and box.x1 <= picture.bbox.x1
            for other in boxes[:at]:
                over = min(box.y1, other.y1) - max(box.y0, other.y0)
                assert over <= 3 or min(box.x1, other.x1) <= max(box.x0, other.x0)


def test_it_says_what_is_uncertain():
    unsure = draw.Change("compile", 0.06, 0.05, kept=False, noise=0.012)
    said = words(draw.report_card(BEFORE, AFTER, [unsure], CURVES, Ratio(1.94, 0.11, 9)))
    assert "10 ± 12 ms, not kept" in said and "A step: 1.9 ± 0.1 times as fast" in said


def test_it_is_saved_on_a_page_of_its_own(tmp_path):
    picture = draw.report_card(BEFORE, AFTER, CHANGES, CURVES)
    picture.save(tmp_path / "card.svg")
    picture.save(str(tmp_path / "card.png"))
    assert palette.PAGE.lower() in (tmp_path / "card.svg").read_text().lower()
    assert (tmp_path / "card.png").read_bytes().startswith(b"\x89PNG")


def test_what_does_not_fit_is_refused():
    with pytest.raises(WrongUse, match="changes"):
        draw.report_card(BEFORE, AFTER, CHANGES[:1] * (MOST_CHANGES + 1), CURVES)
    with pytest.raises(WrongUse, match="curves"):
        draw.report_card(BEFORE, AFTER, CHANGES, dict.fromkeys("abcde", [1.0]))


def trained(dtype=torch.float32):
    layers = nn.Embedding(9, 16), nn.Linear(16, 16, bias=False), nn.Linear(16, 1)
    optimizer = torch.optim.AdamW([p for layer in layers for p in layer.parameters()])

    def step():
        h = layers[0](torch.arange(8))
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            h = layers[1](h)
        mixed = (h.float()[None] @ h.float()[None].mT).softmax(2) @ h.float()[None]
        layers[2](mixed).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Event(SimpleNamespace):
    """As one of the profiler's, in microseconds."""

    def __init__(self, name, start, end, own=0.0, parent=None):
        span = SimpleNamespace(start=start, end=end, elapsed_us=lambda: end - start)
        super().__init__(name=name, time_range=span, self_cpu_time_total=own, cpu_parent=parent)


def test_time_is_grouped_by_what_it_is_for():
    optimizer = Event("Optimizer.step#AdamW.step", 700, 800, 20)
    events = [
        Event("step", 0, 1000, 100),
        Event("aten::item", 10, 90, 80),  # a first batch is made
        Event("aten::embedding", 100, 120, 20),
        Event("aten::addmm", 120, 200, 80),
        Event("aten::embedding", 200, 210, 10),  # of the places: no batch is made before it
        Event("aten::bmm", 220, 250, 30),
        Event("aten::_softmax", 250, 260, 10),
        Event("autograd::engine::evaluate_function: MmBackward0", 300, 400, 5),
        Event("aten::mm", 310, 350, 40),
        Event("aten::item", 420, 480, 60),  # a second batch
        Event("aten::embedding", 500, 510, 10),
        Event("aten::_softmax_backward_data", 600, 607, 7),
        optimizer,
        Event("aten::_fused_adamw_", 710, 780, 70, optimizer),
        Event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 900, 950, 50),
    ]
    found = {group: 1e6 * seconds for group, seconds in grouped(events, "step").items()}
    wanted = {"loader": 250, "attention": 47, "products": 120, "optimizer": 90}
    assert found == pytest.approx({**wanted, "rest": 1000 - sum(wanted.values())})


def test_a_real_step_has_every_group():
    called, step = [], trained()
    found = measure.step_cost(lambda: (called.append(1), step()), limit=0.5)
    assert tuple(found.seconds) == GROUPS and all(found.seconds.values())
    assert len(called) == 8 and found.peak > 0 and found.limit == 0.5


def test_what_no_embedding_begins_has_no_loader():
    assert measure.step_cost(lambda: torch.ones(9, 9) @ torch.ones(9, 9)).seconds["loader"] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_limit_counts_products_by_dtype(monkeypatch, dtype):
    monkeypatch.setattr(limit, "product_peak", lambda device, dtype: {torch.float32: 1e9}.get(dtype, 4e9))
    monkeypatch.setattr(limit, "roofline", lambda device: Roofline("cpu", 1e9, 1e9))
    found = measure.step_limit(trained(dtype))
    narrow = 3 * 2 * 8 * 16 * 16  # forward, and two gradients
    attention, last = 3 * 2 * (2 * 8 * 8 * 16), 3 * 2 * 8 * 16
    wide = attention + last
    if dtype == torch.float32:
        assert found.flops == {dtype: narrow + wide}
    else:
        assert found.flops == {dtype: narrow, torch.float32: wide}
    weights = 4 * (9 * 16 + 16 * 16 + 17)
    assert 3 * weights <= found.bytes <= 3 * weights + 200  # AdamW's two averages, and its counts of steps
    assert found.least == pytest.approx(max(found.computing, found.bytes / 1e9))
    assert 0 < found.share == found.least / found.seconds and f"{found.share:.0%} of the" in str(found)


def test_without_a_product_there_is_no_limit():
    with pytest.raises(WrongUse, match="matrix products"):
        measure.step_limit(lambda: torch.ones(3) + 1)
