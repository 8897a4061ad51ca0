"""Swim lanes: what a recording says, against what ranks really did, and what the pictures show of it.

Nothing here asks how long something took: only what came before what, and what never ended.
"""

import html
import itertools
import json
import math
import os
import re
import signal
from time import sleep

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_utils import draw, explore
from course_utils.draw.lanes import compose, whole
from course_utils.draw.picture import Picture
from course_utils.processes.result import Result
from course_utils.processes.workers import Worker
from course_utils.watching import lane_watch
from course_utils.watching.lanes import Trace, read, trace_from_here
from course_utils.watching.run_ranks import run_ranks

LONG = 60.0


@pytest.fixture(scope="module", autouse=True)
def warm():
    modules = ("pytest", "course_utils.draw", "course_utils.explore", "course_utils.watching.lane_watch")
    with Worker(preload=modules) as worker:
        assert worker.call(os.getpid, deadline=LONG).value


def net(width=64, layers=4):
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))


def ddp_step(rank, world_size):
    model = nn.parallel.DistributedDataParallel(net(), bucket_cap_mb=2 * 64 * 64 * 4 / 2**20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):  # the buckets of the first step are not those of all others
        if step == 1:
            trace_from_here()
        optimizer.zero_grad()
        model(torch.ones(3, 64)).sum().backward()
        optimizer.step()
    return rank


@pytest.fixture(scope="module")
def step() -> Trace:
    return run_ranks(ddp_step, 2, deadline=LONG, trace=True)


def test_a_recording_holds_what_the_ranks_returned(step):
    assert step.values == [0, 1]
    assert step.report == "all 2 ranks have returned\nrank 0 has returned\nrank 1 has returned"
    assert [lane.state for lane in step.lanes] == ["returned", "returned"]


def test_phases_come_in_their_order(step):
    for lane in step.lanes:
        phases = [span.kind for span in lane.spans if span.kind in ("forward", "backward", "step")]
        assert [kind for kind, _ in itertools.groupby(phases)] == ["forward", "backward", "step"]


def test_spans_of_a_lane_do_not_overlap(step):
    for lane in step.lanes:
        for before, after in itertools.pairwise(lane.spans):
            assert before.begin <= before.end <= after.begin <= after.end


def test_gradients_arrive_from_the_last_layer_to_the_first_and_fill_their_buckets(step):
    for lane in step.lanes:
        assert [gradient.name for gradient in lane.gradients] == [f"{i}.weight" for i in (3, 2, 1, 0)]
        assert {gradient.bytes for gradient in lane.gradients} == {64 * 64 * 4}
        launched = {flight.number: flight for flight in lane.flights}
        filled = {}
        for gradient in lane.gradients:
            assert gradient.time <= launched[gradient.bucket].begin
            filled[gradient.bucket] = filled.get(gradient.bucket, 0) + gradient.bytes
        assert filled == {number: launched[number].bytes for number in filled}
        assert len(filled) == 2


def test_the_first_bucket_leaves_before_the_last_gradient_has_arrived(step):
    for lane in step.lanes:
        early = [flight for flight in lane.flights if flight.backward]
        assert early[0].begin < lane.gradients[-1].time
        assert all(flight.begin <= flight.end < math.inf for flight in lane.flights)


def test_a_recording_says_in_words_what_happened(step):
    assert str(step).splitlines()[0].startswith("rank 0 has returned; ")
    assert "2 of them launched inside backward" in str(step)
    times = [time for time, _, _ in step.moments()]
    assert times == sorted(times)
    said = [what for _, rank, what in step.moments() if rank == 1]
    assert said.index("computes forward") < said.index("the gradient of 3.weight has arrived")
    assert said[-1] == "has returned"


def without_a_module(rank, world_size):
    x = torch.ones(4)
    dist.all_reduce(x)
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
    dist.barrier()
    return x


def test_messages_are_recorded_with_their_other_end():
    first, second = run_ranks(without_a_module, 2, deadline=LONG, trace=True).lanes
    assert [(f.name, f.peer, f.bytes) for f in first.flights] == [
        ("all_reduce", None, 16),
        ("send", 1, 16),
        ("barrier", None, 0),
    ]
    assert [(f.name, f.peer) for f in second.flights][1] == ("recv", 0)
    for lane in (first, second):
        assert all(flight.end < math.inf for flight in lane.flights)
        assert "waiting" in [span.kind for span in lane.spans]


def evaluates(rank, world_size):
    model = net()
    with torch.inference_mode():
        dist.all_reduce(model(torch.ones(3, 64)))
    model(torch.ones(3, 64)).sum().backward()


def test_a_forward_in_inference_mode_is_recorded_and_gradients_that_come_later():
    for lane in run_ranks(evaluates, 2, deadline=LONG, trace=True).lanes:
        assert lane.told == "has returned"
        assert "forward" in [span.kind for span in lane.spans]
        assert [flight.name for flight in lane.flights] == ["all_reduce"]
        assert len(lane.gradients) == 4


def waits_for_a_slow_one(rank, world_size, folder):
    """Rank 1 computes until rank 0 waits, and has written that down."""
    x = torch.ones(200, 200)
    if rank == 0:
        waits = lane_watch.writing.waits

        def tells(number, wait):
            return waits(number, lambda: ((folder / "waits").touch(), wait())[1])

        lane_watch.writing.waits = tells
    else:
        while not (folder / "waits").exists():
            x = (x @ x).tanh()
            sleep(0.001)  # so few operators that all are recorded, however long it takes
    dist.all_reduce(x)


def test_who_waits_is_the_fast_one(tmp_path):
    fast, slow = run_ranks(waits_for_a_slow_one, 2, tmp_path, deadline=LONG, trace=True).lanes
    (wait,) = (span for span in fast.spans if span.kind == "waiting")
    called = slow.flights[0].begin
    assert wait.begin < called < wait.end
    assert fast.at(called) == "waits; under way: all_reduce 0"
    assert slow.at((wait.begin + called) / 2).startswith(("computes", "runs Python"))
    assert fast.waited() == wait.end - wait.begin


def accumulates(rank, world_size):
    model = nn.parallel.DistributedDataParallel(net())
    x = torch.ones(3, 64)
    model(x).sum().backward()
    trace_from_here()
    with model.no_sync():
        model(x).sum().backward()
    model(x).sum().backward()


def test_a_gradient_that_nothing_sends_is_in_no_bucket():
    recording = run_ranks(accumulates, 2, deadline=LONG, trace=True)
    for lane in recording.lanes:
        (launched,) = (flight.number for flight in lane.flights if flight.backward)
        assert [gradient.bucket for gradient in lane.gradients] == [None] * 4 + [launched] * 4
    boxes = [box for box in compose(recording, 0.0, whole(recording)).boxes if box.part == "bucket"]
    assert [box.more.endswith("and nothing sends it") for box in boxes] == ([True] * 4 + [False] * 4) * 2


def test_a_pause_at_the_end_of_a_backward_in_which_a_bucket_arrives_is_waiting():
    """As `DistributedDataParallel` waits: nobody writes it down."""
    events = [
        ["start", 1.0],
        ["op", 1.01, 1.02, "forward"],
        ["op", 1.03, 1.04, "backward"],
        ["launch", 1.04, 0, "all_reduce", 4, None, True],
        ["op", 1.06, 1.07, "backward"],  # more to compute, so it did not wait
        ["launch", 1.07, 1, "all_reduce", 4, None, True],
        ["over", 1.05, 0],
        ["over", 1.09, 1],
        ["op", 1.10, 1.11, "step"],
        ["end", 1.12],
    ]
    log = "\n".join(map(json.dumps, events)) + '\n["op", 1.1'  # and what was cut off by its end
    (lane,) = read([Result("returned")], [log.encode()], ["has returned"], "").lanes
    kinds = [(span.kind, round(span.begin, 3), round(span.end, 3)) for span in lane.spans]
    assert kinds == [
        ("forward", 0.01, 0.02),
        ("backward", 0.03, 0.04),
        ("backward", 0.06, 0.07),
        ("waiting", 0.07, 0.09),
        ("step", 0.1, 0.11),
    ]


# --- what never ends ------------------------------------------------------------------------------------


def skips(rank, world_size):
    x = torch.ones(4)
    dist.all_reduce(x)
    if rank == 0:
        dist.all_reduce(x)


def test_a_hang_is_recorded_as_what_it_is():
    recording = run_ranks(skips, 2, deadline=LONG, trace=True)
    hung, over = recording.lanes
    assert (hung.state, over.state) == ("timed out", "returned")
    assert (hung.spans[-1].kind, hung.spans[-1].end) == ("waiting", math.inf)
    assert (hung.flights[-1].number, hung.flights[-1].end) == (1, math.inf)
    assert hung.told.startswith("waits in all_reduce at your line")
    assert "nothing moved any more" in recording.report
    assert recording.values == [None, None]
    picture = draw.lanes(recording)
    assert "waits in all_reduce at your line" in repr(picture)
    scene = compose(recording, 0.0, whole(recording))
    forever = [box for box in scene.boxes if box.key.startswith("0.") and box.fill == "odd"]
    assert [word.text for box in forever for word in box.words] == ["waits for ever"]
    assert forever[0].x + forever[0].width == pytest.approx(max(box.x + box.width for box in scene.boxes))
    assert any("dist.all_reduce(x)" in word.text for word in scene.words)


def test_a_rank_that_hangs_in_ddp():
    recording = run_ranks(one_without_backward, 2, deadline=LONG, trace=True)
    hung = recording.lanes[0]
    assert hung.told.startswith("waits in backward at your line")
    assert (hung.spans[-1].kind, hung.spans[-1].end) == ("waiting", math.inf)
    assert hung.flights[-1].end == math.inf


def both_wait(rank, world_size):
    x = torch.ones(4)
    if rank == 0:
        dist.recv(x, 1)
    else:
        dist.barrier()


def test_that_a_rank_was_ended_is_not_drawn_as_the_end_of_what_the_others_waited_for():
    for lane in run_ranks(both_wait, 2, deadline=LONG, trace=True).lanes:
        assert lane.state == "timed out"
        assert [flight.end for flight in lane.flights] == [math.inf]
        assert [span.end for span in lane.spans if span.kind == "waiting"] == [math.inf]


def one_without_backward(rank, world_size):
    model = nn.parallel.DistributedDataParallel(net())
    loss = model(torch.ones(3, 64)).sum()
    if rank == 0:
        loss.backward()


def loops(rank, world_size):
    torch.ones(3) + 1
    while True:
        pass


def test_a_loop_is_not_waiting():
    lane = run_ranks(loops, 1, deadline=5.0, trace=True).lanes[0]
    assert (lane.spans[-1].kind, lane.spans[-1].end) == ("stuck", math.inf)
    assert "is in the loop at your line" in lane.told


def dies(rank, world_size):
    x = torch.ones(4)
    dist.all_reduce(x)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(x)


def test_what_a_rank_did_before_it_died_is_not_lost():
    recording = run_ranks(dies, 2, deadline=LONG, trace=True)
    dead = recording.lanes[1]
    assert (dead.state, dead.told) == ("died", "died: signal 9 (SIGKILL)")
    assert [flight.name for flight in dead.flights] == ["all_reduce"]
    # What broke off with it has ended, but was never complete.
    assert [flight.end < math.inf for flight in recording.lanes[0].flights] == [True, False]
    assert "died: signal 9" in repr(draw.lanes(recording))


def raises_and_prints(rank, world_size):
    print("on the way")
    if rank == 1:
        raise ValueError("no")


def test_what_ranks_raise_is_in_the_recording(capsys):
    recording = run_ranks(raises_and_prints, 2, deadline=LONG, trace=True)
    assert capsys.readouterr().out == "[rank 0] on the way\n[rank 1] on the way\n"
    assert recording.lanes[1].told == "raised ValueError: no"


def many_operators(rank, world_size):
    lane_watch.MOST_OPERATORS = 30
    x = torch.ones(1)
    for _ in range(20):
        x += 1
    trace_from_here()
    for _ in range(50):
        x += 1
    dist.all_reduce(x)
    return x


def test_of_very_many_operators_the_first_are_recorded_and_all_collectives():
    recording = run_ranks(many_operators, 1, deadline=LONG, trace=True)
    assert recording.values[0].item() == 71
    (lane,) = recording.lanes
    assert [flight.name for flight in lane.flights] == ["all_reduce"]
    assert max(span.end for span in lane.spans if span.kind == "other") <= lane.cut < lane.flights[0].begin
    assert lane.at(lane.cut) == "runs, not recorded"
    assert "too many to be recorded" in str(recording)
    assert any("are not drawn" in word.text for word in compose(recording, 0.0, whole(recording)).words)


# --- pictures -------------------------------------------------------------------------------------------


def a_log(late):
    """A step like `ddp_step`, in milliseconds of our own: how wide its boxes are is the same on every run."""
    size = 64 * 64 * 4
    events = [
        ["start", 0],
        ["op", 1, 4, "forward"],
        ["op", 4, 7, "backward"],
        ["gradient", 6, "3.weight", size],
        ["gradient", 7, "2.weight", size],
        ["launch", 7, 0, "all_reduce", 2 * size, None, True],
        ["op", 7.2, 10, "backward"],
        ["gradient", 9, "1.weight", size],
        ["gradient", 10, "0.weight", size],
        ["launch", 10, 1, "all_reduce", 2 * size, None, True],
        ["over", 11 - late, 0],
        ["over", 14 - late, 1],
        ["op", 14.5 - late, 16, "step"],
        ["end", 17],
    ]

    def seconds(number):
        return 1 + (number + late) / 1e3

    for event in events:
        event[1] = seconds(event[1])
        if event[0] == "op":
            event[2] = seconds(event[2])
    return "\n".join(map(json.dumps, events)).encode() + b"\n"


@pytest.fixture
def drawn() -> Trace:
    """Two ranks, of which the second comes a millisecond later."""
    logs = [a_log(0), a_log(1)]
    return read([Result("returned")] * 2, logs, ["has returned"] * 2, "all 2 ranks have returned")


def test_the_picture_shows_every_flight_bucket_and_span(step):
    scene = compose(step, 0.0, whole(step))
    parts = {part: {box.key for box in scene.boxes if box.part == part} for part in ("flight", "bucket")}
    assert parts["flight"] == {
        f"{lane.rank}.{flight.number}" for lane in step.lanes for flight in lane.flights
    }
    assert len(parts["bucket"]) == 8
    for kind in ("forward", "backward"):
        assert {box.key[0] for box in scene.boxes if box.part == kind} == {"0", "1"}
    assert isinstance(draw.lanes(step), Picture)
    assert "2 of them launched inside backward" in repr(draw.lanes(step))


def test_a_flight_is_drawn_from_its_launch_to_its_end(drawn):
    scene = compose(drawn, 0.0, whole(drawn))
    ticks = [(float(word.text), word.x) for word in scene.words if re.fullmatch(r"[\d.]+", word.text)]
    (first, left), (last, right) = ticks[0], ticks[-1]

    def on_the_axis(time):
        return left + (time * 1e3 - first) / (last - first) * (right - left)

    boxes = {box.key: box for box in scene.boxes if box.part == "flight"}
    for lane in drawn.lanes:
        for flight in lane.flights:
            box = boxes[f"{lane.rank}.{flight.number}"]
            assert box.x == pytest.approx(on_the_axis(flight.begin), abs=0.1)
            assert box.x + box.width == pytest.approx(on_the_axis(flight.end), abs=1.1)


def test_flights_at_one_time_do_not_cover_each_other(step):
    boxes = [box for box in compose(step, 0.0, whole(step)).boxes if box.part == "flight"]
    for a, b in itertools.combinations(boxes, 2):
        apart = a.x + a.width <= b.x + 1 or b.x + b.width <= a.x + 1
        assert apart or a.y != b.y


def test_a_window_shows_what_happened_in_it(step):
    lane = step.lanes[0]
    first = next(flight for flight in lane.flights if flight.backward)
    middle = compose(step, first.begin - 1e-5, first.begin + 1e-5)
    assert f"0.{first.number}" in {box.key for box in middle.boxes if box.part == "flight"}
    after = compose(step, lane.end + 1.0, lane.end + 2.0)
    assert not [box for box in after.boxes if box.key.startswith("0.")]


def test_words_stay_within_their_boxes(drawn):
    written = [
        (box.width, words.width) for box in compose(drawn, 0.0, whole(drawn)).boxes for words in box.words
    ]
    assert len(written) > 4
    assert all(inside <= width for width, inside in written)


# --- the widget -----------------------------------------------------------------------------------------


def test_the_explorer_steps_through_every_event(step):
    explorer = explore.lanes(step)
    assert step.report.splitlines()[0] in explorer.message.value
    moments = step.moments()
    for number, (time, rank, what) in enumerate(moments):
        explorer.forward()
        assert explorer.step == number
        assert f"{time * 1e3:.2f} ms: rank {rank}: {what}" in html.unescape(explorer.message.value)
        assert 'data-edge="cursor"' in explorer.picture.value
    assert explorer.forward_button.disabled
    explorer.forward()
    assert explorer.step == len(moments) - 1
    explorer.slider.value = 0
    assert explorer.step == 0
    explorer.back()
    assert explorer.step is None and explorer.back_button.disabled


def test_a_window_follows_the_event(drawn):
    explorer = explore.lanes(drawn)
    explorer.range.value = 0.0, explorer.length / 50
    explorer.go(len(explorer.moments) - 1)
    start, stop = explorer.window
    assert start <= explorer.moments[-1][0] * 1e3 <= stop
    assert stop - start == pytest.approx(explorer.length / 50, rel=0.2)
    explorer.leave()
    assert explorer.window == (0.0, explorer.range.max)


def test_the_explorer_keeps_a_still(step):
    data = explore.lanes(step)._repr_mimebundle_()[0]
    assert "image/png" in data
    assert "application/vnd.jupyter.widget-view+json" in data
