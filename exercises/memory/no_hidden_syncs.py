"""A metric that doesn't wait

The function below computes the mean cross-entropy and the accuracy over the rows whose target isn't -1, and
keeps the best accuracy so far in `best`. On a GPU Python waits several times in each call. Rewrite it so that
Python never waits.

- Both results, the gradients and `best` (the same tensor, written in place) are as before.
- A row with target -1 counts for nothing, even if its logits are inf or nan. Its gradient is zero.
- Where no row counts, both results are 0, and `best` stays.

`no_hidden_syncs(torch.zeros(2, 3), torch.tensor([0, -1]), best)` → `(tensor(1.0986), tensor(1.))`
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import numbers

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "Which lines need a value, or a number of elements, before Python can go on? `measure.syncs` names "
        "them.",
        "`logits[keep]` has as many rows as `keep` has `True`s. What holds the same and has the shape of "
        "`logits`? And which function chooses between two tensors without an `if`?",
        "`torch.where` puts zeros into the rows that don't count, before the loss. Sum, and divide by a "
        "count that is at least 1. `torch.maximum`, `torch.where` and `copy_` write `best` without an `if`.",
    ],
)


@exercise.starter
def no_hidden_syncs(
    logits: Tensor, target: Tensor, best: Tensor
) -> tuple[Tensor, Tensor]:
    """(n, classes), (n,), () -> mean loss (), accuracy ()"""
    keep = target != -1
    if not keep.any():
        return logits.new_zeros(()), logits.new_zeros(())
    loss = F.cross_entropy(logits[keep], target[keep])
    right = 0
    for row in keep.nonzero():
        right += (logits[row].argmax() == target[row]).item()
    accuracy = right / keep.sum().item()
    if accuracy > best:
        best.fill_(accuracy)
    return loss, torch.tensor(accuracy, device=logits.device)


_SETUP = """
torch.manual_seed({})
logits = {}.requires_grad_()
target = torch.tensor({}, device=device)
best = torch.tensor({}, device=device)
""".format
_CALL = "loss, accuracy = no_hidden_syncs(logits, target, best)"
_RANDOM = "torch.randn(6, 4, device=device)"
_SOME, _ALL = "[1, -1, 3, 0, -1, 2]", "[0, 1, 2, 3, 0, 1]"
_BATCHES = (0, _SOME, 0.0), (1, _SOME, 0.9), (2, _ALL, 0.1), (3, "[-1] * 5 + [2]", 0.0)
_LARGE = f"({numbers.hard('6, 4', 'large numbers')['large numbers']}).to(device)"
_LOGITS = {"float64": f"{_RANDOM}.double()", "large": _LARGE, "equal": "torch.zeros(6, 4, device=device)"}


def _truth(t):
    """Loss, gradient and accuracy over the rows that count, each row by itself, in float64."""
    rows = [i for i, one in enumerate(t.target.tolist()) if one >= 0]
    twin = t.logits.detach().double().cpu()[rows].requires_grad_()
    wanted = t.target.cpu()[rows]
    grad = torch.zeros(t.logits.shape, dtype=torch.float64)
    if not rows:
        return 0.0, grad, 0.0
    loss = F.cross_entropy(twin, wanted)
    loss.backward()
    grad[rows] = twin.grad
    return loss.item(), grad, (twin.argmax(1) == wanted).double().mean().item()


def _same(t):
    (loss, grad, accuracy), best = _truth(t), t.best.item()
    with expect.left_alone(t.logits, what="`logits`"), expect.left_alone(t.target, what="`target`"):
        t.run(_CALL)
    expect.equal(t.loss.detach(), t.logits.new_tensor(loss), what="`loss`", factors={"the rows": 6.0})
    expect.close(t.accuracy, torch.tensor(accuracy, dtype=torch.float64), what="`accuracy`")
    best = max(accuracy, best) if (t.target >= 0).any() else best
    expect.equal(t.best, t.best.new_tensor(best), what="`best`")
    if t.loss.requires_grad:
        t.run("loss.backward()")
    came = t.logits.grad if t.logits.grad is not None else torch.zeros_like(t.logits)
    expect.equal(came.cpu(), grad.to(t.logits.dtype), what="`logits.grad`")


@exercise.check(given=_SETUP(0, _RANDOM, _SOME, 0.0))
def waits(t, device):
    """Python doesn't wait

    `if`, `.item()`, `.any()` in a condition need a value. `x[mask]` and `nonzero` need to know how many
    elements come out before their memory can be allocated.
    """
    with measure.syncs() as found:
        t.run(_CALL)
    told = f"number of times that Python waited: {found.count()}, expected: 0"
    expect.true(found.count() == 0, told, *(f"  {line}" for line in found.where[:4]))


@exercise.check(given=_SETUP(2, _RANDOM, _ALL, 0.1))
def same_best(t, device):
    """`best` is the same tensor, and keeps no graph

    Whoever calls holds `best`, or a view of it, and reads it at the end of the epoch. A new tensor doesn't
    reach them, nor does new memory.
    """
    before, address = t.best, t.best.data_ptr()
    t.run(_CALL)
    expect.true(before.data_ptr() == address, "`best` has other memory than before", "expected: the same")
    expect.true(not (before.requires_grad or t.accuracy.requires_grad), "`best` or `accuracy` has a graph")
    expect.equal(before, t.accuracy, what="`best` after the first batch")


@exercise.check(
    given=_SETUP,
    cases={
        f"seed {n}, targets {target}, best {best}": (n, _RANDOM, target, best) for n, target, best in _BATCHES
    }
    | {f"{label} logits": (0, logits, _SOME, 0.0) for label, logits in _LOGITS.items()},
)
def results(t, device):
    """Loss, gradients, accuracy and `best` are as before

    A row that doesn't count is in no sum and in no count. Here the mean divides by the rows that count. The
    caller needs `logits` and `target` later: `best` is all that is written to. `exp` of a large logit is inf,
    so `cross_entropy` takes the maximum off first. Of equal logits `argmax` takes the first.
    """
    _same(t)


@exercise.check(
    given=f"""{_SETUP(0, _RANDOM, _SOME, 0.0)}
with torch.no_grad():
    logits[1] = float('nan')
    logits[4, 2] = float('inf')""",
    cases={
        "only in rows that don't count": "",
        "in a row that counts, too": "with torch.no_grad():\n    logits[0, 2] = float('nan')",
    },
)
def odd_rows(t, device):
    """Rows that don't count may hold inf or nan

    Zero times inf is nan, so multiplying by a mask doesn't switch such a row off, neither forward nor
    backward. `torch.where` before the loss does. A nan in a row that counts shows in the loss.
    """
    _same(t)


@exercise.check(given=_SETUP, cases={f"best {best}": (0, _RANDOM, "[-1] * 6", best) for best in (0.5, -1.0)})
def none_counts(t, device):
    """Where no row counts, the results are 0, and `best` stays

    A mean over nothing is 0 / 0, which is nan. One nan in a sum over batches spoils the whole epoch. An
    accuracy of nothing is no accuracy of 0: `best` may begin below it.
    """
    _same(t)
