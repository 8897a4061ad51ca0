"""An evaluation that leaves the model as it was

Return the mean cross-entropy and the accuracy of `model` over all examples of `loader`, as two Python floats.
`model(x)` gives a row of logits for each example, `y` holds the right classes. Batches differ in size.

- The model runs in evaluation mode, without a graph.
- Afterwards the model is as it was: its tensors and gradients, and the mode of each part. Recording is on or
  off as before. All this holds too if the model or the loader raises, or you interrupt the run.
- Python waits for the device at most twice, whatever the number of batches (at least one).

`evaluate(model, loader)` → `(0.6931, 0.5)`
"""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import numbers

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
    model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]]
) -> tuple[float, float]:
    """() -> mean loss, share of examples whose largest logit is the right class"""
    raise NotImplementedError


_SETUP = """
torch.manual_seed(0)
x, y = torch.randn(11, 3).to(device), torch.tensor([0, 1, 2, 1, 0, 2, 1, 1, 0, 2, 1]).to(device)
loader = [(x[:4], y[:4]), (x[4:10], y[4:10]), (x[10:], y[10:])]
body = nn.Sequential(nn.BatchNorm1d(3).eval(), nn.Dropout(0.9))
model = nn.Sequential(nn.Linear(3, 3), body, nn.Linear(3, 3)).to(device)
"""
_LARGE = f"x.copy_({numbers.hard('11, 3', 'large numbers')['large numbers']})\n"
_RAISES = {
    "the model": "def end(m, args):\n    raise {}\n\nbody.register_forward_pre_hook(end)",
    "the loader": "def batches():\n    yield x[:4], y[:4]\n    raise {}\n\nloader = batches()",
}
_USED = "model(x).sum().backward()\nmodel[0].weight.requires_grad_(False)\n"


@exercise.check(given=_SETUP, cases={"usual logits": "", "large logits": _LARGE})
def values(t, device):
    """Both numbers are means over examples, in evaluation mode

    In training mode dropout takes part, and batch norm normalizes each batch by itself. A mean of batch means
    gives the last, smaller batch the weight of a full one. `cross_entropy` takes logits, and takes off the
    largest first, as its exponential may be infinite. An iterator gives each batch once.
    """
    with torch.no_grad():
        logits, y = copy.deepcopy(t.model).eval()(t.x).cpu(), t.y.cpu()
        loss = F.cross_entropy(logits, y, reduction="none").double()
        right = (logits.argmax(1) == y).double()
    t.run("loss, accuracy = evaluate(model, iter(loader))")
    for name, each in {"loss": loss, "accuracy": right}.items():
        found = getattr(t, name)
        expect.true(isinstance(found, float), f"`{name}` is {expect.show(found)}, expected a float")
        *parts, last = (part.mean() for part in each.split((4, 6, 1)))
        like = {
            "the mean of the batch means": (sum(parts) + last) / 3,
            "that of the last batch": last,
            "the mean without the first batch": each[4:].mean(),
        }
        if name == "loss":
            like["that of the softmax of the logits"] = F.cross_entropy(logits.softmax(1), y)
        came = torch.tensor(found, dtype=torch.float64)
        expect.equal(came, each.mean(), what=f"`{name}`", rtol=1e-5, like=like)


@exercise.check(
    given=_SETUP,
    cases={
        "a part in evaluation mode": "",
        "a model in evaluation mode": "model.eval()",
        "a part in training mode": "model.eval()\nbody.train()",
        "a part that two modules hold": "model.append(nn.Sequential(body))",
        "gradients and a frozen weight": _USED,
    },
)
def modes(t, device):
    """The model is as it was, each part in its own mode

    By default `train(mode)` sets the mode of a module and of **all** registered parts inside it: one that
    somebody keeps in evaluation mode would train again, and one that two modules hold gets the mode of the
    second. `module.training = mode` sets it for that module alone. `requires_grad_` sets all parameters,
    those too that were frozen. What `zero_grad` clears is gone.
    """
    with expect.left_alone(t.model, what="`model`", gradients=True):
        t.run("evaluate(model, loader)")


@exercise.check(
    given=f"{_SETUP}{_USED}",
    cases={
        f"`{error.__name__}` in {who}": (end.format(error.__name__), error)
        for who, end in _RAISES.items()
        for error in (RuntimeError, KeyboardInterrupt)
    },
)
def raises(t, device, error):
    """All is put back when something raises

    What stands after the loop doesn't run when the loop raises. `finally` does. Stopping a cell usually
    raises `KeyboardInterrupt`, which is no `Exception`. A loader raises inside the `for` too.
    """
    with expect.left_alone(t.model, what="`model`", gradients=True):
        expect.raises(error, lambda: t.run("evaluate(model, loader)"))
    told = f"recording is off after the `{error.__name__}`"
    expect.true(torch.is_grad_enabled(), told, "expected: on, as before")


@exercise.check(given=_SETUP)
def graph(t, device):
    """Nothing is recorded, and afterwards recording is on or off as before

    `eval()` doesn't switch recording off, and a graph keeps activations of its batch. After a block of
    `torch.no_grad()` recording is as before; a plain call of `set_grad_enabled(False)` lasts until something
    sets it again.
    """
    recorded = []
    t.model[2].register_forward_hook(lambda module, args, out: recorded.append(out.requires_grad))
    t.run("evaluate(model, loader)")
    expect.equal(len(recorded), 3, what="the number of forwards")
    told = "what `model(x)` returned has a graph: recording was on while the model ran"
    expect.true(not any(recorded), told, "expected: no graph")
    expect.true(torch.is_grad_enabled(), "recording is off after the call", "expected: on, as before")
    t.run("with torch.no_grad():\n    evaluate(model, loader)\n    on = torch.is_grad_enabled()")
    expect.true(not t.on, "recording is on after a call inside `torch.no_grad()`", "expected: off, as before")


@exercise.check(given=_SETUP, cases=["loader = loader * 2", "loader = loader * 5"])
def waits(t, device):
    """Python waits at most twice

    `.item()` waits until the device has computed the number. Once a batch is too often.
    """
    with measure.syncs() as found:
        t.run("evaluate(model, loader)")
    told = f"Python waited {found.count()} times over {len(t.loader)} batches, expected: at most 2"
    expect.true(found.count() <= 2, told, *(f"  {line}" for line in found.where[:3]))
