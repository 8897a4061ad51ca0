"""`course check`: what it says of readers' notebooks, and what hostile ones can do."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import psutil
import pytest

from course_utils.grading import attempt, command
from course_utils.lessons import catalog
from course_utils.lessons.source import notebook_of, role
from course_utils.processes import client, workers
from tests.hostile.answers import HOSTILE
from tests.hostile.course import IMPORTS, RIGHT, code, make_course, notebook

SCHEMA = json.loads((Path(command.__file__).parent / "check_schema.json").read_text())
STARTER = "def plus_one(x: Tensor) -> Tensor:\n    raise NotImplementedError  # to do"


@pytest.fixture(scope="module", autouse=True)
def course(tmp_path_factory):
    root = make_course(tmp_path_factory.mktemp("course"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_ROOT", str(root))
        yield catalog.load()
    client.shut_down()


def grade(*paths, jobs=1):
    """The exit code and the parsed output of `course check --json`."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exit_code = command.run(list(paths), True, jobs)
    result = json.loads(out.getvalue())
    jsonschema.validate(result, SCHEMA)
    return exit_code, result["notebooks"]


def table(*paths):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        command.run(list(paths), False, 1)
    return out.getvalue()


def states(graded):
    return {exercise["name"]: exercise["state"] for exercise in graded["exercises"]}


def left_running():
    """Processes that belong to our warm server, besides itself."""
    server = client.current
    if server is None:
        return []
    marked = [pid for pid in psutil.pids() if client.is_marked(pid, server.mark)]
    return [pid for pid in marked if pid != server.process.pid and psutil.pid_exists(pid)]


ALL_PASSED = {"centre": "passed", "plus_one": "passed", "Scale": "passed"}
CHECKS = [f"check({name})" for name in ("centre", "plus_one", "Scale")]


# --- what is said ------------------------------------------------------------------------------------


def test_right_answers_pass(tmp_path):
    exit_code, (graded,) = grade(notebook(tmp_path / "a.ipynb", IMPORTS, *RIGHT.values(), *CHECKS))
    assert exit_code == 0
    assert graded["error"] is None and graded["notebook"] == str(tmp_path / "a.ipynb")
    assert states(graded) == ALL_PASSED
    assert [exercise["lesson"] for exercise in graded["exercises"]] == ["01_small"] * 3
    plus_one = graded["exercises"][1]
    assert (plus_one["told_by"], plus_one["symptom"]) == (None, None)
    assert [(c["name"], c["state"], c["message"], c["device"]) for c in plus_one["checks"]][:2] == [
        ("values", "passed", "", None),
        ("leaves_the_input", "passed", "", "cpu"),
    ]
    assert all(c["seconds"] >= 0 for c in plus_one["checks"])


def test_wrong_answers_are_told_by_a_check_and_a_symptom_or_the_line_that_raised(tmp_path):
    mistakes = [
        "def centre(x):\n    return -(x - x.mean())",
        "def plus_one(x):\n    x = UNKNOWN\n    return x",
        RIGHT["scale"].replace("nn.Parameter(torch.ones(()))", "torch.ones(())"),
    ]
    path = notebook(tmp_path / "a.ipynb", IMPORTS, *mistakes)
    exit_code, (graded,) = grade(path)
    assert exit_code == 1
    centre, plus_one, scale = graded["exercises"]
    assert states(graded) == {"centre": "wrong", "plus_one": "raised", "Scale": "wrong"}
    assert [e["told_by"] for e in graded["exercises"]] == ["values"] * 3
    assert "element `[0]` of the result is 2, expected -2" in centre["checks"][0]["message"]
    assert scale["symptom"] is None
    assert plus_one["checks"][0]["message"].splitlines() == [
        "`NameError: name 'UNKNOWN' is not defined`",
        "at your line 2 of cell 3 (`x = UNKNOWN`)",
    ]
    text = table(path)
    assert "✗ centre    wrong     0/2  The result is the negative of what was expected.\n" in text
    assert "✗ Scale     wrong     0/2  It multiplies" in text


@pytest.mark.parametrize(
    "centre",
    [
        # Nothing that it writes comes to lie beside the notebook.
        "def centre(x):\n    open('left', 'w').write('x')\n    return x - x.mean()",
        # What lies there can be imported.
        "from my_helpers import mean\n\ndef centre(x):\n    return x - mean(x)",
        # tqdm starts a thread with its first bar, and keeps it: that is not the reader's.
        "from tqdm import tqdm\n\ndef centre(x):\n    return [x - x.mean() for _ in tqdm(range(3))][-1]",
    ],
)
def test_what_an_answer_may_do(centre, tmp_path):
    (tmp_path / "my_helpers.py").write_text("def mean(x):\n    return x.mean()\n")
    path = notebook(tmp_path / "a.ipynb", IMPORTS, centre)
    with contextlib.chdir(tmp_path):
        _, (graded,) = grade(path)
    assert states(graded)["centre"] == "passed"
    assert {p.name for p in tmp_path.iterdir()} - {"__pycache__"} == {"a.ipynb", "my_helpers.py"}


def test_of_one_notebook_the_reports_on_what_failed_stand_below_the_table(tmp_path):
    raises = "def plus_one(x):\n    raise ValueError('\x1b[2J')"
    path = notebook(tmp_path / "a.ipynb", IMPORTS, "def centre(x):\n    return -x", raises)
    text = table(path)
    for line in (
        "✗ The values around their mean (`centre`): not yet · 0 of 2 checks\n",
        "Why: To centre is to subtract the mean.\n",
    ):
        assert line in text, text
    assert "(`plus_one`): not yet, it raised" in text
    assert "`ValueError: \\x1b[2J`" in text and "\x1b" not in text
    assert "`Scale`" not in text, "it was not attempted"
    text = table(path, path)
    assert "Why:" not in text and "course check with its notebook alone, or --json" in text


def test_moved_renamed_extra_and_deleted_cells(tmp_path):
    """And an answer that is the starter, with a remark in it, is none."""
    cells = [
        code("# mine\nx = 3"),
        code(RIGHT["scale"], exercise="scale", role="starter"),
        "%matplotlib inline\n!ls",
        RIGHT["plus_one"],
        IMPORTS,
        "def helper(x):\n    return x.mean()",
        code("print('not what it was')", exercise="centre", role="starter"),
        "centre = lambda x: x - helper(x)",
    ]
    exit_code, (graded,) = grade(
        notebook(tmp_path / "other name.ipynb", *cells, course={"lesson": "01_small"})
    )
    assert (exit_code, states(graded)) == (0, ALL_PASSED)
    _, (graded,) = grade(notebook(tmp_path / "b.ipynb", *cells[:-1], course={"lesson": "01_small"}))
    assert states(graded) == ALL_PASSED | {"centre": "not attempted"}
    path = notebook(tmp_path / "c.ipynb", IMPORTS, STARTER)
    exit_code, (graded,) = grade(path)
    assert exit_code == 1 and set(states(graded).values()) == {"not attempted"}
    assert all(exercise["checks"] == [] for exercise in graded["exercises"])
    assert "· plus_one  not attempted" in table(path)


# Names of helpers that later cells of a lesson give to something else.
HELPERS = {
    "tensors": {"view_strides": "straight", "sliding_windows": "pieces"},
    "functions": {"gradient_reversal": "backward"},
    "amp": {"round_to_bfloat16": "half"},
    "compile": {"write_a_pass": "product"},
}


@pytest.mark.parametrize("topic", HELPERS)
def test_an_answer_has_its_own_helper_and_not_what_a_later_cell_calls_so(topic, tmp_path, monkeypatch):
    monkeypatch.delenv("COURSE_ROOT")
    whole = catalog.load()
    lesson = notebook_of(whole, whole.lesson(topic))
    for cell in lesson.cells:
        name = cell.metadata.get("course", {}).get("exercise")
        if role(cell) == "starter" and (helper := HELPERS[topic].get(name)):
            answer, source = whole.exercise(name).answer_name, whole.solution(name).source
            if name == "gradient_reversal":
                own = f"def {helper}(ctx, grad):\n    return -ctx.strength * grad, None"
                source = source.replace("return -ctx.strength * grad, None", f"return {helper}(ctx, grad)")
                cell.source = f"{source}\n\n{own}"
            else:
                source = re.sub(rf"\b{answer}\b", helper, source)
                cell.source = f"{source}\n\ndef {answer}(*args):\n    return {helper}(*args)"
    _, (graded,) = grade(notebook(tmp_path / "a.ipynb", *lesson.cells))
    attempted = {name: state for name, state in states(graded).items() if state != "not attempted"}
    assert attempted == {whole.card(name).answer_name: "passed" for name in HELPERS[topic]}, graded


def test_a_name_of_a_cell_that_is_gone_is_told_from_the_lesson(tmp_path, monkeypatch):
    monkeypatch.delenv("COURSE_ROOT")
    cells = [code("def sliding_windows(x, size, step=1):\n    return shares_storage(x, x)", role="starter")]
    _, (graded,) = grade(notebook(tmp_path / "a.ipynb", *cells))
    told = "`shares_storage` is defined in the cell that begins `def shares_storage(a, b):`: run it."
    assert next(one for one in graded["exercises"] if one["told_by"])["symptom"] == told
    cells.append("def shares_storage(a, b):\n    return nothing")
    _, (graded,) = grade(notebook(tmp_path / "a.ipynb", *cells))
    assert next(one for one in graded["exercises"] if one["told_by"])["symptom"] is None


def test_a_cell_that_is_not_python_fails_its_own_exercise(tmp_path):
    cells = [IMPORTS, "def centre(x):\n    return x -", RIGHT["plus_one"], RIGHT["scale"], "check(centre"]
    _, (graded,) = grade(notebook(tmp_path / "a.ipynb", *cells))
    assert states(graded) == ALL_PASSED | {"centre": "raised"}
    assert "SyntaxError: invalid syntax (cell 2, line 2)" in graded["exercises"][0]["checks"][0]["message"]


def test_what_is_not_a_notebook_is_said_and_the_others_are_graded(tmp_path):
    right = notebook(tmp_path / "right.ipynb", IMPORTS, *RIGHT.values())
    text = tmp_path / "text.ipynb"
    text.write_text("no JSON")
    other = notebook(tmp_path / "other.ipynb", "print('hello')")
    missing = tmp_path / "missing.ipynb"
    exit_code, graded = grade(text, right, other, missing, jobs=2)
    assert exit_code == 2
    assert [one["notebook"] for one in graded] == list(map(str, (text, right, other, missing)))
    assert [one["error"] for one in graded] == [
        "this is not a notebook: it is not JSON",
        None,
        "this notebook is not of this course: it holds no answer to any exercise",
        "there is no such file; there are other, right, text",
    ]
    assert states(graded[1]) == ALL_PASSED
    assert graded[0]["exercises"] == []
    text = table(text, right)
    assert "✗ this is not a notebook: it is not JSON" in text
    assert "2 notebooks: 3 of 3 exercises passed; 1 could not be graded" in text


def test_an_odd_file_costs_no_other_its_results(tmp_path):
    """Each of these has ended a run, or kept it from ending."""
    odd = {name: tmp_path / f"{name}.ipynb" for name in ("pipe", "loop")}
    os.mkfifo(odd["pipe"])
    odd["loop"].symlink_to(odd["loop"])
    right = [IMPORTS, *RIGHT.values()]
    not_text = notebook(tmp_path / os.fsdecode(b"caf\xe9.ipynb"), *right)
    forged = notebook(tmp_path / "a\n  ✓ centre passed.ipynb", *right)
    upwards = [f"class C{i}(C{i + 1}): pass" for i in range(1500)]
    last = "def centre(x):\n    return C0"
    deep = notebook(tmp_path / "deep.ipynb", *right, last, *upwards, "C1500 = object")
    blank = notebook(tmp_path / "blank.ipynb", *right, "def centre(x:" + "\n" * 60_000 + "x")
    given = [*odd.values(), not_text, forged, deep, blank]
    exit_code, graded = grade(*given)
    assert exit_code == 2 and [one["notebook"] for one in graded] == list(map(str, given))
    assert [one["error"] for one in graded[:2]] == [
        "this is a pipe or a device, not a notebook",
        "it cannot be read: Too many levels of symbolic links",
    ]
    assert states(graded[2]) == states(graded[3]) == ALL_PASSED
    assert all(states(one)["plus_one"] == "passed" for one in graded[4:])
    lines = table(not_text, forged).splitlines()
    assert sum(line.startswith("  ✓") for line in lines) == 6 and lines[0].isprintable()


def test_a_process_that_does_not_answer_costs_one_exercise_and_is_asked_again(tmp_path, monkeypatch):
    begin, asked = workers.Worker.call, []

    def silent(self, function, *args, **options):
        if "plus_one" in str(args):
            asked.append(1)
            raise workers.WorkersError("the warm server did not answer")
        return begin(self, function, *args, **options)

    monkeypatch.setattr(workers.Worker, "call", silent)
    exit_code, (graded,) = grade(notebook(tmp_path / "a.ipynb", IMPORTS, *RIGHT.values()))
    assert (exit_code, graded["error"], len(asked)) == (1, None, 4)
    assert states(graded) == ALL_PASSED | {"plus_one": "could not check"}


def test_what_dies_with_the_server_of_all_is_graded_again(tmp_path, monkeypatch):
    begin, killed = workers.Worker.call, []

    def meanwhile(self, function, *args, **options):
        if not killed:
            killed.append(client.current.process.pid)
            client.current.process.kill()
        return begin(self, function, *args, **options)

    monkeypatch.setattr(workers.Worker, "call", meanwhile)
    _, (graded,) = grade(notebook(tmp_path / "a.ipynb", IMPORTS, *RIGHT.values()))
    assert killed and states(graded) == ALL_PASSED


def test_results_come_in_the_order_of_the_notebooks_and_as_soon_as_they_are_there(tmp_path, monkeypatch):
    wrong = "def centre(x):\n    return x / x.mean()"
    answers = [wrong if i % 3 else RIGHT["centre"] for i in range(6)]
    paths = [notebook(tmp_path / f"{i}.ipynb", IMPORTS, answer) for i, answer in enumerate(answers)]
    seen, real = [], attempt.report

    def noting(given, *args, **options):
        seen.append(out.getvalue().count('"notebook":'))
        return real(given, *args, **options)

    monkeypatch.setattr(attempt, "report", noting)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert command.run(paths, True, 2) == 1
    assert seen[0] == 0 and seen[-1] >= 1
    graded = json.loads(out.getvalue())["notebooks"]
    assert [one["notebook"] for one in graded] == list(map(str, paths))
    assert [states(one)["centre"] for one in graded] == ["wrong" if i % 3 else "passed" for i in range(6)]


def test_the_same_notebook_gives_the_same_result_and_the_record_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_RECORD", str(tmp_path / "record.jsonl"))
    path = notebook(tmp_path / "a.ipynb", IMPORTS, "def centre(x):\n    return x * torch.rand(3)")
    (_, (first,)), (_, (second,)) = grade(path), grade(path)
    for graded in (first, second):
        for one in graded["exercises"][0]["checks"]:
            del one["seconds"]
    assert first == second and first["exercises"][0]["state"] == "wrong"
    assert not (tmp_path / "record.jsonl").exists()


# A prediction, a function, a class, one with isolated checks and one with checks on ranks.
KINDS = ("predict_strides", "sliding_windows", "mini_module", "set_seed", "ring_all_reduce")


def test_every_kind_of_exercise(tmp_path, monkeypatch):
    monkeypatch.delenv("COURSE_ROOT")
    course = catalog.load()
    paths = [notebook(tmp_path / f"{name}.ipynb", course.solution(name).source) for name in KINDS]
    _, graded = grade(*paths, jobs=2)
    for name, one in zip(KINDS, graded, strict=True):
        (exercise,) = [e for e in one["exercises"] if e["name"] == course.card(name).answer_name]
        assert exercise["state"] == "passed", exercise
        assert all(e["state"] == "not attempted" for e in one["exercises"] if e is not exercise)


# --- hostile notebooks -------------------------------------------------------------------------------


def cells_with(source):
    """A notebook in which this is the answer to `centre`, and all else is right."""
    return [IMPORTS, source, RIGHT["plus_one"], RIGHT["scale"], *CHECKS]


@pytest.fixture(scope="module")
def hostile(course, tmp_path_factory):
    """What came of every hostile notebook, by name."""
    folder = tmp_path_factory.mktemp("hostile")
    shared = set(Path("/dev/shm").glob("psm*"))
    paths = [notebook(folder / f"{one.name}.ipynb", *cells_with(one.source)) for one in HOSTILE]
    exit_code, graded = grade(*paths, jobs=3)
    assert exit_code == 1
    assert [one["notebook"] for one in graded] == list(map(str, paths))
    assert left_running() == []
    assert sorted(folder.iterdir()) == sorted(paths)
    assert [name for name in Path("/dev/shm").glob("psm*") if name not in shared] == []
    return dict(zip((one.name for one in HOSTILE), graded, strict=True))


@pytest.mark.parametrize("one", HOSTILE, ids=lambda one: one.name)
def test_hostile(one, hostile):
    graded = hostile[one.name]
    found = states(graded)
    state = found.pop("centre")
    assert state in one.state.split(" or "), graded
    assert found == {"plus_one": "passed", "Scale": "passed"}, graded
    if state == "passed":
        return
    failing = next(c for c in graded["exercises"][0]["checks"] if c["state"] == state)
    assert failing["message"] and one.says in failing["message"]
    assert len(failing["message"]) < 3000


def test_no_answer_makes_another_one_pass(tmp_path):
    """Whatever the first answer does to the process, a wrong one after it stays wrong."""
    wrong = "def plus_one(x):\n    return x"
    names = "makes_later_checks_pass, torch_replaced, expect_replaced, thread_that_meddles, mode_left_on"
    chosen = [one for one in HOSTILE if one.name in names.split(", ")]
    paths = [notebook(tmp_path / f"{one.name}.ipynb", IMPORTS, one.source, wrong) for one in chosen]
    _, graded = grade(*paths)
    assert [states(one)["plus_one"] for one in graded] == ["wrong"] * 5


@pytest.mark.parametrize(
    "metadata",
    [
        {"lesson": "01_small", "state": "passed", "passed": 3},
        {"lesson": "99_easy"},
        {"lesson": ["01_small"]},
        "01_small",
    ],
)
def test_what_else_is_in_a_notebook_decides_nothing(tmp_path, metadata):
    """Edited and removed checks, a forged report among the outputs, forged metadata."""
    passed = {"output_type": "stream", "name": "stdout", "text": "✓ centre: passed · 2 checks\n"}
    forged = {**code("check(centre)", exercise="centre", role="check", state="passed"), "outputs": [passed]}
    cells = [
        "import torch\nfrom torch import nn\nONE = 1",
        code("def centre(x):\n    return x", exercise="centre", role="starter"),
        "class check:\n    state = 'passed'\n    def __init__(self, answer):\n        print('passed')",
        forged,
        code("def plus_one(x):\n    return x + 1", exercise="plus_one", role="starter"),
        code("# the answer was here", exercise="scale", role="starter"),
    ]
    exit_code, (graded,) = grade(notebook(tmp_path / "a.ipynb", *cells, course=metadata))
    assert exit_code == 1
    assert states(graded) == {"centre": "wrong", "plus_one": "passed", "Scale": "not attempted"}


def test_nothing_that_an_answer_prints_reaches_the_output(tmp_path):
    """In a process of its own, whose output is a pipe."""
    forged = next(one for one in HOSTILE if one.name == "forged_report").source
    prints = "import os\n\ndef plus_one(x):\n    print('{}')\n    os.write(1, b'[]')\n    os.write(2, b'x')\n"
    prints += "    return x + 1"
    path = notebook(tmp_path / "a.ipynb", IMPORTS, forged, prints, RIGHT["scale"])
    program = (
        "import sys, pathlib\nfrom course_utils.grading import command\n"
        f"sys.exit(command.run([pathlib.Path({str(path)!r})], True, 1))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr == ""
    (graded,) = json.loads(done.stdout)["notebooks"]
    assert states(graded) == ALL_PASSED | {"centre": "died"}


def test_deleted_files_take_nothing_away(tmp_path, monkeypatch):
    root = make_course(tmp_path / "course")
    monkeypatch.setenv("COURSE_ROOT", str(root))
    path = tmp_path / "work" / "a.ipynb"
    deletes = f"""
import shutil

def centre(x):
    shutil.rmtree({str(root)!r}, ignore_errors=True)
    shutil.rmtree({str(path.parent)!r}, ignore_errors=True)
    return x / x.mean()
"""
    notebook(path, *cells_with(deletes))
    wrong = notebook(
        tmp_path / "work" / "b.ipynb", IMPORTS, RIGHT["centre"], "def plus_one(x):\n    return x + 2"
    )
    _, (first, second) = grade(path, wrong, jobs=1)
    assert not root.exists() and not path.exists()
    assert states(first) == ALL_PASSED | {"centre": "wrong"}
    assert states(second) == {"centre": "passed", "plus_one": "wrong", "Scale": "not attempted"}
    assert (
        second["exercises"][1]["symptom"] == "Every element of the result is 1 more than what was expected."
    )


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("while True: pass", "timed out"),
        ("os._exit(0)", "died"),
        ("return torch.ones(10**11)", "raised"),
        ("return x * self.weight.item() + self.weight - 1", "wrong"),
    ],
)
def test_an_isolated_check_fails_by_name_too(tmp_path, body, state):
    """`scale` has a check that runs in a process of its own; only there the input has one element."""
    trap = f"def forward(self, x):\n        if len(x) == 1:\n            {body}"
    answer = "import os\n" + RIGHT["scale"].replace("def forward(self, x):", trap)
    _, (graded,) = grade(notebook(tmp_path / "a.ipynb", IMPORTS, RIGHT["centre"], RIGHT["plus_one"], answer))
    assert states(graded) == ALL_PASSED | {"Scale": state}
    assert [c["state"] for c in graded["exercises"][2]["checks"]] == ["passed", state]
    assert left_running() == []


def test_an_interrupt_ends_everything(tmp_path):
    """In a process of its own: Ctrl-C while answers run."""
    path = notebook(
        tmp_path / "a.ipynb",
        *cells_with("import itertools\n\ndef centre(x):\n    return sum(itertools.repeat(0))"),
    )
    program = (
        "import sys, pathlib\nfrom course_utils.grading import command\n"
        "print('ready', flush=True)\n"
        f"sys.exit(command.run([pathlib.Path({str(path)!r})] * 6, True, 2))"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # What a shell runs in the background ignores interrupts, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert running.stdout.readline() == b"ready\n"
    family = psutil.Process(running.pid)
    while len(family.children(recursive=True)) < 3:  # the server and a worker for each job
        assert running.poll() is None
        time.sleep(0.02)
    below = family.children(recursive=True)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode not in (0, 1, 2), said.decode()[-3000:]
    assert psutil.wait_procs(below, timeout=60)[1] == []
