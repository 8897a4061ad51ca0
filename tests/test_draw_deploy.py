"""Forms of a model side by side, and latencies: what is drawn is what is there."""

import pytest
import torch
from drawn import assert_words_can_be_read
from torch import nn

from course_utils import draw
from course_utils.draw.exports import Operator, compose, eager, exported, of_onnx


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()).eval()


@pytest.fixture(scope="module")
def program(model):
    return torch.export.export(model, (torch.ones(2, 3),), dynamic_shapes=({0: torch.export.Dim("batch")},))


def test_each_form_has_its_operators_and_its_shapes(model, program, tmp_path):
    ran = eager(model, torch.ones(2, 3))
    assert ran[0] == Operator("input", "2 × 3") and [o.name for o in ran[1:]] == [
        "addmm",
        "native_batch_norm",
        "relu",
    ]
    graph = exported(program)
    symbol = graph[0].shape.split(" × ")[0]
    assert [o.name for o in graph] == ["input", "linear", "batch_norm", "relu"]
    assert not symbol.isdigit() and {o.shape for o in graph[1:]} == {f"{symbol} × 4"}
    pytest.importorskip("onnxscript")
    torch.onnx.export(
        model,
        (torch.ones(2, 3),),
        tmp_path / "m.onnx",
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        verbose=False,
    )
    file = of_onnx(tmp_path / "m.onnx")
    assert file == [
        Operator("input", "batch × 3"),
        Operator("Gemm", "batch × 4"),
        Operator("Relu", "batch × 4"),
    ]
    picture = draw.exports(model, torch.ones(2, 3), program, tmp_path / "m.onnx")
    assert "eager: 3 operators, torch.export: 3 operators, ONNX: 2 operators" in repr(picture)


def test_what_is_not_in_the_form_to_the_left_is_lit(model, program):
    scene = compose({"eager": eager(model, torch.ones(2, 3)), "exported": exported(program)})
    lit = [box.words[0].text for box in scene.boxes if box.part == "lit"]
    assert lit == ["linear", "batch_norm"]


def test_latencies_are_drawn_with_their_percentiles():
    seconds = [i / 1e3 for i in range(100, 0, -1)]
    picture = draw.latency({"eager": seconds, "aot": [0.5]})
    assert "eager p50 50 ms, p90 90 ms, p99 99 ms; aot p50 500 ms" in repr(picture)
    assert_words_can_be_read(picture)
    dots = picture.axes[0].lines[0]
    assert list(dots.get_xdata()) == [pytest.approx(1e3 * s) for s in seconds]
