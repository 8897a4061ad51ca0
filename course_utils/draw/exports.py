"""One model in several forms, side by side: eager, exported, ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.draw import folding
from course_utils.draw.labels import Label, cut, in_a_figure
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Scene, to_picture
from course_utils.measure.modes import Noting
from course_utils.wrong_use import public

HEIGHT, BETWEEN, TOP, MARGIN = 25.0, 11.0, 30.0, 8.0
LOW, NEAR = 18.0, 4.0  # the same two where it is folded
WIDE = 0.56  # how wide a letter is, by its height


@dataclass(frozen=True)
class Operator:
    """One line of a form: an operator and the shape of what it returns."""

    name: str
    shape: str


@public
def exports(
    model: nn.Module, example: Tensor, program: torch.export.ExportedProgram, onnx: str | Path
) -> Picture:
    """The operators that `model(example)` runs, those of the exported `program` and those of the ONNX file,
    in their order, each with the shape of its result. What has no operator of that name in the form to its
    left is lit."""
    return to_picture(
        compose({"eager": eager(model, example), "torch.export": exported(program), "ONNX": of_onnx(onnx)})
    )


def compose(forms: dict[str, Sequence[Operator]]) -> Scene:
    """The scene of `exports`: a column for each form. Of one too large for a page, what comes again and again
    is drawn once."""
    counts = ", ".join(f"{name}: {_count(operators)} operators" for name, operators in forms.items())
    scene = Scene(f"Forms of one model. {counts}.")
    width = WIDTH / max(len(forms), 2)
    most = max(map(len, forms.values()), default=0)
    fits = TOP + most * (HEIGHT + BETWEEN) <= folding.PAGE
    high, between = (HEIGHT, BETWEEN) if fits else (LOW, NEAR)
    known: set[str] | None = None
    for column, (name, operators) in enumerate(forms.items()):
        left = column * width + MARGIN
        across = width - 2 * MARGIN
        scene.write(left + across / 2, 12, name, 13, "middle", bold=True)
        groups = folding.fold(operators, 3) if not fits else [folding.Group(0, len(operators))]
        shown = folding.fitting(groups, (folding.PAGE - TOP) // (high + between) - fits - 1, head=1)
        y = TOP
        for group in shown:
            if group.times > 1:
                scene.write(left, y + high / 2, f"×{group.times}", 11.5, bold=True)
                y += high + between
                scene.line(((left - 4, y), (left - 4, y + group.size * (high + between) - between)), 2.5)
            for row in range(group.start, group.start + group.size):
                operator = operators[row]
                lit = known is not None and _plain(operator.name) not in known
                short, room = operator.name, across - 20 - in_a_figure(operator.shape, 10.5)
                while len(short) > 2 and in_a_figure(short, 11.5) > room:
                    short = cut(short, len(short) - 1)
                words = (
                    Label(left + 8, y + high / 2, short, 11.5),
                    Label(left + across - 8, y + high / 2, operator.shape, 10.5, "end"),
                )
                more = f"{name}: {operator.name} gives {operator.shape}"
                more += ", not so to the left" if lit else ""
                fill = "lit" if lit else "view" if row else "storage"
                part, line = ("lit", 1.8) if lit else ("operator", 0.9)
                scene.box(left, y, across, high, fill, words, more, line, part=part, key=f"{name}.{row}")
                if row > group.start:
                    x = left + across / 2
                    scene.line(((x, y - between), (x, y)), 1.1, arrow=fits)
                y += high + between
        if rest := [operators[place].name for place in folding.left(groups, shown)]:
            text = folding.rest(rest, "operator", int(across / WIDE / 11))
            scene.write(left, y + high / 2, text, 11)
            y += high + between
        scene.height = max(scene.height, y)
        known = {_plain(operator.name) for operator in operators}
    return scene


def eager(model: nn.Module, example: Tensor) -> list[Operator]:
    """The input, and every operator that a call runs: no views, and none with an empty result."""
    found = [Operator("input", _shape(example.shape))]

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        first = out[0] if isinstance(out, (tuple, list)) else out
        if isinstance(first, Tensor) and first.numel() and not func.is_view:
            found.append(Operator(_name(func), _shape(first.shape)))

    with torch.no_grad(), Noting(note):
        model(example)
    return found


def exported(program: torch.export.ExportedProgram) -> list[Operator]:
    """The inputs of the user's and every call in the graph, with symbols where a size is open."""
    inputs = set(program.graph_signature.user_inputs)
    found = []
    for node in program.graph.nodes:
        value = node.meta.get("val")
        first = value[0] if isinstance(value, (tuple, list)) and value else value
        if not isinstance(first, Tensor):
            continue
        if node.op == "placeholder" and node.name in inputs:
            found.append(Operator("input", _shape(first.shape)))
        elif node.op == "call_function" and not getattr(node.target, "is_view", False):
            found.append(Operator(_name(node.target), _shape(first.shape)))
    return found


def of_onnx(path: str | Path) -> list[Operator]:
    """The inputs and the nodes of an ONNX file, with the names of open sizes. Needs the package `onnx`."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    shapes = {
        value.name: _shape([size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim])
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    found = [Operator("input", shapes[value.name]) for value in graph.input]
    return found + [Operator(node.op_type, shapes.get(node.output[0], "")) for node in graph.node]


def _name(target: Any) -> str:
    packet = getattr(target, "overloadpacket", None)
    return getattr(packet or target, "__name__", str(target)).rsplit(".", 1)[-1]


def _count(operators: Sequence[Operator]) -> int:
    """How many there are: the inputs, which come first, are none."""
    return sum(operator.name != "input" for operator in operators)


def _plain(name: str) -> str:
    """The name without case and underscores: `Relu` is `relu`."""
    return name.replace("_", "").lower()


def _shape(sizes: Sequence[Any]) -> str:
    return " × ".join(str(size) for size in sizes) or "a number"
