"""Rewrite it for the compiler

`make_scriptable(width, limit)` makes a module that works in Python, and that `torch.jit.script` refuses.
Rewrite it until it is taken, with the types that the comment names; the script is to compute all of it.

- `x` is (batch, time, width), with at least one row. `lengths` says for every row how many of its steps
  count, at least one; without it all do. `extra` holds weights (batch, time) by name, none of them called
  `mean` or `count`. Both may be left out, or be `None`.
- What comes back is a dict of tensors: the means, how many steps counted (`int64`), and a weighted sum for
  each name in `extra`. With a `limit`, where the norm of all means together is larger, they are scaled
  down to it.
- In Python and as a script the results are those of the starter, and the weights have the same names. A
  script that is saved and loaded computes the same.

`torch.jit.script(make_scriptable(4))(torch.ones(2, 5, 4), [5, 3])["count"]` → `[5, 3]`
"""

import copy
import io
import re
from collections import Counter

import torch
from torch import Tensor, nn

from course_utils import evidence, expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=25,
    hints=[
        "Let the compiler talk: `torch.jit.script(make_scriptable(4))`, and then with a limit too, names one "
        "line after another that it does not take. Which type has an argument or a new list for it, when "
        "nobody says it?",
        "An argument without a type is a `Tensor`, and so is what an empty list or dict holds. In Python "
        "`lengths: list[int] | None = None` changes nothing; for the compiler it is another function.",
        "The truth of a list, a dict or `None` is Python's: ask `is not None` in the `if` itself, so that "
        "the compiler knows what is left inside. What it does not take in one line, a loop can do.",
    ],
)


@exercise.starter
def make_scriptable(width: int, limit: float | None = None) -> nn.Module:
    """A module that `torch.jit.script` takes"""

    class Pool(nn.Module):
        def __init__(self, width, limit):
            super().__init__()
            self.project = nn.Linear(width, width)
            self.limit = limit

        def forward(self, x, lengths=None, extra=None):  # a tensor, a list of int, a dict of tensors
            x = self.project(x)
            counts, means = [], []
            for i, row in enumerate(x):
                count = lengths[i] if lengths else len(row)
                counts.append(count)
                means.append(row[:count].mean(0))
            found = {"mean": torch.stack(means), "count": torch.tensor(counts)}
            if extra:
                found |= {name: (x * weight[..., None]).sum(1) for name, weight in extra.items()}
            length = found["mean"].norm()
            if self.limit is not None and length > self.limit:
                found["mean"] = found["mean"] * (self.limit / length)
            return found

    return Pool(width, limit)


# What the starter does, by itself.
_in_python = exercise.starter_object

# What the compiler says when it refuses, and what that means.
_FROM_OUTSIDE = "it sees what the module holds, and no values from outside, of a function around it or global"
_REFUSALS = {
    "Mutable default": "an empty list or dict can be no default; `None` can, with `| None` in the type",
    "Could not cast value of type": "it does not know what an `if` on such a value asks",
    "Expected a default value of type": "`None` is no default for an argument of this type",
    "because it was not annotated": "an argument without a type is taken for a tensor",
    "if-expression's true branch has type Tensor": "something without a type is taken for a tensor",
    "previously matched to type Tensor": "a list or dict without a type is taken for one of tensors",
    "undefined value": _FROM_OUTSIDE,
    "cannot be used as a value": _FROM_OUTSIDE,
    "'Optional[": "it does not know that this is not `None` here",
    "'NoneType'": "this is `None`, and the line is compiled all the same",
}
_OF_ATTRIBUTE = "for the compiler this attribute can be `None` here, whatever was asked before"


def _made(make_scriptable, width, limit):
    """(the answer's module, the starter's) with the same weights."""
    setup = _setup(width, limit)
    t = expect.given("\n".join(setup), make_scriptable=make_scriptable)
    wanted = _in_python(width, limit)
    with expect.situation(*setup):
        expect.true(
            isinstance(t.model, nn.Module), f"the result is {expect.show(t.model)}, expected a module"
        )
        names = list(t.model.state_dict())
        expect.equal(names, list(wanted.state_dict()), what="the list of names in its state dict")
    wanted.load_state_dict(t.model.state_dict())
    return t, wanted


def _setup(width, limit):
    given = f"{width}, {limit}" if limit is not None else f"{width}"
    return "torch.manual_seed(0)", f"model = make_scriptable({given})"


def _scripted(t):
    """The module as a script. What the compiler refuses is told with the line that it is about."""
    _forget(t.model)
    try:
        return t.call("torch.jit.script(model)")
    except Exception as error:
        text = str(error)
        place, expression = _marked(text.splitlines())
        kind = next((kind for kind in _REFUSALS if kind in text), "something else")
        meant = _REFUSALS.get(kind)
        if kind in ("'Optional[", "'NoneType'") and "self." in expression:
            kind, meant = "attribute", _OF_ATTRIBUTE
        evidence.record("refused", kind)
        told = [f"the compiler refuses: {_shortened(said)}" if (said := _said(text)) else "it is refused"]
        if place and kind != "Mutable default":  # there it marks the end of the function
            told.append(f"at `{place}`")
        raise expect.Mismatch(*told, *([meant] if meant else [])) from None


def _forget(model):
    # A class that was refused before leaves its type behind, and the compiler would complain of that instead.
    known = torch.jit._recursive.concrete_type_store.type_store
    for module in model.modules():
        if not type(module).__module__.startswith("torch."):
            known.pop(type(module), None)


def _said(text):
    """The one line of the message that says why."""
    lines = [line.strip() for line in text.splitlines()]
    if "The following variants are available:" in lines:  # a reason for each of them
        reasons = [line for line in lines if re.match(r"Expected a value|Argument |Keyword argument", line)]
        lines = [line for line, _ in Counter(reasons).most_common(1)] or lines
    said = [line for line in lines if re.match(r"[A-Z'a-z][^(]* ", line) and "Arguments for call" not in line]
    return said[0].rstrip(":") if said else ""


def _marked(lines):
    """The line of the answer that is meant, and the part of it that is underlined."""
    for above, line in zip(lines, lines[1:], strict=False):
        if line.endswith("<--- HERE"):
            return above.strip(), above[line.find("~") : line.rfind("~") + 1]
    return "", ""


def _shortened(line):
    line = re.sub(r"__torch__\.[\w.]*\.", "", line)  # where the class stands, with a number that changes
    return line if len(line) <= 150 else line[:149] + "…"


def _compare(model, wanted, arguments, what):
    """The results for these arguments, (x, lengths, extra) or fewer."""
    with torch.no_grad():
        expected = wanted(*arguments)
    given = [copy.copy(value) for value in arguments[1:]]
    try:
        with torch.no_grad():
            came = model(*arguments)
    except (RuntimeError, TypeError, torch.jit.Error) as error:
        evidence.record("raised", what)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = [line for line in lines if re.match(r"[\w.]*Error: ", line)] or lines
        raise expect.Mismatch(f"{what} raised: {_shortened(said[0])}") from None
    with torch.no_grad():
        expect.equal(came, expected, what=what)
    for name, now, was in zip(("lengths", "extra"), arguments[1:], given, strict=False):
        expect.true(_is_still(now, was), f"{what} has changed `{name}`, which is the caller's")


def _is_still(now, was):
    if isinstance(was, dict):
        return [*now] == [*was] and all(now[name] is was[name] for name in was)
    return now == was


def _x(batch, time, width, scale=1.0):
    return scale * torch.linspace(-1, 2, batch * time * width).view(batch, time, width)


@exercise.check(deadline=60)
def in_python(make_scriptable):
    """In Python it computes what the starter computes"""
    t, wanted = _made(make_scriptable, 4, 1.0)
    x, extra = _x(2, 5, 4), {"last": torch.eye(5)[[4, 4]], "all": torch.ones(2, 5)}
    with expect.situation(*_setup(4, 1.0)):
        for arguments in ((x,), (x, [5, 3]), (x, None, extra), (x, [1, 4], extra), (x, None, {})):
            _compare(t.model, wanted, arguments, f"`model({_shown(arguments)})`")
        expect.in_graph(t.model(x)["mean"], what="`model(x)['mean']`", of="the weight")


@exercise.check(deadline=60)
def as_a_script(make_scriptable):
    """The compiler takes it, and without options it computes the same"""
    t, wanted = _made(make_scriptable, 4, None)
    scripted = _scripted(t)
    _compare(scripted, wanted, (_x(2, 5, 4),), "`scripted(x)`")


@exercise.check(deadline=60)
def lists(make_scriptable):
    """As a script it takes lengths, or `None`, for other batches and times too"""
    t, wanted = _made(make_scriptable, 3, None)
    scripted = _scripted(t)
    for arguments in ((_x(2, 5, 3), [5, 3]), (_x(3, 2, 3), [1, 2, 2]), (_x(1, 7, 3), None)):
        _compare(scripted, wanted, arguments, f"`scripted({_shown(arguments)})`")


@exercise.check(deadline=60)
def dictionaries(make_scriptable):
    """As a script it takes extra weights under any names, no weights, or `None`"""
    t, wanted = _made(make_scriptable, 3, None)
    scripted = _scripted(t)
    x = _x(2, 4, 3)
    many = {"b": torch.eye(4)[:2], "a": torch.ones(2, 4)}
    for extra in ({"one": torch.ones(2, 4)}, many, {}, None):
        arguments = (x, [4, 2], extra)
        _compare(scripted, wanted, arguments, f"`scripted({_shown(arguments)})`")


@exercise.check(deadline=60)
def branches(make_scriptable):
    """As a script it scales what is longer than the limit, and nothing else"""
    t, wanted = _made(make_scriptable, 4, 1.0)
    scripted = _scripted(t)
    for name, scale in (("x", 1.0), ("1000 * x", 1000.0), ("0 * x", 0.0)):
        _compare(scripted, wanted, (_x(2, 5, 4, scale),), f"`scripted({name})`")
    _compare(scripted, wanted, (_x(2, 5, 4), [1, 2]), "`scripted(x, [1, 2])`")
    t, wanted = _made(make_scriptable, 4, 0.0)
    _compare(_scripted(t), wanted, (_x(2, 5, 4),), "`scripted(x)`")


@exercise.check(deadline=60)
def saved_and_loaded(make_scriptable):
    """The script can be saved, and what is loaded computes the same"""
    t, wanted = _made(make_scriptable, 4, 1.0)
    scripted = _scripted(t)
    buffer = io.BytesIO()
    try:
        torch.jit.save(scripted, buffer)
    except RuntimeError as error:
        evidence.record("not saved", None)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise expect.Mismatch(f"it cannot be saved: {_shortened(lines[0])}") from None
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    arguments = (_x(2, 5, 4, 3.0), [2, 5], {"all": torch.ones(2, 5)})
    _compare(loaded, wanted, arguments, f"what was loaded, for `({_shown(arguments)})`,")


def _shown(arguments):
    def one(value):
        if isinstance(value, Tensor):
            return "x"
        if isinstance(value, dict):
            return "{" + ", ".join(f'"{name}": …' for name in value) + "}"
        return str(value)

    return ", ".join(map(one, arguments))


# --- the mistakes -----------------------------------------------------------------------------------------


@exercise.mistake
def traces(width, limit=None):
    """You traced it. The compiler has nothing to refuse then, because it is not asked: what is in the trace
    is one call without options, for one batch, on one side of the limit."""
    return torch.jit.trace(_in_python(width, limit), torch.ones(2, 5, width), strict=False)


@traces.variant
def traces_a_call(width, limit=None):
    model = _in_python(width, limit)
    example = torch.zeros(2, 5, width).fill_(1.0)
    return torch.jit.trace_module(model, {"forward": (example,)}, strict=False, check_trace=False)


class _Scriptable(nn.Module):
    """A right answer, for the mistakes to change."""

    def __init__(self, width: int, limit: float | None):
        super().__init__()
        self.project = nn.Linear(width, width)
        self.limit = limit

    def pooled(self, x: Tensor, lengths: list[int] | None) -> dict[str, Tensor]:
        counts: list[int] = []
        means = []
        for i in range(len(x)):
            count = x.shape[1] if lengths is None else lengths[i]
            counts.append(count)
            means.append(x[i, :count].mean(0))
        return {"mean": torch.stack(means), "count": torch.tensor(counts)}

    def limited(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        length = found["mean"].norm()
        if self.limit is not None:  # noqa: SIM102
            if bool(length > self.limit):
                found["mean"] = found["mean"] * (self.limit / length)
        return found

    def weighted(
        self, found: dict[str, Tensor], x: Tensor, extra: dict[str, Tensor] | None
    ) -> dict[str, Tensor]:
        if extra is not None:
            for name, weight in extra.items():
                found[name] = (x * weight.unsqueeze(2)).sum(1)
        return found


@exercise.mistake
def leaves_arguments_untyped(width, limit=None):
    """You left arguments without a type. The compiler does not look at what is passed later: what has no type
    is a `Tensor`, and `None` is no default for one."""

    class Pool(_Scriptable):
        def forward(self, x, lengths=None, extra=None):
            x = self.project(x)
            found = self.pooled(x, lengths)
            return self.limited(self.weighted(found, x, extra))

    return Pool(width, limit)


@leaves_arguments_untyped.variant
def leaves_one_untyped(width, limit=None):
    class Pool(_Scriptable):
        def forward(self, x: Tensor, lengths: list[int] | None = None, extra=None) -> dict[str, Tensor]:
            projected = self.project(x)
            return self.limited(self.weighted(self.pooled(projected, lengths), projected, extra))

    return Pool(width, limit)


@exercise.mistake
def lets_the_list_be_guessed(width, limit=None):
    """You left it open what the empty list holds. An empty list is a list of tensors for the compiler, so a
    whole number cannot be appended; `counts: list[int] = []` says it."""

    class Pool(_Scriptable):
        def forward(
            self, x, lengths: list[int] | None = None, extra: dict[str, Tensor] | None = None
        ) -> dict[str, Tensor]:
            x = self.project(x)
            counts, means = [], []
            for i, row in enumerate(x):
                count = lengths[i] if lengths is not None else len(row)
                counts.append(count)
                means.append(row[:count].mean(0))
            found = {"mean": torch.stack(means), "count": torch.tensor(counts)}
            return self.limited(self.weighted(found, x, extra))

    return Pool(width, limit)


@exercise.mistake
def does_not_refine(width, limit=None):
    """You asked for `None` too far away from where the value is used. The compiler learns that it is a list
    from an `if`, a conditional expression or an `assert` on the name itself, not from a variable that holds
    the answer."""

    class Pool(_Scriptable):
        def forward(
            self, x: Tensor, lengths: list[int] | None = None, extra: dict[str, Tensor] | None = None
        ):
            x = self.project(x)
            given = lengths is not None
            counts: list[int] = []
            for i in range(len(x)):
                counts.append(lengths[i] if given else x.shape[1])
            return self.limited(self.weighted(self.pooled(x, counts), x, extra))

    return Pool(width, limit)


@exercise.mistake
def asks_for_the_truth(width, limit=None):
    """You left `if lengths` or `if extra`. Which objects are true is Python's own rule; for the compiler an
    `if` asks for a bool, a number or a tensor. Say what is meant: `is not None`."""

    class Pool(_Scriptable):
        def forward(
            self, x: Tensor, lengths: list[int] | None = None, extra: dict[str, Tensor] | None = None
        ):
            x = self.project(x)
            found = self.pooled(x, lengths)
            if extra:
                found = self.weighted(found, x, extra)
            return self.limited(found)

    return Pool(width, limit)


@exercise.mistake
def leaves_it_to_python(width, limit=None):
    """You took a method away from the compiler. With `ignore` the script calls back into Python and cannot
    be saved; with `unused` it can, and raises where the method would run."""

    class Pool(_Scriptable):
        @torch.jit.ignore
        def in_python(self, x: Tensor, lengths: list[int] | None) -> dict[str, Tensor]:
            counts = lengths or [len(row) for row in x]
            means = [row[:count].mean(0) for row, count in zip(x, counts, strict=True)]
            return {"mean": torch.stack(means), "count": torch.tensor(counts)}

        def forward(
            self, x: Tensor, lengths: list[int] | None = None, extra: dict[str, Tensor] | None = None
        ) -> dict[str, Tensor]:
            projected = self.project(x)
            return self.limited(self.weighted(self.in_python(projected, lengths), projected, extra))

    return Pool(width, limit)


@leaves_it_to_python.form
def marks_it_unused(width, limit=None):
    class Pool(_Scriptable):
        @torch.jit.unused
        def in_python(
            self, found: dict[str, Tensor], x: Tensor, extra: dict[str, Tensor]
        ) -> dict[str, Tensor]:
            return self.weighted(found, x, extra)

        def forward(
            self, x: Tensor, lengths: list[int] | None = None, extra: dict[str, Tensor] | None = None
        ) -> dict[str, Tensor]:
            x = self.project(x)
            found = self.pooled(x, lengths)
            if extra is not None:
                found = self.in_python(found, x, extra)
            return self.limited(found)

    return Pool(width, limit)


@leaves_it_to_python.form
def marks_all_of_it(width, limit=None):
    class Pool(_Scriptable):
        @torch.jit.ignore
        def in_python(
            self, x: Tensor, lengths: list[int] | None, extra: dict[str, Tensor] | None
        ) -> dict[str, Tensor]:
            x = self.project(x)
            return self.limited(self.weighted(self.pooled(x, lengths), x, extra))

        def forward(
            self, x: Tensor, lengths: list[int] | None = None, extra: dict[str, Tensor] | None = None
        ) -> dict[str, Tensor]:
            return self.in_python(x, lengths, extra)

    return Pool(width, limit)


@exercise.mistake
def leaves_out_what_is_refused(width, limit=None):
    """In Python it does everything, as a script it leaves something out: `torch.jit.is_scripting()` is true
    there. What the compiler refused is then not computed at all."""

    class Pool(_Scriptable):
        def forward(
            self, x: Tensor, lengths: list[int] | None = None, extra: dict[str, Tensor] | None = None
        ):
            x = self.project(x)
            found = self.pooled(x, lengths)
            if not torch.jit.is_scripting():
                found = self.weighted(found, x, extra)
            return self.limited(found)

    return Pool(width, limit)


@exercise.mistake
def takes_no_none(width, limit=None):
    """You gave an argument a type without `None`. `list[int] = None` is a list for the compiler, and `None`
    is no list: it is refused as the default. `list[int] | None = None` says both."""

    class Pool(_Scriptable):
        def forward(self, x: Tensor, lengths: list[int] = None, extra: dict[str, Tensor] = None):
            x = self.project(x)
            return self.limited(self.weighted(self.pooled(x, lengths), x, extra))

    return Pool(width, limit)


class _Typed(_Scriptable):
    """The same, taken by the compiler."""

    def forward(
        self, x: Tensor, lengths: list[int] | None = None, extra: dict[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        x = self.project(x)
        return self.limited(self.weighted(self.pooled(x, lengths), x, extra))


@exercise.mistake
def compares_with_none(width, limit=None):
    """You compare with `self.limit` where it is, or may be, `None` for the compiler. Both sides of an `and`
    are compiled, and no `if` says anything about an attribute that is declared `float | None`. Without a
    declaration an `if self.limit is not None` of its own around the comparison will do; with one, put the
    attribute into a variable and ask that."""

    class Pool(_Typed):
        def limited(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
            length = found["mean"].norm()
            if self.limit is not None and length > self.limit:
                found["mean"] = found["mean"] * (self.limit / length)
            return found

    return Pool(width, limit)


@compares_with_none.variant
def compares_beside_the_question(width, limit=None):
    class Pool(_Typed):
        def limited(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
            mean = found["mean"]
            if not (self.limit is None or bool(mean.norm() <= self.limit)):
                found["mean"] = mean / mean.norm() * self.limit
            return found

    return Pool(width, limit)


@compares_with_none.form
def declares_the_attribute(width, limit=None):
    class Pool(_Typed):
        limit: float | None

    return Pool(width, limit)


@exercise.mistake
def takes_zero_for_none(width, limit=None):
    """You take a limit of 0.0 for no limit. Whether there is one is the question `is not None`, here as for
    the arguments: zero is a number like any other, and scales all means to zero."""
    return _Typed(width, limit or None)


@takes_zero_for_none.variant
def lets_zero_stand_for_none(width, limit=None):
    class Pool(_Typed):
        def __init__(self):
            super().__init__(width, limit)
            self.most: float = 0.0 if limit is None else limit

        def limited(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
            if self.most > 0:
                found["mean"] = found["mean"] * torch.clamp(self.most / found["mean"].norm(), max=1.0)
            return found

    return Pool()
