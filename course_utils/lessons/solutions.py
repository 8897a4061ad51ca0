"""Solutions: what is told of an answer, and the reference of a repair as the changes of its starter."""

import ast
import inspect
import linecache
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from course_utils.exercise import Exercise, Mistake


@dataclass(frozen=True)
class Solution:
    """The answer to one exercise: why it works, the reference, other right answers, its source text. For the
    course's own tests: `mistakes` that people make, the mutants of the reference that are `equivalent` to it,
    and which kinds of hard input are `not_tried`, both with the reason."""

    why: str
    reference: Any
    also_right: list[Any]
    source: str
    path: Path
    mistakes: list[Mistake]
    equivalent: dict[str, str]
    not_tried: dict[str, str]


def solution_of(module: ModuleType, path: Path, exercise: Exercise) -> Solution:
    """The solution that was read from `path` as this module. Where it says how the starter is `healed`, what
    becomes what, the answer is made of that and stands in the module too. Raises `ValueError` where the
    module lacks the answer or a reason, or a change does not fit the starter."""
    if not module.__doc__:
        raise ValueError("it does not say why it works: it has no docstring")
    source, name = _up_to_other_answers(path.read_text(encoding="utf-8")), exercise.answer_name
    if changes := getattr(module, "healed", {}):
        source = _with_imports(healed(exercise.starter_source, changes), exercise.path)
        # Below `solutions`, whose modules travel to other processes whole.
        made = module_of(source, f"{module.__name__}.healed", importable=True)
        setattr(module, name, getattr(made, name))
    if not hasattr(module, name):
        raise ValueError(f"it does not define {name}")
    return Solution(
        why=inspect.cleandoc(module.__doc__),
        reference=getattr(module, name),
        also_right=getattr(module, "also_right", []),
        source=source,
        path=path,
        mistakes=getattr(module, "mistakes", []),
        equivalent=getattr(module, "equivalent", {}),
        not_tried=getattr(module, "not_tried", {}),
    )


def healed(starter: str, changes: dict[str, str]) -> str:
    """The starter with these changes, old to new. Raises `ValueError` where an old part does not stand in it
    once."""
    for old, new in changes.items():
        if (count := starter.count(old)) != 1:
            raise ValueError(f"{old!r} stands {count} times in the starter, not once")
        starter = starter.replace(old, new)
    return starter


def module_of(source: str, name: str, *, importable: bool, **names: Any) -> ModuleType:
    """A module with this source, which `inspect` finds as it finds that of a cell. `importable`: by its name
    too, as the compiler does; `names` stand in it before it runs."""
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module = ModuleType(name)
    vars(module).update(names, __file__=file)
    if importable:
        sys.modules[name] = module
    exec(compile(source, file, "exec", dont_inherit=True), vars(module))
    return module


def _with_imports(source: str, exercise: Path) -> str:
    """The source after the lines of the exercise's file that import what it names."""
    named = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    found = []
    for node in ast.parse(exercise.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [one for one in node.names if (one.asname or one.name).partition(".")[0] in named]
            found += [ast.unparse(node)] if node.names else []
    return "\n".join([*found, "\n", source] if found else [source])


def _up_to_other_answers(text: str) -> str:
    """What a reader is shown as the answer: a solution file without its docstring, which is shown as prose,
    up to the line `# Other right answers`."""
    body = text.splitlines()[ast.parse(text).body[0].end_lineno :]
    end = next((i for i, line in enumerate(body) if line.startswith("# Other right answers")), len(body))
    return "\n".join(body[:end]).strip() + "\n"
