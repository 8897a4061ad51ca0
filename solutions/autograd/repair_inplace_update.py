"""The second gradient goes back through the critic, and the critic's product of matrices has kept its weight
for that. The update wrote into the weight, so the versions differ and backward raises. It is right to raise:
a gradient with new weights and old activations belongs to no function at all.

The scores of the updated critic exist only after its update, so the critic runs again on the same fakes. The
fakes are not made again. Their graph leads through the generator, of which no parameter has changed, and
nobody has gone through it yet: the critic's loss takes the fakes as constants. So neither loss needs a graph
that another backward has freed, and nothing is retained."""

import torch
from torch import Tensor, nn


def repair_inplace_update(
    generator: nn.Module, critic: nn.Module, noise: Tensor, real: Tensor, rate: float
) -> None:
    """One step of the critic, then one of the generator, both in place"""

    def step(module: nn.Module, loss: Tensor) -> None:
        parameters = list(module.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for i, gradient in enumerate(gradients):
                parameters[i] -= rate * gradient

    fakes = generator(noise)
    critic_loss = critic(fakes.detach()).mean() - critic(real).mean()
    step(critic, critic_loss)
    generator_loss = -critic(fakes).mean()
    step(generator, generator_loss)


# Other right answers


def _by_backward(generator, critic, noise, real, rate):
    """With `.grad`, as an optimizer would do it."""

    def step(module, loss):
        loss.backward(inputs=list(module.parameters()))
        for parameter in module.parameters():
            with torch.no_grad():
                parameter.add_(parameter.grad, alpha=-rate)
            parameter.grad = None

    fakes = generator(noise)
    constant, scores = fakes.detach(), critic(real)
    step(critic, critic(constant).mean() - scores.mean())
    step(generator, critic(fakes).mean().neg())


def _the_gradient_of_the_fakes(generator, critic, noise, real, rate):
    """The critic's part of the graph and the generator's, one after the other."""

    def update(parameters, gradients):
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=rate)

    fakes = generator(noise)
    constant = fakes.detach().requires_grad_()
    parameters = tuple(critic.parameters())
    loss = torch.sub(critic(constant).mean(), critic(real).mean())
    update(parameters, torch.autograd.grad(loss, parameters))
    (gradient,) = torch.autograd.grad(critic(constant).mean(), constant)
    parameters = tuple(generator.parameters())
    update(parameters, torch.autograd.grad(fakes, parameters, -gradient))


def _only_what_is_asked_for(generator, critic, noise, real, rate):
    """Without `detach`: a gradient for the critic's parameters does not run, or free, the generator's
    nodes."""
    fakes = generator(noise)
    for module in (critic, generator):
        loss = critic(fakes).mean()
        loss = loss - critic(real).mean() if module is critic else -loss
        parameters = list(module.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        torch.no_grad()(torch._foreach_add_)(parameters, gradients, alpha=-rate)


def _values_copied_in(generator, critic, noise, real, rate):
    """The new values are computed first and then copied into the parameters."""

    @torch.no_grad()
    def update(module, gradients):
        flat, at = torch.cat([gradient.flatten() for gradient in gradients]), 0
        for parameter in module.parameters():
            following = parameter - rate * flat[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
            parameter.copy_(following)

    fakes, own = generator(noise), list(critic.parameters())
    on_fakes, on_real = (torch.autograd.grad(critic(x).mean(), own) for x in (fakes.detach(), real))
    update(critic, [a - b for a, b in zip(on_fakes, on_real, strict=True)])
    update(generator, torch.autograd.grad(-critic(fakes).mean(), list(generator.parameters())))


def _loaded(generator, critic, noise, real, rate):
    """New values for the whole module, loaded as from a file."""

    def step(module, loss):
        state, names = module.state_dict(), dict(module.named_parameters())
        for name, gradient in zip(names, torch.autograd.grad(loss, list(names.values())), strict=True):
            state[name] = state[name].sub(gradient, alpha=rate)
        module.load_state_dict(state)

    fakes = generator(noise)
    step(critic, torch.sub(critic(fakes.detach()).mean(), critic(real).mean()))
    step(generator, critic(fakes).mean().neg())


also_right = [
    _by_backward,
    _the_gradient_of_the_fakes,
    _only_what_is_asked_for,
    _values_copied_in,
    _loaded,
]


equivalent = {
    "line 18: `fakes.detach()` -> `fakes`": "`autograd.grad` goes only where it is asked to: not into the "
    "generator, whose nodes it neither runs nor frees",
}


def generated(answer):
    for n, m in ((1, 1), (7, 3), (20, 30)):
        generator = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
        critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        answer(generator, critic, torch.randn(n, 2), torch.randn(m, 3), 0.3)
        yield [*generator.parameters(), *critic.parameters()]
