"""How an exercise is put together, and what its decorators refuse."""

import pydoc
import re

import pytest

from course_utils import exercise as room
from course_utils.exercise import Exercise, expect, snake_case
from course_utils.exercise.form import FIXTURES, ISOLATED_DEADLINE, NEEDS, PLAIN_DEADLINE, Case


@pytest.fixture
def exercise():
    return Exercise(minutes=5, hints=["one", "two", "three"])


def test_a_check_is_described_by_its_function(exercise):
    @exercise.check
    def right(answer, device, tmp_path):
        """The values are right

        A rule of torch's,
        over two lines.
        """

    (check,) = exercise.checks
    assert (check.name, check.title, check.function) == ("right", "The values are right", right)
    assert (check.wants, check.needs, check.isolated, check.ranks) == (("device", "tmp_path"), (), False, 0)
    assert check.deadline == PLAIN_DEADLINE
    assert check.why == "A rule of torch's,\nover two lines."


def test_options_of_a_check(exercise):
    @exercise.check(isolated=True, needs="compiler")
    def compiled(answer):
        """It compiles"""

    @exercise.check(ranks=2, needs=("cuda", "compiler"), deadline=3)
    def spread(answer, rank, world_size):
        """It runs on ranks"""

    first, second = exercise.checks
    assert (first.isolated, first.needs, first.deadline) == (True, ("compiler",), ISOLATED_DEADLINE)
    assert (second.ranks, second.needs, second.deadline) == (2, ("cuda", "compiler"), 3)
    assert second.wants == ("rank", "world_size")


def silent(answer): ...


def asks(answer, size):
    """x"""


def pairs(answer, a, b):
    """x"""


def knows_its_rank(answer, rank):
    """x"""


def odd(answer):
    """x"""


@pytest.mark.parametrize(
    ("check", "options", "said"),
    [
        (silent, {}, "check silent needs a docstring"),
        (asks, {}, "check asks asks for 'size'; it may ask for device, tmp_path, t$"),
        (knows_its_rank, {}, "asks for 'rank'"),  # it is known only where there are ranks
        (knows_its_rank, {"cases": [1, 2]}, "asks for 'rank'"),  # and is no part of a case
        (pairs, {"cases": [(1, 2), 3]}, "check pairs: a case has 1 parts, for the parameters a, b"),
        (odd, {"cases": ["x = 1"]}, "check odd: a case has 1 parts, for the parameters none"),
        (odd, {"given": "x = 1"}, "check odd is given an example, and does not ask for `t`"),
        (odd, {"needs": ("cuda", "abacus")}, "check odd: no such need: abacus"),
    ],
)
def test_what_is_refused(exercise, check, options, said):
    with pytest.raises((TypeError, ValueError), match=said):
        exercise.check(**options)(check)
    exercise.starter(odd)
    assert (exercise.starter_object, exercise.answer_name) == (odd, "odd")
    with pytest.raises(TypeError, match="odd is the starter already"):
        exercise.starter(asks)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("sliding_windows", "sliding_windows"),
        ("GatedLinearUnit", "gated_linear_unit"),
        ("MiniDDP", "mini_ddp"),
        ("DDPSampler", "ddp_sampler"),
        ("Conv2d", "conv2d"),
        ("LoRALinear", "lo_ra_linear"),
    ],
)
def test_names_of_files(name, file):
    assert snake_case(name) == file


def cases(exercise, function, **options):
    function.__doc__ = "A title"
    exercise.starter(odd)
    exercise.check(**options)(function)
    return exercise.checks[-1].cases


def test_a_check_without_cases_is_called_once(exercise):
    assert cases(exercise, lambda t, device: None, given="x = 1") == (Case(setup="x = 1"),)


SETUP = """
    for i in range(2):
        x = i
"""


@pytest.mark.parametrize(
    ("function", "options", "wanted"),
    [
        # Code for `t`, after that of `given`, each indented as it likes.
        (
            lambda t: None,
            {"given": SETUP, "cases": {"a row": "if x:\n    x = 2\n", "as it is": ""}},
            [("a row", "for i in range(2):\n    x = i\nif x:\n    x = 2", {})]
            + [("as it is", "for i in range(2):\n    x = i", {})],
        ),
        # Without labels the code is its own, on one line.
        (lambda t: None, {"cases": ["x = 1", "x = 2\ny = 3"]}, [("`x = 1`", "x = 1"), ("`x = 2; y = 3`",)]),
        # What makes code of all parts, also of those that the check asks for.
        (
            lambda t: None,
            {"given": "f = {}\nx = {{1: {}}}".format, "cases": [("abs", 2)]},
            [("`abs`", "f = abs\nx = {1: 2}", {}, False)],
        ),
        (
            lambda t, x, wanted: None,
            {"given": "f = {}\nx = {}".format, "cases": [("abs", 2, 4)]},
            [("`abs`", "f = abs\nx = 2", {"x": 2, "wanted": 4}, False)],
        ),
        # The last parts are what the check asks for by other names.
        (
            lambda answer, t, device, size, wanted: None,
            {"given": "y = 1", "cases": {"two": ("x = 1", 2, None), "none": (3, "text")}},
            [("two", "y = 1\nx = 1", {"size": 2, "wanted": None})]
            + [("none", "y = 1", {"size": 3, "wanted": "text"})],
        ),
        # Without `t`: one value as it is, also a tuple; several out of a tuple.
        (
            lambda answer, size: None,
            {"cases": [(), (2, 1), "mean"]},
            [("`size=()`", "", {"size": ()}), ("`size=(2, 1)`",), ("`mean`",)],
        ),
        (
            lambda answer, low, high: None,
            {"cases": [(1, 2.5)]},
            [("`low=1, high=2.5`", "", {"low": 1, "high": 2.5})],
        ),
    ],
)
def test_cases(exercise, function, options, wanted):
    found = cases(exercise, function, **options)
    assert len(found) == len(wanted)
    for case, told in zip(found, wanted, strict=True):
        assert (case.label, case.setup, case.values, case.known)[: len(told)] == told


def test_pydoc_shows_what_an_exercise_may_use():
    shown = pydoc.plain(pydoc.render_doc(room))
    told = {*FIXTURES, *NEEDS, *room.__all__} - {"Check", "Mistake", "snake_case"}  # an exercise needs none
    assert [name for name in told if not re.search(rf"\b{name}\b", shown)] == []
    assert "__" not in shown.replace("__init__.py", "")
    shown = pydoc.plain(pydoc.render_doc(expect))
    used = {
        name for name, value in vars(expect).items() if getattr(value, "__module__", "") == expect.__name__
    }
    public = {name for name in used if not name.startswith("_")} | {"given", "call"}
    assert [name for name in public if f" {name}(" not in shown] == []
