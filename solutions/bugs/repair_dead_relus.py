"""The bias of -3 was meant for the scores, and it went into every layer. In the first one it lies far below
what the weights bring (a std of 0.7 to 0.8): nearly all units are under 0, for all images. The second layer
gets hardly more than zeros and adds -3 to them: all its units are under 0. Its ReLU returns zeros, and has a
slope of 0 there, so no gradient gets past the last layer: its bias is all that learns.

The last bias stays at -3; the others start at 0, where a unit is above 0 for about half of the images."""

healed = {
    "nn.init.constant_(layer.bias, -3.0)  #": (
        "nn.init.zeros_(layer.bias)\n    nn.init.constant_(model[-1].bias, -3.0)  #"
    )
}


# Other right answers

import torch
from torch import nn

from course_utils.exercise import Edit, Wrong


def _trains(x, y, seed, start, act=nn.ReLU):
    torch.manual_seed(seed)
    layers = nn.Linear(64, 32), act(), nn.Linear(32, 32), act(), nn.Linear(32, 1)
    model = nn.Sequential(nn.Flatten(), *layers)
    with torch.no_grad():
        start(layers[::2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = nn.BCEWithLogitsLoss()(model(x[batch]), y[batch, None])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return model, losses


def _sick(layers):
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        layer.bias.fill_(-3)


def _the_default(x, y, seed):
    return _trains(x, y, seed, lambda layers: layers[-1].bias.fill_(-3))


def _xavier(x, y, seed):
    def start(layers):
        for layer, bias in zip(layers, (0.01, 0.01, -3), strict=True):
            nn.init.xavier_uniform_(layer.weight)
            layer.bias.fill_(bias)

    return _trains(x, y, seed, start)


def _a_last_layer_of_zeros(x, y, seed):
    def start(layers):
        for layer in layers[:2]:
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            layer.bias.zero_()
        layers[2].weight.zero_()
        layers[2].bias.fill_(torch.logit(torch.tensor(0.05)))

    return _trains(x, y, seed, start)


also_right = [_the_default, _xavier, _a_last_layer_of_zeros]


# Mistakes


def _the_first_layer_alone(x, y, seed):
    def start(layers):
        _sick(layers)
        layers[0].bias.zero_()

    return _trains(x, y, seed, start)


def _large_weights(x, y, seed):
    def start(layers):
        _sick(layers)
        for layer in layers:
            nn.init.normal_(layer.weight, std=1.0)

    return _trains(x, y, seed, start)


def _leaky(x, y, seed):
    return _trains(x, y, seed, _sick, nn.LeakyReLU)


_ZEROS, _LOW = "nn.init.zeros_(layer.bias)", "nn.init.constant_(model[-1].bias, -3.0)"
mistakes = [
    Wrong(_the_first_layer_alone, told_by="alive"),
    Edit("a smaller bias everywhere", _ZEROS, "nn.init.constant_(layer.bias, -1.0)", told_by="alive"),
    Edit("no low scores", _LOW, "pass", told_by="first_scores"),
    Wrong(_leaky, told_by="what_stays"),
    Edit("a higher rate", "lr=0.1", "lr=0.2", told_by="what_stays"),
    Edit("a frozen bias", _LOW, f"{_LOW}.requires_grad_(False)", told_by="what_stays"),
    Edit(
        "a weighted loss",
        "(scores, y[batch])",
        "(scores, y[batch], pos_weight=torch.tensor(2.0))",
        told_by="what_stays",
    ),
    Wrong(_large_weights, told_by="first_scores"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}

equivalent = {
    "line 12: `if isinstance(layer, nn.Linear):` -> `if False:`": "the default start of the body is healthy",
    "line 13: `nn.init.kaiming_normal_(layer.weight, nonlinearity='relu')` removed": "so are default weights",
    "line 13: `nn.init.kaiming_normal_(layer.weight, nonlinearity='relu')` -> "
    "`nn.init.kaiming_normal_(layer.weight)`": "the default is a slope of 0 below 0",
    "line 14: `nn.init.zeros_(layer.bias)` removed": "default biases are near 0",
}
