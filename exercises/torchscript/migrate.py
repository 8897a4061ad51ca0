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

`migrate(old)` gets what `torch.jit.load` returns. Return a `torch.export.ExportedProgram` that computes the
same for finite batches of any size, one row too.

- One `torch.cond` decides when the program runs. Only one side runs.
- Weights, buffer, `old.threshold`, `old.steps` (1 or more), width and dtype come from the file.
- `program.state_dict` has the names of `old.state_dict()`.

`migrate(old).module()(x)` → the result of `old(x)`
"""

import torch
from torch import fx

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits.exported import answering, unlogged
from course_utils.exercise.once import done_before

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "`torch.export` doesn't take a script, so write its code as a module again; `old.code` shows it. "
        "Where does the new module get its numbers?",
        "`torch.cond(predicate, if_true, if_false, (x,))` takes a tensor that is true or false, and two "
        "functions of the same operands. Methods work too. Each function must return a new tensor.",
        "Open the batch with `dynamic_shapes=({0: torch.export.Dim(...)},)`. Give an example with two rows "
        "or more: a size of 1 in the example becomes a constant.",
    ],
)


@exercise.starter
def migrate(old: torch.jit.ScriptModule) -> torch.export.ExportedProgram:
    """The old router as an exported program"""
    raise NotImplementedError


_OLD = """import io

torch.manual_seed(0)
class Router(nn.Module): ...
parts = Router()
parts.near, parts.far = nn.Linear({width}, {width}), nn.Linear({width}, {width})
parts.register_buffer("mean", torch.linspace(-0.5, 1.0, {width}))
parts.threshold, parts.steps = {threshold}, {steps}
script = torch.jit.script(parts.to({dtype}))
script.define('''
def forward(self, x):
    x = x - self.mean
    if bool(x.norm() > self.threshold):
        for _ in range(self.steps):
            x = torch.tanh(self.far(x))
    return self.near(x)
''')
file = io.BytesIO()
torch.jit.save(script, file)
file.seek(0)
old = torch.jit.load(file)"""


def _migrated(migrate, width=7, threshold=2.5, steps=2, dtype=torch.float32):
    """The example with the program, made once for a report; `script` computes what is wanted, whatever the
    answer does with `old`."""
    done, key = done_before(), (migrate, width)
    if key not in done:
        done[key] = _made(migrate, width, threshold, steps, dtype)
    done[key].call("program")  # so that a message shows this example
    return done[key]


def _made(migrate, width, threshold, steps, dtype):
    setup = _OLD.format(width=width, threshold=threshold, steps=steps, dtype=dtype)
    t = expect.given(setup, migrate=migrate)
    with unlogged():
        t.run("program = migrate(old)")
    right = isinstance(t.program, torch.export.ExportedProgram)
    expect.true(right, f"the result is {expect.show(t.program)}, expected an `ExportedProgram`")
    t.run("model = program.module()")
    return t


def _compare(t, examples):
    """For each of the inputs, given as code beside a label, the program gives what the old script gives."""
    with Rows() as rows, torch.no_grad():
        for label, x in examples.items():
            with rows.of(label):
                x = x.replace("mean", "old.mean")
                batch = eval(x.replace("old.", "script."), {"torch": torch, "script": t.script})
                with answering(len(batch)):
                    came = t.call(f"model({x})")
                expect.equal(came, t.script(batch), what="the result")


@exercise.check(deadline=60)
def one_side_runs(migrate):
    """Both sides are in the program, and only one runs

    `torch.export` runs Python code with tensors that have a shape and no values, so an `if` on a tensor has
    no answer. A script has no Python code at all. `torch.cond` takes a condition and two functions, each of
    which becomes a graph inside the graph. Here neither may return its operand. `torch.where` computes both.
    """
    t = _migrated(migrate)
    graphs = [part.graph for part in t.program.graph_module.modules() if isinstance(part, fx.GraphModule)]
    conds = sum(node.target is torch.ops.higher_order.cond for graph in graphs for node in graph.nodes)
    outside = sum("tanh" in str(node.target) for node in t.program.graph.nodes)
    expect.equal(conds, 1, what="the number of `cond` in the program")
    expect.equal(outside, 0, what="the number of `tanh` in `program.graph`, outside of the `cond`,")


@exercise.check(deadline=60)
def any_batch(migrate):
    """It computes the same for one row, for a thousand, and on both sides of the threshold

    Unless it's opened, the size of the batch is a constant of the program. By default a size of 1 in the
    example is one even then. The norm is that of `x - mean`, and one number for the whole batch: many
    rows that are each near can be far together. Every step of the loop reads the result of the step before.
    """
    examples = {f"{rows} rows": f"mean + torch.ones({rows}, 7)" for rows in (1000, 1, 2, 5)} | {
        "far": "mean + 10 * torch.linspace(-1, 1, 42).view(6, 7)",
        "near": "mean + 0.01 * torch.linspace(-1, 1, 42).view(6, 7)",
        "at the threshold": "mean + torch.tensor([[2.5, 0, 0, 0, 0, 0, 0]])",
        "near rows that are far together": "mean + torch.full((6, 7), 0.5)",
    }
    _compare(_migrated(migrate), examples)


@exercise.check(deadline=60)
def another_file(migrate):
    """Another file: names, buffer, dtype, width, threshold and steps come from it

    This script has its numbers as attributes, and its parameters and buffers in its state dict. `nn.Linear`
    makes float32 by default, and a plain `load_state_dict` converts to the dtype that is there.
    """
    t = _migrated(migrate, width=11, threshold=7.0, steps=3, dtype=torch.float64)
    wanted = t.script.state_dict()
    names = sorted(t.program.state_dict)
    expect.equal(names, sorted(wanted), what="the sorted names in `program.state_dict`")
    for name, values in wanted.items():
        expect.equal(t.program.state_dict[name].detach(), values, what=f"`program.state_dict['{name}']`")
    scaled = "mean + {} * torch.linspace(-1, 1, 66, dtype=torch.float64).view(6, 11)"
    _compare(t, {"far": scaled.format(20), "near": scaled.format(0.5), "nearly far": scaled.format(1.3)})
