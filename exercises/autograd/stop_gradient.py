"""A loss against a target network

A network in training is compared with a target network. `logits` is what the first one says, `target` what
the second one does: probabilities, a row for each sample. Return the mean over the rows of their
cross-entropy

    -(target * logits.log_softmax(-1)).sum(-1)

as a loss in which `target` is a constant: the gradient reaches `logits`, and does not go on through `target`.
`target` may well require a gradient, and both may come from one network. To everybody else they stay what
they are: the caller has other losses that go through `target`.

`target` is not copied, by you or inside an operator; apart from that any operator of torch's is welcome.
Should somebody write to `target` between your loss and its backward, the gradient is not to be wrong without
notice: backward raises, or the gradient is that of the values which the loss was made of.

`stop_gradient(torch.zeros(1, 2), torch.tensor([[0.25, 0.75]]))` → `0.6931`
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise
from course_utils.measure.modes import Watch, packet
from course_utils.measure.operators import COPIES

exercise = Exercise(
    minutes=10,
    hints=[
        "The loss is written down for you. Which of its two inputs has a graph behind it that backward "
        "should not find, and what would be a tensor with the same memory and no graph?",
        "The product keeps `target` for the gradient of `logits`. So it matters how you take it out of its "
        "graph: autograd compares the version of what it kept. Which ways share the version counter with "
        "`target`, and which begin a new one?",
        "`detach` gives another tensor that reads the same memory, has no graph, and counts versions "
        "together with the original. `.data` counts its own. A name with an underscore at its end changes "
        "the caller's tensor.",
    ],
)


@exercise.starter
def stop_gradient(logits: Tensor, target: Tensor) -> Tensor:
    """(n, classes), (n, classes) -> the loss, without dimensions"""
    raise NotImplementedError


# A target that is the output of another network, as the caller has it.
_TWO_NETWORKS = """logits = torch.tensor([[1., -2., 0.5], [0., 3., 1.]], device=device, requires_grad=True)
weight = torch.tensor([[1., 0.5, -1.], [-0.5, 2., 0.]], device=device, requires_grad=True)
target = weight.softmax(-1)"""


def _gradient(logits, target):
    """What is to reach the logits, by the formula: no graph has a part in it."""
    logits, target = logits.detach(), target.detach()
    return (logits.softmax(-1) * target.sum(-1, keepdim=True) - target) / len(logits)


def _given(stop_gradient, setup, device):
    place = "" if device.type == "cpu" else f", device='{device.type}'"
    return expect.given(setup.replace(", device=device", place), stop_gradient=stop_gradient)


def _loss(t):
    """The loss of the example; it has to be a number in the graph of `logits`."""
    loss = t.call("stop_gradient(logits, target)")
    expect.equal(tuple(expect.a_tensor(loss).shape), (), what="the shape of the result")
    expect.in_graph(loss, of="`logits`")
    return loss


@exercise.check
def right_values(stop_gradient, device):
    """The value is the mean cross-entropy of the rows"""
    for setup in (
        "logits = torch.zeros(1, 2, device=device)\ntarget = torch.tensor([[0.25, 0.75]], device=device)",
        "logits = torch.tensor([[1., -2., 0.5], [0., 3., 1.]], device=device)\n"
        "target = torch.tensor([[0., 1., 0.], [0., 0., 1.]], device=device)",
        "logits = torch.linspace(-2, 2, 20, device=device).reshape(5, 4)\n"
        "target = torch.linspace(0, 9, 20, device=device).reshape(4, 5).t().softmax(-1)",
        "logits = torch.tensor([[0., 300.]], device=device)\n"
        "target = torch.tensor([[0.5, 0.5]], device=device)",
    ):
        t = _given(stop_gradient, setup, device)
        with expect.left_alone(t.logits, what="`logits`"), expect.left_alone(t.target, what="`target`"):
            loss = t.call("stop_gradient(logits, target)")
        expect.equal(loss, F.cross_entropy(t.logits, t.target))


@exercise.check
def one_branch(stop_gradient, device):
    """The gradient reaches `logits`, and nothing behind `target`"""
    t = _given(stop_gradient, _TWO_NETWORKS, device)
    loss = _loss(t)
    found = torch.autograd.grad(loss, (t.logits, t.target), allow_unused=True)
    expect.true(found[0] is not None, "no gradient reaches `logits`", "expected: one does")
    expect.equal(found[0], _gradient(t.logits, t.target), what="the gradient of `logits`")
    evidence.record("gradient of target", found[1])
    expect.true(
        found[1] is None,
        "a gradient goes on through `target`: the network behind it would be trained as well",
        "expected: for this loss `target` is a constant",
    )


@exercise.check
def one_network(stop_gradient, device):
    """The same where both come from one network"""
    setup = """x = torch.tensor([[1., 2.], [0., -1.], [3., 1.]], device=device)
weight = torch.tensor([[1., 0., -1.], [0.5, -2., 1.]], device=device, requires_grad=True)
logits = x @ weight
target = (2 * logits).softmax(-1)"""
    t = _given(stop_gradient, setup, device)
    _loss(t).backward()
    expect.true(t.weight.grad is not None, "no gradient reaches `weight`", "expected: one does")
    wanted = t.x.t() @ _gradient(t.logits, t.target)
    expect.equal(t.weight.grad, wanted, what="`weight.grad` after backward")


@exercise.check
def other_losses(stop_gradient, device):
    """Other losses still reach the network behind `target`"""
    t = _given(stop_gradient, _TWO_NETWORKS, device)
    # Before the call: a hook on `target` would have its part in this gradient too.
    wanted = torch.autograd.grad(t.target[:, 0].sum(), t.weight, retain_graph=True)[0]
    node = t.target.grad_fn
    loss = _loss(t)
    expect.true(
        t.target.requires_grad and t.target.grad_fn is node,
        "`target` was in the graph of `weight` and is no longer: the caller's tensor was changed",
        "expected: it is a constant in your loss only",
    )
    (loss + t.target[:, 0].sum()).backward()
    expect.equal(t.weight.grad, wanted, what="`weight.grad` after `(loss + target[:, 0].sum()).backward()`")


@exercise.check
def a_leaf(stop_gradient, device):
    """A `target` that is a leaf goes on requiring its gradient"""
    setup = """logits = torch.tensor([[1., -2., 0.5]], device=device, requires_grad=True)
target = torch.tensor([[0.5, 0.25, 0.25]], device=device, requires_grad=True)"""
    t = _given(stop_gradient, setup, device)
    loss = _loss(t)
    expect.equal(t.target.requires_grad, True, what="`target.requires_grad` after the call")
    loss.backward()
    expect.equal(t.logits.grad, _gradient(t.logits, t.target), what="`logits.grad` after backward")
    evidence.record("target.grad", t.target.grad)
    expect.true(
        t.target.grad is None,
        f"`target.grad` is {expect.show(t.target.grad)} after backward",
        "expected None",
    )


@exercise.check
def written_to_in_between(stop_gradient, device):
    """A `target` that is written to before backward does no silent harm"""
    for setup in (_TWO_NETWORKS, f"{_TWO_NETWORKS}\ntarget = target.detach()"):
        # Compared with the loss's own gradient: whether that is the right one is asked elsewhere.
        t = _given(stop_gradient, setup, device)
        (wanted,) = torch.autograd.grad(_loss(t), t.logits, allow_unused=True)
        expect.true(wanted is not None, "no gradient reaches `logits`", "expected: one does")
        t = _given(stop_gradient, setup, device)
        loss = _loss(t)
        with torch.no_grad():
            t.target.mul_(0.5)
        try:
            (found,) = torch.autograd.grad(loss, t.logits, allow_unused=True)
        except RuntimeError as error:
            if "inplace" not in str(error):
                raise
            evidence.record("after the write", "fine")
            continue
        expect.true(found is not None, "no gradient reaches `logits`", "expected: one does")
        fine = torch.allclose(found, wanted)
        evidence.record("after the write", "fine" if fine else found)
        expect.true(
            fine,
            "after `target.mul_(0.5)` backward does not raise, and gives another gradient:",
            f"that of `logits` is {expect.show(found)}, it was {expect.show(wanted)}",
            "expected: it raises, or gives the gradient of the values that the loss was made of",
        )


@exercise.check
def no_copy(stop_gradient, device):
    """`target` is not copied"""
    t = _given(stop_gradient, _TWO_NETWORKS, device)
    copies = _Copies(t.target)
    with measure.syncs(device) as waits, _Functions(copies), copies:
        loss = t.call("stop_gradient(logits, target)")
    expect.a_tensor(loss)
    expect.at_most(waits.count("tolist", "item", "float"), 0, "times that values are handed to Python")
    evidence.record("target is copied", bool(copies.seen))
    expect.true(
        not copies.seen,
        f"`target` is copied: {', '.join(dict.fromkeys(copies.seen))}",
        "expected: what is computed with it reads it where it is",
    )
    # A product with one or a sum with zero copies as well. The loss keeps what came of it.
    t, kept = _given(stop_gradient, _TWO_NETWORKS, device), []

    def pack(saved):
        kept.append(saved.detach())
        return kept[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        t.call("stop_gradient(logits, target)")
    place = _place(t.target)
    copied = any(s.shape == t.target.shape and torch.equal(s, t.target) for s in kept if _place(s) != place)
    evidence.record("numbers of target elsewhere", copied)
    expect.true(
        not copied,
        "the loss keeps a tensor with the numbers of `target` in a storage of its own",
        "expected: what it keeps of them reads the storage of `target`",
    )


def _place(tensor):
    return tensor.untyped_storage().data_ptr()


class _Copies(Watch):
    """The operators that were given `tensor`, or a view of it, and do nothing but copy."""

    def __init__(self, tensor):
        super().__init__()
        self.place, self.caller, self.seen = _place(tensor), "", []

    def saw(self, func, args, kwargs, run):
        name = packet(func)
        given = tree_leaves((args, kwargs)) if name in COPIES or name.endswith("_copy") else []
        if any(isinstance(one, Tensor) and _place(one) == self.place for one in given):
            self.seen.append(f"`{name}` ran inside `{self.caller}`")
        return run()


class _Functions(TorchFunctionMode):
    """Tells `copies` which of torch's functions the reader has called."""

    def __init__(self, copies):
        super().__init__()
        self.copies = copies

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.copies.caller = getattr(func, "__name__", "an operator")
        return func(*args, **(kwargs or {}))


# --- the mistakes -----------------------------------------------------------------------------------------


def _mean(logits, constant):
    return -(constant * logits.log_softmax(-1)).sum(-1).mean()


@exercise.mistake
def versions_of_its_own(logits, target):
    """The gradient stops where it should, but a write to `target` before backward goes unnoticed, and the
    gradient is silently that of the new values. Autograd compares the versions of what it saved itself. What
    comes from `target` by `.data`, `set_` or another library counts its versions alone, where `detach` shares
    the counter; and what is kept on `ctx` without `save_for_backward` is not compared at all."""
    return _mean(logits, target.data)


@versions_of_its_own.variant
def built_in_on_data(logits, target):
    return F.cross_entropy(logits, target.data)


@versions_of_its_own.variant
def exchanged(logits, target):
    constant = torch.from_dlpack(target.detach())
    return (constant * logits.log_softmax(dim=1)).sum().neg() / logits.shape[0]


class _KeptByHand(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target):
        ctx.target, ctx.probabilities = target, logits.softmax(-1)
        return _mean(logits, target)

    @staticmethod
    def backward(ctx, grad):
        slopes = ctx.probabilities * ctx.target.sum(-1, keepdim=True) - ctx.target
        return grad * slopes / len(slopes), None


@versions_of_its_own.variant
def kept_without_a_version(logits, target):
    return _KeptByHand.apply(logits, target)


@exercise.mistake
def stops_the_wrong_branch(logits, target):
    """You took `logits` out of its graph. It is `target` that is a constant: as it stands, your loss trains
    the target network towards the one in training, and not the other way round."""
    return _mean(logits.detach(), target)


@stops_the_wrong_branch.variant
def constant_prediction(logits, target):
    with torch.no_grad():
        log_probabilities = torch.log_softmax(logits, dim=-1)
    return (target * log_probabilities).sum(dim=1).mean().neg()


@stops_the_wrong_branch.variant
def data_of_the_prediction(logits, target):
    return _mean(logits.data.clone(), target)


@exercise.mistake
def copies_the_target(logits, target):
    """The gradient stops where it should, but the numbers of `target` were copied: by `torch.tensor(target)`,
    `clone`, a product with one or the like, or inside an operator that rearranges them. A constant can read
    the memory of `target`; what is to be left out is the graph, not the memory."""
    return _mean(logits, torch.tensor(target))


@copies_the_target.variant
def clones_and_detaches(logits, target):
    constant = target.clone().detach()
    return F.cross_entropy(logits, constant)


@copies_the_target.variant
def detaches_and_clones(logits, target):
    return _mean(logits, target.detach().clone())


@copies_the_target.form
def through_a_list(logits, target):
    return _mean(logits, torch.tensor(target.tolist(), device=target.device))


@copies_the_target.form
def times_one(logits, target):
    with torch.no_grad():
        constant = target * 1
    return _mean(logits, constant)


@exercise.mistake
def made_in_inference_mode(logits, target):
    """Your constant was computed in `inference_mode`, and backward needs it: what is computed there counts no
    versions, so autograd cannot save it, and raises. `detach` leaves the graph and can be saved."""
    with torch.inference_mode():
        constant = target.clone()
    return _mean(logits, constant)


@made_in_inference_mode.variant
def computed_in_inference_mode(logits, target):
    with torch.inference_mode():
        weights = 1 * target
    rows = weights * torch.log_softmax(logits, dim=1)
    return rows.sum().neg() / len(rows)


@exercise.mistake
def written_to(logits, target):
    """You wrote to the caller's `target`. `detach` gives another tensor that reads the same memory, so what
    is written to the one (by a method with an underscore at its end, or `out=`) stands in the other too."""
    return _mean(logits, target.detach().clamp_(min=1e-8))


@written_to.variant
def clamped_through_data(logits, target):
    constant = target.detach()
    torch.clamp(constant, 1e-7, 1, out=constant)
    return F.cross_entropy(logits, constant)


@exercise.mistake
def only_what_was_computed(logits, target):
    """You take `target` out of its graph only if it was computed. A leaf that requires a gradient has no
    `grad_fn` either, and gets a gradient from your loss: what counts is `requires_grad`, and `detach` can do
    no harm."""
    constant = target.detach() if target.grad_fn is not None else target
    return _mean(logits, constant)


@exercise.mistake
def softmax_down_the_columns(logits, target):
    """Your `log_softmax` goes down the columns, over the samples. The classes of a sample stand in a row:
    dimension 1, or -1."""
    return -(target.detach() * logits.log_softmax(0)).sum(-1).mean()


@softmax_down_the_columns.variant
def normalised_over_the_samples(logits, target):
    log_probabilities = logits - logits.logsumexp(0)
    return (target.detach() * log_probabilities).sum() / -len(logits)


@exercise.mistake
def log_of_softmax(logits, target):
    """You take the logarithm of a softmax. A probability of e-300 is rounded to 0, and its logarithm is minus
    infinity. `log_softmax` computes the logarithm without the probability."""
    return -(target.detach() * logits.softmax(-1).log()).sum(-1).mean()


@exercise.mistake
def stops_nothing(logits, target):
    """The gradient goes on through `target`. A tensor that requires a gradient stays in its graph under
    another name too, also when the name is given inside `no_grad`: that affects the operators which run in
    it."""
    return _mean(logits, target)


@stops_nothing.variant
def built_in(logits, target):
    return F.cross_entropy(logits, target)


@stops_nothing.variant
def a_name_in_no_grad(logits, target):
    with torch.no_grad():
        constant = target
    return -(logits.log_softmax(-1) * constant).sum() / len(logits)


@exercise.mistake
def a_clone_is_no_constant(logits, target):
    """You cloned `target`. A clone has memory of its own and stays in the graph: the gradient goes through it
    and on to the network behind `target`."""
    return _mean(logits, target.clone())


@exercise.mistake
def stops_everything(logits, target):
    """Your loss has no graph, so nothing can be trained with it. `no_grad` around the whole computation, or a
    `detach` of both inputs or of the loss, also cuts off `logits`."""
    with torch.no_grad():
        return _mean(logits, target)


@stops_everything.variant
def both_detached(logits, target):
    return F.cross_entropy(logits.detach(), target.detach())


@stops_everything.variant
def a_new_leaf(logits, target):
    loss = _mean(logits.detach(), target.detach())
    return loss.requires_grad_() if logits.requires_grad else loss


@exercise.mistake
def detached_in_place(logits, target):
    """`detach_`, with an underscore, changes the caller's tensor: `target` has left its graph for everybody,
    and the caller's other losses no longer reach the network behind it."""
    return _mean(logits, target.detach_())


@detached_in_place.variant
def detached_in_place_first(logits, target):
    target.detach_()
    return F.cross_entropy(logits, target)


@exercise.mistake
def the_callers_flag(logits, target):
    """You changed `requires_grad` of the caller's tensor. On a leaf that has an effect on everybody; on the
    output of a network torch refuses it."""
    target.requires_grad_(False)
    return _mean(logits, target)


@the_callers_flag.variant
def the_attribute(logits, target):
    target.requires_grad = False
    return F.cross_entropy(logits, target)


@the_callers_flag.form
def the_flag_of_a_leaf(logits, target):
    if target.is_leaf:
        target.requires_grad = False
    return _mean(logits, target.detach())


@the_callers_flag.form
def the_flag_and_back(logits, target):
    before = target.requires_grad
    target.requires_grad_(False)
    loss = _mean(logits, target)
    target.requires_grad_(before)
    return loss


@exercise.mistake
def a_hook_that_stays(logits, target):
    """You put a hook on `target` that makes its gradient zero. It does so for every loss that goes through
    `target`, and stays there. A zero is also not the same as no gradient: the network behind is still gone
    through."""
    if target.requires_grad:
        target.register_hook(torch.zeros_like)
    return _mean(logits, target)


@a_hook_that_stays.variant
def times_zero(logits, target):
    if target.requires_grad:
        target.register_hook(lambda gradient: 0 * gradient)
    return F.cross_entropy(logits, target)


@exercise.mistake
def hard_labels(logits, target):
    """You replaced each row of `target` by its largest entry. That stops the gradient, since an index has
    none, and it is another loss: the probabilities count, all of them."""
    return F.cross_entropy(logits, target.argmax(-1))


@exercise.mistake
def divergence(logits, target):
    """The gradient is right, and the value is that of the Kullback-Leibler divergence: the cross-entropy less
    the entropy of `target`."""
    return F.kl_div(logits.log_softmax(-1), target.detach(), reduction="batchmean")


@exercise.mistake
def softmax_of_probabilities(logits, target):
    """You sent `target` through a softmax. Its rows are probabilities already."""
    return _mean(logits, target.detach().softmax(-1))


@exercise.mistake
def sum_over_rows(logits, target):
    """You add the rows up. Their mean was asked for."""
    return -(target.detach() * logits.log_softmax(-1)).sum()


@exercise.mistake
def mean_over_elements(logits, target):
    """You take the mean over all elements. The classes of a row are added up, and the mean is over the
    rows."""
    return -(target.detach() * logits.log_softmax(-1)).mean()


@exercise.mistake
def sign_left_out(logits, target):
    """The sign is the other one: cross-entropy is the sum of the logarithms times minus one."""
    return (target.detach() * logits.log_softmax(-1)).sum(-1).mean()
