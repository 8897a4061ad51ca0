"""What `torch.load` lets through"""

import torch

from course_utils.questions import Family

family = Family(section="What a file may execute")

THROUGH = {"epoch": "3", "losses": "[0.4, 0.2]", "name": '"small"', "mean": "torch.ones(2)"}
THROUGH |= {"shift": "nn.Parameter(torch.ones(2))", "dtype": "torch.float16", "shape": "torch.Size([2, 3])"}
THROUGH |= {"place": 'torch.device("cpu")', "state": "nn.Linear(2, 2).state_dict()"}
THROUGH |= {"both": '{"step": 3, "w": torch.ones(1)}'}
OF_TORCH = {"layer": "nn.Linear(2, 2)", "act": "F.relu", "kind": "nn.ReLU"}
OF_TORCH |= {"sgd": "torch.optim.SGD([torch.ones(2)])", "run": '{"step": 3, "net": nn.ReLU()}'}
DATA = {"array": "torch.ones(2).numpy()", "rows": "range(3)", "best": "torch.rand(3).numpy().max()"}


@family.program
def loading(draw, level):
    refused = draw.sample([*(OF_TORCH | DATA).items()], [1, 2, 2, 3, 3][level - 1])
    entries = refused + draw.sample([*THROUGH.items()], (level + 2) - len(refused))
    draw.shuffle(entries)
    lines = ["from contextlib import suppress", "from io import BytesIO", "entries = {"]
    row = "   "
    for name, value in entries:
        entry = f' "{name}": {value},'
        if len(row + entry) > 88:
            lines.append(row)
            row = "   "
        row += entry
    lines += [row, "}", "loaded = []", "for name, value in entries.items():"]
    lines += ["    torch.save(value, file := BytesIO())", "    with suppress(Exception):"]
    lines += ["        torch.load(BytesIO(file.getvalue()))", "        loaded.append(name)"]
    return "\n".join([*lines, "loaded"])


def _those(run, accepted):
    return [name for name, value in run.names["entries"].items() if accepted(value)]


def _tensors(value):
    parts = value.values() if isinstance(value, dict) else [value]
    return all(isinstance(part, torch.Tensor) for part in parts)


@family.belief
def only_tensors(run):
    """By default only tensors, and dicts of them, get through

    `weights_only=True`, the default, lets numbers, strings, lists and dicts through too, whatever they mean.

        import io
        file = io.BytesIO()
        torch.save({"step": 3, "sizes": [1, 2]}, file)
        file.seek(0)
        torch.load(file)
    """
    return _those(run, _tensors)


@family.belief
def what_is_of_torch(run):
    """What is torch's own gets through: its layers, functions and classes too

    A list says what a file may call. Tensors, parameters, dtypes and sizes are on it; layers and optimizers
    aren't. Save their `state_dict`.

        import io
        torch.save(nn.ReLU(), file := io.BytesIO())
        file.seek(0)
        torch.serialization.get_unsafe_globals_in_checkpoint(file)
    """
    return [name for name in run.names["entries"] if name in run.value or name in OF_TORCH]


@family.belief
def harmless_data(run):
    """What holds only data gets through, such as an array or a range

    Torch doesn't look whether a class is harmless. It looks whether what a file calls is on its list.
    What makes NumPy's arrays and numbers isn't.

        import io
        torch.save(torch.ones(2).numpy(), file := io.BytesIO())
        file.seek(0)
        torch.serialization.get_unsafe_globals_in_checkpoint(file)
    """
    return [name for name in run.names["entries"] if name in run.value or name in DATA]


@family.belief
def everything(run):
    """By default `torch.load` loads whatever was saved

    Whatever the file names, a class or a function, has to be on the list: `nn.ReLU` isn't, nor what rebuilds
    a NumPy number.

        import io
        torch.save({"kind": nn.ReLU, "best": torch.ones(3).numpy().max()}, file := io.BytesIO())
        file.seek(0)
        sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    """
    return [*run.names["entries"]]
