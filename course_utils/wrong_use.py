"""Wrong use of what lessons show, told in one sentence: what was given, and what is wanted.

What is wanted is read off a function's own annotations, so that it is said once. The tests of an argument are
light: an attribute that the function would use anyway, so that whatever is like the right thing is let
through.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from course_utils.words import with_article

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Test = Callable[[Any], bool]


class WrongUse(TypeError, ValueError):
    """A call that cannot be meant: the message says what was given and what is wanted."""

    def _render_traceback_(self) -> list[str]:
        # What IPython shows for this exception: the frames of this package tell a reader nothing.
        from course_utils.stacks import place, raised

        frame = raised(self).frame
        return [str(self), *([f"    at {place(frame)}"] if frame else [])]


def public(function: _Function) -> _Function:
    """The function, which raises `WrongUse` for arguments that don't fit its annotations, before it does
    anything. What it raises itself is left as it is."""

    wanted: _Wanted | None = None

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # IPython and pytest leave this frame out
        nonlocal wanted
        wanted = wanted or _Wanted(function)
        if (wrong := wanted.wrong(args, kwargs)) is not None:
            raise WrongUse(f"{_called(function)} {wrong}")
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]


def said(value: Any) -> str:
    """What was given, in words."""
    if value is None or isinstance(value, (str, int, float)):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:60]}…"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    kind = type(value).__name__
    if kind in ("Tensor", "Parameter"):
        return f"a tensor of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    return with_article(kind)


def _has(attribute: str) -> _Test:
    return lambda value: hasattr(value, attribute) and not isinstance(value, type)


def _is_listed(value: Any) -> bool:
    return hasattr(value, "__iter__") and not isinstance(value, str)


def _is_device(value: Any) -> bool:
    import torch  # here: what lists lessons in a terminal does without it

    try:
        torch.device(value)
    except (RuntimeError, TypeError):
        return False
    return True


# What the types in annotations are called, and how what is like them is known.
_KINDS: dict[str, tuple[str, _Test]] = {
    "Any": ("a value", lambda value: True),
    "Answer": ("the function or class of an exercise, or its name,", lambda value: True),
    "Callable": ("a function", callable),
    "Collection": ("a list", _is_listed),
    "DataLoader": ("a DataLoader", _has("num_workers")),
    "ExportedProgram": ("what torch.export.export(...) gave", _has("graph_module")),
    "KernelTraffic": ("what measure.kernel(...) gave", _has("fewest_sectors")),
    "Loss": ("a function", callable),
    "Loading": ("what measure.loading(...) gave", _has("batches")),
    "Mapping": ("a dictionary", _has("items")),
    "Module": ("a model, an nn.Module,", _has("named_modules")),
    "None": ("None", lambda value: value is None),
    "Optimizer": ("a torch.optim optimizer", _has("param_groups")),
    "Path": ("a path", lambda value: isinstance(value, str) or hasattr(value, "__fspath__")),
    "Peak": ("what measure.peak_bytes(...) gave", _has("by_category")),
    "Ratio": ("what measure.time_ratio(...) gave", _has("ratio")),
    "Roofline": ("what measure.roofline() gave", _has("bend")),
    "Run": ("what measure.record_run(...) gave", _has("grad_norms")),
    "Sequence": ("a list", _is_listed),
    "StepCost": ("what measure.step_cost(...) gave", _has("seconds")),
    "Tensor": ("a tensor", _has("untyped_storage")),
    "Trace": ("what run_ranks(..., trace=True) gave", _has("moments")),
    "Watched": ("what watch_compile(...) gave", _has("graphs")),
    "bool": ("True or False", lambda value: True),
    "device": ('a device, such as "cpu" or "cuda",', _is_device),
    "dict": ("a dictionary", _has("items")),
    "float": ("a number", _has("__float__")),
    "int": ("a whole number", _has("__index__")),
    "object": ("a value", lambda value: True),
    "profile": ("a torch.profiler.profile", _has("events")),
    "tuple": ("a tuple", lambda value: isinstance(value, tuple)),
    "str": ("a text", lambda value: isinstance(value, str)),
}


def _called(function: Callable[..., Any]) -> str:
    """The function as a lesson calls it: `check`, `draw.graph`."""
    parts = function.__module__.split(".")
    if parts[1] in ("notebook", "reader", "watching"):
        return function.__name__
    return f"{parts[1] if parts[1] in ('draw', 'explore', 'measure') else parts[-1]}.{function.__name__}"


class _Wanted:
    """What the parameters of a function are to be; `rest`: what is given by any other name; `more`: whether
    any number of values is taken."""

    def __init__(self, function: Callable[..., Any]) -> None:
        one = inspect.Parameter
        self.placed: list[_Parameter] = []
        self.named: dict[str, _Parameter] = {}
        self.rest: _Parameter | None = None
        self.more = False
        for name, given in inspect.signature(function).parameters.items():
            parameter = _Parameter(name, given.annotation, given.default is one.empty)
            self.more |= given.kind is one.VAR_POSITIONAL
            if given.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD):
                self.placed.append(parameter)
            if given.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD):
                self.named[name] = parameter
            if given.kind is one.VAR_KEYWORD:
                self.rest = parameter
        self.by_name = [parameter for parameter in self.named.values() if parameter not in self.placed]

    def wrong(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """What is wrong with a call; None where it can be meant."""
        for parameter, value in zip(self.placed, args, strict=False):
            if not parameter.fits(value):
                return f"needs {parameter.words} as `{parameter.name}`; given was {said(value)}."
        for name, value in kwargs.items():
            if (parameter := self.named.get(name, self.rest)) is None:
                return f"takes {self.taken()}; given was `{name}=`."
            if not parameter.fits(value):
                return f"needs {parameter.words} as `{name}`; given was {said(value)}."
            if parameter in self.placed[: len(args)]:
                return f"needs one value as `{name}`; given were two."
        if len(args) > len(self.placed) and not self.more:
            return f"takes {self.taken()}; given was {said(args[len(self.placed)])}."
        for parameter in (*self.placed[len(args) :], *self.by_name):
            if parameter.required and parameter.name not in kwargs:
                return f"needs {parameter.words} as `{parameter.name}`; given was nothing."
        return None

    def taken(self) -> str:
        """All that is taken."""
        words = [f"`{one.name}`" for one in self.placed]
        words += [f"`{one.name}=`" for one in self.by_name]
        words += ["values by name"] * (self.rest is not None)
        return f"nothing but {' and '.join(words)}" if words else "nothing"


class _Parameter:
    def __init__(self, name: str, annotation: Any, required: bool) -> None:
        self.name, self.required = name, required
        text = inspect.formatannotation(annotation).strip("'")
        while "[" in text:  # what is in brackets is not looked at
            text = re.sub(r"\[[^\[\]]*\]", "", text)
        kinds = [kind.split(".")[-1].strip() for kind in text.split("|")]
        if "device" in kinds:  # not every text is the name of one
            kinds.remove("str")
        self.words = " or ".join(dict.fromkeys(_KINDS[kind][0] for kind in kinds if kind != "None"))
        tests = [_KINDS[kind][1] for kind in kinds]
        self.fits: _Test = tests[0] if len(tests) == 1 else lambda value: any(test(value) for test in tests)
