"""In which order the hooks of a model fire: recorded from one forward and backward, drawn as a strip."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from course_utils.draw.labels import Label, cut
from course_utils.draw.model_run import run
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Scene, to_picture
from course_utils.measure.storage import tensors_in, version
from course_utils.wrong_use import public

# Sizes in pixels of the page.
ROW, BOX, LEFT, RIGHT, TOP = 24.0, 18.0, 170.0, 4.0, 52.0
CODE, SMALL, TINY = 12.0, 11.0, 10.0
WIDEST, ENOUGH = 44.0, 32.0  # the width of an event; as much as the words in it need
FILLS = {"forward": "rank", "backward": "gradient"}
REFUSED = "BackwardHookFunction"  # in what torch says where a write in place meets a hook
KINDS = {
    "forward pre-hook": "register_forward_pre_hook",
    "forward hook": "register_forward_hook",
    "full backward pre-hook": "register_full_backward_pre_hook",
    "full backward hook": "register_full_backward_hook",
}


@dataclass
class Fired:
    """The class of every module by its path, all hooks that fired, in order, as the path of their module and
    their kind in `KINDS`, the modules that were given no tensor that requires a gradient by place (`named`:
    they were by keyword, which backward hooks don't see), those that return no tensor or tuple of
    tensors (`wrapped`), and those that can have no backward hook since something writes in place
    (`written`)."""

    modules: dict[str, str]
    events: list[tuple[str, str]] = field(default_factory=list)
    cut: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    wrapped: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    backward: bool = False


@public
def hooks(model: nn.Module, batch: Any) -> Picture:
    """A picture of the order in which a model's hooks fire: time to the right, a lane for each module.

    Hooks of all four kinds are put on every module, the model runs forward and backward once, and the hooks
    are taken off again. The model, its `.grad`, its buffers and the batch stay as they were. `batch`: a
    tensor, a tuple of arguments or a dict of keyword arguments. Raises `TypeError` for what is no module,
    `ValueError` where it cannot be run.
    """
    return to_picture(compose(record(model, batch)))


def record(model: nn.Module, batch: Any) -> Fired:
    """What `hooks` draws."""
    try:
        return _record(model, batch, set())
    except ValueError as error:
        if REFUSED not in str(error):
            raise
    # torch puts a view around what passes a module with backward hooks, and nothing may write to that.
    return _record(model, batch, _written(model, batch))


def _record(model: nn.Module, batch: Any, written: set[str]) -> Fired:
    """The same, without backward hooks on the modules at these paths."""
    kinds = {path: type(module).__name__ for path, module in model.named_modules()}
    fired = Fired(kinds, written=written)

    def note(path: str, kind: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: Any, *came: Any) -> None:
            fired.events.append((path, kind))
            if kind == "forward hook" and not isinstance(came[0], (Tensor, tuple)):
                fired.wrapped.add(path)

        return hook

    def called(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: Any, named: Any) -> None:
            fired.events.append((path, "forward pre-hook"))
            if not any(one.requires_grad for one in tensors_in(given)):
                fired.cut.add(path)
                if any(one.requires_grad for one in tensors_in(named)):
                    fired.named.add(path)

        return hook

    wanted: list[Any] = []
    for (path, module), (kind, register) in itertools.product(model.named_modules(), KINDS.items()):
        if kind == "forward pre-hook":
            with_named = functools.partial(module.register_forward_pre_hook, with_kwargs=True)
            wanted.append((with_named, called(path)))
        elif "backward" not in kind or path not in written:
            wanted.append((getattr(module, register), note(path, kind)))
    fired.backward = run(model, batch, "draw.hooks", wanted, {})
    return fired


def _written(model: nn.Module, batch: Any) -> set[str]:
    """The modules that write to what they were given, and those whose result is written to afterwards."""
    given: dict[str, list[tuple[Tensor, int]]] = {}
    came: dict[str, list[tuple[Tensor, int]]] = {}
    found = set()

    def states(value: Any) -> list[tuple[Tensor, int]]:
        return [(one, version(one)) for one in tensors_in(value) if not one.is_inference()]

    def before(path: str) -> Callable[..., None]:
        return lambda module, inputs, named: given.__setitem__(path, states([inputs, named]))

    def after(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if any(version(one) != then for one, then in given[path]):
                found.add(path)
            came[path] = states(output)

        return hook

    wanted: list[Any] = []
    for path, module in model.named_modules():
        with_named = functools.partial(module.register_forward_pre_hook, with_kwargs=True)
        wanted += [(with_named, before(path)), (module.register_forward_hook, after(path))]
    run(model, batch, "draw.hooks", wanted, {})
    return found | {path for path, some in came.items() if any(version(one) != n for one, n in some)}


def compose(fired: Fired) -> Scene:
    """The scene of `hooks`."""
    step = min((WIDTH - LEFT - RIGHT) / max(len(fired.events), 1), WIDEST)
    lanes = {path: TOP + number * ROW for number, path in enumerate(fired.modules)}
    events = enumerate(fired.events, 1)
    order = (f"{number} {kind} of {path or 'the model'}" for number, (path, kind) in events)
    told = _told(fired)
    scene = Scene(". ".join([f"Hooks in the order in which they fire: {', '.join(order)}", *told]))
    _lanes(scene, fired, lanes, LEFT + step * len(fired.events))
    _events(scene, fired, lanes, step)
    pre, hook = ("pre", "hook") if step >= ENOUGH else ("open", "filled")
    scene.height = TOP + ROW * len(lanes) + 12
    first = f"{pre}: forward pre-hook, full backward pre-hook · {hook}: forward hook, full backward hook"
    for line in (first, *told):
        scene.write(1, scene.height, line, SMALL, faint=True)
        scene.height += 17
    return scene


def _told(fired: Fired) -> list[str]:
    if not fired.backward:
        return ["no backward: nothing that the model returns requires a gradient"]
    order, early = [path for path, kind in fired.events if kind == "full backward hook"], []
    for path in fired.modules:
        inside = [one for one in order if one != path and (not path or one.startswith(f"{path}."))]
        if (
            path in fired.cut - fired.named
            and path in order
            and inside
            and order.index(path) < order.index(inside[0])
        ):
            early.append(path or "the model")
    why = "fires before those inside: no input requires a gradient"
    told = [f"the backward hook of {', '.join(early)} {why}"] * bool(early)
    seen = {path for path, kind in fired.events if kind == "full backward hook"}
    if wrapped := [path or "the model" for path in fired.modules if path in fired.wrapped - seen]:
        told.append(f"no backward hook of {', '.join(wrapped)} fires: no tensor or tuple is returned there")
    if named := [path or "the model" for path in fired.modules if path in fired.named]:
        told.append(f"backward hooks of {', '.join(named)} don't see what comes in by keyword")
    if written := [path or "the model" for path in fired.modules if path in fired.written]:
        told.append(
            f"no backward hooks on {', '.join(written)}: torch refuses them where something writes in place"
        )
    return told


def _lanes(scene: Scene, fired: Fired, lanes: dict[str, float], end: float) -> None:
    called = {path for path, _ in fired.events}
    for path, y in lanes.items():
        x, middle = 1 + 12.0 * _level(path), y + ROW / 2
        words = Label(x, middle, path.rpartition(".")[2] or "the model", CODE, code=True, bold=True)
        what = cut(fired.modules[path], max(int((LEFT - 22 - x - words.width) / (0.52 * SMALL)), 1))
        scene.words += [words, Label(x + words.width + 8, middle, what, SMALL, faint=True)]
        if path not in called:
            scene.write(LEFT + 4, middle, "never called, so none of its hooks fired", SMALL)
        scene.line(((LEFT, y + ROW), (end, y + ROW)), 0.5)


def _events(scene: Scene, fired: Fired, lanes: dict[str, float], step: float) -> None:
    begun: dict[tuple[str, str], list[float]] = {}
    every = next(n for n in (1, 5, 10, 20, 50, 1000) if n * step >= 15)
    before = ""
    for number, (path, kind) in enumerate(fired.events, 1):
        x, y = LEFT + (number - 1) * step, lanes[path] + (ROW - BOX) / 2
        way, pre = "backward" if "backward" in kind else "forward", "pre-hook" in kind
        if number == 1 or number % every == 0:
            scene.write(x + step / 2, TOP - 10, str(number), TINY, "middle", faint=True)
        if way != before:
            scene.write(x + 1, TOP - 30, f"{way} ▸", SMALL + 1.5, bold=True)
            scene.line(((x, TOP - 40), (x, TOP + ROW * len(lanes))), 1.0)
        waiting, before = begun.setdefault((path, way), []), way
        waiting += [x + step] * pre
        if not pre and waiting and (start := waiting.pop()) < x:
            scene.line(((start, y + BOX / 2), (x, y + BOX / 2)), 3.0)
        word = Label(x + step / 2, y + BOX / 2, "pre" if pre else "hook", TINY, "middle")
        more = f"{number}: {kind} of {path or 'the model'}, a {fired.modules[path]}"
        words, fill = (word,) if step >= ENOUGH else (), "" if pre else FILLS[way]
        gap = min(1.0, step / 8)
        scene.box(x + gap, y, step - 2 * gap, BOX, fill, words, more, part=kind, key=path)


def _level(path: str) -> int:
    return path.count(".") + 1 if path else 0
