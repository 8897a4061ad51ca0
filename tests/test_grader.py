"""Grading: states, what counts as a pass, and what is told beside the messages."""

import importlib
import linecache
import os
import signal
import sys
import threading
import time
from collections import deque

import pytest
import torch
import torch.distributed as dist

from course_utils import machine
from course_utils.exercise import Check, Exercise, Rows, Table, Trait, expect
from course_utils.exercise.form import NEEDS
from course_utils.exercise.kits import ranks
from course_utils.exercise.states import COULD_NOT_CHECK, DIED, PASSED, RAISED, TIMED_OUT, WRONG
from course_utils.grading import attempt
from course_utils.grading.check_run import run
from course_utils.grading.forks import Forks
from course_utils.grading.recipe import ToMake
from course_utils.grading.starter import is_starter
from course_utils.processes.streams import KEPT_OUTPUT


def an_exercise(*checks, **options):
    """An exercise of these checks."""
    exercise = Exercise(minutes=1, hints=[])
    exercise.name, exercise.title = "mean", "The mean"

    @exercise.starter
    def mean(x):
        raise NotImplementedError

    for check in checks:
        check.__doc__ = check.__doc__ or check.__name__
        exercise.check(check, **options)
    return exercise


def right(mean):
    expect.equal(mean(torch.tensor([1.0, 2.0, 6.0])), torch.tensor(3.0))


def of_integers(mean):
    expect.equal(mean(torch.tensor([1, 2])), torch.tensor(1.5))


def of_a_matrix(mean):
    expect.equal(mean(torch.arange(6.0).view(2, 3)), torch.tensor(2.5))


CHECKS = (right, of_integers, of_a_matrix)


def typed(source, **names):
    """The function `answer` of a cell that a reader has typed."""
    file = f"<cell {len(linecache.cache)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = {"torch": torch, "time": time, "os": os, "__name__": "__main__", **names}
    exec(compile(source, file, "exec"), namespace)
    return namespace["answer"]


@pytest.mark.parametrize(
    "source",
    [
        "raise expect.CannotCheck('no luck')",
        "raise expect.Mismatch('as expected')",
        "expect.true(False, 'as expected')",
        "return expect.raises(KeyError, lambda: 1)",
    ],
)
def test_only_the_course_says_that_an_answer_is_wrong_or_cannot_be_checked(source):
    answer = typed(f"def answer(x):\n    {source}", expect=expect)
    outcome = run(an_exercise(right).checks[0], answer)
    assert outcome.state == RAISED and not outcome.symptom


def test_a_check_that_the_answer_calls_back_is_the_check():
    def calls_back(answer):
        answer(lambda: expect.true(False, "seen from inside"))

    answer = typed("def answer(look):\n    look()")
    outcome = run(an_exercise(calls_back).checks[0], answer)
    assert (outcome.state, outcome.message) == (WRONG, ["seen from inside"])


def good(x):
    return x.float().mean()


def only(outcomes):
    (outcome,) = outcomes
    return outcome


# --- states ----------------------------------------------------------------------------------------


def test_an_answer_that_is_right():
    report = attempt.grade(an_exercise(*CHECKS), good)
    assert (report.state, report.passed, report.total) == (PASSED, 3, 3)
    assert (report.told_by, report.symptom, report.why) == (None, "", "")
    assert [o.title for o in report.outcomes] == ["right", "of_integers", "of_a_matrix"]
    assert all(o.message == [] and o.looks for o in report.outcomes)


def test_the_state_is_that_of_the_first_failing_check():
    report = attempt.grade(an_exercise(*CHECKS), lambda x: x.mean())
    assert [o.state for o in report.outcomes] == [PASSED, RAISED, PASSED]
    assert (report.state, report.passed) == (RAISED, 2)
    report = attempt.grade(an_exercise(*CHECKS), lambda x: x.mean() + 1)
    assert (report.state, [o.state for o in report.outcomes]) == (WRONG, [WRONG, RAISED, WRONG])


@pytest.mark.parametrize(
    "answer", [lambda x: None, lambda x: 3.0, lambda x: "3", lambda x: [3.0], 7, None, "x"]
)
def test_what_is_no_answer_at_all(answer):
    report = attempt.grade(an_exercise(*CHECKS), answer)
    assert report.state in (WRONG, RAISED)
    assert report.outcomes[0].message


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no mean"), "`ValueError: no mean`"),
        (SystemExit(0), "`SystemExit: 0`"),
        (GeneratorExit, "`GeneratorExit`"),
        (StopIteration, "`StopIteration`"),
        (
            type("Odd", (Exception,), {"__str__": lambda self: 1 / 0})(),
            "`Odd: <its message cannot be shown>`",
        ),
        (ValueError("line one\n\nline two"), "`ValueError: line one line two`"),
        (ValueError("<object at 0x7f00deadbeef>"), "`ValueError: <object>`"),
        (
            TypeError("f() got (tuple), but expected one of:\n * (int a)\n * (int b)"),
            "`TypeError: f() got (tuple)`",
        ),
    ],
)
def test_an_answer_that_raises(error, line):
    answer = typed("def answer(x):\n    y = x\n    raise error  # here\n", error=error)
    report = attempt.grade(an_exercise(right, of_integers), answer)
    assert [o.state for o in report.outcomes] == [RAISED, RAISED]
    assert report.outcomes[0].message[0] == line
    assert report.outcomes[0].message[1] == "at your line 3 (`raise error  # here`)"
    assert isinstance(report.outcomes[0].error, BaseException)


def test_an_interrupt_is_not_swallowed():
    def answer(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt.grade(an_exercise(right), answer)


@pytest.mark.parametrize("isolated", [False, True])
def test_an_answer_that_does_not_end(isolated):
    answer = typed("def answer(x):\n    while True:\n        time.sleep(0.01)\n")
    report = attempt.grade(an_exercise(right, of_integers, isolated=isolated, deadline=1.5), answer)
    first, second = report.outcomes
    assert first.state == TIMED_OUT
    said = "still running after 1.5 seconds; it is in the loop at your line 2 (`while True:`)"
    assert first.message == [said]
    assert second.state == COULD_NOT_CHECK
    assert second.message == ["not run: the check before it did not end"]
    assert report.why == ""  # what one check is about explains no loop


@pytest.mark.parametrize("isolated", [False, True])
def test_a_busy_machine_has_more_time(isolated, monkeypatch):
    def answer(x):
        time.sleep(1.2)
        return x.mean()

    exercise = an_exercise(right, isolated=isolated, deadline=0.6)
    for load, state in ((0.0, TIMED_OUT), (4.0, PASSED)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load * os.cpu_count(), 0.0, 0.0))
        assert attempt.grade(exercise, answer).state == state


def test_an_answer_that_swallows_its_deadline_has_not_passed():
    def answer(x):
        swallowed = False
        while not swallowed:
            try:
                while True:
                    pass
            except BaseException:
                swallowed = True
        return x.mean()

    assert attempt.grade(an_exercise(right, deadline=0.2), answer).state == TIMED_OUT


def test_what_cannot_be_sent_to_another_process_is_said_in_the_report():
    lock = threading.Lock()

    exercise = an_exercise(right, isolated=True)
    report = attempt.grade(exercise, lambda x: x.mean() if lock else None)
    assert report.outcomes[0].state == RAISED
    assert "cannot be sent" in str(report) and "lock" in str(report)


def test_an_isolated_check_says_the_same_as_a_plain_one():
    def answer(x):
        if not x.is_floating_point():
            raise ValueError("whole numbers")
        return x.mean() + (x.dim() > 1)

    plain = attempt.grade(an_exercise(*CHECKS), answer)
    isolated = attempt.grade(an_exercise(*CHECKS, isolated=True), answer)
    assert [o.state for o in plain.outcomes] == [PASSED, RAISED, WRONG]
    for a, b in zip(plain.outcomes, isolated.outcomes, strict=True):
        assert (a.state, a.message) == (b.state, b.message)


def test_isolated_checks_see_nothing_of_each_other_and_one_that_kills_its_parent_costs_itself_alone():
    def answer(x):
        seen, torch.seen_by_an_answer = getattr(torch, "seen_by_an_answer", 0), 1
        if not x.is_floating_point():
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(10)
        return x.mean() + seen

    report = attempt.grade(an_exercise(*CHECKS, isolated=True), answer)
    assert [outcome.state for outcome in report.outcomes] == [PASSED, DIED, PASSED]


def on_two(mean, rank, world_size):
    with expect.situation("mean(x)"):
        expect.equal(mean(torch.tensor([2.0])), torch.tensor(2.0))


def on_two_with_a_kit(mean):
    ranks.all_through(ranks.given("", mean=mean), "mean(torch.ones(1))")


def on_two_twice(mean, rank, world_size):
    on_two(mean, rank, world_size)
    on_two(mean, rank, world_size)


def meets_others_and_is_wrong(x):
    dist.all_reduce(x / 1)
    return is_wrong_on_one_rank(x)


def is_wrong_on_one_rank(x):
    return x.mean() + dist.get_rank()


def is_wrong_on_both(x):
    return x.mean() + 1 + dist.get_rank()


def deadlocks(x):
    if dist.get_rank() == 0:
        dist.barrier()
    return x.mean()


def loops(x):
    while True:
        pass


def dies_on_one_rank(x):
    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()
    return x.mean()


def waits_for_rank_1(x):
    if dist.get_rank() == 0:
        dist.recv(x, 1)
    return x.mean()


@pytest.mark.parametrize(
    ("check", "answer", "state", "message"),
    [
        (on_two, good, PASSED, []),
        (on_two, is_wrong_on_one_rank, WRONG, ["for `mean(x)`", "rank 1: the result is 3, expected 2"]),
        # That a rank waits for one that has left the check says nothing of the answer.
        (on_two_twice, meets_others_and_is_wrong, WRONG,
         ["for `mean(x)`", "rank 1: the result is 3, expected 2", "rank 0: waits in all_reduce at"]),
        # An example is shown once for all ranks.
        (on_two, is_wrong_on_both, WRONG,
         ["for `mean(x)`", "rank 0: the result is 3, expected 2", "rank 1: the result is 4, expected 2"]),
        # Who has died is named before those whom it cut off.
        (on_two, dies_on_one_rank, DIED,
         ["rank 1: its process ended: exit code 3", "it ended itself: look for `os._exit`"]),
        # A deadlock is told as one, and is another behaviour than a loop.
        (on_two, deadlocks, TIMED_OUT,
         ["rank 0: it would never have ended; it waits in barrier at your line"]),
        (on_two, loops, TIMED_OUT,
         ["ranks 0 and 1: still running after 5 seconds; it is in the loop at"]),
        # A rank that waits in a kit has returned.
        (on_two_with_a_kit, waits_for_rank_1, TIMED_OUT,
         ["rank 0: it would never have ended; it waits in recv at your line", "rank 1: has returned"]),
    ],
)  # fmt: skip
def test_what_ranks_did_is_combined(check, answer, state, message):
    # Long enough for two ranks to come to the loop, on a busy machine too.
    options = {"deadline": 5.0} if answer is loops else {}
    outcome = only(attempt.grade(an_exercise(check, ranks=2, **options), answer).outcomes)
    assert outcome.state == state, outcome
    assert all(line.startswith(start) for line, start in zip(outcome.message, message, strict=False))
    assert len(outcome.message) >= len(message)


# --- what counts as a pass -------------------------------------------------------------------------


def looks_away(mean):
    mean(torch.ones(2))


def noisy(mean):
    expect.equal(mean(torch.ones(2)), torch.tensor(1.0))
    raise expect.CannotCheck("two runs differed by more than the gain")


@pytest.mark.parametrize(
    ("check", "said"),
    [(looks_away, "the check looked at nothing"), (noisy, "two runs differed by more than the gain")],
)
def test_a_check_that_cannot_decide_is_no_pass(check, said):
    outcome = only(attempt.grade(an_exercise(check), good).outcomes)
    assert (outcome.state, outcome.message) == (COULD_NOT_CHECK, [said])


@pytest.mark.parametrize(
    ("need", "said"),
    [
        ("mps", "this machine has no Apple GPU"),
        ("cuda", "this machine has no CUDA device"),
        ("safetensors", "this machine has no safetensors; `pip install -e '.[deploy]'` installs it"),
    ],
)
def test_what_a_machine_lacks_is_named(need, said, monkeypatch):
    monkeypatch.setattr(machine, "has", lambda need: False)
    exercise = an_exercise(right)

    @exercise.check(needs=need)
    def there(mean):
        """On a device"""
        raise AssertionError("this must not run")

    report = attempt.grade(exercise, good)
    assert (report.state, report.outcomes[1].state) == (PASSED, COULD_NOT_CHECK)
    assert report.outcomes[1].message == [said]
    assert set(attempt.NEED) == set(NEEDS)


def test_a_device_check_runs_once_for_each_device():
    seen = []

    def everywhere(mean, device):
        seen.append(str(device))
        expect.true(True)

    exercise = an_exercise(everywhere)
    report = attempt.grade(exercise, good, devices=["cpu", "meta"])
    assert (seen, [o.device for o in report.outcomes]) == (["cpu", "meta"], ["cpu", "meta"])
    attempt.grade(exercise, good)
    assert seen[2:] == machine.devices()


def test_cases_in_processes_of_their_own():
    """Isolated, and on ranks, where `dist` is known in the example and all go through all cases."""

    def doubled(t, n):
        expect.equal(t.call("mean(x)"), torch.full((n,), 2.0))

    def summed(t, world_size):
        t.run("dist.all_reduce(y := mean(x))")
        expect.equal(t.y, 2 * t.x * world_size)

    exercise = an_exercise()
    doubled.__doc__, summed.__doc__ = "Doubled", "Summed"
    exercise.check(isolated=True, given="x = torch.ones(n)", cases=[2, 3])(doubled)
    exercise.check(ranks=2, cases={"one": "x = torch.ones(1)", "two": "x = torch.ones(2)"})(summed)
    report = attempt.grade(exercise, lambda x: x + x)
    assert [o.state for o in report.outcomes] == [PASSED] * 2
    isolated, on_ranks = attempt.grade(exercise, lambda x: x * (4 - len(x))).outcomes
    assert (isolated.state, isolated.message[-1]) == (WRONG, "wrong for `n=3`; right for `n=2`")
    assert (on_ranks.state, on_ranks.message[-1]) == (WRONG, "wrong for one; right for two")


def test_a_check_on_ranks_uses_a_device_of_which_each_has_one(monkeypatch):
    def on_ranks(mean, device, rank):
        """Never run"""

    def places(*devices):
        return [place.device for _, place in attempt.visits(an_exercise(on_ranks, ranks=2), devices)]

    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    for gpus, served in ((1, ["cpu"]), (2, ["cpu", "cuda"])):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert places("cpu", "cuda", "mps") == served
    assert places("mps") == ["cpu"]


def test_a_folder_is_there_for_the_check_and_gone_afterwards():
    folders = []

    def writes(mean, tmp_path):
        folders.append(tmp_path)
        torch.save(mean(torch.ones(2)), tmp_path / "mean.pt")
        expect.equal(torch.load(tmp_path / "mean.pt"), torch.tensor(1.0))

    assert attempt.grade(an_exercise(writes), good).state == PASSED
    assert not folders[0].exists()


def test_an_error_outside_the_readers_lines_is_placed():
    """Where the call itself raised, the example says so; else the line of the check that used the result."""
    code = "answer(torch.ones(2))"

    def in_the_call(answer):
        """In the call"""
        expect.equal(expect.given("", answer=answer).call(code), torch.ones(2))

    def in_a_helper(answer):
        """In a helper of the course"""
        with expect.situation(code, "sum"):
            expect.equal(answer(torch.ones(2)) + torch.ones(3), torch.ones(2))

    def in_the_setup(answer):
        """While the example is made"""
        expect.given("y = answer(1)", answer=answer)

    report = attempt.grade(an_exercise(in_the_call, in_a_helper, in_the_setup), torch.sigmoid)
    call, helper, setup = [outcome.message for outcome in report.outcomes]
    assert call[0] == f"for `{code}`" and report.outcomes[0].state == WRONG
    assert (helper[0], len(helper)) == (f"for\n{code}\nsum", 3)
    assert helper[2].startswith("raised by the check when it used what your answer gave: `expect.equal(")
    assert (setup[0], len(setup)) == ("for `y = answer(1)`", 2)


def test_what_an_answer_prints_is_seen(capsys):
    def answer(x):
        print("here")
        return x.float().mean()

    attempt.grade(an_exercise(right), answer)
    assert capsys.readouterr().out == "here\n"
    attempt.grade(an_exercise(right, isolated=True), answer)
    assert capsys.readouterr().out == "here\n"


@pytest.mark.parametrize("isolated", [False, True])
def test_an_answer_that_prints_without_end_does_not_flood_the_notebook(capsys, isolated):
    def answer(x):
        for _ in range(100):
            print("x" * 10_000)
        return x.float().mean()

    assert attempt.grade(an_exercise(right, isolated=isolated), answer).passed
    told = capsys.readouterr().out
    assert len(told) < 1e5 and told.endswith("xx\n… what is printed from here on is not shown\n")
    print("as before")
    assert capsys.readouterr().out == "as before\n"


@pytest.mark.parametrize("isolated", [False, True])
def test_an_answer_that_prints_as_much_as_is_shown_is_cut_nowhere(capsys, isolated):
    def answer(x):
        print("x" * (KEPT_OUTPUT - 1))
        return x.float().mean()

    assert attempt.grade(an_exercise(right, isolated=isolated), answer).passed
    assert capsys.readouterr().out == "x" * (KEPT_OUTPUT - 1) + "\n"


# --- what is told beside the messages ------------------------------------------------------------------


def of_a_factor(mean):
    """A mean of whole numbers

    A sum is divided by how many there are.
    """
    expect.equal(mean(torch.tensor([1, 2, 6, 7])), torch.tensor(4.0))


def of_rows(mean):
    """A mean over rows

    Another rule.
    """
    expect.equal(mean(torch.tensor([[1.0, 2.0], [3.0, 8.0]])), torch.tensor(3.5))


def test_the_why_and_the_symptom_are_those_of_the_first_check_that_fails():
    exercise = an_exercise(right, of_a_factor, of_rows)
    report = attempt.grade(exercise, lambda x: x.float().mean() * (1 if x.is_floating_point() else 2))
    assert report.told_by == "of_a_factor"
    assert report.why == "A sum is divided by how many there are."
    assert report.symptom == "The result is 2 times what was expected."


def every_number(mean):
    """A mean of every small number"""
    cases = [((torch.tensor([n, n + 1]),), n + 0.5) for n in range(9)]
    even = Trait("`n` is even", lambda x, wanted: int(x[0]) % 2 == 0, "Even numbers have a half.")
    Table("mean", cases, [even]).compare(mean, lambda came, wanted: "" if came == wanted else "no")


def test_where_the_first_has_no_symptom_that_of_a_table_is_told_and_no_other():
    def answer(x):
        return None if x.dim() == 2 or x.dtype == torch.int64 and x[0] % 2 == 0 else x.float().mean()

    report = attempt.grade(an_exercise(of_rows, every_number), answer)
    assert report.told_by == "of_rows"
    assert report.symptom.startswith("You are wrong wherever `n` is even, and nowhere else")
    report = attempt.grade(
        an_exercise(of_rows, of_a_factor), lambda x: None if x.dim() == 2 else 2 * x.float().mean()
    )
    assert (report.told_by, report.symptom) == ("of_rows", "")


def test_an_answer_that_does_not_run_at_all_is_told_its_line_and_no_rule():
    report = attempt.grade(an_exercise(of_a_factor, of_rows), lambda x: eval("undefined"))
    assert (report.state, report.told_by, report.why) == (RAISED, "of_a_factor", "")
    report = attempt.grade(an_exercise(of_a_factor, of_rows), lambda x: x.view(7))
    assert (report.state, report.why) == (RAISED, "A sum is divided by how many there are.")


@pytest.mark.parametrize("arguments", ["", "x, axis", "*, x"])
def test_an_answer_that_takes_other_arguments_is_told_no_rule(arguments):
    def of_none(mean):
        """A mean of nothing

        Of another number of arguments.
        """
        expect.true(mean() is None, "no")

    # In the second case the check of none and the others raise differently.
    exercise = an_exercise(of_a_factor, of_rows, *([of_none] * (arguments == "x, axis")))
    report = attempt.grade(exercise, eval(f"lambda {arguments}: 1"))
    assert (report.state, report.passed, report.told_by, report.why) == (RAISED, 0, "of_a_factor", "")


def test_a_row_in_which_an_answer_raises_is_shown_after_another_failure_too():
    def in_rows(mean):
        with Rows() as rows:
            for n in (1, 2, 3):
                with rows.of(f"`{n}`"):
                    t = expect.given(f"x = torch.arange({n}.0)", mean=mean)
                    expect.equal(t.call("mean(x)"), t.x.mean())

    answer = typed("def answer(x):\n    if len(x) == 2:\n        raise ValueError('no')\n    return x[0]")
    report = attempt.grade(an_exercise(right, in_rows), answer)
    assert [outcome.state for outcome in report.outcomes] == [WRONG, RAISED]
    told = [line.strip() for line in str(report).splitlines()]
    assert told[-5:-1] == ["for", "x = torch.arange(2.0)", "mean(x)", "`ValueError: no`"]


def test_an_import_is_not_cut_off_half_way(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(2)\nwhole = True\n")
    monkeypatch.syspath_prepend(tmp_path)

    def answer(x):
        importlib.import_module("slow_to_import")
        while True:
            pass

    try:
        assert attempt.grade(an_exercise(right, deadline=1.0), answer).state == TIMED_OUT
        assert sys.modules["slow_to_import"].whole
    finally:
        del sys.modules["slow_to_import"]


# --- equal to the starter --------------------------------------------------------------------------


def make(source, name):
    """As a cell makes it; the last line before what is asked for may be something else."""
    return typed(f"{source}\nanswer = {name}\n", nn=torch.nn)


def exercise_of(source):
    exercise = Exercise(minutes=1, hints=[])
    exercise.starter_source = source
    return exercise


A_CLASS = """class M(nn.Module):
    size = 3
    def __init__(self):
        super().__init__()
    @property
    def p(self):
        return 1
    @staticmethod
    def s():
        return 2
    class Inner:
        n = 1
"""
A_FUNCTION = """class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x
    @staticmethod
    def backward(ctx, g):
        return g
"""
STARTERS = [
    ("def f(x, n=2):\n    raise NotImplementedError\n", "f"),
    ("@torch.no_grad()\ndef f(x):\n    raise NotImplementedError\n", "f"),
    ("def f():\n    return {'a': ..., 'b': ...}\n", "f"),
    ("def f(x, key=lambda v: v):\n    return sorted(x, key=key)\n", "f"),
    (A_CLASS, "M"),
    (A_FUNCTION, "F"),
]
CHANGES = [
    (0, "n=2", "n=3"),
    (0, "raise NotImplementedError", "return x"),
    (2, "'a': ...", "'a': 1"),
    (3, "sorted(x", "list(x"),
    (3, "sorted(x, key=key)", "sorted(x, reverse=key)"),
    (4, "size = 3", "size = 4"),
    (4, "return 1", "return 10"),
    (4, "nn.Module", "nn.Identity"),
    (4, "        super().__init__()\n", "        super().__init__()\n        self.k = 1\n"),
    (5, "return g", "return -g"),
]


@pytest.mark.parametrize(("source", "name"), STARTERS)
def test_an_untouched_starter_is_recognised(source, name):
    exercise = exercise_of(source)
    assert is_starter(exercise, make(source, name))
    first, *rest = source.splitlines(keepends=True)
    commented = "# mine\n\n" + first + "".join(rest).rstrip() + "  # to do\n"
    assert is_starter(exercise, make(commented, name))
    assert not is_starter(exercise, eval("lambda x: x"))
    documented = source.replace("    raise NotImpl", '    """(n,) -> (n,)"""\n    raise NotImpl')
    assert is_starter(exercise_of(documented), make(source, name))  # a docstring makes no answer


@pytest.mark.parametrize(("number", "old", "new"), CHANGES)
def test_a_changed_starter_is_an_attempt(number, old, new):
    source, name = STARTERS[number]
    assert old in source
    assert not is_starter(exercise_of(source), make(source.replace(old, new), name))


# --- one check, run --------------------------------------------------------------------------------


def test_a_recipe_is_made_inside_the_check():
    class Recipe(ToMake):
        def make(self):
            return lambda x: x.mean() if torch.get_num_threads() == 1 else None

    class Broken(ToMake):
        def make(self):
            raise SyntaxError("cell 3")

    assert run(Check("right", "Right", right), Recipe()).state == PASSED
    outcome = run(Check("right", "Right", right), Broken())
    assert (outcome.state, outcome.message[0]) == (RAISED, "`SyntaxError: cell 3`")


def test_after_a_check_that_did_not_end_no_other_is_run_in_a_fork_either():
    def endless(mean):
        """It ends"""
        time.sleep(60)

    with Forks() as forks:
        exercise = an_exercise(endless, right, deadline=1.5)
        found = attempt.report(attempt.Attempt(exercise, lambda x: x.mean()), forks)
    assert [one.state for one in found.outcomes] == [TIMED_OUT, COULD_NOT_CHECK]


class TakenByAnother(deque):
    """Whenever somebody has asked how many there are, another thread takes all of them."""

    def __len__(self):
        found = super().__len__()
        while super().__len__():
            self.popleft().close()
        return found + bool(found)


def test_forks_are_used_by_threads_that_end_each_others_processes():
    with Forks() as forks:
        forks._ending = TakenByAnother()
        assert forks.call(abs, -1, deadline=60).state == "returned"


@pytest.mark.parametrize("isolated", [False, True])
def test_an_answer_with_a_method_called_make_is_an_answer(isolated):
    class Mean:
        def __init__(self, x):
            self.x = x

        def make(self):
            return self.x.mean()

    def made(mean):
        """It is made"""
        expect.equal(mean(torch.tensor([1.0, 3.0])).make(), torch.tensor(2.0))

    assert attempt.grade(an_exercise(made, isolated=isolated), Mean).state == PASSED


@pytest.mark.parametrize("told", [{"imported": 5}, {"imported": None}, "x" * (5 << 20)])
def test_whatever_an_answer_tells_in_the_name_of_its_process_there_is_a_report(told):
    def answer(x):
        from course_utils.processes import worker_process

        worker_process.tell(told)
        return x.mean()

    report = attempt.grade(an_exercise(right, isolated=True), answer)
    assert report.state in (DIED, RAISED, WRONG, TIMED_OUT)
