"""Two dicts and one formula. The state begins at a parameter's first gradient and counts its own steps. So
the correction fits the running means that it corrects, whoever else rested.

`state_dict` writes numbers for the parameters, counted through all groups. Loading goes the other way: the
settings of the saved group, the parameters of this one, and clones of the tensors, because `step` writes to
them in place.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class MiniAdamW:
    def __init__(self, params: Iterable, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        given = list(params)
        if not isinstance(given[0], dict):
            given = [{"params": given}]
        self.param_groups = [{**defaults, **group, "params": list(group["params"])} for group in given]
        self.state: dict[Tensor, dict[str, Any]] = {}

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p not in self.state:
                    m, v = torch.zeros_like(p), torch.zeros_like(p)
                    self.state[p] = {"step": torch.tensor(0.0), "exp_avg": m, "exp_avg_sq": v}
                state = self.state[p]
                state["step"] += 1
                t, m, v = int(state["step"]), state["exp_avg"], state["exp_avg_sq"]
                m.lerp_(p.grad, 1 - beta1)
                v.lerp_(p.grad * p.grad, 1 - beta2)
                p -= lr * group["weight_decay"] * p
                p -= lr * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + group["eps"])

    def zero_grad(self) -> None:
        for p in self._parameters():
            p.grad = None

    def state_dict(self) -> dict[str, Any]:
        number = {p: i for i, p in enumerate(self._parameters())}
        groups = [{**g, "params": [number[p] for p in g["params"]]} for g in self.param_groups]
        return {"state": {number[p]: dict(s) for p, s in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for group, saved in zip(self.param_groups, state["param_groups"], strict=True):
            group.update({**saved, "params": group["params"]})
        self.state = {}
        for i, p in enumerate(self._parameters()):
            if i in state["state"]:
                self.state[p] = {k: v.clone() for k, v in state["state"][i].items()}


# Other right answers

import copy

from course_utils.exercise import Edit


class _DeepCopies(MiniAdamW):
    def load_state_dict(self, state):
        state = copy.deepcopy(state)
        ps = self._parameters()
        self.state = {ps[i]: entry for i, entry in state["state"].items()}
        for mine, saved in zip(self.param_groups, state["param_groups"], strict=True):
            mine |= {key: value for key, value in saved.items() if key != "params"}


class _CountsInPython(_DeepCopies):
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in filter(lambda p: p.grad is not None, group["params"]):
                g, old = p.grad.detach(), self.state.get(p, {"step": 0, "exp_avg": 0, "exp_avg_sq": 0})
                t = int(old["step"]) + 1
                m, v = b1 * old["exp_avg"] + (1 - b1) * g, b2 * old["exp_avg_sq"] + (1 - b2) * g**2
                self.state[p] = {"step": t, "exp_avg": m, "exp_avg_sq": v}
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                size = group["lr"] / (1 - b1**t)
                p.data.addcdiv_(m, v.sqrt() / (1 - b2**t) ** 0.5 + group["eps"], value=-size)


also_right = [_CountsInPython, _DeepCopies]

_DECAY = '                p -= lr * group["weight_decay"] * p\n'
mistakes = [
    Edit("no bias correction", "(m / (1 - beta1**t))", "m", told_by="steps"),
    Edit(
        "decay in the gradient",
        "                m.lerp_(p.grad, 1 - beta1)",
        '                p.grad += group["weight_decay"] * p\n                m.lerp_(p.grad, 1 - beta1)',
        told_by="decay",
    ),
    Edit("the group's rate is forgotten", "{**defaults, **group,", "{**group, **defaults,", told_by="groups"),
    Edit(
        "one counter for all",
        't, m, v = int(state["step"])',
        't, m, v = int(max(s["step"] for s in self.state.values()))',
        told_by="own_counter",
    ),
    Edit("the saved eps is lost", "**saved, ", '**saved, "eps": group["eps"], ', told_by="exchanged"),
    Edit(
        "its own dtype",
        "m, v = torch.zeros_like(p), torch.zeros_like(p)",
        "m, v = torch.zeros(2, *p.shape)",
        told_by="exchanged",
    ),
    Edit("replaces the data", "p -= lr * group", "p.data = p - lr * group", told_by="steps"),
    Edit("loads the tensors themselves", "v.clone()", "v", told_by="copied"),
]

equivalent = {
    "line 12: `0` -> `-1`": "all are tensors, or all are groups",
    "line 48: `zip(self.param_groups, state['param_groups'], strict=True)` -> "
    "`zip(self.param_groups, state['param_groups'])`": "there are as many groups",
    "line 48: `True` -> `False`": "there are as many groups",
}
not_tried = {"hard numbers": "a large `eps` is tried, which counts in each step, and gradients of 0"}
