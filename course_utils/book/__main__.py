"""`python -m course_utils.book [--out build/book]`: builds the book."""

import argparse
import sys
from pathlib import Path

from course_utils.book.build import main

parser = argparse.ArgumentParser(prog="python -m course_utils.book", description="Builds the book.")
parser.add_argument(
    "--out", type=Path, default=Path("build/book"), help="a folder, for the sources and the site"
)
sys.exit(main(parser.parse_args().out.resolve()))
