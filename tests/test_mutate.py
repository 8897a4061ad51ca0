"""The mutator changes what it should, and finds checks that do not look."""

import textwrap
from pathlib import Path

import laws
import mutate
import mutations
import pytest
import torch

from course_utils import catalog

TOY = Path(__file__).parent / "toy_course"


def described(source, name="f", around=False):
    source = textwrap.dedent(source)
    return [m.description for m in mutate.mutants(source, name) if around or not m.around]


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
    found = described("def f(x):\n    return x\n", around=True)
    assert {f"the result of `f` {change}" for change in mutate._RESULTS} <= set(found)
    assert {"`x` cloned at entry in `f`", "`x` changed in `f`"} <= set(found)
    found = described(
        """
        class F:
            def __init__(self, size): self.size = size
            def forward(self, x): return x
            def backward(ctx, grad): return grad
        """,
        "F",
        around=True,
    )
    assert "the result of `forward` detached" in found
    assert "the result of `backward` detached" in found
    assert "the result of `backward` of another dtype" not in found
    assert not [d for d in found if "__init__" in d]


@pytest.mark.parametrize("label", laws.labels())
def test_mutants_of_references(label):
    study = laws.study(label)
    source, name = study.solution.source, study.exercise.answer_name
    found = mutate.mutants(source, name)
    assert found == mutate.mutants(source, name)
    descriptions = [m.description for m in found]
    assert len(set(descriptions)) == len(found) > 5
    codes = [mutate._code(m.source) for m in found if not m.around]
    assert len(set(codes)) == len(codes)
    assert mutate._code(source) not in codes


def test_a_change_that_compiles_to_the_same_is_none():
    found = described("def f(x):\n    if 2 + 2 == 4:\n        return x\n")
    assert not [d for d in found if "`2 + 2` -> `2 * 2`" in d]
    assert not [d for d in described("def f(x):\n    return x + 0\n") if "`0` -> `0`" in d]


# --- around the finished answer -----------------------------------------------------------------------


def surrounded(kind, detail, function, tmp_path):
    mark = tmp_path / "mark"
    changed = mutate._surround(function, kind, detail, mark)
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
    (mutant,) = [m for m in mutate.mutants(source, "f") if m.description == wanted]
    mark = tmp_path / "mark"
    return mutate.build(mutant, "f", mark), mark


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
    (mutant,) = [m for m in mutate.mutants(twice, "f") if m.description.endswith("`y.add_(1)`")]
    assert not mutant.marked


def test_in_a_subscript_both_write_in_place():
    assert not [d for d in described("def f(x):\n    x[0] += 1\n") if "x[0] = x[0] + 1" in d]


# --- what the checks make of it ------------------------------------------------------------------------

EXERCISE = '''"""A rising ramp

Return the first `n` numbers.
"""

import torch

from course_utils import expect
from course_utils.exercise import Exercise

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
def course(tmp_path, monkeypatch):
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

    monkeypatch.setattr(laws, "ROOTS", {"tmp": tmp_path})
    laws.study.cache_clear()
    yield write
    laws.study.cache_clear()
    catalog._load.cache_clear()


def outcome_of_all(root):
    with mutate.Bench(root, "ramp") as bench:
        return {m.description: bench.try_mutant(m) for m in bench.mutants}


def test_checks_that_do_not_look_let_mutants_pass(course):
    found = outcome_of_all(course())
    survived = {d for d, v in found.items() if v.state == mutate.SURVIVED}
    assert "line 5: `0` -> `1`" not in survived
    assert "line 9: `torch.tensor(found)` -> `found`" in survived
    assert "the result of `ramp` of another dtype" in survived
    rejected = found["line 6: `i < n` -> `i <= n`"]
    assert (rejected.state, rejected.check, rejected.how) == (mutate.REJECTED, "length", "wrong")


def test_checks_that_look_let_none_pass(course):
    found = outcome_of_all(course(EXERCISE + STRICT))
    assert {v.state for v in found.values()} <= {mutate.REJECTED, mutate.NO_CHANGE}
    endless = found["line 8: `i += 1` removed"]
    assert (endless.state, endless.how) == (mutate.REJECTED, "timed out")
    assert found["the result of `ramp` cloned"].state == mutate.NO_CHANGE
    assert found["line 8: `i += 1` -> `i = i + 1`"].state == mutate.NO_CHANGE


def test_one_check_alone(course):
    with mutate.Bench(course(EXERCISE + STRICT), "ramp") as bench:
        (mutant,) = [m for m in bench.mutants if m.description == "line 9: `torch.tensor(found)` -> `found`"]
        assert bench.try_mutant(mutant, only="length").state == mutate.SURVIVED
        assert bench.try_mutant(mutant, only="values").check == "values"


def test_a_mutant_that_takes_its_process_with_it_is_rejected_and_the_next_is_tried(course):
    with mutate.Bench(course(), "ramp") as bench:
        ends = mutate.Mutant("ends", "import os\ndef ramp(n):\n    os._exit(3)\n")
        deaf = mutate.Mutant("deaf", "import ctypes\ndef ramp(n):\n    ctypes.CDLL(None).sleep(60)\n")
        good = mutate.Mutant("good", "def ramp(n):\n    return list(range(n))\n")
        assert [bench.try_mutant(m).state for m in (ends, good, deaf, good)] == [
            mutate.REJECTED,
            mutate.SURVIVED,
            mutate.REJECTED,
            mutate.SURVIVED,
        ]


def test_a_mutant_is_found_by_the_name_of_its_module(course):
    source = "import importlib\ndef ramp(n):\n    return importlib.import_module(__name__).numbers(n)\n"
    source += "def numbers(n):\n    return list(range(n))\n"
    with mutate.Bench(course(), "ramp") as bench:
        assert bench.try_mutant(mutate.Mutant("by its name", source)).state == mutate.SURVIVED


def test_a_reference_that_fails_is_said(course):
    root = course(EXERCISE + STRICT, SOLUTION.replace("i < n", "i < n - 1"))
    with pytest.raises(RuntimeError, match="the reference"), mutate.Bench(root, "ramp"):
        pass


def test_equivalents_are_verified(course):
    listed = """

# Other right answers

equivalent = {
    "line 6: `i < n` -> `i <= n`": "it is not",
    "line 5: `0` -> `-1`": "nor this",
}


def generated(answer):
    for n in range(3):
        yield answer(n)
"""
    with mutate.Bench(course(EXERCISE, SOLUTION + listed), "ramp") as bench:
        by_name = {m.description: m for m in bench.mutants}
        assert set(bench.listed) <= set(by_name)
        assert not any(bench.agrees(by_name[description]) for description in bench.listed)
        same = mutate.Mutant("same", "import torch\ndef ramp(n):\n    return torch.arange(n)\n")
        other = mutate.Mutant("other", "import torch\ndef ramp(n):\n    return torch.arange(n) + 1\n")
        assert not bench.agrees(other)
        assert bench.agrees(same) is False  # of 0 elements: float32 there, int64 here
        assert bench.agrees(mutate.Mutant("itself", SOLUTION))


def test_the_sample_is_the_same_on_every_run():
    with mutate.Bench(TOY, "cube") as bench:
        sample = bench.sample(10)
        assert sample == bench.sample(10) == bench.sample(20)[:10]
        assert len({m.description for m in sample}) == 10
        lines = [bench.mutants.index(m) for m in sample]
        assert max(lines) - min(lines) > 10


# --- the table --------------------------------------------------------------------------------------------


def test_the_table_of_a_good_exercise(course, capsys):
    course(EXERCISE + STRICT)
    assert mutations.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["exercise", "mutants", "rejected", "equivalent", "survived", "seconds"]
    label, mutants, rejected, equivalent, survived, _ = lines[1].split()
    assert (label, mutants, equivalent, survived) == ("tmp/ramp", rejected, "0", "0")
    assert lines[-1] == f"{rejected} of {mutants} rejected, 100.0%"


def test_the_table_of_an_exercise_that_looks_away(course, capsys):
    course()
    assert mutations.main(["ramp"]) == 1
    assert "    survived: line 9: `torch.tensor(found)` -> `found`" in capsys.readouterr().out


def test_an_exercise_that_nobody_has(course, capsys):
    course()
    assert mutations.main(["ladder"]) == 2
    assert capsys.readouterr().out == "no exercise is called ladder\n"
