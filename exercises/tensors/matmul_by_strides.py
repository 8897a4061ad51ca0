"""Matrix products from strides

One function for three products, made of `as_strided`, `*` and `sum` alone:

- `matmul_by_strides(a)` is the trace of a matrix of shape (m, n): the sum of its diagonal, which ends where
  the shorter side ends. It is a tensor without dimensions.
- `matmul_by_strides(a, b)` with `b` of shape (n,) is the matrix times the vector, of shape (m,).
- `matmul_by_strides(a, b)` with `b` of shape (n, k) is the product of the two matrices, of shape (m, k).

`a` and `b` have one dtype and may be views of something else, with any strides and offset; sizes may be 0.
They stay as they are, and a gradient reaches them. The dtype of the result is the one that `sum` gives when
it is not told one, so integers need no cast. No other operator of torch's may run, so `@`, `trace`, `expand`,
`t()`, `a[:, None]` and `clone` are out; asking for `shape` and `stride()` runs none. `*` broadcasts as usual.
One `*` and one `sum` are enough for each product, so there may be no more, whatever the sizes. The method and
the function of torch's namespace are the same operator: `a.sum(1)` and `torch.sum(a, 1)`.

With `a = torch.arange(6.).reshape(2, 3)`, `matmul_by_strides(a)` is `4.`, and `matmul_by_strides(a, a[1])` is
`[14., 50.]`
"""

import re

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


def _wanted(a, b):
    """By element, or by torch's own product. Integers are summed up as int64."""
    if not (a.is_floating_point() or a.is_complex()):
        a, b = a.long(), None if b is None else b.long()
    return _trace(a) if b is None else torch.matmul(a, b)


def _code(a, b):
    return f"matmul_by_strides({a})" if b is None else f"matmul_by_strides({a}, {b})"


# What torch says of a view that is too long, and of a write to a view that repeats an element.
_TOO_LONG = re.compile(
    r"sizes \[(.*)\], strides \[(.*)\], storage offset (\d+), and itemsize (\d+) .* storage of size (\d+)"
)
_REPEATED = "more than one element of the written-to tensor refers to a single memory location"


def _called(t, code):
    """What the answer returns. Of a view that torch refuses, the order of dimensions is no evidence."""
    try:
        return t.call(code)
    except RuntimeError as error:
        if found := _TOO_LONG.search(str(error)):
            evidence.record("refused", "too long")
            size, stride, offset, width, nbytes = found.groups()
            raise expect.Mismatch(
                f"torch refuses a view of size ({size}) with strides ({stride}) that begins at {offset}: it "
                f"leaves the storage, which holds {int(nbytes) // int(width)} elements",
            ) from None
        if _REPEATED in str(error):
            evidence.record("refused", "repeated")
            raise expect.Mismatch(
                "you write into a view that has one element of the storage in several places, and torch "
                "refuses to",
                "expected: the products go into a tensor of their own, which `*` makes",
            ) from None
        raise


def _expect_product(matmul_by_strides, setup, a="a", b="b"):
    """The product, or the trace where `b` is None; beside a first difference stand strides and offsets."""
    t = expect.given(setup, matmul_by_strides=matmul_by_strides)
    x = t.call(a)
    y = None if b is None else t.call(b)
    wanted = _wanted(x, y)
    inputs = [(code, z, z.stride(), z.storage_offset()) for code, z in ((a, x), (b, y)) if z is not None]
    try:
        expect.equal(_called(t, _code(a, b)), wanted)
    except expect.Mismatch as found:
        found.lines.append(", ".join(f"`{code}.stride()` is {stride}" for code, _, stride, _ in inputs))
        if any(offset for *_, offset in inputs):
            offsets = (f"`{code}.storage_offset()` is {offset}" for code, *_, offset in inputs)
            found.lines.append(", ".join(offsets))
        raise
    return t


def _expect_all(expect_one, *products):
    """`products`: the cases of each. Every product is followed to its first difference, so that what is wrong
    in one of them does not hide another; the first difference of all is shown."""
    first = None
    for cases in products:
        try:
            for case in cases:
                expect_one(*case)
        except expect.Mismatch as found:
            first = first or found
        except Exception as error:
            if first is None:
                raise
            evidence.record("raised later", type(error).__name__)
    if first is not None:
        raise first


def _expect_products(matmul_by_strides, setup, *products):
    def expect_one(*case):
        # A case may bring a setup of its own.
        _expect_product(matmul_by_strides, *(case if len(case) == 3 else (setup, *case)))

    _expect_all(expect_one, *products)


# What the checks of operators and gradients call the answer with.
_FACTORS = "x = torch.arange(15.).reshape(5, 3)\ny = (torch.arange(10.) + 1).reshape(5, 2)"
_VIEWS = "a, b, v = x.t(), y, y[:, 1]"
_ORDINARY = f"{_FACTORS}\n{_VIEWS}"
_GRADIENT = f"{_FACTORS}\nx, y = x.requires_grad_(), y.requires_grad_()\n{_VIEWS}"
_CALLS = (("a", None), ("a", "v"), ("a", "b"))


@exercise.check
def trace(matmul_by_strides):
    """The trace, of square, wide and tall matrices"""
    for m, n in ((3, 3), (4, 2), (2, 5), (1, 3), (1, 1)):
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


# In the next two checks, the first case of each product with `b` has a `b` like a new tensor: what is wrong
# with `a` alone shows there, whatever is wrong with `b` besides.
@exercise.check
def any_strides(matmul_by_strides):
    """Transposed, stepped and expanded inputs"""
    setup = "a = torch.arange(24.).reshape(6, 4)\nb = torch.arange(60.).reshape(6, 10)"
    ordinary = [(_ORDINARY, *call) for call in _CALLS]
    traces = ["a.t()", "a[::2, ::3]", "a.t()[::2]", "b[:, ::3]", "a[1:2, 1:2].expand(3, 3)"]
    vectors = [
        ("a.t()", "b[0, :6]"),
        ("a.t()", "b[:, 0]"),
        ("a[:, ::2]", "b[0, ::6]"),
        ("b.t()", "a[:1, 0].expand(6)"),
    ]
    matrices = [
        ("a.t()", "b"),
        ("b.t()", "a"),
        ("a[::3]", "b[::2, ::2].t()[:4]"),
        ("a[:1].expand(5, 4)", "a.t()"),
    ]
    with_ordinary = (
        [*cases, last]
        for cases, last in zip(([(code, None) for code in traces], vectors, matrices), ordinary, strict=True)
    )
    _expect_products(matmul_by_strides, setup, *with_ordinary)


@exercise.check
def part_of_a_storage(matmul_by_strides):
    """Inputs that begin inside their storage, or end before it does"""
    setup = "a = torch.arange(30.).reshape(5, 6)\nb = torch.arange(6.).reshape(3, 2) + 1"
    setup += "\nv = torch.arange(4.) + 1"
    large = "a = torch.arange(100.).reshape(10, 10)"
    _expect_products(
        matmul_by_strides,
        setup,
        [("a[1:, 2:]", None), (large, "a[:2]", None), (large, "a[:, :2]", None)],
        [("a[1:4, 2:]", "v"), ("a[1:4, 2:]", "a[4, 2:]")],
        [("a[2:, 1:4]", "b"), ("a[2:, 1:4]", "a[1:4, :2]"), ("a[:3, :2]", "a[3:, 4:]")],
    )


@exercise.check
def sizes_of_zero(matmul_by_strides):
    """Sizes of 0: a sum of nothing is 0"""
    setup = "a = torch.zeros(0, 3)\nb = torch.ones(3, 2)"
    _expect_products(
        matmul_by_strides,
        setup,
        [("a", None)],
        [("a.t()", "a[:, 0]"), ("a", "b[:, 0]")],
        [("a.t()", "a"), ("a", "b"), ("b", "a[:, :2].t()")],
    )


@exercise.check
def any_dtype(matmul_by_strides, device):
    """Other dtypes and every device, and the inputs stay what they were"""
    # Torch's own product, which is the oracle, is there for all of them on the CPU only.
    dtypes = [torch.float32]
    if device.type == "cpu":
        dtypes = [torch.float64, torch.int64, torch.complex64, torch.int32, torch.uint8]
    # The products fit into 8 bits, and their sums do not.
    made = {"a": [[200, 100, 3], [4, 150, 5]], "b": [[1, 0], [1, 1], [2, 1]], "v": [1, 1, 2]}

    def expect_one(dtype, b):
        lines = [
            f"{x} = torch.tensor({made[x]}, dtype={dtype}, device='{device.type}')" for x in ("a", b) if x
        ]
        t = _expect_product(matmul_by_strides, "\n".join(lines), "a", b)
        for name in ("a", b):
            if name:
                before = torch.tensor(made[name], dtype=dtype, device=device)
                expect.unchanged(getattr(t, name), before, what=f"`{name}`")
                expect.strides(getattr(t, name), before.stride(), what=f"`{name}`, after the call,")

    _expect_all(expect_one, *([(dtype, b) for dtype in dtypes] for b in (None, "v", "b")))


# What multiplies by itself.
_PRODUCTS = {
    "trace",
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
# What the others do. One that is not here stands for itself.
_KINDS = {
    name: kind
    for kind, names in {
        "view": "unsqueeze squeeze expand t transpose permute view _unsafe_view select slice unbind split "
        "alias diagonal unfold",
        "copy": "clone copy_ repeat cat stack diagonal_copy",
        "cast": "_to_copy",
        "make": "zeros new_zeros zeros_like empty new_empty empty_like lift_fresh",
        "add": "add add_",
    }.items()
    for name in names.split()
}

# What is watched: each product as usual, on views; with sizes that invite a way of their own; of integers;
# of what requires a gradient.
_SIZES = [
    (
        "size 1" if min(m, n, k) else "size 0",
        f"a = torch.ones({n}, {m}).t()\nb = torch.ones({n}, {k})\nv = torch.ones({n})",
    )
    for m, n, k in ((3, 0, 2), (0, 3, 2), (3, 2, 0), (3, 1, 2), (1, 3, 2), (3, 4, 1), (1, 1, 1))
]
_INTEGERS = """a = torch.arange(15, dtype=torch.int32).reshape(5, 3).t()
b = torch.arange(10, dtype=torch.int32).reshape(5, 2)
v = b[:, 0]"""
_WATCHED = [("ordinary", _ORDINARY), *_SIZES, ("integers", _INTEGERS), ("gradient", _GRADIENT)]


def _raises(matmul_by_strides, setup, code):
    """Whether the answer raises there, with nobody watching."""
    try:
        expect.given(setup, matmul_by_strides=matmul_by_strides).call(code)
    except Exception:
        return True
    return False


def _ran(matmul_by_strides):
    """(group, setup, what was called, the operators that ran) for each product that is watched, and the calls
    that raise. They are no fault of an operator's: the checks of the values call with such inputs too."""
    found, raised = [], {"ordinary": [], "gradient": [], "integers": [], "size 1": [], "size 0": []}
    for group, setup in _WATCHED:
        t = expect.given(setup, matmul_by_strides=matmul_by_strides)
        for code in (_code(*call) for call in _CALLS):
            try:
                with measure.operators() as ran:
                    t.call(code)
            except Exception:
                if not _raises(matmul_by_strides, setup, code):
                    raise
                raised[group].append(code)
            calls = [(call.name.split(".")[1], call.written) for call in ran.calls]
            found.append((group, setup, code, calls))
    # A product that raises for ordinary factors is not judged by what it does with others.
    found = [one for one in found if one[2] not in raised["ordinary"]]
    # One that raises for sizes of 0 alone can be judged by the others.
    some = [code for group, codes in raised.items() if group != "size 0" for code in codes]
    evidence.record("raises", sorted(set(some)))
    return found, some


def _refuse(faults, raised):
    """`faults`: (group, setup, code, what ran, what was expected); the first is shown. The groups are
    evidence."""
    evidence.record("groups", sorted({group for group, *_ in faults}))
    code = [line for _, setup, called, *_ in faults[:1] for line in (*setup.splitlines(), called)]
    with expect.situation(*code):
        expect.true(not faults, *(line for _, _, _, *lines in faults[:1] for line in lines))
    if raised:
        raise expect.CannotCheck(f"it raises for `{raised[0]}`: not all that would run is known")


def _operators(ran, unwanted):
    """(group, setup, code, names) wherever an operator ran of which `unwanted` says so."""
    found = [(*where, sorted({name for name, _ in calls if unwanted(name)})) for *where, calls in ran]
    return [one for one in found if one[-1]]


def _told(found, wanted):
    some = "torch's {} ran, perhaps inside another function"
    return [
        (*where, some.format(", ".join(f"`{name}`" for name in names)), wanted) for *where, names in found
    ]


def _counts(ran):
    """(group, setup, code, name, how often) of `*` and `sum`."""
    return [
        (*where, name, sum(name == other for other, _ in calls))
        for *where, calls in ran
        for name in ("mul", "sum")
    ]


def _copied(ran):
    """What is copied in the ordinary products: factors, what was made of them, results. Of a vector that is
    repeated the bytes are those of the matrix, so that it tells nothing."""
    found = set()
    for group, _, code, calls in ran:
        if group != "ordinary" or code == _code("a", "v"):
            continue
        before = set()
        for name, written in calls:
            if _KINDS.get(name) == "copy" and "sum" in before:
                found.add("result")
            elif _KINDS.get(name) == "copy":
                # The bytes of `x` and `y`.
                found.add("factor" if written in (60, 40) and "mul" not in before else "on the way")
            before.add(name)
    return sorted(found)


@exercise.check
def no_product_of_torchs(matmul_by_strides):
    """None of torch's own products runs"""
    ran, raised = _ran(matmul_by_strides)
    found = _operators(ran, lambda name: name in _PRODUCTS)
    evidence.record("the trace alone", all(code == _code("a", None) for _, _, code, _ in found))
    _refuse(_told(found, "expected: the values are made by `as_strided`, `*` and `sum`"), raised)


@exercise.check
def only_three_operators(matmul_by_strides):
    """Nothing but `as_strided`, `*` and `sum` runs"""
    ran, raised = _ran(matmul_by_strides)
    found = _operators(ran, lambda name: name not in _ALLOWED)
    every = {name for *_, names in found for name in names}
    kinds = {_KINDS.get(name, name) for name in every}
    evidence.record("adds", "add" in kinds)
    # Where the products themselves are made in another way, what else runs is a matter of style.
    if not every & _PRODUCTS and all(number <= 1 for *_, number in _counts(ran)):
        evidence.record("kinds", sorted(kinds))
        evidence.record("copied", _copied(ran))
    _refuse(_told(found, "expected: `as_strided`, `*` and `sum` alone"), raised)


@exercise.check
def one_of_each(matmul_by_strides):
    """At most one `*` and one `sum` for each product"""
    ran, raised = _ran(matmul_by_strides)
    wanted = "expected: once, on tensors that hold all that is multiplied or summed up"
    faults = [(*where, f"`{name}` ran {n} times", wanted) for *where, name, n in _counts(ran) if n > 1]
    _refuse(faults, raised)


def _is_right(matmul_by_strides, a, b):
    """Whether the values are right for the same factors, where they require no gradient."""
    with evidence.silent():
        try:
            _expect_product(matmul_by_strides, _ORDINARY, a, b)
        except Exception:
            return False
    return True


@exercise.check
def gradients(matmul_by_strides):
    """A gradient reaches both inputs"""

    def expect_one(a, b):
        t = expect.given(_GRADIENT, matmul_by_strides=matmul_by_strides)
        wanted = _trace(t.a) if b is None else t.call(a) @ t.call(b)
        weights = torch.arange(1.0, wanted.numel() + 1).reshape(wanted.shape)
        grads = torch.autograd.grad(wanted, (t.x, t.y), weights, allow_unused=True)
        result = t.call(_code(a, b))
        expect.equal(result, wanted.detach())
        expect.in_graph(result, of="the inputs")
        result.backward(weights)
        for name, x, grad in (("x", t.x, grads[0]), ("y", t.y, grads[1])):
            if grad is not None:
                expect.true(x.grad is not None, f"no gradient reaches `{name}`", "expected: one does")
                expect.equal(x.grad, grad, what=f"`{name}.grad`")

    # What is wrong without a gradient is told by the checks of the values.
    right = [_is_right(matmul_by_strides, *call) for call in _CALLS]
    evidence.record("right without a gradient", right)
    _expect_all(expect_one, *([call] for call, well in zip(_CALLS, right, strict=True) if well))
    if not all(right):
        code = _code(*_CALLS[right.index(False)])
        raise expect.CannotCheck(f"the values come first: `{code}` is not right yet")


# --- the mistakes -----------------------------------------------------------------------------------------


def _diagonal(a):
    return a.as_strided((min(a.shape),), (sum(a.stride()),))


def _times_vector(a, b):
    return (a * b.as_strided(a.shape, (0, b.stride(0)))).sum(1)


def _terms(a, b, of_a=None, of_b=None):
    """All `a[i, j] * b[j, k]`; `of_a` and `of_b` are strides in place of the right ones."""
    size = (*a.shape, b.size(1))
    return a.as_strided(size, of_a or (*a.stride(), 0)) * b.as_strided(size, of_b or (0, *b.stride()))


def _times_matrix(a, b):
    return _terms(a, b).sum(1)


def _right(a, b=None):
    if b is None:
        return _diagonal(a).sum()
    return _times_vector(a, b) if b.dim() == 1 else _times_matrix(a, b)


def _is_vector(b):
    return b is not None and b.dim() == 1


def _is_matrix(b):
    return b is not None and b.dim() == 2


@exercise.mistake
def uses_torchs_products(a, b=None):
    """Torch's own product made the values, or some of them. Lay the elements out so that `*` and `sum` are
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
def uses_torchs_trace(a, b=None):
    """Both products are your own, and for the trace torch's `trace` walks the diagonal. A view with one
    dimension can hold the diagonal, if its stride is right; `sum` does the rest."""
    return a.trace() if b is None else _right(a, b)


@exercise.mistake
def uses_torchs_matrix_product(a, b=None):
    """The product of two matrices is torch's own. With a stride of 0 in each of them both can have all three
    indices, and then it is made like that with a vector: one `*`, and one `sum` over the index that both
    factors have."""
    return a @ b if _is_matrix(b) else _right(a, b)


@exercise.mistake
def uses_torchs_vector_product(a, b=None):
    """The product with a vector is torch's own. It is made like that of two matrices, with one dimension
    less: one `*`, and one `sum` over the index that both factors have."""
    return a @ b if _is_vector(b) else _right(a, b)


@exercise.mistake
def rearranges_otherwise(a, b=None):
    """The values are right, and what else ran makes views: `None` in an index, `unsqueeze`, `squeeze`,
    `expand`, `t`, `diagonal` and their like. `as_strided` makes every one of these views too: write down its
    size and its strides, and the other operator is not needed."""
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
def copies_on_the_way(a, b=None):
    """Between the factors and the sum you copy: a view, or the product. `*` and `sum` read tensors with any
    strides, and what `*` returns is a new tensor already: no copy is needed."""
    if b is None:
        return _diagonal(a).clone().sum()
    if b.dim() == 1:
        return (a * b.as_strided(a.shape, (0, b.stride(0))).clone()).sum(1)
    size = (*a.shape, b.size(1))
    left, right = a.as_strided(size, (*a.stride(), 0)), b.as_strided(size, (0, *b.stride()))
    return (left.clone() * right.clone()).sum(1)


@copies_on_the_way.variant
def contiguous_products(a, b=None):
    if b is None:
        return torch.sum(_diagonal(a).contiguous())
    if b.dim() == 1:
        return torch.sum((a * b).contiguous(), 1)
    (m, n), (s, t), (p, q) = a.shape, a.stride(), b.stride()
    size = (m, b.size(1), n)
    return torch.sum((a.as_strided(size, (s, 0, t)) * b.as_strided(size, (0, q, p))).contiguous(), 2)


@exercise.mistake
def repeats_by_copying(a, b=None):
    """Besides other views, copies are made on the way to the sum; `repeat` is one of those that copy what
    they repeat. A stride of 0 repeats without a copy: `*` reads the elements where they are."""
    if not _is_matrix(b):
        return _right(a, b)
    return (a.unsqueeze(2).repeat(1, 1, b.size(1)) * b.unsqueeze(0).repeat(a.size(0), 1, 1)).sum(1)


@exercise.mistake
def copies_the_result(a, b=None):
    """You copy the result. `sum` returns a new tensor already, which shares nothing with `a` and `b`."""
    return _right(a, b).clone()


@exercise.mistake
def sizes_apart(a, b=None):
    """You treat sizes of 0 apart, with an operator that is not one of the three. A view may have sizes of 0
    too, and the sum of nothing is 0: there is nothing to set apart."""
    if a.numel() == 0:
        return torch.zeros(() if b is None else (a.size(0), *b.shape[1:]), dtype=a.dtype, device=a.device)
    return _right(a, b)


@exercise.mistake
def casts_back(a, b=None):
    """You cast the result to the dtype of `a`. A sum of small integers is int64, so that it has room, and the
    task leaves it so: the cast is one operator more."""
    return _right(a, b).to(a.dtype)


@exercise.mistake
def sums_in_the_dtype_of_a(a, b=None):
    """Your sums keep the dtype of `a`. A sum of small integers is int64, so that it has room: `sum` gives it
    that dtype when it is not told another."""
    if b is None:
        return _diagonal(a).sum(dtype=a.dtype)
    if b.dim() == 1:
        return (a * b).sum(1, dtype=a.dtype)
    return _terms(a, b).sum(1, dtype=a.dtype)


@exercise.mistake
def casts_to_float(a, b=None):
    """You cast to float32, the factors or the results. `*` and `sum` take every dtype as it is; a cast to
    float32 loses digits of float64 and of large integers."""
    return _right(a.float(), None if b is None else b.float())


@exercise.mistake
def assumes_contiguous(a, b=None):
    """Your strides are computed from the sizes, as if `a` were contiguous. Views have strides of their own:
    take them from `stride()`, and those of `b` too."""
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
    if b.dim() == 1:
        left = torch.as_strided(left, [rows, width], [width, 1])
        return torch.sum(left * b, 1)
    return torch.sum(left * b, 1)


@exercise.mistake
def assumes_contiguous_but_for_the_vector(a, b=None):
    """With a vector you take `a` as it is. For the trace and the product of two matrices the strides are
    computed from the sizes, as if `a` were contiguous: take them from `stride()` there as well, and those of
    `b` too."""
    m, n = a.shape
    if b is None:
        return a.as_strided((min(m, n),), (n + 1,)).sum()
    if b.dim() == 1:
        return (a * b).sum(1)
    return _terms(a, b, (n, 1, 0), (0, b.size(1), 1)).sum(1)


@assumes_contiguous_but_for_the_vector.variant
def contiguous_left(a, b=None):
    if b is None:
        return torch.sum(a.as_strided((min(a.size(0), a.size(1)),), (1 + a.size(1),)))
    if b.dim() == 1:
        return torch.sum(a * b, dim=-1)
    return torch.sum(torch.as_strided(a, (*a.size(), 1), (a.size(1), 1, 0)) * b, 1)


@exercise.mistake
def assumes_contiguous_matrices(a, b=None):
    """In the product of two matrices the strides are computed from the sizes, as if `a` were contiguous. It
    may be a view there as well: take them from `stride()`, and those of `b` too."""
    if not _is_matrix(b):
        return _right(a, b)
    return _terms(a, b, (a.size(1), 1, 0)).sum(1)


@exercise.mistake
def assumes_contiguous_b(a, b=None):
    """You ask `a` for its strides, and compute those of `b` from its sizes, as if it were contiguous. `b` may
    be a view as well: take its strides from `stride()`."""
    if b is None:
        return _diagonal(a).sum()
    if b.dim() == 1:
        return (a * b.as_strided(a.shape, (0, 1))).sum(1)
    return _terms(a, b, None, (0, b.size(1), 1)).sum(1)


@exercise.mistake
def assumes_contiguous_vector(a, b=None):
    """Your view of the vector steps by 1 in storage. A vector may be a view as well, such as a column of a
    matrix: its step is `b.stride(0)`."""
    if _is_vector(b):
        return (a * b.as_strided(a.shape, (0, 1))).sum(1)
    return _right(a, b)


@exercise.mistake
def assumes_contiguous_second_matrix(a, b=None):
    """In the product of two matrices you compute the strides of `b` from its sizes, as if it were contiguous.
    It may be a view as well: take them from `stride()`."""
    if _is_matrix(b):
        return _terms(a, b, a.stride() + (0,), (0, b.size(1), 1)).sum(1)
    return _right(a, b)


@exercise.mistake
def ignores_offset(a, b=None):
    """Your views of `a` begin at the first element of the storage. A part of a tensor begins later: at its
    `storage_offset()`, which is what `as_strided` takes when it is given no offset. The same goes for `b`."""
    m, n = a.shape
    s, t = a.stride()
    if b is None:
        return a.as_strided((min(m, n),), (s + t,), 0).sum()
    if b.dim() == 1:
        return (a.as_strided((m, n), (s, t), 0) * b.as_strided((m, n), (0, b.stride(0)), 0)).sum(1)
    size = (m, n, b.size(1))
    return (a.as_strided(size, (s, t, 0), 0) * b.as_strided(size, (0, *b.stride()), 0)).sum(1)


@exercise.mistake
def ignores_offset_but_for_the_vector(a, b=None):
    """For the trace and the product of two matrices your view of `a` begins at the first element of the
    storage. A part of a tensor begins later: at its `storage_offset()`, which is what `as_strided` takes when
    it is given no offset. The same goes for `b`."""
    if _is_vector(b):
        return (a * b).sum(1)
    if b is None:
        return a.as_strided((min(a.shape),), (sum(a.stride()),), 0).sum()
    size = (*a.shape, b.size(1))
    return (a.as_strided(size, (*a.stride(), 0), 0) * b.as_strided(size, (0, *b.stride()), 0)).sum(1)


@exercise.mistake
def ignores_offset_of_the_diagonal(a, b=None):
    """Your diagonal begins at the first element of the storage. That of a part of a tensor begins later: at
    its `storage_offset()`, which is what `as_strided` takes when it is given no offset."""
    if b is None:
        return a.as_strided((min(a.shape),), (sum(a.stride()),), 0).sum()
    return _right(a, b)


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
    return _right(a, b)


@exercise.mistake
def diagonal_steps_down(a, b=None):
    """Your diagonal steps by `a.stride(0)`: one row down, in the same column. That is the first column. A
    step on the diagonal goes to the right as well."""
    if b is None:
        return a.as_strided((min(a.shape),), (a.stride(0),)).sum()
    return _right(a, b)


@exercise.mistake
def diagonal_steps_by_the_width(a, b=None):
    """Your diagonal steps by the width of the matrix. In a contiguous one that is one row down, in the same
    column; a step on the diagonal goes to the right as well, and how far both are in storage is for
    `stride()` to tell."""
    if b is None:
        return a.as_strided((min(a.shape),), (a.size(1),)).sum()
    return _right(a, b)


@exercise.mistake
def sums_all_of_the_matrix(a, b=None):
    """Your trace is the sum of all elements. It is to be the sum of the diagonal alone, for which you need a
    view with one dimension that reads no other elements."""
    return a.sum() if b is None else _right(a, b)


@exercise.mistake
def diagonal_runs_out(a, b=None):
    """Your diagonal is as long as the matrix is high. In a tall matrix it ends earlier, with the last column:
    further on lies what does not belong to it, or the end of the storage."""
    if b is None:
        return a.as_strided((a.size(0),), (sum(a.stride()),)).sum()
    return _right(a, b)


@exercise.mistake
def diagonal_runs_out_below(a, b=None):
    """Your diagonal is as long as the matrix is wide. In a wide matrix it ends earlier, with the last row:
    further on lies what does not belong to it, or the end of the storage."""
    if b is None:
        return a.as_strided((a.size(1),), (sum(a.stride()),)).sum()
    return _right(a, b)


@exercise.mistake
def diagonal_as_long_as_the_longer_side(a, b=None):
    """Your diagonal goes on after the shorter side of the matrix has ended. What lies further on does not
    belong to it, or is the end of the storage."""
    if b is None:
        return a.as_strided((max(a.shape),), (sum(a.stride()),)).sum()
    return _right(a, b)


@exercise.mistake
def second_matrix_turned(a, b=None):
    """The strides of `b` stand in the wrong order: along `n` its view has to step from row to row, along `k`
    from column to column. As it is you multiply with the transposed matrix, or leave the storage."""
    if not _is_matrix(b):
        return _right(a, b)
    rows, columns = b.stride()
    return _terms(a, b, None, (0, columns, rows)).sum(1)


@second_matrix_turned.variant
def columns_before_rows(a, b=None):
    if b is None:
        return torch.sum(_diagonal(a))
    m, n = a.size()
    if b.dim() == 1:
        return torch.sum(a * torch.as_strided(b, (m, n), (0, *b.stride())), 1)
    k = b.size(-1)
    left = torch.as_strided(a, (m, k, n), (a.stride(0), 0, a.stride(1)))
    return torch.sum(left * torch.as_strided(b, (m, k, n), (0, *b.stride())), 2)


@exercise.mistake
def first_matrix_moved_back(a, b=None):
    """In the product of two matrices the 0 among the strides of `a` stands first, so that its view is the
    same for all rows of the result. The index that `a` lacks is the column of the result: the 0 belongs
    there, and the rows step by `a.stride(0)`."""
    if _is_matrix(b):
        return _terms(a, b, (0, *a.stride())).sum(1)
    return _right(a, b)


@exercise.mistake
def vector_laid_downwards(a, b=None):
    """Your view of the vector steps from row to row and is the same along each row. The vector belongs to the
    columns of `a`: its stride stands second, and the 0 first."""
    if _is_vector(b):
        return (a * b.as_strided(a.shape, (b.stride(0), 0))).sum(1)
    return _right(a, b)


@exercise.mistake
def column_for_a_vector(a, b=None):
    """Your product with a vector has shape (m, 1), as with a matrix of one column. A vector has one
    dimension: summed over `n`, only `m` is left, and no dimension of size 1 is kept or added."""
    if b is None:
        return _diagonal(a).sum()
    return _times_matrix(a, b if b.dim() == 2 else b.as_strided((*b.shape, 1), (*b.stride(), 1)))


@exercise.mistake
def keeps_the_summed_dimension(a, b=None):
    """Your results keep the dimension that was summed over, with size 1. `sum` leaves it out when it is not
    told to keep it: the results have shape (), (m,) and (m, k)."""
    if b is None:
        return _diagonal(a).sum(0, keepdim=True)
    if b.dim() == 1:
        return (a * b).sum(1, keepdim=True)
    return _terms(a, b).sum(1, keepdim=True)


@exercise.mistake
def trace_with_a_dimension(a, b=None):
    """Your trace has shape (1,). It is to be a tensor without dimensions, of shape (): that is what `sum`
    makes of a view with one dimension when it keeps none."""
    return _diagonal(a).sum(0, keepdim=True) if b is None else _right(a, b)


@exercise.mistake
def columns_come_first(a, b=None):
    """Your product of two matrices has shape (k, m): it is the transposed one. The order of the dimensions in
    the views is that of the result, with the summed one left out: `m` has to stand before `k`."""
    if not _is_matrix(b):
        return _right(a, b)
    (m, n), (s, t), (p, q) = a.shape, a.stride(), b.stride()
    size = (b.size(1), m, n)
    return (a.as_strided(size, (0, s, t)) * b.as_strided(size, (q, 0, p))).sum(2)


@exercise.mistake
def vector_in_place_of_k(a, b=None):
    """Your product with a vector has shape (m, n). `*` lays a vector along the last dimension, and with two
    matrices that is `k`; the vector belongs to `n`, and there is no `k`."""
    if b is None:
        return _diagonal(a).sum()
    return (a.as_strided((*a.shape, 1), (*a.stride(), 0)) * b).sum(1)


@exercise.mistake
def asks_a_vector_for_columns(a, b=None):
    """With a vector your function raises a ValueError: there are two names for its sizes or strides, and one
    value. A vector has one dimension, and needs a way of its own."""
    if b is None:
        return _diagonal(a).sum()
    n, k = b.shape
    size = (a.size(0), n, k)
    return (a.as_strided(size, (*a.stride(), 0)) * b.as_strided(size, (0, *b.stride()))).sum(1)


@exercise.mistake
def asks_whether_b_is_true(a, b=None):
    """You ask a tensor whether it is true or false, as `if b` and `if not b` do. With more than one element
    there is no answer, and torch raises. `b is None` asks whether there is one."""
    if not b:
        return _diagonal(a).sum()
    return _times_vector(a, b) if b.dim() == 1 else _times_matrix(a, b)


@asks_whether_b_is_true.variant
def if_there_is_one(a, b=None):
    if b:
        return _right(a, b)
    return torch.sum(_diagonal(a))


@exercise.mistake
def sums_over_the_wrong_index(a, b=None):
    """You sum over an index of the result. What disappears in a product is the index that both factors have:
    the columns of `a`, which are the rows of `b`."""
    if b is None:
        return _diagonal(a).sum()
    if b.dim() == 1:
        return (a * b.as_strided(a.shape, (0, b.stride(0)))).sum(0)
    return _terms(a, b).sum(0)


@exercise.mistake
def sums_vector_over_rows(a, b=None):
    """In the product with a vector you sum over the rows of `a`, and they are the index of the result. What
    disappears is the index that both factors have: the columns of `a`."""
    if _is_vector(b):
        return (a * b).sum(0)
    return _right(a, b)


@exercise.mistake
def sums_matrices_over_columns(a, b=None):
    """In the product of two matrices you sum over the columns of `b`, and they are an index of the result.
    What disappears is the index that both factors have: the columns of `a`, which are the rows of `b`."""
    if _is_matrix(b):
        return _terms(a, b).sum(-1)
    return _right(a, b)


@exercise.mistake
def sums_matrices_over_rows(a, b=None):
    """In the product of two matrices you sum over the rows of `a`, and they are an index of the result. What
    disappears is the index that both factors have: the columns of `a`, which are the rows of `b`."""
    if _is_matrix(b):
        return _terms(a, b).sum(0)
    return _right(a, b)


@exercise.mistake
def adds_up_everything(a, b=None):
    """You sum over all indices and get one number. Only the index that both factors have is summed over; the
    others are those of the result."""
    if b is None:
        return _diagonal(a).sum()
    if b.dim() == 1:
        return (a * b.as_strided(a.shape, (0, b.stride(0)))).sum()
    return _terms(a, b).sum()


@adds_up_everything.variant
def one_number(a, b=None):
    if b is None:
        return torch.sum(_diagonal(a))
    size = (*a.shape, *b.shape[1:])
    left = torch.as_strided(a, size, a.stride() + (0,) * (b.dim() - 1))
    return torch.sum(left * torch.as_strided(b, size, (0, *b.stride())))


@exercise.mistake
def adds_up_all_rows(a, b=None):
    """Your product with a vector is one number: you sum over both indices. Only the columns of `a` are summed
    over; the rows are the index of the result."""
    if _is_vector(b):
        return (a * b).sum()
    return _right(a, b)


@exercise.mistake
def adds_up_both_matrices(a, b=None):
    """Your product of two matrices is one number: you sum over all three indices. Only the one that both
    factors have is summed over; the others are those of the result."""
    if _is_matrix(b):
        return _terms(a, b).sum()
    return _right(a, b)


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
        return torch.sum(_diagonal(a))
    if b.dim() == 1:
        sums = [torch.sum(a.select(0, i) * b) for i in range(a.size(0))]
        return torch.stack(sums) if sums else torch.zeros(0, dtype=a.dtype, device=a.device)
    columns = [(a * b[:, j]).sum(1) for j in range(b.size(1))]
    return torch.stack(columns, dim=1) if columns else a.new_zeros(a.size(0), 0)


@exercise.mistake
def adds_piece_by_piece(a, b=None):
    """You add up in Python, piece by piece, with an operator for each, and the sums of small integers stay
    small. A stride of 0 lays all pieces out at once: one `*` and one `sum` do the rest."""
    if b is None:
        total = torch.zeros((), dtype=a.dtype, device=a.device)
        for i in range(min(a.shape)):
            total = total + a[i, i]
        return total
    result = torch.zeros((a.size(0), *b.shape[1:]), dtype=a.dtype, device=a.device)
    for j in range(a.size(1)):
        column = a[:, j] if b.dim() == 1 else a[:, j : j + 1]
        result = result + column * b[j]
    return result


@adds_piece_by_piece.variant
def element_by_element(a, b=None):
    if b is None:
        return sum((a[i][i] for i in range(min(a.shape))), start=a.new_zeros(()))
    if b.dim() == 1:
        sums = [sum((x * y for x, y in zip(row, b, strict=True)), start=a.new_zeros(())) for row in a]
        return torch.stack(sums) if sums else a.new_zeros(0)
    columns = [element_by_element(a, column) for column in b.unbind(1)]
    return torch.stack(columns, 1) if columns else a.new_zeros(len(a), 0)


@exercise.mistake
def stacks_the_rows(a, b=None):
    """You compute the product piece by piece and stack the pieces, of which there may be none: then torch
    refuses. A stride of 0 lays all of them out at once; one `*` and one `sum` do the rest, for a size of 0
    too."""
    if _is_vector(b):
        return torch.stack([(row * b).sum() for row in a])
    return _right(a, b)


@stacks_the_rows.variant
def stacks_all(a, b=None):
    if b is None:
        return torch.sum(_diagonal(a))
    if b.dim() == 1:
        return torch.stack([torch.sum(a[i] * b) for i in range(a.size(0))])
    columns = range(b.size(1))
    return torch.stack([torch.stack([(a[i] * b[:, j]).sum() for j in columns]) for i in range(a.size(0))])


@exercise.mistake
def adds_the_diagonal_in_python(a, b=None):
    """The diagonal is added up in Python, one element after another. A view with one dimension holds all of
    it, and one `sum` is enough."""
    if b is not None:
        return _right(a, b)
    total = a.new_zeros(())
    for i in range(min(a.shape)):
        total = total + a[i, i]
    return total


@exercise.mistake
def pythons_sum_of_the_diagonal(a, b=None):
    """The diagonal is added up in Python, one element after another, as the built-in `sum` does; where there
    are none, the result is not even a tensor. `a.sum()` and `torch.sum` add up a tensor at once."""
    return sum(_diagonal(a)) if b is None else _right(a, b)


@pythons_sum_of_the_diagonal.variant
def elements_of_the_diagonal(a, b=None):
    return _right(a, b) if b is not None else sum(a[i, i] for i in range(min(a.shape)))


@exercise.mistake
def multiplies_in_place(a, b=None):
    """You multiply in place: the products with the vector are written to `a`, which is to stay as it is. `*`
    makes a new tensor of them; `*=` and `mul_` do not."""
    if _is_vector(b):
        a *= b
        return a.sum(1)
    return _right(a, b)


@multiplies_in_place.variant
def writes_through_a_view(a, b=None):
    if _is_vector(b):
        view = a.as_strided(a.size(), a.stride())
        return torch.sum(view.mul_(b), 1)
    return _right(a, b)


@exercise.mistake
def multiplies_all_in_place(a, b=None):
    """You multiply in place, so that the products with a vector are written to `a`, and those of two matrices
    to a view that repeats elements. `*` makes a new tensor of them; `*=` and `mul_` do not."""
    if b is None:
        return _diagonal(a).sum()
    if b.dim() == 1:
        return a.mul_(b).sum(1)
    return a.as_strided((*a.shape, b.size(1)), (*a.stride(), 0)).mul_(b).sum(1)


@exercise.mistake
def leaves_the_graph(a, b=None):
    """The values are right, but autograd does not know where they come from: under `no_grad`, and through
    `.data` or `.detach()`, no graph is made, so no gradient reaches the inputs."""
    with torch.no_grad():
        return _right(a, b)


@leaves_the_graph.variant
def takes_the_data(a, b=None):
    a = a.data
    if b is None:
        return torch.sum(_diagonal(a))
    return _times_vector(a, b.data) if b.dim() == 1 else _times_matrix(a, b.data)
