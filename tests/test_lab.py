"""`course lab`: what it copies, what it leaves alone, and a real JupyterLab that starts and ends."""

import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import psutil
import pytest
from jupyter_client import BlockingKernelClient
from nbformat.sign import NotebookNotary
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_utils import cli
from course_utils.reader import lab, workspace
from tests.files import FLIP_ROWS, write

LESSONS = ("00_start_here", "01_tensors")


def ship(root: Path, slug: str, version: str = "one") -> Path:
    """Puts a lesson into the course, as `course build` stamps it."""
    path = root / "notebooks" / f"{slug}.ipynb"
    path.parent.mkdir(exist_ok=True)
    stamp = {"lesson": slug, "source_digest": "s", "cells_digest": version}
    cells = [new_markdown_cell(f"# {slug}, version {version}"), new_code_cell("answer = 1")]
    nbformat.write(new_notebook(cells=cells, metadata={"course": stamp}), path)
    return path


def answer(path: Path) -> str:
    """What a reader does: another cell, and the file saved with all its metadata. Returns the text."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(new_code_cell("answer = 42"))
    nbformat.write(notebook, path)
    return path.read_text()


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A course of two lessons. What Jupyter keeps for a reader is in the same temporary folder."""
    root = tmp_path / "a course"
    root.mkdir()
    for slug in LESSONS:
        ship(root, slug)
    (root / "notebooks" / "source").mkdir()
    (root / "notebooks" / "scratch.ipynb").write_text("not a lesson")
    monkeypatch.setenv("COURSE_ROOT", str(root))
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for kind in ("CONFIG", "DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / "jupyter" / kind.lower()))
    return root


def same_but_for_the_language(copy: Path, shipped: Path) -> None:
    """The copy is what is shipped, with the language as a kernel here describes it."""
    copied, original = (json.loads(path.read_text(encoding="utf-8")) for path in (copy, shipped))
    assert copied["metadata"].pop("language_info")["version"] == platform.python_version()
    original["metadata"].pop("language_info", None)
    assert copied == original


# --- the reader's copies -----------------------------------------------------------------------------


def test_missing_lessons_are_copied_and_nothing_else(root):
    found = workspace.copy_missing(root)
    assert (found.copied, found.newer) == (list(LESSONS), [])
    names = sorted(path.name for path in (root / "workspace").iterdir())
    assert names == [f"{slug}.ipynb" for slug in LESSONS]
    for slug in LESSONS:
        same_but_for_the_language(root / "workspace" / f"{slug}.ipynb", root / "notebooks" / f"{slug}.ipynb")
    # It is trusted, so that its outputs are shown.
    copy = nbformat.read(root / "workspace" / "01_tensors.ipynb", as_version=4)
    assert NotebookNotary().check_signature(copy)


COPIES = FLIP_ROWS.replace("minutes=5,", "minutes=5, copies=copy_of,").replace("flip_rows", "flip_copy")
COPIES = COPIES.replace(
    "exercise = ",
    "def copy_of(number):\n    return f'class FlipCopy:\\n    copy = {number}\\n'\n\n\nexercise = ",
)
COPIES = COPIES.replace(
    COPIES[COPIES.index("def flip_copy(x)") : COPIES.index("@exercise.check")],
    "class FlipCopy:\n    copy = 0\n\n\n",
)


def test_a_lesson_is_copied_with_the_copies_that_this_reader_has(root, monkeypatch):
    monkeypatch.setenv("COURSE_RECORD", str(root / "workspace" / ".record.jsonl"))
    fence = "# Copies\n\n```{exercise} flip_copy\n```\n"
    write(root, {"exercises/copies/flip_copy.py": COPIES, "notebooks/source/02_copies.md": fence})
    path = ship(root, "02_copies")
    notebook = nbformat.read(path, as_version=4)
    made_for = {"course": {"exercise": "flip_copy", "role": "starter"}}
    notebook.cells += [new_code_cell(f"class FlipCopy:\n    copy = {n}", metadata=made_for) for n in (0, 3)]
    nbformat.write(notebook, path)
    workspace.copy_missing(root)
    drawn = [e["number"] for e in map(json.loads, (root / "workspace" / ".record.jsonl").open())]
    beside = workspace.copy_beside(root, "copies")
    for copy in (root / "workspace" / path.name, beside):
        read = nbformat.read(copy, as_version=4)
        sources = [cell.source for cell in read.cells]
        assert sources[1:] == ["answer = 1", *(f"class FlipCopy:\n    copy = {n}" for n in (*drawn, 3))]
        assert read.metadata["course"] == notebook.metadata["course"]
        assert NotebookNotary().check_signature(read)


def test_what_is_there_stays_and_what_was_deleted_comes_back(root):
    workspace.copy_missing(root)
    kept = answer(root / "workspace" / "01_tensors.ipynb")
    (root / "workspace" / "00_start_here.ipynb").unlink()
    found = workspace.copy_missing(root)
    assert (found.copied, found.newer) == (["00_start_here"], [])
    assert (root / "workspace" / "01_tensors.ipynb").read_text() == kept


@pytest.mark.parametrize("there", ["", "{", "[]", "null", '{"metadata": {"course": 3}}', "\0\xff", None])
def test_whatever_is_there_is_left_alone(root, there):
    (root / "workspace").mkdir()
    mine = root / "workspace" / "01_tensors.ipynb"
    mine.symlink_to("unmounted/01_tensors.ipynb") if there is None else mine.write_text(there)
    ship(root, "01_tensors", "two")
    found = workspace.copy_missing(root)
    assert (found.copied, found.newer) == (["00_start_here"], [])
    assert mine.is_symlink() if there is None else mine.read_text() == there


def test_a_file_that_appears_in_the_last_moment_is_not_replaced(root, monkeypatch):
    mine = root / "workspace" / "00_start_here.ipynb"
    write = Path.write_bytes

    def write_slowly(path, data):
        mine.write_text("mine")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", write_slowly)
    assert workspace.copy_missing(root).copied == ["01_tensors"]
    assert mine.read_text() == "mine"
    assert sorted(p.name for p in mine.parent.iterdir()) == [f"{slug}.ipynb" for slug in LESSONS]


def test_the_missing_lessons_are_copied_by_a_command_of_their_own(root, capsys):
    assert cli.main(["copy"]) == 0
    assert capsys.readouterr().out == f"Copied to workspace/: {', '.join(LESSONS)}\n"
    assert sorted(path.stem for path in (root / "workspace").iterdir()) == [*LESSONS]
    assert cli.main(["copy"]) == 0
    assert capsys.readouterr().out == ""


def test_a_newer_lesson_is_named_until_the_reader_has_it(root):
    workspace.copy_missing(root)
    answer(root / "workspace" / "01_tensors.ipynb")
    path = ship(root, "01_tensors")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="another torch\n")]
    nbformat.write(notebook, path)
    assert workspace.copy_missing(root).newer == []  # other outputs are no newer lesson
    ship(root, "01_tensors", "two")
    assert workspace.copy_missing(root).newer == workspace.copy_missing(root).newer == ["01_tensors"]
    answer(workspace.copy_beside(root, "01_tensors"))
    assert workspace.copy_missing(root).newer == []
    ship(root, "01_tensors", "three")
    assert workspace.copy_missing(root).newer == ["01_tensors"]


@pytest.mark.parametrize("name", ["1", "01", "tensors", "01_tensors", "01_tensors.ipynb"])
def test_fresh_copies_get_names_that_are_free(root, name, capsys):
    workspace.copy_missing(root)
    mine = answer(root / "workspace" / "01_tensors.ipynb")
    assert lab.put_beside(name) == lab.put_beside(name) == 0
    said = capsys.readouterr().out
    for fresh in ("01_tensors.new.ipynb", "01_tensors.new2.ipynb"):
        same_but_for_the_language(root / "workspace" / fresh, root / "notebooks" / "01_tensors.ipynb")
        assert fresh in said
    assert (root / "workspace" / "01_tensors.ipynb").read_text() == mine


def test_a_workspace_that_cannot_be_written_to_and_a_course_without_lessons_are_named(root, capsys):
    (root / "workspace").write_text("a file")
    assert lab.run(browser=False, port=None) == 1
    assert lab.put_beside("01_tensors") == 1
    assert capsys.readouterr().out.count("cannot be copied") == 2
    for slug in LESSONS:
        (root / "notebooks" / f"{slug}.ipynb").unlink()
    assert lab.run(browser=False, port=None) == 1
    assert "course build" in capsys.readouterr().out


def test_a_port_that_is_taken_is_said_with_one_that_is_free(root, capsys):
    with socket.socket() as other:
        other.bind(("localhost", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert lab.run(browser=False, port=taken) == 1
    said = capsys.readouterr().out.splitlines()[-1]
    start = f"JupyterLab was not started: port {taken} is taken by another program; another one is free: "
    found = re.fullmatch(re.escape(start) + r"\S*course lab --port (\d+)\.", said)
    with socket.socket() as free:
        free.bind(("localhost", int(found[1])))


# --- JupyterLab --------------------------------------------------------------------------------------


class Lab:
    """`course lab` in a process of its own, as a reader starts it."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "course_utils.cli", "lab", "--no-browser", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a Ctrl-C for it is not one for us
        )
        self.lines: list[str] = []
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("http"):
                self.ready.set()
        self.ready.set()

    @property
    def said(self) -> str:
        return "\n".join(self.lines)

    def address(self) -> str:
        assert self.ready.wait(60), self.said
        return next((line for line in self.lines if line.startswith("http")), "") or pytest.fail(self.said)

    def ask(self, path: str, data: dict | None = None, token: bool = True) -> bytes:
        start, _, given = self.address().partition("/lab/tree/00_start_here.ipynb?token=")
        assert given
        request = urllib.request.Request(
            start + path, json.dumps(data).encode() if data else None, {"Authorization": f"token {given}"}
        )
        if not token:
            request.remove_header("Authorization")
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.read()

    def start_kernel(self) -> psutil.Process:
        """Starts a kernel, waits until it can take a cell, and returns its process."""
        started = json.loads(self.ask("/api/kernels", {"name": "python3"}))
        connection = Path(os.environ["JUPYTER_RUNTIME_DIR"], f"kernel-{started['id']}.json")
        client = BlockingKernelClient(connection_file=str(connection))
        client.load_connection_file()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=60)
            ask = {"pid": "__import__('os').getpid()"}
            reply = client.execute("", user_expressions=ask, reply=True, timeout=60)
        finally:
            client.stop_channels()
        return psutil.Process(int(reply["content"]["user_expressions"]["pid"]["data"]["text/plain"]))

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        code = self.process.wait(60)
        self.reader.join(60)
        return code


@pytest.fixture
def start(root):
    started: list[Lab] = []

    def start(*arguments: str) -> Lab:
        started.append(Lab(*arguments))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        one.reader.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_reader_gets_lesson_00_in_this_python(root, start, tmp_path, monkeypatch):
    # A kernel of the same name that the reader has installed for something else, in both ways.
    for folder in (tmp_path / "elsewhere", tmp_path / "jupyter" / "data"):
        kernel = folder / "kernels" / "python3"
        kernel.mkdir(parents=True)
        spec = {"argv": ["/bin/false"], "display_name": "Other", "language": "python"}
        (kernel / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "elsewhere"))
    port = free_port()
    running = start("--port", str(port))

    assert running.address().split("/")[2].endswith(f":{port}")
    assert "Copied to workspace/: 00_start_here, 01_tensors" in running.lines
    assert b"jupyter-config-data" in running.ask("/lab/tree/00_start_here.ipynb")
    listed = json.loads(running.ask("/api/contents"))["content"]
    assert sorted(file["name"] for file in listed) == [f"{slug}.ipynb" for slug in LESSONS]
    with pytest.raises(urllib.error.HTTPError, match="403"):
        running.ask("/api/contents", token=False)
    news = json.loads(running.ask("/lab/api/settings/@jupyterlab/apputils-extension:notification"))
    assert news["schema"]["properties"]["fetchNews"]["default"] == "false"

    kernels = json.loads(running.ask("/api/kernelspecs"))["kernelspecs"]
    assert list(kernels) == ["python3"]
    kernel = running.start_kernel()
    assert kernel.cmdline()[0] == sys.executable

    assert running.end(signal.SIGINT) == 0
    assert not kernel.is_running()
    assert "?" not in running.said.replace("?token=", "")
    assert "Traceback" not in running.said


def test_a_second_start_names_what_is_newer_and_when_it_is_killed_no_kernel_stays(root, start):
    workspace.copy_missing(root)
    ship(root, "01_tensors", "two")
    running = start()
    kernel = running.start_kernel()
    assert "Copied" not in running.said
    assert "course copy 01_tensors" in running.said
    assert "00_start_here than" not in running.said
    # Another one finds the port taken.
    port = running.address().split("/")[2].rpartition(":")[2]
    other = start("--port", port)
    assert other.process.wait(60) == 1
    other.reader.join()
    assert f"port {port} is taken by another program; another one is free" in other.said
    assert "Traceback" not in other.said
    running.process.kill()
    psutil.wait_procs([kernel], timeout=60)
    assert not kernel.is_running()
