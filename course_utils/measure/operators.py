"""Which operators ran."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from course_utils.measure.flop_formulas import formulas
from course_utils.measure.modes import Noting, Watch, has_kernel, in_backward, packet
from course_utils.measure.storage import tensors_in
from course_utils.wrong_use import WrongUse, public

Where = Literal["forward", "backward"]

MATMULS = (
    "aten.mm",
    "aten.bmm",
    "aten.addmm",
    "aten.baddbmm",
    "aten.addbmm",
    "aten.mv",
    "aten.addmv",
    "aten.dot",
    "aten.vdot",
    "aten.linear",  # where a device has it as one kernel
    "aten.linear_backward",
    "aten._scaled_mm",
    "aten._int_mm",
)
# Operators that only move values to new memory: every element of the result is an element of an input.
_COPIES = (
    "aten.clone",
    "aten.copy_",
    "aten._foreach_copy_",
    "aten._to_copy",
    "aten.cat",
    "aten.stack",
    "aten.repeat",
    "aten.flip",
    "aten.roll",
    "aten.index",
    "aten.index_select",
    "aten.gather",
    "aten.take",
    "aten._pin_memory",
)


def is_copy(name: str) -> bool:
    """Whether it is one of these, or another whose name ends in `_copy` (`aten.as_strided_copy`)."""
    return name in _COPIES or name.endswith("_copy")


@dataclass(frozen=True)
class Call:
    """One operator that ran. `written`: bytes of its results. `backward`: autograd's engine called it."""

    name: str
    backward: bool
    written: int


@dataclass
class Operators:
    """The operators that ran, in order; what `measure.operators()` gives."""

    calls: list[Call] = field(default_factory=list)

    def count(self, *names: str, where: Where | None = None) -> int:
        """Counts how often any of these ran: `"aten.add"` (every overload) or `"aten.add.Tensor"`."""
        return len(self._those(names, where))

    def matmuls(self, where: Where | None = None) -> int:
        """Counts the matrix products that ran, of whatever kind; not convolutions, not fused attention."""
        return len(self._those(MATMULS, where))

    def total(self, where: Where | None = None) -> int:
        """Counts the operators that ran, views and all."""
        return len(self._in(where))

    @property
    def names(self) -> list[str]:
        """Their names without overloads, each once, sorted."""
        return sorted({_packet(call.name) for call in self.calls})

    @property
    def bytes_copied(self) -> int:
        """Bytes written by what only moves values to other memory: clone, copy_, cat, indexing, ..."""
        return sum(call.written for call in self.calls if is_copy(_packet(call.name)))

    def __str__(self) -> str:
        lines = []
        for (name, backward), number in Counter((c.name, c.backward) for c in self.calls).items():
            lines.append(f"{number:>6}  {name}{'  (backward)' if backward else ''}")
        return "\n".join(lines) or "no operator"

    def _in(self, where: Where | None) -> list[Call]:
        if where not in (None, "forward", "backward"):
            raise WrongUse(f'where must be "forward", "backward" or None, not {where!r}')
        return [c for c in self.calls if where is None or c.backward == (where == "backward")]

    def _those(self, names: tuple[str, ...], where: Where | None) -> list[Call]:
        return [c for c in self._in(where) if c.name in names or _packet(c.name) in names]


@public
@contextlib.contextmanager
def operators() -> Iterator[Operators]:
    """Notes every operator that runs inside, forward and backward.

        with measure.operators() as ops:
            loss = model(x).sum()
            loss.backward()
        ops.count("aten.mm"), ops.matmuls("backward")

    Operators are those below autograd: a `linear` is a `t` and an `addmm`, a `reshape` that cannot be a view
    a `clone` and a view. Of compiled code the kernels that it calls through torch are seen.
    """
    found = Operators()

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        results = args[0] if packet(func) == "aten._foreach_copy_" else out
        written = sum(t.numel() * t.element_size() for t in tensors_in(results))
        found.calls.append(Call(str(func), in_backward(), written))

    with Noting(note):
        yield found


@public
def flops(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Counts the floating-point operations of matrix products, convolutions, attention and recurrent layers
    in `fn(*args)`: a multiplication and an addition are two. Element-wise operators count nothing."""
    counter = _Flops()
    with counter:
        fn(*args, **kwargs)
    return counter.total


class _Flops(Watch):
    """Counts as torch's `FlopCounterMode` does. Under that one what is compiled is never compiled again."""

    def __init__(self) -> None:
        super().__init__()
        self.formulas, self.total = formulas(), 0

    def divides(self, func: Any, args: tuple[Any, ...]) -> bool:
        return func.overloadpacket not in self.formulas and has_kernel(func, "CompositeImplicitAutograd")

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        out = run()
        if (formula := self.formulas.get(func.overloadpacket)) is not None:
            self.total += int(formula(*args, **kwargs, out_val=out))
        return out


def _packet(name: str) -> str:
    """`aten.add` of `aten.add.Tensor`."""
    return ".".join(name.split(".")[:2])
