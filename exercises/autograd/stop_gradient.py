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

from course_utils.exercise import Exercise, Rows, expect
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


def _loss(stop_gradient, setup, device):
    """The example with its `loss`, which has to be a number in the graph of `logits`."""
    t = expect.given(setup, stop_gradient=stop_gradient, device=device)
    t.run("loss = stop_gradient(logits, target)")
    expect.equal(tuple(expect.a_tensor(t.loss).shape), (), what="the shape of the result")
    expect.in_graph(t.loss, of="`logits`")
    return t


def _gradient(logits, target):
    """What is to reach the logits, by the formula: no graph has a part in it."""
    logits, target = logits.detach(), target.detach()
    return (logits.softmax(-1) * target.sum(-1, keepdim=True) - target) / len(logits)


def _has_gradient(tensor, name, wanted):
    expect.true(tensor.grad is not None, f"`{name}.grad` is None after backward", "expected: a gradient")
    expect.equal(tensor.grad, wanted, what=f"`{name}.grad` after backward")


@exercise.check
def right_values(stop_gradient, device):
    """The value is the mean cross-entropy of the rows

    The classes of a sample are in a row: add up its terms, then take the mean over the rows. `log_softmax`
    computes the logarithm without the probability, which may be too small for its dtype. The loss has the
    dtype of the two.
    """
    for setup in (
        "logits = torch.linspace(-2, 2, 20, device=device).reshape(5, 4)\n"
        "target = torch.linspace(0, 9, 20, device=device).reshape(4, 5).t().softmax(-1)",
        "logits = torch.zeros(1, 2, device=device)\ntarget = torch.tensor([[0.25, 0.75]], device=device)",
        "logits = torch.tensor([[0., 300.]], device=device)\n"
        "target = torch.tensor([[0.5, 0.5]], device=device)",
        "logits, target = torch.arange(4.).double().reshape(2, 2), torch.eye(2).double()",
    ):
        t = expect.given(setup, stop_gradient=stop_gradient, device=device)
        factors = {"the number of rows": len(t.logits), "the number of elements": t.logits.numel()}
        divergence = F.kl_div(t.logits.log_softmax(-1), t.target, reduction="batchmean")
        like = {"the KL divergence, which lacks the entropy of `target`": divergence}
        loss = t.call("stop_gradient(logits, target)")
        expect.equal(loss, F.cross_entropy(t.logits, t.target), like=like, factors=factors)


@exercise.check
def one_branch(stop_gradient, device):
    """The gradient reaches `logits`, and nothing behind `target`

    A tensor that requires grad stays in its graph under any name, even if you name it inside `no_grad`. So
    does a clone. `detach` gives a tensor on the same storage with nothing behind it.
    """
    with Rows() as rows:
        with rows.of("a `target` from another network"):
            t = _loss(stop_gradient, _OUTPUT, device)
            t.run("loss.backward()")
            _has_gradient(t.logits, "logits", _gradient(t.logits, t.target))
            _expect_none(t.weight, "weight")
        with rows.of("one from the same network"):
            t = _loss(stop_gradient, _ONE_NETWORK, device)
            t.run("loss.backward()")
            _has_gradient(t.weight, "weight", t.x.t() @ _gradient(t.logits, t.target))
        with rows.of("a leaf"):
            t = _loss(stop_gradient, _LEAF, device)
            t.run("loss.backward()")
            _has_gradient(t.logits, "logits", _gradient(t.logits, t.target))
            _expect_none(t.target, "target")


def _expect_none(leaf, name):
    message = f"`{name}.grad` is {expect.show(leaf.grad)} after backward"
    expect.true(leaf.grad is None, message, "expected: None, since in this loss `target` is a constant")


@exercise.check
def callers_tensors(stop_gradient, device):
    """`logits` and `target` stay what they are to the caller

    `detach_`, `requires_grad_` and `register_hook` change the tensor itself, for all who hold it. `detach`
    returns another tensor on the same storage, so a write to it is a write to `target`.
    """
    t = expect.given(_LEAF, stop_gradient=stop_gradient, device=device)
    with expect.left_alone(t.target, what="`target`"), expect.left_alone(t.logits, what="`logits`"):
        t.run("loss = stop_gradient(logits, target)")
    expect.equal(t.target.requires_grad, True, what="`target.requires_grad` after the call")
    expect.equal(version(t.target), 0, what="the number of writes to `target`")
    # Before the call: a hook on `target` would have its part in this gradient too.
    wanted = expect.given(_OUTPUT, device=device)
    wanted.target[:, 0].sum().backward()
    t = _loss(stop_gradient, _OUTPUT, device)
    kept = "`target` was in the graph of `weight` before the call, and is no longer"
    expect.true(t.target.grad_fn is not None, kept, "expected: it still is")
    t.run("(loss + target[:, 0].sum()).backward()")
    _has_gradient(t.weight, "weight", wanted.weight.grad)


@exercise.check
def written_to_in_between(stop_gradient, device):
    """A write to `target` before backward does no silent harm

    The product keeps `target` for the gradient of `logits`. Backward compares the version at which it was
    kept with the present one. `detach` shares the counter with the original. `.data` has its own, NumPy has
    none, and a tensor on `ctx` without `save_for_backward` isn't compared at all.
    """
    for setup in (_OUTPUT, f"{_OUTPUT}\ntarget = target.detach()"):
        # Compared with the loss's own gradient: whether that is the right one is asked elsewhere.
        before = _loss(stop_gradient, setup, device)
        before.loss.backward()
        t = _loss(stop_gradient, setup, device)
        t.run("with torch.no_grad():\n    target.mul_(0.5)")
        try:
            t.run("loss.backward()")
        except RuntimeError as error:
            if "inplace" not in str(error):
                raise
            continue
        same = before.logits.grad is None or torch.allclose(t.logits.grad, before.logits.grad)
        expect.true(
            same,
            f"backward does not raise, and `logits.grad` is {expect.show(t.logits.grad)}",
            f"without the write it is {expect.show(before.logits.grad)}",
            "expected: backward raises, or the write makes no difference",
        )


@exercise.check
def no_copy(stop_gradient, device):
    """`target` is not copied

    Leave out the graph, not the memory: a constant can read the storage of `target`, whatever its strides
    are. `torch.tensor`, `clone`, a product with one, and `.contiguous()` on a tensor that isn't contiguous
    all make a second storage.
    """
    with Rows() as rows:
        for label, more in {
            "a contiguous `target`": "",
            "a transposed one": "\ntarget = target.t().contiguous().t()",
            "every other column of one": "\ntarget = target.repeat_interleave(2, 1)[:, ::2]",
        }.items():
            with rows.of(label):
                t = expect.given(_OUTPUT + more, stop_gradient=stop_gradient, device=device)
                kept = []

                def pack(tensor, kept=kept):
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
