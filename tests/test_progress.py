"""Where the reader stands: one lesson, the map of all, and the command line that says it."""

import csv
import re
from pathlib import Path

import nbformat
import pytest

from course_utils import cli, notebook
from course_utils.lessons import catalog, source
from course_utils.reader import lab
from course_utils.reader.progress import Progress
from course_utils.reader.record import Record, open_record

COURSE = catalog.load()


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_RECORD", str(tmp_path / "record.jsonl"))
    return open_record()


def test_cards_say_what_the_loaded_exercise_says():
    for name in COURSE.exercise_names:
        card, exercise = COURSE.card(name), COURSE.exercise(name)
        found = card.answer_name, card.title, card.minutes, card.core
        assert found == (exercise.answer_name, exercise.title, exercise.minutes, exercise.core)


def test_the_readme_lists_the_lessons_with_their_minutes():
    text = (COURSE.root / "README.md").read_text(encoding="utf-8")
    total = [0, 0]
    for lesson in COURSE.lessons:
        cards = [COURSE.card(name) for name in lesson.exercise_names]
        core, every = (
            lesson.reading + sum(c.minutes for c in cards if c.core or all_) for all_ in (False, True)
        )
        line = f"| {lesson.number:02d} | {lesson.title} | {core} | {every} |"
        assert line in text, f"in README.md, the table of lessons needs this line: {line}"
        total = [total[0] + core, total[1] + every]
    in_core, in_all = (round(minutes / 60) for minutes in total)
    assert f"about {in_core} hours of core, {in_all} of everything" in " ".join(text[:900].split())


def test_the_minutes_left_begin_with_those_of_the_lessons_head_and_end_with_none(record):
    untouched = Progress(COURSE, record)
    for lesson, standing in zip(COURSE.lessons, untouched.all, strict=True):
        head = source._routes(COURSE, lesson, dict.fromkeys(lesson.exercise_names, ""))
        core, every = (re.search(rf"\*\*{way}\*\*, (\d+) minutes", head) for way in ("Core", "Everything"))
        assert int(core[1]) == standing.left(True)
        assert int((every or core)[1]) == standing.left(True) + standing.left(False)
    core, every = (sum(one.left(True) + kind * one.left(False) for one in untouched.all) for kind in (0, 1))
    line = f"Left of the course: {core / 60:.1f} hours of core, {every / 60:.1f} of everything."
    assert line in repr(untouched) and line in untouched._repr_html_()
    lesson = COURSE.lesson("05")
    left = []
    for card in map(COURSE.card, lesson.exercise_names):
        left.append(Progress(COURSE, record, lesson).here.minutes_left)
        record.add_attempt(card.name, lesson.topic, "passed", 1, 1)
    left.append(Progress(COURSE, record, lesson).here.minutes_left)
    # Reading goes with the core exercises, a part with each, rounded; with the rest none.
    cards = [COURSE.card(name) for name in lesson.exercise_names]
    core = [card.minutes for card in cards if card.core]
    reading = (left[0][0] - sum(core)) / len(core)
    assert reading > 4
    for before, after, card in zip(left, left[1:], cards, strict=False):
        spent = (card.minutes + reading, 0) if card.core else (0, card.minutes)
        assert abs(before[0] - after[0] - spent[0]) < 1 and before[1] - after[1] == spent[1]
    assert left[-1] == (0, 0)


def test_a_lesson_shows_core_and_further_with_minutes_left_and_links(record):
    lesson = COURSE.lesson("01")
    core = [name for name in lesson.exercise_names if COURSE.card(name).core]
    record.add_attempt(core[0], lesson.topic, "passed", 3, 3)
    shown = Progress(COURSE, record, lesson)
    left = sum(COURSE.card(name).minutes for name in core[1:]) + round(lesson.reading * 3 / 4)
    assert f"Core · 1 of {len(core)} · {left} minutes left" in repr(shown)
    following = COURSE.card(core[1])
    assert f"Next: {following.title} (`{following.answer_name}`) in 01 {lesson.title}\n" in f"{shown}\n"
    html = shown._repr_html_()
    cells = nbformat.read(lesson.notebook, as_version=4).cells
    ours = {"exercise": following.name, "role": "task"}
    (task,) = (cell for cell in cells if cell.metadata.get("course") == ours)
    assert f'href="{lesson.slug}.ipynb#cell-id={task.id}"' in html and "`" not in html
    assert f"(<code>{following.answer_name}</code>)</a>" in html


def test_what_a_lessons_head_names_are_links_to_the_tasks():
    lesson = COURSE.lesson("01")
    cells = source.notebook_of(COURSE, lesson).cells
    tasks = {cell.id: cell.metadata.course.exercise for cell in cells if source.role(cell) == source.TASK}
    links = re.findall(rf"\[([^]]*)\]\({lesson.slug}.ipynb#cell-id=(\w+)\)", cells[0].source)
    assert len(links) == 2
    assert all(COURSE.card(tasks[task]).full_name == words for words, task in links)


def test_the_map_counts_nothing_where_nothing_goes_further(record):
    standings = Progress(COURSE, record).all
    without = [one.heading for one in standings if not one.of(False)]
    assert without and len(without) < len(standings)
    html = Progress(COURSE, record)._repr_html_()
    assert "0 of 0" not in html and all(heading in html for heading in without)


def test_what_reading_has_mended_is_not_told(tmp_path):
    path = tmp_path / "record.jsonl"
    path.mkdir()
    record = Record(path)
    record.add_attempt("warm_up", "start_here", "passed", 1, 1)
    assert "it is a folder" in record.notice
    path.rmdir()
    assert Progress(COURSE, record).notice == "" and Record(path).attempts("warm_up") == 1


def test_the_map_has_every_lesson_and_what_is_done(record):
    for name in COURSE.lesson("00").exercise_names:
        record.add_attempt(name, "start_here", "passed", 1, 1)
    shown = Progress(COURSE, record)
    html = shown._repr_html_()
    for lesson in COURSE.lessons:
        assert html.count(f'href="{lesson.slug}.ipynb"') >= 2  # in the map and in the table
        assert lesson.title in repr(shown)
    assert "✓ 2 of 2" in html and html.count("✓") == 1


def test_each_lesson_names_lessons_before_it_as_what_it_builds_on():
    topics = [lesson.topic for lesson in COURSE.lessons]
    for lesson in COURSE.lessons[1:]:
        assert lesson.needs, lesson.slug
        assert all(topics.index(needed) < topics.index(lesson.topic) for needed in lesson.needs), lesson.slug


def test_progress_shows_the_lesson_that_is_open(record, monkeypatch):
    monkeypatch.setattr(notebook, "_record", lambda: record)
    monkeypatch.setenv("JPY_SESSION_NAME", "/somewhere/02_autograd.ipynb")
    assert notebook.progress().here.lesson.slug == "02_autograd"
    assert notebook.progress(all=True).here is None
    monkeypatch.delenv("JPY_SESSION_NAME")
    assert notebook.progress().here is None
    names = {"progress": notebook.progress, "sliding_windows": len}
    assert eval("progress().here.lesson.slug", names) == "01_tensors"


def test_lab_opens_where_the_reader_stopped(record):
    assert lab._where_the_reader_stopped(COURSE.root) == ("00_start_here.ipynb", [])
    record.add_attempt("rms_norm", "functions", "wrong", 1, 3)
    record.reveal_hint("view_strides")
    assert lab._where_the_reader_stopped(COURSE.root)[0] == "01_tensors.ipynb"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["progess"], "Type: course progress"),
        (["xyz"], "export, check, doctor, diagnose, new, build, prove. Type: course --help"),
        (["solution", "xyz"], "it's called in a notebook: solution(sliding_windows)"),
        (["progress", "tensor"], "did you mean 01_tensors?"),
        (["prove", "sliding_window"], "did you mean sliding_windows?"),
        (["copy", "compil"], "did you mean 12_compile?"),
        (["check", "--jobs", "0", "x.ipynb"], "wanted a number from 1 on, given '0'"),
        (["check"], "For help: course check --help"),
        (["build", "--check", "--force"], "--help"),
        (["lab", "--port", "x"], "--help"),
    ],
)
def test_errors_say_what_to_type(given, said, capsys):
    try:
        assert cli.main(given) == 2
    except SystemExit as ended:
        assert ended.code == 2
    output = capsys.readouterr()
    assert said in output.out + output.err


@pytest.mark.parametrize(
    ("given", "as_now"),
    [
        (["lab", "--fresh", "99"], "copy"),
        (["lab", "--fresh=99"], "copy"),
        (["check", "nowhere.ipynb", "--record"], "check --save-progress"),
    ],
)
def test_an_old_spelling_goes_on_and_says_the_new_one(given, as_now, capsys):
    assert cli.main(given) == 2  # there is no such lesson, no such notebook
    said = capsys.readouterr()
    assert said.err.startswith(f"course {given[0]} --")
    assert f"is now: course {as_now}\n" in said.err
    assert "called '99'" in said.out or "nowhere.ipynb" in said.out


# --- begun anew, given back, taken away ---------------------------------------------------------------


def test_an_exercise_begins_anew_and_the_record_keeps_what_was(record):
    for _ in range(2):
        record.add_attempt("warm_up", "start_here", "wrong", 1, 4)
    record.reveal_hint("warm_up")
    record.ask_solution("warm_up")
    record.add_attempt("first_prediction", "start_here", "passed", 1, 1)
    lines = record.path.read_text().count("\n")
    said = notebook.progress(reset="warm_up")
    assert "(`warm_up`) begins anew: 2 attempts and 1 hint are forgotten." in repr(said)
    assert said.notice.replace("`warm_up`", "<code>warm_up</code>") in said._repr_html_()
    again = open_record()  # as another kernel sees it
    assert (again.attempts("warm_up"), again.hints("warm_up"), again.state("warm_up")) == (0, 0, None)
    assert again.state("first_prediction") == "passed"
    assert again.path.read_text().count("\n") == lines + 1
    assert again.ask_solution("warm_up") == 1
    again.add_attempt("warm_up", "start_here", "passed", 4, 4)
    assert (again.attempts("warm_up"), again.state("warm_up")) == (1, "passed")
    assert "There is no exercise called `warmup`" in repr(notebook.progress(reset="warmup"))


def test_the_first_cell_is_given_back():
    given = notebook.starter("warm_up")
    assert given.code == COURSE.exercise("warm_up").starter_source
    assert "There is no exercise called `warmup`" in repr(notebook.starter("warmup"))


def test_what_was_done_is_written_as_a_page_and_as_a_table(record, tmp_path, capsys):
    record.add_attempt("warm_up", "start_here", "wrong", 1, 4)
    record.add_attempt("warm_up", "start_here", "passed", 4, 4)
    record.add_attempt("sliding_windows", "tensors", "raised", 0, 5)
    record.reveal_hint("sliding_windows")
    record.see_solution("sliding_windows")
    assert cli.main(["export", str(tmp_path / "of/mine")]) == 0
    page, table = map(Path, capsys.readouterr().out.split())
    with table.open(newline="") as file:
        rows = {row["exercise"]: row for row in csv.DictReader(file)}
    assert list(rows) == [COURSE.card(name).answer_name for name in COURSE.exercise_names]
    done, begun = rows["warm_up"], rows["sliding_windows"]
    assert (done["state"], done["attempts"], done["solution seen"]) == ("passed", "2", "")
    assert (begun["state"], begun["hints"], begun["solution seen"]) == ("raised", "1", "yes")
    assert begun["last"] > done["last"] > "20"
    text = page.read_text()
    assert f"1 of {sum(COURSE.card(name).core for name in COURSE.exercise_names)} core exercises" in text
    assert text.count("<h2>") == 2 and "02 " not in "".join(re.findall("<h2>.*</h2>", text))
    (tmp_path / "file").touch()
    assert cli.main(["export", str(tmp_path / "file")]) == 2
    assert "file cannot be written: File exists" in capsys.readouterr().err.replace("\n", " ")
