"""The commands `course lab`, `course check` and so on: what each takes, and who does it.

What does it is imported only when it is asked for.
"""

import argparse
import difflib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from course_utils.lessons.catalog import CourseError

HELP = """\
usage: course COMMAND [...]

PyTorch Inside Out: a hands-on course on how PyTorch works inside.

to learn
    placement  find out where you start, by at most fifteen questions
    lab        copy the lessons that are missing in workspace/, and open JupyterLab where you stopped
    copy       put a fresh copy of a lesson beside yours: course copy 04; without one, those that are missing
    progress   say where you stand and what is next; in one lesson: course progress 02
    practice   answer what is due today
    export     write what you did as a page and as a table
    check      grade the answers in notebooks
    doctor     say what this machine can and cannot run
    diagnose   say what is wrong with a model and training step of yours

to teach
    check --json   the same as data, for a grader of a class

to write
    new        write the two files of a new exercise: course new tensors last_column
    build      make the notebooks from their sources and exercises
    prove      prove that an exercise's checks, and families of questions, do what they should

course COMMAND --help tells more about one of them."""

COMMANDS = (
    "placement",
    "lab",
    "copy",
    "progress",
    "practice",
    "export",
    "check",
    "doctor",
    "diagnose",
    "new",
    "build",
    "prove",
)
IN_NOTEBOOKS = ("hint", "solution")
# How it was spelled before, by what comes first and second, and how it is spelled now.
OLD_SPELLINGS = {
    ("lab", "--fresh"): ("copy",),
    ("check", "--record"): ("check", "--save-progress"),
    ("build", "--record"): ("build", "--gpu-outputs"),
}
_LESSON = "01, tensors or 01_tensors"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: as a shell gives it for what SIGPIPE has ended where
    nobody reads the output any more, as in `course progress | head -1`."""
    try:
        code = _main(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest as it ends
        return 128 + signal.SIGPIPE
    return code


def _main(arguments: Sequence[str] | None) -> int:
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if command in ("-h", "--help", "help"):
        print(HELP)
        return 0
    if command not in COMMANDS:
        print(f"course has no command {command!r}{_instead_of(command)}")
        return 2
    command, rest = _as_spelled_now(command, rest)
    given = _given(command, rest)
    try:
        return _run(command, given)
    except CourseError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _instead_of(command: str) -> str:
    """What to say to a command that there is not."""
    if command in IN_NOTEBOOKS:
        return f"; it's called in a notebook: {command}(sliding_windows)"
    if not command.startswith("-") and (close := difflib.get_close_matches(command, COMMANDS, n=1)):
        return f". Type: course {close[0]}"
    return f"; there are {', '.join(COMMANDS)}. Type: course --help"


def _as_spelled_now(command: str, rest: Sequence[str]) -> tuple[str, list[str]]:
    """The command and its words; where they are spelled as in an earlier release, as they are now, with a
    hint."""
    for (old_command, option), (now, *options) in OLD_SPELLINGS.items():
        words = [
            word
            for text in rest
            for word in (text.split("=", 1) if text.startswith(option + "=") else [text])
        ]
        if command == old_command and option in words:
            said = f"course {old_command} {option} is now: course {' '.join([now, *options])}"
            print(said, file=sys.stderr)
            at = words.index(option)
            return now, [*words[:at], *options, *words[at + 1 :]]
    return command, list(rest)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}", file=sys.stderr)
        print(f"For help: {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"wanted a number from 1 on, given {text!r}")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**16:
        raise argparse.ArgumentTypeError(f"wanted a number from 1 to {2**16 - 1}, given {text!r}")
    return int(text)


def _given(command: str, words: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog=f"course {command}")
    take = parser.add_argument
    if command == "lab":
        take("--no-browser", action="store_true", help="only print the address")
        take("--port", type=_port, help="this port and no other (default: the first free from 8888 on)")
        take("--ip", help="listen at this address (in a container: 0.0.0.0)")
    elif command == "copy":
        take("lesson", nargs="?", metavar="LESSON", help=f"{_LESSON} (default: those that are missing)")
    elif command == "check":
        take("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
        take("--json", action="store_true", help="print the results as JSON")
        take("--jobs", type=_positive, metavar="N", help="how many notebooks at a time")
        take("--save-progress", action="store_true", help="count these answers in your own progress")
    elif command == "progress":
        take("lesson", nargs="?", metavar="LESSON", help=f"{_LESSON} (default: all)")
    elif command == "placement":
        take("--anew", action="store_true", help="forget an earlier one (default: it goes on)")
    elif command == "export":
        take("folder", nargs="?", type=Path, default=Path(), help="(default: the one that you are in)")
    elif command == "new":
        take("lesson", metavar="LESSON", help=_LESSON)
        take("name", metavar="NAME", help="what the reader's function is called; its file has the same name")
    elif command == "build":
        take("names", nargs="*", metavar="LESSON", help=f"{_LESSON} (default: all)")
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--check", action="store_true", help="only say which notebooks are stale")
        how.add_argument("--force", action="store_true", help="also those that are up to date")
        how.add_argument("--solved", type=Path, metavar="DIR", help="write solved lessons into DIR")
        how.add_argument("--gpu-outputs", action="store_true", help="store what this machine's GPU shows")
    elif command == "diagnose":
        take("where", metavar="FILE.py:FUNCTION", help="returns model, batch, loss_fn, optimizer")
        take("--json", action="store_true", help="print the findings as JSON")
    elif command == "prove":
        take("names", nargs="*", metavar="NAME", help="exercises, families of questions (default: all)")
        take("--sample", type=_positive, metavar="N", help="only so many mutants of each reference")
    return parser.parse_args(words)


def _run(command: str, given: argparse.Namespace) -> int:
    if command == "lab":
        from course_utils.reader import lab

        return lab.run(not given.no_browser, given.port, given.ip)
    if command == "copy":
        from course_utils.reader import lab

        return lab.put_beside(given.lesson) if given.lesson else lab.copy_missing()
    if command == "check":
        from course_utils.grading import command as checking

        return checking.run(given.notebooks, given.json, given.jobs, save_progress=given.save_progress)
    if command == "build":
        from course_utils.lessons import build

        return build.run_build(given.names, given.check, given.force, given.solved, given.gpu_outputs)
    if command == "new":
        from course_utils.proving import new

        return new.run(given.lesson, given.name)
    if command == "export":
        from course_utils.reader import export

        return export.run(given.folder)
    if command == "prove":
        from course_utils.proving import laws

        return laws.run(given.names, sample=given.sample)
    if command == "diagnose":
        from course_utils.diagnosis import command as diagnosing

        return diagnosing.run(given.where, given.json)
    if command == "doctor":
        from course_utils import machine
        from course_utils.reader import doctor

        print(doctor.report(machine.describe()))
        return 0
    from course_utils.lessons import catalog
    from course_utils.reader.record import open_record

    course, record = catalog.load(), open_record()
    if command in ("placement", "practice"):
        from course_utils.practice import terminal
        from course_utils.practice.sitting import PlacementSitting, PracticeSitting
        from course_utils.questions.maker import maker

        if command == "practice":
            return terminal.ask(PracticeSitting(course, record, maker()))
        return terminal.ask(PlacementSitting(course, record, maker(), given.anew))
    from course_utils.practice import cards
    from course_utils.reader.progress import Progress

    here = course.lesson(Path(given.lesson).stem) if given.lesson else None
    print(Progress(course, record, here, due=len(cards.of_reader(course, record)[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
