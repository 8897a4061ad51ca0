"""The picture of a model in four forms, by the data that it draws."""

import torch
from torch import nn

from course_utils import draw
from course_utils.draw.captures import compose, take
from course_utils.draw.shapes import WIDTH


class Noisy(nn.Module):
    """What the lesson draws, with both branches."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.scale = 2.5

    def forward(self, x):
        x = self.norm(x)
        if self.training:  # noqa: SIM108
            x = x + torch.randn(3)
        else:
            x = -x
        return x * self.scale


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2.5

    def forward(self, x):
        return torch.relu(x) * self.scale + 1.5


def _taken(module, *inputs):
    return {form.name: form for form in take(module, *inputs)}


def test_what_tracing_drops_is_lit_in_the_python_and_told():
    for model, lit, line in ((Noisy(), {2, 5}, 6), (Noisy().eval(), {2, 3}, 4)):
        found = _taken(model, torch.ones(4, 3))
        assert found["Python"].lines[2].startswith("    if self.training:") and found["Python"].lit == lit
        gone = f"Python's line 3: the condition is gone, and line {line} with it"
        for name in ("traced", "FX graph"):
            first, constant = found[name].told
            assert first == gone and "was baked in; Python reads or computes it on each call" in constant
            (held,) = found[name].lit
            assert "CONSTANTS.c" in found[name].lines[held] or "2.5" in found[name].lines[held]
        assert found["scripted"].told == [] and found["scripted"].lit == set()


def test_a_number_that_fx_bakes_in_is_lit_and_one_that_python_writes_is_not():
    graph = _taken(Plain(), torch.ones(2))["FX graph"]
    lit = [graph.lines[number] for number in sorted(graph.lit)]
    assert len(lit) == 1 and "2.5" in lit[0]
    assert len(graph.told) == 1 and "2.5 was baked in" in graph.told[0]


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.steps = 2.5, 3

    def forward(self, x):
        for _ in range(self.steps):
            x = x + 3
        return torch.mul(x, other=self.scale) - 2.5


class Big(nn.Module):
    def forward(self, x):
        return x * 1e20


class Margin(nn.Module):
    def forward(self, x):
        "Stands beside code."; text = """
at the margin"""  # fmt: skip  # noqa: E702
        return x.neg_() + len(text)


def test_the_model_and_the_generator_are_left_alone():
    model = Noisy()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    draw.captures(model, torch.ones(4, 3))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_everything_fits_the_page_and_nothing_overlaps():
    for model, inputs in ((Noisy(), torch.ones(4, 3)), (Plain(), torch.ones(2))):
        scene = compose(take(model, inputs))
        words = [*scene.words, *(one for box in scene.boxes for one in box.words)]
        for one in words:
            if one.code:
                assert one.x + one.width <= (WIDTH / 2 if one.x < WIDTH / 2 else WIDTH), one.text
            assert 0 < one.y < scene.height, one.text
        frames = [box for box in scene.boxes if not box.fill]
        assert [box.key for box in frames] == ["Python", "traced", "scripted", "FX graph"]
        assert max(frames[0].y + frames[0].height, frames[1].y + frames[1].height) < frames[2].y
    assert "the condition is gone, and line 6 with it" in repr(draw.captures(Noisy(), torch.ones(4, 3)))
