"""Many small cases: all of them are judged, one is shown."""

import contextlib
import sys

import numpy as np
import pytest
import torch

from course_utils import catalog, evidence, expect, many_cases, measure

ROOTS = [((4,), 2), ((9,), 3), ((16,), 4), ((-1,), None)]


def root(x):
    """The integer root of a square, None for a negative number."""
    return None if x < 0 else round(x**0.5)


def compare(answer, **options):
    """The evidence, and the lines of the message; none where all cases agree."""
    with expect.situation(), evidence.recording() as found:
        try:
            many_cases.compare(
                answer,
                ROOTS,
                lambda came, case: many_cases.RIGHT if came == case[1] else "o",
                lambda came, error, case: [] if error else [f"{came} came, expected {case[1]}"],
                call=lambda case: f"root({case[0][0]})",
                **options,
            )
        except expect.Mismatch as mismatch:
            return dict(found), mismatch.lines
    return dict(found), []


def test_right():
    assert compare(root) == ({"cases": "...."}, [])


def test_the_first_difference_is_shown_and_all_are_evidence():
    found, lines = compare(lambda x: x // 2)
    assert found == {"cases": ".ooo"}
    assert lines == ["for `root(9)`", "4 came, expected 3", "3 of 4 cases differ"]


def test_the_simplest_difference_is_shown():
    _, lines = compare(lambda x: x // 2, simplest=lambda case: abs(case[0][0]))
    assert lines[:2] == ["for `root(-1)`", "-1 came, expected None"]


def test_one_difference_is_not_counted():
    _, lines = compare(lambda x: root(x) if x != 9 else 4)
    assert lines == ["for `root(9)`", "4 came, expected 3"]


def test_what_the_answer_raised_is_raised_where_nothing_explains_it():
    def answer(x):
        return round(x**0.5) if x != 9 else [][0]

    with pytest.raises(IndexError), expect.situation():
        compare(answer)


def test_the_answer_is_not_called_again_for_the_message():
    asked = []

    def answer(x):
        asked.append(x)
        return 0

    compare(answer)
    assert asked == [4, 9, 16, -1]


def test_a_mismatch_in_the_answer_goes_through():
    def watched(x):
        raise expect.Mismatch("it was written to")

    assert compare(watched)[1] == ["it was written to"]


def test_the_setup_is_shown():
    assert compare(lambda x: 0, setup="y = 3")[1][0] == "for `y = 3`, `root(4)`"


# --- strides -----------------------------------------------------------------------------------------


def expand(x, shape):
    return x.expand(shape).stride()


def strides(answer):
    """The lines for a function that is to compute the strides of `expand`."""
    cases = many_cases.strides_cases(expand, ((3, 1), (5, 2), [(3, 4), (2, 3, 1), (4, 3)]))
    with expect.situation():
        try:
            many_cases.compare_strides(answer, cases, name="f", operation="expand")
        except expect.Mismatch as mismatch:
            return mismatch.lines
    return []


KNOWN = {(3, 4): (5, 0), (2, 3, 1): (0, 5, 2), (4, 3): None}


def but(**other):
    """The right strides, except for shapes written `s34` and so on."""
    known = KNOWN | {tuple(int(n) for n in name[1:]): value for name, value in other.items()}
    return lambda size, stride, shape: known[shape]


class Five:
    """What can be used as an integer."""

    def __index__(self):
        return 5


@pytest.mark.parametrize(
    "right",
    [
        but(),
        but(s231=[0, 5, 7]),
        but(s34=torch.Size((5, 0))),
        but(s34=tuple(np.array([5, 0]))),
        but(s34=(Five(), np.uint8(0))),
    ],
)
def test_right_strides(right):
    assert strides(right) == []


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (
            but(s34=(5, 2)),
            [
                "for `f((3, 1), (5, 2), (3, 4))`",
                "the result is `(5, 2)`, expected `(5, 0)`",
                "`torch.empty_strided((3, 1), (5, 2)).expand((3, 4))` has stride `(5, 0)`",
            ],
        ),
        (
            but(s231=(1, 5, 2)),
            [
                "for `f((3, 1), (5, 2), (2, 3, 1))`",
                "the result is `(1, 5, 2)`, expected `(0, 5, 2)`",
                "any number will do for dimensions of size 1",
                "`torch.empty_strided((3, 1), (5, 2)).expand((2, 3, 1))` has stride `(0, 5, 2)`",
            ],
        ),
        (
            but(s43=(0, 0)),
            [
                "for `f((3, 1), (5, 2), (4, 3))`",
                "the result is `(0, 0)`, expected `None`",
                "`torch.empty_strided((3, 1), (5, 2)).expand((4, 3))` raises",
            ],
        ),
        (
            but(s34=5),
            [
                "for `f((3, 1), (5, 2), (3, 4))`",
                "the result is `5`, expected `(5, 0)`",
                "its type is int, expected a tuple or a list of integers, or None",
                "`torch.empty_strided((3, 1), (5, 2)).expand((3, 4))` has stride `(5, 0)`",
            ],
        ),
        (
            but(s34=(5.0, 0)),
            [
                "for `f((3, 1), (5, 2), (3, 4))`",
                "the result is `(5.0, 0)`, expected `(5, 0)`",
                "it holds a value of type float, expected integers only",
                "`torch.empty_strided((3, 1), (5, 2)).expand((3, 4))` has stride `(5, 0)`",
            ],
        ),
        (
            but(s231=(0, 5.0, 2)),
            [
                "for `f((3, 1), (5, 2), (2, 3, 1))`",
                "the result is `(0, 5.0, 2)`, expected `(0, 5, 2)`",
                "it holds a value of type float, expected integers only",
                "any number will do for dimensions of size 1",
                "`torch.empty_strided((3, 1), (5, 2)).expand((2, 3, 1))` has stride `(0, 5, 2)`",
            ],
        ),
    ],
)
def test_wrong_strides(answer, lines):
    assert strides(answer) == lines


@pytest.mark.parametrize("other", [True, np.True_, torch.tensor(5)])
def test_what_is_no_integer(other):
    assert strides(but(s34=(other, 0)))[2] == (
        f"it holds a value of type {type(other).__name__}, expected integers only"
    )


def test_no_operator_runs_for_a_verdict():
    came = torch.tensor(5), torch.tensor(0)
    with measure.operators() as ran:
        assert many_cases._strides_verdict(came, (((3, 1), (5, 2), (3, 4)), (5, 0))) == "t"
    assert not ran.calls


@pytest.mark.parametrize(
    ("answer", "verdicts"),
    [
        (but(), "..."),
        (but(s34=None), "s.."),
        (but(s34="(5, 0)"), "t.."),
        (but(s34=(5,), s231=(0, 5, 2, 1)), "-+."),
        (but(s34=(4, 0), s231=(1, 4, 2)), "AC."),
        (but(s34=(5, 1)), "B.."),
        (but(s43=(3, 1)), "..c"),
        (but(s43=(0, 0)), "..l"),
    ],
)
def test_the_evidence_says_how_strides_are_wrong(answer, verdicts):
    assert evidence_of(answer) == verdicts


@pytest.mark.parametrize(
    ("error", "letter"),
    [(ValueError, "r"), (AssertionError, "r"), (IndexError, "i"), (ZeroDivisionError, "z"), (KeyError, "x")],
)
def test_the_evidence_says_how_an_answer_raised(error, letter):
    assert evidence_of(refusing(error)) == f"..{letter}"


def evidence_of(answer):
    with evidence.recording() as found, contextlib.suppress(Exception):
        strides(answer)
    return dict(found)["cases"]


def refusing(error):
    def raises(size, stride, shape):
        if shape == (4, 3):
            raise error
        return KNOWN[shape]

    return raises


@pytest.mark.parametrize(
    ("error", "said"),
    [(ValueError, "a ValueError is raised"), (AssertionError, "an AssertionError is raised")],
)
def test_raising_where_none_is_wanted(error, said):
    assert strides(refusing(error)) == [
        "for `f((3, 1), (5, 2), (4, 3))`",
        f"{said}, expected `None`",
        "`torch.empty_strided((3, 1), (5, 2)).expand((4, 3))` raises; your function is to return `None`",
    ]


@pytest.mark.parametrize("error", [NotImplementedError, IndexError])
def test_other_errors_are_the_answers_own(error):
    def raises(size, stride, shape):
        raise error

    with pytest.raises(error):
        strides(raises)


def operators(answer):
    """The evidence of a function in which no operator may run, and what is said to it."""
    arguments = ((2,), (1,), (2, 2)), ((1,), (1,), (2,))
    with expect.situation(), evidence.recording() as found:
        try:
            many_cases.no_operator(answer, *arguments, name="f", views=("aten.expand",))
        except (expect.Mismatch, expect.CannotCheck) as told:
            return found, str(told).splitlines()
    return found, []


def test_no_operator():
    assert operators(lambda size, stride, shape: None) == ([("operators", [False, False])], [])


def test_what_raises_may_run_no_operator_either():
    def raises_once(size, stride, shape):
        if len(shape) == 2:
            raise ValueError

    assert operators(raises_once)[1] == []


def test_nothing_is_known_of_what_always_raises():
    def raises(size, stride, shape):
        raise ValueError

    assert operators(raises) == ([], ["your function returned nothing here: it raised"])


@pytest.mark.parametrize(
    ("answer", "asked", "names"),
    [
        (
            lambda size, stride, shape: torch.empty_strided(size, stride).expand(shape),
            True,
            "`empty_strided`",
        ),
        (lambda size, stride, shape: torch.empty(2).expand(2, 2), False, "`empty`, `expand`"),
        (lambda size, stride, shape: torch.empty(2).as_strided(size, stride), False, "`empty`, `as_strided`"),
    ],
)
def test_operators_that_run(answer, asked, names):
    found, lines = operators(answer)
    assert found == [("operators", [True, asked])]
    assert lines[0] == "for `f((2,), (1,), (2, 2))`"
    assert lines[1].startswith(f"torch's operators ran while your function worked: {names}")


@pytest.mark.parametrize(
    ("name", "method", "least"), [("view_strides", "view", 20_000), ("broadcast_strides", "expand", 2_000)]
)
def test_the_cases_are_what_the_method_does(name, method, least):
    """Also where the oracle asks something cheaper than the method itself."""
    catalog.load().exercise(name)
    cases = sys.modules[f"exercises.tensors.{name}"]._every_case()
    assert len({case[0] for case in cases}) >= least
    for (size, stride, shape), wanted in cases:
        x = torch.empty_strided(size, stride, dtype=torch.uint8)
        try:
            found = getattr(x, method)(shape).stride()
        except RuntimeError:
            found = None
        assert found == wanted, (size, stride, shape)
