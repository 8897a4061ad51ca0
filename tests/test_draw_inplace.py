"""A write in place among lines of code: the verdict against derivatives that were found in another way."""

from __future__ import annotations

import itertools

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from torch import nn

from course_utils import draw
from course_utils.draw.inplace import scene_of
from course_utils.draw.inplace_program import FORMS, Program

CHAIN = ["y = x.exp()", "z = y.sin()", "loss = z.sum()"]
VIEWS = ["y = x * 2", "v = y[0]", "z = v.exp() + (y * y).sum()", "loss = z * 1"]


def leaf() -> torch.Tensor:
    return torch.tensor([0.5, 1.0], dtype=torch.float64, requires_grad=True)


def program(lines, operation, **more) -> Program:
    return Program(lines, operation, {"x": leaf(), **more})


def differences(made: Program, at: int) -> list[float]:
    """The derivative of the number that the program computes, by differences alone."""
    lines = [*made.lines[:at], made.operation, *made.lines[at:]]

    def value(x: torch.Tensor) -> float:
        space = {"torch": torch, "x": x.clone()}
        with torch.no_grad():
            for line in lines:
                exec(line, space)
        return space[made.loss].sum().item()

    start = made.given["x"].detach()
    steps = 1e-6 * torch.eye(len(start), dtype=start.dtype)
    return [(value(start + step) - value(start - step)) / 2e-6 for step in steps]


PROGRAMS = [
    (CHAIN, "y.add_(1)"),
    (CHAIN, "y.mul_(3)"),
    (CHAIN, "z *= 2"),
    (CHAIN, "y[0] = 5"),
    (CHAIN, "y[1].zero_()"),
    (["y = x + 1", "loss = y.sum()"], "y += 1"),
    (["y = x + 1", "loss = (y * y).sum()"], "y.mul_(2)"),
    (["y = x * x", "z = y.sigmoid()", "w = z * x", "loss = w.sum()"], "z.pow_(2)"),
    (["y = x * 2", "loss = y.tanh().sum()"], "y.sub_(x)"),
    (VIEWS, "y *= 3"),
    (VIEWS, "v.add_(1)"),
]


@pytest.mark.parametrize(("lines", "operation"), PROGRAMS, ids=str)
def test_the_true_gradient_is_the_derivative_of_what_is_computed(lines, operation):
    made = program(lines, operation)
    for at in made.places:
        run = made.run(at)
        if not made.lines[:at] and run.verdict == "raises at once":
            continue
        expected = differences(made, at)
        assert run.truth["x"].values == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("lines", "operation"), PROGRAMS, ids=str)
def test_the_verdict_is_what_running_it_shows(lines, operation):
    made = program(lines, operation)
    for at, form in itertools.product(made.places, FORMS):
        run = made.run(at, form)
        space = {"torch": torch, "x": leaf()}
        x = space["x"]
        for line in [*lines[:at], made.forms[form], *lines[at:]]:
            exec(line, space)
        try:
            space["loss"].backward()
        except RuntimeError as error:
            assert run.verdict == "raises" and run.failed == len(run.rows) - 1
            assert str(error).partition(" Hint")[0] in run.error and "Hint" not in run.error
            # Torch complains exactly where a version has moved on.
            assert any(lane.used and lane.now[-1] != lane.version for lane in run.lanes)
            continue
        right = x.grad.tolist() == pytest.approx(differences(made, at), rel=1e-4, abs=1e-6)
        assert run.verdict == ("harmless" if right else "silently wrong"), (at, form)
        assert list(run.gradients["x"].values) == x.grad.tolist()
        assert not any(lane.used and lane.now[-1] != lane.version for lane in run.lanes)


def test_all_verdicts_come():
    seen = set()
    for lines, operation in [*PROGRAMS, (["y = x * x", "loss = y.sum()"], "x.sub_(1)")]:
        made = program(lines, operation)
        seen |= {made.run(at, form).verdict for at in made.places for form in FORMS}
    assert seen == {"harmless", "raises", "raises at once", "silently wrong"}


def test_versions_line_by_line():
    run = program(CHAIN, "y.add_(1)").run(2)
    exp, sin = run.lanes
    assert (exp.node, exp.name, exp.whose, exp.since, exp.version, exp.now) == (
        "ExpBackward0",
        "result",
        "y",
        0,
        0,
        [0, 0, 1, 1],
    )
    assert (sin.node, sin.name, sin.since, sin.now) == ("SinBackward0", "self", 1, [0, 1, 1])
    quiet = program(CHAIN, "y.add_(1)").run(2, "data").lanes[1]
    assert quiet.now == [0, 0, 0] and quiet.written == [False, True, True]


def test_a_step_of_a_parameter_counts_as_no_part_of_the_function():
    x = torch.tensor([0.5, 1.0], requires_grad=True)
    made = Program(["y = x * x", "loss = y.sum()"], "x.sub_(0.1)", {"x": x})
    assert [made.run(0, form).verdict for form in FORMS] == ["raises at once"] + ["harmless"] * 3
    assert [made.run(1, form).verdict for form in FORMS] == [
        "raises at once",
        "silently wrong",
        "raises",
        "raises",
    ]
    assert made.run(1, "data").truth["x"].values == (1.0, 2.0)
    assert made.run(0).failed == 0 and "leaf Variable" in made.run(0).error


def test_forms_are_written_as_a_reader_would():
    def forms(operation):
        return list(program(["y = x * 2", "loss = y.sum()"], operation).forms.values())

    assert forms("y.add_(1)") == [
        "y.add_(1)",
        "y.data.add_(1)",
        "y.detach().add_(1)",
        "with torch.no_grad(): y.add_(1)",
    ]
    assert forms("y[0] = 5")[1:3] == ["y.data[0] = 5", "y.detach()[0] = 5"]
    assert forms("y[0].mul_(y[1])")[1:3] == ["y.data[0].mul_(y[1])", "y.detach()[0].mul_(y[1])"]
    assert forms("y *= y + 1")[1:3] == ["y.data.mul_(y + 1)", "y.detach().mul_(y + 1)"]
    assert forms("y[0] -= 1")[1:3] == ["y.data[0].sub_(1)", "y.detach()[0].sub_(1)"]


WRITES_NOTHING = ["y.add(1)", "y = y + 1", "y +", "print(y)", "torch.relu_(y)", "f().add_(1)", "3 .add_(1)"]


@pytest.mark.parametrize("operation", WRITES_NOTHING)
def test_what_writes_nothing_in_place_is_refused(operation):
    with pytest.raises(ValueError, match="no write in place|no tensor of this program"):
        program(CHAIN, operation)


def test_a_program_that_is_none_is_refused():
    with pytest.raises(ValueError, match="last line has to give the loss"):
        program(["y = x.exp()", "y.sum()"], "y.add_(1)")
    with pytest.raises(ValueError, match="q is no tensor of this program"):
        program(CHAIN, "q.add_(1)")
    with pytest.raises(ValueError, match="requires a gradient"):
        Program(CHAIN, "y.add_(1)", {"x": torch.ones(2)})
    with pytest.raises(NameError):
        program(["y = nobody + 1", "loss = y.sum()"], "y.add_(1)")
    with pytest.raises(ValueError, match="does not exist after 0 lines"):
        program(CHAIN, "y.add_(1)").run(0)
    with pytest.raises(ValueError, match="the forms are"):
        program(CHAIN, "y.add_(1)").run(1, "other")


def test_the_readers_tensors_modules_and_dice_are_left_alone():
    net, x = nn.Linear(2, 2), leaf()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    versions = [p._version for p in net.parameters()]
    dice = torch.get_rng_state()
    lines = ["h = net(x.float())", "h = nn.functional.dropout(h)", "loss = h.sum()"]
    made = Program(lines, "h.mul_(2)", {"x": x, "net": net})
    verdicts = {made.run(1).verdict for _ in range(5)}
    assert len(verdicts) == 1  # the same dice in every run, also in that of the true gradient
    assert verdicts == {"harmless"}
    assert x.grad is None and x._version == 0 and x.tolist() == [0.5, 1.0]
    assert all(p.grad is None for p in net.parameters())
    assert [p._version for p in net.parameters()] == versions
    assert all(torch.equal(net.state_dict()[name], value) for name, value in state.items())
    assert torch.equal(torch.get_rng_state(), dice)


# --- the picture -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lines", "operation"), PROGRAMS, ids=str)
def test_the_picture_shows_the_run(lines, operation):
    made = program(lines, operation)
    for at, form in itertools.product(made.places, FORMS):
        run = made.run(at, form)
        scene = scene_of(run)
        rows = [box for box in scene.boxes if box.part == "line"]
        assert [box.words[0].text.removeprefix("▶ ") for box in rows] == run.rows
        assert rows[at].words[0].text == f"▶ {made.forms[form]}"
        (verdict,) = [box for box in scene.boxes if box.part == "verdict"]
        assert verdict.key == run.verdict and verdict.words[0].text[0] in "✓✗≠?"
        for box in scene.boxes:
            assert box.x + box.width <= scene.width and box.y + box.height <= scene.height
            for words in box.words:
                assert words.x + words.width <= box.x + box.width + 2, words.text
        for a, b in itertools.combinations(scene.boxes, 2):
            beside = a.x + a.width <= b.x or b.x + b.width <= a.x
            assert beside or a.y + a.height <= b.y or b.y + b.height <= a.y


def test_the_versions_in_the_picture():
    scene = scene_of(program(CHAIN, "y.add_(1)").run(2))
    cells = {box.key: box.words[0].text for box in scene.boxes if box.part == "cell"}
    assert [cells[f"ExpBackward0.result.{row}"] for row in range(5)] == [
        "saved at v0",
        "v0",
        "✗ v1",
        "✗ v1",
        "✗ v1, not v0",
    ]
    assert "SinBackward0.self.0" not in cells and cells["SinBackward0.self.1"] == "saved at v0"
    quiet = scene_of(program(CHAIN, "y.add_(1)").run(2, "data"))
    assert [box.words[0].text for box in quiet.boxes if box.key == "SinBackward0.self.4"] == [
        "≠ other values"
    ]


def test_a_figure_to_print():
    picture = draw.inplace_timeline(CHAIN, "y.add_(1)", 2, "data", x=leaf())
    assert picture.png().startswith(b"\x89PNG")
    assert "silently wrong" in repr(picture) and "y.data.add_(1)" in repr(picture)
    renderer = FigureCanvasAgg(picture).get_renderer()
    (axes,) = picture.axes
    wide = picture.get_figwidth() * picture.dpi
    assert all(text.get_window_extent(renderer).x1 <= wide for text in axes.texts)
    last = draw.inplace_timeline("\n".join(CHAIN), "y.add_(1)", x=leaf())
    assert "z.sum() · y.add_(1) · loss.backward()" in repr(last)
