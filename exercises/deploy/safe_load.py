"""Load a stranger's file

Somebody sends you weights, and you don't know what else is in the file. Return its tensors, a dict by name.
It's a torch file or a safetensors file, and its name may end in anything. So go by how it begins: a torch
file with `PK`, a safetensors file with 8 bytes and then `{`. You may refuse all others.

- No code from the file runs.
- Refuse what isn't a dict with tensors alone as values: raise an error of your choice.
- The tensors are on the CPU, also if they were saved on a GPU.

`safe_load("weights.bin")["bias"].device` → `device(type='cpu')`
"""

from pathlib import Path

from torch import Tensor

from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "Which of the two formats can hold code, and what keeps torch from running it?",
        "`torch.load` goes by the end of a path, not by the name of an open file. What must its result be?",
        "Read nine bytes and go back to the beginning. Then one call for each format, with the device said "
        "where torch would go by the file. In the end look at the type of the result and of each value.",
    ],
)


@exercise.starter
def safe_load(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a torch file or a safetensors file that may be hostile"""
    raise NotImplementedError


_FOLDER = """
import pickle, tempfile
from pathlib import Path
folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "{}"
"""

_STATE = """torch.manual_seed(0)
state = nn.BatchNorm1d(3).state_dict()  # an OrderedDict, with attributes
state |= {"weight": nn.Parameter(torch.randn(2, 3)), "half": torch.ones(3).bfloat16()}
"""

_TRAP = """class Trap:
    def __reduce__(self): return Path.touch, (path.with_name("ran"),)
data = {"weight": torch.ones(2), "extra": Trap()}
"""

_OLD = "torch.save(data, path, _use_new_zipfile_serialization=False)"
_SAFELY = "from safetensors.torch import save_file\nsave_file(state, path)"
_PICKLED = "path.write_bytes(pickle.dumps(data))"
_KEYS = "state_dict", "model", "model_state_dict", "weights", "net", "module"
_NAMES = ["weights.safetensors", "weights.pt", "weights.bin"]


def _expect_state(t):
    """It returns the tensors that were saved."""
    for path in ("path", "str(path)"):
        came = t.call(f"safe_load({path})")
        expect.true(isinstance(came, dict), f"the result is {expect.show(came)}, expected a dict")
        expect.equal(dict(came), t.state)


def _refused(t):
    """The file is refused, and no code in it ran."""
    came = error = None
    try:
        came = t.call("safe_load(path)")
    except Exception as raised:
        error = raised
    ran = (Path(t.path).parent / "ran").exists()
    called = "a function that the file names was called"
    expect.true(not ran, called, "expected: an error, and the function isn't called")
    expect.true(error is not None, f"the result is {expect.show(came)}, expected an error")


@exercise.check(
    given=lambda name, save: f"{_FOLDER.format(name)}{_TRAP}{save}",
    cases={
        "a torch file": ("weights.pt", "torch.save(data, path)"),
        "a torch file named `.safetensors`": ("weights.safetensors", "torch.save(data, path)"),
        "a torch file as before 1.6": ("weights.pt", _OLD),
        "a bare pickle": ("weights.pt", _PICKLED),
        "a bare pickle named `.safetensors`": ("weights.safetensors", _PICKLED),
    },
)
def nothing_runs(t):
    """No code from the file runs

    A pickle can call functions by name, and `pickle.load` runs it: one look is too late.
    `torch.load(..., weights_only=True)` calls those on a list and raises at the first other. A second try
    without it runs what the first try refused.
    """
    _refused(t)


@exercise.check(given=lambda name: f"{_FOLDER.format(name)}{_STATE}torch.save(state, path)", cases=_NAMES)
def torch_files(t):
    """A torch file is read, whatever its name

    `torch.save` writes a zip unless it's told otherwise, and this begins with `PK`. Given a path that ends in
    `.safetensors`, a newer `torch.load` takes the file for one; it doesn't look at the name of an open file.
    A module's `state_dict` is an OrderedDict, and a Parameter is a tensor.
    """
    _expect_state(t)


@exercise.check(
    given=lambda data: f"{_FOLDER.format('weights.pt')}data = {data}\ntorch.save(data, path)",
    cases={
        "a number beside the tensors": '{"weight": torch.ones(2), "epoch": 3}',
        "a dict in the dict": '{"weight": torch.ones(2), "optimizer": {"step": torch.tensor(1)}}',
        **{f"`{key!r}`: a dict": f'{{{key!r}: {{"weight": torch.ones(2)}}}}' for key in _KEYS},
        "`None` as a value": '{"weight": None}',
        "a tensor alone": "torch.ones(2)",
        "a sparse tensor, which has `values` too": "torch.eye(2).to_sparse()",
        "pairs in a list": '[("weight", torch.ones(2))]',
    },
)
def tensors_alone(t):
    """What isn't a dict of tensors is refused

    `weights_only=True` also lets through lists, dicts in dicts, numbers and `None`: it is about code alone.
    A checkpoint with a dict of tensors in it is refused too.
    """
    _refused(t)


_FROM_GPU = """torch.save(state, path)
as_from_gpu = path.read_bytes().replace(b"\\3\\0\\0\\0cpu", b"\\3\\0\\0\\0xpu")  # an Intel GPU
path.write_bytes(as_from_gpu)"""


@exercise.check(given=f"{_FOLDER.format('weights.pt')}{_STATE}{_FROM_GPU}")
def on_the_cpu(t):
    """Weights that were saved on a GPU come to the CPU

    A torch file holds the device of each tensor. `torch.load` puts it there again, or raises where there is
    no such device; here a `map_location` goes before what the file says.
    """
    expect.true(b"xpu" in t.as_from_gpu, "this torch writes the device in another way")
    expect.equal(dict(t.call("safe_load(path)")), t.state)


@exercise.check(
    needs="safetensors",
    given=lambda name: f"{_FOLDER.format(name)}{_STATE}{_SAFELY}",
    cases=_NAMES,
)
def safetensors_files(t):
    """A safetensors file is read, whatever its name

    It begins with the length of its header, in 8 bytes, and the header is JSON: `{` comes ninth. `torch.load`
    knows the format by the end of a path only, and takes any other such file for a pickle.
    """
    _expect_state(t)
