"""What is written into the boxes of a graph, and the graph in one sentence."""

from __future__ import annotations

from collections.abc import Mapping

from course_utils.draw.graph_backward import short
from course_utils.draw.graph_nodes import Graph, Op, Saved
from course_utils.draw.labels import counted

# Text, fill, whether dashed, all about it.
Chip = tuple[str, str, bool, str]


def summary(graph: Graph, saved: Mapping[int, list[Saved]]) -> str:
    """The graph in one sentence."""
    leaves = len(graph.leaves)
    said = f"{counted(len(graph.ops), 'node')}, {leaves} of them {'leaves' if leaves != 1 else 'a leaf'}"
    every = [one for several in saved.values() for one in several]
    kept = [one for one in every if one.state == "kept"]
    if kept:
        held = {one.storage for one in kept}
        said += f". Saved: {counted(len(kept), 'tensor')} in {counted(len(held), 'storage')} "
        said += f"of {sum(size for _, size in held):,} bytes"
    for state, what in (("packed", "Packed by hooks"), ("freed", "Freed")):
        if count := sum(one.state == state for one in every):
            said += f". {what}: {count}"
    if changed := sum(one.changed for one in every):
        said += f". ✗ Changed since: {changed}"
    return said + "."


def second(op: Op, outputs: Mapping[tuple[int, int], str]) -> str:
    """Names and sizes of what a node gives."""
    names = dict(op.labels)
    for (number, slot), name in outputs.items():
        if number == op.number:
            names.setdefault(slot, name)
    if len(op.shapes) > 1:
        same = len(set(op.shapes)) == 1
        sizes = f"{len(op.shapes)} × {op.shapes[0]}" if same else ", ".join(map(str, op.shapes))
        called = ", ".join(f"{slot}: {name}" for slot, name in sorted(names.items()))
        return f"{called} {sizes}".strip()
    name = ", ".join(names.values()) or ("a leaf" if op.leaf else "")
    return f"{name} {op.shapes[0]}".strip()


def chip(saved: Saved) -> Chip:
    """The line for a saved tensor: text, fill, whether dashed, all about it."""
    name = saved.name
    if saved.state == "freed":
        return f"{name} freed", "storage", True, f"{name}: its tensor was freed by a backward"
    if saved.state == "number":
        return f"{name} = {saved.whose}", "storage", False, f"{name}: the number {saved.whose}, no tensor"
    if saved.state == "packed":
        return f"{name} packed", "storage", True, f"{name}: packed by hooks; to look at it would unpack it"
    size = f"{saved.shape} {short(saved.bytes)} B"
    whose = f" {saved.whose}" if saved.whose else ""
    if saved.changed:
        text = f"✗ {name} {size} v{saved.version} now v{saved.now}{whose}"
        return text, "odd", False, f"{text}: written to since it was saved; backward raises"
    text = f"{name} {size} v{saved.version}{whose}"
    return text, "saved", False, f"{text}: saved at version {saved.version}, now {saved.now}"
