"""From an old script to an exported program

This model was scripted years ago, and only the file is left:

```python
class Router(nn.Module):
    def __init__(self, width, threshold, steps):
        super().__init__()
        self.near = nn.Linear(width, width)
        self.far = nn.Linear(width, width)
        self.register_buffer("mean", torch.zeros(width))
        self.threshold = threshold
        self.steps = steps

    def forward(self, x):
        x = x - self.mean
        if bool(x.norm() > self.threshold):
            for _ in range(self.steps):
                x = torch.tanh(self.far(x))
        return self.near(x)
```

`migrate(old)` gets such a `torch.jit.ScriptModule`, as `torch.jit.load` returns it, and gives back a
`torch.export.ExportedProgram` that computes the same. Both sides of the branch are in it, as the two
functions of one `torch.cond`: which of them runs is decided when the program runs, and only that one does. It
takes batches of any size, one row too.

Weights, buffer, `old.threshold`, `old.steps` (at least one), the width and the dtype are those of the file at
hand. The names in the program's `state_dict` are the old ones, and what was a parameter is one again. `old`
itself stays as it is, also its modes.
"""

import contextlib
import io
import logging
import re
import traceback

import torch
from torch import fx, nn

from course_utils import evidence, expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=25,
    hints=[
        "`torch.export` does not look into a script: its text is to be written as a module again, `old.code` "
        "shows it. What has the new module to be given so that it holds the same numbers?",
        "`torch.cond(predicate, if_true, if_false, (x,))` takes a tensor that is true or false, and two "
        "functions of the same operands, methods for example. What comes out of a branch must be a new "
        "tensor on either side.",
        "The batch is a dimension with a name: `dynamic_shapes=({0: torch.export.Dim(...)},)`. The example "
        "has two rows or more: a size of 1 is a constant for export, whatever `dynamic_shapes` says.",
    ],
)


@exercise.starter
def migrate(old: torch.jit.ScriptModule) -> torch.export.ExportedProgram:
    """The old router as an exported program"""
    raise NotImplementedError


class _Router(nn.Module):
    def __init__(self, width: int, threshold: float, steps: int):
        super().__init__()
        self.near = nn.Linear(width, width)
        self.far = nn.Linear(width, width)
        self.register_buffer("mean", torch.linspace(-0.5, 1.0, width))
        self.threshold = threshold
        self.steps = steps

    def forward(self, x):
        x = x - self.mean
        if bool(x.norm() > self.threshold):
            for _ in range(self.steps):
                x = torch.tanh(self.far(x))
        return self.near(x)


# A first export imports the compiler.
DEADLINE = 60


def _saved(*arguments, dtype=torch.float64):
    """A file with such a router, in modes that are not all the same."""
    model = _Router(*arguments).to(dtype).eval()
    model.near.train()
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(model), buffer)
    return buffer


def _loaded(file):
    file.seek(0)
    return torch.jit.load(file)


def _migrated(migrate, width, threshold, steps, dtype=torch.float64):
    """(old, the program, what was in the file) for a router with these numbers."""
    file = _saved(width, threshold, steps, dtype=dtype)
    old = _loaded(file)
    said = f"Router({width}, {threshold}, {steps}).to({dtype})"
    t = expect.given(f"old = torch.jit.load(...)  # {said}", migrate=migrate, torch=_Stub(old))
    try:
        with _quiet():
            program = t.call("migrate(old)")
    except Exception as error:
        if not _of_export(error):
            raise
        short = type(type(error).__name__, (Exception,), {})(_reason(str(error)))
        raise short.with_traceback(error.__traceback__) from None
    right = isinstance(program, torch.export.ExportedProgram)
    evidence.record("a program", right)
    expect.true(right, f"the result is {expect.show(program)}, expected an ExportedProgram")
    return old, program, _loaded(file)


def _of_export(error):
    """Whether it is export that raised, and not something before it or inside the model."""
    *_, last = traceback.walk_tb(error.__traceback__)
    places = "torch/export/", "torch/_export/", "torch/_dynamo/"
    kinds = "torch.export", "torch._export", "torch._dynamo", "torch.fx"
    return type(error).__module__.startswith(kinds) or any(
        place in last[0].f_code.co_filename for place in places
    )


def _reason(text):
    """What export says, in one line that is the same for every way of writing it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    for line in lines:  # with the size, and without the name that the dimension was given
        if found := re.search(r"You marked \w+ (as dynamic but your code specialized it .*?\))", line):
            return f"You marked a dimension {found[1]}"
        if found := re.search(r"export 0/1 specialized due to hint of \d+", line):
            return found[0]
    if found := re.search(r"""got \w+\((["'])(.*?)\1\)""", text, re.DOTALL):  # an operator's own words
        return " ".join(found[2].split())[:150]
    told = lines[1] if "Got graph break" in lines[0] and len(lines) > 1 else lines[0]
    return re.split(r"(?<=expression) |[.!] ", told)[0].replace("`", "'")


class _Stub:
    """Stands in for `torch` in the line that is shown."""

    def __init__(self, old):
        self.jit = self
        self._old = old

    def load(self, _):
        return self._old


@contextlib.contextmanager
def _quiet():
    """Export prints and logs half a graph before it raises."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _x(rows, width, scale, dtype=torch.float64):
    """Near with the scale 0.01, far with 10: the mean is added here and subtracted by the model."""
    mean = torch.linspace(-0.5, 1.0, width, dtype=dtype)
    return mean + scale * torch.linspace(-1, 1, rows * width, dtype=dtype).view(rows, width)


def _compare(model, old, x, what):
    """The program gives what the file gives. What it raises is told in one line."""
    try:
        with torch.no_grad(), _quiet():
            came = model(x)
    except Exception as error:
        evidence.record("raised", what)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise expect.Mismatch(f"{what} raised: {lines[0][:140]}") from None
    with torch.no_grad():
        expect.equal(came, old(x), what=what)


@exercise.check(isolated=True, deadline=DEADLINE)
def both_sides(migrate):
    """It computes the same on both sides of the threshold"""
    _, program, file = _migrated(migrate, 7, 2.5, 2)
    model = program.module()
    _compare(model, file, _x(6, 7, 10.0), "a far batch of 6 rows")
    _compare(model, file, _x(6, 7, 0.01), "a near batch of 6 rows")
    # The mean of seven columns has no rounding in it.
    exactly = file.mean + torch.tensor([[2.5, 0, 0, 0, 0, 0, 0]], dtype=file.mean.dtype)
    _compare(model, file, exactly, "a row exactly at the threshold")
    together = file.mean + torch.full((6, 7), 0.5, dtype=file.mean.dtype)
    _compare(model, file, together, "a batch that is far as a whole, with rows that are near,")


@exercise.check(isolated=True, deadline=DEADLINE)
def batches(migrate):
    """It takes batches of one, two, five and a thousand rows"""
    _, program, file = _migrated(migrate, 6, 2.5, 2)
    model = program.module()
    for rows in ("1000 rows", "1 row", "2 rows", "5 rows"):
        count = int(rows.split()[0])
        _compare(model, file, _x(count, 6, 10.0), f"a far batch of {rows}")


@exercise.check(isolated=True, deadline=DEADLINE)
def inside(migrate):
    """Inside are one `torch.cond` and the old names; only the side that is taken runs"""
    old, program, _ = _migrated(migrate, 7, 2.5, 2)
    graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, fx.GraphModule)]
    conds = sum(node.target is torch.ops.higher_order.cond for graph in graphs for node in graph.nodes)
    tanhs = sum("tanh" in str(node.target) for node in program.graph.nodes)
    evidence.record("decided in the graph", [min(conds, 2), min(tanhs, 1)])
    if conds == 0:
        raise expect.Mismatch("there is no `cond` in `program.graph`: no side is left out when it runs")
    if tanhs:
        raise expect.Mismatch("`tanh` stands outside of the `cond`: it runs for every input, near ones too")
    expect.true(conds == 1, f"there are {conds} `cond` in the program, expected one for all the steps")
    names = sorted(program.state_dict)
    expect.equal(names, sorted(old.state_dict()), what="the list of names in the program's `state_dict`")
    dtypes = {name: value.dtype for name, value in program.state_dict.items()}
    wanted = {name: value.dtype for name, value in old.state_dict().items()}
    expect.equal(dtypes, wanted, what="`dtype` of `program.state_dict`")
    names = sorted(name for name, _ in program.named_parameters())
    wanted = sorted(name for name, _ in old.named_parameters())
    expect.equal(names, wanted, what="the list of the program's parameters")


@exercise.check(isolated=True, deadline=DEADLINE)
def other_numbers(migrate):
    """Another file: width, dtype, threshold and number of steps differ; `old` stays as it is"""
    old, program, file = _migrated(migrate, 11, 7.0, 3, dtype=torch.float32)
    model = program.module()
    for rows, scale, where in ((6, 20.0, "far"), (6, 0.5, "near"), (6, 1.3, "near")):
        _compare(model, file, _x(rows, 11, scale, torch.float32), f"a {where} batch of {rows} rows")
    expect.equal(_state(old), _state(file), what="the state of `old`", rtol=0, atol=0)
    changed = [name or "old" for name, mode in _modes(old).items() if mode != _modes(file)[name]]
    expect.true(not changed, f"`migrate` has changed the mode of {', '.join(changed)}")


def _state(old):
    return {name: value.detach() for name, value in old.state_dict().items()}


def _modes(old):
    return {name: part.training for name, part in old.named_modules()}


# --- the mistakes -----------------------------------------------------------------------------------------


class _New(nn.Module):
    """The old text as a module, for the mistakes to change."""

    def __init__(self, old):
        super().__init__()
        (width,), dtype = old.mean.shape, old.mean.dtype
        self.near, self.far = (nn.Linear(width, width, dtype=dtype) for _ in range(2))
        self.register_buffer("mean", torch.zeros(width, dtype=dtype))
        self.threshold, self.steps = old.threshold, old.steps
        self.load_state_dict(old.state_dict())

    def stepped(self, x):
        for _ in range(self.steps):
            x = torch.tanh(self.far(x))
        return x

    def forward(self, x):
        x = x - self.mean
        x = torch.cond(x.norm() > self.threshold, self.stepped, torch.clone, (x,))
        return self.near(x)


def _example(old, rows=3):
    return (torch.ones(rows, *old.mean.shape, dtype=old.mean.dtype),)


_DYNAMIC = ({0: torch.export.Dim("batch")},)


def _exported(model, old):
    return torch.export.export(model, _example(old), dynamic_shapes=_DYNAMIC)


@exercise.mistake
def leaves_the_if(old):
    """You asked in Python which side is taken, with an `if`, a `bool` or an `.item()`. Export runs the model
    with tensors that have a shape and no values, so nobody can say; `torch.cond` takes the question itself,
    a tensor, and puts both sides into the graph."""

    class New(_New):
        def forward(self, x):
            x = x - self.mean
            if bool(x.norm() > self.threshold):
                x = self.stepped(x)
            return self.near(x)

    return _exported(New(old), old)


@leaves_the_if.variant
def asks_for_the_number(old):
    class New(_New):
        def forward(self, x):
            away = x - self.mean
            distance = away.norm().item()
            return self.near(self.stepped(away) if distance > self.threshold else away)

    return torch.export.export(New(old), _example(old, 4), dynamic_shapes=_DYNAMIC)


@leaves_the_if.variant
def asks_before_the_cond(old):
    class New(_New):
        def forward(self, x):
            x = x - self.mean
            far = bool(x.norm() > self.threshold)
            return self.near(torch.cond(far, self.stepped, torch.clone, (x,)))

    return torch.export.export(New(old), _example(old, 2), dynamic_shapes=_DYNAMIC)


@exercise.mistake
def exports_the_script(old):
    """You handed the script to export: as it is, inside a module, or to be asked for a number in `forward`.
    It is compiled already, and there is no Python left in it that export could follow. Its text has to be
    written as a module again, and what it holds to be read before."""
    return _exported(old, old)


@exercise.mistake
def gives_back_its_input(old):
    """A branch of yours gives back the tensor that it was given. `torch.cond` refuses that, since nobody
    could say afterwards whether the result shares the storage of the operand: give back a copy."""

    class New(_New):
        def forward(self, x):
            x = x - self.mean
            x = torch.cond(x.norm() > self.threshold, self.stepped, lambda x: x, (x,))
            return self.near(x)

    return _exported(New(old), old)


@exercise.mistake
def computes_both(old):
    """The results are right, and both sides are computed for every input: `torch.where` chooses between two
    results that are there already. With `torch.cond` only one side runs."""

    class New(_New):
        def forward(self, x):
            x = x - self.mean
            return self.near(torch.where(x.norm() > self.threshold, self.stepped(x), x))

    return _exported(New(old), old)


@exercise.mistake
def decides_with_the_example(old):
    """The program has one side of the branch, the one that you wrote down or that your example took, and
    takes it for every input. Both belong in it, as two functions, with the question that chooses."""
    (x,) = _example(old)

    class New(_New):
        taken = bool((x - old.mean).norm() > old.threshold)

        def forward(self, x):
            x = x - self.mean
            return self.near(self.stepped(x) if self.taken else x)

    return _exported(New(old), old)


@exercise.mistake
def fixes_the_batch(old):
    """The number of rows of your example became a constant: export takes every size for one unless
    `dynamic_shapes` says otherwise, and a size of 1 even then."""
    return torch.export.export(_New(old), _example(old))


@fixes_the_batch.variant
def says_none(old):
    return torch.export.export(_New(old), _example(old, rows=3), dynamic_shapes={"x": None}, strict=False)


@fixes_the_batch.form
def shows_one_row(old):
    return torch.export.export(_New(old), _example(old, 1), dynamic_shapes=_DYNAMIC)


@fixes_the_batch.form
def shows_one_row_as_dynamic(old):
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    return torch.export.export(_New(old), _example(old, 1), dynamic_shapes=shapes)


@exercise.mistake
def writes_numbers_down(old):
    """The threshold or the number of steps is one that you wrote down, not the one in the file. A script
    keeps its numbers as attributes: `old.threshold`, `old.steps`."""
    new = _New(old)
    new.threshold, new.steps = 2.5, 2
    return _exported(new, old)


@exercise.mistake
def forgets_the_buffer(old):
    """The weights are those of the file, and the buffer is not. It is in no list of parameters: the state
    dict has both."""
    new = _New(old)
    new.mean.zero_()
    return _exported(new, old)


@exercise.mistake
def asks_each_row(old):
    """You asked whether one row, or one element, is far away. `x.norm()` is a single number for all elements
    of the batch together: many rows that are each near can be far as a whole."""

    class New(_New):
        def forward(self, x):
            x = x - self.mean
            far = (x.norm(dim=1) > self.threshold).any()
            return self.near(torch.cond(far, self.stepped, torch.clone, (x,)))

    return _exported(New(old), old)


@asks_each_row.variant
def asks_the_largest_element(old):
    class New(_New):
        def forward(self, x):
            away = x - self.mean
            side = torch.cond(away.abs().max() <= self.threshold, torch.clone, self.stepped, (away,))
            return self.near(side)

    return torch.export.export(New(old), _example(old, 4), dynamic_shapes=_DYNAMIC)


@exercise.mistake
def forgets_the_dtype(old):
    """Your program is in single precision, whatever the file is in. `nn.Linear` makes float32, and
    `load_state_dict` converts what it loads to what is there; ask the old tensors for their dtype."""
    return torch.export.export(_New(old).float(), (torch.ones(3, len(old.mean)),), dynamic_shapes=_DYNAMIC)
