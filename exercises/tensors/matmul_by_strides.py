"""Matrix products from strides

One function for three products, made of `as_strided`, `*` and `sum` alone:

- `matmul_by_strides(a)` is the trace of a matrix of shape (m, n): the sum of its diagonal, which ends where
  the shorter side ends. It is a tensor without dimensions.
- `matmul_by_strides(a, b)` with `b` of shape (n,) is the matrix times the vector, of shape (m,).
- `matmul_by_strides(a, b)` with `b` of shape (n, k) is the product of the two matrices, of shape (m, k).

`a` and `b` have one dtype and may be views of something else, with any strides and offset; sizes may be 0.
They stay as they are, and a gradient reaches them. Integers need no cast: the dtype of the result is the one
that `sum` gives it. No other operator of torch's may run, so `@`, `trace`,
`expand`, `t()`, `a[:, None]` and `clone` are out; asking for `shape` and `stride()` runs none. `*` broadcasts
as usual. One `*` and one `sum` are enough for each product, so there may be no more, whatever the sizes. The
method and the function of torch's namespace are the same operator: `a.sum(1)` and `torch.sum(a, 1)`.

With `a = torch.arange(6.).reshape(2, 3)`, `matmul_by_strides(a)` is `4.`, and `matmul_by_strides(a, a[1])` is
`[14., 50.]`
"""

import contextlib

import torch
from torch import Tensor

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=30,
    hints=[
        "Write each product as a sum over one index: `sum_j a[i, j] * b[j, k]`. An element of `a` and one of "
        "`b` are multiplied for every `(i, j, k)`. What would the two tensors have to look like for `*` to "
        "do that, element by element?",
        "A view has a stride for each index, and `a[i, j]` does not depend on `k`: along `k` the view has to "
        "stay where it is. And the diagonal `a[i, i]`: how far is it in storage from one element to the "
        "next?",
        "Both matrices become views of size `(m, n, k)`. The strides of the one are those of `a` and a 0; "
        "the strides of the other are a 0 and those of `b`. Their product holds all `a[i, j] * b[j, k]`, and "
        "one dimension is to be summed up. The vector is the same with one dimension less. A step on the "
        "diagonal goes one down and one to the right, so both strides are added.",
    ],
)


@exercise.starter
def matmul_by_strides(a: Tensor, b: Tensor | None = None) -> Tensor:
    """(m, n) -> (); (m, n), (n,) -> (m,); (m, n), (n, k) -> (m, k)"""
    raise NotImplementedError


def _trace(a):
    """Element by element."""
    total = torch.zeros((), dtype=a.dtype, device=a.device)
    for i in range(min(a.shape)):
        total = total + a[i, i]
    return total


def _expect_product(matmul_by_strides, setup, a="a", b="b"):
    """The product, or the trace where `b` is None; beside a first difference stand strides and offsets."""
    t = expect.given(setup, matmul_by_strides=matmul_by_strides)
    x = t.call(a)
    y = None if b is None else t.call(b)
    wanted = _trace(x) if y is None else torch.matmul(x, y)
    came = t.call(f"matmul_by_strides({a})" if b is None else f"matmul_by_strides({a}, {b})")
    try:
        expect.equal(came, wanted.detach())
    except expect.Mismatch as found:
        inputs = [(code, z) for code, z in ((a, x), (b, y)) if z is not None]
        found.lines.append(", ".join(f"`{code}.stride()` is {z.stride()}" for code, z in inputs))
        if any(z.storage_offset() for _, z in inputs):
            offsets = (f"`{code}.storage_offset()` is {z.storage_offset()}" for code, z in inputs)
            found.lines.append(", ".join(offsets))
        raise
    return t


@exercise.check
def trace(matmul_by_strides):
    """The trace, of square, wide and tall matrices"""
    for m, n in ((3, 3), (2, 5), (4, 2), (1, 3), (1, 1)):
        _expect_product(matmul_by_strides, f"a = torch.arange({m * n}.).reshape({m}, {n}) + 1", b=None)


@exercise.check
def matrix_and_vector(matmul_by_strides):
    """A matrix times a vector"""
    for m, n in ((2, 3), (4, 2), (3, 3), (1, 4), (3, 1)):
        setup = f"a = torch.arange({m * n}.).reshape({m}, {n})\nb = torch.arange({n}.) + 1"
        _expect_product(matmul_by_strides, setup)


@exercise.check
def two_matrices(matmul_by_strides):
    """A matrix times a matrix"""
    for m, n, k in ((2, 3, 4), (4, 2, 3), (3, 3, 3), (1, 4, 2), (3, 1, 2), (2, 3, 1)):
        setup = (
            f"a = torch.arange({m * n}.).reshape({m}, {n})\nb = torch.arange({n * k}.).reshape({n}, {k}) + 1"
        )
        _expect_product(matmul_by_strides, setup)


@exercise.check
def any_strides(matmul_by_strides):
    """Transposed, stepped and expanded inputs"""
    setup = "a = torch.arange(24.).reshape(6, 4)\nb = torch.arange(60.).reshape(6, 10)"
    for code in ("a.t()", "a[::2, ::3]", "a.t()[::2]", "b[:, ::3]"):
        _expect_product(matmul_by_strides, setup, code, None)
    for pair in (("a.t()", "b[:, 0]"), ("a[:, ::2]", "b[0, ::6]"), ("b.t()", "a[:1, 0].expand(6)")):
        _expect_product(matmul_by_strides, setup, *pair)
    for pair in (
        ("a.t()", "b"),
        ("b.t()", "a"),
        ("a[::3]", "b[::2, ::2].t()[:4]"),
        ("a[:1].expand(5, 4)", "a.t()"),
    ):
        _expect_product(matmul_by_strides, setup, *pair)


@exercise.check
def part_of_a_storage(matmul_by_strides):
    """Inputs that begin inside their storage"""
    setup = "a = torch.arange(30.).reshape(5, 6)"
    _expect_product(matmul_by_strides, setup, "a[1:, 2:]", None)
    _expect_product(matmul_by_strides, setup, "a[1:4, 2:]", "a[4, 2:]")
    _expect_product(matmul_by_strides, setup, "a[2:, 1:4]", "a[1:4, :2]")
    _expect_product(matmul_by_strides, setup, "a[:3, :2]", "a[3:, 4:]")


@exercise.check
def sizes_of_zero(matmul_by_strides):
    """Sizes of 0: a sum of nothing is 0"""
    setup = "a = torch.zeros(0, 3)\nb = torch.ones(3, 2)"
    _expect_product(matmul_by_strides, setup, "a", None)
    _expect_product(matmul_by_strides, setup, "a.t()", "a[:, 0]")
    _expect_product(matmul_by_strides, setup, "a", "b[:, 0]")
    _expect_product(matmul_by_strides, setup, "a.t()", "a")
    _expect_product(matmul_by_strides, setup, "a", "b")
    _expect_product(matmul_by_strides, setup, "b", "a[:, :2].t()")


@exercise.check
def any_dtype(matmul_by_strides, device):
    """Other dtypes and every device, and the inputs stay what they were"""
    # Torch's own product, which is the oracle, is there for all of them on the CPU only.
    dtypes = (torch.float64, torch.int64, torch.complex64) if device.type == "cpu" else (torch.float32,)
    for dtype in dtypes:
        wanted = torch.tensor([[1, 2, 3], [4, 5, 7]], dtype=dtype, device=device)
        setup = f"a = torch.tensor([[1, 2, 3], [4, 5, 7]], dtype={dtype}, device='{device.type}')"
        for b in (None, "a[1]", "a.t()"):
            t = _expect_product(matmul_by_strides, setup, "a", b)
            expect.unchanged(t.a, wanted, what="`a`")
            expect.strides(t.a, (3, 1), what="`a`, after the call,")


# What multiplies or walks a diagonal by itself. All else that is not allowed only rearranges.
_PRODUCTS = {
    "trace",
    "diagonal",
    "diag",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "mv",
    "addmv",
    "dot",
    "vdot",
    "linear",
}
# Leaving the graph rearranges nothing; the gradients tell.
_ALLOWED = {"as_strided", "mul", "sum", "detach"}
_COPIES = {"clone", "_to_copy", "copy_", "repeat", "cat", "stack"}

# What is watched: each product as usual, on views; with sizes that invite a way of their own; of integers.
_ORDINARY = "a = torch.arange(12.).reshape(4, 3).t()\nb = torch.arange(8.).reshape(4, 2)\nv = b[:, 0]"
_SIZES = [
    (
        "size 1" if min(m, n, k) else "size 0",
        f"a = torch.ones({n}, {m}).t()\nb = torch.ones({n}, {k})\nv = torch.ones({n})",
    )
    for m, n, k in ((3, 0, 2), (0, 3, 2), (3, 2, 0), (3, 1, 2), (1, 3, 2), (3, 4, 1), (1, 1, 1))
]
_INTEGERS = """a = torch.arange(12, dtype=torch.int32).reshape(4, 3).t()
b = torch.arange(8, dtype=torch.int32).reshape(4, 2)
v = b[:, 0]"""
_WATCHED = [("ordinary", _ORDINARY), *_SIZES, ("integers", _INTEGERS)]


def _ran(matmul_by_strides):
    """(group, setup, what was called, names of the operators that ran) for each product that is watched."""
    found = []
    for group, setup in _WATCHED:
        t = expect.given(setup, matmul_by_strides=matmul_by_strides)
        for code in ("matmul_by_strides(a)", "matmul_by_strides(a, v)", "matmul_by_strides(a, b)"):
            # What raises for such sizes is told by the checks of the values.
            quiet = contextlib.suppress(RuntimeError) if "size" in group else contextlib.nullcontext()
            with measure.operators() as ran, quiet:
                t.call(code)
            found.append((group, setup, code, [call.name.split(".")[1] for call in ran.calls]))
    return found


def _refuse(faults):
    """`faults`: (group, setup, code, what ran, what was expected); the first is shown. The groups are
    evidence."""
    evidence.record("groups", sorted({group for group, *_ in faults}))
    code = [line for _, setup, called, *_ in faults[:1] for line in (*setup.splitlines(), called)]
    with expect.situation(*code):
        expect.true(not faults, *(line for _, _, _, *lines in faults[:1] for line in lines))


def _refuse_operators(ran, unwanted, wanted):
    """No operator may have run of which `unwanted` says so."""
    found = [(*where, sorted(set(filter(unwanted, names)))) for *where, names in ran]
    _refuse([(*where, f"torch's `{'`, `'.join(names)}` ran", wanted) for *where, names in found if names])


@exercise.check
def no_product_of_torchs(matmul_by_strides):
    """None of torch's own products runs"""
    wanted = "expected: the product is made of `as_strided`, `*` and `sum`"
    _refuse_operators(_ran(matmul_by_strides), lambda name: name in _PRODUCTS, wanted)


@exercise.check
def only_three_operators(matmul_by_strides):
    """Nothing but `as_strided`, `*` and `sum` runs"""
    ran = _ran(matmul_by_strides)
    every = {name for *_, names in ran for name in names}
    # A copy and a view are two mistakes.
    evidence.record("copied", not every & _PRODUCTS and bool(every & _COPIES))
    _refuse_operators(ran, lambda name: name not in _ALLOWED, "expected: `as_strided`, `*` and `sum` alone")


@exercise.check
def one_of_each(matmul_by_strides):
    """At most one `*` and one `sum` for each product"""
    ran = _ran(matmul_by_strides)
    wanted = "expected: once, on tensors that hold all that is multiplied or summed up"
    counts = [(*where, name, names.count(name)) for *where, names in ran for name in ("mul", "sum")]
    _refuse([(*where, f"`{name}` ran {n} times", wanted) for *where, name, n in counts if n > 1])


@exercise.check
def gradients(matmul_by_strides):
    """A gradient reaches both inputs"""
    setup = "a = torch.arange(12.).reshape(4, 3).requires_grad_()\nb = (torch.arange(8.) + 1).reshape(4, 2)"
    setup += ".requires_grad_()"
    for a, b in (("a", None), ("a.t()", "b[:, 1]"), ("a.t()", "b")):
        t = expect.given(setup, matmul_by_strides=matmul_by_strides)
        wanted = _trace(t.a) if b is None else t.call(a) @ t.call(b)
        weights = torch.arange(1.0, wanted.numel() + 1).reshape(wanted.shape)
        grads = torch.autograd.grad(wanted, (t.a, t.b), weights, allow_unused=True)
        result = t.call(f"matmul_by_strides({a})" if b is None else f"matmul_by_strides({a}, {b})")
        expect.true(
            isinstance(result, Tensor) and result.requires_grad,
            "the inputs require a gradient and the result does not: it has left the graph",
            "expected: the result is part of the graph",
        )
        result.backward(weights)
        for name, x, grad in (("a", t.a, grads[0]), ("b", t.b, grads[1])):
            if grad is not None:
                expect.true(x.grad is not None, f"no gradient reaches `{name}`", "expected: one does")
                expect.equal(x.grad, grad, what=f"`{name}.grad`")


# --- the mistakes -----------------------------------------------------------------------------------------


def _diagonal(a):
    return a.as_strided((min(a.shape),), (sum(a.stride()),))


def _times_vector(a, b):
    return (a * b.as_strided(a.shape, (0, b.stride(0)))).sum(1)


def _times_matrix(a, b):
    size = (*a.shape, b.size(1))
    return (a.as_strided(size, (*a.stride(), 0)) * b.as_strided(size, (0, *b.stride()))).sum(1)


@exercise.mistake
def uses_torchs_products(a, b=None):
    """The values are right, and torch's own product made them. Lay the elements out so that `*` and `sum` are
    all that is left to do: one view for each factor, with a stride for each index of the sum."""
    if b is None:
        return a.trace()
    return a @ b


@uses_torchs_products.variant
def diagonal_and_einsum(a, b=None):
    if b is None:
        return torch.diagonal(a).sum()
    return torch.einsum("ij,j->i" if b.dim() == 1 else "ij,jk->ik", a, b)


@exercise.mistake
def rearranges_otherwise(a, b=None):
    """The idea is right: repeat both factors along the index that they lack, multiply, sum up. Here
    `as_strided` is to do the repeating. What you get from `None` in an index, `unsqueeze`, `expand`, `t` and
    their like is a view too; write down its strides, and the other operator is not needed."""
    if b is None:
        return _diagonal(a).sum()
    if b.dim() == 1:
        return _times_vector(a, b)
    return (a[:, :, None] * b).sum(1)


@rearranges_otherwise.variant
def expands_both(a, b=None):
    if b is None:
        return torch.sum(_diagonal(a))
    column = b if b.dim() == 2 else b.unsqueeze(1)
    m, n, k = *a.shape, column.size(1)
    every = a.unsqueeze(2).expand(m, n, k) * column.expand(m, n, k)
    product = torch.sum(every, dim=1)
    return product if b.dim() == 2 else product.squeeze(1)


@exercise.mistake
def copies_first(a, b=None):
    """You copy a factor before you view it. The strides that it has can be asked for, whatever they are, and
    a view is made of them: no copy is needed."""
    a = a.contiguous()
    if b is None:
        return _diagonal(a).sum()
    b = b.contiguous()
    return _times_vector(a, b) if b.dim() == 1 else _times_matrix(a, b)


@copies_first.variant
def clones_the_left(a, b=None):
    left = a.clone(memory_format=torch.contiguous_format)
    if b is None:
        return torch.sum(left.as_strided((min(left.shape),), (left.size(1) + 1,)))
    if b.dim() == 1:
        return torch.sum(left * b, dim=-1)
    return _times_matrix(left, b)


@exercise.mistake
def sizes_apart(a, b=None):
    """You treat sizes of 0 apart, with an operator that is not one of the three. A view may have sizes of 0
    too, and the sum of nothing is 0: there is nothing to set apart."""
    if a.numel() == 0:
        return torch.zeros(() if b is None else (a.size(0), *b.shape[1:]), dtype=a.dtype, device=a.device)
    if b is None:
        return _diagonal(a).sum()
    return _times_vector(a, b) if b.dim() == 1 else _times_matrix(a, b)


@exercise.mistake
def casts_back(a, b=None):
    """You cast the result to the dtype of `a`. A sum of small integers is int64, so that it has room, and the
    task leaves it so: the cast is one operator more."""
    if b is None:
        return _diagonal(a).sum().to(a.dtype)
    return (_times_vector(a, b) if b.dim() == 1 else _times_matrix(a, b)).to(a.dtype)


@exercise.mistake
def assumes_contiguous(a, b=None):
    """Your strides are computed from the sizes, as if both inputs were contiguous. Views have strides of
    their own: take them from `stride()`."""
    m, n = a.shape
    if b is None:
        return a.as_strided((min(m, n),), (n + 1,)).sum()
    if b.dim() == 1:
        return (a.as_strided((m, n), (n, 1)) * b.as_strided((m, n), (0, 1))).sum(1)
    k = b.size(1)
    return (a.as_strided((m, n, k), (n, 1, 0)) * b.as_strided((m, n, k), (0, k, 1))).sum(1)


@assumes_contiguous.variant
def strides_from_sizes(a, b=None):
    rows, width = a.size()
    if b is None:
        length = width if width < rows else rows
        return torch.as_strided(a, [length], [width + 1]).sum(0)
    left = torch.as_strided(a, [rows, width, 1], [width, 1, 1])
    columns = b.size(1) if b.dim() == 2 else 1
    right = torch.as_strided(b, [1, width, columns], [0, columns, 1])
    product = torch.sum(left * right, 1)
    return product if b.dim() == 2 else torch.as_strided(product, [rows], [1])


@exercise.mistake
def assumes_contiguous_b(a, b=None):
    """You ask `a` for its strides, and compute those of `b` from its sizes, as if it were contiguous. `b` may
    be a view as well: take its strides from `stride()`."""
    if b is None:
        return _diagonal(a).sum()
    if b.dim() == 1:
        return (a * b.as_strided(a.shape, (0, 1))).sum(1)
    size = (*a.shape, b.size(1))
    return (a.as_strided(size, (*a.stride(), 0)) * b.as_strided(size, (0, b.size(1), 1))).sum(1)


@exercise.mistake
def ignores_offset(a, b=None):
    """Your views begin at the first element of the storage. A part of a tensor begins later: at its
    `storage_offset()`, which is what `as_strided` takes when it is given no offset."""
    m, n = a.shape
    s, t = a.stride()
    if b is None:
        return a.as_strided((min(m, n),), (s + t,), 0).sum()
    if b.dim() == 1:
        return (a.as_strided((m, n), (s, t), 0) * b.as_strided((m, n), (0, b.stride(0)), 0)).sum(1)
    size = (m, n, b.size(1))
    return (a.as_strided(size, (s, t, 0), 0) * b.as_strided(size, (0, *b.stride()), 0)).sum(1)


@exercise.mistake
def diagonal_of_a_contiguous_matrix(a, b=None):
    """On the diagonal you step by the width of the matrix and 1. In a contiguous matrix that is one row down
    and one column to the right; in a view these two steps are `a.stride(0)` and `a.stride(1)`."""
    if b is None:
        return a.as_strided((min(a.shape),), (a.size(1) + 1,)).sum()
    return _times_vector(a, b) if b.dim() == 1 else _times_matrix(a, b)


@diagonal_of_a_contiguous_matrix.variant
def width_and_one(a, b=None):
    if b is None:
        length = min(a.size(0), a.size(1))
        return torch.as_strided(a, (length,), (1 + a.shape[1],)).sum()
    if b.dim() == 1:
        return torch.sum(a * b, dim=1)
    left = a.as_strided((*a.size(), 1), (*a.stride(), 0))
    return torch.sum(left * b.as_strided((1, *b.size()), (0, *b.stride())), dim=1)


@exercise.mistake
def diagonal_steps_right_by_one(a, b=None):
    """On the diagonal you go one row down and then 1 further in storage. Where that is not the next column,
    you leave the diagonal: a step to the right is `a.stride(1)`."""
    if b is None:
        return a.as_strided((min(a.shape),), (a.stride(0) + 1,)).sum()
    return _times_vector(a, b) if b.dim() == 1 else _times_matrix(a, b)


@exercise.mistake
def diagonal_runs_out(a, b=None):
    """Your diagonal is as long as the matrix is high. In a tall matrix it ends earlier, with the last column:
    further on lies what does not belong to it, or the end of the storage."""
    if b is None:
        return a.as_strided((a.size(0),), (sum(a.stride()),)).sum()
    return _times_vector(a, b) if b.dim() == 1 else _times_matrix(a, b)


@exercise.mistake
def second_matrix_turned(a, b=None):
    """The strides of `b` stand in the wrong order: along `n` its view has to step from row to row, along `k`
    from column to column. As it is you multiply with the transposed matrix, or leave the storage."""
    if b is None:
        return _diagonal(a).sum()
    if b.dim() == 1:
        return _times_vector(a, b)
    size, (rows, columns) = (*a.shape, b.size(1)), b.stride()
    return (a.as_strided(size, (*a.stride(), 0)) * b.as_strided(size, (0, columns, rows))).sum(1)


@second_matrix_turned.variant
def columns_before_rows(a, b=None):
    if b is None:
        return torch.sum(_diagonal(a))
    m, n = a.size()
    if b.dim() == 1:
        return torch.sum(a * torch.as_strided(b, (m, n), (0, *b.stride())), 1)
    k = b.size(-1)
    left = torch.as_strided(a, (m, n, k), (a.stride(0), a.stride(1), 0))
    right = torch.as_strided(b, (m, n, k), (0,) + tuple(reversed(b.stride())))
    return torch.sum(left * right, 1)


@exercise.mistake
def column_for_a_vector(a, b=None):
    """Your product with a vector has shape (m, 1): the vector is taken for a matrix of one column. It has one
    dimension, so that the sum over `n` leaves only `m`."""
    if b is None:
        return _diagonal(a).sum()
    return _times_matrix(a, b if b.dim() == 2 else b.as_strided((*b.shape, 1), (*b.stride(), 1)))


@exercise.mistake
def sums_over_the_wrong_index(a, b=None):
    """You sum over an index of the result. What disappears in a product is the index that both factors have:
    the columns of `a`, which are the rows of `b`."""
    if b is None:
        return _diagonal(a).sum()
    if b.dim() == 1:
        return (a * b.as_strided(a.shape, (0, b.stride(0)))).sum(0)
    size = (*a.shape, b.size(1))
    return (a.as_strided(size, (*a.stride(), 0)) * b.as_strided(size, (0, *b.stride()))).sum(0)


@exercise.mistake
def adds_up_everything(a, b=None):
    """You sum over all indices and get one number. Only the index that both factors have is summed over; the
    others are those of the result."""
    if b is None:
        return _diagonal(a).sum()
    if b.dim() == 1:
        return (a * b.as_strided(a.shape, (0, b.stride(0)))).sum()
    size = (*a.shape, b.size(1))
    return (a.as_strided(size, (*a.stride(), 0)) * b.as_strided(size, (0, *b.stride()))).sum()


@adds_up_everything.variant
def one_number(a, b=None):
    if b is None:
        return torch.sum(_diagonal(a))
    size = (*a.shape, *b.shape[1:])
    left = torch.as_strided(a, size, a.stride() + (0,) * (b.dim() - 1))
    return torch.sum(left * torch.as_strided(b, size, (0, *b.stride())))


@exercise.mistake
def one_row_at_a_time(a, b=None):
    """You compute the product piece by piece, and the pieces in Python. A stride of 0 lays all of them out at
    once: one `*` and one `sum` do the rest."""
    if b is None:
        return _diagonal(a).sum()
    rows = [
        a.as_strided((a.size(1),), (a.stride(1),), a.storage_offset() + i * a.stride(0))
        for i in range(len(a))
    ]
    if b.dim() == 1:
        sums = [(row * b).sum() for row in rows]
    else:
        size, steps = tuple(b.shape), (rows[0].stride(0) if rows else 0, 0)
        sums = [(row.as_strided(size, steps) * b).sum(0) for row in rows]
    return torch.stack(sums) if sums else a.new_zeros(0, *b.shape[1:])


@one_row_at_a_time.variant
def column_by_column(a, b=None):
    if b is None:
        return sum(
            (a[i, i] for i in range(min(a.shape))), start=torch.zeros((), dtype=a.dtype, device=a.device)
        )
    if b.dim() == 1:
        result = torch.zeros(a.size(0), dtype=a.dtype, device=a.device)
        for j in range(a.size(1)):
            result = result + a[:, j] * b[j]
        return result
    columns = [column_by_column(a, b[:, j]) for j in range(b.size(1))]
    return torch.stack(columns, dim=1) if columns else a.new_zeros(a.size(0), 0)


@exercise.mistake
def leaves_the_graph(a, b=None):
    """The values are right, but autograd does not know where they come from: under `no_grad`, and through
    `.data` or `.detach()`, no graph is made, so no gradient reaches the inputs."""
    with torch.no_grad():
        if b is None:
            return _diagonal(a).sum()
        return _times_vector(a, b) if b.dim() == 1 else _times_matrix(a, b)


@leaves_the_graph.variant
def takes_the_data(a, b=None):
    a = a.data
    if b is None:
        return torch.sum(_diagonal(a))
    return _times_vector(a, b.data) if b.dim() == 1 else _times_matrix(a, b.data)
