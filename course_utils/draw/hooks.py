"""In which order the hooks of a model fire: recorded from one forward and backward, drawn as a strip."""

from __future__ import annotations

import functools
import itertools
import textwrap
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from course_utils.draw import folding
from course_utils.draw.folding import PAGE
from course_utils.draw.labels import LETTER, Label, cut
from course_utils.draw.model_run import run
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Scene, to_picture
from course_utils.measure.storage import tensors_in, version
from course_utils.wrong_use import public

# Sizes in pixels of the page.
ROW, BOX, LEFT, RIGHT, TOP = 24.0, 18.0, 170.0, 4.0, 52.0
CODE, SMALL, TINY = 12.0, 11.0, 10.0
WIDEST, ENOUGH = 44.0, 32.0  # the width of an event; as much as the words in it need
LEAST = 2.5  # of an event, in a picture that is folded
LETTERS, LISTED = 112, 60  # that have room in a line, and of names in it
FOOT = 170.0  # room for these lines
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
    """The scene of `hooks`. Of a model too large for a page, modules of equal structure in a row are drawn
    once, then only the upper levels."""
    lanes = {path: TOP + number * ROW for number, path in enumerate(fired.modules)}
    times: dict[str, int] = {}
    rest = ""
    if TOP + ROW * len(lanes) > PAGE - FOOT or LEAST * len(fired.events) > (WIDTH - LEFT - RIGHT):
        paths, times, others = _folded(fired)
        lanes = {path: TOP + number * ROW for number, path in enumerate(paths)}
        rest = folding.rest(others, "module", LETTERS) if others else ""
    events = [(number, *event) for number, event in enumerate(fired.events, 1) if event[0] in lanes]
    step = min((WIDTH - LEFT - RIGHT) / max(len(events), 1), WIDEST)
    order = (f"{number} {kind} of {path or 'the model'}" for number, path, kind in events)
    told = _told(fired, lanes)
    scene = Scene(". ".join([f"Hooks in the order in which they fire: {', '.join(order)}", *told]))
    _lanes(scene, fired, lanes, times, LEFT + step * len(events))
    _events(scene, fired, lanes, events, step)
    pre, hook = ("pre", "hook") if step >= ENOUGH else ("open", "filled")
    scene.height = TOP + ROW * len(lanes) + 12
    first = f"{pre}: forward pre-hook, full backward pre-hook · {hook}: forward hook, full backward hook"
    for line in (*[rest] * bool(rest), first, *told):
        for part in textwrap.wrap(line, LETTERS):
            scene.write(1, scene.height, part, SMALL, faint=True)
            scene.height += 17
    return scene


def _folded(fired: Fired) -> tuple[list[str], dict[str, int], list[str]]:
    """The modules that have room, how often each comes in a row, and the classes of those left out."""
    below: dict[str, list[str]] = {}
    for path in fired.modules:
        if path:
            below.setdefault(path.rpartition(".")[0], []).append(path)
    own = Counter(fired.events)
    flags = (fired.cut, fired.named, fired.wrapped, fired.written)
    keys: dict[str, Any] = {}
    numbers: dict[Any, int] = {}
    for path in reversed(fired.modules):
        inside = tuple((one.rpartition(".")[2], keys[one]) for one in below.get(path, ()))
        fires = tuple(own[path, kind] for kind in KINDS), tuple(path in one for one in flags)
        keys[path] = numbers.setdefault((fired.modules[path], fires, inside), len(numbers))
    paths, times, many = [], {}, {"": 1}
    waiting = [""]
    while waiting:
        paths.append(path := waiting.pop())
        inside, first = below.get(path, []), []
        for group in folding.fold([(keys[one], folding.unnumbered(one)) for one in inside]):
            first += inside[group.start : group.start + group.size]
            times |= dict.fromkeys(first[-group.size :], group.times)
            many |= dict.fromkeys(first[-group.size :], group.times * many[path])
        waiting += reversed(first)
    most, events = (PAGE - FOOT - TOP) // ROW, (WIDTH - LEFT - RIGHT) / LEAST
    shown = paths
    for depth in range(max(map(_level, paths)), 0, -1):
        shown = [path for path in paths if _level(path) <= depth]
        if len(shown) <= most and sum(own[path, kind] for path in shown for kind in KINDS) <= events:
            break
    total = itertools.accumulate(sum(own[path, kind] for kind in KINDS) for path in shown)
    shown = [path for path, so_far in zip(shown, total, strict=True) if so_far <= events][: int(most)]
    others = [fired.modules[path] for path in paths if path not in set(shown) for _ in range(many[path])]
    return shown, times, others


def _told(fired: Fired, lanes: Collection[str]) -> list[str]:
    if not fired.backward:
        return ["no backward: nothing that the model returns requires a gradient"]
    order, early = [path for path, kind in fired.events if kind == "full backward hook"], []
    for path in lanes:
        inside = [one for one in order if one != path and (not path or one.startswith(f"{path}."))]
        if (
            path in fired.cut - fired.named
            and path in order
            and inside
            and order.index(path) < order.index(inside[0])
        ):
            early.append(path)
    told = [f"the backward hook of {_listed(early)} fires before those inside: no input requires a gradient"]
    told = told * bool(early)
    seen = {path for path, kind in fired.events if kind == "full backward hook"}
    if wrapped := [path for path in lanes if path in fired.wrapped - seen]:
        told.append(f"no backward hook of {_listed(wrapped)} fires: no tensor or tuple is returned there")
    if named := [path for path in lanes if path in fired.named]:
        told.append(f"backward hooks of {_listed(named)} don't see what comes in by keyword")
    if written := [path for path in lanes if path in fired.written]:
        why = "torch refuses them where something writes in place"
        told.append(f"no backward hooks on {_listed(written)}: {why}")
    return told


def _listed(paths: list[str]) -> str:
    """Their names, or as many as have room in a line."""
    names = [path or "the model" for path in paths]
    while len(names) > 1 and len(", ".join(names)) > LISTED:
        names.pop()
    return ", ".join(names) + f" and {len(paths) - len(names)} more" * (len(names) < len(paths))


def _lanes(scene: Scene, fired: Fired, lanes: dict[str, float], times: dict[str, int], end: float) -> None:
    called = {path for path, _ in fired.events}
    for path, y in lanes.items():
        x, middle = 1 + (8.0 if times else 12.0) * min(_level(path), 8), y + ROW / 2
        name, many = path.rpartition(".")[2] or "the model", times.get(path, 1)
        sign = f" ×{many}" * (many > 1)
        name = cut(name, max(int((LEFT - 10 - x) / LETTER / CODE) - len(sign), 2)) + sign
        words = Label(x, middle, name, CODE, code=True, bold=True)
        room = int((LEFT - 22 - x - words.width) / ((0.6 if times else 0.52) * SMALL))
        what = cut(fired.modules[path], max(room, 1)) * (room > 3 or not times)
        scene.words += [words, Label(x + words.width + 8, middle, what, SMALL, faint=True)]
        if path not in called:
            scene.write(LEFT + 4, middle, "never called, so none of its hooks fired", SMALL)
        scene.line(((LEFT, y + ROW), (end, y + ROW)), 0.5)


def _events(
    scene: Scene, fired: Fired, lanes: dict[str, float], events: list[tuple[int, str, str]], step: float
) -> None:
    begun: dict[tuple[str, str], list[float]] = {}
    room = 15 if len(fired.events) < 100 else 26  # three digits are wider
    every = next(n for n in (1, 5, 10, 20, 50, 1000) if n * step >= room)
    said = -100.0
    before = ""
    for place, (number, path, kind) in enumerate(events, 1):
        x, y = LEFT + (place - 1) * step, lanes[path] + (ROW - BOX) / 2
        way, pre = "backward" if "backward" in kind else "forward", "pre-hook" in kind
        if place == 1 or place % every == 0:
            scene.write(x + step / 2, TOP - 10, str(number), TINY, "middle", faint=True)
        if way != before:
            if x - said > 80:
                scene.write(said := x + 1, TOP - 30, f"{way} ▸", SMALL + 1.5, bold=True)
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
