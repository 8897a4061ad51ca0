"""The reader's own copies of the lessons, in `workspace/`. Nothing here ever writes over a file.

Where an exercise starts from a copy that each reader has of their own, the lesson is copied with that one.

Whether the course has another version of a lesson than the reader is read off the notebooks themselves: a
built notebook carries a digest of its cells, and the reader's copy keeps it, whatever is written into it.
"""

import contextlib
import itertools
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from course_utils import places
from course_utils.lessons import glossary
from course_utils.lessons.catalog import load, nearest
from course_utils.reader.record import open_record

LESSON = re.compile(r"(\d\d)_(\w+)")
_FIRST_COPY = re.compile(r"^\s+copy = 0\b", re.MULTILINE)


class NoSuchLesson(Exception):
    """The course has no lesson of that name; the message says which it has."""


@dataclass
class Copied:
    """What `copy_missing` did and found: lessons by their slug."""

    copied: list[str] = field(default_factory=list)
    newer: list[str] = field(default_factory=list)  # the course's is not the one that the reader has


def shipped_lessons(root: Path) -> list[Path]:
    """The course's notebooks, in their order."""
    return sorted(p for p in (root / "notebooks").glob("*.ipynb") if LESSON.fullmatch(p.stem))


def copy_missing(root: Path) -> Copied:
    """Copies the lessons that `workspace/` lacks. Raises OSError where it cannot be written to."""
    workspace = places.workspace(root)
    workspace.mkdir(exist_ok=True)
    found = Copied()
    here: set[tuple[str, str]] | None = None
    if (extra := root / "notebooks" / glossary.NAME).is_file():
        _copy(root, extra, workspace / glossary.NAME)
    for notebook in shipped_lessons(root):
        if _copy(root, notebook, workspace / notebook.name):
            found.copied.append(notebook.stem)
            continue
        version = _version(notebook)
        if here is None:
            here = {version for path in workspace.glob("*.ipynb") if (version := _version(path))}
        # A copy that does not say what it was made from may be anything: nothing is claimed about it.
        if version and _version(workspace / notebook.name) and version not in here:
            found.newer.append(notebook.stem)
    return found


def copy_beside(root: Path, name: str) -> Path:
    """Copies a lesson (its number, topic or slug) beside the reader's, under a name that is free. Returns the
    new file. Raises `NoSuchLesson`, or OSError where it cannot be written."""
    lessons = shipped_lessons(root)
    word = Path(name).name.removesuffix(".ipynb")
    for notebook in lessons:
        number, topic = LESSON.fullmatch(notebook.stem).groups()
        if word in (notebook.stem, topic, number, str(int(number))):
            break
    else:
        raise NoSuchLesson(f"no lesson is called {name!r}{nearest(word, [p.stem for p in lessons], True)}")
    workspace = places.workspace(root)
    workspace.mkdir(exist_ok=True)
    for number in itertools.count(1):
        target = workspace / f"{notebook.stem}.new{number if number > 1 else ''}.ipynb"
        if _copy(root, notebook, target):
            break
    return target


def _copy(root: Path, source: Path, target: Path) -> bool:
    """Copies a notebook whole or not at all; False where there is one already."""
    if target.exists() or target.is_symlink():
        return False
    whole = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        whole.write_bytes(_as_jupyter_saves(_with_own_copies(root, source.read_bytes())))
        try:
            target.hardlink_to(whole)  # unlike a rename, this never replaces a file
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            whole.rename(target)
    finally:
        whole.unlink(missing_ok=True)
    _trust(target)
    return True


def _with_own_copies(root: Path, notebook: bytes) -> bytes:
    """The notebook with this reader's own copy where an exercise starts from one. Only a lesson that has such
    an exercise costs the time to load it, and torch with it."""
    with contextlib.suppress(Exception):  # `starter(...)` in the lesson gives it, too
        read, changed = json.loads(notebook), False
        for cell in read["cells"]:
            made_for = cell["metadata"].get("course", {})
            if made_for.get("role") != "starter" or not _FIRST_COPY.search("".join(cell["source"])):
                continue
            own = open_record().own_copy(load(root).exercise(made_for["exercise"]))
            cell["source"], changed = own.rstrip("\n").splitlines(keepends=True), True
        if changed:
            return json.dumps(read).encode()
    return notebook


def _as_jupyter_saves(notebook: bytes) -> bytes:
    """The notebook with the language as a kernel here describes it. JupyterLab writes that into a notebook
    that it opens, and what it has changed it asks to save, also where the reader has touched nothing."""
    with contextlib.suppress(Exception):  # a matter of convenience: then it is copied as it is
        from ipykernel.ipkernel import IPythonKernel

        read = json.loads(notebook)
        read["metadata"]["language_info"] = IPythonKernel.language_info
        return (json.dumps(read, indent=1, ensure_ascii=False) + "\n").encode()
    return notebook


def _trust(path: Path) -> None:
    """Tells Jupyter that the outputs in this notebook come from where the notebook comes from. Without it
    JupyterLab shows them without their pictures' and reports' styles until they are run."""
    import nbformat
    from nbformat.sign import NotebookNotary

    with contextlib.suppress(Exception):  # a matter of looks: nothing of it is worth a failure
        notary = NotebookNotary()
        notary.log.setLevel("CRITICAL")
        notary.sign(nbformat.read(path, as_version=4))


def _version(path: Path) -> tuple[str, str] | None:
    """The lesson and the version of it that a notebook was made from; None where it does not say."""
    try:
        made_from = json.loads(path.read_text(encoding="utf-8"))["metadata"]["course"]
        return str(made_from["lesson"]), str(made_from["cells_digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
