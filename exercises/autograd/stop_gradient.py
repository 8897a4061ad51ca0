"""A loss against a target network

`logits` comes from a network in training. `target` comes from another one: probabilities, a row for each
sample. Return the mean over the rows of their cross-entropy

    -(target * logits.log_softmax(-1)).sum(-1)

Treat `target` as a constant: the gradient reaches `logits` and doesn't go on through `target`. `target` may
require grad, and both may come from one network.

- The caller's tensors stay as they are: other losses go through them.
- Don't copy `target`, not inside an operation either.
- If somebody writes to `target` before backward, backward raises or gives the gradient of the old values.

`stop_gradient(torch.zeros(1, 2), torch.tensor([[0.25, 0.75]]))` → `0.6931`
"""

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import graphs
from course_utils.measure.storage import version

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "The task gives you the formula. Which of its two inputs has a graph that backward should not find? "
        "How do you get a tensor with the same memory and no graph?",
        "The product keeps `target` for the gradient of `logits`. So it matters how you take it out of its "
        "graph: autograd compares the version of what it kept. Which ways share the version counter with "
        "`target`, and which begin a new one?",
        "`detach` gives another tensor that reads the same memory, has no graph, and counts versions "
        "together with the original. `.data` counts its own. A method whose name ends in an underscore "
        "changes the caller's tensor.",
    ],
)


@exercise.starter
def stop_gradient(logits: Tensor, target: Tensor) -> Tensor:
    """(n, classes), (n, classes) -> the loss, without dimensions"""
    raise NotImplementedError


_LOGITS = "logits = torch.tensor([[1., -2., 0.5], [0., 3., 1.]], device=device, requires_grad=True)"
# The output of another network, as the caller has it.
_OUTPUT = f"""{_LOGITS}
weight = torch.tensor([[1., 0.5, -1.], [-0.5, 2., 0.]], device=device, requires_grad=True)
target = weight.softmax(-1)"""
_LEAF = f"""{_LOGITS}
target = torch.tensor([[0., 0.5, 0.5], [0.25, 0.75, 0.]], device=device, requires_grad=True)"""
_ONE_NETWORK = """x = torch.tensor([[1., 2.], [0., -1.], [3., 1.]], device=device)
weight = torch.tensor([[1., 0., -1.], [0.5, -2., 1.]], device=device, requires_grad=True)
logits = x @ weight
target = (2 * logits).softmax(-1)"""


def _loss(t):
    """Makes the `loss`, which has to be a number in the graph of `logits`."""
    t.run("loss = stop_gradient(logits, target)")
    expect.equal(tuple(expect.a_tensor(t.loss).shape), (), what="the shape of the result")
    expect.in_graph(t.loss, of="`logits`")


def _gradient(logits, target):
    """What is to reach the logits, by the formula: no graph has a part in it."""
    logits, target = logits.detach(), target.detach()
    return (logits.softmax(-1) * target.sum(-1, keepdim=True) - target) / len(logits)


def _has_gradient(t, name, wanted):
    grad = getattr(t, name).grad
    expect.true(grad is not None, f"`{name}.grad` is None after backward", "expected: a gradient")
    expect.equal(grad, wanted, what=f"`{name}.grad` after backward")


@exercise.check(
    cases={
        "a transposed `target`": "logits = torch.linspace(-2, 2, 20, device=device).reshape(5, 4)\n"
        "target = torch.linspace(0, 9, 20, device=device).reshape(4, 5).t().softmax(-1)",
        "one row": "logits = torch.zeros(1, 2, device=device)\n"
        "target = torch.tensor([[0.25, 0.75]], device=device)",
        "a large logit": "logits = torch.tensor([[0., 300.]], device=device)\n"
        "target = torch.tensor([[0.5, 0.5]], device=device)",
        "float64": "logits, target = torch.arange(4.).double().reshape(2, 2), torch.eye(2).double()",
    }
)
def right_values(t, device):
    """The value is the mean cross-entropy of the rows

    The classes of a sample are in a row: add up its terms, then take the mean over the rows. `log_softmax`
    computes the logarithm without the probability, which may be too small for its dtype. The loss has the
    dtype of the two.
    """
    factors = {"the number of rows": len(t.logits), "the number of elements": t.logits.numel()}
    divergence = F.kl_div(t.logits.log_softmax(-1), t.target, reduction="batchmean")
    like = {"the KL divergence, which lacks the entropy of `target`": divergence}
    loss = t.call("stop_gradient(logits, target)")
    expect.equal(loss, F.cross_entropy(t.logits, t.target), like=like, factors=factors)


@exercise.check(
    cases={
        "a `target` from another network": (_OUTPUT, "logits", "weight"),
        "one from the same network": (_ONE_NETWORK, "weight", ""),
        "a leaf": (_LEAF, "logits", "target"),
    }
)
def one_branch(t, device, trained, constant):
    """The gradient reaches `logits`, and nothing behind `target`

    A tensor that requires grad stays in its graph under any name, even if you name it inside `no_grad`. A
    recorded `clone` is in the graph too. `detach` gives a tensor on the same storage with nothing behind it.
    """
    _loss(t)
    t.run("loss.backward()")
    wanted = _gradient(t.logits, t.target)
    _has_gradient(t, trained, wanted if trained == "logits" else t.x.t() @ wanted)
    if constant:
        grad = getattr(t, constant).grad
        message = f"`{constant}.grad` is {expect.show(grad)} after backward"
        expect.true(grad is None, message, "expected: None, since in this loss `target` is a constant")


@exercise.check(given=_LEAF)
def callers_tensors(stop_gradient, t, device):
    """`logits` and `target` stay what they are to the caller

    `detach_`, `requires_grad_` and `register_hook` change the tensor itself, for all who hold it. `detach`
    returns another tensor on the same storage, so a write to it is a write to `target`.
    """
    with expect.left_alone(t.target, what="`target`"), expect.left_alone(t.logits, what="`logits`"):
        t.run("loss = stop_gradient(logits, target)")
    expect.equal(t.target.requires_grad, True, what="`target.requires_grad` after the call")
    expect.equal(version(t.target), 0, what="the number of writes to `target`")
    # Before the call: a hook on `target` would have its part in this gradient too.
    wanted = expect.given(_OUTPUT, device=device)
    wanted.target[:, 0].sum().backward()
    _loss(t := expect.given(_OUTPUT, stop_gradient=stop_gradient, device=device))
    kept = "`target` was in the graph of `weight` before the call, and is no longer"
    expect.true(t.target.grad_fn is not None, kept, "expected: it still is")
    t.run("(loss + target[:, 0].sum()).backward()")
    _has_gradient(t, "weight", wanted.weight.grad)


@exercise.check(
    given=_OUTPUT, cases={"a `target` with a graph": "", "one without": "target = target.detach()"}
)
def written_to_in_between(t, device):
    """A write to `target` before backward does no silent harm

    The product keeps `target` for the gradient of `logits`. Backward compares the version at which it was
    kept with the present one. `detach` shares the counter with the original. `.data` has its own, NumPy has
    none, and a tensor on `ctx` without `save_for_backward` isn't compared at all.
    """
    _loss(t)
    # Compared with the loss's own gradient: whether that is the right one is asked elsewhere.
    (before,) = torch.autograd.grad(t.loss, t.logits, retain_graph=True, allow_unused=True)
    t.run("with torch.no_grad():\n    target.mul_(0.5)")
    try:
        t.run("loss.backward()")
    except RuntimeError as error:
        if "inplace" not in str(error):
            raise
        return
    expect.true(
        before is None or torch.allclose(t.logits.grad, before),
        f"backward does not raise, and `logits.grad` is {expect.show(t.logits.grad)}",
        f"without the write it is {expect.show(before)}",
        "expected: backward raises, or the write makes no difference",
    )


@exercise.check(
    given=_OUTPUT,
    cases={
        "a contiguous `target`": "",
        "a transposed one": "target = target.t().contiguous().t()",
        "every other column of one": "target = target.repeat_interleave(2, 1)[:, ::2]",
    },
)
def no_copy(t, device):
    """`target` is not copied

    Leave out the graph, not the memory: a constant can read the storage of `target`, whatever its strides
    are. `torch.tensor`, `clone`, a product with one, and `.contiguous()` on a tensor that isn't contiguous
    all make a second storage.
    """
    kept = []

    def pack(tensor):
        kept.append(tensor.detach())
        return tensor

    with graphs.copies(t.target) as copied, saved_tensors_hooks(pack, lambda kept: kept):
        expect.a_tensor(t.call("stop_gradient(logits, target)"))
    said = copied and f"{copied[0].said}, on `target`"
    expect.true(not copied, said, "expected: operators that read it where it is")
    for tensor in kept:
        if tensor.shape == t.target.shape and torch.equal(tensor, t.target):
            what = "what the loss keeps of the numbers of `target`"
            expect.same_storage(tensor, t.target, what=what, of="`target`")
