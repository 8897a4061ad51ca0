"""Repair: an update between two losses

A critic learns to tell fakes from real data, and a generator to please it. Each takes a step of size `rate`.
The critic goes down the gradient of its mean score of the fakes minus that of `real`. The generator goes up
the gradient of the mean score that the **updated** critic gives the same fakes. This raises: *modified by an
inplace operation*. Repair it.

- Write to parameters in place, so that a graph from before the step raises.
- Run the generator once, the critic as often as you need.
- Run the critic on the fakes, `real` and its parameters, not copies.

You may use `.grad`, which is None at first. Two calls take two steps.
"""

import copy

import torch
from torch import Tensor, nn

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import graphs

exercise = Exercise(
    minutes=15,
    hints=[
        "Which tensor was modified, by which line, and which of the two losses needs it at its old version? "
        "And which critic was the second loss computed with?",
        "The generator's loss was made of scores of the critic as it was. The scores that the task asks for "
        "do not exist before the critic has been updated.",
        "Run the critic on the fakes again after its step. Then the two losses share no graph of the "
        "critic, so you need not retain it. And the critic's own step can take the fakes as constants.",
    ],
)


@exercise.starter
def repair_inplace_update(
    generator: nn.Module, critic: nn.Module, noise: Tensor, real: Tensor, rate: float
) -> None:
    """One step of the critic, then one of the generator, both in place"""

    def step(module: nn.Module, loss: Tensor, retain_graph: bool = False) -> None:
        parameters = list(module.parameters())
        gradients = torch.autograd.grad(loss, parameters, retain_graph=retain_graph)
        with torch.no_grad():
            for i, gradient in enumerate(gradients):
                parameters[i] -= rate * gradient

    fakes = generator(noise)
    scores = critic(fakes)
    critic_loss = scores.mean() - critic(real).mean()
    generator_loss = -scores.mean()
    step(critic, critic_loss, retain_graph=True)
    step(generator, generator_loss)


_SETUP = """torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(2, 5, device=device), nn.Tanh(), nn.Linear(5, 3, device=device))
critic = nn.Sequential(nn.Linear(3, 64, device=device), nn.Tanh(), nn.Linear(64, 1, device=device))
noise, real = torch.randn(48, 2, device=device), torch.randn(32, 3, device=device)"""
_CALL = "repair_inplace_update(generator, critic, noise, real, 0.5)"


def _after_a_step(t, rate=0.5, *, updated=True):
    """Both modules one step further, in float64, where each loss has a forward of its own. `updated`: the
    generator's goes through the critic after its step."""
    generator, critic = (copy.deepcopy(module).double().cpu() for module in (t.generator, t.critic))
    before = copy.deepcopy(critic)
    noise, real = t.noise.double().cpu(), t.real.double().cpu()
    _descend(critic, critic(generator(noise).detach()).mean() - critic(real).mean(), rate)
    _descend(generator, -(critic if updated else before)(generator(noise)).mean(), rate)
    return {"critic": critic, "generator": generator}


def _descend(module, loss, rate):
    parameters = list(module.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.data = parameter.data - rate * gradient


def _expect_step(t):
    """The call takes a step with both modules, each of them as a row."""
    was, wanted, of_old_critic = _after_a_step(t, 0.0), _after_a_step(t), _after_a_step(t, updated=False)
    with graphs.writes_told():
        t.run(_CALL)
    with Rows() as rows:
        for which in ("critic", "generator"):
            with rows.of(f"`{which}`"):
                for name, now in getattr(t, which).named_parameters():
                    before, right, other = (
                        found[which].get_parameter(name).detach().double().cpu()
                        for found in (was, wanted, of_old_critic)
                    )
                    like = {
                        "what it was before the call": before,
                        "what a step in the opposite direction leads to": 2 * before - right,
                        "what a step with the critic from before its own step leads to": other,
                    }
                    what = f"`{name}` of `{which}` after the call"
                    came = now.detach().double().cpu()
                    expect.equal(came, right, what=what, rtol=1e-4, atol=1e-5, like=like)


@exercise.check(given=_SETUP)
def first_call(t, device):
    """Each takes its step, the generator with the gradient through the updated critic

    A product keeps its weight for the gradient of its input. After an update of the weight backward raises,
    or, if `.data` hid the update, mixes new weights with old activations. For the scores of the updated
    critic, run it once more. `backward` fills `.grad` of all leaves behind a loss, the generator's too. `p -=
    step` writes; `p = p - step` makes a tensor that no module has.
    """
    _expect_step(t)


@exercise.check(given=_SETUP)
def second_call(t, device):
    """A second call takes a second step

    `backward` adds to what `.grad` holds, and `requires_grad` stays as it was set. The next step begins with
    what this one leaves behind.
    """
    with graphs.writes_told():
        t.run(f"{_CALL}\nnoise = -noise")
    for which in ("critic", "generator"):
        for name, parameter in getattr(t, which).named_parameters():
            frozen = f"`requires_grad` of `{name}` of `{which}` is `False` after the first call"
            expect.true(parameter.requires_grad, frozen, "expected: `True`, as before")
    _expect_step(t)


@exercise.check(
    given=f"{_SETUP}\nold = {{}}(torch.ones(1, {{}}, device=device, requires_grad=True)).sum()".format,
    cases=[("generator", 2), ("critic", 3)],
)
def noticed(t, device):
    """A graph from before the step raises in its backward

    Under `no_grad` a write such as `p -= step` counts in the version of the parameter. A write through
    `.data` or NumPy doesn't: an older graph then gives a gradient with parameters that its loss was not
    computed with. A new parameter in the place of the old one is no write, and an optimizer that holds the
    old one never sees the step.
    """
    with graphs.writes_told():
        t.run(_CALL)
    expect.raises(RuntimeError, lambda: t.run("old.backward()"), what="`old.backward()`")


@exercise.check(given=_SETUP)
def generator_runs_once(t, device):
    """The generator runs once

    The critic's step changes no parameter of the generator, so the fakes and their graph stay good. A
    `backward` of the critic's loss would go on through that graph and free it, unless the loss takes the
    fakes as constants or you ask for the critic's gradients alone.
    """
    calls = []
    t.generator.register_forward_hook(lambda *_: calls.append(1))
    with graphs.writes_told():
        t.run(_CALL)
    expect.equal(len(calls), 1, what="the number of times that the generator ran")


@exercise.check(
    given=_SETUP,
    cases={
        "contiguous tensors": "",
        "a transposed `real`": "real = real.t().contiguous().t()",
        "fakes with transposed strides": "generator.register_forward_hook("
        "lambda module, inputs, fakes: fakes.t().contiguous().t())",
    },
)
def no_copies(t, device):
    """The critic runs on tensors as they are, whatever their strides

    The parameters of the critic were written to. A copy of the fakes or of `real` repairs nothing, and you
    would need copies of the parameters only if a graph had to outlast the update. `.contiguous()` is free in
    some layouts and copies in others.
    """
    own = list(t.critic.parameters())
    fakes, inputs, parameters = [], [], []
    t.generator.register_forward_hook(lambda m, x, out: fakes.append(out.detach()))
    t.critic.register_forward_pre_hook(lambda m, x: inputs.extend(x))
    t.critic.register_forward_pre_hook(lambda m, x: parameters.extend(m.parameters()))
    with (
        graphs.writes_told(),
        expect.left_alone(t.noise, what="`noise`"),
        expect.left_alone(t.real, what="`real`"),
    ):
        t.run(_CALL)
    expect.true(bool(inputs), "the critic did not run", "expected: it does")
    for x in inputs:
        where = f"the critic ran on a tensor of shape {tuple(x.shape)} with a storage of its own"
        expect.true(_in_place(x, [t.real, *fakes]), where, "expected: on the fakes and on `real`")
    for x in parameters:
        where = f"the critic ran with a parameter of shape {tuple(x.shape)} that was made in the call"
        expect.true(_in_place(x, own), where, "expected: with its own")


def _in_place(tensor, known):
    """Whether the tensor reads the memory of one of these. Inside `torch.func.grad` it cannot be told."""
    if not measure.storage_bytes(tensor):
        return True
    places = {other.untyped_storage().data_ptr() for other in known}
    return tensor.untyped_storage().data_ptr() in places
