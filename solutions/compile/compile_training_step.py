"""With AOTAutograd a compiled forward brings its backward along: both graphs are made together, and
`backward()` on the result runs the second. The update is one more function. Compiled, its loop over the
parameters becomes one graph here.

The rate is a Python float. When it changes it could become a symbol, so that a changing rate alone would cost
two graphs, as with the lesson's AdamW. But by default SGD passes the rate to `add_` as `alpha=`, and there
AOTAutograd (and Inductor behind it) needs a constant: here each new rate compiles the update again, up to the
limit of eight. RMSprop does the same with `value=`; with `backend="eager"` both stop after two graphs. A
tensor is an input of the graph instead: a scheduler that finds one as learning rate writes into it, and here
no guard fails. The second step has buffers of momentum where the first had none, so the update is compiled
twice in all.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def compile_training_step(
    model: nn.Module, loss_function: Callable, lr: float, backend: Any
) -> tuple[Callable, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(lr), momentum=0.9)

    @torch.compile(backend=backend)
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return loss_function(model(x), y)

    @torch.compile(backend=backend)
    def update() -> None:
        optimizer.step()

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        update()
        return loss.detach()

    return step, optimizer


# Other right answers

import copy

from course_utils.exercise import Edit, Wrong


def all_in_one(model, loss_function, lr, backend):
    """One function; the compiler breaks it where backward and the update begin, and goes on behind."""
    optimizer = torch.optim.SGD(model.parameters(), torch.tensor(lr, dtype=torch.float32), 0.9)

    def step(x, y):
        loss = loss_function(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return torch.compile(step, backend=backend), optimizer


def the_model_and_the_update(model, loss_function, lr, backend):
    optimizer = torch.optim.SGD([{"params": list(model.parameters()), "lr": torch.tensor(lr)}], momentum=0.9)
    forward = torch.compile(model, backend=backend)
    update = torch.compile(lambda: optimizer.step(), backend=backend)
    for parameter in model.parameters():  # so that the second step finds no more than the first
        if parameter.requires_grad:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def step(x, y):
        for parameter in model.parameters():
            parameter.grad = None
        loss = loss_function(forward(x), y)
        torch.autograd.backward([loss])
        update()
        return loss.data

    return step, optimizer


also_right = [all_in_one, the_model_and_the_update]


# Mistakes


def trains_a_copy(model, loss_function, lr, backend):
    return compile_training_step(copy.deepcopy(model), loss_function, lr, backend)


def returns_another(model, loss_function, lr, backend):
    step, _ = compile_training_step(model, loss_function, lr, backend)
    return step, torch.optim.SGD(model.parameters(), lr, momentum=0.9)


def forbids_more_graphs(model, loss_function, lr, backend):
    """From the third step on a new rate runs the update in Python, where it has no graph."""
    step, optimizer = compile_training_step(model, loss_function, lr, backend)
    optimizer.param_groups[0]["lr"] = lr
    steps = iter(["default", "default"])

    def limited(x, y):
        with torch.compiler.set_stance(next(steps, "eager_on_recompile")):
            return step(x, y)

    return limited, optimizer


mistakes = [
    Wrong(trains_a_copy, told_by="as_without"),
    Wrong(returns_another, told_by="as_without"),
    Edit(
        "thaws what is frozen",
        "    optimizer = torch",
        "    model.requires_grad_(True)\n    optimizer = torch",
        told_by="as_without",
    ),
    Edit(
        "only loss and update",
        "        return loss_function(model(x), y)\n",
        "        return loss_function(x, y)\n    f = loss_of\n    loss_of = lambda x, y: f(model(x), y)\n",
        told_by="all_three",
    ),
    Edit(
        "an update of another backend",
        "@torch.compile(backend=backend)\n    def update",
        "@torch.compile(backend='eager')\n    def update",
        told_by="all_three",
    ),
    Edit("a rate that is a number", "lr=torch.tensor(lr)", "lr=lr", told_by="schedule"),
    Wrong(forbids_more_graphs, told_by="schedule"),
    Edit("holds the graph", "loss.detach()", "loss", told_by="no_graph_left"),
]

equivalent = {
    "line 26: `loss.detach()` -> `loss.detach_()`": "nobody else holds this tensor",
}

not_tried = {
    "hard numbers": "the model computes",
    "dtypes": "torch updates",
    "left alone": "a step changes its model",
    "seeds": "any numbers will do",
}
