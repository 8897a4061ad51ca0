"""A diagnosis leaves a model, its optimizer and everything around them as they were."""

import collections
import copy
import functools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_utils.diagnosis import diagnose
from course_utils.diagnosis.subject import subject
from course_utils.diagnosis.untouched import untouched
from course_utils.measure import same_storage

X, Y = torch.randn(16, 8), torch.arange(16) % 3


class Busy(nn.Module):
    """Keeps a counter, lists, a state and running statistics, ties two layers and draws random numbers."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.2)
        self.same, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.same.weight = self.first.weight
        self.register_buffer("seen", torch.zeros(2, dtype=torch.long))
        self.calls, self.sizes, self.by_size = 0, [], {"all": [1]}
        self.state = torch.zeros(8)
        self.fails = False

    def forward(self, x):
        self.calls += 1
        self.sizes.append(len(x))
        self.by_size["all"].append(len(x))
        self.by_size.setdefault(len(x), set()).add(self.calls)
        self.seen += 1
        self.state = self.state + x.mean(0)
        self.latest = x.sum()
        hidden = self.drop(self.norm(self.first(x)))
        random.random(), np.random.rand()
        if self.fails and self.calls > 1:
            raise RuntimeError("on purpose")
        return self.head(self.same(hidden).relu())


def busy():
    """Such a model and an optimizer with a state, two steps into training, with gradients."""
    model = Busy()
    model.drop.eval()
    groups = [{"params": [*model.head.parameters()], "lr": 0.01}, {"params": [*model.first.parameters()]}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
    return model, optimizer


def snapshot(model, optimizer):
    """All that a diagnosis could change, as plain data."""
    tensors = dict(model.state_dict(keep_vars=True)) | {"state": model.state}
    return {
        "values": {name: one.detach().clone() for name, one in tensors.items()},
        "objects": {name: id(one) for name, one in tensors.items()},
        "memory": {name: one.data_ptr() for name, one in tensors.items()},
        "versions": {name: one._version for name, one in tensors.items()},
        "gradients": {name: (id(p.grad), copy.copy(p.grad)) for name, p in model.named_parameters()},
        "modes": [module.training for module in model.modules()],
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        "kept": copy.deepcopy((model.calls, model.sizes, model.by_size)),
        "lists": (id(model.sizes), id(model.by_size), id(model.by_size["all"])),
        "names": sorted(vars(model)),
        "state of the optimizer": copy.deepcopy(optimizer.state_dict()),
        "its objects": [id(value) for kept in optimizer.state.values() for value in kept.values()],
        "batch": (X.clone(), X._version, X.grad, X.requires_grad),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "grad mode": torch.is_grad_enabled(),
    }


def same(a, b):
    if isinstance(a, (torch.Tensor, np.ndarray)):
        return bool((a == b).all())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def changed(before, after):
    return [what for what in before if not same(before[what], after[what])]


@pytest.mark.parametrize("fails", [False, True], ids=["", "with an exception"])
def test_a_diagnosis_changes_nothing(fails):
    model, optimizer = busy()
    model.fails, model.calls = fails, 0
    before = snapshot(model, optimizer)
    report = diagnose(model, (X, Y), nn.CrossEntropyLoss(), optimizer)
    assert changed(before, snapshot(model, optimizer)) == []
    assert ("raised" in report.causes) == fails
    assert model.same.weight is model.first.weight
    assert any(p is model.first.weight for group in optimizer.param_groups for p in group["params"])


def test_training_goes_on_as_without_it():
    losses = []
    for looks in (False, True):
        torch.manual_seed(0)
        model, optimizer = busy()
        if looks:
            diagnose(model, (X, Y), nn.CrossEntropyLoss(), optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == losses[1]


def test_a_graph_that_the_reader_holds_can_go_backward_afterwards():
    model, optimizer = busy()
    model.zero_grad()
    twin = copy.deepcopy(model)
    torch.manual_seed(1)
    expected = F.cross_entropy(twin(X), Y)
    torch.manual_seed(1)
    loss = F.cross_entropy(model(X), Y)
    diagnose(model, (X, Y), nn.CrossEntropyLoss(), optimizer)
    for one in (loss, expected):
        one.backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, twin.get_parameter(name).grad), name


def test_an_error_inside_leaves_everything_as_it_was():
    model, optimizer = busy()
    before = snapshot(model, optimizer)
    with pytest.raises(KeyboardInterrupt), untouched(subject(model, (X, Y), F.cross_entropy, optimizer)):
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 5.0
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
        model.eval()
        model.head = nn.Linear(8, 5)
        torch.rand(1), random.random(), np.random.rand()
        raise KeyboardInterrupt
    assert changed(before, snapshot(model, optimizer)) == []


def test_inside_nothing_of_the_reader_s_is_written_to():
    """What is written to is a copy, and tensors that share memory share the copy."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = nn.Parameter(model[0].weight.data)
    view = model[0].weight.detach()[1:]
    row = view.clone()
    with untouched(subject(model, torch.zeros(1, 4), None, None)) as held:
        assert same_storage(model[0].weight, model[1].weight)
        assert not same_storage(model[0].weight, view)
        model[0].weight.data.zero_()
        assert not model[1].weight.any()
        held.reset()
        assert model[1].weight.any()
    assert torch.equal(view, row)
    assert same_storage(model[0].weight, view)
    assert same_storage(model[1].weight, view)


def test_a_loss_with_a_state_is_left_alone_too():
    class Centers(nn.Module):
        def __init__(self):
            super().__init__()
            self.centers, self.calls = nn.Parameter(torch.randn(3, 3)), []

        def forward(self, out, y):
            self.calls.append(len(out))
            return (out - self.centers[y]).square().mean()

    loss, net = Centers(), nn.Linear(8, 3)
    was = loss.centers.detach().clone()
    optimizer = torch.optim.SGD([*net.parameters(), *loss.parameters()], lr=0.1)
    report = diagnose(net, (X, Y), loss, optimizer)
    assert report.faults == []
    assert loss.calls == []
    assert loss.centers.grad is None
    assert torch.equal(loss.centers.detach(), was)


def test_a_batch_that_asks_for_gradients_gets_none():
    x = X.clone().requires_grad_()
    diagnose(nn.Linear(8, 3), (x, Y), nn.CrossEntropyLoss())
    assert x.grad is None
    assert x._version == 0


def test_what_a_loss_function_writes_down_is_as_it_was():
    history, counts = [1.0], {"calls": 3}

    def loss(out, y):
        counts["calls"] += 1
        history.append(F.cross_entropy(out, y).item())
        return F.cross_entropy(out, y)

    diagnose(nn.Linear(8, 3), (X, Y), loss)
    assert (history, counts) == ([1.0], {"calls": 3})


def test_a_batch_with_a_graph_keeps_it():
    w = torch.ones(4, requires_grad=True)
    x = torch.randn(6, 4) * w
    model = nn.Linear(4, 1)
    report = diagnose(model, (x, torch.randn(6, 1)), nn.functional.mse_loss)
    assert "input_with_graph" in report.causes and w.grad is None
    x.square().sum().backward()
    assert w.grad is not None


class Noisy(nn.Module):
    """Draws from generators of its own."""

    def __init__(self):
        super().__init__()
        self.layer, self.torch, self.python = nn.Linear(4, 1), torch.Generator(), random.Random(0)

    def forward(self, x):
        return self.layer(x) + torch.randn((), generator=self.torch) * self.python.random()


def test_generators_of_the_model_s_own_stand_where_they_stood():
    model = Noisy()
    before = model.torch.get_state(), model.python.getstate()
    diagnose(model, (torch.randn(6, 4), torch.randn(6, 1)), nn.functional.mse_loss)
    assert torch.equal(model.torch.get_state(), before[0]) and model.python.getstate() == before[1]


class Trainer:
    """All that a loop may change, and ways to write that loop."""

    def __init__(self, model):
        self.model, self.head = model, nn.Linear(8, 3)
        parameters = [*model.parameters(), *self.head.parameters()]
        self.optimizers = {"all": torch.optim.Adam(parameters, lr=0.1)}
        self.memory, self.losses, self.steps = collections.deque([1, 2, 3], maxlen=4), [], 0
        self.average, self.by_hand = torch.zeros(()), torch.ones(3, requires_grad=True)
        self.numbers, self.shown = np.random.default_rng(0), np.zeros(2)
        self.shares_memory = torch.from_numpy(self.shown)

    def fit(self):
        for _ in range(3):
            self.optimizers["all"].zero_grad()
            loss = F.cross_entropy(self.head(self.model(X)) * self.by_hand, Y)
            loss.backward()
            self.optimizers["all"].step()
            self.memory.append(loss.item())
            self.losses.append(loss.item())
            self.steps += 1
            self.average.mul_(0.9).add_(loss.detach())
            self.shown += self.numbers.random()
            assert float(self.shares_memory[0]) == self.shown[0]

    def kept(self):
        """As plain data."""
        state = copy.deepcopy(self.optimizers["all"].state_dict())
        numbers = [one.tolist() for one in (*self.head.parameters(), self.average, self.shares_memory)]
        counts = list(self.memory), self.memory.maxlen, list(self.losses), self.steps, self.by_hand.grad
        return state, numbers, counts, self.numbers.bit_generator.state


def fit_with(trainer):
    trainer.fit()


WAYS = {
    "method": lambda trainer: trainer.fit,
    "helper": lambda trainer: lambda: fit_with(trainer),
    "partial": lambda trainer: functools.partial(fit_with, trainer),
    "in a list": lambda trainer: functools.partial(lambda trainers: trainers[0].fit(), [trainer]),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
def test_what_a_loop_reaches_is_as_it_was(way):
    model = nn.Linear(8, 8)
    trainer = Trainer(model)
    before = trainer.kept()
    report = diagnose(model, (X, Y), F.cross_entropy, loop=way(trainer))
    assert report.faults == []
    assert trainer.kept() == before


class Sample:
    def __init__(self, x):
        self.x = x


def test_a_batch_that_is_an_object_is_left_alone():
    class Centred(nn.Linear):
        def forward(self, sample):
            sample.x.sub_(sample.x.mean())
            sample.seen = True
            return super().forward(sample.x)

    sample = Sample(X.clone())
    diagnose(Centred(8, 3), (sample, Y), nn.CrossEntropyLoss())
    assert torch.equal(sample.x, X) and list(vars(sample)) == ["x"]
