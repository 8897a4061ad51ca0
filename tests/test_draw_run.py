"""The loss-curve doctor on real recorded runs: what it says, what it draws, and the clinic's cards."""

import functools
import sys

import pytest
import torch
from drawn import assert_no_text_is_cut_off_or_covers_another
from torch import nn
from torch.nn import functional as F

from course_utils import clinic, draw, explore, measure
from course_utils.draw.labels import short_path
from course_utils.draw.run import compose
from course_utils.draw.run_rows import Compared
from course_utils.exercise import Check
from course_utils.exercise.kits import training_runs
from course_utils.lessons import catalog

X, Y = training_runs.shapes(64)


def train(steps=12, *, odd=-1, clear=True, freeze=-1, rate_at=-1, noise=0.0, parts=1, deep=1, scale=1.0):
    torch.manual_seed(0)
    hidden = [layer for _ in range(deep) for layer in (nn.Linear(16, 16), nn.ReLU())]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), *hidden, nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model[1].weight += noise * torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    for step in range(steps):
        if clear:
            optimizer.zero_grad()
        if step == freeze:
            model[1].requires_grad_(False)
        if step == rate_at:
            optimizer.param_groups[0]["lr"] = 0.01
        wanted = Y.flip(0) if step == odd else Y
        for x, y in zip(X.chunk(parts), wanted.chunk(parts), strict=True):
            (F.cross_entropy(model(x), y) * (scale**step / parts)).backward()
        optimizer.step()
    return model


run = functools.cache(functools.partial(measure.record_run, train))


def said(sick, healthy):
    return " ".join(Compared([sick, healthy]).said())


AGREE = "They agree at every step: their curves lie on each other."
LEFT = "They part at step 1, in the gradient left over from the step before and at every layer."
SAID = [
    (LEFT, {"clear": False}),
    ("They part at step 5, in the loss and at every layer.", {"odd": 5}),
    ("They part at step 0, at layer `1`. In the sick run layer `1` gets no gradient.", {"freeze": 0}),
    ("They part at step 3, in the learning rate.", {"rate_at": 3}),
    ("They part at step 1, in the loss and at every layer.", {"scale": 1.5}),
    ("They part at step 7, in the loss. The sick run has 7 steps, the other 12.", {"steps": 7}),
    (AGREE, {}),
    (AGREE, {"noise": 1e-7}),
    (AGREE, {"parts": 4}),  # a step's loss is the sum of those that it called backward on
]


@pytest.mark.parametrize(("sentence", "how"), SAID)
def test_it_says_where_they_part(sentence, how):
    assert said(run(**how), run()) == sentence


def test_layers_without_a_gradient_layers_of_one_model_alone_and_nan():
    silent = measure.record_run(train)
    silent.grad_norms["3"][4:] = [0.0] * 8
    assert "In the sick run layer `3` gets zeros for a gradient from step 4 on." in said(silent, run())
    silent.missing["3"][4:] = [True] * 8
    assert "In the sick run layer `3` gets no gradient from step 4 on." in said(silent, run())
    assert "Only the healthy model has layer `7`." in said(run(), run(deep=2))
    assert "In the sick run the loss is nan at step" in said(run(scale=1e20), run())
    assert Compared([run()]).said() == []


def test_a_layer_that_is_frozen_in_both_is_no_fault_and_deep_names_stay_apart():
    both = Compared([run(freeze=0), run(freeze=0)])
    assert both.said() == ["They agree at every step: their curves lie on each other."]
    assert "frozen" in {word.text for word in compose(both).words}
    sick = Compared([run(freeze=0), run()])
    assert "no grad" in {word.text for word in compose(sick).words} and len(sick.said()) > 1
    names = ("query", "key")
    paths = [f"transformer.h.{block}.attention.{name}" for block in range(100, 112) for name in names]
    assert len({short_path(path, 22) for path in paths}) == 24
    assert max(len(short_path(path, 22)) for path in paths) <= 22


def test_graphs_that_are_kept_are_told_from_those_of_the_last_step():
    kept, few = measure.record_run(train), measure.record_run(train)
    few.graphs, kept.graphs = [2] * 12, list(range(12))
    assert said(few, run()).startswith("They agree")
    assert said(kept, run()) == "They part at step 3, in the graphs that are kept."


def test_what_is_sick_is_drawn_high_with_one_run_too():
    kept = measure.record_run(train, parts=4)
    kept.nodes = list(range(48))
    for name, numbers in (("graphs kept", []), ("nodes", range(48)), ("learning rate", [])):
        both = Compared([kept], tall=name)
        (row,) = [row for row in both.rows if row.name == name]
        assert len(row.values[0]) == 12 and list(*(row.points or [numbers])) == list(numbers)
        assert compose(both).height > compose(Compared([kept])).height + 84
    assert both.rows[-1].name == "learning rate" and Compared([kept]).rows[-1].name == "loss"


def test_numbers_of_each_epoch_are_spread_over_the_steps():
    both = Compared([run(), run()], also={"val": ([1.0, 2.0, 3.0], [1.0, 2.5, 3.0])})
    assert both.parting.step == 7 and [row.name for row in both.parting.rows] == ["val"]


def drawn(*runs, **also):
    return draw.run(runs, ("before", "after"), also)


PICTURES = {
    "two": lambda: drawn(run(clear=False), run()),
    "one": lambda: drawn(run(clear=False)),
    "one step": lambda: drawn(run(steps=1), run(steps=1)),
    "deep": lambda: drawn(run(deep=6, steps=400, freeze=0), run(deep=6, steps=400)),
    "nan": lambda: drawn(run(scale=1e20), run()),
    "explodes": lambda: drawn(run(scale=4.0), run(), val_losses=([1, 2], [2, 3])),
    "curves": lambda: draw.curves({"A": run(), "B": run(clear=False), "C": run(scale=4.0)}),
}


@pytest.mark.parametrize("make", PICTURES.values(), ids=PICTURES.keys())
def test_a_picture_is_small_and_no_text_is_cut_off_or_covers_another(make):
    picture = make()
    assert len(picture.png()) <= 30_000
    assert_no_text_is_cut_off_or_covers_another(picture)


def test_what_differs_is_lit_where_it_does():
    scene = compose(Compared([run(freeze=0), run()]))
    (lit,) = [line for line in scene.lines if line.key == "lit"]
    (layer,) = [words for words in scene.words if words.text == "1" and words.code]
    assert layer.bold and lit.points[0][1] < layer.y < lit.points[1][1]
    assert [words.bold for words in scene.words if words.text == "no grad"] == [True]


def test_the_explorer_shows_the_numbers_of_a_step_and_a_layer_higher():
    explorer = explore.run(run(deep=6, steps=400, clear=False), run(deep=6, steps=400))
    assert explorer.slider.value == 1 and explorer.slider.max == 399
    low = explorer.scene().height
    explorer.slider.value = 320
    explorer.layer.value = "3"
    assert explorer.scene().height > low and "at step 320" in explorer.picture.value
    assert "image/png" in explorer._repr_mimebundle_()[0]


def test_a_run_without_a_loss_and_an_answer_to_nothing_are_refused_in_words():
    with pytest.raises(ValueError, match="the run A has no losses; nothing called backward"):
        draw.curves({"A": measure.record_run(int)})
    with pytest.raises(TypeError, match="your function for a repair.*given: train"):
        clinic.runs_of(train)


NAME = "repair_double_softmax"
SICK_IN = {
    "forgotten_eval": "val_losses",
    "leaking_statistics": "set 2",
    "growing_history": "graphs kept",
    "hoarded_predictions": "graphs kept",
    "carried_state": "nodes",
    "zeroed_gradients": "zeros",
    "dead_relus": "zeros",
    "cut_graph": "no grad",
}


@pytest.mark.parametrize("name", SICK_IN)
def test_a_card_draws_what_is_sick(name, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        sys.modules["course_utils.draw.run"], "to_picture", lambda scene, _: drawn.append(scene)
    )
    clinic.card(catalog.load().exercise(f"repair_{name}").starter_object, "A")
    assert SICK_IN[name] in {words.text for words in drawn[0].words}


def test_a_patient_is_shown_by_a_name_that_tells_nothing(capsys):
    for number, (name, _) in enumerate([("repair_missing_zero_grad", 0), ("repair_forgotten_eval", 0)], 1):
        clinic.patient(number)
        shown = capsys.readouterr().out.strip()
        starter = catalog.load().exercise(name).starter_source.strip()
        assert name not in shown and shown.replace("def train(", f"def {name}(") == starter
    for number in (0, 21, "1"):
        with pytest.raises(ValueError, match="patient|number"):
            clinic.patient(number)


def test_a_card_draws_the_readers_run_over_the_sick_one(capsys):
    answer = catalog.load().solution(NAME).reference
    found = clinic.runs_of(answer)
    assert found.yours.losses[-1] < 0.3 < found.sick.losses[-1] and not found.told
    assert found.yours.losses == pytest.approx(found.healthy.losses, rel=1e-3)
    assert "They part at step 0" in repr(clinic.card(answer, "c "))
    assert capsys.readouterr().out == "C is the one.\n"


def test_a_card_of_the_starter_and_of_answers_that_raise_or_loop(capsys, monkeypatch):
    def raises(x, y, seed):
        train(3)
        raise RuntimeError("oops")

    def loops(x, y, seed):
        while True:
            pass

    raises.__name__ = loops.__name__ = NAME
    monkeypatch.setattr(clinic, "Check", functools.partial(Check, deadline=0.5))
    starter = catalog.load().exercise(NAME).starter_object
    for answer, sentence in ((starter, "as you were given it"), (raises, "oops"), (loops, "still running")):
        picture = clinic.card(answer, "A")
        out = capsys.readouterr().out
        assert sentence in out and "It is not A." in out and ("It is C" in out) == (answer is raises)
        assert ("mended" in repr(picture)) == (answer is raises)
