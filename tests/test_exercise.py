"""How an exercise is put together, and what its decorators refuse."""

import pydoc

import pytest

from course_utils import exercise as room
from course_utils.exercise import Exercise, expect, snake_case
from course_utils.exercise.form import ISOLATED_DEADLINE, PLAIN_DEADLINE


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


def knows_its_rank(answer, rank):
    """x"""


def odd(answer):
    """x"""


@pytest.mark.parametrize(
    ("check", "options", "said"),
    [
        (silent, {}, "check silent needs a docstring"),
        (asks, {}, "check asks asks for 'size'; it may ask for device, tmp_path"),
        (knows_its_rank, {}, "asks for 'rank'"),  # it is known only where there are ranks
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


def test_pydoc_shows_what_an_exercise_may_use():
    shown = pydoc.plain(pydoc.render_doc(room))
    assert [
        name for name in ("Exercise", "Edit", "Wrong", "Table", "Rows") if f"class {name}(" not in shown
    ] == []
    shown = pydoc.plain(pydoc.render_doc(expect))
    used = {
        name for name, value in vars(expect).items() if getattr(value, "__module__", "") == expect.__name__
    }
    public = {name for name in used if not name.startswith("_")} | {"given", "call"}
    assert [name for name in public if f" {name}(" not in shown] == []
