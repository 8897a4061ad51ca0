"""A place looks only at itself and those before it. So keys and values stay as they are when the text grows.
A new character needs its own query, key and value, and the kept keys and values of the others.

What is kept belongs to a place: the vector of the place went in before the first block. So the window can't
slide. It begins anew with its last half, one pass for half a window of characters, and a character costs
at most about twice its own.
"""

import math

import torch
from torch import Tensor

from course_utils.exercise.kits import gpt


@torch.no_grad()
def generate(model: gpt.GPT, ids: Tensor, count: int) -> Tensor:
    cache, start, seen = {}, 0, 0
    for _ in range(count):
        if ids.shape[1] - start > model.context:
            cache, start, seen = {}, ids.shape[1] - model.context // 2, 0
        new = ids[:, start + seen :]
        x = model.token(new) + model.place.weight[seen : seen + new.shape[1]]
        for block in model.blocks:
            x = x + _attend(block, block.norm1(x), cache)
            x = x + block.mlp(block.norm2(x))
        seen += new.shape[1]
        best = model.head(model.norm(x[:, -1:])).argmax(2)
        ids = torch.cat([ids, best], 1)
    return ids


def _attend(block, x, cache):
    b, t, w = x.shape
    q, k, v = block.qkv(x).view(b, t, 3, block.heads, -1).permute(2, 0, 3, 1, 4)
    if block in cache:
        old_k, old_v = cache[block]
        k, v = torch.cat([old_k, k], 2), torch.cat([old_v, v], 2)
    cache[block] = k, v
    scores = q @ k.mT / math.sqrt(w // block.heads)
    later = torch.ones_like(scores, dtype=torch.bool).triu(k.shape[2] - t + 1)
    weights = scores.masked_fill(later, -math.inf).softmax(3)
    return block.out((weights @ v).permute(0, 2, 1, 3).reshape(b, t, w))


# Other right answers

from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


@torch.inference_mode()
def in_free_places(model, ids, count):
    """Writes into tensors for a whole window, and takes torch's attention."""
    batch, time = ids.shape
    text = torch.cat([ids, ids.new_empty(batch, count)], 1)
    width = model.token.embedding_dim
    shape = (len(model.blocks), 2, batch, model.context, width)
    kept = torch.empty(shape, dtype=model.token.weight.dtype, device=ids.device)
    start = seen = 0
    for end in range(time, time + count):
        if end - start > model.context:
            start, seen = end - model.context // 2, 0
        here = end - start
        x = F.embedding(text[:, start + seen : end], model.token.weight) + model.place.weight[seen:here]
        for block, own in zip(model.blocks, kept, strict=True):
            q, k, v = block.qkv(block.norm1(x)).chunk(3, dim=-1)
            own[0, :, seen:here], own[1, :, seen:here] = k, v
            parts = (p.unflatten(2, (block.heads, -1)).transpose(1, 2) for p in (q, *own[:, :, :here]))
            mixed = F.scaled_dot_product_attention(*parts, is_causal=seen == 0)
            x = x + block.out(mixed.transpose(1, 2).flatten(2))
            x = x + block.mlp(block.norm2(x))
        text[:, end] = F.linear(model.norm(x[:, -1]), model.token.weight).argmax(1)
        seen = here
    return text.clone()


def of_a_copy(model, ids, count):
    """A copy whose blocks remember, called as a model is."""
    import copy

    model = copy.deepcopy(model).eval().requires_grad_(False)

    def attend(block, x):
        b, t, w = x.shape
        here = block.qkv(x).unflatten(2, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
        block.kept = here[1:] if block.kept is None else torch.cat([block.kept, here[1:]], 3)
        k, v = block.kept
        all_places = torch.arange(k.shape[2], device=x.device)
        scores = (here[0] * (w / block.heads) ** -0.5) @ k.transpose(2, 3)
        weights = torch.where(all_places > all_places[-t:, None], -torch.inf, scores).softmax(-1)
        return block.out((weights @ v).transpose(1, 2).flatten(2))

    def forget():
        for block in model.blocks:
            block.kept = None
            block.attend = lambda x, block=block: attend(block, x)
        return 0

    places, seen, left = model.place.weight, forget(), ids
    for _ in range(count):
        if seen + left.shape[1] > model.context:
            seen, left = forget(), ids[:, -(model.context // 2) :]
        model.place.weight = torch.nn.Parameter(places[seen:], requires_grad=False)
        best = model(left)[:, -1].argmax(-1, keepdim=True)
        seen, left = seen + left.shape[1], best
        ids = torch.cat((ids, best), dim=1)
    return ids


also_right = [in_free_places, of_a_copy]


# Mistakes


@torch.no_grad()
def _without_a_cache(model, ids, count):
    modes, start = {module: module.training for module in model.modules()}, 0
    model.eval()
    for _ in range(count):
        if ids.shape[1] - start > model.context:
            start = ids.shape[1] - model.context // 2
        ids = torch.cat([ids, model(ids[:, start:])[:, -1:].argmax(2)], 1)
    for module, mode in modes.items():
        module.training = mode
    return ids


@torch.no_grad()
def _one_by_one(model, ids, count):
    cache, start, seen, end = {}, 0, 0, ids.shape[1] + count
    while ids.shape[1] < end:
        if ids.shape[1] - start > model.context:
            cache, start, seen = {}, ids.shape[1] - model.context // 2, 0
        x = model.token(ids[:, start + seen, None]) + model.place.weight[seen]
        for block in model.blocks:
            x = x + _attend(block, block.norm1(x), cache)
            x = x + block.mlp(block.norm2(x))
        seen += 1
        if start + seen == ids.shape[1]:
            ids = torch.cat([ids, model.head(model.norm(x)).argmax(2)], 1)
    return ids


mistakes = [
    Wrong(_without_a_cache, told_by="work"),
    Edit("the first place", "weight[seen : seen +", "weight[:", told_by="same_characters"),
    Edit(
        "slides",
        "        if ids.shape[1] - start > model.context:\n"
        "            cache, start, seen = {}, ids.shape[1] - model.context // 2, 0\n",
        "        if seen == model.context:\n"
        "            cache = {b: [kv[:, :, 1:] for kv in c] for b, c in cache.items()}\n"
        "            start, seen = start + 1, seen - 1\n",
        told_by="new_window",
    ),
    Edit(
        "with dropout",
        "x = x + block.mlp(block.norm2(x))",
        "x = x + block.dropout(block.mlp(block.norm2(x)))",
        told_by="in_training_mode",
    ),
    Edit("stays in evaluation", "{}, 0, 0\n", "{}, 0, 0\n    model.eval()\n", told_by="in_training_mode"),
    Wrong(_one_by_one, told_by="operators"),
    Edit("with a graph", "@torch.no_grad()\n", "", told_by="memory"),
    Edit(
        "keeps all windows",
        "            cache, start, seen = {}",
        "            cache, start, seen = {'before': cache}",
        told_by="memory",
    ),
]
_FEW = "few numbers, and nothing is written to"
equivalent = {
    "line 35: `scores.masked_fill(later, -math.inf)` -> `scores.masked_fill_(later, -math.inf)`": (
        "nobody else has the scores, and there is no graph that needs them"
    ),
    "the result of `generate` cloned": _FEW,
    "`generate` works on a copy of `ids` (`ids = ids.clone()` before all else)": _FEW,
}
not_tried = {
    "hard numbers": "characters come in, and the weights are the model's own",
    "dtypes": "the result is whole numbers",
}
