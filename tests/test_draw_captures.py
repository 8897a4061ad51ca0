"""The picture of a model in four forms, by the data that it draws."""

import torch
from torch import nn

from course_utils import draw
from course_utils.draw.captures import compose, take
from course_utils.draw.shapes import WIDTH

# ruff: noqa: SIM108


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.scale = 2.5

    def forward(self, x):
        """Not shown."""
        print("rows", x.shape[0])

        x = self.norm(x)
        if x.sum() > 0:
            x = x * self.scale
        else:
            x = -x
        return x


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2.5

    def forward(self, x):
        return torch.relu(x) * self.scale + 1.5


class Either(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else -x


class Loop(nn.Module):
    def forward(self, x):
        assert x.dim() > 0
        for row in x:
            x = x + row
        return x


class AnyNumber(nn.Module):
    def forward(self, x, **more):
        return x + len(more)


GATE = [
    "def forward(self, x):",
    '    print("rows", x.shape[0])',
    "    x = self.norm(x)",
    "    if x.sum() > 0:",
    "        x = x * self.scale",
    "    else:",
    "        x = -x",
    "    return x",
]


def _taken(module, *inputs):
    return {form.name: form for form in take(module, *inputs)}


def _above_zero():
    model = Gate()
    nn.init.ones_(model.norm.bias)
    return model, torch.arange(12.0).view(4, 3)


def test_python_is_shown_without_docstring_and_empty_lines():
    found = _taken(*_above_zero())
    assert found["Python"].lines == GATE


def test_what_tracing_drops_is_lit_in_the_python_and_told():
    found = _taken(*_above_zero())
    assert found["Python"].lit == {1, 3, 6}
    traced = found["traced"]
    assert traced.told[:2] == [
        "Python's line 2: the print is gone; it ran once, while this form was made",
        "Python's line 4: the condition is gone, and with it line 7, whatever comes",
    ]
    (constant,) = traced.told[2:]
    assert "CONSTANTS.c0 = 2.5 was baked in" in constant
    assert ["CONSTANTS.c0" in line for line in traced.lines] == [
        number in traced.lit for number in range(len(traced.lines))
    ]


def test_the_branch_that_is_dropped_depends_on_the_input():
    model, x = _above_zero()
    nn.init.constant_(model.norm.bias, -1.0)
    found = _taken(model, x)
    assert found["Python"].lit == {1, 3, 4}
    assert any(told.endswith("and with it line 5, whatever comes") for told in found["traced"].told)


def test_scripting_keeps_what_the_python_says():
    found = _taken(*_above_zero())
    assert not found["scripted"].refused
    assert found["scripted"].told == []
    assert _taken(Loop(), torch.ones(2, 3))["scripted"].told == []


def test_loops_and_assertions_that_tracing_drops():
    found = _taken(Loop(), torch.ones(2, 3))
    assert found["Python"].lit == {1, 2}
    told = found["traced"].told
    assert told[0] == "Python's line 2: the assertion is gone; nothing is asked any more"
    assert told[1].startswith("Python's line 3: the loop is gone")


def test_a_condition_inside_an_expression():
    found = _taken(Either(), torch.ones(2))
    assert found["Python"].lit == {1}
    assert found["traced"].told == ["Python's line 2: the condition is gone; what ran once is kept"]
    assert found["scripted"].told == []


def test_a_form_that_cannot_be_made_says_why_and_where():
    graph = _taken(*_above_zero())["FX graph"]
    assert graph.refused.startswith("TraceError: ")
    assert graph.refused.endswith(", at `if x.sum() > 0:`")
    scripted = _taken(AnyNumber(), torch.ones(2))["scripted"]
    assert scripted.refused.startswith("NotSupportedError: Compiled functions can't take variable number")
    assert scripted.refused.endswith("at `def forward(self, x, **more):`")


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


def test_a_number_that_is_read_and_written_is_lit():
    found = _taken(Twice(), torch.ones(2))
    for name in ("traced", "FX graph"):
        form = found[name]
        lit = [form.lines[number] for number in sorted(form.lit)]
        assert lit and all("2.5" in line or "CONSTANTS.c1" in line for line in lit)
        assert not any("+ 3" in line for line in lit)
        assert "Python reads it from `self.scale` in one place and writes it in another" in form.told[-1]
    assert found["traced"].constants["c1"] == 2.5
    assert found["scripted"].lit == set()


class Big(nn.Module):
    def forward(self, x):
        return x * 1e20


def test_digits_that_are_no_number_of_their_own():
    assert _taken(Big(), torch.ones(2))["FX graph"].told == []
    graph = _taken(nn.Sequential(nn.ReLU(), nn.ReLU()), torch.ones(2))["FX graph"]
    assert any('"0"' in line for line in graph.lines)
    assert graph.lit == set()


class Margin(nn.Module):
    def forward(self, x):
        "Stands beside code."; text = """
at the margin"""  # fmt: skip  # noqa: E702
        return x.neg_() + len(text)


def test_source_that_is_not_indented_as_usual_and_an_input_that_is_written_to():
    x = torch.ones(2)
    found = _taken(Margin(), x)
    assert found["Python"].lines[0] == "def forward(self, x):"
    assert "text = " in found["Python"].lines[1]
    assert not any(form.refused for form in found.values())
    assert torch.equal(x, torch.ones(2))


def test_the_model_the_generator_and_the_output_are_left_alone(capsys):
    model, x = _above_zero()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    draw.captures(model, x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    captured = capsys.readouterr()
    assert captured.out == ""


def test_a_model_without_source():
    names = {"nn": nn}
    exec("class Model(nn.Module):\n    def forward(self, x):\n        return -x\n", names)
    found = _taken(names["Model"](), torch.ones(2))
    assert found["Python"].refused == "its source cannot be found"
    assert found["scripted"].refused
    assert not found["traced"].refused and not found["FX graph"].refused


def test_everything_fits_the_page_and_nothing_overlaps():
    for model, inputs in ((Gate(), torch.ones(4, 3)), (Plain(), torch.ones(2)), (Loop(), torch.ones(9, 3))):
        scene = compose(take(model, inputs))
        words = [*scene.words, *(one for box in scene.boxes for one in box.words)]
        for one in words:
            if one.code:
                assert one.x + one.width <= (WIDTH / 2 if one.x < WIDTH / 2 else WIDTH), one.text
            assert 0 < one.y < scene.height, one.text
        frames = [box for box in scene.boxes if not box.fill]
        assert [box.key for box in frames] == ["Python", "traced", "scripted", "FX graph"]
        assert max(frames[0].y + frames[0].height, frames[1].y + frames[1].height) < frames[2].y


def test_the_picture_says_in_words_what_it_shows():
    picture = draw.captures(*_above_zero())
    assert "the condition is gone, and with it line 7" in repr(picture)
    assert "FX graph: cannot be made" in repr(picture)
    assert picture.png()[:4] == b"\x89PNG"
