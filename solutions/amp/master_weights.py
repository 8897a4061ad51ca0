"""Forward and backward run in bfloat16, which is what makes them cheap. The update needs more digits: a
weight and a change of a thousandth of it don't fit into the mantissa of bfloat16 together. So the sum is kept
in float32, and the model gets a rounded copy after each step.

The copy goes one way. Rounding errors stay in the model, where they are bounded by half a step of bfloat16,
and don't enter the sum. Memory: 2 bytes for the weight, 2 for its gradient, 4 for the master, and 4 for its
gradient in float32. Autocast has float32 parameters, and casts them in each forward instead.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class MasterWeights:
    def __init__(self, model: nn.Module, make_optimizer: Callable[[list[Tensor]], torch.optim.Optimizer]):
        trained = [p for p in model.parameters() if p.requires_grad]
        self.pairs = [(p, p.detach().float()) for p in trained]
        self.optimizer = make_optimizer([master for _, master in self.pairs])

    def zero_grad(self) -> None:
        for weight, _ in self.pairs:
            weight.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for weight, master in self.pairs:
            master.grad = None if weight.grad is None else weight.grad.float()
        self.optimizer.step()
        for weight, master in self.pairs:
            weight.copy_(master)


# Other right answers

from course_utils.exercise import Edit


class _Foreach:
    def __init__(self, model, make_optimizer):
        self.model = model
        self.pairs = {}
        for p in model.parameters():
            if p.requires_grad:
                self.pairs[p] = nn.Parameter(p.detach().to(torch.float32))
        self.optimizer = make_optimizer(list(self.pairs.values()))

    def zero_grad(self):
        self.model.zero_grad()
        self.optimizer.zero_grad()

    def step(self):
        for p, master in self.pairs.items():
            if p.grad is not None:
                master.grad = p.grad.to(torch.float32)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(list(self.pairs), list(self.pairs.values()))


class _ByData:
    def __init__(self, model, make_optimizer):
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.copies = [p.float().detach().requires_grad_() for p in self.params]
        self.optimizer = make_optimizer(self.copies)

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def step(self):
        for p, c in zip(self.params, self.copies, strict=True):
            c.grad = p.grad.float() if p.grad is not None else None
        self.optimizer.step()
        for p, c in zip(self.params, self.copies, strict=True):
            p.data[...] = c.detach().bfloat16()


also_right = [_Foreach, _ByData]

mistakes = [
    Edit("clears the masters", "for weight, _ in", "for _, weight in", told_by="cleared"),
    Edit("masters in bfloat16", "p.detach().float()", "p.detach().clone()", told_by="small_updates"),
    Edit(
        "the rounded weights go back into the masters",
        "weight.copy_(master)",
        "weight.copy_(master)\n            master.copy_(weight)",
        told_by="small_updates",
    ),
    Edit(
        "gradients add up in the masters",
        "None if weight.grad is None else weight.grad.float()",
        "weight.grad.float() + (0 if master.grad is None else master.grad)",
        told_by="small_updates",
    ),
    Edit(
        "puts float32 data into the model",
        "weight.copy_(master)",
        "weight.data = master.bfloat16()",
        told_by="masters",
    ),
    Edit(
        "the gradient of the step before",
        "master.grad = None if weight.grad is None else weight.grad.float()",
        "if weight.grad is not None:\n                master.grad = weight.grad.float()",
        told_by="without_gradient",
    ),
    Edit(
        "zeros where there is no gradient",
        "None if weight.grad is None else weight.grad.float()",
        "torch.zeros_like(master) if weight.grad is None else weight.grad.float()",
        told_by="without_gradient",
    ),
    Edit("frozen ones too", " if p.requires_grad]", "]", told_by="masters"),
]

not_tried = {
    "hard numbers": "the optimizer's, as they are",
    "left alone": "`step` writes",
    "seeds": "no draw decides",
}
