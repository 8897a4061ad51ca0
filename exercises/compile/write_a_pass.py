"""A backend that makes one operator of two

Write a backend for `torch.compile` that turns `a * b + c` into `torch.addcmul(c, a, b)`, which computes
`c + a * b` without a tensor for the product. It gets a `torch.fx.GraphModule` and a list of inputs, and
returns the changed module.

- A product of two tensors calls `operator.mul`, `torch.mul` or the method `"mul"`; a sum, with the product on
  either side, calls `add`. Leave calls with an `alpha` or a number; that can be a node too, whose
  `node.meta["example_value"]` is no tensor.
- Leave a product that is used twice, and its sum.
- Everything else still runs. If a write (`a.sub_(1)`, `a -= 1`, `a[0] = 1`, `out=a`, `inplace=True`) stands
  between a product and its sum, you may leave both.

All tensors have one floating dtype.

`a * b + c * d` keeps one product.
"""

from collections.abc import Callable

import torch
from torch import Tensor, fx

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits.compiled import as_raised, times

exercise = Exercise(
    minutes=30,
    hints=[
        "Look for sums. Which operand of a sum is a product, and which other nodes read it? `node.args` are "
        "the operands, `node.users` the readers.",
        "`with graph.inserting_before(node):` says where a new node goes. Give the sum's users the new node, "
        "then erase the two old ones, the reader first. Changing the graph doesn't change the code yet.",
        "The new operator reads `a` and `b` where the sum stood. What if one of them changed in place in "
        "between? And which nodes does `eliminate_dead_code` remove?",
    ],
)


@exercise.starter
def write_a_pass(gm: fx.GraphModule, example_inputs: list[Tensor]) -> Callable:
    """The graph, with `addcmul` where it had a product and a sum"""
    raise NotImplementedError


# Of several shapes: what broadcasts has to do so afterwards as well.
_INPUTS = "a, b, c = torch.linspace(-1, 1, 12).view(3, 4), torch.linspace(1, 2, 4), torch.ones(3, 1) / 2"
_COMPILED = "g = torch.compile(f, backend={}, fullgraph=True)"


def _expect_operators(write_a_pass, function, addcmul=None, mul=None, add=None, backend="write_a_pass"):
    """The function's results, and how often operators run in its compiled graph; None: however often."""
    t = expect.given(f"{_INPUTS}\n{function}", write_a_pass=write_a_pass)
    eager = [t.a.clone(), t.b.clone(), t.c.clone()]
    results = t.f(*eager)
    with as_raised():
        t.run(f"{_COMPILED.format(backend)}\ng(a.clone(), b.clone(), c.clone())")
        with measure.operators() as ran:
            came = t.call("g(a, b, c)")
    expect.equal(came, results)
    for name, was in zip("abc", eager, strict=True):
        expect.equal(getattr(t, name), was, what=f"`{name}`, after the call")
    for kind, wanted in {"addcmul": addcmul, "mul": mul, "add": add}.items():
        found = ran.count(f"aten.{kind}")
        told = f"`{kind}` ran {times(found)}, expected {times(wanted or 0)}"
        expect.true(wanted is None or found == wanted, told)


def _expect_rows(write_a_pass, rows_of):
    with Rows() as rows:
        for body, counts in rows_of.items():
            with rows.of(f"`{body}`"):
                _expect_operators(write_a_pass, f"f = lambda a, b, c: {body}", *counts)


@exercise.check(isolated=True, deadline=60)
def one_operator(write_a_pass):
    """`a * b + c` runs one operator, with the same result

    A graph module runs Python code made from its graph; `gm.recompile()` makes it again. The first argument
    of `torch.addcmul(c, a, b)` is the summand. A node without readers still runs until you erase it.
    """
    # Code is made once it is looked at, as a log does.
    looks = "lambda gm, inputs: (gm.code, write_a_pass(gm, inputs))[1]"
    _expect_operators(write_a_pass, "f = lambda a, b, c: a * b + c", 1, 0, 0, backend=looks)


@exercise.check(isolated=True, deadline=60)
def spellings(write_a_pass):
    """Three spellings of a product and a sum

    `a * b` is a call of `operator.mul`, `torch.mul(a, b)` one of `torch.mul`, and `a.mul(b)` a call of a
    method, whose target is the string `"mul"`. Three nodes for one operator.
    """
    one = (1, 0, 0)
    rows = {
        "a * b + c": one,
        "torch.add(torch.mul(a, b), c)": one,
        "a.mul(b).add(c)": one,
        "torch.mul(a, b) + c": one,
        "(a.mul(b) + c).tanh()": one,
    }
    _expect_rows(write_a_pass, rows)


@exercise.check(isolated=True, deadline=60)
def either_side(write_a_pass):
    """The product on either side, and several of both

    `node.args` has the operands in the order in which they were written. A new node must come after
    everything it reads: the summand may be computed after the product. Its `meta` is empty, until you give it
    that of the sum.
    """
    rows = {
        "c + a * b": (1, 0, 0),
        "torch.add(c, a.mul(b))": (1, 0, 0),
        "a * b + c.tanh()": (1, 0, 0),
        "a + a * b": (1, 0, 0),
        "a * b + c * b": (1, 1, 0),
        "(a * b + c) * b + c": (2, 0, 0),
        "(a + b) * c": (0, 1, 1),
        "(a * b, a + c)": (0, 1, 1),
    }
    _expect_rows(write_a_pass, rows)


@exercise.check(isolated=True, deadline=60)
def several_users(write_a_pass):
    """A product that something else uses as well stays

    `node.users` are all nodes that read it, the output included. Their product stays, and `addcmul` would
    compute it a second time.
    """
    rows = {
        "((h := a * b) + c) / h": (0, 1, 1),
        "(h := a * b, h + c)": (0, 1, 1),
        "(h := a * b) + h": (0, 1, 1),
    }
    _expect_rows(write_a_pass, rows)


@exercise.check(isolated=True, deadline=60)
def numbers(write_a_pass):
    """Numbers, and an `alpha`

    An operand in `node.args` may be a Python number, but `addcmul` takes tensors. A number that changes from
    call to call can become a symbol: then the operand is a node. Keyword arguments are in `node.kwargs`:
    `torch.add(c, h, alpha=2)` is `c + 2 * h`.
    """
    rows = {
        "a * 2 + b": (0, 1, 1),
        "a * b + 2": (0, 1, 1),
        "b + 3.0 * a": (0, 1, 1),
        "torch.add(c, a * b, alpha=2)": (),
        "(a * b).add(c, alpha=-1)": (),
    }
    _expect_rows(write_a_pass, rows)
    t = expect.given(f"{_INPUTS}\nf = lambda x, n: x * n + x", write_a_pass=write_a_pass)
    t.run(_COMPILED.format("write_a_pass"))
    with as_raised():
        for n in (2, 3):
            expect.equal(t.call(f"g(a, {n})"), t.a * (n + 1))


@exercise.check(isolated=True, deadline=60)
def in_place(write_a_pass):
    """Writes in place stay, and no operator moves past one

    The graph doesn't say that `a.add_(1)` changes `a`. No node reads it, so `eliminate_dead_code` removes it.
    An operator that moves past it reads the changed `a`, even if the write went through a view. `a -= 1`
    calls `operator.isub`, and `a[0] = 1` calls `operator.setitem`.
    """
    with Rows() as rows:
        for label, body, counts in [
            ("before and after", "c.mul_(2); y = a * b + c; a.sub_(1); return y", (1, 0, 0)),
            ("between the two", "h = a * b; a.sub_(1); return h + c", ()),
            ("through a view", "h = a * b; a[1:].sub_(1); return h + c", ()),
            ("to what is added", "h = a * b; c.sub_(1); return h + c", ()),
            ("by `a -= 1`", "h = a * b; a -= 1; return h + c", ()),
            ("to an element", "h = a * b; a[0] = 5; return h + c", ()),
            ("by `out=`", "h = a * b; torch.sub(a, 1, out=a); return h + c", ()),
            ("by `inplace=`", "h = a * b; F.relu(a, inplace=True); return h + c", ()),
        ]:
            with rows.of(label):
                lines = "\n    ".join(["def f(a, b, c):", *body.split("; ")])
                _expect_operators(write_a_pass, lines, *counts)


@exercise.check(isolated=True, deadline=60)
def as_a_backend(write_a_pass):
    """As a backend of a compiled function, with gradients

    Autograd records the operators that the returned function runs. `addcmul` has its own backward, with the
    gradients of the product and the sum.
    """
    setup = f"{_INPUTS}\nf = lambda a, b, c: torch.sin(c + a * b) + a.mul(b)"
    t = expect.given(setup, write_a_pass=write_a_pass)
    tensors = [x.requires_grad_() for x in (t.a, t.b, t.c)]
    results = t.f(*tensors)
    wanted = torch.autograd.grad(results.sum(), tensors)
    t.run("for x in (a, b, c):\n    x.requires_grad_()")
    with as_raised():
        t.run(f"{_COMPILED.format('write_a_pass')}\ng(a, b, c)")
    with measure.operators() as ran:
        came = t.call("g(a, b, c)")
    expect.equal(came, results)
    found = ran.count("aten.addcmul")
    expect.true(found == 2, f"`addcmul` ran {times(found)}, expected 2 times")
    for name, gradient, right in zip("abc", torch.autograd.grad(came.sum(), tensors), wanted, strict=True):
        expect.equal(gradient, right, what=f"the gradient of `{name}`")
