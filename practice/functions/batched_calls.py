"""Shapes under vmap"""

import re
from math import prod

import torch

from course_utils.questions import Family

family = Family(section="A batch of calls", asked="Which shape does the last line show?")

FORMS = {
    1: ["x * 2", "x.cumsum(0)", "x[1:]", "x.repeat(2)", "x.flip(0)", "x[:2]", "torch.outer(x, x)"],
    2: ["x.sum(0)", "x.mean(-1)", "x[0]", "x.t()", "x.flatten()", "x.softmax(0)", "x[:, 1:]"],
    3: ["x @ w", "w * x", "(w - x).sum(0)", "x.mean(0) * w", "(w * x).t()", "(x / w).norm(dim=-1)"],
    4: ["(x @ w).sum()", "(x @ w).max()", "(w * x).mean()", "(w - x).norm()"],
}


@family.program
def mapped(draw, level):
    one = level < 3
    arguments, call = "x" if one else "w, x", "grad(f)" if level > 3 else "f"
    *shape, inner, outer = draw.sample([2, 3, 4, 5, 6, 7, 8, 9], 3 + (level > 1))
    weights = [shape[-1]]
    lines = [f"from torch.func import {'grad, ' * (level > 3)}vmap", f"def f({arguments}):"]
    lines.append(f"    return {draw.choice(FORMS[min(level, 4)])}")
    for size in [inner, outer][: 1 + (level > 4)]:
        place = draw.randint(0, len(shape))
        shape.insert(place, size)
        first = draw.choice(["None", "None", "0"])
        weights = [size, *weights] if first == "0" else weights
        call = f"vmap({call}, in_dims={place if one else f'({first}, {place})'})"
    if not one:
        lines.append(f"w = torch.ones({', '.join(map(str, weights))})")
    lines += [f"x = torch.ones({', '.join(map(str, shape))})", f"y = {call}({arguments})", "y.shape"]
    return "\n".join(lines)


@family.belief
def joined(run):
    """`vmap` joins the results of its calls along their first dimension, as `cat` does

    It stacks them: the batch is a dimension of its own.

        torch.vmap(lambda x: x * 2)(torch.ones(4, 3)).shape, torch.cat([torch.ones(3)] * 4).shape
    """
    sizes = [*run.value]
    for _ in range(run.code.count("in_dims")):
        sizes[:2] = [prod(sizes[:2])]
    return torch.Size(sizes)


@family.belief
def stays_in_place(run):
    """In the result the batch dimension is where it was in the input

    It's the first one, unless `out_dims` says otherwise.

        x = torch.ones(2, 5, 3)
        torch.vmap(torch.sin, in_dims=1)(x).shape, torch.vmap(torch.sin, in_dims=1, out_dims=1)(x).shape
    """
    return run.again(re.sub(r"in_dims=(?:(\d)|\(\w+, (\d)\))", r"\g<0>, out_dims=\1\2", run.code))


@family.belief
def sees_the_batch(run):
    """The function gets the whole batch at once, and its dimensions are counted with that of the batch

    It's written for one example, and sees one. Its dimensions are counted without that of the batch.

        torch.vmap(lambda x: x.sum(0))(torch.ones(4, 2, 3)).shape, torch.ones(4, 2, 3).sum(0).shape
    """
    return run.again(re.sub(r"= vmap.*?(grad\(f\)|\bf\b).*\((w, x|x)\)", r"= \1(\2)", run.code))


@family.belief
def summed(run):
    """What all calls share has one gradient, summed over the batch

    An ordinary backward sums. Each call of `vmap` gives its own result: one gradient for each example.

        w, x = torch.ones(3), torch.ones(5, 3)
        torch.vmap(torch.func.grad(torch.dot), in_dims=(None, 0))(w, x).shape
    """
    return run.names["w"].shape if "grad" in run.code else None


@family.belief
def for_the_data(run):
    """`vmap(grad(f))` gives the gradient for what is mapped over, the data

    `grad` differentiates the first argument, or those in `argnums`, whatever `vmap` does with them.

        w, x = torch.ones(3), torch.ones(5, 2, 3)
        f = lambda w, x: (x @ w).sum()
        [torch.vmap(torch.func.grad(f, i), in_dims=(None, 0))(w, x).shape for i in (0, 1)]
    """
    return run.again(run.code.replace("grad(f)", "grad(f, argnums=1)"))
