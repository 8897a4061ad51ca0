"""What a capstone's class does, asked in ways that don't depend on each other: each tells the faults of one
lesson, whatever else is wrong."""

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils.exercise import expect
from course_utils.exercise.kits.gpt_run import (
    CONTEXT,
    EVERY,
    LETTERS,
    PARTS,
    RATE,
    STEPS,
    Answer,
    all_parameters,
    tiny,
    trained,
)

DISTANCE = 3e-3  # of central differences: far enough for scores that are rounded to float32


def with_its_why(judge: Callable[[Answer], None]) -> Callable[[Answer], None]:
    """Decorator: what it finds wrong is told with the rule behind it, the rest of its docstring."""
    why = inspect.cleandoc(judge.__doc__ or "").partition("\n\n")[2]

    @functools.wraps(judge)
    def told(answer: Answer) -> None:
        try:
            judge(answer)
        except expect.Mismatch as error:
            error.why = why
            raise

    return told


# --- 02: gradients ---------------------------------------------------------------------------------------


@with_its_why
def right_gradients(answer: Answer) -> None:
    """What backward finds for each parameter is how the scores change with it, by central differences.

    What is detached, or changed through `.data`, is a constant to autograd: the scores depend on it, and
    the gradient doesn't say so. No error tells, since the other parameters still get a gradient.
    """
    model = tiny(answer, letters=12).double().eval()
    with torch.no_grad():
        for _, p in all_parameters(model):
            p.data = torch.randn_like(p, dtype=torch.float64) / 3  # so that all of it takes part
    ids, weights = torch.randint(12, (3, CONTEXT)), torch.randn(3, CONTEXT, 12)
    slopes: dict[str, tuple[float, float]] = {}
    for name, p in all_parameters(model):
        found = torch.autograd.grad((model(ids) * weights).sum(), p, allow_unused=True)[0]
        way, ends = torch.randn_like(p), []
        for sign in (1, -1):
            with torch.no_grad(), _moved(p, sign * DISTANCE * way):
                ends.append((model(ids) * weights).sum().item())
        slope = 0.0 if found is None else float((found * way).sum())
        slopes[name] = slope, (ends[0] - ends[1]) / (2 * DISTANCE)
    most = max(abs(wanted) for _, wanted in slopes.values())
    wrong = {
        name: abs(slope - wanted) / (abs(wanted) + 1e-6 * most)
        for name, (slope, wanted) in slopes.items()
        if not math.isclose(slope, wanted, rel_tol=1e-2, abs_tol=1e-3 * most)
    }
    for name in sorted(wrong, key=lambda one: -wrong[one])[:1]:
        slope, wanted = slopes[name]
        told = f"a sum of the scores changes by {wanted:.3g} for a unit along one direction of `{name}`,"
        told += f" and the gradient says by {slope:.3g}"
        expect.true(False, told, "expected: the same")
    expect.looked()


@contextlib.contextmanager
def _moved(p: Tensor, by: Tensor) -> Iterator[None]:
    was = p.detach().clone()
    p.data += by
    try:
        yield
    finally:
        p.data.copy_(was)


@with_its_why
def no_graphs_kept(answer: Answer) -> None:
    """While it trains, the graphs of earlier steps are gone.

    A tensor that hangs on a graph keeps all of it, as long as anything holds the tensor, a sum of losses
    too. `item()` takes out the number.
    """
    run = trained(answer).run
    most = max(run.graphs[:-1], default=0)
    told = f"when a forward begins, the graphs of {most} earlier ones still exist"
    expect.true(most <= PARTS, told, f"expected: at most {PARTS}, those of one step")
    told = f"when `fit` has returned, the graphs of {run.graphs[-1]} forwards still exist"
    expect.true(run.graphs[-1] <= 1, told, "expected: none of an earlier step")


# --- 04: modules -----------------------------------------------------------------------------------------


@with_its_why
def blocks_of_their_own(answer: Answer) -> None:
    """Each block has parameters of its own, and the model knows them.

    A list times 3 holds one module three times. And a module finds those that are its attributes or stand
    in a `ModuleList`; a plain list isn't searched, so its parameters are neither trained nor saved.
    """
    counts = [sum(p.numel() for p in tiny(answer, layers).parameters()) for layers in (1, 2, 3)]
    for layers in (2, 3):
        fewer, more = counts[layers - 2 : layers]
        told = f"with {layers - 1} and with {layers} layers the model has {fewer:,} and {more:,} parameters"
        expect.true(more - fewer == counts[1] - counts[0] > 0, told, "expected: as many more with each block")
    state = tiny(answer).state_dict()
    told = f"its `state_dict()` has {len(state)} entries"
    expect.true(len(state) > 10, told, "expected: those of all blocks")


@with_its_why
def one_table(answer: Answer) -> None:
    """The head and the table of characters are one parameter, so a step moves both once.

    To tie two modules is to give both one Parameter. Two Parameters that share storage are two to an
    optimizer: it steps the same numbers twice.
    """
    model = tiny(answer)
    tables = [p for p in model.parameters() if p.shape == (LETTERS, 16)]
    where = {p.untyped_storage().data_ptr() for p in tables}
    told = (
        f"{len(tables)} parameters of shape ({LETTERS}, 16), in {len(where)} storage{'s' * (len(where) > 1)}"
    )
    expect.true(len(tables) == 1, told, "expected: one parameter, which both use")


@with_its_why
def looks_back(answer: Answer) -> None:
    """A place's scores don't depend on what comes after it, nor on the other rows.

    Scores of a place that sees what comes later can copy it: the loss falls, and what is written is bad.
    Which dimension is cut into heads decides too what attention mixes.
    """
    model = tiny(answer, letters=20).eval()
    ids = torch.randint(20, (2, CONTEXT))
    with torch.no_grad():
        before = model(ids)
        for place in range(1, CONTEXT):
            other = ids.clone()
            other[0, place] = (other[0, place] + 7) % 20
            moved = (model(other) - before).abs().amax(-1) > 1e-6
            early = moved[0, :place].nonzero().flatten().tolist()
            told = f"character {place} is changed, and the scores at place {early[0] if early else 0} change"
            expect.true(not early, told, f"expected: those from place {place} on")
            expect.true(bool(moved[0, place]), f"character {place} is changed, and its scores stay", "")
            told = f"character {place} of row 0 is changed, and scores of row 1 change"
            expect.true(not moved[1].any(), told, "expected: those of row 0")


# --- 05: data --------------------------------------------------------------------------------------------


@with_its_why
def right_split(answer: Answer) -> None:
    """What is held back isn't trained on, and nothing is lost.

    What is held back says how a model does on text that it hasn't seen, so none of it may be trained on.
    """
    ids = torch.arange(LETTERS)
    train, held = (part.tolist() for part in tiny(answer).split(ids))
    both = sorted(set(train) & set(held))
    told = f"{len(both)} of {len(held)} held characters are in the training part, too"
    expect.true(not both, told, "expected: none")
    told = f"of {LETTERS} characters {len(train)} are for training and {len(held)} held back"
    expect.true((train + held) == ids.tolist() and len(held) == LETTERS // 10, told, "expected: 180 and 20")
    seen = {letter for forward in trained(answer).forwards if forward.grad for letter in forward.ids}
    both = sorted(seen & set(held))
    told = f"`fit` trains on {len(both)} of the {len(held)} held characters"
    expect.true(not both, told, "expected: on none")


@with_its_why
def right_batches(answer: Answer) -> None:
    """Windows that follow each other, each once in an epoch, in a new order each time.

    A loader that leaves something out raises nothing. And a generator that is set back draws the same
    order again.
    """
    model = tiny(answer)
    windows, size = 11, 3
    ids = torch.arange(windows * CONTEXT + 1)
    source = model.batches(ids, size, torch.Generator().manual_seed(0))
    orders = []
    for epoch in range(3):
        starts: list[int] = []
        while len(starts) < windows:
            x, y = next(source)
            told = f"for the characters {x[0].tolist()} the targets are {y[0].tolist()}"
            expect.true(torch.equal(y, x + 1), told, "expected: for each the one after it")
            told = f"a batch is of shape {tuple(x.shape)}"
            left = min(size, windows - len(starts))
            expect.true(x.shape == (left, CONTEXT), told, f"expected: {(left, CONTEXT)}")
            starts += x[:, 0].tolist()
        missing = sorted(set(range(0, windows * CONTEXT, CONTEXT)) - set(starts))
        told = f"in epoch {epoch} the windows begin at {sorted(starts)}"
        expect.true(not missing, told, f"expected: each of the {windows} once, at 0, {CONTEXT}, …")
        orders.append(starts)
    told = f"epochs 0 and 1 have the windows in one order, {orders[0]}"
    expect.true(orders[0] != orders[1] != orders[2], told, "expected: a new order in each epoch")


# --- 06: the loop ----------------------------------------------------------------------------------------


@with_its_why
def right_decay(answer: Answer) -> None:
    """Matrices decay, biases and norms don't.

    Decay pulls a parameter to 0. That keeps a matrix small; a norm's weight has its best place near 1.
    """
    model = tiny(answer)
    optimizer = model.optimizer(RATE)
    names = {p: name for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            wanted = 0.1 if p.dim() > 1 else 0.0
            told = f"`{names.get(p, 'a parameter')}` has shape {tuple(p.shape)} and a weight decay of"
            expect.true(
                group["weight_decay"] == wanted, f"{told} {group['weight_decay']}", f"expected: {wanted}"
            )


@with_its_why
def right_steps(answer: Answer) -> None:
    """The gradient at a step is the mean of its batches', with a norm of at most 1.

    An optimizer uses what is in `.grad` when it steps: what is cut, added or cleared later comes too
    late, and what was not cleared is in it still.
    """
    for number, step in enumerate(trained(answer).steps):
        room = 1e-3 if all(p.dtype == torch.float32 for p in step.grads) else 2e-2  # which is told elsewhere
        norm, whole = _norm(step.grads.values()), _norm(step.came.values())
        told = f"at step {number} the gradient has a norm of {norm:.3g}"
        expect.true(norm < 1 + room, told, "expected: at most 1, when the optimizer takes its step")
        share = min(1.0, 1 / max(whole, 1e-12))
        for p, grad in step.grads.items():
            far = _norm([grad.double() - share * step.came[p].double()])
            told = f"at step {number} the gradient of a parameter of shape {tuple(p.shape)} isn't that of the"
            told += f" {PARTS} batches since the last step, cut to 1"
            expect.true(far <= room * max(whole * share, 1e-3), told, "expected: theirs, and no other's")
        total, mean = sum(step.backwards), sum(step.losses) / max(len(step.losses), 1)
        told = f"at step {number} backward was called on losses that sum up to {total:.4g},"
        told += f" and the mean loss of its batches is {mean:.4g}"
        expect.true(math.isclose(total, mean, rel_tol=2e-2), told, "expected: the same")


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(one.double().square().sum()) for one in tensors))


@with_its_why
def right_rates(answer: Answer) -> None:
    """The rate rises for a tenth of the steps, then falls along a cosine to a tenth.

    A schedule says which share of the first rate a step has. Who multiplies the rate of the step before
    multiplies all shares.
    """
    rates = [step.rate / RATE for step in trained(answer).steps]
    shown = ", ".join(f"{rate:.2g}" for rate in rates)
    told = f"as shares of `rate`, the rates of {len(rates)} steps are {shown}"
    expect.true(len(rates) == STEPS, told, f"expected: {STEPS} steps")
    warm = STEPS // 10
    half, last = rates[STEPS // 2], rates[-1]
    right = rates[0] < 0.9 and max(rates) > 0.9 and max(rates[: warm + 2]) == max(rates)
    right &= 0.45 < half < 0.65 and 0.08 < last < 0.13
    expect.true(right, told, "expected: up to 1 in a tenth of the steps, 0.55 half way, 0.1 at the end")


# --- 07: the loss and the modes --------------------------------------------------------------------------


@with_its_why
def right_loss(answer: Answer) -> None:
    """`loss` is the mean cross-entropy of the model's scores.

    `cross_entropy` takes scores, and makes probabilities of them itself. Probabilities lie between 0 and
    1; taken as scores they differ so little that the loss can't fall far.
    """
    model = tiny(answer).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
        ids = torch.randint(LETTERS, (3, CONTEXT + 1))
        came = float(model.loss(ids[:, :-1], ids[:, 1:]))
        scores = model(ids[:, :-1])
    wanted = F.cross_entropy(scores.double().flatten(0, 1), ids[:, 1:].flatten()).item()
    told = f"`loss` is {came:.4g}, and the mean cross-entropy of the model's scores {wanted:.4g}"
    expect.true(math.isclose(came, wanted, rel_tol=2e-2), told, "expected: the same, up to bfloat16")
    sums = scores.double().sum(-1)
    told = f"the scores are between 0 and 1 and sum up to {float(sums.mean()):.3g} at each place"
    probable = bool((scores >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-2)
    expect.true(not probable, told, "expected: scores; the cross-entropy makes probabilities of them")


@with_its_why
def right_modes(answer: Answer) -> None:
    """It trains in training mode and evaluates in evaluation mode.

    `eval()` holds until somebody calls `train()`, and the other way round.
    """
    for forward in trained(answer, dropout=0.1).forwards:
        wanted = "training" if forward.grad else "evaluation"
        mode = "training" if forward.training else "evaluation"
        when = "in a step" if forward.grad else "in `evaluate`"
        told = f"after {forward.step} steps, {when}, the model is in {mode} mode"
        expect.true(mode == wanted, told, f"expected: {wanted} mode")


@with_its_why
def right_held_losses(answer: Answer) -> None:
    """`evaluate` gives the mean over all windows.

    One number for the held text is the mean over all of it.
    """
    run = trained(answer)
    told = f"`fit` returned {len(run.held)} held losses for {STEPS} steps"
    expect.true(len(run.held) == STEPS // EVERY, told, f"expected: one after every {EVERY}")
    told = f"`fit` returned {len(run.losses)} losses for {STEPS} steps"
    expect.true(len(run.losses) == STEPS, told, "expected: one for each step")
    model = tiny(answer, letters=20)
    ids = torch.randint(20, (5 * CONTEXT + 1,))
    came = model.evaluate(ids)
    with torch.no_grad():
        scores = model.eval()(ids[:-1].view(5, CONTEXT))
    wanted = F.cross_entropy(scores.flatten(0, 1), ids[1:]).item()
    told = f"`evaluate` gives {came:.4g}, and the mean over all windows is {wanted:.4g}"
    expect.true(math.isclose(came, wanted, rel_tol=2e-2), told, "expected: the same, up to bfloat16")


# --- 09: precision ---------------------------------------------------------------------------------------


@with_its_why
def loss_in_float32(answer: Answer) -> None:
    """Scores come in bfloat16, and the loss is computed and returned in float32.

    bfloat16 keeps 8 bits of a number: between 2 and 4 it has steps of 1/64, and a loss falls by less than
    that from step to step.
    """
    loss = tiny(answer).loss(torch.arange(CONTEXT)[None], torch.arange(1, CONTEXT + 1)[None])
    told = f"`loss` returns {loss.dtype}".replace("torch.", "")
    expect.true(loss.dtype == torch.float32, told, "expected: float32")


@with_its_why
def weights_in_float32(answer: Answer) -> None:
    """The parameters that the optimizer moves are float32.

    bfloat16 keeps 8 bits of a number: a step of less than 1/256 of a weight may be rounded away. So
    weights stay float32, and autocast casts them where they are used.
    """
    for step in trained(answer).steps:
        for p in step.grads:
            told = f"in a step, a parameter of shape {tuple(p.shape)} is {p.dtype}".replace("torch.", "")
            expect.true(p.dtype == torch.float32, told, "expected: float32; autocast casts at each use")


@with_its_why
def weights_of_now(answer: Answer) -> None:
    """Each forward computes with the weights as they are.

    Autocast casts a weight once and keeps the copy until its outermost region ends. A region around
    several steps computes with the first copies.
    """
    for forward in trained(answer).forwards:
        told = f"after {forward.step} steps a forward gives other scores than the weights of that moment do"
        expect.true(forward.of_now, told, "expected: the scores that these weights give")


@with_its_why
def products_in_bfloat16(answer: Answer) -> None:
    """`loss` keeps activations in bfloat16 for backward.

    Autocast casts what goes into a product of matrices. The copies are what backward keeps, in half the
    bytes.
    """
    kept: set[torch.dtype] = set()

    def keep(tensor: Tensor) -> Tensor:
        kept.add(tensor.dtype)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        tiny(answer).loss(torch.arange(CONTEXT)[None], torch.arange(1, CONTEXT + 1)[None])
    told = "nothing that `loss` keeps for backward is bfloat16"
    expect.true(torch.bfloat16 in kept, told, "expected: matrix products in bfloat16")
