"""What a check has seen: recorded as plain data, and compared as behaviour is."""

import enum
import math
import pickle
import threading

import numpy
import pytest
import torch
from torch import nn, tensor

from course_utils import evidence
from course_utils.evidence import same, snapshot

SAME = [
    (tensor([1.0, 2.0]), tensor([1.0, 2.0 + 1e-7])),
    (tensor([math.nan, 1.0]), tensor([math.nan, 1.0])),
    (tensor([1.0], dtype=torch.float16), tensor([1.001], dtype=torch.float16)),
    (tensor([1 + 1j]), tensor([1 + 1j]).conj().conj()),
    (torch.zeros(2, device="meta"), torch.zeros(2, device="meta")),
    (torch.arange(6).view(2, 3).t(), torch.arange(6).view(2, 3).t().contiguous()),
    ([1, "a", None], (1, "a", None)),
    ({"a": tensor(1), "b": 2}, {"b": 2, "a": tensor(1)}),
    (math.nan, math.nan),
    (1.0, 1.0 + 1e-9),
    ({3, 1, 2}, {1, 2, 3}),
    (torch.float32, torch.float32),
    (torch.Size([2, 3]), (2, 3)),
    (nn.Linear(1, 1), nn.Linear(1, 1)),
    (numpy.array([1.0, 2.0]), tensor([1.0, 2.0], dtype=torch.float64)),
]
DIFFERENT = [
    (tensor([1.0, 2.0]), tensor([1.0, 2.001])),
    (tensor([1.0]), tensor([math.nan])),
    (tensor([math.inf]), tensor([-math.inf])),
    (tensor([1]), tensor([2])),
    (tensor([1_000_000_001]), tensor([1_000_000_000])),
    (tensor([1]), tensor([1.0])),
    (tensor([1.0]), tensor([1.0], dtype=torch.float64)),
    (tensor([1.0]), tensor([[1.0]])),
    (tensor([1.0]), torch.zeros(1, device="meta")),
    (tensor([1 + 1j]), tensor([1 - 1j])),
    (tensor([1.0]), [1.0]),
    ([1, 2], [1, 2, 3]),
    ([1, 2], [2, 1]),
    ({"a": 1}, {"b": 1}),
    (1, True),
    (1, 1.0),
    (None, False),
    ("a", "b"),
    (nn.Linear(1, 1), nn.ReLU()),
    (torch.eye(2).to_sparse(), torch.eye(2)),
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_the_same_behaviour(a, b):
    assert same(snapshot(a), snapshot(b))
    assert same(snapshot(b), snapshot(a))


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_other_behaviour(a, b):
    assert not same(snapshot(a), snapshot(b))
    assert not same(snapshot(b), snapshot(a))
    assert same(snapshot(a), snapshot(a))


@pytest.mark.parametrize("value", [value for pair in SAME + DIFFERENT for value in pair])
def test_evidence_can_cross_a_process_boundary(value):
    seen = snapshot(value)
    assert same(pickle.loads(pickle.dumps(seen)), seen)


def test_a_class_of_the_readers_is_left_behind():
    class Word(enum.StrEnum):
        SAFE = "safe"

    class Sly(float):
        def __float__(self):
            return 1.0

    for value, plain in ((Word.SAFE, "safe"), (Sly(2.0), 2.0), (numpy.float64(0.5), 0.5)):
        assert snapshot(value) == plain and type(snapshot(value)) is type(plain)


def test_later_changes_do_not_reach_what_was_seen():
    x = torch.zeros(3)
    numbers = [1, 2]
    with evidence.recording() as seen:
        evidence.record("x", x)
        evidence.record("numbers", numbers)
    x.fill_(7)
    numbers.append(3)
    assert same(seen[0][1], snapshot(torch.zeros(3)))
    assert seen[1] == ("numbers", [1, 2])


def test_large_tensors_are_sampled_and_still_told_apart():
    x = torch.zeros(1_000_000)
    seen = snapshot(x)
    assert len(seen.elements) <= 8 * evidence.MOST_ELEMENTS
    assert not same(seen, snapshot(torch.ones(1_000_000)))
    assert not same(seen, snapshot(torch.zeros(999_999)))


def test_a_tensor_that_needs_a_gradient_is_seen_without_a_trace():
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    with evidence.recording() as seen:
        evidence.record("y", y)
    assert same(seen[0][1], snapshot(tensor([2.0, 2.0])))
    y.sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_nobody_records_where_nobody_listens():
    evidence.record("lost", 1)
    with evidence.recording() as seen:
        with evidence.silent():
            evidence.record("silent", 1)
        with evidence.recording() as inner:
            evidence.record("inner", 1)
        evidence.record("outer", 1)
    evidence.record("lost", 1)
    assert [kind for kind, _ in seen] == ["outer"]
    assert [kind for kind, _ in inner] == ["inner"]


def test_another_thread_records_for_itself():
    with evidence.recording() as seen:
        thread = threading.Thread(target=evidence.record, args=("there", 1))
        thread.start()
        thread.join()
    assert seen == []
