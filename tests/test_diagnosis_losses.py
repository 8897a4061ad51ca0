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
    for truth in (torch.ones(8, 1), torch.zeros(8, 1)):  # a probability stays one
        assert not diagnose(Net(1, torch.sigmoid), (X, truth), nn.BCELoss()).unseen


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


class Calls(nn.Module):
    """Calls a function with itself and its inputs."""

    def __init__(self, forward, inner: int = 4, out: int = 3, **modules):
        super().__init__()
        self.head = nn.Linear(inner, out)
        self.calls = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs):
        return self.calls(self, *inputs)


def trained(model: nn.Module, *inputs, y: Tensor = CLASSES, loss=None) -> Report:
    return diagnose(model, (*inputs, y), loss or nn.CrossEntropyLoss())


STEPS = torch.randn(8, 5, 4)
TOKENS = torch.randint(0, 9, (8, 5))
MIXED = {
    "an LSTM": (Calls(lambda m, x: m.head(m.rnn(x)[0].mean(1)), rnn=nn.LSTM(4, 4)), STEPS),
    "its last step": (Calls(lambda m, x: m.head(m.rnn(x)[0][:, -1]), rnn=nn.LSTM(4, 4)), STEPS),
    "attention": (
        Calls(lambda m, x: m.head(m.mix(x).mean(1)), mix=nn.TransformerEncoderLayer(4, 2, 8)),
        STEPS,
    ),
    "view": (Calls(lambda m, x: m.head(x.view(5, 8, 4).mean(0))), STEPS),
    "softmax over dimension 0": (Calls(lambda m, x: m.head(x.softmax(0))), X),
    "a norm by hand": (Calls(lambda m, x: m.head((x - x.mean(0)) / x.std(0))), X),
    "tokens": (Calls(lambda m, i: m.head(m.e(i).softmax(0).mean(1)), e=nn.Embedding(9, 4)), TOKENS),
}


@pytest.mark.parametrize("model, x", MIXED.values(), ids=list(MIXED))
def test_examples_that_are_mixed(model, x):
    sick(trained(model, x), "mixed_examples")


def test_where_examples_are_first_mixed():
    model, x = MIXED["an LSTM"]
    assert "first seen in what comes out of `rnn`" in trained(model, x).findings[0].evidence


def test_examples_in_a_dictionary():
    def forward(model, batch):
        return {"scores": model.head(batch["x"] - batch["x"].mean(0)), "seen": torch.tensor(1)}

    report = trained(Calls(forward), {"x": X, "n": 3}, loss=lambda o, y: F.cross_entropy(o["scores"], y))
    sick(report, "mixed_examples")


def packed(model, x, lengths):
    rows = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    return model.head(nn.utils.rnn.pad_packed_sequence(model.rnn(rows)[0], batch_first=True)[0].sum(1))


FIRST = nn.LSTM(4, 4, batch_first=True)
LENGTHS_SORTED = torch.tensor([5, 5, 4, 3, 3, 2, 1, 1])
APART = {
    "batch_first": (Calls(lambda m, x: m.head(m.rnn(x)[0].mean(1)), rnn=FIRST), STEPS),
    "packed": (Calls(packed, rnn=FIRST), STEPS, LENGTHS_SORTED),
    "rounding": (Calls(lambda m, x: m.head((x - x.max()).softmax(1))), X),
    "attention": (
        Calls(
            lambda m, x: m.head(m.mix(x).mean(1)), mix=nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        ),
        STEPS,
    ),
}


@pytest.mark.parametrize("given", APART.values(), ids=list(APART))
def test_examples_that_are_kept_apart(given):
    model, *x = given
    report = trained(model, *x)
    assert "mixed_examples" not in report.causes and not report.unseen, report


def test_rows_that_are_one_in_the_output():
    """Time and examples lie in one dimension there, in either order: one of the two is kept apart."""

    def flat(over, **how):
        rnn = nn.LSTM(4, 4, **how)
        return Calls(lambda m, x: m.head(m.rnn(x)[0]).flatten(0, 1).log_softmax(over), rnn=rnn)

    y = torch.arange(40) % 3
    for model in (flat(1), flat(1, batch_first=True)):
        report = trained(model, STEPS, y=y, loss=nn.NLLLoss())
        assert report.causes == [] and not report.unseen, report
    sick(trained(flat(0), STEPS, y=y, loss=lambda o, y: -o[range(40), y].mean()), "mixed_examples")


class Reads(nn.Module):
    """A model of language, which is given its words as labels too and returns its loss."""

    def __init__(self, mixes: bool = False, blind: bool = False):
        super().__init__()
        self.table, self.head, self.mixes, self.blind = nn.Embedding(9, 8), nn.Linear(8, 9), mixes, blind

    def forward(self, input_ids, labels):
        h = self.table(torch.zeros_like(input_ids) if self.blind else input_ids)
        logits = self.head(h - h.mean(0) if self.mixes else h)
        return {
            "loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()),
            "logits": logits,
        }


def test_labels_that_are_what_the_model_reads():
    batch = {"input_ids": TOKENS, "labels": TOKENS}
    report = diagnose(Reads(), batch)
    assert report.causes == [] and not report.unseen, report
    sick(diagnose(Reads(mixes=True), batch), "mixed_examples", "doubt")  # dimension 1 may be the examples
    sick(diagnose(Reads(blind=True), batch), "frozen_loss")


def test_sequences_along_dimension_1():
    """Right where the targets say so; a doubt where they don't tell."""
    model = Calls(lambda m, x: m.head(m.rnn(x)[0].mean(0)), rnn=nn.LSTM(4, 4))
    quiet(trained(model, STEPS, y=torch.arange(5) % 3))
    each = Calls(lambda m, x: m.head(m.rnn(x)[0]).mT, rnn=nn.LSTM(4, 4))
    sick(trained(each, STEPS, y=TOKENS % 3), "mixed_examples", "doubt")


def test_examples_that_are_compared_on_purpose():
    """Without targets nothing says that it isn't meant."""
    model = Calls(lambda m, x: m.head(x) - m.head(x.roll(1, 0)))
    report = diagnose(model, (X,), lambda out: (1 - out.abs()).relu().mean())
    sick(report, "mixed_examples", "doubt")


def near(m, x):
    """Each example gets something of those that are like it."""
    h = m.head(x)
    return (h @ h.mT).softmax(1) @ h


def apart(m, x):
    h = m.head(x)
    return (h[:, None] - h[None]).square().sum(1)


@pytest.mark.parametrize("forward", [near, apart])
def test_examples_that_are_compared_on_purpose_and_have_targets(forward):
    sick(trained(Calls(forward), X), "mixed_examples", "doubt")


def test_examples_that_cannot_be_compared():
    assert "this batch has one" in trained(Net(), X[:1], y=CLASSES[:1]).unseen[0]
    graph = Calls(lambda m, x, a: m.head(a @ x))
    assert "belong together" in trained(graph, X, torch.rand(8, 8)).unseen[0]
    assert "the same" in trained(Net(), X[:1].expand(8, 4)).unseen[0]


def test_a_batch_that_comes_out_of_a_graph():
    assert [one.cause for one in trained(Net(), nn.Linear(4, 4)(X)).faults] == ["input_with_graph"]
    sick(trained(Net(), X.clone().requires_grad_()), "input_with_graph", "note")


def test_one_norm_for_inputs_of_two_kinds():
    def forward(model, x):
        return model.head(model.norm(x) + model.norm(5 * x + 9))

    sick(trained(Calls(forward, norm=nn.BatchNorm1d(4)), X), "norm_used_twice")
    quiet(trained(Calls(forward, norm=nn.LayerNorm(4)), X))
    alike = Calls(lambda m, x: m.head(m.norm(x) * m.norm(x.roll(1, 0) + 0.1)), norm=nn.BatchNorm1d(4))
    assert "norm_used_twice" not in trained(alike, X).causes


def body() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())


def test_a_model_in_evaluation_mode():
    report = trained(nn.Sequential(body(), Net()).eval(), X)
    sick(report, "evaluation_mode", "doubt")
    assert report.findings[0].evidence == ["1 BatchNorm1d", "1 Dropout"]
    sick(trained(Net().eval(), X), "evaluation_mode", "note")


@pytest.mark.parametrize("at, rank", [(1, "note"), (2, "doubt")])
def test_a_layer_in_another_mode(at, rank):
    model = nn.Sequential(body(), Net())
    model[0][at].eval()
    sick(trained(model, X), "evaluation_mode", rank)


def test_modes_that_are_meant():
    frozen = body().requires_grad_(False).eval()
    quiet(trained(nn.Sequential(frozen, Net()), X))
    norm = body()
    norm[1].eval().requires_grad_(False)
    quiet(trained(nn.Sequential(norm, Net()), X))


def attends(model, x):
    return model.head(F.scaled_dot_product_attention(x, x, x, dropout_p=0.5).mean(1))


def norms(model, x):
    norm = model.norm
    return model.head(F.batch_norm(x, norm.running_mean, norm.running_var, training=True))


class Moves(Net):
    """Its own running mean moves in every mode."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.head(x - self.mean)


IN_TRAINING = {
    "F.dropout": (Calls(lambda m, x: m.head(F.dropout(x))), X),
    "dropout_p": (Calls(attends), STEPS),
    "dropout in a list": (Calls(lambda m, x: m.head(m.own[0](x)), own=[nn.Dropout()]), X),
    "F.batch_norm": (Calls(norms, norm=nn.BatchNorm1d(4, affine=False)), X),
    "a mean by hand": (Moves(), X),
}


@pytest.mark.parametrize("model, x", IN_TRAINING.values(), ids=list(IN_TRAINING))
def test_what_goes_on_in_evaluation_mode(model, x):
    sick(trained(model, x), "training_in_eval")


def test_what_stops_in_evaluation_mode():
    quiet(trained(Calls(lambda m, x: m.head(F.dropout(x, 0.5, m.training))), X))
    quiet(trained(nn.Sequential(body(), Net()), X))
    noise = Calls(lambda m, x: m.head(x + 0.1 * torch.randn_like(x)))
    sick(trained(noise, X), "training_in_eval", "note")


def test_a_frozen_part_that_learns_its_statistics():
    sick(trained(nn.Sequential(body().requires_grad_(False), body(), Net()), X), "thawed_batch_norm")
    quiet(trained(nn.Sequential(body().requires_grad_(False).eval(), body(), Net()), X))
    weights = body()
    weights[1].requires_grad_(False)
    quiet(trained(nn.Sequential(weights, Net()), X))


def test_values_that_are_needed_on_the_host():
    def forward(model, x):
        if x.sum().item() > 1e9:
            return None
        return model.head(x)

    report = trained(Calls(forward), X)
    sick(report, "hidden_syncs", "note")
    (line,) = report.findings[0].evidence
    assert "x.sum().item()" in line
    quiet(trained(Net(), X))
