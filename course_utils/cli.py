"""`course lab | check | progress | build | prove | doctor`: what each takes, and who does it.

What does it is imported only when it is asked for.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    given = _parser().parse_args(arguments)
    try:
        return given.run(given)
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="course", description="PyTorch Inside Out: a hands-on course on how PyTorch works inside."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="")

    lab = commands.add_parser("lab", help="copy the lessons that are missing in workspace/, open JupyterLab")
    lab.add_argument("--no-browser", action="store_true", help="only print the address")
    lab.add_argument("--port", type=int, help="this port and no other (default: the first free from 8888 on)")
    lab.add_argument(
        "--fresh",
        metavar="LESSON",
        help="put a fresh copy of a lesson beside yours (01, tensors or 01_tensors) and open nothing",
    )
    lab.set_defaults(run=_lab)

    check = commands.add_parser("check", help="grade the answers in notebooks")
    check.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    check.add_argument("--json", action="store_true", help="print the results as JSON")
    check.add_argument("--jobs", type=_positive, metavar="N", help="how many notebooks at a time")
    check.set_defaults(run=_check)

    progress = commands.add_parser("progress", help="say where you stand and what is next")
    progress.set_defaults(run=_progress)

    build = commands.add_parser("build", help="make the notebooks from their sources and exercises")
    build.add_argument(
        "names", nargs="*", metavar="LESSON", help="01, tensors or 01_tensors (default: all lessons)"
    )
    how = build.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="only say which notebooks are stale")
    how.add_argument("--force", action="store_true", help="also those that are up to date")
    how.add_argument("--solved", type=Path, metavar="DIR", help="write solved lessons into DIR")
    build.set_defaults(run=_build)

    prove = commands.add_parser("prove", help="prove that an exercise's checks do what they should")
    prove.add_argument("names", nargs="*", metavar="EXERCISE", help="(default: all exercises)")
    prove.add_argument("--sample", type=_positive, metavar="N", help="only so many mutants of each reference")
    prove.set_defaults(run=_prove)

    doctor = commands.add_parser("doctor", help="say what this machine can and cannot run")
    doctor.set_defaults(run=_doctor)
    return parser


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError
    return number


def _lab(given: argparse.Namespace) -> int:
    from course_utils import lab

    if given.fresh is not None:
        return lab.put_beside(given.fresh)
    return lab.run(browser=not given.no_browser, port=given.port)


def _check(given: argparse.Namespace) -> int:
    from course_utils import check_command

    return check_command.run(given.notebooks, as_json=given.json, jobs=given.jobs)


def _progress(given: argparse.Namespace) -> int:
    from course_utils import notebook

    print(notebook.progress_text())
    return 0


def _build(given: argparse.Namespace) -> int:
    from course_utils import lessons

    return lessons.run_build(given.names, check=given.check, force=given.force, solved=given.solved)


def _prove(given: argparse.Namespace) -> int:
    from course_utils.proving import command

    return command.run(given.names, sample=given.sample)


def _doctor(given: argparse.Namespace) -> int:
    from course_utils import doctor

    return doctor.run()


if __name__ == "__main__":
    sys.exit(main())
