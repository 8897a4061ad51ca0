"""Pictures of memory and time: what they show is what was measured."""

import re
import sys

import pytest
import torch
from drawn import assert_no_text_is_cut_off_or_covers_another, assert_words_can_be_read
from matplotlib.colors import to_hex
from matplotlib.path import Path
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function

from course_utils import draw, explore, measure
from course_utils.draw import palette
from course_utils.draw.allocator import compose
from course_utils.lessons import catalog
from course_utils.measure.roofline import Point, Roofline, place

MIB = 2**20


def step(model, x):
    optimizer = torch.optim.AdamW(model.parameters())
    model(x).square().mean().backward()
    optimizer.step()


@pytest.fixture(scope="module")
def recorded():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)])
    return model, measure.peak_bytes(step, model, torch.randn(400, 64))


def test_the_timeline_marks_the_peak_and_the_line_that_was_running(recorded):
    _, peak = recorded
    picture = draw.memory_timeline(peak)
    assert f"{peak.total / 1e6:.1f} MB, in model(x).square().mean().backward()" in repr(picture)
    names = {text.get_text() for text in picture.axes[0].texts}
    assert {"activations", "gradients", "optimizer", "temporaries"} <= names
    picture.draw_without_rendering()
    assert_no_text_is_cut_off_or_covers_another(picture)
    line = next(line for line in picture.axes[0].lines if line.get_color() == palette.ODD)
    for text in picture.axes[0].texts:
        on_the_line = line.get_path().transformed(line.get_transform())
        assert not on_the_line.intersects_bbox(text.get_window_extent(), filled=False), text.get_text()


def test_bars_are_the_prediction_and_the_measured_bytes(recorded):
    model, peak = recorded
    picture = draw.memory({"activations": 1.5, "gradients": ...}, peak, model)
    own = sum(p.nbytes for p in model.parameters()) / 1e6
    wide = {}
    for bar in picture.axes[0].patches:
        wide.setdefault(round(bar.get_y() + bar.get_height() / 2), []).append(bar.get_width())
    assert sum(wide[0]) == pytest.approx(own + 1.5)
    assert sum(wide[1]) == pytest.approx(own + peak.total / 1e6)
    assert_words_can_be_read(picture)


def test_a_snapshot_of_cuda_becomes_the_same_timeline():
    def entry(action, size, line=3):
        files = {"??": 0, "memory_snapshot.cpp": 0, torch.__file__: 1, "/home/me/train.py": line}
        frames = [{"filename": file, "line": number} for file, number in files.items()]
        return {"action": action, "size": size, "addr": 0, "stream": 0, "frames": frames}

    trace = [entry("segment_alloc", 9), entry("alloc", 4), entry("alloc", 6, 7), entry("free_requested", 4)]
    trace += [entry("free_completed", 4)]
    snapshot = {"segments": [], "device_traces": [trace]}
    moments = measure.snapshot_timeline(snapshot)
    assert [sum(moment.live.values()) for moment in moments] == [4, 10, 6]
    assert moments[1].line == "/home/me/train.py:7" and "train.py:7" in repr(draw.memory_timeline(snapshot))
    with pytest.raises(ValueError, match="_record_memory_history"):
        measure.snapshot_timeline({"segments": [], "device_traces": [[]]})


def blocks(*sizes):
    return [{"size": abs(s), "state": "active_allocated" if s > 0 else "inactive"} for s in sizes]


def test_a_strip_has_a_block_for_each_and_holes_are_empty():
    segments = [
        {"address": 9, "total_size": 2 * MIB, "blocks": blocks(512, -(2 * MIB - 512))},
        {"address": 1, "total_size": 20 * MIB, "blocks": blocks(8 * MIB, -(5 * MIB), 7 * MIB)},
    ]
    scene = compose(segments)
    assert [bool(box.fill) for box in scene.boxes] == [True, False, True, True, False]
    assert "15 MiB allocated, 22 MiB reserved, segments: 2" in repr(draw.allocator(segments))


class OneSegment:
    """Hands out memory from left to right, and takes back what was handed out last."""

    def __init__(self):
        self.held = []

    def malloc(self, size):
        self.held.append(size)
        return size

    def free(self, block):
        self.held.remove(block)

    def segments(self):
        rest = 20 * MIB - sum(self.held)
        return [{"address": 0, "total_size": 20 * MIB, "blocks": blocks(*self.held, -rest)}]


def test_the_slider_goes_through_the_script():
    explorer = explore.allocator([("a", MIB), ("b", 2 * MIB), ("free", "a")], OneSegment)
    said = []
    for at in range(4):
        explorer.step.value = at
        said.append(explorer.scene().description)
        assert "svg" in explorer.picture.value
    assert [text.split(" allocated")[0].rpartition(" ")[0].split(" (")[0] for text in said] == [
        "nothing yet",
        "a = malloc(1 MiB)",
        "b = malloc(2 MiB)",
        "free a",
    ]
    assert "3 MiB allocated" in said[2] and "2 MiB allocated" in said[3]


def test_an_allocator_that_is_not_written_yet_is_stood_in_for():
    starter = catalog.load().exercise("caching_allocator").starter_object
    explorer = explore.allocator([("a", MIB), ("free", "a")], starter)
    assert explorer.whose == "the course's"


def test_operators_stand_where_their_counts_say():
    x, a = torch.randn(1000), torch.randn(64, 64)
    assert (place(lambda: x + 1).flops, place(lambda: x + 1).bytes) == (1000, 8000)
    product = place(lambda: a @ a.t())
    assert (product.flops, product.bytes) == (2 * 64**3, 2 * a.nbytes)
    assert place(lambda: a @ a[0]).flops == 2 * 64 * 64
    roof = Roofline("cpu", bandwidth=10e9, peak=100e9)
    assert (roof.bend, roof.limit(1), roof.limit(1000)) == (10, 10e9, 100e9)
    picture = draw.roofline(roof, {"add": lambda: x + 1, "product": lambda: a @ a})
    assert "add: 0.12 operations a byte, memory-bound" in repr(picture)
    assert_words_can_be_read(picture)


def test_a_call_that_reaches_more_raises_the_roof():
    low = Roofline("cpu", bandwidth=1.0, peak=1.0)
    x, a = torch.randn(1000), torch.randn(64, 64)
    said = repr(draw.roofline(low, {"add": lambda: x + 1, "product": lambda: a @ a}))
    shares = [int(share) for share in re.findall(r"(\d+)% of the roof", said)]
    assert len(shares) == 2 and max(shares) == 100


def test_no_name_lies_on_the_roof_or_on_another(monkeypatch):
    monkeypatch.setattr(sys.modules["course_utils.draw.roofline"], "place", lambda point: point)
    roof = Roofline("cpu", bandwidth=10e9, peak=100e9)
    at = {"vector + 1": (0.12, 1.0), "gelu": (1.2, 0.7), "layer norm": (1.0, 0.6), "softmax": (1.1, 0.65)}
    at |= {"matrix × vector": (0.5, 0.98), "matrix × matrix": (170, 1.0), "small": (150, 0.5)}
    points = {
        name: Point(int(intensity * 1e6), 10**6, intensity * 1e6 / (share * roof.limit(intensity)))
        for name, (intensity, share) in at.items()
    }
    picture = draw.roofline(roof, points)
    assert_no_text_is_cut_off_or_covers_another(picture)
    corners = [(i, roof.limit(i)) for i in (0.01, roof.bend, 10_000)]
    line = Path(picture.axes[0].transData.transform(corners))
    for text in picture.axes[0].texts:
        assert not line.intersects_bbox(text.get_window_extent(), filled=False), text.get_text()


def test_in_a_trace_what_has_a_colour_has_a_name_that_fits():
    layer, x = nn.Linear(300, 300), torch.ones(300, 300)
    with profile(activities=[ProfilerActivity.CPU]) as run:
        layer(x).sum().backward()
    picture = draw.trace(run)
    picture.draw_without_rendering()
    named = [bar for bar in picture.axes[0].patches if to_hex(bar.get_facecolor()).upper() != palette.STORAGE]
    boxes = [text.get_window_extent() for text in picture.axes[0].texts]
    assert len(named) == len(boxes) >= 2
    for bar, box in zip(named, boxes, strict=True):
        room = bar.get_window_extent()
        assert room.x0 <= box.x0 and box.x1 <= room.x1


def test_a_trace_has_callers_above_what_they_call():
    with profile(activities=[ProfilerActivity.CPU]) as run, record_function("all of it"):
        F.linear(torch.ones(200, 200), torch.ones(200, 200), torch.ones(200)).relu()
    picture = draw.trace(run)
    tall = [bar for bar in picture.axes[0].patches if bar.get_y() < 0]
    assert len(tall) == 1 and max(bar.get_width() for bar in picture.axes[0].patches) == tall[0].get_width()
    assert_words_can_be_read(picture)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda m, p: draw.memory({"weights": 1}, p, m), ValueError, "categories are parameters"),
        (lambda m, p: draw.memory({"gradients": "10"}, p, m), TypeError, "gradients is a number of MB"),
        (lambda m, p: explore.allocator([3], OneSegment), ValueError, "a step is"),
    ],
)
def test_bad_input_is_said_with_what_is_wanted(recorded, call, error, sentence):
    with pytest.raises(error, match=sentence):
        call(*recorded)
