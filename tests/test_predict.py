"""Predictions: which lines are wrong, which part of them, and why; never what torch says."""

import pytest
import torch

from course_utils.exercise import expect, predict

WHYS = {"x.dim()": "A number has no dimensions.", "x.size()": "Sizes count elements."}


def lines(predictions, truths, **options):
    with pytest.raises(expect.Mismatch) as caught:
        predict.compare(predictions, truths, dict.fromkeys(truths, "A rule.") | WHYS, **options)
    return caught.value.lines


def test_a_wrong_line_is_told_with_its_rule_and_without_the_truth():
    assert lines({"x.dim()": 3}, {"x.dim()": 7}) == [
        "`x.dim()`: `3` is not what torch says. A number has no dimensions."
    ]


def test_right_lines():
    predict.compare(
        {"a": (2, 3), "b": 0.3333, "c": "copies"}, {"a": torch.Size([2, 3]), "b": 1 / 3, "c": "copies"}, {}
    )
    predict.compare({"a": 2}, {"a": (2,)}, {})
    predict.compare({"a": [[2, 3], True]}, {"a": ((2, 3), True)}, {}, parts=("size", "contiguous"))


def test_what_is_not_answered_is_said_without_a_rule():
    assert lines({"x.dim()": ...}, {"x.dim()": 1}) == ["`x.dim()`: no prediction yet (it still says `...`)"]
    assert lines({}, {"x.dim()": 1}) == ["`x.dim()`: there is no line for it"]


def test_parts_are_told_by_name():
    said = lines({"a": ((3, 2), False)}, {"a": ((2, 3), False)}, parts=("size", "contiguous"))
    assert said == ["`a`: size: `(3, 2)` is not what torch says. A rule."]
    (said,) = lines({"a": 1}, {"a": ((2,), False)}, parts=("size", "contiguous"))
    assert "expected 2 things in brackets: size, contiguous" in said


def test_a_word_that_was_not_offered():
    (said,) = lines({"a": "boht"}, {"a": "both"}, words=("both", "none"))
    assert said.startswith("`a`: `'boht'` is none of 'both', 'none'")


def test_many_wrong_lines_are_told_by_name():
    truths = {name: 1 for name in "abcde"}
    said = lines(dict.fromkeys(truths, 2), truths)
    assert [line[:3] for line in said[:3]] == ["`a`", "`b`", "`c`"]
    assert said[3:] == ["wrong too: `d`, `e`"]


def test_a_line_under_another_name_is_pointed_out():
    said = lines({"a ": 1, "b": 1}, {"a": 1}, all_lines="ab")
    assert said == ["`a`: there is no line for it", "there is a line for `'a '`, which was not asked for"]


class EqualToAll:
    def __eq__(self, other):
        return True

    __hash__ = None


@pytest.mark.parametrize(
    ("guess", "truth", "told"),
    [
        (1, True, "neither `True` nor `False`"),
        (True, 1, "not what torch says"),
        ("2", 2, "not what torch says"),
        (float, torch.int64, "no dtype of torch's"),
        ("int64", torch.int64, "no dtype of torch's"),
        (torch.int8, torch.int64, "not what torch says"),
        (EqualToAll(), 1, "not what torch says"),
        ((EqualToAll(),), (2,), "not what torch says"),
        ((1,), (True,), "not what torch says"),
    ],
)
def test_a_guess_that_only_looks_like_it(guess, truth, told):
    (said,) = lines({"a": guess}, {"a": truth})
    assert told in said and "int64`" not in said.replace("`'int64'`", "")


def test_written_down():
    assert predict.written_down(lambda: {"a": 1}) == {"a": 1}
    for predicting, told in [
        (lambda: {"a": torch.ones(1)}, "1 of torch's operators ran"),
        (lambda: None, "is a `return` missing"),
        (lambda: [1], "expected a dict"),
    ]:
        with pytest.raises(expect.Mismatch, match=told):
            predict.written_down(predicting)
