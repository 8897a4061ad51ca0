"""A script is compiled before there are any arguments, so the source must give the types: of the arguments,
which would be tensors otherwise, and of `counts`, which would hold tensors. A `list[int] | None` counts as a
list where a test of the name itself has ruled `None` out; whether it's empty is another question. The rest is
a smaller language: a loop in place of the comprehension, and no truth of what may be `None`.

None of this changes what Python does with the module. A trace would avoid these questions, because it has no
options at all.
"""

import torch
from torch import Tensor, nn


def make_scriptable(width: int, limit: float | None = None) -> nn.Module:
    """A module that `torch.jit.script` takes"""

    class Pool(nn.Module):
        def __init__(self, width, limit):
            super().__init__()
            self.project = nn.Linear(width, width)
            self.limit = limit

        def forward(
            self, x: Tensor, lengths: list[int] | None = None, extra: dict[str, Tensor] | None = None
        ) -> dict[str, Tensor]:
            x = self.project(x)
            counts: list[int] = []
            means = []
            for i, row in enumerate(x):
                count = lengths[i] if lengths is not None and len(lengths) > 0 else len(row)
                counts.append(count)
                means.append(row[:count].mean(0))
            found = {"mean": torch.stack(means), "count": torch.tensor(counts)}
            if extra is not None:
                for name, weight in extra.items():
                    found[name] = (x * weight[..., None]).sum(1)
            length = found["mean"].norm()
            if self.limit is not None:  # noqa: SIM102
                if length > self.limit:
                    found["mean"] = found["mean"] * (self.limit / length)
            return found

    return Pool(width, limit)


# Other right answers

from course_utils.exercise import Edit, Wrong


class _Masked(nn.Module):
    """Without a loop over the rows, and without a branch on the length."""

    def __init__(self, width: int, limit: float):
        super().__init__()
        self.project, self.limit = nn.Linear(width, width), limit

    def forward(
        self, x: Tensor, lengths: list[int] | None = None, extra: dict[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        y = self.project(x)
        if lengths is None or len(lengths) == 0:
            lengths = [x.size(1)] * x.size(0)
        count = torch.tensor(lengths)
        counts = torch.arange(x.size(1)).unsqueeze(0) < count.unsqueeze(1)
        mean = torch.where(counts.unsqueeze(2), y, torch.zeros_like(y)).sum(1) / count.unsqueeze(1)
        found = {"mean": mean, "count": count}
        if extra is not None:
            for name in extra:
                found[name] = torch.einsum("btw,bt->bw", y, extra[name])
        found["mean"] = found["mean"] * torch.clamp(self.limit / found["mean"].norm(), max=1.0)
        return found


def masks(width, limit=None):
    return _Masked(width, float("inf") if limit is None else limit)


def is_a_script_already(width, limit=None):
    return torch.jit.script(make_scriptable(width, limit))


also_right = [masks, is_a_script_already]


# Mistakes


def _traces(width, limit=None):
    return torch.jit.trace(make_scriptable(width, limit), torch.ones(2, 5, width), strict=False)


mistakes = [
    Wrong(_traces, told_by="in_python"),
    Edit("lets the list be guessed", "counts: list[int] = []", "counts = []", told_by="taken"),
    Edit("asks for the truth", "if lengths is not None and len(lengths) > 0", "if lengths", told_by="taken"),
    Edit("overlooks emptiness", " and len(lengths) > 0", "", told_by="options"),
    Edit(
        "leaves out what was refused",
        "if extra is not None:",
        "if extra is not None and not torch.jit.is_scripting():",
        told_by="options",
    ),
    Edit("takes zero for no limit", "self.limit = limit", "self.limit = limit or None", told_by="limits"),
    Edit(
        "compares beside the question",
        "if self.limit is not None:  # noqa: SIM102\n                if length > self.limit:\n"
        "                    found",
        "if self.limit is not None and length > self.limit:\n                    found",
        told_by="limits",
    ),
    Edit(
        "leaves it to Python",
        "        def forward(\n",
        "        @torch.jit.ignore\n        def forward(\n",
        told_by="taken",
    ),
]

equivalent = {
    "line 30: `length > self.limit` -> `length >= self.limit`": "at the limit the factor is 1",
}

not_tried = {
    "hard numbers": "a mean like the starter's",
    "left alone": "the starter's operators write nothing",
}
