"""The sawtooth: a step on a clock of operators, what is drawn of it, and the explorer over it."""

import itertools
import math
from collections import Counter

import pytest
import torch
from drawn import assert_no_text_is_cut_off_or_covers_another
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_utils import draw, explore, measure
from course_utils.draw.checkpoint_steps import Stack, step
from course_utils.draw.checkpoints import compose, curve_sizes, least
from course_utils.draw.labels import bytes_said
from course_utils.measure.memory import _Ledger

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
DEPTH, WIDE, ROWS = 36, 32, 64
UNIT = ROWS * WIDE * 4
X = torch.randn(ROWS, WIDE)
SIZES = (0, 1, 2, 3, 4, 6, 12, 36)
VIEWS = {"aten.t", "aten.detach", "aten.view", "aten.expand", "aten.alias"}
RNG_STATE = 5056  # bytes of the state of the CPU's generator


def layers(depth=DEPTH, wide=WIDE):
    return nn.Sequential(*[nn.Sequential(nn.Linear(wide, wide), nn.GELU()) for _ in range(depth)])


@pytest.fixture(scope="module")
def stack():
    return Stack(layers(), X, "here")


# --- the clock ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_the_peak_is_that_of_peak_bytes_without_gradients(size):
    model = layers(12)
    moments = measure.peak_bytes(step, model, X, min(size, 12)).timeline
    model.zero_grad()
    found = measure.step_timeline(step, model, X, min(size, 12))
    assert found.peak == max(sum(moment.live.values()) - moment.live["gradients"] for moment in moments)
    assert found.left == 0 and all(one.grad is not None for one in model.parameters())
    # Where gradients are there before, they are added to, and nothing is left out.
    assert measure.step_timeline(step, model, X, 3).peak == measure.peak_bytes(step, model, X, 3).total


def test_bytes_of_a_chain_that_can_be_counted_by_hand():
    x = torch.ones(1000, requires_grad=True)
    found = measure.step_timeline(lambda: x.exp().sin().sum().backward())
    # exp keeps its result, which is what sin keeps of its argument; what sin returns is dropped.
    assert [(tick.op, tick.phase, tick.live) for tick in found.ticks[:3]] == [
        ("aten.exp", "forward", 4000),
        ("aten.sin", "forward", 8000),
        ("aten.sum", "forward", 8004),
    ]
    assert found.kept == 4000 + 4 + 4 and found.left == 0  # the sum, and the 1 that backward begins with
    assert found.operators() == len(found.ticks) == found.operators("forward") + found.operators("backward")
    assert found.peak == 12008


@pytest.mark.parametrize("size", SIZES[1:])
def test_the_operators_run_again_are_those_that_a_plain_step_does_not_run(size, stack):
    calls = {}
    for one in (0, size):
        stack.layers.zero_grad()
        with measure.operators() as ops:
            step(stack.layers, X, one)
        names = (call.name.rpartition(".")[0] for call in ops.calls)
        # A checkpoint keeps the states of all GPUs' generators in tensors of its own.
        calls[one] = Counter(name for name in names if name not in VIEWS and name != "aten.empty")
    found = stack.record(size, DEPTH)
    again = Counter(tick.op for tick in found.ticks if tick.phase == "recompute")
    assert again == calls[size] - calls[0] and sum(again.values()) == found.operators("recompute")
    # The last GELU of a segment is not needed, and is left out.
    assert again == Counter({"aten.addmm": 36, "aten.gelu": 36 - math.ceil(36 / size)}) - Counter()


def test_a_checkpoint_of_ones_own_counts_as_recomputed():
    class Checkpoint(torch.autograd.Function):
        @staticmethod
        def forward(ctx, fn, x):
            ctx.fn = fn
            ctx.save_for_backward(x)
            return fn(x)

        @staticmethod
        def backward(ctx, grad):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                out = ctx.fn(x)
            torch.autograd.backward(out, grad)
            return None, x.grad

    x = X.clone().requires_grad_()
    found = measure.step_timeline(lambda: Checkpoint.apply(lambda t: t.exp().sin(), x).sum().backward())
    assert [tick.op for tick in found.ticks if tick.phase == "recompute"] == ["aten.exp", "aten.sin"]


def allocator_peak(run, preserve, device):
    """The most bytes alive beyond those before, by the account that the allocator keeps."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(preserve)
        return torch.cuda.max_memory_allocated() - before
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True) as seen:
        run(preserve)
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda event: event.start_ns())))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", (0, 1, 3, 4, 12))
def test_two_ways_of_counting_agree(size, device):
    """The operators' storages, and the allocator's own account."""
    model, x = layers(12, 64).to(device), torch.randn(128, 64, device=device)

    def run(preserve):
        h = x
        for start in range(0, 12, size or 12):
            part = model[start : start + (size or 12)]
            h = checkpoint(part, h, use_reentrant=False, preserve_rng_state=preserve) if size else part(h)
        h.square().mean().backward()

    run(False)  # gradients exist from here on
    operators = measure.peak_bytes(run, False).total
    room = 64 if device == "cpu" else 512 * 40  # scalars of kernels; blocks are rounded up
    assert allocator_peak(run, False, device) == pytest.approx(operators, abs=room)
    if device == "cpu" and size:  # the state of the generator, which no operator returns, once a checkpoint
        more = allocator_peak(run, True, device) - operators
        assert more % RNG_STATE <= 64 and RNG_STATE <= more <= 12 / size * RNG_STATE + 64


@pytest.mark.parametrize("size", SIZES)
def test_what_forward_keeps_is_what_is_saved_for_backward(size, stack):
    def forward():
        h = X
        for start in range(0, DEPTH, size or DEPTH):
            part = stack.layers[start : start + (size or DEPTH)]
            h = checkpoint(part, h, use_reentrant=False) if size else part(h)
        return h.square().mean()

    # The batch was there before; the loss, and the 1 that backward begins with, are not saved.
    assert stack.record(size, DEPTH).kept + UNIT - 8 == measure.saved_bytes(forward).total


# --- the picture -------------------------------------------------------------------------------------


def test_peaks_by_segment_size(stack):
    peaks = {size: stack.record(size, DEPTH).peak for size in SIZES}
    # Two tensors for each layer without a checkpoint; inputs of segments, and one segment, with.
    in_units = {size: peak // UNIT for size, peak in peaks.items()}
    assert in_units == {0: 76, 1: 40, 2: 23, 3: 19, 4: 18, 6: 19, 12: 28, 36: 74}
    assert least({size: stack.record(size, DEPTH) for size in curve_sizes(DEPTH)}) == 4


def test_the_picture_says_what_it_shows():
    picture = draw.checkpoints(layers(), X, segments=(None, 4, 0, 12))
    told = repr(picture)
    assert told.startswith("Bytes alive over one training step of 36 layers. no checkpoint: 622,600 bytes")
    assert "segments of 4: 147,464 bytes at the peak; 285 operators (forward 75, recompute 63" in told
    assert "Least is 4: 147 kB, 24 % of the peak without a checkpoint. At 6, nearest to √36: 156 kB." in told
    assert told.endswith("Here a layer keeps 2 times its input: 36/s + 2·s is least at 4.2.")
    assert len(picture.png()) < 40_000


def test_heights_are_bytes_and_widths_are_operators(stack):
    steps = {size: stack.record(size, DEPTH) for size in (0, 1, 4, 12)}
    scene = compose(steps, [0, 12], DEPTH)
    tops = {}
    for area in scene.areas:
        ys = [y for _, y in area.points]
        tops[area.key] = max(tops.get(area.key, 0), max(ys) - min(ys))
    assert tops["12"] / tops["0"] == pytest.approx(steps[12].peak / steps[0].peak, rel=1e-3)
    ran = [
        box for box in scene.boxes if box.part == "ran" and box.y == scene.boxes[-1].y or box.part == "ran"
    ]
    again = sum(box.width for box in ran if box.key == "recompute")
    assert again / sum(box.width for box in ran if box.key == "forward") == pytest.approx(69 / (2 * 75))
    assert [box.key for box in scene.boxes if box.part == "best"] == ["4"]
    assert "least: 4" in [words.text for words in scene.words]


def test_layers_that_keep_as_much_as_their_input():
    picture = draw.checkpoints(
        [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(16)], X[:, :8], segments=(6,)
    )
    assert "a layer keeps as much as its input. Here it does." in repr(picture)
    assert "segments of 6" in repr(picture)


def test_the_model_stays_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4))
    batch = torch.randn(8, 4, requires_grad=True)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    state = torch.get_rng_state()
    with torch.no_grad():
        draw.checkpoints(model, batch, segments=[2])
    assert torch.equal(state, torch.get_rng_state()) and batch.grad is None
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())


def test_layers_that_cannot_be_run_are_refused_in_words():
    with pytest.raises(ValueError, match=r"on a tensor of shape \(2, 3\), float32 raised RuntimeError: mat1"):
        draw.checkpoints(layers(2), torch.ones(2, 3), segments=(1,))


# --- the explorer ------------------------------------------------------------------------------------


def test_a_move_records_what_is_new_and_nothing_twice(monkeypatch):
    opened = []
    before = _Ledger.open
    monkeypatch.setattr(_Ledger, "open", lambda self: opened.append(self) or before(self))
    explorer = explore.checkpoints()
    assert "segments of 6" in explorer.picture.value and len(opened) == len({0, *curve_sizes(DEPTH)})
    opened.clear()
    explorer.depth.value = 9
    assert explorer.segment.max == 9 and len(opened) == len({0, 1, 2, 3, 6, 9})
    assert "least: 2" in explorer.picture.value and "√9 = 3" in explorer.picture.value
    opened.clear()
    explorer.segment.value = 0
    explorer.depth.value = DEPTH
    assert not opened and ">no checkpoint</text>" in explorer.picture.value
    explorer.depth.value, explorer.segment.value = 9, 3
    assert not opened and {*explorer.stack.recorded(9)} == {0, 1, 2, 3, 6, 9}  # the one of 6 stays


def test_the_few_sizes_of_another_depth_have_the_lowest_peak():
    explorer = explore.checkpoints()
    for depth in (1, 2, 14, 15, 27, 32):
        explorer.depth.value = depth
        few, every = explorer.stack.recorded(depth) - {0}, range(1, depth + 1)
        assert len(few) < 7
        assert least_peak(explorer, few, depth) == least_peak(explorer, every, depth)


def least_peak(explorer, sizes, depth):
    return min(explorer.stack.record(size, depth).peak for size in sizes)


PICTURES = {
    "one layer": lambda: draw.checkpoints(layers(1), X, segments=(1,)),
    "two layers": lambda: draw.checkpoints(layers(2), X, segments=range(3)),
    "square": lambda: draw.checkpoints([nn.Linear(8, 8) for _ in range(9)], X[:, :8], segments=(0, 1, 3)),
    "explorer": lambda: explore.checkpoints()._still(),
}


@pytest.mark.parametrize("make", PICTURES.values(), ids=PICTURES.keys())
def test_no_text_runs_out_of_its_picture_or_over_another(make):
    picture = make()
    assert_no_text_is_cut_off_or_covers_another(picture)


def test_bytes_in_words():
    assert [bytes_said(n) for n in (0, 999, 1000, 590_000, 2_490_376)] == [
        "0 B",
        "999 B",
        "1 kB",
        "590 kB",
        "2.49 MB",
    ]
