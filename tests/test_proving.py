"""The mutator changes what it should, and finds checks that do not look."""

import re
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from course_utils import cli
from course_utils.lessons import catalog
from course_utils.proving import around, bench, laws, mutants

TOY = Path(__file__).parent / "toy_course"


def described(source, name=None):
    """Of the mutants of a source; of the changes around the answer `name`, where one is given."""
    source = textwrap.dedent(source)
    return [m.description for m in (around.around(source, name) if name else mutants.mutants(source))]


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
    ],
)
def test_what_is_left_alone(line, never):
    assert not [d for d in described(f"import torch\ndef f(x, y):\n    {line}\n") if never in d]


def test_defaults_and_decorators():
    found = described("""
        import torch

        @torch.no_grad()
        def f(x, size: int = 3, keep=True):
            return x
    """)
    assert {"line 5: `3` -> `4`", "line 5: `3` -> `2`", "line 5: `True` -> `False`"} <= set(found)
    assert "line 4: `torch.no_grad()` removed" in found
    assert "line 5: `def f(x, size: int=3, keep=True):` -> `def f(x, size: int, keep):`" in found


def test_helpers_and_constants_of_the_reference_are_changed_too():
    found = described(
        "EPSILON = 1e-6\n\ndef help(x):\n    return x + EPSILON\n\ndef f(x):\n    return help(x)\n"
    )
    assert "line 1: `1e-06` -> `2e-06`" in found
    assert "line 4: `x + EPSILON` -> `x - EPSILON`" in found


def test_changes_around_a_function_and_around_the_methods_of_a_class():
    found = described("def f(x):\n    return x\n", "f")
    assert {f"the result of `f` {change}" for change in around._RESULTS} <= set(found)
    assert {f"`f` {says.format('x')}" for says in around._ARGUMENTS.values()} <= set(found)
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


def test_a_change_that_compiles_to_the_same_is_none():
    found = described("def f(x):\n    if 2 + 2 == 4:\n        return x\n")
    assert not [d for d in found if "`2 + 2` -> `2 * 2`" in d]
    assert not [d for d in described("def f(x):\n    return x + 0\n") if "`0` -> `0`" in d]


# --- around the finished answer -----------------------------------------------------------------------


def surrounded(kind, detail, function, tmp_path):
    mark = tmp_path / "mark"
    changed = around._surround(function, kind, detail, mark)
    return changed, mark


def test_a_result_that_is_detached(tmp_path):
    changed, mark = surrounded("result", "detached", lambda x: (x * 2, [x + 1], "word"), tmp_path)
    changed(torch.ones(2))
    assert not mark.exists()
    out = changed(torch.ones(2, requires_grad=True))
    assert mark.exists()
    assert not out[0].requires_grad and not out[1][0].requires_grad and out[2] == "word"
    changed, mark = surrounded("result", "detached", lambda x: {"twice": x * 2}, tmp_path)
    assert not changed(torch.ones(2, requires_grad=True))["twice"].requires_grad


def test_a_copy_of_what_was_a_copy_is_no_change(tmp_path):
    x = torch.arange(6)
    changed, mark = surrounded("result", "cloned", lambda x: x + 1, tmp_path)
    changed(x)
    assert not mark.exists()
    changed, mark = surrounded("result", "cloned", lambda x: x.view(2, 3), tmp_path)
    assert changed(x).untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert mark.exists()


def test_a_module_as_the_result_is_left_alone_and_that_is_no_change(tmp_path):
    for change in ("detached", "cloned", "of another dtype"):
        changed, mark = surrounded("result", change, lambda module: module, tmp_path)
        module = changed(torch.nn.Linear(2, 2))
        assert module.weight.requires_grad and module.weight.dtype == torch.float32
        assert not mark.exists()


def test_a_result_made_contiguous_or_of_another_dtype(tmp_path):
    changed, mark = surrounded("result", "made contiguous", lambda x: x.t(), tmp_path)
    assert changed(torch.ones(1, 1)).is_contiguous() and not mark.exists()
    assert changed(torch.ones(2, 3)).is_contiguous() and mark.exists()
    changed, mark = surrounded("result", "of another dtype", lambda x: x, tmp_path)
    assert changed(torch.ones(2)).dtype == torch.float64
    assert changed(torch.ones(2) > 0).dtype == torch.bool


def test_an_input_that_is_cloned_first(tmp_path):
    def writes(x, y):
        x += y

    changed, mark = surrounded("cloned at entry", "y", writes, tmp_path)
    changed(torch.ones(2), torch.ones(2))
    assert not mark.exists()
    changed, mark = surrounded("cloned at entry", "x", writes, tmp_path)
    x = torch.ones(2)
    changed(x, y=torch.ones(2))
    assert x.tolist() == [1, 1] and mark.exists()


def test_an_input_that_is_changed(tmp_path):
    changed, mark = surrounded("changed", "x", lambda x, n: x * n, tmp_path)
    x = torch.ones(2, requires_grad=True)
    assert changed(x, 3).tolist() == [3, 3]
    assert x.tolist() == [2, 2] and mark.exists()


def built(source, wanted, tmp_path):
    """The mutant of this description, and the mark that it makes when it makes a difference."""
    (mutant,) = [m for m in mutants.mutants(source) if m.description == wanted]
    mark = tmp_path / "mark"
    return around.build(mutant, "f", mark), mark


def test_a_change_in_place_that_only_its_own_function_sees_is_none(tmp_path):
    own = "def f(x):\n    y = x.exp()\n    y += 1\n    return y\n"
    changed, mark = built(own, "line 3: `y += 1` -> `y = y + 1`", tmp_path)
    assert changed(torch.zeros(2)).tolist() == [2, 2]
    assert not mark.exists()
    theirs = "def f(x):\n    x += 1\n    return x\n"
    changed, mark = built(theirs, "line 2: `x += 1` -> `x = x + 1`", tmp_path)
    x = torch.zeros(2)
    assert changed(x).tolist() == [1, 1] and x.tolist() == [0, 0]
    assert mark.exists()


def test_a_method_in_place_or_not(tmp_path):
    own = "def f(x):\n    y = x.exp()\n    return y.add(1)\n"
    changed, mark = built(own, "line 3: `y.add(1)` -> `y.add_(1)`", tmp_path)
    assert changed(torch.zeros(2)).tolist() == [2, 2]
    assert not mark.exists()
    view = "def f(x):\n    y = x.view(-1)\n    return y.add(1)\n"
    changed, mark = built(view, "line 3: `y.add(1)` -> `y.add_(1)`", tmp_path)
    x = torch.zeros(2)
    assert changed(x).tolist() == x.tolist() == [1, 1]
    assert mark.exists()
    twice = "def f(x):\n    y = x.exp()\n    return y.add(1) * y\n"
    (mutant,) = [m for m in mutants.mutants(twice) if m.description.endswith("`y.add_(1)`")]
    assert not mutant.marked


def test_in_a_subscript_both_write_in_place():
    assert not [d for d in described("def f(x):\n    x[0] += 1\n") if "x[0] = x[0] + 1" in d]


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

    def write(exercise=EXERCISE, solution=SOLUTION):
        for path, text in {
            "notebooks/source/01_ramps.md": "# Ramps\n\n```{exercise} ramp\n```\n",
            "exercises/ramps/ramp.py": exercise,
            "solutions/ramps/ramp.py": solution,
        }.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text, encoding="utf-8")
        return tmp_path

    yield write
    catalog._load.cache_clear()


def outcome_of_all(root):
    with bench.Bench(root, "ramp") as one:
        return {m.description: one.try_mutant(m) for m in one.mutants}


def test_checks_that_do_not_look_let_mutants_pass(course):
    found = outcome_of_all(course())
    survived = {d for d, v in found.items() if v.state == bench.SURVIVED}
    assert "line 5: `0` -> `1`" not in survived
    assert "line 9: `torch.tensor(found)` -> `found`" in survived
    assert "the result of `ramp` of another dtype" in survived
    rejected = found["line 6: `i < n` -> `i <= n`"]
    assert (rejected.state, rejected.check, rejected.how) == (bench.REJECTED, "length", "wrong")


def test_checks_that_look_let_none_pass(course):
    found = outcome_of_all(course(EXERCISE + STRICT))
    assert {v.state for v in found.values()} <= {bench.REJECTED, bench.NO_CHANGE}
    endless = found["line 8: `i += 1` removed"]
    assert (endless.state, endless.how) == (bench.REJECTED, "timed out")
    assert found["the result of `ramp` cloned"].state == bench.NO_CHANGE
    assert found["line 8: `i += 1` -> `i = i + 1`"].state == bench.NO_CHANGE


def test_one_check_alone(course):
    with bench.Bench(course(EXERCISE + STRICT), "ramp") as one:
        (mutant,) = [m for m in one.mutants if m.description == "line 9: `torch.tensor(found)` -> `found`"]
        assert one.try_mutant(mutant, only="length").state == bench.SURVIVED
        assert one.try_mutant(mutant, only="values").check == "values"


def test_a_mutant_that_takes_its_process_with_it_is_rejected_and_the_next_is_tried(course):
    with bench.Bench(course(), "ramp") as one:
        ends = mutants.Mutant("ends", "import os\ndef ramp(n):\n    os._exit(3)\n")
        deaf = mutants.Mutant("deaf", "import ctypes\ndef ramp(n):\n    ctypes.CDLL(None).sleep(60)\n")
        good = mutants.Mutant("good", "def ramp(n):\n    return list(range(n))\n")
        assert [one.try_mutant(m).state for m in (ends, good, deaf, good)] == [
            bench.REJECTED,
            bench.SURVIVED,
            bench.REJECTED,
            bench.SURVIVED,
        ]


def test_a_mutant_is_found_by_the_name_of_its_module(course):
    source = "import importlib\ndef ramp(n):\n    return importlib.import_module(__name__).numbers(n)\n"
    source += "def numbers(n):\n    return list(range(n))\n"
    with bench.Bench(course(), "ramp") as one:
        assert one.try_mutant(mutants.Mutant("by its name", source)).state == bench.SURVIVED


def test_a_reference_that_fails_is_said(course):
    root = course(EXERCISE + STRICT, SOLUTION.replace("i < n", "i < n - 1"))
    assert found(root, laws.mutations, None) == ["none was tried: the reference does not pass length, values"]


def test_a_reference_that_needs_what_readers_are_not_shown_is_said(course):
    below = SOLUTION.replace("[], 0", "[], ZERO") + "\n\n# Other right answers\n\nZERO = 0\n"
    (said,) = found(course(EXERCISE, below), laws.mutations, None)
    assert "without what stands below `# Other right answers` (length: raised)" in said


def found(root, law, *more):
    course = catalog.load(root)
    if law is laws.form:
        return list(laws.form(course.exercise("ramp"), course.solution("ramp")))
    return list(law(course, "ramp", set(), *more))


def test_a_mutant_that_survives_is_a_fault_unless_it_is_listed(course):
    line = "no check sees this change of the reference: line 9: `torch.tensor(found)` -> `found`, in "
    line += "`return torch.tensor(found)`. Add a check that sees it, or list it in `equivalent` with"
    line += " the reason."
    assert line in found(course(), laws.mutations, None)
    catalog._load.cache_clear()
    listed = '\n\nequivalent = {"line 9: `torch.tensor(found)` -> `found`": "A list will do."}\n'
    assert line not in found(course(solution=SOLUTION + listed), laws.mutations, None)


def test_what_is_listed_must_survive_and_be_a_mutant(course):
    listed = '\n\nequivalent = {"line 5: `0` -> `1`": "it is not", "line 99": "nothing"}\n'
    said = found(course(EXERCISE + STRICT, SOLUTION + listed), laws.mutations, None)
    assert "line 5: `0` -> `1` is listed as equivalent, and does not survive" in said
    assert "line 99 is listed, and is no mutant of the reference" in said


def test_a_check_that_rejects_nothing_is_a_fault(course):
    idle = STRICT.replace("expect.equal(ramp(4), torch.arange(4))", "expect.true(callable(ramp))")
    assert "check values rejects no wrong answer at all" in found(
        course(EXERCISE + idle), laws.mutations, None
    )


MISTAKES = """

# Other right answers

from course_utils.exercise import Edit, Wrong

mistakes = [
    Edit("one too many", "i < n", "i <= n", told_by="{told_by}"),
    Edit("right", "i = [], 0", "i = [], 0 * 1", told_by="values"),
]
"""


def test_a_mistake_that_passes_or_is_told_by_another_check_is_a_fault(course):
    said = found(course(EXERCISE + STRICT, SOLUTION + MISTAKES.format(told_by="values")), laws.mistakes)
    assert said[0].startswith("the mistake 'one too many' is told by length, not values")
    assert said[1] == "the mistake 'right' passed"


def test_an_edit_that_does_not_fit_is_refused(course):
    listed = MISTAKES.format(told_by="length").replace("i < n", "i < 99")
    with pytest.raises(catalog.CourseError, match="stands 0 times in the reference"):
        found(course(EXERCISE + STRICT, SOLUTION + listed), laws.mistakes)


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


def test_the_sample_is_the_same_on_every_run():
    with bench.Bench(TOY, "running_centre") as one:
        sample = one.sample(10)
        assert sample == one.sample(10) == one.sample(20)[:10]
        assert len({m.description for m in sample}) == 10
        lines = [one.mutants.index(m) for m in sample]
        assert max(lines) - min(lines) > 10


def test_course_prove(course, capsys, monkeypatch):
    monkeypatch.setenv("COURSE_ROOT", str(course()))
    monkeypatch.setattr(sys, "path", sys.path)
    assert cli.main(["prove", "ramp", "--sample", "3"]) == 1
    out = capsys.readouterr().out
    assert "form: it has 0 hints, not 3" in out and "✗ ramp: " in out
    assert cli.main(["prove", "ladder"]) == 2
    assert capsys.readouterr().err == "no lesson has an exercise called 'ladder'\n"


BROKEN = [
    ("exercises", "import torch\n", "import torhc\n", "line 6: ModuleNotFoundError: No module named 'torhc'"),
    ("exercises", "h(ramp)", "h(ramp, devices)", "asks for 'devices'; it may ask for device, tmp_path"),
    ("solutions", "while i < n:", "while i < n", "expected ':' (ramp.py, line 8)"),
    ("solutions", "def ramp", "def slope", "solutions/ramps/ramp.py does not define ramp"),
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


def test_the_exercise_in_the_readme_holds(tmp_path, capsys, monkeypatch):
    text = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    (fence,) = re.findall(r"```\{exercise\} \w+", text)
    files = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert [path.partition("/")[0] for path, _ in files] == ["exercises", "solutions"]
    for path, content in [("notebooks/source/01_tensors.md", f"# Tensors\n\n{fence}\n```\n"), *files]:
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
    assert "`last_column` also writes to `x` (`x.add_(1)`" in told and "✗ last_column: 1 fault (" in told
