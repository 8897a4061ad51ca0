"""What repairs of training runs share: data made on the spot, a recorded run of the answer, the band in which
healthy runs end."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import kept
from course_utils.measure.training import Forward, Run, record_run

SEEDS = (0, 1, 2)
LossFn = Callable[[Any, Tensor], Tensor]
LossOf = Callable[[nn.Module], Tensor]
_MODAL = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


# --- data ----------------------------------------------------------------------------------------------


def two_moons(n: int = 192, seed: int = 0, noise: float = 0.15) -> tuple[Tensor, Tensor]:
    """Points (n, 2) on two half circles that reach into each other, and which of the two: (n,), 0 or 1."""
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    angle = math.pi * torch.rand(n, generator=random)
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    x = torch.where(y[:, None] == 0, upper, torch.tensor([1.0, 0.5]) - upper)
    return x + noise * torch.randn(n, 2, generator=random), y


def line(n: int = 128, seed: int = 0, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """Points (n, 1) between -1 and 1, and (n,): `2 * x - 1` with some noise."""
    random = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 1, generator=random) - 1
    return x, 2 * x[:, 0] - 1 + noise * torch.randn(n, generator=random)


def shapes(n: int = 192, seed: int = 0, size: int = 8, noise: float = 0.3) -> tuple[Tensor, Tensor]:
    """Images (n, 1, size, size), each with a shape somewhere, and which: (n,), 0 a frame, 1 a cross, 2 a
    filled square."""
    random = torch.Generator().manual_seed(seed)
    frame, cross, filled = torch.ones(3, 5, 5)
    frame[1:4, 1:4] = 0
    cross[torch.arange(5) != 2] = 0
    cross[:, 2] = 1
    x, y = noise * torch.randn(n, 1, size, size, generator=random), torch.arange(n) % 3
    corners = torch.randint(size - 4, (n, 2), generator=random).tolist()
    for image, kind, (top, left) in zip(x, y.tolist(), corners, strict=True):
        image[0, top : top + 5, left : left + 5] += (frame, cross, filled)[kind]
    return x, y


def wave(n: int = 512, seed: int = 0, noise: float = 0.1) -> Tensor:
    """A series (n,): the sum of two sines, with some noise."""
    random = torch.Generator().manual_seed(seed)
    t = torch.arange(n) * 0.3 + 6 * torch.rand(1, generator=random)
    return t.sin() + 0.5 * (2.3 * t).sin() + noise * torch.randn(n, generator=random)


def sentences(n: int = 96, seed: int = 0, longest: int = 12, words: int = 8) -> tuple[Tensor, Tensor]:
    """Rows of words (n, longest), numbers from 1 to `words`, and their lengths (n,); 0 is padding. Most words
    follow from the one before (3 times it and 1, in a circle); one in ten is any."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, longest + 1, (n,), generator=random)
    rows = torch.randint(words, (n, longest), generator=random)
    keep = torch.rand(n, longest, generator=random) < 0.9
    for i in range(1, longest):
        rows[:, i] = torch.where(keep[:, i], (3 * rows[:, i - 1] + 1) % words, rows[:, i])
    return (rows + 1) * (torch.arange(longest) < lengths[:, None]), lengths


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


# --- one run of an answer -------------------------------------------------------------------------------


@dataclass(eq=False)
class Treated:
    """An example in which the answer has trained: its names, what was recorded, and the returned model."""

    given: expect.Given
    run: Run
    model: nn.Module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.given, name)

    def batches(self) -> Iterator[tuple[Forward, Tensor, float]]:
        """Each training forward, the places of its rows in `x`, and the loss that backward was called on."""
        for forward, loss in zip(self.run.trained, self.run.losses, strict=False):
            yield forward, kept.rows_of(forward, self.x), loss

    def own_losses(self, loss_fn: LossFn = F.cross_entropy) -> None:
        """Each loss that backward is called on is that of the model's output and its rows' own targets."""
        for forward, rows, loss in self.batches():
            wanted, what = loss_fn(forward.output, self.y[rows]).item(), f"the loss of step {forward.step}"
            expect.equal(loss, wanted, what=what, rtol=1e-4, atol=1e-6)

    def own_gradients(self) -> None:
        """Each step finds a gradient of every parameter of the model, and it is that of its own batch."""
        names = kept.names_of(self.model)
        for number, uncleared in enumerate(self.run.uncleared):
            for p, norm in uncleared.items():
                told = f"backward {number} adds to a gradient that a step has used already: that of"
                told += f" `{names.get(p, 'a parameter')}`, with a norm of {norm:.3g}"
                raise expect.Mismatch(told, "expected: `.grad` is None or zeros then")
        for number, step in enumerate(self.run.steps):
            for p, name in names.items():
                told = f"at step {number} the optimizer does not hold `{name}` of the returned model"
                expect.true(p in step.norms, told, "expected: all parameters of the model")
                told = f"at step {number} the gradient of `{name}` is None or zeros"
                expect.true(bool(step.norms[p]), told, "expected: that of the batch's loss")

    def modes(self) -> None:
        """Dropout and norms are in training mode where the model trains, and elsewhere in evaluation mode."""
        for forward in self.run.trained + self.run.evaluated:
            when, wanted = ("training",) * 2 if forward.trained else ("validation", "evaluation")
            for layer, training in kept.modes(forward).items():
                mode = "training" if training else "evaluation"
                told = f"in {when}, after {forward.step} steps, {layer} is in {mode} mode"
                expect.true(mode == wanted, told, f"expected: in {wanted} mode")

    def few_graphs(self, during: int, after: int) -> None:
        """So many graphs of earlier forwards exist at most when one begins, and after the run."""
        for number, alive in enumerate(self.run.graphs, 1):
            end = number == len(self.run.graphs)
            most = after if end else during
            when = "the function has returned" if end else f"call {number - 1} of the model begins"
            told = f"when {when}, the graphs of {alive} earlier calls still exist"
            expect.true(alive <= most, told, f"expected: {f'at most {most}' if most else 'none'}")

    def validated(self, size: int, as_it_is: bool = True) -> list[Tensor]:
        """What the model returned for `x_val` after each epoch of six steps, called on all of it in batches
        of `size`. `as_it_is`: and on its rows, in their order."""
        found = []
        for step in range(6, len(self.run.steps) + 1, 6):
            made = [f for f in self.run.evaluated if f.step == step]
            sizes, what = [len(part) for part in self.x_val.split(size)], "the batches of validation"
            expect.equal([len(f.output) for f in made], sizes, what=f"{what} after step {step}")
            if as_it_is:
                rows = torch.cat([kept.rows_of(f, self.x_val, "x_val") for f in made])
                expect.equal(rows, torch.arange(len(rows)), what=f"the rows of `x_val` after step {step}")
            found.append(torch.cat([f.output for f in made]))
        return found


@dataclass(eq=False)
class Case:
    """One sick run, and how its repair is judged.

    `setup` makes the data, `call` trains; both may use `seed`. `train` is the healthy run in plain torch: it
    takes the example (its data as attributes) and the seed, and returns a model. `held` is the loss of a
    model on held data; it gets the model in evaluation mode, with gradients off. `room`: so many times as
    high as the worst healthy run a repaired one may end. The defaults are those of `small` on `shapes`.
    """

    exercise: Exercise
    setup: str = "x, y = runs.shapes(192)"
    call: str = "model, losses = {name}(x, y, seed)"
    train: Callable[[expect.Given, int], nn.Module] = field(default_factory=healthy)
    held: LossOf = field(default_factory=on_held)
    room: float = 1.5
    _ready: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.call = self.call.replace("{name}", self.exercise.answer_name)

    def given(self, answer: Any, seed: int = 0, setup: str = "") -> expect.Given:
        setup = f"from course_utils.exercise.kits import runs\n{setup or self.setup}"
        return expect.given(setup, seed=seed, **{self.exercise.answer_name: answer})

    def treated(self, answer: Any, seed: int = 0, setup: str = "", drawn: int = 0) -> Treated:
        """The answer's run with this seed, recorded; with other data where `setup` makes them. `drawn`: so
        many random numbers have been drawn before."""
        t = self.given(answer, seed, setup)
        torch.rand(drawn)
        with contextlib.ExitStack() as stack:
            for name, value in list(t._names.items()):
                if isinstance(value, Tensor):
                    stack.enter_context(expect.left_alone(value, what=f"`{name}`"))
            run = record_run(t.run, self.call)
        told = f"`model` is {expect.show(t.model)}"
        expect.true(isinstance(t.model, nn.Module), told, "expected: the trained model, then the rest")
        expect.true(bool(run.steps), "no optimizer took a step while it ran", "expected: it trains")
        return Treated(t, run, t.model)

    def sick(self) -> Run:
        """The starter's own run: what a repair leaves as it is, it has as the starter has it."""
        return self._once("sick", lambda: (self.given(self.exercise.starter_object).run, self.call))

    def healthy(self, seed: int = 0) -> Run:
        """The healthy run in plain torch, recorded; `result` is its model."""
        return self._once(seed, lambda: (self.train, self.given(None, seed), seed))

    def _once(self, key: Any, call: Callable[[], tuple[Any, ...]]) -> Run:
        if key not in self._ready:
            with torch.random.fork_rng([]), expect.situation():
                self._ready[key] = record_run(*call())
        return self._ready[key]

    def learns(self, why: str, what: str = "the model is") -> None:
        """Gives the exercise its last check, which is the same in all repairs: `in_band`."""

        def learns(answer: Any) -> None:
            self.in_band(answer)

        title = f"After training {what} as good as a healthy run's, with three seeds"
        learns.__doc__ = f"{title}\n\n{why}"
        self.exercise.check(learns)

    def in_band(self, answer: Any) -> None:
        """After training, the loss of the returned model on held data is where healthy runs end."""
        ends = sorted(self.loss(self.healthy(seed).result) for seed in SEEDS)
        top = self.room * ends[-1]
        for seed in SEEDS:
            t = self.treated(answer, seed)
            try:
                loss = self.loss(t.model)
            except Exception as error:
                told = f"the returned model, called on held data, raised `{type(error).__name__}: {error}`"
                raise expect.Mismatch(told, "expected: it takes batches as in training") from error
            told = f"on held data the returned model has a loss of {loss:.4g}"
            most = f"at most {top:.2g}. Healthy runs end between {ends[0]:.2g} and {ends[-1]:.2g}"
            expect.true(loss <= top, told, f"expected: {most}")  # not so for NaN

    def loss(self, model: nn.Module) -> float:
        model.eval()
        with torch.no_grad():
            return float(self.held(model))

    def stays(
        self,
        answer: Any,
        *,
        but: Iterable[str] = (),
        free: Iterable[str] = (),
        seeded: bool = True,
        loss: bool = True,
    ) -> Treated:
        """What the repair is not about is as in the starter: the layers that train, what is trained of them,
        the batches, the number of steps, the optimizer and its settings; the seed decides all; `losses` are
        those of the steps. Returns the run.

        `but`: classes of layers that a repair may add or drop. `free`: settings of the optimizer that it may
        change (`"lr"`). `seeded`: whether the first batch and the first weights are the starter's too, and,
        with `loss`, the loss of that batch.
        """
        t, sick = self.treated(answer), self.sick()
        kept.same_layers(t.run, t.model, sick, but)
        batches = [[f.input is not None and tuple(f.input.shape) for f in r.trained] for r in (t.run, sick)]
        expect.equal(len(t.run.steps), len(sick.steps), what="the number of optimizer steps")
        for number, (came, wanted) in enumerate(zip(*batches, strict=False)):
            expect.equal(came, wanted, what=f"the shape of training batch {number}")
        kept.same_batches(t.run, sick)
        for number, (came, wanted) in enumerate(zip(t.run.steps, sick.steps, strict=True)):
            kept.same_settings(came, wanted, number, free)
        kept.same_parameters(t.run, sick, but)
        if seeded:
            kept.same_start(t.run.trained[0], sick.trained[0], but)
        if seeded and loss:
            expect.equal(t.run.losses[0], sick.losses[0], what="the loss of the first batch", rtol=1e-4)
        numbers = isinstance(t.losses, list) and all(isinstance(loss, float) for loss in t.losses)
        told = f"`losses` is {expect.show(t.losses)}"
        expect.true(numbers, told, "expected: a list of Python numbers, the loss of each step")
        expect.equal(t.losses, t.run.losses, what="`losses`", rtol=1e-4, atol=1e-6)
        again = self.treated(answer, drawn=3).run.losses
        expect.equal(again, t.run.losses, what="the losses of a second run with the same seed", rtol=1e-4)
        return t
