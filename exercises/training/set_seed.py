"""The same run twice

Seed three generators that a run draws from: Python's `random`, NumPy's global one and torch's. Two runs with
one seed then draw the same numbers from them; two seeds don't.

- Return a new `torch.Generator`, seeded too, for `DataLoader(..., generator=...)`. With `shuffle=True`, the
  order of the data and what its workers draw from these three then depend on the seed, whatever the model has
  drawn.
- With `deterministic=True`, torch raises in operators that it marks as having no deterministic way, and cuDNN
  doesn't choose its algorithms by a race. Otherwise leave these settings as they are.

`seed` is a whole number below 2³².

`set_seed(0).initial_seed()` → `0`
"""

import contextlib

import torch

from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=10,
    hints=[
        "How many generators does a training script draw from? On the CPU, torch's operators and the "
        "loader share one, unless you give the loader its own.",
        "Each of the three has a call that seeds it. A generator of your own: `torch.Generator()`, then its "
        "method `manual_seed`.",
        "For the flag: `torch.use_deterministic_algorithms`, and `torch.backends.cudnn.benchmark`, which is "
        "to be off. Touch neither without the flag.",
    ],
)


@exercise.starter
def set_seed(seed: int, deterministic: bool = False) -> torch.Generator:
    """Seeds all, and returns a generator for a loader"""
    raise NotImplementedError


_DRAW = """
import random
import numpy as np
from course_utils.exercise.kits.numbers import another_process
def draw():
    return {"torch": torch.rand(2).tolist(), "NumPy": np.random.rand(2).tolist(), "Python": random.random()}
"""

# Each pair is one where a seed is cut to fewer bits, at either end, or taken modulo something smaller.
_SEEDS = ((3, 1003), (0, 2**32 - 1), (1, 2**31), (1, 2**31 + 1), (2**31, 2**31 + 1))

_LOAD = """
import random
import numpy as np
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 6
    def __getitem__(self, i):
        return torch.tensor([i, torch.rand(()), np.random.rand(), random.random()], dtype=torch.float64)
def load(generator, workers=0):
    loader = DataLoader(Data(), 1, shuffle=True, num_workers=workers, generator=generator)
    return [batch.tolist() for batch in loader]
"""


@contextlib.contextmanager
def _settings_back():
    """The settings are process-wide: the next check finds them as they were."""
    enabled = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    race, always = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = race, always


@exercise.check(
    given=_DRAW,
    cases={
        f"{name}, seeds {a} and {b}": (name, a, b) for name in ("torch", "NumPy", "Python") for a, b in _SEEDS
    },
)
def three_generators(t, name, a, b):
    """torch, NumPy and Python draw the same again, and something else with another seed

    Each has a state of its own: `torch.manual_seed` doesn't touch NumPy's, and neither touches Python's. Who
    cuts a seed makes one of two. By default `hash` of a text is salted: Python started anew may give
    another number.
    """
    with _settings_back():
        for seed, drawn in ((a, "first"), (a, "again"), (b, "other")):
            t.run(f"set_seed({seed})\n{drawn} = draw()")
        expect.equal(t.again[name], t.first[name], what=f"the second draw of {name}")
        told = f"seeds {a} and {b} draw the same from {name}: {t.first[name]}"
        expect.true(t.first[name] != t.other[name], told, "expected: something else")
        t.run(f"with another_process():\n    set_seed({a})\nthere = draw()")
        expect.equal(t.there[name], t.first[name], what=f"the draw of {name} in another process")


@exercise.check(given=_LOAD)
def a_generator_of_its_own(t):
    """The generator is a new one, at the beginning of its sequence

    `torch.default_generator` is the one that dropout on the CPU draws from: with it the order of the data
    would depend on how often the model has drawn. A new generator that isn't seeded begins at the same
    number each time.
    """
    with _settings_back():
        t.run("generator = set_seed(3)")
        told = f"the result is {expect.show(t.generator)}"
        expect.true(isinstance(t.generator, torch.Generator), told, "expected: a generator")
        expect.true(t.generator is not torch.default_generator, "it is torch's default generator")
        expect.true(t.call("set_seed(3)") is not t.generator, "two calls return one generator")
        for seed in (3, 0, 2**32 - 1):
            t.run(f"generator = set_seed({seed})")
            expect.equal(t.generator.initial_seed(), seed, what="the generator's `initial_seed()`")
            fresh = torch.equal(t.generator.get_state(), torch.Generator().manual_seed(seed).get_state())
            told = "the generator has drawn already"
            expect.true(fresh, told, "expected: it is at the beginning of its sequence")


@exercise.check(given=_LOAD)
def order(t):
    """The order depends on the seed, not on what the model draws

    With `shuffle=True`, a loader with a generator of its own draws its permutation there. A model that has
    one more dropout still gets the examples in the same order.
    """
    with _settings_back():
        t.run("first = [batch[0][0] for batch in load(set_seed(3))]")
        t.run("generator = set_seed(3)\ntorch.rand(5)\nagain = [batch[0][0] for batch in load(generator)]")
        expect.equal(t.again, t.first, what="the order, after torch has drawn five numbers")


@exercise.check(isolated=True, given=_LOAD)
def workers(t):
    """Workers draw the same again, and not the same as each other

    The loader draws one number for its workers from its generator. From it and a number of its own, each
    worker seeds torch, NumPy and Python.
    """
    with _settings_back():
        t.run("first = load(set_seed(3), workers=2)")
        t.run("generator = set_seed(3)\ntorch.rand(5)\nagain = load(generator, workers=2)")
        expect.equal(t.again, t.first, what="the batches of two workers, the second time")
        (_, *one), (_, *two) = t.first[0][0], t.first[1][0]
        shared = [name for name, a, b in zip(("torch", "NumPy", "Python"), one, two, strict=True) if a == b]
        expect.equal(shared, [], what="generators that draw the same in both workers")


@exercise.check
def settings(set_seed):
    """`deterministic` sets two settings, and without it nothing is set

    Some kernels add in an order that changes from run to run; the others may be slower, or there may be none.
    Who asks for it wants the error. Who doesn't may have set these for a reason.
    """
    setup = "set_seed(3, deterministic=True)\non = torch.are_deterministic_algorithms_enabled()"
    with _settings_back():
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = True
        t = expect.given(setup, set_seed=set_seed)
        expect.true(t.on, "deterministic algorithms are off", "expected: on")
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        expect.true(not warns, "torch only warns where it knows no deterministic way", "expected: it raises")
        race = torch.backends.cudnn.benchmark
        expect.true(not race, "`torch.backends.cudnn.benchmark` is on", "expected: off")
        for state in (True, False):
            torch.use_deterministic_algorithms(state, warn_only=state)
            torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = state, not state
            t = expect.given("set_seed(3)", set_seed=set_seed)
            found = {
                "the setting of deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
                "`warn_only`": torch.is_deterministic_algorithms_warn_only_enabled(),
                "`cudnn.benchmark`": torch.backends.cudnn.benchmark,
                "`cudnn.deterministic`": torch.backends.cudnn.deterministic,
            }
            for name, came in found.items():
                wanted = state != (name == "`cudnn.deterministic`")
                expect.equal(came, wanted, what=f"{name}, {wanted} before, after `set_seed(3)`")
