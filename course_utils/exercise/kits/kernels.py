"""Kernels in Triton, for lesson 15: what a launch did to memory, judged from the interpreter's own accesses.

Triton is imported so that it interprets kernels, also where there is a GPU to compile them for: what a
compiled one loads can't be watched. Where it is missing there are stand-ins, so that an exercise can be read
and its checks say what is missing.
"""

from __future__ import annotations

import contextlib
import linecache
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils import measure
from course_utils.exercise import expect
from course_utils.exercise.given import Given
from course_utils.exercise.kits import derivatives
from course_utils.exercise.kits.whys import because
from course_utils.measure.kernel import KernelTraffic
from course_utils.measure.kernel_memory import Access, Place
from course_utils.measure.kernel_watch import compile_again, interpret
from course_utils.measure.modes import Noting

interpret()
try:
    import triton
    import triton.language as tl

    measure.guard_kernels()
except ImportError:
    triton: Any = SimpleNamespace(jit=lambda function: function)  # type: ignore[no-redef]
    tl: Any = SimpleNamespace(constexpr=int)  # type: ignore[no-redef]

__all__ = [
    "a_program_for_each",
    "agrees",
    "as_often",
    "because",
    "compile_again",
    "computed",
    "exact_products",
    "inside",
    "keeps",
    "launched",
    "loose_loads_told",
    "most_at_once",
    "most_in_a_program",
    "no_race",
    "once",
    "small_blocks",
    "times",
    "tl",
    "triton",
    "untouched",
    "unwritten_is_nan",
    "watched",
]

# What a launch may need of torch, beside the kernel: memory, and other shapes of what is there.
_LAUNCHING = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resolve_conj",
}
_LAUNCHING |= {"zeros", "zeros_like", "new_zeros", "zero_", "full", "full_like", "new_full", "fill_"}
_SHAPES = {"view", "reshape", "expand", "permute", "transpose", "t", "alias", "slice", "select", "unsqueeze"}
_SHAPES |= {"squeeze", "as_strided", "unbind", "split", "split_with_sizes", "unfold", "_unsafe_view"}
_COPIES = {"copy_", "clone", "_to_copy"}
_ALLOWED = _LAUNCHING | _SHAPES | _COPIES | {"detach", "lift_fresh"}

_BY_KERNELS = (
    "Torch's operators give the right values too. This task is about how a kernel gets them: it loads, "
    "computes and stores, and torch hands out memory (`torch.empty_like`) and views."
)
_MOVED = (
    "A copy is a kernel of torch's: it loads each element and stores it at another place. Here that is the "
    "task, so torch hands out memory (`torch.empty`) and views, and moves nothing."
)
_ELSEWHERE = (
    "What the kernels load in its place is other memory: a copy, or what something else computed from it. "
    "That had to be written first, and takes room."
)
_CALLERS = (
    "What a function is given belongs to its caller, who may need it again. A kernel that stores there "
    "changes it; memory for a result is `torch.empty_like`'s."
)
_ORDER = (
    "A kernel gets an address, and no strides: it loads and stores in the order in which elements lie. What "
    "is transposed lies in another order than its indices say, and so does `torch.empty_like` of it."
)
_RUNS_ON = (
    "A block that is wider than what is left of a row runs on into the next one. The mask of a tile has a "
    "part for rows and one for columns; to compare offsets with the number of elements is neither."
)
_GOES_ROUND = (
    "A block at the edge has the last rows or columns and the first ones, as `%` makes them: they are in the "
    "tensor, and another block has them too. What a mask leaves out is neither loaded nor stored."
)
_LOOSE = (
    "Where its mask leaves something out a load may hold anything, unless `other` says what: on a GPU what "
    "lay there before, here NaN. What comes of it in a sum counts."
)
_POWERS = (
    "Triton compiles blocks whose sides are powers of two, and no others. A mask leaves out what is too much."
)


# What an operator is in Python, where its name doesn't say.
_IN_WORDS = {"_local_scalar_dense": " (a number is taken out of a tensor, as `int(…)` and `.item()` do)"}


def watched(t: Given, call: str, name: str = "found", shuffle: int | None = None) -> list[KernelTraffic]:
    """The launches of a call, whatever else ran. The result is `name` in the example from there on."""
    return _watched(t, call, name, shuffle)[0]


def launched(
    t: Given, call: str, name: str = "found", shuffle: int | None = None, *, copies: bool = True
) -> list[KernelTraffic]:
    """Like `watched`, and raises `Mismatch` where there are none, or where operators of torch computed
    something. `copies`: torch may copy."""
    return computed(*_watched(t, call, name, shuffle), copies=copies, by=call)


def _watched(t: Given, call: str, name: str, shuffle: int | None) -> tuple[list[KernelTraffic], list[str]]:
    results: list[Any] = []  # held, so that no other tensor of the call gets the address of one
    held = Noting(lambda *call: results.append(call))
    with measure.operators() as ran, held, measure.kernels(shuffle) as launches, _refused_told():
        t.run(f"{name} = {call}")
    expect.looked()
    return launches, ran.names


def computed(
    launches: list[KernelTraffic], ran: list[str], *, copies: bool = True, by: str
) -> list[KernelTraffic]:
    """These launches, where they did what there was to compute. `ran`: torch's own operators, by name;
    `copies`: these may copy; `by`: the call."""
    expect.looked()
    others = [one for one in ran if _base(one) not in _ALLOWED]
    if not launches or others:
        names = [one + _IN_WORDS.get(_base(one), "") for one in dict.fromkeys(others)]
        told = f"torch's own operators ran: {', '.join(names)}"
        what = told if launches else f"no kernel was launched by `{by}`"
        raise expect.Mismatch(what, "expected: a kernel of yours computes the result", why=_BY_KERNELS)
    if moved := {} if copies else dict.fromkeys(one for one in ran if _base(one) in _COPIES):
        told = f"torch moved elements: {', '.join(moved)}"
        raise expect.Mismatch(told, "expected: a kernel of yours moves them", why=_MOVED)
    for shape in {access.block for launch in launches for access in launch.launch.accesses}:
        if any(size & (size - 1) for size in shape):
            raise expect.Mismatch(f"a block of shape {tuple(shape)}", "expected: powers of two", why=_POWERS)
    return launches


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """What runs inside writes to no tensor of the example. `derivatives.untouched`, with a why."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(derivatives.untouched())
        with _refused_told():
            yield
        with because(_CALLERS):
            stack.close()


@contextlib.contextmanager
def _refused_told() -> Iterator[None]:
    """Where torch refuses to have an input of a Function written to, it's a `Mismatch`, with a why."""
    try:
        yield
    except RuntimeError as error:
        if not re.search("leaf Variable.* in-place operation|marked as dirty", str(error)):
            raise
        told = f"torch refuses to have an input written to: `{str(error).partition('. ')[0].rstrip('.')}`"
        raise expect.Mismatch(told, "expected: what is given stays as it is", why=_CALLERS) from None


def agrees(found: Tensor, wanted: Tensor, x: Tensor, **more: Any) -> None:
    """`derivatives.agrees`, with a why where the elements are in another order."""
    why = ""
    if expect.is_tensor(found) and found.shape == wanted.shape:
        one, other = (each.detach().cpu().double().flatten() for each in (found, wanted))
        moved = torch.allclose(one.sort().values, other.sort().values) and not torch.allclose(one, other)
        why = _ORDER if moved else ""
    with because(why):
        derivatives.agrees(found, wanted, x, **more)


def inside(launches: list[KernelTraffic]) -> None:
    """No program asked for an address outside the tensors."""
    for launch in launches:
        if launch.outside:
            first, count = launch.outside[0], len(launch.outside)
            told = f"{count:,} address{'es' if count > 1 else ''} outside every tensor; the first: {first}"
            raise expect.Mismatch(told, "expected: none, whatever a mask does with the value later")


def no_race(launches: list[KernelTraffic]) -> None:
    """No two programs use an element that one of them stores to."""
    for launch in launches:
        if launch.races:
            told = f"{len(launch.races):,} pairs of programs race; the first: {launch.races[0]}"
            raise expect.Mismatch(told, "expected: the result doesn't depend on which program comes first")


def times(launches: list[KernelTraffic], tensor: Tensor, *kinds: str) -> Tensor:
    """How often accesses of these kinds ask for each element of a tensor, over all launches, also where a
    kernel was given a view of it."""
    counts = torch.zeros(_span(tensor), dtype=torch.int64)
    for *_, elements in _asked(launches, tensor, kinds):
        counts[elements] += 1
    return counts.as_strided(tensor.shape, tensor.stride())


def most_in_a_program(launches: list[KernelTraffic], tensor: Tensor, *kinds: str) -> int:
    """How many elements of this tensor the program asks for that asks for most of them."""
    counts: Counter[Any] = Counter()
    for launch, access, elements in _asked(launches, tensor, kinds):
        counts[launch, access.program] += len(elements)
    return max(counts.values(), default=0)


def most_at_once(launches: list[KernelTraffic], tensor: Tensor, *kinds: str) -> int:
    """How many elements of this tensor the largest block asks for, masked ones not counted."""
    return max((len(elements) for *_, elements in _asked(launches, tensor, kinds)), default=0)


def _beyond_the_edge(launches: list[KernelTraffic], tensor: Tensor, kinds: tuple[str, ...]) -> str:
    """The why of a block of two dimensions that runs from one row of this tensor into the next, and is no
    rectangle, or that begins again at the other edge; of none, no text."""
    width = tensor.shape[-1] if tensor.dim() > 1 and tensor.is_contiguous() else 0
    for _, access, elements in _asked(launches, tensor, kinds):
        if width and sum(side > 1 for side in access.block) > 1:
            rows, columns = (np.unique(part) for part in np.divmod(elements, width))
            goes_on = (np.diff(elements) == 1) & (elements[1:] % width == 0)
            if len(rows) * len(columns) > len(elements) and goes_on.any():
                return _RUNS_ON
            for along, size in ((rows, tensor.numel() // width), (columns, width)):
                if [*along[:1], *along[-1:]] == [0, size - 1] and (np.diff(along) > 1).sum() == 1:
                    return _GOES_ROUND
    return ""


def _span(tensor: Tensor) -> int:
    """Elements from the first to the last, gaps included."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _asked(
    launches: list[KernelTraffic], tensor: Tensor, kinds: tuple[str, ...]
) -> Iterator[tuple[int, Access, Any]]:
    """Each access of these kinds to the memory of a tensor: the number of the launch, and which elements it
    asks for, counted from the first."""
    for number, launch in enumerate(one.launch for one in launches):
        for access in launch.accesses:
            if access.memory is not None and access.place.kind in kinds:
                memory = launch.memories[access.memory]
                away = np.unique(access.addresses) - memory.start + memory.real - tensor.data_ptr()
                element = away // tensor.element_size()
                yield number, access, element[(element >= 0) & (element < _span(tensor))]


_DID = {"loaded": ("load", "atomic"), "stored": ("store", "atomic")}  # an atomic does both


def as_often(
    t: Given,
    launches: list[KernelTraffic],
    name: str,
    expected: Tensor | int = 1,
    because: str = "",
    did: str = "loaded",
    during: str = "",
) -> None:
    """Each element of this tensor of the example is loaded, or stored, as often as is expected. `during`: in
    which pass that is, where the example has two."""
    there = f"in {during}, " if during else ""
    tensor = expect.a_tensor(getattr(t, name), what=f"`{name}`")
    counts = times(launches, tensor, *_DID[did])
    wanted = torch.as_tensor(expected).expand(counts.shape)
    if did == "loaded" and not counts.any() and wanted.any():
        raise expect.Mismatch(f"{there}no kernel loaded `{name}`", "expected: it is loaded", why=_ELSEWHERE)
    for place in (counts != wanted).nonzero().tolist()[:1]:
        came, right = int(counts[tuple(place)]), int(wanted[tuple(place)])
        told = f"{there}`{name}{place or ''}` was {did} {came:,} time{'s' * (came != 1)}, expected {right:,}"
        size = tensor.element_size()
        total, least = int(counts.sum()) * size, int(wanted.sum()) * size
        in_all = f"{there}{total:,} bytes of `{name}` were {did} in all, expected {least:,}"
        why = _beyond_the_edge(launches, tensor, _DID[did]) if came > right else ""
        raise expect.Mismatch(f"{told}: {because}" if because else told, in_all, why=why)


def once(
    t: Given, launches: list[KernelTraffic], loaded: list[str], stored: list[str], during: str = ""
) -> None:
    """Over all launches each element of these tensors of the example is loaded, or stored, exactly once.
    `during`: see `as_often`."""
    for names, did in ((loaded, "loaded"), (stored, "stored")):
        for name in names:
            as_often(t, launches, name, did=did, during=during)


@contextlib.contextmanager
def unwritten_is_nan() -> Iterator[None]:
    """What `torch.empty` hands out inside holds NaN, or the largest integer, not what lay there before."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


@contextlib.contextmanager
def loose_loads_told(t: Given, call: str, odd: Callable[[Tensor], Tensor] = torch.isnan) -> Iterator[None]:
    """Where a `Mismatch` inside is about the result of a call, and a kernel stored NaN there, or what else is
    `odd`, and loads without `other`, it says that such a load may hold anything."""
    try:
        yield
    except expect.Mismatch as told:
        if lines := _loose(t, call, odd):
            told.lines.append(f"there is no `other` in {lines}")
            told.why = told.why or _LOOSE
        raise


def _loose(t: Given, call: str, odd: Callable[[Tensor], Tensor]) -> str:
    """The lines of its loads without `other`, where odd elements that its kernels stored are returned."""
    with unwritten_is_nan(), measure.kernels() as launches:
        result = t.call(call)
    if (those := odd(result)).any() and times(launches, result, *_DID["stored"])[those].all():
        return _lines(place for launch in launches for place in launch.launch.loose)
    return ""


def exact_products(launches: list[KernelTraffic]) -> None:
    """No `tl.dot` rounds float32 to TF32 on a GPU."""
    lines = _lines(place for launch in launches for place in launch.launch.rounds)
    told = f"float32 becomes TF32 on a GPU in {lines}"
    if lines:
        raise expect.Mismatch(told, 'expected: `input_precision="ieee"`')
    expect.looked()


def _lines(places: Iterable[Place]) -> str:
    """The first of them, and how many more there are."""
    found = sorted({(one.line, one.file) for one in places})
    shown = [f"line {line}, `{linecache.getline(file, line).strip()}`" for line, file in found[:1]]
    return ", ".join(shown + [f"and {len(found) - 1} more"] * (len(found) > 1))


def small_blocks(launches: list[KernelTraffic], most: int = 1024) -> None:
    """No access is to a block of more elements than this, masked ones counted."""
    for launch in launches:
        largest = max((access.block for access in launch.launch.accesses), key=math.prod, default=())
        told = f"a block of shape {tuple(largest)} has {math.prod(largest):,} elements"
        expect.true(math.prod(largest) <= most, told, f"expected: at most {most:,}, masked ones counted")


def a_program_for_each(launches: list[KernelTraffic], least: int, what: str) -> None:
    """At least so many programs ran, in all launches together."""
    programs = sum(launch.programs for launch in launches)
    told = f"{programs:,} program{'s' * (programs != 1)} for {least:,} {what}"
    expect.true(programs >= least, told, "expected: one for each")


def keeps(t: Given, call: str, *, limit: int = 0) -> None:
    """At most `limit` bytes are made by `call` and kept for backward."""
    # The result of the answer counts as well when it is kept: what is returned is another tensor.
    t.run(f"def forward():\n    return {call} * 1")
    t.call("forward()")
    live = measure.live_bytes(t.forward)
    expect.at_most(live.held - live.result, limit, "made in `forward()` and kept for backward", unit="bytes")
    expect.at_most(live.left, 0, "still there when the result of `forward()` is gone", unit="bytes")


def _base(operator: str) -> str:
    return operator.split("::")[-1].removeprefix("aten.").split(".")[0]
