"""Activations on disk

Write a context manager `offload(folder, keep)`: what autograd saves inside it goes to files in `folder`, and
is read back in backward.

- What shares storage with a tensor in `keep` stays in memory, and nothing else. `keep` may be
  `model.parameters()`, a generator.
- A storage is written once, however many nodes and views save it. If it was written to in between
  (`t._version` changed), it counts as another one.
- A file is deleted once no graph needs it, whether backward ran or not, even while the block goes on.

`folder` exists and may hold other files. Several graphs may use it at a time.

`with offload("/tmp", model.parameters()): loss = model(x).sum()`
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=25,
    hints=[
        "`pack` may return any object. The graph holds it until backward is done, or the graph is gone. Who "
        "else holds it? `weakref.finalize(thing, os.unlink, path)` deletes a file once nobody does.",
        "`torch.save(t.detach(), path)` writes all of a view's storage; `as_strided` makes another view of "
        "what `torch.load` gives. A table of files mustn't hold them: see `weakref.WeakValueDictionary`.",
        "Once a storage is freed, another may get its address. So keep a weak reference to it beside the "
        "path, and use the file again only if it still gives this storage, and `t._version` is the same.",
    ],
)


@exercise.starter
def offload(folder: str, keep: Iterable[Tensor] = ()) -> AbstractContextManager:
    raise NotImplementedError


_SETUP = """
import functools, tempfile
from pathlib import Path
here = tempfile.TemporaryDirectory()
folder = here.name
def sizes():
    return sorted(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
x, a, b, c = [torch.rand(64, 64, device=device, requires_grad=True) for _ in range(4)]
def f(x):
    return """
_GRAPHS = {
    "an address used again": "functools.reduce(lambda y, _: (y * 1.5).sin(), range(20), x)",
    "a write in between": "(x * 2).sin() + (x * 2 + 1).cos()",
    "views": "(torch.cat([x, x.t()]).view(2, 4, 16, 64).transpose(1, 2) * x[0]).flip(0).sin().mT.exp()",
    "two parts of one tensor": "sum(part.sin() for part in (x * 2).split(32))",
    "dropout": "F.dropout(x.sin(), 0.5).exp()",
    "bfloat16": "x.bfloat16().sin().exp().float()",
    "a single number": "x.sum().sin().exp() * x.std()",
    "a kept tensor": "(x * c).sin() @ c.t()",
}
_WRITE = "h = x * 2\ny = h.sin()\nh.add_(1)\ny = y + h.cos()  # which is f(x)"
_WRITTEN = {
    "one input of three products": ("[x @ w for w in (a, b, c)]", "[]"),
    "parts of a result": ("[part.sin() for part in (x @ a).exp().split(8)]", "[]"),
    "a view of a kept tensor": ("(x @ a).exp() @ a[:32].t()", "[a]"),
    "a tensor of which a part is kept": ("(x @ a).exp() @ a", "[a[8:]]"),
    "a generator": ("x @ a @ b", "(t for t in [a, b])"),
}
_DELETED = {
    "no backward": "out = f(x)\ndel out",
    "a second backward": "out = f(x)\nout.backward(retain_graph=True)\nout.backward()",
    "two graphs": "out, other = f(x), f(x)\nout.backward()\nother.backward()",
}


def _inside(lines):
    return "with offload(folder, [c]):\n" + "\n".join(f"    {line}" for line in lines.splitlines())


def _expect_written(t, keep="[]"):
    """The files hold each storage that the graph of `f(x)` saves, once, and little else."""
    saved = measure.saved_bytes(t.f, t.x, exclude=list(t.call(keep)))
    t.run(f"def written():\n    with offload(folder, {keep}):\n        y = f(x)\n    return sum(sizes())")
    found, most = t.call("written()"), saved.total + 4096 * len({one.storage for one in saved.tensors})
    expected = f"expected: {saved.total:,}, and less than 4,096 more for each storage"
    expect.true(saved.total <= found <= most, f"{found:,} bytes are in the folder", expected)


@exercise.check
def gradients(offload, device):
    """Gradients are those of a graph in memory, as often as backward is called

    What comes back has the size and the dtype of what was saved. Once in its file, an activation is freed,
    and the next of that size often gets its address, or the `id` of its Python object. After a write there
    are new contents at an old address, and versions of what hooks have packed aren't compared.
    """
    with Rows() as rows:
        for label, code in _GRAPHS.items():
            with rows.of(label):
                t = expect.given(_SETUP + code, offload=offload, device=device)
                lines = _WRITE if label == "a write in between" else "y = f(x)"
                t.run(f"torch.manual_seed(0)\n{_inside(lines)}")
                torch.manual_seed(0)
                (wanted,) = torch.autograd.grad(t.f(t.x).sum(), t.x)
                for retain in (True, False):
                    found = t.call(f"torch.autograd.grad(y.sum(), x, retain_graph={retain})[0]")
                    expect.equal(found, wanted, what="the gradient")


@exercise.check
def not_in_memory(offload, device):
    """After the forward, what is saved is in files, and not in memory

    The graph holds what `pack` returns. As long as a tensor, a storage or an array can be reached from there,
    or from a table that lives as long, its memory isn't free.
    """
    t = expect.given(_SETUP + "x.sin().cos().tan().exp()", offload=offload, device=device)
    _expect_written(t)
    t.run("def forward():\n    with offload(folder):\n        return f(x) + 1")
    live = measure.live_bytes(t.forward)
    expect.at_most(live.held - live.result, 0, "made by `forward()` and still in memory", unit="bytes")


@exercise.check
def written(offload, device):
    """The folder holds each storage that is saved once, and none of those in `keep`

    Each node saves for itself, so the input of three products is packed three times. Parts share one storage,
    and so do `weight` and the `weight.t()` that a linear layer saves. A generator can be read once.
    """
    with Rows() as rows:
        for label, (code, keep) in _WRITTEN.items():
            with rows.of(label):
                _expect_written(expect.given(_SETUP + code, offload=offload, device=device), keep)


@exercise.check
def deleted(offload, device):
    """Once no graph needs a file, it's gone, though the block goes on

    Nobody tells you when a graph ends: it drops what `pack` has returned, after backward or when its result
    goes away. So a file is deleted with the object that stands for it, and nothing else may hold that object:
    no table inside the block, and not `x`, which lives on.
    """
    with Rows() as rows:
        for label, lines in _DELETED.items():
            with rows.of(label):
                t = expect.given(_SETUP + "((x @ a).exp() @ b).sin().sum()", offload=offload, device=device)
                t.run("Path(folder, 'mine').write_text('here before')")
                t.run(_inside(f"{lines}\nleft = sizes()"))
                expect.equal(t.left, [11], what="`left` (the sizes of the files)")
