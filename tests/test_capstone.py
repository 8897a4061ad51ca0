"""The capstone's first sitting: each fault is told by the check of its lesson, in any company, and named when
it is healed."""

import itertools
import re
import sys

import pytest

from course_utils.exercise.kits import gpt_faults
from course_utils.exercise.kits.gpt_faults import FAULTS, LESSONS, drawn
from course_utils.exercise.states import PASSED, WRONG
from course_utils.grading import attempt
from course_utils.grading.notebooks import grade_all, read
from course_utils.grading.report import Report
from course_utils.grading.starter import is_starter
from course_utils.lessons.catalog import load
from course_utils.lessons.solutions import module_of
from tests.hostile.course import code, notebook

EXERCISE = load().exercise("repair_gpt")
COPIES = (1, 4, 4711)
IMPORTS = "import math\nimport torch\nfrom torch import nn\nfrom torch.nn import functional as F"
_numbers = itertools.count()

# By what was wrong, something that the report says, and of the rule that it gives.
TOLD = {
    "the weights of the attention were detached": (r"`blocks\.0\.qkv\.\w+` is moved", "detached"),
    "the places were added where autograd doesn't see it": (
        r"`place\.weight` is moved.* change by 0$", "`.data`",
    ),
    "the losses kept the graphs of all steps": (r"the graphs of 80 earlier ones", "`item()`"),
    "all blocks were one": (r"6,640 and 6,640 parameters", "A list times 3"),
    "the blocks stood in a list that no module sees": (r"3,360 and 3,360 parameters", "plain list"),
    "the head had a parameter of its own, in the same memory": (
        r"2 parameters .* in 1 storage$", "share storage",
    ),
    "every epoch had the same order": (r"windows in one order", "set back"),
    "held characters were trained on": (r"20 of 20 held characters", "hasn't seen"),
    "every other window was left out": (r"begin at \[0, 0, 16, ", "leaves something out"),
    "the rate of a step was a share of the step before": (
        r"40 of 40 are 0\.25, 0\.12, ", "multiplies the rate",
    ),
    "norms and biases decayed": (r"`blocks\.0\.norm1\.weight`, .* decays by 0\.1 ", "a norm's weight"),
    "the gradient was cut after the step": (r"gradient with a norm of [1-9]", "comes too late"),
    "from the first evaluation on it trained in evaluation mode": (
        r"in step 9 the model is in evaluation mode", "until somebody calls",
    ),
    "the loss got probabilities for scores": (
        r"between 0 and 1 and sum up to 1", "`cross_entropy` takes scores",
    ),
    "it was evaluated with dropout": (r"in `evaluate` .* in training mode", "until somebody calls"),
    "the loss was computed in bfloat16": (r"`loss` returns bfloat16", "8 bits"),
    "the parameters were bfloat16, where small steps are lost": (
        r"steps a parameter .* in bfloat16", "rounded away",
    ),
    "one autocast region around all steps kept its first copies of the weights": (
        r"in step 2 a forward gives other scores", "keeps the copy",
    ),
}  # fmt: skip


def graded(source: str) -> Report:
    names = dict(vars(sys.modules[EXERCISE.starter_object.__module__]), __name__="__main__")
    made = module_of(source, f"a copy {next(_numbers)}", importable=False, **names)
    return attempt.grade(EXERCISE, made.RepairGPT, devices=["cpu"])


def tells_these(copy: int, sick: list[gpt_faults.Fault]) -> None:
    """A copy in which these faults are left: each is told, and the copy's others are named as healed."""
    report = graded(gpt_faults.source(copy, sick))
    *of_lessons, what_stays = report.outcomes
    assert what_stays.state == PASSED
    for lesson, outcome in zip(LESSONS, of_lessons, strict=True):
        left = [fault for fault in sick if fault.lesson == lesson]
        assert outcome.state == (WRONG if left else PASSED), (lesson, outcome.message)
        if left:
            told, why = TOLD[left[0].said]
            assert re.search(told, outcome.message[0], re.MULTILINE), (left[0].said, outcome.message)
            assert why in " ".join(outcome.why.split()), (left[0].said, outcome.why)
        else:
            (its_own,) = (fault for fault in drawn(copy) if fault.lesson == lesson)
            assert outcome.message == [f"healed: {its_own.said}"]


def test_the_shipped_starter_is_the_copy_with_the_number_0():
    assert EXERCISE.starter_source == gpt_faults.copy_of(0)


def test_the_pool_has_faults_of_each_lesson_and_each_is_drawn():
    assert [fault.said for fault in FAULTS] == list(TOLD)
    assert {fault.said for copy in range(100) for fault in drawn(copy)} == set(TOLD)
    assert all(tuple(fault.lesson for fault in drawn(copy)) == LESSONS for copy in range(100))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.said)
def test_a_fault_alone_is_told_by_the_check_of_its_lesson(fault):
    tells_these(7, [fault])


@pytest.mark.parametrize("copy", COPIES)
def test_all_six_are_told_at_once(copy):
    tells_these(copy, drawn(copy))


def test_one_that_is_healed_is_named_among_those_that_are_left():
    tells_these(4711, drawn(4711)[:2] + drawn(4711)[3:])


def test_a_copy_as_it_came_is_not_attempted_and_one_that_was_worked_on_is(tmp_path):
    found = []
    as_it_came, worked_on = gpt_faults.copy_of(4711), gpt_faults.source(4711, drawn(4711)[1:])
    for name, source in (("came", as_it_came), ("worked", worked_on)):
        path = notebook(tmp_path / f"{name}.ipynb", code(IMPORTS), code(source))
        one = read(path, load())
        one.answers = [answer for answer in one.answers if answer[0].name == "repair_gpt"]
        found += grade_all([one], 1, lambda _: None)
    came, worked = (one.reports[0] for one in found)
    assert came.not_attempted
    assert (worked.not_attempted, worked.passed) == (False, 2)  # what stays is there too
    assert worked.outcomes[0].message == [f"healed: {drawn(4711)[0].said}"]


def test_a_copy_is_a_starter_with_its_own_number_alone():
    names = dict(vars(sys.modules[EXERCISE.starter_object.__module__]), __name__="__main__")
    for source, expected in (
        (gpt_faults.copy_of(3), True),
        (gpt_faults.copy_of(3).replace("copy = 3", "copy = 4"), False),
    ):
        made = module_of(source, f"a copy {next(_numbers)}", importable=False, **names)
        assert is_starter(EXERCISE, made.RepairGPT) == expected


_LAST = "(0, len(ids) - self.context, self.context)\n        while"
_BACKWARD = "                loss.backward()\n"
_CUT = "            nn.utils.clip_grad_norm_(self.parameters(), 1.0)\n"

# By what is wrong in an otherwise healthy copy: what stands there, what stands there instead, and what the
# report says of it: in the message, as a symptom, as the rule.
OTHERWISE_WRONG = {
    "the rates begin a step late": (
        "rate * share(step)", "rate * share(step - 1)", "40 are 0, 0.25", "In step 1 it is 0, and", "from 1",
    ),
    "the last window is left out": (
        _LAST, _LAST.replace("self.context, self", "self.context - 1, self"), "[0, 8, ", "begins at 80",
        "the last target",
    ),
    "windows overlap": (
        _LAST, _LAST.replace("self.context)", "self.context // 2)"), "begin at [", "inside of", "overlap",
    ),
    "each batch is cut": (
        _BACKWARD, f"{_BACKWARD}    {_CUT}", "isn't that of the 2", "after the backward of each", "cut once",
    ),
    "only the last batch counts": (
        _BACKWARD, f"                optimizer.zero_grad()\n{_BACKWARD}", "isn't", "last batch alone", "once",
    ),
    "the losses are rounded": (
        "[float(one) for", "[float(torch.tensor(one).bfloat16()) for", "a loss of 5376", "to bfloat16",
        "24 bits",
    ),
    "the held losses are rounded": (
        "self.evaluate(held)", "float(torch.tensor(self.evaluate(held)).bfloat16())", "a held loss",
        "to bfloat16", "24 bits",
    ),
    "the number is gone": ("    copy = 7  # which faults it came with\n\n", "", "no `copy`", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("wrong", OTHERWISE_WRONG)
def test_a_mistake_is_told_with_the_rule_that_it_is_about(wrong):
    healthy, sick, told, symptom, why = OTHERWISE_WRONG[wrong]
    source = gpt_faults.source(7, [])
    assert source.count(healthy) == 1
    (failed,) = (one for one in graded(source.replace(healthy, sick)).outcomes if one.state != PASSED)
    assert told in "\n".join(failed.message)
    assert symptom in failed.symptom and why in " ".join(failed.why.split())
