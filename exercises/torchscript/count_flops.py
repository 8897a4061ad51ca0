"""Count the operations of a model, node by node

Run `model(*inputs)` through an `fx.Interpreter` and return two things: what the model returns, and a dict
with the floating-point operations of every product of matrices and every convolution. Its keys are the names
of nodes in `fx.symbolic_trace(model)`, its values are of type `int`.

A multiplication and an addition are two operations. The bias is not counted, nor is anything element by
element: a node that is neither a product nor a convolution has no entry.

What has to be recognised, whether it is a module, a function or a method, with arguments by position or by
keyword:

- `nn.Linear` and `F.linear`;
- `mm`, `bmm`, `matmul` and `@`, with any number of dimensions from two on, which may be broadcast;
- `addmm` and `baddbmm`;
- `nn.Conv1d`, `2d`, `3d` and `F.conv1d`, `2d`, `3d`, with a stride, groups and the rest.

Every operator of the model runs once, and gradients flow as they do in the model. The numbers are those of
torch's `FlopCounterMode`, which is what the checks compare with and what you do not use.

- `count_flops(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.zeros(2, 4))` → a tensor and `{"_0": 48}`
"""

import contextlib
import copy
import re
from unittest import mock

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise
from course_utils.measure.modes import Watch

exercise = Exercise(
    minutes=25,
    hints=[
        "Each element of the result is one sum of products. How many elements are there, and over how many "
        "products does the sum go: for a matrix product, for a convolution with groups?",
        "`run_node` of an interpreter is called once for every node and returns its result. Inside it, "
        "`fetch_args_kwargs_from_env(node)` gives the arguments as tensors.",
        "A product sums over the last dimension of its first factor, a convolution over all dimensions of "
        "its weight but the first. `node.target` is a name where a method or a module is called, and else a "
        "function, which has a `__name__`.",
    ],
)


@exercise.starter
def count_flops(model: nn.Module, *inputs: Tensor) -> tuple[Tensor, dict[str, int]]:
    """The result of the model, and the operations of each node"""
    raise NotImplementedError


class _Example:
    """A model of these modules and parameters, given as code, whose `forward` is an expression."""

    def __init__(self, forward, **parts):
        names = {"torch": torch, "nn": nn, "F": F}
        given = [name for name in ("x", "y") if re.search(rf"\b{name}\b", forward)]
        head = f"def forward({', '.join(['self', *given])})"
        exec(f"{head}:\n    return {forward}\n", names)
        self.model = type("Model", (nn.Module,), {"forward": names["forward"]})()
        for name, part in parts.items():
            setattr(self.model, name, eval(part, names))
        self.lines = [f"self.{name} = {part}" for name, part in parts.items()]
        self.lines.append(f"{head}: return {forward}")

    @contextlib.contextmanager
    def shown(self, *inputs):
        """The model and code of this call; messages show them."""
        call = ", ".join(("model", *(f"torch.randn{tuple(t.shape)}" for t in inputs)))
        with expect.situation(*self.lines, f"count_flops({call})"):
            yield

    def expect_count(self, count_flops, *shapes):
        """The result, and for each node what torch's counter says of it."""
        inputs = [torch.randn(shape) for shape in shapes]
        wanted = self.model(*inputs)
        key = *self.lines, *(tuple(shape) for shape in shapes)
        if key not in _COUNTED:
            _COUNTED[key] = _by_torch(self.model, inputs)
        with self.shown(*inputs):
            result, found = _pair(count_flops(self.model, *inputs))
            expect.equal(result, wanted, what="the first result")
            _expect_flops(found, _COUNTED[key])


# What torch's counter said in this process: it depends on shapes alone.
_COUNTED = {}


def _by_torch(model, inputs):
    """The oracle: what torch's counter says of the operators that run in each node. The counter itself would
    import the compiler first, which takes seconds."""
    flops = {}

    class Each(fx.Interpreter):
        def run_node(self, node):
            with _Counter() as counter:
                result = super().run_node(node)
            flops[node.name] = counter.total
            return result

    Each(fx.symbolic_trace(model)).run(*inputs)
    return {name: number for name, number in flops.items() if number}


class _Counter(Watch):
    """Adds up the formulas of torch's counter."""

    total = 0

    def saw(self, func, args, kwargs, run):
        out = run()
        formula = flop_registry.get(func._overloadpacket)
        self.total += formula(*args, **kwargs, out_val=out) if formula else 0
        return out


def _pair(came):
    two = isinstance(came, tuple) and len(came) == 2
    expect.true(two, f"the result is {expect.show(came)}", "expected: the model's result and a dict")
    return came


def _expect_flops(found, wanted):
    is_dict = isinstance(found, dict)
    shown = [(str(name), found[name]) for name in found] if is_dict else None
    evidence.record("flops", sorted(shown, key=str) if is_dict else None)
    if not is_dict:
        raise expect.Mismatch(f"the second result is {expect.show(found)}, expected a dict")
    if other := [key for key in found if not isinstance(key, str)]:
        told = f"a key of the dict is of type {type(other[0]).__name__}"
        raise expect.Mismatch(told, "expected: the name of a node, a `str`")
    names = list(found)
    if missing := [name for name in wanted if name not in names]:
        told = f"there is no entry for the node `{missing[0]}`, expected {wanted[missing[0]]:,} operations"
        raise expect.Mismatch(told, f"entries: {_listed(names)}")
    if extra := [name for name in names if name not in wanted]:
        told = f"there is an entry for `{extra[0]}`: {expect.show(found.get(extra[0]))}"
        raise expect.Mismatch(
            told, f"expected: {'no entry' if not wanted else f'entries for {_listed(wanted)} alone'}"
        )
    for name, number in wanted.items():
        if type(found[name]) is not int or found[name] != number:
            raise expect.Mismatch(f"operations of `{name}`: {expect.show(found[name])}, expected {number:,}")


def _listed(names):
    return ", ".join(f"`{name}`" for name in names) or "none"


@exercise.check(deadline=60)
def linear_layers(count_flops):
    """Linear layers, as modules and as functions, over inputs of two and three dimensions"""
    t = _Example("self.b(self.a(x).relu())", a="nn.Linear(4, 3)", b="nn.Linear(3, 5, bias=False)")
    t.expect_count(count_flops, (2, 4))
    t.expect_count(count_flops, (2, 6, 4))
    t = _Example("self.net(self.net(x))", net="nn.Sequential(nn.Linear(4, 4), nn.ReLU())")
    t.expect_count(count_flops, (2, 4))
    weights = {"w": "nn.Parameter(torch.randn(3, 4))", "v": "nn.Parameter(torch.randn(3))"}
    forward = "F.linear(bias=None, weight=self.w.t(), input=F.linear(x, self.w, self.v).relu())"
    t = _Example(forward, **weights)
    t.expect_count(count_flops, (5, 4))


@exercise.check(deadline=60)
def products(count_flops):
    """Products of matrices, as functions, methods and `@`, in a batch and broadcast"""
    for forward, x, y in (
        ("torch.mm(x, y).mm(y.t()).mm(mat2=y)", (2, 3), (3, 5)),
        ("torch.bmm(x, mat2=y).bmm(y.transpose(1, 2))", (4, 2, 3), (4, 3, 5)),
        ("x @ y", (2, 3), (3, 5)),
        ("x @ y", (4, 2, 3), (3, 5)),
        ("torch.matmul(x, y)", (2, 1, 3, 4), (5, 4, 2)),
        ("x.matmul(other=y)", (3, 4), (2, 5, 4, 6)),
        ("torch.mm(mat2=y, input=x)", (2, 3), (3, 5)),
        ("torch.bmm(mat2=y, input=x)", (4, 2, 3), (4, 3, 5)),
        ("torch.matmul(other=y, input=x)", (4, 2, 3), (3, 5)),
    ):
        _Example(forward).expect_count(count_flops, x, y)


@exercise.check(deadline=60)
def products_added_to(count_flops):
    """`addmm` and `baddbmm`: a product and something that is added to it"""
    w = {"w": "nn.Parameter(torch.randn(7))"}
    for forward in (
        "torch.addmm(self.w, x, y)",
        "self.w.addmm(x, y, beta=2)",
        "torch.addmm(self.w, mat2=y, mat1=x)",
    ):
        _Example(forward, **w).expect_count(count_flops, (2, 3), (3, 7))
    for forward in ("torch.baddbmm(self.w, x, y)", "self.w.baddbmm(batch1=x, batch2=y)"):
        _Example(forward, **w).expect_count(count_flops, (4, 2, 3), (4, 3, 7))


@exercise.check(deadline=60)
def convolutions(count_flops):
    """Convolutions, as modules and as functions, with stride, groups, dilation and padding"""
    for conv, shape in (
        ("nn.Conv2d(3, 4, 3)", (2, 3, 7, 6)),
        ("nn.Conv2d(3, 4, 3)", (3, 7, 6)),
        ("nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=1, groups=2, bias=False)", (2, 4, 7, 6)),
        ("nn.Conv1d(2, 4, 3, dilation=2, groups=2)", (3, 2, 9)),
        ("nn.Conv3d(2, 3, 2, stride=2)", (1, 2, 4, 5, 6)),
    ):
        _Example("self.conv(x)", conv=conv).expect_count(count_flops, shape)
    for forward, x, y in (
        ("F.conv1d(x, y, padding=1)", (2, 3, 8), (4, 3, 3)),
        ("F.conv2d(x, y)", (2, 3, 5, 6), (4, 3, 3, 2)),
        ("F.conv2d(stride=2, weight=y, input=x)", (2, 3, 8, 7), (4, 3, 3, 2)),
        ("torch.conv3d(x, y, groups=2)", (1, 4, 3, 4, 5), (2, 2, 2, 2, 2)),
    ):
        _Example(forward).expect_count(count_flops, x, y)


@exercise.check(deadline=60)
def every_node(count_flops):
    """An entry for each call of a shared module, and none for what is no product"""
    inner = "nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU())"
    t = _Example("self.net(self.net(x) * 2).mean((2, 3)) + x.sum()", net=f"nn.Sequential({inner})")
    t.expect_count(count_flops, (2, 3, 5, 4))
    # A parameter may have the name of a product.
    parts = {"mm": "nn.Parameter(torch.randn(2, 3))", "linear": "nn.Flatten()"}
    _Example("self.linear(x + self.mm).softmax(1)", **parts).expect_count(count_flops, (2, 3))


@exercise.check(deadline=60)
def in_all(count_flops):
    """All entries together are what torch's `FlopCounterMode` counts"""
    t = _Example(
        "self.linear(self.conv(x).relu().flatten(1)) @ self.w",
        conv="nn.Conv2d(2, 4, 3, groups=2)",
        linear="nn.Linear(12, 5)",
        w="nn.Parameter(torch.randn(5, 6))",
    )
    x = torch.randn(3, 2, 3, 5)
    wanted = measure.flops(t.model, x)
    with t.shown(x):
        _, found = _pair(count_flops(t.model, x))
        expect.true(isinstance(found, dict), f"the second result is {expect.show(found)}, expected a dict")
        came = sum(found.values())
        evidence.record("in all", came)
        expect.true(came == wanted, f"operations in all: {expect.show(came)}, torch counts {wanted:,}")


def _without_torchs_counter(count_flops, *arguments):
    """What the answer returns, made without it."""
    used, enter = [], FlopCounterMode.__enter__

    def noted(self):
        used.append(True)
        return enter(self)

    with mock.patch.object(FlopCounterMode, "__enter__", noted):
        came = count_flops(*arguments)
    expect.true(not used, "torch's own counter was used", "expected: the numbers are yours")
    return came


class _Counts(nn.Module):
    """A layer with a batch norm, which counts its calls, and with dropout."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.linear = nn.Linear(3, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.linear(self.norm(x)) @ self.linear(x).t())


@exercise.check(deadline=60)
def runs_once(count_flops):
    """Everything runs once, without torch's counter, and gradients flow"""
    model, x = _Counts(), torch.randn(4, 3, requires_grad=True)
    parts = "self.norm = nn.BatchNorm1d(3)", "self.linear = nn.Linear(3, 3)", "self.drop = nn.Dropout(0.5)"
    code = "def forward(self, x): return self.drop(self.linear(self.norm(x)) @ self.linear(x).t())"
    call = "result, flops = count_flops(model, torch.randn(4, 3, requires_grad=True))"
    with expect.situation(*parts, code, call):
        torch.manual_seed(2)
        with measure.operators() as once, evidence.silent():
            wanted = model(x)
        torch.manual_seed(2)
        with measure.operators() as ran, evidence.silent():
            result, _ = _pair(_without_torchs_counter(count_flops, model, x))
        with evidence.silent():
            own, number = once.matmuls(), ran.matmuls()
        # The model itself was called once above.
        calls = int(model.norm.num_batches_tracked) - 1
        evidence.record("ran", [calls, number])
        expect.true(calls == 1, f"calls that `model.norm` has counted: {calls}", "expected: 1")
        expect.true(
            number == own, f"products of matrices that ran: {number}, expected {own}, as in the model"
        )
        expect.equal(result, wanted, what="the first result")
        expect.in_graph(result, what="the first result", of="`model.linear.weight`")
        leaves = {"x": x, "model.linear.weight": model.linear.weight}
        grads = torch.autograd.grad(result.sum(), leaves.values(), allow_unused=True)
        meant = torch.autograd.grad(wanted.sum(), leaves.values())
        for name, grad, right in zip(leaves, grads, meant, strict=True):
            expect.equal(grad, right, what=f"the gradient of `result.sum()` for `{name}`")


# --- the mistakes -----------------------------------------------------------------------------------------


class _Counting(fx.Interpreter):
    """Counts as one should; each mistake changes one thing."""

    first = {"linear": (0, "input"), "addmm": (1, "mat1"), "baddbmm": (1, "batch1")}
    first |= {name: (0, "input") for name in ("mm", "bmm", "matmul")}
    first |= {f"conv{n}d": (1, "weight") for n in (1, 2, 3)}

    def __init__(self, model):
        super().__init__(fx.symbolic_trace(model))
        self.flops = {}

    def key(self, node):
        return node.name

    def run_node(self, node):
        result = super().run_node(node)
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        number = self.number(node, result, args, kwargs)
        if number is not None:
            self.flops[self.key(node)] = number
        return result

    def number(self, node, result, args, kwargs):
        if node.op == "call_module":
            module = self.fetch_attr(node.target)
            return self.of_module(module, result, (*args, *kwargs.values())[0])
        if node.op in ("call_function", "call_method"):
            name = getattr(node.target, "__name__", node.target)
            if name in self.first:
                return self.of_function(name, result, args, kwargs)
        return None

    def of_module(self, module, result, x):
        if isinstance(module, nn.Linear):
            return 2 * result.numel() * module.in_features
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            return 2 * result.numel() * module.weight.shape[1:].numel()
        return None

    def of_function(self, name, result, args, kwargs):
        place, keyword = self.first[name]
        first = kwargs[keyword] if keyword in kwargs else args[place]
        size = first.shape[1:].numel() if name.startswith("conv") else first.shape[-1]
        return 2 * result.numel() * size


def _count(kind, model, inputs):
    interpreter = kind(model)
    return interpreter.run(*inputs), interpreter.flops


@exercise.mistake
def half_of_them(model, *inputs):
    """You count a multiplication and the addition that follows as one. That is another usual unit, a
    multiply-accumulate (MAC); operations are twice as many."""

    class Counting(_Counting):
        def number(self, *args):
            number = super().number(*args)
            return None if number is None else number // 2

    return _count(Counting, model, inputs)


@half_of_them.variant
def sizes_multiplied(model, *inputs):
    class Counting(_Counting):
        def of_module(self, module, result, x):
            if isinstance(module, nn.Linear):
                return x.numel() * module.out_features
            if hasattr(module, "kernel_size"):
                inside = module.in_channels // module.groups
                return result.numel() * inside * torch.Size(module.kernel_size).numel()
            return None

        def of_function(self, name, result, args, kwargs):
            return super().of_function(name, result, args, kwargs) // 2

    return _count(Counting, model, inputs)


@exercise.mistake
def with_the_bias(model, *inputs):
    """You count the addition of the bias. torch's counter leaves it out, as it leaves out all that is done
    element by element: it is small beside the product."""

    class Counting(_Counting):
        def of_module(self, module, result, x):
            number = super().of_module(module, result, x)
            return (
                number if getattr(module, "bias", None) is None or number is None else number + result.numel()
            )

    return _count(Counting, model, inputs)


@exercise.mistake
def without_groups(model, *inputs):
    """You sum over all input channels. With groups an output channel sees those of its own group alone: the
    weight has `in_channels / groups` of them."""

    class Counting(_Counting):
        def of_module(self, module, result, x):
            number = super().of_module(module, result, x)
            return None if number is None else number * getattr(module, "groups", 1)

        def of_function(self, name, result, args, kwargs):
            number = super().of_function(name, result, args, kwargs)
            return number * kwargs.get("groups", 1)

    return _count(Counting, model, inputs)


@without_groups.variant
def in_modules_alone(model, *inputs):
    class Counting(_Counting):
        def of_module(self, module, result, x):
            number = super().of_module(module, result, x)
            return None if number is None else number * getattr(module, "groups", 1)

    return _count(Counting, model, inputs)


@exercise.mistake
def at_every_input_element(model, *inputs):
    """You count a convolution at every place of its input. It is computed at the places of its result: fewer
    with a stride or without padding."""

    class Counting(_Counting):
        def of_module(self, module, result, x):
            if not hasattr(module, "kernel_size"):
                return super().of_module(module, result, x)
            return 2 * x.numel() // module.in_channels * module.weight.numel()

    return _count(Counting, model, inputs)


@exercise.mistake
def one_matrix_of_the_batch(model, *inputs):
    """You count one product where there is a batch of them: `2 * m * k * n`, with m and n of the last two
    dimensions. Every matrix of the batch is multiplied; the elements of the result are all of them."""

    class Counting(_Counting):
        def of_function(self, name, result, args, kwargs):
            number = super().of_function(name, result, args, kwargs)
            return number if "mm" not in name and name != "matmul" else number // result.shape[:-2].numel()

    return _count(Counting, model, inputs)


@one_matrix_of_the_batch.form
def one_matrix_in_matmul(model, *inputs):
    class Counting(_Counting):
        def of_function(self, name, result, args, kwargs):
            number = super().of_function(name, result, args, kwargs)
            return number if name not in ("mm", "bmm", "matmul") else number // result.shape[:-2].numel()

    return _count(Counting, model, inputs)


@exercise.mistake
def named_after_the_target(model, *inputs):
    """Your entries have the names of modules and functions. One that is called twice has one `target` and
    two nodes; the second call writes over the first. `node.name` is different for each."""

    class Counting(_Counting):
        def key(self, node):
            return getattr(node.target, "__name__", node.target)

    return _count(Counting, model, inputs)


@exercise.mistake
def runs_it_twice(model, *inputs):
    """You run the model for its result and once more to count. It costs double, what the model keeps of its
    calls is counted twice, and with dropout the two runs are not the same. The interpreter's run gives the
    result as well."""
    result = model(*inputs)
    return result, _count(_Counting, model, inputs)[1]


@runs_it_twice.variant
def notes_the_shapes_first(model, *inputs):
    traced = fx.symbolic_trace(model)
    ShapeProp(traced).propagate(*inputs)
    interpreter = _Counting(traced)
    return interpreter.run(*inputs), interpreter.flops


@exercise.mistake
def runs_a_copy(model, *inputs):
    """You run a copy of the model. What the model keeps of its calls is kept by the copy, and so are the
    gradients. Nothing in the model is changed by an interpreter over its trace: no copy is needed."""
    return _count(_Counting, copy.deepcopy(model), inputs)


@exercise.mistake
def with_torchs_counter(model, *inputs):
    """These are the numbers of torch's own counter. They are right, and they are what yours are compared
    with: count from the shapes that your interpreter sees."""
    flops = {}

    class Each(fx.Interpreter):
        def run_node(self, node):
            with FlopCounterMode(display=False) as counter:
                result = super().run_node(node)
            if counter.get_total_flops():
                flops[node.name] = counter.get_total_flops()
            return result

    return Each(fx.symbolic_trace(model)).run(*inputs), flops
