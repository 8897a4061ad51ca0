"""`make bench`: every figure with its bound, as ratios within this run. Exit 1 where a bound is missed."""

import argparse
import importlib
import os
import re
import sys
import tempfile
from pathlib import Path

from course_utils.processes import client


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument(
        "names",
        nargs="*",
        help="book, import, check, compiled, ranks, course_check, diagnose, explore, kernel, models, "
        "practice; peers, peers_diagnose (default: all but those two and book)",
    )
    names = parser.parse_args().names
    if not names:
        here = Path(__file__).parent
        names = sorted(
            path.stem.removeprefix("bench_")
            for path in here.glob("bench_*.py")
            if not re.search("peers|book", path.stem)
        )
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COURSE_RECORD"] = str(Path(folder) / "record.jsonl")
        for name in names:
            for row in importlib.import_module(f"tests.benchmarks.bench_{name}").rows():
                print(row, flush=True)
                missed += not row.holds
        client.shut_down()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
