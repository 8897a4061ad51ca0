"""`course lab | check | progress | build | prove | doctor`: what each takes, and who does it.

What does it is imported only when it is asked for.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from course_utils.lessons.catalog import CourseError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if command in ("-h", "--help", "help"):
        print(HELP)
        return 0
    if command not in COMMANDS:
        print(f"course has no command {command!r}{_instead_of(command)}")
        return 2
    given = _parser(command).parse_args(rest)
    try:
        return _RUN[command](given)
    except CourseError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _instead_of(command: str) -> str:
    """What to say to a command that there is not."""
    if command in IN_NOTEBOOKS:
        return f"; it's called in a notebook: {command}(sliding_windows)"
    if close := difflib.get_close_matches(command, COMMANDS, n=1):
        return f". Type: course {close[0]}"
    return f"; there are {', '.join(COMMANDS)}. Type: course --help"


HELP = """\
usage: course COMMAND [...]

PyTorch Inside Out: a hands-on course on how PyTorch works inside.

to learn
    lab        copy the lessons that are missing in workspace/, and open JupyterLab where you stopped
    progress   say where you stand and what is next; in one lesson: course progress 02
    check      grade the answers in notebooks
    doctor     say what this machine can and cannot run

to teach
    check --json   the same as data, for a grader of a class

to write
    build      make the notebooks from their sources and exercises
    prove      prove that an exercise's checks do what they should

course COMMAND --help tells more about one of them."""

COMMANDS = ("lab", "progress", "check", "doctor", "build", "prove")
IN_NOTEBOOKS = ("hint", "solution")


class _Parser(argparse.ArgumentParser):
    """Says what to type where something is wrong."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}", file=sys.stderr)
        print(f"For help: {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def _parser(command: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=f"course {command}")
    _ARGUMENTS[command](parser)
    return parser


def _lab_arguments(lab: argparse.ArgumentParser) -> None:
    lab.add_argument("--no-browser", action="store_true", help="only print the address")
    lab.add_argument("--port", type=int, help="this port and no other (default: the first free from 8888 on)")
    lab.add_argument(
        "--fresh",
        metavar="LESSON",
        help="put a fresh copy of a lesson beside yours (01, tensors or 01_tensors) and open nothing",
    )


def _check_arguments(check: argparse.ArgumentParser) -> None:
    check.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    check.add_argument("--json", action="store_true", help="print the results as JSON")
    check.add_argument("--jobs", type=_positive, metavar="N", help="how many notebooks at a time")
    check.add_argument("--record", action="store_true", help="count these answers in your own record")


def _progress_arguments(progress: argparse.ArgumentParser) -> None:
    progress.add_argument(
        "lesson", nargs="?", metavar="LESSON", help="01, tensors or 01_tensors (default: all)"
    )


def _build_arguments(build: argparse.ArgumentParser) -> None:
    build.add_argument("names", nargs="*", metavar="LESSON", help="01, tensors or 01_tensors (default: all)")
    how = build.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="only say which notebooks are stale")
    how.add_argument("--force", action="store_true", help="also those that are up to date")
    how.add_argument("--solved", type=Path, metavar="DIR", help="write solved lessons into DIR")
    how.add_argument("--record", action="store_true", help="record on this machine's GPU what it shows")


def _prove_arguments(prove: argparse.ArgumentParser) -> None:
    prove.add_argument("names", nargs="*", metavar="EXERCISE", help="(default: all exercises)")
    prove.add_argument("--sample", type=_positive, metavar="N", help="only so many mutants of each reference")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"wanted a number from 1 on, given {text!r}")
    return int(text)


def _lab(given: argparse.Namespace) -> int:
    from course_utils.reader import lab

    if given.fresh is not None:
        return lab.put_beside(given.fresh)
    return lab.run(browser=not given.no_browser, port=given.port)


def _check(given: argparse.Namespace) -> int:
    from course_utils.grading import command

    return command.run(given.notebooks, given.json, given.jobs, keep_record=given.record)


def _progress(given: argparse.Namespace) -> int:
    from course_utils.lessons import catalog
    from course_utils.reader.progress import Progress
    from course_utils.reader.record import open_record

    course = catalog.load()
    here = course.lesson(Path(given.lesson).stem) if given.lesson else None
    print(Progress(course, open_record(), here))
    return 0


def _build(given: argparse.Namespace) -> int:
    from course_utils.lessons import build

    return build.run_build(given.names, given.check, given.force, given.solved, given.record)


def _prove(given: argparse.Namespace) -> int:
    from course_utils.proving import command

    return command.run(given.names, sample=given.sample)


def _doctor(given: argparse.Namespace) -> int:
    from course_utils.reader import doctor

    return doctor.run()


_ARGUMENTS = {
    "lab": _lab_arguments,
    "check": _check_arguments,
    "progress": _progress_arguments,
    "build": _build_arguments,
    "prove": _prove_arguments,
    "doctor": lambda parser: None,
}
_RUN = {
    "lab": _lab,
    "check": _check,
    "progress": _progress,
    "build": _build,
    "prove": _prove,
    "doctor": _doctor,
}


if __name__ == "__main__":
    sys.exit(main())
