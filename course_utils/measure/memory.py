"""Bytes that operators allocate: how many are alive at the peak, and how many stay.

Counted are the storages of tensors that operators made during the call, from the moment they are there
until nothing refers to them. What a kernel uses for itself while it runs, what an allocator rounds up,
and copies that Python makes of storages without an operator (`copy.deepcopy`) are not seen. A few
backward formulas (of `prod` and `cumprod`) take another way while any dispatch mode is active, and need
more then.
"""

import contextlib
import gc
import itertools
import linecache
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from course_utils import torch_private
from course_utils.measure.frames import caller, frames, readers_line
from course_utils.measure.modes import Watch, in_backward, packet
from course_utils.measure.storage import key, storages, tensors_in
from course_utils.measure.uncompiled import unseen_by_compiler
from course_utils.stacks import is_readers
from course_utils.wrong_use import WrongUse, public

Category = Literal["parameters", "gradients", "optimizer", "activations", "temporaries"]
CATEGORIES: tuple[Category, ...] = ("parameters", "gradients", "optimizer", "activations", "temporaries")


@dataclass(eq=False)
class Block:
    """One storage that was allocated during the call. `op` made it, in this `line` of the reader's."""

    op: str
    bytes: int
    backward: bool
    line: str = ""
    category: Category | None = None  # known for sure only at the end of the call


# (kind, block, change of bytes); kind: "new", "free", "size", or "backward" (which begins, without a block).
Event = tuple[str, Block | None, int]


@dataclass(frozen=True)
class Moment:
    """The bytes alive after one storage was allocated, by `op` in `line`, or freed (`op` is "" then)."""

    op: str
    backward: bool
    live: dict[Category, int]
    line: str = ""


@dataclass
class Peak:
    """Bytes allocated during a call.

    `total`: the most that were alive at one moment. `by_category`: the same moment, taken apart:

        parameters   storages of an nn.Parameter that was made during the call
        gradients    became the `.grad` of a leaf
        optimizer    became the state of an optimizer
        activations  made outside backward, and still there when backward began or, without one, at the end
        temporaries  the rest: freed before that, made inside backward (recomputed ones too) or in a step

    `allocated`: everything, whether alive at the peak or not. `timeline`: what was alive after every
    allocation and every release.
    """

    total: int
    by_category: dict[Category, int]
    allocated: int
    timeline: list[Moment] = field(repr=False)

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size:,}" for name, size in self.by_category.items() if size)
        return f"{self.total:,} bytes at the peak ({parts})" if parts else "0 bytes"


@dataclass(frozen=True)
class Live:
    """Bytes allocated during a call and not freed by it.

    `held`: while its result is kept (`result` of them are the result's own tensors). `left`: once the result
    is dropped, without any help of the garbage collector.
    """

    held: int
    result: int
    left: int


@public
def peak_bytes(fn: Callable[..., Any], *args: Any, device: str | None = None, **kwargs: Any) -> Peak:
    """Measures the most bytes alive at one moment of `fn(*args, **kwargs)`, of those allocated by it.

    What was there before counts neither when it stays nor when it is freed. `device`: only storages on
    devices of this type.
    """
    ledger = _Ledger(device)
    with ledger.open():
        result = fn(*args, **kwargs)
    peak = ledger.peak()
    del result  # alive until here: it is part of what was allocated
    return peak


@public
def live_bytes(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Live:
    """Measures the bytes that `fn(*args, **kwargs)` allocates and that are still there afterwards.

    Sees what saved-tensor hooks cannot: tensors kept as attributes of a `ctx`, in lists, in cycles. A
    forward without leaks leaves nothing once its result is dropped; gradients that it left in `.grad` count.
    """
    ledger = _Ledger()
    with collector_off():
        with ledger.open():
            result = fn(*args, **kwargs)
        held = sum(block.bytes for block in ledger.alive.values())
        returned = (t for t in torch_private.tree_leaves(result) if isinstance(t, Tensor))
        own = {key(s) for t in returned for s in storages(t)}
        mine = sum(block.bytes for number, block in ledger.alive.items() if number in own)
        del result
        left = sum(block.bytes for block in ledger.alive.values())
        ledger.forget()
    return Live(held, mine, left)


@public
def snapshot_timeline(snapshot: dict[str, Any]) -> list[Moment]:
    """Reads what was alive after each allocation and release on the first GPU that
    `torch.cuda.memory._snapshot()` recorded.

    The allocator knows no categories: all is "temporaries". `line` is what stands in the innermost frame
    outside torch, or `file:number` where that can't be read. Raises `ValueError` where nothing was recorded
    (`_record_memory_history()` comes first).
    """
    traces = snapshot.get("device_traces") or []
    if not traces or not traces[0]:
        raise WrongUse("the snapshot has no trace: call torch.cuda.memory._record_memory_history() before")
    live, moments = 0, []
    for entry in traces[0]:
        sign = {"alloc": 1, "free_completed": -1}.get(entry["action"], 0)
        live += sign * entry["size"]
        if sign:
            # Frames of C++ come first; their line is 0, and their file may be "??".
            files = ((f["filename"], f["line"]) for f in entry.get("frames", ()) if f["line"])
            file, number = next((at for at in files if is_readers(at[0])), ("", 0))
            line = linecache.getline(file, number).strip() or (f"{file}:{number}" if file else "")
            op = "alloc" if sign > 0 else ""
            moments.append(Moment(op, False, dict.fromkeys(CATEGORIES, 0) | {"temporaries": live}, line))
    return moments


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Without collections inside: nothing dies, or takes its time, by chance."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class _Ledger(Watch):
    """Keeps account of storages: an entry when an operator returns a new one, another when it dies.

    torch has such a tracker (torch.distributed._tools.mem_tracker). It rounds up to CUDA's blocks, knows
    activations only of modules that it is told about, and takes a second to import, so it is not used.
    """

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self.device = device
        self.alive: dict[int, Block] = {}
        self.events: list[Event] = []
        self._watched: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._leaves: dict[int, weakref.ref[Tensor]] = {}
        self._passing: set[Block] = set()  # temporaries although made outside backward
        self._makers: dict[Block, int] = {}  # the node of the graph whose formula made a block
        self._task = -1
        self._steps = 0
        # An addition by the engine whose fate is open: (place in events, its block, the block it adds to).
        self._pending: tuple[int, Block, Block] | None = None

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            begins, ended = map(unseen_by_compiler, (self._step_begins, self._step_ended))
            stack.callback(register_optimizer_step_pre_hook(begins).remove)
            stack.callback(register_optimizer_step_post_hook(ended).remove)
            stack.callback(self._leaves.clear)
            with self:
                yield
            self._place_pending()
            self._name_gradients()

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        self._place_pending()
        self._notice_backward()
        name = packet(func)
        there = [*tensors_in(args), *tensors_in(kwargs)]
        for t in there:
            self._notice_owner(t)
        known = {key(s) for t in there for s in storages(t)}
        known |= {key(s) for s in args if isinstance(s, torch.UntypedStorage)}
        if name == "aten.lift_fresh" and storages(args[0])[0].resizable():
            known = set()  # made by torch.tensor, which is no operator; memory of NumPy's cannot be resized
        adds_to = self._engine_adds_to(name, args)
        out = run()
        self._notice_sizes(there)
        passing = self._steps > 0 or (name == "aten.ones_like" and _is_first_gradient())
        for t in tensors_in(out):
            for storage in storages(t):
                if key(storage) not in self.alive and key(storage) not in known:
                    self._enter(storage, name, passing, adds_to)
        return out

    def peak(self) -> Peak:
        self._sort()
        live: dict[Category, int] = dict.fromkeys(CATEGORIES, 0)
        most, moments = live, []
        for kind, block, change in self.events:
            if block is not None:
                live = live | {block.category: live[block.category] + change}
                moments.append(Moment(block.op if kind == "new" else "", block.backward, live, block.line))
                if sum(live.values()) > sum(most.values()):
                    most = live
        allocated = sum(change for kind, _, change in self.events if kind == "new")
        return Peak(sum(most.values()), most, allocated, moments)

    def forget(self) -> None:
        self._watched.clear()
        self.alive = {}

    def _enter(self, storage: torch.UntypedStorage, op: str, passing: bool, adds_to: Block | None) -> None:
        if self.device is not None and storage.device.type != self.device:
            return
        block = Block(op, storage.nbytes(), in_backward(), readers_line())
        number = key(storage)

        def died(_: Any) -> None:
            if self._watched.pop(number, None) is not None:
                self._free(self.alive.pop(number))

        self.alive[number] = block
        self._watched[number] = weakref.ref(storage, died)
        if passing:
            self._passing.add(block)
        if block.backward and adds_to is None:
            self._makers[block] = _node()
        if adds_to is not None and adds_to.bytes == block.bytes:
            self._pending = (len(self.events), block, adds_to)
        else:
            self.events.append(("new", block, block.bytes))

    def _free(self, block: Block) -> None:
        self.events.append(("free", block, -block.bytes))
        if self._pending is not None and self._pending[2] is block:
            _, new, _ = self._pending
            self._pending = None
            self.events.append(("new", new, new.bytes))

    def _place_pending(self) -> None:
        if self._pending is not None:
            place, block, _ = self._pending
            self._pending = None
            self.events.insert(place, ("new", block, block.bytes))

    def _engine_adds_to(self, name: str, args: tuple[Any, ...]) -> Block | None:
        """The block to which autograd's engine is adding another gradient of the same tensor, if that is so.

        The engine adds in place when it holds the last reference, but not while a dispatch mode is active:
        then it makes a third tensor. When the first dies right away, before anything else runs, it was the
        last reference, and the books are kept as if the addition had been in place.
        """
        if name != "aten.add" or not in_backward() or torch.is_grad_enabled() or not _called_by_engine():
            return None
        block = self.alive.get(key(storages(args[0])[0])) if storages(args[0]) else None
        # What a node's own formula adds to is its own; the engine adds to what another node, or it, has made.
        return None if block is None or self._makers.get(block) == _node() else block

    def _notice_backward(self) -> None:
        task = torch_private.current_graph_task_id()
        if task != self._task:
            if task != -1:
                self.events.append(("backward", None, 0))
            else:
                self._name_gradients()
            self._task = task

    def _notice_owner(self, t: Tensor) -> None:
        if isinstance(t, nn.Parameter):
            self._name(t, "parameters")
        if t.requires_grad and t.is_leaf:
            self._leaves[id(t)] = weakref.ref(t)
            if t.grad is not None:
                self._name(t.grad, "gradients")

    def _notice_sizes(self, there: list[Tensor]) -> None:
        for t in there:
            for storage in storages(t):
                block = self.alive.get(key(storage))
                if block is not None and block.bytes != storage.nbytes():
                    self.events.append(("size", block, storage.nbytes() - block.bytes))
                    block.bytes = storage.nbytes()

    def _name_gradients(self) -> None:
        for ref in self._leaves.values():
            if (leaf := ref()) is not None and leaf.grad is not None:
                self._name(leaf.grad, "gradients")

    def _step_begins(self, *_: Any) -> None:
        self._steps += 1

    def _step_ended(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._steps -= 1
        for state in optimizer.state.values():
            for t in tensors_in(state):
                self._name(t, "optimizer")

    def _name(self, t: Tensor, category: Category) -> None:
        for storage in storages(t):
            block = self.alive.get(key(storage))
            if block is not None and block.category is None:
                block.category = category

    def _sort(self) -> None:
        """Gives a category to every block that nothing has named."""
        begins = [place for place, (kind, _, _) in enumerate(self.events) if kind == "backward"]
        freed = {block: place for place, (kind, block, _) in enumerate(self.events) if kind == "free"}
        for place, (kind, block, _) in enumerate(self.events):
            if kind == "new" and block is not None and block.category is None:
                wanted_until = next((begin for begin in begins if begin > place), len(self.events) - 1)
                kept = freed.get(block, len(self.events)) > wanted_until
                made_outside = not block.backward and block not in self._passing
                block.category = "activations" if kept and made_outside else "temporaries"


def _node() -> int:
    node = torch_private.current_node()
    return -1 if node is None else torch_private.sequence_nr(node)


def _called_by_engine() -> bool:
    """Whether an operator comes straight from autograd's engine, not from a backward written in Python."""
    frame = caller()
    return frame is None or frame.f_code is torch_private.engine_run_backward.__code__


def _is_first_gradient() -> bool:
    """Whether this makes the 1 that a backward starts with: made just before it, but not by the forward."""
    own = itertools.takewhile(lambda frame: frame.f_globals.get("__name__") == "torch.autograd", frames())
    return any(frame.f_code is torch_private.make_grads.__code__ for frame in own)
