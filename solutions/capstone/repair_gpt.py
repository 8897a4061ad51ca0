"""Six questions find the six faults, and none of them is about the loss curve.

*Gradients*: compare each with how the loss changes, and look for those that are None. *Modules*: count the
parameters with two and with three layers. *Data*: take a text in which each character comes once, and read
an epoch. *Steps*: look at `.grad`, rate and decay when a step is taken. *Modes*: ask for the mode in every
forward. *Precision*: ask for dtypes, and compare a forward with what the weights of that moment give.

The curve doesn't ask them: without a healthy run beside it nobody knows what a loss should be by now."""

from course_utils.exercise.kits import gpt_faults

healed = gpt_faults.healing(0)


# Other right answers

import math

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit
from course_utils.exercise.kits.gpt import GPT


class _ByFusedAttention(GPT):
    copy = 0

    class Block(GPT.Block):
        def attend(self, x):
            q, k, v = (
                part.unflatten(2, (self.heads, -1)).transpose(1, 2)
                for part in self.qkv(x).chunk(3, 2)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(mixed.transpose(1, 2).flatten(2))


class _Rewritten(nn.Module):
    copy = 0

    def __init__(self, letters, context=64, width=96, heads=4, layers=3, dropout=0.1):
        super().__init__()
        self.context = context
        self.table = nn.Parameter(0.02 * torch.randn(letters, width))
        self.register_parameter("places", nn.Parameter(torch.zeros(1, context, width)))
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(
            layer, layers, nn.LayerNorm(width), enable_nested_tensor=False
        )
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, ids):
        t = ids.shape[1]
        x = F.embedding(ids, self.table) + self.places[:, :t]
        mask = self.mask[:t, :t].to(x.dtype)
        return F.linear(self.body(x, mask=mask), self.table).float()

    def loss(self, ids, targets):
        with torch.autocast("cpu", torch.bfloat16):
            scores = self(ids)
        return F.cross_entropy(scores.transpose(1, 2), targets)

    def split(self, ids):
        return ids.split([len(ids) - len(ids) // 10, len(ids) // 10])

    def batches(self, ids, size, order):
        count = (len(ids) - 1) // self.context
        x = ids[: count * self.context].view(count, -1)
        y = ids[1 : count * self.context + 1].view(count, -1)
        sampler = torch.utils.data.RandomSampler(range(count), generator=order)
        while True:
            for some in torch.utils.data.BatchSampler(sampler, size, False):
                yield x[some], y[some]

    def optimizer(self, rate):
        sorts = {True: [], False: []}
        for p in self.parameters():
            sorts[p.dim() >= 2].append(p)
        groups = [{"params": sorts[one], "weight_decay": 0.1 * one} for one in sorts]
        return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), foreach=False)

    def fit(self, ids, steps, size=16, parts=2, rate=4e-3, every=50, seed=0):
        torch.manual_seed(seed)
        train, held = self.split(ids)
        optimizer = self.optimizer(rate)
        up = max(1, steps // 10)
        rates = torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(optimizer, 1 / up, total_iters=up - 1),
                torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - up, rate / 10),
            ],
            [up],
        )
        source = self.batches(train, size, torch.Generator().manual_seed(seed))
        losses, held_losses = [], []
        for step in range(steps):
            optimizer.zero_grad()
            found = []
            for _ in range(parts):
                loss = self.train().loss(*next(source))
                (loss / parts).backward()
                found.append(loss.item())
            nn.utils.clip_grad_norm_(self.parameters(), 1)
            optimizer.step()
            rates.step()
            losses.append(math.fsum(found) / parts)
            if (step + 1) % every == 0:
                held_losses.append(self.evaluate(held))
        return losses, held_losses

    def evaluate(self, ids):
        count = (len(ids) - 1) // self.context
        x = ids[: count * self.context].view(count, -1)
        y = ids[1 : count * self.context + 1].view(count, -1)
        with torch.inference_mode():
            return self.eval().loss(x, y).item()


also_right = [_ByFusedAttention, _Rewritten]

_NEXT = "                yield ids[rows], ids[rows + 1]\n"
mistakes = [
    Edit("a mask one place too late", ".triu(1)", ".triu(2)", told_by="modules"),
    Edit("cut into heads without a transpose", "mixed.transpose(1, 2)", "mixed", told_by="modules"),
    Edit("each character is its own target", _NEXT, _NEXT.replace(" + 1", ""), told_by="data"),
    Edit("the sum over the batches", "(*next(source)) / parts", "(*next(source))", told_by="steps"),
    Edit("gradients stay", "            optimizer.zero_grad()\n", "", told_by="steps"),
    Edit("never trains", "            self.train()\n", "            self.eval()\n", told_by="loss_and_modes"),
    Edit("no autocast", "dtype=torch.bfloat16)", "enabled=False)", told_by="precision"),
    Edit("without its number", "    copy = 0  # which faults it came with\n\n", "", told_by="what_stays"),
]
not_tried = {
    "hard numbers": "the class makes its own",
}
