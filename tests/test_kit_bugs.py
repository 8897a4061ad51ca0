"""The models that detectors are graded on: what a detector is told, and what it may not change."""

import copy

import pytest
import torch

from course_utils.exercise import expect
from course_utils.exercise.kits import bugs

HEAD = bugs.net("self.head = nn.Linear(4, 1)", "return self.head(x)")


def nothing(model, batch, loss_fn):
    return []


@pytest.mark.parametrize(
    ("came", "told"),
    [
        ([], "Not found: `a`."),
        (["a", "b"], "Found without reason: `b`."),
        (["a", "a"], "Found twice: `a`."),
        ("a", ""),
        ([1], ""),
    ],
)
def test_what_is_missing_or_too_much_is_said(came, told):
    with pytest.raises(expect.Mismatch) as caught:
        bugs.examine("find", lambda *_: came, {"a model": (HEAD, ["a"])})
    assert told in caught.value.symptom
    # Names may come in any order, and one of several is enough.
    bugs.examine("find", lambda *_: ["b", "c"], {"a model": (HEAD, ["c or d", "b"])})
    with pytest.raises(expect.Mismatch) as caught:
        bugs.examine("find", lambda *_: ["c", "d"], {"a model": (HEAD, ["c or d"])})
    assert caught.value.symptom == "Named already, by another name: `d`."


def draws(model, batch, loss_fn):
    torch.rand(1)


def calls_it(model, batch, loss_fn):
    with torch.no_grad(), torch.random.fork_rng():
        model(batch[0])


def replaces_parameters(model, batch, loss_fn):
    model.head.weight = copy.deepcopy(model.head.weight) if hasattr(model, "head") else None


FOUND = []


@pytest.mark.parametrize(
    "meddle",
    [
        lambda model, batch, loss_fn: model.eval(),
        lambda model, batch, loss_fn: loss_fn(model(batch[0]), batch[1]).backward(),
        lambda model, batch, loss_fn: batch[1].zero_(),
        lambda model, batch, loss_fn: model.register_forward_hook(lambda *_: None),
        lambda model, batch, loss_fn: FOUND.append(str(len(FOUND))),  # it finds more each time
        draws,
        calls_it,
        replaces_parameters,
    ],
)
def test_a_change_is_seen(meddle):
    def find(*args):
        meddle(*args)
        return list(FOUND)

    with pytest.raises(expect.Mismatch):
        for code in bugs.LIVELY.values():
            bugs.left_alone(expect.given(code, find=find), "find")
    FOUND.clear()
    for code in bugs.LIVELY.values():
        bugs.left_alone(expect.given(code, find=nothing), "find")  # looking is no change


def test_the_table():
    def find_one(model, batch, loss_fn):
        return ["x"] if model.training else []

    def find_two_words(model, batch, loss_fn):
        raise NotImplementedError

    def find_trouble(model, batch, loss_fn):
        raise ValueError

    before = torch.get_rng_state()
    lines = bugs.table([find_one, nothing, find_two_words, find_trouble]).splitlines()
    assert torch.equal(torch.get_rng_state(), before)
    assert lines[0].split() == ["one", "nothing", "two", "trouble"]
    assert len(lines) == 1 + len(bugs.SICK)
    assert lines[1].split()[1:] == ["1", "·", "?", "error"]
    for wrong in (nothing, [3], 5):
        with pytest.raises(TypeError, match="needs a list as|list of functions"):
            bugs.table(wrong)
