"""Activations on disk

Write a context manager `offload(folder, keep)`: what autograd saves inside it goes to files in `folder`, and
is read back in backward.

- What shares storage with a tensor in `keep` stays in memory, and nothing else. `keep` may be
  `model.parameters()`, a generator.
- A storage is written once, however many nodes and views save it. If it was written to in between
  (`t._version` changed), it counts as another one. So may a view that is complex or conjugated.
- A file is deleted once no graph needs it, whether backward ran or not, even while the block goes on.

`folder` exists and may hold other files. Several graphs may use it at a time.

`with offload("/tmp", model.parameters()): loss = model(x).sum()`
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, contextmanager

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from course_utils import measure
from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=25,
    hints=[
        "`pack` may return any object. The graph holds it as long as it may need it. Who else "
        "holds it? `weakref.finalize(thing, os.unlink, path)` deletes a file once nobody does.",
        "`torch.save(t.detach(), path)` writes all of a view's storage; `as_strided` makes another view of "
        "what `torch.load` gives. A table of files mustn't hold them: see `weakref.WeakValueDictionary`.",
        "Once a storage is freed, another may get its address. So keep a weak reference to it beside the "
        "path, and use the file again only if it still gives this storage, and `t._version`, `t.dtype` and "
        "`t.is_conj()` are the same.",
    ],
)


@exercise.starter
def offload(folder: str, keep: Iterable[Tensor] = ()) -> AbstractContextManager:
    raise NotImplementedError


_SETUP = """
import tempfile
from pathlib import Path
here = tempfile.TemporaryDirectory()
folder = here.name
def sizes():
    return sorted(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
torch.manual_seed(0)
x, a, b, c = [torch.rand(64, 64, device=device, requires_grad=True) for _ in range(4)]
def f(x):
    return """
_BLOCK = "with offload(folder, [c]):"
# Only in the one that says so does a storage get the address of another.
_GRAPHS = {
    "views": "x[2] * c.t()[0] * ((h := torch.cat([x, x.t()]).view(2, 64, 64).mT) * x[1]).sin()",
    "dropout": "F.dropout(x.sin(), 0.5)",
    "bfloat16": "x.bfloat16().sin().float()",
    "complex views": "((z := torch.view_as_complex(x.exp().view(64, 32, 2))) * z.conj() * z).real",
    "an address used again": "times(times(times(x, 2), 3), 4)",
    "a write in between": "x * 2",
    "several graphs": "x.sin().exp()",
}
_LINES = {
    "an address used again": f"""
memory = torch.empty(64, 64)
def times(x, n):  # each factor is a storage of its own, in the same place
    return x * torch.from_numpy(memory.fill_(n).numpy()).to(x.device)
{_BLOCK}\n    y = f(x)""",
    "a write in between": f"{_BLOCK}\n    h = f(x)\n    y = h.sin()\n    h.add_(1)\n    y = y + h.cos()",
    "several graphs": f"{_BLOCK}\n    first, y = f(x), f(x)\n    del first\n{_BLOCK}\n    other = f(f(x))",
}
_GRADS = "grads = [torch.autograd.grad(y.sum(), x, retain_graph=more)[0] for more in (True, False)]"
_WRITTEN = {
    "one input of three products": ("[x @ w for w in (a, b, c)]", "[]"),
    "parts of a result": ("[part.sin() for part in (x @ a).exp().split(8)]", "[]"),
    "a view of a tensor of which a part is kept": ("(x @ a).exp() @ a[32:].t()", "[a[8:16]]"),
    "a generator": ("x @ a @ b", "(t for t in [a, b])"),
    "after a block that raised": (
        "x.sin().exp()\ntry:\n    with offload(folder):\n        1 / 0\n"
        "except ZeroDivisionError:\n    outside = f(x)",
        "[]",
    ),
}
_DELETED = {
    "no backward": "out = f(x)\n    del out",
    "a second backward": "out = f(x)\n    out.backward(retain_graph=True)\n    out.backward()",
}


@contextmanager
def _given(offload, device, code):
    t = expect.given(_SETUP + code, offload=offload, device=device)
    yield t
    t.run("y = first = other = None  # before their folder goes\nhere.cleanup()")


def _in_memory(folder, keep=()):
    return saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)


@exercise.check
def not_in_memory(offload, device):
    """After the forward, what is saved is not in memory

    The graph holds what `pack` returns. As long as a tensor, a storage or an array can be reached from there,
    or from a table that lives as long, its memory isn't free.
    """
    with _given(offload, device, "x.sin().exp() + 1") as t:
        t.run("def forward():\n    with offload(folder):\n        return f(x)")
        live = measure.live_bytes(t.forward)
        expect.at_most(live.held - live.result, 0, "made by `forward()` and still in memory", unit="bytes")


@exercise.check(
    cases={label: (code, _LINES.get(label, f"{_BLOCK}\n    y = f(x)")) for label, code in _GRAPHS.items()}
)
def gradients(offload, device, code, lines):
    """Gradients are those of a graph in memory, as often as backward is called

    Each backward reads anew, and needs the size, strides and dtype of what was saved. A complex view and what
    it's a view of have one storage, and so have a tensor and its `conj()`. A tensor that is freed may leave
    its address and the `id` of its Python object to the next. After a write there are new contents at an old
    address. A name for a file that comes from a counter, or from the number of files, may be in use.
    """
    wanted = None
    for one in (_in_memory, offload):
        with _given(one, device, code) as t:
            t.run(lines)
            t.run(_GRADS)
            wanted = wanted or t.grads
            expect.equal(t.grads, wanted, what="`grads`")


@exercise.check(cases=_WRITTEN)
def written(offload, device, code, keep):
    """The folder holds each storage that is saved once, and none of those in `keep`

    Each node saves for itself, leaves like `x` too: the input of three products is packed three times. Parts
    share one storage, and so do `weight` and its `weight.t()`. A generator can be read once. Hooks are taken
    off by a `with`, or in a `finally`, also where the block raises.
    """
    with _given(offload, device, code) as t:
        saved = measure.saved_bytes(t.f, t.x, exclude=list(t.call(keep)))
        t.run(f"with offload(folder, {keep}):\n    y = f(x)")
        found, storages = sum(t.call("sizes()")), len({one.storage for one in saved.tensors})
        told = f"{saved.total:,}, of {storages} storages, and less than 4,096 more for each"
        fits = 0 <= found - saved.total <= 4096 * storages
        expect.true(fits, f"{found:,} bytes are in the folder", f"expected: {told}")


@exercise.check(cases=_DELETED)
def deleted(offload, device, lines):
    """Once no graph needs a file, it's gone, though the block goes on

    A graph drops what `pack` has returned after its last backward, or when its result goes away. So a file
    goes with the object that stands for it. Nothing else may hold that: no table in the block, and not `x`.
    """
    with _given(offload, device, "((x @ a).exp() @ b).sin().sum()") as t:
        t.run("Path(folder, 'mine').write_text('here before')")
        t.run(f"{_BLOCK}\n    {lines}\n    left = sizes()")
        expect.equal(t.left, [11], what="`left` (the sizes of the files)")
