"""Both sizes are opened, the length up to `context`: there are no more places. The example has two rows,
because export takes one row for a constant. Nothing in the file names a class. The characters aren't in the
graph, so they go beside it.
"""

import torch

from course_utils.exercise.kits import gpt


def ship_gpt(model: gpt.GPT, alphabet: str, path: str) -> None:
    example = torch.zeros(2, 2).long()
    sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("time", max=model.context)}
    modes = {module: module.training for module in model.modules()}
    try:
        program = torch.export.export(model.eval(), (example,), dynamic_shapes=(sizes,))
    finally:
        for module, mode in modes.items():
            module.training = mode
    torch.export.save(program, path, extra_files={"alphabet": alphabet})


# Other right answers

from course_utils.exercise import Edit, Wrong


def of_a_copy(model, alphabet, path):
    import copy
    import pathlib

    AUTO = torch.export.Dim.AUTO
    rows = torch.arange(3 * model.context).view(3, -1) % len(alphabet)
    shapes = {"ids": {0: AUTO, 1: AUTO}}
    program = torch.export.export(copy.deepcopy(model).eval(), (rows,), dynamic_shapes=shapes)
    with pathlib.Path(path).open("wb") as file:
        torch.export.save(program, file, extra_files={"alphabet": alphabet})


def strictly(model, alphabet, path):
    before = [(module, module.training) for module in model.modules()]
    for module in model.modules():
        module.training = False
    Dim = torch.export.Dim
    shapes = torch.export.ShapesCollection()
    text = torch.ones((4, model.context // 2), dtype=torch.int64)
    shapes[text] = {0: Dim("batch", min=1), 1: Dim("length", min=1, max=model.context)}
    try:
        program = torch.export.export(model, (text,), dynamic_shapes=shapes, strict=True)
    finally:
        for module, training in before:
            module.train(training) if not list(module.children()) else setattr(module, "training", training)
    torch.export.save(program, path, extra_files={"alphabet": alphabet})


also_right = [of_a_copy, strictly]


# Mistakes


def _a_pickle(model, alphabet, path):
    torch.save({"model": model, "alphabet": alphabet}, path)


class _Cropped(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(ids[:, -self.model.context :])


def _crops(model, alphabet, path):
    modes = {module: module.training for module in model.modules()}
    AUTO = torch.export.Dim.AUTO
    example = torch.zeros(2, 40, dtype=torch.long)
    program = torch.export.export(_Cropped(model).eval(), (example,), dynamic_shapes=({0: AUTO, 1: AUTO},))
    for module, mode in modes.items():
        module.training = mode
    torch.export.save(program, path, extra_files={"alphabet": alphabet})


_RESTORED = "        for module, mode in modes.items():\n            module.training = mode\n"
_EXPORT = "    example ="
_CLONED = """    import copy
    model = copy.deepcopy(model)
    model.head.weight = torch.nn.Parameter(model.head.weight.detach().clone())
"""
mistakes = [
    Wrong(_a_pickle, told_by="any_size"),
    Wrong(_crops, told_by="any_size"),
    Edit("fixes the sizes", ", dynamic_shapes=(sizes,)", "", told_by="any_size"),
    Edit("one row", "{0: torch.export.Dim(\"rows\"), 1: ", "{1: ", told_by="any_size"),
    Edit("without the alphabet", ", extra_files={\"alphabet\": alphabet}", "", told_by="fresh_python"),
    Edit("unties", _EXPORT, f"{_CLONED}{_EXPORT}", told_by="each_weight_once"),
    Edit("exports in training", "model.eval()", "model", told_by="in_training_mode"),
    Edit("leaves it in evaluation", _RESTORED, "        pass\n", told_by="in_training_mode"),
]
_EXAMPLE = "any example of more than one row will do"
equivalent = {
    "line 7: `2` -> `3`": _EXAMPLE,
    "line 7: `2` -> `3` (2)": _EXAMPLE,
}
not_tried = {
    "hard numbers": "characters come in, and the weights are the model's own",
    "seeds": "the model is a fixed one",
    "dtypes": "characters have one, and the weights are the model's own",
}
