"""Matrix products from strides

One function for three products:

- `matmul_by_strides(a)` is the trace of a matrix of shape (m, n), of shape (): the sum of the diagonal, which
  is as long as the shorter side.
- `matmul_by_strides(a, b)` with `b` of shape (n,) is matrix times vector, of shape (m,).
- `matmul_by_strides(a, b)` with `b` of shape (n, k) is the product of the two matrices, of shape (m, k).

Both are floating point, may be views with any strides and offset, and stay as they are.

Use only `as_strided`, however often, one `*` (none for the trace) and one `sum`. `@`, `t()`, `expand`
and `a[:, None]` run others; `shape` and `stride()` run none.

With `a = torch.arange(6.).reshape(2, 3)`, `matmul_by_strides(a)` is `4.`, and `matmul_by_strides(a, a[1])` is
`[14., 50.]`
"""

from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import strides

exercise = Exercise(
    minutes=30,
    hints=[
        "Write each product as a sum over one index: `sum_j a[i, j] * b[j, k]`. For every `(i, j, k)` an "
        "element of `a` meets one of `b`. Which shapes must the two tensors have, so that `*` does this "
        "element by element?",
        "A view has a stride for each index. `a[i, j]` doesn't depend on `k`, so along `k` the view stays "
        "where it is. And for the diagonal `a[i, i]`: how far is it in storage from one element to the next?",
        "Both matrices become views of size `(m, n, k)`. One has the strides of `a` and a 0, the other a 0 "
        "and the strides of `b`. Their product holds all `a[i, j] * b[j, k]`; sum over one dimension. The "
        "vector is the same with one dimension less. A step on the diagonal goes one down and one to the "
        "right, so add both strides.",
    ],
)


@exercise.starter
def matmul_by_strides(a: Tensor, b: Tensor | None = None) -> Tensor:
    """(m, n) -> (); (m, n), (n,) -> (m,); (m, n), (n, k) -> (m, k)"""
    raise NotImplementedError


def _expect_product(t):
    """The product of `a` and `b`, or the trace of `a` alone, against torch's own."""
    wanted, b = (t.a @ t.b, ", b") if hasattr(t, "b") else (t.a.diagonal().sum(), "")
    expect.equal(t.call(f"matmul_by_strides(a{b})"), wanted)


@exercise.check(
    given="a = {}".format,
    cases={f"({m}, {n})": strides.squares(m, n) for m, n in ((3, 3), (4, 2), (2, 5), (1, 3))},
)
def trace(t):
    """The trace, of square, wide and tall matrices

    A step on the diagonal goes one down and one to the right. The diagonal has as many elements as the
    shorter side.
    """
    _expect_product(t)


@exercise.check(
    given="a = {}\nb = torch.arange({}.) + 2".format,
    cases={
        f"({m}, {n}) times ({n},)": (strides.squares(m, n), str(n))
        for m, n in ((2, 3), (4, 2), (3, 3), (1, 4))
    },
)
def matrix_and_vector(t):
    """A matrix times a vector

    Element `i` is the sum over `j` of `a[i, j] * b[j]`. The vector is the same for every `i`, and the sum
    runs over `j`.
    """
    _expect_product(t)


@exercise.check(
    given="a = {}\nb = {}".format,
    cases={
        f"({m}, {n}) times ({n}, {k})": (strides.squares(m, n), strides.squares(n, k))
        for m, n, k in ((2, 3, 4), (4, 2, 3), (3, 3, 3), (3, 2, 1))
    },
)
def two_matrices(t):
    """A matrix times a matrix

    Element `[i, k]` is the sum over `j` of `a[i, j] * b[j, k]`. A factor without an index is the same all
    along it. Both factors need the indices in the same order.
    """
    _expect_product(t)


@exercise.check(
    given=f"a = {strides.squares(3, 4)}\nb = {strides.squares(4, 2)}",
    cases=["a", "a, b[:, 0]", "a, b"],
)
def stay(t, arguments):
    """`a` and `b` stay as they are

    `a *= b`, `mul_` and `out=` write into a tensor that is there, and a view has no memory of its own: the
    caller's matrix is changed. `a * b` makes a new tensor.
    """
    with expect.left_alone(t.a, what="`a`"), expect.left_alone(t.b, what="`b`"):
        t.call(f"matmul_by_strides({arguments})")


# The factors as views of something else.
_VIEWS = {
    "both contiguous": (strides.squares(3, 4), strides.squares(4, 2)),
    "a transposed": (f"{strides.squares(4, 3)}.t()", strides.squares(4, 2)),
    "b transposed": (strides.squares(3, 4), f"{strides.squares(2, 4)}.t()"),
    "steps in a": (f"{strides.squares(6, 8)}[::2, ::2]", strides.squares(4, 2)),
    "steps in b": (strides.squares(3, 4), f"{strides.squares(8, 6)}[::2, ::3]"),
    "a expanded": ("torch.arange(4.).expand(3, 4)", strides.squares(4, 2)),
    "a block of a": (f"{strides.squares(6, 7)}[1:4, 2:6]", strides.squares(4, 2)),
    "float64": (f"{strides.squares(3, 4)}.double()", f"{strides.squares(4, 2)}.double()"),
    "a block of b": (strides.squares(3, 4), f"{strides.squares(6, 5)}[1:5, 2:4]"),
}
_PRODUCTS = {
    "{}: the trace": "a = {}",
    "{}: times a dense column of b": "a = {}\nb = {}[:, 0].clone()",
    "{}: times a column of b": "a = {}\nb = {}[:, 0]",
    "{}: times b": "a = {}\nb = {}",
}


@exercise.check(
    cases={
        label.format(view): code.format(a, b)
        for view, (a, b) in _VIEWS.items()
        for label, code in _PRODUCTS.items()
        if "b" in label.split() or "b" not in view.split()
    }
)
def of_views(t):
    """`a` and `b` may be views of something else, or float64

    Take the strides from `a.stride()` and `b.stride()`: they follow from the sizes only if the tensor is
    contiguous. `as_strided` begins where the tensor begins if you give no offset.
    """
    _expect_product(t)


@exercise.check(
    given="a = torch.arange(15.).reshape(5, 3).t()\nb = torch.arange(20.).reshape(5, 4)[:, ::2]\nv = b[:, 1]",
    cases=[("a", 0), ("a, v", 1), ("a, b", 1)],
)
def only_three_operators(t, arguments, products):
    """Only `as_strided`, one `*` and one `sum` run

    Other functions run operators too: `a[:, None]` runs `unsqueeze`, `t()` runs `t`, `a *= b` runs `mul_`,
    `a[i]` runs `select`. Put all terms side by side in one tensor: one `*` makes them and
    one `sum` adds them.
    """
    with measure.operators() as ran:
        t.call(f"matmul_by_strides({arguments})")
    names = [call.name.split(".")[1] for call in ran.calls]
    for name in names:
        told = f"torch's operator `{name}` ran, perhaps inside another function, expected: none but "
        expect.true(name in ("as_strided", "mul", "sum"), f"{told}`as_strided`, `*` and `sum`")
    for name, called, times in (("mul", "`*`", products), ("sum", "`sum`", 1)):
        found = names.count(name)
        expect.true(found == times, f"the number of times that {called} ran is {found}, expected {times}")
