"""What torch says about breaks, guards and recompilations, in plain words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from course_utils.words import with_article

DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
BEFORE = "the value from before the break"
STATE = "grad mode, autocast, default dtype and default device are as they were"

# --- breaks -------------------------------------------------------------------------------------------

# What torch's reason has in it, and what that means. The groups of the pattern fill in the words.
_BREAKS = (
    (r"graph break in loop|graph break in a for/while loop", "a break inside a loop"),
    (r"generic_jump|Data-dependent branching", "the branch depends on a tensor's values"),
    (r"Tensor\.(item|tolist)\(\)", "`.{0}()` takes numbers out of a tensor"),
    (r"Tensor\.item|_local_scalar_dense|Tensor\.tolist", "a number is taken out of a tensor"),
    (r"torch\._dynamo\.graph_break\(\)", "`torch._dynamo.graph_break()` asks for it"),
    (r"torch\.compiler\.disable", "calls a function marked `torch.compiler.disable`"),
    (r"trace builtin operator `([\w.]+)`", "calls `{0}`, which no graph can hold"),
    (r"trace the (?:Python )?builtin `([\w.]+?)\.?`", "calls `{0}`, into which the compiler cannot look"),
    (r"marked as skipped[\s\S]*qualname: ([\w.]+)", "calls `{0}`, into which the compiler does not look"),
    (r"Operator `aten\.(\w+)[\w.]*`'s output shape", "the shape that `{0}` gives depends on values"),
)


def of_break(reason: str) -> str:
    """Why a graph ended, in plain words; torch's own first line where there are none for it."""
    for pattern, words in _BREAKS:
        if found := re.search(pattern, reason):
            return words.format(*found.groups())
    return first_line(reason)


def first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0].strip() if lines else ""


# --- guards -------------------------------------------------------------------------------------------

_GUARD = re.compile(r"\+- ([A-Z][A-Z_]+): (.*)$")
_COMMENT = re.compile(r"\s+# .*$")
_TENSOR = re.compile(
    r"check_tensor\((?P<name>.+?), (?P<kind>\w+), DispatchKeySet\((?P<keys>[^)]*)\), torch\.(?P<dtype>\w+), "
    r"device=(?P<device>\w+), requires_grad=(?P<grad>\w+), size=\[(?P<size>.*?)\], stride=\[(?P<stride>.*?)\]"
)
MOST_NAMES = 6
# What nobody would think of replacing.
_ALWAYS = ("torch", "iter", "range", "len", "isinstance", "super")
_STATE = ("GLOBAL_STATE", "DEFAULT_DEVICE", "TORCH_FUNCTION_MODE_STACK", "GRAD_MODE", "SAVED_TENSORS")
_OPEN = re.compile(r"2 <= (\S+?)\.(size|stride)\(\)\[(\d+)\]$")


def of_guards(tree: str) -> tuple[str, ...]:
    """The guards of a compiled piece in words, from what torch prints of its tree of guards."""
    said: list[str] = []
    same: list[str] = []
    parameters, state, inner = 0, False, 0
    for line in tree.splitlines():
        found = _GUARD.search(line)
        if not found:
            continue
        kind, code = found[1], _COMMENT.sub("", found[2]).strip()
        if kind in _STATE or "saved_tensors_hooks" in code or "CURRENT_DEVICE" in code:
            state = True
        elif "_indices')" in code or kind == "DIMENSION_DYNAMIC_MARKING_GUARD":
            continue
        elif kind == "TENSOR_MATCH" and "._parameters[" in code:
            parameters += 1
        elif kind in ("ID_MATCH", "CLOSURE_MATCH", "FUNCTION_MATCH", "BUILTIN_MATCH") or " is G[" in code:
            same += _of_identity(code)
        elif _is_inner(code):
            inner += 1
        else:
            said += [words for words in _of_guard(kind, code) if words not in said]
    if parameters:
        many = f"{parameters} parameters" if parameters > 1 else "1 parameter"
        said.append(f"{many} with dtype, shape and device as they were")
    if inner:
        said.append("the objects inside are put together as they were")
    if same:
        names = [f"`{name}`" for name in dict.fromkeys(same)]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        said.append(f"the same {', '.join(names[:MOST_NAMES])}{more} as then")
    if state:
        said.append(STATE)
    return tuple(said)


def _is_inner(code: str) -> bool:
    """Whether a guard is about how a module or a dictionary is put together, which a reader never wrote."""
    marks = ("___dict_contains", "__dict__", "_hooks", "__mro__", "type(L[", "G['__import_", "__optimizer_")
    if any(mark in code for mark in marks):
        return True
    made_of = any(f"._{kind}" in code for kind in ("modules", "parameters", "buffers"))
    return made_of and ("check_type_id" in code or "dict.keys(" in code)


def _of_identity(code: str) -> list[str]:
    found = re.match(r"___check_obj_id\((.+?), \d+\)", code)
    if not found or "__import_" in found[1] or "_hooks" in found[1]:
        return []
    name = named(found[1])
    return [] if BEFORE in name or name in _ALWAYS else [name]


def _of_guard(kind: str, code: str) -> list[str]:
    if found := _TENSOR.match(code):
        return [_of_tensor(found)]
    if found := _OPEN.match(code):
        return [f"{found[2]} {found[3]} of {quoted(found[1])} is any number from 2 on"]
    if found := re.match(r"___check_type_id\((.+?), \d+\)(?:, type=<class '([\w.]+)'>)?", code):
        kind_of = (found[2] or "").rpartition(".")[2]
        return [f"{quoted(found[1])} is {with_article(kind_of) if kind_of else 'of the same type'}"]
    if found := re.match(r"len\((.+?)\) == (\d+)$", code):
        return [f"{quoted(found[1])} has {found[2]} element{'s' * (found[2] != '1')}"]
    if found := re.match(r"not math.isnan\((.+)\)$", code):
        return [f"{quoted(found[1])} is a number"]
    if found := re.match(r"not ([\w.\[\]']+)$", code):
        return [f"{quoted(found[1])} is empty"]
    if found := re.match(r"([^=<>!]+?) (?:!=|is not) (\S+)$", code):
        return [f"{quoted(found[1])} is not {found[2]}"]
    if found := re.match(r"([^=<>!]+?) (?:==|is) (.+)$", code):
        value = found[2] if _is_value(found[2]) else quoted(found[2])
        return [f"{quoted(found[1])} is {value}"]
    return [f"{quoted(code)}"]


def _is_value(text: str) -> bool:
    return bool(re.fullmatch(r"-?[\d.e+-]+|'.*'|\".*\"|True|False|None|inf|nan", text))


def _of_tensor(found: re.Match[str]) -> str:
    kind = "parameter" if found["kind"] == "Parameter" else "tensor"
    size = [part.strip() for part in found["size"].split(",") if part.strip()]
    shape = ", ".join("any" if part == "None" else part for part in size)
    shape = f"({shape},)" if len(size) == 1 else f"({shape})"
    where = "the CPU" if found["device"] == "None" or "CPU" in found["keys"] else f"device {found['device']}"
    gradient = "with" if found["grad"] in ("True", "1") else "without"
    said = f"{quoted(found['name'])} is {with_article(found['dtype'])} {kind} of shape {shape} on {where}"
    said += f", {gradient} gradient"
    stride = [part.strip() for part in found["stride"].split(",") if part.strip()]
    if not _contiguous(size, stride):
        said += f", with strides ({', '.join('any' if part == 'None' else part for part in stride)})"
    return said


def _contiguous(size: Sequence[str], stride: Sequence[str]) -> bool:
    """Whether the numbers among these strides are those of a tensor without gaps."""
    expected: int | None = 1
    for n, step in zip(reversed(size), reversed(stride), strict=False):
        if step != "None" and expected is not None and n != "1" and int(step) != expected:
            return False
        expected = None if n == "None" or expected is None else expected * int(n)
    return True


def named(code: str) -> str:
    """`self.l.weight` for `L['self']._modules['l']._parameters['weight']`."""
    code = re.sub(r"G\['__builtins_dict___\d+'\]\['(\w+)'\]", r"\1", code)
    code = re.sub(r"\b[LG]\[['\"](\w+)['\"]\]", r"\1", code)
    code = re.sub(r"\.(?:_modules|_parameters|_buffers)\['(\w+)'\]", r".\1", code)
    code = re.sub(r"\b(\w+)\.size\(\)\[(\d+)\]", r"\1.shape[\2]", code)
    code = re.sub(r"list\(dict\.keys\((.+?)\)\)\[(\d+)\]", r"key \2 of \1", code)
    code = re.sub(r"\.__code__|\.__func__|\.__dict__|\.__defaults__", "", code)
    return re.sub(r"___stack\d+", BEFORE, code).strip()


def quoted(code: str) -> str:
    """The name as it stands in a sentence."""
    name = named(code)
    return name if name == BEFORE else f"`{name}`"


# --- recompilations -----------------------------------------------------------------------------------


def of_failure(failure: str, given: Mapping[str, Any] | None = None) -> str:
    """Why a compiled version did not fit, in words, from what torch notes of it: `1/0: n == 2`. `given`:
    the values that are known by name."""
    code = _COMMENT.sub("", first_line(failure.partition(": ")[2]))
    for pattern, say in _FAILURES:
        if found := re.search(pattern, code):
            return say(found)
    if found := re.match(r"([^=<>]+?) (?:==|is) (.+)$", code):
        name, was = named(found[1]), found[2].strip()
        if not _is_value(was):
            was = quoted(was)
        if name in (given or {}) and isinstance(given[name], (int, float, str, bool, type(None))):
            return f"`{name}` is {_short(given[name])}, was {was}"
        return f"{quoted(found[1])} is no longer {was}"
    return f"{quoted(code)} does not hold" if code else "a guard has failed"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 24 else text[:23] + "…"


def _size(found: re.Match[str]) -> str:
    return f"size {found[2]} of {quoted(found[1])} is {found[4]}, was {found[3]}"


_FAILURES = (
    (r"tensor '(.+?)' size mismatch at index (\d+)\. expected (\d+), actual (\d+)", _size),
    (
        r"tensor '(.+?)' stride mismatch at index (\d+)\. expected (\d+), actual (\d+)",
        lambda m: f"stride {m[2]} of {quoted(m[1])} is {m[4]}, was {m[3]}",
    ),
    (
        r"tensor '(.+?)' dtype mismatch\. expected (\w+), actual (\w+)",
        lambda m: f"{quoted(m[1])} is {DTYPES.get(m[3], m[3])}, was {DTYPES.get(m[2], m[2])}",
    ),
    (
        r"tensor '(.+?)' rank mismatch\. expected (\d+), actual (\d+)",
        lambda m: f"{quoted(m[1])} has {m[3]} dimensions, had {m[2]}",
    ),
    (
        r"tensor '(.+?)' requires_grad mismatch\. expected requires_grad=(\d)",
        lambda m: f"{quoted(m[1])} " + ("requires no" if m[2] == "1" else "requires a") + " gradient now",
    ),
    (r"^len\((.+?)\) == (\d+)", lambda m: f"{quoted(m[1])} has no longer {m[2]} elements"),
    (
        r"2 <= (\w+)\.size\(\)\[(\d+)\]",
        lambda m: f"size {m[2]} of `{m[1]}` is 0 or 1",
    ),
    (r"^not (\w+)$", lambda m: f"{quoted(m[1])} is no longer empty"),
)


# --- arguments ----------------------------------------------------------------------------------------


def of_argument(name: str, value: Any) -> str:
    """`x float32 (4, 8)`, `n = 2`: an argument as short as it can be told. Strides are told where they
    aren't those of a contiguous tensor."""
    from torch import Tensor, strided

    if isinstance(value, Tensor):
        shape = tuple(value.shape)
        words = f"{name} {str(value.dtype).removeprefix('torch.')} {shape}"
        if value.layout is strided and not value.is_contiguous():
            words += f" strides {value.stride()}"
        if value.requires_grad:
            words += " with gradient"
        return words if value.device.type == "cpu" else f"{words} on {value.device}"
    if isinstance(value, (bool, int, float, str, type(None))):
        text = f"{value:.6g}" if isinstance(value, float) and math.isfinite(value) else repr(value)
        return f"{name} = {text if len(text) <= 24 else text[:23] + '…'}"
    if isinstance(value, (list, tuple, dict, set)):
        return f"{name} {type(value).__name__} of {len(value)}"
    return f"{name} {type(value).__name__}"
