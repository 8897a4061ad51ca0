"""The pictures of a live model: its tree, its hooks, the signal through its depth."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass

import numpy
import pytest
import torch
from drawn import assert_no_text_is_cut_off_or_covers_another
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from course_utils import draw, explore
from course_utils.draw import gradients
from course_utils.draw.hooks import KINDS
from course_utils.draw.hooks import compose as strip
from course_utils.draw.hooks import record as fire
from course_utils.draw.module_tree import read
from course_utils.draw.modules import compose, levels
from course_utils.draw.shapes import to_picture
from course_utils.draw.signal import Values, record


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.hidden = [nn.Linear(16, 16) for _ in range(2)]
        self.norm = nn.BatchNorm1d(16)
        self.register_buffer("mask", torch.ones(16), persistent=False)
        self.scale = torch.ones(16)
        self.head = nn.Linear(16, 4)
        self.head.bias.requires_grad_(False)
        self.both = (self.first, self.head)
        self.table = {"a": torch.zeros(3), "b": [nn.Parameter(torch.zeros(2))]}

    def forward(self, x):
        x = self.norm(self.first(x))
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.head(torch.dropout(x, 0.5, self.training) * self.scale * self.mask)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.cell = nn.Embedding(9, 4), nn.Linear(4, 4)
        self.again, self.unused = self.cell, nn.ReLU()
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, i):
        return self.head(self.again(self.cell(self.embedding(i))))


def deep(width=64, layers=30, act=nn.Tanh):
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(width, width), act())))


def said(scene):
    return [words.text for part in (scene, *scene.boxes) for words in part.words]


def badges(scene, kind):
    return {box.key.removesuffix(f".{kind}") for box in scene.boxes if box.part == kind and box.fill}


def tree(model):
    found = read(model)
    return compose(found, levels(found))


def test_badges_are_what_torch_does():
    model = Half()
    scene, doubled = tree(model), copy.deepcopy(model).double()
    shown = {box.key for box in scene.boxes if box.part == "tensor"}
    moved = {path for path in shown if eval(f"m.{path}", {"m": doubled}).dtype != torch.float32}
    assert len(shown) == 17 and {"hidden[1].weight", "table['b'][0]"} <= shown
    assert badges(scene, "saved") == set(model.state_dict())
    assert badges(scene, "moved") == moved | {"norm.num_batches_tracked"}  # an integer, which stays one
    assert badges(scene, "trained") == {n for n, p in model.named_parameters() if p.requires_grad}
    assert "9 saved · 10 moved · 5 trained · 0 shared" in said(scene)


def test_a_row_says_kind_shape_and_bytes():
    scene = tree(Half())
    rows = {box.key: box.y + box.height / 2 for box in scene.boxes if box.part == "tensor"}
    for path, told in {
        "norm.running_mean": ["(16,)", "64 B", "buffer"],
        "mask": ["(16,)", "64 B", "non-persistent buffer"],
        "scale": ["(16,)", "64 B", "plain attribute"],
        "hidden[0].weight": ["(16, 16)", "1.02 kB", "unregistered parameter"],
    }.items():
        assert [one.text for one in scene.words if one.y == rows[path]][:3] == told


def test_a_list_is_outside_unless_all_of_it_is_registered():
    scene = tree(Half())
    assert [box.dashed for box in scene.boxes if box.part == "outside"] == [True] * 2
    assert "list of 2 modules, not saved, not moved, not in parameters()" in said(scene)
    assert said(scene).count("outside") == 2 and "both" not in said(scene)
    model = Tied()
    model.heads = [nn.Linear(4, 9), model.cell]
    model.heads[0].weight = model.head.weight
    assert "heads[0].weight" in badges(tree(model), "saved")


def test_shared_tensors_are_joined_and_counted_once():
    scene = tree(Tied())
    keys = {line.key: {y for _, y in line.points} for line in scene.lines}
    ys = {box.key: box.y + box.height / 2 for box in scene.boxes}
    assert keys["embedding.weight"] == {ys["embedding.weight"], ys["head.weight"]}
    assert keys["cell.weight"] == {ys["cell.weight"], ys["again.weight"]} and len(keys) == 3
    assert any(text.endswith("3 tensors, 224 B") for text in said(scene))


def test_the_explorer_picks_unfolds_and_lights():
    e = explore.modules(Half())
    e.lit.value = "trained"
    lit = {box.key for box in e.scene().boxes if box.fill == "lit"}
    assert lit == badges(e.scene(), "trained") and e.picture.value.count(">trained<") == len(lit)
    e.chosen.value = "norm"
    assert {box.key for box in e.scene().boxes if box.part == "module"} == {"norm"}
    e.depth.value = 0
    assert "BatchNorm1d ▸ 5 tensors, 264 B" in said(e.scene()) and "2/5" in said(e.scene())


def state(model):
    hooks = [list(v) for m in model.modules() for k, v in vars(m).items() if k.endswith("hooks")]
    tensors = [(one.clone(), one._version) for one in (*model.parameters(), *model.buffers())]
    flags = [m.training for m in model.modules()]
    return str((hooks, tensors, flags, [p.grad for p in model.parameters()], torch.get_rng_state()))


def test_hooks_are_drawn_in_the_order_in_which_they_fire():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(3, 4)
    boxes, order = strip(fire(model, x)).boxes, []
    for path, module in model.named_modules():
        for kind, register in KINDS.items():
            getattr(module, register)(lambda *_, event=(path, kind): order.append(event))
    model(x).sum().backward()
    assert [(box.key, box.part) for box in boxes] == order and len(order) == 16
    assert boxes == sorted(boxes, key=lambda box: box.x)
    assert "the backward hook of the model fires before" in repr(draw.hooks(model, x))
    assert "fires before" not in repr(draw.hooks(model, x.requires_grad_())) and x.grad is None


def test_what_fires_twice_and_what_never_fires():
    fired = fire(Tied(), torch.tensor([1, 2]))
    assert fired.events.count(("cell", "forward hook")) == 2
    assert "never called, so none of its hooks fired" in said(strip(fired))
    still = draw.hooks(nn.Linear(2, 2).requires_grad_(False), torch.ones(1, 2))
    assert "no backward: nothing that the model returns requires a gradient" in repr(still)


@dataclass
class Answer:
    hidden: torch.Tensor
    score: float = 0.0


class Wrapped(nn.Module):
    """Takes its layer's input by keyword, and returns a dataclass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return Answer(self.layer(input=x))


@pytest.mark.parametrize(
    ("model", "fires", "words"),
    [
        (
            nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)),
            {""},
            "no backward hooks on 0, 1: torch refuses them where something writes in place",
        ),
        (Wrapped(), {"layer"}, "backward hooks of layer don't see what comes in by keyword"),
        (Wrapped(), {"layer"}, "no backward hook of the model fires: no tensor or tuple is returned there"),
    ],
)
def test_hooks_that_cannot_fire_are_told_with_the_reason(model, fires, words):
    x = torch.randn(3, 4, requires_grad=True)
    fired = fire(model, x)
    assert {path for path, kind in fired.events if kind == "full backward hook"} == fires
    assert words in repr(draw.hooks(model, x)) and "fires before" not in repr(draw.hooks(model, x))


class Experts(nn.Module):
    """Returns its output and how it was mixed."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(4, 2), nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        mix = self.router(x).softmax(-1)
        return sum(mix[:, i : i + 1] * one(x) for i, one in enumerate(self.experts)), mix


ROWS = torch.randn(3, 2, 8)
ENCODER = nn.TransformerEncoderLayer(8, 2, 16)


@pytest.mark.parametrize(
    ("model", "batch", "names"),
    [
        (nn.LSTM(8, 4), ROWS, ["the model"]),
        (nn.MultiheadAttention(8, 2), (ROWS, ROWS, ROWS), ["the model"]),
        (ENCODER, ROWS, ["self_attn", "linear1", "linear2"]),
        (ENCODER.eval(), ROWS, ["self_attn", "linear1", "linear2"]),
        (Experts(), torch.randn(5, 4), ["router", "experts.0", "experts.1"]),
        (Wrapped(), torch.randn(5, 4), ["layer"]),
        (nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.Tanh()), torch.randn(5, 4), ["0"]),
        (torch.compile(nn.Sequential(nn.Linear(4, 4)), backend="eager"), torch.randn(5, 4), ["0"]),
    ],
)
def test_the_signal_of_layers_that_return_more_than_a_tensor(model, batch, names):
    layers = record(model, batch, 1.0)
    assert [layer.name for layer in layers] == names
    assert all(layer.gradients.std > 0 for layer in layers)
    found = gradients.record(model, batch, None, "explore.floats")
    assert [one.name.split()[0] for one in found["outputs"]][: len(names)] == [n.split()[0] for n in names]


def test_an_error_of_an_instrument_is_not_told_as_the_models(monkeypatch):
    monkeypatch.setattr("course_utils.draw.signal.SAMPLE", None)
    with pytest.raises(TypeError, match="NoneType"):
        explore.signal(nn.Linear(4, 4), torch.ones(2, 4))


def test_a_lazy_layer_has_no_shape_yet():
    scene = tree(nn.Sequential(nn.LazyLinear(4)))
    assert said(scene).count("no shape yet") == 2


@pytest.mark.parametrize("picture", [draw.hooks, explore.signal])
def test_the_model_stays_as_it_was_also_when_it_raises(picture):
    model = Half()
    model(torch.randn(4, 8)).sum().backward()
    model.norm.eval()
    before, x = state(model), torch.randn(4, 8, requires_grad=True)
    picture(model, x)
    with pytest.raises(ValueError, match=r"shape \(4, 7\), float32 raised RuntimeError: mat1"):
        picture(model, torch.randn(4, 7))
    assert state(model) == before and x.grad is None


class Notes(nn.Module):
    """Writes down what it does, draws from three generators, and has a weight that is made at each call."""

    def __init__(self):
        super().__init__()
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
        self.calls, self.sizes, self.latest = 0, [], {}

    def forward(self, x):
        self.calls += 1
        self.sizes.append(len(x))
        self.latest["mean"] = x.mean()
        self.output = self.layer(x) * torch.rand(()) * random.random() * float(numpy.random.rand())
        return self.output


@pytest.mark.parametrize("picture", [draw.hooks, explore.signal, explore.floats])
def test_what_a_forward_notes_is_not_there_afterwards(picture):
    model = Notes()

    def kept():
        notes = model.calls, model.sizes, model.latest, sorted(vars(model))
        generators = torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()
        return repr((notes, generators, state(model)))

    before = kept()
    picture(model, torch.randn(2, 4, generator=torch.Generator()))
    assert kept() == before


def test_histograms_are_of_a_real_forward_and_backward():
    model, x = deep(8, 3), torch.randn(16, 8)
    recorded = record(model, x, 1.0)
    outputs, value = [], x
    for module in model:
        value = module(value)
        outputs += [value] * isinstance(module, nn.Linear)
    start = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    gradients = torch.autograd.grad(value, outputs, start)
    for one, output, gradient in zip(recorded, outputs, gradients, strict=True):
        assert one.activations.std == pytest.approx(output.std(correction=0).item(), rel=1e-5)
        logs = gradient.flatten().double().abs().log10()
        assert one.gradients.logs.tolist() == pytest.approx(logs.tolist(), rel=1e-4)


def test_zeros_inf_nan_and_no_gradient_are_said():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(4, 4, bias=False) for _ in range(4))
            nn.init.zeros_(self.b.weight), nn.init.ones_(self.d.weight)

        def forward(self, x):
            zeros = self.b(self.a(x))
            return self.c(zeros.log()).detach() + self.d(torch.full((1, 4), 3e38)) + zeros

    told = explore.signal(Odd(), torch.ones(2, 4)).scene().description
    assert "a: std" in told and "all zeros; b: all zeros, std" in told
    assert "nan, no gradient; d: all inf, std" in told
    assert Values.of(torch.tensor([0.0, 1.0, 0.0, 2.0])).shares == {"zeros": 0.5}
    assert str(Values.of(torch.tensor([1.0, torch.inf, torch.nan]))) == "33 % nan"


def test_the_histograms_fill_their_axes_and_stand_beside_the_names():
    scene = explore.signal(deep(), torch.randn(9, 64)).scene()
    rows = [line.points for line in scene.lines if line.points[0][1] == line.points[1][1]]
    for fill in ("view", "gradient"):
        hills = [one.points for one in scene.areas if one.fill == fill and one.part == "histogram"]
        right = max(x for points in hills for x, _ in points)
        assert min(abs(end[0] - right) for _, end in rows) < 0.01
    names = max(word.x + word.width for word in scene.words if word.code)
    assert names < min(start[0] for start, _ in rows) < names + 20


def test_the_gain_scales_the_weights_of_linear_and_conv():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(8, 3))
    scaled, x = copy.deepcopy(model), torch.randn(5, 2, 4)
    for place in (0, 3):
        scaled[place].weight.data *= 1.5
    e = explore.signal(model, x)
    e.gain.value = 1.5
    assert str(record(model, x, 1.5)) == str(record(scaled, x, 1.0))
    assert "activations, gain 1.5" in e.picture.value
    e.reset()
    assert "activations, gain 1<" in e.picture.value
    # A tied weight is scaled once; what backward computes again is computed with the scaled weights.
    tied, i = Tied(), torch.tensor([1, 2])
    twice = copy.deepcopy(tied)
    for layer in (twice.head, twice.cell):
        layer.weight.data *= 2
    assert str(record(tied, i, 2.0)) == str(record(twice, i, 1.0))
    inner, x = deep(4, 2), torch.randn(2, 4, requires_grad=True)
    inner.forward = lambda x: checkpoint(nn.Sequential(*inner), x, use_reentrant=False)
    calls = [str(one.activations) for one in record(inner, x, 2.0)]
    assert len(calls) == 4 and calls[:2] == calls[2:]


def test_bad_input_gets_a_sentence():
    with pytest.raises(TypeError, match="an nn.Module, .*given was the class Linear"):
        draw.modules(nn.Linear)
    with pytest.raises(ValueError, match="no module with a weight of two or more dimensions"):
        explore.signal(nn.ReLU(), torch.ones(2))


PICTURES = {
    "half": lambda: draw.modules(Half()),
    "tied": lambda: draw.modules(Tied()),
    "lit": lambda: to_picture(compose(read(Half()), 1, "saved")),
    "many hooks": lambda: draw.hooks(deep(4, 4), torch.randn(2, 4)),
    "signal": lambda: explore.signal(deep(), torch.randn(9, 64))._still(),
}


@pytest.mark.parametrize("make", PICTURES.values(), ids=PICTURES.keys())
def test_no_text_runs_out_of_its_picture_or_over_another(make):
    picture = make()
    assert_no_text_is_cut_off_or_covers_another(picture)
