"""A backend that makes one operator of two

Write a backend for `torch.compile` that turns `a * b + c` into `torch.addcmul(c, a, b)`, which computes
`c + a * b` without a tensor for the product. It gets a `torch.fx.GraphModule` and a list of inputs, and
returns what is called in its place: the module, changed.

- A product of two nodes is a call of `operator.mul`, `torch.mul` or the method `"mul"`; a sum, with the
  product on either side, is one of `add`. What has a number or an `alpha` in it stays.
- A product that anything else uses stays, with its sum.
- Everything else still runs, also methods in place, whose names end in `_`. A product and a sum with one of
  them between may both stay.

Of `a * b + c * d` one product remains.
"""

import contextlib
import io
from collections.abc import Callable

import torch
from torch import Tensor, fx

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits.graphs_compiled import times

exercise = Exercise(
    minutes=30,
    hints=[
        "Look for sums. Which of a sum's operands is a product, and who else reads it? `node.args` are the "
        "operands, `node.users` those who read a node.",
        "`with graph.inserting_before(node):` says where a new node goes. Then the sum's users get the new "
        "node, and the two old ones can be erased, the reader before what it reads. A changed graph is not "
        "yet changed code.",
        "The new operator reads `a` and `b` where the sum stood. What if one of them was changed in place in "
        "between? And what does `eliminate_dead_code` take for dead?",
    ],
)


@exercise.starter
def write_a_pass(gm: fx.GraphModule, example_inputs: list[Tensor]) -> Callable:
    """The graph, with `addcmul` where it had a product and a sum"""
    raise NotImplementedError


# Of several shapes: what broadcasts has to do so afterwards as well.
_INPUTS = "a, b, c = torch.linspace(-1, 1, 12).view(3, 4), torch.linspace(1, 2, 4), torch.ones(3, 1) / 2"


def _expect_operators(write_a_pass, function, addcmul=None, mul=None, add=None):
    """The function's results, and how often operators run in its changed graph; None: however often."""
    t = expect.given(f"{_INPUTS}\n{function}", write_a_pass=write_a_pass)
    eager = [t.a.clone(), t.b.clone(), t.c.clone()]
    results = t.f(*eager)
    t.run("g = write_a_pass(torch.fx.symbolic_trace(f), [a, b, c])")
    expect.true(callable(t.g), f"the backend gave back {expect.show(t.g)}", "expected: what is to be called")
    # Where a graph raises, its module prints the code to the standard error.
    with measure.operators() as ran, contextlib.redirect_stderr(io.StringIO()):
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


@exercise.check
def one_operator(write_a_pass):
    """`a * b + c` runs one operator, and gives what it gave

    A graph module runs code that was written from its graph when it was made: `gm.recompile()` writes it
    anew. `torch.addcmul(c, a, b)` takes first what is added. A node that nobody reads runs until it is
    erased.
    """
    _expect_operators(write_a_pass, "f = lambda a, b, c: a * b + c", 1, 0, 0)


@exercise.check
def spellings(write_a_pass):
    """A product and a sum, however they are written

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


@exercise.check
def either_side(write_a_pass):
    """The product on either side, and several of both

    The operands of a node stand in `node.args` in the order in which they were written. A new node has to
    stand behind all that it reads: what is added may be computed after the product.
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


@exercise.check
def several_users(write_a_pass):
    """A product that something else uses as well stays

    `node.users` are all nodes that read it, the output among them. What is computed for them anyway would
    be computed a second time inside of `addcmul`.
    """
    rows = {
        "((h := a * b) + c) / h": (0, 1, 1),
        "(h := a * b, h + c)": (0, 1, 1),
        "(h := a * b) + h": (0, 1, 1),
    }
    _expect_rows(write_a_pass, rows)


@exercise.check
def numbers(write_a_pass):
    """Numbers, and an `alpha`

    An operand in `node.args` may be a Python number, and `addcmul` takes tensors. What a call was given by
    name stands in `node.kwargs`: `torch.add(c, h, alpha=2)` is `c + 2 * h`.
    """
    rows = {
        "a * 2 + b": (0, 1, 1),
        "a * b + 2": (0, 1, 1),
        "b + 3.0 * a": (0, 1, 1),
        "torch.add(c, a * b, alpha=2)": (),
        "(a * b).add(c, alpha=-1)": (),
    }
    _expect_rows(write_a_pass, rows)


@exercise.check
def in_place(write_a_pass):
    """What is done in place stays, and nothing is read after it was changed

    The graph does not say that `a.add_(1)` changes `a`: nobody reads the node, and `eliminate_dead_code`
    takes it for dead. An operator that moves over it reads the changed `a`, also where a view was changed.
    """
    with Rows() as rows:
        for label, body, counts in [
            ("before and after", "c.mul_(2); y = a * b + c; a.sub_(1); return y", (1, 0, 0)),
            ("between", "h = a * b; a.sub_(1); return h + c", ()),
            ("between, through a view", "h = a * b; a[1:].sub_(1); return h + c", ()),
            ("between, to what is added", "h = a * b; c.sub_(1); return h + c", ()),
        ]:
            with rows.of(label):
                lines = "\n    ".join(["def f(a, b, c):", *body.split("; ")])
                _expect_operators(write_a_pass, lines, *counts)


@exercise.check(isolated=True, deadline=60)
def as_a_backend(write_a_pass):
    """As a backend of a compiled function, with gradients

    Autograd records what the returned function runs, operator by operator. `addcmul` has a backward of its
    own, so the gradients are those of the product and the sum.
    """
    setup = f"{_INPUTS}\nf = lambda a, b, c: torch.sin(c + a * b) + a.mul(b)"
    t = expect.given(setup, write_a_pass=write_a_pass)
    tensors = [x.requires_grad_() for x in (t.a, t.b, t.c)]
    results = t.f(*tensors)
    wanted = torch.autograd.grad(results.sum(), tensors)
    t.run("for x in (a, b, c):\n    x.requires_grad_()")
    t.run("g = torch.compile(f, backend=write_a_pass, fullgraph=True)\ng(a, b, c)")
    with measure.operators() as ran:
        came = t.call("g(a, b, c)")
    expect.equal(came, results)
    found = ran.count("aten.addcmul")
    expect.true(found == 2, f"`addcmul` ran {times(found)}, expected 2 times")
    for name, gradient, right in zip("abc", torch.autograd.grad(came.sum(), tensors), wanted, strict=True):
        expect.equal(gradient, right, what=f"the gradient of `{name}`")
