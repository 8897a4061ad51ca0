"""A size of the example becomes a constant of the program; `dynamic_shapes` opens the batch. The first
dimension of every input gets the same `Dim`, so the program knows that these sizes are equal. With a `Dim`
export refuses to open a size of 1, so it gets every row twice.

Export writes down the mode of the moment. Each module has a mode of its own, and `eval()` switches all of
them, so they're noted before and put back one by one, whatever the export raises.
"""

import torch
from torch import Tensor, nn


def export_dynamic(
    model: nn.Module,
    example: tuple[Tensor, ...],
) -> torch.export.ExportedProgram:
    """The model in evaluation mode, as a program for every size of the batch"""
    twice = tuple(torch.cat([x, x]) for x in example)
    batch = torch.export.Dim("batch")
    modes = {module: module.training for module in model.modules()}
    try:
        return torch.export.export(model.eval(), twice, dynamic_shapes=tuple({0: batch} for _ in twice))
    finally:
        for module, mode in modes.items():
            module.training = mode


# Other right answers

from course_utils.exercise import Edit, Wrong


def of_a_copy(model, example):
    import copy

    model = copy.deepcopy(model).eval()
    example = tuple(x.repeat(2, *[1] * (x.dim() - 1)) if len(x) == 1 else x for x in example)
    shapes = torch.export.ShapesCollection()
    for x in example:
        shapes[x] = {0: torch.export.Dim.DYNAMIC}
    return torch.export.export(model, example, dynamic_shapes=shapes)


def strictly(model, example):
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        five = tuple(x[:1].expand(5, *x.shape[1:]) for x in example)
        open_batch = torch.export.Dim("rows", min=2)
        shapes = [{0: open_batch} for _ in five]
        return torch.export.export(model, five, dynamic_shapes=shapes, strict=True)
    finally:
        for module, training in before:
            module.training = training


also_right = [of_a_copy, strictly]


# Mistakes


def _leaves_it_in_evaluation(model, example):
    twice = tuple(torch.cat([x, x]) for x in example)
    shapes = tuple({0: torch.export.Dim("batch")} for _ in twice)
    return torch.export.export(model.eval(), twice, dynamic_shapes=shapes)


def _puts_all_into_training(model, example):
    program = _leaves_it_in_evaluation(model, example)
    model.train()
    return program


def _clears_the_hooks(model, example):
    for module in model.modules():
        module._forward_hooks.clear()
    return export_dynamic(model, example)


_SHAPES = ", dynamic_shapes=tuple({0: batch} for _ in twice)"

mistakes = [
    Edit("fixes the batch", _SHAPES, "", told_by="any_batch"),
    Edit("a bound", 'Dim("batch")', 'Dim("batch", max=1024)', told_by="any_batch"),
    Edit("keeps one row", "torch.cat([x, x])", "x", told_by="from_one_row"),
    Edit("makes its rows up", "torch.cat([x, x])", "torch.randn(2, *x.shape[1:])", told_by="any_batch"),
    Edit(
        "opens all",
        "{0: batch} for _ in twice",
        "{i: torch.export.Dim.AUTO for i in range(x.dim())} for x in twice",
        told_by="only_the_batch",
    ),
    Edit("exports in training", "model.eval()", "model", told_by="evaluates"),
    Wrong(_clears_the_hooks, told_by="left_as_it_was"),
    Wrong(_puts_all_into_training, told_by="left_as_it_was"),
]
not_tried = {"hard numbers": "the model alone computes", "seeds": "the model is a fixed one"}
