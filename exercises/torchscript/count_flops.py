"""Count the operations of a model, node by node

Run `model(*inputs)` through an `fx.Interpreter`. Return what the model returns, ready for `backward()`, and a
dict: the floating-point operations of each matrix product and each convolution, by the name of its node in
`fx.symbolic_trace(model)`. A multiplication and an addition are two operations. Biases don't count.

- Products: `nn.Linear` inside of `model`, `@`, `torch.matmul(a, b)` and `a.matmul(b)`. Their factors have two
  dimensions or more, and may be broadcast.
- Convolutions: `nn.Conv1d`, `nn.Conv2d`, `nn.Conv3d` inside of `model`. Other nodes have no entry.
- Run everything once. The checks compare with torch's `FlopCounterMode`; count without it.

`count_flops(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.zeros(2, 4))` → a tensor and `{"_0": 48}`
"""

from unittest import mock

import torch
from torch import Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect
from course_utils.measure.modes import Watch

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "Each element of the result is a sum of products. How many elements are there? How many products "
        "has the sum, in a matrix product and in a convolution with groups?",
        "The interpreter calls `run_node` once for each node, and takes what it returns. Inside, "
        "`fetch_args_kwargs_from_env(node)` gives the arguments as tensors.",
        "A product sums over the last dimension of its first factor. A convolution sums over all dimensions "
        "of its weight but the first. `node.target` is a name for a method or a module; a function has a "
        "`__name__`.",
    ],
)


@exercise.starter
def count_flops(model: nn.Module, *inputs: Tensor) -> tuple[Tensor, dict[str, int]]:
    """The result of the model, and the operations of each node"""
    raise NotImplementedError


_MODEL = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.{attribute} = {net}

    def forward(self, {names}):
        return {forward}

torch.manual_seed(0)
model = Model()
{names} = {inputs}"""


class _Counter(Watch):
    """Adds up the formulas of torch's counter, which itself would import the compiler first."""

    total = 0

    def saw(self, func, args, kwargs, run):
        out = run()
        formula = flop_registry.get(func.overloadpacket)
        self.total += formula(*args, **kwargs, out_val=out) if formula else 0
        return out


class _ByTorch(fx.Interpreter):
    """What torch's counter says of the operators that run in each node."""

    def __init__(self, model):
        super().__init__(fx.symbolic_trace(model))
        self.flops = {}

    def run_node(self, node):
        with _Counter() as counter:
            result = super().run_node(node)
        if counter.total:
            self.flops[node.name] = counter.total
        return result


def _counted(count_flops, forward, *shapes, net="nn.Identity()", attribute="net"):
    """The result is that of the model, and the operations of each node are what torch counts."""
    names = "x, y" if len(shapes) > 1 else "x"
    inputs = ", ".join(f"torch.randn{shape}" for shape in shapes)
    setup = _MODEL.format(attribute=attribute, net=net, names=names, forward=forward, inputs=inputs)
    t = expect.given(setup, count_flops=count_flops)
    oracle = _ByTorch(t.model)
    wanted = oracle.run(*(getattr(t, name) for name in names.split(", ")))
    came, flops = t.call(f"count_flops(model, {names})"), oracle.flops
    two = isinstance(came, tuple) and len(came) == 2
    expect.true(two, f"the result is {expect.show(came)}, expected what the model returns and a dict")
    expect.equal(came[0], wanted, what="the first result")
    found = came[1]
    expect.true(isinstance(found, dict), f"the second result is {expect.show(found)}, expected a dict")
    expect.equal(sorted(found), sorted(flops), what="the sorted list of keys of the second result")
    for name, number in flops.items():
        expect.equal(found[name], number, what=f"the number for `{name}`")


@exercise.check(deadline=60)
def linear_layers(count_flops):
    """Linear layers, over inputs of two and more dimensions

    Each element of the result is a sum with as many products as the layer has inputs. Each product costs two
    operations. The number of elements is rows, in all leading dimensions, times outputs.
    """
    with Rows() as rows:
        for shape in ((2, 4), (2, 6, 4)):
            for bias in (False, True):
                net = f"nn.Linear(4, 3, bias={bias})"
                with rows.of(f"`{net}` with `x` of shape `{shape}`"):
                    _counted(count_flops, "self.net(x)", shape, net=net)


@exercise.check(deadline=60)
def products(count_flops):
    """Products of matrices, in a batch and broadcast

    The leading dimensions of both factors are broadcast against each other, so you see the number of products
    in the result, not in a factor. `@` is a function in the graph. `x.matmul` is a method, and its target is
    the name.
    """
    with Rows() as rows:
        for forward, *shapes in (
            ("x @ y", (2, 3), (3, 5)),
            ("x @ y", (4, 2, 3), (3, 5)),
            ("torch.matmul(x, y)", (2, 1, 3, 4), (5, 4, 2)),
            ("x.matmul(y)", (3, 4), (2, 5, 4, 6)),
        ):
            with rows.of(f"`{forward}` with shapes `{shapes[0]}` and `{shapes[1]}`"):
                _counted(count_flops, forward, *shapes)


@exercise.check(deadline=60)
def convolutions(count_flops):
    """Convolutions with stride, padding, dilation and groups

    Each element of the result is a sum over the kernel and over the input channels of its group. The second
    dimension of the weight is the number of these channels. Stride and padding change the size of the result.
    """
    with Rows() as rows:
        for net, shape in (
            ("nn.Conv2d(3, 4, 3)", (2, 3, 7, 6)),
            ("nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=1, bias=False)", (2, 3, 7, 6)),
            ("nn.Conv1d(2, 4, 3, dilation=2, groups=2)", (3, 2, 9)),
            ("nn.Conv3d(2, 3, 2)", (1, 2, 4, 5, 6)),
        ):
            with rows.of(f"`{net}`"):
                _counted(count_flops, "self.net(x)", shape, net=net)


@exercise.check(deadline=60)
def every_node(count_flops):
    """An entry for each call, and none for other nodes

    A module that is called twice has one `target` and two nodes, each with its own name. torch's counter
    leaves out a batch norm and a ReLU, and so do you. A `get_attr` node calls nothing: here it reads a
    parameter, whose name is `matmul`.
    """
    net = "nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU())"
    _counted(count_flops, "self.net(self.net(x) * 2).mean((2, 3)) @ x[0, :, :, 0]", (2, 3, 5, 4), net=net)
    parameter = "nn.Parameter(torch.ones(2, 3))"
    _counted(count_flops, "self.matmul + x.relu()", (2, 3), net=parameter, attribute="matmul")


@exercise.check(deadline=60)
def runs_once(count_flops):
    """Everything runs once, in the model itself, and without torch's counter

    An interpreter returns what the model returns, so you need no second run. With two runs, batch norms see
    each batch twice, and dropout draws other numbers. If you run a copy, the model's batch norms see nothing.
    Under `no_grad` or in inference mode the result has no graph.
    """
    setup = "torch.manual_seed(0)\nmodel = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Dropout(0.5))"
    t = expect.given(f"{setup}\nx = torch.randn(4, 3)\ntorch.manual_seed(2)", count_flops=count_flops)
    used, enter = [], FlopCounterMode.__enter__

    def noted(self):
        used.append(True)
        return enter(self)

    with mock.patch.object(FlopCounterMode, "__enter__", noted), measure.operators() as ran:
        t.run("result, flops = count_flops(model, x)")
    expect.true(not used, "`FlopCounterMode` was entered, expected numbers of your own")
    expect.equal(int(t.model[0].num_batches_tracked), 1, what="`model[0].num_batches_tracked` afterwards")
    expect.in_graph(t.result, what="`result`", of="`model[1].weight`")
    products = ran.count("aten.addmm") + ran.count("aten.linear")
    expect.equal(products, 1, what="the number of times that `model[1]` ran")
    torch.manual_seed(2)
    expect.equal(t.result, t.model(t.x), what="`result`")
