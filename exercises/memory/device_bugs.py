"""Repair: tensors on the wrong device

The module below scores tokens against their position and a mask, and has a loss with a weight for each class.
It works on the CPU. After `.to(device)` it fails, or its tensors travel in each forward. Mend it.

- After `.to(device)`, of the module or of one that holds it, every tensor of the forward and of the loss is
  on that device. Nothing is copied from device to device in a call.
- `class_weights` is saved with the module. `positions` and `mask` can be computed again, and aren't saved.
- Results, parameters and their names stay as they are. Nothing names a device.

`DeviceBugs(8, 4, 3).to("meta")(torch.ones(2, 8, dtype=int, device="meta")).device` → `device(type='meta')`
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=10,
    hints=[
        "`module.to` moves parameters and buffers. Which of the tensors below are neither?",
        "`register_buffer(name, tensor)` makes a tensor move with the module. Which argument keeps it out of "
        "the `state_dict`? And which tensor is made anew in each forward?",
        "Three buffers, two of them with `persistent=False`. `torch.arange` in the forward becomes a slice "
        "of one of them, or gets the device of `tokens`.",
    ],
)


@exercise.starter
class DeviceBugs(nn.Module):
    def __init__(self, length: int, width: int, classes: int):
        super().__init__()
        self.embed = nn.Embedding(classes, width)
        self.head = nn.Linear(width, classes)
        self.positions = torch.linspace(-1, 1, length)[:, None]
        self.mask = torch.ones(length, length).tril().bool()
        self.class_weights = torch.arange(1.0, classes + 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, time) -> (batch, time, classes)"""
        time = tokens.shape[1]
        x = self.embed(tokens) + self.positions[:time].to(tokens.device)
        scores = x @ x.mT + torch.arange(time) / 10
        scores = scores.masked_fill(~self.mask[:time, :time], -1e9)
        return self.head(scores.softmax(-1) @ x)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """(batch, time, classes), (batch, time) -> ()"""
        weights = self.class_weights.to(logits.device)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), weight=weights)


_SETUP = """
torch.manual_seed(0)
model = DeviceBugs(8, 4, 3)
tokens, target = torch.randint(3, (2, 6)), torch.randint(3, (2, 6))
"""


@exercise.check(
    given=_SETUP,
    cases=["model.to('meta')", "nn.Sequential(model).to('meta')", "model(tokens)\nmodel.to('meta')"],
)
def moves(t):
    """Everything is on the module's device

    `to` moves the parameters and buffers of a module and of all modules inside, without asking these for a
    method `to`. A tensor in a plain attribute stays where it was made, and `torch.arange` without `device=`
    makes one on the default device, here the CPU.
    """
    t.run("logits = model(tokens.to('meta'))\nloss = model.loss(logits, target.to('meta'))")
    devices = [t.logits.device.type, t.loss.device.type]
    expect.equal(devices, ["meta", "meta"], what="`[logits.device.type, loss.device.type]`")


@exercise.check
def no_copies(DeviceBugs):
    """No tensor travels in a call

    `.to(device)` in a forward copies what is elsewhere: in each call, or in the first if the copy is kept. On
    a GPU that is a transfer, of numbers that don't change. `module.to` has moved buffers before any call.
    """
    copies = {}  # to another dtype where the device is the CPU, to the device too where it isn't
    for device in ("cpu", "meta"):
        moved = ", ".join(f"{name}.to({device!r})" for name in ("model", "tokens", "target"))
        t = expect.given(f"{_SETUP}model, tokens, target = {moved}", DeviceBugs=DeviceBugs)
        with measure.operators() as ops:
            t.run("loss = model.loss(model(tokens), target)")
        copies[device] = ops.count("aten._to_copy", "aten.copy_")
    told = "tensors that are copied from device to device in the call"
    expect.at_most(copies["meta"] - copies["cpu"], 0, told)


@exercise.check(given=_SETUP)
def saved(t):
    """The weights of the classes are saved, the rest is not

    A parameter is what an optimizer trains; a buffer moves and is saved with the module, and isn't trained.
    `persistent=False` keeps it out of the `state_dict`. A saved mask would tie the file to one length.
    """
    names = ["class_weights", "embed.weight", "head.bias", "head.weight"]
    expect.equal(sorted(t.call("model.state_dict()")), names, what="`sorted(model.state_dict())`")
    trained = sorted(t.call("dict(model.named_parameters())"))
    expect.equal(trained, names[1:], what="`sorted(dict(model.named_parameters()))`")


@exercise.check(given=_SETUP)
def same(t):
    """The results are the same

    A loaded module computes with the weights of the file.
    """
    twin = exercise.starter_object(8, 4, 3)
    twin.load_state_dict(t.model.state_dict(), strict=False)
    with expect.left_alone(t.tokens, what="`tokens`"), expect.left_alone(t.target, what="`target`"):
        t.run("logits = model(tokens)")
        with expect.left_alone(t.logits, what="`logits`"):
            t.run("loss = model.loss(logits, target)")
    logits = twin(t.tokens)
    loss = twin.loss(logits, t.target)
    expect.equal(t.logits.detach(), logits.detach(), what="`logits`")
    for shape in ((1, 1), (1, 8)):
        zeros = torch.zeros(shape, dtype=int)
        expect.equal(t.call(f"model(torch.zeros({shape}, dtype=int))").detach(), twin(zeros).detach())
    expect.equal(t.loss.detach(), loss.detach(), what="`loss`")
    loss.backward()
    t.run("loss.backward()")
    expect.equal(t.model.embed.weight.grad, twin.embed.weight.grad, what="`model.embed.weight.grad`")
    t.run("model.load_state_dict(dict(model.state_dict(), class_weights=torch.tensor([5.0, 1.0, 2.0])))")
    twin.class_weights = torch.tensor([5.0, 1.0, 2.0])
    came = t.call("model.loss(logits.detach(), target)")
    expect.equal(came, twin.loss(logits.detach(), t.target), what="the loss with loaded weights")
