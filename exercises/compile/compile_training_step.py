"""Forward, backward and update, compiled

Return `(step, optimizer)`. `step(x, y)` does one step of training and returns its loss as a tensor; forward,
backward and the optimizer's update all run as compiled graphs. (The loss function may be compiled with the
model, or stay outside.)

- The optimizer is `torch.optim.SGD` with `lr` and a momentum of 0.9 over the parameters of `model`, which it
  changes where they are. It keeps its state, the buffers of momentum, as ever.
- The loss is `loss_function(model(x), y)`, from before the update. What is returned holds no graph.
- `backend` is for `torch.compile`. It gets forward graphs, backward graphs, and graphs without gradients,
  which is what an update is.
- A schedule of `torch.optim.lr_scheduler` may change the learning rate of `optimizer` after each step. From
  the third step on nothing is compiled any more. (Momentum has no buffers before the first step, so the
  second one may compile the update again.)
- Losses and parameters are those of the same training without the compiler.

No more than six graphs are compiled in all."""

import copy
import logging
from typing import Any

import torch
from torch import nn

from course_utils import evidence, expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=20,
    hints=[
        "Backward is compiled together with the forward that it belongs to: what has to be compiled for it, "
        "and what can call `backward()` afterwards? The update is a function of its own.",
        "A Python number is written into a graph as a constant, and a guard watches it. What kind of object "
        "could the learning rate be, so that a schedule changes what is in it?",
        "`torch.optim.SGD` takes a tensor for `lr`, and a scheduler then writes into this tensor. Compile a "
        "function that gives the loss and one that does the update.",
    ],
)


@exercise.starter
def compile_training_step(model: nn.Module, loss_function: Any, lr: float, backend: Any) -> tuple[Any, Any]:
    """A function for one step of training, and its optimizer"""
    raise NotImplementedError


class _Counting:
    """A backend with backward that runs its graphs as they are and keeps their kinds and sizes."""

    def __init__(self):
        from torch._dynamo.backends.common import aot_autograd

        self.graphs, self.runs = [], []
        self._compile = aot_autograd(
            fw_compiler=self._keep("forward"),
            bw_compiler=self._keep("backward"),
            inference_compiler=self._keep("update"),
        )

    def __call__(self, gm, example_inputs):
        return self._compile(gm, example_inputs)

    def _keep(self, kind):
        from functorch.compile import make_boxed_func

        def keep(gm, example_inputs):
            size = sum(node.op.startswith("call") for node in gm.graph.nodes)
            # What remains beside a step or a loss are graphs of a few operators: they do not count.
            if size > 3:
                self.graphs.append(kind)

            def run(*args):
                self.runs.append(kind if size > 3 else "small")
                return gm(*args)

            return make_boxed_func(run)

        return keep


_LOSS = "loss_function = torch.nn.functional.poisson_nll_loss"
_MODEL = "model = nn.Sequential(nn.Linear(3, 1), nn.Tanh())"
_MADE = "step, optimizer = compile_training_step(model, loss_function, 0.1, backend)"


def _made(answer, backend, whose=True):
    """A model, its step and optimizer, and the same without the compiler. `whose`: the parameters that the
    optimizer holds are to be those of the model."""
    torch._logging.set_logs(all=logging.CRITICAL)  # what it would log has the time in it
    t = expect.given(f"{_MODEL}\n{_LOSS}")
    with torch.no_grad():
        for i, parameter in enumerate(t.model.parameters()):
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter).roll(i))
    plain = copy.deepcopy(t.model)
    parameters = list(t.model.parameters())
    with expect.situation(_MODEL, _MADE):
        found = answer(t.model, t.loss_function, 0.1, backend)
        good = type(found) is tuple and len(found) == 2 and callable(found[0])
        evidence.record("a pair", good)
        expect.true(good, f"the result is {expect.show(found)}", "expected: a function and an optimizer")
        step, optimizer = found
        kind = type(optimizer).__name__
        expect.true(isinstance(optimizer, torch.optim.SGD), f"`optimizer` is a {kind}, expected an SGD")
        theirs = [p for group in optimizer.param_groups for p in group["params"]]
        known = set(map(id, theirs)) & set(map(id, parameters))
        evidence.record("parameters of the model", len(known))
        same = len(theirs) == len(parameters) == len(known)
        expect.true(same or not whose, "`optimizer` holds other tensors than the parameters of `model`")
    twin = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)

    def plain_step(x, y):
        twin.zero_grad()
        loss = t.loss_function(plain(x), y)
        loss.backward()
        twin.step()
        return loss.detach()

    return t.model, step, optimizer, plain, plain_step, twin


def _batch(number, rows=5):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(rows, 3, generator=generator), torch.randn(rows, 1, generator=generator)


def _expect_equal_steps(made, batches, after=lambda number: None):
    model, step, _, plain, plain_step, _ = made
    for number, (x, y) in enumerate(batches, 1):
        wanted = plain_step(x, y)
        loss = step(x, y)
        loss = expect.a_tensor(loss, what=f"the loss of step {number}")
        expect.equal(loss.detach(), wanted, what=f"the loss of step {number}", rtol=1e-4, atol=1e-5)
        for (name, parameter), other in zip(model.named_parameters(), plain.parameters(), strict=True):
            what = f"`model.get_parameter('{name}')` after step {number}"
            expect.equal(parameter.detach(), other.detach(), what=what, rtol=1e-4, atol=1e-5)
        after(number)


@exercise.check(isolated=True, deadline=60)
def three_kinds(compile_training_step):
    """Forward, backward and update all run as graphs"""
    counting = _Counting()
    made = _made(compile_training_step, counting)
    with expect.situation(_MODEL, _MADE, "step(x, y)  # three times"):
        for number in range(3):
            counting.runs.clear()
            made[1](*_batch(number))
        ran = sorted(set(counting.runs) - {"small"})
        evidence.record("kinds", ran)
        missing = [kind for kind in ("forward", "backward", "update") if kind not in ran]
        # Where the forward is not compiled there is no graph of its backward either.
        told = f"in the third step ran graphs made with `backend`, of these kinds: {', '.join(ran) or 'none'}"
        expect.true(not missing, told, f"expected: of {', '.join(missing)} as well")
        with evidence.silent():
            expect.at_most(len(counting.graphs), 6, "graphs that were compiled in three steps")


@exercise.check(isolated=True, deadline=60)
def as_without(compile_training_step):
    """Losses and parameters as without the compiler, also for a smaller last batch"""
    made = _made(compile_training_step, "eager")
    with expect.situation(_MODEL, _MADE, "step(x, y)"):
        _expect_equal_steps(made, [_batch(1), _batch(2), _batch(3, rows=2)])
        model, _, optimizer, plain, _, twin = made
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            buffer = optimizer.state.get(one, {}).get("momentum_buffer")
            wanted = twin.state[other]["momentum_buffer"]
            told = "after three steps `optimizer.state` has no buffers of momentum"
            expect.true(isinstance(buffer, torch.Tensor), told, "expected: one for each parameter")
            expect.equal(buffer, wanted, what="the buffer of a parameter's momentum", rtol=1e-4, atol=1e-5)


@exercise.check(isolated=True, deadline=60)
def a_schedule(compile_training_step):
    """A learning rate that changes after each step compiles nothing from the third step on"""
    counting = _Counting()
    made = _made(compile_training_step, counting)
    code = "schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))"
    with expect.situation(_MODEL, _MADE, code, "step(x, y); schedule.step()  # four times"):
        schedules = [
            torch.optim.lr_scheduler.LambdaLR(one, lambda n: 1 / (n + 1)) for one in (made[2], made[5])
        ]
        compiled = []

        def after(number):
            for schedule in schedules:
                schedule.step()
            compiled.append(len(counting.graphs))

        _expect_equal_steps(made, [_batch(n) for n in range(4)], after)
        more = compiled[-1] - compiled[1]
        evidence.record("compiled later", more > 0)
        with evidence.silent():
            expect.true(more == 0, f"from the third step on {more} graphs were compiled", "expected: none")


@exercise.check(isolated=True, deadline=60)
def no_graph_left(compile_training_step):
    """The loss holds no graph"""
    made = _made(compile_training_step, "eager", whose=False)
    with expect.situation(_MODEL, _MADE, "loss = step(x, y)"):
        loss = expect.a_tensor(made[1](*_batch(1)), what="`loss`")
        held = loss.requires_grad or loss.grad_fn is not None
        expect.true(not held, "`loss` is part of a graph", "expected: a tensor that holds on to nothing")


# --- the mistakes ---------------------------------------------------------------------------------------


def _sgd(model, lr):
    return torch.optim.SGD(model.parameters(), lr=torch.tensor(lr), momentum=0.9)


def _step(optimizer, loss_of, update, zero=True, detach=True):
    def step(x, y):
        if zero:
            optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        update()
        return loss.detach() if detach else loss

    return step


def _compiled(model, loss_function, backend):
    return torch.compile(lambda x, y: loss_function(model(x), y), backend=backend)


@exercise.mistake
def a_rate_that_is_a_number(model, loss_function, lr, backend):
    """The learning rate is a Python number. It is written into the graph of the update, so each time that a
    schedule changes it the update is compiled anew, up to the limit. Give the optimizer a tensor."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    update = torch.compile(lambda: optimizer.step(), backend=backend)
    return _step(optimizer, _compiled(model, loss_function, backend), update), optimizer


@a_rate_that_is_a_number.variant
def in_one_function(model, loss_function, lr, backend):
    optimizer = torch.optim.SGD(list(model.parameters()), lr, 0.9)

    @torch.compile(backend=backend)
    def step(x, y):
        loss = loss_function(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, optimizer


@exercise.mistake
def updates_in_python(model, loss_function, lr, backend):
    """The update is not compiled. It runs a handful of small operators for every parameter, more than all the
    rest of a small model: compile a function that calls `optimizer.step()`."""
    optimizer = _sgd(model, lr)
    return _step(optimizer, _compiled(model, loss_function, backend), optimizer.step), optimizer


@updates_in_python.variant
def only_the_model(model, loss_function, lr, backend):
    optimizer, compiled = _sgd(model, lr), torch.compile(model, backend=backend)

    def step(x, y):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(compiled(x), y)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    return step, optimizer


@exercise.mistake
def only_the_update(model, loss_function, lr, backend):
    """Forward is not compiled, and so backward is not either: its graph is made from that of the forward.
    Compile a function that gives the loss. (`model.compile()` makes no graph of an `nn.Sequential`.)"""
    optimizer = _sgd(model, lr)
    update = torch.compile(lambda: optimizer.step(), backend=backend)
    return _step(optimizer, lambda x, y: loss_function(model(x), y), update), optimizer


@exercise.mistake
def gradients_add_up(model, loss_function, lr, backend):
    """Gradients are not reset: `backward()` adds to what is in `.grad` from the step before."""
    optimizer = _sgd(model, lr)
    update = torch.compile(lambda: optimizer.step(), backend=backend)
    return _step(optimizer, _compiled(model, loss_function, backend), update, zero=False), optimizer


@exercise.mistake
def holds_the_graph(model, loss_function, lr, backend):
    """The loss that you return is part of its graph. Who keeps the losses of an epoch keeps all graphs with
    them: return it detached."""
    optimizer = _sgd(model, lr)
    update = torch.compile(lambda: optimizer.step(), backend=backend)
    return _step(optimizer, _compiled(model, loss_function, backend), update, detach=False), optimizer


@exercise.mistake
def trains_a_copy(model, loss_function, lr, backend):
    """You train a copy. The caller's `model` stays as it is."""
    model = copy.deepcopy(model)
    optimizer = _sgd(model, lr)
    update = torch.compile(lambda: optimizer.step(), backend=backend)
    return _step(optimizer, _compiled(model, loss_function, backend), update), optimizer
