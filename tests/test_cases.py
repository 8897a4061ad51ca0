"""Tables of cases and labelled examples: what is shown, and what is said of where it is wrong."""

import pytest
import torch

from course_utils.exercise import Exercise, Rows, Table, Trait, expect
from course_utils.grading.check_run import Place, run


@pytest.fixture(autouse=True)
def no_example():
    with expect.situation():
        yield


TRAITS = [
    Trait("`n` is even", lambda n, wanted: n % 2 == 0, "Even numbers have a half."),
    Trait("`n` is at least 10", lambda n, wanted: n >= 10, "Large numbers are large."),
    Trait("`n` is 0", lambda n, wanted: n == 0, "Nothing is nothing."),
]
CASES = [((n,), n * n) for n in range(20)]


def judge(came, wanted):
    return "" if came == wanted else "you answer too much" if came > wanted else "you answer too little"


def compare(answer, **options):
    with pytest.raises(expect.Mismatch) as caught:
        Table("square", CASES, TRAITS).compare(answer, judge, **options)
    return caught.value


def test_all_right():
    Table("square", CASES, TRAITS).compare(lambda n: n * n, judge)


@pytest.mark.parametrize(
    ("wrong_for", "where"),
    [
        (lambda n: n % 2 == 0, "wherever `n` is even, and nowhere else (10 cases)"),
        (lambda n: n in (4, 6), "only where `n` is even (2 of 10 such cases)"),
        (lambda n: n % 2 == 0 and n >= 10, "only where `n` is even (5 of 10 such cases)"),
        (lambda n: n % 2 == 0 or n >= 10, "wherever `n` is even, or `n` is at least 10, and nowhere else"),
        (lambda n: n == 0, "wherever `n` is 0, and nowhere else (1 case)"),
        (lambda n: n in (1, 2, 13), "in 3 of 20 cases"),
    ],
)
def test_where_an_answer_is_wrong(wrong_for, where):
    found = compare(lambda n: n * n + wrong_for(n))
    assert found.symptom.startswith(f"You are wrong {where}"), found.symptom
    assert ("there" if "(1 case)" in where else "in all of them") + " you answer too much" in found.symptom


def test_the_rule_of_the_trait_is_told():
    assert compare(lambda n: n * n - (n % 2 == 0)).symptom.endswith("Even numbers have a half.")


def test_the_simplest_case_is_shown():
    found = compare(lambda n: n * n + (n > 3), simplest=lambda arguments: -arguments[0])
    assert found.lines == ["for `square(19)`", "the result is `362`, expected `361`", "16 of 20 cases differ"]


def test_what_is_raised_everywhere_is_raised():
    with pytest.raises(NameError, match="undefined"):
        Table("square", CASES, TRAITS).compare(lambda n: eval("undefined"), judge)


def test_what_is_raised_somewhere_is_a_wrong_case():
    found = compare(lambda n: n * n if n else 1 // n)
    assert "ZeroDivisionError" in found.lines[1]
    assert "`n` is 0, and nowhere else" in found.symptom


def test_rows_name_what_fails_and_what_does_not():
    with pytest.raises(expect.Mismatch) as caught, Rows() as rows:
        for n in range(4):
            with rows.of(f"`{n}`"):
                expect.true(n % 2, f"{n} is even")
    assert caught.value.lines == ["0 is even", "wrong for `0`, `2`; right for `1`, `3`"]


def test_a_later_row_that_raises_is_one_that_fails():
    with pytest.raises(expect.Mismatch) as caught, Rows() as rows:
        for n in (2, 0, 1):
            with rows.of(f"`{n}`"):
                expect.true(1 / n == 1, "not 1")
    assert caught.value.lines == ["not 1", "wrong for `2`, `0`; right for `1`"]


def test_no_two_rows_have_one_label():
    with pytest.raises(ValueError, match="two examples have the label `a`"), Rows() as rows:
        for right in (True, False):
            with rows.of("`a`"):
                expect.true(right, "no")


def test_rows_raise_what_comes_first():
    with pytest.raises(ZeroDivisionError), Rows() as rows:
        with rows.of("`a`"):
            _ = 1 / 0
        with rows.of("`b`"):
            expect.true(False, "no")
    with Rows() as rows, rows.of("`a`"):
        expect.true(True)


def called(answer, check, **options):
    """The state and the message of a check with cases on an answer."""
    exercise = Exercise(minutes=1, hints=[])
    exercise.starter(double)
    check.__doc__ = "A title"
    exercise.check(**options)(check)
    outcome = run(exercise.checks[0], answer, Place("cpu"))
    return outcome.state, outcome.message


def double(x):
    raise NotImplementedError


def doubles(t):
    expect.equal(t.call("double(x)"), 2 * t.x)


DOUBLED = {"a row": "x = torch.ones(1, 2)", "a view": "x = torch.arange(8.)[::2]", "a number": "x = 3"}


def test_every_case_of_a_check_is_run_and_the_first_failure_told():
    assert called(lambda x: x + x, doubles, cases=DOUBLED) == ("passed", [])
    state, (example, first, *_, labels) = called(lambda x: x + 1, doubles, given="y = 1", cases=DOUBLED)
    assert (state, example) == ("wrong", "for\ny = 1\nx = torch.arange(8.)[::2]\ndouble(x)")
    assert "1" in first and "expected 0" in first
    assert labels == "wrong for a view, a number; right for a row"


def test_what_a_case_raises():
    """An error that is no assertion's is told as it is, in its example; what is no `Exception` ends all."""
    state, lines = called(lambda x: x.add(x), doubles, cases=DOUBLED)
    assert state == "raised"
    assert lines[:2] == ["for\nx = 3\ndouble(x)", "`AttributeError: 'int' object has no attribute 'add'`"]
    seen = []
    assert called(lambda x: seen.append(x) or exit(3), doubles, cases=DOUBLED)[0] == "raised"
    assert len(seen) == 1


def test_what_is_known_in_an_example():
    """The answer by the exercise's name, what the check asks for, and the values of the case. The device is
    told where it is not where a tensor is made anyway, a value where the code names it."""

    def check(double, t, device, size, wanted):
        expect.equal(t.call("double(torch.ones(size, device=device))"), torch.full((size,), wanted))

    given = {"given": "x = torch.zeros(size, device=device)", "cases": [(2, 2.0), (3, 2.0)]}
    assert called(lambda x: x + x, check, **given) == ("passed", [])
    _, (example, *_, labels) = called(lambda x: x + len(x) - 1, check, **given)
    assert example == "for\nsize = 3\nx = torch.zeros(size)\ndouble(torch.ones(size))"
    assert labels == "wrong for `size=3, wanted=2.0`; right for `size=2, wanted=2.0`"


def test_what_code_was_made_of_is_not_known_in_it():
    """Else the example would begin with `x = '…'`."""

    def check(t, x):
        expect.equal(t.call("double(x)"), 2 * eval(x))

    made = {"given": "x = {}".format, "cases": ["torch.ones(2)", "torch.ones(3)"]}
    _, (example, *_) = called(lambda x: x, check, **made)
    assert example == "for\nx = torch.ones(2)\ndouble(x)"


def test_an_answer_that_writes_to_a_value_does_not_spoil_the_next_run():
    def check(double, x):
        expect.equal(double(x), [1, 2, 1, 2])

    cases = {"a list": [1, 2]}
    for _ in range(2):
        assert called(lambda x: x.extend(x) or x, check, cases=cases) == ("passed", [])
    assert cases == {"a list": [1, 2]}


def test_what_is_wrong_is_told_and_not_what_could_not_be_checked_before_it():
    with pytest.raises(expect.Mismatch), Rows() as rows:
        with rows.of("the first"):
            raise expect.CannotCheck("no luck")
        with rows.of("the second"):
            expect.true(False, "it is wrong")


def test_what_cannot_be_judged_is_told_as_what_it_is():
    with pytest.raises(expect.Mismatch) as caught:
        Table("square", CASES, TRAITS).compare(lambda n: None, lambda came, wanted: str(came - wanted))
    assert "your function returns None" in caught.value.symptom and "raises" not in caught.value.symptom


def test_an_example_can_be_pasted_where_a_value_is_not_finite():
    t = expect.given("x = torch.tensor([a, *b])", a=float("inf"), b=(float("nan"), 1))
    with expect.situation(), pytest.raises(expect.Mismatch):
        t.call("x")
        lines = expect.example()[0].removeprefix("for\n")
        names = {"torch": torch}
        exec(lines, names)
        assert names["a"] == float("inf")
        expect.true(False, "")
