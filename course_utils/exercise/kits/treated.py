"""A run of an answer that trains, recorded, and what a check of a repair asks of it."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from course_utils.exercise import expect
from course_utils.exercise.given import SHOWN
from course_utils.exercise.kits import kept
from course_utils.measure.training import Forward, Run

LossFn = Callable[[Any, Tensor], Tensor]


@dataclass(eq=False)
class Treated:
    """An example in which the answer has trained: its names, what was recorded, and the returned model."""

    given: expect.Given
    run: Run
    model: nn.Module
    scaled: bool = False  # as in a `Case`

    def __getattr__(self, name: str) -> Any:
        return getattr(self.given, name)

    def batches(self) -> Iterator[tuple[Forward, Tensor, float]]:
        """Each training forward, the places of its rows in `x`, and the loss that backward was called on."""
        for forward, loss in zip(self.run.trained, self.run.losses, strict=False):
            yield forward, self.places(forward, "x"), loss

    def places(self, forward: Forward, name: str) -> Tensor:
        """The places that the rows of a forward's input have in the data of this name."""
        data = getattr(self.given, name)
        return kept.nearest(forward, data, name)[0] if self.scaled else kept.rows_of(forward, data, name)

    def own_losses(self, loss_fn: LossFn = F.cross_entropy) -> None:
        """Each loss that backward is called on is that of the model's output and its rows' own targets."""
        for forward, rows, loss in self.batches():
            wanted, what = loss_fn(forward.output, self.y[rows]).item(), f"the loss of step {forward.step}"
            like = {"the sum over the batch, not its mean": wanted * len(rows)}
            expect.equal(loss, wanted, what=what, rtol=1e-4, atol=1e-6, like=like)

    def own_gradients(self) -> None:
        """Each step finds a gradient of every parameter of the model, and it is that of its own batch."""
        self.cleared()
        names = kept.names_of(self.model)
        for number, step in enumerate(self.run.steps):
            for p, name in names.items():
                told = f"at step {number} the optimizer does not hold `{name}` of the returned model"
                expect.true(p in step.norms, told, "expected: all parameters of the model")
                told = f"at step {number} the gradient of `{name}` is None or zeros"
                expect.true(bool(step.norms[p]), told, "expected: that of the batch's loss")

    def cleared(self) -> None:
        """No backward adds to a gradient that a step has used."""
        names = kept.names_of(self.model)
        for number, uncleared in enumerate(self.run.uncleared):
            for p, norm in uncleared.items():
                told = f"backward {number} adds to a gradient that a step has used already: that of"
                told += f" `{names.get(p, 'a parameter')}`, with a norm of {norm:.3g}"
                raise expect.Mismatch(told, "expected: `.grad` is None or zeros then")

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

    def validated(self, size: int, in_order: bool = True) -> list[Tensor]:
        """What the model returned for the rows of `x_val` after each epoch, by their order there, called on
        all of them in batches of `size`. `in_order`: and called on them in this order."""
        found, epoch = [], -(-len(self.x) // 32)
        for step in range(epoch, len(self.run.steps) + 1, epoch):
            made = [f for f in self.run.evaluated if f.step == step]
            sizes = [len(part) for part in self.x_val.split(size)]
            what = f"the list of sizes of the validation batches after step {step}"
            expect.equal([len(f.output) for f in made], sizes, what=what)
            rows = torch.cat([self.places(f, "x_val") for f in made])
            order = rows.argsort()
            told = f"after step {step}, the rows of the validation are not those of `x_val`, each once"
            expect.true(rows[order].equal(torch.arange(len(rows))), told, "expected: all of `x_val`")
            if in_order:
                expect.equal(rows, torch.arange(len(rows)), what=f"the rows of `x_val` after step {step}")
            found.append(torch.cat([f.output for f in made])[order])
        return found


class OfOneReport:
    """A run that several checks look at, each as if it were its own. `given`: the example; `train` runs the
    answer in it; `layers`: whether what its layers did was recorded."""

    def __init__(self, given: expect.Given, train: Callable[[], Run], layers: bool, scaled: bool) -> None:
        self.layers = layers
        data = {name: value for name, value in given._names.items() if isinstance(value, Tensor)}
        as_they_came = {name: value.clone() for name, value in data.items()}
        run, self._touched = None, None
        try:
            with contextlib.ExitStack() as stack:
                for name, value in data.items():
                    stack.enter_context(expect.left_alone(value, what=f"`{name}`"))
                run = train()
        except expect.Mismatch as error:
            if run is None:
                raise
            self._touched = error
        given._names.update(as_they_came)
        self._treated = Treated(given, run, given.model, scaled)
        self._shown = SHOWN.get()
        # The next run of the answer may fill the same list again, and train the same model.
        self._names = _lists_of_its_own(given._names)
        model = given.model if isinstance(given.model, nn.Module) else nn.Module()
        self._modes = [(module, module.training) for module in model.modules()]
        leaves = [t for t in (*model.parameters(), *model.buffers()) if t.is_leaf and not is_lazy(t)]
        self._leaves = [(t, t.detach().clone(), None if t.grad is None else t.grad.clone()) for t in leaves]

    def looked_at(self, left_alone: bool) -> Treated:
        """The run, with all as it was after it. `left_alone`: raises where the answer wrote to its data."""
        if left_alone and self._touched is not None:
            raise self._touched
        SHOWN.set(self._shown)
        self._treated.given._names.update(_lists_of_its_own(self._names))
        for module, training in self._modes:
            module.training = training
        for leaf, was, grad in self._leaves:
            if not torch.equal(leaf, was):
                leaf.detach().copy_(was)
            leaf.grad = None if grad is None else grad.clone()
        return self._treated


def _lists_of_its_own(names: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if type(value) is list else value for name, value in names.items()}
