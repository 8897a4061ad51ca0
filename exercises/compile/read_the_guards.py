"""Whether the promises of the compiler hold

Code that was compiled for one call is used again for another if all of its *guards* hold. Say whether they
do, without calling anything.

A guard is `(kind, source, value)`. `source` is a Python expression that finds in a call what the guard is
about, such as `"x"`, `"options['scale']"` or `"layers[0].bias"`; `names` is a dict of the names in it, so
that `eval(source, {}, names)` evaluates it. (`G` is the dict of the globals that the function sees.) `value`
is what it was in the call that the code was made for. The kinds:

- `"tensor"`: the code takes a tensor like `value`. What of a tensor the code was made for, and what may be
  another in every call, is for you to say.
- `"constant"`: a number, a string, a bool or None, which is written into the code.
- `"length"`: a list or a tuple, of which the type and the number of elements were used. Elements that were
  used have guards of their own.
- `"type"`: a dict or another object, of which only parts were used. They have guards of their own.
- `"grad mode"`: a bool, what `torch.is_grad_enabled()` said; `source` is empty.

What has no guard was not used, and may be anything. A call in which a source leads nowhere, to a list that is
too short, say, is one for which the code was not made. Guards stand in no order. Return True or False, and
leave `names` as it is.

`read_the_guards([("constant", "power", 2)], {"x": torch.ones(3), "power": 3})` → `False`

To look at guards yourself, give `torch.compile` the argument `options={"guard_filter_fn": look}`: it calls
`look` with a list of entries, which have a `guard_type`, a `name` and a `value`, and wants back a list with
a True for each."""

import collections
import types
from typing import Any

import torch
from torch import nn

from course_utils import evidence, expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=20,
    hints=[
        "Which of what a tensor carries (class, dtype, sizes, strides, elements, offset, requires_grad) "
        "decides what has to run, and what only goes through it?",
        "`2`, `2.0` and `True` compare in ways that are of no use here: `x * 2` and `x * 2.0` have other "
        "results for a tensor of integers.",
        "Go through the guards, find the value of each in the call, and return False at the first that does "
        "not hold. Whatever evaluating a source raises means False as well.",
    ],
)


@exercise.starter
def read_the_guards(guards: list[tuple[str, str, Any]], names: dict[str, Any]) -> bool:
    """Whether the code with these guards is used again for the call with these names"""
    raise NotImplementedError


def _verdict(answer, setup, calls, **more):
    """For each line of names what the answer says against what is right: all wrong ones are told."""
    wrong = []
    for call, served in calls.items():
        t = expect.given(f"{setup}\nnames = {call}", read_the_guards=answer, **more)
        before = set(t.names)
        said = t.call("read_the_guards(guards, names)")
        added = sorted(set(t.names) - before)
        expect.true(not added, f"after the call `names` has {expect.show(added)}", "expected: as it was")
        evidence.record(call, said if type(said) is bool else type(said).__name__)
        if said is not served:
            wrong += [f"for `names = {call}` the result is {expect.show(said)}, expected `{served}`"]
    with expect.situation(*setup.splitlines()):
        if wrong:
            raise expect.Mismatch(*wrong)


@exercise.check
def constants(read_the_guards):
    """Constants: the same value, of the same type"""
    setup = """guards = [("constant", "power", 2), ("constant", "flag", True), ("constant", "mode", None)]"""
    calls = {
        "{'power': 2, 'flag': True, 'mode': None}": True,
        "{'power': 2, 'flag': True, 'mode': None, 'other': 'x'}": True,
        "{'power': 3, 'flag': True, 'mode': None}": False,
        "{'power': 2.0, 'flag': True, 'mode': None}": False,
        "{'power': 2, 'flag': 1, 'mode': None}": False,
        "{'power': 2, 'flag': True, 'mode': 'same'}": False,
    }
    _verdict(read_the_guards, setup, calls)


@exercise.check
def places(read_the_guards):
    """Sources that lead into a dict, a list, an object; and some that lead nowhere"""
    setup = """guards = [("constant", "layers[1].size", 3), ("constant", "options['deep']['on']", False)]"""
    small, large = types.SimpleNamespace(size=3), types.SimpleNamespace(size=4)
    empty = types.SimpleNamespace()
    calls = {
        "{'layers': [large, small], 'options': {'deep': {'on': False}}}": True,
        "{'layers': (small, small, large), 'options': {'name': 'a', 'deep': {'on': False, 'off': 1}}}": True,
        "{'layers': [small, large], 'options': {'deep': {'on': False}}}": False,
        "{'layers': [small, small], 'options': {'deep': {}}}": False,
        "{'layers': [small], 'options': {'deep': {'on': False}}}": False,
        "{'layers': [small, empty], 'options': {'deep': {'on': False}}}": False,
        "{'layers': [small, small], 'options': {'deep': None}}": False,
        "{'layers': [small, small]}": False,
    }
    _verdict(read_the_guards, setup, calls, small=small, large=large, empty=empty)
    _verdict(read_the_guards, "guards = []", {"{}": True, "{'x': torch.ones(3)}": True})


@exercise.check
def containers(read_the_guards):
    """Lists by type and length, dicts by type alone"""
    setup = """guards = [("length", "sizes", [3, 4]), ("type", "options", {"on": True})]"""
    calls = {
        "{'sizes': [3, 4], 'options': {'on': True}}": True,
        "{'sizes': [None, torch.ones(2)], 'options': {}}": True,
        "{'sizes': [3, 4, 5], 'options': {'on': True}}": False,
        "{'sizes': [3], 'options': {'on': True}}": False,
        "{'sizes': (3, 4), 'options': {'on': True}}": False,
        "{'sizes': 2, 'options': {'on': True}}": False,
        "{'sizes': [3, 4], 'options': [3]}": False,
    }
    _verdict(read_the_guards, setup, calls)


# --- judged by what torch does --------------------------------------------------------------------------


class _Layer:
    def __init__(self, gain, name="a"):
        self.gain, self.name = gain, name


class _Other(_Layer):
    pass


_OBJECTS = {
    "Layer": _Layer,
    "Other": _Other,
    "OrderedDict": collections.OrderedDict,
    "layer": _Layer(3),
    "pair": [1, 2.0],
    "adding": {"add": True, "name": "a"},
}


def _kind(entry):
    """What the entry promises, in the words of the task; None for what a call cannot change."""
    value = entry.value
    if entry.guard_type == "GRAD_MODE":
        return "grad mode"
    if entry.name.startswith("G['__") or not entry.name:
        return None
    if isinstance(value, torch.Tensor):
        return "tensor"
    if value is None or isinstance(value, (bool, int, float, str)):
        return "constant"
    if isinstance(value, (list, tuple)):
        return "length"
    plain = isinstance(value, (dict, _Layer)) and entry.name != "G"
    return "type" if plain else None


def _guards_of(function, names):
    """Compiles the function for the call with these names; its guards, and the compiled function."""
    found = {}

    def look(entries):
        for entry in entries:
            if kind := _kind(entry):
                value = torch.is_grad_enabled() if kind == "grad mode" else entry.value
                found[kind, entry.name] = (kind, entry.name, value)
        return [True] * len(entries)

    compiled = torch.compile(function, backend="eager", options={"guard_filter_fn": look})
    compiled(**names)
    return list(found.values()), compiled


def _expect_as_torch(answer, function, code, calls):
    """What the answer says of each call is what torch does with it; a line that begins with `no_grad: ` is
    a call without gradients. The call that was compiled for is among them."""
    space = {"torch": torch, "nn": nn, **_OBJECTS}
    guards, compiled = _guards_of(function, eval(calls[0], dict(space)))
    served, wrong = [], []
    guards.reverse()  # nothing is said of their order
    for call in calls:
        with_grad = not call.startswith("no_grad: ")
        names = eval(call.removeprefix("no_grad: "), dict(space))
        with torch.set_grad_enabled(with_grad), torch.compiler.set_stance("fail_on_recompile"):
            try:
                compiled(**names)
                used = True
            except RuntimeError:
                used = False
        served.append(used)
        globals_seen = {**function.__globals__, **space}
        with torch.set_grad_enabled(with_grad), expect.situation(f"names = {call}"):
            said = answer(list(guards), {**names, "G": globals_seen})
        evidence.record(call, said if type(said) is bool else type(said).__name__)
        if said is not used:
            told = "is used again" if used else "is not used again"
            wrong.append(f"for `{call}` the result is {expect.show(said)}; the compiled code {told}")
    if not (any(served) and not all(served)):
        raise expect.CannotCheck("this torch uses its compiled code for all of these calls, or for none")
    with expect.situation(*code):
        if wrong:
            raise expect.Mismatch(f"compiled for `{calls[0]}`; in each line, the names of a call:", *wrong)


def _scaled(x, w, unused=None):
    return x * w


_SCALED = ("def f(x, w, unused=None): return x * w",)
_TENSORS = [
    "{'x': torch.ones(1, 4), 'w': torch.ones(4)}",
    "{'x': torch.zeros(1, 4), 'w': torch.ones(4)}",
    "{'x': torch.ones(3, 4)[2:], 'w': torch.zeros(9)[5:], 'unused': 3}",
    "{'x': torch.ones(2, 4), 'w': torch.ones(4)}",
    "{'x': torch.ones(4), 'w': torch.ones(4)}",
    "{'x': torch.ones(1, 1), 'w': torch.ones(4)}",
    "{'x': torch.ones(1, 8)[:, :4], 'w': torch.ones(4)}",
    "{'x': torch.ones(1, 4), 'w': torch.ones(8)[::2]}",
    "{'x': torch.ones(1, 4).double(), 'w': torch.ones(4)}",
    "{'x': torch.ones(1, 4), 'w': torch.ones(4, requires_grad=True)}",
    "{'x': nn.Parameter(torch.ones(1, 4), requires_grad=False), 'w': torch.ones(4)}",
    "{'x': torch.ones(1, 4), 'w': 1.0}",
    "{'x': torch.ones(1, 4), 'w': torch.ones(4, device='meta')}",
]

# A global that the compiled function uses.
_SHIFT = 2


def _mixed(x, layer, items, options):
    y = x * layer.gain + _SHIFT
    for item in items:
        y = y + item
    return y + 1 if options["add"] else y


_MIXED = (
    "SHIFT, layer, pair, adding = 2, Layer(3), [1, 2.0], {'add': True, 'name': 'a'}",
    "def f(x, layer, items, options):",
    "y = x * layer.gain + SHIFT",
    "for item in items: y = y + item",
    'return y + 1 if options["add"] else y',
)
_OTHERS = [
    "{'layer': layer, 'items': pair, 'options': adding, 'x': torch.ones(2)}",
    "{'layer': Layer(3, 'b'), 'items': pair, 'options': adding, 'x': torch.ones(2)}",
    "{'layer': Layer(3.0), 'items': pair, 'options': adding, 'x': torch.ones(2)}",
    "{'layer': Other(3), 'items': pair, 'options': adding, 'x': torch.ones(2)}",
    "{'layer': layer, 'items': [1, 2.0], 'options': adding, 'x': torch.ones(2)}",
    "{'layer': layer, 'items': (1, 2.0), 'options': adding, 'x': torch.ones(2)}",
    "{'layer': layer, 'items': [1, 2.0, 0], 'options': adding, 'x': torch.ones(2)}",
    "{'layer': layer, 'items': [1], 'options': adding, 'x': torch.ones(2)}",
    "{'layer': layer, 'items': [2.0, 1], 'options': adding, 'x': torch.ones(2)}",
    "{'layer': layer, 'items': pair, 'options': {'add': True, 'name': 'a'}, 'x': torch.ones(2)}",
    "{'layer': layer, 'items': pair, 'options': {'name': 'b', 'add': True}, 'x': torch.ones(2)}",
    "{'layer': layer, 'items': pair, 'options': {'add': True}, 'x': torch.ones(2)}",
    "{'layer': layer, 'items': pair, 'options': OrderedDict(add=True), 'x': torch.ones(2)}",
    "{'layer': layer, 'items': pair, 'options': {'add': False}, 'x': torch.ones(2)}",
    "no_grad: {'layer': layer, 'items': pair, 'options': adding, 'x': torch.ones(2)}",
]


@exercise.check(isolated=True, deadline=60)
def as_torch(read_the_guards):
    """What torch does with other tensors, objects, lists and dicts, and without gradients"""
    _expect_as_torch(read_the_guards, _scaled, _SCALED, _TENSORS)
    _expect_as_torch(read_the_guards, _mixed, _MIXED, _OTHERS)


# --- the mistakes ---------------------------------------------------------------------------------------


def _shape(was, now):
    return was.size() == now.size() and was.stride() == now.stride()


_PARTS = ("dtype", "device", "requires_grad")


def _alike(was, now, parts=_PARTS):
    return type(was) is type(now) and all(getattr(was, part) == getattr(now, part) for part in parts)


def _tensor(was, now):
    return _alike(was, now) and _shape(was, now)


def _constant(was, now):
    return type(was) is type(now) and was == now


def _length(was, now):
    return type(was) is type(now) and len(was) == len(now)


def _type(was, now):
    return type(was) is type(now)


def _grad_mode(was):
    return torch.is_grad_enabled() is was


_RULES = {"tensor": _tensor, "constant": _constant, "length": _length, "type": _type}
_NOWHERE = (LookupError, AttributeError, NameError, TypeError)


def _holds(guard, names, **other_rules):
    kind, source, was = guard
    if kind == "grad mode":
        return other_rules.get("grad_mode", _grad_mode)(was)
    try:
        now = eval(source, {}, names)
    except _NOWHERE:
        return False
    return bool({**_RULES, **other_rules}[kind](was, now))


def _all(guards, names, **other_rules):
    return all(_holds(guard, names, **other_rules) for guard in guards)


@exercise.mistake
def compares_elements(guards, names):
    """You ask for the same elements. They go through the compiled code, which is the same for all of them; it
    was made for the class, dtype, device, sizes and strides of a tensor, and for whether it needs a
    gradient."""
    return _all(guards, names, tensor=lambda was, now: _tensor(was, now) and torch.equal(was, now))


@compares_elements.variant
def no_element_differs(guards, names):
    def alike(was, now):
        return _tensor(was, now) and not (was != now).any().item()

    return not [guard for guard in guards if not _holds(guard, names, tensor=alike)]


@exercise.mistake
def forgets_strides(guards, names):
    """You leave out the strides. Two tensors of one size can lie differently in storage, and the compiled
    code walks over storage: it was made for the strides that it saw, those of dimensions of size 1
    included."""

    return _all(guards, names, tensor=lambda was, now: _alike(was, now) and was.size() == now.size())


@forgets_strides.form
def forgets_strides_and_device(guards, names):
    def alike(was, now):
        return _alike(was, now, ("dtype", "requires_grad")) and was.size() == now.size()

    return _all(guards, names, tensor=alike)


def _without(*parts, any_class=False):
    """A rule for tensors that leaves something out."""
    asked = [part for part in _PARTS if part not in parts]

    def alike(was, now):
        if any_class and isinstance(was, torch.Tensor) and isinstance(now, torch.Tensor):
            now = now.as_subclass(type(was))
        return _alike(was, now, asked) and _shape(was, now)

    return alike


@exercise.mistake
def forgets_a_part(guards, names):
    """You leave out something of a tensor that the code was made for. Besides sizes and strides that is its
    class, its dtype, its device, and whether it requires a gradient."""
    return _all(guards, names, tensor=_without("requires_grad"))


@forgets_a_part.form
def forgets_the_device(guards, names):
    return _all(guards, names, tensor=_without("device"))


@forgets_a_part.form
def forgets_the_gradient_and_the_device(guards, names):
    return _all(guards, names, tensor=_without("requires_grad", "device"))


@forgets_a_part.form
def forgets_the_dtype_and_the_device(guards, names):
    return _all(guards, names, tensor=_without("dtype", "device"))


@forgets_a_part.form
def forgets_the_class(guards, names):
    return _all(guards, names, tensor=_without(any_class=True))


@exercise.mistake
def any_size(guards, names):
    """You allow other sizes. The code of a first call is made for the sizes that it saw; it is the second
    compilation that leaves a size open, and its guards would say so."""

    return _all(guards, names, tensor=lambda was, now: _alike(was, now) and was.dim() == now.dim())


@any_size.form
def any_size_and_device(guards, names):
    def alike(was, now):
        return _alike(was, now, ("dtype", "requires_grad")) and was.dim() == now.dim()

    return _all(guards, names, tensor=alike)


@any_size.variant
def any_number_of_rows(guards, names):
    def alike(was, now):
        if type(was) is not type(now) or len(was.shape) != len(now.shape):
            return False
        return (was.dtype, was.requires_grad, was.device) == (now.dtype, now.requires_grad, now.device)

    broken = [guard for guard in guards if not _holds(guard, names, tensor=alike)]
    return len(broken) == 0


@exercise.mistake
def equal_constants(guards, names):
    """You compare constants with `==` alone. `2 == 2.0` and `True == 1` hold in Python, and the code was made
    for one of each: the type is part of the promise."""
    return _all(guards, names, constant=lambda was, now: was == now)


@equal_constants.variant
def constants_that_differ(guards, names):
    def differ(was, now):
        return was not in (now,)

    return not any(
        differ(was, eval(source, {}, names)) if _is_there(kind, source, names) else not _holds(guard, names)
        for guard in guards
        for kind, source, was in [guard]
    )


def _is_there(kind, source, names):
    return kind == "constant" and _holds((kind, source, 0), names, constant=lambda was, now: True)


@exercise.mistake
def identical_constants(guards, names):
    """You compare constants with `is`. Two floats of one value are two objects; it is a habit of Python's
    that equal small integers or short texts are one. The promise is about type and value."""
    return _all(guards, names, constant=lambda was, now: was is now)


@exercise.mistake
def subclasses_too(guards, names):
    """You let a subclass pass. An `OrderedDict` is a dict for `isinstance`, and may do all that the code does
    in another way: the promise is about the class itself, `type(x)`."""
    return _all(guards, names, type=_instance, length=_instance_of_length)


def _instance(was, now):
    return isinstance(now, type(was))


def _instance_of_length(was, now):
    return isinstance(now, type(was)) and len(was) == len(now)


@exercise.mistake
def the_same_object(guards, names):
    """You ask for the same object, or for one that is equal to it. Of it only parts were used, and these have
    guards of their own: another object of its type will do."""
    return _all(guards, names, type=lambda was, now: was is now)


@the_same_object.form
def an_equal_object(guards, names):
    return _all(guards, names, type=lambda was, now: type(was) is type(now) and was == now)


@exercise.mistake
def skips_the_grad_mode(guards, names):
    """You leave out the grad mode. It is no argument, and it decides what has to be saved for backward: code
    made with gradients is not used under `no_grad`."""
    return _all([guard for guard in guards if guard[0] != "grad mode"], names)


@exercise.mistake
def some_errors_only(guards, names):
    """You do not catch everything that a source can raise when it leads nowhere. A list can be too short
    (`IndexError`), a key or a name can be missing, an attribute too, and what is there may not be
    subscriptable at all (`TypeError`)."""
    return _catching(guards, names, KeyError)


def _catching(guards, names, *errors):
    try:
        for kind, source, was in guards:
            now = torch.is_grad_enabled() if kind == "grad mode" else eval(source, {}, names)
            if not _RULES.get(kind, _constant)(was, now):
                return False
    except errors:
        return False
    return True


@some_errors_only.form
def catches_nothing(guards, names):
    return _catching(guards, names)


@some_errors_only.form
def catches_what_is_not_in_it(guards, names):
    return _catching(guards, names, KeyError, IndexError)


@some_errors_only.form
def catches_attributes_too(guards, names):
    return _catching(guards, names, KeyError, IndexError, AttributeError)


@exercise.mistake
def all_names_are_guarded(guards, names):
    """You ask that every name of the call has a guard. What has none was not used by the code, so it may be
    there or not, and be anything."""
    guarded = {guard[1].split("[")[0].split(".")[0] for guard in guards}
    return _all(guards, names) and all(name in guarded for name in names if name != "G")
