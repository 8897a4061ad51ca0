"""Do the guards hold?

Code compiled for one call runs again for another if all its guards hold. Say whether they do, without calling
anything.

A guard is `(kind, source, value)`: `eval(source, {}, names)` finds its object among the names of a call, and
`value` is what was there when the code was compiled. The kinds:

- `"tensor"`: you decide what about it must be the same. It's dense and real, and no size is a symbol yet.
- `"constant"`: a number (not NaN), text, bool or None.
- `"length"`: a list or tuple whose type and length were used; `"type"`: only the type was used.
- `"grad mode"`: what `torch.is_grad_enabled()` said; no source.

If evaluating the source raises, the guard doesn't hold.

`read_the_guards([("constant", "n", 2)], {"n": 3})` → `False`
"""

import functools
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=20,
    hints=[
        "A tensor has a class, a dtype, sizes, strides, elements, an offset, requires_grad. Which of these "
        "decide what code has to run, and which are only data?",
        "`2 == 2.0` and `1 == True` hold in Python, but `x * 2` and `x * 2.0` differ for a tensor of "
        "integers.",
        "Go through the guards, find the value of each in the call, and return False at the first that "
        "doesn't hold. An exception while evaluating a source means False too.",
    ],
)


@exercise.starter
def read_the_guards(guards: list[tuple[str, str, Any]], names: dict[str, Any]) -> bool:
    """Whether the code with these guards is used again for the call with these names"""
    raise NotImplementedError


# A function for each kind that uses of its argument what the task says.
_USES = {
    "tensor": lambda x: x + 1,
    "constant": lambda x: torch.ones(1) * (2 if x else 3),
    "length": lambda x: torch.ones(1) * len(x),
    "type": lambda x: torch.ones(1) * (2 if isinstance(x, dict) else 3),
}
_SPACE = {"torch": torch, "nn": nn, "OrderedDict": OrderedDict}


@functools.cache
def _used_again(kind, was, now):
    """Whether torch uses the code that it compiled for one value for the other."""
    torch.compiler.reset()
    compiled = torch.compile(_USES[kind], backend="eager")
    compiled(eval(was, dict(_SPACE)))
    with torch.compiler.set_stance("fail_on_recompile"):
        try:
            compiled(eval(now, dict(_SPACE)))
            return True
        except RuntimeError:
            return False


_CALL = "read_the_guards(guards, names)"


def _compare(read_the_guards, kind, cases):
    """`cases`: label -> (the value that was compiled for, that of the call), as code."""
    with Rows() as rows:
        for label, (was, now) in cases.items():
            with rows.of(label):
                setup = f'guards = [("{kind}", "x", {was})]\nnames = {{"x": {now}}}'
                if "OrderedDict" in now:
                    setup = f"from collections import OrderedDict\n{setup}"
                t = expect.given(setup, read_the_guards=read_the_guards)
                expect.equal(t.call(_CALL), _used_again(kind, was, now))


@exercise.check(isolated=True, deadline=60)
def same_code_for_a_tensor(read_the_guards):
    """What about a tensor may change

    Elements that are only computed with are data, and the offset in storage is an address. Here neither has a
    guard.
    """
    x = "torch.ones(2, 4)"
    cases = {
        "the same": (x, x),
        "other elements": (x, "torch.zeros(2, 4)"),
        "NaN": ("torch.full((2, 4), torch.nan)", "torch.full((2, 4), torch.nan)"),
        "another offset": (x, "torch.ones(5, 4)[3:]"),
    }
    _compare(read_the_guards, "tensor", cases)


@exercise.check(isolated=True, deadline=60)
def other_code_for_a_tensor(read_the_guards):
    """What about a tensor must stay the same

    Code is compiled for a class, a dtype and a device, for sizes and strides (those of dimensions of size 1
    too), and for whether a gradient is needed. A size can become a symbol when the compiler has seen two.
    """
    x = "torch.ones(1, 4)"
    cases = {
        "the same": (x, x),
        "other sizes": (x, "torch.ones(2, 4)"),
        "one dimension less": (x, "torch.ones(4)"),
        "strides of a slice": ("torch.ones(2, 4)", "torch.ones(2, 8)[:, :4]"),
        "strides of a transpose": ("torch.ones(2, 2)", "torch.ones(2, 2).t()"),
        "stride of a dimension of size 1": (x, "torch.ones(1, 8)[:, :4]"),
        "another dtype": (x, "torch.ones(1, 4).double()"),
        "a gradient": (x, "torch.ones(1, 4, requires_grad=True)"),
        "a Parameter": (x, "nn.Parameter(torch.ones(1, 4), requires_grad=False)"),
        "another device": (x, "torch.ones(1, 4, device='meta')"),
        "a number": (x, "1.0"),
    }
    _compare(read_the_guards, "tensor", cases)


@exercise.check(isolated=True, deadline=60)
def constants(read_the_guards):
    """A constant has the same value and the same type

    Type and value are compiled into the code. `2 == 2.0` and `True == 1` hold in Python, but each has code of
    its own. Whether two equal numbers are one object (`is`) is up to Python.
    """
    cases = {
        "2 and 2": ("2", "2"),
        "two objects for 0.5": ("0.5", "float('0.5')"),
        "two objects for a text": ("'a text'", "' '.join(['a', 'text'])"),
        "None and None": ("None", "None"),
        "2 and 3": ("2", "3"),
        "2 and 2.0": ("2", "2.0"),
        "True and 1": ("True", "1"),
        "two texts": ("'up'", "'down'"),
        "None and 0": ("None", "0"),
    }
    _compare(read_the_guards, "constant", cases)


@exercise.check(isolated=True, deadline=60)
def containers(read_the_guards):
    """For a list the type and the length count, for a dict the type

    Elements that were used have guards of their own. The type is the exact class: an `OrderedDict` is a dict
    for `isinstance`, but may behave differently.
    """
    cases = {
        "other elements": ("[3, 4]", "[None, torch.ones(2)]"),
        "longer": ("[3, 4]", "[3, 4, 5]"),
        "shorter": ("[3, 4]", "[3]"),
        "a tuple": ("[3, 4]", "(3, 4)"),
    }
    _compare(read_the_guards, "length", cases)
    cases = {
        "another dict": ("{'on': True}", "{}"),
        "an OrderedDict": ("{'on': True}", "OrderedDict(on=True)"),
        "a list": ("{'on': True}", "[True]"),
    }
    _compare(read_the_guards, "type", cases)


@exercise.check(
    given='guards = [("grad mode", "", was)]',
    cases={f"`{was}` then, `{now}` now": (was, now) for was in (True, False) for now in (True, False)},
)
def grad_mode(t, was, now):
    """Grad mode is guarded too

    It isn't an argument, but it decides what is kept for backward. Code compiled with gradients isn't used
    under `no_grad`, nor the other way round.
    """
    t.run("with torch.set_grad_enabled(now):\n    said = read_the_guards(guards, {})")
    expect.equal(t.said, was is now)


_SOURCES = """guards = [("constant", "layers[1].size", 3), ("constant", "options['deep']['on']", None)]
from types import SimpleNamespace
a, b = SimpleNamespace(size=3), SimpleNamespace()
class Broken:
    size = property(lambda self: 1 // 0)"""
_DEEP = "'options': {'deep': {'on': None}}"


@exercise.check(
    given=_SOURCES,
    cases={
        "all there": (f"names = {{'layers': [b, a], {_DEEP}}}", True),
        "list too short": (f"names = {{'layers': [a], {_DEEP}}}", False),
        "no attribute": (f"names = {{'layers': [a, b], {_DEEP}}}", False),
        "a property that raises": (f"names = {{'layers': [a, Broken()], {_DEEP}}}", False),
        "no key": ("names = {'layers': [a, a], 'options': {'deep': {}}}", False),
        "None in place of a dict": ("names = {'layers': [a, a], 'options': {'deep': None}}", False),
        "no name": ("names = {'layers': [a, a]}", False),
    },
)
def sources(t, holds):
    """A source that raises doesn't hold

    A list can be too short; a key, a name or an attribute can be missing; `None` can't be indexed. Python
    raises `IndexError`, `KeyError`, `NameError`, `AttributeError` or `TypeError`; a property can raise
    anything. The code was compiled for a call in which something was there.
    """
    expect.equal(t.call(_CALL), holds)


@exercise.check(
    given='guards = [("constant", "n", 2), ("constant", "mode", "up"), ("length", "x", [0])]',
    cases={
        "all hold": ("names = {'n': 2, 'mode': 'up', 'x': [1]}", True),
        "the first fails": ("names = {'n': 3, 'mode': 'up', 'x': [1]}", False),
        "the second fails": ("names = {'n': 2, 'mode': 'down', 'x': [1]}", False),
        "the last fails": ("names = {'n': 2, 'mode': 'up', 'x': []}", False),
        "a name without a guard": ("names = {'n': 2, 'mode': 'up', 'x': [1], 'other': torch.ones(2)}", True),
        "no guards": ("guards, names = [], {}", True),
    },
)
def all_of_them(t, holds):
    """All guards must hold, in any order

    If one guard fails, another version is tried or compiled. A name without a guard may be anything.
    """
    expect.equal(t.call(_CALL), holds)
