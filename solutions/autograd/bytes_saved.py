"""The tensors that torch's own nodes keep go through `pack`, which can note them. (Python numbers don't, and
neither do attributes of a custom Function's `ctx`.) The rest is counting memory. Views share a storage, and a
slice keeps all of it. So note the storage, not the tensor. Do the same for the parameters, because layers
keep views of them such as `weight.t()`.

`pack` could return something smaller: the tensor in half precision, or its place on a disk. The graph holds
what `pack` returns, so this must not hold the graph.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


def bytes_saved(forward: Callable[[], Any], parameters: Iterable[Tensor] = ()) -> int:
    """Bytes that the graph of `forward()` keeps for backward, without parameters"""
    own = {p.untyped_storage().data_ptr() for p in parameters}
    sizes = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return t.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        forward()
    return sum(sizes.values())


# Other right answers

import weakref

from torch.autograd.graph import saved_tensors_hooks

from course_utils.exercise import Edit, Wrong


def _what_is_still_held(forward, parameters=()):
    """Counts at the end: a box dies with the node that holds it."""

    class Box(list):
        __hash__ = object.__hash__

    boxes = weakref.WeakSet()

    def pack(t):
        boxes.add(box := Box([t.detach()]))
        return box

    with saved_tensors_hooks(pack, lambda box: box[0]):
        _result = forward()
    own = [p.untyped_storage()._cdata for p in parameters]
    storages = [box[0].untyped_storage() for box in boxes]
    return sum({s._cdata: s.nbytes() for s in storages if s._cdata not in own}.values())


def _a_list_of_storages(forward, parameters=()):
    seen = []
    with saved_tensors_hooks(lambda t: seen.append(t.untyped_storage()) or t.data, lambda t: t):
        forward()
    own = [p.untyped_storage().data_ptr() for p in parameters]
    return sum({s.data_ptr(): s.nbytes() for s in seen if s.data_ptr() not in own}.values())


also_right = [_what_is_still_held, _a_list_of_storages]


# Mistakes


def _adds_up_what_passes(forward, parameters=()):
    total, own = 0, [p.untyped_storage().data_ptr() for p in parameters]

    def pack(t):
        nonlocal total
        total += t.nbytes if t.untyped_storage().data_ptr() not in own else 0
        return t.detach()

    with saved_tensors_hooks(pack, lambda t: t):
        forward()
    return total


_IN = "if storage.data_ptr() not in own"

mistakes = [
    Wrong(_adds_up_what_passes, told_by="each_storage_once"),
    Edit("counts views twice", "sizes[storage.", "sizes[t.", told_by="each_storage_once"),
    Edit("counts elements", "= storage.nbytes()", "= t.nbytes", told_by="whole_storage"),
    Edit("counts the parameters", _IN, "if True", told_by="without_parameters"),
    Edit("looks for tensors", _IN, "if all(t is not p for p in parameters)", told_by="without_parameters"),
    Edit("builds no graph", "    with torch", "    with torch.no_grad(), torch", told_by="one_operator"),
    Edit("no way back", "lambda t: t)", "lambda t: None)", told_by="as_in_training"),
    Edit("the graph holds itself", "return t.detach()", "return t", told_by="leaves_nothing_behind"),
]
not_tried = {"hard numbers": "no element is read"}

_SAME = "Torch has one object for a storage, as long as somebody holds it, and here the dictionary does."
equivalent = {"line 16: `storage.data_ptr()` -> `storage`": _SAME}
