"""A forward that is compiled brings its backward along: the two graphs are made together, and `backward()` on
the result runs the second. The update is one more function. Under the compiler its loop over the parameters
becomes one graph, which can be fused.

A Python number in a graph is a constant, and a guard watches it. A tensor is an input. A scheduler that finds
a tensor as learning rate writes into it, and the guards have nothing to notice. The second step has buffers
of momentum where the first had none, so the update is compiled twice, and no more."""

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

    def step(x, y):
        for parameter in model.parameters():
            parameter.grad = None
        loss = loss_function(forward(x), y)
        torch.autograd.backward([loss])
        update()
        return loss.data

    return step, optimizer


equivalent = {
    "line 26: `loss.detach()` -> `loss.detach_()`": "nobody else holds this tensor",
}


def generated(answer):
    model = nn.Linear(3, 1)
    step, _ = answer(model, nn.functional.mse_loss, 0.1, "eager")
    for rows in (4, 4, 2):
        yield step(torch.randn(rows, 3), torch.randn(rows, 1))
        yield [parameter.detach() for parameter in model.parameters()]


also_right = [all_in_one, the_model_and_the_update]
