"""The first nine bytes say what the file is. safetensors holds no code, and `weights_only=True` is there to
keep torch from running any. What it returns can still be a list or a number, so look at every type.

`torch.load` gets the open file: of a path it would look at the ending. `map_location` goes before the GPU
that the file asks for.
"""

from pathlib import Path

import torch
from torch import Tensor


def safe_load(path: str | Path) -> dict[str, Tensor]:
    with Path(path).open("rb") as file:
        is_safetensors = file.read(9)[8:] == b"{"
        file.seek(0)
        if is_safetensors:
            from safetensors.torch import load

            state = load(file.read())
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise TypeError(f"{path} holds no dict")
    if not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise ValueError(f"{path} holds more than tensors")
    return state


# Other right answers

import contextlib
import io

from course_utils.exercise import Edit, Wrong


def _two_kinds_and_no_other(path):
    data = Path(path).read_bytes()
    if data[:2] == b"PK":
        loaded = torch.load(io.BytesIO(data), "cpu", weights_only=True)
    elif data[8:9] == b"{":
        import safetensors.torch

        loaded = safetensors.torch.load(data)
    else:
        raise ValueError("neither a torch file nor a safetensors file")
    if not isinstance(loaded, dict):
        raise TypeError("no dict")
    for name, tensor in loaded.items():
        if not torch.is_tensor(tensor):
            raise TypeError(name)
    return {name: tensor.cpu() for name, tensor in loaded.items()}


def _zip_or_safetensors(path):
    with Path(path).open("rb") as file:
        if file.read(2) != b"PK":
            from safetensors.torch import load_file

            return load_file(path, device="cpu")
        file.seek(0)
        loaded = torch.load(file, map_location=lambda storage, place: storage, weights_only=True)
    assert isinstance(loaded, dict) and {isinstance(one, torch.Tensor) for one in loaded.values()} <= {True}
    return loaded


also_right = [_two_kinds_and_no_other, _zip_or_safetensors]


# Mistakes


def _goes_by_the_ending(path):
    if str(path).endswith(".safetensors"):
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _tries_again_without(path):
    try:
        return safe_load(path)
    except Exception:
        with Path(path).open("rb") as file:
            return torch.load(file, map_location="cpu", weights_only=False)


def _looks_first(path):
    import pickle

    with Path(path).open("rb") as file:
        if file.read(2) != b"PK":
            file.seek(0)
            with contextlib.suppress(Exception):
                pickle.load(file)
    return safe_load(path)


def _unwraps(path):
    with contextlib.suppress(Exception):
        return safe_load(path)
    with Path(path).open("rb") as file:
        return torch.load(file, map_location="cpu", weights_only=True)["model"]


mistakes = [
    Wrong(_unwraps, told_by="tensors_alone"),
    Wrong(_goes_by_the_ending, told_by="torch_files"),
    Edit("runs code", "weights_only=True", "weights_only=False", told_by="nothing_runs"),
    Wrong(_tries_again_without, told_by="nothing_runs"),
    Wrong(_looks_first, told_by="nothing_runs"),
    Edit(
        "looks at the dict alone",
        "not all(isinstance(tensor, Tensor) for tensor in state.values())",
        "False",
        told_by="tensors_alone",
    ),
    Edit("where it was saved", 'map_location="cpu", ', "", told_by="on_the_cpu"),
    Edit("takes all for torch files", 'file.read(9)[8:] == b"{"', "False", told_by="safetensors_files"),
]

equivalent = {
    "line 16: `torch.load(file, map_location='cpu', weights_only=True)` -> "
    "`torch.load(file, map_location='cpu')`": "it is the default",
}
not_tried = {
    "hard numbers": "nothing is computed",
    "left alone": "a path is given",
    "seeds": "nothing hangs on the numbers",
}
