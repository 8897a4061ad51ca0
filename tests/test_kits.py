"""What no exercise's own mistakes show of the kits that their checks are made with."""

import contextlib

import pytest
import torch
from torch import nn
from torch.autograd import Function

from course_utils.exercise import expect
from course_utils.exercise.kits import derivatives, exported, modules
from course_utils.exercise.kits.compiled import Counting, CountingHalves

X = "x = torch.tensor([-1., 0.5, 2.], requires_grad=True)"


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


class LeftToAutograd(Square):
    @staticmethod
    def apply(x):
        return x * x


class Detached(Square):
    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0].detach() * grad


def is_its_own(square):
    derivatives.is_its_own(expect.given(X, Square=square), "Square.apply(x)", ("aten.pow",))


def second(square):
    x, found = derivatives.second(expect.given(X, Square=square), "Square.apply(x)")
    derivatives.agrees(found, torch.full((3,), 2.0).double(), x, what="the second derivative")


@pytest.mark.parametrize(
    ("check", "wrong", "said"),
    [
        (is_its_own, LeftToAutograd, "which does not call your `backward`"),
        (second, Detached, "the gradient has a graph, and none of it leads to `x`"),
    ],
)
def test_right_ones_pass_and_wrong_ones_are_told(check, wrong, said):
    with expect.situation():
        check(Square)
        with pytest.raises(expect.Mismatch, match=said):
            check(wrong)


def test_values_and_derivatives_are_in_double_precision():
    found = derivatives.exact(torch.sin, torch.tensor([0.5], requires_grad=True))
    x = torch.tensor([0.5]).double()
    torch.testing.assert_close(found, (x.sin(), x.cos(), -x.sin()))


def written(layer):
    layer.weight.detach().fill_(1.0)


def replaced(layer):
    layer.weight = nn.Parameter(torch.ones(1, 1))


def moved(layer):
    layer.weight.data = torch.ones(1, 1)


def computed(layer):
    layer.weight.requires_grad_(False)
    layer.weight.mul_(torch.ones(1, requires_grad=True))


@pytest.mark.parametrize(
    ("change", "told"),
    [(written, ""), (replaced, "another Parameter"), (moved, "another storage"), (computed, "`grad_fn`")],
)
def test_what_is_not_written_in_place_is_told(change, told):
    layer = nn.Linear(1, 1)
    raised = pytest.raises(expect.Mismatch, match=told) if told else contextlib.nullcontext()
    with raised, modules.in_place(lambda: layer.state_dict(keep_vars=True)):
        change(layer)


@torch.library.custom_op("kits::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


halve.register_fake(torch.empty_like)


def ordinary(x):
    x = torch.nn.functional.softmax(torch.where(x > 0, x, 0).clamp(max=1) @ x.diag(), 0)
    return torch.cond(x.sum() > 0, torch.neg, torch.clone, (torch.ops.aten.add(x, 1),))


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (halve, ["kits.halve.default"]),
        (lambda x: torch.cond(x.sum() > 0, halve, torch.neg, (x,)), ["kits.halve.default"]),
        (ordinary, []),
    ],
)
def test_operators_that_are_not_torchs_are_named_wherever_they_stand(function, names):
    """Otherwise what `remove_graph_breaks` is to remove could be hidden in one."""
    torch.compiler.reset()
    backend = Counting()
    torch.compile(function, backend=backend, fullgraph=True)(torch.ones(2))
    assert [name for graph in backend.graphs for name in graph.foreign] == names


def test_graphs_of_another_backend_are_told_beside_none():
    torch.compiler.reset()
    backend, other = Counting(), Counting()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    torch.compile(lambda x: x * 2, backend=other)(torch.ones(2))
    assert (backend.elsewhere, str(backend)) == (1, "none; of another backend: 1")
    assert str(other) == "mul, ran once; of another backend: 1"


def test_what_graphs_wrote_to_is_known_by_tensor():
    torch.compiler.reset()
    backend, x, y = CountingHalves(), torch.ones(2), torch.ones(2)
    torch.compile(lambda x, y: x.add_(y), backend=backend)(x, y)
    torch.compile(lambda y: y.add_(1), backend="eager")(y)
    assert (backend.wrote(x), backend.wrote(y), backend.ran()) == (True, False, ["add", "copy_"])


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: torch.export.export(nn.Linear(3, 2), (torch.ones(4, 3),)).module(),
            "the program refuses a batch of size 2: it was exported for `input.size()[0] == 4` alone",
        ),
        (
            lambda: torch.jit.script(nn.Linear(3, 2).double()),
            "the program raises for a batch of size 2: `RuntimeError: mat1 and mat2 must have the same dtype",
        ),
    ],
)
def test_what_a_program_refuses_is_told_with_the_cause_alone(make, told):
    run = make()
    with expect.situation(), pytest.raises(expect.Mismatch) as error, exported.answering(2):
        run(torch.ones(2, 3))
    assert error.value.lines[0].startswith(told)


def test_what_a_file_holds(tmp_path):
    path, layer = tmp_path / "file.pt2", nn.Linear(3, 2)
    program = torch.export.export(layer, (torch.ones(4, 3),))
    for write, held in (
        (lambda: torch.jit.script(layer).save(path), "a script"),
        (lambda: torch.save(layer.state_dict(), path), "a pickle"),
        (lambda: torch.export.save(program, path), "an exported program"),
        (lambda: path.write_bytes(b"text"), "nothing that torch writes"),
    ):
        write()
        assert exported.content(path) == held
