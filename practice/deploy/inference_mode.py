"""Gradients after `no_grad`, `inference_mode` and `detach`"""

import re

from course_utils.questions import RAISES, Family

family = Family(section="The model as it is", may_raise=True)

INSIDE = ["w * 2", "(x + w).exp()", "w.sin()", "x * w", "w - x"]
LATER = ["y + w", "y * w", "w / y", "w * 2", "y.exp()", "y.clone() * w", "y * 3", "w + x", "x - y", "x * 2"]


@family.program
def tensors(draw, level):
    mode = draw.choice(["no_grad", "inference_mode"] + ["no_grad"] * (level < 3))
    lines = ["x = torch.ones(2)", "w = torch.ones(2, requires_grad=True)"]
    lines += [f"with torch.{mode}():", f"    y = {draw.choice(INSIDE)}"]
    if level < 3 and draw.random() < 0.2:
        lines[2:] = [f"y = ({draw.choice(INSIDE)}).detach()"]
    later = draw.sample(LATER, [2, 3, 3, 4, 4][level - 1])
    names = ["z", "a", "b", "c"][: len(later)]
    steps = [f"{name} = {value}" for name, value in zip(names, later, strict=True)]
    if level >= 3:
        kinds = ["y.add_(1)", "y.mul_(2)", "x = x + w", "w = w.detach()", "x = y.detach()"]
        steps.insert(draw.randrange(len(steps)), draw.choice(kinds))
        if draw.random() < 0.1 * level:
            steps.insert(0, "y = y.clone()")
    if level == 5:
        steps.append(draw.choice([f"w = {names[1]} + 1", f"x = {names[0]} * 2"]))
    asked = ", ".join(["w", "x", "y", *names] if level == 5 else ["w", "y", *names])
    return "\n".join([*lines, *steps, f"[one.requires_grad for one in ({asked})]"])


@family.belief
def a_faster_no_grad(run):
    """`inference_mode` is a faster `no_grad`, and what comes out is a tensor like any other

    What it allocates has no version counter. Outside, autograd refuses to save it for a backward, and nobody
    may write to it in place. A `clone()` made outside is a normal tensor.

        x = torch.ones(2, requires_grad=True)
        with torch.inference_mode():
            y = x * 2
        y.is_inference(), y.clone().is_inference()
    """
    return run.again(run.code.replace("inference_mode", "no_grad"))


@family.belief
def of_no_use_outside(run):
    """A tensor from `inference_mode` can't be computed with outside

    It can. Only what would have to save it for a backward raises, or what writes to it.

        w = torch.ones(2, requires_grad=True)
        with torch.inference_mode():
            y = torch.ones(2) * 2
        (y + w).requires_grad, (y * 3).requires_grad
    """
    _, _, later = run.code.rpartition("inference_mode")
    return RAISES if later != run.code and re.search(r"^(\w = .*\by\b|y\.)", later, re.M) else None


@family.belief
def grad_is_kept(run):
    """What comes from a parameter requires a gradient, under `no_grad` too: that only forbids `backward`

    Under `no_grad` nothing is recorded, and a result doesn't require a gradient.

        w = torch.ones(2, requires_grad=True)
        with torch.no_grad():
            y = w * 2
        y.requires_grad, y.grad_fn
    """
    code = re.sub("no_grad|inference_mode", "enable_grad", run.code)
    return run.again(code) if code != run.code else None


@family.belief
def for_good(run):
    """What is computed from such a result never requires a gradient

    Outside the block autograd records again. A result requires a gradient if one of its inputs does.

        w = torch.ones(2, requires_grad=True)
        with torch.no_grad():
            y = w * 2
        (y + w).requires_grad
    """
    return run.again(re.sub(r"^([zabc] = )(.*\by\b.*)$", r"\1(\2).detach()", run.code, flags=re.M))


@family.belief
def switches_off(run):
    """`no_grad` and `inference_mode` set `requires_grad` of the tensors in the block to False

    A mode changes what is recorded, not the tensors that are there. `requires_grad_(False)` would.

        w = torch.ones(2, requires_grad=True)
        with torch.no_grad():
            y = w * 2
        w.requires_grad, (w * 2).requires_grad
    """
    return run.again(run.code.replace(", requires_grad=True", "")) if "with" in run.code else None
