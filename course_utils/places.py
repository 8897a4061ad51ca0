"""Where the course's files lie, and where the reader's do: in a clone beside this package; installed from a
wheel, the course lies in site-packages, and the reader's files in the folder where they work."""

import os
from contextlib import suppress
from pathlib import Path

_BESIDE = Path(__file__).resolve().parent.parent
_IN_A_WHEEL = _BESIDE / "pytorch_inside_out"  # added by setup.py
OURS = _IN_A_WHEEL if _IN_A_WHEEL.is_dir() else _BESIDE
_BEGAN_IN = Path(os.sep)
with suppress(OSError):  # a folder that was removed
    _BEGAN_IN = Path.cwd()  # now: a lesson may change it later


def default_root() -> Path:
    """The folder that holds notebooks/, exercises/, solutions/ and practice/: COURSE_ROOT, or the one that
    came with this package."""
    return Path(os.environ.get("COURSE_ROOT") or OURS).resolve()


def workspace(root: Path) -> Path:
    """The folder of the reader's notebooks and record: `workspace` below the course; where that is installed,
    below the folder that this process began in, unless it began in a `workspace`, as kernels do."""
    if root != _IN_A_WHEEL:
        return root / "workspace"
    return _BEGAN_IN if _BEGAN_IN.name == "workspace" else _BEGAN_IN / "workspace"
