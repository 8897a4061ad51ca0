"""What a forward keeps

How many bytes does a computation keep for its backward? `forward` is a function without arguments. Call it
once and return the number of bytes that its graph holds **when it has returned, and as long as its result
lives**.

- What counts is memory: each storage once, however many tensors in the graph read it, and the whole of it,
  however little of it they read.
- The storages of `parameters`, tensors that are there anyway, do not count, also where a view of one is kept.
  Every other tensor does, an input too. A number, such as the 2 in `x * 2`, does not.
- What was kept on the way, for a result that was thrown away before `forward` returned, has been freed and
  does not count.

Afterwards all is as it was: `forward` may raise, or run a backward of its own. Its result can be anything.

`torch.autograd.graph.saved_tensors_hooks(pack, unpack)` is a context: inside, autograd hands every tensor
that it would keep to `pack` and keeps what that returns, which may be any object; when backward needs the
tensor, `unpack` gets that object and has to give the tensor back. One warning: an operator may keep its own
result. The tensor that `pack` gets then leads, by its `grad_fn`, to the node that is about to keep it, and an
object which holds that tensor is never freed. `t.detach()` reads the same storage and has no `grad_fn`.

For `x = torch.ones(8, requires_grad=True)`, `bytes_saved(lambda: x.exp(), [])` → `32`
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=30,
    hints=[
        "`pack` sees every tensor that is kept. What identifies its storage, and where do you find the size "
        "of the whole of it? Compare storages with those of the parameters, too: a layer keeps `weight.t()`, "
        "which is another tensor than `weight`.",
        "Which of these are still kept at the end? The graph holds what `pack` returned. If that is an "
        "object of a class of your own, it lives exactly as long as the graph wants it.",
        "Let `pack` return a small object that holds the detached tensor, and remember it by a `weakref.ref` "
        "only. Keep the result in a variable while you go through the references: those that still lead to "
        "an object are what is kept. A dictionary from a storage's address to its size counts each once.",
    ],
)


@exercise.starter
def bytes_saved(forward: Callable[[], Any], parameters: Iterable[Tensor] = ()) -> int:
    """Bytes that the graph of `forward()` holds for backward, without those of the parameters"""
    raise NotImplementedError


def _expect_bytes(bytes_saved, setup, parameters="[]", wanted=None):
    t = expect.given(f"torch.manual_seed(0)\n{setup}", bytes_saved=bytes_saved)
    exclude = list(eval(parameters, t._names))
    if wanted is None:
        with evidence.silent():
            wanted = measure.saved_bytes(t.forward, exclude=exclude).total
    torch.manual_seed(0)
    came = t.call(f"bytes_saved(forward, {parameters})")
    expect.equal(came, wanted, what="the number of bytes")


def _x(device="cpu", more=""):
    return f"x = torch.ones(4, 4, device='{device}', requires_grad=True{more})\n"


@exercise.check
def one_operator(bytes_saved, device):
    """What single operators keep: their result, their input, or nothing"""
    x = _x(device.type)
    _expect_bytes(bytes_saved, x + "forward = lambda: x.exp()")
    _expect_bytes(bytes_saved, x + "forward = lambda: x.sin()")
    _expect_bytes(bytes_saved, x + "forward = lambda: x + 1")


@exercise.check
def other_dtypes(bytes_saved):
    """Tensors with wider and narrower elements"""
    _expect_bytes(bytes_saved, _x(more=", dtype=torch.float64") + "forward = lambda: x.exp()")
    _expect_bytes(bytes_saved, _x() + "forward = lambda: torch.where(x > 0, x.exp(), x)")


@exercise.check
def each_storage_once(bytes_saved):
    """A storage counts once, whoever reads it"""
    _expect_bytes(bytes_saved, _x() + "forward = lambda: x * x")
    _expect_bytes(bytes_saved, _x() + "def forward(): h = x.exp(); return h * h.sin()")
    _expect_bytes(bytes_saved, _x() + "def forward(): h = x * 2; return h @ h.t()")
    _expect_bytes(bytes_saved, _x() + "def forward(): a, b = (x * 2).chunk(2); return a * b")


@exercise.check
def whole_storage(bytes_saved):
    """A storage counts whole, even where a part of it is read, or one part several times"""
    _expect_bytes(bytes_saved, _x() + "def forward(): h = x * 2; return h[0].sin()")
    _expect_bytes(bytes_saved, _x() + "def forward(): h = x * 2; return h[0].expand(9, 4).sin()")


@exercise.check
def without_parameters(bytes_saved):
    """Parameters do not count, nor do views of them"""
    layer = "w = nn.Parameter(torch.ones(4, 4))\nforward = lambda: x * w"
    _expect_bytes(bytes_saved, _x() + layer, "[w]")
    net = "net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))\nforward = lambda: net(x)"
    _expect_bytes(bytes_saved, f"x = torch.randn(3, 4)\n{net}", "net.parameters()")
    scale = "w = torch.ones(4, 4, requires_grad=True)\nforward = lambda: x * w"
    _expect_bytes(bytes_saved, _x() + scale, "[w]")
    _expect_bytes(bytes_saved, _x() + scale, "[x, w]")
    part = "w = torch.ones(20)[4:].view(4, 4).requires_grad_()\nforward = lambda: x * w"
    _expect_bytes(bytes_saved, _x() + part, "[w]")
    row = "w = torch.ones(5, 4, requires_grad=True)\nforward = lambda: x * w[1]"
    _expect_bytes(bytes_saved, _x() + row, "[w]")
    _expect_bytes(bytes_saved, _x() + scale.replace("x * w", "x * w.detach()"), "[w]")
    _expect_bytes(bytes_saved, _x() + part.replace("x * w", "x * w.t()"), "[w]")
    _expect_bytes(bytes_saved, _x() + scale)
    # An `nn.Parameter` that is not among them; `measure` would leave it out.
    _expect_bytes(bytes_saved, _x() + layer, wanted=2 * 4 * 4 * 4)


@exercise.check
def what_was_freed(bytes_saved):
    """What was freed before `forward` returned does not count"""
    # What is freed comes last: no tensor that is kept later can get its address by chance.
    _expect_bytes(bytes_saved, _x() + "def forward(): y = x.exp(); (x * 2).sin(); return y")
    _expect_bytes(bytes_saved, _x() + "def forward(): (x * 2).sin(); (x * 3).cos(); return x.exp()")
    _expect_bytes(bytes_saved, _x() + "def forward(): x.sin().sum(); return (x * 2).sin()")
    _expect_bytes(bytes_saved, _x() + "def forward(): x.exp().sum(); return x.sin()")
    _expect_bytes(bytes_saved, _x() + "def forward(): return x.exp().sum().item()")
    # Two hold the storage of `x`; the one that is freed is the first, then the second.
    _expect_bytes(bytes_saved, _x() + "def forward(): x.sin().sum(); return x.sin()")
    _expect_bytes(bytes_saved, _x() + "def forward(): y = x.sin(); x.cos().sum(); return y")


@exercise.check
def networks(bytes_saved, device):
    """Networks: a convolution, a layer of a transformer, an LSTM"""
    convolution = "nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2))"
    transformer = "nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)"
    for net, size in ((convolution, (2, 2, 8, 8)), (transformer, (2, 3, 8)), ("nn.LSTMCell(4, 6)", (3, 4))):
        lines = f"net = {net}.to('{device.type}')\nx = torch.randn{size}.to('{device.type}')"
        _expect_bytes(bytes_saved, f"{lines}\nforward = lambda: net(x)", "net.parameters()")


@exercise.check
def any_result(bytes_saved):
    """`forward` runs once, and its result can be anything"""
    for result in ("[h]", "{'h': (h, 1)}", "(h.sum(), x)", "lambda: h"):
        setup = _x() + f"calls = []\ndef forward(): calls.append(1); h = x.exp() * 2; return {result}"
        t = expect.given(setup, bytes_saved=bytes_saved)
        came = t.call("bytes_saved(forward)")
        expect.equal(len(t.calls), 1, what="the number of calls of `forward`")
        expect.equal(came, t.x.nbytes, what="the number of bytes")


@exercise.check
def own_backward(bytes_saved):
    """A `forward` that runs a backward gets its tensors back; what is still held counts"""
    lines = "    h = x.exp().sin().sum()\n    (g,) = torch.autograd.grad(h, x, create_graph=True)\n"
    setup = _x() + "seen = []\ndef forward():\n" + lines + "    seen.append(g.detach())\n    return g * 1"
    t = expect.given(setup, bytes_saved=bytes_saved)
    expect.a_tensor(t.forward())
    _expect_int(t.call("bytes_saved(forward)"))
    expect.equal(t.seen[1], t.seen[0], what="the gradient that `forward` computed")
    for more in (", retain_graph=True", ""):
        lines = f"    y = x.exp() * x\n    torch.autograd.grad(y.sum(), x{more})\n    return y"
        _expect_bytes(bytes_saved, f"{_x()}def forward():\n{lines}")


@exercise.check
def leaves_nothing_behind(bytes_saved):
    """No hook stays installed, also when `forward` raises, and no tensor stays alive"""
    t = expect.given(_x() + "forward = lambda: x.exp().sin()", bytes_saved=bytes_saved)
    _expect_int(t.call("bytes_saved(forward)"))
    _expect_no_hooks()
    t = expect.given(_x() + "def forward(): x.exp(); return 1 // 0", bytes_saved=bytes_saved)
    expect.raises(ZeroDivisionError, lambda: t.call("bytes_saved(forward)"))
    _expect_no_hooks()
    lines = "def forward(): h = x.exp(); held.append(ref(h)); return h * 2"
    t = expect.given(f"from weakref import ref\nheld = []\n{_x()}{lines}", bytes_saved=bytes_saved)
    t.call("bytes_saved(forward)")
    expect.true(
        t.held[0]() is None,
        "the result of `x.exp()` is still in memory after `bytes_saved` has returned, and its graph with it",
        "expected: both are freed",
    )
    expect.true(t.x.grad is None, "`x.grad` was written to", "expected: nothing runs backward")


def _expect_int(came):
    expect.true(type(came) is int, f"the result is a {type(came).__name__}, expected an int")


def _expect_no_hooks():
    there = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    evidence.record("hooks", there)
    expect.true(not there, "hooks for saved tensors are still installed", "expected: none, as before")


class _Held:
    def __init__(self, tensor):
        self.tensor = tensor


def _every(t):
    return True


def _same(t):
    return t


def _collect(
    forward, hold=Tensor.detach, watch=_every, unpack=lambda held: held.tensor, alive=True, keep=True
):
    """The tensors that the graph holds, of those that `watch` wants; `alive=False`: all that it ever held."""
    found, everything = [], []

    def pack(t):
        held = _Held(hold(t))
        if watch(t):
            found.append(weakref.ref(held))
        if not alive:
            everything.append(held)
        return held

    with saved_tensors_hooks(pack, unpack):
        result = forward()
    if not keep:
        del result
    return [held.tensor for held in (ref() for ref in found) if held is not None]


def _place(t):
    return t.untyped_storage().data_ptr()


def _whole(t):
    return t.untyped_storage().nbytes()


def _storages(tensors):
    return {_place(t): _whole(t) for t in tensors}


def _without(sizes, parameters):
    own = _storages(parameters)
    return sum(size for place, size in sizes.items() if place not in own)


@exercise.mistake
def counts_parameters(forward, parameters=()):
    """Parameters are in your number. A layer keeps its weight for backward, but the weight is there anyway
    and costs nothing more."""
    return sum(_storages(_collect(forward)).values())


@counts_parameters.variant
def ignores_the_second_argument(forward, parameters=()):
    total, seen = 0, set()
    for t in _collect(forward):
        storage = t.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            total += storage.nbytes()
    return total


@exercise.mistake
def compares_tensors(forward, parameters=()):
    """You look for the parameters themselves among the tensors that are kept, and what a layer keeps is often
    a view of one, such as `weight.t()`: another tensor on the same storage. Compare storages."""
    own = list(parameters)
    kept = _collect(forward, watch=lambda t: not any(t is p for p in own))
    return sum(_storages(kept).values())


@compares_tensors.variant
def looks_for_parameters_by_type(forward, parameters=()):
    boxes = weakref.WeakSet()

    def pack(t):
        box = _Held(t.detach())
        if not isinstance(t, nn.Parameter):
            boxes.add(box)
        return box

    with saved_tensors_hooks(pack, lambda box: box.tensor):
        _result = forward()
    return sum(_storages(box.tensor for box in boxes).values())


@exercise.mistake
def compares_bases(forward, parameters=()):
    """You look for the parameters among the tensors that are kept and among their `_base`, which is None for
    `w.detach()`, and where a parameter is itself a view, is what the parameter is a view of. Compare
    storages."""
    own = list(parameters)
    kept = _collect(forward, watch=lambda t: not any(t is p or t._base is p for p in own))
    return sum(_storages(kept).values())


@exercise.mistake
def compares_first_elements(forward, parameters=()):
    """You look for the address of a parameter's first element, and a view of the parameter that begins
    further on, such as `w[1]`, has another. `untyped_storage().data_ptr()` is the address of the storage."""
    own = {p.data_ptr() for p in parameters}
    return sum(_storages(t for t in _collect(forward) if t.data_ptr() not in own).values())


@exercise.mistake
def goes_through_parameters_again(forward, parameters=()):
    """You go through `parameters` for each tensor that is kept, and `net.parameters()` is a generator: it can
    be gone through once, and is empty afterwards. Note the parameters' storages down first."""
    sizes = _storages(_collect(forward))
    for place in list(sizes):
        if place in [p.untyped_storage().data_ptr() for p in parameters]:
            del sizes[place]
    return sum(sizes.values())


@exercise.mistake
def leaves_out_a_kind(forward, parameters=()):
    """You leave out a kind of tensor, every `nn.Parameter` or every leaf that requires a gradient. Only the
    tensors in `parameters` are to be left out: an input that requires a gradient counts where it is kept, and
    so does a parameter that is not among them."""
    kept = _collect(forward, watch=lambda t: not (t.is_leaf and t.requires_grad))
    return _without(_storages(kept), parameters)


@leaves_out_a_kind.form
def leaves_out_every_parameter(forward, parameters=()):
    kept = _collect(forward, watch=lambda t: not any(isinstance(p, nn.Parameter) for p in (t, t._base)))
    return _without(_storages(kept), parameters)


@exercise.mistake
def subtracts_all_parameters(forward, parameters=()):
    """You subtract the size of all parameters from the sum, also of those that the graph does not hold. A
    linear layer has no need of its bias in backward: its bytes were never in the sum."""
    total = sum(_storages(_collect(forward)).values())
    return total - sum(_storages(parameters).values())


@exercise.mistake
def counts_every_save(forward, parameters=()):
    """You add up all tensors that are kept, and several of them may read one storage: `x * x` keeps `x`
    twice, and a tensor with its transpose is one piece of memory."""
    own = _storages(parameters)
    storages = [t.untyped_storage() for t in _collect(forward)]
    return sum(s.nbytes() for s in storages if s.data_ptr() not in own)


@counts_every_save.variant
def one_after_another(forward, parameters=()):
    places = [p.untyped_storage()._cdata for p in parameters]
    total = 0
    for t in _collect(forward):
        if t.untyped_storage()._cdata not in places:
            total = total + len(t.untyped_storage())
    return total


@exercise.mistake
def counts_views_again(forward, parameters=()):
    """You tell storages apart by the address of a tensor's first element. A view that begins further on has
    another one, and is counted again. `untyped_storage().data_ptr()` is the address of the storage."""
    own = {p.data_ptr() for p in parameters}
    sizes = {t.data_ptr(): t.untyped_storage().nbytes() for t in _collect(forward)}
    return sum(size for place, size in sizes.items() if place not in own)


@exercise.mistake
def counts_elements(forward, parameters=()):
    """You count the elements that a tensor shows, which are all that a clone of it has, too. A slice of a
    storage keeps the whole of it alive, and an expanded tensor shows one element many times.
    `untyped_storage().nbytes()` of the tensor that is kept, not of a copy, is the size of the memory."""
    sizes = {t.untyped_storage().data_ptr(): t.numel() * t.element_size() for t in _collect(forward)}
    return _without(sizes, parameters)


@counts_elements.variant
def bytes_of_the_tensor(forward, parameters=()):
    own, sizes = {p.untyped_storage()._cdata for p in parameters}, {}
    for t in _collect(forward):
        if t.untyped_storage()._cdata not in own:
            sizes[t.untyped_storage()._cdata] = t.nbytes
    return sum(sizes.values())


@counts_elements.form
def elements_of_each_save(forward, parameters=()):
    own = _storages(parameters)
    return sum(t.nbytes for t in _collect(forward) if t.untyped_storage().data_ptr() not in own)


@exercise.mistake
def four_bytes_each(forward, parameters=()):
    """You count four bytes for each element. float64 takes eight, and a mask of booleans one: a storage knows
    its own size in bytes, `nbytes()`."""
    sizes = {}
    for t in _collect(forward):
        storage = t.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes() // t.element_size() * 4
    return _without(sizes, parameters)


@exercise.mistake
def counts_what_was_freed(forward, parameters=()):
    """You count everything that was ever kept. Where a result is thrown away on the way, its graph goes with
    it and frees what it held. Count what is still there when `forward` has returned."""
    return _without(_storages(_collect(forward, alive=False)), parameters)


@counts_what_was_freed.variant
def keeps_every_storage(forward, parameters=()):
    own, storages = [p.untyped_storage()._cdata for p in parameters], {}

    def pack(t):
        storages[t.untyped_storage()._cdata] = t.untyped_storage()
        return t.detach()

    with saved_tensors_hooks(pack, lambda t: t):
        forward()
    return sum(s.nbytes() for place, s in storages.items() if place not in own)


@counts_what_was_freed.form
def counts_and_hands_it_back(forward, parameters=()):
    own, storages = _storages(parameters), {}

    def pack(t):
        storages[t.untyped_storage().data_ptr()] = t.untyped_storage()
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        forward()
    return sum(s.nbytes() for place, s in storages.items() if place not in own)


@exercise.mistake
def adds_up_what_passes(forward, parameters=()):
    """You add up sizes as the tensors pass through `pack`, which is not the memory that is kept: two of them
    may read one storage, one may read a part of its storage or a part several times, and some are freed
    before `forward` returns. Note down storages, and count each once when it has returned."""
    total, own = 0, _storages(parameters)

    def pack(t):
        nonlocal total
        if t.untyped_storage().data_ptr() not in own:
            total += t.numel() * t.element_size()
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        forward()
    return total


@adds_up_what_passes.variant
def sums_a_list(forward, parameters=()):
    own, sizes = [p.untyped_storage()._cdata for p in parameters], []

    def pack(t):
        sizes.append(0 if t.untyped_storage()._cdata in own else t.nbytes)
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        _result = forward()
    return sum(sizes)


def _passing(forward, hold, own=(), of=id, size=lambda t: t.numel() * t.element_size(), several=True):
    """The sizes of what passes through `pack`, except where `of` it is in `own`; once for each `of`, unless
    `several`."""
    sizes = []

    def pack(t):
        if of(t) not in own:
            sizes.append((len(sizes) if several else of(t), size(t)))
        return hold(t)

    with saved_tensors_hooks(pack, lambda t: t):
        forward()
    return sum(dict(sizes).values())


@adds_up_what_passes.form
def adds_up_all_that_passes(forward, parameters=()):
    return _passing(forward, _same)


@adds_up_what_passes.form
def adds_up_all_detached(forward, parameters=()):
    return _passing(forward, Tensor.detach)


@adds_up_what_passes.form
def adds_up_what_is_no_parameter(forward, parameters=()):
    return _passing(forward, _same, own={id(p) for p in parameters})


@adds_up_what_passes.form
def adds_up_detached_what_is_no_parameter(forward, parameters=()):
    return _passing(forward, Tensor.detach, own={id(p) for p in parameters})


@adds_up_what_passes.form
def adds_up_detached(forward, parameters=()):
    return _passing(forward, Tensor.detach, _storages(parameters), _place)


@adds_up_what_passes.form
def adds_up_storages_of_what_is_no_parameter(forward, parameters=()):
    return _passing(forward, _same, {id(p) for p in parameters}, size=_whole)


@adds_up_what_passes.form
def adds_up_storages_of_what_is_no_parameter_detached(forward, parameters=()):
    return _passing(forward, Tensor.detach, {id(p) for p in parameters}, size=_whole)


@adds_up_what_passes.form
def adds_up_storages(forward, parameters=()):
    return _passing(forward, _same, _storages(parameters), _place, size=_whole)


@adds_up_what_passes.form
def adds_up_storages_detached(forward, parameters=()):
    return _passing(forward, Tensor.detach, _storages(parameters), _place, size=_whole)


@adds_up_what_passes.form
def adds_up_by_first_element(forward, parameters=()):
    own = {p.data_ptr() for p in parameters}
    return _passing(forward, Tensor.detach, own, Tensor.data_ptr, several=False)


@adds_up_what_passes.form
def adds_up_by_storage(forward, parameters=()):
    return _passing(forward, Tensor.detach, _storages(parameters), _place, several=False)


@exercise.mistake
def one_holder_of_each(forward, parameters=()):
    """For each storage you remember one of those that hold it, and that one may be gone while another is
    there. What is thrown away and what stays can keep the same `x`. Remember all that `pack` returns."""
    seen = set(_storages(parameters))

    def watch(t):
        place = t.untyped_storage().data_ptr()
        is_new = place not in seen
        seen.add(place)
        return is_new

    return sum(_storages(_collect(forward, watch=watch)).values())


@one_holder_of_each.form
def the_last_holder_of_each(forward, parameters=()):
    holders = weakref.WeakValueDictionary()

    def pack(t):
        held = _Held(t.detach())
        holders[t.untyped_storage().data_ptr()] = held
        return held

    with saved_tensors_hooks(pack, lambda held: held.tensor):
        _result = forward()
    return _without(_storages(held.tensor for held in holders.values()), parameters)


@exercise.mistake
def unpacked_is_gone(forward, parameters=()):
    """You take what has come through `unpack` for freed, but to read a tensor is not to let go of it. After a
    backward with `retain_graph=True` the graph still holds what it has read, and a graph that is thrown away
    is freed without a call of `unpack`. What `pack` returned lives as long as the graph holds it."""
    boxes = weakref.WeakSet()

    def pack(t):
        boxes.add(box := _Held(t.detach()))
        return box

    def unpack(box):
        boxes.discard(box)
        return box.tensor

    with saved_tensors_hooks(pack, unpack):
        _result = forward()
    return _without(_storages(box.tensor for box in boxes), parameters)


@unpacked_is_gone.form
def packed_without_unpacked(forward, parameters=()):
    boxes = []

    def unpack(box):
        if box in boxes:
            boxes.remove(box)
        return box.tensor

    with saved_tensors_hooks(lambda t: boxes.append(_Held(t.detach())) or boxes[-1], unpack):
        _result = forward()
    return _without(_storages(box.tensor for box in boxes), parameters)


@exercise.mistake
def watches_the_tensor(forward, parameters=()):
    """You watch the tensors that come to `pack`, and they live and die for other reasons than the graph: the
    caller's `x` is there whether the graph holds it or not. Watch an object that nobody but the graph holds,
    the one that `pack` returns."""
    seen = []
    with saved_tensors_hooks(lambda t: seen.append(weakref.ref(t)) or t, lambda t: t):
        _result = forward()
    return _without(_storages(t for t in (ref() for ref in seen) if t is not None), parameters)


@watches_the_tensor.form
def watches_and_hands_over_another(forward, parameters=()):
    seen = []
    with saved_tensors_hooks(lambda t: seen.append(weakref.ref(t)) or t.detach(), lambda t: t):
        _result = forward()
    return _without(_storages(t for t in (ref() for ref in seen) if t is not None), parameters)


@exercise.mistake
def holds_its_own_node(forward, parameters=()):
    """What you hand to autograd holds the tensor with its `grad_fn`. Where an operator keeps its own result,
    that is a circle, from the node to the tensor and back, and is never freed: a result that was thrown away
    still counts, and its memory is lost for good. Hold `t.detach()`."""
    return _without(_storages(_collect(forward, hold=_same)), parameters)


@exercise.mistake
def throws_the_result_away(forward, parameters=()):
    """The result is gone when you count, and with it the graph and all that it held. Keep it in a variable
    until you have counted."""
    return _without(_storages(_collect(forward, keep=False)), parameters)


@exercise.mistake
def without_a_graph(forward, parameters=()):
    """Under `torch.no_grad()` no graph is built, so nothing is kept. The question is what `forward` keeps
    when it is called as it would be in training."""
    with torch.no_grad():
        return _without(_storages(_collect(forward)), parameters)


@exercise.mistake
def no_way_back(forward, parameters=()):
    """Your `unpack` does not give the tensor back. Nobody asks as long as no backward runs; a `forward` that
    computes a gradient itself gets what you return in place of the tensor that it kept."""
    return _without(_storages(_collect(forward, unpack=lambda held: None)), parameters)


@exercise.mistake
def hooks_stay(forward, parameters=()):
    """Your hooks stay installed when `forward` raises: from then on every forward goes through them. A `with`
    block takes them away whatever happens."""
    found = []

    def pack(t):
        held = _Held(t.detach())
        found.append(weakref.ref(held))
        return held

    hooks = saved_tensors_hooks(pack, lambda held: held.tensor)
    hooks.__enter__()
    result = forward()
    hooks.__exit__()
    sizes = _storages(held.tensor for held in (ref() for ref in found) if held is not None)
    del result
    return _without(sizes, parameters)


@exercise.mistake
def runs_it_twice(forward, parameters=()):
    """`forward` ran twice. It may draw random numbers or count its calls, as dropout and batch normalisation
    do: one call has to be enough."""
    forward()
    return _without(_storages(_collect(forward)), parameters)


@exercise.mistake
def counts_the_result(forward, parameters=()):
    """The result of `forward` is in your number. It counts only where an operator has kept it for
    backward."""
    results = []
    tensors = _collect(lambda: results.append(forward()))
    return _without(_storages(tensors + [r for r in results if isinstance(r, Tensor)]), parameters)


@exercise.mistake
def leaves_out_the_result(forward, parameters=()):
    """You leave out the result of `forward`. Where an operator has kept it for backward, as `exp` does, it
    counts: only the tensors in `parameters` are left out."""
    results = []
    tensors = _collect(lambda: results.append(forward()))
    return _without(_storages(tensors), [*parameters, *(r for r in results if isinstance(r, Tensor))])


@exercise.mistake
def reads_the_nodes(forward, parameters=()):
    """You read what the nodes show as `_saved_...`, from `result.grad_fn` on: among that is the number of
    `x * 2`, too, as a tensor, and a result that is a list or a function has no `grad_fn`. Each tensor that is
    kept passes through the hooks, whatever the result is."""
    sizes, seen = {}, set()
    result = forward()
    waiting = [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for name in dir(node):
            if name.startswith("_saved_"):
                value = getattr(node, name)
                several = value if isinstance(value, (list, tuple)) else [value]
                sizes |= _storages(t for t in several if isinstance(t, Tensor))
        waiting += [following for following, _ in node.next_functions]
    return _without(sizes, parameters)
