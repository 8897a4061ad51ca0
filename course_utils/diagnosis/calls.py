"""Which of torch's functions a forward and a loss call, and with what: small numbers, no tensors."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_utils.measure.frames import readers_line
from course_utils.measure.modes import CallWatch

# The loss functions that are noted, and those of them that compare element by element.
LOSSES: dict[Any, str] = {
    getattr(F, name): name
    for name in (
        "cross_entropy",
        "nll_loss",
        "kl_div",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
    )
}
ELEMENTWISE = ("kl_div", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_OPERATORS = ("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "pow")
_OPERATORS += ("maximum", "minimum", "rsub", "radd", "rmul", "rtruediv", "truediv", "rpow")
# Nodes of a graph that pass numbers on as they are.
_PASS_ON = ("View", "Reshape", "UnsafeView", "Permute", "Transpose", "T", "Unsqueeze", "Squeeze", "Slice")
_PASS_ON += ("Select", "Index", "ToCopy", "Clone", "Expand", "Alias", "Detach", "Flatten", "Unbind", "Split")
_ENDS: dict[Any, str] = {
    **{getattr(Tensor, name): name for name in ("detach", "numpy", "tolist", "item")},
    torch.detach: "detach",
    Tensor.data.__get__: "data",
}
_ENOUGH = 256  # rows that are looked at


@dataclass(frozen=True)
class LossCall:
    """One call of a loss function of torch's. `classes`: along the dimension of classes, 0 where there is
    none. `made_by`: the node that the input comes from, what only moves numbers left out. `least`, `most`:
    of the input, in the rows that were looked at; `spread`: their standard deviation. `rows`: what those
    rows are: "probabilities", "logs" of them, or "". `value`: the loss, where it is a mean."""

    name: str
    input: tuple[int, ...]
    target: tuple[int, ...]
    line: str
    classes: int
    ignored: int | None
    made_by: str
    least: float
    most: float
    spread: float
    rows: str
    value: float | None


@dataclass(frozen=True)
class Pairing:
    """An operator in the loss whose result is larger than both operands. `number`: how many came before it.
    `meant`: one of the operands got a dimension inside the loss function."""

    number: int
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    result: tuple[int, ...]
    line: str
    meant: bool


@dataclass(frozen=True)
class NormCall:
    """One call of a batch norm in training mode: of `size` examples, by channel mean and variance."""

    size: int
    mean: Tensor
    variance: Tensor


@dataclass(eq=False)
class Calls:
    """What was called in the first step. `norms`: by `id` of the running mean. `ends`: the names of what
    takes a tensor out of its graph, where the forward called it. `loss`: what the loss is, in words, where
    `backward` cannot start from it; "" where it can."""

    losses: list[LossCall] = field(default_factory=list)
    pairings: list[Pairing] = field(default_factory=list)
    norms: dict[int, list[NormCall]] = field(default_factory=dict)
    ends: set[str] = field(default_factory=set)
    loss: str = ""

    @contextlib.contextmanager
    def watched(self, seen: Any) -> Iterator[None]:
        """Notes what is called inside, in the forward or, as `seen.during` says, in the loss."""
        with _Calls(self, seen, readers_line()):
            yield

    def note_loss(self, loss: Any) -> None:
        """Says what is wrong with a loss as the start of a backward."""
        if not isinstance(loss, Tensor):
            self.loss = f"a {type(loss).__name__}"
        elif loss.numel() != 1:
            self.loss = f"a tensor of shape {tuple(loss.shape)}"
        elif not loss.is_floating_point():
            self.loss = f"a tensor of dtype {str(loss.dtype).removeprefix('torch.')}"
        elif not loss.requires_grad:
            self.loss = "a tensor without a graph"


class Pairs(CallWatch):
    """Finds operators whose result is larger than both operands, one of which a gradient comes back to.

    `change` is given the operands of that with `number`, and returns what is taken instead.
    """

    def __init__(
        self, number: int = -1, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    ) -> None:
        super().__init__()
        self.number, self.change, self.count = number, change, 0
        self.in_loss = False  # elsewhere only loss functions count
        self.spread_out: list[Tensor] = []

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        if not self.in_loss and func not in LOSSES:
            return run()
        name = getattr(func, "__name__", "").strip("_")
        pair = _operands(func, name, args, kwargs)
        if pair is None or not _larger(*pair):
            out = run()
            if name == "unsqueeze" or (name == "getitem" and _adds_dimension(args[1])):
                self.spread_out.append(out)
            return out
        self.count += 1
        self.paired(*pair)
        if self.change is None or self.count - 1 != self.number:
            return run()
        first, second = self.change(*pair)
        kwargs = {key: value for key, value in kwargs.items() if key not in ("input", "target")}
        return func(first, second, *args[2:], **kwargs)

    def paired(self, first: Tensor, second: Tensor) -> None:
        """Called where such an operator comes."""


class _Calls(Pairs):
    def __init__(self, calls: Calls, seen: Any, outside: str) -> None:
        super().__init__()
        self.calls, self.seen, self.outside = calls, seen, outside

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        if func is F.batch_norm:
            self._norm(*args, **kwargs)
        elif func in _ENDS and self.seen.during == "forward":
            self.calls.ends.add(_ENDS[func])
        self.in_loss = self.seen.during == "loss"
        out = super().called(func, args, kwargs, run)
        if func in LOSSES:
            self.calls.losses.append(_loss_call(LOSSES[func], _bound(func, args, kwargs), out, self._line()))
        return out

    def paired(self, first: Tensor, second: Tensor) -> None:
        meant = any(_shares(one, kept) for one in (first, second) for kept in self.spread_out)
        shapes = tuple(first.shape), tuple(second.shape)
        result = tuple(torch.broadcast_shapes(*shapes))
        self.calls.pairings.append(Pairing(self.count - 1, shapes, result, self._line(), meant))

    def _line(self) -> str:
        """The reader's line, unless it is the one that asks for the diagnosis."""
        return "" if (line := readers_line()) == self.outside else line

    def _norm(
        self,
        input: Tensor,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        *_: Any,
        **__: Any,
    ) -> None:
        if not training or running_mean is None or input.dim() < 2:
            return
        values = input.detach()
        dims = [0, *range(2, values.dim())]
        variance, mean = torch.var_mean(values.float(), dims, correction=0)
        self.calls.norms.setdefault(id(running_mean), []).append(NormCall(len(values), mean, variance))


def _operands(
    func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor] | None:
    """The two tensors that an operator or a loss function sets against each other."""
    if LOSSES.get(func) in ELEMENTWISE:
        given = _bound(func, args, kwargs)
        pair = given["input"], given["target"]
    elif name in _OPERATORS and len(args) > 1:
        pair = args[0], args[1]
    else:
        return None
    return pair if all(isinstance(one, Tensor) for one in pair) else None


def _larger(first: Tensor, second: Tensor) -> bool:
    """Whether the result is larger than both, and one is what a gradient comes back to."""
    if first.requires_grad == second.requires_grad or first.shape == second.shape:
        return False
    sizes = zip(first.shape[::-1], second.shape[::-1], strict=False)
    if any(a != b and 1 not in (a, b) for a, b in sizes):
        return False  # that raises
    result = torch.broadcast_shapes(first.shape, second.shape)
    return result.numel() > max(first.numel(), second.numel())


def _adds_dimension(index: Any) -> bool:
    return index is None or (isinstance(index, tuple) and any(one is None for one in index))


def _shares(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.grad_fn is not None and one.grad_fn is other.grad_fn)


def _bound(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(func).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _loss_call(name: str, given: dict[str, Any], out: Tensor, line: str) -> LossCall:
    scores = given["input"]
    target = given["target"]
    classes = 0
    rows = scores.detach()
    if name in ("cross_entropy", "nll_loss"):
        classes = scores.shape[min(1, scores.dim() - 1)]
        rows = rows[:_ENOUGH] if scores.dim() < 3 else rows[:1]
        rows = rows.movedim(min(1, scores.dim() - 1), -1)
    elif name == "kl_div":
        rows = rows[:_ENOUGH]
    else:
        rows = rows.flatten()[: _ENOUGH * _ENOUGH]
    rows = rows.float()
    some = rows.numel() > 0
    mean = given["reduction"] == "mean" and out.numel() == 1
    return LossCall(
        name,
        tuple(scores.shape),
        tuple(target.shape),
        line,
        classes,
        given.get("ignore_index"),
        made_by(scores),
        float(rows.min()) if some else 0.0,
        float(rows.max()) if some else 0.0,
        float(rows.std(correction=0)) if some else 0.0,
        what_rows_are(rows, scores.dtype) if some and rows.dim() > 0 else "",
        float(out.detach()) if mean else None,
    )


def made_by(tensor: Tensor) -> str:
    """The node of the graph that a tensor's numbers come from: `Softmax`, `Addmm`; "" outside graphs."""
    node = tensor.grad_fn
    while node is not None:
        name = node.name().rstrip("0123456789").removesuffix("Backward")
        if name not in _PASS_ON or not node.next_functions:
            return name
        node = node.next_functions[0][0]
    return ""


def what_rows_are(rows: Tensor, dtype: torch.dtype) -> str:
    """Whether each row, along the last dimension, sums to 1 or is the log of what does."""
    if rows.shape[-1] < 2:
        return ""
    near = 1e-3 if torch.finfo(dtype).bits >= 32 else 3e-2
    if bool((rows >= 0).all()) and bool((rows.sum(-1) - 1).abs().max() < near):
        return "probabilities"
    return "logs" if bool(rows.logsumexp(-1).abs().max() < near) else ""
