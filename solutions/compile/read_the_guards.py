"""Compiled code should be right for every call that passes its guards. So a guard compares what the code
depends on. For a constant that is the type and the value, since both are compiled into the code. For a tensor
it is what decides which kernels run and how they walk over storage: class, dtype, device, sizes, strides, and
whether something has to be saved for backward. Elements to compute with are data.

The dict is guarded by its type, the list by type and length, and what was used of them has a source and a
guard of its own. If a source raises, the code has nothing to work with."""

from typing import Any

import torch


def read_the_guards(guards: list[tuple[str, str, Any]], names: dict[str, Any]) -> bool:
    for kind, source, value in guards:
        try:
            now = torch.is_grad_enabled() if kind == "grad mode" else eval(source, {}, names)
        except Exception:
            return False
        if type(now) is not type(value) or _promised(kind, now) != _promised(kind, value):
            return False
    return True


def _promised(kind: str, value: Any) -> Any:
    """What of a value the code was made for, besides its type."""
    match kind:
        case "tensor":
            return value.dtype, value.device, value.size(), value.stride(), value.requires_grad
        case "length":
            return len(value)
        case "type":
            return None
    return value


# Other right answers

from course_utils.exercise import Edit, Wrong


def _of_tensor(x):
    return str(x.dtype), str(x.device), *x.shape, *x.stride(), x.requires_grad


def asks_one_after_another(guards, names):
    return all(_holds(*guard, names) for guard in guards)


def _holds(kind, source, was, names):
    if kind == "grad mode":
        return was == torch.is_grad_enabled()
    try:
        now = eval(source, {}, names)
    except Exception:
        return False
    part = {"tensor": _of_tensor, "constant": lambda x: x, "length": len, "type": type}[kind]
    return now.__class__ == was.__class__ and part(now) == part(was)


def counts_those_that_hold(guards, names):
    """One comparison for each kind."""
    holds = {
        "tensor": lambda was, now: _of_tensor(was) == _of_tensor(now),
        "constant": lambda was, now: was == now,
        "length": lambda was, now: len(was) == len(now),
        "type": lambda was, now: True,
        "grad mode": lambda was, now: was is now,
    }
    number = 0
    for kind, source, was in guards:
        try:
            now = eval(source, {}, names) if source else torch.is_grad_enabled()
            number += type(was) is type(now) and holds[kind](was, now)
        except Exception:
            break
    return number == len(guards)


also_right = [asks_one_after_another, counts_those_that_hold]


# Mistakes


def the_same_object(guards, names):
    return read_the_guards(guards, names) and all(
        kind != "type" or eval(source, {}, names) == value for kind, source, value in guards
    )


_PARTS = "value.dtype, value.device, value.size(), value.stride(), value.requires_grad"

mistakes = [
    Edit("compares elements", _PARTS, f"{_PARTS}, value.tolist()", told_by="same_code_for_a_tensor"),
    Edit("forgets strides", " value.stride(),", "", told_by="other_code_for_a_tensor"),
    Edit("any size", "value.size(), value.stride(),", "value.dim(),", told_by="other_code_for_a_tensor"),
    Edit("equal constants", "type(now) is not type(value) or ", "", told_by="other_code_for_a_tensor"),
    Edit("identical constants", "    return value\n", "    return id(value)\n", told_by="constants"),
    Edit(
        "lengths that do not count",
        'case "length":\n            return len(value)\n        ',
        "",
        told_by="containers",
    ),
    Edit("catches keys alone", "except Exception", "except KeyError", told_by="sources"),
    Wrong(the_same_object, told_by="containers"),
]

equivalent = {
    "line 9: `eval(source, {}, names)` -> `eval(source, names, {})`": "the same names are found",
    "line 9: `{}` removed": "the same names are found; `eval` adds `__builtins__` to them",
}

not_tried = {"hard numbers": "elements are not looked at", "left alone": "there is nothing to write"}
