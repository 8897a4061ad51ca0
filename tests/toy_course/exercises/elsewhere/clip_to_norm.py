"""Short enough, in one graph

Scale `x` down to the length `limit` where it is longer, and return it as it is where it is not. Long or
short, `torch.compile` makes one graph of your function.

`clip_to_norm(torch.tensor([3.0, 4.0]), 1.0)` → `[0.6, 0.8]`
"""

import torch
from torch import Tensor

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=10,
    hints=[
        "What must be known to decide which branch of an `if` is taken? When is it known?",
        "Both cases can be computed, and one of them chosen element by element.",
        "A factor that is never above 1 needs no case at all.",
    ],
)


@exercise.starter
def clip_to_norm(x: Tensor, limit: float) -> Tensor:
    """Any shape -> the same shape"""
    raise NotImplementedError


@exercise.check
def long(clip_to_norm):
    """What is too long gets the length `limit`"""
    t = expect.given("x = torch.tensor([3.0, 4.0])", clip_to_norm=clip_to_norm)
    expect.equal(t.call("clip_to_norm(x, 1.0)"), torch.tensor([0.6, 0.8]))


@exercise.check
def short(clip_to_norm):
    """What is short stays as it is"""
    t = expect.given("x = torch.tensor([[0.5, 0.0], [-0.5, 0.5]])", clip_to_norm=clip_to_norm)
    expect.equal(t.call("clip_to_norm(x, 2.0)"), torch.tensor([[0.5, 0.0], [-0.5, 0.5]]))


@exercise.check
def zero(clip_to_norm):
    """Zero stays zero, also with the limit 0"""
    t = expect.given("x = torch.zeros(3)", clip_to_norm=clip_to_norm)
    expect.equal(t.call("clip_to_norm(x, 1.0)"), torch.zeros(3))
    expect.equal(t.call("clip_to_norm(x, 0.0)"), torch.zeros(3))


@exercise.check(isolated=True)
def one_graph(clip_to_norm):
    """One graph serves long and short inputs"""
    with expect.situation("f = torch.compile(clip_to_norm)", "f(long, 1.0)", "f(short, 1.0)"):
        with measure.graphs_compiled() as compiled:
            f = torch.compile(clip_to_norm, backend="eager")
            expect.equal(f(torch.tensor([3.0, 4.0]), 1.0), torch.tensor([0.6, 0.8]))
            expect.equal(f(torch.tensor([0.3, 0.4]), 1.0), torch.tensor([0.3, 0.4]))
        with evidence.silent():  # how many more than one depends on the style of the answer
            graphs = compiled.graphs
        expect.true(graphs == 1, f"{graphs} graphs were made", "expected: one")


@exercise.check(isolated=True, needs="compiler")
def generated_code(clip_to_norm):
    """The code that the compiler generates computes the same"""
    x = torch.linspace(-2, 2, 64)
    with expect.situation("torch.compile(clip_to_norm)(x, 3.0)"):
        expect.equal(torch.compile(clip_to_norm)(x, 3.0), x * (3.0 / x.norm()), rtol=1e-5, atol=1e-6)


@exercise.mistake
def branches(x, limit):
    """An `if` on a value of a tensor ends the graph: the branch is not known before the value is."""
    norm = x.norm()
    if norm > limit:
        return x * (limit / norm)
    return x


@branches.variant
def takes_the_number(x, limit):
    norm = float(x.pow(2).sum().sqrt())
    return x * limit / norm if norm > limit else x + 0


@exercise.mistake
def always_scales(x, limit):
    """You give everything the length `limit`, also what was shorter."""
    return x * (limit / x.norm().clamp(min=1e-20))


@always_scales.variant
def normalises(x, limit):
    return limit * torch.nn.functional.normalize(x.flatten(), dim=0, eps=1e-20).view_as(x)


@exercise.mistake
def clips_elements(x, limit):
    """You limit each element on its own: the direction changes, and the length can still be above `limit`."""
    return x.clamp(-limit, limit)


@clips_elements.variant
def cuts_elements(x, limit):
    return torch.maximum(torch.minimum(x, torch.full_like(x, limit)), torch.full_like(x, -limit))


@exercise.mistake
def zero_by_zero(x, limit):
    """At zero you divide 0 by 0, which is not a number, and a factor that is not a number spoils all."""
    norm = x.norm()
    return x * (torch.minimum(norm, torch.full_like(norm, limit)) / norm)
