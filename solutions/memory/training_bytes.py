"""Here a gradient has the shape and dtype of its parameter, and so has the momentum. Adam keeps two such
tensors, the running means of the gradient and of its square, and a float32 count of steps.

Masters are float32: four bytes an element for the copy and four for each mean, whatever the model's dtype is.
`model.parameters()` gives a tied weight once.
"""

from torch import nn


def training_bytes(model: nn.Module, kind: str) -> dict[str, int]:
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = sum(p.nbytes for p in trained)
    state = {
        "sgd": 0,
        "momentum": gradients,
        "adam": sum(2 * p.nbytes + 4 for p in trained),
        "masters": sum(12 * p.numel() + 4 for p in trained),
    }
    held = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    return {"model": held, "gradients": gradients, "optimizer": state[kind]}


# Other right answers

import torch

from course_utils.exercise import Edit


def _by_one_loop(model, kind):
    found = dict.fromkeys(("model", "gradients", "optimizer"), 0)
    seen = set()
    for t in [*model.parameters(), *model.buffers()]:
        if id(t) in seen:
            continue
        seen.add(id(t))
        size = t.numel() * t.element_size()
        found["model"] += size
        if t.requires_grad:
            found["gradients"] += size
            copies = {"sgd": 0, "momentum": 1, "adam": 2, "masters": 3}[kind]
            found["optimizer"] += copies * (4 * t.numel() if kind == "masters" else size)
            found["optimizer"] += 4 * (kind in ("adam", "masters"))
    return found


def _on_meta(model, kind):
    trained = [torch.empty_like(p, device="meta") for p in model.parameters() if p.requires_grad]
    masters = [p.float() for p in trained] if kind == "masters" else []
    like = masters or trained
    copies = {"momentum": 1, "adam": 2, "masters": 2}.get(kind, 0)
    state = [torch.empty_like(p) for p in like for _ in range(copies)]
    state += [torch.empty((), device="meta") for _ in like] if copies == 2 else []
    every = [*model.parameters(), *model.buffers()]
    parts = {"model": every, "gradients": trained, "optimizer": state + masters}
    return {name: sum(t.nbytes for t in tensors) for name, tensors in parts.items()}


also_right = [_by_one_loop, _on_meta]

mistakes = [
    Edit("one count in all", "sum(2 * p.nbytes + 4 for p in trained)", "2 * gradients + 4", told_by="states"),
    Edit("no buffers", ", *model.buffers()", "", told_by="once"),
    Edit("frozen ones too", " if p.requires_grad]", "]", told_by="trained"),
    Edit(
        "tied ones twice",
        "[*model.parameters(), *model.buffers()]",
        "model.state_dict().values()",
        told_by="once",
    ),
    Edit(
        "by address",
        "[*model.parameters(), *model.buffers()]",
        "{t.data_ptr(): t for t in [*model.parameters(), *model.buffers()]}.values()",
        told_by="counted",
    ),
    Edit("Adam in float32", "2 * p.nbytes + 4", "8 * p.numel() + 4", told_by="dtypes"),
    Edit(
        "copies where needed",
        "12 * p.numel() + 4",
        "(8 + 4 * (p.element_size() != 4)) * p.numel() + 4",
        told_by="masters",
    ),
]

not_tried = {"hard numbers": "sizes count, not numbers"}
