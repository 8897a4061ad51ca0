"""Sliding windows without a copy

A window is a run of `size` neighbouring elements of a 1-D tensor `x`. Return the windows that start at
elements 0, `step`, 2 · `step`, … as the rows of a matrix; one that would reach beyond the end of `x` is left
out.

The matrix **shares storage** with `x`, and a gradient that reaches the matrix goes on to `x`, which may be a
view of something else. `size` and `step` are at least 1, and `x` has at least `size` elements. Any operator
of torch's is welcome.

`sliding_windows(torch.arange(6), 3, 2)` → `[[0, 1, 2], [2, 3, 4]]`
"""

import torch
from torch import Tensor

from course_utils import expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=15,
    hints=[
        "From one element of a row to the next: how far is that in storage? And from one row to the next? "
        "Two numbers, one for each dimension of the result, and `x.stride()` has a part in both.",
        "Neighbours in `x` are `x.stride(0)` apart, whatever `x` is a view of. The last row starts at "
        "`len(x) - size` or a little before: how many starts are there, the first one at 0 included?",
        "`Tensor.as_strided(size, stride)` builds any view that strides can describe, and begins where `x` "
        "begins unless told otherwise. What is missing is the number of rows and two strides.",
    ],
)


@exercise.starter
def sliding_windows(x: Tensor, size: int, step: int = 1) -> Tensor:
    """(n,) -> (windows, size)"""
    raise NotImplementedError


def _windows(x, size, step):
    """Every window, element by element."""
    elements = x.tolist()
    rows = [elements[start : start + size] for start in range(0, len(elements) - size + 1, step)]
    return torch.tensor(rows, dtype=x.dtype, device=x.device)


def _expect_windows(sliding_windows, setup, size, step=None):
    """The windows of the `x` that `setup` makes; beside a first difference of values stand the strides."""
    t = expect.given(setup, sliding_windows=sliding_windows)
    wanted, stride = _windows(t.x, size, step or 1), t.x.stride()
    windows = t.call(f"sliding_windows(x, {size}, {step})" if step else f"sliding_windows(x, {size})")
    try:
        expect.equal(windows, wanted)
    except expect.Mismatch as found:
        if isinstance(windows, Tensor) and _same_kind(windows, wanted):
            found.lines.append(f"its strides are {windows.stride()}; `x.stride()` is {stride}")
        raise


def _same_kind(a, b):
    return a.shape == b.shape and a.dtype == b.dtype


@exercise.check
def right_values(sliding_windows):
    """Every window holds the right elements"""
    _expect_windows(sliding_windows, "x = torch.arange(6)", 3, 2)
    _expect_windows(sliding_windows, "x = torch.arange(10)", 4)
    _expect_windows(sliding_windows, "x = torch.arange(10)", 2, 5)


@exercise.check
def every_size(sliding_windows):
    """As many windows as fit, for every length, `size` and `step`"""
    for n in range(1, 7):
        for size in range(1, n + 1):
            for step in (1, 2, 3):
                _expect_windows(sliding_windows, f"x = torch.arange({n})", size, step)


@exercise.check
def strided_input(sliding_windows):
    """An input that is itself a view works too"""
    _expect_windows(sliding_windows, "x = torch.arange(12)[::2]", 3)
    _expect_windows(sliding_windows, "x = torch.arange(28).reshape(7, 4)[:, 0]", 3, 2)
    _expect_windows(sliding_windows, "x = torch.tensor([7]).expand(5)", 2, 2)


@exercise.check
def part_of_a_storage(sliding_windows):
    """An input that begins and ends inside its storage"""
    _expect_windows(sliding_windows, "x = torch.arange(12)[3:10]", 3, 3)
    _expect_windows(sliding_windows, "x = torch.arange(20).reshape(4, 5)[2]", 2)
    _expect_windows(sliding_windows, "x = torch.arange(12)[1::2]", 3)
    _expect_windows(sliding_windows, "x = torch.arange(28).reshape(7, 4)[:, 1]", 3, 2)


@exercise.check
def shares_storage(sliding_windows):
    """Nothing is copied: the windows read the storage of `x`"""
    for setup, size in [
        ("x = torch.arange(8.)", 3),
        ("x = torch.arange(16.)[::2]", 3),
        ("x = torch.arange(16.)[6:]", 3),
        ("x = torch.arange(8.)", 1),
    ]:
        t = expect.given(setup, sliding_windows=sliding_windows)
        # `x` itself could be made to read the storage of a copy; this stays where it is.
        witness = t.x.detach()
        windows = t.call(f"sliding_windows(x, {size})")
        expect.same_storage(windows, witness, of="`x`")
        expect.equal(tuple(windows.shape), (len(witness) - size + 1, size), what="the shape of the result")
        witness[size - 1] = -1.0
        after = f"after `x[{size - 1}] = -1`, element `[0, {size - 1}]`"
        expect.equal(windows[0, size - 1].detach(), torch.tensor(-1.0), what=after)


@exercise.check
def leaves_x_alone(sliding_windows):
    """`x` stays what it was"""
    for setup in (
        "x = torch.tensor([1., -2., 3., 4., -5., 6., 7., 8.])[:6]",
        "x = torch.arange(1., 17.)[:12:2]",
    ):
        t = expect.given(setup, sliding_windows=sliding_windows)
        with expect.left_alone(t.x, what="`x`"):
            windows = t.call("sliding_windows(x, 3, 2)")
        expect.a_tensor(windows)


@exercise.check
def any_dtype(sliding_windows, device):
    """Every dtype and every device"""
    for dtype in (torch.float64, torch.bool, torch.complex64, torch.int16):
        setup = f"x = torch.tensor([1, 0, 1, 1, 0], dtype={dtype}, device='{device.type}')"
        _expect_windows(sliding_windows, setup, 3)


@exercise.check
def gradients(sliding_windows):
    """A gradient reaches `x`, once for each window that an element is in"""
    t = expect.given("x = torch.arange(7., requires_grad=True)", sliding_windows=sliding_windows)
    _expect_gradient(t.call("sliding_windows(x, 3, 2)"), "x", t.x, [1, 1, 2, 1, 2, 1, 1])
    setup = "whole = torch.arange(9., requires_grad=True)\nx = whole[1::2]"
    t = expect.given(setup, sliding_windows=sliding_windows)
    _expect_gradient(t.call("sliding_windows(x, 2)"), "whole", t.whole, [0, 1, 0, 2, 0, 2, 0, 1, 0])


def _expect_gradient(windows, name, leaf, wanted):
    expect.in_graph(windows, of="`x`")
    windows.backward(torch.ones_like(windows))
    expect.equal(leaf.grad, torch.tensor(wanted, dtype=torch.float32), what=f"`{name}.grad`")


@exercise.mistake
def copies(x, size, step=1):
    """The values are right, and they are a copy: `stack`, `cat`, indexing with a list or a tensor,
    arithmetic, `F.unfold`, `.clone()` and `.contiguous()` allocate a new storage. Writing to `x` no longer
    shows in the windows, and each element is held as often as it has windows."""
    return torch.stack([x[i : i + size] for i in range(0, len(x) - size + 1, step)])


@copies.variant
def looks_them_up(x, size, step=1):
    starts = torch.arange(0, len(x) - size + 1, step, device=x.device)
    return x[starts[:, None] + torch.arange(size, device=x.device)]


@copies.variant
def copies_at_the_end(x, size, step=1):
    return x.unfold(0, size, step).clone()


@exercise.mistake
def copies_what_is_not_contiguous(x, size, step=1):
    """Where `x` is not contiguous you copied it: your windows share storage with that copy. `.contiguous()`
    does so, and `.reshape` may. There is no need: strides can describe the windows of any view."""
    x = x.contiguous()
    return x.as_strided(((len(x) - size) // step + 1, size), (step, 1))


@copies_what_is_not_contiguous.variant
def flattens_first(x, size, step=1):
    count = len(range(0, len(x) - size + 1, step))
    row = x if x.is_contiguous() else x.clone(memory_format=torch.contiguous_format)
    return torch.as_strided(row, (count, size), (step, 1), row.storage_offset())


@exercise.mistake
def assumes_unit_stride(x, size, step=1):
    """You used 1 as the distance between neighbours. In a view such as `x[::2]` neighbours are `x.stride(0)
    == 2` apart, and both strides of the result are multiples of that."""
    return x.as_strided(((len(x) - size) // step + 1, size), (step, 1))


@assumes_unit_stride.variant
def counts_in_elements(x, size, step=1):
    rows = 0
    while rows * step + size <= x.numel():
        rows += 1
    return torch.as_strided(x, size=(rows, size), stride=(step, 1), storage_offset=x.storage_offset())


@exercise.mistake
def step_in_storage(x, size, step=1):
    """Inside a row your distance is right; from row to row it is not. `step` counts elements of `x`, a
    stride counts elements of the storage: one element of `x` is `x.stride(0)` of those."""
    return x.as_strided(((len(x) - size) // step + 1, size), (step, x.stride(0)))


@exercise.mistake
def ignores_offset(x, size, step=1):
    """Your windows begin at the first element of the storage. `x` may begin later: at `x.storage_offset()`,
    which is what `as_strided` takes when it is given no offset."""
    s = x.stride(0)
    return x.as_strided(((len(x) - size) // step + 1, size), (step * s, s), 0)


@ignores_offset.variant
def begins_at_zero(x, size, step=1):
    (distance,) = x.stride()
    first = torch.as_strided(x, (len(x),), (distance,), storage_offset=0)
    return first.unfold(0, size, step)


@exercise.mistake
def one_window_too_few(x, size, step=1):
    """The last window is missing. Between the first start and the last one lie `(len(x) - size) // step`
    steps, and there is one start more than there are steps."""
    s = x.stride(0)
    return x.as_strided(((len(x) - size) // step, size), (step * s, s))


@one_window_too_few.variant
def drops_the_last(x, size, step=1):
    return x.unfold(0, size, step)[:-1]


@exercise.mistake
def loses_the_flush_window(x, size, step=1):
    """The last window is missing where it ends with the last element of `x`. Its start, `len(x) - size`, is
    a start like the others: a `range` up to it leaves it out."""
    starts = range(0, len(x) - size, step)
    return x.as_strided((len(starts), size), (step * x.stride(0), x.stride(0)))


@exercise.mistake
def reads_past_the_end(x, size, step=1):
    """You return one window too many: the last one does not fit into `x` and reads on, into whatever
    follows in the storage. Where the storage ends too, torch refuses."""
    s = x.stride(0)
    return x.as_strided((-((size - len(x)) // step) + 1, size), (step * s, s))


@exercise.mistake
def ignores_step(x, size, step=1):
    """The number of windows is right, but each starts one element after the one before: `step` is missing
    from the distance between rows."""
    s = x.stride(0)
    return x.as_strided(((len(x) - size) // step + 1, size), (s, s))


@ignores_step.variant
def first_of_all_windows(x, size, step=1):
    return x.unfold(0, size, 1)[: (len(x) - size + step) // step]


@exercise.mistake
def windows_as_columns(x, size, step=1):
    """Your windows are the columns. Each window is to be a row: the result has one row for each window, and
    `size` columns."""
    s = x.stride(0)
    return x.as_strided((size, (len(x) - size) // step + 1), (s, step * s))


@windows_as_columns.variant
def unfolds_and_transposes(x, size, step=1):
    return x.unfold(0, size, step).t()


@exercise.mistake
def leaves_the_graph(x, size, step=1):
    """The windows share the storage of `x`, but autograd does not know where they come from: `.detach()`,
    `.data`, `set_`, `torch.no_grad()` and the way through NumPy leave the graph, so no gradient reaches `x`.
    `requires_grad_()` afterwards begins a new graph, and does not lead back."""
    return x.detach().unfold(0, size, step)


@leaves_the_graph.variant
def strides_of_the_data(x, size, step=1):
    with torch.no_grad():
        (s,) = x.stride()
        return x.data.as_strided((1 + (len(x) - size) // step, size), (s * step, s))


@leaves_the_graph.variant
def without_gradients(x, size, step=1):
    with torch.no_grad():
        return x.unfold(0, size, step)


@leaves_the_graph.variant
def asks_for_a_new_graph(x, size, step=1):
    windows = x.detach().unfold(0, size, step)
    return windows.requires_grad_() if x.requires_grad else windows


@exercise.mistake
def strides_of_a_slice(x, size, step=1):
    """The values are right, and gradients get lost: you called `as_strided` on a part of `x`. The windows
    then reach beyond the tensor that they were made of, and the gradient of what lies there goes nowhere.
    Call `as_strided` on `x` itself."""
    s = x.stride(0)
    return x[:size].as_strided(((len(x) - size) // step + 1, size), (step * s, s))


@exercise.mistake
def changes_x_itself(x, size, step=1):
    """`as_strided_` with an underscore changes `x` itself: the caller's tensor is a matrix now. Without the
    underscore the same numbers make a new view."""
    s = x.stride(0)
    return x.as_strided_(((len(x) - size) // step + 1, size), (step * s, s))


@exercise.mistake
def other_default(x, size, step=2):
    """Without a third argument the windows are to be one element apart: `step` is 1 unless the caller says
    more."""
    s = x.stride(0)
    return x.as_strided(((len(x) - size) // step + 1, size), (step * s, s))


@exercise.mistake
def every_window(x, size, step=1):
    """You return the windows of step 1, whatever `step` is. Of these only every `step`-th was asked for."""
    return x.unfold(0, size, 1)


@exercise.mistake
def skips_inside_windows(x, size, step=1):
    """You took every `step`-th element, and windows of these. The elements of a window are neighbours in `x`;
    what is `step` apart are the starts."""
    return x[::step].unfold(0, size, 1)


@exercise.mistake
def size_and_step_swapped(x, size, step=1):
    """`size` and `step` have changed places: `unfold` takes the dimension, then the size, then the step."""
    return x.unfold(0, step, size)


@exercise.mistake
def strides_swapped(x, size, step=1):
    """Your two strides have changed places. The first is for the first dimension, from row to row: `step`
    elements of `x`. The second is from one element of a row to the next."""
    s = x.stride(0)
    return x.as_strided(((len(x) - size) // step + 1, size), (s, step * s))


@exercise.mistake
def unit_stride_in_a_row(x, size, step=1):
    """From row to row your distance is right; inside a row it is 1. In a view such as `x[::2]` neighbours are
    `x.stride(0) == 2` apart."""
    return x.as_strided(((len(x) - size) // step + 1, size), (step * x.stride(0), 1))


@exercise.mistake
def strides_in_bytes(x, size, step=1):
    """Your strides are in bytes, as NumPy's are. torch counts them in elements: `x.stride(0)` as it is."""
    s = x.stride(0) * x.element_size()
    return x.as_strided(((len(x) - size) // step + 1, size), (step * s, s))


@exercise.mistake
def rounds_too_late(x, size, step=1):
    """Your number of windows is `(len(x) - size + 1) // step`. Whole steps fit into `len(x) - size`, and the
    first window comes before them: divide, and then add 1."""
    s = x.stride(0)
    return x.as_strided(((len(x) - size + 1) // step, size), (step * s, s))


@exercise.mistake
def counts_every_start(x, size, step=1):
    """You return as many windows as there would be with a step of 1. With a larger one fewer fit: the later
    ones reach beyond the end of `x`."""
    s = x.stride(0)
    return x.as_strided((len(x) - size + 1, size), (step * s, s))


@exercise.mistake
def a_window_for_every_step(x, size, step=1):
    """Your number of windows is `len(x) // step`: that many steps fit into `x`. A window needs `size`
    elements from its start on, so the last starts lie too close to the end."""
    s = x.stride(0)
    return x.as_strided((len(x) // step, size), (step * s, s))
