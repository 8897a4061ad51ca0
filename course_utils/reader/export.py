"""`course export`: what a reader has done, as a page to read and as a table for other programs."""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from course_utils.exercise.states import PASSED, symbol
from course_utils.lessons import catalog
from course_utils.reader.progress import Entry, Progress, Standing
from course_utils.reader.record import open_record
from course_utils.words import inline

NAME = "course-progress"
COLUMNS = ("lesson", "exercise", "title", "core", "minutes", "state", "attempts", "hints", "solution seen")
COLUMNS += ("last",)

_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>PyTorch Inside Out: what was done</title>
<style>
  :root {{ color-scheme: light dark }}
  body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 56em; margin: 2em auto; padding: 0 1em }}
  table {{ border-collapse: collapse; width: 100% }}
  th, td {{ text-align: left; padding: .2em .8em .2em 0; border-bottom: 1px solid #8884 }}
  th:nth-child(n+4), td:nth-child(n+4) {{ text-align: right }}
  td:nth-child(3) {{ white-space: nowrap }}
</style>
<h1>PyTorch Inside Out</h1>
<p>{sums}</p>
{lessons}
</html>
"""


def run(folder: Path) -> int:
    """Writes `course-progress.html` and `course-progress.csv` into a folder, in place of earlier ones, and
    prints where they are. Returns 0. Raises `CourseError` where they cannot be written."""
    record = open_record()
    shown = Progress(catalog.load(), record)
    page, table = (folder / f"{NAME}.{kind}" for kind in ("html", "csv"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        page.write_text(html(shown), encoding="utf-8")
        with table.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows(shown)])
    except OSError as error:
        raise catalog.CourseError(f"{folder} cannot be written: {error.strerror}") from None
    print(f"{page}\n{table}")
    if record.notice:
        print(record.notice)
    return 0


def rows(shown: Progress) -> list[tuple[object, ...]]:
    """A row for each exercise of the course, in its order, with what `COLUMNS` names. `last` is when
    something last happened (ISO format, UTC); nothing where nothing did."""
    return [_row(one, entry) for one in shown.all for entry in one.entries]


def _row(one: Standing, entry: Entry) -> tuple[object, ...]:
    card, row = entry.card, entry.row
    about = one.lesson.slug, card.answer_name, card.title, "core" if card.core else "", card.minutes
    done = (row.attempts, row.hints, "yes" if row.solution_seen else "", row.last) if row else (0, 0, "", "")
    return *about, entry.state, *done


def html(shown: Progress) -> str:
    """A page of all lessons in which something was done, with the sums above."""
    entries = [entry for one in shown.all for entry in one.entries]
    core = [entry for entry in entries if entry.card.core]
    sums = f"{_passed(core)} of {len(core)} core exercises and {_passed(entries)} of {len(entries)} in all "
    sums += f"were passed by {datetime.now(UTC):%Y-%m-%d}."
    begun = [one for one in shown.all if any(entry.row for entry in one.entries)]
    return _PAGE.format(sums=sums, lessons="\n".join(map(_table, begun)) or "<p>Nothing was begun yet.</p>")


def _passed(entries: list[Entry]) -> int:
    return sum(entry.state == PASSED for entry in entries)


def _table(one: Standing) -> str:
    lines = [f"<h2>{escape(one.heading)}</h2>", "<table>"]
    lines.append("<tr><th>exercise<th>name<th>state<th>attempts<th>hints<th>solution</tr>")
    for entry in one.entries:
        title = inline(entry.card.title) + " ★" * entry.card.core
        row = entry.row
        counts = (row.attempts, row.hints, "seen" if row.solution_seen else "") if row else ("", "", "")
        state = f"{symbol(entry.state)} {escape(entry.state)}"
        cells = (title, f"<code>{entry.card.answer_name}</code>", state, *counts)
        lines.append("<tr>" + "".join(f"<td>{cell}" for cell in cells) + "</tr>")
    return "\n".join([*lines, "</table>"])
