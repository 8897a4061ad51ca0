"""Installs what a lesson needs and Colab lacks, and says what. The set-up cell runs this file before anything
is imported.

Standard library only, and nothing of this package: it runs when these may not be there yet. Nothing here
depends on torch, so pip has no reason to touch the one that is there.
"""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

# What the package imports in a notebook besides torch, and what brings it. The rest of what pyproject.toml
# lists is for the terminal and for authors.
NEEDS = {
    "cloudpickle": "cloudpickle>=3",
    "fsrs": "fsrs>=6",
    "ipywidgets": "ipywidgets>=8",
    "markdown_it": "markdown-it-py",
    "matplotlib": "matplotlib",
    "packaging": "packaging",
    "psutil": "psutil",
}


def install_missing() -> list[str]:
    """Installs the needs that cannot be imported, and returns them; where none is missing, pip is not run.

    Raises `RuntimeError` where pip fails. A need of an older version than asked for is left as it is:
    other packages, and the kernel itself, may have it in use.
    """
    missing = [requirement for module, requirement in NEEDS.items() if find_spec(module) is None]
    if missing:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *missing]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode:
            said = " ".join(done.stderr.split())
            why = RuntimeError(f"pip could not install {', '.join(missing)}: {said}")
            why._render_traceback_ = lambda: [str(why)]  # this sentence instead of a traceback
            raise why
        importlib.invalidate_caches()
    return missing


def report(installed: list[str]) -> str:
    """Where the course is, what was installed for it, and which torch it runs with."""
    said = f"The course is in {Path(__file__).resolve().parent.parent}."
    said += f" Installed: {', '.join(installed)}." if installed else " Nothing had to be installed."
    with contextlib.suppress(metadata.PackageNotFoundError):
        said += f" It runs with the torch that is here, {metadata.version('torch')}."
    return said


if __name__ == "__main__":
    print(report(install_missing()))
