"""The graph holds what `pack` returns, and drops it after its last backward, or when the result goes away. So
each file gets an object: once the last graph has let go of it, `weakref.finalize` deletes the file.

A storage is known again by its address and a weak reference. The address alone won't do: the tensor is freed
once it's in the file, and another may get its place. The version tells of writes that autograd counts. The
table is weak as well, or it would hold the files. `as_strided` changes neither the dtype nor whether it's
conjugated, so a view that differs in these is written for itself."""

import contextlib
import uuid
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class _File:
    def __init__(self, folder: str, t: Tensor) -> None:
        self.path = Path(folder, str(uuid.uuid4()))
        torch.save(t.detach(), self.path)  # with all of its storage
        self.source = weakref.ref(t.untyped_storage())
        weakref.finalize(self, self.path.unlink, missing_ok=True)  # the folder may have gone first


@contextlib.contextmanager
def offload(folder: str, keep: Iterable[Tensor] = ()) -> Iterator[None]:
    kept = {t.untyped_storage().data_ptr(): t for t in keep}  # held, so that nobody else gets the address
    files: weakref.WeakValueDictionary = weakref.WeakValueDictionary()

    def pack(t):
        storage = t.untyped_storage()
        key = storage.data_ptr(), t._version, t.dtype, t.is_conj(), t.is_neg()
        if storage.data_ptr() in kept:
            return t.detach()
        file = files.get(key)
        if file is None or file.source() is not storage:
            file = files[key] = _File(folder, t)
        return file, t.size(), t.stride(), t.storage_offset()

    def unpack(packed):
        if isinstance(packed, Tensor):
            return packed
        file, *where = packed
        return torch.load(file.path).as_strided(*where)

    with saved_tensors_hooks(pack, unpack):
        yield


# Other right answers

from course_utils.exercise import Edit


def _how(t):
    return t._version, t.dtype, t.is_conj(), t.is_neg()


class _Handle:
    def __init__(self, path, t):
        self.path, self.alive, self.how = path, weakref.ref(t.untyped_storage()), _how(t)
        torch.save(t, path)

    def __del__(self):
        self.path.unlink(missing_ok=True)


def _hooks(folder, keep, handles_of):
    kept = [t.untyped_storage() for t in keep]

    def pack(t):
        storage, where = t.untyped_storage(), (t.size(), t.stride(), t.storage_offset())
        if any(storage is one for one in kept):
            return t.detach
        handles = handles_of(storage)
        same = [one for one in handles if one.alive() is storage and one.how == _how(t)]
        handle = same[0] if same else _Handle(Path(folder, uuid.uuid4().hex), t)
        handles.add(handle)
        return lambda: torch.load(handle.path).detach().as_strided(*where)

    return saved_tensors_hooks(pack, lambda load: load())


def _one_set(folder, keep=()):
    handles = weakref.WeakSet()
    return _hooks(folder, keep, lambda storage: handles)


def _on_the_storage(folder, keep=()):
    return _hooks(folder, keep, lambda storage: vars(storage).setdefault("handles", weakref.WeakSet()))


also_right = [_one_set, _on_the_storage]

mistakes = [
    Edit("takes an address for a storage", " or file.source() is not storage", "", told_by="gradients"),
    Edit("forgets the version", ", t._version", "", told_by="gradients"),
    Edit("forgets the dtype", ", t.dtype, t.is_conj(), t.is_neg()", "", told_by="gradients"),
    Edit("holds it", "weakref.ref(t.untyped_storage())", "t.untyped_storage", told_by="not_in_memory"),
    Edit("writes for each save", "file is None or", "True or", told_by="written"),
    Edit("holds the files", "weakref.WeakValueDictionary()\n", "{}\n", told_by="deleted"),
    Edit("counts the files", "uuid.uuid4()", "len([*Path(folder).iterdir()])", told_by="gradients"),
]

_LATE = "both delete the file; without it Python complains where the folder has gone first"
equivalent = {
    "line 17: `weakref.finalize(self, self.path.unlink, missing_ok=True)` -> "
    "`weakref.finalize(self, self.path.unlink)`": _LATE,
    "line 17: `True` -> `False`": _LATE,
    "line 15: `t.detach()` -> `t`": "the file holds the values, and whether they require grad, but no graph",
    "line 29: `t.detach()` -> `t`": "parameters are leaves; a computed tensor would hold its own node",
}
not_tried = {
    "hard numbers": "nothing is computed",
    "left alone": "a write would show in the gradients",
    "seeds": "nothing hangs on the numbers",
}
