"""One program for every batch

Export a model for a server. `export_dynamic(model, example)` gets a module and a tuple of its inputs, each a
tensor whose first dimension is the batch. Return a `torch.export.ExportedProgram`.

- It answers batches of every size from 2 up, even if `example` has one row. All other sizes stay constants.
- It computes what `model` computes in evaluation mode, even if `model` is in training mode.
- `model` keeps its modes, numbers and hooks, also when the export raises.

`export_dynamic(model, (x,)).module()(x)` → the result of `model.eval()(x)`
"""

import torch
from torch import Tensor, nn

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits.exported import answering, expect_left_alone, expect_open, run_for_later
from course_utils.exercise.once import done_before

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "What does `export` write down for a size of the example if you tell it nothing about that size? And "
        "what for `self.training`?",
        "`dynamic_shapes` has one entry for each input, such as `{0: ...}` for its first dimension. By "
        "default none opens a size of 1. How do you get an example of two rows or more from one row?",
        "Note the mode of every module, switch to evaluation, export, and put each mode back in a `finally`. "
        "`model.train()` would switch all of them.",
    ],
)


@exercise.starter
def export_dynamic(
    model: nn.Module, example: tuple[Tensor, ...]
) -> torch.export.ExportedProgram:
    """The model in evaluation mode, as a program for every size of the batch"""
    raise NotImplementedError


_LINEAR = """
torch.manual_seed(0)
model = nn.Linear(3, 2).double().eval()
"""

_NET = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).double()
model(torch.rand(8, 3).double()).sum().backward()
model.insert(2, nn.Sequential(model[1]))
model[2].training = False
model[0].register_forward_hook(lambda *_: None)
"""

_WORDS = """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.vectors = nn.Embedding(10, 4)
    def forward(self, words, weights):
        return self.vectors(words).sum(dim=1) * weights[:, None]

torch.manual_seed(0)
model = Words().double().eval()
"""

_GATE = """
class Gate(nn.Module):
    def forward(self, x):
        from torch import clone, cond, tanh
        return cond(x.norm() > 9, tanh, clone, (x,))

model = Gate().eval()
"""

_ROWS = "torch.linspace(-1, 1, 3 * {0}).view({0}, 3).double()"
_SENTENCES = "torch.arange(5 * {0}).view({0}, 5) % 10, torch.linspace(0, 1, {0}).double()"


def _gated(_, x):
    return x.tanh() if x.norm() > 9 else x


def _exported(export_dynamic, model, example):
    """The example with the program, made once for a report, and what raises where the answer didn't leave
    its arguments alone."""
    done, key = done_before(), (export_dynamic, model, example)
    if key not in done:
        t = expect.given(f"{model}example = ({example},)", export_dynamic=export_dynamic)
        done[key] = t, run_for_later(t, "program = export_dynamic(model, example)", "example")
    t, left_alone = done[key]
    program = t.call("program")  # so that a message shows this example
    right = isinstance(program, torch.export.ExportedProgram)
    expect.true(right, f"the result is {expect.show(program)}, expected an `ExportedProgram`")
    return t, left_alone


def _compare(t, inputs, sizes, oracle=None):
    """For batches of these sizes the program gives what the model gives in evaluation mode."""
    t.run("run = program.module()")
    oracle = oracle or (lambda model, *batch: model(*batch))
    with Rows() as rows, torch.no_grad():
        for size in sizes:
            with rows.of(f"{size} rows"):
                wanted = oracle(t.model.eval(), *eval(f"({inputs.format(size)},)"))
                with answering(size):
                    came = t.call(f"run({inputs.format(size)})")
                expect.equal(came, wanted, rtol=1e-9, atol=1e-12)


@exercise.check(deadline=60)
def any_batch(export_dynamic):
    """It answers batches that it hasn't seen: one input, two inputs, a `torch.cond`

    Unless export is told to open it, the size of the batch is a constant of the program. Here the program
    then refuses a batch of another size, and one beyond the `max` of a `Dim`.
    """
    with Rows() as rows:
        for label, model, inputs, oracle in (
            ("one input", _LINEAR, _ROWS, None),
            ("two inputs", _WORDS, _SENTENCES, None),
            ("a `torch.cond`", _GATE, _ROWS, _gated),
        ):
            with rows.of(label):
                t, _ = _exported(export_dynamic, model, inputs.format(4))
                expect_open(t.program)
                _compare(t, inputs, (4, 2, 3, 1000), oracle)


@exercise.check(deadline=60)
def from_one_row(export_dynamic):
    """One row is enough of an example

    By default export takes a size of 1 in the example for a constant. With a `Dim` it raises, with `Dim.AUTO`
    it makes a program for one row. So give it two rows or more, of the same dtypes. An input may have one
    dimension or many.
    """
    t, _ = _exported(export_dynamic, _WORDS, _SENTENCES.format(1))
    _compare(t, _SENTENCES, (2, 7))


@exercise.check(deadline=60)
def only_the_batch(export_dynamic):
    """Only the batch is open

    The program refuses another size than a constant one, and takes what comes for an open one: a batch whose
    sentences have another length would get through. `Dim.AUTO` on every dimension opens the length too, where
    the model allows it.
    """
    t, _ = _exported(export_dynamic, _WORDS, _SENTENCES.format(4))
    shapes = {n.name: n.meta["val"].shape for n in t.program.graph.nodes if n.op == "placeholder"}
    inputs = {"words": ["open", 5], "weights": ["open"]}
    for name, (rest, wanted) in zip(t.program.graph_signature.user_inputs, inputs.items(), strict=True):
        sizes = ["open" if isinstance(size, torch.SymInt) else size for size in shapes[name]]
        expect.equal(sizes, wanted, what=f"the list of sizes of `{rest}` in the program")


@exercise.check(deadline=60)
def evaluates(export_dynamic):
    """It evaluates, also when the model is in training mode

    Export writes down what `forward` does in the mode of the moment: `self.training` is a constant of the
    program. `program.module().eval()` raises.
    """
    t, _ = _exported(export_dynamic, _NET, _ROWS.format(4))
    _compare(t, _ROWS, (4, 7))


@exercise.check(deadline=60)
def left_as_it_was(export_dynamic):
    """The model keeps its modes, numbers and hooks, also when the export raises

    A mode is an attribute of each module, and `train()` and `eval()` switch it in all modules inside. So
    one call can't restore modes that differed, and one call for each module may fail for a part that two
    modules hold. A `finally` also runs when the export raises.
    """
    _, left_alone = _exported(export_dynamic, _NET, _ROWS.format(4))
    left_alone()
    setup = """
import contextlib
class Picky(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x
model = nn.Sequential(Picky(3, 3), nn.Dropout(0.5))
model[0].eval()
"""
    t = expect.given(setup, export_dynamic=export_dynamic)
    call = "with contextlib.suppress(Exception):\n    export_dynamic(model, (torch.ones(4, 3),))"
    expect_left_alone(t, call)
