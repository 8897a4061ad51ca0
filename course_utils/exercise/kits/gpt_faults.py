"""The faults of the capstone's first sitting: what stands in the healthy class, and what in a sick one.

A copy of the class has six, one for each lesson in `LESSONS`, drawn by its number.
"""

import inspect
import random
from dataclasses import dataclass
from typing import Any

from course_utils.exercise.kits.gpt import GPT
from course_utils.wrong_use import public

LESSONS = ("02", "04", "05", "06", "07", "09")
_HEAD = '''class RepairGPT(nn.Module):
    """A GPT that learns text, character by character"""

    copy = {copy}  # which faults it came with
'''


@dataclass(frozen=True)
class Fault:
    """`healthy`, which stands once in the healthy class, is `sick` in one that has the fault. `said`: what
    was wrong, for a report that it is healed."""

    lesson: str
    said: str
    healthy: str
    sick: str


_STARTS = "        starts = torch.arange(0, len(ids) - self.context, self.context)\n"
_CLIP = "            nn.utils.clip_grad_norm_(self.parameters(), 1.0)\n"
_STEP = "            optimizer.step()\n"
_LOOP = "        for step in range(1, steps + 1):\n"
_TRAIN = "    self.train()\n"
_SCORES = "F.cross_entropy(scores.float().flatten(0, 1), targets.flatten())"
FAULTS = (
    Fault(
        "02",
        "the weights of the attention were detached",
        "            mixed = weights @ v\n",
        "            mixed = weights.detach() @ v\n",
    ),
    Fault(
        "02",
        "the places were added where autograd doesn't see it",
        "        x = x + self.place.weight[: ids.shape[1]]\n",
        "        x.data += self.place.weight[: ids.shape[1]]\n",
    ),
    Fault(
        "02",
        "the losses kept the graphs of all steps",
        "                total += loss.item()\n",
        "                total += loss\n",
    ),
    Fault(
        "04",
        "all blocks were one",
        "        blocks = [self.Block(width, heads, dropout) for _ in range(layers)]\n",
        "        blocks = [self.Block(width, heads, dropout)] * layers\n",
    ),
    Fault(
        "04",
        "the blocks stood in a list that no module sees",
        "        self.blocks = nn.ModuleList(blocks)\n",
        "        self.blocks = blocks\n",
    ),
    Fault(
        "04",
        "the head had a parameter of its own, in the same memory",
        "        self.head.weight = self.token.weight  #",
        "        self.head.weight.data = self.token.weight.data  #",
    ),
    Fault(
        "05",
        "every epoch had the same order",
        "        while True:\n            mixed",
        "        first = order.get_state()\n        while True:\n"
        "            order.set_state(first)\n            mixed",
    ),
    Fault(
        "05",
        "held characters were trained on",
        "        return ids[:-held], ids[-held:]\n",
        "        return ids, ids[-held:]\n",
    ),
    Fault(
        "05",
        "every other window was left out",
        f"{_STARTS}        while",
        f"{_STARTS.replace(', self.context)', ', 2 * self.context)')}        while",
    ),
    Fault(
        "06",
        "the rate of a step was a share of the step before",
        '                group["lr"] = rate * share(step)\n',
        '                group["lr"] *= share(step)\n',
    ),
    Fault(
        "06",
        "norms and biases decayed",
        '{"params": others, "weight_decay": 0.0}',
        '{"params": others}',
    ),
    Fault("06", "the gradient was cut after the step", _CLIP + _STEP, _STEP + _CLIP),
    Fault(
        "07",
        "from the first evaluation on it trained in evaluation mode",
        _LOOP + "        " + _TRAIN,
        "    " + _TRAIN + _LOOP,
    ),
    Fault(
        "07",
        "the loss got probabilities for scores",
        "        return self.head(self.norm(x))\n",
        "        return self.head(self.norm(x)).softmax(2)\n",
    ),
    Fault(
        "07",
        "it was evaluated with dropout",
        f"        self.eval()\n{_STARTS}        rows",
        f"{_STARTS}        rows",
    ),
    Fault("09", "the loss was computed in bfloat16", _SCORES, _SCORES.replace(".float()", "")),
    Fault(
        "09",
        "the parameters were bfloat16, where small steps are lost",
        "        optimizer = self.optimizer(rate)\n",
        "        optimizer = self.bfloat16().optimizer(rate)\n",
    ),
    Fault(
        "09",
        "one autocast region around all steps kept its first copies of the weights",
        "    def fit(",
        "    @torch.autocast('cpu', dtype=torch.bfloat16)\n    def fit(",
    ),
)


def drawn(copy: int) -> list[Fault]:
    """The six faults of the copy with this number, in the order of their lessons."""
    draw = random.Random(f"copy {copy}")
    return [draw.choice([one for one in FAULTS if one.lesson == lesson]) for lesson in LESSONS]


def source(copy: int, faults: list[Fault]) -> str:
    """The source of a class with these faults, that says it is this copy."""
    text = inspect.getsource(GPT)
    text = _HEAD.format(copy=copy) + text.split('"""\n', 1)[1]
    for fault in faults:
        if text.count(fault.healthy) != 1:
            raise ValueError(f"{fault.healthy!r} stands {text.count(fault.healthy)} times in the class")
        text = text.replace(fault.healthy, fault.sick)
    return text


@public
def copy_of(copy: int) -> str:
    """The source of the copy with this number."""
    return source(copy, drawn(copy))


def healing(copy: int) -> dict[str, str]:
    """What has to become what in the copy with this number."""
    return {fault.sick: fault.healthy for fault in drawn(copy)}


def healed(answer: Any, lesson: str) -> str:
    """The fault that this answer's copy came with, of this lesson, as one that is healed; no text for an
    answer that doesn't say which copy it is."""
    copy = getattr(answer, "copy", None)
    if not isinstance(copy, int):
        return ""
    return f"healed: {drawn(copy)[LESSONS.index(lesson)].said}"
