"""Installs the course: says first what is fetched and how big it is, then shows in one line how far it is.

Standard library only, and nothing of this package: the Makefile runs this file with the Python of `.venv`,
which has nothing but pip then.

    .venv/bin/python course_utils/install.py lab -e .

The first argument is what `make` was asked for, the others are for `pip install`. What pip says goes to
a file, `.venv/install.log`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote

VENV = Path(sys.prefix)
LOG = VENV / "install.log"
TEMPORARY = VENV / "tmp"  # pip's: as large as what it fetches, and some machines have little room in /tmp
HALF_DONE = VENV / "half-installed"  # while this file is there, the Makefile makes the environment anew
PIP = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
PINNED = ["-c", "constraints.txt"]
CPU_BUILDS = "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"
# Measured with torch 2.13 and what it needs. README.md says the same.
WITH_CUDA = "about 2.7 GB, unpacked 5 GB"
WITHOUT_CUDA = "about 0.2 GB, unpacked 0.8 GB"
ON_MACOS = "about 0.1 GB, unpacked 0.5 GB"
ALL_ELSE = "about 0.2 GB, unpacked up to 1 GB"


def main(goal: str, *wanted: str) -> int:
    """Installs what is `wanted`, for `make` of this goal; the exit code. Raises `SystemExit` if pip fails."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = {"PIP_QUIET": "0", "PIP_PROGRESS_BAR": "off", "TMPDIR": str(TEMPORARY)}
    shutil.rmtree(TEMPORARY, ignore_errors=True)
    TEMPORARY.mkdir()
    try:
        if importlib.util.find_spec("pip") is None:
            subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
        print(f"Installing the course into {VENV}, once. This takes some minutes.", flush=True)
        settings |= choose(goal, torch_to_install(settings))
        run(wanted, settings)
    except (KeyboardInterrupt, EOFError):
        print(f"\nStopped. `make {goal}` starts anew.")
        return 130
    finally:
        shutil.rmtree(TEMPORARY, ignore_errors=True)
    return 0


def torch_to_install(settings: dict[str, str]) -> str | None:
    """The name of the file of torch that pip, as it is set here, would install; None where it would install
    none or does not know. It is stopped once it has said so: some versions fetch the whole file to answer."""
    pip = subprocess.Popen(
        [*PIP, *PINNED, "--dry-run", "--no-deps", "--retries", "1", "torch"],
        env={**os.environ, **settings, "PIP_VERBOSE": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with pip:
        try:
            names = (re.search(r"\btorch-[^/\s]+?\.whl", unquote(line)) for line in pip.stdout)
            return next((name[0] for name in names if name), None)
        finally:
            pip.kill()


def choose(goal: str, torch: str | None) -> dict[str, str]:
    """Says how big it is, and offers a torch without CUDA where one with CUDA would come and no GPU is.
    Returns what pip has to be told to take that: nothing where nobody is asked, or says no."""
    if torch is None:
        return {}
    pypi = sys.platform == "linux" and "+" not in torch  # another one comes by how pip is set here
    size = f"with CUDA, {WITH_CUDA}" if pypi else WITHOUT_CUDA if "+cpu" in torch else "as pip is set here"
    print(f"    {torch}: {ON_MACOS if sys.platform == 'darwin' else size}")
    print(f"    JupyterLab and all else: {ALL_ELSE}", flush=True)
    if not pypi or has_nvidia_gpu():
        return {}
    print(f"No NVIDIA GPU was found here. This line installs a torch without CUDA, {WITHOUT_CUDA}:")
    print(f"    make {goal} {CPU_BUILDS}", flush=True)
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or "CI" in os.environ:
        return {}
    answer = input("Install that one now? [Y/n] ")
    return {} if answer.strip().lower().startswith("n") else dict([CPU_BUILDS.split("=", 1)])


def has_nvidia_gpu() -> bool:
    """True if NVIDIA's driver is here and knows a GPU."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU" in listed.stdout


def run(wanted: tuple[str, ...], settings: dict[str, str]) -> None:
    """Runs pip and shows how far it is. Raises `SystemExit` with the end of what pip says if it fails."""
    began, before, shown = time.time(), packages(), ""
    with LOG.open("w") as log:
        env = {**os.environ, **settings}
        pip = subprocess.Popen(
            [*PIP, *PINNED, *wanted], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        while pip.poll() is None:
            time.sleep(0.2)
            shown = show(how_far(LOG.read_text(errors="replace"), before), shown)
    finally:
        pip.terminate()
        pip.wait()
        said = LOG.read_text(errors="replace")
        how_far(said, before)
    if sys.stdout.isatty():
        show("", shown)
    if pip.returncode:
        end = "\n".join(f"    {line}" for line in said.splitlines()[-12:])
        raise SystemExit(f"pip could not install the course. The end of what it says:\n\n{end}\n\nAll: {LOG}")
    HALF_DONE.unlink(missing_ok=True)
    print(f"Installed in {time.time() - began:.0f} s. What pip said is in {LOG}", flush=True)


def how_far(log: str, before: set[Path]) -> str:
    """What pip does by its log, and how far it is. Where it writes packages, that is noted in `HALF_DONE`."""
    if listed := re.search(r"^Installing collected packages: (.+)", log, re.MULTILINE):
        HALF_DONE.touch()
        names = listed[1].split(", ")
        done = min(len(packages() - before), len(names) - 1)  # they are installed in this order
        return f"Installing: {names[done]}, {done + 1} of {len(names)}"
    found = len(re.findall(r"^(?:Collecting|Processing) ", log, re.MULTILINE))
    line = f"Fetching: {found} package{'s' * (found != 1)} found"
    files = re.findall(r"^ +(?:Downloading|Using cached) (?:\S*/)?(\S+) \((.+)\)", log, re.MULTILINE)
    if not files:
        return line
    name, size, so_far = unquote(files[-1][0]), files[-1][1], 0
    with contextlib.suppress(FileNotFoundError):  # pip has removed it since it was found
        so_far = max((path.stat().st_size for path in TEMPORARY.glob(f"*/{name}")), default=0)
    return f"{line}, {so_far / 1e6:.1f} MB of {size}: {name}"


def packages() -> set[Path]:
    """What is installed whole: of each package the file that pip writes last."""
    return set(VENV.glob("lib/python*/site-packages/*.dist-info/RECORD"))


def show(line: str, shown: str) -> str:
    """Writes a line over the last one where that was another; without a terminal, only the first word of it,
    in a line of its own. Returns what is shown."""
    width = shutil.get_terminal_size().columns - 1
    at_terminal = sys.stdout.isatty()
    now = line if at_terminal else line.split(":")[0]
    if now != shown:
        print(f"\r{now[:width]:{width}}\r" if at_terminal else f"{now} ...\n", end="", flush=True)
    return now


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
