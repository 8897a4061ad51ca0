"""The gradient behind a function of your own"""

import re

from course_utils.questions import Family

family = Family(section="A node of your own")

FORWARD = {"Round": "x.round()", "Sign": "x.sign()", "Clip": "x.clamp(-1, 1)", "Own": "x * 2"}
FORWARD |= {"Even": "x ** 2", "Odd": "x ** 3", "Pair": "x * v", "Both": "x ** 2 * v"}
FOR_X = ["grad * 2 * x", "grad * 3 * x", "grad * x", "2 * x", "3 * x", "grad"]
FOR_V = {"Pair": "grad * x", "Both": "grad * x ** 2"}
CLASS = """\
class NAME(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ARGS):
        ctx.save_for_backward(ARGS)
        return FORWARD
    @staticmethod
    def backward(ctx, grad):
        ARGS = ctx.saved_tensors
        return RETURNED
"""


@family.program
def used(draw, level):
    two, n = level > 3, draw.randint(2, 9)
    name = draw.choice([*FORWARD][:4] if level == 1 else [*FOR_V] if two else ["Even", "Odd"])
    returned = draw.choice(["grad", "grad", "-grad", "grad * 2"] if level == 1 else FOR_X)
    if two:
        returned = draw.choice(["2 * x * v", "grad * 2 * x * v"] if name == "Both" else ["v", "grad * v"])
        returned += f", {draw.choice(['None', 'None', FOR_V[name]])}"
    code = CLASS.replace("NAME", name).replace("FORWARD", FORWARD[name]).replace("RETURNED", returned)
    code = code.replace("ARGS", "x, v" if two else "x").replace("  x =", "  (x,) =")
    code = code if level > 1 else re.sub(r".*ctx\.save.*\n", "", code)
    w = draw.choice([0.6, 1.4, 1.6, 2.6, 3.4] if level == 1 else [-3.0, -2.0, -1.0, 2.0, 3.0, 4.0])
    code += f"w = torch.tensor({w}, requires_grad=True)\n"
    call = f"{name}.apply(%s{', v' * two})"
    code += f"v = torch.tensor({draw.randint(2, 4)}.0, requires_grad=True)\n" * two + f"y = {call % 'w'}\n"
    once = [f"y * {n}", f"{n} * y + 1", f"y ** 2 * {n}"][: 2 + (level == 1)]
    twice = [f"{call % 'y'} * {n}", f"{call % 'y'} + {n} * y", f"{call % f'{n} * w'} + y"]
    loss = draw.choice(twice if level in (3, 5) else once)
    return f"{code}({loss}).backward()\n{'w.grad, v.grad' if two else 'w.grad.item()'}"


def with_returned(run, change):
    """What comes out where `backward` returns something else."""
    return run.again(re.sub(r"(?<=return ).*(?=\nw = )", lambda found: change(found[0]), run.code))


@family.belief
def of_forward(run):
    """The gradient is the derivative of what `forward` computes: autograd looks at that

    In `forward` nothing is recorded. The call is one node, and what `backward` returns goes on as it is.

        class Square(torch.autograd.Function):
            forward = staticmethod(lambda ctx, x: x ** 2)
            backward = staticmethod(lambda ctx, grad: grad * 7)
        w = torch.tensor(3.0, requires_grad=True)
        torch.autograd.grad(Square.apply(w), w)
    """
    return run.again(re.sub(r"(?m)^ +ctx.*\n", "", run.code).replace(".apply(", ".forward(None, "))


@family.belief
def multiplied_for_you(run):
    """`backward` returns the derivative; autograd multiplies it by what arrives

    `backward` does it: it gets what arrives, and returns the product.

        class Square(torch.autograd.Function):
            forward = staticmethod(lambda ctx, x: x ** 2)
            backward = staticmethod(lambda ctx, grad: torch.tensor(6.0))
        w = torch.tensor(3.0, requires_grad=True)
        torch.autograd.grad(Square.apply(w) * 100, w)
    """
    return with_returned(run, lambda text: text if "grad" in text.split(", ")[0] else f"grad * {text}")


@family.belief
def one_arrives(run):
    """`grad` in `backward` is 1

    It's the gradient of the loss with respect to the result: what all later operations made of it.

        class Same(torch.autograd.Function):
            forward = staticmethod(lambda ctx, x: x.clone())
            backward = staticmethod(lambda ctx, grad: grad)
        w = torch.tensor(3.0, requires_grad=True)
        torch.autograd.grad(Same.apply(w) * 5, w)
    """
    return with_returned(run, lambda text: re.sub(r"\bgrad\b", "torch.ones_like(grad)", text))


@family.belief
def none_is_filled_in(run):
    """Where `backward` returns `None`, autograd works out that gradient itself

    `None` says that nothing goes back there. `.grad` of a leaf stays as it is.

        class Add(torch.autograd.Function):
            forward = staticmethod(lambda ctx, x, v: x + v)
            backward = staticmethod(lambda ctx, grad: (grad, None))
        w, v = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
        torch.autograd.grad(Add.apply(w, v), (w, v), allow_unused=True)
    """
    name = re.search(r"class (\w+)", run.code)[1]
    return with_returned(run, lambda text: text.replace("None", FOR_V.get(name, "")))
