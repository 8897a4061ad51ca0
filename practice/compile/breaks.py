"""Where a graph breaks, and into how many graphs"""

import re

from course_utils.questions import Family

family = Family(section="Where a graph ends", slow=True)

OPERATORS = ["x = x.sin()", "x = x * 2", "x = x.exp()", "x = x + 1", "x = x.cos()", "x = x.abs()"]
BREAKS = ["print(x.shape)", 'print("mean", x.mean())', "x = x * x.max().item()", "largest = x.max().item()"]
BREAKS += ["x = x + 1 if x.sum() > 0 else x - 1", "x = x[x.isfinite()]"]
PLAIN = ["x = x * len(x)", "if len(x) > 2:\n    x = x + 1", "for n in range(3):\n    x = x * n"]
PLAIN += ["parts = [x, x + 1]\nparts.append(x)", "with torch.no_grad():\n    x = x.cos()"]
PLAIN += ["x = torch.from_numpy(x.numpy())"]


@family.program
def function(draw, level):
    body = [draw.choice(OPERATORS)]
    loop = "for n in range(2):\n    x = x * 2\n    print(n)"
    breaks = [*BREAKS, *[loop] * (level > 3)]
    kinds = [breaks, breaks, *[breaks] * (level > 2), PLAIN, *[OPERATORS] * (level < 5)]
    while room := [4, 5, 6, 7, 7][level - 1] - len("\n".join(body).splitlines()):
        kind = draw.choice(kinds)
        fits = [step for step in kind if step.count("\n") < room and step not in body]
        if fits:
            body.append(draw.choice(fits))
    lines = ["torch.compiler.reset()", "seen = []"]
    lines += ["count = lambda graph, inputs: seen.append(graph) or graph.forward", "def f(x):"]
    lines += [f"    {line}" for line in "\n".join([*body, "return x"]).splitlines()]
    call = f"torch.compile(f, backend=count)(torch.ones({draw.randint(3, 6)}))"
    return "\n".join([*lines, call, "len(seen)"])


@family.belief
def python_breaks(run):
    """Whatever is Python breaks the graph: an `if`, a loop, a list, `with`, NumPy

    Dynamo follows Python while it traces. A graph ends where Python needs an element of a tensor, or calls
    something that can't be traced, such as `print`.

        torch.compiler.reset()
        seen = []
        count = lambda graph, inputs: seen.append(graph) or graph.forward
        f = lambda x: sum([x * n for n in range(len(x))])
        torch.compile(f, backend=count)(torch.ones(3))
        len(seen)
    """
    plain = r"^    (?=if len|for|parts = |with|x = torch.from)"
    return run.again(re.sub(plain, "    print()\n    ", run.code, flags=re.M))


@family.belief
def knows_values(run):
    """It traces with the real tensors, so a value is no break

    By default it traces with tensors without data. An element that Python asks for is there only
    when the graph has run.

        torch.compiler.reset()
        seen = []
        count = lambda graph, inputs: seen.append(graph) or graph.forward
        f = lambda x: x * 2 if x.sum() > 0 else x + 1
        torch.compile(f, backend=count)(torch.ones(3))
        len(seen)
    """
    code = run.code.replace("x.sum() > 0", "True").replace(".item()", "")
    return run.again(code.replace("[x.isfinite()]", "[:]"))


@family.belief
def print_is_free(run):
    """`print` computes nothing, so the graph goes on across it

    By default it has to run in its turn, in every call, and no graph can do it: one ends before it.

        torch.compiler.reset()
        seen = []
        count = lambda graph, inputs: seen.append(graph) or graph.forward
        f = lambda x: (x.sin(), print("here"), x.cos())
        torch.compile(f, backend=count)(torch.ones(3))
        len(seen)
    """
    return run.again(re.sub(r"^ +print\(.*\)\n", "", run.code, flags=re.M))


@family.belief
def rest_in_python(run):
    """After the first break the rest runs in Python

    What follows is a function too, and is compiled. Inside a loop or a `try` it isn't: then Python runs that
    function, and only what it calls is compiled.

        torch.compiler.reset()
        seen = []
        count = lambda graph, inputs: seen.append(graph) or graph.forward
        f = lambda x: (x.sin() * x.sum().item()).cos()
        torch.compile(f, backend=count)(torch.ones(3))
        len(seen)
    """
    return min(run.value, 1)
