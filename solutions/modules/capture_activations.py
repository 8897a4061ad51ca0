"""A forward hook runs after each call of its layer and gets what the layer returned. `detach` leaves the
graph, so the dict keeps no graph alive. `clone` gives the entry a storage of its own, so an activation in
place, which runs next, can't write into it. The hook returns `None`: anything else would take the place of
the output.

The handles are removed however the block is left. `ExitStack` undoes what was done so far, in a `finally` of
its own, also when a name is not found halfway through the loop.

`get_submodule` follows a path and finds a layer under each of its names. `dict(model.named_modules())` lists
a layer once, under its first name."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn


@contextmanager
def capture_activations(model: nn.Module, names: list[str]) -> Iterator[dict[str, list[Tensor]]]:
    seen = {name: [] for name in names}

    def appends_to(entries):
        def hook(layer, args, output):
            entries.append(output.detach().clone())

        return hook

    with ExitStack() as hooks:
        for name, entries in seen.items():
            handle = model.get_submodule(name).register_forward_hook(appends_to(entries))
            hooks.callback(handle.remove)
        yield seen


# Other right answers

import torch

from course_utils.exercise import Edit, Wrong


class _WithAClass:
    """The layers are looked up first, so that nothing can go wrong between the hooks."""

    def __init__(self, model, names):
        self.layers = {name: model.get_submodule(name) for name in names}

    def __enter__(self):
        seen = {name: [] for name in self.layers}
        self.handles = [
            layer.register_forward_hook(
                lambda _, args, out, name=name: seen[name].append(out.clone().detach())
            )
            for name, layer in self.layers.items()
        ]
        return seen

    def __exit__(self, *error):
        for handle in self.handles:
            handle.remove()


@contextmanager
def _one_hook_for_all(model, names):
    """A hook that runs after the calls of all modules."""
    layers = {name: model.get_submodule(name) for name in names}
    seen = {name: [] for name in names}

    def hook(module, args, output):
        for name, layer in layers.items():
            if layer is module:
                seen[name].append(torch.empty_like(output, requires_grad=False).copy_(output.data))

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        yield seen
    finally:
        handle.remove()


also_right = [_WithAClass, _one_hook_for_all]


# Mistakes


@contextmanager
def _no_finally(model, names):
    seen, handles = {name: [] for name in names}, []
    for name in names:
        keep = seen[name].append
        handles.append(
            model.get_submodule(name).register_forward_hook(lambda _, a, o, k=keep: k(o.detach().clone()))
        )
    yield seen
    for handle in handles:
        handle.remove()


_APPEND = "entries.append(output.detach().clone())"

mistakes = [
    Edit(
        "one name for all",
        "appends_to(entries))",
        "lambda layer, args, output: entries.append(output.detach().clone()))",
        told_by="right_values",
    ),
    Edit("the last call wins", _APPEND, "entries[:] = [output.detach().clone()]", told_by="every_call"),
    Edit(
        "the first name of a layer",
        "model.get_submodule(name)",
        "dict(model.named_modules())[name]",
        told_by="every_call",
    ),
    Edit("shares storage", "output.detach().clone()", "output.detach().cpu()", told_by="of_that_moment"),
    Edit("keeps the graph", "output.detach().clone()", "output.clone()", told_by="no_graph"),
    Edit("cuts the graph", _APPEND, f"{_APPEND}\n            return output.detach()", told_by="same_model"),
    Wrong(_no_finally, told_by="hooks_removed"),
    Edit("hooks left behind", "hooks.callback(handle.remove)", "handle", told_by="hooks_removed"),
]

not_tried = {"hard numbers": "the model's outputs, as they are", "seeds": "no draw decides"}
