"""A convolution as a product with windows

`conv1d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1)` returns what `F.conv1d` returns,
for `x` of shape `(batch, channels, length)` and `weight` of shape `(outputs, channels // groups, kernel)`.
With `padding` zeros at both ends of `x`, element `[n, o, t]` is `bias[o]` and the sum over `c` and `k` of

    weight[o, c, k] * x[n, first + c, t * stride + k * dilation]

where `first` is the first channel of the group that `o` belongs to: groups cut channels and outputs into
equal runs. `x` may be a view of something else.

- As many operators run for a long `x`, and for a large batch, as for small ones.
- None of torch's convolutions runs, nor `F.unfold`. `Tensor.unfold`, `F.pad` and products are welcome.
- A gradient reaches `x`, `weight` and `bias`.
"""

import contextlib

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=25,
    hints=[
        "First without dilation and groups: `x.unfold(2, size, step)` is a view with a new last dimension, "
        "along which each position has its window. Which dimensions of it and of `weight` are summed over?",
        "A dilated window reaches over `dilation * (kernel - 1) + 1` elements and needs every `dilation`-th "
        "of them. A slice with a step takes these, and is a view too.",
        "`unflatten(1, (groups, -1))` gives the channels a dimension for their group; the outputs of "
        "`weight` get one in the same way. `torch.einsum` sums over the letters that are missing on the "
        "right, and keeps a group's letter. Flatten group and output together at the end, and give `bias` "
        "the shape `(outputs, 1)`.",
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


def _given(conv1d, *more, x="(2, 4, 15)", weight="(6, 4, 3)", **names):
    lines = [
        "torch.manual_seed(0)",
        f"x = torch.randn{x}.double()",
        f"weight, bias = torch.randn{weight}.double(), torch.randn(6).double()",
    ]
    return expect.given("\n".join([*lines, *more]), conv1d=conv1d, **names)


def _expect_convolution(t, arguments, like=None):
    """What torch's convolution returns for these arguments, in double precision."""
    inputs = {name: getattr(t, name).detach().double().cpu() for name in ("x", "weight", "bias")}
    wanted = eval(f"conv1d({arguments})", {"conv1d": F.conv1d}, inputs)
    like = {label: eval(code, {"conv1d": F.conv1d}, inputs) for label, code in (like or {}).items()}
    expect.equal(t.call(f"conv1d({arguments})").detach(), wanted.to(t.x), like=like)


def _expect_rows(conv1d, rows_of_arguments, **shapes):
    with Rows() as rows:
        for arguments in rows_of_arguments:
            with rows.of(f"`{arguments}`"):
                _expect_convolution(_given(conv1d, **shapes), f"x, weight, {arguments}")


@exercise.check
def sums_over_windows(conv1d, device):
    """Each output is a sum over channels and window, and its bias

    The kernel is not turned around: what torch calls a convolution is known elsewhere as a correlation.
    `bias` has an element for each output channel, the same at all positions.
    """
    to = "x, weight, bias = (tensor.float().to(device) for tensor in (x, weight, bias))"
    turned = {"what comes with each kernel turned around": "conv1d(x, weight.flip(2))"}
    _expect_convolution(_given(conv1d, to, device=device), "x, weight", turned)
    without = {"what comes without `bias`": "conv1d(x, weight)"}
    _expect_convolution(_given(conv1d, to, device=device), "x, weight, bias", without)


@exercise.check
def stride_and_padding(conv1d):
    """Every position where the window fits, `stride` apart, after zeros were added at both ends

    Position `t` begins at `t * stride`, and the last is where the window still fits. With padding there are
    `length + 2 * padding` elements to fit into. Steps that don't come out even leave elements over.
    """
    _expect_rows(conv1d, ("stride=2", "stride=3", "stride=20", "padding=1", "padding=4", "bias, 3, 2"))


@exercise.check
def dilated(conv1d):
    """A dilated kernel takes every `dilation`-th element

    Between two elements of the window are `dilation` steps, and `kernel - 1` such gaps: it reaches over
    `dilation * (kernel - 1) + 1` elements. Dilation spreads the window, stride moves it.
    """
    _expect_rows(conv1d, ("dilation=2", "dilation=7", "stride=2, dilation=3", "None, 3, 2, 4"))
    _expect_rows(conv1d, ("dilation=5",), weight="(6, 4, 1)")


@exercise.check
def grouped(conv1d):
    """Each group of outputs sees its own group of channels

    With `groups=2` the first half of the outputs is a sum over the first half of the channels, and the second
    over the second. `weight` has `channels // groups` channels. With as many groups as channels each channel
    has filters of its own: a depthwise convolution.
    """
    _expect_rows(conv1d, ("groups=2", "bias, groups=2", "bias, 2, 1, 3, 2"), weight="(6, 2, 3)")
    _expect_rows(conv1d, ("groups=3", "padding=2, groups=3"), x="(2, 3, 15)", weight="(6, 1, 3)")


@exercise.check
def of_views(conv1d):
    """`x` and `weight` may be views of something else

    The strides of a view are not those of its size, and it may begin anywhere in its storage.
    `as_strided` takes strides as they are given; `unfold` works them out from those of the view. A write to
    what was given shows in all that shares its storage.
    """
    with Rows() as rows:
        for label, line in {
            "`x` transposed": "x = torch.randn(15, 4, 2).double().transpose(0, 2)",
            "`x` a slice": "x = torch.randn(3, 8, 40).double()[1:, ::2, 3:33:2]",
            "`x` expanded": "x = torch.randn(15).double().expand(2, 4, 15)",
            "`weight` transposed": "weight = torch.randn(3, 4, 6).double().transpose(0, 2)",
        }.items():
            with rows.of(label):
                for arguments in ("x, weight, bias", "x, weight, bias, 2, 1, 2"):
                    t = _given(conv1d, line)
                    with contextlib.ExitStack() as stack:
                        for name in ("x", "weight", "bias"):
                            stack.enter_context(expect.left_alone(getattr(t, name), what=f"`{name}`"))
                        _expect_convolution(t, arguments)


@exercise.check
def gradients(conv1d):
    """A gradient reaches `x`, `weight` and `bias`

    An element of `x` stands in several windows, and its gradient is a sum over them. Autograd knows the views
    that torch's functions make; what goes through NumPy or `.data` is not in the graph.
    """
    t = _given(conv1d, "for tensor in (x, weight, bias):\n    tensor.requires_grad_()", weight="(6, 2, 3)")
    named = {"x": t.x, "weight": t.weight, "bias": t.bias}
    wanted = torch.autograd.grad(F.conv1d(*named.values(), 2, 1, 2, 2).pow(3).sum(), [*named.values()])
    t.run("loss = conv1d(x, weight, bias, 2, 1, 2, 2).pow(3).sum()")
    expect.in_graph(t.loss, what="`loss`", of="`x`")
    t.run("loss.backward()")
    for (name, tensor), gradient in zip(named.items(), wanted, strict=True):
        expect.equal(tensor.grad, gradient, what=f"the gradient of `{name}`")


@exercise.check
def no_loop_over_positions(conv1d):
    """No loop over positions or the batch, and no convolution of torch's

    In Python every operator costs some microseconds, whatever it does. A view has the windows of all
    positions side by side, without a loop, and one product sums over all of them. `F.unfold`, which is
    `aten.im2col` and is in `nn.Unfold` too, writes them out for you: it is what you build here.
    """
    ran = {}
    for shape in ("(2, 4, 15)", "(2, 4, 60)", "(40, 4, 15)"):
        t = _given(conv1d, x=shape)
        with measure.operators() as ran[shape]:
            t.call("conv1d(x, weight, bias, 2, 1, 2)")
        found = [name for name in ran[shape].names if "conv" in name or "im2col" in name]
        expect.true(not found, f"`{', '.join(found)}` ran", "expected: neither a convolution nor `F.unfold`")
        small = ran["(2, 4, 15)"].total()
        what = f"operators for an `x` of {shape} ({small} for (2, 4, 15))"
        expect.at_most(ran[shape].total(), small + 5, what)
