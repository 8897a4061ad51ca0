"""The kit for exercises about modules: what their checks share."""

import contextlib

import pytest
import torch
from torch import nn

from course_utils.exercise import expect
from course_utils.exercise.kits import modules


def double(x):
    return 2 * x


def _raised(told):
    """A mismatch that says so; none where nothing is told."""
    return pytest.raises(expect.Mismatch, match=told) if told else contextlib.nullcontext()


def test_each_example_is_looked_at_and_the_wrong_ones_are_named():
    def look(t):
        expect.equal(t.call("double(x)"), 2 * t.x if t.x > 0 else t.x)

    examples = {"one": "x = torch.tensor(1.)", "two": "x = torch.tensor(-2.)"}
    with pytest.raises(expect.Mismatch) as raised:
        modules.for_each(examples, look, double=double)
    assert raised.value.lines[-1] == "wrong for two; right for one"


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        ("double(x).sum()", ""),
        ("double(x.detach()).sum()", "has left the graph"),
        ("double(x).sum() + (x * x.detach()).sum()", "`x.grad`"),
    ],
)
def test_gradients_are_those_of_the_wanted_loss(loss, told):
    t = expect.given("x = torch.ones(2, requires_grad=True)", double=double)
    with _raised(told):
        modules.expect_gradients(t, f"loss = {loss}", 2 * t.x.sum(), "x")


def _written(layer):
    layer.weight.detach().fill_(1.0)


def _replaced(layer):
    layer.weight = nn.Parameter(torch.ones(1, 1))


def _moved(layer):
    layer.weight.data = torch.ones(1, 1)


def _computed(layer):
    layer.weight.requires_grad_(False)
    layer.weight.mul_(torch.ones(1, requires_grad=True))


@pytest.mark.parametrize(
    ("change", "told"),
    [(_written, ""), (_replaced, "another Parameter"), (_moved, "another storage"), (_computed, "`grad_fn`")],
)
def test_what_is_not_written_in_place_is_told(change, told):
    layer = nn.Linear(1, 1)
    with _raised(told), modules.in_place(lambda: layer.state_dict(keep_vars=True)):
        change(layer)


def test_functions_that_are_no_operators_are_noted():
    lstm = nn.LSTM(1, 1)
    with modules.Called() as called:
        lstm(torch.ones(2, 1, 1))
    assert "lstm" in called.names
