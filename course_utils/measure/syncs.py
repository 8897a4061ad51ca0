"""Where Python would have to wait for a GPU."""

import contextlib
import linecache
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_utils import torch_private
from course_utils.measure.frames import frames
from course_utils.measure.modes import CallWatch, Watch, packet
from course_utils.measure.storage import tensors_in
from course_utils.stacks import is_readers
from course_utils.wrong_use import public

# Methods that look at values without an operator (or with different ones on different devices), so they
# are counted where they are called and not below.
_METHODS: dict[Any, str] = {
    Tensor.tolist: "tolist",
    Tensor.numpy: "numpy",
    Tensor.__array__: "numpy",
    Tensor.__repr__: "print",
    Tensor.__format__: "print",
    Tensor.cpu: "cpu",
}
# What `aten._local_scalar_dense` is called, by the method that wanted the value.
_SCALARS = {getattr(Tensor, f"__{name}__"): name for name in ("bool", "float", "int", "complex", "index")}
# Operators whose result, or whose size, has to be known on the host.
_UNIQUE = ("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive")
_OPERATORS = {
    "aten._local_scalar_dense": "item",
    "aten._linalg_check_errors": "linalg",
    **{f"aten.{name}": name for name in ("nonzero", "masked_select", "equal", "allclose", "bincount")},
    **{f"aten.{name}": "unique" for name in _UNIQUE},
}
_INDEXING = {f"aten.{name}" for name in ("index", "index_put", "index_put_")}
_INDEXING |= {"aten._unsafe_index", "aten._unsafe_index_put"}
_MASKS = (torch.bool, torch.uint8)

_TORCH = str(Path(torch.__file__).parent)
# Optimizers keep their step counts and data loaders their indices on the CPU, whatever device the model
# is on: reading those waits for nothing.
_OPTIMIZERS = f"{_TORCH}/optim/"
_LOADERS = f"{_TORCH}/utils/data/"


@dataclass(frozen=True)
class Sync:
    """One wait. `kind`: item, float, bool, int, index, tolist, numpy, print, cpu, mask, nonzero, equal, ...

    `line` and `code` are the reader's innermost line; 0 and "" where no line of theirs was involved.
    """

    kind: str
    file: str
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.kind} in line {self.line}: {self.code}" if self.code else self.kind


@dataclass
class Syncs:
    """The waits, in order."""

    found: list[Sync] = field(default_factory=list)

    def count(self, *kinds: str) -> int:
        """How many, of these kinds or of all."""
        return sum(not kinds or sync.kind in kinds for sync in self.found)

    @property
    def kinds(self) -> dict[str, int]:
        """How many of each kind."""
        return dict(sorted(Counter(sync.kind for sync in self.found).items()))

    @property
    def where(self) -> list[str]:
        """Each reader's line that waits, once, with what it does there."""
        return list(dict.fromkeys(str(sync) for sync in self.found))

    def __str__(self) -> str:
        return "\n".join(self.where) or "no sync"


@public
@contextlib.contextmanager
def syncs(device: str | torch.device = "cpu") -> Iterator[Syncs]:
    """Notes where Python needs a value, or a size, that a GPU would still be computing.

        with measure.syncs() as found:
            train_epoch(model, loader, optimizer)
        found.count(), found.count("item"), found.where

    On the CPU nothing waits, and every tensor stands for one that would be on a GPU; `device="cuda"` counts
    tensors on such devices only. Not counted: step counts in torch's optimizers and indices in its data
    loaders, which are on the CPU anyway; `.to("cpu")` of a CPU tensor, which may be a right `.to(device)`;
    copies to the GPU. Inside a backward that is written in Python, `.tolist()`, `.numpy()` and `.cpu()` of
    CPU tensors are not seen (`.item()` and its kin are). `synchronize()` is no hidden sync.
    """
    found = Syncs()
    below = _Below(found, torch.device(device).type)
    with below, _Above(below):
        yield found


class _Below(Watch):
    def __init__(self, found: Syncs, device: str) -> None:
        super().__init__()
        self.found, self.device = found, device
        self.caller: Any = None  # the function of torch that was called from Python
        self.plain_value = False  # it is `x[...] = number`
        self.counted_above = 0

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        if not self.counted_above:
            name = packet(func)
            if name in _OPERATORS:
                scalar = _SCALARS.get(self.caller) if name == "aten._local_scalar_dense" else None
                self.note(scalar or _OPERATORS[name], args)
            elif name == "aten.repeat_interleave":
                # The size of the result is the sum of the repeats, unless it is given.
                if kwargs.get("output_size") is None:
                    self.note("repeat_interleave", args)
            elif name in _INDEXING:
                self.note_masks(name, args)
            elif name in ("aten._to_copy", "aten.copy_"):
                self.note_copy_to_host(name, args, kwargs)
        return run()

    def note(self, kind: str, values: Any) -> None:
        if any(t.device.type == self.device != "meta" for t in tensors_in(values)):
            where = _place()
            if where is not None:
                self.found.found.append(Sync(kind, *where))

    def note_masks(self, name: str, args: tuple[Any, ...]) -> None:
        masks = [t for t in args[1] if isinstance(t, Tensor) and t.dtype in _MASKS]
        if "put" in name and len(masks) == 1 and (self.plain_value or _is_host_number(args[2], self.device)):
            return  # one value for all is written by masked_fill, which needs no count
        for mask in masks:
            self.note("mask", mask)

    def note_copy_to_host(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        source = args[1] if name == "aten.copy_" else args[0]
        target = args[0].device if name == "aten.copy_" else kwargs.get("device")
        waits = not (kwargs.get("non_blocking") or (name == "aten.copy_" and args[2:] and args[2]))
        if target is not None and torch.device(target).type == "cpu" != source.device.type and waits:
            self.note("cpu", source)


class _Above(CallWatch):
    def __init__(self, below: _Below) -> None:
        super().__init__()
        self.below = below

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        below = self.below
        before = below.caller, below.plain_value, below.counted_above
        kind = _METHODS.get(func)
        if func is F.one_hot:
            # On a GPU it reads one value, and none where it is told how many classes there are. On the
            # CPU it looks at all values, to check them.
            kind = "" if (kwargs.get("num_classes", -1), *args[1:])[-1] != -1 else "item"
        below.caller = func
        below.plain_value = func is Tensor.__setitem__ and not isinstance(args[2], Tensor)
        if kind is not None:
            if kind and not below.counted_above:
                with torch_private.DisableTorchFunction():
                    below.note(kind, args[:1])
            below.counted_above += 1
        try:
            return run()
        finally:
            below.caller, below.plain_value, below.counted_above = before


def _is_host_number(value: Tensor, device: str) -> bool:
    return device != "cpu" and value.device.type == "cpu" and value.numel() == 1


def _place() -> tuple[str, int, str] | None:
    """The reader's innermost line: file, number, text. None where torch reads what the host has anyway."""
    place, passed_optimizer = None, False
    for frame in frames():
        file = frame.f_code.co_filename
        if file.startswith(_LOADERS):
            return None
        if place is None and file.startswith(_OPTIMIZERS):
            passed_optimizer = True
        if place is None and is_readers(file):
            if passed_optimizer:
                return None
            place = file, frame.f_lineno, linecache.getline(file, frame.f_lineno).strip()
    return place or ("", 0, "")
