"""Repair: statistics that count each batch twice

The function below runs a block in a checkpoint. After backward its batch norms have counted two batches:
`num_batches_tracked` and the running statistics have moved twice. Mend it.

- After each forward and its backward, in whatever order, all buffers of the block, other modules' too, are as
  without a checkpoint, and stay the same tensors.
- The result and all gradients stay as they are, with batch statistics in the recomputation too.
- The block stays in one checkpoint, and its modules keep their modes, settings and hooks.

In evaluation a batch norm doesn't count, and nothing is to be mended.

`repair_checkpoint_batch_norm(nn.BatchNorm1d(2), x)` → what the batch norm returns; it has counted one batch.
"""

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import checkpoints, modules

exercise = Exercise(
    minutes=10,
    hints=[
        "The forward has to count, and the recomputation must not. `context_fn` gives each of them a context "
        "manager of its own.",
        "The context of the recomputation can put back what the block changed, in `finally`.",
        "Clone each of `block.buffers()` before the `yield`, and `copy_` it back after. A generator with "
        "`contextlib.contextmanager` makes the context; `contextlib.nullcontext()` is one that does nothing.",
    ],
)


@exercise.starter
def repair_checkpoint_batch_norm(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False)


_SETUP = """
class Counted(nn.ReLU):
    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.tensor(0), persistent=False)
    def forward(self, x):
        self.rows += len(x)
        return super().forward(x)

torch.manual_seed(0)
inner = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16, momentum=None), Counted())
block = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), inner, nn.Linear(16, 4)).to(device)
x, other = torch.randn(8, 4, device=device), torch.randn(8, 4, device=device)
"""
_CALL = "repair_checkpoint_batch_norm(block, x)"
_STEPS = {
    "the first forward": f"y = {_CALL}",
    "the first backward": "y.square().mean().backward()",
    "more forwards, one of them plain": f"y, z = {_CALL}, {_CALL.replace('x)', 'other)')}\nblock(other)",
    "more forwards, and backward of the first": "y.square().mean().backward()",
    "more forwards, and backward of two": "z.square().mean().backward()",
}
_SETTINGS = "training", "momentum", "track_running_stats"
_BLOCKS = {
    "in training": "",
    "in evaluation": "block.eval()",
    "one norm in evaluation": "block[1].eval()",
    "dropout": "block[4] = nn.Sequential(nn.Dropout(0.5), block[4])",
    "a norm without buffers": "block[1] = nn.BatchNorm1d(16, track_running_stats=False).to(device)",
}


@exercise.check(given=lambda more: _SETUP + more, cases=_BLOCKS)
def statistics(t, device, more):
    """After each forward and each backward, the buffers are those of a run without a checkpoint

    The recomputation is one more run, and must leave the buffers as it found them, with all forwards counted
    that came before it. Other modules have buffers too, and `state_dict` doesn't list all. It stops by an
    exception as soon as all saved tensors are there: a `finally` runs then, other code doesn't. It has to
    save what the forward saved; a norm in another mode doesn't.
    """
    names = {"repair_checkpoint_batch_norm": lambda block, x: block(x), "device": device}
    plain = expect.given(_SETUP + more, **names)
    before = dict(t.block.named_buffers())
    for after, line in _STEPS.items():
        t.run(line)
        plain.run(line)
        wanted = dict(plain.block.named_buffers())
        for name, buffer in t.block.named_buffers():
            what = f"buffer `{name}` after {after}"
            expect.equal(buffer, wanted[name], what=what)
            expect.true(buffer is before[name], f"{what} is another tensor", "expected: the same")


@exercise.check(given=_SETUP, cases=_BLOCKS)
def gradients(t, device):
    """The result and the gradients are those of a run without a checkpoint

    The recomputation has the same input, draws the same numbers, and has the statistics of the batch.
    """
    checkpoints.same_step(lambda: t.call(_CALL), lambda: t.block(t.x), [t.block])


@exercise.check(given=_SETUP)
def still_checkpointed(t, device):
    """The block stays in one checkpoint: its input is kept, and every layer runs twice

    To leave the norms out would keep their inputs, which are as large as anything in the block.
    """
    checkpoints.keeps(lambda: t.call(_CALL), t.x.nbytes, "the input of the block", exclude=t.block)
    checkpoints.runs(lambda: t.call(_CALL), [t.block[0], t.block[1], t.inner[1]])


@exercise.check(given=_SETUP + _BLOCKS["one norm in evaluation"])
def modules_left_alone(t, device):
    """Modes, settings and hooks are what they were, after the forward and after backward

    What is changed for the recomputation has to come back, also where it stops early: in a `finally`.
    """
    before = _settings(t.block)
    for when, line in (("the forward", f"y = {_CALL}"), ("backward", "y.sum().backward()")):
        t.run(line)
        for (name, setting), value in _settings(t.block).items():
            what = f"`{setting}` of module `{name}` after {when}"
            expect.equal(value, before.get((name, setting)), what=what)


def _settings(block):
    """What can be changed of a module, by its name and that of the setting."""
    found = {}
    for name, module in block.named_modules():
        found |= {(name, setting): getattr(module, setting, None) for setting in _SETTINGS}
        found[name, "forward"] = "forward" in vars(module)
        found[name, "hooks"] = modules.hooks_of(module)
    return found
