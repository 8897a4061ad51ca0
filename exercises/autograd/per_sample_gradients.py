"""The gradient of every sample, in one backward

Return a dict with a tensor for each name in `model.named_parameters()`. Its entry `i` is the gradient of the
loss of sample `i` alone.

`model` is a Sequential of `nn.Linear` layers, with or without bias, each once, and elementwise functions
without parameters, none in place, some twice. All parameters require grad. `x` and `y` have an entry for
each sample, and `loss(outputs, y)` returns as many losses.

- Run one forward and one backward. Memory grows with the number of samples, not its square.
- You may use `torch.func`.
- Change neither model nor data: touch no `.grad`, leave no hook.
- The gradients have no graph, even if `x` requires grad.

`nn.Sequential(nn.Linear(1, 1, bias=False))`, `torch.tensor([[2.], [3.]])`, a loss that returns
`outputs[:, 0]` → `{'0.weight': [[[2.]], [[3.]]]}`
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import graphs, modules

exercise = Exercise(
    minutes=25,
    hints=[
        "In such a model the samples of a batch meet in one place only: the parameters, where their "
        "gradients are added up. The gradient of the *output* of a layer still has a row for each sample. So "
        "has its input.",
        "For one sample the gradient of a linear layer's weight is the product of a column and a row: the "
        "gradient of the layer's output, and the layer's input. The gradient of the bias is the first of the "
        "two as it is.",
        "Run the layers one by one and keep the input and the output of each linear one. One call of "
        "`torch.autograd.grad`, on the sum of the losses, gives the gradients of all these outputs. Then "
        "multiply, with a dimension for the samples in front.",
    ],
)


@exercise.starter
def per_sample_gradients(
    model: nn.Sequential, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """(n, d), (n, ...) -> for each parameter a tensor of shape (n, *its shape)"""
    raise NotImplementedError


_CALL = "per_sample_gradients(model, loss, x, y)"
_LABELS = "loss = lambda outputs, y: F.cross_entropy(outputs, y, reduction='none')"
_SQUARES = "loss = lambda outputs, y: (outputs - y).square().sum(1)"


def _expect_gradients(t):
    """What a forward and a backward of its own give for each sample."""
    names, parameters = zip(*t.model.named_parameters(), strict=True)
    rows = []
    for i in range(len(t.x)):
        total = t.loss(t.model(t.x[i : i + 1]), t.y[i : i + 1]).sum()
        rows.append(torch.autograd.grad(total, parameters))
    wanted = {name: torch.stack([row[k] for row in rows]) for k, name in enumerate(names)}
    # Of a single sample the sum is the gradient itself.
    summed = wanted if len(rows) > 1 else {}
    all_together = {f"the sum over the samples, for `{name}`": part.sum(0) for name, part in summed.items()}
    expect.equal(t.call(_CALL), wanted, rtol=1e-4, atol=1e-5, like=all_together)


@exercise.check(
    given=f"""torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 2, device=device))
x, y = torch.randn(4, 3, device=device), torch.randn(4, 2, device=device)
{_SQUARES}"""
)
def one_layer(t, device):
    """One linear layer

    For one sample the gradient of `weight`, of shape (out, in), is the product of a column and a row: the
    gradient of the output, and the input. The gradient of `bias` is the gradient of the output. Backward adds
    them up over the samples, and a mean of the losses divides each by their number. `loss` needs the sample
    dimension even for one sample.
    """
    _expect_gradients(t)


_NAMES = """from collections import OrderedDict
layers = {"first": nn.Linear(3, 2), "act": nn.Tanh(), "7": nn.Linear(2, 1), "end": nn.Tanh()}
model = nn.Sequential(OrderedDict(layers))
nn.init.zeros_(model.first.bias)
x, y = torch.randn(4, 3), torch.randn(4, 1)
"""
_TWICE = """act = nn.Tanh()
model = nn.Sequential(nn.Linear(3, 4), act, nn.Linear(4, 5, bias=False), act, nn.Linear(5, 3)).{1}()
x, y = torch.randn({0}, 3).{1}(), torch.arange({0}) % 3
"""


@exercise.check(
    given="torch.manual_seed(0)",
    cases={
        "names of its own": _NAMES + _SQUARES,
        "5 samples": _TWICE.format(5, "float") + _LABELS,
        "one sample": _TWICE.format(1, "float") + _LABELS,
        "float64": _TWICE.format(2, "double") + _LABELS,
    },
)
def several_layers(t):
    """Several layers, one function twice; a single sample; float64; names of any kind

    Without a layer that mixes samples, the loss of a sample depends on its own row in the output of every
    layer. So one backward of the sum gives gradients of these outputs in which the samples are still apart,
    also where there is one: its dimension stays. A function may stand in a model twice: iterating over a
    Sequential gives it both times, `children()` and `modules()` only once. A Sequential of an OrderedDict has
    the names that stand there.
    """
    _expect_gradients(t)


@exercise.check(
    given=f"""torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 3), nn.Tanh().eval(), nn.Linear(3, 2))
model[2].bias.grad = torch.full((2,), 7.)
x, y = {{}}, torch.arange(4) % 2
x.grad = torch.full((4, 3), 7.)
{_LABELS}""".format,
    cases={
        "`x` that requires a gradient": "torch.randn(3, 4).t().requires_grad_()",
        "`x` that requires none": "torch.randn(4, 3)",
    },
)
def left_alone(t):
    """The model, `x` and `y` stay as they are, and the gradients have no graph

    `backward()` adds to the `.grad` of leaves; `torch.autograd.grad` returns the gradients you ask for. A
    hook stays until its handle removes it, and `requires_grad_` changes the caller's tensor. The inputs of
    later layers are in the graph, and so is what you compute from them, unless you detach.
    """
    parameters = dict(t.model.named_parameters())
    with graphs.untouched({**parameters, "x": t.x, "y": t.y}):
        found = t.call(_CALL)
    same = all(t.model.get_parameter(name) is p for name, p in parameters.items())
    expect.true(same, "the model has other parameters than before the call", "expected: those that it had")
    modes = [t.model.training, *(layer.training for layer in t.model)]
    expect.equal(modes, [True, True, False, True], what="`training` of `model` and its layers after the call")
    expect.equal(_hooks(t.model), 0, what="the number of hooks on the model after the call")
    _expect_dict(found)
    for name, g in found.items():
        told = f"the gradient of `{name}` requires a gradient itself: it has a graph"
        expect.true(not expect.a_tensor(g, what=f"`{name}`").requires_grad, told, "expected: none")


def _expect_dict(found):
    expect.true(isinstance(found, dict), f"the result is {expect.show(found)}, expected a dict")


def _hooks(model):
    return sum(len(found) for m in model.modules() for found in modules.hooks_of(m).values())


@exercise.check(
    given=f"""torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Tanh())
x, y = torch.randn(200, 3), torch.randn(200, 2)
{_SQUARES}"""
)
def work(t):
    """One forward and one backward, for all samples together

    An activation runs once in a forward and its derivative once in a backward, for all rows. A backward for
    each loss, even as a batch, goes through all rows for each of them: that grows with the square of the
    number of samples.
    """
    with measure.operators() as ran:
        _expect_dict(t.call(_CALL))
    expect.at_most(ran.count("aten.tanh"), 2, "calls of `tanh` (the model has two)")
    expect.at_most(
        ran.count("aten.tanh_backward"), 2, "calls of the derivative of `tanh` (the model has two)"
    )
    peak = measure.peak_bytes(t.call, _CALL).total
    size = 200 * sum(p.nbytes for p in t.model.parameters())
    what = f"memory at the peak, where all gradients together have {size:,} bytes"
    expect.at_most(peak, 4 * size, what, unit="bytes")
