"""The instruments, against cases whose numbers follow from the mathematics."""

import copy
import gc
import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.testing._internal.two_tensor import TwoTensor
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


def function(forward, backward):
    """The `apply` of an autograd function that is made of these."""
    made = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Square", (torch.autograd.Function,), made).apply


def keeps_output(ctx, x):
    ctx.y = x.exp()  # leaks: the context holds the output, which holds the context
    return ctx.y


def keeps_intermediate(ctx, x):
    ctx.h = x.exp()  # outside save_for_backward, but in no cycle
    return ctx.h + 1


def saves(ctx, x):
    ctx.save_for_backward(x)
    return x * x


KeepsOutput = function(keeps_output, lambda ctx, g: g * ctx.y)
KeepsIntermediate = function(keeps_intermediate, lambda ctx, g: g * ctx.h)
Square = function(saves, lambda ctx, g: 2 * ctx.saved_tensors[0] * g)
Adds = function(lambda ctx, x: x * 1, lambda ctx, g: g + g + 1 + 1 + 1)
Reads = function(lambda ctx, x: x * 2, lambda ctx, g: g * g.sum().item())


# --- bytes saved for backward ---------------------------------------------------------------------


def two_views(x):
    h = x + 1
    return h[:5] * h[5:]


def through_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(x[None], torch.ones(2, 10, requires_grad=True))


def makes_garbage(x):
    loop = [x.sin()]
    loop.append(loop)
    return x.exp()


def goes_backward(x):
    y = x.exp()
    y.sum().backward(retain_graph=True)
    return y


def three_layers(x):
    return x.sin().exp().tanh()


@pytest.mark.parametrize(
    ("function", "total"),
    [
        (torch.exp, 40),  # the result
        (lambda x: x + 1, 0),
        (lambda x: x.softmax(0), 40),  # and no Jacobian
        (lambda x: x * x, 40),  # saved twice, there once
        (two_views, 40),  # of one storage, which is there whole
        (lambda x: (x[:1] + 1).expand(500).sin(), 4),
        (through_autocast, 10 * 2 + 20 * 2),  # two copies
        # What the result does not keep is gone.
        (lambda x: x.exp().detach(), 0),
        (lambda x: x.exp().sum().backward(), 0),
        (lambda x: {"loss": (x.exp(), 1)}, 40),
        (torch.no_grad()(torch.exp), 0),
        (goes_backward, 40),
        (makes_garbage, 40),
        (three_layers, 3 * 40),
        (lambda x: checkpoint(three_layers, x, use_reentrant=False), 40),
        (Square, 40),
        (KeepsIntermediate, 0),
        # Two int64 coordinates and one float for each of the ten.
        (lambda x: torch.sparse.mm(torch.eye(10).to_sparse(), x[:, None]), 10 * (2 * 8 + FLOAT)),
    ],
)
def test_bytes_saved_for_backward(function, total, device):
    assert measure.saved_bytes(function, leaf(10, device=device)).total == total


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
    weight = torch.randn(20, 10)
    assert measure.saved_bytes(lambda: F.linear(x, weight)).total == 800
    assert measure.saved_bytes(lambda: F.linear(x, weight), exclude=weight).total == 0
    assert measure.saved_bytes(lambda: F.linear(x, weight), exclude=[{"w": weight}]).total == 0


def test_buffers_count_unless_their_module_is_excluded():
    norm = nn.BatchNorm1d(4)
    x = torch.randn(8, 4)
    assert measure.saved_bytes(norm, x, exclude=norm).total == (8 * 4 + 2 * 4) * FLOAT
    assert measure.saved_bytes(norm, x).total == (8 * 4 + 4 * 4) * FLOAT


def test_graphs_kept_elsewhere_are_kept():
    kept = []

    def remembers(x):
        kept.append(x.sin())
        return x + 1

    saved = measure.saved_bytes(remembers, leaf(10))
    assert (saved.total, saved.tensors[0].op) == (40, "?")


def test_saved_bytes_nest_and_leave_no_hook_behind():
    inner = []

    def outer(x):
        inner.append(measure.saved_bytes(torch.exp, x).total)
        return x.sin()

    assert (measure.saved_bytes(outer, leaf(10)).total, inner) == (40, [40])
    with pytest.raises(ZeroDivisionError):
        measure.saved_bytes(lambda: 1 / 0)
    assert leaf(10).exp().grad_fn._saved_result.numel() == 10


# --- bytes alive ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "held", "result", "left"),
    [
        (torch.exp, 40, 40, 0),
        (lambda x: x.exp().sum(), 44, 4, 0),
        (lambda x: x.exp().sum().backward(), 40, 0, 40),  # the gradient
        (KeepsIntermediate, 80, 40, 0),
        (KeepsOutput, 40, 40, 40),
        (lambda x: copy.deepcopy(x.detach()), 0, 0, 0),  # memory that no operator has allocated
    ],
)
def test_live_bytes(function, held, result, left, device):
    live = measure.live_bytes(function, leaf(10, device=device))
    assert (live.held, live.result, live.left) == (held, result, left)


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


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled):
    (gc.enable if enabled else gc.disable)()
    try:
        measure.live_bytes(lambda: None)
        with pytest.raises(ZeroDivisionError):
            measure.live_bytes(lambda: 1 / 0)
        assert gc.isenabled() == enabled
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


def resizes():
    t = torch.empty(10)
    t.resize_(1000)
    t.resize_(2000)
    return t


def on_two_devices():
    return torch.ones(10), torch.ones(1000, device="meta")


X, ARRAY = torch.ones(1000), np.ones(1000, dtype=np.float32)


@pytest.mark.parametrize(
    ("run", "total"),
    [
        # What was there before does not count.
        (lambda: X.add_(0), 0),
        (lambda: X.view(10, 100).t()[::2], 0),
        (lambda: X.untyped_storage(), 0),
        (lambda: torch.from_numpy(ARRAY), 0),
        (lambda: torch.tensor(ARRAY), 4000),
        (lambda: torch.tensor([1.0] * 1000), 4000),
        (lambda: torch.func.vmap(torch.exp)(X.view(10, 100)), 4000),
        (lambda: TwoTensor(X, X) + 1, 8000),  # what it wraps
        (resizes, 8000),
        (on_two_devices, 4040),
    ],
)
def test_what_counts_at_the_peak(run, total):
    assert measure.peak_bytes(run).total == total
    with torch.inference_mode():
        assert measure.peak_bytes(run).total == total


def test_what_is_freed_meanwhile_makes_room(device):
    x, holder = torch.ones(1000, device=device), [torch.ones(1000, device=device)]
    assert measure.peak_bytes(lambda: (holder.clear(), x + 1)).total == 4000


def test_one_kind_of_device():
    assert measure.peak_bytes(on_two_devices, device="cpu").total == 40


def test_backward_counts(device):
    x = leaf(1000, device=device)
    peak = measure.peak_bytes(lambda: (x * 2).exp().sum().backward())
    # The loss, exp's result, the 1 that backward starts with, and the gradient of exp's input.
    assert peak.total == 4 + 4000 + 4 + 4000
    assert peak.by_category["activations"] == 4 + 4000
    assert peak.by_category["temporaries"] == 4 + 4000
    assert peak.timeline[-1].live["gradients"] == 4000


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
    assert measure.peak_bytes(optimizer.zero_grad).timeline == []


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


UNARY = [torch.exp, torch.sin, torch.tanh, torch.neg, F.silu, lambda t: t * 2, lambda t: t[:, ::2]]
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


def joined(x):
    h = x * 1
    return (h.sin() + h.cos()).sum()


LEAF = leaf(1000)


@pytest.mark.parametrize(
    "run",
    [
        *map(random_graph, range(10)),
        lambda: joined(LEAF).backward(),  # two gradients meet and are added in place
        lambda: sum(torch.var_mean(LEAF)).backward(),  # added in a node's formula: not in place
        lambda: Adds(LEAF).sum().backward(),  # added in a backward of one's own: neither
    ],
)
def test_as_many_bytes_as_the_allocator_reports(run):
    """Although the engine adds gradients out of place while a dispatch mode is active."""
    run()  # gradients exist from here on
    # The allocator also sees scalars that kernels make for themselves.
    assert measure.peak_bytes(run).total == pytest.approx(peak_by_profiler(run), abs=64)


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
    with measure.operators() as ops:
        TwoTensor(X, X) + 1
    assert ops.names == ["aten.add"] and ops.total() == 2
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not _global_optimizer_pre_hooks and not _global_optimizer_post_hooks


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


@pytest.mark.parametrize(
    ("run", "written"),
    [
        (lambda x: x.view(-1).view(5, 4), 0),
        (lambda x: x.t().reshape(4, 5), 80),
        (lambda x: x.t().contiguous(), 80),
        (lambda x: x.clone(), 80),
        (lambda x: x.double(), 160),
        (lambda x: torch.cat([x, x]), 160),
        (lambda x: x[torch.tensor([0, 2])], 40),
        (lambda x: x[0].copy_(x[1]), 20),
        (lambda x: x + 1, 0),
    ],
)
def test_copies(run, written):
    x = torch.ones(4, 5)
    with measure.operators() as ops:
        run(x)
    assert ops.bytes_copied == written


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


def without_grad(module, *inputs, **more):
    def run():
        with torch.no_grad():
            module.eval()(*inputs, **more)

    return run


ROWS, LONG = torch.randn(3, 7, 16), torch.randn(5, 6, 3)
Q, KV = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8)
PACKED = nn.utils.rnn.pack_padded_sequence(LONG, [5, 4, 3, 3, 2, 1])


def encoder(**more):
    return nn.TransformerEncoderLayer(16, 4, 32, **more)


@pytest.mark.filterwarnings("ignore:.*fused path:UserWarning", "ignore:.*weights are not part:UserWarning")
@pytest.mark.parametrize(
    "run",
    [
        lambda: F.scaled_dot_product_attention(Q, KV, KV, enable_gqa=True),
        without_grad(nn.LSTM(3, 4, 2, bidirectional=True), LONG),
        without_grad(nn.LSTM(3, 4, batch_first=True, bias=False), LONG),
        without_grad(nn.LSTM(3, 4), PACKED),
        without_grad(encoder(batch_first=True), ROWS),
        without_grad(encoder(norm_first=True), ROWS),
        without_grad(nn.MultiheadAttention(16, 4, batch_first=True), ROWS, ROWS, ROWS),
        without_grad(nn.MultiheadAttention(16, 4, batch_first=True), ROWS, ROWS[:, :4], ROWS[:, :4]),
    ],
)
def test_one_kernel_counts_as_the_products_that_it_is_made_of(run):
    fused = measure.flops(run)
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            assert fused == measure.flops(run) > 0
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def test_a_kernel_counts_what_it_computes_in_backward():
    q = Q.clone().requires_grad_()
    product = 2 * 2 * 4 * 5 * 7 * 8
    attention = F.scaled_dot_product_attention
    # Two products; their four gradients, and the scores again, which flash attention doesn't keep.
    k = q[:, :, :1].expand(2, 4, 7, 8)
    assert measure.flops(lambda: attention(q, k, k).sum().backward()) == 7 * product
    lstm = nn.LSTM(3, 4)
    assert measure.flops(lambda: lstm(LONG)[0].sum().backward()) == 3 * measure.flops(lstm, LONG)
    # Rows that are padding are not computed: 5 of 7, twice, and 7.
    mask = torch.arange(7) >= torch.tensor([[5], [5], [7]])
    layers = nn.TransformerEncoder(encoder(batch_first=True), 1)
    each = 2 * (48 * 16 + 16 * 16 + 2 * 16 * 32)
    wanted = 17 * each + 4 * 16 * (25 + 25 + 49)
    assert measure.flops(without_grad(layers, ROWS, src_key_padding_mask=mask)) == wanted


# --- syncs ----------------------------------------------------------------------------------------


# What is waited for once by each of these; a GPU does those of the last line without anyone waiting.
WAITS = {
    "item": ["x[0].item()", "2.0 in x", "x[i]", "F.one_hot(counts)"],
    "bool": ["bool(x[0])", "x[0] > 0 and x[1] > 0"],
    "float": ["float(x[0])"],
    "index": ["range(i)"],
    "tolist": ["x.tolist()"],
    "numpy": ["x.numpy()", "np.asarray(x)", "np.sin(x)"],
    "cpu": ["x.cpu()"],
    "mask": ["x[m]", "x[[True, False, True, True]]", "set_mask(torch.ones(3))"],
    "masked_select": ["x.masked_select(m)"],
    "nonzero": ["x.nonzero()", "torch.where(m)"],
    "unique": ["x.unique()"],
    "bincount": ["torch.bincount(i.view(1))"],
    "equal": ["torch.equal(x, x)"],
    "allclose": ["torch.allclose(x, x)"],
    "repeat_interleave": ["torch.repeat_interleave(x, counts)"],
    "linalg": ["torch.linalg.inv(y)"],
    "print": ["repr(x)", "print(x)", "f'{x[0]:.2f}'"],
    "": [
        "x[0] + x.sum()", "set_mask(0.0)", "torch.where(m, x, 0)", "x.masked_fill(m, 0)", "x[counts]",
        "torch.repeat_interleave(x, counts, output_size=8)", "F.one_hot(counts, 4)", "x.to('cpu')",
        "list(x), len(x), x.shape, x.numel()", "torch.from_numpy(np.ones(3))", "F.cross_entropy(y, counts)",
        "nn.utils.clip_grad_norm_(trained, 1.0)",
    ],
}  # fmt: skip
ONCE = [(code, {kind: 1} if kind else {}) for kind, codes in WAITS.items() for code in codes]
MORE = [("max(x)", {"bool": 3}), ("x.cpu().numpy()", {"cpu": 1, "numpy": 1}), ("y[m, m]", {"mask": 2})]


@pytest.mark.parametrize(("code", "kinds"), ONCE + MORE)
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


def trains():
    data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.randn(12, 1))
    model, total = nn.Linear(4, 1), torch.zeros(())
    optimizers = [
        torch.optim.AdamW(model.parameters(), foreach=False),
        torch.optim.AdamW(model.parameters(), foreach=True),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    ]
    for x, y in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True):
        for optimizer in optimizers:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()


def reads_in_a_closure():
    parameter = leaf(3)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.step(lambda: parameter.sum().item())


@pytest.mark.parametrize(
    ("run", "kinds"),
    [
        (trains, {}),  # optimizers and loaders read what the host has anyway
        (reads_in_a_closure, {"item": 1}),
        (lambda: Reads(leaf(3)).sum().backward(), {"item": 1}),
    ],
)
def test_syncs_where_torch_calls_the_reader(run, kinds):
    with measure.syncs() as found:
        run()
    assert found.kinds == kinds, str(found)
    assert all("parameter.sum().item()" in line or "g.sum().item()" in line for line in found.where)


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
        "cpu": lambda: x.cpu(),
    }  # torch's own mode does not see that `torch.equal` waits
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


def prints(x):
    y = x.sin()
    print("here")
    return y.cos()


def branches(x):
    y = x.sin()
    return y + 1 if y.sum() > 0 else y - 1


def loops(x):
    for i in range(3):
        if x.sum() > i:
            x = x + 1
    return x


def helper(x):
    return x + 1


def loops_and_calls(x):
    for i in range(3):
        if x.sum() > i:
            x = helper(x)
    return x


@pytest.mark.usefixtures("fresh_compiler")
class TestGraphsCompiled:
    @pytest.mark.parametrize(
        ("function", "sizes", "options", "found"),
        [
            (lambda x: x.sin() + 1, (3, 3), {}, (1, 0, 0, 0)),
            (prints, (3, 3), {}, (2, 1, 0, 0)),
            (branches, (3,), {}, (2, 1, 0, 0)),
            (lambda x: x.sin() * x.sum().item(), (3,), {}, (2, 1, 0, 0)),
            # A break in a loop gives the function up. What it calls is compiled by itself: one graph and
            # no break are no proof.
            (loops, (3,), {}, (0, 0, 0, 1)),
            (loops_and_calls, (3,), {}, (1, 0, 0, 1)),
            # The second size makes the size a symbol; from then on every size fits.
            (lambda x: x.sin(), (3, 4, 5, 6), {}, (2, 0, 1, 0)),
            (lambda x: x.sin(), (3, 4, 5, 6), {"dynamic": False}, (4, 0, 3, 0)),
            (lambda x: x.sin(), (3, 4, 5, 6), {"dynamic": True}, (1, 0, 0, 0)),
        ],
    )
    def test_graphs_breaks_recompilations_and_skipped(self, function, sizes, options, found):
        compiled = torch.compile(function, backend="eager", **options)
        with measure.graphs_compiled() as seen:
            for size in sizes:
                compiled(torch.ones(size))
        assert (seen.graphs, seen.breaks, seen.recompilations, seen.skipped) == found
        assert len(seen.reasons) == seen.breaks and ("skipped: loops" in str(seen)) == bool(seen.skipped)
        assert all(len(reason.splitlines()) == 1 for reason in seen.reasons)

    def test_what_was_compiled_before_is_not_counted(self):
        f = torch.compile(lambda x: x.sin(), backend="eager")
        f(torch.ones(3))
        with measure.graphs_compiled() as found:
            f(torch.ones(3))
        assert found.graphs == 0

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


# --- time -----------------------------------------------------------------------------------------


class Clock:
    """Time that passes only where a test lets it."""

    def __init__(self):
        self.now, self.calls = 0.0, 0

    def perf_counter(self):
        return self.now

    def takes(self, seconds):
        def run():
            self.calls += 1
            self.now += next(seconds)

        return run


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    return clock


def after(calls):
    """A machine that becomes ten times slower after so many calls."""
    return (2.0 if n < calls else 20.0 for n in itertools.count())


SECOND_IS_SLOW = itertools.cycle([3.0, 4.5])  # whatever runs second in a pair takes half as long again


@pytest.mark.parametrize(
    ("a", "b", "options", "ratio", "noise", "pairs", "enough"),
    [
        (itertools.repeat(3.0), itertools.repeat(1.0), {}, 3, (0, 0), 7, True),
        (itertools.repeat(3.0), itertools.repeat(3.0), {}, 1, (0, 0), 51, False),
        (itertools.cycle([1, 3, 0.9, 2, 4]), itertools.repeat(1.5), {}, None, (0.2, 9), 51, False),
        # A busy moment hits both alike; being second is noise and no difference; it ends in time.
        (after(10), (t / 2 for t in after(10)), {}, 2, (0, 9), None, None),
        (SECOND_IS_SLOW, SECOND_IS_SLOW, {}, None, (0.3, 9), None, False),
        (itertools.repeat(5.0), itertools.repeat(5.0), {"seconds": 1}, 1, (0, 0), 7, False),
    ],
)
def test_ratios(clock, a, b, options, ratio, noise, pairs, enough):
    found = measure.time_ratio(
        clock.takes(a), clock.takes(b), clock=clock.perf_counter, **{"seconds": 1000, **options}
    )
    assert ratio is None or found.ratio == pytest.approx(ratio)
    assert noise[0] - 1e-9 <= found.noise <= noise[1] + 1e-9
    assert pairs in (None, found.pairs) and enough in (None, found.enough)


def test_short_calls_are_repeated(clock):
    a, b = (clock.takes(itertools.repeat(seconds)) for seconds in (1e-5, 1e-2))
    ratio = measure.time_ratio(a, b, clock=clock.perf_counter)
    assert ratio.ratio == pytest.approx(1e-3)
    assert clock.calls > 7 * 99


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
