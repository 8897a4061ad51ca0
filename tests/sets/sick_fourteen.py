"""Fourteen sick models of the kind that tools for this are compared on."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.sets import Given, Make, Sick, listed

_MAKES: dict[str, Make] = {}
sick = listed(_MAKES)


def given(
    model: nn.Module, loss_fn: object = F.cross_entropy, batch: object = None, **other: object
) -> Given:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Given(
        model,
        (torch.randn(16, 12), torch.arange(16) % 3) if batch is None else batch,
        **{"loss_fn": loss_fn, "optimizer": optimizer} | other,
    )


@sick
def list_of_layers() -> Given:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [nn.Linear(12, 12) for _ in range(3)]
            self.head = nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x).relu()
            return self.head(x)

    return given(Net())


@sick
def broadcast_loss() -> Given:
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1))
    return given(model, lambda out, y: ((out - y) ** 2).mean(), (torch.randn(16, 12), torch.randn(16)))


@sick
def double_softmax() -> Given:
    return given(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(dim=-1)))


@sick
def shared_norm() -> Given:
    """One batch norm stands in two places: its running statistics are of neither."""
    norm = nn.BatchNorm2d(8)
    first = nn.Conv2d(1, 8, 3), norm, nn.ReLU()
    second = nn.Conv2d(8, 8, 3, stride=2), norm, nn.ReLU()
    model = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(32, 3))
    return given(model, batch=(255 * torch.rand(16, 1, 8, 8), torch.arange(16) % 3))


@sick
def decayed_norms() -> Given:
    model = nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
    return given(model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=1.0))


@sick
def frozen_weight() -> Given:
    """One weight was frozen for a trial and never thawed; its bias learns."""
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    model[2].weight.requires_grad_(False)
    return given(model)


@sick
def unused_parameter() -> Given:
    """A norm is made and never called."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.norm, self.head = nn.Linear(12, 16), nn.LayerNorm(16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).relu())

    return given(Net())


@sick
def stale_optimizer() -> Given:
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 100))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model[2] = nn.Linear(16, 3)
    return given(model, optimizer=optimizer)


@sick
def cut_graph() -> Given:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(12, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).relu().detach())

    return given(Net())


@sick
def mixed_batch() -> Given:
    """The rows come batch first; the LSTM takes the batch for time."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(6, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0][:, -1])

    return given(Net(), batch=(torch.randn(16, 9, 6), torch.arange(16) % 3))


@sick
def dropout_in_evaluation() -> Given:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(12, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.dropout(self.body(x).relu(), 0.3))

    return given(Net())


@sick
def unmoved() -> Given:
    """The rate was divided by one step too many: `1e-3 * (epochs - epoch) // epochs`."""
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
    return given(model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3 * (10 - 1) // 10))


@sick
def nan_loss() -> Given:
    """The distance of an example to itself is 0, and a root has no finite slope there."""

    class Distances(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(12, 8)

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x)
            return -(h[:, None] - h[None]).square().sum(-1).sqrt()

    def loss(scores: Tensor, y: Tensor) -> Tensor:
        same = (y[:, None] == y[None]).float()
        return F.binary_cross_entropy_with_logits(scores, same)

    return given(Distances(), loss)


@sick
def softmax_over_batch() -> Given:
    """Attention over the features, with its softmax over dimension 0."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weigh, self.head = nn.Linear(12, 12), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x * self.weigh(x).softmax(0))

    return given(Net())


# Where the cause has another name than the model.
_CAUSES = {
    "shared_norm": "norm_used_twice",
    "mixed_batch": "mixed_examples",
    "softmax_over_batch": "mixed_examples",
    "dropout_in_evaluation": "training_in_eval",
}
FOURTEEN = {name: Sick(_CAUSES.get(name, name), make) for name, make in _MAKES.items()}
