"""A convolution as a product with windows

`conv1d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1)` returns what `F.conv1d` does,
for `x` of shape `(batch, channels, length)` and `weight` of shape `(outputs, channels // groups, kernel)`.
With `padding` zeros at both ends of `x`, element `[n, o, t]` is `bias[o]` plus the sum over `c` and `k` of

    weight[o, c, k] * x[n, first + c, t * stride + k * dilation]

where `first` is the first channel of `o`'s group: groups cut channels and outputs into equal runs. `x` may be
a view.

- A longer `x` or a larger batch runs no more operators.
- Use none of torch's convolutions, nor `F.unfold`; `Tensor.unfold` and `F.pad` are welcome.
- A gradient reaches `x`, `weight` and `bias`.
"""

import contextlib

from torch import Tensor
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import modules

exercise = Exercise(
    minutes=25,
    hints=[
        "First without dilation and groups: `x.unfold(2, size, step)` is a view in which each position has "
        "its window as a new last dimension. Which dimensions of it and of `weight` are summed over?",
        "A dilated window reaches over `dilation * (kernel - 1) + 1` elements and needs every `dilation`-th "
        "of them. A slice with a step takes these, and is a view too.",
        "`unflatten(1, (groups, -1))` gives the channels a dimension for their group; the outputs of "
        "`weight` get one too. `torch.einsum` keeps the group's letter; flatten group and output at the "
        "end.",
    ],
)


@exercise.starter
def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Tensor:
    """(batch, channels, length) -> (batch, outputs, positions)"""
    raise NotImplementedError


_SETUP = """
torch.manual_seed(0)
x = torch.randn(2, 4, 15).double()
weight, bias = torch.randn(6, 4, 3).double(), torch.randn(6).double()
"""
_TWO_GROUPS = "weight = torch.randn(6, 2, 3).double()"


def _expect_convolution(t, arguments, like=None):
    """What torch's convolution returns for these arguments, in double precision."""
    inputs = {name: getattr(t, name).double().cpu() for name in ("x", "weight", "bias")}
    wanted = eval(f"F.conv1d({arguments})", {"F": F}, inputs).to(t.x)
    like = {label: eval(code, {"F": F}, inputs) for label, code in (like or {}).items()}
    with contextlib.ExitStack() as alone:
        for name in inputs:
            alone.enter_context(expect.left_alone(getattr(t, name), what=f"`{name}`"))
        found = t.call(f"conv1d({arguments})")
    expect.equal(found, wanted, like=like)


@exercise.check(
    given=f"{_SETUP}x, weight, bias = (tensor.float().to(device) for tensor in (x, weight, bias))"
)
def sums_over_windows(t, device):
    """Each output is a sum over channels and window, and its bias

    The kernel is not turned around: what torch calls a convolution is known elsewhere as a correlation.
    `bias` has an element for each output channel, the same at all positions.
    """
    like = {
        "what comes with each kernel turned around": "F.conv1d(x, weight.flip(2), bias)",
        "what comes without `bias`": "F.conv1d(x, weight)",
    }
    _expect_convolution(t, "x, weight, bias", like)


@exercise.check(given=_SETUP, cases=["stride=2", "stride=20", "padding=1", "bias, 3, 2"])
def stride_and_padding(t, arguments):
    """Every position where the window fits, `stride` apart, after zeros were added at both ends

    Position `t` begins at `t * stride`, and the last is where the window still fits. With padding there are
    `length + 2 * padding` elements to fit into. Steps that don't come out even leave elements over.
    """
    _expect_convolution(t, f"x, weight, {arguments}")


@exercise.check(given=_SETUP, cases=["dilation=2", "dilation=7", "stride=2, dilation=3", "None, 3, 2, 4"])
def dilated(t, arguments):
    """A dilated kernel takes every `dilation`-th element

    Between two elements of the window are `dilation` steps, and `kernel - 1` such gaps: it reaches over
    `dilation * (kernel - 1) + 1` elements. Dilation spreads the window, stride moves it.
    """
    _expect_convolution(t, f"x, weight, {arguments}")


@exercise.check(
    given=_SETUP,
    cases={
        "`groups=2`": (_TWO_GROUPS, "groups=2"),
        "`bias, 2, 1, 3, 2`": (_TWO_GROUPS, "bias, 2, 1, 3, 2"),
        "`groups=3`": ("x, weight = x[:, :3].clone(), torch.randn(6, 1, 3).double()", "groups=3"),
    },
)
def grouped(t, arguments):
    """Each group of outputs sees its own group of channels

    With `groups=2` the first half of the outputs is a sum over the first half of the channels, and the second
    over the second. `weight` has `channels // groups` channels. With as many groups as channels each channel
    has filters of its own: a depthwise convolution.
    """
    _expect_convolution(t, f"x, weight, {arguments}")


@exercise.check(
    given=_SETUP,
    cases=[
        "x = torch.randn(15, 4, 2).double().transpose(0, 2)",
        "x = torch.randn(3, 8, 40).double()[1:, ::2, 3:33:2]",
        "weight = torch.randn(3, 4, 6).double().transpose(0, 2)",
    ],
)
def of_views(t):
    """`x` and `weight` may be views of something else

    The strides of a view need not be those of its size, and it may begin anywhere in its storage.
    `as_strided` takes strides as they are given; `unfold` works them out from those of the view.
    """
    _expect_convolution(t, "x, weight, bias, 2, 0, 2")


@exercise.check(
    given=f"{_SETUP}{_TWO_GROUPS}\nfor tensor in (x, weight, bias):\n    tensor.requires_grad_()",
    cases={
        "random numbers": "",
        "a `bias` of zeros": "nn.init.zeros_(bias)",
        "a `weight` of zeros": "nn.init.zeros_(weight)",
    },
)
def gradients(t):
    """A gradient reaches `x`, `weight` and `bias`

    An element of `x` may stand in several windows, and its gradient is a sum over them. Autograd knows the
    views that torch's functions make; what goes through NumPy or `.data` is not in the graph, nor is what was
    left out because its numbers are zeros: a bias starts at 0, and learns.
    """
    code = "loss = conv1d(x, weight, bias, 2, 1, 2, 2).sub(2).pow(3).sum()"
    wanted = F.conv1d(t.x, t.weight, t.bias, 2, 1, 2, 2).sub(2).pow(3).sum()
    modules.expect_gradients(t, code, wanted, "x", "weight", "bias")


@exercise.check
def no_loop_over_positions(conv1d):
    """No loop over positions or the batch, not even in pieces, and no convolution of torch's

    A view has the windows of all positions side by side, without a loop, and one product sums over all of
    them. `F.unfold`, which is `aten.im2col` and is in `nn.Unfold` too, writes them out for you: it is what
    you build here.
    """
    counts = []
    for shape in ("(2, 4, 15)", "(2, 4, 3000)", "(2000, 4, 15)"):
        t = expect.given(f"{_SETUP}x = torch.randn{shape}.double()", conv1d=conv1d)
        with measure.operators() as ran:
            t.call("conv1d(x, weight, bias, 2, 1, 2)")
        found = [name for name in ran.names if "conv" in name or "im2col" in name]
        expect.true(not found, f"`{', '.join(found)}` ran", "expected: neither a convolution nor `F.unfold`")
        counts.append(ran.total())
        what = f"operators for an `x` of {shape} ({counts[0]} for (2, 4, 15))"
        expect.at_most(counts[-1], counts[0] + 5, what)
