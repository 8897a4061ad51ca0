"""Examples: code that was run, and that a reader can paste into a cell and run again."""

import contextlib
import linecache
import math
import re
import textwrap
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch


class Given:
    """An example: lines of code that were run, and the names that they made.

    The names are attributes; `call` evaluates an expression among them. What is shown to the reader is the
    code that ran, after a line for each plain value that it was given.
    """

    def __init__(self, setup: str, names: dict[str, Any]) -> None:
        self.__dict__["_given"] = {name: value for name, value in names.items() if _is_plain(value)}
        known = {"__name__": "__main__", "torch": torch, "nn": torch.nn, "F": torch.nn.functional}
        self.__dict__["_names"] = {**known, **names}
        self.__dict__["_setup"] = textwrap.dedent(setup).strip()
        SHOWN.set((self._shown(), self._names))
        # So that the code of a class can be found, as `torch.jit.script` does.
        linecache.cache["<given>"] = (len(self._setup), None, self._setup.splitlines(True), "<given>")
        exec(compile(self._setup, "<given>", "exec"), self._names)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._names[name]
        except KeyError:
            raise AttributeError(name) from None

    def call(self, expression: str) -> Any:
        """Evaluates the expression; messages from here on show the example."""
        SHOWN.set((self._shown(expression), self._names))
        return eval(compile(expression, "<given>", "eval"), self._names)

    def run(self, statements: str) -> None:
        """Runs more lines; they are a part of the example from here on."""
        statements = textwrap.dedent(statements).strip()
        self.__dict__["_setup"] = f"{self._setup}\n{statements}".strip()
        SHOWN.set((self._shown(), self._names))
        exec(compile(statements, "<given>", "exec"), self._names)

    def _shown(self, expression: str = "") -> str:
        code = "\n".join(part for part in (self._setup, expression) if part)
        if str(self._given.get("device")) == "cpu":  # where a tensor is made anyway
            code = code.replace(", device=device", "")
        words = set(re.findall(r"\w+", code))
        lines = [f"{name} = {_written(value)}" for name, value in self._given.items() if name in words]
        return "\n".join([*lines, code])


def given(setup: str, **names: Any) -> Given:
    """Runs `setup` with `names` (and `torch`, `nn`, `F`) and returns what it made.

    t = expect.given("x = torch.arange(12)[::2]", sliding_windows=sliding_windows)
    expect.equal(t.call("sliding_windows(x, 3)"), t.x.unfold(0, 3, 1))
    """
    return Given(setup, names)


# The code of the example that is being looked at, and the names in it.
SHOWN: ContextVar[tuple[str, dict[str, Any]]] = ContextVar("shown", default=("", {}))


@contextlib.contextmanager
def situation(*lines: str) -> Iterator[None]:
    """Lets the messages of what runs inside begin with these lines of code; without any: with none."""
    token = SHOWN.set(("\n".join(lines), {}))
    yield
    # Not where something was raised: what is said of it begins with this code.
    SHOWN.reset(token)


@contextlib.contextmanager
def example_of_its_own() -> Iterator[None]:
    """What runs inside leaves the example as it was, also where it raises."""
    before = SHOWN.get()
    try:
        yield
    finally:
        SHOWN.set(before)


def example() -> list[str]:
    """Returns the part of a message that shows what was run; nothing where nothing was given. One line of
    code stands in backticks; several stand by themselves, as they would in a cell."""
    code, _ = SHOWN.get()
    told = f"for\n{code}" if "\n" in code else f"for `{code}`"
    return [told] if code else []


def known_tensors() -> dict[str, torch.Tensor]:
    """The tensors of the example, by name."""
    _, names = SHOWN.get()
    return {name: value for name, value in names.items() if issubclass(type(value), torch.Tensor)}


def known_numbers() -> dict[str, float]:
    """The whole numbers of the example that can be a factor, by name."""
    _, names = SHOWN.get()
    return {f"`{name}`": value for name, value in names.items() if type(value) is int and value > 1}


def _is_plain(value: Any) -> bool:
    plain = (bool, int, float, str, torch.dtype, torch.device, type(None))
    return type(value) in plain or (type(value) in (tuple, list) and all(map(_is_plain, value)))


def _written(value: Any) -> str:
    """The value as code: `inf` and `nan` are no names, and a device is written as a text."""
    if isinstance(value, torch.device):
        return repr(value.type)
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if type(value) is list:
        return f"[{', '.join(map(_written, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_written, value))}{',' * (len(value) == 1)})"
    return repr(value)
