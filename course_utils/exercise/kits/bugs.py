"""Models for detectors: made of code that can be pasted, examined by the reader's detector, and left alone.

A detector is `find(model, batch, loss_fn) -> list[str]`, with `batch = (x, y)`. `net` writes the code of a
model; `examine` compares what a detector finds with what is there; `left_alone` looks at all that it may have
changed. `SICK` holds the sick models of the lesson, and `table` runs detectors over them.
"""

import copy
import random
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from course_utils import torch_private
from course_utils.exercise import Rows, expect
from course_utils.wrong_use import WrongUse, public

Detector = Callable[..., list[str]]

X, Y = "torch.randn(6, 4)", "torch.randn(6, 1)"


def net(init: str, forward: str, *, x: str = X, y: str = Y, loss: str = "F.mse_loss", **more: str) -> str:
    """Code that makes `model`, `batch` and `loss_fn`. `init` and `forward`: what stands in these methods of
    the model. `more`: `before`, lines above the class; `methods`, further methods; `after`, lines below."""
    start = ["def __init__(self):", "    super().__init__()", *_inside(init)]
    methods = ["\n".join(start), "\n".join(["def forward(self, x):", *_inside(forward)])]
    methods += [textwrap.dedent(more["methods"]).strip()] if "methods" in more else []
    body = textwrap.indent("\n\n".join(methods), "    ")
    after = "\n" + textwrap.dedent(more["after"]).strip() if "after" in more else ""
    before = textwrap.dedent(more["before"]).strip() + "\n\n" if "before" in more else ""
    made = f"torch.manual_seed(0)\nmodel = Net()\nbatch = {x}, {y}\nloss_fn = {loss}{after}"
    return f"{before}class Net(nn.Module):\n{body}\n\n{made}"


def _inside(code: str) -> list[str]:
    return textwrap.indent(textwrap.dedent(code).strip(), "    ").splitlines()


# --- what a detector finds -------------------------------------------------------------------------


def examine(
    name: str, find: Detector, models: Mapping[str, tuple[str, Collection[str]]], seeds: Iterable[int] = (0,)
) -> None:
    """The detector finds in each model (its label, its code) what is there, in any order, with each seed.
    Where one of several names will do, they stand in one text: "head.weight or body.weight"."""
    with Rows() as rows:
        for label, (code, there) in models.items():
            with rows.of(f"“{label}”"):
                for seed in seeds:
                    t = expect.given(code.replace("manual_seed(0)", f"manual_seed({seed})"), **{name: find})
                    _expect_found(_found(t, name), there, label)


def quiet(name: str, find: Detector, codes: Mapping[str, str], seeds: Iterable[int] = (0,)) -> None:
    """The detector finds nothing in these models."""
    examine(name, find, {label: (code, []) for label, code in codes.items()}, seeds)


def _found(t: expect.Given, name: str) -> Any:
    with warnings.catch_warnings(action="ignore"):  # of torch's, that some faults come with
        return t.call(f"{name}(model, batch, loss_fn)")


def _expect_found(came: Any, there: Collection[str], label: str) -> None:
    named = isinstance(came, (list, tuple, set)) and all(isinstance(one, str) for one in came)
    expect.true(named, f"the result is {expect.show(came)}", "expected: a list of texts")
    missing, more, again = list(there), [], []
    twice = [one for one in set(came) if list(came).count(one) > 1]
    for one in dict.fromkeys(came):
        names = [wanted for wanted in there if one in wanted.split(" or ")]
        if found := [wanted for wanted in names if wanted in missing]:
            missing.remove(found[0])
        else:
            (again if names else more).append(one)
    parts = {"Not found": missing, "Found without reason": more, "Found twice": sorted(twice)}
    parts["Named already, by another name"] = again
    told = [f"{what}: {', '.join(f'`{one}`' for one in ones)}." for what, ones in parts.items() if ones]
    more = ", in any order" if len(there) > 1 else ""
    wanted = ", ".join(" or ".join(map(repr, one.split(" or "))) for one in there)
    expected = f"`[{wanted}]`{more}" if there else "`[]`, for this model is healthy"
    if told:
        lines = [f"in “{label}” the result is {expect.show(came)}", f"expected: {expected}"]
        raise expect.Mismatch(*lines, symptom=" ".join(told))


@public
def copied(value: Any, *more: Any) -> Any:
    """Deep copies, for a detector to try things on; of one value, that copy. `copy.deepcopy` refuses a tensor
    with a graph, which a module holds as a result of a call, or of `weight_norm`: it is copied without."""
    values = (value, *more)
    held = (one for each in values for _, one in walk(each, ""))
    results = [one for one in held if isinstance(one, Tensor) and one.grad_fn is not None]
    found = copy.deepcopy(values, {id(one): one.detach().clone() for one in results})
    return found if more else found[0]


# --- what a detector leaves alone ------------------------------------------------------------------

_LAYERS = "self.norm, self.drop, self.head = nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)"
_KEEPS = "out = self.head(self.drop(self.norm(x)))\nself.kept.append(out)\nreturn out"

# In each of these something changes when the model is called, or when a backward runs.
LIVELY = {
    "batch norm, dropout, a list that grows": net(f"{_LAYERS}\nself.kept = []", _KEEPS),
    "a part in another mode, gradients from before": net(
        f"{_LAYERS}\nself.norm.eval().requires_grad_(False)",
        "return self.head(self.drop(self.norm(x)))",
        after="""
            for p in model.head.parameters():
                p.grad = torch.ones_like(p)
        """,
    ),
    "in evaluation mode, a part in training mode": net(
        _LAYERS,
        "return self.head(self.drop(self.norm(x)))",
        after="model.eval()\nmodel.twin = nn.Sequential(model.norm.train())",
    ),
    "layers in a list": net(
        "self.layers = [nn.BatchNorm1d(4), nn.Linear(4, 1)]", "return self.layers[1](self.layers[0](x))"
    ),
    "writes to its input": net(
        "self.act, self.head = nn.ReLU(inplace=True), nn.Linear(4, 1)", "return self.head(self.act(x))"
    ),
    "an input that requires a gradient": net(
        "self.head = nn.Linear(4, 1)", "return self.head(x)", x="torch.randn(6, 4, requires_grad=True)"
    ),
}


def left_alone(t: expect.Given, name: str) -> None:
    """The detector leaves the model, the batch and the random state of this example as they were: it finds
    the same again. `name`: the detector's, in the example."""
    before, drawn = _state(t), (torch.get_rng_state(), random.getstate())
    first = _found(t, name)
    _expect_same_state(before, _state(t))
    same = torch.equal(torch.get_rng_state(), drawn[0]) and random.getstate() == drawn[1]
    expect.true(same, "the random state is another after the call", "expected: as before it")
    expect.true(torch.is_grad_enabled(), "gradients are off after the call", "expected: on")
    again = _found(t, name)
    shown = f"the first call returns {expect.show(first)}, the second {expect.show(again)}"
    expect.true(set(again) == set(first), shown, "expected: the same again")


def _state(t: expect.Given) -> dict[str, Any]:
    """All that can be changed in the model, the batch and the loss, by its place."""
    found: dict[str, Any] = {}
    for root in ("model", "batch", "loss_fn"):
        for path, value in walk(getattr(t, root), root):
            if isinstance(value, Tensor):
                found[path] = value.detach().clone()
                found |= {f"{path}.requires_grad": value.requires_grad, f"{path}.dtype": value.dtype}
                grad = value.grad if value.is_leaf else None
                found[f"{path}.grad"] = None if grad is None else grad.detach().clone()
                if isinstance(value, nn.Parameter):  # an optimizer may hold it
                    found[f"id({path})"] = value
            elif isinstance(value, (list, tuple, dict)):
                found[f"len({path})"] = len(value)
            elif isinstance(value, (bool, int, float, str, type(None))):
                found[path] = value
    return found


def _bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _expect_same_state(before: dict[str, Any], after: dict[str, Any]) -> None:
    for path, was in before.items():
        now, place = after.get(path, "gone"), path
        if path.startswith("id("):
            same, shown, place = now is was, "is another tensor", path[3:-1]
        elif isinstance(was, Tensor) and isinstance(now, Tensor):
            same, shown = torch.equal(_bits(was), _bits(now)), "has other elements"
        else:
            same = type(now) is type(was) and now == was
            shown = f"was {expect.show(was)} and is {expect.show(now)}"
        expect.true(same, f"`{place}` {shown} after the call", "expected: as before the call")
    new = [path for path in after if path not in before]
    expect.true(not new, f"`{''.join(new[:1])}` is new after the call", "expected: as before the call")


def walk(value: Any, path: str, seen: dict[int, Any] | None = None) -> Iterator[tuple[str, Any]]:
    """(path, object) of all that is held: by modules, lists, tuples and dicts, each once."""
    seen = {} if seen is None else seen
    plain = isinstance(value, (bool, int, float, str, type(None)))
    if not plain and id(value) in seen:
        return
    seen[id(value)] = value
    yield path, value
    inside: Any = []
    if isinstance(value, nn.Module):
        for key, inner in vars(value).items():
            inside += inner.items() if key in torch_private.TABLES else [(key, inner)]
    elif isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, (list, tuple)):
        inside = enumerate(value)
    for key, inner in inside:
        yield from walk(inner, f"{path}.{key}", seen)


# --- the sick models of the lesson -----------------------------------------------------------------


@dataclass(frozen=True)
class Patient:
    """A model with a fault in it; `code` makes `model`, `batch` and `loss_fn`."""

    code: str

    def make(self) -> tuple[nn.Module, tuple[Tensor, Tensor], Callable[..., Tensor]]:
        """A new one, for `doctor(*patient.make())`."""
        with torch.random.fork_rng():
            names = {"__name__": "patient", "torch": torch, "nn": nn, "F": nn.functional}
            exec(compile(self.code, "<patient>", "exec"), names)
        return names["model"], names["batch"], names["loss_fn"]


_HALVES = "self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)"
_RELU = "return self.head(torch.relu(self.body(x)))"

_CODE = {
    "list_of_layers": net(
        "self.layers, self.head = [nn.Linear(4, 4), nn.ReLU()], nn.Linear(4, 1)",
        "for layer in self.layers:\n    x = layer(x)\nreturn self.head(x)",
    ),
    "forgotten_eval": net(_HALVES, "return self.head(F.dropout(self.body(x)))"),
    "thawed_batch_norm": net(
        "self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).requires_grad_(False)\n"
        "self.head = nn.Linear(4, 1)",
        "return self.head(self.body(x))",
    ),
    "cut_graph": net(_HALVES, "h = torch.tensor(self.body(x).tolist())\nreturn self.head(h)"),
    "dead_relus": net(f"{_HALVES}\nnn.init.constant_(self.body.bias, -100.0)", _RELU),
    "carried_state": net(
        f"{_HALVES}\nself.state = torch.zeros(6, 4)",
        "self.state = torch.tanh(self.body(x) + self.state)\nreturn self.head(self.state)",
    ),
    "hoarded_predictions": net(
        f"{_HALVES}\nself.predictions = []",
        "out = self.head(self.body(x))\nself.predictions.append(out)\nreturn out",
    ),
    "broadcast_loss": net(_HALVES, _RELU, y="torch.randn(6)"),
    "double_softmax": net(
        "self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)",
        f"{_RELU}.softmax(-1)",
        y="torch.arange(6) % 3",
        loss="F.cross_entropy",
    ),
}
SICK = {name: Patient(code) for name, code in _CODE.items()}


@public
def table(detectors: Collection[Detector]) -> str:
    """Bug by detector: how many faults each of the detectors finds in each of the sick models.

    A dot: it finds none. `?`: it is not written yet. `error`: it raised something.
    Raises `TypeError` for what is no list of functions.
    """
    if not isinstance(detectors, (list, tuple)) or not all(callable(one) for one in detectors):
        raise WrongUse(
            f"table() takes a list of functions, such as [find_graph_leaks], not {detectors!r:.60}"
        )
    heads = [getattr(one, "__name__", "?").removeprefix("find_").split("_")[0] for one in detectors]
    first = max(map(len, SICK))
    lines = ["  ".join([" " * first, *heads])]
    for bug, patient in SICK.items():
        cells = [_cell(one, patient).center(len(head)) for one, head in zip(detectors, heads, strict=True)]
        lines.append("  ".join([bug.ljust(first), *cells]).rstrip())
    return "\n".join(lines)


def _cell(detector: Detector, patient: Patient) -> str:
    try:
        with warnings.catch_warnings(action="ignore"):
            found = detector(*patient.make())
        return str(len(found)) if found else "·"
    except NotImplementedError:
        return "?"
    except Exception:
        return "error"
