"""What an answer may not change: the functions that decide a check."""

import builtins
import subprocess
import sys

import pytest
import torch

from course_utils import exercise
from course_utils.exercise import compare, expect, mismatch
from course_utils.grading import check_run, tampering
from course_utils.grading.check_run import Place


def look(answer):
    """A check"""
    expect.equal(answer(), torch.ones(2))


CHECK = exercise.Check("look", "A check", look)


def fake_equal(*_args, **_kwargs):
    expect.looked()


def alter(owner, name, value):
    """An answer that is wrong and sets `owner.name` to pass."""

    def answer():
        setattr(owner, name, value)
        return torch.zeros(2)

    return answer


def with_other_code():
    look.__code__ = (lambda answer: None).__code__
    return torch.ones(2)


@pytest.mark.parametrize(
    "answer",
    [
        alter(expect, "equal", fake_equal),
        alter(compare, "isinstance", lambda *_: True),
        alter(expect.Mismatch, "__init__", lambda self, *lines: None),
        alter(expect.equal, "__code__", (lambda *a, **k: None).__code__),
        alter(expect.equal, "__kwdefaults__", {"what": "it", "rtol": 0.0, "atol": 10.0}),
        alter(torch, "isclose", lambda a, b, **_: torch.ones(2, dtype=torch.bool)),
        alter(torch.Tensor, "any", lambda self: torch.tensor(False)),
        alter(torch.Tensor, "resolve_conj", lambda self: torch.ones(2)),
        alter(torch.Tensor, "nonzero", lambda self: torch.zeros(0, 1)),
        alter(torch.testing._comparison, "default_tolerances", lambda *_: (0.0, 10.0)),
        alter(builtins, "bool", lambda *_: False),
        alter(mismatch, "looked", lambda: None),
        with_other_code,
    ],
    ids=lambda answer: answer.__name__,
)
def test_no_pass_by_changing_what_decides_and_all_is_put_back(answer):
    outcome = check_run.run(CHECK, answer, Place())
    assert outcome.state == "wrong" and "has been undone" in outcome.message[0], outcome
    assert tampering.changes() == []
    outcome = check_run.run(CHECK, lambda: torch.ones(2), Place())
    assert (outcome.state, outcome.message) == ("passed", [])
    assert check_run.run(CHECK, lambda: torch.zeros(2), Place()).state == "wrong"


PATCHED_BEFORE = """
import torch
from course_utils import check
torch.Tensor.is_contiguous = lambda self: True
torch.Tensor.data_ptr = torch.UntypedStorage.data_ptr = lambda *_: 1
torch.equal = len
torch.Tensor.nonzero = lambda self: self[:0]

from course_utils.grading import clean_room
x = torch.zeros(2, 3).t()
with clean_room.clean_room() as room:
    print(x.is_contiguous(), x.data_ptr() > 1, x.untyped_storage().data_ptr() > 1, (x * 2).shape)
    print(torch.equal(x, x), room.disturbed, len(torch.ones(3).nonzero()))
print(x.is_contiguous(), x.data_ptr(), x.untyped_storage().data_ptr(), torch.equal is len)
"""


def test_what_was_changed_before_the_first_check_is_put_away_for_it():
    ran = subprocess.run([sys.executable, "-c", PATCHED_BEFORE], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["False True True torch.Size([3, 2])", "True [] 3", "True 1 1 True"]
