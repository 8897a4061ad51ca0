"""One model in several forms, side by side: eager, exported, ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.draw.labels import Label
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Scene, to_picture
from course_utils.measure.modes import Noting
from course_utils.wrong_use import public

HEIGHT, BETWEEN, TOP, MARGIN = 25.0, 11.0, 30.0, 8.0


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
    """The scene of `exports`: a column for each form."""
    counts = ", ".join(f"{name}: {_count(operators)} operators" for name, operators in forms.items())
    scene = Scene(f"Forms of one model. {counts}.")
    width = WIDTH / max(len(forms), 2)
    known: set[str] | None = None
    for column, (name, operators) in enumerate(forms.items()):
        left = column * width + MARGIN
        across = width - 2 * MARGIN
        scene.write(left + across / 2, 12, name, 13, "middle", bold=True)
        y = TOP
        for row, operator in enumerate(operators):
            lit = known is not None and _plain(operator.name) not in known
            words = (
                Label(left + 8, y + HEIGHT / 2, operator.name, 11.5),
                Label(left + across - 8, y + HEIGHT / 2, operator.shape, 10.5, "end"),
            )
            more = f"{name}: {operator.name} gives {operator.shape}" + (", not so to the left" if lit else "")
            fill = "lit" if lit else "view" if row else "storage"
            part = "lit" if lit else "operator"
            key = f"{name}.{row}"
            scene.box(
                left, y, across, HEIGHT, fill, words, more, line=1.8 if lit else 0.9, part=part, key=key
            )
            if row:
                x = left + across / 2
                scene.line(((x, y - BETWEEN), (x, y)), 1.1, arrow=True)
            y += HEIGHT + BETWEEN
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
