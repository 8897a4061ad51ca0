"""A step as fast as the machine allows

`fast_step(model, ids, size, parts, seed)` returns a function. Each call of that trains `model` one step and
returns its loss, in float32 and without a graph. The code below is right, and slow.

- A step: the gradient of the mean of the losses of `parts` batches, its norm cut to at most 1, and a step of
  `model.optimizer(1e-3)`. The batches are those of `model.batches` for the first part of `model.split(ids)`;
  the last one of an epoch may be smaller.
- Products may be in bfloat16. Weights stay in float32, and dropout is on.
- On one thread, gain at least half of what GPT's own step gains with merged batches.
- Leave torch's settings alone.

You may patch the model's methods, and compile.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import gpt, gpt_speed, gpt_steps

exercise = Exercise(
    minutes=30,
    core=True,
    hints=[
        "Profile one step. How often does each operator run, and what asks for it so often? Change one "
        "thing at a time, and measure it alone.",
        "Four small batches cost more than one large one. A head is a dimension, a mask can be made once, "
        "and a checkpoint computes again what memory could have kept.",
        "`torch.cat` the batches of a step, and weigh each row's losses so that every batch counts the "
        "same. `model.attend` of the blocks has all heads in one product; autocast makes products bfloat16.",
    ],
)


@exercise.starter
def fast_step(model: gpt.GPT, ids: Tensor, size: int, parts: int, seed: int):
    """A function that trains one step and returns its loss"""
    train, _ = model.split(ids)
    optimizer = model.optimizer(1e-3)
    order = torch.Generator().manual_seed(seed)
    best = {"loss": math.inf}

    def batches():
        starts = range(0, len(train) - model.context, model.context)
        while True:
            mixed = [starts[i] for i in torch.randperm(len(starts), generator=order)]
            for first in range(0, len(mixed), size):
                x, y = [], []
                for start in mixed[first : first + size]:
                    places = range(start, start + model.context)
                    x.append([train[place].item() for place in places])
                    y.append([train[place + 1].item() for place in places])
                yield torch.tensor(x), torch.tensor(y)

    def attend(block, x):
        heads = []
        w = x.shape[2] // block.heads
        parted = [part.split(w, 2) for part in block.qkv(x).chunk(3, 2)]
        for q, k, v in zip(*parted, strict=True):
            scores = q @ k.transpose(1, 2) / math.sqrt(w)
            later = torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool)
            for row in range(x.shape[1]):
                later[row, row + 1 :] = True
            heads.append(scores.masked_fill(later, -math.inf).softmax(2) @ v)
        return block.out(torch.cat(heads, 2))

    def forward(block, x):
        x = x + block.dropout(attend(block, block.norm1(x)))
        h = torch.utils.checkpoint.checkpoint(
            block.mlp, block.norm2(x), use_reentrant=False
        )
        return x + block.dropout(h)

    def loss_of(x, y):
        h = model.token(x) + model.place.weight[: x.shape[1]]
        for block in model.blocks:
            h = forward(block, h)
        scores = model.head(model.norm(h))
        return F.cross_entropy(scores.flatten(0, 1), y.flatten())

    source = batches()

    def step():
        model.train()
        total = 0.0
        for _ in range(parts):
            loss = loss_of(*next(source)) / parts
            loss.backward()
            total += loss.item()
        squares = sum(p.grad.norm().item() ** 2 for p in model.parameters())
        for p in model.parameters():
            if math.sqrt(squares) > 1:
                p.grad /= math.sqrt(squares)
        optimizer.step()
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        if total < best["loss"]:
            best["loss"] = total
            for name, weight in model.state_dict().items():
                best[name] = weight.clone()
        return total

    return step


_STEPS = 8
_IMPORT = "from course_utils.exercise.kits import gpt_steps"
_MADE = "model = gpt_steps.model({0})\nids = gpt_steps.text({1})\nstep = fast_step(model, ids, {2})"
# Models whose losses differ much from batch to batch, and one as `GPT` makes it. Texts of many batches, and
# of so few that an epoch ends, with a smaller batch, in the middle of a step.
_RUNS = {
    "two batches a step": ("spread=20.0, seed=0", "1000, 3000", "3, 2, 5"),
    "an epoch ends within a step": ("spread=20.0, seed=1", "21000, 688", "3, 2, 6"),
    "three batches a step": ("spread=20.0, seed=2", "41000, 3000", "2, 3, 7"),
    "one batch a step": ("spread=1.0, seed=3", "61000, 3000", "6, 1, 8"),
}


def _code(label):
    made, text, numbers = _RUNS[label]
    return f"{_IMPORT}\n{_MADE.format(made, text, numbers)}"


def _calls(label, calls):
    """Lets messages show an example with so many calls of `step`."""
    # The first call by itself: "for the same example, then" goes on from there.
    more = [f"for _ in range({calls - 1}):", "    loss = step()"]
    return expect.situation(_code(label), "loss = step()", *(more if calls > 1 else []))


def _run(fast_step, label):
    """`_STEPS` steps of an example: its `t`, what they returned, what the optimizer saw, the weights before
    each, an equal model, and the numbers of the call of `fast_step`."""
    made, _, numbers = _RUNS[label]
    t = expect.given(_code(label), fast_step=fast_step)
    with expect.situation():
        twin = expect.given(f"{_IMPORT}\nmodel = gpt_steps.model({made})").model
    starts, came = [], []
    with gpt_steps.optimizers_of(t.model) as seen, torch.compiler.set_stance("force_eager"):
        for call in range(1, _STEPS + 1):
            starts.append(gpt_steps.weights_of(t.model))
            with _calls(label, call):
                came.append(t.step())
    names = [sorted(one) for one in (starts[-1], gpt_steps.weights_of(twin))]
    with _calls(label, _STEPS):
        expect.equal(*names, what="the names of the parameters of `model`")
    return t, came, seen, starts, twin, [int(number) for number in numbers.split(", ")]


@exercise.check(deadline=60)
def losses(fast_step):
    """Each step returns the mean loss of its own batches

    The loss of a step is the mean of those of its batches, with the weights that it starts from. It may
    differ by what products in bfloat16 make of it, here by 0.015.
    """
    found = []
    for label in _RUNS:
        t, came, _, starts, twin, numbers = _run(fast_step, label)
        for call, loss in enumerate(came, 1):
            with _calls(label, call):
                came[call - 1] = gpt_steps.number(loss, call)
        moments = gpt_steps.moments(twin, starts, t.ids, *numbers)
        for call, (loss, moment) in enumerate(zip(came, moments, strict=True), 1):
            if not gpt_steps.near(loss, moment.loss):
                others = gpt_steps.other_losses(twin, moments[:call], came[:call], t.ids, numbers)
                with _calls(label, call):
                    told = f"call {call} of `step` returns {loss:.2f}, expected {moment.loss:.2f}"
                    found.append((expect.Mismatch(told), others))
                break
    expect.looked()
    if found:
        error, whys = found[0]
        if common := set.intersection(*(set(others) for _, others in found)):
            name = min(common, key=len)
            error.symptom, error.why = f"In {len(found)} of {len(_RUNS)} runs it is {name}.", whys[name]
        raise error


@exercise.check(deadline=60)
def gradient(fast_step):
    """The optimizer gets the gradient of that mean, cut to a norm of 1

    AdamW divides a gradient by its own size, so a wrong scale hardly shows in one step; it does in several.
    """
    for label in _RUNS:
        t, _, seen, starts, twin, numbers = _run(fast_step, label)
        moments = gpt_steps.moments(twin, starts, t.ids, *numbers)
        for call, (came, moment) in enumerate(zip(seen.gradients, moments, strict=False), 1):
            with _calls(label, call):
                gpt_steps.expect_gradient(came, moment, call)
    expect.looked()


@exercise.check(deadline=60)
def weights(fast_step):
    """All weights of `model` take the same steps, in float32

    The weights after eight steps are those that eight steps of `model.optimizer(1e-3)` make of these
    gradients.
    """
    for label in _RUNS:
        t, _, seen, starts, twin, numbers = _run(fast_step, label)
        end = gpt_steps.healthy_end(twin, _STEPS, t.ids, *numbers)
        with _calls(label, _STEPS):
            gpt_steps.expect_weights(t.model, starts[0], end, _STEPS, seen)


@exercise.check(deadline=60)
def learns(fast_step):
    """Over many steps with dropout it learns as much

    A model that was evaluated is in eval mode, where nothing is dropped. With dropout the loss is higher and
    differs from run to run: a curve is compared with healthy ones under three other seeds.
    """
    code = f"{_IMPORT}\n" + _MADE.format("dropout=0.5", "40000, 6000", "4, 2, 9")
    code = code.replace("\nids", "\nmodel.eval()\nids")
    t = expect.given(code, fast_step=fast_step)
    with torch.compiler.set_stance("force_eager"):
        t.run("torch.manual_seed(9)\nlosses = [float(step()) for _ in range(40)]")
    gpt_speed.expect_curve(t.losses, t.ids, (4, 2, 9))


@exercise.check(deadline=60)
def settings(fast_step):
    """Torch's settings are as they were

    The number of threads, the default dtype, the precision of float32 products and the modes of autograd hold
    for all that runs in the process, and not for one step alone.
    """
    before = gpt_speed.settings()
    _run(fast_step, "one batch a step")
    for name, value in gpt_speed.settings().items():
        expect.equal(value, before[name], what=f"`{name}` afterwards")


@exercise.check(isolated=True, deadline=240)
def speed(fast_step):
    """It gains at least half of what can be gained

    What costs is how often Python calls an operator, what is computed twice, and how wide the numbers are.
    Three steps run in turns: that of the code to start from, yours, and GPT's own with merged batches.
    """
    code = f"{_IMPORT}\n" + _MADE.format("width=96, layers=3, context=64", "0, 20000", "4, 4, 1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        t = expect.given(code, fast_step=fast_step)
        others = [
            make(gpt_steps.model(width=96, layers=3, context=64), t.ids, 4, 4, 1)
            for make in (exercise.starter_object, gpt_speed.quick)
        ]
        found = gpt_speed.gain(others[0], t.step, others[1], least=0.5)
    finally:
        torch.set_num_threads(threads)
    told = "the gain over the code to start from is less than half of what GPT's own step gains"
    expect.true(found.share >= 0.5, told, "expected: at least half")
