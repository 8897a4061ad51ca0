"""With `step_size=3` and `gamma=0.5`, `StepLR` halves the rate at every third `scheduler.step()`. It was
called at each batch, six times an epoch, so that the rate was 0.002 after four epochs. It's called at the end
of each epoch now.

A schedule that is meant for batches, such as a warm-up over steps, belongs in the inner loop. What matters is
that the unit of the schedule is the unit of the calls. Printing the rate now and then shows the fault."""

healed = {
    "            scheduler.step()\n            losses.append(loss.item())\n": (
        "            losses.append(loss.item())\n        scheduler.step()\n"
    )
}


# Other right answers

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _trains(x, y, seed, scheduler_of, by_batch=True):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    step, losses = scheduler_of(optimizer), []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if by_batch:
                step()
        if not by_batch:
            step()
    return model, losses


def _counts_batches(x, y, seed):
    batches = (len(x) + 31) // 32
    return _trains(x, y, seed, lambda o: torch.optim.lr_scheduler.StepLR(o, 3 * batches, 0.5).step)


def _sets_the_rate(x, y, seed):
    def scheduler_of(optimizer):
        epochs = iter(range(1, 9))

        def step():
            optimizer.param_groups[0]["lr"] = 0.5 ** (1 + next(epochs) // 3)

        return step

    return _trains(x, y, seed, scheduler_of, by_batch=False)


def _milestones(x, y, seed):
    return _trains(x, y, seed, lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 6], 0.5).step, False)


also_right = [_counts_batches, _sets_the_rate, _milestones]


# Mistakes


def _six_batches_an_epoch(x, y, seed):
    return _trains(x, y, seed, lambda o: torch.optim.lr_scheduler.StepLR(o, 18, 0.5).step)


def _no_scheduler(x, y, seed):
    return _trains(x, y, seed, lambda optimizer: lambda: None)


mistakes = [
    Wrong(_no_scheduler, told_by="rates"),
    Wrong(_six_batches_an_epoch, told_by="rates"),
    Edit("a gentler schedule", "gamma=0.5", "gamma=0.9", told_by="rates"),
    Edit(
        "before the epoch",
        "    for _ in range(8):\n",
        "    for _ in range(8):\n        scheduler.step()\n",
        told_by="rates",
    ),
    Edit("after all epochs", "        scheduler.step()", "    scheduler.step()", told_by="rates"),
    Edit("no shuffling", "torch.randperm(len(x))", "torch.arange(len(x))", told_by="what_stays"),
    Edit("more epochs", "range(8)", "range(16)", told_by="what_stays"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}
