"""One block compiled, twelve served

A model repeats one kind of block many times. Compiled as a whole it becomes one graph with the operators of
all blocks in it, and the first call takes as long as that takes. Compile its blocks instead, so that what was
compiled for the first one serves the others as well.

- Every module in `model` that is a `block_class` is compiled, wherever it stands; the rest of the model is
  not. Blocks do not stand in one another.
- One graph serves all blocks that do the same on tensors of the same sizes.
- The model is changed where it is, and returned. It keeps its modules, their classes and the names in its
  `state_dict`. A deep copy of it computes with parameters of its own.
- Other models with blocks of this class stay as they are.
- `backend` is for `torch.compile`, or for whatever of torch you compile with.

With twelve blocks the first call is to take less than half of what it takes for the whole model."""

import copy
import sys
import time
import types
from typing import Any

import torch
from torch import nn

from course_utils import evidence, expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=15,
    hints=[
        "Twelve blocks of one class have twelve sets of parameters and one `forward`. Does the compiler look "
        "at the code, or at the module?",
        "`nn.Module` has methods that go through all modules below it, and one that compiles a module where "
        "it is. What does `torch.compile(block)` give, and what are its parameters called?",
        "A backend that is made anew for each block is another backend each time, and for another backend "
        "everything is compiled anew.",
    ],
)


@exercise.starter
def regional_compile(model: nn.Module, block_class: type[nn.Module], backend: Any) -> nn.Module:
    """The model, with its blocks compiled"""
    raise NotImplementedError


_BLOCK = """class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, factor=2.0):
        return x + factor * self.down(torch.sin(self.up(self.norm(x))))
"""
_STACK = """class Model(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.stem = nn.Linear(3, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(number))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            x = block(x, factor=2.0)
        return self.head(x)
"""
_NESTED = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.first = nn.Linear(8, 8), Block(8)
        self.stages = nn.ModuleDict({"a": nn.Sequential(Block(8), Block(8)), "b": nn.Sequential(Block(6))})
        self.between = nn.Linear(8, 6)

    def forward(self, x):
        return self.stages["b"](torch.tanh(self.between(self.stages["a"](self.first(self.stem(x))))))
"""


def _classes(*codes):
    """The classes of these lines, made anew: an answer that changes a class changes no other check's."""
    module = types.ModuleType("model_of_this_check")
    # The compiler imports it where it looks for what a `forward` of these classes uses.
    sys.modules[module.__name__] = module
    module.nn, module.torch = nn, torch
    for code in codes:
        exec(compile(code, "<model>", "exec"), vars(module))
    return module.Block, module.Model


class _Counting:
    """A backend that runs graphs as they are, and counts."""

    def __init__(self):
        self.sizes, self.runs = [], []

    def __call__(self, gm, example_inputs):
        self.sizes.append(sum(node.op.startswith("call") for node in gm.graph.nodes))
        self.runs.append(0)
        number = len(self.runs) - 1

        def run(*args):
            self.runs[number] += 1
            return gm(*args)

        return run


def _size_of_a_block(block_class):
    """How many operators the graph of one block has."""
    counting = _Counting()
    torch.compile(block_class(4), backend=counting)(torch.ones(2, 4))
    torch.compiler.reset()
    return sum(counting.sizes)


def _compiled(answer, model, block_class, backend):
    found = answer(model, block_class, backend)
    evidence.record("returned", type(found).__name__)
    expect.true(
        found is model,
        f"the result is {'None' if found is None else 'another object than the model'}",
        "expected: the model itself",
    )
    return found


def _expect_graphs(counting, size, runs):
    """Graphs of `size` operators that ran so often."""
    told = [f"{n} operators, ran {r} times" for n, r in zip(counting.sizes, counting.runs, strict=True)]
    evidence.record("graphs", [counting.sizes, counting.runs])
    lines = [f"graphs: {'; '.join(told) or 'none'}"]
    lines.append(f"expected: {'; '.join(f'{size} operators, ran {r} times' for r in runs)}")
    with evidence.silent():
        expect.true(counting.runs == runs and set(counting.sizes) == {size}, *lines)


@exercise.check(isolated=True)
def names(regional_compile):
    """The same modules, with the same names and classes"""
    block_class, model_class = _classes(_BLOCK, _STACK)
    model = model_class(3)
    modules, keys = dict(model.named_modules()), list(model.state_dict())
    classes = {name: type(module) for name, module in modules.items()}
    with expect.situation("model = regional_compile(Model(3), Block, backend)"):
        _compiled(regional_compile, model, block_class, _Counting())
        now = list(model.state_dict())
        evidence.record("names", now)
        new = [key for key in now if key not in keys]
        told = [f"its `state_dict` has `{key}`, which was not there" for key in new[:1]]
        expect.true(now == keys, *(told or ["names of its `state_dict` are missing, or in another order"]))
        same = {name for name, module in model.named_modules() if modules.get(name) is module}
        gone = sorted(set(modules) - same)
        expect.true(not gone, *[f"`model.{name}` is another module than before" for name in gone[:1]])
        changed = [name for name, module in modules.items() if type(module) is not classes[name]]
        told = [f"the class of `model.{name}` is another one than before" for name in changed[:1]]
        expect.true(not changed, *told)


@exercise.check(isolated=True, deadline=60)
def one_graph(regional_compile):
    """One graph of the size of a block for all blocks, and a shorter first call"""
    block_class, model_class = _classes(_BLOCK, _STACK)
    size, counting = _size_of_a_block(block_class), _Counting()
    with expect.situation("model = regional_compile(Model(3), Block, backend)", "model(x)", "model(x)"):
        model = _compiled(regional_compile, model_class(3), block_class, counting)
        for _ in range(2):
            model(torch.ones(5, 3))
        _expect_graphs(counting, size, [6])
    with expect.situation("model = regional_compile(Model(12), Block, backend)", "model(x)"):
        # What is right takes about a quarter; so much room is there for a machine that is busy.
        with evidence.silent():
            sooner = _first_call_is_shorter(regional_compile, block_class, model_class)
        told = "the first call takes about as long as that of a model that is compiled as a whole"
        expect.true(sooner, told, "expected: less than half as long")


def _first_call_is_shorter(answer, block_class, model_class):
    """Whether it takes less than 0.8 of that of the whole model compiled, in one of three tries."""

    def whole(model, block_class, backend):
        model.compile(backend=backend)

    least = {}
    for _ in range(3):
        for kind in (answer, whole):
            torch.compiler.reset()
            model = model_class(12)
            # Of the processor's time: what other programs take of the machine does not count.
            start = time.process_time()
            kind(model, block_class, _Counting())
            model(torch.ones(5, 3))
            took = time.process_time() - start
            least[kind] = min(took, least.get(kind, took))
        if least[answer] < 0.8 * least[whole]:
            return True
    return False


@exercise.check(isolated=True, deadline=60)
def wherever_they_stand(regional_compile):
    """Blocks in other modules, and of two widths"""
    block_class, model_class = _classes(_BLOCK, _NESTED)
    size, counting = _size_of_a_block(block_class), _Counting()
    line = "self.first = Block(8); self.stages = ModuleDict(a=Sequential(Block(8), Block(8)), b=..Block(6)..)"
    with expect.situation(line, "model = regional_compile(Model(), Block, backend)", "model(x)"):
        model = _compiled(regional_compile, model_class(), block_class, counting)
        model(torch.ones(5, 8))
        _expect_graphs(counting, size, [3, 1])


@exercise.check(isolated=True, deadline=60)
def results(regional_compile):
    """Results, gradients, a copy and another model"""
    block_class, model_class = _classes(_BLOCK, _STACK)
    plain, other = model_class(3), model_class(3)
    model, counting = copy.deepcopy(plain), _Counting()
    x = torch.linspace(-1, 1, 6).view(2, 3)
    with expect.situation("model = regional_compile(Model(3), Block, backend)"):
        _compiled(regional_compile, model, block_class, counting)
        y = model(x)
        expect.equal(y, plain(x), what="`model(x)`")
        for one in (model, plain):
            one(x).square().sum().backward()
        for (name, parameter), twin in zip(plain.named_parameters(), model.parameters(), strict=True):
            expect.equal(twin.grad, parameter.grad, what=f"the gradient of `{name}`")
        before = sum(counting.runs)
        other(x)
        more = sum(counting.runs) - before
        told = f"another model of these classes, which was not given to you, ran compiled graphs {more} times"
        expect.true(more == 0, told, "expected: it stays as it is")
    code = "twin = copy.deepcopy(model)", "for p in twin.parameters(): p.data.mul_(2)", "twin(x)"
    with expect.situation(*code):
        twins = copy.deepcopy(model), copy.deepcopy(plain)
        for twin in twins:
            for parameter in twin.parameters():
                parameter.data.mul_(2)
        expect.equal(twins[0](x), twins[1](x), what="`twin(x)`")


# --- the mistakes ---------------------------------------------------------------------------------------


@exercise.mistake
def the_whole_model(model, block_class, backend):
    """You compile the model as a whole. Its graph holds the operators of every block, one after another, as
    if each were another, and the time to compile grows with their number."""
    model.compile(backend=backend)
    return model


@exercise.mistake
def wraps_the_blocks(model, block_class, backend):
    """You put `torch.compile(block)` in the place of each block. That is another module, which holds the
    block as `_orig_mod`, and now this stands in the names of all its parameters: checkpoints of the plain
    model no longer fit. `block.compile()` compiles a module where it is."""
    for name, block in list(model.named_modules()):
        if isinstance(block, block_class):
            model.set_submodule(name, torch.compile(block, backend=backend))
    return model


@wraps_the_blocks.variant
def sets_attributes(model, block_class, backend):
    def replace(parent):
        for name, child in parent.named_children():
            if isinstance(child, block_class):
                setattr(parent, name, torch.compile(backend=backend)(child))
            else:
                replace(child)

    replace(model)
    return model


@exercise.mistake
def a_backend_for_each(model, block_class, backend):
    """Each block gets a backend of its own: a function that is made in the loop. For the compiler that is
    another backend, and it compiles the same code again for each, until it reaches its limit and leaves the
    rest to Python. Hand over one and the same object."""
    compile_one = torch.compile if isinstance(backend, str) else None
    for module in model.modules():
        if isinstance(module, block_class):
            of_its_own = backend if compile_one else (lambda gm, inputs: backend(gm, inputs))
            module.compile(backend=of_its_own)
    return model


@a_backend_for_each.variant
def made_by_a_function(model, block_class, backend):
    def new():
        def run(gm, example_inputs):
            return backend(gm, example_inputs)

        return run if callable(backend) else backend

    blocks = filter(lambda module: isinstance(module, block_class), model.modules())
    for block in blocks:
        nn.Module.compile(block, backend=new())
    return model


@exercise.mistake
def nothing_is_compiled(model, block_class, backend):
    """No graph is made with `backend`: nothing is compiled, or with another backend than the one given, or
    only layers of torch's own. `nn.Linear(2, 2).compile()` makes no graph when the layer is called from
    Python: compile the whole block."""
    return model


@nothing_is_compiled.variant
def only_the_layers(model, block_class, backend):
    for module in model.modules():
        if not list(module.children()):
            module.compile(backend=backend)
    return model


@exercise.mistake
def one_level_down(model, block_class, backend):
    """You look for blocks in some places of the model only. They may stand at any depth: `model.modules()`
    goes through all of them."""
    for child in model.children():
        for module in (child, *child.children()):
            if isinstance(module, block_class):
                module.compile(backend=backend)
    return model


@one_level_down.form
def children_only(model, block_class, backend):
    for child in model.children():
        if isinstance(child, block_class):
            child.compile(backend=backend)
    return model


@exercise.mistake
def replaces_forward(model, block_class, backend):
    """You put a compiled function in the place of `block.forward`. It holds on to this block, and a deep copy
    takes it along as it is: the copy runs with the parameters of the original. `block.compile()` is left
    behind when a module is copied."""
    for module in model.modules():
        if isinstance(module, block_class):
            module.forward = torch.compile(module.forward, backend=backend)
    return model


@exercise.mistake
def changes_the_class(model, block_class, backend):
    """You compile `forward` of the class. That holds for every model with blocks of this class, those of
    others and those that come later included."""
    block_class.forward = torch.compile(block_class.forward, backend=backend)
    return model
