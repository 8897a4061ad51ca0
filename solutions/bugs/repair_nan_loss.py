"""`where` kept the forward clean: for the dark photo it took the 0, not `0 / 0`. In backward the branch that
was not taken gets a gradient of 0. It goes on through the division: 0 divided by a std of 0, which is NaN.
The loss of that step was still a number. But the gradient of the first weight is a sum over all photos of the
batch, and with one NaN in it the sum is NaN. The step writes that to the weights, and the next loss is NaN.

So the choice comes before the operation that has no slope: where the variance is 0, root and division get a
1. Their slopes are finite there, and 0 over 1 is the 0 that was wanted. A number *below* the root does it
too, as in `F.layer_norm`, if it is small against the variance of a faint photo; beside it, `std + 1e-6`, it
doesn't: the slope of the root at 0 is still infinite. To clip or to clean gradients comes late, when the
other photos of the batch are lost already."""

healed = {
    "            std = h.square().mean(dim=1, keepdim=True).sqrt()\n"
    "            return torch.where(std == 0, 0.0, h / std)\n": (
        "            var = h.square().mean(dim=1, keepdim=True)\n"
        "            std = torch.where(var > 0, var, 1.0).sqrt()\n"
        "            return h / std\n"
    )
}


# Other right answers

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


class _Layer(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, h):
        return self.function(h - h.mean(dim=1, keepdim=True))


def _trains(x, y, seed, scaled, before_step=lambda model: None, kept=slice(None)):
    torch.manual_seed(seed)
    first = nn.Linear(64, 32, bias=False)
    model = nn.Sequential(nn.Flatten(), first, _Layer(scaled), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses, x, y = [], x[kept], y[kept]
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            before_step(model)
            optimizer.step()
            losses.append(loss.item())
    return model, losses


def _std(h):
    return h.square().mean(dim=1, keepdim=True).sqrt()


def _guarded(h):
    return torch.where(_std(h) == 0, 0.0, h / _std(h))


def _by_layer_norm(x, y, seed):
    return _trains(x, y, seed, lambda h: F.layer_norm(h, (32,)))


def _a_little_below_the_root(x, y, seed):
    return _trains(x, y, seed, lambda h: h / (h.square().mean(1, keepdim=True) + 1e-6).sqrt())


def _the_rows_that_are_not_dark(x, y, seed):
    def scaled(h):
        light = h.any(dim=1)
        return torch.zeros_like(h).index_put((light,), h[light] / _std(h[light]))

    return _trains(x, y, seed, scaled)


also_right = [_by_layer_norm, _a_little_below_the_root, _the_rows_that_are_not_dark]


# Mistakes


def _cleans_the_gradients(x, y, seed):
    def cleaned(model):
        for p in model.parameters():
            p.grad.nan_to_num_()

    return _trains(x, y, seed, _guarded, cleaned)


def _leaves_out_the_photo(x, y, seed):
    return _trains(x, y, seed, _guarded, kept=x.flatten(1).any(dim=1))


_SAFE = "torch.where(var > 0, var, 1.0).sqrt()"
_LOSS = "F.cross_entropy(model(x[batch]), y[batch])"
_LIGHT_LOSS = f"(x[batch].flatten(1).any(1) * {_LOSS[:-1]}, reduction='none')).mean()"
mistakes = [
    Edit("a little beside the root", _SAFE, "var.sqrt() + 1e-6", told_by="no_nan_inside"),
    Edit("chooses after the root", _SAFE, "var.sqrt().clamp(min=1e-6)", told_by="no_nan_inside"),
    Wrong(_cleans_the_gradients, told_by="no_nan_inside"),
    Edit("much below the root", _SAFE, "(var + 0.1).sqrt()", told_by="features"),
    Edit("takes a faint photo for dark", "var > 0", "var > 1e-2", told_by="features"),
    Wrong(_leaves_out_the_photo, told_by="what_stays"),
    Edit("without the dark photo's loss", _LOSS, _LIGHT_LOSS, told_by="what_stays"),
    Edit("detaches the std", "h / std", "h / std.detach()", told_by="right_gradient"),
]
not_tried = {"hard numbers": "the data of the run is given"}

equivalent = {
    "line 13: `1.0` -> `2.0`": "0 divided by either is 0",
}
