"""What repairs of training runs share: data made on the spot, a recorded run of the answer, the band in which
healthy runs end."""

import functools
import math
import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import kept
from course_utils.exercise.kits.treated import LossFn, OfOneReport, Treated
from course_utils.exercise.once import done_before
from course_utils.measure.training import Run, record_losses, record_run
from course_utils.wrong_use import public

SEEDS = (0, 1, 2)
STAYS = 97  # a seed that nobody writes into the code
START = ("weights", "rows", "inputs")
LossOf = Callable[[nn.Module], Tensor]


# --- data ----------------------------------------------------------------------------------------------


@public
def two_moons(n: int = 192, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points (n, 2) on two half circles that reach into each other, and which of the two: (n,), 0 or 1."""
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    angle = math.pi * torch.rand(n, generator=random)
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    x = torch.where(y[:, None] == 0, upper, torch.tensor([1.0, 0.5]) - upper)
    return x + 0.15 * torch.randn(n, 2, generator=random), y


def line(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points (n, 1) between -1 and 1, and (n,): `2 * x - 1` with some noise."""
    random = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 1, generator=random) - 1
    return x, 2 * x[:, 0] - 1 + 0.1 * torch.randn(n, generator=random)


@public
def shapes(n: int = 192, seed: int = 0, noise: float = 0.3) -> tuple[Tensor, Tensor]:
    """Images (n, 1, 8, 8), each with a shape somewhere, and which: (n,), 0 a frame, 1 a cross, 2 a
    filled square."""
    x, y = _shapes(n, seed, noise)
    return x.clone(), y.clone()


@functools.cache
def _shapes(n: int, seed: int, noise: float) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    frame, cross, filled = torch.ones(3, 5, 5)
    frame[1:4, 1:4] = 0
    cross[torch.arange(5) != 2] = 0
    cross[:, 2] = 1
    x, y = noise * torch.randn(n, 1, 8, 8, generator=random), torch.arange(n) % 3
    corners = torch.randint(4, (n, 2), generator=random).tolist()
    for image, kind, (top, left) in zip(x, y.tolist(), corners, strict=True):
        image[0, top : top + 5, left : left + 5] += (frame, cross, filled)[kind]
    return x, y


def wave(n: int, seed: int = 0) -> Tensor:
    """A series (n,): the sum of two sines, with some noise."""
    random = torch.Generator().manual_seed(seed)
    t = torch.arange(n) * 0.3 + 6 * torch.rand(1, generator=random)
    return t.sin() + 0.5 * (2.3 * t).sin() + 0.1 * torch.randn(n, generator=random)


def sentences(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of words (n, 12), numbers from 1 to 8, and their lengths (n,); 0 is padding. Most words
    follow from the one before (3 times it and 1, in a circle); one in ten is any."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 13, (n,), generator=random)
    rows = torch.randint(8, (n, 12), generator=random)
    keep = torch.rand(n, 12, generator=random) < 0.9
    for i in range(1, 12):
        rows[:, i] = torch.where(keep[:, i], (3 * rows[:, i - 1] + 1) % 8, rows[:, i])
    return (rows + 1) * (torch.arange(12) < lengths[:, None]), lengths


def small(_: expect.Given) -> nn.Module:
    """The network of most repairs, for `shapes`."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))


def trained(
    model: nn.Module,
    loss_fn: LossFn,
    x: Tensor,
    y: Tensor,
    kind: type[torch.optim.Optimizer] = torch.optim.SGD,
    *,
    epochs: int = 8,
    size: int = 32,
    **settings: Any,
) -> nn.Module:
    """The model after `epochs` over shuffled batches of `size`, by this optimizer with these settings."""
    optimizer = kind(model.parameters(), **(settings or {"lr": 0.1, "momentum": 0.9}))
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(size):
            optimizer.zero_grad()
            loss_fn(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return model


def healthy(
    network: Callable[[expect.Given], nn.Module] = small, loss_fn: LossFn = F.cross_entropy, **settings: Any
) -> Callable[[expect.Given, int], nn.Module]:
    """A healthy run for a `Case`: a new network, trained on `x` and `y` of the example as `trained` does."""

    def train(t: expect.Given, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return trained(network(t), loss_fn, t.x, t.y, **settings)

    return train


def on_held(data: tuple[Tensor, Tensor] | None = None, loss_fn: LossFn = F.cross_entropy) -> LossOf:
    """The loss of a model on held data; by default on `shapes` that no run has trained with."""
    x, y = data or shapes(300, seed=100)
    return lambda model: loss_fn(model(x.clone()), y)


# --- how a repair is judged -----------------------------------------------------------------------------


@dataclass(eq=False)
class Case:
    """One sick run, and how its repair is judged.

    `setup` makes the data, `call` trains; both may use `seed`. `train` is the healthy run in plain torch: it
    takes the example (its data as attributes) and the seed, and returns a model. `held` is the loss of a
    model on held data; it gets the model in evaluation mode, with gradients off. `room`: so many times as
    high as the worst healthy run a repaired one may end. `short`: what to change in `setup`, and to what, so
    that the last batch is short. `scaled`: the run changes brightness and contrast of its images before the
    model gets them. `seeds`: of the runs that have to end where healthy ones do. The defaults are those
    of `small` on `shapes`.
    """

    exercise: Exercise
    setup: str = "x, y = training_runs.shapes(192)"
    call: str = "model, losses = {name}(x, y, seed)"
    train: Callable[[expect.Given, int], nn.Module] = field(default_factory=healthy)
    held: LossOf = field(default_factory=on_held)
    room: float = 1.5
    short: tuple[str, str] = ("192", "200")
    scaled: bool = False
    seeds: tuple[int, ...] = SEEDS
    _ready: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.call = self.call.replace("{name}", self.exercise.answer_name)

    def given(self, answer: Any, seed: int = 0, setup: str = "") -> expect.Given:
        setup = f"from course_utils.exercise.kits import training_runs\n{setup or self.setup}"
        return expect.given(setup, seed=seed, **{self.exercise.answer_name: answer})

    def treated(
        self,
        answer: Any,
        seed: int = 0,
        setup: str = "",
        drawn: int = 0,
        left_alone: bool = False,
        layers: bool = True,
    ) -> Treated:
        """The answer's run with this seed, recorded; with other data where `setup` makes them. `drawn`: so
        many random numbers have been drawn before. `left_alone`: and the data are left as they came; without,
        what was written to them does not reach what a check computes from them. `layers`: False where losses
        and the trained model are enough. Checks of one report that ask for the same run share it."""
        done, setup = done_before(), setup or self.setup
        key = self, id(answer), seed, setup, drawn, torch.is_anomaly_enabled()
        found = done.get(key)
        if found is None or (layers and not found.layers):
            found = done[key] = self._run(answer, seed, setup, drawn, layers)
        t = found.looked_at(left_alone)
        told = f"`model` is {expect.show(t.model)}"
        expect.true(isinstance(t.model, nn.Module), told, "expected: the trained model, then the rest")
        expect.true(bool(t.run.steps), "no optimizer took a step while it ran", "expected: it trains")
        return t

    def _run(self, answer: Any, seed: int, setup: str, drawn: int, layers: bool) -> OfOneReport:
        t = self.given(answer, seed, setup)
        torch.rand(drawn)
        np.random.rand(drawn)
        random.randbytes(drawn)
        record = record_run if layers else record_losses
        return OfOneReport(t, lambda: record(t.run, self.call), layers, self.scaled)

    def with_a_short_batch(self, answer: Any, seed: int = STAYS, **how: Any) -> Treated:
        """The answer's run on data that batches don't divide, with a seed of its own."""
        return self.treated(answer, seed, self.setup.replace(*self.short), **how)

    def sick(self) -> Run:
        """The starter's own run on these data: a repair leaves as it is there what it is not about."""
        starter, setup = self.exercise.starter_object, self.setup.replace(*self.short)
        return self._once("sick", lambda: (self.given(starter, STAYS, setup).run, self.call))

    def healthy(self, seed: int = 0) -> Run:
        """The healthy run in plain torch, recorded; `result` is its model."""
        return self._once(seed, lambda: (self.train, self.given(None, seed), seed))

    def _once(self, key: Any, call: Callable[[], tuple[Any, ...]]) -> Run:
        if key not in self._ready:
            with torch.random.fork_rng([]), expect.situation():
                self._ready[key] = record_run(*call())
        return self._ready[key]

    def first_gradients(self, answer: Any) -> None:
        """The first step finds the gradients that it finds in the healthy run, told by their norms."""
        steps = self.treated(answer).run.steps[0], self.healthy().steps[0]
        came, wanted = (sorted(norm or 0.0 for norm in step.norms.values()) for step in steps)
        what = "the gradient norms at the first step, from the smallest,"
        expect.equal(came, wanted, what=what, rtol=1e-3)

    def learns(self, why: str, what: str = "the model is") -> None:
        """Gives the exercise its last two checks, which are the same in all repairs: `losses`, `in_band`."""

        def losses(answer: Any) -> None:
            """`losses` holds what each backward was called on, as a Python number

            That is the loss of one batch, in the order of the steps: neither smoothed, nor the mean of an
            epoch, nor computed anew after the step. A tensor is no number: `item` takes it out.
            """
            t = self.with_a_short_batch(answer)
            numbers = isinstance(t.losses, list) and all(isinstance(loss, float) for loss in t.losses)
            told = f"`losses` is {expect.show(t.losses)}"
            expect.true(numbers, told, "expected: a list of Python numbers, the loss of each step")
            told = f"`losses` has {len(t.losses)} entries, and backward was called {len(t.run.losses)} times"
            expect.true(len(t.losses) == len(t.run.losses), told, "expected: one entry for each call")
            expect.equal(t.losses, t.run.losses, what="`losses`", rtol=1e-4, atol=1e-6)

        def learns(answer: Any) -> None:
            self.in_band(answer)

        title = f"After training {what} as good as a healthy run's, with three seeds"
        learns.__doc__ = f"{title}\n\n{why}"
        self.exercise.check(losses)
        self.exercise.check(learns)

    def in_band(self, answer: Any) -> None:
        """After training, the loss of the returned model on held data is where healthy runs end."""
        ends = sorted(self.loss(self.healthy(seed).result) for seed in self.seeds)
        top = self.room * ends[-1]
        for seed in self.seeds:
            loss = self.loss(self.treated(answer, seed, layers=False).model)
            told = f"on held data the returned model has a loss of {loss:.4g}"
            most = f"at most {top:.2g}. Healthy runs end between {ends[0]:.2g} and {ends[-1]:.2g}"
            expect.true(loss <= top, told, f"expected: {most}")  # not so for NaN

    def loss(self, model: nn.Module, mode: bool = False) -> float:
        model.train(mode)
        try:
            with torch.no_grad():
                return float(self.held(model))
        except Exception as error:
            told = f"the returned model, called on held data, raised `{type(error).__name__}: {error}`"
            raise expect.Mismatch(told, "expected: it takes batches as in training") from error

    def same_in_both_modes(self, model: nn.Module) -> None:
        """Without a dropout or a norm, a model computes in evaluation mode what it was trained to compute."""
        if not any(isinstance(layer, kept.MODAL) for layer in model.modules()):
            training, evaluation = self.loss(model, True), self.loss(model)
            told = f"on held data the returned model has a loss of {training:.4g} in training mode, and of"
            told += f" {evaluation:.4g} in evaluation mode, though none of its layers depends on the mode"
            alike = math.isclose(training, evaluation, rel_tol=1e-4, abs_tol=1e-6)
            expect.true(alike or training != training, told, "expected: it computes the same in both modes")

    def stays(
        self,
        answer: Any,
        *,
        but: Iterable[str] = (),
        free: Iterable[str] = (),
        start: Collection[str] = START,
        loss: bool = True,
        gradients: bool = True,
    ) -> Treated:
        """What the repair is not about is as in the starter, with a seed of its own and a short last batch:
        the data, the layers that train, what is trained of them, the batches, the number of steps, the
        optimizer and its settings; gradients are cleared; the seed decides all; a model without modes has
        none. Returns the run.

        `but`: classes of layers that a repair may add or drop. `free`: settings of the optimizer that it may
        change (`"lr"`). `start`: what the seed decides as in the starter: the first `"weights"`, the first
        batch (`"rows"`), and with these, what each layer gets of it (`"inputs"`) and, with `loss`, its loss.
        `gradients`: False where another check says what a step finds.
        """
        t, sick = self.with_a_short_batch(answer, left_alone=True), self.sick()
        kept.same_layers(t.run, t.model, sick, but)
        kept.same_shapes(t.run, t.model, sick)
        kept.same_steps(t.run, sick, free)
        batches = [kept.batches(r, t.x if self.scaled else None) for r in (t.run, sick)]
        kept.same_batches(*batches)
        kept.same_parameters(t.run, sick, but)
        kept.same_start(t.run, sick, batches, start, but)
        if "inputs" in start and loss:
            wanted = sick.losses[0]
            like = {"the sum over the batch, not its mean": wanted * len(batches[0][0])}
            expect.equal(t.run.losses[0], wanted, what="the loss of the first batch", rtol=1e-4, like=like)
        if gradients and not any(sick.uncleared):
            t.cleared()
        again = self.with_a_short_batch(answer, drawn=3, layers=False).run.losses
        expect.equal(again, t.run.losses, what="the losses of a second run with the same seed", rtol=1e-4)
        if "rows" not in start:
            one, other = (self.treated(answer, seed).run.trained[0].input for seed in SEEDS[:2])
            told = "with seeds {} and {} the first batch holds the same rows in the same order".format(*SEEDS)
            expect.true(not one.equal(other), told, "expected: the seed decides the order")
        self.same_in_both_modes(t.model)
        return t
