"""Export gets the first batch as an example, and its first dimension is open. `external_data=False` keeps the
weights in the one file.

Each batch runs in ONNX Runtime and in the model, both in evaluation mode. The absolute value comes first,
then the largest. `max` of an array of floats keeps a NaN.
"""

import copy
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


def onnx_parity(model: nn.Module, batches: list[Tensor], path: Path) -> list[float]:
    """For each batch, how far the ONNX file's answer is from the model's"""
    import onnxruntime

    model = copy.deepcopy(model).eval()
    torch.onnx.export(
        model,
        tuple(batches[:1]),
        path,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        external_data=False,
    )
    session = onnxruntime.InferenceSession(path)
    (entry,) = session.get_inputs()
    differences = []
    for x in batches:
        (answer,) = session.run(None, {entry.name: x.numpy()})
        with torch.no_grad():
            difference = np.abs(answer - model(x).numpy())
        differences.append(float(difference.max()))
    return differences


# Other right answers

from course_utils.exercise import Edit, Wrong


def writes_the_bytes(model, batches, path):
    import onnxruntime

    modes = {module: module.training for module in model.modules()}
    x = torch.cat([batches[0], batches[0]])
    try:
        model.eval()
        program = torch.onnx.export(model, (x,), input_names=["x"], dynamic_shapes=[{0: "rows"}])
        path.write_bytes(program.model_proto.SerializeToString())
        session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
        found = []
        for x in batches:
            answer = torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
            found.append((model(x).detach().double() - answer.double()).abs().amax().item())
        return found
    finally:
        for module, mode in modes.items():
            module.training = mode


def asks_the_program(model, batches, path):
    evaluated = copy.deepcopy(model)
    evaluated.eval().requires_grad_(False)
    exported = torch.export.export(
        evaluated,
        (torch.ones(7, *batches[0].shape[1:]),),
        dynamic_shapes=[[torch.export.Dim.DYNAMIC, None]],
    )
    program = torch.onnx.export(exported)
    program.save(path, external_data=False)
    return [torch.linalg.vector_norm(program(x)[0] - evaluated(x), ord=torch.inf).item() for x in batches]


also_right = [writes_the_bytes, asks_the_program]


# Mistakes


def _asks_the_exported_program(model, batches, path):
    model = copy.deepcopy(model).eval()
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.onnx.export(model, (batches[0],), path, dynamic_shapes=shapes, external_data=False)
    run = program.exported_program.module()
    return [(run(x) - model(x)).abs().max().item() for x in batches]


def _clears_the_hooks(model, batches, path):
    for module in model.modules():
        module._forward_hooks.clear()
    return onnx_parity(model, batches, path)


_DIFFERENCE = "np.abs(answer - model(x).numpy())"
_SHAPES = '        dynamic_shapes=({0: torch.export.Dim("batch")},),\n'

mistakes = [
    Edit("keeps the sign", _DIFFERENCE, "answer - model(x).numpy()", told_by="largest"),
    Edit("loses a NaN", "difference.max()", "max(0.0, *difference.flatten())", told_by="largest"),
    Edit("fixes the batch", _SHAPES, "", told_by="every_size"),
    Wrong(_asks_the_exported_program, told_by="in_the_runtime"),
    Edit("stays in training", "copy.deepcopy(model).eval()", "copy.deepcopy(model)", told_by="evaluates"),
    Edit("writes two files", "        external_data=False,\n", "", told_by="one_file"),
    Edit("switches the model", "copy.deepcopy(model).eval()", "model.eval()", told_by="left_as_it_was"),
    Wrong(_clears_the_hooks, told_by="left_as_it_was"),
]

equivalent = {
    "line 27: `answer - model(x).numpy()` -> `model(x).numpy() - answer`": "the sign goes away",
}
not_tried = {
    "hard numbers": "one difference and a maximum",
    "dtypes": "a file has those of its model",
    "seeds": "the differences are given ones",
}
