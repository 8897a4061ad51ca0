"""The glossary: the terms that lessons introduce in italics, each with the sentence that does it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from course_utils.lessons.catalog import Course, Lesson, anchor
from course_utils.lessons.notebook_files import KERNELSPEC, LANGUAGE

NAME = "glossary.ipynb"
_ABOUT = (
    "The terms of the course, each with the sentence that introduces it. A link opens the lesson at that "
    "place. If the lesson wasn't open yet, JupyterLab shows its beginning; a second click goes to the place."
)

NAMES = {"Dynamo", "Inductor"}  # that sentences begin with; those with more capitals need no list

_FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1`*[ \t]*$", re.MULTILINE | re.DOTALL)
_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_HEADING = re.compile(r"^(#{1,3}) +(.+?)[ \t]*$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_ITALIC = re.compile(r"(?<![*\w\\])\*(?![*\s])([^*\n]+?)(?<![\s\\])\*(?![*\w])")
_END = re.compile(r"(?:(?<=[.?])|(?<=[.?]\)))\s+(?=[A-Z`*\"(\[])")


@dataclass(frozen=True)
class Term:
    """A term, the sentence that introduces it, and where: a lesson and a heading in it."""

    word: str
    sentence: str
    lesson: Lesson
    heading: str


def terms(course: Course) -> list[Term]:
    """All terms in the order of the alphabet; of a term that several lessons introduce, the first."""
    found: dict[str, Term] = {}
    for lesson in course.lessons:
        for term in _terms_of(lesson):
            found.setdefault(term.word.lower(), term)
    return [found[word] for word in sorted(found)]


def _terms_of(lesson: Lesson) -> list[Term]:
    text = _FENCE.sub("", _FRONT.sub("", lesson.source.read_text(encoding="utf-8")))
    found, heading = [], lesson.title
    for block in re.split(r"\n\s*\n|\n(?=- )", text):
        if title := _HEADING.match(block.strip()):
            heading = title[2]
            continue
        flat = " ".join(block.split())
        for sentence in _END.split(flat):
            bare = _CODE.sub(lambda code: "x" * len(code[0]), sentence)
            for match in _ITALIC.finditer(bare):
                word = sentence[match.start(1) : match.end(1)]
                if not sentence[: match.start()].strip("> -"):
                    word = _in_the_middle(word)
                found.append(Term(word, sentence.strip("> -").removesuffix(":"), lesson, heading))
    return found


def _in_the_middle(word: str) -> str:
    """A term that begins a sentence, as it is written elsewhere: small, unless it is a name."""
    name = word.split()[0]
    return word if name in NAMES or not name[1:].islower() else word[0].lower() + word[1:]


def text_of(course: Course) -> str:
    """The glossary as a notebook of one Markdown cell, as it stands in the file."""
    lines = ["# Glossary", "", _ABOUT]
    letter = ""
    for term in terms(course):
        first = term.word[0].upper()
        if first.isalpha() and first != letter:
            letter = first
            lines += ["", f"## {letter}"]
        place = f"{term.lesson.slug}.ipynb#{anchor(term.heading)}"
        link = f"[{term.lesson.number:02d} {term.heading}](<{place}>)"
        lines += ["", f"**{term.word}**: {term.sentence} {link}"]
    source = "\n".join(lines)
    cell = {"cell_type": "markdown", "id": "glossary", "metadata": {}, "source": source.splitlines(True)}
    metadata = {"kernelspec": KERNELSPEC, "language_info": LANGUAGE}
    notebook = {"cells": [cell], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def path_of(course: Course) -> Path:
    return course.root / "notebooks" / NAME


def is_stale(course: Course) -> bool:
    """Whether the file is not what the lessons say. Lessons without terms need none."""
    path = path_of(course)
    return path.read_text(encoding="utf-8") != text_of(course) if path.is_file() else bool(terms(course))


def write(course: Course) -> bool:
    """Writes the file where it is stale; says whether it was."""
    if stale := is_stale(course):
        path_of(course).write_text(text_of(course), encoding="utf-8")
    return stale
