"""`measure.kernel` on kernels as tutorials have them, and on other features, against counts made by hand."""

import pytest
import torch
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise.kits.kernels import tl, triton


@triton.jit
def leaky(value):
    return tl.where(value >= 0, value, 0.01 * value)


@triton.jit
def grouped_matmul(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Programs in an order that goes down GROUP_M rows of tiles before it goes to the right."""
    down, across = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = tl.program_id(axis=0) // (GROUP_M * across)
    within = tl.program_id(axis=0) % (GROUP_M * across)
    rows = min(down - group * GROUP_M, GROUP_M)
    m, n = group * GROUP_M + within % rows, within // rows
    tl.assume(m >= 0)
    tl.assume(stride_am > 0)
    i = (m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    j = (n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    i = tl.max_contiguous(tl.multiple_of(i, BLOCK_M), BLOCK_M)
    inner = tl.arange(0, BLOCK_K)
    left = a + i[:, None] * stride_am + inner[None, :] * stride_ak
    right = b + inner[:, None] * stride_bk + j[None, :] * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        x = tl.load(left, mask=inner[None, :] < K - k * BLOCK_K, other=0.0)
        y = tl.load(right, mask=inner[:, None] < K - k * BLOCK_K, other=0.0)
        total = tl.dot(x, y, total, input_precision="ieee")
        left += BLOCK_K * stride_ak
        right += BLOCK_K * stride_bk
    if ACTIVATION == "leaky":
        total = leaky(total)
    i, j = m * BLOCK_M + tl.arange(0, BLOCK_M), n * BLOCK_N + tl.arange(0, BLOCK_N)
    where = c + stride_cm * i[:, None] + stride_cn * j[None, :]
    tl.store(where, total, mask=(i[:, None] < M) & (j[None, :] < N))


@triton.jit
def persistent_softmax(
    out, x, out_stride, x_stride, rows, columns, BLOCK: tl.constexpr, num_stages: tl.constexpr
):
    """Fewer programs than rows: each takes one row in so many."""
    lanes = tl.arange(0, BLOCK)
    inside = lanes < columns
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=num_stages):
        values = tl.load(x + row * x_stride + lanes, mask=inside, other=-float("inf"))
        above = tl.exp(values - tl.max(values, axis=0))
        tl.store(out + row * out_stride + lanes, above / tl.sum(above, axis=0), mask=inside)


@triton.jit
def seeded_dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    i = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(out + i, tl.where(tl.rand(seed, i) > p, value / (1 - p), 0.0), mask=i < n)


def moved(found):
    return {name: (t.bytes_loaded, t.bytes_stored) for name, t in found.tensors.items()}


def test_a_matmul_in_grouped_order():
    M, N, K = 80, 64, 40
    a, b, c = torch.randn(M, K), torch.randn(N, K).t(), torch.zeros(M, N)
    blocks = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": 2}

    def grid(meta):
        return (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)

    strides = *a.stride(), *b.stride(), *c.stride()
    found = measure.kernel(grouped_matmul, grid, a, b, c, M, N, K, *strides, **blocks, ACTIVATION="leaky")
    torch.testing.assert_close(c, F.leaky_relu(a @ b))
    # 3 × 2 programs. Each loads 32 rows of `a` (the third block of rows wraps around after 16) and 32 columns
    # of `b`, all of K.
    assert found.grid == (6,) and found.outside == found.races == []
    assert moved(found) == {"a": (6 * 32 * 40 * 4, 0), "b": (6 * 40 * 32 * 4, 0), "c": (0, 80 * 64 * 4)}
    assert found.tensors["a"].loads[:, 0].tolist() == [4] * 16 + [2] * 64
    assert (found.tensors["b"].loads == 3).all() and (found.tensors["c"].stores == 1).all()
    # Programs 0 to 3 go down, right, down in two rows of tiles; 4 and 5 have the third for themselves.
    stores = [access for access in found.launch.accesses if access.place.kind == "store"]
    start = found.launch.memories[2].start
    firsts = [divmod((int(access.addresses[0]) - start) // 4, N) for access in stores]
    assert firsts == [(0, 0), (32, 0), (0, 32), (32, 32), (64, 0), (64, 32)]


def test_a_softmax_of_programs_that_take_several_rows():
    x, out = torch.randn(10, 64)[:, :50], torch.empty(10, 50)
    given = out, x, out.stride(0), x.stride(0), 10, 50
    found = measure.kernel(persistent_softmax, (4, 1, 1), *given, BLOCK=64, num_stages=2)
    torch.testing.assert_close(out, x.softmax(1))
    assert moved(found) == {"x": (10 * 50 * 4, 0), "out": (0, 10 * 50 * 4)}
    assert found.grid == (4,) and (found.tensors["x"].loads == 1).all()
    # A row has 200 bytes, 6.25 sectors; it begins at most 24 bytes behind a sector's start.
    assert [(site.sectors, site.fewest) for site in found.sites] == [(70, 70), (70, 70)]
    calls = [access.program[0] for access in found.sites[0].accesses]
    assert calls == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]  # rows 0, 4, 8, then 1, 5, 9, …


def test_a_dropout_that_keeps_a_seed_and_no_mask():
    x, outs = torch.randn(100), torch.zeros(3, 100)
    for out, seed in zip(outs, (123, 123, 512), strict=True):
        found = measure.kernel(seeded_dropout, lambda meta: (triton.cdiv(100, meta["BLOCK"]),), x=x, out=out,
                               n=100, p=0.5, seed=seed, BLOCK=32)  # fmt: skip
        assert moved(found) == {"x": (400, 0), "out": (0, 400)} and found.programs == 4
        assert found.bytes == 800 and found.outside == found.races == []
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])
    kept = outs[0] != 0
    torch.testing.assert_close(outs[0][kept], 2 * x[kept])


@triton.jit
def add_one_by_descriptors(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    target = tl.make_tensor_descriptor(out, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    row = tl.program_id(0) * BM
    target.store([row, 0], source.load([row, 0]) + 1)


@triton.autotune(configs=[triton.Config({"B": 16}), triton.Config({"B": 32}, num_warps=2)], key=["n"])
@triton.heuristics({"EVEN": lambda given: given["n"] % given["B"] == 0})
@triton.jit
def add_one_tuned(x, out, n, B: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=EVEN | (i < n)) + 1, mask=EVEN | (i < n))


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def sums_so_far(x, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    for row in tl.static_range(7):
        value = tl.load(x + row * B + i)
        tl.store(out + row * B + i, tl.associative_scan(value, 0, plus))


@triton.jit
def add_one_by_block_pointers(x, out, M, N, B: tl.constexpr):
    source = tl.make_block_ptr(x, (M, N), (N, 1), (0, 0), (B, B), (1, 0))
    target = tl.make_block_ptr(out, (M, N), (N, 1), (0, 0), (B, B), (1, 0))
    for _ in range(0, N, B):
        block = tl.load(source, boundary_check=(0, 1), padding_option="zero")
        tl.store(target, block + 1, boundary_check=(0, 1))
        source, target = tl.advance(source, (0, B)), tl.advance(target, (0, B))


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.parametrize(
    ("kernel", "programs", "more", "right"),
    [
        (add_one_by_descriptors, 2, {"M": 7, "N": 16, "BM": 4, "BN": 16}, lambda x: x + 1),
        (add_one_tuned, 7, {"n": 112}, lambda x: x + 1),
        (sums_so_far, 1, {"n": 112, "B": 16}, lambda x: x.cumsum(1)),
        (add_one_by_block_pointers, 1, {"M": 7, "N": 16, "B": 8}, lambda x: x + 1),
    ],
)
def test_each_element_once(kernel, programs, more, right):
    x, out = torch.randn(7, 16), torch.zeros(7, 16)
    found = measure.kernel(kernel, lambda meta: (programs,), x, out, **more)
    torch.testing.assert_close(out, right(x))
    assert moved(found) == {"x": (448, 0), "out": (0, 448)} and found.outside == found.races == []
    assert (found.tensors["x"].loads == 1).all() and (found.tensors["out"].stores == 1).all()


@triton.jit
def add_under_a_lock(lock, total):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + 1)
    tl.atomic_xchg(lock, 0)


def test_a_lock_of_atomics():
    lock, total = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    found = measure.kernel(add_under_a_lock, (4,), lock, total)
    assert total.item() == 4 and found.tensors["lock"].atomics.tolist() == [8]
    assert not found.tensors["lock"].raced.any()
