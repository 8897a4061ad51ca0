"""Repair: chunks that cost more and more

The function below learns to forecast sixteen series. It reads them in chunks of four values, and takes a step
after each pass over all chunks. The forecasts get good. But in each pass a chunk takes more time and memory
than the one before, and the real series have a million values. Mend it: each chunk costs what the first does.

- What the model has read in earlier chunks of a pass still counts in later ones.
- The model, the optimizer with its settings, the chunks, one backward for each, the number of steps and what
  the seed decides stay.

`repair_carried_state(series, seed=0)` → `model`, `[0.82, 0.73, …]`: `series` is `(16, 33)`; the losses of
all chunks are Python numbers.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import training_runs

exercise = Exercise(
    minutes=5,
    hints=[
        "Take `retain_graph=True` out and read the error. Whose graph does the second backward enter?",
        "Look at the `grad_fn` of what a chunk hands to the next. The numbers have to go on. And the graph?",
        "`detach` gives the same numbers without a graph. Where does a chunk end?",
    ],
)


@exercise.starter
def repair_carried_state(series: Tensor, seed: int) -> tuple[nn.Module, list[float]]:
    """(16, 33) -> the model, the loss of each chunk"""

    class Forecast(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 16, batch_first=True)
            self.head = nn.Linear(16, 1)

        def forward(self, x, state):
            features, state = self.gru(x, state)
            return self.head(features), state

    torch.manual_seed(seed)
    model = Forecast()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    x, y = series[:, :-1, None], series[:, 1:, None]
    losses = []
    for _ in range(8):
        state = None
        for chunk in torch.arange(32).split(4):
            forecast, state = model(x[:, chunk], state)
            loss = F.mse_loss(forecast, y[:, chunk])
            loss.backward(retain_graph=True)
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return model, losses


class _Healthy(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(1, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, x, state):
        features, state = self.gru(x, state)
        return self.head(features), state.detach()


def _healthy(t, seed):
    torch.manual_seed(seed)
    model = _Healthy()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(8):
        state = None
        for x, y in zip(t.series[:, :-1].split(4, 1), t.series[:, 1:].split(4, 1), strict=True):
            forecast, state = model(x[..., None], state)
            F.mse_loss(forecast[..., 0], y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


_HELD = training_runs.wave(528, seed=100).view(16, 33, 1)
# In seven pairs of rows one chunk differs, another in each; in the eighth, values of the last chunk.
_SERIES = """
series = training_runs.wave(264).view(8, 33).repeat_interleave(2, 0)
for i in range(7):
    series[2 * i, 4 * i : 4 * i + 4] += 1
series[14, 29:] += 1
"""
_CASE = training_runs.Case(
    exercise,
    setup=_SERIES,
    call="model, losses = {name}(series, seed)",
    train=_healthy,
    held=lambda model: F.mse_loss(model(_HELD[:, :-1], None)[0], _HELD[:, 1:]),
    seeds=(0, 1, training_runs.STAYS),  # `what_stays` and `losses` look at the last one too
)


@exercise.check
def own_chunk(repair_carried_state):
    """Each backward goes through its own chunk's graph, and each value is read once in a pass

    The state has a graph: the one that made it. Handed to the next chunk, it ties the graphs of all chunks
    into one. Backward goes through all of it, and `retain_graph=True` keeps in memory what that needs.
    """
    run = _CASE.treated(repair_carried_state).run
    for number, count in enumerate(run.nodes):
        told = f"in pass {number // 8}, the backward of chunk {number % 8} goes through {count} nodes"
        expect.true(count <= 1.5 * run.nodes[0], told, f"expected: as many as the first, {run.nodes[0]}")
    layers = [layer for forward in run.forwards if forward.step == 0 for layer in forward.layers]
    read = sum(layer.input.numel() for layer in layers if isinstance(layer.module, nn.GRU))
    told = f"in pass 0, {read} values go into the GRU"
    expect.true(read <= 512, told, "expected: 512, those of all series. The state stands for earlier ones")


@exercise.check
def what_stays(repair_carried_state):
    """The model, the series and its chunks, the optimizer and the steps stay

    A backward comes after each chunk. There the graph of the state ends; the features keep theirs.
    """
    expect.equal(len(_CASE.treated(repair_carried_state).run.nodes), 64, what="the number of backwards")
    _CASE.stays(repair_carried_state)


@exercise.check
def state_carried(repair_carried_state):
    """A chunk begins with the state in which the one before ended, a pass with none

    The graph may end where a chunk ends; the numbers go on. With an empty state in each chunk, the model
    forgets at each border what it read. A new pass reads the series from the beginning.
    """
    came = [forward.output for forward in _CASE.treated(repair_carried_state).run.trained]
    healthy = [forward.output for forward in _CASE.healthy().trained]
    for chunk in range(7):
        told = f"two series that differ in chunk {chunk} alone have the same forecasts in chunk {chunk + 1}"
        pair = came[chunk + 1][2 * chunk : 2 * chunk + 2]
        expect.true(not torch.allclose(*pair), told, "expected: others")
        what = f"the forecasts of chunk {chunk + 1} in pass 0"
        expect.equal(came[chunk + 1], healthy[chunk + 1], what=what, rtol=1e-3, atol=1e-4)
    for first in came[8::8]:
        told = "two series that differ in chunk 7 alone have different forecasts in chunk 0 of the next pass"
        same = torch.allclose(*first[14:], rtol=1e-3, atol=1e-4)
        expect.true(same, told, "expected: the same ones, since a pass begins with no state")


@exercise.check
def of_all_chunks(repair_carried_state):
    """A step uses the gradients of all chunks of its pass

    `backward` adds to `.grad`. What is cleared between two chunks is lost for the step.
    """
    _CASE.first_gradients(repair_carried_state)


_CASE.learns(
    "What is learned inside of a chunk makes the state useful beyond it, without a gradient from there."
)
