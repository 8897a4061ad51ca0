"""Repair: an update between two losses

A critic learns to tell what a generator makes from what is real; the generator learns to please the critic.
The function below takes one step with each. First the critic: its loss is the mean score of the fakes minus
that of the real ones. Then the generator: its loss is minus the mean score that the **updated** critic gives
the same fakes. Each of them takes a step of size `rate` against the gradient of its loss with respect to its
parameters.

As it stands, the second gradient raises: *one of the variables needed for gradient computation has been
modified by an inplace operation*. Mend it. The parameters are still updated in place, in such a way that
autograd notices: somebody who has kept a graph from before the step is told so by its backward. The generator
runs once. The critic may run as often as it takes, on tensors as they are: neither the fakes nor `real` nor
its parameters are copied for that. Its graphs are not kept for longer than their own backward needs. `.grad`
may be used; all else about the modules, such as their mode, stays as it is."""

import copy
import weakref

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from course_utils import evidence, expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=15,
    hints=[
        "Which tensor was modified, by which line, and which of the two losses needs it at its old version? "
        "And which critic was the second loss computed with?",
        "The generator's loss was made of scores of the critic as it was. The scores that the task asks for "
        "do not exist before the critic has been updated.",
        "Run the critic on the fakes again after its step. Then the two losses share no graph of the "
        "critic's, so nothing of it needs to be retained; and the critic's own step need not know what the "
        "fakes were made of.",
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
generator = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3))
critic = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 1))
noise, real = torch.randn(48, 2), torch.randn(32, 3)"""
_CALL = "repair_inplace_update(generator, critic, noise, real, 0.5)"


def _given(repair_inplace_update, device, setup=_SETUP):
    if device.type != "cpu":
        setup += f"\ngenerator, critic = generator.to('{device.type}'), critic.to('{device.type}')"
        setup += f"\nnoise, real = noise.to('{device.type}'), real.to('{device.type}')"
    return expect.given(setup, repair_inplace_update=repair_inplace_update)


def _double(module):
    """A module of the same kind with the same parameters in float64, on the CPU, where they are exact
    enough."""
    sizes = [(layer.in_features, layer.out_features) for layer in module if isinstance(layer, nn.Linear)]
    (a, b), (c, d) = sizes
    double = nn.Sequential(nn.Linear(a, b), nn.Tanh(), nn.Linear(c, d)).double()
    double.load_state_dict({name: value.double().cpu() for name, value in module.state_dict().items()})
    return double


def _descend(module, loss, rate):
    loss.backward()
    for parameter in module.parameters():
        parameter.data = parameter.data - rate * parameter.grad


def _two_steps(t, rate=0.5):
    """The parameters after both steps, of two modules of their own: each loss from a forward of its own."""
    generator, critic = _double(t.generator), _double(t.critic)
    noise, real = t.noise.double().cpu(), t.real.double().cpu()
    with torch.no_grad():
        fakes = generator(noise)
    _descend(critic, critic(fakes).mean() - critic(real).mean(), rate)
    _descend(generator, -critic(generator(noise)).mean(), rate)
    return dict(generator.named_parameters()), dict(critic.named_parameters())


def _run(t, stop_at_error=True):
    """The call; where it raises because of a write, that is told with the words that matter, or passed over
    by checks which look at something else."""
    try:
        t.call(_CALL)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        if not stop_at_error:
            return
        evidence.record("backward", "modified by an inplace operation")
        said = str(error).partition("operation: ")[2].partition(". Hint")[0]
        raise expect.Mismatch(
            "a gradient raises: a tensor that it needs was modified by an inplace operation",
            f"it is `{said}`",
        ) from None


def _expect_parameters(module, wanted, what):
    for name, parameter in module.named_parameters():
        came = parameter.detach().cpu()
        expect.equal(came, wanted[name].detach().float(), what=f"`{what}`'s `{name}`", rtol=1e-4, atol=1e-5)


@exercise.check
def the_critic(repair_inplace_update, device):
    """The critic takes its step"""
    t = _given(repair_inplace_update, device)
    _, wanted = _two_steps(t)
    _run(t, stop_at_error=False)
    _expect_parameters(t.critic, wanted, "critic")


@exercise.check
def the_generator(repair_inplace_update, device):
    """The generator takes its step, with the gradient through the updated critic"""
    t = _given(repair_inplace_update, device)
    wanted, _ = _two_steps(t)
    _run(t)
    _expect_parameters(t.generator, wanted, "generator")


@exercise.check
def once_more(repair_inplace_update, device):
    """A second step after the first, from other noise"""
    t = _given(repair_inplace_update, device)
    _run(t)
    t.noise.neg_()
    wanted = _two_steps(t)
    _run(t)
    _expect_parameters(t.critic, wanted[1], "critic")
    _expect_parameters(t.generator, wanted[0], "generator")


@exercise.check
def one_forward(repair_inplace_update, device):
    """The generator runs once"""
    t = _given(repair_inplace_update, device)
    calls = []
    t.generator.register_forward_hook(lambda module, inputs, output: calls.append(output))
    _run(t, stop_at_error=False)
    evidence.record("forwards of the generator", len(calls))
    expect.true(len(calls) == 1, f"the generator ran {len(calls)} times", "expected: once")


@exercise.check
def noticed(repair_inplace_update, device):
    """Autograd notices the updates: a graph from before raises"""
    t = _given(repair_inplace_update, device)
    old = {}
    for name, module, x in (("generator", t.generator, t.noise), ("critic", t.critic, t.real)):
        x = x.clone().requires_grad_()
        old[name] = module(x).sum(), x
    objects = [*t.generator.parameters(), *t.critic.parameters()]
    places = [parameter.data_ptr() for parameter in objects]
    _run(t)
    now = [*t.generator.parameters(), *t.critic.parameters()]
    same = [a is b for a, b in zip(objects, now, strict=True)]
    evidence.record("the same parameters", same)
    expect.true(all(same), "a parameter was replaced by another object", "expected: it is updated in place")
    for name, (loss, x) in old.items():
        try:
            torch.autograd.grad(loss, x)
            raised = False
        except RuntimeError:
            raised = True
        evidence.record("an old graph raises", raised)
        expect.true(
            raised,
            f"a loss that was computed with `{name}` before the step has a backward that does not raise,",
            "and gives a gradient with parameters that the loss was not computed with",
            "expected: it raises",
        )
    expect.true(
        places == [parameter.data_ptr() for parameter in now],
        "a parameter was given another storage",
        "expected: its own is written to",
    )


def _flags(t):
    modules = [*t.generator.modules(), *t.critic.modules()]
    parameters = [*t.generator.parameters(), *t.critic.parameters()]
    return [module.training for module in modules], [parameter.requires_grad for parameter in parameters]


@exercise.check
def inputs_left_alone(repair_inplace_update, device):
    """`noise`, `real`, the modes of the modules and every `requires_grad` stay as they are"""
    t = _given(repair_inplace_update, device)
    before = _flags(t)
    with expect.left_alone(t.noise, what="`noise`"), expect.left_alone(t.real, what="`real`"):
        _run(t, stop_at_error=False)
    expect.equal(
        (t.noise.requires_grad, t.real.requires_grad), (False, False), what="`requires_grad` of both"
    )
    for now, was, name in zip(_flags(t), before, ("training", "requires_grad"), strict=True):
        what = "the modules" if name == "training" else "their parameters"
        expect.true(now == was, f"`{name}` of {what} is {now}", f"expected: {was}, as before")


class _Kept:
    """What stands for a saved tensor in the graph: it lives as long as the graph wants the tensor."""

    def __init__(self, tensor):
        self.tensor = tensor.data  # without its graph, which holds this


@exercise.check
def graphs_kept(repair_inplace_update, device):
    """No graph of the critic's is kept for longer than its own backward"""
    t = _given(repair_inplace_update, device)
    kept, found = [], []
    inside = False

    def pack(tensor):
        token = _Kept(tensor)
        if inside:
            kept.append(weakref.ref(token))
        return token

    def begins(module, inputs):
        nonlocal inside
        inside = True
        tensors = [token().tensor for token in kept if token() is not None]
        found.append(sum({id(x.untyped_storage()): x.untyped_storage().nbytes() for x in tensors}.values()))

    def ended(module, inputs, output):
        nonlocal inside
        inside = False

    t.critic.register_forward_pre_hook(begins)
    t.critic.register_forward_hook(ended)
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda token: token.tensor):
            _run(t, stop_at_error=False)
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):
            raise
        message = "`torch.func` does not run under the hooks that show what a graph keeps"
        raise expect.CannotCheck(message) from None
    expect.true(bool(found), "the critic did not run", "expected: it does")
    expect.true(
        found[-1] == 0,
        f"when the critic runs for the last time, {found[-1]:,} bytes are kept for its earlier graphs",
        "expected: these are gone, since nobody goes through them again",
    )


@exercise.check
def no_copies(repair_inplace_update, device):
    """The critic runs on tensors as they are, not on copies"""
    t = _given(repair_inplace_update, device)
    own = list(t.critic.parameters())
    known, graphs, copied = [t.real], [], {"inputs": [], "parameters": []}
    t.generator.register_forward_hook(lambda module, inputs, output: known.append(output.detach()))

    def begins(module, inputs, named):
        inputs = [x for x in tree_leaves((inputs, named)) if isinstance(x, Tensor)]
        copied["inputs"] += [_has_another_storage(x, known) for x in inputs]
        copied["parameters"] += [_has_another_storage(x, own) for x in module.parameters()]
        graphs.extend(x.requires_grad for x in inputs)

    t.critic.register_forward_pre_hook(begins, with_kwargs=True)
    _run(t, stop_at_error=False)
    evidence.record("the critic saw a graph", any(graphs))
    expect.true(bool(graphs), "the critic did not run", "expected: it does")
    expect.true(
        not any(copied["inputs"]),
        "the critic ran on a tensor with a storage of its own",
        "expected: on the fakes and on `real`, or on views of them",
    )
    expect.true(
        not any(copied["parameters"]),
        "the critic ran with parameters that are not those which it had",
        "expected: with its own",
    )


def _has_another_storage(tensor, known):
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # inside `torch.func.grad` and its kin
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.untyped_storage().data_ptr() not in {x.untyped_storage().data_ptr() for x in known}


# --- the mistakes -----------------------------------------------------------------------------------------


def _step(module, loss, rate, **options):
    parameters = list(module.parameters())
    gradients = torch.autograd.grad(loss, parameters, **options)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= rate * gradient


def _hidden_step(module, loss, rate, **options):
    parameters = list(module.parameters())
    gradients = torch.autograd.grad(loss, parameters, **options)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.data -= rate * gradient


def _along_grad(module, rate):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= rate * parameter.grad


@exercise.mistake
def data_hides_the_update(generator, critic, noise, real, rate):
    """The update is hidden from autograd, as by `.data`: the gradient of the generator does not raise any
    more, and is that of no function. The slopes of the `tanh` are those of the critic before its step, the
    weights those after it."""
    scores = critic(generator(noise))
    _hidden_step(critic, scores.mean() - critic(real).mean(), rate, retain_graph=True)
    _hidden_step(generator, -scores.mean(), rate)


@data_hides_the_update.variant
def subtracts_from_data(generator, critic, noise, real, rate):
    scores = critic(generator(noise))
    losses = scores.mean() - critic(real).mean(), -scores.mean()
    for module, loss in zip((critic, generator), losses, strict=True):
        gradients = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
        for p, g in zip(module.parameters(), gradients, strict=True):
            p.data.sub_(g, alpha=rate)


@data_hides_the_update.form
def critic_only(generator, critic, noise, real, rate):
    scores = critic(generator(noise))
    critic_loss, generator_loss = scores.mean() - critic(real).mean(), -scores.mean()
    _hidden_step(critic, critic_loss, rate, retain_graph=True)
    _step(generator, generator_loss, rate)


@exercise.mistake
def new_scores_but_hidden(generator, critic, noise, real, rate):
    """Both gradients are right, but the updates are hidden from autograd: no version is counted where they go
    through `.data`, or through NumPy. A graph from before the step goes on to give gradients, with parameters
    that have changed since."""
    fakes = generator(noise)
    _hidden_step(critic, critic(fakes.detach()).mean() - critic(real).mean(), rate)
    _hidden_step(generator, -critic(fakes).mean(), rate)


@exercise.mistake
def the_old_critic(generator, critic, noise, real, rate):
    """Your generator follows the critic as it was before its step: both gradients were computed first, or the
    second one with old parameters. That mends the error and is another step than the one that was asked for:
    the generator is to follow the updated critic."""
    scores = critic(generator(noise))
    parameters = [list(module.parameters()) for module in (critic, generator)]
    losses = scores.mean() - critic(real).mean(), -scores.mean()
    both = [torch.autograd.grad(losses[i], parameters[i], retain_graph=True) for i in (0, 1)]
    with torch.no_grad():
        for some, gradients in zip(parameters, both, strict=True):
            for parameter, gradient in zip(some, gradients, strict=True):
                parameter -= rate * gradient


@the_old_critic.variant
def updates_at_the_end(generator, critic, noise, real, rate):
    scores = critic(generator(noise))
    critic_loss = scores.mean() - critic(real).mean()
    of_critic = torch.autograd.grad(critic_loss, list(critic.parameters()), retain_graph=True)
    of_generator = torch.autograd.grad(scores.mean().neg(), list(generator.parameters()))
    with torch.no_grad():
        for p, g in zip(critic.parameters(), of_critic, strict=True):
            p.sub_(rate * g)
        for p, g in zip(generator.parameters(), of_generator, strict=True):
            p.sub_(rate * g)


@the_old_critic.variant
def another_order(generator, critic, noise, real, rate):
    fakes = generator(noise)
    _step(generator, -critic(fakes).mean(), rate)
    _step(critic, critic(fakes.detach()).mean() - critic(real).mean(), rate)


@the_old_critic.form
def a_copy_of_the_critic(generator, critic, noise, real, rate):
    before = copy.deepcopy(critic)
    fakes = generator(noise)
    generator_loss = -before(fakes).mean()
    _step(critic, critic(fakes.detach()).mean() - critic(real).mean(), rate)
    _step(generator, generator_loss, rate)


@exercise.mistake
def both_losses_in_grad(generator, critic, noise, real, rate):
    """The generator's step holds the gradient of the critic's loss as well. `backward` goes on through the
    fakes into the generator, and leaves in `.grad` what the next `backward` adds to: ask for the gradients of
    the parameters that take the step, or hand the fakes over detached."""
    fakes = generator(noise)
    for module in (critic, generator):
        score = critic(fakes).mean()
        loss = score - critic(real).mean() if module is critic else -score
        loss.backward(retain_graph=True)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= rate * parameter.grad
                parameter.grad = None
        for parameter in critic.parameters():
            parameter.grad = None


@both_losses_in_grad.form
def empties_grad_before_both(generator, critic, noise, real, rate):
    for parameter in [*generator.parameters(), *critic.parameters()]:
        parameter.grad = None
    fakes = generator(noise)
    (critic(fakes).mean() - critic(real).mean()).backward(retain_graph=True)
    _along_grad(critic, rate)
    critic(fakes).mean().neg().backward()
    _along_grad(generator, rate)


@exercise.mistake
def old_gradients_stay(generator, critic, noise, real, rate):
    """The first step of both is right, but the next one holds the gradients of the one before: `backward`
    adds to what `.grad` holds, and nothing has emptied it."""
    fakes = generator(noise)
    (critic(fakes.detach()).mean() - critic(real).mean()).backward()
    _along_grad(critic, rate)
    critic(fakes).mean().neg().backward()
    _along_grad(generator, rate)


@exercise.mistake
def leaves_the_critic_frozen(generator, critic, noise, real, rate):
    """Your gradients are right, but the critic's parameters do not require a gradient any more, so its next
    step raises. Freezing them saves work in the generator's step; they have to be set free again after it."""
    fakes = generator(noise)
    _step(critic, critic(fakes.detach()).mean() - critic(real).mean(), rate)
    critic.requires_grad_(False)
    _step(generator, -critic(fakes).mean(), rate)


@exercise.mistake
def keeps_the_first_graph(generator, critic, noise, real, rate):
    """Your gradients are right, but the graph of the critic's loss is still kept while the one of the second
    loss is built. Nobody goes through it a second time, so there is nothing to retain it for."""
    fakes = generator(noise)
    critic_loss = critic(fakes).mean() - critic(real).mean()
    _step(critic, critic_loss, rate, retain_graph=True)
    _step(generator, -critic(fakes).mean(), rate)


@keeps_the_first_graph.variant
def retains_and_detaches(generator, critic, noise, real, rate):
    fakes = generator(noise)
    scores, on_real = critic(fakes.detach()), critic(real)
    parameters = list(critic.parameters())
    gradients = torch.autograd.grad(scores.mean() - on_real.mean(), parameters, retain_graph=True)
    with torch.no_grad():
        for i, parameter in enumerate(parameters):
            parameter.sub_(gradients[i] * rate)
    _step(generator, critic(fakes).mean().neg(), rate)
    del scores, on_real


@exercise.mistake
def two_forwards_of_the_generator(generator, critic, noise, real, rate):
    """Your gradients are right, but the generator runs a second time. Its parameters have not changed in
    between, so the fakes that are there already have the graph that the second loss needs."""
    _step(critic, critic(generator(noise)).mean() - critic(real).mean(), rate)
    _step(generator, -critic(generator(noise)).mean(), rate)


@two_forwards_of_the_generator.variant
def fakes_without_a_graph_first(generator, critic, noise, real, rate):
    with torch.no_grad():
        fakes = generator(noise)
    _step(critic, critic(fakes).mean() - critic(real).mean(), rate)
    again = generator(noise)
    _step(generator, -critic(again).mean(), rate)


@exercise.mistake
def clones_the_fakes(generator, critic, noise, real, rate):
    """Your gradients are right, but the critic runs on a copy, made by `clone` or on the way, as by `cat`.
    Neither the fakes nor `real` were ever written to: it is the parameters of the critic that were."""
    fakes = generator(noise)
    _step(critic, critic(fakes.clone()).mean() - critic(real).mean(), rate)
    _step(generator, -critic(fakes.clone()).mean(), rate)


@clones_the_fakes.variant
def clones_once(generator, critic, noise, real, rate):
    fakes = generator(noise)
    constant = torch.clone(fakes.detach())
    critic_loss = torch.sub(critic(constant).mean(), critic(real).mean())
    _step(critic, critic_loss, rate)
    score = critic(fakes).mean()
    _step(generator, score.neg(), rate)


@exercise.mistake
def copies_the_critic(generator, critic, noise, real, rate):
    """Your gradients are right, but the critic runs with copies of its parameters. They would be needed if a
    graph had to outlast the update. None has to: each loss is computed and gone through before the next
    update."""
    fakes = generator(noise)
    _step(critic, critic(fakes.detach()).mean() - critic(real).mean(), rate)
    _step(generator, -copy.deepcopy(critic)(fakes).mean(), rate)


@copies_the_critic.variant
def calls_it_with_clones(generator, critic, noise, real, rate):
    fakes = generator(noise)
    clones = {name: parameter.clone() for name, parameter in critic.named_parameters()}
    scores = [torch.func.functional_call(critic, clones, (x,)).mean() for x in (fakes, real)]
    _step(critic, scores[0] - scores[1], rate)
    del scores
    _step(generator, critic(fakes).mean().neg(), rate)


@exercise.mistake
def the_same_scores_still(generator, critic, noise, real, rate):
    """The second loss is still made of scores from before the critic's step, so its gradient needs the
    critic's parameters as they were. A detach or a clone elsewhere does not change that, and neither does
    keeping the graph alive: what is missing is not the graph but the old values."""
    fakes = generator(noise)
    scores = critic(fakes)
    _step(critic, critic(fakes.detach()).mean() - critic(real).mean(), rate)
    _step(generator, -scores.mean(), rate, retain_graph=True)


@the_same_scores_still.variant
def loss_made_too_early(generator, critic, noise, real, rate):
    fakes = generator(noise)
    generator_loss = critic(fakes).mean().neg()
    constant = fakes.detach()
    critic_loss = critic(constant).mean() - critic(real).mean()
    _step(critic, critic_loss, rate)
    _step(generator, generator_loss, rate)


@the_same_scores_still.variant
def graph_retained(generator, critic, noise, real, rate):
    scores = critic(generator(noise))
    _step(critic, scores.mean() - critic(real).mean(), rate, retain_graph=True)
    generator_loss = -scores.mean()
    _step(generator, generator_loss, rate)


@the_same_scores_still.variant
def scores_cloned(generator, critic, noise, real, rate):
    scores = critic(generator(noise))
    kept = scores.clone()
    _step(critic, scores.mean() - critic(real).mean(), rate, retain_graph=True)
    _step(generator, -kept.mean(), rate)


@exercise.mistake
def generator_is_cut_off(generator, critic, noise, real, rate):
    """The scores that the generator's loss is made of come from detached fakes, or the generator ran under
    `no_grad`: no gradient goes back from them to its parameters. The critic's loss may do without the
    generator's graph; the generator's loss may not."""
    fakes = generator(noise).detach()
    _step(critic, critic(fakes).mean() - critic(real).mean(), rate)
    _step(generator, -critic(fakes).mean(), rate)


@generator_is_cut_off.variant
def generator_in_no_grad(generator, critic, noise, real, rate):
    with torch.no_grad():
        fakes = generator(noise)
    critic_loss = critic(fakes).mean() - critic(real).mean()
    _step(critic, critic_loss, rate)
    generator_loss = critic(fakes).mean().neg()
    _step(generator, generator_loss, rate)


@generator_is_cut_off.form
def unused_is_allowed(generator, critic, noise, real, rate):
    fakes = generator(noise)
    _step(critic, critic(fakes.detach()).mean() - critic(real).mean(), rate)
    loss = -critic(fakes.detach()).mean()
    gradients = torch.autograd.grad(loss, list(generator.parameters()), allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(generator.parameters(), gradients, strict=True):
            if gradient is not None:
                parameter -= rate * gradient


@exercise.mistake
def a_name_is_updated(generator, critic, noise, real, rate):
    """The module's own parameters stay as they were: `parameter = parameter - ...` makes a new tensor, and
    gives it the name, or the place in a list. Write into the parameters, under `no_grad`."""
    fakes = generator(noise)
    for module, sign in ((critic, 1), (generator, -1)):
        loss = sign * critic(fakes).mean() - (critic(real).mean() if module is critic else 0)
        for parameter in module.parameters():
            (gradient,) = torch.autograd.grad(loss, parameter, retain_graph=True)
            parameter = parameter - rate * gradient


@a_name_is_updated.form
def a_place_in_a_list_is_updated(generator, critic, noise, real, rate):
    def step(module, loss):
        parameters = list(module.parameters())
        for i, gradient in enumerate(torch.autograd.grad(loss, parameters)):
            parameters[i] = parameters[i] - rate * gradient

    fakes = generator(noise)
    step(critic, critic(fakes.detach()).mean() - critic(real).mean())
    step(generator, -critic(fakes).mean())


@exercise.mistake
def new_parameters(generator, critic, noise, real, rate):
    """You put new parameters in the place of the old ones. Who holds the old ones, an optimizer for instance,
    does not see the update: the parameters are to be written into."""

    def replace(module, loss):
        names, parameters = zip(*module.named_parameters(), strict=True)
        gradients = torch.autograd.grad(loss, parameters)
        for name, parameter, gradient in zip(names, parameters, gradients, strict=True):
            owner, _, last = name.rpartition(".")
            setattr(module.get_submodule(owner), last, nn.Parameter((parameter - rate * gradient).detach()))

    fakes = generator(noise)
    replace(critic, critic(fakes.detach()).mean() - critic(real).mean())
    replace(generator, -critic(fakes).mean())


@exercise.mistake
def wrong_direction(generator, critic, noise, real, rate):
    """The generator's loss has lost its minus sign: it is trained to displease the critic."""
    fakes = generator(noise)
    _step(critic, critic(fakes.detach()).mean() - critic(real).mean(), rate)
    _step(generator, critic(fakes).mean(), rate)


@exercise.mistake
def steps_uphill(generator, critic, noise, real, rate):
    """Both steps go along the gradient, so both losses grow. A step that makes a loss smaller goes against
    its gradient."""
    fakes = generator(noise)
    _step(critic, critic(fakes.detach()).mean() - critic(real).mean(), -rate)
    _step(generator, -critic(fakes).mean(), -rate)
