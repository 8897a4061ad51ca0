"""One law for all instruments: whatever mode of torch's is on, outside or inside, one tells of the same code
what it tells without it, also inside another one like it, and puts back what it replaced.

In the code that they watch there is nothing that a mode changes: it records no graph where grad is on either,
and autocast leaves float64 alone.
"""

import contextlib
import gc
import json
import os
import re
import tempfile
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
import torch._dynamo  # what is imported on the way changes the filters of warnings
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim import optimizer as optimizers
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import course_utils
from course_utils import measure
from course_utils.draw.exports import eager
from course_utils.exercise.kits.compiled import Counting
from course_utils.exercise.kits.distributed import Files
from course_utils.exercise.kits.formats import Floats
from course_utils.exercise.kits.graphs import copies
from course_utils.exercise.kits.modules import Called
from course_utils.exercise.kits.ranks import BeforeOthers
from course_utils.measure.roofline import place
from course_utils.watching.compiled import watch_compile
from course_utils.watching.lane_watch import LaneWatch

# --- the code that is watched -------------------------------------------------------------------------------

MODEL = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).double()
ONE = torch.ones(1)
X = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)


def forward(x):
    # Nothing has a name that would keep it: a graph lets go of all that it no longer needs.
    return (
        F.linear(F.gelu(F.linear(x, MODEL[0].weight, MODEL[0].bias)), MODEL[2].weight, MODEL[2].bias)
        .reshape(-1)
        .square()
        .mean()
    )


def evaluates(forward):
    """Forward alone, the values looked at, what other ranks have added."""
    with frozen():
        loss = forward(X)
        MODEL(X)
    float(loss), loss.tolist(), (X > 3).nonzero(), X.t().contiguous()
    torch.save(0, "x.pt")
    torch.load("x.pt")
    dist.all_reduce(ONE)  # which a thread of the group's holds a moment longer
    return loss


def trains(forward):
    """A step; a gradient has two parts."""
    optimizer = torch.optim.SGD(MODEL.parameters(), lr=0.0, momentum=0.9)
    loss = forward(X) + MODEL(X).sum() + MODEL[2].weight.exp().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@contextlib.contextmanager
def frozen():
    MODEL.requires_grad_(False)
    try:
        yield
    finally:
        MODEL.requires_grad_(True)


# --- the instruments: what each tells of a call -------------------------------------------------------------


def operators(run):
    with measure.operators() as found:
        run()
    return found.calls


def peak_bytes(run):
    peak = measure.peak_bytes(run)
    return str(peak), peak.allocated, [(m.op, m.backward, m.live) for m in peak.timeline]


def step_timeline(run):
    return measure.step_timeline(run)


def saved_bytes(run):
    return str(measure.saved_bytes(run))


def live_bytes(run):
    return measure.live_bytes(run)


def flops(run):
    return measure.flops(run)


def syncs(run):
    with measure.syncs() as found:
        run()
    return found.found


def traffic(run):
    with measure.traffic() as found:
        run()
    return found.order, found.calls


def record_run(run):
    found = measure.record_run(run)
    forwards = [(type(f.module), f.graph, f.trained, len(f.layers)) for f in found.forwards]
    return str(found), found.nodes, found.graphs, found.grad_norms, found.rates, forwards


def time_ratio(run):
    return measure.time_ratio(lambda: None, lambda: run() and None, seconds=0).pairs >= 7


def loading(run):
    found = measure.loading(DataLoader(torch.arange(4), batch_size=2), lambda batch: run())
    return [batch.worker for batch in found.batches]


def of_place(run):
    point = place(run)
    return point.flops, point.bytes


def storages(run):
    loss = run()
    return measure.same_storage(X, X.t()), measure.same_storage(X, loss), measure.storage_bytes(X[0])


def floats(run):
    with Floats() as found:
        run()
    return found.found


def called(run):
    with Called() as found:
        run()
    return [name for name in found.names if not name.startswith("_")]  # not `_set_grad_enabled` and its kin


def copied(run):
    with copies() as found:
        run()
    return found


def files(run):
    with Files(Path.cwd()) as found:
        run()
    return found.saves, found.loads, found._waits


def waits(run):
    hook = BeforeOthers(lambda state, bucket: run())
    hook.called(None, None)
    return hook.waited


def lanes(run):
    with tempfile.TemporaryFile() as file:
        with LaneWatch(file.fileno()):
            run()
        file.seek(0)
        events = [json.loads(line) for line in file]
    # Another thread notes that something is complete.
    return [
        (kind, [value for value in values if not isinstance(value, float)])
        for kind, *values in events
        if kind != "over"
    ]


def outside(run):
    counting = Counting()
    with counting.outside() as names:
        run()
    return names


def drawn(run):
    return eager(lambda _: torch.enable_grad()(run)(), X)


INSTRUMENTS = {
    function.__name__: function
    for function in (
        *(operators, peak_bytes, step_timeline, saved_bytes, live_bytes, flops, syncs, traffic, record_run),
        *(time_ratio, loading, of_place, storages),
        *(floats, called, copied, files, waits, lanes, outside, drawn),
    )
}

# --- the modes ----------------------------------------------------------------------------------------------


class Foreign(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class ForeignCalls(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "dispatch mode": Foreign,
    "function mode": ForeignCalls,
}
WITH_GRAD = ("autocast", "dispatch mode", "function mode")


@pytest.fixture(scope="module", autouse=True)
def one_rank(tmp_path_factory):
    file = tmp_path_factory.mktemp("group") / "file"
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The same code by backend, compiled before anything watches it."""
    found = {backend: torch.compile(forward, backend=backend) for backend in ("eager", "aot_eager")}
    with contextlib.chdir(tmp_path_factory.mktemp("compiled")):
        for function in found.values():
            trains(function)
            evaluates(function)
    return found


@contextlib.contextmanager
def nothing_left():
    """What an instrument may replace is the same object afterwards."""
    before = _replaceable()
    yield
    assert _replaceable() == before


def _replaceable():
    modules = nn.modules.module
    return [
        *(torch.save, torch.load, torch.compile, torch.autograd.backward, torch.autograd.grad),
        *(torch._C._distributed_c10d.Work.wait, torch._C.Future.wait),
        *(torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        *(
            len(table)
            for name, table in vars(modules).items()
            if name.startswith("_global_") and "hooks" in name
        ),
        *(len(optimizers._global_optimizer_pre_hooks), len(optimizers._global_optimizer_post_hooks)),
        *(gc.isenabled(), os.getcwd(), list(warnings.filters)),  # noqa: PTH109
    ]


def tells(instrument, run, outside=contextlib.nullcontext, inside=contextlib.nullcontext):
    def watched():
        with inside():
            return run()

    with nothing_left(), outside():
        return INSTRUMENTS[instrument](watched)


def plain(instrument, work):
    return tells(instrument, partial(work, forward))


# --- the law ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instrument", INSTRUMENTS)
def test_modes_change_nothing_of_what_is_told(instrument):
    for work, modes in ((evaluates, MODES), (trains, WITH_GRAD)):
        told = plain(instrument, work)
        for mode in modes:
            assert tells(instrument, partial(work, forward), outside=MODES[mode]) == told, f"{mode} outside"
            assert tells(instrument, partial(work, forward), inside=MODES[mode]) == told, f"{mode} inside"


# These want the result; for the others nothing keeps it while they look.
WANTS_RESULT = ("saved_bytes", "of_place", "storages")
# It calls nine times what it is given, so one around it sees nine calls.
TIMES = {"of_place": 9}


@pytest.mark.parametrize("instrument", INSTRUMENTS)
@pytest.mark.parametrize("work", [evaluates, trains])
def test_one_inside_another_like_it(instrument, work):
    results, inner = [], []

    def run():
        result = work(forward)
        if instrument not in WANTS_RESULT:
            return None
        results.append(result)
        return result

    def watched():
        inner.append(INSTRUMENTS[instrument](run))
        return results.pop() if results else None

    told = tells(instrument, run)
    results.clear()
    outer = tells(instrument, watched)
    assert inner[0] == told
    assert outer == (tuple(TIMES[instrument] * number for number in told) if instrument in TIMES else told)


# AOTAutograd runs other operators in a step, so these tell of others: a graph of its own for backward.
OF_OPERATORS = ("operators", "peak_bytes", "step_timeline", "lanes", "outside", "drawn", "floats")


@pytest.mark.parametrize("instrument", INSTRUMENTS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_code_that_is_compiled(instrument, backend, compiled):
    for work in (evaluates, trains):
        if not (work is trains and backend == "aot_eager" and instrument in OF_OPERATORS):
            assert tells(instrument, partial(work, compiled[backend])) == plain(instrument, work)


@pytest.mark.parametrize("instrument", INSTRUMENTS)
def test_an_error_inside_is_told_as_it_is(instrument):
    def fails():
        evaluates(forward)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        tells(instrument, fails, outside=torch.inference_mode)


def test_no_instrument_is_forgotten():
    """Each name that `measure` gives is in the law, and so is each mode that is defined anywhere."""
    others = {"Operators", "Traffic", "StepCost"}  # what three of them give
    others |= {
        "graphs_compiled",
        "roofline",
        "snapshot_timeline",
    }  # see below; its own code; what was recorded
    others |= {"kernel", "kernels", "guard_kernels"}  # they watch Triton's interpreter
    others |= {"step_cost", "step_limit"}  # of seconds; what they count, those above count
    listed = {*INSTRUMENTS, "same_storage", "storage_bytes"}
    assert set(measure.__all__) - others <= listed
    modes = {"Watch": "", "CallWatch": "", "Noting": "operators", "CollectiveWatch": "traffic"}
    modes |= {"_Ledger": "peak_bytes", "_Clock": "step_timeline", "_Flops": "flops", "_Recorder": "traffic"}
    modes |= {"_Above": "syncs", "_Below": "syncs", "LaneWatch": "lanes", "Files": "files"}
    modes |= {"BeforeOthers": "waits", "_InThread": "traffic"}
    modes |= {"Floats": "floats", "Called": "called"}
    modes |= {"Pairs": "", "_Calls": "", "InTraining": "", "_EachTwo": ""}  # what a diagnosis watches with
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in Path(course_utils.__path__[0]).rglob("*.py")
    )
    bases = "|".join([*modes, r"torch_private\.TorchDispatchMode", "TorchFunctionMode"])
    found = set(re.findall(rf"^ *class (\w+)\((?:{bases})\):", text, re.MULTILINE))
    assert found == set(modes)
    assert {*modes.values()} - {""} <= set(INSTRUMENTS)


# --- what the law does not say ------------------------------------------------------------------------------


def test_without_a_graph_nothing_is_saved():
    for mode in (torch.no_grad, torch.inference_mode):
        for outside, inside in ((mode, contextlib.nullcontext), (contextlib.nullcontext, mode)):
            found = tells("saved_bytes", lambda: MODEL(X), outside, inside)
            assert found.split() == ["total", "0"]
            assert tells("live_bytes", lambda: MODEL(X), outside, inside) == measure.memory.Live(48, 48, 0)


def test_a_mode_that_passes_on_is_not_the_line_that_allocates_or_waits():
    for mode in (Foreign, ForeignCalls):
        with measure.syncs() as found, mode():
            peak = measure.peak_bytes(lambda: X.exp())
            X.sum().item()
        assert peak.timeline[0].line == "peak = measure.peak_bytes(lambda: X.exp())"
        assert [sync.code for sync in found.found] == ["X.sum().item()"]


class Looks(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        out.isnan().any().item()
        return out


def test_a_mode_that_waits_itself_is_the_line_that_waits():
    with measure.syncs() as found, Looks():
        X.exp()
    assert {sync.code for sync in found.found} == {"out.isnan().any().item()"}


def test_a_watch_that_is_entered_again_sees_each_operator_once():
    for kind, names in ((Floats, ["`add`"]), (Called, ["add"])):
        found = kind()
        with nothing_left(), found, Foreign(), found:
            X.add(1)
        seen = found.found if kind is Floats else found.names
        assert seen == names


def test_operators_inside_of_control_flow_are_seen():
    def f(x):
        return torch.cond(x.sum() > 0, lambda y: y @ y.t(), lambda y: y @ y.t() + 1, (x,)).sum()

    with measure.operators() as found, measure.operators() as inner:
        assert measure.flops(f, X) == 2 * 3 * 4 * 3
    assert found.matmuls() == inner.matmuls() == 1


def test_measuring_flops_leaves_compiled_code_compiled():
    torch._dynamo.reset()
    with measure.graphs_compiled() as found:
        assert measure.flops(torch.compile(forward, backend="eager", fullgraph=True), X) == 2 * 3 * (32 + 16)
    assert found.graphs == 1


# --- compilations -------------------------------------------------------------------------------------------


def breaks(x):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def graphs(run):
    with measure.graphs_compiled() as found:
        run()
    return str(found)


def watched(run):
    seen = watch_compile(breaks)
    seen(X)
    return [graph.operators for graph in seen.graphs], [one.line for one in seen.breaks]


@pytest.mark.parametrize("tell", [graphs, watched])
def test_compilations_under_modes(tell):
    def told(outside, run=lambda: torch.compile(breaks, backend="eager")(X)):
        torch._dynamo.reset()
        with nothing_left(), outside():
            return tell(run)

    plain = told(contextlib.nullcontext)
    assert plain[:8] == "2 graphs" if tell is graphs else len(plain[0]) == 2
    for mode in ("inference_mode", "function mode"):
        assert told(MODES[mode]) == plain, mode
    # Under an ordinary dispatch mode torch compiles nothing.
    assert told(Foreign) == ("0 graphs, 0 recompilations\nskipped: breaks" if tell is graphs else ([], []))
