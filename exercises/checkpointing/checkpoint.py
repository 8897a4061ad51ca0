"""A checkpoint, by hand

Write `Checkpoint`: `Checkpoint.apply(fn, *args)` returns what `fn(*args)` returns, a tensor or a tuple of
tensors, and runs `fn` again in backward. Arguments may be tensors, None or anything else. If a tensor among
them requires grad, all gradients are those of `fn(*args)`, of parameters inside `fn` too. Don't use
`torch.utils.checkpoint`.

- `fn` runs once in forward, without a graph, and once in each backward. Tensor arguments are kept, uncopied,
  and nothing else large. Backward raises a `RuntimeError` if one was changed in between.
- The second run draws the numbers that the first drew, on the CPU and on GPUs.
- Forward and backward leave the generators where they are without a checkpoint, also if `fn` raises.

`Checkpoint.apply(torch.sin, x)` → `x.sin()`
"""

from types import SimpleNamespace

import torch
from torch import Tensor

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import derivatives

exercise = Exercise(
    minutes=18,
    core=True,
    hints=[
        "Tensors go through `ctx.save_for_backward`, the rest onto `ctx`. What else does backward need, so "
        "that a dropout drops the same again?",
        "Backward makes a new leaf of each saved tensor, runs `fn` under `torch.enable_grad()`, and calls "
        "`torch.autograd.backward` for the outputs that require grad (indices don't). It returns None for "
        "`fn`, `leaf.grad` for each tensor, None for the rest.",
        "`torch.random.fork_rng()` puts the generators back, whatever happens inside. Within it, set the "
        "states that forward read with `torch.get_rng_state()` and `torch.cuda.get_rng_state_all()`.",
    ],
)


@exercise.starter
class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, *args):
        raise NotImplementedError

    @staticmethod
    def backward(ctx, *grads: Tensor | None):
        raise NotImplementedError


_PLAIN = SimpleNamespace(apply=lambda fn, *args: fn(*args))  # autograd keeps what it keeps
_SETUP = """
torch.manual_seed(0)
layer = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).to(device)
x, w = (torch.randn(3, 4, device=device, requires_grad=True) for _ in range(2))
index = torch.tensor([2, 0], device=device)
"""
_USES = {
    "data, and a tensor that requires grad": "y = Checkpoint.apply(lambda a, b: layer(a) * b, x.detach(), w)",
    "None, a number and integers": """
def fn(a, bias, scale, index, b):
    return layer(a)[index] * scale + (b[index] if bias is None else bias)
y = Checkpoint.apply(fn, x, None, 3, index, w)""",
    "one tensor twice": "y = Checkpoint.apply(lambda a, b: layer(a) * b, x, x)",
    "two outputs": "a, b = Checkpoint.apply(lambda x: (layer(x), x.exp()), x)\ny = a * b.sin()",
    "an output of integers": "y, where = Checkpoint.apply(lambda x: tuple(layer(x).max(1)), x)",
    "nested": "y = Checkpoint.apply(lambda x: Checkpoint.apply(layer, layer(x)).sin(), x)",
    "two calls": "y = Checkpoint.apply(layer, x * w) * Checkpoint.apply(torch.sin, w)",
    "two backwards": "y = Checkpoint.apply(layer, x)\ny.sum().backward(retain_graph=True)",
}
# Draws from the generators of the CPU and of the device, and may raise.
_DRAWS = """
runs, last = [], 9
def fn(x):
    runs.append(1 / (last - len(runs)))
    return F.dropout(layer(x), 0.5) * torch.rand(4).to(x.device)
y = Checkpoint.apply(fn, x)
after_forward = torch.rand(2), torch.rand(2, device=device)
y.sum().backward(retain_graph=True)
"""
_RAISES = """
after_backward = torch.rand(2), torch.rand(2, device=device)
last = len(runs)  # the next run raises
try:
    y.sum().backward()
except ZeroDivisionError:
    pass
after_raising = torch.rand(2), torch.rand(2, device=device)
"""


def _same(Checkpoint, device, lines, names="y x.grad w.grad layer[0].weight.grad layer[2].bias.grad"):
    """The same lines give the same tensors with a checkpoint and without."""
    device = torch.device("cpu") if device.type == "mps" else device  # its generator isn't asked for
    plain, t = (expect.given(_SETUP + lines, Checkpoint=one, device=device) for one in (_PLAIN, Checkpoint))
    for name in names.split():
        wanted = plain.call(name)
        expect.equal(t.call(name), wanted, what=f"`{name}`")


@exercise.check
def gradients(Checkpoint, device):
    """Results and gradients are those of `fn(*args)`, whatever the arguments and outputs

    A detached copy that requires grad is a new leaf: the second graph ends there, and its `.grad` is what
    goes back. `torch.autograd.backward` also fills the `.grad` of parameters on its way, which are no
    arguments of `apply`. It takes outputs that require grad and no others.
    """
    with Rows() as rows:
        for label, lines in _USES.items():
            with rows.of(label):
                _same(Checkpoint, device, f"{lines}\ny.square().sum().backward()")


@exercise.check
def twice(Checkpoint, device):
    """`fn` runs once in forward, without a graph, and once in backward, with one

    `forward` of a Function runs with grad off, and so does `backward`, unless `create_graph=True`. With grad
    switched on, forward builds the graph that a checkpoint is there to avoid; backward needs it.
    """
    fn = "runs = []\ndef fn(x):\n    runs.append(torch.is_grad_enabled())\n    return layer(x)\n"
    t = expect.given(f"{_SETUP}{fn}y = Checkpoint.apply(fn, x)", Checkpoint=Checkpoint, device=device)
    own = type(t.y.grad_fn) is getattr(Checkpoint, "_backward_cls", None)
    expect.true(own, f"the node of `y` is {t.y.grad_fn}", "expected: the node of your Function")
    t.run("y.sum().backward()")
    expect.equal(t.runs, [False, True], what="grad mode in each run of `fn`")


@exercise.check
def keeps_arguments(Checkpoint, device):
    """Tensor arguments are kept as they are, with their version, and nothing else

    `save_for_backward` keeps a reference and the version of that moment. If the tensor is written to later,
    `ctx.saved_tensors` raises. With an attribute of `ctx` the second run takes the new values.
    """
    setup = "fn = nn.Sequential(*[nn.Linear(64, 64), nn.Tanh()] * 3).to(device)\n"
    setup += "x = torch.randn(128, 64, device=device, requires_grad=True)"
    # The state of a generator has some 5,000 bytes, and is kept too.
    derivatives.keeps(Checkpoint, "Checkpoint.apply(fn, x)", setup, device, limit=2**14)
    changed = "a = x * 1\ny = Checkpoint.apply(layer, a).sum()\na.mul_(5)"
    t = expect.given(_SETUP + changed, Checkpoint=Checkpoint, device=device)
    expect.raises(RuntimeError, lambda: t.call("y.backward()"), what="backward, with `a` changed,")


@exercise.check
def same_numbers(Checkpoint, device):
    """The second run draws the same numbers, whatever was drawn in between

    A dropout with another mask is another function, with other gradients. What a generator draws next depends
    on its state alone, and between forward and backward others have drawn from it.
    """
    _same(Checkpoint, device, _DRAWS)


@exercise.check
def generators_put_back(Checkpoint, device):
    """What is drawn next is what is drawn without a checkpoint, whatever `fn` raises

    The state of a generator belongs to the whole program. Whoever sets it for a while puts it back in a
    `finally`, or in a context manager such as `fork_rng`.
    """
    _same(Checkpoint, device, _DRAWS + _RAISES, "after_forward after_backward after_raising")
