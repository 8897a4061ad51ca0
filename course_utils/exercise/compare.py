"""Compares what came with what was expected, layer by layer: `Mismatch` at the first difference."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from course_utils import torch_private
from course_utils.exercise import symptoms
from course_utils.exercise.given import known_numbers, known_tensors
from course_utils.exercise.mismatch import Mismatch
from course_utils.words import with_article

# Longer reprs are cut in messages.
WIDEST = 160
# What an answer returned is called so. Where that is None, a `return` may be missing.
RETURNED = "the result"


def show(value: Any) -> str:
    """Writes a value for a message: short, on one line, the same on every run."""
    if isinstance(value, Tensor):
        if value.numel() <= 16 and value.device.type != "meta":
            with torch.no_grad():
                return f"`{_cut(' '.join(repr(value.detach()).split()))}`"
        return f"a tensor of shape {tuple(value.shape)} and dtype {name_of(value.dtype)}"
    if isinstance(value, torch.nn.Module) or callable(value):
        return with_article(type(value).__name__)
    try:
        text = _cut(" ".join(repr(value).split()))
    except Exception:  # an object that cannot show itself
        text = " at 0x"
    return with_article(type(value).__name__) if " at 0x" in text else f"`{text}`"


@dataclass
class How:
    """How closely two values are compared, and what may be known of one that differs. `eps`: how finely they
    are rounded, where that is coarser than their dtype says."""

    rtol: float | None = None
    atol: float | None = None
    like: dict[str, Any] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)
    eps: float = 0.0


# Differences of so many times the epsilon, beside numbers of about 1, are rounding.
ROUNDING = 8


def _tolerances(actual: Tensor, expected: Tensor, how: How) -> tuple[float, float]:
    rtol, atol = torch_private.default_tolerances(actual, expected)
    measured = _is_rounded(expected) and expected.layout is torch.strided and not expected.is_meta
    if atol and how.atol is None and measured:
        sizes = expected.detach().abs().flatten()
        sizes = sizes[sizes.isfinite()]
        eps = max(torch.finfo(t.dtype).eps for t in (actual, expected) if _is_rounded(t))
        atol = _following(atol, sizes.max().item() if len(sizes) else 0.0, eps)
    return rtol if how.rtol is None else how.rtol, atol if how.atol is None else how.atol


def _is_rounded(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _following(atol: float, size: float, eps: float) -> float:
    """The tolerance beside numbers of this size: smaller where they are, down to what is rounding where they
    came from numbers of about 1."""
    return min(atol, max(atol * size, ROUNDING * eps))


def symptom(actual: Tensor, expected: Tensor, what: str, how: How) -> str:
    """What is known of a wrong tensor, in a sentence; no text where nothing is."""
    rtol, atol = _tolerances(actual, expected, how)
    return symptoms.of_tensor(
        actual,
        expected,
        what=what,
        rtol=rtol,
        atol=atol,
        eps=how.eps,
        like=how.like,
        known=known_tensors(),
        numbers=known_numbers(),
        factors=how.factors,
    )


def compare(actual: Any, expected: Any, what: str, how: How, path: str = "") -> None:
    """`path`: where in `what` these two stand, as code."""
    whole, what = what, _inside(what, path)
    if isinstance(expected, Tensor):
        _compare_tensors(actual, expected, what, how)
    elif isinstance(expected, Mapping):
        if not issubclass(type(actual), Mapping):
            raise Mismatch(f"{what} is {kind_of(actual, what)}, expected a dict")
        if missing := [key for key in expected if key not in actual]:
            raise Mismatch(f"{what} has no {show(missing[0])}")
        if extra := [key for key in actual if key not in expected]:
            raise Mismatch(f"{what} has {show(extra[0])}, which was not expected")
        for key, value in expected.items():
            compare(actual[key], value, whole, how, f"{path}[{key!r}]")
    elif isinstance(expected, (tuple, list)):
        if not isinstance(actual, (tuple, list)):
            raise Mismatch(
                f"{what} is {kind_of(actual, what)}, expected {kind_of(expected, what)}: {show(expected)}"
            )
        if _is_plain(expected):
            if not _same_plain(actual, expected):
                raise Mismatch(f"{what} is {show(actual)}, expected {show(expected)}")
            return
        if len(actual) != len(expected):
            raise Mismatch(f"{what} has {len(actual)} entries, expected {len(expected)}")
        for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
            compare(a, b, whole, how, f"{path}[{i}]")
    elif isinstance(expected, float):
        actual = own_value(actual)
        number = type(actual) in (int, float)
        rtol = 1e-6 if how.rtol is None else how.rtol
        # Where nothing is expected there is no size to follow.
        atol = _following(1e-12, abs(expected) or 1.0, sys.float_info.epsilon)
        atol = atol if how.atol is None else how.atol
        both_nan = number and math.isnan(actual) and math.isnan(expected)
        near = number and math.isclose(actual, expected, rel_tol=rtol, abs_tol=atol)
        if not (near or both_nan):
            shown = numbers(actual, expected) if number else (_no_number(actual), show(expected))
            said = _of_number(actual, expected, what, how)
            raise Mismatch(f"{what} is {shown[0]}, expected {shown[1]}", symptom=said)
    elif isinstance(expected, int) and not isinstance(expected, bool):
        actual = own_value(actual)
        if type(actual) is not int or actual != expected:
            said = _of_number(actual, expected, what, how)
            raise Mismatch(f"{what} is {_no_number(actual)}, expected {show(expected)}", symptom=said)
    elif not _same_plain(actual, expected):
        raise Mismatch(f"{what} is {show(actual)}, expected {show(expected)}")


def _no_number(value: Any) -> str:
    """What stands where a number is expected: a tensor may look like one."""
    return f"a tensor, {show(value)}" if is_tensor(value) else show(value)


def _inside(what: str, path: str) -> str:
    """What stands at a path, code that follows a name: `x[0]`, or `[0]` of what words say."""
    if not path:
        return what
    code = what.removeprefix("`").removesuffix("`")
    if what == f"`{code}`" and "`" not in code:
        return f"`{code}{path}`"
    return f"`{path}` of {what}" if " " in what or "`" in what else what + path


def _of_number(actual: Any, expected: float, what: str, how: How) -> str:
    if type(actual) not in (int, float) or not math.isfinite(actual) or not math.isfinite(expected):
        return ""
    for name, other in how.like.items():
        near = type(other) in (int, float) and math.isclose(actual, other, rel_tol=1e-6)
        if near and abs(actual - other) * symptoms.CLOSER <= abs(actual - expected):
            return f"{what[0].upper()}{what[1:]} is {name}."
    return symptoms.of_number(actual, expected, what=what, numbers=known_numbers(), factors=how.factors)


def _is_plain(value: Any) -> bool:
    """Whether a tuple or list holds nothing that needs a tolerance: it is shown and compared as a whole."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return not isinstance(value, (Tensor, Mapping, float))


def _same_plain(actual: Any, expected: Any) -> bool:
    if isinstance(expected, (tuple, list)):
        if not isinstance(actual, (tuple, list)) or len(actual) != len(expected):
            return False
        return all(map(_same_plain, actual, expected))
    # Neither `True` nor `1.0` is 1, nor is a tensor.
    actual, expected = own_value(actual), own_value(expected)
    return type(actual) is type(expected) and bool(actual == expected)


def own_value(value: Any) -> Any:
    """A number or a text as Python's own: NumPy's, or one of a class of the reader's, which may define `==`
    as it likes. Anything else as it is."""
    kind, numpy = type(value), sys.modules.get("numpy")
    if numpy and issubclass(kind, numpy.generic):
        value = numpy.generic.item(value)
        kind = type(value)
    if kind is bool:
        return value
    for own in (int, float, str):
        if issubclass(kind, own):
            return {int: int.__int__, float: float.__float__, str: str.__str__}[own](value)
    return None if isinstance(value, (int, float)) else value


def _compare_tensors(actual: Any, expected: Tensor, what: str, how: How) -> None:
    actual = a_tensor(actual, what=what)
    if _layout(actual) != _layout(expected):
        raise Mismatch(f"{what} is a {_layout(actual)} tensor, expected a {_layout(expected)} one")
    for part, came, wanted in (
        ("shape", tuple(actual.shape), tuple(expected.shape)),
        ("dtype", name_of(actual.dtype), name_of(expected.dtype)),
    ):
        if came != wanted:
            message = f"the {part} of {what} is {came}, expected {wanted}"
            raise Mismatch(message, symptom=symptom(actual, expected, what, how))
    if actual.device.type != expected.device.type:
        raise Mismatch(f"{what} is on {actual.device.type}, expected on {expected.device.type}")
    if actual.device.type == "meta":
        return
    with torch.no_grad():
        if actual.layout is not torch.strided:
            actual, expected = actual.to_dense(), expected.to_dense()
        compare_elements(actual.detach().cpu(), expected.detach().cpu(), what, how)


def compare_elements(actual: Tensor, expected: Tensor, what: str, how: How) -> None:
    """Raises at the first element, in the order of reading, that differs beyond the tolerance."""
    actual, expected = actual.resolve_conj().resolve_neg(), expected.resolve_conj().resolve_neg()
    rtol, atol = _tolerances(actual, expected, how)
    wrong = ~torch.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    if not bool(wrong.any()):
        return
    index = tuple(wrong.nonzero()[0].tolist())
    if _is_rounded(expected):
        wrong = symptoms.differing(actual, expected, rtol=rtol, atol=atol, eps=how.eps)
    came, wanted = numbers(actual[index].item(), expected[index].item())
    where = f"element {place(index)} of {what}" if index else what
    message = [f"{where} is {came}, expected {wanted}"]
    if wrong.sum() > 1:
        message.append(f"{int(wrong.sum())} of {wrong.numel()} elements differ")
    if 1 < actual.numel() <= 16 and actual.dim() <= 2:
        message += [f"it is {_whole(actual, came)}", f"expected {_whole(expected, wanted)}"]
    raise Mismatch(*message, symptom=symptom(actual, expected, what, how))


def a_tensor(value: Any, *, what: str = RETURNED) -> Tensor:
    """Checks that a value is a tensor and returns it, without a class of the reader's. Raises `Mismatch` if
    not."""
    if not is_tensor(value):
        raise Mismatch(f"{what} is {kind_of(value, what)}, expected a tensor")
    return plain(value)


def is_tensor(value: Any) -> bool:
    """True for a tensor. (`isinstance` believes what an object says of its own class.)"""
    return issubclass(type(value), Tensor)


def plain(tensor: Tensor) -> Tensor:
    """The tensor without a class of the reader's: such a class may answer anything that is asked of it."""
    kind = type(tensor)
    name = kind.__module__
    if name.startswith("torch") and getattr(sys.modules.get(name), kind.__name__, None) is kind:
        return tensor
    with torch_private.DisableTorchFunctionSubclass():
        return torch.Tensor.as_subclass(tensor, torch.Tensor)


def _layout(tensor: Tensor) -> str:
    """`strided`, `sparse_coo`, `nested`, ..."""
    return "nested" if tensor.is_nested else name_of(tensor.layout)


def kind_of(value: Any, what: str) -> str:
    if value is None:
        return f"None{' (is a `return` missing?)' if what == RETURNED else ''}"
    return with_article(type(value).__name__)


def place(index: tuple[int, ...]) -> str:
    return f"`[{', '.join(map(str, index))}]`"


def numbers(x: Any, y: Any) -> tuple[str, str]:
    """Two numbers that differ, with as many digits as it takes to see it."""
    if not (isinstance(x, float) and isinstance(y, float)):
        return _number(x), _number(y)
    for digits in range(6, 18):
        shown = _number(x, digits), _number(y, digits)
        if shown[0] != shown[1]:
            break
    return shown


def _number(value: Any, digits: int = 6) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def _whole(tensor: Tensor, differing: str) -> str:
    """All elements, with as many digits as the first that differs needs (`differing`)."""
    digits = max(6, len(differing.partition("e")[0].replace(".", "").lstrip("-0")))

    def written(values: Any) -> str:
        if isinstance(values, list):
            return f"[{', '.join(map(written, values))}]"
        return _number(values, digits)

    return written(tensor.tolist())


def name_of(dtype: torch.dtype | torch.layout) -> str:
    return str(dtype).removeprefix("torch.")


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
