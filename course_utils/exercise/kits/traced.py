"""Graph modules that an answer has made or changed."""

from torch import fx

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
