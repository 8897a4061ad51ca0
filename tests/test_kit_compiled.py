"""The counting backend names operators that are not torch's: otherwise `remove_graph_breaks` could be hidden
in one."""

import torch

from course_utils.exercise.kits.graphs_compiled import Counting


def foreign(function):
    torch.compiler.reset()
    backend = Counting()
    torch.compile(function, backend=backend, fullgraph=True)(torch.ones(2))
    return [name for graph in backend.graphs for name in graph.foreign]


def test_an_operator_of_ones_own_is_named_wherever_it_stands():
    @torch.library.custom_op("kit_compiled::halve", mutates_args=())
    def halve(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    @halve.register_fake
    def _(x):
        return torch.empty_like(x)

    def chosen(x):
        return torch.cond(x.sum() > 0, halve, torch.neg, (x,))

    @torch.compiler.allow_in_graph
    def as_it_is(x):
        return x + 1

    assert foreign(halve) == foreign(chosen) == ["kit_compiled.halve.default"]
    assert foreign(lambda x: as_it_is(x)) == ["as_it_is"]


def test_torchs_own_are_not():
    def function(x):
        x = torch.nn.functional.softmax(torch.where(x > 0, x, 0).clamp(max=1) @ x.diag(), 0)
        return torch.cond(x.sum() > 0, torch.neg, torch.clone, (torch.ops.aten.add(x, 1),))

    assert foreign(function) == []
