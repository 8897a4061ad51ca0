"""The file must hold the code, because the program has none. Scripting compiles `forward` with both branches
and takes the parameters, buffers and numbers along. A trace would have one branch, and a state dict or a
pickle of the model has none of its code.

In this script the mode is an attribute of each module, and it goes into the file. The scripted module has its
own modes, so you can switch it to evaluation mode, and the model stays as it was.
"""

from pathlib import Path

import torch
from torch import Tensor, nn


def run_in_cpp(model: nn.Module, example: Tensor, path: Path) -> None:
    """Writes a file from which C++ computes what `model` does in evaluation mode"""
    scripted = torch.jit.script(model)
    scripted.eval()
    scripted.save(path)


# Other right answers

from course_utils.exercise import Edit, Wrong


def freezes_a_copy(model, example, path):
    import copy

    frozen = torch.jit.freeze(torch.jit.script(copy.deepcopy(model).eval()))
    torch.jit.save(frozen, str(path))


def writes_the_bytes(model, example, path):
    compiled = torch.jit.script(model, example_inputs=None)
    for module in compiled.modules():
        module.train(False)
    path.write_bytes(compiled.save_to_buffer())


def puts_the_modes_back(model, example, path):
    modes = {module: module.training for module in model.modules()}
    try:
        with path.open("wb") as file:
            torch.jit.save(torch.jit.script(model.eval()), file)
    finally:
        for module, mode in modes.items():
            module.training = mode


also_right = [freezes_a_copy, writes_the_bytes, puts_the_modes_back]


# Mistakes


def _saves_the_state(model, example, path):
    torch.save(model.state_dict(), path)


def _leaves_it_in_evaluation(model, example, path):
    torch.jit.script(model.eval()).save(path)


def _puts_all_into_training(model, example, path):
    torch.jit.script(model.eval()).save(path)
    model.train()


def _clears_the_hooks(model, example, path):
    for module in model.modules():
        module._forward_hooks.clear()
    run_in_cpp(model, example, path)


def _clears_those_of_backward(model, example, path):
    for module in model.modules():
        module._backward_hooks.clear()
    run_in_cpp(model, example, path)


mistakes = [
    Wrong(_saves_the_state, told_by="both_branches"),
    Edit(
        "traces",
        "torch.jit.script(model)",
        "torch.jit.trace(model, example, check_trace=False)",
        told_by="both_branches",
    ),
    Edit("left in training", "    scripted.eval()\n", "", told_by="evaluates"),
    Wrong(_leaves_it_in_evaluation, told_by="left_as_it_was"),
    Wrong(_puts_all_into_training, told_by="left_as_it_was"),
    Wrong(_clears_the_hooks, told_by="left_as_it_was"),
    Wrong(_clears_those_of_backward, told_by="left_as_it_was"),
    Edit("single precision", "jit.script(model)", "jit.script(model).float()", told_by="both_branches"),
]

not_tried = {"hard numbers": "the model computes", "seeds": "any numbers will do"}
