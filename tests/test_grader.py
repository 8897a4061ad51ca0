"""Grading: states, what counts as a pass, and what is told beside the messages."""

import contextlib
import importlib
import io
import json
import linecache
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from course_utils import machine
from course_utils.exercise import Check, Exercise, Rows, Table, Trait, expect
from course_utils.exercise.form import NEEDS
from course_utils.exercise.kits import ranks
from course_utils.exercise.states import (
    COULD_NOT_CHECK,
    DIED,
    NOT_ATTEMPTED,
    PASSED,
    RAISED,
    TIMED_OUT,
    WRONG,
)
from course_utils.grading import attempt
from course_utils.grading.check_run import Outcome, Place, run
from course_utils.grading.forks import READY_TO_COMPILE
from course_utils.grading.report import Report
from course_utils.grading.starter import is_starter
from course_utils.processes import client, stacks

TOY = Path(__file__).parent / "toy_course"


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
        (SystemExit, "`SystemExit`"),
        (GeneratorExit, "`GeneratorExit`"),
        (StopIteration, "`StopIteration`"),
        (AssertionError(), "`AssertionError`"),
        (MemoryError, "`MemoryError`"),
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


def test_a_line_that_fx_has_generated_is_not_the_readers():
    class Seven(torch.nn.Module):
        def forward(self, x):
            return x.view(7)

    def calls(mean):
        expect.equal(mean()(torch.ones(3)), torch.ones(7))

    with contextlib.redirect_stderr(io.StringIO()):  # torch prints what it generated
        report = attempt.grade(an_exercise(calls), lambda: torch.fx.symbolic_trace(Seven()))
    assert report.outcomes[0].state == RAISED
    assert "your line" not in str(report)


def test_an_interrupt_is_not_swallowed():
    def answer(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt.grade(an_exercise(right), answer)


def test_an_answer_that_does_not_end():
    answer = typed("def answer(x):\n    while True:\n        time.sleep(0.01)\n")
    report = attempt.grade(an_exercise(right, of_integers, deadline=1.5), answer)
    assert report.state == TIMED_OUT
    assert report.outcomes[0].message == [
        "still running after 1.5 seconds; it is in the loop at your line 2 (`while True:`)"
    ]
    assert report.outcomes[1].state == COULD_NOT_CHECK
    assert report.outcomes[1].message == ["not run: the check before it did not end"]


def test_an_instruction_without_a_line_has_that_of_the_one_before():
    code = (lambda: None).__code__
    lines = [(0, 2, 10), (2, 4, None)]
    without = SimpleNamespace(co_lines=lambda: lines, co_firstlineno=9)
    assert stacks._line_before(without, 3) == 10
    assert stacks._line_before(code, 0) == code.co_firstlineno


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


def test_an_answer_that_ends_its_process():
    def answer(x):
        os._exit(3)

    outcome = only(attempt.grade(an_exercise(right, isolated=True), answer).outcomes)
    assert (outcome.state, outcome.message) == (DIED, ["its process ended: exit code 3"])


def test_an_isolated_answer_that_does_not_end():
    def answer(x):
        while True:
            try:
                while True:
                    pass
            except BaseException:
                pass

    report = attempt.grade(an_exercise(right, of_integers, isolated=True, deadline=0.5), answer)
    assert [o.state for o in report.outcomes] == [TIMED_OUT, COULD_NOT_CHECK]


def test_what_an_isolated_check_had_to_import_is_there_for_the_next():
    def compiled(mean):
        there = READY_TO_COMPILE in sys.modules
        names = [thread.name for thread in threading.enumerate()]
        expect.equal(names, ["MainThread"], what="threads")
        torch.compile(mean, backend="eager")(torch.ones(3))
        expect.true(there, "it was not there")

    client.shut_down()  # a new server has imported nothing that it was not asked for
    exercise = an_exercise(compiled, isolated=True)
    attempt.grade(exercise, torch.mean)
    assert attempt.grade(exercise, torch.mean).state == PASSED


def test_what_inductor_asks_of_the_machine_is_known_before_a_check_that_needs_a_compiler():
    def compiled(mean):
        from torch._inductor import cpu_vec_isa

        expect.equal(cpu_vec_isa.valid_vec_isa_list.cache_info().currsize, 1, what="answers")

    outcome = only(attempt.grade(an_exercise(compiled, isolated=True, needs="compiler"), torch.mean).outcomes)
    assert outcome.state == (PASSED if machine.has("compiler") else COULD_NOT_CHECK)


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


def test_ranks_are_combined():
    def on_each(mean, rank, world_size):
        expect.equal(mean(torch.tensor([float(rank)])), torch.tensor(float(rank)))

    def answer(x):
        return x.mean() + (x.item() == 1)

    exercise = an_exercise(on_each, ranks=2)
    outcome = only(attempt.grade(exercise, answer).outcomes)
    assert (outcome.state, outcome.message[0]) == (WRONG, "rank 1: the result is 2, expected 1")
    assert attempt.grade(exercise, good).state == PASSED


def on_two(mean, rank, world_size):
    expect.equal(mean(torch.tensor([2.0])), torch.tensor(2.0))


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


def test_a_deadlock_is_told_as_one_and_is_another_behaviour_than_a_loop():
    # Long enough for two ranks to come to the loop, on a busy machine too.
    exercise, patient = an_exercise(on_two, ranks=2, deadline=5.0), an_exercise(on_two, ranks=2)
    looping = only(attempt.grade(exercise, loops).outcomes)
    stuck = only(attempt.grade(patient, deadlocks).outcomes)
    assert (stuck.state, looping.state) == (TIMED_OUT, TIMED_OUT)
    assert stuck.message[0].startswith("rank 0: it would never have ended; it waits in barrier at your line")
    assert looping.message[0].startswith("ranks 0 and 1: still running after 5 seconds; it is in the loop at")


def on_two_with_a_kit(mean):
    ranks.all_through(ranks.given("", mean=mean), "mean(torch.ones(1))")


def waits_for_rank_1(x):
    if dist.get_rank() == 0:
        dist.recv(x, 1)
    return x.mean()


def test_a_rank_that_waits_in_a_kit_has_returned():
    outcome = only(attempt.grade(an_exercise(on_two_with_a_kit, ranks=2), waits_for_rank_1).outcomes)
    assert outcome.state == TIMED_OUT
    assert outcome.message[0].startswith("rank 0: it would never have ended; it waits in recv at your line")
    assert outcome.message[1:] == ["rank 1: has returned"]


def test_a_rank_that_died_is_named_before_those_it_cut_off():
    outcome = only(attempt.grade(an_exercise(on_two, ranks=2), dies_on_one_rank).outcomes)
    assert (outcome.state, outcome.message[0]) == (DIED, "rank 1: its process ended: exit code 3")


def test_an_example_is_shown_once_for_all_ranks():
    def same(mean, rank, world_size):
        with expect.situation("mean(x)"):
            expect.equal(mean(torch.tensor([2.0])), torch.tensor(rank + 3.0))

    (outcome,) = attempt.grade(an_exercise(same, ranks=2), good).outcomes
    assert outcome.message == [
        "for `mean(x)`",
        "rank 0: the result is 2, expected 3",
        "rank 1: the result is 2, expected 4",
    ]


# --- what counts as a pass -------------------------------------------------------------------------


def report_of(*states):
    return Report("e", "t", "E", outcomes=[Outcome(f"c{i}", "c", state) for i, state in enumerate(states)])


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((PASSED,), PASSED),
        ((PASSED, COULD_NOT_CHECK), PASSED),
        ((COULD_NOT_CHECK, PASSED), PASSED),
        ((COULD_NOT_CHECK,), COULD_NOT_CHECK),
        ((), COULD_NOT_CHECK),
        ((PASSED, WRONG, DIED), WRONG),
        ((COULD_NOT_CHECK, RAISED), RAISED),
        ((PASSED, PASSED, TIMED_OUT), TIMED_OUT),
        ((DIED, WRONG), DIED),
    ],
)
def test_the_state_of_an_exercise(states, expected):
    assert report_of(*states).state == expected


def test_not_attempted_comes_before_everything():
    report = report_of(PASSED)
    report.not_attempted = True
    assert report.state == NOT_ATTEMPTED


def test_a_check_that_looks_at_nothing_is_no_pass():
    def looks_away(mean):
        mean(torch.ones(2))

    outcome = only(attempt.grade(an_exercise(looks_away), good).outcomes)
    assert (outcome.state, outcome.message) == (COULD_NOT_CHECK, ["the check looked at nothing"])


def test_a_check_that_cannot_decide_says_so():
    def noisy(mean):
        expect.equal(mean(torch.ones(2)), torch.tensor(1.0))
        raise expect.CannotCheck("two runs differed by more than the gain")

    report = attempt.grade(an_exercise(noisy), good)
    assert (report.state, report.outcomes[0].message) == (
        COULD_NOT_CHECK,
        ["two runs differed by more than the gain"],
    )


def test_what_a_machine_lacks_is_named():
    assert not machine.has("mps") or not machine.has("cuda")
    lacking = "mps" if not machine.has("mps") else "cuda"
    exercise = an_exercise(right)

    @exercise.check(needs=lacking)
    def there(mean, device):
        """On a device"""
        raise AssertionError("this must not run")

    report = attempt.grade(exercise, good)
    assert (report.state, report.outcomes[1].state) == (PASSED, COULD_NOT_CHECK)
    words = {"mps": "Apple GPU", "cuda": "NVIDIA GPU"}
    assert report.outcomes[1].message == [f"this machine has no {words[lacking]}"]


def test_a_package_that_is_missing_comes_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(machine, "has", lambda need: False)
    exercise = an_exercise(right)

    @exercise.check(needs="safetensors")
    def reads(mean):
        """It reads the file"""
        raise AssertionError("this must not run")

    (said,) = attempt.grade(exercise, good).outcomes[1].message
    assert said == "this machine has no safetensors; `pip install -e '.[deploy]'` installs it"
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


@pytest.mark.parametrize("isolated", [False, True])
def test_an_answer_that_replaces_what_checks_it(isolated):
    def answer(x):
        torch.isclose = lambda a, b, **kwargs: torch.ones_like(a, dtype=torch.bool)
        return x.sum()

    original = torch.isclose
    try:
        report = attempt.grade(an_exercise(right, of_a_matrix, isolated=isolated), answer)
        assert torch.isclose is original
    finally:
        torch.isclose = original
    assert [o.state for o in report.outcomes] == [WRONG, WRONG]
    assert "your answer replaced `torch.isclose`" in report.outcomes[0].message[0]


def test_a_result_that_agrees_with_everything():
    class Agrees:
        __eq__ = __ge__ = __le__ = lambda self, other: True
        shape = property(lambda self: self)

        def __bool__(self):
            return True

    assert attempt.grade(an_exercise(*CHECKS), lambda x: Agrees()).state == WRONG


def test_each_check_starts_from_the_same_numbers():
    def first(mean):
        expect.equal(mean(torch.ones(1)), torch.tensor(1.0))
        numbers.append(torch.rand(1).item())

    def second(mean):
        first(mean)

    numbers = []
    attempt.grade(an_exercise(first, second), good)
    assert numbers[0] == numbers[1]


def test_what_an_answer_prints_is_seen(capsys):
    def answer(x):
        print("here")
        return x.float().mean()

    attempt.grade(an_exercise(right), answer)
    assert capsys.readouterr().out == "here\n"
    attempt.grade(an_exercise(right, isolated=True), answer)
    assert capsys.readouterr().out == "here\n"


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


def test_what_is_right_is_told_nothing():
    report = attempt.grade(an_exercise(*CHECKS), good)
    assert (report.told_by, report.symptom, report.why) == (None, "", "")


def test_an_answer_that_does_not_run_at_all_is_told_its_line_and_no_rule():
    report = attempt.grade(an_exercise(of_a_factor, of_rows), lambda x: eval("undefined"))
    assert (report.state, report.told_by, report.why) == (RAISED, "of_a_factor", "")
    report = attempt.grade(an_exercise(of_a_factor, of_rows), lambda x: x.view(7))
    assert (report.state, report.why) == (RAISED, "A sum is divided by how many there are.")


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


STARTERS = [
    ("def f(x, n=2):\n    raise NotImplementedError\n", "f"),
    ("@torch.no_grad()\ndef f(x):\n    raise NotImplementedError\n", "f"),
    ("def f():\n    return {'a': ..., 'b': ...}\n", "f"),
    ("def f(x, key=lambda v: v):\n    return sorted(x, key=key)\n", "f"),
    (
        "class M(nn.Module):\n    size = 3\n    def __init__(self):\n        super().__init__()\n"
        "    @property\n    def p(self):\n        return 1\n"
        "    @staticmethod\n    def s():\n        return 2\n"
        "    class Inner:\n        n = 1\n",
        "M",
    ),
    (
        "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g\n",
        "F",
    ),
]
CHANGES = [
    (0, "n=2", "n=3"),
    (0, "raise NotImplementedError", "return x"),
    (1, "raise NotImplementedError", "return x"),
    (2, "'a': ...", "'a': 1"),
    (3, "sorted(x", "list(x"),
    (3, "lambda v: v", "lambda v: -v"),
    (3, "sorted(x, key=key)", "sorted(x, reverse=key)"),
    (4, "size = 3", "size = 4"),
    (4, "return 1", "return 10"),
    (4, "return 2", "return 20"),
    (4, "n = 1", "n = 2"),
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


def test_a_docstring_makes_no_answer():
    starter = 'def f(x):\n    """(n,) -> (n,)"""\n    raise NotImplementedError\n'
    without = starter.replace('    """(n,) -> (n,)"""\n', "")
    for typed_in in (starter, starter.replace("(n,)", "n numbers"), without):
        assert is_starter(exercise_of(starter), make(typed_in, "f"))


@pytest.mark.parametrize(("number", "old", "new"), CHANGES)
def test_a_changed_starter_is_an_attempt(number, old, new):
    source, name = STARTERS[number]
    assert old in source
    assert not is_starter(exercise_of(source), make(source.replace(old, new), name))


# --- one check, run --------------------------------------------------------------------------------


def test_an_outcome_says_how_long_it_took_and_travels_without_its_exception():
    def answer(x):
        raise ValueError

    outcome = run(Check("right", "Right", right), answer, Place())
    assert outcome.seconds > 0
    assert isinstance(outcome.error, ValueError)
    assert json.loads(json.dumps(outcome.as_plain()))["message"] == outcome.message


def test_a_recipe_is_made_inside_the_check():
    class Recipe:
        def make(self):
            return lambda x: x.mean() if torch.get_num_threads() == 1 else None

    class Broken:
        def make(self):
            raise SyntaxError("cell 3")

    assert run(Check("right", "Right", right), Recipe()).state == PASSED
    outcome = run(Check("right", "Right", right), Broken())
    assert (outcome.state, outcome.message[0]) == (RAISED, "`SyntaxError: cell 3`")
