"""Write on, and compute each character once

`generate(model, ids, count)` gets the lesson's `GPT` and `(batch, time)` characters, one or more a row.
It returns them with `count` more: what this loop gives in evaluation mode.

    start = 0
    for _ in range(count):
        if ids.shape[1] - start > model.context:
            start = ids.shape[1] - model.context // 2
        best = model(ids[:, start:])[:, -1:].argmax(2)
        ids = torch.cat([ids, best], 1)

- As long as `start` stays, each character goes through the blocks once. Keep keys and values.
- The characters at the beginning go through together.
- Starting from one character, peak memory in the first window is at most twice that of its keys and values:
  `layers * 2 * batch * context * width` elements. More windows need no more, but for their text.
- `model` and `ids` don't change.
"""

import gc

import torch
from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import gpt, gpt_written
from course_utils.exercise.kits.whys import because

exercise = Exercise(
    minutes=30,
    hints=[
        "What does the last place of a block need of the places before it? Of `q`, `k` and `v`, which two "
        "are read again when the next character comes?",
        "Write the forward of a block yourself, from `norm1`, `qkv`, `out`, `norm2` and `mlp`. A new "
        "character has one query, and looks at the kept keys and its own. Which place is it at?",
        "A pass gets the characters that aren't in the cache: the whole window at first, then one. Their "
        "places begin behind the kept ones. Query `i` of `t` sees all keys but the last `t - 1 - i`. When "
        "`start` moves, empty the cache. Compute without a graph.",
    ],
)


@exercise.starter
def generate(model: gpt.GPT, ids: Tensor, count: int) -> Tensor:
    """(batch, time) -> (batch, time + count)"""
    raise NotImplementedError


# Weights this large let a character depend on all before it; as they are at first, a GPT repeats itself.
_SETUP = """
from course_utils.exercise.kits import gpt
torch.manual_seed({seed})
model = gpt.GPT(30, context=16, width=16, heads=2, layers=2, dropout=0.5)
for p in model.parameters():
    if p.dim() > 1:
        nn.init.normal_(p, std=0.6)
model = model.to(device).eval()
ids = torch.randint(30, ({batch}, {time}), device=device)
"""
# For counting, numbers do not matter.
_COUNTED = """
from course_utils.exercise.kits import gpt
model = gpt.GPT(8, context=16, width=32, heads=2, layers=2).eval()
ids = torch.arange(48 * {}).view(48, -1) % 8
"""


def _given(batch, time, seed, *_):
    return _SETUP.format(batch=batch, time=time, seed=seed)


_LEFT = "What is given to a function is the caller's. A text that grows is a new tensor."


def _compare(t, count):
    with because(_LEFT), expect.left_alone(t.ids, what="`ids`"):
        came = t.call(f"generate(model, ids, {count})")
    gpt_written.expect_written(came, t.model, t.ids, count)


@exercise.check(
    given=_given,
    cases={
        "one row": (1, 5, 0, 11),
        "three rows": (3, 5, 1, 11),
        "one character": (2, 1, 2, 15),
        "a whole window": (2, 16, 3, 1),
        "no character": (2, 5, 4, 0),
    },
)
def same_characters(t, device, batch, time, seed, count):
    """Within a window the characters are those of the whole text's pass

    A key and a value depend on their own place and those before it, so they stay as they are when the text
    grows.
    """
    _compare(t, count)


@exercise.check(
    given=_given,
    cases={
        "a window and a half": (2, 5, 0, 20),
        "several windows": (2, 3, 1, 50),
        "a text that is longer than a window": (2, 40, 2, 12),
        "a text that is one character longer": (1, 17, 3, 3),
    },
)
def new_window(t, device, batch, time, seed, count):
    """When the window is full, it begins anew with its last half

    The place is added before the first block, so a kept key is the key of a character at that place. There it
    also knows what stood before it: moved to another place it isn't what the model would compute.
    """
    _compare(t, count)


_MODES = "model.train()\nmodel.blocks[1].eval()\n"
_DROPPED = "Which mode the model is in is the caller's. What is asked for is what it writes without dropout."


@exercise.check(given=f"device = 'cpu'{_SETUP.format(batch=2, time=5, seed=0)}{_MODES}")
def in_training_mode(t):
    """A model in training mode writes the same, and keeps its modes and numbers

    `eval()` and `train()` switch all modules inside, so one call doesn't restore modes that differed. A cache
    that hangs on the model is there for the next text, too.
    """
    with expect.left_alone(t.model, what="`model`"):
        try:
            _compare(t, 25)
        except expect.Mismatch as error:
            wanted = gpt_written.written(t.model, t.ids, gpt_written.windows(16, 5, 25))
            t.model.eval()
            came = t.generate(t.model, t.ids, 25)
            if expect.is_tensor(came) and torch.equal(came, wanted):
                error.symptom = "For the same model in evaluation mode the result is right."
                error.why = _DROPPED
            raise


_KEPT = """A cache of what goes into `qkv` saves nothing of `qkv` itself. What is read again are the keys and
the values: keep those."""


@exercise.check(
    given=_COUNTED.format,
    cases={"1 character, then 15": (1, 15), "4 characters, then 30": (4, 30)},
)
def work(t, time, count):
    """In a window each character goes through the blocks once

    Without a cache a text of `n` characters needs `n` passes over up to `n` characters. With it, a character
    costs its own products with the weights, and one row of scores for each head.
    """
    model, layers, batch = t.model, len(t.model.blocks), len(t.ids)
    letters, width = model.token.weight.shape
    starts = list(gpt_written.windows(model.context, time, count))
    fed = sum(
        time + i - start if i == 0 or start > starts[i - 1] else 1 for i, start in enumerate(starts)
    )
    each = layers * (24 * width**2 + 4 * width * model.context) + 2 * width * letters
    limit = batch * fed * each
    told = f"floating-point operations of products ({fed} characters in {batch} rows, {each:,} for each)"
    try:
        expect.at_most(measure.flops(t.call, f"generate(model, ids, {count})"), limit, told)
    except expect.Mismatch as error:
        seen = gpt_written.through(model, lambda: t.generate(model, t.ids, count))
        found = {name: characters // batch for name, characters in seen.items()}
        if len(found) == 2:
            told = [f"`blocks.0.{name}` gets {many}" for name, many in found.items()]
            error.symptom = f"For each row {' and '.join(told)} characters in all, of {fed} that are needed."
            error.why = _KEPT if found["mlp"] <= fed < found["qkv"] else ""
        raise


_ONE_PASS = "The text at the beginning is one pass, whatever its length."


@exercise.check
def operators(generate):
    """The number of operators for a character doesn't depend on how many came before

    One `torch.cat`, or one write into a place that was kept free, takes a new key to all others, however many
    these are.
    """

    def ran(time, count):
        t = expect.given(_COUNTED.format(time), generate=generate)
        with measure.operators() as ops:
            t.call(f"generate(model, ids, {count})")
        return ops.total()

    with Rows() as rows:
        with rows.of("characters at the beginning"), because(_ONE_PASS):
            told = "operators for one character after 14 (after 3: {:,})"
            few = ran(3, 1)
            expect.at_most(ran(14, 1), few, told.format(few))
        with rows.of("characters that were written"):
            told = "operators for characters 12 to 14 (for 4 to 6: {:,})"
            early, late = (ran(1, count + 3) - ran(1, count) for count in (3, 11))
            expect.at_most(late, early, told.format(early))


_GRAPH = "Where a graph is made, it holds what a backward of each character would need. `no_grad` makes none."
_SLOTS = "A window needs `context` slots, however long the text gets. What was kept of the one before can go."
_HELD = """A tensor is there as long as anything holds it: an attribute of the model, a list outside. What
only variables of the call hold is gone when it returns."""


@exercise.check(given=_COUNTED.format(1))
def memory(t):
    """Memory is that of a window's keys and values, and nothing stays

    Caches of all steps in a list are as many as there are characters. The slots of a window, or `torch.cat`
    block by block, take little more than the keys and values themselves.
    """
    before = gpt_written.attributes(t.model)
    batch, width = len(t.ids), t.model.token.weight.shape[1]
    cache = len(t.model.blocks) * 2 * batch * t.model.context * width * t.model.token.weight.element_size()
    peak = measure.peak_bytes(t.call, "generate(model, ids, 15)").total
    told = f"bytes at the peak (the keys and values of a window have {cache:,})"
    try:
        expect.at_most(peak, 2 * cache, told, unit="bytes")
    except expect.Mismatch as error:
        if gpt_written.keeps_for_backward(lambda: t.generate(t.model, t.ids, 15)):
            error.symptom, error.why = "Meanwhile operators keep tensors for a backward.", _GRAPH
        raise
    # The last of three windows is full after 34 characters, the last of ten after 97. The text grows too, and
    # while it's copied it is there twice.
    three, ten = (measure.peak_bytes(t.call, f"generate(model, ids, {n})").total for n in (34, 97))
    told = f"bytes at the peak of ten windows ({three:,} at that of three)"
    with because(_SLOTS):
        expect.at_most(ten, three + 4 * (97 - 34) * batch * t.ids.element_size(), told, unit="bytes")

    def written_on():
        result = t.call("generate(model, ids, 5)")
        # A function that names itself, or a block that holds one that names the block, is a cycle. It goes
        # when Python collects; while live bytes are counted, nothing else makes it.
        gc.collect()
        return result

    live = measure.live_bytes(written_on)
    try:
        expect.at_most(live.held - live.result, 0, "still in memory beside the result", unit="bytes")
    except expect.Mismatch as error:
        new = sorted(gpt_written.attributes(t.model) - before)
        error.symptom = f"`{new[0]}` is new after the call." if new else ""
        error.why = _HELD
        raise
