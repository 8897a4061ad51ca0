"""One block compiled, twelve served

A model of many equal blocks that is compiled whole becomes, if nothing breaks it, one graph with all their
operators. Compile its blocks instead: what was compiled for the first one serves the others.

- Compile every module in `model` that is a `block_class` or of a subclass, at any depth, and nothing else. No
  block contains another.
- One graph serves all blocks that do the same on tensors of the same sizes.
- Change the model in place and return it, with the same modules, classes and names in its `state_dict`. A
  deep copy computes with its own parameters. Other models stay as they are.

`backend` is for `torch.compile`, or whatever of torch you compile with.
"""

from typing import Any

import torch
from torch import nn

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits.compiled import Counting, expect_graphs

exercise = Exercise(
    minutes=15,
    hints=[
        "Twelve blocks of one class have twelve sets of parameters and one `forward`. Is compiled code kept "
        "with the code of the function, or with the module?",
        "`nn.Module` has methods that go through all modules below it, and one that compiles a module in "
        "place. What does `torch.compile(block)` return, and what are its parameters called?",
        "If you make a new backend for each block, everything is compiled again for each block.",
    ],
)


@exercise.starter
def regional_compile(
    model: nn.Module, block_class: type[nn.Module], backend: Any
) -> nn.Module:
    """The model, with its blocks compiled"""
    raise NotImplementedError


_BLOCK = """
from course_utils.exercise.kits.compiled import Counting
backend = Counting()

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
    def forward(self, x):
        return x + self.down(self.up(x).sin())
"""
_STACK = f"""{_BLOCK}
class Model(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.stem, self.head = nn.Linear(3, 8), nn.Linear(8, 2)
        self.blocks = nn.ModuleList(Block(8) for _ in range(number))
    def forward(self, x):
        x = self.stem(x).relu()
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""


def _compiled(t, model):
    """The modules that the model had before."""
    t.run(f"model = {model}")
    before = list(t.model.modules())
    t.run("found = regional_compile(model, Block, backend)")
    told = "None" if t.found is None else "another object than the model"
    expect.true(t.found is t.model, f"the result is {told}", "expected: the model itself")
    return before


def _operators(block):
    """How many operators the graph of this block has."""
    counting = Counting()
    torch.compile(block, backend=counting)(torch.ones(2, 4))
    torch.compiler.reset()
    return len(counting.graphs[0].operators)


@exercise.check(isolated=True, given=_STACK)
def names(t):
    """The same modules, with the same names and classes

    `torch.compile(block)` is another module, which holds the block as `_orig_mod`. If it replaces the block,
    the names of its parameters contain that word, and checkpoints of the plain model no longer fit.
    `block.compile()` compiles a module in place.
    """
    before = _compiled(t, "Model(2)")
    t.run("names = list(model.state_dict())")
    expect.equal(t.names, list(t.Model(2).state_dict()), what="`names`")
    now = list(t.model.modules())
    same = len(now) == len(before) and all(one is other for one, other in zip(now, before, strict=True))
    expect.true(same, "`model.modules()` are others than before", "expected: the same modules")
    for i, block in enumerate(t.model.blocks):
        name = type(block).__name__
        expect.true(
            type(block) is t.Block, f"the class of `model.blocks[{i}]` is {name}", "expected: `Block`"
        )


@exercise.check(
    isolated=True,
    deadline=60,
    given=_STACK,
    cases={"three blocks, two calls": (3, 2), "twelve blocks, one call": (12, 1)},
)
def one_graph(t, number, calls):
    """One graph of the size of a block, for twelve blocks as for three

    Compiled code is kept with the code of `forward`, and parameters are inputs of the graph by default, so
    for the second block all guards hold. A graph of the whole model has the operators of every block. Another
    backend, even a function that does the same, compiles everything again.
    """
    size = _operators(t.Block(4))
    _compiled(t, f"Model({number})")
    t.run("\n".join(["model(torch.ones(5, 3))"] * calls))
    expect_graphs(t.backend, (size, number * calls))


@exercise.check(isolated=True, deadline=60, given=_BLOCK)
def wherever_they_stand(t):
    """Blocks at any depth, and of two widths

    `model.modules()` goes through all modules at any depth. The sizes of parameters are guarded too, so a
    block of another width gets a graph of its own.
    """
    size = _operators(t.Block(4))
    t.run("stages = nn.Sequential(Block(8), nn.Sequential(nn.Sequential(Block(8))))")
    _compiled(t, "nn.Sequential(nn.Linear(8, 8), Block(8), stages, nn.Linear(8, 6), Block(6))")
    t.run("model(torch.ones(5, 8))")
    expect_graphs(t.backend, (size, 3), (size, 1))


@exercise.check(isolated=True, deadline=60, given=f"{_STACK}\nother = Model(2)")
def other_models(t):
    """Other models stay as they are

    All blocks share the `forward` of their class. If you compile it there, the blocks of every other model,
    present and later, are compiled too.
    """
    _compiled(t, "Model(2)")
    t.run("other(torch.ones(5, 3))\nModel(2)(torch.ones(5, 3))")
    told = f"graphs of `backend` ran {t.backend.runs} times, and `model` was not called"
    expect.true(t.backend.runs == 0, told, "expected: other models run without")


_GATED = f"""{_BLOCK}
class Gated(Block):
    def forward(self, x):
        return x * self.down(self.up(x))
"""


@exercise.check(isolated=True, deadline=60, given=_GATED)
def subclasses(t):
    """A module of a subclass is a block too

    `isinstance` accepts it, `type(module) is Block` doesn't. This one has its own `forward`, so it gets its
    own graph.
    """
    sizes = [_operators(kind(4)) for kind in (t.Block, t.Gated)]
    _compiled(t, "nn.Sequential(Block(8), Gated(8), Gated(8), nn.Linear(8, 8))")
    t.run("model(torch.ones(5, 8))")
    expect_graphs(t.backend, (sizes[0], 1), (sizes[1], 2))


@exercise.check(isolated=True, deadline=60, given=_STACK)
def results(t):
    """Results and gradients are those of the plain model, in a copy too

    A compiled function that replaces `block.forward` holds on to its block, and a deep copy keeps that same
    function: the copy then computes with the parameters of the original. A copy doesn't take along what
    `block.compile()` made.
    """
    t.run("import copy\n\nplain = Model(2)\nx = torch.ones(5, 3)")
    _compiled(t, "copy.deepcopy(plain)")
    expect.equal(t.call("model(x)"), t.plain(t.x), what="`model(x)`")
    for model in (t.model, t.plain):
        model(t.x).square().sum().backward()
    for (name, parameter), twin in zip(t.plain.named_parameters(), t.model.parameters(), strict=True):
        expect.equal(twin.grad, parameter.grad, what=f"the gradient of `{name}`")
    t.run("twin = copy.deepcopy(model)\nfor p in twin.parameters():\n    p.data.mul_(2)")
    for parameter in t.plain.parameters():
        parameter.data.mul_(2)
    expect.equal(t.call("twin(x)"), t.plain(t.x), what="`twin(x)`")
