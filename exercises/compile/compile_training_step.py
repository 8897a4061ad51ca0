"""Forward, backward and update, compiled

Return `(step, optimizer)`. `step(x, y)` does one step of training and returns the loss from before the
update, as a tensor without a graph. `optimizer` is a `torch.optim.SGD` with `lr` and a momentum of 0.9; it
updates the parameters of `model` in place.

- Forward, backward and update all run as graphs that `backend` got. `loss_function` may stay outside.
- A scheduler may change the rate of `optimizer` after each step. From the third step on nothing is compiled
  any more. (The first step makes the buffers of momentum, so the second may compile the update again.)
- Losses and parameters are those of the same training without the compiler.

`step, optimizer = compile_training_step(model, F.poisson_nll_loss, 0.1, "inductor")`
"""

import copy
from typing import Any

import torch
from torch import nn

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits.compiled import no_logs

exercise = Exercise(
    minutes=20,
    hints=[
        "Backward is compiled together with its forward. What do you have to compile for it, and where may "
        "you call `backward()`? The update is a function of its own.",
        "By default SGD passes its rate to an operator as `alpha=`, and AOTAutograd makes a constant of a "
        "Python number there. What other kind of object could the rate be, so that a schedule changes its "
        "content?",
        "`torch.optim.SGD` takes a tensor for `lr`, and a scheduler then writes into this tensor. Compile a "
        "function that gives the loss and one that does the update.",
    ],
)


@exercise.starter
def compile_training_step(
    model: nn.Module,
    loss_function: Any,
    lr: float,
    backend: Any,
) -> tuple[Any, Any]:
    """A function for one step of training, and its optimizer"""
    raise NotImplementedError


_MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1, bias=False)
        self.frozen = nn.Parameter(torch.tensor([0.5]), requires_grad=False)
    def forward(self, x):
        return self.linear(x).tanh() * self.frozen

torch.manual_seed(0)
model, x, y = Model(), torch.randn(5, 3), torch.randn(5, 1)
"""
_HALVES = """
from course_utils.exercise.kits.compiled import CountingHalves
backend = CountingHalves()
"""


def _given(compile_training_step, backend):
    """An example with a step, an optimizer, and a `plain` copy of the model from before."""
    no_logs()
    t = expect.given(f"{backend.strip()}\n{_MODEL}", compile_training_step=compile_training_step)
    plain = copy.deepcopy(t.model)
    t.run("found = compile_training_step(model, F.poisson_nll_loss, 0.1, backend)")
    pair = isinstance(t.found, (tuple, list)) and len(t.found) == 2 and callable(t.found[0])
    expect.true(pair, f"the result is {expect.show(t.found)}", "expected: a function and an optimizer")
    t.run("step, optimizer = found")
    kind = type(t.optimizer).__name__
    expect.true(isinstance(t.optimizer, torch.optim.SGD), f"`optimizer` is a {kind}", "expected: an SGD")
    twin = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for key in ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"):
        for found in (group[key] for group in t.optimizer.param_groups):
            wanted = twin.param_groups[0][key]
            told = f"`optimizer.param_groups[0][{key!r}]` is {found}", f"expected: {wanted}"
            expect.true(abs(float(found) - wanted) < 1e-6, *told)
    return t, plain, twin


def _one_step(t, plain, optimizer, lines="loss = step(x, y)"):
    """A step of both, with equal losses and parameters."""
    optimizer.zero_grad()
    wanted = torch.nn.functional.poisson_nll_loss(plain(t.x), t.y)
    wanted.backward()
    optimizer.step()
    t.run(lines)
    loss = expect.a_tensor(t.loss, what="`loss`").detach()
    expect.equal(loss, wanted.detach(), what="`loss`", rtol=1e-4, atol=1e-5)
    for name, other in plain.named_parameters():
        found = t.model.get_parameter(name).detach()
        expect.equal(found, other.detach(), what=f"`model.{name}`", rtol=1e-4, atol=1e-5)


@exercise.check(isolated=True, deadline=60)
def as_without(compile_training_step):
    """Losses and parameters as without the compiler

    The loss is from before the update. Backward adds to existing gradients, and momentum lasts from step to
    step, in the state of the optimizer that steps. SGD writes to the tensors it was given, and skips a
    parameter whose `.grad` is `None`. Variants of it, such as Nesterov's, compute other steps.
    """
    t, plain, optimizer = _given(compile_training_step, "backend = 'eager'")
    for _ in range(3):
        _one_step(t, plain, optimizer)
    told = "`optimizer.state` holds no momentum of `model.linear.weight` after three steps"
    used = "momentum_buffer" in t.optimizer.state.get(t.model.linear.weight, ())
    expect.true(used, told, "expected: this optimizer does the update")


@exercise.check(isolated=True, deadline=60)
def all_three(compile_training_step):
    """Forward, backward and update run as graphs

    AOTAutograd makes the backward graph together with the forward graph, and `loss.backward()` runs it. A
    forward that isn't compiled has no such graph. On the CPU a step of SGD is by default a loop over the
    parameters, and here the loop becomes one graph. A graph goes to the backend that `torch.compile` was
    given for it.
    """
    t, _, _ = _given(compile_training_step, _HALVES)
    t.run("step(x, y)")
    _all_ran(t, f"graphs of `backend`: {t.backend}")


def _all_ran(t, graphs):
    """The graphs that ran computed the whole step."""
    for part, names in (("forward", ["mm", "tanh"]), ("backward", ["tanh_backward"])):
        missing = [f"`{name}`" for name in names if name not in t.backend.ran()]
        told = f"they didn't run {', '.join(missing)}, of the {part} of `model`"
        expect.true(not missing, graphs, told, f"expected: they run the whole {part}")
    told = "none of them wrote to `model.linear.weight`", "expected: one does the update"
    expect.true(t.backend.wrote(t.model.linear.weight), graphs, *told)


@exercise.check(isolated=True, deadline=60)
def schedule(compile_training_step):
    """A learning rate that changes after each step compiles nothing from the third step on

    A step takes the rate that `optimizer.param_groups` has by then. By default SGD passes it as `alpha=`. For
    AOTAutograd a Python number there is a constant: each new rate compiles the update again, or runs it in
    Python if compiling is forbidden. A tensor is an input of the graph, and a scheduler writes into it.
    """
    t, plain, optimizer = _given(compile_training_step, _HALVES)
    rate = "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))"
    t.run(f"schedule = {rate}")
    twin = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))
    graphs = []
    for _ in range(4):
        t.backend.forget()
        _one_step(t, plain, optimizer, "loss = step(x, y)\nschedule.step()")
        twin.step()
        graphs.append(len(t.backend.graphs) + t.backend.elsewhere)
    told = f"graphs compiled from the third step on: {graphs[3] - graphs[1]}"
    expect.true(graphs[3] == graphs[1], told, "expected: none")
    ran = "; ".join(str(graph) for graph in t.backend.graphs if graph.runs)
    _all_ran(t, f"graphs of `backend` that ran in the fourth step: {t.backend.told(ran)}")


@exercise.check(isolated=True, deadline=60)
def no_graph_left(compile_training_step):
    """The loss holds no graph

    A loss with a `grad_fn` keeps the nodes of its graph alive. If you keep the losses of an epoch, you keep
    all of these.
    """
    t, _, _ = _given(compile_training_step, "backend = 'eager'")
    t.run("loss = step(x, y)")
    loss = expect.a_tensor(t.loss, what="`loss`")
    expect.true(not loss.requires_grad, "`loss.requires_grad` is `True`", "expected: a loss without a graph")
