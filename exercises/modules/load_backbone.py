"""Load a backbone, and say what was not loaded

`state` comes from a model with the same backbone, under other names perhaps, and another head. `renamed` maps
beginnings of its keys: with `{"net.": "backbone."}` the key `net.0.bias` is meant for `backbone.0.bias`. At
most one beginning fits a key; where none does, the name is the key.

Copy every tensor into the entry of `model` that it is meant for, in place, and return what did not go well,
as a dict of three lists:

- `"missing"`: names in `model.state_dict()` that no key is meant for;
- `"unexpected"`: keys of `state` that are meant for no such name;
- `"mismatched"`: names whose two shapes differ. If there is one, copy nothing at all.

For two equal models: `{"missing": [], "unexpected": [], "mismatched": []}`
"""

from collections.abc import Mapping

from torch import Tensor, nn

from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=12,
    hints=[
        "`load_state_dict(strict=False)` returns what is missing and unexpected. But it knows nothing of the "
        "old names, and a wrong shape makes it raise, after it has copied the tensors that fit. So what has "
        "to be known before anything is copied?",
        "First find the name that each key is meant for, from the key as it stands in `state`: a name that "
        "came out of a renaming isn't renamed again. `str.startswith` and `str.removeprefix` look at the "
        "beginning, `replace` looks everywhere.",
        "With a dict from names to keys, two sets of names and the shapes, the three lists are three "
        "comprehensions. The tensors in the model's `state_dict()` have the storage of its own, so a `copy_` "
        "into them reaches the model.",
    ],
)


@exercise.starter
def load_backbone(
    model: nn.Module, state: Mapping[str, Tensor], renamed: dict[str, str]
) -> dict[str, list[str]]:
    """Loads what fits; returns the names that are missing, unexpected and mismatched."""
    raise NotImplementedError


_SETUP = """
torch.manual_seed(0)

def network(**parts):
    backbone = nn.Sequential(nn.Linear(2, 3))
    backbone.register_buffer("level", torch.randn(3))
    backbone.register_buffer("steps", torch.randint(100, ()))
    backbone.register_buffer("table", torch.randn(2), persistent=False)
    return nn.ModuleDict({name: part or backbone for name, part in parts.items()})

model = network(backbone=None, head=nn.Linear(3, 2))
old = network(net=None, classifier=nn.Linear(3, 5))
state = old.state_dict()
"""
_CALL = "report = load_backbone(model, state, {})"
_RENAMED = "{'net.': 'backbone.'}"


def _given(load_backbone, more="", renamed=_RENAMED):
    """The example, and what was in the model before it ran: its tensors, copied, and their places."""
    t = expect.given(_SETUP + more, load_backbone=load_backbone)
    before = {name: tensor.clone() for name, tensor in t.model.state_dict().items()}
    places = _places(t.model)
    saved = {key: tensor.detach().clone() for key, tensor in t.state.items()}
    t.run(_CALL.format(renamed))
    expect.equal(t.state, saved, what="`state` afterwards")
    return t, before, places


def _places(model):
    """For each entry its Parameter, or None, and a tensor over its storage, which stays alive."""
    parameters = dict(model.named_parameters())
    return {name: (parameters.get(name), t) for name, t in model.state_dict().items()}


def _expect_report(t, missing=(), unexpected=(), mismatched=()):
    wanted = {"missing": missing, "unexpected": unexpected, "mismatched": mismatched}
    report = t.report
    if isinstance(report, dict):
        report = {key: sorted(v) if isinstance(v, (list, tuple, set)) else v for key, v in report.items()}
    expect.equal(report, {key: sorted(names) for key, names in wanted.items()}, what="report")


def _expect_values(t, wanted):
    for name, tensor in t.model.state_dict().items():
        expect.equal(tensor, wanted[name], what=f"`model.state_dict()[{name!r}]`")


@exercise.check
def loaded(load_backbone):
    """What is meant for an entry of the model is copied into it

    A `state_dict` has buffers too: without its running statistics a batch norm is another function. The
    values are copied, in the model's dtype, into the storage that is there: an optimizer holds the model's
    Parameters, and what happens to `state` later does not reach them.
    """
    with Rows() as rows:
        for label, more in {
            "a state_dict": "",
            "one in float16": "state = old.half().state_dict()\n",
            "one of Parameters": "state = old.state_dict(keep_vars=True)\n",
        }.items():
            with rows.of(label):
                t, before, places = _given(load_backbone, more)
                wanted = {key.replace("net.", "backbone."): tensor for key, tensor in t.state.items()}
                _expect_values(t, {n: wanted.get(n, b).detach().to(b.dtype) for n, b in before.items()})
                for name, (parameter, tensor) in _places(t.model).items():
                    told = f"`{name}` of `model` is another Parameter than before"
                    expect.true(parameter is places[name][0], told, "expected: the same one, new values")
                    told = f"`{name}` of `model` has another storage than before"
                    same = tensor.data_ptr() == places[name][1].data_ptr()
                    expect.true(same, told, "expected: the new values in its own")
                after = {name: tensor.clone() for name, tensor in t.model.state_dict().items()}
                t.run("with torch.no_grad():\n    for tensor in state.values():\n        tensor.zero_()")
                _expect_values(t, after)


@exercise.check
def reported(load_backbone):
    """What is missing and what is unexpected is told, each by its own name

    A missing name has kept its random start; an unexpected key was saved for something that isn't there. One
    of each is often one wrong name. `strict=False` says both in what it returns, and most callers drop it.
    """
    with Rows() as rows:
        for label, more, missing, unexpected in (
            ("another head", "", [], []),
            ("a buffer less", "del state['net.level']\n", ["backbone.level"], []),
            ("a key more", "state['net.2.bias'] = torch.ones(1)\n", [], ["net.2.bias"]),
            ("a saved `table`", "state['net.table'] = torch.ones(2)\n", [], ["net.table"]),
        ):
            with rows.of(label):
                t, *_ = _given(load_backbone, more)
                heads = ["head.weight", "head.bias"], ["classifier.weight", "classifier.bias"]
                _expect_report(t, heads[0] + missing, heads[1] + unexpected)
    t, before, _ = _given(load_backbone, renamed={})
    _expect_report(t, before, t.state)


@exercise.check
def beginnings(load_backbone):
    """A renaming is about the beginning of a key, and happens once

    `str.replace` finds its text anywhere in a key. One replacement after another renames what was renamed
    before: where two parts change names, both end up under one.
    """

    def layers(*names):
        return "{" + ", ".join(f"'{name}': nn.Linear(1, 1, bias=False)" for name in names) + "}"

    with Rows() as rows:
        for renamed, model, meant in (
            ({"old.": "new."}, layers("new", "my_old"), {"old.": "new.", "my_old.": "my_old."}),
            ({"old.": "new."}, f"{{'new': nn.ModuleDict({layers('old')})}}", {"old.old.": "new.old."}),
            ({"module.": ""}, layers("module", "b"), {"module.module.": "module.", "b.": "b."}),
            ({"": "new."}, layers("new"), {"": "new."}),
            ({"a.": "b.", "b.": "a."}, layers("a", "b"), {"a.": "b.", "b.": "a."}),
            ({"a.": "b.", "b.": "c."}, layers("b", "c"), {"a.": "b.", "b.": "c."}),
        ):
            meant = {f"{key}weight": f"{name}weight" for key, name in meant.items()}
            with rows.of(f"`{renamed}`"):
                state = ", ".join(f"'{key}': torch.tensor([[{n}.]])" for n, key in enumerate(meant, 1))
                setup = f"model = nn.ModuleDict({model})\nstate = {{{state}}}"
                t = expect.given(setup, load_backbone=load_backbone)
                t.run(_CALL.format(renamed))
                _expect_report(t)
                _expect_values(t, {name: t.state[key] for key, name in meant.items()})


@exercise.check
def nothing_copied(load_backbone):
    """Where a shape differs nothing is copied, and the report is complete

    `load_state_dict` raises for a wrong shape, also with `strict=False`, and has copied all the others by
    then: a model that is half loaded. `copy_` broadcasts, so one number fills a whole row without an error.
    """
    with Rows() as rows:
        for shape in ((4,), (1,), (3, 1), ()):
            for key in ("net.0.bias", "net.level"):
                with rows.of(f"`{shape}` for {key}"):
                    t, before, _ = _given(load_backbone, f"state['{key}'] = torch.ones({shape})\n")
                    _expect_values(t, before)
                    name = key.replace("net", "backbone")
                    heads = ["head.weight", "head.bias"], ["classifier.weight", "classifier.bias"]
                    _expect_report(t, *heads, [name])
