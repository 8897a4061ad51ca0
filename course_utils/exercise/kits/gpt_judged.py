"""What a capstone's model and batches do, asked in ways that don't depend on each other: each tells the
faults of one lesson, whatever else is wrong. What its training does is in `gpt_judged_fit`."""

import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from course_utils.exercise import expect
from course_utils.exercise.kits.gpt import GPT
from course_utils.exercise.kits.gpt_run import (
    CONTEXT,
    LETTERS,
    PARTS,
    Answer,
    all_parameters,
    tiny,
    trained,
)
from course_utils.exercise.kits.whys import because, with_its_why

DISTANCE = 3e-3  # of central differences: far enough for scores that are rounded to float32


# --- 02: gradients ---------------------------------------------------------------------------------------


@with_its_why
def right_gradients(answer: Answer) -> None:
    """What backward finds for each parameter is how the scores change with it, by central differences.

    What is detached, or changed through `.data`, is a constant to autograd: the scores depend on it, and
    the gradient doesn't say so. No error tells, since the other parameters still get a gradient.
    """
    model = tiny(answer, layers=1, letters=12).double().eval()
    with torch.no_grad():
        for _, p in all_parameters(model):
            p.data = torch.randn_like(p, dtype=torch.float64) / 3  # so that all of it takes part
    ids, weights = torch.randint(12, (3, CONTEXT)), torch.randn(3, CONTEXT, 12)

    def total() -> Tensor:
        return (model(ids) * weights).sum()

    slopes: dict[str, tuple[float, float]] = {}
    for name, p in all_parameters(model):
        found = torch.autograd.grad(total(), p, allow_unused=True)[0]
        way, ends = torch.randn_like(p), []
        for far in (-2, -1, 1, 2):
            with torch.no_grad(), _moved(p, far * DISTANCE * way):
                ends.append(total().item())
        wanted, wider = (ends[2] - ends[1]) / (2 * DISTANCE), (ends[3] - ends[0]) / (4 * DISTANCE)
        if math.isclose(wanted, wider, rel_tol=1e-2):  # else something rounds: no slope can be measured
            slopes[name] = (0.0 if found is None else float((found * way).sum())), wanted
    most = max((abs(wanted) for _, wanted in slopes.values()), default=0.0)
    wrong = [
        name
        for name, (slope, wanted) in slopes.items()
        if not math.isclose(slope, wanted, rel_tol=3e-2, abs_tol=1e-3 * most)
    ]
    for name in wrong[-1:]:  # the one that is nearest to what goes wrong: those before it lose theirs too
        slope, wanted = slopes[name]
        told = (
            f"`{name}` is moved a little along a direction, and a sum of the scores changes by {wanted:.3g}"
        )
        expect.true(False, f"{told} per unit; by the gradient it would change by {slope:.3g}", "")
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
    expect.true(most <= 2 * PARTS, told, f"expected: at most {2 * PARTS}, those of this step and the last")
    told = f"when `fit` has returned, the graphs of {run.graphs[-1]} forwards still exist"
    expect.true(run.graphs[-1] <= PARTS, told, f"expected: at most {PARTS}, those of the last step")


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
        f"the model has {len(tables)} parameters of shape ({LETTERS}, 16), letters by width, in {len(where)}"
    )
    told += f" storage{'s' * (len(where) != 1)}"
    expect.true(len(tables) == 1, told, "expected: one parameter, which both use")


_MIXES = "Attention mixes what the places before have. Without it a score knows its own character alone."
_SHORTER = "A place sees those before it alone, so its scores are the same however long the text is."
_PLACED = (
    "Attention itself doesn't know in which order things come: that is what the vectors of places are for."
)


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
            expect.true(bool(moved[0, place]), f"character {place} is changed, and the scores there stay", "")
            told = f"character {place} of row 0 is changed, and scores of row 1 change"
            expect.true(not moved[1].any(), told, "expected: those of row 0")
            later = place == CONTEXT - 1 or bool(moved[0, place + 1 :].any())
            with because(_MIXES):
                told = f"character {place} is changed, and none of the scores after it change"
                expect.true(later, told, "expected: they depend on all characters before")
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.3)  # places may be zeros at first
        whole, beginning = model(ids), model(ids[:, :3])
        with because(_SHORTER):
            told = f"the scores of a text of 3 characters aren't those of the first 3 of {CONTEXT}"
            expect.true(torch.allclose(whole[:, :3], beginning, atol=1e-4), told)
        same = model(torch.full((1, CONTEXT), 5))[0]
        with because(_PLACED):
            told = "with one character at all places the scores are the same at each"
            expect.true(not torch.allclose(same, same[:1], atol=1e-4), told, "expected: other ones")


# --- 05: data --------------------------------------------------------------------------------------------


_THE_CALLERS = "A text that is given to a method is the caller's."


@with_its_why
def right_split(answer: Answer) -> None:
    """What is held back isn't trained on, and nothing is lost.

    What is held back says how a model does on text that it hasn't seen, so none of it may be trained on.
    """
    ids = torch.arange(LETTERS)
    with because(_THE_CALLERS), expect.left_alone(ids, what="the text that `split` gets"):
        train, held = (part.tolist() for part in tiny(answer).split(ids))
    with because(_THE_CALLERS):
        unchanged = torch.equal(trained(answer).text, ids)
        expect.true(unchanged, "`fit` changes the text that it gets", "expected: the text as it was")
    both = sorted(set(train) & set(held))
    told = f"{len(both)} of {len(held)} held characters are in the training part, too"
    expect.true(not both, told, "expected: none")
    told = f"of {LETTERS} characters {len(train)} are for training and {len(held)} held back"
    expect.true((len(train), len(held)) == (180, 20), told, "expected: 180 and 20")
    jumps = sum(after - before != 1 for before, after in itertools.pairwise(train))
    told = f"in the training part {jumps} characters have another one after them than in the text"
    expect.true(jumps <= 1, told, "expected: the text as it is")
    seen = {letter for forward in trained(answer).forwards if forward.grad for letter in forward.ids}
    both = sorted(seen & set(held))
    told = f"`fit` trains on {len(both)} of the {len(held)} held characters"
    expect.true(not both, told, "expected: on none")


_PERMUTED = """A permutation that isn't drawn from `order` comes from torch's global random state. Then
`order` doesn't decide it, and a run can't be repeated."""
_SET_BACK = (
    "A generator that is set back draws the same order again; and one draw serves for one epoch alone."
)
_OVERLAP = """Windows that follow each other begin `context` apart. Where they overlap, an epoch has some
characters more than once."""


@with_its_why
def right_batches(answer: Answer) -> None:
    """Windows that follow each other, each once in an epoch, in a new order each time.

    A loader that leaves something out raises nothing. A window needs one character behind it, the last
    target, and no more.
    """
    model, windows, size = tiny(answer), 11, 3
    ids = torch.arange(windows * CONTEXT + 1)
    everywhere = list(range(0, windows * CONTEXT, CONTEXT))
    orders = _orders(model, ids, size, windows)
    seen = {start for order in orders for start in order}
    never = sorted(set(everywhere) - seen)
    for epoch, order in enumerate(orders):
        first = 1 + epoch * windows
        told = f"windows {first} to {first + windows - 1}, an epoch, begin at {sorted(order)}"
        if sorted(order) != everywhere:
            symptom = f"In {3 * windows} windows none begins at {' or '.join(map(str, never[:3]))}." * bool(
                never
            )
            between = sorted(set(order) - set(everywhere))
            if between:
                symptom = f"Some begin at {' and '.join(map(str, between[:2]))}, inside of others."
            wanted, why = f"expected: each once, at {everywhere}", _OVERLAP * bool(between)
            raise expect.Mismatch(told, wanted, symptom=symptom, why=why)
    told = f"epochs 0 and 1 have the windows in one order, {orders[0]}"
    with because(_SET_BACK):
        expect.true(orders[0] != orders[1] != orders[2], told, "expected: a new order in each epoch")
    torch.rand(1)
    told = "with two generators of one seed the windows come in two orders"
    with because(_PERMUTED):
        again = _orders(model, ids, size, windows)
        expect.true(again == orders, told, "expected: the order that `order` draws")
    # The last window has no character after it.
    some = _orders(model, ids[:-1], size, windows - 1)[0]
    told = f"of a text of {windows * CONTEXT} characters the first windows begin at {sorted(some)}"
    expect.true(sorted(some) == everywhere[:-1], told, f"expected: at {everywhere[:-1]}")


_TARGETS = "A score at a place is about the character after it: targets are the text, one character further."
_SHAPE = (
    "A batch has `size` windows of `context` characters. The last one of an epoch has those that are left."
)


def _orders(model: nn.Module, ids: Tensor, size: int, windows: int) -> list[list[int]]:
    """Where windows begin, as they come: an epoch a list, for three epochs."""
    source = model.batches(ids, size, torch.Generator().manual_seed(0))
    starts: list[int] = []
    sizes: list[int] = []
    while len(starts) < 3 * windows:
        x, y = next(source)
        told = f"the targets of the characters {x[0].tolist()} are {y[0].tolist()}"
        with because(_TARGETS):
            expect.true(torch.equal(y, x + 1), told, "expected: for each the one after it")
        told = f"with a size of {size} and a context of {CONTEXT} a batch is of shape {tuple(x.shape)}"
        fits = x.dim() == 2 and x.shape[1] == CONTEXT and 0 < len(x) <= size
        with because(_SHAPE):
            expect.true(fits, told, f"expected: {(size, CONTEXT)}")
        starts += x[:, 0].tolist()
        sizes.append(len(x))
    # Where an epoch has other windows than it should, that is what is wrong.
    if sorted(starts[:windows]) == list(range(0, windows * CONTEXT, CONTEXT)):
        whole, left = divmod(windows, size)
        wanted = [size] * whole + [left] * (left > 0)
        told = (
            f"with a size of {size} the batches of an epoch of {windows} windows have {sizes[: len(wanted)]}"
        )
        with because(_SHAPE):
            expect.true(sizes[: len(wanted)] == wanted, told, f"expected: {wanted}")
    return [starts[i : i + windows] for i in range(0, 3 * windows, windows)]


# --- 07: what is evaluated -------------------------------------------------------------------------------


@with_its_why
def held_windows(answer: Answer) -> None:
    """`fit` evaluates on the windows of the held text, where it asks `loss` for that.

    A held loss says how the model predicts the next character of text that it hasn't seen: of windows that
    follow each other, each once.
    """
    for after, seen in trained(answer).evaluated.items():
        starts = sorted(start for one in seen for start in one.ids[:, 0].tolist())
        told = f"after {after} steps `loss` gets the windows of the held text that begin at {starts}"
        first = LETTERS - LETTERS // 10
        wanted = list(range(first, LETTERS - CONTEXT, CONTEXT))
        expect.true(starts == wanted, told, f"expected: at {wanted}")
        for one in seen:
            told = f"the targets of the held characters {one.ids[0].tolist()} are {one.targets[0].tolist()}"
            expect.true(torch.equal(one.targets, one.ids + 1), told, "expected: for each the one after it")


# --- what stays ------------------------------------------------------------------------------------------

_METHODS = ("__init__", "forward", "loss", "split", "batches", "optimizer", "fit", "evaluate")


@with_its_why
def same_methods(answer: Answer) -> None:
    """Methods have the parameters that they had, with their defaults, and return what they did.

    Whoever has a line that calls such a method, as `fit(ids, 100)`, gets from it what it gave before.
    """
    for name in _METHODS:
        came, wanted = (_parameters(getattr(one, name, None)) for one in (answer, GPT))
        told = f"`{name}` has the parameters `{came}`"
        # One that is added, with a default, is nobody's harm.
        expect.true(came[: len(wanted)] == wanted, told, f"expected: `{wanted}`")
    model = tiny(answer)
    ids = torch.arange(2 * CONTEXT + 1)
    scores, held = model(ids[None, :CONTEXT]), model.evaluate(ids)
    told = f"called by itself the model gives scores in {scores.dtype}".replace("torch.", "")
    expect.true(scores.dtype == torch.float32, told, "expected: float32")
    expect.true(isinstance(held, float), f"`evaluate` returns {expect.show(held)}", "expected: a float")


def _parameters(method: Callable[..., object] | None) -> list[str]:
    """With their defaults, and without the types that somebody may have written there."""
    found = inspect.signature(method).parameters.values() if method else []
    return [str(one.replace(annotation=one.empty)) for one in found]
