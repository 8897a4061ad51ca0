"""How fast a step of the capstone's GPT is, and whether it learns as much as a healthy one."""

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.exercise import expect
from course_utils.exercise.kits import gpt
from course_utils.exercise.kits.gpt_steps import RATE, model
from course_utils.measure.memory import collector_off

Step = Callable[[], Any]


def expect_curve(losses: list[float], ids: Tensor, numbers: tuple[int, int, int]) -> None:
    """Checks the losses of a run with dropout against those of healthy runs with other seeds."""

    def curve(seed: int, dropout: float = 0.5) -> Tensor:
        step = quick(model(dropout=dropout), ids, *numbers)
        torch.manual_seed(seed)
        return torch.tensor([float(step()) for _ in losses])

    bands = torch.stack([curve(seed) for seed in (1, 2, 3)]).unflatten(1, (-1, 10)).mean(2)
    low, high = bands.amin(0), bands.amax(0)
    reach = (high - low).clamp(min=0.01)
    came = torch.tensor(losses).unflatten(0, (-1, 10)).mean(1)
    rows = torch.stack([came, low - reach, high + reach], 1).tolist()
    for at, (mean, low, high) in enumerate(rows):
        if not low <= mean <= high:
            plain = curve(1, 0.0).unflatten(0, (-1, 10)).mean(1)
            symptom = "It is the loss without dropout." if (came - plain).abs().max() < 0.01 else ""
            told = f"the mean loss of steps {10 * at} to {10 * at + 9} is {mean:.2f}"
            raise expect.Mismatch(told, f"expected: from {low:.2f} to {high:.2f}", symptom=symptom)
    expect.looked()


def settings() -> dict[str, Any]:
    """Torch's settings that hold for the whole process, by the function that reads them."""
    return {
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.is_anomaly_enabled()": torch.is_anomaly_enabled(),
        "torch.is_autocast_enabled('cpu')": torch.is_autocast_enabled("cpu"),
    }


def quick(model: gpt.GPT, ids: Tensor, size: int, parts: int, seed: int) -> Step:
    """GPT's own step, with the batches of a step as one: what an answer's gain is measured against. Those of
    one step are of one size there."""
    optimizer = model.optimizer(RATE)
    source = model.batches(model.split(ids)[0], size, torch.Generator().manual_seed(seed))

    def step() -> Tensor:
        model.train()
        x, y = (torch.cat(both) for both in zip(*itertools.islice(source, parts), strict=True))
        loss = model.loss(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@dataclass(frozen=True)
class Gain:
    """A share, (slow - answer) / (slow - quick): its median, and how far the 95 % interval reaches."""

    share: float
    noise: float
    rounds: int


def gain(slow: Step, answer: Step, quick: Step, least: float, most: int = 21) -> Gain:
    """Times the three in turns, in changing order, after a warm-up, until it is clear on which side of
    `least` the share lies, or for `most` rounds.

    It counts seconds of the processor, so what else runs on this machine takes none of them; on one thread,
    so that none is spent on waiting for another. Raises `CannotCheck` where the noise is larger than the
    distance to `least`.
    """
    steps = (slow, answer, quick)
    for step in steps * 2:
        step()
    shares: list[float] = []
    with collector_off():
        for number in range(most):
            times = [0.0] * 3
            for at in [(number + k) % 3 for k in range(3)]:
                start = time.process_time()
                steps[at]()
                times[at] = time.process_time() - start
            if times[0] <= times[2]:
                continue
            shares.append((times[0] - times[1]) / (times[0] - times[2]))
            if len(shares) >= 7 and 2 * (found := _share(shares)).noise < abs(found.share - least):
                return found
    if len(shares) < 7:
        raise expect.CannotCheck(
            f"the slow step was slower than the quick one in {len(shares)} of {most} rounds"
        )
    found = _share(shares)
    if found.noise >= abs(found.share - least):
        told = f"{found.share:.2f} of the gain, uncertain by {found.noise:.2f}, in {found.rounds} rounds"
        raise expect.CannotCheck(f"{told}; {least:g} is asked for: this machine is too noisy now")
    return found


def _share(shares: list[float]) -> Gain:
    ordered = sorted(shares)
    reach = 0.98 * len(ordered) ** 0.5
    low = ordered[max(0, int(len(ordered) / 2 - reach))]
    high = ordered[min(len(ordered) - 1, int(-(-(len(ordered) / 2 + reach) // 1)) - 1)]
    middle = statistics.median(ordered)
    return Gain(middle, max(high - middle, middle - low), len(ordered))
