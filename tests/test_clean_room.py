"""A check starts from a known state and leaves the reader's as it was, whatever happens inside."""

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.grading.clean_room import clean_room


def numpy_state(generator):
    _, numbers, place, *_ = generator.get_state()
    return numbers.tolist(), place


def one_of(container):
    """To read and to replace all that is in a dict or a list; there may be another at another time."""

    def put(value):
        container().clear()
        (container().extend if isinstance(value, list) else container().update)(value)

    return lambda: container().copy(), put


def attribute(owner, name):
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


PRINTED = vars(torch._tensor_str.PRINT_OPTS)
SEEDED = torch.Generator().manual_seed(5).get_state().tolist()
# name: (what it is now, how to set it, something unusual, what it is inside)
STATE = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype, torch.float64, torch.float32),
    "default device": (
        lambda: str(torch.get_default_device()),
        lambda d: torch.set_default_device(None if d == "cpu" else d), "meta", "cpu",
    ),
    "threads": (torch.get_num_threads, torch.set_num_threads, 3, 1),
    "matmul precision": (
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium", "highest",
    ),
    "anomaly": (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda v: torch.autograd.set_detect_anomaly(*v), (True, True), (False, True),
    ),
    "deterministic": (
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True, False,
    ),
    "benchmark": (*attribute(torch.backends.cudnn, "benchmark"), True, None),
    "print options": (*one_of(lambda: PRINTED), {**PRINTED, "precision": 1, "linewidth": 40}, dict(PRINTED)),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled, False, True),
    "autocast": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda v: torch.set_autocast_enabled("cpu", v), True, False,
    ),
    "torch's random state": (
        lambda: torch.get_rng_state().tolist(),
        lambda v: torch.set_rng_state(torch.tensor(v, dtype=torch.uint8)), SEEDED, None,
    ),
    "random state": (random.getstate, random.setstate, random.Random(5).getstate(), None),
    "numpy's random state": (
        lambda: numpy_state(numpy.random),
        lambda v: numpy.random.set_state(("MT19937", numpy.array(v[0], dtype=numpy.uint32), v[1])),
        numpy_state(numpy.random.RandomState(5)), None,
    ),
    "folder": (os.getcwd, os.chdir, "/", None),
    "environment": (*one_of(lambda: os.environ), {**os.environ, "UNUSUAL": "1"}, None),
    "garbage collection": (gc.isenabled, lambda v: gc.enable() if v else gc.disable(), False, True),
    "recursion": (sys.getrecursionlimit, sys.setrecursionlimit, 4321, None),
    "interrupts": (
        lambda: signal.getsignal(signal.SIGINT),
        lambda v: signal.signal(signal.SIGINT, v), lambda number, frame: None, None,
    ),
    "tracing": (sys.getprofile, sys.setprofile, lambda frame, event, argument: None, None),
    "output": (*attribute(sys, "stdout"), sys.__stderr__, None),
    "warnings": (*one_of(lambda: warnings.filters), [("error", None, UserWarning, None, 0)], None),
    "hooks on every module": (*one_of(lambda: nn.modules.module._global_forward_hooks), {7: print}, {}),
}  # fmt: skip

every_state = pytest.mark.parametrize("name", STATE)


@pytest.fixture
def restored(name):
    """Whatever a test does, the tests after it find what was there."""
    now, put, _, _ = STATE[name]
    before = now()
    yield
    put(before)


@every_state
def test_what_the_reader_has_set_stays_outside_and_comes_back(name, restored):
    now, put, unusual, inside = STATE[name]
    put(unusual)
    with clean_room():
        if inside is not None:
            assert now() == inside
    assert now() == unusual


@every_state
def test_what_an_answer_sets_does_not_stay_also_when_it_raises(name, restored):
    now, put, unusual, _ = STATE[name]
    before = now()
    assert before != unusual
    for error in (None, KeyError):
        with contextlib.suppress(KeyError), clean_room():
            put(unusual)
            assert now() == unusual
            if error:
                raise error
        assert now() == before


@pytest.mark.parametrize("shared", [True, False])
def test_every_visit_starts_with_the_same_numbers(shared):
    def numbers():
        with clean_room(shared):
            return torch.rand(3).tolist(), random.random(), numpy.random.rand(), torch.randperm(9).tolist()

    first = numbers()
    torch.rand(7)
    random.random()
    assert numbers() == first


def test_inference_mode_ends_at_the_door():
    with torch.inference_mode(), clean_room():
        x = torch.ones(2, requires_grad=True)
        (x * x).sum().backward()
        assert x.grad.tolist() == [2, 2]
    with torch.inference_mode():
        with clean_room():
            pass
        assert torch.is_inference_mode_enabled()


@pytest.mark.parametrize("of_the_reader", [contextlib.nullcontext(), torch.autocast("cpu", torch.bfloat16)])
def test_what_trains_in_autocast_regions_computes_with_the_weights_of_now(of_the_reader):
    with of_the_reader, clean_room():
        layer, x = nn.Linear(1, 1, bias=False), torch.ones(1, 1)
        for weight in (1.0, 3.0):
            nn.init.constant_(layer.weight, weight)
            with torch.autocast("cpu", torch.bfloat16):
                assert layer(x).item() == weight
        assert layer(x).dtype == torch.float32


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        COUNTED.append(func)
        return func(*args, **(kwargs or {}))


class Watching(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        COUNTED.append(func)
        return func(*args, **(kwargs or {}))


COUNTED = []


@pytest.mark.parametrize(
    "enter",
    [
        lambda: Counting(),
        lambda: Watching(),
        lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: COUNTED.append(t) or t, lambda t: t),
        lambda: torch.autograd.graph.save_on_cpu(),
    ],
)
def test_what_an_answer_enters_and_never_leaves_ends_with_the_check(enter):
    with enter(), clean_room():  # the reader's own stays
        entered = [enter(), enter()]
        for mode in entered:
            mode.__enter__()
        (torch.ones(1, requires_grad=True).sin()).sum()
    COUNTED.clear()
    x = torch.ones(1, requires_grad=True)
    x.sin().sum().backward()
    assert COUNTED == []
    assert x.grad.device.type == "cpu"


# --- functions that decide a check -------------------------------------------------------------------------


def test_replaced_functions_are_put_back_and_named(monkeypatch):
    real = torch.equal
    monkeypatch.setattr(torch, "equal", real)
    for shared, error in ((False, None), (True, None), (True, KeyError)):
        with contextlib.suppress(KeyError), clean_room(shared=shared) as room:
            torch.equal = lambda a, b: True
            if error:
                raise error
        assert torch.equal is real
        assert error or room.disturbed == ["torch.equal"]


def test_nothing_is_disturbed_by_ordinary_work():
    with clean_room() as room:
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.rand(4, 2)).sum().backward()
        optimizer.step()
        torch.set_default_dtype(torch.float64)
        torch.func.vmap(torch.sin)(torch.rand(2))
        copy = torch.compile(lambda x: x + 1, backend="eager")
        assert copy(torch.ones(1)).item() == 2
    assert room.disturbed == []


COMPILES = """
import sys
import torch
assert "torch._dynamo" not in sys.modules
from course_utils.grading.clean_room import clean_room
for use in (
    lambda: torch.compile(lambda x: x.sin() + 1, backend="eager")(torch.ones(3)),
    lambda: __import__("torch._dynamo")._dynamo.reset(),
    lambda: torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.ones(1, 2)).sum().backward(),
    lambda: torch.use_deterministic_algorithms(True),
    lambda: torch.jit.script(torch.nn.ReLU()),
    lambda: torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)),
    lambda: torch.utils.checkpoint.checkpoint(torch.sin, torch.ones(1), use_reentrant=False),
    lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2)),
):
    with clean_room() as room:
        use()
    assert room.disturbed == [], room.disturbed
    with clean_room() as room:
        pass
    assert room.disturbed == [], room.disturbed
assert not torch.are_deterministic_algorithms_enabled()
"""


def test_the_compiler_is_no_disturbance_when_it_is_first_used_inside():
    subprocess.run(
        [sys.executable, "-c", COMPILES], check=True, timeout=300, cwd=Path(__file__).parent.parent
    )


def test_a_graph_that_raises_prints_nothing(capsys):
    traced = torch.fx.symbolic_trace(lambda x: x.sin())
    for room, printed in ((clean_room, False), (contextlib.nullcontext, True)):
        with room(), pytest.raises(AttributeError):
            traced(1.0)
        assert ("Traceback" in capsys.readouterr().err) == printed
