"""A write in place among lines of code: the verdict against derivatives that were found in another way."""

from __future__ import annotations

import itertools

import pytest
import torch

from course_utils.draw.inplace import scene_of
from course_utils.draw.inplace_program import Program

CHAIN = ["y = x.exp()", "z = y.sin()", "loss = z.sum()"]
VIEWS = ["y = x * 2", "v = y[0]", "z = v.exp() + (y * y).sum()", "loss = z * 1"]


def leaf() -> torch.Tensor:
    return torch.tensor([0.5, 1.0], dtype=torch.float64, requires_grad=True)


def program(lines, operation) -> Program:
    return Program("\n".join(lines), operation, {"x": leaf()})


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
    (CHAIN, "z.mul_(2)"),
    (["y = x + 1", "loss = y.sum()"], "y.add_(1)"),
    (["y = x + 1", "loss = (y * y).sum()"], "y.mul_(2)"),
    (["y = x * x", "z = y.sigmoid()", "w = z * x", "loss = w.sum()"], "z.pow_(2)"),
    (["y = x * 2", "loss = y.tanh().sum()"], "y.sub_(x)"),
    (VIEWS, "y.mul_(3)"),
    (VIEWS, "v.add_(1)"),
]


@pytest.mark.parametrize(("lines", "operation"), PROGRAMS, ids=str)
def test_the_true_gradient_is_the_derivative_of_what_is_computed(lines, operation):
    made = program(lines, operation)
    for at in made.places:
        run = made.run(at)
        expected = differences(made, at)
        assert run.truth["x"].values == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("lines", "operation"), PROGRAMS, ids=str)
def test_the_verdict_is_what_running_it_shows(lines, operation):
    made = program(lines, operation)
    for at, form in itertools.product(made.places, made.forms):
        run = made.run(at, form)
        space = {"torch": torch, "x": leaf()}
        x = space["x"]
        for line in [*lines[:at], made.forms[form], *lines[at:]]:
            exec(line, space)
        try:
            space["loss"].backward()
        except RuntimeError as error:
            assert run.verdict == "raises"
            assert str(error).partition(" Hint")[0] in run.error and "Hint" not in run.error
            # Torch complains exactly where a version has moved on.
            assert any(lane.behind for lane in run.lanes)
            continue
        right = x.grad.tolist() == pytest.approx(differences(made, at), rel=1e-4, abs=1e-6)
        assert run.verdict == ("harmless" if right else "silently wrong"), (at, form)
        assert run.gradients["x"].values == x.grad.tolist()
        assert not any(lane.behind for lane in run.lanes)


def test_all_verdicts_come():
    seen = set()
    for lines, operation in PROGRAMS:
        made = program(lines, operation)
        seen |= {made.run(at, form).verdict for at in made.places for form in made.forms}
    assert seen == {"harmless", "raises", "silently wrong"}


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


def test_forms_are_written_as_a_reader_would():
    def forms(operation):
        return list(program(["y = x * 2", "loss = y.sum()"], operation).forms.values())

    assert forms("y.add_(1)") == [
        "y.add_(1)",
        "y.data.add_(1)",
        "y.detach().add_(1)",
        "with torch.no_grad(): y.add_(1)",
    ]


WRITES_NOTHING = ["y.add(1)", "y = y + 1", "y +", "print(y)", "torch.relu_(y)", "x.add_(1)", "q.add_(1)"]


@pytest.mark.parametrize("operation", WRITES_NOTHING)
def test_what_writes_nothing_in_place_is_refused(operation):
    with pytest.raises(ValueError, match="no write to a tensor of these lines"):
        program(CHAIN, operation)


def test_the_readers_tensors_are_left_alone():
    x = leaf()
    Program("\n".join(CHAIN), "y.mul_(2)", {"x": x}).run(1)
    assert x.grad is None and x._version == 0 and x.tolist() == [0.5, 1.0]


# --- the picture -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lines", "operation"), PROGRAMS, ids=str)
def test_the_picture_shows_the_run(lines, operation):
    made = program(lines, operation)
    for at, form in itertools.product(made.places, made.forms):
        run = made.run(at, form)
        scene = scene_of(run)
        rows = [box for box in scene.boxes if box.part == "line"]
        assert [box.words[0].text.removeprefix("▶ ") for box in rows] == run.rows
        assert rows[at].words[0].text == f"▶ {made.forms[form]}"
        (verdict,) = [box for box in scene.boxes if box.part == "verdict"]
        assert verdict.key == run.verdict and verdict.words[0].text[0] in "✓✗≠"
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
