"""Repair: one graph for three cases

The function below looks at the gradients of a model before a step. Where they are too long together, it
scales them to the length `limit`. Where one is infinite or not a number, it makes all of them zeros, so
that the step does nothing. It prints what it saw. It works, and `torch.compile` makes a heap of small
graphs of it: in five places it has to know a number before it can go on, or do something that is no operator.

Mend it: `torch.compile(remove_graph_breaks)` makes **one graph**, without a break, which serves all three
cases. Nothing may be lost by that.

- The results stay the same in each case, up to rounding: shapes and dtypes too. The gradients that came in
  are not changed. Where they were short enough, the result has their values, also where all are zeros.
- What it prints today, it returns instead: the second result is a dict of tensors without dimensions, which
  the caller can print. `"norm"` is the length of all gradients together, before anything is done to them, in
  any floating dtype; `"largest"` the number of the gradient that is the longest, of the first one where
  several are (`int64`); `"skipped"` is True where all were set to zero. Where they were, `"largest"` is not
  looked at.

`gradients` is a list of one or more tensors of any shapes and one dtype, float32 or float64. The arithmetic
must be compiled: a function that the compiler leaves to Python has no break either, and an operator of your
own is a place where it does not look.
"""

import contextlib
import io
import logging
import math
import types

import numpy as np
import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=20,
    hints=[
        "For each line: does it need the *value* of a tensor while Python runs? When the graph is made there "
        "are no values, only shapes and dtypes. `measure.graphs_compiled()` tells where the breaks are.",
        "A norm may stay a tensor, and so may a comparison. Several tensors without dimensions become one "
        "with `torch.stack`, and that has a norm and an argmax of its own. All cases can be computed, and "
        "one of them be chosen element by element.",
        "`torch.where` chooses, and a factor of zero does not: zero times something that is not a number is "
        "not a number. Decide twice, once about the factor and once about the zeros.",
    ],
)


@exercise.starter
def remove_graph_breaks(gradients: list[Tensor], limit: float) -> tuple[list[Tensor], dict]:
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


_LONG = "gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[0.0], [4.0], [12.0]])]"
_SHORT = "gradients = [torch.tensor([0.3, 0.0]), torch.tensor([[0.0], [0.1], [-0.2]])]"
_INFINITE = "gradients = [torch.tensor([math.inf, 0.0]), torch.tensor([[0.0], [4.0], [12.0]])]"
_NAN = "gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[0.0], [math.nan], [12.0]])]"
_ZERO = "gradients = [torch.zeros(2), torch.zeros(3, 1)]"


def _wanted(gradients, limit):
    """(gradients, norm, skipped) in double precision, from one long vector."""
    every = torch.cat([g.double().flatten() for g in gradients])
    norm = every.square().sum().sqrt()
    if not bool(norm.isfinite()):
        return [torch.zeros_like(g) for g in gradients], norm, True
    factor = limit / norm.item() if norm > limit else 1.0
    return [g.double().mul(factor).to(g.dtype) for g in gradients], norm, False


def _call(answer, setup, limit=2.6):
    t = expect.given(setup, remove_graph_breaks=answer, math=math)
    before = [g.clone() for g in t.gradients]
    found = t.call(f"remove_graph_breaks(gradients, {limit})")
    pair = isinstance(found, (tuple, list)) and len(found) == 2
    evidence.record("a pair", pair)
    if not pair:
        raise expect.Mismatch(f"the result is {expect.show(found)}, expected two things: gradients, report")
    return t, before, found


def _gradients(answer, *setups, limit=2.6, rtol=None):
    for setup in setups:
        t, before, (found, _) = _call(answer, setup, limit)
        expect.equal(
            found,
            _wanted(before, limit)[0],
            what="the first result",
            rtol=rtol,
            atol=None if rtol is None else 0.0,
        )
        for i, (gradient, was) in enumerate(zip(t.gradients, before, strict=True)):
            expect.unchanged(gradient, was, what=f"`gradients[{i}]`")


def _report(answer, setup, largest):
    t, before, (_, report) = _call(answer, setup)
    _, norm, skipped = _wanted(before, 2.6)
    missing = [
        key for key in ("norm", "largest", "skipped") if not isinstance(report, dict) or key not in report
    ]
    evidence.record("missing", missing)
    expect.true(
        not missing, f"the report has no {', '.join(map(repr, missing))}: it is {expect.show(report)}"
    )
    wanted = {"norm": norm.to(t.gradients[0].dtype), "skipped": torch.tensor(skipped)}
    if largest is not None:
        wanted["largest"] = torch.tensor(largest)
    for key, value in wanted.items():
        found = report[key]
        if key == "norm" and isinstance(found, Tensor) and found.is_floating_point():
            found = found.to(value.dtype)
        expect.equal(found, value, what=f"`report[{key!r}]`")


class _Watch(TorchFunctionMode):
    """Notes where Python asks a tensor for its value."""

    def __init__(self):
        super().__init__()
        self.asked = set()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__array__", "numpy"):
            self.asked.add(name)
        return function(*args, **(kwargs or {}))


def _what_python_wants(answer, gradients):
    """For telling mistakes apart: whether it takes numbers out of tensors, branches on one, prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), _Watch() as watch:
        answer(gradients, 2.6)
    return bool(watch.asked - {"__bool__"}), "__bool__" in watch.asked, bool(printed.getvalue())


@exercise.check
def the_three_cases(remove_graph_breaks):
    """Too long, short enough, and not finite: the same gradients as before"""
    _gradients(remove_graph_breaks, _LONG, _SHORT)
    _gradients(remove_graph_breaks, _INFINITE, _NAN)
    with expect.situation():
        gradients = expect.given(_SHORT).gradients
    evidence.record("what Python wants", _what_python_wants(remove_graph_breaks, gradients))


@exercise.check
def edges(remove_graph_breaks):
    """All zeros, exactly as long as the limit, one gradient alone, one without elements"""
    exactly = "gradients = [torch.tensor([3.0]), torch.tensor([[4.0]])]"
    _gradients(remove_graph_breaks, _ZERO, "gradients = [torch.tensor(-4.0)]")
    _gradients(remove_graph_breaks, _ZERO, exactly, limit=5.0)
    _gradients(remove_graph_breaks, "gradients = [torch.ones(2, 3).t(), torch.zeros(0)]", limit=1.0)
    small = "gradients = [torch.tensor([3e-6]), torch.tensor([[4e-6]])]"
    _gradients(remove_graph_breaks, small, limit=1e-6, rtol=1e-4)


@exercise.check
def double_precision(remove_graph_breaks):
    """Gradients in double precision keep theirs"""
    setup = "gradients = [torch.tensor([3.0, 0.1]).double() / 7, torch.ones(2, 2).double() / 3]"
    _gradients(remove_graph_breaks, setup, limit=0.3, rtol=1e-12)
    _gradients(remove_graph_breaks, setup, limit=30.0, rtol=1e-12)


@exercise.check
def the_report(remove_graph_breaks):
    """What was printed is in the report, in each case"""
    _report(remove_graph_breaks, _LONG, 1)
    _report(remove_graph_breaks, _SHORT, 0)
    _report(remove_graph_breaks, _INFINITE, None)
    _report(remove_graph_breaks, "gradients = [torch.ones(1), torch.ones(2), torch.ones(1, 2)]", 1)


def _own_operators(graphs):
    """What graphs call that is not torch's, by name: the compiler does not look into it."""
    parts = [part for graph in graphs for part in graph.modules() if isinstance(part, fx.GraphModule)]
    targets = [node.target for part in parts for node in part.graph.nodes if node.op == "call_function"]
    overloads = [t for t in targets if isinstance(t, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))]
    functions = [t for t in targets if isinstance(t, types.FunctionType)]
    found = [str(t) for t in overloads if str(t).partition(".")[0] not in ("aten", "prims")]
    return found + [t.__name__ for t in functions if t.__module__.partition(".")[0] != "torch"]


@exercise.check(isolated=True, deadline=60)
def one_graph(remove_graph_breaks):
    """One graph without a break serves all three cases"""
    torch._logging.set_logs(dynamo=logging.ERROR)  # what it would log at a break has the time in it
    lines = "f = torch.compile(remove_graph_breaks, backend='eager')", "f(long, 2.6)", "f(short, 2.6)"
    with expect.situation():
        cases = [expect.given(setup, math=math).gradients for setup in (_LONG, _SHORT, _NAN)]
    with expect.situation(*lines, "f(not_finite, 2.6)"), contextlib.redirect_stdout(io.StringIO()):
        made = []

        def backend(graph, inputs):
            made.append(graph)
            return graph.forward

        with measure.graphs_compiled() as compiled:
            f = torch.compile(remove_graph_breaks, backend=backend)
            found = [f(gradients, 2.6) for gradients in cases]
        with evidence.silent():  # how many more than one depends on the style of the answer
            graphs, breaks, skipped = compiled.graphs, compiled.breaks, compiled.skipped
        broken = [f"break: {reason}" for reason in compiled.reasons[:3]]
        evidence.record("told to leave it", any("disable" in reason for reason in compiled.reasons))
        often = "once" if breaks == 1 else f"{breaks} times"
        expect.true(breaks == 0, f"the graph ended {often} before the function did", *broken)
        compiles = graphs > 0 and not skipped
        expect.true(compiles, "no graph was made: what the function computes was left to Python")
        expect.true(graphs == 1, f"{graphs} graphs were made, expected one for all three cases")
        own = _own_operators(made)
        told = f"the graph calls {', '.join(f'`{name}`' for name in own)}, an operator of your own"
        expect.true(not own, told, "expected: torch's. What yours computes is not compiled")
        for gradients, results in zip(cases, found, strict=True):
            pair = isinstance(results, (tuple, list)) and len(results) == 2
            expect.true(pair, "a call did not return two things")
            expect.equal(results[0], _wanted(gradients, 2.6)[0], what="the first result")


# --- the mistakes -----------------------------------------------------------------------------------------


def _looked_at(gradients):
    """(norm, report), all of it tensors."""
    norms = torch.stack([g.norm() for g in gradients])
    norm = norms.norm()
    return norm, {"norm": norm, "largest": norms.argmax(), "skipped": ~norm.isfinite()}


def _chosen(gradients, limit, norm, report):
    factor = torch.where(norm > limit, limit / norm, torch.ones_like(norm))
    return [torch.where(report["skipped"], torch.zeros_like(g), g * factor) for g in gradients]


@exercise.mistake
def keeps_the_numbers(gradients, limit):
    """Somewhere Python still asks a tensor for its number: `.item()`, `float()`, `int()`, `.tolist()`, or a
    function of `math`, which calls `float()` itself. There is no number while the graph is made, so the graph
    ends there. Compute with tensors to the end."""
    norm = math.sqrt(sum(g.norm().item() ** 2 for g in gradients))
    skipped = not math.isfinite(norm)
    factor = limit / norm if norm > limit else 1.0
    _, report = _looked_at(gradients)
    return [torch.zeros_like(g) if skipped else g * factor for g in gradients], report


@keeps_the_numbers.form
def takes_numbers_and_branches(gradients, limit):
    norm, report = _looked_at(gradients)
    if not math.isfinite(norm.item()):
        return [torch.zeros_like(g) for g in gradients], report
    if norm > limit:
        return [g * (limit / norm) for g in gradients], report
    return [g.clone() for g in gradients], report


@keeps_the_numbers.form
def takes_numbers_branches_and_prints(gradients, limit):
    norm, report = _looked_at(gradients)
    print("norm", norm.item())
    if not norm.isfinite():
        return [torch.zeros_like(g) for g in gradients], report
    return [g * torch.clamp(limit / norm, max=1.0) for g in gradients], report


@exercise.mistake
def branches_on_a_tensor(gradients, limit):
    """There is still an `if` (or a `not`, an `and`, a `while`) on a tensor. Python has to know which way
    to go, and while the graph is made nobody does, so the graph ends there. Compute all cases and choose."""
    norm, report = _looked_at(gradients)
    if not norm.isfinite():
        return [torch.zeros_like(g) for g in gradients], report
    if norm > limit:
        return [g * (limit / norm) for g in gradients], report
    return [g.clone() for g in gradients], report


@branches_on_a_tensor.variant
def branches_in_an_expression(gradients, limit):
    norm, report = _looked_at(gradients)
    factor = limit / norm if norm > limit else 1.0
    return [torch.zeros_like(g) if report["skipped"] else factor * g for g in gradients], report


@exercise.mistake
def prints_still(gradients, limit):
    """It still prints. What is written to the screen is no operator: the graph ends there, and another begins
    behind it, also where the text needs no number. Return what there is to say."""
    norm, report = _looked_at(gradients)
    print("norm", norm, "largest", report["largest"])
    return _chosen(gradients, limit, norm, report), report


@exercise.mistake
def loses_the_report(gradients, limit):
    """One graph, and what was printed is gone. Leaving something out is no repair: put it into the second
    result, as tensors."""
    norm, report = _looked_at(gradients)
    return _chosen(gradients, limit, norm, report), {}


@exercise.mistake
def zero_times_nan(gradients, limit):
    """You make zeros by multiplying with zero. Zero times something that is infinite or not a number is not a
    number: the elements that had to go are the ones that stay. `torch.where` takes one or the other."""
    norm, report = _looked_at(gradients)
    factor = torch.where(report["skipped"], torch.zeros_like(norm), (limit / norm).clamp(max=1.0))
    return [g * factor for g in gradients], report


@zero_times_nan.variant
def multiplies_by_the_answer(gradients, limit):
    norm, report = _looked_at(gradients)
    scaled = [torch.where(norm > limit, g * (limit / norm), g) for g in gradients]
    return [torch.where(norm.isfinite(), g, g * 0) for g in scaled], report


@exercise.mistake
def always_scales(gradients, limit):
    """Gradients that were short enough are made longer: you scale in each case. The factor is never above
    1."""
    norm, report = _looked_at(gradients)
    factor = limit / norm
    return [torch.where(report["skipped"], torch.zeros_like(g), g * factor) for g in gradients], report


@always_scales.form
def always_scales_but_zeros(gradients, limit):
    norm, report = _looked_at(gradients)
    zeros = report["skipped"] | (norm == 0)
    return [torch.where(zeros, torch.zeros_like(g), g * (limit / norm)) for g in gradients], report


@exercise.mistake
def adds_an_epsilon(gradients, limit):
    """You add a small number to the length before you divide, so the result is shorter than `limit`. A length
    of zero needs no such help: the quotient is infinite, and the factor is never above 1."""
    norm, report = _looked_at(gradients)
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    return [torch.where(report["skipped"], torch.zeros_like(g), g * factor) for g in gradients], report


@exercise.mistake
def zeros_in_part(gradients, limit):
    """You make zeros only where something is infinite or not a number, and the rest goes into the step. One
    such element is enough to make zeros of all gradients."""
    norm, report = _looked_at(gradients)
    factor = torch.where(report["skipped"], torch.ones_like(norm), (limit / norm).clamp(max=1.0))
    return [torch.nan_to_num(g, 0.0, 0.0, 0.0) * factor for g in gradients], report


@zeros_in_part.form
def zeros_gradient_by_gradient(gradients, limit):
    norm, report = _looked_at(gradients)
    factor = torch.where(report["skipped"], torch.ones_like(norm), (limit / norm).clamp(max=1.0))
    return [torch.where(g.norm().isfinite(), g * factor, torch.zeros_like(g)) for g in gradients], report


@exercise.mistake
def not_a_number_alone(gradients, limit):
    """You ask for what is not a number, and a gradient that is infinite is not skipped. `isfinite` is False
    for both."""
    norm, report = _looked_at(gradients)
    report["skipped"] = norm.isnan()
    return _chosen(gradients, limit, norm, report), report


@exercise.mistake
def leaves_it_to_python(gradients, limit):
    """The compiler was told to leave your function, or a part of it, to Python. That part runs as before,
    operator by operator, and the graph ends where it begins."""
    return _before(gradients, limit)


@torch.compiler.disable
def _before(gradients, limit):
    norm, report = _looked_at(gradients)
    return _chosen(gradients, limit, norm, report), report


@leaves_it_to_python.form
def leaves_the_numbers_to_python(gradients, limit):
    return _as_it_was(gradients, limit)


@torch.compiler.disable
def _as_it_was(gradients, limit):
    norm, report = _looked_at(gradients)
    if not math.isfinite(norm.item()):
        return [torch.zeros_like(g) for g in gradients], report
    factor = limit / norm.item() if norm.item() > limit else 1.0
    return [g * factor for g in gradients], report


@exercise.mistake
def in_single_precision(gradients, limit):
    """You compute the length in float32. For gradients in double precision the factor is then wrong in the
    eighth digit: leave the dtype to the gradients."""
    norm = torch.stack([g.float().norm() for g in gradients]).norm()
    _, report = _looked_at(gradients)
    return _chosen(gradients, limit, norm, report), report
