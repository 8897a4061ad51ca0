"""Rewrite it for the compiler

`make_scriptable(width, limit)` makes a module that works in Python, and that `torch.jit.script` refuses.
Rewrite it so that the compiler takes it, and the script computes all of it.

- `x` is (batch, time, width), finite where it counts. `lengths` is a list of whole numbers: how many steps of
  each row count, one or more. `extra` is a dict of tensors (batch, time). Both can be left out or be `None`,
  and so can `limit`.
- The results are those of the starter: in Python, as a script, and as a script that was saved and loaded.
- The parameters keep their names.

`torch.jit.script(make_scriptable(4))(torch.ones(2, 5, 4), [5, 3])["count"]` → `[5, 3]`
"""

import re
from collections import Counter

import torch
from torch import nn

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import traced

exercise = Exercise(
    minutes=20,
    hints=[
        "Run `torch.jit.script(make_scriptable(4))`, and then with a limit too. The message names the line. "
        "Which type does the compiler give to an argument or a new list that has no annotation?",
        "An argument without a type is a `Tensor`, and `y = []` is a list of tensors. In Python "
        "`lengths: list[int] | None = None` changes nothing; for the compiler it's another function.",
        "The compiler can't ask whether a value that may be `None` is true. Ask `is not None` first, in the "
        "`if` itself, so that it knows what is left inside; then ask for emptiness. Write a loop for what "
        "it doesn't take in one line.",
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

        def forward(self, x, lengths=None, extra=None):
            # a tensor, a list of int, a dict of tensors
            x = self.project(x)
            counts, means = [], []
            for i, row in enumerate(x):
                count = lengths[i] if lengths else len(row)
                counts.append(count)
                means.append(row[:count].mean(0))
            found = {"mean": torch.stack(means), "count": torch.tensor(counts)}
            if extra:
                found |= {name: (x * w[..., None]).sum(1) for name, w in extra.items()}
            length = found["mean"].norm()
            if self.limit is not None and length > self.limit:
                found["mean"] = found["mean"] * (self.limit / length)
            return found

    return Pool(width, limit)


_in_python = exercise.starter_object

# What the compiler says where it refuses, and the rule behind it.
_REFUSALS = {
    "Could not cast value of type": "An `if` of the compiler doesn't take a value that may be `None`.",
    "Expected a default value of type": "`None` is a default only where the type says `| None`.",
    "because it was not annotated": "An argument without a type is a tensor for the compiler.",
    "true branch has type Tensor": "An argument without a type is a tensor for the compiler.",
    "previously matched to type Tensor": "`[]` starts a list of tensors here, unless a type is given.",
    "'Optional[": "To the compiler this value may still be `None` here.",
    "'NoneType'": "To the compiler this value is `None`, and the line is compiled all the same.",
}


def _made(make_scriptable, arguments, setup=""):
    """(the example with the answer's module, the starter's module with the same weights)"""
    made = f"torch.manual_seed(0)\nmodel = make_scriptable({arguments})"
    t = expect.given(f"{made}\n{setup}".strip(), make_scriptable=make_scriptable)
    expect.true(isinstance(t.model, nn.Module), f"the result is {expect.show(t.model)}, expected a module")
    wanted = eval(f"starter({arguments})", {"starter": _in_python})
    names = list(t.model.state_dict())
    expect.equal(names, list(wanted.state_dict()), what="`list(model.state_dict())`")
    wanted.load_state_dict(t.model.state_dict())
    return t, wanted


def _script(t):
    """Compiles the module. What the compiler refuses is told with the line that it is about."""
    traced.forget_classes(t.model)
    try:
        t.run("scripted = torch.jit.script(model)")
    except Exception as error:
        text = str(error)
        rule = next((rule for said, rule in _REFUSALS.items() if said in text), "")
        raise expect.Mismatch(f"the compiler refuses: {_said(text)}", *_place(text), symptom=rule) from None
    graph = str(t.scripted.inlined_graph) if traced.has_forward(t.scripted) else "= ^forward("
    told = "the compiler leaves out a function that is marked with `torch.jit.ignore` or `torch.jit.unused`"
    left_out = re.search(r"= \^\w+[\[(]|annotated to be ignored", graph)
    expect.true(not left_out, told, "expected: the script computes all of it")


def _said(text):
    """The one line of the compiler's message that says why."""
    lines = [line.strip() for line in text.splitlines()]
    if "The following variants are available:" in lines:  # a reason for each of them
        reasons = [line for line in lines if re.match(r"Expected a value|Argument |Keyword argument", line)]
        lines = [line for line, _ in Counter(reasons).most_common(1)] or lines
    said = [line for line in lines if re.match(r"[A-Z'a-z][^(]* ", line) and "Arguments for call" not in line]
    return re.sub(r"__torch__\.[\w.]*\.", "", (said or lines)[0]).rstrip(":")[:150]


def _place(text):
    """The line of the answer that the compiler has marked."""
    lines = text.splitlines()
    marked = [above for above, line in zip(lines, lines[1:], strict=False) if line.endswith("<--- HERE")]
    return [f"at `{marked[0].strip()}`"] if marked and "Mutable default" not in text else []


def _compare(t, wanted, call, models=("model", "scripted")):
    """`call`, such as `(x, [5, 3])`, gives the same for each of the models and for the starter's."""
    expected = eval(f"wanted{call}", {"wanted": wanted, "x": t.x, "torch": torch})
    for model in models:
        came = t.call(f"{model}{call}")
        _expect_length(came, expected["mean"], wanted.limit, f"`{model}{call}['mean']`")
        expect.equal(came, expected, what=f"`{model}{call}`")


def _expect_length(came, expected, limit, what):
    """Where the mean points as it should, or should be as long as the limit, its length is right."""
    came = came.get("mean") if isinstance(came, dict) else None
    if limit is None or not expect.is_tensor(came) or came.shape != expected.shape:
        return
    length, right, most = came.norm().double(), expected.norm().double(), torch.tensor(limit).double()
    same, at_limit = length.allclose(right, rtol=1e-3), right.allclose(most, rtol=1e-3)
    points = torch.allclose(came.double() * right, expected.double() * length, rtol=1e-3)
    told = (
        f"the norm of {what} is {length:.4g}, expected {right:.4g}: what is longer than the limit, {limit},"
    )
    expect.true(same or not (points or at_limit), f"{told} is scaled to it, and nothing else is")


_X = "x = torch.linspace(-1, 2, 40).view(2, 5, 4)"


@exercise.check
def in_python(make_scriptable):
    """In Python the results are those of the starter

    In Python these annotations change nothing. A loop gives the same numbers and dtypes as one line did.
    A trace isn't a rewrite: it holds the operators of one call, without the arguments that were left out.
    """
    more = "\nlengths, extra = [5, 3], {'last': torch.eye(5)[3:]}"
    t, wanted = _made(make_scriptable, "4, 1.0", _X + more)
    for call in ("(x)", "(x, [5, 3])", "(x / 10, None, {'last': torch.eye(5)[3:]})"):
        _compare(t, wanted, call, ("model",))
    expect.in_graph(t.call("model(x, lengths, extra)")["mean"], what="the mean", of="the layer's weight")
    expect.equal(t.lengths, [5, 3], what="`lengths` after the call")
    expect.equal(t.extra, {"last": torch.eye(5)[3:]}, what="`extra` after the call")
    t.run("model.double()")
    wanted.double()
    _compare(t, wanted, "(x.double(), [5, 3])", ("model",))


@exercise.check(deadline=60)
def taken(make_scriptable):
    """The compiler takes all of it

    A script is compiled before there are any arguments, so the types are read from the source. An argument
    without a type is a `Tensor`, and `y = []` is a list of tensors. A value of type `list[int] | None` counts
    as a list where a test of the name itself has ruled out `None`. What is marked with `torch.jit.unused` or
    `torch.jit.ignore` isn't compiled.
    """
    t, wanted = _made(make_scriptable, "4, 1.0", _X)
    _script(t)
    _compare(t, wanted, "(x)")


@exercise.check(deadline=60)
def options(make_scriptable):
    """Lengths and extra weights are used, each with and without the other, or empty

    The script decides about both when it runs. `if lengths` asks two things in Python: is it not `None`, and
    is it not empty? For the compiler you write both. With `if torch.jit.is_scripting()` the script can
    compute something other than Python. Steps that don't count may be infinite: zero times infinity is NaN.
    """
    t, wanted = _made(make_scriptable, "4, 1.0", _X)
    _script(t)
    for call in (
        "(x, [5, 3])",
        "(x[:1, :3], [2])",
        "(torch.cat([x, torch.full((2, 1, 4), torch.inf)], 1), [5, 4])",
        "(x, [])",
        "(x, None, {'last': torch.eye(5)[3:]})",
        "(x, None, {})",
        "(x, [1, 4], {'b': torch.eye(5)[:2], 'a': torch.ones(2, 5)})",
    ):
        _compare(t, wanted, call)


@exercise.check(deadline=60)
def limits(make_scriptable):
    """Means longer than the limit are scaled; the limit may be 0 or `None`

    The compiler compiles both sides of an `and`, and it can't compare with `None`. An `if` of its own on an
    attribute that is `None` leaves its body out. For an attribute declared as `float | None`, put the value
    into a variable first. 0.0 is a number, so ask `is None`.
    """
    with Rows() as rows:
        for arguments, calls in (
            ("4", ("(x)", "(1000 * x)")),
            ("4, 1.0", ("(1000 * x)", "(0 * x)", "(x, [1, 2])", "(x, None, {'mean': torch.ones(2, 5)})")),
            ("4, 100.0", ("(x)", "(1000 * x)")),
            ("4, 0.0", ("(x)",)),
        ):
            with rows.of(f"`make_scriptable({arguments})`"):
                t, wanted = _made(make_scriptable, arguments, _X)
                _script(t)
                for call in calls:
                    _compare(t, wanted, call)


@exercise.check(deadline=60)
def saved_and_loaded(make_scriptable):
    """The script can be saved, and the loaded one computes the same

    The file holds what was compiled, with the parameters and the limit. Loading it calls no Python of yours.
    """
    t, wanted = _made(make_scriptable, "4, 1.0", f"import io\n{_X}\nfile = io.BytesIO()")
    _script(t)
    t.run("torch.jit.save(scripted, file)\nfile.seek(0)\nloaded = torch.jit.load(file)")
    _compare(t, wanted, "(x, [2, 5], {'all': torch.ones(2, 5)})", ("loaded",))
