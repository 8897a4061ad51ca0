"""A backend that makes one operator of two

Write a backend for `torch.compile` that turns `a * b + c` into `torch.addcmul(c, a, b)`, one operator that
computes `c + a * b` without a tensor for the product. A backend is called with a `torch.fx.GraphModule` and a
list of inputs, and returns what is called in place of the graph. Here: the module itself, changed (or its
`forward`, or another module). The graph module may also come from `torch.fx.symbolic_trace`.

- A product is a node with `operator.mul` or `torch.mul` as its target (`node.op` is `"call_function"`), or
  the method `"mul"` (`"call_method"`); a sum has `operator.add`, `torch.add` or `"add"`. The product may be
  the first or the second operand.
- All operands that are nodes are tensors of float32. A product with a number, or a sum with one, stays as it
  is. So may whatever has further arguments, such as `alpha`.
- A product that anything else uses as well stays as it is, and so does the sum.
- Operators in place are methods and functions whose names end in `_`, and the functions of `operator` such as
  `setitem` and `iadd`. Results, and what was changed in place, are what they were before. A product and its
  sum may both stay where an operator in place comes between them.

Of `a * b + c * d` one product remains. Everything else that the graph computes is to be computed still.

`torch.compile(lambda a, b, c: a * b + c, backend=write_a_pass)` runs one operator."""

import contextlib
import functools
import io
import operator
from collections.abc import Callable

import torch
from torch import Tensor, fx

from course_utils import expect, measure
from course_utils.exercise import Exercise

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


def _inputs(count):
    # Of several shapes: what broadcasts has to do so afterwards as well.
    shapes = [(3, 4), (4,), (3, 1), (3, 4), (1, 4)]
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shapes[i], generator=generator) for i in range(count)]


def _expect_operators(answer, wanted):
    """For each function how many operators of each kind are to run in its graph; None: however many."""
    for text, counts in wanted.items():
        t = expect.given(text)
        eager, fused = (_inputs(t.f.__code__.co_argcount) for _ in range(2))
        results = t.f(*eager)
        with expect.situation(text, "g = write_a_pass(torch.fx.symbolic_trace(f), inputs)", "g(*inputs)"):
            g = answer(torch.fx.symbolic_trace(t.f), list(fused))
            told = f"`g` is of type {type(g).__name__}"
            expect.true(callable(g), told, "expected: something that is called in place of the graph")
            with measure.operators() as ran:
                came = _called(g, fused)
            expect.equal(came, results)
            for name, one, other in zip(t.f.__code__.co_varnames, fused, eager, strict=False):
                expect.equal(one, other, what=f"`{name}`, after the call")
            if counts is None:
                continue
            found = tuple(ran.count(f"aten.{kind}") for kind in _KINDS)
            told = [
                f"`{kind}` ran {_times(there)}, expected {_times(right)}"
                for kind, there, right in zip(_KINDS, found, counts, strict=True)
                if there != right
            ]
            expect.true(found == counts, *told)


_KINDS = ("addcmul", "mul", "add")


def _called(g, inputs):
    # Where a graph raises, its module prints the code to the standard error.
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            return g(*inputs)
        except Exception as error:
            why = str(error).splitlines()[0] if str(error) else "no reason given"
            told = f"the changed graph raised {type(error).__name__}: {why}"
    raise expect.Mismatch(told, "expected: the results of `f`")


def _times(number):
    return "once" if number == 1 else f"{number} times"


@exercise.check
def spellings(write_a_pass):
    """A product and a sum, however they are written, on either side"""
    texts = (
        "def f(a, b, c): return a * b + c",
        "def f(a, b, c): return torch.add(torch.mul(a, b), c)",
        "def f(a, b, c): return (a.mul(b) + c).tanh()",
        "def f(a, b, c): return a.mul(b).add(c)",
        "def f(a, b, c): return c + a * b",
        "def f(a, b): return a + a * b",
        "def f(a, b, c): return torch.add(c, a.mul(b))",
    )
    _expect_operators(write_a_pass, dict.fromkeys(texts, (1, 0, 0)))


@exercise.check
def several(write_a_pass):
    """Several products and sums in one graph"""
    wanted = {
        "def f(a, b, c, d): return a * b + c * d": (1, 1, 0),
        "def f(a, b, c): return (a * b + c) * b + c": (2, 0, 0),
        "def f(a, b, c, d, e): return a * b + (c * d + e)": (2, 0, 0),
        "def f(a, b, c): return (a + b) * c": (0, 1, 1),
        "def f(a, b, c): return a * b, a + c, (a - b) / c": (0, 1, 1),
    }
    _expect_operators(write_a_pass, wanted)


@exercise.check
def several_users(write_a_pass):
    """A product that is used by something else as well"""
    wanted = {
        "def f(a, b, c): h = a * b; return (h + c) / h": (0, 1, 1),
        "def f(a, b, c): h = a * b; return h, h + c": (0, 1, 1),
        "def f(a, b): h = a * b; return h + h": (0, 1, 1),
    }
    _expect_operators(write_a_pass, wanted)


@exercise.check
def numbers(write_a_pass):
    """Numbers, and an `alpha`"""
    wanted = {
        "def f(a, b): return a * 2 + b": (0, 1, 1),
        "def f(a, b): return a * b + 2": (0, 1, 1),
        "def f(a, b): return b + 3.0 * a": (0, 1, 1),
        "def f(a, b, c): return torch.add(c, a * b, alpha=2)": None,
        "def f(a, b, c): return (a * b).add(c, alpha=-1)": None,
    }
    _expect_operators(write_a_pass, wanted)


@exercise.check
def in_place(write_a_pass):
    """Operators in place stay, and nothing is read after it was changed"""
    wanted = {
        "def f(a, b, c): c.mul_(2); y = a * b + c; a.sub_(1); return y": (1, 0, 0),
        "def f(a, b, c): h = a * b; a.sub_(1); return h + c": None,
        "def f(a, b, c): h = a * b; a[1:].sub_(1); return h + c": None,
        "def f(a, b, c): h = a * b; torch.neg_(b); return h + c": None,
    }
    _expect_operators(write_a_pass, wanted)


def _changing(a, b, c):
    h = a * b
    a[0] = 0.0
    y = (h + c).tanh()
    z = y
    y += a * b
    return z, b * y + c


def _remainder(a, b, c):
    h = a * b
    a %= 2
    return h + c


def _differentiable(a, b, c):
    return torch.nn.functional.gelu(c + a * b).sum() + a.mul(b)


def _as_backend(answer):
    """The answer as a backend, and a list for what it gave back."""
    given_back = []

    def backend(gm, example_inputs):
        given_back.append(answer(gm, example_inputs))
        return given_back[-1] if callable(given_back[-1]) else gm

    return backend, given_back


def _expect_callable(given_back):
    for one in given_back:
        told = f"the backend gave back a {type(one).__name__}"
        expect.true(callable(one), told, "expected: something that is called in place of the graph")


@exercise.check(isolated=True, deadline=60)
def as_a_backend(write_a_pass):
    """As a backend, with changes in place and with gradients"""
    backend, given_back = _as_backend(write_a_pass)
    eager, fused = _inputs(3), _inputs(3)
    body = "h = a * b; a[0] = 0.0; y = (h + c).tanh(); z = y; y += a * b; return z, b * y + c"
    code = f"def f(a, b, c): {body}", "torch.compile(f, backend=write_a_pass)(a, b, c)"
    with expect.situation(*code):
        with measure.operators() as ran:
            came = torch.compile(_changing, backend=backend, fullgraph=True)(*fused)
        _expect_callable(given_back)
        expect.equal(came, _changing(*eager))
        expect.equal(fused[0], eager[0], what="`a`, after the call")
        number = ran.count("aten.addcmul")
        expect.true(number == 1, f"`addcmul` ran {_times(number)}, expected once")
    eager, fused = _inputs(3), _inputs(3)
    with expect.situation("def f(a, b, c): h = a * b; a %= 2; return h + c", code[1]):
        came = torch.compile(_remainder, backend=backend, fullgraph=True)(*fused)
        expect.equal(came, _remainder(*eager))
    eager, fused = [[one.requires_grad_() for one in _inputs(3)] for _ in range(2)]
    body = "return F.gelu(c + a * b).sum() + a.mul(b)"
    code = (f"def f(a, b, c): {body}", "torch.compile(f, backend=write_a_pass)(a, b, c).sum().backward()")
    with expect.situation(*code):
        with measure.operators() as ran:
            came = torch.compile(_differentiable, backend=backend, fullgraph=True)(*fused)
        expect.equal(came, _differentiable(*eager))
        number = ran.count("aten.addcmul")
        # `a * b` there and `a.mul(b)` here are two products, and there is a sum of each.
        expect.true(number == 2, f"`addcmul` ran {_times(number)}, expected 2 times")
        came.sum().backward()
        _differentiable(*eager).sum().backward()
        for name, one, other in zip("abc", fused, eager, strict=True):
            expect.equal(one.grad, other.grad, what=f"`{name}.grad`")


# --- the mistakes ---------------------------------------------------------------------------------------

_MUL, _ADD = (operator.mul, torch.mul, "mul"), (operator.add, torch.add, "add")


def _is(node, targets):
    return isinstance(node, fx.Node) and node.op.startswith("call_") and node.target in targets


def _of_tensors(node):
    return len(node.args) == 2 and not node.kwargs and all(isinstance(a, fx.Node) for a in node.args)


def _of_two(node):
    return len(node.args) == 2 and not node.kwargs


def _ends_in_a_line(node):
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op.startswith("call_") and name.endswith("_")


def _writes(node):
    of_operator = (operator.setitem, operator.iadd, operator.imul, operator.isub)
    return _ends_in_a_line(node) or node.target in of_operator


def _moved_over(product, total, writes=_writes):
    node = product.next
    while node is not total:
        if writes(node):
            return True
        node = node.next
    return False


def _never(product, total):
    # Who makes a mistake in what is asked first has mostly not come to what is changed in place.
    return False


def _pass(
    gm,
    *,
    muls=_MUL,
    adds=_ADD,
    sides=(0, 1),
    users=1,
    tensors=_of_tensors,
    moved=_moved_over,
    fused=lambda other, a, b: (other, a, b),
    at_the_product=False,
    erase=True,
    recompile=True,
):
    """The right pass, with an opening for each fault."""
    for total in list(gm.graph.nodes):
        if not _is(total, adds) or not tensors(total):
            continue
        for side in sides:
            product, other = total.args[side], total.args[1 - side]
            if not _is(product, muls) or not tensors(product) or product is other:
                continue
            if len(product.users) > users or moved(product, total):
                continue
            with gm.graph.inserting_before(product if at_the_product else total):
                new = gm.graph.call_function(torch.addcmul, fused(other, *product.args))
            total.replace_all_uses_with(new)
            gm.graph.erase_node(total)
            if erase and not product.users:
                gm.graph.erase_node(product)
            break
    if recompile:
        gm.recompile()
    return gm


@exercise.mistake
def never_recompiles(gm, example_inputs):
    """What runs is the graph as it came. Where you changed the graph, you did not change the code: a graph
    module runs code that was written from its graph once, and `gm.recompile()` writes it anew."""
    return _pass(gm, recompile=False)


@never_recompiles.variant
def changes_the_graph_only(gm, example_inputs):
    for node in list(gm.graph.nodes):
        if _is(node, _ADD) and _of_tensors(node):
            found = [a for a in node.args if _is(a, _MUL) and _of_tensors(a) and len(a.users) == 1]
            if found and node.args[0] is not node.args[1] and not _moved_over(found[0], node):
                rest = node.args[1] if found[0] is node.args[0] else node.args[0]
                with gm.graph.inserting_after(node):
                    fused = gm.graph.create_node("call_function", torch.addcmul, (rest, *found[0].args))
                node.replace_all_uses_with(fused)
                gm.graph.erase_node(node)
                gm.graph.erase_node(found[0])
    return gm


@never_recompiles.form
def never_recompiles_nor_looks_between(gm, example_inputs):
    return _pass(gm, moved=_never, recompile=False)


@exercise.mistake
def one_way_of_writing(gm, example_inputs):
    """Your pass does not know all ways in which a product or a sum is written in a graph. `a * b` is a call
    of `operator.mul`, `torch.mul(a, b)` one of `torch.mul`, and `a.mul(b)` a call of a method whose target is
    the string `"mul"`."""
    return _pass(gm, muls=(operator.mul,), adds=(operator.add,))


@one_way_of_writing.form
def functions_of_operator(gm, example_inputs):
    return _pass(gm, muls=(operator.mul,), adds=(operator.add,), moved=_never)


@one_way_of_writing.form
def functions_alone(gm, example_inputs):
    return _pass(gm, muls=(operator.mul, torch.mul), adds=(operator.add, torch.add))


@one_way_of_writing.form
def functions_alone_everywhere(gm, example_inputs):
    return _pass(gm, muls=(operator.mul, torch.mul), adds=(operator.add, torch.add), moved=_never)


@one_way_of_writing.form
def replaces_a_pattern(gm, example_inputs):
    fx.replace_pattern(gm, lambda a, b, c: a * b + c, lambda a, b, c: torch.addcmul(c, a, b))
    return gm


@exercise.mistake
def operands_in_order(gm, example_inputs):
    """You give `addcmul` its operands in another order. `torch.addcmul(c, a, b)` computes `c + a * b`: what
    is added comes first, and then the two that are multiplied."""
    return _pass(gm, fused=lambda other, a, b: (a, b, other))


@operands_in_order.form
def operands_in_order_everywhere(gm, example_inputs):
    return _pass(gm, fused=lambda other, a, b: (a, b, other), moved=_never)


@exercise.mistake
def first_operand_only(gm, example_inputs):
    """You look for the product in the first operand of the sum only. In `c + a * b` it is the second."""
    return _pass(gm, sides=(0,))


@first_operand_only.variant
def looks_at_what_follows(gm, example_inputs):
    for product in list(gm.graph.nodes):
        if _is(product, _MUL) and _of_tensors(product) and len(product.users) == 1:
            (total,) = product.users
            if _is(total, _ADD) and _of_tensors(total) and total.args[0] is product is not total.args[1]:
                if _moved_over(product, total):
                    continue
                with gm.graph.inserting_before(total):
                    fused = gm.graph.call_function(torch.addcmul, (total.args[1], *product.args))
                total.replace_all_uses_with(fused)
                gm.graph.erase_node(total)
                gm.graph.erase_node(product)
    gm.recompile()
    return gm.forward


@first_operand_only.form
def first_operand_everywhere(gm, example_inputs):
    return _pass(gm, sides=(0,), moved=_never)


@exercise.mistake
def where_the_product_stood(gm, example_inputs):
    """You put the new node where the product stood. What is added to it may be computed after that, or
    changed in place: where the sum stood, all three operands are there."""
    return _pass(gm, at_the_product=True, moved=_never)


@exercise.mistake
def leaves_the_product(gm, example_inputs):
    """The product is still computed, and nobody reads it. A node without users stays in the graph until it is
    erased: first the sum, which reads it, then the product."""
    return _pass(gm, erase=False)


@leaves_the_product.form
def leaves_the_product_everywhere(gm, example_inputs):
    return _pass(gm, erase=False, moved=_never)


@exercise.mistake
def shared_products(gm, example_inputs):
    """You fuse a product that others use as well. It has to be computed for them anyway, so the new operator
    computes it a second time."""
    return _pass(gm, users=10**6)


@shared_products.form
def shared_products_everywhere(gm, example_inputs):
    return _pass(gm, users=10**6, moved=_never)


@exercise.mistake
def factors_of_any_kind(gm, example_inputs):
    """You fuse products with a number, or sums with one. An operand in `node.args` may be a Python number,
    and `addcmul` takes tensors: ask whether it is a `torch.fx.Node`."""
    return _pass(gm, tensors=_of_two)


@factors_of_any_kind.form
def factors_of_any_kind_everywhere(gm, example_inputs):
    return _pass(gm, tensors=_of_two, moved=_never)


@exercise.mistake
def moves_over_changes(gm, example_inputs):
    """You move the product over an operator in place. It was computed before `a` was changed, and the new
    operator, where the sum stood, reads `a` after that."""
    return _pass(gm, moved=_never)


@moves_over_changes.form
def moves_over_functions_of_operator(gm, example_inputs):
    return _pass(gm, moved=functools.partial(_moved_over, writes=_ends_in_a_line))


@moves_over_changes.form
def moves_over_changes_of_views(gm, example_inputs):
    def moved(product, total):
        factors = product.args
        return _moved_over(product, total, lambda node: _writes(node) and node.args[0] in factors)

    return _pass(gm, moved=moved)


@exercise.mistake
def sweeps_up(gm, example_inputs):
    """Operators in place are gone: `eliminate_dead_code` takes a node for dead when nobody reads its result.
    What `a.add_(1)` is there for is the change of `a`. Erase the nodes that you replaced, and no others."""
    _pass(gm)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm
