"""Graphs that a sequence of calls compiles"""

import re

from course_utils.questions import Family

family = Family(section="Sizes that become variables", slow=True)


@family.program
def calls(draw, level):
    sizes = draw.sample(range(2, 10), 3)
    body = draw.choice(["x: x * 2", "x: x.sin() + 1", "x: x / len(x)"])
    if level >= 3 and draw.random() < 0.4:
        body = f"x: x * 2 if len(x) > {draw.randint(3, 6)} else -x"
    if level >= 4 and draw.random() < 0.5:
        body = "x, n=2: x * n"
    dynamic = draw.choice(["", "", "", ", dynamic=True", ", dynamic=False"])
    lines = ["torch.compiler.reset()", "seen = []"]
    lines.append("count = lambda graph, inputs: seen.append(graph) or graph.forward")
    lines.append(f"f = torch.compile(lambda {body}, backend=count{dynamic})")
    row = [*sizes, draw.choice([1, sizes[0]])]
    draw.shuffle(row)
    ones = [f"torch.ones({draw.choice([*sizes, sizes[0]])}" for _ in range(4)]
    more = [f"f({ones[0]}).double())", f"f({ones[1]}, requires_grad=True))", f"f({ones[2]}) + 1)"]
    more.append(f"with torch.no_grad():\n    f({ones[3]}))")
    more = draw.sample(more, draw.choice([1, 2]) if level == 2 else level - 1)
    if "n=2" in body:
        numbers = draw.choice([(3, 5), (4, 3), (0.5, 0.25), (4, 0.5)])
        more[:2] = [f"for n in {numbers}:\n    f({ones[0]}), n)"]
    steps = [f"for n in {tuple(row)}:\n    f(torch.ones(n))", *more]
    draw.shuffle(steps)
    return "\n".join([*lines, *steps, "len(seen)"])


@family.belief
def once(run):
    """A function is compiled once, in its first call

    Compiled code has guards: what it assumed about its inputs. A call that fits no version compiles one more.

        torch.compiler.reset()
        seen = []
        count = lambda graph, inputs: seen.append(graph) or graph.forward
        f = torch.compile(lambda x: x * 2, backend=count)
        f(torch.ones(3)), f(torch.ones(3).double())
        len(seen)
    """
    return 1


@family.belief
def each_size(run):
    """Every new size or number compiles once more

    The first is a constant. By default the second makes a symbol of it, if it is a size or a number among the
    arguments, and that code serves the others too, 0 and 1 aside.

        torch.compiler.reset()
        seen = []
        count = lambda graph, inputs: seen.append(graph) or graph.forward
        f = torch.compile(lambda x: x * 2, backend=count)
        f(torch.ones(3)), f(torch.ones(4)), f(torch.ones(5)), f(torch.ones(6))
        len(seen)
    """
    if "dynamic=" in run.code:
        return None
    return run.again(run.code.replace("backend=count", "backend=count, dynamic=False"))


@family.belief
def size_one(run):
    """Size 1 is a size like any other

    A size of 1 broadcasts, so it decides what an operator does. By default it gets code of its own.

        torch.compiler.reset()
        seen = []
        count = lambda graph, inputs: seen.append(graph) or graph.forward
        f = torch.compile(lambda x: x * 2, backend=count, dynamic=True)
        f(torch.ones(3)), f(torch.ones(4)), f(torch.ones(1))
        len(seen)
    """
    code = re.sub(r"\b1(?=, |\):)", "2", run.code)
    return run.again(code) if code != run.code else None


@family.belief
def only_shapes(run):
    """Only shapes are guarded: dtype, `requires_grad`, grad mode and numbers don't matter

    Each of them decides what the code computes or what is kept for backward. So each has a guard. Elements of
    a tensor have none.

        torch.compiler.reset()
        seen = []
        count = lambda graph, inputs: seen.append(graph) or graph.forward
        f = torch.compile(lambda x, n=2: x * n, backend=count)
        f(torch.ones(3)), f(torch.zeros(3)), f(torch.ones(3), 0.5), f(torch.ones(3).double())
        len(seen)
    """
    code = run.code.replace(".double()", "").replace(", requires_grad=True", "")
    return run.again(code.replace("no_grad", "enable_grad").replace("), n)", "))"))
