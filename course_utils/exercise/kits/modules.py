"""What exercises about modules share: gradients, and tensors that are written to in place; and module trees:
generated programs that build and change one, run by `nn.Module` and by a class of the reader's."""

import contextlib
import functools
import random
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from course_utils import torch_private
from course_utils.exercise import Rows, expect
from course_utils.measure.modes import CallWatch

# What a line of a program may do; then, by the kind of change that a program is about, what it does besides.
BUILD = ("parameter", "parameter", "buffer", "temporary", "module", "plain")
KINDS = {
    "built": (),
    "shared": ("share",),
    "assigned anew": ("parameter again", "buffer again", "module again", "register anew", "of another kind"),
    "set to None": ("none", "none, then again"),
    "deleted": ("delete", "delete", "again", "rename"),
    "all of it": (
        *("share", "parameter again", "buffer again", "module again", "register anew"),
        *("none", "delete", "again"),
    ),
}

_PARAMETERS = ("weight", "bias", "scale")
_BUFFERS = ("mean", "count", "mask")
_MODULES = ("left", "right", "head")


def expect_gradients(t: expect.Given, statements: str, wanted: Tensor, *names: str, **how: Any) -> None:
    """Backward from the `loss` that the statements make gives the tensors of these names the gradients that
    they have from the loss `wanted`."""
    tensors = {name: t.call(name) for name in names}
    gradients = torch.autograd.grad(wanted, list(tensors.values()))
    t.run(statements)
    expect.in_graph(t.loss, what="`loss`", of=f"`{names[0]}`")
    t.run("loss.backward()")
    with Rows() as rows:
        for (name, tensor), gradient in zip(tensors.items(), gradients, strict=True):
            with rows.of(f"`{name}.grad`"):
                expect.equal(tensor.grad, gradient, what=f"`{name}.grad`", **how)


@contextlib.contextmanager
def in_place(tensors: Callable[[], Mapping[str, Tensor]]) -> Iterator[None]:
    """What runs inside leaves each of these tensors, by name, in its storage and without a graph, and each
    Parameter the object that it is. Their values may change."""
    before = dict(tensors())
    places = {name: tensor.data_ptr() for name, tensor in before.items()}
    yield
    for name, tensor in tensors().items():
        same = tensor is before[name] or not isinstance(before[name], nn.Parameter)
        expect.true(same, f"`{name}` is another Parameter than before", "expected: the same one")
        same = tensor.data_ptr() == places[name]
        told = f"`{name}` has another storage than before"
        expect.true(same, told, "expected: the one that it had")
        expect.true(tensor.is_leaf, f"`{name}` has a `grad_fn` now", "expected: values, and no graph")


def hooks_of(module: nn.Module) -> dict[str, list[Any]]:
    """The hooks on a module itself, by when they are called."""
    tables = {
        "after forward": torch_private.forward_hooks,
        "before forward": torch_private.forward_pre_hooks,
        "after backward": torch_private.backward_hooks,
        "before backward": torch_private.backward_pre_hooks,
    }
    return {when: list(table(module).values()) for when, table in tables.items()}


def hooks_of_all() -> list[Any]:
    """The hooks that are called after the forward of every module."""
    return list(torch_private.global_forward_hooks.values())


class Called(CallWatch):
    """Notes the names of torch's functions that are called inside, also of those that are no operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        self.names.append(getattr(func, "__name__", ""))
        return run()


class Tree:
    """A tree of torch's own that grows line by line. A line that torch refuses is not taken, nor one that
    makes a module a part of itself."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.lines = ["root = MiniModule()"]
        self.names = run(self.lines[0])
        self.number = 0
        self.deleted: list[tuple[str, str]] = []

    def grow(self, deeds: tuple[str, ...], length: int) -> list[str]:
        """The lines, after `length` more of them."""
        tries = 0
        while len(self.lines) < length and (tries := tries + 1) < 50 * length:
            for line in self._deed(self.random.choice(deeds)):
                self._take(line)
        return self.lines

    def _take(self, line: str) -> None:
        try:
            exec(line, self.names)
        except (TypeError, KeyError, AttributeError):
            return
        self.lines.append(line)

    def _paths(self) -> list[str]:
        return [".".join(("root", *filter(None, [name]))) for name, _ in self.names["root"].named_modules()]

    def _deed(self, deed: str) -> Iterator[str]:
        pick, path = self.random.choice, self.random.choice(self._paths())
        module = eval(path, self.names)
        own = {
            # None among them: the name is a parameter's still.
            "parameter": list(torch_private.parameters(module)),
            "buffer": list(torch_private.buffers(module)),
            "module": [n for n, m in torch_private.submodules(module).items() if m is not None],
        }
        self.number += 1
        value = f"torch.tensor([{self.number}.])"
        new = {"parameter": f"nn.Parameter({value})", "buffer": value, "module": "MiniModule()"}
        made = {
            "buffer": f"register_buffer('{{}}', {value})",
            "temporary": f"register_buffer('{{}}', {value}, persistent=False)",
            "plain": f"{{}} = {value}",
        }
        if deed == "parameter":
            name = pick(_PARAMETERS)
            if name not in torch_private.parameters(module):
                yield f"{path}.{name} = nn.Parameter({value})"
        elif deed in made:
            name = pick(_BUFFERS)
            if not hasattr(module, name):
                yield f"{path}.{made[deed].format(name)}"
        elif deed == "module" and len(self._paths()) < 6:
            name = pick(_MODULES)
            if name not in torch_private.submodules(module):
                yield f"{path}.{name} = MiniModule()"
        elif deed == "register anew" and own["buffer"]:
            yield f"{path}.{made[pick(('buffer', 'temporary'))].format(pick(own['buffer']))}"
        elif deed == "share":
            yield from self._share(path, module)
        elif deed == "rename" and own["module"]:
            old, name = pick(own["module"]), pick(_MODULES)
            if name not in torch_private.submodules(module):
                yield from (f"{path}.{name} = {path}.{old}", f"del {path}.{old}")
        elif (kind := deed.removesuffix(" again")) in own and kind != deed and own[kind]:
            yield f"{path}.{pick(own[kind])} = {new[kind]}"
        elif deed == "none" and (names := own["parameter"] + own["buffer"] + own["module"]):
            yield f"{path}.{pick(names)} = None"
        elif deed == "none, then again" and (names := own["parameter"] + own["buffer"]):
            name = pick(names)
            kind = "parameter" if name in own["parameter"] else "buffer"
            yield from (f"{path}.{name} = None", f"{path}.{name} = {new[kind]}")
        elif deed == "of another kind" and (names := [n for n in _BUFFERS if hasattr(module, n)]):
            yield f"{path}.{pick(names)} = nn.Parameter({value})"
        elif deed == "delete" and (names := own["parameter"] + own["buffer"] + own["module"]):
            name = pick(names)
            self.deleted.append((path, name))
            yield f"del {path}.{name}"
        elif deed == "again" and self.deleted:
            path, name = pick(self.deleted)
            if name in _BUFFERS and path in self._paths() and not hasattr(eval(path, self.names), name):
                yield pick((f"{path}.{name} = {value}", f"{path}.register_buffer('{name}', {value})"))

    def _share(self, path: str, module: nn.Module) -> Iterator[str]:
        other = self.random.choice(self._paths())
        source = eval(other, self.names)
        names = [n for n, p in torch_private.parameters(source).items() if p is not None and n in _PARAMETERS]
        if names and self.random.random() < 0.5:
            target = self.random.choice(_PARAMETERS)
            if target not in torch_private.parameters(module):
                yield f"{path}.{target} = {other}.{self.random.choice(names)}"
        else:
            target = self.random.choice(_MODULES)
            if target not in torch_private.submodules(module) and module not in list(source.modules()):
                yield f"{path}.{target} = {other}"


@functools.cache
def programs(kind: str, count: int) -> list[list[str]]:
    """Lines that build a tree `root` of `MiniModule`s and change it, the same on every run."""
    trees = [Tree(f"{kind} {number}") for number in range(count)]
    for tree in trees:
        tree.grow(BUILD, 7)
        tree.lines.append("asked = root.state_dict(), list(root.named_parameters())")
        tree.grow(KINDS[kind] * 4 + BUILD, 14)
    return [tree.lines for tree in trees]


def run(code: str, MiniModule: type = nn.Module) -> dict[str, Any]:
    """The names that the code makes; by itself: torch's."""
    names = {"torch": torch, "nn": nn, "MiniModule": MiniModule}
    exec(code, names)
    return names


def compare(code: str, questions: list[str], MiniModule: type) -> expect.Given:
    """Each question about what the code makes has the answer that it has for `nn.Module`. Returned is the
    example that was run."""
    names = run(textwrap.dedent(code))
    t = expect.given(code, MiniModule=MiniModule)
    for question in questions:
        expect.equal(t.call(question), eval(question, names))
    return t


def compare_simplest(lines: list[str], questions: list[str], MiniModule: type) -> None:
    """The same, and for the attributes of all modules. The example is the fewest of the lines."""
    if not _differs(lines, questions, MiniModule):
        expect.looked()
        return
    for number in range(len(lines) - 1, 0, -1):
        shorter = lines[:number] + lines[number + 1 :]
        lines = shorter if _differs(shorter, questions, MiniModule) else lines
    compare("\n".join(lines), [*questions, *_attributes(lines)], MiniModule)


def _differs(lines: list[str], questions: list[str], MiniModule: type) -> bool:
    code = "\n".join(lines)
    try:
        wanted = run(code)
    except Exception:  # a line that is missing made what is used here
        return False
    try:
        came = run(code, MiniModule)
        for question in (*questions, *_attributes(lines)):
            expect.equal(eval(question, came), eval(question, wanted))
    except Exception:
        return True
    return False


def _attributes(lines: list[str]) -> list[str]:
    """Questions: what every attribute is that the lines speak of, on each module that is in the tree."""
    text = "\n".join(lines)
    names = run(text)
    paths = [".".join(filter(None, ("root", name))) for name, _ in names["root"].named_modules()]
    words = [name for name in (*_PARAMETERS, *_BUFFERS, *_MODULES) if name in text]
    asked = [f"getattr({path}, '{name}', 'not there')" for path in paths for name in words]
    return [question for question in asked if not isinstance(eval(question, names), nn.Module)]
