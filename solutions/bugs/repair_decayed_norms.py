"""At each step `AdamW` takes the share `lr * weight_decay` of each parameter that has a gradient. On matrices
that is wanted here. The weight of the layer norm begins at 1; it is 1.4 on the average after training without
decay of its own, and 0.5 with it. So the scores stay small, and the loss high.

Two groups treat them apart. Here matrices have two dimensions; biases, and what the layer norm scales and
shifts with, have one. So `p.ndim` tells them apart. Names would not: the weight of the layer norm is
called `2.weight`."""

healed = {
    "    # So few steps want a large number:\n": "",
    "    # what counts is the rate times the decay, times the steps.\n": (
        "    matrices = [p for p in model.parameters() if p.ndim > 1]\n"
        "    others = [p for p in model.parameters() if p.ndim == 1]\n"
        '    groups = [{"params": matrices, "weight_decay": 2.0}, {"params": others, "weight_decay": 0.0}]\n'
    ),
    "model.parameters(), lr=0.02, weight_decay=2.0": "groups, lr=0.02",
}


# Other right answers

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _trains(x, y, seed, optimizer_of):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = optimizer_of(model)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return model, losses


def _grouped(x, y, seed, decays, kind=torch.optim.AdamW):
    """`decays`: of a parameter, by its name and the module that it belongs to."""

    def optimizer_of(model):
        groups = [
            {"params": [p], "weight_decay": 2.0 * decays(name, module)}
            for module in model
            for name, p in module.named_parameters()
        ]
        return kind(groups, lr=0.02)

    return _trains(x, y, seed, optimizer_of)


def _of_linear(name, module):
    return name == "weight" and isinstance(module, nn.Linear)


def _by_module(x, y, seed):
    return _grouped(x, y, seed, _of_linear)


def _a_group_added(x, y, seed):
    def optimizer_of(model):
        optimizer = torch.optim.AdamW([model[1].weight, model[4].weight], lr=0.02, weight_decay=2.0)
        spared = [model[1].bias, model[4].bias, *model[2].parameters()]
        optimizer.add_param_group({"params": spared, "weight_decay": 0})
        return optimizer

    return _trains(x, y, seed, optimizer_of)


also_right = [_by_module, _a_group_added]


# Mistakes


def _spares_biases_alone(x, y, seed):
    return _grouped(x, y, seed, lambda name, module: name != "bias")


def _spares_the_norm_alone(x, y, seed):
    return _grouped(x, y, seed, lambda name, module: isinstance(module, nn.Linear))


def _adam(x, y, seed):
    return _grouped(x, y, seed, _of_linear, torch.optim.Adam)


def _two_optimizers(x, y, seed):
    def optimizer_of(model):
        decayed = [model[1].weight, model[4].weight]
        spared = [model[1].bias, model[4].bias, *model[2].parameters()]
        others = torch.optim.AdamW(spared, lr=0.02, weight_decay=0.0)
        optimizer = torch.optim.AdamW(decayed, lr=0.02, weight_decay=2.0)
        optimizer.register_step_post_hook(lambda *_: (others.step(), others.zero_grad()))
        return optimizer

    return _trains(x, y, seed, optimizer_of)


_GROUPS = '[{"params": matrices, "weight_decay": 2.0}, {"params": others, "weight_decay": 0.0}]'
mistakes = [
    Wrong(_spares_biases_alone, told_by="spared"),
    Wrong(_spares_the_norm_alone, told_by="spared"),
    Edit("no decay at all", '"weight_decay": 2.0', '"weight_decay": 0.0', told_by="spared"),
    Edit("the default for the others", ', "weight_decay": 0.0', "", told_by="spared"),
    Edit("the others don't train", _GROUPS, '[{"params": matrices, "weight_decay": 2.0}]', told_by="spared"),
    Edit("no layer norm", "        nn.LayerNorm(32),\n", "", told_by="what_stays"),
    Wrong(_two_optimizers, told_by="spared"),
    Wrong(_adam, told_by="what_stays"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}
