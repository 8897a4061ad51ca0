"""Export follows Python code, and a script has none. So write its code as a module again, and load the state
dict of the file. The two numbers are attributes of the script.

Export runs the module with tensors that have no values, so an `if` on a tensor has no answer. `torch.cond`
keeps the condition and both sides, as two graphs inside the graph. The number of steps is a Python number, so
the loop is unrolled. The side that does nothing returns a copy, since here a side may not return its operand.
The first dimension has a name, and the example has more than one row, so the size stays open.
"""

import torch
from torch import nn


def migrate(old: torch.jit.ScriptModule) -> torch.export.ExportedProgram:
    """The old router as an exported program"""
    state = old.state_dict()
    width, dtype = len(state["mean"]), state["mean"].dtype
    threshold, steps = old.threshold, old.steps

    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.near = nn.Linear(width, width)
            self.far = nn.Linear(width, width)
            self.register_buffer("mean", torch.zeros(width))

        def stepped(self, x):
            for _ in range(steps):
                x = torch.tanh(self.far(x))
            return x

        def forward(self, x):
            x = x - self.mean
            x = torch.cond(x.norm() > threshold, self.stepped, torch.clone, (x,))
            return self.near(x)

    router = Router().to(dtype)
    router.load_state_dict(state)
    example = torch.stack([old.mean, old.mean])
    return torch.export.export(router, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))


# Other right answers

from course_utils.exercise import Edit, Wrong


class _Whole(nn.Module):
    """Each side is the whole way to the result, and the parameters are the tensors of the file."""

    def __init__(self, old):
        super().__init__()
        for name in ("near", "far"):
            layer = nn.Module()
            for part, value in getattr(old, name).named_parameters():
                layer.register_parameter(part, nn.Parameter(value.detach().clone()))
            self.add_module(name, layer)
        self.register_buffer("mean", old.mean.clone())
        self.square, self.steps = old.threshold**2, range(old.steps)

    def forward(self, x):
        def near(x):
            return nn.functional.linear(x, self.near.weight, self.near.bias)

        def far(x):
            for _ in self.steps:
                x = nn.functional.linear(x, self.far.weight, self.far.bias).tanh()
            return near(x)

        moved = x - self.mean
        return torch.cond(moved.pow(2).sum() > self.square, far, near, [moved])


def whole_sides(old):
    example = torch.ones(2, old.near.weight.shape[1]).to(old.mean)
    shapes = {"x": {0: torch.export.Dim.DYNAMIC}}
    return torch.export.export(_Whole(old), (example,), dynamic_shapes=shapes, strict=True)


class _Turned(nn.Module):
    """The question the other way round, as functions beside each other."""

    def __init__(self, layers, mean, threshold, steps):
        super().__init__()
        self.near, self.far = layers
        self.mean = nn.Buffer(mean)
        self.threshold, self.steps = threshold, steps

    def forward(self, x):
        def stays(x):
            return x * 1

        def goes(x):
            return nn.Sequential(*[self.far, nn.Tanh()] * self.steps)(x)

        x = x - self.mean
        return self.near(torch.cond(torch.linalg.vector_norm(x) <= self.threshold, stays, goes, (x,)))


def automatic(old):
    layers = [nn.Linear(*old.near.weight.T.shape).to(old.mean) for _ in range(2)]
    new = _Turned(layers, torch.empty_like(old.mean), old.threshold, old.steps)
    new.load_state_dict(old.state_dict())
    shapes = [[torch.export.Dim.AUTO, None]]
    return torch.export.export(new, (old.mean.expand(5, -1),), dynamic_shapes=shapes)


also_right = [whole_sides, automatic]


# Mistakes


def _exports_the_script(old):
    example = torch.stack([old.mean, old.mean])
    return torch.export.export(old, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))


_COND = "torch.cond(x.norm() > threshold, self.stepped, torch.clone, (x,))"

mistakes = [
    Wrong(_exports_the_script, told_by="one_side_runs"),
    Edit("leaves the if", _COND, "self.stepped(x) if x.norm() > threshold else x", told_by="one_side_runs"),
    Edit("gives back its input", "torch.clone,", "lambda x: x,", told_by="one_side_runs"),
    Edit("asks each row", "x.norm() > threshold", "(x.norm(dim=1) > threshold).any()", told_by="any_batch"),
    Edit(
        "fixes the batch",
        ', dynamic_shapes=({0: torch.export.Dim("batch")},)',
        "",
        told_by="any_batch",
    ),
    Edit(
        "computes both",
        _COND,
        "torch.where(x.norm() > threshold, self.stepped(x), x)",
        told_by="one_side_runs",
    ),
    Edit(
        "writes numbers down",
        "threshold, steps = old.threshold, old.steps",
        "threshold, steps = 2.5, 2",
        told_by="another_file",
    ),
]

not_tried = {"hard numbers": "the layers of the file compute", "left alone": "nobody needs `old` any more"}
