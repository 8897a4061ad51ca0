"""An evaluation that leaves no trace

Return the mean cross-entropy and the accuracy of `model` over all examples of `loader`, as two Python floats.
`model(x)` gives a row of logits for each example, `y` holds the right classes. Batches differ in size.

- The model runs in evaluation mode, without a graph.
- Afterwards each part of the model is in the mode that it had, also when the model raises or is interrupted.
- Python waits for the device at most twice, whatever the number of batches.

`evaluate(model, loader)` → `(0.6931, 0.5)`
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=7,
    core=True,
    hints=[
        "`model.eval()` and `torch.no_grad()` do different things. Which of them changes the model?",
        "A part may be frozen in evaluation mode while the model trains. How do you remember each mode?",
        "Keep each module with its `training` before you switch, and set it back in a `finally`. Sum on the "
        "device what you return, and read it after the loop.",
    ],
)


@exercise.starter
def evaluate(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
) -> tuple[float, float]:
    """() -> mean loss, share of examples whose largest logit is the right class"""
    raise NotImplementedError


_SETUP = """
torch.manual_seed(0)
x, y = torch.randn(10, 3, device=device), torch.tensor([0, 1, 2, 1, 0, 2, 1, 1, 0, 2], device=device)
loader = [(x[:4], y[:4]), (x[4:8], y[4:8]), (x[8:], y[8:])]
body = nn.Sequential(nn.BatchNorm1d(3).eval(), nn.Dropout(0.9))
model = nn.Sequential(nn.Linear(3, 3), body, nn.Linear(3, 3)).to(device)
"""


def _modes(model):
    return {name: module.training for name, module in model.named_modules()}


def _as_before(model, before, when):
    for name, now in _modes(model).items():
        expect.equal(now, before[name], what=f"`training` of `{name or 'model'}` {when}")


@exercise.check
def values(evaluate, device):
    """Both numbers are means over examples, in evaluation mode

    In training mode dropout takes part, and batch norm normalizes each batch by itself. A mean of batch means
    gives the last, smaller batch the weight of a full one.
    """
    t = expect.given(_SETUP, evaluate=evaluate, device=device)
    twin = expect.given(_SETUP, device=device)
    with torch.no_grad():
        logits = twin.model.eval()(twin.x)
        loss = F.cross_entropy(logits, twin.y, reduction="none")
        right = (logits.argmax(1) == twin.y).double()
    t.run("loss, accuracy = evaluate(model, iter(loader))")
    for name, each in {"loss": loss.double(), "accuracy": right}.items():
        found = getattr(t, name)
        expect.true(isinstance(found, float), f"`{name}` is {expect.show(found)}, expected a float")
        means = torch.stack([part.mean() for part in each.split(4)]).mean()
        like = {"the mean of the batch means": means, "that of the last batch": each[8:].mean()}
        came, wanted = torch.tensor(found, dtype=torch.float64), each.mean().cpu()
        expect.equal(came, wanted, what=f"`{name}`", rtol=1e-5, like=like)


@exercise.check
def modes(evaluate, device):
    """Each part is in the mode that it had before

    `train(mode)` sets the mode of a module and of **all** parts inside it: one that somebody has frozen would
    learn again. `module.training = mode` sets it for that module alone.
    """
    for more in ("", "model.eval()", "model.eval()\nbody.train()"):
        t = expect.given(_SETUP + more, evaluate=evaluate, device=device)
        before = _modes(t.model)
        t.run("evaluate(model, loader)")
        _as_before(t.model, before, "after the call")


@exercise.check
def raises(evaluate, device):
    """The modes are put back when the model raises

    What stands after the loop doesn't run when the loop raises. `finally` does. Stopping a cell raises
    `KeyboardInterrupt`, which is no `Exception`.
    """
    with Rows() as rows:
        for error in (RuntimeError, KeyboardInterrupt):
            with rows.of(f"`{error.__name__}`"):
                end = f"def end(m, args):\n    raise {error.__name__}\n\nbody.register_forward_pre_hook(end)"
                t = expect.given(_SETUP + end, evaluate=evaluate, device=device)
                before = _modes(t.model)
                expect.raises(error, lambda t=t: t.run("evaluate(model, loader)"))
                _as_before(t.model, before, f"after the `{error.__name__}`")


@exercise.check
def graph(evaluate, device):
    """Nothing is recorded, and afterwards recording is on or off as before

    `eval()` doesn't switch recording off, and a graph keeps the activations of its batch. After a block of
    `torch.no_grad()` all is as before; a call of `set_grad_enabled(False)` lasts until the next call.
    """
    t = expect.given(_SETUP, evaluate=evaluate, device=device)
    recorded = []
    t.model[2].register_forward_hook(lambda module, args, out: recorded.append(out.requires_grad))
    t.run("evaluate(model, loader)")
    expect.equal(len(recorded), 3, what="the number of forwards")
    expect.true(not any(recorded), "the logits have a graph", "expected: none")
    expect.true(torch.is_grad_enabled(), "recording is off after the call", "expected: on, as before")
    t.run("with torch.no_grad():\n    evaluate(model, loader)\n    on = torch.is_grad_enabled()")
    expect.true(not t.on, "recording is on after a call inside `torch.no_grad()`", "expected: off, as before")


@exercise.check
def waits(evaluate, device):
    """Python waits at most twice

    `.item()` waits for all that is in the queue. Once a batch is too often.
    """
    for times in (2, 5):
        t = expect.given(_SETUP + f"loader = loader * {times}", evaluate=evaluate, device=device)
        with measure.syncs() as found:
            t.run("evaluate(model, loader)")
        told = f"Python waited {found.count()} times over {3 * times} batches, expected: at most 2"
        expect.true(found.count() <= 2, told, *(f"  {line}" for line in found.where[:3]))
