"""Leaves, flags and where a gradient arrives"""

import re

from course_utils.questions import Family

family = Family(section="Leaves", asked="What does the last line show?")

MADE = ["torch.ones(N, requires_grad=True)", "torch.rand(N).requires_grad_()", "nn.Parameter(torch.rand(N))"]
MADE += ["torch.rand(N)", "torch.rand(N, requires_grad=True) * 0.1"]
COMPUTED = ["{0} * 2", "{0} + {1}", "{0}.double()", "{0}[:1]", "{0}.detach().requires_grad_()"]
LEAVES = ["with {0} * 2", "{0} * 2", "{0}.detach()", "torch.rand(N)", "torch.rand(N) / 2", MADE[4]]
FLAGS = ["with {0} * 2", "with nn.Parameter({0})", "{0}.clone()", "{0}.clone() * 2", "with {0} + {1}"]
TELLING = {"is_leaf": LEAVES, "requires_grad": FLAGS}


@family.program
def graph(draw, level):
    names, size = "abcdefg"[: level + 2], draw.randint(2, 9)
    attribute = draw.choice([*TELLING])
    first = [draw.choice(MADE[:3])] + ([draw.choice(MADE)] if level > 3 else [])
    rest = draw.sample(TELLING[attribute], 1 + level // 2 + (level > 1))
    rest += [draw.choice(COMPUTED) for _ in range(len(names) - len(first) - len(rest))]
    draw.shuffle(rest)
    lines = []
    for i, (name, form) in enumerate(zip(names, [*first, *rest], strict=True)):
        sources = [*names[max(0, i - 3) : i]] * 2
        code = form.removeprefix("with ").format(*draw.sample(sources, 2) if i else "a")
        code = code.replace("(N", f"({size}")
        lines.append(f"with torch.no_grad():\n    {name} = {code}" if "with" in form else f"{name} = {code}")
    return "\n".join([*lines, f"[t.{attribute} for t in ({', '.join(names[-3 - level // 2 :])})]"])


def asked(run, believed):
    """The answers for the names asked about, where `believed` gives one of a tensor and of the code that made
    it: None for the true one."""
    names = re.search(r"in \((.*)\)\]", run.code)[1].split(", ")
    made = dict(re.findall(r"(\w) = (.*)", run.code))
    answers = [believed(run.names[name], made[name]) for name in names]
    return [true if answer is None else answer for answer, true in zip(answers, run.value, strict=True)]


@family.belief
def created_by_hand(run):
    """Leaves are the tensors that you create, and not those that are computed

    A leaf is a tensor without a `grad_fn`. What is computed without recording is one, and a factor after
    `requires_grad=True` makes what you created a result.

        x = torch.ones(2) * 0.1
        w = torch.ones(2, requires_grad=True) * 0.1
        x.is_leaf, x.exp().is_leaf, w.is_leaf
    """
    made = ("torch.", "nn.")
    return asked(run, lambda t, code: code.startswith(made)) if "is_leaf" in run.code else None


@family.belief
def leaf_requires_grad(run):
    """A leaf is a tensor at the bottom that requires a gradient

    Tensors that require none are leaves too: nothing was recorded for them.

        x = torch.ones(2)
        x.is_leaf, x.requires_grad, (x * 2).is_leaf
    """
    return asked(run, lambda t, code: t.is_leaf and t.requires_grad) if "is_leaf" in run.code else None


@family.belief
def clone_is_cut_off(run):
    """`clone()` gives a tensor that no longer belongs to the graph

    A clone is recorded like any operation: gradients go back through it. `detach()` cuts.

        w = torch.ones(2, requires_grad=True)
        w.clone().requires_grad, w.detach().requires_grad
    """
    return run.again(run.code.replace(".clone()", ".detach()"))


@family.belief
def no_grad_is_for_backward(run):
    """`no_grad` stops backward; the tensors made there belong to the graph as usual

    It stops recording. A result has no `grad_fn`, requires no gradient, and is a leaf. What you create there
    with `requires_grad=True`, a Parameter too, requires one as usual.

        w = torch.ones(2, requires_grad=True)
        with torch.no_grad():
            y = w * 2
        y.requires_grad, y.is_leaf
    """
    return run.again(run.code.replace("with torch.no_grad():", "if True:"))


@family.belief
def nothing_there_requires_one(run):
    """Nothing that is made under `no_grad` requires a gradient

    No result does. But what you create there with `requires_grad=True`, a Parameter too, requires one.

        with torch.no_grad():
            w = nn.Parameter(torch.ones(2))
            y = w * 2
        w.requires_grad, y.requires_grad
    """
    return run.again(re.sub(r"( {4}\w = )nn.Parameter(\(\w\))", r"\1\2.detach()", run.code))
