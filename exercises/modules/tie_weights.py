"""Tie weights

Language models often use one matrix twice: to embed the words, and to score them at the end. Write
`tie_weights(model, source, *targets)`: from then on the parameters called `targets` **are** the one called
`source`. Names are those of `named_parameters()`, at any depth. The source stays the Parameter that it was,
and keeps its values, its gradient and its `requires_grad`.

- The tie lasts: through training, `.double()`, `copy.deepcopy(model)` and `load_state_dict`.
- Where a target has another shape, raise a `ValueError` and leave the whole model as it was.

With `model = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 4))` and
`tie_weights(model, "0.weight", "1.weight")` two parameters are left: `0.weight` and `1.bias`.
"""

import copy

import torch
from torch import nn

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import modules

exercise = Exercise(
    minutes=8,
    hints=[
        "Equal values are not enough, and shared storage is not enough either: after `.double()` each "
        "Parameter here has a storage of its own. What can two places have in common for good?",
        "Assigning a Parameter to an attribute registers it: the same object can be assigned at a second "
        "place. You need the module there and the last part of the name.",
        "`model.get_parameter(name)` finds a parameter, `model.get_submodule(path)` a module, the empty "
        "path the model itself. `name.rpartition('.')` splits at the last dot. Look at all shapes first.",
    ],
)


@exercise.starter
def tie_weights(model: nn.Module, source: str, *targets: str) -> None:
    """Makes the parameters called `targets` the one called `source`."""
    raise NotImplementedError


_SETUP = """
torch.manual_seed(0)
model = nn.Module()
model.embed = nn.Embedding(4, 2)
model.body = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"gate": nn.Linear(2, 2)}))
model.head = nn.Linear(2, 4)
model.scores = nn.Parameter(torch.randn(4, 2))
model.forward = lambda words: model.head(model.embed(words))
"""
_TIE = "tie_weights(model, 'embed.weight', 'head.weight')\n"


def _expect_tied(t, source, *targets):
    registered = dict(t.model.named_parameters(remove_duplicate=False))
    for target in targets:
        tied = t.model.get_parameter(target) is t.model.get_parameter(source)
        told = f"`{target}` and `{source}` are two Parameters"
        expect.true(tied, told, "expected: one, at two places")
        told = f"`model.{target}` is `{source}`, but that isn't what is registered under this name"
        expect.true(registered.get(target) is t.model.get_parameter(source), told, "expected: it is")


@exercise.check(
    given=_SETUP,
    cases=[
        "names = 'embed.weight', 'head.weight'",
        "names = 'head.weight', 'embed.weight', 'scores'",
        "names = 'scores', 'head.weight'",
        "names = 'body.1.gate.weight', 'body.0.weight'",
    ],
)
def one_parameter(t):
    """The names lead to one Parameter, which is counted once

    A Parameter is an object, and a module holds a reference to it under the last part of its name; all before
    the last dot leads to the module. Two modules can hold the same one. Two Parameters that share storage are
    still two: `.double()` gives each float32 one new data, and parts them. An optimizer made before holds the
    source. `setattr` registers a Parameter; what goes past it, `object.__setattr__` or `__dict__`, doesn't.
    """
    before = dict(t.model.named_parameters())
    t.run("tie_weights(model, *names)")
    _expect_tied(t, *t.names)
    for name, p in before.items():
        same = name in t.names[1:] or t.model.get_parameter(name) is p
        expect.true(same, f"`{name}` is another Parameter than before", "expected: the one that it was")


@exercise.check(given=f"{_SETUP}model.embed.weight.requires_grad_(False).grad = torch.ones(4, 2)")
def values(t):
    """The source keeps its values, and all other parameters theirs

    Whoever ties has chosen which of the two is right: often the source was trained, or loaded. It keeps its
    gradient too, and stays frozen if it was. The target's values are given up.
    """
    before = copy.deepcopy(t.model.state_dict())
    with expect.left_alone(t.model.embed, what="`model.embed`", gradients=True):
        t.run(_TIE)
    before["head.weight"] = before["embed.weight"]
    expect.equal(dict(t.model.state_dict()), dict(before), what="model.state_dict()")


@exercise.check(given=f"{_SETUP}words = torch.tensor([0, 2, 2])")
def trained(t):
    """Trained together: the gradients of both places add up

    One Parameter has one `.grad`. Backward sums the gradients of its uses in the graph and adds the sum to
    it.
    """
    tied = torch.func.functional_call(t.model, {"head.weight": t.model.embed.weight}, t.words)
    code = f"{_TIE}loss = model(words).square().sum()"
    modules.expect_gradients(t, code, tied.square().sum(), "model.embed.weight")


@exercise.check(
    given=_SETUP,
    cases={
        f"a target of `{shape}`": f"model.other = nn.Parameter(torch.ones{shape})"
        for shape in ("(2, 2)", "(2, 4)", "(8,)", "(4, 1)", "(1, 4, 2)")
    },
)
def refuses(t):
    """Another shape is refused, and the model stays as it was

    Assignment takes any Parameter: a wrong shape would raise in the next forward, far from its cause, or
    broadcast. What refuses looks at everything first, and changes something afterwards.
    """
    before = copy.deepcopy(t.model.state_dict())
    with modules.in_place(lambda: t.model.state_dict(keep_vars=True)):
        call = "tie_weights(model, 'embed.weight', 'head.weight', 'other')"
        expect.raises(ValueError, lambda: t.call(call))
    expect.equal(dict(t.model.state_dict()), dict(before), what="model.state_dict()")
