"""Load a backbone, and say what was not loaded

`state` comes from a model with the same backbone, under other names perhaps, and another head. `renamed` maps
beginnings of its keys: with `{"net.": "backbone."}` the key `net.0.bias` is meant for `backbone.0.bias`. At
most one beginning fits a key; where none does, the name is the key. No two keys share a name.

Copy every tensor into its entry of `model`, in place, and return what did not go well, a dict of three lists:

- `"missing"`: names in `model.state_dict()` that no key is meant for;
- `"unexpected"`: keys of `state` that are meant for no such name;
- `"mismatched"`: names whose two shapes differ. If there is one, copy nothing at all.

For two equal models: `{"missing": [], "unexpected": [], "mismatched": []}`
"""

import copy
from collections.abc import Mapping

from torch import Tensor, nn

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import modules

exercise = Exercise(
    minutes=12,
    hints=[
        "`load_state_dict(strict=False)` knows nothing of the old names, and most wrong shapes make it "
        "raise, after it has copied the tensors that fit. What has to be known before anything is copied?",
        "First find the name that each key is meant for, from the key as it stands in `state`. "
        "`str.startswith` and `str.removeprefix` look at the beginning, `replace` looks everywhere.",
        "With a dict from names to keys, the three lists are three comprehensions. The tensors in the "
        "model's `state_dict()` have the storage of its own: a `copy_` into them reaches the model.",
    ],
)


@exercise.starter
def load_backbone(
    model: nn.Module, state: Mapping[str, Tensor], renamed: dict[str, str]
) -> dict[str, list[str]]:
    """Loads what fits; returns the names that are missing, unexpected, mismatched."""
    raise NotImplementedError


_SETUP = """
torch.manual_seed(0)

def network(**parts):
    backbone = nn.Sequential(nn.Linear(2, 3))
    backbone.register_buffer("level", torch.randn(3))
    backbone.register_buffer("step", torch.randn(()))
    backbone.register_buffer("table", torch.randn(2), persistent=False)
    return nn.ModuleDict({name: part or backbone for name, part in parts.items()})

model = network(backbone=None, head=nn.Linear(3, 2))
state = network(net=None, classifier=nn.Linear(3, 5)).state_dict()
"""
# Its new name is no entry of the model.
_OLD_NAME = "model['net'] = nn.Linear(3, 1)\nstate['net.weight'] = torch.ones(1, 3)"
_CALL = "report = load_backbone(model, state, {})"
_RENAMED = _CALL.format("{'net.': 'backbone.'}")


def _expect_report(t, missing=(), unexpected=(), mismatched=()):
    wanted = {"missing": missing, "unexpected": unexpected, "mismatched": mismatched}
    report = t.report
    if isinstance(report, dict):
        report = {key: sorted(v) if isinstance(v, (list, tuple, set)) else v for key, v in report.items()}
    expect.equal(report, {key: sorted(names) for key, names in wanted.items()}, what="report")


def _expect_heads(t, missing=(), unexpected=(), mismatched=()):
    """The report has these names, and those of two heads that have nothing to do with each other."""
    heads = ["head.weight", "head.bias"], ["classifier.weight", "classifier.bias"]
    _expect_report(t, [*heads[0], *missing], [*heads[1], *unexpected], mismatched)


@exercise.check(
    given=_SETUP,
    cases={"float32": "", "float64": "state = {key: tensor.double() for key, tensor in state.items()}"},
)
def loaded(t):
    """What is meant for an entry of the model is copied into it

    A `state_dict` has buffers too: in evaluation a batch norm without its running statistics is another
    function. The values are copied into the storage that is there, and to its dtype: an optimizer holds the
    model's Parameters, and what happens to `state` later does not reach them.
    """
    wanted = copy.deepcopy(t.model.state_dict())
    for key in (key for key in t.state if "net" in key):
        wanted[key.replace("net.", "backbone.")] = t.state[key].float()
    place = modules.in_place(lambda: t.model.state_dict(keep_vars=True))
    with place, expect.left_alone(t.state, what="`state`"):
        t.run(_RENAMED)
    expect.equal(dict(t.model.state_dict()), dict(wanted), what="model.state_dict()")


@exercise.check(
    given=_SETUP,
    cases={
        "another head": ("", [], []),
        "a buffer less": ("del state['net.level']", ["backbone.level"], []),
        "a key more": ("state['net.2.bias'] = torch.ones(1)", [], ["net.2.bias"]),
        "an entry with the old name of a key": (_OLD_NAME, ["net.weight", "net.bias"], ["net.weight"]),
        "a saved `table`": ("state['net.table'] = torch.ones(2)", [], ["net.table"]),
    },
)
def reported(t, missing, unexpected):
    """What is missing and what is unexpected is told, each by its own name

    A missing name has kept what it had before, often a random start; an unexpected key was saved for
    something that isn't there. One of each is often one wrong name. Where a beginning fits, the key is meant
    for the new name alone, though the model has no such entry, and has one with the old name. `strict=False`
    says both in what it returns, which is easy to drop.
    """
    t.run(_RENAMED)
    _expect_heads(t, missing, unexpected)


# The renaming, the name that each key is meant for, and what the model has besides: the names that a key gets
# from other rules.
_BEGINNINGS = (
    ({"old_": "new_"}, {"old_w": "new_w", "my_old_w": "my_old_w"}, ["my_new_w", "w"]),
    ({"old_": "new_"}, {"old_old_w": "new_old_w"}, ["new_w", "new_new_w", "new_"]),
    ({"old_": "new_"}, {"old_w": "new_w"}, ["old_w"]),
    ({"module_": ""}, {"module_module_w": "module_w", "b": "b"}, ["w"]),
    ({"": "new_"}, {"w": "new_w"}, []),
    ({"a_": "b_", "b_": "a_"}, {"a_w": "b_w", "b_w": "a_w"}, []),
    ({"a_": "b_", "b_": "c_"}, {"a_w": "b_w", "b_w": "c_w"}, ["a_w"]),
)


def _expect_places(t, meant):
    """The number of each key has been copied into the entry that the key is meant for."""
    entries = {name: tensor.item() for name, tensor in t.model.state_dict().items()}
    for key, name in meant.items():
        found = [f"`{entry}`" for entry, value in entries.items() if value == t.state[key].item()]
        told = f"`{key}` was copied into {' and '.join(found) or 'no entry'}"
        expect.true(found == [f"`{name}`"], f"{told}, expected: into `{name}`")


@exercise.check(
    given=lambda renamed, meant, others: (
        f"""
        names = {[*meant.values(), *others]}
        model = nn.ParameterDict({{name: torch.zeros(1) for name in names}})
        state = {{key: torch.tensor([n + 0.5]) for n, key in enumerate({[*meant]})}}
    """
    ),
    cases={f"`{case[0]}` for `{[*case[1]]}`": case for case in _BEGINNINGS},
)
def beginnings(t, renamed, meant, others):
    """A renaming is about the beginning of a key, and happens once

    `str.replace` finds its text anywhere in a key; `lstrip` takes single letters away, as long as they are
    among those of its text. A beginning that fits always counts, also where the model has an entry with the
    key's old name. One replacement after another renames what was renamed before: where two parts change
    names, both end up under one.
    """
    t.run(_CALL.format(renamed))
    _expect_places(t, meant)
    _expect_report(t, missing=others)


@exercise.check(
    given=_SETUP,
    cases={f"`{shape}`": f"state['net.0.bias'] = torch.ones({shape})" for shape in ((4,), (1,), (3, 1), ())},
)
def nothing_copied(t):
    """Where a shape differs nothing is copied, and the report is complete

    `load_state_dict` raises for most wrong shapes, also with `strict=False`, and has copied all the others by
    then: a model that is half loaded. `copy_` broadcasts, so one number fills a whole row without an error. A
    name whose tensor has another shape has a key: it is mismatched, and not missing.
    """
    with expect.left_alone(t.model, what="`model`"):
        t.run(_RENAMED)
    _expect_heads(t, mismatched=["backbone.0.bias"])
