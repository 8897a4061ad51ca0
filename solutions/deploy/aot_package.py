"""Export decides: it writes down the mode, the sizes and the strides. The example has each row twice, because
export by default takes a size of 1 for a constant, and the first dimension is open. It's contiguous as the
batches are. Then AOTInductor compiles what the program says, and puts the library with the weights into one
file.
"""

import torch
from torch import Tensor, nn


def aot_package(model: nn.Module, example: Tensor, path: str) -> None:
    """Writes the model in evaluation mode, compiled for every size of the batch"""
    program = torch.export.export(
        model.eval(),
        (torch.cat([example, example]).contiguous(),),
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
    torch._inductor.aoti_compile_and_package(program, package_path=path)


# Other right answers

import copy
import inspect
import shutil
from pathlib import Path

from course_utils.exercise import Edit, Wrong


def puts_the_modes_back(model, example, path):
    modes = [(module, module.training) for module in model.modules()]
    rows = example[:1].repeat(3, *[1] * (example.dim() - 1))
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    try:
        program = torch.export.export(model.eval(), (rows,), dynamic_shapes=shapes, strict=True)
    finally:
        for module, mode in modes:
            module.training = mode
    with Path(path).open("wb") as file:
        torch._inductor.aoti_compile_and_package(program, package_path=file)


def moves_it_there(model, example, path):
    model = copy.deepcopy(model)
    for module in model.modules():
        module.training = False
    (name,) = inspect.signature(model.forward).parameters
    shapes = {name: [torch.export.Dim("n", min=2), *example.shape[1:]]}
    rows = torch.zeros(5, *example.shape[1:], dtype=example.dtype)
    program = torch.export.export(model, (rows,), dynamic_shapes=shapes)
    chosen = torch._inductor.aoti_compile_and_package(program)
    shutil.move(chosen, path)


also_right = [puts_the_modes_back, moves_it_there]


# Mistakes


def _opens_what_it_can(model, example, path):
    shapes = ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(copy.deepcopy(model).eval(), (example,), dynamic_shapes=shapes)
    torch._inductor.aoti_compile_and_package(program, package_path=path)


_COMPILES = "torch._inductor.aoti_compile_and_package(program, package_path=path)"
_TWICE = "torch.cat([example, example])"
_OPEN = '        dynamic_shapes=({0: torch.export.Dim("batch")},),\n'

mistakes = [
    Edit("saves the program", _COMPILES, "torch.export.save(program, path)", told_by="at_path"),
    Edit("gives no path", ", package_path=path", "", told_by="at_path"),
    Edit("fixes the batch", _OPEN, "", told_by="any_batch"),
    Edit("a matrix", f"{_TWICE}.contiguous()", "torch.zeros(4, example.shape[1])", told_by="any_batch"),
    Edit("keeps one row", _TWICE, "example", told_by="any_batch"),
    Edit("keeps the strides", ".contiguous()", "", told_by="any_batch"),
    Wrong(_opens_what_it_can, told_by="any_batch"),
    Edit("stays in training", "model.eval()", "model", told_by="evaluates"),
]
not_tried = {"hard numbers": "the model alone computes", "seeds": "the model is a fixed one"}
