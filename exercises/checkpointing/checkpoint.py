"""A checkpoint, by hand

Write `Checkpoint`: `Checkpoint.apply(fn, *args)` returns what `fn(*args)` returns, a tensor or a tuple of
tensors. Arguments may be tensors, None or anything else. If a tensor among them requires grad, all gradients
are those of `fn(*args)`, of parameters inside `fn` too (zeros will do for None). There is no autocast, no
second derivative. Don't use `torch.utils.checkpoint`.

- `fn` runs once in forward, without a graph, and once in each backward. Until then tensor arguments are kept,
  uncopied, and nothing else large. Backward raises a `RuntimeError` if one was changed in between.
- The second run draws the numbers of the first, on CPU and GPUs.
- Afterwards the generators are as without a checkpoint, also if `fn` raises.

`Checkpoint.apply(torch.sin, x)` → `x.sin()`
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointFunction

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import derivatives

exercise = Exercise(
    minutes=18,
    core=True,
    hints=[
        "Tensors go through `ctx.save_for_backward`. What else does a dropout need to drop the same?",
        "Backward runs `fn` on new leaves with `torch.enable_grad()`, calls `torch.autograd.backward` for "
        "outputs that require grad, and returns `leaf.grad` for tensors, None for `fn` and the rest.",
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


_PLAIN = type("Plain", (), {"apply": staticmethod(lambda fn, *args: fn(*args))})
_SETUP = """
torch.manual_seed(0)
layer = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).to(device)
x, w = (torch.randn(3, 4, device=device, requires_grad=True) for _ in range(2))
index = torch.tensor([2, 0, 0], device=device)
"""
_USES = {
    "data, and a tensor that requires grad": "y = Checkpoint.apply(lambda a, b: layer(a) * b, x.detach(), w)",
    "None, a number and integers": """
y = Checkpoint.apply(lambda a, none, n, i, b: (layer(a)[i] + b[i]) * (none or n), x, None, 3, index, w)""",
    "outputs, one of integers": """
a, i, b = Checkpoint.apply(lambda x: (*x.max(1), layer(x)), x)
y = a @ b""",
    "an output that nobody uses": "y, _ = Checkpoint.apply(lambda x: (layer(x), layer(x * 2)), x)",
    "an argument that is returned": """
a, b = Checkpoint.apply(lambda x: (x, layer(x)), x)
y = a * b""",
    "a tuple of one": "(y,) = Checkpoint.apply(lambda x: (layer(x),), x)",
    "nested": "y = Checkpoint.apply(lambda x: Checkpoint.apply(layer, layer(x)).sin(), x)",
    "two backwards": "y = Checkpoint.apply(layer, x)\ny.sum().backward(retain_graph=True)",
}
_DRAWS = """
runs, last = [], 9
def fn(x):
    runs.append(1 / (last - len(runs)))
    return F.dropout(layer(x), 0.5) * torch.rand(4).to(x.device)
y = Checkpoint.apply(fn, x)
after_forward = torch.rand(2), torch.rand(2, device=device)
y.sum().backward(retain_graph=True)
after_backward, last = (torch.rand(2), torch.rand(2, device=device)), len(runs)  # the next run raises
try:
    torch.autograd.grad(y.sum(), x)
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


@exercise.check(cases=_USES)
def gradients(Checkpoint, device, lines):
    """Results and gradients are those of `fn(*args)`, whatever the arguments and outputs

    A detached copy that requires grad is a new leaf: the second graph ends there, and its `.grad` goes back.
    `torch.autograd.backward` fills the `.grad` of parameters too. Pass it the outputs that require grad.
    """
    _same(Checkpoint, device, f"{lines}\ny.square().sum().backward()")


@exercise.check
def twice(Checkpoint, device):
    """`fn` runs once in forward, without a graph, and once in backward, with one

    `apply` runs `forward` with grad off, and `y.sum().backward()` runs `backward` so. With grad switched on,
    forward builds the graph that a checkpoint is there to avoid; backward needs it.
    """
    fn = "runs = []\ndef fn(x):\n    return runs.append(torch.is_grad_enabled()) or layer(x)\n"
    fn += "y = Checkpoint.apply(fn, x)\ny.sum().backward()"
    t = expect.given(_SETUP + fn, Checkpoint=Checkpoint, device=device)
    own = derivatives.is_made_by(Checkpoint, t.y) and not issubclass(Checkpoint, CheckpointFunction)
    expect.true(own, f"the node of `y` is {t.y.grad_fn}", "expected: the node of your Function")
    expect.equal(t.runs, [False, True], what="grad mode in each run of `fn`")


@exercise.check
def keeps_arguments(Checkpoint, device):
    """Tensor arguments are kept as they are, with their version, and nothing else

    `save_for_backward` keeps a reference and the version of that moment. If a later write to it is counted,
    `ctx.saved_tensors` raises. An attribute of `ctx` keeps no version, and lives as long as the node.
    """
    setup = _SETUP + "x = torch.randn(2048, 4, device=device, requires_grad=True)\n"
    t = expect.given(setup, Checkpoint=Checkpoint, device=device)
    derivatives.keeps(t, "Checkpoint.apply(layer, x)", limit=2**14)  # states: 5,000
    t.run("def step():\n    y = Checkpoint.apply(layer, x * 1)\n    y.sum().backward()\n    return y")
    t.call("step()")  # the gradients are there from here on
    live = measure.live_bytes(t.step)
    expect.at_most(live.held - live.result, 0, "still kept after backward, beside `y`", unit="bytes")
    lines = "a = x * 1\ny = Checkpoint.apply(layer, a).sum()\na.mul_(5)"
    t = expect.given(_SETUP + lines, Checkpoint=Checkpoint, device=device)
    expect.raises(RuntimeError, lambda: t.call("y.backward()"), what="backward, with `a` changed,")


@exercise.check
def same_numbers(Checkpoint, device):
    """The second run draws the same numbers, whatever was drawn in between

    A dropout with another mask is another function. Between forward and backward others have drawn.
    """
    _same(Checkpoint, device, _DRAWS)


@exercise.check
def generators_put_back(Checkpoint, device):
    """Generators are left as without a checkpoint, also if `fn` raises

    Forward draws as `fn` does, and the generator moves on. The second run is to leave no trace: what was set
    before it comes back in a `finally`, or by a context manager.
    """
    _same(Checkpoint, device, _DRAWS, "after_forward after_backward after_raising")
