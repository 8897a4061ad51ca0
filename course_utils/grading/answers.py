"""A reader's notebook -> the answers in it.

An answer is the last definition of its name at top level, with the imports, definitions and assignments at
top level that it needs, transitively: each as it stands when the notebook is run from top to bottom and the
cell that checks the answer is reached. What needs what follows from the names that the code reads. The
statements that were chosen run in the order of the notebook, so that the answer is what its check sees after
*Restart and run all*, without the demonstrations.

- A definition is every statement at top level that binds the name: `def`, `class`, an assignment of any
  form, an import, and `if`, `try`, `with`, `for`, ... with one of these inside. One that may leave the name
  as it was (an `if`, a loop, `+=`) counts together with those above it, up to the nearest that cannot.
- The cell that checks an answer is the last that calls `check(answer)`; where none does, the one that the
  course's metadata marks. Where the answer is defined below it, the end of the answer's own cell stands for
  it; where there is none, the end of the notebook.
- Code that runs where it stands (a default, a decorator, a base class, the right side of an assignment)
  sees the last definition above it; the body of a function sees the last one above the cell that checks the
  answer, whatever a later cell makes of the name. Where nothing stands above, because cells were moved, a
  definition from below is used; what needs it where it stands runs after it.
- `Answer.method = f`, `table["x"] = 1`, `operator.register_fake(f)` and `@operator.register_fake` belong to
  a name that the notebook defines; settings of a module (`torch.backends...`) do not belong to an answer.
- `from x import *` is always taken.
- A cell that is not Python makes unreadable what it defines, and nothing else.
"""

import json
import sys
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from course_utils.exercise import snake_case
from course_utils.grading.cells import Unit
from course_utils.grading.cells import units as units_of
from course_utils.grading.recipe import Recipe
from course_utils.lessons.catalog import Course, Lesson, nearest

_FOREVER = sys.maxsize


class UnreadableError(Exception):
    """This is not a notebook that can be graded; the message says why, as a sentence about the file."""


@dataclass
class Submission:
    """A notebook that was read. `marks` are the exercises that its cells name, `lesson` the lesson that
    it names itself; either may be missing, or made up. `checked` is the position of the unit that checks an
    answer, by the name of its exercise; `sources` are the cells, by the names that their units have for them.
    """

    path: Path
    units: list[Unit]
    marks: list[str] = field(default_factory=list)
    lesson: str | None = None
    flags: int = 0
    checked: dict[str, int] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._binders: dict[str, list[Unit]] = {}
        self._changers: dict[str, list[Unit]] = {}
        for unit in self.units:
            for table, names in ((self._binders, unit.binds), (self._changers, unit.changes)):
                for name in names:
                    table.setdefault(name, []).append(unit)

    @property
    def names(self) -> set[str]:
        """Every name that is defined at top level."""
        return set(self._binders)

    def recipe(self, name: str, exercise: str = "") -> Recipe | None:
        """How to make the answer called `name`; None where the notebook does not define it. A cell that is
        marked as the answer's to `exercise` and is not Python counts as its definition when there is no
        other."""
        if name in self._binders:
            chosen = _Selection(self, self._reached(name)).units_for(name)
        else:
            chosen = [unit for unit in self.units if unit.broken and unit.answers == exercise][-1:]
        if not chosen:
            return None
        return Recipe(name, tuple(unit.piece for unit in chosen), self.flags)

    def needed(self, name: str, exercise: str, there: Set[str]) -> list[Unit]:
        """What has to run for the answer called `name` to be worked on and checked, in the order to run it:
        the set-up, which is the cell that imports `check`, the answer's definition, what its check reads, and
        what these need. A set-up whose names are all `there` has run already."""
        end = self._reached(name) if name in self._binders else _FOREVER
        checks = [unit for unit in self.units if exercise in map(snake_case, unit.checks)]
        read = set().union(*(now for now, _ in (unit.reads for unit in checks[-1:])))
        cells = {unit.piece.filename for unit in self.units if unit.imports and "check" in unit.binds}
        setup = [unit for unit in self.units if unit.piece.filename in cells]
        if all(unit.binds <= there for unit in setup):
            chosen = _Selection(self, end).units_for(name, *sorted(read))
            return [unit for unit in chosen if unit not in setup]
        return _Selection(self, end).units_for(name, *sorted(read), chosen=setup)

    def _reached(self, name: str) -> int:
        """The position before which all stands that the check of the answer called `name` sees."""
        last, check = self._binders[name][-1], self.checked.get(snake_case(name))
        if check is None:
            return _FOREVER
        if check >= last.position:
            return check + 1
        return 1 + max(unit.position for unit in self.units if unit.piece.filename == last.piece.filename)


def read(path: Path) -> Submission:
    """The notebook at `path`. Raises `UnreadableError` where it is none."""
    cells, metadata = _cells(path)
    marks: list[str] = []
    units: list[Unit] = []
    marked: dict[str, int] = {}
    called: dict[str, int] = {}
    flags = 0
    sources = {f"cell {number}": source for number, (source, _, _) in cells}
    for number, (source, mark, role) in cells:
        if isinstance(mark, str):
            marks.append(mark)
        found, cell_flags = units_of(source, f"cell {number}", len(units))
        if isinstance(mark, str) and role in (None, "starter"):
            for unit in found:
                unit.answers = mark
        units += found
        flags |= cell_flags
        called.update((snake_case(name), unit.position) for unit in found for name in unit.checks)
        if isinstance(mark, str) and role == "check":
            marked[mark] = len(units) - 1
    lesson = _course(metadata).get("lesson")
    named = lesson if isinstance(lesson, str) else None
    return Submission(path, units, marks, named, flags, marked | called, sources)


def lessons_of(submission: Submission, course: Course) -> list[Lesson]:
    """The lessons that the notebook belongs to: the one that it names, and those that its cells name;
    where nothing is named, those with an exercise whose answer is defined in it. Possibly none."""
    named = [lesson for lesson in course.lessons if submission.lesson in (lesson.slug, lesson.topic)]
    marked = [lesson for lesson in course.lessons if set(submission.marks) & set(lesson.exercise_names)]
    if named or marked:
        return [lesson for lesson in course.lessons if lesson in named or lesson in marked]
    defined = {snake_case(name) for name in submission.names}
    return [lesson for lesson in course.lessons if defined & set(lesson.exercise_names)]


MOST_NAMED = 20


def _beside(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"; there is no folder {folder}"
    names = sorted(one.stem for one in folder.glob("*.ipynb"))
    if not names:
        return "; this folder holds no notebook"
    return nearest(path.stem, names, all_of_them=len(names) <= MOST_NAMED)


def _cells(path: Path) -> tuple[list[tuple[int, tuple[str, Any, Any]]], Any]:
    """The code cells as (number among all cells, (source, exercise, role)), and the notebook's metadata."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UnreadableError("this is a pipe or a device, not a notebook")  # it may never end
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UnreadableError(f"there is no such file{_beside(path)}") from None
    except IsADirectoryError:
        raise UnreadableError("this is a folder, not a notebook") from None
    except OSError as error:
        raise UnreadableError(f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UnreadableError("this is not a notebook: it is not text") from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableError("this is not a notebook: it is not JSON") from None
    if not isinstance(content, dict) or not isinstance(content.get("nbformat"), int):
        raise UnreadableError("this is not a notebook: it has no `nbformat`")
    if content["nbformat"] != 4:
        content = _as_version_4(text)
    # Not through `nbformat.read`: validating a notebook against its schema takes longer than grading it.
    if not isinstance(content.get("cells"), list):
        raise UnreadableError("this is not a notebook: it has no list of cells")
    found = []
    for number, cell in enumerate(content["cells"], 1):
        if not isinstance(cell, dict) or not isinstance(cell.get("cell_type"), str):
            raise UnreadableError(f"this is not a notebook: cell {number} has no type")
        if cell["cell_type"] != "code":
            continue
        source = cell.get("source")
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if not isinstance(source, str):
            raise UnreadableError(f"this is not a notebook: cell {number} has no source")
        ours = _course(cell.get("metadata"))
        found.append((number, (source, ours.get("exercise"), ours.get("role"))))
    return found, content.get("metadata")


def _as_version_4(text: str) -> dict[str, Any]:
    try:
        import nbformat

        return nbformat.reads(text, as_version=4)
    except Exception as error:  # whatever an old or a future format makes it raise; or it is not installed
        raise UnreadableError(f"this notebook's format cannot be read: {error}") from None


def _course(metadata: Any) -> dict[str, Any]:
    ours = metadata.get("course") if isinstance(metadata, dict) else None
    return ours if isinstance(ours, dict) else {}


class _Selection:
    """What an answer needs that is checked at the position `end`."""

    def __init__(self, submission: Submission, end: int) -> None:
        self.submission = submission
        self.end = end
        self.taken: set[Unit] = set()
        self.moved_up: dict[int, set[Unit]] = {}  # by the position of the unit that has to come after them
        self._seen: set[tuple[Unit, int]] = set()

    def units_for(self, *names: str, chosen: Iterable[Unit] = ()) -> list[Unit]:
        """The units that make `names`, and those `chosen` with what they need, in the order to run them."""
        waiting = [(unit, self.end) for name in names for unit in self._definition(name, self.end)]
        waiting += [(unit, self.end) for unit in chosen]
        waiting += [(unit, self.end) for unit in self.submission._binders.get("*", ())]
        while waiting:
            unit, moment = waiting.pop()
            if (unit, moment) in self._seen:
                continue
            self._seen.add((unit, moment))
            self.taken.add(unit)
            now, later = unit.reads
            for names, when in ((now, unit.position), (later, moment)):
                waiting += [(needed, when) for read in names for needed in self._definition(read, when)]
        return self._in_order()

    def _definition(self, name: str, moment: int) -> list[Unit]:
        """What a read of `name` at `moment`, a position, finds."""
        binders = self.submission._binders.get(name, [])
        above = [unit for unit in binders if unit.position < moment]
        found: list[Unit] = []
        for unit in reversed(above or binders):
            found.append(unit)
            if not unit.partial:
                break
        if not found:
            return []
        until = moment
        if not above and moment == self.end:
            until = _FOREVER
        elif not above:
            self.moved_up.setdefault(moment, set()).update(found)
        if not all(unit.imports for unit in found):
            for unit in self.submission._changers.get(name, ()):
                if found[-1].position < unit.position < until and unit not in found:
                    found.append(unit)
        return found

    def _in_order(self) -> list[Unit]:
        in_notebook = attrgetter("position")
        if not self.moved_up:
            return sorted(self.taken, key=in_notebook)
        import networkx  # 50 ms: only where cells were moved

        after = networkx.DiGraph()  # leads from each unit to those that have to come before it
        for unit in sorted(self.taken, key=in_notebook):
            above = sorted(self.moved_up.get(unit.position, ()), key=in_notebook)
            after.add_edges_from([("all", unit), *((unit, one) for one in above)])
        return [unit for unit in networkx.dfs_postorder_nodes(after, "all") if unit != "all"]
