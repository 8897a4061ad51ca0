"""Assertions that say what was expected and what came.

Each function raises `Mismatch` at the first difference, in layers: type, shape, dtype, device, then the
first differing element with both values, and with it the symptom: what is known of the wrong value.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from course_utils.exercise.alone import hooks_left_alone, left_alone
from course_utils.exercise.compare import (
    How,
    a_tensor,
    compare,
    compare_elements,
    is_tensor,
    name_of,
    numbers,
    place,
    show,
    symptom,
)
from course_utils.exercise.given import Given, example, given, situation
from course_utils.exercise.mismatch import CannotCheck, Mismatch, looked, looking, note, noting

__all__ = [
    "CannotCheck",
    "Given",
    "Mismatch",
    "a_tensor",
    "at_most",
    "close",
    "equal",
    "example",
    "given",
    "hooks_left_alone",
    "in_graph",
    "is_tensor",
    "left_alone",
    "looked",
    "looking",
    "note",
    "noting",
    "own_storage",
    "raises",
    "same_storage",
    "show",
    "situation",
    "strides",
    "true",
    "unchanged",
]


def equal(
    actual: Any,
    expected: Any,
    *,
    what: str = "the result",
    rtol: float | None = None,
    atol: float | None = None,
    like: Mapping[str, Any] | None = None,
    factors: Mapping[str, float] | None = None,
) -> None:
    """Checks that `actual` is what is expected: structure, types, shapes, dtypes, devices and values.

    Tensors of floating point agree within the tolerance that `torch.testing` derives from their dtype, which
    gets smaller where all that is expected is below 1 (or within `rtol` and `atol`); integers, booleans and
    strings agree exactly. A list is accepted for a tuple, a scalar of NumPy's for a number, any mapping for a
    dict.

    Only for the message where it differs: `like`, other values that it may have, by what they are
    (`{"what this rank alone computed": own}`); `factors`, numbers by which it may be off, by name
    (`{"the world size": 2}`).
    """
    looked()
    compare(actual, expected, what, How(rtol, atol, dict(like or {}), dict(factors or {})))


def close(
    actual: Tensor,
    oracle: Tensor,
    *,
    what: str = "the result",
    factor: float = 4.0,
    like: Mapping[str, Any] | None = None,
) -> None:
    """Checks that `actual` is the float64 `oracle` up to the rounding of its own dtype.

    Allowed is `factor` times the dtype's epsilon, relative to the largest element of the oracle. `like`: see
    `equal`.
    """
    looked()
    actual = a_tensor(actual, what=what)
    how = How(0.0, 0.0, dict(like or {}), {})
    if actual.shape != oracle.shape:
        message = f"the shape of {what} is {tuple(actual.shape)}, expected {tuple(oracle.shape)}"
        raise Mismatch(message, symptom=symptom(actual, oracle, what, how))
    if not actual.is_floating_point():
        raise Mismatch(f"the dtype of {what} is {name_of(actual.dtype)}, expected one of floating point")
    scale = oracle.abs().max().item() if oracle.numel() else 0.0
    how.eps = torch.finfo(actual.dtype).eps
    how.atol = factor * torch.finfo(actual.dtype).eps * max(scale, torch.finfo(actual.dtype).tiny)
    compare_elements(actual.detach().double().cpu(), oracle.detach().double().cpu(), what, how)


def same_storage(view: Tensor, source: Tensor, *, what: str = "the result", of: str = "the input") -> None:
    """Checks that `view` reads the storage of `source`: no element was copied."""
    view = a_tensor(view, what=what)
    size = view.untyped_storage().nbytes()
    told = f"{what} has a storage of its own, of {size} bytes: its elements were copied"
    true(_shares_memory(view, source), told, f"expected: it shares the storage of {of}")


def own_storage(copy: Tensor, source: Tensor, *, what: str = "the result", of: str = "the input") -> None:
    """Checks that `copy` has a storage of its own, not that of `source`."""
    told = f"{what} shares the storage of {of}: writing to one changes the other"
    true(not _shares_memory(a_tensor(copy, what=what), source), told, "expected: a storage of its own")


def _shares_memory(a: Tensor, b: Tensor) -> bool:
    """Whether the storage of one begins in that of the other. What goes through NumPy has a storage object of
    its own, over the same memory."""
    a, b = a.untyped_storage(), b.untyped_storage()
    if a.data_ptr() == b.data_ptr():
        return True
    return any(y.data_ptr() <= x.data_ptr() < y.data_ptr() + y.nbytes() for x, y in ((a, b), (b, a)))


def strides(actual: Tensor, expected: Sequence[int], *, what: str = "the result") -> None:
    """Checks the strides of a result, in elements, on every dimension of more than one element."""
    actual, wanted = a_tensor(actual, what=what), tuple(expected)
    seen = actual.stride()
    pairs = zip(seen, wanted, actual.shape, strict=False)
    same = len(seen) == len(wanted) and all(a == b or n <= 1 for a, b, n in pairs)
    true(same, f"the strides of {what} are {seen}, expected {wanted}")


def unchanged(tensor: Tensor, before: Tensor, *, what: str = "the input") -> None:
    """Checks that `tensor` still holds what it held `before` (a clone made earlier)."""
    looked()
    if tensor.shape != before.shape:
        raise Mismatch(f"the shape of {what} was {tuple(before.shape)} and is {tuple(tensor.shape)} now")
    same = (tensor == before) | ((tensor != tensor) & (before != before))
    if not bool(same.all()):
        index = tuple((~same).nonzero()[0].tolist())
        was, now = numbers(before[index].item(), tensor[index].item())
        raise Mismatch(f"{what} was changed: element {place(index)} was {was} and is {now} now")


def in_graph(result: Any, *, what: str = "the result", of: str = "the input") -> None:
    """Checks that `result` was made by an operator in the graph: a gradient can go back from it."""
    result = a_tensor(result, what=what)
    told = f"{of} requires a gradient and {what} does not: it has left the graph"
    if result.requires_grad:
        told = f"{what} requires a gradient of its own, and has no `grad_fn`: nothing leads from it to {of}"
    true(result.grad_fn is not None, told, f"expected: it is part of the graph of {of}")


def true(condition: bool, *message: str) -> None:
    """Checks that a condition holds. `message`: what is the case when it does not, then what was expected."""
    condition = bool(condition)
    looked()
    if not condition:
        raise Mismatch(*message)


def at_most(actual: float, limit: float, what: str, *, unit: str = "") -> None:
    """Checks that a count or a number of bytes (`unit="bytes"`) is no larger than `limit`."""
    most = f"at most {_amount(limit, unit)}" if limit else "none"
    true(actual <= limit, f"{what}: {_amount(actual, unit)}, expected {most}")


def raises(
    kind: type[BaseException], function: Callable[[], Any], *, what: str = "the call"
) -> BaseException:
    """Checks that `function()` raises an exception of this `kind`, and returns it."""
    try:
        came = function()
    except kind as error:
        looked()
        return error
    looked()
    raise Mismatch(f"{what} returned {show(came)}, expected: it raises `{kind.__name__}`")


def _amount(value: float, unit: str) -> str:
    text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return f"{text} {unit}".strip()
