"""Assertions that say what was expected and what came.

Each function records what it observed as evidence (see `evidence`) and raises `Mismatch` at the first
difference, in layers: type, shape, dtype, device, then the first differing element with both values.
`given` runs an example and puts it into the message, so that the reader can try what failed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from course_utils import evidence

# Longer reprs are cut in messages.
WIDEST = 160
# What an answer returned is called so. Where that is None, a `return` may be missing.
_RETURNED = "the result"
# What a size may be written as.
_SEQUENCES = (tuple, list, torch.Size)

_situation: ContextVar[tuple[str, ...]] = ContextVar("situation", default=())


class Mismatch(AssertionError):
    """What came is not what was expected. `lines` is the message, the failing example first."""

    def __init__(self, *lines: str) -> None:
        self.lines = [*example(), *lines]
        super().__init__("\n".join(self.lines))


def example() -> list[str]:
    """The line that shows what was run, so that the reader can try it; no line where nothing was given."""
    code = ", ".join(f"`{line}`" for line in _situation.get())
    return [f"for {code}"] if code else []


class CannotCheck(Exception):
    """This machine, or this run, cannot decide: the outcome is *could not check*, never *passed*."""


class Given:
    """An example: lines of code that were run, and the names that they made.

    The names are attributes; `call` evaluates an expression among them. What is shown to the reader
    is the code that ran, so it can be copied into a cell.
    """

    def __init__(self, setup: str, names: dict[str, Any]) -> None:
        self.__dict__["_names"] = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, **names}
        self.__dict__["_setup"] = [line for line in setup.strip().splitlines() if line.strip()]
        with situation(*(line.strip() for line in self._setup)):
            exec(compile(setup.strip(), "<given>", "exec"), self._names)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._names[name]
        except KeyError:
            raise AttributeError(name) from None

    def call(self, expression: str) -> Any:
        """Evaluates the expression; messages from here on show the example."""
        _situation.set((*(line.strip() for line in self._setup), expression))
        return eval(compile(expression, "<given>", "eval"), self._names)


def given(setup: str, **names: Any) -> Given:
    """Runs `setup` with `names` (and `torch`, `nn`, `F`) and returns what it made.

    t = expect.given("x = torch.arange(12)[::2]", sliding_windows=sliding_windows)
    expect.equal(t.call("sliding_windows(x, 3)"), t.x.unfold(0, 3, 1))
    """
    return Given(setup, names)


def tensor_line(name: str, values: Any, device: torch.device, **options: Any) -> str:
    """The line of code that makes a tensor of these values there.

    `tensor_line("x", [1.0, 2.0], device, requires_grad=True)`
    """
    more = "".join(f", {option}={value}" for option, value in options.items())
    return f"{name} = torch.tensor({values}{on(device)}{more})"


def on(device: torch.device) -> str:
    """The argument `, device='cuda'` as code; no text for the CPU, where a tensor is made anyway."""
    return "" if device.type == "cpu" else f", device='{device.type}'"


@contextlib.contextmanager
def situation(*code: str) -> Iterator[None]:
    """Messages of what runs inside start with "for `code`"; without arguments: with nothing."""
    token = _situation.set(code)
    yield
    # Not where something was raised: what is said of it begins with this code.
    _situation.reset(token)


def equal(
    actual: Any,
    expected: Any,
    *,
    what: str = "the result",
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """`actual` is what is expected: same structure, types, shapes, dtypes, devices and values.

    Tensors of floating point agree within the tolerance that `torch.testing` derives from their dtype
    (or `rtol` and `atol`); integers, booleans and strings agree exactly. A list is accepted for a tuple.
    """
    evidence.record("equal", actual)
    _compare(actual, expected, what, rtol, atol)


def close(actual: Tensor, oracle: Tensor, *, what: str = "the result", factor: float = 4.0) -> None:
    """`actual` is the float64 `oracle` up to the rounding of its own dtype.

    Allowed is `factor` times the dtype's epsilon, relative to the largest element of the oracle.
    """
    evidence.record("close", actual)
    actual = _tensor(actual, what)
    if actual.shape != oracle.shape:
        raise Mismatch(f"the shape of {what} is {tuple(actual.shape)}, expected {tuple(oracle.shape)}")
    if not actual.is_floating_point():
        raise Mismatch(f"the dtype of {what} is {_name(actual.dtype)}, expected one of floating point")
    scale = oracle.abs().max().item() if oracle.numel() else 0.0
    allowed = factor * torch.finfo(actual.dtype).eps * max(scale, torch.finfo(actual.dtype).tiny)
    _compare_elements(actual.double().cpu(), oracle.double().cpu(), what, 0.0, allowed)


def same_storage(view: Tensor, source: Tensor, *, what: str = "the result", of: str = "the input") -> None:
    """`view` reads the storage of `source`: no element was copied."""
    view = _tensor(view, what)
    shares = view.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
    evidence.record("same_storage", shares)
    if not shares:
        size = view.untyped_storage().nbytes()
        raise Mismatch(
            f"{what} has a storage of its own, of {size} bytes: its elements were copied",
            f"expected: it shares the storage of {of}",
        )


def own_storage(copy: Tensor, source: Tensor, *, what: str = "the result", of: str = "the input") -> None:
    """`copy` does not read the storage of `source`."""
    copy = _tensor(copy, what)
    shares = copy.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
    evidence.record("own_storage", shares)
    if shares:
        raise Mismatch(
            f"{what} shares the storage of {of}: writing to one changes the other",
            "expected: a storage of its own",
        )


def strides(actual: Tensor, expected: Sequence[int], *, what: str = "the result") -> None:
    """The strides are these, on every dimension that has more than one element."""
    actual = _tensor(actual, what)
    evidence.record("strides", actual.stride())
    seen, wanted = actual.stride(), tuple(expected)
    if len(seen) != len(wanted) or any(
        a != b for a, b, n in zip(seen, wanted, actual.shape, strict=False) if n > 1
    ):
        raise Mismatch(f"the strides of {what} are {seen}, expected {wanted}")


def unchanged(tensor: Tensor, before: Tensor, *, what: str = "the input") -> None:
    """`tensor` still holds what it held `before` (a clone made earlier)."""
    evidence.record("unchanged", tensor)
    if tensor.shape != before.shape:
        raise Mismatch(f"the shape of {what} was {tuple(before.shape)} and is {tuple(tensor.shape)} now")
    same = (tensor == before) | ((tensor != tensor) & (before != before))
    if not bool(same.all()):
        index = _first(~same)
        was, now = _numbers(before[index], tensor[index])
        raise Mismatch(f"{what} was changed: element {_at(index)} was {was} and is {now} now")


@contextlib.contextmanager
def left_alone(tensor: Tensor, *, what: str = "the input") -> Iterator[None]:
    """What runs inside leaves the tensor as it is: its size and strides, its storage and its elements."""
    size, stride, storage = tuple(tensor.shape), tensor.stride(), _place(tensor)
    before = tensor.detach().clone()
    yield
    for part, was, now in (("size", size, tuple(tensor.shape)), ("stride", stride, tensor.stride())):
        evidence.record(f"left alone: {part}", now == was)
        if now != was:
            raise Mismatch(f"{what} was changed: its {part} was {was} and is {now} now")
    evidence.record("left alone: storage", _place(tensor) == storage)
    if _place(tensor) != storage:
        raise Mismatch(f"{what} was changed: it reads from another place now than before the call")
    unchanged(tensor.detach(), before, what=what)


def _place(tensor: Tensor) -> tuple[int, int]:
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset()


def a_tensor(value: Any, *, what: str = "the result") -> Tensor:
    """It is a tensor; without a class of the reader's."""
    return _tensor(value, what)


def in_graph(result: Any, *, what: str = "the result", of: str = "the input") -> None:
    """`result` is a tensor that an operator made inside the graph: a gradient can go back from it."""
    result = _tensor(result, what)
    evidence.record("in graph", result.grad_fn is not None)
    if result.grad_fn is not None:
        return
    if result.requires_grad:
        raise Mismatch(
            f"{what} requires a gradient of its own, and has no `grad_fn`: nothing leads from it to {of}",
            f"expected: it is part of the graph of {of}",
        )
    raise Mismatch(
        f"{of} requires a gradient and {what} does not: it has left the graph",
        f"expected: it is part of the graph of {of}",
    )


def true(condition: bool, *message: str) -> None:
    """The condition holds. `message`: what is the case when it does not, then what was expected."""
    condition = bool(condition)
    evidence.record("true", condition)
    if not condition:
        raise Mismatch(*message)


def at_most(actual: float, limit: float, what: str, *, unit: str = "") -> None:
    """A count or a number of bytes stays within a limit."""
    evidence.record("at_most", actual)
    if not actual <= limit:
        raise Mismatch(f"{what}: {_amount(actual, unit)}, expected at most {_amount(limit, unit)}")


def at_least(actual: float, limit: float, what: str, *, unit: str = "") -> None:
    """A count or a number of bytes reaches a limit."""
    evidence.record("at_least", actual)
    if not actual >= limit:
        raise Mismatch(f"{what}: {_amount(actual, unit)}, expected at least {_amount(limit, unit)}")


def raises(
    kind: type[BaseException], function: Callable[[], Any], *, what: str = "the call"
) -> BaseException:
    """Calling `function` raises `kind`; the exception is returned."""
    try:
        came = function()
    except kind as error:
        evidence.record("raises", type(error).__name__)
        return error
    evidence.record("raises", came)
    raise Mismatch(f"{what} returned {show(came)}, expected a {kind.__name__}")


def predicted(predictions: Any, name: str, truth: Any, *, code: str) -> None:
    """One line of a prediction: what the reader wrote for `name` against what torch did just now.

    `code` is what was run. `...` stands for "not answered yet".
    """
    _report_lines([_line_of(_as_lines(predictions), name, truth, code, ())])


def all_predicted(
    predictions: Any,
    truths: dict[str, Any],
    *,
    names: Iterable[str] | None = None,
    parts: Sequence[str] = (),
) -> None:
    """A group of lines of a prediction: every wrong one is told, not only the first.

    `truths` says for each expression what torch did just now. `names` are all lines that there are, in other
    groups too: another name is pointed out where a line is missing. `parts`: the truths are tuples, and this
    is what their entries are called.
    """
    answers = _as_lines(predictions)
    told = [_line_of(answers, name, truth, name, parts) for name, truth in truths.items()]
    missing = any(name not in answers for name in truths)
    if missing and names is not None and (unknown := [key for key in answers if key not in set(names)]):
        told.append(f"there is a line for {show(unknown[0])}, which was not asked for")
    _report_lines(told)


def _as_lines(predictions: Any) -> dict[str, Any]:
    if type(predictions) is not dict:
        evidence.record("predicted", None)
        raise Mismatch(
            f"the result is {_kind(predictions, _RETURNED)}, expected a dict with a line for each expression"
        )
    return predictions


def _report_lines(told: list[str | None]) -> None:
    if wrong := [line for line in told if line is not None]:
        raise Mismatch(*wrong)


def _line_of(answers: dict[str, Any], name: str, truth: Any, code: str, parts: Sequence[str]) -> str | None:
    """What is wrong with one line of a prediction; None where nothing is."""
    if name not in answers:
        evidence.record(f"predicted {name}", "no line")
        return f"`{code}`: there is no line for it"
    guess = answers[name]
    if guess is ...:
        evidence.record(f"predicted {name}", "not answered")
        return f"`{code}`: no prediction yet (it still says `...`)"
    if not parts:
        guess = _as_written(guess, truth)
        evidence.record(f"predicted {name}", guess)
        wrong = _wrong_prediction(guess, truth)
        return f"`{code}`: you predicted {wrong}" if wrong else None
    if type(guess) not in _SEQUENCES or len(guess) != len(parts):
        evidence.record(f"predicted {name}", guess)
        wanted = ", ".join(parts)
        return f"`{code}`: your line is {show(guess)}, expected {len(parts)} things in brackets: {wanted}"
    guess = [_as_written(*pair) for pair in zip(guess, truth, strict=True)]
    evidence.record(f"predicted {name}", guess)
    found = []
    for part, one, true in zip(parts, guess, truth, strict=True):
        if wrong := _wrong_prediction(one, true):
            found.append(f"{part} {wrong}")
    return f"`{code}`: {'; '.join(found)}" if found else None


def _as_written(guess: Any, truth: Any) -> Any:
    """A size of one dimension may be written as a number."""
    one = type(guess) is int and type(truth) in _SEQUENCES and len(truth) == 1
    return (guess,) if one else guess


def _wrong_prediction(guess: Any, truth: Any) -> str | None:
    """Both values; only what kind of thing was asked for, where the guess is of another kind."""
    if _same_prediction(guess, truth):
        return None
    if guess is ...:
        return "`...`, which is no prediction yet"
    if isinstance(truth, bool) and type(guess) is not bool:
        return f"{show(guess)}, which is neither `True` nor `False`"
    if isinstance(truth, torch.dtype) and type(guess) is not torch.dtype:
        shown = f"`{guess.__name__}`, a type" if isinstance(guess, type) else f"{show(guess)}"
        return f"{shown}, but what was asked for is a dtype of torch's, such as `torch.int16`"
    return f"{show(guess)}, torch says {show(truth)}"


def written_down(predict: Callable[[], Any]) -> Any:
    """What `predict` returns, which it must know without running any of torch's operators."""
    from course_utils import measure

    with measure.operators() as ran:
        predictions = predict()
    number = len(ran.calls)
    evidence.record("predicted without torch", number == 0)
    if number:
        raise Mismatch(
            f"{number} of torch's operators ran while the predictions were made",
            "expected: none. A prediction is what you believe before torch tells you",
        )
    return _as_lines(predictions)


def show(value: Any) -> str:
    """A value for a message: short, on one line, the same on every run."""
    if isinstance(value, Tensor):
        if value.numel() <= 16 and value.device.type != "meta":
            with torch.no_grad():
                return f"`{_cut(' '.join(repr(value.detach()).split()))}`"
        return f"a tensor of shape {tuple(value.shape)} and dtype {_name(value.dtype)}"
    if isinstance(value, torch.nn.Module) or callable(value):
        return f"a {type(value).__name__}"
    try:
        text = _cut(" ".join(repr(value).split()))
    except Exception:  # an object that cannot show itself
        text = " at 0x"
    return f"a {type(value).__name__}" if " at 0x" in text else f"`{text}`"


def _same_prediction(guess: Any, truth: Any) -> bool:
    if type(guess) in _SEQUENCES and isinstance(truth, (tuple, list)):
        return len(guess) == len(truth) and all(map(_same_prediction, guess, truth))
    if isinstance(guess, bool) or isinstance(truth, bool):
        return guess is truth
    if isinstance(guess, float) or isinstance(truth, float):
        numbers = type(guess) in (int, float) and isinstance(truth, (int, float))
        return numbers and math.isclose(guess, truth, rel_tol=1e-3, abs_tol=1e-6)
    return type(guess) is type(truth) and guess == truth


def _compare(actual: Any, expected: Any, what: str, rtol: float | None, atol: float | None) -> None:
    if isinstance(expected, Tensor):
        _compare_tensors(actual, expected, what, rtol, atol)
    elif isinstance(expected, dict):
        if not isinstance(actual, dict):
            raise Mismatch(f"{what} is {_kind(actual, what)}, expected a dict")
        if missing := [key for key in expected if key not in actual]:
            raise Mismatch(f"{what} has no {show(missing[0])}")
        if extra := [key for key in actual if key not in expected]:
            raise Mismatch(f"{what} has {show(extra[0])}, which was not expected")
        for key, value in expected.items():
            _compare(actual[key], value, f"{what}[{key!r}]", rtol, atol)
    elif isinstance(expected, (tuple, list)):
        if not isinstance(actual, (tuple, list)):
            raise Mismatch(
                f"{what} is {_kind(actual, what)}, expected {_kind(expected, what)}: {show(expected)}"
            )
        if _is_plain(expected):
            if not _same_plain(actual, expected):
                raise Mismatch(f"{what} is {show(actual)}, expected {show(expected)}")
            return
        if len(actual) != len(expected):
            raise Mismatch(f"{what} has {len(actual)} entries, expected {len(expected)}")
        for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
            _compare(a, b, f"{what}[{i}]", rtol, atol)
    elif isinstance(expected, bool) or expected is None or isinstance(expected, str):
        if type(actual) is not type(expected) or actual != expected:
            raise Mismatch(f"{what} is {show(actual)}, expected {show(expected)}")
    elif isinstance(expected, float):
        actual = _own_number(actual)
        number = isinstance(actual, (int, float)) and not isinstance(actual, bool)
        within = number and (
            math.isclose(actual, expected, rel_tol=rtol if rtol is not None else 1e-6, abs_tol=atol or 1e-12)
            or (math.isnan(actual) and math.isnan(expected))
        )
        if not within:
            raise Mismatch(f"{what} is {show(actual)}, expected {show(expected)}")
    elif isinstance(expected, int):
        actual = _own_number(actual)
        if not isinstance(actual, int) or isinstance(actual, bool) or actual != expected:
            raise Mismatch(f"{what} is {show(actual)}, expected {show(expected)}")
    elif type(actual) is not type(expected) or actual != expected:
        raise Mismatch(f"{what} is {show(actual)}, expected {show(expected)}")


def _is_plain(value: Any) -> bool:
    """Whether a tuple or list holds nothing that needs a tolerance: it is shown and compared as a whole."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return not isinstance(value, (Tensor, dict, float))


def _same_plain(actual: Any, expected: Any) -> bool:
    if isinstance(expected, (tuple, list)):
        if not isinstance(actual, (tuple, list)) or len(actual) != len(expected):
            return False
        return all(map(_same_plain, actual, expected))
    if isinstance(expected, int):  # neither `True` nor `1.0` is 1, nor is a tensor
        actual = _own_number(actual)
        return (
            isinstance(actual, int)
            and isinstance(actual, bool) == isinstance(expected, bool)
            and actual == expected
        )
    return type(actual) is type(expected) and bool(actual == expected)


def _own_number(value: Any) -> Any:
    """A number without a class of the reader's, which may define `==` as it likes; anything else as it is."""
    if type(value) is bool:
        return value
    if issubclass(type(value), int):
        return int.__int__(value)
    if issubclass(type(value), float):
        return float.__float__(value)
    return None if isinstance(value, (int, float)) else value


def _compare_tensors(
    actual: Any, expected: Tensor, what: str, rtol: float | None, atol: float | None
) -> None:
    actual = _tensor(actual, what)
    if _layout(actual) != _layout(expected):
        raise Mismatch(f"{what} is a {_layout(actual)} tensor, expected a {_layout(expected)} one")
    if actual.shape != expected.shape:
        raise Mismatch(f"the shape of {what} is {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if actual.dtype != expected.dtype:
        raise Mismatch(f"the dtype of {what} is {_name(actual.dtype)}, expected {_name(expected.dtype)}")
    if actual.device.type != expected.device.type:
        raise Mismatch(f"{what} is on {actual.device.type}, expected on {expected.device.type}")
    if actual.device.type == "meta":
        return
    with torch.no_grad():
        if actual.layout is not torch.strided:
            actual, expected = actual.to_dense(), expected.to_dense()
        _compare_elements(actual.detach().cpu(), expected.detach().cpu(), what, rtol, atol)


def _compare_elements(
    actual: Tensor, expected: Tensor, what: str, rtol: float | None, atol: float | None
) -> None:
    """Raises at the first element, in the order of reading, that differs beyond the tolerance."""
    actual, expected = actual.resolve_conj().resolve_neg(), expected.resolve_conj().resolve_neg()
    if rtol is None or atol is None:
        default_r, default_a = torch.testing._comparison.default_tolerances(actual, expected)
        rtol, atol = default_r if rtol is None else rtol, default_a if atol is None else atol
    wrong = ~torch.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    if not bool(wrong.any()):
        return
    index = _first(wrong)
    came, wanted = _numbers(actual[index], expected[index])
    where = f"element {_at(index)} of {what}" if index else what
    message = [f"{where} is {came}, expected {wanted}"]
    if wrong.sum() > 1:
        message.append(f"{int(wrong.sum())} of {wrong.numel()} elements differ")
    if 1 < actual.numel() <= 16 and actual.dim() <= 2:
        message += [f"it is {actual.tolist()}", f"expected {expected.tolist()}"]
    raise Mismatch(*message)


def _tensor(value: Any, what: str) -> Tensor:
    if not evidence.is_tensor(value):
        evidence.record("not a tensor", type(value).__name__)
        raise Mismatch(f"{what} is {_kind(value, what)}, expected a tensor")
    return evidence.plain(value)


def _layout(tensor: Tensor) -> str:
    """`strided`, `sparse_coo`, `nested`, ..."""
    return "nested" if tensor.is_nested else _name(tensor.layout)


def _kind(value: Any, what: str) -> str:
    if value is None:
        return f"None{' (is a `return` missing?)' if what == _RETURNED else ''}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _first(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero()[0].tolist())


def _at(index: tuple[int, ...]) -> str:
    return f"`[{', '.join(map(str, index))}]`"


def _numbers(a: Tensor, b: Tensor) -> tuple[str, str]:
    """Two elements that differ, with as many digits as it takes to see it."""
    x, y = a.item(), b.item()
    if not (isinstance(x, float) and isinstance(y, float)):
        return _number(x), _number(y)
    for digits in range(6, 18):
        shown = _number(x, digits), _number(y, digits)
        if shown[0] != shown[1]:
            break
    return shown


def _number(value: Any, digits: int = 6) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def _name(dtype: torch.dtype | torch.layout) -> str:
    return str(dtype).removeprefix("torch.")


def _amount(value: float, unit: str) -> str:
    text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return f"{text} {unit}".strip()


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
