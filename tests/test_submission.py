"""What is taken from a reader's notebook, and what is left where it is."""

import dataclasses
import inspect
import json
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import nbformat
import pytest
import torch

from course_utils.grading import answers
from course_utils.grading.answers import UnreadableError
from course_utils.grading.cells import units
from course_utils.lessons import catalog
from course_utils.lessons.catalog import Lesson
from course_utils.lessons.source import STARTER, notebook_of, role
from tests.hostile.course import code, notebook


def prose(source):
    return {"cell_type": "markdown", "source": source, "metadata": {}}


def read(tmp_path, *cells, lesson=None):
    """A submission whose cells are these; a string is a code cell."""
    metadata = {"course": {"lesson": lesson}} if lesson else {}
    return answers.read(notebook(tmp_path / "notebook.ipynb", *cells, **metadata))


@pytest.fixture
def answer(tmp_path):
    def make(*cells, name="answer"):
        recipe = read(tmp_path, *cells).recipe(name)
        return pickle.loads(pickle.dumps(recipe)).make()

    return make


# --- what belongs to an answer -----------------------------------------------------------------------


# Cells, what is done with the answer that they give, and what comes of it.
ANSWERS = {
    "the last definition counts": (
        ["def answer(): return 1", "def answer(): return 2", "answer()"], lambda made: made(), 2,
    ),
    "an assignment is a definition": (
        ["def other(): return 3", "answer = other", "def other(): return 4"], lambda made: made(), 3,
    ),
    "demonstrations are not run": (
        ["open('left', 'w')", "def answer(): return 1", "1 / 0", "while True: pass", "answer()",
         "unrelated = answer() + 1 / 0"],
        lambda made: made(), 1,
    ),
    "local names need nothing": (
        ["total = 1 / 0", "def answer(total):\n    x = [total for total in (1, 2)]\n    return x"],
        lambda made: made(0), [1, 2],
    ),
    "definitions that need each other": (
        ["def even(n): return n == 0 or answer(n - 1)", "def answer(n): return n != 0 and even(n - 1)"],
        lambda made: (made(7), made(8)), (True, False),
    ),
    "a default sees what stood above it, a body what stands last": (
        ["N = 1", "def answer(a=N): return a, N", "N = 2"], lambda made: made(), (1, 2),
    ),
    "a body sees what stands last above the check": (
        ["K = 1\ndef half(x): return x / 2", "def answer(x): return half(x), K", "K = 2", "check(answer)",
         "K = 3\nhalf = 1 / 0"],
        lambda made: made(4), (2, 2),
    ),
    "the last of several checks": (
        ["K = 1\ndef answer(): return K", "report = check(answer)", "K = 2", "%time check('answer')", "K = 3",
         "check(other)"],
        lambda made: made(), 2,
    ),
    "a check that only its mark tells": (
        ["K = 1\ndef answer(): return K", code("K = 2\nprint('mine')", exercise="answer", role="check"),
         "K = 3"],
        lambda made: made(), 2,
    ),
    "a call of check counts more than a mark": (
        ["K = 1\ndef answer(): return K", "check(answer)", "K = 2",
         code("K = 3", exercise="answer", role="check")],
        lambda made: made(), 1,
    ),
    "an answer below its check is seen with what its cell makes": (
        ["K = 1\ndef answer(): return 0", "check(answer)", "K = 2", "def answer(): return K\nK = 3", "K = 4"],
        lambda made: made(), 3,
    ),
    "what stands only below the check": (
        ["def answer(n=SIZE): return n, K, table", "check(answer)",
         "SIZE = K = 1\ntable = {}", "table['k'] = 2"],
        lambda made: made(), (1, 1, {"k": 2}),
    ),
    "what later cells may do to a helper": (
        ["def half(x): return x / 2\nclass answer:\n    n = half(4)\n    def use(self): return half(2)",
         "answer.k = 1", "check(answer)", "if True:\n    half = straight", "for half in 1 / 0: pass",
         "half += 1", "half.k = 1 / 0", "import half.k", "answer.k = 2"],
        lambda made: (made.n, made().use(), made.k), (2, 1, 1),
    ),
    "what earlier cells may have done to a helper": (
        ["straight = 1 / 0\nif straight: half = straight", "for half in straight: pass",
         "def half(x): return x / 2", "if not half: half = None", "def answer(x): return half(x)",
         "check(answer)"],
        lambda made: made(4), 2,
    ),
    "a value is made from what stood above it": (
        ["K = 1\ndef f(): return K", "X = f()", "K = 2", "def answer(): return X, K, f()"],
        lambda made: made(), (1, 2, 2),
    ),
    "cells in another order than they were run in": (
        ["def answer(x: torch.Tensor, n=SIZE): return F.relu(x) * n + OFFSET", "SIZE = twice(2)",
         "def twice(x): return FACTOR * x", "FACTOR = 2\nOFFSET = 1",
         "import torch\nimport torch.nn.functional as F"],
        lambda made: made(torch.tensor([-1, 2])).tolist(), [1, 9],
    ),
    "wrapping needs the one before": (
        ["import functools", "def answer(n): return [n]", "answer = functools.cache(answer)"],
        lambda made: made(1) is made(1), True,
    ),
    "augmented assignments and tuples": (
        ["a, (b, *c) = 1, (2, 3, 4)", "a += 10\n(d := 5)\n[e := i for i in range(3)]",
         "def answer(): return a, b, c, d, e"],
        lambda made: made(), (11, 2, [3, 4], 5, 2),
    ),
    "blocks at top level": (
        ["try:\n    import missing_module as fast\nexcept ImportError:\n    fast = None",
         "if fast is None:\n    def answer(): return SCALE, TABLE\nelse:\n    answer = None",
         "SCALE = 1", "if False:\n    SCALE = 2", "with __import__('torch').no_grad():\n    TABLE = 3"],
        lambda made: made(), (1, 3),
    ),
    "attributes and entries set later": (
        ["class answer:\n    n = 0\n    table = {}", "answer.method = lambda self: self.n",
         "answer.n += 2\nanswer.table['k'] = 4", "answer.method.__doc__ = 'seen'"],
        lambda made: (made().method(), made.table, made.method.__doc__), (2, {"k": 4}, "seen"),
    ),
    "what is set on an earlier definition is gone with it": (
        ["def answer(): pass", "answer.mark = 1 / 0", "def answer(): pass"],
        lambda made: hasattr(made, "mark"), False,
    ),
    "settings of a module do not belong to an answer": (
        ["import torch\ntorch.equal = len\ntorch.set_default_dtype(torch.float64)", "answer = torch.equal"],
        lambda made: (made is torch.equal, torch.get_default_dtype()), (True, torch.float32),
    ),
    "what registers with a definition belongs to it": (
        ["import functools", "@functools.singledispatch\ndef answer(x): return 'any'",
         "@answer.register\ndef _(x: int): return 'int'",
         "@answer.register(str)\ndef _(x): return 'str'"],
        lambda made: [made(1.0), made(1), made("")], ["any", "int", "str"],
    ),
    "an operator of one's own": (
        ["import torch\nfrom torch import Tensor",
         "@torch.library.custom_op('tests_submission::twice', mutates_args=())\n"
         "def answer(x: Tensor) -> Tensor:\n    return x * 2",
         "@answer.register_fake\ndef _(x): return torch.empty_like(x)",
         "answer.register_autograd(lambda ctx, grad: grad * 3)"],
        lambda made: (made(torch.ones(2, device="meta")).shape, gradient(made)), ((2,), [3, 3]),
    ),
    "future features reach every piece": (
        ["from __future__ import annotations", "def answer(x: not_defined) -> 1 / 0: return x"],
        lambda made: made.__annotations__, {"x": "not_defined", "return": "1 / 0"},
    ),
    "display is no error": (["def answer():\n    display(1)\n    return 2"], lambda made: made(), 2),
    "magics and shell lines": (
        ["%matplotlib inline\n%load_ext autoreload\n!ls\nimport math\nmath?\nfiles = !ls",
         "%%bash\nanswer = rm -rf", "%%writefile answer.py\ndef answer(): return 'file'",
         "%%time\n%%capture\nSIZE = 2", "%time WIDTH = 3",
         "def answer():\n    %timeit -n1 pass\n    return math.pi // 1, SIZE, WIDTH"],
        lambda made: made(), (3, 2, 3),
    ),
}  # fmt: skip


def gradient(function):
    x = torch.ones(2, requires_grad=True)
    function(x).sum().backward()
    return x.grad.tolist()


@pytest.mark.parametrize("name", ANSWERS)
def test_what_belongs_to_an_answer(name, answer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells, use, expected = ANSWERS[name]
    assert use(answer(*cells)) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["notebook.ipynb"]


def test_what_an_answer_needs_comes_with_it_through_every_way_of_reading_a_name(answer):
    made = answer(
        "import math as m\nfrom functools import cache",
        "SIZE = 3\nWIDTH: int = SIZE + 1",
        "def helper(x):\n    return [SIZE * y for y in range(x)]",
        "class Base:\n    size = WIDTH",
        "def double(cls):\n    cls.twice = lambda self: self.size * 2\n    return cls",
        "KEEP = cache",
        """
@double
class answer(Base):
    def __call__(self, n: "SIZE" = SIZE):
        @KEEP
        def inner():
            return m.floor(2.5), helper(n)
        return inner()
""",
    )
    assert made()() == (2, [0, 3, 6])
    assert made().twice() == 8


def test_a_name_without_a_definition_fails_when_it_is_used(answer):
    with pytest.raises(NameError, match="missing"):
        answer("def answer(): return missing")()


def test_no_definition_no_recipe(tmp_path):
    handed_in = read(
        tmp_path, "print(answer)", "answer: int", "# answer = 1", "answer == 2", prose("answer = 1")
    )
    assert handed_in.recipe("answer") is None


@pytest.mark.parametrize("lesson", catalog.load().lessons, ids=lambda lesson: lesson.slug)
def test_no_later_cell_of_a_lesson_replaces_a_helper_of_an_answer(lesson, tmp_path):
    """Beside each answer stand helpers with all the names that cells below it bind."""
    cells = [cell for cell in notebook_of(catalog.load(), lesson).cells if cell.cell_type == "code"]
    below = {"of_its_own"}
    answered: list[str] = []
    for cell in reversed(cells):
        if role(cell) == STARTER:
            name = cell.metadata.course.exercise
            helpers = "".join(f"{helper} = {name!r}\n" for helper in sorted(below))
            cell.source = f"{helpers}def {answer_name(name)}():\n    return {{{', '.join(sorted(below))}}}"
            answered.append(name)
        else:
            below |= {name for unit in units(cell.source, "", 0)[0] for name in unit.binds}
    path = notebook(tmp_path / lesson.notebook.name, *cells)
    handed_in = answers.read(path)
    for name in answered:
        recipe = handed_in.recipe(answer_name(name), name)
        assert {piece.filename for piece in recipe.pieces} == {recipe.pieces[-1].filename}
        assert recipe.make()() == {name}


def answer_name(exercise):
    return catalog.load().card(exercise).answer_name


# --- magics ------------------------------------------------------------------------------------------


def test_lines_keep_their_numbers_beside_magics(answer):
    made = answer("%%time\n%matplotlib inline\n!ls\n\ndef answer():\n    return 1 / 0  # here")
    with pytest.raises(ZeroDivisionError) as caught:
        made()
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.filename, frame.lineno, frame.line) == ("cell 1", 6, "return 1 / 0  # here")


# --- cells that are not Python -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "cell"),
    [
        (["x = 1\ndef answer(:\n    pass"], 2),
        (["def answer(): return 1", "def answer(): return ("], 3),  # a broken definition is the last one too
        (["def helper(: pass", "def answer(): return helper()"], 2),
    ],
)
def test_a_broken_cell_breaks_the_answers_that_need_it_only(tmp_path, cells, cell):
    handed_in = read(tmp_path, "def other(): return 1", *cells)
    assert handed_in.recipe("other").make()() == 1
    with pytest.raises(SyntaxError) as caught:
        handed_in.recipe("answer").make()
    assert caught.value.filename == f"cell {cell}"


def test_a_marked_cell_that_cannot_be_read_is_an_attempt(tmp_path):
    handed_in = read(
        tmp_path,
        code("dfe answer():\n    pass", exercise="answer", role="starter"),
        code("check(", exercise="other", role="check"),
    )
    with pytest.raises(SyntaxError):
        handed_in.recipe("answer", "answer").make()
    assert handed_in.recipe("other", "other") is None


# --- an answer is at home ----------------------------------------------------------------------------


def test_sources_are_found(answer):
    made = answer(
        "import torch", "# a line\n\ndef answer(x: torch.Tensor, n: int):\n    return x * n  # source"
    )
    assert "# source" in inspect.getsource(made)
    assert torch.jit.script(made)(torch.ones(1), 2).item() == 2
    made = answer(
        "import torch",
        "\n\nclass answer(torch.nn.Module):\n    def forward(self, x):\n        return x + 1  # source",
    )
    assert "# source" in inspect.getsource(made)
    assert torch.jit.script(made())(torch.ones(1)).item() == 2


def test_classes_can_be_pickled_and_are_dataclasses(answer):
    made = answer(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import ClassVar",
        "@dataclass\nclass answer:\n    n: int = 1\n    kind: ClassVar[int] = 3",
    )
    assert pickle.loads(pickle.dumps(made(5))) == made(5)
    assert [field.name for field in dataclasses.fields(made)] == ["n"]


def test_a_process_that_has_not_made_it_can_have_it(answer):
    """As it can have what a kernel's cells define."""
    made = answer("ONE = 1\nclass Helper:\n    one = ONE", "def answer(x): return x + Helper().one + ONE")
    load = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(1))"
    there = subprocess.run([sys.executable, "-c", load], input=cloudpickle.dumps(made), capture_output=True)
    assert (there.stdout, there.stderr) == (b"3\n", b"")


def test_made_once(tmp_path):
    recipe = read(tmp_path, "def answer(): pass").recipe("answer")
    assert recipe.make() is pickle.loads(pickle.dumps(recipe)).make()
    other = read(tmp_path, "def answer(): return 1").recipe("answer")
    assert other.make()() == 1 and recipe.make()() is None


def test_an_answer_that_is_not_left_defined(answer):
    with pytest.raises(NameError, match="answer"):
        answer("if False:\n    answer = 1")


# --- files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "there is no such file"),
        (b"", "it is not JSON"),
        (b"\xff\xfe\x00", "it is not text"),
        (b"[1, 2]", "has no `nbformat`"),
        (b'{"nbformat": 4}', "no list of cells"),
        (b'{"nbformat": 4, "cells": [3]}', "cell 1 has no type"),
        (
            b'{"nbformat": 4, "cells": [{"cell_type": "markdown"}, {"cell_type": "code", "source": 3}]}',
            "cell 2 has no source",
        ),
        (b'{"nbformat": 99, "cells": []}', "format cannot be read"),
        (b'{"nbformat": "4", "cells": []}', "has no `nbformat`"),
        (b"[" * 200_000, "it is not JSON"),
    ],
)
def test_what_is_not_a_notebook(tmp_path, content, sentence):
    path = tmp_path / "notebook.ipynb"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableError, match=sentence):
        answers.read(path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("01_tensor.ipynb", "; did you mean 01_tensors?"),
        ("zz", "; there are 01_tensors, 12_compile"),
        ("no/zz", "; there is no folder"),
        ("empty/nope.ipynb", "; this folder holds no notebook"),
        ("empty", "folder"),
        (300 * "z", "File name too long"),
    ],
)
def test_a_file_that_is_not_there_names_the_nearest(tmp_path, name, said):
    (tmp_path / "empty").mkdir()
    for there in ("01_tensors", "12_compile"):
        (tmp_path / f"{there}.ipynb").touch()
    with pytest.raises(UnreadableError, match=re.escape(said)):
        answers.read(tmp_path / name)


def test_older_formats(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("def answer():\n    return 1")])
    for cell in notebook.cells:
        del cell["id"]
    path = tmp_path / "notebook.ipynb"
    for version in (4, 3):
        as_version = nbformat.convert(notebook, version) if version == 3 else notebook
        path.write_text(json.dumps(as_version))
        assert json.loads(path.read_text())["nbformat"] == version
        assert answers.read(path).recipe("answer").make()() == 1


def test_lines_of_other_systems_and_lists_of_lines(tmp_path):
    handed_in = read(tmp_path, code(["def answer():\r\n", "    return 1\r\n"]))
    assert handed_in.recipe("answer").make()() == 1


def test_metadata_of_any_shape(tmp_path):
    cells = [
        {**code("answer = 1"), "metadata": odd}
        for odd in (None, [], {"course": 3}, {"course": {"exercise": []}})
    ]
    assert read(tmp_path, *cells).marks == []


# --- lessons -----------------------------------------------------------------------------------------

COURSE = SimpleNamespace(
    lessons=[
        Lesson(1, "tensors", "Tensors", Path("01_tensors.md"), Path("01_tensors.ipynb"), ("first", "second")),
        Lesson(2, "layers", "Layers", Path("02_layers.md"), Path("02_layers.ipynb"), ("mini_ddp",)),
    ]
)


@pytest.mark.parametrize(
    ("cells", "lesson", "found"),
    [
        (["def first(): pass"], None, ["tensors"]),
        (["class MiniDDP: pass"], None, ["layers"]),
        (["class MiniDDP: pass", "second = 1"], None, ["tensors", "layers"]),
        (["class MiniDDP: pass"], "01_tensors", ["tensors"]),
        ([code("x = 1", exercise="mini_ddp")], None, ["layers"]),
        ([code("x = 1", exercise="mini_ddp"), "def first(): pass"], None, ["layers"]),
        ([code("x = 1", exercise="mini_ddp")], "01_tensors", ["tensors", "layers"]),
        (["def first(: pass"], None, ["tensors"]),
        (["x = 1"], None, []),
        (["x = 1"], "99_nothing", []),
        (["def first(): pass"], "99_nothing", ["tensors"]),
    ],
)
def test_which_lessons(tmp_path, cells, lesson, found):
    handed_in = read(tmp_path, *cells, lesson=lesson)
    assert [one.topic for one in answers.lessons_of(handed_in, COURSE)] == found
