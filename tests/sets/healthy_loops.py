"""Healthy training loops that look sick: each docstring says what is meant."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler, swa_utils
from torch.optim.optimizer import Optimizer

from tests.sets import Given, Make, listed

HEALTHY_LOOPS: dict[str, Make] = {}
healthy = listed(HEALTHY_LOOPS)
Loop = Callable[[nn.Module, Optimizer, Tensor, Tensor], object]


def net() -> nn.Sequential:
    hidden = nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)
    return nn.Sequential(*hidden, nn.Linear(16, 3))


def given(loop: Loop, model: nn.Module | None = None, optimizer: Optimizer | None = None) -> Given:
    """A loop over three batches of 16, and the model and the optimizer that it trains."""
    model = model or net()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(48, 12)
    y = x[:, :3].argmax(1)
    return Given(model, (x[:16], y[:16]), F.cross_entropy, optimizer, lambda: loop(model, optimizer, x, y))


def batches(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(x[rows], y[rows]) for rows in torch.randperm(len(x)).split(16)]


def step(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """One step as it is in the textbook; its loss has no graph any more."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


@healthy
def textbook() -> Given:
    """Two epochs, and the losses as numbers."""

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> object:
        return [step(model, optimizer, *batch).item() for _ in range(2) for batch in batches(x, y)]

    return given(loop)


@healthy
def cleared_after_the_step() -> Given:
    """The gradients are cleared at the end of each step, by the model."""

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
        for images, classes in batches(x, y):
            F.cross_entropy(model(images), classes).backward()
            optimizer.step()
            model.zero_grad()

    return given(loop)


@healthy
def cleared_by_hand() -> Given:
    """No `zero_grad` is called: the gradients are taken away one by one."""

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
        for images, classes in batches(x, y):
            F.cross_entropy(model(images), classes).backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad = None

    return given(loop)


@healthy
def accumulated() -> Given:
    """Gradients of four parts of a batch add up on purpose before a step."""

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
        for images, classes in batches(x, y):
            optimizer.zero_grad()
            for part, kinds in zip(images.split(4), classes.split(4), strict=True):
                (F.cross_entropy(model(part), kinds) / 4).backward()
            optimizer.step()

    return given(loop)


@healthy
def accumulated_over_batches() -> Given:
    """A step after every second batch; what is left at the end waits for the next epoch."""

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
        for number, (images, classes) in enumerate(batches(x, y) + batches(x, y)):
            (F.cross_entropy(model(images), classes) / 2).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()

    return given(loop)


@healthy
def clipped() -> Given:
    """Gradients are changed in place between backward and step."""

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
        for images, classes in batches(x, y):
            optimizer.zero_grad()
            F.cross_entropy(model(images), classes).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()

    return given(loop)


@healthy
def scaled() -> Given:
    """A scaler for small floats; on a CPU it is switched off and passes everything on."""

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for images, classes in batches(x, y):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(images).float(), classes)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return given(loop)


@healthy
def rate_of_each_batch() -> Given:
    """A cycle that is meant for batches: it rises and falls over all steps of the run."""

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
        cycle = lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=3, steps_per_epoch=3)
        for _ in range(3):
            for batch in batches(x, y):
                step(model, optimizer, *batch)
                cycle.step()

    return given(loop)


@healthy
def warm_up_and_cosine() -> Given:
    """A function of the number of steps: up in three, then down over a run of a thousand."""

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
        warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
        cosine = lr_scheduler.CosineAnnealingLR(optimizer, 1000)
        schedule = lr_scheduler.SequentialLR(optimizer, [warm, cosine], [3])
        for _ in range(3):
            for batch in batches(x, y):
                step(model, optimizer, *batch)
                schedule.step()

    return given(loop)


@healthy
def rate_of_each_epoch() -> Given:
    """The rate is halved after each epoch, as is meant; an epoch has one batch here."""

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
        schedule = lr_scheduler.StepLR(optimizer, 1, 0.9)
        for _ in range(4):
            step(model, optimizer, x, y)
            schedule.step()

    return given(loop)


@healthy
def rate_of_the_plateau() -> Given:
    """The schedule asks for the validation's loss, after each epoch."""

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
        schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        for _ in range(3):
            model.train()
            for batch in batches(x, y):
                step(model, optimizer, *batch)
            model.eval()
            with torch.no_grad():
                schedule.step(F.cross_entropy(model(x), y))

    return given(loop)


@healthy
def validated() -> Given:
    """After each epoch in evaluation mode without a graph, and back; the losses of both are kept."""

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> object:
        losses, told, predictions = [], [], []
        for _ in range(3):
            model.train()
            losses += [step(model, optimizer, *batch) for batch in batches(x, y)]
            model.eval()
            with torch.inference_mode():
                predictions.append(model(x).softmax(1))
                told.append(F.cross_entropy(model(x), y).item())
        return losses, told, torch.stack(predictions)

    return given(loop)


@healthy
def statistics_made_anew() -> Given:
    """At the end the norms' statistics are made anew: forwards in training mode without a graph."""

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> object:
        averaged = swa_utils.AveragedModel(model)
        for batch in batches(x, y):
            step(model, optimizer, *batch)
            averaged.update_parameters(model)
        swa_utils.update_bn(x.split(16), model)
        return averaged

    return given(loop)


@healthy
def sampled_dropout() -> Given:
    """Predictions with dropout on purpose: many samples of each, to see how sure the net is."""
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> object:
        for batch in batches(x, y):
            step(model, optimizer, *batch)
        model.eval()
        model[2].train()
        with torch.no_grad():
            return torch.stack([model(x).softmax(1) for _ in range(5)]).std(0)

    return given(loop, model)


@healthy
def mixed_up() -> Given:
    """Mixup: each input is mixed with another, and so are their classes."""

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
        for images, classes in batches(x, y) + batches(x, y):
            share, other = 0.7, torch.randperm(len(images))
            scores = model(share * images + (1 - share) * images[other])
            loss = share * F.cross_entropy(scores, classes)
            loss = loss + (1 - share) * F.cross_entropy(scores, classes[other])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return given(loop)


@healthy
def last_losses() -> Given:
    """The last loss is still there with its graph when the loop ends, as a name of its last round is."""
    kept: dict[str, Tensor] = {}

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> object:
        for images, classes in batches(x, y):
            optimizer.zero_grad()
            kept["loss"] = F.cross_entropy(model(images), classes)
            kept["loss"].backward()
            optimizer.step()
        return kept["loss"]

    return given(loop)


@healthy
def chunks_of_a_series() -> Given:
    """Backward goes through two chunks and no farther: the state leaves the graph in between."""

    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1)

        def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
            features, state = self.gru(x, state)
            return self.head(features), state

    model = Forecast()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    series = torch.linspace(0, 20, 33).sin().repeat(4, 1)[..., None]

    def loop() -> None:
        state = None
        for x, y in zip(series[:, :-1].split(8, 1), series[:, 1:].split(8, 1), strict=True):
            out, state = model(x, state)
            optimizer.zero_grad()
            F.mse_loss(out, y).backward()
            optimizer.step()
            state = state.detach()

    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return F.mse_loss(out[0], y)

    return Given(model, (series[:, :8], series[:, 1:9]), loss, optimizer, loop)


@healthy
def adversaries() -> Given:
    """Two nets in turns: the generator's backward leaves gradients in the judge, which clears them itself."""
    judge = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, (0.5, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, (0.5, 0.9))

    def loop() -> None:
        for real in torch.randn(48, 6).split(16):
            fake = model(torch.randn(16, 4))
            of_judge.zero_grad()
            (F.softplus(judge(fake.detach())) + F.softplus(-judge(real))).mean().backward()
            of_judge.step()
            optimizer.zero_grad()
            F.softplus(-judge(fake)).mean().backward()
            optimizer.step()

    return Given(model, torch.randn(16, 4), lambda out: F.softplus(-judge(out)).mean(), optimizer, loop)


@healthy
def closures() -> Given:
    """LBFGS asks for the loss many times in a step."""
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)

    return given(loop, model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4))


@healthy
def gradient_penalty() -> Given:
    """A backward through a gradient: two backwards for each step, one with a graph of its own."""

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
        for images, classes in batches(x, y):
            images = images.clone().requires_grad_()
            loss = F.cross_entropy(model(images), classes)
            (slope,) = torch.autograd.grad(loss, images, create_graph=True)
            optimizer.zero_grad()
            (loss + 0.1 * slope.square().sum()).backward()
            optimizer.step()

    return given(loop)


@healthy
def best_weights() -> Given:
    """The best weights so far are kept as a copy, and put back at the end."""

    def loop(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> object:
        best, least = copy.deepcopy(model.state_dict()), float("inf")
        for batch in itertools.islice(itertools.cycle(batches(x, y)), 6):
            loss = step(model, optimizer, *batch).item()
            if loss < least:
                best, least = copy.deepcopy(model.state_dict()), loss
        model.load_state_dict(best)
        return best

    return given(loop)
