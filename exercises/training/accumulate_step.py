"""One step from many small batches

Make one step of `optimizer`. `micro_batches` is a list of pairs `(x, y)` of unequal sizes. `model(x)` gives
logits `(examples, tokens, classes)`; `y`, `(examples, tokens)`, holds classes, and -100 at tokens that don't
count. The loss is the mean cross-entropy over the tokens that count, in **all** micro-batches together.
Return it, as a 0-d tensor of its own dtype, without a graph.

- The step uses the gradient of that loss, and no older ones.
- Memory holds the graph of one micro-batch at a time.

A micro-batch may have no token that counts. Frozen parameters don't move, also with an old gradient.

`accumulate_step(model, [(x[:2], y[:2]), (x[2:], y[2:])], optimizer)` → `tensor(1.0986)`
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "Two micro-batches have 3 and 40 tokens that count. How much does a token weigh in the mean of 43?",
        "`cross_entropy` divides by the tokens of its own call, unless you ask for the sum. Which number do "
        "you need before the first `backward`?",
        "Count the places where `y` isn't -100, over all micro-batches. Clear the gradients once. For each "
        'micro-batch: the loss with `reduction="sum"`, divided by that count, and `backward`. Then one step.',
    ],
)


@exercise.starter
def accumulate_step(
    model: nn.Module,
    micro_batches: Sequence[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
) -> Tensor:
    """() -> the mean loss over all tokens that count"""
    raise NotImplementedError


_SETUP = """
torch.manual_seed(0)
x, y = torch.randn(7, 5, 4, device=device), torch.randint(3, (7, 5), device=device)
y[0, 2:], y[2, 1:], y[3, 4:] = -100, -100, -100
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
parts = [(x[i:j], y[i:j]) for i, j in [(0, 1), (1, 3), (3, 7)]]
"""
_OLD = "for p in model.parameters():\n    p.grad = torch.ones_like(p)\n"
_KEEPS = "model.register_forward_hook(lambda m, a, out: out.grad_fn.metadata.update(kept=out.detach() + 1))"
_CALL = "accumulate_step(model, parts, optimizer)"


def _loss(model, parts):
    """The loss of one large batch."""
    x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def _compare(t):
    """Makes the call; the optimizer steps once, and finds the gradient of one large batch."""
    weights = {name: p for name, p in t.model.named_parameters() if p.requires_grad}
    frozen = {n: (p, p.detach().clone()) for n, p in t.model.named_parameters() if n not in weights}
    wanted = torch.autograd.grad(_loss(t.model, t.parts), list(weights.values()))
    tokens = sum((y != -100).sum().item() for _, y in t.parts)
    steps = []
    t.optimizer.register_step_pre_hook(
        lambda *_: steps.append([None if p.grad is None else p.grad.clone() for p in weights.values()])
    )
    t.run(_CALL)
    expect.equal(len(steps), 1, what="the number of steps of the optimizer")
    factors = {"the micro-batches": len(t.parts), "the tokens that count": tokens}
    for name, grad, right in zip(weights, steps[0], wanted, strict=True):
        what = f"the gradient of `{name}` at the step"
        expect.equal(grad, right, what=what, rtol=1e-4, atol=1e-6, factors=factors)
    for name, (p, before) in frozen.items():
        expect.unchanged(p.detach(), before, what=f"the frozen `{name}`")


@exercise.check(
    given=_SETUP,
    cases={
        "one micro-batch": "parts = [(x, y)]",
        "equal sizes, unequal numbers of tokens": "parts = [(x[i : i + 2], y[i : i + 2]) for i in (0, 2, 4)]",
        "micro-batches of 1, 2 and 4 examples": "",
        "five micro-batches": "parts = [*zip(x[:4].split(1), y[:4].split(1)), (x[4:], y[4:])]",
        "a micro-batch without a token that counts": "parts[0][1].fill_(-100)",
        "a frozen weight": "model[0].weight.requires_grad_(False)",
    },
)
def gradient(t, device):
    """The gradient is that of one large batch, in one step

    Each token that counts has the same weight in the mean over all micro-batches. A mean of means gives the
    tokens of a micro-batch with few of them more weight. Class 0 counts, -100 doesn't.
    """
    _compare(t)


@exercise.check(
    given=_SETUP,
    cases={
        "gradients from elsewhere": _OLD,
        "a second call": _CALL,
        "one of a frozen weight": f"{_OLD}model[0].weight.requires_grad_(False)",
    },
)
def old(t, device):
    """Older gradients don't count

    `backward` adds to `.grad`, whoever filled it. Before the first `backward` of a step it has to be cleared,
    and between the micro-batches it must not be. SGD steps what has a `.grad`, frozen or not, and
    with weight decay also where that is 0.
    """
    _compare(t)


@exercise.check(
    given=_SETUP,
    cases={
        "tokens in each": "",
        "no token in one": "parts[1][1].fill_(-100)",
        "large logits": "with torch.no_grad():\n    model[2].weight *= 1e3",
        # MPS has no float64.
        "a float64 model": "model.cpu().double()\nparts = [(x.cpu().double(), y.cpu()) for x, y in parts]",
    },
)
def result(t, device):
    """The result is the mean loss over the tokens that count, without a graph

    It is the loss that one large batch would have had. The mean of `cross_entropy` is NaN for a micro-batch
    without a token that counts, and a sum with NaN in it is NaN. With `reduction="sum"` it gives 0. The dtype
    is that of the loss; if `total` is a tensor, `total += loss` keeps its dtype.
    """
    with torch.no_grad():
        wanted, last = _loss(t.model, t.parts), _loss(t.model, t.parts[-1:])
        n = [(y != -100).sum() for _, y in t.parts]
    came = expect.a_tensor(t.call(_CALL))
    expect.true(not came.requires_grad, "the result has a graph", "expected: none")
    like = {"that of the last micro-batch": last, "the last one's share": last * n[-1] / sum(n)}
    expect.equal(came, wanted, rtol=1e-5, like=like, factors={"the micro-batches": 3})


@exercise.check
def one_at_a_time(accumulate_step, device):
    """One graph at a time: more micro-batches need no more memory

    By default `backward` frees what operators have saved for it. What else a node keeps, in its `metadata`
    for example, lives as long as the graph, and a sum of losses refers to all their graphs unless each is
    detached.
    """
    peaks = {}
    for number in (2, 12):
        setup = f"{_SETUP}parts = [(x, y)] * {number}\n{_KEEPS}"
        t = expect.given(setup, accumulate_step=accumulate_step, device=device)
        t.run(_CALL)  # the optimizer has its state now
        peaks[number] = measure.peak_bytes(t.call, _CALL).total
    told = f"peak with 2 micro-batches: {peaks[2]:,} bytes, with 12 of the same size: {peaks[12]:,}"
    expect.true(peaks[12] <= 1.5 * peaks[2], told, "expected: no more than half again as much")
