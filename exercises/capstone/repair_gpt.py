"""Repair: a GPT with six faults

The class below learns text, character by character. It is all there: model, batches, loss, optimizer and
loop. It runs, and nothing is raised. But six places in it are wrong, one for each of the lessons 02, 04, 05,
06, 07 and 09. Your copy has faults of its own, drawn by the number in `copy`. Find them and mend them.

- What docstrings and comments say is meant, and holds for the healed class.
- Methods keep their names, their parameters and what they return. What stands inside may change.
- `copy` stays: it says which faults yours came with.

`RepairGPT(57).fit(ids, 100)` trains one.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import gpt_faults, gpt_judged, gpt_judged_fit

exercise = Exercise(
    minutes=60,
    core=True,
    copies=gpt_faults.copy_of,
    hints=[
        "One fault for each lesson, so there are six questions. What has a gradient, and is it right? "
        "Which parameters does the model know? What is in an epoch? What is in `.grad` at a step? Which "
        "mode? Which dtype?",
        "Make one that is tiny: 2 layers, a width of 16, and `ids = torch.arange(200)`, where each "
        "character says where it came from. Compare the parameters of 2 and of 3 layers; print one epoch of "
        "`batches`.",
        "Take one method at a time, and the smallest input that could refute its docstring. For `fit`, a "
        "hook on the optimizer's step sees `.grad` and the rates, and one on the model its mode.",
    ],
)

# The copy with the number 0.
@exercise.starter
class RepairGPT(nn.Module):
    """A GPT that learns text, character by character"""

    copy = 0  # which faults it came with

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
            mixed = weights.detach() @ v
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
        self.blocks = blocks
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
        first = order.get_state()
        while True:
            order.set_state(first)
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

    @torch.autocast('cpu', dtype=torch.bfloat16)
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
                group["lr"] *= share(step)
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
        starts = torch.arange(0, len(ids) - self.context, self.context)
        rows = starts[:, None] + torch.arange(self.context)
        return self.loss(ids[rows], ids[rows + 1]).item()


@exercise.check
def gradients(RepairGPT):
    """Lesson 02: each gradient is how the loss changes, and no graph is kept

    What is detached, or changed through `.data`, is a constant to autograd: the loss depends on it, and the
    gradient doesn't say so. A tensor that hangs on a graph keeps all of it, as long as anything holds the
    tensor: a sum of losses too.
    """
    gpt_judged.right_gradients(RepairGPT)
    gpt_judged.no_graphs_kept(RepairGPT)
    expect.note(gpt_faults.healed(RepairGPT, "02"))


@exercise.check
def modules(RepairGPT):
    """Lesson 04: each block has parameters of its own, the table one, and a place looks back

    A list times 3 holds one module three times. A plain list is not searched for modules. Two Parameters may
    lie in one storage: an optimizer steps both. And which dimension is cut into heads decides what attention
    mixes.
    """
    gpt_judged.blocks_of_their_own(RepairGPT)
    gpt_judged.one_table(RepairGPT)
    gpt_judged.looks_back(RepairGPT)
    expect.note(gpt_faults.healed(RepairGPT, "04"))


@exercise.check
def data(RepairGPT):
    """Lesson 05: in an epoch each window comes once, in a new order, and no held character

    A generator that is set back draws the same order again. What is held back says how the model does on text
    that it hasn't seen, so none of it may be trained on. A loader that leaves something out raises nothing.
    """
    gpt_judged.right_split(RepairGPT)
    gpt_judged.right_batches(RepairGPT)
    expect.note(gpt_faults.healed(RepairGPT, "05"))


@exercise.check
def steps(RepairGPT):
    """Lesson 06: gradient, rate and decay of each step are what `fit` and `optimizer` say

    An optimizer uses what is in `.grad` when it steps: what is cut later comes too late. A schedule says
    which share of the *first* rate a step has. Decay pulls to 0, and a norm's weight has no reason to be
    there.
    """
    gpt_judged_fit.right_decay(RepairGPT)
    gpt_judged_fit.right_rates(RepairGPT)
    gpt_judged_fit.right_steps(RepairGPT)
    expect.note(gpt_faults.healed(RepairGPT, "06"))


@exercise.check
def loss_and_modes(RepairGPT):
    """Lesson 07: the loss is that of the scores, and the mode is that of the moment

    `cross_entropy` takes scores and makes probabilities of them itself. `eval()` holds until somebody calls
    `train()`, and the other way round.
    """
    gpt_judged_fit.right_loss(RepairGPT)
    gpt_judged_fit.right_modes(RepairGPT)
    gpt_judged.held_windows(RepairGPT)
    gpt_judged_fit.right_held_losses(RepairGPT)
    expect.note(gpt_faults.healed(RepairGPT, "07"))


@exercise.check
def precision(RepairGPT):
    """Lesson 09: products in bfloat16, with the weights of now; weights and loss in float32

    bfloat16 has 8 bits for the number: a small step on a large weight is rounded away, and so is most of a
    loss. Autocast casts a weight once and keeps the copy until its region ends.
    """
    gpt_judged_fit.products_in_bfloat16(RepairGPT)
    gpt_judged_fit.weights_in_float32(RepairGPT)
    gpt_judged_fit.weights_of_now(RepairGPT)
    gpt_judged_fit.loss_in_float32(RepairGPT)
    expect.note(gpt_faults.healed(RepairGPT, "09"))


@exercise.check
def what_stays(RepairGPT):
    """Methods keep their parameters and what they return, and `copy` its number

    Copies have other faults, drawn by this number. By it a report names what you healed.
    """
    gpt_judged.same_methods(RepairGPT)
    number = getattr(RepairGPT, "copy", None)
    told = "the class has no `copy`" if number is None else f"`copy` is {expect.show(number)}"
    expect.true(type(number) is int, told, "expected: the line with the number that stood in yours")
