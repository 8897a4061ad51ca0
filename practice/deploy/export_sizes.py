"""Which sizes an exported program accepts"""

import re

from course_utils.questions import RAISES, Family

ASKED = "What does the program give?"
family = Family(section="An exported program", asked=ASKED, may_raise=True, slow=True)

BODIES = ["x * 2", "x - x.mean(0)", "x.sum(1)", "x.relu()", "F.softmax(x, 1)"]
PLAIN = ["x = x / x.shape[0]", "x = x + x.shape[1]", "x = x / x.norm()", "x = x - x.mean(0)"]
FIXING = ["x = x / len(x)", "x = x * len(x)", "x = x + len(x)"]


@family.program
def sizes(draw, level):
    example = draw.choice([1, 1, 5, 5, 6, 6])
    low, high, asks = min(example, draw.randint(2, 4)), draw.randint(6, 9), draw.randint(1, 4)
    if asked := level >= 3 and draw.random() < 0.6:
        low = min(example, draw.choice([low, asks + 1, asks + 1]))
    steps = draw.sample(PLAIN, [0, 0, 0, 1, 2][level - 1] or draw.randint(0, level == 3))
    if fixing := level >= 4 and draw.random() < 0.2:
        steps[0] = draw.choice(FIXING)
    least, most = f"min={low}", f"max={high}"
    dims = [f'Dim("n", {least}, {most})'] * level + [f'Dim("n", {least})', f'Dim("n", {most})', "Dim.AUTO"]
    dim = draw.choice(["", 'Dim("n")', *dims[1:]] if level == 1 else [*dims, *["Dim.AUTO"] * 9 * fixing])
    body = f"x * 2 if x.shape[0] > {asks} else -x" if asked else draw.choice(BODIES)
    lines = ["from torch.export import Dim, export", "class Net(nn.Module):", "    def forward(self, x):"]
    lines += [f"        {step}" for step in [*steps, f"return {body}"]]
    shapes = ""
    if dim:
        lines.append(f"rows = ({{0: {dim}}},)")
        shapes = ", dynamic_shapes=rows"
    lines.append(f"program = export(Net(), (torch.ones({example}, 3),){shapes}).module()")
    lines += ["def accepts(n):", "    try:", "        return program(torch.ones(n, 3)) is not None"]
    lines += ["    except Exception:", "        return False"]
    tried = tuple(sorted({example, *draw.sample(range(3), 2), *draw.sample(range(3, 11), 3)}))
    return "\n".join([*lines, f"[n for n in {tried} if accepts(n)]"])


@family.belief
def any_size(run):
    """An exported program takes every size that the model takes

    Without a `Dim` each size becomes a constant. With one, it's open within the bounds that were given, or
    that the code asked for.

        program = torch.export.export(nn.ReLU(), (torch.ones(4, 3),))
        try: said = program.module()(torch.ones(5, 3)).shape
        except AssertionError as error: said = type(error).__name__
        said
    """
    return run.again(re.sub(r"program = .*", "program = Net()", run.code))


@family.belief
def only_the_example(run):
    """A graph holds the sizes of its example, so it takes no other

    A size with a `Dim` is a symbol in the graph.

        open_rows = ({0: torch.export.Dim("n", max=9)},)
        program = torch.export.export(nn.ReLU(), (torch.ones(4, 3),), dynamic_shapes=open_rows)
        program.module()(torch.ones(7, 3)).shape[0]
    """
    return [int(re.search(r"\(Net\(\), \(torch.ones\((\d)", run.code)[1])]


@family.belief
def one_row_will_do(run):
    """For an open size, one row is as good an example as any

    By default a size of 1 in the example becomes a constant, because 1 broadcasts. `Dim.AUTO` says nothing;
    `Dim.DYNAMIC` and a named `Dim` raise.

        auto = ({0: torch.export.Dim.AUTO},)
        program = torch.export.export(nn.ReLU(), (torch.ones(1, 3),), dynamic_shapes=auto)
        next(iter(program.graph.nodes)).meta["val"].shape
    """
    return run.again(run.code.replace("ones(1, 3)", "ones(5, 3)"))


@family.belief
def bounds_are_notes(run):
    """`min` and `max` are notes for the compiler, and no call is refused for them

    The program checks a `max`, and a `min` of 3 or more, in each call.

        bounds = ({0: torch.export.Dim("n", min=3)},)
        program = torch.export.export(nn.ReLU(), (torch.ones(4, 3),), dynamic_shapes=bounds)
        try: program.module()(torch.ones(2, 3)); said = "runs"
        except AssertionError: said = "refused"
        said
    """
    return run.again(re.sub(r", min=\d|, max=\d", "", run.code))


@family.belief
def two_or_more(run):
    """An open size means two or more: 0 and 1 are refused

    Export takes the size for two or more when it decides a branch. The program lets in 0 and 1 all the same,
    where no `min` above 2 forbids it.

        bounds = ({0: torch.export.Dim("n", min=2)},)
        program = torch.export.export(nn.ReLU(), (torch.ones(4, 3),), dynamic_shapes=bounds)
        program.module()(torch.ones(1, 3)).shape[0]
    """
    return None if run.value == RAISES or "ones(1," in run.code else [n for n in run.value if n >= 2]
