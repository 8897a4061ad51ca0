"""The GPT of the capstone: a model, its data and its loop in a hundred lines, and the text that it learns."""

import functools
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.wrong_use import public

_TEXT = Path(__file__).with_name("lessons.txt")  # the prose of lessons 00 to 15, as it once was


@public
@functools.cache
def text() -> str:
    """What lessons 00 to 15 say, in small letters, a paragraph a line."""
    return _TEXT.read_text(encoding="utf-8").lower()


@public
@functools.cache
def alphabet() -> str:
    """The characters of `text()`, in order."""
    return "".join(sorted(set(text())))


@public
def encode(written: str) -> Tensor:
    """The place of each character in `alphabet()`. Raises `KeyError` for one that is not there."""
    places = {letter: place for place, letter in enumerate(alphabet())}
    return torch.tensor([places[letter] for letter in written])


@public
def decode(ids: Tensor) -> str:
    """The text of a row of places in `alphabet()`."""
    return "".join(alphabet()[place] for place in ids.tolist())


class GPT(nn.Module):
    """A GPT that learns text, character by character"""

    class Block(nn.Module):
        """Attention, then an MLP; each is added to what came in"""

        def __init__(self, width, heads, dropout):
            super().__init__()
            self.heads, self.dropout = heads, nn.Dropout(dropout)
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            wide = nn.Linear(width, 4 * width)
            self.mlp = nn.Sequential(wide, nn.GELU(), nn.Linear(4 * width, width))

        def attend(self, x):
            """In each head a place looks at itself and at those before it"""
            b, t, w = x.shape
            parts = self.qkv(x).view(b, t, 3, self.heads, -1)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            scores = q @ k.transpose(2, 3) / math.sqrt(w // self.heads)
            later = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
            weights = scores.masked_fill(later, -math.inf).softmax(3)
            mixed = weights @ v
            return self.out(mixed.transpose(1, 2).reshape(b, t, w))

        def forward(self, x):
            x = x + self.dropout(self.attend(self.norm1(x)))
            return x + self.dropout(self.mlp(self.norm2(x)))

    def __init__(self, letters, context=64, width=96, heads=4, layers=3, dropout=0.1):
        super().__init__()
        self.context = context
        self.token = nn.Embedding(letters, width)
        self.place = nn.Embedding(context, width)
        blocks = [self.Block(width, heads, dropout) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters, bias=False)
        for table in (self.token, self.place):
            nn.init.normal_(table.weight, std=0.02)
        self.head.weight = self.token.weight  # one parameter in two places

    def forward(self, ids):
        """(batch, time) -> scores of the next character: (batch, time, letters)"""
        x = self.token(ids)
        x = x + self.place.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, ids, targets):
        """The mean cross-entropy: products in bfloat16, the loss in float32"""
        with torch.autocast(ids.device.type, dtype=torch.bfloat16):
            scores = self(ids)
        return F.cross_entropy(scores.float().flatten(0, 1), targets.flatten())

    def split(self, ids):
        """Nine tenths to train on, and the rest, which is held back"""
        held = len(ids) // 10
        return ids[:-held], ids[-held:]

    def batches(self, ids, size, order):
        """Epoch after epoch the windows of `context` characters that follow each other,
        each once, in a new order; and for each character the one after it"""
        starts = torch.arange(0, len(ids) - self.context, self.context)
        while True:
            mixed = starts[torch.randperm(len(starts), generator=order)]
            for some in mixed.split(size):
                rows = some[:, None] + torch.arange(self.context)
                yield ids[rows], ids[rows + 1]

    def optimizer(self, rate):
        """AdamW; matrices decay by 0.1, biases and norms don't"""
        matrices = [p for p in self.parameters() if p.dim() > 1]
        others = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), weight_decay=0.1)

    def fit(self, ids, steps, size=16, parts=2, rate=4e-3, every=50, seed=0):
        """Trains; returns the loss of each step, and the held loss after every `every`

        A step: the gradient of the mean loss over `parts` batches, its norm at most 1.
        The rate rises for a tenth of the steps, then falls along a cosine to a tenth.
        """

        def share(step):
            fallen = 0.55 + 0.45 * math.cos(math.pi * step / steps)
            return min(step / (steps / 10), fallen)

        torch.manual_seed(seed)
        train, held = self.split(ids)
        optimizer = self.optimizer(rate)
        source = self.batches(train, size, torch.Generator().manual_seed(seed))
        losses, held_losses = [], []
        for step in range(1, steps + 1):
            self.train()
            for group in optimizer.param_groups:
                group["lr"] = rate * share(step)
            total = 0.0
            for _ in range(parts):
                loss = self.loss(*next(source)) / parts
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(self.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total)
            if step % every == 0:
                held_losses.append(self.evaluate(held))
        return [float(one) for one in losses], held_losses

    @torch.no_grad()
    def evaluate(self, ids):
        """The mean loss over the windows of a text, without dropout"""
        self.eval()
        starts = torch.arange(0, len(ids) - self.context, self.context)
        rows = starts[:, None] + torch.arange(self.context)
        return self.loss(ids[rows], ids[rows + 1]).item()
