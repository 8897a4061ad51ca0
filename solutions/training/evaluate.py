"""Two switches: `eval` changes what layers do, `no_grad` stops recording. `no_grad` ends by itself. The modes
don't, so each part's own is remembered and put back in a `finally`.

The sums stay on the device. They are read once, after the last batch.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def evaluate(model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    loss, right, count = 0, 0, 0
    try:
        with torch.no_grad():
            for x, y in loader:
                logits = model(x)
                loss = loss + F.cross_entropy(logits, y, reduction="sum")
                right = right + (logits.argmax(dim=1) == y).sum()
                count += len(y)
    finally:
        for module, training in modes:
            module.training = training
    return loss.item() / count, right.item() / count


# Other right answers

from contextlib import ExitStack

from course_utils.exercise import Edit, Wrong


@torch.no_grad()
def _by_stack(model, loader):
    with ExitStack() as after:
        for module in model.modules():
            after.callback(setattr, module, "training", module.training)
        model.eval()
        rows = [
            (F.cross_entropy(out := model(x), y) * len(y), (out.max(1)[1] == y).sum(), len(y))
            for x, y in loader
        ]
        count = sum(n for _, _, n in rows)
        both = torch.stack([torch.stack([loss, right.float()]) for loss, right, _ in rows]).sum(0) / count
        return tuple(both.tolist())


def _in_inference_mode(model, loader):
    before = {name: module.training for name, module in model.named_modules()}
    try:
        model.train(False)
        losses, hits = [], []
        with torch.inference_mode():
            for x, y in loader:
                out = model(x)
                losses.append(F.cross_entropy(out, y, reduction="none"))
                hits.append(out.argmax(-1).eq(y).double())
            return torch.cat(losses).mean().item(), torch.cat(hits).mean().item()
    finally:
        for name, module in model.named_modules():
            module.training = before[name]


also_right = [_by_stack, _in_inference_mode]


def _puts_the_children_back(model, loader):
    modes = [(model, model.training)] + [(part, part.training) for part in model.children()]
    model.eval()
    try:
        with torch.no_grad():
            rows = [(model(x), y) for x, y in loader]
    finally:
        for part, mode in modes:
            part.train(mode)
    logits, y = torch.cat([out for out, _ in rows]), torch.cat([y for _, y in rows])
    return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).double().mean().item()


mistakes = [
    Edit("stays in training mode", "    model.eval()\n", "", told_by="values"),
    Edit("mean of means", ', reduction="sum")', ")", told_by="values"),
    Wrong(_puts_the_children_back, told_by="modes"),
    Edit(
        "no finally, and an interrupt is no Exception",
        "    finally:\n",
        "    except Exception:\n        pass\n    if True:\n",
        told_by="raises",
    ),
    Edit(
        "thaws what was frozen",
        "            module.training = training\n",
        "            module.training = training\n        model.requires_grad_(True)\n",
        told_by="modes",
    ),
    Edit("records", "torch.no_grad()", "torch.enable_grad()", told_by="graph"),
    Edit(
        "by `train`, from the outside in",
        "module.training = training",
        "module.train(training)",
        told_by="modes",
    ),
    Edit(
        "reads each sum",
        "(logits.argmax(dim=1) == y).sum()",
        "(logits.argmax(dim=1) == y).sum().item()",
        told_by="values",
    ),
]

not_tried = {"seeds": "in evaluation mode nothing is drawn"}
