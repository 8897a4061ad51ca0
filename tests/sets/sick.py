"""The faults of lesson 07, each in a small transformer, a small convolutional and a small recurrent net.

Those that are in the training loop come with a model that is healthy, and with the loop. What tools like this
one are compared on is in `sick_fourteen`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import Optimizer

from tests.sets import Given, Sick

WIDTH, CLASSES, BATCH = 16, 3, 16


SICK: dict[str, Sick] = {}


class Reader(nn.Module):
    """A transformer of two layers over rows of words: the mean of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(24, WIDTH), nn.Parameter(torch.randn(10, WIDTH) / 5)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.layers(self.embed(ids) + self.place).mean(1)


def seer() -> nn.Sequential:
    """Two convolutions over images."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, WIDTH, 3, stride=2, bias=False),
        nn.BatchNorm2d(WIDTH),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class Hearer(nn.Module):
    """A GRU over series: its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.norm = nn.GRU(6, WIDTH, 2, batch_first=True, dropout=0.1), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.gru(x)[1][-1])


@dataclass
class Data:
    """Three batches of 16 examples, and as many to validate with."""

    x: Tensor
    y: Tensor

    @property
    def batch(self) -> tuple[Tensor, Tensor]:
        return self.x[:BATCH], self.y[:BATCH]

    @property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.x[:48].split(BATCH), self.y[:48].split(BATCH), strict=True))

    @property
    def held(self) -> tuple[Tensor, Tensor]:
        return self.x[48:], self.y[48:]


def _words() -> Data:
    ids = torch.randint(24, (96, 10))
    return Data(ids, ids[:, 0] % CLASSES)


def _pictures() -> Data:
    x, y = torch.randn(96, 1, 8, 8), torch.randint(CLASSES, (96,))
    for picture, kind in zip(x, y.tolist(), strict=True):
        picture[0, 2 * kind : 2 * kind + 3] += 2
    return Data(x, y)


def _series() -> Data:
    x = torch.randn(96, 9, 6)
    return Data(x, x[:, -3:, :CLASSES].mean(1).argmax(1))


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Data]]] = {
    "transformer": (Reader, _words),
    "convolutional": (seer, _pictures),
    "recurrent": (Hearer, _series),
}


class Net(nn.Module):
    """A body, something between, and a head."""

    def __init__(self, body: nn.Module, between: nn.Module | None = None, classes: int = CLASSES) -> None:
        super().__init__()
        self.body, self.between = body, between or nn.Identity()
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self.body(x)))


def adam(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def sick(plant: Callable[[str, nn.Module, Data], Given]) -> Callable[[str, nn.Module, Data], Given]:
    """The function plants the fault that it is called after; it is given the kind of the net."""
    for kind, (body, data) in NETS.items():

        def make(body: Callable[[], nn.Module] = body, data: Any = data, kind: str = kind) -> Given:
            torch.manual_seed(0)
            return plant(kind, body(), data())

        SICK[f"{plant.__name__}-{kind}"] = Sick(plant.__name__, make)
    return plant


def given(model: nn.Module, data: Data, **other: Any) -> Given:
    return Given(model, data.batch, **{"loss_fn": F.cross_entropy, "optimizer": adam(model)} | other)


# --- in the model or the loss -----------------------------------------------------------------------


@sick
def broadcast_loss(kind: str, body: nn.Module, data: Data) -> Given:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return (out - y).abs().mean() if kind == "recurrent" else ((out - y) ** 2).mean()

    data.y = data.y + torch.randn(len(data.y)) / 5
    return given(Net(body, classes=1), data, loss_fn=F.mse_loss if kind == "convolutional" else loss)


@sick
def double_softmax(kind: str, body: nn.Module, data: Data) -> Given:
    if kind == "recurrent":
        model: nn.Module = Net(body)
        return given(model, data, loss_fn=lambda out, y: F.cross_entropy(torch.softmax(out, -1), y))
    model = nn.Sequential(Net(body), nn.Softmax(dim=1))
    return given(model, data, loss_fn=nn.CrossEntropyLoss())


@sick
def cut_graph(kind: str, body: nn.Module, data: Data) -> Given:
    class UnitLength(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            if kind == "transformer":
                array = h.detach().numpy()
                return torch.tensor(array / np.linalg.norm(array, axis=1, keepdims=True))
            if kind == "convolutional":
                return F.normalize(h.data, dim=1)
            with torch.no_grad():
                return F.normalize(h, dim=1)

    return given(Net(body, UnitLength()), data)


@sick
def list_of_layers(kind: str, body: nn.Module, data: Data) -> Given:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)]
            self.blocks = {
                "transformer": blocks,
                "convolutional": dict(enumerate(blocks)),
                "recurrent": [tuple(blocks[:2]), tuple(blocks[2:])],
            }[kind]

        def forward(self, h: Tensor) -> Tensor:
            blocks = self.blocks.values() if isinstance(self.blocks, dict) else self.blocks
            for block in blocks:
                for layer in block if isinstance(block, tuple) else (block,):
                    h = layer(h)
            return h

    return given(Net(body, Deep()), data)


@sick
def dead_relus(kind: str, body: nn.Module, data: Data) -> Given:
    hidden = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH), nn.ReLU())
    model = Net(body, hidden)
    for layer in [*hidden, model.head]:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.constant_(layer.bias, -6.0 if kind == "transformer" else -10.0)
    return given(model, data)


@sick
def nan_loss(kind: str, body: nn.Module, data: Data) -> Given:
    class Scaled(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            h = h - h.mean(dim=1, keepdim=True)
            std = h.square().mean(dim=1, keepdim=True).sqrt()
            return torch.where(std == 0, 0.0, h / std)

    class Dark(nn.Module):
        """The features of the first example are all the same."""

        def forward(self, h: Tensor) -> Tensor:
            return h * (torch.arange(len(h)) > 0)[:, None]

    return given(Net(body, nn.Sequential(Dark(), Scaled(), nn.ReLU())), data)


@sick
def overwritten_activation(kind: str, body: nn.Module, data: Data) -> Given:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(body, nn.Linear(WIDTH, WIDTH))
            act = nn.ELU(inplace=True) if kind == "recurrent" else nn.ReLU(inplace=True)
            self.classifier = nn.Sequential(act, nn.Linear(WIDTH, CLASSES))
            self.decoder = nn.Linear(WIDTH, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            code = self.encoder(x)
            scores = self.classifier(code)
            return scores, self.decoder(code)

    def loss(out: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> Tensor:
        (scores, drawn), (y, pixels) = out, wanted
        return F.cross_entropy(scores, y) + 5 * F.mse_loss(drawn, pixels)

    x, y = data.batch
    pixels = x.flatten(1)[:, :8] / x.abs().max()
    model = TwoHeads()
    return Given(model, (x, (y, pixels)), loss, adam(model))


@sick
def carried_state(kind: str, body: nn.Module, data: Data) -> Given:
    class Memory(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.GRUCell(WIDTH, WIDTH) if kind == "recurrent" else nn.Linear(WIDTH, WIDTH)
            self.state: Tensor | None = None

        def forward(self, h: Tensor) -> Tensor:
            if kind == "recurrent":
                self.state = self.mix(h, self.state)
            else:
                before = torch.zeros_like(h) if self.state is None else self.state
                self.state = torch.tanh(self.mix(h) + before)
            return self.state

    return given(Net(body, Memory()), data)


@sick
def padded_loss(kind: str, body: nn.Module, data: Data) -> Given:
    class Following(nn.Module):
        """Predicts the next word from the words so far."""

        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(24, WIDTH), nn.Linear(WIDTH, 24)
            self.mix: nn.Module = {
                "transformer": nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.0, batch_first=True),
                "convolutional": nn.Conv1d(WIDTH, WIDTH, 3),
                "recurrent": nn.GRU(WIDTH, WIDTH, batch_first=True),
            }[kind]

        def forward(self, ids: Tensor) -> Tensor:
            h = self.embed(ids)
            if kind == "transformer":
                later = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
                return self.head(self.mix(h, later, is_causal=True))
            if kind == "convolutional":
                return self.head(self.mix(F.pad(h.mT, (2, 0))).mT.relu())
            return self.head(self.mix(h)[0])

    def loss(scores: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), y.flatten())

    rows = torch.randint(1, 24, (BATCH, 20))
    rows[torch.arange(20) >= torch.randint(3, 13, (BATCH, 1))] = 0
    model = Following()
    return Given(model, (rows[:, :-1], rows[:, 1:]), loss, adam(model))


@sick
def decayed_norms(kind: str, body: nn.Module, data: Data) -> Given:
    model = Net(body, nn.Sequential(nn.LayerNorm(WIDTH), nn.ReLU()))
    return given(model, data, optimizer=torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=2.0))


@sick
def stale_optimizer(kind: str, body: nn.Module, data: Data) -> Given:
    model = Net(body, classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.head = nn.Linear(WIDTH, CLASSES)
    return given(model, data, optimizer=optimizer)


@sick
def thawed_batch_norm(kind: str, body: nn.Module, data: Data) -> Given:
    backbone = nn.Sequential(body, nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
    backbone.eval().requires_grad_(False)
    model = Net(backbone, nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU()))
    return given(model.train(), data)


# --- in the loop ------------------------------------------------------------------------------------


def trained(model: nn.Module, optimizer: Optimizer, data: Data, after: Callable[[], None]) -> None:
    """Two healthy epochs, with something after each."""
    for _ in range(2):
        model.train()
        for x, y in data.batches:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        after()


@sick
def missing_zero_grad(kind: str, body: nn.Module, data: Data) -> Given:
    model = Net(body)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop() -> None:
        for x, y in data.batches:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

    return given(model, data, optimizer=optimizer, loop=loop)


@sick
def zeroed_gradients(kind: str, body: nn.Module, data: Data) -> Given:
    model = Net(body)
    optimizer = adam(model)

    def loop() -> None:
        for x, y in data.batches:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.zero_grad(set_to_none=kind == "recurrent")
            optimizer.step()

    return given(model, data, optimizer=optimizer, loop=loop)


@sick
def hasty_scheduler(kind: str, body: nn.Module, data: Data) -> Given:
    model = Net(body)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)

    def loop() -> None:
        for _ in range(3):
            for x, y in data.batches:
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()

    return given(model, data, optimizer=optimizer, loop=loop)


@sick
def growing_history(kind: str, body: nn.Module, data: Data) -> Given:
    model = Net(body)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    total, history = 0.0, []

    def loop() -> object:
        nonlocal total
        for x, y in data.batches:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss)
            total = total + loss
        return history

    return given(model, data, optimizer=optimizer, loop=loop)


@sick
def hoarded_predictions(kind: str, body: nn.Module, data: Data) -> Given:
    model, predictions = Net(body), []
    optimizer = adam(model)

    def validate() -> None:
        model.eval()
        predicted = [model(x).softmax(dim=1) for x in data.held[0].split(BATCH)]
        predictions.append(torch.cat(predicted))

    def loop() -> object:
        trained(model, optimizer, data, validate)
        return torch.stack(predictions)

    return given(model, data, optimizer=optimizer, loop=loop)


@sick
def forgotten_eval(kind: str, body: nn.Module, data: Data) -> Given:
    model = Net(body, nn.Sequential(nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.5)))
    optimizer, losses = adam(model), []

    def validate() -> None:
        x, y = data.held
        with torch.no_grad():
            losses.append(F.cross_entropy(model(x), y).item())

    return given(model, data, optimizer=optimizer, loop=partial(trained, model, optimizer, data, validate))


@sick
def shuffled_labels(kind: str, body: nn.Module, data: Data) -> Given:
    model = Net(body)
    optimizer = adam(model)

    def loop() -> None:
        for _ in range(2):
            xs, ys = data.x[:48][torch.randperm(48)], data.y[:48][torch.randperm(48)]
            for rows in torch.arange(48).split(BATCH):
                loss = F.cross_entropy(model(xs[rows]), ys[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    return given(model, data, optimizer=optimizer, loop=loop)


@sick
def leaking_statistics(kind: str, body: nn.Module, data: Data) -> Given:
    if kind == "transformer":  # what is normalized by all the data is how frequent each word is
        counts = torch.bincount(data.x.flatten(), minlength=24).float()
        data.x = counts.argsort().argsort()[data.x]
    else:
        data.x = (data.x - data.x.mean()) / data.x.std()
    model = Net(body)
    optimizer, losses = adam(model), []

    def validate() -> None:
        model.eval()
        x, y = data.held
        with torch.no_grad():
            losses.append(F.cross_entropy(model(x), y).item())

    return given(model, data, optimizer=optimizer, loop=partial(trained, model, optimizer, data, validate))
