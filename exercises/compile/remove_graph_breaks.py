"""Repair: one graph for three cases

The function below scales gradients that together are longer than `limit`. If one holds an infinity or NaN, it
returns zeros for all. `torch.compile` cuts it into many small graphs.

Change it so that it compiles to **one graph**, which serves all three cases. Leave no arithmetic to Python or
to operators of your own.

- Results stay the same, dtypes too. Don't write to `gradients`.
- Return what is printed now, as a dict of tensors without dimensions: `"norm"` in any floating dtype;
  `"largest"`, `int64`, the first in a tie, any value where skipped; `"skipped"`, a bool.

Gradients are all float32 or all float64. No finite length has a square that overflows.

`remove_graph_breaks([torch.ones(4)], 1.0)[0]` → `[0.5 * torch.ones(4)]`
"""

import math

import numpy as np
import torch
from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import numbers

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "For each line: does it need the *value* of a tensor while Python runs? When the graph is made there "
        "are no values, only shapes and dtypes. `measure.graphs_compiled()` tells where the breaks are.",
        "A norm may stay a tensor, and so may a comparison. Several tensors without dimensions become one "
        "with `torch.stack`, which has a norm and an argmax. Compute all cases, and choose one element by "
        "element.",
        "Choose with `torch.where`, not with a factor of zero: zero times NaN is NaN. Decide twice, once "
        "about the factor and once about the zeros.",
    ],
)


@exercise.starter
def remove_graph_breaks(
    gradients: list[Tensor], limit: float
) -> tuple[list[Tensor], dict]:
    """(the gradients for the step, what there is to report)"""
    norms = [g.norm().item() for g in gradients]
    norm = math.sqrt(sum(n * n for n in norms))
    largest = int(np.argmax(norms))
    print("norm", norm, "largest", largest)
    if not math.isfinite(norm):
        print("skipped")
        return [torch.zeros_like(g) for g in gradients], {}
    if norm > limit:
        return [g * (limit / norm) for g in gradients], {}
    return [g.clone() for g in gradients], {}


def _wanted(gradients, limit):
    """(gradients, norm, skipped) in double precision, from one long vector."""
    norm = torch.cat([g.double().flatten() for g in gradients]).square().sum().sqrt()
    if not bool(norm.isfinite()):
        return [torch.zeros_like(g) for g in gradients], norm, True
    factor = limit / norm.item() if norm > limit else 1.0
    return [g.double().mul(factor).to(g.dtype) for g in gradients], norm, False


def _call(t, limit):
    """(copies of the gradients from before the call, what became of them)"""
    before = [g.clone() for g in t.gradients]
    found = t.call(f"remove_graph_breaks(gradients, {limit})")
    pair = isinstance(found, (tuple, list)) and len(found) == 2
    expect.true(pair, f"the result is {expect.show(found)}", "expected: the gradients and the report")
    return before, found


def _expect_gradients(t, limit=2.6, rtol=1e-5):
    given, (found, _) = _call(t, limit)
    wanted, norm, _ = _wanted(given, limit)
    factors = {"`limit` divided by the length": limit / norm.item() if norm > 0 else 1.0}
    expect.equal(found, wanted, what="the first result", rtol=rtol, atol=0.0, factors=factors)


_LONG = "[torch.tensor([3.0, 0.0]), torch.tensor([[0.0], [4.0], [12.0]])]"
_SHORT = "[torch.tensor([0.3, 0.0]), torch.tensor([[0.0], [0.1], [-0.2]])]"
_INFINITE = "[torch.tensor([torch.inf, 0.0]), torch.tensor([[0.0], [4.0], [12.0]])]"
_NAN = "[torch.tensor([3.0, 0.0]), torch.tensor([[0.0], [torch.nan], [12.0]])]"
_HARD = numbers.hard("8, 3", "one giant", "numbers whose squares are 0").items()
_SETUP = "gradients = {}".format


@exercise.check(
    deadline=30,
    given=_SETUP,
    cases={
        "too long": (_LONG, 2.6),
        "short enough": (_SHORT, 2.6),
        "zeros": ("[torch.zeros(2), torch.zeros(3, 1)]", 2.6),
        "as long as the limit": ("[torch.tensor([3.0]), torch.tensor([[4.0]])]", 5.0),
        "very small": ("[torch.tensor([3e-15]), torch.tensor([[4e-15]])]", 1e-15),
        **{label: (f"[{code}, torch.zeros(2)]", 2.6) for label, code in _HARD},
    },
)
def long_and_short(t, limit):
    """Too long and short enough: the factor is at most 1

    A positive `limit` divided by the length is at least 1 for gradients that are short enough, and infinite
    for length 0. Clamped to 1 it's right for all of them. A small number added to the length can make the
    result shorter than `limit`, by a lot if the gradients are small.
    """
    _expect_gradients(t, limit)


@exercise.check(
    given=_SETUP,
    cases={
        "infinite": _INFINITE,
        "minus infinity": "[torch.tensor([1.0, -torch.inf]), torch.ones(1)]",
        "NaN": _NAN,
    },
)
def not_finite(t):
    """One element that is infinite or NaN makes zeros of all

    `isfinite` is False for both. If one element isn't finite, neither is the length of all gradients. Zero
    times an infinity or NaN is NaN; `torch.where` takes one value or the other.
    """
    _expect_gradients(t)


@exercise.check(
    given=_SETUP("[torch.tensor([3.0, 0.1]).double() / 7, torch.ones(2, 2).double() / 3]"),
    cases=[0.3, 30.0],
)
def double_precision(t, limit):
    """Gradients in double precision keep their digits

    The starter's numbers were Python floats, in double precision. A length computed in float32 has about 7
    digits, and so has everything that is scaled by it.
    """
    _expect_gradients(t, limit, rtol=1e-12)


@exercise.check(
    given=_SETUP,
    cases={
        "too long": "[torch.tensor(-4.0)]",
        "short enough": "[torch.tensor(0.5)]",
        "in double precision": "[torch.tensor(-4.0).double()]",
        "NaN": "[torch.tensor(torch.nan)]",
    },
)
def single_numbers(t):
    """Gradients without dimensions keep their dtype too

    A real scalar tensor doesn't change the floating dtype of one that has dimensions. Between two without,
    float64 wins over float32. So a float32 vector times a float64 scalar tensor is float32, and a float32
    scalar tensor times it is float64.
    """
    _expect_gradients(t)


@exercise.check(given=_SETUP, cases=[_LONG, _INFINITE, f"[torch.ones(2, 3).t(), {numbers.ODD}[::2]]"])
def left_alone(t):
    """The input gradients don't change

    They are what `.grad` holds, and other code may read them. A write in place such as `mul_` compiles
    without a break, and still reaches the input tensor.
    """
    with expect.left_alone(t.gradients, what="gradients"):
        t.run("remove_graph_breaks(gradients, 1.5)")


@exercise.check(
    given=_SETUP,
    cases={
        "too long": (_LONG, 1),
        "short enough": (_SHORT, 0),
        "a large element elsewhere": ("[torch.tensor([3.0, 0.0]), torch.full((3,), 2.0), torch.ones(5)]", 1),
        "a tie": ("[torch.ones(1), torch.zeros(1), torch.ones(2), torch.ones(1, 2)]", 2),
        "infinite": (_INFINITE, None),
        "NaN": (_NAN, None),
    },
)
def report(t, largest):
    """The report holds what was printed, as tensors

    A print isn't an operator, so by default the graph ends there. Return the value as one more output; the
    caller can print it. `"largest"` is the index of the largest norm, not of the largest element. Of equal
    norms `argmax` takes the first.
    """
    given, (_, report) = _call(t, 2.6)
    _, norm, skipped = _wanted(given, 2.6)
    wanted = {"norm": norm.float(), "skipped": torch.tensor(skipped)}
    if largest is not None:
        wanted["largest"] = torch.tensor(largest)
    for key, value in wanted.items():
        has = isinstance(report, dict) and key in report
        expect.true(has, f"the report is {expect.show(report)}", f"expected: it has {key!r}")
        found = expect.a_tensor(report[key], what=f"`report[{key!r}]`")
        found = found.float() if key == "norm" and found.is_floating_point() else found
        expect.equal(found, value, what=f"`report[{key!r}]`")


_COMPILED = f"""
from course_utils.exercise.kits.compiled import Counting
backend = Counting()
f = torch.compile(remove_graph_breaks, backend=backend)
long, short = {_LONG}, {_SHORT}
not_finite, again = {_NAN}, {_LONG}
"""


@exercise.check(isolated=True, deadline=60, given=_COMPILED)
def one_graph(t):
    """One graph without a break serves all three cases

    While a graph is made, tensors have no elements. Here `.item()`, `if` and functions of `math` ask for one,
    and `print` isn't an operator: the graph ends there. Python code, or code hidden in an operator of your
    own, isn't compiled at all.
    """
    wanted = [_wanted(gradients, 2.6)[0] for gradients in (t.long, t.short, t.not_finite)]
    with measure.graphs_compiled() as compiled:
        t.run("found = f(long, 2.6), f(short, 2.6), f(not_finite, 2.6)")
    reasons = [f"break: {reason}" for reason in dict.fromkeys(compiled.reasons)][:3]
    expect.true(not compiled.breaks, f"breaks: {compiled.breaks}", *reasons)
    expect.true(len(t.backend.graphs) == 1, f"graphs of `backend`: {t.backend}", "expected: one, for all")
    own = ", ".join(f"`{name}`" for name in t.backend.graphs[0].foreign)
    expect.true(not own, f"the graph calls {own}", "expected: torch's operators alone")
    with t.backend.outside() as names:
        t.run("f(again, 2.6)")
    expect.true(not names, f"outside of the graph there ran: {', '.join(names)}", "expected: nothing")
    for name, results, right in zip(("long", "short", "not_finite"), t.found, wanted, strict=True):
        expect.equal(results[0], right, what=f"the first result of `f({name}, 2.6)`")
