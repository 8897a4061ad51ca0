"""Back to where the run was

Read a file that `save_checkpoint` wrote, put everything back, and return the step to go on with. The file is

    {"step": step,
     "parts": {name: state dict, ...},
     "rng": {"torch": torch.get_rng_state(),
             "numpy": np.random.get_state(), with its array as a tensor,
             "python": random.getstate()}}

- The next step is, bit for bit, that of a run on the CPU that was never interrupted. (The file has no
  generator of a GPU.)
- Without a file, return 0 and change nothing.
- A part that the file doesn't have raises `KeyError`.
- A file that would run code raises the error of `torch.load`, and none of it runs.

`resume("run.pt", model=model, optimizer=optimizer)` → `7`
"""

import copy
from pathlib import Path
from typing import Any

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import saved_runs

exercise = Exercise(
    minutes=9,
    core=True,
    hints=[
        "Everything that `save_checkpoint` took has a call that puts it back. What if putting back draws?",
        "`load_state_dict`, `torch.set_rng_state`, `np.random.set_state` and "
        "`random.setstate`. NumPy takes the tensor too.",
        "Load the parts first, set the generators last: a part may draw while it is loaded.",
    ],
)


@exercise.starter
def resume(path: str | Path, **parts: Any) -> int:
    """Restores `parts` and the generators; returns the number of steps that are done"""
    raise NotImplementedError


@exercise.check(isolated=True, given=f"{saved_runs.RUN}run = begin()\ntrain(run, 1)\nmodel = run['model']")
def no_file(t):
    """Without a file the run begins at 0, as it is

    The first start of a job has no file, and its script is the same as that of the tenth. What that has set
    up and seeded stays: there is nothing to put back.
    """
    t.run("model[0].weight.requires_grad_(False)\nmodel[1].eval()")
    run = t.call("run")
    before = {name: copy.deepcopy(part.state_dict()) for name, part in run.items()}
    generators = saved_runs.stir()
    for name in ("path", "str(path)"):
        with expect.left_alone(t.model, what="`model`", gradients=True):
            t.run(f"step = resume({name}, **run)")
        expect.equal(t.step, 0, what="the result without a file")
    for name, part in run.items():
        expect.equal(part.state_dict(), before[name], what=f"the state of `{name}` afterwards")
    moved = saved_runs.moved(generators)
    expect.equal(moved, [], what="the list of generators that have drawn or were seeded")


@exercise.check(
    isolated=True,
    given=f"{saved_runs.RUN}old = begin()\ntrain(old, 3)\nwrite(path, 3, **old)\nnew = begin(1)",
)
def parts(t):
    """Each part has its state back, and the step is returned

    Parts are found by their names: the order may be another one, and a run may ask for some of them. One that
    the file lacks would begin anew, and nobody would know: hence the error. The saved step is the number of
    steps that are done, and so the index of the next. By default `load_state_dict` copies into the tensors
    that a model has, which the optimizer holds; with `assign=True` the model gets others. A state has no
    mode: that stays.
    """
    t.run(
        "step = resume(path, sampler=new['sampler'], scheduler=new['scheduler'],"
        " optimizer=new['optimizer'], model=new['model'])"
    )
    expect.equal(t.step, 3, what="the step")
    for name, part in t.old.items():
        expect.equal(t.new[name].state_dict(), part.state_dict(), what=f"the state of `{name}`")
    held = [p for group in t.new["optimizer"].param_groups for p in group["params"]]
    same = [*map(id, held)] == [*map(id, t.new["model"].parameters())]
    told = "the optimizer holds parameters that the model has no more: its steps don't move the model"
    expect.true(same, told, "expected: it holds those of the model")
    modes = [part.training for part in t.new["model"].modules()]
    told = "parts of the model are in evaluation mode now"
    expect.true(all(modes), told, "expected: in training mode, as before")
    t.run("some = begin(2)\nresume(str(path), model=some['model'])")
    expect.equal(t.some["model"].state_dict(), t.old["model"].state_dict(), what="the state of `model` alone")
    t.run("write(path, 1, model=old['model'])")
    expect.raises(KeyError, lambda: t.call("resume(path, **old)"), what="the call for parts that it lacks")


@exercise.check(
    isolated=True,
    given=f"""{saved_runs.RUN}
class Draws(Position):
    def load_state_dict(self, state):
        torch.rand(3), np.random.rand(3), random.random()
run = begin()
np.random.randn({{1}})
write(path, 0, model=run["model"], other=Draws())
next_draws = torch.rand(2).tolist(), np.random.randn(2).tolist(), random.random()
seed(5)
resume(path, model=run["model"]{{0}})
draws = torch.rand(2).tolist(), np.random.randn(2).tolist(), random.random()""".format,
    cases={
        "a part that draws nothing": ("", 2),
        "a part that draws": (", other=Draws()", 2),
        "an odd number of NumPy's normal numbers before": ("", 1),
    },
)
def generators(t):
    """The three generators draw what the saved run would have drawn next

    torch (on the CPU), NumPy and Python have one global generator each. Its seed says where it began, its
    state where it is. What is loaded may draw as well, so the generators come last. `np.random.randn` makes
    normal numbers in pairs: the last two of its five things hold the one that is left over.
    """
    for name, came, wanted in zip(("torch", "NumPy", "Python"), t.draws, t.next_draws, strict=True):
        expect.equal(came, wanted, what=f"what {name} draws next")


@exercise.check(
    isolated=True,
    given=f"""{saved_runs.RUN}
import os, signal
def first():
    run = begin()
    def save(step):
        if step > {{0}}: os.kill(os.getpid(), signal.SIGKILL)
        write(path, step, **run)
    train(run, 6, save)
def second():
    run = begin(9)
    start = resume(path, **run)
    return [start, *train(run, 6, start=start), str(run["model"].state_dict())]
def through():
    run = begin()
    return [{{0}}, *train(run, 6)[{{0}}:], str(run["model"].state_dict())]
in_process(first)
again, wanted = in_process(second), in_process(through)""".format,
    cases={f"killed in step {step + 1}": step for step in (1, 3, 5)},
)
def goes_on(t, step):
    """A run that was killed goes on bit for bit

    Each loss depends on all that came before: weights, means, rate, batch and dropout. What is missing here,
    or has been changed beside the states, shows in the first loss or in a later one.
    """
    losses = [f"the loss of step {i}, counted from 0" for i in range(step, 6)]
    names = ["the step that `resume` returned", *losses, "the weights in the end"]
    for name, came, right in zip(names, t.again, t.wanted, strict=False):
        expect.equal(came, right, what=name)


@exercise.check(
    isolated=True,
    given=saved_runs.RUN
    + """
class Trap:
    def __reduce__(self): return Path.touch, (path.with_name("ran"),)
run = begin()
torch.save({"step": 1, "parts": {"model": Trap()}, "rng": {}}, path)""",
)
def nothing_runs(t):
    """A file that would run code is refused

    A pickle can call any function that can be imported, while it is loaded. By default `torch.load` refuses
    those that aren't on its list.
    """
    try:
        came = expect.show(t.call("resume(path, model=run['model'])"))
    except Exception:
        came = ""
    expect.true(not t.path.with_name("ran").exists(), "the code in the file ran", "expected: not")
    expect.true(not came, f"no error is raised: the result is {came}", "expected: the error of `torch.load`")
