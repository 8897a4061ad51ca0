"""Scans with the grain

`scans` is a list of functions. Each of them takes a tensor with the shape of `x` and reads it in lines along
dimension `dim`, one element after the other. Return the list of what they return, in their order.

Memory is fetched in pieces of 64 bytes or more. A line whose elements lie side by side uses all of a piece;
one whose elements lie far apart fetches a piece for each. So see to it that each scan is given a tensor with
stride 1 along `dim`, and otherwise like `x`: the same shape, the same elements in their places.

That may take a copy. There is to be one, however many scans there are, with room for the elements of `x`
and no more; where `x` has stride 1 along `dim` already, there is to be none. `x` stays as it is, and a
gradient reaches it. `dim` may be negative and then counts from the end. Any operator of torch's is welcome.

There is at least one scan. `x` may be any view, and holds elements, more than one along `dim`: in an empty
tensor, or with size 1 along `dim`, no step is taken and any stride is right.

With `x = torch.zeros(3, 4)`, `with_the_grain(x, 0, [lambda t: t.stride()])` is `[(1, 3)]`, and with 1 in
place of 0 it is `[(4, 1)]`
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=15,
    hints=[
        "Which dimension has stride 1 in a new, contiguous tensor? And what does a transpose do to the "
        "strides, and what to the elements?",
        "Shape and layout are two things. Turn the view so that `dim` comes last, have that laid out anew, "
        "and turn the result back: the shape is the old one, and the strides are not.",
        "`movedim` takes a dimension from one place to another without a copy, and `contiguous` copies where "
        "the strides ask for it. Look at the stride along `dim` first, and lay the elements out before the "
        "scans begin, not inside their loop.",
    ],
)


@exercise.starter
def with_the_grain(x: Tensor, dim: int, scans: list[Callable[[Tensor], Any]]) -> list[Any]:
    """What each scan returns, given the elements of `x` in a tensor with stride 1 along `dim`"""
    raise NotImplementedError


# Tensors and a dimension of each that runs against the grain, and with it.
_AGAINST = [
    ("x = torch.arange(12).reshape(3, 4)", 0),
    ("x = torch.arange(24).reshape(2, 3, 4)", 1),
    ("x = torch.arange(24).reshape(2, 3, 4)", 0),
    ("x = torch.arange(12).reshape(3, 4).t()", 1),
    ("x = torch.arange(48).reshape(2, 4, 2, 3).permute(0, 3, 1, 2)", 2),
    ("x = torch.arange(30).reshape(5, 6)[1:4, 2:]", 0),
    ("x = torch.arange(24).reshape(3, 8)[:, ::2]", 1),
    ("x = torch.arange(4).expand(3, 4)", 0),
]
_WITH = [
    ("x = torch.arange(12).reshape(3, 4)", 1),
    ("x = torch.arange(12).reshape(3, 4).t()", 0),
    ("x = torch.arange(24).reshape(4, 6)[:, 1:]", 1),
    ("x = torch.arange(24).reshape(2, 3, 4).transpose(0, 2)", 0),
    ("x = torch.arange(24).reshape(2, 3, 4)[:, :, 1:3].transpose(1, 2)", 1),
]


def _handed_over(with_the_grain, setup, dim, times=2):
    """The example, and the tensors that the scans were given: these scans return them."""
    t = expect.given(f"{setup}\nscans = [lambda t: t] * {times}", with_the_grain=with_the_grain)
    given = t.call(f"with_the_grain(x, {dim}, scans)")
    if not isinstance(given, (list, tuple)) or len(given) != times:
        expect.equal(given, [t.x] * times)
    return t, given


def _expect_grain(with_the_grain, cases):
    """Every scan is given the elements of `x` in their places, with stride 1 along `dim`. The strides
    in all cases are evidence; the first that is another is shown."""
    first = None
    for setup, dim in cases:
        t, given = _handed_over(with_the_grain, setup, dim)
        for number, tensor in enumerate(given):
            what = f"what `scans[{number}]` was given"
            expect.equal(tensor, t.x, what=what)
            step, width = tensor.stride(dim), tensor.element_size()
            evidence.record("step along dim", step)
            if step != 1 and first is None:
                first = expect.Mismatch(
                    f"{what} has strides {tensor.stride()}",
                    f"a step along dimension {dim} goes {step * width} bytes, "
                    f"expected {width}: to the next element",
                )
    if first is not None:
        raise first


@exercise.check
def results(with_the_grain):
    """What each scan returns, in order"""
    setup = """x = torch.arange(12).reshape(3, 4)
scans = [lambda t: t.cumsum(0), lambda t: [line.tolist() for line in t.unbind(1)], lambda t: 'third']"""
    t = expect.given(setup, with_the_grain=with_the_grain)
    lines = [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    sums = torch.tensor([[0, 1, 2, 3], [4, 6, 8, 10], [12, 15, 18, 21]])
    expect.equal(t.call("with_the_grain(x, 0, scans)"), [sums, lines, "third"])


@exercise.check
def stride_one(with_the_grain):
    """Every scan is given a tensor with stride 1 along `dim`"""
    _expect_grain(with_the_grain, _AGAINST)


@exercise.check
def already_there(with_the_grain):
    """Nothing is copied where the stride is 1 already"""
    for setup, dim in _WITH:
        t, given = _handed_over(with_the_grain, setup, dim)
        for number, tensor in enumerate(given):
            expect.equal(tensor, t.x, what=f"what `scans[{number}]` was given")
            expect.same_storage(tensor, t.x, what=f"what `scans[{number}]` was given", of="`x`")


@exercise.check
def from_the_end(with_the_grain):
    """A negative `dim` counts from the end"""
    cases = [*_AGAINST, *_WITH]
    _expect_grain(with_the_grain, [(setup, dim - expect.given(setup).x.dim()) for setup, dim in cases])


@exercise.check
def one_copy(with_the_grain):
    """One copy, however many scans there are, and no larger than `x`"""
    for setup, dim in _AGAINST:
        for times in (1, 5):
            t = expect.given(f"{setup}\nscans = [lambda t: t] * {times}", with_the_grain=with_the_grain)
            with measure.operators() as ran:
                peak = measure.peak_bytes(t.call, f"with_the_grain(x, {dim}, scans)")
            number = f"{times} scan" + "s" * (times > 1)
            expect.at_most(ran.copies, 1, f"copies made for {number}")
            expect.at_most(peak.allocated, t.x.nbytes, f"memory allocated for {number}", unit="bytes")


@exercise.check
def left_alone(with_the_grain, device):
    """`x` stays as it is, on every device"""
    for dtype in (torch.float32, torch.uint8):
        made = torch.arange(6, dtype=dtype, device=device).reshape(2, 3)
        setup = f"x = torch.arange(6, dtype={dtype}, device='{device.type}').reshape(2, 3)"
        t = expect.given(f"{setup}\nscans = [lambda t: t.clone()]", with_the_grain=with_the_grain)
        before = t.x.data_ptr()
        expect.equal(t.call("with_the_grain(x, 0, scans)"), [made])
        expect.unchanged(t.x, made, what="`x`")
        expect.strides(t.x, (3, 1), what="`x`, after the call,")
        expect.true(
            t.x.data_ptr() == before and t.x._version == 0,
            "`x` was written to, or given another storage, while your function ran",
            "expected: it stays as it is",
        )


@exercise.check
def gradients(with_the_grain):
    """A gradient reaches `x` through every scan"""
    for dim in (0, 1):
        setup = "x = torch.arange(6.).reshape(2, 3).requires_grad_()"
        setup += "\nscans = [lambda t: 2 * t, lambda t: t * t]"
        t = expect.given(setup, with_the_grain=with_the_grain)
        found = t.call(f"with_the_grain(x, {dim}, scans)")
        expect.equal(found, [2 * t.x.detach(), t.x.detach() ** 2])
        expect.true(
            all(tensor.requires_grad for tensor in found),
            "`x` requires a gradient, and what a scan was given does not: it has left the graph",
            "expected: a copy that is part of the graph",
        )
        (found[0].sum() + found[1].sum()).backward()
        expect.true(t.x.grad is not None, "no gradient reaches `x`", "expected: one does")
        expect.equal(t.x.grad, 2 + 2 * t.x.detach(), what="`x.grad`")


# --- the mistakes -----------------------------------------------------------------------------------------


def _laid_out(x, dim):
    return x if x.stride(dim) == 1 else x.movedim(dim, -1).contiguous().movedim(-1, dim)


@exercise.mistake
def never_copies(x, dim, scans):
    """The scans are given `x` as it is. Where its stride along `dim` is not 1 they walk against the grain,
    each of them, every time. One copy before the first scan spares all of them that."""
    return [scan(x) for scan in scans]


@never_copies.variant
def maps_over_x(x, dim, scans):
    def run(scan):
        return scan(x.movedim(dim, -1).movedim(-1, dim))

    return list(map(run, scans))


@exercise.mistake
def copies_for_every_scan(x, dim, scans):
    """You lay `x` out anew for every scan. The layout is the same for all of them: one copy, made before the
    first scan, serves the others too."""
    return [scan(_laid_out(x, dim)) for scan in scans]


@copies_for_every_scan.variant
def lays_out_in_the_loop(x, dim, scans):
    found = []
    for scan in scans:
        line_by_line = x
        if x.stride()[dim] != 1:
            line_by_line = x.transpose(dim, -1).clone(memory_format=torch.contiguous_format)
            line_by_line = line_by_line.transpose(-1, dim)
        found.append(scan(line_by_line))
    return found


@exercise.mistake
def contiguous_as_it_is(x, dim, scans):
    """You call `contiguous` on `x` as it stands. That gives stride 1 to the last dimension, whatever `dim`
    is; where `x` is contiguous already it does nothing at all."""
    x = x.contiguous()
    return [scan(x) for scan in scans]


@contiguous_as_it_is.variant
def row_by_row(x, dim, scans):
    laid_out = x if x.is_contiguous() else x.clone(memory_format=torch.contiguous_format)
    return [scan(laid_out.view(x.shape)) for scan in scans]


@exercise.mistake
def clones_in_the_old_order(x, dim, scans):
    """You turn the view and clone it. `clone` keeps the order of the dimensions in memory: a turned tensor
    stays turned, and turned back it has the strides that `x` had. `contiguous` and
    `memory_format=torch.contiguous_format` lay the elements out in the order of the shape."""
    if x.stride(dim) != 1:
        x = x.transpose(dim, -1).clone().transpose(dim, -1)
    return [scan(x) for scan in scans]


@clones_in_the_old_order.variant
def copies_into_one_like_it(x, dim, scans):
    if x.stride()[dim] == 1:
        return [scan(x) for scan in scans]
    turned = x.transpose(-1, dim)
    made = torch.empty_like(turned).copy_(turned)
    return [scan(made.transpose(-1, dim)) for scan in scans]


@exercise.mistake
def undoes_the_copy(x, dim, scans):
    """You lay the elements out along `dim`, and then call `contiguous` on the view that was turned back. That
    copies once more, in the order of the shape, and the last dimension has stride 1 again."""
    if x.stride(dim) != 1:
        x = x.movedim(dim, -1).contiguous().movedim(-1, dim).contiguous()
    return [scan(x) for scan in scans]


@exercise.mistake
def copies_unless_contiguous(x, dim, scans):
    """You leave `x` as it is where it is contiguous, and then its last dimension has stride 1. The scans walk
    along `dim`, and what counts is the stride there."""
    if not x.is_contiguous():
        x = x.movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


@exercise.mistake
def only_strides_above_one(x, dim, scans):
    """You leave `x` as it is where its stride along `dim` is 0. There one element stands for all of a line,
    and the scans are promised a line that lies in memory: they rely on stride 1."""
    if x.stride(dim) > 1:
        x = x.movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


@exercise.mistake
def the_wrong_way_round(x, dim, scans):
    """Your copy is made the wrong way round: with `dim` in front its stride is the largest of all. It is the
    last dimension of a contiguous tensor that has stride 1."""
    if x.stride(dim) != 1:
        x = x.movedim(dim, 0).contiguous().movedim(0, dim)
    return [scan(x) for scan in scans]


@the_wrong_way_round.variant
def line_after_line(x, dim, scans):
    if x.stride()[dim] == 1:
        return [scan(x) for scan in scans]
    place = dim % x.dim()
    rest = [i for i in range(x.dim()) if i != place]
    front = x.permute(place, *rest)
    front = front if front.is_contiguous() else front.clone(memory_format=torch.contiguous_format)
    back = front.permute(*(1 + rest.index(i) if i != place else 0 for i in range(x.dim())))
    return [scan(back) for scan in scans]


@exercise.mistake
def stays_turned(x, dim, scans):
    """The layout is right, and the scans are given it with `dim` as the last dimension. They expect the shape
    of `x`: turn the view back after the copy, which moves no element."""
    if x.stride(dim) != 1:
        x = x.movedim(dim, -1).contiguous()
    return [scan(x) for scan in scans]


@stays_turned.variant
def transposed_for_good(x, dim, scans):
    if x.stride(dim) == 1:
        return [scan(x) for scan in scans]
    turned = x.transpose(-1, dim)
    turned = turned.clone(memory_format=torch.contiguous_format)
    return [scan(turned) for scan in scans]


@exercise.mistake
def contiguous_whenever_it_is_not(x, dim, scans):
    """You ask for a contiguous tensor where stride 1 along `dim` is enough. A slice such as `x[:, 1:]` is not
    contiguous, and its rows lie with the grain all the same: nothing needs to be copied."""
    x = x.movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


@contiguous_whenever_it_is_not.variant
def asks_whether_contiguous(x, dim, scans):
    place = dim % x.dim()
    turned = x.transpose(place, x.dim() - 1)
    if not turned.is_contiguous() or turned.stride(-1) != 1:
        turned = torch.empty_like(turned, memory_format=torch.contiguous_format).copy_(turned)
    turned = turned.transpose(x.dim() - 1, place)
    return [scan(turned) for scan in scans]


@exercise.mistake
def always_copies(x, dim, scans):
    """You copy in any case. Where `x` has stride 1 along `dim` the scans can have `x` itself."""
    x = x.movedim(dim, -1).clone(memory_format=torch.contiguous_format).movedim(-1, dim)
    return [scan(x) for scan in scans]


@always_copies.variant
def stacks_the_lines(x, dim, scans):
    lines = torch.stack(x.unbind(dim), dim=-1)
    return [scan(lines.movedim(-1, dim)) for scan in scans]


@exercise.mistake
def copies_twice(x, dim, scans):
    """You make two copies: `x` is made contiguous first, and then once more with `dim` last. `contiguous`
    reads any strides, so the second alone will do."""
    if x.stride(dim) != 1:
        x = x.contiguous().movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


@exercise.mistake
def only_transposes_matrices(x, dim, scans):
    """You transpose the first two dimensions, whatever `dim` is. That is right for the first dimension of a
    matrix. With more dimensions, or another `dim`, it is `dim` that has to come last."""
    if x.stride(dim) != 1:
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    return [scan(x) for scan in scans]


@exercise.mistake
def counts_from_the_front(x, dim, scans):
    """Your order of dimensions is right for a `dim` from 0 on. A negative one is none of the numbers in it:
    `-1` stands for `x.dim() - 1`."""
    if x.stride(dim) == 1:
        return [scan(x) for scan in scans]
    order = [i for i in range(x.dim()) if i != dim] + [dim]
    back = [order.index(i) for i in range(x.dim())]
    laid_out = x.permute(order).contiguous().permute(back)
    return [scan(laid_out) for scan in scans]


@exercise.mistake
def chains_the_scans(x, dim, scans):
    """Each of your scans is given what the one before it returned. They know nothing of each other: every
    scan is to be given the elements of `x`."""
    found, current = [], _laid_out(x, dim)
    for scan in scans:
        current = scan(current)
        found.append(current)
    return found


@exercise.mistake
def relays_x_itself(x, dim, scans):
    """You replace the memory of `x`. Then its strides are others for everybody who holds it, and its views
    read the old memory: a write to one no longer shows in the other. Only the scans need the new layout."""
    x.data = _laid_out(x, dim).detach()
    return [scan(x) for scan in scans]


@relays_x_itself.variant
def sets_the_storage(x, dim, scans):
    with torch.no_grad():
        new = _laid_out(x, dim)
        if new is not x:
            x.data = new
    return list(scan(x) for scan in scans)


@exercise.mistake
def leaves_the_graph(x, dim, scans):
    """The scans are given the right numbers, and autograd does not know where they come from: `.detach()`,
    `.data` and a copy under `no_grad` leave the graph."""
    x = _laid_out(x.detach(), dim)
    return [scan(x) for scan in scans]


@leaves_the_graph.variant
def copies_without_grad(x, dim, scans):
    with torch.no_grad():
        lines = x.data if x.stride(dim) == 1 else torch.movedim(x, dim, -1).contiguous().movedim(-1, dim)
    return [scan(lines) for scan in scans]
