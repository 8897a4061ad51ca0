"""The mutator changes what it should, and finds checks that do not look."""

import os
import re
import signal
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from course_utils import cli
from course_utils.lessons import catalog
from course_utils.processes import client, tree
from course_utils.proving import grade_mutants, laws, mutants, stale, wrappers
from tests.files import write


def described(source, name=None):
    """Of the mutants of a source; of the changes around the answer `name`, where one is given."""
    source = textwrap.dedent(source)
    found = wrappers.wrapper_mutants(source, name) if name else mutants.mutants(source)
    return [mutant.description for mutant in found]


# What is made of one line, and nothing else; constants and names make mutants of their own.
EXPECTED = [
    ("return x + y", ["`x + y` -> `x - y`", "`x + y` -> `x`", "`x + y` -> `y`"]),
    ("return x - y", ["`x - y` -> `x + y`", "`x - y` -> `y - x`"]),
    ("return x * y", ["`x * y` -> `x / y`", "`x * y` -> `x + y`"]),
    ("return x // y", ["`x // y` -> `x * y`", "`x // y` -> `x % y`", "`x // y` -> `y // x`"]),
    ("return x @ y", ["`x @ y` -> `y @ x`"]),
    ("return -x", ["`-x` -> `x`"]),
    ("return 3", ["`3` -> `4`", "`3` -> `2`", "`return 3` -> `return`"]),
    ("return x[0]", ["`0` -> `1`", "`0` -> `-1`"]),
    ("return x.sum(-1)", ["`-1` -> `1`", "`1` -> `2`", "`1` -> `0`", "`x.sum(-1)` -> `x`"]),
    ("return 0.5 * x", ["`0.5` -> `1.0`"]),
    ("return x.sum(0, keepdim=True)", ["`True` -> `False`", "`x.sum(0, keepdim=True)` -> `x.sum(0)`"]),
    ("return x < y", ["`x < y` -> `x <= y`", "`x < y` -> `x >= y`"]),
    ("return x is None", ["`x is None` -> `x is not None`"]),
    ("return x and y", ["`x and y` -> `x or y`", "`x and y` -> `x`", "`x and y` -> `y`"]),
    ("return not x", ["`not x` -> `x`"]),
    ("return x if y else z", ["`x if y else z` -> `z if y else x`", "`y` -> `not y`"]),
    ("return g(x, y)", ["`g(x, y)` -> `g(y, x)`", "`y` removed"]),
    ("return torch.exp(x)", ["`torch.exp(x)` -> `x`"]),
    ("return x.t().sum()", ["`x.t()` -> `x`", "`x.t().sum()` -> `x.t()`"]),
    ("x.add_(y); return x", ["`x.add_(y)` removed"]),
    ("return x.add(y)", ["`x.add(y)` -> `x.add_(y)`"]),
    ("return x.add_(y)", ["`x.add_(y)` -> `x.add(y)`"]),
    ("x += y; return x", ["`x += y` -> `x -= y`", "`x += y` -> `x = x + y`", "`x += y` removed"]),
    ("return x[y:]", ["`x[y:]` -> `x[:]`", "`y:` -> `y + 1:`"]),
    ("return x.to(torch.float32)", ["`torch.float32` -> `torch.float64`"]),
    ("return {'a': 'copies'}", ["`'a'` -> `'not a'`", "`'copies'` -> `'not copies'`"]),
    ("with torch.no_grad(): x = y\n    return x", ["`with torch.no_grad():` -> `if True:`"]),
    ("if x: y = z\n    return y", ["`if x:` -> `if True:`", "`if x:` -> `if False:`"]),
    ("if x: y = z\n    return y", ["`if x:` -> `if not x:`", "`y = z` removed"]),
    ("for i in x: continue", ["`continue` -> `break`"]),
    ("def g(size: int = 3, keep=True): return x", ["`3` -> `4`", "`3` -> `2`", "`True` -> `False`"]),
]


@pytest.mark.parametrize(("line", "expected"), EXPECTED)
def test_changes_of_a_line(line, expected):
    found = described(f"import torch\ndef f(x, y, z):\n    {line}\n")
    for description in expected:
        assert f"line 3: {description}" in found, found


@pytest.mark.parametrize(
    ("line", "never"),
    [
        ("return x.exp().add(y)", "add_"),  # nobody sees a value change that has no name
        ("return torch.equal(x, y)", "torch.equal(y, x)"),
        ('raise ValueError("no " + x)', "ValueError"),
        ('"""A docstring"""\n    return x', "docstring"),
        ("v: int = x\n    return v", "float"),
        ("return f'{x} words'", "not words"),
        ("return x + (2 + 2)", "`2 + 2` -> `2 * 2`"),  # it compiles to the same
        ("x[0] += 1", "x[0] = x[0] + 1"),  # in a subscript both write in place
    ],
)
def test_what_is_left_alone(line, never):
    assert not [d for d in described(f"import torch\ndef f(x, y):\n    {line}\n") if never in d]


def test_changes_around_a_function_and_around_the_methods_of_a_class():
    found = described("def f(x):\n    return x\n", "f")
    assert {f"the result of `f` {change}" for change in wrappers._RESULTS} <= set(found)
    assert {f"`f` {says.format('x')}" for says in wrappers._ARGUMENTS.values()} <= set(found)
    found = described(
        """
        class F:
            def __init__(self, size): self.size = size
            def forward(self, x): return x
            def backward(ctx, grad): return grad
        """,
        "F",
    )
    assert "the result of `forward` detached" in found
    assert "the result of `backward` detached" in found
    assert "the result of `backward` of another dtype" not in found
    assert not [d for d in found if "__init__" in d]


@pytest.mark.parametrize(
    ("argument", "result", "there"),
    [
        ("Tensor", "Tensor", (True, True)),
        ("torch.Tensor | None", "tuple[nn.Module, Tensor]", (True, True)),
        ("nn.Parameter", "list", (True, True)),
        ("Any", "dict[str, Any]", (True, True)),
        ("nn.Module", "nn.Module", (False, False)),
        ("list[Tensor]", "torch.export.ExportedProgram", (False, False)),
        ("Callable[[Tensor], Tensor]", "tuple[nn.Module, list[float]]", (False, False)),
    ],
)
def test_what_holds_no_tensor_is_left_as_it_is(argument, result, there):
    found = described(f"def f(x: {argument}) -> {result}:\n    return x\n", "f")
    changed = "`f` also writes to `x` (`x.add_(1)` before it returns)"
    assert (changed in found, "the result of `f` cloned" in found) == there


# --- around the finished answer -----------------------------------------------------------------------


ONES, GRADIENT, LAYER = torch.ones(2), torch.ones(2, requires_grad=True), nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("change", "function", "argument", "differs", "holds"),
    [
        ("detached", lambda x: [x * 2], ONES, False, lambda out: not out[0].requires_grad),
        ("detached", lambda x: (x * 2, [x + 1], "word"), GRADIENT, True,
         lambda out: not out[0].requires_grad and not out[1][0].requires_grad and out[2] == "word"),
        ("detached", lambda x: {"twice": x * 2}, GRADIENT, True, lambda out: not out["twice"].requires_grad),
        # A copy of what was a copy is no change.
        ("cloned", lambda x: x + 1, ONES, False, lambda out: out.tolist() == [2, 2]),
        ("cloned", lambda x: x.view(2, 1), ONES, True, lambda out: out.data_ptr() != ONES.data_ptr()),
        # A module is left alone.
        ("detached", lambda m: m, LAYER, False, lambda m: m.weight.requires_grad),
        ("of another dtype", lambda m: m, LAYER, False, lambda m: m.weight.dtype == torch.float32),
        ("made contiguous", lambda x: x.t(), torch.ones(1, 1), False, torch.Tensor.is_contiguous),
        ("made contiguous", lambda x: x.t(), torch.ones(2, 3), True, torch.Tensor.is_contiguous),
        ("of another dtype", lambda x: x, ONES, True, lambda out: out.dtype == torch.float64),
        ("of another dtype", lambda x: x, ONES > 0, False, lambda out: out.dtype == torch.bool),
    ],
)  # fmt: skip
def test_changes_of_a_result(change, function, argument, differs, holds, tmp_path):
    mark = tmp_path / "mark"
    assert holds(wrappers._wrapped(function, "result", change, mark)(argument))
    assert mark.exists() == differs


@pytest.mark.parametrize(
    ("kind", "detail", "left", "differs"),
    [
        ("cloned at entry", "y", [2, 2], False),  # nobody writes to it
        ("cloned at entry", "x", [1, 1], True),
        ("changed", "x", [3, 3], True),
    ],
)
def test_changes_of_an_argument(kind, detail, left, differs, tmp_path):
    def writes(x, y):
        x += y

    mark, x = tmp_path / "mark", torch.ones(2)
    wrappers._wrapped(writes, kind, detail, mark)(x, y=torch.ones(2))
    assert (x.tolist(), mark.exists()) == (left, differs)


@pytest.mark.parametrize(
    ("body", "change", "differs"),
    [
        # What only its own function sees is no change.
        ("y = x.exp()\n    y += 1\n    return y", "line 3: `y += 1` -> `y = y + 1`", False),
        ("y = x\n    y += 1\n    return y", "line 3: `y += 1` -> `y = y + 1`", True),
        ("y = x.exp()\n    return y.add(1)", "line 3: `y.add(1)` -> `y.add_(1)`", False),
        ("y = x.view(-1)\n    return y.add(1)", "line 3: `y.add(1)` -> `y.add_(1)`", True),
    ],
)
def test_in_place_or_not(body, change, differs, tmp_path):
    (mutant,) = [m for m in mutants.mutants(f"def f(x):\n    {body}\n") if m.description == change]
    mark = tmp_path / "mark"
    wrappers.build(mutant, "f", mark)(torch.zeros(2))
    assert mark.exists() == differs


# --- what the checks make of it ------------------------------------------------------------------------

EXERCISE = '''"""A rising ramp

Return the first `n` numbers.
"""

import torch

from course_utils.exercise import Exercise, expect

exercise = Exercise(minutes=1, hints=[])


@exercise.starter
def ramp(n):
    """n -> (n,)"""
    raise NotImplementedError


@exercise.check
def length(ramp):
    """It has n elements"""
    expect.equal(len(ramp(5)), 5)
'''

STRICT = '''

@exercise.check
def values(ramp):
    """They rise"""
    expect.equal(ramp(4), torch.arange(4))
'''

SOLUTION = '''"""Each is one more than the one before."""

import torch


def ramp(n):
    found, i = [], 0
    while i < n:
        found.append(i)
        i += 1
    return torch.tensor(found)
'''


@pytest.fixture
def course(tmp_path):
    """A course of one exercise; gives a function that writes it with these checks and this solution."""

    def make(exercise=EXERCISE, solution=SOLUTION):
        lesson = "# Ramps\n\n```{exercise} ramp\n```\n"
        files = {"exercises/ramps/ramp.py": exercise, "solutions/ramps/ramp.py": solution}
        return write(tmp_path, files | {"notebooks/source/01_ramps.md": lesson})

    yield make
    catalog._load.cache_clear()


def outcome_of_all(root):
    with grade_mutants.MutantGrader(root, "ramp") as one:
        return {m.description: one.try_mutant(m) for m in one.mutants}


def test_checks_that_do_not_look_let_mutants_pass(course):
    found = outcome_of_all(course())
    survived = {d for d, v in found.items() if v.state == grade_mutants.SURVIVED}
    assert "line 5: `0` -> `1`" not in survived
    assert "line 9: `torch.tensor(found)` -> `found`" in survived
    assert "the result of `ramp` of another dtype" in survived
    rejected = found["line 6: `i < n` -> `i <= n`"]
    assert (rejected.state, rejected.check, rejected.how) == (grade_mutants.REJECTED, "length", "wrong")


def test_checks_that_look_let_none_pass(course):
    found = outcome_of_all(course(EXERCISE + STRICT))
    assert {v.state for v in found.values()} <= {grade_mutants.REJECTED, grade_mutants.NO_CHANGE}
    endless = found["line 8: `i += 1` removed"]
    assert (endless.state, endless.how) == (grade_mutants.REJECTED, "timed out")
    assert found["the result of `ramp` cloned"].state == grade_mutants.NO_CHANGE
    assert found["line 8: `i += 1` -> `i = i + 1`"].state == grade_mutants.NO_CHANGE


def test_one_check_alone(course):
    with grade_mutants.MutantGrader(course(EXERCISE + STRICT), "ramp") as one:
        (mutant,) = [m for m in one.mutants if m.description == "line 9: `torch.tensor(found)` -> `found`"]
        assert one.try_mutant(mutant, only="length").state == grade_mutants.SURVIVED
        assert one.try_mutant(mutant, only="values").check == "values"


def test_a_mutant_that_takes_its_process_with_it_is_rejected_and_the_next_is_tried(course):
    tried = {
        "import os\ndef ramp(n):\n    os._exit(3)\n": grade_mutants.REJECTED,
        "def ramp(n):\n    return list(range(n))\n": grade_mutants.SURVIVED,
        "import ctypes\ndef ramp(n):\n    ctypes.CDLL(None).sleep(60)\n": grade_mutants.REJECTED,
        "def ramp(n):\n    return [*range(n)]\n": grade_mutants.SURVIVED,
    }
    with grade_mutants.MutantGrader(course(), "ramp") as one:
        states = [one.try_mutant(mutants.Mutant("tried", source)).state for source in tried]
    assert states == list(tried.values())


def test_a_server_that_has_ended_meanwhile_rejects_no_mutant(course):
    with grade_mutants.MutantGrader(course(), "ramp") as one:
        (idle,) = one._idle  # it waits for the next
        os.kill(client.server().process.pid, signal.SIGKILL)
        while tree.alive([idle.pid]):
            time.sleep(0.01)
        right = mutants.Mutant("right", "def ramp(n):\n    return list(range(n))\n")
        assert one.try_mutant(right).state == grade_mutants.SURVIVED


def test_a_reference_that_fails_is_said(course):
    root = course(EXERCISE + STRICT, SOLUTION.replace("i < n", "i < n - 1"))
    assert found(root, laws.mutations, None, Counter()) == [
        "none was tried: the reference, without what stands below `# Other right answers`, "
        "does not pass length (wrong), values (wrong)"
    ]


def test_a_reference_that_needs_what_readers_are_not_shown_is_said(course):
    below = SOLUTION.replace("[], 0", "[], ZERO") + "\n\n# Other right answers\n\nZERO = 0\n"
    (said,) = found(course(EXERCISE, below), laws.mutations, None, Counter())
    assert "`# Other right answers`, does not pass length (raised)" in said


def found(root, law, *more):
    course = catalog.load(root)
    if law is laws.form:
        return list(laws.form(course.exercise("ramp"), course.solution("ramp")))
    return list(law(course, "ramp", set(), *more))


def test_what_the_law_on_mutants_finds(course):
    idle = STRICT.replace("expect.equal(ramp(4), torch.arange(4))", "expect.true(callable(ramp))")
    listed = {
        "line 9: `torch.tensor(found)` -> `found`": "A list will do.",
        "line 5: `0` -> `1`": "it is not",
        "line 99": "nothing",
    }
    root = course(EXERCISE + idle, f"{SOLUTION}\n\nequivalent = {listed}\n")
    said = found(root, laws.mutations, None, Counter())
    seen = [fault for fault in said if fault.startswith("no check sees this change of the reference: ")]
    assert any("the result of `ramp` of another dtype" in fault and "Add a check" in fault for fault in seen)
    assert not any(": line 9: `torch.tensor(found)` -> `found`" in fault for fault in seen)
    assert "line 5: `0` -> `1` is listed as equivalent, and does not survive" in said
    assert "line 99 is listed, and is no mutant of the reference" in said
    assert "check values rejects no wrong answer at all" in said


MISTAKES = """

# Other right answers

from course_utils.exercise import Edit, Wrong

mistakes = [
    Edit("one too many", "i < n", "i <= n", told_by="{told_by}"),
    Edit("right", "i = [], 0", "i = [], 0 * 1", told_by="values"),
]
"""


def test_a_mistake_that_passes_or_is_told_by_another_check_is_a_fault(course):
    listed = MISTAKES.format(told_by="values")
    said = found(course(EXERCISE + STRICT, SOLUTION + listed), laws.mistakes)
    assert said[0].startswith("the mistake 'one too many' is told by length, not values")
    assert said[1] == "the mistake 'right' passed"
    catalog._load.cache_clear()
    with pytest.raises(catalog.CourseError, match="stands 0 times in the reference"):
        found(course(EXERCISE + STRICT, SOLUTION + listed.replace("i < n", "i < 99")), laws.mistakes)


def test_an_example_that_cannot_be_pasted_is_a_fault(course):
    helper = STRICT.replace(
        "expect.equal(ramp(4)",
        "t = expect.given('', ramp=ramp, four=lambda: 4)\n    expect.equal(t.call('ramp(four())')",
    )
    said = found(course(EXERCISE + helper, SOLUTION + MISTAKES.format(told_by="length")), laws.mistakes)
    assert any("does not run when pasted: name 'four' is not defined" in fault for fault in said), said


def test_what_an_exercise_lacks_is_said(course):
    said = found(course(EXERCISE), laws.form)
    for fault in ("it has 0 hints, not 3", "it has 1 checks, not 3 to 7", "check length has no why"):
        assert any(fault in one for one in said), said


def test_code_that_a_cell_does_not_show_whole_is_a_fault(course):
    code = "f(" + "x, " * 28 + "x)"  # 88 characters
    task = EXERCISE.replace("numbers.", f"numbers.\n\n```python\n{code}\n{code}y\n```\n\n`{code}yz`")
    starter = task.replace("(n,)", "(n,)" + "." * 80)
    lines = [one for one in found(course(starter), laws.form) if "a line of code" in one]
    assert [one.partition(", ")[0][-13:] for one in lines] == ["99 characters", "89 characters"], lines


def test_the_sample_is_the_same_on_every_run(course):
    with grade_mutants.MutantGrader(course(), "ramp") as one:
        sample = one.sample(10)
        assert sample == one.sample(10) == one.sample(20)[:10]
        assert len({m.description for m in sample}) == 10
        lines = [one.mutants.index(m) for m in sample]
        assert max(lines) - min(lines) > 10


def test_course_prove(course, capsys, monkeypatch):
    monkeypatch.setenv("COURSE_ROOT", str(course()))
    monkeypatch.setattr(sys, "path", sys.path)
    assert cli.main(["prove", "Ramp", "--sample", "3"]) == 1
    out = capsys.readouterr().out
    assert "form: it has 0 hints, not 3" in out and "(`ramp`): " in out
    assert cli.main(["prove", "ladder"]) == 2
    assert capsys.readouterr().err == "no lesson has an exercise called 'ladder'\n"


BROKEN = [
    ("exercises", "import torch\n", "import torhc\n", "line 6: ModuleNotFoundError: No module named 'torhc'"),
    ("exercises", "h(ramp)", "h(ramp, devices)", "asks for 'devices'; it may ask for device, tmp_path"),
    ("solutions", "while i < n:", "while i < n", "expected ':' (ramp.py, line 8)"),
    ("solutions", "def ramp", "def slope", "solutions/ramps/ramp.py: it does not define ramp"),
    ("solutions", "", "", "solutions/ramps/ramp.py is missing"),
]


@pytest.mark.parametrize(("folder", "old", "new", "said"), BROKEN)
def test_a_file_that_is_not_whole_is_said_in_a_sentence(course, capsys, monkeypatch, folder, old, new, said):
    root = course()
    path = root / folder / "ramps" / "ramp.py"
    path.write_text(path.read_text().replace(old, new)) if old else path.unlink()
    monkeypatch.setenv("COURSE_ROOT", str(root))
    monkeypatch.setattr(sys, "path", sys.path)
    assert cli.main(["prove", "ramp"]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


def test_a_right_answer_that_fails_is_said(course):
    root = course(solution=SOLUTION.replace("i += 1", "i += one"))
    exercise, solution = catalog.load(root).exercise("ramp"), catalog.load(root).solution("ramp")
    assert next(laws.right_answers(exercise, solution)).startswith("ramp, a right answer, raised an error:\n")


def test_the_exercise_in_the_contributors_guide_holds(tmp_path, capsys, monkeypatch):
    text = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    files = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert [path.partition("/")[0] for path, _ in files] == ["exercises", "solutions"]
    cell = "```{code-cell}\nimport torch\nfrom torch import Tensor\n```"
    lesson = f"# Tensors\n\n{cell}\n\n```{{exercise}} last_column\n```\n"
    for path, content in [("notebooks/source/01_tensors.md", lesson), *files]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content, encoding="utf-8")
        assert max(map(len, content.splitlines())) <= 110, "`make lint`"
    monkeypatch.setenv("COURSE_ROOT", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path)
    assert cli.main(["prove", "last_column"]) == 0, capsys.readouterr().out
    path = tmp_path / "exercises/tensors/last_column.py"
    path.write_text(path.read_text().replace('with expect.left_alone(t.x, what="`x`"):', "if True:"))
    catalog._load.cache_clear()
    assert cli.main(["prove", "last_column"]) == 1
    told = capsys.readouterr().out
    assert (
        "`last_column` also writes to `x` (`x.add_(1)`" in told
        and "✗ The last column as a view (`last_column`): 2 faults (" in told
    )


def test_a_new_exercise_has_two_files_and_a_place_and_lacks_what_is_said(course, capsys, monkeypatch):
    root = course()
    monkeypatch.setenv("COURSE_ROOT", str(root))
    assert cli.main(["new", "ramps", "LastRamp"]) == 0
    assert "written: exercises/ramps/last_ramp.py" in capsys.readouterr().out
    assert cli.main(["new", "01", "ramp"]) == 2
    assert capsys.readouterr().err == "exercises/ramps/ramp.py is there already\n"
    catalog._load.cache_clear()
    made = catalog.load(root)
    assert made.lessons[0].exercise_names == ("ramp", "last_ramp")
    exercise, solution = made.exercise("last_ramp"), made.solution("last_ramp")
    assert exercise.answer_name == "LastRamp"
    missing = list(laws.form(exercise, solution))
    wanted = ("the title", "the task", "hint 1", "check values", "the why of values")
    for what in (*wanted, "the solution's docstring"):
        assert f"{what} is still to be written" in missing
    assert "it has 1 checks, not 3 to 7" in missing and "it lists 2 mistakes, not 3 to 8" in missing
    (root / "README.md").write_text("| 01 | Ramps | 0 | 1 |\n")
    todo = list(stale.to_mend(made, ["last_ramp"]))
    assert todo[0].startswith("README.md, the table of lessons, needs this line: | 01 | Ramps | 0 | ")
    assert todo[1] == "notebooks/01_ramps.ipynb has not been built: course build 01_ramps"
