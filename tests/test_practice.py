"""Questions of practice and placement: what torch says is the truth, a belief is named only where it gives
exactly the answer, and what was answered is kept. Simulated readers: does it find and keep what they know?"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from course_utils.lessons import catalog
from course_utils.practice import answers, cards, terminal, told
from course_utils.practice.answers import PLACEMENT, Answer
from course_utils.practice.placement import NOT_SURE
from course_utils.practice.sitting import PlacementSitting, PracticeSitting
from course_utils.proving import families as laws
from course_utils.proving import forgetting, placements
from course_utils.questions import families
from course_utils.questions.maker import Maker
from course_utils.questions.question import make
from course_utils.reader.record import Record

ROOT = Path(__file__).resolve().parent.parent
COURSE = catalog.load(ROOT)
NAMES = COURSE.family_names
SOME = "tensors.strides"


@pytest.fixture(scope="module")
def maker():
    return Maker()


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path / "record.jsonl")


def test_there_are_thirty_families_two_a_lesson_and_they_are_short():
    topics = [lesson.topic for lesson in COURSE.lessons[1:15]]
    counts = {topic: sum(name.startswith(f"{topic}.") for name in NAMES) for topic in topics}
    assert len(NAMES) >= 30 and min(counts.values()) >= 2, counts
    lengths = [len(path.read_text().splitlines()) for path in ROOT.glob("practice/*/*.py")]
    assert max(lengths) <= 110 and sum(lengths) <= 101 * len(lengths), lengths


@pytest.mark.parametrize("name", NAMES)
def test_a_family_does_what_it_should(name):
    """With fewer questions than `course prove` takes; of slow ones so few that no share is asked."""
    slow = families.load_one(name, ROOT).slow
    found = list(laws.faults(COURSE, name, 1 if slow else 40))
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_what_is_right_is_what_torch_says_and_a_belief_what_it_gives():
    question = make(families.load_one(SOME, ROOT), 3, 7)
    names = {"torch": torch}
    exec(question.code, names)
    assert question.choices[question.right].text == str(names["y"].stride()) == question.said
    [i] = {question.separated["in_bytes"]}
    assert question.choices[i].text == str(tuple(4 * stride for stride in names["y"].stride()))


def test_nothing_in_the_reader_s_process_changes_a_question_and_no_question_changes_it(maker):
    before = maker.again(SOME, 2, 5)
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    replaced, torch.arange = torch.arange, None
    try:
        assert maker.again(SOME, 2, 5) == before
    finally:
        torch.arange = replaced
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), state)


DIES = """\
'''What is left of a process'''

from course_utils.questions import Family

family = Family(section="Storage, offset, size, stride")


@family.program
def ends(draw, level):
    return "import os\\nos._exit(3)"
"""


def test_a_question_that_kills_its_process_is_left_out_and_the_sitting_goes_on(record, tmp_path, monkeypatch):
    for folder in ("notebooks", "exercises", "solutions"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "practice/tensors").mkdir(parents=True)
    (tmp_path / "practice/tensors/dies.py").write_text(DIES)
    (tmp_path / "practice/tensors/strides.py").symlink_to(ROOT / "practice/tensors/strides.py")
    monkeypatch.setenv("COURSE_ROOT", str(tmp_path))
    sitting = PlacementSitting(catalog.load(tmp_path), record, Maker())
    troubles = ""
    for _ in range(2):
        sitting.ask()
        troubles += sitting.trouble
        assert sitting.question.family == SOME, troubles
        sitting.answer(None)
    assert "a question of tensors.dies" in troubles


def test_a_course_without_questions_says_so(record, tmp_path, maker):
    for folder in ("notebooks", "exercises", "solutions"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    with pytest.raises(catalog.CourseError, match="no questions to ask: .* no folder `practice`"):
        PlacementSitting(catalog.load(tmp_path), record, maker)


def test_a_wrong_answer_is_told_with_the_belief_that_gives_it_and_nothing_is_guessed(record, maker):
    sitting = PlacementSitting(COURSE, record, maker)
    sitting.question = maker.get(SOME, 3, 11)
    belief = next(iter(sitting.question.separated))
    sitting.answer(sitting.question.separated[belief])
    text = told.answer(sitting.told)
    claims = {one.name: one.claim for one in sitting.families[SOME].beliefs}
    assert claims[belief] in text and "01_tensors.ipynb#Storage,-offset,-size,-stride" in text
    others = set(claims) - {one.name for one, _ in sitting.told.beliefs}
    assert not [claims[name] for name in others if claims[name] in text]
    nobody_errs = replace(sitting.families[SOME], beliefs=[])
    sitting.question = make(nobody_errs, 1, 0)
    missed = (sitting.question.right + 1) % len(sitting.question.choices)
    sitting.answer(missed)
    assert "near miss" in told.answer(sitting.told) and not sitting.told.beliefs


def test_a_placement_that_was_stopped_goes_on_where_it_was(record, maker):
    sitting = PlacementSitting(COURSE, record, maker)
    for _ in range(3):
        sitting.ask()
        sitting.answer(sitting.question.right)
    again = PlacementSitting(COURSE, Record(record.path), maker)
    assert again.asked == 3
    assert again.placement.result() == sitting.placement.result()
    assert PlacementSitting(COURSE, Record(record.path), maker, anew=True).asked == 0


def test_with_nothing_answered_nothing_is_said(record, maker):
    sitting = PlacementSitting(COURSE, record, maker)
    assert set(sitting.placement.result().words.values()) == {NOT_SURE}


def test_a_solved_lesson_puts_its_families_on_the_list_and_answers_space_them(record, maker):
    sitting = PracticeSitting(COURSE, record, maker)
    assert not sitting.due and "Nothing is due" in told.end(sitting)
    for name in COURSE.lesson("tensors").exercise_names:
        if COURSE.card(name).core:
            record.add_attempt(name, "tensors", "passed", 1, 1)
    sitting = PracticeSitting(COURSE, record, maker)
    assert sitting.due == [name for name in NAMES if name.startswith("tensors.")]
    sitting.ask()
    first = sitting.question.family
    sitting.answer(sitting.question.right)
    sitting.ask()
    second = sitting.question.family
    sitting.answer(None)
    found, due = cards.of_reader(COURSE, Record(record.path))
    assert not {first, second} & {*due} and len(due) == len(sitting.due) - 2
    assert (found[first].level, found[second].level) == (2, 1)
    later = datetime.now(UTC) + timedelta(days=30)
    assert cards.due(found, [], later)[0] == second, "what was not known is forgotten first"
    assert found[first].card.due > found[second].card.due


def test_answers_of_another_version_are_left_out(record, maker):
    record.add_answer(SOME, answered={"choices": 3})
    record.add_answer("tensors.gone", answered=vars(Answer("", 3, 0, {}, 1, occasion=PLACEMENT, sitting=1)))
    assert PlacementSitting(COURSE, record, maker).asked == 0
    assert not record.summary()


ANSWER = """
import sys
from pathlib import Path
from course_utils.practice import answers
from course_utils.reader.record import Record
record = Record(Path(sys.argv[1]))
for number in range(10_000):
    answers.keep(record, answers.Answer("tensors.strides", 4, 0, {}, 1, 2, number, "placement", 1, "now"))
    print(number, flush=True)
"""


def test_a_kill_loses_no_answer(tmp_path):
    path = tmp_path / "record.jsonl"
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", ANSWER, path], stdout=subprocess.PIPE, text=True)
        said = [process.stdout.readline() for _ in range(20)]
        os.kill(process.pid, signal.SIGKILL)
        said += process.communicate()[0].splitlines()
    seeds = [one.seed for one in answers.kept(Record(path))]
    assert len(seeds) >= 40 and sorted(seeds)[-1] >= int(said[-1])


def test_in_a_terminal(record, maker, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("what\n9\n1\n0\nq\n"))
    assert terminal.ask(PlacementSitting(COURSE, record, maker)) == 0
    said = capsys.readouterr().out
    assert said.count("Type a number from 0 to") == 2 and "Question 3 of at most 15" in said
    assert "Your route: " in said and "](" not in said
    assert "**" not in re.sub(r"^    .*", "", said, flags=re.MULTILINE), "a power in a program stays"
    assert [one.chosen for one in answers.kept(record)] == [0, None]


def test_without_widgets_answers_are_given_by_number(record, maker, monkeypatch):
    from course_utils import answer, notebook, placement

    monkeypatch.setenv("COURSE_RECORD", str(record.path))
    monkeypatch.setattr(notebook, "_table", None)
    assert "No question is asked" in repr(answer(2))
    still = placement()._repr_mimebundle_()[0]
    assert "answer()" in still["text/plain"] and "widget" in "".join(still)
    assert "Question 1 of at most 15" in repr(answer())
    assert "no answer 77" in repr(answer(77))
    shown = repr(answer(0))
    assert "torch: " in shown and "Question 2 of at most 15" in shown


@pytest.fixture(scope="module")
def pool():
    quick = {name: one for name, one in families.load(ROOT).items() if not one.slow}
    return quick, placements.pool(quick, each=3)


def test_simulated_readers_are_placed(pool):
    """With the families that need no second; `make proof` asks all of them, of 300 readers."""
    some, questions = pool
    needs = {
        one.topic: one.needs for one in COURSE.lessons if any(f.topic == one.topic for f in some.values())
    }
    known = placements.along_the_map(needs, 60)
    chosen = placements.simulate(some, needs, questions, known)
    fixed = placements.simulate(some, needs, questions, known, fixed=True)
    print(chosen, fixed, sep="\n")
    assert chosen.sides > max(0.9, fixed.sides)
    assert chosen.said_rightly / chosen.said >= 0.93
    assert chosen.free_named / chosen.free <= 0.05


def test_practice_keeps_more_than_going_round_with_as_many_questions():
    skills, days = 30, 90
    for seed in range(3):
        known, counts = forgetting.spaced(skills, days, a_day=10, seed=seed)
        assert known > forgetting.in_a_circle(skills, counts, seed) + 0.1
