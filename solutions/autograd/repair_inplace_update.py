"""The second gradient goes back through the critic, whose matrix product has kept its weight. The update
wrote to the weight, so the versions differ and backward raises. It is right to raise: a gradient with new
weights and old activations is that of neither critic.

The scores of the updated critic exist only after its update, so run the critic again on the same fakes. Don't
make the fakes again. Their graph leads through the generator, whose parameters haven't changed, and no
backward has gone through it yet: the critic's loss takes the fakes as constants. So neither loss needs a
graph that another backward has freed, and you need not retain one.
"""

healed = {
    ", retain_graph: bool = False": "",
    ", retain_graph=retain_graph": "",
    "    scores = critic(fakes)\n    critic_loss = scores": "    critic_loss = critic(fakes.detach())",
    "    generator_loss = -scores.mean()\n": "",
    ", retain_graph=True)\n": ")\n    generator_loss = -critic(fakes).mean()\n",
}


# Other right answers

import torch

from course_utils.exercise import Edit, Wrong


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


def _only_what_is_asked_for(generator, critic, noise, real, rate):
    """Without `detach`: a gradient for the critic's parameters does not run, or free, the generator's
    nodes."""
    fakes = generator(noise)
    for module in (critic, generator):
        score = critic(fakes).mean()
        loss = score - critic(real).mean() if module is critic else -score
        parameters = list(module.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        torch.no_grad()(torch._foreach_add_)(parameters, gradients, alpha=-rate)


also_right = [_by_backward, _only_what_is_asked_for]


# Mistakes


def _old_gradients_stay(generator, critic, noise, real, rate):
    def step(module, loss):
        loss.backward(inputs=list(module.parameters()))
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= rate * parameter.grad

    fakes = generator(noise)
    step(critic, critic(fakes.detach()).mean() - critic(real).mean())
    step(generator, -critic(fakes).mean())


mistakes = [
    Edit(
        "scores from before the step",
        "step(critic, critic_loss)\n    generator_loss = -critic(fakes).mean()",
        "generator_loss = -critic(fakes).mean()\n    step(critic, critic_loss)",
        told_by="first_call",
    ),
    Edit(
        "the generator first",
        "    step(critic, critic_loss)\n",
        "    step(generator, -critic(fakes).mean())\n    step(critic, critic_loss)\n    return\n",
        told_by="first_call",
    ),
    Edit("cut off", "fakes = generator(noise)", "fakes = generator(noise).detach()", told_by="first_call"),
    Wrong(_old_gradients_stay, told_by="second_call"),
    Edit("hidden from autograd", "parameters[i] -= ", "parameters[i].data -= ", told_by="noticed"),
    Edit("runs it again", "-critic(fakes)", "-critic(generator(noise))", told_by="generator_runs_once"),
    Edit("clones the fakes", "fakes.detach()", "fakes.clone()", told_by="no_copies"),
    Edit("contiguous first", "critic(real)", "critic(real.contiguous())", told_by="no_copies"),
]
not_tried = {"hard numbers": "the modules compute", "seeds": "any numbers will do"}

equivalent = {
    "line 18: `fakes.detach()` -> `fakes`": "`autograd.grad` goes only where it is asked to: not into the "
    "generator, whose nodes it neither runs nor frees",
}
