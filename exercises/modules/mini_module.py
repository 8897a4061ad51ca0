"""A module, by hand

Build `MiniModule`, a small `nn.Module`. It registers a `Parameter` or `MiniModule` assigned to an attribute,
and a tensor given to `register_buffer`. Plain tensors stay outside, and so does whatever a list holds.

- `named_parameters()` yields pairs: its own, then those of its modules, in the order of first assignment. A
  shared parameter comes once, under its first name.
- `state_dict()` has all parameters and persistent buffers under each of their names, detached, not copied.
- `load_state_dict(state)` copies the values in place; a missing or unexpected key raises a `RuntimeError`.

Attributes can be assigned anew, set to None and deleted as in torch; a plain tensor on a parameter's name
raises `TypeError`. Don't use `nn.Module`.

`m.a = MiniModule(); m.a.w = nn.Parameter(torch.ones(1))` → `list(m.state_dict())` is `["a.w"]`
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import modules

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "Look at `vars(nn.Linear(2, 2))`: torch keeps three dicts, one each for parameters, buffers and "
        "modules. Who fills them, and who finds `linear.weight` there?",
        "A name belongs in one place: which others must forget it? And what if the name is a buffer's "
        "already, or gets None, and then a tensor? What lies in the dicts is found by `__getattr__`.",
        "A module looks into its own dicts, then asks each of its modules, and puts the module's name and a "
        "dot before what comes back. Loading can start from `state_dict()`: its tensors have the real "
        "storage.",
    ],
)


@exercise.starter
class MiniModule:
    def __init__(self):
        raise NotImplementedError

    def __setattr__(self, name: str, value) -> None: ...
    def __delattr__(self, name: str) -> None: ...
    def register_buffer(
        self, name: str, tensor: Tensor, persistent: bool = True
    ) -> None: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...


_NAMES = "[name for name, _ in root.named_parameters()]"
_PARAMETERS = "dict(root.named_parameters())"
_STATE = "dict(root.state_dict())"
_TREE = """
class Block(MiniModule):
    def __init__(self, number):
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), number))

root = MiniModule()
root.left = Block(1.)
root.right = Block(2.)
root.right.inner = Block(3.)
root.bias = nn.Parameter(torch.tensor([4.]))
"""
_BUFFERS = """
root.left.register_buffer("mean", torch.zeros(3))
root.left.register_buffer("mask", torch.ones(2), persistent=False)
"""


@exercise.check
def registered(MiniModule):
    """What is assigned to an attribute is found, at any depth

    `m.x = value` calls `__setattr__`, where each instance notes what is a parameter and what is a module.
    `named_parameters` asks the module, then its modules, and puts their names and a dot before what they say.
    """
    expect.true(
        not issubclass(MiniModule, nn.Module), "it is an `nn.Module`", "expected: a class of your own"
    )
    same = "dict(root.named_parameters())['right.weight'] is root.right.weight"
    modules.compare(_TREE, [_NAMES, _PARAMETERS, "root.right.inner.weight", same], MiniModule)


@exercise.check
def outside(MiniModule):
    """Plain tensors, and what lists and dicts hold, are no parts of a module

    A list tells the module nothing of what it holds; `nn.ModuleList` exists for that reason. A plain tensor
    could be anything, so torch leaves it alone. A buffer is a part, not a parameter.
    """
    setup = """
        root = MiniModule()
        root.layers = [nn.Parameter(torch.ones(1)), MiniModule()]
        root.layers[1].weight = nn.Parameter(torch.ones(1))
        root.table = {"bias": nn.Parameter(torch.ones(1))}
        root.level = torch.ones(2, requires_grad=True)
        root.scale = nn.Parameter(torch.ones(1))
        root.register_buffer("mean", torch.zeros(1))
    """
    questions = [_NAMES, "sorted(root.state_dict())", "len(root.layers)", "root.level"]
    modules.compare(setup, questions, MiniModule)


@exercise.check(
    cases={
        "two names in one module": "root.scale = root.bias",
        "a parameter of two modules": "root.left.weight = root.right.inner.weight",
        "a module at two places": "root.left.again = root.right",
        "equal values": "root.offset = nn.Parameter(torch.tensor([4.]))",
    },
)
def shared(MiniModule, more):
    """A shared parameter is listed once, and saved under every name

    An optimizer shall get a parameter once, so `named_parameters` leaves out what came before; it goes by
    identity, and equal values are no sign. `state_dict` leaves nothing out: whoever loads it may not share.
    """
    modules.compare(f"{_TREE}{more}", [_NAMES, "sorted(root.state_dict())"], MiniModule)


@exercise.check
def saved(MiniModule):
    """`state_dict` holds detached tensors over the same storage, without temporary buffers

    A copy of a large model costs its memory again. So a `state_dict` is a view of the living model: keep a
    `clone` if you want what is there now. `persistent=False` says that a buffer can be computed anew.
    """
    code = f"{_TREE}{_BUFFERS}state = root.state_dict()"
    t = modules.compare(code, [_STATE, "root.left.mask"], MiniModule)
    for name, tensor in t.call("state.items()"):
        source, what = t.call(f"root.{name}"), f"`state[{name!r}]`"
        expect.true(not tensor.requires_grad, f"{what} requires a gradient", "expected: a detached tensor")
        expect.same_storage(tensor, source, what=what, of=f"`root.{name}`")


@exercise.check
def loaded(MiniModule):
    """`load_state_dict` copies into the tensors that are there, and wants every key

    An optimizer holds the parameters, and an earlier `state_dict` the storage of the buffers: what loads has
    to write there. A key that nobody asks for, or that is not there, is mostly a wrong file or a wrong name.
    """
    code = f"""{_TREE}{_BUFFERS}
root.left.again = root.right
root.bias = nn.Parameter(torch.tensor([4.]).double())
state = {{name: torch.full_like(t, 7.) for name, t in root.state_dict().items()}}
state["left.weight"] = nn.Parameter(torch.tensor([0.5, 0.25]))
state["bias"] = torch.tensor([1.]).double() / 3
"""
    t = modules.compare(code, [], MiniModule)
    names = ("root.bias", "root.left.weight", "root.left.mean", "root.left.mask", "root.right.inner.weight")
    with modules.in_place(lambda: {name: t.call(name) for name in names}):
        t.run("root.load_state_dict(state)")
    wanted = {"root.left.mask": torch.ones(2)} | {f"root.{name}": given for name, given in t.state.items()}
    for name in names:
        expect.equal(t.call(name).detach(), wanted[name].detach(), what=f"`{name}`", rtol=0.0, atol=0.0)
    for change in ("del state['left.mean']", "state['right.mean_too'] = torch.ones(3)"):
        t = modules.compare(f"{code}{change}", [], MiniModule)
        expect.raises(RuntimeError, lambda t=t: t.call("root.load_state_dict(state)"))


@exercise.check
def changed(MiniModule):
    """After any changes the tree has the names and tensors that torch's has

    A Parameter replaces what was on its name, a plain tensor or a buffer. A plain tensor on the name of a
    buffer is the buffer from then on; `register_buffer` decides anew whether it is saved. After None the name
    keeps its kind and its place in the order; after `del` not. A tensor would not train in the place of a
    parameter.
    """
    with Rows() as rows:
        with rows.of("the order after None"):
            modules.compare(f"{_TREE}root.left = None\nroot.left = Block(5.)", [_NAMES], MiniModule)
        for kind in modules.KINDS:
            with rows.of(kind):
                for lines in modules.programs(kind, 15):
                    modules.compare_simplest(lines, [_PARAMETERS, _STATE], MiniModule)
    t = expect.given("root = MiniModule()", MiniModule=MiniModule)
    expect.raises(AttributeError, lambda: t.run("del root.weight"), what="deleting what is not there")
    t = expect.given("root = MiniModule()\nroot.weight = nn.Parameter(torch.ones(1))", MiniModule=MiniModule)
    expect.raises(TypeError, lambda: t.run("root.weight = torch.ones(1)"), what="the assignment")
    kept = isinstance(t.root.weight, nn.Parameter)
    expect.true(kept, "`root.weight` is no Parameter after it", "expected: the one that it was")
