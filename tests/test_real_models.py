"""What readers point the instruments at: architectures of any depth, quantized and parametrized layers."""

from __future__ import annotations

import copy
import functools
import warnings

import pytest
import torch
from drawn import assert_no_text_is_cut_off_or_covers_another
from torch import nn

from course_utils import draw
from course_utils.draw import folding, signal
from course_utils.draw.exports import compose, eager
from course_utils.draw.graph import Drawing
from course_utils.draw.graph_nodes import read
from course_utils.draw.module_tree import read as read_tree
from course_utils.draw.picture import MARGIN, WIDTH, Picture
from course_utils.draw.shapes import to_picture
from course_utils.lessons import catalog
from course_utils.measure.training import record_run

LAYERS = 12
# A page: what is wider is scaled down to its width, letters too.
HIGHEST, LETTER = 1200, 7


class Recurrent(nn.Module):
    """An LSTM whose steps are nodes of a graph, and one whose steps are not."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.deep, self.head = nn.LSTMCell(8, 8), nn.LSTM(8, 8, LAYERS), nn.Linear(8, 1)

    def forward(self, x):
        state = None
        for one in x:
            state = self.cell(one, state)
        return (self.head(self.deep(x)[0]) + state[0].mean()).mean()


class Loss(nn.Module):
    """An architecture of `tests.sets`, called by place, that returns its loss alone."""

    def __init__(self, model: nn.Module, batch: dict) -> None:
        super().__init__()
        self.model, self.batch = model, batch

    def forward(self, x):
        return self.model(**self.batch | {self.batch_name: x}).loss

    @property
    def batch_name(self) -> str:
        return next(name for name in self.batch if name in ("input_ids", "pixel_values"))


def _architecture(name: str, **settings: object) -> tuple[nn.Module, torch.Tensor]:
    from tests.sets import architectures

    given = getattr(architectures, name)()
    if settings:
        torch.manual_seed(0)
        config = copy.deepcopy(given.model.config)
        config.update(settings)
        given = given._replace(model=type(given.model)(config).train())
    model = Loss(given.model, given.batch)
    return model, given.batch[model.batch_name]


@functools.cache
def made(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    if name == "gpt2":
        return _architecture(name, n_layer=LAYERS)
    if name == "vit":
        return _architecture(name, num_hidden_layers=LAYERS)
    if name == "resnet":
        return _architecture(name)
    if name == "lstm":
        return Recurrent(), torch.randn(40, 2, 8)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, LAYERS), torch.randn(2, 5, 16)


def total(name: str) -> torch.Tensor:
    model, x = made(name)
    return model(x).sum()


def train(name: str) -> None:
    optimizer = torch.optim.SGD(made(name)[0].parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        total(name).backward()
        optimizer.step()


def of_two_runs(name: str) -> Picture:
    runs = [record_run(train, name), record_run(train, name)]
    return draw.run(runs, ("sick", "healthy"), {})


INSTRUMENTS = {
    "modules": lambda name: draw.modules(made(name)[0]),
    "hooks": lambda name: draw.hooks(*made(name)),
    "graph": lambda name: draw.graph(total(name)),
    "exports": lambda name: to_picture(
        compose(dict.fromkeys(("eager", "the same", "again"), eager(*made(name))))
    ),
    "run": of_two_runs,
    "signal": lambda name: to_picture(signal.compose(signal.record(*made(name), 1.0), "")),
}


@functools.cache
def drawn(name: str, instrument: str) -> Picture:
    return INSTRUMENTS[instrument](name)


MODELS = ("gpt2", "vit", "lstm", "encoder", "resnet")


def assert_on_a_page(picture: Picture) -> None:
    wide, high = (100 * size for size in picture.get_size_inches())
    scale = min(1.0, WIDTH / wide)
    assert high * scale <= HIGHEST + 2 * MARGIN
    for text in picture.axes[0].texts:
        assert text.get_fontsize() / 0.72 * scale >= LETTER, text.get_text()
    assert_no_text_is_cut_off_or_covers_another(picture)


@pytest.mark.parametrize("instrument", INSTRUMENTS)
@pytest.mark.parametrize("name", MODELS)
def test_a_picture_of_a_real_model_is_at_most_a_page_and_can_be_read(name, instrument):
    assert_on_a_page(drawn(name, instrument))


def words(picture: Picture) -> list[str]:
    return [text.get_text() for text in picture.axes[0].texts]


@pytest.mark.parametrize("instrument", ["modules", "hooks", "graph", "exports"])
@pytest.mark.parametrize("name", ["gpt2", "vit"])
def test_twelve_layers_are_drawn_once(name, instrument):
    assert any(f"×{LAYERS}" in text for text in words(drawn(name, instrument)))


def test_what_fits_on_a_page_is_not_folded():
    model, x = nn.Sequential(*[nn.Linear(3, 3) for _ in range(3)]), torch.randn(2, 3)
    shown = words(draw.modules(model)) + words(draw.hooks(model, x)) + words(draw.graph(model(x).sum()))
    assert not [text for text in shown if "×" in text or "…" in text]


def test_layers_that_are_not_alike_are_not_folded():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(LAYERS)])
    model[:3].requires_grad_(False)
    shown = words(draw.modules(model))
    assert [text for text in shown if "×" in text] == ["Sequential ×3", "Sequential ×9"]


@pytest.mark.parametrize("instrument", ["modules", "hooks"])
def test_hundreds_of_modules_of_which_none_is_like_the_next(instrument):
    model = nn.Sequential(*[nn.Linear(1 + n % 7, 1 + (n + 1) % 7) for n in range(300)])
    for number in range(0, 300, 3):
        model[number].register_buffer("number", torch.zeros(number + 1))
    picture = draw.modules(model) if instrument == "modules" else draw.hooks(model, torch.randn(2, 1))
    assert_on_a_page(picture)
    if instrument == "modules":
        assert sum("modules more: " in text for text in words(picture)) == 1


# --- folding -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ("", []),
        ("abc", [(0, 3, 1)]),
        ("aaaa", [(0, 1, 4)]),
        ("xababay", [(0, 1, 1), (1, 2, 2), (5, 2, 1)]),
        ("abcabcddd", [(0, 3, 2), (6, 1, 3)]),
        ("headbbbbtail", [(0, 4, 1), (4, 1, 4), (8, 4, 1)]),
    ],
)
def test_blocks_that_come_several_times_in_a_row(keys, found):
    assert [(one.start, one.size, one.times) for one in folding.fold(keys)] == found


def test_every_item_is_shown_or_spoken_for_or_left():
    keys = "qabcabcabcxyzxyzw"
    groups = folding.fold(keys)
    for most in range(len(keys) + 1):
        shown = folding.fitting(groups, most, head=1)
        spoken = sum(one.size * one.times for one in shown)
        assert spoken + len([*folding.left(groups, shown)]) == len(keys)
        assert sum(one.size + (one.times > 1) for one in shown) <= most


def test_rows_of_a_graph_speak_for_all_of_its_nodes():
    drawing = Drawing(total("gpt2"), {})
    graph, rows = drawing.graph, drawing.rows
    assert set(rows.row_of) == {op.number for op in graph.ops}
    shown = [rows.ops[number].kind for number in rows.nodes]
    spoken = sum(one.size * one.times for one in rows.groups)
    assert spoken + len(rows.left) == len(graph.ops) - len(graph.leaves)
    for number, row in rows.row_of.items():
        if row < len(shown) and not graph.ops[number].leaf:
            assert graph.ops[number].kind == shown[row]
    assert all(target > row for row, targets in rows.ways.items() for target in targets)


def test_a_backward_through_a_folded_graph():
    drawing = Drawing(total("encoder"), {})
    drawing.run()
    assert_on_a_page(to_picture(drawing.scene(drawing.last // 2)))
    done = words(to_picture(drawing.scene(drawing.last)))
    assert sum(text.startswith(("✓ ", "▶ ")) for text in done) == len(drawing.rows.nodes)


def test_leaves_are_called_by_their_names():
    model, x = made("vit")
    named = {name.rpartition(".")[2] + str(n): p for n, (name, p) in enumerate(model.named_parameters())}
    assert any("weight" in text for text in words(draw.graph(model(x), **named)))


# --- quantized, parametrized -------------------------------------------------------------------------


class EightBits(torch.Tensor):
    """A weight made of int8 numbers and a scale for each row, as libraries for quantization make theirs."""

    @staticmethod
    def __new__(cls, numbers, scales):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scales.dtype)

    def __init__(self, numbers, scales):
        self.numbers, self.scales = numbers, scales

    def __tensor_flatten__(self):
        return ["numbers", "scales"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return EightBits(inner["numbers"], inner["scales"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return EightBits(args[0].numbers, args[0].scales)
        plain = [a.numbers * a.scales if isinstance(a, EightBits) else a for a in args]
        return func(*plain, **(kwargs or {}))


def in_eight_bits(model: nn.Module) -> nn.Module:
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            scales = layer.weight.detach().abs().amax(1, keepdim=True) / 127
            numbers = (layer.weight.detach() / scales).round().to(torch.int8)
            layer.weight = nn.Parameter(EightBits(numbers, scales), requires_grad=False)
    return model


def packed(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear})


# A later torch may have no packed weights any more.
QUANTIZE = [in_eight_bits, *([packed] if hasattr(torch.ao, "quantization") else [])]


@pytest.mark.parametrize("quantize", QUANTIZE)
def test_a_quantized_model_has_the_bytes_that_it_keeps(quantize):
    torch.manual_seed(0)
    model = quantize(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)))
    held = {one.shape: one.bytes for one in read_tree(model).tensors()}
    # A byte for each number, and a scale for each row or for all.
    assert held["(32, 64)"] in range(64 * 32, 64 * 32 + 4 * 32 + 1)
    assert held["(8, 32)"] in range(32 * 8, 32 * 8 + 4 * 8 + 1)
    assert (held["(32,)"], held["(8,)"]) == (128, 32)
    assert_on_a_page(draw.modules(model))


@pytest.mark.parametrize("how", ["parametrized", "by hook", "plain"])
def test_the_gain_scales_every_weight(how):
    torch.manual_seed(0)
    layer = nn.Linear(16, 8, bias=False)
    with warnings.catch_warnings(action="ignore"):
        if how == "parametrized":
            nn.utils.parametrizations.spectral_norm(layer)
        elif how == "by hook":
            nn.utils.weight_norm(layer)
    model, x = nn.Sequential(layer), torch.randn(4, 16)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    once, twice = (signal.record(model, x, gain)[0].activations.std for gain in (1.0, 2.0))
    assert twice == pytest.approx(2 * once, rel=1e-4)
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def test_a_graph_of_a_real_model_is_read_whole():
    graph = read([total("resnet")], {})
    assert len(graph.leaves) == sum(p.requires_grad for p in made("resnet")[0].parameters())


# --- the detectors of lesson 07 ----------------------------------------------------------------------


class ManyOutputs(nn.Module):
    """A healthy model with weight norm, that was called before and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings(action="ignore"):
            self.body = nn.utils.weight_norm(nn.Linear(4, 4))
        self.head, self.last = nn.Linear(4, 1), []

    def forward(self, x):
        hidden = self.body(x).tanh()
        self.last = [hidden]
        return {"hidden": hidden, "out": self.head(hidden)}


def loss_of(outputs, y):
    return nn.functional.mse_loss(outputs["out"], y)


DETECTORS = (
    "find_broadcast_loss",
    "find_frozen_parameters",
    "find_graph_leaks",
    "find_mode_mistakes",
    "find_untracked_parameters",
)


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_takes_a_healthy_model_for_healthy(name):
    solution = catalog.load().solution(name)
    torch.manual_seed(0)
    for find in (solution.reference, *solution.also_right):
        model, batch = ManyOutputs(), (torch.randn(6, 4), torch.randn(6, 1))
        model(batch[0])
        assert not find(model, batch, loss_of), find.__name__


@pytest.mark.parametrize("rows", [1, 6])
def test_equal_targets_tell_nothing_of_a_loss(rows):
    solution = catalog.load().solution("find_broadcast_loss")
    model, batch = nn.Linear(4, 1), (torch.randn(rows, 4), torch.ones(rows, 1))
    for find in (solution.reference, *solution.also_right):
        assert not find(model, batch, nn.functional.mse_loss), find.__name__
