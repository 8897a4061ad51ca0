"""What is written into the boxes of a graph, and the graph in one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from course_utils.draw.graph_backward import short
from course_utils.draw.graph_fold import Box, Folded
from course_utils.draw.graph_nodes import Graph, Op, Saved

LONGEST = 34  # letters of a title; the whole of it is said to who points at it
MOST_SAVED, MOST_SLOTS = 5, 4
COUNTED = 2000  # of a larger graph what is saved is counted only where it is shown

# Text, fill, whether dashed, all about it.
Chip = tuple[str, str, bool, str]


def summary(graph: Graph, folded: Folded, saved: Mapping[int, list[Saved]]) -> str:
    """The graph in one sentence."""
    ops, leaves = len(graph.ops), len(graph.leaves)
    said = f"{ops:,} node{'s' * (ops != 1)}, {leaves:,} of them {'leaves' if leaves != 1 else 'a leaf'}"
    if folded.hidden:
        said += f"; {folded.hidden:,} folded"
    kept = [one for several in saved.values() for one in several]
    held = {one.storage for one in kept if one.storage and one.state in ("kept", "on ctx")}
    count = sum(one.state in ("kept", "on ctx") for one in kept)
    if count:
        size = sum(one[1] for one in held)
        said += f". Saved: {count} tensor{'s' * (count != 1)} in {len(held)} "
        said += f"storage{'s' * (len(held) != 1)} of {size:,} bytes"
        if len(graph.ops) > COUNTED:
            said += " (of those shown)"
    packed = sum(one.state == "packed" for one in kept)
    if packed:
        said += f". Packed by hooks: {packed}"
    freed = sum(one.state == "freed" for one in kept)
    if freed:
        said += f". Freed: {freed}"
    changed = sum(one.changed for one in kept)
    if changed:
        said += f". ✗ Changed since: {changed}"
    return said + "."


def headed(graph: Graph, box: Box, outputs: Mapping[tuple[int, int], str]) -> list[str]:
    """The lines at the top of a box."""
    op = graph.ops[box.members[0]]
    if not box.folded:
        return [cut(op.kind), second(op, outputs)]
    ops = [graph.ops[n] for n in box.members]
    if box.why == "leaves":
        names = [", ".join(o.labels.values()) or "a leaf" for o in ops if o.leaf]
        return [cut(op.kind), second(op, outputs), cut(f"+ {_joined(names)}", 44)]
    kinds = Counter(o.kind for o in ops if not o.leaf)
    leaves = sum(o.leaf for o in ops)
    said = [f"{count:,} {_operation(kind)}" for kind, count in kinds.most_common(2)]
    rest = sum(kinds.values()) - sum(count for _, count in kinds.most_common(2))
    said += [f"{rest:,} others"] * bool(rest) + [f"{leaves:,} leaves"] * bool(leaves)
    head = [f"{len(ops):,} nodes folded", cut(", ".join(said), 60)]
    names = [name for o in ops if o.leaf for name in o.labels.values()]
    if names:
        head.append(cut(names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}", 60))
    return head


def second(op: Op, outputs: Mapping[tuple[int, int], str]) -> str:
    """Names and sizes of what a node gives."""
    names = dict(op.labels)
    for (number, slot), name in outputs.items():
        if number == op.number:
            names.setdefault(slot, name)
    shapes = [str(shape) for shape in op.shapes]
    if len(shapes) > 1:
        same = len(set(shapes)) == 1
        sizes = f"{len(shapes)} × {shapes[0]}" if same else ", ".join(shapes[:MOST_SLOTS])
        called = ", ".join(f"{slot}: {name}" for slot, name in sorted(names.items()))
        return cut(f"{called} {sizes}".strip(), 44)
    name = ", ".join(names.values()) or ("a leaf" if op.leaf else "")
    return cut(f"{name} {shapes[0] if shapes else ''}".strip(), 44)


def chips(saved: Sequence[Saved]) -> list[Chip]:
    """For each saved tensor: text, fill, whether dashed, all about it."""
    found = [chip(one) for one in saved]
    if len(found) > MOST_SAVED:
        hidden = len(found) - MOST_SAVED + 1
        more = "; ".join(words for *_, words in found[-hidden:])
        found = [*found[:-hidden], (f"{hidden} more", "saved", False, more)]
    return found


def cut(text: str, longest: int = LONGEST) -> str:
    """At most so many letters, with the end of it."""
    if len(text) <= longest:
        return text
    half = (longest - 1) // 2
    return f"{text[: longest - 1 - half]}…{text[-half:]}"


def _joined(names: Sequence[str]) -> str:
    """Names in a row; of a module's parameters the module only once."""
    modules = {name.rpartition(".")[0] for name in names}
    if len(names) > 1 and len(modules) == 1 and modules != {""}:
        (module,) = modules
        return f"{module}: {', '.join(name.rpartition('.')[2] for name in names)}"
    return ", ".join(names)


def _operation(kind: str) -> str:
    return kind.rstrip("0123456789").removesuffix("Backward") or kind


def chip(saved: Saved) -> Chip:
    """The line for one saved tensor."""
    name = saved.name
    if saved.state == "freed":
        return f"{name} freed", "storage", True, f"{name}: its tensor was freed by a backward"
    if saved.state == "number":
        return f"{name} = {saved.whose}", "storage", False, f"{name}: the number {saved.whose}, no tensor"
    if saved.state == "packed":
        return f"{name} packed", "storage", True, f"{name}: packed by hooks; to look at it would unpack it"
    size = f"{saved.shape} {short(saved.bytes)} B" if saved.shape is not None else ""
    whose = f" {saved.whose}" if saved.whose else ""
    if saved.state == "on ctx":
        text = f"ctx.{name} {size}{whose}"
        return text, "saved", True, f"{text}: an attribute, not checked and not freed"
    if saved.changed:
        text = f"✗ {name} {size} v{saved.version} now v{saved.now}{whose}"
        return text, "odd", False, f"{text}: written to since it was saved; backward raises"
    version = "" if saved.version is None else f" v{saved.version}"
    text = f"{name} {size}{version}{whose}"
    return text, "saved", False, f"{text}: saved at version {saved.version}, now {saved.now}"
