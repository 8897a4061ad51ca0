"""The gradient of every sample, in one backward

After `loss.backward()` the gradients of all samples are added up. Return them one by one: for each parameter
of the model a tensor with one more dimension, of which entry `i` is the gradient of the loss of sample `i`
alone. They come in a dict, under the names that `named_parameters` gives. Take one backward for all samples
together, not one each, and no more work than it takes to make each of these gradients once.

`model` is a Sequential of `nn.Linear` layers, with or without a bias, and functions that act on each element
and leave their input as it is. All of its parameters require gradients. A layer may stand at several places;
it then has one gradient, in which all of them count. `x` is a matrix with a row for each sample, `y` has an
entry for each, and `loss(outputs, y)` gives their losses, as many numbers as there are rows. Model, `x` and
`y` stay as they are: no `.grad` is touched, no hook is left behind, and the gradients have no graph, also
where `x` requires one. `torch.func` is welcome, and so is doing without; with `torch.func.functional_call` a
layer at several places needs `tie_weights=False`.

With `model = nn.Sequential(nn.Linear(1, 1, bias=False))`, `x = torch.tensor([[2.], [3.]])`, `y =
torch.ones(2)` and a loss that gives `outputs[:, 0] * y`, the result is `{'0.weight': tensor([[[2.]],
[[3.]]])}`"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=25,
    hints=[
        "The samples of a batch meet in one place only: the parameters, where their gradients are added up. "
        "The gradient of the *output* of a layer still has a row for each sample. So has its input.",
        "For one sample the gradient of a weight is the product of a column and a row: the gradient of the "
        "layer's output, and the layer's input. The gradient of the bias is the first of the two as it is.",
        "Run the layers one by one and keep the input and the output of each linear one. One call of "
        "`torch.autograd.grad`, on the sum of the losses, gives the gradients of all these outputs. Then "
        "multiply, with a dimension for the samples in front. What a layer gets at two places is added.",
    ],
)


@exercise.starter
def per_sample_gradients(
    model: nn.Sequential, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """(n, d), (n, ...) -> for each parameter a tensor of shape (n, *its shape)"""
    raise NotImplementedError


_CALL = "per_sample_gradients(model, loss, x, y)"
_SQUARES = """loss = lambda outputs, y: (outputs - y).square().sum(1)"""
_LINEAR = f"""torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 2))
x, y = torch.randn(4, 3), torch.randn(4, 2)
{_SQUARES}"""
_DEEP = """torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5, bias=False), nn.GELU(), nn.Linear(5, 3))
x, y = torch.randn({n}, 3), torch.arange({n}) % 3
loss = lambda outputs, y: F.cross_entropy(outputs, y, reduction='none')"""
_LAYERS = """torch.manual_seed(0)
layer = nn.Linear(3, 3)
model = nn.Sequential(layer, nn.Sigmoid(), layer, nn.Tanh(), nn.Linear(3, 2))"""
_SHARED = f"""{_LAYERS}
x, y = torch.randn(4, 3), torch.randn(4, 2)
{_SQUARES}"""


def _given(answer, setup, device, more=""):
    if device.type != "cpu":
        setup += f"\nmodel = model.to('{device.type}')\nx, y = x.to('{device.type}'), y.to('{device.type}')"
    return expect.given(f"{setup}\n{more}", per_sample_gradients=answer)


def _oracle(t):
    """Sample by sample, each with a forward and a backward of its own."""
    names = [name for name, _ in t.model.named_parameters()]
    rows = []
    for i in range(len(t.x)):
        total = t.loss(t.model(t.x[i : i + 1]), t.y[i : i + 1]).sum()
        rows.append(torch.autograd.grad(total, list(t.model.parameters())))
    return {name: torch.stack(parts) for name, parts in zip(names, zip(*rows, strict=True), strict=True)}


def _expect_gradients(t):
    wanted = _oracle(t)
    found = t.call(_CALL)
    if isinstance(found, dict):  # in whatever order they come
        found = {name: found[name] for name in sorted(found, key=str)}
    expect.equal(found, {name: wanted[name] for name in sorted(wanted)}, rtol=1e-4, atol=1e-5)


@exercise.check
def one_layer(per_sample_gradients, device):
    """One linear layer"""
    _expect_gradients(_given(per_sample_gradients, _LINEAR, device))


@exercise.check
def several_layers(per_sample_gradients, device):
    """Several layers, one without a bias"""
    _expect_gradients(_given(per_sample_gradients, _DEEP.format(n=5), device))


@exercise.check
def one_sample(per_sample_gradients, device):
    """A batch of one sample"""
    _expect_gradients(_given(per_sample_gradients, _DEEP.format(n=1), device))


@exercise.check
def a_shared_layer(per_sample_gradients, device):
    """A layer at two places"""
    _expect_gradients(_given(per_sample_gradients, _SHARED, device))


@exercise.check
def double_precision(per_sample_gradients):
    """Parameters of another dtype"""
    setup = f"{_LINEAR}\nmodel, x, y = model.double(), x.double(), y.double()"
    _expect_gradients(_given(per_sample_gradients, setup, torch.device("cpu")))


# A loss that takes neither outputs nor `y` without their dimension for the samples.
_PENALTY = f"""{_LAYERS}
x, y = torch.randn(4, 3), torch.arange(4) % 2
loss = lambda outputs, y: F.cross_entropy(outputs, y, reduction='none') + outputs.square().sum(1)"""
_WITH_GRADS = """model[4].register_forward_hook(lambda *_: None)
model[1].eval()
model[4].bias.grad = torch.full_like(model[4].bias, 7)
x.requires_grad_()
x.grad = torch.full_like(x, 7)"""


@exercise.check
def left_alone(per_sample_gradients, device):
    """The model, `x` and `y` stay as they are, and the gradients have no graph"""
    t = _given(per_sample_gradients, _PENALTY, device, more=_WITH_GRADS)
    before = {name: p.detach().clone() for name, p in t.model.named_parameters()}
    parameters = list(t.model.parameters())
    leaves = {**{f"`model`'s `{name}`": p for name, p in t.model.named_parameters()}, "`x`": t.x}
    grads = {name: leaf.grad for name, leaf in leaves.items()}
    hooks, modes = _hooks(t.model), _modes(t.model)
    with expect.left_alone(t.x, what="`x`"), expect.left_alone(t.y, what="`y`"):
        found = t.call(_CALL)
    same = [now is p for now, p in zip(t.model.parameters(), parameters, strict=False)]
    replaced = [name for name, kept in zip(before, same, strict=False) if not kept]
    evidence.record("replaced", replaced)
    expect.true(
        same == [True] * len(parameters),
        f"`model`'s {' and '.join(f'`{name}`' for name in replaced)} are other tensors than before the call",
        "expected: the model has the parameters that it had; `functional_call` puts back those of a layer at "
        "two places only with `tie_weights=False`",
    )
    expect.true(isinstance(found, dict), f"the result is {expect.show(found)}, expected a dict")
    graphs = sorted(name for name, g in found.items() if isinstance(g, Tensor) and g.requires_grad)
    evidence.record("with a graph", graphs)
    expect.true(
        not graphs, f"the gradient of `{graphs and graphs[0]}` hangs in a graph", "expected: none does"
    )
    for name, p in t.model.named_parameters():
        expect.unchanged(p.detach(), before[name], what=f"`model`'s `{name}`")
    expect.equal(
        [leaf.requires_grad for leaf in leaves.values()],
        [True] * 5,
        what="`requires_grad` of the parameters and of `x`",
    )
    hows = {name: _touched(leaf.grad, grads[name]) for name, leaf in leaves.items()}
    touched = next(((name, how) for name, how in hows.items() if how), None)
    evidence.record("touched", touched)
    expect.true(
        touched is None,
        "the `.grad` of {} {}".format(*touched or ("", "")),
        "expected: each `.grad` is what it was before the call",
    )
    expect.equal(_hooks(t.model), hooks, what="the number of hooks on the model")
    expect.equal(_modes(t.model), modes, what="`training` of `model` and its layers")


def _touched(now, before):
    """What has become of a `.grad` that was None, or filled with 7."""
    if now is before and (now is None or bool((now == 7).all())):
        return ""
    if before is None:
        return "was None before the call, and is a tensor now"
    state = "None" if now is None else "other than that" if now.any() else "zero"
    return f"was filled with 7 before the call, and is {state} now"


def _modes(model):
    return [m.training for m in model.modules()]


def _hooks(model):
    return sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()
    )


@exercise.check
def one_backward(per_sample_gradients, device):
    """The number of operators does not grow with the samples"""
    counts = []
    for n in (3, 6):
        t = _given(per_sample_gradients, _DEEP.format(n=n), device)
        with measure.operators() as ran:
            t.call(_CALL)
        counts.append(len(ran.calls))
    evidence.record("grows", counts[1] > 1.5 * counts[0])
    expect.true(
        counts[1] <= 1.5 * counts[0],
        f"{counts[0]} operators run for 3 samples, and {counts[1]} for 6",
        "expected: about as many; one backward does for all of them",
    )


@exercise.check
def work(per_sample_gradients, device):
    """Twice as many samples are twice the work"""
    written = []
    for n in (16, 32):
        t = _given(per_sample_gradients, _DEEP.format(n=n), device)
        with measure.operators() as ran:
            t.call(_CALL)
        written.append(sum(call.written for call in ran.calls))
    evidence.record("too much", written[1] > 2.2 * written[0])
    expect.true(
        written[1] <= 2.2 * written[0],
        f"the operators write {written[0]:,} bytes for 16 samples, and {written[1]:,} for 32",
        "expected: about twice as many",
    )


# --- the mistakes -----------------------------------------------------------------------------------------


def _places(model, x):
    """(layer, input, output) of the linear layers, and the output of the last one."""
    found = []
    for layer in model:
        before, x = x, layer(x)
        if isinstance(layer, nn.Linear):
            found.append((layer, before, x))
    return found, x


def _gradients(
    model, loss, x, y, *, total=torch.sum, outer=None, bias=lambda g: g, add=torch.add, keep=False
):
    """A right answer with holes, each of which a mistake fills in its way."""
    outer = outer or (lambda g, a: g[:, :, None] * a[:, None, :])
    places, outputs = _places(model, x)
    names = {id(p): name for name, p in model.named_parameters()}
    incoming = torch.autograd.grad(total(loss(outputs, y)), [out for _, _, out in places])
    found = {}
    for (layer, before, _), g in zip(places, incoming, strict=True):
        before = before if keep else before.detach()
        for p, part in ((layer.weight, outer(g, before)), (layer.bias, bias(g))):
            if p is not None and part is not None:
                name = names[id(p)]
                found[name] = add(found[name], part) if name in found else part
    return found


def _gathered(model, places):
    """The right gradients from layers, their inputs, and the gradients of their outputs."""
    names = {id(p): name for name, p in model.named_parameters()}
    found = {}
    for layer, before, g in places:
        for p, part in ((layer.weight, torch.einsum("no,ni->noi", g, before.detach())), (layer.bias, g)):
            if p is not None:
                found[names[id(p)]] = part + found.get(names[id(p)], 0)
    return found


def _mapped(model, x, y, of_one, in_dims=(None, 0, 0)):
    """`vmap(grad(of_one))`; `of_one` takes a function that runs the model with the parameters, a row and its
    entry of `y`."""
    from torch.func import functional_call, grad, vmap

    def of_parameters(parameters, row, target):
        return of_one(lambda x: functional_call(model, parameters, (x,), tie_weights=False), row, target)

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return vmap(grad(of_parameters), in_dims=in_dims)(parameters, x.detach(), y)


@exercise.mistake
def sample_without_its_dimension(model, loss, x, y):
    """Inside `vmap` a row of `x` and its entry of `y` have no dimension for the samples, and `loss` takes
    outputs and `y` that have one, both of them. `row[None]` and `target[None]` are a batch of one."""
    return _mapped(model, x, y, lambda run, row, target: loss(run(row), target))


@sample_without_its_dimension.form
def target_without_its_dimension(model, loss, x, y):
    return _mapped(model, x, y, lambda run, row, target: loss(run(row[None]), target).sum())


@sample_without_its_dimension.form
def row_without_its_dimension(model, loss, x, y):
    return _mapped(model, x, y, lambda run, row, target: loss(run(row), target[None]).sum())


@exercise.mistake
def loss_with_a_dimension(model, loss, x, y):
    """What you give to `grad` returns a tensor of shape (1,), and `grad` takes a number: a tensor without
    dimensions. `loss` gives one number for each row, also for a batch of one; `sum()` makes it a number."""
    return _mapped(model, x, y, lambda run, row, target: loss(run(row[None]), target[None]))


@exercise.mistake
def parameters_mapped_over(model, loss, x, y):
    """`vmap` goes through the first dimension of all that it is given, the parameters too, and these have
    none for the samples. `in_dims=(None, 0, 0)` says that they are the same for each."""
    return _mapped(model, x, y, lambda run, row, target: loss(run(row[None]), target[None]).sum(), in_dims=0)


@exercise.mistake
def other_parameters(model, loss, x, y):
    """Every gradient is zero: the losses were not computed from the tensors by which you differentiate.
    `model(x)` takes the parameters that are in the model; `torch.func.functional_call` takes those that it
    is given."""
    return _mapped(model, x, y, lambda run, row, target: loss(model(row[None]), target[None]).sum())


@exercise.mistake
def sample_by_sample(model, loss, x, y):
    """Your gradients are right, but the samples go back through the layers one after another, each by itself.
    A single backward for all of them gives the gradients of the layers' outputs, in which they are still
    apart."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    rows = []
    for i in range(len(x)):
        losses = loss(model(x[i : i + 1]), y[i : i + 1])
        rows.append(torch.autograd.grad(losses.sum(), parameters))
    return {name: torch.stack([row[k] for row in rows]) for k, name in enumerate(names)}


@sample_by_sample.form
def loss_by_loss(model, loss, x, y):
    losses = loss(model(x), y)
    found = {name: [] for name, _ in model.named_parameters()}
    for single in losses.unbind():
        parts = torch.autograd.grad(single, list(model.parameters()), retain_graph=True)
        for gathered, part in zip(found.values(), parts, strict=True):
            gathered.append(part)
    return {name: torch.stack(parts) for name, parts in found.items()}


@sample_by_sample.form
def backward_and_zero_grad(model, loss, x, y):
    found = {name: [] for name, _ in model.named_parameters()}
    for i in range(len(x)):
        model.zero_grad()
        loss(model(x[i : i + 1]), y[i : i + 1]).sum().backward()
        for name, p in model.named_parameters():
            found[name].append(p.grad)
    model.zero_grad()
    return {name: torch.stack(parts) for name, parts in found.items()}


@sample_by_sample.form
def zero_grad_before_each(model, loss, x, y):
    found = {name: [] for name, _ in model.named_parameters()}
    for i in range(len(x)):
        model.zero_grad()
        loss(model(x[i : i + 1]), y[i : i + 1]).sum().backward()
        for name, p in model.named_parameters():
            found[name].append(p.grad.clone())
    return {name: torch.stack(parts) for name, parts in found.items()}


@exercise.mistake
def grads_add_up(model, loss, x, y):
    """`.grad` is added to, not replaced, so what you read after each sample holds the samples before it
    too."""
    found = {name: [] for name, _ in model.named_parameters()}
    for i in range(len(x)):
        loss(model(x[i : i + 1]), y[i : i + 1]).sum().backward()
        for name, p in model.named_parameters():
            found[name].append(p.grad.clone())
    return {name: torch.stack(parts) for name, parts in found.items()}


@exercise.mistake
def through_the_whole_batch(model, loss, x, y):
    """Your gradients are right, but each of the losses is sent back through the whole batch, with zeros for
    all samples but one: the work grows with the square of the samples, though it is one call."""
    losses = loss(model(x), y)
    picks = torch.eye(len(x), device=x.device, dtype=losses.dtype)
    parts = torch.autograd.grad(losses, list(model.parameters()), picks, is_grads_batched=True)
    return {name: part for (name, _), part in zip(model.named_parameters(), parts, strict=True)}


@through_the_whole_batch.variant
def mapped_over_losses(model, loss, x, y):
    parameters = dict(model.named_parameters())
    losses = loss(model(x), y)

    def back(pick):
        return torch.autograd.grad(losses, list(parameters.values()), pick, retain_graph=True)

    parts = torch.vmap(back)(torch.eye(len(losses), device=x.device))
    return dict(zip(parameters, parts, strict=True))


@exercise.mistake
def averaged(model, loss, x, y):
    """You differentiated the mean of the losses, so each gradient is divided by the number of samples. In the
    sum each sample counts in full."""
    return _gradients(model, loss, x, y, total=torch.mean)


@averaged.variant
def mean_of_the_losses(model, loss, x, y):
    parameters = dict(model.named_parameters())
    copies = {k: p.detach().expand(len(x), *p.shape).requires_grad_() for k, p in parameters.items()}
    names = {id(p): k for k, p in parameters.items()}
    h = x.detach()
    for layer in model:
        if isinstance(layer, nn.Linear):
            h = torch.einsum("noi,ni->no", copies[names[id(layer.weight)]], h)
            h = h if layer.bias is None else h + copies[names[id(layer.bias)]]
        else:
            h = layer(h)
    return dict(zip(copies, torch.autograd.grad(loss(h, y).mean(), list(copies.values())), strict=True))


@exercise.mistake
def of_the_batch(model, loss, x, y):
    """These are the gradients of the whole batch: the parameters have one `.grad` each, in which the samples
    are added up already."""
    parts = torch.autograd.grad(loss(model(x), y).sum(), list(model.parameters()))
    return {name: part for (name, _), part in zip(model.named_parameters(), parts, strict=True)}


@of_the_batch.form
def the_same_for_all(model, loss, x, y):
    parts = torch.autograd.grad(loss(model(x), y).sum(), list(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    return {name: part.expand(len(x), *part.shape) for name, part in zip(names, parts, strict=True)}


@of_the_batch.form
def the_mean_for_all(model, loss, x, y):
    return {name: part / len(x) for name, part in the_same_for_all(model, loss, x, y).items()}


@of_the_batch.form
def mean_over_the_batch(model, loss, x, y):
    parts = torch.autograd.grad(loss(model(x), y).mean(), list(model.parameters()))
    return {name: part for (name, _), part in zip(model.named_parameters(), parts, strict=True)}


@exercise.mistake
def bias_forgotten(model, loss, x, y):
    """The gradients of the biases are missing, or zero. They are those of the layers' outputs as they are."""
    return _gradients(model, loss, x, y, bias=lambda g: None)


@bias_forgotten.form
def biases_left_at_zero(model, loss, x, y):
    return _gradients(model, loss, x, y, bias=torch.zeros_like)


@bias_forgotten.variant
def weights_only(model, loss, x, y):
    places, outputs = _places(model, x)
    names = {id(p): name for name, p in model.named_parameters()}
    incoming = torch.autograd.grad(loss(outputs, y).sum(), [out for *_, out in places])
    found = {}
    for (layer, before, _), g in zip(places, incoming, strict=True):
        part = torch.einsum("no,ni->noi", g, before.detach())
        found[names[id(layer.weight)]] = part + found.get(names[id(layer.weight)], 0)
    return found


@exercise.mistake
def bias_added_up(model, loss, x, y):
    """The gradients of the biases are added up over the samples, as they are in an ordinary backward. One row
    for each sample was asked for."""
    return _gradients(model, loss, x, y, bias=lambda g: g.sum(0))


@exercise.mistake
def transposed(model, loss, x, y):
    """The gradients of the weights lie on their side. `nn.Linear` keeps its weight as (out, in): the gradient
    of the output comes first, then the input."""
    return _gradients(model, loss, x, y, outer=lambda g, a: a[:, :, None] * g[:, None, :])


@exercise.mistake
def last_place_only(model, loss, x, y):
    """A layer that stands at two places has one gradient, to which both contribute, and in yours one has
    replaced the other."""
    return _gradients(model, loss, x, y, add=lambda old, new: new)


@last_place_only.form
def first_place_only(model, loss, x, y):
    return _gradients(model, loss, x, y, add=lambda old, new: old)


@last_place_only.form
def children_once(model, loss, x, y):
    places, outputs = _places(model, x)
    incoming = torch.autograd.grad(loss(outputs, y).sum(), [out for *_, out in places])
    found, linear = {}, 0
    for name, layer in model.named_children():
        if isinstance(layer, nn.Linear):
            (_, before, _), g = places[linear], incoming[linear]
            linear += 1
            if before.shape[1] != layer.in_features:
                continue
            found[f"{name}.weight"] = g[:, :, None] * before.detach()[:, None, :]
            if layer.bias is not None:
                found[f"{name}.bias"] = g
    return found


@exercise.mistake
def a_name_for_each_place(model, loss, x, y):
    """A layer that stands at two places is in your result under two names, each with a part of its gradient.
    `named_parameters` gives it one name, that of the first place, and the gradient is the sum."""
    places, outputs = _places(model, x)
    incoming = iter(torch.autograd.grad(loss(outputs, y).sum(), [out for *_, out in places]))
    found, inputs = {}, iter(before for _, before, _ in places)
    for name, layer in enumerate(model):
        if isinstance(layer, nn.Linear):
            part = _gathered(layer, [(layer, next(inputs), next(incoming))])
            found |= {f"{name}.{own}": g for own, g in part.items()}
    return found


@exercise.mistake
def product_of_the_sums(model, loss, x, y):
    """For a layer at two places you added up its inputs, and the gradients of its outputs, and multiplied the
    sums. Each gradient belongs to the input at its own place: multiply first, then add."""
    places, outputs = _places(model, x)
    incoming = torch.autograd.grad(loss(outputs, y).sum(), [out for *_, out in places])
    names = {id(p): name for name, p in model.named_parameters()}
    inputs, gradients = {}, {}
    for (layer, before, _), g in zip(places, incoming, strict=True):
        inputs[layer] = inputs.get(layer, 0) + before.detach()
        gradients[layer] = gradients.get(layer, 0) + g
    found = {}
    for layer, g in gradients.items():
        found[names[id(layer.weight)]] = g[:, :, None] * inputs[layer][:, None, :]
        if layer.bias is not None:
            found[names[id(layer.bias)]] = g
    return found


@exercise.mistake
def parameters_replaced(model, loss, x, y):
    """The gradients are right, but the layer at two places has lost its parameters: in their place it holds
    tensors of the call of `functional_call`. By default that function ties what is shared and does not undo
    it; `tie_weights=False` leaves it alone."""
    from torch.func import functional_call, grad, vmap

    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss_of(parameters, row, target):
        return loss(functional_call(model, parameters, (row[None],)), target[None]).sum()

    return vmap(grad(loss_of), in_dims=(None, 0, 0))(parameters, x.detach(), y)


@exercise.mistake
def zeros_of_the_default_dtype(model, loss, x, y):
    """Your gradients have the default dtype, whatever that of the parameters is: `torch.zeros` knows nothing
    of it, and what is added in place takes its dtype. `new_zeros` takes over that of the tensor."""
    found = {name: torch.zeros(len(x), *p.shape, device=p.device) for name, p in model.named_parameters()}
    for name, part in _gradients(model, loss, x, y).items():
        found[name] += part
    return found


@exercise.mistake
def left_in_grad(model, loss, x, y):
    """The gradients are right, but `backward` has written to a `.grad`, that of a parameter or that of `x`.
    `torch.autograd.grad` gives those of the tensors that you name, and leaves nothing behind."""
    places, outputs = _places(model, x.detach())
    for _, _, out in places:
        out.retain_grad()
    loss(outputs, y).sum().backward()
    return _gathered(model, [(layer, before, out.grad) for layer, before, out in places])


@left_in_grad.form
def of_x_too(model, loss, x, y):
    kept = [p.grad for p in model.parameters()]
    for p in model.parameters():
        p.grad = None
    places, outputs = _places(model, x)
    for _, _, out in places:
        out.retain_grad()
    loss(outputs, y).sum().backward()
    found = _gathered(model, [(layer, before, out.grad) for layer, before, out in places])
    for p, grad in zip(model.parameters(), kept, strict=True):
        p.grad = grad
    return found


@exercise.mistake
def grad_cleared(model, loss, x, y):
    """The gradients are right, but a `.grad` that was there before the call has been cleared. It may be what
    somebody is adding up; `torch.autograd.grad` neither reads nor writes a `.grad`, and needs no
    `zero_grad()`."""
    model.zero_grad()
    return _gradients(model, loss, x, y)


@grad_cleared.variant
def all_cleared_after_backward(model, loss, x, y):
    places, outputs = _places(model, x)
    for _, _, out in places:
        out.retain_grad()
    loss(outputs, y).sum().backward()
    model.zero_grad()
    return _gathered(model, [(layer, before, out.grad) for layer, before, out in places])


@grad_cleared.form
def grad_filled_with_zeros(model, loss, x, y):
    model.zero_grad(set_to_none=False)
    return _gradients(model, loss, x, y)


@exercise.mistake
def in_another_mode(model, loss, x, y):
    """The gradients are right, but the model has another mode than before: `eval()` and `train()` set it for
    all layers, and it stays so. Whoever calls has chosen the mode; take the model as it comes."""
    model.eval()
    return _gradients(model, loss, x, y)


@in_another_mode.form
def in_training(model, loss, x, y):
    model.train()
    return _gradients(model, loss, x, y)


@exercise.mistake
def hooks_left_behind(model, loss, x, y):
    """The gradients are right, but your hooks are still on the model: they run at every later forward, and
    keep what they have seen alive. `register_forward_hook` returns a handle that removes the hook."""
    places = []
    for layer in set(model):
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(lambda m, inputs, out: places.append((m, inputs[0].detach(), out)))
    losses = loss(model(x), y)
    incoming = torch.autograd.grad(losses.sum(), [out for _, _, out in places])
    return _gathered(
        model, [(layer, before, g) for (layer, before, _), g in zip(places, incoming, strict=True)]
    )


@exercise.mistake
def graph_left_on(model, loss, x, y):
    """The gradients are right, but some of them hang in a graph. What they were made of requires a gradient
    itself (`x` may, a parameter does, and so does the input of every layer but the first), or a graph was
    asked for. Detach what goes in, or what comes out."""
    return _gradients(model, loss, x, y, keep=True)


@graph_left_on.form
def with_a_graph_of_its_own(model, loss, x, y):
    parameters = dict(model.named_parameters())
    names = {id(p): k for k, p in parameters.items()}
    copies = {k: p.expand(len(x), *p.shape) for k, p in parameters.items()}
    h = x.detach()
    for layer in model:
        if isinstance(layer, nn.Linear):
            h = torch.einsum("noi,ni->no", copies[names[id(layer.weight)]], h)
            h = h if layer.bias is None else h + copies[names[id(layer.bias)]]
        else:
            h = layer(h)
    total = loss(h, y).sum()
    return dict(
        zip(copies, torch.autograd.grad(total, list(copies.values()), create_graph=True), strict=True)
    )
