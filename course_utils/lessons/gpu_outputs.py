"""What cells that need a GPU showed on one: `notebooks/gpu_outputs/NN_topic.json`, beside the sources.

`course build --gpu-outputs` runs solved lessons on a machine with a GPU and keeps what their cells tagged
`gpu` showed, by the id of the cell. Below such a cell the built notebook shows that. A cell that has changed
since has another id, and shows none until it is run there again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from course_utils.lessons.catalog import Lesson

TAG = "gpu"
PNG = "image/png"


def path_of(lesson: Lesson) -> Path:
    """Where the records of a lesson are, if it has any."""
    return lesson.source.parent.parent / "gpu_outputs" / f"{lesson.slug}.json"


def read(lesson: Lesson) -> dict[str, Any]:
    """The records by cell: {"on": machine and version, "text": what was printed, "pictures": PNG, base64}."""
    path = path_of(lesson)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def keep(lesson: Lesson, executed: NotebookNode, on: str) -> int:
    """Writes what the lesson's cells showed in a notebook that ran on the machine `on`. Returns how many."""
    found = {cell.id: {"on": on, **_shown(cell)} for cell in executed.cells if is_tagged(cell)}
    if found:
        path = path_of(lesson)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return len(found)


def is_tagged(cell: NotebookNode) -> bool:
    """Whether the cell needs a GPU."""
    return TAG in cell.metadata.get("tags", [])


def cell_below(record: dict[str, Any]) -> NotebookNode:
    """The record as a reader sees it."""
    parts = [f"**Recorded** on an {record['on']}:"]
    if text := record["text"].rstrip():
        parts.append(f"```text\n{text}\n```")
    attached = {f"recorded_{n}.png": {PNG: data} for n, data in enumerate(record["pictures"], 1)}
    parts += [f"![What the cell drew](attachment:{name})" for name in attached]
    return new_markdown_cell("\n\n".join(parts), **({"attachments": attached} if attached else {}))


def _shown(cell: NotebookNode) -> dict[str, Any]:
    texts = [output.text for output in cell.outputs if output.get("name") == "stdout"]
    pictures = [output.data[PNG] for output in cell.outputs if PNG in output.get("data", {})]
    return {"text": "".join(texts), "pictures": pictures}
