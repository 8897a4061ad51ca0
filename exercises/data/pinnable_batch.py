"""A batch of your own, pinned and moved

A collate function returns a `PinnableBatch`: `inputs` is a dictionary of tensors, `target` a tensor, and
`ids` a list of texts. Give it the two methods that a loader and a training loop call:

- `pin_memory()` returns a batch in which every tensor is pinned, by the tensor's own `pin_memory()`.
- `to(device, non_blocking=False)` returns a batch in which every tensor is on the device. `non_blocking` is
  passed on.
- The batch that they are called on stays as it is, its dictionary included. The `ids` go along.

`batch.pin_memory().to("cuda", non_blocking=True).target` is a tensor on the GPU.
"""

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from course_utils.exercise import Exercise, expect
from course_utils.measure.modes import Watch

exercise = Exercise(
    minutes=10,
    hints=[
        "The two methods differ in what they do to one tensor. Where are the tensors, and how many?",
        "`Tensor.pin_memory` and `Tensor.to` return a tensor and leave their own alone. Put what they return "
        "into a new batch, and into a new dictionary.",
        "Write a third method that takes a function of one tensor and returns a new `PinnableBatch` of what "
        "the function made. The other two call it, each with a `lambda`.",
    ],
)


@exercise.starter
class PinnableBatch:
    """What a collate function returns"""

    def __init__(self, inputs: dict[str, Tensor], target: Tensor, ids: list[str]):
        self.inputs, self.target, self.ids = inputs, target, ids

    def pin_memory(self) -> "PinnableBatch":
        raise NotImplementedError

    def to(self, device: str | torch.device, non_blocking: bool = False):
        raise NotImplementedError


_BATCH = """
tokens, mask = torch.arange(6).view(2, 3), torch.ones(2, 3, dtype=torch.bool)
batch = PinnableBatch({"tokens": tokens, "mask": mask}, torch.tensor([0.5, 1.5]), ["a.txt", "b.txt"])
"""

# Pinning takes an accelerator. For this example a copy does, and is written down.
_PINS = """
from torch.utils._python_dispatch import TorchDispatchMode
class Pins(TorchDispatchMode):
    pinned = []
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op is torch.ops.aten.is_pinned.default: return any(args[0] is x for x in self.pinned)
        if op is not torch.ops.aten._pin_memory.default: return op(*args, **kwargs or {})
        self.pinned.append(args[0].clone())
        return self.pinned[-1]
"""


class _Copies(Watch):
    """Writes down the `non_blocking` of each copy."""

    def __init__(self):
        super().__init__()
        self.non_blocking = []

    def saw(self, op, args, kwargs, run):
        if op in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            given = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
            self.non_blocking.append(bool(given))
        return run()


def _tensors(PinnableBatch, batch):
    """The three tensors of a batch that a method returned, by what they are."""
    said = f"the result is {expect.show(batch)}, expected a PinnableBatch"
    expect.true(isinstance(batch, PinnableBatch), said)
    said = f"its `inputs` are {expect.show(batch.inputs)}, expected a dictionary"
    expect.true(isinstance(batch.inputs, dict), said)
    expect.equal(sorted(batch.inputs), ["mask", "tokens"], what="the list of keys of its `inputs`")
    return {f"`inputs[{k!r}]`": x for k, x in batch.inputs.items()} | {"`target`": batch.target}


@exercise.check(given=f"{_BATCH}{_PINS}")
def pins(PinnableBatch, t):
    """Every tensor is pinned, those in the dictionary too

    The loader looks into tuples, lists and dictionaries, but not into a type like this one: there it calls
    `pin_memory()` and takes what comes back. A tensor that is left out stays in ordinary memory.
    """
    old = _tensors(PinnableBatch, t.batch)
    t.run("with Pins() as pins: came = batch.pin_memory()")
    for name, tensor in _tensors(PinnableBatch, t.came).items():
        expect.a_tensor(tensor, what=name)
        pinned = any(tensor is x for x in t.pins.pinned)
        expect.true(pinned, f"{name} isn't pinned", "expected: what its `pin_memory()` returned")
        expect.equal(tensor, old[name], what=name)


@exercise.check(given=_BATCH)
def moves(PinnableBatch, t, device):
    """Every tensor is on the device

    `Tensor.to` with a device returns a tensor that is there, perhaps the tensor itself. A Python dictionary
    has no `to`: what it holds is found by going through it. A batch may be asked for on two devices, one
    after the other.
    """
    old = _tensors(PinnableBatch, t.batch)
    for where in (str(device), "meta"):
        t.run(f"came = batch.to({where!r})")
        for name, tensor in _tensors(PinnableBatch, t.came).items():
            expect.equal(tensor, old[name].to(where), what=name)


@exercise.check(
    given=_BATCH,
    cases=[
        ("batch.to('meta', non_blocking=True)", True),
        ("batch.to('meta', True)", True),
        ("batch.to('meta')", False),
    ],
)
def non_blocking(t, call, wanted):
    """`non_blocking` is passed on to each tensor

    A copy from pinned memory to a GPU lets Python go on if it's told so: `non_blocking` is `False` by
    default, in `Tensor.to` as well.
    """
    with _Copies() as copies:
        t.call(call)
    expect.equal(copies.non_blocking, [wanted] * 3, what="`non_blocking` of the tensors' copies")


@exercise.check(
    given=_BATCH,
    cases={
        "`pin_memory()`": (_PINS, "with Pins(): came = batch.pin_memory()"),
        "`to('meta')`": ("", "came = batch.to('meta')"),
    },
)
def left_alone(PinnableBatch, t, run):
    """The batch itself stays as it is, and its ids go along

    `nn.Module.to` changes the module, `Tensor.to` leaves its tensor as it is. A batch is data: somebody else
    may hold it, or the dictionary in it, and go on to use it on the CPU. What isn't a tensor goes along as it
    is.
    """
    inputs, before = t.batch.inputs, _tensors(PinnableBatch, t.batch)
    with expect.left_alone(*before.values(), what="`[tokens, mask, target]`"):
        t.run(run)
    _tensors(PinnableBatch, came := t.came)
    expect.true(came is not t.batch, "the result is the batch itself", "expected: a new one")
    expect.true(t.batch.inputs is inputs, "it has another dictionary now", "expected: its own")
    for name, x in _tensors(PinnableBatch, t.batch).items():
        said = f"its {name} is another tensor now"
        expect.true(x is before[name], said, "expected: the one that it had")
    expect.true(came.inputs is not inputs, "both have the same dictionary", "expected: a new one")
    for ids, whose in ((t.batch.ids, "its"), (came.ids, "the result's")):
        expect.equal(ids, ["a.txt", "b.txt"], what=f"{whose} `ids`")


@exercise.check(needs="cuda", given=_BATCH)
def through_a_loader(PinnableBatch, t):
    """On a GPU, a loader gives it out pinned

    With CUDA and `pin_memory=True` a loader calls the method of each batch. Here it's real: the tensors are
    in pinned memory, and arrive on the GPU.
    """
    (batch,) = DataLoader([t.batch], batch_size=None, pin_memory=True)
    for name, tensor in _tensors(PinnableBatch, batch).items():
        expect.true(tensor.is_pinned(), f"{name} isn't pinned", "expected: it is")
    for name, tensor in _tensors(PinnableBatch, batch.to("cuda", non_blocking=True)).items():
        expect.equal(tensor.device.type, "cuda", what=f"the device of {name}")
