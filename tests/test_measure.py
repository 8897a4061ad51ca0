"""The instruments, against cases whose numbers follow from the mathematics."""

import copy
import gc
import random
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.checkpoint import checkpoint

from course_utils import measure
from course_utils.measure import timing

FLOAT = 4
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def leaf(*shape, device="cpu"):
    return torch.randn(*shape, device=device, requires_grad=True)


class KeepsOutput(torch.autograd.Function):
    """Leaks: its context holds the output, which holds the context."""

    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()
        return ctx.y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.y


class KeepsIntermediate(torch.autograd.Function):
    """Holds a tensor outside save_for_backward, but in no cycle."""

    @staticmethod
    def forward(ctx, x):
        ctx.h = x.exp()
        return ctx.h + 1

    @staticmethod
    def backward(ctx, g):
        return g * ctx.h


class Doubled(torch.Tensor):
    """A wrapper around a plain tensor: it has no memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Doubled(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def inside(value):
            return value.inner if isinstance(value, Doubled) else value

        out = func(*map(inside, args), **(kwargs or {}))
        out = Doubled(out) if isinstance(out, torch.Tensor) else out
        return return_and_correct_aliasing(func, args, kwargs or {}, out)


# --- bytes saved for backward ---------------------------------------------------------------------


def test_exp_saves_its_output(device):
    saved = measure.saved_bytes(torch.exp, leaf(3, 5, device=device))
    assert saved.total == 15 * FLOAT
    (one,) = saved.tensors
    assert (one.op, one.shape, one.dtype, one.bytes) == ("ExpBackward0", (3, 5), torch.float32, 60)


def test_addition_saves_nothing():
    assert measure.saved_bytes(lambda x: x + 1, leaf(9)).total == 0


def test_softmax_saves_one_tensor_not_a_jacobian():
    assert measure.saved_bytes(torch.softmax, leaf(1000), 0).total == 1000 * FLOAT


def test_a_tensor_saved_twice_counts_once():
    saved = measure.saved_bytes(lambda x: x * x, leaf(10))
    assert saved.total == 40
    assert [t.storage for t in saved.tensors] == [0, 0]


def test_views_of_one_storage_count_once_and_whole():
    def two_views(x):
        h = x + 1
        return h[:10] * h[10:20]

    saved = measure.saved_bytes(two_views, leaf(1000))
    assert saved.total == 1000 * FLOAT
    assert {t.shape for t in saved.tensors} == {(10,)}
    assert measure.saved_bytes(lambda x: (x + 1).expand(500).sin(), leaf(1)).total == FLOAT


@pytest.mark.parametrize("wrapped", [lambda m: m, lambda m: lambda x: m(x), lambda m: m.forward])
def test_linear_gelu_chain(wrapped, device):
    model = nn.Sequential(nn.Linear(10, 20), nn.GELU(), nn.Linear(20, 5)).to(device)
    x = torch.randn(8, 10, device=device)
    saved = measure.saved_bytes(wrapped(model), x)
    # The input of each layer: of the first because of its weight, of GELU because of its slope.
    assert saved.total == (8 * 10 + 8 * 20 + 8 * 20) * FLOAT
    assert [t.op for t in saved.tensors] == ["AddmmBackward0", "GeluBackward0", "AddmmBackward0"]


def test_parameters_do_not_count_even_frozen_ones():
    model = nn.Linear(10, 20, bias=False).requires_grad_(False)
    x = leaf(8, 10)
    # Nothing but the weight is needed for the gradient of the input.
    assert measure.saved_bytes(model, x).total == 0
    assert measure.saved_bytes(lambda: F.linear(x, model.weight)).total == 0
    assert measure.saved_bytes(F.linear, x, model.weight).total == 0
    weight = torch.randn(20, 10)
    assert measure.saved_bytes(lambda: F.linear(x, weight)).total == 800
    assert measure.saved_bytes(lambda: F.linear(x, weight), exclude=weight).total == 0
    assert measure.saved_bytes(lambda: F.linear(x, weight), exclude=[{"w": weight}]).total == 0


def test_buffers_count_unless_their_module_is_excluded():
    norm = nn.BatchNorm1d(4)
    x = torch.randn(8, 4)
    assert measure.saved_bytes(norm, x, exclude=norm).total == (8 * 4 + 2 * 4) * FLOAT
    assert measure.saved_bytes(norm, x).total == (8 * 4 + 4 * 4) * FLOAT


def test_lstm_step():
    cell = nn.LSTMCell(3, 4)
    x, h, c = torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 4)
    # The four gates share one storage; besides them the inputs, both states, and tanh of the new one.
    assert measure.saved_bytes(cell, x, (h, c)).total == (4 * 8 + 6 + 8 + 8 + 8) * FLOAT


def test_autocast_saves_its_copies_of_weights():
    model, x = nn.Linear(10, 20, bias=False), leaf(8, 10)

    def run():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    assert measure.saved_bytes(run).total == (8 * 10 + 10 * 20) * 2


def test_only_what_the_result_keeps():
    x = leaf(10)
    assert measure.saved_bytes(lambda: x.exp().detach()).total == 0
    assert measure.saved_bytes(lambda: x.exp().sum().backward()).total == 0
    assert measure.saved_bytes(lambda: [x.exp(), x.sin().detach()][0]).total == 40
    assert measure.saved_bytes(lambda: {"loss": (x.exp(), 1)}).total == 40
    with torch.no_grad():
        assert measure.saved_bytes(torch.exp, x).total == 0

    def retained():
        y = x.exp()
        y.sum().backward(retain_graph=True)
        return y

    assert measure.saved_bytes(retained).total == 40


def test_a_dead_graph_in_a_cycle_is_not_kept():
    def makes_garbage(x):
        loop = [x.sin()]
        loop.append(loop)
        return x.exp()

    assert measure.saved_bytes(makes_garbage, leaf(10)).total == 40


def test_graphs_kept_elsewhere_are_kept():
    kept = []

    def remembers(x):
        kept.append(x.sin())
        return x + 1

    saved = measure.saved_bytes(remembers, leaf(10))
    assert (saved.total, saved.tensors[0].op) == (40, "?")


def test_checkpoint_saves_the_input_only():
    def block(x):
        return x.sin().exp().tanh()

    x = leaf(10)
    assert measure.saved_bytes(block, x).total == 3 * 40  # x, exp(...), tanh(...)
    assert measure.saved_bytes(checkpoint, block, x, use_reentrant=False).total == 40


def test_saved_by_a_function_of_ones_own_and_not_its_attributes():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    saved = measure.saved_bytes(Square.apply, leaf(10))
    assert (saved.total, saved.tensors[0].op) == (40, "SquareBackward")
    assert measure.saved_bytes(KeepsIntermediate.apply, leaf(10)).total == 0


def test_gradients_are_unchanged_by_being_measured():
    x, y = leaf(10), None
    y = x.detach().clone().requires_grad_()
    measure.saved_bytes(lambda: (x.exp() * x).sum().backward())
    (y.exp() * y).sum().backward()
    assert torch.equal(x.grad, y.grad)


def test_saved_bytes_of_sparse_and_wrapped_tensors():
    dense = leaf(4, 5)
    sparse = torch.eye(4).to_sparse()
    # Two int64 coordinates and one float for each of the four.
    assert measure.saved_bytes(torch.sparse.mm, sparse, dense).total == 4 * (2 * 8 + FLOAT)
    assert measure.storage_bytes(Doubled(torch.ones(10))) == 40


def test_saved_bytes_nest_and_leave_no_hook_behind():
    inner = []

    def outer(x):
        inner.append(measure.saved_bytes(torch.exp, x).total)
        return x.sin()

    assert measure.saved_bytes(outer, leaf(10)).total == 40
    assert inner == [40]
    with pytest.raises(ZeroDivisionError):
        measure.saved_bytes(lambda: 1 / 0)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: pytest.fail("not reached"), lambda t: t):
        measure.saved_bytes(torch.exp, leaf(10))
    node = leaf(10).exp().grad_fn
    assert node._saved_result.numel() == 10


def test_saved_bytes_as_text():
    text = str(measure.saved_bytes(lambda x: x * x, leaf(1000)))
    assert text.splitlines()[0].split() == ["MulBackward0", "(1000,)", "float32", "4,000"]
    assert text.splitlines()[1].endswith("again")
    assert text.splitlines()[2].split() == ["total", "4,000"]


# --- bytes alive ----------------------------------------------------------------------------------


def test_live_bytes(device):
    live = measure.live_bytes(torch.exp, leaf(10, device=device))
    assert (live.held, live.result, live.left) == (40, 40, 0)
    live = measure.live_bytes(lambda x: x.exp().sum(), leaf(10, device=device))
    assert (live.held, live.result, live.left) == (44, 4, 0)


def test_attributes_of_a_context_are_seen():
    live = measure.live_bytes(KeepsIntermediate.apply, leaf(10))
    assert (live.held, live.result, live.left) == (80, 40, 0)
    live = measure.live_bytes(KeepsOutput.apply, leaf(10))
    assert (live.held, live.result, live.left) == (40, 40, 40)


def test_left_behind_in_lists_and_cycles():
    kept = []
    assert measure.live_bytes(lambda: kept.append(torch.ones(5))).left == 20

    class Holder:
        pass

    def cycle(break_it):
        holder = Holder()
        holder.me, holder.t = holder, torch.ones(5)
        if break_it:
            holder.me = None

    assert measure.live_bytes(cycle, False).left == 20
    assert measure.live_bytes(cycle, True).left == 0


def test_deep_copies_are_not_seen():
    x, kept = leaf(10), []
    assert measure.live_bytes(lambda: kept.append(copy.deepcopy(x))).left == 0
    assert measure.live_bytes(lambda: kept.append(x.detach().clone())).left == 40


def test_gradients_are_left():
    x = leaf(10)
    assert measure.live_bytes(lambda: x.exp().sum().backward()).left == 40


def test_the_collector_is_left_as_it_was():
    measure.live_bytes(lambda: None)
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        measure.live_bytes(lambda: 1 / 0)
    assert gc.isenabled()
    gc.disable()
    try:
        measure.live_bytes(lambda: None)
        assert not gc.isenabled()
    finally:
        gc.enable()


# --- bytes at the peak ----------------------------------------------------------------------------


def test_two_alive_at_once(device):
    def chain(x):
        for _ in range(5):
            x = x + 1
        return x

    peak = measure.peak_bytes(chain, torch.ones(1000, device=device))
    assert (peak.total, peak.allocated) == (8000, 20000)
    assert sum(peak.by_category.values()) == peak.total
    assert peak.timeline[-1].live["activations"] == 4000


def test_what_was_there_before_does_not_count(device):
    x = torch.ones(1000, device=device)
    assert measure.peak_bytes(lambda: x.add_(1)).total == 0
    assert measure.peak_bytes(lambda: x.view(10, 100).t()[::2]).total == 0
    assert measure.peak_bytes(lambda: x.untyped_storage()).total == 0

    holder = [torch.ones(1000, device=device)]

    def frees_and_allocates():
        holder.clear()
        return x + 1

    assert measure.peak_bytes(frees_and_allocates).total == 4000


def test_backward_counts(device):
    x = leaf(1000, device=device)
    peak = measure.peak_bytes(lambda: (x * 2).exp().sum().backward())
    # The loss, exp's result, the 1 that backward starts with, and the gradient of exp's input.
    assert peak.total == 4 + 4000 + 4 + 4000
    assert peak.by_category["activations"] == 4 + 4000
    assert peak.by_category["temporaries"] == 4 + 4000
    assert peak.timeline[-1].live["gradients"] == 4000


def test_forward_parts_freed_before_backward_are_temporaries():
    x = leaf(1000)

    def f():
        big = torch.cat([x, x, x, x])  # 16000, and then exp of it as much again
        h = big.exp().sum()
        del big
        h.backward()

    peak = measure.peak_bytes(f)
    assert [m.live["temporaries"] for m in peak.timeline[:1]] == [16000]
    assert peak.timeline[1].live["activations"] == 16000


def test_parameters_gradients_and_optimizer_states():
    peak = measure.peak_bytes(lambda: nn.Linear(10, 20))
    assert peak.by_category["parameters"] == peak.total == (200 + 20) * FLOAT

    model = nn.Linear(10, 20)
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        model(torch.ones(8, 10)).sum().backward()
        optimizer.step()

    end = measure.peak_bytes(step).timeline[-1].live
    assert end["gradients"] == 880
    assert end["optimizer"] == 2 * 880 + 2 * 4  # two moments, and a step count for each tensor
    assert end["activations"] == end["parameters"] == end["temporaries"] == 0

    def step_and_clear():
        optimizer.zero_grad()
        model(torch.ones(8, 10)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    peak = measure.peak_bytes(step_and_clear)
    assert max(m.live["gradients"] for m in peak.timeline) == 880
    assert peak.timeline[-1].live["gradients"] == 0


def test_recomputation_moves_activations_into_backward():
    x = leaf(1000)

    def block(t):
        return t.sin().exp().tanh()

    def plain():
        block(block(x)).sum().backward()

    def checkpointed():
        y = checkpoint(block, x, use_reentrant=False)
        checkpoint(block, y, use_reentrant=False).sum().backward()

    # Two of exp and two of tanh, and the loss: what sin needs is there, or is tanh's.
    assert max(m.live["activations"] for m in measure.peak_bytes(plain).timeline) == 4 * 4000 + 4
    # The input of the second block and the loss; the input of the first is not allocated here.
    assert measure.peak_bytes(checkpointed).by_category["activations"] <= 4000 + 4


UNARY = [
    torch.exp,
    torch.sin,
    torch.tanh,
    torch.relu,
    torch.neg,
    F.silu,
    lambda t: t * 2,
    lambda t: t[:, ::2],
]
BINARY = [torch.add, torch.mul, torch.sub, torch.div, lambda a, b: torch.where(a > b, a, b)]


def random_graph(seed):
    """A function that builds a random graph with joins and runs its backward."""
    rng = random.Random(seed)
    n = 64
    leaves = [leaf(n, n), leaf(n, n)]
    plan = [(rng.random() < 0.5, rng.randrange(40), rng.random(), rng.random()) for _ in range(8)]

    def run():
        pool = list(leaves)
        for join, which, first, second in plan:
            a = pool[int(first * len(pool))]
            same = [t for t in pool if t.shape == a.shape]
            b = same[int(second * len(same))]
            pool.append(
                BINARY[which % len(BINARY)](a, b) if join or a.shape[1] < n else UNARY[which % len(UNARY)](a)
            )
            if first < 0.3 and len(pool) > 3:
                pool.pop(2)
        loss = sum(t.sum() for t in pool)
        del pool, a, b, same
        loss.backward()

    return run


def peak_by_profiler(fn):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as run:
        fn()
    events = [e for e in run.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def test_as_many_bytes_as_the_allocator_reports():
    """Although the engine adds gradients out of place while a dispatch mode is active."""
    for seed in range(25):
        run = random_graph(seed)
        run()  # gradients exist from here on
        expected = peak_by_profiler(run)
        # The allocator also sees scalars that kernels make for themselves.
        assert measure.peak_bytes(run).total == pytest.approx(expected, abs=64), f"graph {seed}"


def test_a_join_really_is_added_in_place():
    x = leaf(1000)

    def join():
        h = x * 1
        (h.sin() + h.cos()).sum().backward()

    # At most: h, the two gradients that meet (added in place), the cosine that one of them needed; scalars.
    assert measure.peak_bytes(join).total == 4 * 4000 + 8


def test_an_addition_in_a_nodes_own_formula_is_not_in_place():
    x = leaf(1000)

    def both():
        variance, mean = torch.var_mean(x)
        (variance + mean).backward()

    both()
    assert measure.peak_bytes(both).total == pytest.approx(peak_by_profiler(both), abs=64)


def test_an_addition_in_a_backward_of_ones_own_is_not_in_place():
    class Adds(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            g = g + g
            for _ in range(3):
                g = g + 1
            return g

    x = leaf(1000)

    def run():
        Adds.apply(x).sum().backward()

    run()
    assert measure.peak_bytes(run).total == pytest.approx(peak_by_profiler(run), abs=64)


def test_peak_inside_function_transforms():
    x = torch.ones(1000)
    gradient = torch.func.grad(lambda t: (t * t).sum())
    assert measure.peak_bytes(gradient, x).total >= 8000
    assert measure.peak_bytes(torch.func.vmap(lambda t: t.exp()), torch.ones(10, 100)).total == 4000


def test_inference_mode_is_counted_operator_by_operator():
    model, x = nn.Linear(10, 20), torch.ones(3, 8, 10)
    with torch.inference_mode():
        inside = measure.peak_bytes(model, x)
    with torch.no_grad():
        outside = measure.peak_bytes(model, x)
    assert inside.total == outside.total == 3 * 8 * 20 * FLOAT


def test_memory_of_numpy_is_not_allocated_by_torch():
    array = np.ones(1000, dtype=np.float32)
    assert measure.peak_bytes(torch.from_numpy, array).total == 0
    assert measure.peak_bytes(torch.tensor, [1.0] * 1000).total == 4000
    assert measure.peak_bytes(torch.tensor, array).total == 4000


def test_resizing_and_dropping_a_storage():
    def resize():
        t = torch.empty(10)
        t.resize_(1000)
        t.resize_(2000)
        return t

    peak = measure.peak_bytes(resize)
    assert peak.total == 8000
    assert measure.live_bytes(resize).left == 0


def test_one_kind_of_device():
    def both():
        return torch.ones(10), torch.ones(1000, device="meta")

    assert measure.peak_bytes(both).total == 4040
    assert measure.peak_bytes(both, device="cpu").total == 40


def test_wrapped_tensors_are_counted_by_what_they_wrap():
    x = Doubled(torch.ones(1000))
    assert measure.peak_bytes(lambda: x + 1).total == 4000
    with measure.operators() as ops:
        x + 1
    assert ops.names == ["aten.add"]


def test_peaks_nest_and_leave_nothing_behind():
    inner = []

    def outer():
        a = torch.ones(1000)
        inner.append(measure.peak_bytes(lambda: torch.ones(500)).total)
        return a

    assert measure.peak_bytes(outer).total == 4000 + 2000
    assert inner == [2000]
    with pytest.raises(ZeroDivisionError):
        measure.peak_bytes(lambda: 1 / 0)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not _global_optimizer_pre_hooks and not _global_optimizer_post_hooks


def test_the_text_of_a_peak_names_its_parts():
    assert str(measure.peak_bytes(torch.ones, 1000)) == "4,000 bytes at the peak (activations 4,000)"
    assert str(measure.peak_bytes(lambda: None)) == "0 bytes"


# --- operators ------------------------------------------------------------------------------------


def test_matrix_products_forward_and_backward(device):
    model = nn.Sequential(nn.Linear(10, 20, bias=False), nn.ReLU(), nn.Linear(20, 5, bias=False)).to(device)
    x = torch.randn(8, 10, device=device)
    with measure.operators() as ops:
        model(x).sum().backward()
    assert ops.count("aten.mm", where="forward") == 2
    # Both weights and the hidden layer; the input needs no gradient.
    assert ops.count("aten.mm", where="backward") == 3
    assert ops.count("aten.mm") == ops.count("aten.mm.default") == ops.matmuls() == 5
    assert ops.matmuls("backward") == 3
    assert ops.total() == ops.total("forward") + ops.total("backward") == len(ops.calls)
    assert ops.count("aten.relu", "aten.threshold_backward") == 2
    with pytest.raises(ValueError, match="backwards"):
        ops.count("aten.mm", where="backwards")


def test_overloads_and_names():
    x = torch.ones(3)
    with measure.operators() as ops:
        x + 1
        x + x
        x.add_(1)
    assert (ops.count("aten.add"), ops.count("aten.add.Tensor"), ops.count("aten.add_")) == (2, 2, 1)
    assert ops.names == ["aten.add", "aten.add_"]
    assert str(ops).splitlines()[0].split() == ["2", "aten.add.Tensor"]


@pytest.mark.parametrize(
    ("run", "written"),
    [
        (lambda x: x.view(-1).view(5, 4), 0),
        (lambda x: x.t().reshape(4, 5), 80),
        (lambda x: x.contiguous(), 0),
        (lambda x: x.t().contiguous(), 80),
        (lambda x: x.clone(), 80),
        (lambda x: x.double(), 160),
        (lambda x: x.float(), 0),
        (lambda x: torch.cat([x, x]), 160),
        (lambda x: torch.stack([x[0], x[1]]), 40),
        (lambda x: x.flip(0), 80),
        (lambda x: x[torch.tensor([0, 2])], 40),
        (lambda x: x[0].copy_(x[1]), 20),
        (lambda x: x.repeat(2, 1), 160),
        (lambda x: x + 1, 0),
    ],
)
def test_copies(run, written):
    x = torch.ones(4, 5)
    with measure.operators() as ops:
        run(x)
    assert ops.bytes_copied == written


def test_the_same_operators_in_inference_mode():
    model, x = nn.Linear(10, 20), torch.ones(8, 10)
    with measure.operators() as trained:
        model(x)
    with torch.inference_mode(), measure.operators() as inferred:
        model(x)
    assert trained.names == inferred.names == ["aten.addmm", "aten.t"]


def test_operators_with_a_kernel_of_their_own_stay_whole():
    x = leaf(10)
    with measure.operators() as ops:
        F.silu(x).sum().backward()
    assert ops.count("aten.silu_backward", where="backward") == 1


def test_operators_nest_and_survive_exceptions():
    x = torch.ones(3)
    with measure.operators() as outer:
        x.sin()
        with pytest.raises(ZeroDivisionError), measure.operators() as inner:
            x.cos()
            _ = 1 / 0
        x.exp()
    assert outer.names == ["aten.cos", "aten.exp", "aten.sin"]
    assert inner.names == ["aten.cos"]
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_readers_modes_see_no_more_than_without_us():
    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def run():
        torch.from_numpy(np.ones(3)).sum().item()

    def measured():
        nested()
        measure.peak_bytes(nested)
        measure.live_bytes(nested)

    def nested():
        with measure.operators():
            run()

    for mode in (Functions, Dispatch):
        seen = []
        with mode():
            run()
        alone, seen = seen, []
        with mode():
            measured()
        assert seen == alone * 3


def test_measuring_does_not_stop_a_function_from_being_compiled(fresh_compiler):
    @torch.compile(backend="eager")
    def f(x):
        return x.sin() + 1

    with measure.graphs_compiled() as compiled:
        with measure.operators() as ops:
            f(torch.ones(3))
        with measure.syncs() as found:
            f(torch.ones(3))
        f(torch.ones(3))
    assert compiled.breaks == 0
    assert compiled.graphs >= 1
    assert ops.count("aten.sin") == 1
    assert found.count() == 0
    with measure.graphs_compiled() as compiled:
        f(torch.ones(3))
    assert compiled.graphs == 0  # it is compiled, and stays so


def test_flops():
    a, b = leaf(8, 10), leaf(10, 20)
    assert measure.flops(torch.mm, a, b) == 2 * 8 * 10 * 20
    assert measure.flops(lambda: (a @ b).sum().backward()) == 3 * 2 * 8 * 10 * 20


# --- syncs ----------------------------------------------------------------------------------------

VALUE = 2.5


@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        ("x[0].item()", {"item": 1}),
        ("float(x[0])", {"float": 1}),
        ("int(x[0])", {"int": 1}),
        ("bool(x[0])", {"bool": 1}),
        ("1 if x[0] > 0 else 2", {"bool": 1}),
        ("x[0] > 0 and x[1] > 0", {"bool": 1}),
        ("not x[0]", {"bool": 1}),
        ("max(x)", {"bool": 3}),
        ("2.0 in x", {"item": 1}),
        ("range(i)", {"index": 1}),
        ("x[i:]", {"item": 1}),
        ("x[i]", {"item": 1}),
        ("x.tolist()", {"tolist": 1}),
        ("x[0].tolist()", {"tolist": 1}),
        ("x.numpy()", {"numpy": 1}),
        ("x.detach().numpy()", {"numpy": 1}),
        ("np.asarray(x)", {"numpy": 1}),
        ("np.array(x)", {"numpy": 1}),
        ("np.sin(x)", {"numpy": 1}),
        ("x.cpu()", {"cpu": 1}),
        ("x.cpu().numpy()", {"cpu": 1, "numpy": 1}),
        ("x[m]", {"mask": 1}),
        ("x[x > 0]", {"mask": 1}),
        ("y[m, m]", {"mask": 2}),
        ("x[[True, False, True, True]]", {"mask": 1}),
        ("set_mask(torch.ones(3))", {"mask": 1}),
        ("x.masked_select(m)", {"masked_select": 1}),
        ("x.nonzero()", {"nonzero": 1}),
        ("torch.where(m)", {"nonzero": 1}),
        ("torch.argwhere(m)", {"nonzero": 1}),
        ("x.unique()", {"unique": 1}),
        ("torch.unique_consecutive(x)", {"unique": 1}),
        ("torch.bincount(i.view(1))", {"bincount": 1}),
        ("torch.equal(x, x)", {"equal": 1}),
        ("torch.allclose(x, x)", {"allclose": 1}),
        ("torch.repeat_interleave(x, counts)", {"repeat_interleave": 1}),
        ("F.one_hot(counts)", {"item": 1}),
        ("torch.linalg.inv(y)", {"linalg": 1}),
        ("repr(x)", {"print": 1}),
        ("str(x)", {"print": 1}),
        ("print(x)", {"print": 1}),
        ("f'{x}'", {"print": 1}),
        ("f'{x[0]:.2f}'", {"print": 1}),
        # What a GPU does without anyone waiting for it:
        ("x[0] + x.sum()", {}),
        ("x[1:3].clone()", {}),
        ("set_mask(0.0)", {}),
        ("set_mask(-1)", {}),
        ("torch.where(m, x, 0)", {}),
        ("x.masked_fill(m, 0)", {}),
        ("x * m", {}),
        ("x[counts]", {}),
        ("torch.repeat_interleave(x, counts, output_size=8)", {}),
        ("torch.repeat_interleave(x, 2)", {}),
        ("F.one_hot(counts, 4)", {}),
        ("list(x), len(x), x.shape, x.numel()", {}),
        ("torch.tensor([1.0, 2.0])", {}),
        ("torch.from_numpy(np.ones(3))", {}),
        ("x.to('cpu')", {}),
        ("x.double().detach()", {}),
        ("y.softmax(-1).argmax(-1)", {}),
        ("F.cross_entropy(y, counts)", {}),
        ("nn.utils.clip_grad_norm_(trained, 1.0)", {}),
    ],
)
def test_where_a_gpu_would_be_waited_for(code, kinds, capsys):
    names = dict(
        x=torch.tensor([1.0, 2.0, 3.0, 4.0]),
        y=torch.eye(4),
        m=torch.tensor([True, False, True, True]),
        i=torch.tensor(2),
        counts=torch.tensor([2, 2, 1, 3]),
        trained=nn.Linear(2, 2).parameters(),
        np=np,
        torch=torch,
        F=F,
        nn=nn,
    )
    z = torch.zeros(4)

    def set_mask(value):
        z[names["m"]] = value

    with measure.syncs() as found:
        eval(code, names | {"set_mask": set_mask})
    assert found.kinds == kinds
    assert found.count() == sum(kinds.values())


def test_the_line_that_waits():
    x = torch.ones(3)
    with measure.syncs() as found:
        if x.sum() > 0:
            total = x.sum().item()
        assert total == 3
        for _ in range(2):
            x[0].tolist()
    assert found.where[0].startswith("bool in line ")
    assert found.where[0].endswith(": if x.sum() > 0:")
    assert found.where[1].endswith(": total = x.sum().item()")
    assert len(found.where) == 3
    assert found.count() == 4
    assert (found.count("tolist"), found.count("bool", "item")) == (2, 2)
    with measure.syncs() as none:
        pass
    assert str(none) == "no sync"


def test_optimizers_and_loaders_read_what_the_host_has_anyway():
    model = nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.randn(12, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    optimizers = [
        torch.optim.AdamW(model.parameters(), foreach=False),
        torch.optim.AdamW(model.parameters(), foreach=True),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    ]
    total = torch.zeros(())
    with measure.syncs() as found:
        for x, y in loader:
            for optimizer in optimizers:
                loss = F.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                total += loss.detach()
    assert str(found) == "no sync"


def test_a_readers_closure_inside_an_optimizer_counts():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []

    def closure():
        loss = model(torch.ones(2, 4)).sum()
        losses.append(loss.item())
        return loss

    with measure.syncs() as found:
        optimizer.step(closure)
    assert found.kinds == {"item": 1}
    assert found.where[0].endswith("losses.append(loss.item())")


def test_syncs_inside_a_backward_of_ones_own():
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * g.sum().item()

    with measure.syncs() as found:
        Reads.apply(leaf(3)).sum().backward()
    assert found.kinds == {"item": 1}


def test_only_tensors_on_the_device_in_question():
    x = torch.ones(3)
    with measure.syncs(device="cuda") as found:
        x.sum().item(), x.tolist(), x[x > 0], x.cpu(), repr(x)
    assert found.count() == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_syncs_on_a_gpu_as_the_driver_sees_them():
    x = torch.ones(4, device="cuda")
    mask = torch.tensor([True, False, True, True], device="cuda")
    cases = {
        "item": lambda: x.sum().item(),
        "tolist": lambda: x.tolist(),
        "mask": lambda: x[mask],
        "nonzero": lambda: x.nonzero(),
        "equal": lambda: torch.equal(x, x),
        "cpu": lambda: x.cpu(),
    }
    for kind, run in cases.items():
        with measure.syncs("cuda") as found:
            run()
        assert found.kinds == {kind: 1}
        torch.cuda.set_sync_debug_mode("error")
        try:
            with pytest.raises(RuntimeError, match="synchroniz"):
                run()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_syncs_nest_and_survive_exceptions():
    x = torch.ones(3)
    with measure.syncs() as outer:
        with pytest.raises(ZeroDivisionError), measure.syncs() as inner:
            x.tolist()
            _ = 1 / 0
        x.sum().item()
        with pytest.raises(RuntimeError, match="ambiguous"):
            bool(x)
        x.tolist()
    assert inner.kinds == {"tolist": 1}
    assert outer.kinds["tolist"] == 2
    assert outer.kinds["item"] == 1
    assert torch._C._len_torch_dispatch_stack() == torch._C._len_torch_function_stack() == 0


# --- graphs compiled ------------------------------------------------------------------------------


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def counted(f, *inputs, **options):
    compiled_f = torch.compile(f, backend="eager", **options)
    with measure.graphs_compiled() as compiled:
        for x in inputs:
            compiled_f(x)
    return compiled


@pytest.mark.usefixtures("fresh_compiler")
class TestGraphsCompiled:
    def test_one_graph(self):
        found = counted(lambda x: x.sin() + 1, torch.ones(3), torch.ones(3))
        assert (found.graphs, found.breaks, found.recompilations, found.skipped) == (1, 0, 0, 0)

    def test_print_breaks(self, capsys):
        def f(x):
            y = x.sin()
            print("here")
            return y.cos()

        found = counted(f, torch.ones(3), torch.ones(3))
        assert (found.graphs, found.breaks, found.recompilations, found.skipped) == (2, 1, 0, 0)
        assert found.reasons[0].endswith('at `print("here")`')
        assert len(found.reasons[0].splitlines()) == 1

    def test_a_branch_on_a_tensor_breaks(self):
        def f(x):
            y = x.sin()
            return y + 1 if y.sum() > 0 else y - 1

        found = counted(f, torch.ones(3))
        assert (found.graphs, found.breaks, found.skipped) == (2, 1, 0)
        found = counted(f, -torch.ones(3))
        assert found.breaks <= 1

    def test_item_breaks(self):
        found = counted(lambda x: x.sin() * x.sum().item(), torch.ones(3))
        assert (found.graphs, found.breaks) == (2, 1)

    def test_a_break_in_a_loop_gives_the_function_up(self):
        def f(x):
            for i in range(3):
                if x.sum() > i:
                    x = x + 1
            return x

        found = counted(f, torch.ones(3))
        assert (found.graphs, found.breaks, found.skipped) == (0, 0, 1)
        assert "skipped: f" in str(found)

        def helper(x):
            return x + 1

        def g(x):
            for i in range(3):
                if x.sum() > i:
                    x = helper(x)
            return x

        # What such a function calls is compiled by itself: one graph and no break are no proof.
        found = counted(g, torch.ones(3))
        assert (found.graphs, found.breaks, found.skipped) == (1, 0, 1)

    def test_recompilations(self):
        def f(x):
            return x.sin()

        inputs = [torch.ones(n) for n in (3, 4, 5, 6)]
        found = counted(f, *inputs)
        # The second size makes the size a symbol; from then on every size fits.
        assert (found.graphs, found.recompilations) == (2, 1)
        torch._dynamo.reset()
        found = counted(f, *inputs, dynamic=False)
        assert (found.graphs, found.recompilations) == (4, 3)
        torch._dynamo.reset()
        found = counted(f, *inputs, dynamic=True)
        assert (found.graphs, found.recompilations) == (1, 0)

    def test_what_was_compiled_before_is_not_counted(self):
        f = torch.compile(lambda x: x.sin(), backend="eager")
        f(torch.ones(3))
        with measure.graphs_compiled() as found:
            f(torch.ones(3))
        assert found.graphs == 0

    def test_resets_inside(self):
        def f(x):
            y = x.sin()
            return y + 1 if y.sum() > 0 else y - 1

        with measure.graphs_compiled() as found:
            for _ in range(2):
                torch.compile(f, backend="eager")(torch.ones(3))
                torch._dynamo.reset()
                torch._dynamo.utils.counters.clear()
        assert (found.graphs, found.breaks, found.recompilations, found.skipped) == (4, 2, 0, 0)

    def test_nests_and_leaves_nothing_behind(self):
        from torch._dynamo.convert_frame import _bytecode_hooks

        before = dict(_bytecode_hooks)
        with measure.graphs_compiled() as outer:
            torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(3))
            with pytest.raises(ZeroDivisionError), measure.graphs_compiled() as inner:
                torch.compile(lambda x: x.cos(), backend="eager")(torch.ones(3))
                _ = 1 / 0
        assert (outer.graphs, inner.graphs) == (2, 1)
        assert dict(_bytecode_hooks) == before

    def test_a_function_that_cannot_be_one_graph(self):
        def f(x):
            return x.sin() if x.sum() > 0 else x

        compiled = torch.compile(f, backend="eager", fullgraph=True)
        with measure.graphs_compiled() as found, pytest.raises(Exception, match="[Dd]ata-dependent"):
            compiled(torch.ones(3))
        assert found.graphs == 0

    def test_saved_bytes_of_a_compiled_function(self):
        f = torch.compile(lambda x: x.sin().exp(), backend="aot_eager")
        assert measure.saved_bytes(f, leaf(10)).total == 80


def test_the_compiler_is_imported_by_nothing_but_what_compiles():
    code = """
import sys, torch
from course_utils import measure
x = torch.ones(3, requires_grad=True)
measure.saved_bytes(torch.exp, x); measure.peak_bytes(torch.exp, x); measure.live_bytes(torch.exp, x)
with measure.operators() as ops, measure.syncs() as found:
    x.exp().sum().item()
measure.time_ratio(lambda: x.exp(), lambda: x.sin(), seconds=0.01)
print(ops.total(), found.count(), "torch._dynamo" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    operators, waits, imported = done.stdout.split()
    assert int(operators) >= 3
    assert (waits, imported) == ("1", "False")


# --- time -----------------------------------------------------------------------------------------


class Clock:
    """Time that passes only where a test lets it."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def takes(self, seconds):
        def run():
            self.now += next(seconds)

        return run


def forever(*values):
    while True:
        yield from values


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    return clock


def test_a_clear_ratio(clock):
    ratio = measure.time_ratio(clock.takes(forever(3.0)), clock.takes(forever(1.0)), seconds=1000)
    assert (ratio.ratio, ratio.noise, ratio.pairs) == (3, 0, 7)
    assert ratio.enough
    ratio = measure.time_ratio(clock.takes(forever(3.0)), clock.takes(forever(3.0)), seconds=1000)
    assert (ratio.ratio, ratio.noise, ratio.pairs) == (1, 0, 51)
    assert not ratio.enough


def test_noise_larger_than_the_gap(clock):
    noisy = clock.takes(forever(0.01, 0.03, 0.009, 0.02, 0.04))
    ratio = measure.time_ratio(noisy, clock.takes(forever(0.015)), seconds=10)
    assert not ratio.enough
    assert ratio.pairs == 51
    assert ratio.noise > 0.2


def test_a_busy_moment_hits_both_alike(clock):
    """The machine becomes ten times slower half-way: the ratio stays what it is."""
    calls = []

    def run(seconds):
        def call():
            calls.append(seconds)
            clock.now += seconds * (10 if len(calls) > 20 else 1)

        return call

    ratio = measure.time_ratio(run(0.011), run(0.01), seconds=10)
    assert ratio.ratio == pytest.approx(1.1)


def test_being_second_is_no_disadvantage(clock):
    """Whatever runs second in a pair takes half as long again: that is noise, and no difference."""
    calls = []

    def run():
        calls.append(1)
        clock.now += 3.0 if len(calls) % 2 else 4.5

    ratio = measure.time_ratio(run, run, seconds=1000)
    assert ratio.noise >= 0.3
    assert not ratio.enough


def test_short_calls_are_repeated(clock):
    calls = []

    def quick():
        calls.append(1)
        clock.now += 1e-5

    ratio = measure.time_ratio(quick, clock.takes(forever(1e-2)))
    assert ratio.ratio == pytest.approx(1e-3)
    assert len(calls) > 7 * 99


def test_timing_ends(clock):
    ratio = measure.time_ratio(clock.takes(forever(5.0)), clock.takes(forever(5.0)), seconds=1)
    assert ratio.pairs == 7
    assert not ratio.enough


def test_timing_restores_the_collector():
    def fails():
        fails.calls += 1
        if fails.calls == 5:
            raise ZeroDivisionError

    fails.calls = 0
    with pytest.raises(ZeroDivisionError):
        measure.time_ratio(fails, lambda: None)
    ratio = measure.time_ratio(lambda: torch.ones(9).sum(), lambda: torch.ones(9).sum(), seconds=0.05)
    assert gc.isenabled()
    assert ratio.ratio > 0
    assert "±" in str(ratio)


# --- storage --------------------------------------------------------------------------------------


def test_same_storage(device):
    x = torch.arange(12, device=device)
    assert measure.same_storage(x, x[3:].view(3, 3).t())
    assert measure.same_storage(x[:2], x[5:])  # not one element in common
    assert measure.same_storage(x, x.detach())
    assert not measure.same_storage(x, x.clone())
    assert not measure.same_storage(torch.empty(0), torch.empty(0))
    assert not measure.same_storage(torch.ones(3, device="meta"), torch.ones(3, device="meta"))
    array = np.ones(3)
    assert not measure.same_storage(torch.from_numpy(array), torch.tensor(array))


def test_storage_bytes():
    x = torch.zeros(10)
    assert measure.storage_bytes(x[:2]) == 40
    assert measure.storage_bytes(torch.zeros(1).expand(100)) == 4
    assert measure.storage_bytes(torch.zeros(0)) == 0


# --- results -------------------------------------------------------------------------------------


def test_results_outlive_what_was_measured():
    """A result holds no tensor, so that it can be kept, copied and sent."""
    x = leaf(1000)
    results = [
        measure.saved_bytes(torch.exp, x),
        measure.peak_bytes(torch.exp, x),
        measure.live_bytes(torch.exp, x),
    ]
    assert [type(copy.deepcopy(result)) for result in results] == list(map(type, results))
    assert not any(
        isinstance(thing, torch.Tensor) for result in results for thing in gc.get_referents(result)
    )
