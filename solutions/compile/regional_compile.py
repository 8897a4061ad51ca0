"""The compiler caches what it compiled with the code of `forward`, and its guards look at what the code used:
sizes, classes, the numbers written into it. Parameters are inputs of the graph. Twelve blocks of one class
run one code on tensors of one size, so for the second to the twelfth all guards hold.

`block.compile()` changes how the module is called and neither its class nor its attributes. So `state_dict`
has no new names, and a deep copy leaves the compiled call behind. Blocks of another width are compiled once
more."""

import types
from typing import Any

import torch
from torch import nn


def regional_compile(model: nn.Module, block_class: type[nn.Module], backend: Any) -> nn.Module:
    for module in model.modules():
        if isinstance(module, block_class):
            module.compile(backend=backend)
    return model


# Other right answers


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
