"""A module holds a reference to a Parameter under a name. Assigning the same object at a second place is all:
then there is one Parameter, one `.grad`, one entry for the optimizer.

It lasts because most of what changes a model's numbers leaves its Parameters in place: `.double()` gives them
new data, `load_state_dict` copies into them, `deepcopy` copies one object once. Had the two only shared
storage, `target.data = source.data`, the optimizer would hold both and `.double()` would part them.

Some calls do put new Parameters in place: `.to("meta")`, and `load_state_dict(…, assign=True)`, where the two
may go on sharing one storage. Tie again after those.
"""

from torch import nn


def tie_weights(model: nn.Module, source: str, *targets: str) -> None:
    """Makes the parameters called `targets` the one called `source`."""
    parameter = model.get_parameter(source)
    for target in targets:
        if model.get_parameter(target).shape != parameter.shape:
            raise ValueError(f"{target} has another shape than {source}")
    for target in targets:
        path, _, name = target.rpartition(".")
        setattr(model.get_submodule(path), name, parameter)


# Other right answers

import functools

import torch

from course_utils.exercise import Edit, Wrong


def _through_the_dicts(model, source, *targets):
    modules = dict(model.named_modules())
    places = [(modules[".".join(t.split(".")[:-1])], t.split(".")[-1]) for t in (source, *targets)]
    weights = [module._parameters[name] for module, name in places]
    if len({weight.shape for weight in weights}) > 1:
        raise ValueError([weight.shape for weight in weights])
    for module, name in places[1:]:
        module._parameters[name] = weights[0]


def _registers(model, source, *targets):
    def find(names):
        return functools.reduce(getattr, names, model)

    one = find(source.split("."))
    places = [target.split(".") for target in targets]
    if any(find(names).size() != one.size() for names in places):
        raise ValueError("shapes")
    for *path, name in places:
        find(path).register_parameter(name, one)


also_right = [_through_the_dicts, _registers]


# Mistakes


def _shares_storage(model, source, *targets):
    for target in targets:
        if model.get_parameter(target).shape != model.get_parameter(source).shape:
            raise ValueError(target)
    for target in targets:
        model.get_parameter(target).data = model.get_parameter(source).data


@torch.no_grad()
def _averages(model, source, *targets):
    tie_weights(model, source, *targets)
    model.get_parameter(source).mul_(0.5)


mistakes = [
    Wrong(_shares_storage, told_by="one_parameter"),
    Edit(
        "the other way round",
        "parameter = model.get_parameter(source)",
        "source, *targets = targets[-1], source\n    parameter = model.get_parameter(source)",
        told_by="one_parameter",
    ),
    Edit(
        "a Parameter of the same data",
        "name, parameter)",
        "name, nn.Parameter(parameter.data))",
        told_by="one_parameter",
    ),
    Edit("only the top", "model.get_submodule(path)", "getattr(model, path)", told_by="one_parameter"),
    Edit("not registered", " setattr(", " object.__setattr__(", told_by="one_parameter"),
    Wrong(_averages, told_by="values"),
    Edit(
        "compares the numbers of elements",
        ".shape != parameter.shape",
        ".numel() != parameter.numel()",
        told_by="refuses",
    ),
    Edit(
        "no look at the shapes",
        "    if model.get_parameter(target).shape != parameter.shape:\n",
        "    if False:\n",
        told_by="refuses",
    ),
]

not_tried = {"hard numbers": "nothing is computed", "seeds": "no draw decides"}
