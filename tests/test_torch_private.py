"""Private names of torch: all in one module, all there, and missed by name in a version that lacks one."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import course_utils
from course_utils import measure, torch_private
from course_utils.exercise import Check, expect
from course_utils.grading import check_run
from tests.files import imported

PACKAGE = Path(course_utils.__path__[0])
CALLED = {a.removesuffix("()").rpartition(".")[2] for _, a in torch_private._ATTRIBUTES.values()}
PARTS = [value for value in vars(torch_private).values() if str(value).startswith("torch.")]
PARTS += torch_private.SWITCHES


# --- all of them are there ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", torch_private._NAMES)
def test_a_name_is_fetched_once(name):
    found = getattr(torch_private, name)
    assert found is not None
    assert vars(torch_private)[name] is found


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_torch_has_its_name(name):
    assert importlib.import_module(name).__name__ == name


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_what_is_read_off_an_object():
    """Each attribute, of something of which the answer is known without it."""
    p, x = torch_private, torch.ones(2, requires_grad=True)
    y = x.exp()
    z = Doubled.apply(y)
    norm = nn.BatchNorm1d(2)
    norm.register_buffer("seen", None, persistent=False)
    norm.register_module("gone", None)
    nothing = nn.Module()
    handles = [
        norm.register_forward_hook(print),
        norm.register_forward_pre_hook(print),
        norm.register_full_backward_hook(print),
        norm.register_full_backward_pre_hook(print),
    ]
    sparse = torch.tensor([[0.0, 3.0]]).to_sparse()
    loader = DataLoader([1, 2], num_workers=1)
    workers, alone = iter(loader), iter(DataLoader([1, 2]))
    add = torch.ops.aten.add
    scripted = torch.jit.script(nn.Linear(1, 1))
    compiled = torch.compile(norm, backend="eager")
    p.shutdown_workers(workers)
    with torch.autograd.forward_ad.dual_level():
        inside = p.forward_level(torch.autograd.forward_ad)
    read = {
        "version": (p.version(torch.ones(2).zero_().zero_()), 2),
        "storage_key": (
            p.storage_key(y.untyped_storage()) == p.storage_key(y.detach().untyped_storage()),
            p.storage_key(y.untyped_storage()) != p.storage_key(x.untyped_storage()),
        ),
        "sparse_indices": (p.sparse_indices(sparse).tolist(), [[0], [1]]),
        "sparse_values": (p.sparse_values(sparse).tolist(), [3.0]),
        "sequence_nr": (p.sequence_nr(z.grad_fn) > p.sequence_nr(y.grad_fn), True),
        "input_metadata": ([tuple(one.shape) for one in p.input_metadata(y.grad_fn)], [(2,)]),
        "backward_class": (p.backward_class(Doubled), type(z.grad_fn)),
        "forward_level": ((p.forward_level(torch.autograd.forward_ad), inside), (-1, 0)),
        "parameters": (list(p.parameters(norm)), ["weight", "bias"]),
        "buffers": (list(p.buffers(norm)), ["running_mean", "running_var", "num_batches_tracked", "seen"]),
        "submodules": (p.submodules(norm), {"gone": None}),
        "unsaved_buffers": (p.unsaved_buffers(norm), {"seen"}),
        "forward_hooks": ([*p.forward_hooks(norm)], [handles[0].id]),
        "forward_pre_hooks": ([*p.forward_pre_hooks(norm)], [handles[1].id]),
        "backward_hooks": ([*p.backward_hooks(norm)], [handles[2].id]),
        "backward_pre_hooks": ([*p.backward_pre_hooks(norm)], [handles[3].id]),
        "compiled_from": (p.compiled_from(compiled), norm),
        "dataset_fetcher": (p.dataset_fetcher(alone).fetch([1]).tolist(), [2]),
        "shutdown_workers": (list(workers), []),
        "schema": ((p.schema(add.Tensor).is_mutable, p.schema(add.out).is_mutable), (False, True)),
        "packet_name": (p.packet_name(add), "aten::add"),
        "has_method": ([p.has_method(scripted)(name) for name in ("forward", "no_such")], [True, False]),
    }
    assert set(read) == set(torch_private._ATTRIBUTES)
    assert not {name: both for name, both in read.items() if both[0] != both[1]}
    assert not p.parameters(nothing) and not p.forward_hooks(nothing)


def test_what_is_asked_of_torch():
    """What some of the names tell, where nothing else in the course would fail without it."""
    p, x = torch_private, torch.ones(2, requires_grad=True)
    number, y = p.next_sequence_nr(), x.exp()
    assert p.sequence_nr(y.grad_fn) == number
    told = []
    y.register_hook(lambda _: told.append((p.current_graph_task_id(), p.current_node())))
    (y * 2).sum().backward()
    assert (p.current_graph_task_id(), p.current_node()) == (-1, None)
    assert told[0][0] != -1 and told[0][1] is not None
    assert p.top_saved_tensors_hooks(True) is None
    with torch.autograd.graph.saved_tensors_hooks(abs, abs):
        assert p.top_saved_tensors_hooks(True) is not None
    assert (p.count_operator_modes(), p.count_function_modes()) == (0, 0)
    with p.TorchDispatchMode() as mode, torch.device("cpu"):
        assert p.operator_mode(0) is mode
        assert isinstance(p.function_mode(0), p.DeviceContext)
    assert (p.is_operator("aten::relu"), p.is_operator("course::no_such")) == (True, False)
    assert p.has_kernel("aten::add.Tensor", "CPU")
    assert not p.has_kernel("aten::add.Tensor", "CompositeImplicitAutograd")
    assert {p.RAW_SAVED + "result", p.SAVED + "result"} <= set(dir(y.grad_fn))
    assert set(p.TABLES) <= set(vars(nn.Module()))
    assert all(hasattr(x, kind) for kind in p.TENSOR_HOOKS)
    assert hasattr(torch.compiler.disable(lambda: None), p.NOT_COMPILED)
    assert p.LOADER_ITERATOR in vars(DataLoader([1]))


# --- none of them is anywhere else --------------------------------------------------------------------------

# Names of Python's own, and of objects of the course that a neighbour may look into.
OTHERS = {"_exit", "_getframe", "_current_frames", "_data", "_asdict", "_names", "_given", "_quiet"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def names_in(path: Path) -> list[str]:
    """What a file says of torch's private names, by line."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    found = [name for name in imported(text) if name.startswith("torch.") and is_inside(name)]
    own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(tree)
        if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            of_self = of_self or ast.unparse(node).startswith("torch.ops.")  # by the dispatcher's name
            if not of_self and (node.attr in CALLED or node.attr not in own | OTHERS):
                found.append(f"{path}:{node.lineno} {ast.unparse(node)}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value
            if words in CALLED or words.startswith("torch.") and words.isprintable() and is_inside(words):
                found.append(f"{path}:{node.lineno} {words!r}")
    return found


def is_inside(name: str) -> bool:
    return " " not in name and any(is_private(part) for part in name.split("."))


def test_no_other_module_of_the_course_names_them():
    files = set(PACKAGE.rglob("*.py")) - {Path(torch_private.__file__)}
    assert not [found for path in sorted(files) for found in names_in(path)]


# What torch's own documentation calls so: a reader's answer calls it, and the check stands in for it.
DOCUMENTED = {"torch._inductor", "torch._inductor.aoti_load_package"}


def test_nor_does_an_exercise():
    files = sorted((PACKAGE.parent / "exercises").rglob("*.py"))
    found = [one for path in files for one in names_in(path)]
    assert not [one for one in found if one.split()[-1] not in DOCUMENTED]


@pytest.mark.parametrize(
    "line",
    [
        "from torch._dynamo import utils",
        "import torch._guards",
        "from torch.utils import _pytree",
        "torch._C.Future",
        "tensor._version",
        "getattr(node, '_sequence_nr')",
        "sys.modules.get('torch._dynamo')",
        "nn.modules.conv._ConvNd",
    ],
)
def test_one_that_is_somewhere_else_is_found(line, tmp_path):
    (tmp_path / "one.py").write_text(f"import torch\n{line}\n")
    assert names_in(tmp_path / "one.py")


# --- one that is gone ---------------------------------------------------------------------------------------


def gone(monkeypatch, name, where):
    """As if torch had no such name: nothing of torch is changed, it is looked for where nothing is."""
    use, _ = torch_private._NAMES[name]
    getattr(torch_private, name)
    monkeypatch.delitem(vars(torch_private), name)
    monkeypatch.setitem(torch_private._NAMES, name, (use, where))


@pytest.mark.parametrize("where", ["torch:_C._no_such", "torch._no_such:name", "torch._dynamo.utils:no_such"])
def test_a_name_that_is_gone_is_told(where, monkeypatch):
    gone(monkeypatch, "compiler_counters", where)
    with pytest.raises(torch_private.Gone) as caught, measure.graphs_compiled():
        pass
    needs = "which `course_utils.measure.compiled` needs (what the compiler counts)"
    has_no = f"this version of torch ({torch.__version__}) has no `{where.replace(':', '.')}`"
    assert str(caught.value) == f"{has_no}, {needs}"
    assert measure.storage_bytes(torch.ones(2)) == 8  # what needs another name goes on


def test_an_attribute_that_is_gone_is_told():
    with pytest.raises(torch_private.Gone, match=r"has no `int\._version`, which `.*` needs \(how often"):
        torch_private.version(3)


def test_what_torch_itself_misses_is_not_a_name_that_is_gone(monkeypatch):
    gone(monkeypatch, "ONNXRegistry", "onnx_no_such:ONNXRegistry")
    with pytest.raises(ImportError, match="onnx_no_such"):
        _ = torch_private.ONNXRegistry


def test_a_check_that_needs_it_could_not_be_done(monkeypatch):
    def look(answer):
        """A check"""
        with measure.graphs_compiled() as compiled:
            answer()
        expect.equal(compiled.graphs, 1)

    check, place = Check("look", "A check", look), check_run.Place()
    assert check_run.run(check, lambda: None, place).state == "wrong"
    gone(monkeypatch, "compiler_counters", "torch._dynamo.utils:no_such")
    outcome = check_run.run(check, lambda: None, place)
    assert outcome.state == "could not check"
    assert "has no `torch._dynamo.utils.no_such`" in outcome.message[0]


# --- what importing costs -----------------------------------------------------------------------------------

CHEAP = """
import sys
from course_utils import torch_private
assert not any(name in sys.modules for name in ("torch._dynamo", "torch._inductor")), "the compiler"
torch_private.current_graph_task_id
torch_private.version
assert not any(name in sys.modules for name in ("torch._dynamo", "torch._inductor")), "by a name"
torch_private.compiler_counters
assert "torch._dynamo" in sys.modules
"""


def test_the_compiler_is_imported_by_what_needs_it():
    subprocess.run([sys.executable, "-c", CHEAP], check=True)
