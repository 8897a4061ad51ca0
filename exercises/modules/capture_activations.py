"""What the layers returned

`capture_activations(model, names)` is a context manager that gives a dict: under each name the list of what
that layer returned inside the `with`, one tensor for each call, in order. A name is a path, such as `"0"` or
`"encoder.2"`; two names may lead to one layer.

- Each tensor holds the values of that moment, has no graph and a storage of its own.
- The model's outputs and gradients don't change.
- Your hooks are gone when the `with` ends, by an exception too, and it isn't swallowed. Hooks of others stay;
  they change no output.
- A name that the model lacks raises `AttributeError`.

After `with capture_activations(model, ["0"]) as seen: model(x)` the list `seen["0"]` has one tensor.
"""

import torch
from torch import nn

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import modules

exercise = Exercise(
    minutes=13,
    core=True,
    hints=[
        "What runs before the `yield` of a context manager, what after it, and what if something is raised "
        "inside the `with`? `model.get_submodule(name)` finds a layer under any of its names.",
        "`layer.register_forward_hook(hook)` calls `hook(layer, args, output)` after each call and returns "
        "a handle with `remove()`. What the hook returns, unless it is `None`, replaces the output.",
        "`detach` leaves the graph and shares storage; `clone` makes new storage and stays in the graph. "
        "Begin the `try` before the first hook is there, and remove each handle in `finally`.",
    ],
)


@exercise.starter
def capture_activations(model: nn.Module, names: list[str]):
    raise NotImplementedError


_MODEL = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
x = torch.randn(5, 3)
"""


def _expect_seen(seen, wanted):
    """Under each name these values, one for each call."""
    expect.true(isinstance(seen, dict), f"`seen` is {expect.show(seen)}, expected a dict")
    expect.equal(sorted(seen), sorted(wanted), what="the list of the keys of `seen`")
    for name, values in wanted.items():
        expect.equal(seen[name], [value.detach() for value in values], what=f"`seen[{name!r}]`")


@exercise.check(given=f"{_MODEL}model, x = model.to(device), x.to(device)")
def right_values(t, device):
    """Under each name what that layer returned

    A forward hook gets what the layer returned, wherever in the model the layer is. A hook that is made in a
    loop sees the last value of the loop's variable, unless the value is bound to it.
    """
    first = t.model[0](t.x)
    inner = t.model[2][0](first.tanh())
    with expect.left_alone(t.model, what="`model`", hooks=False):
        t.run('with capture_activations(model, ["2.0", "0", "2"]) as seen:\n    model(x)')
    _expect_seen(t.seen, {"2.0": [inner], "0": [first], "2": [inner.tanh()]})


@exercise.check(
    given="""
        torch.manual_seed(0)
        layer = nn.Linear(3, 3).double()
        model = nn.Sequential(layer, layer, nn.Linear(3, 3))
        x, y = torch.randn(2, 3).double(), torch.randn(4, 3).double()
    """
)
def every_call(t):
    """One entry for each call: called twice, called with the next batch, or not at all

    A hook belongs to a layer and runs in each of its calls. A layer may stand in a model under several names:
    `named_modules()` lists it once, under the first; `get_submodule` finds it under each.
    """
    calls = [t.layer(t.x), t.layer(t.layer(t.x)), t.layer(t.y)]
    t.run('with capture_activations(model, ["0", "1", "2"]) as seen:\n    layer(layer(x))\n    layer(y)')
    _expect_seen(t.seen, {"0": calls, "1": calls, "2": []})


@exercise.check(
    given=f"{_MODEL}model = nn.Sequential(model[0], nn.ReLU(inplace=True), nn.Flatten(0))",
    cases={f"layer `{name}`": name for name in "012"},
)
def of_that_moment(t, name):
    """What is written in place afterwards does not reach an entry

    `detach()` shares storage with the output, and `.cpu()` returns the tensor itself where it is on the CPU
    already. What runs next may write there: `nn.ReLU(inplace=True)`, or `h += x`. It gets what a hook
    returns, too: an entry that is returned becomes the input of the next layer, however it was copied.
    """
    wanted = t.model[: int(name) + 1](t.x)
    t.run(f'with capture_activations(model, ["{name}"]) as seen:\n    y = model(x)')
    _expect_seen(t.seen, {name: [wanted]})
    expect.own_storage(t.seen[name][0], t.y, what=f"`seen[{name!r}][0]`", of="`y`")


@exercise.check(given=_MODEL)
def no_graph(t):
    """An entry has no graph

    A tensor with a `grad_fn` keeps the graph that made it, and with it, until a backward frees it, what was
    saved for backward. `clone()` is an operator in the graph like any other.
    """
    t.run('with capture_activations(model, ["1"]) as seen:\n    model(x)')
    expect.equal(t.call('seen["1"][0].requires_grad'), False)


@exercise.check(given=f"{_MODEL}model.append(nn.Dropout())")
def same_model(t):
    """The model trains inside the `with` as it does without

    What a forward hook returns, unless it is `None`, replaces the output: a detached tensor cuts the graph.
    `detach_` changes the output itself. `torch.no_grad()` around the `yield` holds for the whole block, and
    so does `model.eval()`, which turns dropout off.
    """
    block = """
        torch.manual_seed(1)
        with capture_activations(model, ["0", "1"]) as seen:
            y = model(x)
            loss = y.sum()
    """
    torch.manual_seed(1)
    wanted = t.model(t.x)
    modules.expect_gradients(t, block, wanted.sum(), "model[0].weight", "model[2][0].weight")
    expect.equal(t.y.detach(), wanted.detach(), what="the output of the model")


def _hooks(model):
    """The forward hooks of each module, and those of all modules."""
    found = {f"layer {name!r}": modules.hooks_of(m)["after forward"] for name, m in model.named_modules()}
    return {**found, "all modules": modules.hooks_of_all()}


@exercise.check(
    given=f"""{_MODEL}
first, second = lambda *_: None, lambda *_: None
handle = model[0].register_forward_hook(first)""",
    cases={
        "another's hook set in the block": (None, "model[0].register_forward_hook(second)\n    model(x)"),
        "another's hook removed in the block": (None, "handle.remove()\n    model(x)"),
        "an exception in the block": (KeyError, 'model(x)\n    raise KeyError("stop")'),
        "a name that the model lacks": (AttributeError, "model(x)"),
    },
)
def hooks_removed(t, error, lines):
    """No hook is left behind, also after an exception, and other hooks stay

    A hook stays until `remove()` is called on its handle. `_forward_hooks` holds those of everybody: emptied,
    or put back as it was, it loses others. An exception leaves the block at once: what has to happen all the
    same stands in a `finally`, and the `try` begins before the first hook, as a name may be missing.
    """
    others = _hooks(t.model)
    others["layer '0'"] = [t.first] * ("remove" not in lines) + [t.second] * ("second" in lines)
    names = ["0", "2.1", *["missing"] * (error is AttributeError)]
    block = f"with capture_activations(model, {names}) as seen:\n    {lines}"
    expect.raises(error, lambda: t.run(block), what="the block") if error else t.run(block)
    for whose, hooks in _hooks(t.model).items():
        stays = any(hook not in others[whose] for hook in hooks)
        expect.true(not stays, f"a hook of yours stays on {whose}", "expected: none")
        told = f"a hook of somebody else's is gone from {whose}, or has another place"
        expect.true(hooks == others[whose], told, "expected: it stays")
