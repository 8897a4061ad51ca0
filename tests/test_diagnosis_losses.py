"""What `diagnose` says of losses, batches, modes and waits: the sick are named by their cause and by no other
fault, and nothing is said of the healthy that look like them."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.diagnosis import Report, diagnose

torch.manual_seed(0)
X, Y, CLASSES = torch.randn(8, 4), torch.randn(8), torch.arange(8) % 3
TRUTH = (torch.arange(8) % 2).float()


def squares(out: Tensor, y: Tensor) -> Tensor:
    return ((out - y) ** 2).mean()


class Net(nn.Module):
    """A linear layer, and what is made of its result."""

    def __init__(self, out: int = 3, then=lambda h: h, first=lambda x: x, inner: int = 4, **modules):
        super().__init__()
        self.head = nn.Linear(inner, out)
        self.then, self.first = then, first
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x):
        return self.then(self.head(self.first(x)))


def zeros(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def sick(report: Report, cause: str, rank: str = "fault") -> None:
    assert (rank, cause) in [(one.rank, one.cause) for one in report.findings], report
    assert {one.cause for one in report.faults} <= {cause}, report
    assert not report.unseen, report


def quiet(report: Report) -> None:
    assert not report.findings, report
    assert not report.unseen, report


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def plain_bce(p: Tensor, y: Tensor) -> Tensor:
    return -(y * p.log() + (1 - y) * (1 - p).log()).mean()


BROADCAST = {
    "squares, by hand": (Net(1), Y, squares),
    "torch warns": (Net(1), Y, nn.MSELoss()),
    "targets are (N, 1)": (Net(1, lambda h: h[:, 0]), Y[:, None], squares),
    "weighted": (Net(1), Y, lambda o, y: (F.l1_loss(o, y, reduction="none") * TRUTH).mean()),
    "all targets equal": (Net(1), torch.ones(8), squares),
    "cross-entropy of two, by hand": (Net(1, torch.sigmoid), TRUTH, plain_bce),
    "three numbers each": (Net(3, lambda h: h[:, None]), torch.randn(8, 3), squares),
}


@pytest.mark.parametrize("model, y, loss", BROADCAST.values(), ids=list(BROADCAST))
def test_each_prediction_with_each_target(model, y, loss):
    sick(diagnose(model, (X, y), loss), "broadcast_loss")


PAIRS = {
    "equal targets": (Net(1), torch.ones(8, 1), squares),
    "pairs on purpose": (Net(1), Y, lambda o, y: (o - o.T - (y[:, None] - y)).pow(2).mean()),
    "nearest target": (Net(1, lambda h: h[:, 0]), Y, lambda o, y: (o[:, None] - y).abs().amin(0).mean()),
    "a weight for each class": (Net(3), torch.eye(8, 3), nn.BCEWithLogitsLoss(pos_weight=torch.ones(3))),
    "a mask": (Net(3), torch.eye(8, 3), lambda o, y: ((o - y) ** 2 * (X[:, :1] > -9)).mean()),
}


@pytest.mark.parametrize("model, y, loss", PAIRS.values(), ids=list(PAIRS))
def test_each_prediction_with_its_own_target(model, y, loss):
    quiet(diagnose(model, (X, y), loss))


def softmax_by_hand(h: Tensor) -> Tensor:
    return h.exp() / h.exp().sum(1, keepdim=True)


def third(out: int = 3) -> Net:
    """Its first scores happen to sum to 1."""
    net = Net(out)
    zeros(net.head).bias.data.fill_(1 / out)
    return net


PROBABILITIES = {
    "softmax": (Net(3, lambda h: h.softmax(1)), CLASSES, nn.CrossEntropyLoss()),
    "softmax by hand": (Net(3, softmax_by_hand), CLASSES, nn.CrossEntropyLoss()),
    "softmax in the loss": (Net(3), CLASSES, lambda o, y: F.cross_entropy(o.softmax(1), y)),
    "sigmoid": (Net(1, lambda h: h.sigmoid()[:, 0]), TRUTH, nn.BCEWithLogitsLoss()),
    "no log": (Net(3, lambda h: h.softmax(1)), CLASSES, nn.NLLLoss()),
    "no log before a divergence": (Net(3, lambda h: h.softmax(1)), torch.full((8, 3), 1 / 3), nn.KLDivLoss()),
}


@pytest.mark.parametrize("model, y, loss", PROBABILITIES.values(), ids=list(PROBABILITIES))
def test_probabilities_for_scores(model, y, loss):
    sick(diagnose(model, (X, y), loss), "double_softmax")


SCORES = {
    "logs": (Net(3, lambda h: h.log_softmax(1)), CLASSES, nn.NLLLoss()),
    "logs, once more": (Net(3, lambda h: h.log_softmax(1)), CLASSES, nn.CrossEntropyLoss()),
    "rows that sum to 1 by chance": (third(), CLASSES, nn.CrossEntropyLoss()),
    "probabilities where they are wanted": (Net(1, lambda h: h.sigmoid()[:, 0]), TRUTH, nn.BCELoss()),
    "scores above zero": (Net(1, lambda h: 0.1 * h.relu()[:, 0]), TRUTH, nn.BCEWithLogitsLoss()),
}


@pytest.mark.parametrize("model, y, loss", SCORES.values(), ids=list(SCORES))
def test_scores(model, y, loss):
    assert "double_softmax" not in diagnose(model, (X, y), loss).causes


def test_scores_without_a_log():
    sick(diagnose(Net(3), (X, CLASSES), nn.NLLLoss()), "scores_for_logs", "doubt")


def test_a_first_loss_above_that_of_equal_chances():
    report = diagnose(Net(3), (100 * X, CLASSES), nn.CrossEntropyLoss())
    sick(report, "initial_loss", "doubt")
    assert f"{math.log(3):.4g}" in report.findings[0].said
    assert "initial_loss" not in diagnose(Net(3), (X, CLASSES), nn.CrossEntropyLoss()).causes


def test_a_loss_that_does_not_see_the_input():
    sick(diagnose(Net(first=torch.zeros_like), (X, CLASSES), nn.CrossEntropyLoss()), "frozen_loss")


def test_a_loss_that_does_not_see_the_target():
    report = diagnose(Net(), (X, CLASSES), lambda o, y: F.cross_entropy(o, torch.zeros_like(y)))
    sick(report, "frozen_loss", "doubt")


def test_a_head_of_zeros_and_equal_targets_are_no_frozen_loss():
    net = Net()
    zeros(net.head)
    quiet(diagnose(net, (X, CLASSES), nn.CrossEntropyLoss()))
    quiet(diagnose(Net(), (X, torch.zeros_like(CLASSES)), nn.CrossEntropyLoss()))


NO_LOSS = {
    "shape (8,)": nn.CrossEntropyLoss(reduction="none"),
    "a float": lambda o, y: F.cross_entropy(o, y).item(),
    "without a graph": lambda o, y: F.cross_entropy(o, y).detach(),
    "dtype int64": lambda o, y: (o.argmax(1) != y).sum(),
}


@pytest.mark.parametrize("what", NO_LOSS)
def test_what_no_backward_can_start_from(what):
    report = diagnose(Net(), (X, CLASSES), NO_LOSS[what])
    assert report.faults[0].cause == "scalar_loss" and what in report.faults[0].said, report


LENGTHS = torch.tensor([3, 9, 5, 2, 7, 10, 4, 6])
REAL = torch.arange(12) < LENGTHS[:, None]
ROWS = torch.randint(1, 9, (8, 12)) * REAL


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 16), nn.Linear(16, 9))


def over_all(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, 1), y.flatten())


class Reads(nn.Module):
    """A regression of what it reads in each place."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, x, mask):
        return self.head(x)[..., 0]


SERIES = torch.randn(8, 12, 4) * REAL[..., None]
PADDED = {
    "the next word": (words(), (ROWS[:, :-1], ROWS[:, 1:]), over_all),
    "a tag for each word": (words(), (ROWS, ROWS % 3), over_all),
    "a mask that nobody uses": (Reads(), (SERIES, REAL.long(), torch.randn(8, 12)), nn.MSELoss()),
}


@pytest.mark.parametrize("model, batch, loss", PADDED.values(), ids=list(PADDED))
def test_padding_that_counts(model, batch, loss):
    report = diagnose(model, batch, loss)
    assert [one.cause for one in report.faults] == ["padded_loss"], report


def masked(out: Tensor, y: Tensor) -> Tensor:
    return (F.cross_entropy(out.mT, y, reduction="none") * (y != 0)).sum() / (y != 0).sum()


UNPADDED = {
    "left out": (words(), (ROWS[:, :-1], ROWS[:, 1:]), lambda o, y: F.cross_entropy(o.mT, y, ignore_index=0)),
    "masked": (words(), (ROWS[:, :-1], ROWS[:, 1:]), masked),
    "-100": (words(), (ROWS, torch.where(REAL, ROWS, -100)), lambda o, y: F.cross_entropy(o.mT, y)),
    "no padding": (words(), (ROWS.clamp(min=1).roll(1, 0), torch.randint(0, 9, (8, 12))), over_all),
    "steps up": (words(), (torch.randint(0, 9, (8, 12)), (~REAL).long()), over_all),
}


@pytest.mark.parametrize("model, batch, loss", UNPADDED.values(), ids=list(UNPADDED))
def test_padding_that_does_not_count(model, batch, loss):
    assert not diagnose(model, batch, loss).faults
