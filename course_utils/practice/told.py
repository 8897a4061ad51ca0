"""What is said in a sitting, as Markdown, which a terminal shows as it is: a question, what is told of an
answer, how it ended."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime

from course_utils.draw import palette
from course_utils.draw.course_map import Stop, course_map
from course_utils.exercise.states import NOT_ATTEMPTED, PASSED, WRONG, symbol
from course_utils.lessons.catalog import Lesson, anchor
from course_utils.practice import cards
from course_utils.practice.placement import KNOWN, LATER, NOT_SURE, REFRESH, START
from course_utils.practice.sitting import PlacementSitting, PracticeSitting, Sitting, Told
from course_utils.questions.maker import NoQuestion
from course_utils.words import markdown

DONT_KNOW, HEAD = "I don't know", "**Where you start**"
MINUTES_A_SECTION = 10  # to read one again
_FILLS = {KNOWN: palette.RANK, REFRESH: palette.LIT, START: palette.VIEW}
_SIGNS = {KNOWN: "✓", REFRESH: "↻", START: "▶", LATER: "·", NOT_SURE: "?"}


def question(sitting: Sitting, choices: bool = True) -> str:
    """The question that is asked, with its choices by their numbers, or without."""
    one = sitting.question
    most = "at most " * isinstance(sitting, PlacementSitting) + str(sitting.most)
    parts = [f"**Question {sitting.asked + 1} of {most}**", _code(one.code), one.asked]
    if choices:
        texts = [f"- {i}: `{choice.text}`" for i, choice in enumerate(one.choices, 1)]
        parts.append("\n".join([*texts, f"- 0: {DONT_KNOW}"]))
    return "\n\n".join(parts)


def answer(told: Told) -> str:
    """What is told of an answer, with a link to where it is explained. Who doesn't know is told what a
    wrong choice comes from."""
    asked, right = told.question, told.is_right
    you = "" if right or told.chosen is None else f"; you: `{asked.choices[told.chosen].text}`"
    sign = symbol(NOT_ATTEMPTED if told.chosen is None else PASSED if right else WRONG)
    parts = [f"{sign} {'**Right.** ' if right else ''}torch: `{asked.said}`{you}"]
    many = len(told.beliefs) > 1
    parts += ["Each of these gives exactly your answer:"] if many and told.chosen is not None else []
    for belief, shown in told.beliefs if told.chosen is not None else ():
        claim = f"**{belief.claim}**"
        parts += [claim if many else f"This gives exactly your answer: {claim}", belief.why]
        parts += [_code(belief.cell), f"shows `{shown}`"]
    if told.chosen is None and told.beliefs:
        belief, _ = told.beliefs[0]
        parts.append(f"A wrong choice comes from this: **{belief.claim}**. {belief.why}")
    if not right and told.chosen is not None and not told.beliefs:
        parts.append("No single belief gives your answer. It is a near miss, or two mistakes at once.")
    return "\n\n".join([*parts, f"Lesson [{told.section}]({told.link})"])


def end(sitting: Sitting) -> str:
    """How it ended: where to begin, or what is due when."""
    if isinstance(sitting, PracticeSitting):
        return "\n".join(_retention(sitting))
    return "\n\n".join([HEAD, _lessons(sitting), *_placed(sitting)])


def end_html(sitting: Sitting) -> str:
    """The same as HTML, with the map of the course in place of a list."""
    if isinstance(sitting, PracticeSitting):
        return markdown(end(sitting))
    return markdown(HEAD) + _map(sitting) + markdown("\n\n".join(_placed(sitting)))


def _code(code: str) -> str:
    return textwrap.indent(code, "    ")


# Placement


def _lessons(sitting: PlacementSitting) -> str:
    words = sitting.placement.result().words
    asked = [lesson for lesson in sitting.course.lessons if lesson.topic in words]
    signs = [(f"{_SIGNS[words[one.topic]]} {one.number:02d} {one.title}", words[one.topic]) for one in asked]
    return "\n".join(f"- {name}: {word}" for name, word in signs)


def _map(sitting: PlacementSitting) -> str:
    lessons, words = sitting.course.lessons, sitting.placement.result().words
    number, stops = {lesson.topic: lesson.number for lesson in lessons}, []
    for lesson in lessons:
        word = words.get(lesson.topic, "not asked")
        needs = tuple(number[topic] for topic in lesson.needs if topic in number)
        more = needs, f"{_SIGNS.get(word, '')} {word}".strip(), _FILLS.get(word, "")
        stops.append(Stop(lesson.number, lesson.title, lesson.notebook.name, 0, 0, *more))
    return course_map(stops)


def _placed(sitting: PlacementSitting) -> list[str]:
    result, parts = sitting.placement.result(), [_route(sitting)]
    for lesson in sitting.course.lessons:
        for section in _sections(sitting, lesson):
            link = f"{lesson.notebook.name}#{anchor(section)}"
            parts.append(f"{_SIGNS[REFRESH]} Look at [{lesson.number:02d} {section}]({link}) again.")
    for found in result.found:
        one, family = found.answer, sitting.families[found.family]
        [belief] = [belief for belief in family.beliefs if belief.name == found.belief]
        parts += [f"Do you think so? It gives exactly your answers: **{belief.claim}**", belief.why]
        with contextlib.suppress(NoQuestion):
            asked = sitting.maker.again(one.family, one.level, one.seed)
            if asked.separated == one.separated:  # the family is still the one that asked
                you, torch = (f"`{asked.choices[i].text}`" for i in (one.chosen, one.right))
                often = f"In {found.shown} of {found.of} questions that tell it, as here:"
                parts += [often, _code(asked.code), f"you: {you}; torch: {torch}"]
    return parts


def _sections(sitting: PlacementSitting, lesson: Lesson) -> list[str]:
    """What to look at again in a lesson that is known."""
    again = sitting.placement.result().again.get(lesson.topic, ())
    return [*dict.fromkeys(sitting.families[name].section for name in again)]


def _route(sitting: PlacementSitting) -> str:
    """How long the route takes: the core of the lessons that are not known, and sections read again."""
    words, course = sitting.placement.result().words, sitting.course
    asked = [one for one in course.lessons if one.topic in words]
    left = [one for one in asked if words[one.topic] in (START, LATER, NOT_SURE)]
    minutes, of = (sum(course.minutes(lesson)[0] for lesson in some) for some in (left, asked))
    minutes += MINUTES_A_SECTION * sum(len(_sections(sitting, lesson)) for lesson in asked)
    if not left:
        return f"You know them all: {minutes} minutes for what is to be looked at again."
    unsure = any(words[one.topic] == NOT_SURE for one in left)
    mark = " What is less than 80 % sure has a question mark and is on it." * unsure
    route = ", ".join(f"{one.number:02d}" for one in left)
    return f"Your route: {route}, in this order; about {minutes} of {of} minutes of core.{mark}"


# Practice


def _retention(sitting: PracticeSitting) -> Iterator[str]:
    left, now = len(sitting.due) - sitting.asked, datetime.now(UTC)
    cards_of = {name: one for name, one in sitting.standings.items() if one.card is not None}
    if left:
        yield f"{left} more {'is' if left == 1 else 'are'} due today: `practice()` goes on."
    elif not cards_of:
        yield "Nothing is due. What lessons taught is asked here once you have passed their core."
    else:
        yield f"Nothing more is due today. The next question comes {_when(cards.next_due(cards_of), now)}."
    if cards_of:
        yield from ("", "| skill | you know it today | next |", "| --- | --- | --- |")
    for lesson in sitting.course.lessons:
        for name, one in cards_of.items():
            family, known = sitting.families[name], one.retention(now)
            if family.topic == lesson.topic:
                bar = f"`{'█' * round(10 * known):░<10}` {known:.0%}"
                yield f"| {lesson.number:02d} {family.title} | {bar} | {_when(one.card.due, now)} |"


def _when(due: datetime, now: datetime) -> str:
    days = (due - now).days
    return "today" if due <= now else {0: "in less than a day", 1: "in a day"}.get(days, f"in {days} days")
