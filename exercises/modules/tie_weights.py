"""Tie weights

Language models often use one matrix twice: to embed the words, and to score them at the end. Write
`tie_weights(model, source, *targets)`: from then on the parameters called `targets` **are** the one called
`source`. Names are those of `named_parameters()`, at any depth. The source stays the Parameter that it was,
and keeps its values.

- The tie lasts: through training, `.double()`, `copy.deepcopy(model)` and `load_state_dict`.
- Where a target has another shape, raise a `ValueError` and leave the whole model as it was.

With `model = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 4))` and
`tie_weights(model, "0.weight", "1.weight")` two parameters are left: `0.weight` and `1.bias`.
"""

import copy

import torch
from torch import nn

from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=8,
    hints=[
        "Equal values are not enough, and shared storage is not enough either: after `.double()` each "
        "Parameter has a storage of its own. What can two places have in common for good?",
        "Assigning a Parameter to an attribute registers it. So the same object can be assigned at a second "
        "place; all you need is the module there and the last part of the name.",
        "`model.get_parameter(name)` finds a parameter, `model.get_submodule(path)` a module, the empty path "
        "the model itself. `name.rpartition('.')` splits a name at its last dot. Look at all shapes before "
        "the first assignment.",
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
_TIE = "tie_weights(model, 'embed.weight', 'head.weight')"


def _given(tie_weights, more=""):
    return expect.given(_SETUP + more, tie_weights=tie_weights)


def _expect_tied(t, model, source, *targets):
    for target in targets:
        tied = getattr(t, model).get_parameter(target) is getattr(t, model).get_parameter(source)
        told = f"`{target}` and `{source}` of `{model}` are two Parameters"
        expect.true(tied, told, "expected: one, at two places")


@exercise.check
def one_parameter(tie_weights):
    """The names lead to one Parameter, which is counted once

    A Parameter is an object, and a module holds a reference to it under the last part of its name; all before
    the last dot leads to the module. Two modules can hold the same one, and two Parameters that share storage
    are still two. An optimizer made before holds the source: it trains that one, no new one in its place.
    """
    with Rows() as rows:
        for names in (
            ("embed.weight", "head.weight"),
            ("head.weight", "embed.weight", "scores"),
            ("scores", "head.weight"),
            ("body.1.gate.weight", "body.0.weight"),
            ("body.0.bias", "body.1.gate.bias"),
        ):
            with rows.of(f"`{names[0]}`"):
                t = _given(tie_weights)
                source, left = t.model.get_parameter(names[0]), dict(t.model.named_parameters())
                t.run(f"tie_weights(model, {', '.join(map(repr, names))})")
                _expect_tied(t, "model", *names)
                told = f"`{names[0]}` is another Parameter than before"
                expect.true(t.model.get_parameter(names[0]) is source, told, "expected: the one that it was")
                first = min(names, key=list(left).index)
                expected = [name for name in left if name == first or name not in names]
                found = t.call("[name for name, _ in model.named_parameters()]")
                expect.equal(found, expected)


@exercise.check
def values(tie_weights):
    """The source keeps its values, and all other parameters theirs

    Whoever ties has chosen which of the two is right: often the source was trained, or loaded. The target's
    values are given up.
    """
    t = _given(tie_weights, "model.embed.weight.requires_grad_(False)\n")
    before = copy.deepcopy(t.model.state_dict())
    t.run(_TIE)
    before["head.weight"] = before["embed.weight"]
    expect.equal(dict(t.call("model.state_dict()")), dict(before))
    expect.equal(t.call("model.head.weight.requires_grad"), False, what="`requires_grad` of a frozen source")


@exercise.check
def trained(tie_weights):
    """Trained together: the gradients of both places add up

    One Parameter has one `.grad`, and backward adds to it for every use. One step of the optimizer then moves
    both places by the same amount.
    """
    words = "words = torch.tensor([0, 2, 2])\n"
    t = _given(tie_weights, words)
    tied = torch.func.functional_call(t.model, {"head.weight": t.model.embed.weight}, t.words)
    (wanted,) = torch.autograd.grad(tied.square().sum(), t.model.embed.weight)
    moved = t.model.embed.weight.detach() - 0.1 * wanted
    t.run(_TIE)
    t.run("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nmodel(words).square().sum().backward()")
    expect.equal(t.call("model.head.weight.grad"), wanted, what="`model.head.weight.grad`")
    t.run("optimizer.step()")
    for name in ("embed", "head"):
        what = f"`model.{name}.weight` after the step"
        expect.equal(t.call(f"model.{name}.weight").detach(), moved, what=what)


@exercise.check
def lasts(tie_weights):
    """The tie lasts through `.double()`, `deepcopy` and `load_state_dict`

    `.double()` gives every Parameter new numbers, and loading writes into those that are there; both leave
    the Parameters where they are. `deepcopy` notes what it has copied, and makes one copy of one object. Two
    Parameters over one storage part ways in the first of them.
    """
    with Rows() as rows:
        for statement in (
            "model.double()",
            "import copy\nmodel = copy.deepcopy(model)",
            "model.load_state_dict({name: torch.ones_like(t) for name, t in model.state_dict().items()})",
        ):
            with rows.of(f"`{statement.splitlines()[-1].partition('(')[0]}`"):
                t = _given(tie_weights, _TIE)
                t.run(statement)
                _expect_tied(t, "model", "embed.weight", "head.weight")
                t.run("with torch.no_grad():\n    model.embed.weight.fill_(7)")
                written = torch.full_like(t.model.embed.weight, 7.0)
                expect.equal(t.call("model.head.weight").detach(), written.detach())


@exercise.check
def refuses(tie_weights):
    """Another shape is refused, and the model stays as it was

    Assignment takes any Parameter: a wrong shape would raise in the next forward, far from its cause, or
    broadcast. What refuses looks at everything first, and changes something afterwards.
    """
    with Rows() as rows:
        for target in ("body.0.weight", "body.0.bias", "wide", "flat"):
            with rows.of(f"`{target}`"):
                more = (
                    "model.wide, model.flat = nn.Parameter(torch.ones(2, 4)), nn.Parameter(torch.ones(8))\n"
                )
                t = _given(tie_weights, more)
                before, state = dict(t.model.named_parameters()), copy.deepcopy(t.model.state_dict())
                statement = f"tie_weights(model, 'embed.weight', 'head.weight', '{target}')"
                expect.raises(ValueError, lambda t=t, code=statement: t.call(code))
                for name, parameter in before.items():
                    same = t.model.get_parameter(name) is parameter
                    told = f"`{name}` is another Parameter now"
                    expect.true(same, told, "expected: the one that it was before the call")
                expect.equal(dict(t.model.state_dict()), dict(state), what="`model.state_dict()` afterwards")
