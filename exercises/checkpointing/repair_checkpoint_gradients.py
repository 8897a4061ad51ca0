"""Repair: layers that don't train

The function below runs each layer in a checkpoint, and then the head. The head trains; the layers have no
gradients, and nothing raises. Mend it.

- All parameters get the gradients that they get without checkpoints. Each layer has some that train.
- Each layer stays in a checkpoint: nothing from inside it is kept.
- `x` is data, and stays as it is. It may hold integers, as the input of an `nn.Embedding` does.

`repair_checkpoint_gradients([nn.Linear(2, 2)], nn.Linear(2, 1), x)` → `head(layer(x))`, of shape `(n, 1)`
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
        "After the first checkpoint, print `x.requires_grad`. What decides it, and what would decide it for "
        "`layer(x)`?",
        "A reentrant checkpoint is a `Function`. Its node is in the graph if a tensor that it was given "
        "requires grad, and the parameters inside a layer are not given to it.",
        "One word is wrong. The other way of checkpointing runs the layer with a graph, and sees all of it.",
    ],
)


@exercise.starter
def repair_checkpoint_gradients(
    layers: Sequence[nn.Module], head: nn.Module, x: Tensor
) -> Tensor:
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=True)
    return head(x)


_SETUP = """
torch.manual_seed(0)
def block():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))

layers = [block().to(device) for _ in range(3)]
head = nn.Linear(8, 1).to(device)
x = torch.randn(16, 8, device=device)
"""
_CALL = "repair_checkpoint_gradients(layers, head, x)"
_INPUTS = {
    "data": "",
    "dropout": "layers = [nn.Sequential(layer, nn.Dropout(0.5)) for layer in layers]",
    "integers": """
layers.insert(0, nn.Embedding(5, 8).to(device))
x = torch.arange(16, device=device) % 5""",
}


@exercise.check(given=_SETUP, cases=_INPUTS)
def gradients(t, device):
    """All layers get the gradients of a run without checkpoints

    A reentrant checkpoint computes under `no_grad`, and its output requires grad if a tensor that it is given
    does. Data don't, so the layers before the head are cut off, and integers can't at all. Dropout draws in
    both runs: the same mask only from the same state of the generator.
    """
    plain = nn.Sequential(*t.layers, t.head)
    checkpoints.same_step(lambda: t.call(_CALL), lambda: plain(t.x), [*t.layers, t.head])


@exercise.check(given=_SETUP)
def still_checkpointed(t, device):
    """Of each layer its input is kept, and nothing from inside

    Inside a layer there are several tensors that are four times as large as its input. A checkpoint inside
    another one may run its layer three times.
    """
    checkpoints.keeps(lambda: t.call(_CALL), 4 * t.x.nbytes, "three layers and the head keep one input each")
    checkpoints.runs(lambda: t.call(_CALL), t.layers)


@exercise.check(given=_SETUP)
def data_left_alone(t, device):
    """`x` doesn't require grad afterwards, and has no `.grad`

    `requires_grad_()` changes the tensor of the caller. From then on computations with the data build a
    graph, and backward computes a gradient that nobody uses.
    """
    with expect.left_alone(t.x, what="`x`"):
        t.call(_CALL).sum().backward()
    expect.true(not t.x.requires_grad, "`x.requires_grad` is True", "expected: False, as before")
