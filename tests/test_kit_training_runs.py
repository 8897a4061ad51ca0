"""Training runs as they are recorded, and what the kit for repairs looks at."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module
from torch.optim import lr_scheduler as schedulers
from torch.optim.optimizer import _global_optimizer_post_hooks
from torch.utils.checkpoint import checkpoint

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import kept, training_runs

ORIGINAL = torch.autograd.backward


def same(model):
    return model


def train(
    x,
    y,
    seed,
    *,
    steps=6,
    lr=0.5,
    momentum=0.0,
    zero=True,
    keep=torch.Tensor.item,
    dropout=0.5,
    start=same,
    least=0,
    anew=False,
):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 2))
    start(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    losses = []
    for batch in (part for _ in range(steps) for part in torch.randperm(len(x)).split(32)):
        if len(batch) <= least:
            continue
        loss = F.cross_entropy(model(x[batch]), y[batch])
        if anew:
            optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
        if zero:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(keep(loss))
    return model, losses


def clean():
    tables = module._global_forward_hooks, module._global_forward_pre_hooks, _global_optimizer_post_hooks
    return torch.autograd.backward is ORIGINAL and not any(tables)


def test_a_run_is_recorded():
    x, y = training_runs.two_moons(32)
    run = measure.record_run(train, x, y, 0)
    model, losses = run.result
    assert run.losses == losses and run.rates == [0.5] * 6 and run.leftovers == [0.0] * 6
    assert list(run.grad_norms) == ["0", "3"]
    assert run.grad_norms["3"][-1] == pytest.approx(
        nn.utils.get_total_norm([p.grad for p in model[3].parameters()])
    )
    assert [f.step for f in run.trained] == list(range(6)) and not run.evaluated
    assert kept.modes(run.forwards[0]) == {"`Dropout(p=0.5)`": True}
    assert torch.equal(kept.scores(run.forwards[0]), run.forwards[0].output)
    assert "6 steps" in str(run) and clean()


def test_gradients_that_nobody_cleared():
    x, y = training_runs.two_moons(32)
    summed = measure.record_run(train, x, y, 0, zero=False)
    assert summed.leftovers[0] == 0 and all(summed.leftovers[1:])
    assert summed.losses == measure.record_run(train, x, y, 0, momentum=1.0).losses


@pytest.mark.parametrize("keep, kept", [(torch.detach, 0), (same, 6)])
def test_graphs_that_are_kept(keep, kept):
    assert measure.record_run(train, *training_runs.two_moons(32), 0, keep=keep).graphs[-1] == kept


def test_nothing_is_left_after_an_exception():
    def fails(x):
        nn.Linear(2, 3)(x)
        nn.Linear(5, 3)(x)

    with pytest.raises(RuntimeError):
        measure.record_run(fails, torch.ones(4, 2))
    assert clean()
    with pytest.raises(TypeError, match="needs a function as `train`"):
        measure.record_run(torch.ones(1))


def test_what_a_layer_hands_to_the_next_is_copied_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.ReLU(inplace=True), nn.Linear(3, 1))
    forward = measure.record_run(model, torch.randn(4, 3)).forwards[0]
    first, tanh, relu, last = forward.layers
    assert forward.input is first.input and first.output is tanh.input and tanh.output is relu.input
    assert relu.output is last.input and last.output is forward.output
    assert relu.output is not relu.input and relu.output.equal(relu.input.relu())  # it wrote in place
    assert relu.input.lt(0).any()


def test_after_which_steps_a_scheduler_was_called():
    def train(made):
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
        scheduler = made(optimizer)
        for step in range(4):
            optimizer.step()
            if step % 2:
                scheduler.step(*([1.0] if made is schedulers.ReduceLROnPlateau else []))

    def both(optimizer):
        warm = schedulers.LinearLR(optimizer)
        return schedulers.SequentialLR(optimizer, [warm, schedulers.ConstantLR(optimizer)], [2])

    before = schedulers.SequentialLR.step, schedulers.LRScheduler.step
    for made in (schedulers.CosineAnnealingWarmRestarts, schedulers.ReduceLROnPlateau, both):
        made = partial(made, T_0=2) if "Warm" in made.__name__ else made
        assert measure.record_run(train, made).scheduled == {2, 4}
    assert before == (schedulers.SequentialLR.step, schedulers.LRScheduler.step)


def test_models_one_after_another():
    body, head = [nn.Linear(2, 4)], nn.Sequential(nn.Linear(4, 2))

    def two(x):
        optimizer = torch.optim.Adam(head.parameters())
        head(body[0](x)).sum().backward()
        optimizer.step()
        head(body[0](x))

    run = measure.record_run(two, torch.ones(3, 2))
    assert list(run.grad_norms) == ["Linear", "Sequential.0"] and all(run.grad_norms["Linear"])
    assert [f.trained for f in run.forwards] == [True, True, False, False]


def sick(x, y, seed):
    return train(x, y, seed, zero=False)


def smoothed(x, y, seed):
    model, losses = train(x, y, seed)
    return model, [(a + b) / 2 for a, b in zip(losses, [losses[0], *losses], strict=False)]


class Skips(nn.Sequential):
    def forward(self, x):
        h = self[1](self[0](x))
        return self[3](h + self[2](h))


class Halves(nn.Sequential):
    def forward(self, x):
        return super().forward(x) / (1 if self.training else 2)


def test_what_stays_and_the_band():
    exercise = Exercise(minutes=1, hints=[], starter_object=sick)
    held = training_runs.on_held(training_runs.two_moons(99, seed=9))
    one = training_runs.Case(exercise, "x, y = training_runs.two_moons(32)", held=held, short=("32", "40"))
    one.train = lambda t, seed: train(t.x, t.y, seed)[0]
    one.stays(train).own_gradients()
    one.in_band(train)
    one.learns("It is healthy.")
    assert exercise.checks[-1].why == "It is healthy."
    for change, told in (
        ({"dropout": 0.1}, r"`Dropout\(p=0.5\)` does not run"),
        ({"steps": 7}, "14 batches train"),
        ({"least": 8}, "6 batches train, and none has 8 rows"),
        ({"anew": True}, "12 optimizers take the steps"),
        ({"momentum": 0.5}, "`momentum` of the optimizer at step 0"),
        ({"start": lambda model: model[3].bias.requires_grad_(False)}, "bias of .* is not trained"),
        (
            {"start": lambda model: nn.init.zeros_(model[3].weight)},
            "the weight of layer 3, .* with this seed",
        ),
        ({"start": lambda model: setattr(model, "__class__", Skips)}, "layer 3, .* gets another input"),
        (
            {"start": lambda model: model[3].register_forward_pre_hook(lambda _, args: (2 * args[0],))},
            "layer 3, .* gets another input",
        ),
    ):
        with expect.situation(), pytest.raises(expect.Mismatch, match=told):
            one.stays(lambda x, y, seed, change=change: train(x, y, seed, **change))
    one.stays(lambda x, y, seed: train(x.flip(0), y.flip(0), seed), start=["weights"])
    with expect.situation(), pytest.raises(expect.Mismatch, match="the weight of layer 0, .* with this seed"):
        one.stays(lambda x, y, seed: train(x, y, 0))
    with expect.situation(), pytest.raises(expect.Mismatch, match="the seed decides"):
        one.stays(lambda x, y, seed: train(x, y, 0), start=())
    for answer, told in (
        (smoothed, r"`losses\[1\]` is"),
        (partial(train, keep=same), "a list of Python numbers"),
    ):
        with expect.situation(), pytest.raises(expect.Mismatch, match=told):
            exercise.checks[-2].function(answer)
    with expect.situation(), pytest.raises(expect.Mismatch, match="other rows"):
        one.stays(lambda x, y, seed: train(x.flip(0), y.flip(0), seed))
    with expect.situation(), pytest.raises(expect.Mismatch, match="different rows"):
        one.stays(lambda x, y, seed: train(x[:20].repeat(2, 1), y[:20].repeat(2), seed), start=["weights"])
    healthy = training_runs.Case(
        Exercise(minutes=1, hints=[], starter_object=train), one.setup, short=one.short
    )
    with expect.situation(), pytest.raises(expect.Mismatch, match="has used already"):
        healthy.stays(sick)
    with expect.situation(), pytest.raises(expect.Mismatch, match="has used already"):
        one.treated(sick).own_gradients()
    with pytest.raises(expect.Mismatch, match="on held data"):
        one.in_band(lambda x, y, seed: train(x, y, seed, lr=1e3))


def test_a_mode_of_the_answers_own():
    held = training_runs.on_held(training_runs.two_moons(99, seed=9))
    one = training_runs.Case(Exercise(minutes=1, hints=[], starter_object=sick), held=held)
    one.same_in_both_modes(nn.Sequential(nn.Linear(2, 2)))
    one.same_in_both_modes(Halves(nn.Linear(2, 2), nn.Dropout(0.1)))  # whose mode may matter
    with pytest.raises(expect.Mismatch, match="none of its layers depends on the mode"):
        one.same_in_both_modes(Halves(nn.Linear(2, 2)))


class Net(nn.Module):
    """Two layers, the second of which may be checkpointed (`reentrant`: True or False) or compiled."""

    def __init__(self, reentrant=None, compiled=False):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        self.reentrant = reentrant
        if compiled:
            self.second = torch.compile(self.second, backend="eager")

    def forward(self, x):
        x, rest = self.first(x), self.second
        again = self.reentrant is not None
        return (checkpoint(rest, x, use_reentrant=self.reentrant) if again else rest(x)).mean()


def three_steps(scaler=None, ends=3, **how):
    torch.manual_seed(0)
    model = Net(**how)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        if step == ends:
            raise KeyError("a batch")
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4))
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


@pytest.mark.filterwarnings("ignore")
def test_checkpoints_scalers_and_the_compiler_leave_the_run_as_it_is():
    plain = measure.record_run(three_steps)
    others = [{"reentrant": True}, {"reentrant": False}, {"compiled": True}]
    others.append({"scaler": torch.amp.GradScaler("cpu")})
    for how in others:
        found = measure.record_run(three_steps, **how)
        assert found.losses == plain.losses, how
        assert found.grad_norms.keys() == plain.grad_norms.keys() == {"first", "second.0"}
        assert [len(forward.layers) for forward in found.trained] == [3, 3, 3] and not found.evaluated


def test_a_run_that_raises_has_told_until_then():
    with pytest.raises(KeyError) as raised:
        measure.record_run(three_steps, ends=2)
    assert len(raised.value.recorded.losses) == 2 and "2 steps" in raised.value.__notes__[0]
