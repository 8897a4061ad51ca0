"""Repair: a log with too many entries

Each block computes `hidden = block.up(x).relu()` and returns `block.down(hidden)`. For a log, the largest
number of each `hidden` goes into the list `seen`. After backward the list has twice as many entries. Mend it.

- Each call of the function adds one entry per block, in the order of the blocks, whether backward runs or
  not, and under `no_grad` too. Other calls and `seen.clear()` may come before and between.
- The result and all gradients stay as they are.
- `hidden` is not kept for backward: each block stays in a checkpoint. An entry is a number or a tensor
  without a graph.

`repair_checkpoint_side_effect([], x, seen)` → `x`, with no entry in `seen`.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import checkpoints

exercise = Exercise(
    minutes=7,
    core=True,
    hints=[
        "When does the second half of the entries come, and in which order? Who calls `run` then?",
        "What runs inside a checkpoint may run again. So the line moves out, or knows in which run it is.",
        "A checkpointed function may return two tensors. The second one is small, has no graph, and comes "
        "out of the first run. Nobody asks the recomputation for it.",
    ],
)


@exercise.starter
def repair_checkpoint_side_effect(
    blocks: Sequence[nn.Module], x: Tensor, seen: list
) -> Tensor:
    def run(block, x):
        hidden = block.up(x).relu()
        seen.append(hidden.detach().max())
        return block.down(hidden)

    for block in blocks:
        x = checkpoint(run, block, x, use_reentrant=False)
    return x


_SETUP = """
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 64), nn.Linear(64, 8)

blocks = [Block().to(device) for _ in range(3)]
x, seen = torch.randn(16, 8, device=device), []
"""
_CALL = "repair_checkpoint_side_effect(blocks, x, seen)"
_WAYS = {
    "no backward": f"y = {_CALL}",
    "under `no_grad`": f"with torch.no_grad():\n    y = {_CALL}",
    "one backward": f"{_CALL}.sum().backward()",
    "two steps": f"for _ in range(2):\n    {_CALL}.sum().backward()",
    "the log emptied before backward": f"y = {_CALL}\nseen.clear()\ny.sum().backward()",
    "two calls, then their backwards": f"a, b = {_CALL}, {_CALL}\na.sum().backward()\nb.sum().backward()",
    "after an entry of somebody else's": f"seen.append(-1.0)\n{_CALL}.sum().backward()",
}


def _plain(t):
    """The result without checkpoints, and what is to be in the log."""
    x, seen = t.x, []
    for block in t.blocks:
        hidden = block.up(x).relu()
        seen.append(hidden.max().item())
        x = block.down(hidden)
    return x, seen


@exercise.check(given=_SETUP)
def gradients(t, device):
    """The result and the gradients are those of a run without checkpoints

    Both runs have to save the same tensors, so what only one of them does works on `hidden.detach()`. A
    reentrant checkpoint has a graph only if a tensor that it is given requires grad; `x` doesn't.
    """
    checkpoints.same_step(lambda: t.call(_CALL), lambda: _plain(t)[0], t.blocks)


@exercise.check(given=_SETUP, cases=_WAYS)
def once(t, device, lines):
    """One entry for each block and call, in order, whether backward runs or not

    A checkpoint calls its function again in backward, and this log inside it is written again then. The
    entries don't tell the two runs apart: other calls write to `seen` too, maybe the same numbers. A flag
    does, if a `finally` resets it: the second run ends by an exception.
    """
    entries = _plain(t)[1]
    t.run(lines)
    calls = lines.count(_CALL) + lines.startswith("for") - ("clear" in lines)
    wanted = [-1.0] * ("seen.append" in lines) + calls * entries
    graphs = [n for n, one in enumerate(t.seen) if getattr(one, "requires_grad", False)]
    expect.true(not graphs, f"entries with a graph: {graphs}", "expected: none has a graph")
    expect.equal([float(one) for one in t.seen], wanted, what="`seen`", rtol=1e-4)


@exercise.check(given=_SETUP)
def still_checkpointed(t, device):
    """`hidden` is not kept, in backward's books or anywhere else

    It's eight times as large as the input of a block. A view of it keeps all of it alive.
    """
    checkpoints.keeps(lambda: t.call(_CALL), 3 * t.x.nbytes, "each block keeps its input")
    t.seen.clear()
    t.call(_CALL)
    held = sum(one.untyped_storage().nbytes() for one in t.seen if isinstance(one, Tensor))
    expect.at_most(held, 64, "held by the entries of `seen`", unit="bytes")
    checkpoints.runs(lambda: t.call(_CALL), [block.up for block in t.blocks])
