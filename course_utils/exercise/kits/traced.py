"""Graph modules that an answer has made or changed, and modules that `torch.jit.script` has compiled."""

from torch import fx, jit, nn

from course_utils import torch_private
from course_utils.exercise import expect


def expect_graph_module(t: expect.Given, name: str) -> None:
    """This name of the example is a graph module, with the code that belongs to its graph."""
    came = getattr(t, name)
    expect.true(
        isinstance(came, fx.GraphModule), f"the result is {expect.show(came)}, expected an `fx.GraphModule`"
    )
    t.run(f"{name}.graph.lint()")  # what reads a name before it is there is told by name
    told = f"`{name}` runs other code than that of its graph: `{name}.code` doesn't fit `{name}.graph`"
    wanted = f"expected: `{name}.recompile()` after the last change of the graph"
    expect.true(came.code == came.graph.python_code("self").src, told, wanted)


def forget_classes(model: nn.Module) -> None:
    """The classes of a model and its parts are new to `torch.jit.script`: one that it has refused before
    leaves a type behind, and it would complain of that. Torch's own stay known."""
    for module in model.modules():
        if not type(module).__module__.startswith("torch."):
            torch_private.script_types.pop(type(module), None)


def has_forward(scripted: jit.ScriptModule) -> bool:
    """Whether `forward` was compiled."""
    return torch_private.has_method(scripted)("forward")
