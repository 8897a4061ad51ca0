"""`course lab`: the reader's copies of the lessons, and JupyterLab on them."""

from __future__ import annotations

import errno
import functools
import os
import secrets
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from traitlets import List, Unicode

from course_utils import places
from course_utils.lessons.catalog import load
from course_utils.places import default_root
from course_utils.reader import workspace

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp

SETTINGS = Path(__file__).resolve().parent / "lab_settings"
FIRST = "00_start_here.ipynb"


class OnlyThisPython(KernelSpecManager):
    """What JupyterLab offers as kernels: it looks nowhere, so that `python3` is the Python that this is."""

    kernel_dirs = List(Unicode(), default_value=[])

    def _kernel_dirs_default(self) -> list[str]:
        return []

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Its kernels say nothing in the terminal where the reader looks for the address."""
        spec = super().get_kernel_spec(kernel_name)
        spec.argv = [*spec.argv, "--log-level=ERROR"]
        return spec


def run(browser: bool, port: int | None, ip: str | None = None) -> int:
    """Copies the lessons that are missing and serves JupyterLab until Ctrl-C. Returns the exit code."""
    if code := copy_missing():
        return code
    if port is not None and (trouble := _trouble_with(port)):
        print(f"JupyterLab was not started: {trouble}.")
        return 1
    root = default_root()
    notebook, said = _where_the_reader_stopped(root)
    print("\n".join(said), end="\n" * bool(said))
    _serve(places.workspace(root), browser, port, ip, notebook)
    return 0


def copy_missing() -> int:
    """Copies the lessons that are missing, and names those that are newer. Returns the exit code."""
    root = default_root()
    if not workspace.shipped_lessons(root):
        print(f"There are no lessons in {root / 'notebooks'}. This makes them: {_course()} build")
        return 1
    try:
        found = workspace.copy_missing(root)
    except OSError as error:
        print(f"The lessons cannot be copied to {places.workspace(root)}: {error.strerror or error}")
        return 1
    if found.copied:
        print(f"Copied to workspace/: {', '.join(found.copied)}")
    for slug in found.newer:
        print(f"The course has a newer {slug} than your copy.")
        print(f"To have it beside yours: {_course()} copy {slug}")
    return 0


def put_beside(name: str) -> int:
    """Puts a fresh copy of a lesson beside the reader's. Returns the exit code."""
    try:
        path = workspace.copy_beside(default_root(), name)
    except workspace.NoSuchLesson as error:
        print(error)
        return 2
    except OSError as error:
        print(f"The lesson cannot be copied: {error.strerror or error}")
        return 1
    print(f"A fresh copy is in workspace/{path.name}. Nothing that was there has changed.")
    return 0


def _course() -> str:
    """The command `course` as the reader has to type it here: it may not be on their path."""
    ours = Path(sys.executable).parent / "course"
    if shutil.which("course") == str(ours):
        return "course"
    return str(ours.relative_to(Path.cwd()) if ours.is_relative_to(Path.cwd()) else ours)


def _where_the_reader_stopped(root: Path) -> tuple[str, list[str]]:
    """The notebook of the lesson of which something was last recorded, without one the first; and lines that
    say which exercise is to be gone on with, and how its names are had again."""
    from course_utils.reader.record import open_record
    from course_utils.reader.stopped import lesson_of_last, stopped_at

    course, rows = load(root), open_record().summary()
    lesson = lesson_of_last(course, rows)
    if lesson is None:
        return FIRST, []
    said = []
    if name := stopped_at(course, lesson, rows):
        what, where = "You stopped at" if name in rows else "Next is", f"{lesson.number:02d} {lesson.title}"
        said = [
            f"{what} {course.card(name).full_name} in {where}.",
            "This runs what it needs, in the cell below the set-up or in any cell of the lesson:",
            "    import course_utils; course_utils.resume()",
        ]
    return lesson.notebook.name, said


def _trouble_with(port: int) -> str | None:
    """Why the server cannot have this port, and what to type instead; None where it can."""
    from tornado.netutil import bind_sockets

    def refused(port: int) -> OSError | None:
        try:
            for one in bind_sockets(port, "localhost"):
                one.close()
        except OSError as error:
            return error
        return None

    if (error := refused(port)) is None:
        return None
    free = next((one for one in range(max(port + 1, 8888), 2**16) if refused(one) is None), 0)
    other = f"; another one is free: {_course()} lab --port {free}" if free else ""
    taken_by = "is taken by another program" if error.errno == errno.EADDRINUSE else "cannot be used here"
    return f"port {port} {taken_by}{other}"


def _serve(folder: Path, browser: bool, port: int | None, ip: str | None, notebook: str) -> None:
    from jupyterlab.labapp import LabApp

    page = f"/lab/tree/{notebook}" if (folder / notebook).exists() else "/lab"
    token = secrets.token_hex(24)
    arguments = [
        f"--ServerApp.root_dir={folder}",
        f"--ServerApp.open_browser={browser}",
        f"--IdentityProvider.token={token}",
        # Lessons run in the Python that this is, whatever other kernels the reader has installed.
        "--ServerApp.kernel_spec_manager_class=course_utils.reader.lab.OnlyThisPython",
        f"--LabApp.default_url={page}",
        f"--LabApp.app_settings_dir={SETTINGS}",  # no question about news
        f"--LabApp.workspaces_dir={folder / '.lab'}",  # tabs of other projects stay there
        "--Application.log_level=ERROR",
    ]
    if port is not None:
        arguments += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if ip is not None:
        arguments.append(f"--ServerApp.ip={ip}")
    if os.geteuid() == 0:
        arguments.append("--ServerApp.allow_root=True")
    server = LabApp.initialize_server(arguments)
    _stop_without_a_question(server)
    url = server.connection_url.rstrip("/")
    if ip == "0.0.0.0":  # everywhere: it says the name of the container then, which nobody else knows
        url = f"http://localhost:{server.port}{urlsplit(url).path}"
    address = f"{url}{page}?token={token}"
    said = f"\nJupyterLab is running. Ctrl-C ends it.\n\n{address}\n"
    server.io_loop.add_callback(functools.partial(print, said, flush=True))
    server.start()


def _stop_without_a_question(server: ServerApp) -> None:
    """Ctrl-C, and a terminal that is closed, stop the server and its kernels. Its own way is to ask at a
    terminal, and elsewhere to leave the kernels alone."""
    stopping = False

    def stop(*_: Any) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            server.stop(from_signal=True)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, stop)
