"""The state is the model's memory, and it is a tensor with a graph. Carried on as it is, it ties the chunks
together: the backward of chunk 8 goes through chunks 8 to 1, and those before have been gone through already.
That is why torch asked for `retain_graph=True`, and why the cost of a pass grows with the square of its
length. `detach` cuts the graph at the border; the numbers go on.

What is lost: no gradient says how an early value helps a forecast across a border. This is truncated
backpropagation through time, and the length of a chunk is the length of the past that it can learn from. With
an optimizer step after each chunk the sick code wouldn't even run: the step changes weights in place that the
earlier chunks have saved for backward."""

healed = {
    "loss = F.mse": "state = state.detach()\n            loss = F.mse",
    "retain_graph=True": "",
}


# Other right answers

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


class _Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 16, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, x, state):
        features, state = self.gru(x, state)
        return self.head(features), state


def _trains(series, seed, model_of, carried, start=None, retain=False):
    torch.manual_seed(seed)
    model, state = model_of(), None
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    x, y = series[:, :-1, None], series[:, 1:, None]
    losses = []
    for _ in range(8):
        state = start(state) if start else None
        optimizer.zero_grad()
        for chunk in range(8):
            here = slice(4 * chunk, 4 * chunk + 4)
            forecast, state = model(x[:, here], state)
            loss = F.mse_loss(forecast, y[:, here])
            loss.backward(retain_graph=retain)
            losses.append(float(loss.detach()))
            state = carried(state)
        optimizer.step()
    return model, losses


def _in_place_after_backward(series, seed):
    def carried(state):
        return state.detach_()

    def zeros(state):
        return torch.zeros(1, len(series), 16)

    return _trains(series, seed, _Forecast, carried, zeros, retain=True)


def _inside_the_model(series, seed):
    class Forecast(_Forecast):
        def forward(self, x, state):
            forecast, state = super().forward(x, state)
            return forecast, state.data

    return _trains(series, seed, Forecast, lambda state: state)


also_right = [_in_place_after_backward, _inside_the_model]


# Mistakes


def _carries_it_over_passes(series, seed):
    def carried(state):
        return state.detach()

    return _trains(series, seed, _Forecast, carried, start=lambda state: state)


def _cuts_every_other_border(series, seed):
    count = 0

    def carried(state):
        nonlocal count
        count += 1
        return state if count % 2 else state.detach()

    return _trains(series, seed, _Forecast, carried, retain=True)


def _reads_all_before(series, seed):
    class Forecast(_Forecast):
        def forward(self, x, read):
            read = x if read is None else torch.cat([read, x], 1)
            before = read[:, : -x.shape[1]]
            with torch.no_grad():
                state = super().forward(before, None)[1] if before.numel() else None
            return super().forward(x, state)[0], read

    return _trains(series, seed, Forecast, lambda read: read)


mistakes = [
    Edit(
        "zeros in each chunk",
        "model(x[:, chunk], state)",
        "model(x[:, chunk], None)",
        told_by="state_carried",
    ),
    Edit(
        "half of the state", "state = state.detach()", "state = state.detach() / 2", told_by="state_carried"
    ),
    Wrong(_cuts_every_other_border, told_by="own_chunk"),
    Wrong(_carries_it_over_passes, told_by="state_carried"),
    Edit(
        "clears between chunks",
        "            loss.backward()",
        "            optimizer.zero_grad(); loss.backward()",
        told_by="of_all_chunks",
    ),
    Wrong(_reads_all_before, told_by="own_chunk"),
    Edit("longer chunks", "split(4)", "split(8)", told_by="what_stays"),
    Edit("a smaller rate", "lr=0.05", "lr=0.02", told_by="what_stays"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}

equivalent = {
    "line 28: `state.detach()` -> `state.detach_()`": "nothing else refers to this tensor",
    "line 29: `F.mse_loss(forecast, y[:, chunk])` -> `F.mse_loss(y[:, chunk], forecast)`": "squares",
}
