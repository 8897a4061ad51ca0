"""By the chain rule a loss times the scale has gradients times the scale: large enough for 16 bits on the
way, most of them. Dividing in float32 brings them back. A power of two as the scale rounds nothing, as long
as the numbers stay normal.

An optimizer whose gradients have inf or nan must not step: with SGD, one such number would stay in the
parameters, and in the momentum. What was found is kept for each optimizer, since one may skip while another
steps. Looking again in `step` would be too late, because clipping by value turns inf into an ordinary number.

The scale is shared, so `update` asks all optimizers, once. A scale that is too large loses whole steps, one
that is too small loses small gradients. So it falls at once and grows slowly.
"""

import torch
from torch import Tensor


class GradScaler:
    def __init__(self, init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self._state = {"scale": init_scale, "growth_factor": growth_factor, "_growth_tracker": 0}
        self._state |= {"backoff_factor": backoff_factor, "growth_interval": growth_interval}
        self._found_inf = {}  # by optimizer, since the last update

    def get_scale(self) -> float:
        return self._state["scale"]

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self.get_scale()

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer in self._found_inf:
            raise RuntimeError("this optimizer has been unscaled since the last update")
        found = False
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    found |= not parameter.grad.isfinite().all()
                    parameter.grad /= self.get_scale()
        self._found_inf[optimizer] = found

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer not in self._found_inf:
            self.unscale_(optimizer)
        if not self._found_inf[optimizer]:
            optimizer.step()

    def update(self) -> None:
        state = self._state
        if any(self._found_inf.values()):
            state["scale"] *= state["backoff_factor"]
            state["_growth_tracker"] = 0
        else:
            state["_growth_tracker"] += 1
            if state["_growth_tracker"] == state["growth_interval"]:
                state["scale"] *= state["growth_factor"]
                state["_growth_tracker"] = 0
        self._found_inf.clear()

    def state_dict(self) -> dict[str, float]:
        return dict(self._state)

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._state = dict(state)


# Other right answers

from course_utils.exercise import Edit


class _Foreach(GradScaler):
    def unscale_(self, optimizer):
        if self._found_inf.setdefault(optimizer) is not None:
            raise RuntimeError("twice")
        weights = [w for group in optimizer.param_groups for w in group["params"]]
        grads = [w.grad for w in weights if w.grad is not None]
        self._found_inf[optimizer] = any((~torch.isfinite(grad)).any() for grad in grads)
        torch._foreach_mul_(grads, 1 / self.get_scale())


class _ScaleIsATensor(GradScaler):
    def scale(self, loss):
        return torch.tensor(self.get_scale(), device=loss.device) * loss


also_right = [_Foreach, _ScaleIsATensor]

_STEPS = "if not self._found_inf[optimizer]:"
_GRADS = '[w.grad for g in optimizer.param_groups for w in g["params"] if w.grad is not None]'
_BACKOFF = 'backoff_factor"]\n            state["_growth_tracker"] = 0'
_LOADS = "self._state = dict(state)"
mistakes = [
    Edit("cut from the graph", "loss * self", "loss.detach() * self", told_by="scales"),
    Edit("new gradients", "parameter.grad /=", "parameter.grad = parameter.grad /", told_by="unscales"),
    Edit("the last parameter counts", "found |= not", "found = not", told_by="skips"),
    Edit("grows after a skipped step", _BACKOFF, 'backoff_factor"]', told_by="scale_and_tracker"),
    Edit("one finds it, all skip", _STEPS, "if not any(self._found_inf.values()):", told_by="two_optimizers"),
    Edit("looks again in step", _STEPS, f"if all(g.isfinite().all() for g in {_GRADS}):", told_by="between"),
    Edit("a state that lives on", "return dict(self._state)", "return self._state", told_by="state"),
    Edit("loads the scale alone", _LOADS, 'self._state["scale"] = state["scale"]', told_by="state"),
]

not_tried = {
    "hard numbers": "inf, nan and 3e38 are",
    "dtypes": "float32 alone, by its text",
    "seeds": "a script of 200 steps",
}
