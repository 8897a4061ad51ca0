"""What a trace keeps, and what it took from the example"""

import re

from course_utils.questions import RAISES, Family

family = Family(section="What a trace does", asked="What does the last line give?", may_raise=True)

EITHER = ["x = x + x.shape[0]", "x = x * scale", "if scale > 2:\n    x = x + 1"]
ONLY_JIT = ["x = x + len(x)", "x = x * x.max().item()", "if x.sum() > 6:\n    x = x * 10"]
ONLY_JIT += ["for _ in range(len(x)):\n    x = x + 1", "if len(x) > 2:\n    x = -x"]


@family.program
def traced(draw, level):
    fx = level >= 3 and draw.random() < 0.25
    allowed = EITHER if fx else [*EITHER, *ONLY_JIT] if level >= 3 else [*EITHER[:1], *ONLY_JIT]
    many = min([1, 2, 2, 3, 4][level - 1], len(allowed))
    body = draw.sample(allowed, many)
    example = draw.choices([1.0, 2.0, 3.0], k=draw.choice([1, 2, 3]))
    longer = draw.choice([k for k in (1, 2, 3) if k != len(example)])
    other = draw.choices([1.0, 2.0, 3.0, 4.0], k=longer)
    lines = ["def f(x):"]
    lines += [f"    {line}" for line in "\n".join([*body, "return x"]).splitlines()]
    made = "fx.symbolic_trace(f)" if fx else f"jit.trace(f, torch.tensor({example}))"
    lines.append(f"traced = torch.{made}")
    if "scale" in "".join(body):
        first, second = draw.sample([1, 2, 3, 4], 2)
        lines = [f"scale = {first}", *lines, f"scale = {second}"]
    return "\n".join([*lines, f"traced(torch.tensor({other})).tolist()"])


@family.belief
def python_stays(run):
    """The traced function decides as the Python does: each `if`, loop and number anew

    A trace is a list of operators. What Python decided while it was made is in it, for good; what it
    decided against isn't.

        def f(x):
            return x * 10 if x.sum() > 0 else x
        traced = torch.jit.trace(f, torch.ones(1))
        f(-torch.ones(1)), traced(-torch.ones(1))
    """
    return run.again(re.sub(r"traced = .*", "traced = f", run.code))


@family.belief
def sizes_are_constants(run):
    """Every size in a trace is that of the example

    `x.shape[0]` is recorded as an operator while tracing, if its number goes into a computation with tensors.
    Where Python needs the number, as for `len` or a loop, it's a constant.

        traced = torch.jit.trace(lambda x: x + x.shape[0], torch.zeros(2))
        traced(torch.zeros(3))
    """
    if found := re.search(r"trace\(f, torch.tensor\((.*)\)\)", run.code):
        return run.again(run.code.replace("x.shape[0]", str(found[1].count(",") + 1)))
    return None


@family.belief
def all_is_recorded(run):
    """`len(x)` and `.item()` are recorded like `x.shape[0]`

    They return plain Python numbers, which become constants. A trace follows tensors, and sizes read from
    `x.shape`.

        traced = torch.jit.trace(lambda x: x + len(x) + x.shape[0], torch.zeros(2))
        traced(torch.zeros(3))
    """
    return run.again(run.code.replace("+ len(x)", "+ x.shape[0]").replace(".item()", ""))


@family.belief
def another_input_raises(run):
    """A trace checks its input: another size is an error

    It has no guards. It raises only where a recorded operator can't take the input.

        traced = torch.jit.trace(lambda x: x * len(x), torch.ones(2))
        traced(torch.ones(5))
    """
    if found := re.search(r"trace\(f, torch.tensor\((.*)\)\)", run.code):
        return RAISES if found[1].count(",") + 1 != len(run.value) else None
    return None


@family.belief
def globals_are_read(run):
    """A global is looked up in each call

    Neither a trace nor an FX graph knows that the number had a name. It's a constant, or a branch that was
    taken.

        scale = 2
        traced = torch.jit.trace(lambda x: x * scale, torch.ones(1))
        scale = 5
        traced(torch.ones(1))
    """
    scales = re.findall(r"scale = \d", run.code)
    return run.again(run.code.replace(scales[0], scales[1])) if scales else None
