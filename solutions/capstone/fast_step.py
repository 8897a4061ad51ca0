"""Most of the slow step was work that nobody needed. Four small batches call four times as many operators
as one does, and each has too little to do; one batch of all rows, each weighed by the size of its own, has
the same gradient. GPT's own `attend` makes one product for all heads and one mask for all rows. The
checkpoint ran each MLP twice to save memory that was not short. And with autocast the
large products are in bfloat16.

The loader, the copy of the state and the norm by `.item()` are slow too, by a few hundredths of the step
each. They go because the short code is there already."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise.kits import gpt


def fast_step(model: gpt.GPT, ids: Tensor, size: int, parts: int, seed: int):
    train, _ = model.split(ids)
    optimizer = model.optimizer(1e-3)
    source = model.batches(train, size, torch.Generator().manual_seed(seed))

    def step():
        model.train()
        batches = [next(source) for _ in range(parts)]
        x = torch.cat([x for x, _ in batches])
        y = torch.cat([y for _, y in batches])
        share = torch.cat([torch.full(one.shape, 1 / one.numel()) for one, _ in batches])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = model(x)
        each = F.cross_entropy(scores.float().flatten(0, 1), y.flatten(), reduction="none")
        loss = each @ share.flatten() / parts
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


# Other right answers

import itertools

from course_utils.exercise import Edit


def in_parts(model, ids, size, parts, seed):
    """GPT's own loss, batch by batch."""
    source = model.batches(model.split(ids)[0], size, torch.Generator().manual_seed(seed))
    weights = list(model.parameters())
    optimizer = model.optimizer(1e-3)
    for group in optimizer.param_groups:  # what they hold already counts, not an argument of AdamW
        group["fused"] = True

    def step():
        model.train()
        total = 0.0
        for x, y in itertools.islice(source, parts):
            loss = model.loss(x, y) / parts
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def in_float32(model, ids, size, parts, seed):
    """All rows of a step at once, in float32, and a gradient that is asked for."""
    source = model.batches(model.split(ids)[0], size, torch.Generator().manual_seed(seed))
    optimizer, weights = model.optimizer(1e-3), list(model.parameters())

    def step():
        model.train()
        batches = [next(source) for _ in range(parts)]
        rows = [len(x) for x, _ in batches]
        scores = model(torch.cat([x for x, _ in batches])).split(rows)
        pairs = zip(scores, batches, strict=True)
        losses = [F.cross_entropy(came.transpose(1, 2), y) for came, (_, y) in pairs]
        loss = torch.stack(losses).mean()
        for weight, grad in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = grad
        nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
        optimizer.step()
        return loss.item()

    return step


also_right = [in_parts, in_float32]

_CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
_STEP = "\n    def step"
_AHEAD = "    source = itertools.cycle([next(source) for _ in range(parts)])\n" + _STEP
_FROZEN = "    model.blocks[0].requires_grad_(False)\n" + _STEP
_SHARE = "torch.full(one.shape, 1 / one.numel())"
_BY_ROWS = "torch.full(one.shape, parts / sum(b.numel() for b, _ in batches))"
_SCORES = "scores = model(x)"
_SHORT = "x, y, share = x[:, :16], y[:, :16], 2 * share[:, :16]\n            " + _SCORES
_DECAYS = "torch.optim.AdamW(model.parameters(), 1e-3, (0.9, 0.95), weight_decay=0.1)"
mistakes = [
    Edit("merges by rows", _SHARE, _BY_ROWS, told_by="losses"),
    Edit("a batch used again", _STEP, _AHEAD, told_by="losses"),
    Edit("a shorter context", _SCORES, _SHORT, told_by="losses"),
    Edit("trains on what is held", "train, _ =", "_, train =", told_by="losses"),
    Edit("no cut", _CLIP, "", told_by="gradient"),
    Edit("frozen", _STEP, _FROZEN, told_by="gradient"),
    Edit("all decay", "model.optimizer(1e-3)", _DECAYS, told_by="weights"),
    Edit("without dropout", "model.train()", "model.eval()", told_by="learns"),
]
not_tried = {"hard numbers": "a model makes its own numbers", "left alone": "the text is integers"}

_FLOAT32 = "float32 is right as well, and fast enough"
equivalent = {
    "line 19: `with torch.autocast('cpu', dtype=torch.bfloat16):` -> `if True:`": _FLOAT32,
    "line 19: `torch.autocast('cpu', dtype=torch.bfloat16)` -> `torch.autocast('cpu')`": "the same",
    "line 22: `each @ share.flatten()` -> `share.flatten() @ each`": "both are vectors",
    "line 27: `loss.detach()` -> `loss.detach_()`": "nobody else has it",
}
