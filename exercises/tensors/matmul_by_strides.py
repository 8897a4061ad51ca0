"""Matrix products from strides

One function for three products:

- `matmul_by_strides(a)` is the trace of a matrix of shape (m, n): the sum of its diagonal, which ends where
  the shorter side ends, of shape ().
- `matmul_by_strides(a, b)` with `b` of shape (n,) is the matrix times the vector, of shape (m,).
- `matmul_by_strides(a, b)` with `b` of shape (n, k) is the product of the two matrices, of shape (m, k).

Both may be views, with any strides and offset.

Only these operators may run: `as_strided`, as often as you like, one `*` (none in the trace) and one `sum`.
No `@`, `t()`, `expand` or `a[:, None]`; asking for `shape` and `stride()` runs no operator.

With `a = torch.arange(6.).reshape(2, 3)`, `matmul_by_strides(a)` is `4.`, and `matmul_by_strides(a, a[1])` is
`[14., 50.]`
"""

from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect

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


def _expect_product(matmul_by_strides, a, b=None):
    """The product of these expressions, or the trace, against torch's own."""
    setup = f"a = {a}" if b is None else f"a = {a}\nb = {b}"
    t = expect.given(setup, matmul_by_strides=matmul_by_strides)
    wanted = t.a.diagonal().sum() if b is None else t.a @ t.b
    expect.equal(t.call("matmul_by_strides(a)" if b is None else "matmul_by_strides(a, b)"), wanted)


def _matrix(m, n):
    return f"torch.arange({m * n}.).reshape({m}, {n}) + 1"


@exercise.check
def trace(matmul_by_strides):
    """The trace, of square, wide and tall matrices

    A step on the diagonal goes one down and one to the right at once. There are as many elements on it as
    the shorter side has.
    """
    with Rows() as rows:
        for m, n in ((3, 3), (4, 2), (2, 5), (1, 3)):
            with rows.of(f"({m}, {n})"):
                _expect_product(matmul_by_strides, _matrix(m, n))


@exercise.check
def matrix_and_vector(matmul_by_strides):
    """A matrix times a vector

    Element `i` is the sum over `j` of `a[i, j] * b[j]`. The vector is the same for every `i`, and `j` is the
    index that is summed away.
    """
    with Rows() as rows:
        for m, n in ((2, 3), (4, 2), (3, 3), (1, 4)):
            with rows.of(f"({m}, {n}) times ({n},)"):
                _expect_product(matmul_by_strides, _matrix(m, n), f"torch.arange({n}.) + 2")


@exercise.check
def two_matrices(matmul_by_strides):
    """A matrix times a matrix

    Element `[i, k]` is the sum over `j` of `a[i, j] * b[j, k]`. A factor that lacks an index is the same all
    along it, and the order of the indices in both has to be one.
    """
    with Rows() as rows:
        for m, n, k in ((2, 3, 4), (4, 2, 3), (3, 3, 3), (3, 2, 1)):
            with rows.of(f"({m}, {n}) times ({n}, {k})"):
                _expect_product(matmul_by_strides, _matrix(m, n), _matrix(n, k))


# The factors as views of something else.
_VIEWS = {
    "a transposed": ("torch.arange(12.).reshape(4, 3).t()", _matrix(4, 2)),
    "b transposed": (_matrix(3, 4), "torch.arange(8.).reshape(2, 4).t()"),
    "steps in a": ("torch.arange(48.).reshape(6, 8)[::2, ::2]", _matrix(4, 2)),
    "steps in b": (_matrix(3, 4), "torch.arange(48.).reshape(8, 6)[::2, ::3]"),
    "a expanded": ("torch.arange(4.).expand(3, 4)", _matrix(4, 2)),
    "a block of a": ("torch.arange(42.).reshape(6, 7)[1:4, 2:6]", _matrix(4, 2)),
    "a block of b": (_matrix(3, 4), "torch.arange(30.).reshape(6, 5)[1:5, 2:4]"),
}


@exercise.check
def of_views(matmul_by_strides):
    """`a` and `b` may be views of something else

    Every stride is made of those that the tensor has, `a.stride()` and `b.stride()`: they are those of its
    size only where it is contiguous. Where it begins, `as_strided` begins too if no offset is given.
    """
    with Rows() as rows:
        for label, (a, b) in _VIEWS.items():
            with rows.of(label):
                if "b" not in label.split():
                    _expect_product(matmul_by_strides, a)
                _expect_product(matmul_by_strides, a, f"({b})[:, 0]")
                _expect_product(matmul_by_strides, a, b)


@exercise.check
def only_three_operators(matmul_by_strides):
    """Only `as_strided`, one `*` and one `sum` run

    Torch's other functions are made of operators too: `a[:, None]` is an `unsqueeze`, `t()` a `t`, a loop
    over rows a `select` each time round. All terms can stand side by side in one tensor; then one `*` makes
    them, and one `sum` adds them up.
    """
    setup = (
        "a = torch.arange(15.).reshape(5, 3).t()\nb = torch.arange(20.).reshape(5, 4)[:, ::2]\nv = b[:, 1]"
    )
    for arguments, products in (("a", 0), ("a, v", 1), ("a, b", 1)):
        t = expect.given(setup, matmul_by_strides=matmul_by_strides)
        with measure.operators() as ran:
            t.call(f"matmul_by_strides({arguments})")
        names = [call.name.split(".")[1] for call in ran.calls]
        for name in names:
            expect.true(
                name in ("as_strided", "mul", "sum"),
                f"torch's operator `{name}` ran, perhaps inside another function",
                "expected: none but `as_strided`, `*` and `sum`",
            )
        for name, called, times in (("mul", "`*`", products), ("sum", "`sum`", 1)):
            found = names.count(name)
            expect.true(found == times, f"the number of times that {called} ran is {found}, expected {times}")
