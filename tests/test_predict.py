"""Predictions: which lines are wrong, which part of them, and why; never what torch says."""

import collections
import enum

import numpy as np
import pytest
import torch

from course_utils.exercise import expect, predict
from course_utils.exercise.mismatch import Mismatch

WHYS = {"x.dim()": "A number has no dimensions.", "x.size()": "Sizes count elements."}


def lines(predictions, truths, **options):
    with pytest.raises(expect.Mismatch) as caught:
        predict.compare(predictions, truths, dict.fromkeys(truths, "A rule.") | WHYS, **options)
    return caught.value.lines


def test_a_wrong_line_is_told_with_its_rule_and_without_the_truth():
    assert lines({"x.dim()": 3}, {"x.dim()": 7}) == [
        "`x.dim()`: `3` is not what came out. A number has no dimensions."
    ]


def test_right_lines():
    predict.compare(
        {"a": (2, 3), "b": 0.3333, "c": "copies"}, {"a": torch.Size([2, 3]), "b": 1 / 3, "c": "copies"}, {}
    )
    predict.compare({"a": 2}, {"a": (2,)}, {})
    predict.compare({"a": [[2, 3], True]}, {"a": ((2, 3), True)}, {}, parts=("size", "contiguous"))


@pytest.mark.parametrize(
    ("predictions", "truths", "options", "said"),
    [
        # What is not answered is said without a rule.
        ({"x.dim()": ...}, {"x.dim()": 1}, {}, ["no prediction yet (still `...`): `x.dim()`"]),
        ({"a": ..., "b": ..., "c": 2}, dict.fromkeys("abc", 1), {},
         ["`c`: `2` is not what came out. A rule.", "no prediction yet (still `...`): `a`, `b`"]),
        ({}, {"x.dim()": 1}, {}, ["`x.dim()`: there is no line for it"]),
        # Parts are told by name.
        ({"a": ((3, 2), False)}, {"a": ((2, 3), False)}, {"parts": ("size", "contiguous")},
         ["`a`: size: `(3, 2)` is not what came out. A rule."]),
        # Many wrong lines are told by name.
        (dict.fromkeys("abcd", 2), dict.fromkeys("abcd", 1), {},
         [f"`{name}`: `2` is not what came out. A rule." for name in "abc"] + ["wrong too: `d`"]),
        ({"a ": 1, "b": 1}, {"a": 1}, {"all_lines": "ab"},
         ["`a`: there is no line for it", "there is a line for `'a '`, which was not asked for"]),
    ],
)  # fmt: skip
def test_what_is_told(predictions, truths, options, said):
    assert lines(predictions, truths, **options) == said


def test_what_does_not_have_the_form_that_was_asked_for():
    (said,) = lines({"a": 1}, {"a": ((2,), False)}, parts=("size", "contiguous"))
    assert "expected 2 things in brackets: size, contiguous" in said
    (said,) = lines({"a": "boht"}, {"a": "both"}, words=("both", "none"))
    assert said.startswith("`a`: `'boht'` is none of 'both', 'none'")


class Line(enum.StrEnum):
    X = "x.dim()"
    COPIES = "copies"


def test_what_equals_the_truth_is_right():
    size = collections.namedtuple("Size", "rows columns")(2, np.int64(3))
    predictions = collections.OrderedDict(
        {Line.X: np.int64(2), "b": Line.COPIES, "c": size, "d": [torch.Size([1]), np.bool_(True)]}
    )
    predictions["e"] = np.float32(0.5)
    truths = {"x.dim()": 2, "c": torch.Size([2, 3]), "e": 0.5}
    written = predict.written_down(lambda: predictions)
    predict.compare(written, truths, {})
    predict.compare(written, {"b": "copies"}, {}, words=("copies", "views"))
    predict.compare(written, {"d": ((1,), True)}, {}, parts=("size", "contiguous"))


class EqualToAll:
    def __eq__(self, other):
        return True

    __hash__ = None


@pytest.mark.parametrize(
    ("guess", "truth", "told"),
    [
        (1, True, "neither `True` nor `False`"),
        (True, 1, "no number"),
        ("2", 2, "no number"),
        ([2], 2, "no number"),
        (None, 2.5, "no number"),
        ("2", (2,), "no tuple of numbers: write it as `(7, 2)`"),
        (float, torch.int64, "no dtype of torch's"),
        ("int64", torch.int64, "no dtype of torch's: write one as `torch.int16`"),
        (torch.int8, torch.int64, "not what came out"),
        (EqualToAll(), 1, "no number"),
        ((EqualToAll(),), (2,), "not what came out"),
        ((1,), (True,), "not what came out"),
        (np.bool_(True), 1, "no number"),
        (np.int64(1), True, "neither `True` nor `False`"),
    ],
)
def test_a_guess_that_only_looks_like_it(guess, truth, told):
    (said,) = lines({"a": guess}, {"a": truth})
    assert told in said and "int64`" not in said.replace("`'int64'`", "")


@pytest.mark.parametrize(
    ("size", "told"),
    [(4, "Times 4 they"), (1024, "Times 1,024 they"), (1000, "Times 1,000 they"), (3, ""), (1, "")],
)
def test_bytes_in_another_unit_are_told_as_that_and_without_rules(size, told):
    truths = {"a": 2048, "b": 10240, "c": 0}
    whys = dict.fromkeys(truths, "A rule")
    guesses = {line: round(truth / size, 1) for line, truth in truths.items()} | {"a": 2048 / size}
    if size == 1:
        guesses["b"] = 2560  # one line of two: whoever is right elsewhere knows the unit
    with pytest.raises(Mismatch) as raised:
        predict.compare(guesses, truths, whys, unit="bytes")
    assert raised.value.symptom.startswith(told) and bool(told) == bool(raised.value.symptom)
    assert ("A rule" in str(raised.value)) is not bool(told)


class LazyLines(collections.UserDict):
    """Lines that are made when they are asked for."""

    def __init__(self):
        super().__init__(a=1)

    def __getitem__(self, line):
        return torch.ones(1)


def test_written_down():
    assert predict.written_down(lambda: {"a": 1}) == {"a": 1}
    for predicting, told in [
        (lambda: {"a": torch.ones(1)}, "1 of torch's operators ran"),
        (lambda: None, "is a `return` missing"),
        (lambda: [1], "is a list, expected a dict"),
        (lambda: 1, "is an int, expected a dict"),
        (lambda: LazyLines(), "1 of torch's operators ran"),
    ]:
        with pytest.raises(expect.Mismatch, match=told):
            predict.written_down(predicting)


def test_a_prediction_that_runs_operators_and_raises():
    def traces():
        raise RuntimeError(f"a tracer that is watched: {torch.ones(2).sum()}")

    with pytest.raises(Mismatch, match="of torch's operators ran"):
        predict.written_down(traces)
    with pytest.raises(ZeroDivisionError):
        predict.written_down(lambda: {"x": 1 // 0})
