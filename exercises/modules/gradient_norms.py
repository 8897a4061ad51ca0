"""The gradient of each layer

After a backward, `gradient_norms(model)` returns a dict: for each layer with parameters of its own, under its
path, the L2 norm of their gradients as one long vector, a number. Parameters of submodules don't count. The
path of `model` itself is `""`.

- A parameter that several layers share counts only in the first, as in `named_parameters()`. A layer without
  any other is left out.
- A layer gets `None`, not 0, if none of its parameters has a gradient.
- Gradients may be `float16`, and their squares and norms outside of its range. Don't change them.

With `model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))`, the result may be
`{"0": 1.62, "2": 0.48}`
"""

import math

from torch import nn

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import numbers

exercise = Exercise(
    minutes=12,
    hints=[
        "`model.named_parameters()` gives every parameter once, with its full name. What does the name say "
        "of the layer that holds the parameter?",
        "All of a name up to its last dot is the path of the layer; `rpartition` splits there. Collect "
        "under each path what is not `None`.",
        "The norm of a long vector is the root of the sum of the squared norms of its parts. "
        "`torch.linalg.vector_norm(g, dtype=torch.float32)` squares in `float32`; `item()` makes a number.",
    ],
)


@exercise.starter
def gradient_norms(model: nn.Module) -> dict[str, float | None]:
    raise NotImplementedError


def _expect_norms(gradient_norms, setup, layers, others=False):
    """Under each path the norm of the gradients of these parameters of the layer. `others`: of other paths
    nothing is said here."""
    t = expect.given(setup, gradient_norms=gradient_norms)
    named = t.model.named_parameters(remove_duplicate=False)
    norms = {name: p.grad.double().norm().item() for name, p in named if p.grad is not None}
    found = t.call("gradient_norms(model)")
    expect.true(isinstance(found, dict), f"the result is {expect.show(found)}, expected a dict")
    keys = [path for path in found if path in layers or not others]
    expect.equal(sorted(keys), sorted(layers), what="the list of the keys, sorted,")
    for path, names in layers.items():
        full = [f"{path}.{name}".lstrip(".") for name in names.split()]
        parts = [norms[name] for name in full if name in norms]
        like = {"the sum of the norms of its parameters": sum(parts)}
        wanted = math.hypot(*parts) if parts else None
        expect.equal(found[path], wanted, what=f"the norm of layer {path!r}", rtol=1e-4, like=like)


@exercise.check
def one_vector(gradient_norms):
    """All gradients of a layer are one vector

    The square of the norm of a vector is the sum of the squares of all its elements, so the squared norms of
    its parts add up. The norms themselves don't. A norm is a number of Python's, as `item()` gives it; a
    tensor without dimensions is none.
    """
    setup = """
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4, bias=False), nn.LayerNorm(4))
        model(torch.randn(5, 2)).pow(3).sum().backward()
    """
    layers = {"0": "weight bias", "2": "weight", "3": "weight bias"}
    _expect_norms(gradient_norms, setup, layers, others=True)


@exercise.check
def own_parameters(gradient_norms):
    """A layer has the parameters that it holds itself

    `module.parameters()` goes into all parts of a module, `parameters(recurse=False)` doesn't. An
    `nn.Sequential` holds no parameter itself; an attention layer, or the model, may hold both.
    """
    setup = """
        torch.manual_seed(0)
        model = nn.MultiheadAttention(4, 2)
        model.inner = nn.Sequential(nn.MultiheadAttention(4, 2))
        for p in model.parameters():
            nn.init.normal_(p)
        x = torch.randn(5, 4)
        (model(x, x, x)[0] + model.inner[0](x, x, x)[0]).square().sum().backward()
    """
    layers = {"": "in_proj_weight in_proj_bias", "out_proj": "weight bias"}
    layers |= {"inner.0": layers[""], "inner.0.out_proj": "weight bias"}
    _expect_norms(gradient_norms, setup, layers)


@exercise.check
def shared_once(gradient_norms):
    """A shared parameter counts once

    Tied layers hold one Parameter, with one `.grad`, to which all have added. Counted once, the squares of
    the norms of all layers add up to that of the whole gradient: what `clip_grad_norm_` computes. Where a
    layer shares all that it holds, nothing is left to count there. Two Parameters with equal numbers are two.
    """
    setup = """
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 5))
        model[2].weight = model[0].weight
        model.extend([model[1], nn.Linear(3, 5, bias=False)])
        model[4].weight = model[0].weight
        model[:3](torch.tensor([1, 4])).square().sum().backward()
    """
    _expect_norms(gradient_norms, setup, {"0": "weight", "1": "weight bias", "2": "bias"})
    setup = """
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        model[1].load_state_dict(model[0].state_dict())
        model(torch.randn(5, 2)).square().sum().backward()
    """
    _expect_norms(gradient_norms, setup, dict.fromkeys("01", "weight bias"))


@exercise.check
def without_a_gradient(gradient_norms):
    """No gradient is `None`, and a gradient of zeros is 0

    Backward gives no `.grad` to a frozen parameter, nor to one that the loss doesn't depend on: what was
    `None` stays `None`. A layer whose weight is frozen may still train its bias: one gradient is enough for a
    norm. Behind a dead ReLU the gradient is there, all zeros.
    """
    setup = """
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1), nn.Linear(1, 1))
        model[0].requires_grad_(False)
        model[1].bias.detach().fill_(-100.)
        model[3].weight.requires_grad_(False)
        model[:4](torch.randn(5, 2)).sum().backward()
    """
    _expect_norms(gradient_norms, setup, dict.fromkeys("0134", "weight bias"))


@exercise.check
def half_precision(gradient_norms):
    """Squares and norms of `float16` gradients are taken in a wider dtype

    `float16` ends at 65504: there the square of 300 is infinite, and so may be the norm of a long vector. A
    square of 1e-8 rounds to 0, so 0.0001 is lost. `norm()` squares in `float32`, and its result is rounded to
    the dtype of the gradient.
    """
    for value in (3000.0, 0.0001):
        setup = f"""
            model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 1)).half()
            for p in model.parameters():
                p.grad = torch.full_like(p, {value})
        """
        _expect_norms(gradient_norms, setup, {"0": "weight bias", "1": "weight bias"})


@exercise.check
def left_alone(gradient_norms):
    """The gradients stay as they are

    The optimizer reads the same tensors afterwards, and a GradScaler looks for `inf` and NaN in them. A
    method that ends in `_` writes, and so does `clip_grad_norm_`, which multiplies gradients that are small
    enough by 1. `float()` of a `float32` tensor is the tensor itself.
    """
    for dtype in ("float32", "float16"):
        setup = f"""
            model = nn.Sequential(nn.Linear(2, 4)).to(torch.{dtype})
            model[0].weight.grad = {numbers.ODD}.to(torch.{dtype}).view(4, 2)
        """
        t = expect.given(setup, gradient_norms=gradient_norms)
        with expect.left_alone(t.model, what="`model`", gradients=True):
            t.call("gradient_norms(model)")
