"""A write in place, and backward afterwards"""

import re
from textwrap import indent

from course_utils.questions import RAISES, Family

family = Family(section="Versions", asked="Which gradient does the last line show (rounded)?", may_raise=True)

# What keeps its input, its result, and neither; none gives 0.
KINDS = [["{0} ** 2", "{0} * w"], ["{0}.reciprocal()"], ["{0} + 4", "{0} * 2", "{0} / 2", "{0} - 3"]]
WRITES = ["{0}.{1}", "{0}.data.{1}", "{0}.detach().{1}", "with torch.no_grad():\n    {0}.{1}"]
WRITE = re.compile(r"(?:with .*\n    )?(\w)(?:\.data|\.detach\(\))?(\.\w+_\(\d\))")


@family.program
def written(draw, level):
    names = ["h", "h", "hs", "hst", "hst"][level - 1]
    lines = [f"w = torch.tensor({draw.choice([-2.0, -1.0, 1.0, 2.0])}, requires_grad=True)"]
    for name, kind in zip(names, draw.sample(KINDS, len(names)), strict=True):
        lines.append(f"{name} = {draw.choice(kind).format(lines[-1][0])}")
    change = draw.choice(["mul_(2)", "mul_(3)", "mul_(4)", "add_(3)", "add_(4)", "add_(5)"])
    lines.append(draw.choice(WRITES).format(draw.choice(names[-2:]), change))
    loss = f"({names[-1]} * {draw.choice([2, 3, 4])}{' + h' * (level > 4)})" if level > 1 else "h"
    return "\n".join([*lines, f"{loss}.backward()", "w.grad.item()"])


def again(run, code):
    """What another program gives; an error is an answer too."""
    try:
        return run.again(code)
    except RuntimeError:
        return RAISES


def with_kept(run, kept):
    """What comes out where nodes keep something else than the tensor `t`."""
    body, last = run.code.rsplit("\n", 1)
    hooks = f"torch.autograd.graph.saved_tensors_hooks(lambda t: {kept}, lambda t: t)"
    return run.again(f"with {hooks}:\n{indent(body, '    ')}\n{last}")


@family.belief
def any_write_breaks(run):
    """A write in place to a computed tensor makes backward raise

    Only if a node had kept that tensor before the write, and the write was counted. A write behind `.data`
    isn't counted: backward takes the new numbers without a word.

        w = torch.tensor(2.0, requires_grad=True)
        s = (h := w * 3) ** 2
        h.data.add_(1)
        t = (k := w * 3) * 2
        k.detach().add_(1)
        torch.autograd.grad(s, w), torch.autograd.grad(t, w)
    """
    return RAISES


@family.belief
def kept_as_copies(run):
    """Autograd keeps copies of what it needs: a write later does no harm

    It keeps the tensor itself. A write that nobody counts, as behind `.data`, changes the gradient.

        h = (w := torch.tensor(0.0, requires_grad=True)).exp()
        h.data.mul_(10)
        torch.autograd.grad(h, w), torch.autograd.grad(w.exp(), w)
    """
    return with_kept(run, "t.clone()")


@family.belief
def new_values(run):
    """Backward computes with the values that are in the tensors by then

    A node remembers how many writes there were when it kept a tensor. If more were counted, backward raises.

        h = torch.tensor(4.0, requires_grad=True).exp()
        h._version, h.add_(1)._version
    """
    return with_kept(run, "t.data")


@family.belief
def all_recorded(run):
    """A write behind `.data`, `detach()` or `no_grad` is treated like any other write

    They leave no node. But writes under the last two are counted, so backward raises if a node had kept the
    tensor before the write. One behind `.data` isn't even counted.

        w = torch.tensor(2.0, requires_grad=True)
        s, t = w * 3, w * 3
        s.mul_(4)
        with torch.no_grad(): t.mul_(4)
        torch.autograd.grad(s, w), torch.autograd.grad(t, w)
    """
    return again(run, WRITE.sub(r"\1\2", run.code))


@family.belief
def never_recorded(run):
    """A write in place leaves nothing in the graph: it only changes the numbers

    A recorded write makes a node of its own, and the tensor is its result.

        w = torch.tensor(4.0, requires_grad=True)
        torch.autograd.grad((w * 1).mul_(10), w)
    """
    return again(run, WRITE.sub(r"\1.data\2", run.code))
