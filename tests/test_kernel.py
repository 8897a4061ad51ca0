"""What `measure.kernel` tells of a kernel's memory, against counts made by hand, in Triton's interpreter."""

import gc
import json
import os
import subprocess
import sys

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from course_utils import measure
from course_utils.exercise import expect
from course_utils.exercise.kits import kernels
from course_utils.exercise.kits.kernels import tl, triton
from course_utils.grading import attempt
from course_utils.lessons import catalog
from course_utils.lessons.source import notebook_of

N, WIDTH = 100, 32


@triton.jit
def add(x, y, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    inside = i < n
    tl.store(out + i, tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)


@triton.jit
def add_unmasked(x, y, out, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i) + tl.load(y + i))


@triton.jit
def softmax_twice(x, y, n, B: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, B)
    inside = column < n
    top = tl.max(tl.load(x + row * n + column, mask=inside, other=-float("inf")), 0)
    e = tl.exp(tl.load(x + row * n + column, mask=inside, other=-float("inf")) - top)
    tl.store(y + row * n + column, e / tl.sum(e, 0), mask=inside)


@triton.jit
def softmax_once(x, y, n, B: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, B)
    inside = column < n
    values = tl.load(x + row * n + column, mask=inside, other=-float("inf"))
    e = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * n + column, e / tl.sum(e, 0), mask=inside)


@triton.jit
def transpose_by_columns(x, y, n, B: tl.constexpr):
    column, row = tl.program_id(0), tl.arange(0, B)
    tl.store(y + column * n + row, tl.load(x + row * n + column))


@triton.jit
def transpose_by_tiles(x, y, n, T: tl.constexpr):
    rows = tl.program_id(0) * T + tl.arange(0, T)
    columns = tl.program_id(1) * T + tl.arange(0, T)
    tile = tl.load(x + rows[:, None] * n + columns[None, :])
    tl.store(y + columns[:, None] * n + rows[None, :], tl.trans(tile))


@triton.jit
def total(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out, tl.load(out) + tl.sum(tl.load(x + i, mask=i < n, other=0), 0))


@triton.jit
def total_by_atomics(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(out, tl.sum(tl.load(x + i, mask=i < n, other=0), 0))


@triton.jit
def matmul(a, b, c, n, T: tl.constexpr):
    i = tl.program_id(0) * T + tl.arange(0, T)
    j = tl.program_id(1) * T + tl.arange(0, T)
    sum = tl.zeros((T, T), dtype=tl.float32)
    for k in range(0, n, T):
        inner = k + tl.arange(0, T)
        left = tl.load(a + i[:, None] * n + inner[None, :])
        sum += tl.dot(left, tl.load(b + inner[:, None] * n + j[None, :]))
    tl.store(c + i[:, None] * n + j[None, :], sum)


@triton.jit
def add_bias(x, bias, out, n, B: tl.constexpr):
    rows, columns = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, B)
    where = rows[:, None] * n + columns[None, :]
    spread = bias + tl.zeros((B, B), tl.int32) + columns[None, :]
    tl.store(out + where, tl.load(x + where) + tl.load(spread))


@triton.jit
def double_strided(x, n, stride, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i * stride, 2 * tl.load(x + i * stride, mask=i < n), mask=i < n)


@triton.jit
def copy_block(x, y, n, B: tl.constexpr):
    start = tl.program_id(0) * B
    source = tl.make_block_ptr(x, (n,), (1,), (start,), (B,), (0,))
    target = tl.make_block_ptr(y, (n,), (1,), (start,), (B,), (0,))
    tl.store(target, tl.load(source, boundary_check=(0,)), boundary_check=(0,))


@triton.jit
def raises(x):
    tl.no_such(x)


@triton.jit
def swap_in(x, out):
    tl.store(out, tl.atomic_cas(x + tl.program_id(0), 0, 7))


@triton.jit
def shift(x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i, tl.load(x + i + 1, mask=i + 1 < n), mask=i + 1 < n)


@triton.jit
def add_one(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + i)
    tl.store(y + n + i, value + 1)


@triton.jit
def scatter(where, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + tl.load(where + i), i)


def added(kernel=add, programs=4, dtype=torch.float32):
    x, y = torch.randn(2, N).to(dtype)
    out = torch.zeros(N, dtype=dtype)
    found = measure.kernel(kernel, (programs,), x, y, out, *([N] if kernel is add else []), B=WIDTH)
    return found, out, x + y


def by_tensor(found):
    return {name: (t.bytes_loaded, t.bytes_stored) for name, t in found.tensors.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_a_masked_kernel_moves_each_element_once(dtype):
    found, out, right = added(dtype=dtype)
    assert torch.equal(out, right)
    size = N * dtype.itemsize
    assert by_tensor(found) == {"x": (size, 0), "y": (size, 0), "out": (0, size)}
    assert (found.name, found.grid, found.programs, found.bytes) == ("add", (4,), 4, 3 * size)
    assert [t.loaded_again for t in found.tensors.values()] == [0, 0, 0]
    assert found.tensors["out"].never_stored == 0 and found.outside == found.races == []


def test_a_missing_mask_is_told_and_not_carried_out():
    x, y, out = torch.zeros(3, 4 * WIDTH).unbind()
    found = measure.kernel(add_unmasked, (4,), x[:N], y[:N], out[:N] + 0, B=WIDTH)
    # Programs 0 to 2 end at 96; program 3 asks for 96 to 127 of each of the three.
    assert len(found.outside) == 3 * (4 * WIDTH - N)
    first = found.outside[0]
    assert (first.site.kind, first.program, first.tensor, first.element) == ("load", (3,), "x", N)
    assert first.site.code == "tl.store(out + i, tl.load(x + i) + tl.load(y + i))"
    assert str(first).startswith("program 3 loads x at element 100, line ")
    assert by_tensor(found) == {name: sizes for name, sizes in by_tensor(added()[0]).items()}
    storage = torch.full((4 * WIDTH,), 7.0)
    found = measure.kernel(add_unmasked, (4,), x[:N], y[:N], storage[:N], B=WIDTH)
    assert len(found.outside) == 84 and (storage[N:] == 7).all()


def test_a_grid_that_is_rounded_down_leaves_elements():
    found, _, _ = added(programs=N // WIDTH)
    assert found.tensors["out"].never_stored == 4
    assert found.tensors["out"].stores.tolist() == [1] * 96 + [0] * 4


def test_two_softmaxes_with_the_same_values():
    x = torch.randn(8, 100)
    for kernel, times in ((softmax_twice, 2), (softmax_once, 1)):
        y = torch.empty_like(x)
        found = measure.kernel(kernel, (8,), x, y, 100, B=128)
        torch.testing.assert_close(y, x.softmax(1))
        assert by_tensor(found) == {"x": (times * 3200, 0), "y": (0, 3200)}
        assert found.tensors["x"].loaded_again == (800 if times == 2 else 0)
        # A row of 400 bytes begins at a sector's start or in its middle: 13 either way.
        assert [site.sectors for site in found.sites] == [8 * 13] * (times + 1)


def test_sectors_of_two_transposes():
    x = torch.randn(64, 64)
    y = torch.empty_like(x)
    by_columns = measure.kernel(transpose_by_columns, (64,), x, y, 64, B=64)
    assert torch.equal(y, x.t())
    (load, store) = sorted(by_columns.sites, key=lambda site: site.kind)
    assert (load.sectors, load.fewest) == (4096, 512) and (store.sectors, store.fewest) == (512, 512)
    by_tiles = measure.kernel(transpose_by_tiles, (4, 4), x, y.zero_(), 64, T=16)
    assert torch.equal(y, x.t())
    assert by_tiles.grid == (4, 4) and by_tiles.sectors == by_tiles.fewest_sectors == 1024


def test_a_race_that_gives_the_right_number():
    x, out = torch.arange(100.0), torch.zeros(1)
    found = measure.kernel(total, (4,), x, out, N, B=WIDTH)
    assert out.item() == 4950  # programs run one after the other here
    assert (
        found.tensors["out"].raced.tolist() == [True] and len(found.races) == 6
    )  # each pair of four programs
    assert str(found.races[0]) == "program 0 stores out[0], and program 1 stores it"
    found = measure.kernel(total_by_atomics, (4,), x, out.zero_(), N, B=WIDTH)
    assert out.item() == 4950 and found.races == [] and not found.tensors["out"].raced.any()
    assert by_tensor(found) == {"x": (400, 0), "out": (16, 16)}
    assert found.tensors["out"].atomics.tolist() == [4]


def test_a_load_that_races_with_a_store_and_the_order_that_shows_it():
    x = torch.arange(100.0)
    found = measure.kernel(shift, (4,), x, N, B=WIDTH)
    assert torch.equal(x[:99], torch.arange(1.0, 100))
    told = [f"program {p} loads x[{32 * p + 32}], and program {p + 1} stores it" for p in range(3)]
    assert [str(race) for race in found.races] == told
    with measure.kernels(shuffle=0):
        shift[(4,)](x := torch.arange(100.0), N, B=WIDTH)
    assert not torch.equal(x[:99], torch.arange(1.0, 100))


def test_two_lanes_that_bring_one_address_two_values():
    out = torch.zeros(4, dtype=torch.int32)
    found = measure.kernel(scatter, (1,), torch.tensor([0, 1, 1, 2]), out, B=4)
    assert [str(race) for race in found.races] == ["program 0 stores two values to out[1] at once"]
    assert found.tensors["out"].raced.tolist() == [False, True, False, False]


def test_tiles_of_a_product():
    a, b = torch.randn(2, 64, 64)
    for tile in (16, 32):
        found = measure.kernel(matmul, (64 // tile, 64 // tile), a, b, c := torch.empty(64, 64), 64, T=tile)
        torch.testing.assert_close(c, a @ b)
        # Each row of tiles of `a` is loaded for each column of tiles of `c`, and the other way round.
        assert by_tensor(found) == {
            "a": (64 * 64 * 4 * 64 // tile, 0),
            "b": (64 * 64 * 4 * 64 // tile, 0),
            "c": (0, 64 * 64 * 4),
        }
        assert (found.tensors["a"].loads == 64 // tile).all()


def test_lanes_of_one_load_that_share_an_element_load_it_once():
    x, bias, out = torch.randn(32, 16), torch.randn(16), torch.empty(32, 16)
    found = measure.kernel(add_bias, (2,), x, bias, out, 16, B=16)
    torch.testing.assert_close(out, x + bias)
    assert by_tensor(found) == {"x": (2048, 0), "bias": (2 * 64, 0), "out": (0, 2048)}
    assert found.tensors["bias"].loads.tolist() == [2] * 16


def test_a_view_has_its_own_elements():
    base = torch.ones(256)
    x = base[::8]
    found = measure.kernel(double_strided, (1,), x, 32, 8, B=32)
    assert base.sum() == 256 + 32 and found.outside == []
    assert [(site.sectors, site.fewest) for site in found.sites] == [(32, 4)] * 2
    found = measure.kernel(double_strided, (1,), x, 32, 4, B=32)  # every second one lies in a gap
    assert len(found.outside) == 2 * 16 and found.tensors["x"].loads.sum() == 16


def test_one_tensor_given_twice_and_a_block_pointer():
    x = torch.arange(100.0)
    found = measure.kernel(copy_block, (4,), x, x, N, B=WIDTH)
    assert by_tensor(found) == {"x": (400, 400), "y": (400, 400)}
    assert found.tensors["x"].name == "x, y" and found.outside == found.races == []
    assert found.bytes == 800


def test_two_tensors_that_overlap():
    base = torch.zeros(96)
    found = measure.kernel(add_one, (2,), base[:64], base[32:], 0, B=32)
    # Program 0 loads x[0:32] and stores y[0:32], which is x[32:64]; program 1 loads that and stores y[32:64].
    assert base.tolist() == [0] * 32 + [1] * 32 + [2] * 32
    assert by_tensor(found) == {"x": (256, 128), "y": (128, 256)} and found.bytes == 512
    x, y = found.tensors.values()
    assert x.stores.tolist() == [0] * 32 + [1] * 32 and y.loads.tolist() == [1] * 32 + [0] * 32
    assert x.raced.tolist() == [False] * 32 + [True] * 32 and y.raced.tolist() == x.raced.tolist()[::-1]
    assert [site.tensor for site in found.sites] == ["x, y", "x, y"]
    assert [str(race) for race in found.races] == ["program 0 stores x[32], and program 1 loads it"]


def test_one_memory_as_two_types():
    x = torch.zeros(64, dtype=torch.int32)
    found = measure.kernel(add_one, (2,), x, x.view(torch.int16), 0, B=32)
    assert by_tensor(found) == {"x": (256, 128), "y": (256, 128)} and found.bytes == 256 + 128
    assert found.tensors["y"].loads.tolist() == [1] * 128  # both halves of each number
    # The second program stores halves 32 to 63: numbers 16 to 31, which the first one loads.
    assert found.tensors["x"].raced.nonzero().flatten().tolist() == list(range(16, 32))
    assert found.tensors["y"].raced.nonzero().flatten().tolist() == list(range(32, 64))


def test_columns_of_one_tensor_do_not_overlap():
    base = torch.zeros(32, 2)
    found = measure.kernel(double_strided, (1,), base[:, 1], 32, 2, B=32)
    assert found.tensors["x"].stores.tolist() == [1] * 32
    found = measure.kernel(copy_block, (1,), base[:, 0], base[:, 1], 32, B=32)
    assert {site.tensor for site in found.sites} == {"x", "y"}


def test_a_line_that_strays_wholly_has_a_site():
    found = measure.kernel(add_one, (1,), torch.zeros(8), torch.zeros(8), 8, B=8)
    assert [(site.kind, site.tensor, site.bytes) for site in found.sites] == [
        ("load", "x", 32),
        ("store", "y", 0),
    ]
    assert len(found.outside) == 8 and {one.site for one in found.outside} == {found.sites[1]}
    assert found.sites[1].line == found.sites[0].line + 1 and found.sites[1].file == __file__


def test_nothing_of_a_launch_is_left():
    gone = []

    def launch():
        x = torch.ones(1000)
        double_strided[(1,)](x, 32, 1, B=32)
        measure.kernel(double_strided, (1,), x, 32, 1, B=32)
        with pytest.raises(Exception, match="no_such"):
            raises[(1,)](x)
        gone.append(StorageWeakRef(x.untyped_storage()))
        return x + 0

    gc.collect()
    gc.disable()
    try:
        live = measure.live_bytes(launch)
    finally:
        gc.enable()
    assert (live.held, live.result, live.left) == (4000, 4000, 0)
    assert all(one.expired() for one in gone)


def test_compare_and_swap():
    x, out = torch.zeros(2, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    found = measure.kernel(swap_in, (3,), x, out)
    assert x.tolist() == [7, 7] and found.tensors["x"].atomics.tolist() == [1, 1]
    assert [str(one).partition(",")[0] for one in found.outside] == ["program 2 atomics x at element 2"]


def test_loads_and_stores_are_counted_by_address_and_no_address_comes_twice():
    """A launch is given slices; what a first step returns is gone before the last one begins."""

    def added(x, y):
        total = torch.empty_like(x)
        for start in range(0, N, WIDTH):
            pieces = x[start:], y[start:], total[start:]
            add[(1,)](*pieces, min(WIDTH, N - start), B=WIDTH)
        return total

    def in_steps(x, y):
        first = added(x, y)
        second = added(first, y)
        del first
        gc.collect()
        return added(second, torch.zeros_like(second))

    for answer in (added, in_steps):
        t = expect.given("x, y = torch.ones(2, 100)", answer=answer)
        launches = kernels.launched(t, "answer(x, y)")
        kernels.once(t, launches, ["x"], ["found"])
    with pytest.raises(expect.Mismatch, match=r"in backward, `y\[0\]` was loaded 2 times, expected 1"):
        kernels.once(t, launches, ["y"], [], during="backward")
    assert kernels.most_in_a_program(launches, t.found, "store") == WIDTH


def test_an_answer_by_torchs_operators_is_told_what_the_task_is_about():
    def add_kernel(x, y):
        return x + y

    report = attempt.grade(catalog.load().exercise("add_kernel"), add_kernel, devices=["cpu"])
    assert report.told_by == "addresses" and report.why.startswith("Torch's operators give the right values")
    with pytest.raises(expect.Mismatch, match=r"_local_scalar_dense \(a number is taken out of a tensor"):
        kernels.computed([None], ["aten._local_scalar_dense"], by="f(x)")


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.zero_()

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_what_torch_refuses_to_write_to_is_told_as_its_callers():
    t = expect.given("x = torch.ones(3, requires_grad=True)", answer=InPlace.apply)
    for watch in (lambda: kernels.watched(t, "answer(x)"), lambda: _untouched(t)):
        with pytest.raises(expect.Mismatch, match="torch refuses to have an input written to") as told:
            watch()
        assert "belongs to its caller" in told.value.why


def _untouched(t):
    with kernels.untouched():
        t.call("answer(x)")


def test_elements_in_another_order_are_told_as_strides():
    wanted = torch.arange(6.0).view(2, 3)
    with pytest.raises(expect.Mismatch) as told:
        kernels.agrees(wanted.view(3, 2).t(), wanted, wanted)
    assert "in another order" in told.value.symptom and "no strides" in told.value.why
    with pytest.raises(expect.Mismatch) as told:
        kernels.agrees(wanted + 1, wanted, wanted)
    assert not told.value.why


@triton.jit
def double_tile(x, out, rows, columns, MASKED: tl.constexpr, B: tl.constexpr):
    """B rows in steps of B columns. `MASKED`: with a part for each, not by the number of elements."""
    i = tl.program_id(0) * B + tl.arange(0, B)[:, None]
    j = tl.program_id(1) * B + tl.arange(0, B)[None, :]
    inside = (i < rows) & (j < columns)
    tile = tl.load(x + i * columns + j, mask=inside if MASKED else i * columns + j < rows * columns)
    eye = tl.where(tl.arange(0, B)[:, None] == tl.arange(0, B)[None, :], 2.0, 0.0)
    tl.store(out + i * columns + j, tl.dot(tile, eye), mask=inside)


def doubled(x, masked):
    out = torch.zeros_like(x)
    double_tile[(1, 2)](x, out, *x.shape, MASKED=masked, B=16)
    return out


def test_a_tile_that_runs_into_the_next_row_a_dot_that_rounds_and_a_load_without_other():
    t = expect.given("x = torch.ones(10, 20)", doubled=doubled)
    launches = kernels.launched(t, "doubled(x, False)")
    with pytest.raises(expect.Mismatch, match=r"`x\[1, 0\]` was loaded 2 times") as told:
        kernels.once(t, launches, ["x"], [])
    assert "part for rows and one for columns" in told.value.why
    with pytest.raises(expect.Mismatch, match=r"becomes TF32 on a GPU in line \d+, `tl.store\(out"):
        kernels.exact_products(launches)
    kernels.once(t, kernels.launched(t, "doubled(x, True)"), ["x"], [])
    with pytest.raises(expect.Mismatch) as told, kernels.loose_loads_told(t, "doubled(x, True)"):
        expect.close(t.call("doubled(x, True)"), 2 * t.x.double())
    assert "there is no `other` in line" in told.value.lines[-1] and "may hold anything" in told.value.why


@triton.jit
def copy_around(x, out, rows, columns, B: tl.constexpr):
    """Tiles of B x B whose rows go round."""
    i = ((tl.program_id(0) * B + tl.arange(0, B)) % rows)[:, None]
    j = tl.program_id(1) * B + tl.arange(0, B)[None, :]
    tl.store(out + i * columns + j, tl.load(x + i * columns + j, mask=j < columns), mask=j < columns)


def copied_around(x):
    out = torch.empty_like(x)
    copy_around[(2, 2)](x, out, *x.shape, B=8)
    return out


def test_rows_that_go_round_are_told():
    t = expect.given("x = torch.ones(10, 12)", copied=copied_around)
    with pytest.raises(expect.Mismatch, match=r"`x\[0, 0\]` was loaded 2 times") as told:
        kernels.once(t, kernels.launched(t, "copied(x)"), ["x"], [])
    assert "the first ones, as `%` makes them" in told.value.why


def test_what_is_guarded_goes_on_with_a_warning():
    measure.guard_kernels()
    storage = torch.full((4 * WIDTH,), 7.0)
    x, y, out = torch.ones(N), torch.ones(N), storage[:N]
    with pytest.warns(UserWarning, match="add_unmasked asked for 84 addresses outside its tensors"):
        add_unmasked[(4,)](x, y, out, B=WIDTH)
    assert (storage[:N] == 2).all() and (storage[N:] == 7).all()


def test_launches_of_a_block():
    x = torch.randn(4, 8)
    with measure.kernels() as launches:
        softmax_once[(4,)](x, x, 8, B=8)
        add[(1,)](x, x, x, 32, B=32)
    assert [launch.name for launch in launches] == ["softmax_once", "add"]
    assert "x, y: loaded 128 bytes, stored 128 bytes" in str(launches[0])


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("import sys; sys.modules['triton'] = None", "Triton is not installed"),
        ("import triton", "TRITON_INTERPRET=1 before triton is imported"),
    ],
)
def test_where_nothing_can_be_watched(before, told):
    code = f"{before}\nfrom course_utils import measure\nwith measure.kernels(): pass"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and told in done.stderr.splitlines()[-1]


LEFT_ALONE = """
import contextlib, os, sys
import triton
from triton.runtime import autotuner, interpreter
from course_utils import measure

with contextlib.suppress(RuntimeError):
    measure.guard_kernels()
print("TRITON_INTERPRET" in os.environ, autotuner.Autotuner._bench.__name__,
      interpreter.GridExecutor.__call__.__name__, triton is sys.modules["triton"])
"""


def test_a_process_that_compiles_is_left_alone():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", LEFT_ALONE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == "False _bench __call__ True\n", done.stderr


WITH_A_GPU = """
import json, linecache, sys
import torch

torch.cuda.is_available = lambda: True
for number, source in enumerate(json.load(sys.stdin)):
    name = f"cell {number}"
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    exec(compile(source, name, "exec"), globals())
"""


def test_lesson_15_interprets_where_there_is_a_gpu():
    """Its cells, up to the first that launches kernels."""
    course = catalog.load()
    lesson = next(one for one in course.lessons if one.topic == "kernels")
    cells = [cell.source for cell in notebook_of(course, lesson).cells if cell.cell_type == "code"]
    first = next(i for i, source in enumerate(cells) if "@triton.jit" in source)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command, sent = [sys.executable, "-c", WITH_A_GPU], json.dumps(cells[: first + 1])
    done = subprocess.run(command, env=environment, input=sent, capture_output=True, text=True)
    assert done.stdout == "softmax_a True\nsoftmax_b True\nsoftmax_c True\n", done.stderr


A_MODULE = """
import triton, triton.language as tl

@triton.jit
def double(x, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(x + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)
"""
SENT = """
import pickle, sys
import cloudpickle, torch, kernels_of_a_reader as module
from course_utils.processes import transport

cloudpickle.register_pickle_by_value(module)
assert type(module.double).__name__ == "JITFunction"
data, sources = transport.dumps(module.double)
import course_utils.grading.ready_to_interpret
from course_utils import measure

transport.install_sources(sources)
x = torch.ones(8)
print(measure.kernel(pickle.loads(data), (1,), x, 6, B=8).bytes, x.sum().item())
"""


def test_a_kernel_that_would_be_compiled_is_interpreted_where_it_is_sent(tmp_path):
    (tmp_path / "kernels_of_a_reader.py").write_text(A_MODULE)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", SENT]
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == "48 14.0\n", done.stderr
