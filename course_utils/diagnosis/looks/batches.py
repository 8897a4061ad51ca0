"""What a batch is made of, and whether its examples are kept apart."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.diagnosis.changed import data, labels, with_data
from course_utils.diagnosis.finding import CannotSee, Finding
from course_utils.diagnosis.looks.modes import InTraining, moved, statistics
from course_utils.diagnosis.steps import SEED, Seen, evaluating
from course_utils.diagnosis.subject import Subject, modules
from course_utils.measure.saved import nodes_behind
from course_utils.measure.storage import tensors_in


def input_with_graph(seen: Seen) -> Iterator[Finding]:
    """A tensor of the batch comes out of a graph, or asks for a gradient."""
    subject = seen.subject
    for what, tensors in (("input", data(subject)), ("target", labels(subject))):
        for tensor in tensors:
            if tensor.grad_fn is not None:
                node = tensor.grad_fn.name().rstrip("0123456789")
                yield Finding(
                    "fault",
                    "input_with_graph",
                    f"The {what} of shape {tuple(tensor.shape)} has a graph behind it: `grad_fn` is {node}.",
                    "Backward goes on through whatever made the batch, and frees what that kept: it costs "
                    "time and memory, and the next backward through it may raise. `detach()` ends the "
                    "graph.",
                    "02_autograd",
                    "What backward frees",
                    [f"nodes in that graph: {sum(1 for _ in nodes_behind(tensor)):,}"],
                )
            elif tensor.requires_grad:
                yield Finding(
                    "note",
                    "input_with_graph",
                    f"The {what} of shape {tuple(tensor.shape)} asks for a gradient.",
                    "A leaf that asks for a gradient gets one at each backward, which costs its size in "
                    "memory and a backward through the first layer.",
                    "02_autograd",
                    "Leaves",
                )


@dataclass(eq=False)
class _Run:
    """What came out. `places`: by call, which module, whether what went in or came out, and sums over each
    half of it. `flat`: whether the first two dimensions of the input were one in an output; there they are
    two again. `pairs`: whether something was computed for each two of the examples."""

    outputs: list[Tensor] = field(default_factory=list)
    flat: bool = False
    places: list[tuple[str, str, list[list[float]]]] = field(default_factory=list)
    learned: bool = False
    pairs: bool = False


class _EachTwo(InTraining):
    """Also notes where a result has an entry for each two examples, and no operand has one: a product of all
    with all, a distance, a difference by broadcasting. Attention that takes examples for time is none: what
    it makes has a dimension in front."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.pairs = size, False

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        out = super().called(func, args, kwargs, run)
        given = [one for one in tensors_in((args, kwargs)) if one.dim() > 1]
        joins = getattr(func, "__name__", "") in ("cat", "concat", "stack")
        if isinstance(out, Tensor) and self._each_two(out) and len(given) > 1 and not joins:
            weights = any(isinstance(one, nn.Parameter) for one in given)
            self.pairs |= not weights and not any(self._each_two(one) for one in given)
        return out

    def _each_two(self, tensor: Tensor) -> bool:
        return tensor.shape[:2] == (self.size, self.size)


def mixed_examples(seen: Seen) -> Iterator[Finding]:
    """In evaluation mode the output for an example depends on the other examples in the batch."""
    subject = seen.subject
    first = next((one for one in data(subject) if one.dim() > 0), None)
    if first is None:
        raise CannotSee("the model is given no tensor that has examples")
    dim = _dimension_of_examples(subject, first)
    size = first.shape[dim]
    if size < 2:
        raise CannotSee("examples are compared with each other, and this batch has one")
    if _has_links(subject, size):
        raise CannotSee(f"an input says which of {size} examples belong together")
    change = _changed_by(subject, size, dim)
    if change is None:
        return
    share, place, flat, pairs = change
    if flat and dim == 0 and _changed_by(subject, first.shape[1], 1) is None:
        return  # of two dimensions that are one for the targets, either may be that of the examples
    doubts = _other_meaning(subject, first) if dim == 0 and not flat else []
    if pairs and dim == 0:
        doubts.append("the forward computes something for each two examples: right if it compares them")
    where = f"first seen in what {place[1]} `{place[0]}`" if place and not flat else ""
    yield Finding(
        "doubt" if doubts else "fault",
        "mixed_examples",
        "In evaluation mode the output for an example depends on the other examples in its batch.",
        "Most layers take dimension 0 for the examples; torch's recurrent layers and "
        "`nn.MultiheadAttention` take dimension 1 unless `batch_first=True`. `view` regroups elements "
        "without moving them; a sum, a mean or a softmax over dimension 0 goes over the examples.",
        "07_bugs",
        "A detector for modes",
        [
            f"other examples in half of the {size}: the output for the rest changes by {share:.2g} of its "
            "largest value",
            *([where] if where else []),
            *doubts,
        ],
    )


def _dimension_of_examples(subject: Subject, first: Tensor) -> int:
    """Dimension 1 where all targets are as long as that and not as dimension 0; else 0."""
    lengths = {len(one) for one in labels(subject) if one.dim() > 0}
    return int(first.dim() > 1 and lengths == {first.shape[1]} != {len(first)})


def _other_meaning(subject: Subject, first: Tensor) -> list[str]:
    """What could make it right: dimension 0 may be time, where the targets don't say otherwise."""
    size = len(first)
    if not labels(subject):
        return ["right if examples are compared with each other on purpose: there are no targets"]
    reads = any(isinstance(m, (nn.RNNBase, nn.MultiheadAttention)) for _, m in modules(subject))
    if first.dim() == 1 or (reads and first.dim() == 2 and first.is_floating_point()):
        return [f"right if the {size} are steps of one sequence"]
    width = first.shape[1]
    targets = [tuple(one.shape) for one in labels(subject) if one.dim() > 0]
    if width < 2 or (width != size and targets and not any(width in shape[1:2] for shape in targets)):
        return []
    try:
        apart = _changed_by(subject, width, 1) is None
    except CannotSee:
        return []
    said = f"along dimension 1 the {width} do not depend on each other: right if those are the examples"
    return [said] if apart else []


def _has_links(subject: Subject, size: int) -> bool:
    """Whether there is an adjacency matrix of the examples, or a list of edges."""
    given = data(subject)[1:]
    return any(
        tuple(one.shape[:2]) == (size, size)
        or (one.dim() == 2 and one.shape[0] == 2 != size and not one.is_floating_point())
        or one.layout is not torch.strided
        for one in given
    )


def _changed_by(
    subject: Subject, size: int, dim: int
) -> tuple[float, tuple[str, str] | None, bool, bool] | None:
    """By how much others in half of a batch change the output for the rest, where that shows first, whether
    an output was flat, and whether examples were set against each other two by two."""
    every, halves = torch.arange(size), _halves(size)
    # Copies of the neighbour: what must be sorted by length stays so.
    others = [
        with_data(subject, partial(_taken, size, dim, index))
        for index in (every.clamp(max=size // 2 - 1), every.clamp(min=size // 2))
    ]
    if all(torch.equal(a, b) for one in others for a, b in zip(data(subject), data(one), strict=True)):
        raise CannotSee("all examples are the same")
    before = _run(subject, size, dim)
    if before.learned:
        return None  # that is `training_in_eval`, whatever else it does
    worst = None
    for number, other in enumerate(others):
        after = _run(other, size, dim)
        share = _difference(before.outputs, after.outputs, size, halves[number])
        if share is not None and (worst is None or share > worst[0]):
            worst = share, _place(before, after, number), before.flat, before.pairs
    if worst is not None and any(
        _difference(before.outputs, _run(subject, size, dim).outputs, size, half) for half in halves
    ):
        return None  # two outputs for one batch differ already: so says `training_in_eval`
    return worst


def _halves(size: int) -> tuple[slice, slice]:
    return slice(None, size // 2), slice(size // 2, None)


def _taken(size: int, dim: int, index: Tensor, tensor: Tensor) -> Tensor:
    if tensor.dim() <= dim or tensor.shape[dim] != size:
        return tensor
    return tensor.index_select(dim, index.to(tensor.device))


def _run(subject: Subject, size: int, dim: int) -> _Run:
    """The output in evaluation mode."""
    run = _Run()

    def note(name: str, how: str, value: Any) -> None:
        for one in tensors_in(value):
            if one.dim() > dim and one.shape[dim] == size and one.is_floating_point():
                parts = one.split([size // 2, size - size // 2], dim)
                run.places.append((name, how, [[float(part.sum()), float(part.norm())] for part in parts]))

    torch.manual_seed(SEED)
    before = statistics(subject)
    with contextlib.ExitStack() as stack, evaluating(subject):
        watch = stack.enter_context(_EachTwo(size))
        for name, module in modules(subject):
            leaf = not any(True for _ in module.children())
            if leaf and not isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
                for handle in (
                    module.register_forward_pre_hook(lambda m, args, n=name: note(n, "goes into", args)),
                    module.register_forward_hook(lambda m, args, out, n=name: note(n, "comes out of", out)),
                ):
                    stack.callback(handle.remove)
        output = subject.output()
    found = [one.detach() for one in tensors_in(output) if one.is_floating_point()]
    rows = next(iter(data(subject))).shape[:2]
    for place, one in enumerate(found):
        if len(rows) == 2 and 1 not in rows and one.shape[:1] == (rows.numel(),):
            found[place], run.flat = one.unflatten(0, rows), True
    run.outputs = [one for one in found if size in (one.shape if dim else one.shape[:1])]
    if not run.outputs:
        raise CannotSee(f"no output has a dimension of size {size}, by which examples could be told apart")
    run.pairs = watch.pairs
    run.learned = bool(watch.learned) or bool(moved(subject, before))
    return run


def _difference(before: list[Tensor], after: list[Tensor], size: int, kept: slice) -> float | None:
    """By how much the outputs differ that belong to the examples that stayed, relative to the largest number;
    None where it is rounding. Where one is longer, as when the longest of a batch has gone, what both have is
    compared."""
    worst = 0.0
    for one, other in zip(before, after, strict=True):
        if one.dim() != other.dim():
            continue
        index = tuple(
            kept if length == size else slice(min(length, there))
            for length, there in zip(one.shape, other.shape, strict=True)
        )
        mine, theirs = one[index].double(), other[index].double()
        if mine.shape == theirs.shape and mine.numel() and bool(mine.isfinite().all()):
            share = float((mine - theirs).abs().max() / mine.abs().max().clamp(min=1e-300))
            worst = max(worst, share if share > min(0.05, 1000 * torch.finfo(one.dtype).eps) else 0.0)
    return worst or None


def _place(before: _Run, after: _Run, half: int) -> tuple[str, str] | None:
    """The first module in a call of which the examples that stayed have other numbers."""
    for one, other in zip(before.places, after.places, strict=False):
        pairs = zip(one[2][half], other[2][half], strict=True)
        if any(abs(a - b) > 1e-4 * max(abs(a), abs(b)) for a, b in pairs):
            return one[0], one[1]
    return None


LOOKS: list[Callable[[Seen], Iterator[Finding]]] = [input_with_graph]
TRIALS: list[Callable[[Seen], Iterator[Finding]]] = [mixed_examples]
