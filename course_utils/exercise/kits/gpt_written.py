"""What a GPT of the capstone writes on, character by character, and what else may have been written."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from course_utils.exercise import expect
from course_utils.exercise.kits import gpt

_TOGETHER = """Characters that go through together must not see later ones. Each gets the vector of its own
place in the window. The scores are divided by the root of a head's width."""
_ALONE = """A key and a value depend on their own place and those before it, so they stay as they are when the
text grows. The new character's vector is that of its own place in the window; it sees all kept keys, and its
own."""
_ANEW = """The place is added before the first block, so a kept key is the key of a character at that place.
There it also knows what stood before it. When the window moves, all of it goes through again, from place 0
on."""
_ROWS = "Each row is a text of its own: it has its own keys and values, and its own next character."
_WHEN = """A window of `context` characters is still read whole. With one more it begins anew, with its last
half."""


def windows(context: int, time: int, count: int, early: int = 0, left: int | None = None) -> Iterator[int]:
    """The beginning of the window in which each of `count` characters is written. `early`: so many characters
    before it's too long, it moves; `left`: to so many."""
    start = 0
    for now in range(time, time + count):
        if now - start > context - early:
            start = now - (context // 2 if left is None else left)
        yield start


@torch.no_grad()
def written(model: gpt.GPT, ids: Tensor, starts: Iterable[int]) -> Tensor:
    """The text with a character more for each beginning of a window, all of it computed anew each time."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    for start in starts:
        ids = torch.cat([ids, model(ids[:, start:])[:, -1:].argmax(2)], 1)
    for module, mode in modes.items():
        module.training = mode
    return ids


def expect_written(came: Tensor, model: gpt.GPT, ids: Tensor, count: int) -> None:
    """Checks what an answer wrote on. What is wrong is told with where it begins, and the rule for that."""
    starts = list(windows(model.context, ids.shape[1], count))
    wanted = written(model, ids, starts)
    try:
        expect.equal(came, wanted)
    except expect.Mismatch as error:
        if not expect.is_tensor(came) or came.shape != wanted.shape or came.dtype != wanted.dtype:
            raise
        if other := _other_windows(came, model, ids, count):
            error.symptom, error.why = f"It is what is written when {other}.", _WHEN
        else:
            first = int((came != wanted).any(0).nonzero()[0]) - ids.shape[1]
            where, why = _where(first, starts, ids.shape[1])
            of_rows = "row" in error.symptom
            error.symptom, error.why = (error.symptom, _ROWS) if of_rows else (where, why)
        raise


def _other_windows(came: Tensor, model: gpt.GPT, ids: Tensor, count: int) -> str:
    """With which other windows the model writes this, as a clause."""
    context, time = model.context, ids.shape[1]
    if time > context:
        return ""
    others = {
        f"the window moves as soon as it has {context} characters": {"early": 1},
        "the window moves on by one character": {"left": context},
        "the window moves on to its last character": {"left": 1},
    }
    for told, how in others.items():
        if torch.equal(came, written(model, ids, windows(context, time, count, **how))):
            return told
    return ""


def _where(first: int, starts: list[int], time: int) -> tuple[str, str]:
    """Which of the new characters is the first that is wrong, in a sentence; and the rule for that."""
    if first < 0:
        return "The text at the beginning isn't the same any more.", ""
    held = time + first - starts[first]
    told = f"The first wrong one is new character {first + 1}"
    if first and starts[first] == starts[first - 1]:
        return f"{told}: {held - 1} of the {held} in its window have been through before.", _ALONE
    if starts[first]:
        return f"{told}, the first of a new window.", _ANEW
    return f"{told}: its window of {held} goes through together.", _TOGETHER


def through(model: gpt.GPT, call: Callable[[], object]) -> dict[str, int]:
    """How many characters of a row went through these parts of the first block, where it's they that are
    called."""
    seen: dict[str, int] = {}
    width = model.token.weight.shape[1]

    def counting(name: str) -> Callable[..., None]:
        def count(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen[name] = seen.get(name, 0) + inputs[0].numel() // width

        return count

    with contextlib.ExitStack() as stack:
        for name in ("qkv", "mlp"):
            part = model.blocks[0].get_submodule(name)
            stack.callback(part.register_forward_pre_hook(counting(name)).remove)
        call()
    return seen


def keeps_for_backward(call: Callable[[], object]) -> bool:
    """Whether an operator keeps something for a backward while this runs."""
    kept: list[bool] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(True)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        call()
    return bool(kept)


def attributes(model: nn.Module) -> set[str]:
    """The names of all attributes of a model and its parts."""
    return {
        f"model.{name}.{one}".replace("..", ".") for name, part in model.named_modules() for one in vars(part)
    }
