"""Notebooks as files: outputs that are the same on every run, written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbformat import NotebookNode

MOST_BYTES = 1_000_000
# In the environment of a kernel that runs a lesson to build it: the file that it is in.
BEING_BUILT = "COURSE_BEING_BUILT"
WIDGET = "application/vnd.jupyter.widget-view+json"

# The execution count of every cell that has run, so that a new cell changes none of those below it. Not null:
# nbval takes a cell without a count for one that has not run. JupyterLab shows no number for it.
COUNT = 0

# What in a text depends on the process or the machine, and what stands for it. The same pairs are in
# `tests/nbval.cfg`, where they are applied to a fresh run before it is compared with a stored one; so
# each replacement is left alone by all of them.
# A path begins where a word does, and nowhere else: searching is then linear in a long output.
_START = r"""(?<![^\s"'`<>()\[\]{}=,;|])"""
_FOLDERS = _START + r"""[^\s"'`<>()\[\]{}=,;|:]*/"""
STEADY: tuple[tuple[str, str], ...] = (
    (r"\bat 0x[0-9a-fA-F]+", "at 0x..."),
    (_START + r"""(?:[^\s"'`<>()\[\]{}=,;|:]*/)?ipykernel_\d+/\d+\.py""", "cell.py"),
    (_FOLDERS + r"site-packages/", "site-packages/"),
    (_FOLDERS + r"lib/python3\.\d+/", "python3/"),
    (_FOLDERS + r"(course_utils|exercises|solutions)/", r"\1/"),
    (_FOLDERS + r"tmp[a-z0-9_]{8}\b", "/tmp/..."),
)

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
# As a kernel reports it, without its version.
LANGUAGE = dict(name="python", file_extension=".py", mimetype="text/x-python", pygments_lexer="ipython3")

_PNG = b"\x89PNG\r\n\x1a\n"
# Chunks of a picture that say which program drew it, and when.
_PNG_REMARKS = (b"tEXt", b"zTXt", b"iTXt", b"tIME")


class TooLarge(Exception):
    """A notebook is larger than `MOST_BYTES`; the message says by what."""


def address(file: str, cell_id: str = "") -> str:
    """Of a cell in a notebook, as JupyterLab goes to it; without an id, of the notebook."""
    return f"{file}#cell-id={cell_id}" if cell_id else file


def steady(text: str) -> str:
    """The text without addresses and without the paths of this process and this machine."""
    for pattern, replacement in STEADY:
        text = re.sub(pattern, replacement, text)  # which keeps what it has compiled
    return text


def make_steady(notebook: NotebookNode) -> None:
    """Takes out of an executed notebook what would differ on the next run of the same cells."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = LANGUAGE
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.execution_count = COUNT
            cell.outputs = _outputs(cell.outputs)


def write_notebook(path: Path, notebook: NotebookNode) -> None:
    """Writes the notebook, or raises `TooLarge` and leaves the file as it was."""
    import nbformat

    text = nbformat.writes(notebook) + "\n"
    size = len(text.encode())
    if size > MOST_BYTES:
        raise TooLarge(f"{path.name} would have {size:,} bytes; a notebook may have {MOST_BYTES:,}")
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        whole.write_text(text, encoding="utf-8")
        whole.replace(path)
    finally:
        whole.unlink(missing_ok=True)


def cells_digest(notebook: NotebookNode | dict[str, Any]) -> str:
    """A digest of the cells without their outputs: another one where somebody has edited them."""
    kept = [
        [cell["cell_type"], "".join(cell["source"]), cell["metadata"].get("tags", [])]
        for cell in notebook["cells"]
    ]
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:32]


def _outputs(outputs: list[NotebookNode]) -> list[NotebookNode]:
    found: list[NotebookNode] = []
    for output in _joined(outputs):
        if output.output_type == "stream":
            output.text = steady(output.text)
        elif output.output_type in ("display_data", "execute_result"):
            # A widget is drawn by a kernel that is gone; its picture and its text stay.
            output.data.pop(WIDGET, None)
            if not output.data:
                continue
            for kind, value in output.data.items():
                if kind == "image/png":
                    output.data[kind] = plain_png(value)
                elif isinstance(value, str):
                    output.data[kind] = steady(value)
        if output.output_type == "execute_result":
            output.execution_count = None
        found.append(output)
    return found


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """What was printed between two other outputs as one piece: first stdout, then stderr. How a stream is cut
    into messages, and which of the two comes first, is a matter of timing."""
    found: list[NotebookNode] = []
    by_name = attrgetter("name")
    for printed, some in groupby(outputs, lambda output: output.output_type == "stream"):
        if not printed:
            found += some
            continue
        for _, parts in groupby(sorted(some, key=by_name, reverse=True), by_name):
            first, *more = parts
            first.text += "".join(part.text for part in more)
            found.append(first)
    return found


def plain_png(text: str) -> str:
    """A picture in base64 without the chunks that say what drew it, and when; any other text as it is."""
    try:
        data = base64.b64decode(text)
    except ValueError:  # it isn't base64, or not even ASCII
        return text
    if not data.startswith(_PNG):
        return text
    kept, at = [_PNG], len(_PNG)
    while at < len(data):
        length = int.from_bytes(data[at : at + 4])
        chunk = data[at : at + 12 + length]  # length, kind, content, checksum
        if chunk[4:8] not in _PNG_REMARKS:
            kept.append(chunk)
        at += len(chunk)
    return base64.b64encode(b"".join(kept)).decode()
