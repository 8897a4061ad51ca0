"""Repair: weight decay that helps others

The images are noisy and few, so the function below trains with a strong weight decay. It does not help: the
loss on new images is 0.47. Without decay it is 0.26: the model learns the noise by heart. A colleague uses
the decay of 2.0 as well, on the same network, and comes to 0.22. Mend the function.

- Decay is meant for matrices: the weights of the linear layers keep their 2.0.
- One AdamW trains all parameters, with its other settings as they are.
- The layers, the batches, the number of steps and what the seed decides stay.

`repair_decayed_norms(x, y, seed=0)` → `model`, `[1.17, 1.13, …]`: images `x` are `(n, 1, 8, 8)`, classes `y`
are `(n,)`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import training_runs

exercise = Exercise(
    minutes=5,
    hints=[
        "Print the mean of `model[2].weight` before and after training. What pulls at it?",
        "Decay pulls to 0 at every step. What does a layer norm return when its weight and bias are 0?",
        "An optimizer takes a list of groups, dicts with `params` and settings of their own. Two will do: "
        "one for the matrices, and one with a decay of 0 for all that has one dimension.",
    ],
)


@exercise.starter
def repair_decayed_norms(
    x: Tensor, y: Tensor, seed: int
) -> tuple[nn.Module, list[float]]:
    """(n, 1, 8, 8), (n,) -> the model, the loss of each step"""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.LayerNorm(32),
        nn.ReLU(),
        nn.Linear(32, 3),
    )
    # So few steps want a large number:
    # what counts is the rate times the decay, times the steps.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=2.0)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


def _healthy(t, seed):
    torch.manual_seed(seed)
    first, norm, last = nn.Linear(64, 32), nn.LayerNorm(32), nn.Linear(32, 3)
    decayed, spared = [first.weight, last.weight], [first.bias, last.bias, *norm.parameters()]
    groups = [{"params": decayed, "weight_decay": 2.0}, {"params": spared, "weight_decay": 0.0}]
    model = nn.Sequential(nn.Flatten(), first, norm, nn.ReLU(), last)
    return training_runs.trained(
        model, F.cross_entropy, t.x, t.y, lambda _, lr: torch.optim.AdamW(groups, lr), lr=0.02
    )


_CASE = training_runs.Case(exercise, train=_healthy)


@exercise.check
def spared(repair_decayed_norms):
    """Decay pulls at matrices; biases and the layer norm are spared

    A bias says where a threshold lies, and the weight of a layer norm, which begins at 1, how large its
    result is; what decay takes from it, the next layer has to make up for. AdamW decays each parameter that
    it steps, by the decay of its group.
    """
    t = _CASE.treated(repair_decayed_norms)
    for number, step in enumerate(t.run.steps):
        groups = zip(step.optimizer.param_groups, step.groups, strict=False)
        decays = {id(p): settings["weight_decay"] for group, settings in groups for p in group["params"]}
        for name, p in t.model.named_parameters():
            told = f"`{name}` is in no group of the optimizer of step {number}"
            expect.true(id(p) in decays, told, "expected: one AdamW with all parameters")
            what = f"at step {number} the weight decay of `{name}`, of shape {tuple(p.shape)},"
            expect.equal(float(decays[id(p)]), 2.0 if p.ndim > 1 else 0.0, what=what)


@exercise.check
def what_stays(repair_decayed_norms):
    """The layers, the batches, the steps and the other settings of AdamW stay

    `Adam` adds its decay to the gradient, where it is divided by the gradient's own size; `AdamW` takes it
    from the parameter.
    """
    _CASE.stays(repair_decayed_norms, free=("weight_decay",))


_CASE.learns(
    "The scores are the last matrix times what the layer norm lets through. With both decayed they stay "
    "small."
)
