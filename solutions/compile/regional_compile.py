"""The compiler caches what it compiled with the code of `forward`, and its guards look at what the code used:
sizes, classes, the numbers written into it. By default parameters are inputs of the graph. Twelve blocks of
one class run one code on tensors of one size, so for the second to the twelfth all guards hold. (A first
block that is given the data may get a graph of its own: the data needs no gradient, and the other blocks'
inputs do.)

`block.compile()` changes how the module is called and neither its class nor the names in its `state_dict`. A
deep copy leaves the compiled call behind. Blocks of another width are compiled once more, and so are those of
a subclass with a `forward` of its own.
"""

from typing import Any

from torch import nn


def regional_compile(model: nn.Module, block_class: type[nn.Module], backend: Any) -> nn.Module:
    for module in model.modules():
        if isinstance(module, block_class):
            module.compile(backend=backend)
    return model


# Other right answers

import types

import torch

from course_utils.exercise import Edit, Wrong


def by_apply(model, block_class, backend):
    def visit(module):
        if issubclass(type(module), block_class):
            module.compile(backend=backend)

    return model.apply(visit)


def from_the_outside_in(model, block_class, backend):
    """Looks into what is no block."""
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if block_class in type(module).__mro__:
            module.compile(backend=backend, fullgraph=True)
        else:
            waiting += module.children()
    return model


def bound_methods(model, block_class, backend):
    """One compiled function, as a method of each block. A deep copy of a method belongs to the copy."""
    forward = torch.compile(
        lambda self, *args, **more: type(self).forward(self, *args, **more), backend=backend
    )
    for module in model.modules():
        if isinstance(module, block_class):
            module.forward = types.MethodType(forward, module)
    return model


also_right = [by_apply, from_the_outside_in, bound_methods]


# Mistakes


def the_whole_model(model, block_class, backend):
    model.compile(backend=backend)
    return model


def wraps_the_blocks(model, block_class, backend):
    for name, block in list(model.named_modules()):
        if isinstance(block, block_class):
            model.set_submodule(name, torch.compile(block, backend=backend))
    return model


def changes_the_class(model, block_class, backend):
    block_class.forward = torch.compile(block_class.forward, backend=backend)
    return model


def replaces_forward(model, block_class, backend):
    for module in model.modules():
        if isinstance(module, block_class):
            module.forward = torch.compile(module.forward, backend=backend)
    return model


mistakes = [
    Wrong(the_whole_model, told_by="one_graph"),
    Wrong(wraps_the_blocks, told_by="names"),
    Wrong(changes_the_class, told_by="other_models"),
    Edit(
        "a backend for each", "backend=backend", "backend=lambda *graph: backend(*graph)", told_by="one_graph"
    ),
    Edit(
        "one level down",
        "model.modules()",
        "[m for c in model.children() for m in (c, *c.children())]",
        told_by="wherever_they_stand",
    ),
    Edit(
        "that class alone",
        "isinstance(module, block_class)",
        "type(module) is block_class",
        told_by="subclasses",
    ),
    Wrong(replaces_forward, told_by="results"),
]

not_tried = {
    "hard numbers": "the model computes",
    "dtypes": "the model computes",
    "left alone": "it changes the model",
}
